//! `deepres daemon`: shares this machine's GPUs among tenants.

mod detach;
mod log;
pub mod log_file;

use anyhow::{Result, bail};
use deepres_daemon::{
    Configuration, Faults, Gpu, GpuError, Inherited, Options, is_supervised, lock_directories, turn_away,
};
use deepres_model::config::{Loaded, WebAddress, parse_address};
use deepres_model::directory::Directory;
use rustix::process::{DumpableBehavior, geteuid, set_dumpable_behavior};
use std::io::Write;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::task::Poll;
use tokio::signal::unix::{Signal, SignalKind, signal};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The daemon runs in the foreground and logs to stderr until SIGTERM or Ctrl-C. Running programs then go on \
without limits in time. The next daemon takes the programs over, with their accounts. The daemon keeps its \
sockets and state in the directory that DEEPRES_DIR names. Without this variable, the daemon of root uses \
/run/deepres, and the daemon of a user uses $XDG_RUNTIME_DIR/deepres, or /tmp/deepres-UID if there is no \
$XDG_RUNTIME_DIR. Under systemd the daemon takes its sockets from LISTEN_FDS and reports to NOTIFY_SOCKET.

Examples:
  sudo deepres daemon
  deepres daemon --config lab.toml --log debug
  sudo deepres daemon --metrics 127.0.0.1:9442
  sudo deepres daemon --web /run/deepres/web.sock")]
pub struct Args {
    /// Configuration file [default: ~/.config/deepres/deepres.toml, else /etc/deepres/deepres.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Serve metrics for Prometheus at this address, to everybody who reaches it [default: the
    /// configuration's `metrics`, else none]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    metrics: Option<SocketAddr>,
    /// Serve a page with live figures at this loopback address or Unix socket [default: the
    /// configuration's `web`, else none]
    #[arg(long, value_name = "ADDRESS:PORT|PATH")]
    web: Option<WebAddress>,
    /// Stay in the foreground (always the case; for scripts that pass the option)
    #[arg(long)]
    foreground: bool,
    /// Levels to log: error, warn, info, debug or trace, also by module
    /// (info,deepres_daemon::arbiter=trace)
    #[arg(long, value_name = "LEVELS", env = "DEEPRES_LOG", default_value = log::DEFAULT_LEVELS)]
    log: String,
    /// Log into this file, to which stdout and stderr already go, and limit its size
    #[arg(long, hide = true, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// End after the idle time that the configuration gives
    #[arg(long, hide = true)]
    exit_idle: bool,
    /// Descriptor for a report: an empty line once tenants can connect, else the reason why they
    /// cannot
    #[arg(long, hide = true, value_name = "FD")]
    report_to: Option<RawFd>,
}

/// Runs the daemon until a signal stops it. Returns the exit status.
pub fn run(args: &Args) -> Result<ExitCode> {
    hide();
    if args.exit_idle {
        detach::from_job();
    }
    // SAFETY: this process has not opened any descriptor yet.
    let inherited_sockets = unsafe { deepres_daemon::inherited() };
    let mut report = args.report_to.map(inherited).transpose()?;
    let outcome = inherited_sockets.map_err(anyhow::Error::from).and_then(|sockets| {
        serve(args, sockets, || {
            // The process that reads the report may have ended. The daemon goes on without it.
            if let Some(mut report) = report.take() {
                let _ = writeln!(report);
            }
        })
    });
    if let (Err(error), Some(mut report)) = (&outcome, report) {
        let _ = writeln!(report, "{}", super::explain(error));
    }
    match outcome {
        Err(error) if lacks_gpu(&error) => {
            eprintln!("deepres: {}", super::explain(&error));
            Ok(ExitCode::from(super::NO_GPU))
        }
        outcome => outcome.map(|()| ExitCode::SUCCESS),
    }
}

