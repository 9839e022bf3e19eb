//! The one lock of a host: a futex in shared memory that contains its holder's number.
//!
//! A waiter checks by the number whether the holder lives ([`crate::locker`]), and takes over the
//! lock of a dead holder. A robust pthread mutex would identify holders by thread ids. Different
//! pid namespaces contain the same ids, so the death of one process would free the lock of another
//! process. No holder sleeps while it holds the lock.

use crate::clock::monotonic_ns;
use std::{
    ptr,
    sync::atomic::{AtomicU32, Ordering},
};

/// The value of a lock that no process holds.
const FREE: u32 = 0;
/// The flag in the lock's value that says that a waiter can be asleep.
const AWAITED: u32 = 1 << 31;
/// Time after which a waiter checks whether the holder lives. A running holder needs microseconds.
const PATIENCE_NS: libc::c_long = 1_000_000;
/// Longest time between two checks. A check takes longer with more processes, so many waiters check
/// less often.
const MAX_PATIENCE_NS: libc::c_long = 64 * PATIENCE_NS;
/// Time for which a waiter spins before it sleeps. A sleep and the wake-up of an idle CPU take as
/// long (28 us in the median on a two-core virtual machine). So a waiter loses at most twice what
/// the better of the two would lose. A holder mostly needs microseconds.
const SPIN_NS: u64 = 30_000;

/// The lock. All zeros is a free lock.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Lock(AtomicU32);

/// State of the lock when a process took it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The last holder released the lock.
    Clean,
    /// The last holder died while it held the lock. The state under the lock can be half changed.
    HolderDied,
}

impl Lock {
    /// Takes the lock for the holder with this number (not 0, highest bit clear), and returns the
    /// state of the lock. After [`Found::HolderDied`] the caller repairs the state. If the caller
    /// dies in the repair, the next holder gets the same result.
    #[inline]
    pub fn lock(&self, number: u32, is_alive: impl Fn(u32) -> bool) -> Found {
        debug_assert!(number != FREE && number & AWAITED == 0, "{number} cannot hold the lock");
        match self.0.compare_exchange(FREE, number, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Found::Clean,
            Err(_) => self.await_turn(number, is_alive),
        }
    }

    #[cold]
    fn await_turn(&self, number: u32, is_alive: impl Fn(u32) -> bool) -> Found {
        let mut patience_ns = PATIENCE_NS;
        let mut own = number;
        loop {
            let Some(seen) = self.spin(own, monotonic_ns) else { return Found::Clean };
            let awaited = seen | AWAITED;
            if seen != awaited && !self.replace(seen, awaited) {
                continue;
            }
            let woken = self.sleep(awaited, patience_ns);
            // The release woke only one waiter, and further waiters can still sleep. So the flag
            // stays set.
            own = number | AWAITED;
            if woken == Woken::ByTime {
                patience_ns = (2 * patience_ns).min(MAX_PATIENCE_NS);
                if !is_alive(seen & !AWAITED) && self.replace(awaited, own) {
                    return Found::HolderDied;
                }
            }
        }
    }

    /// Takes the lock with this value if its holder releases it soon, by the clock `now_ns`.
    /// Returns `None` then, else the lock's value. A waiter that has not slept gives up at once
    /// beside a sleeping one: so many spinning waiters cannot take the CPUs from the holder.
    fn spin(&self, own: u32, mut now_ns: impl FnMut() -> u64) -> Option<u32> {
        let until_ns = now_ns() + SPIN_NS;
        loop {
            let seen = self.0.load(Ordering::Relaxed);
            if seen == FREE {
                if self.replace(FREE, own) {
                    return None;
                }
            } else if seen & AWAITED > own & AWAITED || now_ns() >= until_ns {
                return Some(seen);
            }
            std::hint::spin_loop();
        }
    }

