//! Tenants that asked for managed memory beyond their limit: how much they get, and where the
//! memory is.

use std::fs;
use std::path::Path;

use deepres_e2e::calls::{Calls, FORKED, WORK};
use deepres_e2e::contention::Log;
use deepres_e2e::prelude::*;
use deepres_e2e::swap::{self, assert_unchanged_within, swapper};

/// Time within which memory is moved, however busy the machine is.
const MOVE_LIMIT: Duration = Duration::from_secs(20);
/// Options of a tenant that asks for managed memory beyond its limit.
const MANAGED: [&str; 2] = ["--oversubscribe", "managed"];

/// Starts a client that can have managed memory beyond its limit, and waits until it has its
/// memory.
fn holding(host: &Host, name: &str, limit: &str, bytes: u64, kernels: &str) -> Process {
    swap::holding(host, name, &[&MANAGED[..], &["--memory", limit]].concat(), bytes, kernels)
}

/// Returns the managed memory on the GPU of each living process, bytes, in the order in which the
/// processes attached.
fn managed(host: &Host) -> Vec<u64> {
    let truth = host.truth();
    truth
        .processes
        .iter()
        .filter(|process| process.alive)
        .map(|process| process.gpus[0].managed_bytes)
        .collect()
}

/// Waits until the managed memory of the processes is as wanted.
#[track_caller]
fn await_managed(host: &Host, is_so: impl Fn(&[u64]) -> bool) {
    await_value_within(|| managed(host), |managed| is_so(managed), MOVE_LIMIT);
}

#[test]
fn memory_beyond_the_limit_is_given_shown_brought_to_the_gpu_and_freed() {
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    let mut client = holding(&host, "t", "256MiB", 512 * MIB, "2000");
    // The tenant is alone, and all of its memory fits.
    await_managed(&host, |managed| managed == [256 * MIB]);
    let account = host.ps().tenant("t").clone();
    assert_eq!((account.memory_bytes, account.oversubscribed_bytes), (256 * MIB, 256 * MIB));
    assert_eq!(account.refusals, 0);
    let told = host.shows(&["ps"]);
    assert!(told.contains("256 MiB beyond the limit"), "{told}");
    let said = client.await_json_within(Duration::from_secs(60));
    assert_eq!(said["changed"].as_u64(), Some(0), "{said}");
    let account = host.ps().tenant("t").clone();
    assert_eq!((account.memory_bytes, account.oversubscribed_bytes), (0, 0), "all of it was freed");
    assert_eq!(managed(&host), [0]);
    client.finish().success();
}

#[test]
fn two_tenants_with_more_memory_than_the_gpu_both_run_and_their_memory_follows_the_lease() {
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    // The limits leave 384 MiB of the GPU. The memory of one tenant beyond its limit fits there,
    // and that of both tenants does not.
    let first = holding(&host, "first", "320MiB", 640 * MIB, "1500");
    await_managed(&host, |managed| managed == [320 * MIB]);
    let second = holding(&host, "second", "320MiB", 640 * MIB, "1500");
    // In turn, each tenant has all or most of its memory beyond the limit on the GPU.
    await_managed(&host, |managed| managed.len() == 2 && managed[1] >= 192 * MIB);
    await_managed(&host, |managed| managed[0] >= 192 * MIB);
    assert!(managed(&host).iter().sum::<u64>() <= 384 * MIB);
    for client in [first, second] {
        assert_unchanged_within(client, Duration::from_secs(100));
    }
    for tenant in ["first", "second"] {
        assert_eq!(host.ps().tenant(tenant).refusals, 0);
    }
}

#[test]
fn without_a_limit_memory_that_the_gpu_lacks_is_managed() {
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    assert_unchanged_within(swapper(&host, "first", &MANAGED, 640 * MIB, "0"), COMMAND_LIMIT);
    let holder = swap::holding(&host, "holder", &[], 640 * MIB, "1500");
    let second = swap::holding(&host, "second", &MANAGED, 640 * MIB, "1500");
    let account = host.ps().tenant("second").clone();
    assert_eq!((account.memory_bytes, account.oversubscribed_bytes), (384 * MIB, 256 * MIB));
    for client in [holder, second] {
        assert_unchanged_within(client, Duration::from_secs(60));
    }
}

