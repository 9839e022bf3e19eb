//! The daemon lists processes that use the GPU without being a tenant, and no others. A real
//! character device stands in for the driver's.
//!
//! The tests need root and a daemon with kernel programs (`cargo xtask ebpf`).

use std::thread;
use std::time::{Duration, Instant};

use deepres_e2e::clients::c_library;
use deepres_e2e::containers::{Containers, OUTER_ROOT, Users};
use deepres_e2e::probes::{DEVICE, NUMBERS, are_possible, open_node};
use deepres_e2e::{Host, Process, artefacts::artefacts, host::COMMAND_LIMIT};
use serde_json::Value;

const CONFIG: &str = "[probes]\ndevices = [\"nvidia-uvm=10:256\"]\n";
/// Time within which a process must be found, including the delay of polling, ns.
const FOUND_LIMIT_NS: u64 = 1_000_000_000;
/// Time after which the daemon has asked NVML once more, although it asks rarely.
const NVML_PAUSE: Duration = Duration::from_secs(7);
/// Time within which the daemon repeats a failed attempt.
const RETRY_LIMIT: Duration = Duration::from_secs(45);
/// The daemon reports no unmanaged process for two seconds after its start.
const QUIET: Duration = Duration::from_millis(2_200);

/// Opens the device, makes one ioctl, prints the time, and waits for the end of its input. With
/// `silent` it makes no ioctl.
const USER: &str = r#"
import fcntl, os, sys, time
device, silent = sys.argv[1], sys.argv[2:] == ["silent"]
file = os.open(device, os.O_RDWR)
opened_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
if not silent:
    try: fcntl.ioctl(file, 0xc020462a, bytearray(32))
    except OSError: pass
print('{"opened_ns": %d}' % opened_ns, flush=True)
while sys.stdin.buffer.read(4096): pass
"#;

fn user(host: &Host, options: &[&str]) -> Process {
    let mut command = host.command("python3");
    command.args(["-c", USER, DEVICE]).args(options);
    host.spawn(command)
}

fn unmanaged(host: &Host) -> Vec<Value> {
    let deadline = Instant::now() + COMMAND_LIMIT;
    loop {
        let status = host.status();
        if status["probes"]["state"] == "attached" {
            return status["unmanaged"].as_array().expect("a list").clone();
        }
        assert_eq!(status["probes"]["state"], "starting", "{}", status["probes"]);
        assert!(Instant::now() < deadline, "{}", status["probes"]);
        thread::sleep(Duration::from_millis(20));
    }
}

fn find(host: &Host, pid: u32) -> Option<Value> {
    unmanaged(host).into_iter().find(|user| user["pid"] == pid)
}

