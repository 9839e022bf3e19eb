//! Hooks of the calls that begin and end the driver, contexts and streams.

use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::{CUDA_ERROR_NOT_PERMITTED, CUDA_SUCCESS};
use deepres_abi::driver::types::{
    CUcontext, CUdevResourceDesc, CUdevice, CUgreenCtx, CUresult, CUstream, VdpDevice, c_void,
};

use super::{clear, entered};
use crate::blocked_calls;
use crate::capture;
use crate::driver::calls::{Context, Stream};
use crate::driver::memory::insist;
use crate::driver::real;
use crate::meter::context::Inner;
use crate::os;
use crate::process::{self, Process};

/// Hook of `cuInit`. The hook announces the session to the daemon before the call. If the call
/// succeeds, the hook starts the session. If nothing can hold the process to its limits, the hook
/// returns `CUDA_ERROR_NOT_PERMITTED`.
pub unsafe extern "C" fn init(flags: u32) -> CUresult {
    let (call, _inside) = entered!(cuInit(flags));
    let _arrival = process::announce();
    let result = call();
    if result == CUDA_SUCCESS && process::start().is_err() {
        return CUDA_ERROR_NOT_PERMITTED;
    }
    result
}

/// Makes a context by `call`, which writes the context's handle to `context`. Returns the result.
fn make_context(
    api: ApiId,
    context: *mut CUcontext,
    device: CUdevice,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let Ok(process) = process::for_context() else { return CUDA_ERROR_NOT_PERMITTED };
    let Some((process, ordinal)) = process.zip(usize::try_from(device).ok()) else { return call() };
    let end = |made: Context| {
        if let Some(destroy) = real!(cuCtxDestroy_v2) {
            // SAFETY: the context is new, and no caller has its handle yet.
            insist(|| unsafe { destroy(made.0 as CUcontext) });
        }
        // SAFETY: the driver wrote the handle there.
        unsafe { clear(context) };
    };
    // SAFETY: the driver wrote to `context` if it reports success.
    let make = || unsafe { made(call(), context) };
    process.memory.make_context(process, (api, ordinal), || false, make, end)
}

/// Returns `result`, and the context that the call made.
///
/// # Safety
/// `context` is null, or the driver wrote to `context` if `result` is a success.
unsafe fn made(result: CUresult, context: *mut CUcontext) -> (CUresult, Option<Context>) {
    // SAFETY: the caller guarantees that `context` is null, or that the driver wrote there.
    let handle = if result == CUDA_SUCCESS { unsafe { context.as_ref() } } else { None };
    (result, handle.map(|handle| Context(*handle as usize)))
}

/// Retains the primary context of a GPU by `make`, which makes the context if it is not active.
/// `make` returns the driver's result and the context. If the limit has no room for a new context,
/// `end` undoes the call. Returns the result for the job, and the context.
fn retain(
    process: &'static Process,
    api: ApiId,
    device: CUdevice,
    make: impl FnOnce() -> (CUresult, Option<Context>),
    end: impl FnOnce(Context),
) -> (CUresult, Option<Context>) {
    let Ok(ordinal) = usize::try_from(device) else { return make() };
    // The lock orders this call with the calls that end the primary context. The ending calls check
    // afterwards whether the context is still active. If deepres refuses memory to a new context,
    // the lock also covers the end of that context.
    let _uncancelled = os::uncancelled();
    let mut primary = process.primary(ordinal);
    let last = primary.as_deref().copied().flatten();
    // The driver may not say whether the primary context is active. Then this code takes it as
    // active while the context that the job retained last exists.
    let is_there = || {
        let is_active = process.calls.is_primary_active(device);
        is_active.unwrap_or_else(|| last.is_some_and(|last| process.memory.has_context(last)))
    };
    let mut retained = None;
    let make = || {
        let (result, context) = make();
        retained = context;
        (result, context)
    };
    let result = process.memory.make_context(process, (api, ordinal), is_there, make, end);
    let retained = retained.filter(|_| result == CUDA_SUCCESS);
    if let (Some(primary), Some(context)) = (primary.as_deref_mut(), retained) {
        *primary = Some(context);
    }
    (result, retained)
}

