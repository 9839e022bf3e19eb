//! The addresses of the real driver's functions. The module looks each function up once and
//! remembers it.

pub mod calls;
#[cfg(test)]
pub mod fake;
pub mod kernels;
pub mod managed;
pub mod memory;
mod nodes;

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::CUDA_SUCCESS;

use crate::resolve::{self, elf};

/// The size of the longest symbol of the table with its terminating NUL, rounded up.
const SYMBOL_BYTES: usize = 128;
/// The highest number of a variant for which deepres searches, as in `cuCtxCreate_v4`.
const NEWEST_VARIANT: u32 = 9;
/// The beginning of the soname of the driver's library, up to its version.
const SONAME_START: &[u8] = b"libcuda.so";
/// The prefix of the sonames of libraries that come with the driver. One of these is NVML, which
/// looks up the driver's version in the driver.
const BESIDE_DRIVER: &[u8] = b"libnvidia-";

/// The addresses of the real functions, by [`ApiId`]. An address is 0 until the interposer knows
/// it.
pub static REAL: [AtomicUsize; ApiId::COUNT] = [const { AtomicUsize::new(0) }; ApiId::COUNT];
/// An address inside the libcuda of the first known function. 0 if no function is known yet.
static INSTANCE: AtomicUsize = AtomicUsize::new(0);
/// An address inside the driver's libcuda, if the functions in `REAL` belong to a library that only
/// forwards to libcuda. Else 0. TensorFlow has such a library, which looks each function up at its
/// first call. Under WSL2, libcuda.so.1 itself is such a library, a *loader* of the driver.
static BEHIND: AtomicUsize = AtomicUsize::new(0);
/// By [`ApiId`]: whether a look-up of the forwarding library got the driver's address of the
/// function.
static TOLD: [AtomicBool; ApiId::COUNT] = [const { AtomicBool::new(false) }; ApiId::COUNT];

/// Returns the real function with its type: `real!(cuInit)`. Returns `None` if no driver has the
/// function. With `by`, another function than [`address`] looks the function up.
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

/// Returns the address of the real function, or 0 if no loaded driver has the function.
#[inline(always)]
pub fn address(id: ApiId) -> usize {
    let known = REAL[id as usize].load(Ordering::Acquire);
    if known != 0 { known } else { find(id) }
}

/// Returns the driver's own address of the function, for calls of deepres. These calls bypass a
/// forwarding library, because such a library should see only the calls of the job.
pub fn own_address(id: ApiId) -> usize {
    behind_symbol(id).unwrap_or_else(|| address(id))
}

/// Returns the address of the real function, if it is already known.
pub fn known(id: ApiId) -> Option<usize> {
    Some(REAL[id as usize].load(Ordering::Acquire)).filter(|address| *address != 0)
}

/// Records `found` as the real function, if no other function is known and `found` belongs to the
/// driver that hooks call. Returns whether `found` is the function that hooks will call.
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

/// Chooses the library whose functions hooks call. If the program is linked to a driver, the choice
/// is that driver. Otherwise the choice is the library of `found`.
#[cold]
fn adopt(found: usize) {
    let mut buffer = [0_u8; SYMBOL_BYTES];
    let bound = c_string(ApiId::cuInit.symbol(), &mut buffer)
        .and_then(resolve::next_definition)
        .filter(|bound| is_inside(*bound) && is_inside(found))
        .unwrap_or(found);
    let _ = INSTANCE.compare_exchange(0, bound, Ordering::AcqRel, Ordering::Relaxed);
    // This thread keeps the library even if another thread was first. A failed look-up leaves an
    // error in `dlerror`, and the successful `dlmopen` in `keep` clears the error.
    resolve::keep(bound);
}

/// Returns whether the driver answers, because the program has initialised it.
pub fn is_initialised() -> bool {
    let mut count = 0;
    // SAFETY: the result has room.
    real!(cuDeviceGetCount).is_some_and(|ask| unsafe { ask(&mut count) } == CUDA_SUCCESS)
}

/// Returns an address inside the driver that the hooks call; `None` if they call a library that
/// only forwards to the driver.
pub fn address_inside() -> Option<usize> {
    let inside = INSTANCE.load(Ordering::Acquire);
    let is_driver = elf::Object::containing(inside).as_ref().is_some_and(is_driver);
    (is_driver && behind().is_none()).then_some(inside)
}

