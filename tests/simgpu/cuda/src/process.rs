//! State of this process as a user of the virtual GPUs: attached or not, forked or not, and its
//! visible GPUs.
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Once, OnceLock};

use simgpu_engine::{Config, Host, faults};

use crate::ipc;
use crate::mps;
use crate::status::{self, Result, Status};

const FRESH: u8 = 0;
const READY: u8 = 1;
const FORKED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(FRESH);
static PROCESS: OnceLock<std::result::Result<Process, Status>> = OnceLock::new();
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The state of the driver in this process: the virtual host, and the GPUs that the process sees.
pub struct Process {
    host: Host,
    /// Engine index of each visible GPU, by ordinal.
    visible: Vec<usize>,
}

/// Attaches to the virtual GPUs (cuInit). As with a real driver, no call works in a forked child of
/// a process that has attached.
pub fn initialise() -> Result<()> {
    match STATE.load(Ordering::Acquire) {
        READY => return Ok(()),
        FORKED => return Err(status::NOT_INITIALIZED),
        _ => {}
    }
    PROCESS.get_or_init(attach).as_ref().map_err(|code| *code)?;
    static SWEPT: Once = Once::new();
    SWEPT.call_once(ipc::sweep);
    STATE.store(READY, Ordering::Release);
    Ok(())
}

fn attach() -> std::result::Result<Process, Status> {
    let explain = |error: simgpu_engine::Error| {
        eprintln!("simgpu: {error}");
        status::NO_DEVICE
    };
    faults::init().map_err(|error| {
        eprintln!("simgpu: {error}");
        status::INVALID_VALUE
    })?;
    let host = Host::attach().map_err(explain)?;
    mps::join(&host)?;
    // SAFETY: the handler only stores to an atomic, which is safe between fork and exec.
    unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
    let visible = match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(list) => select(&list, host.gpu_count(), |gpu| {
            let text = uuid_text(host.uuid(gpu));
            if host.config().mig { text.replacen("GPU-", "MIG-", 1) } else { text }
        }),
        Err(_) => (0..host.gpu_count()).collect(),
    };
    status::refuse_as(visible.is_empty(), status::NO_DEVICE)?;
    Ok(Process { host, visible })
}

extern "C" fn after_fork_in_child() {
    STATE.store(FORKED, Ordering::Release);
}

/// Returns an error if the process is not attached, or is a forked child. Every function that needs
/// cuInit calls this function first.
#[inline]
pub fn check_ready() -> Result<()> {
    if STATE.load(Ordering::Acquire) == READY { Ok(()) } else { Err(status::NOT_INITIALIZED) }
}

fn process() -> &'static Process {
    match PROCESS.get() {
        Some(Ok(process)) => process,
        _ => unreachable!("the entry of every function that comes here has checked that cuInit succeeded"),
    }
}

/// Returns the virtual GPUs.
#[inline]
pub fn host() -> &'static Host {
    &process().host
}

/// Returns the configuration of the virtual GPUs.
pub fn config() -> &'static Config {
    process().host.config()
}

/// Returns the number of visible GPUs.
pub fn device_count() -> usize {
    process().visible.len()
}

/// Returns the engine's index of the device with this ordinal.
pub fn gpu_of(device: i32) -> Result<usize> {
    usize::try_from(device)
        .ok()
        .and_then(|at| process().visible.get(at))
        .copied()
        .ok_or(status::INVALID_DEVICE)
}

/// Returns a number that no other object of this process has.
pub fn next_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// Returns `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, as nvidia-smi prints it.
pub fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = String::from("GPU-");
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// Selects GPUs by `CUDA_VISIBLE_DEVICES`: ordinals or (beginnings of) UUIDs. Stops at the first
/// entry that names no GPU.
fn select(list: &str, count: usize, uuid: impl Fn(usize) -> String) -> Vec<usize> {
    let find = |entry: &str| match entry.parse::<usize>() {
        Ok(ordinal) => Some(ordinal).filter(|ordinal| *ordinal < count),
        Err(_) if entry.starts_with("GPU-") || entry.starts_with("MIG-") => {
            (0..count).find(|gpu| uuid(*gpu).starts_with(entry))
        }
        Err(_) => None,
    };
    let mut chosen = Vec::new();
    for gpu in list.split(',').map(|entry| find(entry.trim())) {
        match gpu {
            Some(gpu) if !chosen.contains(&gpu) => chosen.push(gpu),
            Some(_) => return Vec::new(),
            None => break,
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(list: &str) -> Vec<usize> {
        select(list, 4, |gpu| format!("GPU-{gpu}{gpu}{gpu}{gpu}-rest"))
    }

    #[test]
    fn visible_devices_are_taken_in_the_order_given_until_one_is_unknown() {
        assert_eq!(chosen("2,0"), [2, 0]);
        assert_eq!(chosen("GPU-33, GPU-0000-rest"), [3, 0]);
        assert_eq!(chosen("1,9,2"), [1]);
        assert_eq!(chosen("1,-1,2"), [1]);
        assert_eq!(chosen(""), []);
        assert_eq!(chosen("1,1"), []);
    }

    #[test]
    fn a_uuid_is_printed_as_the_tools_print_it() {
        let bytes = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255];
        assert_eq!(uuid_text(bytes), "GPU-00010203-0405-0607-0809-0a0b0c0d0eff");
    }
}
