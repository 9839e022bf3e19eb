//! `deepres away PID…`, for the daemon alone: takes processes off the GPUs by the driver's checkpoint API, keeps them there until it is told
//! otherwise or the daemon is gone, and brings them back.
//!
//! The daemon links no CUDA, and its end must not leave processes away for ever: so this is a process of its own, whose input ends with
//! the daemon. It says `away` once they are; `back` in its input, or the input's end, brings them back, which it confirms by `back`.
//! While the GPU has no room it says `no room`, and the processes stay away until it is told again, or by itself tries again.
//! `--back` begins with bringing back, whatever state the processes are in: who kept them is gone. If processes that could not be taken off
//! could not be let go either it says `lost`.

use crate::doctor::NO_CHECKPOINTS;
use anyhow::{Context, Result, anyhow, bail};
use deepres_abi::driver::result::{
    CUDA_ERROR_NOT_FOUND, CUDA_ERROR_NOT_READY, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OUT_OF_MEMORY,
    CUDA_SUCCESS,
};
use deepres_abi::driver::types::{CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_RUNNING, CUprocessState};
use deepres_abi::driver::{pfn, result};
use std::ffi::{CStr, c_void};
use std::io::{BufRead, Write};
use std::ptr::null_mut;
use std::time::Duration;

const DRIVER_LIBRARY: &CStr = c"libcuda.so.1";
/// How long a process may take to come to a point at which it can be taken off.
const LOCK_LIMIT_MS: u32 = 10_000;
/// Between two attempts to bring processes back whose daemon is gone.
const RETRY: Duration = Duration::from_millis(200);

#[derive(Debug, clap::Args)]
pub struct Args {
    /// They are off the GPUs, or on their way: begin by bringing them back
    #[arg(long)]
    back: bool,
    /// The processes
    #[arg(required = true)]
    pids: Vec<i32>,
}

/// `CUcheckpointLockArgs`.
#[repr(C)]
struct LockArgs {
    timeout_ms: u32,
    reserved: [u32; 15],
}

/// The driver's functions for this.
struct Driver {
    lock: pfn::cuCheckpointProcessLock,
    checkpoint: pfn::cuCheckpointProcessCheckpoint,
    restore: pfn::cuCheckpointProcessRestore,
    unlock: pfn::cuCheckpointProcessUnlock,
    state: pfn::cuCheckpointProcessGetState,
}

/// Why processes are not back.
enum NotBack {
    /// Others have the memory.
    NoRoom,
    /// Something else.
    Failed(anyhow::Error),
}

/// Does as the module says.
pub fn run(args: &Args) -> Result<()> {
    let driver = Driver::load()?;
    let mut is_told = args.back;
    if !args.back {
        driver.take_off(&args.pids)?;
        say("away")?;
    }
    let mut lines = std::io::stdin().lock().lines();
    let mut has_daemon = true;
    loop {
        if has_daemon && !std::mem::take(&mut is_told) {
            has_daemon = matches!(lines.next(), Some(Ok(_)));
        }
        match driver.bring_back(&args.pids) {
            Ok(()) => {
                // Nobody may be left to hear it.
                let _ = say("back");
                return Ok(());
            }
            Err(NotBack::Failed(error)) => return Err(error),
            Err(NotBack::NoRoom) if has_daemon => say("no room")?,
            Err(NotBack::NoRoom) => std::thread::sleep(RETRY),
        }
    }
}

fn say(word: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{word}").and_then(|()| out.flush()).context("the daemon does not listen")
}

