//! Events, which are the clock with which deepres meters.

use std::ffi::{CString, c_void};
use std::time::Duration;

use super::prelude::*;

checks! { "events":
    Documented one_that_was_never_recorded_is_complete;
    Documented the_latest_record_counts;
    Documented times_need_two_completed_events_with_timing;
    Documented times_are_of_the_work_between_the_events;
    Guess times_before_are_negative_and_add_up;
    Guess a_destroyed_event_is_refused;
    Documented an_event_is_recorded_in_its_own_context_and_awaited_in_any;
    Documented destroying_one_that_is_pending_is_allowed;
    Guess an_event_is_asked_from_a_thread_without_its_context;
    Guess sets_and_copies_within_the_device_wait_for_the_sms_and_copies_to_the_device_do_not;
    Guess an_event_between_two_kernels_ends_the_overlap_of_a_dependent_launch;
}

fn one_that_was_never_recorded_is_complete(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let event = gpu.event(0)?;
    facts.code("asking it", cu!(cuEventQuery(event)), CUDA_SUCCESS);
    facts.code("waiting for it", cu!(cuEventSynchronize(event)), CUDA_SUCCESS);
    facts.code("a stream that waits for it", cu!(cuStreamWaitEvent(null_mut(), event, 0)), CUDA_SUCCESS);
    facts.code("flags that are none", cu!(cuEventCreate(&mut null_mut(), 0x80)), CUDA_ERROR_INVALID_VALUE);
    Ok(())
}

fn the_latest_record_counts(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [blocked_calls, free]) = Gpu::with_streams()?;
    let event = gpu.event(0)?;
    let held = gpu.hold(blocked_calls)?;
    must!(cuEventRecord(event, blocked_calls));
    facts.code("recorded behind work", cu!(cuEventQuery(event)), CUDA_ERROR_NOT_READY);
    must!(cuEventRecord(event, free));
    must!(cuStreamSynchronize(free));
    facts.code("recorded again in an idle stream", cu!(cuEventQuery(event)), CUDA_SUCCESS);
    held.release()?;
    must!(cuCtxSynchronize());
    Ok(())
}

fn times_need_two_completed_events_with_timing(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [stream]) = Gpu::with_streams()?;
    let (start, end, fresh) = (gpu.event(0)?, gpu.event(0)?, gpu.event(0)?);
    let untimed = gpu.event(CU_EVENT_DISABLE_TIMING)?;
    let mut ms = 0.0;
    must!(cuEventRecord(start, stream));
    let held = gpu.hold(stream)?;
    must!(cuEventRecord(end, stream));
    must!(cuEventRecord(untimed, stream));
    facts.code("one is pending", cu!(cuEventElapsedTime(&mut ms, start, end)), CUDA_ERROR_NOT_READY);
    held.release()?;
    must!(cuStreamSynchronize(stream));
    facts.code("both are complete", cu!(cuEventElapsedTime(&mut ms, start, end)), CUDA_SUCCESS);
    let code = cu!(cuEventElapsedTime(&mut ms, start, untimed));
    facts.code("one has no time", code, CUDA_ERROR_INVALID_HANDLE);
    let code = cu!(cuEventElapsedTime(&mut ms, fresh, end));
    facts.code("one was never recorded", code, CUDA_ERROR_INVALID_HANDLE);
    Ok(())
}

const NS_PER_MS: f64 = 1e6;

fn elapsed_ns(from: CUevent, to: CUevent) -> Result<f64, Stop> {
    let mut ms = 0.0;
    must!(cuEventElapsedTime(&mut ms, from, to));
    Ok(f64::from(ms) * NS_PER_MS)
}

fn times_are_of_the_work_between_the_events(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [stream]) = Gpu::with_streams()?;
    let (start, end) = (gpu.event(0)?, gpu.event(0)?);
    must!(cuEventRecord(start, stream));
    gpu.spin(stream, SPIN_NS)?;
    must!(cuEventRecord(end, stream));
    must!(cuStreamSynchronize(stream));
    let took_ns = elapsed_ns(start, end)?;
    let spin_ns = SPIN_NS as f64;
    // Other processes can have the GPU in between, so there is no upper bound.
    facts.has("around a kernel of a known length", took_ns, "at least that long", took_ns >= 0.99 * spin_ns);
    must!(cuEventRecord(start, stream));
    must!(cuEventRecord(end, stream));
    must!(cuStreamSynchronize(stream));
    let nothing_ns = elapsed_ns(start, end)?;
    facts.has("around nothing", nothing_ns, "not negative", nothing_ns >= 0.0);
    Ok(())
}

