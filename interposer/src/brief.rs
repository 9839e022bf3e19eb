//! A lock that is held for some instructions at a time: taking it costs one locked operation, and giving it back none.
//!
//! A mutex of the standard library needs a second one to see whether somebody sleeps on it. On the way of an allocation these operations are most of what
//! there is to pay, and nobody waits there as long as no two threads meet in one table.

use std::cell::UnsafeCell;
use std::hint;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::os;

/// Looks after which a waiter lets others run between two, and after which it sleeps: whoever has the lock may have been taken off its CPU.
const SPINS: u32 = 64;
const YIELDS: u32 = 256;
const NAP_NS: u64 = 50_000;

/// See the module.
#[derive(Debug, Default)]
// Those of a table are used by different threads at a time.
#[repr(align(64))]
pub struct Brief<T> {
    is_taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time has the value, as with a mutex.
unsafe impl<T: Send> Sync for Brief<T> {}

/// Having it.
#[derive(Debug)]
pub struct Guard<'a, T>(&'a Brief<T>);

impl<T> Brief<T> {
    /// Waits for whoever has it.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        if !self.try_take() {
            self.wait();
        }
        Guard(self)
    }

    #[inline]
    fn try_take(&self) -> bool {
        self.is_taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait(&self) {
        let mut looks = 0_u32;
        // Looks first: a failed exchange takes the cache line from whoever has the lock.
        while self.is_taken.load(Ordering::Relaxed) || !self.try_take() {
            looks = looks.saturating_add(1);
            match looks {
                ..SPINS => hint::spin_loop(),
                SPINS..YIELDS => thread::yield_now(),
                _ => os::sleep(NAP_NS),
            }
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: whoever has the guard has the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and this borrows the only guard there is.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.is_taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_threads_one_at_a_time_has_it() {
        const THREADS: u64 = 4;
        const TURNS: u64 = 50_000;
        let sum = Brief::<[u64; 2]>::default();
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..TURNS {
                        let mut sum = sum.lock();
                        sum[0] += 1;
                        assert_eq!(sum[0], sum[1] + 1, "somebody else was in between");
                        sum[1] += 1;
                    }
                });
            }
        });
        assert_eq!(*sum.lock(), [THREADS * TURNS; 2]);
    }
}
