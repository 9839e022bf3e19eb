//! An unmodified TensorFlow from PyPI trains on the simulated GPU, by the stand-ins for NVIDIA's
//! libraries.

use std::process::Command;

use deepres_e2e::artefacts::tensorflow;
use deepres_e2e::clients::torch_simgpu;
use deepres_e2e::prelude::*;

/// Time limit of a client, which imports TensorFlow and compiles with XLA on a machine with other
/// work.
const CLIENT_LIMIT: Duration = Duration::from_secs(240);
/// Time within which the session's meter thread brings the meter page up to date.
const METER_SETTLES_WITHIN: Duration = Duration::from_secs(10);
const LIMIT_BYTES: u64 = 4 * GIB;
const STEPS: &str = "5";

fn client(command: Command) -> Command {
    let mut command = tensorflow().prepared(command);
    // TensorFlow asks for more than the limit, so the limit decides.
    command.arg(script("tensorflow_client")).arg(STEPS).arg((2 * LIMIT_BYTES).to_string());
    command
}

#[test]
#[ignore = "deep: gigabytes"]
fn keras_trains_as_without_deepres_and_survives_its_own_out_of_memory() {
    // The device of the client without deepres has as much memory as the limit.
    let bare = Host::new().simgpu(&format!("memory_bytes = {LIMIT_BYTES}\n"));
    let mut bare_client = bare.spawn(client(bare.command(tensorflow().python())));
    let without = bare_client.await_json_within(CLIENT_LIMIT);
    println!("{without:#}");
    bare_client.finish().success();
    drop(bare);

    let (host, _daemon) = Host::new().lasting(CLIENT_LIMIT).with_daemon();
    let options = ["--name", "keras", "--memory", &LIMIT_BYTES.to_string()];
    let mut process = host.spawn(client(host.run(&options, tensorflow().python(), &[])));
    let said = process.await_json_within(CLIENT_LIMIT);
    assert_eq!(said, without, "it sees what it sees without deepres");
    assert_eq!(said["error"], "ResourceExhaustedError");
    assert!(said["pieces"].as_u64() >= Some(LIMIT_BYTES / 2 / (64 * MIB)), "the limit refused: {said}");

    // Graphs of XLA have kernels that the tenant does not launch one by one.
    let kernels: u64 = host.truth().processes.iter().map(|process| process.gpus[0].kernels).sum();
    let ps = host.await_ps_within(
        |ps| ps.find("keras").is_some_and(|tenant| tenant.kernel_launches > 1000),
        METER_SETTLES_WITHIN,
    );
    let keras = ps.tenant("keras");
    assert!(keras.kernel_launches < kernels && keras.graph_launches > 0, "{kernels} kernels, {keras:?}");
    assert!(keras.refusals > 0);
    let processes = host.json(&["ps", "--coverage", "--json"]);
    let own: Vec<&Value> =
        processes.as_array().into_iter().flatten().filter(|one| one["tenant"] == "keras").collect();
    assert!(!own.is_empty());
    for past in own.iter().flat_map(|one| one["unaccounted"].as_array().expect("a list")) {
        assert_eq!(past["class"], "host", "only host memory is not accounted: {past}");
    }
    process.finish().success();
}

/// Tests that measure. Each runs alone on the machine.
mod measured {
    use super::*;

    /// So long that a lease more or less at the ends of the window makes no difference.
    const MEASURED: Duration = Duration::from_secs(12);
    /// Time after which the first steps after the warm-up are over.
    const SETTLED: Duration = Duration::from_secs(1);

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
        for trainer in &mut trainers {
            trainer.await_line_within(|line| line.contains("; training"), CLIENT_LIMIT);
        }
        thread::sleep(SETTLED);
        let window = Window::measure(&host, MEASURED);
        window.assert_shares(&[("major", 70.0), ("minor", 30.0)]);
        let busy = window.busy_percent();
        assert!(busy >= 70.0, "the trainers kept the GPU busy only {busy:.1} % of the time");
    }
}
