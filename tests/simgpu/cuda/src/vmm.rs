//! Virtual memory management: physical memory by handle, reserved address space, and mappings
//! between them.
use std::collections::BTreeMap;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

use deepres_abi::driver::types as cu;
use simgpu_engine::Config;

use crate::account;
use crate::context::{CONTEXTS, Context, code_of, lock};
use crate::handle::{Kind as HandleKind, Table};
use crate::mapping::{self, Access};
use crate::memory::{self, Kind};
use crate::process::{self, host};
use crate::status::{self, Result};

/// All live pieces of physical memory.
pub static PHYSICAL: Table<Physical> = Table::new(HandleKind::Physical);

/// Reserved ranges of address space: base and length.
static RESERVED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

/// Exported pieces. The process keeps the entry of a piece even if only a descriptor of the piece
/// is left. No process knows which process has the descriptor, so nobody is charged until a process
/// imports the piece.
static EXPORTED: Mutex<Vec<Exported>> = Mutex::new(Vec::new());

struct Exported {
    /// Device and inode of the backing file.
    file: (u64, u64),
    gpu: usize,
    bytes: u64,
    charge: Weak<Charge>,
}

/// One piece of physical memory. When the last handle and mapping of the piece have gone, the
/// driver releases the piece.
pub struct Physical {
    /// The handle by which clients name the piece of physical memory.
    pub handle: usize,
    /// Length of the piece.
    pub bytes: u64,
    /// Ordinal of the device.
    pub device: i32,
    /// Handle types that the client passed to cuMemCreate.
    handle_types: u32,
    backing: OwnedFd,
    /// Charge for the GPU memory; `None` if another process is charged.
    charge: Option<Arc<Charge>>,
    uses: Mutex<Uses>,
}

struct Uses {
    handles: u32,
    mappings: u32,
}

/// GPU memory charged for a piece until no handle or mapping in this process refers to the piece.
/// The process holds the charge, which outlives the context of the creation.
struct Charge {
    gpu: usize,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        host().release_process_memory(self.gpu, self.bytes);
    }
}

