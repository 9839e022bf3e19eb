//! Which tenant real processes come out as, when none gives a name.

use crate::support::{Daemon, Tenant, wait_until};
use deepres_abi::wire::{Role, set_text};
use deepres_controller::config::Config;
use deepres_controller::daemon::Gpu;
use deepres_controller::identity::Found;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// For what has no bound of its own.
const PATIENCE: Duration = Duration::from_secs(20);
const ROLE: &str = "DEEPRES_TEST_IDENTITY";
const SOCKET: &str = "DEEPRES_TEST_SOCKET";
const GPU: &str = "DEEPRES_TEST_GPU";
const WORKERS: usize = 3;

/// Not a test: a process of a job. A launcher starts workers, each in a session of its own as torchrun does, and has no session;
/// a worker has one.
#[test]
fn job_process() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    if role == "launcher" {
        let workers: Vec<Child> = (0..WORKERS).map(|_| start("worker", true)).collect();
        println!("started");
        for mut worker in workers {
            worker.wait().unwrap();
        }
    } else {
        let _session = session("");
        println!("connected");
        std::thread::sleep(Duration::from_secs(60));
    }
}

/// A session of this process.
fn session(name: &str) -> Tenant {
    let gpu = Gpu::new(&std::env::var(GPU).unwrap(), "", 1).unwrap();
    let mut hello = crate::support::hello(Role::Session, name, &[gpu.uuid]);
    set_text(&mut hello.client, "worker");
    Tenant::connect(std::env::var_os(SOCKET).unwrap().as_ref(), &hello).unwrap()
}

fn start(role: &str, in_own_session: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "identities::job_process", "--nocapture"])
        .env(ROLE, role)
        .stdout(Stdio::piped());
    // SAFETY: between fork and exec two system calls are made.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            if in_own_session {
                rustix::process::setsid()?;
            }
            Ok(())
        });
    }
    command.spawn().unwrap()
}

#[test]
fn the_workers_of_a_launcher_are_one_tenant_and_so_is_all_that_one_starts() {
    let daemon = Daemon::start(1, Config::default());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "identities::job_process", "--nocapture"])
        .env(ROLE, "launcher")
        .env(SOCKET, daemon.directory.tenant_socket())
        .env(GPU, &daemon.gpus[0].uuid_text)
        .stdout(Stdio::piped());
    let mut launcher = command.spawn().unwrap();
    let lines = BufReader::new(launcher.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("started")));
    let sessions = || daemon.status().tenants.iter().map(|tenant| tenant.sessions.len()).sum::<usize>();
    wait_until(PATIENCE, || sessions() == WORKERS);
    let status = daemon.status();
    assert_eq!(status.tenants.len(), 1, "{:?}", status.tenants);
    let found = status.tenants[0].found.clone().unwrap();
    // The root is the launcher or what started this test, up to a shell or a service: in any case one for all.
    assert!(
        matches!(found, Found::Tree { .. } | Found::Container | Found::Pod | Found::Slurm { .. }),
        "{found:?}"
    );
    launcher.kill().unwrap();
    launcher.wait().unwrap();
}

#[test]
fn a_child_of_a_tenants_process_belongs_to_it_though_it_gives_no_name() {
    let daemon = Daemon::start(1, Config::default());
    // This process has a session of that name, and its child none of its own to give.
    let _parent = daemon.join("parent", 300_000, 0);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "identities::job_process", "--nocapture"])
        .env(ROLE, "worker")
        .env(SOCKET, daemon.directory.tenant_socket())
        .env(GPU, &daemon.gpus[0].uuid_text)
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("connected")));
    let status = daemon.status();
    assert_eq!((status.tenants.len(), status.tenants[0].sessions.len()), (1, 2), "{:?}", status.tenants);
    child.kill().unwrap();
    child.wait().unwrap();
}
