//! `deepres slurm epilog`: Slurm runs it as root after each job on a node, also after a cancelled
//! or requeued job.

use super::JOB_VARIABLE;
use anyhow::{Context, Result, bail};
use deepres_model::admin::client::{Client, ClientError};
use deepres_model::admin::{Reply, Request};
use std::process::ExitCode;

/// Makes the daemon forget the job. The exit status is always 0, because Slurm would take the node
/// out of service after any other. The messages are for slurmd's log.
pub fn run() -> ExitCode {
    if let Err(error) = end() {
        eprintln!("deepres: {}", crate::explain(&error));
    }
    ExitCode::SUCCESS
}

fn end() -> Result<()> {
    let job = std::env::var(JOB_VARIABLE)
        .with_context(|| format!("{JOB_VARIABLE} is not set; name this command by Epilog in slurm.conf"))?;
    let job = job.parse().with_context(|| format!("{JOB_VARIABLE}={job} is not a number"))?;
    let mut client = match Client::connect() {
        // Without a daemon there is no record of the job.
        Err(ClientError::NoDaemon(_)) => return Ok(()),
        connected => connected?,
    };
    match client.ask(&Request::EndJob { job })? {
        Reply::JobEnded { living } if living.is_empty() => Ok(()),
        Reply::JobEnded { living } => {
            bail!("processes of job {job} use GPUs still ({}); see `deepres ps -v`", living.join(", "))
        }
        other => bail!(
            "the daemon sent an unexpected reply: {other:?}; use one deepres release for the daemon and this command"
        ),
    }
}
