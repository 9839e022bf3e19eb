//! The evaluation in virtual time beside the same scenarios in real time: daemon, interposer and client processes on the simulated GPU. Compared are
//! parts of the GPU time that was had, which a busy machine slows for all alike.

use std::{thread, time::Duration};

use deepres_e2e::{
    Host, Process,
    clients::{Way, c_client},
    host::COMMAND_LIMIT,
    shares::Window,
};
use deepres_eval::{policy::Policy, scenario::Scenario};

/// Both are connected, metered and past their first launches.
const SETTLED: Duration = Duration::from_millis(1_000);
/// Long enough that hundreds of quanta pass.
const MEASURED: Duration = Duration::from_secs(4);
/// How far the two may be apart, in points of the GPU time.
const ALLOWED_POINTS: f64 = 5.0;

/// One tenant: what the scenario says of it, the options of `deepres run` that say the same, and the steps of the client `pace`.
struct Tenant {
    name: &'static str,
    scenario: &'static str,
    options: &'static [&'static str],
    steps: &'static [&'static str],
}

/// What each tenant had of the GPU time in virtual time, percent.
fn virtual_percent(tenants: &[Tenant]) -> Vec<f64> {
    let tables: String = tenants
        .iter()
        .map(|Tenant { name, scenario, .. }| format!("[[tenant]]\nname = \"{name}\"\n{scenario}\n"))
        .collect();
    let text = format!("name = \"agreement\"\nshows = \"both\"\nduration_s = 12\nwarmup_s = 2\n{tables}");
    let scenario = Scenario::parse(&text).expect("a scenario of ours");
    let run = Policy::Deepres.run_alone(&scenario);
    let used: Vec<f64> = run.outcomes.iter().map(|outcome| outcome.used_ns as f64).collect();
    used.iter().map(|used_ns| used_ns * 100.0 / used.iter().sum::<f64>()).collect()
}

fn start(host: &Host, tenant: &Tenant) -> Process {
    let options = [&["--name", tenant.name], tenant.options].concat();
    let mut client = host.spawn(host.run(&options, c_client("pace", Way::ProcAddress), tenant.steps));
    client.await_line(|line| line == "ready", COMMAND_LIMIT);
    client
}

/// Runs the scenario both ways.
#[track_caller]
fn assert_agreement(tenants: &[Tenant]) {
    assert_agreement_over(MEASURED, tenants);
}

#[track_caller]
fn assert_agreement_over(measured: Duration, tenants: &[Tenant]) {
    let expected = virtual_percent(tenants);
    let host = Host::measuring();
    let _daemon = host.daemon();
    let _clients: Vec<Process> = tenants.iter().map(|tenant| start(&host, tenant)).collect();
    thread::sleep(SETTLED);
    let window = Window::measure(&host, measured);
    let lines: Vec<(f64, String)> = tenants
        .iter()
        .zip(expected)
        .map(|(Tenant { name, .. }, expected)| {
            let had = window.true_percent(name);
            (
                (had - expected).abs(),
                format!("{name}: {expected:.1} % in virtual time, {had:.1} % in real time"),
            )
        })
        .collect();
    for (points, line) in &lines {
        println!("{line}");
        assert!(*points <= ALLOWED_POINTS, "{lines:#?}");
    }
}

const SHORT: &[&str] = &["busy_200usx100", "sync"];
const LONG: &[&str] = &["busy_5000usx4", "sync"];

#[test]
fn shares_come_to_the_same_in_real_and_in_virtual_time() {
    assert_agreement(&[
        Tenant {
            name: "short",
            scenario: "share = \"70%\"\n[tenant.steps]\nkernels = 100\nkernel_us = 200",
            options: &["--share", "70%"],
            steps: SHORT,
        },
        Tenant {
            name: "long",
            scenario: "share = \"30%\"\n[tenant.steps]\nkernels = 4\nkernel_us = 5000",
            options: &["--share", "30%"],
            steps: LONG,
        },
    ]);
}

#[test]
fn priorities_come_to_the_same_in_real_and_in_virtual_time() {
    assert_agreement(&[
        Tenant {
            name: "urgent",
            scenario: "criticality = \"critical\"\ndeadline_s = 1800\nsize_s = 600\n[tenant.steps]\nkernels = 100\nkernel_us = 200",
            options: &["--criticality", "critical", "--deadline", "30min", "--size", "10min"],
            steps: SHORT,
        },
        Tenant {
            name: "patient",
            scenario: "criticality = \"low\"\nsize_s = 600\n[tenant.steps]\nkernels = 100\nkernel_us = 200",
            options: &["--priority", "low", "--size", "10min"],
            steps: SHORT,
        },
    ]);
}

#[test]
fn classes_come_to_the_same_in_real_and_in_virtual_time() {
    assert_agreement(&[
        Tenant {
            name: "guaranteed",
            scenario: "class = \"guaranteed\"\nshare = \"50%\"\n[tenant.steps]\nkernels = 4\nkernel_us = 5000",
            options: &["--class", "guaranteed", "--share", "50%"],
            steps: LONG,
        },
        Tenant {
            name: "asked",
            scenario: "share = \"30%\"\n[tenant.steps]\nkernels = 100\nkernel_us = 200",
            options: &["--share", "30%"],
            steps: SHORT,
        },
        Tenant {
            name: "rest",
            scenario: "[tenant.steps]\nkernels = 100\nkernel_us = 200",
            options: &[],
            steps: SHORT,
        },
    ]);
}

#[test]
fn what_a_tenant_leaves_flows_in_real_time_as_in_virtual_time() {
    assert_agreement(&[
        Tenant {
            name: "sparing",
            scenario: "share = \"70%\"\n[tenant.steps]\nkernels = 20\nkernel_us = 1000\npause_ms = 60",
            options: &["--share", "70%"],
            steps: &["busy_1000usx20", "sync", "wait:60000"],
        },
        Tenant {
            name: "greedy",
            scenario: "share = \"30%\"\n[tenant.steps]\nkernels = 1000\nkernel_us = 1000",
            options: &["--share", "30%"],
            steps: &["busy_1000usx1000", "sync"],
        },
    ]);
}

#[test]
fn a_guest_gets_in_real_time_what_it_gets_in_virtual_time() {
    // Over many pauses: of the first ones the guard knows little, and a pause more or less in the window is to count little.
    assert_agreement_over(
        3 * MEASURED,
        &[
            Tenant {
                name: "production",
                scenario: "[tenant.steps]\nkernels = 50\nkernel_us = 1000\npause_ms = 210",
                options: &[],
                steps: &["busy_1000usx50", "sync", "wait:210000"],
            },
            Tenant {
                name: "guest",
                scenario: "class = \"best-effort\"\n[tenant.steps]\nkernels = 100\nkernel_us = 20000",
                options: &["--class", "best-effort"],
                // Long ones: beside owners a guest has one kernel in flight, and how soon its thread wakes up for the next is the machine's. Ten fit into a pause, and
                // for the eleventh there is never room: where one more just fits or does not, a millisecond decides on a tenth of the time.
                steps: &["busy_20000usx100", "sync"],
            },
        ],
    );
}
