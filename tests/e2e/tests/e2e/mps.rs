//! Parts of the SMs (`deepres run --sm`), under MPS on the simulated GPU.

use std::env;
use std::process::Command;
use std::thread;
use std::time::Duration;

use deepres_e2e::prelude::*;

const NO_EFFECT: &str = "--sm has no effect";
const CEILING: &str = "deepres: the MPS server gives each client at most 30% of the SMs";
/// A GPU of 100 SMs. The kernel uses all of them.
const SIMGPU: &str = "sm_count = 100\nlaunch_overhead_ns = 0\n\
                      kernel = [{ name = \"busy_1000us\", ns = 1000000, sm_ppm = 1000000 }]\n";
const PERCENT: u32 = 10_000;

/// Lets a command find the host's MPS control daemon and its control program.
pub fn by_mps(host: &Host, mut command: Command) -> Command {
    let usual = env::var_os("PATH").unwrap_or_default();
    let folders = [artefacts().simgpu.clone()].into_iter().chain(env::split_paths(&usual));
    command.env("PATH", env::join_paths(folders).expect("no colon in a build folder"));
    command.env("CUDA_MPS_PIPE_DIRECTORY", host.path().join("mps"));
    command
}

/// Gives all later clients of MPS at most this percentage of the SMs.
pub fn set_ceiling(host: &Host, percent: u32) {
    let command = format!("echo set_default_active_thread_percentage {percent} | nvidia-cuda-mps-control");
    let mut shell = host.command("sh");
    shell.args(["-c", &command]);
    host.finish(by_mps(host, shell)).success();
}

/// Starts the MPS control daemon.
pub fn mps(host: &Host) -> Process {
    let mut command = by_mps(host, host.command(artefacts().simgpu.join("nvidia-cuda-mps-control")));
    command.arg("-f");
    let daemon = host.spawn(command);
    let file = host.path().join("mps/nvidia-cuda-mps-control.pid");
    await_value_within(|| file.exists(), |is_there| *is_there, COMMAND_LIMIT);
    daemon
}

/// Starts a backlogged job with these options, which finds the MPS control daemon.
fn job(host: &Host, options: &[&str]) -> Process {
    let client = ["--sync-every", "4"];
    host.start(by_mps(host, host.run(options, c_client("backlog"), &client)), "ready")
}

/// Returns the parts of the SMs of the clients that live, by the ground truth, percent.
fn parts(host: &Host) -> Vec<Option<u32>> {
    let clients = host.truth().processes.into_iter();
    let clients = clients.filter(|process| process.alive && process.comm.starts_with("backlog"));
    clients.map(|client| client.sm_limit_ppm.map(|ppm| ppm / PERCENT)).collect()
}

#[test]
fn a_job_with_a_part_of_the_sms_has_this_part() {
    let (host, _daemon) = Host::new().simgpu(SIMGPU).with_daemon();
    let _mps = mps(&host);
    let job = job(&host, &["--name", "t", "--sm", "40%"]);
    assert_eq!(parts(&host), [Some(40)]);
    let used = || {
        let processes = host.truth().processes;
        let client = processes.into_iter().find(|process| process.comm.starts_with("backlog"));
        client.expect("it runs").gpus[0]
    };
    let used = await_value_within(used, |used| used.kernels > 50, COMMAND_LIMIT);
    let held = used.sm_ns as f64 / used.kernel_busy_ns as f64;
    assert!((held - 0.4).abs() < 0.001, "{used:?}");
    let per_kernel_ns = used.kernel_busy_ns / used.kernels;
    assert!((2_450_000..2_600_000).contains(&per_kernel_ns), "{used:?}");
    assert!(!job.stderr().contains(NO_EFFECT), "{}", job.stderr());
    let wide = host.shows(&["ps", "--wide"]);
    assert!(wide.contains("SMS") && wide.contains("40%"), "{wide}");
    let verbose = host.shows(&["ps", "-v"]);
    assert!(verbose.contains("sm         asked for 40%, granted 40% as asked"), "{verbose}");
    let explained = host.shows(&["explain", "t"]);
    assert!(explained.contains("t, 40% of the SMs under MPS, as asked"), "{explained}");
    assert_eq!(host.json(&["explain", "t", "--json"])["sm_ppm"], 400_000);
}

