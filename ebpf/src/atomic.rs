//! Atomic changes of map entries. For the BPF target, `core` has no such functions.

use core::arch::asm;

/// Adds `amount` to a counter atomically.
///
/// # Safety
/// `counter` points to an aligned number in a map entry. The entry lives until the program ends.
#[inline(always)]
pub unsafe fn add(counter: *mut u64, amount: u64) {
    // SAFETY: by the contract, `counter` is aligned and alive.
    unsafe { asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) counter, in(reg) amount, options(nostack)) };
}

/// Stores `new` if `place` holds `expected`, atomically. Returns the value that `place` held
/// before. If `place` holds another value, changes nothing.
///
/// # Safety
/// The same requirements as for [`add`].
#[inline(always)]
pub unsafe fn exchange_if(place: *mut u64, expected: u64, new: u64) -> u64 {
    let found: u64;
    // SAFETY: by the contract, `place` is aligned and alive.
    unsafe {
        asm!("r0 = cmpxchg_64({0} + 0, r0, {1})", in(reg) place, in(reg) new, inlateout("r0") expected => found, options(nostack));
    }
    found
}
