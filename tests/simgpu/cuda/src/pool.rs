//! Stream-ordered memory pools: reserved memory, memory in use, and the reuse of freed memory.
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use deepres_abi::driver::types as cu;
use simgpu_engine::{Config, Ticket, Work};

use crate::arena::Arena;
use crate::context::{self, lock};
use crate::handle::{Kind as HandleKind, Table};
use crate::ipc;
use crate::mapping::{self, Access};
use crate::memory::{self, Kind};
use crate::pending;
use crate::process::{self, host};
use crate::status::{self, Result};
use crate::stream::Stream;

/// All live pools.
pub static POOLS: Table<Pool> = Table::new(HandleKind::Pool);

/// Destroyed pools whose memory clients still use, and destroyed pools whose streams have not
/// reached all frees yet.
static ORPHANS: Mutex<Vec<Arc<Pool>>> = Mutex::new(Vec::new());

/// First word behind the descriptor of a pool.
const TOKEN: u64 = u64::from_le_bytes(*b"simgpu P");

/// Smallest growth of a pool. The value is an assumption, because no real driver's step was
/// measured yet (this crate's README).
const GROWTH_BYTES: u64 = 32 << 20;

/// A range that a client freed in stream order. The same stream may reuse the range at once. Other
/// streams may reuse it when the stream has reached the free.
struct Freed {
    at: u64,
    bytes: u64,
    stream: u64,
    due: Ticket,
}

#[derive(Default)]
struct State {
    arena: Arena,
    /// Rounded lengths of allocated ranges, by address.
    taken: HashMap<u64, u64>,
    freed: Vec<Freed>,
    release_threshold: u64,
    reuse: [bool; 3],
    used: u64,
    used_high: u64,
    reserved_high: u64,
    /// The access that the client granted, by device ordinal.
    access: HashMap<i32, u32>,
}

/// Kind of a pool's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stuff {
    /// Memory of a GPU.
    Device,
    /// Memory of the host.
    Host,
    /// Managed memory, which lies on the host in the simulation.
    Managed,
    /// Memory of another process: that process's random number, and the pool's number in that
    /// process.
    Imported(u64, u64),
}

/// A memory pool.
pub struct Pool {
    /// The handle by which clients name the pool.
    pub handle: usize,
    /// Ordinal of the memory's device.
    pub device: i32,
    stuff: Stuff,
    /// Type and id of the location at the creation.
    location: (u32, i32),
    /// Number of the pool in this process; 0 for pools that cannot be exported.
    number: u64,
    handle_types: u32,
    max_bytes: u64,
    is_default: bool,
    state: Mutex<State>,
}

/// The pools of cuMemAllocAsync: each device's own pool, and the pool that the client set instead.
#[derive(Default)]
struct DevicePools {
    default: HashMap<i32, Arc<Pool>>,
    /// The driver's own pools for other locations and kinds of memory. The key has the location's
    /// type and id, and the memory's type.
    elsewhere: HashMap<(u32, i32, u32), Arc<Pool>>,
    current: HashMap<i32, Arc<Pool>>,
}

static DEVICE_POOLS: LazyLock<Mutex<DevicePools>> = LazyLock::new(Mutex::default);

impl Pool {
    fn insert(device: i32, handle_types: u32, max_bytes: u64, is_default: bool) -> Result<Arc<Self>> {
        let location = (cu::CU_MEM_LOCATION_TYPE_DEVICE, device);
        Self::insert_of(Stuff::Device, location, device, handle_types, max_bytes, is_default)
    }