#[track_caller]
fn await_found(host: &Host, pid: u32, wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + COMMAND_LIMIT;
    loop {
        if let Some(user) = find(host, pid).filter(&wanted) {
            return user;
        }
        assert!(Instant::now() < deadline, "{:?}", unmanaged(host));
        thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for a listed process and returns it. A test starts at most one.
#[track_caller]
fn await_anybody(host: &Host) -> Value {
    let deadline = Instant::now() + COMMAND_LIMIT;
    loop {
        if let Some(user) = unmanaged(host).pop() {
            return user;
        }
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_process_that_uses_the_gpu_on_its_own_is_listed_until_it_ends() {
    if !are_possible() {
        return;
    }
    let host = Host::new().config(&format!("{CONFIG}unmanaged = \"warn\"\n"));
    let mut early = user(&host, &["silent"]);
    early.await_json(COMMAND_LIMIT);
    let mut daemon = host.daemon();
    // A process that makes its ioctl before the programs are attached is found by its open
    // descriptor.
    unmanaged(&host);
    let mut late = user(&host, &[]);
    late.await_json(COMMAND_LIMIT);

    let found = await_found(&host, late.pid(), |_| true);
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
    let shown = host.finish(host.deepres(&["ps", "-v"])).success().stdout;
    assert!(shown.contains("P99") && shown.contains("0xc020462a"), "{shown}");
    let silent = await_found(&host, early.pid(), |_| true);
    assert_eq!(silent["seen_by"][0], "descriptor", "it was there before the daemon and asks nothing");
    let shown = host.finish(host.deepres(&["ps"])).success().stdout;
    assert!(shown.contains("UNMANAGED") && shown.contains(&late.pid().to_string()), "{shown}");
    daemon.await_error_line(
        |line| line.contains("WARN") && line.contains("an unmanaged process uses the GPU"),
        COMMAND_LIMIT,
    );

    let pid = late.pid();
    late.finish(COMMAND_LIMIT).success();
    let deadline = Instant::now() + COMMAND_LIMIT;
    while find(&host, pid).is_some() {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(20));
    }
    early.finish(COMMAND_LIMIT).success();
}

#[test]
fn what_a_tenants_processes_do_in_the_driver_is_added_up() {
    if !are_possible() {
        return;
    }
    const TENANT: &str = r#"
import ctypes, fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
for _ in range(5):
    try: fcntl.ioctl(file, 0xc020462a, bytearray(32))
    except OSError: pass
print("{}", flush=True)
sys.stdin.read()
"#;
    let host = Host::new().config(CONFIG);
    let _daemon = host.daemon();
    // Calls before the programs are attached are not counted.
    unmanaged(&host);
    let start = |options: &[&str]| {
        let mut tenant = host.spawn(host.run(options, "python3", &["-c", TENANT, DEVICE]));
        tenant.await_json(COMMAND_LIMIT);
        tenant
    };
    let tenants =
        [start(&["--name", "two"]), start(&["--name", "two"]), start(&["--name", "one", "--no-preload"])];
    let deadline = Instant::now() + COMMAND_LIMIT;
    loop {
        let status = host.status();
        let listed = status["tenants"].as_array().expect("a list");
        let of = |name: &str| {
            let tenant = listed.iter().find(|tenant| tenant["name"] == name).expect("it is there");
            [&tenant["driver"]["calls"], &tenant["driver"]["errors"]]
                .map(|sum| sum.as_u64().expect("a number"))
        };
        let (two, one) = (of("two"), of("one"));
        if (two, one) == ([10, 10], [5, 5]) {
            break;
        }
        assert!(Instant::now() < deadline, "{two:?} {one:?}");
        thread::sleep(Duration::from_millis(50));
    }
    let shown = host.finish(host.deepres(&["ps", "-v"])).success().stdout;
    let rows = shown.lines().skip_while(|line| !line.starts_with("TENANT IN DRIVER"));
    let rows: Vec<Vec<&str>> = rows.take(3).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0][3..5], ["CALLS", "ERRORS"], "{shown}");
    assert_eq!((&rows[1][..3], &rows[2][..3]), (&["one", "5", "5"][..], &["two", "10", "10"][..]), "{shown}");
    // The count is part of the tenant's state, and not only of its processes'.
    let [first, ..] = tenants;
    let pid = first.pid();
    first.finish(COMMAND_LIMIT).success();
    let deadline = Instant::now() + COMMAND_LIMIT;
    let activity_of_it = |status: &Value| {
        status["driver_activity"].as_array().expect("a list").iter().any(|activity| activity["pid"] == pid)
    };
    loop {
        let status = host.status();
        if !activity_of_it(&status) {
            let of_two = status["tenants"].as_array().expect("a list").iter();
            let of_two =
                of_two.filter(|tenant| tenant["name"] == "two").map(|tenant| &tenant["driver"]["calls"]);
            assert_eq!(of_two.collect::<Vec<_>>(), [10], "{status}");
            break;
        }
        assert!(Instant::now() < deadline, "it is still there");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Does the same as [`USER`], but first opens a million more descriptors, or as many as the machine
/// allows. The device comes last.
const CROWD: &str = r#"
import fcntl, os, resource, sys, time
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
try: resource.setrlimit(resource.RLIMIT_NOFILE, (1_000_100, 1_000_100))
except ValueError: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
count = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 100
assert count > 8192, "more than are looked at at once"
for _ in range(count): os.dup(0)
file = os.open(sys.argv[1], os.O_RDWR)
opened_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
print('{"opened_ns": %d}' % opened_ns, flush=True)
if sys.argv[2:] == ["silent"]: sys.stdin.readline()
else:
    while True:
        try: fcntl.ioctl(file, 0xc020462a, bytearray(32))
        except OSError: pass
        time.sleep(0.05)
"#;

/// Returns the state of a process. `T` means stopped.
fn state(pid: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().chars().next().unwrap()
}

/// Holds the lock of its memory map until the server of its file system is killed. So a process
/// that reads its command line blocks too. Mapping a file that is not cached waits for earlier
/// writes to finish, and this file system never finishes them. The last line of its output is the
/// server's id.
const STUCK: &str = r#"
import ctypes, fcntl, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
held = os.open(sys.argv[1], os.O_RDWR)
try: fcntl.ioctl(held, 0xc020462a, bytearray(32))
except OSError: pass
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

/// Kills a process when dropped, because other processes wait for it.
struct Ends(rustix::process::Pid);

impl Drop for Ends {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::KILL);
    }
}

/// Does the same as [`USER`], but follows the lines of its input: `open`, or any other line to
/// close.
const OBEDIENT: &str = r#"
import fcntl, os, sys, time
file = None
for number, line in enumerate(sys.stdin):
    opened_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    if line == "open\n":
        file = os.open(sys.argv[1], os.O_RDWR)
        try: fcntl.ioctl(file, 0xc020462a, bytearray(32))
        except OSError: pass
    else: os.close(file)
    print('{"number": %d, "opened_ns": %d}' % (number, opened_ns), flush=True)
"#;

/// Gives [`OBEDIENT`] an order. Returns the time of the action, ns.
fn tell(user: &mut Process, number: u64, what: &str) -> u64 {
    user.say(what);
    let answer = format!("{{\"number\": {number},");
    let line = user.await_line(|line| line.starts_with(&answer), COMMAND_LIMIT);
    serde_json::from_str::<Value>(&line).unwrap()["opened_ns"].as_u64().unwrap()
}

#[test]
fn programs_that_could_not_be_attached_are_tried_again() {
    if !are_possible() {
        return;
    }
    const TYPES: &str = "/sys/kernel/btf/vmlinux";
    let host = Host::new().config(CONFIG);
    let empty = host.path().join("types");
    std::fs::write(&empty, "").unwrap();
    // The daemon has its own mounts, in which the kernel's types cannot be read at first.
    let deepres = host.deepres(&["daemon", "--config"]);
    let mut command = host.command("unshare");
    command.args(["--mount", "sh", "-c", "mount --bind \"$0\" \"$1\" && shift && exec \"$@\""]);
    command.arg(&empty).arg(TYPES).arg(deepres.get_program()).args(deepres.get_args());
    command.arg(host.path().join("deepres.toml"));
    let daemon = host.spawn(command);
    let await_state = |wanted: &str| {
        let deadline = Instant::now() + RETRY_LIMIT;
        loop {
            let shown = host.finish(host.deepres(&["ps", "--json"]));
            let status: Value = serde_json::from_str(&shown.stdout).unwrap_or_default();
            if status["probes"]["state"] == wanted {
                return;
            }
            assert!(Instant::now() < deadline, "{} {}", status["probes"], shown.stderr);
            thread::sleep(Duration::from_millis(20));
        }
    };
    await_state("unavailable");
    let mut mend = host.command("nsenter");
    mend.args(["--mount", "--target", &daemon.pid().to_string(), "umount", TYPES]);
    host.finish(mend).success();
    await_state("attached");
}

#[test]
fn a_trace_tells_the_calls_of_a_program_and_what_it_starts() {
    if !are_possible() {
        return;
    }
    let host = Host::new();
    let call = "import fcntl,os\nf=os.open('/dev/vga_arbiter',os.O_RDWR)\nfor _ in range(3):\n try: fcntl.ioctl(f,0xc020462a,bytearray(32))\n except OSError: pass";
    let device = "nvidia=10:256";
    let trace = |options: &[&str]| {
        let mut command = host.deepres(&["trace", "--device", device]);
        command.args(options).args(["--", "sh", "-c", "python3 -c \"$0\"; python3 -c \"$0\"; exit 7", call]);
        host.finish(command)
    };
    let told = trace(&["--json"]);
    assert_eq!(told.code, 7, "the program's own status; {}", told.stderr);
    let events: Vec<Value> = told.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.len(), 6, "{}", told.stdout);
    for event in &events {
        assert_eq!(event["name"], "NV_ESC_RM_CONTROL");
        assert_eq!(event["error"], "ENOTTY");
        assert_eq!(event["device"], "10:256");
    }
    let pids: std::collections::BTreeSet<u64> =
        events.iter().map(|event| event["pid"].as_u64().unwrap()).collect();
    assert_eq!(pids.len(), 2, "both children");

    let lines = trace(&[]).stdout;
    assert_eq!(lines.lines().count(), 7, "a head and a line for each call:\n{lines}");
    assert!(!lines.contains('\x1b'), "colours are for terminals");
    let summary = trace(&["--summary"]).stdout;
    let line = summary.lines().nth(1).unwrap();
    assert!(line.contains("NV_ESC_RM_CONTROL") && line.split_whitespace().nth(1) == Some("6"), "{summary}");
    assert!(summary.contains("6 calls, 0 lost"), "{summary}");

    let own = std::process::id();
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let threads = threads.filter_map(|thread| thread.file_name().to_str()?.parse::<u32>().ok());
    let thread = threads.filter(|thread| *thread != own).last().expect("tests run in threads").to_string();
    let of_thread = host.finish(host.deepres(&["trace", "--device", device, "-p", &thread]));
    assert_eq!(of_thread.code, 1);
    assert!(of_thread.stderr.contains(&format!("a thread of process {own}")), "{}", of_thread.stderr);

    let nobody = host.finish(host.deepres(&["trace"]));
    assert!(nobody.code == 1 && nobody.stderr.contains("trace whom?"), "{}", nobody.stderr);
}

