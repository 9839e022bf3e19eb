//! The table of descriptors belongs to the job. The job can close descriptors of deepres, open its
//! own files at their numbers, and use every descriptor that its limit allows.

use std::process::Command;

use deepres_e2e::prelude::*;

/// Time within which the daemon sees a session's end, the job sees a daemon, and the meter thread
/// sees new work.
const SETTLES_WITHIN: Duration = Duration::from_secs(10);
/// Kinds of files that the client has.
const KINDS: [&str; 3] = ["0", "1", "2"];
/// The most CPU time in an idle second, ms. A process that sleeps takes some ms. A thread that
/// polls without a pause takes the whole second.
const IDLE_CPU_MS: u64 = 400;

/// Asserts that the client closed a descriptor of deepres, stayed idle, and kept its limit.
fn assert_calm(said: &Value) {
    assert_eq!(said["six_gib"], 2, "of 4 GiB: {said}");
    assert!(said["closed"].as_u64() > Some(0), "there was something of ours: {said}");
    assert!(said["idle_cpu_ms"].as_u64() < Some(IDLE_CPU_MS), "{said}");
}

/// Ends the client, and asserts that the files at the numbers of descriptors of deepres are as the
/// client made them.
fn assert_untouched(mut client: Process) {
    client.close_stdin();
    let end = client.finish().success();
    assert!(end.stdout.ends_with("{\"touched\":0}\n"), "{}", end.stdout);
}

#[test]
fn files_at_the_numbers_of_closed_descriptors_of_deepres_are_let_alone_and_metering_goes_on() {
    let (host, _daemon) = Host::new().light_contexts().with_daemon();
    for kind in KINDS {
        let options = ["--name", kind, "--memory", "4GiB"];
        let (client, said) = host.told(host.run(&options, c_client("closes"), &[kind]));
        assert_calm(&said);
        host.await_ps_within(
            |ps| {
                ps.find(kind).is_some_and(|tenant| {
                    tenant.sessions.len() == 1
                        && Some(tenant.kernel_launches) == said["kernel_launches"].as_u64()
                        && Some(tenant.memory_bytes) == said["bytes"].as_u64()
                })
            },
            SETTLES_WITHIN,
        );
        assert_untouched(client);
    }
}

#[test]
fn files_at_the_numbers_of_closed_descriptors_of_deepres_are_let_alone_without_a_daemon() {
    let host = Host::new();
    for kind in KINDS {
        let mut command = host.alone(c_client_by("closes", Way::Linked));
        command
            .arg(kind)
            .env("DEEPRES_TENANT", "alone")
            .env("DEEPRES_MEMORY", "4GiB")
            .env("DEEPRES_SHARE", "50%");
        let (client, said) = host.told(command);
        assert_calm(&said);
        assert_untouched(client);
    }
}

/// Returns a command that runs a client with a limit on open files.
fn with_few(host: &Host, limit: u32, preload: bool) -> Command {
    let client = c_client("past");
    let mut command = host.command("/bin/sh");
    command.args(["-c", &format!("ulimit -n {limit}; exec {}", client.display())]);
    if preload {
        command.env("DEEPRES_SOCKET", host.tenant_socket());
        command.env("DEEPRES_TENANT", "few").env("LD_PRELOAD", &artefacts().library);
    }
    command
}

#[test]
fn a_job_that_may_open_few_files_has_all_of_them_for_its_driver() {
    let (host, _daemon) = Host::new().with_daemon();
    let works = |limit, preload| host.finish(with_few(&host, limit, preload)).code == 0;
    let least = (4..64).find(|limit| works(*limit, false)).expect("with 64 it works");
    assert!(works(least, true), "with {least} descriptors, which are enough without us");
}

/// Starts without standard streams and reaches a memory limit. Then writes into a file what is open
/// at the numbers of the standard streams.
const WITHOUT_STREAMS: &str = r#"
import ctypes, json, os, sys
for number in range(3): os.close(number)
cuda, here, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
codes = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(here), 0), cuda.cuCtxSetCurrent(here),
         cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(6 << 30))]
def stands(number):
    try: return os.readlink(f"/proc/self/fd/{number}")
    except OSError: return ""
told = json.dumps({"codes": codes, "stand": [stands(number) for number in range(3)]})
os.write(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY), told.encode())
"#;

#[test]
fn no_descriptor_of_deepres_has_the_number_of_a_closed_standard_stream() {
    let host = Host::new();
    let told = |command: &mut Command, name: &str| {
        let file = host.path().join(name);
        command.args(["-c", WITHOUT_STREAMS]).arg(&file).env("DEEPRES_TENANT", name);
        host.spawn(std::mem::replace(command, Command::new("true"))).finish().success();
        let said: Value =
            serde_json::from_slice(&std::fs::read(file).expect("it was written")).expect("JSON");
        assert_eq!(said["codes"], json!([0, 0, 0, 2]), "{name}: 6 GiB of 4: {said}");
        for stands in said["stand"].as_array().expect("a list") {
            let stands = stands.as_str().expect("a path");
            let is_ours =
                ["socket:", "anon_inode:", "/memfd:", "/proc/"].iter().any(|own| stands.starts_with(own));
            assert!(!is_ours && !stands.contains("standalone"), "{name}: {said}");
        }
    };
    let mut alone = host.alone("python3");
    alone.env("DEEPRES_MEMORY", "4GiB");
    told(&mut alone, "alone");
    let _daemon = host.daemon();
    told(host.preloaded("python3").env("DEEPRES_MEMORY", "4GiB"), "shared");
    assert!(host.ps().find("shared").is_some(), "it had a session");
}
