//! Reads the kernel's facts about a process.
//!
//! The functions read only files that the kernel answers from its own memory. For other files
//! (`cmdline`, `environ`, `maps`), the kernel looks into the process, and the process can block the
//! read for as long as it likes.

use super::cgroup::{self, Place};
use super::tree::{self, Process};
use deepres_model::process::{ProcessKey, stat, text};
use rustix::fs::fstat;
use std::fmt::Display;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// The most ancestors that the daemon reads.
pub const MAX_ANCESTORS: usize = 64;
/// The most nested user namespaces (the kernel allows 32).
const MAX_NAMESPACES: usize = 33;
/// ioctl_nsfs(2): the request for the parent of a user namespace.
const NS_GET_PARENT: libc::Ioctl = 0xb702;
/// ioctl_nsfs(2): the request for the user who made a user namespace.
const NS_GET_OWNER_UID: libc::Ioctl = 0xb704;

/// Returns the process with this id; `None` if the daemon cannot read the process's files.
pub fn process(pid: u32) -> Option<Process> {
    let user = tree::user_of_status(&text(pid, "status")?)?;
    Process::parse(&stat(pid)?, user)
}

/// Returns the parent of a process. The kernel reuses ids, so the parent counts only if the process
/// still has the same parent afterwards.
pub fn parent(child: &Process) -> Option<Process> {
    let parent = process(child.parent)?;
    let again = Process::parse(&stat(child.pid)?, child.user)?;
    (again.parent == parent.pid && again.start_ticks == child.start_ticks).then_some(parent)
}

/// Returns a process's ancestors, its parent first.
pub fn ancestors(process: &Process) -> impl Iterator<Item = Process> {
    std::iter::successors(parent(process), parent).take(MAX_ANCESTORS)
}

/// Returns whether the process `pid` has the user `user` and descends from the process `of`.
pub fn is_descendant(pid: u32, of: u32, user: u32) -> bool {
    process(pid)
        .is_some_and(|process| process.user == user && ancestors(&process).any(|ancestor| ancestor.pid == of))
}

/// Returns the container, pod or batch job of a process; `None` without one.
pub fn place(pid: u32) -> Option<Place> {
    cgroup::place(&text(pid, "cgroup")?)
}

/// Returns the groups of a process, as the kernel shows them.
pub fn groups(pid: u32) -> Option<Vec<u32>> {
    groups_in(&text(pid, "status")?)
}

/// Returns the groups in the text of a process's status file: the supplementary groups, and the
/// effective group, which need not be among them.
fn groups_in(status: &str) -> Option<Vec<u32>> {
    let numbers = |field: &str| -> Option<Vec<u32>> {
        let numbers = status.lines().find_map(|line| line.strip_prefix(field))?;
        Some(numbers.split_whitespace().filter_map(|number| number.parse().ok()).collect())
    };
    let mut groups = numbers("Groups:")?;
    // The line has the real group and then the effective group.
    let effective = *numbers("Gid:")?.get(1)?;
    if !groups.contains(&effective) {
        groups.push(effective);
    }
    Some(groups)
}

/// Returns the owner of a process. In a user namespace of its own (a rootless container), user ids
/// are made up. The owner is then the user who made the outermost such namespace.
pub fn owner(pid: u32, user: u32) -> u32 {
    namespaces(pid).map_or(user, |namespaces| namespaces.owner)
}

/// Returns the number of the user namespace of a process: an id, or `self` for the daemon.
fn number(pid: impl Display) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/user")).map(|found| found.ino()).ok()
}

/// Returns the number of a process's user namespace. Returns `None` if the process is in the
/// daemon's own namespace, or if the namespace cannot be read.
pub fn namespace(pid: u32) -> Option<u64> {
    let (own, of_process) = (number("self")?, number(pid)?);
    (own != of_process).then_some(of_process)
}

/// The user namespaces of a process below the daemon's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespaces {
    /// The numbers of the namespaces, from the process's own to the outermost. There is at least
    /// one.
    pub numbers: Vec<u64>,
    /// The user who made the outermost namespace.
    pub owner: u32,
}

/// Returns the user namespaces of a process below the daemon's own. Returns `None` if the process
/// is in the daemon's own namespace, or if the kernel does not tell the namespaces or the user.
pub fn namespaces(pid: u32) -> Option<Namespaces> {
    let number_of = |namespace: BorrowedFd<'_>| fstat(namespace).map(|found| found.st_ino).ok();
    let own = number("self")?;
    let mut namespace = OwnedFd::from(File::open(format!("/proc/{pid}/ns/user")).ok()?);
    let mut numbers = vec![number_of(namespace.as_fd())?];
    if numbers == [own] {
        return None;
    }
    for _ in 0..MAX_NAMESPACES {
        // SAFETY: this request takes no argument and returns a new descriptor.
        let above = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) };
        if above < 0 {
            return None;
        }
        // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
        let above = unsafe { OwnedFd::from_raw_fd(above) };
        let number = number_of(above.as_fd())?;
        if number == own {
            let mut owner: libc::uid_t = 0;
            // SAFETY: this request writes one user id, for which there is room.
            let status = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID, &raw mut owner) };
            return (status == 0).then_some(Namespaces { numbers, owner });
        }
        numbers.push(number);
        namespace = above;
    }
    None
}

/// Returns whether a process's own user namespace is one of these. The kernel reuses ids, so the
/// answer counts only if the process still lives afterwards.
pub fn is_within(process: ProcessKey, namespaces: &[u64]) -> bool {
    number(process.pid).is_some_and(|own| namespaces.contains(&own)) && process.is_alive()
}

