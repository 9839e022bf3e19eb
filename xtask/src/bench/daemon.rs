//! `cargo xtask bench daemon`: the daemon's cost while many idle programs are connected.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

use super::bar;
use super::crowd::Crowd;
use crate::build;
use crate::host::{Device, Host};
use crate::process::Interrupt;

/// The most CPU time of the daemon, percent of a core.
const LIMIT_CPU_PERCENT: f64 = 1.0;
/// The most resident memory of the daemon, MiB.
const LIMIT_RESIDENT_MIB: f64 = 64.0;
/// Number of sessions of each tenant.
const SESSIONS_PER_TENANT: u32 = 10;
/// Time from the start of the last session until the daemon is at rest.
const SETTLE: Duration = Duration::from_secs(2);
/// Clock ticks of /proc per second, the same on every Linux of x86-64.
const TICKS_PER_S: f64 = 100.0;
const KIB_PER_MIB: f64 = 1024.0;

/// Options of `cargo xtask bench daemon`.
#[derive(clap::Args)]
pub struct Options {
    /// Number of programs to start, with a session each
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    sessions: u32,
    /// Time to watch the daemon, in seconds
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
}

#[derive(Serialize)]
struct Report {
    sessions: usize,
    /// Number of tenants.
    tenants: usize,
    /// Number of GPUs. Each session sees all GPUs.
    gpus: usize,
    seconds: f64,
    cpu_percent: f64,
    resident_mib: f64,
    /// Time until all sessions were served, s.
    all_served_s: f64,
}

/// Measures the daemon, and returns the figures.
pub fn run(options: &Options) -> Result<impl super::Report> {
    let artefacts = build::artefacts()?;
    let interrupt = Interrupt::catch()?;
    raise_descriptors()?;
    let host = Host::start(&artefacts, Device::Simulated { config: None }, &interrupt)?;
    let began = Instant::now();
    let tenant = |number| Some(format!("tenant-{}", number / SESSIONS_PER_TENANT));
    let crowd = Crowd::start(&host, &artefacts, options.sessions, tenant, |_| None, &interrupt)?;
    let all_served_s = began.elapsed().as_secs_f64();

    interrupt.sleep(SETTLE)?;
    let (before, begin) = (cpu_s(host.daemon_pid())?, Instant::now());
    interrupt.sleep(Duration::from_secs(u64::from(options.seconds)))?;
    let seconds = begin.elapsed().as_secs_f64();
    let cpu_percent = (cpu_s(host.daemon_pid())? - before) * 100.0 / seconds;
    let resident_mib = resident_mib(host.daemon_pid())?;
    let ps = host.ps()?;
    crowd.end()?;

    Ok(Report {
        sessions: options.sessions as usize,
        tenants: ps.tenants.len(),
        gpus: ps.gpus.len(),
        seconds,
        cpu_percent,
        resident_mib,
        all_served_s,
    })
}

impl super::Report for Report {
    const IS_ALWAYS_CHECKED: bool = true;

    fn print(&self) {
        let Self { sessions, tenants, cpu_percent, resident_mib, .. } = self;
        println!(
            "{sessions} idle programs of {tenants} tenants: {cpu_percent:.2} % of a core (at most {LIMIT_CPU_PERCENT} %), {resident_mib:.1} MiB resident (at most {LIMIT_RESIDENT_MIB} MiB)"
        );
    }

    fn bars(&self) -> Vec<(String, bool)> {
        vec![
            bar("the daemon's CPU time", self.cpu_percent <= LIMIT_CPU_PERCENT),
            bar("the daemon's resident memory", self.resident_mib <= LIMIT_RESIDENT_MIB),
        ]
    }
}

/// Raises this process's number of descriptors, and that of its children.
pub fn raise_descriptors() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .context("cannot raise the number of descriptors")
}

/// Returns the CPU time of a process so far, seconds.
pub fn cpu_s(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("the daemon is gone")?;
    let (_, fields) = stat.rsplit_once(')').context("an unknown stat line")?;
    // utime and stime are the 14th and 15th field of proc(5). Two fields precede the parenthesis,
    // so these are the fields 12 and 13 here.
    let times = fields.split_ascii_whitespace().skip(11).take(2);
    let ticks: u64 = times.map(str::parse::<u64>).sum::<Result<u64, _>>().context("an unknown stat line")?;
    Ok(ticks as f64 / TICKS_PER_S)
}

fn resident_mib(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("the daemon is gone")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse().context("an unknown VmRSS")?;
    Ok(kib / KIB_PER_MIB)
}
