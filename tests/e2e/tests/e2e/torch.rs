//! An unmodified PyTorch from PyPI trains on the simulated GPU, by the stand-ins for NVIDIA's
//! libraries.

use std::path::Path;
use std::process::Command;

use deepres_e2e::alive;
use deepres_e2e::artefacts::torch;
use deepres_e2e::clients::{conformance, cuda_program_on, torch_simgpu};
use deepres_e2e::prelude::*;
use rustix::process::{Pid, kill_process};

use crate::mps::{by_mps, mps};

/// Time limit of a client. PyTorch's import takes seconds, on a machine with other work.
const CLIENT_LIMIT: Duration = Duration::from_secs(120);
/// Time limit of a client that compiles. Triton keeps a CPU busy for half a minute.
const COMPILER_LIMIT: Duration = Duration::from_secs(240);
/// Time within which the session's meter thread brings the meter page up to date.
const METER_SETTLES_WITHIN: Duration = Duration::from_secs(10);
pub const LIMIT_BYTES: u64 = 4 * GIB;
/// The size of the client's last allocations, of which the limit refuses one.
const PIECE_BYTES: u64 = 64 * MIB;
pub const STEPS: &str = "5";

fn client(command: Command) -> Command {
    let mut command = torch().prepared(command);
    command.arg(script("torch_client")).arg(STEPS);
    command
}

/// Asserts that a client trains as without deepres, within a limit that it reaches and survives.
/// The client's last allocation fails with `error`, and raises the allocator's peak by
/// `refused_bytes` although it fails. `counts` tells whether the tenant's counts fit
/// to the number of kernels by the ground truth.
pub fn assert_trains_as_without(
    python: &Path,
    client: impl Fn(Command) -> Command,
    client_limit: Duration,
    (error, refused_bytes): (&str, u64),
    counts: impl Fn(&Tenant, u64) -> bool,
) {
    // The device of the client without deepres has as much memory as the limit.
    let bare = Host::new().simgpu(&format!("memory_bytes = {LIMIT_BYTES}\n"));
    let mut bare_client = bare.spawn(client(bare.command(python)));
    let mut without = bare_client.await_json_within(client_limit);
    println!("{without:#}");
    bare_client.finish().success();
    drop(bare);

    let (host, _daemon) = Host::new().lasting(client_limit).with_daemon();
    let options = ["--name", "trainer", "--memory", &LIMIT_BYTES.to_string()];
    let mut process = host.spawn(client(host.run(&options, python, &[])));
    let said = process.await_json_within(client_limit);
    if refused_bytes != 0 {
        without["after"]["peak"] = (number(&without["after"], "peak") + refused_bytes).into();
    }
    assert_eq!(said, without, "it sees what it sees without deepres");
    assert_eq!(said["error"], error);
    assert!(said["pieces"].as_u64() >= Some(LIMIT_BYTES / 2 / PIECE_BYTES), "the limit refused: {said}");

    // The client has synchronised, so the record is complete.
    let kernels: u64 = host.truth().processes.iter().map(|process| process.gpus[0].kernels).sum();
    assert!(kernels > 1000, "{kernels} kernels");
    let ps = host.await_ps_within(
        |ps| ps.find("trainer").is_some_and(|tenant| counts(tenant, kernels)),
        METER_SETTLES_WITHIN,
    );
    assert!(ps.tenant("trainer").refusals > 0);
    assert_nothing_past(&host, "trainer", 1);
    process.finish().success();
}

/// Asserts that this many living processes of a tenant, or more, launched no work and took no
/// memory of a GPU past the hooks.
#[track_caller]
fn assert_nothing_past(host: &Host, tenant: &str, processes: usize) {
    let own = || -> Vec<Value> {
        let all = host.json(&["ps", "--coverage", "--json"]);
        all.as_array().into_iter().flatten().filter(|process| process["tenant"] == tenant).cloned().collect()
    };
    let has_told = |process: &&Value| process["hooked"].as_array().is_some_and(|hooked| !hooked.is_empty());
    let have_told = |own: &Vec<Value>| own.iter().filter(has_told).count() >= processes;
    for process in await_value_within(own, have_told, METER_SETTLES_WITHIN) {
        let calls = |list: &str| process[list].as_array().expect("a list").clone();
        let unaccounted = calls("unaccounted").into_iter().filter(|calls| calls["class"] != "host");
        let bypassed = calls("bypassed").into_iter().filter(|calls| calls["has_effect"] == true);
        assert_eq!(unaccounted.chain(bypassed).collect::<Vec<_>>(), Vec::<Value>::new(), "{process}");
    }
}

