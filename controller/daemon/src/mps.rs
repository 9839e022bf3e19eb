//! The MPS control daemon of `mps = "start"`: the daemon starts NVIDIA's control daemon if none
//! runs, watches it, and starts it again if it ends. The control daemon itself starts an MPS server
//! when the first client comes.

use crate::Shared;
use deepres_abi::wire::{self, DIRECTORY_BYTES, Welcome};
use deepres_model::config::{MpsKey, MpsUsersKey};
use deepres_model::directory::Directory;
use deepres_model::mps::{
    CONTROL_PROGRAM, DEFAULT_PIPES, LOGS_VARIABLE, PIPES_VARIABLE, ask_until, clients, control_daemon,
    control_program, named,
};
use deepres_model::process::ProcessKey;
use rustix::fs::{MemfdFlags, Mode, SealFlags, fcntl_add_seals, memfd_create};
use rustix::process::{Pid, Signal, geteuid, kill_process, umask};
use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Time between two looks at the control daemon.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Time between two looks while a control daemon starts or ends.
const LOOK_SOON: Duration = Duration::from_millis(10);
/// Time within which a control daemon starts. The daemon serves tenants after this time also
/// without the control daemon.
const STARTS_WITHIN: Duration = Duration::from_secs(3);
/// If an MPS control daemon has not written its process id after this time, the daemon ends it.
const HANGS_AFTER: Duration = Duration::from_secs(10);
/// The time within which MPS no longer counts a client that has just ended.
const SETTLES_WITHIN: Duration = Duration::from_millis(300);
/// Time within which a control daemon tells its clients, and ends if it has none.
const ENDS_WITHIN: Duration = Duration::from_secs(2);
/// Time within which a control daemon ends after SIGTERM.
const TERMINATES_WITHIN: Duration = Duration::from_millis(300);
/// The pause before the first new start. Each further start that fails doubles the pause.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The most bytes of error output that the daemon keeps of an MPS control daemon.
const ERRORS_BYTES: usize = 16 << 10;
/// The option by which NVIDIA's program serves the clients of all users by one server of root.
/// Before the Volta generation, the program takes the option too, but `cuInit` of a plain user's
/// client fails (NVIDIA's MPS guide; kubernetes-sigs/dra-driver-nvidia-gpu, pull request 1153).
const ALL_USERS: &str = "-multiuser-server";
/// The part of [`ALL_USERS`] by which the errors of a program without this option name it.
const ALL_USERS_NAME: &str = "multiuser";
/// The name of the directories in a daemon's own directory.
const OWN_PIPES: &str = "mps";
const OWN_LOGS: &str = "mps-log";
/// The hint for a control daemon that ended before it served, for a reason that it did not tell.
const OPTION_HINT: &str = "; if the driver is too old for `mps_users = \"all\"`, set \"one\"";
/// Variables of this daemon that are not for MPS.
const NOT_FOR_MPS: [&str; 4] = ["LD_PRELOAD", "NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS"];
/// The prefix of the names of CUDA's variables. These variables can come from the first job, and
/// would bind the clients of all jobs. For example, they limit the visible GPUs.
const OF_CUDA: &str = "CUDA_";
/// A directory that only its user can read.
const PRIVATE: u32 = 0o700;
/// A directory that all users can read.
const FOR_ALL: u32 = 0o755;
/// The usual mask of the modes of new files.
const USUAL_MASK: u32 = 0o022;

/// The control daemon of MPS that the jobs of this daemon use.
#[derive(Debug)]
pub struct Mps {
    pipes: PathBuf,
    logs: PathBuf,
    /// Whether both directories are in a user's own directory.
    are_own: bool,
    /// Whether the configuration has `mps = "start"`.
    is_wanted: bool,
    /// Whether the configuration has `mps_users = "all"`.
    serves_all: bool,
    /// The control daemon that this daemon started.
    child: Option<Child>,
    /// Whether this daemon started the last control daemon with [`ALL_USERS`].
    has_option: bool,
    /// Whether the control program does not know [`ALL_USERS`].
    lacks_option: bool,
    /// The errors that the last control daemon wrote.
    errors: Option<File>,
    /// The time of the last start, until the control daemon has noted its process.
    starting: Option<Instant>,
    /// The control daemon that runs now.
    control: Option<ProcessKey>,
    /// The living MPS servers of this and of former control daemons.
    servers: BTreeSet<ProcessKey>,
    deaths: u64,
    pause: Duration,
    /// The earliest time of the next start.
    next: Instant,
    /// The last obstacle that the log has.
    told: String,
}

