//! Keeps the libraries whose addresses stay with us.

use std::ffi::{c_int, c_void};
use std::{mem, ptr};

/// `dladdr1` is to tell of the object, too.
const RTLD_DL_LINKMAP: c_int = 2;

/// Keeps the library that `address` lies in for good, in whichever namespace it is: its clients close it and open it again, and would find it elsewhere.
pub fn keep(address: usize) {
    // SAFETY: all zeroes is a valid Dl_info: pointers and nothing else.
    let mut info = unsafe { mem::zeroed::<libc::Dl_info>() };
    let mut object: *mut c_void = ptr::null_mut();
    // SAFETY: the results have room, and any address may be asked about.
    let known = unsafe { libc::dladdr1(address as *const c_void, &mut info, &mut object, RTLD_DL_LINKMAP) };
    if known == 0 || info.dli_fname.is_null() || object.is_null() {
        return;
    }
    let mut namespace: libc::Lmid_t = 0;
    // SAFETY: glibc's handles are its objects' addresses; the result has room.
    if unsafe { libc::dlinfo(object, libc::RTLD_DI_LMID, (&raw mut namespace).cast()) } == 0 {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // SAFETY: the name of an object that is loaded there; nothing new is.
        unsafe { libc::dlmopen(namespace, info.dli_fname, flags) };
    }
}
