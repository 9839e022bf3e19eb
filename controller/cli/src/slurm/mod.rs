//! `deepres slurm`: the hooks by which Slurm's jobs get their part of the GPUs, and the generator
//! of Slurm's list of GPUs.

mod epilog;
mod gres_conf;
mod task_prolog;

use anyhow::Result;
use std::process::ExitCode;

/// Variable with the number of a Slurm job.
const JOB_VARIABLE: &str = "SLURM_JOB_ID";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Slurm calls task-prolog and epilog, which take the job from Slurm's variables. docs/slurm.md has the lines for \
slurm.conf.

Examples:
  deepres slurm gres-conf > /etc/slurm/gres.conf
  SLURM_JOB_ID=4711 deepres slurm epilog")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print the variables with which a task runs under deepres (for TaskProlog in slurm.conf)
    TaskProlog,
    /// Make the daemon forget a job that has ended (for Epilog in slurm.conf)
    Epilog,
    /// Print gres.conf for the GPUs of this machine, with 100 shards for each
    GresConf(gres_conf::Args),
}

/// Runs a subcommand of `deepres slurm`.
pub fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Command::TaskProlog => Ok(task_prolog::run()),
        Command::Epilog => Ok(epilog::run()),
        Command::GresConf(args) => gres_conf::run(args).map(|()| ExitCode::SUCCESS),
    }
}