/// Returns whether the hooks call a driver, and the table has all variants of `family` that this
/// driver exports.
pub fn has_no_unknown_variant(family: &[u8]) -> bool {
    let instance = elf::Object::containing(INSTANCE.load(Ordering::Acquire));
    let Some((driver, family)) = instance.filter(is_driver).zip(std::str::from_utf8(family).ok()) else {
        return false;
    };
    let is_known = |name: String| {
        let mut buffer = [0_u8; SYMBOL_BYTES];
        let exported = c_string(&name, &mut buffer).and_then(|name| driver.symbol(name));
        exported.is_none() || deepres_abi::driver::by_symbol(name.as_bytes()).is_some()
    };
    let numbered = (2..=NEWEST_VARIANT).map(|number| format!("{family}_v{number}"));
    numbered.chain([family.to_owned()]).all(|variant| {
        ["", "_ptsz", "_ptds"].into_iter().all(|streams| is_known(format!("{variant}{streams}")))
    })
}

/// Returns whether `found` belongs to the driver that hooks call, or to a library that forwards to
/// this driver. A second copy of the driver shares no state with the first copy, so hooks may not
/// mix their functions.
fn is_of_instance(found: usize) -> bool {
    let Some(called) = elf::Object::containing(INSTANCE.load(Ordering::Acquire)) else { return true };
    if called.contains(found) {
        return true;
    }
    let Some(driver) = behind() else { return !is_driver(&called) };
    driver.contains(found) || !is_driver(&called) && !is_inside(found)
}

/// Returns whether the object only forwards to the driver.
fn is_forwarder(object: &elf::Object) -> bool {
    !is_driver(object) || is_loader(object)
}

/// Returns whether the object is the libcuda that the hooks call, and only loads the driver.
fn is_loader(object: &elf::Object) -> bool {
    is_driver(object) && behind().is_some() && object.contains(INSTANCE.load(Ordering::Acquire))
}

/// Relation between a function that a look-up found and the function that the hook calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The hook may stand in for the function, because the hook calls the function, or calls a
    /// library that forwards to the function.
    Hooked,
    /// The hook calls a forwarding library, and this library asks for the function to which it
    /// forwards. If the library got the hook, hook and library would call each other for ever.
    Behind,
    /// The function belongs to another copy of the driver.
    Elsewhere,
}

/// Returns the relation of `found`, which a look-up from `caller` found. If no other function is
/// known, hooks call `found` from now on.
pub fn place(id: ApiId, found: usize, caller: usize) -> Found {
    look_behind(found, Some(caller));
    let first = elf::Object::containing(INSTANCE.load(Ordering::Acquire)).filter(is_forwarder);
    if first.is_some_and(|first| is_loader(&first) && first.contains(caller) && !first.contains(found)) {
        return Found::Behind;
    }
    // A forwarder's function does what the driver's function does, which the hook may call already.
    if remember(id, found) || first.is_some_and(|first| first.contains(found)) {
        return Found::Hooked;
    }
    let Some(called) = known(id).and_then(elf::Object::containing).filter(is_forwarder) else {
        return Found::Elsewhere;
    };
    if called.contains(caller) {
        TOLD[id as usize].store(true, Ordering::Relaxed);
        return Found::Behind;
    }
    if behind().is_some_and(|driver| driver.contains(found)) { tell(id, found) } else { Found::Elsewhere }
}

