//! The memory limit is exact for every kind of allocation, holds under races, and is visible to the
//! tenant.

use deepres_e2e::prelude::*;
use simgpu_engine::Config;

/// The limit is more than a context takes.
const LIMIT_MIB: u64 = 1024;
const LIMIT_BYTES: u64 = LIMIT_MIB * MIB;
/// Size of a chunk. A pool grows by this step, so no kind of allocation rounds the size.
const CHUNK_BYTES: u64 = 32 * MIB;
const CUDA_ERROR_OUT_OF_MEMORY: u64 = 2;
/// Number of kinds of allocation that `fill` tries.
const KINDS: usize = 9;

/// Returns the sum of the most device memory that each process in the record held, bytes.
fn most_held_bytes(host: &Host) -> u64 {
    host.truth().processes.iter().map(|process| process.gpus[0].memory_peak_bytes).sum()
}

#[test]
fn every_kind_of_allocation_stops_at_the_limit_however_the_client_reaches_the_driver() {
    Way::ALL.into_iter().for_each(assert_the_limit_holds);
}

fn assert_the_limit_holds(way: Way) {
    println!("{way:?}");
    let (host, _daemon) = Host::new().with_daemon();
    let limit = format!("{LIMIT_MIB}MiB");
    let options = ["--name", "limited", "--memory", &limit];
    let command = host.run(&options, c_client_by("fill", way), &[&CHUNK_BYTES.to_string()]);
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
fn a_tenant_without_a_limit_sees_the_whole_device() {
    let (host, _daemon) = Host::new().with_daemon();
    let command = host.run(&["--name", "free"], c_client("view"), &[]);
    let (client, said) = host.told(command);
    assert_eq!(number(&said, "total"), Config::default().memory_bytes);
    assert_eq!(host.ps().tenant("free").memory_limit_bytes, None);
    client.finish().success();
}

#[test]
fn a_refusal_names_the_gpu_as_ps_does_whatever_number_the_job_has_for_it() {
    for (is_mig, prefix) in [(false, "GPU-"), (true, "MIG-")] {
        let gpus = format!("gpus = 2\nmig = {is_mig}\n");
        let (host, _daemon) = Host::new().simgpu(&gpus).light_contexts().with_daemon();
        let mut command =
            host.run(&["--name", "t", "--memory", "64MiB"], c_client("fill"), &[&CHUNK_BYTES.to_string()]);
        command.env("CUDA_VISIBLE_DEVICES", "1");
        let refused = host.finish(command).success().stderr;
        let uuid = host.status()["gpus"][1]["uuid"].as_str().expect("a UUID").to_owned();
        assert!(uuid.starts_with(prefix), "{uuid}");
        let told = format!(
            "refused cuMemAlloc_v2 of 32 MiB on gpu 1 ({uuid}): the tenant holds 64 MiB of the 64 MiB"
        );
        assert!(refused.contains(&told), "{refused}");
    }
}

#[test]
fn eight_threads_racing_by_every_kind_of_allocation_never_pass_the_limit_by_a_byte() {
    let (host, _daemon) = Host::new().light_contexts().with_daemon();
    let limit = format!("{LIMIT_MIB}MiB");
    let options = ["--name", "racer", "--memory", &limit];
    let mut client = host.spawn(host.run(&options, c_client("race"), &["8", "2.5"]));
    let until = Instant::now() + Duration::from_millis(2500);
    while Instant::now() < until {
        let account = host.ps().find("racer").map_or(0, |tenant| tenant.memory_bytes);
        assert!(account <= LIMIT_BYTES, "the account says {account}");
        thread::sleep(Duration::from_millis(100));
    }
    let said = client.await_json();
    assert_eq!(number(&said, "other_errors"), 0, "{said}");
    assert!(number(&said, "refusals") > 100 && number(&said, "successes") > 100, "{said}");
    assert!((LIMIT_BYTES / 2..=LIMIT_BYTES).contains(&number(&said, "most_bytes")), "{said}");
    assert_eq!(host.ps().tenant("racer").memory_bytes, 0, "after freeing everything");
    client.finish().success();
    // A pool's spare memory can lie in too many pieces. Then the pool grows for the length of a
    // call, which the limit then refuses.
    let most = most_held_bytes(&host);
    assert!((LIMIT_BYTES / 2..=LIMIT_BYTES + CHUNK_BYTES).contains(&most), "the record: {most}");
}
