//! The daemon that `deepres run` starts serves later jobs too. Such a daemon leaves the job that
//! started it, and makes a removed directory anew or ends. If the daemon dies, `deepres run` starts
//! the next one.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use deepres_e2e::alive;
use deepres_e2e::prelude::*;
use rustix::process::{Pid, kill_process};

/// Time within which a daemon, or a `deepres run`, notices a loss and makes up for it.
const MADE_UP_WITHIN: Duration = Duration::from_secs(5);
/// Time within which a daemon ends that cannot make its directory anew. It tries for five seconds.
const ENDED_WITHIN: Duration = Duration::from_secs(15);
/// Numbers of users whom only the test of a user without a directory has. Each process has its own
/// user, because the directory below `/tmp` has the user's number in its name.
const USERS: std::ops::Range<u32> = 20_000..60_000;
/// Priority of a job, and the processor on which it runs.
const NICE: &str = "10";
/// Hierarchy of cgroups of version 1, with one controller.
const CGROUPS: &str = "/sys/fs/cgroup/pids";

/// Returns a `deepres run` of a tenant whose first process waits for a line of input, and then
/// becomes a client that shows its memory.
fn waiting(host: &Host, name: &str) -> Command {
    let view = c_client("view").display().to_string();
    let options = ["--name", name, "--memory", "1GiB"];
    host.run(&options, "sh", &["-c", "read go; exec \"$0\"", &view])
}

/// Starts a job without a daemon. Returns the job, and the id of the daemon that it started.
fn first_job(host: &Host) -> (Process, u32) {
    let job = host.spawn(waiting(host, "first"));
    eventually("the job has started a daemon", || host.call(&["ps"]).code == 0);
    let ps = host.await_ps(|ps| ps.find("first").is_some());
    (job, ps.daemon_pid)
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).expect("a process"), signal).expect("it runs");
}

#[test]
fn a_removed_directory_is_made_anew_and_later_processes_keep_their_limits() {
    let host = Host::new();
    let (mut job, daemon) = first_job(&host);
    fs::remove_dir_all(host.deepres_dir()).expect("a folder of our own");
    eventually_within("the sockets are there again", MADE_UP_WITHIN, || host.call(&["ps"]).code == 0);
    job.say("go");
    assert_eq!(job.await_json()["total"], GIB, "{}", job.stderr());
    let ps = host.await_ps(|ps| ps.find("first").is_some_and(|first| first.sessions.len() == 1));
    assert_eq!(ps.daemon_pid, daemon);
    let second = host.told(waiting_no_more(&host)).0;
    second.finish().success();
    eventually("the state is there again", || host.deepres_dir().join("state.json").exists());
    job.close_stdin();
    job.await_end();
}

/// Returns the command by which a plain user runs a `deepres` command. The user has this runtime
/// directory, and no variable names the daemon's directory.
fn as_user(host: &Host, user: u32, runtime: &Path, deepres: &Command) -> Command {
    let mut command = host.command("setpriv");
    command
        .args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".to_owned()])
        .arg(deepres.get_program())
        .args(deepres.get_args())
        .env_remove("DEEPRES_DIR")
        .env("XDG_RUNTIME_DIR", runtime)
        .env("HOME", host.path());
    command
}

/// A directory below `/tmp`. Drop removes the directory.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // A test that fails early has not made the directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_daemon_that_cannot_make_its_directory_anew_ends_and_the_next_run_starts_one_elsewhere() {
    if !deepres_e2e::skip::root_or_skipped() {
        return;
    }
    let user = USERS.start + std::process::id() % USERS.len() as u32;
    // The host ends before the directory goes.
    let temporary = Temporary(format!("/tmp/deepres-{user}").into());
    let host = Host::new();
    host.let_all_users_in();
    let runtime = host.path().join("runtime");
    fs::create_dir(&runtime).expect("a folder of our own");
    chown(&runtime, Some(user), Some(user)).expect("root may give it away");
    let ask = |deepres: &Command| as_user(&host, user, &runtime, deepres);
    let ps = || {
        let done = host.finish(ask(&host.deepres(&["ps", "--json"])));
        (done.code == 0).then(|| Ps::parse(&done.stdout))
    };
    let daemon_of = |tenant: &str| {
        let has = |ps: &Option<Ps>| ps.as_ref().is_some_and(|ps| ps.find(tenant).is_some());
        await_value(ps, has).expect("it has the tenant").daemon_pid
    };
    let mut job = host.spawn(ask(&waiting(&host, "first")));
    let first = daemon_of("first");
    assert!(runtime.join("deepres").is_dir() && !temporary.0.exists());
    fs::remove_dir_all(&runtime).expect("a folder of our own");
    eventually_within("the daemon ends", ENDED_WITHIN, || !alive(first));
    let (_second, said) = host.told(ask(&host.run(&["--name", "second"], c_client("view"), &[])));
    assert_ne!(said["total"], GIB, "the second job has no limit");
    assert_ne!(daemon_of("second"), first);
    assert!(temporary.0.is_dir());
    job.say("go");
    assert_eq!(job.await_json()["total"], GIB, "{}", job.stderr());
    job.close_stdin();
    job.await_end();
}

