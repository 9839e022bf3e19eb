//! NVML's figures beside the account, refusals in the log, and memory in plain `deepres ps`.

use std::path::Path;

use deepres_e2e::prelude::*;

/// Memory that the session holds, and memory of its child, which runs without the interposer.
const HELD_BYTES: u64 = 64 * MIB;
const PAST_BYTES: u64 = 256 * MIB;

fn host() -> Host {
    Host::new().simgpu(
        "memory_bytes = 2147483648\ncontext_overhead_bytes = 0\nkernel = [{ name = \"busy_1000us\", ns = 1000000 }]\n",
    )
}

/// Waits until the account of the only tenant satisfies `wanted`, and returns it.
fn await_account(host: &Host, wanted: impl Fn(&Value) -> bool) -> Value {
    await_value(|| host.status()["tenants"][0]["gpus"][0].clone(), wanted)
}

#[test]
fn memory_that_a_child_takes_past_deepres_is_shown_as_drift() {
    let (host, _daemon) = host().with_daemon();
    let client = c_client("yields").display().to_string();
    let script = format!("env -u LD_PRELOAD {client} {PAST_BYTES} & exec {client} {HELD_BYTES}");
    let _client = host.spawn(host.run(&["--name", "t"], "sh", &["-c", &script]));
    let account = await_account(&host, |account| account["nvml_bytes"] == HELD_BYTES + PAST_BYTES);
    assert_eq!(account["memory_bytes"], HELD_BYTES);
    assert_eq!(account["drift_bytes"], PAST_BYTES, "{account}");
    assert_eq!(account["kinds_drift_bytes"], 0, "{account}");
    let shown = host.shows(&["ps", "-v"]);
    assert!(shown.contains("NVML says 320 MiB, 256 MiB more than its account"), "{shown}");
}

#[test]
fn a_tenant_that_deepres_is_inside_of_has_no_drift() {
    let (host, _daemon) = host().with_daemon();
    let client = c_client("yields");
    let _client = host.spawn(host.run(&["--name", "t"], client, &[&HELD_BYTES.to_string()]));
    let account = await_account(&host, |account| account["nvml_bytes"] == HELD_BYTES);
    assert_eq!((&account["drift_bytes"], &account["kinds_drift_bytes"]), (&0.into(), &0.into()), "{account}");
}

#[test]
fn a_driver_that_hangs_in_nvml_leaves_its_figures_unknown_and_holds_up_neither_work_nor_end() {
    let host = host();
    let mut daemon = host.daemon_with(&[("LD_PRELOAD", &c_library("slow_nvml"))]);
    let _client = host.spawn(host.run(&["--name", "t"], c_client("yields"), &[&HELD_BYTES.to_string()]));
    daemon.await_error_line(|line| line == "NVML is asked in vain");
    let account = await_account(&host, |account| account["memory_bytes"] == HELD_BYTES);
    assert_eq!(account["nvml_bytes"], Value::Null, "{account}");
    host.shows(&["set", "t", "--memory", "512MiB"]);
    daemon.signal(rustix::process::Signal::TERM);
    daemon.await_end().success();
}

/// The daemon gives up a thread that hangs in NVML. The next thread initialises NVML anew.
#[test]
fn a_driver_that_hangs_in_nvmls_initialisation_holds_up_neither_the_status_nor_the_end() {
    let host = host();
    let library = c_library("slow_nvml");
    let variables = [("LD_PRELOAD", library.as_path()), ("NVML_INITS", Path::new("1"))];
    let mut daemon = host.daemon_with(&variables);
    let _client = host.spawn(host.run(&["--name", "t"], c_client("yields"), &[&HELD_BYTES.to_string()]));
    daemon.await_error_line(|line| line == "deepres-nvml initialises NVML in vain");
    let account = await_account(&host, |account| account["memory_bytes"] == HELD_BYTES);
    assert_eq!(account["nvml_bytes"], Value::Null, "{account}");
    host.shows(&["set", "t", "--memory", "512MiB"]);
    daemon.signal(Signal::TERM);
    daemon.await_end().success();
}

