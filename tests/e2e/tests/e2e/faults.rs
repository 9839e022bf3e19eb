//! The driver's errors reach the client unchanged, and leave nothing on the account.

use std::path::Path;

use deepres_e2e::prelude::*;

#[test]
fn a_client_goes_on_when_our_own_events_fail() {
    let (host, _daemon) = Host::new().with_daemon();
    for fault in [
        "cuEventRecord:every:1:2",
        "cuEventCreate:every:1:2",
        "cuEventQuery:every:2:1",
        "cuEventElapsedTime:every:1:1",
    ] {
        let mut command = host.run(&["--name", "t"], c_client("launches"), &[]);
        // The fault applies to all variants of the function, because the client can call any of
        // them.
        let variants = [fault.to_owned(), fault.replacen(':', "_ptsz:", 1), fault.replacen(':', "_v2:", 1)];
        command.env("SIMGPU_FAULTS", variants.join(","));
        let (client, said) = host.told(command);
        assert_eq!(said["kernel_launches"], 550, "{fault}");
        assert_eq!(host.ps().tenant("t").sessions.len(), 1, "{fault}");
        client.finish().success();
    }
}

#[test]
fn launches_that_the_driver_refuses_are_neither_counted_nor_charged() {
    let (host, _daemon) = Host::new().with_daemon();
    let faults = ["cuLaunchKernel", "cuLaunchKernelEx"].map(|api| format!("{api}:every:2:719"));
    let client = c_client("refused");
    let mut command = host.run(&["--name", "refused"], client, &["busy_20us", "4000", "100"]);
    command.env("SIMGPU_FAULTS", faults.join(","));
    let (client, said) = host.told(command);
    let taken = said["kernel_launches"].as_u64();
    assert_eq!(taken, Some(2000));
    let ps = host.await_launches("refused", taken);
    let metered_ns = ps.tenant("refused").gpu_ns;
    let true_ns = host.kernel_ns();
    assert!(metered_ns.abs_diff(true_ns) < true_ns / 10, "metered {metered_ns} ns of {true_ns} ns");
    client.finish().success();
}

#[test]
fn a_line_that_nobody_reads_neither_ends_a_job_nor_holds_it_up() {
    let (host, _daemon) = Host::new().with_daemon();
    for reader in ["gone", "full"] {
        let client = c_client("unheard");
        let mut client = host.spawn(host.run(&["--memory", "4GiB"], client, &[reader]));
        assert_eq!(client.await_json()["result"], 2, "{reader}");
        client.finish().success();
    }
}

/// Functions that deepres calls by itself, in addition to the client's calls. The list leaves out
/// the functions for nodes of graphs, managed memory and code.
const OURS: &str = "cuCtxGetCurrent cuCtxSetCurrent cuCtxPushCurrent_v2 cuCtxPopCurrent_v2 cuCtxGetDevice \
     cuDeviceGetCount cuDeviceGetUuid cuDeviceGetUuid_v2 cuStreamGetCtx cuStreamIsCapturing cuStreamQuery \
     cuThreadExchangeStreamCaptureMode cuEventCreate cuEventRecord cuEventQuery cuEventElapsedTime \
     cuDevicePrimaryCtxGetState cuDeviceGetAttribute cuMemPoolGetAttribute \
     cuMemPoolTrimTo cuDeviceGetMemPool cuDeviceGetDefaultMemPool cuDeviceGetGraphMemAttribute \
     cuDeviceGraphMemTrim";

/// The most functions of [`OURS`] that a client may call itself.
const MOST_OF_THE_CLIENT: usize = 4;

/// Calls that fail: the first, every third, or all.
const OFTEN: [&str; 3] = ["1", "every:3", "every:1"];

/// Returns all rules of the simulated driver that make calls of deepres fail. The rules leave out
/// functions that the client calls itself.
fn failures_of_ours(client: &Path, arguments: &[&str]) -> Vec<String> {
    let host = Host::new();
    let is_ours = |function: &&str| {
        let mut bare = host.command(client);
        bare.args(arguments).env("SIMGPU_FAULTS", format!("{function}:every:1:999"));
        host.finish(bare).code == 0
    };
    let ours: Vec<&str> = OURS.split(' ').filter(is_ours).collect();
    assert!(ours.len() + MOST_OF_THE_CLIENT >= OURS.split(' ').count(), "{ours:?}");
    ours.into_iter().flat_map(|function| OFTEN.map(|often| format!("{function}:{often}:999"))).collect()
}

