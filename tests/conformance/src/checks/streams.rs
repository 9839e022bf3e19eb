//! Order in streams and between streams: the work for which other work waits.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::prelude::*;

checks! { "streams":
    Documented work_is_done_in_order_and_can_be_asked_about;
    Documented the_legacy_stream_and_blocking_streams_wait_for_each_other;
    Documented a_wait_of_the_host_ties_no_blocking_streams_together;
    Documented per_thread_streams_are_each_threads_own;
    Documented a_stream_waits_for_an_event_of_another;
    Documented a_host_function_runs_after_earlier_work_and_holds_up_later_work;
    Documented a_stream_may_be_destroyed_with_work_in_it;
    Guess a_destroyed_stream_is_refused;
    Documented pageable_memory_may_change_once_the_copy_has_returned;
    Documented page_locked_memory_is_read_when_the_copy_runs;
    Documented streams_tell_their_flags_and_context;
    Guess waiting_on_addresses_that_are_none;
}

fn work_is_done_in_order_and_can_be_asked_about(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [stream]) = Gpu::with_streams()?;
    let held = gpu.hold(stream)?;
    must!(cuLaunchKernel(gpu.kernel(c"nothing")?, 1, 1, 1, 1, 1, 1, 0, stream, null_mut(), null_mut()));
    facts.code("before it is through", cu!(cuStreamQuery(stream)), CUDA_ERROR_NOT_READY);
    held.release()?;
    must!(cuStreamSynchronize(stream));
    facts.code("afterwards", cu!(cuStreamQuery(stream)), CUDA_SUCCESS);
    Ok(())
}

fn the_legacy_stream_and_blocking_streams_wait_for_each_other(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let (blocking, free) = (gpu.stream(0)?, gpu.stream(CU_STREAM_NON_BLOCKING)?);
    let (legacy, aside, after) = (gpu.event(0)?, gpu.event(0)?, gpu.event(0)?);
    let held = gpu.hold(blocking)?;
    must!(cuEventRecord(legacy, null_mut()));
    must!(cuEventRecord(aside, free));
    must!(cuEventRecord(after, CU_STREAM_PER_THREAD));
    must!(cuEventSynchronize(aside));
    facts.code("legacy behind a blocking stream", cu!(cuEventQuery(legacy)), CUDA_ERROR_NOT_READY);
    facts.code("a per-thread stream blocks too", cu!(cuEventQuery(after)), CUDA_ERROR_NOT_READY);
    held.release()?;
    must!(cuCtxSynchronize());
    facts.code("in the end", cu!(cuEventQuery(legacy)), CUDA_SUCCESS);
    let held = gpu.hold(null_mut())?;
    must!(cuEventRecord(after, blocking));
    must!(cuEventRecord(aside, free));
    must!(cuEventSynchronize(aside));
    facts.code("a blocking stream behind legacy", cu!(cuEventQuery(after)), CUDA_ERROR_NOT_READY);
    held.release()?;
    must!(cuCtxSynchronize());
    Ok(())
}

/// With deepres in between, the check fails if deepres puts a marker on the legacy stream while the
/// thread waits for another stream.
fn a_wait_of_the_host_ties_no_blocking_streams_together(facts: &mut Facts) -> Result<(), Stop> {
    const ROUNDS: u32 = 4;
    const LAUNCHES: u32 = 100;
    /// The longest time until an idle stream has run a short kernel.
    const LIMIT: Duration = Duration::from_secs(2);
    const PAUSE: Duration = Duration::from_millis(2);
    let gpu = Gpu::new()?;
    let (held_up, other, free) = (gpu.stream(0)?, gpu.stream(0)?, gpu.stream(CU_STREAM_NON_BLOCKING)?);
    let mut went_on = 0;
    for _ in 0..ROUNDS {
        let held = gpu.holder()?;
        for _ in 0..LAUNCHES {
            gpu.nothing(null_mut())?;
        }
        held.block(held_up)?;
        must!(cuStreamSynchronize(free));
        gpu.nothing(other)?;
        let until = Instant::now() + LIMIT;
        let is_through = || Ok::<_, Stop>(cu!(cuStreamQuery(other)) == CUDA_SUCCESS);
        while !is_through()? && Instant::now() < until {
            std::thread::sleep(PAUSE);
        }
        went_on += u32::from(is_through()?);
        held.release()?;
        must!(cuCtxSynchronize());
        // Meanwhile the meter of deepres learns the kernel.
        std::thread::sleep(5 * PAUSE);
    }
    facts.is("rounds in which the other stream went on", went_on, ROUNDS);
    Ok(())
}

fn per_thread_streams_are_each_threads_own(facts: &mut Facts) -> Result<(), Stop> {
    fn id() -> Result<u64, Stop> {
        let mut id = 0;
        must!(cuStreamGetId_ptsz(null_mut(), &mut id));
        Ok(id)
    }
    let gpu = Gpu::new()?;
    let (mut legacy, mut named, mut by_handle) = (0, 0, 0);
    must!(cuStreamGetId(null_mut(), &mut legacy));
    must!(cuStreamGetId(CU_STREAM_LEGACY, &mut named));
    must!(cuStreamGetId(CU_STREAM_PER_THREAD, &mut by_handle));
    facts.is("null is legacy to a legacy function", legacy, named);
    facts.is("and per-thread to a per-thread one", id()?, by_handle);
    let context = gpu.context as usize;
    let other = std::thread::spawn(move || {
        must!(cuCtxSetCurrent(context as CUcontext));
        id()
    });
    let other = other.join().unwrap_or(Ok(by_handle))?;
    facts.has("another thread's", (by_handle, other), "two different ones", by_handle != other);
    Ok(())
}