#[test]
fn a_trace_that_cannot_be_written_says_so_and_has_the_colours_that_its_terminals_user_wants() {
    if !are_possible() {
        return;
    }
    let host = Host::new();
    let call = "import fcntl,os\nf=os.open('/dev/vga_arbiter',os.O_RDWR)\ntry: fcntl.ioctl(f,0xc020462a,bytearray(32))\nexcept OSError: pass";
    // The shell's `$0` and `$@` are the trace command.
    let traced = |shell: &str| {
        let mut command = host.command("sh");
        command.args(["-c", shell]).arg(&artefacts().deepres);
        command.args(["trace", "--device", "nvidia=10:256", "--", "python3", "-c", call]);
        command
    };
    let full = host.finish(traced("exec \"$0\" \"$@\" >/dev/full"));
    assert_eq!(full.code, 1, "the program itself succeeded");
    let said = full.stderr;
    assert!(said.contains("cannot be written") && said.contains("No space left"), "{said}");

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
    let mut trace =
        host.spawn(host.deepres(&[&["trace", "--json", "--device", "nvidia=10:256"], options].concat()));
    let enough = |trace: &Process| trace.stdout().lines().count() >= 3;
    let deadline = Instant::now() + COMMAND_LIMIT;
    while !enough(&trace) {
        assert!(Instant::now() < deadline, "{}", trace.stderr());
        thread::sleep(Duration::from_millis(20));
    }
    trace.signal(rustix::process::Signal::TERM);
    let ended = trace.await_end(COMMAND_LIMIT);
    let lines = ended.stdout.lines().filter(|line| line.ends_with('}'));
    lines.map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

/// Makes five ioctls and prints when it opened the device. Goes on with ioctls once it is
/// signalled. It is in Perl because the containers have Perl.
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

/// Maps memory of a device, and closes the descriptor.
const MAPPER: &str = r#"
import ctypes, os, sys
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
    if !are_possible() {
        return;
    }
    const ASKS: &str = "import fcntl,os,time\n\
        f=os.open('/dev/vga_arbiter',os.O_RDWR)\n\
        for _ in range(3):\n\
        \x20try: fcntl.ioctl(f,0xc020462a,bytearray(32))\n\
        \x20except OSError: pass\n\
        print('{}', flush=True)\n\
        os.kill(os.getpid(), 19) # SIGSTOP, as `hold` does\n\
        time.sleep(60)";
    let host = Host::new();
    let options = ["trace", "--json", "--summary", "--device", "nvidia=10:256", "--"];
    let mut trace = host.spawn(host.deepres(&[&options[..], &["python3", "-c", ASKS]].concat()));
    trace.await_json(COMMAND_LIMIT);
    trace.signal(rustix::process::Signal::TERM);
    let ended = trace.await_end(COMMAND_LIMIT);
    const TERMINATED: i32 = 128 + 15;
    assert_eq!(ended.code, TERMINATED, "the program's own end; {}", ended.stderr);
    let told: Value = serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap();
    assert_eq!((&told["calls"], &told["lost"]), (&3.into(), &0.into()), "{told}");
    let line = &told["summary"][0];
    assert_eq!((&line["command"], &line["errors"]), (&"NV_ESC_RM_CONTROL".into(), &3.into()), "{told}");
}

