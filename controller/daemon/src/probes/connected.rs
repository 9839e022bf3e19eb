//! The processes that have a session now, and the processes of tenants that asked the daemon for an
//! answer to an NVML call. The daemon does not report such processes as unmanaged.

use super::reader::ring;
use super::scan;
use deepres_model::process::ProcessKey;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// The most viewers that the daemon remembers. The daemon also remembers at most this number of
/// processes that announced a session.
const MAX_VIEWERS: usize = 4096;

#[derive(Debug, Default)]
struct State {
    /// The number of sessions of each process that has any.
    sessions: HashMap<u32, usize>,
    /// Viewers: processes with the interposer that asked the daemon for their tenant's part of a
    /// GPU, to answer an NVML call. A viewer opens a session before it computes.
    viewers: BTreeSet<ProcessKey>,
    /// Processes that announced a session: the time of the first announcement (ns of
    /// `CLOCK_MONOTONIC`) and the number of open announcements. An entry stays until its process is
    /// dead.
    announced: BTreeMap<ProcessKey, (u64, usize)>,
    /// Processes whose last announcement ended since the last `take_arrived`.
    arrived: Vec<ProcessKey>,
    /// Processes whose last session ended since the last `take_ended`.
    ended: Vec<u32>,
    /// The MPS control daemon for the jobs. The servers of this MPS control daemon work for the
    /// jobs.
    mps: Option<ProcessKey>,
    /// The MPS servers for the jobs. A server can outlive its control daemon.
    mps_servers: BTreeSet<ProcessKey>,
    bell: Option<Arc<OwnedFd>>,
}

/// The processes with sessions, the viewers, and the processes that announced sessions.
#[derive(Debug, Default)]
pub struct Connected(Mutex<State>);

impl Connected {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the bell that rings when the last session or announcement of a process ends.
    pub fn rings(&self, bell: Arc<OwnedFd>) {
        self.state().bell = Some(bell);
    }

    /// Counts one more session of a process.
    fn add(&self, pid: u32) {
        *self.state().sessions.entry(pid).or_default() += 1;
    }

    /// Counts one session of a process less.
    fn remove(&self, pid: u32) {
        let mut state = self.state();
        let Some(count) = state.sessions.get_mut(&pid) else { return };
        *count -= 1;
        if *count == 0 {
            state.sessions.remove(&pid);
            // Without a bell, no thread takes the ended sessions. So the list does not grow.
            if let Some(bell) = state.bell.clone() {
                state.ended.push(pid);
                ring(&bell);
            }
        }
    }

    /// Returns whether a process has a session.
    pub fn contains(&self, pid: u32) -> bool {
        self.state().sessions.contains_key(&pid)
    }

    /// Returns the processes whose last session ended since the last call.
    pub fn take_ended(&self) -> Vec<u32> {
        std::mem::take(&mut self.state().ended)
    }

    /// Sets the MPS control daemon whose servers work for the jobs, and the living servers of this
    /// and of former control daemons.
    pub fn serve_mps(&self, control: Option<ProcessKey>, servers: &BTreeSet<ProcessKey>) {
        let mut state = self.state();
        state.mps = control;
        state.mps_servers.clone_from(servers);
    }

    /// Returns whether a process has a session, or an open announcement of a session, or is an MPS
    /// server for the jobs.
    pub fn covers(&self, who: ProcessKey) -> bool {
        let mps = {
            let state = self.state();
            let is_announced = || state.announced.get(&who).is_some_and(|(_, open)| *open > 0);
            let has_session = state.sessions.contains_key(&who.pid);
            if has_session || is_announced() || state.mps_servers.contains(&who) {
                return true;
            }
            state.mps
        };
        mps.is_some_and(|control| {
            control == who || scan::parent(who.pid) == Some(control.pid) && control.is_alive()
        })
    }

    /// Returns the processes whose last announcement ended since the last call.
    pub fn take_arrived(&self) -> Vec<ProcessKey> {
        std::mem::take(&mut self.state().arrived)
    }

    /// Records that a process is a viewer: it asked the daemon for its tenant's part of a GPU.
    pub fn views(&self, who: ProcessKey) {
        let mut state = self.state();
        if state.viewers.len() >= MAX_VIEWERS {
            state.viewers.retain(|viewer| viewer.is_alive());
        }
        if state.viewers.len() < MAX_VIEWERS {
            state.viewers.insert(who);
        }
    }

