//! The account of a tenant on one GPU. The account adds up the figures of the sessions' meters, and
//! bounds each figure by the possible values.

use super::requests::Served;
use super::saved::{Baseline, SavedAccount};
use crate::lease::Seen;
use alloc::collections::VecDeque;
use core::time::Duration;
use deepres_abi::PPM;
use deepres_abi::meter::{Reading, WAIT_BUCKETS};

/// The span of time over which a recent share is computed.
const RECENT_NS: u64 = Duration::from_secs(1).as_nanos() as u64;
/// The most marks for which the account makes room in advance.
const MOST_MARKS: usize = 512;
/// The most threads of one session that may wait at once. The account bounds the wait time that a
/// session reports by this number.
pub const MAX_WAITERS: u64 = 4096;
/// The most launches of one session per nanosecond. Even with a driver that does nothing, a launch
/// takes some ten nanoseconds of a processor. If a counter grows faster, the counter is wrong, and
/// the account ignores the growth.
const MAX_LAUNCHES_PER_NS: u64 = 1;
/// The longest copy that the account counts in full while the tenant has no other work in flight. A
/// copy of a whole GPU's memory takes less time.
const LONGEST_COPY_NS: u64 = Duration::from_secs(10).as_nanos() as u64;
/// The address space of a process, bytes. No process can hold more.
pub const MAX_HELD_BYTES: u64 = 1 << 47;

/// The sums of a tenant's GPU time, waits, launches and refusals on one GPU.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct Totals {
    /// GPU time charged, ns.
    pub gpu_ns: u64,
    /// GPU time of copies, charged or not, ns.
    pub copy_ns: u64,
    /// Time waited at the gate, summed over threads, ns.
    pub wait_ns: u64,
    /// Number of waits at the gate.
    pub waits: u64,
    /// Number of kernels launched one by one.
    pub kernel_launches: u64,
    /// Number of launched graphs.
    pub graph_launches: u64,
    /// Number of refused allocations.
    pub refusals: u64,
    /// Time in which the tenant had work in flight or a waiting thread, ns.
    pub wanted_ns: u64,
    /// The part of `wanted_ns` in which another tenant wanted the GPU too, ns.
    pub contended_ns: u64,
    /// The tenant's part of `contended_ns`, by its entitlement among the tenants that wanted the
    /// GPU, ns.
    pub owed_ns: u64,
    /// GPU time charged during `contended_ns`, ns.
    pub had_ns: u64,
    /// Waits at the gate by [`deepres_abi::meter::wait_bucket`].
    pub waits_by_length: [u64; WAIT_BUCKETS],
    /// The sums of the tenant's requests, measured while the tenant has an SLO.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Served::is_empty"))]
    pub served: Served,
}

/// The account of a tenant on one GPU: its totals, and the bounds on the next charges.
#[derive(Debug)]
pub struct Account {
    /// The sums of the tenant's GPU time, waits, launches and refusals.
    pub totals: Totals,
    /// The last refused allocation: (API number, bytes).
    pub last_refusal: Option<(u32, u64)>,
    /// Whether the tenant wanted the GPU at the last reading.
    pub wants: bool,
    since_ns: u64,
    looked_ns: u64,
    /// Wall time that the account may still charge for work in flight, ns. The account charges such
    /// work when it completes.
    uncharged_ns: u64,
    /// Wall time that the account may still count for copies, ns. No meter shows a copy in flight,
    /// so the account counts a copy when it completes.
    uncopied_ns: u64,
    /// Wall time for which the account has charged nothing yet, ns. No charge, copies included, may
    /// exceed this time.
    unclaimed_ns: u64,
    /// The longest kernel or graph of any session, ns.
    pub longest_ns: u64,
    /// GPU time that processes claimed for the time in which no arbiter ran, ns.
    arrears_ns: u64,
    /// GPU time that was in flight when the time without an arbiter began, ns. The account may
    /// charge this time in addition.
    in_flight_before_ns: u64,
    /// GPU time that the account charged although another tenant had it, ns. The account subtracts
    /// this time from its next charges, because the total never falls.
    overcharged_ns: u64,
    recent: VecDeque<Mark>,
}

/// The totals at one moment of the last second.
#[derive(Debug, Clone, Copy)]
struct Mark {
    at_ns: u64,
    gpu_ns: u64,
    owed_ns: u64,
    had_ns: u64,
}

