//! The daemon meters programs without the interposer from outside, by real kernel probes on their
//! driver library.
//!
//! The tests need root and a daemon with eBPF programs (`cargo xtask ebpf`).

use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use deepres_e2e::clients::c_program_on;
use deepres_e2e::prelude::*;
use deepres_e2e::probes;
use deepres_e2e::users::AS_NOBODY;

/// Returns a host, and lets one test run at a time. Returns `None` where probes are impossible. The
/// kernel places and removes probes one after the other on the whole host, and outside the tests a
/// host has one daemon.
fn alone(config: &str) -> Option<(Host, MutexGuard<'static, ()>)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    Some((probes::host(config)?, alone))
}

/// Waits until the metered processes satisfy `wanted`, and returns them.
#[track_caller]
fn await_metered(host: &Host, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let processes = || host.status()["metering"]["processes"].as_array().expect("a list").clone();
    await_value(processes, |processes| wanted(processes))
}

fn all_ended(processes: &[Value], count: usize) -> bool {
    processes.len() == count && processes.iter().all(|process| process["state"] == "ended")
}

#[test]
fn every_launch_of_a_program_that_is_not_preloaded_is_counted_from_the_first_one_on() {
    let Some((host, _alone)) = alone("") else { return };
    let _daemon = host.daemon();
    // Hundreds of threads launch on both kinds of default streams.
    let storm = c_client("storm");
    let job = host.spawn(host.run(&["--no-preload", "--name", "outside"], &storm, &[]));
    let said = job.finish().success();
    assert!(!said.stderr.contains("does not count"), "{}", said.stderr);
    let launches = said.json()["kernel_launches"].as_u64().unwrap();
    let ended = await_metered(&host, |processes| all_ended(processes, 1)).swap_remove(0);
    assert_eq!((&ended["tenant"], &ended["launches"]), (&"outside".into(), &launches.into()), "{ended}");
    assert_eq!(ended["functions"]["cuLaunchKernel_ptsz"], launches / 2);
    let shown = host.shows(&["ps", "-v"]);
    assert!(shown.contains("METERED") && shown.contains(&launches.to_string()), "{shown}");
    assert_eq!(host.status()["unmanaged"].as_array().map(Vec::len), Some(0), "it is known");
}

#[test]
fn children_are_metered_and_tenants_of_the_same_library_are_not() {
    let Some((host, _alone)) = alone("") else { return };
    const CHILD: &str = "import ctypes, os\n\
        cuda = ctypes.CDLL('libcuda.so.1')\n\
        cuda.cuInit(0)\n\
        os.read(0, 1)\n\
        for _ in range(700): cuda.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None)\n\
        memory = ctypes.c_void_p()\n\
        for _ in range(3): cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 20))\n";
    let _daemon = host.daemon();
    let tenant = host.spawn(host.run(&["--name", "inside"], c_client("storm"), &[]));
    let job = host.run(
        &["--no-preload", "--name", "outside"],
        "sh",
        &["-c", "python3 -c \"$0\"; python3 -c \"$0\"", CHILD],
    );
    let mut job = host.spawn(job);
    let mut children = Vec::new();
    for _ in 0..2 {
        // `deepres run` itself opens the driver's library too, before it becomes the shell.
        let new = |processes: &[Value]| {
            let is_child = |process: &&Value| process["command"].to_string().contains("CDLL");
            let mut probed =
                processes.iter().filter(is_child).filter(|process| process["libraries"] != json!([]));
            let pid = |process: &Value| process["pid"].clone();
            probed.find(|process| !children.contains(&pid(process))).map(pid)
        };
        let child = new(&await_metered(&host, |processes| new(processes).is_some()));
        children.extend(child);
        // The child waits for this line until its library has probes.
        job.say("");
    }
    job.finish().success();
    tenant.finish().success();
    // The shell was named too, and has no driver library of its own.
    let ended = await_metered(&host, |processes| all_ended(processes, 3));
    let is_child = |process: &&Value| {
        (&process["launches"], &process["allocations"], &process["allocated_bytes"])
            == (&700.into(), &3.into(), &(3 << 20).into())
    };
    assert_eq!(ended.iter().filter(is_child).count(), 2, "{ended:#?}");
    assert!(ended.iter().all(|process| process["tenant"] == "outside"), "{ended:#?}");
}

