//! Copies by the record of the simulated GPU. The time of charged copies counts toward the share.
//! Sets and copies within a device run on the SMs, and are always charged.

use deepres_e2e::calls::{Calls, WORK};
use deepres_e2e::prelude::*;
use simgpu_engine::truth::{ProcessGpu, Snapshot};

/// Kernels by name. A copy of 1 MB takes 1 ms, much longer than the host takes to move 1 MB.
const SIMGPU_TOML: &str = r#"
host_to_device_bytes_per_us = 1000
device_to_device_bytes_per_us = 1000
kernel = [
    { name = "k80", ns = 79000, sm_ppm = 100000 },
    { name = "k1000", ns = 999000 },
    { name = "k4000", ns = 3999000 },
]
"#;
/// Copies of 2 and 4 ms.
const COPY_2_MS: &str = "to:2000000";
const COPY_4_MS: &str = "to:4000000";
const MEASURED: Duration = Duration::from_secs(3);
/// Time after which kernels and copies are known and the burst at the beginning is over.
const SETTLED: Duration = Duration::from_millis(1200);
/// Greatest allowed error of the meter, in percentage points of the time.
const METER_POINTS: f64 = 1.0;
/// Greatest allowed error of a share, in percentage points.
const SHARE_POINTS: f64 = 3.0;
const CHARGED: &str = "--charge-copies";

fn host() -> Host {
    Host::measuring().simgpu(SIMGPU_TOML)
}

fn start(host: &Host, name: &str, options: &[&str], steps: &[&str]) -> Process {
    let options = [&["--name", name], options].concat();
    host.start(host.run(&options, c_client_by("pace", Way::ProcAddress), steps), "ready")
}

/// Parts of the time, percent.
#[derive(Debug, Clone, Copy)]
struct Had {
    kernels: f64,
    copies: f64,
    /// Time of kernels or copies, with overlapping time counted once.
    either: f64,
}

/// Returns the time of a process on the first GPU by the record, and the time of the record, ns.
fn at(truth: &Snapshot, pid: u32) -> (ProcessGpu, u64) {
    let process = truth.processes.iter().find(|process| process.pid == pid).expect("it is attached");
    (process.gpus[0], truth.at_ns)
}

/// Returns the parts of the time that a process has between two moments of the record.
fn between((first, began_ns): (ProcessGpu, u64), (last, ended_ns): (ProcessGpu, u64)) -> Had {
    let percent = |ns: u64| ns as f64 * 100.0 / (ended_ns - began_ns) as f64;
    Had {
        kernels: percent(last.kernel_busy_ns - first.kernel_busy_ns),
        copies: percent(last.copy_busy_ns - first.copy_busy_ns),
        either: percent(last.busy_ns - first.busy_ns),
    }
}

/// Returns the parts of the time that these processes have, by the record.
fn had<const N: usize>(host: &Host, pids: [u32; N]) -> [Had; N] {
    let before = host.truth();
    thread::sleep(MEASURED);
    let after = host.truth();
    pids.map(|pid| between(at(&before, pid), at(&after, pid)))
}

/// Compares the time that a tenant is charged with the record of the tenant's only process. The
/// record has the time of its kernels, and of its copies if these are charged. Returns the parts of
/// the time.
fn assert_charged(host: &Host, name: &str, copies_are_charged: bool) -> Had {
    let pid = pid_of(host, name);
    let ran_ns = |times: &ProcessGpu| if copies_are_charged { times.busy_ns } else { times.kernel_busy_ns };
    let look = || {
        let look = || (host.ps().tenant(name).gpu_ns, at(&host.truth(), pid));
        caught_up(look, |(charged_ns, (times, _))| ran_ns(times).cast_signed() - charged_ns.cast_signed())
    };
    let (charged_before_ns, before) = look();
    thread::sleep(MEASURED);
    let (charged_after_ns, after) = look();
    let had = between(before, after);
    let charged = (charged_after_ns - charged_before_ns) as f64 * 100.0 / (after.1 - before.1) as f64;
    println!("{name}: {had:.2?} % of the time, charged {charged:.2} %");
    let ran = if copies_are_charged { had.either } else { had.kernels };
    assert!((charged - ran).abs() <= METER_POINTS, "charged {charged:.2} %, had {had:.2?}");
    had
}

/// Returns the process of a tenant that has one process.
fn pid_of(host: &Host, name: &str) -> u32 {
    host.ps().tenant(name).sessions[0].pid
}

