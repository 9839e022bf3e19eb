//! Injected errors. The client gets an error from the named call, and from no other call.
#[macro_use]
mod common;
use common::*;

#[test]
fn an_injected_fault_fails_the_call_named_and_no_other() {
    // SAFETY: no other thread runs in this process yet.
    unsafe { std::env::set_var("SIMGPU_FAULTS", "cuMemAlloc_v2:2:2,cuLaunchKernel_ptsz:1:719") };
    let gpu = Gpu::new();
    let mut address = 0;
    ok!(cuMemAlloc_v2(&mut address, 64));
    assert_eq!(code!(cuMemAlloc_v2(&mut address, 64)), CUDA_ERROR_OUT_OF_MEMORY);
    ok!(cuMemAlloc_v2(&mut address, 64));
    let (kernel, none) = (gpu.kernel(c"quick"), std::ptr::null_mut());
    ok!(launch(kernel, std::ptr::null_mut()));
    let per_thread =
        || code!(cuLaunchKernel_ptsz(kernel, 1, 1, 1, 32, 1, 1, 0, std::ptr::null_mut(), none, none));
    assert_eq!(per_thread(), CUDA_ERROR_LAUNCH_FAILED);
    assert_eq!(per_thread(), CUDA_SUCCESS);
}
