//! The driver functions that allocate memory or answer questions about memory.
use std::ffi::c_void;

use deepres_abi::driver::types::*;

use crate::array;
use crate::context;
use crate::ipc;
use crate::memory::{self, Allocation, Kind};
use crate::process::{config, gpu_of, host};
use crate::residency;
use crate::status::{self, Result};
use crate::stream;

const HOST_ALLOC_FLAGS: u32 =
    CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
const HOST_REGISTER_FLAGS: u32 = CU_MEMHOSTREGISTER_PORTABLE
    | CU_MEMHOSTREGISTER_DEVICEMAP
    | CU_MEMHOSTREGISTER_IOMEMORY
    | CU_MEMHOSTREGISTER_READ_ONLY;

calls! {
    cuMemAlloc_v2(dptr, bytesize) {
        status::refuse(dptr.is_null())?;
        give!(dptr, memory::allocate(bytesize as u64, Kind::Device)?);
    }
    cuMemAllocPitch_v2(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes) {
        status::refuse(dptr.is_null() || pPitch.is_null())?;
        let (address, pitch) =
            memory::allocate_pitched(WidthInBytes as u64, Height as u64, ElementSizeBytes)?;
        give!(dptr, address);
        give!(pPitch, pitch as usize);
    }
    cuMemAllocManaged(dptr, bytesize, flags) {
        status::refuse(dptr.is_null() || !matches!(flags, CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST))?;
        give!(dptr, memory::allocate_on_host(bytesize as u64, Kind::Managed)?);
    }
    cuMemFree_v2(dptr) { memory::free(dptr)? }
    cuMemGetInfo_v2(free, total) {
        let info = host().memory(context::current()?.gpu);
        give!(free, info.total_bytes.saturating_sub(info.used_bytes) as usize);
        give!(total, info.total_bytes as usize);
    }
    cuMemAllocHost_v2(pp, bytesize) {
        status::refuse(pp.is_null())?;
        let kind = Kind::HostPinned { flags: CU_MEMHOSTALLOC_DEVICEMAP };
        give!(pp, memory::allocate_on_host(bytesize as u64, kind)? as *mut c_void);
    }
    cuMemHostAlloc(pp, bytesize, Flags) {
        status::refuse(pp.is_null() || Flags & !HOST_ALLOC_FLAGS != 0)?;
        let kind = Kind::HostPinned { flags: Flags };
        give!(pp, memory::allocate_on_host(bytesize as u64, kind)? as *mut c_void);
    }
    cuMemFreeHost(p) { memory::free_host(p as u64)? }
}

calls! {
    cuMemHostRegister | cuMemHostRegister_v2(p, bytesize, Flags) {
        status::refuse(Flags & !HOST_REGISTER_FLAGS != 0)?;
        memory::register_host(p as u64, bytesize as u64, Flags)?;
    }
    cuMemHostUnregister(p) { memory::unregister_host(p as u64)? }
    cuMemHostGetDevicePointer_v2(pdptr, p, Flags) {
        let is_known = memory::find(p as u64).is_some_and(|found| found.is_host() || found.is_managed());
        status::refuse(Flags != 0 || !is_known)?;
        // There is one address space, so device and host see host memory at the same address.
        give!(pdptr, p as u64);
    }
}

calls! {
    cuMemHostGetFlags(pFlags, p) {
        match memory::find(p as u64).map(|found| found.kind) {
            Some(Kind::HostPinned { flags } | Kind::HostRegistered { flags }) => give!(pFlags, flags),
            _ => return Err(status::INVALID_VALUE),
        }
    }
    cuMemGetAddressRange_v2(pbase, psize, dptr) {
        context::current()?;
        let found =
            memory::find(dptr).filter(|found| !matches!(found.kind, Kind::Array)).ok_or(status::NOT_FOUND)?;
        give_if_wanted!(pbase, found.base);
        give_if_wanted!(psize, found.bytes as usize);
    }
}

