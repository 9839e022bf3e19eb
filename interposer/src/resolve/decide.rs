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
    let target = next(&REAL_DLSYM, c"dlsym");
    if target == 0 {
        return Answer::value(0);
    }
    // SAFETY: `target` is a library's definition of `dlsym`.
    let dlsym = unsafe { std::mem::transmute::<usize, Dlsym>(target) };
    // SAFETY: `name` and `handle` are what the process passed to `dlsym`.
    unsafe { decide(handle, name, caller, target, |handle| dlsym(handle, name) as usize) }
}

/// Called by the entry point of `dlvsym`.
pub unsafe extern "C" fn decide_dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> Answer {
    let target = next(&REAL_DLVSYM, c"dlvsym");
    if target == 0 {
        return Answer::value(0);
    }
    // SAFETY: `target` is a library's definition of `dlvsym`.
    let dlvsym = unsafe { std::mem::transmute::<usize, Dlvsym>(target) };
    // SAFETY: as in `decide_dlsym`.
    unsafe { decide(handle, name, caller, target, |handle| dlvsym(handle, name, version) as usize) }
}

/// `look_up(handle)` asks the real function for `name`, from inside our library.
///
/// Names that are not hooked are the real function's to answer, `dlsym` itself among them: a library after us that asks for the
/// next `dlsym` must not get us again. One before us must, though, and the real `dlvsym` would pass over our export, which has no version.
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
    if handle == libc::RTLD_NEXT && !name.is_null() && unsafe { *name as u8 } == b'd' {
        // SAFETY: as above.
        let entry = match unsafe { CStr::from_ptr(name) }.to_bytes() {
            b"dlsym" => entry::dlsym_entry as *const () as usize,
            b"dlvsym" => entry::dlvsym_entry as *const () as usize,
            _ => return Answer::jump(target),
        };
        return if elf::is_before(caller, own_address()) {
            Answer::value(entry)
        } else {
            Answer::jump(target)
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
        // The order of objects decides whose it is: mostly our export.
        hooked.note(true);
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
