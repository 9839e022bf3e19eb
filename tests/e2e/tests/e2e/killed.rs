//! A process is killed at its start or inside a call that takes or frees memory, before or after
//! the driver did its work. Afterwards the tenant's account holds only memory that the GPU holds.
//! The tenant's other processes can allocate the rest.

use deepres_e2e::calls::Calls;
use deepres_e2e::clients::conformance;
use deepres_e2e::prelude::*;

const LIMIT_BYTES: u64 = 400 * MIB;
/// Memory that another process of the tenant holds: three quarters of the limit.
const OTHER_BYTES: u64 = 300 * MIB;
const TENANT: &str = "walk";
/// Number of calls in a run, which contains several calls of every function.
const CALLS: &str = "5000";
const KILLED: i32 = 128 + 9;
/// Functions that a process calls once, before it has memory.
const AT_START: [&str; 2] = ["cuInit", "cuCtxCreate_v2"];
/// A call has four steps: reserve memory, call the driver, get the answer, enter it in the account.
/// A death inside the driver lies between two steps. `abi/tests/kills.rs` tests deaths inside the
/// account's own steps.
const APIS: [&str; 14] = [
    "cuMemAlloc_v2",
    "cuMemAllocPitch_v2",
    "cuMemAllocManaged",
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemCreate",
    "cuMemMap",
    "cuArrayCreate_v2",
    "cuMemFree_v2",
    "cuMemFreeAsync",
    "cuMemRelease",
    "cuMemUnmap",
    "cuArrayDestroy",
    "cuMemRetainAllocationHandle",
];

#[test]
fn a_process_killed_in_any_call_of_memory_leaves_nothing_behind() {
    // Contexts take no memory, so the GPU's record contains allocations alone.
    let (host, _daemon) = Host::new().simgpu("context_overhead_bytes = 0\n").with_daemon();
    let limit = LIMIT_BYTES.to_string();
    let variables = [("DEEPRES_TENANT", TENANT), ("DEEPRES_MEMORY", limit.as_str())];
    let mut other = Calls::start(&host, &variables);
    other.does(&format!("linear('held', {OTHER_BYTES})"));

    for api in AT_START.into_iter().chain(APIS) {
        for when in ["die", "die-after"] {
            let places: &[u32] = if AT_START.contains(&api) { &[1] } else { &[1, 3] };
            for nth in places {
                let fault = format!("{when}:{api}:{nth}");
                let mut victim = host.preloaded(conformance());
                victim.args(["--sequence", CALLS, "--seed", "7"]);
                victim.envs(variables).env("SIMGPU_FAULTS", &fault);
                let ended = host.finish(victim);
                assert_eq!(ended.code, KILLED, "{fault}: {}", ended.stderr);
                host.await_ps(|ps| ps.tenant(TENANT).sessions.len() == 1);
                let truth = host.truth().gpus[0];
                assert_eq!(truth.memory_used_bytes, OTHER_BYTES, "{fault}");
                assert_eq!(host.ps().tenant(TENANT).memory_bytes, OTHER_BYTES, "{fault}");
            }
        }
        let mut all = Calls::start(&host, &variables);
        all.does(&format!("linear('all', {})", LIMIT_BYTES - OTHER_BYTES));
        all.0.process.finish().success();
    }
    other.0.process.finish().success();
}
