//! The memory limit is exact on every path, holds under races, and is visible to the tenant.

use std::{
    thread,
    time::{Duration, Instant},
};

use deepres_e2e::{
    Host, Process,
    clients::{Way, c_client},
    host::COMMAND_LIMIT,
};
use serde_json::Value;
use simgpu_engine::Config;

const MIB: u64 = 1 << 20;
/// The limit is more than a context takes.
const LIMIT_MIB: u64 = 1024;
const LIMIT_BYTES: u64 = LIMIT_MIB * MIB;
/// Size of a chunk. It is the step by which a pool grows, so no kind of allocation rounds it.
const CHUNK_BYTES: u64 = 32 * MIB;
const CUDA_ERROR_OUT_OF_MEMORY: u64 = 2;
/// Number of kinds of allocation that `fill` tries.
const KINDS: usize = 9;
/// Kinds that take exactly the requested amount from the device. No pool keeps memory for later,
/// and no memory can move to the host.
const PLAIN_KINDS: [&str; 3] = ["cuMemAlloc_v2", "cuMemAllocPitch_v2", "cuMemCreate"];

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no {key} in {value}"))
}

/// Returns the sum of the most device memory that each process in the record held, bytes.
fn most_held_bytes(host: &Host) -> u64 {
    host.truth().processes.iter().map(|process| process.gpus[0].memory_peak_bytes).sum()
}

fn assert_the_limit_holds(way: Way) {
    let host = Host::new();
    let _daemon = host.daemon();
    let limit = format!("{LIMIT_MIB}MiB");
    let options = ["--name", "limited", "--memory", &limit];
    let command = host.run(&options, c_client("fill", way), &[&CHUNK_BYTES.to_string()]);
    let said = host.finish(command).success().json();

    assert_eq!(number(&said, "device_total"), LIMIT_BYTES, "cuDeviceTotalMem shows the tenant's part");
    assert_eq!(number(&said, "info_total"), LIMIT_BYTES, "cuMemGetInfo shows the tenant's part");
    let free = number(&said, "info_free");
    assert!(free <= LIMIT_BYTES);
    let kinds = said["kinds"].as_array().expect("a list");
    assert_eq!(kinds.len(), KINDS);
    for kind in kinds {
        let fits = free / CHUNK_BYTES * CHUNK_BYTES;
        assert_eq!(number(kind, "bytes"), fits, "{kind}: all that is free can be had, and no more");
        assert_eq!(number(kind, "code"), CUDA_ERROR_OUT_OF_MEMORY, "{kind}");
        assert_eq!(number(kind, "free_when_full"), free - fits, "{kind}");
        assert_eq!(number(kind, "again_bytes"), fits, "{kind}: what was freed can be had again");
        assert_eq!(number(kind, "again_code"), CUDA_ERROR_OUT_OF_MEMORY, "{kind}");
    }
    assert!(most_held_bytes(&host) <= LIMIT_BYTES);
}

#[test]
fn every_kind_of_allocation_of_a_linked_client_stops_at_the_limit() {
    assert_the_limit_holds(Way::Linked);
}

#[test]
fn every_kind_of_allocation_of_a_dlsym_client_stops_at_the_limit() {
    assert_the_limit_holds(Way::Dlsym);
}

#[test]
fn every_kind_of_allocation_of_a_get_proc_address_client_stops_at_the_limit() {
    assert_the_limit_holds(Way::ProcAddress);
}

#[test]
fn a_tenant_without_a_limit_sees_the_whole_device() {
    let host = Host::new();
    let _daemon = host.daemon();
    let command = host.run(&["--name", "free"], c_client("view", Way::Dlsym), &[]);
    let mut client = host.spawn(command);
    let said = client.await_json(COMMAND_LIMIT);
    assert_eq!(number(&said, "total"), Config::default().memory_bytes);
    assert_eq!(host.ps().tenant("free").memory_limit_bytes, None);
    client.finish(COMMAND_LIMIT).success();
}

/// Races in `processes` processes of one tenant with `threads` threads each, and checks the account
/// meanwhile. Calls `look` repeatedly during the race. Returns the processes' reports.
fn race(host: &Host, processes: usize, threads: &str, kinds: &[&str], mut look: impl FnMut()) -> Vec<Value> {
    let limit = format!("{LIMIT_MIB}MiB");
    let arguments: Vec<&str> = [threads, "2.5"].iter().chain(kinds).copied().collect();
    let options = ["--name", "racer", "--memory", &limit];
    let start = |_| host.spawn(host.run(&options, c_client("race", Way::Dlsym), &arguments));
    let mut clients: Vec<Process> = (0..processes).map(start).collect();
    let deadline = Instant::now() + Duration::from_millis(2500);
    let mut next_account = Instant::now();
    while Instant::now() < deadline {
        look();
        thread::sleep(Duration::from_micros(200));
        if Instant::now() >= next_account {
            next_account = Instant::now() + Duration::from_millis(100);
            if let Some(tenant) = host.ps().find("racer") {
                assert!(tenant.memory_bytes <= LIMIT_BYTES, "the account says {tenant:?}");
            }
        }
    }
    let reports: Vec<Value> = clients.iter_mut().map(|client| client.await_json(COMMAND_LIMIT)).collect();
    for said in &reports {
        assert_eq!(number(said, "other_errors"), 0, "{said}");
        assert!(
            number(said, "refusals") > 100 && number(said, "successes") > 100,
            "it ran into the limit: {said}"
        );
        assert!(number(said, "most_bytes") <= LIMIT_BYTES, "{said}");
    }
    // After the race the account is empty.
    assert_eq!(host.ps().tenant("racer").memory_bytes, 0, "after freeing everything");
    for client in clients {
        client.finish(COMMAND_LIMIT).success();
    }
    reports
}

#[test]
fn eight_racing_threads_never_pass_the_limit_by_a_byte() {
    let host = Host::new().light_contexts();
    let _daemon = host.daemon();
    let reports = race(&host, 1, "8", &PLAIN_KINDS, || ());
    assert!(most_held_bytes(&host) <= LIMIT_BYTES, "the record: {}", most_held_bytes(&host));
    assert!(number(&reports[0], "most_bytes") > LIMIT_BYTES * 9 / 10, "and come close to it: {}", reports[0]);
}

#[test]
fn eight_threads_racing_by_every_kind_of_allocation_never_pass_the_limit_by_a_byte() {
    let host = Host::new().light_contexts();
    let _daemon = host.daemon();
    let reports = race(&host, 1, "8", &[], || ());
    // A pool's spare memory may lie in too many pieces. Then the pool grows for the length of a
    // call, which the limit then refuses.
    let most = most_held_bytes(&host);
    assert!(most <= LIMIT_BYTES + CHUNK_BYTES, "the record: {most}");
    assert!(most > LIMIT_BYTES / 2, "and came near the limit: {}", reports[0]);
}

#[test]
fn two_racing_processes_of_one_tenant_never_pass_their_common_limit() {
    let host = Host::new().light_contexts();
    let _daemon = host.daemon();
    let mut most = 0;
    race(&host, 2, "4", &PLAIN_KINDS, || {
        // The record is one instant of the whole device.
        if let Ok(truth) = simgpu_engine::truth::snapshot(host.state_dir()) {
            most = most.max(truth.gpus[0].memory_used_bytes);
        }
    });
    assert!(most <= LIMIT_BYTES, "held {most} bytes together");
    assert!(most > LIMIT_BYTES / 2, "and came near the limit: {most}");
}