#[test]
fn a_tenant_never_has_more_than_the_gpu_and_one_that_did_not_ask_has_no_more_than_its_limit() {
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    for (name, options, bytes) in [
        ("more", vec!["--oversubscribe", "managed"], 1056 * MIB),
        ("plain", vec![], 288 * MIB),
        ("suspended", vec!["--oversubscribe", "suspend"], 288 * MIB),
    ] {
        let options = [vec!["--name", name, "--memory", "256MiB"], options].concat();
        let finished = host.finish(host.run(&options, c_client("swap"), &[&bytes.to_string(), "1"]));
        assert!(finished.code != 0, "{name}: {}", finished.stdout);
    }
    let client = swapper(&host, "all", &[&MANAGED[..], &["--memory", "256MiB"]].concat(), 1024 * MIB, "8");
    assert_unchanged_within(client, COMMAND_LIMIT);
}

#[test]
fn all_tenants_together_are_promised_no_more_of_the_hosts_memory_than_there_is() {
    const TAKES_ALL: &str = "next(n for n in range(9999) if linear(str(n), 1 << 28) != 0)";
    const PIECE_BYTES: u64 = 1 << 28;
    let memory = std::fs::read_to_string("/proc/meminfo").expect("the system tells");
    let memory = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.strip_suffix("kB"));
    let available_bytes = memory.and_then(|text| text.trim().parse::<u64>().ok()).expect("a number") << 10;
    let host = Host::new().simgpu("memory_bytes = 1099511627776\n").light_contexts();
    let _daemon = host.daemon();
    let tenant = |name: &str, options: &[&str]| {
        let options = [&["--name", name], options].concat();
        Calls::run(&host, host.run(&options, "python3", &[]), &format!("must(start())\n{WORK}"))
    };
    let managed = ["--memory", "64MiB", "--oversubscribe", "managed"];
    let mut both = ["first", "second"].map(|name| tenant(name, &managed));
    let taken = both.each_mut().map(|client| client.asks(TAKES_ALL).parse::<u64>().expect("a number"));
    let taken_bytes = taken.iter().sum::<u64>() * PIECE_BYTES;
    assert!(taken.iter().all(|pieces| *pieces > 0) && taken_bytes < available_bytes, "{taken:?}");
    // A suspended tenant's memory would go there too.
    let mut large = tenant("large", &[]);
    large.does(&format!("linear('all', {})", 2 * available_bytes));
    host.call(&["suspend", "large"]).refused("the host has no room for the memory of `large`");
}

