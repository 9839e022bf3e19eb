//! `deepres explain`: derives a tenant's share, term by term, or explains the choice of GPUs.

use super::{completions, out, plan, ps};
use anyhow::{Result, bail};
use clap_complete::ArgValueCompleter;
use deepres_model::admin::client::Client;
use deepres_model::admin::{
    PlacementStatus, PriorityStatus, Reply, Request, RequestStatus, ShareStatus, TenantStatus, TermStatus,
};
use deepres_model::quantity::{Percent, Time};
use deepres_policy::entitlement::explain::Sum;
use deepres_policy::priority::MIN_VALUE_PPM;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Parts per million in the whole GPU.
const WHOLE_PPM: f64 = deepres_abi::PPM as f64;

/// The least priority value, from 0 to 1.
const LEAST_VALUE: f64 = MIN_VALUE_PPM as f64 / WHOLE_PPM;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The output derives three parts of each GPU. The tenant gets the part `owed` while every tenant that is not \
idle wants the GPU. The tenant gets the part `present` for the demands of the tenants now. The tenant had \
the part `received` in the last second. The terms above each sum add up to the sum. docs/policy.md has the \
rules.

Examples:
  deepres explain train
  deepres explain train --placement
  deepres explain train --json | jq '.gpus[0].owed'")]
