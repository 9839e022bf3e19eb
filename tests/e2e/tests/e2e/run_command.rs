//! `deepres run` runs a command as if the command had been called directly. `deepres run` finds a
//! daemon or starts one.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use deepres_e2e::alive;
use deepres_e2e::clients::c_program_on;
use deepres_e2e::prelude::*;
use deepres_e2e::users::NOBODY;

#[test]
fn input_arguments_and_environment_pass_unchanged() {
    let (host, _daemon) = Host::new().with_daemon();
    let mut command = host.run(
        &["--name", "env"],
        "bash",
        &["-c", "cat; printf '<%s>' \"$@\"; echo $MINE", "zero", "a b", "--name", "", "ü"],
    );
    command.env("MINE", "kept");
    // A shell passes its own standard input on.
    let done = host.finish({
        let mut shell = host.command("sh");
        let words: Vec<String> = command
            .get_args()
            .map(|word| format!("'{}'", word.to_string_lossy().replace('\'', "'\\''")))
            .collect();
        shell
            .args(["-c", &format!("echo input | '{}' {}", artefacts().deepres.display(), words.join(" "))])
            .env("MINE", "kept");
        shell
    });
    assert_eq!((done.code, &*done.stdout), (0, "input\n<a b><--name><><ü>kept\n"), "{}", done.stderr);
}

/// Makes a copy of `program` that runs with another user's rights (set-user-ID).
fn privileged(host: &Host, program: &Path) -> PathBuf {
    let copy = host.path().join("privileged");
    fs::copy(program, &copy).expect("a folder of our own");
    chown(&copy, Some(NOBODY), None).expect("we are root");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).expect("a file of our own");
    copy
}

/// A program that cannot load the library runs as without it, also if the command starts the
/// program indirectly. If `deepres run` can recognise such a program, it tells the user.
#[test]
fn a_program_that_loads_no_library_runs_and_says_that_nothing_holds_for_it() {
    let (host, _daemon) = Host::new().with_daemon();
    let programs = [
        (c_program_on(CLibrary::Static, "hello"), "statically linked"),
        (c_program_on(CLibrary::Musl, "hello"), "musl"),
    ];
    // Only root can make a set-user-ID program of another user.
    let privileged = deepres_e2e::skip::root_or_skipped()
        .then(|| (privileged(&host, &c_program("hello")), "rights that you do not have"));
    for (program, reason) in programs.into_iter().chain(privileged) {
        let done = host.finish(host.run(&[], &program, &[])).success();
        assert_eq!((done.stdout.as_str(), done.stderr.lines().count()), ("hello\n", 1), "{}", done.stderr);
        assert!(done.stderr.contains(reason) && done.stderr.contains("neither meters"), "{}", done.stderr);

        let script = host.path().join("script");
        fs::write(&script, format!("#!{}\n", program.display())).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(host.finish(host.run(&[], &script, &[])).success().stderr.contains(reason));

        let done = host.finish(host.run(&[], "sh", &["-c", &program.display().to_string()])).success();
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("hello\n", ""));
    }
}

#[test]
fn a_missing_daemon_is_started_said_and_used_by_the_next() {
    let host = Host::new();
    let first = host.finish(host.run(&["--name", "first"], "true", &[])).success();
    assert_eq!(
        first.stderr.lines().count(),
        1,
        "it says in one line that it started a daemon: {}",
        first.stderr
    );
    assert!(first.stderr.contains("daemon"), "{}", first.stderr);
    let daemon = host.ps().daemon_pid;
    assert!(alive(daemon));

    let (client, _) = host.told(host.run(&["--name", "second"], c_client_by("launches", Way::Linked), &[]));
    let ps = host.ps();
    assert_eq!(ps.daemon_pid, daemon, "the same daemon");
    assert_eq!(ps.tenant("second").sessions.len(), 1);
    let second = client.finish().success();
    assert_eq!(second.stderr, "", "a daemon that was found is not spoken of");

    let pid = rustix::process::Pid::from_raw(daemon as i32).expect("a pid");
    rustix::process::kill_process(pid, Signal::TERM).expect("it runs");
    host.assert_nothing_runs();
}

#[test]
fn runs_that_start_together_share_one_daemon() {
    let host = Host::new();
    let runs: Vec<_> = (0..6)
        .map(|number| host.spawn(host.run(&["--name", &format!("t{number}")], c_client("launches"), &[])))
        .collect();
    for mut run in runs {
        run.await_json();
        run.finish().success();
    }
    let daemon = host.ps().daemon_pid;
    assert_eq!(host.ps().tenants.len(), 6);
    assert_eq!(host.processes(), [daemon], "one daemon and nothing else is left");
}
