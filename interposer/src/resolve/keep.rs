//! Keeps libraries loaded whose addresses the interposer stores.

use std::ffi::{c_int, c_void};
use std::{mem, ptr};

/// Flag of `dladdr1`: also return the object.
const RTLD_DL_LINKMAP: c_int = 2;

/// Keeps the library that contains `address` loaded for good, in any namespace. Otherwise the job
/// could close the library and open it again, at another address.
pub fn keep(address: usize) {
    // SAFETY: all zeroes are a valid Dl_info, which contains only pointers.
    let mut info = unsafe { mem::zeroed::<libc::Dl_info>() };
    let mut object: *mut c_void = ptr::null_mut();
    // SAFETY: the results have room, and the call accepts any address.
    let known = unsafe { libc::dladdr1(address as *const c_void, &mut info, &mut object, RTLD_DL_LINKMAP) };
    if known == 0 || info.dli_fname.is_null() || object.is_null() {
        return;
    }
    let mut namespace: libc::Lmid_t = 0;
    // SAFETY: glibc's handles are the addresses of its objects, and the result has room.
    if unsafe { libc::dlinfo(object, libc::RTLD_DI_LMID, (&raw mut namespace).cast()) } == 0 {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // SAFETY: the name belongs to an object that is loaded in that namespace, and the call
        // loads nothing new.
        unsafe { libc::dlmopen(namespace, info.dli_fname, flags) };
    }
}
