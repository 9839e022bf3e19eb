//! Sees when a process is stopped by a signal or frozen, so that it does not keep the GPU idle in its turns.
//!
//! What it was doing stands still on its meter page: threads that wait, work that seems in flight. Only the system knows better, and it is asked
//! only about a process that could get on and does not.

use super::frozen;
use deepres_abi::meter::Reading;
use deepres_model::process::ProcessKey;
use std::time::Duration;

/// A process that could get on and shows nothing for so long is asked about; also, how often.
const QUIET_NS: u64 = Duration::from_millis(5).as_nanos() as u64;

/// What is known of one process.
#[derive(Debug, Default)]
pub struct Stopped {
    is_stopped: bool,
    /// Something was in flight when it was last looked at.
    in_flight: bool,
    /// Since when it shows nothing.
    quiet_since_ns: u64,
    asked_ns: u64,
}

impl Stopped {
    /// Whether it was stopped when last asked about.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Whether it is stopped while something is in flight, as far as it could say. That ends on the GPU all the same, and is charged once the process goes
    /// on.
    pub fn leaves_in_flight(&self) -> bool {
        self.is_stopped && self.in_flight
    }

    /// Nothing happened and nothing is under way; it is not stopped, as far as is known.
    pub fn rest(&mut self, now_ns: u64) {
        self.quiet_since_ns = now_ns;
    }

    /// Takes in what its meter says, `before` and `now`, and whether it may launch. A stopped process wants nothing. `ask`: whether the system
    /// says that it is stopped.
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

/// Whether the system says that the process is stopped or frozen. One that cannot be seen is not.
pub fn is_stopped(process: Option<ProcessKey>) -> bool {
    process.is_some_and(|process| process.is_stopped() || frozen::is_frozen(process.pid))
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