impl Account {
    /// Returns an account without charges, for a tenant that first appears at `now_ns`.
    pub fn new(now_ns: u64) -> Self {
        Self {
            totals: Totals::default(),
            last_refusal: None,
            wants: false,
            since_ns: now_ns,
            looked_ns: now_ns,
            uncharged_ns: 0,
            uncopied_ns: 0,
            unclaimed_ns: 0,
            longest_ns: 0,
            arrears_ns: 0,
            in_flight_before_ns: 0,
            overcharged_ns: 0,
            recent: VecDeque::new(),
        }
    }

    /// Returns the account that the previous daemon saved, as of `now_ns`. [`Self::catch_up`] and
    /// [`Self::settle`] charge the use between the save and `now_ns`.
    pub fn restore(saved: &SavedAccount, now_ns: u64) -> Self {
        let mut account = Self {
            totals: saved.totals,
            last_refusal: saved.last_refusal,
            since_ns: saved.since_ns.min(now_ns),
            longest_ns: saved.longest_ns,
            in_flight_before_ns: saved.uncharged_ns,
            overcharged_ns: saved.overcharged_ns,
            ..Self::new(now_ns)
        };
        // A broken state file must not make the total exceed the tenant's lifetime.
        account.totals.gpu_ns = saved.totals.gpu_ns.min(now_ns - account.since_ns);
        account.mark(now_ns);
        account
    }

    /// Returns the part of the account that is saved.
    pub fn save(&self, entitled_ppm: u32, lag_ns: i64) -> SavedAccount {
        SavedAccount {
            entitled_ppm,
            totals: self.totals,
            since_ns: self.since_ns,
            uncharged_ns: self.uncharged_ns,
            overcharged_ns: self.overcharged_ns,
            longest_ns: self.longest_ns,
            lag_ns,
            last_refusal: self.last_refusal,
        }
    }

    /// Counts the use of a process from its baseline up to `now`, in a time in which no arbiter
    /// ran. Returns the GPU time that the caller may charge to the process, ns. The bound on all
    /// processes together is the time that passed, and the work in flight at the beginning of this
    /// time.
    pub fn catch_up(&mut self, from: &Baseline, now: &Reading, now_ns: u64) -> u64 {
        let passed_ns = now_ns.saturating_sub(from.at_ns).saturating_add(self.in_flight_before_ns);
        let before = Reading::from(from.meter);
        let used = now.since(&before, passed_ns);
        let used_ns = used.compute_ns.min(passed_ns.saturating_sub(self.arrears_ns));
        self.arrears_ns = self.arrears_ns.saturating_add(used_ns);
        self.totals.copy_ns = self.totals.copy_ns.saturating_add(used.copy_ns);
        self.count(&before, now, passed_ns);
        used_ns
    }

    /// Charges GPU time that a process used while no arbiter ran. The charge changes the totals,
    /// but no debt between tenants.
    pub fn settle(&mut self, used_ns: u64) {
        let used_ns = self.charge(used_ns);
        // Recent shares count only arbitrated time.
        for mark in &mut self.recent {
            mark.gpu_ns = mark.gpu_ns.saturating_add(used_ns);
        }
    }

    /// Adds GPU time to the total, after subtracting overcharged time. Returns the added time, ns.
    fn charge(&mut self, used_ns: u64) -> u64 {
        let off_ns = used_ns.min(self.overcharged_ns);
        self.overcharged_ns -= off_ns;
        self.totals.gpu_ns = self.totals.gpu_ns.saturating_add(used_ns - off_ns);
        used_ns - off_ns
    }

    /// Subtracts GPU time from the next charges, because the account charged time in which the GPU
    /// worked for another tenant. Debts between tenants do not change.
    pub fn take_off(&mut self, used_ns: u64) {
        self.overcharged_ns = self.overcharged_ns.saturating_add(used_ns);
    }