/// Writes one attribute of a pointer to the caller's place. A pointer that the driver does not know
/// has few attributes.
fn pointer_attribute(
    data: *mut c_void,
    attribute: CUpointer_attribute,
    found: Option<&Allocation>,
    ptr: CUdeviceptr,
) -> Result<()> {
    let Some(found) = found else { return Err(status::INVALID_VALUE) };
    let is_host_visible = found.is_host() || found.is_managed();
    match attribute {
        CU_POINTER_ATTRIBUTE_CONTEXT => {
            let owner = found.context.as_ref().map_or(0, |context| context.handle);
            give!(data.cast::<CUcontext>(), owner as CUcontext);
        }
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
            let kind = if found.is_host() { CU_MEMORYTYPE_HOST } else { CU_MEMORYTYPE_DEVICE };
            give!(data.cast::<u32>(), kind);
        }
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER => give!(data.cast::<u64>(), ptr),
        CU_POINTER_ATTRIBUTE_HOST_POINTER if is_host_visible => give!(data.cast::<u64>(), ptr),
        CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => give!(data.cast::<u32>(), 0),
        CU_POINTER_ATTRIBUTE_BUFFER_ID => give!(data.cast::<u64>(), found.id),
        CU_POINTER_ATTRIBUTE_IS_MANAGED => give!(data.cast::<u8>(), found.is_managed().into()),
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => give!(data.cast::<i32>(), found.device()),
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => {
            give!(data.cast::<u8>(), matches!(found.kind, Kind::Device).into());
        }
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => give!(data.cast::<u64>(), found.base),
        CU_POINTER_ATTRIBUTE_RANGE_SIZE => give!(data.cast::<usize>(), found.bytes as usize),
        CU_POINTER_ATTRIBUTE_MAPPED => give!(data.cast::<u8>(), 1),
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => give!(data.cast::<u64>(), 0),
        CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE => give!(data.cast::<u8>(), 0),
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => {
            let flags = match found.kind {
                Kind::Mapped { access, .. } => access,
                _ => CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            };
            give!(data.cast::<u32>(), flags);
        }
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => {
            let pool = match &found.kind {
                Kind::Pooled(pool) => pool.handle,
                _ => 0,
            };
            give!(data.cast::<CUmemoryPool>(), pool as CUmemoryPool);
        }
        _ => return Err(status::INVALID_VALUE),
    }
    Ok(())
}

calls! {
    cuPointerGetAttribute(data, attribute, ptr) {
        pointer_attribute(data, attribute, memory::find(ptr).as_ref(), ptr)?;
    }
    // Unlike the call for one attribute, this call writes zeros for attributes that the pointer
    // lacks.
    cuPointerGetAttributes(numAttributes, attributes, data, ptr) {
        let attributes: &[CUpointer_attribute] = slice!(attributes, numAttributes);
        let places: &[*mut c_void] = slice!(data, numAttributes);
        let found = memory::find(ptr);
        for (attribute, place) in attributes.iter().zip(places) {
            if pointer_attribute(*place, *attribute, found.as_ref(), ptr).is_ok() {
                continue;
            }
            match *attribute {
                CU_POINTER_ATTRIBUTE_MEMORY_TYPE
                | CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
                | CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => {
                    give!(place.cast::<u32>(), 0);
                }
                CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => give!(place.cast::<i32>(), CU_DEVICE_INVALID),
                CU_POINTER_ATTRIBUTE_IS_MANAGED
                | CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
                | CU_POINTER_ATTRIBUTE_MAPPED
                | CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE => give!(place.cast::<u8>(), 0),
                CU_POINTER_ATTRIBUTE_CONTEXT..=CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => {
                    give!(place.cast::<u64>(), 0)
                }
                _ => return Err(status::INVALID_VALUE),
            }
        }
    }
    cuPointerSetAttribute(value, attribute, ptr) {
        if value.is_null() || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || memory::find(ptr).is_none() {
            return Err(status::INVALID_VALUE);
        }
        // Operations on this memory are synchronous already, as the attribute demands.
    }
    cuIpcGetMemHandle(pHandle, dptr) {
        status::refuse(pHandle.is_null())?;
        give!(pHandle, CUipcMemHandle { reserved: ipc::export(dptr)?.bytes() });
    }
}

