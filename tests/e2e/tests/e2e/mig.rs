//! MIG devices: each is a GPU of its own.

use deepres_e2e::prelude::*;

#[test]
#[ignore = "deep: starts several programs"]
fn a_mig_device_is_a_gpu_of_its_own_with_shares_and_limits() {
    let (host, _daemon) = Host::new().simgpu("gpus = 2\nmig = true\n").with_daemon();
    let status = host.status();
    let gpus = status["gpus"].as_array().expect("a list");
    let uuids: Vec<&str> = gpus.iter().filter_map(|gpu| gpu["uuid"].as_str()).collect();
    assert!(uuids.len() == 2 && uuids.iter().all(|uuid| uuid.starts_with("MIG-")), "{status}");

    let options = ["--name", "job", "--share", "30%", "--memory", "1GiB"];
    let mut command = host.run(&options, c_client("view"), &[]);
    command.env("CUDA_VISIBLE_DEVICES", uuids[1]);
    let (job, said) = host.told(command);
    assert_eq!(said["total"], GIB);
    let tenant = host.tenant("job");
    assert_eq!((&tenant["gpus"][0]["gpu"], tenant["gpus"].as_array().map(Vec::len)), (&1.into(), Some(1)));
    assert_eq!(tenant["asked_share_ppm"], 300_000);

    let options = ["--name", "placed", "--gpus", "1", "--share", "80%"];
    let (placed, _) = host.told(host.run(&options, c_client("view"), &[]));
    assert_eq!(host.tenant("placed")["placement"]["gpus"], json!([0]), "the other has no room");
    for client in [job, placed] {
        client.finish().success();
    }
    host.call(&["slurm", "gres-conf"]).refused("MIG devices have no shards");

    let without_daemon = Host::new().simgpu("mig = true\n");
    let mut command = without_daemon.alone(c_client("view"));
    command.env("DEEPRES_MEMORY", "1GiB");
    assert_eq!(without_daemon.told(command).1["total"], GIB);
}
