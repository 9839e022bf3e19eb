//! Daemons end and start under load. No launch is lost, the accounts go on, and no launch waits
//! long.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::Path;

use deepres_e2e::alive;
use deepres_e2e::calls::{Calls, WORK};
use deepres_e2e::host::mute_socket;
use deepres_e2e::prelude::*;
use deepres_e2e::random::Random;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::accept;

/// Greatest age of the state that a new daemon reads. The previous daemon wrote the state.
const SAVED_EVERY: Duration = Duration::from_secs(1);
/// Time for writing the state and for reading both accounts.
const SAVING_TAKES: Duration = Duration::from_millis(200);
/// Default time without a heartbeat after which launches proceed, ms. If the daemon is killed, a
/// launch waits less, because the interposer sees the end of the connection at once.
const HEARTBEAT_LIMIT_MS: f64 = 250.0;
/// Further delay of a launch if only the heartbeat shows the daemon's end, ms. In this time, a
/// thread checks the heartbeat and has its turn among other threads.
const SLACK_MS: f64 = 100.0;
/// Time within which a launch fails after the daemon is gone, with `fail_mode = "closed"`. The time
/// includes the end of the program.
const FAILS_WITHIN: Duration = Duration::from_millis(HEARTBEAT_LIMIT_MS as u64 + 500);
/// Greatest difference between the meter of deepres and the simulated GPU's record over a whole
/// run, percent of the run.
const ALLOWED_PERCENT: f64 = 2.0;
/// Time within which a tenant finds a new daemon on a busy machine.
const RETURN_LIMIT: Duration = Duration::from_secs(5);
/// Time after which shares are right again.
const RIGHT_WITHIN: Duration = Duration::from_secs(1);
/// Time of a measurement of the shares.
const MEASURED: Duration = Duration::from_millis(750);
/// Greatest allowed error of a share, percentage points. A measurement has only about thirty turns.
const ALLOWED_POINTS: f64 = 4.0;
/// Number of restarts for each measurement of the shares.
const MEASURED_EVERY: u32 = 4;
/// Number of times that the daemon is stopped.
const STOPS: u32 = 20;

fn backlog(host: &Host, name: &str, share: &str, seconds: u64) -> Process {
    let seconds = seconds.to_string();
    let arguments = ["--kernel", "busy_1000us", "--progress", "--seconds", &seconds];
    let options = ["--name", name, "--share", share];
    host.start(host.run(&options, c_client("backlog"), &arguments), "ready")
}

fn all_are_here(ps: &Ps) -> bool {
    ["a", "b"].iter().all(|name| ps.find(name).is_some_and(|tenant| tenant.sessions.len() == 1))
}

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::count).unwrap_or(0)
}

