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
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// The most ancestors that the daemon reads.
pub const MAX_ANCESTORS: usize = 64;
/// The most nested namespaces of a kind (the kernel allows 32).
const MAX_NAMESPACES: usize = 33;
/// The kinds of namespaces that confine processes, as `/proc/PID/ns` names them.
const USER: &str = "user";
const PID: &str = "pid";
/// ioctl_nsfs(2): the request for the user namespace in which a namespace was made.
const NS_GET_USERNS: libc::Ioctl = 0xb701;
/// ioctl_nsfs(2): the request for the parent of a user or PID namespace.
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

/// A namespace below the daemon's own, with its number, that confines processes. Each container has
/// one, whatever runtime made it.
///
/// Other kinds of namespaces confine nobody: services of systemd often have mounts of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespace {
    /// A user namespace.
    User(u64),
    /// A PID namespace that was made in the daemon's own user namespace, as those of privileged
    /// containers are. Only root can make one. The number is that of the outermost, because root
    /// inside can make any number of further namespaces.
    Pid(u64),
}

impl Namespace {
    fn parts(self) -> (&'static str, u64) {
        match self {
            Self::User(number) => (USER, number),
            Self::Pid(number) => (PID, number),
        }
    }

    /// Returns the path that stands for the namespace, as for a container's cgroup.
    pub fn path(self) -> String {
        let (kind, number) = self.parts();
        format!("{kind}:[{number}]")
    }

    /// Returns the namespace's name for display.
    pub fn name(self) -> String {
        let (kind, number) = self.parts();
        format!("{kind}-namespace-{number}")
    }

    /// Returns whether a process's own user namespace, or its outermost PID namespace, is this one.
    /// The kernel reuses ids, so the answer counts only if the process still lives afterwards.
    pub fn has(self, process: ProcessKey) -> bool {
        let is_inside = match self {
            Self::User(own) => number(process.pid, USER) == Some(own),
            Self::Pid(own) => below_own(process.pid, PID).is_some_and(|found| found.0.last() == Some(&own)),
        };
        is_inside && process.is_alive()
    }
}

/// Returns the number of a process's namespace of this kind. `pid`: an id, or `self` for the
/// daemon.
fn number(pid: impl Display, kind: &str) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/{kind}")).map(|found| found.ino()).ok()
}

/// Returns the namespace that confines a process: the PID namespace of a privileged container, or
/// else the process's own user namespace. Returns `None` if the process is in neither, or if its
/// namespaces cannot be read.
pub fn namespace(pid: u32) -> Option<Namespace> {
    let of_user = || {
        let (own, of_process) = (number("self", USER)?, number(pid, USER)?);
        (own != of_process).then_some(Namespace::User(of_process))
    };
    privileged(pid).or_else(of_user)
}

/// Returns the namespace of the container in which a process is: as [`namespace`], but the
/// outermost of its user namespaces.
pub fn outermost_namespace(pid: u32) -> Option<Namespace> {
    privileged(pid).or_else(|| below_own(pid, USER)?.0.last().copied().map(Namespace::User))
}

/// Returns the PID namespace of the privileged container in which a process is.
fn privileged(pid: u32) -> Option<Namespace> {
    let (numbers, outermost) = below_own(pid, PID)?;
    let made_in = number_of(&related(&outermost, NS_GET_USERNS)?)?;
    numbers.last().copied().filter(|_| number("self", USER) == Some(made_in)).map(Namespace::Pid)
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
    let (numbers, outermost) = below_own(pid, USER)?;
    let mut owner: libc::uid_t = 0;
    // SAFETY: this request writes one user id, for which there is room.
    let status = unsafe { libc::ioctl(outermost.as_raw_fd(), NS_GET_OWNER_UID, &raw mut owner) };
    (status == 0).then_some(Namespaces { numbers, owner })
}

