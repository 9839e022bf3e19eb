//! `cargo xtask bench share`: measures shares of GPU time and the cost of sharing. The simulated
//! GPU's record gives the true figures.

mod cell;
mod pauses;
mod tenants;

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Serialize, Serializer};

use self::cell::{Cell, Measured, Tenant};
use self::pauses::PairReport;
use self::tenants::Bench;
use super::bar;
use crate::build;
use crate::process::Interrupt;

/// Shares of the tenants, percent.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shares(&'static [u32]);

impl Shares {
    const ALL: [Self; 5] =
        [Self(&[10, 90]), Self(&[25, 75]), Self(&[50, 50]), Self(&[70, 30]), Self(&[10, 20, 70])];
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, percent) in self.0.iter().enumerate() {
            write!(f, "{}{percent}", if place > 0 { "/" } else { "" })?;
        }
        Ok(())
    }
}

impl Serialize for Shares {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn shares(text: &str) -> Result<Shares, String> {
    Shares::ALL
        .into_iter()
        .find(|shares| shares.to_string() == text)
        .ok_or_else(|| format!("one of {}", Shares::ALL.map(|shares| shares.to_string()).join(", ")))
}

/// Work of the tenants. All of them are backlogged, except those with pauses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Workload {
    /// Kernels of 0.2 ms, with a wait after every hundred
    SmallKernels,
    /// Kernels of 5 ms, with a wait after each
    LongKernels,
    /// Graphs of 40 kernels of 0.2 ms
    GraphReplays,
    /// Four processes for each tenant, with kernels of 1 ms
    FourProcesses,
    /// Different work for each tenant: small kernels, long kernels, graphs
    Mixed,
    /// 1 ms of work and 0.5 ms on the host: beside kernels of 12 ms, and beside itself, with equal
    /// shares
    WithPauses,
}

impl Workload {
    const PURE: [Self; 3] = [Self::SmallKernels, Self::LongKernels, Self::GraphReplays];

    /// Returns the work of the tenant at this place of the cell.
    fn of_tenant(self, place: usize) -> Self {
        match self {
            Self::Mixed => Self::PURE[place % Self::PURE.len()],
            same => same,
        }
    }
}

/// Options of `cargo xtask bench share`.
#[derive(clap::Args)]
pub struct Options {
    /// Time to measure each cell, in seconds
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = super::seconds)]
    seconds: f64,
    /// Measure only these shares, for instance 10/90,50/50
    #[arg(long, value_delimiter = ',', value_parser = shares)]
    shares: Vec<Shares>,
    /// Measure only these workloads
    #[arg(long, value_delimiter = ',')]
    workload: Vec<Workload>,
    /// Use a GPU that is hard to meter. Event records cost 2 µs, event times have steps of 0.5 µs,
    /// and the clock drifts by 50 ppm
    #[arg(long)]
    hard: bool,
}

#[derive(Serialize)]
struct Report {
    cells: Vec<CellReport>,
    with_pauses: Vec<PairReport>,
    alone: Vec<AloneReport>,
    mean_error_points: f64,
    worst_error_points: f64,
    worst_throughput_ratio: f64,
}

/// Figures of one tenant without other tenants.
#[derive(Serialize)]
struct AloneReport {
    workload: Workload,
    /// The tenant's GPU time, divided by its GPU time without deepres.
    alone_ratio: f64,
}

#[derive(Serialize)]
struct CellReport {
    shares: Shares,
    workload: Workload,
    /// Largest distance of a tenant's true share from its entitlement, percentage points.
    error_points: f64,
    /// Largest error of a tenant's meter, percentage points. An error is a difference between
    /// metered and true time. The error is a part of all used GPU time or of the elapsed time,
    /// whichever is larger.
    meter_error_points: f64,
    /// Kernel time of all tenants, divided by the kernel time of one tenant alone with the same
    /// work.
    throughput_ratio: f64,
    /// Least part of the time in which every tenant had work running or waiting.
    gpu_bound_fraction: f64,
}

/// Measures all cells, and returns the figures. Prints each figure at once: on standard error if
/// standard output is for JSON.
pub fn run(options: &Options, is_json: bool) -> Result<impl super::Report> {
    let artefacts = build::artefacts()?;
    let client = build::c_client("pace")?;
    let interrupt = Interrupt::catch()?;
    let bench = Bench { artefacts, client, interrupt, seconds: options.seconds, is_hard: options.hard };
    let chosen_shares = if options.shares.is_empty() { Shares::ALL.to_vec() } else { options.shares.clone() };
    let chosen_workloads = if options.workload.is_empty() {
        Workload::value_variants().to_vec()
    } else {
        options.workload.clone()
    };

    let say = |line: &str| if is_json { eprintln!("{line}") } else { println!("{line}") };
    let mut cells = Vec::new();
    say(&format!(
        "{:<10} {:<15} {:>8} {:>8} {:>11} {:>10} {:>6}",
        "shares", "workload", "error", "meter", "throughput", "GPU-bound", "load"
    ));
    let mut alone = Vec::new();
    let mut with_pauses = Vec::new();
    for workload in chosen_workloads {
        if workload == Workload::WithPauses {
            for (beside, programs) in pauses::PAIRS {
                let report = pauses::measure(&bench, beside, &programs)?;
                say(&format!("with pauses, {}, load {}", report.line(), load()));
                with_pauses.push(report);
            }
            continue;
        }
        if Workload::PURE.contains(&workload) {
            let alone_ratio = bench.alone_ratio(&Tenant::alone(workload))?;
            say(&format!("{:<10} {:<15} {alone_ratio:.4} of the bare driver", "alone", name(workload)));
            alone.push(AloneReport { workload, alone_ratio });
        }
        for &shares in &chosen_shares {
            let report = measure(&bench, shares, workload)?;
            let line = format!(
                "{shares:<10} {:<15} {:>6.2} p {:>6.2} p {:>10.3} {:>9.1}% {:>6}",
                name(workload),
                report.error_points,
                report.meter_error_points,
                report.throughput_ratio,
                report.gpu_bound_fraction * 100.0,
                load(),
            );
            say(&line);
            cells.push(report);
        }
    }
    Ok(Report::of(cells, with_pauses, alone))
}

