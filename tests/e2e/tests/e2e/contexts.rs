//! Threads of a process, many processes, and clients on several GPUs make contexts at the same
//! time. The ledger counts each context, and no call waits for an unrelated context.

use std::fs;
use std::path::Path;

use deepres_e2e::calls::{Calls, OVERHEADS, WORK};
use deepres_e2e::prelude::*;

const CONTEXT_MIB: u64 = 100;
const OUT_OF_MEMORY: &str = "2";
const TENANT: &str = "t";

fn host_of(gpus: usize) -> Host {
    let bytes = CONTEXT_MIB * MIB;
    Host::new()
        .simgpu(&format!("gpus = {gpus}\nmemory_bytes = 17179869184\ncontext_overhead_bytes = {bytes}\n"))
}

fn host() -> Host {
    host_of(1)
}

/// Starts a daemon whose NVML answers `ms` milliseconds late. If `awaited` names a file, NVML does
/// not answer before the file exists.
fn daemon_of_slow_nvml(host: &Host, ms: &str, awaited: Option<&Path>) -> Process {
    let library = c_library("slow_nvml");
    let mut variables = vec![("LD_PRELOAD", library.as_path()), ("NVML_MS", Path::new(ms))];
    variables.extend(awaited.map(|file| ("NVML_AWAITS", file)));
    host.daemon_with(&variables)
}

fn contexts_mib(host: &Host) -> u64 {
    host.account(TENANT)["memory_by_kind"]["driver"].as_u64().unwrap_or(0) / MIB
}

fn start(host: &Host, variables: &[(&str, &str)]) -> Calls {
    let mut command = host.preloaded("python3");
    command.env("DEEPRES_TENANT", TENANT).envs(variables.iter().copied());
    Calls::run(host, command, OVERHEADS)
}

/// Retains the primary contexts of two GPUs in two threads. The second thread retains the first
/// GPU's context once the first thread's call has made it, and another GPU's context at once.
/// Returns both codes, and the time between the ends of the calls in ms.
const RETAIN_TWICE: &str = r#"
import threading, time
def retain_twice(second):
    codes, ends_s, is_active = [0, 0], [0, 0], c_int(second)
    def retain(which, device):
        codes[which] = cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), device)
        ends_s[which] = time.monotonic()
    first = threading.Thread(target=retain, args=(0, 0))
    first.start()
    while not is_active.value: must(cuda.cuDevicePrimaryCtxGetState(0, byref(c_int()), byref(is_active)))
    retain(1, second)
    first.join()
    return f"{codes[0]} {codes[1]} {abs(ends_s[1] - ends_s[0]) * 1000:.0f}"
"#;

/// Retains two contexts in a process with these variables. Returns the process, both codes, and the
/// time between the ends of the calls.
fn retain_twice(host: &Host, second: u32, variables: &[(&str, &str)]) -> (Calls, String, Duration) {
    let mut process = start(host, variables);
    process.define(RETAIN_TWICE);
    let said = process.asks(&format!("retain_twice({second})"));
    let (codes, apart_ms) = said.rsplit_once(' ').expect("three words");
    let apart = Duration::from_millis(apart_ms.parse().expect("milliseconds"));
    (process, codes.to_owned(), apart)
}

#[test]
fn a_gpus_primary_context_does_not_wait_for_anothers() {
    const DRIVER_TAKES: Duration = Duration::from_secs(2);
    let (host, _daemon) = host_of(2).with_daemon();
    let fault = format!("cuDevicePrimaryCtxRetain:delay:{}s", DRIVER_TAKES.as_secs());
    let (_process, codes, apart) = retain_twice(&host, 1, &[("SIMGPU_FAULTS", &fault)]);
    assert_eq!(codes, "0 0");
    assert!(apart < DRIVER_TAKES, "the second call began when the first had ended: {apart:?} apart");
}

#[test]
fn a_primary_context_that_is_refused_to_one_thread_is_another_threads_neither() {
    let host = host();
    let _daemon = daemon_of_slow_nvml(&host, "200", None);
    let limit = format!("{}MiB", CONTEXT_MIB / 2);
    let (_process, codes, _) = retain_twice(&host, 0, &[("DEEPRES_MEMORY", &limit)]);
    assert_eq!(codes, format!("{OUT_OF_MEMORY} {OUT_OF_MEMORY}"));
    assert_eq!(host.truth().gpus[0].memory_used_bytes, 0);
}

#[test]
fn contexts_of_many_processes_that_begin_at_once_all_count() {
    const PROCESSES: u64 = 40;
    let host = host();
    let _daemon = daemon_of_slow_nvml(&host, "100", None);
    let mut makers: Vec<Calls> = (0..PROCESSES).map(|_| start(&host, &[])).collect();
    makers.iter_mut().for_each(|maker| maker.0.say("create(0)"));
    for Calls(maker) in &mut makers {
        assert!(maker.answer().ends_with(" 0"), "{}", maker.process.stderr());
    }
    // A context that NVML does not report in time is counted soon after.
    host.await_ps(|ps| {
        ps.find(TENANT).is_some_and(|tenant| tenant.memory_bytes == PROCESSES * CONTEXT_MIB * MIB)
    });
    assert_eq!(contexts_mib(&host), PROCESSES * CONTEXT_MIB);
}

