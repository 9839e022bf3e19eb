//! Hooks of the calls by which a thread waits for the GPU, or makes a stream wait for something
//! else. The hooks end the open segments, so that the time of the wait is not taken for computing.

use deepres_abi::driver::ApiId;
use deepres_abi::driver::types::{
    CUcontext, CUdeviceptr, CUevent, CUgreenCtx, CUhostFn, CUresult, CUstream, CUstreamCallback, c_void,
};

use super::{MISSING, life, memory};
use crate::blocked_calls;
use crate::capture;
use crate::driver::calls::{Context, Stream};
use crate::driver::real;
use crate::launch;
use crate::os;
use crate::record;

macro_rules! wait {
    ($($name:ident: $symbol:ident($($argument:ident: $type:ty),*);)+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> CUresult {
            let Some(real) = real!($symbol) else { return MISSING };
            let _blocked = blocked_calls::begin();
            launch::flush();
            // SAFETY: the arguments are the caller's, unchanged.
            let result = record::wait(ApiId::$symbol, || unsafe { real($($argument),*) });
            memory::refresh();
            result
        }
    )+};
}

wait! {
    context: cuCtxSynchronize();
    context_v2: cuCtxSynchronize_v2(context: CUcontext);
    stream: cuStreamSynchronize(stream: CUstream);
    stream_ptsz: cuStreamSynchronize_ptsz(stream: CUstream);
    event: cuEventSynchronize(event: CUevent);
}

macro_rules! interrupt {
    ($interrupt:path; $($name:ident: $symbol:ident, $per_thread:literal, ($stream:ident $(, $argument:ident: $type:ty)*);)+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
        pub unsafe extern "C" fn $name($stream: CUstream $(, $argument: $type)*) -> CUresult {
            let Some(real) = real!($symbol) else { return MISSING };
            $interrupt(Stream::new($stream, $per_thread));
            // SAFETY: the arguments are the caller's, unchanged.
            unsafe { real($stream $(, $argument)*) }
        }
    )+};
}

macro_rules! wait_event {
    ($($name:ident: $symbol:ident, $per_thread:literal;)+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
        pub unsafe extern "C" fn $name(stream: CUstream, event: CUevent, flags: u32) -> CUresult {
            let Some(real) = real!($symbol) else { return MISSING };
            launch::interrupt(Stream::new(stream, $per_thread));
            // If the event belongs to a stream that captures, this stream joins the capture.
            let _joining = capture::is_active().then(|| (os::uncancelled(), capture::joining()));
            // SAFETY: the arguments are the caller's, unchanged.
            unsafe { real(stream, event, flags) }
        }
    )+};
}

wait_event! {
    stream_wait_event: cuStreamWaitEvent, false;
    stream_wait_event_ptsz: cuStreamWaitEvent_ptsz, true;
}

/// Hook of `cuCtxWaitEvent`: every stream of the context waits.
pub unsafe extern "C" fn context_wait_event(context: CUcontext, event: CUevent) -> CUresult {
    let Some(real) = real!(cuCtxWaitEvent) else { return MISSING };
    launch::interrupt_context(|| Some(Context(context as usize)));
    // SAFETY: the arguments are the caller's, unchanged.
    unsafe { real(context, event) }
}

/// Hook of `cuGreenCtxWaitEvent`: every stream of the green context waits.
pub unsafe extern "C" fn green_wait_event(green: CUgreenCtx, event: CUevent) -> CUresult {
    let Some(real) = real!(cuGreenCtxWaitEvent) else { return MISSING };
    launch::interrupt_context(|| life::context_of_green(green));
    // SAFETY: the arguments are the caller's, unchanged.
    unsafe { real(green, event) }
}

interrupt! {
    launch::call_host;
    host_function_v1: cuLaunchHostFunc, false, (stream, function: CUhostFn, data: *mut c_void);
    host_function_v1_ptsz: cuLaunchHostFunc_ptsz, true, (stream, function: CUhostFn, data: *mut c_void);
    host_function: cuLaunchHostFunc_v2, false, (stream, function: CUhostFn, data: *mut c_void, mode: u32);
    host_function_ptsz: cuLaunchHostFunc_v2_ptsz, true, (stream, function: CUhostFn, data: *mut c_void, mode: u32);
    callback: cuStreamAddCallback, false, (stream, callback: CUstreamCallback, data: *mut c_void, flags: u32);
    callback_ptsz: cuStreamAddCallback_ptsz, true, (stream, callback: CUstreamCallback, data: *mut c_void, flags: u32);
}

// The host mostly ends these waits, perhaps the thread that makes the call.
interrupt! {
    launch::await_host;
    stream_wait_32_v1: cuStreamWaitValue32, false, (stream, at: CUdeviceptr, value: u32, flags: u32);
    stream_wait_32_v1_ptsz: cuStreamWaitValue32_ptsz, true, (stream, at: CUdeviceptr, value: u32, flags: u32);
    stream_wait_32: cuStreamWaitValue32_v2, false, (stream, at: CUdeviceptr, value: u32, flags: u32);
    stream_wait_32_ptsz: cuStreamWaitValue32_v2_ptsz, true, (stream, at: CUdeviceptr, value: u32, flags: u32);
    stream_wait_64_v1: cuStreamWaitValue64, false, (stream, at: CUdeviceptr, value: u64, flags: u32);
    stream_wait_64_v1_ptsz: cuStreamWaitValue64_ptsz, true, (stream, at: CUdeviceptr, value: u64, flags: u32);
    stream_wait_64: cuStreamWaitValue64_v2, false, (stream, at: CUdeviceptr, value: u64, flags: u32);
    stream_wait_64_ptsz: cuStreamWaitValue64_v2_ptsz, true, (stream, at: CUdeviceptr, value: u64, flags: u32);
    batch_v1: cuStreamBatchMemOp, false, (stream, count: u32, operations: *mut c_void, flags: u32);
    batch_v1_ptsz: cuStreamBatchMemOp_ptsz, true, (stream, count: u32, operations: *mut c_void, flags: u32);
    batch: cuStreamBatchMemOp_v2, false, (stream, count: u32, operations: *mut c_void, flags: u32);
    batch_ptsz: cuStreamBatchMemOp_v2_ptsz, true, (stream, count: u32, operations: *mut c_void, flags: u32);
}
