//! The command line: one module for each command.

// `out` prints, because `println!` panics if the reader has closed the pipe.
#![deny(clippy::print_stdout)]

mod adopt;
mod cdi;
mod completions;
mod config;
mod daemon;
mod doctor;
mod explain;
mod man;
mod mover;
mod mps;
mod out;
mod pause;
mod plan;
mod profile;
mod ps;
mod reload;
mod report;
mod run;
mod set;
mod slurm;
mod top;
mod topo;
mod trace;
mod wishes;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use deepres_model::quantity::QuantityError;
use std::error::Error;
use std::io::IsTerminal;
use std::process::ExitCode;

/// The most columns of a help.
const WIDEST: usize = 100;
/// Exit status of a command that failed.
const FAILED: u8 = 1;
/// Exit status for an invalid command line.
const USAGE: u8 = 2;

/// Exit status of a daemon on a machine without a GPU or its driver (`EX_UNAVAILABLE` of
/// sysexits.h). The systemd unit names this status, because a restart would not help.
const NO_GPU: u8 = 69;

/// Share GPUs among unmodified programs, each with the share that it is owed
#[derive(Debug, Parser)]
#[command(name = "deepres", version, after_help = HELP, max_term_width = WIDEST, subcommand_required = true)]
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

Exit status: 0 for success, 1 for a failure, 2 for a faulty command line.
`deepres daemon` ends with 69 on a machine without a GPU or its driver.
`deepres run` passes on the status of its command: 128 + N if signal N killed it, 127 if it was
not found, 126 if it could not be executed.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program with its share of the GPU
    Run(run::Args),
    /// Share this machine's GPUs among tenants
    Daemon(daemon::Args),
    /// Check and show the daemon's configuration
    Config(config::Args),
    /// Make the running daemon read its configuration file again
    Reload(reload::Args),
    /// Show tenants, their shares, GPU time and memory
    Ps(ps::Args),
    /// Show tenants and their shares of the last minutes, again and again
    Top(top::Args),
    /// Change a running tenant's share, memory limit, class or priority
    Set(set::Args),
    /// Keep a tenant off the GPUs until it is resumed
    ///
    /// The pause also ends when the daemon forgets the tenant: `tenant_linger_s` after the tenant's
    /// last process ended
    Pause(pause::Args),
    /// Move a tenant with its memory off the GPUs until it is resumed
    Suspend(pause::Args),
    /// Let a paused or suspended tenant go on
    Resume(pause::Args),
    /// Show the terms from which a tenant's share follows
    Explain(explain::Args),
    /// Let an unmanaged process go on, as part of a tenant
    Adopt(adopt::Args),
    /// Learn the kernels that a tenant repeats, and let tenants that run at once follow a plan
    Plan(plan::Args),
    /// Measure a program's time by part of the SMs and batch, and draw the curve
    Profile(profile::Args),
    /// Show how the GPUs of this machine reach each other
    Topo(topo::Args),
    /// Show the calls of processes to the GPU's driver
    Trace(trace::Args),
    /// Check whether this machine has the needs of deepres, and name remedies
    Doctor(doctor::Args),
    /// Collect the facts that a bug report needs into one archive
    Report(report::Args),
    /// Manage devices that bring deepres into containers
    Cdi(cdi::Args),
    /// Give Slurm's jobs their part of the GPUs
    Slurm(slurm::Args),
    /// Print the code by which a shell completes command lines of deepres
    Completions(completions::Args),
    /// Move processes off the GPUs until a daemon asks for them
    #[command(hide = true)]
    Mover(mover::Args),
    /// Write a man page for each command
    #[command(hide = true)]
    Man(man::Args),
    /// Check that the dynamic linker finds a library
    #[command(hide = true)]
    HasLibrary(run::HasLibraryArgs),
}

