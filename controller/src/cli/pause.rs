//! `deepres pause` and `deepres resume`: keep a tenant off the GPUs for a while.

use anyhow::{Result, bail};
use deepres_controller::admin::client::Client;
use deepres_controller::admin::{Reply, Request};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
What the tenant has on the GPU runs out; its programs then wait at their next launch, keep their memory, and go on \
where they were after `deepres resume`. The pause holds over the daemon's restart, and until the tenant's last \
process ends.

Examples:
  deepres pause nightly
  deepres resume nightly")]
pub struct Args {
    /// The tenant, as `deepres ps` shows it
    tenant: String,
}

/// Keeps the tenant off the GPUs.
pub fn pause(args: Args) -> Result<()> {
    let tenant = args.tenant.clone();
    ask(&args.tenant, &Request::Pause { tenant })
}

/// Lets it on again.
pub fn resume(args: Args) -> Result<()> {
    let tenant = args.tenant.clone();
    ask(&args.tenant, &Request::Resume { tenant })
}

fn ask(tenant: &str, request: &Request) -> Result<()> {
    match Client::connect()?.ask(request)? {
        Reply::Pause { is_paused } => {
            println!("{tenant}: {}", if is_paused { "paused" } else { "resumed" });
            Ok(())
        }
        other => bail!("the daemon gave an answer to something else: {other:?}"),
    }
}
