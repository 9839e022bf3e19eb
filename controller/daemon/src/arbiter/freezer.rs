//! Finds out whether a signal or the cgroup freezer has stopped a process. The freezer stops the
//! processes of paused containers and frozen units. The state in `/proc` does not show this: a
//! frozen process looks asleep.

use deepres_model::process::{self, ProcessKey};
use std::path::PathBuf;

/// The mount point of the cgroup hierarchies. Beside version 1, systemd mounts version 2 below it.
const ROOT: &str = "/sys/fs/cgroup";
const UNIFIED_ROOT: &str = "/sys/fs/cgroup/unified";
/// The cgroup controller that freezes processes in cgroup version 1.
const FREEZER: &str = "freezer";

/// A file that says whether a group is frozen, and the format of the file.
#[derive(Debug, PartialEq, Eq)]
enum Sign {
    /// `cgroup.events` of version 2. The file also shows whether a parent group is frozen.
    Events(PathBuf),
    /// `freezer.state` of version 1. The file also shows whether a parent group is frozen.
    State(PathBuf),
}

/// Returns whether the system says that the process is stopped or frozen. If the process's state
/// cannot be read, returns false.
pub fn is_stopped(process: ProcessKey) -> bool {
    process.is_stopped() || is_frozen(process.pid)
}

/// Returns whether the whole process is frozen. If its files cannot be read, returns false.
fn is_frozen(pid: u32) -> bool {
    let groups = process::text(pid, "cgroup").unwrap_or_default();
    signs(&groups).iter().any(|sign| match sign {
        Sign::Events(path) => std::fs::read_to_string(path).is_ok_and(|text| events_say_so(&text)),
        Sign::State(path) => std::fs::read_to_string(path).is_ok_and(|text| state_says_so(&text)),
    })
}

/// Returns the files that show whether the groups in `groups` (the text of `/proc/PID/cgroup`) are
/// frozen.
fn signs(groups: &str) -> Vec<Sign> {
    let mut signs = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let at = |root: &str, file| PathBuf::from(format!("{root}{}/{file}", group.trim_end_matches('/')));
        if controllers.is_empty() {
            signs.extend([UNIFIED_ROOT, ROOT].map(|root| Sign::Events(at(root, "cgroup.events"))));
        } else if controllers.split(',').any(|controller| controller == FREEZER) {
            signs.push(Sign::State(at(&format!("{ROOT}/{controllers}"), "freezer.state")));
        }
    }
    signs
}

fn events_say_so(events: &str) -> bool {
    events.lines().any(|line| line == "frozen 1")
}

/// Returns whether the state is `FROZEN`. In the state `FREEZING`, some threads can still run.
fn state_says_so(state: &str) -> bool {
    state.trim_end() == "FROZEN"
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    #[test]
    fn a_group_is_looked_for_where_its_version_has_it() {
        let events = |path: &str| Sign::Events(path.into());
        let second = "0::/system.slice/docker-1.scope\n";
        assert_eq!(
            signs(second),
            [
                events("/sys/fs/cgroup/unified/system.slice/docker-1.scope/cgroup.events"),
                events("/sys/fs/cgroup/system.slice/docker-1.scope/cgroup.events"),
            ]
        );
        let first = "9:name=systemd:/a\n6:freezer:/docker/a:b\n2:cpu,cpuacct:/c\n";
        assert_eq!(signs(first), [Sign::State("/sys/fs/cgroup/freezer/docker/a:b/freezer.state".into())]);
        assert_eq!(signs("0::/\n")[1], events("/sys/fs/cgroup/cgroup.events"), "the root has none");
        assert_eq!(signs("nonsense\n\n7:freezer"), []);
    }

    #[test]
    fn only_what_is_frozen_as_a_whole_is_frozen() {
        assert!(events_say_so("populated 1\nfrozen 1\n"));
        assert!(!events_say_so("populated 1\nfrozen 0\n") && !events_say_so(""));
        assert!(state_says_so("FROZEN\n"));
        assert!(!state_says_so("FREEZING\n") && !state_says_so("THAWED\n") && !state_says_so(""));
    }

    /// A test's own group under `root`, if this process may create one there.
    struct Group(PathBuf);

    impl Group {
        fn new(root: &str, file: &str) -> Option<Self> {
            let group = Self(Path::new(root).join(format!("deepres-frozen-{}", std::process::id())));
            (fs::create_dir(&group.0).is_ok() && group.0.join(file).exists()).then_some(group)
        }
    }

    impl Drop for Group {
        fn drop(&mut self) {
            // The group becomes empty a moment after its process was reaped.
            for _ in 0..1_000 {
                if fs::remove_dir(&self.0).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn a_process_in_a_frozen_group_is_frozen_until_it_is_thawed() {
        let ways = [
            ("/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED"),
            ("/sys/fs/cgroup/unified", "cgroup.freeze", "1", "0"),
            ("/sys/fs/cgroup", "cgroup.freeze", "1", "0"),
        ];
        for (root, file, freeze, thaw) in ways {
            let Some(group) = Group::new(root, file) else { continue };
            let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
            fs::write(group.0.join("cgroup.procs"), child.id().to_string()).unwrap();
            assert!(!is_frozen(child.id()));
            let set = |to: &str| fs::write(group.0.join(file), to).unwrap();
            let becomes = |frozen: bool| {
                (0..10_000).any(|_| {
                    std::thread::sleep(Duration::from_millis(1));
                    is_frozen(child.id()) == frozen
                })
            };
            set(freeze);
            let was_frozen = becomes(true);
            // The test thaws the process before any assertion, because a frozen process cannot die.
            set(thaw);
            let was_thawed = becomes(false);
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(was_frozen && was_thawed, "in {root}");
        }
    }
}