/// Returns the numbers of a process's namespaces of this kind below the daemon's own, the process's
/// own first. Also returns the descriptor of the outermost namespace, which is the last. Returns
/// `None` if the process is in the daemon's own namespace, or if the kernel does not tell the
/// namespaces.
fn below_own(pid: u32, kind: &str) -> Option<(Vec<u64>, OwnedFd)> {
    let own = number("self", kind)?;
    let mut namespace = OwnedFd::from(File::open(format!("/proc/{pid}/ns/{kind}")).ok()?);
    let mut numbers = vec![number_of(&namespace)?];
    if numbers == [own] {
        return None;
    }
    for _ in 0..MAX_NAMESPACES {
        let above = related(&namespace, NS_GET_PARENT)?;
        let number = number_of(&above)?;
        if number == own {
            return Some((numbers, namespace));
        }
        numbers.push(number);
        namespace = above;
    }
    None
}

/// Returns the number of the namespace with this descriptor.
fn number_of(namespace: &OwnedFd) -> Option<u64> {
    fstat(namespace).map(|found| found.st_ino).ok()
}

/// Asks the kernel for a namespace that is related to this one, and returns its descriptor.
fn related(namespace: &OwnedFd, request: libc::Ioctl) -> Option<OwnedFd> {
    // SAFETY: these requests take no argument and return a new descriptor.
    let found = unsafe { libc::ioctl(namespace.as_raw_fd(), request) };
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    (found >= 0).then(|| unsafe { OwnedFd::from_raw_fd(found) })
}

/// Returns whether a process's own user namespace is one of these. The kernel reuses ids, so the
/// answer counts only if the process still lives afterwards.
pub fn is_within(process: ProcessKey, namespaces: &[u64]) -> bool {
    number(process.pid, USER).is_some_and(|own| namespaces.contains(&own)) && process.is_alive()
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
    fn only_a_process_that_another_started_is_its_descendant() {
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
        let here = number("self", USER).unwrap();
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
            assert_eq!(found.numbers.first().copied().map(Namespace::User), namespace(pid));
            assert_eq!(found.numbers.last().copied().map(Namespace::User), outermost_namespace(pid));
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
        let other = |pid| number(pid, USER) != number("self", USER);
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !other(inside.id()) && inside.try_wait().unwrap().is_none() && std::time::Instant::now() < until
        {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        if inside.try_wait().unwrap().is_none() {
            let user = rustix::process::geteuid().as_raw();
            assert_eq!(owner(inside.id(), 65_534), user);
            let numbers = namespaces(inside.id()).unwrap().numbers;
            assert_eq!(numbers.len(), 1);
            assert_eq!(namespace(inside.id()), Some(Namespace::User(numbers[0])));
            // A container without a cgroup of its own (LXC, nspawn) is not the host's root.
            let source = Source::of(inside.id(), user);
            assert!(matches!(&source, Source::Place { .. }) && source.has_limit(), "{source:?}");
        }
        inside.kill().unwrap();
        inside.wait().unwrap();
    }

    #[test]
    fn roots_process_in_a_pid_namespace_of_its_own_is_not_the_hosts_root() {
        // Only root can make a PID namespace without a user namespace. `unshare` has one child.
        let program = ["--pid", "--fork", "--kill-child", "sleep", "60"];
        let outside = Command::new("unshare").args(program).stderr(Stdio::null()).spawn();
        let Ok(mut outside) = outside else { return };
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let inside = loop {
            let children = text(outside.id(), &format!("task/{}/children", outside.id()));
            let child = children.and_then(|children| children.trim().parse().ok());
            let inside = child.filter(|child| namespace(*child).is_some());
            let is_over = outside.try_wait().unwrap().is_some() || std::time::Instant::now() > until;
            if inside.is_some() || is_over {
                break inside;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        };
        if let Some(inside) = inside {
            let own = namespace(inside).unwrap();
            assert!(matches!(own, Namespace::Pid(_)), "{own:?}");
            assert_eq!(outermost_namespace(inside), Some(own));
            let [here, there] = [std::process::id(), inside].map(|pid| ProcessKey::of(pid).unwrap());
            assert!(own.has(there) && !own.has(here));
            assert_eq!(Source::of(inside, 0), Source::Place { path: own.path(), name: own.name() });
        }
        outside.kill().unwrap();
        outside.wait().unwrap();
    }
}
