//! The MPS control daemon of `mps = "start"`: the daemon starts NVIDIA's control daemon if none runs,
//! watches it, and starts it again if it ends. The control daemon itself starts an MPS server when
//! the first client comes.

use crate::Shared;
use deepres_abi::wire::{self, DIRECTORY_BYTES, Welcome};
use deepres_model::config::MpsKey;
use deepres_model::directory::Directory;
use deepres_model::mps::{
    CONTROL_PROGRAM, DEFAULT_PIPES, LOGS_VARIABLE, PIPES_VARIABLE, ask, clients, control_daemon, named,
};
use deepres_model::process::{ProcessKey, text};
use rustix::fs::Mode;
use rustix::process::{Pid, Signal, geteuid, kill_process, umask};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Time between two looks at the control daemon.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Time between two looks while a control daemon starts or ends.
const LOOK_SOON: Duration = Duration::from_millis(10);
/// Time within which a control daemon starts. The daemon serves tenants after this time also without
/// the control daemon.
const STARTS_WITHIN: Duration = Duration::from_secs(3);
/// Time within which a control daemon without clients ends.
const ENDS_WITHIN: Duration = Duration::from_secs(3);
/// The pause before the first new start. Each further start that fails doubles the pause.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The name of the directories in a daemon's own directory.
const OWN_PIPES: &str = "mps";
const OWN_LOGS: &str = "mps-log";
/// Variables of this daemon that are not for MPS. A lower percentage would bind all clients.
const NOT_FOR_MPS: [&str; 5] =
    ["LD_PRELOAD", "NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"];
/// A directory that only its user can read.
const PRIVATE: u32 = 0o700;
/// The usual mask of the modes of new files.
const USUAL_MASK: u32 = 0o022;

/// The control daemon of MPS that the jobs of this daemon use.
#[derive(Debug)]
pub struct Mps {
    pipes: PathBuf,
    logs: PathBuf,
    /// Whether both directories are in a user's own directory.
    are_own: bool,
    /// The control daemon that this daemon started.
    child: Option<Child>,
    /// The control daemon that runs now.
    control: Option<ProcessKey>,
    /// The MPS servers of the control daemon.
    servers: BTreeSet<ProcessKey>,
    deaths: u64,
    pause: Duration,
    /// The earliest time of the next start.
    next: Instant,
    /// The last obstacle that the log has.
    told: String,
}

impl Mps {
    /// Returns the state before the first look. The directory is the one that the environment names.
    /// Without a name, the system's daemon uses the directory of the driver, and a user's daemon a
    /// directory of its own, unless a control daemon runs for all users.
    pub fn of(directory: &Directory) -> Self {
        let is_for_all =
            *directory == Directory::system() || control_daemon(DEFAULT_PIPES.as_ref()).is_some();
        Self::at(directory, [PIPES_VARIABLE, LOGS_VARIABLE].map(named), is_for_all)
    }

    fn at(directory: &Directory, [pipes, logs]: [Option<PathBuf>; 2], is_for_all: bool) -> Self {
        let own_pipes = || if is_for_all { DEFAULT_PIPES.into() } else { directory.path().join(OWN_PIPES) };
        Self {
            are_own: pipes.is_none() && logs.is_none() && !is_for_all,
            pipes: pipes.unwrap_or_else(own_pipes),
            // The daemon's service may not write to the driver's own directory for logs.
            logs: logs.unwrap_or_else(|| directory.path().join(OWN_LOGS)),
            child: None,
            control: None,
            servers: BTreeSet::new(),
            deaths: 0,
            pause: FIRST_PAUSE,
            next: Instant::now(),
            told: String::new(),
        }
    }

    /// Returns the directory of the control daemon that runs now.
    pub fn pipes(&self) -> Option<String> {
        self.control.map(|_| self.pipes.display().to_string())
    }

    /// Returns how often a control daemon ended without an order of this daemon.
    pub fn deaths(&self) -> u64 {
        self.deaths
    }

