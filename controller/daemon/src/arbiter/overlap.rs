//! Corrects GPU time that several processes of a tenant count, each as its own. While two processes
//! have work on the GPU, the hardware takes turns between them. Each one's kernels then take as
//! long as both, but the tenant used that time only once.
//!
//! Each process writes into its meter page when it was on the GPU. A moment that another process
//! reported earlier comes off the time that the process counts.

use deepres_abi::allowance::Allowance;
use deepres_abi::meter::Intervals;

/// The longest time on the GPU that is taken from one process at a time, ns. A longer time is
/// false, or was not read for long.
const LOOKED_AT_NS: u64 = std::time::Duration::from_secs(1).as_nanos() as u64;

/// The moments that processes reported.
type Moments = Box<Allowance>;

/// The moments that all processes of a tenant reported.
#[derive(Debug, Default)]
pub struct Said(Option<Moments>);

impl Said {
    /// Forgets everything, because only one process launches.
    pub fn forget(&mut self) {
        self.0 = None;
    }
}

/// The moments that one process reported.
#[derive(Debug, Default)]
pub struct Overlap {
    own: Option<Moments>,
    /// The number of intervals read from its page.
    looked_at: u64,
    /// Time of other processes that the process has reported and not yet counted, ns.
    ahead_ns: u64,
}

impl Overlap {
    /// Forgets everything, because only one process launches.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Takes in the intervals that the process reported since the last call. `counted_ns` is the
    /// GPU time that it counted since. Returns the part of `counted_ns` that others had reported
    /// before, ns.
    pub fn look(&mut self, all: &mut Said, intervals: &Intervals, counted_ns: u64) -> u64 {
        let all = all.0.get_or_insert_default();
        let Some(own) = &self.own else {
            self.own = Some(Moments::default());
            self.looked_at = intervals.written();
            return 0;
        };
        let mut left_ns = LOOKED_AT_NS;
        let mut others_ns = 0u64;
        self.looked_at = intervals.since(self.looked_at, |start_ns, end_ns| {
            let long_ns = end_ns.saturating_sub(start_ns);
            if long_ns > left_ns {
                return;
            }
            left_ns -= long_ns;
            // The process itself counts overlapping work of its own streams only once.
            let new_ns = own.cover(start_ns, end_ns);
            others_ns = others_ns.saturating_add(new_ns.saturating_sub(all.cover(start_ns, end_ns)));
        });
        // A process reports the interval before it counts the time.
        let ahead_ns = self.ahead_ns.saturating_add(others_ns).min(LOOKED_AT_NS);
        let taken_ns = ahead_ns.min(counted_ns);
        self.ahead_ns = ahead_ns - taken_ns;
        taken_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_abi::allowance::TICK_NS;

    const fn at(ticks: u64) -> u64 {
        1_000_000 * TICK_NS + ticks * TICK_NS
    }

    #[test]
    fn time_that_two_processes_count_is_taken_off_the_later_one() {
        let [first_intervals, second_intervals] = [Intervals::default(), Intervals::default()];
        let mut said = Said::default();
        let [mut first, mut second] = [Overlap::default(), Overlap::default()];
        first_intervals.add(at(0), at(9));
        assert_eq!(first.look(&mut said, &first_intervals, 9), 0, "of the time before there were two");
        assert_eq!(second.look(&mut said, &second_intervals, 0), 0);
        first_intervals.add(at(10), at(20));
        second_intervals.add(at(15), at(30));
        assert_eq!(first.look(&mut said, &first_intervals, 10 * TICK_NS), 0);
        assert_eq!(second.look(&mut said, &second_intervals, 0), 0, "it has not counted it yet");
        // Another stream of the second process, beside its first stream.
        second_intervals.add(at(15), at(32));
        assert_eq!(second.look(&mut said, &second_intervals, 17 * TICK_NS), 5 * TICK_NS);
        assert_eq!(second.look(&mut said, &second_intervals, TICK_NS), 0);
    }

    #[test]
    fn what_never_was_is_not_looked_at() {
        let [intervals, others] = [Intervals::default(), Intervals::default()];
        let mut said = Said::default();
        let [mut liar, mut other] = [Overlap::default(), Overlap::default()];
        liar.look(&mut said, &intervals, 0);
        other.look(&mut said, &others, 0);
        intervals.add(0, u64::MAX);
        intervals.add(at(9), at(0));
        others.add(at(0), at(9));
        liar.look(&mut said, &intervals, u64::MAX);
        assert_eq!(other.look(&mut said, &others, 9 * TICK_NS), 0);
    }
}
