//! Calculates the GPU time that the launches of one segment took, from two events and the host's
//! clock. The calculation is pure.
//!
//! The time between the events is an upper bound. The launches may have taken much less time. If
//! the stream was idle, the first event completes before the thread has submitted the first launch.
//! If a program launches more slowly than the GPU runs, the stream has gaps between the launches.
//!
//! The lower bound is the time from the submission of the last launch to the last event. In this
//! time, the stream has no gaps.
//!
//! If the two bounds meet, the time is exact. The bounds meet in two cases. First, the segment is a
//! single kernel or graph, and its thread was not interrupted. Second, the segment waited behind
//! other work until the thread had submitted all its launches. If the bounds do not meet, the
//! result is the sum of the launches' estimates, limited by the bounds. Without estimates, the
//! result is the upper bound.

/// The longest time between two segments of a stream, ns, in which the stream was not idle. The
/// value is above the rounding of the real driver's events (half a microsecond).
pub const EDGE_NS: i64 = 2_000;
/// The longest time that one record of an event and one launch take together on the host, on every
/// driver. If the two calls took longer, or longer than [`TIMES_USUAL`] times their usual time, the
/// meter takes the thread as interrupted. The interruption can lie between a call and the reading
/// of the clock.
const UNINTERRUPTED_NS: i64 = 20_000;
/// The meter takes the thread for interrupted if an event's record and the launch together took
/// more than their usual time, times this number.
const TIMES_USUAL: i64 = 2;
/// The delay, ns, from which on the meter assumes that a segment waited behind other work. The
/// delay is beyond the usual time from the submission of a segment to its beginning on an idle
/// stream. The value is above any interruption that the module does not notice.
const WAITED_NS: i64 = 100_000;
/// Assumed upper limit of the events' time less the host's time, until the meter has measured an
/// offset. The meter thread's looks place events on the host's clock ([`super::clock`]). A look
/// seldom comes later than this limit after an event.
const ALIGNED_NS: i64 = 2_000_000;
/// The rounding of the driver's event times, with a margin.
const ROUNDING_NS: i64 = 1_000;
/// A measurement is exact if its two bounds differ by at most the upper bound divided by this
/// number.
const EXACT_PART: i64 = 50;

/// The observations of a completed segment. The times of events lie on the process's time line, and
/// the times of the host on the host's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct Observed {
    /// Time of the event before the first launch.
    pub start_ns: i64,
    /// Time of the event after the last launch.
    pub end_ns: i64,
    /// End of the stream's previous segment, if known.
    pub previous_end_ns: Option<i64>,
    /// Host time before the thread recorded the start event, ns.
    pub asked_ns: i64,
    /// Host time after the thread recorded the start event, ns.
    pub began_ns: i64,
    /// Host time after the first launch, ns.
    pub first_ns: i64,
    /// Host time after the last launch, before the thread recorded the end event, ns.
    pub closed_ns: i64,
    /// Host time after the thread recorded the end event, ns.
    pub ended_ns: i64,
    /// The time of events minus the host's time, for a segment that found its stream idle, ns;
    /// `None` if unknown.
    pub offset_ns: Option<i64>,
    /// Usual host time of one record of an event and one launch together, if known.
    pub usual_ns: Option<i64>,
    /// Estimated time of the launches. 0 means that there is no estimate.
    pub expected_ns: i64,
    /// Whether the stream may have waited for another stream or the host between the launches. The
    /// value is also true if the launch's call returned only when the launch was complete.
    pub may_wait: bool,
    /// Whether the segment found its stream quiet: the meter thread had seen all earlier work of
    /// the stream complete, and nothing made the stream wait.
    pub is_quiet: bool,
    /// Whether the segment has exactly one launch.
    pub is_alone: bool,
    /// Whether the segment holds copies.
    pub is_copy: bool,
}