calls! {
    cuIpcOpenMemHandle | cuIpcOpenMemHandle_v2(pdptr, handle, Flags) {
        status::refuse(pdptr.is_null() || Flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)?;
        give!(pdptr, ipc::open(handle.reserved)?);
    }
    cuIpcCloseMemHandle(dptr) { ipc::close(dptr)? }
}

/// Checks that the range is managed memory. Advice and prefetches apply to managed memory only,
/// because the model manages no system memory.
fn check_managed(address: CUdeviceptr, count: usize) -> Result<()> {
    let is_managed = memory::find(address).is_some_and(|found| found.is_managed());
    if count == 0 || !is_managed || !memory::covers(address, count as u64) {
        Err(status::INVALID_VALUE)
    } else {
        Ok(())
    }
}

fn check_place(device: CUdevice) -> Result<()> {
    if device == CU_DEVICE_CPU {
        return Ok(());
    }
    gpu_of(device)?;
    if config().managed_memory_migrates { Ok(()) } else { Err(status::INVALID_DEVICE) }
}

fn place_of(location: &CUmemLocation) -> Result<CUdevice> {
    match location.r#type {
        CU_MEM_LOCATION_TYPE_DEVICE => Ok(location.id),
        CU_MEM_LOCATION_TYPE_HOST
        | CU_MEM_LOCATION_TYPE_HOST_NUMA
        | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Ok(CU_DEVICE_CPU),
        _ => Err(status::INVALID_VALUE),
    }
}

fn advise(address: CUdeviceptr, count: usize, advice: CUmem_advise, device: CUdevice) -> Result<()> {
    check_managed(address, count)?;
    if !(CU_MEM_ADVISE_SET_READ_MOSTLY..=CU_MEM_ADVISE_UNSET_ACCESSED_BY).contains(&advice) {
        return Err(status::INVALID_VALUE);
    }
    // These kinds of advice use no location.
    let has_place = !matches!(
        advice,
        CU_MEM_ADVISE_SET_READ_MOSTLY
            | CU_MEM_ADVISE_UNSET_READ_MOSTLY
            | CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION
    );
    if has_place {
        check_place(device)?;
    }
    residency::advise(address, count as u64, advice, device);
    Ok(())
}

calls! {
    cuMemAdvise(devPtr, count, advice, device) { advise(devPtr, count, advice, device)? }
    cuMemAdvise_v2(devPtr, count, advice, location) {
        advise(devPtr, count, advice, place_of(&location).unwrap_or(CU_DEVICE_CPU))?;
    }
}

fn range_attribute(
    data: *mut c_void,
    data_bytes: usize,
    attribute: CUmem_range_attribute,
    address: CUdeviceptr,
    count: usize,
) -> Result<()> {
    check_managed(address, count)?;
    let places = data_bytes / size_of::<i32>();
    status::refuse(data.is_null() || places == 0 || !data_bytes.is_multiple_of(size_of::<i32>()))?;
    let bytes = count as u64;
    let one = match attribute {
        CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY => residency::is_read_mostly(address, bytes).into(),
        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION => residency::preferred(address, bytes),
        CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION => residency::last_prefetch(address, bytes),
        CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY => {
            let by = residency::accessed_by(address, bytes);
            for place in 0..places {
                let device = by.get(place).copied().unwrap_or(CU_DEVICE_INVALID);
                give!(data.cast::<i32>().wrapping_add(place), device);
            }
            return Ok(());
        }
        _ => return Err(status::INVALID_VALUE),
    };
    status::refuse(places != 1)?;
    give!(data.cast::<i32>(), one);
    Ok(())
}

