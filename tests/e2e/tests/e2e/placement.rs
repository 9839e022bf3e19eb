//! `deepres run --gpus` and `deepres topo`: the daemon reads how the GPUs reach each other, and
//! chooses the GPUs that a job sees.

use deepres_e2e::prelude::*;
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