impl Mps {
    /// Returns the state before the first look. The environment names the directory. Without a
    /// name, the system's daemon uses the directory of the driver. A user's daemon uses a directory
    /// of its own, unless a control daemon runs for all users.
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
            is_wanted: false,
            serves_all: false,
            child: None,
            has_option: false,
            lacks_option: false,
            errors: None,
            starting: None,
            control: None,
            servers: BTreeSet::new(),
            deaths: 0,
            pause: FIRST_PAUSE,
            next: Instant::now(),
            told: String::new(),
        }
    }

    /// Returns whether a control daemon runs for later jobs.
    fn serves(&self) -> bool {
        self.is_wanted && self.control.is_some()
    }

    /// Returns the directory of the control daemon that runs now.
    pub fn pipes(&self) -> Option<String> {
        self.serves().then(|| self.pipes.display().to_string())
    }

    /// Returns whether an MPS control daemon runs that jobs may find: in the directory for the jobs
    /// of this daemon, or in the driver's own.
    pub fn runs(&self) -> bool {
        let directories = [self.pipes.as_path(), Path::new(DEFAULT_PIPES)];
        directories.into_iter().any(|directory| control_daemon(directory).is_some())
    }

    /// Returns how often a control daemon ended without an order of this daemon.
    pub fn deaths(&self) -> u64 {
        self.deaths
    }

    /// Hands the directories on to a keeper. The function leaves out a path that is too long for
    /// MPS' sockets.
    pub fn hand_on(&self, welcome: &mut Welcome) {
        let fields = [(&self.pipes, &mut welcome.mps_pipes), (&self.logs, &mut welcome.mps_logs)];
        for (directory, field) in fields {
            let text = directory.to_str().unwrap_or_default();
            if self.serves() && text.len() < DIRECTORY_BYTES {
                wire::set_text(field, text);
            }
        }
    }

    /// Sets whether the control daemons that start from now on serve the clients of all users.
    fn set_users(&mut self, serves_all: bool) {
        if serves_all != self.serves_all {
            self.serves_all = serves_all;
            self.lacks_option = false;
        }
    }

    /// Looks at the control daemon, and starts one if none runs and the pause is over. If
    /// `is_wanted` is false, looks only at the MPS control daemon that this daemon started before a
    /// reload.
    fn look(&mut self, is_wanted: bool) {
        if self.is_wanted && !is_wanted && self.child.is_some() {
            tracing::info!(
                "the MPS control daemon that the daemon started runs on for its clients, but no later job gets it"
            );
        }
        self.is_wanted = is_wanted;
        let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        if let Some(status) = ended {
            self.child = None;
            let said = self.errors.take().map(|errors| text(&errors)).unwrap_or_default();
            let why = last_line(&said);
            // The time of the start is set until the control daemon serves.
            let is_about_option = self.has_option && self.starting.is_some();
            if is_about_option && said.contains(ALL_USERS_NAME) {
                self.deaths += 1;
                self.lacks_option = true;
                tracing::error!(
                    "{CONTROL_PROGRAM} does not know the option {ALL_USERS} of `mps_users = \"all\"` ({status}{why}): jobs run without MPS; install a newer driver and restart deepres, or set `mps_users = \"one\"` and run `deepres reload`"
                );
            } else {
                let hint = if is_about_option { OPTION_HINT } else { "" };
                self.died(format_args!("the MPS control daemon ended ({status}{why}{hint})"));
            }
        }
        let before = self.control.take();
        if is_wanted || self.child.is_some() {
            self.control = control_daemon(&self.pipes).and_then(ProcessKey::of);
        }
        match (before, self.control) {
            (Some(before), now)
                if is_wanted && ended.is_none() && now != Some(before) && self.child.is_none() =>
            {
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
        self.starting = self.starting.filter(|_| self.control.is_none() && self.child.is_some());
        if self.starting.is_some_and(|began| began.elapsed() > HANGS_AFTER) {
            self.end_hanging();
        }
        let may_start = is_wanted && !self.lacks_option && Instant::now() >= self.next;
        if may_start && self.control.is_none() && self.child.is_none() {
            self.start();
        }
    }

    /// Ends the control daemon that this daemon started. The next look finds it ended.
    fn end_hanging(&mut self) {
        self.starting = None;
        let Some(child) = &mut self.child else { return };
        tracing::warn!(
            pid = child.id(),
            "{CONTROL_PROGRAM} does not serve in {} after {HANGS_AFTER:?}; the daemon ends it",
            self.pipes.display()
        );
        end(child);
    }

    fn died(&mut self, what: std::fmt::Arguments<'_>) {
        self.deaths += 1;
        let deaths = self.deaths;
        if self.is_wanted {
            tracing::warn!(
                deaths,
                "{what}: later jobs run without MPS until a control daemon runs again; deepres starts one"
            );
        } else {
            tracing::info!(deaths, "{what}");
        }
        self.delay();
    }

    /// Puts the next start off. The pause grows while starts follow each other.
    fn delay(&mut self) {
        self.next = Instant::now() + self.pause;
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
    }

    /// Looks for new servers, and tells of servers that ended while a control daemon lives. A
    /// server with clients outlives its control daemon.
    fn look_at_servers(&mut self) {
        let is_served = self.control.is_some();
        self.servers.retain(|server| {
            let is_alive = server.is_alive();
            if !is_alive && is_served {
                tracing::warn!(
                    pid = server.pid,
                    "an MPS server ended: if it had clients, these lost the GPU and have to be started again; the next client gets a new server"
                );
            }
            is_alive
        });
        self.servers.extend(self.control.into_iter().flat_map(|control| children(control.pid)));
    }

    fn start(&mut self) {
        let started = self.prepare().and_then(|()| {
            let mut command = Command::new(control_program()?);
            let inherited = env::vars_os().map(|(name, _)| name);
            self.set_variables(inherited, &mut command);
            let errors = self.errors.insert(errors()?).try_clone()?;
            command
                .arg("-f")
                .args(self.serves_all.then_some(ALL_USERS))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(errors)
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
                if self.serves_all {
                    tracing::warn!(
                        "the MPS control daemon serves the clients of all users by one server: a fatal fault of one client ends the clients of all users"
                    );
                } else if geteuid().is_root() {
                    tracing::warn!(
                        "an MPS control daemon serves one user at a time: jobs of other users wait in cuInit until the user's last client has ended; to serve all users at once, set `mps_users = \"all\"`"
                    );
                }
                self.child = Some(child);
                self.has_option = self.serves_all;
                self.starting = Some(Instant::now());
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

    /// Sets the variables of a control daemon that has `inherited` variables of these names.
    fn set_variables(&self, inherited: impl Iterator<Item = OsString>, command: &mut Command) {
        for name in inherited.filter(|name| name.as_bytes().starts_with(OF_CUDA.as_bytes())) {
            command.env_remove(name);
        }
        for name in NOT_FOR_MPS {
            command.env_remove(name);
        }
        command.env(PIPES_VARIABLE, &self.pipes).env(LOGS_VARIABLE, &self.logs);
    }

    /// Makes the directories that are missing. Checks that the directory of MPS is this user's,
    /// because any user can make a directory in a place where all users write.
    fn prepare(&self) -> io::Result<()> {
        if self.are_own {
            make(&self.logs)?;
        }
        make(&self.pipes)?;
        let found = fs::symlink_metadata(&self.pipes)?;
        if found.is_dir() && found.uid() == geteuid().as_raw() {
            Ok(())
        } else {
            Err(io::Error::other("this is no directory of the daemon's user; remove it"))
        }
    }

    /// Ends the control daemon if this daemon started it and it has no clients. Returns once the
    /// control daemon has ended.
    pub fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let deadline = Instant::now() + ENDS_WITHIN;
        let settled = Instant::now() + SETTLES_WITHIN;
        let mut has = clients(&self.pipes, deadline);
        while has.is_some_and(|number| number > 0) && Instant::now() < settled {
            thread::sleep(SETTLES_WITHIN / 10);
            has = clients(&self.pipes, deadline);
        }
        match has {
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
        let _ = ask_until(&self.pipes, "quit", deadline);
        if !has_ended(&mut child, deadline) {
            end(&mut child);
        }
        tracing::info!("the daemon ended the MPS control daemon that it had started");
    }
}

/// Makes a directory, unless it is there. All users use the directories of root's control daemon.
fn make(directory: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(PRIVATE).create(directory) {
        Ok(()) if geteuid().is_root() => fs::set_permissions(directory, fs::Permissions::from_mode(FOR_ALL)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Returns a file for the errors of a control daemon. The file does not grow, because a control
/// daemon can write for years, and can outlive this daemon.
fn errors() -> io::Result<File> {
    let file = File::from(memfd_create("mps-errors", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.set_len(ERRORS_BYTES as u64)?;
    fcntl_add_seals(&file, SealFlags::GROW)?;
    Ok(file)
}

/// Returns the errors that a control daemon wrote.
fn text(errors: &File) -> String {
    let mut bytes = vec![0; ERRORS_BYTES];
    let read = errors.read_at(&mut bytes, 0).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..read]).trim_end_matches('\0').to_owned()
}

/// Returns the last line of a text after a colon, or nothing if there is no line.
fn last_line(text: &str) -> String {
    let line = text.lines().rfind(|line| !line.trim().is_empty());
    line.map(|line| format!(": {}", line.trim().escape_debug())).unwrap_or_default()
}

/// Returns the living children of all threads of a process.
fn children(pid: u32) -> BTreeSet<ProcessKey> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let of_list = |list: String| -> Vec<ProcessKey> {
        list.split_whitespace().filter_map(|pid| ProcessKey::of(pid.parse().ok()?)).collect()
    };
    lists.flat_map(of_list).collect()
}

/// Waits until a child has ended, or until `deadline`. Returns whether it has ended.
fn has_ended(child: &mut Child, deadline: Instant) -> bool {
    loop {
        if !matches!(child.try_wait(), Ok(None)) {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(LOOK_SOON);
    }
}

/// Ends a child by a signal. Returns once it has ended.
fn end(child: &mut Child) {
    // Nobody has waited for the child, so its number is its own.
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
    if !has_ended(child, Instant::now() + TERMINATES_WITHIN) {
        let _ = child.kill();
        let _ = child.wait();
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
    let (is_wanted, serves_all) = {
        let registry = shared.registry.borrow();
        let config = registry.config();
        (config.mps == MpsKey::Start, config.mps_users == MpsUsersKey::All)
    };
    let mut mps = shared.mps.borrow_mut();
    mps.set_users(serves_all);
    mps.look(is_wanted);
    shared.registry.borrow().connected().serve_mps(mps.control, &mps.servers);
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
        assert_eq!(mps.pipes(), None, "after a reload, no later job gets it");
        mps.is_wanted = true;
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
        assert!(mps.prepare().is_ok() && mps.pipes.is_dir());
        assert!(mps.prepare().is_ok(), "it is there already");
        let mode = fs::metadata(&mps.pipes).unwrap().mode() & 0o777;
        assert_eq!(mode, if geteuid().is_root() { FOR_ALL } else { PRIVATE });
        fs::remove_dir(&mps.pipes).unwrap();
        std::os::unix::fs::symlink(folder.path(), &mps.pipes).unwrap();
        assert!(mps.prepare().is_err());
    }

    #[test]
    fn the_variables_of_the_first_job_are_not_those_of_mps() {
        let folder = tempfile::tempdir().unwrap();
        let mps = Mps::at(&Directory::at(folder.path()), [None, None], false);
        let mut command = Command::new("none");
        let names = ["CUDA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", PIPES_VARIABLE, "PATH"];
        mps.set_variables(names.into_iter().map(OsString::from), &mut command);
        let set = |name: &str| command.get_envs().find(|(of, _)| *of == name).map(|(_, value)| value);
        assert_eq!((set(names[0]), set(names[1]), set("PATH")), (Some(None), Some(None), None));
        assert_eq!(set(PIPES_VARIABLE), Some(Some(mps.pipes.as_os_str())));
    }

    #[test]
    fn a_server_outlives_its_control_daemon_and_a_reload() {
        let folder = tempfile::tempdir().unwrap();
        let mut mps = Mps::at(&Directory::at(folder.path()), [None, None], false);
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let server = ProcessKey::of(child.id()).unwrap();
        mps.control = ProcessKey::of(std::process::id());
        mps.look_at_servers();
        assert!(mps.servers.contains(&server), "a child of any thread");
        mps.look(false);
        assert!(mps.control.is_none() && mps.servers.contains(&server));
        end(&mut child);
        mps.look(false);
        assert!(!mps.servers.contains(&server));
    }

    #[test]
    fn the_reason_of_a_failed_start_is_the_last_line_of_its_errors() {
        let kept = errors().unwrap();
        assert_eq!(last_line(&text(&kept)), "");
        let run = |script: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", script]).stderr(kept.try_clone().unwrap()).status().unwrap()
        };
        run("echo first >&2; echo no GPU >&2; exit 1");
        assert_eq!(last_line(&text(&kept)), ": no GPU");
        let _ = run("head -c 100000 /dev/zero >&2");
        assert_eq!(kept.metadata().unwrap().len(), ERRORS_BYTES as u64);
    }

    #[test]
    fn a_program_without_the_option_for_all_users_is_started_no_more_until_the_key_changes() {
        let folder = tempfile::tempdir().unwrap();
        let mut mps = Mps::at(&Directory::at(folder.path()), [None, None], false);
        mps.set_users(true);
        let mut ends = |said: &str, began: Option<Instant>| {
            let kept = errors().unwrap();
            let mut child = Command::new("sh");
            child.args(["-c", "echo \"$0\" >&2; exit 1", said]).stderr(kept.try_clone().unwrap());
            let mut child = child.spawn().unwrap();
            child.wait().unwrap();
            (mps.child, mps.errors, mps.starting, mps.has_option) = (Some(child), Some(kept), began, true);
            mps.look(false);
            (mps.lacks_option, mps.deaths())
        };
        let now = Some(Instant::now());
        assert_eq!(ends("no GPU", now), (false, 1), "a later start may succeed");
        assert_eq!(ends("it served with -multiuser-server", None), (false, 2));
        assert_eq!(ends("unknown option -multiuser-server\nusage: [-d | -f]", now), (true, 3));
        mps.next = Instant::now();
        mps.look(true);
        assert!(mps.child.is_none() && mps.told.is_empty(), "no start was tried");
        mps.set_users(true);
        assert!(mps.lacks_option);
        mps.set_users(false);
        assert!(!mps.lacks_option);
    }

    #[test]
    fn a_control_daemon_that_hangs_as_it_starts_is_ended_and_counts_as_a_death() {
        let folder = tempfile::tempdir().unwrap();
        let mut mps = Mps::at(&Directory::at(folder.path()), [None, None], false);
        let hanging = |mps: &mut Mps, began: Option<Instant>| {
            mps.child = Some(Command::new("sleep").arg("100").spawn().unwrap());
            mps.starting = began;
            mps.look(false);
            mps.look(false);
        };
        hanging(&mut mps, Some(Instant::now().checked_sub(2 * HANGS_AFTER).unwrap()));
        assert_eq!((mps.child.is_none(), mps.deaths(), mps.starting), (true, 1, None));
        assert!(mps.next > Instant::now() && mps.pause > FIRST_PAUSE, "the next start is put off");
        // One that served once can still serve its last clients.
        hanging(&mut mps, None);
        end(&mut mps.child.take().expect("it goes on"));
    }
}
