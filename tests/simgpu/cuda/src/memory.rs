//! The ledger of all memory that the driver knows: the kind, the owner and the charge of each
//! address.
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use deepres_abi::driver::types::CU_MEM_ACCESS_FLAGS_PROT_NONE;
use simgpu_engine::Config;

use crate::arena::Arena;
use crate::context::{self, CONTEXTS, Context, code_of, lock};
use crate::mapping::{self, Access};
use crate::pool::Pool;
use crate::process::{self, host};
use crate::status::{self, Result};
use crate::{account, capture, external, ipc, pending, residency};

/// Allocations up to this size share pieces of 2 MiB. Larger allocations have pieces of their own.
const SMALL_BYTES: u64 = 1 << 20;
/// Alignment of the rows of a pitched allocation.
const PITCH_ALIGNMENT_BYTES: u64 = 512;

/// Kind of an allocation.
#[derive(Clone)]
pub enum Kind {
    /// Linear device memory (cuMemAlloc, cuMemAllocPitch).
    Device,
    /// Managed memory. The bytes of managed memory are on the host, and the driver does not charge
    /// them to the GPU. [`crate::residency`] records the place of each block.
    Managed,
    /// Page-locked host memory of the driver.
    HostPinned {
        /// The flags of the allocation, `CU_MEMHOSTALLOC_*`.
        flags: u32,
    },
    /// Page-locked host memory of the client.
    HostRegistered {
        /// The flags of the registration, `CU_MEMHOSTREGISTER_*`.
        flags: u32,
    },
    /// Memory of a stream-ordered pool.
    Pooled(Arc<Pool>),
    /// A mapping of physical memory (cuMemMap).
    Mapped {
        /// `CUmemGenericAllocationHandle` of the mapped memory.
        physical: usize,
        /// The `CU_MEM_ACCESS_FLAGS_*` set for the mapping.
        access: u32,
    },
    /// Memory of a CUDA array; clients cannot address it.
    Array,
    /// Memory that a graph allocates when it runs.
    Graph,
    /// Linear memory of another process, which this process opened. The exporting process is
    /// charged for the memory.
    Opened {
        /// Ordinal of the memory's device.
        device: i32,
        /// Whether the memory is of a pool. The client frees such memory like its own allocations.
        is_pooled: bool,
    },
    /// A buffer in external memory.
    External {
        /// Address at which all of the external memory is mapped.
        base: u64,
        /// Length of the mapping at `base`.
        length: u64,
    },
    /// A variable of a module.
    Variable {
        /// Whether the host may use the variable too.
        managed: bool,
    },
}

/// An allocation that the driver knows.
#[derive(Clone)]
pub struct Allocation {
    /// First address.
    pub base: u64,
    /// Length that the client requested.
    pub bytes: u64,
    /// Kind of memory.
    pub kind: Kind,
    /// The context in which the client allocated the memory.
    pub context: Option<Arc<Context>>,
    /// The number of the allocation, unique in this process (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
    pub id: u64,
}

impl Allocation {
    /// Returns whether the memory is on a GPU and not on the host.
    pub fn is_device(&self) -> bool {
        !self.is_host() && !self.is_managed()
    }

    /// Returns whether the memory is host memory that the driver knows.
    pub fn is_host(&self) -> bool {
        matches!(self.kind, Kind::HostPinned { .. } | Kind::HostRegistered { .. })
    }

    /// Returns whether both host and GPU may use the memory.
    pub fn is_managed(&self) -> bool {
        matches!(self.kind, Kind::Managed | Kind::Variable { managed: true })
    }

    /// Returns the device's ordinal, for device and managed memory.
    pub fn device(&self) -> i32 {
        match (&self.kind, &self.context) {
            (Kind::Pooled(pool), _) => pool.device,
            (Kind::Opened { device, .. }, _) => *device,
            (_, Some(context)) => context.device,
            _ => 0,
        }
    }

    fn contains(&self, address: u64) -> bool {
        address - self.base < self.bytes.max(1)
    }
}

type Ledger = BTreeMap<u64, Allocation>;

static LEDGER: RwLock<Ledger> = RwLock::new(BTreeMap::new());

/// Arenas for small allocations, by context.
static ARENAS: LazyLock<Mutex<HashMap<usize, Arena>>> = LazyLock::new(Mutex::default);

