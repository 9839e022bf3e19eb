//! Detects processes that are stopped by a signal or frozen, so that they do not keep the GPU idle
//! during their turns.
//!
//! The meter page of a stopped process stands still. The page keeps showing the last state, for
//! example a waiting thread or work in flight. Only the system knows that the process is stopped.
//! The arbiter asks the system only about processes that could make progress and do not.

use core::time::Duration;
use deepres_abi::meter::Reading;

/// If a process could make progress and shows none for this long, the arbiter asks the system about
/// it, ns. The same time passes between two such questions.
const QUIET_NS: u64 = Duration::from_millis(5).as_nanos() as u64;

/// The least time between two questions that a change of a stopped process's meter page causes, ns.
/// Another process that shares the page could otherwise cause a question in each turn.
const AGAIN_NS: u64 = Duration::from_millis(1).as_nanos() as u64;

/// The progress of one process, and whether the process is stopped.
#[derive(Debug, Default)]
pub struct Stopped {
    is_stopped: bool,
    /// Whether work was in flight at the last reading.
    in_flight: bool,
    /// The last time at which the process made progress or was idle, ns.
    quiet_since_ns: u64,
    asked_ns: u64,
    /// The time of the last question that a change of the meter page caused, ns.
    asked_by_change_ns: u64,
    /// Whether the meter page changed since the last question about the stopped process.
    has_changed: bool,
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

    /// Compares the previous and the present reading of the process's meter. `may_launch` says
    /// whether the process may launch. `answer` is the system's answer to the last question:
    /// whether the process is stopped.
    ///
    /// Returns the present reading, and whether the caller is to ask the system now. If the process
    /// is stopped, the returned reading shows no waiting thread and no work in flight.
    pub fn look(
        &mut self,
        before: &Reading,
        now: Reading,
        may_launch: bool,
        now_ns: u64,
        answer: Option<bool>,
    ) -> (Reading, bool) {
        self.is_stopped = answer.unwrap_or(self.is_stopped);
        let shows = |reading: &Reading| {
            (reading.updated_ns, reading.waits, reading.kernel_launches, reading.graph_launches)
        };
        let gets_on = shows(before) != shows(&now);
        self.in_flight = now.in_flight;
        if !self.is_stopped && (gets_on || !may_launch || !now.wants()) {
            self.rest(now_ns);
            return (now, false);
        }
        self.has_changed |= gets_on;
        let by_change =
            self.is_stopped && self.has_changed && now_ns.saturating_sub(self.asked_by_change_ns) >= AGAIN_NS;
        let asks = by_change || now_ns.saturating_sub(self.asked_ns.max(self.quiet_since_ns)) >= QUIET_NS;
        if by_change {
            self.asked_by_change_ns = now_ns;
        }
        if asks {
            (self.asked_ns, self.has_changed) = (now_ns, false);
        }
        let without_wishes = Reading { waiters: 0, in_flight: false, in_flight_ns: 0, ..now };
        (if self.is_stopped { without_wishes } else { now }, asks)
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
        let (reading, asks) = stopped.look(&waits(), waits(), may_launch, now_ns, answer);
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
        assert_eq!(look(&mut stopped, false, start_ns + 3 * QUIET_NS, None), (false, true));
        let gone_on = look(&mut stopped, false, start_ns + 3 * QUIET_NS + 1, Some(false));
        assert_eq!(gone_on, (true, false), "it goes on");
    }

    #[test]
    fn a_session_that_gets_on_is_not_asked_about() {
        let mut stopped = Stopped::default();
        let mut before = Reading { in_flight: true, ..waits() };
        for look in 1..100 {
            let now = Reading { updated_ns: look, ..before };
            let (reading, asks) = stopped.look(&before, now, true, look * QUIET_NS, None);
            assert!(reading.wants() && !asks);
            before = now;
        }
    }

    #[test]
    fn a_process_that_goes_on_is_asked_about_at_once_also_after_a_routine_question() {
        let mut stopped = Stopped::default();
        let start_ns = 1_000_000_000;
        assert!(look(&mut stopped, true, start_ns, Some(true)).1, "a routine question");
        assert!(!look(&mut stopped, true, start_ns + 1, Some(true)).1);
        let now = Reading { updated_ns: start_ns + 2, ..waits() };
        assert!(stopped.look(&waits(), now, true, start_ns + 2, None).1);
    }

    #[test]
    fn a_stopped_process_whose_page_changes_is_asked_about_at_a_pace() {
        let mut stopped = Stopped::default();
        let (start_ns, mut before, mut asked_ns) = (1_000_000_000, waits(), Vec::new());
        assert!(look(&mut stopped, true, start_ns, Some(true)).1);
        // Another process that shares the page changes the page before each look.
        for now_ns in (start_ns + 1..start_ns + 10 * AGAIN_NS).step_by(10_000) {
            let now = Reading { updated_ns: now_ns, ..before };
            if stopped.look(&before, now, true, now_ns, None).1 {
                asked_ns.push(now_ns);
            }
            before = now;
        }
        assert!(asked_ns.windows(2).all(|pair| pair[1] - pair[0] >= AGAIN_NS), "{asked_ns:?}");
        assert!(asked_ns.len() >= 9, "a process that goes on is noticed: {asked_ns:?}");
        // One change suffices, though no look within the pause may ask.
        let at_ns = asked_ns[asked_ns.len() - 1];
        let now = Reading { updated_ns: 1, ..before };
        assert!(!stopped.look(&before, now, true, at_ns + 1, None).1);
        assert!(stopped.look(&now, now, true, at_ns + AGAIN_NS, None).1);
    }
}
