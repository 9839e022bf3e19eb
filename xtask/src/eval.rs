//! `cargo xtask eval`: compares the policy with other policies in virtual time. The code is in
//! `tests/eval`.

use std::env;
use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::{build, command};

/// Options of `cargo xtask eval`, which passes them to the evaluation program.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Options {
    /// Arguments for the evaluation; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Checks that no figure of deepres is below its bar in any scenario. The arguments select the
/// scenarios.
pub fn check_bars(arguments: &[&str]) -> Result<()> {
    let arguments = arguments.iter().chain(&["--bars"]);
    run(&Options { arguments: arguments.map(Into::into).collect() })
}

/// Builds the evaluation and runs it.
pub fn run(options: &Options) -> Result<()> {
    let mut program = program();
    // The paths of scenarios are relative to the user's current directory.
    program.current_dir(env::current_dir().context("cannot find the current directory")?);
    command::run(program.args(&options.arguments))
}

/// Returns the command that builds the evaluation program and runs it. The program's arguments
/// follow.
pub fn program() -> Command {
    let mut cargo = build::cargo();
    cargo.args(["run", "--quiet", "--profile", "eval", "--package", "deepres-eval", "--manifest-path"]);
    cargo.arg(crate::workspace().join("Cargo.toml")).arg("--");
    cargo
}
