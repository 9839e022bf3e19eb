//! `deepres adopt`: lets an unmanaged process go on as part of a tenant.

use super::run::parse_name;
use anyhow::{Result, bail};
use deepres_daemon::probes::metering::PATIENCE;
use deepres_model::admin::client::Client;
use deepres_model::admin::{Reply, Request};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A process that uses a GPU without being a tenant is listed by `deepres ps`, and held if the daemon is configured so. \
Adopting it lets it go on. It is not limited, since deepres is not inside it, but metered from outside: what it launches and allocates \
from then on is counted by probes at its driver's library, where the kernel allows them.

Examples:
  deepres adopt 4711
  deepres adopt 4711 --name nightly")]
pub struct Args {
    /// Process to adopt
    pid: u32,
    /// Tenant under which the process is listed
    #[arg(long, value_parser = parse_name)]
    name: Option<String>,
}

/// Adopts the process.
pub fn run(args: Args) -> Result<()> {
    let mut client = Client::connect()?;
    client.set_patience(PATIENCE)?;
    match client.ask(&Request::Adopt { pid: args.pid, tenant: args.name })? {
        Reply::Adopted { unmetered } => {
            if let Some(reason) = unmetered {
                eprintln!("deepres: adopted, and not metered: {reason}");
            }
            Ok(())
        }
        other => bail!("the daemon gave a strange answer: {other:?}"),
    }
}
