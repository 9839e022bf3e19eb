//! What `deepres run` was started with and Rust's runtime changes before `main`: signals that are ignored stay so over an exec, as supervisors and `trap ''` mean it,
//! and the job is to find them as it would have without us.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// The runtime ignores it, and has children back at the default.
static IGNORES_PIPE: AtomicBool = AtomicBool::new(false);
/// Ignored, the kernel would keep children's ends from us.
static IGNORES_CHILD: AtomicBool = AtomicBool::new(false);

/// Runs before the runtime does anything.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

extern "C" fn note() {
    IGNORES_PIPE.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    IGNORES_CHILD.store(is_ignored(libc::SIGCHLD), Ordering::Relaxed);
}

fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: nothing is changed, and the result has room; it is written on success.
    unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init_ref().sa_sigaction == libc::SIG_IGN
    }
}

/// Has this process told of its children's ends. Before it has any.
pub fn heed_children() {
    // SAFETY: no handler is set, and nobody else in this process sets one.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Ignores what was ignored: in a child, between fork and exec.
///
/// # Errors
/// The system's.
pub fn restore() -> io::Result<()> {
    for (signal, is_ignored) in [(libc::SIGPIPE, &IGNORES_PIPE), (libc::SIGCHLD, &IGNORES_CHILD)] {
        if !is_ignored.load(Ordering::Relaxed) {
            continue;
        }
        // SAFETY: no handler is set.
        if unsafe { libc::signal(signal, libc::SIG_IGN) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
