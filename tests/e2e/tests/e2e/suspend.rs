//! The daemon suspends tenants, by order of an administrator or to make room for others. Later the
//! tenants go on with all their memory.

use std::ffi::OsString;
use std::fs;
use std::process::{Command, Stdio};

use deepres_e2e::calls::{Calls, WORK};
use deepres_e2e::prelude::*;
use deepres_e2e::swap::{assert_unchanged_within, holding, swapper};
use rustix::process::{Pid, kill_process};

const NO_CHECKPOINTS: &str = "the NVIDIA driver has no checkpoint API (release 570 and newer have it)";
/// The daemon's pause between two attempts to bring a tenant back.
const MOVERS_PAUSE: Duration = Duration::from_secs(1);
/// Options of a tenant that opts in to suspension.
const SUSPEND: [&str; 2] = ["--oversubscribe", "suspend"];
/// A time in which many kernels run.
const WHILE: Duration = Duration::from_millis(300);

#[track_caller]
fn assert_unchanged(client: Process) {
    assert_unchanged_within(client, COMMAND_LIMIT);
}

/// Returns the number of kernels that all processes in the record completed, and the memory used on
/// the GPU.
fn seen(host: &Host) -> (u64, u64) {
    let truth = host.truth();
    (truth.processes.iter().map(|process| process.gpus[0].kernels).sum(), truth.gpus[0].memory_used_bytes)
}

#[test]
fn a_tenant_suspended_by_hand_leaves_the_gpu_and_goes_on_when_it_is_resumed() {
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    let client = holding(&host, "t", &[], 256 * MIB, "2000");
    let (_, used) = seen(&host);
    assert!(used >= 256 * MIB);
    host.call(&["suspend", "t"]).success();
    let (kernels, used) = seen(&host);
    assert_eq!(used, 0, "nothing of it is left on the GPU");
    thread::sleep(WHILE);
    assert_eq!(seen(&host).0, kernels, "nothing of it runs");
    assert_eq!(host.ps().tenant("t").sessions.len(), 1, "it is a tenant all the while");
    let gates = || {
        let explained = host.json(&["explain", "t", "--json"]);
        let shown = host.shows(&["ps"]);
        let row = shown.lines().find(|line| line.starts_with("t ")).unwrap_or_default().to_owned();
        let last = row.split_whitespace().last().unwrap_or_default().to_owned();
        [
            host.status()["tenants"][0]["gpus"][0]["gate"].clone(),
            explained["gpus"][0]["gate"].clone(),
            last.into(),
        ]
    };
    assert_eq!(gates(), ["suspended"; 3], "one word wherever it is told");
    host.call(&["resume", "t"]).success();
    host.call(&["pause", "t"]).success();
    assert_eq!(gates(), ["paused"; 3]);
    let resume = || host.shows(&["resume", "t"]);
    assert_eq!(resume(), "t: resumed\n");
    assert_eq!(resume(), "t: was neither paused nor suspended\n");
    assert!(seen(&host).1 >= 256 * MIB);
    assert_unchanged(client);
}

#[test]
fn a_suspended_tenant_is_seen_to_wait_in_every_call() {
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    let mut client = Calls::start(&host, &[("DEEPRES_TENANT", "t")]);
    client.define(WORK);
    client.define(
        "fresh, busy, other = new(cuda.cuStreamCreate, NON_BLOCKING), kernel('busy_1000us'), c_uint64()",
    );
    client.does("linear('held', 2 << 20)");
    client.does("launch(busy, stream) or cuda.cuStreamSynchronize(stream)");
    let await_waiters = |wanted| host.await_ps(|ps| ps.tenant("t").sessions[0].waiters == wanted);
    for call in [
        "cuda.cuMemcpyDtoH_v2(ctypes.create_string_buffer(64), kept['held'], c_size_t(64))",
        "cuda.cuMemcpyHtoDAsync_v2(kept['held'], bytes(64), c_size_t(64), stream)",
        "cuda.cuStreamSynchronize(stream)",
        "cuda.cuCtxSynchronize()",
        "cuda.cuMemGetInfo_v2(byref(c_size_t()), byref(c_size_t()))",
        "linear('other', 2 << 20)",
        "cuda.cuMemFree_v2(kept['other'])",
        "cuda.cuMemAllocAsync(byref(other), c_size_t(2 << 20), stream)",
        "cuda.cuMemFreeAsync(other, stream)",
        "kept.update(code=module('quick')) or 0",
        "cuda.cuModuleUnload(kept['code'])",
        "launch(busy, stream)",
        "launch(busy, fresh)",
        "cuda.cuStreamDestroy_v2(fresh)",
    ] {
        host.call(&["suspend", "t"]).success();
        client.0.say(call);
        await_waiters(1);
        assert!(!client.0.has_answered(), "{call} returned while the memory was away");
        host.call(&["resume", "t"]).success();
        assert!(client.0.answer().ends_with(" 0"), "{call}");
        await_waiters(0);
    }
    client.0.process.finish().success();
}