    /// Adds the growth of a meter's counters, except GPU time, to the totals.
    fn count(&mut self, before: &Reading, now: &Reading, allowed_ns: u64) {
        let totals = &mut self.totals;
        let most = allowed_ns.saturating_mul(MAX_LAUNCHES_PER_NS);
        let grow = |total: &mut u64, now: u64, before: u64| {
            let grown = now.saturating_sub(before);
            *total = total.saturating_add(if grown <= most { grown } else { 0 });
        };
        let waited_ns =
            now.wait_ns.saturating_sub(before.wait_ns).min(allowed_ns.saturating_mul(MAX_WAITERS));
        totals.wait_ns = totals.wait_ns.saturating_add(waited_ns);
        grow(&mut totals.waits, now.waits, before.waits);
        grow(&mut totals.kernel_launches, now.kernel_launches, before.kernel_launches);
        grow(&mut totals.graph_launches, now.graph_launches, before.graph_launches);
        grow(&mut totals.refusals, now.refusals, before.refusals);
        let lengths = now.waits_by_length.iter().zip(before.waits_by_length);
        for (total, (now, before)) in totals.waits_by_length.iter_mut().zip(lengths) {
            grow(total, u64::from(now.wrapping_sub(before)), 0);
        }
        if now.refusals > before.refusals {
            self.last_refusal = Some((now.last_refused_api, now.last_refused_bytes.min(MAX_HELD_BYTES)));
        }
        // No kernel ran for longer than the account has existed.
        let lifetime_ns = self.looked_ns.saturating_sub(self.since_ns);
        self.longest_ns = self.longest_ns.max(now.longest_ns.min(lifetime_ns));
    }

    /// Returns the wall time that the account may still charge for the work in flight at the last
    /// reading, ns.
    pub fn uncharged_ns(&self) -> u64 {
        self.uncharged_ns
    }

    /// Charges the growth of all sessions' meters. `meters` has the previous and the present
    /// reading of each session. Returns the figures for the scheduler. If sessions report more GPU
    /// time than was possible, the account charges only the possible time. With `is_left`, a
    /// session shows no work in flight although it left work behind. The account charges such work
    /// later.
    pub fn look(
        &mut self,
        now_ns: u64,
        is_left: bool,
        meters: impl Iterator<Item = (Reading, Reading)>,
    ) -> Seen {
        let passed_ns = now_ns.saturating_sub(self.looked_ns);
        let allowed_ns = self.uncharged_ns.saturating_add(passed_ns);
        let copies_allowed_ns = self.uncopied_ns.saturating_add(passed_ns);
        let unclaimed_ns = self.unclaimed_ns.saturating_add(passed_ns);
        self.looked_ns = now_ns;
        let mut seen = Seen::default();
        let mut copy_ns = 0u64;
        for (before, now) in meters {
            let used = now.since(&before, allowed_ns.max(copies_allowed_ns));
            seen.used_ns = seen.used_ns.saturating_add(used.compute_ns);
            copy_ns = copy_ns.saturating_add(used.copy_ns);
            seen.waiting |= now.waiters != 0;
            seen.in_flight |= now.in_flight;
            seen.pending_ns = seen.pending_ns.saturating_add(now.in_flight_ns);
            self.count(&before, &now, allowed_ns);
        }
        let copy_ns = copy_ns.min(copies_allowed_ns);
        self.uncopied_ns = (copies_allowed_ns - copy_ns).min(LONGEST_COPY_NS);
        // If copies are charged, `used_ns` contains them.
        seen.used_ns = seen.used_ns.min(allowed_ns.max(copy_ns)).min(unclaimed_ns);
        seen.longest_ns = self.longest_ns;
        self.charge(seen.used_ns);
        self.totals.copy_ns = self.totals.copy_ns.saturating_add(copy_ns);
        let uncharged_ns = allowed_ns.saturating_sub(seen.used_ns);
        self.uncharged_ns = if seen.in_flight || is_left { uncharged_ns } else { 0 };
        self.unclaimed_ns = (unclaimed_ns - seen.used_ns).min(LONGEST_COPY_NS.max(self.uncharged_ns));
        self.wants = seen.waiting || seen.in_flight;
        seen
    }

    /// Records that no session wanted or used the GPU until `now_ns`. Returns the time since the
    /// last look, ns.
    pub fn rest(&mut self, now_ns: u64) -> u64 {
        let passed_ns = now_ns.saturating_sub(self.looked_ns);
        self.look(now_ns, false, core::iter::empty());
        passed_ns
    }

    /// Adds `elapsed_ns` to the totals of wanted, contended and owed time. In this time, the
    /// tenant's state was as at the last reading. `rivals_ppm` is the sum of the entitlements of
    /// all tenants that wanted the GPU, this tenant included. `None`: no other tenant wanted the
    /// GPU.
    pub fn pass(&mut self, elapsed_ns: u64, entitled_ppm: u32, rivals_ppm: Option<u64>) {
        if !self.wants {
            return;
        }
        let totals = &mut self.totals;
        totals.wanted_ns = totals.wanted_ns.saturating_add(elapsed_ns);
        if let Some(rivals_ppm) = rivals_ppm {
            totals.contended_ns = totals.contended_ns.saturating_add(elapsed_ns);
            let owed_ns = u128::from(elapsed_ns) * u128::from(entitled_ppm) / u128::from(rivals_ppm.max(1));
            totals.owed_ns = totals.owed_ns.saturating_add(u64::try_from(owed_ns).unwrap_or(elapsed_ns));
        }
    }