/// Hook of `cuDevicePrimaryCtxRetain`. The first call makes the primary context.
pub unsafe extern "C" fn retain_primary(context: *mut CUcontext, device: CUdevice) -> CUresult {
    let (call, _inside) = entered!(cuDevicePrimaryCtxRetain(context, device));
    let Ok(process) = process::for_context() else { return CUDA_ERROR_NOT_PERMITTED };
    let Some(process) = process else { return call() };
    let end = |_: Context| {
        if let Some(release) = real!(cuDevicePrimaryCtxRelease_v2) {
            // SAFETY: `make` took the reference just now.
            insist(|| unsafe { release(device) });
        }
        // SAFETY: the driver wrote the handle there.
        unsafe { clear(context) };
    };
    // SAFETY: the driver wrote to `context` if it reports success.
    let make = || unsafe { made(call(), context) };
    retain(process, ApiId::cuDevicePrimaryCtxRetain, device, make, end).0
}

/// Hook of `cuGreenCtxCreate`. The driver retains the GPU's primary context for the green context.
/// The hook finds the green context's context while no thread uses it.
pub unsafe extern "C" fn create_green(
    green: *mut CUgreenCtx,
    resources: CUdevResourceDesc,
    device: CUdevice,
    flags: u32,
) -> CUresult {
    let (call, _inside) = entered!(cuGreenCtxCreate(green, resources, device, flags));
    let Ok(process) = process::for_context() else { return CUDA_ERROR_NOT_PERMITTED };
    let Some(process) = process else { return call() };
    let make = || {
        let result = call();
        let is_made = result == CUDA_SUCCESS;
        (result, is_made.then(|| process.calls.primary_context(device)).flatten())
    };
    let end = |_: Context| {
        if let Some(destroy) = real!(cuGreenCtxDestroy) {
            // SAFETY: the green context is new, and no caller has its handle yet.
            insist(|| unsafe { destroy(*green) });
        }
        // SAFETY: the driver wrote the handle there.
        unsafe { clear(green) };
    };
    let (result, primary) = retain(process, ApiId::cuGreenCtxCreate, device, make, end);
    if let (Some(primary), Ok(ordinal)) = (primary, usize::try_from(device)) {
        // SAFETY: the driver wrote the handle there, because it reports success.
        let context = context_of_green(unsafe { *green });
        context.into_iter().for_each(|context| process.enter_green(context, primary, ordinal));
    }
    result
}

macro_rules! makes_context {
    ($($name:ident: $symbol:ident($($argument:ident: $type:ty),*) $(then ($($last:ident: $last_type:ty),+))?;)+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
        pub unsafe extern "C" fn $name(
            context: *mut CUcontext,
            $($argument: $type,)*
            device: CUdevice,
            $($($last: $last_type,)+)?
        ) -> CUresult {
            let (call, _inside) = entered!($symbol(context, $($argument,)* device $($(, $last)+)?));
            make_context(ApiId::$symbol, context, device, call)
        }
    )+};
}

makes_context! {
    create_context_v1: cuCtxCreate(flags: u32);
    create_context_v2: cuCtxCreate_v2(flags: u32);
    create_context_v3: cuCtxCreate_v3(affinities: *mut c_void, count: i32, flags: u32);
    create_context_v4: cuCtxCreate_v4(params: *mut c_void, flags: u32);
    create_gl_context_v1: cuGLCtxCreate(flags: u32);
    create_gl_context_v2: cuGLCtxCreate_v2(flags: u32);
    create_vdpau_context_v1: cuVDPAUCtxCreate(flags: u32) then (display: VdpDevice, find: *mut c_void);
    create_vdpau_context_v2: cuVDPAUCtxCreate_v2(flags: u32) then (display: VdpDevice, find: *mut c_void);
}

fn destroy_context(context: CUcontext, call: impl FnOnce() -> CUresult) -> CUresult {
    match process::current() {
        Some(process) => {
            process.destroy_context(Context(context as usize), call, |result, _| *result == CUDA_SUCCESS)
        }
        None => call(),
    }
}

/// Hook of `cuCtxAttach`. The current context gets one more user, and ends with its last user.
pub unsafe extern "C" fn attach_context(context: *mut CUcontext, flags: u32) -> CUresult {
    let (call, _inside) = entered!(cuCtxAttach(context, flags));
    match process::current().and_then(|process| process.current_context()) {
        Some(context) => context.attach(call, |result| *result == CUDA_SUCCESS),
        None => call(),
    }
}

/// Returns the context of a green context.
pub fn context_of_green(green: CUgreenCtx) -> Option<Context> {
    let (convert, mut context) = (real!(cuCtxFromGreenCtx)?, std::ptr::null_mut());
    // SAFETY: the result has room, and the driver checks the handle.
    let result = unsafe { convert(&mut context, green) };
    (result == CUDA_SUCCESS).then_some(Context(context as usize))
}

