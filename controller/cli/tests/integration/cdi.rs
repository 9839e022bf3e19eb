//! `deepres cdi` from an administrator's view: the command makes, changes, lists and removes
//! devices. Bad input changes nothing.

use crate::cli::{Place, complaint, harmless_library, text};
use deepres_daemon_harness::{Daemon, wait_until};
use deepres_model::config::Config;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

/// Time within which a new process has its name.
const PATIENCE: Duration = Duration::from_secs(5);

impl Place {
    fn cdi(&self, arguments: &[&str]) -> Output {
        self.deepres(&[&["cdi"], arguments].concat()).output().unwrap()
    }

    fn spec(&self) -> PathBuf {
        self.scratch.path().join("cdi/deepres.json")
    }

    /// Runs `deepres cdi generate` for this place's file and daemon directory.
    fn generate(&self, arguments: &[&str]) -> Output {
        std::fs::create_dir_all(self.directory.join("tenant")).unwrap();
        let file = self.spec().display().to_string();
        self.cdi(&[&["generate", "--output", &file], arguments].concat())
    }
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn a_device_brings_the_library_the_socket_and_the_requests() {
    let place = Place::with_driver();
    let arguments = [
        &["--name", "train", "--tenant", "team a"][..],
        &["--share", "30%", "--memory", "2GiB", "--class", "guaranteed"],
    ]
    .concat();
    let output = place.generate(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), format!("deepres.dev/share=train is in {}", place.spec().display()));
    assert_eq!(text(&output.stderr), "");
    let spec = read(&place.spec());
    assert_eq!((&spec["kind"], &spec["cdiVersion"]), (&"deepres.dev/share".into(), &"0.5.0".into()));
    let edits = &spec["devices"][0]["containerEdits"];
    let expected = [
        "LD_PRELOAD=/usr/lib/deepres/$LIB/libdeepres.so",
        "DEEPRES_SOCKET=/run/deepres/tenant/tenant.sock",
        "DEEPRES_TENANT=team a",
        "DEEPRES_SHARE=30%",
        "DEEPRES_MEMORY=2147483648",
        "DEEPRES_CLASS=guaranteed",
    ];
    assert_eq!(edits["env"], serde_json::json!(expected));
    let mounts: Vec<_> = edits["mounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| {
            assert_eq!(mount["options"][0], "ro", "{mount}");
            (mount["hostPath"].as_str().unwrap(), mount["containerPath"].as_str().unwrap())
        })
        .collect();
    let (library, sockets) = (harmless_library(), place.directory.join("tenant"));
    let (library, sockets) = (library.to_str().unwrap(), sockets.to_str().unwrap());
    let expected = [
        (library, "/usr/lib/deepres/lib/x86_64-linux-gnu/libdeepres.so"),
        (library, "/usr/lib/deepres/lib64/libdeepres.so"),
        (library, "/usr/lib/deepres/lib/libdeepres.so"),
        (sockets, "/run/deepres/tenant"),
    ];
    assert_eq!(mounts, expected);
}

