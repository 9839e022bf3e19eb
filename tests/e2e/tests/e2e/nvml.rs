//! NVML inside a tenant shows the tenant's part of the GPU, to clients of NVIDIA's own Python
//! package. A process that asks NVML does not become a session.

use crate::mps::{by_mps, mps};
use deepres_e2e::artefacts::clients_python;
use deepres_e2e::host::mute_socket;
use deepres_e2e::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{self, RecvFlags};
use simgpu_engine::Config;

/// NVML's error code for a list that is too short.
const INSUFFICIENT_SIZE: u32 = 7;
/// Memory that each tenant's process holds.
const HELD_BYTES: u64 = GIB;
/// Time limit. A share takes a second to show in NVML's figures.
const SETTLES_WITHIN: Duration = Duration::from_secs(20);

/// Starts a process that holds memory and keeps the GPU busy.
fn busy(host: &Host, options: &[&str]) -> Process {
    let held = HELD_BYTES.to_string();
    host.start(host.run(options, c_client("backlog"), &["--hold", &held]), "ready")
}

/// Returns NVML's answers to a process of this tenant, or of no tenant.
#[track_caller]
fn asked(host: &Host, tenant: Option<&str>) -> Value {
    let (python, client) = (&clients_python().python(), script("nvml_client").display().to_string());
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
    let (host, _daemon) = Host::new().with_daemon();
    let _one = busy(&host, &["--name", "one", "--share", "30%", "--memory", "4GiB"]);
    let _two = busy(&host, &["--name", "two", "--share", "70%"]);
    let ps = host.await_ps_within(
        |ps| ["one", "two"].iter().all(|name| ps.find(name).is_some_and(|t| t.gpu_ns > 1_000_000_000)),
        SETTLES_WITHIN,
    );
    let (one, two) = (ps.tenant("one").sessions[0].pid, ps.tenant("two").sessions[0].pid);

    let inside = asked(&host, Some("one"));
    let used_bytes = HELD_BYTES + Config::default().context_overhead_bytes;
    let part = json!({ "total": 4 * GIB, "free": 4 * GIB - used_bytes, "used": used_bytes });
    assert_eq!((&inside["memory"], &inside["memory_v2"]), (&part, &part), "{inside}");
    for list in ["compute", "compute_v2", "compute_v3", "accounted"] {
        assert_eq!(inside[list], json!([one]), "{list}");
    }
    // If the caller's list is too short, NVML returns the needed length. The length counts only the
    // tenant's own processes.
    let few = json!({ "code": INSUFFICIENT_SIZE, "count": 1, "pids": [one] });
    assert_eq!((&inside["samples"], &inside["infos"]), (&few, &few), "{inside}");
    let busy_percent = inside["busy_percent"].as_u64().expect("a number");
    assert!((15..=50).contains(&busy_percent), "of the 30 % that it is owed: {inside}");
    let samples = inside["busy_samples"].as_array().expect("a list");
    assert!(!samples.is_empty(), "{inside}");
    for sample in samples {
        assert!(sample.as_u64().is_some_and(|percent| (15..=50).contains(&percent)), "{inside}");
    }

    // Without a limit NVML shows the GPU's memory, but still only the tenant's own processes.
    let (unlimited, outside) = (asked(&host, Some("two")), asked(&host, None));
    assert_eq!(unlimited["memory"], outside["memory"]);
    assert_eq!(unlimited["compute_v3"], json!([two]));
    for list in ["compute_v3", "accounted"] {
        assert_eq!(outside[list], json!([one.min(two), one.max(two)]), "{list}");
    }
    assert!(outside["busy_samples"][0].as_u64() > Some(80), "{outside}");
    let all = json!({ "code": INSUFFICIENT_SIZE, "count": 2, "pids": [one.min(two), one.max(two)] });
    assert_eq!((&outside["samples"], &outside["infos"]), (&all, &all), "{outside}");
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
fn nvml_lists_the_clients_of_mps_and_no_other_processes() {
    let (host, _daemon) = Host::new().with_daemon();
    let _mps = mps(&host);
    let _without = busy(&host, &["--name", "without"]);
    let run = host.run(&["--name", "client"], c_client("backlog"), &[]);
    let _client = host.start(by_mps(&host, run), "ready");
    let pid = host.ps().tenant("client").sessions[0].pid;
    let (inside, outside) = (asked(&host, Some("client")), asked(&host, None));
    for list in ["mps", "mps_v2", "mps_v3"] {
        assert_eq!((&inside[list], &outside[list]), (&json!([pid]), &json!([pid])), "{list}");
    }
    assert_eq!(asked(&host, Some("without"))["mps_v3"], json!([]), "the tenant sees its own processes alone");
}

#[test]
fn without_a_daemon_or_for_a_tenant_that_is_not_there_nvml_is_as_ever() {
    let host = Host::new();
    // This run creates the simulated GPU's state.
    host.finish(host.command(c_client("past"))).success();
    let bare = asked(&host, None);
    let preloaded = |host: &Host| {
        let mut command = host.preloaded(clients_python().python());
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

/// Prints the processes that NVML lists and its answer about samples, first in this process and
/// then in a child right after the fork.
const ASKING_FORKED: &str = r#"
import os, sys, json, pynvml as nvml
nvml.nvmlInit()
handle = nvml.nvmlDeviceGetHandleByIndex(0)
def ask(): return [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
def sampled():
    try: return [sample.pid for sample in nvml.nvmlDeviceGetProcessUtilization(handle, 0)]
    except nvml.NVMLError as error: return type(error).__name__
print(json.dumps(ask() + [sampled()]), flush=True)
if os.fork() == 0:
    print(json.dumps(ask() + [sampled()]), flush=True)
    os._exit(0)
os.wait()
"#;

#[test]
fn a_forked_child_sees_its_tenants_processes_alone_and_is_told_where_there_are_none() {
    let (host, _daemon) = Host::new().with_daemon();
    let _other = busy(&host, &["--name", "other"]);
    let python = &clients_python().python();
    let asked = |name| {
        let ended = host.finish(host.run(&["--name", name], python, &["-c", ASKING_FORKED])).success();
        ended.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect::<Vec<Value>>()
    };
    assert_eq!(asked("one"), vec![json!(["NVMLError_NotFound"]); 2]);
    let _one = busy(&host, &["--name", "one"]);
    let pid = host.ps().tenant("one").sessions[0].pid;
    assert_eq!(asked("one"), vec![json!([pid, [pid]]); 2]);
}

/// Allocates memory. Prints NVML's figures right before and right after, and the driver's figures
/// afterwards.
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
    let python = &clients_python().python();
    let mut alone = host.alone(python);
    alone.env("DEEPRES_MEMORY", "4GiB").args(["-c", ALLOCATING]);
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

/// Queries the memory by NVML, closes NVML, opens it again, and queries again. The second time the
/// program uses the same function and one that it has not used before. In between it occupies
/// NVML's former addresses, if they are free. With `cuda` it initialises the driver first. Prints
/// the total of each answer, MiB.
const REOPENING: &str = r#"
import ctypes, sys
from ctypes import byref, c_long, c_size_t, c_uint64, c_void_p
libc = ctypes.CDLL(None)
for name in ["dlopen", "dlmopen", "dlsym", "mmap"]: getattr(libc, name).restype = c_void_p
NAME, LAZY, NOLOAD, NEW_NAMESPACE = b"libnvidia-ml.so.1", 1, 4, c_void_p(-1)
PRIVATE_ANONYMOUS_WITHOUT_REPLACING = 0x100022
if sys.argv[2:]: assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
def open_library():
    if sys.argv[1] == "namespace": return c_void_p(libc.dlmopen(NEW_NAMESPACE, NAME, LAZY))
    return c_void_p(libc.dlopen(NAME, LAZY))
def places():
    library = open_library()
    ranges = [line.split()[0].split("-") for line in open("/proc/self/maps") if "nvidia" in line]
    libc.dlclose(library)
    return int(ranges[0][0], 16), int(ranges[-1][1], 16)
def occupy(start, end):
    if not libc.dlopen(NAME, LAZY | NOLOAD):
        flags = PRIVATE_ANONYMOUS_WITHOUT_REPLACING
        libc.mmap(c_void_p(start), c_size_t(end - start), 0, flags, -1, c_long(0))
def call(library, name, *arguments):
    function = libc.dlsym(library, name)
    assert function and ctypes.CFUNCTYPE(ctypes.c_int)(function)(*arguments) == 0, name
def ask(is_again):
    library, device = open_library(), c_void_p()
    memory, memory_v2 = (c_uint64 * 3)(), (c_uint64 * 5)(40 | 2 << 24)
    call(library, b"nvmlInit_v2")
    call(library, b"nvmlDeviceGetHandleByIndex_v2", 0, byref(device))
    call(library, b"nvmlDeviceGetMemoryInfo", device, memory)
    print(memory[0] >> 20)
    if is_again:
        call(library, b"nvmlDeviceGetMemoryInfo_v2", device, memory_v2)
        print(memory_v2[1] >> 20)
    call(library, b"nvmlShutdown")
    libc.dlclose(library)
before = places()
ask(False)
occupy(*before)
ask(True)
"#;

/// go-nvml and other libraries in the same process open the library, close it and open it again.
#[test]
fn a_library_that_is_closed_and_opened_again_shows_the_tenants_part_as_before() {
    let host = Host::new();
    let whole = Config::default().memory_bytes / MIB;
    let totals = |mut command: std::process::Command, arguments: &[&str]| {
        command.env("DEEPRES_MEMORY", "4GiB").env("DEEPRES_TENANT", "t");
        command.args(["-c", REOPENING]).args(arguments);
        let said = host.finish(command).success().stdout;
        said.lines().map(|line| line.parse().unwrap_or_else(|_| panic!("{said}"))).collect::<Vec<u64>>()
    };
    let limit = 4 * GIB / MIB;
    let alone = || host.alone("python3");
    for way in ["base", "namespace"] {
        assert_eq!(totals(host.command("python3"), &[way]), [whole; 3], "{way}: bare");
        assert_eq!(totals(alone(), &[way]), [whole; 3], "{way}: without a session there is no limit to show");
    }
    assert_eq!(totals(alone(), &["base", "cuda"]), [limit; 3]);
    let _daemon = host.daemon();
    assert_eq!(totals(host.preloaded("python3"), &["base", "cuda"]), [limit; 3]);
    // In a namespace of its own the library is another one each time.
    assert_eq!(totals(host.preloaded("python3"), &["namespace", "cuda"])[0], limit);
}

/// Asks for the memory three times, again after a while, and in a forked child.
const ASKING_AGAIN: &str = r#"
import os, time, pynvml as nvml
nvml.nvmlInit()
handle = nvml.nvmlDeviceGetHandleByIndex(0)
def ask(): return nvml.nvmlDeviceGetMemoryInfo(handle).total
totals = [ask() for _ in range(3)]
time.sleep(1.1)
totals += [ask() for _ in range(3)]
if os.fork() == 0:
    ask()
    os._exit(0)
os.wait()
print(sorted(set(totals)))
"#;

#[test]
fn a_daemon_that_hangs_is_asked_once_in_a_while_and_not_waited_for_as_long_again() {
    let host = Host::new();
    let path = host.path().join("mute.sock");
    let mute = mute_socket(&path);
    let mut command = host.alone(clients_python().python());
    command.args(["-c", ASKING_AGAIN]).env("DEEPRES_SOCKET", &path);
    let mut client = host.spawn(command);
    // Time that each connection waited for an answer.
    let mut waited = Vec::new();
    while client.try_wait().is_none() {
        let mut ready = [PollFd::new(&mute, PollFlags::IN)];
        let look = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        if poll(&mut ready, Some(&look)).expect("a socket of our own") == 0 {
            continue;
        }
        let (connection, since) = (net::accept(&mute).expect("somebody connects"), Instant::now());
        while net::recv(&connection, &mut [0; 4096], RecvFlags::empty()).is_ok_and(|(bytes, _)| bytes > 0) {}
        waited.push(since.elapsed());
    }
    let ended = client.finish().success();
    let whole = Config::default().memory_bytes;
    assert_eq!(ended.stdout, format!("[{whole}]\n"), "as without deepres");
    let [first, again, of_child] = waited[..] else { panic!("each asked once, and the child: {waited:?}") };
    assert!(again < first / 2 && of_child < first / 2, "{waited:?}");
}

/// Asks for every list of processes, with room for none and for one. Prints the result of each
/// call, the count returned, and the first process.
const ASKING_WITH_LITTLE_ROOM: &str = r#"
import ctypes, json, pynvml as nvml
nvml.nvmlInit()
handle = nvml.nvmlDeviceGetHandleByIndex(0)
def ask(call, room, fields):
    count, places = ctypes.c_uint(room), (ctypes.c_uint64 * (4 * room))()
    code = fields(call, count, places if room else None)
    return [code, count.value, places[0] & 0xffffffff if room and code == 0 and count.value else None]
def plain(call, count, places):
    return call(handle, ctypes.byref(count), places)
class Details(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("mode", ctypes.c_uint), ("count", ctypes.c_uint), ("list", ctypes.c_void_p)]
def detailed(call, count, places):
    details = Details(0x1000018, 0, count.value, ctypes.cast(places, ctypes.c_void_p) if places else None)
    code = call(handle, ctypes.byref(details))
    count.value = details.count
    return code
calls = {f"nvmlDeviceGet{kind}RunningProcesses{version}": plain
         for kind in ["Compute", "Graphics", "MPSCompute"] for version in ["", "_v2", "_v3"]}
calls["nvmlDeviceGetRunningProcessDetailList"] = detailed
print(json.dumps({name: [ask(nvml._nvmlGetFunctionPointer(name), room, fields) for room in [0, 1]]
                  for name, fields in calls.items()}))
"#;

#[test]
fn a_list_of_processes_is_as_long_as_the_tenants_own_for_a_caller_with_little_room() {
    const INSUFFICIENT_SIZE: u64 = 7;
    let (host, _daemon) = Host::new().with_daemon();
    let _processes = ["one", "two", "three"].map(|name| busy(&host, &["--name", name]));
    let python = &clients_python().python();
    let inside = host.run(&["--name", "one"], python, &["-c", ASKING_WITH_LITTLE_ROOM]);
    let inside = host.finish(inside).success().json();
    let mut outside = host.command(python);
    outside.args(["-c", ASKING_WITH_LITTLE_ROOM]);
    let outside = host.finish(outside).success().json();
    let one = host.ps().tenant("one").sessions[0].pid;
    let calls = inside.as_object().expect("an answer for each call");
    assert_eq!(calls.len(), 10, "{calls:?}");
    for (call, answers) in calls {
        if call.contains("Compute") && !call.contains("MPS") || call.contains("Detail") {
            assert_eq!(answers, &json!([[INSUFFICIENT_SIZE, 1, null], [0, 1, one]]), "{call}");
            let all = json!([INSUFFICIENT_SIZE, 3, null]);
            assert_eq!(outside[call], json!([all, all]), "{call}, bare");
        } else {
            assert_eq!(answers, &json!([[0, 0, null], [0, 0, null]]), "{call}");
        }
    }
}
