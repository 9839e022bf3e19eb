//! The daemon lists processes that use the GPU without a session, and no others. A real character
//! device stands in for the driver's devices.
//!
//! The tests need root and a daemon with eBPF programs (`cargo xtask ebpf`).

use std::collections::BTreeSet;
use std::process::Command;

use deepres_e2e::containers::{Containers, OUTER_ROOT, Users};
use deepres_e2e::prelude::*;
use deepres_e2e::probes::{self, CONFIG, DEVICE, NUMBERS, open_node};
use rustix::process::{Pid, kill_process};

/// The stand-in device as the driver's control device, for `deepres trace` and in a configuration.
const CONTROL: &str = "nvidia=10:256";
const CONTROL_CONFIG: &str = "[probes]\ndevices = [\"nvidia=10:256\"]\n";
const HOLDING: &str = "[probes]\ndevices = [\"nvidia-uvm=10:256\"]\nunmanaged = \"hold\"\n";
/// Time within which a process must be found, including the delay of polling, ns.
const FOUND_LIMIT_NS: u64 = 1_000_000_000;
/// Time after which the daemon has asked NVML once more, although it asks rarely.
const NVML_PAUSE: Duration = Duration::from_secs(7);
/// Time within which the daemon repeats a failed attempt.
const RETRY_LIMIT: Duration = Duration::from_secs(45);
/// The daemon reports no unmanaged process for two seconds after its start.
const QUIET: Duration = Duration::from_millis(2_200);

/// Beginning of all Python clients here.
const PYTHON: &str = r#"
import ctypes, fcntl, os, resource, struct, sys, threading, time
def ask(file):
    try: fcntl.ioctl(file, 0xc020462a, bytearray(32))
    except OSError: pass
def now_ns(): return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
def cu_init(): return ctypes.CDLL("libcuda.so.1").cuInit(0)
"#;

/// Python source of a client. The client opens the device, makes one ioctl, prints the time, and
/// waits for the end of its input. With `silent` it makes no ioctl.
const USER: &str = r#"
file = os.open(sys.argv[1], os.O_RDWR)
opened_ns = now_ns()
if sys.argv[2:] != ["silent"]: ask(file)
print('{"opened_ns": %d}' % opened_ns, flush=True)
while sys.stdin.buffer.read(4096): pass
"#;

/// Python source of a client. The client opens the device, makes ioctls all the time, and prints
/// that it does. With a further argument, the client initialises the driver first.
const ASKING: &str = r#"
if sys.argv[2:]: cu_init()
file = os.open(sys.argv[1], os.O_RDWR)
print('{}', flush=True)
while True:
    ask(file)
    time.sleep(0.02)
"#;

fn code(script: &str) -> String {
    format!("{PYTHON}{script}")
}

/// Returns a command that runs a Python client on the device.
fn python(host: &Host, script: &str, options: &[&str]) -> Command {
    let mut command = host.command("python3");
    command.args(["-c", &code(script), DEVICE]).args(options);
    command
}

/// Returns a command that runs a Python client with these options of `deepres run`.
fn tenant(host: &Host, run: &[&str], script: &str, options: &[&str]) -> Command {
    host.run(run, "python3", &[&["-c", &code(script), DEVICE], options].concat())
}

/// Starts [`USER`]. Returns the process, and the time at which it opened the device, ns.
fn user_since(host: &Host, options: &[&str]) -> (Process, u64) {
    let (process, said) = host.told(python(host, USER, options));
    (process, said["opened_ns"].as_u64().unwrap())
}

fn user(host: &Host, options: &[&str]) -> Process {
    user_since(host, options).0
}

fn unmanaged(host: &Host) -> Vec<Value> {
    let attached = |status: &Value| {
        let state = &status["probes"]["state"];
        assert!(state == "attached" || state == "starting", "{}", status["probes"]);
        state == "attached"
    };
    await_value(|| host.status(), attached)["unmanaged"].as_array().expect("a list").clone()
}

fn find(host: &Host, pid: u32) -> Option<Value> {
    unmanaged(host).into_iter().find(|user| user["pid"] == pid)
}

/// Waits until the daemon lists a process that satisfies `wanted`, and returns the process's entry.
#[track_caller]
fn await_listed(host: &Host, wanted: impl Fn(&Value) -> bool) -> Value {
    let listed = await_value(|| unmanaged(host), |users| users.iter().any(&wanted));
    listed.into_iter().find(|user| wanted(user)).expect("it was there")
}

#[track_caller]
fn await_found(host: &Host, pid: u32) -> Value {
    await_listed(host, |user| user["pid"] == pid)
}

#[track_caller]
fn await_state(host: &Host, pid: u32, state: &str) -> Value {
    await_listed(host, |user| user["pid"] == pid && user["state"] == state)
}

#[track_caller]
fn await_gone(host: &Host, pid: u32) {
    await_value(|| find(host, pid), Option::is_none);
}

#[track_caller]
fn assert_soon(found: &Value, since_ns: u64) {
    let took_ns = found["reported_ns"].as_u64().unwrap().saturating_sub(since_ns);
    assert!(took_ns <= FOUND_LIMIT_NS, "found after {took_ns} ns: {found}");
}

#[track_caller]
fn assert_found_soon(host: &Host, (process, opened_ns): &(Process, u64)) {
    assert_soon(&await_found(host, process.pid()), *opened_ns);
}

