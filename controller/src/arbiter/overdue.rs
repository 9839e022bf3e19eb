//! Sees work that does not end: a kernel that spins or keeps running for good cannot share a GPU in time, and someone is to be told.

use deepres_abi::meter::Reading;
use std::time::Duration;

/// Work that is in flight for so long, without anything completing, does not end …
const OVERDUE_NS: u64 = Duration::from_secs(2).as_nanos() as u64;
/// … unless the tenant has had kernels that were not much shorter: not so many times.
const TIMES_LONGEST: u64 = 10;

/// What is known of one process.
#[derive(Debug, Default)]
pub struct Overdue {
    compute_ns: u64,
    in_flight_since_ns: Option<u64>,
    was_told: bool,
}

impl Overdue {
    /// Takes in what its meter says. Returns true the first time that its work is overdue.
    pub fn look(&mut self, now: &Reading, longest_ns: u64, now_ns: u64) -> bool {
        let got_on = now.compute_ns != std::mem::replace(&mut self.compute_ns, now.compute_ns);
        if !now.in_flight || got_on {
            *self = Self {
                compute_ns: now.compute_ns,
                in_flight_since_ns: now.in_flight.then_some(now_ns),
                was_told: false,
            };
            return false;
        }
        self.in_flight_since_ns.get_or_insert(now_ns);
        let is_overdue = self.overdue_ns(longest_ns, now_ns).is_some();
        is_overdue && !std::mem::replace(&mut self.was_told, is_overdue)
    }

    /// For how long its work is in flight, if that is overdue; ns.
    pub fn overdue_ns(&self, longest_ns: u64, now_ns: u64) -> Option<u64> {
        let limit_ns = OVERDUE_NS.max(longest_ns.saturating_mul(TIMES_LONGEST));
        self.in_flight_since_ns
            .map(|since_ns| now_ns.saturating_sub(since_ns))
            .filter(|in_flight_ns| *in_flight_ns >= limit_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn reading(compute_ns: u64) -> Reading {
        Reading { compute_ns, in_flight: true, ..Reading::default() }
    }

    #[test]
    fn work_that_does_not_end_is_told_of_once() {
        let mut overdue = Overdue::default();
        assert!(!overdue.look(&reading(0), 0, 10 * SECOND));
        assert!(!overdue.look(&reading(0), 0, 11 * SECOND));
        assert!(overdue.look(&reading(0), 0, 12 * SECOND));
        assert!(!overdue.look(&reading(0), 0, 13 * SECOND), "it is known");
        assert_eq!(overdue.overdue_ns(0, 13 * SECOND), Some(3 * SECOND));
        assert!(!overdue.look(&reading(5), 0, 14 * SECOND), "it ended after all");
        assert_eq!(overdue.overdue_ns(0, 14 * SECOND), None);
    }

    #[test]
    fn who_has_long_kernels_is_given_longer_and_who_completes_or_idles_is_not_overdue() {
        let mut overdue = Overdue::default();
        overdue.look(&reading(0), SECOND, 0);
        assert!(!overdue.look(&reading(0), SECOND, 9 * SECOND));
        assert!(overdue.look(&reading(0), SECOND, 10 * SECOND));
        for second in 11..30 {
            assert!(!overdue.look(&reading(second), 0, second * SECOND), "something completes");
        }
        overdue.look(&Reading::default(), 0, 30 * SECOND);
        assert_eq!(overdue.overdue_ns(0, 90 * SECOND), None);
    }
}
