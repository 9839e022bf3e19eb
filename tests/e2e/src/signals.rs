//! The signals that end a program from a terminal.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Makes the program of this command heed SIGHUP, SIGINT and SIGQUIT. If a shell runs the tests in
/// the background, the shell can make them ignore these signals, and children inherit that.
pub fn heeded(command: &mut Command) -> &mut Command {
    // SAFETY: signal() is async-signal-safe, and nothing is allocated.
    unsafe { command.pre_exec(heed) }
}

/// Resets SIGHUP, SIGINT and SIGQUIT of the calling process to their default.
fn heed() -> io::Result<()> {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: SIG_DFL installs no handler, so no code of this program can run in a signal's
        // context.
        if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
