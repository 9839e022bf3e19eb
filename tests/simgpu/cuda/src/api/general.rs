//! Start, versions, errors, look-ups, the profiler.
use std::ffi::{CStr, c_char, c_void};

use deepres_abi::driver::types::*;

use crate::lookup;
use crate::process;
use crate::status::{self, Result};

/// Result of cuDriverGetVersion as long as no configuration is loaded.
const DRIVER_VERSION: i32 = 13_000;

pub fn cuInit(Flags: u32) -> Result<()> {
    if Flags != 0 { Err(status::INVALID_VALUE) } else { process::initialise() }
}

calls! {
    cuDriverGetVersion(driverVersion: *mut i32) {
        let version =
            if process::check_ready().is_ok() { process::config().driver_version } else { DRIVER_VERSION };
        give!(driverVersion, version);
    }
}

fn describe(
    error: CUresult,
    to: *mut *const c_char,
    pick: impl FnOnce((&'static CStr, &'static CStr)) -> &'static CStr,
) -> Result<()> {
    match status::describe(error) {
        Some(texts) => {
            give!(to, pick(texts).as_ptr());
            Ok(())
        }
        None => {
            give!(to, std::ptr::null());
            Err(status::INVALID_VALUE)
        }
    }
}

calls! {
    cuGetErrorName(error: CUresult, pStr: *mut *const c_char) { describe(error, pStr, |(name, _)| name)? }
    cuGetErrorString(error: CUresult, pStr: *mut *const c_char) { describe(error, pStr, |(_, text)| text)? }
}

pub fn cuGetProcAddress(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    cudaVersion: i32,
    flags: u64,
) -> Result<()> {
    let name = text!(symbol);
    match lookup::look_up(name.as_bytes(), cudaVersion, flags)? {
        Ok(address) => {
            give!(pfn, address as *mut c_void);
            Ok(())
        }
        Err(_) => {
            give!(pfn, std::ptr::null_mut());
            Err(status::NOT_FOUND)
        }
    }
}

pub fn cuGetProcAddress_v2(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    cudaVersion: i32,
    flags: u64,
    symbolStatus: *mut CUdriverProcAddressQueryResult,
) -> Result<()> {
    let name = text!(symbol);
    match lookup::look_up(name.as_bytes(), cudaVersion, flags)? {
        Ok(address) => {
            give!(pfn, address as *mut c_void);
            give_if_wanted!(symbolStatus, CU_GET_PROC_ADDRESS_SUCCESS);
            Ok(())
        }
        Err(reason) => {
            give!(pfn, std::ptr::null_mut());
            give_if_wanted!(symbolStatus, reason);
            // Unlike the first version, this version reports a miss in `symbolStatus` and returns
            // success.
            Ok(())
        }
    }
}

calls! {
    /// Finds no table. NVIDIA's own libraries use private tables to verify the driver, and a
    /// simulated driver has none.
    cuGetExportTable(ppExportTable: *mut *const c_void, _pExportTableId: *const CUuuid) {
        give_if_wanted!(ppExportTable, std::ptr::null());
        Err(status::NOT_FOUND)?;
    }
    cuProfilerInitialize(_configFile: *const c_char, _outputFile: *const c_char, _outputMode: CUoutput_mode) {
        Err(status::PROFILER_DISABLED)?;
    }
    cuProfilerStart() { crate::context::current().map(|_| ())? }
    cuProfilerStop() { crate::context::current().map(|_| ())? }
}
