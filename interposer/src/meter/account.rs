//! The account of this process's GPU time on one GPU. The account adds up the times of all streams,
//! and counts overlapping times once.
//!
//! Measured times have a place on the time line, and the account computes their exact union.
//! Estimated times have no place. In a *spell*, a short time that comes every few milliseconds, the
//! meter measures every launch ([`Account::spell`]). The spells show which part of the estimated
//! times overlaps with work of other streams.

use std::time::Duration;

use super::measure::Measured;
use super::union::Union;

const fn ns(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// GPU time over which the account averages the overlap of streams.
const OVERLAP_OVER_NS: u64 = ns(Duration::from_millis(20));
/// The part of the time from a segment's beginning to its end that the segment's launches must
/// fill, percent. If the launches fill less, the account gives them no place on the time line.
const DENSE_PERCENT: u64 = 90;
/// A single launch of at least this length gets a place on the time line, even outside spells.
/// There are two reasons. A spell is too short to cover the whole launch. And other launches can
/// wait for the SMs that this launch occupies: their events then seem to show that they run beside
/// this launch.
const LONG_NS: u64 = ns(Duration::from_micros(500));
/// Time between two spells. Streams with the same pace keep their relative positions for
/// milliseconds, so many short spells show more than few long spells.
const SPELL_EVERY_NS: u64 = ns(Duration::from_millis(8));
/// The number by which [`SPELL_EVERY_NS`] is divided to get the length of a spell.
const SPELL_PART: u64 = 5;
/// The length of the first part of a spell, ns. The spell ignores work in this part. Launches of
/// older segments can run at the same time, and the meter did not measure these launches one by
/// one.
const SETTLING_NS: u64 = ns(Duration::from_micros(500));
/// The length of the last part of a spell, ns. The spell ignores work in this part, because the
/// meter thread may not yet have seen the end of other work at that time.
const TRAILING_NS: u64 = ns(Duration::from_micros(300));
/// The weight that the results of earlier spells keep after each new spell. So about 16 spells
/// count.
const SPELL_KEPT: f64 = 1.0 - 1.0 / 16.0;
/// The time within which the meter must measure launches of two streams, so that the streams count
/// as running beside each other.
const BESIDE_NS: u64 = ns(Duration::from_millis(100));
/// If the launches of all streams together come at least this time apart, ns, the meter measures
/// every launch. Measuring each launch then costs no more than measuring segments, and the meter
/// need not estimate.
const APART_NS: u64 = ns(Duration::from_micros(40));
/// Measured GPU time, ns, that the spells must have seen before the account uses their result.
const TELLING_NS: f64 = 50_000.0;

/// The account of this process's GPU time on one GPU.
#[derive(Debug)]
pub struct Account {
    kernels: Union,
    copies: Union,
    /// The sum of the times of the segments since the last result of [`Self::overlap_permille`],
    /// ns.
    streams_ns: u64,
    /// The part of the time line that the segments of `streams_ns` covered first, ns.
    covered_ns: u64,
    /// The fraction of estimated times that the account charges.
    counts: f64,
    /// The time of single launches in the spells, with recent spells weighted most, ns.
    singles_ns: f64,
    /// The part of `singles_ns` that no other work covered, ns.
    added_ns: f64,
    spell: Option<Spell>,
    spell_due_ns: u64,
    had_sparse: bool,
    /// The stream that the meter measured last.
    stream: usize,
    /// The time at which the measured stream last changed, ns.
    other_stream_ns: Option<u64>,
    /// The time at which the last charged kernel or graph ended, ns of the host's clock.
    pub ended_ns: u64,
    /// Whether work of this process is in flight, copies included.
    pub is_occupied: bool,
    /// Whether a lane can soon have no room for another segment.
    pub is_crowded: bool,
    /// The number of streams with kernels or graphs in flight.
    pub computing_streams: u32,
    /// The estimated time in open segments that the GPU's estimated time in flight does not
    /// include, ns.
    pub unqueued_ns: u64,
    /// Whether kernels were in flight since the previous look, even if they have completed by now.
    pub has_computed: bool,
    /// When `has_computed` was last true.
    pub computed_ns: u64,
    /// The time since which kernels have been in flight at every look of the meter thread.
    pub computing_since_ns: Option<u64>,
    /// The last look at which the hardware may have taken turns with other tenants' work, ns.
    pub beside_ns: u64,
}

impl Default for Account {
    fn default() -> Self {
        Self {
            kernels: Union::default(),
            copies: Union::default(),
            streams_ns: 0,
            covered_ns: 0,
            counts: 1.0,
            singles_ns: 0.0,
            added_ns: 0.0,
            spell: None,
            spell_due_ns: 0,
            had_sparse: false,
            stream: 0,
            other_stream_ns: None,
            ended_ns: 0,
            is_occupied: false,
            is_crowded: false,
            computing_streams: 0,
            unqueued_ns: 0,
            has_computed: false,
            computed_ns: 0,
            computing_since_ns: None,
            beside_ns: 0,
        }
    }
}

/// The GPU time that launches add to the process's account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charged {
    /// The time that the launches added to the account, ns.
    pub ns: u64,
    /// The part of the time line that the launches covered, if known.
    pub place: Option<(i64, i64)>,
}

