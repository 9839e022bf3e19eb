//! Memory that the driver takes by itself counts, by NVML's figures. Contexts count from their
//! creation to their end, and code counts from its loading to its unloading. The account and the
//! GPU's record agree after each call.

use std::path::Path;

use deepres_e2e::calls::{Calls, OVERHEADS};
use deepres_e2e::prelude::*;

/// Size of a context on the simulated GPU.
const CONTEXT_MIB: u64 = 500;
const OUT_OF_MEMORY: &str = "2";
const TENANT: &str = "t";

fn host_with(context_mib: u64) -> Host {
    Host::new()
        .simgpu(&format!("memory_bytes = 17179869184\ncontext_overhead_bytes = {}\n", context_mib * MIB))
}

fn host() -> Host {
    host_with(CONTEXT_MIB)
}

fn start(host: &Host, limit_mib: Option<u64>) -> Calls {
    start_loading(host, limit_mib, None)
}

/// Starts a client with this value of `CUDA_MODULE_LOADING`.
fn start_loading(host: &Host, limit_mib: Option<u64>, loading: Option<&str>) -> Calls {
    let mut command = host.preloaded("python3");
    command.env("DEEPRES_TENANT", TENANT);
    command.envs(limit_mib.map(|mib| ("DEEPRES_MEMORY", format!("{mib}MiB"))));
    command.envs(loading.map(|loading| ("CUDA_MODULE_LOADING", loading)));
    Calls::run(host, command, OVERHEADS)
}

/// Gives an order like [`Calls::does`], and then asserts the same as [`assert_held`].
#[track_caller]
fn comes_to_hold(client: &mut Calls, host: &Host, order: &str, kinds: &[(&str, u64)]) {
    client.does(order);
    assert_held(host, kinds);
}

fn account(host: &Host) -> Value {
    host.account(TENANT)
}

/// Asserts that the account has this many MiB of each kind, and that their total is the memory that
/// the GPU has given out.
#[track_caller]
fn assert_held(host: &Host, kinds: &[(&str, u64)]) {
    let account = account(host);
    for (kind, mib) in kinds {
        assert_eq!(account["memory_by_kind"][*kind].as_u64().unwrap_or(0), mib * MIB, "{kind}: {account}");
    }
    let truth = host.truth().gpus[0];
    assert_eq!(account["memory_bytes"].as_u64(), Some(truth.memory_used_bytes), "{account} {truth:?}");
    assert_eq!(account["kinds_drift_bytes"], 0, "{account}");
}

#[test]
fn a_context_counts_for_what_nvml_says_until_it_ends_however_it_ends() {
    let (host, _daemon) = host().with_daemon();
    let mut client = start(&host, None);
    comes_to_hold(&mut client, &host, "create(0)", &[("driver", CONTEXT_MIB)]);
    client.does("allocate(0, 64 << 20)");
    comes_to_hold(&mut client, &host, "create(1)", &[("driver", 2 * CONTEXT_MIB), ("linear", 64)]);
    client.does("retain()");
    comes_to_hold(&mut client, &host, "retain()", &[("driver", 3 * CONTEXT_MIB)]);
    comes_to_hold(&mut client, &host, "cuda.cuDevicePrimaryCtxRelease_v2(0)", &[("driver", 3 * CONTEXT_MIB)]);
    comes_to_hold(&mut client, &host, "cuda.cuDevicePrimaryCtxRelease_v2(0)", &[("driver", 2 * CONTEXT_MIB)]);
    client.does("retain()");
    comes_to_hold(&mut client, &host, "reset()", &[("driver", 2 * CONTEXT_MIB)]);
    comes_to_hold(&mut client, &host, "destroy(0)", &[("driver", CONTEXT_MIB), ("linear", 0)]);
    comes_to_hold(&mut client, &host, "destroy(1)", &[("driver", 0)]);
}

#[test]
fn a_context_that_the_limit_has_no_room_for_is_refused_as_by_a_full_gpu() {
    let (host, _daemon) = host().with_daemon();
    let mut client = start(&host, Some(3 * CONTEXT_MIB / 2));
    client.does("create(0)");
    assert_eq!(client.asks("create(1)"), OUT_OF_MEMORY);
    assert_eq!(client.asks("retain()"), OUT_OF_MEMORY);
    assert_held(&host, &[("driver", CONTEXT_MIB)]);
    let peak = host.truth().gpus[0].memory_peak_bytes;
    assert!(peak <= 2 * CONTEXT_MIB * MIB, "each was measured, and ended again: {peak}");
    // The client can allocate the rest of the limit, and no more.
    assert_eq!(client.asks("allocate(0, 252 << 20)"), OUT_OF_MEMORY);
    client.does("allocate(0, 250 << 20)");
    let account = account(&host);
    assert_eq!(account["refusals"], 3, "{account}");
    // Another process of the tenant gets no context either. Its first context shows its size only
    // after its creation, and is then destroyed again.
    let mut other = start(&host, None);
    assert_eq!(other.asks("create(0)"), OUT_OF_MEMORY);
    assert_eq!(other.asks("retain()"), OUT_OF_MEMORY);
    assert_held(&host, &[("driver", CONTEXT_MIB), ("linear", 250)]);
    client.0.process.kill();
    other.does("retain()");
    assert_held(&host, &[("driver", CONTEXT_MIB), ("linear", 0)]);
}