/// Starts a process that the daemon must list, as proof that the list works. Then ends the daemon,
/// and asserts that its log names no other process. Returns the process's entry.
#[track_caller]
fn assert_nobody_else_is_listed(host: &Host, daemon: Process) -> Value {
    let stranger = user(host, &[]);
    let found = await_found(host, stranger.pid());
    assert_listed(daemon, 1);
    found
}

/// Ends the daemon, and asserts how many unmanaged processes its log names.
#[track_caller]
fn assert_listed(mut daemon: Process, count: usize) {
    let log = daemon.terminate().stderr;
    assert_eq!(log.matches("an unmanaged process uses").count(), count, "{log}");
}

#[test]
fn a_process_that_lost_the_library_is_listed_with_the_tenant_that_started_it() {
    let Some(host) = probes::host(CONFIG) else { return };
    let _daemon = host.daemon();
    unmanaged(&host);
    let bare = ["-u", "LD_PRELOAD", "python3", "-c", &code(USER), DEVICE];
    let (mut job, _) = host.told(host.run(&["--name", "lost"], "env", &bare));
    let listed = await_listed(&host, |user| user["started_by"] == "lost");
    assert!(host.shows(&["ps"]).contains("(of lost)"));
    let told = format!("deepres: process {} (", listed["pid"]);
    job.await_error_line(|line| line.starts_with(&told) && line.contains("lost the preloaded library"));
    host.shows(&["ps"]);
    assert_eq!(job.stderr().matches(&told).count(), 1, "it says so once: {}", job.stderr());
}

#[test]
fn a_process_that_uses_the_gpu_on_its_own_is_listed_until_it_ends() {
    let Some(host) = probes::host(&format!("{CONFIG}unmanaged = \"warn\"\n")) else { return };
    let early = user(&host, &["silent"]);
    let mut daemon = host.daemon();
    // If a process makes its ioctl before the daemon attaches the programs, the daemon finds the
    // process by its open descriptor.
    unmanaged(&host);
    let late = user(&host, &[]);

    let found = await_found(&host, late.pid());
    assert_eq!(found["kind"], "compute");
    assert_eq!(found["seen_by"][0], "ioctl");
    assert_eq!(found["uid"], 0);
    assert!(found["command"].as_str().unwrap().contains("python3 -c"), "{found}");
    let status = host.status();
    let activity = status["driver_activity"].as_array().expect("a list");
    let activity = activity.iter().find(|activity| activity["pid"] == late.pid()).expect("it is counted");
    let command = &activity["commands"][0];
    assert_eq!(
        (&command["calls"], &command["errors"], &command["device"]),
        (&1.into(), &1.into(), &"10:256".into())
    );
    let buckets = command["buckets"].as_array().expect("a list").iter().filter_map(Value::as_u64);
    assert_eq!(buckets.sum::<u64>(), 1, "{command}");
    let shown = host.shows(&["ps", "-v"]);
    assert!(shown.contains("P99") && shown.contains("0xc020462a"), "{shown}");
    let silent = await_found(&host, early.pid());
    assert_eq!(silent["seen_by"][0], "descriptor", "it was there before the daemon and asks nothing");
    let shown = host.shows(&["ps"]);
    assert!(shown.contains("UNMANAGED") && shown.contains(&late.pid().to_string()), "{shown}");
    daemon
        .await_error_line(|line| line.contains("WARN") && line.contains("an unmanaged process uses the GPU"));

    let pid = late.pid();
    late.finish().success();
    await_gone(&host, pid);
    early.finish().success();
}

#[test]
fn the_daemon_adds_up_the_driver_calls_of_a_tenants_processes() {
    const TENANT: &str = r#"
file = os.open(sys.argv[1], os.O_RDWR)
assert cu_init() == 0
for _ in range(5):
    ask(file)
print("{}", flush=True)
sys.stdin.read()
"#;
    let Some((host, _daemon)) = probes::host(CONFIG).map(Host::with_daemon) else { return };
    // The programs do not count calls before they are attached.
    unmanaged(&host);
    let start = |run: &[&str]| host.told(tenant(&host, run, TENANT, &[])).0;
    let tenants =
        [start(&["--name", "two"]), start(&["--name", "two"]), start(&["--name", "one", "--no-preload"])];
    let driver = |name: &str| host.tenant(name)["driver"].clone();
    for (name, calls) in [("two", 10), ("one", 5)] {
        await_value(|| driver(name), |sums| sums["calls"] == calls && sums["errors"] == calls);
    }
    let shown = host.shows(&["ps", "-v"]);
    let rows = shown.lines().skip_while(|line| !line.starts_with("TENANT IN DRIVER"));
    let rows: Vec<Vec<&str>> = rows.take(3).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0][3..5], ["CALLS", "ERRORS"], "{shown}");
    assert_eq!((&rows[1][..3], &rows[2][..3]), (&["one", "5", "5"][..], &["two", "10", "10"][..]), "{shown}");
    // The count belongs to the tenant's state, not only to the state of its processes.
    let [first, ..] = tenants;
    let pid = first.pid();
    first.finish().success();
    let is_over = |status: &Value| {
        status["driver_activity"].as_array().expect("a list").iter().all(|activity| activity["pid"] != pid)
    };
    await_value(|| host.status(), is_over);
    assert_eq!(driver("two")["calls"], 10);
}