/// Hook of `cuGreenCtxDestroy`. The driver ends the green context's part of the GPU, with the
/// captures of its streams, and releases the primary context. Memory and events stay with the
/// primary context while that context has other users.
pub unsafe extern "C" fn destroy_green(green: CUgreenCtx) -> CUresult {
    let (call, _inside) = entered!(cuGreenCtxDestroy(green));
    let Some((process, context)) = process::current().zip(context_of_green(green)) else { return call() };
    let contexts = process.contexts();
    let known = contexts.into_iter().find(|known| known.is_alive_as(context) && known.is_green());
    let home = known.map(|known| (known.home(), known.ordinal));
    let _uncancelled = os::uncancelled();
    let _primary = home.and_then(|(_, ordinal)| process.primary(ordinal));
    let (result, is_gone) = process.end_context(context, call, |result, _| *result == CUDA_SUCCESS);
    if let Some((home, ordinal)) = home.filter(|_| is_gone)
        && process.calls.is_primary_active(ordinal as CUdevice) == Some(false)
    {
        process.destroy_context(home, || (), |_, _| true);
    }
    result
}

/// Removes a user of a context by `call`, and returns the result. The context lives until all users
/// that attached to it have left.
fn leave_context(context: CUcontext, call: impl FnOnce() -> CUresult) -> CUresult {
    let Some(process) = process::current() else { return call() };
    process.destroy_context(Context(context as usize), call, |result, known| {
        *result == CUDA_SUCCESS && !known.is_some_and(Inner::detach)
    })
}

/// Releases or resets a primary context by `call`, and returns the result. The context ends when
/// the job resets it, or when its last user releases it.
fn end_primary(device: CUdevice, is_reset: bool, call: impl FnOnce() -> CUresult) -> CUresult {
    let Some(process) = process::current() else { return call() };
    // To find the context's handle, the interposer retains the context for a moment. Without the
    // lock, another thread could release the context in between. The interposer's own release would
    // then end the context.
    let _uncancelled = os::uncancelled();
    let primary = usize::try_from(device).ok().and_then(|ordinal| process.primary(ordinal));
    let last = || match process.calls.is_primary_active(device) {
        Some(false) => None,
        _ => primary.as_deref().copied().flatten(),
    };
    let Some(context) = process.calls.primary_context(device).or_else(last) else { return call() };
    process.destroy_context(context, call, |result, _| {
        *result == CUDA_SUCCESS && (is_reset || process.calls.is_primary_active(device) == Some(false))
    })
}

fn destroy_stream(stream: CUstream, call: impl FnOnce() -> CUresult) -> CUresult {
    let stream = Stream::new(stream, false);
    let Some(process) = process::current().filter(|_| !stream.is_default()) else { return call() };
    // The hook closes the lanes before the call, because another thread's new stream can have the
    // same handle after the call. If the stream lives on, its launches make new lanes.
    process.close_stream(stream, true);
    let leaving = capture::leave(stream);
    let result = call();
    leaving.settle(result == CUDA_SUCCESS);
    result
}

macro_rules! forward {
    ($($name:ident: $symbol:ident($argument:ident: $type:ty) => |$call:ident| $body:expr;)+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
        pub unsafe extern "C" fn $name($argument: $type) -> CUresult {
            let ($call, _inside) = entered!($symbol($argument));
            let _blocked = blocked_calls::begin();
            $body
        }
    )+};
}

forward! {
    destroy_context_v1: cuCtxDestroy(context: CUcontext) => |call| destroy_context(context, call);
    destroy_context_v2: cuCtxDestroy_v2(context: CUcontext) => |call| destroy_context(context, call);
    detach_context: cuCtxDetach(context: CUcontext) => |call| leave_context(context, call);
    release_primary: cuDevicePrimaryCtxRelease(device: CUdevice) => |call| end_primary(device, false, call);
    release_primary_v2: cuDevicePrimaryCtxRelease_v2(device: CUdevice) => |call| end_primary(device, false, call);
    reset_primary: cuDevicePrimaryCtxReset(device: CUdevice) => |call| end_primary(device, true, call);
    reset_primary_v2: cuDevicePrimaryCtxReset_v2(device: CUdevice) => |call| end_primary(device, true, call);
    destroy_stream_v1: cuStreamDestroy(stream: CUstream) => |call| destroy_stream(stream, call);
    destroy_stream_v2: cuStreamDestroy_v2(stream: CUstream) => |call| destroy_stream(stream, call);
}
