//! Detects processes that are stopped by a signal or frozen, so that they do not keep the GPU idle
//! during their turns.
//!
//! The meter page of a stopped process stands still. The page keeps showing the last state, for
//! example a waiting thread or work in flight. Only the system knows that the process is stopped.
//! The arbiter asks the system only about processes that could make progress and do not.
//!
//! A question costs the arbiter some ten microseconds, and a tenant can have hundreds of stopped
//! processes. So the longer a process shows nothing, the longer is the pause between two questions
//! about it. The tenant bears the cost: the arbiter can notice later that the process goes on.

use core::time::Duration;
use deepres_abi::meter::Reading;

/// If a process could make progress and shows none for this long, the arbiter asks the system about
/// it, ns. This is also the least time between two looks with questions, because each such look
/// causes a further look.
pub const QUIET_NS: u64 = Duration::from_millis(5).as_nanos() as u64;

/// The longest pause between two questions about one process, ns. At this pause, the questions about
/// the 512 processes of a tenant take a thirtieth of the arbiter's time.
const LONGEST_PAUSE_NS: u64 = Duration::from_millis(160).as_nanos() as u64;

/// The progress of one process, and whether the process is stopped.
#[derive(Debug, Default)]
pub struct Stopped {
    is_stopped: bool,
    /// Whether work was in flight at the last reading.
    in_flight: bool,
    /// The last time at which the process made progress, was idle or went on, ns; 0 before the first
    /// look.
    quiet_since_ns: u64,
    asked_ns: u64,
    /// Whether the meter page changed since the last question about the stopped process.
    has_changed: bool,
    /// Whether a change of the meter page caused the last question. Another process can share the
    /// page, so the next change causes no question before the pause is over.
    asked_by_change: bool,
}

impl Stopped {
    /// Returns whether the process is stopped, by the system's last answer.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Returns whether the process is stopped while its meter shows work in flight. This work still
    /// ends on the GPU. The core charges the work once the process goes on.
    pub fn leaves_in_flight(&self) -> bool {
        self.is_stopped && self.in_flight
    }

    /// Records that the process is idle, so that the arbiter does not ask the system about it.
    pub fn rest(&mut self, now_ns: u64) {
        self.quiet_since_ns = now_ns;
    }

    /// Records that the meter page has not changed. If the process is not stopped, it is idle.
    /// Returns whether the caller is to ask the system now. `may_ask` says whether this look may
    /// have questions.
    pub fn is_still(&mut self, may_ask: bool, now_ns: u64) -> bool {
        if !self.is_stopped {
            self.rest(now_ns);
        }
        self.is_stopped && self.asks(may_ask, now_ns)
    }

    /// Compares the previous and the present reading of the process's meter. `may_launch` says
    /// whether the process may launch, and `may_ask` whether this look may have questions. `answer`
    /// is the system's answer to the last question: whether the process is stopped.
    ///
    /// Returns the present reading, and whether the caller is to ask the system now. If the process
    /// is stopped, the returned reading shows no waiting thread and no work in flight.
    pub fn look(
        &mut self,
        before: &Reading,
        now: Reading,
        may_launch: bool,
        may_ask: bool,
        now_ns: u64,
        answer: Option<bool>,
    ) -> (Reading, bool) {
        if self.quiet_since_ns == 0 {
            self.rest(now_ns);
        }
        let was_stopped = self.is_stopped;
        self.is_stopped = answer.unwrap_or(was_stopped);
        let shows = |reading: &Reading| {
            (reading.updated_ns, reading.waits, reading.kernel_launches, reading.graph_launches)
        };
        let gets_on = shows(before) != shows(&now);
        self.in_flight = now.in_flight;
        if !self.is_stopped && (was_stopped || gets_on || !may_launch || !now.wants()) {
            self.rest(now_ns);
            return (now, false);
        }
        self.has_changed |= gets_on;
        let asks = self.asks(may_ask, now_ns);
        let without_wishes = Reading { waiters: 0, in_flight: false, in_flight_ns: 0, ..now };
        (if self.is_stopped { without_wishes } else { now }, asks)
    }

