//! Threads of a process, many processes, and clients on several GPUs make contexts at the same
//! time. The ledger counts each context, and no call waits for an unrelated context.

use std::fs;
use std::path::Path;

use deepres_e2e::prelude::*;

const CONTEXT_MIB: u64 = 100;
const OUT_OF_MEMORY: &str = "2";
const TENANT: &str = "t";

fn host_of(gpus: usize) -> Host {
    let bytes = CONTEXT_MIB * MIB;
    Host::new()
        .simgpu(&format!("gpus = {gpus}\nmemory_bytes = 17179869184\ncontext_overhead_bytes = {bytes}\n"))
}

fn host() -> Host {
    host_of(1)
}

/// Starts a daemon whose NVML answers `ms` milliseconds late. If `awaited` names a file, NVML does
/// not answer before the file exists.
fn daemon_of_slow_nvml(host: &Host, ms: &str, awaited: Option<&Path>) -> Process {
    let library = c_library("slow_nvml");
    let mut variables = vec![("LD_PRELOAD", library.as_path()), ("NVML_MS", Path::new(ms))];
    variables.extend(awaited.map(|file| ("NVML_AWAITS", file)));
    host.daemon_with(&variables)
}

fn contexts_mib(host: &Host) -> u64 {
    host.account(TENANT)["memory_by_kind"]["driver"].as_u64().unwrap_or(0) / MIB
}

/// Starts a process that makes contexts on command.
fn maker(host: &Host) -> Process {
    let mut command = host.preloaded(c_client("overheads"));
    command.env("DEEPRES_TENANT", TENANT);
    host.spawn(command)
}

/// Runs the client `retains` in this mode. Returns the process, the result codes of both threads,
/// and the time between the ends of their calls.
fn retains(host: &Host, mode: &str, variables: &[(&str, &str)]) -> (Process, String, Duration) {
    let mut command = host.preloaded(c_client("retains"));
    command.arg(mode).env("DEEPRES_TENANT", TENANT).envs(variables.iter().copied());
    let mut process = host.spawn(command);
    let line = process.await_line(|line| line.split(' ').count() == 3);
    let (codes, apart_ms) = line.rsplit_once(' ').expect("three words");
    let apart = Duration::from_millis(apart_ms.parse().expect("milliseconds"));
    (process, codes.to_owned(), apart)
}

#[test]
fn a_gpus_primary_context_does_not_wait_for_anothers() {
    const DRIVER_TAKES: Duration = Duration::from_secs(2);
    let (host, _daemon) = host_of(2).with_daemon();
    let fault = format!("cuDevicePrimaryCtxRetain:delay:{}s", DRIVER_TAKES.as_secs());
    let (_process, codes, apart) = retains(&host, "other", &[("SIMGPU_FAULTS", &fault)]);
    assert_eq!(codes, "0 0");
    assert!(apart < DRIVER_TAKES, "the second call began when the first had ended: {apart:?} apart");
}

#[test]
fn a_primary_context_that_is_refused_to_one_thread_is_another_threads_neither() {
    let host = host();
    let _daemon = daemon_of_slow_nvml(&host, "200", None);
    let limit = format!("{}MiB", CONTEXT_MIB / 2);
    let (_process, codes, _) = retains(&host, "same", &[("DEEPRES_MEMORY", &limit)]);
    assert_eq!(codes, format!("{OUT_OF_MEMORY} {OUT_OF_MEMORY}"));
    assert_eq!(host.truth().gpus[0].memory_used_bytes, 0);
}

#[test]
fn contexts_of_many_processes_that_begin_at_once_all_count() {
    const PROCESSES: u64 = 40;
    let host = host();
    let _daemon = daemon_of_slow_nvml(&host, "100", None);
    let mut makers: Vec<Process> = (0..PROCESSES).map(|_| maker(&host)).collect();
    makers.iter_mut().for_each(|maker| maker.say("create 0 0"));
    for maker in &mut makers {
        maker.await_exactly("0 0");
    }
    // A context that NVML does not report in time is counted soon after.
    host.await_ps(|ps| {
        ps.find(TENANT).is_some_and(|tenant| tenant.memory_bytes == PROCESSES * CONTEXT_MIB * MIB)
    });
    assert_eq!(contexts_mib(&host), PROCESSES * CONTEXT_MIB);
}

#[test]
fn contexts_that_nvml_does_not_tell_of_in_time_count_once_it_does() {
    let host = host();
    let file = host.path().join("nvml-answers");
    let _daemon = daemon_of_slow_nvml(&host, "0", Some(&file));
    let mut maker = maker(&host);
    for (number, command) in ["create 0 0", "create 1 0", "create 2 0", "destroy 1 0"].iter().enumerate() {
        maker.say(command);
        maker.await_line(|line| line == format!("{number} 0"));
    }
    assert_eq!(contexts_mib(&host), 0);
    maker.await_error_line(|line| line.contains("until NVML reports it"));
    fs::write(&file, []).expect("the host's own folder");
    host.await_ps(|ps| ps.find(TENANT).is_some_and(|tenant| tenant.memory_bytes == 2 * CONTEXT_MIB * MIB));
    assert_eq!(contexts_mib(&host), 2 * CONTEXT_MIB);
    maker.say("destroy 0 0");
    maker.await_exactly("4 0");
    assert_eq!(contexts_mib(&host), CONTEXT_MIB);
}