#[test]
#[ignore = "deep: starts thousands of processes"]
fn a_user_with_thousands_of_metered_processes_leaves_others_their_room() {
    let Some((host, _alone)) = alone("") else { return };
    /// More children than one user may have: half of the room of 16,384.
    const CHILDREN: u64 = 9_000;
    const PART: u64 = 8_192;
    host.let_all_users_in();
    let _daemon = host.daemon();
    let spawns = c_program("spawns").display().to_string();
    let job = ["run", "--no-preload", "--name", "greedy", "--", &spawns, &CHILDREN.to_string()];
    let mut greedy = host.command("setpriv");
    greedy.args(AS_NOBODY).arg(&artefacts().deepres).args(job);
    let (_greedy, _) = host.told(greedy);
    let uncounted = || host.status()["metering"]["uncounted_processes"].as_u64();
    await_value(uncounted, |uncounted| *uncounted >= Some(CHILDREN - PART));
    // The shell's child is metered only if there is room for it.
    const CHILD: &str = "import ctypes, time\n\
        cuda = ctypes.CDLL('libcuda.so.1')\n\
        cuda.cuInit(0)\n\
        time.sleep(5)\n\
        for _ in range(700): cuda.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None)";
    let other = ["--no-preload", "--name", "other"];
    host.finish(host.run(&other, "sh", &["-c", "python3 -c \"$0\"; true", CHILD])).success();
    let is_counted = |process: &Value| process["tenant"] == "other" && process["launches"] == 700;
    await_metered(&host, |processes| processes.iter().any(is_counted));
}

#[test]
fn a_static_program_is_metered_by_its_own_symbols_and_a_stripped_one_says_why_not() {
    let Some((host, _alone)) = alone("") else { return };
    let _daemon = host.daemon();
    let program = c_program_on(CLibrary::Static, "inside");
    let said = host.finish(host.run(&["--no-preload"], &program, &["5000", "40"])).success();
    assert_eq!(said.json()["called"], 5041);
    let ended = await_metered(&host, |processes| all_ended(processes, 1)).swap_remove(0);
    assert_eq!((&ended["launches"], &ended["allocations"]), (&5000.into(), &40.into()), "{ended}");
    assert_eq!(ended["allocated_bytes"], 40 << 20);

    let stripped = host.path().join("stripped");
    let strip = Command::new("strip").args(["-s", "-o"]).arg(&stripped).arg(&program).status();
    assert!(strip.expect("binutils are there").success());
    let mut job = host.run(&["--no-preload"], &stripped, &["10", "0"]);
    // The program has no shared driver library either.
    job.env_remove("LD_LIBRARY_PATH");
    let said = host.finish(job).success();
    assert!(
        said.stderr.contains("the daemon does not count its launches") && said.stderr.contains("stripped"),
        "{}",
        said.stderr
    );
}

