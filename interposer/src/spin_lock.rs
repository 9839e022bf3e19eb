//! A lock that is held for a few instructions at a time. Taking the lock costs one locked
//! operation, and releasing the lock costs none.
//!
//! A mutex of the standard library needs a second locked operation, to find out whether a thread
//! sleeps on it. In an allocation, such operations are most of the cost. A thread waits only if two
//! threads meet in one table.

use std::cell::UnsafeCell;
use std::hint;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::os;

/// Number of polls after which a waiter yields its CPU between polls, and after which it sleeps
/// between polls. The thread with the lock may have lost its CPU.
const SPINS: u32 = 64;
const YIELDS: u32 = 256;
const NAP_NS: u64 = 50_000;

/// A lock with its value, as the module describes it.
#[derive(Debug, Default)]
// The locks of one table are used by different threads at the same time, so each has its own cache
// line.
#[repr(align(64))]
pub struct SpinLock<T> {
    is_taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: only one thread at a time has access to the value, as with a mutex.
unsafe impl<T: Send> Sync for SpinLock<T> {}

/// Access to the value. Dropping the guard releases the lock.
#[derive(Debug)]
pub struct Guard<'a, T>(&'a SpinLock<T>);

impl<T> SpinLock<T> {
    /// Takes the lock, and waits while another thread has it.
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
        // A plain load comes first, because a failed exchange takes the cache line from the thread
        // with the lock.
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
        // SAFETY: the guard exists only while its thread has the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the method borrows the only guard mutably.
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
        let sum = SpinLock::<[u64; 2]>::default();
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