/// Returns a `deepres run` of another tenant, whose client shows its memory at once.
fn waiting_no_more(host: &Host) -> Command {
    host.run(&["--name", "second"], c_client("view"), &[])
}

#[test]
fn a_job_that_lives_starts_the_next_daemon_after_one_that_died_and_none_after_one_that_ended() {
    let host = Host::new();
    let (mut job, daemon) = first_job(&host);
    signal(daemon, Signal::KILL);
    let is_next =
        |ps: &Ps| ps.daemon_pid != daemon && ps.find("first").is_some_and(|first| first.keepers == 1);
    eventually_within("a daemon answers", MADE_UP_WITHIN, || host.call(&["ps"]).code == 0);
    let next = host.await_ps_within(is_next, MADE_UP_WITHIN).daemon_pid;
    assert!(job.stderr().contains("the daemon died"), "{}", job.stderr());
    job.say("go");
    assert_eq!(job.await_json()["total"], GIB);
    signal(next, Signal::TERM);
    eventually("the daemon ends", || !host.tenant_socket().exists());
    thread::sleep(Duration::from_secs(1));
    assert!(!host.tenant_socket().exists(), "an administrator ended it: {}", job.stderr());
    job.close_stdin();
    job.await_end();
}

/// Returns the words of a field of `/proc/PID/status`.
fn status(pid: u32, field: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = text.lines().find(|line| line.starts_with(field)).expect("the field");
    line[field.len()..].trim().to_owned()
}

/// Returns the nice value of a process.
fn nice(pid: u32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, tail) = stat.rsplit_once(')').expect("a name");
    // proc_pid_stat(5) counts fields from 1. The first field after the name is the third.
    tail.split_whitespace().nth(19 - 3).and_then(|nice| nice.parse().ok()).expect("a number")
}

#[test]
fn the_daemon_leaves_the_job_that_started_it() {
    if !deepres_e2e::skip::root_or_skipped() {
        return;
    }
    let host = Host::new();
    let cgroup = Cgroup::make();
    let job = waiting(&host, "first");
    let script = "echo $$ > \"$0\"; ulimit -S -t 4000; exec nice -n \"$@\"";
    let mut limited = host.command("sh");
    limited.args(["-c", script]).arg(cgroup.0.join("cgroup.procs")).args([NICE, "taskset", "-c", "0"]);
    limited.arg(job.get_program()).args(job.get_args());
    let mut job = host.spawn(limited);
    eventually("the job has started a daemon", || host.call(&["ps"]).code == 0);
    let daemon = host.ps().daemon_pid;
    assert_eq!(nice(daemon), 0);
    let processors = |pid| status(pid, "Cpus_allowed_list:");
    assert_eq!(processors(daemon), processors(std::process::id()));
    let limits = fs::read_to_string(format!("/proc/{daemon}/limits")).expect("it runs");
    let is_free = |line: &str| line.starts_with("Max cpu time") && line.contains("unlimited");
    assert!(limits.lines().any(is_free), "{limits}");
    cgroup.kill();
    job.await_end();
    thread::sleep(Duration::from_millis(300));
    assert!(alive(daemon), "it outlives the job");
    host.told(waiting_no_more(&host)).0.finish().success();
    assert_eq!(host.ps().daemon_pid, daemon);
}

/// A cgroup of a job. Drop removes the cgroup.
struct Cgroup(PathBuf);

impl Cgroup {
    fn make() -> Self {
        let path = Path::new(CGROUPS).join(format!("deepres-e2e-{}", std::process::id()));
        fs::create_dir_all(&path).expect("root may make cgroups");
        Self(path)
    }

    /// Kills each process in the cgroup, as a batch system ends a job.
    fn kill(&self) {
        let pids = fs::read_to_string(self.0.join("cgroup.procs")).expect("a cgroup");
        pids.lines().filter_map(|pid| pid.parse().ok()).for_each(|pid| signal(pid, Signal::KILL));
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The cgroup is busy for a moment after its last process ended.
        let until = Instant::now() + MADE_UP_WITHIN;
        while fs::remove_dir(&self.0).is_err() && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
    }
}
