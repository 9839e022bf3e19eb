//! NVML inside a tenant shows the tenant's part of the GPU, to clients of NVIDIA's own Python package, and makes no session of who asks.

use std::time::Duration;

use deepres_e2e::{
    Host, Process,
    artefacts::{artefacts, clients_python},
    clients::{Way, c_client, script},
    host::COMMAND_LIMIT,
};
use serde_json::{Value, json};

const GIB: u64 = 1 << 30;
/// What each tenant's process holds.
const HELD_BYTES: u64 = GIB;
/// Shares by time take a second to show.
const SETTLES_WITHIN: Duration = Duration::from_secs(20);

/// A process that holds memory and keeps the GPU busy.
fn busy(host: &Host, options: &[&str]) -> Process {
    let held = HELD_BYTES.to_string();
    let mut process = host.spawn(host.run(options, c_client("backlog", Way::Dlsym), &["--hold", &held]));
    process.await_line(|line| line == "ready", COMMAND_LIMIT);
    process
}

/// What NVML says to a process of this tenant, or of none.
#[track_caller]
fn asked(host: &Host, tenant: Option<&str>) -> Value {
    let (python, client) = (&clients_python().interpreter, script("nvml_client").display().to_string());
    let command = match tenant {
        Some(tenant) => host.run(&["--name", tenant], python, &[&client]),
        None => {
            let mut command = host.command(python);
            command.arg(client);
            command
        }
    };
    host.finish(command).success().json()
}

#[test]
fn a_tenant_sees_its_own_memory_processes_and_use_and_is_no_session_for_asking() {
    let host = Host::new();
    let _daemon = host.daemon();
    let _one = busy(&host, &["--name", "one", "--share", "30%", "--memory", "4GiB"]);
    let _two = busy(&host, &["--name", "two", "--share", "70%"]);
    let ps = host.await_ps(
        |ps| ["one", "two"].iter().all(|name| ps.find(name).is_some_and(|t| t.gpu_ns > 1_000_000_000)),
        SETTLES_WITHIN,
    );
    let (one, two) = (ps.tenant("one").sessions[0].pid, ps.tenant("two").sessions[0].pid);

    let inside = asked(&host, Some("one"));
    let part = json!({ "total": 4 * GIB, "free": 4 * GIB - HELD_BYTES, "used": HELD_BYTES });
    assert_eq!((&inside["memory"], &inside["memory_v2"]), (&part, &part), "{inside}");
    for list in ["compute", "compute_v2", "compute_v3"] {
        assert_eq!(inside[list], json!([one]), "{list}");
    }
    let busy_percent = inside["busy_percent"].as_u64().expect("a number");
    assert!((15..=50).contains(&busy_percent), "of the 30 % that it is owed: {inside}");

    // Without a limit the memory is the GPU's; the processes are its own all the same.
    let (unlimited, outside) = (asked(&host, Some("two")), asked(&host, None));
    assert_eq!(unlimited["memory"], outside["memory"]);
    assert_eq!(unlimited["compute_v3"], json!([two]));
    assert_eq!(outside["compute_v3"], json!([one.min(two), one.max(two)]));
    for list in ["used", "used_v2", "used_v3", "details"] {
        let one = one.to_string();
        let bytes = &outside[list][&*one];
        assert!(bytes.as_u64() >= Some(HELD_BYTES), "{list}: {outside}");
        assert_eq!(inside[list], json!({ one: bytes }), "{list}: its own process with its memory");
    }
    for list in ["graphics", "graphics_v2", "graphics_v3", "mps", "mps_v2", "mps_v3"] {
        assert_eq!((&inside[list], &outside[list]), (&json!([]), &json!([])), "{list}");
    }
    assert!(outside["memory"]["used"].as_u64() > Some(2 * HELD_BYTES), "{outside}");

    let ps = host.ps();
    assert_eq!(
        (ps.tenant("one").pids(), ps.tenant("two").pids()),
        (vec![one], vec![two]),
        "asking makes no session"
    );
}

#[test]
fn without_a_daemon_or_for_a_tenant_that_is_not_there_nvml_is_as_ever() {
    let host = Host::new();
    // Makes the simulated GPU's state.
    host.finish(host.command(c_client("past", Way::Dlsym))).success();
    let bare = asked(&host, None);
    let preloaded = |host: &Host| {
        let mut command = host.preloaded(&clients_python().interpreter);
        command.arg(script("nvml_client")).env("DEEPRES_TENANT", "nobody");
        host.finish(command).success()
    };
    let alone = preloaded(&host);
    assert_eq!((alone.json(), &*alone.stderr), (bare.clone(), ""), "without a daemon");
    let _daemon = host.daemon();
    assert_eq!(preloaded(&host).json(), bare, "with one that knows no such tenant");
    assert!(host.ps().find("nobody").is_none(), "asking makes no tenant");
    assert!(
        artefacts().simgpu.join("libnvidia-ml.so.1").exists(),
        "the library that was asked is the simulated one"
    );
}

/// Allocates, and prints what NVML says right before and right after, and what the driver says then.
const ALLOCATING: &str = r#"
import ctypes, json, pynvml as nvml
cuda, here = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
def check(code): assert code == 0, code
check(cuda.cuInit(0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(here), 0))
check(cuda.cuCtxSetCurrent(here))
nvml.nvmlInit()
handle = nvml.nvmlDeviceGetHandleByIndex(0)
def used(): return nvml.nvmlDeviceGetMemoryInfo(handle).used
before, address = used(), ctypes.c_uint64()
check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(256 << 20)))
after = nvml.nvmlDeviceGetMemoryInfo(handle)
free, total = ctypes.c_size_t(), ctypes.c_size_t()
check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
print(json.dumps({"grew": after.used - before, "nvml": [after.free, after.total], "driver": [free.value, total.value]}))
"#;

#[test]
fn within_a_session_nvml_tells_at_once_what_the_driver_tells_with_a_daemon_and_without() {
    let host = Host::new();
    let python = &clients_python().interpreter;
    let mut alone = host.command(python);
    alone.env("LD_PRELOAD", &artefacts().library).env("DEEPRES_MEMORY", "4GiB").args(["-c", ALLOCATING]);
    let alone = host.finish(alone).success().json();
    let _daemon = host.daemon();
    let options = ["--name", "t", "--memory", "4GiB"];
    let shared = host.finish(host.run(&options, python, &["-c", ALLOCATING])).success().json();
    for seen in [alone, shared] {
        assert_eq!(seen["grew"].as_u64(), Some(256 << 20), "no answer of before: {seen}");
        assert_eq!(seen["nvml"], seen["driver"]);
        assert_eq!(seen["nvml"][1].as_u64(), Some(4 * GIB));
    }
}
