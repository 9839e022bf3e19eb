//! From an address that `cuGetProcAddress` gave to the hook of exactly that function.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

use deepres_abi::driver::StreamKind;

use crate::coverage;
use crate::driver;
use crate::hooks;

/// Whether the addresses of all hooked functions were looked up.
static COMPLETE: AtomicBool = AtomicBool::new(false);

/// What to hand out instead of `found`, which the driver answered for `family`. `per_thread`: the caller asked for the
/// variants of per-thread default streams, which decides between variants that share an address.
///
/// The address decides, so the hook has the ABI that the driver chose, whatever version was asked for. An address that no
/// export has stays as it is: never a guess.
pub fn hook_for(family: &CStr, found: usize, per_thread: bool) -> usize {
    if !COMPLETE.load(Ordering::Acquire) {
        for hook in hooks::all() {
            driver::address(hook.id);
        }
        COMPLETE.store(true, Ordering::Release);
    }
    let name = family.to_bytes();
    let mut of_family = false;
    let mut chosen = None;
    for hook in hooks::all() {
        if hook.id.family().as_bytes() != name && hook.id.symbol().as_bytes() != name {
            continue;
        }
        of_family = true;
        if driver::known(hook.id) == Some(found) {
            let fits = (hook.id.stream_kind() == StreamKind::PerThread) == per_thread;
            if chosen.is_none() || fits {
                chosen = Some(hook.address());
            }
        }
    }
    match chosen {
        Some(hook) => {
            coverage::count(&coverage::HOOKED);
            hook
        }
        None => {
            if of_family {
                coverage::count(&coverage::UNKNOWN_ADDRESS);
            }
            found
        }
    }
}
