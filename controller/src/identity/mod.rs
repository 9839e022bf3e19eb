//! Which tenant a process belongs to.
//!
//! By the first of these that applies:
//!
//! 1. the name that it gives (`--name`, `DEEPRES_TENANT`);
//! 2. a descendant of a tenant's process belongs to that tenant, whatever became of its environment;
//! 3. the container or Kubernetes pod it is in ([`cgroup`]);
//! 4. the Slurm job it is in;
//! 5. the process tree it is in ([`tree`]).
//!
//! All but the first are facts of the kernel's ([`read`]). A name is a wish, and holds among the processes of one user. Whatever it is
//! called, a tenant *is* its [`Key`]: two keys are two tenants, and names that would be the same are made to differ.

pub mod cgroup;
pub mod read;
pub mod source;
pub mod tree;

use crate::process::ProcessKey;
use crate::text::harmless;
use cgroup::{Kind, Place};
use deepres_abi::wire::TENANT_NAME_BYTES;
use serde::{Deserialize, Serialize};
use tree::Process;

/// What makes a tenant the one that it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Key {
    /// A name, given by processes of one user.
    Name {
        /// Whose.
        user: u32,
        /// The name.
        name: String,
    },
    /// A container, pod or Slurm job, by its cgroup.
    Cgroup(String),
    /// A process tree, by its root.
    Tree(ProcessKey),
}

/// How a process's tenant was found, in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum Found {
    /// By the name it gave.
    Name,
    /// By an ancestor that belongs to it.
    Ancestor {
        /// That process.
        pid: u32,
    },
    /// By its container.
    Container,
    /// By its pod.
    Pod,
    /// By its batch job.
    Slurm {
        /// The job's number.
        job: u32,
    },
    /// By the root of its process tree.
    Tree {
        /// The root.
        root: u32,
    },
}

/// The tenant of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Which.
    pub key: Key,
    /// What to call it, if that is free.
    pub name: String,
    /// How it was found.
    pub found: Found,
}

/// What the kernel tells of a process that wants to be let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Its number.
    pub pid: u32,
    /// The process itself; `None` if it could not be looked at.
    pub process: Option<Process>,
    /// The container, pod or batch job that it is in.
    pub place: Option<Place>,
    /// Whose it is: its user, or whoever made the user namespace that it is in.
    pub owner: u32,
}

impl Facts {
    /// Reads them. They are of the process that has this number now: whoever asks makes sure that it is still the same afterwards.
    pub fn read(pid: u32, user: u32) -> Self {
        Self { pid, process: read::process(pid), place: read::place(pid), owner: read::owner(pid, user) }
    }
}

/// Identifies a process that gives the name `claim` (empty: none). `kin` knows the tenants' processes; `ancestors` are the process's,
/// its parent first, and are looked at only if they matter.
pub fn identify(
    claim: &str,
    facts: &Facts,
    ancestors: impl Iterator<Item = Process>,
    kin: impl Fn(&Process) -> Option<(Key, String)>,
) -> Identity {
    if !claim.is_empty() {
        let key = Key::Name { user: facts.owner, name: claim.to_owned() };
        return Identity { key, name: claim.to_owned(), found: Found::Name };
    }
    let Some(process) = &facts.process else {
        return of_place(facts).unwrap_or_else(|| Identity {
            key: Key::Tree(ProcessKey { pid: facts.pid, start_ticks: 0 }),
            name: format!("process-{}", facts.pid),
            found: Found::Tree { root: facts.pid },
        });
    };
    let own = std::iter::once(process.clone());
    let mut root = process.clone();
    let mut is_in_job = true;
    for ancestor in own.chain(ancestors).take_while(|ancestor| ancestor.user == process.user) {
        if let Some((key, name)) = kin(&ancestor) {
            return Identity { key, name, found: Found::Ancestor { pid: ancestor.pid } };
        }
        is_in_job &= ancestor.pid == process.pid || tree::belongs(&root, &ancestor);
        if is_in_job {
            root = ancestor;
        }
    }
    of_place(facts).unwrap_or_else(|| of_tree(&root))
}

fn of_place(facts: &Facts) -> Option<Identity> {
    let place = facts.place.as_ref()?;
    let found = match place.kind {
        Kind::Container(_) => Found::Container,
        Kind::Pod { .. } => Found::Pod,
        Kind::Slurm { job } => Found::Slurm { job },
    };
    Some(Identity { key: Key::Cgroup(place.path.clone()), name: place.name(), found })
}

fn of_tree(root: &Process) -> Identity {
    Identity {
        key: Key::Tree(root.key()),
        name: harmless(&root.to_string()),
        found: Found::Tree { root: root.pid },
    }
}

