//! `deepres pause`, `suspend` and `resume`: keep a tenant off the GPUs for a while. The memory of a
//! suspended tenant is on the host. The memory of a paused tenant stays on the GPU.

use super::set::tell_of_rest;
use super::{completions, out};
use anyhow::{Result, bail};
use clap_complete::ArgValueCompleter;
use deepres_model::admin::client::Client;
use deepres_model::admin::{Reply, Request, Resumption};
use std::time::Duration;

/// Wait for the daemon's answer beyond the daemon's own limits. A move begins after the running
/// work has ended.
const MORE_PATIENCE: Duration = Duration::from_secs(30);
/// The most moves of a tenant's memory for which one request waits: a move that is under way, and
/// the move of the request.
const MOVES: u32 = 2;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The tenant's work in flight finishes. Then its programs wait at their next launch and keep their memory. \
They go on after `deepres resume`. A pause outlives the daemon, and ends when the daemon forgets the tenant: \
tenant_linger_s after the tenant's last process ended. `suspend` moves the tenant's memory to the host too, \
with a driver of release 570 or newer. The memory comes back when the tenant is resumed or the daemon ends.

Examples:
  deepres pause nightly
  deepres suspend nightly
  deepres resume nightly")]
pub struct Args {
    /// Tenant, as `deepres ps` shows it
    #[arg(add = ArgValueCompleter::new(completions::tenants))]
    tenant: String,
}

/// Keeps the tenant off the GPUs.
pub fn pause(args: Args) -> Result<()> {
    let tenant = args.tenant.clone();
    ask(&args.tenant, &Request::Pause { tenant })
}

/// Moves the tenant off the GPUs, with its memory.
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
    let limit = Duration::from_nanos(client.status()?.daemon.suspend_limit_ns);
    client.set_patience(limit.saturating_mul(MOVES).saturating_add(MORE_PATIENCE))?;
    match client.ask(request)? {
        Reply::Suspended => out::say(format_args!("{tenant}: suspended")),
        Reply::Paused => {
            out::say(format_args!("{tenant}: paused"))?;
            tell_of_rest(&client.status()?, tenant)
        }
        Reply::Resumed { resumption } => out::say(format_args!("{tenant}: {}", told(resumption))),
        other => bail!(
            "the daemon sent an unexpected reply: {other:?}; use one deepres release for the daemon and this command"
        ),
    }
}

/// Returns the effect of a resumption, for people.
pub fn told(resumption: Resumption) -> &'static str {
    match resumption {
        Resumption::Now => "resumed",
        Resumption::Later => "waits for memory: the daemon resumes the tenant when others leave room for it",
        Resumption::Needless => "was neither paused nor suspended",
    }
}
