//! If a process dies at any moment, no other process loses time, memory or work.

use std::fs;
use std::path::{Path, PathBuf};

use deepres_e2e::ledger::Ledger;
use deepres_e2e::prelude::*;
use rustix::process::{Pid, kill_process};

/// Time within which a dead tenant's memory and lease are free.
const FREE_WITHIN: Duration = Duration::from_millis(100);
/// Time after which a heartbeat is stale and the gates are open.
const AFTER_THE_DAEMON: Duration = Duration::from_secs(2);
const HELD_BYTES: u64 = 256 << 20;
/// Least part of the time that a tenant uses the GPU while no other tenant can. The machine's CPUs
/// also do other work.
const BUSY_PERCENT: f64 = 70.0;

/// File of a cgroup. A process id written to it moves that process into the cgroup.
const PROCESSES: &str = "cgroup.procs";
/// For each version of cgroups: the folder for new cgroups, the file that freezes a cgroup, and the
/// texts that freeze and thaw it. The rows are version 1, version 2 beside version 1, and version 2
/// alone.
const FREEZERS: [[&str; 4]; 3] = [
    ["/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED"],
    ["/sys/fs/cgroup/unified", "cgroup.freeze", "1", "0"],
    ["/sys/fs/cgroup", "cgroup.freeze", "1", "0"],
];

/// A cgroup that freezes its processes. Drop thaws them and moves them out.
struct Freezer {
    group: PathBuf,
    root: &'static str,
    file: &'static str,
    freeze: &'static str,
    thaw: &'static str,
}

impl Freezer {
    fn new(&[root, file, freeze, thaw]: &[&'static str; 4]) -> Option<Self> {
        let group = Path::new(root).join(format!("deepres-deaths-{}", std::process::id()));
        fs::create_dir(&group).ok()?;
        let freezer = Self { group, root, file, freeze, thaw };
        freezer.group.join(file).exists().then_some(freezer)
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.group.join(file), text).expect("root may use it");
    }

    fn thaw(&self) {
        self.write(self.file, self.thaw);
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        // A frozen process does not die, so it must be thawed first.
        let _ = fs::write(self.group.join(self.file), self.thaw);
        for pid in fs::read_to_string(self.group.join(PROCESSES)).unwrap_or_default().lines() {
            let _ = fs::write(Path::new(self.root).join(PROCESSES), pid);
        }
        let _ = fs::remove_dir(&self.group);
    }
}

fn backlog(host: &Host, name: &str, share: &str, arguments: &[&str]) -> Process {
    let options = ["--name", name, "--share", share];
    let mut all = vec!["--kernel", "busy_1000us", "--progress"];
    all.extend(arguments);
    host.start(host.run(&options, c_client("backlog"), &all), "ready")
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).expect("a pid"), signal).expect("it runs");
}

/// Asserts that all clients launch kernels.
#[track_caller]
fn assert_all_go_on(clients: &[Process]) {
    let launched = || clients.iter().map(Process::last_number).collect::<Vec<_>>();
    let before = launched();
    thread::sleep(Duration::from_millis(500));
    let after = launched();
    let do_all = before.iter().zip(&after).all(|(before, after)| *after >= before + 50);
    assert!(do_all, "launched {before:?}, half a second later {after:?}");
}

/// Kills the process of the tenant `doomed`, asserts that its memory is free in time, and returns
/// the time of the kill.
#[track_caller]
fn kill_and_await_free(host: &Host, pid: u32) -> Instant {
    let killed = Instant::now();
    signal(pid, Signal::KILL);
    host.await_ps(|ps| ps.find("doomed").is_none_or(|t| t.memory_bytes == 0));
    let freed = killed.elapsed();
    assert!(freed <= FREE_WITHIN, "the account was clear after {freed:?}");
    killed
}

