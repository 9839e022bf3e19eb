//! Physical memory, mapped into reserved addresses.

use super::prelude::*;

checks! { "physical":
    Guess it_comes_in_pieces_of_two_mebibytes;
    Documented it_lives_until_its_last_handle_and_mapping_are_gone;
    Documented an_array_that_it_is_mapped_into_keeps_it;
    Documented access_has_to_be_set;
    Documented whole_mappings_are_unmapped;
    Guess it_is_made_without_a_current_context;
    Guess it_is_made_without_any_context;
    Documented it_outlives_the_context_it_was_made_in;
    Guess it_is_exported_and_imported;
    Documented places_that_are_none;
}

fn properties() -> CUmemAllocationProp {
    let mut properties = zeroed!(CUmemAllocationProp);
    properties.r#type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = CUmemLocation { r#type: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    properties
}

fn piece_bytes() -> Result<usize, Stop> {
    Ok(made!(cuMemGetAllocationGranularity(&properties(), CU_MEM_ALLOC_GRANULARITY_MINIMUM)))
}

fn create(bytes: usize) -> Result<CUmemGenericAllocationHandle, Stop> {
    Ok(made!(cuMemCreate(bytes, &properties(), 0)))
}

fn reserve(bytes: usize) -> Result<CUdeviceptr, Stop> {
    Ok(made!(cuMemAddressReserve(bytes, 0, 0, 0)))
}

