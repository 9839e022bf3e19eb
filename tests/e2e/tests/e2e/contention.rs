//! Processes and threads of one tenant race for its memory while the test kills some of them. The
//! test is a short form of `cargo xtask bench memory`, without pools.
//!
//! The driver can let a pool grow although enough of its memory is spare. Such a pool passes the
//! limit for the length of a call, which shows in the GPU's record of its peak.

use std::collections::BTreeMap;

use deepres_e2e::contention::{Kill, Log};
use deepres_e2e::prelude::*;
use rustix::time::{ClockId, clock_gettime};

const OPERATIONS: u64 = 100_000;
const PROCESSES: u32 = 4;
const THREADS: &str = "4";
const KILLS: u32 = 4;
const LIMIT_BYTES: u64 = 512 << 20;
const TENANT: &str = "race";

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32).as_nanos() as u64
}

fn racer(host: &Host, log: &Log, number: u32) -> (u32, Process) {
    let mut command = host.preloaded(c_client("contend"));
    command.arg(log.path()).args([OPERATIONS.to_string(), number.to_string()]).arg(THREADS);
    command.env("DEEPRES_TENANT", TENANT).env("DEEPRES_MEMORY", LIMIT_BYTES.to_string());
    (number, host.spawn(command))
}

#[test]
fn no_race_and_no_kill_breaks_the_limit_or_refuses_what_fits() {
    // Contexts take no memory, so the record contains allocations alone.
    let (host, _daemon) = Host::new().simgpu("context_overhead_bytes = 0\n").with_daemon();
    let log = Log::create(&host.path().join("log"), OPERATIONS).expect("a folder of our own");
    let mut racers: Vec<_> = (0..PROCESSES).map(|number| racer(&host, &log, number)).collect();
    let mut kills = BTreeMap::new();
    for kill in 0..KILLS {
        let point = OPERATIONS * u64::from(kill + 1) / u64::from(KILLS + 1);
        eventually("the race goes on", || log.begun().expect("the log is there") >= point);
        let replacement = racer(&host, &log, PROCESSES + kill);
        let (number, mut victim) = std::mem::replace(&mut racers[(kill % PROCESSES) as usize], replacement);
        let pid = victim.pid();
        let is_there = |ps: &Ps| ps.find(TENANT).is_some_and(|tenant| tenant.pids().contains(&pid));
        host.await_ps(is_there);
        let sent_ns = now_ns();
        victim.kill();
        kills.insert(number, Kill { sent_ns, dead_ns: now_ns() });
        host.await_ps(|ps| !is_there(ps));
    }
    for (_, racer) in &mut racers {
        racer.await_exactly("done");
    }
    let truth = host.truth().gpus[0];
    // Managed memory counts wherever its pages are.
    let managed = host.status()["tenants"][0]["gpus"][0]["memory_by_kind"]["managed"].as_u64();
    let held_bytes = host.ps().tenant(TENANT).memory_bytes - managed.unwrap_or(0);
    assert_eq!(held_bytes, truth.memory_used_bytes, "account and GPU agree");
    assert!(truth.memory_peak_bytes <= LIMIT_BYTES, "the GPU's record: {}", truth.memory_peak_bytes);
    let verdict = log.judge(LIMIT_BYTES, &kills).expect("a log that makes sense");
    assert_eq!(verdict.operations, OPERATIONS);
    assert_eq!((verdict.breaches, verdict.false_refusals), (0, 0), "{verdict:?}");
    assert!(
        verdict.refusals > OPERATIONS / 20 && verdict.successes > OPERATIONS / 50,
        "it ran into the limit: {verdict:?}"
    );
    for (_, mut racer) in racers {
        racer.close_stdin();
        racer.finish().success();
    }
    assert_eq!(host.ps().tenant(TENANT).memory_bytes, 0);
}
