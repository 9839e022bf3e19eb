//! Checks at the beginning of every call: injected faults, and the initialisation of the driver.
//! Also counts unsupported calls.
use std::cell::Cell;
use std::mem;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use deepres_abi::driver::types::CUstream;
use deepres_abi::driver::{ApiId, pfn};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY};
use simgpu_engine::Call;
use simgpu_engine::faults::{self, Action};

use crate::mps;
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
pub fn enter<const NEEDS_INITIALISATION: bool, const WAITS_FOR_UNLOCK: bool>(name: &str) -> Result<()> {
    let action = faults::check(name);
    if let Action::Fail(code) = action {
        return Err(Status(code));
    }
    if NEEDS_INITIALISATION {
        process::check_ready()?;
        mps::check_server()?;
        // While the process is locked, the exports would wait for ever in a call that unlocks it.
        if action == Action::Reenter && WAITS_FOR_UNLOCK {
            reenter();
        }
    }
    Ok(())
}

/// Calls exports of the driver by the dynamic linker, as a driver library does that is not linked
/// to its own symbols. The calls change nothing. Calls within these calls do not do the same.
#[cold]
fn reenter() {
    /// A handle of no stream.
    const NO_STREAM: CUstream = 0x10 as CUstream;
    thread_local! {
        static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    }
    if IS_INSIDE.replace(true) {
        return;
    }
    // This library is linked to its own symbols, so it looks the exports up in the program's scope.
    // The first definition there is in a preloaded library, if there is one.
    //
    // SAFETY: the library is loaded already, so no initialiser runs.
    let driver = unsafe { Library::open(Some("libcuda.so.1"), RTLD_LAZY | RTLD_GLOBAL | libc::RTLD_NOLOAD) };
    // The driver stays in the program's scope.
    mem::forget(driver);
    let program = Library::this();
    let (mut free, mut total) = (0, 0);
    // SAFETY: the exports of these names have these types. The results have room, and the driver
    // refuses the handle.
    unsafe {
        if let Ok(destroy) = program.get::<pfn::cuStreamDestroy_v2>(b"cuStreamDestroy_v2\0") {
            destroy(NO_STREAM);
        }
        if let Ok(info) = program.get::<pfn::cuMemGetInfo_v2>(b"cuMemGetInfo_v2\0") {
            info(&mut free, &mut total);
        }
    }
    IS_INSIDE.set(false);
}

/// Returns the error of a function whose MPS server ended meanwhile.
#[inline]
pub fn end<const NEEDS_INITIALISATION: bool>() -> Result<()> {
    if NEEDS_INITIALISATION { mps::check_server() } else { Ok(()) }
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