#[test]
fn a_process_that_comes_to_a_suspended_tenant_keeps_no_memory_on_the_gpu_either() {
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    let mut clients = vec![holding(&host, "t", &[], 256 * MIB, "2000")];
    host.call(&["suspend", "t"]).success();
    // The processes start one after the other. The later one finds two processes that are away.
    for came in [2, 3] {
        clients.push(swapper(&host, "t", &[], 128 * MIB, "10"));
        host.await_ps(|ps| ps.tenant("t").sessions.len() == came);
        // By now the new process has all its memory, unless it was suspended before.
        thread::sleep(Duration::from_millis(1_500));
        assert_eq!(seen(&host).1, 0, "of {came} processes");
    }
    host.call(&["resume", "t"]).success();
    clients.into_iter().for_each(assert_unchanged);
}

#[test]
fn all_processes_of_a_tenant_leave_all_its_gpus_and_come_back() {
    let (host, _daemon) = Host::new().simgpu(
        "gpus = 2\nmemory_bytes = 1073741824\ncontext_overhead_bytes = 0\nkernel = [{ name = \"busy_1000us\", ns = 1000000 }]\n",
    ).with_daemon();
    let used = || -> Vec<u64> { host.truth().gpus.iter().map(|gpu| gpu.memory_used_bytes).collect() };
    let mut clients = ["0", "1", "1"].map(|gpu| {
        let bytes = (64 * MIB).to_string();
        let mut command = host.run(&["--name", "t"], c_client("swap"), &[&bytes, "900"]);
        command.env("CUDA_VISIBLE_DEVICES", gpu);
        host.spawn(command)
    });
    for client in &mut clients {
        client.await_exactly("holding");
    }
    assert_eq!(used(), [64 * MIB, 128 * MIB]);
    host.call(&["suspend", "t"]).success();
    assert_eq!(used(), [0, 0]);
    host.call(&["resume", "t"]).success();
    clients.into_iter().for_each(assert_unchanged);
    assert_eq!(host.ps().tenant("t").refusals, 0);
}

#[test]
fn two_tenants_of_sixty_percent_of_the_memory_each_both_finish_in_turns() {
    const KERNELS: u64 = 3_000;
    /// Time in which some turns take place.
    const LOOKED_FOR: Duration = Duration::from_secs(5);
    let (host, _daemon) = Host::of_one_gib().config("suspend_turn_ms = 600\n").with_daemon();
    let bytes = 608 * MIB;
    let begun = Instant::now();
    let first = holding(&host, "first", &SUSPEND, bytes, &KERNELS.to_string());
    let second = holding(&host, "second", &SUSPEND, bytes, &KERNELS.to_string());
    // A tenant that has just come back must show no drift. NVML's figures from the time while it
    // was away do not count.
    while begun.elapsed() < LOOKED_FOR {
        for tenant in host.status()["tenants"].as_array().expect("tenants") {
            let drift = &tenant["gpus"][0]["drift_bytes"];
            assert!(drift.is_null() || *drift == 0, "{tenant}");
        }
    }
    for client in [first, second] {
        assert_unchanged_within(client, Duration::from_secs(60));
    }
    // The kernels alone take six seconds. Each swap, after a turn of 600 ms, moves 1.2 GB at 10
    // GB/s.
    println!("two times {KERNELS} ms of kernels in {:?}", begun.elapsed());
    assert!(host.truth().gpus[0].memory_peak_bytes <= 1024 * MIB);
    for tenant in ["first", "second"] {
        assert_eq!(host.ps().tenant(tenant).refusals, 0);
    }
}

