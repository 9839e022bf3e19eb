//! Which processes are sessions at the moment: they are nobody's concern here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A set of processes, each as often as it has sessions.
#[derive(Debug, Default)]
pub struct Connected(Mutex<HashMap<u32, usize>>);

impl Connected {
    /// A process has one more session.
    fn add(&self, pid: u32) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(pid).or_default() += 1;
    }

    /// A process has one session less.
    fn remove(&self, pid: u32) {
        let mut pids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = pids.get_mut(&pid) {
            *count -= 1;
            if *count == 0 {
                pids.remove(&pid);
            }
        }
    }

    /// Whether a process has a session.
    pub fn contains(&self, pid: u32) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&pid)
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
}
