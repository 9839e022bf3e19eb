//! The addresses of the real driver's functions, found once each and remembered.

pub mod calls;
#[cfg(test)]
pub mod fake;

use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

use deepres_abi::driver::ApiId;

use crate::resolve::{self, elf};

/// Longest symbol of the table with its terminating NUL, rounded up.
const SYMBOL_BYTES: usize = 128;
/// What the driver library calls itself, up to its version.
const SONAME_START: &[u8] = b"libcuda.so";

/// By [`ApiId`]; 0: not known yet.
pub static REAL: [AtomicUsize; ApiId::COUNT] = [const { AtomicUsize::new(0) }; ApiId::COUNT];
/// Some address inside the libcuda that the first known function came from; 0: none yet.
static INSTANCE: AtomicUsize = AtomicUsize::new(0);

/// The real function, typed, or `None` where no driver has it: `real!(cuInit)`.
macro_rules! real {
    ($symbol:ident) => {{
        let address = $crate::driver::address(deepres_abi::driver::ApiId::$symbol);
        // SAFETY: `address` is 0 or where the driver has `$symbol`, whose type the table gives; an `Option` of a function
        // pointer is null for `None`.
        unsafe { core::mem::transmute::<usize, Option<deepres_abi::driver::pfn::$symbol>>(address) }
    }};
}
pub(crate) use real;

/// Where the real function is, or 0 if no loaded driver has it.
#[inline(always)]
pub fn address(id: ApiId) -> usize {
    let known = REAL[id as usize].load(Ordering::Acquire);
    if known != 0 { known } else { find(id) }
}

/// The address if it is known already.
pub fn known(id: ApiId) -> Option<usize> {
    Some(REAL[id as usize].load(Ordering::Acquire)).filter(|address| *address != 0)
}

/// Takes `found` for the real function unless another is known. Returns whether `found` is the one that hooks will call.
pub fn remember(id: ApiId, found: usize) -> bool {
    if INSTANCE.compare_exchange(0, found, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        pin(found);
    }
    match REAL[id as usize].compare_exchange(0, found, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => true,
        Err(known) => known == found,
    }
}

/// Keeps the library that `address` lies in for good: a client that probes for the driver closes it again, and its addresses
/// stay with us.
fn pin(address: usize) {
    // SAFETY: all zeroes is a valid Dl_info: pointers and nothing else.
    let mut info = unsafe { std::mem::zeroed::<libc::Dl_info>() };
    // SAFETY: the result has room, and any address may be asked about.
    if unsafe { libc::dladdr(address as *const libc::c_void, &mut info) } != 0 && !info.dli_fname.is_null() {
        // SAFETY: the name of an object that is loaded; nothing new is.
        unsafe { libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
    }
}

/// In the libcuda in use; else where the dynamic linker would have bound the caller without us; else in a libcuda that some
/// library brought for itself alone (a Python extension linked to it and loaded with `RTLD_LOCAL`).
#[cold]
fn find(id: ApiId) -> usize {
    let mut buffer = [0_u8; SYMBOL_BYTES];
    let Some(symbol) = c_string(id.symbol(), &mut buffer) else { return 0 };
    let instance = INSTANCE.load(Ordering::Acquire);
    let found = (instance != 0)
        .then(|| elf::Object::containing(instance))
        .flatten()
        .and_then(|object| object.symbol(symbol))
        .or_else(|| resolve::next_definition(symbol))
        .or_else(|| loaded(symbol));
    match found {
        Some(found) => {
            remember(id, found);
            known(id).unwrap_or(found)
        }
        None => 0,
    }
}

/// Where a loaded driver library has `symbol`, whoever may see it.
pub fn loaded(symbol: &CStr) -> Option<usize> {
    elf::find(|object| {
        let name = object.soname().unwrap_or_default().to_bytes();
        if name.starts_with(SONAME_START) { object.symbol(symbol) } else { None }
    })
}

fn c_string<'b>(text: &str, buffer: &'b mut [u8; SYMBOL_BYTES]) -> Option<&'b CStr> {
    buffer.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
    CStr::from_bytes_until_nul(buffer).ok()
}
