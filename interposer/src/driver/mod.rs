//! The addresses of the real driver's functions, found once each and remembered.

pub mod calls;
#[cfg(test)]
pub mod fake;

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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
/// Some address inside the libcuda that the functions above forward to, where they are not a driver's but those of a library that stands for one
/// (TensorFlow's looks each function up when it is called first); 0: none known.
static BEHIND: AtomicUsize = AtomicUsize::new(0);
/// By [`ApiId`]: whether the library that forwards has been told where the driver has the function.
static TOLD: [AtomicBool; ApiId::COUNT] = [const { AtomicBool::new(false) }; ApiId::COUNT];

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

/// What a function that a look-up found has to do with the one that the hook calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// It is that one, or a library that forwards to it is what the hook calls: the hook goes for it.
    Hooked,
    /// The asker is the library that the hook calls, and wants what it forwards to. The hook would lead it in a circle.
    Behind,
    /// It belongs to another copy of the driver.
    Elsewhere,
}

/// Places `found`, which a look-up from `caller` found. If no other is known, it is from now on the function that the hook calls.
pub fn place(id: ApiId, found: usize, caller: usize) -> Found {
    if remember(id, found) {
        return Found::Hooked;
    }
    let Some(called) = known(id).and_then(elf::Object::containing).filter(|object| !is_driver(object)) else {
        return Found::Elsewhere;
    };
    // Where another library wraps `dlsym`, that is the caller for whoever asks; but the hook's call makes the forwarder ask at once, before all others.
    let is_forwarder = called.contains(caller)
        || elf::Object::containing(caller).is_some_and(|object| object.symbol(c"dlsym").is_some())
            && !TOLD[id as usize].load(Ordering::Acquire);
    if is_forwarder {
        BEHIND.store(found, Ordering::Release);
        TOLD[id as usize].store(true, Ordering::Release);
        return Found::Behind;
    }
    let is_same = behind().is_some_and(|driver| driver.contains(found));
    if is_same { Found::Hooked } else { Found::Elsewhere }
}

/// Whether `found` is the real function: the one that is called in the end, or the one that the hook calls.
pub fn is_real(id: ApiId, found: usize) -> bool {
    let mut buffer = [0_u8; SYMBOL_BYTES];
    let Some(symbol) = c_string(id.symbol(), &mut buffer) else { return false };
    behind().and_then(|driver| driver.symbol(symbol)) == Some(found) || address(id) == found
}

/// The driver behind a library that forwards to it.
fn behind() -> Option<elf::Object> {
    let behind = BEHIND.load(Ordering::Acquire);
    if behind == 0 { None } else { elf::Object::containing(behind) }
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
/// library brought for itself alone (a Python extension linked to it and loaded with `RTLD_LOCAL`), or what stands for one.
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
        .or_else(|| loaded(symbol))
        .or_else(|| resolve::next_loaded(symbol));
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
    elf::find(|object| if is_driver(object) { object.symbol(symbol) } else { None })
}

fn is_driver(object: &elf::Object) -> bool {
    object.soname().unwrap_or_default().to_bytes().starts_with(SONAME_START)
}

fn c_string<'b>(text: &str, buffer: &'b mut [u8; SYMBOL_BYTES]) -> Option<&'b CStr> {
    buffer.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
    CStr::from_bytes_until_nul(buffer).ok()
}
