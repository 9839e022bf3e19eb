//! The death of anyone, at any moment, costs nobody else anything.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use deepres_e2e::{
    Host, Process, Ps, Tally,
    clients::{Way, c_client, c_library},
    host::COMMAND_LIMIT,
    ledger::Ledger,
    shares::Window,
};
use rustix::process::{Pid, Signal, kill_process};

/// The memory and the lease of a dead tenant are free within this.
const FREE_WITHIN: Duration = Duration::from_millis(100);
/// Long enough that a heartbeat has gone stale and the gates have opened.
const AFTER_THE_DAEMON: Duration = Duration::from_secs(2);
const HELD_BYTES: u64 = 256 << 20;
/// The part of the time in which a tenant has the GPU that nobody else can use, on a machine whose processors are busy with other things too.
const BUSY_PERCENT: f64 = 70.0;

/// The file of a cgroup that moves a process.
const PROCESSES: &str = "cgroup.procs";
/// Where cgroups are made, and how one is frozen and thawed: version 1, version 2 beside it or by itself.
const FREEZERS: [[&str; 4]; 3] = [
    ["/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED"],
    ["/sys/fs/cgroup/unified", "cgroup.freeze", "1", "0"],
    ["/sys/fs/cgroup", "cgroup.freeze", "1", "0"],
];

/// A cgroup that freezes what is in it. Dropped, nothing is in it any more.
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
        // Who is frozen does not die.
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
    let mut client = host.spawn(host.run(&options, c_client("backlog", Way::Dlsym), &all));
    client.await_line(|line| line == "ready", COMMAND_LIMIT);
    client
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).expect("a pid"), signal).expect("it runs");
}

fn launches(client: &Process) -> u64 {
    client.stdout().lines().rev().find_map(|line| line.parse().ok()).unwrap_or(0)
}

/// A tenant that is stopped, in whichever way, is not waited for: what it is owed is the other's meanwhile. It goes on afterwards.
fn is_not_waited_for(stop: impl FnOnce(&Host, u32), go_on: impl FnOnce(u32)) {
    let host = Host::measuring();
    let _daemon = host.daemon();
    let stopped = backlog(&host, "stopped", "70%", &[]);
    let _other = backlog(&host, "other", "30%", &[]);
    let ps = host.ps();
    let (stopped_pid, other_pid) = (ps.tenant("stopped").sessions[0].pid, ps.tenant("other").sessions[0].pid);
    thread::sleep(Duration::from_millis(500));
    stop(&host, stopped_pid);
    thread::sleep(Duration::from_millis(500));
    let before = host.truth();
    thread::sleep(Duration::from_secs(3));
    let tally = Tally::between(&before, &host.truth());
    let busy = tally.percent(&[other_pid]) * tally.total_ns as f64 / tally.elapsed_ns as f64;
    // Before anything is refused: who is frozen cannot even be killed.
    go_on(stopped_pid);
    println!("the other had the GPU {busy:.1} % of the time");
    assert!(busy >= BUSY_PERCENT, "the other had the GPU {busy:.1} % of the time");
    let before = launches(&stopped);
    thread::sleep(Duration::from_millis(500));
    assert!(launches(&stopped) > before + 50, "and it goes on itself");
}

#[test]
fn a_tenant_started_after_the_daemons_death_runs() {
    let host = Host::new();
    let mut daemon = host.daemon();
    daemon.kill();
    // The socket's file is still there, and nobody listens.
    let said = host.finish(host.preloaded(c_client("storm", Way::Dlsym))).success().json();
    assert_eq!(said["kernel_launches"], 64_000);
}

#[test]
fn what_killed_processes_held_their_tenant_can_have_again() {
    let host = Host::new().light_contexts();
    let _daemon = host.daemon();
    let options = ["--name", "family", "--memory", "1GiB"];
    let start = |hold_mib: u64| {
        let arguments = ["--kernel", "quick", "--hold", &(hold_mib << 20).to_string()];
        let mut client = host.spawn(host.run(&options, c_client("backlog", Way::Linked), &arguments));
        client.await_line(|line| line == "ready", COMMAND_LIMIT);
        client
    };
    // The limit is for all processes of a tenant together: one after the other they fit only if each death frees.
    for _ in 0..3 {
        let two = [start(400), start(400)];
        assert_eq!(host.ps().tenant("family").sessions.len(), 2);
        host.ps().tenant("family").pids().into_iter().for_each(|pid| signal(pid, Signal::KILL));
        drop(two);
        thread::sleep(FREE_WITHIN);
        let one = start(800);
        host.ps().tenant("family").pids().into_iter().for_each(|pid| signal(pid, Signal::KILL));
        drop(one);
        thread::sleep(FREE_WITHIN);
    }
}

/// These measure, so each has the machine to itself.
mod measured {
    use super::*;

    #[test]
    fn tenants_go_on_when_the_daemon_is_killed() {
        let host = Host::measuring();
        let mut daemon = host.daemon();
        let clients = [
            backlog(&host, "a", "70%", &["--seconds", "5"]),
            backlog(&host, "b", "30%", &["--seconds", "5"]),
        ];
        thread::sleep(Duration::from_millis(500));
        let governed = host.ps();
        assert!(governed.tenant("a").wait_ns > 0 && governed.tenant("b").wait_ns > 0, "{governed:?}");
        daemon.kill();
        thread::sleep(AFTER_THE_DAEMON);
        let before = clients.each_ref().map(launches);
        thread::sleep(Duration::from_millis(500));
        let after = clients.each_ref().map(launches);
        for (before, after) in before.iter().zip(after) {
            assert!(after >= before + 50, "launched {before}, half a second later {after}");
        }
        for client in clients {
            client.finish(COMMAND_LIMIT).success();
        }
    }

