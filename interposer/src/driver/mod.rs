//! The addresses of the real driver's functions. Each is looked up once and remembered.

pub mod calls;
#[cfg(test)]
pub mod fake;
pub mod managed;
pub mod memory;

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use deepres_abi::driver::ApiId;

use crate::resolve::{self, elf};

/// Size of the longest symbol of the table with its terminating NUL, rounded up.
const SYMBOL_BYTES: usize = 128;
/// Beginning of the driver library's soname, up to its version.
const SONAME_START: &[u8] = b"libcuda.so";
/// Beginning of the sonames of libraries that come with the driver. Among them, the management
/// library looks the driver's version up in the driver.
const BESIDE_DRIVER: &[u8] = b"libnvidia-";

/// Addresses by [`ApiId`]. 0 if not known yet.
pub static REAL: [AtomicUsize; ApiId::COUNT] = [const { AtomicUsize::new(0) }; ApiId::COUNT];
/// An address inside the libcuda that the first known function came from. 0 if none is known yet.
static INSTANCE: AtomicUsize = AtomicUsize::new(0);
/// An address inside the driver's libcuda, if the functions in `REAL` belong to a library that only
/// forwards to it. TensorFlow has such a library, which looks each function up at its first call. 0
/// if none is known.
static BEHIND: AtomicUsize = AtomicUsize::new(0);
/// By [`ApiId`]: whether the forwarding library was given the driver's address of the function.
static TOLD: [AtomicBool; ApiId::COUNT] = [const { AtomicBool::new(false) }; ApiId::COUNT];

/// Returns the real function with its type, or `None` if no driver has it: `real!(cuInit)`. With
/// `by`, another function than [`address`] looks it up.
macro_rules! real {
    ($symbol:ident) => {
        $crate::driver::real!($symbol by $crate::driver::address)
    };
    ($symbol:ident by $find:path) => {{
        let address = $find(deepres_abi::driver::ApiId::$symbol);
        // SAFETY: `address` is 0 or the driver's address of `$symbol`, whose type the table gives.
        // An `Option` of a function pointer is null for `None`.
        unsafe { core::mem::transmute::<usize, Option<deepres_abi::driver::pfn::$symbol>>(address) }
    }};
}
pub(crate) use real;

/// Returns the address of the real function, or 0 if no loaded driver has it.
#[inline(always)]
pub fn address(id: ApiId) -> usize {
    let known = REAL[id as usize].load(Ordering::Acquire);
    if known != 0 { known } else { find(id) }
}

/// Returns the driver's own address of the function, for calls of deepres. A forwarding library is
/// bypassed, because it only sees calls of the process.
pub fn own_address(id: ApiId) -> usize {
    behind_symbol(id).unwrap_or_else(|| address(id))
}

/// Returns the address if it is already known.
pub fn known(id: ApiId) -> Option<usize> {
    Some(REAL[id as usize].load(Ordering::Acquire)).filter(|address| *address != 0)
}

/// Records `found` as the real function. Does nothing if another one is known, or if `found`
/// belongs to another copy of the driver. Returns whether `found` is the function that hooks will
/// call.
pub fn remember(id: ApiId, found: usize) -> bool {
    if INSTANCE.load(Ordering::Acquire) == 0 {
        adopt(found);
    }
    if !is_of_instance(found) {
        return false;
    }
    match REAL[id as usize].compare_exchange(0, found, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => true,
        Err(known) => known == found,
    }
}

/// Chooses the library whose functions hooks call. If the program is linked to a driver, that
/// driver is chosen. Otherwise the library of `found` is chosen.
#[cold]
fn adopt(found: usize) {
    let mut buffer = [0_u8; SYMBOL_BYTES];
    let bound = c_string(ApiId::cuInit.symbol(), &mut buffer)
        .and_then(resolve::next_definition)
        .filter(|bound| is_in_driver(*bound) && is_in_driver(found))
        .unwrap_or(found);
    let _ = INSTANCE.compare_exchange(0, bound, Ordering::AcqRel, Ordering::Relaxed);
    // This call is made even if another thread was first. A failed look-up leaves an error in
    // `dlerror`, and the successful look-up here clears it.
    resolve::keep(bound);
}

