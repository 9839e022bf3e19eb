//! Guaranteed memory: promised once, and whoever comes when it is promised to others is told so, or waits.

use std::{thread, time::Duration};

use deepres_e2e::{
    Host,
    clients::{Way, c_client},
    host::COMMAND_LIMIT,
};

const GPU: &str = "memory_bytes = 4294967296\ncontext_overhead_bytes = 0\n";

#[test]
fn guaranteed_memory_that_others_have_is_refused_with_the_reason_or_waited_for() {
    let host = Host::new().simgpu(GPU);
    let _daemon = host.daemon();
    let guaranteed =
        |name, share, memory| ["--name", name, "--class", "guaranteed", "--share", share, "--memory", memory];
    let view = || c_client("view", Way::Dlsym);
    let mut first = host.spawn(host.run(&guaranteed("first", "40%", "3GiB"), view(), &[]));
    first.await_json(COMMAND_LIMIT);

    let refused = host.finish(host.run(&guaranteed("second", "40%", "2GiB"), view(), &[]));
    assert_ne!(refused.code, 0);
    assert!(refused.stderr.contains("leave 1 GiB of a GPU's"), "{}", refused.stderr);
    assert!(refused.stderr.contains("--wait"), "{}", refused.stderr);

    // What is not guaranteed takes what comes.
    let mut fair = host.spawn(host.run(&["--name", "fair", "--memory", "4GiB"], view(), &[]));
    fair.await_json(COMMAND_LIMIT);
    fair.finish(COMMAND_LIMIT).success();

    let options: Vec<&str> = guaranteed("second", "40%", "2GiB").into_iter().chain(["--wait"]).collect();
    let mut second = host.spawn(host.run(&options, view(), &[]));
    second.await_error_line(|line| line.contains("waiting: 2 GiB of memory"), COMMAND_LIMIT);
    thread::sleep(Duration::from_millis(600));
    assert!(host.ps().find("second").is_none(), "it waits still");
    first.finish(COMMAND_LIMIT).success();
    second.await_json(COMMAND_LIMIT);
    second.finish(COMMAND_LIMIT).success();
}