#[test]
fn a_running_job_keeps_its_part_and_a_new_start_has_the_part_that_was_set() {
    let (host, _daemon) = Host::new().simgpu(SIMGPU).with_daemon();
    let _mps = mps(&host);
    let _first = job(&host, &["--name", "t", "--sm", "40%"]);
    let said = host.shows(&["set", "t", "--sm", "60%"]);
    assert!(said.contains("SMs 60%") && said.contains("start the job again"), "{said}");
    assert!(!host.shows(&["set", "t", "--share", "50%"]).contains("start the job again"));
    assert_eq!(parts(&host), [Some(40)]);
    let _second = job(&host, &["--name", "t"]);
    assert_eq!(parts(&host), [Some(40), Some(60)]);
}

#[test]
fn a_part_of_the_sms_without_mps_has_no_effect_and_the_command_says_so_once() {
    let (host, _daemon) = Host::new().simgpu(SIMGPU).with_daemon();
    let job = job(&host, &["--sm", "40%"]);
    let said = job.stderr();
    let directory = host.path().join("mps");
    let reason = format!("deepres: {NO_EFFECT}: no MPS control daemon runs in {}", directory.display());
    assert!(said.starts_with(&reason) && said.lines().count() == 1, "{said}");
    assert_eq!(parts(&host), [None]);
}

#[test]
fn the_configuration_can_turn_mps_off() {
    let (host, _daemon) = Host::new().simgpu(SIMGPU).config("mps = \"off\"\n").with_daemon();
    let _mps = mps(&host);
    let job = job(&host, &["--name", "t", "--sm", "40%"]);
    let said = job.stderr();
    assert!(said.contains(NO_EFFECT) && said.contains("`mps = \"off\"`"), "{said}");
    assert_eq!(parts(&host), [Some(100)], "a client of MPS without a part");
    assert!(host.shows(&["ps", "-v"]).contains("granted all SMs because the configuration has"));
}

/// Returns the time of the truth and the time in which each living client had a kernel running, ns.
fn busy(host: &Host) -> (u64, Vec<u64>) {
    let truth = host.truth();
    let clients = truth.processes.iter();
    let clients = clients.filter(|process| process.alive && process.comm.starts_with("backlog"));
    (truth.at_ns, clients.map(|client| client.gpus[0].kernel_busy_ns).collect())
}

/// Returns the part of the next second in which each client has a kernel running.
fn running(host: &Host) -> Vec<f64> {
    let (from_ns, before) = busy(host);
    thread::sleep(Duration::from_secs(1));
    let (to_ns, after) = busy(host);
    let part = |(after, before): (u64, u64)| (after - before) as f64 / (to_ns - from_ns) as f64;
    after.into_iter().zip(before).map(part).collect()
}

#[test]
fn jobs_run_at_once_in_sets_whose_parts_of_the_sms_fit() {
    let (host, _daemon) = Host::new().simgpu(SIMGPU).with_daemon();
    let _mps = mps(&host);
    let _jobs = ["40%", "60%"].map(|part| job(&host, &["--sm", part]));
    let phase = || host.json(&["ps", "--json"])["gpus"][0]["phase"].clone();
    await_value_within(phase, |phase| phase == "together", COMMAND_LIMIT);
    let alone = running(&host);
    assert!(alone.iter().sum::<f64>() > 1.5, "{alone:?}");
    // The sets are 40 % and 60 %, 40 % and 30 %, 60 % and 30 %, and each job has the same area.
    let _third = job(&host, &["--sm", "30%"]);
    let beside = running(&host);
    let area: f64 = beside.iter().zip([0.4, 0.6, 0.3]).map(|(part, width)| part * width).sum();
    assert!(beside.len() == 3 && beside[2] > beside[1], "{beside:?}");
    assert!(beside.iter().all(|part| *part > 0.25) && (0.6..1.02).contains(&area), "{beside:?}");
}

#[test]
fn a_lower_percentage_of_the_mps_server_is_told() {
    let (host, _daemon) = Host::new().simgpu(SIMGPU).with_daemon();
    let _mps = mps(&host);
    set_ceiling(&host, 30);
    let first = job(&host, &["--name", "a", "--sm", "40%"]);
    assert!(
        first.stderr().starts_with(CEILING) && first.stderr().contains("less than 40%"),
        "{}",
        first.stderr()
    );
    // The server that runs now keeps its percentage.
    set_ceiling(&host, 100);
    let jobs = ["30%", "31%"].map(|part| job(&host, &["--sm", part]));
    let told = jobs.each_ref().map(|job| job.stderr().contains(CEILING));
    assert_eq!((told, parts(&host)), ([false, true], vec![Some(30); 3]));
}