/// Runs the pattern alone, once without and once with charged copies.
fn assert_charged_alone(steps: &[&str]) {
    for (options, is_charged) in [(&[][..], false), (&[CHARGED], true)] {
        let (host, _daemon) = host().with_daemon();
        let _client = start(&host, "copies", options, steps);
        thread::sleep(SETTLED);
        let had = assert_charged(&host, "copies", is_charged);
        assert!(had.copies > 5.0 && had.kernels > 5.0, "{had:?}");
    }
}

/// Functions that make batches of three copies of 1 MB each: to the device, within the device, and
/// to the device again. `boxes` makes the same batches by descriptions of boxes.
const BATCHES: &str = r#"
SIZE = 1_000_000
host, device = c_void_p(), c_uint64()
must(cuda.cuMemHostAlloc(byref(host), c_size_t(2 * SIZE), 0))
must(cuda.cuMemAlloc_v2(byref(device), c_size_t(4 * SIZE)))
targets = (c_uint64 * 3)(*(device.value + place * SIZE for place in range(3)))
sources = (c_uint64 * 3)(host.value, device.value + 3 * SIZE, host.value + SIZE)
sizes, firsts = (c_size_t * 3)(SIZE, SIZE, SIZE), (c_size_t * 1)(0)
attributes = (ctypes.c_uint32 * 6)(1)
def batches(count):
    for _ in range(count):
        must(cuda.cuMemcpyBatchAsync_v2(targets, sources, sizes, c_size_t(3), attributes, firsts, c_size_t(1), stream))
    return cuda.cuStreamSynchronize(stream)
def operand(address): return [1, address, SIZE, 1, 0]
def boxes(count):
    words = []
    for target, source in zip(targets, sources): words += operand(source) + operand(target) + [SIZE, 1, 1, 1]
    copies = (c_uint64 * len(words))(*words)
    for _ in range(count):
        must(cuda.cuMemcpy3DBatchAsync_v2(c_size_t(3), copies, c_uint64(0), stream))
    return cuda.cuStreamSynchronize(stream)