/// Asserts that no tenant waits for a stopped tenant, however the test stops it. Meanwhile the
/// running tenant uses the stopped tenant's share. Afterwards the stopped tenant runs again.
fn is_not_waited_for(stop: impl FnOnce(&Host, u32), go_on: impl FnOnce(u32)) {
    let (host, _daemon) = Host::measuring().with_daemon();
    let stopped = backlog(&host, "stopped", "70%", &[]);
    let _other = backlog(&host, "other", "30%", &[]);
    let ps = host.ps();
    let (stopped_pid, other_pid) = (ps.tenant("stopped").sessions[0].pid, ps.tenant("other").sessions[0].pid);
    thread::sleep(Duration::from_millis(500));
    stop(&host, stopped_pid);
    thread::sleep(Duration::from_millis(500));
    let busy = Tally::over(&host, Duration::from_secs(1)).percent_of_time(&[other_pid]);
    // The test continues the tenant before the assertions, because a frozen process cannot be
    // killed.
    go_on(stopped_pid);
    println!("the other had the GPU {busy:.1} % of the time");
    assert!(busy >= BUSY_PERCENT, "the other had the GPU {busy:.1} % of the time");
    assert_all_go_on(&[stopped]);
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    /// Greatest difference between a tenant's share and its GPU time without a daemon, percentage
    /// points.
    const KEPT_POINTS: f64 = 5.0;

    #[test]
    fn tenants_go_on_when_the_daemon_is_killed() {
        let (host, mut daemon) = Host::measuring().with_daemon();
        let clients = [
            backlog(&host, "a", "70%", &["--seconds", "5"]),
            backlog(&host, "b", "30%", &["--seconds", "5"]),
        ];
        thread::sleep(Duration::from_millis(500));
        let governed = host.ps();
        assert!(governed.tenant("a").wait_ns > 0 && governed.tenant("b").wait_ns > 0, "{governed:?}");
        daemon.kill();
        thread::sleep(AFTER_THE_DAEMON);
        assert_all_go_on(&clients);
        for client in clients {
            client.finish().success();
        }
    }

    #[test]
    fn tenants_keep_their_shares_without_a_daemon_and_give_them_back_to_the_next() {
        let (host, mut daemon) = Host::measuring().with_daemon();
        let _clients = [backlog(&host, "a", "70%", &[]), backlog(&host, "b", "30%", &[])];
        // The daemon's record holds, and not the wish.
        host.call(&["set", "b", "--share", "20%"]).success();
        thread::sleep(Duration::from_millis(500));
        let governed = host.ps();
        let pid = |name: &str| governed.tenant(name).sessions[0].pid;
        let (a, b) = (pid("a"), pid("b"));
        let recorded_ns = |pid: u32| host.record(pid).gpus[0].kernel_busy_ns;
        let (began, recorded_before_ns) = (Instant::now(), recorded_ns(b));
        let assert_has = |owed: &[(u32, f64)]| {
            thread::sleep(AFTER_THE_DAEMON);
            let tally = Tally::over(&host, Duration::from_secs(2));
            for (pid, owed) in owed {
                let had = tally.percent_of_time(&[*pid]);
                println!("had {had:.1} % of the time, owed {owed} %");
                assert!((had - owed).abs() <= KEPT_POINTS, "had {had:.1} % of the time, owed {owed} %");
            }
        };
        daemon.kill();
        assert_has(&[(a, 70.0), (b, 20.0)]);
        signal(a, Signal::KILL);
        assert_has(&[(b, 20.0)]);
        let _next = host.daemon();
        let allowed_ns = began.elapsed().as_nanos() as f64 * KEPT_POINTS / 100.0;
        // Each use is on the account once.
        host.await_ps(|ps| {
            ps.find("b").is_some_and(|tenant| {
                let charged_ns = tenant.gpu_ns.saturating_sub(governed.tenant("b").gpu_ns);
                let had_ns = recorded_ns(b) - recorded_before_ns;
                tenant.pids() == [b] && charged_ns.abs_diff(had_ns) as f64 <= allowed_ns
            })
        });
        thread::sleep(Duration::from_secs(1));
        let busy = Tally::over(&host, Duration::from_secs(1)).percent_of_time(&[b]);
        assert!(busy >= BUSY_PERCENT, "with a daemon, it has what nobody else wants: {busy:.1} %");
    }

    #[test]
    fn tenants_keep_their_shares_while_the_daemon_hangs_and_share_again_when_it_does_not() {
        let (host, daemon) = Host::measuring().with_daemon();
        let clients = [backlog(&host, "a", "70%", &[]), backlog(&host, "b", "20%", &[])];
        thread::sleep(Duration::from_millis(500));
        let charged = |ps: &Ps| -> u64 { ps.tenants.iter().map(|tenant| tenant.gpu_ns).sum() };
        let governed = host.ps();
        host.stop(daemon.pid());
        thread::sleep(AFTER_THE_DAEMON);
        assert_all_go_on(&clients);
        let tally = Tally::over(&host, Duration::from_secs(2));
        for (name, owed) in [("a", 70.0), ("b", 20.0)] {
            let had = tally.percent_of_time(&governed.tenant(name).pids());
            println!("while the daemon hangs: {had:.1} % of the time, owed {owed} %");
            assert!((had - owed).abs() <= KEPT_POINTS, "{name} had {had:.1} % of the time, owed {owed} %");
        }
        daemon.signal(Signal::CONT);
        thread::sleep(Duration::from_millis(1000));
        // While the daemon was stopped, each meter counted the other tenant's turns as its own.
        let back = host.ps();
        let (passed_ns, charged_ns) = (back.now_ns - governed.now_ns, charged(&back) - charged(&governed));
        println!("charged {charged_ns} ns in {passed_ns} ns");
        assert!(charged_ns <= passed_ns + passed_ns / 20, "charged {charged_ns} ns in {passed_ns} ns");
        assert!(charged_ns >= passed_ns / 2, "charged {charged_ns} ns in {passed_ns} ns");
        let window = Window::measure(&host, Duration::from_secs(2));
        let had = window.true_percent("a");
        assert!((had - 700.0 / 9.0).abs() <= 4.0, "shares are enforced again: a had {had:.1} %");
    }

    #[test]
    fn a_tenant_that_is_stopped_does_not_stop_another() {
        // The stop of a debugger or of a shell's job control.
        is_not_waited_for(|host, pid| host.stop(pid), |pid| signal(pid, Signal::CONT));
    }

    #[test]
    fn a_tenant_whose_container_is_frozen_does_not_stop_another() {
        let freezers = FREEZERS.iter().filter_map(Freezer::new).collect::<Vec<_>>();
        assert!(!freezers.is_empty(), "no freezer among {FREEZERS:?} that root may use");
        for freezer in freezers {
            println!("{}", freezer.group.display());
            let stop = |host: &Host, pid: u32| {
                freezer.write(PROCESSES, &pid.to_string());
                host.stop_by(|| freezer.write(freezer.file, freezer.freeze), || freezer.thaw());
            };
            is_not_waited_for(stop, |_| freezer.thaw());
        }
    }

    #[test]
    fn a_killed_tenants_memory_and_lease_are_free_at_once() {
        let (host, _daemon) = Host::measuring().with_daemon();
        let mut doomed = backlog(&host, "doomed", "70%", &["--hold", &HELD_BYTES.to_string()]);
        let other = backlog(&host, "other", "30%", &[]);
        let ps = host.await_ps(|ps| ps.find("doomed").is_some_and(|t| t.memory_bytes >= HELD_BYTES));
        let doomed_pid = ps.tenant("doomed").sessions[0].pid;
        let other_pid = ps.tenant("other").sessions[0].pid;
        thread::sleep(Duration::from_millis(500));

        let killed = kill_and_await_free(&host, doomed_pid);

        // After the allowed time, the other tenant has the whole GPU.
        thread::sleep(FREE_WITHIN.saturating_sub(killed.elapsed()));
        let busy = Tally::over(&host, Duration::from_millis(500)).percent_of_time(&[other_pid]);
        assert!(busy >= 70.0, "the other had the GPU {busy:.1} % of the time");
        assert_eq!(doomed.await_end().code, 128 + 9, "deepres run passes the signal on as a shell does");
        drop(other);
    }

    #[test]
    fn a_killed_tenants_memory_is_free_at_once_while_a_disk_keeps_the_state_waiting() {
        let host = Host::measuring();
        let (held, tells) = (host.path().join("held"), host.path().join("waits"));
        let slow = c_library("slow_rename");
        let _daemon = host.daemon_with(&[
            ("LD_PRELOAD", &slow),
            ("SLOW_RENAME_WHILE", &held),
            ("SLOW_RENAME_TELLS", &tells),
        ]);
        fs::write(&held, "").expect("a folder of our own");
        let hold = HELD_BYTES.to_string();
        let _doomed = backlog(&host, "doomed", "50%", &["--hold", &hold]);
        eventually("the state is being written", || tells.exists());
        // New sessions, queries and deaths do not wait for the disk either.
        let _other = backlog(&host, "other", "50%", &["--hold", &hold]);
        let doomed_pid = host.ps().tenant("doomed").sessions[0].pid;
        kill_and_await_free(&host, doomed_pid);
        assert!(held.exists(), "the state was never written meanwhile");
        fs::remove_file(&held).expect("it is there");
        // The daemon answers an administrator's setting after it has written the setting to disk.
        host.call(&["set", "other", "--share", "30%"]).success();
        let state = fs::read_to_string(host.deepres_dir().join("state.json")).expect("it was written");
        assert!(state.contains("300000"), "{state}");
    }

    #[test]
    fn the_places_of_processes_that_are_dead_are_looked_at_no_more() {
        const CROWD: usize = 6;
        let (host, daemon) = Host::measuring().with_daemon();
        let first = backlog(&host, "t", "50%", &[]);
        let ledger = Ledger::of(&daemon);
        let crowd: Vec<Process> = (0..CROWD).map(|_| backlog(&host, "t", "50%", &[])).collect();
        assert_eq!(ledger.slots_looked_at(), 1 + CROWD);
        let sessions = host.ps().tenant("t").sessions.clone();
        assert_eq!(sessions.len(), 1 + CROWD);
        for session in &sessions[1..] {
            signal(session.pid, Signal::KILL);
        }
        drop(crowd);
        await_value(|| ledger.slots_looked_at(), |slots| *slots <= 1);
        drop(first);
    }
}
