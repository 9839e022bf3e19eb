//! What clients do that breaks careless hooks: captures among launches, forks, storms of threads.

use std::time::Duration;

use deepres_e2e::{
    Host,
    clients::{Way, c_client},
    host::COMMAND_LIMIT,
};

#[test]
fn captures_in_every_mode_hold_while_other_threads_launch() {
    let host = Host::new();
    let _daemon = host.daemon();
    // A second tenant keeps the gates and the markers busy.
    let mut other = host.spawn(host.run(
        &["--name", "other"],
        c_client("backlog", Way::Dlsym),
        &["--kernel", "busy_200us"],
    ));
    other.await_line(|line| line == "ready", COMMAND_LIMIT);
    let command = host.run(&["--name", "capturer"], c_client("captures", Way::ProcAddress), &[]);
    let said = host.spawn(command).finish(Duration::from_secs(60)).success();
    let counted = host.ps().tenant("capturer").kernel_launches;
    assert!(counted > 1000, "{counted} launches of the capturing process were metered");
    let modes: Vec<serde_json::Value> =
        said.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(modes.len(), 3, "{}", said.stdout);
    for mode in modes {
        assert_eq!(mode["captures"], 50, "{mode}");
        assert_eq!(mode["failed"], 0, "a marker broke a capture: {mode}");
        assert_eq!(mode["wrong_nodes"], 0, "something of ours is in the graph: {mode}");
        assert_eq!(mode["other_failures"], 0, "{mode}");
    }
}

#[test]
fn a_forked_child_gets_the_drivers_answer_and_the_parent_goes_on() {
    let host = Host::new();
    let bare = host.finish(host.command(c_client("forks", Way::Dlsym))).success().json();
    let _daemon = host.daemon();
    let mut client = host.spawn(host.run(&["--name", "parent"], c_client("forks", Way::Dlsym), &[]));
    let said = client.await_json(COMMAND_LIMIT);
    assert_eq!(said, bare, "as without deepres");
    assert_eq!(said["child_status"], 0, "{said}");
    assert_eq!(said["exec_status"], 0, "{said}");
    let ps = host.await_ps(
        |ps| ps.tenant("parent").kernel_launches == said["kernel_launches"].as_u64().unwrap_or(0),
        Duration::from_secs(5),
    );
    assert_eq!(ps.tenant("parent").sessions.len(), 1, "the children are no sessions: {ps:?}");
    client.finish(COMMAND_LIMIT).success();
}

#[test]
fn a_storm_of_short_lived_threads_is_counted_in_full() {
    let host = Host::new();
    let _daemon = host.daemon();
    let mut client = host.spawn(host.run(&["--name", "storm"], c_client("storm", Way::Linked), &[]));
    let said = client.await_json(Duration::from_secs(60));
    host.await_ps(
        |ps| ps.tenant("storm").kernel_launches == said["kernel_launches"].as_u64().unwrap_or(0),
        Duration::from_secs(5),
    );
    client.finish(COMMAND_LIMIT).success();
}
