//! `deepres run` runs a command as if the command had been called directly. `deepres run` finds a
//! daemon or starts one.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use deepres_e2e::{
    Host, alive,
    artefacts::artefacts,
    clients::{CLibrary, Way, c_client, c_program, c_program_on},
    host::COMMAND_LIMIT,
};
use rustix::process::Signal;

/// A user that owns nothing else on this host.
const NOBODY: u32 = 65_534;

#[test]
fn the_exit_status_is_the_commands() {
    let host = Host::new();
    let _daemon = host.daemon();
    for (script, code) in [("exit 0", 0), ("exit 1", 1), ("exit 77", 77), ("exit 255", 255)] {
        assert_eq!(host.finish(host.run(&[], "sh", &["-c", script])).code, code, "{script}");
    }
    for (signal, number) in [("TERM", 15), ("KILL", 9), ("SEGV", 11), ("INT", 2)] {
        let done = host.finish(host.run(&[], "sh", &["-c", &format!("kill -{signal} $$")]));
        assert_eq!(done.code, 128 + number, "{signal}");
    }
}

#[test]
fn signals_reach_the_command() {
    let host = Host::new();
    let _daemon = host.daemon();
    let signals = [
        (Signal::TERM, "TERM"),
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
    ];
    for (signal, name) in signals {
        let script =
            format!("trap 'echo got {name}; exit 33' {name}; echo ready; while :; do sleep 0.02; done");
        let mut process = host.spawn(host.run(&[], "bash", &["-c", &script]));
        process.await_line(|line| line == "ready", COMMAND_LIMIT);
        process.signal(signal);
        let done = process.await_end(COMMAND_LIMIT);
        assert_eq!((done.code, &*done.stdout), (33, &*format!("ready\ngot {name}\n")), "{name}");
    }
}

#[test]
fn input_arguments_and_environment_pass_unchanged() {
    let host = Host::new();
    let _daemon = host.daemon();
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

#[test]
fn a_library_that_was_preloaded_stays_so() {
    let host = Host::new();
    let _daemon = host.daemon();
    let other = deepres_e2e::clients::c_library("lookalikes").display().to_string();
    let mut command = host.run(&[], "sh", &["-c", "echo $LD_PRELOAD"]);
    command.env("LD_PRELOAD", &other);
    let done = host.finish(command).success();
    assert!(done.stdout.contains("libdeepres.so") && done.stdout.contains(&other), "{}", done.stdout);
}

/// Makes a copy of `program` that runs with another user's rights (set-user-ID).
fn privileged(host: &Host, program: &Path) -> PathBuf {
    let copy = host.path().join("privileged");
    fs::copy(program, &copy).expect("a folder of our own");
    chown(&copy, Some(NOBODY), None).expect("we are root");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).expect("a file of our own");
    copy
}

/// A program that cannot load the library runs as without it, also if the command only leads to it.
/// If `deepres run` can see that, it tells the user.
#[test]
fn a_program_that_loads_no_library_runs_and_says_that_nothing_holds_for_it() {
    let host = Host::new();
    let _daemon = host.daemon();
    let programs = [
        (c_program_on(CLibrary::Static, "hello"), "statically linked"),
        (c_program_on(CLibrary::Musl, "hello"), "musl"),
    ];
    // Only root can make a set-user-ID program of another user.
    let privileged = deepres_e2e::skip::root_or_skipped()
        .then(|| (privileged(&host, &c_program("hello")), "rights that you have not"));
    for (program, reason) in programs.into_iter().chain(privileged) {
        let done = host.finish(host.run(&[], &program, &[])).success();
        assert_eq!((done.stdout.as_str(), done.stderr.lines().count()), ("hello\n", 1), "{}", done.stderr);
        assert!(done.stderr.contains(reason) && done.stderr.contains("neither metered"), "{}", done.stderr);

        let script = host.path().join("script");
        fs::write(&script, format!("#!{}\n", program.display())).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(host.finish(host.run(&[], &script, &[])).success().stderr.contains(reason));

        let done = host.finish(host.run(&[], "sh", &["-c", &program.display().to_string()])).success();
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("hello\n", ""));
    }
}

#[test]
fn a_command_that_cannot_be_run_is_said_as_a_shell_says_it() {
    let host = Host::new();
    let _daemon = host.daemon();
    let missing = host.finish(host.run(&[], "no-such-command-anywhere", &[]));
    assert_eq!(missing.code, 127, "{missing:?}");
    assert_eq!(missing.stderr.lines().count(), 1, "{}", missing.stderr);
    assert!(missing.stderr.contains("no-such-command-anywhere"), "{}", missing.stderr);

    let file = host.path().join("not-executable");
    fs::write(&file, "text").expect("a folder of our own");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("a file of our own");
    let refused = host.finish(host.run(&[], &file, &[]));
    assert_eq!(refused.code, 126, "{refused:?}");
    assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
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

    let mut client = host.spawn(host.run(&["--name", "second"], c_client("launches", Way::Linked), &[]));
    client.await_json(COMMAND_LIMIT);
    let ps = host.ps();
    assert_eq!(ps.daemon_pid, daemon, "the same daemon");
    assert_eq!(ps.tenant("second").sessions.len(), 1);
    let second = client.finish(COMMAND_LIMIT).success();
    assert_eq!(second.stderr, "", "a daemon that was found is not spoken of");

    let pid = rustix::process::Pid::from_raw(daemon as i32).expect("a pid");
    rustix::process::kill_process(pid, Signal::TERM).expect("it runs");
    host.assert_nothing_runs();
}

#[test]
fn runs_that_start_together_share_one_daemon() {
    let host = Host::new();
    let runs: Vec<_> = (0..6)
        .map(|number| {
            host.spawn(host.run(&["--name", &format!("t{number}")], c_client("launches", Way::Dlsym), &[]))
        })
        .collect();
    for mut run in runs {
        run.await_json(COMMAND_LIMIT);
        run.finish(COMMAND_LIMIT).success();
    }
    let daemon = host.ps().daemon_pid;
    assert_eq!(host.ps().tenants.len(), 6);
    assert_eq!(host.processes(), [daemon], "one daemon and nothing else is left");
}

#[test]
fn the_daemon_ends_cleanly_and_leaves_no_sockets() {
    let host = Host::new();
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon = host.daemon();
        let mut client = host.spawn(host.run(
            &["--name", "stays"],
            c_client("backlog", Way::Dlsym),
            &["--kernel", "busy_200us", "--seconds", "1.5"],
        ));
        client.await_line(|line| line == "ready", COMMAND_LIMIT);
        thread::sleep(Duration::from_millis(200));
        daemon.signal(signal);
        assert_eq!(daemon.await_end(COMMAND_LIMIT).code, 0, "{}", daemon.stderr());
        assert!(!host.tenant_socket().exists(), "the tenants' socket is left");
        assert!(!host.deepres_dir().join("admin.sock").exists(), "the administrators' socket is left");
        client.finish(COMMAND_LIMIT).success();
    }
}