/// Returns the relation of `found`, the answer of `cuGetProcAddress` to a caller, to the driver
/// that the hooks call.
pub fn place_answer(id: ApiId, found: usize) -> Found {
    look_behind(found, None);
    match (known(id), behind_symbol(id)) {
        (Some(called), Some(driver)) if driver == found && called != found => tell(id, found),
        // No hook has called the forwarding library yet, so hooks will call the driver itself.
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
/// Returns the relation that decides the answer.
///
/// The look-up can come from that library, in the middle of a call that the hook made. The case
/// happens if the library asks through a `dlsym` wrapper or `cuGetProcAddress`. So the first
/// look-up gets the driver's function.
///
/// Later look-ups get the hook. But a later look-up can come from the forwarding library, and then
/// hook and library would call each other for ever. So the hook calls the driver itself from now
/// on. A loader's own look-ups never come here ([`place`]).
fn tell(id: ApiId, found: usize) -> Found {
    REAL[id as usize].store(found, Ordering::Release);
    let was_told = TOLD[id as usize].swap(true, Ordering::AcqRel);
    if was_told || is_inside(INSTANCE.load(Ordering::Acquire)) { Found::Hooked } else { Found::Behind }
}

/// Records `found` as an address in the driver, if the hooks so far call a library that only
/// forwards. If this library is a libcuda, its own look-up in another libcuda shows that it is a
/// loader. A look-up by another `caller` finds a second copy of the driver.
fn look_behind(found: usize, caller: Option<usize>) {
    if BEHIND.load(Ordering::Acquire) != 0 {
        return;
    }
    let Some(called) = elf::Object::containing(INSTANCE.load(Ordering::Acquire)) else { return };
    let loads = || !called.contains(found) && caller.is_some_and(|caller| called.contains(caller));
    if (!is_driver(&called) || loads()) && is_inside(found) {
        resolve::keep(found);
        BEHIND.store(found, Ordering::Release);
    }
}

/// Returns whether the address is inside a driver.
pub fn is_inside(address: usize) -> bool {
    elf::Object::containing(address).is_some_and(|object| is_driver(&object))
}

/// Returns the driver behind a forwarding library, if there is one.
fn behind() -> Option<elf::Object> {
    let behind = BEHIND.load(Ordering::Acquire);
    if behind == 0 { None } else { elf::Object::containing(behind) }
}

/// If the hooks call a forwarding library, returns the function's address in the driver that the
/// library calls. Otherwise returns `None`.
fn behind_symbol(id: ApiId) -> Option<usize> {
    let driver = behind()?;
    driver.symbol(c_string(id.symbol(), &mut [0_u8; SYMBOL_BYTES])?)
}

/// Looks the function up, and returns its address, or 0. The places are, in this order:
///
/// - the libcuda in use;
/// - the definition that the dynamic linker would have bound without the interposer;
/// - any loaded libcuda, even one that a library loaded only for itself, such as a Python extension
///   with `RTLD_LOCAL`;
/// - the next loaded library that defines the symbol, such as a library that forwards.
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

/// Returns the address of `symbol` in a loaded driver library, in any scope.
pub fn loaded(symbol: &CStr) -> Option<usize> {
    elf::find(|object| if is_driver(object) { object.symbol(symbol) } else { None })
}

/// Returns the number of loaded libraries that bypass the interposer. The dynamic linker bound them
/// to the driver's functions instead of the hooks, or they look functions up by the C library's own
/// `dlsym`. A function with lazy binding counts only after its first call.
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

/// Returns whether the object is linked to the driver, and bound to a driver function instead of
/// its hook.
fn is_bound_to_driver(object: &elf::Object) -> bool {
    let is_bound = |name: &CStr, bound| {
        let id = deepres_abi::driver::by_symbol(name.to_bytes())?;
        crate::hooks::address(id)?;
        (known(id) == Some(bound) || loaded_in_driver(bound)).then_some(())
    };
    object.needs(SONAME_START) && object.imports(is_bound).is_some()
}

/// Returns whether the object is bound to one of `lookups` instead of a hook, and contains the
/// driver's name. Such an object opens the driver itself, as an object with a static libcudart
/// does. Objects that only look up other libraries do not count.
fn looks_past(object: &elf::Object, lookups: &[usize]) -> bool {
    object.is_bound_to(lookups) && object.mentions(SONAME_START)
}

/// Returns whether `address` belongs to a driver in this process. Unlike [`is_inside`], this
/// function searches the listed objects.
fn loaded_in_driver(address: usize) -> bool {
    let is_there = |object: &elf::Object| object.contains(address).then(|| is_driver(object));
    elf::find(is_there).or_else(|| elf::find_elsewhere(is_there)).unwrap_or(false)
}

fn is_driver(object: &elf::Object) -> bool {
    object.soname().unwrap_or_default().to_bytes().starts_with(SONAME_START)
}

/// Returns whether the object is the driver, or came with the driver.
fn is_part_of_driver(object: &elf::Object) -> bool {
    is_driver(object) || object.soname().unwrap_or_default().to_bytes().starts_with(BESIDE_DRIVER)
}

fn c_string<'b>(text: &str, buffer: &'b mut [u8; SYMBOL_BYTES]) -> Option<&'b CStr> {
    buffer.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
    CStr::from_bytes_until_nul(buffer).ok()
}
