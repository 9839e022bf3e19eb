//! `deepres mover PID…`: moves processes off the GPUs and back by the driver's checkpoint
//! functions. Only the daemon runs this command.
//!
//! The daemon does not link CUDA, so another process must call the driver. When the daemon ends,
//! the input of this process ends too, and this process brings the moved processes back. So no
//! process stays off the GPUs for ever.
//!
//! The command writes these words to stdout, one a line:
//!
//! | word | meaning |
//! |---|---|
//! | `suspended` | all processes are off the GPUs |
//! | `back` | all processes are back; the command ends |
//! | `no room` | the GPU has no room, and the processes stay off |
//! | `lost` | moving the processes off the GPUs failed, and undoing the finished steps failed too |
//!
//! After a line on stdin or the end of stdin, the command brings the processes back. If the GPU has
//! no room, the command says `no room` and waits for the next line. Once stdin has ended, the
//! command tries again every [`RETRY`].
//!
//! The command ignores the signals by which a service manager stops a service, because no other
//! process could bring the processes back.
//!
//! With `--back`, the command begins by bringing the processes back, whatever state they are in.
//! The daemon uses this option if the earlier mover of these processes has ended.

use crate::doctor::NO_CHECKPOINTS;
use anyhow::{Context, Result, anyhow, bail};
use deepres_abi::driver::result::{
    CUDA_ERROR_NOT_FOUND, CUDA_ERROR_NOT_READY, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OUT_OF_MEMORY,
    CUDA_SUCCESS,
};
use deepres_abi::driver::types::{CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_RUNNING, CUprocessState};
use deepres_abi::driver::{pfn, result};
use deepres_model::process::ProcessKey;
use libloading::os::unix::{Library, RTLD_NOW};
use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::ptr::null_mut;
use std::time::Duration;

const DRIVER_LIBRARY: &str = "libcuda.so.1";
/// Time within which the driver must lock a process, before it can move the process off the GPU.
const LOCK_LIMIT_MS: u32 = 10_000;
/// Pause between two attempts to bring processes back after the daemon has ended.
const RETRY: Duration = Duration::from_millis(200);

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Begin by bringing back processes that are off the GPUs or on their way
    #[arg(long)]
    back: bool,
    /// Processes to move
    #[arg(required = true)]
    pids: Vec<i32>,
}

/// The driver's `CUcheckpointLockArgs`.
#[repr(C)]
struct LockArgs {
    timeout_ms: u32,
    reserved: [u32; 15],
}

/// Ignores the signals by which a service manager, a shell or a terminal stops its processes.
fn ignore_signals() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: the call sets no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// The driver's checkpoint functions, and the processes that the command moves.
struct Driver {
    /// The processes that lived when the command began. Later, another process can have the id of
    /// such a process.
    processes: BTreeMap<i32, ProcessKey>,
    lock: pfn::cuCheckpointProcessLock,
    checkpoint: pfn::cuCheckpointProcessCheckpoint,
    restore: pfn::cuCheckpointProcessRestore,
    unlock: pfn::cuCheckpointProcessUnlock,
    state: pfn::cuCheckpointProcessGetState,
}

/// The reason for which the driver did not bring processes back to the GPU.
enum NotBack {
    /// Other processes have the GPU's memory.
    NoRoom,
    /// Any other failure.
    Failed(anyhow::Error),
}

/// Moves the processes off the GPUs, and brings them back after a line or the end of stdin. Returns
/// when the processes are back.
pub fn run(args: &Args) -> Result<()> {
    ignore_signals();
    let mut driver = Driver::load()?;
    let key = |pid: &i32| Some((*pid, ProcessKey::of(u32::try_from(*pid).ok()?)?));
    driver.processes = args.pids.iter().filter_map(key).collect();
    let driver = driver;
    let mut is_told = args.back;
    if !args.back {
        driver.take_off(&args.pids)?;
        // If the daemon has ended meanwhile, stdin has ended too. The lines below then bring the
        // processes back.
        let _ = say("suspended");
    }
    let mut lines = std::io::stdin().lock().lines();
    let mut has_daemon = true;
    loop {
        if has_daemon && !std::mem::take(&mut is_told) {
            has_daemon = matches!(lines.next(), Some(Ok(_)));
        }
        match driver.bring_back(&args.pids) {
            Ok(()) => {
                // The daemon that would read this word may have ended.
                let _ = say("back");
                return Ok(());
            }
            Err(NotBack::Failed(error)) => return Err(error),
            // If no process reads stdout, the daemon has ended, and only this process can bring the
            // other processes back.
            Err(NotBack::NoRoom) if has_daemon && say("no room").is_ok() => {}
            Err(NotBack::NoRoom) => std::thread::sleep(RETRY),
        }
    }
}

fn say(word: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{word}").and_then(|()| out.flush()).context("cannot report to the daemon")
}