/// Whether `found` belongs to the driver that hooks call, or to a library that forwards to it. A
/// second copy of the driver shares no state with the first. So its functions may not be called in
/// place of the first one's.
fn is_of_instance(found: usize) -> bool {
    let Some(called) = elf::Object::containing(INSTANCE.load(Ordering::Acquire)) else { return true };
    if called.contains(found) {
        return true;
    }
    if is_driver(&called) {
        return false;
    }
    behind().is_none_or(|driver| driver.contains(found) || !is_in_driver(found))
}

/// Relation between a function that a look-up found and the function that the hook calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The hook may stand in for the function: the hook calls that function, or a library that
    /// forwards to it.
    Hooked,
    /// The caller is the library that the hook calls, and it asks for the function that it forwards
    /// to. With the hook instead, the two would call each other for ever.
    Behind,
    /// The function belongs to another copy of the driver.
    Elsewhere,
}

/// Classifies `found`, which a look-up from `caller` found. If no other function is known, hooks
/// call `found` from now on.
pub fn place(id: ApiId, found: usize, caller: usize) -> Found {
    look_behind(found);
    if remember(id, found) {
        return Found::Hooked;
    }
    let Some(called) = known(id).and_then(elf::Object::containing).filter(|object| !is_driver(object)) else {
        return Found::Elsewhere;
    };
    if called.contains(caller) {
        TOLD[id as usize].store(true, Ordering::Relaxed);
        return Found::Behind;
    }
    if behind().is_some_and(|driver| driver.contains(found)) { tell(id, found) } else { Found::Elsewhere }
}

/// Classifies `found`, which `cuGetProcAddress` returned to a caller.
pub fn place_answer(id: ApiId, found: usize) -> Found {
    look_behind(found);
    match (known(id), behind_symbol(id)) {
        (Some(called), Some(driver)) if driver == found && called != found => tell(id, found),
        // The forwarding library was not called yet, so hooks will call the driver itself.
        (None, Some(driver)) if driver != found => Found::Elsewhere,
        (None, Some(_)) => {
            remember(id, found);
            Found::Hooked
        }
        _ if address(id) == found => Found::Hooked,
        _ => Found::Elsewhere,
    }
}

/// Handles a look-up of the driver's function `found` while the hook calls a forwarding library.
///
/// The look-up may come from that library, in the middle of a call that the hook made. It does if
/// the library asks through a `dlsym` wrapper or `cuGetProcAddress`. So the first look-up is given
/// the driver's function.
///
/// Later look-ups are given the hook. They too may come from the forwarding library, and then hook
/// and library would call each other for ever. So the hook calls the driver itself from now on.
fn tell(id: ApiId, found: usize) -> Found {
    REAL[id as usize].store(found, Ordering::Release);
    if TOLD[id as usize].swap(true, Ordering::AcqRel) { Found::Hooked } else { Found::Behind }
}

/// Records `found` as an address in the driver, if the functions called so far belong to a library
/// that only forwards.
fn look_behind(found: usize) {
    let instance = INSTANCE.load(Ordering::Acquire);
    if instance == 0 || BEHIND.load(Ordering::Acquire) != 0 || is_in_driver(instance) || !is_in_driver(found)
    {
        return;
    }
    resolve::keep(found);
    BEHIND.store(found, Ordering::Release);
}

fn is_in_driver(address: usize) -> bool {
    elf::Object::containing(address).is_some_and(|object| is_driver(&object))
}

/// Returns the driver behind a forwarding library.
fn behind() -> Option<elf::Object> {
    let behind = BEHIND.load(Ordering::Acquire);
    if behind == 0 { None } else { elf::Object::containing(behind) }
}

/// Returns that driver's address of the function.
fn behind_symbol(id: ApiId) -> Option<usize> {
    let driver = behind()?;
    driver.symbol(c_string(id.symbol(), &mut [0_u8; SYMBOL_BYTES])?)
}

