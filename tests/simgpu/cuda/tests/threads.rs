//! Many threads at once. No work is lost, no call hangs, and no unused memory stays charged.
#[macro_use]
mod common;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use common::*;

const THREADS: usize = 8;
const ROUNDS: usize = 100;

static CALLS: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn count(_: *mut c_void) {
    CALLS.fetch_add(1, Ordering::SeqCst);
}

fn work(gpu: &Gpu, kernel: CUfunction, seed: u32) {
    ok!(cuCtxSetCurrent(gpu.context));
    let stream = gpu.stream(CU_STREAM_NON_BLOCKING * (seed % 2));
    let event = gpu.event(0);
    let host = gpu.pinned(64);
    for round in 0..ROUNDS as u32 {
        let value = seed * 1000 + round;
        let (mut pooled, device) = (0, gpu.memory(256 << (round % 16)));
        ok!(cuMemAllocAsync(&mut pooled, 256, stream));
        ok!(cuMemsetD32Async(device, value, 64, stream));
        ok!(launch(kernel, if round % 8 == 0 { null_mut() } else { stream }));
        ok!(cuMemcpyDtoDAsync_v2(pooled, device, 256, stream));
        ok!(cuMemcpyDtoHAsync_v2(host.as_mut_ptr().cast(), pooled, 256, stream));
        ok!(cuLaunchHostFunc(stream, Some(count), null_mut()));
        ok!(cuMemFreeAsync(pooled, stream));
        ok!(cuEventRecord(event, stream));
        ok!(cuEventSynchronize(event));
        assert!(host.iter().all(|word| *word == value));
        ok!(cuMemFree_v2(device));
    }
    ok!(cuStreamDestroy_v2(stream));
    ok!(cuEventDestroy_v2(event));
    ok!(cuMemFreeHost(host.as_mut_ptr().cast()));
}

/// The handles as plain numbers, so that threads can share them.
struct Shared<'a>(&'a Gpu, CUfunction);
// SAFETY: the driver's functions may be called with a context's handles from any thread.
unsafe impl Sync for Shared<'_> {}

impl Shared<'_> {
    fn run(&self, seed: u32) {
        work(self.0, self.1, seed);
    }
}

#[test]
fn threads_use_one_context_together() {
    let gpu = Gpu::new();
    let before = gpu.used_bytes();
    let shared = Shared(&gpu, gpu.kernel(c"quick"));
    std::thread::scope(|scope| {
        for seed in 0..THREADS as u32 {
            let shared = &shared;
            scope.spawn(move || shared.run(seed));
        }
    });
    ok!(cuCtxSynchronize());
    assert_eq!(CALLS.load(Ordering::SeqCst) as usize, THREADS * ROUNDS);
    assert_eq!(gpu.used_bytes(), before);
}

#[test]
fn memory_goes_only_when_no_other_context_is_still_copying_it() {
    let gpu = Gpu::new();
    let device = gpu.memory(4 << 20);
    let other = made!(cuCtxCreate_v2(0, 1));
    let (stream, target) = (gpu.stream(CU_STREAM_NON_BLOCKING), gpu.memory(4 << 20));
    let mut module = null_mut();
    let mut slow = null_mut();
    ok!(cuModuleLoadData(&mut module, PTX.as_ptr().cast()));
    ok!(cuModuleGetFunction(&mut slow, module, c"slow".as_ptr()));
    ok!(launch(slow, stream));
    ok!(cuMemcpyDtoDAsync_v2(target, device, 4 << 20, stream));
    ok!(cuCtxPushCurrent_v2(gpu.context));
    ok!(cuMemFree_v2(device));
    ok!(cuCtxSetCurrent(other));
    ok!(cuStreamSynchronize(stream));
    ok!(cuCtxDestroy_v2(other));
}
