//! Hooks of stream capture.

use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::{
    CUgraph, CUgraphEdgeData, CUgraphNode, CUgraphRecaptureCallback, CUresult, CUstream, CUstreamCaptureMode,
    c_void,
};

use super::MISSING;
use crate::capture;
use crate::driver::calls::Stream;
use crate::driver::real;
use crate::{os, process};

/// Ends the stream's segments, then begins the capture. The capture is counted before the call, so
/// that no marker gets in between.
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

/// Ends a capture. The capture counts as ended if the call succeeded, or if the driver then says
/// that the stream is not capturing.
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

macro_rules! capture {
    ($($phase:ident $name:ident: $symbol:ident, $per_thread:literal, ($stream:ident $(, $argument:ident: $type:ty)*);)+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
        pub unsafe extern "C" fn $name($stream: CUstream $(, $argument: $type)*) -> CUresult {
            let Some(real) = real!($symbol) else { return MISSING };
            // SAFETY: the arguments are the caller's, unchanged.
            $phase(Stream::new($stream, $per_thread), || unsafe { real($stream $(, $argument)*) })
        }
    )+};
}

capture! {
    begin begin_v1: cuStreamBeginCapture, false, (stream);
    begin begin_v1_ptsz: cuStreamBeginCapture_ptsz, true, (stream);
    begin begin_v2: cuStreamBeginCapture_v2, false, (stream, mode: CUstreamCaptureMode);
    begin begin_v2_ptsz: cuStreamBeginCapture_v2_ptsz, true, (stream, mode: CUstreamCaptureMode);
    begin begin_to_graph: cuStreamBeginCaptureToGraph, false, (stream, graph: CUgraph, nodes: *const CUgraphNode, edges: *const CUgraphEdgeData, count: usize, mode: CUstreamCaptureMode);
    begin begin_to_graph_ptsz: cuStreamBeginCaptureToGraph_ptsz, true, (stream, graph: CUgraph, nodes: *const CUgraphNode, edges: *const CUgraphEdgeData, count: usize, mode: CUstreamCaptureMode);
    begin begin_recapture: cuStreamBeginRecaptureToGraph, false, (stream, mode: CUstreamCaptureMode, graph: CUgraph, callback: CUgraphRecaptureCallback, data: *mut c_void);
    begin begin_recapture_ptsz: cuStreamBeginRecaptureToGraph_ptsz, true, (stream, mode: CUstreamCaptureMode, graph: CUgraph, callback: CUgraphRecaptureCallback, data: *mut c_void);
    end end_v1: cuStreamEndCapture, false, (stream, graph: *mut CUgraph);
    end end_v1_ptsz: cuStreamEndCapture_ptsz, true, (stream, graph: *mut CUgraph);
    begin begin_to_cig: cuStreamBeginCaptureToCig, false, (stream, params: *mut c_void);
    begin begin_to_cig_ptsz: cuStreamBeginCaptureToCig_ptsz, true, (stream, params: *mut c_void);
    end end_to_cig: cuStreamEndCaptureToCig, false, (stream);
    end end_to_cig_ptsz: cuStreamEndCaptureToCig_ptsz, true, (stream);
}
