//! `cargo xtask bench storm`: many processes that start at once, and how long each waits until it is served.

use std::time::Duration;

use anyhow::{Result, ensure};
use deepres_abi::ledger::MAX_SESSIONS;
use serde::Serialize;

use super::crowd::Crowd;
use crate::build;
use crate::host::{Device, Host};
use crate::process::Interrupt;

/// Within this all must have started, or they were no storm.
const STARTED_LIMIT_S: f64 = 1.0;
/// All must be served within this.
const LIMIT_S: f64 = 3.0;
/// The part of the processes that the stated wait holds for, percent.
const QUANTILE_PERCENT: usize = 99;
const NS_PER_MS: f64 = 1e6;

/// Options of `cargo xtask bench storm`.
#[derive(clap::Args)]
pub struct Options {
    /// Print one JSON object instead of a line.
    #[arg(long)]
    json: bool,
    /// How many processes start.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=1000))]
    processes: u32,
    /// Of how many tenants they are, in turns; 0: of none by name, each is a tenant of its own by its process tree.
    #[arg(long, value_name = "N", default_value_t = 1)]
    tenants: u32,
}

#[derive(Serialize)]
struct Report {
    processes: usize,
    /// From the first start to the last start.
    started_s: f64,
    /// From the first start to the last one's cuInit having returned with a session.
    all_served_s: f64,
    /// cuInit, the handshake with it.
    p99_ms: f64,
}

/// Measures and prints.
pub fn run(options: &Options) -> Result<()> {
    let artefacts = build::artefacts()?;
    let most = u32::try_from(MAX_SESSIONS)?;
    ensure!(
        options.tenants == 0 || options.processes.div_ceil(options.tenants) <= most,
        "a tenant has {most} processes at most: choose more --tenants"
    );
    let interrupt = Interrupt::catch()?;
    let host = Host::start(&artefacts, Device::Simulated { config: None }, &interrupt)?;
    let tenant = |number: u32| number.checked_rem(options.tenants).map(|tenant| format!("storm-{tenant}"));
    let crowd = Crowd::start(&host, &artefacts, options.processes, tenant, &interrupt)?;
    let Crowd { begin_ns, started_ns, ref served, .. } = crowd;

    let last_ns = served.iter().map(|served| served.at_ns).max().unwrap_or(begin_ns);
    let mut waits_ns: Vec<u64> = served.iter().map(|served| served.init_ns).collect();
    waits_ns.sort_unstable();
    let at = (waits_ns.len() * QUANTILE_PERCENT).div_ceil(100).saturating_sub(1);
    let report = Report {
        processes: served.len(),
        started_s: seconds(started_ns - begin_ns),
        all_served_s: seconds(last_ns.saturating_sub(begin_ns)),
        p99_ms: waits_ns[at] as f64 / NS_PER_MS,
    };
    crowd.end()?;
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!(
            "{} processes, started in {:.2} s: all served after {:.2} s (at most {LIMIT_S} s); cuInit took {:.1} ms (99 %)",
            report.processes, report.started_s, report.all_served_s, report.p99_ms
        );
    }
    ensure!(
        report.started_s <= STARTED_LIMIT_S,
        "they started within {:.2} s: this machine is too slow, or too busy, for a storm",
        report.started_s
    );
    ensure!(
        report.all_served_s <= LIMIT_S,
        "all were served after {:.2} s, later than {LIMIT_S} s",
        report.all_served_s
    );
    Ok(())
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}
