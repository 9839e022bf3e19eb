//! Stream-ordered pools.

use super::prelude::*;

checks! { "pools":
    Documented memory_freed_in_a_stream_is_used_again_in_it;
    Documented unused_memory_goes_back_when_the_host_waits;
    Documented the_threshold_keeps_and_trimming_gives_back;
    Documented either_free_takes_memory_of_a_pool;
    Documented a_pool_of_the_hosts_memory_takes_nothing_of_the_device;
    Documented an_imported_pool_gives_nothing_new;
    Documented memory_of_a_pool_outlives_contexts;
    Guess handles_that_a_pool_is_exported_and_imported_by;
    Guess a_pool_grows_by_thirty_two_mebibytes;
    Guess a_pool_that_the_program_made;
    Guess addresses_that_are_not_a_pools;
}

const MIB: usize = 1 << 20;

fn attribute(pool: CUmemoryPool, attribute: u32) -> Result<usize, Stop> {
    let mut value = 0_u64;
    must!(cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()));
    Ok(value as usize)
}

fn reserved(pool: CUmemoryPool) -> Result<usize, Stop> {
    attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
}

fn default_pool() -> Result<CUmemoryPool, Stop> {
    Ok(made!(cuDeviceGetDefaultMemPool(0)))
}

fn allocate(bytes: usize, stream: CUstream) -> Result<CUdeviceptr, Stop> {
    Ok(made!(cuMemAllocAsync(bytes, stream)))
}

fn memory_freed_in_a_stream_is_used_again_in_it(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let (stream, pool) = (gpu.stream(CU_STREAM_NON_BLOCKING)?, default_pool()?);
    let first = allocate(10 * MIB, stream)?;
    facts.is("in use", attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?, 10 * MIB);
    let at_first = reserved(pool)?;
    must!(cuMemFreeAsync(first, stream));
    for _ in 0..100 {
        let address = allocate(10 * MIB, stream)?;
        must!(cuMemFreeAsync(address, stream));
    }
    facts.is("reserved after a hundred more", reserved(pool)?, at_first);
    facts.is("in use", attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?, 0);
    facts.is("at most in use", attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH)?, 10 * MIB);
    Ok(())
}

fn unused_memory_goes_back_when_the_host_waits(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let (stream, pool) = (gpu.stream(CU_STREAM_NON_BLOCKING)?, default_pool()?);
    let before = gpu.used_bytes()?;
    let address = allocate(10 * MIB, stream)?;
    facts.is("reserved memory is taken", gpu.used_bytes()? - before, reserved(pool)?);
    must!(cuMemFreeAsync(address, stream));
    must!(cuStreamSynchronize(stream));
    facts.is("reserved then", reserved(pool)?, 0);
    facts.is("taken then", gpu.used_bytes()?, before);
    Ok(())
}

fn the_threshold_keeps_and_trimming_gives_back(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let (stream, pool) = (gpu.stream(CU_STREAM_NON_BLOCKING)?, default_pool()?);
    let mut keep = u64::MAX;
    must!(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, (&raw mut keep).cast()));
    let address = allocate(10 * MIB, stream)?;
    must!(cuMemFreeAsync(address, stream));
    must!(cuStreamSynchronize(stream));
    let kept = reserved(pool)?;
    facts.has("kept below the threshold", kept, "at least what was in use", kept >= 10 * MIB);
    must!(cuMemPoolTrimTo(pool, 0));
    facts.is("trimmed", reserved(pool)?, 0);
    Ok(())
}

fn either_free_takes_memory_of_a_pool(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let (stream, pool) = (gpu.stream(CU_STREAM_NON_BLOCKING)?, default_pool()?);
    let address = allocate(MIB, stream)?;
    must!(cuStreamSynchronize(stream));
    facts.code("cuMemFree", cu!(cuMemFree_v2(address)), CUDA_SUCCESS);
    facts.is("in use", attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?, 0);
    Ok(())
}

