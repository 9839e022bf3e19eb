//! An unmodified TensorFlow from PyPI trains on the simulated GPU, by the stand-ins for NVIDIA's
//! libraries.

use std::process::Command;

use deepres_e2e::artefacts::tensorflow;
use deepres_e2e::clients::torch_simgpu;
use deepres_e2e::prelude::*;

use crate::torch::{LIMIT_BYTES, STEPS, assert_trains_as_without};

/// Time limit of a client, which imports TensorFlow and compiles with XLA on a machine with other
/// work.
const CLIENT_LIMIT: Duration = Duration::from_secs(240);

fn client(command: Command) -> Command {
    let mut command = tensorflow().prepared(command);
    // TensorFlow asks for more than the limit, so the limit decides.
    command.arg(script("tensorflow_client")).arg(STEPS).arg((2 * LIMIT_BYTES).to_string());
    command
}

#[test]
#[ignore = "deep: gigabytes"]
fn keras_trains_as_without_deepres_and_survives_its_own_out_of_memory() {
    let python = tensorflow().python();
    // Graphs of XLA have kernels that the tenant does not launch one by one.
    let counts = |tenant: &Tenant, kernels: u64| {
        let launches = tenant.kernel_launches;
        launches > 1000 && launches < kernels && tenant.graph_launches > 0
    };
    assert_trains_as_without(&python, client, CLIENT_LIMIT, ("ResourceExhaustedError", 0), counts);
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    /// The length of the measurement. The measurement is so long that a lease more or less at its
    /// ends makes no difference.
    const MEASURED: Duration = Duration::from_secs(12);

    #[test]
    #[ignore = "deep: gigabytes"]
    fn two_keras_trainers_share_seventy_to_thirty() {
        let (host, _daemon) = Host::measuring().simgpu(&torch_simgpu()).with_daemon();
        let start = |name, share| {
            let run = host.run(&["--name", name, "--share", share], tensorflow().python(), &[]);
            let mut command = tensorflow().prepared(run);
            command.arg(script("tensorflow_train"));
            host.spawn(command)
        };
        let mut trainers = [start("major", "70%"), start("minor", "30%")];
        assert_trainers_share(&host, &mut trainers, CLIENT_LIMIT, MEASURED);
    }
}
