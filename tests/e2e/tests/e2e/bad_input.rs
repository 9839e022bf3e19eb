//! If the daemon must not start, it says why in one line, and leaves no process running.

use deepres_e2e::prelude::*;
use deepres_e2e::skip;
use deepres_e2e::users::NOBODY;

/// Asserts that a daemon printed one line that contains `reason`, and ended.
#[track_caller]
fn assert_refused(daemon: &Finished, reason: &str) {
    daemon.refused(reason);
    assert_eq!((daemon.signal, daemon.stderr.lines().count()), (None, 1), "{daemon:?}");
}

#[test]
fn a_folder_of_another_user_is_refused() {
    let host = Host::new();
    let folder = host.deepres_dir();
    std::fs::create_dir(&folder).expect("a new folder");
    if !skip::root_or_skipped() {
        return;
    }
    std::os::unix::fs::chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
    assert_refused(&host.call(&["daemon"]), "");
    host.assert_nothing_runs();
}

#[test]
fn a_second_daemon_on_the_same_gpu_says_who_holds_it() {
    let (host, mut daemon) = Host::new().with_daemon();
    let mut second = host.deepres(&["daemon"]);
    second.env("DEEPRES_DIR", host.path().join("other"));
    let pid = daemon.pid().to_string();
    assert_refused(&host.finish(second), &pid);
    // A second daemon in the same folder must end too.
    assert_refused(&host.call(&["daemon"]), &pid);
    assert_eq!(host.ps().daemon_pid, daemon.pid(), "the first goes on");

    // When the first daemon is gone, even by SIGKILL, the GPU is free for the next one.
    daemon.kill();
    let second = host.daemon();
    second.signal(Signal::TERM);
}
