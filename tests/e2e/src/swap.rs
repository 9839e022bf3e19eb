//! The client `swap`. The program takes memory, runs kernels, and tells whether its memory changed.

use std::time::Duration;

use crate::clients::c_client;
use crate::{Host, Process};

/// Starts the client as a tenant with these options of `deepres run`.
pub fn swapper(host: &Host, name: &str, options: &[&str], bytes: u64, kernels: &str) -> Process {
    let options = [&["--name", name], options].concat();
    host.spawn(host.run(&options, c_client("swap"), &[&bytes.to_string(), kernels]))
}

/// Does the same as [`swapper`], and waits until the process has its memory.
pub fn holding(host: &Host, name: &str, options: &[&str], bytes: u64, kernels: &str) -> Process {
    let mut process = swapper(host, name, options, bytes, kernels);
    process.await_exactly("holding");
    process
}

/// Waits until a client has run all its kernels, and asserts that its memory is as it was.
#[track_caller]
pub fn assert_unchanged_within(mut client: Process, within: Duration) {
    let said = client.await_json_within(within);
    assert_eq!(said["changed"], 0, "{said}");
    client.finish().success();
}
