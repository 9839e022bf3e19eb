//! Hooks of the calls by which a thread waits for the GPU, or makes a stream wait for something
//! else. The hooks end the open segments, so that the meter does not take the wait for computing.

use deepres_abi::driver::ApiId;
use deepres_abi::driver::types::*;

use super::{life, memory};
use crate::blocked_calls;
use crate::capture;
use crate::driver::calls::Context;
use crate::launch;
use crate::os;
use crate::record;

/// Makes the call `call`, in which the thread waits for the GPU, and returns its result.
fn wait(api: ApiId, call: impl FnOnce() -> CUresult) -> CUresult {
    let _blocked = blocked_calls::begin();
    launch::flush();
    let result = record::wait(api, call);
    memory::refresh();
    result
}

super::hook! {
    [
        cuCtxSynchronize cuCtxSynchronize_v2 cuStreamSynchronize cuStreamSynchronize_ptsz
        cuEventSynchronize
    ] (..) |of, call| wait(of.api, call);

    [cuStreamWaitEvent cuStreamWaitEvent_ptsz] (stream, ..) |of, call| {
        launch::interrupt(of.stream(stream));
        record::follow(of.stream(stream));
        // If the event belongs to a stream that captures, this stream joins the capture.
        let _joining = capture::is_active().then(|| (os::uncancelled(), capture::joining()));
        call()
    };

    // All streams of the context wait.
    [cuCtxWaitEvent] (context, ..) |_, call| {
        launch::interrupt_context(|| Some(Context(context as usize)));
        call()
    };
    [cuGreenCtxWaitEvent] (green, ..) |_, call| {
        launch::interrupt_context(|| life::context_of_green(green));
        call()
    };

    [
        cuLaunchHostFunc cuLaunchHostFunc_ptsz cuLaunchHostFunc_v2 cuLaunchHostFunc_v2_ptsz
        cuStreamAddCallback cuStreamAddCallback_ptsz
    ] (stream, ..) |of, call| {
        launch::call_host(of.stream(stream));
        call()
    };

    // The host mostly ends these waits, and perhaps the thread that makes the call does.
    [
        cuStreamWaitValue32 cuStreamWaitValue32_ptsz cuStreamWaitValue32_v2
        cuStreamWaitValue32_v2_ptsz cuStreamWaitValue64 cuStreamWaitValue64_ptsz
        cuStreamWaitValue64_v2 cuStreamWaitValue64_v2_ptsz cuStreamBatchMemOp
        cuStreamBatchMemOp_ptsz cuStreamBatchMemOp_v2 cuStreamBatchMemOp_v2_ptsz
    ] (stream, ..) |of, call| {
        launch::await_host(of.stream(stream));
        call()
    };
}
