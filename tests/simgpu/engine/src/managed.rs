//! Managed memory on the GPUs: the amount that each process has on each GPU. Each process itself
//! decides which of its pages are on the GPU.
//!
//! Managed memory gets the room that no other memory has taken, and leaves the GPU when other
//! memory needs the room. If a process needs room, the managed memory of other processes leaves
//! first. The engine first takes from the process that has not brought managed memory for the
//! longest time. If an owner finds less memory on the GPU than it brought, the owner treats its
//! least recently used pages as moved to the host.

use crate::{
    Config, Host,
    journal::Memory,
    layout::{MAX_PROCESSES, State},
};

/// Takes at most `bytes` of a process's managed memory off a GPU. Returns the removed amount. The
/// change is part of the caller's transaction.
pub fn take_away<M: Memory>(memory: &mut M, state: &State, process: usize, gpu: usize, bytes: u64) -> u64 {
    let here = &state.processes[process].gpus[gpu].managed_bytes;
    let all = &state.gpus[gpu].managed_bytes;
    let (held_bytes, all_bytes) = (memory.get(here), memory.get(all));
    let gone_bytes = bytes.min(held_bytes);
    if gone_bytes > 0 {
        memory.put(here, held_bytes - gone_bytes);
        memory.put(all, all_bytes.saturating_sub(gone_bytes));
    }
    gone_bytes
}

/// Makes room for `bytes` on a GPU by moving managed memory away. The memory of the process `last`
/// goes last. The change is part of the caller's transaction.
pub fn make_room<M: Memory>(
    memory: &mut M,
    state: &State,
    config: &Config,
    gpu: usize,
    bytes: u64,
    last: Option<usize>,
) {
    let record = &state.gpus[gpu];
    let managed_bytes = memory.get(&record.managed_bytes);
    if managed_bytes == 0 {
        return;
    }
    let free_bytes = config
        .memory_bytes
        .saturating_sub(memory.get(&record.memory_used_bytes))
        .saturating_sub(managed_bytes);
    let mut lacking_bytes = bytes.saturating_sub(free_bytes);
    while lacking_bytes > 0 {
        let used = (memory.get(&state.header.attached) as usize).min(MAX_PROCESSES);
        let has_some = |process: &usize| memory.get(&state.processes[*process].gpus[gpu].managed_bytes) > 0;
        let oldest = (0..used).filter(has_some).min_by_key(|process| {
            (Some(*process) == last, memory.get(&state.processes[*process].gpus[gpu].managed_at_ns))
        });
        let Some(oldest) = oldest else { return };
        lacking_bytes -= take_away(memory, state, oldest, gpu, lacking_bytes);
    }
}

impl Host {
    /// Brings `bytes` of this process's managed memory to a GPU, at most as much as the GPU has
    /// room beside other memory. Managed memory of other processes leaves first, then managed
    /// memory of this process. Returns the brought amount.
    ///
    /// # Panics
    /// If there is no such GPU.
    pub fn bring_managed(&self, gpu: usize, bytes: u64) -> u64 {
        assert!(gpu < self.gpu_count(), "no GPU {gpu}");
        let Some(mut guard) = self.lock_state() else { return 0 };
        let (state, config, now_ns) = (guard.state(), self.config(), guard.now_ns());
        let bytes =
            bytes.min(config.memory_bytes.saturating_sub(guard.get(&state.gpus[gpu].memory_used_bytes)));
        make_room(&mut *guard, state, config, gpu, bytes, Some(self.number()));
        let own = &self.own_record().gpus[gpu];
        guard.add(&own.managed_bytes, bytes);
        guard.put(&own.managed_at_ns, now_ns);
        guard.add(&state.gpus[gpu].managed_bytes, bytes);
        guard.commit();
        bytes
    }

    /// Takes `bytes` of this process's managed memory off a GPU, or all of the process's managed
    /// memory there if that is less.
    ///
    /// # Panics
    /// If there is no such GPU.
    pub fn let_managed_go(&self, gpu: usize, bytes: u64) {
        assert!(gpu < self.gpu_count(), "no GPU {gpu}");
        let Some(mut guard) = self.lock_state() else { return };
        let state = guard.state();
        take_away(&mut *guard, state, self.number(), gpu, bytes);
        guard.commit();
    }

    /// Returns this process's managed memory on a GPU, bytes. Other processes can reduce the amount
    /// at any time.
    ///
    /// # Panics
    /// If there is no such GPU.
    pub fn managed_bytes(&self, gpu: usize) -> u64 {
        self.own_record().gpus[gpu].managed_bytes.load()
    }
}