/// The result of the calculation for a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// The earliest moment at which the launches can have begun, on the events' time line. If the
    /// segment is one launch that ran up to the end event, the moment at which the launch began.
    pub start_ns: i64,
    /// The time that the launches took, ns.
    pub took_ns: i64,
    /// The lower bound of the time that the launches took, ns.
    pub least_ns: i64,
    /// The upper bound of the time that the launches took, ns.
    pub most_ns: i64,
    /// Whether the bounds meet, so that the time is a measurement and no estimate.
    pub is_exact: bool,
    /// Whether the stream was idle before the segment.
    pub was_idle: bool,
    /// The time of events minus the host's time, ns, if this segment shows the difference.
    pub offset_ns: Option<i64>,
}

impl Observed {
    /// Returns the host time that the record of the first event and the first launch took, ns.
    pub fn before_first_ns(&self) -> i64 {
        (self.first_ns - self.asked_ns).max(0)
    }

    /// Returns whether the segment waited behind work that no segment covers. Such work is, for
    /// example, a launch that the driver accepted late, after the end of its segment.
    fn has_waited(&self) -> bool {
        let at_once_ns = self.offset_ns.map_or(ALIGNED_NS, |offset_ns| offset_ns + WAITED_NS);
        !self.is_quiet && self.start_ns - self.began_ns > at_once_ns
    }

    /// Calculates the GPU time that the launches of the segment took, from the segment's two events
    /// and the host's clock.
    pub fn measure(&self) -> Measured {
        let whole_ns = (self.end_ns - self.start_ns).max(0);
        let was_idle =
            self.previous_end_ns.is_none_or(|end_ns| self.start_ns - end_ns > EDGE_NS) && !self.has_waited();
        let before_first_ns = self.before_first_ns();
        let usual_ns = self.usual_ns.map_or(UNINTERRUPTED_NS, |usual_ns| usual_ns * TIMES_USUAL);
        // The call of a copy can go on long after the driver has accepted the copy.
        let is_uninterrupted = !self.is_copy && before_first_ns <= usual_ns.min(UNINTERRUPTED_NS);
        // The least and the greatest time from the first event to the beginning of the first
        // launch.
        let (lead_least_ns, lead_most_ns) = match (was_idle && !self.may_wait, is_uninterrupted) {
            (false, _) => (0, 0),
            (true, true) => ((self.first_ns - self.began_ns).max(0), (self.first_ns - self.began_ns).max(0)),
            (true, false) => (0, before_first_ns),
        };
        // A shorter bound would come from the rounding.
        let most_ns = (whole_ns - lead_least_ns).max(ROUNDING_NS.min(whole_ns));
        // Converts a host time to the time since the first event.
        let since_start_ns = |host_ns: i64| match was_idle {
            true => lead_most_ns + host_ns - self.first_ns,
            false => host_ns + self.offset_ns.unwrap_or(ALIGNED_NS) - self.start_ns,
        };
        let least_ns = if self.may_wait {
            0
        } else {
            let (closed_ns, ended_ns) = (since_start_ns(self.closed_ns), since_start_ns(self.ended_ns));
            // If the end event completed as soon as the thread submitted it, the event did not wait
            // for the last launch. The event then does not show when the last launch ended.
            let late_ns = if whole_ns > ended_ns + ROUNDING_NS { 0 } else { self.ended_ns - self.closed_ns };
            (whole_ns - closed_ns.max(lead_most_ns) - late_ns).clamp(0, most_ns)
        };
        let took_ns = if self.expected_ns > 0 { self.expected_ns.clamp(least_ns, most_ns) } else { most_ns };
        // One launch has no gaps, so the rest of the time lies before the launch. If the rest is
        // longer than a late submission explains, the launch can lie anywhere.
        let runs_up_to_end = self.is_alone && whole_ns - took_ns <= lead_most_ns + ROUNDING_NS;
        let start_ns = if runs_up_to_end { self.end_ns - took_ns } else { self.start_ns + lead_least_ns };
        Measured {
            start_ns,
            took_ns,
            least_ns,
            most_ns,
            is_exact: most_ns > 0 && most_ns - least_ns <= most_ns / EXACT_PART,
            was_idle,
            offset_ns: (was_idle && is_uninterrupted && !self.may_wait)
                .then(|| self.start_ns - self.began_ns),
        }
    }
}

