//! Errors, versions, look-ups, and streams and events in their shortest forms.

use std::ptr::null_mut;

use deepres_abi::driver::types as cu;
use simgpu_driver::driver;

use crate::edge;
use crate::table::types::*;
use crate::{device, table};

/// The version of the runtime's API: that of the header.
const RUNTIME_VERSION: i32 = 13050;

calls! {
    cudaGetLastError() { edge::take_last()? }
    cudaPeekAtLastError() { edge::last()? }
    cudaRuntimeGetVersion(runtimeVersion) { give!(runtimeVersion, RUNTIME_VERSION) }
    cudaDriverGetVersion(driverVersion) {
        give!(driverVersion, 0);
        // Without a driver the version is 0, which is no error.
        if device::count().is_ok() {
            driver!(cuDriverGetVersion(driverVersion));
        }
    }
    cudaGetDriverEntryPoint(symbol, funcPtr, flags, driverStatus) {
        look_up(symbol, funcPtr, RUNTIME_VERSION as u32, flags, driverStatus)?;
    }
    cudaGetDriverEntryPointByVersion(symbol, funcPtr, cudaVersion, flags, driverStatus) {
        look_up(symbol, funcPtr, cudaVersion, flags, driverStatus)?;
    }
    cudaStreamCreate(pStream) { driver!(cuStreamCreate(pStream, cu::CU_STREAM_DEFAULT)) }
    cudaEventCreate(event) { driver!(cuEventCreate(event, cu::CU_EVENT_DEFAULT)) }
}

/// Asks the driver for a function. If the caller has no place for a status, the call fails for a
/// function that the driver lacks.
fn look_up(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: u32,
    flags: u64,
    status: *mut u32,
) -> simgpu_driver::Result<()> {
    device::count()?;
    give!(function, null_mut());
    let mut found = cu::CU_GET_PROC_ADDRESS_SUCCESS;
    // SAFETY: by the API's contract the symbol is a C string. The results have the driver's types.
    let code = unsafe { simgpu_driver::look_up()?(symbol, function, version as i32, flags, &mut found) };
    if status.is_null() {
        return simgpu_driver::checked(code);
    }
    give!(status, found);
    if code == table::errors::cudaErrorSymbolNotFound { Ok(()) } else { simgpu_driver::checked(code) }
}