fn name(workload: Workload) -> String {
    workload.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Returns the machine's load, because figures of shares mean less on a busy machine.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("?").to_owned()
}

fn measure(bench: &Bench, shares: Shares, workload: Workload) -> Result<CellReport> {
    let mut alone = BTreeMap::new();
    // Each cell also measures the tenants alone. So if the machine gets busy, both figures change.
    // The sum weights each tenant's use alone by its share.
    let mut used_alone = 0.0;
    for (place, percent) in shares.0.iter().enumerate() {
        let part = workload.of_tenant(place);
        let used = match alone.get(&part) {
            Some(used) => *used,
            None => {
                let used = bench.measure(&Cell::alone(part))?.used_fraction();
                alone.insert(part, used);
                used
            }
        };
        used_alone += used * f64::from(*percent) / 100.0;
    }
    let measured: Measured = bench.measure(&Cell::of(shares, workload))?;
    Ok(CellReport {
        shares,
        workload,
        error_points: measured.error_points(),
        meter_error_points: measured.meter_error_points(),
        throughput_ratio: measured.used_fraction() / used_alone,
        gpu_bound_fraction: measured.bound_fraction,
    })
}

impl super::Report for Report {
    fn print(&self) {
        if self.cells.is_empty() {
            return;
        }
        println!(
            "\nerror {:.2} points in the mean, {:.2} at worst; throughput at worst {:.3} of one tenant alone",
            self.mean_error_points, self.worst_error_points, self.worst_throughput_ratio
        );
    }

    fn bars(&self) -> Vec<(String, bool)> {
        let is_unhindered = self.alone.iter().all(|alone| alone.alone_ratio >= 0.995);
        let of_cells = self.cells.iter().map(|cell| cell.meter_error_points);
        let of_pairs = self.with_pauses.iter().map(|pair| pair.meter_error_points);
        let is_metered = of_cells.chain(of_pairs).all(|points| points <= 1.0);
        let has_its_part = self.with_pauses.iter().all(PairReport::is_near);
        vec![
            bar("a mean error of at most 0.2 points", self.mean_error_points <= 0.2),
            bar("errors of at most 1.5 points", self.worst_error_points <= 1.5),
            bar("a meter within 1 point", is_metered),
            bar("at least 0.98 of the throughput of one tenant alone", self.worst_throughput_ratio >= 0.98),
            bar("alone, at least 0.995 of the bare driver", is_unhindered),
            bar("with pauses, within 3 points of the fluid limit or of the bound", has_its_part),
        ]
    }
}

impl Report {
    fn of(cells: Vec<CellReport>, with_pauses: Vec<PairReport>, alone: Vec<AloneReport>) -> Self {
        let errors = || cells.iter().map(|cell| cell.error_points);
        Self {
            mean_error_points: errors().sum::<f64>() / cells.len().max(1) as f64,
            worst_error_points: errors().fold(0.0, f64::max),
            worst_throughput_ratio: cells
                .iter()
                .map(|cell| cell.throughput_ratio)
                .fold(f64::INFINITY, f64::min),
            cells,
            with_pauses,
            alone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_named_as_they_are_read() {
        for known in Shares::ALL {
            assert!(shares(&known.to_string()).is_ok_and(|read| read == known));
            assert_eq!(known.0.iter().sum::<u32>(), 100, "{known}");
        }
        assert!(shares("10/80").is_err_and(|error| error.contains("10/20/70")));
    }

    #[test]
    fn a_report_has_the_keys_that_readers_know() {
        let cell = |error_points, throughput_ratio| CellReport {
            shares: Shares::ALL[4],
            workload: Workload::FourProcesses,
            error_points,
            meter_error_points: 0.5,
            throughput_ratio,
            gpu_bound_fraction: 1.0,
        };
        let alone = AloneReport { workload: Workload::GraphReplays, alone_ratio: 0.999 };
        let report = Report::of(vec![cell(1.0, 0.99), cell(3.0, 0.98)], Vec::new(), vec![alone]);
        let json = serde_json::to_value(report).unwrap();
        let expected = serde_json::json!({
            "cells": [
                { "shares": "10/20/70", "workload": "four-processes", "error_points": 1.0, "meter_error_points": 0.5,
                  "throughput_ratio": 0.99, "gpu_bound_fraction": 1.0 },
                { "shares": "10/20/70", "workload": "four-processes", "error_points": 3.0, "meter_error_points": 0.5,
                  "throughput_ratio": 0.98, "gpu_bound_fraction": 1.0 },
            ],
            "with_pauses": [],
            "alone": [{ "workload": "graph-replays", "alone_ratio": 0.999 }],
            "mean_error_points": 2.0,
            "worst_error_points": 3.0,
            "worst_throughput_ratio": 0.98,
        });
        assert_eq!(json, expected);
    }
}
