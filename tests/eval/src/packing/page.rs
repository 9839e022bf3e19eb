//! The comparison with D-STACK in docs/evaluation.md.

use std::fmt::Write as _;

use anyhow::Result;

use super::scenario::{self, Scenario};
use super::{Row, evaluate, policy};

/// The scenarios of the tables, with what they are.
const SCENARIOS: [(&str, &str); 3] = [
    ("c4", "Four models always have work (D-STACK's case C-4, recalled from memory)."),
    ("three-nets", "Three networks always have work (D-STACK's case for an ideal scheduler)."),
    ("c7", "Seven models have more work than the GPU can do (D-STACK's case C-7)."),
];

/// Returns the section of the page.
///
/// # Errors
/// A scenario cannot be read.
pub fn page() -> Result<String> {
    let mut page = "## D-STACK\n\n**Claim:** Several models run on a GPU at once, each on as many SMs as it can use, by their\n\
                    deadlines. D-STACK has more than 90 % of the throughput and of the utilisation of an ideal\n\
                    scheduler, which knows every kernel.\n\
                    Source: the abstract of D-STACK, arXiv 2304.13541.\n"
        .to_owned();
    for (name, what) in SCENARIOS {
        let scenario = Scenario::read(&scenario::ours().join(format!("{name}.toml")))?;
        let figure =
            if scenario.full { "throughput, of the ideal" } else { "owed area in time, of the ideal" };
        write!(
            page,
            "\n{what}\n\n| policy | throughput, × temporal | throughput, of `bound_lp` | {figure} | used area | \
             late runs |\n|---|---|---|---|---|---|\n"
        )?;
        let shown =
            |figure: Option<f64>| figure.map_or_else(|| "–".to_owned(), |figure| format!("{figure:.3}"));
        // The rows of the arbiter are in the output of `cargo xtask eval --packing` only.
        let is_shown = |name: &&str| !policy::ARBITERS.contains(name);
        let policies: Vec<&str> = policy::NAMES.into_iter().filter(is_shown).collect();
        for row in evaluate(&scenario, &policies) {
            let Row { policy, throughput_vs_temporal, vs_lp, vs_ideal, area_utilisation, run_misses, .. } =
                row;
            writeln!(
                page,
                "| `{policy}` | {throughput_vs_temporal:.2} | {} | {} | {area_utilisation:.3} | {} |",
                shown(vs_lp),
                shown(vs_ideal),
                shown(run_misses)
            )?;
        }
        write!(
            page,
            "\n    cargo xtask eval --packing --scenario tests/scenarios/packing/{name}.toml --json\n"
        )?;
    }
    page.push_str(
        "\n**Limits of this comparison:** The paper's text and code are not public. The authors of deepres\n\
         recalled the models' parts, SLOs and times from memory. `ideal` is the best of four list schedules\n\
         at kernel granularity, which know all times. Under the policies, a run on a narrower part takes\n\
         longer in proportion, and no run slows another down. The policy runs in virtual time only: no\n\
         arbiter uses it yet ([packing.md](packing.md)).\n\n",
    );
    Ok(page)
}
