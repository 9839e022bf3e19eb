//! Decides the answer of a `dlsym` or `dlvsym`. The code runs inside look-ups of any program at any
//! time. So it takes no lock of deepres, allocates nothing, and does no initialisation that waits.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use deepres_abi::driver::{self, ApiId};

use super::{copies, elf, entry};
use crate::coverage;
use crate::driver::{self as real, Found};
use crate::hooks::{self, nvml};

/// The prefix of every driver function's name.
const DRIVER: &[u8; 2] = b"cu";
/// The prefix of every NVML function's name, cut to the same length.
const MANAGEMENT: &[u8; 2] = b"nv";

/// A function with a hook: of the driver, or of NVML.
enum Hooked {
    Driver(ApiId, usize),
    Management(&'static nvml::Hook),
}

impl Hooked {
    /// Returns the function exported under `symbol`, if it has a hook. If a driver function has no
    /// hook, records the look-up for the coverage.
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

    /// Returns the relation of `found`, which a look-up from `caller` found, to the function that
    /// the hook calls.
    fn place(&self, found: usize, caller: usize) -> Found {
        match self {
            Self::Driver(id, _) => real::place(*id, found, caller),
            Self::Management(hook) if hook.function.remember(found) => Found::Hooked,
            Self::Management(_) => Found::Elsewhere,
        }
    }

    /// Records `found` as the real function. Returns whether `found` is the function that the hook
    /// will call.
    fn remember(&self, found: usize) -> bool {
        match self {
            Self::Driver(id, _) => real::remember(*id, found),
            Self::Management(hook) => hook.function.remember(found),
        }
    }

    /// Returns the address of the real function in a loaded library, in any scope.
    fn loaded(&self, symbol: &CStr) -> Option<usize> {
        match self {
            Self::Driver(..) => real::loaded(symbol),
            Self::Management(_) => crate::nvml::loaded(symbol),
        }
    }

    /// Counts a look-up of this function. `is_hooked` says whether the caller got the hook, and not
    /// the function itself.
    fn note(&self, is_hooked: bool) {
        if let Self::Driver(id, _) = self {
            coverage::note(*id, is_hooked);
            if !is_hooked {
                coverage::count(&coverage::OWN.other_instance);
            }
        }
    }
}

/// The decision about a look-up: the entry point jumps to an address, or returns a value. A
/// function returns the pair in two registers.
#[repr(C)]
pub struct Answer {
    /// The address to which the entry point jumps, or 0.
    jump: usize,
    /// The value that the entry point returns if there is no jump. The value can be null.
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
/// The address of the C library's own `dlsym`, if a caller looked this function up by a handle;
/// else 0.
static C_DLSYM: AtomicUsize = AtomicUsize::new(0);
/// The address of the C library's own `dlvsym`, if a caller looked this function up by a handle;
/// else 0.
static C_DLVSYM: AtomicUsize = AtomicUsize::new(0);
/// The sonames of the C library, and of the part of it that contained `dlsym` before glibc 2.34.
const C_LIBRARIES: [&CStr; 2] = [c"libc.so.6", c"libdl.so.2"];

/// Returns the definition that a look-up would find without this library: the next definition after
/// this library in the search order. The definition can belong to another preloaded library.
fn next(cache: &AtomicUsize, name: &CStr) -> usize {
    let known = cache.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let found = next_loaded(name).unwrap_or(0);
    cache.store(found, Ordering::Relaxed);
    found
}

/// Returns an address inside this library.
pub fn own_address() -> usize {
    &raw const REAL_DLSYM as usize
}

/// Returns whether `address` is in this library.
pub fn is_own(address: usize) -> bool {
    elf::Object::containing(own_address()).is_some_and(|own| own.contains(address))
}

/// Decides what a call of `dlsym` returns. The entry point of `dlsym` calls this function. `caller`
/// is the entry point's return address.
pub unsafe extern "C" fn decide_dlsym(handle: *mut c_void, name: *const c_char, caller: usize) -> Answer {
    // SAFETY: `next` returns 0 or a definition of `dlsym`, and the arguments are the process's own.
    unsafe { decide_before(next(&REAL_DLSYM, c"dlsym"), handle, name, caller) }
}

/// Decides what a call of `dlsym` returns, for callers that looked up the C library's own `dlsym`.
pub unsafe extern "C" fn decide_dlsym_by_handle(
    handle: *mut c_void,
    name: *const c_char,
    caller: usize,
) -> Answer {
    // SAFETY: `C_DLSYM` is 0 or a definition of `dlsym`, and the arguments are the process's own.
    unsafe { decide_before(C_DLSYM.load(Ordering::Acquire), handle, name, caller) }
}

/// Decides what a call of `dlsym` returns. `target` is the real function.
///
/// # Safety
/// `target` is 0 or a library's definition of `dlsym`. The other arguments are those that the
/// process passed to the entry point.
unsafe fn decide_before(target: usize, handle: *mut c_void, name: *const c_char, caller: usize) -> Answer {
    if target == 0 {
        return Answer::value(0);
    }
    // SAFETY: the caller promises that `target` is a definition of `dlsym`.
    let dlsym = unsafe { std::mem::transmute::<usize, Dlsym>(target) };
    // SAFETY: the arguments are the process's own.
    unsafe { decide(handle, name, caller, target, |handle| dlsym(handle, name) as usize) }
}

/// Decides what a call of `dlvsym` returns. The entry point of `dlvsym` calls this function.
pub unsafe extern "C" fn decide_dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> Answer {
    // SAFETY: `next` returns 0 or a definition of `dlvsym`, and the arguments are the process's
    // own.
    unsafe { decide_version_before(next(&REAL_DLVSYM, c"dlvsym"), handle, name, version, caller) }
}

/// Decides what a call of `dlvsym` returns, for callers that looked up the C library's own
/// `dlvsym`.
pub unsafe extern "C" fn decide_dlvsym_by_handle(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> Answer {
    // SAFETY: `C_DLVSYM` is 0 or a definition of `dlvsym`, and the arguments are the process's own.
    unsafe { decide_version_before(C_DLVSYM.load(Ordering::Acquire), handle, name, version, caller) }
}

/// Decides what a call of `dlvsym` returns. `target` is the real function.
///
/// # Safety
/// The same requirements as for [`decide_before`], with `dlvsym` instead of `dlsym`.
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
    // SAFETY: the caller promises that `target` is a definition of `dlvsym`.
    let dlvsym = unsafe { std::mem::transmute::<usize, Dlvsym>(target) };
    // SAFETY: the arguments are the process's own.
    unsafe { decide(handle, name, caller, target, |handle| dlvsym(handle, name, version) as usize) }
}

/// A function that looks other functions up by name.
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