/// Returns whether the daemon ended because this machine has no GPU, or no driver for one.
fn lacks_gpu(error: &anyhow::Error) -> bool {
    error.downcast_ref::<GpuError>().is_some_and(is_lack)
}

fn is_lack(error: &GpuError) -> bool {
    matches!(error, GpuError::NoLibrary(_) | GpuError::None)
}

/// Keeps other processes of the same user from reading this process's memory and descriptors,
/// because the descriptors include the pages of all tenants.
fn hide() {
    // The call fails only for an unknown value.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Returns a descriptor that the parent process opened for this process.
fn inherited(fd: RawFd) -> Result<std::fs::File> {
    // SAFETY: F_GETFD only asks whether the descriptor is open.
    if fd <= libc::STDERR_FILENO || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        bail!("descriptor {fd} is not open for reports");
    }
    // SAFETY: the descriptor is open, and nothing else in this process owns it. This process has
    // opened no descriptor before, and the descriptor is not a listening socket.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

fn serve(args: &Args, inherited: Inherited, ready: impl FnOnce()) -> Result<()> {
    let _log = log::init(&args.log, args.log_file.as_deref())?;
    let (file, metrics, web) = (args.config.clone(), args.metrics, args.web.clone());
    let config = Configuration::read_by(move || {
        let mut loaded = Loaded::load(file.as_deref())?.for_daemon(geteuid().is_root())?;
        if metrics.is_some() {
            loaded.config.metrics = metrics;
            loaded.set_by_option("metrics", "--metrics");
        }
        if web.is_some() {
            loaded.config.web.clone_from(&web);
            loaded.set_by_option("web", "--web");
        }
        Ok(loaded)
    })?;
    let gpus = Gpu::all().inspect_err(|error| {
        // No service manager starts the daemon again after this error, except for a connection.
        if is_lack(error) {
            turn_away(&inherited);
        }
    })?;
    let topology = Gpu::topology(&gpus)
        .inspect_err(|error| tracing::warn!("the daemon cannot read how the GPUs reach each other: {error}"));
    let watched = gpus.iter().filter(|gpu| !gpu.is_lost);
    let faults = Faults::watch(watched.map(|gpu| gpu.uuid_text.clone()).collect())?;
    let options = Options {
        directory: Directory::own(),
        config,
        gpus,
        topology: topology.ok(),
        faults,
        locks: lock_directories(),
        inherited,
        exits_idle: args.exit_idle,
    };
    let directory = options.directory.clone();
    let announce = || {
        tracing::info!(%directory, "the daemon is ready");
        ready();
    };
    deepres_daemon::run(options, announce, told_to_stop())?;
    Ok(())
}

/// Returns at SIGTERM, SIGINT or SIGHUP (the terminal has gone). From a service manager, SIGHUP
/// means that the daemon reads its configuration again. If the parent process made this process
/// ignore a signal, as nohup does, the signal stays ignored.
async fn told_to_stop() {
    let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
    let is_reload = |kind: &SignalKind| *kind == SignalKind::hangup() && is_supervised();
    let heeded = kinds.into_iter().filter(|kind| !is_ignored(*kind) && !is_reload(kind));
    // If a handler cannot be set, the signal ends the process. Tenants survive the daemon's end.
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
    // SAFETY: the call only reads the action, into a struct of the right type. The struct is read
    // only if the call succeeded.
    unsafe {
        libc::sigaction(kind.as_raw_value(), std::ptr::null(), present.as_mut_ptr()) == 0
            && present.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lack_of_gpus_ends_the_daemon_without_a_restart() {
        assert!(lacks_gpu(&GpuError::None.into()));
        assert!(!lacks_gpu(&GpuError::Silent(std::time::Duration::ZERO).into()));
        assert!(!lacks_gpu(&anyhow::anyhow!("another reason")));
    }

    #[test]
    fn the_daemon_is_hidden_from_its_users_other_processes() {
        hide();
        assert_eq!(rustix::process::dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
    }
}
