//! `deepres set`: changes what a running tenant is owed and may hold.

use super::ps::memory::over;
use anyhow::{Result, bail};
use clap::builder::BoolishValueParser;
use deepres_model::admin::client::Client;
use deepres_model::admin::{Reply, Request};
use deepres_model::authority::Wish;
use deepres_model::quantity::{Bytes, parse_limit, parse_share, parse_time};
use deepres_policy::class::Class;
use deepres_policy::priority::Criticality;

#[derive(Debug, clap::Args)]
#[command(
    group = clap::ArgGroup::new("what").args(["share", "memory", "class", "criticality", "deadline", "size", "slo", "memory_follow_use", "charge_copies"]).required(true).multiple(true),
    after_help = "\
In force for the tenant's running processes when the command returns. Memory that a tenant holds \
already is not taken away; it gets no more until it is below the new limit.

Examples:
  deepres set train --share 50%
  deepres set train --share 30% --memory 4GiB
  deepres set train --memory unlimited
  deepres set train --criticality high --deadline 30min"
)]
pub struct Args {
    /// The tenant, as `deepres ps` shows it
    tenant: String,
    /// Its share of the GPU from now on: 1% to 100%
    #[arg(long, value_parser = parse_share)]
    share: Option<u32>,
    /// Its memory limit on each GPU from now on, for example 4GiB; unlimited: none
    #[arg(long, value_parser = parse_limit)]
    memory: Option<u64>,
    /// Its class from now on: guaranteed, fair or best-effort
    #[arg(long)]
    class: Option<Class>,
    /// How critical it is from now on: low, normal, high, critical, or a number from 0 to 1
    #[arg(long, alias = "priority")]
    criticality: Option<Criticality>,
    /// It has to be done within this time from now, for example 2h
    #[arg(long, value_parser = parse_time)]
    deadline: Option<u64>,
    /// GPU time that the whole job takes, what it has used included, for example 40min
    #[arg(long, value_parser = parse_time)]
    size: Option<u64>,
    /// Its requests are to be answered within this time from now on, for example 30ms
    #[arg(long, value_parser = parse_time)]
    slo: Option<u64>,
    /// Let others have what of its memory it does not use, but for a margin, from now on; `=false`: no longer
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    memory_follow_use: Option<bool>,
    /// Charge the time of its copies too from now on; `=false`: no longer
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    charge_copies: Option<bool>,
}

/// Changes the tenant and says what holds now.
pub fn run(args: &Args) -> Result<()> {
    let wish = Wish {
        share_ppm: args.share,
        memory_bytes: args.memory,
        class: args.class,
        criticality: args.criticality,
        deadline_ns: args.deadline,
        size_ns: args.size,
        slo_ns: args.slo,
        memory_follows_use: args.memory_follow_use,
        charge_copies: args.charge_copies,
    };
    let request = Request::set(&args.tenant, wish);
    let mut client = Client::connect()?;
    match client.ask(&request)? {
        Reply::Set(granted) => {
            println!("{}: {granted}", args.tenant);
            warn_of_excess(&mut client, &args.tenant)
        }
        other => bail!("the daemon gave an answer to something else: {other:?}"),
    }
}

/// Tells of GPUs on which the tenant holds more than its limit allows now.
fn warn_of_excess(client: &mut Client, name: &str) -> Result<()> {
    let status = client.status()?;
    let Some(tenant) = status.tenants.iter().find(|tenant| tenant.name == name) else { return Ok(()) };
    for account in &tenant.gpus {
        if let Some(more) = over(tenant.memory_limit_bytes, account) {
            println!(
                "{name} holds {} on GPU {}, {} more than that: it gets no more until it is below",
                Bytes(account.memory_bytes),
                account.gpu,
                Bytes(more)
            );
        }
    }
    Ok(())
}
