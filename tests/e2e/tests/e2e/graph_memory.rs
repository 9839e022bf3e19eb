//! Memory that graphs allocate never passes the limit, however deep in a graph the allocation is.
//! If the driver would grant an allocation within the limit, the interposer lets it through.

use deepres_e2e::prelude::*;

const LIMIT_MIB: u64 = 400;
const SUCCESS: u64 = 0;
const INVALID_VALUE: u64 = 1;
const FULL: u64 = 2;

fn host() -> Host {
    // Contexts take no memory, so the GPU's record contains allocations alone.
    Host::new().simgpu("context_overhead_bytes = 0\n")
}

/// Runs the client's part `what` in `processes` processes of one tenant, under the limit. Asserts
/// that the tenant never held more than the limit. Returns the numbers that the processes printed.
#[track_caller]
fn all_said(processes: usize, what: &str, count: u64, mib: u64) -> Vec<Vec<u64>> {
    let (host, _daemon) = host().with_daemon();
    let start = |_| {
        let mut command = host.preloaded(c_client("graphs"));
        command.args([what, &count.to_string(), &mib.to_string()]);
        command.env("DEEPRES_TENANT", "t").env("DEEPRES_MEMORY", format!("{LIMIT_MIB}MiB"));
        host.spawn(command)
    };
    let clients: Vec<Process> = (0..processes).map(start).collect();
    let finished: Vec<String> = clients.into_iter().map(|client| client.finish().success().stdout).collect();
    let peak_bytes = host.truth().gpus[0].memory_peak_bytes;
    assert!(peak_bytes <= LIMIT_MIB * MIB, "{} MiB were held", peak_bytes / MIB);
    let numbers = |said: &String| said.lines().map(|line| line.parse().expect("a number")).collect();
    finished.iter().map(numbers).collect()
}

/// Runs one process like [`all_said`], and returns its numbers.
#[track_caller]
fn said(what: &str, count: u64, mib: u64) -> Vec<u64> {
    all_said(1, what, count, mib).concat()
}

#[test]
fn memory_that_the_driver_refuses_a_graph_on_a_full_gpu_is_told() {
    let (host, _daemon) =
        Host::new().simgpu("memory_bytes = 268435456\ncontext_overhead_bytes = 0\n").with_daemon();
    let client = host.run(&["--name", "t"], c_client("graphs"), &["nested", "0", "300"]);
    assert_eq!(host.finish(client).success().stdout.trim(), FULL.to_string());
    let account = host.status()["tenants"][0]["gpus"][0].clone();
    assert_eq!(account["refusals"], 1, "{account}");
    assert_eq!(account["last_refusal"]["by"], "driver", "{account}");
    assert_eq!(account["last_refusal"]["bytes"], 300 * MIB, "{account}");
}

#[test]
fn a_graph_is_looked_into_however_deep_it_goes() {
    for depth in [0, 1, 8, 9, 12, 100] {
        assert_eq!(said("nested", depth, 300), [SUCCESS], "{depth} deep");
        assert_eq!(said("nested", depth, 402), [FULL], "{depth} deep");
    }
}

#[test]
fn allocations_that_follow_each_other_are_had_one_after_the_other() {
    assert_eq!(said("chain", 5, 300), [SUCCESS, SUCCESS]);
    assert_eq!(said("chain", 5, 402), [FULL, FULL]);
}

#[test]
fn a_graph_that_frees_what_it_left_is_launched_again() {
    // The last two answers: first the client finds no room, then it finds room again.
    assert_eq!(said("again", 3, 300), [SUCCESS, SUCCESS, SUCCESS, FULL, FULL, SUCCESS]);
}

#[test]
fn a_graph_that_left_something_allocated_is_refused_by_the_driver() {
    assert_eq!(said("once", 3, 300), [SUCCESS, INVALID_VALUE, INVALID_VALUE, FULL, FULL, SUCCESS]);
}

#[test]
fn a_graph_does_not_count_on_memory_that_another_left() {
    let mut expected = vec![SUCCESS; 6];
    // The other graph frees the first one's memory, and another allocation takes it. The second
    // graph has memory of its own.
    expected.extend([SUCCESS, FULL, SUCCESS]);
    assert_eq!(said("turns", 6, 200), expected);
}

#[test]
fn a_graph_that_the_driver_does_not_destroy_is_held_to_the_limit_as_before() {
    const FAILS: u64 = 3;
    let (host, _daemon) = host().with_daemon();
    let mut command = host.preloaded(c_client("graphs"));
    command.args(["kept", &FAILS.to_string(), "300"]);
    let faults: Vec<String> = (1..=FAILS).map(|call| format!("cuGraphExecDestroy:{call}:999")).collect();
    command.env("SIMGPU_FAULTS", faults.join(","));
    command.env("DEEPRES_TENANT", "t").env("DEEPRES_MEMORY", format!("{LIMIT_MIB}MiB"));
    let said = host.finish(command).success().stdout;
    assert_eq!(said, format!("{FULL}\n{FULL}\n{SUCCESS}\n"));
    assert!(host.truth().gpus[0].memory_peak_bytes <= LIMIT_MIB * MIB);
}

#[test]
fn no_race_of_launches_frees_and_trims_passes_the_limit() {
    // Three graphs and the allocations of two threads do not fit together.
    for count in said("race", 3000, 130) {
        assert!(count > 0, "everybody has something now and then");
    }
}

#[test]
fn no_race_of_two_processes_with_graphs_passes_the_limit() {
    for said in all_said(2, "race", 3000, 70) {
        assert!(said.iter().sum::<u64>() > 0, "each has something now and then: {said:?}");
    }
}
