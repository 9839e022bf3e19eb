//! Allocators that take "all there is" take all of their tenant's part: programs that ask for memory as TensorFlow's, JAX's and PyTorch's do.

use deepres_e2e::{
    Host, Process,
    clients::{Way, c_client},
    host::COMMAND_LIMIT,
};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const GPU_BYTES: u64 = 4096 * MIB;
const LIMIT_BYTES: u64 = 1000 * MIB;

fn host() -> Host {
    Host::new().simgpu(&format!("memory_bytes = {GPU_BYTES}\ncontext_overhead_bytes = 0\n"))
}

fn start(host: &Host, name: &str, limit_bytes: u64, way: &str) -> (Process, Value) {
    let limit = limit_bytes.to_string();
    let mut client = host.spawn(host.run(
        &["--name", name, "--memory", &limit],
        c_client("allocators", Way::ProcAddress),
        &[way],
    ));
    let said = client.await_json(COMMAND_LIMIT);
    (client, said)
}

fn number(said: &Value, key: &str) -> u64 {
    said[key].as_u64().unwrap_or_else(|| panic!("no {key} in {said}"))
}

/// Runs one that takes all it can get; requires that views, account and the GPU's record agree.
fn assert_fills_its_part(way: &str, least_bytes: u64) {
    let host = host();
    let _daemon = host.daemon();
    let (client, said) = start(&host, "framework", LIMIT_BYTES, way);
    for (key, bytes) in [("free", LIMIT_BYTES), ("info_total", LIMIT_BYTES), ("device_total", LIMIT_BYTES)] {
        assert_eq!(number(&said, key), bytes, "{key}: {said}");
    }
    let got = number(&said, "got");
    assert!((least_bytes..=LIMIT_BYTES).contains(&got), "{said}");
    let truth = host.truth().gpus[0];
    assert_eq!(number(&said, "left"), LIMIT_BYTES - truth.memory_used_bytes, "{said}");
    assert!(truth.memory_peak_bytes <= LIMIT_BYTES, "{truth:?}");
    let tenant = host.ps().tenant("framework").clone();
    assert_eq!(tenant.memory_bytes, truth.memory_used_bytes);
    client.finish(COMMAND_LIMIT).success();
}

#[test]
fn regions_that_grow_fill_the_tenants_part() {
    assert_fills_its_part("grow", LIMIT_BYTES - 8 * MIB);
}

#[test]
fn expandable_segments_fill_the_tenants_part_and_are_mapped_again_after_they_were_given_back() {
    assert_fills_its_part("expandable", LIMIT_BYTES - 20 * MIB);
}

#[test]
fn tenants_that_take_three_quarters_of_what_is_free_do_not_meet() {
    let host = host();
    let _daemon = host.daemon();
    let tenants = ["a", "b", "c", "d"].map(|name| start(&host, name, GPU_BYTES / 4, "preallocate"));
    for (_, said) in &tenants {
        assert_eq!(number(said, "got"), GPU_BYTES / 4 * 3 / 4, "{said}");
    }
    for (client, _) in tenants {
        client.finish(COMMAND_LIMIT).success();
    }
}
