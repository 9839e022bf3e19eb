//! Signals that were ignored when `deepres run` started, and that Rust's runtime changes before
//! `main`.
//!
//! An ignored signal stays ignored over exec. Supervisors and `trap ''` in shells rely on this. So
//! the job must start with the same ignored signals as without deepres.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether SIGPIPE was ignored at the start. Rust's runtime always ignores SIGPIPE, and resets it
/// to the default in children.
static IGNORES_PIPE: AtomicBool = AtomicBool::new(false);
/// Whether SIGCHLD was ignored at the start. While a process ignores SIGCHLD, the kernel does not
/// report the ends of its children.
static IGNORES_CHILD: AtomicBool = AtomicBool::new(false);

/// The dynamic linker calls `note` before Rust's runtime starts.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

extern "C" fn note() {
    IGNORES_PIPE.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    IGNORES_CHILD.store(is_ignored(libc::SIGCHLD), Ordering::Relaxed);
}

fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the call changes no action. `action` has room for the result and is read only on
    // success.
    unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init_ref().sa_sigaction == libc::SIG_IGN
    }
}

/// Makes the kernel report the ends of children. The caller must not have started any child yet.
pub fn heed_children() {
    // SAFETY: the call sets no handler, and no other code of this process sets an action for
    // SIGCHLD.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Ignores the signals that were ignored at the start. The caller is a child between fork and exec.
///
/// # Errors
/// The error of the system call.
pub fn restore() -> io::Result<()> {
    for (signal, is_ignored) in [(libc::SIGPIPE, &IGNORES_PIPE), (libc::SIGCHLD, &IGNORES_CHILD)] {
        if !is_ignored.load(Ordering::Relaxed) {
            continue;
        }
        // SAFETY: the call sets no handler.
        if unsafe { libc::signal(signal, libc::SIG_IGN) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
