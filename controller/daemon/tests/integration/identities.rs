//! The tenants that the daemon finds for real processes.

use deepres_abi::wire::{Role, set_text};
use deepres_daemon::Gpu;
use deepres_daemon_harness::{Daemon, Tenant, wait_until};
use deepres_model::admin::TenantStatus;
use deepres_model::config::Config;
use deepres_model::identity::Found;
use deepres_model::packet;
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The limit for waits without a limit of their own.
const PATIENCE: Duration = Duration::from_secs(20);
const ROLE: &str = "DEEPRES_TEST_IDENTITY";
const SOCKET: &str = "DEEPRES_TEST_SOCKET";
const GPU: &str = "DEEPRES_TEST_GPU";
/// The name that the process gives. If the variable is missing, the process gives no name.
const NAME: &str = "DEEPRES_TEST_NAME";
/// A cgroup that the process enters at its start.
const CGROUP: &str = "DEEPRES_TEST_CGROUP";
/// Time after which a daemon that ends admits no session any more.
const ENDED_WITHIN: Duration = Duration::from_millis(300);
/// Mount points of cgroup hierarchies: version 1 with one controller, version 2 beside version 1,
/// and version 2 alone.
const HIERARCHIES: [&str; 3] = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
const WORKERS: usize = 3;

/// Not a test: a process of a job. A launcher has no session. The launcher starts workers, each in
/// a kernel session of its own, as torchrun does. A worker opens a session with each daemon that
/// comes.
#[test]
fn job_process() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    if role == "launcher" {
        let workers: Vec<Child> = (0..WORKERS).map(|_| start_worker()).collect();
        println!("started");
        for mut worker in workers {
            worker.wait().unwrap();
        }
    } else {
        if let Some(cgroup) = std::env::var_os(CGROUP) {
            std::fs::write(Path::new(&cgroup).join("cgroup.procs"), "0").unwrap();
        }
        for sessions_before in 0.. {
            let session = session(&std::env::var(NAME).unwrap_or_default(), sessions_before);
            if sessions_before == 0 {
                println!("connected");
            }
            poll(&mut [PollFd::new(&session.connection, PollFlags::IN)], None).unwrap();
            std::thread::sleep(ENDED_WITHIN);
            let socket = std::env::var_os(SOCKET).unwrap();
            wait_until(PATIENCE, || packet::connection(socket.as_ref()).is_ok());
        }
    }
}

/// Returns a session of this process.
fn session(name: &str, sessions_before: u32) -> Tenant {
    let gpu = Gpu::new(&std::env::var(GPU).unwrap(), "", 1).unwrap();
    let mut hello = deepres_daemon_harness::hello(Role::Session, name, &[gpu.uuid]);
    hello.sessions_before = sessions_before;
    set_text(&mut hello.client, "worker");
    Tenant::connect(std::env::var_os(SOCKET).unwrap().as_ref(), &hello).unwrap()
}

/// Returns a command that starts this program as a process of a job.
fn process(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "identities::job_process", "--nocapture"])
        .env(ROLE, role)
        .stdout(Stdio::piped());
    command
}

/// Starts a worker in a kernel session of its own. The worker ends with this process.
fn start_worker() -> Child {
    let mut command = process("worker");
    // SAFETY: between fork and exec the child makes two system calls only.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            rustix::process::setsid()?;
            Ok(())
        });
    }
    command.spawn().unwrap()
}

/// A process of a job, from the view of the test. The drop ends the process.
struct Outside(Child);