/// Waits until a client has said what it saw, asserts that nothing went past the hooks, and ends
/// the client. Returns what the client said.
#[track_caller]
fn told_by_hooks(host: &Host, tenant: &str, processes: usize, mut client: Process, limit: Duration) -> Value {
    let said = client.await_json_within(limit);
    assert_nothing_past(host, tenant, processes);
    client.finish_within(limit).success();
    said
}

#[test]
fn pytorch_trains_as_without_deepres_and_survives_its_own_out_of_memory() {
    let counts = |tenant: &Tenant, kernels: u64| tenant.kernel_launches == kernels;
    assert_trains_as_without(&torch().python(), client, CLIENT_LIMIT, ("OutOfMemoryError", 0), counts);
}

/// PyTorch's allocators beside the usual one: a name, the value of `PYTORCH_ALLOC_CONF`, and the
/// bytes of a refused allocation in the allocator's peak. The interposer refuses memory of a pool
/// after the pool has given it, so the pool's high-water mark contains this memory.
const ALLOCATORS: [(&str, &str, u64); 2] =
    [("segments", "expandable_segments:True", 0), ("pools", "backend:cudaMallocAsync", PIECE_BYTES)];

#[test]
#[ignore = "deep: takes long"]
fn each_allocator_of_pytorch_trains_as_without_deepres() {
    for (allocator, configuration, refused_bytes) in ALLOCATORS {
        println!("{allocator}");
        let client = |command: Command| {
            let mut command = client(command);
            command.env("PYTORCH_ALLOC_CONF", configuration);
            command
        };
        let counts = |tenant: &Tenant, kernels: u64| tenant.kernel_launches == kernels;
        let error = ("OutOfMemoryError", refused_bytes);
        assert_trains_as_without(&torch().python(), client, CLIENT_LIMIT, error, counts);
    }
}

#[test]
fn each_allocator_of_pytorch_meets_the_limit_and_goes_on() {
    let (host, _daemon) = Host::new().with_daemon();
    let limit = LIMIT_BYTES.to_string();
    let clients = ALLOCATORS.map(|(allocator, configuration, _)| {
        let options = ["--name", allocator, "--memory", &limit];
        let mut command = client(host.run(&options, torch().python(), &[]));
        command.env("PYTORCH_ALLOC_CONF", configuration);
        (allocator, host.spawn(command))
    });
    for (allocator, mut process) in clients {
        let said = process.await_json_within(CLIENT_LIMIT);
        assert_eq!(said["error"], "OutOfMemoryError", "{allocator}");
        let (before, after) = (number(&said["before"], "steps"), number(&said["after"], "steps"));
        assert_eq!(after, 2 * before, "{allocator} trains on");
        let tenant = host.ps().tenant(allocator).clone();
        assert!(tenant.refusals > 0 && tenant.memory_bytes <= LIMIT_BYTES, "{tenant:?}");
        process.finish().success();
    }
}

#[test]
#[ignore = "deep: takes long"]
fn the_parts_of_pytorch_work_as_without_deepres() {
    let (host, _daemon) = Host::new().simgpu("gpus = 2\n").with_daemon();
    let script = script("torch_pieces");
    let start = |command: Command| {
        let mut command = torch().prepared(command);
        command.arg(&script);
        host.spawn(command)
    };
    let bare = start(host.command(torch().python())).finish_within(CLIENT_LIMIT).success().json();
    println!("{bare:#}");
    let refused = |said: &&Value| said.as_str().is_some_and(|said| said.contains("Error: "));
    assert_eq!(bare.as_object().into_iter().flatten().map(|(_, said)| said).find(refused), None);
    let managed = start(host.run(&["--name", "parts"], torch().python(), &[]));
    assert_eq!(told_by_hooks(&host, "parts", 1, managed, CLIENT_LIMIT), bare);
}