    #[test]
    fn tenants_go_on_while_the_daemon_hangs_and_share_again_when_it_does_not() {
        let host = Host::measuring();
        let daemon = host.daemon();
        let clients = [backlog(&host, "a", "80%", &[]), backlog(&host, "b", "20%", &[])];
        thread::sleep(Duration::from_millis(500));
        let charged = |ps: &Ps| -> u64 { ps.tenants.iter().map(|tenant| tenant.gpu_ns).sum() };
        let governed = host.ps();
        host.stop(daemon.pid());
        thread::sleep(AFTER_THE_DAEMON);
        let before = clients.each_ref().map(launches);
        thread::sleep(Duration::from_millis(500));
        let after = clients.each_ref().map(launches);
        for (before, after) in before.iter().zip(after) {
            assert!(after >= before + 50, "launched {before}, half a second later {after}");
        }
        daemon.signal(Signal::CONT);
        thread::sleep(Duration::from_millis(1000));
        // Meanwhile each meter counted the other's turns as its own.
        let back = host.ps();
        let (passed_ns, charged_ns) = (back.now_ns - governed.now_ns, charged(&back) - charged(&governed));
        println!("charged {charged_ns} ns in {passed_ns} ns");
        assert!(charged_ns <= passed_ns + passed_ns / 20, "charged {charged_ns} ns in {passed_ns} ns");
        assert!(charged_ns >= passed_ns / 2, "charged {charged_ns} ns in {passed_ns} ns");
        let window = Window::measure(&host, Duration::from_secs(2));
        let had = window.true_percent("a");
        assert!((had - 80.0).abs() <= 4.0, "shares are enforced again: a had {had:.1} %");
    }

    #[test]
    fn a_tenant_that_is_stopped_does_not_stop_another() {
        // A debugger, a job-control stop.
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
        let host = Host::measuring();
        let _daemon = host.daemon();
        let mut doomed = backlog(&host, "doomed", "70%", &["--hold", &HELD_BYTES.to_string()]);
        let other = backlog(&host, "other", "30%", &[]);
        let ps = host
            .await_ps(|ps| ps.find("doomed").is_some_and(|t| t.memory_bytes >= HELD_BYTES), COMMAND_LIMIT);
        let doomed_pid = ps.tenant("doomed").sessions[0].pid;
        let other_pid = ps.tenant("other").sessions[0].pid;
        thread::sleep(Duration::from_millis(500));

        let killed = Instant::now();
        signal(doomed_pid, Signal::KILL);
        host.await_ps(|ps| ps.find("doomed").is_none_or(|t| t.memory_bytes == 0), COMMAND_LIMIT);
        let freed = killed.elapsed();
        assert!(freed <= FREE_WITHIN, "the account was clear after {freed:?}");

        // What comes later than the allowance is all the other's.
        thread::sleep(FREE_WITHIN.saturating_sub(killed.elapsed()));
        let before = host.truth();
        thread::sleep(Duration::from_millis(500));
        let tally = Tally::between(&before, &host.truth());
        let busy = tally.percent(&[other_pid]) * tally.total_ns as f64 / tally.elapsed_ns as f64;
        assert!(busy >= 70.0, "the other had the GPU {busy:.1} % of the time");
        assert_eq!(
            doomed.await_end(COMMAND_LIMIT).code,
            128 + 9,
            "deepres run passes the signal on as a shell does"
        );
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
        let deadline = Instant::now() + COMMAND_LIMIT;
        while !tells.exists() {
            assert!(Instant::now() < deadline, "the state is not written");
            thread::sleep(Duration::from_millis(1));
        }
        // What comes, what is asked and what ends does not wait for the disk either.
        let _other = backlog(&host, "other", "50%", &["--hold", &hold]);
        let doomed_pid = host.ps().tenant("doomed").sessions[0].pid;
        let killed = Instant::now();
        signal(doomed_pid, Signal::KILL);
        host.await_ps(|ps| ps.find("doomed").is_none_or(|t| t.memory_bytes == 0), COMMAND_LIMIT);
        let freed = killed.elapsed();
        assert!(freed <= FREE_WITHIN, "the account was clear after {freed:?}");
        assert!(held.exists(), "the state was never written meanwhile");
        fs::remove_file(&held).expect("it is there");
        // What an administrator sets is answered once it is written.
        host.finish(host.deepres(&["set", "other", "--share", "30%"])).success();
        let state = fs::read_to_string(host.deepres_dir().join("state.json")).expect("it was written");
        assert!(state.contains("300000"), "{state}");
    }

    #[test]
    fn the_places_of_processes_that_are_dead_are_looked_at_no_more() {
        const CROWD: usize = 6;
        let host = Host::measuring();
        let daemon = host.daemon();
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
        let deadline = Instant::now() + COMMAND_LIMIT;
        while ledger.slots_looked_at() > 1 {
            assert!(Instant::now() < deadline, "{} slots are looked at", ledger.slots_looked_at());
            thread::sleep(Duration::from_millis(50));
        }
        drop(first);
    }
}
