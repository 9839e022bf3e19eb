//! Separates a daemon that `deepres run` started from the job: the daemon leaves the job's cgroup,
//! and gives up the job's priority, processors and limits. The daemon serves later jobs too, and
//! must not die with the first job.
//!
//! Each step can fail, because only root may take some of the steps. If a step fails, the daemon
//! goes on without it. If the daemon dies, a `deepres run` that still lives starts the next daemon.

use rustix::process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit};
use std::fs;
use std::io;
use std::mem;
use std::path::{Path, PathBuf};

/// The job's resource limits that the daemon raises again. The daemon raises its limit on
/// descriptors later, as its configuration needs.
const LIMITS: [Resource; 8] = [
    Resource::Cpu,
    Resource::Fsize,
    Resource::Data,
    Resource::Rss,
    Resource::Nproc,
    Resource::Memlock,
    Resource::As,
    Resource::Locks,
];
/// The memory policy without a rule (`MPOL_DEFAULT`).
const DEFAULT_POLICY: libc::c_int = 0;
/// The name of a cgroup that the daemon makes if a cgroup above the job may contain no processes.
const OWN_CGROUP: &str = "deepres-daemon";
/// The file of a cgroup with its processes. A process that writes 0 to the file joins the cgroup.
const PROCESSES: &str = "cgroup.procs";

/// Detaches this process from the job. The process must have only one thread.
pub fn from_job() {
    for (mount, path) in hierarchies() {
        // The cgroups above the job, the highest first.
        let above: Vec<&Path> = path.ancestors().skip(1).collect();
        let _ = above.iter().rev().any(|above| join(&mount.join(above)).is_ok());
    }
    // SAFETY: each call involves no memory but a local value, which outlives the call.
    unsafe {
        let ordinary = libc::sched_param { sched_priority: 0 };
        libc::sched_setscheduler(0, libc::SCHED_OTHER, &ordinary);
        let mut all = mem::zeroed::<libc::cpu_set_t>();
        (0..libc::CPU_SETSIZE as usize).for_each(|processor| libc::CPU_SET(processor, &mut all));
        libc::sched_setaffinity(0, size_of_val(&all), &all);
        libc::syscall(libc::SYS_set_mempolicy, DEFAULT_POLICY, std::ptr::null::<libc::c_ulong>(), 0);
    }
    let _ = setpriority_process(None, 0);
    LIMITS.into_iter().for_each(raise);
    let _ = fs::write("/proc/self/oom_score_adj", "0");
}

/// Raises a limit as far as this process may.
fn raise(limit: Resource) {
    let none = Rlimit { current: None, maximum: None };
    if setrlimit(limit, none).is_err() {
        let maximum = getrlimit(limit).maximum;
        let _ = setrlimit(limit, Rlimit { current: maximum, maximum });
    }
}

/// Returns the mounted cgroup hierarchies: each mount point, and this process's cgroup below it,
/// without a leading slash.
fn hierarchies() -> Vec<(PathBuf, PathBuf)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    own.lines().filter_map(|line| place(line, &mounts)).collect()
}

/// Returns the mount point of the hierarchy that a line of `/proc/self/cgroup` names, and the path
/// in the line.
fn place(line: &str, mounts: &str) -> Option<(PathBuf, PathBuf)> {
    // A line is `number:controllers:path`. Version 2 has no controllers.
    let (_, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    let is_it = |mount: &&str| {
        // The fields after ` - ` are the type, the source and the options. In version 1, the
        // options name the controllers.
        let (_, tail) = mount.split_once(" - ")?;
        let mut fields = tail.split(' ');
        let (kind, options) = (fields.next()?, fields.nth(1)?);
        let has = |controller: &str| options.split(',').any(|option| option == controller);
        Some(match controllers {
            "" => kind == "cgroup2",
            all => kind == "cgroup" && all.split(',').all(has),
        })
    };
    let mount = mounts.lines().find(|mount| is_it(mount) == Some(true))?;
    // The fourth field is the mounted cgroup, and the fifth is the mount point.
    let mut fields = mount.split(' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    let below = Path::new(path).strip_prefix(root).ok()?;
    Some((PathBuf::from(point), below.strip_prefix("/").unwrap_or(below).to_owned()))
}

/// Joins a cgroup. If the cgroup may contain no processes, joins a new cgroup in it.
fn join(cgroup: &Path) -> io::Result<()> {
    let enter = |cgroup: &Path| fs::write(cgroup.join(PROCESSES), "0");
    enter(cgroup).or_else(|error| {
        if error.raw_os_error() != Some(libc::EBUSY) {
            return Err(error);
        }
        let own = cgroup.join(OWN_CGROUP);
        match fs::create_dir(&own) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => enter(&own),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
30 23 0:26 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw,nsdelegate
31 23 0:27 / /sys/fs/cgroup/cpu rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
32 23 0:28 /docker/4711 /sys/fs/cgroup/pids rw,nosuid - cgroup cgroup rw,pids
";

    #[test]
    fn each_hierarchy_is_found_at_its_mount_point() {
        let found = |line| {
            let place = place(line, MOUNTS)?;
            Some([place.0, place.1].map(|path| path.display().to_string()))
        };
        let at = |point: &str, path: &str| Some([point, path].map(str::to_owned));
        assert_eq!(found("0::/user.slice/a.scope"), at("/sys/fs/cgroup/unified", "user.slice/a.scope"));
        assert_eq!(found("4:cpu,cpuacct:/"), at("/sys/fs/cgroup/cpu", ""));
        assert_eq!(found("3:pids:/docker/4711/job"), at("/sys/fs/cgroup/pids", "job"));
        assert_eq!(found("3:pids:/docker/4712"), None, "above the mount");
        assert_eq!(found("2:memory:/a"), None, "not mounted");
        assert_eq!(found("garbage"), None);
    }
}
