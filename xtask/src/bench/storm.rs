//! `cargo xtask bench storm`: many processes that start at once, and how long each waits until it is served.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use deepres_abi::ledger::MAX_SESSIONS;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::host::{Device, Host};
use crate::process::{Interrupt, Running};
use crate::{build, command};

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

/// What a process says once it is served.
#[derive(Deserialize)]
struct Served {
    init_ns: u64,
    at_ns: u64,
}

/// Measures and prints.
pub fn run(options: &Options) -> Result<()> {
    let artefacts = build::artefacts()?;
    let most = u32::try_from(MAX_SESSIONS)?;
    ensure!(
        options.tenants == 0 || options.processes.div_ceil(options.tenants) <= most,
        "a tenant has {most} processes at most: choose more --tenants"
    );
    let client = build::c_client("boot")?;
    let interrupt = Interrupt::catch()?;
    let host = Host::start(&artefacts, Device::Simulated { config: None }, &interrupt)?;
    // The simulated GPU is made by whoever comes first; that is not what is measured.
    command::run(host.command(&client).stdin(Stdio::null()).stdout(Stdio::null()))?;

    let begin_ns = now_ns();
    let mut running = Vec::new();
    for number in 0..options.processes {
        interrupt.check()?;
        let mut process = host.command(&client);
        process.env("LD_PRELOAD", artefacts.library()).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(tenant) = number.checked_rem(options.tenants) {
            process.env("DEEPRES_TENANT", format!("storm-{tenant}"));
        }
        running.push(Running::start(&mut process)?);
    }
    let started_ns = now_ns();
    let served = running.iter_mut().map(served).collect::<Result<Vec<_>>>()?;
    let sessions: usize = host.ps()?.tenants.iter().map(|tenant| tenant.sessions.len()).sum();
    ensure!(sessions == running.len(), "of {} processes only {sessions} have a session", running.len());
    for mut process in running {
        drop(process.child().stdin.take());
        process.finish()?;
    }

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
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!(
            "{} processes, started in {:.2} s: all served after {:.2} s (at most {LIMIT_S} s); cuInit took {:.1} ms (99 %)",
            report.processes, report.started_s, report.all_served_s, report.p99_ms
        );
    }
    ensure!(
        report.all_served_s <= LIMIT_S,
        "all were served after {:.2} s, later than {LIMIT_S} s",
        report.all_served_s
    );
    Ok(())
}

fn served(process: &mut Running) -> Result<Served> {
    let output = process.child().stdout.take().context("the output was piped")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    if line.is_empty() {
        bail!("said nothing: {}", process.shown());
    }
    serde_json::from_str(&line).with_context(|| format!("not understood: {line} from {}", process.shown()))
}

/// The clock that the clients read too.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32).as_nanos() as u64
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}