    /// Returns the interposer's entry that stands in for the next definition in the search order.
    fn entry(&self) -> usize {
        match self {
            Self::Dlsym => entry::dlsym_entry as *const () as usize,
            Self::Dlvsym => entry::dlvsym_entry as *const () as usize,
        }
    }

    /// Returns the interposer's entry that stands in for `found`, the C library's `dlsym` or
    /// `dlvsym`. If the entry already stands in for a function at another address, returns 0.
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

    /// Returns the answer for a `caller` that asked for the next definition after its own in the
    /// search order.
    fn next_for(&self, caller: usize, target: usize) -> Answer {
        if elf::is_before(caller, own_address()) { Answer::value(self.entry()) } else { Answer::jump(target) }
    }

    /// Returns the answer for a `caller` that found `found` by a handle or in the whole search
    /// order.
    ///
    /// The C library's function calls no other library. So an entry of deepres in front of it
    /// cannot lead in a circle. If the caller comes after this library, it gets `found` itself, for
    /// two reasons. The interposer's own look-ups can go through that caller. Or the caller can
    /// implement a function that hooks call.
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
        // If the interposer's own look-ups go through the caller's library, this look-up does not
        // count, because the interposer has decided before.
        let nexts = [next(&REAL_DLSYM, c"dlsym"), next(&REAL_DLVSYM, c"dlvsym")];
        let is_next = |object: elf::Object| nexts.iter().any(|next| object.contains(*next));
        if !elf::Object::containing(caller).is_some_and(is_next) {
            coverage::count(&coverage::OWN.given_lookups);
        }
        Answer::value(found)
    }
}

/// Returns whether `address` is in the C library.
fn is_c_library(address: usize) -> bool {
    elf::Object::containing(address).as_ref().is_some_and(is_of_c_library)
}

fn is_of_c_library(object: &elf::Object) -> bool {
    object.soname().is_some_and(|soname| C_LIBRARIES.contains(&soname))
}

/// The number of look-up functions in the C library: `dlsym` and `dlvsym`.
const LOOKUPS: usize = 2;
/// The most namespaces that glibc supports.
const NAMESPACES: usize = 16;

/// Returns the addresses of `dlsym` and `dlvsym` in the C libraries of all namespaces. Unused
/// places contain 0.
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