/// Python source of a client like [`USER`]. The client first opens a million more descriptors, or
/// as many as the machine allows. The device comes last.
const CROWD: &str = r#"
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
try: resource.setrlimit(resource.RLIMIT_NOFILE, (1_000_100, 1_000_100))
except ValueError: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
count = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 100
assert count > 8192, "more than are looked at at once"
for _ in range(count): os.dup(0)
file = os.open(sys.argv[1], os.O_RDWR)
opened_ns = now_ns()
print('{"opened_ns": %d}' % opened_ns, flush=True)
if sys.argv[2:] == ["silent"]: sys.stdin.readline()
else:
    while True:
        ask(file)
        time.sleep(0.05)
"#;

/// Returns the state of a process. `T` means stopped.
fn state(pid: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().chars().next().unwrap()
}

/// Python source of a client that holds the lock of its memory map until the server of its file
/// system is killed. If the daemon reads the client's command line, the read therefore blocks. The
/// client maps a file that is not cached. The kernel then waits for earlier writes, which this file
/// system never finishes. The last line of the output is the server's process id.
const STUCK: &str = r#"
libc = ctypes.CDLL(None, use_errno=True)
held = os.open(sys.argv[1], os.O_RDWR)
ask(held)
target = sys.argv[2]
open(target, "w").close()
# Mounts of its own, which end with it.
assert libc.unshare(0x20000) == 0 and libc.mount(None, b"/", None, 0x44000, None) == 0
device = os.open("/dev/fuse", os.O_RDWR)
options = b"fd=%d,rootmode=100644,user_id=0,group_id=0" % device
assert libc.mount(b"stuck", target.encode(), b"fuse", 0, options) == 0, ctypes.get_errno()
server = os.fork()
if server == 0:
    os.close(held)
    attributes = struct.pack("<6Q10I", 1, 4096, 8, 0, 0, 0, 0, 0, 0, 0o100644, 1, 0, 0, 0, 4096, 0)
    INIT, GETATTR, OPEN, READ, WRITE = 26, 3, 14, 15, 16
    KEEPS_CACHE_AND_BYPASSES_IT = 3
    flags = 0
    while True:
        _, operation, unique = struct.unpack_from("<IIQ", os.read(device, 1 << 18))
        error, body = 0, b""
        if operation == INIT: body = struct.pack("<4I2H2I2HI7I", 7, 31, 0, 0, 1, 1, 4096, 1, 1, 0, 0, *[0] * 7)
        elif operation == GETATTR: body = struct.pack("<QII", 1000, 0, 0) + attributes
        elif operation == OPEN:
            body = struct.pack("<QII", 0, flags, 0)
            flags = KEEPS_CACHE_AND_BYPASSES_IT
        elif operation == READ: body = bytes(4096)
        elif operation == WRITE: continue
        else: error = -38
        os.write(device, struct.pack("<IiQ", 16 + len(body), error, unique) + body)
os.close(device)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
first = os.open(target, os.O_RDWR)
os.fstat(first)
ctypes.memset(libc.mmap(None, 4096, 3, 1, first, 0), 7, 4096)
second = os.open(target, os.O_RDWR)
print('{"server": %d}' % server, flush=True)
libc.mmap(None, 4096, 1, 2, second, 0)
"#;

/// A process that drop kills, because other processes wait for it.
struct Ends(Pid);

impl Drop for Ends {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = kill_process(self.0, Signal::KILL);
    }
}

/// Python source of a client like [`USER`], which follows the lines of its input: `open` opens the
/// device, and any other line closes it.
const OBEDIENT: &str = r#"
file = None
for number, line in enumerate(sys.stdin):
    opened_ns = now_ns()
    if line == "open\n":
        file = os.open(sys.argv[1], os.O_RDWR)
        ask(file)
    else: os.close(file)
    print('{"number": %d, "opened_ns": %d}' % (number, opened_ns), flush=True)
"#;

/// Starts [`OBEDIENT`].
fn obedient(host: &Host) -> Orders {
    let process = host.spawn(python(host, OBEDIENT, &[]));
    Orders::new(process, 0, |number| format!("{{\"number\": {number},"))
}

/// Gives [`OBEDIENT`] an order. Returns the time of the action, ns.
fn tell(user: &mut Orders, order: &str) -> u64 {
    user.ask_json(order)["opened_ns"].as_u64().unwrap()
}

/// Waits until the eBPF programs are in this state, with this part of a reason.
#[track_caller]
fn await_probes(host: &Host, within: Duration, state: &str, detail: &str) {
    let look = || {
        let shown = host.call(&["ps", "--json"]);
        serde_json::from_str::<Value>(&shown.stdout).map_or(Value::Null, |status| status["probes"].clone())
    };
    let is_wanted = |probes: &Value| {
        probes["state"] == state && probes["detail"].as_str().unwrap_or_default().contains(detail)
    };
    await_value_within(look, is_wanted, within);
}

#[test]
fn programs_that_could_not_be_attached_are_tried_again() {
    const TYPES: &str = "/sys/kernel/btf/vmlinux";
    let Some(host) = probes::host(CONFIG) else { return };
    let empty = host.path().join("types");
    std::fs::write(&empty, "").unwrap();
    // The daemon has its own mounts, in which the kernel's types cannot be read at first.
    let deepres = host.deepres(&["daemon", "--config"]);
    let mut command = host.command("unshare");
    command.args(["--mount", "sh", "-c", "mount --bind \"$0\" \"$1\" && shift && exec \"$@\""]);
    command.arg(&empty).arg(TYPES).arg(deepres.get_program()).args(deepres.get_args());
    command.arg(host.path().join("deepres.toml"));
    let daemon = host.spawn(command);
    await_probes(&host, RETRY_LIMIT, "unavailable", "");
    let mut mend = host.command("nsenter");
    mend.args(["--mount", "--target", &daemon.pid().to_string(), "umount", TYPES]);
    host.finish(mend).success();
    await_probes(&host, RETRY_LIMIT, "attached", "");
}

