//! Corrects GPU time that several processes of a tenant count at once. While two processes have
//! work on the GPU, the hardware takes turns between them. The kernels of each process then take as
//! long as the kernels of both processes together, so both meters count the same time. But the
//! tenant used this time only once.
//!
//! Each process writes into its meter page the intervals in which its work was on the GPU. If two
//! processes report the same moment, the core subtracts the moment from the time of the process
//! that reports it later.

use crate::tuning::HARDWARE_SLICE_NS;
use alloc::boxed::Box;
use deepres_abi::allowance::Allowance;

/// The longest interval on the GPU that the core uses from one report of a process, ns. A longer
/// interval is false, or the arbiter did not read the meter for a long time.
const LOOKED_AT_NS: u64 = core::time::Duration::from_secs(1).as_nanos() as u64;

/// The moments at which one or several processes had work on the GPU, by their own reports.
type Moments = Box<Allowance>;

/// The moments at which any process of a tenant had work on the GPU, by the reports of all its
/// processes.
#[derive(Debug, Default)]
pub struct Said(Option<Moments>);

impl Said {
    /// Allocates the memory for moments, if there is none.
    pub fn make_room(&mut self) {
        self.0.get_or_insert_default();
    }

    /// Forgets all moments. The caller does this if only one process launches.
    pub fn forget(&mut self) {
        self.0 = None;
    }
}

/// The longest use that the core takes as free of the turns of other tenants, ns. The hardware ends
/// no slice earlier, while the work of the slice lasts.
pub const UNINTERRUPTED_NS: u64 = HARDWARE_SLICE_NS;

/// The time of a tenant's work in flight beside other tenants' work. The hardware takes turns
/// between the tenants, so the tenant's launches can take longer than they take alone. The turns of
/// the other tenants are no use of the tenant. The core knows these turns in two ways:
///
/// - by the time by which the launches took longer than their estimates;
/// - if the use is longer than a slice, by the shorter uses of the other tenants in the same time.
///   All tenants together cannot use more than the time that passed.
#[derive(Debug, Default)]
pub struct Shared {
    /// The time with work in flight that no reading has explained yet, ns.
    window_ns: u64,
    /// The part of `window_ns` beside other tenants' work, ns.
    shared_ns: u64,
    /// The short uses of other tenants in `shared_ns`, ns.
    others_ns: u64,
    /// The short uses of all other tenants at the last look, ns.
    seen_ns: u64,
}

impl Shared {
    /// Adds `elapsed_ns` of work in flight, beside other tenants' work if `is_shared`.
    /// `seen_ns` is the sum of all short uses of the other tenants so far.
    pub fn pass(&mut self, elapsed_ns: u64, is_shared: bool, seen_ns: u64) {
        let others_ns = seen_ns.saturating_sub(core::mem::replace(&mut self.seen_ns, seen_ns));
        let add = |sum: &mut u64, ns: u64| *sum = sum.saturating_add(ns).min(LOOKED_AT_NS);
        add(&mut self.window_ns, elapsed_ns);
        if is_shared {
            add(&mut self.shared_ns, elapsed_ns);
            add(&mut self.others_ns, others_ns);
        }
    }

    /// Skips a time in which the tenant had no work in flight. `seen_ns` is the sum of all short
    /// uses of the other tenants so far.
    pub fn skip(&mut self, seen_ns: u64) {
        self.seen_ns = seen_ns;
    }

    /// Forgets all time before the tenant's present burst.
    pub fn forget(&mut self) {
        *self = Self { seen_ns: self.seen_ns, ..Self::default() };
    }

    /// Returns the part of `counted_ns` in which the GPU worked for other tenants, ns.
    /// `stretched_ns` is the time by which launches took longer than usual. Uses up the time of the
    /// work.
    pub fn take(&mut self, counted_ns: u64, stretched_ns: u64) -> u64 {
        let left_ns = self.window_ns.saturating_sub(counted_ns);
        let is_long = counted_ns > UNINTERRUPTED_NS;
        let doubly_ns = if is_long { self.others_ns.saturating_sub(left_ns) } else { 0 };
        let others_ns = stretched_ns.max(doubly_ns).min(counted_ns).min(self.shared_ns);
        self.window_ns = left_ns;
        self.shared_ns = self.shared_ns.saturating_sub(counted_ns);
        self.others_ns = self.others_ns.saturating_sub(others_ns).min(left_ns);
        others_ns
    }
}

/// The moments at which one process had work on the GPU, by its own reports.
#[derive(Debug, Default)]
pub struct Overlap {
    own: Option<Moments>,
    /// Whether the core has read the process's intervals since it has memory for them.
    has_looked: bool,
    /// Time that other processes reported first, and that this process has reported in its
    /// intervals but not yet in its counters, ns.
    ahead_ns: u64,
}

impl Overlap {
    /// Allocates the memory for moments, if there is none.
    pub fn make_room(&mut self) {
        self.own.get_or_insert_default();
    }

