//! Processes end, fork and start others as they do without deepres, and leave nothing behind.

use deepres_e2e::prelude::*;

#[test]
fn processes_end_as_they_do_without_deepres_whatever_they_were_doing() {
    let (host, _daemon) = Host::new().with_daemon();
    for manner in [
        "exit",
        "_exit",
        "abort",
        "killed",
        "first-ends",
        "first-ends-full",
        "handler",
        "destroyed",
        "reset",
        "unloaded",
        "library",
        "handler-in-storm",
        "plain-child",
        "vfork",
        "spawn",
        "fork-before",
        "fork-among-threads",
        "stopped",
    ] {
        host.assert_same_life(manner, c_client("ends"), &[manner]);
    }
}

#[test]
fn multiprocessings_children_are_answered_as_without_deepres() {
    let (host, _daemon) = Host::new().with_daemon();
    let script = script("processes").display().to_string();
    host.assert_same_life("children", "python3", &[&script]);
}
