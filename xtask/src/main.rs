//! Development tasks of deepres: `cargo xtask --help` lists them.

mod codegen;
mod command;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Development tasks of deepres.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Generate the driver API table from NVIDIA's published headers.
    Codegen(codegen::Options),
}

fn main() -> Result<()> {
    match Cli::parse().task {
        Task::Codegen(options) => codegen::run(&options),
    }
}

/// The root of the workspace, wherever the command was started.
fn workspace() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("xtask is a folder of the workspace").to_owned()
}