impl Driver {
    fn load() -> Result<Self> {
        // SAFETY: loading the driver's library runs only its initialisers, as in every CUDA
        // program.
        let library = unsafe { Library::open(Some(DRIVER_LIBRARY), RTLD_NOW) }.context(
            "cannot load libcuda.so.1; is the NVIDIA driver installed where the daemon looks for libraries?",
        )?;
        macro_rules! function {
            ($name:ident) => {{
                // SAFETY: the symbol of this name has this type in every driver. A null pointer
                // becomes `None`.
                let found = unsafe { library.get::<Option<pfn::$name>>(stringify!($name).as_bytes()) };
                match found.as_deref() {
                    Ok(Some(function)) => *function,
                    _ => bail!("{NO_CHECKPOINTS}, so the daemon cannot suspend tenants"),
                }
            }};
        }
        let initialise = function!(cuInit);
        let driver = Self {
            processes: BTreeMap::new(),
            lock: function!(cuCheckpointProcessLock),
            checkpoint: function!(cuCheckpointProcessCheckpoint),
            restore: function!(cuCheckpointProcessRestore),
            unlock: function!(cuCheckpointProcessUnlock),
            state: function!(cuCheckpointProcessGetState),
        };
        // The functions stay loaded until the process ends.
        std::mem::forget(library);
        // SAFETY: `cuInit` takes no pointer.
        match unsafe { initialise(0) } {
            CUDA_SUCCESS => Ok(driver),
            code => bail!("the NVIDIA driver does not start ({}); does `nvidia-smi` work?", name(code)),
        }
    }

    /// Moves all processes off the GPU. If the driver cannot move one process, moves none.
    fn take_off(&self, pids: &[i32]) -> Result<()> {
        for (at, pid) in pids.iter().enumerate() {
            let mut limit = LockArgs { timeout_ms: LOCK_LIMIT_MS, reserved: [0; 15] };
            // SAFETY: `limit` lives across the call and has the layout that the API documents.
            let code = unsafe { (self.lock)(*pid, (&raw mut limit).cast()) };
            if code != CUDA_SUCCESS {
                self.undo(&[], &pids[..at])?;
                return Err(refusal("lock", *pid, code));
            }
        }
        for (at, pid) in pids.iter().enumerate() {
            // SAFETY: the API allows a null pointer for the arguments.
            let code = unsafe { (self.checkpoint)(*pid, null_mut()) };
            if code != CUDA_SUCCESS {
                self.undo(&pids[..at], pids)?;
                return Err(refusal("checkpoint", *pid, code));
            }
        }
        Ok(())
    }

    /// Undoes the steps that [`Self::take_off`] has done. If the driver cannot undo a step for a
    /// living process, says `lost`.
    fn undo(&self, checkpointed: &[i32], locked: &[i32]) -> Result<()> {
        let mut is_done = true;
        for pid in checkpointed {
            // SAFETY: the API allows a null pointer for the arguments.
            is_done &= unsafe { (self.restore)(*pid, null_mut()) } == CUDA_SUCCESS || !self.lives(*pid);
        }
        for pid in locked {
            // SAFETY: the API allows a null pointer for the arguments.
            is_done &= unsafe { (self.unlock)(*pid, null_mut()) } == CUDA_SUCCESS || !self.lives(*pid);
        }
        if is_done { Ok(()) } else { say("lost") }
    }

    /// Brings back all processes that are alive. If the driver cannot bring back one process,
    /// brings back none.
    fn bring_back(&self, pids: &[i32]) -> Result<(), NotBack> {
        let living = || pids.iter().copied().filter(|pid| self.lives(*pid));
        let mut restored = Vec::new();
        for pid in living().filter(|pid| self.is_in(*pid, CU_PROCESS_STATE_CHECKPOINTED)) {
            // SAFETY: the API allows a null pointer for the arguments.
            let code = unsafe { (self.restore)(pid, null_mut()) };
            if code == CUDA_SUCCESS {
                restored.push(pid);
                continue;
            }
            if !self.lives(pid) {
                continue;
            }
            for pid in restored {
                // SAFETY: the API allows a null pointer for the arguments.
                unsafe { (self.checkpoint)(pid, null_mut()) };
            }
            return Err(match code {
                CUDA_ERROR_OUT_OF_MEMORY => NotBack::NoRoom,
                code => NotBack::Failed(refusal("restore", pid, code)),
            });
        }
        for pid in living().filter(|pid| !self.is_in(*pid, CU_PROCESS_STATE_RUNNING)) {
            // SAFETY: the API allows a null pointer for the arguments.
            let code = unsafe { (self.unlock)(pid, null_mut()) };
            if code != CUDA_SUCCESS && self.lives(pid) {
                return Err(NotBack::Failed(refusal("unlock", pid, code)));
            }
        }
        Ok(())
    }

    /// Returns whether a process that lived when the command began still lives.
    fn lives(&self, pid: i32) -> bool {
        self.processes.get(&pid).is_some_and(|process| process.is_alive())
    }

    /// Returns whether the driver reports that a process is in the state `wanted`.
    fn is_in(&self, pid: i32, wanted: CUprocessState) -> bool {
        let mut state = CU_PROCESS_STATE_RUNNING;
        // SAFETY: the driver writes the result to a variable that lives across the call.
        unsafe { (self.state)(pid, &raw mut state) == CUDA_SUCCESS && state == wanted }
    }
}

fn name(code: u32) -> String {
    result::name(code).map_or_else(|| code.to_string(), |name| name.to_string_lossy().into_owned())
}

fn refusal(step: &str, pid: i32, code: u32) -> anyhow::Error {
    match code {
        CUDA_ERROR_NOT_READY => {
            anyhow!("process {pid} did not reach a point at which the driver can suspend it; try again")
        }
        CUDA_ERROR_NOT_SUPPORTED | CUDA_ERROR_NOT_FOUND => anyhow!(
            "the NVIDIA driver cannot {step} process {pid} ({}): checkpoints exclude something that the process uses, such as managed memory or memory shared by IPC",
            name(code)
        ),
        code => anyhow!("the NVIDIA driver failed to {step} process {pid}: {}", name(code)),
    }
}
