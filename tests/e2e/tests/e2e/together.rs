//! `cuLaunchCooperativeKernelMultiDevice` launches on two GPUs with one call. Each GPU has its own
//! gate and meter.

use deepres_e2e::prelude::*;

const KERNEL_NS: u64 = 5_000_000;
/// Kernels by name. The kernel `ring_long` keeps the second GPU busy. This kernel takes longer than
/// any other work in the test.
const SIMGPU_TOML: &str = r#"
gpus = 2
kernel = [{ name = "both", ns = 5000000 }, { name = "quick", ns = 20000 }, { name = "ring_long", ns = 300000000 }]
"#;
const CUDA_ERROR_INVALID_VALUE: u64 = 1;
/// Time within which the tenant's meter thread reads its markers.
const SETTLES_WITHIN: Duration = Duration::from_secs(10);

fn host() -> Host {
    Host::new().simgpu(SIMGPU_TOML)
}

fn start(host: &Host, kernel: &str) -> Process {
    let command = host.run(&["--name", "both"], c_client_by("together", Way::ProcAddress), &[kernel]);
    host.start(command, "ready")
}

/// Gives an order and waits until it is done, and calls `look` meanwhile. Returns the result code.
#[track_caller]
fn order(process: &mut Process, line: &str, mut look: impl FnMut(&Process)) -> u64 {
    let answers = |process: &Process| -> Vec<u64> {
        let said = process.stdout();
        said.lines().filter_map(|line| line.strip_prefix("done ")?.parse().ok()).collect()
    };
    let before = answers(process).len();
    process.say(line);
    eventually(line, || {
        assert!(process.try_wait().is_none(), "{}{}", process.stdout(), process.stderr());
        look(process);
        answers(process).len() > before
    });
    answers(process)[before]
}

/// Returns a counter of the tenant on each GPU.
fn counter(host: &Host, key: &str) -> [u64; 2] {
    let own = host.tenant("both");
    let gpus = own["gpus"].as_array().expect("a list");
    let of = |index: u64| {
        let gpu: Option<&Value> = gpus.iter().find(|gpu| gpu["gpu"].as_u64() == Some(index));
        gpu.map_or(0, |gpu| gpu[key].as_u64().unwrap_or_else(|| panic!("no {key} in {gpu}")))
    };
    [of(0), of(1)]
}

#[track_caller]
fn await_launches(host: &Host, wanted: u64) {
    let launches = || counter(host, "kernel_launches");
    await_value_within(launches, |launches| *launches == [wanted; 2], SETTLES_WITHIN);
}

/// Waits until the tenant is charged for this many kernels on each GPU, within a tenth.
#[track_caller]
fn await_charges(host: &Host, kernels: u64) {
    await_charges_within(host, kernels, [10, 10]);
}

/// Waits until the tenant is charged for this many kernels on each GPU, within this part (one in so
/// many).
#[track_caller]
fn await_charges_within(host: &Host, kernels: u64, parts: [u64; 2]) {
    let wanted = kernels * KERNEL_NS;
    let is_near = |(charged, part): (&u64, u64)| charged.abs_diff(wanted) <= wanted / part;
    let are_near = |charged: &[u64; 2]| charged.iter().zip(parts).all(is_near);
    await_value_within(|| counter(host, "gpu_ns"), are_near, SETTLES_WITHIN);
}

/// Returns the number of kernels that really ran on each GPU.
fn ran(host: &Host, pid: u32) -> [u64; 2] {
    let process = host.record(pid);
    [0, 1].map(|gpu| process.gpus[gpu].kernels)
}

#[test]
fn a_launch_on_two_gpus_is_counted_and_charged_on_each() {
    const CALLS: u64 = 40;
    let (host, _daemon) = host().with_daemon();
    let mut process = start(&host, "both");
    assert_eq!(order(&mut process, &format!("launch {CALLS}"), |_| ()), 0);
    await_launches(&host, CALLS);
    await_charges(&host, CALLS);
    assert_eq!(ran(&host, host.ps().tenant("both").pids()[0]), [CALLS; 2]);
    process.finish().success();
}