/// Returns a Python program that makes this many ioctls of the device.
fn calls(count: u32) -> String {
    code(&format!("file = os.open('{DEVICE}', os.O_RDWR)\nfor _ in range({count}): ask(file)\n"))
}

/// Returns the processes of a trace's events.
fn pids(events: &[Value]) -> BTreeSet<u64> {
    events.iter().filter_map(|event| event["pid"].as_u64()).collect()
}

#[test]
fn a_trace_tells_the_calls_of_a_program_and_what_it_starts() {
    let Some(host) = probes::host("") else { return };
    let call = calls(3);
    let trace = |options: &[&str]| {
        let mut command = host.deepres(&["trace", "--device", CONTROL]);
        command.args(options).args(["--", "sh", "-c", "python3 -c \"$0\"; python3 -c \"$0\"; exit 7", &call]);
        host.finish(command)
    };
    let told = trace(&["--json"]);
    assert_eq!(told.code, 7, "the program's own status; {}", told.stderr);
    let events: Vec<Value> = told.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.len(), 6, "{}", told.stdout);
    for event in &events {
        let words = ["name", "error", "device"].map(|key| event[key].as_str().unwrap());
        assert_eq!(words, ["NV_ESC_RM_CONTROL", "ENOTTY", "10:256"]);
    }
    assert_eq!(pids(&events).len(), 2, "both children");

    let lines = trace(&[]).stdout;
    assert_eq!(lines.lines().count(), 7, "a head and a line for each call:\n{lines}");
    assert!(!lines.contains('\x1b'), "colours are for terminals");
    let summary = trace(&["--summary"]).stdout;
    let line = summary.lines().nth(1).unwrap();
    assert!(line.contains("NV_ESC_RM_CONTROL") && line.split_whitespace().nth(1) == Some("6"), "{summary}");
    assert!(summary.contains("6 calls, 0 lost"), "{summary}");

    let own = std::process::id();
    let (told, tids) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let lives = thread::spawn(move || {
        told.send(rustix::thread::gettid().as_raw_pid().to_string()).expect("the test waits");
        ended.recv().expect_err("nothing is sent");
    });
    let tid = tids.recv().expect("the thread tells its number");
    host.call(&["trace", "--device", CONTROL, "-p", &tid])
        .refused(&format!("is a thread, and a trace is of whole processes; give -p {own}"));
    drop(end);
    lives.join().expect("the thread ends");
    host.call(&["trace"]).refused("no process to trace");
}

#[test]
fn a_trace_that_cannot_be_written_says_so_and_has_the_colours_that_its_terminals_user_wants() {
    let Some(host) = probes::host("") else { return };
    let call = calls(1);
    // The shell's `$0` and `$@` are the trace command.
    let traced = |shell: &str| {
        let mut command = host.command("sh");
        command.args(["-c", shell]).arg(&artefacts().deepres);
        command.args(["trace", "--device", CONTROL, "--", "python3", "-c", &call]);
        command
    };
    let full = host.finish(traced("exec \"$0\" \"$@\" >/dev/full"));
    assert_eq!(full.code, 1, "the program itself succeeded");
    let said = full.stderr;
    assert!(said.contains("cannot write the trace") && said.contains("No space left"), "{said}");

    let on_terminal = |wish: &str| {
        let mut command = traced(
            "export CALL=\"$7\" DEEPRES=\"$0\"; exec script -qc '\"$DEEPRES\" trace --device nvidia=10:256 -- python3 -c \"$CALL\"' /dev/null",
        );
        command.env("NO_COLOR", wish);
        host.finish(command).success().stdout
    };
    let coloured = on_terminal("");
    assert!(coloured.contains("\x1b[31mENOTTY"), "{coloured}");
    let plain = on_terminal("1");
    assert!(plain.contains("ENOTTY") && !plain.contains('\x1b'), "{plain}");
}