"#;

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    #[test]
    #[ignore = "deep: takes long"]
    fn each_copy_of_a_batch_is_gated_and_metered_by_its_kind() {
        const BATCHES_EACH: u64 = 40;
        let (host, _daemon) = host().with_daemon();
        let mut command = host.preloaded("python3");
        command.env("DEEPRES_TENANT", "batches");
        let mut client = Calls::run(&host, command, "start()");
        client.define(WORK);
        client.define(BATCHES);
        let pid = client.pid();
        let done = || host.record(pid).gpus[0];
        for (order, rounds) in [("batches", 1), ("boxes", 2)] {
            client.does(&format!("{order}({BATCHES_EACH})"));
            let batches = rounds * BATCHES_EACH;
            assert_eq!((done().kernels, done().copies), (batches, 2 * batches), "{order}");
            // Only the copies within the device are launches, and only they are charged.
            let account =
                await_value(|| host.account("batches"), |account| account["kernel_launches"] == batches);
            let (charged_ns, ran_ns) = (account["gpu_ns"].as_u64().unwrap_or(0), done().kernel_busy_ns);
            assert!(charged_ns.abs_diff(ran_ns) <= ran_ns / 10, "charged {charged_ns} ns, ran {ran_ns} ns");
        }
        host.call(&["pause", "batches"]).success();
        let before = done();
        client.0.say("batches(1)");
        eventually("the copies to the device pass", || done().copies == before.copies + 2);
        thread::sleep(Duration::from_millis(200));
        assert_eq!(done().kernels, before.kernels, "the copy within the device waits at the gate");
        host.call(&["resume", "batches"]).success();
        assert!(client.0.answer().ends_with(" 0"));
        assert_eq!(done().kernels, before.kernels + 1);
    }

    #[test]
    fn copies_between_kernels_are_charged_where_that_is_asked_for() {
        assert_charged_alone(&["to:100000", "k80x10", "to:400000", "k80", "wait:100"]);
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn long_copies_that_are_waited_for_are_charged_too() {
        assert_charged_alone(&[COPY_4_MS, "sync", "k1000", "sync", "wait:1000"]);
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn copies_beside_kernels_of_the_same_tenant_are_charged_once() {
        assert_charged_alone(&["--streams", "2", "k1000", COPY_2_MS, "k1000", "sync", "wait:500"]);
    }

    #[test]
    fn a_tenant_of_nothing_but_sets_and_copies_within_the_device_has_its_share_beside_kernels() {
        /// Each copy takes 1 ms, or a little more.
        const WORK: &[&str] =
            &["set:1000000", "set:1000000", "within:1000000", "set:1000000", "within:1000000", "sync"];
        let (host, _daemon) = host().with_daemon();
        let _setter = start(&host, "setter", &["--share", "30%"], WORK);
        let _other = start(&host, "other", &["--share", "70%"], &["k1000x5", "sync"]);
        thread::sleep(SETTLED);
        let pids = ["setter", "other"].map(|name| pid_of(&host, name));
        let [setter, other] = had(&host, pids);
        println!("the setter had {setter:.2?} % of the time, the other {other:.2?} %");
        assert_eq!(setter.copies, 0.0, "no copy engine does any of it");
        let part = setter.kernels * 100.0 / (setter.kernels + other.kernels);
        assert!((part - 30.0).abs() <= SHARE_POINTS, "the setter had {part:.2} % of what both had");
        assert!(setter.kernels + other.kernels > 85.0, "{setter:.2?} % and {other:.2?} %");
    }

    #[test]
    fn sets_and_copies_within_the_device_are_charged_without_being_asked_for() {
        let (host, _daemon) = host().with_daemon();
        let _client = start(&host, "sets", &[], &["set:400000", "within:300000", "k80", "wait:500"]);
        thread::sleep(SETTLED);
        let had = assert_charged(&host, "sets", false);
        assert!(had.kernels > 20.0, "{had:.2?}");
    }

    #[test]
    fn a_tenant_whose_copies_are_charged_has_its_share_with_them() {
        let (host, _daemon) = host().with_daemon();
        let _copier = start(&host, "copier", &[CHARGED], &[COPY_4_MS, "k4000"]);
        let _other = start(&host, "other", &[], &["k1000x20", "sync"]);
        thread::sleep(SETTLED);
        let pids = ["copier", "other"].map(|name| pid_of(&host, name));
        let [copier, other] = had(&host, pids);
        println!("the copier had {copier:.2?} % of the time, the other {other:.2?} %");
        assert!((copier.either - other.kernels).abs() <= SHARE_POINTS, "{copier:.2?} % and {other:.2?} %");
        assert!(copier.either > 30.0, "both have work all the time: {copier:.2?} %");
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn an_administrator_says_whether_copies_are_charged_and_every_view_tells_it() {
        let (host, _daemon) = host().config("[caps]\ncharge_copies = true\n").with_daemon();
        let shown = |arguments: &[&str]| host.shows(arguments);
        host.finish(host.run(&["--charge-copies=false"], "true", &[])).refused("copies");
        let _client = start(&host, "copies", &[], &[COPY_2_MS, "k1000", "sync"]);
        thread::sleep(SETTLED);
        let why = shown(&["ps", "-v"]);
        assert!(why.contains("copies     charged by the cap for everybody"), "{why}");
        let explained = shown(&["explain", "copies"]);
        assert!(explained.contains("of the last second, copies included"), "{explained}");
        assert_charged(&host, "copies", true);
        let set = shown(&["set", "copies", "--charge-copies=false"]);
        assert!(!set.contains("copies charged"), "{set}");
        assert_charged(&host, "copies", false);
        let why = shown(&["ps", "-v"]);
        assert!(why.contains("copies     not charged set by an administrator"), "{why}");
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn without_a_daemon_copies_count_toward_the_share_where_the_environment_says_so() {
        for (variables, is_charged) in
            [(&[("DEEPRES_CHARGE_COPIES", "true")][..], true), (&[("DEEPRES_CHARGE_COPIES", "off")], false)]
        {
            let host = host();
            let mut command = host.alone(c_client_by("pace", Way::ProcAddress));
            command.args([COPY_2_MS, "k1000x2"]).env("DEEPRES_SHARE", "30%").envs(variables.iter().copied());
            let client = host.start(command, "ready");
            thread::sleep(SETTLED);
            let [had] = had(&host, [client.pid()]);
            println!("{had:.2?} % of the time");
            let counted = if is_charged { had.either } else { had.kernels };
            assert!((counted - 30.0).abs() <= METER_POINTS, "{had:.2?} % of the time");
        }
    }
}