    fn insert_of(
        stuff: Stuff,
        location: (u32, i32),
        device: i32,
        handle_types: u32,
        max_bytes: u64,
        is_default: bool,
    ) -> Result<Arc<Self>> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        process::gpu_of(device)?;
        let number = if handle_types == 0 { 0 } else { NEXT.fetch_add(1, Ordering::Relaxed) };
        let state = State { reuse: [true; 3], ..State::default() };
        POOLS
            .insert_with(|handle| {
                Arc::new(Self {
                    handle,
                    device,
                    stuff,
                    location,
                    number,
                    handle_types,
                    max_bytes,
                    is_default,
                    state: Mutex::new(state),
                })
            })
            .ok_or(status::OUT_OF_MEMORY)
    }

    /// Creates a pool for a client.
    pub fn create(props: &cu::CUmemPoolProps) -> Result<Arc<Self>> {
        let location = (props.location.r#type, props.location.id);
        let on_host = matches!(
            location.0,
            cu::CU_MEM_LOCATION_TYPE_HOST
                | cu::CU_MEM_LOCATION_TYPE_HOST_NUMA
                | cu::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
        );
        let (stuff, device) = match (props.allocType, location.0) {
            (cu::CU_MEM_ALLOCATION_TYPE_PINNED, cu::CU_MEM_LOCATION_TYPE_DEVICE) => {
                (Stuff::Device, location.1)
            }
            (cu::CU_MEM_ALLOCATION_TYPE_PINNED, _) if on_host => (Stuff::Host, 0),
            (cu::CU_MEM_ALLOCATION_TYPE_MANAGED, cu::CU_MEM_LOCATION_TYPE_DEVICE) => {
                (Stuff::Managed, location.1)
            }
            (cu::CU_MEM_ALLOCATION_TYPE_MANAGED, cu::CU_MEM_LOCATION_TYPE_NONE) => (Stuff::Managed, 0),
            (cu::CU_MEM_ALLOCATION_TYPE_MANAGED, _) if on_host => (Stuff::Managed, 0),
            // The location is a part of a device's memory; the low byte of its id names the device.
            (cu::CU_MEM_ALLOCATION_TYPE_PINNED, cu::CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN) => {
                (Stuff::Device, location.1 & 0xff)
            }
            _ => return Err(status::INVALID_VALUE),
        };
        let is_exportable =
            stuff == Stuff::Device && props.handleTypes & !cu::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR == 0;
        if props.handleTypes != cu::CU_MEM_HANDLE_TYPE_NONE && !is_exportable {
            return Err(status::NOT_SUPPORTED);
        }
        Self::insert_of(stuff, location, device, props.handleTypes, props.maxSize as u64, false)
    }

    /// Creates the driver's own pool for managed memory, or for a location other than a device.
    fn create_default((kind, id): (u32, i32), stuff: u32) -> Result<Arc<Self>> {
        let (stuff, device) = match (stuff, kind) {
            (cu::CU_MEM_ALLOCATION_TYPE_MANAGED, cu::CU_MEM_LOCATION_TYPE_DEVICE) => (Stuff::Managed, id),
            (cu::CU_MEM_ALLOCATION_TYPE_MANAGED, cu::CU_MEM_LOCATION_TYPE_NONE) => (Stuff::Managed, 0),
            (cu::CU_MEM_ALLOCATION_TYPE_PINNED, cu::CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN) => {
                (Stuff::Device, id & 0xff)
            }
            _ => return Err(status::NOT_SUPPORTED),
        };
        Self::insert_of(stuff, (kind, id), device, cu::CU_MEM_HANDLE_TYPE_NONE, 0, true)
    }

    /// Returns a descriptor by which another process can import the pool. The descriptor's file
    /// holds the process and the pool's number.
    pub fn export(&self, handle_type: u32) -> Result<OwnedFd> {
        status::refuse(handle_type != cu::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || self.number == 0)?;
        let words = [TOKEN, ipc::own_number(), self.number];
        let descriptor = mapping::shareable(size_of_val(&words) as u64)?;
        let file = File::from(descriptor);
        let text: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        file.write_all_at(&text, 0).map_err(|_| status::OPERATING_SYSTEM)?;
        Ok(file.into())
    }

    /// Imports the pool of another process by a descriptor of [`Pool::export`]. This process cannot
    /// allocate from the pool.
    pub fn import(descriptor: i32, handle_type: u32) -> Result<Arc<Self>> {
        status::refuse(handle_type != cu::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)?;
        let file = File::from(mapping::duplicate(descriptor)?);
        let mut text = [0; 3 * size_of::<u64>()];
        file.read_exact_at(&mut text, 0).map_err(|_| status::INVALID_VALUE)?;
        let mut words = text.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let (token, exporter, number) = (words.next(), words.next(), words.next());
        let (Some(TOKEN), Some(exporter), Some(number)) = (token, exporter, number) else {
            return Err(status::INVALID_VALUE);
        };
        let device = context::current().map_or(0, |context| context.device);
        let location = (cu::CU_MEM_LOCATION_TYPE_DEVICE, device);
        Self::insert_of(Stuff::Imported(exporter, number), location, device, 0, 0, false)
    }

    /// Exports the allocation at `address`. A process that has imported the pool can then open it.
    pub fn export_pointer(address: u64) -> Result<[u8; 64]> {
        let found = memory::find(address).filter(|found| found.base == address);
        let allocation = found.ok_or(status::INVALID_VALUE)?;
        match &allocation.kind {
            Kind::Pooled(pool) if pool.number != 0 => {
                ipc::export_pooled(&allocation, pool.number).map(ipc::Handle::bytes)
            }
            _ => Err(status::INVALID_VALUE),
        }
    }

    /// Opens an allocation of the pool's exporter. Returns the address in this process.
    pub fn import_pointer(&self, data: [u8; 64]) -> Result<u64> {
        match self.stuff {
            Stuff::Imported(exporter, number) => ipc::open_pooled(data, (exporter, number)),
            _ => Err(status::INVALID_VALUE),
        }
    }

    /// Returns the slab around an address: begin and length of the memory reserved in one step.
    pub fn slab_of(&self, address: u64) -> Option<(u64, u64)> {
        let state = lock(&self.state);
        Self::slab_in(&state, address)
    }

    fn slab_in(state: &State, address: u64) -> Option<(u64, u64)> {
        state.arena.slabs().find(|(base, bytes)| (*base..base + bytes).contains(&address))
    }

    /// Returns the pool's reserved memory that is charged to this process. Host memory is charged
    /// to no process, and an imported pool is charged to its exporter.
    fn counted(&self) -> u64 {
        match self.stuff {
            Stuff::Device | Stuff::Managed => Self::reserved(&lock(&self.state)),
            Stuff::Host | Stuff::Imported(..) => 0,
        }
    }

    fn reserved(state: &State) -> u64 {
        state.arena.bytes()
    }

    /// Allocates `bytes` for later work in `stream`.
    pub fn allocate(self: &Arc<Self>, stream: &Stream, bytes: u64) -> Result<u64> {
        // Imported pools do not support new allocations.
        status::refuse(bytes == 0 || matches!(self.stuff, Stuff::Imported(..)))?;
        let rounded = bytes
            .checked_next_multiple_of(Config::SUBALLOCATION_GRANULARITY_BYTES)
            .ok_or(status::OUT_OF_MEMORY)?;
        let mut state = lock(&self.state);
        Self::collect(&mut state);
        let at =
            match state.arena.take(rounded).or_else(|| Self::reuse_in_stream(&mut state, stream.id, rounded))
            {
                Some(at) => at,
                None => {
                    self.grow(&mut state, rounded)?;
                    state.arena.take(rounded).ok_or(status::OUT_OF_MEMORY)?
                }
            };
        state.taken.insert(at, rounded);
        state.used += rounded;
        state.used_high = state.used_high.max(state.used);
        memory::enter(at, bytes, Kind::Pooled(Arc::clone(self)), None);
        Ok(at)
    }

    /// Returns the GPU to which the pool's memory is charged. The process holds the charge,
    /// independently of contexts.
    fn charged_gpu(&self) -> Option<usize> {
        process::gpu_of(self.device).ok().filter(|_| self.stuff == Stuff::Device)
    }

    fn grow(&self, state: &mut State, bytes: u64) -> Result<()> {
        let piece = Config::ALLOCATION_GRANULARITY_BYTES;
        let needed = bytes.checked_next_multiple_of(piece).ok_or(status::OUT_OF_MEMORY)?;
        let room =
            if self.max_bytes == 0 { u64::MAX } else { self.max_bytes.saturating_sub(Self::reserved(state)) };
        // If the GPU has no room for the usual step, it can still have room for the requested size.
        for step in [needed.max(GROWTH_BYTES), needed] {
            let charged = self.charged_gpu();
            if step > room || charged.is_some_and(|gpu| host().reserve_process_memory(gpu, step).is_err()) {
                continue;
            }
            let base =
                mapping::map(step, mapping::ALIGNMENT_BYTES, 0, Access::ReadWrite).inspect_err(|_| {
                    if let Some(gpu) = charged {
                        host().release_process_memory(gpu, step);
                    }
                })?;
            state.arena.add(base, step);
            state.reserved_high = state.reserved_high.max(Self::reserved(state));
            return Ok(());
        }
        Err(status::OUT_OF_MEMORY)
    }

    /// Frees ranges whose stream has reached the free.
    fn collect(state: &mut State) {
        let State { arena, freed, .. } = state;
        freed.retain(|range| {
            let is_done = host().query(range.due).is_some();
            if is_done {
                arena.give(range.at, range.bytes);
            }
            !is_done
        });
    }

    /// Returns a range that the same stream freed before. Later work in the stream runs after the
    /// free.
    fn reuse_in_stream(state: &mut State, stream: u64, bytes: u64) -> Option<u64> {
        let at = state.freed.iter().position(|range| range.stream == stream && range.bytes >= bytes)?;
        let range = &mut state.freed[at];
        let start = range.at;
        if range.bytes > bytes {
            range.at += bytes;
            range.bytes -= bytes;
        } else {
            state.freed.swap_remove(at);
        }
        Some(start)
    }

    fn strike(&self, state: &mut State, address: u64) -> Result<u64> {
        let is_mine = |found: &memory::Allocation| matches!(&found.kind, Kind::Pooled(pool) if pool.handle == self.handle);
        let struck = memory::strike(address, is_mine)?;
        if let Some((base, _)) = Self::slab_in(state, address) {
            ipc::withdraw_from(base, struck.id);
        }
        let bytes = state.taken.remove(&address).ok_or(status::INVALID_VALUE)?;
        state.used -= bytes;
        Ok(bytes)
    }

    /// Frees memory in stream order (cuMemFreeAsync).
    pub fn free_async(&self, stream: &Stream, address: u64) -> Result<()> {
        let due = stream.enqueue(Work::Marker)?;
        let mut state = lock(&self.state);
        let bytes = self.strike(&mut state, address)?;
        state.freed.push(Freed { at: address, bytes, stream: stream.id, due });
        Ok(())
    }

    /// Frees memory at once. The caller has waited for the GPU.
    pub fn free_now(&self, address: u64) -> Result<()> {
        let mut state = lock(&self.state);
        let bytes = self.strike(&mut state, address)?;
        state.arena.give(address, bytes);
        drop(state);
        release_orphans();
        Ok(())
    }

    /// Gives unused memory above `keep_bytes` back to the GPU.
    pub fn trim(&self, keep_bytes: u64) {
        let mut state = lock(&self.state);
        Self::collect(&mut state);
        for (base, bytes) in state.arena.trim(keep_bytes) {
            pending::drain(base, bytes);
            ipc::forget_piece(base);
            mapping::unmap(base, bytes);
            if let Some(gpu) = self.charged_gpu() {
                host().release_process_memory(gpu, bytes);
            }
        }
    }

    /// Returns an attribute as 64 bits.
    pub fn attribute(&self, attribute: u32) -> Result<u64> {
        let state = lock(&self.state);
        Ok(match attribute {
            cu::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => state.reuse[0].into(),
            cu::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => state.reuse[1].into(),
            cu::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => state.reuse[2].into(),
            cu::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => state.release_threshold,
            cu::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => Self::reserved(&state),
            cu::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => state.reserved_high,
            cu::CU_MEMPOOL_ATTR_USED_MEM_CURRENT => state.used,
            cu::CU_MEMPOOL_ATTR_USED_MEM_HIGH => state.used_high,
            cu::CU_MEMPOOL_ATTR_ALLOCATION_TYPE if self.stuff == Stuff::Managed => {
                cu::CU_MEM_ALLOCATION_TYPE_MANAGED.into()
            }
            cu::CU_MEMPOOL_ATTR_ALLOCATION_TYPE => cu::CU_MEM_ALLOCATION_TYPE_PINNED.into(),
            cu::CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES => self.handle_types.into(),
            cu::CU_MEMPOOL_ATTR_LOCATION_ID => self.location.1 as u64,
            cu::CU_MEMPOOL_ATTR_LOCATION_TYPE => self.location.0.into(),
            cu::CU_MEMPOOL_ATTR_MAX_POOL_SIZE => self.max_bytes,
            cu::CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED => 0,
            _ => return Err(status::INVALID_VALUE),
        })
    }

    /// Returns whether an attribute is 32 bits wide in the API.
    pub fn is_narrow(attribute: u32) -> bool {
        matches!(
            attribute,
            cu::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
                | cu::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
                | cu::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES
                | cu::CU_MEMPOOL_ATTR_ALLOCATION_TYPE
                | cu::CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES
                | cu::CU_MEMPOOL_ATTR_LOCATION_ID
                | cu::CU_MEMPOOL_ATTR_LOCATION_TYPE
                | cu::CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED
        )
    }

    /// Changes an attribute. High-water marks can only be reset to the present value.
    pub fn set_attribute(&self, attribute: u32, value: u64) -> Result<()> {
        let mut state = lock(&self.state);
        match attribute {
            cu::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => state.reuse[0] = value != 0,
            cu::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => state.reuse[1] = value != 0,
            cu::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => state.reuse[2] = value != 0,
            cu::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => state.release_threshold = value,
            cu::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH if value == 0 => {
                state.reserved_high = Self::reserved(&state)
            }
            cu::CU_MEMPOOL_ATTR_USED_MEM_HIGH if value == 0 => state.used_high = state.used,
            _ => return Err(status::INVALID_VALUE),
        }
        Ok(())
    }

    /// Returns the access flags of a device.
    pub fn access(&self, device: i32) -> u32 {
        if device == self.device {
            return cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        }
        lock(&self.state).access.get(&device).copied().unwrap_or(cu::CU_MEM_ACCESS_FLAGS_PROT_NONE)
    }

    /// Grants or withdraws a device's access. The owner's access cannot be withdrawn.
    pub fn set_access(&self, device: i32, flags: u32) -> Result<()> {
        process::gpu_of(device)?;
        status::refuse(device == self.device && flags != cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)?;
        lock(&self.state).access.insert(device, flags);
        Ok(())
    }
}