/// Kills the daemon `times` times, and starts the next daemon after a random pause. Asserts that
/// accounts, launches, descriptors and shares are right.
fn kill_often(times: u32) {
    // An upper bound on the average time of a round, and the time for measuring shares.
    let seconds = 8 + u64::from(times) * 3 / 2 + u64::from(times / MEASURED_EVERY) * 2;
    let host = Host::measuring().lasting(Duration::from_secs(seconds));
    let mut random = Random::new();
    let mut daemon = host.daemon();
    let clients = [backlog(&host, "a", "70%", seconds), backlog(&host, "b", "30%", seconds)];
    let ended = Instant::now() + Duration::from_secs(seconds);
    let mut last = host.await_ps(all_are_here);
    // The state file contains the tenants that came before it was last written.
    thread::sleep(SAVED_EVERY + SAVING_TAKES);
    let mut open = None;
    let mut ungoverned = Duration::ZERO;
    let mut errors = Vec::new();
    for round in 1..=times {
        thread::sleep(Duration::from_millis(150) + random.millis(200));
        let before = host.ps();
        daemon.kill();
        let killed = Instant::now();
        thread::sleep(random.millis(300));
        daemon = host.daemon();
        let answered = Instant::now();
        let first = host.ps();
        for name in ["a", "b"] {
            let earlier_ns = before.tenant(name).gpu_ns;
            let later_ns = first.find(name).expect("the state file has it").gpu_ns;
            let lost_ns = earlier_ns.saturating_sub(later_ns);
            assert!(
                lost_ns <= (SAVED_EVERY + SAVING_TAKES).as_nanos() as u64,
                "{name} went back by {lost_ns} ns"
            );
            let gained_ns = later_ns.saturating_sub(earlier_ns);
            assert!(gained_ns <= first.now_ns - before.now_ns, "{name} jumped by {gained_ns} ns");
        }
        // When the process has reconnected, the account includes the GPU time that it used since
        // the last write.
        let after = host.await_ps_within(
            |ps| {
                all_are_here(ps)
                    && ["a", "b"].iter().all(|name| {
                        let (earlier, later) = (before.tenant(name), ps.tenant(name));
                        later.gpu_ns >= earlier.gpu_ns && later.kernel_launches >= earlier.kernel_launches
                    })
            },
            RETURN_LIMIT,
        );
        ungoverned += killed.elapsed();
        for name in ["a", "b"] {
            let later = after.tenant(name);
            let passed_ns = after.now_ns - last.now_ns;
            let grown_ns = later.gpu_ns - last.tenant(name).gpu_ns;
            assert!(grown_ns <= passed_ns + passed_ns / 10 + 100_000_000, "{name} jumped by {grown_ns} ns");
        }
        last = after;
        let now = ["a", "b"].map(|name| descriptors(last.tenant(name).sessions[0].pid));
        assert_eq!(*open.get_or_insert(now), now, "round {round}: a tenant's descriptors");
        if round % MEASURED_EVERY == 0 || round == times {
            thread::sleep(RIGHT_WITHIN.saturating_sub(answered.elapsed()));
            errors.push(Window::measure(&host, MEASURED).true_percent("a") - 70.0);
        }
    }
    assert!(Instant::now() < ended, "the restarts took longer than the clients ran");

    let mut charged_ns = 0;
    let mut had_ns = 0;
    let mut lines = vec![format!(
        "{times} restarts in {seconds} s, {ungoverned:.1?} of it without a daemon; a's share a second after a return, points off: {errors:.2?}"
    )];
    let mut longest_ms = 0.0_f64;
    for (name, mut client) in ["a", "b"].into_iter().zip(clients) {
        let line = client.await_line_within(|line| line.starts_with('{'), Duration::from_secs(seconds + 30));
        let said: Value = serde_json::from_str(&line).expect("JSON");
        let launched = said["launches"].as_u64().expect("a count");
        let ps = host.await_ps_within(|ps| ps.tenant(name).kernel_launches >= launched, RETURN_LIMIT);
        let tenant = ps.tenant(name);
        assert_eq!(tenant.kernel_launches, launched, "every launch is on the account, once");
        let recorded_ns = host.record(tenant.sessions[0].pid).gpus[0].kernel_busy_ns;
        charged_ns += tenant.gpu_ns;
        had_ns += recorded_ns;
        let waited_ms = said["longest_launch_ms"].as_f64().expect("a time");
        lines.push(format!(
            "{name}: charged {:.3} s, had {:.3} s, longest launch {waited_ms:.1} ms",
            tenant.gpu_ns as f64 / 1e9,
            recorded_ns as f64 / 1e9
        ));
        longest_ms = longest_ms.max(waited_ms);
        client.finish().success();
    }
    let lines = lines.join("\n");
    println!("{lines}");
    // Without a daemon both tenants run at once. Each meter leaves out the other's turns by its
    // estimates, and the daemon bounds the sum by the elapsed time.
    let allowed_ns = (seconds as f64 * ALLOWED_PERCENT * 1e7) as u64;
    assert!(charged_ns.abs_diff(had_ns) <= allowed_ns, "the accounts are off\n{lines}");
    assert!(longest_ms <= HEARTBEAT_LIMIT_MS, "a launch waited too long\n{lines}");
    assert!(errors.iter().all(|error| error.abs() <= ALLOWED_POINTS), "a share is off\n{lines}");
}

