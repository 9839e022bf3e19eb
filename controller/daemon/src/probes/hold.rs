//! The set of held processes: processes that the daemon stopped by SIGSTOP. Any thread can close
//! the set and so let all these processes go on, even while the watching thread is busy.

use deepres_model::process::ProcessKey;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The held processes, and whether the set is closed.
#[derive(Debug, Default)]
pub struct Held(Mutex<(BTreeSet<ProcessKey>, bool)>);

impl Held {
    /// Stops a process. Returns whether this set now holds the process.
    pub fn stop(&self, who: ProcessKey) -> bool {
        let (held, is_closed) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let stopped = !*is_closed && send(who, Signal::STOP);
        if stopped {
            held.insert(who);
        }
        stopped
    }

    /// Lets a process go on, if this set holds it.
    pub fn let_go(&self, who: ProcessKey) {
        if self.0.lock().unwrap_or_else(PoisonError::into_inner).0.remove(&who) {
            send(who, Signal::CONT);
        }
    }

    /// Takes over a process that the previous daemon stopped.
    pub fn take_over(&self, who: ProcessKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.insert(who);
    }

    /// Returns the held processes.
    pub fn all(&self) -> Vec<ProcessKey> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.iter().copied().collect()
    }

    /// Returns whether this set holds a process.
    pub fn contains(&self, who: ProcessKey) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.contains(&who)
    }

    /// Lets all processes go on, and stops no more processes.
    pub fn close(&self) {
        let (held, is_closed) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *is_closed = true;
        for who in std::mem::take(held) {
            send(who, Signal::CONT);
        }
    }
}

/// Sends a signal to this process, but never to a later process with the same id. Returns whether
/// the signal was sent.
fn send(who: ProcessKey, signal: Signal) -> bool {
    let pid = i32::try_from(who.pid).ok().and_then(Pid::from_raw);
    let Some(descriptor) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return false;
    };
    who.is_alive() && pidfd_send_signal(&descriptor, signal).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_the_end_all_go_on_and_nobody_is_stopped_any_more() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let who = ProcessKey::of(child.id()).unwrap();
        let held = Held::default();
        assert!(held.stop(who) && held.contains(who));
        while !who.is_stopped() {
            std::thread::yield_now();
        }
        held.close();
        while who.is_stopped() {
            std::thread::yield_now();
        }
        assert!(!held.stop(who) && !held.contains(who) && !who.is_stopped());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_later_process_of_the_same_id_is_not_stopped() {
        let own = ProcessKey::of(std::process::id()).unwrap();
        assert!(!Held::default().stop(ProcessKey { start_ticks: own.start_ticks + 1, ..own }));
    }
}
