//! `deepres explain`: how a tenant's share comes about, term by term.

use anyhow::{Result, bail};
use deepres_controller::admin::client::Client;
use deepres_controller::admin::{PriorityStatus, Reply, Request, ShareStatus, TermStatus};
use deepres_controller::policy::entitlement::explain::Sum;
use deepres_controller::quantity::{Percent, Time};
use serde_json::json;
use std::io::{self, Write};

/// Parts per million in the whole GPU.
const WHOLE_PPM: f64 = deepres_abi::PPM as f64;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
OWED is what the tenant gets while all want the GPU that are not idle; PRESENT what that comes to while all want as much as they do \
now; RECEIVED what it had in the last second. The terms of each sum add up to it. docs/policy.md has the rules.

Examples:
  deepres explain train
  deepres explain train --json | jq '.gpus[0].owed'")]
pub struct Args {
    /// The tenant, as `deepres ps` shows it
    tenant: String,
    /// Print everything as one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints how the tenant's share of each of its GPUs comes about.
pub fn run(args: &Args) -> Result<()> {
    let gpus = match Client::connect()?.ask(&Request::Explain { tenant: args.tenant.clone() })? {
        Reply::Explained { gpus } => gpus,
        other => bail!("the daemon gave an answer to something else: {other:?}"),
    };
    let mut out = io::stdout().lock();
    let printed = if args.json {
        let answer = json!({ "tenant": args.tenant, "gpus": gpus });
        serde_json::to_writer_pretty(&mut out, &answer).map_err(io::Error::from).and_then(|()| writeln!(out))
    } else {
        print(&args.tenant, &gpus, &mut out)
    };
    match printed {
        // Whoever reads has seen enough (`deepres explain train | head`).
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => Ok(printed?),
    }
}

fn print(tenant: &str, gpus: &[ShareStatus], out: &mut impl Write) -> io::Result<()> {
    if gpus.is_empty() {
        return writeln!(out, "{tenant} has no process on a GPU now: it is owed nothing until one comes");
    }
    for share in gpus {
        let ShareStatus { derivation, .. } = share;
        writeln!(out, "{tenant} on gpu {}, class {}:", share.gpu, share.class)?;
        print_priority(&share.priority, out)?;
        print_sum("owed", &derivation.owed, out)?;
        if derivation.owed.terms.is_empty() {
            writeln!(out, "    best effort is owed nothing: it has the GPU while no other class wants it")?;
        }
        print_sum("present", &derivation.present, out)?;
        let demand = Percent(derivation.demand_ppm);
        let weight = Percent(derivation.weight_ppm);
        match derivation.water_level {
            _ if derivation.is_idle => {
                writeln!(
                    out,
                    "    it is idle: what it is owed is lent to the others, and is its own again when it wants it"
                )?;
            }
            Some(level) => writeln!(
                out,
                "    the lesser of its demand, {demand}, and of its weight, {weight}, times the water level, {level:.4}"
            )?,
            None => writeln!(out, "    its demand, {demand}: all have what they want")?,
        }
        let copies = if share.charge_copies { ", copies included" } else { "" };
        writeln!(out, "  received  {} of the last second{copies}", Percent(share.received_ppm))?;
        let behind = Time(share.lag_ns.unsigned_abs());
        let side = if share.lag_ns >= 0 { "is owed" } else { "had in advance" };
        writeln!(out, "  gate      {}; it {side} {behind} beside the tenant furthest behind", share.gate)?;
        if let Some(guard) = &share.guard {
            let foreseen = guard
                .foreseen_pause_ns
                .map_or("not known yet".to_owned(), |ns| format!("at least {}", Time(ns)));
            let now = match guard.debt_ns {
                0 => format!("{} more now", Time(guard.credit_ns)),
                debt_ns => format!("of which {} have to be earned back", Time(debt_ns)),
            };
            writeln!(
                out,
                "  guests    may cost {} of the time; cost {} so far, {now}; pauses: {foreseen}; may keep owners waiting {}",
                Percent(guard.max_harm_ppm),
                Time(guard.harm_ns),
                Time(guard.tolerated_ns),
            )?;
        }
    }
    Ok(())
}

fn print_priority(priority: &PriorityStatus, out: &mut impl Write) -> io::Result<()> {
    let mut term = |name: &str, term: &TermStatus, why: String| {
        writeln!(out, "    {:.4} = {:.2} × {name} {:.4}{why}", term.product, term.weight, term.value)
    };
    let value = f64::from(priority.value_ppm) / WHOLE_PPM;
    let urgency = match priority.deadline_in_ns {
        Some(ns) => format!(" (deadline in {}, {} used)", Time(ns), Time(priority.used_ns)),
        None => " (no deadline)".to_owned(),
    };
    let size = match priority.declared_size_ns {
        Some(ns) => format!(" ({} of GPU time, as declared)", Time(ns)),
        None => format!(
            " (demand {}, memory {}, as seen)",
            Percent(priority.demand_ppm),
            Percent(priority.memory_ppm)
        ),
    };
    term("urgency", &priority.urgency, urgency)?;
    term("size", &priority.size, size)?;
    term("criticality", &priority.criticality, String::new())?;
    writeln!(out, "  priority  {value:.4}, the sum of these; it weighs where no share was asked for")
}

fn print_sum(name: &str, sum: &Sum, out: &mut impl Write) -> io::Result<()> {
    for term in &sum.terms {
        let sign = if term.ppm < 0 { "-" } else { "+" };
        let part = u32::try_from(term.ppm.unsigned_abs()).unwrap_or(u32::MAX);
        writeln!(out, "    {sign}{:<9} {}", Percent(part).to_string(), term.what)?;
    }
    writeln!(out, "  {name:<9} {}", Percent(sum.ppm))
}
