//! Stream capture: the calls that a capture collects, the calls that invalidate it, and the queries
//! that are allowed during a capture.

use super::prelude::*;

checks! { "captures":
    Documented captured_work_runs_when_the_graph_is_launched;
    Documented the_legacy_stream_is_never_captured;
    Documented the_legacy_stream_is_out_of_bounds_meanwhile;
    Documented asking_about_captured_work_breaks_the_capture;
    Guess modes_that_allow_questions_about_other_events;
    Guess calls_that_are_unsafe_on_the_own_thread;
    Documented captures_do_not_mix;
    Documented branches_have_to_come_back;
    Documented a_capture_ends_where_it_began;
    Guess a_relaxed_thread_may_ask_anything_else;
    Guess an_event_is_recorded_beside_a_capture;
    Guess destroying_captured_objects;
}

const NON_BLOCKING: u32 = CU_STREAM_NON_BLOCKING;
const GLOBAL: u32 = CU_STREAM_CAPTURE_MODE_GLOBAL;
const THREAD_LOCAL: u32 = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: u32 = CU_STREAM_CAPTURE_MODE_RELAXED;

fn begin(stream: CUstream, mode: u32) -> Result<(), Stop> {
    must!(cuStreamBeginCapture_v2(stream, mode));
    Ok(())
}

fn end(stream: CUstream) -> Result<(CUresult, CUgraph), Stop> {
    let mut graph = null_mut();
    let code = cu!(cuStreamEndCapture(stream, &mut graph));
    Ok((code, graph))
}

fn status(stream: CUstream) -> Result<u32, Stop> {
    let mut status = u32::MAX;
    must!(cuStreamIsCapturing(stream, &mut status));
    Ok(status)
}

fn captured_work_runs_when_the_graph_is_launched(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [stream]) = Gpu::with_streams()?;
    let (device, host) = (gpu.memory(4)?, gpu.pinned(1)?);
    must!(cuMemsetD32_v2(device, 0, 1));
    begin(stream, GLOBAL)?;
    facts.is("its status", status(stream)?, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    must!(cuMemsetD32Async(device, 3, 1, stream));
    facts.code("a launch into it", gpu.nothing(stream)?, CUDA_SUCCESS);
    must!(cuMemcpyDtoHAsync_v2(host.as_mut_ptr().cast(), device, 4, stream));
    let (code, graph) = end(stream)?;
    facts.code("ending", code, CUDA_SUCCESS);
    facts.is("the status then", status(stream)?, CU_STREAM_CAPTURE_STATUS_NONE);
    let (mut nodes, mut exec) = (0, null_mut());
    must!(cuGraphGetNodes(graph, null_mut(), &mut nodes));
    facts.is("nodes", nodes, 3);
    must!(cuCtxSynchronize());
    facts.is("nothing has run", (gpu.read(device, 1)?, host[0]), (vec![0], 0));
    must!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    must!(cuGraphLaunch(exec, stream));
    must!(cuStreamSynchronize(stream));
    facts.is("now it has", (gpu.read(device, 1)?, host[0]), (vec![3], 3));
    Ok(())
}