/// Returns the pool of a handle.
pub fn by_handle(handle: usize) -> Result<Arc<Pool>> {
    POOLS.get(handle).ok_or(status::INVALID_VALUE)
}

/// Destroys a client's pool. Memory in use stays until it is freed.
pub fn destroy(handle: usize) -> Result<()> {
    let pool = by_handle(handle)?;
    status::refuse(pool.is_default)?;
    POOLS.remove(handle);
    lock(&DEVICE_POOLS).current.retain(|_, current| current.handle != handle);
    pool.trim(0);
    if Pool::reserved(&lock(&pool.state)) != 0 {
        lock(&ORPHANS).push(pool);
    }
    Ok(())
}

/// Releases destroyed pools whose memory is not in use any more, once the streams have reached the
/// frees.
fn release_orphans() {
    lock(&ORPHANS).retain(|pool| {
        let is_used = !lock(&pool.state).taken.is_empty();
        if !is_used {
            pool.trim(0);
        }
        is_used || Pool::reserved(&lock(&pool.state)) != 0
    });
}

/// Returns the reserved memory of all pools that is charged to this process. The result includes
/// destroyed pools.
pub fn reserved() -> u64 {
    release_orphans();
    let orphans = lock(&ORPHANS).clone();
    POOLS.all().into_iter().chain(orphans).map(|pool| pool.counted()).sum()
}

