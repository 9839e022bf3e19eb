//! `deepres set`: changes what a running tenant is owed and may hold.

use anyhow::{Result, bail};
use deepres_controller::admin::client::Client;
use deepres_controller::admin::{Reply, Request};
use deepres_controller::policy::class::Class;
use deepres_controller::quantity::{Bytes, Percent, parse_bytes, parse_share};

#[derive(Debug, clap::Args)]
#[command(
    group = clap::ArgGroup::new("what").args(["share", "memory", "class"]).required(true).multiple(true),
    after_help = "\
In force for the tenant's running processes when the command returns. Memory that a tenant holds \
already is not taken away; it gets no more until it is below the new limit.

Examples:
  deepres set train --share 50%
  deepres set train --share 30% --memory 4GiB"
)]
pub struct Args {
    /// The tenant, as `deepres ps` shows it
    tenant: String,
    /// Its share of the GPU from now on: 1% to 100%
    #[arg(long, value_parser = parse_share)]
    share: Option<u32>,
    /// Its memory limit on each GPU from now on, for example 4GiB
    #[arg(long, value_parser = parse_bytes)]
    memory: Option<u64>,
    /// Its class from now on: guaranteed, fair or best-effort
    #[arg(long)]
    class: Option<Class>,
}

/// Changes the tenant and says what holds now.
pub fn run(args: &Args) -> Result<()> {
    let request = Request::Set {
        tenant: args.tenant.clone(),
        share_ppm: args.share,
        memory_bytes: args.memory,
        class: args.class,
    };
    match Client::connect()?.ask(&request)? {
        Reply::Set(granted) => {
            let share = granted.share_ppm.value;
            let share = share.map_or("what others leave".to_owned(), |ppm| Percent(ppm).to_string());
            let memory = granted.memory_bytes.value;
            let memory = memory.map_or("no limit".to_owned(), |bytes| Bytes(bytes).to_string());
            println!("{}: share {share}, memory {memory}, class {}", args.tenant, granted.class.value);
            Ok(())
        }
        other => bail!("the daemon gave an answer to something else: {other:?}"),
    }
}
