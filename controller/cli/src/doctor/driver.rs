//! Checks of the NVIDIA driver, its devices, its GPUs and of MPS.

use super::{Check, file};
use crate::mps;
use deepres_daemon::{Closed, ComputeMode, Gpu};
use rustix::fs::{Access, access};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// File in which the kernel driver gives its version.
const VERSION: &str = "/proc/driver/nvidia/version";

/// The device by which WSL2 hands calls on to the driver of Windows.
const WSL_DEVICE: &str = "/dev/dxg";
const DRIVER_LIBRARY: &str = "libcuda.so.1";
/// Every driver with checkpoint functions has this function.
const CHECKPOINT: &str = "cuCheckpointProcessLock";
/// Message about a driver without checkpoint functions.
pub const NO_CHECKPOINTS: &str = "the NVIDIA driver has no checkpoint API (release 570 and newer have it)";

/// Remedy for a machine on which deepres charges allocations alone.
const LEAVE_ROOM: &str = "give jobs memory limits that leave room for contexts and code";

pub fn checks() -> Vec<Check> {
    // A driver that cannot be read cannot be loaded either.
    let of_file = library().and_then(|path| file::checks(&path).ok()).unwrap_or_default();
    let always = [module(), gpus(), devices(), mps()];
    let others = [mps_clients(), compute_mode(), process_memory(), checkpoints()].into_iter().flatten();
    always.into_iter().chain(others).chain(of_file).collect()
}

/// Returns the file of the driver that programs find; `None` if they find none. Another process
/// loads the driver, so that the driver is never in this process.
fn library() -> Option<PathBuf> {
    let mut program = Command::new(std::env::current_exe().ok()?);
    program.args(["has-library", DRIVER_LIBRARY]).stdin(Stdio::null()).stderr(Stdio::null());
    let output = program.output().ok().filter(|output| output.status.success())?;
    Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
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
        Check::good("checkpoints", "the daemon can suspend tenants with their memory")
    } else {
        Check::limited(
            "checkpoints",
            format!("{NO_CHECKPOINTS}, so the daemon cannot suspend tenants"),
            "install a newer driver, or give tenants that need more memory `--oversubscribe managed`",
        )
    })
}

fn module() -> Check {
    match std::fs::read_to_string(VERSION) {
        Ok(text) => Check::good("driver", text.lines().next().unwrap_or_default().trim().to_owned()),
        Err(_) if Path::new(WSL_DEVICE).exists() => Check::advice(
            "driver",
            "WSL2: the driver is in Windows. NVML tells no memory of processes there, so deepres charges allocations alone; the probes see no calls to the driver",
            LEAVE_ROOM,
        ),
        Err(_) => Check::limited(
            "driver",
            format!("NVIDIA's kernel driver is not loaded: {VERSION} does not exist"),
            "install the driver, or run `modprobe nvidia` (a simulated GPU needs no driver)",
        ),
    }
}

fn gpus() -> Check {
    match Gpu::all() {
        Ok(gpus) => {
            let (lost, well): (Vec<_>, Vec<_>) = gpus.iter().enumerate().partition(|(_, gpu)| gpu.is_lost);
            let names = well.iter().map(|(_, gpu)| format!("{} ({})", gpu.name, gpu.uuid_text));
            let names = names.collect::<Vec<_>>().join(", ");
            if lost.is_empty() {
                return Check::good("gpus", names);
            }
            let lost: Vec<_> = lost.iter().map(|(number, _)| number.to_string()).collect();
            Check::limited(
                "gpus",
                format!("{names}; NVML tells nothing of GPU {}", lost.join(", ")),
                "reset the GPU (`nvidia-smi --gpu-reset`), and restart the daemon",
            )
        }
        Err(error) => Check::bad(
            "gpus",
            error.to_string(),
            "install the GPU's driver, and run `nvidia-smi` to check it",
        ),
    }
}

