//! Detects work that does not end, so that the daemon can tell the operator. If a kernel spins or
//! runs for ever, its process cannot take turns on the GPU with others.
//!
//! Other work of the same process can begin and end on other streams meanwhile. So progress alone
//! does not prove that all work ends. After several drains that the arbiter gave up, progress no
//! longer counts, unless the process was idle in between.

use core::time::Duration;
use deepres_abi::meter::Reading;

/// If work is in flight for this long and no work of the process completes, the work is overdue,
/// ns.
const OVERDUE_NS: u64 = Duration::from_secs(2).as_nanos() as u64;
/// Work in flight is not overdue before this many times the tenant's longest kernel.
const TIMES_LONGEST: u64 = 10;
/// After this many drains that the arbiter gave up, progress no longer counts. A single long queue
/// of work causes one or two such drains.
const IN_VAIN: u32 = 3;

/// The progress of one process: its work in flight, and the drains that the arbiter gave up.
#[derive(Debug, Default)]
pub struct Overdue {
    compute_ns: u64,
    in_flight_since_ns: Option<u64>,
    was_told: bool,
    /// Number of drains of the present work that the arbiter gave up.
    given_up: u32,
    given_up_ns: u64,
    is_given_up: bool,
}

impl Overdue {
    /// Updates the state by a reading of the process's meter. `is_given_up` says that the gate is
    /// closed and the arbiter no longer waits for the work in flight. Returns true the first time
    /// that the work is overdue, else false.
    pub fn look(&mut self, now: &Reading, is_given_up: bool, longest_ns: u64, now_ns: u64) -> bool {
        let got_on = now.compute_ns != core::mem::replace(&mut self.compute_ns, now.compute_ns);
        if !now.in_flight {
            *self = Self { compute_ns: now.compute_ns, ..Self::default() };
            return false;
        }
        if now_ns.saturating_sub(self.given_up_ns) >= limit_ns(longest_ns) {
            // The arbiter gave up no drain for this long, so earlier drains no longer count.
            self.given_up = 0;
        }
        if is_given_up && !self.is_given_up {
            self.given_up = self.given_up.saturating_add(1);
            self.given_up_ns = now_ns;
        }
        self.is_given_up = is_given_up;
        if got_on && self.given_up < IN_VAIN {
            self.in_flight_since_ns = Some(now_ns);
            self.was_told = false;
            return false;
        }
        self.in_flight_since_ns.get_or_insert(now_ns);
        let is_overdue = self.overdue_ns(longest_ns, now_ns).is_some();
        is_overdue && !core::mem::replace(&mut self.was_told, is_overdue)
    }

    /// Returns how long the work has been in flight, ns; `None` if the work is not overdue.
    pub fn overdue_ns(&self, longest_ns: u64, now_ns: u64) -> Option<u64> {
        self.in_flight_since_ns
            .map(|since_ns| now_ns.saturating_sub(since_ns))
            .filter(|in_flight_ns| *in_flight_ns >= limit_ns(longest_ns))
    }
}

/// Returns for how long work may be in flight before it is overdue, ns. `longest_ns` is the length
/// of the tenant's longest kernel.
fn limit_ns(longest_ns: u64) -> u64 {
    OVERDUE_NS.max(longest_ns.saturating_mul(TIMES_LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn reading(compute_ns: u64) -> Reading {
        Reading { compute_ns, in_flight: true, ..Reading::default() }
    }

    #[test]
    fn work_that_does_not_end_is_reported_once() {
        let mut overdue = Overdue::default();
        assert!(!overdue.look(&reading(0), false, 0, 10 * SECOND));
        assert!(!overdue.look(&reading(0), false, 0, 11 * SECOND));
        assert!(overdue.look(&reading(0), false, 0, 12 * SECOND));
        assert!(!overdue.look(&reading(0), false, 0, 13 * SECOND), "it is known");
        assert_eq!(overdue.overdue_ns(0, 13 * SECOND), Some(3 * SECOND));
        assert!(!overdue.look(&reading(5), false, 0, 14 * SECOND), "it ended after all");
        assert_eq!(overdue.overdue_ns(0, 14 * SECOND), None);
    }

    #[test]
    fn a_tenant_with_long_kernels_is_given_longer_and_one_that_completes_or_idles_is_not_overdue() {
        let mut overdue = Overdue::default();
        overdue.look(&reading(0), false, SECOND, 0);
        assert!(!overdue.look(&reading(0), false, SECOND, 9 * SECOND));
        assert!(overdue.look(&reading(0), false, SECOND, 10 * SECOND));
        for second in 11..30 {
            assert!(!overdue.look(&reading(second), false, 0, second * SECOND), "something completes");
        }
        overdue.look(&Reading::default(), false, 0, 30 * SECOND);
        assert_eq!(overdue.overdue_ns(0, 90 * SECOND), None);
    }

    #[test]
    fn work_that_does_not_end_beside_work_that_does_is_seen_by_the_drains_given_up_over_it() {
        let mut overdue = Overdue::default();
        let mut told_ms = None;
        // The GPU goes to another tenant every 100 ms for a while. Small kernels complete all the
        // time.
        let look = |overdue: &mut Overdue, ms: u64, in_flight: bool| {
            let now = Reading { in_flight, ..reading(ms) };
            overdue.look(&now, ms % 100 >= 80, 0, ms * SECOND / 1_000)
        };
        for ms in (0..4_000).step_by(10) {
            if look(&mut overdue, ms, true) {
                assert_eq!(told_ms.replace(ms), None, "it is told of once");
            }
        }
        assert_eq!(told_ms, Some(2_270));
        assert!(overdue.overdue_ns(0, 4 * SECOND).is_some());
        // No other tenant wants the GPU any more.
        for ms in (4_000..6_100).step_by(10) {
            overdue.look(&reading(ms), false, 0, ms * SECOND / 1_000);
        }
        assert_eq!(overdue.overdue_ns(0, 6_100 * SECOND / 1_000), None);
        // A queue that is too long for the drain still ends.
        for ms in (10_000..20_000).step_by(10) {
            assert!(!look(&mut overdue, ms, ms % 200 != 0));
        }
    }
}