fn times_before_are_negative_and_add_up(facts: &mut Facts) -> Result<(), Stop> {
    /// Greatest error of three times, ns. Times are multiples of half a microsecond, in single
    /// precision.
    const ROUNDING_NS: f64 = 5_000.0;
    let (gpu, [stream]) = Gpu::with_streams()?;
    let (one, two, three) = (gpu.event(0)?, gpu.event(0)?, gpu.event(0)?);
    must!(cuEventRecord(one, stream));
    gpu.spin(stream, SPIN_NS)?;
    must!(cuEventRecord(two, stream));
    gpu.spin(stream, SPIN_NS)?;
    must!(cuEventRecord(three, stream));
    must!(cuStreamSynchronize(stream));
    let (back_ns, forth_ns) = (elapsed_ns(two, one)?, elapsed_ns(one, two)?);
    facts.has(
        "backwards",
        (back_ns, forth_ns),
        "the negative of forwards",
        (back_ns + forth_ns).abs() < ROUNDING_NS,
    );
    let (parts_ns, whole_ns) = (forth_ns + elapsed_ns(two, three)?, elapsed_ns(one, three)?);
    facts.has(
        "parts",
        (parts_ns, whole_ns),
        "as long as the whole",
        (parts_ns - whole_ns).abs() < ROUNDING_NS,
    );
    Ok(())
}

fn a_destroyed_event_is_refused(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let event = gpu.event(0)?;
    must!(cuEventDestroy_v2(event));
    facts.code("asking it", cu!(cuEventQuery(event)), CUDA_ERROR_INVALID_HANDLE);
    facts.code("recording it", cu!(cuEventRecord(event, null_mut())), CUDA_ERROR_INVALID_HANDLE);
    Ok(())
}

fn an_event_is_recorded_in_its_own_context_and_awaited_in_any(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let event = gpu.event(0)?;
    must!(cuEventRecord(event, null_mut()));
    made!(cuCtxCreate_v2(0, 0));
    let foreign = gpu.stream(CU_STREAM_NON_BLOCKING)?;
    let code = cu!(cuEventRecord(event, foreign));
    facts.code("recorded on another context's stream", code, CUDA_ERROR_INVALID_HANDLE);
    let code = cu!(cuStreamWaitEvent(foreign, event, 0));
    facts.code("awaited by another context's stream", code, CUDA_SUCCESS);
    facts.code("asked while another context is current", cu!(cuEventQuery(event)), CUDA_SUCCESS);
    Ok(())
}

fn destroying_one_that_is_pending_is_allowed(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [first, second]) = Gpu::with_streams()?;
    let event = gpu.event(0)?;
    let held = gpu.hold(first)?;
    must!(cuEventRecord(event, first));
    must!(cuStreamWaitEvent(second, event, 0));
    facts.code("destroying", cu!(cuEventDestroy_v2(event)), CUDA_SUCCESS);
    facts.code("the waiting stream goes on waiting", cu!(cuStreamQuery(second)), CUDA_ERROR_NOT_READY);
    held.release()?;
    facts.code("until it is through", cu!(cuStreamSynchronize(second)), CUDA_SUCCESS);
    Ok(())
}

/// The meter thread of deepres queries events while a context of its own choice is current.
fn an_event_is_asked_from_a_thread_without_its_context(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let (start, end) = (gpu.event(0)?, gpu.event(0)?);
    must!(cuEventRecord(start, null_mut()));
    must!(cuEventRecord(end, null_mut()));
    must!(cuCtxSynchronize());
    let (start, end) = (start as usize, end as usize);
    let asked = std::thread::spawn(move || {
        let mut ms = 0.0;
        Ok((
            cu!(cuEventQuery(end as CUevent)),
            cu!(cuEventElapsedTime(&mut ms, start as CUevent, end as CUevent)),
        ))
    });
    let (query, elapsed) = asked.join().unwrap_or(Ok((CUDA_ERROR_UNKNOWN, CUDA_ERROR_UNKNOWN)))?;
    facts.code("asking without any context", query, CUDA_SUCCESS);
    facts.code("its time without any context", elapsed, CUDA_SUCCESS);
    Ok(())
}

