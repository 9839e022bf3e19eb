//! `deepres adopt`: lets an unmanaged process go on as part of a tenant.

use super::run::parse_name;
use anyhow::{Result, bail};
use deepres_daemon::probes::metering::PATIENCE;
use deepres_model::admin::client::Client;
use deepres_model::admin::{Reply, Request};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
`deepres ps` lists a process that uses a GPU without being a tenant, and the daemon stops it if the \
configuration says so. `adopt` lets the process go on. The process has no limits, because deepres is not \
inside it. From then on the daemon counts its launches and allocations from outside, by probes at its \
driver library, where the kernel allows them.

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
