//! Hooks of the driver's own look-up functions.

use std::ffi::CStr;

use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::*;

use crate::coverage;
use crate::resolve::{addresses, is_disabled};

/// Replaces the address that the driver wrote by the address of the function's hook, if there is a
/// hook.
///
/// # Safety
/// The arguments are those of a call that returned `result`.
unsafe fn substitute(
    result: CUresult,
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: i32,
    flags: u64,
) {
    if result != CUDA_SUCCESS || symbol.is_null() || pfn.is_null() || is_disabled() {
        return;
    }
    // SAFETY: the driver accepted both and reported success, so it has read the name and written
    // the address.
    let (family, found) = unsafe { (CStr::from_ptr(symbol), *pfn as usize) };
    if found == 0 {
        return;
    }
    let per_thread = flags & u64::from(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    let version = u32::try_from(version).unwrap_or(0);
    let hook = addresses::hook_for(family.to_bytes(), found, version, per_thread);
    // SAFETY: the driver has just written here.
    unsafe { *pfn = hook as *mut c_void };
}

super::hook! { unguarded:
    [cuGetProcAddress cuGetProcAddress_v2] (symbol, pfn, version, flags, ..) |_, call| {
        let result = call();
        // SAFETY: these are the arguments of the call that returned `result`.
        unsafe { substitute(result, symbol, pfn, version, flags) };
        result
    };

    // The hook only counts the call, because deepres cannot see the calls that a program makes
    // through a private table.
    [cuGetExportTable] (..) |_, call| {
        coverage::count(&coverage::OWN.export_tables);
        call()
    };
}