/// Lets each call of ours fail, while the client makes this many captures in each mode.
fn assert_captures_hold(captures: u32) {
    let (host, _daemon) = Host::new().with_daemon();
    let client = c_client("replays");
    let commands = [format!("both {captures}\nstop\n")];
    let commands = commands.each_ref().map(String::as_str);
    for fault in failures_of_ours(&client, &commands) {
        let mut command = host.run(&["--name", "t"], &client, &commands);
        command.env("SIMGPU_FAULTS", &fault);
        let said = host.finish(command).success().json();
        for count in ["failed", "wrong_nodes", "other_failures"] {
            assert_eq!(said[count], 0, "{fault}: {said}");
        }
    }
}

#[test]
fn captures_of_the_client_hold_whichever_call_of_ours_fails() {
    assert_captures_hold(5);
}

#[test]
#[ignore = "deep: takes long"]
fn many_captures_of_the_client_hold_whichever_call_of_ours_fails() {
    assert_captures_hold(50);
}

#[test]
fn a_client_stays_within_its_limit_whichever_call_of_ours_fails() {
    const LIMIT_BYTES: u64 = 1 << 30;
    /// A pool's spare memory can lie in too many pieces. Then the pool grows for the length of a
    /// call. The growth is at most the largest chunk for each of three threads.
    const PASSING_BYTES: u64 = 3 * (32 << 20);
    /// Least memory that the client must reach. The chunks have 2 to 32 MiB.
    const LEAST_BYTES: u64 = LIMIT_BYTES / 4;
    let (host, _daemon) = Host::new().simgpu("context_overhead_bytes = 0\n").with_daemon();
    let client = c_client("race");
    // These kinds of allocation call no function of [`OURS`].
    let arguments = [
        "3",
        "0.3",
        "cuMemAlloc_v2",
        "cuMemAllocAsync",
        "cuMemAllocAsync_ptsz",
        "cuMemCreate",
        "cuArrayCreate_v2",
    ];
    for fault in failures_of_ours(&client, &arguments) {
        let mut command = host.run(&["--name", "t", "--memory", "1GiB"], &client, &arguments);
        command.env("SIMGPU_FAULTS", &fault);
        let said = host.finish(command).success().json();
        assert_eq!(said["other_errors"], 0, "{fault}: {said}");
        let most_bytes = said["most_bytes"].as_u64().expect("a number");
        let peak_bytes = host.truth().gpus[0].memory_peak_bytes;
        println!(
            "{fault}: {} MiB of its own count, at most {} MiB on the GPU",
            most_bytes >> 20,
            peak_bytes >> 20
        );
        assert!(most_bytes > LEAST_BYTES, "{fault}: {said}");
        assert!(peak_bytes <= LIMIT_BYTES + PASSING_BYTES, "{fault}: {peak_bytes} bytes were held");
    }
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    #[test]
    fn work_of_a_context_that_the_meter_cannot_enter_is_given_up_and_charged_for_the_time_there_was() {
        let (host, _daemon) = Host::measuring().with_daemon();
        // The client itself never makes a context current.
        let arguments = ["--kernel", "busy_1000us", "--seconds", "2", "--sync-every", "8"];
        let mut command = host.run(&["--name", "barred"], c_client("backlog"), &arguments);
        command.env("SIMGPU_FAULTS", "cuCtxSetCurrent:every:1:709");
        let mut client = host.spawn(command);
        let launched = client.await_json()["launches"].as_u64();
        let is_complete = || host.tenant("barred")["sessions"][0]["gpus"][0]["in_flight"] == false;
        eventually_within("everything is complete", Duration::from_secs(5), is_complete);
        let ps = host.await_launches("barred", launched);
        let metered_ns = ps.tenant("barred").gpu_ns;
        let true_ns = host.kernel_ns();
        println!("charged {metered_ns} ns of {true_ns} ns");
        // The meter could measure nothing, and the client had work all the time.
        assert!(metered_ns.abs_diff(true_ns) < true_ns / 2, "charged {metered_ns} ns of {true_ns} ns");
        // Another tenant gets the GPU at once.
        let other = host.run(&["--name", "other"], c_client("launches"), &[]);
        host.spawn(other).finish().success();
        client.finish().success();
    }
}
