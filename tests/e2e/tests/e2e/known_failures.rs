//! Calls that have broken published interposers. Under deepres, the client gets the same answers as
//! without any library.
//!
//! `tests/conformance` checks the rules of the driver that the broken interposers did not know.

use std::path::Path;
use std::process::Command;

use deepres_e2e::calls::{Calls, FORKED, WORK};
use deepres_e2e::clients::c_library_on;
use deepres_e2e::prelude::*;

/// Further functions for a client that has a context.
const HAZARDS: &str = r#"
import time
GLOBAL, PER_THREAD = 0, 2
quick, blocking = kernel("quick"), new(cuda.cuStreamCreate, 0)
def launch_many(times): return sum(launch(quick, each) for each in times // 2 * [stream, None])
def launch_thrice(stream, pause=0): return [time.sleep(pause) or launch(quick, stream) for _ in range(3)]
def begin(stream, mode): return cuda.cuStreamBeginCapture_v2(stream, mode)
def end(stream):
    graph, nodes = c_void_p(), c_size_t()
    code = cuda.cuStreamEndCapture(stream, byref(graph))
    return code, code or cuda.cuGraphGetNodes(graph, None, byref(nodes)), nodes.value
def capture(stream, mode, pause=0):
    return launch(quick, stream), begin(stream, mode), launch_thrice(stream, pause), end(stream)
def use_context():
    own = new(cuda.cuCtxCreate_v2, 0, 0)
    return launch(kernel("quick"), None), cuda.cuCtxSynchronize(), cuda.cuCtxDestroy_v2(own)
def found(name, version, flags):
    function, status = c_void_p(), c_int()
    must(cuda.cuGetProcAddress_v2(name, byref(function), version, c_uint64(flags), byref(status)))
    return ctypes.CFUNCTYPE(c_int)(function.value)
def is_managed(name):
    value = c_int(9)
    return cuda.cuPointerGetAttribute(byref(value), 8, kept[name]), value.value
"#;

/// Functions that launch with attributes, and lists of attributes for one launch each.
const ATTRIBUTES: &str = r#"
launch_ex = found(b"cuLaunchKernelEx", 12000, 0)
def attribute(id, value): return struct.pack("i4x64s", id, value)
def launch_with(stream, *attributes):
    listed = ctypes.create_string_buffer(b"".join(attributes))
    config = struct.pack("7I4xQQI4x", 4, 1, 1, 32, 1, 1, 0, stream.value, ctypes.addressof(listed), len(attributes))
    return launch_ex(config, quick, None, None)
must(linear("window", 1 << 20))
event, timed = new(cuda.cuEventCreate, 2), new(cuda.cuEventCreate, 0)
flag, flag_at = new(cuda.cuMemHostAlloc, c_size_t(4), 2), c_uint64()
must(cuda.cuMemHostGetDevicePointer_v2(byref(flag_at), flag, 0))
def recording(id, event): return attribute(id, struct.pack("Qii", event, 0, 0))
def cluster(id, width): return attribute(id, struct.pack("3i", width, 1, 1))
tried = {id: [attribute(id, struct.pack("i", 1))] for id in (*range(20), 12345)}
tried[1] = [attribute(1, struct.pack("QQfii", kept["window"].value, 1 << 20, 1, 2, 1))]
tried[4] = [cluster(4, 2), cluster(4, 2)]
tried[9] = [attribute(9, b"\1\1")]
tried[11] = [cluster(11, 4), cluster(4, 2)]
def await_recorded(id):
    own, other = new(cuda.cuStreamCreate, NON_BLOCKING), new(cuda.cuStreamCreate, NON_BLOCKING)
    value = c_int.from_address(flag.value)
    value.value = 0
    must(cuda.cuStreamWaitValue32_v2(own, flag_at, 1, 1))
    code = launch_with(own, recording(id, event.value))
    must(cuda.cuStreamWaitEvent(other, event, 0))
    before = cuda.cuEventQuery(event), cuda.cuStreamQuery(other)
    value.value = 1
    return code, before, (cuda.cuEventSynchronize(event), cuda.cuStreamSynchronize(other))
"#;

/// An expression for 1,000 launches.
const LAUNCHES: &str = "launch_many(1000), cuda.cuCtxSynchronize()";

/// Returns all functions for a client of [`HAZARDS`], with a context.
fn hazards() -> String {
    format!("must(start())\n{WORK}{HAZARDS}")
}

/// Returns the command of a client that is this tenant.
fn as_tenant(host: &Host, tenant: &str) -> Command {
    host.run(&["--name", tenant, "--memory", "4GiB"], "python3", &[])
}

/// Returns the values of expressions in a client that then ends successfully.
#[track_caller]
fn answers(host: &Host, command: Command, functions: &str, expressions: &[&str]) -> Vec<String> {
    let mut client = Calls::run(host, command, functions);
    let answers = expressions.iter().map(|expression| client.asks(expression)).collect();
    client.0.process.finish().success();
    answers
}

/// Asserts that a client gets the same values of expressions as a tenant and without deepres.
/// Returns them.
#[track_caller]
fn assert_answered_as_without_deepres(
    host: &Host,
    tenant: &str,
    functions: &str,
    expressions: &[&str],
) -> Vec<String> {
    let bare = answers(host, host.command("python3"), functions, expressions);
    assert_eq!(answers(host, as_tenant(host, tenant), functions, expressions), bare);
    host.await_nothing_held();
    // Only a session makes a tenant, so the process had a session.
    assert!(host.ps().find(tenant).is_some(), "{tenant}: under deepres it is a tenant");
    bare
}

/// Declares tests that ask a client for the values of expressions, with deepres and without.
macro_rules! hazards {
    ($($name:ident: [$($expression:expr),+];)+) => {
        $(
            #[test]
            fn $name() {
                let (host, _daemon) = Host::new().with_daemon();
                assert_answered_as_without_deepres(&host, "hazard", &hazards(), &[$($expression),+]);
            }
        )+
    };
}

hazards! {
    a_function_that_changed_its_parameters_is_told_from_the_one_before:
        ["found(b'cuCtxCreate', 13000, 0)(byref(c_void_p()), None, 4, 0)"];
    a_variant_for_per_thread_streams_launches_on_them: [
        "begin(c_void_p(2), RELAXED)",
        "found(b'cuLaunchKernel', 12000, PER_THREAD)(quick, 1, 1, 1, 1, 1, 1, 0, None, None, None)",
        "end(c_void_p(2))"
    ];
    the_real_dlsym_is_found_without_dlsym: [LAUNCHES];
    no_marker_gets_into_a_capture: ["capture(stream, GLOBAL)"];
    a_thread_that_looks_at_events_breaks_no_capture_of_another_thread: [
        "capture(stream, GLOBAL, .02)",
        "begin(stream, GLOBAL), launch(quick, None), end(stream)"
    ];
    nothing_is_put_on_the_legacy_stream_while_one_that_waits_for_it_is_captured: [
        "capture(blocking, RELAXED, .02)",
        "begin(blocking, RELAXED), launch(quick, None), end(blocking)"
    ];
    events_end_with_their_context: ["[use_context() for _ in range(3)]"];
    null_and_odd_arguments_are_the_drivers_to_answer: [
        "cuda.cuLaunchKernelEx(None, quick, None, None)",
        "cuda.cuLaunchKernelEx(bytes(56), quick, None, None)",
        "launch(None, None)",
        "cuda.cuMemAlloc_v2(None, c_size_t(512))",
        "cuda.cuMemAllocAsync(None, c_size_t(512), None)",
        "cuda.cuMemGetInfo_v2(None, None)",
        "cuda.cuMemCreate(None, c_size_t(2 << 20), None, c_uint64(0))",
        "cuda.cuLaunchCooperativeKernelMultiDevice(None, 3, 0)",
        "cuda.cuGraphLaunch(None, None)",
        "cuda.cuMemFree_v2(c_uint64(0))"
    ];
    device_memory_is_not_swapped_for_managed_memory: ["linear('own', 1 << 20), is_managed('own')"];
}

#[test]
fn physical_memory_needs_no_current_context() {
    let (host, _daemon) = Host::new().with_daemon();
    let on_no_device = "struct.pack('iiiiQ8x', PINNED, 0, DEVICE, 12345, 0)";
    let expressions = [
        "cuda.cuInit(0)",
        "physical('own', 2 << 20)",
        &format!("cuda.cuMemCreate(byref(c_uint64()), c_size_t(2 << 20), {on_no_device}, c_uint64(0))"),
        "release('own')",
    ];
    assert_answered_as_without_deepres(&host, "physical", "", &expressions);
}

#[test]
fn a_forked_child_inherits_no_lock() {
    let (host, _daemon) = Host::new().with_daemon();
    // The child runs the exit handlers of all libraries.
    let child = "forked(lambda: ctypes.CDLL(None).exit(cuda.cuDeviceGetCount(byref(c_int()))))";
    assert_answered_as_without_deepres(&host, "forked", FORKED, &["cuda.cuInit(0)", child]);
}

/// Asserts that a program ends successfully, and in the same way as a tenant.
#[track_caller]
fn assert_lives_as_without_deepres(tenant: &str, program: &Path, arguments: &[&str]) {
    let (host, _daemon) = Host::new().with_daemon();
    let bare = host.assert_same_life(tenant, program, arguments);
    assert_eq!((bare.code, bare.signal), (0, None), "{bare:?}");
    assert!(host.ps().find(tenant).is_some(), "{tenant}: under deepres it is a tenant");
}

#[test]
fn names_that_only_begin_like_the_drivers_are_not_hooked() {
    let lookalikes = c_library("lookalikes").display().to_string();
    assert_lives_as_without_deepres("prefix", &c_program("lookups"), &[&lookalikes]);
}

#[test]
fn a_look_up_in_a_librarys_constructor_waits_for_nobody() {
    let library = c_library("constructor").display().to_string();
    assert_lives_as_without_deepres("lock", &c_client("plugins"), &["constructor", &library]);
}

#[test]
fn processes_begin_beside_one_that_is_stuck_in_its_beginning() {
    /// Number of processes that start.
    const PROCESSES: usize = 60;
    let (host, _daemon) = Host::new().with_daemon();
    let client = |faults: &str| {
        let mut command = host.run(&["--name", "many"], "python3", &[]);
        command.env("SIMGPU_FAULTS", faults);
        Calls::run(&host, command, "")
    };
    let mut stuck = client("cuInit:delay:200s");
    stuck.0.say("start()");
    let mut many: Vec<_> = (0..PROCESSES).map(|_| client("")).collect();
    many.iter_mut().for_each(|client| client.0.say("start() or linear('own', 1 << 20)"));
    for client in &mut many {
        assert!(client.0.answer().ends_with(" 0"), "it began, and has its memory");
    }
}

#[test]
fn freeing_memory_that_was_never_counted_takes_nothing_from_the_account() {
    let (host, _daemon) = Host::new().with_daemon();
    let mut client = Calls::run(&host, as_tenant(&host, "freer"), "must(start())\nat = c_uint64()");
    for _ in 0..8 {
        client.does("cuda.cuMemAllocAsync(byref(at), c_size_t(32 << 20), None) or cuda.cuMemFree_v2(at)");
    }
    client.does("cuda.cuCtxSynchronize()");
    let held_bytes = host.ps().tenant("freer").memory_bytes;
    for freed in ["at", "c_uint64(0x123456789000)"] {
        assert_ne!(client.asks(&format!("cuda.cuMemFree_v2({freed})")), "0", "it is not allocated");
    }
    assert!(held_bytes > 0, "the context is held");
    assert_eq!(host.ps().tenant("freer").memory_bytes, held_bytes);
}

#[test]
fn a_context_that_was_attached_to_keeps_what_is_in_it_until_its_last_user_leaves() {
    /// Calls while the context has one user, then two (after `cuCtxAttach`), and then one again.
    const USED: [&str; 5] = [
        "linear('part', 1 << 30)",
        "cuda.cuCtxAttach(byref(again), 0), again.value == context().value",
        "cuda.cuCtxDetach(again)",
        LAUNCHES,
        "is_managed('part')",
    ];
    const ENDED: [&str; 2] = ["cuda.cuCtxDetach(again)", "cuda.cuCtxDetach(again) != 0"];
    let (host, _daemon) = Host::new().with_daemon();
    let functions = format!("{}\nagain = c_void_p()", hazards());
    let bare = answers(&host, host.command("python3"), &functions, &[&USED[..], &ENDED].concat());
    let mut ours = Calls::run(&host, as_tenant(&host, "guest"), &functions);
    let mut said: Vec<_> = USED.iter().map(|expression| ours.asks(expression)).collect();
    let ps = host.await_launches("guest", Some(1000));
    assert!(ps.tenant("guest").memory_bytes >= 1 << 30, "the memory there is charged: {ps:?}");
    said.push(ours.asks(ENDED[0]));
    assert_eq!(host.ps().tenant("guest").memory_bytes, 0, "it ended with its context");
    said.push(ours.asks(ENDED[1]));
    assert_eq!(said, bare);
    assert_eq!(bare, ["0", "(0, True)", "0", "(0, 0)", "(0, 0)", "0", "True"]);
}

#[test]
fn a_launch_with_any_attribute_is_answered_as_without_deepres_and_counted() {
    /// Ids of the attributes that the client tries. The last one is no attribute.
    const TRIED: [u32; 21] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 12345];
    /// An attribute of streams, one of graphs' nodes, and ids that are no attribute.
    const REFUSED: [u32; 5] = [3, 13, 15, 19, 12345];
    /// Attributes by which a launch records an event.
    const RECORDING: [u32; 2] = [7, 12];
    let (host, _daemon) = Host::new().with_daemon();
    let launches = TRIED.map(|id| {
        if RECORDING.contains(&id) {
            format!("await_recorded({id})")
        } else {
            format!("launch_with(stream, *tried[{id}])")
        }
    });
    let mut expressions: Vec<_> = launches.iter().map(String::as_str).collect();
    expressions.extend([
        "launch_with(stream, cluster(11, 3), cluster(4, 2))",
        "[launch_with(stream, recording(id, timed.value)) for id in (7, 12)]",
        "[launch_with(stream, recording(id, 0)) for id in (7, 12)]",
        "begin(stream, RELAXED), launch_with(stream, recording(12, event.value)), end(stream)",
        "cuda.cuCtxSynchronize()",
    ]);
    let functions = hazards() + ATTRIBUTES;
    let said = assert_answered_as_without_deepres(&host, "attributes", &functions, &expressions);
    for (id, answer) in TRIED.iter().zip(&said) {
        let expected = if RECORDING.contains(id) {
            // The event and a stream that waits for it are NOT_READY (600) while the launch waits.
            "(0, (600, 600), (0, 0))"
        } else if REFUSED.contains(id) {
            "1"
        } else {
            "0"
        };
        assert_eq!(answer, expected, "{id}: {said:?}");
    }
    let launched = (TRIED.len() - REFUSED.len()) as u64;
    assert_eq!(host.ps().tenant("attributes").kernel_launches, launched, "each launch is metered");
}