fn allow(address: CUdeviceptr, bytes: usize) -> Result<(), Stop> {
    let access =
        CUmemAccessDesc { location: properties().location, flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    must!(cuMemSetAccess(address, bytes, &access, 1));
    Ok(())
}

fn it_comes_in_pieces_of_two_mebibytes(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let piece = piece_bytes()?;
    facts.is("the granularity", piece, 2 << 20);
    let mut handle = 0;
    let odd = cu!(cuMemCreate(&mut handle, piece + 1, &properties(), 0));
    facts.code("a byte more than a piece", odd, CUDA_ERROR_INVALID_VALUE);
    facts.code("nothing", cu!(cuMemCreate(&mut handle, 0, &properties(), 0)), CUDA_ERROR_INVALID_VALUE);
    let before = gpu.used_bytes()?;
    let handle = create(piece)?;
    facts.is("a piece takes", gpu.used_bytes()? - before, piece);
    facts.code("releasing", cu!(cuMemRelease(handle)), CUDA_SUCCESS);
    facts.is("gives back", gpu.used_bytes()?, before);
    facts.code("releasing again", cu!(cuMemRelease(handle)), CUDA_ERROR_INVALID_VALUE);
    Ok(())
}

fn it_lives_until_its_last_handle_and_mapping_are_gone(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let piece = piece_bytes()?;
    let before = gpu.used_bytes()?;
    let (handle, address) = (create(piece)?, reserve(2 * piece)?);
    must!(cuMemMap(address, piece, 0, handle, 0));
    must!(cuMemMap(address + piece as u64, piece, 0, handle, 0));
    allow(address, 2 * piece)?;
    must!(cuMemsetD32_v2(address, 77, 1));
    must!(cuCtxSynchronize());
    facts.is("one piece, mapped twice", gpu.read(address + piece as u64, 1)?, vec![77]);
    must!(cuMemRelease(handle));
    facts.is("mappings keep it", gpu.used_bytes()? - before, piece);
    let retained = made!(cuMemRetainAllocationHandle(address as *mut c_void));
    must!(cuMemUnmap(address, 2 * piece));
    facts.is("so does a handle", gpu.used_bytes()? - before, piece);
    must!(cuMemRelease(retained));
    facts.is("then it goes", gpu.used_bytes()?, before);
    facts.code("the addresses can be given back", cu!(cuMemAddressFree(address, 2 * piece)), CUDA_SUCCESS);
    Ok(())
}

fn access_has_to_be_set(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let piece = piece_bytes()?;
    let (handle, address) = (create(piece)?, reserve(piece)?);
    let mut flags = u64::MAX;
    must!(cuMemMap(address, piece, 0, handle, 0));
    must!(cuMemGetAccess(&mut flags, &properties().location, address));
    facts.is("at first nobody may", flags, u64::from(CU_MEM_ACCESS_FLAGS_PROT_NONE));
    allow(address, piece)?;
    must!(cuMemGetAccess(&mut flags, &properties().location, address));
    facts.is("then the device may", flags, u64::from(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    facts.code("use it", cu!(cuMemsetD32_v2(address, 1, 1)), CUDA_SUCCESS);
    facts.code("work goes on", gpu.nothing(std::ptr::null_mut())?, CUDA_SUCCESS);
    Ok(())
}

fn whole_mappings_are_unmapped(facts: &mut Facts) -> Result<(), Stop> {
    let _gpu = Gpu::new()?;
    let piece = piece_bytes()?;
    let (handle, address) = (create(2 * piece)?, reserve(4 * piece)?);
    must!(cuMemMap(address, 2 * piece, 0, handle, 0));
    let code = cu!(cuMemAddressFree(address, 4 * piece));
    facts.code("freeing mapped addresses", code, CUDA_ERROR_INVALID_VALUE);
    let code = cu!(cuMemMap(address, 2 * piece, 0, handle, 0));
    facts.code("mapping over a mapping", code, CUDA_ERROR_INVALID_VALUE);
    facts.code("half of one", cu!(cuMemUnmap(address, piece)), CUDA_ERROR_INVALID_VALUE);
    let code = cu!(cuMemUnmap(address + 2 * piece as u64, piece));
    facts.code("where nothing is", code, CUDA_ERROR_INVALID_VALUE);
    facts.code("all of it", cu!(cuMemUnmap(address, 2 * piece)), CUDA_SUCCESS);
    facts.code("freeing the addresses", cu!(cuMemAddressFree(address, 4 * piece)), CUDA_SUCCESS);
    Ok(())
}

/// The library NCCL creates physical memory without a current context.
fn it_is_made_without_a_current_context(facts: &mut Facts) -> Result<(), Stop> {
    let _gpu = Gpu::new()?;
    let piece = piece_bytes()?;
    must!(cuCtxSetCurrent(std::ptr::null_mut()));
    let mut handle = 0;
    facts.code("creating", cu!(cuMemCreate(&mut handle, piece, &properties(), 0)), CUDA_SUCCESS);
    facts.code("releasing", cu!(cuMemRelease(handle)), CUDA_SUCCESS);
    Ok(())
}

fn it_is_made_without_any_context(facts: &mut Facts) -> Result<(), Stop> {
    must!(cuInit(0));
    let mut handle = 0;
    let code = cu!(cuMemCreate(&mut handle, 2 << 20, &properties(), 0));
    facts.code("creating", code, CUDA_ERROR_INVALID_CONTEXT);
    Ok(())
}

/// Physical memory belongs to the process. `cuCtxDestroy` does not destroy memory of `cuMemCreate`,
/// because the memory is associated with no context (a note in the reference of `cuCtxDestroy`). So
/// the client can still map, use and unmap the memory.
fn it_outlives_the_context_it_was_made_in(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let piece = piece_bytes()?;
    let before = gpu.used_bytes()?;
    let mut short = std::ptr::null_mut();
    must!(cuCtxCreate_v2(&mut short, 0, 0));
    let (handle, address) = (create(piece)?, reserve(piece)?);
    must!(cuMemMap(address, piece, 0, handle, 0));
    must!(cuCtxDestroy_v2(short));
    must!(cuCtxSetCurrent(gpu.context));
    facts.is("with the context gone it takes", gpu.used_bytes()? - before, piece);
    allow(address, piece)?;
    must!(cuMemsetD8_v2(address, 7, piece));
    facts.code("unmapping", cu!(cuMemUnmap(address, piece)), CUDA_SUCCESS);
    facts.code("releasing", cu!(cuMemRelease(handle)), CUDA_SUCCESS);
    facts.is("gives back", gpu.used_bytes()?, before);
    must!(cuMemAddressFree(address, piece));
    Ok(())
}

fn it_is_exported_and_imported(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let piece = piece_bytes()?;
    let mut shareable = properties();
    shareable.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let (mut handle, mut descriptor, mut imported) = (0, -1, 0);
    must!(cuMemCreate(&mut handle, piece, &shareable, 0));
    let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    must!(cuMemExportToShareableHandle((&raw mut descriptor).cast(), handle, kind, 0));
    let with = gpu.used_bytes()?;
    must!(cuMemImportFromShareableHandle(&mut imported, descriptor as usize as *mut c_void, kind));
    facts.is("importing takes nothing more", gpu.used_bytes()?, with);
    must!(cuMemRelease(handle));
    facts.is("the imported handle keeps it", gpu.used_bytes()?, with);
    must!(cuMemRelease(imported));
    let plain = create(piece)?;
    let refused = cu!(cuMemExportToShareableHandle((&raw mut descriptor).cast(), plain, kind, 0));
    facts.code("exporting what was not made for it", refused, CUDA_ERROR_INVALID_VALUE);
    Ok(())
}

fn places_that_are_none(facts: &mut Facts) -> Result<(), Stop> {
    const NOWHERE: i32 = 1000;
    let _gpu = Gpu::new()?;
    let mut elsewhere = properties();
    elsewhere.location.id = NOWHERE;
    let mut handle = 0;
    let code = cu!(cuMemCreate(&mut handle, 2 << 20, &elsewhere, 0));
    facts.code("a device that is none", code, CUDA_ERROR_INVALID_DEVICE);
    let flags = cu!(cuMemCreate(&mut handle, 2 << 20, &properties(), 1));
    facts.code("flags that are none", flags, CUDA_ERROR_INVALID_VALUE);
    let (handle, address) = (create(2 << 20)?, reserve(2 << 20)?);
    let beside = cu!(cuMemMap(address + (2 << 20), 2 << 20, 0, handle, 0));
    facts.code("mapping beside what is reserved", beside, CUDA_ERROR_INVALID_VALUE);
    Ok(())
}

/// `CUarrayMapInfo` of a box of an array's first level.
#[repr(C)]
struct MapInfo {
    resource_kind: u32,
    resource: CUarray,
    part_kind: u32,
    /// Padding before a union with words of 64 bits.
    padding: u32,
    /// Level and layer, three offsets, three extents.
    part: [u32; 8],
    operation: u32,
    handle_kind: u32,
    handle: CUmemGenericAllocationHandle,
    offset: u64,
    devices: u32,
    flags: u32,
    reserved: [u32; 2],
}

const _: () = assert!(size_of::<MapInfo>() == 96);

fn an_array_that_it_is_mapped_into_keeps_it(facts: &mut Facts) -> Result<(), Stop> {
    const EXTENT: u32 = 1024;
    let gpu = Gpu::new()?;
    let supported = made!(cuDeviceGetAttribute(CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED, 0));
    if supported == 0 {
        return Err(Stop::Absent("arrays that memory is mapped into".to_owned()));
    }
    let mut descriptor = CUDA_ARRAY3D_DESCRIPTOR {
        Width: EXTENT as usize,
        Height: EXTENT as usize,
        Depth: 0,
        Format: CU_AD_FORMAT_UNSIGNED_INT32,
        NumChannels: 1,
        Flags: CUDA_ARRAY3D_DEFERRED_MAPPING,
    };
    let (mut array, mut plain) = (std::ptr::null_mut(), std::ptr::null_mut());
    let before = gpu.used_bytes()?;
    must!(cuArray3DCreate_v2(&mut array, &descriptor));
    facts.is("the array takes", gpu.used_bytes()?, before);
    // The words are size, alignment and two reserved ones.
    let mut needs = [0_usize; 4];
    must!(cuArrayGetMemoryRequirements(needs.as_mut_ptr().cast(), array, 0));
    let bytes = needs[0];
    facts.has("the needed size", bytes, "all of its elements", bytes >= (EXTENT * EXTENT * 4) as usize);
    descriptor.Flags = 0;
    must!(cuArray3DCreate_v2(&mut plain, &descriptor));
    let of_plain = cu!(cuArrayGetMemoryRequirements(needs.as_mut_ptr().cast(), plain, 0));
    facts.code("of one with memory of its own", of_plain, CUDA_ERROR_INVALID_VALUE);
    must!(cuArrayDestroy(plain));
    let handle = create(bytes.next_multiple_of(piece_bytes()?))?;
    let mut info = MapInfo {
        resource_kind: CU_RESOURCE_TYPE_ARRAY,
        resource: array,
        part_kind: CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL,
        padding: 0,
        part: [0, 0, 0, 0, 0, EXTENT, EXTENT, 1],
        operation: CU_MEM_OPERATION_TYPE_MAP,
        handle_kind: CU_MEM_HANDLE_TYPE_GENERIC,
        handle,
        offset: 0,
        devices: 1,
        flags: 0,
        reserved: [0; 2],
    };
    let map = |info: &mut MapInfo| {
        Ok::<_, Stop>(cu!(cuMemMapArrayAsync((&raw mut *info).cast(), 1, std::ptr::null_mut())))
    };
    facts.code("mapping", map(&mut info)?, CUDA_SUCCESS);
    must!(cuCtxSynchronize());
    must!(cuMemRelease(handle));
    facts.is("after its handle's release", gpu.used_bytes()? - before, bytes);
    info.operation = CU_MEM_OPERATION_TYPE_UNMAP;
    info.handle = 0;
    facts.code("unmapping", map(&mut info)?, CUDA_SUCCESS);
    must!(cuCtxSynchronize());
    facts.is("afterwards", gpu.used_bytes()?, before);
    must!(cuArrayDestroy(array));
    Ok(())
}
