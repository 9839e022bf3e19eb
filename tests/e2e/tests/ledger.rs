//! The ledger against the truth: after random calls of all kinds, right ones and wrong ones, while the driver fails by itself, each kind of
//! memory is charged exactly what the published rule says of what the driver has given.
//!
//! `DEEPRES_LEDGER_CALLS=10000000 cargo test -p deepres-e2e --test ledger` is the long run.

use std::time::Duration;

use deepres_e2e::{Host, clients::conformance};
use serde_json::Value;

/// Calls of a sequence, without the variable.
const CALLS: u64 = 40_000;
const CALLS_VARIABLE: &str = "DEEPRES_LEDGER_CALLS";
/// Comparisons on the way.
const LOOKS: u64 = 20;
const WITHIN: Duration = Duration::from_secs(200);
/// Errors that the driver answers by injection, each at its own pace.
const FAULTS: &str = "cuMemAlloc_v2:every:5:2,cuMemAllocPitch_v2:every:7:1,cuMemAllocManaged:every:3:999,cuMemFree_v2:every:4:700,\
cuMemAllocAsync:every:5:2,cuMemFreeAsync:every:6:719,cuMemCreate:every:5:2,cuMemRelease:every:4:1,cuMemMap:every:5:98765,\
cuMemUnmap:every:4:1,cuArrayCreate_v2:every:3:2,cuArrayDestroy:every:5:400,cuCtxDestroy_v2:every:3:201";
/// Kinds in the order in which the simulated driver tells of them, in `ps`'s words.
const KINDS: [&[&str]; 5] = [&["linear", "pitch"], &["managed"], &["pool"], &["physical"], &["array"]];

fn assert_exact(seed: u64, faults: &str) {
    let calls = std::env::var(CALLS_VARIABLE).map_or(CALLS, |text| text.parse().expect("a number of calls"));
    let host = Host::new();
    let _daemon = host.daemon();
    let mut command = host.preloaded(conformance());
    let (number, every) = (seed.to_string(), (calls / LOOKS).to_string());
    command.args(["--sequence", &calls.to_string(), "--seed", &number, "--account", &every]);
    command.env("SIMGPU_FAULTS", faults).env("DEEPRES_TENANT", "random");
    let mut client = host.spawn(command);
    for look in 1..=LOOKS {
        let prefix = format!("account {} ", calls / LOOKS * look);
        let line = client.await_line(|line| line.starts_with(&prefix), WITHIN);
        let truth: Vec<u64> =
            line[prefix.len()..].split(' ').map(|word| word.parse().expect("a number")).collect();
        let ps: Value = serde_json::from_str(&host.finish(host.deepres(&["ps", "--json"])).success().stdout)
            .expect("JSON");
        let account = &ps["tenants"][0]["gpus"][0];
        let held = |kind: &&str| account["memory_by_kind"][*kind].as_u64().unwrap_or(0);
        let ledger: Vec<u64> = KINDS.iter().map(|kinds| kinds.iter().map(held).sum()).collect();
        assert_eq!(
            ledger, truth,
            "seed {seed}, after {prefix}: linear and pitch, managed, pool, physical, array"
        );
        assert_eq!(
            account["memory_bytes"].as_u64(),
            Some(truth.iter().sum()),
            "seed {seed}: the sum is the ledger's"
        );
        client.say("");
    }
    client.await_line(|line| line == "end", WITHIN);
    assert_eq!(host.ps().tenant("random").memory_bytes, 0, "seed {seed}: everything was freed");
    client.finish(WITHIN).success();
}

#[test]
fn after_random_calls_the_ledger_is_what_the_driver_has_given_by_the_published_rule() {
    for seed in [101, 102] {
        assert_exact(seed, "");
    }
}

#[test]
fn after_random_calls_of_a_failing_driver_the_ledger_is_what_it_has_given_by_the_published_rule() {
    for seed in [201, 202] {
        assert_exact(seed, FAULTS);
    }
}
