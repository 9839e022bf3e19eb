//! Two unmodified trainers need sixty percent of the GPU's memory each, together more than the GPU
//! has. The trainers take turns on the GPU with all their memory, and both finish. `cargo xtask
//! bench suspend` measures their speed.

use deepres_e2e::clients::demo_simgpu;
use deepres_e2e::prelude::*;

/// Time limit of a trainer. tinygrad compiles its kernels first, on a busy machine.
const WITHIN: Duration = Duration::from_secs(150);
/// Time between two looks at a trainer's memory.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const STEPS: &str = "100";
/// Time that each trainer stays on the GPU before the other gets it.
const TURN_MS: u64 = 1_000;
/// Bytes that move to the host or back in a microsecond. The rate is slow enough to be seen.
const BYTES_PER_US: u64 = 4_000;
/// Least number of suspensions: each trainer makes room for the other once.
const LEAST_SUSPENDED: usize = 2;

fn simgpu(memory_bytes: u64) -> String {
    format!(
        "context_overhead_bytes = 0\nmemory_bytes = {memory_bytes}\nhost_to_device_bytes_per_us = {BYTES_PER_US}\n\
         device_to_host_bytes_per_us = {BYTES_PER_US}\n{}",
        demo_simgpu()
    )
}

fn start(host: &Host, name: &str) -> Process {
    host.spawn(host.run_training(&["--name", name, "--oversubscribe", "suspend"], &["--steps", STEPS]))
}

fn finish(mut trainer: Process) {
    trainer.await_line_within(|line| line.starts_with("trained"), WITHIN);
    trainer.finish_within(WITHIN).success();
}

/// Waits for the end of the trainers like [`finish`]. Returns samples of the GPU memory in use
/// meanwhile, in ascending order.
fn finish_observed(host: &Host, trainer: Process) -> Vec<u64> {
    let mut taken = Vec::new();
    while !trainer.stdout().lines().any(|line| line.starts_with("trained")) {
        taken.push(host.truth().gpus[0].memory_used_bytes);
        thread::sleep(LOOK_EVERY);
    }
    finish(trainer);
    taken.retain(|bytes| *bytes > 0);
    taken.sort_unstable();
    taken
}

#[test]
#[ignore = "deep: takes long"]
fn two_trainers_of_sixty_percent_of_the_memory_each_take_turns_and_finish() {
    let (usual_bytes, most_bytes) = {
        let (host, _daemon) = Host::new().simgpu(&simgpu(8 << 30)).with_daemon();
        let taken = finish_observed(&host, start(&host, "alone"));
        (taken[taken.len() / 2], *taken.last().expect("it took memory"))
    };

    // The GPU's size follows from the median use. The two trainers' short peaks might never
    // coincide.
    let memory_bytes = (usual_bytes * 10 / 6).max(most_bytes);
    let (host, daemon) = Host::new()
        .simgpu(&simgpu(memory_bytes))
        .config(&format!("suspend_turn_ms = {TURN_MS}\n"))
        .with_daemon();
    let trainers = ["one", "other"].map(|name| start(&host, name));
    trainers.into_iter().for_each(finish);
    // Without suspensions the trainers would not have needed more than the GPU has, and the test
    // would show nothing.
    let suspended = daemon.stderr().matches("suspended a tenant").count();
    assert!(suspended >= LEAST_SUSPENDED, "only {suspended} times was a tenant taken off the GPU");
    for tenant in host.ps().tenants {
        assert_eq!(tenant.refusals, 0, "{tenant:?}");
    }
}
