//! Compares the meter of deepres with the simulated GPU's record, for programs that launch at every
//! pace. The gate is open, except where a test gives a share. The results do not depend on the
//! machine's speed, because meter and record cover the same time.

use deepres_e2e::prelude::*;

/// Kernels by name. Each launch costs the GPU 1 µs more. Kernels with a k leave room for others on
/// the SMs, and kernels with a w do not.
const SIMGPU_TOML: &str = r#"
kernel = [
    { name = "k2", ns = 1000, sm_ppm = 100000 },
    { name = "k6", ns = 5000, sm_ppm = 100000 },
    { name = "k20", ns = 19000, sm_ppm = 100000 },
    { name = "k80", ns = 79000, sm_ppm = 100000 },
    { name = "k200", ns = 199000, sm_ppm = 100000 },
    { name = "k5000", ns = 4999000 },
    { name = "k100000", ns = 99999000 },
    { name = "w300", ns = 299000, sm_ppm = 1000000 },
]
"#;
/// Time of a measurement. This time contains hundreds of segments.
const MEASURED: Duration = Duration::from_secs(2);
/// Time of a measurement where threads overlap by chance. The meter estimates the overlap of their
/// kernels from samples, and this time gives enough samples.
const MEASURED_BY_CHANCE: Duration = Duration::from_secs(10);
/// Time of a measurement where one kernel in six takes most of the time. The meter sees that kernel
/// alone about eighty times a second. The kernels' times scatter by half, so the standard error of
/// the charge is 0.3 points. (Measured: 0.75 in six seconds and 0.37 in thirty, over six and eight
/// runs.)
const MEASURED_BY_FEW: Duration = Duration::from_secs(50);
/// Time after which the meter knows the kernels and has its samples.
const SETTLED: Duration = Duration::from_millis(700);
/// Greatest allowed error of the meter, in percentage points of the time.
const ALLOWED_POINTS: f64 = 1.0;
/// A share that each pattern would exceed, percent.
const SHARE_PERCENT: f64 = 10.0;
/// Greatest allowed error of that share, in percentage points. The meter's error is ten times as
/// large in relation to the used time.
const ALLOWED_SHARE_POINTS: f64 = 0.5;

fn start(host: &Host, arguments: &[&str]) -> Process {
    host.start(host.run(&["--name", "paced"], c_client_by("pace", Way::ProcAddress), arguments), "ready")
}

/// Runs the pattern alone, and compares the times of kernels and copies with the record.
fn assert_exact(arguments: &[&str]) {
    assert_exact_but_for(Duration::ZERO, arguments);
}

/// Compares the times like [`assert_exact`], but allows for `running` of work at the end. The meter
/// charges a kernel only when the kernel is complete.
fn assert_exact_but_for(running: Duration, arguments: &[&str]) {
    assert_exact_on(SIMGPU_TOML, MEASURED, running, arguments);
}

/// Compares the times like [`assert_exact`], for threads that overlap by chance.
fn assert_exact_by_chance(arguments: &[&str]) {
    assert_exact_on(SIMGPU_TOML, MEASURED_BY_CHANCE, Duration::ZERO, arguments);
}

/// Compares the times like [`assert_exact`], on a GPU with this configuration.
fn assert_exact_on(simgpu_toml: &str, measured: Duration, running: Duration, arguments: &[&str]) {
    let (host, _daemon) = Host::measuring().simgpu(simgpu_toml).with_daemon();
    let _client = start(&host, arguments);
    thread::sleep(SETTLED);
    let behind_ns = |(_, times): &(u64, Vec<Times>)| times.iter().map(Times::behind_ns).sum();
    let look = || caught_up(|| look(&host), behind_ns);
    let (began_ns, before) = look();
    thread::sleep(measured);
    let (ended_ns, after) = look();
    let allowed = ALLOWED_POINTS + running.as_secs_f64() / measured.as_secs_f64() * 100.0;
    for (gpu, (before, after)) in before.into_iter().zip(after).enumerate() {
        for (index, what) in ["kernels", "copies"].into_iter().enumerate() {
            let percent = |after: [u64; 2], before: [u64; 2]| {
                (after[index] - before[index]) as f64 * 100.0 / (ended_ns - began_ns) as f64
            };
            let metered = percent(after.metered, before.metered);
            let truth = percent(after.truth, before.truth);
            let line =
                format!("{what} on GPU {gpu}: metered {metered:.2} %, in truth {truth:.2} % of the time");
            println!("{line}");
            assert!((metered - truth).abs() <= allowed, "{line}");
        }
    }
}