    /// Adds `used_ns`, which the account charged while other tenants wanted the GPU too, to
    /// `had_ns`.
    pub fn had(&mut self, used_ns: u64) {
        self.totals.had_ns = self.totals.had_ns.saturating_add(used_ns);
    }

    /// Allocates memory for the marks of one second, if the marks are at least `apart_ns` apart.
    /// Then [`Self::mark`] does not allocate.
    pub fn reserve_marks(&mut self, apart_ns: u64) {
        // The latest mark that is older than a second, the new mark, and a mark at either end.
        let marks = RECENT_NS / apart_ns.max(1) + 4;
        let marks = usize::try_from(marks).unwrap_or(usize::MAX).min(MOST_MARKS);
        self.recent.reserve(marks.saturating_sub(self.recent.len()));
    }

    /// Records the totals at `now_ns`, from which the recent figures are computed.
    pub fn mark(&mut self, now_ns: u64) {
        while self.recent.get(1).is_some_and(|mark| now_ns.saturating_sub(mark.at_ns) >= RECENT_NS) {
            self.recent.pop_front();
        }
        let Totals { gpu_ns, owed_ns, had_ns, .. } = self.totals;
        self.recent.push_back(Mark { at_ns: now_ns, gpu_ns, owed_ns, had_ns });
    }

    /// Returns the latest mark that is at least a second old, or else the oldest mark.
    fn a_second_ago(&self, now_ns: u64) -> Option<Mark> {
        let is_old = |mark: &&Mark| now_ns.saturating_sub(mark.at_ns) >= RECENT_NS;
        self.recent.iter().rev().find(is_old).or(self.recent.front()).copied()
    }

    /// Returns the tenant's service: of the last second's contended time, the GPU time that the
    /// tenant got, divided by the time that it was owed. The value 1 means that the tenant got
    /// exactly the owed time. Returns `None` if the tenant was owed nothing.
    pub fn recent_service(&self, now_ns: u64) -> Option<f64> {
        let then = self.a_second_ago(now_ns)?;
        let owed_ns = self.totals.owed_ns.saturating_sub(then.owed_ns);
        (owed_ns > 0).then(|| self.totals.had_ns.saturating_sub(then.had_ns) as f64 / owed_ns as f64)
    }

    /// Returns the tenant's recent part of the GPU's time, parts per million.
    pub fn recent_share_ppm(&self, now_ns: u64) -> u32 {
        let (then_ns, gpu_ns) =
            self.a_second_ago(now_ns).map_or((self.since_ns, 0), |mark| (mark.at_ns, mark.gpu_ns));
        ratio_ppm(self.totals.gpu_ns - gpu_ns, now_ns.saturating_sub(then_ns))
    }

    /// Returns the tenant's part of the GPU's time since the tenant first appeared, parts per
    /// million.
    pub fn total_share_ppm(&self, now_ns: u64) -> u32 {
        ratio_ppm(self.totals.gpu_ns, now_ns.saturating_sub(self.since_ns))
    }
}

/// Returns Jain's fairness index of the services, parts per million (R. Jain, D. Chiu, W. Hawe,
/// DEC-TR-301, 1984). The index is 1 if all services are equal. The index is 1/n if one tenant of n
/// had everything. Returns `None` for fewer than two services, and if all services are 0.
pub fn fairness_ppm(services: impl Iterator<Item = f64>) -> Option<u32> {
    let (count, sum, squares) =
        services.fold((0.0, 0.0, 0.0), |(count, sum, squares), x| (count + 1.0, sum + x, squares + x * x));
    // Adds a half instead of rounding, because `core` cannot round.
    (count > 1.0 && squares > 0.0).then(|| (sum * sum / (count * squares) * f64::from(PPM) + 0.5) as u32)
}

