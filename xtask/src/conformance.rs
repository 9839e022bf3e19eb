//! `cargo xtask conformance`: checks that a driver, real or simulated, behaves as deepres assumes.

use std::env;
use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result};
use deepres_e2e::{clients, stand_ins, venv};

use crate::host::Device;
use crate::{build, command};

/// Options of `cargo xtask conformance`.
#[derive(clap::Args)]
pub struct Options {
    /// Print one JSON object with all findings instead of a line for each check
    #[arg(long)]
    json: bool,
    /// Check the simulated driver, even if this machine has a real one
    #[arg(long)]
    simulated: bool,
    /// Check the runtime library instead of the driver: NVIDIA's on a real driver, and the stand-in
    /// on the simulated one
    #[arg(long, conflicts_with = "names")]
    runtime: bool,
    /// Run only checks whose name contains one of these texts
    names: Vec<String>,
}

/// Builds the program and the simulated driver, and runs the checks.
pub fn run(options: &Options) -> Result<()> {
    let mut cargo = build::cargo();
    cargo.args(["build", "--package", "deepres-conformance"]);
    for package in build::SIMGPU {
        cargo.args(["--package", package]);
    }
    if options.runtime {
        cargo.args(["--package", "simgpu-runtime"]);
    }
    command::run(&mut cargo)?;
    let built = build::target().join("debug");
    let simgpu = build::target().join("conformance/simgpu");
    build::lay_out_simgpu(&built, &simgpu)?;
    let state = tempfile::Builder::new()
        .prefix("deepres-conformance-")
        .tempdir()
        .context("cannot create a temporary directory")?;

    let mut program = Command::new(built.join("conformance"));
    program.args(options.json.then_some("--json")).args(&options.names);
    let config = crate::workspace().join("tests/conformance/simgpu.toml");
    let device = if options.simulated {
        Device::Simulated { config: Some(config) }
    } else {
        Device::of_this_machine(config)
    };
    if options.runtime {
        let folder = match &device {
            Device::Real => {
                let folder = venv::clients()?.nvrtc()?;
                let others = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
                let folders = [folder.clone()].into_iter().chain(env::split_paths(&others));
                program.env("LD_LIBRARY_PATH", env::join_paths(folders)?);
                folder
            }
            Device::Simulated { .. } => {
                let stand_in = built.join("libcudart.so");
                fs::copy(&stand_in, simgpu.join(stand_ins::RUNTIME))
                    .with_context(|| format!("cannot copy {}", stand_in.display()))?;
                simgpu.clone()
            }
        };
        let runtime = folder.join(stand_ins::RUNTIME);
        program.arg("--runtime").arg(clients::cuda_program_on("shared_runtime", &runtime));
    }
    if let Device::Simulated { config: Some(config) } = device {
        program
            .env("LD_LIBRARY_PATH", &simgpu)
            .env("SIMGPU_STATE", state.path())
            .env("SIMGPU_CONFIG", config);
    }
    command::run(&mut program)
}