#[derive(Debug, Default)]
struct Spell {
    /// Beginning and end of the time in which the spell counts work, ns on the time line.
    judged: (i64, i64),
    /// The end of the spell, ns.
    ends_ns: u64,
    /// The number of launches that the meter measured in the spell.
    launches: u64,
    /// The union of all work in the spell.
    all: Union,
    /// The union of all work except single launches.
    dense: Union,
    /// The time of single launches in the spell, ns.
    singles_ns: u64,
    /// The part of `singles_ns` that no other work covered, ns.
    added_ns: u64,
}

impl Spell {
    fn take_in(&mut self, (start_ns, end_ns): (i64, i64), single: bool) {
        let (start_ns, end_ns) = (start_ns.max(self.judged.0), end_ns.min(self.judged.1));
        if end_ns <= start_ns {
            return;
        }
        if single {
            self.singles_ns += end_ns.abs_diff(start_ns);
            self.added_ns += self.all.add(start_ns, end_ns);
        } else {
            // Until now, this time counted for a single launch. From now on, the time belongs to
            // the segment.
            let covered_ns = self.dense.add(start_ns, end_ns);
            self.added_ns = (self.added_ns + self.all.add(start_ns, end_ns)).saturating_sub(covered_ns);
        }
    }
}

impl Account {
    /// Prepares the account for a look at all lanes. Returns whether work was in flight at the
    /// previous look.
    pub fn begin_look(&mut self) -> bool {
        self.computing_streams = 0;
        self.unqueued_ns = 0;
        self.has_computed = false;
        self.is_crowded = false;
        std::mem::take(&mut self.is_occupied)
    }

    /// Returns how far `now_ns` is from the expected end of the work in flight, before or after the
    /// end, ns. By its estimate, the work takes `queued_ns`. The work runs since the end of the
    /// earlier work.
    pub fn ns_from_end(&self, queued_ns: u64, now_ns: u64) -> u64 {
        let began_ns = self.computing_since_ns.unwrap_or(now_ns).max(self.ended_ns);
        queued_ns.abs_diff(now_ns.saturating_sub(began_ns))
    }

    /// Records that the meter thread charged launches of a stream at `now_ns`. `stream` is any
    /// number that distinguishes the stream from other streams.
    pub fn saw(&mut self, stream: usize, now_ns: u64) {
        if self.stream != 0 && self.stream != stream {
            self.other_stream_ns = Some(now_ns);
        }
        self.stream = stream;
    }

    /// Returns whether several streams run. Recent measurements count too, because at most looks a
    /// stream with gaps is idle.
    pub fn has_several(&self, now_ns: u64) -> bool {
        self.computing_streams > 1
            || self.other_stream_ns.is_some_and(|seen_ns| now_ns.saturating_sub(seen_ns) < BESIDE_NS)
    }

