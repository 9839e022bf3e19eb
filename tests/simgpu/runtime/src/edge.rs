//! The beginning and the end of every call: the context, and the thread's last error.

use std::cell::Cell;

use simgpu_driver::{Error, Result};

use crate::device;
use crate::table::{Function, errors};

thread_local! {
    /// The error of the thread's last call that failed.
    static LAST: Cell<u32> = const { Cell::new(errors::cudaSuccess) };
}

/// Returns whether a function makes the device's primary context current if the thread has no
/// context.
pub const fn needs_context(function: Function) -> bool {
    !matches!(
        function,
        Function::cudaGetLastError
            | Function::cudaPeekAtLastError
            | Function::cudaGetDeviceCount
            | Function::cudaGetDeviceProperties
            | Function::cudaDriverGetVersion
            | Function::cudaRuntimeGetVersion
            | Function::cudaGetDevice
            | Function::cudaSetDevice
            | Function::cudaInitDevice
            | Function::cudaSetDeviceFlags
            | Function::cudaDeviceReset
            | Function::cudaDeviceGetAttribute
            | Function::cudaDeviceGetPCIBusId
            | Function::cudaDeviceGetByPCIBusId
            | Function::cudaDeviceCanAccessPeer
            | Function::cudaDeviceGetP2PAttribute
            | Function::cudaLibraryLoadData
            | Function::cudaLibraryLoadFromFile
            | Function::cudaLibraryUnload
            | Function::cudaLibraryGetKernel
            | Function::cudaLibraryGetKernelCount
            | Function::cudaLibraryEnumerateKernels
            | Function::cudaGetKernel
            | Function::cudaFuncGetName
            | Function::cudaFuncGetParamInfo
            | Function::cudaGetDriverEntryPoint
            | Function::cudaGetDriverEntryPointByVersion
            | Function::cudaThreadExchangeStreamCaptureMode
    )
}

/// Runs a call and returns its code. Keeps the error of a failed call.
pub fn answer<const NEEDS_CONTEXT: bool>(function: Function, call: impl FnOnce() -> Result<()>) -> u32 {
    let entered = if NEEDS_CONTEXT { device::context().map(drop) } else { Ok(()) };
    match entered.and_then(|()| call()) {
        Ok(()) => errors::cudaSuccess,
        Err(Error(code)) => {
            // The last error does not change for these two functions, which return it.
            if !matches!(function, Function::cudaGetLastError | Function::cudaPeekAtLastError) {
                keep(code);
            }
            code
        }
    }
}

/// Runs a call of a function that is not in the table, and returns its code. Keeps the error of a
/// failed call.
pub fn answer_plainly(call: impl FnOnce() -> Result<()>) -> u32 {
    match call() {
        Ok(()) => errors::cudaSuccess,
        Err(Error(code)) => {
            keep(code);
            code
        }
    }
}

/// Keeps an error as the thread's last error.
fn keep(code: u32) {
    LAST.set(code);
}

/// Returns the thread's last error as a result.
pub fn last() -> Result<()> {
    simgpu_driver::checked(LAST.get())
}

/// Returns the thread's last error as a result, and forgets it.
pub fn take_last() -> Result<()> {
    simgpu_driver::checked(LAST.replace(errors::cudaSuccess))
}

/// The error for an argument that the reference does not allow.
pub const INVALID_VALUE: Error = Error(errors::cudaErrorInvalidValue);

/// Returns the error `code` if `is_wrong` is true.
pub fn refuse_as(is_wrong: bool, code: u32) -> Result<()> {
    if is_wrong { Err(Error(code)) } else { Ok(()) }
}

/// Returns the error [`INVALID_VALUE`] if `is_wrong` is true.
pub fn refuse(is_wrong: bool) -> Result<()> {
    if is_wrong { Err(INVALID_VALUE) } else { Ok(()) }
}
