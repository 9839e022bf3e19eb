//! Checks of the NVIDIA driver, its devices, its GPUs and of MPS.

use super::Check;
use deepres_daemon::Gpu;
use rustix::fs::{Access, access};
use std::path::Path;
use std::process::{Command, Stdio};

/// File in which the kernel driver gives its version.
const VERSION: &str = "/proc/driver/nvidia/version";
/// Directory of the pipes of MPS, unless the environment names another.
const MPS_PIPES: &str = "/tmp/nvidia-mps";
const MPS_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";

const DRIVER_LIBRARY: &str = "libcuda.so.1";
/// Every driver with checkpoint functions has this function.
const CHECKPOINT: &str = "cuCheckpointProcessLock";
/// Message about a driver without checkpoint functions.
pub const NO_CHECKPOINTS: &str = "the NVIDIA driver has no checkpoint API (it came with release 570)";

pub fn checks() -> Vec<Check> {
    [module(), gpus(), devices(), mps()].into_iter().chain(checkpoints()).collect()
}

/// Returns whether the driver that programs find can move a process with its memory off the GPU.
/// Returns `None` if programs find no driver. Another process loads the driver, so that the driver
/// is never in this process.
pub fn has_checkpoints() -> Option<bool> {
    let has = |options: &[&str]| {
        let mut program = Command::new(std::env::current_exe().ok()?);
        program.args(["has-library", DRIVER_LIBRARY]).args(options);
        let silent = program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Some(silent.status().ok()?.success())
    };
    if has(&[])? { has(&["--with", CHECKPOINT]) } else { None }
}

fn checkpoints() -> Option<Check> {
    Some(if has_checkpoints()? {
        Check::good("checkpoints", "tenants can be suspended with their memory")
    } else {
        Check::limited(
            "checkpoints",
            format!("{NO_CHECKPOINTS}: tenants cannot be suspended"),
            "a newer driver, or `--oversubscribe managed` for tenants that need more memory than there is",
        )
    })
}

fn module() -> Check {
    match std::fs::read_to_string(VERSION) {
        Ok(text) => Check::good("driver", text.lines().next().unwrap_or_default().trim().to_owned()),
        Err(_) => Check::limited(
            "driver",
            format!("{VERSION} is not there: NVIDIA's kernel driver is not loaded"),
            "install the driver, or `modprobe nvidia` (a simulated GPU needs none)",
        ),
    }
}

fn gpus() -> Check {
    match Gpu::all() {
        Ok(gpus) => {
            let names: Vec<_> = gpus.iter().map(|gpu| format!("{} ({})", gpu.name, gpu.uuid_text)).collect();
            Check::good("gpus", names.join(", "))
        }
        Err(error) => Check::bad("gpus", error.to_string(), "a GPU and its driver have to be there"),
    }
}

fn devices() -> Check {
    let nodes = ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"];
    let missing: Vec<_> = nodes.iter().filter(|node| !Path::new(node).exists()).copied().collect();
    let closed: Vec<_> = nodes
        .iter()
        .filter(|node| {
            Path::new(node).exists() && access(**node, Access::READ_OK | Access::WRITE_OK).is_err()
        })
        .copied()
        .collect();
    if !closed.is_empty() {
        return Check::limited(
            "devices",
            format!("{} may not be opened by this user", closed.join(", ")),
            "ask for access to them (group video on some distributions)",
        );
    }
    if missing.is_empty() {
        return Check::good("devices", nodes.join(", "));
    }
    Check::limited(
        "devices",
        format!("{} not there", missing.join(", ")),
        "`nvidia-modprobe -c 0 -u` makes them (a simulated GPU needs none)",
    )
}

fn mps() -> Check {
    let pipes = std::env::var(MPS_VARIABLE).unwrap_or_else(|_| MPS_PIPES.to_owned());
    if Path::new(&pipes).join("control").exists() {
        Check::advice(
            "mps",
            format!(
                "MPS runs ({pipes}): a fatal fault of one of its clients ends the others, with deepres or without"
            ),
            "`echo quit | nvidia-cuda-mps-control` ends it, if nobody needs it: deepres does not",
        )
    } else {
        Check::good("mps", "does not run")
    }
}
