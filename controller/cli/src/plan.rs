//! `deepres plan`: the kernels that a tenant repeats, and the plans that the daemon found.

use super::{completions, out};
use anyhow::{Result, bail};
use clap_complete::ArgValueCompleter;
use deepres_model::admin::client::Client;
use deepres_model::admin::plan::{
    DeploymentStatus, FoundStatus, IterationStatus, KernelStatus, MOST_LEARN_MS, PlanStatus,
    PredictionStatus, Stage,
};
use deepres_model::admin::{Reply, Request};
use deepres_model::quantity::Time;
use std::io::{self, Write};
use std::thread;
use std::time::Duration;

/// Pause between two questions whether the daemon has learned the tenant.
const LOOK: Duration = Duration::from_millis(100);
/// The time of a recording if the command line gives none, ms.
const USUAL_MS: &str = "5000";
/// The most kernels that the text shows. The JSON has all.
const SHOWN: usize = 40;
/// A part, in percent.
const PERCENT: f64 = 100.0;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A program that trains or serves repeats its kernels. `learn` lets the daemon record the tenant's launches for \
some seconds, and find the repetition. If tenants with parts of the SMs under MPS share a GPU, the daemon \
searches a plan for those that it knows. `on` lets the tenants follow the plan, and `off` ends it. The daemon \
measures the tenants with and without the plan by turns, and drops a plan that is not better \
(docs/granularity.md).

Examples:
  deepres plan learn train
  deepres plan learn serve --ms 20000
  deepres plan on train
  deepres plan show train --json | jq '.iteration.period_ns'")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Record a tenant for some time, and learn the kernels that it repeats
    Learn {
        /// Tenant, as `deepres ps` shows it
        #[arg(add = ArgValueCompleter::new(completions::tenants))]
        tenant: String,
        /// Longest time of the recording, ms; it takes three iterations or more to learn one
        #[arg(long, default_value = USUAL_MS, value_parser = clap::value_parser!(u64).range(1..=MOST_LEARN_MS))]
        ms: u64,
    },
    /// Show the kernels that a tenant repeats, and the plans that the daemon found
    Show {
        /// Tenant, as `deepres ps` shows it
        #[arg(add = ArgValueCompleter::new(completions::tenants))]
        tenant: String,
        /// Print everything as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Let the tenant and others follow the plan that the daemon found for them
    On {
        /// Tenant, as `deepres ps` shows it
        #[arg(add = ArgValueCompleter::new(completions::tenants))]
        tenant: String,
    },
    /// End the plan that the tenant follows
    Off {
        /// Tenant, as `deepres ps` shows it
        #[arg(add = ArgValueCompleter::new(completions::tenants))]
        tenant: String,
    },
}

/// Learns a tenant, or shows what the daemon knows of it.
pub fn run(args: &Args) -> Result<()> {
    let mut client = Client::connect()?;
    match &args.command {
        Command::Learn { tenant, ms } => learn(&mut client, tenant, *ms),
        Command::Show { tenant, json } => {
            let status = ask(&mut client, &Request::PlanShow { tenant: tenant.clone() })?;
            out::print(|out| match *json {
                true => {
                    serde_json::to_writer_pretty(&mut *out, &status)?;
                    writeln!(out)
                }
                false => print(&status, out),
            })
        }
        Command::On { tenant } => {
            let status = ask(&mut client, &Request::PlanOn { tenant: tenant.clone() })?;
            out::print(|out| status.plans.iter().try_for_each(|found| print_found(found, out)))
        }
        Command::Off { tenant } => {
            ask(&mut client, &Request::PlanOff { tenant: tenant.clone() })?;
            out::say(format_args!("{tenant}: no tenant follows the plan any more"))
        }
    }
}

fn ask(client: &mut Client, request: &Request) -> Result<PlanStatus> {
    match client.ask(request)? {
        Reply::Plan(status) => Ok(*status),
        other => bail!(
            "the daemon sent an unexpected reply: {other:?}; use one deepres release for the daemon and this command"
        ),
    }
}

/// Lets the daemon record the tenant, and waits until the daemon has learned it.
fn learn(client: &mut Client, tenant: &str, ms: u64) -> Result<()> {
    let mut status = ask(client, &Request::PlanLearn { tenant: tenant.to_owned(), ms })?;
    while status.recording {
        thread::sleep(LOOK);
        status = ask(client, &Request::PlanShow { tenant: tenant.to_owned() })?;
    }
    match (&status.iteration, status.why_unknown) {
        (Some(iteration), _) => out::say(format_args!("{tenant}: {}", summary(iteration))),
        (None, why) => {
            bail!("{tenant}: {}", why.unwrap_or_else(|| "the daemon knows no iteration".to_owned()))
        }
    }
}

