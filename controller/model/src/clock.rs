//! The only clock of deepres: `CLOCK_MONOTONIC`, in nanoseconds. All processes of a host see the
//! same time.

use rustix::time::{ClockId, clock_gettime};

const NS_PER_SECOND: u64 = 1_000_000_000;

/// Nanoseconds in a millisecond.
pub const NS_PER_MS: u64 = 1_000_000;

/// Returns the present time, ns of `CLOCK_MONOTONIC`.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * NS_PER_SECOND + now.tv_nsec as u64
}
