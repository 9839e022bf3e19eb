//! Starts a daemon for this user.

use crate::daemon::log_file;
use anyhow::{Context, Result, bail};
use deepres_abi::directory::DIRECTORY_VARIABLE;
use deepres_daemon::make_own_directory;
use deepres_model::directory::Directory;
use deepres_model::process::own_program;
use rustix::fs::{FlockOperation, flock};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Starts a daemon in `directory`, unless `is_running` finds that another process has started one.
/// Prints a message. Returns once the daemon serves.
pub fn daemon(directory: &Directory, is_running: impl Fn() -> Result<bool>) -> Result<()> {
    make_own_directory(directory)?;
    // If several runs start at once, one run starts the daemon, and the other runs find the daemon.
    let turn = open(&directory.path().join("start.lock"))?;
    flock(&turn, FlockOperation::LockExclusive).context("cannot wait for another `deepres run`")?;
    if is_running()? {
        return Ok(());
    }
    let log_file = directory.log_file();
    let log = open(&log_file)?;
    let (report, reporter) = pipe_with(PipeFlags::CLOEXEC)?;
    let mut command = Command::new(own_program().context("cannot find the path of this program")?);
    command
        .args(["daemon", "--exit-idle", "--report-to", &reporter.as_raw_fd().to_string()])
        .arg("--log-file")
        .arg(&log_file)
        .env(DIRECTORY_VARIABLE, directory.path())
        // The daemon is not a tenant.
        .env_remove("LD_PRELOAD")
        // If a service started this process, the daemon must not notify the service manager in its
        // name.
        .env_remove("NOTIFY_SOCKET")
        .env_remove("WATCHDOG_USEC")
        .env_remove("JOURNAL_STREAM")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    let inherited = reporter.as_raw_fd();
    // SAFETY: between fork and exec the closure makes only system calls. The descriptor is open in
    // the child as in the parent.
    unsafe {
        command.pre_exec(move || {
            // The daemon leaves this terminal and its signals. On exec, the daemon closes the
            // caller's descriptors. Otherwise the daemon would hold locks and pipes of the caller
            // as long as it lives. A kernel without this call leaves the descriptors open.
            rustix::process::setsid()?;
            // The caller can be a thread that gets no signals.
            let mut none = std::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&mut none);
            libc::pthread_sigmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
            libc::syscall(
                libc::SYS_close_range,
                libc::STDERR_FILENO + 1,
                libc::c_uint::MAX,
                libc::CLOSE_RANGE_CLOEXEC,
            );
            fcntl_setfd(std::os::fd::BorrowedFd::borrow_raw(inherited), FdFlags::empty())?;
            Ok(())
        });
    }
    let mut daemon = command.spawn().context("cannot start a daemon")?;
    drop(reporter);
    let mut said = String::new();
    let read = BufReader::new(File::from(report))
        .read_line(&mut said)
        .context("cannot read the report of the daemon")?;
    let said = said.trim();
    if read > 0 && said.is_empty() {
        eprintln!("deepres: started a daemon (pid {}, log {})", daemon.id(), directory.log_file().display());
        return Ok(());
    }
    // The daemon is ending. This wait prevents a zombie.
    let _ = daemon.wait();
    if said.is_empty() {
        bail!("the daemon ended before it was ready; see {}", directory.log_file().display());
    }
    bail!("cannot start a daemon: {said}");
}

fn open(path: &Path) -> Result<File> {
    log_file::open(path).with_context(|| format!("cannot open {}", path.display()))
}