/// Decides the answer of a look-up. `look_up(handle)` asks the real function for `name`, from
/// inside this library.
///
/// The real function answers for names without a hook. If a library after this library looks up
/// `dlsym`, the real function answers too, because that library must not get this library again. A
/// library before this library must get the entry here. The real `dlvsym` would pass over the
/// export here, which has no version. A handle of the C library would pass over it too.
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
    // SAFETY: the caller's promise makes `name` a terminated string.
    if !name.is_null() && unsafe { *name as u8 } == b'd' {
        // SAFETY: the caller's promise makes `name` a terminated string.
        return match Lookup::by_symbol(unsafe { CStr::from_ptr(name) }) {
            Some(lookup) if handle == libc::RTLD_NEXT => lookup.next_for(caller, target),
            Some(lookup) => lookup.found_by(caller, look_up(handle)),
            None => Answer::jump(target),
        };
    }
    // SAFETY: `name` is a terminated string, so its second byte exists if the first is not the end.
    if name.is_null() || unsafe { !begins_with(name, DRIVER) && !begins_with(name, MANAGEMENT) } {
        return Answer::jump(target);
    }
    // SAFETY: `name` is a terminated string.
    let symbol = unsafe { CStr::from_ptr(name) };
    let Some(hooked) = Hooked::by_symbol(symbol) else { return Answer::jump(target) };
    // Without a driver on the machine, these look-ups must find nothing, although this library
    // exports the name. So the code checks whether a real function exists where the caller would
    // look. After that, the order of objects decides. For a caller before this library, the export
    // here comes first. A caller after this library, such as another interposer, gets the
    // definition behind itself.
    let visible = || {
        if copies::skip(look_up(libc::RTLD_NEXT), symbol).is_some() {
            return true;
        }
        // If a library loaded a driver for itself alone, only that library sees the driver.
        let Some(real) = hooked.loaded(symbol) else { return false };
        let is_visible = in_scope_of(caller, &look_up).is_some_and(|found| found == real);
        if is_visible {
            hooked.remember(real);
        } else {
            // Repeats the failed look-up, so that the caller gets its error message from `dlerror`.
            look_up(libc::RTLD_NEXT);
        }
        is_visible
    };
    if handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT {
        if !visible() {
            return Answer::value(0);
        }
        hooked.note(true);
        // If `target` is another library's `dlsym`, it would answer relative to itself. So this
        // code itself looks up the next definition after the caller.
        let is_lost = handle == libc::RTLD_NEXT && !is_c_library(target);
        if is_lost && elf::next_after(caller, symbol).is_some_and(is_own) {
            return Answer::value(hooked.address());
        }
        // The order of objects decides. Mostly the result is the export of this library.
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

/// Returns whether `name` begins with `start`.
///
/// # Safety
/// `name` is a terminated string.
unsafe fn begins_with(name: *const c_char, start: &[u8; 2]) -> bool {
    // SAFETY: the second byte exists if the first is not the end.
    unsafe { *name as u8 == start[0] && *name.add(1) as u8 == start[1] }
}

/// Returns the address that `look_up` finds in the scope of the library that contains `caller`.
pub fn in_scope_of(caller: usize, look_up: impl Fn(*mut c_void) -> usize) -> Option<usize> {
    // SAFETY: all zeroes are a valid Dl_info, which contains only pointers.
    let mut info = unsafe { std::mem::zeroed::<libc::Dl_info>() };
    // SAFETY: the result has room, and the call accepts any address.
    let known = unsafe { libc::dladdr(caller as *const c_void, &mut info) };
    if known == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the name belongs to a loaded object, and the call loads nothing new.
    let scope = unsafe { libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if scope.is_null() {
        return None;
    }
    let found = look_up(scope);
    // SAFETY: `scope` was just opened.
    unsafe { libc::dlclose(scope) };
    Some(found).filter(|found| *found != 0)
}

/// Returns the address to which the dynamic linker would have bound `symbol` without this library.
pub fn next_definition(symbol: &CStr) -> Option<usize> {
    let target = next(&REAL_DLSYM, c"dlsym");
    if target == 0 {
        return None;
    }
    // SAFETY: `target` is a library's definition of `dlsym`. The call comes from this library, so
    // `RTLD_NEXT` means the objects after it.
    let found = unsafe {
        let dlsym = std::mem::transmute::<usize, Dlsym>(target);
        dlsym(libc::RTLD_NEXT, symbol.as_ptr()) as usize
    };
    copies::skip(found, symbol)
}

/// Returns the address of `symbol` in the first library after this library that defines it, in any
/// scope.
pub fn next_loaded(symbol: &CStr) -> Option<usize> {
    copies::skip(elf::next_after(own_address(), symbol)?, symbol)
}

const UNREAD: u8 = 0;
const ENABLED: u8 = 1;
const DISABLED: u8 = 2;
static SWITCH: AtomicU8 = AtomicU8::new(UNREAD);

/// Returns whether `DEEPRES_DISABLE=1` turned everything off, or another copy of the library does
/// the work. The first call reads the environment.
pub fn is_disabled() -> bool {
    match SWITCH.load(Ordering::Relaxed) {
        UNREAD => {
            // SAFETY: the name is terminated. A thread that changes the environment meanwhile races
            // with all of libc.
            let value = unsafe { libc::getenv(c"DEEPRES_DISABLE".as_ptr()) };
            // SAFETY: `value` is not null, so it is a terminated string.
            let disabled = !value.is_null() && unsafe { CStr::from_ptr(value) } == c"1";
            let disabled = disabled || copies::is_behind_another();
            SWITCH.store(if disabled { DISABLED } else { ENABLED }, Ordering::Relaxed);
            disabled
        }
        state => state == DISABLED,
    }
}