/// The gate of deepres makes sets and copies within the device wait, as it makes kernels wait. The
/// gate does not make copies to the device wait.
fn sets_and_copies_within_the_device_wait_for_the_sms_and_copies_to_the_device_do_not(
    facts: &mut Facts,
) -> Result<(), Stop> {
    const SET_BYTES: usize = 1 << 30;
    const COPY_BYTES: usize = 64 << 20;
    const THREADS: u32 = 1024;
    /// Time until the kernel surely has all SMs.
    const BEGUN: Duration = Duration::from_millis(2);
    /// Work that shares the SMs with a kernel takes at least this many times as long.
    const SHARED: f64 = 1.5;
    let (gpu, [busy, stream]) = Gpu::with_streams()?;
    let (start, end) = (gpu.event(0)?, gpu.event(0)?);
    let memory = gpu.memory(SET_BYTES)?;
    let host = gpu.pinned(COPY_BYTES / size_of::<u32>())?.as_ptr().cast::<c_void>();
    let kernel = gpu.kernel(c"spin")?;
    let (mut processors, mut blocks, mut ns) = (0, 0, SPIN_NS);
    must!(cuDeviceGetAttribute(&mut processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    must!(cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, kernel, THREADS as i32, 0));
    let grid = (processors * blocks) as u32;
    let mut parameters = [(&raw mut ns).cast::<c_void>()];
    let parameters = parameters.as_mut_ptr();
    let times = |work: &dyn Fn() -> Result<CUresult, Stop>| {
        let mut took_ns = [0.0; 2];
        for (is_beside, took_ns) in [false, true].into_iter().zip(&mut took_ns) {
            // The stream goes on once everything is queued, so the time has no pause of the host.
            let held = gpu.hold(stream)?;
            must!(cuEventRecord(start, stream));
            let code = work()?;
            must!(cuEventRecord(end, stream));
            if is_beside {
                must!(cuLaunchKernel(kernel, grid, 1, 1, THREADS, 1, 1, 0, busy, parameters, null_mut()));
                std::thread::sleep(BEGUN);
            }
            held.release()?;
            must!(cuCtxSynchronize());
            if code != CUDA_SUCCESS {
                return Err(Stop::Failed("the set or copy", code));
            }
            *took_ns = elapsed_ns(start, end)?;
        }
        Ok::<_, Stop>(took_ns)
    };
    type Work<'a> = (&'a str, bool, &'a dyn Fn() -> Result<CUresult, Stop>);
    let works: [Work<'_>; 3] = [
        ("a set", true, &|| Ok(cu!(cuMemsetD8Async(memory, 0, SET_BYTES, stream)))),
        ("a copy within", true, &|| {
            let source = memory + (SET_BYTES / 2) as u64;
            Ok(cu!(cuMemcpyDtoDAsync_v2(memory, source, COPY_BYTES, stream)))
        }),
        ("a copy to the device", false, &|| Ok(cu!(cuMemcpyHtoDAsync_v2(memory, host, COPY_BYTES, stream)))),
    ];
    for (what, is_shared, work) in works {
        let [alone_ns, beside_ns] = times(work)?;
        let property = if is_shared { "longer beside a kernel on all SMs" } else { "as long" };
        let holds = (beside_ns >= SHARED * alone_ns) == is_shared;
        facts.has(what, (alone_ns, beside_ns), property, holds);
    }
    Ok(())
}

/// Returns the program with a kernel `early` in place of `spin`. This kernel lets dependent
/// launches begin at once.
fn early() -> CString {
    let text = PTX.to_string_lossy().replace(".version 7.0", ".version 7.8").replace("sm_70", "sm_90");
    let text = text.replace("entry spin", "entry early");
    let begun = "  griddepcontrol.launch_dependents;\n  ld.param.u64 t0";
    CString::new(text.replace("  ld.param.u64 t0", begun)).unwrap_or_default()
}

/// deepres relies on this behaviour, and puts no marker between a dependent launch and the launch
/// before it.
fn an_event_between_two_kernels_ends_the_overlap_of_a_dependent_launch(
    facts: &mut Facts,
) -> Result<(), Stop> {
    let (gpu, [stream]) = Gpu::with_streams()?;
    if made!(cuDeviceGetAttribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0)) < 9 {
        return Err(Stop::Absent("dependent launches need compute capability 9.0".to_owned()));
    }
    let program = early();
    let module = made!(cuModuleLoadData(program.as_ptr().cast()));
    let kernel = made!(cuModuleGetFunction(module, c"early".as_ptr()));
    let mut attribute = zeroed!(CUlaunchAttribute);
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    let mut ns = SPIN_NS;
    let mut parameters = [(&raw mut ns).cast::<c_void>()];
    let mut launch = |attributes: u32| {
        let config =
            CUlaunchConfig { hStream: stream, attrs: &mut attribute, numAttrs: attributes, ..ONE_THREAD };
        must!(cuLaunchKernelEx(&config, kernel, parameters.as_mut_ptr(), null_mut()));
        Ok::<_, Stop>(())
    };
    let [start, between, end] = [gpu.event(0)?, gpu.event(0)?, gpu.event(0)?];
    launch(0)?;
    must!(cuStreamSynchronize(stream));
    must!(cuEventRecord(start, stream));
    launch(0)?;
    must!(cuEventRecord(between, stream));
    launch(1)?;
    must!(cuEventRecord(end, stream));
    must!(cuStreamSynchronize(stream));
    let (took_ns, both_ns) = (elapsed_ns(start, end)?, 2.0 * SPIN_NS as f64);
    facts.has("both kernels", took_ns, "one after the other", took_ns >= 0.99 * both_ns);
    Ok(())
}
