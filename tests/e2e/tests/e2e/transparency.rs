//! If no other job runs and no limit is set, a program with the library behaves as without the
//! library.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use deepres_e2e::artefacts::repository;
use deepres_e2e::host::mute_socket;
use deepres_e2e::prelude::*;

/// Runs a command bare and preloaded, and asserts that exit status and output are equal.
#[track_caller]
fn assert_same(host: &Host, command: impl Fn() -> Command) -> Finished {
    let bare = host.finish(command());
    let mut hooked = command();
    hooked.env("LD_PRELOAD", &artefacts().library);
    let hooked = host.finish(hooked);
    assert_eq!(hooked, bare, "{:?}", command());
    bare
}

fn shell(host: &Host, words: &[&str]) -> Command {
    let mut command = host.command(words[0]);
    command.args(&words[1..]);
    command
}

#[test]
fn everyday_programs_print_and_return_exactly_the_same() {
    let host = Host::new();
    let repository = repository().display().to_string();
    let script = "echo out; echo err >&2; (exit 3) | cat; f() { echo $((6*7)); }; f; exit 5";
    for (words, code) in [
        (vec!["bash", "-c", script], 5),
        (vec!["bash", "-c", "kill -TERM $$"], 128 + 15),
        (vec!["git", "--version"], 0),
        (vec!["git", "-C", &repository, "log", "--oneline", "-3"], 0),
        (vec!["git", "no-such-command"], 1),
        (vec!["python3", "-c", "pass"], 0),
        (vec!["python3", "-c", "import sys, ctypes, threading; print(sys.version); sys.exit(9)"], 9),
        (vec!["cargo", "--version"], 0),
        (vec!["true"], 0),
        (vec!["ls", "/nonexistent"], 2),
    ] {
        let bare = assert_same(&host, || shell(&host, &words));
        assert_eq!(bare.code, code, "{words:?} does what the test means it to: {bare:?}");
    }
}

#[test]
fn everyday_programs_are_the_same_under_deepres_run() {
    let (host, _daemon) = Host::new().with_daemon();
    for words in [
        vec!["git", "--version"],
        vec!["python3", "-c", "print(1)"],
        vec!["bash", "-c", "echo a; echo b >&2; exit 4"],
    ] {
        let bare = host.finish(shell(&host, &words));
        let hooked = host.finish(host.run(&[], words[0], &words[1..]));
        assert_eq!(hooked, bare, "{words:?}");
    }
}

#[test]
fn look_ups_of_a_program_without_the_driver_are_answered_as_ever() {
    let host = Host::new();
    let lookalikes = c_library("lookalikes");
    let bare = assert_same(&host, || {
        let mut command = host.command(c_program("lookups"));
        command.arg(&lookalikes).env_remove("LD_LIBRARY_PATH");
        command
    });
    assert!(bare.stdout.contains("default cuInit: absent"), "{}", bare.stdout);
    assert!(bare.stdout.contains("lookalike cudnnCreate: liblookalikes.so"), "{}", bare.stdout);
    // A second copy of the library does not count as a driver either.
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("libdeepres.so");
    std::fs::copy(&artefacts().library, &copy).unwrap();
    let mut command = host.command(c_program("lookups"));
    command.arg(&lookalikes).env_remove("LD_LIBRARY_PATH");
    command.env("LD_PRELOAD", format!("{}:{}", artefacts().library.display(), copy.display()));
    // The text of `dlerror` can differ, because the look-up behind the first copy did find a
    // symbol.
    let answers = |done: &Finished| -> Vec<String> {
        done.stdout.lines().filter(|line| !line.contains("undefined symbol: cu")).map(str::to_owned).collect()
    };
    assert_eq!(answers(&host.finish(command).success()), answers(&bare));
}

#[test]
fn a_library_that_wraps_dlsym_and_uses_rtld_next_works_before_and_behind() {
    let host = Host::new();
    let wrapper = c_library("wrapnext").display().to_string();
    let ours = artefacts().library.display().to_string();
    let script = "import os, ctypes; ctypes.CDLL(None).getppid(); print('ok', os.getppid() > 0)";
    for preload in [format!("{wrapper}:{ours}"), format!("{ours}:{wrapper}")] {
        let mut command = host.command("python3");
        command.args(["-c", script]).env("LD_PRELOAD", &preload);
        let done = host.finish(command);
        assert_eq!((done.code, &*done.stdout, &*done.stderr), (0, "ok True\n", ""), "{preload}");
    }
}

/// Returns the output of a client that launches and allocates, without deepres.
fn bare_client(host: &Host) -> Finished {
    host.finish(host.command(c_client("launches"))).success()
}

