//! Shares of GPU time. The clients launch small kernels, long kernels and graphs, on several
//! streams and in several processes.

use deepres_e2e::prelude::*;

/// Time of a measurement. A hundred quanta pass in it.
const MEASURED: Duration = Duration::from_secs(3);
/// Time of a measurement of leases of 40 ms, so that a lease more or less is one point.
const MEASURED_BY_LONG: Duration = Duration::from_secs(4);
/// Time after which both clients are connected, metered and past their first launches.
const SETTLED: Duration = Duration::from_millis(700);
/// Time after which a tenant has the whole GPU if the other tenant has ended.
const EVERYTHING_WITHIN: Duration = Duration::from_millis(100);
/// Least part of the time in which the GPU is busy with two backlogged tenants, percent. The
/// machine's CPUs also do other work. (Without other work the part is above 95 %.)
const BUSY_PERCENT: f64 = 70.0;
/// Least time in which both tenants wanted the GPU, ns: three quarters of the measurement.
const CONTENDED_NS: u64 = 3_000_000_000;

fn start(host: &Host, name: &str, share: Option<&str>, arguments: &[&str]) -> Process {
    let mut options = vec!["--name", name];
    if let Some(share) = share {
        options.extend(["--share", share]);
    }
    host.start(host.run(&options, c_client_by("backlog", Way::ProcAddress), arguments), "ready")
}

/// Runs the same client as two tenants, with 70 % and 30 %.
fn assert_seventy_thirty(arguments: &[&str]) {
    let (host, _daemon) = Host::measuring().with_daemon();
    let _clients =
        [start(&host, "major", Some("70%"), arguments), start(&host, "minor", Some("30%"), arguments)];
    thread::sleep(SETTLED);
    let window = Window::measure(&host, MEASURED);
    window.assert_shares(&[("major", 70.0), ("minor", 30.0)]);
    assert!(window.busy_percent() >= BUSY_PERCENT, "the GPU idled: busy {:.1} %", window.busy_percent());
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    /// Declares tests in which two tenants with 70 % and 30 % run the client `backlog` with these
    /// arguments.
    macro_rules! seventy_thirty {
        ($($(#[$track:meta])? $name:ident: $arguments:literal;)+) => {
            $(
                #[test]
                $(#[$track])?
                fn $name() {
                    assert_seventy_thirty(&$arguments.split(' ').collect::<Vec<_>>());
                }
            )+
        };
    }

    seventy_thirty! {
        small_kernels_share_seventy_to_thirty: "--kernel busy_200us --sync-every 100";
        long_kernels_with_a_sync_each_share_seventy_to_thirty: "--kernel busy_5000us --sync-every 1";
        #[ignore = "deep: takes long"]
        graphs_share_seventy_to_thirty: "--kernel busy_200us --graph 40 --sync-every 4";
        #[ignore = "deep: takes long"]
        clients_with_four_streams_share_seventy_to_thirty: "--kernel busy_1000us --streams 4 --sync-every 256";
    }

    /// Runs a client with long kernels as a tenant with 30 %, and a client with short kernels as a
    /// tenant with 70 %.
    fn assert_unlike_clients_share(long: &[&str]) -> Value {
        let (host, _daemon) = Host::measuring().with_daemon();
        let long = [&["--kernel", "busy_20000us"], long].concat();
        let _clients = [
            start(&host, "long", Some("30%"), &long),
            start(&host, "short", Some("70%"), &["--kernel", "busy_200us", "--sync-every", "50"]),
        ];
        thread::sleep(SETTLED);
        // The first client queued kernels while it was alone. These kernels ran beside the second
        // client, and the first client pays for them within its bound on a debt.
        let debt_ns = || {
            let tenants = host.status()["tenants"].clone();
            let long = tenants.as_array().expect("tenants").iter().find(|tenant| tenant["name"] == "long");
            -long.expect("the first client")["gpus"][0]["lag_ns"].as_i64().expect("a lag")
        };
        await_value(debt_ns, |debt_ns| *debt_ns <= 0);
        Window::measure(&host, MEASURED_BY_LONG).assert_shares(&[("long", 30.0), ("short", 70.0)]);
        host.status()["gpus"][0].clone()
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn a_client_that_queues_long_kernels_and_never_waits_has_its_share() {
        assert_unlike_clients_share(&["--sync-every", "0", "--streams", "0"]);
        assert_unlike_clients_share(&["--sync-every", "0"]);
    }

    #[test]
    fn unlike_clients_share_seventy_to_thirty() {
        let gpu = assert_unlike_clients_share(&["--sync-every", "2"]);
        assert!(number(&gpu, "contended_ns") > CONTENDED_NS, "{gpu}");
        assert!(number(&gpu, "handoffs") > 10 && number(&gpu, "handoff_p50_ns") > 0, "{gpu}");
    }

    #[test]
    fn a_tenants_processes_share_what_is_the_tenants() {
        let (host, _daemon) = Host::measuring().with_daemon();
        let arguments = ["--kernel", "busy_1000us"];
        let _clients = [
            start(&host, "pair", Some("40%"), &arguments),
            start(&host, "pair", Some("40%"), &arguments),
            start(&host, "single", Some("60%"), &arguments),
        ];
        thread::sleep(SETTLED);
        Window::measure(&host, MEASURED).assert_shares(&[("pair", 40.0), ("single", 60.0)]);
    }

    #[test]
    fn tenants_that_ask_for_nothing_share_alike() {
        let (host, _daemon) = Host::measuring().with_daemon();
        let arguments = ["--kernel", "busy_1000us"];
        let _clients = ["a", "b"].map(|name| start(&host, name, None, &arguments));
        thread::sleep(SETTLED);
        Window::measure(&host, MEASURED).assert_shares(&[("a", 50.0), ("b", 50.0)]);
    }

    #[test]
    fn when_one_leaves_the_other_has_everything_within_a_tenth_of_a_second() {
        let (host, _daemon) = Host::measuring().with_daemon();
        let mut leaver = start(&host, "leaver", Some("70%"), &["--kernel", "busy_1000us", "--seconds", "2"]);
        let _stayer = start(&host, "stayer", Some("30%"), &["--kernel", "busy_1000us"]);
        let stayer_pid = host.ps().tenant("stayer").sessions[0].pid;
        // The client prints its result when its last kernel has ended.
        leaver.await_json();
        let left = Instant::now();
        thread::sleep(EVERYTHING_WITHIN.saturating_sub(left.elapsed()));
        let busy = Tally::over(&host, Duration::from_millis(400)).percent_of_time(&[stayer_pid]);
        println!("the one that stayed had the GPU {busy:.1} % of the time");
        assert!(busy >= BUSY_PERCENT, "the one that stayed had the GPU {busy:.1} % of the time");
    }

    #[test]
    fn an_idle_tenants_share_is_the_others() {
        let (host, _daemon) = Host::measuring().with_daemon();
        let (_idler, _) =
            host.told(host.run(&["--name", "idler", "--share", "70%"], c_client("launches"), &[]));
        let _worker = start(&host, "worker", Some("30%"), &["--kernel", "busy_1000us"]);
        thread::sleep(SETTLED);
        let window = Window::measure(&host, Duration::from_secs(1));
        assert!(
            window.busy_percent() >= BUSY_PERCENT,
            "the GPU was busy {:.1} % of the time",
            window.busy_percent()
        );
        assert!(window.true_percent("worker") > 99.0);
    }
}