#[test]
fn the_doctor_says_what_is_there_and_what_to_do() {
    if !are_possible() {
        return;
    }
    let host = Host::new();
    let examined = host.finish(host.deepres(&["doctor", "--json"])).success();
    let checks: Vec<Value> = serde_json::from_str(&examined.stdout).expect("a JSON list");
    let verdict =
        |name: &str| checks.iter().find(|check| check["name"] == name).map(|check| check["verdict"].clone());
    for name in ["kernel", "btf", "programs", "pid namespace", "capabilities", "probes", "gpus", "preload"] {
        assert_eq!(verdict(name), Some("good".into()), "{name}: {}", examined.stdout);
    }
    let all = [
        "kernel",
        "btf",
        "programs",
        "pid namespace",
        "capabilities",
        "lockdown",
        "tracepoints",
        "probes",
        "driver",
        "gpus",
        "devices",
        "mps",
        "daemon",
        "preload",
        "selinux",
        "apparmor",
        "containers",
    ];
    for name in all {
        assert!(verdict(name).is_some(), "nothing is said of {name}: {}", examined.stdout);
    }
    for check in &checks {
        assert!(check["verdict"] == "good" || check["remedy"].is_string(), "{check} names no remedy");
    }
}

/// These measure, so each has the machine to itself.
mod measured {
    use super::*;

