//! Memory that the driver keeps after objects were freed also counts: shared blocks, pools, rows of
//! arrays, memory of graphs. The account and the GPU's record agree at every stage.

use deepres_e2e::prelude::*;

const LIMIT_BYTES: u64 = 400 * MIB;
/// Line of the client when an allocation is refused.
const FULL: &str = "full 2";

/// Runs the client's part `what` and compares its stages with `expected`: stage, kind, MiB of that
/// kind. `said` holds the lines between stages.
#[track_caller]
fn assert_counts(what: &str, expected: &[(&str, &str, u64)], said: &[&str]) {
    // Contexts take no memory, so the GPU's record contains allocations alone.
    let (host, _daemon) = Host::new().simgpu("context_overhead_bytes = 0\n").with_daemon();
    let mut command = host.preloaded(c_client("kept"));
    command.args([what, &LIMIT_BYTES.to_string()]);
    command.env("DEEPRES_TENANT", "keeper").env("DEEPRES_MEMORY", LIMIT_BYTES.to_string());
    let mut client = host.spawn(command);
    for (stage, kind, mib) in expected {
        client.await_line(|line| line == format!("stage {stage}"));
        let ps: Value = host.status();
        let account = &ps["tenants"][0]["gpus"][0];
        let truth = host.truth().gpus[0];
        assert_eq!(account["memory_by_kind"][kind].as_u64().unwrap_or(0), mib * MIB, "{stage}: {account}");
        assert_eq!(account["memory_bytes"].as_u64(), Some(truth.memory_used_bytes), "{stage}: {account}");
        assert!(truth.memory_peak_bytes <= LIMIT_BYTES, "{stage}: {truth:?}");
        client.say("");
    }
    let finished = client.finish().success();
    let lines: Vec<&str> = finished.stdout.lines().filter(|line| !line.starts_with("stage")).collect();
    assert_eq!(lines, said);
}

#[test]
fn small_allocations_count_for_the_blocks_that_they_share() {
    assert_counts("slabs", &[("small", "linear", 4), ("few", "linear", 4), ("none", "linear", 0)], &[]);
}

#[test]
fn a_small_allocation_that_fits_beside_others_is_given_at_the_limit_and_not_a_byte_more() {
    assert_counts("tight", &[("tight", "linear", 400), ("loose", "linear", 0)], &[FULL]);
}

#[test]
fn an_array_counts_for_its_rows_however_short_they_are() {
    assert_counts("array", &[("array", "array", 32)], &[]);
}

#[test]
fn a_pool_counts_for_what_it_keeps_and_gives_it_back_before_anything_is_refused() {
    let stages = [
        ("pooled", "pool", 100),
        ("kept", "pool", 100),
        ("trimmed", "pool", 0),
        ("spare", "pool", 40),
        ("orphaned", "pool", 40),
        ("destroyed", "pool", 0),
    ];
    assert_counts("pool", &stages, &[FULL]);
}

#[test]
fn a_destroyed_pool_counts_until_the_stream_has_come_to_the_end_of_its_memory() {
    let (host, _daemon) = Host::new().with_daemon();
    let client = c_client("poolends");
    let said = host.finish(host.run(&["--name", "ends", "--memory", "2GiB"], client, &[]));
    let said = said.success().json();
    let free_bytes = |stage: &str| said[stage].as_u64().expect("a number of bytes");
    assert!(free_bytes("meanwhile") + 128 * MIB <= free_bytes("before"), "{said}");
    assert_eq!(free_bytes("after"), free_bytes("before"), "{said}");
}

#[test]
fn captured_memory_counts_from_the_upload_or_launch_on_until_it_is_trimmed() {
    let stages = [
        ("captured", "graph", 0),
        ("launched", "graph", 50),
        ("pooled", "graph", 0),
        ("launched again", "graph", 50),
        ("given back", "graph", 0),
        ("uploaded", "graph", 50),
        ("launched at last", "graph", 50),
        ("made and uploaded", "graph", 50),
        ("refused", "graph", 0),
        ("end", "graph", 0),
    ];
    assert_counts("graph", &stages, &[FULL, FULL, FULL, "because of 1"]);
}
