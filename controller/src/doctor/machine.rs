//! What the machine does to preloading, to confined processes and to containers.

use super::Check;
use crate::admin::client::Client;
use std::path::{Path, PathBuf};

/// Libraries that the linker loads into every process.
const PRELOADS: &str = "/etc/ld.so.preload";
const LIBRARY: &str = "libdeepres.so";
/// Where CDI devices are described.
const CDI_FOLDERS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
const RUNTIMES: [&str; 5] = ["podman", "docker", "nerdctl", "containerd", "crio"];

pub fn checks() -> Vec<Check> {
    vec![daemon(), preload(), selinux(), apparmor(), containers()]
}

fn daemon() -> Check {
    match Client::connect().and_then(|mut client| client.status()) {
        Ok(status) => Check::good(
            "daemon",
            format!(
                "{} (deepres {}) in {}; probes {}",
                status.daemon.pid, status.daemon.version, status.daemon.directory, status.probes.state
            ),
        ),
        Err(error) => Check::note("daemon", error.to_string()),
    }
}

fn preload() -> Check {
    let everywhere = std::fs::read_to_string(PRELOADS).unwrap_or_default();
    if everywhere.contains(LIBRARY) {
        return Check::note(
            "preload",
            format!("{PRELOADS} loads {LIBRARY} into every process of this machine"),
        );
    }
    let missing: Vec<_> = everywhere
        .split(|c: char| c.is_whitespace() || c == ':')
        .filter(|file| file.starts_with('/') && !Path::new(file).exists())
        .collect();
    if !missing.is_empty() {
        return Check::limited(
            "preload",
            format!("{PRELOADS} names {}, which is not there", missing.join(", ")),
            "remove it: every program complains",
        );
    }
    let program = std::env::current_exe().ok();
    let beside = program.as_deref().and_then(Path::parent).map(|folder| folder.join(LIBRARY));
    let places = [beside, Some(PathBuf::from("/usr/lib/deepres").join(LIBRARY))];
    match places.into_iter().flatten().find(|place| place.is_file()) {
        Some(place) => Check::good("preload", place.display().to_string()),
        None => Check::bad(
            "preload",
            format!("{LIBRARY} is neither beside this program nor in /usr/lib/deepres"),
            "put it there, or name it by DEEPRES_LIBRARY",
        ),
    }
}

fn selinux() -> Check {
    match std::fs::read_to_string("/sys/fs/selinux/enforce").as_deref().map(str::trim) {
        Ok("1") => Check::note(
            "selinux",
            "enforcing: confined services and containers may need a rule to read the library and to connect to the daemon's socket",
        ),
        Ok(_) => Check::good("selinux", "permissive"),
        Err(_) => Check::good("selinux", "off"),
    }
}

fn apparmor() -> Check {
    match std::fs::read_to_string("/sys/module/apparmor/parameters/enabled").as_deref().map(str::trim) {
        Ok("Y") => Check::note(
            "apparmor",
            "on: confined programs may need a rule to read the library and to connect to the daemon's socket",
        ),
        _ => Check::good("apparmor", "off"),
    }
}

fn containers() -> Check {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &&str| std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
    let runtimes: Vec<_> = RUNTIMES.into_iter().filter(|name| is_there(name)).collect();
    if runtimes.is_empty() {
        return Check::good("containers", "no container runtime is installed");
    }
    let specs = CDI_FOLDERS.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    let is_described = specs
        .filter_map(|spec| std::fs::read_to_string(spec.path()).ok())
        .any(|spec| spec.contains("deepres"));
    let runtimes = runtimes.join(", ");
    if is_described {
        Check::good("containers", format!("{runtimes}; deepres' devices are described"))
    } else {
        Check::note(
            "containers",
            format!("{runtimes}; no CDI device of deepres is described (`deepres cdi generate`)"),
        )
    }
}
