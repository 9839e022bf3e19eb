//! Every bad input gets one clear line and a non-zero exit status, and leaves no process running.

use std::{fs, io::Write, os::unix::net::UnixListener, process::Command, thread};

use deepres_e2e::{Finished, Host, artefacts::artefacts};
use rustix::process::Signal;

/// Runs a command that must be refused.
#[track_caller]
fn assert_refused(host: &Host, command: Command, mentions: &[&str]) -> Finished {
    let what = format!("{command:?}");
    let done = host.finish(command);
    assert_ne!(done.code, 0, "{what} succeeded: {done:?}");
    assert_eq!(done.signal, None, "{what}: {done:?}");
    assert_eq!(done.stdout, "", "{what}");
    let lines: Vec<&str> = done.stderr.lines().filter(|line| !line.trim().is_empty()).collect();
    assert_eq!(lines.len(), 1, "{what}: one line, not\n{}", done.stderr);
    for word in mentions {
        assert!(lines[0].contains(word), "{what}: {word:?} is not in {:?}", lines[0]);
    }
    assert!(!lines[0].contains("panicked") && !lines[0].contains("Os {"), "{what}: {}", lines[0]);
    done
}

#[test]
fn values_that_make_no_sense_are_refused_before_anything_starts() {
    let host = Host::new();
    let marker = host.path().join("it-ran");
    let touch = format!("touch {}", marker.display());
    for (option, value) in [
        ("--share", "0%"),
        ("--share", "0"),
        ("--share", "120%"),
        ("--share", "-5%"),
        ("--share", "abc"),
        ("--share", ""),
        ("--share", "nan%"),
        ("--share", "inf"),
        ("--memory", "12XB"),
        ("--memory", "-1GiB"),
        ("--memory", "0"),
        ("--memory", ""),
        ("--memory", "GiB"),
        ("--memory", "99999999999999999999GiB"),
        ("--name", ""),
        ("--name", "a\u{7}b"),
        ("--name", &"n".repeat(300)),
    ] {
        // Option and value are one word, so that a value with a leading minus is not read as
        // another option.
        let option_and_value = format!("{option}={value}");
        // The message omits control characters and shortens long values.
        let shown = value.split(char::is_control).next().unwrap_or_default();
        let mentions = [shown.get(..20).unwrap_or(shown)];
        assert_refused(&host, host.run(&[&option_and_value], "sh", &["-c", &touch]), &mentions);
        assert!(!marker.exists(), "{option_and_value}: the command ran");
    }
    host.assert_nothing_runs();
}

#[test]
fn unknown_commands_and_options_are_refused() {
    let host = Host::new();
    assert_refused(&host, host.deepres(&["frobnicate"]), &["frobnicate"]);
    assert_refused(&host, host.deepres(&["rum", "--", "true"]), &["rum"]);
    assert_refused(&host, host.deepres(&["ps", "--frobnicate"]), &["--frobnicate"]);
    assert_refused(&host, host.deepres(&["run", "--shares", "30%", "--", "true"]), &["--shares"]);
    assert_refused(&host, host.deepres(&["run"]), &[]);
    assert_refused(&host, host.deepres(&["run", "--"]), &[]);
    assert_refused(&host, host.deepres(&["set"]), &[]);
    host.assert_nothing_runs();
}

#[test]
fn a_setting_for_nobody_or_of_nothing_is_refused() {
    let host = Host::new();
    let daemon = host.daemon();
    assert_refused(&host, host.deepres(&["set", "nobody", "--share", "50%"]), &["nobody"]);
    assert_refused(&host, host.deepres(&["set", "nobody", "--memory", "4GiB"]), &["nobody"]);
    host.finish(host.run(&["--name", "somebody"], "true", &[])).success();
    assert_refused(&host, host.deepres(&["set", "somebody"]), &[]);
    for (option, value) in [("--share", "0%"), ("--share", "120%"), ("--share", "abc"), ("--memory", "12XB")]
    {
        assert_refused(&host, host.deepres(&["set", "somebody", option, value]), &[value]);
    }
    drop(daemon);
}

#[test]
fn asking_a_daemon_that_is_not_there_is_refused() {
    let host = Host::new();
    for arguments in [vec!["ps"], vec!["ps", "--json"], vec!["set", "t", "--share", "50%"]] {
        assert_refused(&host, host.deepres(&arguments), &["daemon"]);
    }
    host.assert_nothing_runs();
}

