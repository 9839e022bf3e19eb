//! Hooks of the driver's own look-up functions.

use std::ffi::{CStr, c_char, c_void};

use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::{
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, CUdriverProcAddressQueryResult, CUresult, CUuuid,
};

use super::MISSING;
use crate::coverage;
use crate::driver::real;
use crate::resolve::{addresses, is_disabled};

/// Hook of `cuGetProcAddress`.
pub unsafe extern "C" fn get_proc_address(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: i32,
    flags: u64,
) -> CUresult {
    let Some(real) = real!(cuGetProcAddress) else { return MISSING };
    // SAFETY: the arguments are the caller's, unchanged.
    let result = unsafe { real(symbol, pfn, version, flags) };
    // SAFETY: these are the arguments of the call that returned `result`.
    unsafe { substitute(result, symbol, pfn, version, flags) };
    result
}

/// Hook of `cuGetProcAddress_v2`.
pub unsafe extern "C" fn get_proc_address_v2(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: i32,
    flags: u64,
    status: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    let Some(real) = real!(cuGetProcAddress_v2) else { return MISSING };
    // SAFETY: the arguments are the caller's, unchanged.
    let result = unsafe { real(symbol, pfn, version, flags, status) };
    // SAFETY: these are the arguments of the call that returned `result`.
    unsafe { substitute(result, symbol, pfn, version, flags) };
    result
}

/// Replaces the address that the driver wrote by the address of the hook, if the function has one.
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

/// Hook of `cuGetExportTable`. The call is counted, because deepres does not see what the program
/// does through a private table.
pub unsafe extern "C" fn get_export_table(table: *mut *const c_void, id: *const CUuuid) -> CUresult {
    let Some(real) = real!(cuGetExportTable) else { return MISSING };
    coverage::count(&coverage::OWN.export_tables);
    // SAFETY: the arguments are the caller's, unchanged.
    unsafe { real(table, id) }
}