calls! {
    cuMemRangeGetAttribute(data, dataSize, attribute, devPtr, count) {
        range_attribute(data, dataSize, attribute, devPtr, count)?;
    }
    cuMemRangeGetAttributes(data, dataSizes, attributes, numAttributes, devPtr, count) {
        let attributes: &[CUmem_range_attribute] = slice!(attributes, numAttributes);
        let (places, sizes): (&[*mut c_void], &[usize]) =
            (slice!(data, numAttributes), slice!(dataSizes, numAttributes));
        for ((attribute, place), bytes) in attributes.iter().zip(places).zip(sizes) {
            range_attribute(*place, *bytes, *attribute, devPtr, count)?;
        }
    }
    cuMemPrefetchAsync | cuMemPrefetchAsync_ptsz(devPtr, count, dstDevice, hStream) |default| {
        check_managed(devPtr, count)?;
        check_place(dstDevice)?;
        let stream = stream::resolve(hStream as usize, default)?;
        super::copy::prefetch(stream, (devPtr, count as u64), dstDevice)?;
    }
    cuMemPrefetchAsync_v2 | cuMemPrefetchAsync_v2_ptsz(devPtr, count, location, flags, hStream) |default| {
        status::refuse(flags != 0)?;
        check_managed(devPtr, count)?;
        let device = place_of(&location)?;
        check_place(device)?;
        super::copy::prefetch(stream::resolve(hStream as usize, default)?, (devPtr, count as u64), device)?;
    }
}

fn create_array(pHandle: *mut CUarray, descriptor: CUDA_ARRAY3D_DESCRIPTOR) -> Result<()> {
    status::refuse(pHandle.is_null())?;
    give!(pHandle, array::create(descriptor)?.handle as CUarray);
    Ok(())
}

calls! {
    cuArrayCreate_v2(pHandle, pAllocateArray) {
        let flat = read!(pAllocateArray);
        let descriptor = CUDA_ARRAY3D_DESCRIPTOR {
            Width: flat.Width,
            Height: flat.Height,
            Depth: 0,
            Format: flat.Format,
            NumChannels: flat.NumChannels,
            Flags: 0,
        };
        create_array(pHandle, descriptor)?;
    }
    cuArray3DCreate_v2(pHandle, pAllocateArray) { create_array(pHandle, read!(pAllocateArray))? }
    cuArrayDestroy(hArray) { array::destroy(hArray as usize)? }
    cuMipmappedArrayCreate(pHandle, pMipmappedArrayDesc, numMipmapLevels) {
        status::refuse(pHandle.is_null())?;
        let mipmapped = array::create_mipmapped(read!(pMipmappedArrayDesc), numMipmapLevels)?;
        give!(pHandle, mipmapped as CUmipmappedArray);
    }
    cuMipmappedArrayGetLevel(pLevelArray, hMipmappedArray, level) {
        give!(pLevelArray, array::level(hMipmappedArray as usize, level)? as CUarray);
    }
    cuMipmappedArrayDestroy(hMipmappedArray) { array::destroy_mipmapped(hMipmappedArray as usize)? }
    cuArray3DGetDescriptor_v2(pArrayDescriptor, hArray) {
        give!(pArrayDescriptor, array::by_handle(hArray as usize)?.descriptor);
    }
    cuArrayGetDescriptor_v2(pArrayDescriptor, hArray) {
        let full = array::by_handle(hArray as usize)?.descriptor;
        let flat = CUDA_ARRAY_DESCRIPTOR {
            Width: full.Width,
            Height: full.Height,
            Format: full.Format,
            NumChannels: full.NumChannels,
        };
        give!(pArrayDescriptor, flat);
    }
}