    /// Hands the directories on to a keeper. A path that is too long for MPS' sockets stays out.
    pub fn hand_on(&self, welcome: &mut Welcome) {
        let fields = [(&self.pipes, &mut welcome.mps_pipes), (&self.logs, &mut welcome.mps_logs)];
        for (directory, field) in fields {
            let text = directory.to_str().unwrap_or_default();
            if self.control.is_some() && text.len() < DIRECTORY_BYTES {
                wire::set_text(field, text);
            }
        }
    }

    /// Looks at the control daemon, and starts one if none runs and the pause is over.
    fn look(&mut self) {
        let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        if let Some(status) = ended {
            self.child = None;
            self.died(format_args!("the MPS control daemon ended ({status})"));
        }
        let before = self.control.take();
        self.control = control_daemon(&self.pipes).and_then(ProcessKey::of);
        match (before, self.control) {
            (Some(before), now) if ended.is_none() && now != Some(before) && self.child.is_none() => {
                self.died(format_args!("the MPS control daemon {} ended", before.pid));
            }
            (Some(_), Some(_)) if Instant::now() >= self.next => self.pause = FIRST_PAUSE,
            (None, Some(control)) => {
                let directory = self.pipes.display();
                tracing::info!(pid = control.pid, %directory, "the MPS control daemon runs");
            }
            _ => {}
        }
        self.look_at_servers();
        if self.control.is_none() && self.child.is_none() && Instant::now() >= self.next {
            self.start();
        }
    }

    fn died(&mut self, what: std::fmt::Arguments<'_>) {
        self.deaths += 1;
        tracing::warn!(
            deaths = self.deaths,
            "{what}: later jobs run without MPS until a control daemon runs again; deepres starts one"
        );
        self.delay();
    }

    /// Puts the next start off. The pause grows while starts follow each other.
    fn delay(&mut self) {
        self.next = Instant::now() + self.pause;
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
    }

    /// Tells of servers that ended while their control daemon lives.
    fn look_at_servers(&mut self) {
        let Some(control) = self.control else { return self.servers.clear() };
        let children = text(control.pid, &format!("task/{}/children", control.pid)).unwrap_or_default();
        let servers: BTreeSet<ProcessKey> =
            deepres_model::mps::numbers(&children).filter_map(ProcessKey::of).collect();
        for ended in self.servers.difference(&servers) {
            tracing::warn!(
                pid = ended.pid,
                "an MPS server ended: if it had clients, these lost the GPU and have to be started again; the next client gets a new server"
            );
        }
        self.servers = servers;
    }

    fn start(&mut self) {
        let started = self.prepare().and_then(|()| {
            let mut command = Command::new(CONTROL_PROGRAM);
            for variable in NOT_FOR_MPS {
                command.env_remove(variable);
            }
            command
                .arg("-f")
                .env(PIPES_VARIABLE, &self.pipes)
                .env(LOGS_VARIABLE, &self.logs)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                // A signal of the terminal is for this daemon.
                .process_group(0);
            // SAFETY: between fork and exec the closure makes one system call.
            unsafe {
                command.pre_exec(|| {
                    // Clients of all users use the directories.
                    umask(Mode::from_raw_mode(USUAL_MASK));
                    Ok(())
                });
            }
            command.spawn()
        });
        match started {
            Ok(child) => {
                self.child = Some(child);
                // If the control daemon lives for this time, the pauses begin anew.
                self.next = Instant::now() + self.pause;
            }
            Err(error) => {
                let why = error.to_string();
                if why != self.told {
                    tracing::error!(
                        "the daemon cannot start {CONTROL_PROGRAM} in {}: {why}; jobs run without MPS",
                        self.pipes.display()
                    );
                    self.told = why;
                }
                self.delay();
            }
        }
    }

