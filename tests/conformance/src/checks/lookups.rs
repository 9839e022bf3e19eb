//! The functions to which look-ups lead. This subject comes first, because deepres recognises
//! functions by their addresses.

use std::ffi::{CStr, CString};

use deepres_abi::driver::{ApiId, resolve};

use super::prelude::*;
use crate::driver::find;

checks! { "lookups":
    Guess addresses_are_those_of_the_exports;
    Documented flags_choose_the_default_stream;
    Guess missing_names_are_told_from_names_that_are_too_new;
    Guess the_empty_name_and_unknown_tables;
}

/// Versions of CUDA that clients pass to look-ups.
const VERSIONS: [u32; 6] = [11_000, 11_020, 11_040, 12_000, 12_080, 13_000];

struct Found {
    code: CUresult,
    address: usize,
    status: u32,
}

fn look_up(name: &CStr, version: u32, flags: u32) -> Result<Found, Stop> {
    let (mut address, mut status) = (null_mut(), u32::MAX);
    let code =
        cu!(cuGetProcAddress_v2(name.as_ptr(), &mut address, version as i32, flags.into(), &mut status));
    Ok(Found { code, address: address as usize, status })
}

fn addresses_are_those_of_the_exports(facts: &mut Facts) -> Result<(), Stop> {
    must!(cuInit(0));
    let (mut compared, mut different) = (0, Vec::new());
    for id in ApiId::ALL {
        let Ok(family) = CString::new(id.family()) else { continue };
        for version in VERSIONS {
            for per_thread in [false, true] {
                let flags = if per_thread {
                    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                } else {
                    CU_GET_PROC_ADDRESS_LEGACY_STREAM
                };
                let found = look_up(&family, version, flags)?;
                let expected = resolve(id.family().as_bytes(), version, per_thread);
                // An older driver lacks functions that are newer than it.
                let Some(export) = expected.and_then(|expected| find(expected.symbol())) else { continue };
                if found.address == 0 {
                    continue;
                }
                compared += 1;
                if found.address != export {
                    different.push(format!("{}@{version}/{flags}", id.family()));
                }
            }
        }
    }
    different.sort();
    different.dedup();
    facts.has("look-ups compared", compared, "more than a thousand", compared > 1000);
    facts.is("look-ups that lead elsewhere than the export", different, Vec::new());
    Ok(())
}

fn flags_choose_the_default_stream(facts: &mut Facts) -> Result<(), Stop> {
    must!(cuInit(0));
    for (flags, symbol) in [
        (CU_GET_PROC_ADDRESS_DEFAULT, "cuStreamQuery"),
        (CU_GET_PROC_ADDRESS_LEGACY_STREAM, "cuStreamQuery"),
        (CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, "cuStreamQuery_ptsz"),
    ] {
        let found = look_up(c"cuStreamQuery", 12_000, flags)?;
        facts.code(&format!("cuStreamQuery with flags {flags}"), found.code, CUDA_SUCCESS);
        facts.is("its status", found.status, CU_GET_PROC_ADDRESS_SUCCESS);
        facts.is(&format!("its address is {symbol}'s"), Some(found.address), find(symbol));
    }
    let found = look_up(c"cuMemAlloc", 12_000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)?;
    facts.is("a function without streams is one for both", Some(found.address), find("cuMemAlloc_v2"));
    Ok(())
}

fn missing_names_are_told_from_names_that_are_too_new(facts: &mut Facts) -> Result<(), Stop> {
    must!(cuInit(0));
    let missing = look_up(c"cuNothingOfThisName", 12_000, 0)?;
    facts.code("a name that is no function's", missing.code, CUDA_SUCCESS);
    facts.is("its address", missing.address, 0);
    facts.is("its status", missing.status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    let suffixed = look_up(c"cuMemAlloc_v2", 12_000, 0)?;
    facts.is("an exported name with its version is no name here", suffixed.address, 0);
    let newer = look_up(c"cuLaunchKernelEx", 11_000, 0)?;
    facts.code("a function newer than the version asked for", newer.code, CUDA_SUCCESS);
    facts.is("its address", newer.address, 0);
    facts.is("its status", newer.status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    let mut address = null_mut();
    let old = cu!(cuGetProcAddress(c"cuNothingOfThisName".as_ptr(), &mut address, 12_000, 0));
    facts.code("the older look-up of such a name", old, CUDA_ERROR_NOT_FOUND);
    let unasked = cu!(cuGetProcAddress_v2(c"cuInit".as_ptr(), &mut address, 12_000, 0, null_mut()));
    facts.code("a caller who does not want the status", unasked, CUDA_SUCCESS);
    let code = cu!(cuGetProcAddress_v2(null(), &mut address, 12_000, 0, null_mut()));
    facts.code("a null name", code, CUDA_ERROR_INVALID_VALUE);
    Ok(())
}

fn the_empty_name_and_unknown_tables(facts: &mut Facts) -> Result<(), Stop> {
    must!(cuInit(0));
    // libcudart makes this look-up first, since 12.8.
    let empty = look_up(c"", 0, 0)?;
    facts.code("the empty name with version 0", empty.code, CUDA_SUCCESS);
    facts.is("its address", empty.address, 0);
    let (id, mut table) = (CUuuid { bytes: [7; 16] }, null());
    let code = cu!(cuGetExportTable(&mut table, &id));
    facts.code("a private table that nobody has", code, CUDA_ERROR_NOT_FOUND);
    Ok(())
}