/// The C struct `CUDA_ARRAY_MEMORY_REQUIREMENTS`.
#[repr(C)]
struct MemoryRequirements {
    bytes: usize,
    alignment_bytes: usize,
    reserved: [u32; 4],
}

fn memory_requirements(
    to: *mut c_void,
    (resource, handle): (CUresourcetype, usize),
    device: CUdevice,
) -> Result<()> {
    crate::process::gpu_of(device)?;
    let (bytes, flags) = array::requirements(resource, handle)?;
    status::refuse(flags & CUDA_ARRAY3D_DEFERRED_MAPPING == 0)?;
    let unit = simgpu_engine::Config::ALLOCATION_GRANULARITY_BYTES as usize;
    let bytes = (bytes as usize).checked_next_multiple_of(unit).ok_or(status::INVALID_VALUE)?;
    give!(
        to.cast::<MemoryRequirements>(),
        MemoryRequirements { bytes, alignment_bytes: unit, reserved: [0; 4] }
    );
    Ok(())
}

calls! {
    cuArrayGetMemoryRequirements(memoryRequirements, array, device) {
        memory_requirements(memoryRequirements, (CU_RESOURCE_TYPE_ARRAY, array as usize), device)?;
    }
    cuMipmappedArrayGetMemoryRequirements(memoryRequirements, mipmap, device) {
        memory_requirements(memoryRequirements, (CU_RESOURCE_TYPE_MIPMAPPED_ARRAY, mipmap as usize), device)?;
    }
}

/// `CUarrayMapInfo`, with the union of subresources as plain words.
#[repr(C)]
#[derive(Clone, Copy)]
struct MapInfo {
    resource_kind: u32,
    resource: usize,
    part_kind: u32,
    part: [u64; 4],
    operation: u32,
    handle_kind: u32,
    handle: u64,
    offset: u64,
    devices: u32,
    flags: u32,
    reserved: [u32; 2],
}

impl MapInfo {
    fn part(&self) -> Result<array::Part> {
        let words = self.part.map(|word| [word as u32, (word >> 32) as u32]);
        let [[level, layer], [x, y], [z, width], [height, depth]] = words;
        let end = |from: u32, length: u32| from.checked_add(length).ok_or(status::INVALID_VALUE);
        match self.part_kind {
            CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL => Ok(array::Part::Box(
                [level, layer],
                [x, y, z],
                [end(x, width)?, end(y, height)?, end(z, depth)?],
            )),
            CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL => {
                let [layer, from, bytes, _] = self.part;
                let to = from.checked_add(bytes).ok_or(status::INVALID_VALUE)?;
                Ok(array::Part::Tail(layer as u32, from, to))
            }
            _ => Err(status::INVALID_VALUE),
        }
    }

    fn run(&self) -> Result<()> {
        let part = self.part()?;
        if self.flags != 0 || self.devices == 0 || self.handle_kind != CU_MEM_HANDLE_TYPE_GENERIC {
            return Err(status::INVALID_VALUE);
        }
        match self.operation {
            CU_MEM_OPERATION_TYPE_MAP => {
                array::map(self.resource_kind, self.resource, part, self.handle as usize)
            }
            CU_MEM_OPERATION_TYPE_UNMAP => array::unmap(self.resource_kind, self.resource, part),
            _ => Err(status::INVALID_VALUE),
        }
    }
}

calls! {
    cuMemMapArrayAsync | cuMemMapArrayAsync_ptsz(mapInfoList, count, hStream) |default| {
        let list: &[MapInfo] = slice!(mapInfoList.cast::<MapInfo>(), count as usize);
        let stream = stream::resolve(hStream as usize, default)?;
        status::refuse(list.is_empty() || stream.is_capturing())?;
        // Earlier work can use the present mappings, so the driver first waits for the stream.
        stream.synchronize()?;
        list.iter().try_for_each(MapInfo::run)?;
    }
}
