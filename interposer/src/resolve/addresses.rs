//! From an address that `cuGetProcAddress` gave to the hook of exactly that function.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

use deepres_abi::driver::StreamKind;

use super::decide::is_own;
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
            // A driver that takes its functions' addresses by their names in public gets our exports.
            let is_ours = of_family && is_own(found);
            if of_family {
                coverage::count(if is_ours { &coverage::HOOKED } else { &coverage::UNKNOWN_ADDRESS });
            }
            found
        }
    }
}

#[cfg(test)]
mod tests {
    use deepres_abi::driver::ApiId;

    use super::*;

    /// Where the driver of this test has a function: an address that nobody calls.
    fn at(id: ApiId, address: usize) -> usize {
        assert!(driver::remember(id, address));
        hooks::address(id).unwrap()
    }

    #[test]
    fn the_address_decides_which_variant_is_hooked_and_never_the_name_alone() {
        let first = at(ApiId::cuMemAllocPitch, 0x1000);
        let second = at(ApiId::cuMemAllocPitch_v2, 0x2000);
        assert_eq!(hook_for(c"cuMemAllocPitch", 0x1000, false), first);
        assert_eq!(hook_for(c"cuMemAllocPitch", 0x2000, true), second);
        assert_eq!(hook_for(c"cuMemAllocPitch", 0x3000, false), 0x3000, "unknown stays unknown");
        assert_eq!(
            hook_for(c"cuMemAllocHost", 0x2000, false),
            0x2000,
            "a stub that functions share is another's too"
        );
        assert_eq!(hook_for(c"", 0x2000, false), 0x2000);
    }

    #[test]
    fn variants_that_share_an_address_are_told_apart_by_what_was_asked_for() {
        let legacy = at(ApiId::cuMemFreeAsync, 0x4000);
        let per_thread = at(ApiId::cuMemFreeAsync_ptsz, 0x4000);
        assert_ne!(legacy, per_thread);
        assert_eq!(hook_for(c"cuMemFreeAsync", 0x4000, false), legacy);
        assert_eq!(hook_for(c"cuMemFreeAsync", 0x4000, true), per_thread);
    }
}
