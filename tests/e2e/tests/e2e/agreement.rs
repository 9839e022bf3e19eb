//! Runs the same scenarios in virtual time and in real time, and compares the results. Virtual time
//! is the evaluation. Real time is the daemon, the interposer and client processes on the simulated
//! GPU.
//!
//! The tests compare each tenant's part of the GPU time used, and its GPU time for each second. The
//! cost of a hand-off depends on the machine, so virtual time takes it from the daemon.

use deepres_e2e::prelude::*;
use deepres_eval::policy::Policy;
use deepres_eval::scenario::Scenario;

/// Time after which all clients are connected, metered and past their first launches.
const SETTLED: Duration = Duration::from_millis(1_000);
/// Time of a measurement. Hundreds of quanta pass in it.
const MEASURED: Duration = Duration::from_secs(8);
/// Time of a measurement in the quick track. The longest quantum is less than 3 % of the GPU time
/// that each tenant has in it.
const QUICKLY_MEASURED: Duration = Duration::from_secs(6);
/// Greatest relative difference between the figures in real and in virtual time, as a part of the
/// figure in virtual time.
const ALLOWED: f64 = 0.05;

/// One tenant.
struct Tenant {
    name: &'static str,
    /// Wishes as lines of a scenario.
    wishes: &'static str,
    /// The same wishes as options of `deepres run`.
    options: &'static str,
    step: Step,
}

/// A step that the tenant repeats: kernels, a wait for them, and a pause.
#[derive(Clone, Copy)]
struct Step {
    kernels: u64,
    kernel_us: u64,
    pause_ms: u64,
}

impl Step {
    const fn new(kernels: u64, kernel_us: u64, pause_ms: u64) -> Self {
        Self { kernels, kernel_us, pause_ms }
    }
}

const SHORT: Step = Step::new(100, 200, 0);
const LONG: Step = Step::new(4, 5000, 0);

const fn tenant(name: &'static str, wishes: &'static str, options: &'static str, step: Step) -> Tenant {
    Tenant { name, wishes, options, step }
}

/// GPU time that a tenant used, percent.
#[derive(Debug, Clone, Copy)]
struct Had {
    /// Part of the GPU time that all tenants used.
    share: f64,
    /// Part of the elapsed time.
    throughput: f64,
}

/// Returns each tenant's figures in virtual time, where a hand-off costs `handoff_ns`.
fn in_virtual_time(tenants: &[Tenant], handoff_ns: u64) -> Vec<Had> {
    let table = |tenant: &Tenant| {
        let Tenant { name, wishes, step: Step { kernels, kernel_us, pause_ms }, .. } = tenant;
        let step = format!("kernels = {kernels}\nkernel_us = {kernel_us}\npause_ms = {pause_ms}");
        format!("[[tenant]]\nname = \"{name}\"\n{wishes}\n[tenant.steps]\n{step}\n")
    };
    let tables: String = tenants.iter().map(table).collect();
    let handoff_us = handoff_ns as f64 / 1e3;
    let text = format!(
        "name = \"agreement\"\nshows = \"both\"\nduration_s = 12\nwarmup_s = 2\n[gpu]\nhandoff_us = {handoff_us:.3}\n{tables}"
    );
    let scenario = Scenario::parse(&text).expect("a scenario of ours");
    let run = Policy::Deepres.run_alone(&scenario);
    let span_ns = (scenario.duration_ns - scenario.warmup_ns) as f64;
    let used: Vec<f64> = run.outcomes.iter().map(|outcome| outcome.used_ns as f64).collect();
    let total_ns: f64 = used.iter().sum();
    used.iter()
        .map(|used_ns| Had { share: used_ns * 100.0 / total_ns, throughput: used_ns * 100.0 / span_ns })
        .collect()
}

fn start(host: &Host, tenant: &Tenant) -> Process {
    let Step { kernels, kernel_us, pause_ms } = tenant.step;
    let (kernels, pause) = (
        format!("busy_{kernel_us}usx{kernels}"),
        format!("wait:{}", Duration::from_millis(pause_ms).as_micros()),
    );
    let steps = [kernels.as_str(), "sync", &pause];
    let steps = if pause_ms == 0 { &steps[..2] } else { &steps };
    let options: Vec<&str> =
        ["--name", tenant.name].into_iter().chain(tenant.options.split_whitespace()).collect();
    host.start(host.run(&options, c_client_by("pace", Way::ProcAddress), steps), "ready")
}

/// Runs the scenario in real and in virtual time, and asserts that the figures agree.
#[track_caller]
fn assert_agreement(tenants: &[Tenant]) {
    assert_agreement_over(MEASURED, ALLOWED, tenants);
}

