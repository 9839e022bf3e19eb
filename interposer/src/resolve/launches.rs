//! Looks `cuLaunchKernel` up as the process does.
//!
//! A look-up ends at the hook only if the driver, the other preloaded libraries and their order are
//! as deepres expects. So each session tries every way of look-up once, at its beginning.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;

use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
use deepres_abi::driver::{ApiId, pfn};

use super::decide::in_scope_of;
use super::elf;
use crate::driver::{self, real};

const LAUNCH: &CStr = c"cuLaunchKernel";

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The addresses of `cuGetProcAddress_v2` and of `cuGetProcAddress`; 0 for one that is missing.
type ProcAddress = [usize; 2];

/// Returns the names of the ways of look-up by which the process gets the driver's own
/// `cuLaunchKernel`. A library that the process loaded before this one can give a function of its
/// own, which calls the hook. Behind a library that forwards to the driver, the answer depends on
/// the asker, so the function tries nothing.
pub fn lost_ways() -> Vec<&'static str> {
    let (Some(inside), Some(dlsym)) = (driver::address_inside(), elf::find(|object| object.symbol(c"dlsym")))
    else {
        return Vec::new();
    };
    // SAFETY: each definition of `dlsym` has this type.
    let dlsym = unsafe { std::mem::transmute::<usize, Dlsym>(dlsym) };
    let by_dlsym = |name: &CStr| {
        // SAFETY: the handle is open during the call, and the name is terminated.
        in_scope_of(inside, |handle| unsafe { dlsym(handle, name.as_ptr()) as usize }).unwrap_or(0)
    };
    let seen: ProcAddress = [c"cuGetProcAddress_v2", c"cuGetProcAddress"].map(by_dlsym);
    let own: ProcAddress = [ApiId::cuGetProcAddress_v2, ApiId::cuGetProcAddress].map(driver::address);
    let by_proc_address = |flags| (ask(seen, flags), ask(own, flags));
    let per_thread = u64::from(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    let found = [
        ("linking", (elf::find(|object| object.symbol(LAUNCH)).unwrap_or(0), 0)),
        ("dlsym", (by_dlsym(LAUNCH), 0)),
        ("cuGetProcAddress", by_proc_address(0)),
        ("cuGetProcAddress for per-thread default streams", by_proc_address(per_thread)),
    ];
    let is_lost = |(seen, own): (usize, usize)| seen != 0 && (seen == own || driver::is_inside(seen));
    found.into_iter().filter(|(_, found)| is_lost(*found)).map(|(way, _)| way).collect()
}

/// Returns the answer of `cuGetProcAddress` for `cuLaunchKernel`; 0 without an answer.
fn ask([newer, older]: ProcAddress, flags: u64) -> usize {
    let (mut version, mut found, mut status) = (0, null_mut(), 0);
    // SAFETY: the result has room.
    let is_known = real!(cuDriverGetVersion).is_some_and(|ask| unsafe { ask(&mut version) } == CUDA_SUCCESS);
    if !is_known || newer | older == 0 {
        return 0;
    }
    // SAFETY: a look-up by this name found the function, so it has the type of this name in the
    // table. All results have room, and the name is terminated.
    let result = unsafe {
        if newer == 0 {
            let ask = std::mem::transmute::<usize, pfn::cuGetProcAddress>(older);
            ask(LAUNCH.as_ptr(), &mut found, version, flags)
        } else {
            let ask = std::mem::transmute::<usize, pfn::cuGetProcAddress_v2>(newer);
            ask(LAUNCH.as_ptr(), &mut found, version, flags, &mut status)
        }
    };
    if result == CUDA_SUCCESS { found as usize } else { 0 }
}
