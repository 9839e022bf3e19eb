//! Client behaviour that breaks careless hooks: forks, storms of threads, work behind waits.

use std::process::Command;

use deepres_e2e::calls::{Calls, FORKED, WORK};
use deepres_e2e::prelude::*;

#[test]
fn a_forked_child_gets_the_drivers_answer_and_the_parent_goes_on() {
    const LAUNCH_MANY: &str = "sum(launch(quick, None) for _ in range(100)), cuda.cuCtxSynchronize()";
    // A forked worker of a DataLoader that calls the driver must get an error of the driver.
    let asked = [
        LAUNCH_MANY,
        "forked(lambda: cuda.cuMemGetInfo_v2(byref(c_size_t()), byref(c_size_t())))",
        "forked(lambda: launch(quick, None))",
        "forked(lambda: os.execlp('true', 'true'))",
        LAUNCH_MANY,
    ];
    let functions = format!("must(start())\n{WORK}{FORKED}quick = kernel('quick')");
    let host = Host::new();
    let start = |command| {
        let mut client = Calls::run(&host, command, &functions);
        let answers = asked.map(|expression| client.asks(expression));
        (client, answers)
    };
    let (_, bare) = start(host.command("python3"));
    assert_eq!((&*bare[0], &*bare[3]), ("(0, 0)", "0"), "{bare:?}");
    let _daemon = host.daemon();
    let (client, ours) = start(host.run(&["--name", "parent"], "python3", &[]));
    assert_eq!(ours, bare, "as without deepres");
    let ps = host.await_launches("parent", Some(200));
    assert_eq!(ps.tenant("parent").sessions.len(), 1, "the children are no sessions: {ps:?}");
    client.0.process.finish().success();
}

#[test]
fn a_storm_of_short_lived_threads_is_counted_in_full() {
    let (host, _daemon) = Host::new().with_daemon();
    let mut client = host.spawn(host.run(&["--name", "storm"], c_client_by("storm", Way::Linked), &[]));
    let said = client.await_json_within(Duration::from_secs(60));
    host.await_launches("storm", said["kernel_launches"].as_u64());
    client.finish().success();
}

#[test]
fn work_behind_a_wait_that_the_program_ends_only_afterwards_is_held_back_by_nobody() {
    let host = Host::new();
    let client = c_client("behind");
    // The driver's queue takes 1,024 entries, including the events of deepres.
    let launches = ["20", "500", "1020"];
    for launches in launches {
        let mut alone = host.preloaded(&client);
        alone.arg(launches).env_remove("DEEPRES_SOCKET").env("DEEPRES_SHARE", "50%");
        let mut alone = host.spawn(alone);
        alone.await_json_within(Duration::from_secs(60));
        alone.close_stdin();
        alone.finish_within(Duration::from_secs(10)).success();
    }
    let _daemon = host.daemon();
    for launches in launches {
        let (mut ours, said) = host.told(host.run(&["--name", launches], &client, &[launches]));
        host.await_launches(launches, said["kernel_launches"].as_u64());
        ours.close_stdin();
        ours.finish().success();
    }
}

#[test]
fn a_host_function_that_waits_for_later_work_holds_its_program_up_once() {
    /// The hook stops waiting for a completion after a second.
    const HELD_UP_MS: f64 = 500.0;
    let (host, _daemon) = Host::new().with_daemon();
    let client = c_client("released");
    let said = host.finish(host.run(&["--name", "released"], client, &["4"]));
    let said = said.success().json();
    let longest_ms = said["longest_ms"].as_array().expect("a figure for each round");
    assert_eq!(longest_ms.len(), 4, "{said}");
    let held_up = longest_ms.iter().skip(1).filter(|ms| ms.as_f64().is_none_or(|ms| ms >= HELD_UP_MS));
    assert_eq!(held_up.count(), 0, "{said}");
}

/// Functions that make, use and end one object of a kind each.
const OBJECTS: &str = r#"
import threading
here, quick = context(), kernel("quick")
def one_context():
    own, own_stream = new(cuda.cuCtxCreate_v2, 0, 0), new(cuda.cuStreamCreate, NON_BLOCKING)
    own_kernel = kernel("quick")
    must(linear("own", 1 << 20) or launch(own_kernel, None) or launch(own_kernel, own_stream))
    must(cuda.cuCtxSynchronize() or cuda.cuCtxDestroy_v2(own))
def one_stream():
    own = new(cuda.cuStreamCreate, NON_BLOCKING)
    must(launch(quick, own) or cuda.cuStreamSynchronize(own) or cuda.cuStreamDestroy_v2(own))
def launch_here(): must(cuda.cuCtxSetCurrent(here) or launch(quick, stream) or cuda.cuStreamSynchronize(stream))
def one_thread():
    thread = threading.Thread(target=launch_here)
    thread.start()
    thread.join()