/// Starts a trace, stops it after some events, and returns the events.
fn traced(host: &Host, options: &[&str]) -> Vec<Value> {
    let mut trace = host.spawn(host.deepres(&[&["trace", "--json", "--device", CONTROL], options].concat()));
    await_value(|| trace.stdout(), |told| told.lines().count() >= 3);
    let ended = trace.terminate();
    let lines = ended.stdout.lines().filter(|line| line.ends_with('}'));
    lines.map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

/// Perl source of a client. The client makes five ioctls and prints when it opened the device.
/// After a signal, the client goes on with ioctls. The program is in Perl because the containers
/// have Perl.
const CONTAINED: &str = r#"
$SIG{USR1} = sub { $goes_on = 1 };
$| = 1;
open($device, "+<", $ARGV[0]) or die "$!";
$now = "\0" x 16;
syscall(228, 1, $now);
($s, $ns) = unpack("qq", $now);
$argument = "\0" x 32;
ioctl($device, 0xc020462a, $argument) for 1 .. 5;
print "{\"opened_ns\": ", $s * 1000000000 + $ns, "}\n";
sleep 1 until $goes_on;
while (1) { ioctl($device, 0xc020462a, $argument); select(undef, undef, undef, 0.02) }
"#;

/// Python source of a client that maps memory of a device, and closes the descriptor.
const MAPPER: &str = r#"
file = os.open(sys.argv[1], os.O_RDWR)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
READ, PRIVATE = 1, 2
assert libc.mmap(None, 4096, READ, PRIVATE, file, 0) not in (None, ctypes.c_void_p(-1).value)
os.close(file)
print("{}", flush=True)
while sys.stdin.buffer.read(4096): pass
"#;

#[test]
fn a_trace_that_is_told_to_end_ends_its_program_and_still_adds_up() {
    let Some(host) = probes::host("") else { return };
    // The program stops itself (SIGSTOP), as `hold` stops a process.
    let stops = format!("{}print('{{}}', flush=True)\nos.kill(os.getpid(), 19)\ntime.sleep(60)\n", calls(3));
    let options = ["trace", "--json", "--summary", "--device", CONTROL, "--", "python3", "-c", &stops];
    let (mut trace, _) = host.told(host.deepres(&options));
    let ended = trace.terminate();
    const TERMINATED: i32 = 128 + 15;
    assert_eq!(ended.code, TERMINATED, "the program's own end; {}", ended.stderr);
    let told: Value = serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap();
    assert_eq!((&told["calls"], &told["lost"]), (&3.into(), &0.into()), "{told}");
    let line = &told["summary"][0];
    assert_eq!((&line["command"], &line["errors"]), (&"NV_ESC_RM_CONTROL".into(), &3.into()), "{told}");
}

#[test]
fn the_doctor_says_what_is_there_and_what_to_do() {
    let Some(host) = probes::host("") else { return };
    let examined = host.call(&["doctor", "--json"]).success();
    let checks: Vec<Value> = serde_json::from_str(&examined.stdout).expect("a JSON list");
    let verdict =
        |name: &str| checks.iter().find(|check| check["name"] == name).map(|check| check["verdict"].clone());
    let good = ["kernel", "btf", "programs", "pid namespace", "capabilities", "probes", "gpus", "preload"];
    for name in good {
        assert_eq!(verdict(name), Some("good".into()), "{name}: {}", examined.stdout);
    }
    let others = ["lockdown", "tracepoints", "driver", "devices", "mps", "daemon", "selinux", "apparmor"];
    for name in others.into_iter().chain(["containers"]) {
        assert!(verdict(name).is_some(), "nothing is said of {name}: {}", examined.stdout);
    }
    for check in &checks {
        assert!(check["verdict"] == "good" || check["remedy"].is_string(), "{check} names no remedy");
    }
}

#[test]
fn a_device_that_is_only_mapped_and_not_open_any_more_is_found() {
    let Some(host) = probes::host("[probes]\ndevices = [\"nvidia-uvm=1:5\"]\n") else { return };
    // Like the driver's device, /dev/zero has memory to map. The stand-in has none.
    let mut command = host.command("python3");
    command.args(["-c", &code(MAPPER), "/dev/zero"]);
    let (mapper, _) = host.told(command);
    let _daemon = host.daemon();
    let found = await_found(&host, mapper.pid());
    assert_eq!((&found["seen_by"], &found["kind"]), (&json!(["mapping"]), &"compute".into()), "{found}");
    let pid = mapper.pid();
    mapper.finish().success();
    await_gone(&host, pid);
}

#[test]
fn devices_that_appear_and_change_their_numbers_are_watched_from_then_on() {
    let Some(host) = probes::host("") else { return };
    // The daemon has its own mounts, with a list of devices that the test writes.
    let listed = host.path().join("devices");
    let list = |text: &str| {
        std::fs::write(&listed, format!("Character devices:\n  1 mem\n{text}\nBlock devices:\n")).unwrap()
    };
    list("");
    let deepres = host.deepres(&["daemon"]);
    let mut command = host.command("unshare");
    command.args(["--mount", "sh", "-c", "mount --bind \"$0\" /proc/devices && exec \"$@\""]).arg(&listed);
    command.arg(deepres.get_program()).args(deepres.get_args());
    let _daemon = host.spawn(command);
    await_probes(&host, COMMAND_LIMIT, "waiting", "/proc/devices");
    let silent = user(&host, &["silent"]);

    list("511 nvidia-uvm");
    await_probes(&host, COMMAND_LIMIT, "attached", "nvidia-uvm");
    let _other = user(&host, &[]);
    assert_eq!(unmanaged(&host), Vec::<Value>::new(), "the stand-in has another number");

    list(&format!("{} nvidia-uvm", NUMBERS.0));
    // The process has had the device open all the while, and makes no ioctl.
    assert_eq!(await_found(&host, silent.pid())["seen_by"][0], "descriptor");
    let late = user(&host, &[]);
    assert_eq!(await_found(&host, late.pid())["seen_by"][0], "ioctl");
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    /// Returns a host with a daemon that reports unmanaged processes by now.
    fn settled(config: &str) -> Option<(Host, Process)> {
        let host_and_daemon = probes::measuring(config)?.with_daemon();
        thread::sleep(QUIET);
        Some(host_and_daemon)
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn a_hundred_of_a_hundred_are_found_within_a_second() {
        const USERS: usize = 100;
        const AT_A_TIME: usize = 10;
        let Some((host, _daemon)) = settled(CONFIG) else { return };
        for _ in 0..USERS / AT_A_TIME {
            let mut users: Vec<Process> =
                (0..AT_A_TIME).map(|_| host.spawn(python(&host, USER, &[]))).collect();
            for user in &mut users {
                let opened_ns = user.await_json()["opened_ns"].as_u64().unwrap();
                assert_soon(&await_found(&host, user.pid()), opened_ns);
            }
            for user in users {
                user.finish().success();
            }
        }
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn processes_with_very_many_descriptors_are_found_and_keep_nobody_waiting() {
        let Some(host) = probes::measuring(CONFIG) else { return };
        let crowd = |options: &[&str]| {
            let (process, said) = host.told(python(&host, CROWD, options));
            (process, said["opened_ns"].as_u64().unwrap())
        };
        let (silent, _) = crowd(&["silent"]);
        let _daemon = host.daemon();
        thread::sleep(QUIET);
        let asking = crowd(&[]);
        assert_found_soon(&host, &asking);
        for _ in 0..10 {
            let stranger = user_since(&host, &[]);
            assert_found_soon(&host, &stranger);
            stranger.0.finish().success();
        }
        let found = await_found(&host, silent.pid());
        assert_eq!(found["seen_by"], json!(["descriptor"]), "{found}");
    }

    #[test]
    fn a_driver_that_never_answers_nvml_keeps_nobody_waiting() {
        let Some(host) = probes::measuring(CONFIG) else { return };
        let mut daemon = host.daemon_with(&[("LD_PRELOAD", &c_library("slow_nvml"))]);
        daemon.await_error_line(|line| line == "NVML is asked in vain");
        thread::sleep(QUIET);
        assert_found_soon(&host, &user_since(&host, &[]));
        daemon.terminate().success();
    }

    #[test]
    fn a_process_that_hides_its_memory_map_is_listed_and_keeps_nobody_waiting() {
        let Some((host, mut daemon)) = settled(HOLDING) else { return };
        let target = host.path().join("stuck").display().to_string();
        let (stuck, said) = host.told(python(&host, STUCK, &[&target]));
        let _server = Ends(Pid::from_raw(said["server"].as_i64().unwrap() as i32).unwrap());
        await_value(|| state(stuck.pid()), |state| *state == 'D');
        // A process that comes later is found and held all the same.
        let held = user(&host, &[]);
        await_state(&host, held.pid(), "held");
        let found = await_found(&host, stuck.pid());
        assert!(found["command"].as_str().unwrap().starts_with("python3"), "its name at least: {found}");
        daemon.terminate().success();
        held.finish().success();
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn a_process_that_comes_back_is_found_within_a_second_each_time() {
        let Some((host, _daemon)) = settled(CONFIG) else { return };
        let mut user = obedient(&host);
        for round in 0..3 {
            let opened_ns = tell(&mut user, "open");
            assert_soon(&await_found(&host, user.process.pid()), opened_ns);
            tell(&mut user, "close");
            await_gone(&host, user.process.pid());
            // Each round falls on another moment of the second.
            thread::sleep(Duration::from_millis(1_000 + round * 340));
        }
    }

    #[test]
    fn an_adopted_process_stays_so_when_it_opens_the_device_again_and_over_a_daemons_restart() {
        let Some((host, mut daemon)) = probes::measuring(HOLDING).map(Host::with_daemon) else { return };
        let mut user = obedient(&host);
        let pid = user.process.pid();
        tell(&mut user, "open");
        await_state(&host, pid, "held");
        host.call(&["adopt", &pid.to_string(), "--name", "nightly"]).success();
        tell(&mut user, "close");
        await_gone(&host, pid);
        tell(&mut user, "open");
        let assert_adopted = || {
            let found = await_found(&host, pid);
            assert_eq!((&found["state"], &found["tenant"]), (&"adopted".into(), &"nightly".into()));
        };
        assert_adopted();

        daemon.terminate().success();
        let _daemon = host.daemon();
        assert_adopted();
        assert_ne!(state(pid), 'T');
        let metered = host.status()["metering"]["processes"][0].clone();
        assert_eq!((&metered["pid"], &metered["tenant"]), (&pid.into(), &"nightly".into()), "{metered}");
    }

    #[test]
    fn a_process_can_be_held_until_it_is_adopted() {
        // The test runs alone, because its daemon holds all processes that use the stand-in.
        let Some((host, daemon)) = probes::measuring(HOLDING).map(Host::with_daemon) else { return };
        let held = user(&host, &[]);
        await_state(&host, held.pid(), "held");
        // The process stops when it runs next.
        let await_stopped = || await_value(|| state(held.pid()), |state| *state == 'T');
        await_stopped();
        assert!(
            !daemon.stderr().contains("held an unmanaged process again"),
            "nobody has let it go on:\n{}",
            daemon.stderr()
        );
        // The process's owner can continue it for a moment. The daemon then stops it again.
        held.signal(Signal::CONT);
        await_stopped();
        let pid = held.pid().to_string();
        host.call(&["adopt", &pid, "--name", "nightly"]).success();
        assert_ne!(state(held.pid()), 'T');
        let adopted = await_state(&host, held.pid(), "adopted");
        assert_eq!(adopted["tenant"], "nightly");
        host.call(&["adopt", "1"]).refused("is not an unmanaged process");

        let second = user(&host, &[]);
        await_state(&host, second.pid(), "held");
        drop(daemon);
        drop(second);
        held.finish().success();
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn a_process_that_a_killed_daemon_held_is_held_by_the_next_and_goes_on_under_one_that_holds_nobody() {
        /// Time within which the daemon writes a changed state. The daemon writes at least every
        /// three seconds.
        const WRITTEN: Duration = Duration::from_secs(4);
        let Some((host, daemon)) = probes::measuring(HOLDING).map(Host::with_daemon) else { return };
        let held = user(&host, &[]);
        let pid = held.pid();
        await_state(&host, pid, "held");
        eventually_within("the state names the process", WRITTEN, || {
            let state = std::fs::read(host.deepres_dir().join("state.json")).unwrap_or_default();
            let state = serde_json::from_slice(&state).unwrap_or(Value::Null);
            state["held"].as_array().is_some_and(|held| held.iter().any(|held| held["pid"] == pid))
        });
        let kill = |daemon: Process| {
            daemon.signal(Signal::KILL);
            daemon.finish();
            assert_eq!(state(pid), 'T');
        };
        kill(daemon);
        let daemon = host.daemon();
        await_state(&host, pid, "held");
        // Meanwhile the daemon writes its own state.
        thread::sleep(WRITTEN);
        kill(daemon);
        let (host, _daemon) = host.config(&format!("{CONFIG}unmanaged = \"report\"\n")).with_daemon();
        await_state(&host, pid, "reported");
        assert_ne!(state(pid), 'T');
        held.finish().success();
    }

    #[test]
    fn a_trace_has_the_events_of_the_tenant_that_it_was_asked_for() {
        let Some((host, _daemon)) = probes::measuring(CONTROL_CONFIG).map(Host::with_daemon) else { return };
        let tenant_of = |run: &[&str]| host.told(tenant(&host, run, ASKING, &["computes"])).0;
        let [_inside, _outside] =
            [tenant_of(&["--name", "inside"]), tenant_of(&["--no-preload", "--name", "outside"])];
        let (stranger, _) = host.told(python(&host, ASKING, &[]));
        let alone = pids(&traced(&host, &["-p", &stranger.pid().to_string()]));
        assert_eq!(alone, [u64::from(stranger.pid())].into());
        let inside = pids(&traced(&host, &["--tenant", "inside"]));
        let outside = pids(&traced(&host, &["--tenant", "outside"]));
        assert!(inside.len() == 1 && outside.len() == 1 && inside != outside, "{inside:?} {outside:?}");
        assert!(inside != alone && outside != alone);
        let all = pids(&traced(&host, &["--all"]));
        assert!([alone, inside, outside].iter().flatten().all(|pid| all.contains(pid)), "{all:?}");

        host.call(&["trace", "--device", CONTROL, "--tenant", "nobody"])
            .refused("there is no tenant `nobody`");
        // A keeper of a tenant whose processes have not started.
        let _keeper = host.spawn(host.run(&["--name", "later"], "sleep", &["60"]));
        host.await_ps(|ps| ps.find("later").is_some());
        let mut trace = host.spawn(host.deepres(&["trace", "--device", CONTROL, "--tenant", "later"]));
        trace.await_error_line(|line| line == "deepres: tenant `later` has no process yet");
        trace.terminate().success();
    }

    #[test]
    fn a_container_that_uses_the_gpu_on_its_own_is_listed_with_both_its_process_ids_and_its_user() {
        let Some(host) = probes::measuring(CONFIG) else { return };
        let Some(containers) = Containers::on(&host) else { return };
        let node = open_node(&host).display().to_string();
        let _daemon = host.daemon();
        thread::sleep(QUIET);
        for (users, uid) in [(Users::Shared, 0), (Users::Apart, OUTER_ROOT)] {
            // In a user namespace the runtime can only bind-mount a device at its outside path.
            // Otherwise it can only create the device node in /dev.
            let inside = if users == Users::Apart { &node } else { "/dev/gpu" };
            let options = ["--device", &format!("{node}:{inside}")];
            let mut container = containers.start_bare(&options, users, &["perl", "-e", CONTAINED, inside]);
            let opened_ns = container.process.await_json()["opened_ns"].as_u64().unwrap();
            let id = containers.id(&container);
            let is_its = |user: &Value| user["container"].as_str().is_some_and(|shown| id.starts_with(shown));
            let found = await_listed(&host, is_its);
            assert_eq!((&found["uid"], &found["container_pid"]), (&uid.into(), &1.into()), "{found}");
            let pid = found["pid"].as_u64().unwrap();
            assert_ne!(pid, 1);
            assert_soon(&found, opened_ns);
            // Perl makes one ioctl of each file that it opens, to see whether the file is a
            // terminal.
            let its_call = |status: &Value| {
                let activity = status["driver_activity"].as_array().expect("a list");
                let its = activity.iter().find(|activity| activity["pid"] == pid)?;
                let mut commands = its["commands"].as_array().expect("a list").iter();
                commands.find(|command| command["name"] == "0xc020462a").cloned()
            };
            await_value(
                || its_call(&host.status()),
                |call| call.as_ref().is_some_and(|call| call["calls"] == 5),
            );
            let process = Pid::from_raw(pid as i32).unwrap();
            kill_process(process, Signal::USR1).unwrap();
            let events = traced(&host, &["--all"]);
            assert!(events.iter().any(|event| event["pid"] == pid), "{events:#?}");
            containers.kill(container);
        }
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn tenants_are_never_listed_while_they_start_exec_and_end() {
        // The tenant makes ioctls of the driver's device before and after it connects. Then it
        // executes another program that does the same, and ends.
        const TENANT: &str = r#"
device, rounds, this = sys.argv[1], int(sys.argv[2]), sys.argv[3]
file = os.open(device, os.O_RDWR)
ask(file)
assert cu_init() == 0
for _ in range(8):
    ask(file)
    time.sleep(0.1)
if rounds: os.execv(sys.executable, [sys.executable, "-c", this, device, str(rounds - 1), this])
"#;
        let Some((host, daemon)) = settled(CONFIG) else { return };
        let tenants: Vec<Process> =
            (0..6).map(|_| host.spawn(tenant(&host, &[], TENANT, &["2", &code(TENANT)]))).collect();
        for tenant in tenants {
            tenant.finish().success();
        }
        assert_nobody_else_is_listed(&host, daemon);
    }

    #[test]
    fn a_tenant_is_no_stranger_however_long_its_driver_takes_to_start() {
        // A driver that starts opens its devices and makes many ioctls. Only then is there a
        // session.
        const TENANT: &str = r#"
starts = threading.Thread(target=lambda: results.append(cu_init()))
results = []
starts.start()
time.sleep(0.2)
file = os.open(sys.argv[1], os.O_RDWR)
while starts.is_alive():
    ask(file)
    time.sleep(0.05)
print('{"result": %d}' % results[0], flush=True)
sys.stdin.readline()
"#;
        let Some((host, daemon)) = settled(HOLDING) else { return };
        let start = |faults: &str| {
            let mut command = tenant(&host, &[], TENANT, &[]);
            command.env("SIMGPU_FAULTS", faults);
            host.spawn(command)
        };
        let mut tenant = start("cuInit:delay:2500ms");
        assert_eq!(tenant.await_json()["result"], 0);
        tenant.finish().success();
        // If the driver does not start after all, the process is an unmanaged user with the device
        // open.
        let mut failed = start("cuInit:delay:1s,cuInit:1:999");
        assert_eq!(failed.await_json()["result"], 999);
        await_listed(&host, |_| true);
        drop(failed);
        assert_listed(daemon, 1);
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn a_process_that_asks_once_after_its_session_is_found_within_a_second() {
        const TENANT: &str = r#"
assert cu_init() == 0
file = os.open(sys.argv[1], os.O_RDWR)
ask(file)
time.sleep(1 + float(sys.argv[3]))
os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", sys.argv[2], sys.argv[1]])
"#;
        let Some((host, _daemon)) = settled(CONFIG) else { return };
        // The new program uses the device before the daemon knows of the session's end, before it
        // knows the earlier calls, or afterwards. Each session ends at another moment of the
        // second.
        for (wait, pause) in ["0.2", "0.4", "0.6", "0.8"].into_iter().zip(["0", "0.03", "0.06", "0.2"]) {
            let user = format!("import time; time.sleep({pause})\n{}", code(USER));
            let (tenant, said) = host.told(tenant(&host, &[], TENANT, &[&user, wait]));
            let found = await_listed(&host, |_| true);
            assert_soon(&found, said["opened_ns"].as_u64().unwrap());
            tenant.finish().success();
            await_value(|| unmanaged(&host), Vec::is_empty);
        }
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn a_tenant_that_becomes_a_program_without_the_gpu_is_not_listed_on_nvmls_old_word() {
        // The new program has the device open for a moment, less than the time that a process has
        // to connect.
        const TENANT: &str = r#"
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
os.dup2(os.open(sys.argv[1], os.O_RDWR), 9, inheritable=True)
print("{}", flush=True)
sys.stdin.readline()
os.execvp("sh", ["sh", "-c", "sleep 0.1; exec 9<&-; echo '{}'; read line"])
"#;
        let Some((host, daemon)) = settled(CONFIG) else { return };
        let (mut tenant, _) = host.told(tenant(&host, &[], TENANT, &[]));
        // By now the daemon has asked NVML, and NVML has listed the process as computing.
        thread::sleep(NVML_PAUSE);
        tenant.say("");
        tenant.await_json();
        thread::sleep(QUIET);
        tenant.say("");
        tenant.finish().success();
        assert_listed(daemon, 0);
    }

    #[test]
    fn a_tenant_that_becomes_a_program_without_a_session_and_keeps_the_device_is_found_within_a_second() {
        const TENANT: &str = r#"
assert cu_init() == 0
file = os.open(sys.argv[1], os.O_RDWR)
os.set_inheritable(file, True)
print('{"session": true}', flush=True)
sys.stdin.readline()
print('{"left_ns": %d}' % now_ns(), flush=True)
os.execvp("sleep", ["sleep", "60"])
"#;
        let Some((host, _daemon)) = settled(CONFIG) else { return };
        let (mut tenant, _) = host.told(tenant(&host, &[], TENANT, &[]));
        assert_eq!(unmanaged(&host), Vec::<Value>::new(), "it has a session");
        tenant.say("");
        let left_ns = tenant.await_line(|line| line.contains("left_ns"));
        let left_ns = serde_json::from_str::<Value>(&left_ns).unwrap()["left_ns"].as_u64().unwrap();
        let found = await_listed(&host, |_| true);
        assert_eq!(found["command"], "sleep 60");
        assert_soon(&found, left_ns);
    }

    #[test]
    fn a_process_that_asks_nvml_under_deepres_and_does_not_compute_is_never_listed() {
        // nvidia-smi does this, and so does PyTorch before it computes.
        const VIEWER: &str = r#"
nvml = ctypes.CDLL("libnvidia-ml.so.1")
assert nvml.nvmlInit_v2() == 0
file = os.open(sys.argv[1], os.O_RDWR)
device, memory = ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0
for _ in range(30):
    ask(file)
    time.sleep(0.1)
"#;
        let Some((host, daemon)) = settled(CONTROL_CONFIG) else { return };
        host.finish(tenant(&host, &[], VIEWER, &[])).success();
        assert_eq!(assert_nobody_else_is_listed(&host, daemon)["kind"], "control");
    }
}