    /// Charges launches that took `took_ns` between `began_ns` and `end_ns`. Returns the GPU time
    /// that the launches add to the process's account. `single`: there is one launch, on a stream
    /// that has gaps.
    ///
    /// Only a spell shows which part of a single launch other streams cover, because the meter then
    /// measures their launches too. Outside a spell, the launches of other streams have no place on
    /// the time line. A place for the single launch would then correct a part of the overlap twice,
    /// or not at all.
    pub fn charge(&mut self, took_ns: u64, (began_ns, end_ns): (i64, i64), single: bool) -> Charged {
        let is_dense = took_ns * 100 >= end_ns.abs_diff(began_ns) * DENSE_PERCENT;
        let single = single && took_ns < LONG_NS;
        if !is_dense || (single && self.spell.is_none() && self.is_corrected()) {
            return Charged { ns: self.charge_unplaced(took_ns), place: None };
        }
        let place = (end_ns.saturating_sub_unsigned(took_ns), end_ns);
        let fresh_ns = self.kernels.add(place.0, place.1);
        if let Some(spell) = &mut self.spell {
            spell.launches += 1;
            spell.take_in(place, single);
        }
        self.streams_ns = self.streams_ns.saturating_add(took_ns);
        self.covered_ns = self.covered_ns.saturating_add(fresh_ns);
        Charged { ns: fresh_ns, place: Some(place) }
    }

    /// Returns whether the account charges only a part of an estimated time, because streams
    /// overlap.
    fn is_corrected(&self) -> bool {
        self.counts < 1.0
    }

    /// Charges an estimated time, which has no place on the time line. Returns the time to add, ns.
    pub fn charge_unplaced(&mut self, took_ns: u64) -> u64 {
        self.had_sparse = true;
        (took_ns as f64 * self.counts) as u64
    }

    /// Charges copies, whose union is separate from that of kernels. Returns the time to add, ns.
    pub fn charge_copy(&mut self, measured: &Measured, end_ns: i64) -> u64 {
        self.copies.add(end_ns - measured.took_ns, end_ns)
    }

    /// Returns the sum of the streams' times, divided by the GPU time that the streams cover, in
    /// thousandths. Returns `None` while the measurements since the last result cover too little
    /// time.
    pub fn overlap_permille(&mut self) -> Option<u64> {
        if self.covered_ns <= OVERLAP_OVER_NS {
            return None;
        }
        let permille = u128::from(self.streams_ns) * 1000 / u128::from(self.covered_ns);
        (self.streams_ns, self.covered_ns) = (0, 0);
        Some(u64::try_from(permille).unwrap_or(u64::MAX))
    }

    /// Returns whether the meter is to measure every launch now. If several streams are busy and
    /// one of them has gaps, a spell begins now and then.
    pub fn spell(&mut self, now_ns: u64) -> bool {
        if let Some(spell) = &self.spell {
            if now_ns < spell.ends_ns {
                return true;
            }
            self.singles_ns = self.singles_ns * SPELL_KEPT + spell.singles_ns as f64;
            self.added_ns = self.added_ns * SPELL_KEPT + spell.added_ns as f64;
            if self.singles_ns > TELLING_NS {
                self.counts = (self.added_ns / self.singles_ns).clamp(0.0, 1.0);
            }
            let is_slow = spell.launches * APART_NS <= SPELL_EVERY_NS / SPELL_PART;
            if is_slow && spell.launches != 0 && self.has_several(now_ns) {
                self.begin_spell(now_ns);
                return true;
            }
            self.spell = None;
            self.had_sparse = false;
            self.spell_due_ns = now_ns.saturating_add(SPELL_EVERY_NS);
        } else if !self.has_several(now_ns) {
            (self.counts, self.singles_ns, self.added_ns) = (1.0, 0.0, 0.0);
            self.spell_due_ns = now_ns;
        } else if self.had_sparse && now_ns >= self.spell_due_ns {
            self.begin_spell(now_ns);
            return true;
        }
        false
    }