impl Driver {
    fn load() -> Result<Self> {
        // SAFETY: loading a driver library runs its initialisers, as it does in every client.
        let library = unsafe { libc::dlopen(DRIVER_LIBRARY.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            bail!(
                "cannot load libcuda.so.1: is the NVIDIA driver installed where the daemon looks for libraries?"
            );
        }
        macro_rules! function {
            ($name:ident) => {{
                let name = concat!(stringify!($name), "\0");
                // SAFETY: the library is open and the name ends with a NUL.
                let address = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
                if address.is_null() {
                    bail!("{NO_CHECKPOINTS}: tenants cannot be suspended here");
                }
                // SAFETY: the symbol of this name has this type in every driver.
                unsafe { std::mem::transmute::<*mut c_void, pfn::$name>(address) }
            }};
        }
        let initialise = function!(cuInit);
        let driver = Self {
            lock: function!(cuCheckpointProcessLock),
            checkpoint: function!(cuCheckpointProcessCheckpoint),
            restore: function!(cuCheckpointProcessRestore),
            unlock: function!(cuCheckpointProcessUnlock),
            state: function!(cuCheckpointProcessGetState),
        };
        // SAFETY: no memory is involved.
        match unsafe { initialise(0) } {
            CUDA_SUCCESS => Ok(driver),
            code => bail!("the NVIDIA driver does not start ({}): does `nvidia-smi` work?", name(code)),
        }
    }

    /// Takes all off, or none.
    fn take_off(&self, pids: &[i32]) -> Result<()> {
        for (at, pid) in pids.iter().enumerate() {
            let mut limit = LockArgs { timeout_ms: LOCK_LIMIT_MS, reserved: [0; 15] };
            // SAFETY: the arguments live across the call and are what the API documents.
            let code = unsafe { (self.lock)(*pid, (&raw mut limit).cast()) };
            if code != CUDA_SUCCESS {
                self.undo(&[], &pids[..at])?;
                return Err(refusal("lock", *pid, code));
            }
        }
        for (at, pid) in pids.iter().enumerate() {
            // SAFETY: the arguments are optional.
            let code = unsafe { (self.checkpoint)(*pid, null_mut()) };
            if code != CUDA_SUCCESS {
                self.undo(&pids[..at], pids)?;
                return Err(refusal("checkpoint", *pid, code));
            }
        }
        Ok(())
    }

    /// Back to where it was; says so if that fails.
    fn undo(&self, checkpointed: &[i32], locked: &[i32]) -> Result<()> {
        let mut is_done = true;
        for pid in checkpointed {
            // SAFETY: the arguments are optional.
            is_done &= unsafe { (self.restore)(*pid, null_mut()) } == CUDA_SUCCESS || !is_alive(*pid);
        }
        for pid in locked {
            // SAFETY: as above.
            is_done &= unsafe { (self.unlock)(*pid, null_mut()) } == CUDA_SUCCESS || !is_alive(*pid);
        }
        if is_done { Ok(()) } else { say("lost") }
    }

    /// Brings all back that still live, or none.
    fn bring_back(&self, pids: &[i32]) -> Result<(), NotBack> {
        let living = || pids.iter().copied().filter(|pid| is_alive(*pid));
        let mut restored = Vec::new();
        for pid in living().filter(|pid| self.is_in(*pid, CU_PROCESS_STATE_CHECKPOINTED)) {
            // SAFETY: the arguments are optional.
            let code = unsafe { (self.restore)(pid, null_mut()) };
            if code == CUDA_SUCCESS {
                restored.push(pid);
                continue;
            }
            if !is_alive(pid) {
                continue;
            }
            for pid in restored {
                // SAFETY: as above.
                unsafe { (self.checkpoint)(pid, null_mut()) };
            }
            return Err(match code {
                CUDA_ERROR_OUT_OF_MEMORY => NotBack::NoRoom,
                code => NotBack::Failed(refusal("restore", pid, code)),
            });
        }
        for pid in living().filter(|pid| !self.is_in(*pid, CU_PROCESS_STATE_RUNNING)) {
            // SAFETY: as above.
            let code = unsafe { (self.unlock)(pid, null_mut()) };
            if code != CUDA_SUCCESS && is_alive(pid) {
                return Err(NotBack::Failed(refusal("unlock", pid, code)));
            }
        }
        Ok(())
    }

    /// Whether a process is in this state, as far as the driver says.
    fn is_in(&self, pid: i32, wanted: CUprocessState) -> bool {
        let mut state = CU_PROCESS_STATE_RUNNING;
        // SAFETY: the result is written to a variable that lives across the call.
        unsafe { (self.state)(pid, &raw mut state) == CUDA_SUCCESS && state == wanted }
    }
}

fn is_alive(pid: i32) -> bool {
    // SAFETY: no signal is sent and no memory is involved.
    let found = unsafe { libc::kill(pid, 0) };
    found == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

fn name(code: u32) -> String {
    result::name(code).map_or_else(|| code.to_string(), |name| name.to_string_lossy().into_owned())
}

fn refusal(step: &str, pid: i32, code: u32) -> anyhow::Error {
    match code {
        CUDA_ERROR_NOT_READY => {
            anyhow!("process {pid} did not come to a point in time at which it could be taken off the GPU")
        }
        CUDA_ERROR_NOT_SUPPORTED | CUDA_ERROR_NOT_FOUND => anyhow!(
            "the NVIDIA driver cannot {step} process {pid} ({}): it uses something that checkpoints leave out, such as managed memory or memory shared by IPC",
            name(code)
        ),
        code => anyhow!("the NVIDIA driver does not {step} process {pid}: {}", name(code)),
    }
}