    #[test]
    #[ignore = "deep: takes long"]
    fn a_hundred_of_a_hundred_are_found_within_a_second() {
        if !are_possible() {
            return;
        }
        const USERS: usize = 100;
        const AT_A_TIME: usize = 10;
        let host = Host::measuring().config(CONFIG);
        let _daemon = host.daemon();
        thread::sleep(QUIET);
        for _ in 0..USERS / AT_A_TIME {
            let mut users: Vec<Process> = (0..AT_A_TIME).map(|_| user(&host, &[])).collect();
            for user in &mut users {
                let opened_ns = user.await_json(COMMAND_LIMIT)["opened_ns"].as_u64().unwrap();
                let found = await_found(&host, user.pid(), |_| true);
                let took_ns = found["reported_ns"].as_u64().unwrap() - opened_ns;
                assert!(took_ns <= FOUND_LIMIT_NS, "found after {took_ns} ns");
            }
            for user in users {
                user.finish(COMMAND_LIMIT).success();
            }
        }
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn processes_with_very_many_descriptors_are_found_and_keep_nobody_waiting() {
        if !are_possible() {
            return;
        }
        let host = Host::measuring().config(CONFIG);
        let crowd = |options: &[&str]| {
            let mut command = host.command("python3");
            command.args(["-c", CROWD, DEVICE]).args(options);
            let mut crowd = host.spawn(command);
            let opened_ns = crowd.await_json(COMMAND_LIMIT)["opened_ns"].as_u64().unwrap();
            (crowd, opened_ns)
        };
        let (silent, _) = crowd(&["silent"]);
        let _daemon = host.daemon();
        thread::sleep(QUIET);
        let within = |pid: u32, opened_ns: u64| {
            let found = await_found(&host, pid, |_| true);
            let took_ns = found["reported_ns"].as_u64().unwrap().saturating_sub(opened_ns);
            assert!(took_ns <= FOUND_LIMIT_NS, "found after {took_ns} ns: {found}");
        };
        let (asking, opened_ns) = crowd(&[]);
        within(asking.pid(), opened_ns);
        for _ in 0..10 {
            let mut stranger = user(&host, &[]);
            let opened_ns = stranger.await_json(COMMAND_LIMIT)["opened_ns"].as_u64().unwrap();
            within(stranger.pid(), opened_ns);
            stranger.finish(COMMAND_LIMIT).success();
        }
        let found = await_found(&host, silent.pid(), |_| true);
        assert_eq!(found["seen_by"], serde_json::json!(["descriptor"]), "{found}");
    }

    #[test]
    fn a_driver_that_never_answers_nvml_keeps_nobody_waiting() {
        if !are_possible() {
            return;
        }
        let host = Host::measuring().config(CONFIG);
        let mut daemon = host.daemon_with(&[("LD_PRELOAD", &c_library("stuck_nvml"))]);
        daemon.await_error_line(|line| line == "NVML is asked in vain", COMMAND_LIMIT);
        thread::sleep(QUIET);
        let mut stranger = user(&host, &[]);
        let opened_ns = stranger.await_json(COMMAND_LIMIT)["opened_ns"].as_u64().unwrap();
        let found = await_found(&host, stranger.pid(), |_| true);
        let took_ns = found["reported_ns"].as_u64().unwrap().saturating_sub(opened_ns);
        assert!(took_ns <= FOUND_LIMIT_NS, "found after {took_ns} ns");
        daemon.signal(rustix::process::Signal::TERM);
        daemon.await_end(COMMAND_LIMIT).success();
    }

    #[test]
    fn whoever_keeps_its_memory_map_to_itself_is_listed_and_keeps_nobody_waiting() {
        if !are_possible() {
            return;
        }
        let host = Host::measuring().config(&format!("{CONFIG}unmanaged = \"hold\"\n"));
        let mut daemon = host.daemon();
        thread::sleep(QUIET);
        let mut command = host.command("python3");
        command.args(["-c", STUCK, DEVICE]).arg(host.path().join("stuck"));
        let mut stuck = host.spawn(command);
        let server = stuck.await_json(COMMAND_LIMIT)["server"].as_i64().unwrap();
        let _server = Ends(rustix::process::Pid::from_raw(server as i32).unwrap());
        let deadline = Instant::now() + COMMAND_LIMIT;
        while state(stuck.pid()) != 'D' {
            assert!(Instant::now() < deadline, "the stand-in does not do what it should");
            thread::sleep(Duration::from_millis(10));
        }
        // A process that comes later is found and held all the same.
        let mut held = user(&host, &[]);
        held.await_json(COMMAND_LIMIT);
        await_found(&host, held.pid(), |user| user["state"] == "held");
        let found = await_found(&host, stuck.pid(), |_| true);
        assert!(found["command"].as_str().unwrap().starts_with("python3"), "its name at least: {found}");
        daemon.signal(rustix::process::Signal::TERM);
        daemon.await_end(COMMAND_LIMIT).success();
        held.finish(COMMAND_LIMIT).success();
    }

    #[test]
    fn whoever_comes_back_is_found_within_a_second_each_time() {
        if !are_possible() {
            return;
        }
        let host = Host::measuring().config(CONFIG);
        let _daemon = host.daemon();
        thread::sleep(QUIET);
        let mut command = host.command("python3");
        command.args(["-c", OBEDIENT, DEVICE]);
        let mut user = host.spawn(command);
        for round in 0..6 {
            let opened_ns = tell(&mut user, 2 * round, "open");
            let found = await_found(&host, user.pid(), |_| true);
            let took_ns = found["reported_ns"].as_u64().unwrap() - opened_ns;
            assert!(took_ns <= FOUND_LIMIT_NS, "in round {round} found after {took_ns} ns");
            tell(&mut user, 2 * round + 1, "close");
            let deadline = Instant::now() + COMMAND_LIMIT;
            while find(&host, user.pid()).is_some() {
                assert!(Instant::now() < deadline);
                thread::sleep(Duration::from_millis(20));
            }
            // Each round falls on another moment of the second.
            thread::sleep(Duration::from_millis(1_000 + round * 170));
        }
    }

    #[test]
    fn who_was_adopted_stays_so_when_it_opens_the_device_again_and_over_a_daemons_restart() {
        if !are_possible() {
            return;
        }
        let host = Host::measuring().config(&format!("{CONFIG}unmanaged = \"hold\"\n"));
        let daemon = host.daemon();
        let mut command = host.command("python3");
        command.args(["-c", OBEDIENT, DEVICE]);
        let mut user = host.spawn(command);
        let pid = user.pid();
        tell(&mut user, 0, "open");
        await_found(&host, pid, |user| user["state"] == "held");
        host.finish(host.deepres(&["adopt", &pid.to_string(), "--name", "nightly"])).success();
        tell(&mut user, 1, "close");
        let deadline = Instant::now() + COMMAND_LIMIT;
        while find(&host, pid).is_some() {
            assert!(Instant::now() < deadline);
            thread::sleep(Duration::from_millis(20));
        }
        tell(&mut user, 2, "open");
        let again = await_found(&host, pid, |_| true);
        assert_eq!((&again["state"], &again["tenant"]), (&"adopted".into(), &"nightly".into()));

        daemon.signal(rustix::process::Signal::TERM);
        daemon.finish(COMMAND_LIMIT).success();
        let _daemon = host.daemon();
        let still = await_found(&host, pid, |_| true);
        assert_eq!((&still["state"], &still["tenant"]), (&"adopted".into(), &"nightly".into()));
        assert_ne!(state(pid), 'T');
        let metered = host.status()["metering"]["processes"].clone();
        assert_eq!(
            (&metered[0]["pid"], &metered[0]["tenant"]),
            (&pid.into(), &"nightly".into()),
            "{metered}"
        );
    }

    #[test]
    fn a_process_can_be_held_until_it_is_adopted() {
        if !are_possible() {
            return;
        }
        // The test runs alone, because its daemon holds all processes that use the stand-in.
        let host = Host::measuring().config(&format!("{CONFIG}unmanaged = \"hold\"\n"));
        let daemon = host.daemon();
        let mut held = user(&host, &[]);
        held.await_json(COMMAND_LIMIT);
        await_found(&host, held.pid(), |user| user["state"] == "held");
        // The process stops when it runs next.
        let await_stopped = || {
            let deadline = Instant::now() + COMMAND_LIMIT;
            while state(held.pid()) != 'T' {
                assert!(Instant::now() < deadline, "it is not held");
                thread::sleep(Duration::from_millis(5));
            }
        };
        await_stopped();
        assert!(!daemon.stderr().contains("held again"), "nobody has let it go on:\n{}", daemon.stderr());
        // The process's owner can continue it for a moment. The daemon then stops it again.
        held.signal(rustix::process::Signal::CONT);
        await_stopped();
        let pid = held.pid().to_string();
        host.finish(host.deepres(&["adopt", &pid, "--name", "nightly"])).success();
        assert_ne!(state(held.pid()), 'T');
        let adopted = await_found(&host, held.pid(), |user| user["state"] == "adopted");
        assert_eq!(adopted["tenant"], "nightly");
        let refused = host.finish(host.deepres(&["adopt", "1"]));
        assert!(refused.code == 1 && refused.stderr.contains("no unmanaged user"), "{}", refused.stderr);

        let mut second = user(&host, &[]);
        second.await_json(COMMAND_LIMIT);
        await_found(&host, second.pid(), |user| user["state"] == "held");
        drop(daemon);
        drop(second);
        held.finish(COMMAND_LIMIT).success();
    }

    #[test]
    fn whom_a_killed_daemon_held_is_held_by_the_next_and_goes_on_under_one_that_holds_nobody() {
        if !are_possible() {
            return;
        }
        const WRITTEN: Duration = Duration::from_secs(4);
        let host = Host::measuring().config(&format!("{CONFIG}unmanaged = \"hold\"\n"));
        let daemon = host.daemon();
        let mut held = user(&host, &[]);
        let pid = held.pid();
        held.await_json(COMMAND_LIMIT);
        await_found(&host, pid, |user| user["state"] == "held");
        // The daemon writes its state at least every three seconds.
        thread::sleep(WRITTEN);
        let kill = |daemon: Process| {
            daemon.signal(rustix::process::Signal::KILL);
            daemon.finish(COMMAND_LIMIT);
            assert_eq!(state(pid), 'T');
        };
        kill(daemon);
        let daemon = host.daemon();
        await_found(&host, pid, |user| user["state"] == "held");
        thread::sleep(WRITTEN);
        kill(daemon);
        let host = host.config(&format!("{CONFIG}unmanaged = \"report\"\n"));
        let _daemon = host.daemon();
        await_found(&host, pid, |user| user["state"] == "reported");
        assert_ne!(state(pid), 'T');
        held.finish(COMMAND_LIMIT).success();
    }

    #[test]
    fn a_trace_is_of_whom_it_was_asked_for() {
        if !are_possible() {
            return;
        }
        const ASKS: &str = "import ctypes,fcntl,os,sys,time\n\
        if sys.argv[2:]: ctypes.CDLL('libcuda.so.1').cuInit(0)\n\
        f=os.open(sys.argv[1],os.O_RDWR)\n\
        print('{}', flush=True)\n\
        while True:\n\
        \x20try: fcntl.ioctl(f,0xc020462a,bytearray(32))\n\
        \x20except OSError: pass\n\
        \x20time.sleep(0.02)";
        let host = Host::measuring().config("[probes]\ndevices = [\"nvidia=10:256\"]\n");
        let _daemon = host.daemon();
        let tenant_of = |options: &[&str]| {
            let mut tenant = host.spawn(host.run(options, "python3", &["-c", ASKS, DEVICE, "computes"]));
            tenant.await_json(COMMAND_LIMIT);
            tenant
        };
        let [_inside, _outside] =
            [tenant_of(&["--name", "inside"]), tenant_of(&["--no-preload", "--name", "outside"])];
        let mut stranger = host.command("python3");
        stranger.args(["-c", ASKS, DEVICE]);
        let mut stranger = host.spawn(stranger);
        stranger.await_json(COMMAND_LIMIT);
        let pids = |events: &[Value]| {
            events.iter().filter_map(|event| event["pid"].as_u64()).collect::<std::collections::BTreeSet<_>>()
        };
        let alone = pids(&traced(&host, &["-p", &stranger.pid().to_string()]));
        assert_eq!(alone, [u64::from(stranger.pid())].into());
        let inside = pids(&traced(&host, &["--tenant", "inside"]));
        let outside = pids(&traced(&host, &["--tenant", "outside"]));
        assert!(inside.len() == 1 && outside.len() == 1 && inside != outside, "{inside:?} {outside:?}");
        assert!(inside != alone && outside != alone);
        let all = pids(&traced(&host, &["--all"]));
        assert!([alone, inside, outside].iter().flatten().all(|pid| all.contains(pid)), "{all:?}");

        let nobody = host.finish(host.deepres(&["trace", "--device", "nvidia=10:256", "--tenant", "nobody"]));
        assert!(nobody.code == 1 && nobody.stderr.contains("there is no tenant nobody"), "{}", nobody.stderr);
        // A keeper of a tenant whose processes have not started.
        let _keeper = host.spawn(host.run(&["--name", "later"], "sleep", &["60"]));
        host.await_ps(|ps| ps.find("later").is_some(), COMMAND_LIMIT);
        let mut trace =
            host.spawn(host.deepres(&["trace", "--device", "nvidia=10:256", "--tenant", "later"]));
        trace.await_error_line(|line| line == "deepres: nobody of later yet", COMMAND_LIMIT);
        trace.signal(rustix::process::Signal::TERM);
        trace.await_end(COMMAND_LIMIT).success();
    }

    #[test]
    fn a_container_that_uses_the_gpu_on_its_own_is_listed_with_both_its_process_ids_and_its_user() {
        if !are_possible() {
            return;
        }
        let host = Host::measuring().config(CONFIG);
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
            let opened_ns = container.process.await_json(COMMAND_LIMIT)["opened_ns"].as_u64().unwrap();
            let id = containers.id(&container);
            let is_its = |user: &Value| user["container"].as_str().is_some_and(|shown| id.starts_with(shown));
            let deadline = Instant::now() + COMMAND_LIMIT;
            let found = loop {
                if let Some(user) = unmanaged(&host).into_iter().find(is_its) {
                    break user;
                }
                assert!(Instant::now() < deadline, "{:#?}", unmanaged(&host));
                thread::sleep(Duration::from_millis(20));
            };
            assert_eq!((&found["uid"], &found["container_pid"]), (&uid.into(), &1.into()), "{found}");
            let pid = found["pid"].as_u64().unwrap();
            assert_ne!(pid, 1);
            let took_ns = found["reported_ns"].as_u64().unwrap().saturating_sub(opened_ns);
            assert!(took_ns <= FOUND_LIMIT_NS, "found after {took_ns} ns");
            // Perl makes one ioctl of each file that it opens, to see whether the file is a
            // terminal.
            let calls = || {
                let activity = host.status()["driver_activity"].as_array().expect("a list").clone();
                let its = activity.into_iter().find(|activity| activity["pid"] == pid)?;
                let commands = its["commands"].as_array().expect("a list");
                commands
                    .iter()
                    .find(|command| command["name"] == "0xc020462a")
                    .map(|command| command["calls"].clone())
            };
            let deadline = Instant::now() + COMMAND_LIMIT;
            while calls() != Some(5.into()) {
                assert!(Instant::now() < deadline, "{:?}", calls());
                thread::sleep(Duration::from_millis(20));
            }
            let process = rustix::process::Pid::from_raw(pid as i32).unwrap();
            rustix::process::kill_process(process, rustix::process::Signal::USR1).unwrap();
            let events = traced(&host, &["--all"]);
            assert!(events.iter().any(|event| event["pid"] == pid), "{events:#?}");
            containers.kill(container);
        }
    }

