//! `cargo xtask eval --report`: writes docs/evaluation.md, which shows each system's own claim
//! beside the figures of deepres. Only the text in this file is written by hand. The figures come
//! from the scenarios.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use deepres_policy::class::Class;

use crate::beside;
use crate::metrics::{self, Row};
use crate::policy::Policy;
use crate::scenario::{self, SECOND, Scenario};

/// Length of the part of a scenario that [`hashes`] runs.
const HASHED_NS: u64 = 20 * SECOND;

/// A figure of a row, and its format.
struct Figure {
    name: &'static str,
    of: fn(&Row) -> Option<f64>,
    decimals: usize,
}

/// A claim, and the scenario with which the page compares it.
struct Comparison {
    system: &'static str,
    claim: &'static str,
    source: &'static str,
    scenario: &'static str,
    policies: &'static [Policy],
    figures: &'static [Figure],
    not_shown: &'static str,
}

/// Returns the work of the first guest, as a part of its work alone.
fn guest_of_standalone(row: &Row) -> Option<f64> {
    row.harvested_fraction?;
    row.tenants.iter().find(|tenant| tenant.class == Class::BestEffort.name()).map(|guest| guest.progress)
}

/// Returns the 99th percentile of answer times, as a multiple of the percentile without guests.
fn p99_ratio(row: &Row) -> Option<f64> {
    let (p99_ms, added_ms) = (row.p99_ms?, row.p99_added_ms?);
    Some(p99_ms / (p99_ms - added_ms))
}

/// Returns the greatest difference between a tenant's part of the GPU and its entitlement,
/// percentage points.
fn worst_share_error(row: &Row) -> Option<f64> {
    /// Percentage points in a whole.
    const POINTS: f64 = 100.0;
    let errors = row.tenants.iter().map(|tenant| (tenant.received - tenant.entitled).abs() * POINTS);
    Some(errors.fold(0.0, f64::max))
}

/// Returns the work of the first tenant, as a part of its work alone.
fn first_of_standalone(row: &Row) -> Option<f64> {
    row.tenants.first().map(|tenant| tenant.progress)
}

const FIRST: Figure = Figure { name: "the client, of standalone", of: first_of_standalone, decimals: 3 };
const THROUGHPUT: Figure = Figure { name: "throughput", of: |row| Some(row.throughput), decimals: 3 };
const JAIN: Figure = Figure { name: "Jain's index", of: |row| Some(row.jain), decimals: 3 };
const LAG: Figure = Figure { name: "longest lag, ms", of: |row| Some(row.max_lag_ms), decimals: 1 };
const LAG_BOUND: Figure = Figure { name: "of at most", of: |row| Some(row.lag_bound_ms), decimals: 1 };
const SPEED: Figure = Figure { name: "production's speed", of: |row| row.production_speed, decimals: 4 };
const HARVEST: Figure =
    Figure { name: "part of the gaps harvested", of: |row| row.harvested_fraction, decimals: 3 };
const GUEST: Figure = Figure { name: "guest, of standalone", of: guest_of_standalone, decimals: 3 };

