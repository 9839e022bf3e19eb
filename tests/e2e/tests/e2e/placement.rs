//! `deepres run --gpus` and `deepres topo`: the daemon reads how the GPUs reach each other, and
//! chooses the GPUs that a job sees.

use deepres_e2e::prelude::*;
use deepres_eval::placement::matrix::Matrix;
use deepres_eval::placement::ours;
use std::fs;
use std::path::Path;

/// Four GPUs in pairs behind switches, on two NUMA nodes. 0 and 2, and 1 and 3, have NVLinks.
const MACHINE: &str = "gpus = 4\ntopology = { nvlinks = [[0, 0, 4, 0], [0, 0, 0, 4], [4, 0, 0, 0], [0, 4, 0, 0]], \
    nvlink_version = 3, numa_nodes = [0, 0, 1, 1], ancestors = [['X', 'PIX', 'SYS', 'SYS'], \
    ['PIX', 'X', 'SYS', 'SYS'], ['SYS', 'SYS', 'X', 'PIX'], ['SYS', 'SYS', 'PIX', 'X']] }\n";

/// Runs a client with these options. Returns the client, and the numbers of the GPUs that the
/// daemon chose and of the GPUs that the client's session sees.
fn placed(host: &Host, name: &str, options: &[&str]) -> (Process, Value, Value) {
    let options = [&["--name", name], options].concat();
    let (client, _) = host.told(host.run(&options, c_client("view"), &[]));
    let tenant = host.tenant(name);
    let accounts = tenant["gpus"].as_array().unwrap();
    let seen = accounts.iter().map(|account| account["gpu"].clone()).collect();
    (client, tenant["placement"]["gpus"].clone(), seen)
}

#[test]
fn a_gpu_that_is_lost_at_the_daemons_start_gets_no_job_and_the_others_keep_their_numbers() {
    let host = Host::new().simgpu(MACHINE);
    // NVML_ERROR_GPU_IS_LOST for the first question, which is for the first GPU.
    let _daemon = host.daemon_with(&[("SIMGPU_FAULTS", Path::new("nvmlDeviceGetHandleByIndex_v2:1:15"))]);
    let status = host.status();
    let gpus = status["gpus"].as_array().unwrap();
    assert!(gpus[0]["fault"].as_str().unwrap().contains("restart the daemon"), "{status}");
    assert!(gpus[1..].iter().all(|gpu| gpu["fault"].is_null()), "{status}");
    let (gang, chosen, seen) = placed(&host, "gang", &["--gpus", "2", "--share", "50%"]);
    assert_eq!((&chosen, &seen), (&json!([1, 3]), &json!([1, 3])), "NVLinks join them");
    gang.finish().success();
}

/// Returns a square table.
fn square<T>(size: usize, cell: impl Fn(usize, usize) -> T) -> Vec<Vec<T>> {
    (0..size).map(|a| (0..size).map(|b| cell(a, b)).collect()).collect()
}

/// Returns the configuration of a simulated machine like the one of a matrix.
fn machine_of(Matrix { topology, .. }: &Matrix) -> String {
    let gpus = topology.len();
    let is_switched = topology.links().any(|(_, _, pair)| pair.is_switched);
    let most = topology.links().map(|(_, _, pair)| pair.links).max().unwrap_or(0);
    let generation = topology.links().map(|(_, _, pair)| pair.generation).max().unwrap_or(0);
    let ancestors = square(gpus, |a, b| if a == b { "X" } else { topology.pair(a, b).wire.level.name() });
    let links = square(gpus, |a, b| if a == b || is_switched { 0 } else { topology.pair(a, b).links });
    let p2p = square(gpus, |a, b| match topology.pair(a, b).wire.p2p {
        Some(status) if a != b => status.name(),
        _ => "OK",
    });
    let nodes: Option<Vec<u32>> = topology.gpus().iter().map(|gpu| gpu.numa_node).collect();
    format!(
        "gpus = {gpus}\n[topology]\nancestors = {ancestors:?}\nnvlinks = {links:?}\np2p = {p2p:?}\n\
         switch_links = {}\nnvlink_version = {generation}\nnuma_nodes = {:?}\n",
        if is_switched { most } else { 0 },
        nodes.unwrap_or_default()
    )
}