fn memory_of_a_pool_outlives_contexts(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let pool = default_pool()?;
    let second = made!(cuCtxCreate_v2(0, 0));
    let address = allocate(MIB, null_mut())?;
    must!(cuMemsetD8_v2(address, 7, 1));
    let kept = reserved(pool)?;
    must!(cuCtxDestroy_v2(second));
    must!(cuCtxSetCurrent(gpu.context));
    facts.is("in use", attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?, MIB);
    facts.is("reserved", reserved(pool)?, kept);
    let mut byte = 0_u8;
    facts.code("reading it", cu!(cuMemcpyDtoH_v2((&raw mut byte).cast(), address, 1)), CUDA_SUCCESS);
    facts.is("the byte in it", byte, 7);
    facts.code("freeing it", cu!(cuMemFree_v2(address)), CUDA_SUCCESS);
    facts.is("in use then", attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?, 0);
    Ok(())
}

fn a_pool_grows_by_thirty_two_mebibytes(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let (stream, pool) = (gpu.stream(CU_STREAM_NON_BLOCKING)?, default_pool()?);
    let _small = allocate(1000, stream)?;
    facts.is("for a thousand bytes", reserved(pool)?, 32 * MIB);
    facts.is("counted as used", attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?, 1024);
    let _large = allocate(100 * MIB, stream)?;
    facts.is("for 100 MiB beside it", reserved(pool)?, 132 * MIB);
    let none = cu!(cuMemAllocAsync(&mut 0, 0, stream));
    facts.code("no bytes", none, CUDA_ERROR_INVALID_VALUE);
    Ok(())
}

fn a_pool_that_the_program_made(facts: &mut Facts) -> Result<(), Stop> {
    let (_gpu, [stream]) = Gpu::with_streams()?;
    let mut props = zeroed!(CUmemPoolProps);
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = CUmemLocation { r#type: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    let (mut pool, mut address) = (null_mut(), 0);
    must!(cuMemPoolCreate(&mut pool, &props));
    must!(cuMemAllocFromPoolAsync(&mut address, MIB, pool, stream));
    facts.code("destroying it with memory in use", cu!(cuMemPoolDestroy(pool)), CUDA_SUCCESS);
    facts.code("freeing that afterwards", cu!(cuMemFreeAsync(address, stream)), CUDA_SUCCESS);
    let code = cu!(cuMemPoolDestroy(default_pool()?));
    facts.code("destroying the device's own", code, CUDA_ERROR_INVALID_VALUE);
    props.location.id = -1;
    facts.code("on no device", cu!(cuMemPoolCreate(&mut pool, &props)), CUDA_ERROR_INVALID_DEVICE);
    must!(cuStreamSynchronize(stream));
    Ok(())
}

fn addresses_that_are_not_a_pools(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [stream]) = Gpu::with_streams()?;
    let linear = gpu.memory(64)?;
    facts.code("an address from cuMemAlloc", cu!(cuMemFreeAsync(linear, stream)), CUDA_SUCCESS);
    facts.code("an unknown address", cu!(cuMemFreeAsync(0x1234_0000, stream)), CUDA_ERROR_INVALID_VALUE);
    let address = allocate(64, stream)?;
    must!(cuMemFreeAsync(address, stream));
    facts.code("a freed address", cu!(cuMemFreeAsync(address, stream)), CUDA_ERROR_INVALID_VALUE);
    Ok(())
}

/// Returns a pool as clients create it.
fn own_pool(location: CUmemLocation, handles: CUmemAllocationHandleType) -> Result<CUmemoryPool, Stop> {
    let mut props = zeroed!(CUmemPoolProps);
    (props.allocType, props.handleTypes) = (CU_MEM_ALLOCATION_TYPE_PINNED, handles);
    props.location = location;
    let mut pool = null_mut();
    match cu!(cuMemPoolCreate(&mut pool, &props)) {
        CUDA_SUCCESS => Ok(pool),
        CUDA_ERROR_NOT_SUPPORTED => Err(Stop::Absent("pools of this kind".to_owned())),
        code => Err(Stop::Failed("cuMemPoolCreate", code)),
    }
}