fn read() -> RwLockReadGuard<'static, Ledger> {
    LEDGER.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, Ledger> {
    LEDGER.write().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the allocation around `address`.
pub fn find(address: u64) -> Option<Allocation> {
    let ledger = read();
    let (_, allocation) = ledger.range(..=address).next_back()?;
    allocation.contains(address).then(|| allocation.clone())
}

/// Returns whether all `bytes` at `address` lie in one allocation, or in adjacent allocations.
pub fn covers(address: u64, bytes: u64) -> bool {
    let ledger = read();
    let mut at = address;
    let Some(end) = address.checked_add(bytes) else { return false };
    loop {
        let Some((_, allocation)) = ledger.range(..=at).next_back() else { return false };
        if !allocation.contains(at) {
            return false;
        }
        at = allocation.base + allocation.bytes;
        if at >= end {
            return true;
        }
    }
}

/// Returns whether the GPU can use all of a range: allocations cover the range, and the client set
/// access for all its mappings.
pub fn is_usable(address: u64, bytes: u64) -> bool {
    let is_closed = |one: &Allocation| matches!(one.kind, Kind::Mapped { access, .. } if access == CU_MEM_ACCESS_FLAGS_PROT_NONE);
    let is_mapped = find(address).is_some_and(|found| matches!(found.kind, Kind::Mapped { .. }));
    covers(address, bytes) && !(is_mapped && all_in(address, bytes).iter().any(is_closed))
}

/// Returns every allocation.
pub fn all() -> Vec<Allocation> {
    read().values().cloned().collect()
}

/// Returns every allocation that touches a range.
pub fn all_in(address: u64, bytes: u64) -> Vec<Allocation> {
    let ledger = read();
    let before = ledger.range(..address).next_back().filter(|(_, one)| one.base + one.bytes > address);
    let inside = ledger.range(address..address.saturating_add(bytes));
    before.into_iter().chain(inside).map(|(_, one)| one.clone()).collect()
}

/// Returns whether any allocation touches a range.
pub fn any_in(address: u64, bytes: u64) -> bool {
    !all_in(address, bytes).is_empty()
}

/// Records the access set for the mappings in a range.
pub fn set_access(address: u64, bytes: u64, flags: u32) {
    for (_, one) in write().range_mut(address..address.saturating_add(bytes)) {
        if let Kind::Mapped { access, .. } = &mut one.kind {
            *access = flags;
        }
    }
}

/// Enters an allocation into the ledger.
pub fn enter(base: u64, bytes: u64, kind: Kind, context: Option<Arc<Context>>) {
    let id = process::next_id();
    write().insert(base, Allocation { base, bytes, kind, context, id });
}

/// Removes the allocation at `base` from the ledger, if `is_right` accepts its kind.
pub fn strike(base: u64, is_right: impl FnOnce(&Allocation) -> bool) -> Result<Allocation> {
    let mut ledger = write();
    match ledger.get(&base) {
        Some(allocation) if is_right(allocation) => ledger.remove(&base).ok_or(status::INVALID_VALUE),
        _ => Err(status::INVALID_VALUE),
    }
}

/// Charges device memory to a context.
pub fn charge(context: &Context, bytes: u64) -> Result<()> {
    host().reserve_memory(context.engine, bytes).map_err(|error| code_of(&error))
}

/// Returns whether an allocation of this size shares its piece with other allocations.
pub fn is_small(bytes: u64) -> bool {
    bytes <= SMALL_BYTES
}

/// Charges `bytes` of device memory to a context, and returns address space for them.
fn take(context: &Context, bytes: u64) -> Result<u64> {
    let piece = Config::ALLOCATION_GRANULARITY_BYTES;
    if !is_small(bytes) {
        let charged = bytes.checked_next_multiple_of(piece).ok_or(status::OUT_OF_MEMORY)?;
        charge(context, charged)?;
        return mapping::map(charged, mapping::ALIGNMENT_BYTES, 0, Access::ReadWrite)
            .inspect_err(|_| host().release_memory(context.engine, charged));
    }
    let rounded = bytes.next_multiple_of(Config::SUBALLOCATION_GRANULARITY_BYTES);
    let mut arenas = lock(&ARENAS);
    let arena = arenas.entry(context.handle).or_default();
    if let Some(at) = arena.take(rounded) {
        return Ok(at);
    }
    charge(context, piece)?;
    let base = mapping::map(piece, mapping::ALIGNMENT_BYTES, 0, Access::ReadWrite)
        .inspect_err(|_| host().release_memory(context.engine, piece))?;
    arena.add(base, piece);
    arena.take(rounded).ok_or(status::OUT_OF_MEMORY)
}

/// Returns the piece around an allocation of device memory: its address, and its length of 2 MiB or
/// more.
pub fn piece_of(allocation: &Allocation) -> (u64, u64) {
    let piece = Config::ALLOCATION_GRANULARITY_BYTES;
    if let Kind::Pooled(pool) = &allocation.kind
        && let Some(slab) = pool.slab_of(allocation.base)
    {
        return slab;
    }
    if is_small(allocation.bytes) {
        (piece_at(allocation.base), piece)
    } else {
        (allocation.base, allocation.bytes.next_multiple_of(piece))
    }
}

/// Returns the beginning of the piece around an address.
pub fn piece_at(address: u64) -> u64 {
    address / Config::ALLOCATION_GRANULARITY_BYTES * Config::ALLOCATION_GRANULARITY_BYTES
}

/// Allocates zeroed memory in a context for the driver itself, and returns its address. The caller
/// enters the contents into the ledger.
pub fn take_zeroed(context: &Context, bytes: u64) -> Result<u64> {
    let at = take(context, bytes)?;
    if is_small(bytes) {
        // Larger memory is fresh, but small memory may have been used before. SAFETY: the code
        // above just took `bytes` at `at`.
        unsafe { std::ptr::write_bytes(at as *mut u8, 0, bytes as usize) };
    }
    Ok(at)
}

/// Gives back memory of [`take_zeroed`] after all pending uses of the memory.
pub fn give_drained(context: &Context, at: u64, bytes: u64) {
    pending::drain(at, bytes);
    give(context, at, bytes);
}

fn unmap_piece(base: u64, bytes: u64) {
    ipc::forget_piece(base);
    mapping::unmap(base, bytes);
}

/// Ends the charge of [`take`], and gives the address space back.
fn give(context: &Context, at: u64, bytes: u64) {
    let piece = Config::ALLOCATION_GRANULARITY_BYTES;
    if !is_small(bytes) {
        let charged = bytes.next_multiple_of(piece);
        unmap_piece(at, charged);
        host().release_memory(context.engine, charged);
        return;
    }
    let mut arenas = lock(&ARENAS);
    let Some(arena) = arenas.get_mut(&context.handle) else { return };
    arena.give(at, bytes.next_multiple_of(Config::SUBALLOCATION_GRANULARITY_BYTES));
    for (base, bytes) in arena.trim(0) {
        unmap_piece(base, bytes);
        host().release_memory(context.engine, bytes);
    }
}

/// Allocates device memory in the current context (cuMemAlloc and relatives).
pub fn allocate(bytes: u64, kind: Kind) -> Result<u64> {
    capture::refuse_unsafe()?;
    let context = context::current()?;
    status::refuse(bytes == 0)?;
    allocate_in(&context, bytes, kind)
}

/// Allocates device memory in a given context.
pub fn allocate_in(context: &Arc<Context>, bytes: u64, kind: Kind) -> Result<u64> {
    let base = take(context, bytes)?;
    enter(base, bytes, kind, Some(Arc::clone(context)));
    Ok(base)
}

/// Allocates rows of device memory with aligned beginnings. Returns the address and the pitch.
pub fn allocate_pitched(width_bytes: u64, height: u64, element_bytes: u32) -> Result<(u64, u64)> {
    status::refuse(width_bytes == 0 || height == 0 || !matches!(element_bytes, 4 | 8 | 16))?;
    let pitch = width_bytes.checked_next_multiple_of(PITCH_ALIGNMENT_BYTES).ok_or(status::INVALID_VALUE)?;
    let bytes = pitch.checked_mul(height).ok_or(status::OUT_OF_MEMORY)?;
    Ok((allocate(bytes, Kind::Device)?, pitch))
}

/// Allocates memory that lies on the host: managed or page-locked.
pub fn allocate_on_host(bytes: u64, kind: Kind) -> Result<u64> {
    capture::refuse_unsafe()?;
    let context = context::current()?;
    status::refuse(bytes == 0)?;
    let length = bytes.checked_next_multiple_of(mapping::ALIGNMENT_BYTES).ok_or(status::OUT_OF_MEMORY)?;
    let base = mapping::map(length, mapping::ALIGNMENT_BYTES, 0, Access::ReadWrite)?;
    if matches!(kind, Kind::Managed) {
        host().add_unmovable();
        residency::enter(base, bytes);
    }
    enter(base, bytes, kind, Some(context));
    Ok(base)
}

/// Registers host memory of the client.
pub fn register_host(address: u64, bytes: u64, flags: u32) -> Result<()> {
    let context = context::current()?;
    status::refuse(address == 0 || bytes == 0)?;
    let mut ledger = write();
    let clashes = ledger
        .range(..address + bytes)
        .next_back()
        .is_some_and(|(_, other)| other.base + other.bytes > address);
    status::refuse_as(clashes, status::HOST_MEMORY_ALREADY_REGISTERED)?;
    let id = process::next_id();
    let kind = Kind::HostRegistered { flags };
    ledger.insert(address, Allocation { base: address, bytes, kind, context: Some(context), id });
    Ok(())
}

/// Undoes a registration of host memory.
pub fn unregister_host(address: u64) -> Result<()> {
    if let Some(found) = find(address) {
        pending::drain(found.base, found.bytes);
    }
    strike(address, |allocation| matches!(allocation.kind, Kind::HostRegistered { .. }))
        .map(|_| ())
        .map_err(|_| status::HOST_MEMORY_NOT_REGISTERED)
}

/// Waits until no work of the context can use the context's memory any more. Every free waits in
/// the same way.
pub fn quiesce(context: &Context) {
    host().wait_context(context.engine, context.wait_policy());
    pending::settle();
}

fn free_backing(allocation: &Allocation) {
    pending::drain(allocation.base, allocation.bytes);
    match (&allocation.kind, &allocation.context) {
        (Kind::Device | Kind::Array, Some(context)) => {
            ipc::withdraw(allocation);
            give(context, allocation.base, allocation.bytes);
        }
        (Kind::External { base, length }, _) => external::unmap(*base, *length),
        (Kind::Managed | Kind::HostPinned { .. }, _) => {
            if matches!(allocation.kind, Kind::Managed) {
                host().remove_unmovable();
                residency::forget(allocation.base);
            }
            mapping::unmap(allocation.base, allocation.bytes.next_multiple_of(mapping::ALIGNMENT_BYTES));
        }
        _ => {}
    }
}

/// Frees device or managed memory (cuMemFree). Does nothing for NULL.
pub fn free(address: u64) -> Result<()> {
    account::note_free();
    capture::refuse_unsafe()?;
    context::current()?;
    if address == 0 {
        return Ok(());
    }
    let is_linear = |allocation: &Allocation| {
        matches!(
            allocation.kind,
            Kind::Device
                | Kind::Managed
                | Kind::Pooled(_)
                | Kind::Graph
                | Kind::External { .. }
                | Kind::Opened { is_pooled: true, .. }
        )
    };
    let allocation = find(address)
        .filter(|found| found.base == address && is_linear(found))
        .ok_or(status::INVALID_VALUE)?;
    match &allocation.context {
        Some(context) if context.is_alive() => quiesce(context),
        Some(_) => {}
        // The memory belongs to no context, so any context of its device may use it.
        None => {
            let on_device = |context: &Arc<Context>| context.device == allocation.device();
            CONTEXTS.all().into_iter().filter(on_device).for_each(|context| quiesce(&context));
        }
    }
    match &allocation.kind {
        Kind::Pooled(pool) => pool.free_now(address),
        Kind::Graph => crate::graph_memory::free_now(address),
        Kind::Opened { .. } => ipc::close(address),
        _ => {
            free_backing(&strike(address, is_linear)?);
            Ok(())
        }
    }
}

/// Frees page-locked host memory (cuMemFreeHost).
pub fn free_host(address: u64) -> Result<()> {
    capture::refuse_unsafe()?;
    let is_pinned = |allocation: &Allocation| matches!(allocation.kind, Kind::HostPinned { .. });
    let allocation = find(address)
        .filter(|found| found.base == address && is_pinned(found))
        .ok_or(status::INVALID_VALUE)?;
    if let Some(context) = &allocation.context
        && context.is_alive()
    {
        quiesce(context);
    }
    free_backing(&strike(address, is_pinned)?);
    Ok(())
}

/// Removes a variable from the ledger. The variable's memory belongs to its module.
pub fn forget_variable(address: u64) {
    let _ = strike(address, |found| matches!(found.kind, Kind::Variable { .. }));
}

/// Frees memory that the driver allocated for an array.
pub fn free_internal(address: u64) {
    if let Ok(allocation) = strike(address, |found| matches!(found.kind, Kind::Array)) {
        free_backing(&allocation);
    }
}

/// Drops the allocations of an ending context. Mappings of physical memory stay, and so does memory
/// of pools. The engine drops the context's charges itself.
pub fn forget_context(context: &Context) {
    let gone: Vec<Allocation> = {
        let mut ledger = write();
        let bases: Vec<u64> = ledger
            .values()
            .filter(|one| one.context.as_ref().is_some_and(|own| own.handle == context.handle))
            .filter(|one| !matches!(one.kind, Kind::Mapped { .. }))
            .map(|one| one.base)
            .collect();
        bases.iter().filter_map(|base| ledger.remove(base)).collect()
    };
    for allocation in gone {
        pending::drain(allocation.base, allocation.bytes);
        let is_own_mapping = !is_small(allocation.bytes);
        ipc::withdraw(&allocation);
        match allocation.kind {
            Kind::Device | Kind::Array if is_own_mapping => {
                let (base, bytes) = piece_of(&allocation);
                unmap_piece(base, bytes);
            }
            Kind::Opened { .. } => ipc::forget_opened(allocation.base),
            Kind::Managed | Kind::HostPinned { .. } | Kind::External { .. } => free_backing(&allocation),
            _ => {}
        }
    }
    if let Some(arena) = lock(&ARENAS).remove(&context.handle) {
        for (base, bytes) in arena.slabs() {
            unmap_piece(base, bytes);
        }
    }
}
