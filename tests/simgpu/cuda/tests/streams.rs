//! Order in and between streams, events and their times, host functions, values in memory.
#[macro_use]
mod common;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::*;

const NON_BLOCKING: u32 = CU_STREAM_NON_BLOCKING;

#[test]
fn work_in_a_stream_is_done_in_order_and_takes_its_time() {
    let gpu = Gpu::new();
    let stream = gpu.stream(NON_BLOCKING);
    let began = Instant::now();
    gpu.launch(c"slow", stream);
    assert_eq!(code!(cuStreamQuery(stream)), CUDA_ERROR_NOT_READY);
    ok!(cuStreamSynchronize(stream));
    assert!(began.elapsed() >= Duration::from_nanos(SLOW_NS));
    ok!(cuStreamQuery(stream));
}

#[test]
fn copies_read_and_write_when_the_gpu_gets_to_them() {
    let gpu = Gpu::new();
    let stream = gpu.stream(NON_BLOCKING);
    let (host, device) = (gpu.pinned(4), gpu.memory(16));
    gpu.launch(c"slow", stream);
    host.fill(1);
    ok!(cuMemcpyHtoDAsync_v2(device, host.as_ptr().cast(), 16, stream));
    host.fill(2);
    ok!(cuStreamSynchronize(stream));
    assert_eq!(gpu.read(device, 4), [2; 4], "page-locked memory is read at the copy's turn");

    let mut pageable = vec![3_u32; 4];
    gpu.launch(c"slow", stream);
    ok!(cuMemcpyHtoDAsync_v2(device, pageable.as_ptr().cast(), 16, stream));
    pageable.fill(4);
    ok!(cuStreamSynchronize(stream));
    assert_eq!(gpu.read(device, 4), [3; 4], "pageable memory is read before the call returns");

    gpu.launch(c"slow", stream);
    ok!(cuMemcpyDtoHAsync_v2(pageable.as_mut_ptr().cast(), device, 16, stream));
    assert_eq!(pageable, [3; 4], "and written before the call returns");
}

#[test]
fn page_locked_memory_changes_by_itself() {
    let gpu = Gpu::new();
    let stream = gpu.stream(NON_BLOCKING);
    let (host, device) = (gpu.pinned(1), gpu.memory(4));
    ok!(cuMemsetD32Async(device, 9, 1, stream));
    ok!(cuMemcpyDtoHAsync_v2(host.as_mut_ptr().cast(), device, 4, stream));
    let deadline = Instant::now() + Duration::from_secs(5);
    // SAFETY: the word is valid, and only the driver's thread writes it.
    while unsafe { std::ptr::read_volatile(host.as_ptr()) } != 9 {
        assert!(Instant::now() < deadline, "nobody asked, and nothing happened");
        std::thread::yield_now();
    }
}

#[test]
fn the_legacy_stream_and_blocking_streams_wait_for_each_other() {
    let gpu = Gpu::new();
    let (blocking, free) = (gpu.stream(0), gpu.stream(NON_BLOCKING));
    let (legacy, aside, after) = (gpu.event(0), gpu.event(0), gpu.event(0));
    gpu.launch(c"slow", blocking);
    ok!(cuEventRecord(legacy, null_mut()));
    ok!(cuEventRecord(aside, free));
    assert_eq!(code!(cuEventQuery(legacy)), CUDA_ERROR_NOT_READY);
    ok!(cuEventSynchronize(aside));
    assert_eq!(code!(cuEventQuery(legacy)), CUDA_ERROR_NOT_READY, "the non-blocking stream went ahead");
    ok!(cuEventSynchronize(legacy));
    ok!(cuStreamQuery(blocking));

    gpu.launch(c"slow", null_mut());
    ok!(cuEventRecord(after, blocking));
    assert_eq!(code!(cuEventQuery(after)), CUDA_ERROR_NOT_READY);
    ok!(cuEventSynchronize(after));
}

