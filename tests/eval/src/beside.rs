//! Compares best effort beside production under deepres with the same under other controllers.
//! deepres must not be worse on any of three figures. This file names the exceptions, and
//! docs/evaluation.md shows them. If an exception is no longer needed, a test fails.

use std::fmt::Write as _;

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

/// The part of the gaps that guests should get.
const WISHED_HARVEST: f64 = 0.8;

/// Greatest difference that counts as none, as a part of the whole or in ms.
const NO_DIFFERENCE: f64 = 0.001;

/// One of the three figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// Speed of production.
    Speed,
    /// The part of the gaps that guests harvested.
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
            Self::Harvest => "part of the gaps harvested",
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

/// A figure that is worse under deepres, and the reason why that is no fault.
pub struct Exception {
    /// File of the scenario.
    pub scenario: &'static str,
    /// Policy that has the better figure.
    pub baseline: Policy,
    /// The figure that is worse.
    pub figure: Figure,
    /// The reason.
    pub why: &'static str,
}

/// Reason of an exception: the other policy's guest makes production wait.
const KEPT_WAITING: &str = "its guest runs whenever it likes, and answers wait for it: look at what is added to them. Here ours is kept out of the gaps that cannot be foreseen \
     once answers waited for 1 % of the time, which is half of the gaps at most: see the operating points below, and [what no policy can have](evaluation-scenarios.md#what-no-policy-can-have)";
/// Reason of an exception: the other policy's guest hardly runs.
const STARVED: &str = "its guest hardly runs, and who does not run adds nothing. A request that comes while a guest's kernel of 1 ms runs waits for its end, half of it \
     in the mean, so no policy that cannot cut kernels harvests most of the gaps for less. Where that is too much, a lower `max_harm` is: see the operating points below";

/// Reason of an exception: both policies add nearly the same wait.
const NEARLY_ALIKE: &str = "in one of three seeds by a hundredth of a millisecond, with twenty times the harvest: see the operating points below";

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

/// Returns the exception for this case, if there is one.
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

/// Returns the rows of the operating points, and the row of the TGS-like controller.
///
/// # Errors
/// The scenario cannot be read.
pub fn operating_points() -> Result<(Vec<(u32, Row)>, Row)> {
    let scenario = Scenario::ours(OPERATING_POINTS.0)?;
    let row = |scenario: &Scenario, policy| metrics::evaluate(scenario, &[policy]).remove(0).row;
    let ours = OPERATING_POINTS.1.into_iter().map(|max_harm_ppm| {
        let mut scenario = scenario.clone();
        scenario.policy.max_harm_ppm = max_harm_ppm;
        (max_harm_ppm, row(&scenario, Policy::Deepres))
    });
    Ok((ours.collect(), row(&scenario, Policy::TgsLike)))
}

/// Returns the part of the page about best effort.
///
/// # Errors
/// A scenario cannot be read.
pub fn page() -> Result<String> {
    let mut page = String::from(
        "## Best effort, in every scenario of it\n\nNever worse than the TGS-like and HAMi-like controllers on any of the three figures, but where a number says why (a thousandth is no \
         difference); the tests hold that over three seeds. Speed and harvest are of all owners and of all guests; time that guests have while production wants the GPU is no harvest; a dash: nobody answers requests. The \
         command is `cargo xtask eval --scenario tests/scenarios/FILE`, as for all scenarios.\n\n| scenario | policy |",
    );
    for figure in Figure::ALL {
        write!(page, " {} |", figure.name())?;
    }
    page.push_str("\n|---|---|---|---|---|\n");
    let mut reasons: Vec<&str> = Vec::new();
    let mut missed: Vec<String> = Vec::new();
    for file in SCENARIOS {
        let scenario = Scenario::ours(file)?;
        let rows: Vec<Row> =
            metrics::evaluate(&scenario, &POLICIES).into_iter().map(|evaluated| evaluated.row).collect();
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
            "\nFour fifths of the gaps, which is what we want of deepres, are not had in: {}. About half is the most that any policy could have there for 1 % of production's time: of a gap two hand-offs are lost, one each way, and \
             one whose end cannot be foreseen costs production the rest of a guest's window. [What no policy can have](evaluation-scenarios.md#what-no-policy-can-have) has the arithmetic.",
            missed.join(", ")
        )?;
    }
    let (ours, tgs) = operating_points()?;
    writeln!(
        page,
        "\n### Operating points\n\n{} `max_harm` is the operator's: what guests may cost, of the time. The default is 1 %.\n\n| policy | `max_harm` | p99 added, ms | part of the gaps \
         harvested |\n|---|---|---|---|",
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
