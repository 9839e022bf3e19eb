//! Hooks of stream capture.

use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::*;

use crate::capture;
use crate::driver::calls::Stream;
use crate::{os, process};

/// Ends the stream's segments, and then begins the capture by `call`. The hook counts the capture
/// before the call, so that no thread records a marker in between. Returns the result of `call`.
fn begin(stream: Stream, call: impl FnOnce() -> CUresult) -> CUresult {
    let Some(process) = process::current() else { return call() };
    process.close_stream(stream, false);
    let context = process.calls.context_of(stream);
    capture::begin(stream, context);
    let _uncancelled = os::uncancelled();
    let joining = capture::joining();
    let result = call();
    drop(joining);
    if result != CUDA_SUCCESS {
        capture::end(stream, context);
    }
    result
}

/// Ends a capture by `call`, and returns its result. The function takes the capture as ended if the
/// call succeeded, or if the driver then says that the stream does not capture.
fn end(stream: Stream, call: impl FnOnce() -> CUresult) -> CUresult {
    let result = call();
    if let Some(process) = process::current()
        && capture::is_active()
        && (result == CUDA_SUCCESS || !process.calls.may_be_capturing(stream))
    {
        capture::end(stream, process.calls.context_of(stream));
    }
    result
}

super::hook! {
    [
        cuStreamBeginCapture cuStreamBeginCapture_ptsz cuStreamBeginCapture_v2
        cuStreamBeginCapture_v2_ptsz cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz
        cuStreamBeginRecaptureToGraph cuStreamBeginRecaptureToGraph_ptsz cuStreamBeginCaptureToCig
        cuStreamBeginCaptureToCig_ptsz
    ] (stream, ..) |of, call| begin(of.stream(stream), call);
    [
        cuStreamEndCapture cuStreamEndCapture_ptsz cuStreamEndCaptureToCig
        cuStreamEndCaptureToCig_ptsz
    ] (stream, ..) |of, call| end(of.stream(stream), call);
}
