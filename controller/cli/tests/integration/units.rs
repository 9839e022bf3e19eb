//! Tests of the shipped systemd units and of the package's script for a removal. The units name the
//! daemon's sockets, and systemd finds no fault. The script waits for the processes that keep
//! tenants suspended.

use deepres_abi::directory::{ADMIN_SOCKET, TENANT_DIRECTORY, TENANT_SOCKET};
use std::path::Path;
use std::process::Command;

const UNITS: [&str; 3] = ["deepres.service", "deepres.socket", "deepres-admin.socket"];
/// The directory of root's daemon.
const SYSTEM_DIRECTORY: &str = "/run/deepres";

fn unit(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/systemd");
    std::fs::read_to_string(folder.join(name)).unwrap()
}

#[test]
fn units_open_the_sockets_of_jobs_and_of_administrators_to_the_right_users() {
    for (name, lines) in [
        (
            "deepres.socket",
            [
                format!("ListenSequentialPacket={SYSTEM_DIRECTORY}/{TENANT_DIRECTORY}/{TENANT_SOCKET}"),
                "FileDescriptorName=tenant".to_owned(),
                "SocketMode=0666".to_owned(),
            ],
        ),
        (
            "deepres-admin.socket",
            [
                format!("ListenStream={SYSTEM_DIRECTORY}/{ADMIN_SOCKET}"),
                "FileDescriptorName=admin".to_owned(),
                "SocketMode=0600".to_owned(),
            ],
        ),
    ] {
        let text = unit(name);
        for line in lines {
            assert!(text.lines().any(|found| found == line), "{name} lacks {line}");
        }
    }
}

#[test]
fn the_daemon_starts_where_a_directory_of_gpu_locks_is_missing() {
    let text = unit("deepres.service");
    // systemd starts no unit whose path without a dash is missing. Each machine has /tmp.
    let paths = text.lines().find_map(|line| line.strip_prefix("ReadWritePaths=")).unwrap();
    assert_eq!(paths.split(' ').collect::<Vec<_>>(), ["-/run/lock", "/tmp"]);
    // systemd makes the directories of RuntimeDirectory= itself.
    for setting in ["ReadOnlyPaths=", "BindPaths=", "EnvironmentFile=", "WorkingDirectory="] {
        assert!(!text.lines().any(|line| line.starts_with(setting)), "{setting} names a path");
    }
}

#[test]
fn systemd_stops_the_daemon_alone_because_its_movers_bring_suspended_tenants_back_afterwards() {
    assert!(unit("deepres.service").lines().any(|line| line == "KillMode=process"));
}

#[test]
fn systemd_lets_the_daemon_serve_loopback_addresses_and_lets_no_other_machine_reach_it() {
    let text = unit("deepres.service");
    for line in
        ["RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6", "IPAddressDeny=any", "IPAddressAllow=localhost"]
    {
        assert!(text.lines().any(|found| found == line), "the unit lacks {line}");
    }
}

#[test]
fn the_removal_of_the_package_waits_for_daemons_and_for_movers_by_the_names_of_their_commands() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/debian/prerm");
    let script = std::fs::read_to_string(script).unwrap();
    let commands: Vec<&str> =
        script.split("$(running ").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0)).collect();
    assert!(commands.contains(&"daemon") && commands.contains(&"mover"), "{commands:?}");
    for command in commands {
        let help = Command::new(env!("CARGO_BIN_EXE_deepres")).args([command, "--help"]).output().unwrap();
        assert!(help.status.success(), "there is no command {command}");
    }
}

#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    let folder = tempfile::tempdir().unwrap();
    let paths = UNITS.map(|name| folder.path().join(name));
    for (name, path) in UNITS.into_iter().zip(&paths) {
        // systemd checks that the program exists, so the test names the built program.
        let text = unit(name).replace("/usr/local/bin/deepres", env!("CARGO_BIN_EXE_deepres"));
        std::fs::write(path, text).unwrap();
    }
    let verify = Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&paths).output();
    let Ok(verify) = verify else {
        deepres_e2e::skip::skipped("this machine has no systemd-analyze");
        return;
    };
    let said = String::from_utf8_lossy(&verify.stderr);
    // Complaints about other units of the machine do not matter.
    assert!(verify.status.success() && !said.contains("deepres"), "{said}");
}