/// Runs the pattern with a share and without a daemon. The process launches under a lease, and
/// pauses by its own meter. So the GPU's record shows the meter's error.
fn assert_share_held(arguments: &[&str]) {
    let host = Host::measuring().simgpu(SIMGPU_TOML);
    let mut command = host.alone(c_client_by("pace", Way::ProcAddress));
    command.args(arguments).env("DEEPRES_SHARE", format!("{SHARE_PERCENT}%"));
    let client = host.start(command, "ready");
    // The process has its first burst before it pauses.
    thread::sleep(2 * SETTLED);
    let look = || (host.truth().at_ns, host.record(client.pid()).gpus[0].kernel_busy_ns);
    let before = look();
    thread::sleep(2 * MEASURED);
    let after = look();
    let had = (after.1 - before.1) as f64 * 100.0 / (after.0 - before.0) as f64;
    println!("had {had:.2} % of the time, owed {SHARE_PERCENT} %");
    assert!((had - SHARE_PERCENT).abs() <= ALLOWED_SHARE_POINTS, "had {had:.2} % of the time");
}

/// Times on one GPU by the meter of deepres and by the record, ns. The first figure is the time of
/// kernels with the GPU's switches between contexts, the second the time of copies.
#[derive(Clone, Copy)]
struct Times {
    metered: [u64; 2],
    truth: [u64; 2],
}

impl Times {
    /// Returns the time by which the meter is behind the record, ns.
    fn behind_ns(&self) -> i64 {
        self.truth.iter().sum::<u64>().cast_signed() - self.metered.iter().sum::<u64>().cast_signed()
    }
}

