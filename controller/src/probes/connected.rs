//! Which processes are sessions at the moment, or asked what NVML shows inside a tenant: they are nobody's concern here.

use super::reader::ring;
use crate::process::ProcessKey;
use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// Processes that asked for a view, at most.
const MAX_VIEWERS: usize = 4096;

#[derive(Debug, Default)]
struct State {
    /// Each process as often as it has sessions.
    sessions: HashMap<u32, usize>,
    /// Our library is in them, and they have no session before they compute.
    viewers: BTreeSet<ProcessKey>,
    /// Whose last session ended since this was last taken.
    ended: Vec<u32>,
    bell: Option<Arc<OwnedFd>>,
}

/// A set of processes.
#[derive(Debug, Default)]
pub struct Connected(Mutex<State>);

impl Connected {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rings this whenever the last session of a process has ended.
    pub fn rings(&self, bell: Arc<OwnedFd>) {
        self.state().bell = Some(bell);
    }

    /// A process has one more session.
    fn add(&self, pid: u32) {
        *self.state().sessions.entry(pid).or_default() += 1;
    }

    /// A process has one session less.
    fn remove(&self, pid: u32) {
        let mut state = self.state();
        let Some(count) = state.sessions.get_mut(&pid) else { return };
        *count -= 1;
        if *count == 0 {
            state.sessions.remove(&pid);
            // Without someone who takes them they are not kept.
            if let Some(bell) = state.bell.clone() {
                state.ended.push(pid);
                ring(&bell);
            }
        }
    }

    /// Whether a process has a session.
    pub fn contains(&self, pid: u32) -> bool {
        self.state().sessions.contains_key(&pid)
    }

    /// Those whose last session ended since this was last asked.
    pub fn take_ended(&self) -> Vec<u32> {
        std::mem::take(&mut self.state().ended)
    }

    /// A process asked what NVML shows inside its tenant.
    pub fn views(&self, who: ProcessKey) {
        let mut state = self.state();
        if state.viewers.len() >= MAX_VIEWERS {
            state.viewers.retain(|viewer| viewer.is_alive());
        }
        if state.viewers.len() < MAX_VIEWERS {
            state.viewers.insert(who);
        }
    }

    /// Whether a process asked that.
    pub fn is_viewer(&self, who: ProcessKey) -> bool {
        self.state().viewers.contains(&who)
    }
}

/// One session of a process, for as long as this lives.
#[derive(Debug)]
pub struct Presence {
    connected: Arc<Connected>,
    pid: u32,
}

impl Presence {
    /// The process has one more session.
    pub fn new(connected: &Arc<Connected>, pid: u32) -> Self {
        connected.add(pid);
        Self { connected: Arc::clone(connected), pid }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.connected.remove(self.pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_connected_until_its_last_session_ends() {
        let connected = Arc::new(Connected::default());
        let sessions = [Presence::new(&connected, 7), Presence::new(&connected, 7)];
        let [first, second] = sessions;
        drop(first);
        assert!(connected.contains(7) && !connected.contains(8));
        drop(second);
        assert!(!connected.contains(7));
    }

    #[test]
    fn whose_last_session_ends_is_told_once_to_whoever_wants_to_know() {
        let connected = Arc::new(Connected::default());
        drop(Presence::new(&connected, 6));
        connected.rings(super::super::reader::bell().unwrap());
        let sessions = [Presence::new(&connected, 7), Presence::new(&connected, 7)];
        assert!(connected.take_ended().is_empty(), "nobody wanted to know of the first");
        drop(sessions);
        assert_eq!((connected.take_ended(), connected.take_ended()), (vec![7], vec![]));
    }

    #[test]
    fn the_living_who_asked_for_a_view_are_known_and_the_dead_make_room() {
        let connected = Connected::default();
        let own = ProcessKey::of(std::process::id()).unwrap();
        connected.views(own);
        for start_ticks in 0..=MAX_VIEWERS as u64 {
            connected.views(ProcessKey { pid: 0, start_ticks });
        }
        assert!(connected.is_viewer(own) && !connected.is_viewer(ProcessKey { pid: 0, start_ticks: 0 }));
        assert!(connected.state().viewers.len() <= MAX_VIEWERS);
    }
}
