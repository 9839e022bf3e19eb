//! The daemon reports work that does not end.

use deepres_e2e::prelude::*;

/// A kernel that does not end.
const SIMGPU_TOML: &str = r#"kernel = [{ name = "persistent", ns = 1000000000000 }]"#;
/// Time limit for the report. The report takes two seconds, and the machine can be busy.
const TOLD_WITHIN: Duration = Duration::from_secs(10);

#[test]
fn a_kernel_that_never_ends_is_reported_as_overdue() {
    let (host, mut daemon) = Host::new().simgpu(SIMGPU_TOML).with_daemon();
    let arguments = ["--kernel", "persistent", "--sync-every", "1"];
    let _client = host.start(host.run(&["--name", "stays"], c_client("backlog"), &arguments), "ready");
    let told = daemon.await_error_line_within(|line| line.contains("work that does not end"), TOLD_WITHIN);
    assert!(told.contains(&host.ps().tenant("stays").sessions[0].pid.to_string()), "{told}");
    let shown = host.shows(&["ps"]);
    assert!(
        shown.lines().any(|line| line.starts_with("stays (") && line.contains("does not end")),
        "{shown}"
    );
}

/// Kernels of two tenants. The kernels of the first tenant are short, and the kernel of the second
/// spins. The spinning kernel lasts longer than a hand-off waits, and longer than the time after
/// which the arbiter reports work as not ending.
const BESIDE_TOML: &str = r#"
kernel = [
    { name = "short", ns = 1000000 },
    { name = "spins", ns = 4000000000 },
]
"#;
/// Least part of the time beside the spinning kernel. The GPU's own time-slicing gives each of two
/// contexts half of the time, and a busy machine takes some of it.
const LEAST_PERCENT: f64 = 10.0;
/// Least part of the time once the tenant has the GPU to itself again.
const ALONE_PERCENT: f64 = 60.0;
const LOOKED_AT: Duration = Duration::from_secs(1);

/// Returns the time for which `ps` has reported the tenant's work as not ending, ns.
fn overdue_ns(host: &Host, name: &str) -> Option<u64> {
    host.tenant(name)["sessions"][0]["gpus"][0]["overdue_ns"].as_u64()
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    #[test]
    fn others_go_on_beside_a_spinning_kernel_that_is_reported_as_overdue_until_it_ends() {
        let (host, mut daemon) = Host::measuring().simgpu(BESIDE_TOML).with_daemon();
        let start = |name: &str, arguments: &[&str]| {
            host.start(host.run(&["--name", name], c_client("backlog"), arguments), "ready")
        };
        let _works = start("works", &["--kernel", "short"]);
        let works = host.ps().tenant("works").sessions[0].pid;
        // The client launches once, and then waits for the end of its input.
        let mut spins = start("spins", &["--kernel", "spins", "--sync-every", "1", "--seconds", "0.001"]);
        let pid = host.ps().tenant("spins").sessions[0].pid;
        let told =
            daemon.await_error_line_within(|line| line.contains("work that does not end"), TOLD_WITHIN);
        assert!(told.contains(&pid.to_string()), "{told}");
        let shown = host.shows(&["ps"]);
        let lines: Vec<&str> = shown.lines().filter(|line| line.contains("does not end")).collect();
        assert!(lines.len() == 1 && lines[0].starts_with(&format!("spins ({pid})")), "{shown}");
        assert!(overdue_ns(&host, "spins") >= Some(2_000_000_000), "{shown}");
        assert_eq!(overdue_ns(&host, "works"), None, "{shown}");
        let beside = Tally::over(&host, LOOKED_AT).percent_of_time(&[works]);
        println!("{beside:.1} % of the time beside it");
        assert!(beside > LEAST_PERCENT, "{beside:.1} % of the time");
        // The kernel ends after all. Afterwards the daemon reports no tenant.
        spins.await_json_within(TOLD_WITHIN);
        await_value_within(|| overdue_ns(&host, "spins"), Option::is_none, TOLD_WITHIN);
        let alone = Tally::over(&host, LOOKED_AT).percent_of_time(&[works]);
        println!("{alone:.1} % of the time once it ended");
        assert!(alone > ALONE_PERCENT, "{alone:.1} % of the time");
        spins.finish().success();
    }
}
