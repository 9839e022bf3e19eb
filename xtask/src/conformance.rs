//! `cargo xtask conformance`: checks that a driver, real or simulated, behaves as deepres assumes.

use std::process::Command;

use anyhow::{Context as _, Result};

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
    if let Device::Simulated { config: Some(config) } = device {
        program
            .env("LD_LIBRARY_PATH", &simgpu)
            .env("SIMGPU_STATE", state.path())
            .env("SIMGPU_CONFIG", config);
    }
    command::run(&mut program)
}
