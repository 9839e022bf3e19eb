//! Installs the programs and libraries that the tests need on the machine.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use deepres_e2e::venv;

use crate::command;

/// Commands that the tests call, each in the package of its name. g++ compiles the host code for
/// nvcc. The other commands make and run containers.
const TOOLS: [&str; 4] = ["g++", "podman", "runc", "debootstrap"];
/// Commands that only the deep track calls, as in [`TOOLS`].
const DEEP_TOOLS: [&str; 2] = ["chromium", "prometheus"];
/// Packages that only the deep track needs, each with a file of the package. The programs of Slurm
/// and MUNGE are in packages of other names.
const DEEP_PACKAGES: [(&str, &str); 4] = [
    ("slurmctld", "/usr/sbin/slurmctld"),
    ("slurmd", "/usr/sbin/slurmd"),
    ("slurm-client", "/usr/bin/scontrol"),
    ("munge", "/usr/sbin/munged"),
];
/// The folder into which Debian puts libraries.
const LIBRARY_FOLDER: &str = "/usr/lib/x86_64-linux-gnu";
/// Packages and their libraries. The tests preload the first four beside the interposer, because
/// users preload such libraries. musl is another C library.
const LIBRARIES: [(&str, &str); 5] = [
    ("libasan8", "libasan.so.8"),
    ("libeatmydata1", "libeatmydata.so"),
    ("libfaketime", "faketime/libfaketimeMT.so.1"),
    ("libjemalloc2", "libjemalloc.so.2"),
    ("musl", "/lib/ld-musl-x86_64.so.1"),
];

/// Installs the needs that a machine with a Rust toolchain can lack. The needs leave out a C
/// compiler, because rustc already needs a C compiler to link.
pub fn install(is_deep: bool) -> Result<()> {
    let mut lacking = Vec::new();
    if !venv::can_create() {
        lacking.extend(["python3", "python3-venv"]);
    }
    let deep = DEEP_TOOLS.into_iter().filter(|_| is_deep);
    lacking.extend(TOOLS.into_iter().chain(deep).filter(|tool| !is_there(tool)));
    let files = LIBRARIES.into_iter().chain(DEEP_PACKAGES.into_iter().filter(|_| is_deep));
    let libraries = files.filter(|(_, file)| !Path::new(LIBRARY_FOLDER).join(file).exists());
    lacking.extend(libraries.map(|(package, _)| package));
    if lacking.is_empty() {
        return Ok(());
    }
    let packages = lacking.join(" ");
    if !rustix::process::geteuid().is_root() {
        bail!("the tests need more packages; run `apt-get install {packages}`");
    }
    let mut update = Command::new("apt-get");
    command::prepare(update.arg("update")).with_context(|| format!("the tests need {packages}"))?;
    let mut install = Command::new("apt-get");
    install.args(["install", "--yes", "--no-install-recommends"]).args(lacking);
    command::prepare(install.env("DEBIAN_FRONTEND", "noninteractive"))
}

fn is_there(tool: &str) -> bool {
    let mut command = Command::new(tool);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