#[test]
fn a_socket_that_is_not_ours_is_refused() {
    let host = Host::new();
    let folder = host.deepres_dir();
    fs::create_dir(&folder).expect("a new folder");
    let admin = folder.join("admin.sock");

    fs::write(&admin, "not a socket").expect("a new file");
    assert_refused(&host, host.deepres(&["ps"]), &["admin.sock"]);
    fs::remove_file(&admin).expect("just made");

    // The socket belongs to another service. The service accepts the connection and sends another
    // protocol, or sends nothing.
    for answer in ["220 mail.example.org ESMTP\r\n", "{\"unexpected\":true}\n", "\n", ""] {
        let listener = UnixListener::bind(&admin).expect("a new path");
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            // The client may have hung up already.
            let _ = stream.write_all(answer.as_bytes());
        });
        assert_refused(&host, host.deepres(&["ps"]), &[]);
        server.join().expect("the server ends");
        fs::remove_file(&admin).expect("just made");
    }
    host.assert_nothing_runs();
}

#[test]
fn a_folder_of_somebody_elses_is_refused() {
    let host = Host::new();
    let folder = host.deepres_dir();
    fs::create_dir(&folder).expect("a new folder");
    if !deepres_e2e::skip::root_or_skipped() {
        return;
    }
    std::os::unix::fs::chown(&folder, Some(65_534), Some(65_534)).unwrap();
    assert_refused(&host, host.deepres(&["daemon"]), &[]);
    host.assert_nothing_runs();
}

#[test]
fn a_machine_without_the_driver_is_refused() {
    let host = Host::new();
    let without = |arguments: &[&str]| {
        let mut command = host.deepres(arguments);
        command.env_remove("LD_LIBRARY_PATH");
        command
    };
    assert_refused(&host, without(&["daemon"]), &[]);
    assert_refused(&host, without(&["run", "--", "true"]), &[]);
    host.assert_nothing_runs();
}

#[test]
fn a_second_daemon_on_the_same_gpu_says_who_holds_it() {
    let host = Host::new();
    let daemon = host.daemon();
    let mut second = host.deepres(&["daemon"]);
    second.env("DEEPRES_DIR", host.path().join("other"));
    let pid = daemon.pid().to_string();
    assert_refused(&host, second, &[&pid]);
    // A second daemon in the same folder is refused too.
    assert_refused(&host, host.deepres(&["daemon"]), &[&pid]);
    assert_eq!(host.ps().daemon_pid, daemon.pid(), "the first goes on");

    // When the first daemon is gone, even by SIGKILL, the GPU is free for the next one.
    let mut daemon = daemon;
    daemon.kill();
    let second = host.daemon();
    second.signal(Signal::TERM);
}

#[test]
fn a_configuration_with_an_unknown_key_names_the_nearest_valid_one() {
    let host = Host::new();
    let file = host.path().join("bad.toml");
    let daemon = |text: &str| {
        fs::write(&file, text).expect("a folder of our own");
        let mut command = host.deepres(&["daemon", "--config"]);
        command.arg(&file);
        command
    };
    assert_refused(&host, daemon("tenant_linger = 5\n"), &["tenant_linger", "tenant_linger_s"]);
    assert_refused(&host, daemon("this is not TOML"), &["bad.toml"]);
    let mut missing = host.deepres(&["daemon", "--config"]);
    missing.arg(host.path().join("no-such.toml"));
    assert_refused(&host, missing, &["no-such.toml"]);
    host.assert_nothing_runs();
}

#[test]
fn help_is_help() {
    let host = Host::new();
    for arguments in [
        vec!["--help"],
        vec!["run", "--help"],
        vec!["daemon", "--help"],
        vec!["ps", "--help"],
        vec!["set", "--help"],
    ] {
        let done = host.finish(host.deepres(&arguments)).success();
        assert!(done.stdout.contains("Usage: deepres"), "{}", done.stdout);
        assert_eq!(done.stderr, "");
    }
    let version = host.finish(host.deepres(&["--version"])).success();
    assert_eq!(version.stdout.lines().count(), 1);
    assert!(artefacts().deepres.exists());
}