#[test]
fn a_program_that_was_adopted_is_metered_from_then_on() {
    let Some((host, _alone)) = alone(probes::CONFIG) else { return };
    const STRANGER: &str = "import ctypes, os, signal, sys\n\
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})\n\
        cuda = ctypes.CDLL('libcuda.so.1')\n\
        cuda.cuInit(0)\n\
        device = os.open('/dev/vga_arbiter', os.O_RDWR)\n\
        def launch(count):\n\
        \x20for _ in range(count): cuda.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None)\n\
        launch(10)\n\
        print('{}', flush=True)\n\
        signal.sigwait({signal.SIGUSR1})\n\
        launch(123)\n\
        while sys.stdin.buffer.read(4096): pass\n";
    let mut command = host.command("python3");
    command.args(["-c", STRANGER]);
    let (stranger, _) = host.told(command);
    let _daemon = host.daemon();
    let pid = stranger.pid().to_string();
    let unmanaged = || host.status()["unmanaged"].clone();
    await_value(unmanaged, |users| users.as_array().is_some_and(|users| !users.is_empty()));
    let adopted = host.call(&["adopt", &pid, "--name", "nightly"]).success();
    assert_eq!(adopted.stderr, "", "it is metered");
    stranger.signal(Signal::USR1);
    let metered =
        await_metered(&host, |processes| processes.iter().any(|process| process["launches"] == 123));
    assert_eq!((&metered[0]["tenant"], &metered[0]["state"]), (&"nightly".into(), &"metered".into()));
    // A process that is adopted again belongs to the new tenant everywhere, and its counts go on.
    host.call(&["adopt", &pid, "--name", "daily"]).success();
    let metered =
        await_metered(&host, |processes| processes.iter().all(|process| process["tenant"] == "daily"));
    assert_eq!((metered.len(), &metered[0]["launches"]), (1, &123.into()));
    assert_eq!(host.status()["unmanaged"][0]["tenant"], "daily");
    for name in ["", "\x1b[31mred", &"x".repeat(300)] {
        let refused = host.call(&["adopt", &pid, "--name", name]);
        assert_eq!(refused.code, 2, "{name:?}: {}", refused.stderr);
    }
    stranger.finish().success();
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    #[test]
    fn a_metered_programs_child_that_cannot_be_probed_is_not_listed_as_unmanaged() {
        const CHILD: &str = "import fcntl, os, time\n\
        device = os.open('/dev/vga_arbiter', os.O_RDWR)\n\
        for _ in range(30):\n\
        \x20try: fcntl.ioctl(device, 0xc020462a, bytearray(32))\n\
        \x20except OSError: pass\n\
        \x20time.sleep(0.1)";
        let Some((host, mut daemon)) = probes::measuring(probes::CONFIG).map(Host::with_daemon) else {
            return;
        };
        // In the two seconds after its start the daemon reports no unmanaged process.
        thread::sleep(Duration::from_millis(2_200));
        let mut job =
            host.run(&["--no-preload", "--name", "outside"], "sh", &["-c", "python3 -c \"$0\"; true", CHILD]);
        // The program has no shared driver library either.
        job.env_remove("LD_LIBRARY_PATH");
        host.spawn(job).finish().success();
        await_value(|| host.status()["probes"].clone(), |probes| probes["calls"].as_u64() >= Some(30));
        let log = daemon.terminate().success().stderr;
        assert!(!log.contains("an unmanaged process uses"), "{log}");
    }

    // The kernel sets each probe after a grace period, which is longer on a busy machine.
    #[test]
    #[ignore = "deep: takes long"]
    fn made_up_libraries_take_nobody_elses_room_and_are_forgotten_with_their_job() {
        let Some(host) = probes::measuring(probes::CONFIG) else { return };
        const LIBRARIES: usize = 20;
        /// The most libraries of one process that the daemon probes. No real program has so many
        /// libraries.
        const PROBED: usize = 16;
        const MAKER: &str = "import ctypes, fcntl, glob, os, sys\n\
            made = [ctypes.CDLL(path) for path in glob.glob(sys.argv[1] + '/libcuda.so.*')]\n\
            device = os.open('/dev/vga_arbiter', os.O_RDWR)\n\
            try: fcntl.ioctl(device, 0xc020462a, bytearray(32))\n\
            except OSError: pass\n\
            print('{}', flush=True)\n\
            sys.stdin.read()";
        let mut daemon = host.daemon();
        // Each copy is a library of its own, because the kernel tells files apart.
        let make = |name: &str| {
            let folder = host.path().join(name);
            std::fs::create_dir(&folder).expect("a folder");
            for number in 0..LIBRARIES {
                std::fs::copy(c_library("inside"), folder.join(format!("libcuda.so.{number}")))
                    .expect("a copy");
            }
            let mut command = host.command("python3");
            command.args(["-c", MAKER]).arg(&folder);
            let (maker, _) = host.told(command);
            let pid = maker.pid().to_string();
            eventually("it is found", || host.call(&["adopt", &pid, "--name", name]).code == 0);
            let metered =
                await_metered(&host, |processes| processes.iter().any(|process| process["tenant"] == name));
            let its = metered.into_iter().find(|process| process["tenant"] == name).expect("it is listed");
            assert_eq!(its["libraries"].as_array().map(Vec::len), Some(PROBED), "{its:#}");
            maker
        };
        let maker = make("maker");
        let other = host.run(&["--no-preload", "--name", "other"], c_client("storm"), &[]);
        let launches = host.finish(other).success().json()["kernel_launches"].clone();
        let is_other = |process: &&Value| process["tenant"] == "other" && process["state"] == "ended";
        let ended = await_metered(&host, |processes| processes.iter().any(|process| is_other(&process)));
        let other = ended.iter().find(is_other).expect("it is listed");
        assert_eq!(other["launches"], launches, "{other}");
        // The libraries of a job are no longer probed after its end, although another process is
        // metered all the while.
        let _stays = host.spawn(host.run(&["--no-preload", "--name", "stays"], "sleep", &["60"]));
        maker.finish().success();
        let forgotten = |line: &str| line.contains("no longer probes") && line.contains("/maker/libcuda.so");
        daemon.await_error_line(forgotten);
    }
}