/// Checks whether the compute modes of the GPUs let several processes in. Returns `None` without a
/// GPU.
fn compute_mode() -> Option<Check> {
    const NAME: &str = "compute mode";
    let gpus = Gpu::all().ok()?;
    let is_exclusive = gpus.iter().any(|gpu| gpu.compute_mode == ComputeMode::ExclusiveProcess);
    Some(match Gpu::closed(&gpus, mps::running().is_some()) {
        Some(Closed { found, remedy, are_all: true }) => Check::bad(NAME, found, remedy),
        Some(Closed { found, remedy, are_all: false }) => Check::limited(NAME, found, remedy),
        None if is_exclusive => {
            Check::good(NAME, "the clients of MPS share the GPUs in EXCLUSIVE_PROCESS mode")
        }
        None => Check::good(NAME, "several processes can use each GPU"),
    })
}

/// Checks whether NVML tells the memory of processes. Returns `None` without a GPU, and under WSL2,
/// where the check of the driver says that NVML does not.
fn process_memory() -> Option<Check> {
    const NAME: &str = "process memory";
    if Path::new(WSL_DEVICE).exists() {
        return None;
    }
    let gpus = Gpu::all().ok()?;
    let tells = Gpu::tells_process_memory(&gpus);
    if tells.is_empty() {
        return Some(Check::good(NAME, "not known, because no process uses a GPU"));
    }
    let silent = tells.iter().filter(|(_, tells)| !**tells).filter_map(|(place, _)| gpus.get(*place));
    let names: Vec<_> = silent.map(|gpu| format!("{} ({})", gpu.name, gpu.uuid_text)).collect();
    if names.is_empty() {
        return Some(Check::good(NAME, "NVML tells the memory of processes"));
    }
    let found = format!(
        "NVML tells no memory of processes on {}, as on a vGPU, so deepres charges allocations alone",
        names.join(", ")
    );
    Some(Check::limited(NAME, found, LEAVE_ROOM))
}

fn devices() -> Check {
    let nodes: &[&str] = match Path::new(WSL_DEVICE).exists() {
        true => &[WSL_DEVICE],
        false => &["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"],
    };
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
            format!("this user may not open {}", closed.join(", ")),
            "ask an administrator for access (on some distributions: membership of group video)",
        );
    }
    if missing.is_empty() {
        return Check::good("devices", nodes.join(", "));
    }
    Check::limited(
        "devices",
        format!("{} missing", missing.join(", ")),
        "run `nvidia-modprobe -c 0 -u`, which creates them (a simulated GPU needs no devices)",
    )
}

/// Checks whether NVML tells the clients of MPS. Returns `None` if NVML does, or if no MPS runs.
fn mps_clients() -> Option<Check> {
    mps::running()?;
    let gpus = Gpu::all().ok()?;
    let untold = Gpu::without_mps_clients(&gpus).into_iter().filter_map(|place| gpus.get(place));
    let names: Vec<_> = untold.map(|gpu| format!("{} ({})", gpu.name, gpu.uuid_text)).collect();
    if names.is_empty() {
        return None;
    }
    let found = format!(
        "NVML does not tell the clients of MPS on {}, so the daemon believes each process that reports a part of the SMs",
        names.join(", ")
    );
    Some(Check::limited(
        "mps clients",
        found,
        "set `mps = \"off\"` in deepres.toml if users do not trust each other",
    ))
}

fn mps() -> Check {
    match mps::running() {
        Some(pipes) => Check::advice(
            "mps",
            format!(
                "MPS runs ({}): a fatal fault of one of its clients ends all other clients, with deepres or without",
                pipes.display()
            ),
            "deepres needs MPS only for `deepres run --sm`; if no program needs it, run `echo quit | nvidia-cuda-mps-control`, and leave out `mps = \"start\"` in deepres.toml",
        ),
        None => Check::good("mps", "does not run"),
    }
}
