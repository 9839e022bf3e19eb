//! A plain user sees the own tenants of root's daemon, and no others.
//!
//! The test needs root, because it runs programs as another user.

use std::process::Command;

use deepres_e2e::prelude::*;
use deepres_e2e::skip::root_or_skipped;
use deepres_e2e::users::AS_NOBODY;

/// Returns a command that runs `program` as a user without rights.
fn as_nobody(mut setpriv: Command, program: impl AsRef<std::ffi::OsStr>) -> Command {
    setpriv.args(AS_NOBODY).arg(program);
    setpriv
}

#[test]
fn a_plain_user_sees_and_explains_its_own_tenants_and_changes_none() {
    if !root_or_skipped() {
        return;
    }
    let host = Host::new();
    host.let_all_users_in();
    let _daemon = host.daemon();
    let mut preloaded = host.preloaded("setpriv");
    preloaded.env("DEEPRES_TENANT", "mine");
    let (_mine, _) = host.told(as_nobody(preloaded, c_client("view")));
    let (_theirs, _) = host.told(host.run(&["--name", "theirs"], c_client("view"), &[]));
    let ask = |arguments: &[&str]| {
        let mut command = as_nobody(host.command("setpriv"), &artefacts().deepres);
        command.args(arguments);
        host.finish(command)
    };
    // A user may get a status that is a second old.
    let ps = || Ps::parse(&ask(&["ps", "--json"]).success().stdout);
    let ps = await_value(ps, |ps| ps.find("mine").is_some_and(|mine| mine.sessions.len() == 1));
    assert_eq!((ps.tenants.len(), ps.daemon_pid), (1, host.ps().daemon_pid), "{ps:?}");
    let shown = ask(&["ps", "-v"]).success().stdout;
    assert!(shown.contains("gpu 0: ") && shown.contains("mine") && !shown.contains("theirs"), "{shown}");
    let explained = ask(&["explain", "mine"]).success().stdout;
    assert!(explained.contains("mine on gpu 0"), "{explained}");
    for other in ["theirs", "nobodys"] {
        ask(&["explain", other]).refused(&format!("you have no tenant `{other}`"));
    }
    for change in [&["set", "mine", "--share", "50%"][..], &["pause", "mine"], &["ps", "--coverage"]] {
        ask(change).refused("you may not administer the daemon");
    }
}