pub struct Args {
    /// Tenant, as `deepres ps` shows it; with --placement, all tenants without it
    #[arg(required_unless_present = "placement", add = ArgValueCompleter::new(completions::tenants))]
    tenant: Option<String>,
    /// Show which GPUs the daemon chose (`deepres run --gpus`), and why
    #[arg(long)]
    placement: bool,
    /// Print everything as one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints the derivation of the tenant's share, for each of its GPUs, or the placement.
pub fn run(args: &Args) -> Result<()> {
    match &args.tenant {
        Some(tenant) if !args.placement => explain_share(tenant, args.json),
        _ => explain_placements(args),
    }
}

fn explain_share(name: &str, is_json: bool) -> Result<()> {
    let gpus = match Client::question(&Request::Explain { tenant: name.to_owned() })? {
        Reply::Explained { gpus } => gpus,
        other => bail!(
            "the daemon sent an unexpected reply: {other:?}; use one deepres release for the daemon and this command"
        ),
    };
    let tenants = match Client::question(&Request::Status)? {
        Reply::Status(status) => status.tenants,
        _ => Vec::new(),
    };
    let tenant = tenants.into_iter().find(|tenant| tenant.name == name);
    let granted = tenant.as_ref().and_then(|tenant| tenant.granted);
    let labels = granted.and_then(|granted| granted.labels.value);
    let sms = granted.and_then(|granted| Some((granted.sm_ppm.value?, granted.sm_ppm.rule)));
    let plans = plan::found(name);
    let auto = tenant.as_ref().and_then(|tenant| tenant.sm_auto.clone());
    let accounts = tenant.map(|tenant| tenant.gpus).unwrap_or_default();
    let requests: BTreeMap<usize, RequestStatus> =
        accounts.into_iter().filter_map(|account| Some((account.gpu, account.requests?))).collect();
    out::print(|out| {
        if is_json {
            let sm_ppm = sms.map(|(ppm, _)| ppm);
            let answer = json!({
                "tenant": name, "labels": labels, "sm_ppm": sm_ppm, "sm_auto": auto, "gpus": gpus,
                "requests": requests, "plans": plans
            });
            return writeln!(out, "{answer:#}");
        }
        if let Some(labels) = labels {
            writeln!(out, "{name}, label {labels}")?;
        }
        if let Some((ppm, rule)) = sms {
            writeln!(out, "{name}, {} of the SMs under MPS, {rule}", Percent(ppm))?;
        }
        if let Some(auto) = auto {
            writeln!(out, "{name}, --sm auto: {auto}")?;
        }
        print(name, &gpus, &requests, out)?;
        plans.iter().try_for_each(|found| plan::print_found(found, out))
    })
}

/// Prints the GPUs that the daemon chose for jobs, and why: for one tenant, or for all.
fn explain_placements(args: &Args) -> Result<()> {
    let tenants = match Client::question(&Request::Status)? {
        Reply::Status(status) => status.tenants,
        _ => Vec::new(),
    };
    let is_asked = |tenant: &TenantStatus| args.tenant.as_ref().is_none_or(|name| *name == tenant.name);
    let tenants: Vec<TenantStatus> = tenants.into_iter().filter(is_asked).collect();
    if let (Some(name), true) = (&args.tenant, tenants.is_empty()) {
        bail!("there is no tenant `{name}`; `deepres ps` lists the tenants");
    }
    out::print(|out| {
        if args.json {
            let each = tenants.iter().filter_map(|tenant| {
                let PlacementStatus { gpus, why } = tenant.placement.as_ref()?;
                Some(json!({ "tenant": tenant.name, "gpus": gpus, "why": why }))
            });
            let placements: Vec<_> = each.collect();
            return writeln!(out, "{:#}", json!({ "placements": placements }));
        }
        tenants.iter().try_for_each(|tenant| match &tenant.placement {
            Some(PlacementStatus { gpus, why }) => {
                let gpus: Vec<String> = gpus.iter().map(ToString::to_string).collect();
                writeln!(out, "{}: gpu {}; {why}", tenant.name, gpus.join(", "))
            }
            None => writeln!(out, "{}: the job asked for no number of GPUs, and sees all", tenant.name),
        })
    })
}

fn print(
    tenant: &str,
    gpus: &[ShareStatus],
    requests: &BTreeMap<usize, RequestStatus>,
    out: &mut impl Write,
) -> io::Result<()> {
    if gpus.is_empty() {
        return writeln!(out, "{tenant} has no process on a GPU now, so the daemon owes it no GPU time");
    }
    for share in gpus {
        let ShareStatus { derivation, .. } = share;
        writeln!(out, "{tenant} on gpu {}, class {}:", share.gpu, share.class)?;
        print_priority(&share.priority, out)?;
        print_sum("owed", &derivation.owed, out)?;
        if derivation.owed.terms.is_empty() {
            writeln!(
                out,
                "    best-effort tenants are owed nothing: they have the GPU while no other class wants it"
            )?;
        }
        print_sum("present", &derivation.present, out)?;
        let demand = Percent(derivation.demand_ppm);
        let weight = Percent(derivation.weight_ppm);
        match derivation.water_level {
            _ if derivation.is_idle => {
                writeln!(out, "    the tenant is idle: others have its part until the tenant wants the GPU")?;
            }
            Some(level) => writeln!(
                out,
                "    the lesser of its demand, {demand}, and the product of its weight, {weight}, and the water level, {level:.4}"
            )?,
            None => writeln!(out, "    its demand, {demand}: all tenants have what they want")?,
        }
        let copies = if share.charge_copies { ", copies included" } else { "" };
        writeln!(out, "  received  {} of the last second{copies}", Percent(share.received_ppm))?;
        match share.part_ppm {
            0 => writeln!(
                out,
                "  SMs       counts with all: it does not run under the MPS server whose tenants run at once; or NVML does not list it as a client of MPS; or its kernels fill the GPU; or the configuration has `mps = \"off\"`"
            )?,
            part => writeln!(
                out,
                "  SMs       counts with {}: runs beside tenants of its MPS server whose parts fit",
                Percent(part)
            )?,
        }
        let behind = Time(share.lag_ns.unsigned_abs());
        let lag =
            if share.lag_ns >= 0 { format!("is owed {behind}") } else { format!("had {behind} too much") };
        writeln!(out, "  gate      {}; by the fluid limit, the tenant {lag}", share.gate)?;
        if let Some(slo_ns) = share.slo_ns {
            let slo = Time(slo_ns);
            writeln!(out, "  SLO       {slo}: the SLO makes the tenant's requests due earlier")?;
        }
        if let Some(served) = requests.get(&share.gpu) {
            writeln!(out, "  requests  {}", ps::requests::figures(served))?;
            if let Some(late) = &served.late {
                writeln!(out, "            {}", ps::requests::delays(late))?;
            }
            if let Some(point) = &served.operating_point {
                writeln!(out, "  point     {}", ps::requests::point(point, served.slo_ns))?;
            }
        }
        if let Some(guard) = &share.guard {
            let foreseen =
                guard.foreseen_pause_ns.map_or("unknown".to_owned(), |ns| format!("at least {}", Time(ns)));
            let now = match guard.debt_ns {
                0 => format!("may cost {} more now", Time(guard.credit_ns)),
                debt_ns => format!("must earn back {} first", Time(debt_ns)),
            };
            writeln!(
                out,
                "  guests    may cost the owners {} of the time; cost {} so far, {now}; expected pause: {foreseen}; may keep owners waiting {}",
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
    let terms = [priority.urgency, priority.size, priority.criticality];
    let sum: f64 = terms.iter().map(|term| term.product).sum();
    let from =
        if sum < LEAST_VALUE { "the least value: the sum of these is less" } else { "the sum of these" };
    writeln!(out, "  priority  {value:.4}, {from}; the tenant's weight if it asks for no share")
}

fn print_sum(name: &str, sum: &Sum, out: &mut impl Write) -> io::Result<()> {
    for term in &sum.terms {
        let sign = if term.ppm < 0 { "-" } else { "+" };
        let part = u32::try_from(term.ppm.unsigned_abs()).unwrap_or(u32::MAX);
        writeln!(out, "    {sign}{:<9} {}", Percent(part).to_string(), term.what)?;
    }
    writeln!(out, "  {name:<9} {}", Percent(sum.ppm))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(criticality: f64, value_ppm: u32) -> String {
        let term = |value| TermStatus { weight: 0.4, value, product: 0.4 * value };
        let priority = PriorityStatus {
            value_ppm,
            urgency: term(0.0),
            size: term(0.0),
            criticality: term(criticality),
            deadline_in_ns: None,
            declared_size_ns: None,
            used_ns: 0,
            demand_ppm: 0,
            memory_ppm: 0,
        };
        let mut out = Vec::new();
        print_priority(&priority, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_priority_value_is_called_the_sum_of_its_terms_only_where_it_is() {
        assert!(
            said(0.5, 200_000)
                .ends_with("0.2000, the sum of these; the tenant's weight if it asks for no share\n")
        );
        let least = said(0.01, MIN_VALUE_PPM);
        assert!(least.contains("priority  0.0100, the least value: the sum of these is less;"), "{least}");
    }
}
