//! `cargo xtask bench storm`: starts many processes at once, and measures how long each waits for
//! its session.

use std::time::Duration;

use anyhow::{Result, ensure};
use deepres_abi::ledger::MAX_SESSIONS;
use serde::Serialize;

use super::crowd::Crowd;
use super::{bar, quantile};
use crate::build;
use crate::host::{Device, Host};
use crate::process::Interrupt;

/// Time within which all processes must have started, s. If the start takes longer, the benchmark
/// has measured no storm.
const STARTED_LIMIT_S: f64 = 1.0;
/// Time within which all processes must have a session, s.
const LIMIT_S: f64 = 3.0;
const NS_PER_MS: f64 = 1e6;

/// Options of `cargo xtask bench storm`.
#[derive(clap::Args)]
pub struct Options {
    /// Number of processes to start
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=1000))]
    processes: u32,
    /// Number of tenants over which the processes are spread. With 0 no tenant is named, and each
    /// process is a tenant of its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    tenants: u32,
}

#[derive(Serialize)]
struct Report {
    processes: usize,
    /// Time from the first start to the last, s.
    started_s: f64,
    /// Time from the first start until the last process's cuInit returned with a session, s.
    all_served_s: f64,
    /// 99th percentile of cuInit with the handshake, ms.
    p99_ms: f64,
}

/// Starts the processes, measures their waits, and returns the figures.
pub fn run(options: &Options) -> Result<impl super::Report> {
    let artefacts = build::artefacts()?;
    let most = u32::try_from(MAX_SESSIONS)?;
    ensure!(
        options.tenants == 0 || options.processes.div_ceil(options.tenants) <= most,
        "a tenant has {most} processes at most; choose more --tenants"
    );
    let interrupt = Interrupt::catch()?;
    let host = Host::start(&artefacts, Device::Simulated { config: None }, &interrupt)?;
    let tenant = |number: u32| number.checked_rem(options.tenants).map(|tenant| format!("storm-{tenant}"));
    let crowd = Crowd::start(&host, &artefacts, options.processes, tenant, |_| None, &interrupt)?;
    let Crowd { begin_ns, started_ns, ref served, .. } = crowd;

    let last_ns = served.iter().map(|served| served.at_ns).max().unwrap_or(begin_ns);
    let mut waits_ns: Vec<u64> = served.iter().map(|served| served.init_ns).collect();
    waits_ns.sort_unstable();
    let report = Report {
        processes: served.len(),
        started_s: seconds(started_ns - begin_ns),
        all_served_s: seconds(last_ns.saturating_sub(begin_ns)),
        p99_ms: quantile(&waits_ns, 99).unwrap_or(0) as f64 / NS_PER_MS,
    };
    crowd.end()?;
    Ok(report)
}

impl super::Report for Report {
    const IS_ALWAYS_CHECKED: bool = true;

    fn print(&self) {
        println!(
            "{} processes, started in {:.2} s: all served after {:.2} s (at most {LIMIT_S} s); cuInit took {:.1} ms (99 %)",
            self.processes, self.started_s, self.all_served_s, self.p99_ms
        );
    }

    fn bars(&self) -> Vec<(String, bool)> {
        let started = format!("all start within {STARTED_LIMIT_S} s, or the machine is too busy for a storm");
        vec![
            bar(started, self.started_s <= STARTED_LIMIT_S),
            bar(format!("all are served within {LIMIT_S} s"), self.all_served_s <= LIMIT_S),
        ]
    }
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}
