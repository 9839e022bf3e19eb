//! Memory that graphs allocate and free as they run. An address is fixed when its node is made; the GPU is charged when the node runs, and
//! what was freed is kept for the next launch until it is trimmed.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use deepres_abi::driver::types as cu;
use simgpu_engine::Config;

use crate::context::{Context, lock};
use crate::mapping::{self, Access};
use crate::memory::{self, Kind};
use crate::pending;
use crate::process::{self, host};
use crate::status::{self, Result};

/// An allocation node.
#[derive(Clone)]
pub struct Node {
    /// What it was made from, with the address filled in.
    pub params: cu::CUDA_MEM_ALLOC_NODE_PARAMS,
    reserved: Arc<Reservation>,
}

/// The address space of allocation nodes; it ends with the last graph that has one of them.
struct Reservation {
    base: u64,
    bytes: u64,
    /// What the first node at this address asked for.
    asked_bytes: usize,
    device: i32,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let _ = end(self.base);
        let _ = memory::strike(self.base, |found| matches!(found.kind, Kind::Graph));
        pending::drain(self.base, self.bytes);
        mapping::unmap(self.base, self.bytes);
    }
}

/// What is charged for an address while it is in use.
struct Live {
    context: Arc<Context>,
    bytes: u64,
}

/// What a device's graphs use, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Now.
    pub current: u64,
    /// At most, since it was reset.
    pub high: u64,
    /// Now, with what is kept for later.
    pub reserved: u64,
    /// At most of that, since it was reset.
    pub reserved_high: u64,
}

/// What is kept of a context's for the next launch.
struct Spare {
    context: Arc<Context>,
    bytes: u64,
}

#[derive(Default)]
struct State {
    live: HashMap<u64, Live>,
    usage: HashMap<i32, Usage>,
    /// By context.
    spare: HashMap<usize, Spare>,
}

fn state() -> &'static Mutex<State> {
    static STATE: OnceLock<Mutex<State>> = OnceLock::new();
    STATE.get_or_init(Mutex::default)
}

impl Node {
    /// Checks the parameters and fixes the address: that of a node of `spare`, all of which are behind it and done with theirs, if there is room.
    pub fn new(mut params: cu::CUDA_MEM_ALLOC_NODE_PARAMS, spare: &[Self]) -> Result<Self> {
        let location = &params.poolProps.location;
        if params.bytesize == 0 || location.r#type != cu::CU_MEM_LOCATION_TYPE_DEVICE {
            return Err(status::INVALID_VALUE);
        }
        process::gpu_of(location.id)?;
        let bytes = (params.bytesize as u64)
            .checked_next_multiple_of(Config::ALLOCATION_GRANULARITY_BYTES)
            .ok_or(status::OUT_OF_MEMORY)?;
        let has_room =
            |own: &&Self| own.reserved.asked_bytes >= params.bytesize && own.reserved.device == location.id;
        if let Some(own) = spare.iter().filter(has_room).min_by_key(|own| own.reserved.asked_bytes) {
            params.dptr = own.reserved.base;
            return Ok(Self { params, reserved: Arc::clone(&own.reserved) });
        }
        let base = mapping::map(bytes, mapping::ALIGNMENT_BYTES, 0, Access::ReadWrite)?;
        params.dptr = base;
        // Other nodes of the graph name the address before it is in use.
        memory::enter(base, params.bytesize as u64, Kind::Graph, crate::context::current().ok());
        let (asked_bytes, device) = (params.bytesize, location.id);
        Ok(Self { params, reserved: Arc::new(Reservation { base, bytes, asked_bytes, device }) })
    }

    /// Bytes that it takes: what is mapped at its address, which others may have asked more for.
    pub fn bytes(&self) -> u64 {
        self.reserved.bytes
    }

    /// The node runs: its memory is charged and may be used.
    pub fn begin(&self, context: &Arc<Context>) -> Result<()> {
        let (base, bytes) = (self.reserved.base, self.reserved.bytes);
        let mut state = lock(state());
        if state.live.contains_key(&base) {
            return Err(status::INVALID_VALUE);
        }
        let spare = state.spare.get(&context.handle).map_or(0, |spare| spare.bytes).min(bytes);
        memory::charge(context, bytes - spare)?;
        if let Some(kept) = state.spare.get_mut(&context.handle) {
            kept.bytes -= spare;
        }
        state.live.insert(base, Live { context: Arc::clone(context), bytes });
        let usage = state.usage.entry(context.device).or_default();
        usage.current += bytes;
        usage.high = usage.high.max(usage.current);
        usage.reserved += bytes - spare;
        usage.reserved_high = usage.reserved_high.max(usage.reserved);
        Ok(())
    }
}

