//! Stream capture: the captured work, forbidden calls, and calls that break a capture.
#[macro_use]
mod common;
use std::ptr::null_mut;

use common::*;

const NON_BLOCKING: u32 = CU_STREAM_NON_BLOCKING;
const GLOBAL: u32 = CU_STREAM_CAPTURE_MODE_GLOBAL;
const THREAD_LOCAL: u32 = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: u32 = CU_STREAM_CAPTURE_MODE_RELAXED;

fn state(stream: CUstream) -> u32 {
    let mut state = 99;
    ok!(cuStreamIsCapturing(stream, &mut state));
    state
}

fn end(stream: CUstream) -> (u32, CUgraph) {
    let mut graph = null_mut();
    let code = code!(cuStreamEndCapture(stream, &mut graph));
    (code, graph)
}

fn node_count(graph: CUgraph) -> usize {
    let mut count = 0;
    ok!(cuGraphGetNodes(graph, null_mut(), &mut count));
    count
}

#[test]
fn captured_work_runs_when_the_graph_is_launched_and_not_before() {
    let gpu = Gpu::new();
    let stream = gpu.stream(NON_BLOCKING);
    let (device, host) = (gpu.memory(4), gpu.pinned(1));
    ok!(cuStreamBeginCapture_v2(stream, GLOBAL));
    assert_eq!(state(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    ok!(cuMemsetD32Async(device, 3, 1, stream));
    gpu.launch(c"quick", stream);
    ok!(cuMemcpyDtoHAsync_v2(host.as_mut_ptr().cast(), device, 4, stream));
    let (code, graph) = end(stream);
    assert_eq!((code, node_count(graph), state(stream)), (0, 3, CU_STREAM_CAPTURE_STATUS_NONE));
    ok!(cuCtxSynchronize());
    assert_eq!(host[0], 0);
    let mut exec = null_mut();
    ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    ok!(cuGraphLaunch(exec, stream));
    ok!(cuStreamSynchronize(stream));
    assert_eq!(host[0], 3);
    ok!(cuGraphExecDestroy(exec));
    ok!(cuGraphDestroy(graph));
}

#[test]
fn other_streams_join_by_events_and_have_to_come_back() {
    let gpu = Gpu::new();
    let (origin, branch) = (gpu.stream(NON_BLOCKING), gpu.stream(NON_BLOCKING));
    let (fork, join) = (gpu.event(0), gpu.event(0));
    ok!(cuStreamBeginCapture_v2(origin, GLOBAL));
    gpu.launch(c"quick", origin);
    ok!(cuEventRecord(fork, origin));
    ok!(cuStreamWaitEvent(branch, fork, 0));
    gpu.launch(c"quick", branch);
    gpu.launch(c"quick", origin);
    ok!(cuEventRecord(join, branch));
    ok!(cuStreamWaitEvent(origin, join, 0));
    gpu.launch(c"quick", origin);
    let (code, graph) = end(origin);
    assert_eq!((code, node_count(graph), state(branch)), (0, 4, CU_STREAM_CAPTURE_STATUS_NONE));
    let mut edges = 0;
    ok!(cuGraphGetEdges(graph, null_mut(), null_mut(), &mut edges));
    assert_eq!(edges, 4, "a diamond");

    ok!(cuStreamBeginCapture_v2(origin, GLOBAL));
    ok!(cuEventRecord(fork, origin));
    ok!(cuStreamWaitEvent(branch, fork, 0));
    gpu.launch(c"quick", branch);
    assert_eq!(end(origin), (CUDA_ERROR_STREAM_CAPTURE_UNJOINED, null_mut()));
    assert_eq!(state(branch), CU_STREAM_CAPTURE_STATUS_NONE);
}

#[test]
fn the_legacy_stream_is_out_of_bounds_while_a_blocking_stream_is_captured() {
    let gpu = Gpu::new();
    let (blocking, free) = (gpu.stream(0), gpu.stream(NON_BLOCKING));
    let quick = gpu.kernel(c"quick");
    assert_eq!(code!(cuStreamBeginCapture_v2(null_mut(), GLOBAL)), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    ok!(cuStreamBeginCapture_v2(blocking, RELAXED));
    let mut answer = 0;
    assert_eq!(code!(cuStreamIsCapturing(null_mut(), &mut answer)), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    assert_eq!(state(blocking), CU_STREAM_CAPTURE_STATUS_ACTIVE, "asking breaks nothing");
    assert_eq!(code!(launch(quick, null_mut())), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    assert_eq!(state(blocking), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    assert_eq!(code!(launch(quick, blocking)), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_eq!(end(blocking), (CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, null_mut()));

    ok!(cuStreamBeginCapture_v2(free, RELAXED));
    ok!(launch(quick, null_mut()));
    assert_eq!(end(free).0, 0);
}

#[test]
fn asking_a_captured_stream_or_event_how_far_it_is_breaks_the_capture() {
    let gpu = Gpu::new();
    let stream = gpu.stream(NON_BLOCKING);
    let event = gpu.event(0);
    ok!(cuStreamBeginCapture_v2(stream, RELAXED));
    assert_eq!(code!(cuStreamSynchronize(stream)), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(end(stream).0, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    ok!(cuStreamBeginCapture_v2(stream, RELAXED));
    ok!(cuEventRecord(event, stream));
    assert_eq!(code!(cuEventQuery(event)), CUDA_ERROR_CAPTURED_EVENT);
    assert_eq!(end(stream).0, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    ok!(cuStreamBeginCapture_v2(stream, RELAXED));
    assert_eq!(code!(cuCtxSynchronize()), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(end(stream).0, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

/// Returns the result of querying an unrelated event on another thread in `mode`, during a capture
/// of this thread.
fn query_elsewhere(context: CUcontext, event: CUevent, mode: u32) -> u32 {
    let (context, event) = (context as usize, event as usize);
    let thread = std::thread::spawn(move || {
        ok!(cuCtxSetCurrent(context as CUcontext));
        let mut own = mode;
        ok!(cuThreadExchangeStreamCaptureMode(&mut own));
        assert_eq!(own, GLOBAL, "the mode of a new thread");
        code!(cuEventQuery(event as CUevent))
    });
    thread.join().unwrap()
}

#[test]
fn modes_decide_whose_unsafe_calls_break_a_capture() {
    let gpu = Gpu::new();
    let stream = gpu.stream(NON_BLOCKING);
    let event = gpu.event(0);
    let broken = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    for (capture, thread, elsewhere) in [
        (GLOBAL, GLOBAL, broken),
        (GLOBAL, THREAD_LOCAL, 0),
        (GLOBAL, RELAXED, 0),
        (THREAD_LOCAL, GLOBAL, 0),
        (RELAXED, GLOBAL, 0),
    ] {
        ok!(cuStreamBeginCapture_v2(stream, capture));
        assert_eq!(
            query_elsewhere(gpu.context, event, thread),
            elsewhere,
            "capture {capture}, thread {thread}"
        );
        let expected = if elsewhere == 0 { 0 } else { CUDA_ERROR_STREAM_CAPTURE_INVALIDATED };
        assert_eq!(end(stream).0, expected, "capture {capture}, thread {thread}");
    }
    for (capture, own) in [(GLOBAL, broken), (THREAD_LOCAL, broken), (RELAXED, 0)] {
        let mut address = 0;
        ok!(cuStreamBeginCapture_v2(stream, capture));
        assert_eq!(code!(cuMemAlloc_v2(&mut address, 64)), own, "capture {capture}, own thread");
        end(stream);
    }
}

#[test]
fn captures_do_not_mix_with_each_other_or_with_work_outside() {
    let gpu = Gpu::new();
    let (one, other) = (gpu.stream(NON_BLOCKING), gpu.stream(NON_BLOCKING));
    let (inside, outside) = (gpu.event(0), gpu.event(0));
    ok!(cuEventRecord(outside, other));
    ok!(cuStreamBeginCapture_v2(one, RELAXED));
    assert_eq!(code!(cuStreamWaitEvent(one, outside, 0)), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    end(one);
    ok!(cuStreamBeginCapture_v2(one, RELAXED));
    ok!(cuStreamBeginCapture_v2(other, RELAXED));
    assert_eq!(code!(cuStreamBeginCapture_v2(one, RELAXED)), CUDA_ERROR_ILLEGAL_STATE);
    ok!(cuEventRecord(inside, one));
    assert_eq!(code!(cuStreamWaitEvent(other, inside, 0)), CUDA_ERROR_STREAM_CAPTURE_MERGE);
    assert_eq!(end(one).0, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_eq!(end(other).0, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_eq!(end(one).0, CUDA_ERROR_ILLEGAL_STATE);
}

#[test]
fn a_capture_ends_where_it_began() {
    let gpu = Gpu::new();
    let (origin, branch) = (gpu.stream(NON_BLOCKING), gpu.stream(NON_BLOCKING));
    let fork = gpu.event(0);
    ok!(cuStreamBeginCapture_v2(origin, GLOBAL));
    ok!(cuEventRecord(fork, origin));
    ok!(cuStreamWaitEvent(branch, fork, 0));
    assert_eq!(end(branch).0, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    assert_eq!(end(origin).0, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    ok!(cuStreamBeginCapture_v2(origin, THREAD_LOCAL));
    let stream = origin as usize;
    let elsewhere = std::thread::spawn(move || end(stream as CUstream).0).join().unwrap();
    assert_eq!(elsewhere, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    end(origin);
}

#[test]
fn a_capture_can_be_looked_into_and_steered() {
    let gpu = Gpu::new();
    let stream = gpu.stream(NON_BLOCKING);
    ok!(cuStreamBeginCapture_v2(stream, GLOBAL));
    gpu.launch(c"quick", stream);
    let (mut state, mut id, mut graph, mut nodes, mut count) = (0, 0, null_mut(), std::ptr::null(), 0);
    ok!(cuStreamGetCaptureInfo_v2(stream, &mut state, &mut id, &mut graph, &mut nodes, &mut count));
    assert_eq!((state, count), (CU_STREAM_CAPTURE_STATUS_ACTIVE, 1));
    let mut added = null_mut();
    ok!(cuGraphAddEmptyNode(&mut added, graph, nodes, count));
    ok!(cuStreamUpdateCaptureDependencies(stream, &mut added, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    gpu.launch(c"quick", stream);
    let (code, graph) = end(stream);
    assert_eq!((code, node_count(graph)), (0, 3));
    let mut roots = 0;
    ok!(cuGraphGetRootNodes(graph, null_mut(), &mut roots));
    assert_eq!(roots, 1);
}