#[test]
fn the_per_thread_stream_is_each_threads_own() {
    let gpu = Gpu::new();
    let context = gpu.context as usize;
    let id = || {
        let mut id = 0;
        ok!(cuStreamGetId_ptsz(null_mut(), &mut id));
        id
    };
    let own = id();
    let mut same = 0;
    ok!(cuStreamGetId(CU_STREAM_PER_THREAD, &mut same));
    assert_eq!(own, same);
    let other = std::thread::spawn(move || {
        ok!(cuCtxSetCurrent(context as CUcontext));
        let mut id = 0;
        ok!(cuStreamGetId_ptsz(null_mut(), &mut id));
        id
    });
    assert_ne!(own, other.join().unwrap());
}

#[test]
fn events_time_what_lies_between_them() {
    let gpu = Gpu::new();
    let stream = gpu.stream(NON_BLOCKING);
    let (start, end, untimed, fresh) =
        (gpu.event(0), gpu.event(0), gpu.event(CU_EVENT_DISABLE_TIMING), gpu.event(0));
    let mut ms = -1.0;
    ok!(cuEventQuery(fresh));
    ok!(cuEventRecord(start, stream));
    gpu.launch(c"slow", stream);
    ok!(cuEventRecord(end, stream));
    ok!(cuEventRecord(untimed, stream));
    assert_eq!(code!(cuEventElapsedTime(&mut ms, start, end)), CUDA_ERROR_NOT_READY);
    assert_eq!(code!(cuEventElapsedTime(&mut ms, start, untimed)), CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(code!(cuEventElapsedTime(&mut ms, fresh, end)), CUDA_ERROR_INVALID_HANDLE);
    ok!(cuEventSynchronize(end));
    ok!(cuEventElapsedTime(&mut ms, start, end));
    let slow_ms = SLOW_NS as f32 / 1e6;
    assert!((slow_ms..slow_ms * 2.0).contains(&ms), "{ms} ms");
    ok!(cuEventElapsedTime(&mut ms, end, start));
    assert!(ms < 0.0);
    ok!(cuEventDestroy_v2(end));
    assert_eq!(code!(cuEventQuery(end)), CUDA_ERROR_INVALID_HANDLE);
}

#[test]
fn a_stream_waits_for_an_event_of_another() {
    let gpu = Gpu::new();
    let (first, second) = (gpu.stream(NON_BLOCKING), gpu.stream(NON_BLOCKING));
    let (device, host) = (gpu.memory(4), gpu.pinned(1));
    let event = gpu.event(CU_EVENT_DISABLE_TIMING);
    gpu.launch(c"slow", first);
    ok!(cuMemsetD32Async(device, 5, 1, first));
    ok!(cuEventRecord(event, first));
    ok!(cuStreamWaitEvent(second, event, 0));
    ok!(cuMemcpyDtoHAsync_v2(host.as_mut_ptr().cast(), device, 4, second));
    ok!(cuStreamSynchronize(second));
    assert_eq!(host[0], 5);
}

static SEEN: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn note(data: *mut c_void) {
    std::thread::sleep(Duration::from_millis(5));
    // SAFETY: the test passes a word that lives until its stream is done.
    SEEN.store(unsafe { data.cast::<u32>().read_volatile() }, Ordering::SeqCst);
    // SAFETY: as above.
    unsafe { data.cast::<u32>().write_volatile(8) };
}

#[test]
fn a_host_function_sees_what_came_before_and_holds_up_what_comes_after() {
    let gpu = Gpu::new();
    let stream = gpu.stream(NON_BLOCKING);
    let (device, host) = (gpu.memory(4), gpu.pinned(1));
    gpu.launch(c"slow", stream);
    ok!(cuMemsetD32Async(device, 7, 1, stream));
    ok!(cuMemcpyDtoHAsync_v2(host.as_mut_ptr().cast(), device, 4, stream));
    ok!(cuLaunchHostFunc(stream, Some(note), host.as_mut_ptr().cast()));
    ok!(cuMemcpyHtoDAsync_v2(device, host.as_ptr().cast(), 4, stream));
    ok!(cuStreamSynchronize(stream));
    assert_eq!(SEEN.load(Ordering::SeqCst), 7);
    assert_eq!(gpu.read(device, 1), [8]);
}

#[test]
fn a_stream_waits_for_a_value_in_memory() {
    let gpu = Gpu::new();
    let (waiting, writing) = (gpu.stream(NON_BLOCKING), gpu.stream(NON_BLOCKING));
    let flag = gpu.memory(4);
    ok!(cuMemsetD32_v2(flag, 0, 1));
    ok!(cuCtxSynchronize());
    ok!(cuStreamWaitValue32_v2(waiting, flag, 3, CU_STREAM_WAIT_VALUE_GEQ));
    gpu.launch(c"quick", waiting);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(code!(cuStreamQuery(waiting)), CUDA_ERROR_NOT_READY);
    ok!(cuStreamWriteValue32_v2(writing, flag, 4, 0));
    ok!(cuStreamSynchronize(waiting));
    assert_eq!(code!(cuStreamWaitValue32_v2(waiting, 0x10, 3, 0)), CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn a_stream_may_be_destroyed_with_work_in_it() {
    let gpu = Gpu::new();
    let stream = gpu.stream(NON_BLOCKING);
    let device = gpu.memory(4);
    gpu.launch(c"slow", stream);
    ok!(cuMemsetD32Async(device, 6, 1, stream));
    ok!(cuStreamDestroy_v2(stream));
    assert_eq!(code!(cuStreamQuery(stream)), CUDA_ERROR_INVALID_HANDLE);
    ok!(cuCtxSynchronize());
    assert_eq!(gpu.read(device, 1), [6]);
}

#[test]
fn launches_that_no_gpu_could_run_are_refused() {
    let gpu = Gpu::new();
    let (quick, small) = (gpu.kernel(c"quick"), gpu.kernel(c"small"));
    let none = null_mut::<*mut c_void>();
    let shape = |kernel, grid: [u32; 3], block: [u32; 3], shared, params| {
        code!(cuLaunchKernel(
            kernel,
            grid[0],
            grid[1],
            grid[2],
            block[0],
            block[1],
            block[2],
            shared,
            null_mut(),
            params,
            none
        ))
    };
    assert_eq!(shape(quick, [0, 1, 1], [1; 3], 0, none), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(shape(quick, [1, 65536, 1], [1; 3], 0, none), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(shape(quick, [1; 3], [1025, 1, 1], 0, none), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(shape(quick, [1; 3], [32, 32, 2], 0, none), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(shape(quick, [1; 3], [32, 1, 1], 64 << 10, none), CUDA_ERROR_INVALID_VALUE);
    ok!(cuFuncSetAttribute(quick, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 64 << 10));
    assert_eq!(shape(quick, [1; 3], [32, 1, 1], 64 << 10, none), CUDA_SUCCESS);
    assert_eq!(
        shape(small, [1; 3], [32, 1, 1], 0, none),
        CUDA_ERROR_INVALID_VALUE,
        "its parameters are missing"
    );
    let (mut out, mut n) = (0_u64, 0_u32);
    let mut params = [(&raw mut out).cast::<c_void>(), (&raw mut n).cast()];
    assert_eq!(shape(small, [1; 3], [65, 1, 1], 0, params.as_mut_ptr()), CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    assert_eq!(shape(small, [1; 3], [64, 1, 1], 0, params.as_mut_ptr()), CUDA_SUCCESS);
    assert_eq!(shape(0x1000 as CUfunction, [1; 3], [1; 3], 0, none), CUDA_ERROR_INVALID_HANDLE);
    let cooperative =
        |blocks| code!(cuLaunchCooperativeKernel(quick, blocks, 1, 1, 1024, 1, 1, 0, null_mut(), none));
    assert_eq!(cooperative(132 * 2), CUDA_SUCCESS);
    assert_eq!(cooperative(132 * 2 + 1), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
}