impl Outside {
    /// Starts a process, and waits until it prints this line.
    fn start(mut command: Command, daemon: &Daemon, ready: &str) -> Self {
        command.env(SOCKET, daemon.directory.tenant_socket()).env(GPU, &daemon.gpus[0].uuid_text);
        let mut process = Self(command.spawn().unwrap());
        let lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains(ready)));
        process
    }

    /// Starts a worker that gives the name `train`. If `cgroup` is given, the worker enters it.
    fn worker(daemon: &Daemon, cgroup: Option<&Cgroup>) -> Self {
        let mut command = process("worker");
        command.env(NAME, "train").envs(cgroup.map(|cgroup| (CGROUP, &cgroup.0)));
        Self::start(command, daemon, "connected")
    }

    /// Returns the tenant of the process's session; `None` without a session.
    fn tenant(&self, daemon: &Daemon) -> Option<TenantStatus> {
        let is_its = |tenant: &TenantStatus| tenant.sessions.iter().any(|session| session.pid == self.0.id());
        daemon.status().tenants.into_iter().find(is_its)
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn the_workers_of_a_launcher_are_one_tenant_and_so_is_all_that_one_starts() {
    let daemon = Daemon::start(1, Config::default());
    let _launcher = Outside::start(process("launcher"), &daemon, "started");
    let sessions = || daemon.status().tenants.iter().map(|tenant| tenant.sessions.len()).sum::<usize>();
    wait_until(PATIENCE, || sessions() == WORKERS);
    let status = daemon.status();
    assert_eq!(status.tenants.len(), 1, "{:?}", status.tenants);
    let found = status.tenants[0].found.clone().unwrap();
    // The root is the launcher, or a process above it that started this test. In any case, all
    // workers have the same root.
    assert!(
        matches!(found, Found::Tree { .. } | Found::Container | Found::Pod | Found::Slurm { .. }),
        "{found:?}"
    );
}

#[test]
fn a_child_of_a_tenants_process_belongs_to_it_though_it_gives_no_name() {
    let daemon = Daemon::start(1, Config::default());
    // This process has a session under that name. Its child gives no name.
    let _parent = daemon.join("parent", 300_000, 0);
    let _child = Outside::start(process("worker"), &daemon, "connected");
    let status = daemon.status();
    assert_eq!((status.tenants.len(), status.tenants[0].sessions.len()), (1, 2), "{:?}", status.tenants);
}

/// A cgroup of the test. Drop removes the cgroup.
struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes a cgroup of this name in the first hierarchy that allows it. Returns `None` if no
    /// hierarchy does.
    fn make(name: &str) -> Option<Self> {
        let made = HIERARCHIES.map(|hierarchy| Path::new(hierarchy).join(name)).into_iter().find(|path| {
            std::fs::create_dir(path).is_ok_and(|()| {
                let is_one = path.join("cgroup.procs").exists();
                if !is_one {
                    std::fs::remove_dir(path).unwrap();
                }
                is_one
            })
        });
        made.map(Self)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // After the end of its last process, a cgroup stays busy for a moment.
        wait_until(PATIENCE, || std::fs::remove_dir(&self.0).is_ok());
    }
}

/// Returns two cgroups as Docker makes them, with names of this test process alone. If this user or
/// the machine cannot have them, reports the test as skipped and returns `None`.
fn containers(kind: u32) -> Option<[Cgroup; 2]> {
    if !deepres_e2e::skip::root_or_skipped() {
        return None;
    }
    let name = |number: u32| format!("docker-{kind:04x}{number:04x}{:056x}.scope", std::process::id());
    let (Some(first), Some(second)) = (Cgroup::make(&name(1)), Cgroup::make(&name(2))) else {
        deepres_e2e::skip::skipped("no cgroup can be made here");
        return None;
    };
    Some([first, second])
}

#[test]
fn a_name_given_in_a_container_is_a_tenant_of_its_own_over_a_restart_too() {
    let Some([first, second]) = containers(1) else { return };
    let daemon = Daemon::start(1, Config::default());
    let workers =
        [Some(&first), Some(&first), Some(&second), None].map(|place| Outside::worker(&daemon, place));
    let check = |daemon: &Daemon| {
        wait_until(PATIENCE, || workers.iter().all(|worker| worker.tenant(daemon).is_some()));
        workers.each_ref().map(|worker| worker.tenant(daemon).unwrap())
    };
    let [one, same, other, outside] = check(&daemon);
    assert_eq!(one.name, same.name, "one container's processes are one tenant");
    let names: BTreeSet<&str> = [&one, &other, &outside].map(|tenant| tenant.name.as_str()).into();
    assert_eq!(names, ["train", "train-2", "train-3"].into());
    let within = |tenant: &TenantStatus| match &tenant.found {
        Some(Found::Name { within }) => within.clone(),
        other => panic!("not by its name but {other:?}"),
    };
    assert_eq!(within(&outside), None);
    assert!(within(&one).is_some_and(|place| place.starts_with("docker-00010001")));

    let before = check(&daemon).map(|tenant| tenant.name);
    let next = daemon.restart();
    assert_eq!(check(&next).map(|tenant| tenant.name), before);
}

#[test]
fn a_shared_name_is_one_tenant_over_containers_and_other_processes() {
    let Some([first, second]) = containers(2) else { return };
    let shared_names = vec!["train".to_owned()];
    let daemon = Daemon::start(1, Config { shared_names, ..Config::default() });
    let workers = [Some(&first), Some(&second), None].map(|place| Outside::worker(&daemon, place));
    let check = |daemon: &Daemon| {
        wait_until(PATIENCE, || workers.iter().all(|worker| worker.tenant(daemon).is_some()));
        for worker in &workers {
            let tenant = worker.tenant(daemon).unwrap();
            assert_eq!((tenant.name.as_str(), tenant.sessions.len()), ("train", 3));
        }
    };
    check(&daemon);
    // When the name is no longer shared, both workers stay in one tenant, as after an older daemon
    // without this rule. A worker that comes later does not join them.
    let next = daemon.restart_with(Config::default());
    check(&next);
    let later = Outside::worker(&next, Some(&second));
    assert_eq!(later.tenant(&next).unwrap().name, "train-2");
}