def one_graph():
    graph = c_void_p()
    must(cuda.cuStreamBeginCapture_v2(stream, RELAXED) or launch(quick, stream))
    must(cuda.cuStreamEndCapture(stream, byref(graph)))
    own = executable(graph)
    must(launch_graph(own) or cuda.cuGraphExecDestroy(own) or cuda.cuGraphDestroy(graph))
def one_module():
    own = module("quick")
    must(launch(new(cuda.cuModuleGetFunction, own, b"quick"), stream))
    must(cuda.cuStreamSynchronize(stream) or cuda.cuModuleUnload(own))
def one_pool(): must(pool("own") or take("part", "own", 1 << 20) or give("part") or end_pool("own"))
def one_allocation():
    managed = new(cuda.cuMemAllocManaged, c_size_t(1 << 20), 1)
    must(linear("own", 1 << 20) or cuda.cuMemFree_v2(kept["own"]) or cuda.cuMemFree_v2(managed))
def resident_kib():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))
def left_kib(one, rounds):
    before_kib = resident_kib()
    for _ in range(rounds): one()
    return resident_kib() - before_kib
"#;

#[test]
fn objects_made_and_ended_over_and_over_leave_nothing_behind() {
    const ROUNDS: u64 = 1_000;
    /// Rounds after which no object that is created only once appears any more.
    const WARM_UP: u64 = 300;
    /// Runs of the rounds. One run that leaves little memory is enough, because some objects are
    /// created once, whenever more work than before is in flight.
    const RUNS: u64 = 4;
    /// The most memory that may be left, KiB. A lane alone takes about 13 KiB. The rest is memory
    /// that is allocated once and reused, and the simulated driver's records of destroyed objects.
    const LEFT_KIB: i64 = 4 * ROUNDS as i64;
    let (host, _daemon) = Host::new().with_daemon();
    let command = host.run(&["--name", "cycles", "--memory", "4GiB"], "python3", &[]);
    let mut client = Calls::run(&host, command, &format!("must(start())\n{WORK}{OBJECTS}"));
    for kind in ["context", "stream", "thread", "graph", "module", "pool", "allocation"] {
        let mut left_kib = |rounds| -> i64 {
            client.asks(&format!("left_kib(one_{kind}, {rounds})")).parse().expect("a number")
        };
        left_kib(WARM_UP);
        let leaves_little = (0..RUNS).any(|_| {
            let left_kib = left_kib(ROUNDS);
            println!("{kind}: {left_kib} KiB after {ROUNDS} rounds");
            left_kib < LEFT_KIB
        });
        assert!(leaves_little, "{kind}: each run left memory");
    }
}

#[test]
fn a_job_that_forbids_itself_system_calls_goes_on_as_without_deepres() {
    let host = Host::new();
    let client = c_client("filtered");
    let with = |mut command: Command, calls: &str| {
        command.arg(calls).env("DEEPRES_TENANT", "filtered").env("DEEPRES_MEMORY", "4GiB");
        host.finish(command)
    };
    for has_daemon in [false, true] {
        let _daemon = has_daemon.then(|| host.daemon());
        for calls in ["none", "sleep", "poll", "files", "sockets", "rights"] {
            let bare = with(host.command(&client), calls).success().json();
            assert_eq!(bare["six_gib"], 0, "{calls}: {bare}");
            let mut command = host.preloaded(&client);
            if !has_daemon {
                command.env_remove("DEEPRES_SOCKET").env("DEEPRES_SHARE", "50%");
            }
            let limited = with(command, calls).success().json();
            assert_eq!(limited["six_gib"], 2, "{calls}, daemon {has_daemon}: {limited}");
            assert_eq!(limited["is_calm"], bare["is_calm"], "{calls}, daemon {has_daemon}");
        }
    }
}

#[test]
fn a_thread_that_is_to_be_cancelled_gets_as_far_as_without_deepres() {
    let host = Host::new();
    let client = c_client("cancelled");
    let bare = host.finish(host.command(&client)).success().json();
    assert_eq!(bare["threads"][1], json!({"reached": 2, "is_cancelled": true}), "{bare}");
    for has_daemon in [false, true] {
        let _daemon = has_daemon.then(|| host.daemon());
        let mut command = host.preloaded(&client);
        command.env("DEEPRES_TENANT", "cancelled").env("DEEPRES_MEMORY", "4GiB");
        if !has_daemon {
            command.env_remove("DEEPRES_SOCKET").env("DEEPRES_SHARE", "50%");
        }
        assert_eq!(host.finish(command).success().json(), bare, "daemon {has_daemon}");
    }
}
