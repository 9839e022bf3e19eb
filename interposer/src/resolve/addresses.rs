//! Maps an address that `cuGetProcAddress` returned to the hook of exactly that function.
//!
//! The drivers that the authors know return the addresses of their exports, so that the address
//! names the function. A driver can return other addresses, for example of internal functions, or
//! of a library behind it. The name and the version then name the function.

use deepres_abi::driver::{self as table, ApiId, StreamKind};

use super::decide::is_own;
use crate::coverage;
use crate::driver::{self, Found};
use crate::hooks;

/// Returns the address that the caller gets instead of `found`, the driver's answer for `family` in
/// `version`. `per_thread`: the caller asked for the variants for per-thread default streams. If
/// two variants share an address, this flag decides between them.
///
/// Otherwise the address alone decides, so the hook has the ABI that the driver chose, for any
/// version. If no export of the driver has the address, name and version decide ([`by_name`]). If
/// they cannot, returns the address unchanged. The function never guesses.
pub fn hook_for(family: &[u8], found: usize, version: u32, per_thread: bool) -> usize {
    let (mut is_hooked_family, mut chosen) = (false, None);
    for id in table::variants(family).chain(table::by_symbol(family)) {
        let Some(hook) = hooks::address(id) else { continue };
        is_hooked_family = true;
        let place = driver::place_answer(id, found);
        if place == Found::Behind {
            coverage::note(id, true);
            return found;
        }
        if place == Found::Hooked {
            let fits = (id.stream_kind() == StreamKind::PerThread) == per_thread;
            if chosen.is_none() || fits {
                chosen = Some((id, hook));
            }
        }
    }
    if let Some((id, hook)) = chosen {
        coverage::note(id, true);
        return hook;
    }
    // If the driver looks its own functions up by their public names, it gets the exports of this
    // library.
    let is_ours = is_hooked_family && is_own(found);
    if is_hooked_family && !is_ours {
        match by_name(family, version, per_thread).map(|id| (id, hooks::address(id))) {
            Some((id, Some(hook))) => {
                coverage::note(id, true);
                return hook;
            }
            Some((_, None)) => {}
            None => coverage::count(&coverage::OWN.unknown_address),
        }
    }
    match table::resolve(family, version, per_thread).filter(|_| is_ours) {
        Some(id) => coverage::note(id, true),
        None => coverage::note_forwarded(family, version, per_thread),
    }
    found
}

/// Returns the function that the driver chose for a look-up: by the rule of `cuGetProcAddress`, the
/// driver's newest variant that is no newer than `version`. Returns `None` if the driver has a
/// variant that this deepres does not know, because the driver may have chosen it. Also returns
/// `None` if the hooks call another library than the driver, because that library may have
/// answered.
fn by_name(family: &[u8], version: u32, per_thread: bool) -> Option<ApiId> {
    let has = |id| driver::address(id) != 0;
    table::resolve_among(family, version, per_thread, has).filter(|_| driver::has_no_unknown_variant(family))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes `address` the driver's address of a function in this test, and returns the address of
    /// the hook. No test calls that address.
    fn at(id: ApiId, address: usize) -> usize {
        assert!(driver::remember(id, address));
        hooks::address(id).unwrap()
    }

    #[test]
    fn the_address_decides_which_variant_is_hooked_and_never_the_name_alone() {
        let first = at(ApiId::cuMemAllocPitch, 0x1000);
        let second = at(ApiId::cuMemAllocPitch_v2, 0x2000);
        assert_eq!(hook_for(b"cuMemAllocPitch", 0x1000, 13_000, false), first);
        assert_eq!(hook_for(b"cuMemAllocPitch", 0x2000, 13_000, true), second);
        assert_eq!(hook_for(b"cuMemAllocPitch", 0x3000, 13_000, false), 0x3000, "unknown stays unknown");
        assert_eq!(
            hook_for(b"cuMemAllocHost", 0x2000, 13_000, false),
            0x2000,
            "a stub that functions share is another's too"
        );
        assert_eq!(hook_for(b"", 0x2000, 13_000, false), 0x2000);
    }

    #[test]
    fn variants_that_share_an_address_are_told_apart_by_what_was_asked_for() {
        let legacy = at(ApiId::cuMemFreeAsync, 0x4000);
        let per_thread = at(ApiId::cuMemFreeAsync_ptsz, 0x4000);
        assert_ne!(legacy, per_thread);
        assert_eq!(hook_for(b"cuMemFreeAsync", 0x4000, 13_000, false), legacy);
        assert_eq!(hook_for(b"cuMemFreeAsync", 0x4000, 13_000, true), per_thread);
    }
}
