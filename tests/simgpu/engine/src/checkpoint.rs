//! Checkpoints: at another process's request, the engine moves a whole process off the GPUs and
//! back. `cuCheckpointProcess*` calls these functions.
//!
//! NVIDIA documents these states (driver API, "CUDA Checkpointing";
//! github.com/NVIDIA/cuda-checkpoint):
//!
//! - *Locked*: calls that would change anything wait, and submitted work completes.
//! - *Checkpointed*: the memory's contents lie on the host, and the process's GPU memory is free.
//!
//! After a restore, the process is locked. After an unlock, the process goes on. If the engine
//! cannot lock a process in time, the process goes on as before.

use crate::{
    Host, MAX_GPUS,
    guard::Guard,
    journal::Memory,
    layout::{MAX_PROCESSES, Process, State, Word, checkpoint_state, process_state},
    managed, namespace, sim,
};
use std::{
    sync::atomic::{Ordering, fence},
    thread,
    time::{Duration, Instant},
};

/// Polling interval of a call that waits for an unlock, and of a lock that waits for calls.
const POLL: Duration = Duration::from_micros(200);

/// State of a process with respect to checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointState {
    /// The process uses the GPUs.
    Running,
    /// The process's calls wait.
    Locked,
    /// The process's memory is on the host.
    Checkpointed,
}

/// Reason why a step failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// No living process of this id uses the GPUs.
    #[error("no such process uses the GPUs")]
    NoSuchProcess,
    /// The step cannot begin, because the process is in another state.
    #[error("the process is not in the state that this begins with")]
    WrongState,
    /// The process's work did not end in time.
    #[error("the process could not be locked in time")]
    TimedOut,
    /// The process has memory that checkpoints leave out.
    #[error("the process has memory that cannot be moved")]
    Unmovable,
    /// The process's memory does not fit beside the memory in use on the GPUs.
    #[error("not enough device memory to bring the process back")]
    OutOfMemory,
}

/// A call in progress. Until the drop of this value, no process can lock the calling process.
#[derive(Debug)]
pub struct Call<'a> {
    calls: &'a Word,
}

impl Drop for Call<'_> {
    #[inline]
    fn drop(&mut self) {
        self.calls.subtract(1);
    }
}

