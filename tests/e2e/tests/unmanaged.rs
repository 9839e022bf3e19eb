//! Who uses the GPU without being a tenant is listed, and nobody else. A real character device stands in for the driver's.
//!
//! Takes root and kernel programs in the daemon (`cargo xtask ebpf`).

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use deepres_e2e::{Host, Process, host::COMMAND_LIMIT};
use serde_json::Value;

/// The stand-in: nothing else opens it, and it refuses NVIDIA's numbers.
const DEVICE: &str = "/dev/vga_arbiter";
const CONFIG: &str = "[probes]\ndevices = [\"nvidia-uvm=10:256\"]\n";
/// The bar, and what polling adds.
const FOUND_LIMIT_NS: u64 = 1_000_000_000;
/// After a daemon's start nobody is told of for two seconds.
const QUIET: Duration = Duration::from_millis(2_200);

/// Opens the device, asks one thing of it, says when, and waits for the end of its input. Silent ones ask nothing.
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

/// Whether this machine can run the test; says what it lacks if not.
fn is_possible() -> bool {
    let lacks = if !rustix::process::geteuid().is_root() {
        "root"
    } else if !Path::new(DEVICE).exists() {
        DEVICE
    } else {
        return true;
    };
    assert!(std::env::var_os("DEEPRES_REQUIRE_PROBES").is_none(), "the test lacks {lacks}");
    eprintln!("NOT TESTED: it lacks {lacks}");
    false
}

fn user(host: &Host, options: &[&str]) -> Process {
    let mut command = host.command("python3");
    command.args(["-c", USER, DEVICE]).args(options);
    host.spawn(command)
}

fn unmanaged(host: &Host) -> Vec<Value> {
    let deadline = Instant::now() + COMMAND_LIMIT;
    loop {
        let shown = host.finish(host.deepres(&["ps", "--json"])).success();
        let status: Value = serde_json::from_str(&shown.stdout).expect("ps --json is JSON");
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

#[test]
fn a_process_that_uses_the_gpu_on_its_own_is_listed_until_it_ends() {
    if !is_possible() {
        return;
    }
    let host = Host::new().config(&format!("{CONFIG}unmanaged = \"warn\"\n"));
    let mut early = user(&host, &["silent"]);
    early.await_json(COMMAND_LIMIT);
    let mut daemon = host.daemon();
    let mut late = user(&host, &[]);
    late.await_json(COMMAND_LIMIT);

    let found = await_found(&host, late.pid(), |_| true);
    assert_eq!(found["kind"], "compute");
    assert_eq!(found["seen_by"][0], "ioctl");
    assert_eq!(found["uid"], 0);
    assert!(found["command"].as_str().unwrap().contains("python3 -c"), "{found}");
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
fn a_hundred_of_a_hundred_are_found_within_a_second() {
    if !is_possible() {
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
fn tenants_are_never_listed_while_they_start_exec_and_end() {
    if !is_possible() {
        return;
    }
    // It asks the driver's device something before and after it connects, becomes another program that does so again, and ends.
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
    let tenants: Vec<Process> =
        (0..6).map(|_| host.spawn(host.run(&[], "python3", &["-c", TENANT, TENANT, DEVICE, "2"]))).collect();
    for tenant in tenants {
        tenant.finish(COMMAND_LIMIT).success();
    }
    // Whoever comes now is listed: so the list works.
    let mut stranger = user(&host, &[]);
    stranger.await_json(COMMAND_LIMIT);
    await_found(&host, stranger.pid(), |_| true);
    daemon.signal(rustix::process::Signal::TERM);
    let log = daemon.await_end(COMMAND_LIMIT).stderr;
    let listed: Vec<&str> = log.lines().filter(|line| line.contains("an unmanaged process uses")).collect();
    assert_eq!(listed.len(), 1, "{listed:#?}");
}

#[test]
fn a_process_can_be_held_until_it_is_adopted() {
    if !is_possible() {
        return;
    }
    let state = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().chars().next().unwrap()
    };
    // Alone: it holds whoever uses the stand-in.
    let host = Host::measuring().config(&format!("{CONFIG}unmanaged = \"hold\"\n"));
    let _daemon = host.daemon();
    let mut held = user(&host, &[]);
    held.await_json(COMMAND_LIMIT);
    await_found(&host, held.pid(), |user| user["state"] == "held");
    assert_eq!(state(held.pid()), 'T');
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
    drop(_daemon);
    drop(second);
    held.finish(COMMAND_LIMIT).success();
}

#[test]
fn a_trace_tells_the_calls_of_a_program_and_what_it_starts() {
    if !is_possible() {
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

    let nobody = host.finish(host.deepres(&["trace"]));
    assert!(nobody.code == 1 && nobody.stderr.contains("trace whom?"), "{}", nobody.stderr);
}

#[test]
fn the_doctor_says_what_is_there_and_what_to_do() {
    if !is_possible() {
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
    for check in &checks {
        assert!(check["verdict"] == "good" || check["remedy"].is_string(), "{check} names no remedy");
    }
}
