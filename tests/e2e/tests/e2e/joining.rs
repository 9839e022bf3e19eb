//! If a job finds no daemon at its start, it keeps its limits by itself. When a daemon answers, the
//! job gets a session, with the memory that it holds. From then on the job waits at the gate of its
//! tenant.

use std::path::PathBuf;
use std::process::Command;

use deepres_e2e::prelude::*;

const GPU_BYTES: u64 = 4 << 30;
const GPUS: &str = "gpus = 2\nmemory_bytes = 4294967296\ncontext_overhead_bytes = 0\n\
    kernel = [{ name = \"busy_1000us\", ns = 1000000 }]\n";
const HELD_BYTES: u64 = 256 << 20;
const LIMIT_BYTES: u64 = 1 << 30;
/// Time within which a job gets a session with a new daemon. The job looks for a daemon at least
/// once a second.
const TAKEN_UP_WITHIN: Duration = Duration::from_secs(10);

fn with(mut command: Command, arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    command.args(arguments).env("DEEPRES_LOG", "info").envs(variables.iter().copied());
    command
}

/// Starts a job that asks the daemon for its tenant's part, whether or not a daemon runs.
fn job(host: &Host, program: PathBuf, arguments: &[&str], variables: &[(&str, &str)]) -> Process {
    host.spawn(with(host.preloaded(program), arguments, variables))
}

fn backlog(host: &Host, name: &str, share: &str) -> Process {
    let held = HELD_BYTES.to_string();
    let arguments = ["--kernel", "busy_1000us", "--hold", &held];
    let variables = [("DEEPRES_TENANT", name), ("DEEPRES_SHARE", share)];
    job(host, c_client("backlog"), &arguments, &variables)
}

#[track_caller]
fn await_ready(client: &mut Process) {
    client.await_exactly("ready");
}

/// Returns the total memory that the client sees first.
#[track_caller]
fn total(view: &mut Process) -> u64 {
    view.await_json()["total"].as_u64().expect("a number")
}

#[track_caller]
fn await_limit(view: &mut Process) {
    let limited = format!("\"total\":{LIMIT_BYTES},");
    view.await_line(|line| line.contains(&limited));
}

#[test]
fn a_job_that_starts_between_two_daemons_belongs_to_the_next_one() {
    let host = Host::new().simgpu(GPUS);
    let held = HELD_BYTES.to_string();
    // The jobs use the second GPU, which is the process's first. The daemon numbers the GPUs
    // differently from the process alone.
    let variables = [("DEEPRES_TENANT", "early"), ("DEEPRES_MEMORY", "1GiB"), ("CUDA_VISIBLE_DEVICES", "1")];
    let arguments = ["--kernel", "busy_1000us", "--hold", &held, "--progress"];
    let mut early = job(&host, c_client_by("backlog", Way::ProcAddress), &arguments, &variables);
    let mut view = job(&host, c_client("view"), &[], &variables);
    await_ready(&mut early);
    let said = early.stderr();
    assert!(said.contains("the job keeps its limits by itself until a daemon takes it up"), "{said}");
    assert_eq!(total(&mut view), LIMIT_BYTES);
    let mut free = job(&host, c_client("view"), &[], &[("DEEPRES_TENANT", "free")]);
    assert_eq!(total(&mut free), GPU_BYTES, "nobody limits it");
    let said = free.stderr();
    assert!(said.contains("the job runs unshared until a daemon takes it up"), "{said}");
    free.finish().success();
    // The job finds the second daemon as any other job does.
    for _ in 0..2 {
        let mut daemon = host.daemon();
        let is_whole = |ps: &Ps| {
            ps.find("early")
                .is_some_and(|early| early.sessions.len() == 2 && early.memory_bytes == HELD_BYTES)
        };
        let ps = host.await_ps_within(is_whole, TAKEN_UP_WITHIN);
        assert_eq!(ps.tenant("early").memory_limit_bytes, Some(LIMIT_BYTES));
        let status = host.status();
        let gpus = status["tenants"][0]["gpus"].as_array().expect("a list").clone();
        let on: Vec<_> = gpus.iter().map(|gpu| gpu["gpu"].as_u64()).collect();
        assert_eq!(on, [Some(1)], "{status}");
        daemon.kill();
    }
    view.finish().success();
}