/// `name`, or with a number behind it the first such that is not `taken`; it fits the field for names.
pub fn free_name(name: &str, taken: impl Fn(&str) -> bool) -> String {
    let with = |suffix: &str| {
        let mut end = name.len().min(TENANT_NAME_BYTES - 1 - suffix.len());
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        format!("{}{suffix}", &name[..end])
    };
    let numbered = (2u64..).map(|number| with(&format!("-{number}")));
    std::iter::once(with("")).chain(numbered).find(|name| !taken(name)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, parent: u32, command: &str) -> Process {
        Process {
            pid,
            parent,
            group: pid,
            session: pid,
            has_terminal: false,
            start_ticks: u64::from(pid) * 10,
            user: 1000,
            command: command.to_owned(),
        }
    }

    fn facts(cgroup: &str) -> Facts {
        Facts {
            pid: 30,
            process: Some(process(30, 20, "python3")),
            place: cgroup::place(cgroup),
            owner: 1000,
        }
    }

    fn ancestors() -> impl Iterator<Item = Process> {
        [process(20, 10, "torchrun"), process(10, 1, "run.sh"), process(1, 0, "systemd")].into_iter()
    }

    fn strangers(_: &Process) -> Option<(Key, String)> {
        None
    }

    const DOCKER: &str =
        "0::/system.slice/docker-4c01b2a3f9d7c5e8b6a4123456789abcdef0123456789abcdef0123456789abc.scope";

    #[test]
    fn a_name_comes_before_everything_and_holds_within_its_user() {
        let kin = |_: &Process| Some((Key::Cgroup("x".into()), "other".to_owned()));
        let named = identify("train", &facts(DOCKER), ancestors(), kin);
        assert_eq!(named.key, Key::Name { user: 1000, name: "train".into() });
        let other = Facts { owner: 1001, ..facts(DOCKER) };
        assert_ne!(identify("train", &other, ancestors(), kin).key, named.key);
    }

    #[test]
    fn a_descendant_of_a_tenants_process_belongs_to_it_but_not_to_one_of_the_same_number() {
        let kin = |process: &Process| {
            let key = Key::Name { user: 1000, name: "nightly".into() };
            ((process.pid, process.start_ticks) == (10, 100)).then(|| (key, "nightly".to_owned()))
        };
        let found = identify("", &facts("0::/"), ancestors(), kin);
        assert_eq!((found.name.as_str(), found.found), ("nightly", Found::Ancestor { pid: 10 }));
        let reused = ancestors().map(|process| Process { start_ticks: process.start_ticks + 1, ..process });
        assert_eq!(identify("", &facts("0::/"), reused, kin).name, "run.sh-10");
    }

    #[test]
    fn then_come_container_batch_job_and_tree() {
        let found = |cgroup: &str| identify("", &facts(cgroup), ancestors(), strangers);
        assert_eq!(
            (found(DOCKER).name.as_str(), found(DOCKER).found),
            ("docker-4c01b2a3f9d7", Found::Container)
        );
        let slurm = found("0::/system.slice/slurmstepd.scope/job_7/step_1/user/task_0");
        assert_eq!((slurm.name.as_str(), slurm.found), ("slurm-7", Found::Slurm { job: 7 }));
        let step = found("0::/system.slice/slurmstepd.scope/job_7/step_2/user/task_0");
        assert_eq!(slurm.key, step.key, "steps belong to their job");
        let tree = found("0::/user.slice/session-1.scope");
        assert_eq!((tree.name.as_str(), &tree.found), ("run.sh-10", &Found::Tree { root: 10 }));
        assert_eq!(tree.key, Key::Tree(ProcessKey { pid: 10, start_ticks: 100 }));
    }

    #[test]
    fn a_process_that_cannot_be_looked_at_is_a_tenant_all_the_same() {
        let blind = Facts { pid: 30, process: None, place: None, owner: 1000 };
        assert_eq!(identify("", &blind, std::iter::empty(), strangers).name, "process-30");
        let contained = Facts { place: cgroup::place(DOCKER), ..blind };
        assert_eq!(identify("", &contained, std::iter::empty(), strangers).found, Found::Container);
    }

    #[test]
    fn names_that_are_taken_get_a_number_and_still_fit() {
        assert_eq!(free_name("train", |_| false), "train");
        assert_eq!(free_name("train", |name| name == "train" || name == "train-2"), "train-3");
        let long = free_name(&"é".repeat(100), |name| !name.ends_with("-2"));
        assert!(long.ends_with("é-2") && long.len() < TENANT_NAME_BYTES, "{long}");
    }
}