#[test]
fn contexts_that_nvml_does_not_report_in_time_count_once_it_does() {
    let host = host();
    let file = host.path().join("nvml-answers");
    let _daemon = daemon_of_slow_nvml(&host, "0", Some(&file));
    let mut maker = start(&host, &[]);
    for order in ["create(0)", "create(1)", "create(2)", "destroy(1)"] {
        maker.does(order);
    }
    assert_eq!(contexts_mib(&host), 0);
    maker.0.process.await_error_line(|line| line.contains("until NVML reports it"));
    fs::write(&file, []).expect("the host's own folder");
    host.await_ps(|ps| ps.find(TENANT).is_some_and(|tenant| tenant.memory_bytes == 2 * CONTEXT_MIB * MIB));
    assert_eq!(contexts_mib(&host), 2 * CONTEXT_MIB);
    maker.does("destroy(0)");
    assert_eq!(contexts_mib(&host), CONTEXT_MIB);
}

/// A green context with 64 SMs. `rounds` launches four kernels on the default stream of the green
/// context and two on another stream. One of the two comes while the green context is not current.
const GREEN: &str = r#"
whole, part = (c_uint64 * 18)(), (c_uint64 * 18)()
must(cuda.cuDeviceGetDevResource(0, whole, 1))
must(cuda.cuDevSmResourceSplitByCount(part, byref(c_int(1)), whole, None, 0, 64))
green = new(cuda.cuGreenCtxCreate, new(cuda.cuDevResourceGenerateDesc, part, 1), 0, 1)
view = new(cuda.cuCtxFromGreenCtx, green)
green_stream = new(cuda.cuGreenCtxStreamCreate, green, NON_BLOCKING, 0)
busy = kernel("busy")
def rounds(count):
    for _ in range(count):
        must(cuda.cuCtxPushCurrent_v2(view))
        for on in (None, None, None, None, green_stream): must(launch(busy, on))
        must(cuda.cuCtxPopCurrent_v2(byref(c_void_p())))
        must(launch(busy, green_stream))
        must(cuda.cuCtxPushCurrent_v2(view))
        must(cuda.cuStreamSynchronize(None))
        must(cuda.cuCtxPopCurrent_v2(byref(c_void_p())))
    return cuda.cuStreamSynchronize(green_stream)
"#;

#[test]
#[ignore = "deep: takes long"]
fn work_of_a_green_context_is_gated_and_metered_though_only_the_job_makes_it_current() {
    const ROUNDS: u64 = 40;
    const LAUNCHES: u64 = ROUNDS * 6;
    let host = Host::new()
        .simgpu("context_overhead_bytes = 104857600\nkernel = [{ name = \"busy\", ns = 1000000 }]\n");
    let _daemon = host.daemon();
    let mut client = start(&host, &[]);
    client.does("retain()");
    client.define(WORK);
    client.define(GREEN);
    // The simulated driver refuses to make a green context current to a second thread.
    client.does(&format!("rounds({ROUNDS})"));
    let pid = client.pid();
    let done = || host.record(pid).gpus[0];
    assert_eq!(done().kernels, LAUNCHES);
    let account = await_value(|| host.account(TENANT), |account| account["kernel_launches"] == LAUNCHES);
    let (charged_ns, ran_ns) = (account["gpu_ns"].as_u64().unwrap_or(0), done().kernel_busy_ns);
    assert!(charged_ns.abs_diff(ran_ns) <= ran_ns / 5, "charged {charged_ns} ns, ran {ran_ns} ns");
    host.call(&["pause", TENANT]).success();
    client.0.say("launch(busy, green_stream)");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(done().kernels, LAUNCHES, "the launch waits at the gate");
    host.call(&["resume", TENANT]).success();
    assert!(client.0.answer().ends_with(" 0"));
    eventually("the kernel runs", || done().kernels == LAUNCHES + 1);
    // The primary context has lived on.
    client.does("cuda.cuGreenCtxDestroy(green)");
    assert_eq!(contexts_mib(&host), CONTEXT_MIB);
    client.does("cuda.cuDevicePrimaryCtxRelease_v2(0)");
    assert_eq!(contexts_mib(&host), 0);
}

#[test]
#[ignore = "deep: takes long"]
fn a_reset_of_the_primary_context_ends_its_green_contexts_and_charges_their_work() {
    const KERNEL_NS: u64 = 300_000_000;
    let host = Host::new().simgpu(&format!("kernel = [{{ name = \"busy\", ns = {KERNEL_NS} }}]\n"));
    let _daemon = host.daemon();
    let mut client = start(&host, &[]);
    for round in 1..=2 {
        client.does("retain()");
        client.define(WORK);
        client.define(GREEN);
        // The driver waits for the kernel, and the meter has no estimate of it.
        client.does("launch(busy, green_stream)");
        client.does("reset()");
        let account = await_value(|| host.account(TENANT), |account| account["kernel_launches"] == round);
        let charged_ns = account["gpu_ns"].as_u64().unwrap_or(0);
        let ran_ns = host.record(client.pid()).gpus[0].kernel_busy_ns;
        assert!(ran_ns >= round * KERNEL_NS, "ran {ran_ns} ns");
        assert!(charged_ns.abs_diff(ran_ns) <= ran_ns / 5, "charged {charged_ns} ns, ran {ran_ns} ns");
    }
}