    fn begin_spell(&mut self, now_ns: u64) {
        let ends_ns = now_ns.saturating_add(SPELL_EVERY_NS / SPELL_PART);
        let at = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let judged = (at(now_ns.saturating_add(SETTLING_NS)), at(ends_ns.saturating_sub(TRAILING_NS)));
        self.spell = Some(Spell { judged, ends_ns, ..Spell::default() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(start_ns: i64, took_ns: i64) -> Measured {
        Measured {
            start_ns,
            took_ns,
            least_ns: took_ns,
            most_ns: took_ns,
            is_exact: true,
            was_idle: true,
            offset_ns: None,
        }
    }

    #[test]
    fn work_in_flight_is_near_its_end_once_it_ran_for_about_what_it_takes() {
        let (ms, mut account) = (1_000_000, Account { computing_since_ns: Some(100), ..Account::default() });
        assert_eq!(account.ns_from_end(5 * ms, 100), 5 * ms);
        assert_eq!(account.ns_from_end(5 * ms, 100 + 4 * ms), ms);
        assert_eq!(account.ns_from_end(5 * ms, 100 + 7 * ms), 2 * ms, "it is overdue");
        account.ended_ns = 100 + 4 * ms;
        assert_eq!(account.ns_from_end(5 * ms, 100 + 5 * ms), 4 * ms, "the next one began then");
    }

    #[test]
    fn measured_times_that_overlap_count_once() {
        let mut account = Account::default();
        assert_eq!(account.charge(100, (0, 100), false).ns, 100);
        assert_eq!(account.charge(100, (50, 150), false).ns, 50);
        assert_eq!(account.charge_copy(&measured(0, 100), 100), 100, "copies run beside kernels");
    }

    #[test]
    fn a_segment_with_gaps_is_charged_what_it_took() {
        let mut account = Account::default();
        assert_eq!(account.charge(100, (0, 1_000), false).ns, 100);
        assert_eq!(account.charge(100, (0, 1_000), false).ns, 100, "it has no place to overlap");
    }

    #[test]
    fn spells_find_out_how_much_of_estimated_times_other_streams_cover() {
        let mut account = Account { computing_streams: 2, ..Account::default() };
        let mut now_ns = 0;
        for spell in 0..60 {
            account.charge_unplaced(1);
            now_ns += SPELL_EVERY_NS;
            assert!(account.spell(now_ns), "spell {spell} is due");
            // Two streams with kernels of 8 µs. Each kernel shares half of its time with a kernel
            // of the other stream.
            for kernel in 0..80 {
                let start_ns = now_ns as i64 + kernel * 20_000;
                account.charge(8_000, (start_ns, start_ns + 8_000), true);
                account.charge(8_000, (start_ns + 4_000, start_ns + 12_000), true);
            }
            now_ns += SPELL_EVERY_NS / SPELL_PART;
            assert!(!account.spell(now_ns), "it is over");
        }
        assert!((745..=760).contains(&account.charge_unplaced(1_000)), "{}", account.counts);
        let single = account.charge(1_000, (now_ns as i64, now_ns as i64 + 1_000), true);
        assert!(
            single.place.is_none() && (745..=760).contains(&single.ns),
            "nor is what one knows alone: {single:?}"
        );
        account.computing_streams = 1;
        assert!(!account.spell(now_ns + 2 * SPELL_EVERY_NS), "one stream overlaps nothing");
        assert_eq!(account.charge_unplaced(1_000), 1_000);
    }

    #[test]
    fn a_long_launch_has_a_place_whatever_is_known_of_the_overlap_of_short_ones() {
        let mut account = Account { counts: 0.5, ..Account::default() };
        let long_ns = LONG_NS as i64;
        assert_eq!(account.charge(LONG_NS, (0, long_ns), true).place, Some((0, long_ns)));
        // The second launch waited for SMs that the first launch occupied.
        assert_eq!(account.charge(2 * LONG_NS, (0, 2 * long_ns), true).ns, LONG_NS);
        assert_eq!(account.charge(1_000, (long_ns, long_ns + 1_000), true).ns, 500, "a short one");
    }

    #[test]
    fn launches_that_are_far_apart_are_measured_all_the_time() {
        let mut account = Account { computing_streams: 2, ..Account::default() };
        account.charge_unplaced(1);
        let mut now_ns = 0;
        for _ in 0..10 {
            assert!(account.spell(now_ns));
            for stream in 0..2 {
                let start_ns = now_ns as i64 + stream * 10_000;
                account.charge(20_000, (start_ns, start_ns + 20_000), true);
            }
            now_ns += SPELL_EVERY_NS / SPELL_PART;
        }
        account.computing_streams = 1;
        assert!(!account.spell(now_ns), "one stream overlaps nothing");
    }

    #[test]
    fn streams_with_gaps_run_beside_each_other_though_each_look_meets_one_at_most() {
        let mut account = Account::default();
        account.charge_unplaced(1);
        account.saw(1, 0);
        assert!(!account.spell(0), "there is one alone");
        account.charge_unplaced(1);
        account.saw(2, 10);
        assert!(account.spell(10), "there are two");
        assert!(!account.spell(10 + SPELL_EVERY_NS));
        account.counts = 0.5;
        account.saw(2, BESIDE_NS + 10);
        assert!(!account.spell(BESIDE_NS + 10));
        assert_eq!(account.charge_unplaced(1_000), 1_000, "the other is gone");
    }
}
