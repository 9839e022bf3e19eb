//! The bars: the figures that deepres must reach in every scenario, and in a sweep over random
//! mixes. tests/scenarios/bars.toml has the numbers.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use deepres_policy::class::Class;
use serde::Deserialize;

use crate::metrics::Row;
use crate::policy::Policy;
use crate::scenario;
use crate::sweep::{Figure, Mix, Sweep};

/// The content of a bar file.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bars {
    scenario: OfScenario,
    sweep: OfSweep,
}

/// The bars that deepres must reach in each scenario.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct OfScenario {
    /// Least `worst_progress_vs_gps`. If the bound is below 1, the bar is this part of the bound.
    worst_progress_vs_gps: f64,
    /// The least value that `worst_vs_nothing` may have.
    worst_vs_nothing: f64,
    /// Most by which the utilisation may be below time-slicing's, in scenarios without guests.
    utilisation_below_time_slice: f64,
}

/// The bars of a sweep.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct OfSweep {
    worst_vs_bound: f64,
    worst_vs_nothing: f64,
    median_progress_vs_gps: f64,
}

impl Bars {
    /// Reads a bar file.
    ///
    /// # Errors
    /// The file cannot be read, or is no bar file.
    pub fn read(file: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        toml::from_str(&text).with_context(|| format!("in the bar file {}", file.display()))
    }

    /// Returns the file of the bars that come with deepres.
    pub fn ours() -> PathBuf {
        scenario::ours().join(scenario::BARS)
    }

    /// Returns a message for each figure of deepres that is below its bar. The rows of plain
    /// time-slicing are references.
    pub fn missed_by_rows(&self, rows: &[Row]) -> Vec<String> {
        let is_of = |row: &&Row, policy: Policy| row.policy == policy.name();
        let mut missed = Vec::new();
        for row in rows.iter().filter(|row| is_of(row, Policy::Deepres)) {
            let turns =
                rows.iter().filter(|other| other.scenario == row.scenario && is_of(other, Policy::TimeSlice));
            let messages = self.scenario.missed_by(row, turns.map(|turns| turns.utilisation).next());
            missed.extend(messages.into_iter().map(|says| format!("{}: {says}", row.scenario)));
        }
        missed
    }

    /// Returns a message for each figure of a sweep that is below its bar.
    pub fn missed_by_sweep(&self, sweep: &Sweep) -> Vec<String> {
        let OfSweep { worst_vs_bound, worst_vs_nothing, median_progress_vs_gps } = self.sweep;
        let mut missed = Vec::new();
        let figures: [(&str, f64, Figure); 2] = [
            ("worst_vs_bound", worst_vs_bound, Mix::vs_bound),
            ("worst_vs_nothing", worst_vs_nothing, |mix| mix.vs_nothing),
        ];
        for (name, bar, figure) in figures {
            let below = sweep.each.iter().filter(|mix| figure(mix) < bar);
            let count = below.clone().count();
            if let Some(worst) = below.min_by(|one, other| figure(one).total_cmp(&figure(other))) {
                let file = sweep.file_of(worst.number).map(|file| format!(" ({})", file.display()));
                missed.push(format!(
                    "{name} is {:.3}, and the bar is {bar}: {count} of {} mixes are below it, the worst is mix {}{}",
                    figure(worst),
                    sweep.mixes,
                    worst.number,
                    file.unwrap_or_default()
                ));
            }
        }
        let median = sweep.median_progress_vs_gps;
        if median < median_progress_vs_gps {
            missed.push(format!(
                "median_progress_vs_gps is {median:.3}, and the bar is {median_progress_vs_gps}"
            ));
        }
        missed
    }
}

