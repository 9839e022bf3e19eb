//! Finds the daemon again after the connection to the daemon ended. The meter thread takes one step
//! between two looks, and never waits for the daemon.

use deepres_abi::fallback::Fallback;

use super::thread::MeterThread;
use crate::descriptor::OwnDescriptor;
use crate::handshake::{ConnectError, Pending};
use crate::log::say;
use crate::process::Process;

/// The shortest and the longest pause between two attempts to find a daemon, ns. A daemon that came
/// back can wait for a tenant as long as the longest pause.
const PAUSE_NS: (u64, u64) = (50_000_000, 250_000_000);
/// The longest pause, ns, in a process that never had a session with a daemon, because there may
/// never be a daemon.
const FIRST_PAUSE_NS: u64 = 1_000_000_000;
/// The pause after a refusal that the same daemon would repeat, ns.
const REFUSED_PAUSE_NS: u64 = 30_000_000_000;
/// The pause after a refusal for lack of room, ns.
const FULL_PAUSE_NS: u64 = 2_000_000_000;
/// The longest wait for the daemon's answer, ns. If a daemon reads a hello much later, the daemon
/// refuses the hello because of the time in it.
const ANSWER_NS: u64 = 3_000_000_000;

/// The state of the attempts to find a daemon.
#[derive(Debug)]
pub struct Reconnect {
    /// The time at which the next step is due, ns.
    due_ns: u64,
    pause_ns: u64,
    pending: Option<Pending>,
    /// Whether the interposer has logged, since the last session, why the process has no session.
    is_told: bool,
    /// The limits that the last refusal told, in a process that had no session with a daemon yet.
    told: Option<Fallback>,
}

impl Default for Reconnect {
    fn default() -> Self {
        Self { due_ns: 0, pause_ns: PAUSE_NS.0, pending: None, is_told: false, told: None }
    }
}

impl Reconnect {
    /// Starts the attempts, after the connection ended at `now_ns`.
    pub fn begin(&mut self, now_ns: u64) {
        *self = Self { due_ns: now_ns.saturating_add(PAUSE_NS.0), ..Self::default() };
    }

    /// Returns a descriptor that becomes readable when there is a step to do. Returns `None` while
    /// no attempt is under way.
    pub fn socket(&self) -> Option<OwnDescriptor> {
        self.pending.as_ref().map(Pending::socket)
    }

    /// Returns when the next step is due at the latest, ns.
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Does the next step, if a step is due.
    pub fn step(&mut self, meter: MeterThread, process: &'static Process, now_ns: u64) {
        let answer = match self.pending.take() {
            Some(pending) => match pending.finish() {
                Ok(answer) => answer.and_then(|connection| process.renew(meter, connection)),
                Err(pending) if now_ns < self.due_ns => {
                    self.pending = Some(pending);
                    return;
                }
                // The daemon hangs, and the values in the hello are old by now.
                Err(_hangs) => return self.pause(process, now_ns),
            },
            None if now_ns < self.due_ns => return,
            None => match process.say_hello() {
                Ok(pending) => {
                    self.pending = Some(pending);
                    self.due_ns = now_ns.saturating_add(ANSWER_NS);
                    return;
                }
                Err(error) => Err(error),
            },
        };
        match answer {
            Ok(()) => *self = Self::default(),
            Err(error) => self.refused(meter, process, &error, now_ns),
        }
    }

    fn refused(&mut self, meter: MeterThread, process: &Process, error: &ConnectError, now_ns: u64) {
        process.heed(meter, error, &mut self.told);
        if !error.is_lasting() {
            return self.pause(process, now_ns);
        }
        // A process that waits for room has already logged this.
        let is_said = error.is_full() && is_first(process);
        if !is_said && !std::mem::replace(&mut self.is_told, true) {
            let keeps_share =
                || process.session().is_some_and(|session| session.any_stand_in(&process.gpus).is_some());
            let goes_on = match is_first(process) {
                true => "goes on as before",
                false if keeps_share() => "keeps its limits by itself",
                false => "runs unmetered from here on",
            };
            say!(Warn, "{error}; the job {goes_on}");
        }
        let pause_ns = if error.is_full() { FULL_PAUSE_NS } else { REFUSED_PAUSE_NS };
        self.due_ns = now_ns.saturating_add(pause_ns);
    }

    fn pause(&mut self, process: &Process, now_ns: u64) {
        let longest_ns = if is_first(process) { FIRST_PAUSE_NS } else { PAUSE_NS.1 };
        self.due_ns = now_ns.saturating_add(self.pause_ns);
        self.pause_ns = (self.pause_ns * 2).min(longest_ns);
    }
}

/// Returns whether the process never had a session with a daemon.
fn is_first(process: &Process) -> bool {
    process.session().is_none_or(|session| session.sessions() == 0)
}
