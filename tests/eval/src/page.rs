//! `cargo xtask eval --report`: writes docs/evaluation.md, which shows each system's own claim
//! beside the figures of deepres. Only the text in this file is written by hand. The figures come
//! from the scenarios.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use deepres_policy::class::Class;

use crate::beside;
use crate::metrics::{self, Row};
use crate::packing;
use crate::placement;
use crate::plans;
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

const FIRST: Figure =
    Figure { name: "the client's work, of its work alone", of: first_of_standalone, decimals: 3 };
const THROUGHPUT: Figure = Figure { name: "throughput", of: |row| Some(row.throughput), decimals: 3 };
const JAIN: Figure = Figure { name: "Jain's index", of: |row| Some(row.jain), decimals: 3 };
const LAG: Figure = Figure { name: "longest lag, ms", of: |row| Some(row.max_lag_ms), decimals: 1 };
const LAG_BOUND: Figure =
    Figure { name: "bound on the lag, ms", of: |row| Some(row.lag_bound_ms), decimals: 1 };
const SPEED: Figure = Figure { name: "production's speed", of: |row| row.production_speed, decimals: 4 };
const HARVEST: Figure =
    Figure { name: "part of the pauses harvested", of: |row| row.harvested_fraction, decimals: 3 };
const GUEST: Figure =
    Figure { name: "guest's work, of its work alone", of: guest_of_standalone, decimals: 3 };

const COMPARISONS: &[Comparison] = &[
    Comparison {
        system: "DeepRes",
        claim: "Image classification, object detection and speech recognition share one GPU. DeepRes does\n\
                up to 35 % better than static allocation, and shares the GPU more fairly.",
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
        not_shown: "The paper's traces are not public, so the authors of deepres chose\n\
                    the phases and kernels of the three applications. A static split wastes the time of idle tenants. So\n\
                    the table also compares with the fluid limit.",
    },
    Comparison {
        system: "TGS",
        claim: "A best-effort job runs beside a production job, and does little harm to the production\n\
                job. XSched's table has figures of TGS and XSched on a GV100. Under TGS, production runs at 1.03 of\n\
                its speed alone, and the best-effort job at 0.125. Under XSched, production runs at 1.01 of its\n\
                speed alone, and the best-effort job at 0.225.",
        source: "TGS, NSDI 2023; XSched, OSDI 2025, its table of DL training",
        scenario: "production-and-best-effort.toml",
        policies: &[Policy::Deepres, Policy::TgsLike, Policy::HamiLike, Policy::TimeSlice, Policy::Mps],
        figures: &[SPEED, HARVEST, GUEST],
        not_shown: "`tgs-like` is a controller after TGS's published code, and not TGS\n\
                    itself. Each kernel has grid blocks in proportion to its length, which is the best case for\n\
                    `tgs-like`. A guest can only harvest the time that production leaves. The published figures come\n\
                    from another program as production.",
    },
    Comparison {
        system: "TGS, with requests",
        claim: "A best-effort job runs beside a production job that answers requests, and does little\n\
                harm to the production job.",
        source: "TGS, NSDI 2023",
        scenario: "bursty-production.toml",
        policies: &[Policy::Deepres, Policy::TgsLike, Policy::HamiLike, Policy::TimeSlice],
        figures: &[
            Figure { name: "median, ms", of: |row| row.p50_ms, decimals: 2 },
            Figure { name: "p99 added, ms", of: |row| row.p99_added_ms, decimals: 2 },
            GUEST,
        ],
        not_shown: "The requests take 5 ms, and the guest's kernels take 1 ms. A request\n\
                    waits for at most one kernel of the guest and one hand-off. For shorter requests, the wait for a\n\
                    kernel is a larger part of the answer time.",
    },
    Comparison {
        system: "Tally",
        claim: "An inference service runs beside a best-effort trainer. The 99th percentile of the\n\
                service's answer times is 1.048 times the percentile alone in the mean, and 1.099 times at worst.",
        source: "Tally, ASPLOS 2025",
        scenario: "long-requests.toml",
        policies: &[Policy::Deepres, Policy::TgsLike, Policy::TimeSlice],
        figures: &[Figure { name: "p99, × alone", of: p99_ratio, decimals: 3 }, GUEST],
        not_shown: "All requests take 25 ms. A wait for a guest's kernel is a larger\n\
                    part of a shorter request. Tally cuts kernels into pieces, and deepres does not. So under deepres,\n\
                    production waits longer the longer a guest's kernels are. Tally avoids this delay.",
    },
    Comparison {
        system: "HAMi-core",
        claim: "HAMi-core limits the utilisation of each tenant in percent, and claims no accuracy.",
        source: "HAMi-core's published code",
        scenario: "backlogged.toml",
        policies: &[Policy::Deepres, Policy::HamiLike, Policy::TimeSlice, Policy::Gps],
        figures: &[
            Figure { name: "worst share error, points", of: worst_share_error, decimals: 2 },
            THROUGHPUT,
            LAG,
        ],
        not_shown: "`hami-like` is a token bucket after HAMi-core's published code, and\n\
                    knows the exact utilisation. HAMi-core itself reads NVML's percent, which is coarser.",
    },
    Comparison {
        system: "Time-slicing, with a client that waits for the host",
        claim: "None. GPUs do time-slicing by themselves.",
        source: "the hardware's default",
        scenario: "host-bound.toml",
        policies: &[Policy::Deepres, Policy::TimeSlice, Policy::Mps, Policy::Gps],
        figures: &[FIRST, THROUGHPUT, JAIN],
        not_shown: "Under time-slicing, the client gets more GPU time than in the fluid\n\
                    limit, and the trainer gets less.",
    },
    Comparison {
        system: "Temporal deadline scheduling",
        claim: "None. Earliest deadline first is the textbook's way to meet deadlines one at a time.",
        source: "textbook",
        scenario: "classes.toml",
        policies: &[Policy::Deepres, Policy::EarliestDeadline, Policy::TimeSlice, Policy::Gps],
        figures: &[
            JAIN,
            THROUGHPUT,
            Figure { name: "worst share error, points", of: worst_share_error, decimals: 2 },
        ],
        not_shown: "Only deepres has classes of tenants; `earliest-deadline` and\n\
                    `time-slice` treat the tenants of all classes alike.",
    },
];