/// Returns a device's own pool.
pub fn default_of(device: i32) -> Result<Arc<Pool>> {
    process::gpu_of(device)?;
    let mut pools = lock(&DEVICE_POOLS);
    if let Some(pool) = pools.default.get(&device) {
        return Ok(Arc::clone(pool));
    }
    let pool = Pool::insert(device, cu::CU_MEM_HANDLE_TYPE_NONE, 0, true)?;
    pools.default.insert(device, Arc::clone(&pool));
    Ok(pool)
}

/// Returns the driver's pool for a location other than a device, or for managed memory.
pub fn default_at(location: (u32, i32), stuff: u32) -> Result<Arc<Pool>> {
    let mut pools = lock(&DEVICE_POOLS);
    let key = (location.0, location.1, stuff);
    if let Some(pool) = pools.elsewhere.get(&key) {
        return Ok(Arc::clone(pool));
    }
    let pool = Pool::create_default(location, stuff)?;
    pools.elsewhere.insert(key, Arc::clone(&pool));
    Ok(pool)
}

/// Returns the pool from which cuMemAllocAsync allocates.
pub fn current_of(device: i32) -> Result<Arc<Pool>> {
    if let Some(pool) = lock(&DEVICE_POOLS).current.get(&device) {
        return Ok(Arc::clone(pool));
    }
    default_of(device)
}

/// Sets the pool from which cuMemAllocAsync allocates.
pub fn set_current(device: i32, pool: Arc<Pool>) -> Result<()> {
    process::gpu_of(device)?;
    status::refuse(pool.device != device || pool.stuff != Stuff::Device)?;
    lock(&DEVICE_POOLS).current.insert(device, pool);
    Ok(())
}

/// Gives back unused memory above the pools' thresholds. The driver calls this function when the
/// host has waited for the GPU.
pub fn trim_at_synchronisation(device: i32) {
    for pool in POOLS.all() {
        if pool.device == device {
            let threshold = lock(&pool.state).release_threshold;
            pool.trim(threshold);
        }
    }
    release_orphans();
}