#[test]
fn two_tenants_that_have_nothing_to_do_are_not_moved_every_turn() {
    const LOOKED_FOR: Duration = Duration::from_secs(8);
    let (host, daemon) = Host::of_one_gib().config("suspend_turn_ms = 200\n").with_daemon();
    let idle = |name: &str| {
        // The client launches nothing. The client keeps its memory and waits for the end of its
        // input.
        let variables = [("DEEPRES_TENANT", name), ("DEEPRES_OVERSUBSCRIBE", "suspend")];
        let mut client = Calls::start(&host, &variables);
        client.does(&format!("linear('held', {})", 608 * MIB));
        client
    };
    let clients = [idle("first"), idle("second")];
    thread::sleep(LOOKED_FOR);
    let moved = daemon.stderr().matches("suspended a tenant").count();
    // A move at each turn would give about twenty moves or more.
    assert!((1..=10).contains(&moved), "{moved}:\n{}", daemon.stderr());
    for client in clients {
        client.0.process.finish().success();
    }
}

#[test]
fn a_graph_that_allocates_waits_for_room_as_an_allocation_does() {
    let (host, _daemon) = Host::of_one_gib().config("suspend_turn_ms = 200\n").with_daemon();
    let holder = holding(&host, "holder", &SUSPEND, 896 * MIB, "3000");
    let mut late = Calls::start(&host, &[("DEEPRES_TENANT", "late"), ("DEEPRES_MEMORY", "1GiB")]);
    late.define(WORK);
    late.does("launch_graph(executable(captured(512 << 20)))");
    drop(late);
    assert_unchanged_within(holder, Duration::from_secs(60));
}

#[test]
fn a_tenant_that_did_not_opt_in_keeps_the_memory_and_the_other_is_told_that_there_is_none() {
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    let firm = holding(&host, "firm", &[], 608 * MIB, "500");
    let other = swapper(&host, "other", &SUSPEND, 608 * MIB, "1");
    let ended = other.finish();
    ended.refused("cuMemAlloc_v2");
    assert_unchanged(firm);
}

#[test]
fn the_daemons_death_brings_suspended_tenants_back() {
    let (host, mut daemon) = Host::of_one_gib().with_daemon();
    let client = holding(&host, "t", &[], 256 * MIB, "300");
    host.call(&["suspend", "t"]).success();
    daemon.kill();
    assert_unchanged(client);
}

#[test]
fn a_service_manager_that_stops_all_processes_of_the_service_leaves_nobody_suspended() {
    let (host, mut daemon) = Host::of_one_gib().with_daemon();
    let client = holding(&host, "t", &[], 256 * MIB, "300");
    host.call(&["suspend", "t"]).success();
    // systemd sends the signal to each process in the service's cgroup.
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        kill_process(keeper(&host), signal).expect("it lives");
    }
    daemon.terminate().success();
    assert_unchanged(client);
}

#[test]
fn a_daemon_that_is_told_to_end_brings_suspended_tenants_back_before_its_end() {
    let (host, mut daemon) = Host::of_one_gib().with_daemon();
    let clients = ["first", "second"].map(|name| holding(&host, name, &[], 256 * MIB, "2000"));
    for name in ["first", "second"] {
        host.call(&["suspend", name]).success();
    }
    let (keepers, _) = children(host.ps().daemon_pid);
    assert_eq!(keepers.len(), 2);
    let told = daemon.terminate().success().stderr;
    // A container runtime kills the container's other processes once the daemon has ended.
    for keeper in keepers {
        // The process may have ended already.
        let _ = kill_process(keeper, Signal::KILL);
    }
    assert!(!told.contains("while tenants are suspended"), "{told}");
    assert!(seen(&host).1 >= 512 * MIB, "both have their memory again");
    clients.into_iter().for_each(assert_unchanged);
}

#[test]
fn a_daemon_that_is_told_to_end_waits_for_no_room() {
    let (host, mut daemon) = Host::of_one_gib().with_daemon();
    let client = holding(&host, "t", &[], 608 * MIB, "300");
    host.call(&["suspend", "t"]).success();
    let _other = holding(&host, "other", &[], 608 * MIB, "100000");
    let other = client_of(&host, "other");
    let told = daemon.terminate().success().stderr;
    assert!(told.contains("the daemon ends while tenants are suspended"), "{told}");
    kill_process(other, Signal::KILL).expect("it lives");
    assert_unchanged(client);
}

