//! If a tenant asks for it, deepres sends it a signal when it must give memory back.

use deepres_e2e::prelude::*;
use deepres_e2e::swap::{assert_unchanged_within, swapper};

fn host() -> Host {
    Host::new().simgpu(
        "memory_bytes = 1073741824\ncontext_overhead_bytes = 0\nkernel = [{ name = \"busy_1000us\", ns = 1000000 }]\n",
    )
}

/// Starts a client that holds this much memory until it gets the signal, and then frees it.
fn yielding(host: &Host, options: &[&str], bytes: u64) -> Process {
    let mut command = host.run(options, c_client("yields"), &[&bytes.to_string()]);
    command.env("DEEPRES_PRESSURE", "SIGUSR2");
    host.start(command, "holding")
}

#[test]
fn a_tenant_whose_limit_is_lowered_below_what_it_holds_is_told() {
    let (host, _daemon) = host().with_daemon();
    let mut client = yielding(&host, &["--name", "t", "--memory", "512MiB"], 256 * MIB);
    host.call(&["set", "t", "--memory", "300MiB"]).success();
    host.call(&["set", "t", "--memory", "128MiB"]).success();
    client.await_exactly("freed");
    client.finish().success();
}

#[test]
fn a_tenant_that_has_memory_that_another_waits_for_is_told_and_nobody_need_be_taken_off() {
    let (host, _daemon) = host().with_daemon();
    let options = ["--name", "holder", "--oversubscribe", "suspend"];
    let mut holder = yielding(&host, &options, 608 * MIB);
    let other = swapper(&host, "other", &[], 608 * MIB, "1");
    holder.await_exactly("freed");
    assert_unchanged_within(other, COMMAND_LIMIT);
    holder.finish().success();
    assert_eq!(host.ps().tenant("other").refusals, 0);
}
