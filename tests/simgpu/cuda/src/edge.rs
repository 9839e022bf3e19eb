//! Checks at the beginning of every call: injected faults, and the initialisation of the driver.
//! Also counts unsupported calls.
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use deepres_abi::driver::ApiId;
use simgpu_engine::Call;
use simgpu_engine::faults::{self, Action};

use crate::process;
use crate::status::{self, Result, Status};

/// Returns whether a function works only after cuInit.
pub const fn needs_initialisation(id: ApiId) -> bool {
    !matches!(
        id,
        ApiId::cuInit
            | ApiId::cuDriverGetVersion
            | ApiId::cuGetErrorName
            | ApiId::cuGetErrorString
            | ApiId::cuGetProcAddress
            | ApiId::cuGetProcAddress_v2
            | ApiId::cuGetExportTable
            | ApiId::cuModuleGetLoadingMode
            | ApiId::cuThreadExchangeStreamCaptureMode
    )
}

/// Returns whether a function waits while a checkpoint has locked the process. Functions that
/// control checkpoints do not wait.
pub const fn waits_for_unlock(id: ApiId) -> bool {
    needs_initialisation(id)
        && !matches!(
            id,
            ApiId::cuCheckpointProcessLock
                | ApiId::cuCheckpointProcessCheckpoint
                | ApiId::cuCheckpointProcessRestore
                | ApiId::cuCheckpointProcessUnlock
                | ApiId::cuCheckpointProcessGetState
                | ApiId::cuCheckpointProcessGetRestoreThreadId
        )
}

/// Begins a call, and returns its guard. Waits while the process is locked. Until the caller drops
/// the guard, the process cannot be locked.
#[inline]
pub fn begin<const WAITS_FOR_UNLOCK: bool>() -> Option<Call<'static>> {
    WAITS_FOR_UNLOCK.then(|| process::host().begin_call())
}

/// Begins a function: applies faults, and checks the initialisation.
#[inline]
pub fn enter<const NEEDS_INITIALISATION: bool>(name: &str) -> Result<()> {
    if let Action::Fail(code) = faults::check(name) {
        return Err(Status(code));
    }
    if NEEDS_INITIALISATION { process::check_ready() } else { Ok(()) }
}

/// Ends a function: applies faults that come after the function's work.
#[inline]
pub fn leave(name: &str) {
    faults::check_end(name);
}

static UNSUPPORTED: [AtomicU32; ApiId::COUNT] = [const { AtomicU32::new(0) }; ApiId::COUNT];

/// Counts a call of an unsupported function and returns its error.
#[cold]
pub fn unsupported(id: ApiId) -> Result<()> {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        if std::env::var_os("SIMGPU_VERBOSE").is_some_and(|value| value == "1") {
            // SAFETY: the handler takes no locks that a thread killed at exit could hold. The
            // handler lives as long as the process.
            unsafe { libc::atexit(report) };
        }
    });
    UNSUPPORTED[id as usize].fetch_add(1, Ordering::Relaxed);
    Err(status::NOT_SUPPORTED)
}

extern "C" fn report() {
    for id in ApiId::ALL {
        let calls = UNSUPPORTED[id as usize].load(Ordering::Relaxed);
        if calls != 0 {
            eprintln!("simgpu: {} is not supported; called {calls} times", id.symbol());
        }
    }
}