/// Returns the properties of a piece's creation.
pub fn properties(physical: &Physical) -> cu::CUmemAllocationProp {
    cu::CUmemAllocationProp {
        r#type: cu::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: physical.handle_types,
        location: cu::CUmemLocation { r#type: cu::CU_MEM_LOCATION_TYPE_DEVICE, id: physical.device },
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: cu::CUmemAllocationProp_allocFlags {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// Returns a context of a device, preferably the current context. cuMemCreate needs a context of
/// the device, but the context need not be current.
fn context_of(device: i32) -> Result<Arc<Context>> {
    if let Ok(current) = crate::context::current()
        && current.device == device
    {
        return Ok(current);
    }
    CONTEXTS
        .all()
        .into_iter()
        .find(|context| context.device == device && context.is_alive())
        .ok_or(status::INVALID_CONTEXT)
}

fn check_location(location: &cu::CUmemLocation) -> Result<i32> {
    if location.r#type != cu::CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(match location.r#type {
            cu::CU_MEM_LOCATION_TYPE_HOST
            | cu::CU_MEM_LOCATION_TYPE_HOST_NUMA
            | cu::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => status::NOT_SUPPORTED,
            _ => status::INVALID_VALUE,
        });
    }
    process::gpu_of(location.id)?;
    Ok(location.id)
}

fn check_properties(properties: &cu::CUmemAllocationProp) -> Result<i32> {
    status::refuse(properties.r#type != cu::CU_MEM_ALLOCATION_TYPE_PINNED)?;
    if properties.requestedHandleTypes & !cu::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR != 0 {
        return Err(status::NOT_SUPPORTED);
    }
    check_location(&properties.location)
}

/// Returns the unit of physical memory.
pub fn granularity(properties: &cu::CUmemAllocationProp) -> Result<u64> {
    check_properties(properties)?;
    Ok(Config::ALLOCATION_GRANULARITY_BYTES)
}

/// Creates physical memory (cuMemCreate).
pub fn create(bytes: u64, properties: &cu::CUmemAllocationProp, flags: u64) -> Result<Arc<Physical>> {
    let device = check_properties(properties)?;
    if flags != 0 || bytes == 0 || !bytes.is_multiple_of(Config::ALLOCATION_GRANULARITY_BYTES) {
        return Err(status::INVALID_VALUE);
    }
    let gpu = context_of(device)?.gpu;
    host().reserve_process_memory(gpu, bytes).map_err(|error| code_of(&error))?;
    let charge = Arc::new(Charge { gpu, bytes });
    insert(bytes, device, properties.requestedHandleTypes, mapping::shareable(bytes)?, Some(charge))
}

fn insert(
    bytes: u64,
    device: i32,
    handle_types: u32,
    backing: OwnedFd,
    charge: Option<Arc<Charge>>,
) -> Result<Arc<Physical>> {
    let uses = Mutex::new(Uses { handles: 1, mappings: 0 });
    PHYSICAL
        .insert_with(|handle| {
            Arc::new(Physical { handle, bytes, device, handle_types, backing, charge, uses })
        })
        .ok_or(status::OUT_OF_MEMORY)
}

/// Returns the piece of a handle.
pub fn by_handle(handle: usize) -> Result<Arc<Physical>> {
    PHYSICAL.get(handle).ok_or(status::INVALID_VALUE)
}

fn put(physical: &Physical, less: impl FnOnce(&mut Uses)) {
    let mut uses = lock(&physical.uses);
    less(&mut uses);
    if uses.handles == 0 && uses.mappings == 0 {
        PHYSICAL.remove(physical.handle);
    }
}

/// Releases one handle of a piece.
pub fn release(handle: usize) -> Result<()> {
    account::note_free();
    let physical = by_handle(handle)?;
    status::refuse(lock(&physical.uses).handles == 0)?;
    put(&physical, |uses| uses.handles -= 1);
    Ok(())
}

/// Counts a mapping without an address in this process, such as a mapping into an array.
pub fn keep(handle: usize) -> Result<()> {
    lock(&by_handle(handle)?.uses).mappings += 1;
    Ok(())
}

/// Undoes one call of [`keep`].
pub fn let_go(handle: usize) {
    if let Ok(physical) = by_handle(handle) {
        put(&physical, |uses| uses.mappings -= 1);
    }
}

/// Returns a new handle reference for the piece mapped at an address.
pub fn retain(address: u64) -> Result<usize> {
    match memory::find(address).map(|found| found.kind) {
        Some(Kind::Mapped { physical, .. }) => {
            lock(&by_handle(physical)?.uses).handles += 1;
            Ok(physical)
        }
        _ => Err(status::INVALID_VALUE),
    }
}

/// Reserves address space.
pub fn reserve(bytes: u64, alignment_bytes: u64, hint: u64) -> Result<u64> {
    let is_aligned = bytes != 0 && bytes.is_multiple_of(Config::ALLOCATION_GRANULARITY_BYTES);
    status::refuse(!is_aligned || (alignment_bytes != 0 && !alignment_bytes.is_power_of_two()))?;
    let base = mapping::map(bytes, alignment_bytes, hint, Access::None)?;
    lock(&RESERVED).insert(base, bytes);
    Ok(base)
}

/// Gives reserved address space back. No mapping may be left in it.
pub fn unreserve(base: u64, bytes: u64) -> Result<()> {
    let mut reserved = lock(&RESERVED);
    status::refuse(reserved.get(&base) != Some(&bytes) || memory::any_in(base, bytes))?;
    reserved.remove(&base);
    mapping::unmap(base, bytes);
    Ok(())
}

/// Maps physical memory into reserved address space, without access.
pub fn map(address: u64, bytes: u64, offset: u64, handle: usize, flags: u64) -> Result<()> {
    let physical = by_handle(handle)?;
    let is_reserved = lock(&RESERVED)
        .range(..=address)
        .next_back()
        .is_some_and(|(base, length)| address + bytes <= base + length);
    let fits = offset == 0
        && bytes == physical.bytes
        && address.is_multiple_of(Config::ALLOCATION_GRANULARITY_BYTES);
    status::refuse(flags != 0 || bytes == 0 || !is_reserved || !fits || memory::any_in(address, bytes))?;
    mapping::map_shareable(&physical.backing, offset, address, bytes)?;
    lock(&physical.uses).mappings += 1;
    memory::enter(
        address,
        bytes,
        Kind::Mapped { physical: handle, access: cu::CU_MEM_ACCESS_FLAGS_PROT_NONE },
        context_of(physical.device).ok(),
    );
    Ok(())
}

/// Removes whole mappings from a range.
pub fn unmap(address: u64, bytes: u64) -> Result<()> {
    let mapped = memory::all_in(address, bytes);
    let is_whole = mapped.iter().map(|one| one.bytes).sum::<u64>() == bytes
        && mapped.iter().all(|one| matches!(one.kind, Kind::Mapped { .. }) && one.base >= address);
    status::refuse(bytes == 0 || !is_whole)?;
    if let Some(context) = mapped.iter().find_map(|one| one.context.clone())
        && context.is_alive()
    {
        host().wait_context(context.engine, context.wait_policy());
        crate::pending::settle();
    }
    for one in mapped {
        let Kind::Mapped { physical, .. } = one.kind else { continue };
        crate::pending::drain(one.base, one.bytes);
        // The step that can fail comes first. If it fails, the ledger still knows the mapping.
        mapping::reserve_again(one.base, one.bytes)?;
        memory::strike(one.base, |_| true)?;
        if let Ok(physical) = by_handle(physical) {
            put(&physical, |uses| uses.mappings -= 1);
        }
    }
    Ok(())
}

/// Sets the access to a range of mappings. The protection of the host's pages follows the strongest
/// granted access.
pub fn set_access(address: u64, bytes: u64, descriptors: &[cu::CUmemAccessDesc]) -> Result<()> {
    let mapped = memory::all_in(address, bytes);
    if bytes == 0 || descriptors.is_empty() || mapped.iter().map(|one| one.bytes).sum::<u64>() != bytes {
        return Err(status::INVALID_VALUE);
    }
    let mut access = Access::None;
    for descriptor in descriptors {
        check_location(&descriptor.location)?;
        access = match descriptor.flags {
            cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE => Access::ReadWrite,
            cu::CU_MEM_ACCESS_FLAGS_PROT_READ if access == Access::None => Access::Read,
            cu::CU_MEM_ACCESS_FLAGS_PROT_READ | cu::CU_MEM_ACCESS_FLAGS_PROT_NONE => access,
            _ => return Err(status::INVALID_VALUE),
        };
    }
    mapping::protect(address, bytes, access)?;
    memory::set_access(address, bytes, descriptors[0].flags);
    Ok(())
}

/// Returns a descriptor by which another process can import the piece.
pub fn export(handle: usize, handle_type: u32) -> Result<i32> {
    let physical = by_handle(handle)?;
    if handle_type != cu::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || physical.handle_types & handle_type == 0
    {
        return Err(status::INVALID_VALUE);
    }
    let descriptor = physical.backing.try_clone().map_err(|_| status::OPERATING_SYSTEM)?;
    let file = mapping::identity(&descriptor).map_err(|_| status::OPERATING_SYSTEM)?;
    let mut exported = lock(&EXPORTED);
    if let Some(charge) = &physical.charge
        && !exported.iter().any(|one| one.file == file)
    {
        let (gpu, bytes, charge) = (charge.gpu, charge.bytes, Arc::downgrade(charge));
        exported.push(Exported { file, gpu, bytes, charge });
    }
    Ok(descriptor.into_raw_fd())
}

/// Returns the charge for a piece that this process exported and imports again; `None` for another
/// process's piece.
fn charge_of_own(file: (u64, u64)) -> Result<Option<Arc<Charge>>> {
    let mut exported = lock(&EXPORTED);
    let Some(own) = exported.iter_mut().find(|own| own.file == file) else { return Ok(None) };
    if let Some(charge) = own.charge.upgrade() {
        return Ok(Some(charge));
    }
    let (gpu, bytes) = (own.gpu, own.bytes);
    host().reserve_process_memory(gpu, bytes).map_err(|error| code_of(&error))?;
    let charge = Arc::new(Charge { gpu, bytes });
    own.charge = Arc::downgrade(&charge);
    Ok(Some(charge))
}

/// Returns the charge for all physical memory of the process; each piece counts once.
pub fn charged_bytes() -> u64 {
    let pieces = PHYSICAL.all();
    let mut charges: Vec<&Arc<Charge>> = pieces.iter().filter_map(|piece| piece.charge.as_ref()).collect();
    charges.sort_unstable_by_key(|charge| Arc::as_ptr(charge));
    charges.dedup_by_key(|charge| Arc::as_ptr(charge));
    charges.iter().map(|charge| charge.bytes).sum()
}

/// Imports a piece by its descriptor. As long as the process that created the piece has a handle of
/// the piece, that process is charged.
pub fn import(descriptor: i32, handle_type: u32) -> Result<Arc<Physical>> {
    if handle_type != cu::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
        return Err(status::NOT_SUPPORTED);
    }
    let backing = mapping::duplicate(descriptor)?;
    let bytes = mapping::length(&backing).map_err(|_| status::INVALID_VALUE)?;
    status::refuse(bytes == 0 || !bytes.is_multiple_of(Config::ALLOCATION_GRANULARITY_BYTES))?;
    let device = crate::context::current().map_or(0, |context| context.device);
    let file = mapping::identity(&backing).map_err(|_| status::INVALID_VALUE)?;
    insert(bytes, device, handle_type, backing, charge_of_own(file)?)
}