#[test]
fn a_context_of_a_process_that_another_daemon_takes_up_counts_there() {
    let (host, mut daemon) = host().with_daemon();
    let mut client = start(&host, None);
    client.does("create(0)");
    daemon.kill();
    let _daemon = host.daemon();
    host.await_ps(|ps| ps.find(TENANT).is_some_and(|tenant| tenant.memory_bytes == CONTEXT_MIB * MIB));
    assert_held(&host, &[("driver", CONTEXT_MIB)]);
    comes_to_hold(&mut client, &host, "destroy(0)", &[("driver", 0)]);
}

#[test]
fn where_nvml_does_not_answer_contexts_are_made_and_count_for_nothing() {
    let host = host();
    let _daemon = host.daemon_with(&[("LD_PRELOAD", &deepres_e2e::clients::c_library("slow_nvml"))]);
    let mut client = start(&host, Some(CONTEXT_MIB / 2));
    client.does("create(0)");
    client.does("create(1)");
    client.does("allocate(0, 64 << 20)");
    assert_eq!(account(&host)["memory_by_kind"]["driver"].as_u64(), None);
}

/// On a vGPU, NVML does not support the list of processes.
#[test]
fn where_nvml_tells_no_memory_of_processes_allocations_stop_at_the_limit_and_job_and_doctor_say_so() {
    const REFUSES: (&str, &str) = ("SIMGPU_FAULTS", "nvmlDeviceGetComputeRunningProcesses_v3:every:1:3");
    let host = host();
    let _daemon = host.daemon_with(&[(REFUSES.0, Path::new(REFUSES.1))]);
    let mut client = start(&host, Some(CONTEXT_MIB / 2));
    client.does("create(0)");
    client.does(&format!("allocate(0, {})", (CONTEXT_MIB / 4) << 20));
    assert_eq!(client.asks(&format!("allocate(1, {})", (CONTEXT_MIB / 2) << 20)), OUT_OF_MEMORY);
    let said = "does not charge the memory of this process's contexts and code on";
    client.0.process.await_error_line(|line| line.contains(said));

    let examined = |variables: &[(&str, &str)]| {
        let mut command = host.deepres(&["doctor", "--json"]);
        command.envs(variables.iter().copied());
        let checks: Value = serde_json::from_str(&host.finish(command).stdout).expect("a JSON list");
        let all = checks.as_array().expect("a list");
        all.iter().find(|check| check["name"] == "process memory").expect("a check of NVML").clone()
    };
    let silent = examined(&[REFUSES]);
    assert_eq!(silent["verdict"], "limited", "{silent}");
    let found = silent["found"].as_str().expect("a sentence");
    assert!(found.contains("NVML tells no memory of processes on"), "{found}");
    assert_eq!(examined(&[])["verdict"], "good");
}

#[test]
fn modules_count_for_what_they_took_and_are_unloaded_if_that_is_too_much() {
    const GIB: u64 = 1 << 30;
    let (host, _daemon) = host_with(0).with_daemon();
    let mut client = start(&host, Some(4096));
    client.does("create(0)");
    for which in 0..20 {
        let code = client.asks(&format!("load({which}, 1 << 30)"));
        assert_eq!(code, if which < 4 { "0" } else { OUT_OF_MEMORY }, "{which} GiB are loaded");
    }
    assert_held(&host, &[("driver", 4096)]);
    assert_eq!(host.truth().gpus[0].memory_peak_bytes, 5 * GIB, "one at a time was measured");
    assert_eq!(client.asks("allocate(0, 1)"), OUT_OF_MEMORY);
    client.does("unload(2)");
    comes_to_hold(&mut client, &host, "allocate(0, 1 << 30)", &[("driver", 3072), ("linear", 1024)]);
    client.does("free(0)");
    // The modules of a context end with the context.
    comes_to_hold(&mut client, &host, "destroy(0)", &[("driver", 0)]);
    client.does("create(0)");
    comes_to_hold(&mut client, &host, "load(0, (1 << 30) + 1)", &[("driver", 1026)]);
    let code = client.asks("load(1, (1 << 63) - 1)");
    assert_eq!(code, OUT_OF_MEMORY);
}

#[test]
fn code_with_errors_gets_the_drivers_code_also_where_there_is_no_room_for_it() {
    const UNSUPPORTED_PTX_VERSION: &str = "222";
    let (host, _daemon) = host_with(0).with_daemon();
    let mut client = start_loading(&host, Some(64), Some("EAGER"));
    client.does("create(0)");
    for way in ["load", "open_library"] {
        for mib in [1, 128] {
            // No driver knows this version of PTX.
            let code = client.asks(&format!("{way}(0, {mib} << 20, '42.0')"));
            assert_eq!(code, UNSUPPORTED_PTX_VERSION, "{way} {mib} MiB");
        }
        assert_eq!(client.asks(&format!("{way}(0, 128 << 20)")), OUT_OF_MEMORY, "{way}");
    }
    assert_held(&host, &[("driver", 0)]);
}