/// Returns the path that stands for a user namespace, as for a container's cgroup.
pub fn namespace_path(number: u64) -> String {
    format!("user:[{number}]")
}

/// Returns the name of a user namespace for display.
pub fn namespace_name(number: u64) -> String {
    format!("user-namespace-{number}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::source::Source;
    use std::collections::BTreeSet;
    use std::process::{Command, Stdio};

    #[test]
    fn this_process_and_its_parent_are_read() {
        let own = process(std::process::id()).unwrap();
        assert_eq!(own.user, rustix::process::geteuid().as_raw());
        let above = parent(&own).unwrap();
        assert_eq!(above.pid, std::os::unix::process::parent_id());
        assert!(above.start_ticks <= own.start_ticks);
        assert_eq!(ancestors(&own).next(), Some(above));
        assert_eq!(process(0), None);
        assert_eq!(owner(own.pid, 4711), 4711, "in our own namespace it is the user that it is");
    }

    #[test]
    fn what_a_process_started_is_its_descendant_and_nobody_else() {
        let (own, user) = (std::process::id(), rustix::process::geteuid().as_raw());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(is_descendant(child.id(), own, user));
        assert!(!is_descendant(child.id(), own, user + 1), "another user's");
        assert!(!is_descendant(own, child.id(), user) && !is_descendant(own, own, user));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_descendant(child.id(), own, user), "it is gone");
    }

    #[test]
    fn a_parent_that_is_not_the_parent_any_more_does_not_count() {
        let mut own = process(std::process::id()).unwrap();
        own.parent = 1;
        assert_eq!(parent(&own), None);
    }

    #[test]
    fn the_groups_of_a_process_are_known() {
        let own = rustix::process::getgroups().unwrap();
        let own = own.into_iter().chain([rustix::process::getegid()]);
        let own: BTreeSet<u32> = own.map(|group| group.as_raw()).collect();
        let found: BTreeSet<u32> = groups(std::process::id()).unwrap().into_iter().collect();
        assert_eq!(found, own);
    }

    #[test]
    fn the_effective_group_counts_although_it_is_no_supplementary_group() {
        let status = |groups: &str| format!("Name:\tpython\nGid:\t7\t100\t7\t100\nGroups:\t{groups} \n");
        assert_eq!(groups_in(&status("1000 44")), Some(vec![1_000, 44, 100]));
        assert_eq!(groups_in(&status("100")), Some(vec![100]));
        assert_eq!(groups_in(&status("")), Some(vec![100]));
        assert_eq!(groups_in("Groups:\t1\n"), None);
    }

    #[test]
    fn a_process_is_within_its_own_user_namespace_while_it_lives() {
        let own = ProcessKey::of(std::process::id()).unwrap();
        let here = number("self").unwrap();
        assert!(is_within(own, &[here]) && is_within(own, &[here + 1, here]));
        assert!(!is_within(own, &[here + 1]) && !is_within(own, &[]));
        let before = ProcessKey { start_ticks: own.start_ticks + 1, ..own };
        assert!(!is_within(before, &[here]), "another process has the id by now");
    }

    #[test]
    fn a_process_has_all_user_namespaces_from_its_own_to_the_outermost() {
        // The outer `unshare` becomes the inner one, which becomes `sleep`.
        let nested = ["--user", "--map-root-user", "unshare", "--user", "sleep", "60"];
        let inside = Command::new("unshare").args(nested).stderr(Stdio::null()).spawn();
        let Ok(mut inside) = inside else { return };
        let pid = inside.id();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let found = loop {
            let found = namespaces(pid).filter(|found| found.numbers.len() == 2);
            // Some systems forbid one of the two namespaces, and `unshare` ends.
            let is_over = ProcessKey::of(pid).is_none() || std::time::Instant::now() > until;
            if found.is_some() || is_over {
                break found;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        };
        if let Some(found) = found {
            assert_eq!(found.numbers.first().copied(), namespace(pid));
            assert_eq!(found.owner, rustix::process::geteuid().as_raw());
            let key = ProcessKey::of(pid).unwrap();
            assert!(is_within(key, &found.numbers) && !is_within(key, &found.numbers[1..]));
        }
        inside.kill().unwrap();
        inside.wait().unwrap();
    }

    #[test]
    fn a_process_in_a_user_namespace_is_whose_namespace_it_is() {
        // `unshare -U` needs no rights, but some systems forbid it.
        let inside = Command::new("unshare").args(["--user", "sleep", "60"]).stderr(Stdio::null()).spawn();
        let Ok(mut inside) = inside else { return };
        let other = |pid| {
            let number =
                |pid: &str| fs::metadata(format!("/proc/{pid}/ns/user")).map(|found| found.ino()).ok();
            number(&format!("{pid}")) != number("self")
        };
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !other(inside.id()) && inside.try_wait().unwrap().is_none() && std::time::Instant::now() < until
        {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        if inside.try_wait().unwrap().is_none() {
            let user = rustix::process::geteuid().as_raw();
            assert_eq!(owner(inside.id(), 65_534), user);
            assert_eq!(namespaces(inside.id()).unwrap().numbers, [namespace(inside.id()).unwrap()]);
            // A container without a cgroup of its own (LXC, nspawn) is not the host's root.
            let source = Source::of(inside.id(), user);
            assert!(matches!(&source, Source::Place { .. }) && source.has_limit(), "{source:?}");
        }
        inside.kill().unwrap();
        inside.wait().unwrap();
    }
}