fn a_stream_waits_for_an_event_of_another(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [first, second]) = Gpu::with_streams()?;
    let event = gpu.event(CU_EVENT_DISABLE_TIMING)?;
    let held = gpu.hold(first)?;
    must!(cuEventRecord(event, first));
    must!(cuStreamWaitEvent(second, event, 0));
    must!(cuEventRecord(event, second));
    facts.code("the second waits", cu!(cuStreamQuery(second)), CUDA_ERROR_NOT_READY);
    held.release()?;
    must!(cuStreamSynchronize(second));
    facts.code("and so it knows that the first is through", cu!(cuStreamQuery(first)), CUDA_SUCCESS);
    Ok(())
}

static SEEN: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn note(data: *mut c_void) {
    let word = data.cast::<u32>();
    // SAFETY: the check passes a word that lives until its stream has finished.
    unsafe {
        SEEN.store(word.read_volatile(), Ordering::SeqCst);
        word.write_volatile(8);
    }
}

fn a_host_function_runs_after_earlier_work_and_holds_up_later_work(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [stream]) = Gpu::with_streams()?;
    let (device, host) = (gpu.memory(4)?, gpu.pinned(1)?);
    must!(cuMemsetD32Async(device, 7, 1, stream));
    must!(cuMemcpyDtoHAsync_v2(host.as_mut_ptr().cast(), device, 4, stream));
    must!(cuLaunchHostFunc(stream, Some(note), host.as_mut_ptr().cast()));
    must!(cuMemcpyHtoDAsync_v2(device, host.as_ptr().cast(), 4, stream));
    must!(cuStreamSynchronize(stream));
    facts.is("the value that it saw", SEEN.load(Ordering::SeqCst), 7);
    facts.is("the later copy gives", gpu.read(device, 1)?, vec![8]);
    Ok(())
}

fn a_stream_may_be_destroyed_with_work_in_it(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [stream]) = Gpu::with_streams()?;
    let device = gpu.memory(4)?;
    must!(cuMemsetD32_v2(device, 0, 1));
    let held = gpu.hold(stream)?;
    must!(cuMemsetD32Async(device, 6, 1, stream));
    facts.code("destroying", cu!(cuStreamDestroy_v2(stream)), CUDA_SUCCESS);
    held.release()?;
    must!(cuCtxSynchronize());
    facts.is("its work was done", gpu.read(device, 1)?, vec![6]);
    Ok(())
}

fn a_destroyed_stream_is_refused(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [stream]) = Gpu::with_streams()?;
    must!(cuStreamDestroy_v2(stream));
    facts.code("asking it", cu!(cuStreamQuery(stream)), CUDA_ERROR_INVALID_HANDLE);
    facts.code("launching on it", gpu.nothing(stream)?, CUDA_ERROR_INVALID_HANDLE);
    facts.code("destroying it again", cu!(cuStreamDestroy_v2(stream)), CUDA_ERROR_INVALID_HANDLE);
    Ok(())
}

fn pageable_memory_may_change_once_the_copy_has_returned(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [stream]) = Gpu::with_streams()?;
    let device = gpu.memory(16)?;
    let mut host = vec![3_u32; 4];
    must!(cuMemcpyHtoDAsync_v2(device, host.as_ptr().cast(), 16, stream));
    host.fill(4);
    must!(cuStreamSynchronize(stream));
    facts.is("the values that arrived", gpu.read(device, 4)?, vec![3; 4]);
    must!(cuMemcpyDtoHAsync_v2(host.as_mut_ptr().cast(), device, 16, stream));
    facts.is("a copy to it has happened when it returns", host, vec![3; 4]);
    Ok(())
}

fn page_locked_memory_is_read_when_the_copy_runs(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [stream]) = Gpu::with_streams()?;
    let (host, device) = (gpu.pinned(4)?, gpu.memory(16)?);
    host.fill(1);
    let held = gpu.hold(stream)?;
    must!(cuMemcpyHtoDAsync_v2(device, host.as_ptr().cast(), 16, stream));
    host.fill(2);
    held.release()?;
    must!(cuStreamSynchronize(stream));
    facts.is("the values that arrived", gpu.read(device, 4)?, vec![2; 4]);
    Ok(())
}

fn streams_tell_their_flags_and_context(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let (mut flags, mut context, mut stream) = (9, null_mut(), null_mut());
    must!(cuStreamGetFlags(gpu.stream(CU_STREAM_NON_BLOCKING)?, &mut flags));
    facts.is("flags", flags, CU_STREAM_NON_BLOCKING);
    must!(cuStreamGetFlags(null_mut(), &mut flags));
    facts.is("the default stream's", flags, 0);
    must!(cuStreamGetCtx(null_mut(), &mut context));
    facts.is("its context is the current one", context, gpu.context);
    let named = gpu.stream(0)?;
    must!(cuCtxCreate_v2(&mut stream, 0, 0));
    must!(cuStreamGetCtx(named, &mut context));
    facts.is("a stream keeps its own", context, gpu.context);
    facts.code("flags that are none", cu!(cuStreamCreate(&mut stream, 0x80)), CUDA_ERROR_INVALID_VALUE);
    Ok(())
}

fn waiting_on_addresses_that_are_none(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [stream]) = Gpu::with_streams()?;
    let address = gpu.memory(64)?;
    facts.code("unknown", cu!(cuStreamWaitValue32_v2(stream, 0x10, 1, 0)), CUDA_ERROR_INVALID_VALUE);
    let code = cu!(cuStreamWaitValue32_v2(stream, address + 2, 1, 0));
    facts.code("not aligned", code, CUDA_ERROR_INVALID_VALUE);
    facts.code("writing there", cu!(cuStreamWriteValue32_v2(stream, 0x10, 1, 0)), CUDA_ERROR_INVALID_VALUE);
    Ok(())
}
