//! Parts of the SMs (`deepres run --sm`), under MPS on the simulated GPU.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use deepres_e2e::prelude::*;
use deepres_e2e::skip::root_or_skipped;
use deepres_e2e::users::AS_NOBODY;
use rustix::process::{Pid, kill_process};

const NO_EFFECT: &str = "--sm has no effect";
const CEILING: &str = "deepres: the MPS server gives each client at most 30% of the SMs";
/// A GPU of 100 SMs. The kernel uses all SMs of the GPU.
pub const SIMGPU: &str = "sm_count = 100\nlaunch_overhead_ns = 0\n\
                      kernel = [{ name = \"busy_1000us\", ns = 1000000, sm_ppm = 1000000 }]\n";
const PERCENT: u32 = 10_000;

/// A profile whose runs take max(1 ms, 0.5 ms / S), so that its knee is at 48 %.
const PROFILE: &str = "points = [{ batch = 1, part_percent = 10, ms = 5 }, { batch = 1, part_percent = 20, ms = 2.5 }, \
                       { batch = 1, part_percent = 50, ms = 1 }, { batch = 1, part_percent = 100, ms = 1 }]\n";

/// Returns the PATH on which programs find the MPS control program.
fn program_path() -> OsString {
    let usual = env::var_os("PATH").unwrap_or_default();
    let folders = [artefacts().simgpu.clone()].into_iter().chain(env::split_paths(&usual));
    env::join_paths(folders).expect("no colon in a build folder")
}

/// The folder of the host that is the directory of the MPS control daemon.
const PIPES: &str = "mps";
/// The folder of the host that is the directory of another MPS control daemon.
const OTHER_PIPES: &str = "other-mps";

/// Lets a command find the host's MPS control daemon and its control program.
pub fn by_mps(host: &Host, command: Command) -> Command {
    by_mps_in(host, PIPES, command)
}

/// Does the same for the MPS control daemon in this folder of the host.
fn by_mps_in(host: &Host, pipes: &str, mut command: Command) -> Command {
    command.env("PATH", program_path());
    command.env("CUDA_MPS_PIPE_DIRECTORY", host.path().join(pipes));
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
    mps_in(host, PIPES)
}

/// Starts an MPS control daemon in this folder of the host.
fn mps_in(host: &Host, pipes: &str) -> Process {
    let command = host.command(artefacts().simgpu.join("nvidia-cuda-mps-control"));
    let mut command = by_mps_in(host, pipes, command);
    command.arg("-f");
    let daemon = host.spawn(command);
    let file = host.path().join(pipes).join("nvidia-cuda-mps-control.pid");
    await_value_within(|| file.exists(), |is_there| *is_there, COMMAND_LIMIT);
    daemon
}

/// Starts a backlogged job with these options, which finds the MPS control daemon.
fn job(host: &Host, options: &[&str]) -> Process {
    job_in(host, PIPES, options)
}

/// Does the same with the MPS control daemon in this folder of the host.
fn job_in(host: &Host, pipes: &str, options: &[&str]) -> Process {
    let client = ["--sync-every", "4"];
    host.start(by_mps_in(host, pipes, host.run(options, c_client("backlog"), &client)), "ready")
}

