//! Checkpoints: taking a process off the GPUs and bringing it back, from another process.
use std::time::Duration;

use simgpu_engine::{CheckpointError, CheckpointState};

use super::prelude::*;
use crate::process::host;
use crate::status::Status;

/// `CUcheckpointLockArgs`: `timeoutMs` and reserved words.
const LOCK_WORDS: usize = 16;
/// The arguments of restore and of the remaining checkpoint functions: GPU mappings, which are not
/// modelled, and reserved words.
const OTHER_WORDS: usize = 16;

fn code(error: CheckpointError) -> Status {
    match error {
        CheckpointError::NoSuchProcess => status::INVALID_VALUE,
        CheckpointError::WrongState => status::ILLEGAL_STATE,
        CheckpointError::TimedOut => status::NOT_READY,
        CheckpointError::Unmovable => status::NOT_SUPPORTED,
        CheckpointError::OutOfMemory => status::OUT_OF_MEMORY,
    }
}

fn pid_of(pid: i32) -> Result<u32> {
    u32::try_from(pid).ok().filter(|pid| *pid != 0).ok_or(status::INVALID_VALUE)
}

/// Refuses arguments with a value in a reserved word.
fn check_reserved(args: *mut c_void) -> Result<()> {
    if args.is_null() {
        return Ok(());
    }
    let words = read!(args.cast::<[u32; OTHER_WORDS]>());
    if words.iter().all(|word| *word == 0) { Ok(()) } else { Err(status::NOT_SUPPORTED) }
}

calls! {
    cuCheckpointProcessLock(pid, args) {
        let limit = if args.is_null() {
            None
        } else {
            let [timeout_ms, reserved @ ..] = read!(args.cast::<[u32; LOCK_WORDS]>());
            status::refuse(reserved.iter().any(|word| *word != 0))?;
            (timeout_ms != 0).then(|| Duration::from_millis(timeout_ms.into()))
        };
        host().lock_process(pid_of(pid)?, limit).map_err(code)?;
    }
    cuCheckpointProcessCheckpoint(pid, args) {
        check_reserved(args)?;
        host().checkpoint_process(pid_of(pid)?).map_err(code)?;
    }
    cuCheckpointProcessRestore(pid, args) {
        check_reserved(args)?;
        host().restore_process(pid_of(pid)?).map_err(code)?;
    }
    cuCheckpointProcessUnlock(pid, args) {
        check_reserved(args)?;
        host().unlock_process(pid_of(pid)?).map_err(code)?;
    }
    cuCheckpointProcessGetState(pid, state) {
        let found = match host().checkpoint_state(pid_of(pid)?).map_err(code)? {
            CheckpointState::Running => CU_PROCESS_STATE_RUNNING,
            CheckpointState::Locked => CU_PROCESS_STATE_LOCKED,
            CheckpointState::Checkpointed => CU_PROCESS_STATE_CHECKPOINTED,
        };
        give!(state, found);
    }
}