fn ratio_ppm(part: u64, whole: u64) -> u32 {
    let ppm = u128::from(part) * u128::from(PPM) / u128::from(whole.max(1));
    ppm.min(u128::from(PPM)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(compute_ns: u64, in_flight: bool) -> Reading {
        Reading { compute_ns, in_flight, ..Reading::default() }
    }

    #[test]
    fn a_long_kernel_is_charged_whole_when_it_completes() {
        let mut account = Account::new(0);
        for now_ns in [1_000, 2_000] {
            assert_eq!(
                account.look(now_ns, false, [(reading(0, true), reading(0, true))].into_iter()).used_ns,
                0
            );
        }
        assert_eq!(
            account.look(3_000, false, [(reading(0, true), reading(2_900, false))].into_iter()).used_ns,
            2_900
        );
    }

    #[test]
    fn sessions_together_are_charged_no_more_than_the_time_that_passed() {
        let mut account = Account::new(0);
        let lie = (reading(0, true), reading(u64::MAX, true));
        assert_eq!(account.look(1_000, false, [lie, lie, lie].into_iter()).used_ns, 1_000);
        assert_eq!(account.look(1_500, false, [lie].into_iter()).used_ns, 500);
        assert_eq!(account.totals.gpu_ns, 1_500);
    }

    #[test]
    fn time_spent_idle_cannot_be_charged_later() {
        let mut account = Account::new(0);
        account.look(1_000_000, false, [(reading(0, false), reading(0, false))].into_iter());
        assert_eq!(
            account.look(1_000_100, false, [(reading(0, false), reading(900_000, true))].into_iter()).used_ns,
            100
        );
    }

    #[test]
    fn a_long_copy_is_counted_whole_when_it_completes_and_charged_if_it_is_in_what_was_used() {
        let copied = |copy_ns, compute_ns| Reading { copy_ns, ..reading(compute_ns, false) };
        for charged_ns in [0, 900_000] {
            let mut account = Account::new(0);
            account.look(1_000_000, false, [(copied(0, 0), copied(0, 0))].into_iter());
            let seen =
                account.look(1_000_100, false, [(copied(0, 0), copied(900_000, charged_ns))].into_iter());
            assert_eq!((account.totals.copy_ns, seen.used_ns), (900_000, charged_ns));
            // The account does not count the same time twice.
            let lie = [(copied(900_000, charged_ns), copied(u64::MAX, u64::MAX))];
            let seen = account.look(1_000_200, false, lie.into_iter());
            assert_eq!((account.totals.copy_ns, seen.used_ns), (1_000_200, 100_200));
        }
    }

    #[test]
    fn counts_that_no_processor_reaches_are_left_out() {
        let mut account = Account::new(0);
        let lie = Reading {
            kernel_launches: u64::MAX,
            graph_launches: u64::MAX,
            waits: u64::MAX,
            wait_ns: u64::MAX,
            refusals: u64::MAX,
            last_refused_bytes: u64::MAX,
            longest_ns: u64::MAX,
            ..Reading::default()
        };
        account.look(1_000, false, [(Reading::default(), lie)].into_iter());
        let totals = account.totals;
        assert_eq!((totals.kernel_launches, totals.graph_launches), (0, 0));
        assert_eq!((totals.waits, totals.refusals, totals.wait_ns), (0, 0, 1_000 * MAX_WAITERS));
        assert_eq!((account.longest_ns, account.last_refusal), (1_000, Some((0, MAX_HELD_BYTES))));
        let honest = Reading { kernel_launches: 20, ..Reading::default() };
        account.look(2_000, false, [(Reading::default(), honest)].into_iter());
        assert_eq!(account.totals.kernel_launches, 20);
    }

    #[test]
    fn a_meter_that_runs_backwards_changes_nothing() {
        let mut account = Account::new(0);
        account.look(1_000, false, [(reading(500, true), reading(100, true))].into_iter());
        assert_eq!(account.totals.gpu_ns, 0);
    }

    fn baseline(compute_ns: u64, at_ns: u64) -> Baseline {
        Baseline { meter: reading(compute_ns, false).into(), at_ns }
    }

    #[test]
    fn gpu_time_used_while_no_daemon_lived_is_charged_once_and_is_no_burst() {
        let mut account = Account::new(0);
        account.look(1_000, false, [(reading(0, true), reading(700, true))].into_iter());
        let saved = account.save(PPM, -5);
        let mut account = Account::restore(&saved, 4_000);
        assert_eq!(account.totals.gpu_ns, 700);
        let used_ns = account.catch_up(&baseline(700, 1_000), &reading(2_700, true), 4_000);
        assert_eq!(account.totals.gpu_ns, 700, "not before it is settled");
        account.settle(used_ns);
        assert_eq!(account.totals.gpu_ns, 2_700);
        assert_eq!(account.total_share_ppm(4_000), 675_000);
        assert_eq!(account.recent_share_ppm(5_000), 0, "nothing was used since");
        account.look(5_000, false, [(reading(2_700, true), reading(3_000, true))].into_iter());
        assert_eq!(account.totals.gpu_ns, 3_000);
    }

    #[test]
    fn gpu_time_that_processes_report_for_the_time_without_a_daemon_is_bounded_by_this_time() {
        let saved = SavedAccount { uncharged_ns: 50, ..SavedAccount::default() };
        let mut account = Account::restore(&saved, 4_000);
        for _ in 0..3 {
            let used_ns = account.catch_up(&baseline(0, 1_000), &reading(u64::MAX, true), 4_000);
            account.settle(used_ns);
        }
        assert_eq!(account.totals.gpu_ns, 3_050);
        assert_eq!(
            account.catch_up(&baseline(9, 1_000), &reading(5, true), 9_000),
            0,
            "a counter that went back"
        );
    }

    #[test]
    fn no_file_makes_an_account_larger_than_its_time() {
        let saved = SavedAccount {
            totals: Totals { gpu_ns: u64::MAX, wait_ns: u64::MAX, ..Totals::default() },
            since_ns: 1_000,
            ..SavedAccount::default()
        };
        let mut account = Account::restore(&saved, 4_000);
        assert_eq!(account.totals.gpu_ns, 3_000);
        account.look(5_000, false, [(reading(0, true), reading(900, true))].into_iter());
        assert_eq!(account.totals.gpu_ns, 3_900);
        let later = SavedAccount { since_ns: u64::MAX, ..saved };
        assert_eq!(Account::restore(&later, 4_000).totals.gpu_ns, 0);
    }

    #[test]
    fn work_that_a_stopped_process_left_in_flight_is_charged_whole_when_it_goes_on() {
        let mut account = Account::new(0);
        let seen = account.look(1_000, true, [(reading(0, false), reading(0, false))].into_iter());
        assert!(!seen.in_flight && !account.wants, "meanwhile it wants nothing");
        account.look(2_000, false, [(reading(0, true), reading(1_900, false))].into_iter());
        assert_eq!(account.totals.gpu_ns, 1_900);
    }

    #[test]
    fn the_recent_share_forgets_what_was_long_ago() {
        let mut account = Account::new(0);
        account.look(RECENT_NS, false, [(reading(0, true), reading(RECENT_NS, true))].into_iter());
        for tenth in 10..=30 {
            account.mark(tenth * RECENT_NS / 10);
        }
        assert_eq!(account.recent_share_ppm(3 * RECENT_NS), 0);
        assert_eq!(account.total_share_ppm(3 * RECENT_NS), 333_333);
    }

    #[test]
    fn fairness_is_whole_where_all_have_what_they_are_owed_and_less_where_one_has_more() {
        assert_eq!(fairness_ppm([1.0, 1.0, 1.0].into_iter()), Some(PPM));
        assert_eq!(fairness_ppm([0.8, 0.8].into_iter()), Some(PPM), "idle time lowers no fairness");
        assert_eq!(fairness_ppm([2.0, 0.0].into_iter()), Some(PPM / 2));
        assert_eq!(fairness_ppm([1.0].into_iter()), None);
        assert_eq!(fairness_ppm([0.0, 0.0].into_iter()), None);
    }

    #[test]
    fn gpu_time_is_owed_as_a_part_of_the_time_in_which_others_wanted_the_gpu_too() {
        let mut account = Account::new(0);
        account.mark(0);
        account.wants = true;
        account.pass(1_000, 300_000, None);
        assert_eq!((account.totals.owed_ns, account.recent_service(1_000)), (0, None));
        account.pass(1_000, 300_000, Some(600_000));
        account.had(400);
        assert_eq!((account.totals.owed_ns, account.totals.had_ns), (500, 400));
        assert_eq!(account.recent_service(2_000), Some(0.8));
    }

    #[test]
    fn waits_are_counted_by_length_past_the_end_of_their_counters() {
        let mut account = Account::new(0);
        let [mut before, mut now] = [Reading::default(); 2];
        before.waits_by_length[3] = u32::MAX;
        now.waits_by_length[3] = 1;
        account.look(1_000, false, [(before, now)].into_iter());
        assert_eq!(account.totals.waits_by_length[3], 2);
    }
}
