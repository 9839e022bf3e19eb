//! Random sequences of driver calls, right ones and wrong ones, are answered with deepres in between as they are without, also while the
//! driver fails by itself; and nothing of them stays on the account.

use deepres_e2e::{Host, clients::conformance, host::COMMAND_LIMIT};

/// Calls in a sequence.
const CALLS: &str = "2000";
/// Sequences: the first ones, and those that once found something.
const SEEDS: [u32; 11] = [1, 2, 3, 4, 5, 6, 7, 13, 22, 29, 51];
/// Errors that the driver answers by injection: what the reference names, and one that nobody knows.
const CODES: [u32; 7] = [1, 2, 700, 719, 801, 999, 98765];
/// Functions that clients call and deepres does not call itself: a failure of these is the client's alone.
const FUNCTIONS: [&str; 22] = [
    "cuMemAlloc_v2",
    "cuMemAllocPitch_v2",
    "cuMemAllocManaged",
    "cuMemFree_v2",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuArrayCreate_v2",
    "cuArrayDestroy",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuLaunchGridAsync",
    "cuGraphLaunch",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuCtxDestroy_v2",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
];

/// Runs each sequence bare and as a tenant; both have to print the same, and the tenant's account has to be empty in the end.
fn assert_same_answers(faults: impl Fn(u32) -> String) {
    let host = Host::new();
    let _daemon = host.daemon();
    for seed in SEEDS {
        let (number, faults) = (seed.to_string(), faults(seed));
        let arguments = ["--sequence", CALLS, "--seed", &number];
        let mut bare = host.command(conformance());
        bare.args(arguments).env("SIMGPU_FAULTS", &faults);
        let bare = host.finish(bare).success();

        let tenant = format!("sequence-{seed}");
        let mut hooked = host.preloaded(conformance());
        hooked.args(arguments).env("SIMGPU_FAULTS", &faults).env("DEEPRES_TENANT", &tenant);
        let mut hooked = host.spawn(hooked);
        hooked.await_line(|line| line == "end", COMMAND_LIMIT);
        let ps = host.ps();
        assert_eq!(ps.tenant(&tenant).sessions.len(), 1, "seed {seed}: it ran as a tenant");
        assert_eq!(ps.tenant(&tenant).memory_bytes, 0, "seed {seed}: everything was freed");
        let hooked = hooked.finish(COMMAND_LIMIT).success();
        let differs = hooked.stdout.lines().zip(bare.stdout.lines()).find(|(hooked, bare)| hooked != bare);
        assert_eq!(differs, None, "seed {seed}, with deepres and without");
        assert_eq!(hooked.stdout.len(), bare.stdout.len(), "seed {seed}");
    }
}

#[test]
fn random_calls_are_answered_as_without_deepres() {
    assert_same_answers(|_| String::new());
}

#[test]
fn random_calls_of_a_failing_driver_are_answered_as_without_deepres() {
    assert_same_answers(|seed| {
        let (code, every) = (CODES[seed as usize % CODES.len()], 3 + seed % 4);
        let rules: Vec<String> =
            FUNCTIONS.iter().map(|function| format!("{function}:every:{every}:{code}")).collect();
        rules.join(",")
    });
}