impl OfScenario {
    /// Returns a message for each figure of a row that is below its bar. A figure that does not
    /// apply has no bar.
    fn missed_by(&self, row: &Row, utilisation_of_turns: Option<f64>) -> Vec<String> {
        let mut missed = Vec::new();
        if let Some(worst) = row.worst_progress_vs_gps {
            let part = self.worst_progress_vs_gps;
            let bound = row.bound.filter(|bound| *bound < 1.0);
            let bar = part * bound.unwrap_or(1.0);
            if worst < bar {
                let of = bound.map_or_else(String::new, |bound| format!(", {part} of the bound {bound:.3}"));
                missed.push(format!("worst_progress_vs_gps is {worst:.3}, and the bar is {bar:.3}{of}"));
            }
        }
        if let Some(worst) = row.worst_vs_nothing.filter(|worst| *worst < self.worst_vs_nothing) {
            let bar = self.worst_vs_nothing;
            missed.push(format!("worst_vs_nothing is {worst:.3}, and the bar is {bar}"));
        }
        let has_guests = row.tenants.iter().any(|tenant| tenant.class == Class::BestEffort.name());
        if let Some(turns) = utilisation_of_turns.filter(|_| !has_guests) {
            let (bar, has) = (turns - self.utilisation_below_time_slice, row.utilisation);
            if has < bar {
                missed.push(format!(
                    "utilisation is {has:.3}, and the bar is {bar:.3}, {} below that of time-slicing",
                    self.utilisation_below_time_slice
                ));
            }
        }
        missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics;
    use crate::scenario::Scenario;

    /// Returns the rows of deepres and of plain time-slicing for two tenants that always have work.
    /// `class` is the class of the second tenant.
    fn rows(class: &str) -> Vec<Row> {
        let steps = "kernels = 10, kernel_us = 500";
        let tenants = [("a", "", steps), ("b", &format!("class = \"{class}\""), steps)];
        let scenario = Scenario::of("duration_s = 2", &tenants);
        let policies = [Policy::Deepres, Policy::TimeSlice];
        metrics::evaluate_in_full(&scenario, &policies).into_iter().map(|evaluated| evaluated.row).collect()
    }

    fn missed(change: impl FnOnce(&mut Row), class: &str) -> Vec<String> {
        let mut rows = rows(class);
        let deepres = &mut rows[0];
        deepres.worst_progress_vs_gps = Some(0.97);
        (deepres.worst_vs_nothing, deepres.bound, deepres.utilisation) = (Some(0.97), Some(1.0), 0.98);
        change(deepres);
        rows[1].utilisation = 0.98;
        Bars::read(&Bars::ours()).unwrap().missed_by_rows(&rows)
    }

    #[test]
    fn a_row_at_its_bars_misses_none() {
        assert_eq!(missed(|_| {}, "fair"), [""; 0]);
    }

    #[test]
    fn the_bar_of_the_worst_owner_is_a_part_of_the_bound_where_the_bound_is_below_the_fluid_limit() {
        let missed_with = |worst, bound| {
            let set = |row: &mut Row| (row.worst_progress_vs_gps, row.bound) = (Some(worst), bound);
            missed(set, "fair")
        };
        assert_eq!(missed_with(0.8, Some(0.8)), [""; 0]);
        assert_eq!(missed_with(0.96, Some(1.2)), [""; 0], "more than the fluid limit's is no duty");
        let says = "test: worst_progress_vs_gps is 0.750, and the bar is 0.760, 0.95 of the bound 0.800";
        assert_eq!(missed_with(0.75, Some(0.8)), [says]);
        assert_eq!(missed_with(0.94, None), ["test: worst_progress_vs_gps is 0.940, and the bar is 0.950"]);
    }

    #[test]
    fn an_owner_worse_off_than_without_deepres_misses_a_bar() {
        let missed = missed(|row| row.worst_vs_nothing = Some(0.5), "fair");
        assert_eq!(missed, ["test: worst_vs_nothing is 0.500, and the bar is 0.95"]);
    }

    #[test]
    fn utilisation_has_a_bar_only_without_guests() {
        let less = |row: &mut Row| row.utilisation = 0.9;
        let says = "test: utilisation is 0.900, and the bar is 0.970, 0.01 below that of time-slicing";
        assert_eq!(missed(less, "fair"), [says]);
        assert_eq!(missed(less, "best-effort"), [""; 0]);
    }

    #[test]
    fn a_sweep_below_its_bars_names_the_worst_mix_and_its_file() {
        let mix = |number, vs_gps, bound, vs_nothing| Mix { number, tenants: 2, vs_gps, bound, vs_nothing };
        let each = vec![mix(0, 0.98, 1.0, 0.97), mix(1, 0.6, 0.62, 0.95), mix(2, 0.8, 1.0, 0.95)];
        let sweep = Sweep::new(each, |number| PathBuf::from(format!("{number}.toml")));
        let missed = Bars::read(&Bars::ours()).unwrap().missed_by_sweep(&sweep);
        let says = [
            "worst_vs_bound is 0.800, and the bar is 0.85: 1 of 3 mixes are below it, the worst is mix 2 (2.toml)",
            "median_progress_vs_gps is 0.800, and the bar is 0.97",
        ];
        assert_eq!(missed, says);
    }

    #[test]
    fn a_bar_of_an_unknown_figure_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("bars.toml");
        std::fs::write(&file, "[scenario]\nbogus = 1\n").unwrap();
        let error = format!("{:#}", Bars::read(&file).unwrap_err());
        assert!(error.contains("bars.toml") && error.contains("bogus"), "{error}");
    }
}