    /// Returns whether the caller is to ask the system now. If so, counts the question.
    fn asks(&mut self, may_ask: bool, now_ns: u64) -> bool {
        let quiet_ns = self.asked_ns.saturating_sub(self.quiet_since_ns);
        let pause_ns = quiet_ns.clamp(QUIET_NS, LONGEST_PAUSE_NS);
        let is_due = now_ns.saturating_sub(self.asked_ns.max(self.quiet_since_ns)) >= pause_ns;
        let by_change = self.is_stopped && self.has_changed && !self.asked_by_change;
        let asks = may_ask && (is_due || by_change);
        if asks {
            (self.asked_ns, self.has_changed, self.asked_by_change) = (now_ns, false, !is_due);
        }
        asks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits() -> Reading {
        Reading { waiters: 1, ..Reading::default() }
    }

    /// Passes the reading of a waiting process to [`Stopped::look`]. Returns whether the process
    /// wants the GPU, and whether the caller is to ask the system.
    fn look(stopped: &mut Stopped, may_launch: bool, now_ns: u64, answer: Option<bool>) -> (bool, bool) {
        let (reading, asks) = stopped.look(&waits(), waits(), may_launch, true, now_ns, answer);
        (reading.wants(), asks)
    }

    #[test]
    fn a_session_that_could_get_on_and_does_not_is_asked_about_and_wants_nothing_while_stopped() {
        let mut stopped = Stopped::default();
        let start_ns = 1_000_000_000;
        assert_eq!(look(&mut stopped, false, start_ns, None), (true, false), "its gate is closed");
        assert_eq!(look(&mut stopped, true, start_ns + QUIET_NS - 1, None), (true, false));
        assert_eq!(look(&mut stopped, true, start_ns + QUIET_NS, None), (true, true));
        let slow = look(&mut stopped, true, start_ns + QUIET_NS + 1, Some(false));
        assert_eq!(slow, (true, false), "it is only slow");
        assert_eq!(look(&mut stopped, true, start_ns + 2 * QUIET_NS, None), (true, true));
        assert_eq!(look(&mut stopped, true, start_ns + 2 * QUIET_NS + 1, Some(true)), (false, false));
        let still = look(&mut stopped, false, start_ns + 2 * QUIET_NS + 2, None);
        assert_eq!(still, (false, false), "it stays so");
        assert_eq!(look(&mut stopped, false, start_ns + 4 * QUIET_NS, None), (false, true));
        let gone_on = look(&mut stopped, false, start_ns + 4 * QUIET_NS + 1, Some(false));
        assert_eq!(gone_on, (true, false), "it goes on");
    }

    #[test]
    fn a_session_that_gets_on_is_not_asked_about() {
        let mut stopped = Stopped::default();
        let mut before = Reading { in_flight: true, ..waits() };
        for look in 1..100 {
            let now = Reading { updated_ns: look, ..before };
            let (reading, asks) = stopped.look(&before, now, true, true, look * QUIET_NS, None);
            assert!(reading.wants() && !asks);
            before = now;
        }
    }

    #[test]
    fn a_process_that_goes_on_is_asked_about_at_once_also_after_a_routine_question() {
        let mut stopped = Stopped::default();
        let start_ns = 1_000_000_000;
        stopped.rest(start_ns - LONGEST_PAUSE_NS);
        assert!(look(&mut stopped, true, start_ns, Some(true)).1, "a routine question");
        assert!(!look(&mut stopped, true, start_ns + 1, Some(true)).1);
        let now = Reading { updated_ns: start_ns + 2, ..waits() };
        assert!(!stopped.look(&waits(), now, true, false, start_ns + 2, None).1, "the look may not ask");
        assert!(stopped.look(&now, now, true, true, start_ns + 3, None).1, "one change suffices");
    }

    #[test]
    fn the_longer_a_process_is_stopped_the_longer_are_the_pauses_between_the_questions() {
        let (start_ns, ms) = (1_000_000_000, 1_000_000);
        // If `changes` is set, another process that shares the page changes it before each look. A
        // change causes one more question in each pause at most.
        for (changes, most) in [(false, 1), (true, 2)] {
            let (mut stopped, mut before) = (Stopped::default(), waits());
            let mut asks = |passed_ns: &u64| {
                let now = Reading { updated_ns: if changes { *passed_ns } else { 0 }, ..before };
                let asks = stopped.look(&before, now, true, true, start_ns + passed_ns, Some(true)).1;
                before = now;
                asks
            };
            let all_ns = (0..100 * LONGEST_PAUSE_NS).step_by(1_000_000);
            let asked_ns: Vec<u64> = all_ns.filter(|passed_ns| asks(passed_ns)).collect();
            let within = |limit_ns: u64| asked_ns.iter().filter(|asked_ns| **asked_ns <= limit_ns).count();
            assert!(within(20 * ms) >= 3 && within(100 * ms) <= 6 * most, "{asked_ns:?}");
            assert!((100..=106 * most).contains(&asked_ns.len()), "{} questions", asked_ns.len());
        }
    }

    #[test]
    fn a_process_that_went_on_and_stops_again_is_asked_about_as_soon_as_the_first_time() {
        let mut stopped = Stopped::default();
        let mut ns = 1_000_000_000;
        while ns < 1_000_000_000 + 10 * LONGEST_PAUSE_NS {
            look(&mut stopped, true, ns, Some(true));
            ns += QUIET_NS;
        }
        assert_eq!(look(&mut stopped, true, ns, Some(false)), (true, false));
        assert!(!look(&mut stopped, true, ns + QUIET_NS - 1, None).1);
        assert!(look(&mut stopped, true, ns + QUIET_NS, None).1);
    }
}
