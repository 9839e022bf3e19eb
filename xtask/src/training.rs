//! The unmodified training script, which the demo and a benchmark run as tenants.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::host::Host;
use deepres_e2e::venv::Venv;

/// The script, relative to the workspace.
pub const SCRIPT: &str = "tests/workloads/python/train.py";

/// Returns the configuration of the simulated GPU, with the times of the script's kernels.
pub fn simgpu_config() -> PathBuf {
    crate::workspace().join("tests/workloads/simgpu-demo.toml")
}

/// Returns the command `deepres run OPTIONS -- SCRIPT ARGUMENTS` on a host. The script keeps its
/// compiled kernels in the file `cache`.
pub fn run(host: &Host, venv: &Venv, options: &[&str], arguments: &[&str], cache: &Path) -> Result<Command> {
    let mut command = host.deepres(&[&venv.nvrtc()?]);
    command.arg("run").args(options).arg("--").arg(venv.python());
    command.arg(crate::workspace().join(SCRIPT)).args(arguments);
    command.env("DEV", "CUDA").env("CACHEDB", cache);
    Ok(command)
}
