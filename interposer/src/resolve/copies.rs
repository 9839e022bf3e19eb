//! Other copies of this library in the process. For example, the machine can preload one copy
//! everywhere, and a container or a job can bring another copy. The first copy in the search order
//! does the work, and passes over the other copies. The other copies let every call through.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, Ordering};

use super::decide::own_address;
use super::elf::{self, Object};

/// The soname of every copy. `build.rs` passes it to the linker.
const SONAME: &CStr = c"libdeepres.so";

const UNKNOWN: u8 = 0;
const ALONE: u8 = 1;
const FIRST: u8 = 2;
const BEHIND: u8 = 3;
static STANDING: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Returns the position of this copy among the preloaded copies. The first call looks the position
/// up, before the program can have loaded further copies.
fn standing() -> u8 {
    match STANDING.load(Ordering::Relaxed) {
        UNKNOWN => {
            let (mut is_own_passed, mut standing) = (false, ALONE);
            elf::find(|object| {
                if object.contains(own_address()) {
                    is_own_passed = true;
                } else if is_other(object) {
                    standing = if is_own_passed { FIRST } else { BEHIND };
                }
                (standing != ALONE).then_some(())
            });
            STANDING.store(standing, Ordering::Relaxed);
            standing
        }
        known => known,
    }
}

/// Returns whether the object is another copy of this library.
fn is_other(object: &Object) -> bool {
    object.soname().is_some_and(|soname| soname == SONAME) && !object.contains(own_address())
}

/// Returns whether another copy does the work.
pub fn is_behind_another() -> bool {
    standing() == BEHIND
}

/// Passes over the copies behind this copy. `found` is the address at which a look-up found `name`,
/// or 0. Returns the first definition of `name`, from `found` on, that is in no other copy.
pub fn skip(mut found: usize, name: &CStr) -> Option<usize> {
    while found != 0 && standing() == FIRST && Object::containing(found).as_ref().is_some_and(is_other) {
        found = elf::next_after(found, name)?;
    }
    (found != 0).then_some(found)
}
