//! `deepres pause` and `deepres resume`.

use deepres_e2e::prelude::*;

/// Time within which work that was launched before a pause ends, on any machine.
const DRAINED: Duration = Duration::from_millis(500);
/// Time of a measurement that shows which tenant has the GPU.
const SEEN: Duration = Duration::from_millis(500);

fn start(host: &Host, name: &str) -> Process {
    let arguments = ["--kernel", "busy_200us", "--sync-every", "100"];
    let options = ["--name", name, "--share", "50%"];
    host.start(host.run(&options, c_client_by("backlog", Way::ProcAddress), &arguments), "ready")
}

/// Asserts that the paused tenant runs nothing, and that the tenant beside it runs.
#[track_caller]
fn assert_paused(host: &Host, name: &str, other: &str) {
    thread::sleep(DRAINED);
    let window = Window::measure(host, SEEN);
    assert_eq!(window.true_percent(name), 0.0, "it is paused");
    assert!(window.true_percent(other) > 99.0, "the other has the GPU");
    let shown = host.tenant(name);
    assert_eq!((&shown["paused"], &shown["gpus"][0]["gate"]), (&true.into(), &"paused".into()), "{shown}");
}

#[test]
fn pausing_or_resuming_an_unknown_tenant_is_refused() {
    let (host, _daemon) = Host::new().with_daemon();
    for command in ["pause", "resume"] {
        let finished = host.call(&[command, "nobody"]);
        assert_eq!(finished.code, 1);
        assert!(finished.stderr.contains("there is no tenant `nobody`"), "{}", finished.stderr);
    }
}

/// Launches without end. At SIGTERM, the program ends with status 3, as a job does that saves its
/// state. With an argument, a thread waits for the signal. Otherwise the program has a handler,
/// which Python runs only between two of its own steps.
const HEEDS: &str = r#"
import ctypes, os, signal, sys, threading
if sys.argv[1:]:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=lambda: os._exit(3 if signal.sigwait({signal.SIGTERM}) else 1)).start()
else:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
cu = ctypes.CDLL("libcuda.so.1")
context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
image = b".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry quick()\n{\nret;\n}\n"
cu.cuInit(0)
cu.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
cu.cuModuleLoadData(ctypes.byref(module), image)
cu.cuModuleGetFunction(ctypes.byref(kernel), module, b"quick")
print("ready", flush=True)
while True:
    cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None)
    cu.cuCtxSynchronize()
"#;

/// Asserts that a job ends by itself soon after SIGTERM. The job runs [`HEEDS`].
#[track_caller]
fn assert_heard(job: &mut Process) {
    /// The time includes the end of the program.
    const HEARD_WITHIN: Duration = Duration::from_millis(2500);
    thread::sleep(DRAINED);
    assert!(job.try_wait().is_none());
    job.signal(Signal::TERM);
    assert_eq!(job.await_end_within(HEARD_WITHIN).code, 3);
}

#[test]
fn a_paused_job_hears_within_a_second_that_it_should_end() {
    let (host, _daemon) = Host::new().with_daemon();
    for (name, arguments) in [("handler", &["-c", HEEDS][..]), ("thread", &["-c", HEEDS, "thread"])] {
        let mut job = host.start(host.run(&["--name", name], "python3", arguments), "ready");
        host.call(&["pause", name]).success();
        assert_heard(&mut job);
    }
}

#[test]
fn a_guest_that_waits_for_an_owner_hears_within_a_second_that_it_should_end() {
    let (host, _daemon) = Host::new().with_daemon();
    let _owner = start(&host, "owner");
    let options = ["--name", "guest", "--class", "best-effort"];
    let mut guest = host.start(host.run(&options, "python3", &["-c", HEEDS]), "ready");
    assert_heard(&mut guest);
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    #[test]
    fn a_paused_tenant_runs_nothing_until_it_is_resumed_and_a_restart_of_the_daemon_changes_nothing() {
        let (host, mut daemon) = Host::measuring().with_daemon();
        let mut clients = [start(&host, "one"), start(&host, "two")];
        thread::sleep(SEEN);
        host.call(&["pause", "one"]).success();
        assert_paused(&host, "one", "two");

        daemon.kill();
        let _daemon = host.daemon();
        host.await_ps(|ps| {
            ["one", "two"].iter().all(|name| ps.find(name).is_some_and(|tenant| tenant.pids().len() == 1))
        });
        assert_paused(&host, "one", "two");

        host.call(&["resume", "one"]).success();
        thread::sleep(SEEN);
        let window = Window::measure(&host, SEEN);
        for name in ["one", "two"] {
            let had = window.true_percent(name);
            assert!((had - 50.0).abs() <= 10.0, "{name} had {had:.1} % once nobody was paused");
        }
        let shown = host.tenant("one");
        assert_eq!(shown["paused"], false);
        let waits = shown["gpus"][0]["waits_by_length"].as_array().expect("a histogram").clone();
        let counted: u64 = waits.iter().filter_map(Value::as_u64).sum();
        assert_eq!(Some(counted), shown["gpus"][0]["waits"].as_u64(), "each wait is in one place: {shown}");
        assert!(clients.iter_mut().all(|client| client.try_wait().is_none()));
    }
}
