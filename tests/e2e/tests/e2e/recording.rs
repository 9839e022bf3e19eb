//! `deepres run --record` writes the clients' driver calls into a file, and the evaluation runs the
//! file as a workload.

use std::fs;
use std::path::Path;

use deepres_e2e::artefacts::clients_python;
use deepres_e2e::clients::demo_simgpu;
use deepres_e2e::prelude::*;
use deepres_eval::metrics;
use deepres_eval::policy::Policy;
use deepres_eval::scenario::Scenario;
use deepres_eval::trace::{Process, Trace};

/// Time limit of a client. Python clients import and compile first, on a machine with other work.
const CLIENT_LIMIT: Duration = Duration::from_secs(120);

/// Returns the process of a trace that launched.
fn launcher(trace: &Trace) -> &Process {
    trace.processes.iter().max_by_key(|process| process.launches.len()).expect("a process recorded")
}

/// Returns the number of kernels that the simulated GPU ran, including the nodes of graphs.
fn kernels(host: &Host) -> u64 {
    host.truth().processes.iter().map(|process| process.gpus[0].kernels).sum()
}

/// Runs the recorded workload beside a second, backlogged tenant.
fn assert_replayable(file: &Path) {
    let text = format!(
        "name = \"replay\"\nshows = \"a trace\"\nduration_s = 90\nwarmup_s = 1\n\
         [[tenant]]\nname = \"recorded\"\n[tenant.trace]\nfile = \"{}\"\npause_ms = 1\n\
         [[tenant]]\nname = \"busy\"\n[tenant.steps]\nkernels = 100\nkernel_us = 500\n",
        file.display()
    );
    let scenario = Scenario::parse(&text).expect("the trace is a workload");
    for evaluated in metrics::evaluate(&scenario, &[Policy::Deepres, Policy::Gps]) {
        let recorded = &evaluated.row.tenants[0];
        assert!(recorded.demand > 0.0 && recorded.received > 0.0, "{recorded:?}");
        // A kernel that began before the measurement counts in full when it ends.
        assert!(evaluated.row.throughput <= 1.01, "{}", evaluated.row.throughput);
    }
}

#[test]
fn every_call_of_a_numba_client_is_in_its_trace_and_the_trace_is_a_workload() {
    let (host, _daemon) = Host::new().with_daemon();
    let file = host.path().join("numba.trace");
    let options = ["--record", file.to_str().expect("UTF-8"), "--memory", "1GiB"];
    let client = script("numba_client").display().to_string();
    let mut process = host.spawn(host.run(&options, clients_python().python(), &[&client, "500"]));
    let said = process.await_json_within(CLIENT_LIMIT);
    process.finish().success();
    let trace = Trace::read(&file).expect("a trace");
    let recorded = launcher(&trace);
    assert_eq!((recorded.lost, recorded.is_whole, trace.torn_bytes), (0, true, 0));
    assert_eq!(recorded.launches.len() as u64, said["kernel_launches"].as_u64().expect("a number"));
    assert_eq!(recorded.launches.len() as u64, kernels(&host));
    assert!(recorded.names.values().any(|name| name.contains("add")), "{:?}", recorded.names);
    assert!(
        recorded.shapes.iter().all(|shape| shape.grid[0] > 0 && shape.block[0] > 0),
        "{:?}",
        recorded.shapes
    );
    assert!(!recorded.took.is_empty() && !recorded.copies.is_empty() && !recorded.allocations.is_empty());
    assert!(!recorded.waits.is_empty());
    assert_replayable(&file);
}

#[test]
#[ignore = "deep: takes long"]
fn a_tinygrad_trainers_graphs_and_kernels_are_in_its_trace_and_the_trace_is_a_workload() {
    let (host, _daemon) = Host::new().simgpu(&demo_simgpu()).with_daemon();
    let file = host.path().join("tinygrad.trace");
    let options = ["--record", file.to_str().expect("UTF-8")];
    let process = host.spawn(host.run_training(&options, &["--steps", "12"]));
    process.finish_within(CLIENT_LIMIT).success();
    let trace = Trace::read(&file).expect("a trace");
    let recorded = launcher(&trace);
    assert_eq!((recorded.lost, recorded.is_whole, trace.torn_bytes), (0, true, 0));
    let graphs =
        recorded.launches.iter().filter(|launch| recorded.shapes[launch.shape].grid == [0; 3]).count();
    let singles = recorded.launches.len() - graphs;
    assert!(
        graphs > 0 && singles > 0 && (singles as u64) < kernels(&host),
        "{graphs} graphs, {singles} kernels"
    );
    assert!(recorded.names.len() > 10, "{:?}", recorded.names);
    assert!(recorded.took.values().all(|(count, ns)| *count > 0 && *ns > 0));
    assert_replayable(&file);
}

#[test]
fn the_recording_of_a_killed_client_can_be_read() {
    let (host, _daemon) = Host::new().with_daemon();
    let file = host.path().join("killed.trace");
    let options = ["--record", file.to_str().expect("UTF-8")];
    let client = host.start(
        host.run(&options, c_client_by("pace", Way::ProcAddress), &["busy_200usx10", "sync", "wait:2000"]),
        "ready",
    );
    thread::sleep(Duration::from_millis(500));
    drop(client);
    let trace = Trace::read(&file).expect("a trace");
    let recorded = launcher(&trace);
    assert!(!recorded.is_whole && recorded.launches.len() > 10, "{} launches", recorded.launches.len());
    let stretches = trace.stretches().expect("work");
    assert!(
        stretches.iter().any(|stretch| stretch.kernels_ns.len() == 10),
        "steps of ten kernels are stretches"
    );
    // The file is cut off at another place.
    let bytes = fs::read(&file).expect("the file");
    fs::write(&file, &bytes[..bytes.len() - 7]).expect("the file");
    assert!(Trace::read(&file).expect("a trace").torn_bytes > 0);
}

#[test]
fn a_file_that_cannot_be_written_is_said_before_the_job_starts() {
    let (host, _daemon) = Host::new().with_daemon();
    let command = host.run(&["--record", "/no-such-folder/x.trace"], c_client("hello"), &[]);
    let finished = host.finish(command);
    assert!(finished.code != 0 && finished.stderr.contains("cannot record into /no-such-folder/x.trace"));
}