const COMPARISONS: &[Comparison] = &[
    Comparison {
        system: "DeepRes",
        claim: "Up to 35 % better than static allocation on image classification, object detection and speech recognition that share one GPU, and fairer.",
        source: "the abstract of DeepRes",
        scenario: "three-applications.toml",
        policies: &[Policy::Deepres, Policy::StaticSplit, Policy::TimeSlice, Policy::Mps, Policy::Gps],
        figures: &[
            Figure { name: "progress, × static split", of: |row| Some(row.progress_vs_static), decimals: 2 },
            Figure { name: "progress, of the fluid limit", of: |row| Some(row.progress_vs_gps), decimals: 3 },
            JAIN,
            LAG,
            LAG_BOUND,
        ],
        not_shown: "The phases and kernels of the three applications are ours; the paper's traces are not public. A static split wastes what idles, so the bar is low: the fluid limit is the one to look at.",
    },
    Comparison {
        system: "TGS",
        claim: "A best-effort job beside a production job, with little harm to it. In XSched's table for DL training on a GV100: production 1.03 of alone with 0.125 of standalone harvested by TGS, 1.01 with 0.225 by XSched.",
        source: "TGS, NSDI 2023; XSched, OSDI 2025, its table of DL training",
        scenario: "production-and-best-effort.toml",
        policies: &[Policy::Deepres, Policy::TgsLike, Policy::HamiLike, Policy::TimeSlice, Policy::Mps],
        figures: &[SPEED, HARVEST, GUEST],
        not_shown: "`tgs-like` is a controller after TGS's published code, not TGS; kernels count as many blocks as they are long, which is its best case. How much can be harvested is how much production leaves, so the published figures are of another workload.",
    },
    Comparison {
        system: "TGS, with requests",
        claim: "The same for production that answers requests at random.",
        source: "TGS, NSDI 2023",
        scenario: "bursty-production.toml",
        policies: &[Policy::Deepres, Policy::TgsLike, Policy::HamiLike, Policy::TimeSlice],
        figures: &[
            Figure { name: "median, ms", of: |row| row.p50_ms, decimals: 2 },
            Figure { name: "p99 added, ms", of: |row| row.p99_added_ms, decimals: 2 },
            GUEST,
        ],
        not_shown: "The requests take 5 ms, and the guest's kernels take 1 ms. The guest adds at most one kernel and one hand-off to a request of any length.",
    },
    Comparison {
        system: "Tally",
        claim: "The 99th percentile of an inference service beside a best-effort trainer is 1.048 of that alone in the mean, 1.099 at worst.",
        source: "Tally, ASPLOS 2025",
        scenario: "long-requests.toml",
        policies: &[Policy::Deepres, Policy::TgsLike, Policy::TimeSlice],
        figures: &[Figure { name: "p99, × alone", of: p99_ratio, decimals: 3 }, GUEST],
        not_shown: "Requests of 20 ms and more; shorter ones feel the guest's kernel more. Tally cuts kernels into pieces, and deepres does not. So under deepres, guests with longer kernels delay production more.",
    },
    Comparison {
        system: "HAMi-core",
        claim: "A limit on the utilisation of each tenant in percent; no accuracy is claimed.",
        source: "HAMi-core's published code",
        scenario: "backlogged.toml",
        policies: &[Policy::Deepres, Policy::HamiLike, Policy::TimeSlice, Policy::Gps],
        figures: &[
            Figure { name: "worst share error, points", of: worst_share_error, decimals: 2 },
            THROUGHPUT,
            LAG,
        ],
        not_shown: "`hami-like` is a token bucket after HAMi-core's published code with exact utilisation; the real one reads NVML's percent, which is coarser.",
    },
    Comparison {
        system: "time-slicing, with a client that waits for the host",
        claim: "None: it is what GPUs do by themselves.",
        source: "the hardware's default",
        scenario: "host-bound.toml",
        policies: &[Policy::Deepres, Policy::TimeSlice, Policy::Mps, Policy::Gps],
        figures: &[FIRST, THROUGHPUT, JAIN],
        not_shown: "Under time-slicing, the client gets more GPU time than in the fluid limit, and the trainer gets less.",
    },
    Comparison {
        system: "temporal deadline scheduling",
        claim: "None of its own: the earliest deadline first is the textbook's way to meet time objectives one at a time.",
        source: "textbook",
        scenario: "classes.toml",
        policies: &[Policy::Deepres, Policy::EarliestDeadline, Policy::TimeSlice, Policy::Gps],
        figures: &[
            JAIN,
            THROUGHPUT,
            Figure { name: "worst share error, points", of: worst_share_error, decimals: 2 },
        ],
        not_shown: "Classes are a promise that neither of the others makes.",
    },
];

/// Systems that use a part of the design that deepres has not built yet.
const ABSENT: &str = "\
| D-STACK | packing by knee and deadline: > 90 % of an ideal per-kernel scheduler | not built yet |
| GACER | granularity: 1.37 to 1.66 × over sequential | not built yet |
| DLC | placement by topology | not built yet |
";

const HEAD: &str = "\
# How deepres compares

Generated by `cargo xtask eval --report`, and checked by the tests: every figure is what the command under it prints, or a ratio of such, in virtual time, the same on every machine.
[evaluation-scenarios.md](evaluation-scenarios.md) says what the policies and the figures are. Other systems' figures are their own, from the source that is
named, on other machines and other work: they say what was claimed, not what our scenario would have been there. The baselines that we run are written after published
rules, in their best case.

