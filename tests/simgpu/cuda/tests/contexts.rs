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
fn what_is_not_modelled_says_so() {
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