    fn replace(&self, old: u32, new: u32) -> bool {
        self.0.compare_exchange(old, new, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn sleep(&self, awaited: u32, patience_ns: libc::c_long) -> Woken {
        let time = libc::timespec { tv_sec: 0, tv_nsec: patience_ns };
        // SAFETY: the address is that of a live futex word, and the timeout is valid. The caller
        // handles spurious returns.
        let slept =
            unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), libc::FUTEX_WAIT, awaited, &time) };
        let is_late = slept != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ETIMEDOUT);
        if is_late { Woken::ByTime } else { Woken::Otherwise }
    }

    /// Returns the number of the holder, if any.
    pub fn holder(&self) -> Option<u32> {
        let number = self.0.load(Ordering::Relaxed) & !AWAITED;
        (number != FREE).then_some(number)
    }

    /// Releases the lock. The caller holds it.
    #[inline]
    pub fn unlock(&self) {
        if self.0.swap(FREE, Ordering::Release) & AWAITED != 0 {
            // SAFETY: the address is that of a live futex word.
            unsafe {
                libc::syscall(libc::SYS_futex, self.0.as_ptr(), libc::FUTEX_WAKE, 1, ptr::null::<()>())
            };
        }
    }
}

/// Reason why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    ByTime,
    Otherwise,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;

    #[test]
    fn one_at_a_time_holds_it() {
        struct Counted(Lock, UnsafeCell<u64>);
        // SAFETY: only the holder of the lock touches the counter.
        unsafe impl Sync for Counted {}
        const THREADS: u32 = 4;
        const TURNS: u64 = 50_000;
        let counted = Counted(Lock::default(), UnsafeCell::new(0));
        std::thread::scope(|scope| {
            for number in 1..=THREADS {
                let counted = &counted;
                scope.spawn(move || {
                    for _ in 0..TURNS {
                        assert_eq!(counted.0.lock(number, |_| true), Found::Clean);
                        // SAFETY: this thread holds the lock.
                        unsafe { *counted.1.get() += 1 };
                        counted.0.unlock();
                    }
                });
            }
        });
        assert_eq!(counted.1.into_inner(), u64::from(THREADS) * TURNS);
    }

    #[test]
    fn a_dead_holders_lock_is_taken_over_and_a_living_ones_is_not() {
        let lock = Lock::default();
        lock.lock(7, |_| true);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| lock.lock(8, |number| number == 7));
            // Several times as long as a waiter needs to detect a dead holder.
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!waiter.is_finished(), "the holder lives");
            lock.unlock();
            assert_eq!(waiter.join().expect("the waiter"), Found::Clean);
        });
        assert_eq!(lock.lock(9, |number| number != 8), Found::HolderDied);
        // Holder 9 dies in the repair.
        assert_eq!(lock.lock(10, |number| number != 9), Found::HolderDied);
        lock.unlock();
        assert_eq!(lock.lock(11, |_| true), Found::Clean);
    }

    #[test]
    fn a_waiter_spins_for_the_time_of_a_sleep_unless_another_waiter_sleeps() {
        const HOLDER: u32 = 7;
        const WAITER: u32 = 8;
        const STEP_NS: u64 = 1_000;
        // Spins for a lock with the value `held`, which its holder releases at this time. Returns
        // what the waiter saw last, and how long it spun.
        let spin = |held: u32, released_ns: u64| {
            let lock = Lock::default();
            lock.0.store(held, Ordering::Relaxed);
            let mut now_ns = 0;
            let seen = lock.spin(WAITER, || {
                now_ns += STEP_NS;
                if now_ns == STEP_NS + released_ns {
                    lock.unlock();
                }
                now_ns
            });
            (seen, lock.holder(), now_ns - STEP_NS)
        };
        assert_eq!(spin(HOLDER, 2 * STEP_NS), (None, Some(WAITER), 2 * STEP_NS));
        assert_eq!(spin(HOLDER, 2 * SPIN_NS), (Some(HOLDER), Some(HOLDER), SPIN_NS));
        assert_eq!(spin(HOLDER | AWAITED, 2 * STEP_NS), (Some(HOLDER | AWAITED), Some(HOLDER), 0));
    }
}