impl Host {
    /// Begins a call that can change something, and returns its guard. Waits while the process is
    /// locked.
    #[inline]
    pub fn begin_call(&self) -> Call<'_> {
        let process = self.own_record();
        loop {
            process.calls.add(1);
            // The addition is a full barrier. So either this call sees the lock, or the locking
            // process sees this call.
            if process.checkpoint.load() == checkpoint_state::RUNNING || self.is_forked() {
                return Call { calls: &process.calls };
            }
            process.calls.subtract(1);
            while process.checkpoint.load() != checkpoint_state::RUNNING && !self.is_forked() {
                thread::sleep(POLL);
            }
        }
    }

    /// Counts another piece of this process's memory that checkpoints leave out.
    pub fn add_unmovable(&self) {
        self.own_record().unmovable.add(1);
    }

    /// Undoes one call of [`Self::add_unmovable`].
    pub fn remove_unmovable(&self) {
        self.own_record().unmovable.subtract(1);
    }

    /// Returns the checkpoint state of a process.
    ///
    /// # Errors
    /// [`CheckpointError::NoSuchProcess`].
    pub fn checkpoint_state(&self, pid: u32) -> Result<CheckpointState, CheckpointError> {
        let guard = self.lock_state().ok_or(CheckpointError::NoSuchProcess)?;
        let (_, process) = find(guard.state(), pid).ok_or(CheckpointError::NoSuchProcess)?;
        Ok(match process.checkpoint.load() {
            checkpoint_state::LOCKED => CheckpointState::Locked,
            checkpoint_state::CHECKPOINTED => CheckpointState::Checkpointed,
            _ => CheckpointState::Running,
        })
    }

    /// Locks a running process and waits until its submitted work is complete. With a `limit`,
    /// waits for at most that time.
    ///
    /// # Errors
    /// [`CheckpointError`]. The process then keeps running.
    pub fn lock_process(&self, pid: u32, limit: Option<Duration>) -> Result<(), CheckpointError> {
        self.step(pid, checkpoint_state::RUNNING, checkpoint_state::LOCKED, |_, _| Ok(()))?;
        fence(Ordering::SeqCst);
        let begun = Instant::now();
        loop {
            {
                let guard = self.lock_state().ok_or(CheckpointError::NoSuchProcess)?;
                let (number, process) = find(guard.state(), pid).ok_or(CheckpointError::NoSuchProcess)?;
                if process.calls.load() == 0 && is_idle(&guard, number) {
                    return Ok(());
                }
            }
            if limit.is_some_and(|limit| begun.elapsed() >= limit) {
                self.step(pid, checkpoint_state::LOCKED, checkpoint_state::RUNNING, |_, _| Ok(()))?;
                return Err(CheckpointError::TimedOut);
            }
            thread::sleep(POLL);
        }
    }

    /// Moves a locked process's memory to the host and frees the memory on the GPUs. The call takes
    /// the time of the copy.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn checkpoint_process(&self, pid: u32) -> Result<(), CheckpointError> {
        let (held_bytes, unmovable) = self.in_state(pid, checkpoint_state::LOCKED, |process| {
            let held = process.gpus.iter().map(|gpu| gpu.memory_bytes.load()).sum::<u64>();
            (held, process.unmovable.load())
        })?;
        if unmovable > 0 {
            return Err(CheckpointError::Unmovable);
        }
        thread::sleep(time_of(held_bytes, self.config().device_to_host_bytes_per_us));
        self.step(pid, checkpoint_state::LOCKED, checkpoint_state::CHECKPOINTED, |guard, process| {
            let state = guard.state();
            for (gpu, account) in state.gpus.iter().zip(&process.gpus).take(MAX_GPUS) {
                let (held, used) = (guard.get(&account.memory_bytes), guard.get(&gpu.memory_used_bytes));
                guard.put(&gpu.memory_used_bytes, used.saturating_sub(held));
                guard.put(&account.suspended_bytes, held);
                guard.put(&account.memory_bytes, 0);
            }
            Ok(())
        })
    }

    /// Takes GPU memory for a checkpointed process again and copies the contents back, which takes
    /// the time of the copy. The process is locked afterwards.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn restore_process(&self, pid: u32) -> Result<(), CheckpointError> {
        let bytes = self.in_state(pid, checkpoint_state::CHECKPOINTED, |process| {
            process.gpus.iter().map(|gpu| gpu.suspended_bytes.load()).sum::<u64>()
        })?;
        let config = self.config();
        let total_bytes = config.memory_bytes;
        self.step(pid, checkpoint_state::CHECKPOINTED, checkpoint_state::LOCKED, |guard, process| {
            let state = guard.state();
            for (index, (gpu, account)) in state.gpus.iter().zip(&process.gpus).take(MAX_GPUS).enumerate() {
                let bytes = guard.get(&account.suspended_bytes);
                let used = guard.get(&gpu.memory_used_bytes).saturating_add(bytes);
                if bytes > 0 && used > total_bytes {
                    guard.abort();
                    return Err(CheckpointError::OutOfMemory);
                }
                managed::make_room(&mut **guard, state, config, index, bytes, None);
                guard.put(&gpu.memory_used_bytes, used);
                let peak = guard.get(&gpu.memory_peak_bytes);
                guard.put(&gpu.memory_peak_bytes, peak.max(used));
                guard.put(&account.memory_bytes, bytes);
                guard.put(&account.suspended_bytes, 0);
            }
            Ok(())
        })?;
        thread::sleep(time_of(bytes, self.config().host_to_device_bytes_per_us));
        Ok(())
    }

    /// Lets a locked process go on.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn unlock_process(&self, pid: u32) -> Result<(), CheckpointError> {
        self.step(pid, checkpoint_state::LOCKED, checkpoint_state::RUNNING, |_, _| Ok(()))
    }

    fn in_state<T>(
        &self,
        pid: u32,
        state: u64,
        look: impl FnOnce(&Process) -> T,
    ) -> Result<T, CheckpointError> {
        let guard = self.lock_state().ok_or(CheckpointError::NoSuchProcess)?;
        let (_, process) = find(guard.state(), pid).ok_or(CheckpointError::NoSuchProcess)?;
        if process.checkpoint.load() == state { Ok(look(process)) } else { Err(CheckpointError::WrongState) }
    }

    /// Moves a process from state `from` to state `to`, in one transaction with `change`. Fails if
    /// the process is not in the state `from`.
    fn step(
        &self,
        pid: u32,
        from: u64,
        to: u64,
        change: impl FnOnce(&mut Guard<'_>, &Process) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        let mut guard = self.lock_state().ok_or(CheckpointError::NoSuchProcess)?;
        let (_, process) = find(guard.state(), pid).ok_or(CheckpointError::NoSuchProcess)?;
        if process.checkpoint.load() != from {
            return Err(CheckpointError::WrongState);
        }
        change(&mut guard, process)?;
        guard.put(&process.checkpoint, to);
        guard.commit();
        Ok(())
    }
}

/// Returns a living process by its id in this pid namespace, with its number.
fn find(state: &State, pid: u32) -> Option<(usize, &Process)> {
    let attached = (state.header.attached.load() as usize).min(MAX_PROCESSES);
    let here = namespace::own();
    let is_it = |process: &Process| {
        process.state.load() == process_state::ALIVE
            && process.pid.load() == u64::from(pid)
            && process.pid_namespace.load() == here
    };
    state.processes[..attached].iter().enumerate().find(|(_, process)| is_it(process))
}

/// Returns whether all submitted work of a process is complete.
fn is_idle(guard: &Guard<'_>, number: usize) -> bool {
    let state = guard.state();
    let used = state.header.contexts.used.load() as usize;
    let mut own = (0..used).filter(|context| state.contexts[*context].process.load() == number as u64 + 1);
    own.all(|context| sim::unfinished_streams(&**guard, state, context).next().is_none())
}

fn time_of(bytes: u64, bytes_per_us: u64) -> Duration {
    Duration::from_micros(bytes / bytes_per_us.max(1))
}