fn the_legacy_stream_is_never_captured(facts: &mut Facts) -> Result<(), Stop> {
    let (_gpu, [stream]) = Gpu::with_streams()?;
    for (what, legacy) in [("null", null_mut()), ("its handle", CU_STREAM_LEGACY)] {
        facts.code(what, cu!(cuStreamBeginCapture_v2(legacy, GLOBAL)), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    begin(stream, GLOBAL)?;
    facts.code("one stream twice", cu!(cuStreamBeginCapture_v2(stream, GLOBAL)), CUDA_ERROR_ILLEGAL_STATE);
    facts.code("the first is not broken", end(stream)?.0, CUDA_SUCCESS);
    facts.code("ending what is not captured", end(stream)?.0, CUDA_ERROR_ILLEGAL_STATE);
    begin(CU_STREAM_PER_THREAD, GLOBAL)?;
    facts.code("a per-thread stream", end(CU_STREAM_PER_THREAD)?.0, CUDA_SUCCESS);
    Ok(())
}

fn the_legacy_stream_is_out_of_bounds_meanwhile(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let (blocking, free) = (gpu.stream(0)?, gpu.stream(NON_BLOCKING)?);
    begin(blocking, RELAXED)?;
    let mut answer = 0;
    let asked = cu!(cuStreamIsCapturing(null_mut(), &mut answer));
    facts.code("whether it is captured", asked, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    facts.is("asking breaks nothing", status(blocking)?, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    facts.code("a launch on it", gpu.nothing(null_mut())?, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    facts.is("breaks the capture", status(blocking)?, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    facts.code("a launch into that", gpu.nothing(blocking)?, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    facts.code("its end", end(blocking)?.0, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(free, RELAXED)?;
    facts.code("legacy beside a non-blocking one", gpu.nothing(null_mut())?, CUDA_SUCCESS);
    facts.code("ending the capture, which lives", end(free)?.0, CUDA_SUCCESS);
    Ok(())
}

fn asking_about_captured_work_breaks_the_capture(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [stream]) = Gpu::with_streams()?;
    let event = gpu.event(0)?;
    begin(stream, RELAXED)?;
    let code = cu!(cuStreamSynchronize(stream));
    facts.code("waiting for the stream", code, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    facts.code("ending that", end(stream)?.0, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(stream, RELAXED)?;
    facts.code("asking the stream", cu!(cuStreamQuery(stream)), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    facts.code("ending that", end(stream)?.0, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(stream, RELAXED)?;
    must!(cuEventRecord(event, stream));
    facts.code("asking an event recorded in it", cu!(cuEventQuery(event)), CUDA_ERROR_CAPTURED_EVENT);
    facts.code("ending that", end(stream)?.0, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(stream, RELAXED)?;
    facts.code("waiting for the context", cu!(cuCtxSynchronize()), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    facts.code("ending that", end(stream)?.0, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    Ok(())
}

/// Returns the answer of `cuEventQuery` for an event outside the capture. The call comes from
/// another thread in that mode.
fn ask_elsewhere(context: CUcontext, event: CUevent, mode: u32) -> Result<CUresult, Stop> {
    let (context, event) = (context as usize, event as usize);
    let thread = std::thread::spawn(move || {
        must!(cuCtxSetCurrent(context as CUcontext));
        let mut exchanged = mode;
        must!(cuThreadExchangeStreamCaptureMode(&mut exchanged));
        if exchanged != GLOBAL {
            return Err(Stop::Failed(
                "a new thread's mode is not global: cuThreadExchangeStreamCaptureMode",
                exchanged,
            ));
        }
        Ok(cu!(cuEventQuery(event as CUevent)))
    });
    thread.join().unwrap_or(Ok(CUDA_ERROR_UNKNOWN))
}

fn modes_that_allow_questions_about_other_events(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [stream]) = Gpu::with_streams()?;
    let event = gpu.event(0)?;
    let mode = |mode: u32| ["global", "thread-local", "relaxed"][mode as usize];
    for (capture, thread, expected) in [
        (GLOBAL, GLOBAL, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
        (GLOBAL, THREAD_LOCAL, CUDA_SUCCESS),
        (GLOBAL, RELAXED, CUDA_SUCCESS),
        (THREAD_LOCAL, GLOBAL, CUDA_SUCCESS),
        (THREAD_LOCAL, RELAXED, CUDA_SUCCESS),
        (RELAXED, GLOBAL, CUDA_SUCCESS),
    ] {
        begin(stream, capture)?;
        let asked = ask_elsewhere(gpu.context, event, thread)?;
        let what = format!("a {} thread during a {} capture elsewhere", mode(thread), mode(capture));
        facts.code(&what, asked, expected);
        let ended =
            if expected == CUDA_SUCCESS { CUDA_SUCCESS } else { CUDA_ERROR_STREAM_CAPTURE_INVALIDATED };
        facts.code(&format!("{what}: the capture's end"), end(stream)?.0, ended);
    }
    Ok(())
}

fn calls_that_are_unsafe_on_the_own_thread(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [stream]) = Gpu::with_streams()?;
    let (event, other) = (gpu.event(0)?, gpu.stream(NON_BLOCKING)?);
    let kept = gpu.memory(64)?;
    let mut free = 0;
    let mut total = 0;
    let mut fresh = 0;
    let mut word = 0_u32;
    type Ask<'a> = (&'static str, bool, Box<dyn FnMut() -> Result<CUresult, Stop> + 'a>);
    let mut kind = 0_u32;
    let mut asks_kind = || {
        let (mut attribute, mut place) = (CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (&raw mut kind).cast());
        Ok(cu!(cuPointerGetAttributes(1, &mut attribute, &mut place, kept)))
    };
    let asks: [Ask<'_>; 7] = [
        ("cuMemAlloc", true, Box::new(|| Ok(cu!(cuMemAlloc_v2(&mut fresh, 64))))),
        ("cuEventQuery of another event", true, Box::new(|| Ok(cu!(cuEventQuery(event))))),
        ("cuStreamQuery of another stream", true, Box::new(|| Ok(cu!(cuStreamQuery(other))))),
        ("cuMemcpyDtoH", true, Box::new(|| Ok(cu!(cuMemcpyDtoH_v2((&raw mut word).cast(), kept, 4))))),
        ("cuMemGetInfo", false, Box::new(|| Ok(cu!(cuMemGetInfo_v2(&mut free, &mut total))))),
        ("cuPointerGetAttributes", false, Box::new(&mut asks_kind)),
        ("cuStreamGetFlags of another stream", false, Box::new(|| Ok(cu!(cuStreamGetFlags(other, &mut 0))))),
    ];
    for (what, is_unsafe, mut ask) in asks {
        begin(stream, GLOBAL)?;
        let (code, ended) = if is_unsafe {
            (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        } else {
            (CUDA_SUCCESS, CUDA_SUCCESS)
        };
        facts.code(what, ask()?, code);
        facts.code(&format!("{what}: the capture's end"), end(stream)?.0, ended);
    }
    for (mode, code, ended) in [
        (THREAD_LOCAL, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
        (RELAXED, CUDA_SUCCESS, CUDA_SUCCESS),
    ] {
        begin(stream, mode)?;
        facts.code(&format!("cuMemAlloc in a capture of mode {mode}"), cu!(cuMemAlloc_v2(&mut 0, 64)), code);
        facts.code("its end", end(stream)?.0, ended);
    }
    Ok(())
}

fn captures_do_not_mix(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [one, other]) = Gpu::with_streams()?;
    let (inside, outside) = (gpu.event(0)?, gpu.event(0)?);
    must!(cuEventRecord(outside, other));
    begin(one, RELAXED)?;
    let isolated = cu!(cuStreamWaitEvent(one, outside, 0));
    facts.code("waiting for work outside", isolated, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    facts.code("ending that", end(one)?.0, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(one, RELAXED)?;
    begin(other, RELAXED)?;
    must!(cuEventRecord(inside, one));
    facts.code("joining two", cu!(cuStreamWaitEvent(other, inside, 0)), CUDA_ERROR_STREAM_CAPTURE_MERGE);
    facts.code("ending the one", end(one)?.0, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    facts.code("ending the other", end(other)?.0, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    Ok(())
}

fn fork(gpu: &Gpu, origin: CUstream, branch: CUstream) -> Result<(), Stop> {
    let fork = gpu.event(0)?;
    must!(cuEventRecord(fork, origin));
    must!(cuStreamWaitEvent(branch, fork, 0));
    Ok(())
}

fn branches_have_to_come_back(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [origin, branch]) = Gpu::with_streams()?;
    let join = gpu.event(0)?;
    begin(origin, GLOBAL)?;
    fork(&gpu, origin, branch)?;
    facts.is("a branch is captured too", status(branch)?, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    facts.code("a launch into it", gpu.nothing(branch)?, CUDA_SUCCESS);
    must!(cuEventRecord(join, branch));
    must!(cuStreamWaitEvent(origin, join, 0));
    facts.code("joined", end(origin)?.0, CUDA_SUCCESS);
    facts.is("the branch is free again", status(branch)?, CU_STREAM_CAPTURE_STATUS_NONE);
    begin(origin, GLOBAL)?;
    fork(&gpu, origin, branch)?;
    facts.code("a launch into the branch", gpu.nothing(branch)?, CUDA_SUCCESS);
    let (code, graph) = end(origin)?;
    facts.code("not joined", code, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    facts.is("its graph", graph, null_mut());
    facts.is("the branch is free again", status(branch)?, CU_STREAM_CAPTURE_STATUS_NONE);
    Ok(())
}

fn a_capture_ends_where_it_began(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [origin, branch]) = Gpu::with_streams()?;
    begin(origin, GLOBAL)?;
    fork(&gpu, origin, branch)?;
    facts.code("in its branch", end(branch)?.0, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    facts.code("in its origin then", end(origin)?.0, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(origin, THREAD_LOCAL)?;
    let stream = origin as usize;
    let elsewhere = std::thread::spawn(move || Ok::<_, Stop>(end(stream as CUstream)?.0)).join();
    let elsewhere = elsewhere.unwrap_or(Ok(CUDA_ERROR_UNKNOWN))?;
    facts.code("a thread-local one on another thread", elsewhere, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    Ok(())
}

/// Makes the calls that deepres itself makes on an application thread during a capture, with the
/// thread's mode relaxed.
fn a_relaxed_thread_may_ask_anything_else(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [stream, other]) = Gpu::with_streams()?;
    let (event, end_event) = (gpu.event(0)?, gpu.event(0)?);
    must!(cuEventRecord(event, other));
    must!(cuEventRecord(end_event, other));
    must!(cuStreamSynchronize(other));
    begin(stream, GLOBAL)?;
    let mut mode = RELAXED;
    must!(cuThreadExchangeStreamCaptureMode(&mut mode));
    let (mut context, mut device, mut fresh, mut ms) = (null_mut(), 0, null_mut(), 0.0);
    for (what, code) in [
        ("cuCtxGetCurrent", cu!(cuCtxGetCurrent(&mut context))),
        ("cuCtxGetDevice", cu!(cuCtxGetDevice(&mut device))),
        ("cuStreamGetCtx of what is captured", cu!(cuStreamGetCtx(stream, &mut context))),
        ("cuEventCreate", cu!(cuEventCreate(&mut fresh, 0))),
        ("cuEventQuery of another event", cu!(cuEventQuery(event))),
        ("cuEventElapsedTime of others", cu!(cuEventElapsedTime(&mut ms, event, end_event))),
        ("cuEventRecord elsewhere", cu!(cuEventRecord(fresh, other))),
    ] {
        facts.code(what, code, CUDA_SUCCESS);
        facts.is(&format!("{what}: the capture"), status(stream)?, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    }
    must!(cuThreadExchangeStreamCaptureMode(&mut mode));
    facts.is("the mode that was put aside comes back", mode, RELAXED);
    facts.code("ending", end(stream)?.0, CUDA_SUCCESS);
    Ok(())
}

fn an_event_is_recorded_beside_a_capture(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [stream, other]) = Gpu::with_streams()?;
    let event = gpu.event(0)?;
    begin(stream, GLOBAL)?;
    facts.code("on a stream outside", cu!(cuEventRecord(event, other)), CUDA_SUCCESS);
    facts.code("a launch outside", gpu.nothing(other)?, CUDA_SUCCESS);
    facts.code("the capture's end", end(stream)?.0, CUDA_SUCCESS);
    Ok(())
}

fn destroying_captured_objects(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [stream]) = Gpu::with_streams()?;
    let other = gpu.stream(0)?;
    begin(stream, RELAXED)?;
    facts.code("the stream", cu!(cuStreamDestroy_v2(stream)), CUDA_SUCCESS);
    facts.code("legacy afterwards", gpu.nothing(null_mut())?, CUDA_SUCCESS);
    begin(other, RELAXED)?;
    facts.code("the context", cu!(cuCtxDestroy_v2(gpu.context)), CUDA_SUCCESS);
    Ok(())
}
