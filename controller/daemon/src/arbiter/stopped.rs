//! Detects processes that are stopped by a signal or frozen, so that they do not keep the GPU idle
//! during their turns.
//!
//! The meter page of such a process stands still and shows its last state: threads that wait, work
//! that seems in flight. Only the system knows that the process is stopped. The arbiter asks the
//! system only about processes that could make progress and do not.

use super::freezer;
use deepres_abi::meter::Reading;
use deepres_model::process::ProcessKey;
use std::time::Duration;

/// How long a process that could make progress must show none before the system is asked about it,
/// ns. Also the time between two such questions.
const QUIET_NS: u64 = Duration::from_millis(5).as_nanos() as u64;

/// The state for one process.
#[derive(Debug, Default)]
pub struct Stopped {
    is_stopped: bool,
    /// Whether work was in flight at the last reading.
    in_flight: bool,
    /// When the process last made progress, ns.
    quiet_since_ns: u64,
    asked_ns: u64,
}

impl Stopped {
    /// Returns whether the process was stopped when the system was last asked.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Returns whether the process is stopped while its meter shows work in flight. That work still
    /// ends on the GPU, and is charged once the process goes on.
    pub fn leaves_in_flight(&self) -> bool {
        self.is_stopped && self.in_flight
    }

    /// Notes that the process is idle, and so not stopped as far as is known.
    pub fn rest(&mut self, now_ns: u64) {
        self.quiet_since_ns = now_ns;
    }

    /// Takes in the reading of the meter before and the present one, and whether the process may
    /// launch. Returns the present reading, without wishes if the process is stopped. `ask` asks
    /// the system whether the process is stopped.
    pub fn look(
        &mut self,
        before: &Reading,
        now: Reading,
        may_launch: bool,
        now_ns: u64,
        ask: impl FnOnce() -> bool,
    ) -> Reading {
        let shows = |reading: &Reading| {
            (reading.updated_ns, reading.waits, reading.kernel_launches, reading.graph_launches)
        };
        let gets_on = shows(before) != shows(&now);
        self.in_flight = now.in_flight;
        if !self.is_stopped && (gets_on || !may_launch || !now.wants()) {
            self.rest(now_ns);
            return now;
        }
        let is_due = now_ns.saturating_sub(self.asked_ns.max(self.quiet_since_ns)) >= QUIET_NS;
        if is_due || (self.is_stopped && gets_on) {
            self.asked_ns = now_ns;
            self.is_stopped = ask();
        }
        if self.is_stopped { Reading { waiters: 0, in_flight: false, in_flight_ns: 0, ..now } } else { now }
    }
}

/// Returns whether the system says that the process is stopped or frozen. Returns false if its
/// state cannot be read.
pub fn is_stopped(process: Option<ProcessKey>) -> bool {
    process.is_some_and(|process| process.is_stopped() || freezer::is_frozen(process.pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITS: Reading = Reading { waiters: 1, ..EMPTY };
    const EMPTY: Reading = Reading {
        waiters: 0,
        launching: 0,
        in_flight: false,
        in_flight_ns: 0,
        compute_ns: 0,
        copy_ns: 0,
        occupied_ns: 0,
        wait_ns: 0,
        waits: 0,
        kernel_launches: 0,
        graph_launches: 0,
        markers: 0,
        longest_ns: 0,
        updated_ns: 0,
        refusals: 0,
        last_refused_bytes: 0,
        last_refused_api: 0,
        held_bytes: [0; deepres_abi::meter::HELD_PLACES],
        waits_by_length: [0; deepres_abi::meter::WAIT_BUCKETS],
    };

    #[test]
    fn who_could_get_on_and_does_not_is_asked_about_and_wants_nothing_while_stopped() {
        let mut stopped = Stopped::default();
        let start_ns = 1_000_000_000;
        let never = || -> bool { panic!("nobody is to be asked") };
        assert!(stopped.look(&WAITS, WAITS, false, start_ns, never).wants(), "its gate is closed");
        assert!(stopped.look(&WAITS, WAITS, true, start_ns + QUIET_NS - 1, never).wants());
        assert!(stopped.look(&WAITS, WAITS, true, start_ns + QUIET_NS, || false).wants(), "it is only slow");
        assert!(!stopped.look(&WAITS, WAITS, true, start_ns + 2 * QUIET_NS, || true).wants());
        assert!(
            !stopped.look(&WAITS, WAITS, false, start_ns + 2 * QUIET_NS + 1, never).wants(),
            "it stays so"
        );
        assert!(stopped.look(&WAITS, WAITS, false, start_ns + 3 * QUIET_NS, || false).wants(), "it goes on");
    }

    #[test]
    fn who_gets_on_is_not_asked_about() {
        let mut stopped = Stopped::default();
        let mut before = Reading { in_flight: true, ..WAITS };
        for look in 1..100 {
            let now = Reading { updated_ns: look, ..before };
            assert!(stopped.look(&before, now, true, look * QUIET_NS, || panic!("it gets on")).wants());
            before = now;
        }
    }
}