#[test]
fn a_device_says_how_urgent_its_jobs_are_and_that_they_may_be_suspended() {
    let place = Place::with_driver();
    let arguments = [
        &["--name", "late", "--criticality", "high", "--deadline", "2h"][..],
        &["--size", "40min", "--slo", "30ms", "--oversubscribe", "suspend"],
    ]
    .concat();
    let output = place.generate(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let env = read(&place.spec())["devices"][0]["containerEdits"]["env"].clone();
    let env: Vec<&str> = env.as_array().unwrap().iter().map(|variable| variable.as_str().unwrap()).collect();
    let expected = [
        "DEEPRES_CRITICALITY=high",
        "DEEPRES_DEADLINE=7200000000.000us",
        "DEEPRES_SIZE=2400000000.000us",
        "DEEPRES_SLO=30000.000us",
        "DEEPRES_OVERSUBSCRIBE=suspend",
    ];
    assert_eq!(env[2..], expected);
    let listed = text(&place.cdi(&["list", "--file", &place.spec().display().to_string()]).stdout);
    assert_eq!(listed, format!("deepres.dev/share=late  {}", expected.join("  ")));
    let said = complaint(&place.generate(&["--name", "late", "--deadline", "soon"]), 2);
    assert!(said.contains("soon"), "{said}");
}

#[test]
fn a_device_with_a_part_of_the_sms_brings_the_directory_of_mps() {
    let place = Place::with_driver();
    std::fs::create_dir_all(place.directory.join("tenant")).unwrap();
    let pipes = place.scratch.path().join("mps");
    std::fs::create_dir(&pipes).unwrap();
    let generate = || {
        let mut command = place.deepres(&["cdi", "generate", "--name", "a", "--sm", "40%", "--output", "-"]);
        let output = command.env("CUDA_MPS_PIPE_DIRECTORY", &pipes).output().unwrap();
        let spec: Value = serde_json::from_slice(&output.stdout).unwrap();
        (spec["devices"][0]["containerEdits"].clone(), text(&output.stderr))
    };
    let (edits, said) = generate();
    assert!(said.contains("no MPS control daemon runs") && said.lines().count() == 1, "{said}");
    assert_eq!(edits["mounts"].as_array().unwrap().len(), 4);

    // A process with the name of the control daemon takes its place.
    let program = pipes.join("nvidia-cuda-mps-control");
    std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
    let mut control = Command::new(&program).arg("100").spawn().unwrap();
    // The kernel lets `spawn` return before it gives the process its new name.
    let name = format!("/proc/{}/comm", control.id());
    wait_until(PATIENCE, || std::fs::read_to_string(&name).is_ok_and(|name| name.starts_with("nvidia")));
    std::fs::write(pipes.join("nvidia-cuda-mps-control.pid"), control.id().to_string()).unwrap();
    let (edits, said) = generate();
    control.kill().unwrap();
    control.wait().unwrap();
    assert_eq!(said, "");
    let variables = edits["env"].as_array().unwrap();
    let pipes = pipes.to_str().unwrap();
    for variable in
        ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40".to_owned(), format!("CUDA_MPS_PIPE_DIRECTORY={pipes}")]
    {
        assert!(variables.contains(&Value::from(variable.as_str())), "{variable}: {edits}");
    }
    let mount = &edits["mounts"][4];
    assert_eq!((&mount["hostPath"], &mount["containerPath"]), (&pipes.into(), &pipes.into()));
    assert_eq!(mount["options"][0], "rw", "clients write to the pipes");
}

#[test]
fn devices_are_added_changed_listed_and_removed_one_by_one() {
    let place = Place::with_driver();
    let file = place.spec().display().to_string();
    let list = || {
        let output = place.cdi(&["list", "--file", &file]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert_eq!(list(), "");
    for arguments in [
        &["--name", "a", "--share", "30%"][..],
        &["--name", "b", "--class", "fair"],
        &["--name", "a", "--memory", "1M"],
    ] {
        assert!(place.generate(arguments).status.success());
    }
    assert_eq!(
        list(),
        "deepres.dev/share=a  DEEPRES_MEMORY=1048576\ndeepres.dev/share=b  DEEPRES_CLASS=fair"
    );
    let said = complaint(&place.cdi(&["remove", "c", "--file", &file]), 1);
    assert!(said.contains("no device deepres.dev/share=c"), "{said}");
    for name in ["a", "b"] {
        assert!(place.cdi(&["remove", name, "--file", &file]).status.success());
    }
    assert!(!place.spec().exists(), "a specification without devices is none");
    complaint(&place.cdi(&["remove", "a", "--file", &file]), 1);
}

#[test]
fn a_device_is_for_the_daemon_that_a_job_would_be_shared_out_by() {
    let daemon = Daemon::start(1, Config::default());
    let place = Place::with_driver();
    let sockets = |command: &mut Command| {
        let output = command.output().unwrap();
        assert_eq!(text(&output.stderr), "");
        let spec: Value = serde_json::from_slice(&output.stdout).unwrap();
        let edits = &spec["devices"][0]["containerEdits"];
        assert_eq!(edits["env"][1], "DEEPRES_SOCKET=/run/deepres/tenant/tenant.sock");
        edits["mounts"][3]["hostPath"].as_str().unwrap().to_owned()
    };
    let arguments = ["cdi", "generate", "--name", "a", "--output", "-"];
    let expected = daemon.directory.tenant_directory().display().to_string();
    assert_eq!(sockets(&mut Place::beside(&daemon).deepres(&arguments)), expected);
    // As in `deepres run`, the socket that the environment names comes before a directory.
    let mut named = place.deepres(&arguments);
    assert_eq!(sockets(named.env("DEEPRES_SOCKET", daemon.directory.tenant_socket())), expected);

    // A socket that cannot be trusted is no daemon's socket, neither for a job nor for a device.
    std::fs::create_dir_all(place.directory.join("tenant")).unwrap();
    std::fs::write(place.directory.join("tenant/tenant.sock"), "").unwrap();
    let said = place.refuses(&arguments, 1);
    assert!(said.contains("is not a socket"), "{said}");
}

#[test]
fn a_specification_can_be_printed() {
    let place = Place::with_driver();
    let output = place.cdi(&["generate", "--name", "a", "--output", "-"]);
    let spec: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(spec["devices"][0]["name"], "a");
    let said = text(&output.stderr);
    assert!(said.contains("no daemon has made") && said.lines().count() == 1, "{said}");
}

#[test]
fn senseless_arguments_are_refused_and_write_nothing() {
    let place = Place::with_driver();
    for (arguments, word) in [
        (&["--name", "a b"][..], "`a b`"),
        (&["--name", ""], "cannot name a device"),
        (&["--name", "a", "--share", "130%"], "130%"),
        (&["--name", "a", "--memory", "12XB"], "12XB"),
        (&["--name", "a", "--class", "royal"], "royal"),
        (&["--name", "a", "--tenant", ""], "name"),
        (&[], "--name"),
    ] {
        let said = complaint(&place.generate(arguments), 2);
        assert!(said.contains(word), "{arguments:?}: {said}");
    }
    let said = complaint(&place.cdi(&["generate", "--name", "a", "--output", "deepres.conf"]), 1);
    assert!(said.contains("does not end in .json"), "{said}");
    let said = complaint(&place.cdi(&["generate", "--name", "a", "--output", "/proc/none/deepres.json"]), 1);
    assert!(said.contains("cannot write /proc/none/deepres.json"), "{said}");
    assert!(!place.spec().exists());

    let mut without = place.deepres(&["cdi", "generate", "--name", "a", "--output", "-"]);
    let said = complaint(&without.env("DEEPRES_LIBRARY", "/nonexistent").output().unwrap(), 1);
    assert!(said.contains("DEEPRES_LIBRARY"), "{said}");
}
