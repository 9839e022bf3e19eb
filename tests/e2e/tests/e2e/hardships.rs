//! Client behaviour that breaks careless hooks: captures among launches, forks, storms of threads.

use std::process::Command;

use deepres_e2e::prelude::*;

#[test]
fn captures_in_every_mode_hold_while_other_threads_launch() {
    let (host, _daemon) = Host::new().with_daemon();
    // A second tenant keeps the gates and the markers busy.
    let _other =
        host.start(host.run(&["--name", "other"], c_client("backlog"), &["--kernel", "busy_200us"]), "ready");
    let command = host.run(&["--name", "capturer"], c_client_by("captures", Way::ProcAddress), &[]);
    let said = host.spawn(command).finish_within(Duration::from_secs(60)).success();
    let counted = host.ps().tenant("capturer").kernel_launches;
    assert!(counted > 1000, "{counted} launches of the capturing process were metered");
    let modes: Vec<Value> =
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
    let bare = host.finish(host.command(c_client("forks"))).success().json();
    let _daemon = host.daemon();
    let (client, said) = host.told(host.run(&["--name", "parent"], c_client("forks"), &[]));
    assert_eq!(said, bare, "as without deepres");
    assert_eq!(said["child_status"], 0, "{said}");
    assert_eq!(said["exec_status"], 0, "{said}");
    let ps = host.await_launches("parent", said["kernel_launches"].as_u64());
    assert_eq!(ps.tenant("parent").sessions.len(), 1, "the children are no sessions: {ps:?}");
    client.finish().success();
}

#[test]
fn a_storm_of_short_lived_threads_is_counted_in_full() {
    let (host, _daemon) = Host::new().with_daemon();
    let mut client = host.spawn(host.run(&["--name", "storm"], c_client_by("storm", Way::Linked), &[]));
    let said = client.await_json_within(Duration::from_secs(60));
    host.await_launches("storm", said["kernel_launches"].as_u64());
    client.finish().success();
}

#[test]
fn what_is_queued_behind_a_wait_that_the_program_ends_only_afterwards_is_held_back_by_nobody() {
    let host = Host::new();
    let client = c_client("behind");
    // The driver's queue takes 1,024 entries, including the events of deepres.
    let launches = ["20", "500", "1020"];
    for launches in launches {
        let mut alone = host.preloaded(&client);
        alone.arg(launches).env_remove("DEEPRES_SOCKET").env("DEEPRES_SHARE", "50%");
        let mut alone = host.spawn(alone);
        alone.await_json_within(Duration::from_secs(60));
        alone.close_stdin();
        alone.finish_within(Duration::from_secs(10)).success();
    }
    let _daemon = host.daemon();
    for launches in launches {
        let (mut ours, said) = host.told(host.run(&["--name", launches], &client, &[launches]));
        host.await_launches(launches, said["kernel_launches"].as_u64());
        ours.close_stdin();
        ours.finish().success();
    }
}

#[test]
fn a_host_function_that_waits_for_what_is_launched_after_it_holds_its_program_up_once() {
    /// The hook stops waiting for a completion after a second.
    const HELD_UP_MS: f64 = 500.0;
    let (host, _daemon) = Host::new().with_daemon();
    let client = c_client("released");
    let said = host.finish(host.run(&["--name", "released"], client, &["4"]));
    let said = said.success().json();
    let longest_ms = said["longest_ms"].as_array().expect("a figure for each round");
    assert_eq!(longest_ms.len(), 4, "{said}");
    let held_up = longest_ms.iter().skip(1).filter(|ms| ms.as_f64().is_none_or(|ms| ms >= HELD_UP_MS));
    assert_eq!(held_up.count(), 0, "{said}");
}

#[test]
fn what_is_made_and_ended_over_and_over_leaves_nothing_behind() {
    const ROUNDS: u64 = 1_000;
    /// Most memory that may be left, KiB. A lane alone takes about 13 KiB. The rest is memory that
    /// is allocated once and reused, and the simulated driver's records of destroyed objects.
    const LEFT_KIB: i64 = 4 * ROUNDS as i64;
    let (host, _daemon) = Host::new().with_daemon();
    let client = c_client("cycles");
    let said =
        host.finish(host.run(&["--name", "cycles", "--memory", "4GiB"], client, &[&ROUNDS.to_string()]));
    let left = said.success().json();
    let left = left.as_object().expect("a figure for each kind");
    assert_eq!(left.len(), 7, "{left:?}");
    for (kind, kib) in left {
        assert!(
            kib.as_i64().is_some_and(|kib| kib < LEFT_KIB),
            "{kind}: {kib} KiB after {ROUNDS} rounds: {left:?}"
        );
    }
}

#[test]
fn a_job_that_forbids_itself_system_calls_goes_on_as_without_deepres() {
    let host = Host::new();
    let client = c_client("filtered");
    let with = |mut command: Command, calls: &str| {
        command.arg(calls).env("DEEPRES_TENANT", "filtered").env("DEEPRES_MEMORY", "4GiB");
        host.finish(command)
    };
    for has_daemon in [false, true] {
        let _daemon = has_daemon.then(|| host.daemon());
        for calls in ["none", "sleep", "poll", "files", "sockets", "rights"] {
            let bare = with(host.command(&client), calls).success().json();
            assert_eq!(bare["six_gib"], 0, "{calls}: {bare}");
            let mut command = host.preloaded(&client);
            if !has_daemon {
                command.env_remove("DEEPRES_SOCKET").env("DEEPRES_SHARE", "50%");
            }
            let limited = with(command, calls).success().json();
            assert_eq!(limited["six_gib"], 2, "{calls}, daemon {has_daemon}: {limited}");
            assert_eq!(limited["is_calm"], bare["is_calm"], "{calls}, daemon {has_daemon}");
        }
    }
}

#[test]
fn a_thread_that_is_to_be_cancelled_gets_as_far_as_without_deepres() {
    let host = Host::new();
    let client = c_client("cancelled");
    let bare = host.finish(host.command(&client)).success().json();
    assert_eq!(bare["threads"][1], json!({"reached": 2, "is_cancelled": true}), "{bare}");
    for has_daemon in [false, true] {
        let _daemon = has_daemon.then(|| host.daemon());
        let mut command = host.preloaded(&client);
        command.env("DEEPRES_TENANT", "cancelled").env("DEEPRES_MEMORY", "4GiB");
        if !has_daemon {
            command.env_remove("DEEPRES_SOCKET").env("DEEPRES_SHARE", "50%");
        }
        assert_eq!(host.finish(command).success().json(), bare, "daemon {has_daemon}");
    }
}
