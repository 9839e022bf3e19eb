//! The kernel forbids eBPF programs, or the configuration switches them off. A message names the
//! missing requirement. Only commands that need the programs fail, and tenants work.
//!
//! The tests need root, because they run programs with other rights than root's.

use std::process::Command;

use deepres_e2e::prelude::*;
use deepres_e2e::probes::{self, open_node};
use deepres_e2e::users::{AS_NOBODY, NOBODY};
use rustix::fs::{chmod, chown};
use rustix::process::{Gid, Uid};

/// The stand-in device.
const DEVICE: &str = "nvidia=10:256";
/// Makes one ioctl of the device.
const ASKS: &str = "import fcntl,os,sys\n\
    f=os.open(sys.argv[1],os.O_RDWR)\n\
    try: fcntl.ioctl(f,0xc020462a,bytearray(32))\n\
    except OSError: pass";

/// Returns a host for tests of eBPF programs, or `None` if this machine cannot run them. All
/// users may use the host's folders. The user [`NOBODY`] owns the daemon's directory.
fn open_host(config: &str) -> Option<Host> {
    let host = probes::host(config)?;
    host.let_all_users_in();
    let folder = host.deepres_dir();
    std::fs::create_dir(&folder).unwrap();
    chmod(&folder, 0o700.into()).unwrap();
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    chown(&folder, Some(user), Some(group)).unwrap();
    Some(host)
}

/// Returns the command `deepres`, run as [`NOBODY`] with these capabilities.
fn as_nobody(host: &Host, capabilities: &str, arguments: &[&str]) -> Command {
    let mut command = host.command("setpriv");
    command.args(AS_NOBODY);
    command.args([format!("--inh-caps=-all{capabilities}"), format!("--ambient-caps=-all{capabilities}")]);
    command.arg(host.deepres(&[]).get_program()).args(arguments);
    command
}

fn await_state(host: &Host, wanted: &str) -> Value {
    let probes = || {
        let shown = host.finish(as_nobody(host, "", &["ps", "--json"]));
        serde_json::from_str(&shown.stdout).map_or(Value::Null, |status: Value| status["probes"].clone())
    };
    await_value(probes, |probes| probes["state"] == wanted)
}

/// Asserts that a tenant works.
fn assert_serves(host: &Host) {
    let client = c_client("storm").display().to_string();
    let job = as_nobody(host, "", &["run", "--name", "job", "--", &client]);
    assert!(
        host.finish(job).success().json()["kernel_launches"].as_u64().is_some_and(|launches| launches > 0)
    );
}

#[test]
fn a_daemon_without_rights_says_once_what_is_missing_and_serves() {
    let Some(host) = open_host(&format!("[probes]\ndevices = [\"{DEVICE}\"]\n")) else { return };
    let config = host.path().join("deepres.toml").display().to_string();
    let mut daemon = host.spawn(as_nobody(&host, "", &["daemon", "--config", &config]));
    let probes = await_state(&host, "unavailable");
    assert!(probes["detail"].as_str().unwrap().contains("CAP_BPF and CAP_PERFMON"), "{probes}");
    assert_serves(&host);
    let refused = host.finish(as_nobody(&host, "", &["run", "--no-preload", "--", "true"]));
    assert!(refused.stderr.contains("CAP_BPF"), "{}", refused.stderr);
    let log = daemon.terminate().success().stderr;
    let said = log.lines().filter(|line| line.contains("not by their ioctls")).count();
    assert_eq!(said, 1, "{log}");
}

#[test]
fn a_daemon_that_is_to_do_without_says_so_where_it_is_asked_and_serves() {
    let Some(host) = open_host("[probes]\nenabled = false\n") else { return };
    let config = host.path().join("deepres.toml").display().to_string();
    let mut daemon = host.spawn(as_nobody(&host, "", &["daemon", "--config", &config]));
    let probes = await_state(&host, "off");
    assert!(probes["detail"].as_str().unwrap().contains("probes.enabled"), "{probes}");
    assert_serves(&host);
    daemon.terminate().success();
}

#[test]
fn a_trace_takes_two_capabilities_and_names_them_without() {
    let Some(host) = open_host("") else { return };
    let node = open_node(&host).display().to_string();
    let trace = |capabilities: &str| {
        let arguments = ["trace", "--json", "--device", DEVICE, "--", "python3", "-c", ASKS, &node];
        host.finish(as_nobody(&host, capabilities, &arguments))
    };
    let refused = trace("");
    refused.refused("CAP_BPF and CAP_PERFMON");
    let told = trace(",+bpf,+perfmon").success();
    let event: Value = serde_json::from_str(told.stdout.trim()).expect("one event");
    assert_eq!((&event["name"], &event["error"]), (&"NV_ESC_RM_CONTROL".into(), &"ENOTTY".into()));
}
