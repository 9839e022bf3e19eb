//! `deepres pause`, `suspend` and `resume`: keep a tenant off the GPUs for a while. A suspended
//! tenant's memory is on the host, a paused tenant's memory stays on the GPU.

use anyhow::{Result, bail};
use deepres_model::admin::client::Client;
use deepres_model::admin::{Reply, Request, Resumption};
use std::time::Duration;

/// Longest wait for the daemon's answer. Moving all memory of a GPU to the host takes some seconds,
/// and begins when running work has ended.
const MOVE_PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
What the tenant has on the GPU runs out; its programs then wait at their next launch, keep their memory, and go on \
where they were after `deepres resume`. The pause holds over the daemon's restart, and until the tenant's last \
process ends. A suspended tenant keeps no memory on the GPU either: the driver brings it to the host, which takes a \
driver of release 570 or newer, and back when the tenant is resumed, or when the daemon ends: then it goes on.

Examples:
  deepres pause nightly
  deepres suspend nightly
  deepres resume nightly")]
pub struct Args {
    /// Tenant, as `deepres ps` shows it
    tenant: String,
}

/// Keeps the tenant off the GPUs.
pub fn pause(args: Args) -> Result<()> {
    let tenant = args.tenant.clone();
    ask(&args.tenant, &Request::Pause { tenant })
}

/// Moves the tenant off the GPUs, its memory to the host.
pub fn suspend(args: Args) -> Result<()> {
    let tenant = args.tenant.clone();
    ask(&args.tenant, &Request::Suspend { tenant })
}

/// Lets the tenant use the GPUs again.
pub fn resume(args: Args) -> Result<()> {
    let tenant = args.tenant.clone();
    ask(&args.tenant, &Request::Resume { tenant })
}

fn ask(tenant: &str, request: &Request) -> Result<()> {
    let mut client = Client::connect()?;
    client.set_patience(MOVE_PATIENCE)?;
    match client.ask(request)? {
        Reply::Suspended => println!("{tenant}: suspended"),
        Reply::Paused => println!("{tenant}: paused"),
        Reply::Resumed { resumption } => println!("{tenant}: {}", told(resumption)),
        other => bail!("the daemon gave an answer to something else: {other:?}"),
    }
    Ok(())
}

fn told(resumption: Resumption) -> &'static str {
    match resumption {
        Resumption::Now => "resumed",
        Resumption::Later => "is resumed once there is room for it: others have the GPU's memory now",
        Resumption::Needless => "was neither paused nor suspended",
    }
}