/// Returns the time of the observation, ns, and the times on each GPU.
fn look(host: &Host) -> (u64, Vec<Times>) {
    let (tenant, truth) = (host.tenant("paced"), host.truth());
    let pid = tenant["sessions"][0]["pid"].as_u64().expect("its process");
    let process = truth.processes.iter().find(|process| u64::from(process.pid) == pid);
    let accounts = tenant["gpus"].as_array().expect("a list");
    let gpus = process.expect("it is attached").gpus.iter().zip(&truth.gpus);
    let times = gpus.enumerate().map(|(index, (gpu, whole))| {
        let account = accounts.iter().find(|account| account["gpu"].as_u64() == Some(index as u64));
        let metered = |key: &str| account.map_or(0, |account| account[key].as_u64().expect("a number"));
        Times {
            metered: [metered("gpu_ns"), metered("copy_ns")],
            // No other process runs, so the GPU's switches between contexts are for this process.
            truth: [gpu.kernel_busy_ns + whole.switch_ns, gpu.copy_busy_ns],
        }
    });
    (truth.at_ns, times.collect())
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    /// Declares tests, each of which runs one pattern of the client `pace` and compares it by the
    /// named function.
    macro_rules! patterns {
        ($assert:ident: $($(#[$track:meta])? $name:ident: $steps:literal;)+) => {
            $(
                #[test]
                $(#[$track])?
                fn $name() {
                    $assert(&$steps.split(' ').collect::<Vec<_>>());
                }
            )+
        };
    }

    patterns! { assert_exact:
        small_kernels_with_gaps: "k6 wait:32";
        #[ignore = "deep: takes long"]
        kernels_of_many_lengths_with_gaps: "k6 wait:30 k20 wait:25 k2 wait:10 k80 wait:100 k6 k6 wait:20";
        storms_of_the_smallest_kernels: "k2x1000 sync";
        bursts_with_pauses: "k20x50 wait:2000 k6x3 wait:300 sync wait:500";
        a_full_queue: "k200x500 sync";
        long_kernels_with_a_sync_each: "k5000 sync wait:1000";
        the_legacy_stream_with_gaps: "--default legacy k6 wait:40 k20x5 wait:700";
        the_legacy_stream_with_a_sync_after_each_burst: "--default legacy k20x25 sync k6x3 sync wait:500";
        #[ignore = "deep: takes long"]
        streams_in_turn_with_gaps: "--streams 4 k20 wait:30";
        streams_whose_kernels_overlap: "--streams 4 k80 wait:30 k20 wait:80";
        #[ignore = "deep: takes long"]
        graphs_with_conditions_on_several_streams: "--streams 2 while:k80x5 wait:100 k20 wait:50 while:k20x3";
        several_contexts_in_turn: "--contexts 3 --streams 6 k20 wait:60 k80 wait:150";
        graphs_with_gaps: "graph:k6x20 wait:200 graph:k20x5 wait:50";
        copies_between_kernels: "to:1000000 k20x10 to:4000000 k80 wait:100";
        #[ignore = "deep: takes long"]
        host_functions_and_waits_between_kernels: "--streams 2 k80 host:200 k20 after:0 k20 wait:400";
        #[ignore = "deep: takes long"]
        waits_of_all_streams_of_a_context_between_kernels: "--streams 2 k20 k20 host:200 all:0 k20 k20 wait:400";
    }

    patterns! { assert_share_held:
        small_kernels_with_gaps_under_a_lease: "k6 wait:12";
        bursts_with_a_sync_each_under_a_lease: "k20x25 sync wait:500";
        the_legacy_stream_with_gaps_under_a_lease: "--default legacy k6 wait:20 k20x5 wait:300";
        #[ignore = "deep: takes long"]
        the_legacy_stream_with_syncs_under_a_lease: "--default legacy k20x25 sync k6x3 sync wait:500";
        streams_whose_kernels_overlap_under_a_lease: "--streams 2 k80 wait:30 k20 wait:60";
        #[ignore = "deep: takes long"]
        kernels_of_many_lengths_under_a_lease: "k6 wait:30 k20 wait:25 k2 wait:10 k80 wait:100 k6 k6";
        #[ignore = "deep: takes long"]
        graphs_with_gaps_under_a_lease: "graph:k6x20 wait:100 graph:k20x5 wait:50";
    }

    patterns! { assert_exact_by_chance:
        #[ignore = "deep: takes long"]
        per_thread_streams_with_gaps: "--default per-thread --threads 2 k20 wait:150";
        #[ignore = "deep: takes long"]
        threads_whose_kernels_overlap_by_chance: "--threads 3 k80 wait:200 k20 wait:70";
    }

    #[test]
    fn records_that_cost_coarse_events_and_a_clock_that_drifts() {
        let hard = "event_step_ns = 1000\nrecord_cost_ns = 2000\nclock_drift_ppb = 50000\n";
        let pattern = ["k20", "wait:150", "k80x5", "wait:300", "k200", "sync", "wait:100"];
        assert_exact_on(&format!("{hard}{SIMGPU_TOML}"), MEASURED, Duration::ZERO, &pattern);
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn kernels_that_take_another_time_each() {
        // The samples of a kernel stand for launches that the meter counts and does not time. So
        // the mean of the samples has to be right.
        let patterns = [
            (MEASURED_BY_CHANCE, &["k6", "wait:32"][..]),
            (MEASURED_BY_FEW, &["k20", "wait:25", "k2", "wait:10", "k80", "wait:100", "k6x3", "wait:20"]),
            (MEASURED_BY_CHANCE, &["k20x50", "wait:2000", "k6x3", "wait:300", "sync", "wait:500"]),
            (MEASURED_BY_CHANCE, &["graph:k6x20", "wait:200", "graph:k20x5", "wait:50"]),
        ];
        for (seed, (measured, steps)) in patterns.into_iter().enumerate() {
            let jitter = format!("kernel_jitter_ppm = 500000\njitter_seed = {seed}\n{SIMGPU_TOML}");
            assert_exact_on(&jitter, measured, Duration::ZERO, steps);
        }
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn kernels_of_a_tenth_of_a_second() {
        assert_exact_but_for(Duration::from_millis(100), &["k100000", "sync", "wait:20000"]);
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn streams_of_several_priorities() {
        let streams = ["--streams", "3", "--priorities", "3"];
        // Kernels of the lowest priority wait for the others' on the SMs.
        assert_exact_by_chance(&[&streams[..], &["w300x30", "sync", "wait:500"]].concat());
        assert_exact_by_chance(&[&streams[..], &["k80", "wait:30", "k20", "wait:80"]].concat());
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn graphs_whose_conditions_hold_for_any_number_of_rounds() {
        // A launch takes up to 24 ms, and some launches are in flight at each observation.
        let many = format!("while_rounds = 100\n{SIMGPU_TOML}");
        let running = Duration::from_millis(100);
        let assert = |steps: &[&str]| assert_exact_on(&many, MEASURED_BY_CHANCE, running, steps);
        assert(&["while:k20x2", "wait:200"]);
        assert_exact(&["while:k20x10", "sync", "wait:300", "graph:k6x20", "wait:50"]);
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn graphs_that_launch_themselves_again_on_the_device() {
        let many = format!("while_rounds = 100\n{SIMGPU_TOML}");
        let running = Duration::from_millis(100);
        assert_exact_on(&many, MEASURED_BY_CHANCE, running, &["again:k20x2", "wait:200"]);
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn graphs_with_conditions_between_kernels_on_a_stream_that_is_always_busy() {
        let many = format!("while_rounds = 100\n{SIMGPU_TOML}");
        let steps = ["while:k80x3", "k20x5", "wait:70", "while:k2"];
        assert_exact_on(&many, MEASURED_BY_CHANCE, Duration::from_millis(100), &steps);
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn copies_in_several_contexts_in_turn() {
        let contexts = ["--contexts", "3", "--streams", "6"];
        assert_exact(&[&contexts[..], &["k200", "sync", "to:2000000", "sync", "k80", "wait:300"]].concat());
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn several_gpus_of_one_process() {
        let host = format!("gpus = 2\n{SIMGPU_TOML}");
        let two = ["--gpus", "2", "--contexts", "2", "--streams", "2"];
        let assert = |steps: &[&str]| {
            assert_exact_on(&host, MEASURED, Duration::ZERO, &[&two[..], steps].concat());
        };
        // One context has more work than the other.
        assert(&["k20", "wait:50", "k80", "wait:100"]);
        assert(&["k200x9", "k20", "sync", "wait:300"]);
        let running = Duration::from_millis(20);
        let long = [&two[..], &["k5000", "k80x31", "to:4000000", "sync"]].concat();
        assert_exact_on(&host, MEASURED, running, &long);
        assert(&["graph:k6x20", "wait:100", "k20x4", "wait:90"]);
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn several_contexts_on_several_gpus() {
        let keys = format!("gpus = 2\n{SIMGPU_TOML}");
        let four =
            ["--gpus", "2", "--contexts", "4", "--streams", "4", "k20", "wait:70", "k80", "wait:90", "k6"];
        assert_exact_on(&keys, MEASURED, Duration::ZERO, &four);
    }

    #[test]
    fn work_queued_in_a_context_that_is_destroyed_is_charged_too() {
        for kernel in ["k200", "k5000"] {
            let (host, _daemon) = Host::measuring().simgpu(SIMGPU_TOML).with_daemon();
            let client = c_client("drains");
            let (_client, said) = host.told(host.run(&["--name", "drains"], client, &[kernel]));
            let ps = host.await_launches("drains", said["kernel_launches"].as_u64());
            let metered_ns = ps.tenant("drains").gpu_ns;
            let true_ns = host.kernel_ns();
            println!("{kernel}: metered {metered_ns} ns, in truth {true_ns} ns");
            // The time of a kernel's first launch is unknown. The meter then charges the whole time
            // that the launch could have taken.
            assert!(
                metered_ns.abs_diff(true_ns) < true_ns / 10,
                "{kernel}: metered {metered_ns} ns of {true_ns} ns"
            );
        }
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn processes_of_a_tenant_that_pause_are_not_charged_for_each_others_time() {
        let (host, _daemon) = Host::measuring().simgpu(SIMGPU_TOML).with_daemon();
        let _clients = [(); 2].map(|()| start(&host, &["k5000", "sync", "wait:15000"]));
        thread::sleep(SETTLED);
        let look = || {
            let ps = host.ps();
            let truth = host.truth();
            // All work belongs to the tenant. So do the GPU's switches between its processes,
            // because no other tenant could have used that time.
            let gpu = &truth.gpus[0];
            (truth.at_ns, ps.tenant("paced").gpu_ns, gpu.busy_ns + gpu.switch_ns)
        };
        let before = look();
        thread::sleep(MEASURED_BY_CHANCE);
        let after = look();
        let percent =
            |after: u64, before: u64, of: (u64, u64)| (after - before) as f64 * 100.0 / (of.1 - of.0) as f64;
        let time = (before.0, after.0);
        let (metered, truth) = (percent(after.1, before.1, time), percent(after.2, before.2, time));
        println!("metered {metered:.2} % of the time, in truth {truth:.2} %");
        assert!((metered - truth).abs() <= ALLOWED_POINTS, "metered {metered:.2} %, in truth {truth:.2} %");
    }
}
