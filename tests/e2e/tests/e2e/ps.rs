//! The output of `deepres ps`, for people and for programs.

use deepres_e2e::{
    Host,
    clients::{Way, c_client},
    host::COMMAND_LIMIT,
};

#[test]
fn the_table_shows_tenants_shares_and_memory() {
    let host = Host::new();
    let _daemon = host.daemon();
    let empty = host.finish(host.deepres(&["ps"])).success();
    assert_eq!(empty.stderr, "");

    let hold = (3u64 << 30).to_string();
    let options = ["--name", "trainer", "--share", "30%", "--memory", "8GiB"];
    let mut client = host.spawn(host.run(
        &options,
        c_client("backlog", Way::Dlsym),
        &["--kernel", "busy_200us", "--hold", &hold],
    ));
    client.await_line(|line| line == "ready", COMMAND_LIMIT);
    let ps = host.ps();
    let tenant = ps.tenant("trainer");
    assert_eq!(tenant.memory_limit_bytes, Some(8 << 30));
    assert!(tenant.memory_bytes >= 3 << 30, "{tenant:?}");
    assert_eq!(tenant.sessions.len(), 1);

    let shown = host.finish(host.deepres(&["ps"])).success();
    let line = shown.stdout.lines().find(|line| line.starts_with("trainer"));
    let line = line.unwrap_or_else(|| panic!("no line of the tenant in\n{}", shown.stdout));
    for part in ["8", "GiB", "%"] {
        assert!(line.contains(part), "{part:?} is not in {line:?}");
    }
    assert!(shown.stdout.lines().all(|line| line.len() <= 160), "{}", shown.stdout);
}

#[test]
fn the_pid_is_that_of_the_process_that_uses_the_gpu() {
    let host = Host::new();
    let _daemon = host.daemon();
    let mut client = host.spawn(host.run(&["--name", "t"], c_client("launches", Way::Dlsym), &[]));
    client.await_json(COMMAND_LIMIT);
    let pid = host.ps().tenant("t").sessions[0].pid;
    assert!(
        host.truth()
            .processes
            .iter()
            .any(|process| process.pid == pid && process.comm.starts_with("launches"))
    );
    client.finish(COMMAND_LIMIT).success();
    let ps = host.ps();
    assert!(ps.find("t").is_none_or(|tenant| tenant.sessions.is_empty()), "{ps:?}");
}
