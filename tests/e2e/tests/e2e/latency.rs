//! The delay until a tenant gets the GPU. A tenant with an SLO gets the GPU at once. Other tenants
//! get the GPU as often as the cost of hand-offs allows.

use deepres_e2e::prelude::*;

/// Time after which the meter knows the kernels of the rivals and their times.
const SETTLED: Duration = Duration::from_millis(700);
/// Work of a request, µs: the time that it takes on a free GPU.
const WORK_US: f64 = 2_000.0;
/// Greatest mean wait of a request with an SLO, as a part of the wait without one. A first launch
/// waits for a kernel in flight with and without an SLO. Without one, a request also waits for
/// others' leases. On a machine without other work, the part is 0.4 to 0.6.
const PART: f64 = 0.75;

/// Returns the mean time for which a server's requests wait beside two backlogged jobs, µs.
fn wait_us(objective: &[&str]) -> f64 {
    let (host, _daemon) = Host::measuring().with_daemon();
    let _rivals = ["one", "other"].map(|name| {
        let arguments = ["--kernel", "busy_1000us", "--sync-every", "50"];
        host.start(host.run(&["--name", name], c_client("backlog"), &arguments), "ready")
    });
    thread::sleep(SETTLED);
    let options = [&["--name", "server"], objective].concat();
    // The requests need about 2 % of the GPU, far less than the server's entitlement.
    let requests = ["--kernel", "busy_1000us", "--kernels", "2", "--rate", "10", "--seconds", "6"];
    let server = host.run(&options, c_client("serve"), &requests);
    let said = host.spawn(server).finish().success().json();
    println!("{objective:?}: {said}");
    said["took_us"]["mean"].as_f64().expect("a figure") - WORK_US
}

/// The most by which the median of the daemon and of the client may differ, ms: a launch, and the
/// client's wake-up.
const MEDIAN_OFF_MS: f64 = 1.5;
/// Divisor of the longest quantum. The longest quantum applies where hand-offs cost a millisecond.
const QUANTUM_PART: u64 = 2;
const LONGEST_QUANTUM_NS: u64 = 50_000_000;

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    #[test]
    #[ignore = "deep: takes long"]
    fn a_tenant_with_an_objective_does_not_wait_for_others_leases() {
        let (soon_us, late_us) = (wait_us(&["--slo", "5ms"]), wait_us(&[]));
        assert!(soon_us <= late_us * PART, "{soon_us} us of {late_us} us");
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn the_requests_of_a_tenant_with_an_slo_are_those_of_the_client() {
        let (host, _daemon) = Host::measuring().with_daemon();
        let requests = ["--kernel", "busy_1000us", "--kernels", "3", "--gap-us", "20000", "--seconds", "4"];
        let mut rivals = Vec::new();
        for name in ["alone", "beside"] {
            let server = host.run(&["--name", name, "--slo", "50ms"], c_client("serve"), &requests);
            let said = host.spawn(server).finish().success().json();
            let account = host.account(name);
            let seen = &account["requests"];
            println!("{name}: {said}, {seen}");
            let figure = |value: &Value| value.as_f64().expect("a figure");
            let (pieces, ended) = (figure(&said["pieces"]), figure(&seen["ended"]));
            assert!((ended / pieces - 1.0).abs() < 0.1, "{name}: {ended} of {pieces} requests");
            let (told_ms, seen_ms) = (figure(&said["took_us"]["p50"]) / 1e3, figure(&seen["p50_ns"]) / 1e6);
            assert!((seen_ms - told_ms).abs() < MEDIAN_OFF_MS, "{name}: median {seen_ms} of {told_ms} ms");
            let arguments = ["--kernel", "busy_1000us", "--sync-every", "50"];
            rivals.push(host.start(host.run(&["--name", "rival"], c_client("backlog"), &arguments), "ready"));
            thread::sleep(SETTLED);
        }
        let explained = host.shows(&["explain", "rival"]);
        assert!(!explained.contains("requests "), "no SLO, no requests: {explained}");
    }

    #[test]
    fn pauses_between_launches_are_not_taken_for_the_cost_of_hand_offs() {
        let (host, _daemon) = Host::measuring().with_daemon();
        // The jobs wait for nothing and launch more slowly than the GPU runs, like jobs that are
        // limited by the CPU.
        let _jobs = ["one", "other"].map(|name| {
            host.start(
                host.run(&["--name", name, "--share", "50%"], c_client("pace"), &["busy_20us", "wait:25"]),
                "ready",
            )
        });
        thread::sleep(3 * SETTLED);
        let ps = host.status();
        let gpu = &ps["gpus"][0];
        let (handoffs, quantum_ns) = (gpu["handoffs"].as_u64(), gpu["quantum_ns"].as_u64());
        assert!(handoffs > Some(50) && quantum_ns < Some(LONGEST_QUANTUM_NS / QUANTUM_PART), "{gpu}");
    }
}
