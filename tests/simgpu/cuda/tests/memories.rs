//! Memory: sizes that no real GPU has, and the simulated GPU's charge for code.
#[macro_use]
mod common;
use std::ptr::null_mut;

use common::*;

const GIB: usize = 1 << 30;

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

#[test]
fn a_batch_copies_between_addresses_and_arrays_and_names_the_copy_that_failed() {
    let gpu = Gpu::new();
    let (stream, memory) = (gpu.stream(CU_STREAM_NON_BLOCKING), gpu.memory(64));
    let (sent, mut got) = ([1_u32, 2, 3, 4], [0_u32; 4]);
    let hint = CUmemLocation { r#type: 0, id: 0 };
    let mut attributes =
        CUmemcpyAttributes { srcAccessOrder: 1, srcLocHint: hint, dstLocHint: hint, flags: 0 };
    let mut targets = [memory, memory + 32];
    let (mut sources, mut sizes, mut first, mut failed) = ([sent.as_ptr() as u64, memory], [16, 16], 0, 9);
    let mut batch = |targets: &mut [u64; 2], first: &mut usize, failed: &mut usize| {
        let (to, from, bytes) = (targets.as_mut_ptr(), sources.as_mut_ptr(), sizes.as_mut_ptr());
        code!(cuMemcpyBatchAsync(to, from, bytes, 2, &mut attributes, first, 1, failed, stream))
    };
    assert_eq!(batch(&mut targets, &mut first, &mut failed), CUDA_SUCCESS);
    ok!(cuStreamSynchronize(stream));
    assert_eq!(gpu.read(memory + 32, 4), sent);
    assert_eq!(batch(&mut [memory, 0], &mut first, &mut failed), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(failed, 1);
    assert_eq!(
        batch(&mut targets, &mut 1, &mut failed),
        CUDA_ERROR_INVALID_VALUE,
        "no attributes for the first"
    );

    let descriptor =
        CUDA_ARRAY_DESCRIPTOR { Width: 4, Height: 2, Format: CU_AD_FORMAT_UNSIGNED_INT32, NumChannels: 1 };
    let array: CUarray = made!(cuArrayCreate_v2(&descriptor));
    let pointer = |address, row, rows| CUmemcpy3DOperand {
        r#type: CU_MEMCPY_OPERAND_TYPE_POINTER,
        op: [address, row, rows, 0],
    };
    let at = |x| CUmemcpy3DOperand { r#type: CU_MEMCPY_OPERAND_TYPE_ARRAY, op: [array as u64, x, 1, 0] };
    let copy = |src, dst, width| CUDA_MEMCPY3D_BATCH_OP {
        src,
        dst,
        extent: CUextent3D { width, height: 1, depth: 1 },
        srcAccessOrder: 1,
        flags: 0,
    };
    let mut copies = [copy(pointer(memory, 4, 1), at(0), 4), copy(at(2), pointer(memory + 48, 2, 1), 2)];
    ok!(cuMemcpy3DBatchAsync_v2(2, copies.as_mut_ptr(), 0, stream));
    ok!(cuStreamSynchronize(stream));
    assert_eq!(gpu.read(memory + 48, 2), [3, 4]);
    let mut back = copy(at(1), pointer(got.as_mut_ptr() as u64, 3, 1), 3);
    ok!(cuMemcpy3DWithAttributesAsync(&mut back, 0, stream));
    ok!(cuMemcpyWithAttributesAsync(memory, sent.as_ptr() as u64, 16, &mut attributes, stream));
    ok!(cuStreamSynchronize(stream));
    assert_eq!(got, [2, 3, 4, 0]);
    copies[1].extent.depth = 0;
    assert_eq!(
        code!(cuMemcpy3DBatchAsync(2, copies.as_mut_ptr(), &mut failed, 0, stream)),
        CUDA_ERROR_INVALID_VALUE
    );
    assert_eq!(failed, 1);
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
fn a_larger_heap_of_kernels_takes_memory_until_it_shrinks_or_its_context_ends() {
    let gpu = Gpu::new();
    let used = || {
        let (mut free, mut total) = (0, 0);
        ok!(cuMemGetInfo_v2(&mut free, &mut total));
        total - free
    };
    let (before, mut context, mut bytes) = (used(), null_mut(), 0);
    ok!(cuCtxCreate_v2(&mut context, 0, 0));
    let with = used();
    ok!(cuCtxGetLimit(&mut bytes, CU_LIMIT_MALLOC_HEAP_SIZE));
    ok!(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, bytes + (3 << 20)));
    assert_eq!(used() - with, 4 << 20);
    ok!(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, bytes));
    assert_eq!(used(), with);
    assert_eq!(code!(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, usize::MAX)), CUDA_ERROR_OUT_OF_MEMORY);
    ok!(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, GIB));
    ok!(cuCtxDestroy_v2(context));
    ok!(cuCtxSetCurrent(gpu.context));
    assert_eq!(used(), before);
}
