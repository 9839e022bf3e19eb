//! The bars of packing. Each bar is a part of the best possible figure.

use super::Row;

/// The least part of a bound that deepres must reach.
const OF_BOUND: f64 = 0.95;
/// The same where the tenants owe more work than the GPU can do. The goal is [`OF_BOUND`] there
/// too; docs/packing.md has the figures.
const OF_BOUND_BEYOND: f64 = 0.75;
/// The least part of the ideal schedule's figure in any feasible mix, and in the median mix.
const OF_IDEAL: f64 = 0.90;
const OF_IDEAL_MEDIAN: f64 = 0.95;
/// The least part of the better of kernel-granular temporal sharing and the best static parts.
const OF_BETTER: f64 = 0.99;
/// The least part of the requests in time with exact profiles, with profiles that are 10 % wrong.
const OF_EXACT_PROFILES: f64 = 0.99;
/// The ending of the name of a scenario with wrong profiles. The scenario without this ending has
/// exact profiles.
pub const WRONG_PROFILES: &str = ", profiles 10 % wrong";
/// Rounding errors are smaller than this.
const NEGLIGIBLE: f64 = 1e-6;
/// The scenarios in which tenants always have work, and a miss breaks a bar.
const WITHOUT_MISS: [&str; 2] = ["c4", "c4-two-instances"];
/// The scenarios with a bar on the throughput, as a part of the bound over all configurations.
const BALANCED: [&str; 5] = ["c4", "c4-two-instances", "three-nets", "c7", "all-eight"];
/// The scenario whose area has to be filled.
const FILLED: &str = "c4";

/// Returns a message for each bar that the rows of deepres miss. The rows are of any scenarios,
/// those of the subsets of the table among them.
pub fn missed(rows: &[Row]) -> Vec<String> {
    missed_by(rows, "deepres")
}

/// Returns a message for each bar of deepres that the rows of a policy (`whose`) miss.
pub fn missed_by(rows: &[Row], whose: &str) -> Vec<String> {
    let mut missed = Vec::new();
    for row in rows.iter().filter(|row| row.policy == whose) {
        let mut bar = |figure: &str, has: Option<f64>, least: f64| {
            if let Some(has) = has.filter(|has| *has < least - NEGLIGIBLE) {
                missed.push(format!("{}: {figure} is {has:.4}, and the bar is {least:.4}", row.scenario));
            }
        };
        let name = row.scenario.as_str();
        let is_full = row.scenario.starts_with("full: ");
        let is_owed = row.scenario.starts_with("owed: ");
        // No claim beyond what is possible.
        bar("the bound by area over the throughput", Some(row.bound_area / row.throughput_vs_temporal), 1.0);
        if WITHOUT_MISS.contains(&name) || is_owed && row.bound_exact.is_some_and(|exact| exact >= 1.0) {
            bar("runs in time", row.run_misses.map(|misses| 1.0 - misses), 1.0);
        }
        let of_bound = if is_feasible(row) { OF_BOUND } else { OF_BOUND_BEYOND };
        if is_owed {
            bar("vs_exact", row.vs_exact, of_bound);
            if row.vs_exact.is_none() {
                bar("served_vs_lp", row.served_vs_lp, of_bound);
            }
        }
        if BALANCED.contains(&name) {
            bar("vs_lp", row.vs_lp, of_bound);
        }
        if name == FILLED {
            bar("filled_vs_lp", row.filled_vs_lp, OF_BOUND);
        }
        if (is_owed || is_full) && is_feasible(row) {
            bar("vs_ideal", row.vs_ideal, OF_IDEAL);
        }
        let other =
            |policy: &str| rows.iter().find(|other| other.scenario == row.scenario && other.policy == policy);
        for other in ["temporal-kernel", "static-parts"].into_iter().filter_map(other) {
            let figure = format!("the throughput beside that of {}", other.policy);
            bar(&figure, Some(row.throughput_vs_temporal), OF_BETTER * other.throughput_vs_temporal);
        }
        if let Some(name) = row.scenario.strip_suffix(WRONG_PROFILES)
            && let Some(exact) = rows.iter().find(|other| other.scenario == name && other.policy == whose)
        {
            bar("request_slo", row.request_slo, OF_EXACT_PROFILES * exact.request_slo.unwrap_or(0.0));
        }
    }
    let of_subsets =
        |row: &&Row| row.policy == whose && row.scenario.starts_with("full: ") && is_feasible(row);
    let mut ideals: Vec<f64> = rows.iter().filter(of_subsets).filter_map(|row| row.vs_ideal).collect();
    ideals.sort_by(f64::total_cmp);
    if let Some(median) = ideals.get(ideals.len() / 2).filter(|median| **median < OF_IDEAL_MEDIAN) {
        missed.push(format!(
            "all mixes: the median of vs_ideal is {median:.4}, and the bar is {OF_IDEAL_MEDIAN}"
        ));
    }
    missed
}

/// Returns whether the GPU can do all owed work.
fn is_feasible(row: &Row) -> bool {
    row.bound_lp.is_some_and(|bound| bound >= row.owed_vs_temporal - NEGLIGIBLE)
}
