//! `deepres adopt`: lets an unmanaged process go on as part of a tenant.

use super::completions;
use super::run::parse_name;
use anyhow::{Result, bail};
use clap_complete::ArgValueCompleter;
use deepres_daemon::probes::metering::PATIENCE;
use deepres_model::admin::client::Client;
use deepres_model::admin::{Reply, Request};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
`deepres ps` lists each unmanaged process: a process that uses a GPU without a session. If the configuration \
says so, the daemon stops such a process. `adopt` lets the process go on. The process has no limits, because \
the interposer is not loaded into it. If the kernel allows probes, the daemon counts the launches and \
allocations of the process from outside.

Examples:
  deepres adopt 4711
  deepres adopt 4711 --name nightly")]
pub struct Args {
    /// Process to adopt
    #[arg(add = ArgValueCompleter::new(completions::unmanaged))]
    pid: u32,
    /// Tenant under which the process is listed
    #[arg(long, value_parser = parse_name, add = ArgValueCompleter::new(completions::tenants))]
    name: Option<String>,
}

/// Adopts the process.
pub fn run(args: Args) -> Result<()> {
    let mut client = Client::connect()?;
    client.set_patience(PATIENCE)?;
    match client.ask(&Request::Adopt { pid: args.pid, tenant: args.name })? {
        Reply::Adopted { unmetered } => {
            if let Some(reason) = unmetered {
                eprintln!(
                    "deepres: process {} is adopted, but the daemon does not count its launches: {reason}",
                    args.pid
                );
            }
            Ok(())
        }
        other => bail!(
            "the daemon sent an unexpected reply: {other:?}; use one deepres release for the daemon and this command"
        ),
    }
}