#[test]
fn a_call_that_the_driver_refuses_counts_on_no_gpu() {
    const CALLS: u64 = 20;
    let host = host();
    let bare = {
        let mut command = host.command(c_client_by("together", Way::ProcAddress));
        command.arg("both");
        let mut process = host.spawn(command);
        let codes = ["twice", "default"].map(|wrong| order(&mut process, wrong, |_| ()));
        process.finish().success();
        codes
    };
    assert_eq!(bare, [CUDA_ERROR_INVALID_VALUE; 2]);
    let _daemon = host.daemon();
    let mut process = start(&host, "both");
    // In the first round the kernel is unknown and no segment is open. Later the kernel is known,
    // and a segment can be open.
    for round in 0..3 {
        for wrong in ["twice", "default"] {
            for _ in 0..5 {
                assert_eq!(order(&mut process, wrong, |_| ()), CUDA_ERROR_INVALID_VALUE, "{wrong}");
            }
        }
        await_launches(&host, round * CALLS);
        assert_eq!(order(&mut process, &format!("launch {CALLS}"), |_| ()), 0);
        await_launches(&host, (round + 1) * CALLS);
    }
    await_charges(&host, 3 * CALLS);
    process.finish().success();
}

#[test]
fn a_call_that_is_refused_among_others_in_flight_counts_on_no_gpu() {
    const CALLS: u64 = 2000;
    let (host, _daemon) = host().with_daemon();
    let mut process = start(&host, "quick");
    for round in 1..=3 {
        assert_eq!(order(&mut process, &format!("amid {CALLS}"), |_| ()), CUDA_ERROR_INVALID_VALUE);
        await_launches(&host, round * CALLS);
    }
    process.finish().success();
}

#[test]
fn a_closed_gate_on_one_gpu_holds_the_whole_call_back() {
    /// The most rounds. By chance, a round's calls wait a short or a long time for the second GPU.
    /// The test repeats rounds until a call had to wait long enough.
    const ROUNDS: u64 = 10;
    const CALLS: u64 = 6;
    const WAITED_NS: u64 = 100_000_000;
    /// Number of looks after which a launch counts as early. A client that has launched but not yet
    /// printed its answer also looks early, but for fewer looks.
    const LOOKS: u32 = 20;
    // As a gang, the tenant would have both gates open or none.
    let (host, _daemon) = host().config("gangs = false\n").with_daemon();
    let mut process = start(&host, "both");
    let pid = host.ps().tenant("both").pids()[0];
    assert_eq!(order(&mut process, "launch 4", |_| ()), 0);
    await_charges(&host, 4);
    // Another tenant always wants the second GPU, and holds it for 300 ms or more at a time.
    let arguments = ["--kernel", "ring_long", "--rank", "1", "--depth", "2"];
    let other = host.start(host.run(&["--name", "other"], c_client("ring"), &arguments), "ready");
    host.await_ps(|ps| ps.find("other").is_some_and(|other| other.gpu_ns > 0));

    let calls_in = |process: &Process| {
        let said = process.stdout();
        said.lines()
            .rev()
            .find_map(|line| line.strip_prefix("calling ").map(str::to_owned))
            .filter(|number| !said.contains(&format!("called {number}\n")))
    };
    let (mut early, mut held_back) = (0, 0_u32);
    let mut calls = 4;
    let mut waits = [0; 2];
    for _ in 0..ROUNDS {
        let code = order(&mut process, &format!("launch {CALLS}"), |process| {
            let Some(before) = calls_in(process) else { return };
            let ran = ran(&host, pid);
            if calls_in(process).as_ref() != Some(&before) {
                return;
            }
            let call: u64 = before.parse().expect("a number");
            held_back += 1;
            early = if ran[0] >= call { early + 1 } else { 0 };
            assert!(early < LOOKS, "call {call} has not returned, and {ran:?} kernels ran");
        });
        assert_eq!(code, 0);
        calls += CALLS;
        waits = counter(&host, "wait_ns");
        if held_back > LOOKS && waits[1] > WAITED_NS {
            break;
        }
    }
    assert!(held_back > LOOKS, "no call was ever held back: {held_back}");
    assert!(waits[1] > WAITED_NS, "it waited for the second GPU: {waits:?}");
    assert_eq!(waits[0], 0, "nobody else wants the first: {waits:?}");
    drop(other);
    await_launches(&host, calls);
    assert_eq!(ran(&host, pid), [calls; 2]);
    // The wait for one GPU does not count as use of the other. On the second GPU the tenant's
    // kernels took turns with a long kernel of the other tenant, and no meter shows the slices.
    await_charges_within(&host, calls, [10, 3]);
    process.finish().success();
}
