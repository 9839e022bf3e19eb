//! The main use case: two unmodified tinygrad training scripts share one GPU, 70 to 30.

use deepres_e2e::clients::demo_simgpu;
use deepres_e2e::prelude::*;

/// Time limit for compiling. tinygrad compiles 65 kernels first, in two processes at once on two
/// cores.
const COMPILED_WITHIN: Duration = Duration::from_secs(120);
const MEASURED: Duration = Duration::from_secs(5);

fn start(host: &Host, name: &str, share: &str) -> Process {
    host.spawn(
        host.run_training(&["--name", name, "--share", share, "--memory", "8GiB"], &["--seconds", "600"]),
    )
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    #[test]
    fn two_tinygrad_trainers_share_seventy_to_thirty() {
        let (host, _daemon) = Host::measuring().simgpu(&demo_simgpu()).with_daemon();
        let mut trainers = [start(&host, "major", "70%"), start(&host, "minor", "30%")];
        assert_trainers_share(&host, &mut trainers, COMPILED_WITHIN, MEASURED);
        for tenant in &host.ps().tenants {
            assert!(tenant.graph_launches > 0, "the JIT's graphs are counted: {tenant:?}");
            assert!(
                tenant.kernel_launches > 0 && tenant.memory_bytes > 0 && tenant.wait_ns > 0,
                "{tenant:?}"
            );
        }
    }
}
