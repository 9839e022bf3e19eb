//! Memory of every kind: contents, cost and refusals.
#[macro_use]
mod common;
use std::ffi::c_void;
use std::ptr::null_mut;

use common::*;

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;
const PIECE: usize = 2 * MIB;

#[test]
fn what_is_allocated_is_charged_in_whole_pieces_and_given_back() {
    let gpu = Gpu::new();
    let before = gpu.used_bytes();
    let large = gpu.memory(3 * MIB);
    assert_eq!(gpu.used_bytes() - before, 4 * MIB);
    let small: Vec<_> = (0..100).map(|_| gpu.memory(1000)).collect();
    let with_small = gpu.used_bytes() - before;
    assert!(with_small <= 6 * MIB, "a hundred small ones share a piece: {with_small}");
    for address in small {
        assert_eq!(address % 256, 0);
        ok!(cuMemFree_v2(address));
    }
    ok!(cuMemFree_v2(large));
    assert_eq!(gpu.used_bytes(), before);
}

#[test]
fn more_than_there_is_cannot_be_had_and_a_hundred_gigabytes_can() {
    let gpu = Gpu::new();
    let (mut address, mut total) = (0, 0);
    ok!(cuDeviceTotalMem_v2(&mut total, 0));
    assert_eq!(code!(cuMemAlloc_v2(&mut address, total + 1)), CUDA_ERROR_OUT_OF_MEMORY);
    let huge = gpu.memory(100 * GIB);
    assert_eq!(code!(cuMemAlloc_v2(&mut address, 100 * GIB)), CUDA_ERROR_OUT_OF_MEMORY);
    ok!(cuMemsetD32_v2(huge + (99 * GIB) as u64, 1, 1024));
    ok!(cuMemsetD32_v2(huge, 0, 25 * GIB));
    ok!(cuCtxSynchronize());
    assert_eq!(
        gpu.read(huge + (99 * GIB) as u64, 1),
        [0],
        "zeros over 100 GiB cost no memory, but are written"
    );
    ok!(cuMemFree_v2(huge));
}

