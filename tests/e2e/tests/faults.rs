//! Errors of the driver reach the client as they are, and leave nothing on the account.

use std::{thread, time::Duration};

use deepres_e2e::{
    Host,
    clients::{Way, c_client},
    host::COMMAND_LIMIT,
};
use simgpu_engine::Config;

#[test]
fn error_codes_of_the_driver_pass_through_unchanged() {
    let host = Host::new();
    let _daemon = host.daemon();
    for fault in [
        "cuLaunchKernel:3:719",
        "cuLaunchKernelEx:1:98765",
        "cuLaunchCooperativeKernel_ptsz:2:720",
        "cuGraphLaunch:1:700",
        "cuStreamEndCapture:1:901",
        "cuCtxCreate_v2:1:2",
        "cuInit:1:100",
    ] {
        let client = c_client("launches", Way::ProcAddress);
        let mut bare = host.command(&client);
        bare.env("SIMGPU_FAULTS", fault);
        let bare = host.finish(bare);
        assert_eq!(bare.code, 1, "{fault} is met: {bare:?}");
        let mut hooked = host.run(&[], &client, &[]);
        hooked.env("SIMGPU_FAULTS", fault);
        assert_eq!(host.finish(hooked), bare, "{fault}");
    }
}

#[test]
fn an_allocation_that_the_driver_refuses_leaves_nothing_on_the_account() {
    let host = Host::new();
    let _daemon = host.daemon();
    let apis = [
        "cuMemAlloc_v2",
        "cuMemAllocPitch_v2",
        "cuMemAllocManaged",
        "cuMemAllocAsync",
        "cuMemAllocAsync_ptsz",
        "cuMemAllocFromPoolAsync",
        "cuMemAllocFromPoolAsync_ptsz",
        "cuMemCreate",
    ];
    let faults: Vec<String> = apis.iter().map(|api| format!("{api}:every:3:2")).collect();
    let options = ["--name", "unlucky", "--memory", "4GiB"];
    let mut command = host.run(&options, c_client("race", Way::Dlsym), &["4", "1"]);
    command.env("SIMGPU_FAULTS", faults.join(","));
    let mut client = host.spawn(command);
    let said = client.await_json(COMMAND_LIMIT);
    assert_eq!(said["other_errors"], 0, "{said}");
    assert!(said["refusals"].as_u64() > Some(10), "{said}");
    let ps = host.ps();
    assert_eq!(ps.tenant("unlucky").sessions.len(), 1);
    let held = ps.tenant("unlucky").memory_bytes;
    assert!(held <= Config::default().context_overhead_bytes, "{held} bytes are left on the account");
    client.finish(COMMAND_LIMIT).success();
}

#[test]
fn a_client_goes_on_when_our_own_events_fail() {
    let host = Host::new();
    let _daemon = host.daemon();
    for fault in [
        "cuEventRecord:every:1:2",
        "cuEventCreate:every:1:2",
        "cuEventQuery:every:2:1",
        "cuEventElapsedTime:every:1:1",
    ] {
        let mut command = host.run(&["--name", "t"], c_client("launches", Way::Dlsym), &[]);
        // Whichever of the variants is called.
        let variants = [fault.to_owned(), fault.replacen(':', "_ptsz:", 1), fault.replacen(':', "_v2:", 1)];
        command.env("SIMGPU_FAULTS", variants.join(","));
        let mut client = host.spawn(command);
        let said = client.await_json(COMMAND_LIMIT);
        assert_eq!(said["kernel_launches"], 550, "{fault}");
        assert_eq!(host.ps().tenant("t").sessions.len(), 1, "{fault}");
        client.finish(COMMAND_LIMIT).success();
    }
}

#[test]
fn a_process_that_dies_inside_a_call_leaves_nothing() {
    let host = Host::new();
    let _daemon = host.daemon();
    for fault in [
        "die:cuMemAlloc_v2:3",
        "die:cuMemFreeAsync:2",
        "die:cuMemCreate:1",
        "die:cuInit:1",
        "die:cuCtxCreate_v2:1",
    ] {
        let mut command =
            host.run(&["--name", "doomed", "--memory", "2GiB"], c_client("fill", Way::Dlsym), &["33554432"]);
        command.env("SIMGPU_FAULTS", fault);
        assert_eq!(host.finish(command).code, 128 + 9, "{fault}");
        thread::sleep(Duration::from_millis(100));
        let ps = host.ps();
        let tenant = ps.tenant("doomed");
        assert_eq!((tenant.memory_bytes, tenant.sessions.len()), (0, 0), "{fault}: {tenant:?}");
    }
}