/// Returns the daemon's living children, which keep tenants off the GPUs, and the number of its
/// zombies.
fn children(daemon: u32) -> (Vec<Pid>, usize) {
    let stat = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let field = |stat: &str, at: usize| {
        stat.rsplit_once(") ").and_then(|(_, fields)| fields.split(' ').nth(at).map(str::to_owned))
    };
    let all = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let own = pids.filter(|pid| field(&stat(pid), 1) == Some(daemon.to_string()));
    let (ended, living): (Vec<i32>, Vec<i32>) =
        own.partition(|pid| field(&stat(pid), 0).as_deref() == Some("Z"));
    (living.into_iter().filter_map(Pid::from_raw).collect(), ended.len())
}

/// Returns the process that keeps the only suspended tenant off the GPUs.
fn keeper(host: &Host) -> Pid {
    let (living, _) = children(host.ps().daemon_pid);
    assert_eq!(living.len(), 1);
    living[0]
}

#[test]
fn moves_of_tenants_leave_no_zombies() {
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    let client = holding(&host, "t", &[], 64 * MIB, "600");
    for _ in 0..3 {
        host.call(&["suspend", "t"]).success();
        host.call(&["resume", "t"]).success();
    }
    let daemon = host.ps().daemon_pid;
    await_value(|| children(daemon), |children| *children == (Vec::new(), 0));
    assert_unchanged(client);
}

#[test]
fn a_tenant_whose_keeper_is_killed_is_brought_back_all_the_same() {
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    let client = holding(&host, "t", &[], 256 * MIB, "300");
    host.call(&["suspend", "t"]).success();
    kill_process(keeper(&host), Signal::KILL).expect("it lives");
    host.call(&["resume", "t"]).refused("keeps trying to bring the tenant back");
    assert_unchanged(client);
}

fn kill_client(host: &Host, tenant: &str) {
    kill_process(client_of(host, tenant), Signal::KILL).expect("it lives");
}

/// Returns the only process of a tenant that uses the GPU.
fn client_of(host: &Host, tenant: &str) -> Pid {
    Pid::from_raw(host.ps().tenant(tenant).sessions[0].pid as i32).expect("a pid")
}

#[test]
fn the_next_daemon_brings_a_tenant_back_whose_daemon_and_keeper_were_killed() {
    let (host, mut daemon) = Host::of_one_gib().with_daemon();
    let client = holding(&host, "t", &[], 256 * MIB, "300");
    host.call(&["suspend", "t"]).success();
    let _other = holding(&host, "other", &[], 900 * MIB, "100000");
    let used = seen(&host).1;
    let keeper = keeper(&host);
    // Without the stop, the keeper would bring the tenant back as soon as the daemon is gone.
    kill_process(keeper, Signal::STOP).expect("it lives");
    daemon.kill();
    kill_process(keeper, Signal::KILL).expect("it lives");
    thread::sleep(WHILE);
    assert_eq!(seen(&host).1, used, "nobody is there to bring it back");
    let _next = host.daemon();
    let gate = || host.shows(&["ps"]);
    // The other tenant did not opt in to suspension. As long as it has the memory, the first tenant
    // stays away, although no process keeps it away any more.
    thread::sleep(2 * MOVERS_PAUSE);
    assert!(gate().lines().any(|line| line.starts_with("t ") && line.contains("suspended")), "{}", gate());
    let told = host.call(&["resume", "t"]).success();
    assert!(told.stdout.contains("waits for memory"), "{}", told.stdout);
    kill_client(&host, "other");
    assert_unchanged(client);
}

