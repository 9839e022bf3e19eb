//! A tenant that asked for it gets a signal when it must give memory back.

use deepres_e2e::{
    Host, Process,
    clients::{Way, c_client},
    host::COMMAND_LIMIT,
};

const MIB: u64 = 1 << 20;

fn host() -> Host {
    Host::new().simgpu(
        "memory_bytes = 1073741824\ncontext_overhead_bytes = 0\nkernel = [{ name = \"busy_1000us\", ns = 1000000 }]\n",
    )
}

/// Starts a client that holds this much memory until it gets the signal, and then frees it.
fn yielding(host: &Host, options: &[&str], bytes: u64) -> Process {
    let mut command = host.run(options, c_client("yields", Way::Dlsym), &[&bytes.to_string()]);
    command.env("DEEPRES_PRESSURE", "SIGUSR2");
    let mut client = host.spawn(command);
    client.await_line(|line| line == "holding", COMMAND_LIMIT);
    client
}

#[test]
fn a_tenant_whose_limit_is_lowered_below_what_it_holds_is_told() {
    let host = host();
    let _daemon = host.daemon();
    let mut client = yielding(&host, &["--name", "t", "--memory", "512MiB"], 256 * MIB);
    host.finish(host.deepres(&["set", "t", "--memory", "300MiB"])).success();
    host.finish(host.deepres(&["set", "t", "--memory", "128MiB"])).success();
    client.await_line(|line| line == "freed", COMMAND_LIMIT);
    client.finish(COMMAND_LIMIT).success();
}

#[test]
fn a_tenant_that_has_what_another_waits_for_is_told_and_nobody_need_be_taken_off() {
    let host = host();
    let _daemon = host.daemon();
    let options = ["--name", "holder", "--oversubscribe", "suspend"];
    let mut holder = yielding(&host, &options, 608 * MIB);
    let bytes = (608 * MIB).to_string();
    let mut other = host.spawn(host.run(&["--name", "other"], c_client("swap", Way::Dlsym), &[&bytes, "1"]));
    holder.await_line(|line| line == "freed", COMMAND_LIMIT);
    other.await_line(|line| line == "holding", COMMAND_LIMIT);
    other.await_json(COMMAND_LIMIT);
    for client in [holder, other] {
        client.finish(COMMAND_LIMIT).success();
    }
    assert_eq!(host.ps().tenant("other").refusals, 0);
}