/// Functions that examine memory beyond the limit.
const EXAMINE: &str = r#"
quick = kernel("quick")
def info():
    free, total = c_size_t(), c_size_t()
    must(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return free.value, total.value
def pitched(name, width, rows):
    kept[name], pitch = c_uint64(), c_size_t()
    return cuda.cuMemAllocPitch_v2(byref(kept[name]), byref(pitch), c_size_t(width), c_size_t(rows), 4), pitch.value
def managed(name, size):
    kept[name] = c_uint64()
    return cuda.cuMemAllocManaged(byref(kept[name]), c_size_t(size), 1)
def is_managed(name):
    answer = ctypes.c_ubyte()
    must(cuda.cuPointerGetAttribute(byref(answer), 8, kept[name]))
    return answer.value
def keeps(name, size):
    sent, found = bytes(range(64)), ctypes.create_string_buffer(64)
    for offset in 0, size - 64:
        at = c_uint64(kept[name].value + offset)
        must(cuda.cuMemcpyHtoDAsync_v2(at, sent, c_size_t(64), stream) or cuda.cuStreamSynchronize(stream))
        must(cuda.cuMemcpyDtoH_v2(found, at, c_size_t(64)))
        if found.raw != sent: return False
    return True
def allocate_in_capture(mode):
    graph = c_void_p()
    must(cuda.cuStreamBeginCapture_v2(stream, mode) or launch(quick, stream))
    code, ended = linear("captured", 4 << 20), cuda.cuStreamEndCapture(stream, byref(graph))
    if code == 0: must(cuda.cuMemFree_v2(kept["captured"]))
    return code, ended
def retain(): return cuda.cuCtxSetCurrent(new(cuda.cuDevicePrimaryCtxRetain, 0))
"#;

/// Makes the client of [`caller`] fill its limit, and then ask for memory of each kind that can be
/// beyond the limit. Returns the answers.
fn ask_beyond(client: &mut Calls) -> [String; 3] {
    client.define(&[WORK, FORKED, EXAMINE].concat());
    client.does("linear('whole', 64 << 20)");
    ["linear('beyond', 32 << 20)", "pitched('rows', 1000, 8192)", "managed('managed', 8 << 20)"]
        .map(|call| client.asks(call))
}

const GIVEN: [&str; 3] = ["0", "(0, 1024)", "0"];
/// The answer of a process whose memory within the limit is not managed, and whose memory beyond
/// the limit is managed.
const ARE_MANAGED: (&str, &str) =
    ("[is_managed(name) for name in ('whole', 'beyond', 'rows', 'managed')]", "[0, 1, 1, 1]");
const KEEP_BYTES: (&str, &str) = (
    "keeps('beyond', 32 << 20), keeps('rows', 1024 * 8192), keeps('managed', 8 << 20)",
    "(True, True, True)",
);
/// Memory of pools stays within the limit.
const POOLED: (&str, &str) = ("cuda.cuMemAllocAsync(byref(c_uint64()), c_size_t(32 << 20), stream)", "2");

#[track_caller]
fn assert_answers(client: &mut Calls, calls: &[(&str, &str)]) {
    for (call, answer) in calls {
        assert_eq!(client.asks(call), *answer, "{call}");
    }
}

#[test]
fn memory_beyond_the_limit_is_like_any_other_but_for_what_is_documented() {
    const ALL_SMALL: &str = "[0, 0, 0, 0, 0, 0, 0, 0, 0, 0]";
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    let mut client = caller(&host, &[]);
    assert_eq!(ask_beyond(&mut client), GIVEN);
    let calls = [
        ARE_MANAGED,
        KEEP_BYTES,
        ("[linear(i, 1000 * (i + 1)) for i in range(10)]", ALL_SMALL),
        POOLED,
        ("physical('physical', 2 << 20)", "2"),
        ("cuda.cuArrayCreate_v2(byref(c_void_p()), struct.pack('QQII', 1024, 1024, FLOAT, 1))", "2"),
        ("cuda.cuIpcGetMemHandle(ctypes.create_string_buffer(64), kept['beyond']) == 0", "False"),
        ("info()", "(0, 67108864)"),
        // These are CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and _INVALIDATED, the same codes as for
        // memory within the limit.
        ("[allocate_in_capture(mode) for mode in range(3)]", "[(900, 901), (900, 901), (0, 0)]"),
        // A free in a forked child does not touch the parent's memory.
        ("forked(lambda: cuda.cuMemFree_v2(kept['beyond']) == 0)", "0"),
        ("cuda.cuMemFree_v2(kept['rows']), cuda.cuMemFreeAsync(kept['beyond'], stream)", "(0, 0)"),
        ("cuda.cuMemFree_v2(kept['beyond'])", "1"),
        ("[cuda.cuMemFree_v2(kept[i]) for i in range(0, 10, 2)]", "[0, 0, 0, 0, 0]"),
        ("[cuda.cuMemFreeAsync_ptsz(kept[i], None) for i in range(1, 10, 2)]", "[0, 0, 0, 0, 0]"),
        ("cuda.cuMemFree_v2(kept['managed'])", "0"),
        // Memory beyond the limit ends with its context.
        ("linear('beyond', 64 << 20), cuda.cuCtxDestroy_v2(context()), retain()", "(0, 0, 0)"),
        ("linear('whole', 64 << 20), linear('beyond', 64 << 20)", "(0, 0)"),
        ("cuda.cuDevicePrimaryCtxReset_v2(0), retain(), linear('whole', 64 << 20)", "(0, 0, 0)"),
    ];
    assert_answers(&mut client, &calls);
    // The meter thread reports the oversubscribed bytes, and the ledger shows the memory within the
    // limit.
    host.await_ps(|ps| {
        let account = ps.tenant("t");
        (account.memory_bytes, account.oversubscribed_bytes) == (64 * MIB, 0)
    });
    client.0.process.finish().success();
}

#[test]
fn memory_beyond_the_limit_is_refused_with_the_reason_where_managed_memory_does_not_move() {
    let (host, _daemon) =
        Host::new().simgpu("context_overhead_bytes = 0\nmanaged_memory_migrates = false\n").with_daemon();
    let mut client = caller(&host, &[]);
    assert_eq!(ask_beyond(&mut client), ["2", "(2, 0)", "2"]);
    let finished = client.0.process.finish().success();
    assert_eq!(finished.stderr.matches("concurrentManagedAccess").count(), 1, "{}", finished.stderr);
}

#[test]
fn without_a_daemon_it_is_the_same() {
    let host = Host::of_one_gib();
    let alone = |program: &Path, limit: &str| {
        let mut command = host.alone(program);
        command.env("DEEPRES_MEMORY", limit).env("DEEPRES_OVERSUBSCRIBE", "managed");
        command
    };
    let mut client = Calls::run(&host, alone("python3".as_ref(), "64MiB"), "must(start())");
    assert_eq!(ask_beyond(&mut client), GIVEN);
    assert_answers(&mut client, &[ARE_MANAGED, KEEP_BYTES, POOLED]);
    client.0.process.finish().success();
    let mut command = alone(&c_client("swap"), "256MiB");
    command.args([(512 * MIB).to_string(), "2000".to_owned()]);
    let client = host.start(command, "holding");
    // The tenant is alone, and all of its memory fits.
    await_managed(&host, |managed| managed == [256 * MIB]);
    assert_unchanged_within(client, COMMAND_LIMIT);
}

#[test]
fn races_of_threads_and_processes_and_a_kill_leave_nothing_on_the_account_or_the_gpu() {
    const OPERATIONS: u64 = 20_000;
    const LIMIT: u64 = 64 * MIB;
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    let log = Log::create(&host.path().join("log"), OPERATIONS).expect("a folder of our own");
    let racer = |number: u32| {
        let mut command = host.preloaded(c_client("contend"));
        command.arg(log.path()).args([OPERATIONS.to_string(), number.to_string()]).arg("4");
        command.env("DEEPRES_TENANT", "race").env("DEEPRES_MEMORY", LIMIT.to_string());
        command.env("DEEPRES_OVERSUBSCRIBE", "managed");
        host.spawn(command)
    };
    let (mut first, mut second) = (racer(0), racer(1));
    eventually("the race goes on", || log.begun().expect("the log is there") >= OPERATIONS / 2);
    second.kill();
    let mut third = racer(2);
    for racer in [&mut first, &mut third] {
        racer.await_exactly("done");
    }
    let (truth, account) = (host.truth().gpus[0], host.ps().tenant("race").clone());
    // Managed memory within the limit counts wherever its pages are.
    let managed = host.status()["tenants"][0]["gpus"][0]["memory_by_kind"]["managed"].as_u64();
    let held_bytes = account.memory_bytes - managed.unwrap_or(0);
    assert_eq!(held_bytes, truth.memory_used_bytes, "account and GPU agree");
    assert!(truth.memory_peak_bytes <= LIMIT, "within the limit: {}", truth.memory_peak_bytes);
    assert!(account.oversubscribed_bytes > 0, "it went beyond the limit: {account:?}");
    for mut racer in [first, third] {
        racer.say("");
        racer.await_exactly("freed");
        racer.finish().success();
    }
    let (truth, account) = (host.truth().gpus[0], host.ps().tenant("race").clone());
    assert_eq!((account.memory_bytes, account.oversubscribed_bytes), (0, 0));
    assert_eq!((truth.memory_used_bytes, truth.managed_bytes), (0, 0));
}

#[test]
fn memory_beyond_the_limit_stays_where_it_is_beside_a_tenant_that_takes_no_room() {
    const LOOKS: u32 = 40;
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    let _first = holding(&host, "first", "320MiB", 640 * MIB, "100000");
    await_managed(&host, |managed| managed == [320 * MIB]);
    // With the second tenant the GPU is almost full. Less memory is free than the first tenant has
    // there beyond its limit.
    let _plain = swap::holding(&host, "plain", &[], 320 * MIB, "100000");
    let (begun, mut looks) = (Instant::now(), 0);
    while looks < LOOKS {
        looks = if managed(&host)[0] == 320 * MIB { looks + 1 } else { 0 };
        assert!(begun.elapsed() < MOVE_LIMIT, "it comes and goes");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Starts a client that makes calls on order, with a limit of 64 MiB and managed memory beyond it.
fn caller(host: &Host, variables: &[(&str, &str)]) -> Calls {
    let own = [("DEEPRES_TENANT", "t"), ("DEEPRES_OVERSUBSCRIBE", "managed"), ("DEEPRES_MEMORY", "64MiB")];
    Calls::start(host, &[&own, variables].concat())
}

fn await_answer(client: &mut Calls, what: &str, answer: &str, expression: &str) {
    eventually_within(what, MOVE_LIMIT, || client.asks(expression) == answer);
}

#[test]
fn memory_that_the_driver_does_not_bring_to_the_gpu_belongs_there_no_longer() {
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    // The meter thread brings the first part to the GPU, and advises the driver that all of the
    // memory belongs there. The prefetch of the next part fails.
    let mut client = caller(&host, &[("SIMGPU_FAULTS", "cuMemPrefetchAsync_v2:2:1")]);
    client.does("linear('limit', 64 << 20)");
    client.does("linear('beyond', 64 << 20)");
    await_answer(&mut client, "a part is brought", "0", "place('beyond', 32 << 20, PREFETCHED)");
    await_answer(&mut client, "the advice is taken back", "-2", "place('beyond', 64 << 20, PREFERRED)");
}

#[test]
fn the_host_promises_memory_to_all_processes_of_a_tenant_together() {
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    // The interposer leaves a sixteenth of the 16 GiB free, so 512 MiB are left to promise.
    let meminfo = host.path().join("meminfo");
    let available_kib = (1024 + 512) * 1024;
    fs::write(&meminfo, format!("MemTotal: {} kB\nMemAvailable: {available_kib} kB\n", 16 << 20))
        .expect("the host's own folder");
    let libraries = [artefacts().library.clone(), c_library("fake_meminfo")];
    let preloaded = libraries.map(|library| library.display().to_string()).join(":");
    let variables = [("LD_PRELOAD", preloaded.as_str()), ("MEMINFO", meminfo.to_str().expect("plain text"))];
    let (mut first, mut second) = (caller(&host, &variables), caller(&host, &variables));
    first.does("linear('limit', 64 << 20)");
    first.does("linear('beyond', 384 << 20)");
    assert_eq!(second.asks("linear('beyond', 384 << 20)"), "2");
    second.does("linear('beyond', 128 << 20)");
    assert_eq!(second.asks("linear('more', 2 << 20)"), "2");
    first.does("cuda.cuMemFree_v2(kept['beyond'])");
    second.does("linear('more', 384 << 20)");
    assert_eq!(first.asks("linear('beyond', 2 << 20)"), "2");
    // Other processes can have the memory that was promised to a dead process.
    second.0.process.kill();
    await_answer(&mut first, "the dead one's is given back", "0", "linear('beyond', 512 << 20)");
}
