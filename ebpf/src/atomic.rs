//! Changes that no other CPU sees half of. `core` has no functions for them on this machine.

use core::arch::asm;

/// Adds to a counter.
///
/// # Safety
/// It is an aligned number in a map's entry, which lives until the program ends.
#[inline(always)]
pub unsafe fn add(counter: *mut u64, amount: u64) {
    // SAFETY: by the contract.
    unsafe { asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) counter, in(reg) amount, options(nostack)) };
}

/// Puts `new` in the place of `expected`; returns what was there, which is left if it was something else.
///
/// # Safety
/// As for [`add`].
#[inline(always)]
pub unsafe fn exchange_if(place: *mut u64, expected: u64, new: u64) -> u64 {
    let found: u64;
    // SAFETY: by the contract.
    unsafe {
        asm!("r0 = cmpxchg_64({0} + 0, r0, {1})", in(reg) place, in(reg) new, inlateout("r0") expected => found, options(nostack));
    }
    found
}
