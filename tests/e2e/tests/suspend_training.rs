//! More memory than there is: two unmodified trainers of sixty percent of the GPU's memory each take turns on it, whole, and both finish.

use std::{
    thread,
    time::{Duration, Instant},
};

use deepres_e2e::{Host, Process, clients::demo_simgpu};

/// tinygrad compiles its kernels first, on a busy machine.
const WITHIN: Duration = Duration::from_secs(150);
/// How often it is looked what a trainer has.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const STEPS: &str = "100";
/// How long each stays on the GPU before the other has it.
const TURN_MS: u64 = 1_000;
/// What goes to the host and back in a microsecond, bytes: slow enough to be seen.
const BYTES_PER_US: u64 = 4_000;
/// Of one after the other, less what is lost to moving.
const LEAST_FRACTION: f64 = 0.95;
/// Each of them made room for the other.
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
    trainer.await_line(|line| line.starts_with("trained"), WITHIN);
    trainer.finish(WITHIN).success();
}

/// As [`finish`]; returns what was taken of the GPU's memory meanwhile, again and again, least first.
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
fn two_trainers_of_sixty_percent_of_the_memory_each_finish_nearly_as_fast_as_one_after_the_other() {
    // One after the other, with all the memory they want.
    let (alone, usual_bytes, most_bytes) = {
        let host = Host::measuring().simgpu(&simgpu(8 << 30));
        let _daemon = host.daemon();
        // Compiled kernels are kept; the first time is not what is measured.
        finish(start(&host, "first"));
        let begun = Instant::now();
        let taken = ["one", "other"].map(|name| finish_observed(&host, start(&host, name)));
        let alone = begun.elapsed();
        let usual = taken.iter().map(|taken| taken[taken.len() / 2]).max();
        let peak = taken.iter().flatten().copied().max();
        (alone, usual.expect("two ran"), peak.expect("they took memory"))
    };

    // Of what each has half of the time: what it has for a moment might never meet what the other has.
    let memory_bytes = (usual_bytes * 10 / 6).max(most_bytes);
    let host =
        Host::measuring().simgpu(&simgpu(memory_bytes)).config(&format!("suspend_turn_ms = {TURN_MS}\n"));
    let daemon = host.daemon();
    let begun = Instant::now();
    let trainers = ["one", "other"].map(|name| start(&host, name));
    trainers.into_iter().for_each(finish);
    let together = begun.elapsed();

    // A turn's change takes one tenant's memory to the host and brings the other's back.
    let transfer_ms = (2 * most_bytes / BYTES_PER_US) as f64 / 1e3;
    let lost = transfer_ms / TURN_MS as f64;
    let fraction = alone.as_secs_f64() / together.as_secs_f64();
    println!(
        "{usual_bytes}, {most_bytes} at most, of {memory_bytes} bytes each, {STEPS} steps: {alone:?} one after the other, {together:?} together; \
         a change moves for {transfer_ms:.1} ms of every {TURN_MS} ms: {fraction:.3} against {:.3}",
        LEAST_FRACTION * (1.0 - lost)
    );
    assert!(
        fraction >= LEAST_FRACTION * (1.0 - lost),
        "{fraction:.3} of one after the other, {lost:.3} lost to moving"
    );
    // Else they did not need more than there is at a time, and nothing was tried.
    let suspended = daemon.stderr().matches("suspended a tenant").count();
    assert!(suspended >= LEAST_SUSPENDED, "only {suspended} times was a tenant taken off the GPU");
    for tenant in host.ps().tenants {
        assert_eq!(tenant.refusals, 0, "{tenant:?}");
    }
}
