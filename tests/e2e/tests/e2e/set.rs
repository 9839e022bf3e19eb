//! `deepres set` takes effect for running processes at once.

use deepres_e2e::calls::Calls;
use deepres_e2e::prelude::*;

#[test]
fn lowering_the_limit_below_what_is_held_refuses_more_and_takes_nothing() {
    let (host, _daemon) = Host::new().light_contexts().with_daemon();
    let hold = (2u64 << 30).to_string();
    let options = ["--name", "t", "--memory", "4GiB"];
    let mut client = host.start(
        host.run(&options, c_client("backlog"), &["--kernel", "busy_200us", "--hold", &hold]),
        "ready",
    );
    host.call(&["set", "t", "--memory", "1GiB"]).success();
    let ps = host.ps();
    assert!(ps.tenant("t").memory_bytes >= 2 << 30, "{ps:?}");
    assert_eq!(ps.tenant("t").memory_limit_bytes, Some(1 << 30));
    let second = host.run(&["--name", "t"], c_client("fill"), &["33554432", "cuMemAlloc_v2"]);
    let said = host.finish(second).success().json();
    assert_eq!(said["kinds"][0]["bytes"], 0, "{said}");
    assert_eq!(said["kinds"][0]["code"], 2, "{said}");
    assert_eq!(said["info_free"], 0, "{said}");
    assert!(client.try_wait().is_none(), "the first goes on");
}

#[test]
fn settings_end_by_name_or_all_at_once_and_a_tenant_without_processes_is_said_to_be_one() {
    const RESTS: &str = "t: no process of this tenant uses a GPU now";
    let (host, _daemon) = Host::new().with_daemon();
    let (mut view, _) = host.told(host.run(&["--name", "t", "--memory", "4GiB"], c_client("view"), &[]));
    let said = host.shows(&["set", "t", "--memory", "1Gi", "--share", "50%"]);
    assert!(said.contains("share 50%, memory 1 GiB") && !said.contains(RESTS), "{said}");
    let said = host.shows(&["set", "t", "--unset", "memory,slo"]);
    assert!(said.contains("share 50%, memory 4 GiB"), "{said}");
    view.await_line(|line| line.contains(&format!("\"total\":{},", 1u64 << 30)));
    let said = host.shows(&["set", "t", "--reset"]);
    assert!(said.contains("share what others leave, memory 4 GiB"), "{said}");
    host.call(&["set", "t", "--unset", "colour"]).refused("there is no option --colour");
    host.call(&["set", "t", "--memory", "512"]).refused("give a unit");
    view.finish().success();
    for command in [&["pause", "t"][..], &["set", "t", "--share", "40%"]] {
        let said = host.shows(command);
        assert!(said.contains(RESTS), "{said}");
    }
}

#[test]
fn a_setting_that_its_administrator_gave_up_is_not_carried_out_later() {
    let (host, daemon) = Host::new().with_daemon();
    let (view, _) = host.told(host.run(&["--name", "t", "--share", "40%"], c_client("view"), &[]));
    daemon.signal(Signal::STOP);
    let given_up = host.call(&["set", "t", "--share", "70%"]);
    daemon.signal(Signal::CONT);
    given_up.refused("no answer within 5 s");
    // The daemon answers the second question after it has read all requests of before.
    for _ in 0..2 {
        assert_eq!(host.tenant("t")["granted"]["share_ppm"]["value"], 400_000);
    }
    view.finish().success();
}

#[test]
fn the_first_allocation_after_a_limit_was_raised_may_use_it() {
    let (host, _daemon) = Host::new().light_contexts().with_daemon();
    let command = host.run(&["--name", "t", "--memory", "256MiB"], "python3", &[]);
    let mut client = Calls::run(&host, command, "must(start())");
    let mut allocate = || client.asks("linear('more', 300 << 20)");
    assert_eq!(allocate(), "2");
    host.call(&["set", "t", "--memory", "1GiB"]).success();
    assert_eq!(allocate(), "0");
    host.call(&["set", "t", "--memory", "512MiB"]).success();
    assert_eq!(allocate(), "2", "lowered below what the two together are");
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    #[test]
    fn new_shares_are_in_force_at_once() {
        let (host, _daemon) = Host::measuring().with_daemon();
        let start = |name: &str, share: &str| {
            let options = ["--name", name, "--share", share];
            host.start(host.run(&options, c_client("backlog"), &["--kernel", "busy_200us"]), "ready")
        };
        let _clients = [start("a", "50%"), start("b", "50%")];
        thread::sleep(Duration::from_millis(700));
        for (a, b) in [(80.0_f64, 20.0_f64), (30.0, 70.0)] {
            // The lower share is set first, so that the sum never exceeds the whole.
            let mut settings = [("a", a), ("b", b)];
            settings.sort_by(|x, y| x.1.total_cmp(&y.1));
            for (name, share) in settings {
                host.call(&["set", name, "--share", &format!("{share}%")]).success();
            }
            // Comparable systems take 5 s until a new share shows. Here the very next second must
            // show it.
            thread::sleep(Duration::from_millis(10));
            let window = Window::measure(&host, Duration::from_secs(1));
            let had = window.true_percent("a");
            assert!((had - a).abs() <= 3.0, "a was set to {a} % and had {had:.1} % of the next second");
        }
    }
}
