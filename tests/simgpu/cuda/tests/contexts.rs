//! Devices, contexts and look-ups.
#[macro_use]
mod common;
use std::ptr::null_mut;

use common::*;

fn current() -> CUcontext {
    let mut context = null_mut();
    ok!(cuCtxGetCurrent(&mut context));
    context
}

#[test]
fn each_thread_has_its_own_stack_of_contexts() {
    let gpu = Gpu::new();
    assert_eq!(current(), gpu.context);
    let mut second = null_mut();
    ok!(cuCtxCreate_v2(&mut second, 0, 1));
    assert_eq!(current(), second);
    let elsewhere = std::thread::spawn(|| (current() as usize, code!(cuCtxSynchronize()))).join().unwrap();
    assert_eq!(elsewhere, (0, CUDA_ERROR_INVALID_CONTEXT));
    let mut popped = null_mut();
    ok!(cuCtxPopCurrent_v2(&mut popped));
    assert_eq!((popped, current()), (second, gpu.context));
    ok!(cuCtxSetCurrent(second));
    let mut device = -1;
    ok!(cuCtxGetDevice(&mut device));
    assert_eq!(device, 1);
    ok!(cuCtxDestroy_v2(second));
    assert_eq!(current(), null_mut());
    ok!(cuCtxPushCurrent_v2(gpu.context));
}

#[test]
fn a_destroyed_context_is_told_from_one_that_never_was() {
    let gpu = Gpu::new();
    let mut short = null_mut();
    ok!(cuCtxCreate_v2(&mut short, 0, 0));
    let event = gpu.event(0);
    let stream = gpu.stream(0);
    ok!(cuCtxDestroy_v2(short));
    assert_eq!(code!(cuCtxSetCurrent(short)), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    assert_eq!(code!(cuCtxSetCurrent(0x1234_5678 as CUcontext)), CUDA_ERROR_INVALID_CONTEXT);
    assert_eq!(code!(cuEventQuery(event)), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    assert_ne!(code!(cuStreamQuery(stream)), CUDA_SUCCESS);
}

#[test]
fn a_context_ends_with_the_last_who_detaches_it() {
    let gpu = Gpu::new();
    let (mut context, mut attached) = (null_mut(), null_mut());
    ok!(cuCtxCreate_v2(&mut context, 0, 0));
    ok!(cuCtxAttach(&mut attached, 0));
    assert_eq!(attached, context);
    assert_eq!(code!(cuCtxAttach(&mut attached, 1)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuCtxDetach(gpu.context)), CUDA_ERROR_INVALID_CONTEXT, "another is current");
    ok!(cuCtxDetach(context));
    assert_eq!(current(), context, "its creator still has it");
    ok!(cuCtxDetach(context));
    assert_eq!(current(), gpu.context);
    assert_eq!(code!(cuCtxSetCurrent(context)), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

#[test]
fn a_primary_context_lives_as_long_as_someone_holds_it() {
    let gpu = Gpu::new();
    let before = gpu.used_bytes();
    let (mut one, mut other) = (null_mut(), null_mut());
    ok!(cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_SPIN));
    ok!(cuDevicePrimaryCtxRetain(&mut one, 0));
    ok!(cuDevicePrimaryCtxRetain(&mut other, 0));
    assert_eq!(one, other);
    assert!(gpu.used_bytes() > before, "a context takes memory");
    let state = || {
        let (mut flags, mut active) = (0, 0);
        ok!(cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
        (flags, active)
    };
    assert_eq!(code!(cuCtxDestroy_v2(one)), CUDA_ERROR_INVALID_CONTEXT);
    ok!(cuDevicePrimaryCtxRelease_v2(0));
    assert_eq!(state(), (CU_CTX_SCHED_SPIN, 1));
    ok!(cuDevicePrimaryCtxRelease_v2(0));
    assert_eq!(state(), (CU_CTX_SCHED_SPIN, 0));
    assert_eq!(code!(cuDevicePrimaryCtxRelease_v2(0)), CUDA_ERROR_INVALID_CONTEXT);
    assert_eq!(gpu.used_bytes(), before);
    ok!(cuDevicePrimaryCtxSetFlags_v2(0, 0));
}

#[test]
fn looked_up_functions_are_the_exported_ones_and_misses_say_why() {
    let _gpu = Gpu::new();
    let find = |name: &std::ffi::CStr, version, flags| {
        let (mut found, mut state) = (null_mut(), 77);
        let code = code!(cuGetProcAddress_v2(name.as_ptr(), &mut found, version, flags, &mut state));
        (code, found as usize, state)
    };
    assert_eq!(
        find(c"cuMemAlloc", 13000, 0),
        (0, cuMemAlloc_v2 as *const () as usize, CU_GET_PROC_ADDRESS_SUCCESS)
    );
    assert_eq!(
        find(c"cuStreamQuery", 13000, 2),
        (0, cuStreamQuery_ptsz as *const () as usize, CU_GET_PROC_ADDRESS_SUCCESS)
    );
    assert_eq!(find(c"", 0, 0).1, 0);
    assert_eq!(find(c"cuNothing", 13000, 0), (0, 0, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND));
    let mut found = null_mut();
    ok!(cuGetProcAddress_v2(c"cuNothing".as_ptr(), &mut found, 13000, 0, null_mut()));
    assert_eq!(code!(cuGetProcAddress(c"cuNothing".as_ptr(), &mut found, 13000, 0)), CUDA_ERROR_NOT_FOUND);
    let (id, mut table) = (CUuuid { bytes: [7; 16] }, std::ptr::null());
    assert_eq!(code!(cuGetExportTable(&mut table, &id)), CUDA_ERROR_NOT_FOUND);
}

#[test]
fn what_is_not_modelled_says_so() {
    let _gpu = Gpu::new();
    let (mut cubin, mut bytes) = (null_mut(), 0);
    assert_eq!(code!(cuLinkComplete(null_mut(), &mut cubin, &mut bytes)), CUDA_ERROR_NOT_SUPPORTED);
}

#[test]
fn devices_are_described_consistently() {
    let _gpu = Gpu::new();
    let mut count = 0;
    ok!(cuDeviceGetCount(&mut count));
    assert_eq!(count, 2);
    assert_eq!(code!(cuDeviceGet(&mut count, 2)), CUDA_ERROR_INVALID_DEVICE);
    let uuid = |device| {
        let mut uuid = CUuuid { bytes: [0; 16] };
        ok!(cuDeviceGetUuid_v2(&mut uuid, device));
        uuid.bytes
    };
    assert_ne!(uuid(0), uuid(1));
    let (mut threads, mut access) = (0, 0);
    ok!(cuDeviceGetAttribute(&mut threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 0));
    assert_eq!(threads, 1024);
    assert_eq!(code!(cuDeviceGetAttribute(&mut threads, 0, 0)), CUDA_ERROR_INVALID_VALUE);
    ok!(cuDeviceCanAccessPeer(&mut access, 0, 1));
    assert_eq!(access, 1);
    let mut id = [0; 16];
    ok!(cuDeviceGetPCIBusId(id.as_mut_ptr(), id.len() as i32, 1));
    let mut device = -1;
    ok!(cuDeviceGetByPCIBusId(&mut device, id.as_ptr()));
    assert_eq!(device, 1);
}
