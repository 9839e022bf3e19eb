//! Finds the container, pod or batch job of a process in the text of `/proc/PID/cgroup`.
//!
//! Container runtimes and Slurm name the cgroups of their processes. Only a user who may write to a
//! cgroup can move a process into it. Under `user.slice`, users may write, so the names there prove
//! nothing about other users. Two consequences follow:
//!
//! - Two processes share a tenant only if the whole path is the same ([`Place::path`]).
//! - The module looks for no batch jobs under `user.slice`, because root's Slurm daemon makes the
//!   cgroups of jobs.
//!
//! A line is `hierarchy:controllers:path`. cgroup v2 has one line, with hierarchy 0. cgroup v1 has
//! one line for each hierarchy. No path contains a line break, because the kernel refuses such
//! cgroup names.

use deepres_model::identity::{Container, Runtime};
use deepres_model::slurm::JobName;

/// Number of hexadecimal digits in a container's id.
const ID_DIGITS: usize = 64;
/// Length of a pod's uid: a UUID, or the hash of its file for a static pod.
const POD_UID_DIGITS: std::ops::RangeInclusive<usize> = 32..=36;
/// Suffix that the kernel adds to the path of a removed cgroup.
const REMOVED: &str = " (deleted)";
/// The end of the name of a slice, in which systemd keeps cgroups. An administrator chooses the
/// slice of Slurm.
const SLICE: &str = ".slice";
/// Slurm's cgroup (version 1) on a host with one Slurm daemon.
const SLURM: &str = "slurm";
/// Slurm's cgroup (version 2) on a host with one Slurm daemon.
const SCOPE: &str = "slurmstepd.scope";
/// Prefix of the node's name in a cgroup of Slurm (version 1).
const SLURM_OF_NODE: &str = "slurm_";
/// Suffix of the node's name in a cgroup of Slurm (version 2).
const SCOPE_OF_NODE: &str = "_slurmstepd.scope";
/// The slice in which systemd lets users arrange their own cgroups.
const USERS: &str = "user.slice";

/// The kind of a place: a container, a pod or a batch job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A container outside a pod.
    Container(Container),
    /// A Kubernetes pod.
    Pod {
        /// The pod's uid.
        uid: String,
        /// The container in the pod, if the path names one.
        container: Option<Container>,
    },
    /// A Slurm job, including its steps.
    Slurm {
        /// The job's name in the cgroup's path.
        job: JobName,
    },
}

/// A container, pod or batch job with its cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Path of the cgroup from the view of the process that reads `/proc`.
    pub path: String,
    /// Kind of the place.
    pub kind: Kind,
}

impl Kind {
    /// Returns the name of a place of this kind for display.
    pub fn name(&self) -> String {
        match self {
            Self::Container(container) => format!("{}-{}", container.runtime.name(), container.short_id()),
            Self::Pod { uid, .. } => format!("pod-{uid}"),
            Self::Slurm { job } => format!("slurm-{job}"),
        }
    }
}

impl Place {
    /// Returns the place's name for display.
    pub fn name(&self) -> String {
        self.kind.name()
    }

    /// Returns the name of the Slurm job, if the place is a Slurm job.
    pub fn job(&self) -> Option<&JobName> {
        if let Kind::Slurm { job } = &self.kind { Some(job) } else { None }
    }

    /// Returns whether root's Slurm on this machine made the cgroup of a job. Only root makes
    /// cgroups directly below a slice, except in the slice of users. Root in a container can make
    /// cgroups with the same names, but only inside the container. `home` is the daemon's own
    /// container.
    pub fn is_of_roots_slurm(&self, home: Option<&Self>) -> bool {
        let below = home.and_then(|home| self.path.strip_prefix(home.path.as_str()));
        let mut components = below.unwrap_or(&self.path).split('/').skip(1);
        let has_scope = |scope: &str| scope == SCOPE || scope.ends_with(SCOPE_OF_NODE);
        self.job().is_some()
            && match components.next() {
                Some(first) if first.ends_with(SLICE) => {
                    first != USERS && components.next().is_some_and(has_scope)
                }
                Some(first) => first == SLURM || first.starts_with(SLURM_OF_NODE),
                None => false,
            }
    }

    /// Returns the name under which Slurm knows this node, if the cgroup's path has it. The path
    /// has the name if several Slurm daemons can run on one host.
    pub fn slurm_node(&self) -> Option<&str> {
        let mut components = self.path.split('/').filter(|_| self.job().is_some());
        components.find_map(|component| {
            component.strip_prefix(SLURM_OF_NODE).or_else(|| component.strip_suffix(SCOPE_OF_NODE))
        })
    }

    /// Returns the container, if the place is a container or a pod with one.
    pub fn container(&self) -> Option<&Container> {
        match &self.kind {
            Kind::Container(container) => Some(container),
            Kind::Pod { container, .. } => container.as_ref(),
            Kind::Slurm { .. } => None,
        }
    }
}