/// Returns the plans that the daemon found for a tenant. A daemon that does not answer has none,
/// and so has a user who may not administer the daemon.
pub fn found(tenant: &str) -> Vec<FoundStatus> {
    let status = Client::connect()
        .ok()
        .and_then(|mut client| ask(&mut client, &Request::PlanShow { tenant: tenant.to_owned() }).ok());
    status.map(|status| status.plans).unwrap_or_default()
}

fn summary(iteration: &IterationStatus) -> String {
    let IterationStatus { purpose, period_ns, repeats, launches, explained, .. } = iteration;
    let purpose = match purpose.as_str() {
        "training" => "a training step",
        "inference" => "a request",
        _ => "an iteration (training or inference: not known)",
    };
    let period = match *period_ns {
        0 => "a time that is not known".to_owned(),
        ns => Time(ns).to_string(),
    };
    format!(
        "{purpose} has {} kernels and takes {period}; seen {repeats} times, in {explained} of {launches} launches",
        iteration.kernels.len()
    )
}

fn print(status: &PlanStatus, out: &mut impl Write) -> io::Result<()> {
    let PlanStatus { tenant, recording, why_unknown, iteration, plans } = status;
    if *recording {
        writeln!(out, "{tenant}: the daemon records the tenant now")?;
    }
    if let Some(why) = why_unknown {
        writeln!(out, "{tenant}: no iteration is known: {why}")?;
    }
    if let Some(iteration) = iteration {
        writeln!(out, "{tenant}: {}", summary(iteration))?;
        print_iteration(iteration, out)?;
    }
    plans.iter().try_for_each(|found| print_found(found, out))
}

fn print_iteration(iteration: &IterationStatus, out: &mut impl Write) -> io::Result<()> {
    let IterationStatus { idle_ns, lost, unknown_times, unknown_widths, kernels, .. } = iteration;
    writeln!(out, "  idle       {} of an iteration", Time(*idle_ns))?;
    for (count, what) in [
        (*unknown_times as u64, "kernels whose times are not measured"),
        (*unknown_widths as u64, "kernels whose widths are not known"),
        (*lost, "launches lost while the daemon recorded"),
    ] {
        if count > 0 {
            writeln!(out, "  not known  {count} {what}")?;
        }
    }
    writeln!(
        out,
        "  {:>6} {:>6} {:>12} {:>7} {:>12}  KERNEL",
        "PLACE", "STREAM", "TIME", "WIDTH", "IDLE BEFORE"
    )?;
    let unknown = || "?".to_owned();
    for (place, kernel) in kernels.iter().enumerate().take(SHOWN) {
        let KernelStatus { name, key, stream, duration_ns, width_percent, idle_ns, joins, .. } = kernel;
        let time = duration_ns.map_or_else(unknown, |ns| Time(ns).to_string());
        let width = width_percent.map_or_else(unknown, |percent| format!("{percent:.1}%"));
        let idle = if *idle_ns == 0 { "-".to_owned() } else { Time(*idle_ns).to_string() };
        let name = name.clone().unwrap_or_else(|| format!("{key:016x}"));
        let joins = if *joins { " (after all before it)" } else { "" };
        writeln!(out, "  {place:>6} {stream:>6} {time:>12} {width:>7} {idle:>12}  {name}{joins}")?;
    }
    if kernels.len() > SHOWN {
        writeln!(out, "  … {} more: --json shows all", kernels.len() - SHOWN)?;
    }
    Ok(())
}

/// Prints the result of a search for a plan.
pub fn print_found(found: &FoundStatus, out: &mut impl Write) -> io::Result<()> {
    let FoundStatus { gpu, tenants, why_none, plan, deployment } = found;
    let of = format!("gpu {gpu}, {}", tenants.join(" and "));
    let Some(plan) = plan else {
        let why = why_none.as_deref().unwrap_or("the daemon searches still");
        return writeln!(out, "  plan       {of}: none: {why}");
    };
    let PredictionStatus {
        pays, gain, in_order_gain, unplanned_ns, planned_ns, bound_ns, cost_ns, cuts, ..
    } = plan;
    if !pays {
        return writeln!(
            out,
            "  plan       {of}: none pays: an iteration of each takes {}, and {} at the least",
            Time(*unplanned_ns),
            Time(*bound_ns)
        );
    }
    writeln!(
        out,
        "  plan       {of}: predicted {} instead of {} ({:.1} % less; bound {}), with {} cuts that cost {}",
        Time(*planned_ns),
        Time(*unplanned_ns),
        PERCENT * gain,
        Time(*bound_ns),
        cuts.len(),
        Time(*cost_ns)
    )?;
    writeln!(
        out,
        "  in order   {:.1} % less, if the SMs go to kernels in the order of launch, as under MPS",
        PERCENT * in_order_gain
    )?;
    let followed = match (deployment, tenants.first()) {
        (Some(deployment), _) => followed(deployment),
        (None, Some(first)) => format!("no; `deepres plan on {first}` lets the tenants follow the plan"),
        (None, None) => return Ok(()),
    };
    writeln!(out, "  followed   {followed}")
}