fn job(command: Command, name: &str) -> Command {
    let mut command = torch().prepared(command);
    command.arg(script("torch_jobs")).arg(name);
    command
}

#[test]
#[ignore = "deep: takes long"]
fn jobs_that_serve_answer_beside_a_trainer_as_alone() {
    let bare = Host::new();
    let alone = bare.spawn(job(bare.command(torch().python()), "service")).finish_within(CLIENT_LIMIT);
    drop(bare);

    let (host, _daemon) = Host::new().with_daemon();
    let start = |name| host.spawn(job(host.run(&["--name", name], torch().python(), &[]), name));
    let mut trainer = start("killed");
    trainer.await_json_within(CLIENT_LIMIT);
    let beside = told_by_hooks(&host, "service", 1, start("service"), CLIENT_LIMIT);
    assert_eq!(beside, alone.success().json());
    assert_eq!(trainer.try_wait(), None, "the trainer trains on");
}

#[test]
#[ignore = "deep: takes long"]
fn jobs_end_as_without_deepres_and_leave_no_memory_behind() {
    let (host, _daemon) = Host::new().lasting(CLIENT_LIMIT).with_daemon();
    let term = Some(Signal::TERM);
    for (name, signal) in
        [("exception", None), ("out_of_memory", None), ("killed", term), ("checkpoint", term)]
    {
        let live = |command: Command| {
            let mut process = host.spawn(job(command, name));
            process.await_json_within(CLIENT_LIMIT);
            if let Some(signal) = signal {
                process.signal(signal);
            }
            let Finished { code, signal, stdout, stderr } = process.finish_within(CLIENT_LIMIT);
            // The last line of an exception is its class and its text. Texts have figures of
            // memory.
            let error = stderr.lines().last().and_then(|line| Some(line.split_once("Error: ")?.0.to_owned()));
            (code, signal, stdout, error)
        };
        let bare = live(host.command(torch().python()));
        println!("{name}: {bare:?}");
        let mut managed = host.preloaded(torch().python());
        managed.env("DEEPRES_TENANT", name).env("DEEPRES_MEMORY", LIMIT_BYTES.to_string());
        assert_eq!(live(managed), bare, "{name}");
        host.await_nothing_held();
    }
}

#[test]
#[ignore = "deep: gigabytes"]
fn compiled_models_train_as_without_deepres() {
    let (host, _daemon) = Host::new().lasting(COMPILER_LIMIT).with_daemon();
    let start = |command: Command| {
        let mut command = torch().prepared(command);
        command.arg(script("torch_compiled")).env("PYTHONPATH", torch().triton());
        for cache in ["TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"] {
            command.env(cache, host.path().join(cache));
        }
        host.spawn(command)
    };
    // The first run compiles. The second one finds the kernels in the cache.
    let managed = start(host.run(&["--name", "compiled"], torch().python(), &[]));
    let managed = told_by_hooks(&host, "compiled", 1, managed, COMPILER_LIMIT);
    let shape = [16, 10];
    let expected =
        json!({"default": shape, "reduce-overhead": shape, "graphs left out": 0, "has kernels": true});
    assert_eq!(managed, expected);
    let bare = start(host.command(torch().python())).finish_within(COMPILER_LIMIT);
    assert_eq!(bare.success().json(), managed);
}

#[test]
#[ignore = "deep: takes long"]
fn two_ranks_train_together_on_two_gpus_and_on_one() {
    // The collectives of two ranks wait for each other.
    const SIMGPU: &str = "gpus = 2\nkernel = [{ name = 'standin_nccl_2_*', ns = 50000, meets = 2 }]\n";
    let (host, _daemon) = Host::new().simgpu(SIMGPU).with_daemon();
    for gpus in ["2", "1"] {
        let mut command = torch().prepared(host.run(&["--name", "ranks"], torch().python(), &[]));
        command.arg(script("torch_ranks")).arg(gpus);
        let said = told_by_hooks(&host, "ranks", 2, host.spawn(command), CLIENT_LIMIT);
        assert_eq!(said, json!({"ranks": [0, 1], "steps": [20, 20]}), "{gpus} GPUs");
    }
}