#[test]
fn tenants_that_take_turns_go_on_doing_so_after_the_daemon_was_killed() {
    /// More kernels than the test lets run.
    const KERNELS: &str = "60000";
    let (host, mut daemon) = Host::of_one_gib().config("suspend_turn_ms = 400\n").with_daemon();
    let mut clients = ["first", "second"].map(|name| swapper(&host, name, &SUSPEND, 608 * MIB, KERNELS));
    clients.iter_mut().for_each(|client| client.await_exactly("holding"));
    let pids = ["first", "second"].map(|name| client_of(&host, name));
    let done = || {
        let truth = host.truth();
        pids.map(|pid| {
            let of = truth.processes.iter().find(|process| Pid::from_raw(process.pid as i32) == Some(pid));
            of.map_or(0, |process| process.gpus[0].kernels)
        })
    };
    daemon.kill();
    let daemon = host.daemon();
    host.await_ps(|ps| ps.tenants.iter().filter(|tenant| !tenant.sessions.is_empty()).count() == 2);
    // Meanwhile the process that keeps one tenant away gives up, because there is no room.
    thread::sleep(Duration::from_secs(3));
    let before = done();
    await_value(done, |now| now.iter().zip(&before).all(|(now, before)| now > before));
    assert!(!daemon.stderr().contains("work that does not end"), "{}", daemon.stderr());
    clients.iter_mut().for_each(Process::kill);
}

#[test]
fn a_mover_whose_daemon_has_ended_brings_back_the_process_that_it_had_just_taken_off() {
    let host = Host::of_one_gib();
    let mut client = host.spawn({
        let mut command = host.command(c_client("swap"));
        command.args([&(64 * MIB).to_string(), "600"]);
        command
    });
    client.await_exactly("holding");
    let (reader, nobody_reads) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut mover = host.deepres(&["mover", &client.pid().to_string()]);
    mover.stdin(Stdio::null()).stdout(nobody_reads);
    assert!(mover.status().expect("it starts").success());
    assert_unchanged(client);
}

#[test]
fn a_driver_that_hangs_holds_up_nobody_else_and_not_for_ever() {
    let (host, _daemon) = Host::of_one_gib().config("suspend_limit_ms = 3000\n").with_daemon();
    let mut clients = ["stuck", "other"].map(|name| swapper(&host, name, &[], 64 * MIB, "600"));
    clients.iter_mut().for_each(|client| client.await_exactly("holding"));
    host.call(&["suspend", "stuck"]).success();
    kill_process(keeper(&host), Signal::STOP).expect("it lives");
    let mut resumed = host.spawn(host.deepres(&["resume", "stuck"]));
    host.call(&["suspend", "other"]).success();
    host.call(&["resume", "other"]).success();
    assert!(resumed.try_wait().is_none(), "others are moved while one hangs");
    let resumed = resumed.finish();
    resumed.refused("took longer than 3s");
    clients.into_iter().for_each(assert_unchanged);
}

#[test]
#[ignore = "deep: takes long"]
fn a_command_waits_for_a_slow_driver_as_long_as_the_daemon() {
    /// Longer than a command waits for other answers of the daemon.
    const SLOW: Duration = Duration::from_secs(7);
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    let client = holding(&host, "slow", &[], 64 * MIB, "300");
    host.call(&["suspend", "slow"]).success();
    let keeper = keeper(&host);
    kill_process(keeper, Signal::STOP).expect("it lives");
    let resumed = host.spawn(host.deepres(&["resume", "slow"]));
    thread::sleep(SLOW);
    kill_process(keeper, Signal::CONT).expect("it lives");
    resumed.finish().success();
    assert_unchanged(client);
}

/// Returns the library path of programs whose driver is of a release without checkpoints.
/// [`daemon_of_an_old_driver`] makes that driver.
fn libraries_of_an_old_driver(host: &Host) -> OsString {
    std::env::join_paths([&host.path().join("old"), &artefacts().simgpu]).expect("no colon in a build folder")
}

/// Starts a daemon with short turns, whose driver is of a release without checkpoints.
fn daemon_of_an_old_driver(host: &Host) -> Process {
    let old = host.path().join("old");
    fs::create_dir(&old).expect("a folder of our own");
    let source = old.join("cuda.c");
    fs::write(&source, "int cuInit(unsigned flags) { return (int)flags; }\n").expect("a folder of our own");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(old.join("libcuda.so.1")).arg(&source);
    assert!(compiler.status().expect("a C compiler").success());
    // The process that moves tenants finds the same driver as the daemon.
    let config = host.path().join("short-turns.toml");
    fs::write(&config, "suspend_turn_ms = 200\n").expect("a folder of our own");
    let mut command = host.deepres(&["daemon", "--config"]);
    command.arg(config);
    command.env("LD_LIBRARY_PATH", libraries_of_an_old_driver(host));
    let mut daemon = host.spawn(command);
    host.await_answer(&mut daemon);
    daemon
}

