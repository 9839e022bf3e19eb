//! `deepres set`: changes the wishes of a running tenant.

use super::ps::memory::over;
use super::{completions, out};
use crate::wishes::{Later, Wishes};
use anyhow::{Result, bail};
use clap_complete::ArgValueCompleter;
use deepres_abi::wish::Key;
use deepres_model::admin::client::Client;
use deepres_model::admin::{Reply, Request, Status};
use deepres_model::quantity::Bytes;

#[derive(Debug, clap::Args)]
#[command(
    override_usage = "deepres set <TENANT> <OPTIONS>",
    after_help = "\
The change is in force for the running processes when the command returns, except --sm, which needs a new \
start of the job. A tenant keeps the memory that it \
holds. If the tenant holds more than the new limit, it gets no more memory until it holds less.

Examples:
  deepres set train --share 50%
  deepres set train --share 30% --memory 4GiB
  deepres set train --memory unlimited
  deepres set train --criticality high --deadline 30min
  deepres set train --unset share,slo     (the wishes of the job hold again)
  deepres set train --reset"
)]
pub struct Args {
    /// Tenant, as `deepres ps` shows it
    #[arg(add = ArgValueCompleter::new(completions::tenants))]
    tenant: String,
    #[command(flatten)]
    wishes: Wishes<Later>,
    /// End earlier settings of `deepres set`, by the names of their options: the wishes of the job
    /// hold again
    #[arg(long, value_name = "OPTIONS", value_delimiter = ',', value_parser = parse_key, group = "wishes")]
    unset: Vec<Key>,
    /// End all earlier settings of `deepres set`
    #[arg(long, conflicts_with = "unset", group = "wishes")]
    reset: bool,
}

/// Returns the wish whose option has this name, without or with dashes.
fn parse_key(name: &str) -> Result<Key, String> {
    let name = name.trim_start_matches('-');
    let found = Key::ALL.into_iter().find(|key| key.option() == name);
    found.ok_or_else(|| {
        format!("there is no option --{name}; there are: {}", Key::ALL.map(Key::option).join(", "))
    })
}

/// Changes the tenant and prints its new grants.
pub fn run(args: &Args) -> Result<()> {
    let unset = if args.reset { &Key::ALL[..] } else { &args.unset };
    let unset = unset.iter().map(|key| key.name().to_owned()).collect();
    let request = Request::Set { tenant: args.tenant.clone(), wish: Box::new(args.wishes.wish), unset };
    let mut client = Client::connect()?;
    match client.ask(&request)? {
        Reply::Set(granted) => {
            out::say(format_args!("{}: {granted}", args.tenant))?;
            if args.wishes.wish.sm_ppm.is_some() || args.unset.contains(&Key::Sm) {
                out::say(format_args!(
                    "{}: a process keeps the part of the SMs with which it began; start the job again by `deepres run --name {}`",
                    args.tenant, args.tenant
                ))?;
            }
            let status = client.status()?;
            tell_of_rest(&status, &args.tenant)?;
            warn_of_excess(&status, &args.tenant)
        }
        other => bail!(
            "the daemon sent an unexpected reply: {other:?}; use one deepres release for the daemon and this command"
        ),
    }
}

/// Prints a message if no process of the tenant uses a GPU, because a change then has no effect at
/// present.
pub fn tell_of_rest(status: &Status, name: &str) -> Result<()> {
    let tenant = status.tenants.iter().find(|tenant| tenant.name == name);
    if tenant.is_none_or(|tenant| tenant.sessions.is_empty()) {
        out::say(format_args!("{name}: no process of this tenant uses a GPU now"))?;
    }
    Ok(())
}

/// Warns of GPUs on which the tenant holds more than its limit now allows.
fn warn_of_excess(status: &Status, name: &str) -> Result<()> {
    let Some(tenant) = status.tenants.iter().find(|tenant| tenant.name == name) else { return Ok(()) };
    for account in &tenant.gpus {
        if let Some(more) = over(tenant.memory_limit_bytes, account) {
            out::say(format_args!(
                "{name} holds {} on gpu {}, {} more than its limit: the tenant gets no more memory until it holds less",
                Bytes(account.memory_bytes),
                account.gpu,
                Bytes(more)
            ))?;
        }
    }
    Ok(())
}
