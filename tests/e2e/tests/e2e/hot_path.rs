//! Cost of a launch while the gate is open. The launch allocates nothing, makes no system call and
//! takes no lock.

use deepres_e2e::clients::stub_driver;
use deepres_e2e::prelude::*;

/// Pause after which the meter thread sleeps until a launch wakes it: ten looks, two milliseconds
/// apart.
const LINGER: Duration = Duration::from_millis(20);

/// Pause of a stream after which the meter thread may end the stream's segment.
const STALE: Duration = Duration::from_micros(200);

/// The kinds of call that the client executes in single steps.
const KINDS: [&str; 4] = ["cuLaunchKernel", "cuLaunchKernelEx", "cuGraphLaunch", "cuMemGetInfo"];
/// The number of calls of each kind without a locked instruction for which the client watches.
const UNLOCKED: u64 = 12;

/// Runs the client in this mode as a tenant, and returns its output.
fn run(host: &Host, way: &str) -> Value {
    let ps: Value = host.status();
    let uuid = ps["gpus"][0]["uuid"].as_str().expect("a GPU with a UUID");
    let mut command = host.preloaded(c_program("hot"));
    command
        .arg(way)
        .env("LD_LIBRARY_PATH", stub_driver())
        .env("STUB_DRIVER_UUID", uuid.trim_start_matches("GPU-").replace('-', ""))
        .env("DEEPRES_TENANT", "hot")
        .env("DEEPRES_MEMORY", "4GiB");
    let (client, said) = host.told(command);
    client.finish().success();
    said
}

#[test]
fn a_launch_allocates_nothing_and_calls_no_kernel() {
    let (host, _daemon) = Host::new().with_daemon();
    let said = run(&host, "counted");
    assert_eq!((number(&said, "allocations"), number(&said, "system_calls")), (0, 0), "{said}");
    // If the scheduler delays a thread, the thread can find the meter thread asleep and wake it.
    // The launch makes no other system call.
    let pauses = number(&said, "took_ns") / LINGER.as_nanos() as u64;
    assert!(
        number(&said, "wakes") <= pauses && number(&said, "looks") <= 2 * number(&said, "wakes"),
        "{said}"
    );
    // The thread can also find the meter thread ending its stream's segment after a pause. Then the
    // thread yields.
    let stale = number(&said, "took_ns") / STALE.as_nanos() as u64;
    assert!(number(&said, "yielding") <= stale, "{said}");
    let tenant = host.ps();
    assert!(
        tenant.tenant("hot").kernel_launches > number(&said, "launches") / 2,
        "it was metered: {tenant:?}"
    );
}

/// A lock needs an instruction with a lock prefix. Launches between the ends of a segment execute
/// no such instruction.
#[test]
fn a_call_of_each_kind_takes_no_lock() {
    let (host, _daemon) = Host::new().with_daemon();
    let said = run(&host, "watched");
    for kind in KINDS {
        let seen = &said[kind];
        assert!(number(seen, "unlocked") >= UNLOCKED, "{kind}: {said}");
        assert!(number(seen, "fewest_steps") > 50, "the hook's own instructions were seen: {kind}: {said}");
    }
    assert_ne!(host.ps().tenant("hot").kernel_launches, 0, "it was metered");
}