#[test]
fn a_stream_that_was_not_destroyed_captures_as_before() {
    let (host, _daemon) = Host::new().with_daemon();
    let failing = |mut command: Command| {
        command.env("SIMGPU_FAULTS", "cuStreamDestroy_v2:1:999");
        let destroy = "begin(stream, GLOBAL), cuda.cuStreamDestroy_v2(stream)";
        let expressions = ["launch(quick, stream)", destroy, "launch_thrice(stream)", "end(stream)"];
        answers(&host, command, &hazards(), &expressions)
    };
    let bare = failing(host.command("python3"));
    assert_eq!(bare, ["0", "(0, 999)", "[0, 0, 0]", "(0, 0, 3)"]);
    assert_eq!(failing(as_tenant(&host, "keeper")), bare);
    assert_eq!(host.ps().tenant("keeper").kernel_launches, 1, "captured launches do not run");
}

/// Makes the process die in driver functions that load a kernel lazily, or that can take as long.
#[test]
fn nothing_that_loads_a_kernel_is_asked_on_the_way_of_a_launch() {
    let (host, _daemon) = Host::new().with_daemon();
    let fatal: Vec<String> =
        "cuFuncGetName cuFuncGetAttribute cuFuncGetModule cuFuncGetParamInfo cuFuncLoad \
         cuKernelGetFunction cuKernelGetName cuKernelGetAttribute cuModuleGetFunction cuModuleGetLoadingMode \
         cuOccupancyMaxActiveBlocksPerMultiprocessor cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags \
         cuOccupancyMaxPotentialBlockSize"
            .split(' ')
            // The client itself looks up its one kernel.
            .map(|function| {
                format!("die:{function}:{}", if function == "cuModuleGetFunction" { 2 } else { 1 })
            })
            .collect();
    let mut ours = as_tenant(&host, "namer");
    ours.env("SIMGPU_FAULTS", fatal.join(","));
    assert_eq!(answers(&host, ours, &hazards(), &[LAUNCHES]), ["(0, 0)"]);
}

