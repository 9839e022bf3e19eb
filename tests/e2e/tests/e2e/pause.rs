//! `deepres pause` and `deepres resume`.

use std::{thread, time::Duration};

use deepres_e2e::{
    Host, Process,
    clients::{Way, c_client},
    host::COMMAND_LIMIT,
    shares::Window,
};
use serde_json::Value;

/// Time within which work that was launched before a pause ends, on any machine.
const DRAINED: Duration = Duration::from_millis(500);
/// Time of a measurement that shows which tenant has the GPU.
const SEEN: Duration = Duration::from_millis(500);

fn start(host: &Host, name: &str) -> Process {
    let arguments = ["--kernel", "busy_200us", "--sync-every", "100"];
    let options = ["--name", name, "--share", "50%"];
    let mut client = host.spawn(host.run(&options, c_client("backlog", Way::ProcAddress), &arguments));
    client.await_line(|line| line == "ready", COMMAND_LIMIT);
    client
}

fn tenant(host: &Host, name: &str) -> Value {
    let ps: Value = serde_json::from_str(&host.finish(host.deepres(&["ps", "--json"])).success().stdout)
        .expect("ps --json");
    let tenants = ps["tenants"].as_array().expect("tenants");
    tenants.iter().find(|tenant| tenant["name"] == name).expect("the tenant").clone()
}

/// Asserts that the paused tenant runs nothing and the other does.
#[track_caller]
fn assert_paused(host: &Host, name: &str, other: &str) {
    thread::sleep(DRAINED);
    let window = Window::measure(host, SEEN);
    assert_eq!(window.true_percent(name), 0.0, "it is paused");
    assert!(window.true_percent(other) > 99.0, "the other has the GPU");
    let shown = tenant(host, name);
    assert_eq!((&shown["paused"], &shown["gpus"][0]["gate"]), (&true.into(), &"paused".into()), "{shown}");
}

#[test]
fn a_tenant_that_is_not_there_is_said_so() {
    let host = Host::new();
    let _daemon = host.daemon();
    for command in ["pause", "resume"] {
        let finished = host.finish(host.deepres(&[command, "nobody"]));
        assert_eq!(finished.code, 1);
        assert!(finished.stderr.contains("there is no tenant `nobody`"), "{}", finished.stderr);
    }
}

/// These measure, so each has the machine to itself.
mod measured {
    use super::*;

    #[test]
    fn a_paused_tenant_runs_nothing_until_it_is_resumed_and_a_restart_of_the_daemon_changes_nothing() {
        let host = Host::measuring();
        let mut daemon = host.daemon();
        let mut clients = [start(&host, "one"), start(&host, "two")];
        thread::sleep(SEEN);
        host.finish(host.deepres(&["pause", "one"])).success();
        assert_paused(&host, "one", "two");

        daemon.kill();
        let _daemon = host.daemon();
        host.await_ps(
            |ps| {
                ["one", "two"].iter().all(|name| ps.find(name).is_some_and(|tenant| tenant.pids().len() == 1))
            },
            COMMAND_LIMIT,
        );
        assert_paused(&host, "one", "two");

        host.finish(host.deepres(&["resume", "one"])).success();
        thread::sleep(SEEN);
        let window = Window::measure(&host, SEEN);
        for name in ["one", "two"] {
            let had = window.true_percent(name);
            assert!((had - 50.0).abs() <= 10.0, "{name} had {had:.1} % once nobody was paused");
        }
        let shown = tenant(&host, "one");
        assert_eq!(shown["paused"], false);
        let waits = shown["gpus"][0]["waits_by_length"].as_array().expect("a histogram").clone();
        let counted: u64 = waits.iter().filter_map(Value::as_u64).sum();
        assert_eq!(Some(counted), shown["gpus"][0]["waits"].as_u64(), "each wait is in one place: {shown}");
        assert!(clients.iter_mut().all(|client| client.try_wait().is_none()));
    }
}
