//! The order in which a thread takes the interposer's locks, and a mutex that checks the order.
//!
//! Each lock has a level, its [`Rank`]. A thread that holds a lock waits only for locks of later
//! levels. So no two threads wait for each other. A thread may try any lock, because a try does not
//! wait. A thread does not wait for a lock of a level that it already holds, and so never for its
//! own lock. To hold several locks of a level, a thread takes them by one call ([`lock_all`]).
//!
//! A build with debug assertions checks each wait. Each thread has a count of its held locks for
//! each level. The counts have no destructor and no allocation. So the check works in any thread,
//! at the end of a thread or process, and in a forked child. A failed check ends the process. A
//! release build has the bare mutex.
//!
//! Two locks stand outside the order. For the lock of markers ([`crate::capture::marking`]), a
//! thread waits only a bounded time. For NVML's answers ([`crate::nvml`]), a thread does not wait.

use std::ops::{Deref, DerefMut};
use std::sync::{self, MutexGuard, PoisonError, TryLockError};

macro_rules! ranks {
    ($($(#[$doc:meta])+ $rank:ident,)+) => {
        /// The levels of locks, in the order in which a thread takes the locks.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Rank {
            $($(#[$doc])+ $rank,)+
        }

        #[cfg(debug_assertions)]
        impl Rank {
            const ALL: [Self; [$(Self::$rank),+].len()] = [$(Self::$rank),+];
        }
    };
}

ranks! {
    /// The primary context of a GPU, while a thread makes or ends the context. Meanwhile the thread
    /// calls the driver and charges memory.
    Primary,
    /// The lanes of one context. A thread holds this lock while it queries events, and while the
    /// driver destroys a stream or the context.
    Context,
    /// The memory that the driver takes by itself on one GPU, while a thread asks NVML.
    OverheadTurn,
    /// The charge of one memory pool, while a thread allocates from the pool or trims the pool.
    PoolCharge,
    /// The lock that lets one small allocation at a time run alone.
    SlabsTurn,
    /// The charges of the graphs' memory, while a thread asks the driver.
    GraphCharges,
    /// The memory that each executable graph needs.
    GraphNeeds,
    /// The addresses at which graphs left memory.
    GraphAddresses,
    /// The list of memory pools.
    Pools,
    /// The allocations of one pool.
    PoolAllocations,
    /// The blocks that small allocations share.
    Blocks,
    /// The allocations that are neither from pools nor in shared blocks.
    Allocations,
    /// The mappings of physical memory to addresses.
    Mappings,
    /// The mappings of physical memory into arrays.
    Tiles,
    /// The oversubscribed allocations.
    Oversubscribed,
    /// The tenant's account of host memory, while a thread brings it up to date.
    HostAccount,
    /// The charge of the memory that the driver takes by itself.
    OverheadCharge,
    /// The contexts whose driver memory the interposer knows.
    OverheadContexts,
    /// The search for slots of dead processes, without a daemon.
    Burial,
    /// The list of all contexts.
    Contexts,
    /// The list of active captures.
    Captures,
    /// The list of the threads' rings, in a process that the interposer records.
    Rings,
    /// The plan that the process follows.
    Plan,
}

/// A mutex of the level `RANK`. The mutex ignores poison, because no hook panics.
#[derive(Debug, Default)]
pub struct Mutex<const RANK: u8, T>(sync::Mutex<T>);

/// Access to the value of a [`Mutex`]. A drop of the guard releases the lock.
#[derive(Debug)]
pub struct Guard<'a, T> {
    // The order of the fields matters: the drop releases the lock before it removes the mark.
    value: MutexGuard<'a, T>,
    _held: held::Held,
}

impl<const RANK: u8, T> Mutex<RANK, T> {
    /// Returns a mutex with this value.
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Takes the lock, and waits while another thread has the lock. Returns the guard.
    pub fn lock(&self) -> Guard<'_, T> {
        held::check(RANK);
        let value = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Guard { value, _held: held::Held::new(RANK) }
    }

    /// Takes the lock and returns the guard, or returns `None` if another thread has the lock.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let value = match self.0.try_lock() {
            Ok(value) => value,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Guard { value, _held: held::Held::new(RANK) })
    }
}