/// Runs the command line.
pub fn main() -> ExitCode {
    completions::answer_shell();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let outcome = match cli.command {
        Command::Run(args) => run::run(args),
        Command::Daemon(args) => daemon::run(&args),
        Command::Ps(args) => ps::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Top(args) => top::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Set(args) => set::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Pause(args) => pause::pause(args).map(|()| ExitCode::SUCCESS),
        Command::Suspend(args) => pause::suspend(args).map(|()| ExitCode::SUCCESS),
        Command::Resume(args) => pause::resume(args).map(|()| ExitCode::SUCCESS),
        Command::Explain(args) => explain::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Adopt(args) => adopt::run(args).map(|()| ExitCode::SUCCESS),
        Command::Plan(args) => plan::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Profile(args) => profile::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Topo(args) => topo::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Trace(args) => trace::run(args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Cdi(args) => cdi::run(args).map(|()| ExitCode::SUCCESS),
        Command::Slurm(args) => slurm::run(&args),
        Command::Config(args) => config::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Reload(args) => reload::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Report(args) => report::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Completions(args) => completions::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Mover(args) => mover::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Man(args) => man::run(&args).map(|()| ExitCode::SUCCESS),
        Command::HasLibrary(args) => Ok(run::has_library(&args)),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("deepres: {}", explain(&error));
        ExitCode::from(FAILED)
    })
}

/// Returns whether `stream` is a terminal that obeys escape sequences. The terminal `dumb`, for
/// example a window of Emacs, shows them as text.
fn obeys(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_none_or(|name| name != "dumb")
}

/// Returns whether output to `stream` may have colours: `stream` is a terminal that obeys escape
/// sequences, and `NO_COLOR` is not set (<https://no-color.org>).
fn has_colours(stream: &impl IsTerminal) -> bool {
    obeys(stream) && std::env::var_os("NO_COLOR").is_none_or(|wish| wish.is_empty())
}

/// Returns the text of an error and its causes in one line. Leaves out a cause that the line
/// already contains.
fn explain(error: &anyhow::Error) -> String {
    error.chain().skip(1).map(ToString::to_string).fold(error.to_string(), |line, cause| {
        if line.contains(&cause) { line } else { format!("{line}: {cause}") }
    })
}

/// Prints the fault of the command line in one line, and returns the exit status.
fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Clap reports help and version as errors, although the user asked for them.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let quantity = error.source().and_then(|source| source.downcast_ref::<QuantityError>());
    match (error.kind(), quantity) {
        // `deepres` without arguments prints the whole help.
        (ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, _) => drop(error.print()),
        // The error itself says which values the option takes.
        (ErrorKind::ValueValidation, Some(quantity)) => eprintln!("deepres: {quantity}"),
        _ => eprintln!("deepres: {}", one_line(&error.render().to_string())),
    }
    ExitCode::from(USAGE)
}

/// Joins the lines of clap's message: the error and its tips, without the usage.
fn one_line(rendered: &str) -> String {
    let says = |line: &&str| !line.is_empty() && !line.starts_with("For more information");
    let lines: Vec<_> =
        rendered.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:")).filter(says).collect();
    let joined = lines.join(" ").replace(" tip: ", "; ");
    joined.strip_prefix("error: ").unwrap_or(&joined).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    /// Checks the help of a command and of its subcommands.
    fn check(command: &clap::Command, has_examples_above: bool) {
        let name = command.get_name();
        let text = |help: Option<&clap::builder::StyledStr>| help.map_or(String::new(), ToString::to_string);
        let has_examples = text(command.get_after_help()).contains("Examples:");
        assert!(has_examples || has_examples_above, "{name} shows no example");
        for line in text(command.get_after_help()).lines().filter(|line| line.starts_with("  deepres")) {
            assert!(line.chars().count() <= WIDEST, "the terminal breaks the example of {name}: {line}");
        }
        for argument in command.get_arguments() {
            assert!(!text(argument.get_help()).is_empty(), "{name} {argument} has no help");
            for value in argument.get_value_names().into_iter().flatten() {
                let is_plain = value.chars().all(|c| !c.is_lowercase()) || value.contains('|');
                assert!(is_plain, "{name} {argument} names its value {value}");
            }
        }
        let below = command.get_subcommands().filter(|below| !below.is_hide_set());
        below.for_each(|below| check(below, has_examples && name != "deepres"));
    }

    #[test]
    fn each_command_shows_examples_and_each_option_has_a_help() {
        check(&Cli::command(), false);
    }
}
