//! Compares guests beside production under deepres with guests beside production under other
//! controllers. On three figures, deepres must not be worse. This file names the exceptions, and
//! docs/evaluation.md shows the exceptions. If an exception is no longer needed, a test fails.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::Result;

use crate::metrics::{self, Row};
use crate::policy::Policy;
use crate::scenario::Scenario;

/// Files of the scenarios.
pub const SCENARIOS: &[&str] = &[
    "production-and-best-effort.toml",
    "irregular-production.toml",
    "short-gaps.toml",
    "bursty-production.toml",
    "bursty-without-slo.toml",
    "long-requests.toml",
    "long-kernels.toml",
    "two-productions.toml",
];

/// The policy of deepres, and the policies with which the page compares it.
pub const POLICIES: [Policy; 3] = [Policy::Deepres, Policy::TgsLike, Policy::HamiLike];

/// The part of production's pauses that guests should get.
const WISHED_HARVEST: f64 = 0.8;

/// The greatest difference that does not count, as a part of the whole or in ms.
const NO_DIFFERENCE: f64 = 0.001;

/// A figure by which the page compares deepres with another policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// Speed of production.
    Speed,
    /// The part of production's pauses that guests harvested.
    Harvest,
    /// Time added to the 99th percentile of answer times.
    Added,
}

impl Figure {
    /// All three figures.
    pub const ALL: [Self; 3] = [Self::Speed, Self::Harvest, Self::Added];

    /// Returns the figure's name in the page.
    pub fn name(self) -> &'static str {
        match self {
            Self::Speed => "production's speed",
            Self::Harvest => "part of the pauses harvested",
            Self::Added => "p99 added, ms",
        }
    }

    /// Returns the figure of a row.
    pub fn of(self, row: &Row) -> Option<f64> {
        match self {
            Self::Speed => row.production_speed,
            Self::Harvest => row.harvested_fraction,
            Self::Added => row.p99_added_ms,
        }
    }

    /// Returns whether the figure is worse in one row than in another.
    pub fn is_worse(self, ours: &Row, theirs: &Row) -> bool {
        let (Some(ours), Some(theirs)) = (self.of(ours), self.of(theirs)) else { return false };
        let deficit = if self == Self::Added { ours - theirs } else { theirs - ours };
        deficit > NO_DIFFERENCE
    }
}

/// A figure that is worse under deepres, and the reason for which this is no fault.
pub struct Exception {
    /// File of the scenario.
    pub scenario: &'static str,
    /// Policy that has the better figure.
    pub baseline: Policy,
    /// The figure that is worse.
    pub figure: Figure,
    /// The reason for which the worse figure is no fault.
    pub why: &'static str,
}

/// Reason of an exception: the other policy's guest makes production wait.
const KEPT_WAITING: &str = "Under `hami-like`, the guest runs at any time, and answers wait for the guest, as *p99 added*\n\
    shows. When answers have waited for 1 % of the time, deepres keeps the guest out of pauses whose\n\
    end it cannot foresee. So under deepres, the guest gets half of the pauses at most: see the\n\
    operating points below, and [what no policy can\n\
    have](evaluation-scenarios.md#what-no-policy-can-have)";
/// Reason of an exception: the other policy's guest hardly runs.
const STARVED: &str = "Under `tgs-like`, the guest hardly runs, so answers hardly wait for the guest. If a request comes\n\
    while a guest's kernel of 1 ms runs, the request waits for half of the kernel in the mean. So if a\n\
    policy leaves kernels whole and harvests most of the pauses, answers wait about as long as under\n\
    deepres. If these waits are too long, the operator can set a lower `max_harm`: see the operating\n\
    points below";

/// Reason of an exception: both policies add nearly the same wait.
const NEARLY_ALIKE: &str = "In one of three seeds, deepres adds a hundredth of a millisecond more to the 99th percentile than\n\
    `tgs-like`. deepres harvests twenty times as much (see the operating points below)";

/// All exceptions.
pub const EXCEPTIONS: &[Exception] = &[
    Exception {
        scenario: "bursty-without-slo.toml",
        baseline: Policy::TgsLike,
        figure: Figure::Added,
        why: NEARLY_ALIKE,
    },
    Exception {
        scenario: "bursty-without-slo.toml",
        baseline: Policy::HamiLike,
        figure: Figure::Harvest,
        why: KEPT_WAITING,
    },
    Exception {
        scenario: "bursty-production.toml",
        baseline: Policy::TgsLike,
        figure: Figure::Added,
        why: STARVED,
    },
];

/// Returns the exception for this scenario, policy and figure; `None` without an exception.
pub fn exception(scenario: &str, baseline: Policy, figure: Figure) -> Option<&'static Exception> {
    EXCEPTIONS
        .iter()
        .find(|other| other.scenario == scenario && other.baseline == baseline && other.figure == figure)
}

/// The scenario of the operating points, and the values of `max_harm` that an operator may set,
/// parts per million.
pub const OPERATING_POINTS: (&str, [u32; 6]) =
    ("bursty-without-slo.toml", [1_000, 2_000, 5_000, 10_000, 20_000, 50_000]);
/// The operating point at which no figure is worse than under the TGS-like controller.
pub const GENTLE_PPM: u32 = 5_000;

/// Rows of one scenario, which one of several threads computes.
type Rows = Arc<OnceLock<Vec<Row>>>;