    /// Returns whether a process is a viewer.
    pub fn is_viewer(&self, who: ProcessKey) -> bool {
        self.state().viewers.contains(&who)
    }
}

/// One session of a process, for the lifetime of this value.
#[derive(Debug)]
pub struct Presence {
    connected: Arc<Connected>,
    pid: u32,
}

impl Presence {
    /// Counts one more session of the process.
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

/// The announcement of a session, for the lifetime of this value.
#[derive(Debug)]
pub struct Announced {
    connected: Arc<Connected>,
    who: ProcessKey,
    /// End of the announcement's validity, ns of `CLOCK_MONOTONIC`.
    pub until_ns: u64,
}

impl Announced {
    /// Records at `now_ns` that a process announces a session. The announcement is valid until
    /// `limit_ns` after the process's first announcement. Returns `None` after that time, and if
    /// too many processes have announced sessions.
    pub fn new(connected: &Arc<Connected>, who: ProcessKey, now_ns: u64, limit_ns: u64) -> Option<Self> {
        let mut state = connected.state();
        if state.announced.len() >= MAX_VIEWERS {
            state.announced.retain(|process, (_, open)| *open > 0 || process.is_alive());
        }
        if state.announced.len() >= MAX_VIEWERS && !state.announced.contains_key(&who) {
            return None;
        }
        let (first_ns, open) = state.announced.entry(who).or_insert((now_ns, 0));
        let until_ns = first_ns.saturating_add(limit_ns);
        (now_ns < until_ns).then(|| {
            *open += 1;
            Self { connected: Arc::clone(connected), who, until_ns }
        })
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        let mut state = self.connected.state();
        let Some((_, open)) = state.announced.get_mut(&self.who) else { return };
        *open -= 1;
        if *open == 0
            && let Some(bell) = state.bell.clone()
        {
            state.arrived.push(self.who);
            ring(&bell);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_children_of_the_mps_control_daemon_of_the_jobs_are_covered() {
        let (connected, own) = (Connected::default(), ProcessKey::of(std::process::id()).unwrap());
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let server = ProcessKey::of(child.id()).unwrap();
        assert!(!connected.covers(server));
        let none = BTreeSet::new();
        connected.serve_mps(Some(own), &none);
        assert!(connected.covers(server) && connected.covers(own));
        connected.serve_mps(Some(ProcessKey { start_ticks: 0, ..own }), &none);
        assert!(!connected.covers(server), "another process had this number");
        connected.serve_mps(None, &[server].into());
        assert!(connected.covers(server) && !connected.covers(own), "it outlives its control daemon");
        child.kill().unwrap();
        child.wait().unwrap();
    }

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
    fn a_process_whose_last_session_ended_is_reported_once_after_somebody_asks() {
        let connected = Arc::new(Connected::default());
        drop(Presence::new(&connected, 6));
        connected.rings(super::super::reader::bell().unwrap());
        let sessions = [Presence::new(&connected, 7), Presence::new(&connected, 7)];
        assert!(connected.take_ended().is_empty(), "nobody wanted to know of the first");
        drop(sessions);
        assert_eq!((connected.take_ended(), connected.take_ended()), (vec![7], vec![]));
    }

    #[test]
    fn a_process_that_announces_a_session_is_believed_once_for_a_while() {
        let connected = Arc::new(Connected::default());
        connected.rings(super::super::reader::bell().unwrap());
        let who = ProcessKey::of(std::process::id()).unwrap();
        let announce = |now_ns| Announced::new(&connected, who, now_ns, 100);
        let first = announce(1_000).unwrap();
        assert!(connected.covers(who) && !connected.contains(who.pid));
        assert_eq!(first.until_ns, 1_100);
        drop(first);
        assert!(!connected.covers(who) && connected.take_ended().is_empty());
        assert_eq!(connected.take_arrived(), [who]);
        assert_eq!(announce(1_050).unwrap().until_ns, 1_100, "saying it again makes it no longer");
        assert!(announce(1_100).is_none() && !connected.covers(who));
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