    #[test]
    fn a_device_that_is_only_mapped_and_not_open_any_more_is_found() {
        if !are_possible() {
            return;
        }
        // Like the driver's device, /dev/zero has memory to map. The stand-in has none.
        const ZERO: &str = "/dev/zero";
        let host = Host::measuring().config("[probes]\ndevices = [\"nvidia-uvm=1:5\"]\n");
        let mut command = host.command("python3");
        command.args(["-c", MAPPER, ZERO]);
        let mut mapper = host.spawn(command);
        mapper.await_json(COMMAND_LIMIT);
        let _daemon = host.daemon();
        let found = await_found(&host, mapper.pid(), |_| true);
        assert_eq!(
            (&found["seen_by"], &found["kind"]),
            (&serde_json::json!(["mapping"]), &"compute".into()),
            "{found}"
        );
        let pid = mapper.pid();
        mapper.finish(COMMAND_LIMIT).success();
        let deadline = Instant::now() + COMMAND_LIMIT;
        while find(&host, pid).is_some() {
            assert!(Instant::now() < deadline);
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn devices_that_appear_and_change_their_numbers_are_watched_from_then_on() {
        if !are_possible() {
            return;
        }
        let host = Host::measuring();
        // The daemon has its own mounts, with a list of devices that the test writes.
        let listed = host.path().join("devices");
        let list = |text: &str| {
            std::fs::write(&listed, format!("Character devices:\n  1 mem\n{text}\nBlock devices:\n")).unwrap()
        };
        list("");
        let deepres = host.deepres(&["daemon"]);
        let mut command = host.command("unshare");
        command
            .args(["--mount", "sh", "-c", "mount --bind \"$0\" /proc/devices && exec \"$@\""])
            .arg(&listed);
        command.arg(deepres.get_program()).args(deepres.get_args());
        let _daemon = host.spawn(command);
        let await_state = |wanted: &str, detail: &str| {
            let deadline = Instant::now() + COMMAND_LIMIT;
            loop {
                let shown = host.finish(host.deepres(&["ps", "--json"]));
                let status: Value = serde_json::from_str(&shown.stdout).unwrap_or_default();
                let probes = &status["probes"];
                if probes["state"] == wanted
                    && probes["detail"].as_str().is_some_and(|told| told.contains(detail))
                {
                    return;
                }
                assert!(Instant::now() < deadline, "{probes} {}", shown.stderr);
                thread::sleep(Duration::from_millis(20));
            }
        };
        await_state("waiting", "/proc/devices");
        let mut silent = user(&host, &["silent"]);
        silent.await_json(COMMAND_LIMIT);

        list("511 nvidia-uvm");
        await_state("attached", "nvidia-uvm");
        let mut other = user(&host, &[]);
        other.await_json(COMMAND_LIMIT);
        assert_eq!(unmanaged(&host), Vec::<Value>::new(), "the stand-in has another number");

        list(&format!("{} nvidia-uvm", NUMBERS.0));
        // The process has had the device open all the while, and makes no ioctl.
        let found = await_found(&host, silent.pid(), |_| true);
        assert_eq!(found["seen_by"][0], "descriptor");
        let mut late = user(&host, &[]);
        late.await_json(COMMAND_LIMIT);
        let found = await_found(&host, late.pid(), |_| true);
        assert_eq!(found["seen_by"][0], "ioctl");
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn tenants_are_never_listed_while_they_start_exec_and_end() {
        if !are_possible() {
            return;
        }
        // The tenant makes ioctls of the driver's device before and after it connects. Then it
        // executes another program that does the same, and ends.
        const TENANT: &str = r#"
import ctypes, fcntl, os, sys, time
device, rounds = sys.argv[2], int(sys.argv[3])
file = os.open(device, os.O_RDWR)
def ask():
    try: fcntl.ioctl(file, 0xc020462a, bytearray(32))
    except OSError: pass
ask()
assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
for _ in range(8):
    ask()
    time.sleep(0.1)
if rounds: os.execv(sys.executable, [sys.executable, "-c", sys.argv[1], sys.argv[1], device, str(rounds - 1)])
"#;
        let host = Host::measuring().config(CONFIG);
        let mut daemon = host.daemon();
        thread::sleep(QUIET);
        let tenants: Vec<Process> = (0..6)
            .map(|_| host.spawn(host.run(&[], "python3", &["-c", TENANT, TENANT, DEVICE, "2"])))
            .collect();
        for tenant in tenants {
            tenant.finish(COMMAND_LIMIT).success();
        }
        // A process that comes now is listed, which shows that the list works.
        let mut stranger = user(&host, &[]);
        stranger.await_json(COMMAND_LIMIT);
        await_found(&host, stranger.pid(), |_| true);
        daemon.signal(rustix::process::Signal::TERM);
        let log = daemon.await_end(COMMAND_LIMIT).stderr;
        let listed: Vec<&str> =
            log.lines().filter(|line| line.contains("an unmanaged process uses")).collect();
        assert_eq!(listed.len(), 1, "{listed:#?}");
    }

    #[test]
    fn a_tenant_is_no_stranger_however_long_its_driver_takes_to_start() {
        if !are_possible() {
            return;
        }
        // A driver that starts opens its devices and makes many ioctls. Only then is there a
        // session.
        const TENANT: &str = r#"
import ctypes, fcntl, os, sys, threading, time
starts = threading.Thread(target=lambda: results.append(ctypes.CDLL("libcuda.so.1").cuInit(0)))
results = []
starts.start()
time.sleep(0.2)
file = os.open(sys.argv[1], os.O_RDWR)
while starts.is_alive():
    try: fcntl.ioctl(file, 0xc020462a, bytearray(32))
    except OSError: pass
    time.sleep(0.05)
print('{"result": %d}' % results[0], flush=True)
sys.stdin.readline()
"#;
        let host = Host::measuring().config(&format!("{CONFIG}unmanaged = \"hold\"\n"));
        let mut daemon = host.daemon();
        thread::sleep(QUIET);
        let start = |faults: &str| {
            let mut command = host.run(&[], "python3", &["-c", TENANT, DEVICE]);
            command.env("SIMGPU_FAULTS", faults);
            host.spawn(command)
        };
        let mut tenant = start("cuInit:delay:2500ms");
        assert_eq!(tenant.await_json(COMMAND_LIMIT)["result"], 0);
        tenant.finish(COMMAND_LIMIT).success();
        // If the driver does not start after all, the process is an unmanaged user with the device
        // open.
        let mut failed = start("cuInit:delay:1s,cuInit:1:999");
        assert_eq!(failed.await_json(COMMAND_LIMIT)["result"], 999);
        await_anybody(&host);
        drop(failed);
        daemon.signal(rustix::process::Signal::TERM);
        let log = daemon.await_end(COMMAND_LIMIT).stderr;
        let listed: Vec<&str> =
            log.lines().filter(|line| line.contains("an unmanaged process uses")).collect();
        assert_eq!(listed.len(), 1, "{listed:#?}");
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn what_a_tenant_asks_once_after_its_session_is_found_within_a_second() {
        if !are_possible() {
            return;
        }
        const TENANT: &str = r#"
import ctypes, fcntl, os, sys, time
assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
file = os.open(sys.argv[2], os.O_RDWR)
try: fcntl.ioctl(file, 0xc020462a, bytearray(32))
except OSError: pass
time.sleep(1 + float(sys.argv[3]))
os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", sys.argv[1], sys.argv[2]])
"#;
        let host = Host::measuring().config(CONFIG);
        let _daemon = host.daemon();
        thread::sleep(QUIET);
        // The new program uses the device before the daemon knows of the session's end, before it
        // knows the earlier calls, or afterwards. Each session ends at another moment of the
        // second.
        for (wait, pause) in ["0.2", "0.4", "0.6", "0.8"].into_iter().zip(["0", "0.03", "0.06", "0.2"]) {
            let user = format!("import time; time.sleep({pause})\n{USER}");
            let mut tenant = host.spawn(host.run(&[], "python3", &["-c", TENANT, &user, DEVICE, wait]));
            let opened_ns = tenant.await_json(COMMAND_LIMIT)["opened_ns"].as_u64().unwrap();
            let found = await_anybody(&host);
            let took_ns = found["reported_ns"].as_u64().unwrap().saturating_sub(opened_ns);
            assert!(took_ns <= FOUND_LIMIT_NS, "found after {took_ns} ns: {found}");
            tenant.finish(COMMAND_LIMIT).success();
            let deadline = Instant::now() + COMMAND_LIMIT;
            while !unmanaged(&host).is_empty() {
                assert!(Instant::now() < deadline);
                thread::sleep(Duration::from_millis(20));
            }
        }
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn a_tenant_that_becomes_a_program_without_the_gpu_is_not_listed_on_nvmls_old_word() {
        if !are_possible() {
            return;
        }
        // The new program has the device open for a moment, less than the time that a process has
        // to connect.
        const TENANT: &str = r#"
import ctypes, os, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
os.dup2(os.open(sys.argv[1], os.O_RDWR), 9, inheritable=True)
print("{}", flush=True)
sys.stdin.readline()
os.execvp("sh", ["sh", "-c", "sleep 0.1; exec 9<&-; echo '{}'; read line"])
"#;
        let host = Host::measuring().config(CONFIG);
        let mut daemon = host.daemon();
        thread::sleep(QUIET);
        let mut tenant = host.spawn(host.run(&[], "python3", &["-c", TENANT, DEVICE]));
        tenant.await_json(COMMAND_LIMIT);
        // By now the daemon has asked NVML, and NVML has listed the process as computing.
        thread::sleep(NVML_PAUSE);
        tenant.say("");
        tenant.await_json(COMMAND_LIMIT);
        thread::sleep(QUIET);
        tenant.say("");
        tenant.finish(COMMAND_LIMIT).success();
        daemon.signal(rustix::process::Signal::TERM);
        let log = daemon.await_end(COMMAND_LIMIT).stderr;
        assert!(!log.contains("an unmanaged process uses"), "{log}");
    }

    #[test]
    fn a_tenant_that_becomes_a_program_without_a_session_and_keeps_the_device_is_found_within_a_second() {
        if !are_possible() {
            return;
        }
        const TENANT: &str = r#"
import ctypes, os, sys, time
assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
file = os.open(sys.argv[1], os.O_RDWR)
os.set_inheritable(file, True)
print('{"session": true}', flush=True)
sys.stdin.readline()
print('{"left_ns": %d}' % time.clock_gettime_ns(time.CLOCK_MONOTONIC), flush=True)
os.execvp("sleep", ["sleep", "60"])
"#;
        let host = Host::measuring().config(CONFIG);
        let _daemon = host.daemon();
        thread::sleep(QUIET);
        let mut tenant = host.spawn(host.run(&[], "python3", &["-c", TENANT, DEVICE]));
        tenant.await_json(COMMAND_LIMIT);
        assert_eq!(unmanaged(&host), Vec::<Value>::new(), "it has a session");
        tenant.say("");
        let left_ns = tenant.await_line(|line| line.contains("left_ns"), COMMAND_LIMIT);
        let left_ns = serde_json::from_str::<Value>(&left_ns).unwrap()["left_ns"].as_u64().unwrap();
        let found = await_anybody(&host);
        assert_eq!(found["command"], "sleep 60");
        let took_ns = found["reported_ns"].as_u64().unwrap().saturating_sub(left_ns);
        assert!(took_ns <= FOUND_LIMIT_NS, "found after {took_ns} ns");
    }

    #[test]
    fn who_asks_nvml_under_deepres_and_does_not_compute_is_never_listed() {
        if !are_possible() {
            return;
        }
        // nvidia-smi does this, and so does PyTorch before it computes.
        const VIEWER: &str = r#"
import ctypes, fcntl, os, sys, time
nvml = ctypes.CDLL("libnvidia-ml.so.1")
assert nvml.nvmlInit_v2() == 0
file = os.open(sys.argv[1], os.O_RDWR)
device, memory = ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0
for _ in range(30):
    try: fcntl.ioctl(file, 0xc020462a, bytearray(32))
    except OSError: pass
    time.sleep(0.1)
"#;
        let host = Host::measuring().config("[probes]\ndevices = [\"nvidia=10:256\"]\n");
        let mut daemon = host.daemon();
        thread::sleep(QUIET);
        host.spawn(host.run(&[], "python3", &["-c", VIEWER, DEVICE])).finish(COMMAND_LIMIT).success();
        // A process without deepres is listed, which shows that the list works.
        let mut stranger = user(&host, &[]);
        stranger.await_json(COMMAND_LIMIT);
        let found = await_found(&host, stranger.pid(), |_| true);
        assert_eq!(found["kind"], "control");
        daemon.signal(rustix::process::Signal::TERM);
        let log = daemon.await_end(COMMAND_LIMIT).stderr;
        let listed: Vec<&str> =
            log.lines().filter(|line| line.contains("an unmanaged process uses")).collect();
        assert_eq!(listed.len(), 1, "{listed:#?}");
    }
}