#[test]
fn a_program_of_the_shared_runtime_library_gets_what_the_reference_promises() {
    let program = cuda_program_on("shared_runtime", &torch().runtime());
    let (host, _daemon) = Host::new().with_daemon();
    let asked = |command: Command| {
        let mut command = torch().prepared(command);
        command.arg("--runtime").arg(&program);
        host.finish(command)
    };
    let commands = [host.command(conformance()), host.run(&["--name", "shared"], conformance(), &[])];
    for ran in commands.map(asked) {
        assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
        assert!(ran.stdout.contains(": 2 agree, 0 differ, 0 absent"), "{}", ran.stdout);
    }
}

#[test]
fn a_function_that_the_stand_in_lacks_answers_an_error_and_is_counted() {
    const CALLS: &str = "import ctypes; runtime = ctypes.CDLL('libcudart.so.13'); \
                         print([runtime.cudaMallocArray(None, None, 0, 0, 0) for _ in range(2)])";
    let host = Host::new();
    let mut command = torch().prepared(host.command("python3"));
    command.args(["-c", CALLS]).env("SIMGPU_VERBOSE", "1");
    let said = host.finish(command).success();
    // cudaErrorNotSupported
    assert_eq!(said.stdout.trim(), "[801, 801]");
    assert!(
        said.stderr.contains("simgpu: cudaMallocArray is not supported; called 2 times"),
        "{}",
        said.stderr
    );
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    /// The length of the measurement. The measurement is so long that a quantum more or less at its
    /// ends changes a share by less than a point.
    const MEASURED: Duration = Duration::from_secs(6);
    /// Time within which the memory of a killed trainer is free, once its process is gone.
    const FREED_WITHIN: Duration = Duration::from_millis(100);
    /// The steps of a long training at which it says how large its process is.
    const LOOKS: [&str; 2] = ["100000", "1000000"];
    /// Time limit of a long training, which takes about three minutes on two free CPUs.
    const LONG_TRAINING: Duration = Duration::from_secs(600);

    fn start(host: &Host, name: &str, share: &str, sync_every: &str) -> Process {
        let run = host.run(&["--name", name, "--share", share], torch().python(), &[]);
        let mut command = torch().prepared(run);
        command.arg(script("torch_train")).args(["--seconds", "600", "--sync-every", sync_every]);
        host.spawn(command)
    }

    fn two_trainers_share_seventy_to_thirty(sync_every: &str) {
        let (host, _daemon) = Host::measuring().simgpu(&torch_simgpu()).with_daemon();
        let mut trainers =
            [start(&host, "major", "70%", sync_every), start(&host, "minor", "30%", sync_every)];
        assert_trainers_share(&host, &mut trainers, CLIENT_LIMIT, MEASURED);

        let pid = host.ps().tenant("minor").sessions[0].pid;
        // By the simulated GPU's record, and by the tenant's account.
        let held = || -> [u64; 2] {
            let own = host.truth().processes.into_iter().filter(|process| process.pid == pid);
            let recorded = own.map(|process| process.gpus[0].memory_bytes).sum();
            [recorded, host.ps().find("minor").map_or(0, |tenant| tenant.memory_bytes)]
        };
        assert!(held().iter().all(|bytes| *bytes > 0));
        kill_process(Pid::from_raw(pid as i32).expect("a process"), Signal::KILL).expect("it runs");
        // The kernel takes a while to take the process's own gigabytes apart.
        eventually("the killed process is gone", || !alive(pid));
        await_value_within(held, |held| *held == [0, 0], FREED_WITHIN);
    }

    #[test]
    fn two_pytorch_trainers_that_read_each_loss_share_seventy_to_thirty() {
        two_trainers_share_seventy_to_thirty("1");
    }

    #[test]
    fn two_pytorch_trainers_that_read_each_tenth_loss_share_seventy_to_thirty() {
        two_trainers_share_seventy_to_thirty("10");
    }

    /// Returns the part of all SMs that a process has on average for a time.
    fn area(host: &Host, pid: u32) -> f64 {
        let look = || {
            let truth = host.truth();
            let process = truth.processes.iter().find(|process| process.pid == pid).expect("it uses the GPU");
            (truth.at_ns, process.gpus[0].sm_ns)
        };
        let (from_ns, before_ns) = look();
        thread::sleep(MEASURED);
        let (to_ns, after_ns) = look();
        (after_ns - before_ns) as f64 / (to_ns - from_ns) as f64
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn two_services_keep_their_slo_under_mps_and_a_trainer_keeps_its_part() {
        // Products of matrices use all SMs that they get.
        const SIMGPU: &str =
            "sm_count = 100\nkernel = [{ name = 'standin_*', ns = 1000000, sm_ppm = 1000000 }]\n";
        const REQUESTS: &str = "800";
        const SLO_MS: &str = "40";
        /// The most late answers, as a part of all.
        const LATE: f64 = 0.01;
        /// The least part of its area alone that the trainer has beside the services. The services
        /// leave the trainer's part of the SMs free.
        const OF_ALONE: f64 = 0.9;
        let (host, _daemon) = Host::measuring().lasting(CLIENT_LIMIT).simgpu(SIMGPU).with_daemon();
        let _mps = mps(&host);
        let start = |options: &[&str], name: &str, arguments: &[&str]| {
            let run = host.run(options, torch().python(), &[]);
            let mut command = torch().prepared(by_mps(&host, run));
            command.arg(script(name)).args(arguments);
            host.spawn(command)
        };
        let trains = ["--seconds", "600", "--sync-every", "10"];
        let mut trainer = start(&["--name", "trainer", "--sm", "40%"], "torch_train", &trains);
        trainer.await_line_within(|line| line.contains("; training"), CLIENT_LIMIT);
        let pid = host.ps().tenant("trainer").sessions[0].pid;
        let alone = area(&host, pid);

        let slo = format!("{SLO_MS}ms");
        let mut services = ["one", "other"].map(|name| {
            let options = ["--name", name, "--sm", "30%", "--slo", &slo];
            start(&options, "torch_jobs", &["service", REQUESTS, SLO_MS])
        });
        for service in &mut services {
            service.await_line_within(|line| line.contains("warm"), CLIENT_LIMIT);
        }
        let beside = area(&host, pid);
        let serve = services.each_mut().map(|service| service.try_wait().is_none());
        assert_eq!(serve, [true, true], "both serve for the whole time");
        let said = services.map(|service| service.finish_within(CLIENT_LIMIT).success().json());
        println!("the trainer had {alone:.3} of the SMs alone, and {beside:.3} beside: {said:?}");
        for said in said {
            assert!(said["late"].as_f64().is_some_and(|late| late <= LATE), "{said}");
        }
        assert!(beside >= OF_ALONE * alone, "{beside} of {alone}");
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn a_million_steps_leak_no_memory_descriptors_or_threads() {
        let host = || Host::new().lasting(LONG_TRAINING);
        let (bare, (host, _daemon)) = (host(), host().with_daemon());
        let start = |host: &Host, command: Command| {
            let mut command = torch().prepared(command);
            command.arg(script("torch_long")).args(LOOKS);
            host.spawn(command)
        };
        let both = [
            start(&bare, bare.command(torch().python())),
            start(&host, host.run(&["--name", "long"], torch().python(), &[])),
        ];
        let [without, with] = both.map(|process| {
            let said = process.finish_within(LONG_TRAINING).success().stdout;
            println!("{said}");
            let looks: Vec<Value> =
                said.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect();
            let [early, late] = looks.try_into().expect("two looks");
            move |what: &str| number(&late, what) as i64 - number(&early, what) as i64
        });
        let resident = "resident_bytes";
        assert!(with(resident) <= without(resident) + MIB as i64, "{} bytes more", with(resident));
        for what in ["descriptors", "threads"] {
            assert!(with(what) <= 0, "{} {what} more", with(what));
        }
    }
}
