//! Which container, pod or batch job a process is in, from the text of `/proc/PID/cgroup`.
//!
//! Container runtimes and Slurm name a process's cgroups after what they run, and a process can be moved into other cgroups only by
//! whoever may write to them. Under `user.slice` that is the user: what is named there belongs to that user alone, so two tenants are
//! the same only if the whole path is ([`Place::path`]), and a batch job, which root's Slurm daemon makes, is not looked for there.
//!
//! A line is `hierarchy:controllers:path`. There is one with hierarchy 0 for cgroup v2 and one for each hierarchy of v1. No path
//! has a line break in it: the kernel refuses to make a cgroup of such a name.

use deepres_model::identity::{Container, Runtime};

/// Digits of a container's id.
const ID_DIGITS: usize = 64;
/// A pod's uid: a UUID, or for a static pod the hash of its file.
const POD_UID_DIGITS: std::ops::RangeInclusive<usize> = 32..=36;
/// Digits of a batch job's number, at most.
const MAX_JOB_DIGITS: usize = 10;
/// What the kernel writes behind the path of a cgroup that was removed.
const REMOVED: &str = " (deleted)";
/// Where systemd keeps what users may arrange themselves.
const USERS: &str = "user.slice";

/// What a process runs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A container by itself.
    Container(Container),
    /// A Kubernetes pod.
    Pod {
        /// Its uid.
        uid: String,
        /// The container in it.
        container: Option<Container>,
    },
    /// A Slurm job; its steps belong to it.
    Slurm {
        /// Its number.
        job: u32,
    },
}

/// A container, pod or batch job, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its cgroup, as the reader of `/proc` sees it.
    pub path: String,
    /// What it is.
    pub kind: Kind,
}

impl Place {
    /// A name for people.
    pub fn name(&self) -> String {
        match &self.kind {
            Kind::Container(container) => format!("{}-{}", container.runtime.name(), container.short_id()),
            Kind::Pod { uid, .. } => format!("pod-{uid}"),
            Kind::Slurm { job } => format!("slurm-{job}"),
        }
    }

    /// The container, if it is or has one.
    pub fn container(&self) -> Option<&Container> {
        match &self.kind {
            Kind::Container(container) => Some(container),
            Kind::Pod { container, .. } => container.as_ref(),
            Kind::Slurm { .. } => None,
        }
    }
}

/// The place that the text of a `/proc/PID/cgroup` names: a container or pod if any line names one, else a Slurm job.
///
/// Of several in one path it is the innermost, except that what runs in a pod is the pod's.
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
        // Below a slice that containerd did not know for one, both are in one component.
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

/// The container that a cgroup of this name, below `above`, is.
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
    is_id.then(|| Container { runtime, id: id.to_owned() })
}

/// The uid of the pod that a cgroup of this name is: `kubepods-burstable-podUID.slice`, or `podUID` somewhere below `kubepods`.
fn pod(component: &str, above: &[&str]) -> Option<String> {
    let uid = match component.strip_suffix(".slice") {
        Some(slice) if slice.contains("kubepods") => slice.rsplit_once("-pod")?.1,
        Some(_) => return None,
        None if above.iter().any(|component| component.contains("kubepods")) => {
            component.strip_prefix("pod")?
        }
        None => return None,
    };
    // systemd takes a dash in a slice's name for a step down, so there they are underscores.
    let uid = uid.replace('_', "-");
    let is_uid = POD_UID_DIGITS.contains(&uid.len())
        && uid.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'));
    is_uid.then_some(uid)
}

/// The number of the Slurm job that a cgroup of this name is: `slurm/uid_N/job_N` (v1; with several Slurm daemons on a host
/// `slurm_HOST`), or `slurmstepd.scope/job_N` (v2; `HOST_slurmstepd.scope`).
fn job(component: &str, above: &[&str]) -> Option<u32> {
    let digits = component.strip_prefix("job_")?;
    let is_slurm = match above {
        [.., root, user] if user.starts_with("uid_") => *root == "slurm" || root.starts_with("slurm_"),
        [.., scope] => *scope == "slurmstepd.scope" || scope.ends_with("_slurmstepd.scope"),
        [] => false,
    };
    let is_number = digits.len() <= MAX_JOB_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_slurm && is_number { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests;
