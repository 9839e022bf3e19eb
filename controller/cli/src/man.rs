//! `deepres man`: writes a man page for each command. `cargo xtask dist` calls it.

use anyhow::{Context, Result};
use clap::CommandFactory as _;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder for the pages
    folder: PathBuf,
}

/// Writes the pages.
pub fn run(args: &Args) -> Result<()> {
    clap_mangen::generate_to(super::Cli::command(), &args.folder)
        .with_context(|| format!("cannot write man pages into {}", args.folder.display()))
}
