//! `deepres set`: changes the wishes of a running tenant.

use super::ps::memory::over;
use crate::wishes::{Later, Wishes};
use anyhow::{Result, bail};
use deepres_model::admin::client::Client;
use deepres_model::admin::{Reply, Request};
use deepres_model::quantity::Bytes;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The change is in force for the running processes when the command returns. A tenant keeps the memory that it \
holds. If the tenant holds more than the new limit, it gets no more memory until it holds less.

Examples:
  deepres set train --share 50%
  deepres set train --share 30% --memory 4GiB
  deepres set train --memory unlimited
  deepres set train --criticality high --deadline 30min")]
pub struct Args {
    /// Tenant, as `deepres ps` shows it
    tenant: String,
    #[command(flatten)]
    wishes: Wishes<Later>,
}

/// Changes the tenant and prints its new grants.
pub fn run(args: &Args) -> Result<()> {
    let request = Request::set(&args.tenant, args.wishes.wish);
    let mut client = Client::connect()?;
    match client.ask(&request)? {
        Reply::Set(granted) => {
            println!("{}: {granted}", args.tenant);
            warn_of_excess(&mut client, &args.tenant)
        }
        other => bail!(
            "the daemon sent an unexpected reply: {other:?}; use one deepres release for the daemon and this command"
        ),
    }
}

/// Warns of GPUs on which the tenant holds more than its limit now allows.
fn warn_of_excess(client: &mut Client, name: &str) -> Result<()> {
    let status = client.status()?;
    let Some(tenant) = status.tenants.iter().find(|tenant| tenant.name == name) else { return Ok(()) };
    for account in &tenant.gpus {
        if let Some(more) = over(tenant.memory_limit_bytes, account) {
            println!(
                "{name} holds {} on GPU {}, {} more than its limit: the tenant gets no more memory until it holds less",
                Bytes(account.memory_bytes),
                account.gpu,
                Bytes(more)
            );
        }
    }
    Ok(())
}