#[test]
fn a_refusal_of_memory_is_told_in_the_log_and_in_plain_ps() {
    let (host, mut daemon) = host().with_daemon();
    let arguments = [(2 * MIB).to_string(), "cuMemAlloc_v2".to_owned()];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (client, _) =
        host.told(host.run(&["--name", "t", "--memory", "64MiB"], c_client("fill"), &arguments));
    daemon.await_error_line(|line| {
        line.contains("refused 2 MiB for cuMemAlloc_v2") && line.contains("its limit of 64 MiB")
    });
    let shown = host.shows(&["ps", "--wide"]);
    assert!(
        shown.contains("t on gpu 0: refused ") && shown.contains("last 2 MiB for cuMemAlloc_v2"),
        "{shown}"
    );
    let (head, row) = (
        shown.lines().find(|line| line.starts_with("TENANT")),
        shown.lines().find(|line| line.starts_with("t ")),
    );
    assert!(head.is_some_and(|head| head.contains("PEAK")), "{shown}");
    assert!(row.is_some_and(|row| row.matches("64 MiB").count() == 2), "limit and peak: {shown}");
    client.finish().success();
}

#[test]
fn the_log_names_the_limit_that_was_passed_though_it_was_raised_since() {
    let (host, mut daemon) = host().with_daemon();
    let filled = |chunk_bytes: u64| {
        let arguments = [&chunk_bytes.to_string(), "cuMemAlloc_v2"];
        let client = c_client("fill");
        let (client, _) = host.told(host.run(&["--name", "t", "--memory", "64MiB"], client, &arguments));
        client
    };
    let _first = filled(4 * MIB);
    daemon.await_error_line(|line| line.contains("refused 4 MiB for cuMemAlloc_v2"));
    let _second = filled(2 * MIB);
    host.call(&["set", "t", "--memory", "512MiB"]).success();
    daemon.await_error_line(|line| line.contains("refused 2 MiB for cuMemAlloc_v2"));
    let told = daemon.stderr();
    assert!(told.contains("would exceed its limit of 64 MiB"), "{told}");
    assert!(!told.contains("would exceed its limit of 512 MiB"), "{told}");
}

#[test]
fn a_refusal_by_the_driver_on_a_full_gpu_is_told_too_and_leaves_no_false_peak() {
    const GPU_BYTES: u64 = 2048 * MIB;
    const CHUNK_BYTES: u64 = 64 * MIB;
    for kind in [
        "cuMemAlloc_v2",
        "cuMemAllocPitch_v2",
        "cuMemAllocAsync",
        "cuMemAllocFromPoolAsync",
        "cuMemCreate",
        "cuArrayCreate_v2",
    ] {
        let (host, mut daemon) = host().with_daemon();
        // The limit is more than the GPU has.
        let arguments = [&CHUNK_BYTES.to_string(), kind];
        let client = c_client("fill");
        let client = host.spawn(host.run(&["--name", "t", "--memory", "8GiB"], client, &arguments));
        let said = client.finish().success();
        let account = await_account(&host, |account| account["refusals"] == 2);
        let refusal = &account["last_refusal"];
        assert_eq!((&refusal["by"], &refusal["api"]), (&"driver".into(), &kind.into()), "{account}");
        assert_eq!(account["memory_peak_bytes"], GPU_BYTES, "{kind}: {account}");
        assert!(!said.stderr.contains("deepres"), "as it is without deepres: {}", said.stderr);
        daemon.await_error_line(|line| {
            line.contains(&format!(
                "the driver refused 64 MiB for {kind}: the GPU had too little memory left"
            ))
        });
        let shown = host.shows(&["ps"]);
        let told =
            format!("refused 2 times, last 64 MiB for {kind}, because the GPU had too little memory left");
        assert!(shown.contains(&told), "{shown}");
    }
}