#[test]
fn a_daemon_that_is_told_to_stop_leaves_its_tenants_to_the_next_one() {
    let host = Host::new();
    let client = backlog(&host, "a", "70%", 0);
    let mut started = host.ps().daemon_pid;
    for signal in [Signal::TERM, Signal::INT] {
        let before = host.ps().tenant("a").clone();
        let pid = rustix::process::Pid::from_raw(started as i32).expect("a pid");
        rustix::process::kill_process(pid, signal).expect("it runs");
        let sockets = [host.tenant_socket(), host.deepres_dir().join("admin.sock")];
        eventually_within("the daemon ends", RETURN_LIMIT, || !sockets.iter().any(|path| path.exists()));
        let launched = client.last_number();
        thread::sleep(Duration::from_millis(300));
        assert!(client.last_number() > launched, "the job goes on without a daemon");
        let mut daemon = host.daemon();
        let here = |ps: &Ps| ps.find("a").is_some_and(|tenant| tenant.sessions.len() == 1);
        let after = host.await_ps_within(here, RETURN_LIMIT);
        assert!(after.tenant("a").gpu_ns >= before.gpu_ns);
        daemon.signal(signal);
        assert_eq!(daemon.await_end_within(RETURN_LIMIT).code, 0, "{}", daemon.stderr());
        let next = host.daemon();
        started = next.pid();
        host.await_ps_within(here, RETURN_LIMIT);
        std::mem::forget(next);
    }
}

/// Waits for a line of input, and then starts a client without the variables that name its tenant.
const NAMELESS: &str = "read go; exec env -i \"LD_PRELOAD=$LD_PRELOAD\" \"DEEPRES_SOCKET=$DEEPRES_SOCKET\" \
    \"SIMGPU_STATE=$SIMGPU_STATE\" \"SIMGPU_CONFIG=$SIMGPU_CONFIG\" \"LD_LIBRARY_PATH=$LD_LIBRARY_PATH\" \"$0\"";

#[test]
fn a_deepres_run_keeps_its_tenant_for_the_next_daemon() {
    let (host, mut daemon) = Host::new().with_daemon();
    let client = c_client("backlog").display().to_string();
    let mut run =
        host.spawn(host.run(&["--name", "kept", "--share", "30%"], "sh", &["-c", NAMELESS, &client]));
    let is_kept = |ps: &Ps| ps.find("kept").is_some_and(|tenant| tenant.keepers == 1);
    host.await_ps(is_kept);
    // The share in force is not the share that the keeper asked for.
    host.call(&["set", "kept", "--share", "60%"]).success();
    for _ in 0..2 {
        daemon.kill();
        daemon = host.daemon();
        host.await_ps_within(is_kept, RETURN_LIMIT);
    }
    run.say("go");
    let ps = host.await_ps(|ps| ps.find("kept").is_some_and(|tenant| tenant.entitled_ppm > 0));
    assert_eq!((ps.tenants.len(), ps.tenant("kept").sessions.len()), (1, 1), "{ps:?}");
    assert_eq!(ps.tenant("kept").entitled_ppm, 600_000);
}

#[test]
fn a_tenant_that_ended_while_there_was_no_daemon_has_no_gate_and_its_share_is_kept_for_a_while() {
    let (host, mut daemon) = Host::new().with_daemon();
    let client = backlog(&host, "gone", "70%", 0);
    // When the command returns, the setting and the tenant are in the state file.
    host.call(&["set", "gone", "--share", "60%"]).success();
    daemon.kill();
    drop(client);
    host.assert_nothing_runs();
    let _next = host.daemon();
    let status = host.status();
    let account = &status["tenants"][0]["gpus"][0];
    assert_eq!(account["entitled_ppm"], 600_000, "{status}");
    assert!(account["gate"].is_null(), "{status}");
}