";

/// Returns the page.
///
/// # Errors
/// A scenario cannot be read.
pub fn page() -> Result<String> {
    let mut page = HEAD.to_owned();
    for comparison in COMPARISONS {
        let scenario = Scenario::ours(comparison.scenario)?;
        let rows: Vec<Row> = metrics::evaluate(&scenario, comparison.policies)
            .into_iter()
            .map(|evaluated| evaluated.row)
            .collect();
        let Comparison { system, claim, source, figures, not_shown, .. } = comparison;
        writeln!(page, "## {system}\n\n**Claim:** {claim} ({source})\n\n{}\n", scenario.shows)?;
        let names: Vec<&str> = figures.iter().map(|figure| figure.name).collect();
        writeln!(page, "| policy | {} |\n|---|{}", names.join(" | "), "---|".repeat(names.len()))?;
        for row in &rows {
            write!(page, "| `{}` |", row.policy)?;
            for figure in *figures {
                match (figure.of)(row) {
                    Some(value) => write!(page, " {value:.*} |", figure.decimals)?,
                    None => write!(page, " – |")?,
                }
            }
            writeln!(page)?;
        }
        let policies: Vec<String> =
            comparison.policies.iter().map(|policy| format!("--policy {policy}")).collect();
        let file = comparison.scenario;
        writeln!(
            page,
            "\n    cargo xtask eval --scenario tests/scenarios/{file} --json {}\n\n**Limits of this comparison:** {not_shown}\n",
            policies.join(" ")
        )?;
    }
    page.push_str(&beside::page()?);
    writeln!(page, "## Not compared\n\n| system | claim | here |\n|---|---|---|\n{ABSENT}")?;
    writeln!(
        page,
        "No caches or bandwidth shared between kernels, no memory, no tenant on two GPUs, launches that cost nothing: what virtual time leaves out is in\n[evaluation-scenarios.md](evaluation-scenarios.md). Five scenarios are also run in real time on the simulated GPU by the tests (`tests/e2e/tests/e2e/agreement.rs`) and agree\nwithin 5 % of each tenant's part of the GPU time and of its GPU time for each second. Nothing here was run on a real GPU."
    )?;
    Ok(page)
}

/// Writes the page and the file of hashes.
///
/// # Errors
/// Errors of the operating system, or of a scenario.
pub fn write() -> Result<PathBuf> {
    for (file, text) in [(file(), page()?), (hashes_file(), hashes()?)] {
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(file())
}

/// Returns a hash of every figure of the first seconds of every scenario under every policy. If a
/// hash differs, figures differ.
///
/// # Errors
/// A scenario cannot be read.
pub fn hashes() -> Result<String> {
    let mut hashes = String::new();
    for file in scenario::all()? {
        let mut scenario = Scenario::read(&file)?;
        scenario.duration_ns = scenario.duration_ns.min(HASHED_NS);
        scenario.warmup_ns = scenario.warmup_ns.min(HASHED_NS / 10);
        let rows: Vec<Row> =
            metrics::evaluate_in_full(&scenario, &Policy::ALL).into_iter().map(|run| run.row).collect();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        writeln!(hashes, "{:016x} {name}", fnv1a(&serde_json::to_vec(&rows)?))?;
    }
    Ok(hashes)
}

/// Returns the FNV-1a hash, which needs no library and never changes.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Compares the page with its content on disk.
///
/// # Errors
/// The page is not current.
pub fn check() -> Result<()> {
    is_current(&file(), &page()?)
}

fn is_current(file: &Path, text: &str) -> Result<()> {
    let there = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    ensure!(there == text, "{} is not current: run `cargo xtask eval --report`", file.display());
    Ok(())
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/evaluation.md")
}

fn hashes_file() -> PathBuf {
    scenario::ours().join("figures.fnv1a")
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_figure_of_every_scenario_is_to_the_bit_what_it_was() {
        super::is_current(&super::hashes_file(), &super::hashes().unwrap()).unwrap();
    }

    #[test]
    fn the_page_says_what_the_scenarios_come_to_now() {
        super::check().unwrap();
    }
}