#[test]
fn a_driver_without_checkpoints_is_said_to_be_one_and_the_tenant_goes_on() {
    let host = Host::of_one_gib();
    let _daemon = daemon_of_an_old_driver(&host);
    let client = holding(&host, "t", &[], 64 * MIB, "300");
    host.call(&["suspend", "t"]).refused(NO_CHECKPOINTS);
    assert_unchanged(client);
    // A user learns of it already at the start of a job.
    let mut command = host.run(&["--oversubscribe", "suspend"], "true", &[]);
    command.env("LD_LIBRARY_PATH", libraries_of_an_old_driver(&host));
    host.finish(command).refused(NO_CHECKPOINTS);
}

#[test]
fn nobody_waits_for_the_memory_of_a_tenant_that_the_driver_cannot_move() {
    let host = Host::of_one_gib();
    let _daemon = daemon_of_an_old_driver(&host);
    let mut holder = holding(&host, "holder", &SUSPEND, 608 * MIB, "100000");
    let other = swapper(&host, "other", &[], 608 * MIB, "1");
    let ended = other.finish();
    ended.refused("cuMemAlloc_v2");
    assert!(holder.try_wait().is_none(), "it goes on");
}

#[test]
fn a_waiting_tenant_gets_the_memory_of_one_that_ends_instead_of_leaving() {
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    let _holder = holding(&host, "holder", &SUSPEND, 608 * MIB, "100000");
    let mut other = swapper(&host, "other", &[], 608 * MIB, "1");
    await_waiting(&host, "other", 416 * MIB);
    kill_client(&host, "holder");
    other.await_exactly("holding");
    assert_unchanged(other);
}

#[test]
fn a_limit_that_is_lowered_while_an_allocation_waits_for_room_holds_for_it() {
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    let _holder = holding(&host, "holder", &SUSPEND, 608 * MIB, "100000");
    let other = swapper(&host, "other", &["--memory", "1GiB"], 608 * MIB, "1");
    await_waiting(&host, "other", 416 * MIB);
    host.call(&["set", "other", "--memory", "420MiB"]).success();
    kill_client(&host, "holder");
    let ended = other.finish();
    ended.refused("cuMemAlloc_v2");
}

#[test]
fn a_tenant_resumed_while_others_have_the_memory_comes_back_after_them() {
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    let first = holding(&host, "first", &[], 608 * MIB, "100");
    host.call(&["suspend", "first"]).success();
    let _other = holding(&host, "other", &[], 608 * MIB, "100000");
    let resumed = host.shows(&["resume", "first"]);
    assert!(resumed.starts_with("first: waits for memory"), "{resumed}");
    let shown = host.shows(&["ps"]);
    assert!(shown.contains("first on gpu 0: linear 608 MiB, on the host\n"), "{shown}");
    kill_client(&host, "other");
    assert_unchanged(first);
    // The ended tenant stays listed for a while.
    let ended = host.call(&["suspend", "first"]).stderr;
    assert!(ended.contains("no process of `first` uses a GPU, so there is nothing to suspend"), "{ended}");
}

/// Waits until a tenant has all memory that the GPU has left, which is `bytes`, and waits for more.
fn await_waiting(host: &Host, tenant: &str, bytes: u64) {
    let waits = |ps: &Ps| {
        ps.find(tenant).is_some_and(|tenant| tenant.memory_bytes == bytes && tenant.needed_bytes > 0)
    };
    host.await_ps(waits);
    let shown = host.shows(&["ps"]);
    let line = shown.lines().find(|line| line.starts_with(&format!("{tenant} on gpu 0: ")));
    assert!(line.is_some_and(|line| line.contains("waits for others to make room for ")), "{shown}");
}

#[test]
fn a_suspended_tenant_that_is_killed_leaves_nothing_behind() {
    let (host, _daemon) = Host::of_one_gib().with_daemon();
    let client = holding(&host, "t", &[], 256 * MIB, "2000");
    host.call(&["suspend", "t"]).success();
    kill_client(&host, "t");
    host.await_ps(|ps| ps.find("t").is_none_or(|tenant| tenant.sessions.is_empty()));
    drop(client);
    let next = holding(&host, "next", &[], 928 * MIB, "1");
    assert_unchanged(next);
}
