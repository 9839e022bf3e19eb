//! What a `dlsym` or `dlvsym` answers. Runs inside look-ups of any program at any time, so: no lock of ours, no allocation, no
//! initialisation that waits.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use deepres_abi::driver::{self, ApiId};

use super::{copies, elf, entry};
use crate::coverage;
use crate::driver::{self as real, Found};
use crate::hooks::{self, nvml};

/// What every driver function's name begins with.
const DRIVER: &[u8; 2] = b"cu";
/// What every function's name of the management library begins with, cut to the same length.
const MANAGEMENT: &[u8; 2] = b"nv";

/// A function that is hooked.
enum Hooked {
    Driver(ApiId, usize),
    Management(&'static nvml::Hook),
}

impl Hooked {
    /// The function exported under `symbol`, if it is hooked. A driver function that is not is noted as looked up.
    fn by_symbol(symbol: &CStr) -> Option<Self> {
        if symbol.to_bytes().starts_with(MANAGEMENT) {
            return nvml::by_symbol(symbol).map(Self::Management);
        }
        let id = driver::by_symbol(symbol.to_bytes())?;
        let hook = hooks::address(id);
        if hook.is_none() {
            coverage::note(id, false);
        }
        hook.map(|hook| Self::Driver(id, hook))
    }

    fn address(&self) -> usize {
        match self {
            Self::Driver(_, hook) => *hook,
            Self::Management(hook) => hook.address(),
        }
    }

    /// What `found`, which a look-up from `caller` found, has to do with the function that the hook calls.
    fn place(&self, found: usize, caller: usize) -> Found {
        match self {
            Self::Driver(id, _) => real::place(*id, found, caller),
            Self::Management(hook) if hook.function.remember(found) => Found::Hooked,
            Self::Management(_) => Found::Elsewhere,
        }
    }

    /// Whether `found` is the function that the hook will call.
    fn remember(&self, found: usize) -> bool {
        match self {
            Self::Driver(id, _) => real::remember(*id, found),
            Self::Management(hook) => hook.function.remember(found),
        }
    }

    /// Where a loaded library has the real one, whoever may see it.
    fn loaded(&self, symbol: &CStr) -> Option<usize> {
        match self {
            Self::Driver(..) => real::loaded(symbol),
            Self::Management(_) => crate::nvml::loaded(symbol),
        }
    }

    /// A look-up of it was answered, with the hook or without.
    fn note(&self, is_hooked: bool) {
        if let Self::Driver(id, _) = self {
            coverage::note(*id, is_hooked);
            if !is_hooked {
                coverage::count(&coverage::OWN.other_instance);
            }
        }
    }
}

/// What the entry points do, in the registers that a pair is returned in.
#[repr(C)]
pub struct Answer {
    /// Where to jump, or 0.
    jump: usize,
    /// What to return if there is no jump; may be null.
    value: usize,
}

impl Answer {
    const fn jump(to: usize) -> Self {
        Self { jump: to, value: 0 }
    }

