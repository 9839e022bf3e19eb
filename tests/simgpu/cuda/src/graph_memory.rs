//! Memory that graphs allocate and free as they run. The driver fixes a node's address when the
//! client creates the node. When the driver submits the node, the driver charges the memory. After
//! the node's memory is freed, the driver keeps it for the next launch, until the client trims the
//! memory.
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

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
    /// Parameters that the client passed at the creation, with the address filled in.
    pub params: cu::CUDA_MEM_ALLOC_NODE_PARAMS,
    reserved: Arc<Reservation>,
}

/// The address space of allocation nodes. The last graph with such a node releases it.
struct Reservation {
    base: u64,
    bytes: u64,
    /// Size that the first node at this address requested.
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

/// The charge for an address in use.
struct Live {
    context: Arc<Context>,
    bytes: u64,
}

/// Memory of a device's graphs, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Memory that the graphs use now.
    pub current: u64,
    /// Highest value of `current` since the last reset.
    pub high: u64,
    /// Memory in use, or kept for later launches.
    pub reserved: u64,
    /// Highest value of `reserved` since the last reset.
    pub reserved_high: u64,
}

/// Memory of a context that the driver keeps for the next launch.
struct Spare {
    context: Arc<Context>,
    bytes: u64,
}

#[derive(Default)]
struct State {
    live: HashMap<u64, Live>,
    usage: HashMap<i32, Usage>,
    /// The memory that the driver keeps for later launches, by context.
    spare: HashMap<usize, Spare>,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

impl Node {
    /// Checks the parameters, fixes the address, and returns the node. If a node of `spare` has
    /// enough room, the new node gets its address. All nodes of `spare` come before the new node
    /// and have freed their memory.
    pub fn new(mut params: cu::CUDA_MEM_ALLOC_NODE_PARAMS, spare: &[Self]) -> Result<Self> {
        let location = &params.poolProps.location;
        status::refuse(params.bytesize == 0 || location.r#type != cu::CU_MEM_LOCATION_TYPE_DEVICE)?;
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

    /// Returns the bytes mapped at the node's address. Another node at the address may have
    /// requested more than this node.
    pub fn bytes(&self) -> u64 {
        self.reserved.bytes
    }

    /// Charges the node's memory and makes it usable. The driver calls this function when it
    /// submits the node.
    pub fn begin(&self, context: &Arc<Context>) -> Result<()> {
        let (base, bytes) = (self.reserved.base, self.reserved.bytes);
        let mut state = lock(&STATE);
        status::refuse(state.live.contains_key(&base))?;
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

/// Reserves `bytes` for the next launches in a context (an upload). If the kept memory is smaller,
/// the function takes the difference.
pub fn keep(context: &Arc<Context>, bytes: u64) -> Result<()> {
    let mut state = lock(&STATE);
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

/// Frees the memory at an address. The driver keeps the memory for other graphs.
pub fn end(address: u64) -> Result<()> {
    let mut state = lock(&STATE);
    let Live { context, bytes } = state.live.remove(&address).ok_or(status::INVALID_VALUE)?;
    if let Some(usage) = state.usage.get_mut(&context.device) {
        usage.current -= bytes;
    }
    state.spare.entry(context.handle).or_insert_with(|| Spare { context, bytes: 0 }).bytes += bytes;
    Ok(())
}

/// Gives back the memory that a device's graphs do not use (cuDeviceGraphMemTrim).
pub fn trim(device: i32) {
    let mut state = lock(&STATE);
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

/// Drops the records of an ending context. The engine drops the charges itself.
pub fn forget_context(context: &Context) {
    let mut state = lock(&STATE);
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

/// Frees a graph's memory from outside the graph (cuMemFree, cuMemFreeAsync).
pub fn free_now(address: u64) -> Result<()> {
    end(address)
}

/// Returns whether an address is in use as memory of a graph.
pub fn is_live(address: u64) -> bool {
    lock(&STATE).live.contains_key(&address)
}

/// Returns the memory of a device's graphs.
pub fn usage(device: i32) -> Usage {
    lock(&STATE).usage.get(&device).copied().unwrap_or_default()
}

/// Resets the high-water marks to the present values.
pub fn reset_high(device: i32) {
    if let Some(usage) = lock(&STATE).usage.get_mut(&device) {
        usage.high = usage.current;
        usage.reserved_high = usage.reserved;
    }
}