#[test]
fn the_topology_of_each_real_machine_comes_back_from_nvml() {
    let mut machines = 0;
    for entry in ours().read_dir().unwrap() {
        let file = entry.unwrap().path();
        let text = String::from_utf8_lossy(&fs::read(&file).unwrap()).into_owned();
        // A text without a usable matrix describes no machine.
        let Ok(matrix) = Matrix::parse(&file.display().to_string(), &text) else { continue };
        let Matrix { name, topology } = &matrix;
        let shown = Host::new().simgpu(&machine_of(&matrix)).json(&["topo", "--json"]);
        for pair in shown["pairs"].as_array().unwrap() {
            let [a, b] = [0, 1].map(|place| pair["gpus"][place].as_u64().unwrap() as usize);
            let seen = ["ancestor", "nvlinks", "through_nvswitch", "bandwidth_mb_per_s"];
            let seen = seen.map(|field| pair[field].clone());
            let of = topology.pair(a, b);
            let real = [json!(of.wire.level.name()), json!(of.links), json!(of.is_switched), json!(of.mb_s)];
            assert_eq!(seen, real, "{name}: {a} and {b}");
        }
        let nodes: Option<Vec<u32>> = topology.gpus().iter().map(|gpu| gpu.numa_node).collect();
        for (gpu, node) in nodes.into_iter().flatten().enumerate() {
            assert_eq!(shown["gpus"][gpu]["numa_node"], node, "{name}: {gpu}");
        }
        machines += 1;
    }
    assert!(machines > 1);
}

#[test]
fn nvswitches_join_the_gpus_of_a_clique_alone() {
    let machine = "gpus = 4\ntopology = { switch_links = 18, nvlink_version = 4, cliques = [1, 1, 2, 2] }\n";
    let topology = Host::new().simgpu(machine).json(&["topo", "--json"]);
    let pairs = topology["pairs"].as_array().unwrap().iter();
    let joined: Vec<_> = pairs.filter(|pair| pair["nvlinks"] == 18).map(|pair| &pair["gpus"]).collect();
    assert_eq!(joined, [&json!([0, 1]), &json!([2, 3])], "{topology}");
    assert_eq!(topology["gpus"][3]["fabric"]["clique"], 2, "{topology}");
}

#[test]
#[ignore = "deep: starts several programs"]
fn jobs_get_the_gpus_that_nvlinks_join_and_see_these_alone() {
    let (host, _daemon) = Host::new().simgpu(MACHINE).with_daemon();
    let topology = host.json(&["topo", "--json"]);
    let links: Vec<_> = topology["pairs"].as_array().unwrap().iter().map(|pair| &pair["nvlinks"]).collect();
    assert_eq!(links, [0, 4, 0, 0, 4, 0], "{topology}");
    assert_eq!(topology["gpus"][2]["numa_node"], 1, "{topology}");
    assert!(host.shows(&["topo", "--svg"]).starts_with("<svg "));

    let (gang, chosen, seen) = placed(&host, "gang", &["--gpus", "2", "--share", "50%"]);
    assert_eq!((&chosen, &seen), (&json!([0, 2]), &json!([0, 2])));
    let (single, chosen, seen) = placed(&host, "single", &["--gpus", "1", "--share", "50%"]);
    assert_eq!((&chosen, &seen), (&json!([0]), &json!([0])), "where it fits best");
    let (other, chosen, _) = placed(&host, "other", &["--gpus", "2", "--share", "80%"]);
    assert_eq!(chosen, json!([1, 3]));
    let explained = host.shows(&["explain", "--placement"]);
    assert!(
        explained.contains("gang: gpu 0, 2; GPUs with room: 4; the chosen are joined by NVLinks"),
        "{explained}"
    );

    let options = ["--name", "late", "--gpus", "2", "--share", "50%"];
    let refused = host.finish(host.run(&options, c_client("view"), &[]));
    refused.refused("the job asks for 2 GPUs: 1 of 4 have room");
    let mut late = host.spawn(host.run(&[&options[..], &["--wait"]].concat(), c_client("view"), &[]));
    late.await_error_line(|line| line.contains("waiting: the job asks for 2 GPUs"));
    single.finish().success();
    late.await_json();
    assert_eq!(host.tenant("late")["placement"]["gpus"], json!([0, 2]));
    for client in [late, gang, other] {
        client.finish().success();
    }
}