#[test]
fn a_library_counts_in_every_context_while_it_is_loaded_if_the_driver_loads_it_at_once() {
    let (host, _daemon) = host().with_daemon();
    let mut client = start_loading(&host, Some(4 * CONTEXT_MIB), Some("EAGER"));
    let holds = |contexts: u64, libraries: u64| {
        assert_held(&host, &[("driver", contexts * CONTEXT_MIB + libraries * 100)]);
    };
    client.does("open_library(0, 100 << 20)");
    client.does("create(0)");
    holds(1, 1);
    client.does("open_library(1, 100 << 20)");
    holds(1, 2);
    client.does("create(1)");
    holds(2, 4);
    // A third context would find 600 MiB: enough for itself and one library.
    assert_eq!(client.asks("create(2)"), OUT_OF_MEMORY);
    assert_eq!(client.asks("open_library(2, 400 << 20)"), OUT_OF_MEMORY);
    holds(2, 4);
    client.does("close_library(0)");
    holds(2, 2);
    client.does("create(2)");
    holds(3, 3);
    client.does("destroy(0)");
    client.does("destroy(1)");
    holds(1, 1);
    client.does("close_library(1)");
    holds(1, 0);
}

#[test]
fn a_library_that_the_driver_loads_later_counts_from_the_next_look_on() {
    let (host, _daemon) = host().with_daemon();
    let mut client = start_loading(&host, None, Some("LAZY"));
    client.does("create(0)");
    client.does("open_library(0, 100 << 20)");
    assert_held(&host, &[("driver", CONTEXT_MIB)]);
    client.does("use_library(0)");
    client.does("create(1)");
    assert_held(&host, &[("driver", 2 * CONTEXT_MIB + 100)]);
}

/// Waits until the tenant's account has this many MiB of the driver's own memory.
#[track_caller]
fn await_driver_mib(host: &Host, tenant: &str, mib: u64) {
    let driver = || host.account(tenant)["memory_by_kind"]["driver"].as_u64().unwrap_or(0);
    await_value(driver, |bytes| *bytes == mib * MIB);
}

#[test]
#[ignore = "deep: takes long"]
fn memory_that_the_driver_takes_later_counts_soon_and_only_the_next_allocation_is_refused() {
    let (host, _daemon) = host().with_daemon();
    let mut client = start_loading(&host, Some(CONTEXT_MIB + 200), Some("LAZY"));
    client.does("create(0)");
    client.does("open_library(0, 100 << 20)");
    comes_to_hold(&mut client, &host, "allocate(0, 128 << 20)", &[("driver", CONTEXT_MIB), ("linear", 128)]);
    // No allocation of the job takes this memory, and it passes the limit.
    client.does("use_library(0)");
    await_driver_mib(&host, TENANT, CONTEXT_MIB + 100);
    assert_held(&host, &[("driver", CONTEXT_MIB + 100), ("linear", 128)]);
    assert_eq!(client.asks("allocate(1, 2 << 20)"), OUT_OF_MEMORY);
    let shown = host.shows(&["ps"]);
    let why = "28 MiB more than its limit, with 600 MiB that the driver took by itself";
    assert!(shown.contains(why), "{shown}");
    client.does("free(0)");
    client.does("allocate(1, 64 << 20)");
    // The heap grows and shrinks, and the account follows.
    client.does("heap(40 << 20)");
    await_driver_mib(&host, TENANT, CONTEXT_MIB + 132);
    client.does("heap(8 << 20)");
    await_driver_mib(&host, TENANT, CONTEXT_MIB + 100);
    comes_to_hold(&mut client, &host, "close_library(0)", &[("driver", CONTEXT_MIB), ("linear", 64)]);
    comes_to_hold(&mut client, &host, "destroy(0)", &[("driver", 0), ("linear", 0)]);
}

#[test]
#[ignore = "deep: takes long"]
fn two_tenants_of_half_the_gpu_each_can_both_take_their_halves_though_the_driver_grows() {
    const HALF_MIB: u64 = 8192;
    let (host, _daemon) = host().with_daemon();
    let names = ["one", "other"];
    let mut clients = names.map(|name| {
        let mut command = host.preloaded("python3");
        command.env("DEEPRES_TENANT", name).env("DEEPRES_MEMORY", format!("{HALF_MIB}MiB"));
        Calls::run(&host, command, OVERHEADS)
    });
    for order in ["create(0)", "open_library(0, 100 << 20)", "use_library(0)"] {
        clients.iter_mut().for_each(|client| client.does(order));
    }
    names.iter().for_each(|name| await_driver_mib(&host, name, CONTEXT_MIB + 100));
    clients.iter_mut().for_each(|client| client.does("allocate_rest(0)"));
    for name in names {
        let account = host.account(name);
        assert_eq!(account["memory_bytes"], HALF_MIB * MIB, "{account}");
        assert_eq!(account["refusals"], 0, "{account}");
    }
    assert_eq!(host.truth().gpus[0].memory_used_bytes, 2 * HALF_MIB * MIB);
}
