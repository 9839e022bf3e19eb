//! The command line: one module for each command.

mod daemon;
mod ps;
mod run;
mod set;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use deepres_controller::quantity::QuantityError;
use std::error::Error;
use std::process::ExitCode;

/// Exit status of a command that failed.
const FAILED: u8 = 1;
/// Exit status of a command line that makes no sense.
const USAGE: u8 = 2;

/// Share GPUs among unmodified programs, each with the part it is owed.
#[derive(Debug, Parser)]
#[command(name = "deepres", version, after_help = HELP, max_term_width = 100, subcommand_required = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const HELP: &str = "\
Examples:
  deepres run --share 70% --memory 8GiB -- python train.py
  deepres run --name nightly --share 30% -- ./batch.sh
  deepres ps
  deepres set nightly --share 50%

`deepres run` needs no set-up: it starts a daemon for you if none is running.

Exit status: 0 for success, 1 for a failure, 2 for a command line that makes no sense.
`deepres run` passes on the status of its command: 128 + N if signal N killed it, 127 if it was
not found, 126 if it could not be executed.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program with its share of the GPU
    Run(run::Args),
    /// Share out this machine's GPUs
    Daemon(daemon::Args),
    /// Show tenants, their shares, GPU time and memory
    Ps(ps::Args),
    /// Change a running tenant's share or memory limit
    Set(set::Args),
    /// Whether the dynamic linker finds a library
    #[command(hide = true)]
    HasLibrary(run::HasLibraryArgs),
}

/// Runs the command line.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let outcome = match cli.command {
        Command::Run(args) => run::run(args),
        Command::Daemon(args) => daemon::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Ps(args) => ps::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Set(args) => set::run(&args).map(|()| ExitCode::SUCCESS),
        Command::HasLibrary(args) => Ok(run::has_library(&args)),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("deepres: {error:#}");
        ExitCode::from(FAILED)
    })
}

/// Says what is wrong with the command line. A share or a size that is none gets the one line that says what is accepted.
fn refuse(error: &clap::Error) -> ExitCode {
    let quantity = error.source().and_then(|source| source.downcast_ref::<QuantityError>());
    match (error.kind(), quantity) {
        (ErrorKind::ValueValidation, Some(quantity)) => {
            eprintln!("deepres: {quantity}");
            ExitCode::from(USAGE)
        }
        // Help and version are errors to clap, but not to whoever asked for them.
        _ => {
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(USAGE))
        }
    }
}