    const fn value(value: usize) -> Self {
        Self { jump: 0, value }
    }
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

static REAL_DLSYM: AtomicUsize = AtomicUsize::new(0);
static REAL_DLVSYM: AtomicUsize = AtomicUsize::new(0);
/// Those of the C library, where somebody asked for them by a handle.
static C_DLSYM: AtomicUsize = AtomicUsize::new(0);
static C_DLVSYM: AtomicUsize = AtomicUsize::new(0);
/// What the C library calls itself, and the part of it that had `dlsym` before glibc 2.34.
const C_LIBRARIES: [&CStr; 2] = [c"libc.so.6", c"libdl.so.2"];

/// The definition that would be found without us: the next one after our library in the search order, which may be another
/// preloaded library's.
fn next(cache: &AtomicUsize, name: &CStr) -> usize {
    let known = cache.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let found = next_loaded(name).unwrap_or(0);
    cache.store(found, Ordering::Relaxed);
    found
}

/// An address inside our own library.
pub fn own_address() -> usize {
    &raw const REAL_DLSYM as usize
}

/// Whether `address` lies in our own library.
pub fn is_own(address: usize) -> bool {
    elf::Object::containing(own_address()).is_some_and(|own| own.contains(address))
}

/// Called by the entry point of `dlsym`; `caller` is its return address.
pub unsafe extern "C" fn decide_dlsym(handle: *mut c_void, name: *const c_char, caller: usize) -> Answer {
    // SAFETY: as they came.
    unsafe { decide_before(next(&REAL_DLSYM, c"dlsym"), handle, name, caller) }
}

/// Called by the entry point for those who asked for the C library's own `dlsym`.
pub unsafe extern "C" fn decide_dlsym_by_handle(
    handle: *mut c_void,
    name: *const c_char,
    caller: usize,
) -> Answer {
    // SAFETY: as they came.
    unsafe { decide_before(C_DLSYM.load(Ordering::Acquire), handle, name, caller) }
}

/// # Safety
/// `target` is 0 or a library's definition of `dlsym`, the rest is what the process passed to ours.
unsafe fn decide_before(target: usize, handle: *mut c_void, name: *const c_char, caller: usize) -> Answer {
    if target == 0 {
        return Answer::value(0);
    }
    // SAFETY: a definition of `dlsym`, by the caller's word.
    let dlsym = unsafe { std::mem::transmute::<usize, Dlsym>(target) };
    // SAFETY: as they came.
    unsafe { decide(handle, name, caller, target, |handle| dlsym(handle, name) as usize) }
}

/// Called by the entry point of `dlvsym`.
pub unsafe extern "C" fn decide_dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> Answer {
    // SAFETY: as they came.
    unsafe { decide_version_before(next(&REAL_DLVSYM, c"dlvsym"), handle, name, version, caller) }
}

/// Called by the entry point for those who asked for the C library's own `dlvsym`.
pub unsafe extern "C" fn decide_dlvsym_by_handle(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> Answer {
    // SAFETY: as they came.
    unsafe { decide_version_before(C_DLVSYM.load(Ordering::Acquire), handle, name, version, caller) }
}

/// # Safety
/// As [`decide_before`], of `dlvsym`.
unsafe fn decide_version_before(
    target: usize,
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> Answer {
    if target == 0 {
        return Answer::value(0);
    }
    // SAFETY: a definition of `dlvsym`, by the caller's word.
    let dlvsym = unsafe { std::mem::transmute::<usize, Dlvsym>(target) };
    // SAFETY: as they came.
    unsafe { decide(handle, name, caller, target, |handle| dlvsym(handle, name, version) as usize) }
}

/// A function that finds others by their names.
enum Lookup {
    Dlsym,
    Dlvsym,
}

impl Lookup {
    fn by_symbol(symbol: &CStr) -> Option<Self> {
        match symbol.to_bytes() {
            b"dlsym" => Some(Self::Dlsym),
            b"dlvsym" => Some(Self::Dlvsym),
            _ => None,
        }
    }

    /// Ours, before the next one in the search order.
    fn entry(&self) -> usize {
        match self {
            Self::Dlsym => entry::dlsym_entry as *const () as usize,
            Self::Dlvsym => entry::dlvsym_entry as *const () as usize,
        }
    }

    /// Ours, before `found`, the C library's. 0: there is another C library's already that is ours to go before.
    fn entry_before(&self, found: usize) -> usize {
        let (place, entry) = match self {
            Self::Dlsym => (&C_DLSYM, entry::dlsym_by_handle_entry as *const () as usize),
            Self::Dlvsym => (&C_DLVSYM, entry::dlvsym_by_handle_entry as *const () as usize),
        };
        match place.compare_exchange(0, found, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => entry,
            Err(known) if known == found => entry,
            Err(_) => 0,
        }
    }

    /// What `caller` gets that asked for the next one after it, in the search order.
    fn next_for(&self, caller: usize, target: usize) -> Answer {
        if elf::is_before(caller, own_address()) { Answer::value(self.entry()) } else { Answer::jump(target) }
    }

    /// What `caller` gets that found `found` by a handle, or by the whole search order. The C library's calls nobody back, so one of ours before it leads in no circle;
    /// but a library after us may be what our own look-ups go through, or stand for a function that our hooks call.
    fn found_by(&self, caller: usize, found: usize) -> Answer {
        if found == 0 || !is_c_library(found) || is_disabled() {
            return Answer::value(found);
        }
        if elf::is_before(caller, own_address()) {
            let entry = self.entry_before(found);
            if entry != 0 {
                return Answer::value(entry);
            }
        }
        // One that our own look-ups go through is asked after us.
        let nexts = [next(&REAL_DLSYM, c"dlsym"), next(&REAL_DLVSYM, c"dlvsym")];
        let is_next = |object: elf::Object| nexts.iter().any(|next| object.contains(*next));
        if !elf::Object::containing(caller).is_some_and(is_next) {
            coverage::count(&coverage::OWN.given_lookups);
        }
        Answer::value(found)
    }
}

/// Whether the C library has `address`.
fn is_c_library(address: usize) -> bool {
    elf::Object::containing(address).as_ref().is_some_and(is_of_c_library)
}

fn is_of_c_library(object: &elf::Object) -> bool {
    object.soname().is_some_and(|soname| C_LIBRARIES.contains(&soname))
}

/// Functions by which the C library finds others, and namespaces that glibc has at most.
const LOOKUPS: usize = 2;
const NAMESPACES: usize = 16;

/// Where the C libraries of all namespaces have `dlsym` and `dlvsym`; 0 in the places that are left.
pub fn c_lookups() -> [usize; LOOKUPS * NAMESPACES] {
    let mut found = [0; LOOKUPS * NAMESPACES];
    let mut places = found.iter_mut();
    let mut note = |object: &elf::Object| {
        if is_of_c_library(object) {
            for address in [c"dlsym", c"dlvsym"].into_iter().filter_map(|name| object.symbol(name)) {
                *places.next()? = address;
            }
        }
        None::<()>
    };
    elf::find(&mut note);
    elf::find_elsewhere(&mut note);
    found
}

/// `look_up(handle)` asks the real function for `name`, from inside our library.
///
/// Names that are not hooked are the real function's to answer. So is `dlsym` itself for a library after us, which must not get us again. One before us must, though:
/// the real `dlvsym` would pass over our export, which has no version, and so would a handle of the C library.
///
/// # Safety
/// `name` is null or a terminated string.
unsafe fn decide(
    handle: *mut c_void,
    name: *const c_char,
    caller: usize,
    target: usize,
    look_up: impl Fn(*mut c_void) -> usize,
) -> Answer {
    if copies::is_behind_another() {
        return Answer::jump(target);
    }
    // SAFETY: a string of the caller's.
    if !name.is_null() && unsafe { *name as u8 } == b'd' {
        // SAFETY: as above.
        return match Lookup::by_symbol(unsafe { CStr::from_ptr(name) }) {
            Some(lookup) if handle == libc::RTLD_NEXT => lookup.next_for(caller, target),
            Some(lookup) => lookup.found_by(caller, look_up(handle)),
            None => Answer::jump(target),
        };
    }
    // SAFETY: a string of the caller's; the second byte exists if the first is not the end.
    if name.is_null() || unsafe { !begins_with(name, DRIVER) && !begins_with(name, MANAGEMENT) } {
        return Answer::jump(target);
    }
    // SAFETY: as above.
    let symbol = unsafe { CStr::from_ptr(name) };
    let Some(hooked) = Hooked::by_symbol(symbol) else { return Answer::jump(target) };
    // Without a driver on the machine these must find nothing, though we export the name. Is there a real one where the
    // caller would look? The order of objects decides the rest: for a caller before us our export comes first, and one
    // after us (another interposer) wants what is behind it.
    let visible = || {
        if copies::skip(look_up(libc::RTLD_NEXT), symbol).is_some() {
            return true;
        }
        // Else only a library that brought a driver for itself alone sees one.
        let Some(real) = hooked.loaded(symbol) else { return false };
        let is_visible = in_scope_of(caller, &look_up).is_some_and(|found| found == real);
        if is_visible {
            hooked.remember(real);
        } else {
            // Fails again, so that `dlerror` has what the client will ask it for.
            look_up(libc::RTLD_NEXT);
        }
        is_visible
    };
    if handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT {
        if !visible() {
            return Answer::value(0);
        }
        hooked.note(true);
        // Another library's `dlsym` behind us would have it that the question is its own.
        let is_lost = handle == libc::RTLD_NEXT && !is_c_library(target);
        if is_lost && elf::next_after(caller, symbol).is_some_and(is_own) {
            return Answer::value(hooked.address());
        }
        // The order of objects decides whose it is: mostly our export.
        return Answer::jump(target);
    }
    let found = look_up(handle);
    if found == 0 {
        return Answer::value(0);
    }
    if is_own(found) {
        if !visible() {
            return Answer::value(0);
        }
        hooked.note(true);
        return Answer::value(hooked.address());
    }
    if is_disabled() {
        return Answer::value(found);
    }
    let place = hooked.place(found, caller);
    hooked.note(place != Found::Elsewhere);
    Answer::value(if place == Found::Hooked { hooked.address() } else { found })
}

/// Whether a name begins so.
///
/// # Safety
/// `name` is a terminated string.
unsafe fn begins_with(name: *const c_char, start: &[u8; 2]) -> bool {
    // SAFETY: the second byte exists if the first is not the end.
    unsafe { *name as u8 == start[0] && *name.add(1) as u8 == start[1] }
}

/// What `look_up` finds in the library that `caller` lies in and those that came with it.
fn in_scope_of(caller: usize, look_up: impl Fn(*mut c_void) -> usize) -> Option<usize> {
    // SAFETY: all zeroes is a valid Dl_info: pointers and nothing else.
    let mut info = unsafe { std::mem::zeroed::<libc::Dl_info>() };
    // SAFETY: the result has room, and any address may be asked about.
    let known = unsafe { libc::dladdr(caller as *const c_void, &mut info) };
    if known == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the name of an object that is loaded; nothing new is.
    let scope = unsafe { libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if scope.is_null() {
        return None;
    }
    let found = look_up(scope);
    // SAFETY: opened just now.
    unsafe { libc::dlclose(scope) };
    Some(found).filter(|found| *found != 0)
}

/// Where the dynamic linker would have bound `symbol` without us.
pub fn next_definition(symbol: &CStr) -> Option<usize> {
    let target = next(&REAL_DLSYM, c"dlsym");
    if target == 0 {
        return None;
    }
    // SAFETY: `target` is a library's definition of `dlsym`; the call comes from our library, so that `RTLD_NEXT` is what
    // comes after it.
    let found = unsafe {
        let dlsym = std::mem::transmute::<usize, Dlsym>(target);
        dlsym(libc::RTLD_NEXT, symbol.as_ptr()) as usize
    };
    copies::skip(found, symbol)
}

/// Where the first library that was loaded after ours has `symbol`, whoever may see it.
pub fn next_loaded(symbol: &CStr) -> Option<usize> {
    copies::skip(elf::next_after(own_address(), symbol)?, symbol)
}

const UNREAD: u8 = 0;
const ENABLED: u8 = 1;
const DISABLED: u8 = 2;
static SWITCH: AtomicU8 = AtomicU8::new(UNREAD);

/// Whether `DEEPRES_DISABLE=1` turned everything off, or another copy of the library does the work. Read at the first use, once.
pub fn is_disabled() -> bool {
    match SWITCH.load(Ordering::Relaxed) {
        UNREAD => {
            // SAFETY: a terminated name. Whoever changes the environment meanwhile races with all of libc.
            let value = unsafe { libc::getenv(c"DEEPRES_DISABLE".as_ptr()) };
            // SAFETY: not null, so a terminated string.
            let disabled = !value.is_null() && unsafe { CStr::from_ptr(value) } == c"1";
            let disabled = disabled || copies::is_behind_another();
            SWITCH.store(if disabled { DISABLED } else { ENABLED }, Ordering::Relaxed);
            disabled
        }
        state => state == DISABLED,
    }
}
