//! Processes end, fork and start others as they do without deepres, and leave nothing behind.

use std::process::Command;

use deepres_e2e::prelude::*;

/// Time within which the memory of dead processes is given back, however busy the machine is.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(5);

/// Runs a command bare and as a tenant. Asserts that both end in the same way with the same output.
#[track_caller]
fn assert_same_life(host: &Host, what: &str, command: impl Fn(Life) -> Command) {
    let lived = |life| {
        let Finished { code, signal, stdout, .. } = host.spawn(command(life)).finish();
        (code, signal, stdout)
    };
    let bare = lived(Life::Bare);
    assert_eq!(lived(Life::Tenant), bare, "{what}, as a tenant");
    host.await_ps_within(
        |ps| ps.tenants.iter().all(|tenant| tenant.sessions.is_empty() && tenant.memory_bytes == 0),
        GIVEN_BACK_WITHIN,
    );
}

#[derive(Clone, Copy)]
enum Life {
    Bare,
    Tenant,
}

#[test]
fn processes_end_as_they_do_without_deepres_whatever_they_were_doing() {
    let (host, _daemon) = Host::new().with_daemon();
    for manner in [
        "exit",
        "_exit",
        "abort",
        "killed",
        "first-ends",
        "first-ends-full",
        "handler",
        "destroyed",
        "reset",
        "unloaded",
        "library",
        "handler-in-storm",
        "plain-child",
        "vfork",
        "spawn",
        "fork-before",
        "fork-among-threads",
        "stopped",
    ] {
        let client = c_client("ends");
        assert_same_life(&host, manner, |life| match life {
            Life::Bare => {
                let mut command = host.command(&client);
                command.arg(manner);
                command
            }
            Life::Tenant => {
                let mut command = host.preloaded(&client);
                command.arg(manner).env("DEEPRES_TENANT", manner).env("DEEPRES_MEMORY", "4GiB");
                command
            }
        });
    }
}

#[test]
fn multiprocessings_children_are_answered_as_without_deepres() {
    let (host, _daemon) = Host::new().with_daemon();
    let script = script("processes").display().to_string();
    assert_same_life(&host, "multiprocessing", |life| match life {
        Life::Bare => {
            let mut command = host.command("python3");
            command.arg(&script);
            command
        }
        Life::Tenant => host.run(&["--name", "children"], "python3", &[&script]),
    });
}