/// Returns the parts of the SMs of the clients that live, by the ground truth, percent.
pub fn parts(host: &Host) -> Vec<Option<u32>> {
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
fn a_part_of_the_sms_beside_a_static_partition_does_not_bind_and_the_command_says_so() {
    let (host, _daemon) = Host::new().simgpu(SIMGPU).with_daemon();
    let mut command = host.run(&["--sm", "40%"], "true", &[]);
    command.env("CUDA_MPS_SM_PARTITION", "0");
    let said = host.finish(command).success().stderr;
    assert!(said.contains("deepres: --sm does not bind the job: CUDA_MPS_SM_PARTITION is set"), "{said}");
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

/// A GPU of 100 SMs, of which the kernel uses the part that its blocks fill. An SM runs 32 blocks
/// of a warp at once, so 3,200 blocks fill all SMs.
const BY_BLOCKS: &str = "sm_count = 100\nlaunch_overhead_ns = 0\n\
                         kernel = [{ name = \"busy_1000us\", ns = 1000000 }]\n";
/// The number of blocks that fill two fifths of the SMs.
const NARROW: &str = "1280";
/// The number of blocks that fill all SMs.
const WIDE: &str = "3200";

/// Starts a backlogged job without a part of the SMs, with these options of the client.
fn job_of_blocks(host: &Host, name: &str, client: &[&str]) -> Process {
    let client = [&["--sync-every", "4", "--blocks"][..], client].concat();
    host.start(by_mps(host, host.run(&["--name", name], c_client("backlog"), &client)), "ready")
}

/// Waits until the scheduler lets several jobs run at once, or until it no longer does.
fn await_together(host: &Host, are_together: bool) {
    let phase = || host.json(&["ps", "--json"])["gpus"][0]["phase"] == "together";
    await_value_within(phase, |phase| *phase == are_together, COMMAND_LIMIT);
}

#[test]
fn jobs_of_narrow_kernels_run_at_once_without_a_part_and_take_turns_with_a_job_of_wide_kernels() {
    let (host, _daemon) = Host::new().simgpu(BY_BLOCKS).with_daemon();
    let _mps = mps(&host);
    let _narrow = ["a", "b"].map(|name| job_of_blocks(&host, name, &[NARROW]));
    await_together(&host, true);
    let together = running(&host);
    // In turns, the sum would be 1 at most.
    assert!(together.iter().sum::<f64>() > 1.5, "{together:?}");
    // Two fifths, rounded up to a sixteenth.
    let explained = host.shows(&["explain", "a"]);
    assert!(explained.contains("SMs       counts with 43.75%: runs beside"), "{explained}");
    let _wide = job_of_blocks(&host, "wide", &[WIDE]);
    let beside = running(&host);
    // The sets are the two narrow jobs, and the wide job.
    assert!(beside.len() == 3 && beside.iter().all(|part| *part > 0.15), "{beside:?}");
    assert!(beside[..2].iter().all(|part| part + beside[2] < 1.15), "{beside:?}");
}

#[test]
fn a_job_whose_kernels_become_wider_no_longer_runs_beside_another() {
    let (host, _daemon) = Host::new().simgpu(BY_BLOCKS).with_daemon();
    let _mps = mps(&host);
    let _other = job_of_blocks(&host, "other", &[NARROW]);
    let _job = job_of_blocks(&host, "job", &["32", "--wide-after", "5"]);
    await_together(&host, true);
    await_together(&host, false);
}

#[test]
fn graphs_of_narrow_kernels_run_at_once_without_a_part() {
    let (host, _daemon) = Host::new().simgpu(BY_BLOCKS).with_daemon();
    let _mps = mps(&host);
    let _graphs = ["a", "b"].map(|name| job_of_blocks(&host, name, &[NARROW, "--graph", "3"]));
    await_together(&host, true);
}

#[test]
fn without_mps_jobs_of_narrow_kernels_take_turns() {
    let (host, _daemon) = Host::new().simgpu(BY_BLOCKS).with_daemon();
    let _narrow = ["a", "b"].map(|name| job_of_blocks(&host, name, &[NARROW]));
    thread::sleep(Duration::from_secs(3));
    let parts = running(&host);
    assert!(parts.len() == 2 && parts.iter().sum::<f64>() < 1.1, "{parts:?}");
    let explained = host.shows(&["explain", "a"]);
    assert!(
        explained.contains("SMs       counts with all: it does not run under the MPS server"),
        "{explained}"
    );
}

/// Starts a backlogged job that reports a hundredth of the SMs and the host's MPS server, and is no
/// client of MPS. Of the server, only the directory has to exist.
fn false_client(host: &Host, name: &str) -> Process {
    let client = ["--sync-every", "4"];
    let mut command = by_mps(host, host.run(&["--name", name], c_client("backlog"), &client));
    command.env("SIMGPU_FALSE_MPS_CLIENT", "1").env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "1");
    host.start(command, "ready")
}

/// Returns the line of `deepres explain` with the part of the SMs with which a job counts.
fn explained_part(host: &Host, name: &str) -> String {
    let explained = host.shows(&["explain", name]);
    let line = explained.lines().find(|line| line.trim_start().starts_with("SMs "));
    line.unwrap_or_else(|| panic!("{explained}")).to_owned()
}

#[test]
fn jobs_that_say_that_they_are_clients_of_mps_and_are_none_take_turns_with_all_others() {
    let (host, _daemon) = Host::new().simgpu(SIMGPU).with_daemon();
    fs::create_dir(host.path().join(PIPES)).expect("a folder of our own");
    let _honest = job_in(&host, OTHER_PIPES, &["--name", "honest"]);
    let _false = ["a", "b"].map(|name| false_client(&host, name));
    thread::sleep(Duration::from_secs(1));
    assert_take_turns(&host);
    for name in ["a", "b", "honest"] {
        let part = explained_part(&host, name);
        assert!(part.contains("counts with all"), "{name}: {part}");
    }
}

#[test]
fn a_job_that_names_the_mps_server_of_others_and_is_no_client_does_not_run_beside_them() {
    let (host, _daemon) = Host::new().simgpu(SIMGPU).with_daemon();
    let _mps = mps(&host);
    let _client = job(&host, &["--name", "client", "--sm", "40%"]);
    let _false = false_client(&host, "false");
    thread::sleep(Duration::from_secs(1));
    assert_take_turns(&host);
    let part = explained_part(&host, "false");
    assert!(part.contains("counts with all"), "{part}");
    let _other = job(&host, &["--name", "other", "--sm", "60%"]);
    await_together(&host, true);
}

#[test]
fn if_nvml_does_not_tell_the_clients_of_mps_the_daemon_believes_the_jobs_and_says_so() {
    const NOT_SUPPORTED: &str = "nvmlDeviceGetMPSComputeRunningProcesses_v3:every:1:3";
    let host = Host::new().simgpu(SIMGPU);
    let daemon = host.daemon_with(&[("SIMGPU_FAULTS", Path::new(NOT_SUPPORTED))]);
    fs::create_dir(host.path().join(PIPES)).expect("a folder of our own");
    let _false = ["a", "b"].map(|name| false_client(&host, name));
    await_together(&host, true);
    assert!(daemon.stderr().contains("NVML does not tell the clients of MPS"), "{}", daemon.stderr());
}

/// Checks that no jobs run at once at ten looks of the next second.
fn assert_take_turns(host: &Host) {
    for _ in 0..10 {
        thread::sleep(Duration::from_millis(100));
        let phase = host.json(&["ps", "--json"])["gpus"][0]["phase"].clone();
        assert_ne!(phase, "together");
    }
}

#[test]
fn jobs_of_different_mps_servers_take_turns_and_jobs_of_one_server_run_at_once() {
    let (host, _daemon) = Host::new().simgpu(SIMGPU).with_daemon();
    let _servers = [PIPES, OTHER_PIPES].map(|pipes| mps_in(&host, pipes));
    let jobs = [("a", PIPES), ("b", OTHER_PIPES)];
    let _jobs = jobs.map(|(name, pipes)| job_in(&host, pipes, &["--name", name, "--sm", "40%"]));
    thread::sleep(Duration::from_secs(1));
    assert_take_turns(&host);
    let parts = running(&host);
    assert!(parts.len() == 2 && parts.iter().all(|part| *part > 0.3), "{parts:?}");
    let _third = job_in(&host, PIPES, &["--name", "c", "--sm", "40%"]);
    await_together(&host, true);
    thread::sleep(Duration::from_secs(1));
    // The sets are the two jobs of the first server, and the job of the other server.
    let parts = running(&host);
    assert!(parts.len() == 3 && parts[0] + parts[2] > 0.85 && parts[1] > 0.15, "{parts:?}");
    assert!(parts[0] + parts[1] < 1.15, "{parts:?}");
}

#[test]
fn with_mps_off_jobs_of_narrow_kernels_take_turns_also_as_clients_of_mps() {
    let (host, _daemon) = Host::new().simgpu(BY_BLOCKS).config("mps = \"off\"\n").with_daemon();
    let _mps = mps(&host);
    let _narrow = ["a", "b"].map(|name| job_of_blocks(&host, name, &[NARROW]));
    thread::sleep(Duration::from_secs(3));
    assert_take_turns(&host);
    let parts = running(&host);
    assert!(parts.len() == 2 && parts.iter().sum::<f64>() < 1.1, "{parts:?}");
    let explained = host.shows(&["explain", "a"]);
    assert!(explained.contains("SMs       counts with all"), "{explained}");
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

#[test]
fn the_death_of_a_client_within_a_launch_or_of_the_control_daemon_breaks_nobody_else() {
    let (host, _daemon) = Host::new().simgpu(SIMGPU).with_daemon();
    let mut control = mps(&host);
    let _other = job(&host, &["--name", "other", "--sm", "40%", "--memory", "1GiB"]);
    let launches = || host.account("other")["kernel_launches"].as_u64().unwrap_or(0);
    let goes_on = || {
        let before = launches();
        await_value(launches, |now| *now > before);
    };
    goes_on();
    let held = host.account("other")["memory_bytes"].clone();
    let is_whole = || {
        goes_on();
        assert_eq!(host.tenant("other")["memory_limit_bytes"], GIB);
        assert_eq!(host.account("other")["memory_bytes"], held);
        await_value(|| parts(&host), |parts| *parts == [Some(40)]);
    };

    let run = host.run(&["--name", "doomed", "--sm", "60%"], c_client("backlog"), &["--sync-every", "4"]);
    let mut doomed = by_mps(&host, run);
    doomed.env("SIMGPU_FAULTS", "die:cuLaunchKernel:50");
    assert_ne!(host.finish(doomed).code, 0, "it died within a launch");
    host.await_ps(|ps| ps.find("doomed").is_none_or(|doomed| doomed.memory_bytes == 0));
    is_whole();
    let mut next = job(&host, &["--name", "next", "--sm", "60%"]);
    assert_eq!(parts(&host), [Some(40), Some(60)], "its part is free again");
    next.terminate();

    control.kill();
    is_whole();
}

/// Writes [`PROFILE`] with these lines before it. Returns the file.
fn profile(host: &Host, lines: &str) -> PathBuf {
    let file = host.path().join("profile.toml");
    fs::write(&file, format!("{lines}{PROFILE}")).expect("a folder of our own");
    file
}

#[test]
fn a_part_follows_from_a_profile_and_is_explained() {
    let (host, _daemon) = Host::new().simgpu(SIMGPU).with_daemon();
    let _mps = mps(&host);
    let file = profile(&host, "").display().to_string();
    let started = job(&host, &["--name", "t", "--profile", &file, "--sm", "auto"]);
    assert_eq!(parts(&host), [Some(48)]);
    let chosen = "--sm auto: 48% of the SMs, the knee of its profile at batch 1, a run takes 1.042ms, and 1ms on all SMs";
    assert!(started.stderr().starts_with(&format!("deepres: {chosen}\n")), "{}", started.stderr());
    let explained = host.shows(&["explain", "t"]);
    assert!(explained.contains(&format!("t, {chosen}\n")), "{explained}");
    assert!(explained.contains("t, 48% of the SMs under MPS, as asked"), "{explained}");
    let refused = |options: &[&str], says: &str| {
        host.finish(by_mps(&host, host.run(options, "true", &[]))).refused(says);
    };
    refused(&["--sm", "auto"], "takes the part of the SMs from a profile, and none was given");
    refused(&["--profile", "none.toml", "--sm", "auto"], "cannot use none.toml");
    fs::write(&file, "points = [{ batch = 1, part_percent = 100, ms = 1 }]\n").unwrap();
    refused(&["--profile", &file], "points on one part of the SMs only");
}

#[test]
#[ignore = "deep: takes long"]
fn the_operating_point_of_a_tenant_follows_its_requests() {
    let (host, _daemon) = Host::new().simgpu(SIMGPU).with_daemon();
    let file = profile(&host, "").display().to_string();
    let options = ["--name", "t", "--slo", "20ms", "--profile", &file];
    let serve = host.run(&options, c_client("serve"), &["--kernel", "busy_1000us", "--rate", "40"]);
    let _serve = host.spawn(serve);
    let requests = || host.status()["tenants"][0]["gpus"][0]["requests"].clone();
    let seen = await_value_within(requests, |seen| !seen["operating_point"].is_null(), COMMAND_LIMIT);
    let point = &seen["operating_point"];
    // All parts up to 50 % have the same area, and the widest of them is the quickest.
    assert_eq!(
        (&point["sm_ppm"], &point["batch"], &point["is_in_time"]),
        (&json!(500_000), &json!(1), &json!(true))
    );
    assert!((990_000..1_010_000).contains(&point["run_ns"].as_u64().unwrap()), "{point}");
    assert!(point["need_ppm"].as_u64().unwrap() > 0 && point["rate_per_second"].as_f64().unwrap() > 0.0);
    let explained = host.shows(&["explain", "t"]);
    assert!(
        explained.contains("point     50% of the SMs and batch 1 by its profile: a run takes"),
        "{explained}"
    );
}

/// Starts a daemon that finds the control program, on a host where no variable names MPS.
pub fn daemon_with_mps(host: &Host) -> Process {
    host.daemon_with(&[("PATH", Path::new(&program_path()))])
}

/// Starts a backlogged job with a part of 40 %, to which only deepres tells the directory of MPS.
fn told_job(host: &Host) -> Process {
    let mut command = host.run(&["--name", "t", "--sm", "40%"], c_client("backlog"), &["--sync-every", "4"]);
    command.env("PATH", program_path());
    host.start(command, "ready")
}

/// Returns the MPS control daemon that the daemon started.
fn control(host: &Host) -> Option<Pid> {
    let file = host.deepres_dir().join("mps/nvidia-cuda-mps-control.pid");
    let pid = Pid::from_raw(fs::read_to_string(file).ok()?.trim().parse().ok()?)?;
    host.processes().contains(&(pid.as_raw_nonzero().get() as u32)).then_some(pid)
}

#[test]
fn the_daemon_starts_mps_for_its_jobs_and_ends_it() {
    let host = Host::new().simgpu(SIMGPU).config("mps = \"start\"\n");
    let mut daemon = daemon_with_mps(&host);
    let pipes = host.deepres_dir().join("mps");
    assert_eq!(host.status()["daemon"]["mps_pipes"].as_str().map(Path::new), Some(&*pipes));
    assert!(control(&host).is_some());
    let mut job = told_job(&host);
    assert_eq!((parts(&host), job.stderr()), (vec![Some(40)], String::new()));
    job.terminate();
    await_value(|| parts(&host), Vec::is_empty);
    daemon.terminate();
    assert_eq!(control(&host), None, "{}", daemon.stderr());
}

#[test]
fn jobs_of_two_users_run_at_once_if_mps_is_for_all_users() {
    if !root_or_skipped() {
        return;
    }
    let host = Host::new().simgpu(SIMGPU).config("mps = \"start\"\nmps_users = \"all\"\n");
    host.let_all_users_in();
    let daemon = daemon_with_mps(&host);
    let _roots = told_job(&host);
    let job = host.run(&["--name", "u", "--sm", "60%"], c_client("backlog"), &["--sync-every", "4"]);
    let mut nobodys = host.command("setpriv");
    nobodys.args(AS_NOBODY).arg(job.get_program()).args(job.get_args()).env("PATH", program_path());
    let _nobodys = host.start(nobodys, "ready");
    assert_eq!(parts(&host), [Some(40), Some(60)]);
    await_together(&host, true);
    assert!(daemon.stderr().contains("serves the clients of all users by one server"), "{}", daemon.stderr());
}

#[test]
#[ignore = "deep: takes long"]
fn mps_that_dies_is_told_and_started_again_and_lives_on_with_its_clients() {
    let host = Host::new().simgpu(SIMGPU).config("mps = \"start\"\n");
    let mut daemon = daemon_with_mps(&host);
    let first = control(&host).expect("it runs");
    kill_process(first, Signal::KILL).unwrap();
    let second =
        await_value_within(|| control(&host), |now| now.is_some_and(|now| now != first), COMMAND_LIMIT);
    assert!(daemon.stderr().contains("the MPS control daemon ended"), "{}", daemon.stderr());
    await_value(|| host.status()["daemon"]["mps_deaths"].clone(), |deaths| *deaths == 1);
    await_value(|| host.status()["daemon"]["mps_pipes"].clone(), |pipes| !pipes.is_null());
    let mut job = told_job(&host);
    assert_eq!(parts(&host), [Some(40)]);
    // The job is a client, so the control daemon outlives the daemon, and the next daemon finds it.
    daemon.terminate();
    assert_eq!(control(&host), second);
    let mut next = daemon_with_mps(&host);
    assert_eq!((control(&host), parts(&host)), (second, vec![Some(40)]));
    let also = told_job(&host);
    assert_eq!(parts(&host), [Some(40); 2]);
    assert!(!also.stderr().contains(NO_EFFECT), "{}", also.stderr());
    // The next daemon did not start it.
    job.terminate();
    next.terminate();
    assert_eq!(control(&host), second);
}

#[test]
#[ignore = "deep: takes long"]
fn the_death_of_an_mps_server_is_told_and_breaks_nobody_else() {
    let host = Host::new().simgpu(SIMGPU).config("mps = \"start\"\n");
    let daemon = daemon_with_mps(&host);
    let mut client = told_job(&host);
    let mut command =
        host.run(&["--name", "u", "--memory", "1GiB"], c_client("backlog"), &["--sync-every", "4"]);
    // A job without MPS.
    command.env("CUDA_MPS_PIPE_DIRECTORY", host.path().join("none"));
    let _other = host.start(command, "ready");
    let control = control(&host).expect("it runs").as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{control}/task/{control}/children")).unwrap();
    // The daemon looks for servers twice a second.
    thread::sleep(Duration::from_secs(1));
    let server = Pid::from_raw(children.trim().parse().expect("one server")).unwrap();
    kill_process(server, Signal::KILL).unwrap();
    assert_ne!(client.await_end().code, 0, "its server is gone");
    eventually("the daemon tells it", || daemon.stderr().contains("an MPS server ended"));
    let other = || host.account("u")["kernel_launches"].as_u64().unwrap();
    let before = other();
    await_value(other, |launches| *launches > before);
    assert_eq!(host.tenant("u")["memory_limit_bytes"], GIB);
    let _next = told_job(&host);
    assert!(parts(&host).contains(&Some(40)), "{:?}", parts(&host));
}

#[test]
fn a_daemon_without_the_control_program_says_so_and_serves() {
    let host = Host::new().simgpu(SIMGPU).config("mps = \"start\"\n");
    let mut daemon = host.daemon_with(&[("PATH", Path::new("/nowhere"))]);
    daemon.await_error_line(|line| line.contains("cannot start nvidia-cuda-mps-control"));
    assert!(host.status()["daemon"]["mps_pipes"].is_null());
}

#[test]
fn clients_of_mps_share_a_gpu_for_one_process_and_daemon_and_doctor_tell_its_mode() {
    const TOLD: &str = "GPU 0 is in EXCLUSIVE_PROCESS mode and no MPS control daemon runs";
    let simgpu = format!("compute_mode = \"exclusive-process\"\n{SIMGPU}");
    let (host, mut daemon) = Host::new().simgpu(&simgpu).with_daemon();
    daemon.await_error_line(|line| line.contains(TOLD));
    let examined = || -> Value {
        let said = host.finish(by_mps(&host, host.deepres(&["doctor", "--json"]))).stdout;
        let checks: Vec<Value> = serde_json::from_str(&said).expect("a list");
        checks.into_iter().find(|check| check["name"] == "compute mode").expect("a check of the modes")
    };
    let closed = examined();
    assert_eq!(closed["verdict"], "bad", "{closed}");
    assert!(closed["found"].as_str().is_some_and(|found| found.starts_with(TOLD)), "{closed}");
    let _mps = mps(&host);
    assert_eq!(examined()["verdict"], "good");
    let _jobs = ["40%", "60%"].map(|part| job(&host, &["--sm", part]));
    assert_eq!(parts(&host), [Some(40), Some(60)]);
    let alone = host.finish(host.run(&[], c_client("backlog"), &["--seconds", "1"]));
    assert_ne!(alone.code, 0, "it has no MPS: {}", alone.stdout);
}

/// A model as D-STACK's table is recalled: its part of the SMs, the time of a run, and the limit on
/// this time. Runs consist of kernels of a millisecond.
struct Model {
    name: &'static str,
    percent: u32,
    run_ms: u32,
    within_ms: u32,
}

/// The case C-4. In virtual time, no run is late.
const C4: [Model; 4] = [
    Model { name: "alexnet", percent: 30, run_ms: 8, within_ms: 25 },
    Model { name: "mobilenet", percent: 20, run_ms: 10, within_ms: 25 },
    Model { name: "resnet", percent: 40, run_ms: 28, within_ms: 50 },
    Model { name: "vgg", percent: 50, run_ms: 55, within_ms: 100 },
];

/// Tests that measure. Each runs alone on the machine.
mod measured {
    use super::*;

    /// The time for which the models run, and the part of it in which all of them surely run.
    const RUN: Duration = Duration::from_secs(20);
    const SETTLED: Duration = Duration::from_secs(2);
    const MEASURED: Duration = Duration::from_secs(16);
    /// The most late runs, as a part of all runs.
    const LATE: f64 = 0.005;
    /// The greatest error of the area, as a part of the area in virtual time.
    const AREA: f64 = 0.05;

    #[test]
    #[ignore = "deep: takes long"]
    fn four_models_in_sets_on_parts_of_the_sms_meet_their_deadlines() {
        let kernel = |model: &Model| {
            format!("{{ name = \"{}\", ns = 1000000, sm_ppm = {} }}", model.name, model.percent * PERCENT)
        };
        let kernels = C4.each_ref().map(kernel).join(", ");
        let simgpu = format!("sm_count = 100\nlaunch_overhead_ns = 0\nkernel = [{kernels}]\n");
        let (host, _daemon) = Host::measuring().simgpu(&simgpu).with_daemon();
        let _mps = mps(&host);
        let servers = C4.each_ref().map(|model| {
            let [part, slo] = [format!("{}%", model.percent), format!("{}ms", model.within_ms)];
            let options = ["--name", model.name, "--sm", &part, "--slo", &slo];
            let [kernels, every_us] =
                [model.run_ms, model.within_ms * 1_000].map(|number| number.to_string());
            let seconds = RUN.as_secs().to_string();
            let arguments = [
                "--kernel",
                model.name,
                "--kernels",
                &kernels,
                "--every-us",
                &every_us,
                "--seconds",
                &seconds,
            ];
            host.start(by_mps(&host, host.run(&options, c_client("serve"), &arguments)), "ready")
        });
        thread::sleep(SETTLED);
        let area = |host: &Host| {
            let truth = host.truth();
            (truth.at_ns, truth.gpus[0].sm_ns)
        };
        let (from_ns, before_ns) = area(&host);
        thread::sleep(MEASURED);
        let (to_ns, after_ns) = area(&host);
        let area = (after_ns - before_ns) as f64 / (to_ns - from_ns) as f64;
        let said = servers.map(|server| server.finish().success().json());
        let figure = |key: &str| said.iter().map(|said| said[key].as_f64().expect("a figure")).sum::<f64>();
        let late = figure("late") / figure("pieces");
        let part = |model: &Model| f64::from(model.percent * model.run_ms) / f64::from(100 * model.within_ms);
        let virtual_area: f64 = C4.iter().map(part).sum();
        println!("{:.2} % late, area {area:.3} of {virtual_area:.3}: {said:?}", late * 100.0);
        assert!(late <= LATE, "{late}");
        assert!((area / virtual_area - 1.0).abs() <= AREA, "{area}");
    }
}