#[test]
fn a_gpu_client_without_a_daemon_is_the_same() {
    let host = Host::new();
    let bare = bare_client(&host);
    for way in Way::ALL {
        let hooked = host.finish(host.alone(c_client_by("launches", way)));
        assert_eq!(hooked.success().json()["kernels_run"], bare.json()["kernels_run"]);
    }
    // If the client reaches the driver in the same way, even standard error is equal.
    assert_eq!(host.finish(host.alone(c_client("launches"))), bare);
}

#[test]
fn a_gpu_client_with_a_dead_foreign_or_mute_socket_is_the_same() {
    let host = Host::new();
    let bare = bare_client(&host);
    let folder = host.path();
    let dead = folder.join("dead.sock");
    drop(UnixListener::bind(&dead).expect("a socket"));
    let foreign = folder.join("foreign.sock");
    let _listener = UnixListener::bind(&foreign).expect("a socket");
    let mute = folder.join("mute.sock");
    let _mute = mute_socket(&mute);
    let file = folder.join("file.sock");
    std::fs::write(&file, "not a socket").expect("a folder of our own");
    let long = folder.join("x".repeat(200));
    let absent = Path::new("/nonexistent/socket");
    for socket in [dead.as_path(), &foreign, &mute, &file, absent, &long, Path::new("")] {
        let mut command = host.alone(c_client("launches"));
        command.env("DEEPRES_SOCKET", socket);
        let hooked = host.finish(command);
        assert_eq!(
            (hooked.code, &hooked.stdout),
            (0, &bare.stdout),
            "{}: {}",
            socket.display(),
            hooked.stderr
        );
        assert!(hooked.stderr.lines().count() <= 1, "{}: {}", socket.display(), hooked.stderr);
    }
}

#[test]
fn a_gpu_client_with_garbage_in_the_environment_is_the_same_or_has_no_gpu_if_a_limit_is_garbage() {
    let (host, _daemon) = Host::new().with_daemon();
    let bare = bare_client(&host);
    let garbage = [
        "",
        "abc",
        "-1",
        "999999999999999999999999999",
        "120%",
        "\u{7}\u{1b}[31m",
        "%s%n%s%n",
        &"z".repeat(10_000),
    ];
    let with = |variable: &str, value: &str| {
        let mut command = host.preloaded(c_client("launches"));
        command.env(variable, value);
        host.finish(command)
    };
    for value in garbage {
        let shown: String = value.chars().take(20).collect();
        let is_same = |variable: &str| {
            let hooked = with(variable, value);
            let found = (hooked.code, &hooked.stdout);
            assert_eq!(found, (0, &bare.stdout), "{variable}={shown:?}: {}", hooked.stderr);
        };
        ["DEEPRES_TENANT", "DEEPRES_LOG", "DEEPRES_SOCKET"].into_iter().for_each(is_same);
        for variable in ["DEEPRES_SHARE", "DEEPRES_MEMORY"] {
            if value.is_empty() {
                is_same(variable);
                continue;
            }
            let hooked = with(variable, value);
            assert_eq!(hooked.code, 1, "{variable}={shown:?}: {}", hooked.stderr);
            assert!(hooked.stderr.contains(&format!("{variable}=")), "{variable}: {}", hooked.stderr);
        }
    }
}

#[test]
fn the_kill_switch_lets_everything_through() {
    let (host, _daemon) = Host::new().with_daemon();
    let mut command =
        host.run(&["--name", "off", "--memory", "64MiB"], c_client("fill"), &["33554432", "cuMemAlloc_v2"]);
    command.env("DEEPRES_DISABLE", "1");
    let said = host.spawn(command).finish().success().json();
    let bytes = said["kinds"][0]["bytes"].as_u64().expect("a number");
    assert!(bytes > 100 << 30, "the limit of 64 MiB is off: {said}");
    let sessions: usize = host.ps().tenants.iter().map(|tenant| tenant.sessions.len()).sum();
    assert_eq!(sessions, 0, "a switched-off process does not connect");
    let mut command = host.preloaded(c_client("launches"));
    command.env("DEEPRES_DISABLE", "1").env("DEEPRES_SHARE", "abc");
    assert_eq!(host.finish(command), bare_client(&host), "it reads no variable either");
}

#[test]
fn a_gpu_client_on_a_machine_without_the_driver_fails_as_ever() {
    let host = Host::new();
    for way in Way::ALL {
        let bare = assert_same(&host, || {
            let mut command = host.command(c_client_by("launches", way));
            command.env_remove("LD_LIBRARY_PATH");
            command
        });
        assert_ne!(bare.code, 0);
    }
}