/// Measures for this time, and allows this relative difference.
#[track_caller]
fn assert_agreement_over(measured: Duration, allowed: f64, tenants: &[Tenant]) {
    let (host, _daemon) = Host::measuring().with_daemon();
    let _clients: Vec<Process> = tenants.iter().map(|tenant| start(&host, tenant)).collect();
    thread::sleep(SETTLED);
    let window = Window::measure(&host, measured);
    let handoff_ns = host.status()["gpus"][0]["handoff_ns"].as_u64().expect("the cost of a hand-off");
    let expected = in_virtual_time(tenants, handoff_ns);
    let mut lines = vec![format!("a hand-off costs {handoff_ns} ns")];
    let mut worst = 0.0_f64;
    for (Tenant { name, .. }, expected) in tenants.iter().zip(expected) {
        let share = window.true_percent(name);
        let had = Had { share, throughput: share / 100.0 * window.busy_percent() };
        for (what, virtually, really) in
            [("share", expected.share, had.share), ("of the time", expected.throughput, had.throughput)]
        {
            let off = really / virtually - 1.0;
            worst = worst.max(off.abs());
            lines.push(format!(
                "{name}, {what}: {virtually:.2} % in virtual time, {really:.2} % in real time, {:+.2} %",
                off * 100.0
            ));
        }
    }
    let table = lines.join("\n");
    println!("{table}");
    assert!(worst <= allowed, "{table}");
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    #[test]
    fn shares_come_to_the_same_in_real_and_in_virtual_time() {
        let tenants = [
            tenant("short", "share = \"70%\"", "--share 70%", SHORT),
            tenant("long", "share = \"30%\"", "--share 30%", LONG),
        ];
        assert_agreement_over(QUICKLY_MEASURED, ALLOWED, &tenants);
    }

    #[test]
    fn a_program_with_pauses_gets_as_much_beside_long_kernels_in_real_time_as_in_virtual_time() {
        // The program waits for a slice of the hardware in each step. Its threads wake up late on a
        // busy machine, which costs it some steps.
        let tenants = [
            tenant("eager", "share = \"50%\"", "--share 50%", Step::new(5, 200, 1)),
            tenant("long", "share = \"50%\"", "--share 50%", Step::new(20, 20_000, 2)),
        ];
        assert_agreement_over(QUICKLY_MEASURED, 3.0 * ALLOWED, &tenants);
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn priorities_come_to_the_same_in_real_and_in_virtual_time() {
        let urgent = "criticality = \"critical\"\ndeadline_s = 1800\nsize_s = 600";
        let options = "--criticality critical --deadline 30min --size 10min";
        let patient = "criticality = \"low\"\nsize_s = 600";
        assert_agreement(&[
            tenant("urgent", urgent, options, SHORT),
            tenant("patient", patient, "--priority low --size 10min", SHORT),
        ]);
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn classes_come_to_the_same_in_real_and_in_virtual_time() {
        let guaranteed = "class = \"guaranteed\"\nshare = \"50%\"";
        assert_agreement(&[
            tenant("guaranteed", guaranteed, "--class guaranteed --share 50%", LONG),
            tenant("asked", "share = \"30%\"", "--share 30%", SHORT),
            tenant("rest", "", "", SHORT),
        ]);
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn time_that_a_tenant_leaves_flows_in_real_time_as_in_virtual_time() {
        // The measurement covers many pauses, so that one pause more or less changes the result
        // little.
        let tenants = [
            tenant("sparing", "share = \"70%\"", "--share 70%", Step::new(20, 1000, 60)),
            tenant("greedy", "share = \"30%\"", "--share 30%", Step::new(1000, 1000, 0)),
        ];
        assert_agreement_over(3 * MEASURED, ALLOWED, &tenants);
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn a_guest_gets_as_much_in_real_time_as_in_virtual_time() {
        // The measurement covers many pauses. The guard knows little of the first ones, and one
        // pause more or less must change the result little.
        //
        // The guest's kernels are long. Beside owners, a guest has one kernel in flight, and the
        // machine determines how soon the guest's thread wakes for the next kernel. Ten kernels fit
        // into a pause, and the eleventh never fits. If one more kernel just fitted, a delay of one
        // millisecond would change the result by a tenth.
        let guest = "class = \"best-effort\"";
        let tenants = [
            tenant("production", "", "", Step::new(50, 1000, 210)),
            tenant("guest", guest, "--class best-effort", Step::new(100, 20_000, 0)),
        ];
        assert_agreement_over(3 * MEASURED, ALLOWED, &tenants);
    }
}