#[test]
fn jobs_that_find_no_room_keep_their_limits_and_are_taken_up_when_there_is_some() {
    /// The part of the cap for which the first tenant asks, and so the rest of the cap.
    const HALF_BYTES: u64 = LIMIT_BYTES / 2;
    let toml = "max_connections = 1\n[caps]\nmemory = \"1GiB\"\n[defaults]\nshare = \"30%\"\n";
    let (host, _daemon) = Host::new().config(toml).with_daemon();
    let asks = [("DEEPRES_TENANT", "first"), ("DEEPRES_MEMORY", "512MiB")];
    let mut first = job(&host, c_client("view"), &[], &asks);
    assert_eq!(total(&mut first), HALF_BYTES);
    let mut second = job(&host, c_client("view"), &[], &[("DEEPRES_TENANT", "second")]);
    assert_eq!(total(&mut second), HALF_BYTES);
    let said = second.stderr();
    for told in [
        "(max_connections); the job keeps its limits by itself until a daemon takes it up".to_owned(),
        format!("GPU 0: 30%, {HALF_BYTES} bytes"),
    ] {
        assert!(said.contains(&told), "{said}");
    }
    let asks = [("DEEPRES_MEMORY", "1GiB"), ("DEEPRES_SHARE", "20%")];
    let mut third = host.spawn(with(host.alone(c_client("view")), &[], &asks));
    assert_eq!(total(&mut third), HALF_BYTES, "it asked for more than the cap leaves");
    let said = third.stderr();
    assert!(said.contains("the job keeps its limits by itself until"), "{said}");
    assert!(said.contains(&format!("GPU 0: 20%, {HALF_BYTES} bytes")), "{said}");
    third.finish().success();
    // A process of the first tenant has the tenant's limit, also after the limit has changed.
    let mut member = job(&host, c_client("view"), &[], &[("DEEPRES_TENANT", "first")]);
    assert_eq!(total(&mut member), HALF_BYTES);
    host.call(&["set", "first", "--memory", "256MiB"]).success();
    let halved = format!("\"total\":{},", HALF_BYTES / 2);
    member.await_line(|line| line.contains(&halved));
    member.finish().success();
    first.finish().success();
    await_limit(&mut second);
    let is_here = |ps: &Ps| ps.find("second").is_some_and(|second| second.sessions.len() == 1);
    host.await_ps_within(is_here, TAKEN_UP_WITHIN);
    let said = second.stderr();
    second.finish().success();
    assert_eq!(said.matches("max_connections").count(), 1, "it is said once");
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    #[test]
    fn jobs_that_start_while_the_daemon_hangs_share_once_it_does_not() {
        let (host, daemon) = Host::measuring().with_daemon();
        host.stop(daemon.pid());
        let mut clients = [backlog(&host, "a", "70%"), backlog(&host, "b", "30%")];
        clients.iter_mut().for_each(await_ready);
        for client in &clients {
            let said = client.stderr();
            assert!(said.contains("did not answer within 3 s; the job keeps its limits"), "{said}");
        }
        daemon.signal(Signal::CONT);
        let all_are_here = |ps: &Ps| {
            ["a", "b"].iter().all(|name| {
                ps.find(name)
                    .is_some_and(|tenant| tenant.sessions.len() == 1 && tenant.memory_bytes == HELD_BYTES)
            })
        };
        host.await_ps_within(all_are_here, TAKEN_UP_WITHIN);
        thread::sleep(Duration::from_secs(1));
        let window = Window::measure(&host, Duration::from_secs(2));
        let had = window.true_percent("a");
        assert!((had - 70.0).abs() <= 4.0, "a had {had:.1} %");
        let ps = host.ps();
        for (name, client) in ["a", "b"].iter().zip(&clients) {
            assert!(client.stderr().contains("a daemon has taken the job up"), "{}", client.stderr());
            assert!(ps.tenant(name).wait_ns > 0, "{name} waits its turn");
        }
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn a_job_that_keeps_its_limits_beside_a_daemon_that_hangs_goes_over_to_it() {
        let (host, daemon) = Host::measuring().simgpu(GPUS).with_daemon();
        host.stop(daemon.pid());
        let variables = [("DEEPRES_TENANT", "alone"), ("DEEPRES_MEMORY", "1GiB"), ("DEEPRES_SHARE", "25%")];
        // No variable names the socket, so the limits apply without a daemon.
        let alone =
            |program, arguments: &[&str]| host.spawn(with(host.alone(program), arguments, &variables));
        let held = HELD_BYTES.to_string();
        let arguments = ["--kernel", "busy_1000us", "--hold", &held];
        let mut clients = [0, 1].map(|_| alone(c_client_by("backlog", Way::Linked), &arguments));
        let mut view = alone(c_client_by("view", Way::Linked), &[]);
        clients.iter_mut().for_each(await_ready);
        let said = clients[0].stderr();
        assert!(said.contains("the job keeps its limits by itself until a daemon takes it up"), "{said}");
        assert_eq!(total(&mut view), LIMIT_BYTES);
        let pids = clients.each_ref().map(Process::pid);
        let had = |host: &Host| {
            let tally = Tally::over(host, Duration::from_secs(2));
            tally.percent_of_time(&pids)
        };
        thread::sleep(Duration::from_secs(1));
        let share = had(&host);
        assert!((share - 25.0).abs() <= 2.0, "alone they have {share:.1} %");
        daemon.signal(Signal::CONT);
        let is_whole = |ps: &Ps| {
            ps.find("alone")
                .is_some_and(|alone| alone.sessions.len() == 3 && alone.memory_bytes == 2 * HELD_BYTES)
        };
        let ps = host.await_ps_within(is_whole, TAKEN_UP_WITHIN);
        assert_eq!(ps.tenant("alone").memory_limit_bytes, Some(LIMIT_BYTES));
        thread::sleep(Duration::from_secs(1));
        // The daemon enforces a share only while other tenants want the GPU.
        let share = had(&host);
        assert!(share >= 80.0, "now they have {share:.1} %");
        view.finish().success();
    }
}
