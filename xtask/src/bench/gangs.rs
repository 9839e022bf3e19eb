//! `cargo xtask bench gangs`: two tenants with a rank on each of several GPUs, whose kernels spin
//! for each other. The tenants run by turns under deepres and under the simulated GPU's own
//! time-slicing.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use deepres_e2e::gangs::{self, ALLOWED_POINTS, Done, LEAST_OF_TIME_SLICING, NAMES};
use serde::Serialize;

use super::bar;
use super::pieces::{self, As, Client};
use crate::build::{self, Artefacts};
use crate::host::{Device, Host};
use crate::process::Interrupt;

/// Numbers of GPUs of the cells.
const GPUS: [usize; 2] = [2, 4];
/// Shares of both gangs in the cells, percent.
const SHARES: [[u32; 2]; 2] = [[50, 50], [70, 30]];
/// The time of each turn.
const TURN: Duration = Duration::from_secs(5);

/// Options of `cargo xtask bench gangs`.
#[derive(clap::Args)]
pub struct Options {
    /// Number of turns of deepres and of plain time-slicing
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    turns: u32,
}

#[derive(Serialize)]
struct Report {
    cells: Vec<CellReport>,
    worst_steps_ratio: f64,
    worst_error_points: f64,
}

/// The figures of two gangs with these shares on this number of GPUs.
#[derive(Serialize)]
struct CellReport {
    gpus: usize,
    /// Percent.
    shares: [u32; 2],
    steps_per_s: [f64; 2],
    time_slicing_steps_per_s: [f64; 2],
    /// Steps of both gangs together, as a part of their steps under plain time-slicing.
    steps_ratio: f64,
    /// Largest distance of a gang's true share of a GPU from its entitlement, percentage points.
    error_points: f64,
}

struct Bench {
    artefacts: Artefacts,
    client: PathBuf,
    interrupt: Interrupt,
}

/// Measures all cells, and returns the figures.
pub fn run(options: &Options) -> Result<impl super::Report> {
    let artefacts = build::artefacts()?;
    let bench = Bench { artefacts, client: build::c_client(gangs::CLIENT)?, interrupt: Interrupt::catch()? };
    let mut cells = Vec::new();
    for gpus in GPUS {
        let mut plain = Done::nothing(gpus);
        let mut ours = SHARES.map(|_| Done::nothing(gpus));
        for _ in 0..options.turns {
            plain.add(&bench.turn(gpus, None)?);
            for (done, shares) in ours.iter_mut().zip(SHARES) {
                done.add(&bench.turn(gpus, Some(shares))?);
            }
        }
        cells.extend(ours.iter().zip(SHARES).map(|(ours, shares)| CellReport::of(shares, ours, &plain)));
    }
    Ok(Report::of(cells))
}

impl Bench {
    /// Runs both gangs on a host of their own: as tenants with these shares, or without deepres.
    fn turn(&self, gpus: usize, shares: Option<[u32; 2]>) -> Result<Done> {
        let config = build::target().join("deepres/gangs-simgpu.toml");
        fs::write(&config, gangs::simgpu_toml(gpus))
            .with_context(|| format!("cannot write {}", config.display()))?;
        let device = Device::Simulated { config: Some(config) };
        let host = Host::start(&self.artefacts, device, &self.interrupt)?;
        let mut both = Vec::new();
        for (gang, name) in NAMES.into_iter().enumerate() {
            let share = shares.map(|shares| format!("{}%", shares[gang]));
            let ranks = (0..gpus).map(|rank| self.rank(&host, name, share.as_deref(), gpus, rank));
            both.push(ranks.collect::<Result<Vec<_>>>()?);
        }
        self.interrupt.sleep(gangs::SETTLED)?;
        let is_ours = shares.is_some();
        let pids = [pids(&host, NAMES[0], is_ours, &both[0])?, pids(&host, NAMES[1], is_ours, &both[1])?];
        let first = pieces::record(&host)?;
        self.interrupt.sleep(TURN)?;
        let last = pieces::record(&host)?;
        both.iter_mut().flatten().try_for_each(Client::still_runs)?;
        Ok(Done::between(&first, &last, &pids))
    }

    /// Starts a rank of a gang.
    fn rank(&self, host: &Host, name: &str, share: Option<&str>, gpus: usize, rank: usize) -> Result<Client> {
        let arguments = gangs::rank(name, gpus, rank);
        let arguments = arguments.each_ref().map(String::as_str);
        match share {
            Some(share) => {
                let options = ["--name", name, "--share", share];
                pieces::start(host, As::Tenant(&options), &self.client, &arguments)
            }
            None => pieces::start(host, As::Bare, &self.client, &arguments),
        }
    }
}

/// Returns the processes of a gang: those of the tenant `name`, or the clients themselves.
fn pids(host: &Host, name: &str, is_ours: bool, clients: &[Client]) -> Result<Vec<u32>> {
    if !is_ours {
        return clients.iter().map(|client| client.pid(host, As::Bare, name)).collect();
    }
    let ps = host.ps()?;
    let tenant = ps.tenants.iter().find(|tenant| tenant.name == name);
    let tenant = tenant.with_context(|| format!("the daemon knows no tenant {name}"))?;
    ensure!(tenant.sessions.len() == clients.len(), "{name} has {} processes", tenant.sessions.len());
    Ok(tenant.sessions.iter().map(|session| session.pid).collect())
}

