//! Checks of the machine: preloading, confinement and containers.

use super::Check;
use crate::run::find_interposer;
use deepres_model::admin::client::Client;
use std::path::Path;
use std::process::{Command, Stdio};

/// File with libraries that the dynamic linker loads into every process.
const PRELOADS: &str = "/etc/ld.so.preload";
const LIBRARY: &str = "libdeepres.so";
/// Directories with descriptions of CDI devices.
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
        Err(error) => Check::advice(
            "daemon",
            error.to_string(),
            "`deepres run` starts a daemon; `systemctl enable --now deepres` keeps a daemon for all users",
        ),
    }
}

fn preload() -> Check {
    let everywhere = std::fs::read_to_string(PRELOADS).unwrap_or_default();
    if everywhere.contains(LIBRARY) {
        return Check::advice(
            "preload",
            format!("{PRELOADS} loads {LIBRARY} into every process of this machine"),
            "if you do not want this, remove the line and use `deepres run`",
        );
    }
    let missing: Vec<_> = everywhere
        .split(|c: char| c.is_whitespace() || c == ':')
        .filter(|file| file.starts_with('/') && !Path::new(file).exists())
        .collect();
    if !missing.is_empty() {
        return Check::limited(
            "preload",
            format!("{PRELOADS} names {}, which does not exist", missing.join(", ")),
            "remove the line: every program prints a complaint",
        );
    }
    match find_interposer() {
        Ok(place) => match complaint(&place) {
            None => Check::good("preload", format!("{} loads", place.display())),
            Some(complaint) => Check::bad(
                "preload",
                format!("{} does not load: {complaint}", place.display()),
                "install the library that belongs to this program and machine (`cargo xtask dist` builds both)",
            ),
        },
        Err(error) => Check::bad(
            "preload",
            error.to_string(),
            "install deepres by a package, or put the library beside this program",
        ),
    }
}

/// Returns the dynamic linker's complaint about a program with the interposer preloaded; `None`
/// without a complaint.
fn complaint(library: &Path) -> Option<String> {
    let mut program = Command::new(std::env::current_exe().ok()?);
    // With `--version`, the program ends before it does anything. This check leaves out other
    // preloaded libraries.
    let started = program.arg("--version").env("LD_PRELOAD", library).stdin(Stdio::null()).output();
    match started {
        Err(error) => Some(error.to_string()),
        Ok(output) if output.status.success() && output.stderr.is_empty() => None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Some(if said.is_empty() {
                format!("a program with the library ends with {}", output.status)
            } else {
                said
            })
        }
    }
}

fn selinux() -> Check {
    match std::fs::read_to_string("/sys/fs/selinux/enforce").as_deref().map(str::trim) {
        Ok("1") => Check::advice(
            "selinux",
            "enforcing: SELinux may keep confined services and containers from the library or the daemon's socket",
            "if `ausearch -m avc -c PROGRAM` shows a denial: `audit2allow -M deepres`, or label the library lib_t (`restorecon`)",
        ),
        Ok(_) => Check::good("selinux", "permissive"),
        Err(_) => Check::good("selinux", "off"),
    }
}

fn apparmor() -> Check {
    match std::fs::read_to_string("/sys/module/apparmor/parameters/enabled").as_deref().map(str::trim) {
        Ok("Y") => Check::advice(
            "apparmor",
            "on: AppArmor may keep confined programs from the library or the daemon's socket",
            "if the kernel's log shows DENIED: allow `libdeepres.so mr` and the daemon's directory `rw` in the program's profile",
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
        Check::good("containers", format!("{runtimes}; a CDI specification describes deepres' devices"))
    } else {
        Check::advice(
            "containers",
            format!("{runtimes}; no CDI specification describes a device of deepres"),
            "run `deepres cdi generate`",
        )
    }
}
