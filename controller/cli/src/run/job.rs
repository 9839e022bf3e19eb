//! The job: a child in the terminal's foreground. Signals and the exit status pass through `deepres
//! run`, so that the job runs as without it.

use super::inherited;
use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, waitpid};
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// A shell's status for a command that was not found.
const NOT_FOUND: u8 = 127;
/// A shell's status for a command that could not be executed.
const NOT_EXECUTABLE: u8 = 126;
/// A shell's status for a command that a signal killed, without the signal's number.
const KILLED: i32 = 128;
/// The execute permissions of owner, group and others.
const EXECUTE: u32 = 0o111;

/// Signals for which this process does not wait, and which it does not pass on. The first two
/// cannot be caught, and the next seven mean a fault of this process. The last two stop a process
/// in the terminal's background. The list does not contain SIGCHLD, because SIGCHLD reports the
/// child's end.
const UNHEEDED: [libc::c_int; 11] = [
    libc::SIGKILL,
    libc::SIGSTOP,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGSYS,
    libc::SIGTTIN,
    libc::SIGTTOU,
];

/// The reason for which a program cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The program does not exist.
    #[error("{}: command not found", .0.display())]
    NotFound(PathBuf),
    /// The file is not executable.
    #[error("{}: cannot be executed", .0.display())]
    NotExecutable(PathBuf),
}

impl Unusable {
    /// Returns the exit status that a shell would return.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::NotFound(_) => NOT_FOUND,
            Self::NotExecutable(_) => NOT_EXECUTABLE,
        })
    }
}

/// Looks for a program as a shell does, and returns its file.
pub fn find_program(program: &OsStr) -> Result<PathBuf, Unusable> {
    let is_executable = |file: &Path| {
        file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & EXECUTE != 0)
    };
    let named = Path::new(program);
    if program.as_bytes().contains(&b'/') {
        return match named {
            file if is_executable(file) => Ok(file.to_owned()),
            file if file.exists() => Err(Unusable::NotExecutable(file.to_owned())),
            file => Err(Unusable::NotFound(file.to_owned())),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places =
        || std::env::split_paths(&path).map(|place| place.join(named)).filter(|_| !program.is_empty());
    if let Some(file) = places().find(|file| is_executable(file)) {
        Ok(file)
    } else if places().any(|file| file.is_file()) {
        Err(Unusable::NotExecutable(named.to_owned()))
    } else {
        Err(Unusable::NotFound(named.to_owned()))
    }
}

/// Runs the command to its end, and returns its exit status. Calls `started` with the child's
/// process id. The threads that `started` creates get no signals.
pub fn run(mut command: Command, started: impl FnOnce(u32)) -> Result<ExitCode> {
    let heeded = signal_set();
    let before = block(&heeded)?;
    // SAFETY: between fork and exec the closure only makes system calls, with a copy of the mask,
    // and reads two atomics.
    unsafe {
        command.pre_exec(move || inherited::restore().and_then(|()| set_mask(&before)));
    }
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("deepres: {}: {error}", command.get_program().display());
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            return Ok(ExitCode::from(if is_missing { NOT_FOUND } else { NOT_EXECUTABLE }));
        }
    };
    started(child.id());
    let child =
        i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("the child has no process id")?;
    let mut is_told_to_stop = false;
    loop {
        let (signal, is_from_kernel) = wait_for(&heeded)?;
        match signal {
            libc::SIGTSTP => is_told_to_stop = true,
            libc::SIGCONT => is_told_to_stop = false,
            _ => {}
        }
        match signal {
            libc::SIGCHLD => {
                if let Some(code) = look_at(child, is_told_to_stop)? {
                    return Ok(code);
                }
            }
            // The terminal sent the signal. The child is in the same process group and got it too.
            libc::SIGINT | libc::SIGQUIT | libc::SIGTSTP | libc::SIGWINCH | libc::SIGHUP
                if is_from_kernel => {}
            signal => {
                // SAFETY: the call involves no memory. The child was not waited for, so its id is
                // not reused.
                unsafe { libc::kill(child.as_raw_nonzero().get(), signal) };
            }
        }
    }
}

/// Reads the child's state. Returns its exit status if it has ended, else `None`.
///
/// If the child has stopped and a shell can continue this process, this process stops too. A shell
/// can continue this process if this process got a stop signal or has a terminal. A supervisor or a
/// debugger that stops only the child also continues only the child.
fn look_at(child: Pid, is_told_to_stop: bool) -> Result<Option<ExitCode>> {
    loop {
        match waitpid(Some(child), WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some((_, status))) if status.stopped() => {
                if is_told_to_stop || has_terminal() {
                    rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)?;
                }
            }
            Ok(Some((_, status))) => {
                if let Some(code) = exit_code(status) {
                    return Ok(Some(code));
                }
            }
            Ok(None) => return Ok(None),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for the command"),
        }
    }
}

/// Returns whether a shell can continue this process with `fg`.
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

fn exit_code(status: WaitStatus) -> Option<ExitCode> {
    let code = status.exit_status().or_else(|| Some(KILLED + status.terminating_signal()?))?;
    Some(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
}

fn signal_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set, and sigaddset refuses invalid numbers.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in (1..=libc::SIGRTMAX()).filter(|signal| !UNHEEDED.contains(signal)) {
            // The call refuses the two signals that the C library reserves.
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Blocks the signals, so that this process can wait for them. Returns the earlier mask.
fn block(heeded: &libc::sigset_t) -> Result<libc::sigset_t> {
    let mut before = MaybeUninit::uninit();
    // SAFETY: both sets live through the call, and this process has one thread.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, heeded, before.as_mut_ptr()) } {
        // SAFETY: the call succeeded and has initialised the set.
        0 => Ok(unsafe { before.assume_init() }),
        error => Err(io::Error::from_raw_os_error(error)).context("cannot block signals"),
    }
}

fn set_mask(mask: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: the set lives through the call, and a null pointer asks for no result.
    match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Waits for the next signal and returns it. Also returns whether the kernel itself sent the
/// signal, for example for a terminal.
fn wait_for(heeded: &libc::sigset_t) -> Result<(libc::c_int, bool)> {
    let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
    loop {
        // SAFETY: both arguments live through the call.
        let signal = unsafe { libc::sigwaitinfo(heeded, info.as_mut_ptr()) };
        if signal > 0 {
            // SAFETY: the call succeeded and has initialised the value.
            return Ok((signal, unsafe { info.assume_init_ref() }.si_code > 0));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error).context("cannot wait for signals");
        }
    }
}
