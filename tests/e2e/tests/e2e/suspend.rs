//! Tenants that are suspended, by hand and to make room for others, and resumed with all their
//! memory.

use std::{
    ffi::OsString,
    fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use deepres_e2e::{
    Host, Process, Ps,
    artefacts::artefacts,
    clients::{Way, c_client},
    host::COMMAND_LIMIT,
};
use rustix::process::{Pid, Signal, kill_process};

const MIB: u64 = 1 << 20;
const NO_CHECKPOINTS: &str = "the NVIDIA driver has no checkpoint API (it came with release 570)";
/// The daemon's pause between two attempts to bring a tenant back.
const MOVERS_PAUSE: Duration = Duration::from_secs(1);
/// A time in which many kernels run.
const WHILE: Duration = Duration::from_millis(300);

/// Returns a host with a GPU of 1 GiB. Contexts take no memory, and memory moves to the host at 10
/// GB/s.
fn small_gpu() -> Host {
    Host::new().simgpu(
        "memory_bytes = 1073741824\ncontext_overhead_bytes = 0\nhost_to_device_bytes_per_us = 10000\n\
         device_to_host_bytes_per_us = 10000\nkernel = [{ name = \"busy_1000us\", ns = 1000000 }]\n",
    )
}

fn swapper(host: &Host, name: &str, bytes: u64, kernels: &str, oversubscribe: bool) -> Process {
    let mut options = vec!["--name", name];
    if oversubscribe {
        options.extend(["--oversubscribe", "suspend"]);
    }
    host.spawn(host.run(&options, c_client("swap", Way::Dlsym), &[&bytes.to_string(), kernels]))
}

/// Returns the number of kernels that all processes in the record completed, and the memory used on
/// the GPU.
fn seen(host: &Host) -> (u64, u64) {
    let truth = host.truth();
    (truth.processes.iter().map(|process| process.gpus[0].kernels).sum(), truth.gpus[0].memory_used_bytes)
}

#[test]
fn a_tenant_suspended_by_hand_leaves_the_gpu_and_goes_on_when_it_is_resumed() {
    let host = small_gpu();
    let _daemon = host.daemon();
    let mut client = swapper(&host, "t", 256 * MIB, "2000", false);
    client.await_line(|line| line == "holding", COMMAND_LIMIT);
    let (_, used) = seen(&host);
    assert!(used >= 256 * MIB);
    host.finish(host.deepres(&["suspend", "t"])).success();
    let (kernels, used) = seen(&host);
    assert_eq!(used, 0, "nothing of it is left on the GPU");
    thread::sleep(WHILE);
    assert_eq!(seen(&host).0, kernels, "nothing of it runs");
    assert_eq!(host.ps().tenant("t").sessions.len(), 1, "it is a tenant all the while");
    let gates = || {
        let explained = host.finish(host.deepres(&["explain", "t", "--json"])).success().stdout;
        let explained: serde_json::Value = serde_json::from_str(&explained).expect("it is one JSON object");
        let shown = host.finish(host.deepres(&["ps"])).success().stdout;
        let row = shown.lines().find(|line| line.starts_with("t ")).unwrap_or_default().to_owned();
        let last = row.split_whitespace().last().unwrap_or_default().to_owned();
        [
            host.status()["tenants"][0]["gpus"][0]["gate"].clone(),
            explained["gpus"][0]["gate"].clone(),
            last.into(),
        ]
    };
    assert_eq!(gates(), ["suspended"; 3], "one word wherever it is told");
    host.finish(host.deepres(&["resume", "t"])).success();
    host.finish(host.deepres(&["pause", "t"])).success();
    assert_eq!(gates(), ["paused"; 3]);
    let resume = || host.finish(host.deepres(&["resume", "t"])).success().stdout;
    assert_eq!(resume(), "t: resumed\n");
    assert_eq!(resume(), "t: was neither paused nor suspended\n");
    assert!(seen(&host).1 >= 256 * MIB);
    let said = client.await_json(COMMAND_LIMIT);
    assert_eq!(said["changed"].as_u64(), Some(0), "{said}");
    client.finish(COMMAND_LIMIT).success();
}

#[test]
fn whatever_call_a_suspended_tenant_waits_in_it_is_seen_to_wait() {
    let host = small_gpu();
    let _daemon = host.daemon();
    let mut client = host.spawn(host.run(&["--name", "t"], c_client("heldup", Way::Dlsym), &[]));
    client.await_line(|line| line == "ready", COMMAND_LIMIT);
    let await_waiters =
        |wanted| host.await_ps(|ps| ps.tenant("t").sessions[0].waiters == wanted, COMMAND_LIMIT);
    for call in [
        "copy",
        "copy-async",
        "wait",
        "wait-for-all",
        "free-bytes",
        "allocate",
        "free",
        "allocate-async",
        "free-async",
        "load",
        "unload",
        "launch",
        "first-launch",
        "end-stream",
    ] {
        host.finish(host.deepres(&["suspend", "t"])).success();
        client.say(call);
        await_waiters(1);
        let done = format!("done {call}");
        assert!(
            !client.stdout().lines().any(|line| line == done),
            "{call} returned while the memory was away"
        );
        host.finish(host.deepres(&["resume", "t"])).success();
        client.await_line(|line| line == done, COMMAND_LIMIT);
        await_waiters(0);
    }
    client.finish(COMMAND_LIMIT).success();
}

#[test]
fn who_comes_to_a_suspended_tenant_keeps_no_memory_on_the_gpu_either() {
    let host = small_gpu();
    let _daemon = host.daemon();
    let mut clients = vec![swapper(&host, "t", 256 * MIB, "2000", false)];
    clients[0].await_line(|line| line == "holding", COMMAND_LIMIT);
    host.finish(host.deepres(&["suspend", "t"])).success();
    // The processes start one after the other. The later one finds two processes that are away.
    for came in [2, 3] {
        clients.push(swapper(&host, "t", 128 * MIB, "10", false));
        host.await_ps(|ps| ps.tenant("t").sessions.len() == came, COMMAND_LIMIT);
        // By now the new process has all its memory, unless it was suspended before.
        thread::sleep(Duration::from_millis(1_500));
        assert_eq!(seen(&host).1, 0, "of {came} processes");
    }
    host.finish(host.deepres(&["resume", "t"])).success();
    for mut client in clients {
        assert_eq!(client.await_json(COMMAND_LIMIT)["changed"].as_u64(), Some(0));
        client.finish(COMMAND_LIMIT).success();
    }
}

#[test]
fn all_processes_of_a_tenant_leave_all_its_gpus_and_come_back() {
    let host = Host::new().simgpu(
        "gpus = 2\nmemory_bytes = 1073741824\ncontext_overhead_bytes = 0\nkernel = [{ name = \"busy_1000us\", ns = 1000000 }]\n",
    );
    let _daemon = host.daemon();
    let used = || -> Vec<u64> { host.truth().gpus.iter().map(|gpu| gpu.memory_used_bytes).collect() };
    let mut clients = ["0", "1", "1"].map(|gpu| {
        let bytes = (64 * MIB).to_string();
        let mut command = host.run(&["--name", "t"], c_client("swap", Way::Dlsym), &[&bytes, "900"]);
        command.env("CUDA_VISIBLE_DEVICES", gpu);
        host.spawn(command)
    });
    for client in &mut clients {
        client.await_line(|line| line == "holding", COMMAND_LIMIT);
    }
    assert_eq!(used(), [64 * MIB, 128 * MIB]);
    host.finish(host.deepres(&["suspend", "t"])).success();
    assert_eq!(used(), [0, 0]);
    host.finish(host.deepres(&["resume", "t"])).success();
    for mut client in clients {
        assert_eq!(client.await_json(COMMAND_LIMIT)["changed"].as_u64(), Some(0));
        client.finish(COMMAND_LIMIT).success();
    }
    assert_eq!(host.ps().tenant("t").refusals, 0);
}

#[test]
fn two_tenants_of_sixty_percent_of_the_memory_each_both_finish_in_turns() {
    const KERNELS: u64 = 3_000;
    /// Time in which some turns take place.
    const LOOKED_FOR: Duration = Duration::from_secs(5);
    let host = small_gpu().config("suspend_turn_ms = 600\n");
    let _daemon = host.daemon();
    let bytes = 608 * MIB;
    let begun = Instant::now();
    let mut first = swapper(&host, "first", bytes, &KERNELS.to_string(), true);
    first.await_line(|line| line == "holding", COMMAND_LIMIT);
    let mut second = swapper(&host, "second", bytes, &KERNELS.to_string(), true);
    second.await_line(|line| line == "holding", COMMAND_LIMIT);
    // A tenant that has just come back must show no drift. NVML's figures from the time while it
    // was away do not count.
    while begun.elapsed() < LOOKED_FOR {
        let said = host.finish(host.deepres(&["ps", "--json"])).success().stdout;
        let ps: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        for tenant in ps["tenants"].as_array().expect("tenants") {
            let drift = &tenant["gpus"][0]["drift_bytes"];
            assert!(drift.is_null() || *drift == 0, "{tenant}");
        }
    }
    for client in [&mut first, &mut second] {
        let said = client.await_json(Duration::from_secs(60));
        assert_eq!(said["changed"].as_u64(), Some(0), "{said}");
    }
    let took = begun.elapsed();
    assert!(host.truth().gpus[0].memory_peak_bytes <= 1024 * MIB);
    // The kernels alone take six seconds. Each swap, after a turn of 600 ms, moves 1.2 GB at 10
    // GB/s.
    println!("two times {KERNELS} ms of kernels in {took:?}");
    for client in [first, second] {
        client.finish(COMMAND_LIMIT).success();
    }
    for tenant in ["first", "second"] {
        assert_eq!(host.ps().tenant(tenant).refusals, 0);
    }
}

#[test]
fn two_tenants_that_have_nothing_to_do_are_not_moved_every_turn() {
    const LOOKED_FOR: Duration = Duration::from_secs(8);
    let host = small_gpu().config("suspend_turn_ms = 200\n");
    let daemon = host.daemon();
    let idle = |name: &str| {
        // The client has no kernels left. It keeps its memory and waits for the end of its input.
        let options = ["--name", name, "--oversubscribe", "suspend"];
        let bytes = (608 * MIB).to_string();
        let mut client = host.spawn(host.run(&options, c_client("holds", Way::Dlsym), &[&bytes]));
        client.await_line(|line| line == "holding", COMMAND_LIMIT);
        client
    };
    let clients = [idle("first"), idle("second")];
    thread::sleep(LOOKED_FOR);
    let moved = daemon.stderr().matches("suspended a tenant").count();
    // A move at each turn would give about twenty moves or more.
    assert!((1..=10).contains(&moved), "{moved}:\n{}", daemon.stderr());
    for client in clients {
        client.finish(COMMAND_LIMIT).success();
    }
}

#[test]
fn a_graph_that_allocates_waits_for_room_as_an_allocation_does() {
    let host = small_gpu().config("suspend_turn_ms = 200\n");
    let _daemon = host.daemon();
    let mut holder = swapper(&host, "holder", 896 * MIB, "3000", true);
    holder.await_line(|line| line == "holding", COMMAND_LIMIT);
    let bytes = (512 * MIB).to_string();
    let options = ["--name", "late", "--memory", "1GiB"];
    let command = host.run(&options, c_client("kept", Way::Dlsym), &["late", &bytes]);
    let finished = host.finish(command).success();
    assert_eq!(finished.stdout.trim(), "launched", "{}", finished.stderr);
    let said = holder.await_json(Duration::from_secs(60));
    assert_eq!(said["changed"].as_u64(), Some(0), "{said}");
    holder.finish(COMMAND_LIMIT).success();
}

#[test]
fn who_did_not_opt_in_keeps_the_memory_and_the_other_is_told_that_there_is_none() {
    let host = small_gpu();
    let _daemon = host.daemon();
    let mut firm = swapper(&host, "firm", 608 * MIB, "500", false);
    firm.await_line(|line| line == "holding", COMMAND_LIMIT);
    let other = swapper(&host, "other", 608 * MIB, "1", true);
    let ended = other.finish(COMMAND_LIMIT);
    assert_ne!(ended.code, 0);
    assert!(ended.stderr.contains("cuMemAlloc_v2"), "{}", ended.stderr);
    firm.await_json(COMMAND_LIMIT);
    firm.finish(COMMAND_LIMIT).success();
}

#[test]
fn the_daemons_death_brings_suspended_tenants_back() {
    let host = small_gpu();
    let mut daemon = host.daemon();
    let mut client = swapper(&host, "t", 256 * MIB, "300", false);
    client.await_line(|line| line == "holding", COMMAND_LIMIT);
    host.finish(host.deepres(&["suspend", "t"])).success();
    daemon.kill();
    assert_eq!(client.await_json(COMMAND_LIMIT)["changed"].as_u64(), Some(0));
    client.finish(COMMAND_LIMIT).success();
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
fn what_moves_tenants_leaves_no_zombies() {
    let host = small_gpu();
    let _daemon = host.daemon();
    let mut client = swapper(&host, "t", 64 * MIB, "600", false);
    client.await_line(|line| line == "holding", COMMAND_LIMIT);
    for _ in 0..3 {
        host.finish(host.deepres(&["suspend", "t"])).success();
        host.finish(host.deepres(&["resume", "t"])).success();
    }
    let daemon = host.ps().daemon_pid;
    let deadline = Instant::now() + COMMAND_LIMIT;
    while children(daemon) != (Vec::new(), 0) {
        assert!(Instant::now() < deadline, "{:?}", children(daemon));
        thread::sleep(Duration::from_millis(10));
    }
    client.await_json(COMMAND_LIMIT);
    client.finish(COMMAND_LIMIT).success();
}

#[test]
fn a_tenant_whose_keeper_is_killed_is_brought_back_all_the_same() {
    let host = small_gpu();
    let _daemon = host.daemon();
    let mut client = swapper(&host, "t", 256 * MIB, "300", false);
    client.await_line(|line| line == "holding", COMMAND_LIMIT);
    host.finish(host.deepres(&["suspend", "t"])).success();
    kill_process(keeper(&host), Signal::KILL).expect("it lives");
    let resumed = host.finish(host.deepres(&["resume", "t"]));
    assert_ne!(resumed.code, 0);
    assert!(
        resumed.stderr.contains("the daemon tries again and again to bring it back"),
        "{}",
        resumed.stderr
    );
    assert_eq!(client.await_json(COMMAND_LIMIT)["changed"].as_u64(), Some(0));
    client.finish(COMMAND_LIMIT).success();
}

/// Returns the only process of a tenant that uses the GPU.
fn client_of(host: &Host, tenant: &str) -> Pid {
    Pid::from_raw(host.ps().tenant(tenant).sessions[0].pid as i32).expect("a pid")
}

#[test]
fn the_next_daemon_brings_a_tenant_back_whose_daemon_and_keeper_were_killed() {
    let host = small_gpu();
    let mut daemon = host.daemon();
    let mut client = swapper(&host, "t", 256 * MIB, "300", false);
    client.await_line(|line| line == "holding", COMMAND_LIMIT);
    host.finish(host.deepres(&["suspend", "t"])).success();
    let mut other = swapper(&host, "other", 900 * MIB, "100000", false);
    other.await_line(|line| line == "holding", COMMAND_LIMIT);
    let used = seen(&host).1;
    let keeper = keeper(&host);
    // Without the stop, the keeper would bring the tenant back as soon as the daemon is gone.
    kill_process(keeper, Signal::STOP).expect("it lives");
    daemon.kill();
    kill_process(keeper, Signal::KILL).expect("it lives");
    thread::sleep(WHILE);
    assert_eq!(seen(&host).1, used, "nobody is there to bring it back");
    let _next = host.daemon();
    let gate = || host.finish(host.deepres(&["ps"])).success().stdout;
    // The other tenant did not opt in to suspension. As long as it has the memory, the first tenant
    // stays away, although no process keeps it away any more.
    thread::sleep(2 * MOVERS_PAUSE);
    assert!(gate().lines().any(|line| line.starts_with("t ") && line.contains("suspended")), "{}", gate());
    let told = host.finish(host.deepres(&["resume", "t"])).success();
    assert!(told.stdout.contains("is resumed once there is room for it"), "{}", told.stdout);
    kill_process(client_of(&host, "other"), Signal::KILL).expect("it lives");
    assert_eq!(client.await_json(COMMAND_LIMIT)["changed"].as_u64(), Some(0));
    client.finish(COMMAND_LIMIT).success();
}

#[test]
fn tenants_that_take_turns_go_on_doing_so_after_the_daemon_was_killed() {
    /// More kernels than the test lets run.
    const KERNELS: &str = "60000";
    let host = small_gpu().config("suspend_turn_ms = 400\n");
    let mut daemon = host.daemon();
    let mut clients = ["first", "second"].map(|name| swapper(&host, name, 608 * MIB, KERNELS, true));
    for client in &mut clients {
        client.await_line(|line| line == "holding", COMMAND_LIMIT);
    }
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
    host.await_ps(
        |ps| ps.tenants.iter().filter(|tenant| !tenant.sessions.is_empty()).count() == 2,
        COMMAND_LIMIT,
    );
    // Meanwhile the process that keeps one tenant away gives up, because there is no room.
    thread::sleep(Duration::from_secs(3));
    let before = done();
    let until = Instant::now() + COMMAND_LIMIT;
    while done().iter().zip(&before).any(|(now, before)| now <= before) {
        assert!(Instant::now() < until, "{before:?} {:?}\n{}", done(), daemon.stderr());
        thread::sleep(Duration::from_millis(50));
    }
    assert!(!daemon.stderr().contains("work that does not end"), "{}", daemon.stderr());
    clients.iter_mut().for_each(Process::kill);
}

#[test]
fn a_driver_that_hangs_holds_up_nobody_else_and_not_for_ever() {
    let host = small_gpu().config("suspend_limit_ms = 3000\n");
    let _daemon = host.daemon();
    let mut clients = ["stuck", "other"].map(|name| swapper(&host, name, 64 * MIB, "600", false));
    for client in &mut clients {
        client.await_line(|line| line == "holding", COMMAND_LIMIT);
    }
    host.finish(host.deepres(&["suspend", "stuck"])).success();
    kill_process(keeper(&host), Signal::STOP).expect("it lives");
    let mut resumed = host.spawn(host.deepres(&["resume", "stuck"]));
    host.finish(host.deepres(&["suspend", "other"])).success();
    host.finish(host.deepres(&["resume", "other"])).success();
    assert!(resumed.try_wait().is_none(), "others are moved while one hangs");
    let resumed = resumed.finish(COMMAND_LIMIT);
    assert_ne!(resumed.code, 0);
    assert!(resumed.stderr.contains("took longer than 3s"), "{}", resumed.stderr);
    for mut client in clients {
        assert_eq!(client.await_json(COMMAND_LIMIT)["changed"].as_u64(), Some(0));
        client.finish(COMMAND_LIMIT).success();
    }
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
    let daemon = host.spawn(command);
    let deadline = Instant::now() + COMMAND_LIMIT;
    while host.finish(host.deepres(&["ps"])).code != 0 {
        assert!(Instant::now() < deadline, "the daemon does not answer");
    }
    daemon
}

#[test]
fn a_driver_without_checkpoints_is_said_to_be_one_and_the_tenant_goes_on() {
    let host = small_gpu();
    let _daemon = daemon_of_an_old_driver(&host);
    let mut client = swapper(&host, "t", 64 * MIB, "300", false);
    client.await_line(|line| line == "holding", COMMAND_LIMIT);
    let refused = host.finish(host.deepres(&["suspend", "t"]));
    assert_ne!(refused.code, 0);
    assert!(refused.stderr.contains(NO_CHECKPOINTS), "{}", refused.stderr);
    assert_eq!(client.await_json(COMMAND_LIMIT)["changed"].as_u64(), Some(0));
    client.finish(COMMAND_LIMIT).success();
    // A user learns of it already at the start of a job.
    let mut command = host.run(&["--oversubscribe", "suspend"], "true", &[]);
    command.env("LD_LIBRARY_PATH", libraries_of_an_old_driver(&host));
    let refused = host.finish(command);
    assert!(refused.code != 0 && refused.stderr.contains(NO_CHECKPOINTS), "{}", refused.stderr);
}

#[test]
fn nobody_waits_for_the_memory_of_a_tenant_that_the_driver_cannot_move() {
    let host = small_gpu();
    let _daemon = daemon_of_an_old_driver(&host);
    let mut holder = swapper(&host, "holder", 608 * MIB, "100000", true);
    holder.await_line(|line| line == "holding", COMMAND_LIMIT);
    let other = swapper(&host, "other", 608 * MIB, "1", false);
    let ended = other.finish(COMMAND_LIMIT);
    assert_ne!(ended.code, 0);
    assert!(ended.stderr.contains("cuMemAlloc_v2"), "{}", ended.stderr);
    assert!(holder.try_wait().is_none(), "it goes on");
}

#[test]
fn who_waits_gets_the_memory_of_one_that_ends_instead_of_leaving() {
    let host = small_gpu();
    let _daemon = host.daemon();
    let mut holder = swapper(&host, "holder", 608 * MIB, "100000", true);
    holder.await_line(|line| line == "holding", COMMAND_LIMIT);
    let mut other = swapper(&host, "other", 608 * MIB, "1", false);
    await_waiting(&host, "other", 416 * MIB);
    kill_process(client_of(&host, "holder"), Signal::KILL).expect("it lives");
    other.await_line(|line| line == "holding", COMMAND_LIMIT);
    assert_eq!(other.await_json(COMMAND_LIMIT)["changed"].as_u64(), Some(0));
    other.finish(COMMAND_LIMIT).success();
}

#[test]
fn a_limit_that_is_lowered_while_an_allocation_waits_for_room_holds_for_it() {
    let host = small_gpu();
    let _daemon = host.daemon();
    let mut holder = swapper(&host, "holder", 608 * MIB, "100000", true);
    holder.await_line(|line| line == "holding", COMMAND_LIMIT);
    let options = ["--name", "other", "--memory", "1GiB"];
    let bytes = (608 * MIB).to_string();
    let other = host.spawn(host.run(&options, c_client("swap", Way::Dlsym), &[&bytes, "1"]));
    await_waiting(&host, "other", 416 * MIB);
    host.finish(host.deepres(&["set", "other", "--memory", "420MiB"])).success();
    kill_process(client_of(&host, "holder"), Signal::KILL).expect("it lives");
    let ended = other.finish(COMMAND_LIMIT);
    assert_ne!(ended.code, 0);
    assert!(ended.stderr.contains("cuMemAlloc_v2"), "{}", ended.stderr);
}

#[test]
fn who_is_resumed_while_others_have_the_memory_comes_back_after_them() {
    let host = small_gpu();
    let _daemon = host.daemon();
    let mut first = swapper(&host, "first", 608 * MIB, "100", false);
    first.await_line(|line| line == "holding", COMMAND_LIMIT);
    host.finish(host.deepres(&["suspend", "first"])).success();
    let mut other = swapper(&host, "other", 608 * MIB, "100000", false);
    other.await_line(|line| line == "holding", COMMAND_LIMIT);
    let resumed = host.finish(host.deepres(&["resume", "first"])).success().stdout;
    assert!(resumed.starts_with("first: is resumed once there is room for it"), "{resumed}");
    let shown = host.finish(host.deepres(&["ps"])).success().stdout;
    assert!(shown.contains("first on gpu 0: linear 608 MiB, on the host\n"), "{shown}");
    kill_process(client_of(&host, "other"), Signal::KILL).expect("it lives");
    assert_eq!(first.await_json(COMMAND_LIMIT)["changed"].as_u64(), Some(0));
    first.finish(COMMAND_LIMIT).success();
    // The ended tenant stays listed for a while.
    let ended = host.finish(host.deepres(&["suspend", "first"])).stderr;
    assert!(ended.contains("no process of `first` uses a GPU: there is nothing to suspend"), "{ended}");
}

/// Waits until a tenant has all memory that the GPU has left, which is `bytes`, and waits for more.
fn await_waiting(host: &Host, tenant: &str, bytes: u64) {
    let waits = |ps: &Ps| {
        ps.find(tenant).is_some_and(|tenant| tenant.memory_bytes == bytes && tenant.needed_bytes > 0)
    };
    host.await_ps(waits, COMMAND_LIMIT);
    let shown = host.finish(host.deepres(&["ps"])).success().stdout;
    let line = shown.lines().find(|line| line.starts_with(&format!("{tenant} on gpu 0: ")));
    assert!(line.is_some_and(|line| line.contains("waits for others to make room for ")), "{shown}");
}

#[test]
fn a_suspended_tenant_that_is_killed_leaves_nothing_behind() {
    let host = small_gpu();
    let _daemon = host.daemon();
    let mut client = swapper(&host, "t", 256 * MIB, "2000", false);
    client.await_line(|line| line == "holding", COMMAND_LIMIT);
    host.finish(host.deepres(&["suspend", "t"])).success();
    kill_process(client_of(&host, "t"), Signal::KILL).expect("it lives");
    host.await_ps(|ps| ps.find("t").is_none_or(|tenant| tenant.sessions.is_empty()), COMMAND_LIMIT);
    drop(client);
    let mut next = swapper(&host, "next", 928 * MIB, "1", false);
    next.await_line(|line| line == "holding", COMMAND_LIMIT);
    next.await_json(COMMAND_LIMIT);
    next.finish(COMMAND_LIMIT).success();
}