/// Says how tenants follow a plan.
fn followed(deployment: &DeploymentStatus) -> String {
    let DeploymentStatus { stage, follows, why, pairs, gain, noise } = deployment;
    let stage = match stage {
        Stage::Trial => "on trial",
        Stage::Kept => "kept",
        Stage::Dropped => "dropped",
    };
    let measured = match gain.zip(*noise) {
        Some((gain, noise)) => {
            format!(
                "; measured {:+.1} % ± {:.1} % work, in {pairs} pairs of stints",
                PERCENT * gain,
                PERCENT * noise
            )
        }
        None => format!("; measured {pairs} pairs of stints"),
    };
    let now = if *follows { "; in force now" } else { "" };
    let why = why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    format!("{stage}{why}{measured}{now}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(name: Option<&str>, duration_ns: Option<u64>) -> KernelStatus {
        KernelStatus {
            name: name.map(str::to_owned),
            key: 0xab,
            stream: 0,
            duration_ns,
            width_percent: duration_ns.map(|_| 52.5),
            pause_ns: 0,
            idle_ns: 0,
            joins: false,
        }
    }

    fn said(status: &PlanStatus) -> String {
        let mut out = Vec::new();
        print(status, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_plan_is_said_with_its_stage_its_reason_and_its_figures() {
        let trial = DeploymentStatus {
            stage: Stage::Trial,
            follows: true,
            why: None,
            pairs: 2,
            gain: None,
            noise: None,
        };
        assert_eq!(followed(&trial), "on trial; measured 2 pairs of stints; in force now");
        let dropped = DeploymentStatus {
            stage: Stage::Dropped,
            follows: false,
            why: Some("`a` departed".to_owned()),
            pairs: 4,
            gain: Some(-0.012),
            noise: Some(0.005),
        };
        let said = followed(&dropped);
        assert_eq!(said, "dropped: `a` departed; measured -1.2 % ± 0.5 % work, in 4 pairs of stints");
    }

    #[test]
    fn a_plan_is_said_with_its_gain_by_both_rules_of_sharing() {
        let plan = PredictionStatus {
            pays: true,
            installed: false,
            gain: 0.25,
            in_order_gain: 0.125,
            sequential_ns: 20_000,
            unplanned_ns: 16_000,
            planned_ns: 12_000,
            bound_ns: 10_000,
            cost_ns: 1_000,
            longest_wait_ns: 0,
            cuts: Vec::new(),
        };
        let tenants = vec!["a".to_owned(), "b".to_owned()];
        let found = FoundStatus { gpu: 0, tenants, why_none: None, plan: Some(plan), deployment: None };
        let mut out = Vec::new();
        print_found(&found, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("(25.0 % less;") && text.contains("in order   12.5 % less"), "{text}");
    }

    #[test]
    fn an_iteration_says_which_of_its_facts_are_not_known() {
        let iteration = IterationStatus {
            learned_ns: 1,
            process: None,
            purpose: "unknown".to_owned(),
            period_ns: 0,
            idle_ns: 3_000,
            repeats: 4,
            launches: 10,
            explained: 8,
            lost: 2,
            unknown_times: 1,
            unknown_widths: 1,
            kernels: vec![kernel(Some("gemm"), Some(2_000)), kernel(None, None)],
        };
        let tenants = vec!["a".into(), "b".into()];
        let none = FoundStatus { gpu: 0, tenants, why_none: None, plan: None, deployment: None };
        let mut status = PlanStatus {
            tenant: "a".to_owned(),
            recording: false,
            why_unknown: None,
            iteration: Some(iteration),
            plans: vec![none],
        };
        let text = said(&status);
        for part in [
            "a: an iteration (training or inference: not known) has 2 kernels and takes a time that is not known",
            "not known  1 kernels whose times are not measured",
            "not known  2 launches lost",
            "52.5%            -  gemm",
            "?            -  00000000000000ab",
            "plan       gpu 0, a and b: none: the daemon searches still",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        status.iteration = None;
        status.why_unknown = Some("it launched nothing".to_owned());
        assert!(said(&status).contains("no iteration is known: it launched nothing"));
    }
}
