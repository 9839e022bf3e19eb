//! Sources of time: the machine's monotonic clock, or a number that a test sets.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// A source of nanoseconds.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// CLOCK_MONOTONIC of this machine. A state that several processes share needs this clock.
    #[default]
    Monotonic,
    /// A number that tests set. A sleep until a time sets the number to that time.
    Virtual(Arc<AtomicU64>),
}

impl Clock {
    /// Returns a virtual clock that shows `now_ns`.
    pub fn virtual_at(now_ns: u64) -> Self {
        Self::Virtual(Arc::new(AtomicU64::new(now_ns)))
    }

    /// Returns the present time, ns.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        match self {
            Self::Monotonic => monotonic_ns(),
            Self::Virtual(now) => now.load(Ordering::Acquire),
        }
    }

    /// Returns whether the clock is virtual.
    pub fn is_virtual(&self) -> bool {
        matches!(self, Self::Virtual(_))
    }

    /// Moves a virtual clock forward to `to_ns`, never back. Does nothing to the machine's clock.
    pub fn advance_to(&self, to_ns: u64) {
        if let Self::Virtual(now) = self {
            now.fetch_max(to_ns, Ordering::AcqRel);
        }
    }
}

/// Returns CLOCK_MONOTONIC in ns.
#[inline]
pub fn monotonic_ns() -> u64 {
    const NS_PER_S: u64 = 1_000_000_000;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the call to write; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * NS_PER_S + time.tv_nsec as u64
}