/// Gets ready `bytes` that the next launches in a context will take (an upload), beyond what is kept for them.
pub fn keep(context: &Arc<Context>, bytes: u64) -> Result<()> {
    let mut state = lock(state());
    let kept = state.spare.get(&context.handle).map_or(0, |spare| spare.bytes);
    let missing = bytes.saturating_sub(kept);
    if missing == 0 {
        return Ok(());
    }
    memory::charge(context, missing)?;
    let fresh = || Spare { context: Arc::clone(context), bytes: 0 };
    state.spare.entry(context.handle).or_insert_with(fresh).bytes += missing;
    let usage = state.usage.entry(context.device).or_default();
    usage.reserved += missing;
    usage.reserved_high = usage.reserved_high.max(usage.reserved);
    Ok(())
}

/// The memory at an address is free again, for other graphs.
pub fn end(address: u64) -> Result<()> {
    let mut state = lock(state());
    let Live { context, bytes } = state.live.remove(&address).ok_or(status::INVALID_VALUE)?;
    if let Some(usage) = state.usage.get_mut(&context.device) {
        usage.current -= bytes;
    }
    state.spare.entry(context.handle).or_insert_with(|| Spare { context, bytes: 0 }).bytes += bytes;
    Ok(())
}

/// Gives back what a device's graphs do not use (cuDeviceGraphMemTrim).
pub fn trim(device: i32) {
    let mut state = lock(state());
    let State { spare, usage, .. } = &mut *state;
    spare.retain(|_, kept| {
        if kept.context.device != device {
            return true;
        }
        if kept.context.is_alive() {
            host().release_memory(kept.context.engine, kept.bytes);
        }
        if let Some(usage) = usage.get_mut(&device) {
            usage.reserved -= kept.bytes;
        }
        false
    });
}

/// Drops what a context that ends had; the engine drops its charges itself.
pub fn forget_context(context: &Context) {
    let mut state = lock(state());
    let State { live, usage, spare } = &mut *state;
    let mut used = 0;
    live.retain(|_, one| {
        let stays = one.context.handle != context.handle;
        used += if stays { 0 } else { one.bytes };
        stays
    });
    let kept = spare.remove(&context.handle).map_or(0, |spare| spare.bytes);
    if let Some(usage) = usage.get_mut(&context.device) {
        usage.current -= used;
        usage.reserved -= used + kept;
    }
}

/// Frees memory of a graph from outside it (cuMemFree, cuMemFreeAsync).
pub fn free_now(address: u64) -> Result<()> {
    end(address)
}

/// Whether an address is in use as memory of a graph.
pub fn is_live(address: u64) -> bool {
    lock(state()).live.contains_key(&address)
}

/// What a device's graphs use.
pub fn usage(device: i32) -> Usage {
    lock(state()).usage.get(&device).copied().unwrap_or_default()
}

/// Sets the high-water mark to the present.
pub fn reset_high(device: i32) {
    if let Some(usage) = lock(state()).usage.get_mut(&device) {
        usage.high = usage.current;
        usage.reserved_high = usage.reserved;
    }
}
