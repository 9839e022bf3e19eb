//! Devices and contexts: behaviour of the simulated driver that the program `conformance` cannot
//! require of every driver.
#[macro_use]
mod common;
use std::ptr::null_mut;

use common::*;

fn current() -> CUcontext {
    made!(cuCtxGetCurrent())
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
fn a_function_that_is_not_modelled_says_so() {
    let _gpu = Gpu::new();
    let (mut cubin, mut bytes) = (null_mut(), 0);
    assert_eq!(code!(cuLinkComplete(null_mut(), &mut cubin, &mut bytes)), CUDA_ERROR_NOT_SUPPORTED);
}

#[test]
fn a_second_device_differs_from_the_first_and_has_contexts_of_its_own() {
    let gpu = Gpu::new();
    let (mut count, mut version, mut access) = (0, 0, 0);
    ok!(cuDriverGetVersion(&mut version));
    ok!(cuDeviceGetCount(&mut count));
    assert_eq!((version / 1000, count), (13, 2));
    let uuid = |device| {
        let mut uuid = CUuuid { bytes: [0; 16] };
        ok!(cuDeviceGetUuid_v2(&mut uuid, device));
        uuid.bytes
    };
    assert_ne!(uuid(0), uuid(1));
    ok!(cuDeviceCanAccessPeer(&mut access, 0, 1));
    assert_eq!(access, 1);
    let (mut bus, mut device, mut second) = ([0; 16], -1, null_mut());
    ok!(cuDeviceGetPCIBusId(bus.as_mut_ptr(), bus.len() as i32, 1));
    ok!(cuDeviceGetByPCIBusId(&mut device, bus.as_ptr()));
    assert_eq!(device, 1);
    ok!(cuCtxCreate_v2(&mut second, 0, 1));
    ok!(cuCtxSetCurrent(second));
    ok!(cuCtxGetDevice(&mut device));
    assert_eq!(device, 1);
    ok!(cuCtxDestroy_v2(second));
    assert_eq!(current(), gpu.context);
}

#[test]
fn a_primary_context_takes_memory_while_someone_holds_it_and_its_flags_stay() {
    let gpu = Gpu::new();
    let before = gpu.used_bytes();
    let (mut primary, mut flags, mut active) = (null_mut(), 0, 0);
    ok!(cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_SPIN));
    ok!(cuDevicePrimaryCtxRetain(&mut primary, 0));
    assert!(gpu.used_bytes() > before);
    ok!(cuDevicePrimaryCtxRelease_v2(0));
    assert_eq!(gpu.used_bytes(), before);
    ok!(cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
    assert_eq!((flags, active), (CU_CTX_SCHED_SPIN, 0));
    ok!(cuDevicePrimaryCtxSetFlags_v2(0, 0));
}

/// `CUdevResource`, whose fields the client does not read.
type Resource = [u64; 18];

/// Returns a green context with `sms` SMs of the first device.
fn green(sms: u32) -> CUgreenCtx {
    let (mut whole, mut part): (Resource, Resource) = ([0; 18], [0; 18]);
    ok!(cuDeviceGetDevResource(0, (&raw mut whole).cast(), CU_DEV_RESOURCE_TYPE_SM));
    let (input, none, mut groups) = ((&raw const whole).cast(), null_mut(), 1);
    ok!(cuDevSmResourceSplitByCount((&raw mut part).cast(), &mut groups, input, none, 0, sms));
    let descriptor: CUdevResourceDesc = made!(cuDevResourceGenerateDesc((&raw mut part).cast(), 1));
    made!(cuGreenCtxCreate(descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM))
}

#[test]
fn kernels_of_a_green_context_have_its_sms_and_use_what_the_primary_context_has() {
    let _gpu = Gpu::new();
    let primary: CUcontext = made!(cuDevicePrimaryCtxRetain(0));
    ok!(cuCtxSetCurrent(primary));
    let module: CUmodule = made!(cuModuleLoadData(PTX.as_ptr().cast()));
    let slow: CUfunction = made!(cuModuleGetFunction(module, c"slow".as_ptr()));
    let (start, end): (CUevent, CUevent) = (made!(cuEventCreate(0)), made!(cuEventCreate(0)));
    let wide = |stream| {
        ok!(cuEventRecord(start, stream));
        ok!(cuLaunchKernel(slow, 1 << 16, 1, 1, 1024, 1, 1, 0, stream, null_mut(), null_mut()));
        ok!(cuEventRecord(end, stream));
        ok!(cuStreamSynchronize(stream));
        let mut ms = 0.0;
        ok!(cuEventElapsedTime(&mut ms, start, end));
        ms
    };
    let all_ms = wide(null_mut());
    let half = green(64);
    let stream: CUstream = made!(cuGreenCtxStreamCreate(half, CU_STREAM_NON_BLOCKING, 0));
    let half_ms = wide(stream);
    assert!(half_ms > 1.8 * all_ms && half_ms < 2.5 * all_ms, "{half_ms} ms and {all_ms} ms");
    let (view, mut own): (CUcontext, _) = (made!(cuCtxFromGreenCtx(half)), null_mut());
    ok!(cuStreamGetCtx(stream, &mut own));
    assert!(own == view && view != primary);
    ok!(cuGreenCtxDestroy(half));
    assert_eq!(code!(cuStreamQuery(stream)), CUDA_ERROR_STREAM_DETACHED);
    ok!(cuStreamDestroy_v2(stream));
    assert_eq!(code!(cuCtxSetCurrent(view)), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    ok!(cuDevicePrimaryCtxRelease_v2(0));
}

#[test]
fn a_green_context_is_current_to_one_thread_at_a_time() {
    let gpu = Gpu::new();
    let green = green(8);
    let view = {
        let view: CUcontext = made!(cuCtxFromGreenCtx(green));
        view as usize
    };
    let elsewhere = || std::thread::spawn(move || code!(cuCtxSetCurrent(view as CUcontext))).join().unwrap();
    ok!(cuCtxPushCurrent_v2(view as CUcontext));
    assert_eq!(current() as usize, view);
    let (memory, event) = (gpu.memory(64), gpu.event(0));
    ok!(cuEventRecord(event, null_mut()));
    assert_eq!(elsewhere(), CUDA_ERROR_CONTEXT_ALREADY_CURRENT);
    ok!(cuCtxPopCurrent_v2(&mut null_mut()));
    assert_eq!(elsewhere(), CUDA_SUCCESS);
    ok!(cuCtxPushCurrent_v2(view as CUcontext));
    ok!(cuCtxPopCurrent_v2(&mut null_mut()));
    let primary: CUcontext = made!(cuDevicePrimaryCtxRetain(0));
    ok!(cuGreenCtxDestroy(green));
    ok!(cuCtxSetCurrent(primary));
    ok!(cuMemFree_v2(memory));
    ok!(cuEventQuery(event));
    ok!(cuDevicePrimaryCtxRelease_v2(0));
}
