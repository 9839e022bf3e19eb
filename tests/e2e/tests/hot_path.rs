//! What a launch costs beside plain instructions while the gate is open: nothing is allocated, the kernel is not called, and no lock is taken.

use std::time::Duration;

use deepres_e2e::{
    Host,
    clients::{c_program, stub_driver},
    host::COMMAND_LIMIT,
};
use serde_json::Value;

/// A pause after which the meter thread sleeps until a launch wakes it: ten looks, two milliseconds apart.
const LINGER: Duration = Duration::from_millis(20);

/// Launches out of five hundred that must be seen without a locked instruction.
const UNLOCKED: u64 = 20;

fn number(said: &Value, key: &str) -> u64 {
    said[key].as_u64().unwrap_or_else(|| panic!("no {key} in {said}"))
}

#[test]
fn a_launch_allocates_nothing_calls_no_kernel_and_takes_no_lock() {
    let host = Host::new();
    let _daemon = host.daemon();
    let ps: Value = serde_json::from_str(&host.finish(host.deepres(&["ps", "--json"])).success().stdout)
        .expect("ps --json is JSON");
    let uuid = ps["gpus"][0]["uuid"].as_str().expect("a GPU with a UUID");
    let mut command = host.preloaded(c_program("hot"));
    command
        .env("LD_LIBRARY_PATH", stub_driver())
        .env("STUB_DRIVER_UUID", uuid.trim_start_matches("GPU-").replace('-', ""))
        .env("DEEPRES_TENANT", "hot")
        .env("DEEPRES_MEMORY", "4GiB");
    let mut client = host.spawn(command);
    let said = client.await_json(COMMAND_LIMIT);
    assert_eq!((number(&said, "allocations"), number(&said, "system_calls")), (0, 0), "{said}");
    // A thread that the scheduler kept waiting finds the meter thread asleep; no other call is ever made.
    let pauses = number(&said, "took_ns") / LINGER.as_nanos() as u64;
    assert!(
        number(&said, "wakes") <= pauses && number(&said, "looks") <= 2 * number(&said, "wakes"),
        "{said}"
    );
    // A lock is taken by an instruction that locks memory. Launches between the ends of a segment have none; how many of those that were gone
    // through so slowly fell between, the machine says.
    assert!(number(&said, "unlocked") > UNLOCKED, "{said}");
    assert!(number(&said, "fewest_steps") > 50, "the hook's own instructions were seen: {said}");
    client.finish(COMMAND_LIMIT).success();
    let tenant = host.ps();
    assert!(
        tenant.tenant("hot").kernel_launches > number(&said, "launches") / 2,
        "it was metered: {tenant:?}"
    );
}
