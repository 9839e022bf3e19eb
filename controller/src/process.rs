//! A process that is mistaken for no other: its id, and when it started.

use serde::{Deserialize, Serialize};

/// Where in /proc/PID/stat, counted from what follows the command's name, the state and the start time are.
const STATE_FIELD: usize = 0;
const START_FIELD: usize = 19;

/// A process. Ids are used again, but not with the same start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessKey {
    /// Its id.
    pub pid: u32,
    /// When it started, clock ticks since the machine did.
    pub start_ticks: u64,
}

impl ProcessKey {
    /// The living process `pid`. `None`: there is none, or it cannot be seen from here.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(Self { pid, start_ticks: start_ticks(&stat)? })
    }

    /// Whether it still lives.
    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
}

/// The start time in a stat line, unless it is that of a process that is dead and only not buried.
fn start_ticks(stat: &str) -> Option<u64> {
    // The name may hold spaces and parentheses; nothing after it does.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.nth(STATE_FIELD)?;
    let start = fields.nth(START_FIELD - STATE_FIELD - 1)?;
    if matches!(state, "Z" | "X") { None } else { start.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_process_is_known_by_its_start_and_a_dead_one_is_none() {
        let own = ProcessKey::of(std::process::id()).unwrap();
        assert!(own.is_alive() && own.start_ticks > 0);
        assert!(!ProcessKey { start_ticks: own.start_ticks + 1, ..own }.is_alive());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let key = ProcessKey::of(child.id());
        child.wait().unwrap();
        assert!(key.is_none_or(|key| !key.is_alive()));
    }

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let fields = "S 1 1 1 0 -1 4194304 1 0 0 0 1 2 0 0 20 0 1 0 4711 1 2";
        assert_eq!(start_ticks(&format!("7 (a) Z (b)) {fields}")), Some(4711));
        assert_eq!(start_ticks(&format!("7 (x) {}", fields.replacen('S', "Z", 1))), None);
        assert_eq!(start_ticks("7 (x) S 1"), None);
        assert_eq!(start_ticks(""), None);
    }
}