/// Looks the function up. The places are tried in this order:
///
/// - the libcuda in use;
/// - the definition that the dynamic linker would have bound without the interposer;
/// - any loaded libcuda, even one that a library loaded only for itself, such as a Python extension
///   with `RTLD_LOCAL`;
/// - the next loaded library that defines the symbol, such as one that forwards.
#[cold]
fn find(id: ApiId) -> usize {
    let mut buffer = [0_u8; SYMBOL_BYTES];
    let Some(symbol) = c_string(id.symbol(), &mut buffer) else { return 0 };
    let instance = INSTANCE.load(Ordering::Acquire);
    let object = (instance != 0).then(|| elf::Object::containing(instance)).flatten();
    let elsewhere = || {
        let bound = resolve::next_definition(symbol).or_else(|| loaded(symbol));
        bound.or_else(|| resolve::next_loaded(symbol)).filter(|found| is_of_instance(*found))
    };
    match object.and_then(|object| object.symbol(symbol)).or_else(elsewhere) {
        Some(found) => {
            if object.is_some_and(|object| !object.contains(found)) {
                resolve::keep(found);
            }
            remember(id, found);
            known(id).unwrap_or(0)
        }
        None => 0,
    }
}

/// Returns the address of `symbol` in a loaded driver library, in whatever scope that library is.
pub fn loaded(symbol: &CStr) -> Option<usize> {
    elf::find(|object| if is_driver(object) { object.symbol(symbol) } else { None })
}

/// Returns the number of loaded libraries that bypass the interposer. They are bound to the
/// driver's functions instead of the hooks, or look them up by the C library's own `dlsym`. A
/// function with lazy binding counts after its first call.
pub fn bound_past() -> u64 {
    let lookups = resolve::c_lookups();
    let used = lookups.iter().position(|address| *address == 0).unwrap_or(lookups.len());
    let mut count = 0;
    let mut look = |object: &elf::Object| {
        let is_past = !is_part_of_driver(object)
            && (is_bound_to_driver(object) || looks_past(object, &lookups[..used]));
        count += u64::from(is_past);
        None::<()>
    };
    elf::find(&mut look);
    elf::find_elsewhere(&mut look);
    count
}

/// Whether the object is linked to the driver and bound to one of its functions instead of a hook.
fn is_bound_to_driver(object: &elf::Object) -> bool {
    let is_bound = |name: &CStr, bound| {
        let id = deepres_abi::driver::by_symbol(name.to_bytes())?;
        crate::hooks::address(id)?;
        (known(id) == Some(bound) || loaded_in_driver(bound)).then_some(())
    };
    object.needs(SONAME_START) && object.imports(is_bound).is_some()
}

/// Whether the object is bound to one of `lookups` instead of a hook, and contains the driver's
/// name. Such an object opens the driver itself, as one with a static libcudart does. Objects that
/// only look up other libraries are not counted.
fn looks_past(object: &elf::Object, lookups: &[usize]) -> bool {
    object.is_bound_to(lookups) && object.mentions(SONAME_START)
}

/// Whether `address` belongs to a driver in this process. Unlike [`is_in_driver`], this searches
/// the listed objects.
fn loaded_in_driver(address: usize) -> bool {
    let is_there = |object: &elf::Object| object.contains(address).then(|| is_driver(object));
    elf::find(is_there).or_else(|| elf::find_elsewhere(is_there)).unwrap_or(false)
}

fn is_driver(object: &elf::Object) -> bool {
    object.soname().unwrap_or_default().to_bytes().starts_with(SONAME_START)
}

/// Whether the object is the driver, or came with it.
fn is_part_of_driver(object: &elf::Object) -> bool {
    is_driver(object) || object.soname().unwrap_or_default().to_bytes().starts_with(BESIDE_DRIVER)
}

fn c_string<'b>(text: &str, buffer: &'b mut [u8; SYMBOL_BYTES]) -> Option<&'b CStr> {
    buffer.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
    CStr::from_bytes_until_nul(buffer).ok()
}
