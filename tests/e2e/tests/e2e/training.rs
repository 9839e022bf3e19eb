//! The main use case: two unmodified tinygrad training scripts share one GPU, 70 to 30.

use deepres_e2e::clients::demo_simgpu;
use deepres_e2e::prelude::*;
use simgpu_engine::truth::Snapshot;

/// Time limit for compiling. tinygrad compiles 65 kernels first, in two processes at once on two
/// cores.
const COMPILED_WITHIN: Duration = Duration::from_secs(120);
/// Time after which the first launches after the compilation are over.
const SETTLED: Duration = Duration::from_secs(1);
const MEASURED: Duration = Duration::from_secs(8);
/// Time within which a remaining trainer has the whole GPU.
const EVERYTHING_WITHIN: Duration = Duration::from_millis(100);

fn start(host: &Host, name: &str, share: &str) -> Process {
    host.spawn(
        host.run_training(&["--name", name, "--share", share, "--memory", "8GiB"], &["--seconds", "600"]),
    )
}

fn kernel_ns(snapshot: &Snapshot, pid: u32) -> u64 {
    snapshot.processes.iter().filter(|p| p.pid == pid).map(|p| p.gpus[0].kernel_busy_ns).sum()
}

/// Tests that measure. Each runs alone on the machine.
mod measured {
    use super::*;

    #[test]
    fn two_tinygrad_trainers_share_seventy_to_thirty_and_the_last_has_everything() {
        let (host, _daemon) = Host::measuring().simgpu(&demo_simgpu()).with_daemon();
        let mut trainers = [start(&host, "major", "70%"), start(&host, "minor", "30%")];
        for trainer in &mut trainers {
            trainer.await_line_within(|line| line.starts_with("compiled"), COMPILED_WITHIN);
        }
        thread::sleep(SETTLED);
        let window = Window::measure(&host, MEASURED);
        window.assert_shares(&[("major", 70.0), ("minor", 30.0)]);
        let busy = window.busy_percent();
        assert!(busy >= 70.0, "the trainers kept the GPU busy only {busy:.1} % of the time");
        for tenant in &host.ps().tenants {
            assert!(tenant.graph_launches > 0, "the JIT's graphs are counted: {tenant:?}");
            assert!(
                tenant.kernel_launches > 0 && tenant.memory_bytes > 0 && tenant.wait_ns > 0,
                "{tenant:?}"
            );
        }

        let ps = host.ps();
        let (major_pid, minor_pid) = (ps.tenant("major").sessions[0].pid, ps.tenant("minor").sessions[0].pid);
        let [mut major, minor] = trainers;
        major.signal(Signal::TERM);
        // A trainer is gone when it has no work on the GPU any more.
        let mut last = kernel_ns(&host.truth(), major_pid);
        let mut left = Instant::now();
        let deadline = left + Duration::from_secs(10);
        while left.elapsed() < EVERYTHING_WITHIN {
            thread::sleep(Duration::from_millis(2));
            let now = kernel_ns(&host.truth(), major_pid);
            if now != last {
                (last, left) = (now, Instant::now());
            }
            assert!(Instant::now() < deadline, "the trainer does not end");
        }
        let busy = Tally::over(&host, Duration::from_millis(1000)).percent_of_time(&[minor_pid]);
        println!("the trainer that is left has the GPU {busy:.1} % of the time");
        assert!(busy >= 70.0, "the trainer that is left has the GPU {busy:.1} % of the time");
        assert_eq!(major.await_end_within(Duration::from_secs(10)).code, 128 + 15);
        drop(minor);
    }
}
