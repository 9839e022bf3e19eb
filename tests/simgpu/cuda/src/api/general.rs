//! The driver functions for the start, versions, errors, look-ups and the profiler.
use std::ffi::CStr;

use super::prelude::*;
use crate::lookup;
use crate::process;

/// Result of cuDriverGetVersion as long as no configuration is loaded.
const DRIVER_VERSION: i32 = 13_000;

calls! {
    cuInit(Flags) {
        status::refuse(Flags != 0)?;
        process::initialise()?;
    }
    cuDriverGetVersion(driverVersion) {
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
    cuGetErrorName(error, pStr) { describe(error, pStr, |(name, _)| name)? }
    cuGetErrorString(error, pStr) { describe(error, pStr, |(_, text)| text)? }
}

calls! {
    cuGetProcAddress(symbol, pfn, cudaVersion, flags) {
        let found = lookup::look_up(text!(symbol).as_bytes(), cudaVersion, flags)?;
        give!(pfn, found.map_or(std::ptr::null_mut(), |address| address as *mut c_void));
        status::refuse_as(found.is_err(), status::NOT_FOUND)?;
    }
    // Unlike the first version, this version reports a miss in `symbolStatus` and returns success.
    cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, symbolStatus) {
        let found = lookup::look_up(text!(symbol).as_bytes(), cudaVersion, flags)?;
        give!(pfn, found.map_or(std::ptr::null_mut(), |address| address as *mut c_void));
        give_if_wanted!(symbolStatus, found.err().unwrap_or(CU_GET_PROC_ADDRESS_SUCCESS));
    }
    // Finds no table. NVIDIA's own libraries use private tables to verify the driver, and a
    // simulated driver has none.
    cuGetExportTable(ppExportTable, _pExportTableId) {
        give_if_wanted!(ppExportTable, std::ptr::null());
        Err(status::NOT_FOUND)?;
    }
    cuProfilerInitialize(_configFile, _outputFile, _outputMode) { Err(status::PROFILER_DISABLED)? }
    cuProfilerStart() { crate::context::current().map(|_| ())? }
    cuProfilerStop() { crate::context::current().map(|_| ())? }
}
