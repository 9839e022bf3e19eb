//! `deepres adopt`: lets an unmanaged process go on, as a tenant's.

use anyhow::{Result, bail};
use deepres_controller::admin::client::Client;
use deepres_controller::admin::{Reply, Request};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A process that uses a GPU without being a tenant is listed by `deepres ps`, and held if the daemon is configured so. \
Adopting it lets it go on; it is neither limited nor metered, since deepres is not inside it.

Examples:
  deepres adopt 4711
  deepres adopt 4711 --name nightly")]
pub struct Args {
    /// The process
    pid: u32,
    /// The tenant it is to be listed with
    #[arg(long)]
    name: Option<String>,
}

/// Adopts the process.
pub fn run(args: Args) -> Result<()> {
    match Client::connect()?.ask(&Request::Adopt { pid: args.pid, tenant: args.name })? {
        Reply::Adopted => Ok(()),
        other => bail!("the daemon gave a strange answer: {other:?}"),
    }
}