/// Returns the place that a `/proc/PID/cgroup` text names: a container or pod if any line names
/// one, else a Slurm job. Returns `None` if the text names no place.
///
/// If a path names several places, the innermost place counts. But everything in a pod belongs to
/// the pod.
pub fn place(text: &str) -> Option<Place> {
    let places = || text.lines().filter_map(path_of_line).filter_map(place_of_path);
    let is_batch = |place: &Place| matches!(place.kind, Kind::Slurm { .. });
    places().find(|place| !is_batch(place)).or_else(|| places().find(is_batch))
}

fn path_of_line(line: &str) -> Option<&str> {
    let path = line.splitn(3, ':').nth(2)?;
    let path = path.strip_suffix(REMOVED).unwrap_or(path);
    path.starts_with('/').then_some(path)
}

fn place_of_path(path: &str) -> Option<Place> {
    let components: Vec<&str> = path.split('/').collect();
    let is_users = components.get(1) == Some(&USERS);
    let mut found: Option<Place> = None;
    let mut end = 0;
    for (depth, component) in components.iter().enumerate() {
        end += component.len() + usize::from(depth > 0);
        let above = &components[..depth];
        // If containerd did not recognise a slice, slice and container are in one component,
        // separated by colons.
        let (slice, colon) = component.split_once(':').unwrap_or((component, ""));
        if let Some(uid) = pod(slice, above) {
            let path = path[..end - (component.len() - slice.len())].to_owned();
            found = Some(Place { path, kind: Kind::Pod { uid, container: None } });
        }
        let container = container(component, above).or_else(|| {
            let (runtime, id) = colon.split_once(':')?;
            container(&format!("{runtime}-{id}"), above)
        });
        match (container, &mut found) {
            (Some(inner), Some(Place { kind: Kind::Pod { container, .. }, .. })) => {
                container.get_or_insert(inner);
            }
            (Some(container), found) => {
                *found = Some(Place { path: path[..end].to_owned(), kind: Kind::Container(container) });
            }
            (None, found) => {
                if let Some(job) = job(component, above).filter(|_| !is_users) {
                    *found = Some(Place { path: path[..end].to_owned(), kind: Kind::Slurm { job } });
                }
            }
        }
    }
    found
}

/// Returns the container whose cgroup has this name, below the components `above`.
fn container(component: &str, above: &[&str]) -> Option<Container> {
    let name = component.strip_suffix(".scope").unwrap_or(component);
    let by_prefix = [
        ("docker-", Runtime::Docker),
        ("libpod-payload-", Runtime::Podman),
        ("libpod-", Runtime::Podman),
        ("cri-containerd-", Runtime::Containerd),
        ("nerdctl-", Runtime::Containerd),
        ("containerd-", Runtime::Containerd),
        ("crio-", Runtime::Crio),
    ];
    let by_parent = match above.last() {
        Some(&"docker") => Runtime::Docker,
        _ => Runtime::Unknown,
    };
    let (runtime, id) = by_prefix
        .into_iter()
        .find_map(|(prefix, runtime)| Some((runtime, name.strip_prefix(prefix)?)))
        .unwrap_or((by_parent, name));
    let is_id = id.len() == ID_DIGITS && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_id.then(|| Container { runtime, id: id.to_owned(), name: None })
}

/// Returns the uid of the pod whose cgroup has this name. The name is
/// `kubepods-burstable-podUID.slice`, or `podUID` somewhere below `kubepods`.
fn pod(component: &str, above: &[&str]) -> Option<String> {
    let uid = match component.strip_suffix(".slice") {
        Some(slice) if slice.contains("kubepods") => slice.rsplit_once("-pod")?.1,
        Some(_) => return None,
        None if above.iter().any(|component| component.contains("kubepods")) => {
            component.strip_prefix("pod")?
        }
        None => return None,
    };
    // A dash in a systemd slice's name separates levels, so the uid has underscores there.
    let uid = uid.replace('_', "-");
    let is_uid = POD_UID_DIGITS.contains(&uid.len())
        && uid.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'));
    is_uid.then_some(uid)
}

/// Returns the name of the Slurm job whose cgroup has this name.
///
/// - v1: `slurm/uid_N/job_N`; with several Slurm daemons on a host `slurm_HOST/…`
/// - v2: `slurmstepd.scope/job_N`; with several daemons `HOST_slurmstepd.scope/…`; from release
///   26.05 `slurmstepd.scope/SLUID`, unless `cgroup.conf` has `CgroupJobIdPaths=yes`
fn job(component: &str, above: &[&str]) -> Option<JobName> {
    let is_slurm = match above {
        [.., root, user] if user.starts_with("uid_") => *root == SLURM || root.starts_with(SLURM_OF_NODE),
        [.., scope] => *scope == SCOPE || scope.ends_with(SCOPE_OF_NODE),
        [] => false,
    };
    JobName::of_cgroup(component).filter(|_| is_slurm)
}

#[cfg(test)]
mod tests;