/// Takes several locks of one level, in the order of `locks`, and returns the guards. All callers
/// must have one order for the locks of the level, so that no two threads wait for each other.
pub fn lock_all<'a, const RANK: u8, T: 'a>(
    locks: impl Iterator<Item = &'a Mutex<RANK, T>>,
) -> Vec<Guard<'a, T>> {
    held::check(RANK);
    let lock = |mutex: &'a Mutex<RANK, T>| {
        let value = mutex.0.lock().unwrap_or_else(PoisonError::into_inner);
        Guard { value, _held: held::Held::new(RANK) }
    };
    locks.map(lock).collect()
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// The number of locks of each level that this thread holds.
#[cfg(debug_assertions)]
mod held {
    use std::cell::Cell;

    use super::Rank;

    thread_local! {
        /// The number of locks of each level that this thread holds.
        static COUNTS: [Cell<u8>; Rank::ALL.len()] = const { [const { Cell::new(0) }; Rank::ALL.len()] };
    }

    /// Counts a lock as held by this thread until the drop of this value.
    #[derive(Debug)]
    pub struct Held(u8);

    impl Held {
        pub fn new(rank: u8) -> Self {
            change(rank, 1);
            Self(rank)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            change(self.0, u8::MAX);
        }
    }

    fn change(rank: u8, more: u8) {
        COUNTS.with(|counts| {
            let count = &counts[usize::from(rank)];
            count.set(count.get().wrapping_add(more));
        });
    }

    /// Panics if this thread must not wait for a lock of the level `rank`.
    pub fn check(rank: u8) {
        COUNTS.with(|counts| {
            for held in Rank::ALL.into_iter().skip(usize::from(rank)) {
                assert!(
                    counts[held as usize].get() == 0,
                    "a thread that holds the lock {held:?} waits for the lock {:?}",
                    Rank::ALL[usize::from(rank)],
                );
            }
        });
    }
}

#[cfg(not(debug_assertions))]
mod held {
    #[derive(Debug)]
    pub struct Held;

    impl Held {
        #[inline(always)]
        pub fn new(_rank: u8) -> Self {
            Self
        }
    }

    #[inline(always)]
    pub fn check(_rank: u8) {}
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    type First = Mutex<{ Rank::Primary as u8 }, u32>;
    type Second = Mutex<{ Rank::Context as u8 }, u32>;

    #[test]
    fn locks_are_taken_in_their_order_and_each_once() {
        let (first, second, again) = (First::new(1), Second::new(2), Second::new(3));
        let takes = |lock: &dyn Fn()| catch_unwind(AssertUnwindSafe(lock)).is_ok();
        {
            let _first = first.lock();
            assert!(takes(&|| drop(second.lock())));
            assert!(!takes(&|| drop(first.lock())), "the thread would wait for itself");
        }
        {
            let mut held = second.lock();
            *held += 1;
            assert!(!takes(&|| drop(first.lock())), "another thread may hold it and wait");
            assert!(!takes(&|| drop(again.lock())), "another thread may take the two the other way round");
            assert!(first.try_lock().is_some() && second.try_lock().is_none(), "a try does not wait");
            assert!(std::thread::scope(|scope| scope.spawn(|| *first.lock()).join().is_ok()));
        }
        assert!(takes(&|| drop(first.lock())), "nothing is held any more");
        assert_eq!(*second.lock(), 3);
    }

    #[test]
    fn several_locks_of_a_level_are_taken_by_one_call() {
        let (first, locks) = (First::new(1), [Second::new(2), Second::new(3)]);
        let takes = |lock: &dyn Fn()| catch_unwind(AssertUnwindSafe(lock)).is_ok();
        {
            let held = lock_all(locks.iter());
            assert_eq!(held.iter().map(|value| **value).collect::<Vec<_>>(), [2, 3]);
            assert!(!takes(&|| drop(first.lock())) && !takes(&|| drop(lock_all(locks.iter().take(0)))));
        }
        {
            let _held = locks[1].lock();
            assert!(!takes(&|| drop(lock_all(locks.iter().take(1)))), "another thread may take all of them");
        }
        assert!(takes(&|| drop(first.lock())) && takes(&|| drop(lock_all(locks.iter()))));
    }
}