    /// Forgets all moments. The caller does this if only one process launches.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Adds the intervals that the process reported since the last call: the beginning and the end
    /// of each, ns. `counted_ns` is the GPU time that the process counted since the last call.
    /// Returns the part of `counted_ns` that other processes had reported before, ns. Returns
    /// `None` while there is no memory for moments.
    pub fn look(&mut self, all: &Said, intervals: &[(u64, u64)], counted_ns: u64) -> Option<u64> {
        let (all, own) = all.0.as_ref().zip(self.own.as_ref())?;
        if !core::mem::replace(&mut self.has_looked, true) {
            // These intervals are of the time before a second process launched.
            return Some(0);
        }
        let mut left_ns = LOOKED_AT_NS;
        let mut others_ns = 0u64;
        for (start_ns, end_ns) in intervals.iter().copied() {
            let long_ns = end_ns.saturating_sub(start_ns);
            if long_ns > left_ns {
                continue;
            }
            left_ns -= long_ns;
            // The process itself counts overlapping work of its own streams only once.
            let new_ns = own.cover(start_ns, end_ns);
            others_ns = others_ns.saturating_add(new_ns.saturating_sub(all.cover(start_ns, end_ns)));
        }
        // A process reports an interval before it counts the interval's time.
        let ahead_ns = self.ahead_ns.saturating_add(others_ns).min(LOOKED_AT_NS);
        let taken_ns = ahead_ns.min(counted_ns);
        self.ahead_ns = ahead_ns - taken_ns;
        Some(taken_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use deepres_abi::allowance::TICK_NS;

    #[test]
    fn of_shared_time_a_tenant_is_not_charged_for_what_its_launches_took_longer() {
        let mut shared = Shared::default();
        assert_eq!(shared.take(100, 50), 0, "the tenant was alone");
        shared.pass(100, true, 0);
        assert_eq!(shared.take(60, 20), 20);
        assert_eq!(shared.take(60, 50), 40, "in 40 of the 60 it was not alone");
        assert_eq!(shared.take(60, 50), 0);
    }

    #[test]
    fn a_use_longer_than_a_slice_gives_way_to_the_short_uses_of_others_in_the_same_time() {
        const MS: u64 = 1_000_000;
        let mut shared = Shared::default();
        shared.skip(5 * MS);
        // In 24 ms, others show 8 ms, of which 1 ms comes a little late.
        for seen_ms in [5, 6, 7, 8, 9, 10, 11, 12] {
            shared.pass(3 * MS, true, seen_ms * MS);
        }
        assert_eq!(shared.take(24 * MS, 0), 7 * MS);
        for seen_ms in [13, 14, 15, 16, 17, 18, 19, 21] {
            shared.pass(3 * MS, true, seen_ms * MS);
        }
        assert_eq!(shared.take(24 * MS, 0), 9 * MS);
        // The launches' own excess over their estimates is part of it.
        shared.pass(24 * MS, true, 29 * MS);
        assert_eq!(shared.take(24 * MS, 10 * MS), 10 * MS);
    }

    #[test]
    fn uses_that_fit_beside_each_other_into_the_time_are_charged_whole() {
        const MS: u64 = 1_000_000;
        let mut shared = Shared::default();
        // A short use waited on the GPU for the long work, and is not interrupted.
        shared.pass(3 * MS, true, 2 * MS);
        assert_eq!(shared.take(MS, 0), 0);
        shared.forget();
        shared.pass(MS, true, 3 * MS);
        assert_eq!(shared.take(MS, 0), 0, "a use within a slice is right");
        shared.forget();
        // Of 6 ms in flight, 2 ms were shared. The others used 1 ms, and the tenant the rest.
        shared.pass(4 * MS, false, 3 * MS);
        shared.pass(2 * MS, true, 4 * MS);
        assert_eq!(shared.take(5 * MS, 0), 0);
    }

    const fn at(ticks: u64) -> u64 {
        1_000_000 * TICK_NS + ticks * TICK_NS
    }

    /// Returns the moments of a tenant with two processes.
    fn two() -> (Said, [Overlap; 2]) {
        let (mut said, mut processes) = (Said::default(), [Overlap::default(), Overlap::default()]);
        said.make_room();
        processes.iter_mut().for_each(Overlap::make_room);
        (said, processes)
    }

    #[test]
    fn time_that_two_processes_count_is_taken_off_the_later_one() {
        let (said, [mut first, mut second]) = two();
        assert_eq!(first.look(&said, &[(at(0), at(9))], 9), Some(0), "of the time before there were two");
        assert_eq!(second.look(&said, &[], 0), Some(0));
        assert_eq!(first.look(&said, &[(at(10), at(20))], 10 * TICK_NS), Some(0));
        assert_eq!(second.look(&said, &[(at(15), at(30))], 0), Some(0), "it has not counted it yet");
        // Another stream of the second process, beside its first stream.
        assert_eq!(second.look(&said, &[(at(15), at(32))], 17 * TICK_NS), Some(5 * TICK_NS));
        assert_eq!(second.look(&said, &[], TICK_NS), Some(0));
    }

    #[test]
    fn intervals_that_never_were_are_not_looked_at() {
        let (said, [mut liar, mut other]) = two();
        liar.look(&said, &[], 0);
        other.look(&said, &[], 0);
        liar.look(&said, &[(0, u64::MAX), (at(9), at(0))], u64::MAX);
        assert_eq!(other.look(&said, &[(at(0), at(9))], 9 * TICK_NS), Some(0));
    }

    #[test]
    fn nothing_is_taken_off_before_there_is_room_for_moments() {
        let mut overlap = Overlap::default();
        assert_eq!(overlap.look(&Said::default(), &[(at(0), at(9))], 9 * TICK_NS), None);
    }
}