#[test]
fn strange_addresses_are_refused() {
    let gpu = Gpu::new();
    let device = gpu.memory(64);
    let mut word = 0_u32;
    let host = (&raw mut word).cast::<c_void>();
    assert_eq!(code!(cuMemFree_v2(0x1234_0000)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuMemFree_v2(device + 8)), CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemFree_v2(0));
    assert_eq!(code!(cuMemAlloc_v2(&mut 0, 0)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuMemAlloc_v2(null_mut(), 64)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuMemcpyDtoH_v2(host, device, 65)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuMemsetD32_v2(device, 0, 17)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuMemsetD32_v2(device + 2, 0, 1)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuMemFreeHost(host)), CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemFree_v2(device));
    assert_eq!(code!(cuMemFree_v2(device)), CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn rows_are_copied_between_pitched_memory_and_the_host() {
    let gpu = Gpu::new();
    let (mut device, mut pitch) = (0, 0);
    ok!(cuMemAllocPitch_v2(&mut device, &mut pitch, 12, 3, 4));
    assert!(pitch >= 12 && pitch % 512 == 0);
    let rows: Vec<u32> = (0..9).collect();
    // SAFETY: all zeros is a valid value of this plain struct.
    let mut copy: CUDA_MEMCPY2D = unsafe { std::mem::zeroed() };
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = rows.as_ptr().cast();
    copy.srcPitch = 12;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = device;
    copy.dstPitch = pitch;
    copy.WidthInBytes = 12;
    copy.Height = 3;
    ok!(cuMemcpy2D_v2(&copy));
    assert_eq!(gpu.read(device + 2 * pitch as u64, 3), [6, 7, 8]);
    ok!(cuMemsetD2D32_v2(device, pitch, 5, 2, 2));
    assert_eq!(gpu.read(device + pitch as u64, 3), [5, 5, rows[5]]);
    copy.dstPitch = 8;
    assert_eq!(code!(cuMemcpy2D_v2(&copy)), CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn an_array_keeps_what_is_copied_into_it() {
    let gpu = Gpu::new();
    let descriptor =
        CUDA_ARRAY_DESCRIPTOR { Width: 4, Height: 2, Format: CU_AD_FORMAT_UNSIGNED_INT32, NumChannels: 1 };
    let mut array = null_mut();
    ok!(cuArrayCreate_v2(&mut array, &descriptor));
    let (sent, mut got) = ([1_u32, 2, 3, 4], [0_u32; 2]);
    ok!(cuMemcpyHtoA_v2(array, 0, sent.as_ptr().cast(), 16));
    ok!(cuMemcpyAtoH_v2(got.as_mut_ptr().cast(), array, 8, 8));
    assert_eq!(got, [3, 4]);
    ok!(cuArrayDestroy(array));
    assert_eq!(code!(cuArrayDestroy(array)), CUDA_ERROR_INVALID_HANDLE);
    drop(gpu);
}

#[test]
fn an_array_ends_with_its_context() {
    let gpu = Gpu::new();
    let descriptor =
        CUDA_ARRAY_DESCRIPTOR { Width: 4, Height: 2, Format: CU_AD_FORMAT_UNSIGNED_INT32, NumChannels: 1 };
    let (mut context, mut array, sent) = (null_mut(), null_mut(), [1_u32; 4]);
    ok!(cuCtxCreate_v2(&mut context, 0, 0));
    ok!(cuArrayCreate_v2(&mut array, &descriptor));
    ok!(cuCtxDestroy_v2(context));
    ok!(cuCtxSetCurrent(gpu.context));
    assert_eq!(code!(cuMemcpyHtoA_v2(array, 0, sent.as_ptr().cast(), 16)), CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(code!(cuArrayDestroy(array)), CUDA_ERROR_INVALID_HANDLE);
}

fn pool_attribute(pool: CUmemoryPool, attribute: u32) -> usize {
    let mut value = 0_u64;
    ok!(cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()));
    value as usize
}

#[test]
fn a_pool_reuses_within_a_stream_and_gives_back_at_synchronisation() {
    let gpu = Gpu::new();
    let stream = gpu.stream(CU_STREAM_NON_BLOCKING);
    let mut pool = null_mut();
    ok!(cuDeviceGetDefaultMemPool(&mut pool, 0));
    let before = gpu.used_bytes();
    let allocate = || {
        let mut address = 0;
        ok!(cuMemAllocAsync(&mut address, 10 * MIB, stream));
        address
    };
    let first = allocate();
    assert_eq!(pool_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 10 * MIB);
    let reserved = pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    assert_eq!(gpu.used_bytes() - before, reserved);
    gpu.launch(c"slow", stream);
    for _ in 0..100 {
        let mut other = 0;
        ok!(cuMemAllocAsync(&mut other, 10 * MIB, stream));
        ok!(cuMemFreeAsync(other, stream));
    }
    assert!(
        pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) <= 2 * reserved,
        "freed memory is used again"
    );
    ok!(cuMemFreeAsync(first, stream));
    ok!(cuStreamSynchronize(stream));
    assert_eq!(pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
    assert_eq!(gpu.used_bytes(), before);

    let mut keep = u64::MAX;
    ok!(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, (&raw mut keep).cast()));
    ok!(cuMemFreeAsync(allocate(), stream));
    ok!(cuStreamSynchronize(stream));
    assert_ne!(
        pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
        0,
        "what is below the threshold stays"
    );
    ok!(cuMemPoolTrimTo(pool, 0));
    assert_eq!(gpu.used_bytes(), before);
    keep = 0;
    ok!(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, (&raw mut keep).cast()));
}

#[test]
fn physical_memory_is_mapped_used_and_given_back() {
    let gpu = Gpu::new();
    let before = gpu.used_bytes();
    // SAFETY: all zeros is a valid value of this plain struct.
    let mut properties: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.r#type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = CUmemLocation { r#type: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    let mut granularity = 0;
    ok!(cuMemGetAllocationGranularity(&mut granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    assert_eq!(granularity, PIECE);
    let (mut handle, mut address) = (0, 0);
    assert_eq!(code!(cuMemCreate(&mut handle, PIECE + 1, &properties, 0)), CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemCreate(&mut handle, PIECE, &properties, 0));
    assert_eq!(gpu.used_bytes() - before, PIECE);
    ok!(cuMemAddressReserve(&mut address, 2 * PIECE, 0, 0, 0));
    ok!(cuMemMap(address, PIECE, 0, handle, 0));
    ok!(cuMemMap(address + PIECE as u64, PIECE, 0, handle, 0));
    let access = CUmemAccessDesc { location: properties.location, flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    ok!(cuMemSetAccess(address, 2 * PIECE, &access, 1));
    ok!(cuMemsetD32_v2(address, 77, 4));
    ok!(cuCtxSynchronize());
    assert_eq!(gpu.read(address + PIECE as u64, 4), [77; 4], "one piece, mapped twice");
    ok!(cuMemRelease(handle));
    assert_eq!(gpu.used_bytes() - before, PIECE, "mappings hold it");
    assert_eq!(code!(cuMemAddressFree(address, 2 * PIECE)), CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemUnmap(address, 2 * PIECE));
    assert_eq!(gpu.used_bytes(), before);
    ok!(cuMemAddressFree(address, 2 * PIECE));
    assert_eq!(code!(cuMemRelease(handle)), CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn pointers_say_what_they_are() {
    let gpu = Gpu::new();
    let (device, host) = (gpu.memory(100), gpu.pinned(4));
    let kind = |address| {
        let mut kind = 0_u32;
        (
            code!(cuPointerGetAttribute((&raw mut kind).cast(), CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)),
            kind,
        )
    };
    assert_eq!(kind(device + 50), (0, CU_MEMORYTYPE_DEVICE));
    assert_eq!(kind(host.as_ptr() as u64), (0, CU_MEMORYTYPE_HOST));
    assert_eq!(kind(0x1000), (CUDA_ERROR_INVALID_VALUE, 0));
    let (mut base, mut bytes) = (0, 0);
    ok!(cuMemGetAddressRange_v2(&mut base, &mut bytes, device + 50));
    assert_eq!((base, bytes), (device, 100));
    let mut owned = [0_u32; 4];
    ok!(cuMemHostRegister_v2(owned.as_mut_ptr().cast(), 16, 0));
    assert_eq!(
        code!(cuMemHostRegister_v2(owned.as_mut_ptr().cast(), 16, 0)),
        CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
    );
    assert_eq!(kind(owned.as_ptr() as u64), (0, CU_MEMORYTYPE_HOST));
    ok!(cuMemHostUnregister(owned.as_mut_ptr().cast()));
    assert_eq!(code!(cuMemHostUnregister(owned.as_mut_ptr().cast())), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

#[test]
fn modules_hold_kernels_and_variables_with_their_first_values() {
    let gpu = Gpu::new();
    let (mut address, mut bytes, mut function) = (0, 0, null_mut());
    ok!(cuModuleGetGlobal_v2(&mut address, &mut bytes, gpu.module, c"answer".as_ptr()));
    assert_eq!((bytes, gpu.read(address, 1)), (4, vec![42]));
    assert_eq!(
        code!(cuModuleGetGlobal_v2(&mut address, &mut bytes, gpu.module, c"nothing".as_ptr())),
        CUDA_ERROR_NOT_FOUND
    );
    assert_eq!(
        code!(cuModuleGetFunction(&mut function, gpu.module, c"nothing".as_ptr())),
        CUDA_ERROR_NOT_FOUND
    );
    let (mut offset, mut size, mut module) = (0, 0, null_mut());
    ok!(cuFuncGetParamInfo(gpu.kernel(c"small"), 1, &mut offset, &mut size));
    assert_eq!((offset, size), (8, 4));
    assert_eq!(
        code!(cuFuncGetParamInfo(gpu.kernel(c"small"), 2, &mut offset, &mut size)),
        CUDA_ERROR_INVALID_VALUE
    );
    ok!(cuFuncGetModule(&mut module, gpu.kernel(c"small")));
    assert_eq!(module, gpu.module);
    assert_eq!(code!(cuModuleLoadData(&mut module, c"no code".as_ptr().cast())), CUDA_ERROR_INVALID_IMAGE);
    let stale = gpu.kernel(c"quick");
    ok!(cuModuleUnload(gpu.module));
    assert_eq!(code!(launch(stale, null_mut())), CUDA_ERROR_INVALID_HANDLE);
}

/// Returns PTX with a variable of this length.
fn with_variable(bytes: u64) -> std::ffi::CString {
    let text = format!(
        ".version 8.5\n.target sm_90\n.visible .global .align 8 .b8 large[{bytes}];\n.visible .entry quick() {{ ret; }}\n"
    );
    std::ffi::CString::new(text).unwrap()
}

#[test]
fn a_modules_variables_take_memory_from_its_load_to_its_end_and_a_librarys_once_they_are_used() {
    const PIECE: usize = 2 << 20;
    let _gpu = Gpu::new();
    let free = || {
        let (mut free, mut total) = (0, 0);
        ok!(cuMemGetInfo_v2(&mut free, &mut total));
        free
    };
    let (before, image) = (free(), with_variable(5 << 20));
    let (mut module, mut library, mut address, mut bytes) = (null_mut(), null_mut(), 0, 0);
    ok!(cuModuleLoadData(&mut module, image.as_ptr().cast()));
    assert_eq!(before - free(), 3 * PIECE);
    ok!(cuModuleUnload(module));
    assert_eq!(free(), before);
    assert_eq!(
        code!(cuModuleLoadData(&mut module, with_variable(1 << 50).as_ptr().cast())),
        CUDA_ERROR_OUT_OF_MEMORY
    );
    let none = null_mut();
    ok!(cuLibraryLoadData(
        &mut library,
        image.as_ptr().cast(),
        none,
        null_mut(),
        0,
        null_mut(),
        null_mut(),
        0
    ));
    assert_eq!(free(), before, "libraries are loaded lazily");
    ok!(cuLibraryGetGlobal(&mut address, &mut bytes, library, c"large".as_ptr()));
    assert_eq!((before - free(), bytes), (3 * PIECE, 5 << 20));
    ok!(cuLibraryUnload(library));
    assert_eq!(free(), before);
}

#[test]
fn a_librarys_kernel_can_be_launched_in_any_context() {
    let gpu = Gpu::new();
    let (mut library, mut kernel, mut function) = (null_mut(), null_mut(), null_mut());
    let none = null_mut();
    ok!(cuLibraryLoadData(&mut library, PTX.as_ptr().cast(), none, null_mut(), 0, null_mut(), null_mut(), 0));
    ok!(cuLibraryGetKernel(&mut kernel, library, c"quick".as_ptr()));
    ok!(launch(kernel as CUfunction, null_mut()));
    ok!(cuKernelGetFunction(&mut function, kernel));
    ok!(launch(function, null_mut()));
    let mut other = null_mut();
    ok!(cuCtxCreate_v2(&mut other, 0, 1));
    ok!(launch(kernel as CUfunction, null_mut()));
    assert_eq!(
        code!(launch(function, null_mut())),
        CUDA_ERROR_INVALID_HANDLE,
        "a function belongs to its context"
    );
    ok!(cuCtxDestroy_v2(other));
    ok!(cuCtxPushCurrent_v2(gpu.context));
    ok!(cuLibraryUnload(library));
}