/// The median of the latest values. An interruption can make a single value wrong, and the measured
/// quantity drifts.
#[derive(Debug, Default)]
pub struct Middle {
    latest: [i64; Self::REMEMBERED],
    seen: usize,
}

impl Middle {
    const REMEMBERED: usize = 7;

    /// Adds a value. If the store is full, the value replaces the oldest value.
    pub fn learn(&mut self, value: i64) {
        if let Some(place) = self.latest.get_mut(self.seen % Self::REMEMBERED) {
            *place = value;
        }
        self.seen += 1;
    }

    /// Moves all remembered values by `moved_ns`, because the time line itself moved.
    pub fn move_by(&mut self, moved_ns: i64) {
        for value in &mut self.latest {
            *value += moved_ns;
        }
    }

    /// Returns the median, if there is any value.
    pub fn get(&self) -> Option<i64> {
        let mut known = self.latest;
        let known = known.get_mut(..self.seen.min(Self::REMEMBERED))?;
        known.sort_unstable();
        known.get(known.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The host time at which the events' time line begins.
    const ORIGIN_NS: i64 = 5_000_000;
    const LATENCY_NS: i64 = 3_000;
    const KERNEL_NS: i64 = 6_000;
    const RECORD_NS: i64 = 300;

    /// Returns the observations of a stream with a kernel every `every_ns`, and the kernels' exact
    /// time. The first kernel waits behind `backlog_ns` of other work.
    fn stream(launches: i64, every_ns: i64, backlog_ns: i64) -> (Observed, i64) {
        let asked_ns = 10_000_000;
        let began_ns = asked_ns + RECORD_NS;
        let arrival = |host_ns: i64| host_ns + LATENCY_NS - ORIGIN_NS;
        let start_ns = arrival(began_ns) + backlog_ns;
        let (mut free_ns, mut first_ns, mut now_ns) = (start_ns, 0, began_ns);
        for launch in 0..launches {
            now_ns += if launch == 0 { RECORD_NS } else { every_ns };
            if launch == 0 {
                first_ns = now_ns;
            }
            free_ns = free_ns.max(arrival(now_ns)) + KERNEL_NS;
        }
        let previous_end_ns = Some(if backlog_ns > 0 { start_ns } else { start_ns - 1_000_000 });
        let observed = Observed {
            start_ns,
            end_ns: free_ns.max(arrival(now_ns + RECORD_NS)),
            previous_end_ns,
            asked_ns,
            began_ns,
            first_ns,
            closed_ns: now_ns,
            ended_ns: now_ns + RECORD_NS,
            offset_ns: Some(LATENCY_NS - ORIGIN_NS),
            usual_ns: Some(2 * RECORD_NS),
            expected_ns: launches * KERNEL_NS,
            may_wait: false,
            is_quiet: backlog_ns == 0,
            is_alone: launches == 1,
            is_copy: false,
        };
        (observed, launches * KERNEL_NS)
    }

    #[test]
    fn one_launch_is_exact_whether_its_stream_was_idle_or_busy() {
        for backlog_ns in [0, 50_000] {
            let (observed, exact_ns) = stream(1, 0, backlog_ns);
            let measured = Observed { expected_ns: 0, ..observed }.measure();
            assert_eq!((measured.took_ns, measured.is_exact), (exact_ns, true), "behind {backlog_ns}");
        }
    }

    #[test]
    fn launches_behind_a_backlog_are_exact_whatever_was_expected() {
        let (observed, exact_ns) = stream(40, 1_000, 50_000);
        for expected_ns in [0, 1, exact_ns * 5] {
            let measured = Observed { expected_ns, ..observed }.measure();
            assert_eq!((measured.took_ns, measured.is_exact), (exact_ns, true));
        }
    }

    #[test]
    fn a_gap_in_a_backlog_is_work_that_no_segment_has_and_tells_nothing_of_the_clocks() {
        const BACKLOG_NS: i64 = 1_000_000_000;
        let (observed, exact_ns) = stream(40, 1_000, BACKLOG_NS);
        let behind = Observed { previous_end_ns: Some(observed.start_ns - 20_000), ..observed };
        for offset_ns in [observed.offset_ns, None] {
            let measured = Observed { expected_ns: 1, offset_ns, ..behind }.measure();
            assert_eq!((measured.took_ns, measured.is_exact, measured.offset_ns), (exact_ns, true, None));
        }
        // If a segment found its stream quiet, the segment shows the offset, whatever offset was
        // known before.
        let quiet = Observed { is_quiet: true, ..behind }.measure();
        assert_eq!(quiet.offset_ns, Some(LATENCY_NS - ORIGIN_NS + BACKLOG_NS));
    }

    #[test]
    fn gaps_between_launches_are_not_charged() {
        let (observed, exact_ns) = stream(16, 32_000, 0);
        let measured = observed.measure();
        assert_eq!((measured.took_ns, measured.is_exact), (exact_ns, false));
        assert!(observed.end_ns - observed.start_ns > 4 * exact_ns);
    }

    #[test]
    fn the_expected_time_counts_no_further_than_the_bounds() {
        let (observed, _) = stream(16, 32_000, 0);
        let least = Observed { expected_ns: 1, ..observed }.measure();
        assert_eq!(least.took_ns, KERNEL_NS, "the last one at least ran without a gap");
        let most = Observed { expected_ns: i64::MAX, ..observed }.measure();
        assert_eq!(most.took_ns, observed.end_ns - observed.start_ns - RECORD_NS);
    }

    #[test]
    fn an_end_recorded_late_adds_nothing() {
        let (observed, exact_ns) = stream(4, 1_000, 0);
        const LATE_NS: i64 = 500_000;
        let late = Observed {
            closed_ns: observed.closed_ns + LATE_NS,
            ended_ns: observed.ended_ns + LATE_NS,
            end_ns: observed.ended_ns + LATE_NS + LATENCY_NS - ORIGIN_NS,
            ..observed
        };
        assert_eq!(late.measure().took_ns, exact_ns);
    }

    #[test]
    fn an_interruption_before_the_last_event_is_not_taken_for_the_kernel() {
        let (observed, exact_ns) = stream(1, 0, 0);
        const STOP_NS: i64 = 15_000;
        let interrupted = Observed {
            ended_ns: observed.ended_ns + STOP_NS,
            end_ns: observed.ended_ns + STOP_NS + LATENCY_NS - ORIGIN_NS,
            ..observed
        };
        let measured = interrupted.measure();
        assert_eq!((measured.took_ns, measured.is_exact), (exact_ns, false));
    }

    #[test]
    fn the_bound_of_a_kernel_that_seems_to_take_no_time_is_the_rounding() {
        let (observed, _) = stream(1, 0, 0);
        // The start event waited for another tenant's turn, so the kernel began right behind it.
        let whole_ns = observed.first_ns - observed.began_ns;
        for whole_ns in [0, whole_ns, ROUNDING_NS] {
            let late = Observed { end_ns: observed.start_ns + whole_ns, expected_ns: 0, ..observed };
            let measured = late.measure();
            assert_eq!((measured.most_ns, measured.is_exact), (whole_ns.min(ROUNDING_NS), false));
        }
    }

    #[test]
    fn a_stream_that_is_not_quiet_may_have_waited_before_its_start_event() {
        let (observed, exact_ns) = stream(1, 0, 0);
        let waited_ns = WAITED_NS + LATENCY_NS;
        let start_ns = observed.start_ns + waited_ns;
        let late = Observed { start_ns, end_ns: start_ns + exact_ns, is_quiet: false, ..observed };
        assert_eq!((late.measure().most_ns, late.measure().was_idle), (exact_ns, false));
        assert!(Observed { is_quiet: true, ..late }.measure().most_ns < exact_ns, "the lead is no work");
    }

    #[test]
    fn an_interrupted_thread_is_charged_by_what_is_known() {
        for stop_ns in [3_000, 4_000_000] {
            assert_interruption_adds_nothing(stop_ns);
        }
    }

    fn assert_interruption_adds_nothing(stop_ns: i64) {
        let (observed, exact_ns) = stream(1, 0, 0);
        // The interruption lies between the first record and the reading of the clock, so the lead
        // seems short.
        let interrupted = Observed {
            began_ns: observed.began_ns + stop_ns,
            first_ns: observed.first_ns + stop_ns,
            closed_ns: observed.closed_ns + stop_ns,
            ended_ns: observed.ended_ns + stop_ns,
            end_ns: observed.end_ns + stop_ns,
            ..observed
        };
        let measured = interrupted.measure();
        assert_eq!((measured.took_ns, measured.is_exact, measured.offset_ns), (exact_ns, false, None));
    }

    #[test]
    fn one_launch_lies_where_it_ran_though_it_is_not_known_when_it_was_submitted() {
        const LATE_NS: i64 = 15_000;
        let (observed, exact_ns) = stream(1, 0, 0);
        let late = Observed {
            first_ns: observed.first_ns + LATE_NS,
            closed_ns: observed.closed_ns + LATE_NS,
            ended_ns: observed.ended_ns + LATE_NS,
            end_ns: observed.end_ns + LATE_NS,
            ..observed
        };
        let measured = late.measure();
        assert_eq!((measured.start_ns, measured.took_ns), (late.end_ns - exact_ns, exact_ns));
        assert!(!measured.is_exact);
        // If only the end event came late, the segment does not show where the launch ran. The same
        // holds if the stream waited for another stream or the host.
        let end_late = Observed {
            ended_ns: observed.ended_ns + LATE_NS,
            end_ns: observed.ended_ns + LATE_NS + LATENCY_NS - ORIGIN_NS,
            ..observed
        };
        for elsewhere in [end_late, Observed { may_wait: true, ..late }] {
            assert!(elsewhere.measure().start_ns < elsewhere.end_ns - exact_ns);
        }
    }

    #[test]
    fn a_copy_may_begin_as_soon_as_its_call() {
        const COPY_NS: i64 = 38_000;
        const CALL_NS: i64 = 10_000;
        let (observed, _) = stream(1, 0, 0);
        let copy = |known_ns| Observed {
            is_copy: true,
            end_ns: observed.start_ns + COPY_NS,
            first_ns: observed.began_ns + CALL_NS,
            closed_ns: observed.began_ns + CALL_NS,
            ended_ns: observed.began_ns + CALL_NS + RECORD_NS,
            usual_ns: Some(CALL_NS),
            expected_ns: known_ns,
            ..observed
        };
        let measured = copy(0).measure();
        assert_eq!((measured.took_ns, measured.is_exact, measured.offset_ns), (COPY_NS, false, None));
        assert_eq!(copy(COPY_NS - 1).measure().took_ns, COPY_NS - 1, "the known time of such copies decides");
        assert!(copy(1).measure().took_ns >= COPY_NS - CALL_NS - 2 * RECORD_NS, "it began in its call");
    }

    #[test]
    fn the_middle_one_of_the_latest_follows_and_ignores_outliers() {
        let mut middle = Middle::default();
        assert_eq!(middle.get(), None);
        for value in [1_000, 5_000_000, 1_010, 990, 1_005] {
            middle.learn(value);
        }
        assert_eq!(middle.get(), Some(1_005));
        (0..7).for_each(|_| middle.learn(2_000));
        assert_eq!(middle.get(), Some(2_000));
    }
}
