//! The addresses of the real driver's functions, found once each and remembered.

pub mod calls;
pub mod code;
#[cfg(test)]
pub mod fake;
pub mod managed;
pub mod memory;

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use deepres_abi::driver::ApiId;

use crate::resolve::{self, elf};

/// Longest symbol of the table with its terminating NUL, rounded up.
const SYMBOL_BYTES: usize = 128;
/// What the driver library calls itself, up to its version.
const SONAME_START: &[u8] = b"libcuda.so";
/// What the libraries that come with it call themselves: that for management, for one, looks the driver's version up in it.
const BESIDE_DRIVER: &[u8] = b"libnvidia-";

/// By [`ApiId`]; 0: not known yet.
pub static REAL: [AtomicUsize; ApiId::COUNT] = [const { AtomicUsize::new(0) }; ApiId::COUNT];
/// Some address inside the libcuda that the first known function came from; 0: none yet.
static INSTANCE: AtomicUsize = AtomicUsize::new(0);
/// Some address inside the libcuda that the functions above forward to, where they are not a driver's but those of a library that stands for one
/// (TensorFlow's looks each function up when it is called first); 0: none known.
static BEHIND: AtomicUsize = AtomicUsize::new(0);
/// By [`ApiId`]: whether the library that forwards has been told where the driver has the function.
static TOLD: [AtomicBool; ApiId::COUNT] = [const { AtomicBool::new(false) }; ApiId::COUNT];

/// The real function, typed, or `None` where no driver has it: `real!(cuInit)`; with `by` another way to its address than [`address`].
macro_rules! real {
    ($symbol:ident) => {
        $crate::driver::real!($symbol by $crate::driver::address)
    };
    ($symbol:ident by $find:path) => {{
        let address = $find(deepres_abi::driver::ApiId::$symbol);
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

/// Where the driver itself has the function, for calls of our own: what forwards to it is only told of what the process calls.
pub fn own_address(id: ApiId) -> usize {
    behind_symbol(id).unwrap_or_else(|| address(id))
}

/// The address if it is known already.
pub fn known(id: ApiId) -> Option<usize> {
    Some(REAL[id as usize].load(Ordering::Acquire)).filter(|address| *address != 0)
}

/// Takes `found` for the real function unless another is known, or it is another copy's of the driver. Returns whether `found` is the one that hooks
/// will call.
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

/// Makes the library of `found` the one that hooks call: but if the program is bound to a driver, that driver, whatever is asked for first.
#[cold]
fn adopt(found: usize) {
    let mut buffer = [0_u8; SYMBOL_BYTES];
    let bound = c_string(ApiId::cuInit.symbol(), &mut buffer)
        .and_then(resolve::next_definition)
        .filter(|bound| is_in_driver(*bound) && is_in_driver(found))
        .unwrap_or(found);
    let _ = INSTANCE.compare_exchange(0, bound, Ordering::AcqRel, Ordering::Relaxed);
    // Also for who comes second: a look-up of ours that fails leaves an error behind, which the next one that succeeds takes away.
    resolve::keep(bound);
}

/// Whether `found` is of the driver that hooks call, or of a library that stands for it. A second copy of the driver knows nothing of what the first
/// was asked for: its functions may not be called in the place of the first one's.
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

/// Places `found`, which `cuGetProcAddress` answered to whoever asked.
pub fn place_answer(id: ApiId, found: usize) -> Found {
    look_behind(found);
    match (known(id), behind_symbol(id)) {
        (Some(called), Some(driver)) if driver == found && called != found => tell(id, found),
        // What forwards has not been called: the driver itself will be.
        (None, Some(driver)) if driver != found => Found::Elsewhere,
        (None, Some(_)) => {
            remember(id, found);
            Found::Hooked
        }
        _ if address(id) == found => Found::Hooked,
        _ => Found::Elsewhere,
    }
}

/// `found` is the driver's, and somebody asks for it while the hook calls what forwards to it. It may be that library, which asks in the midst of a call of the
/// hook's (through another that wraps `dlsym`, or by `cuGetProcAddress`): so the first is given the driver's. Whoever comes later gets the hook; as that may again
/// be that library, the hook calls the driver itself from now on, or the two would call each other for ever.
fn tell(id: ApiId, found: usize) -> Found {
    REAL[id as usize].store(found, Ordering::Release);
    if TOLD[id as usize].swap(true, Ordering::AcqRel) { Found::Hooked } else { Found::Behind }
}

/// Knows the driver by `found`, a function of its, if what is called so far only stands for one.
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

/// The driver behind a library that forwards to it.
fn behind() -> Option<elf::Object> {
    let behind = BEHIND.load(Ordering::Acquire);
    if behind == 0 { None } else { elf::Object::containing(behind) }
}

/// Where that driver has the function.
fn behind_symbol(id: ApiId) -> Option<usize> {
    let driver = behind()?;
    driver.symbol(c_string(id.symbol(), &mut [0_u8; SYMBOL_BYTES])?)
}

/// In the libcuda in use; else where the dynamic linker would have bound the caller without us; else in a libcuda that some
/// library brought for itself alone (a Python extension linked to it and loaded with `RTLD_LOCAL`), or what stands for one.
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

/// Where a loaded driver library has `symbol`, whoever may see it.
pub fn loaded(symbol: &CStr) -> Option<usize> {
    elf::find(|object| if is_driver(object) { object.symbol(symbol) } else { None })
}

/// How many libraries go past us: they are bound to the driver's functions where ours should be, or look them up by the C library's own `dlsym`. What is
/// bound at its first call counts once it was.
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

/// Whether it is linked to the driver and bound to one of its functions where ours should be.
fn is_bound_to_driver(object: &elf::Object) -> bool {
    let is_bound = |name: &CStr, bound| {
        let id = deepres_abi::driver::by_symbol(name.to_bytes())?;
        crate::hooks::address(id)?;
        (known(id) == Some(bound) || loaded_in_driver(bound)).then_some(())
    };
    object.needs(SONAME_START) && object.imports(is_bound).is_some()
}

/// Whether it is bound to one of `lookups` where ours should be, and names the driver: it opens that by itself, as whoever has libcudart inside does. Of the many
/// that look up something else nothing is to be told.
fn looks_past(object: &elf::Object, lookups: &[usize]) -> bool {
    object.is_bound_to(lookups) && object.mentions(SONAME_START)
}

/// Whether `address` is of a driver of this process's. As [`is_in_driver`], among objects that were listed.
fn loaded_in_driver(address: usize) -> bool {
    let is_there = |object: &elf::Object| object.contains(address).then(|| is_driver(object));
    elf::find(is_there).or_else(|| elf::find_elsewhere(is_there)).unwrap_or(false)
}

fn is_driver(object: &elf::Object) -> bool {
    object.soname().unwrap_or_default().to_bytes().starts_with(SONAME_START)
}

/// Whether it is the driver, or came with it.
fn is_part_of_driver(object: &elf::Object) -> bool {
    is_driver(object) || object.soname().unwrap_or_default().to_bytes().starts_with(BESIDE_DRIVER)
}

fn c_string<'b>(text: &str, buffer: &'b mut [u8; SYMBOL_BYTES]) -> Option<&'b CStr> {
    buffer.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
    CStr::from_bytes_until_nul(buffer).ok()
}