#[test]
fn a_new_job_may_have_the_name_of_a_tenant_that_died_with_the_daemon_at_once() {
    let (host, mut daemon) = Host::new().with_daemon();
    let client = c_client("backlog");
    let mut job = host.start(host.run(&["--name", "z", "--memory", "2GiB"], client, &[]), "ready");
    // When the command returns, the tenant is in the state file.
    host.call(&["set", "z", "--share", "60%"]).success();
    daemon.kill();
    job.kill();
    drop(job);
    host.assert_nothing_runs();
    let _next = host.daemon();
    host.finish(host.run(&["--name", "z", "--memory", "1GiB"], "true", &[])).success();
}

/// Returns the sockets that a service manager opens before a daemon runs.
fn sockets(host: &Host) -> [OwnedFd; 2] {
    let folder = host.deepres_dir();
    fs::create_dir_all(folder.join("tenant")).expect("a folder of our own");
    for part in [&folder, &folder.join("tenant")] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(part, mode).expect("a folder of our own");
    }
    let admin = UnixListener::bind(folder.join("admin.sock")).expect("a new path");
    [mute_socket(&host.tenant_socket()), admin.into()]
}

/// Waits until the socket has input or a connection to accept.
fn await_input(socket: &OwnedFd) {
    let limit = Timespec { tv_sec: RETURN_LIMIT.as_secs() as i64, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&limit));
    assert_eq!(ready, Ok(1), "nothing came");
}