const DEVICE: CUmemLocation = CUmemLocation { r#type: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };

fn a_pool_of_the_hosts_memory_takes_nothing_of_the_device(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [stream]) = Gpu::with_streams()?;
    let before = gpu.used_bytes()?;
    let pool = own_pool(CUmemLocation { r#type: CU_MEM_LOCATION_TYPE_HOST_NUMA, id: 0 }, 0)?;
    let address = made!(cuMemAllocFromPoolAsync(64 * MIB, pool, stream));
    must!(cuStreamSynchronize(stream));
    facts.is("the device", gpu.used_bytes()?, before);
    facts.is(
        "its location",
        attribute(pool, CU_MEMPOOL_ATTR_LOCATION_TYPE)? as u32,
        CU_MEM_LOCATION_TYPE_HOST_NUMA,
    );
    must!(cuMemFreeAsync(address, stream));
    must!(cuStreamSynchronize(stream));
    facts.code("destroying it", cu!(cuMemPoolDestroy(pool)), CUDA_SUCCESS);
    Ok(())
}

fn exported(pool: CUmemoryPool) -> Result<usize, Stop> {
    let mut descriptor = -1_i32;
    let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    must!(cuMemPoolExportToShareableHandle((&raw mut descriptor).cast(), pool, kind, 0));
    Ok(descriptor as usize)
}

fn an_imported_pool_gives_nothing_new(facts: &mut Facts) -> Result<(), Stop> {
    let (_gpu, [stream]) = Gpu::with_streams()?;
    let own = own_pool(DEVICE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)?;
    let (mut pool, mut address, descriptor) = (null_mut(), 0, exported(own)?);
    let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    must!(cuMemPoolImportFromShareableHandle(&mut pool, descriptor as *mut _, kind, 0));
    let given = cu!(cuMemAllocFromPoolAsync(&mut address, MIB, pool, stream));
    facts.has("an allocation from it", given, "an error", given != CUDA_SUCCESS);
    let set = cu!(cuDeviceSetMemPool(0, pool));
    facts.has("as the device's pool", set, "an error", set != CUDA_SUCCESS);
    facts.code("destroying it", cu!(cuMemPoolDestroy(pool)), CUDA_SUCCESS);
    must!(cuMemPoolDestroy(own));
    Ok(())
}

fn handles_that_a_pool_is_exported_and_imported_by(facts: &mut Facts) -> Result<(), Stop> {
    let (_gpu, [stream]) = Gpu::with_streams()?;
    let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let (own, plain) = (own_pool(DEVICE, kind)?, own_pool(DEVICE, CU_MEM_HANDLE_TYPE_NONE)?);
    let mut descriptor = -1_i32;
    let refused = cu!(cuMemPoolExportToShareableHandle((&raw mut descriptor).cast(), plain, kind, 0));
    facts.code("one that was not made for it", refused, CUDA_ERROR_INVALID_VALUE);
    let (mut address, mut data) = (0, [0_u8; 64]);
    must!(cuMemAllocFromPoolAsync(&mut address, MIB, plain, stream));
    let pointer = cu!(cuMemPoolExportPointer(data.as_mut_ptr().cast(), address));
    facts.code("memory of such a pool", pointer, CUDA_ERROR_INVALID_VALUE);
    must!(cuMemFreeAsync(address, stream));
    must!(cuMemAllocFromPoolAsync(&mut address, MIB, own, stream));
    let code = cu!(cuMemPoolExportPointer(data.as_mut_ptr().cast(), address));
    facts.code("memory of the other", code, CUDA_SUCCESS);
    must!(cuMemFreeAsync(address, stream));
    must!(cuStreamSynchronize(stream));
    let mut imported = null_mut();
    let none = cu!(cuMemPoolImportFromShareableHandle(&mut imported, (-1_isize) as *mut _, kind, 0));
    facts.code("no descriptor", none, CUDA_ERROR_INVALID_VALUE);
    must!(cuMemPoolDestroy(own));
    must!(cuMemPoolDestroy(plain));
    Ok(())
}