    /// Makes the daemon's own directories. Checks that a directory in a place where all users write
    /// is this user's.
    fn prepare(&self) -> io::Result<()> {
        let make =
            |directory: &PathBuf| fs::DirBuilder::new().recursive(true).mode(PRIVATE).create(directory);
        if self.are_own {
            make(&self.pipes)?;
            make(&self.logs)?;
        }
        match fs::symlink_metadata(&self.pipes) {
            Ok(found) if found.is_dir() && found.uid() == geteuid().as_raw() => Ok(()),
            Ok(_) => Err(io::Error::other("this is no directory of the daemon's user; remove it")),
            // The control daemon makes the directory, with the rights that its clients need.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Ends the control daemon if this daemon started it and it has no clients. Returns once the
    /// control daemon has ended.
    pub fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        match clients(&self.pipes) {
            Some(0) => {}
            Some(number) => {
                return tracing::info!(
                    clients = number,
                    "the MPS control daemon runs on, because it has clients"
                );
            }
            None => {
                return tracing::info!(
                    "the MPS control daemon runs on, because it does not tell its clients"
                );
            }
        }
        let _ = ask(&self.pipes, "quit");
        let asked = Instant::now();
        while matches!(child.try_wait(), Ok(None)) {
            if asked.elapsed() > ENDS_WITHIN {
                // The process is this daemon's child and not waited for, so its number is its own.
                let _ = kill_process(Pid::from_child(&child), Signal::TERM);
                break;
            }
            std::thread::sleep(LOOK_SOON);
        }
        tracing::info!("the daemon ended the MPS control daemon that it had started");
    }
}

/// Looks once, and waits until the control daemon that starts then runs, but not for long.
pub async fn begin(shared: &Shared) {
    let until = Instant::now() + STARTS_WITHIN;
    loop {
        look(shared);
        let is_starting = {
            let mps = shared.mps.borrow();
            mps.child.is_some() && mps.control.is_none()
        };
        if !is_starting || Instant::now() > until {
            return;
        }
        sleep(LOOK_SOON).await;
    }
}

/// Looks at the control daemon as long as the daemon serves. Never returns.
pub async fn serve(shared: Rc<Shared>) {
    loop {
        sleep(LOOK_EVERY).await;
        look(&shared);
    }
}

fn look(shared: &Shared) {
    let is_wanted = shared.registry.borrow().config().mps == MpsKey::Start;
    let mut mps = shared.mps.borrow_mut();
    if is_wanted {
        mps.look();
    } else {
        mps.control = None;
    }
    shared.registry.borrow().connected().serve_mps(mps.control);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_with_a_directory_of_its_own_has_mps_there() {
        let folder = tempfile::tempdir().unwrap();
        let mut mps = Mps::at(&Directory::at(folder.path()), [None, None], false);
        assert_eq!(Mps::at(&Directory::system(), [None, None], true).pipes.to_str(), Some(DEFAULT_PIPES));
        let mut welcome = Welcome::new(0, 0);
        mps.hand_on(&mut welcome);
        assert_eq!((mps.pipes(), wire::text(&welcome.mps_pipes)), (None, Some("")), "none runs");
        mps.control = ProcessKey::of(std::process::id());
        mps.hand_on(&mut welcome);
        assert_eq!(wire::text(&welcome.mps_pipes).map(PathBuf::from), Some(folder.path().join(OWN_PIPES)));
        assert_eq!(wire::text(&welcome.mps_logs).map(PathBuf::from), Some(folder.path().join(OWN_LOGS)));
    }

    #[test]
    fn starts_that_fail_follow_each_other_slower_and_slower_up_to_a_bound() {
        let folder = tempfile::tempdir().unwrap();
        let mut mps = Mps::at(&Directory::at(folder.path()), [None, None], false);
        let pauses: Vec<Duration> = (0..10)
            .map(|_| {
                mps.delay();
                mps.pause
            })
            .collect();
        assert!(pauses.is_sorted() && pauses[0] > FIRST_PAUSE, "{pauses:?}");
        assert_eq!(mps.pause, LONGEST_PAUSE);
    }

    #[test]
    fn a_directory_that_is_no_directory_of_this_user_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let there = folder.path().join("there");
        let mps = Mps::at(&Directory::at(folder.path()), [Some(there), None], false);
        assert!(mps.prepare().is_ok(), "the control daemon makes it");
        std::os::unix::fs::symlink(folder.path(), &mps.pipes).unwrap();
        assert!(mps.prepare().is_err());
    }
}