/// Returns the number of sockets that a process has open.
fn open_sockets(pid: u32) -> usize {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives");
    let links = entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

/// A function that returns the id of a forked child, which sleeps for a minute.
const SLEEPER: &str = r#"
import os, time
def sleeper():
    child = os.fork()
    if child == 0: os._exit(time.sleep(60) or 0)
    return child
"#;

#[test]
fn a_child_forked_while_its_parent_waits_for_a_new_daemon_keeps_no_connection_open() {
    let (host, mut daemon) = Host::new().with_daemon();
    let mut parent = Calls::start(&host, &[("DEEPRES_TENANT", "parent")]);
    parent.define(&[WORK, SLEEPER].concat());
    parent.does("launch(kernel('quick'), None) or cuda.cuCtxSynchronize()");
    let pid = parent.pid();
    let mut fork = || parent.asks("sleeper()").parse::<u32>().expect("a number");
    daemon.kill();
    // A socket that never answers takes the daemon's place.
    fs::remove_file(host.tenant_socket()).expect("left by the dead");
    let silent = mute_socket(&host.tenant_socket());
    await_input(&silent);
    let connection = accept(&silent).expect("it connects again");
    await_input(&connection);
    assert!(open_sockets(pid) > 0, "its new connection, and that to the dead daemon");
    let first = fork();
    eventually_within("the child has no connection", RETURN_LIMIT, || open_sockets(first) == 0);
    drop((connection, silent));
    fs::remove_file(host.tenant_socket()).expect("our own");
    let _next = host.daemon();
    host.await_ps_within(
        |ps| ps.find("parent").is_some_and(|tenant| tenant.sessions.len() == 1),
        RETURN_LIMIT,
    );
    let second = fork();
    parent.0.process.kill();
    host.await_ps_within(
        |ps| ps.find("parent").is_none_or(|tenant| tenant.sessions.is_empty()),
        RETURN_LIMIT,
    );
    assert!(alive(first) && alive(second), "the session ended with the parent, not with its children");
}

#[test]
fn a_daemon_whose_log_cannot_be_written_serves_on_and_ends_well_with_its_terminal() {
    let host = Host::new();
    let program = host.deepres(&[]).get_program().to_owned();
    let mut command = host.command("sh");
    // The log goes to a full disk. The shell ignores SIGHUP like nohup, so the end of a terminal
    // must not end the daemon.
    command.args(["-c", "trap '' HUP; exec \"$0\" daemon 2>/dev/full"]).arg(&program);
    let mut deaf = host.spawn(command);
    let served = |daemon: &mut Process| {
        while host.call(&["ps", "--json"]).code != 0 {
            assert!(daemon.try_wait().is_none(), "it ended: {}", daemon.stderr());
            thread::sleep(Duration::from_millis(10));
        }
    };
    served(&mut deaf);
    let mut view = host.spawn(host.run(&["--name", "served", "--memory", "1GiB"], c_client("view"), &[]));
    assert_eq!(view.await_json()["total"], 1u64 << 30);
    host.call(&["set", "served", "--share", "50%"]).success();
    deaf.signal(Signal::HUP);
    served(&mut deaf);
    view.finish().success();
    deaf.terminate().success();
    let mut daemon = host.daemon();
    daemon.signal(Signal::HUP);
    daemon.await_end().success();
    assert!(!host.tenant_socket().exists(), "as at SIGTERM");
}

/// Starts the daemon as a service manager does, with these sockets and the address for its reports.
fn serve(host: &Host, sockets: &[OwnedFd; 2], notify: &Path) -> Process {
    let daemon = host.deepres(&[]).get_program().to_owned();
    let mut command = host.command("sh");
    // The shell sets LISTEN_PID to its own id, and exec keeps that id. LISTEN_PID must name the
    // process that reads it.
    command.args(["-c", "LISTEN_PID=$$ exec \"$0\" daemon --foreground --log warn"]).arg(daemon);
    command.env("LISTEN_FDS", "2").env("LISTEN_FDNAMES", "tenant:admin");
    command.env("NOTIFY_SOCKET", notify).env("WATCHDOG_USEC", "3000000");
    let numbers = [sockets[0].as_raw_fd(), sockets[1].as_raw_fd()];
    // SAFETY: between fork and exec only system calls are made. Their descriptors are open in the
    // child as in the parent.
    unsafe {
        command.pre_exec(move || {
            // The descriptors first move to high numbers, so that neither is overwritten.
            let moved = numbers.map(|number| libc::fcntl(number, libc::F_DUPFD, 100));
            for (number, place) in moved.into_iter().zip(3..) {
                libc::dup2(number, place);
                libc::close(number);
            }
            Ok(())
        });
    }
    host.spawn(command)
}

#[test]
fn a_service_manager_hands_over_its_sockets_and_is_told_how_things_are() {
    let host = Host::new();
    let sockets = sockets(&host);
    let notify = host.path().join("notify");
    let told = UnixDatagram::bind(&notify).expect("a new path");
    told.set_read_timeout(Some(COMMAND_LIMIT)).expect("a time");
    let hear = |wanted: &str| {
        let mut text = [0; 4096];
        loop {
            let length = told.recv(&mut text).unwrap_or_else(|error| panic!("no {wanted}: {error}"));
            let said = String::from_utf8_lossy(&text[..length]).into_owned();
            if said.lines().any(|line| line.starts_with(wanted)) {
                return said;
            }
        }
    };
    // A job can come before the daemon. The job then waits at the socket.
    let mut early = host.spawn(host.preloaded(c_client("storm")));
    let mut daemon = serve(&host, &sockets, &notify);
    hear("READY=1");
    hear("WATCHDOG=1");
    early.await_json();
    let ps = host.ps();
    assert!(ps.tenants.iter().any(|tenant| !tenant.sessions.is_empty()), "it was let in: {ps:?}");
    let (name, launched) = (ps.tenants[0].name.clone(), ps.tenants[0].kernel_launches);
    hear("STATUS=1 processes of 1 tenants");
    daemon.signal(Signal::HUP);
    hear("RELOADING=1");
    hear("READY=1");
    let after = host.ps();
    assert_eq!((after.daemon_pid, after.tenant(&name).pids()), (ps.daemon_pid, ps.tenant(&name).pids()));

    daemon.signal(Signal::TERM);
    hear("STOPPING=1");
    let done = daemon.await_end_within(RETURN_LIMIT);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(!done.stderr.contains("INFO"), "only warnings were asked for: {}", done.stderr);
    for socket in ["tenant/tenant.sock", "admin.sock"] {
        assert!(host.deepres_dir().join(socket).exists(), "{socket} is the service manager's");
    }
    let _daemon = serve(&host, &sockets, &notify);
    hear("READY=1");
    // The job has no tenant's name, and the daemon still finds the same tenant.
    let here = |ps: &Ps| ps.find(&name).is_some_and(|tenant| tenant.sessions.len() == 1);
    let ps = host.await_ps_within(here, RETURN_LIMIT);
    assert_eq!(ps.tenants.len(), 1, "{ps:?}");
    assert!(ps.tenant(&name).kernel_launches >= launched);
    early.finish().success();
}

#[test]
fn a_service_managers_socket_that_is_none_of_ours_is_refused() {
    let host = Host::new();
    let [tenant, admin] = sockets(&host);
    let notify = host.path().join("notify");
    // The sockets are in the wrong order, so each has the wrong name.
    let mut daemon = serve(&host, &[admin, tenant], &notify);
    let done = daemon.await_end();
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.contains("ListenSequentialPacket"), "{}", done.stderr);
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    #[test]
    #[ignore = "deep: takes four minutes"]
    fn a_daemon_killed_a_hundred_times_loses_no_launch_and_no_account() {
        kill_often(100);
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn a_daemon_stopped_at_any_moment_holds_nobody_up_for_long() {
        let host = Host::measuring();
        let mut random = Random::new();
        let daemon = host.daemon();
        let clients = [backlog(&host, "a", "50%", 25), backlog(&host, "b", "50%", 25)];
        let began = Instant::now();
        for stop in 0..STOPS {
            thread::sleep(Duration::from_millis(100) + random.millis(300));
            host.stop(daemon.pid());
            thread::sleep(Duration::from_secs_f64((HEARTBEAT_LIMIT_MS + SLACK_MS) / 1e3));
            let before = clients.each_ref().map(Process::last_number);
            thread::sleep(Duration::from_millis(200));
            let after = clients.each_ref().map(Process::last_number);
            daemon.signal(Signal::CONT);
            assert!(
                before.iter().zip(after).all(|(before, after)| after > *before),
                "stop {stop}: {before:?} {after:?}"
            );
        }
        assert!(began.elapsed() < Duration::from_secs(25), "the stops took longer than the clients ran");
        for mut client in clients {
            let line = client.await_line(|line| line.starts_with('{'));
            let said: Value = serde_json::from_str(&line).expect("JSON");
            let longest_ms = said["longest_launch_ms"].as_f64().expect("a time");
            println!("{STOPS} stops: longest launch {longest_ms:.1} ms");
            assert!(longest_ms <= HEARTBEAT_LIMIT_MS + SLACK_MS, "a launch took {longest_ms} ms");
            client.finish().success();
        }
    }

    #[test]
    fn without_a_daemon_launches_fail_if_they_are_to() {
        let host = Host::measuring().config("fail_mode = \"closed\"\n");
        let mut random = Random::new();
        let mut daemon = host.daemon();
        for how in [Signal::STOP, Signal::STOP, Signal::STOP, Signal::KILL] {
            let clients = [backlog(&host, "a", "50%", 0), backlog(&host, "b", "50%", 0)];
            thread::sleep(Duration::from_millis(100) + random.millis(200));
            if how == Signal::STOP {
                host.stop(daemon.pid());
            } else {
                daemon.signal(how);
            }
            let gone = Instant::now();
            for mut client in clients {
                let done = client.await_end_within(FAILS_WITHIN);
                println!("{how:?}: failed after {:?}", gone.elapsed());
                assert_eq!(done.code, 1, "{done:?}");
                assert!(done.stderr.contains("800"), "not permitted: {}", done.stderr);
            }
            if how == Signal::STOP {
                daemon.signal(Signal::CONT);
            } else {
                daemon.await_end();
            }
        }
        // A tenant that is alone also fails, although its gate was open when the daemon died.
        let mut daemon = host.daemon();
        let mut alone = backlog(&host, "a", "50%", 0);
        thread::sleep(Duration::from_millis(200));
        daemon.kill();
        assert_eq!(alone.await_end_within(Duration::from_secs(5)).code, 1);
    }
}
