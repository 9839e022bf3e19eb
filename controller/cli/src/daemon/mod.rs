//! `deepres daemon`: shares out this machine's GPUs.

mod log;
pub mod log_file;

use anyhow::{Result, bail};
use deepres_daemon::{Gpu, Inherited, Options, lock_directory};
use deepres_model::config::Config;
use deepres_model::directory::Directory;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::task::Poll;
use tokio::signal::unix::{Signal, SignalKind, signal};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Runs in the foreground and logs to stderr until it is told to stop (SIGTERM or Ctrl-C); programs that \
are running then go on, unshared, and come back to the next daemon, which goes on with their accounts. \
Sockets and state are in DEEPRES_DIR, else in /run/deepres for root, else in $XDG_RUNTIME_DIR/deepres \
or /tmp/deepres-UID. Under systemd it takes its sockets over (LISTEN_FDS) and reports to it (NOTIFY_SOCKET).

Examples:
  sudo deepres daemon
  deepres daemon --config lab.toml --log debug")]
pub struct Args {
    /// Configuration [default: ~/.config/deepres/deepres.toml, else /etc/deepres/deepres.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Stay in the foreground (it always does; for scripts that like to say so)
    #[arg(long)]
    foreground: bool,
    /// What to log: error, warn, info, debug or trace, also by module (info,deepres_daemon::arbiter=trace)
    #[arg(long, value_name = "LEVELS", env = "DEEPRES_LOG", default_value = log::DEFAULT_LEVELS)]
    log: String,
    /// Log into this file, which stdout and stderr go to, and keep it short
    #[arg(long, hide = true, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// End when idle for as long as the configuration says
    #[arg(long, hide = true)]
    exit_idle: bool,
    /// Descriptor to report to: an empty line once tenants can connect, else why they cannot
    #[arg(long, hide = true, value_name = "FD")]
    report_to: Option<RawFd>,
}

/// Runs the daemon until it is told to stop.
pub fn run(args: &Args) -> Result<()> {
    hide();
    // SAFETY: nothing was opened before.
    let inherited_sockets = unsafe { deepres_daemon::inherited() };
    let mut report = args.report_to.map(inherited).transpose()?;
    let outcome = inherited_sockets.map_err(anyhow::Error::from).and_then(|sockets| {
        serve(args, sockets, || {
            // The one who started us may be gone; that does not concern the daemon.
            if let Some(mut report) = report.take() {
                let _ = writeln!(report);
            }
        })
    });
    if let (Err(error), Some(mut report)) = (&outcome, report) {
        let _ = writeln!(report, "{}", super::explain(error));
    }
    outcome
}

/// Keeps the user's other processes from this one's memory and descriptors, among them every tenant's pages.
fn hide() {
    // It fails only for behaviours that there are not.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// A descriptor that whoever started us opened for us.
fn inherited(fd: RawFd) -> Result<std::fs::File> {
    // SAFETY: F_GETFD only asks whether there is such a descriptor.
    if fd <= libc::STDERR_FILENO || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        bail!("descriptor {fd} is not open for reports");
    }
    // SAFETY: it is open, and nothing else here uses it: nothing was opened before, and it is no socket to listen at.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

fn serve(args: &Args, inherited: Inherited, ready: impl FnOnce()) -> Result<()> {
    let _log = log::init(&args.log, args.log_file.as_deref())?;
    let config = Config::load(args.config.as_deref())?;
    let options = Options {
        directory: Directory::own(),
        config,
        gpus: Gpu::all()?,
        locks: lock_directory(),
        inherited,
        exits_idle: args.exit_idle,
    };
    let directory = options.directory.clone();
    let announce = || {
        tracing::info!(%directory, "ready");
        ready();
    };
    deepres_daemon::run(options, announce, told_to_stop())?;
    Ok(())
}

/// Returns at SIGTERM, SIGINT, or SIGHUP (its terminal is gone), but for one that whoever started it has it ignore, as nohup does.
async fn told_to_stop() {
    let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
    let heeded = kinds.into_iter().filter(|kind| !is_ignored(*kind));
    // Without handlers these signals end the process, which tenants survive.
    let mut signals: Vec<Signal> = heeded.filter_map(|kind| signal(kind).ok()).collect();
    std::future::poll_fn(|context| {
        match signals.iter_mut().any(|signal| signal.poll_recv(context).is_ready()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}

fn is_ignored(kind: SignalKind) -> bool {
    let mut present = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: only reads what is set, into a struct of the right type, which is looked at if the call wrote it.
    unsafe {
        libc::sigaction(kind.as_raw_value(), std::ptr::null(), present.as_mut_ptr()) == 0
            && present.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_is_hidden_from_its_users_other_processes() {
        hide();
        assert_eq!(rustix::process::dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
    }
}