impl CellReport {
    fn of(shares: [u32; 2], ours: &Done, plain: &Done) -> Self {
        let (steps_per_s, time_slicing_steps_per_s) = (ours.steps_per_s(), plain.steps_per_s());
        let sum = |steps: [f64; 2]| steps.iter().sum::<f64>();
        Self {
            gpus: ours.kernels_ns.len(),
            shares,
            steps_per_s,
            time_slicing_steps_per_s,
            steps_ratio: sum(steps_per_s) / sum(time_slicing_steps_per_s),
            error_points: ours.error_points(shares),
        }
    }
}

impl Report {
    fn of(cells: Vec<CellReport>) -> Self {
        Self {
            worst_steps_ratio: cells.iter().map(|cell| cell.steps_ratio).fold(f64::INFINITY, f64::min),
            worst_error_points: cells.iter().map(|cell| cell.error_points).fold(0.0, f64::max),
            cells,
        }
    }
}

impl super::Report for Report {
    fn print(&self) {
        println!(
            "{:>4} {:>7} {:>16} {:>16} {:>7} {:>8}",
            "GPUs", "shares", "steps/s", "time-slicing", "ratio", "error"
        );
        let pair = |values: [f64; 2]| format!("{:.0}, {:.0}", values[0], values[1]);
        for cell in &self.cells {
            let shares = format!("{}/{}", cell.shares[0], cell.shares[1]);
            println!(
                "{:>4} {shares:>7} {:>16} {:>16} {:>7.3} {:>6.2} p",
                cell.gpus,
                pair(cell.steps_per_s),
                pair(cell.time_slicing_steps_per_s),
                cell.steps_ratio,
                cell.error_points,
            );
        }
    }

    fn bars(&self) -> Vec<(String, bool)> {
        vec![
            bar(
                "at least 0.9 of the steps of plain time-slicing",
                self.worst_steps_ratio >= LEAST_OF_TIME_SLICING,
            ),
            bar("shares within 3 points", self.worst_error_points <= ALLOWED_POINTS),
        ]
    }
}

#[cfg(test)]
mod tests {
    use simgpu_engine::truth::{Process, ProcessGpu, Snapshot};

    use super::super::Report as _;
    use super::*;

    /// Returns a record of two processes, one of each gang, on two GPUs.
    fn record(at_ns: u64, kernels: [u64; 2], busy_ns: [[u64; 2]; 2]) -> Snapshot {
        let process = |gang: usize| Process {
            pid: gang as u32 + 1,
            start_time: 0,
            comm: String::new(),
            alive: true,
            sm_limit_ppm: None,
            gpus: busy_ns
                .map(|busy_ns| ProcessGpu {
                    kernels: kernels[gang],
                    kernel_busy_ns: busy_ns[gang],
                    ..ProcessGpu::default()
                })
                .to_vec(),
        };
        Snapshot { at_ns, gpus: vec![Default::default(); 2], processes: [0, 1].map(process).into() }
    }

    #[test]
    fn the_figures_are_of_all_turns_and_of_the_gpu_with_the_largest_error() {
        let first = record(0, [10, 20], [[0, 0], [0, 0]]);
        let last = record(1_000_000_000, [210, 220], [[500, 500], [540, 460]]);
        let turn = Done::between(&first, &last, &[vec![1], vec![2]]);
        let mut ours = Done::nothing(2);
        ours.add(&turn);
        ours.add(&turn);
        let plain = Done { steps: [125; 2], ..Done::between(&first, &last, &[vec![1], vec![2]]) };
        let report = Report::of(vec![CellReport::of([50, 50], &ours, &plain)]);
        let cell = &report.cells[0];
        assert_eq!((cell.gpus, cell.steps_per_s), (2, [100.0; 2]));
        assert!((cell.steps_ratio - 0.8).abs() < 1e-9 && (cell.error_points - 4.0).abs() < 1e-9);
        assert!(report.bars().iter().all(|(_, holds)| !holds));
    }

    #[test]
    fn a_report_has_the_keys_that_readers_know() {
        let cell = CellReport {
            gpus: 4,
            shares: [70, 30],
            steps_per_s: [300.0, 150.0],
            time_slicing_steps_per_s: [225.0, 225.0],
            steps_ratio: 1.0,
            error_points: 0.5,
        };
        let expected = serde_json::json!({
            "cells": [
                { "gpus": 4, "shares": [70, 30], "steps_per_s": [300.0, 150.0],
                  "time_slicing_steps_per_s": [225.0, 225.0], "steps_ratio": 1.0, "error_points": 0.5 },
            ],
            "worst_steps_ratio": 1.0,
            "worst_error_points": 0.5,
        });
        assert_eq!(serde_json::to_value(Report::of(vec![cell])).unwrap(), expected);
    }
}