/// A library that was opened with `RTLD_DEEPBIND`, or in a namespace of its own, bypasses preloaded
/// libraries. deepres reports such a library.
#[test]
fn a_library_that_bypasses_the_hooks_is_reported() {
    let (host, _daemon) = Host::new().with_daemon();
    let client = c_client("plugins");
    let library = c_library_on("deepbound", &artefacts().simgpu.join("libcuda.so.1")).display().to_string();
    let (opens, looks) = (c_library("opens"), c_library("lookups_alone"));
    let (opens, looks) = (opens.display().to_string(), looks.display().to_string());
    // In a namespace of its own the library has its own driver, and that driver does not know the
    // client's kernel.
    let ways = [("bound", 100, 0, false), ("deepbound", 0, 0, true), ("elsewhere", 0, 100, true)];
    let cases = [&library, &opens].into_iter().flat_map(|library| ways.map(|way| (library, way)));
    // A library that looks up other names bypasses no hook.
    let cases = cases.chain(["deepbound", "elsewhere"].map(|way| (&looks, (way, 0, 0, false))));
    for (number, (library, (way, launches, failed, is_known))) in cases.enumerate() {
        let name = format!("{way}-{number}");
        let mut ours = host.start(host.run(&["--name", &name], &client, &[way, library]), "waited: 0");
        host.await_launches(&name, Some(launches));
        let told = || host.shows(&["ps", "--coverage"]);
        if is_known {
            await_value(told, |told| told.contains("1 libraries bound to the driver itself"));
        }
        ours.say("");
        let ended = ours.finish().success();
        assert_eq!(ended.stdout, format!("failed: {failed}\nwaited: 0\n"), "{library} {way}");
        assert_eq!(ended.stderr.contains("RTLD_DEEPBIND"), is_known, "{library} {way}: {}", ended.stderr);
    }
}
