//! Hooks of what begins and ends: the driver, contexts, streams.

use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::{CUcontext, CUdevice, CUresult, CUstream};

use super::MISSING;
use crate::capture;
use crate::driver::calls::{Context, Stream};
use crate::driver::real;
use crate::process;

/// Hook of `cuInit`: a session begins once it succeeded.
pub unsafe extern "C" fn init(flags: u32) -> CUresult {
    let Some(real) = real!(cuInit) else { return MISSING };
    // SAFETY: the caller's argument.
    let result = unsafe { real(flags) };
    if result == CUDA_SUCCESS {
        process::start();
    }
    result
}

fn destroy_context(context: CUcontext, call: impl FnOnce() -> CUresult) -> CUresult {
    match process::current() {
        Some(process) => {
            process.destroy_context(Context(context as usize), call, |result| *result == CUDA_SUCCESS)
        }
        None => call(),
    }
}

/// A primary context ends when it is reset, or released by its last user.
fn end_primary(device: CUdevice, is_reset: bool, call: impl FnOnce() -> CUresult) -> CUresult {
    let Some(process) = process::current() else { return call() };
    let Some(context) = process.calls.primary_context(device) else { return call() };
    process.destroy_context(context, call, |result| {
        *result == CUDA_SUCCESS && (is_reset || !process.calls.is_primary_active(device))
    })
}

fn destroy_stream(stream: CUstream, call: impl FnOnce() -> CUresult) -> CUresult {
    if let Some(process) = process::current()
        && !stream.is_null()
    {
        let stream = Stream::new(stream, false);
        if !stream.is_default() {
            process.close_stream(stream, true);
            capture::end(stream);
        }
    }
    call()
}

macro_rules! forward {
    ($($name:ident: $symbol:ident($argument:ident: $type:ty) => |$call:ident| $body:expr;)+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
        pub unsafe extern "C" fn $name($argument: $type) -> CUresult {
            let Some(real) = real!($symbol) else { return MISSING };
            // SAFETY: the caller's argument.
            let $call = || unsafe { real($argument) };
            $body
        }
    )+};
}

forward! {
    destroy_context_v1: cuCtxDestroy(context: CUcontext) => |call| destroy_context(context, call);
    destroy_context_v2: cuCtxDestroy_v2(context: CUcontext) => |call| destroy_context(context, call);
    detach_context: cuCtxDetach(context: CUcontext) => |call| destroy_context(context, call);
    release_primary: cuDevicePrimaryCtxRelease(device: CUdevice) => |call| end_primary(device, false, call);
    release_primary_v2: cuDevicePrimaryCtxRelease_v2(device: CUdevice) => |call| end_primary(device, false, call);
    reset_primary: cuDevicePrimaryCtxReset(device: CUdevice) => |call| end_primary(device, true, call);
    reset_primary_v2: cuDevicePrimaryCtxReset_v2(device: CUdevice) => |call| end_primary(device, true, call);
    destroy_stream_v1: cuStreamDestroy(stream: CUstream) => |call| destroy_stream(stream, call);
    destroy_stream_v2: cuStreamDestroy_v2(stream: CUstream) => |call| destroy_stream(stream, call);
}