const HEAD: &str = "\
# How deepres compares

`cargo xtask eval --report` writes this page, and the tests check that the page is current. The
command under a table prints the table's figures, or figures from which they are computed. Time is
virtual, so every machine prints the same figures.
[evaluation-scenarios.md](evaluation-scenarios.md) explains the policies and the figures, and the
[glossary](glossary.md) the terms.

Each claim of another system comes from the source that the page names. The other system ran on
other machines and did other work. So a claim does not say what the other system would do in the
scenarios of this page. The policies in the tables, except `deepres`, follow published rules, each
in its best case.

";

/// Returns the page with this section about plans.
fn page(plans: &str) -> Result<String> {
    let mut page = HEAD.to_owned();
    for comparison in COMPARISONS {
        let scenario = Scenario::ours(comparison.scenario)?;
        let rows = metrics::rows(&scenario, comparison.policies);
        let Comparison { system, claim, source, figures, not_shown, .. } = comparison;
        writeln!(page, "## {system}\n\n**Claim:** {claim}\nSource: {source}.\n\n{}\n", scenario.shows)?;
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
    page.push_str(&packing::page()?);
    page.push_str(plans);
    page.push_str(&placement::page()?);
    writeln!(
        page,
        "## Left out\n\nThe evaluation leaves out caches and bandwidth that kernels share, memory, tenants on two GPUs, and\n\
         the cost of launches ([what the evaluation leaves\n\
         out](evaluation-scenarios.md#what-the-evaluation-leaves-out)). The tests also run five scenarios in\n\
         real time on the simulated GPU (`tests/e2e/tests/e2e/agreement.rs`). In these runs, each tenant's\n\
         part of the used GPU time is within 5 % of the figure that the evaluation computes. The same holds\n\
         for each tenant's GPU time in a second. No figure on this page comes from a real GPU."
    )?;
    Ok(page)
}

/// Writes the page and the file of hashes.
///
/// # Errors
/// Errors of the operating system, or of a scenario.
pub fn write() -> Result<PathBuf> {
    for (file, text) in [(file(), page(&plans::page()?)?), (hashes_file(), hashes()?)] {
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

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/evaluation.md")
}

fn hashes_file() -> PathBuf {
    scenario::ours().join("figures.fnv1a")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_current(file: &Path, text: &str) {
        let there = std::fs::read_to_string(file).unwrap();
        assert!(there == text, "{} is not current: run `cargo xtask eval --report`", file.display());
    }

    #[test]
    fn every_figure_of_every_scenario_is_to_the_bit_what_it_was() {
        assert_current(&hashes_file(), &hashes().unwrap());
    }

    /// Returns the section about plans of the page on disk. To search the plans takes a minute.
    fn plans_there() -> String {
        let there = std::fs::read_to_string(file()).unwrap();
        let begin = there.find(plans::HEADING).unwrap();
        let next = there[begin..].find("\n## ").unwrap();
        there[begin..=begin + next].to_owned()
    }

    #[test]
    fn the_page_says_what_the_scenarios_come_to_now() {
        assert_current(&file(), &page(&plans_there()).unwrap());
    }

    #[test]
    #[ignore = "deep: takes long"]
    fn the_page_says_what_plans_come_to_now() {
        assert_eq!(plans_there(), plans::page().unwrap());
    }
}