/// Returns the rows of a scenario with guests under [`POLICIES`]. The program computes these rows
/// once for each file and seed, because the page and several claims are about the same rows.
///
/// # Errors
/// The scenario cannot be read.
pub fn rows(file: &'static str, seed: u64) -> Result<Vec<Row>> {
    static ROWS: Mutex<BTreeMap<(&str, u64), Rows>> = Mutex::new(BTreeMap::new());
    let scenario = Scenario { seed, ..Scenario::ours(file)? };
    let rows = {
        let mut all = ROWS.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry((file, seed)).or_default())
    };
    Ok(rows.get_or_init(|| metrics::rows(&scenario, &POLICIES)).clone())
}

/// Returns the rows of the operating points, and the row of the TGS-like controller. The program
/// computes these rows once.
///
/// # Errors
/// The scenario cannot be read.
pub fn operating_points() -> Result<(Vec<(u32, Row)>, Row)> {
    static OURS: OnceLock<Vec<(u32, Row)>> = OnceLock::new();
    let (file, points) = OPERATING_POINTS;
    let scenario = Scenario::ours(file)?;
    let ours = |max_harm_ppm| {
        let mut scenario = scenario.clone();
        scenario.policy.max_harm_ppm = max_harm_ppm;
        (max_harm_ppm, metrics::rows(&scenario, &POLICIES[..1]).remove(0))
    };
    let ours = OURS.get_or_init(|| points.into_iter().map(ours).collect()).clone();
    Ok((ours, rows(file, scenario.seed)?.remove(1)))
}

/// Returns the part of the page about scenarios with guests.
///
/// # Errors
/// A scenario cannot be read.
pub fn page() -> Result<String> {
    let mut page = String::from(
        "## Every scenario with guests\n\n\
         On each of the three figures, deepres is at least as good as `tgs-like` and `hami-like`. The\n\
         exceptions have a number in parentheses, which leads to a reason. The tests check three seeds of\n\
         each scenario, and ignore differences of a thousandth. Production's speed is the work of all owners,\n\
         as a part of their work without guests. A harvest is the GPU time that guests get while no owner\n\
         wants the GPU. A dash in the last column means that no tenant of the scenario serves requests. The\n\
         command is `cargo xtask eval --scenario tests/scenarios/FILE`.\n\n| scenario | policy |",
    );
    for figure in Figure::ALL {
        write!(page, " {} |", figure.name())?;
    }
    page.push_str("\n|---|---|---|---|---|\n");
    let mut reasons: Vec<&str> = Vec::new();
    let mut missed: Vec<String> = Vec::new();
    for file in SCENARIOS {
        let rows = rows(file, Scenario::ours(file)?.seed)?;
        if let Some(harvested) = rows[0].harvested_fraction.filter(|harvested| *harvested < WISHED_HARVEST) {
            missed.push(format!("{} ({harvested:.3})", rows[0].scenario));
        }
        for (policy, row) in POLICIES.into_iter().zip(&rows) {
            write!(page, "| {} | `{policy}` |", row.scenario)?;
            for figure in Figure::ALL {
                match figure.of(row) {
                    Some(value) => write!(page, " {value:.3}")?,
                    None => page.push_str(" –"),
                }
                if let Some(exception) = exception(file, policy, figure) {
                    let place = reasons.iter().position(|why| *why == exception.why).unwrap_or_else(|| {
                        reasons.push(exception.why);
                        reasons.len() - 1
                    });
                    write!(page, " ({})", place + 1)?;
                }
                page.push_str(" |");
            }
            page.push('\n');
        }
    }
    page.push('\n');
    for (number, why) in (1..).zip(reasons) {
        writeln!(page, "{number}. {why}.")?;
    }
    if !missed.is_empty() {
        writeln!(
            page,
            "\nThe goal of deepres is to harvest four fifths of the pauses. deepres misses this goal in:\n\
             {}.\n\
             In these scenarios, no policy could harvest much more than half of the pauses, if guests may cost\n\
             production 1 % of the time. A guest loses two hand-offs of each pause: one at the beginning, one at\n\
             the end. If the policy cannot foresee the end of a pause, production also waits for the rest of a\n\
             guest's window. The arithmetic is in [what no policy can\n\
             have](evaluation-scenarios.md#what-no-policy-can-have).",
            missed.join(", ")
        )?;
    }
    let (ours, tgs) = operating_points()?;
    writeln!(
        page,
        "\n### Operating points\n\n{}\n\
         Each row of the table for deepres has another value of `max_harm`, the part of the time that guests\n\
         may cost owners. The operator sets `max_harm`; the default is 1 %.\n\n\
         | policy | `max_harm` | p99 added, ms | part of the pauses harvested |\n|---|---|---|---|",
        tgs.shows
    )?;
    let mut line = |policy: &str, max_harm: String, row: &Row| {
        let (added, harvested) = (row.p99_added_ms.unwrap_or(0.0), row.harvested_fraction.unwrap_or(0.0));
        writeln!(page, "| `{policy}` | {max_harm} | {added:.3} | {harvested:.3} |")
    };
    for (max_harm_ppm, row) in &ours {
        line("deepres", format!("{} %", f64::from(*max_harm_ppm) / 10_000.0), row)?;
    }
    line("tgs-like", "–".to_owned(), &tgs)?;
    page.push('\n');
    Ok(page)
}
