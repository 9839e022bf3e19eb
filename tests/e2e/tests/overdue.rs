//! Work that does not end is told of.

use std::time::Duration;

use deepres_e2e::{
    Host,
    clients::{Way, c_client},
    host::COMMAND_LIMIT,
};

/// A kernel that stays for good.
const SIMGPU_TOML: &str = r#"kernel = [{ name = "persistent", ns = 1000000000000 }]"#;
/// Two seconds, on a busy machine.
const TOLD_WITHIN: Duration = Duration::from_secs(10);

#[test]
fn a_kernel_that_stays_for_good_is_told_of() {
    let host = Host::new().simgpu(SIMGPU_TOML);
    let mut daemon = host.daemon();
    let arguments = ["--kernel", "persistent", "--sync-every", "1"];
    let mut client = host.spawn(host.run(&["--name", "stays"], c_client("backlog", Way::Dlsym), &arguments));
    client.await_line(|line| line == "ready", COMMAND_LIMIT);
    let told = daemon.await_error_line(|line| line.contains("work that does not end"), TOLD_WITHIN);
    assert!(told.contains(&host.ps().tenant("stays").sessions[0].pid.to_string()), "{told}");
    let shown = host.finish(host.deepres(&["ps"])).success().stdout;
    assert!(
        shown.lines().any(|line| line.starts_with("stays (") && line.contains("does not end")),
        "{shown}"
    );
}
