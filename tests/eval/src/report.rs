//! Prints rows for people and for programs.

use std::io::{Write as _, stdout};

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use crate::metrics::Row;
use crate::sweep::{Mix, Sweep};

/// Prints `{"rows": […]}`.
///
/// # Errors
/// The output cannot be written.
pub fn print_json(rows: &[impl Serialize]) -> Result<()> {
    serde_json::to_writer_pretty(stdout().lock(), &json!({ "rows": rows }))?;
    writeln!(stdout())?;
    Ok(())
}

/// Prints a table for each scenario.
pub fn print_table(rows: &[Row]) -> Result<()> {
    let mut out = stdout().lock();
    let mut scenario = "";
    for row in rows {
        if row.scenario != scenario {
            scenario = &row.scenario;
            writeln!(out, "\n{scenario}: {}", row.shows)?;
            writeln!(
                out,
                "  {:<18}{:>11}{:>9}{:>10}{:>8}{:>9}{:>9}{:>7}{:>8}{:>6}{:>9}{:>9}{:>9}{:>10}{:>10}{:>11}{:>12}{:>8}",
                "policy",
                "throughput",
                "utilis.",
                "vs static",
                "vs gps",
                "lag ms",
                "bound ms",
                "jain",
                "missed",
                "due",
                "p50 ms",
                "p99 ms",
                "added",
                "prod.",
                "harvested",
                "worst/gps",
                "worst/noth.",
                "bound"
            )?;
        }
        let or_dash = |value: Option<f64>, decimals: usize| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
        };
        writeln!(
            out,
            "  {:<18}{:>11.3}{:>9.3}{:>10.2}{:>8.3}{:>9.1}{:>9.1}{:>7.3}{:>8}{:>6}{:>9}{:>9}{:>9}{:>10}{:>10}{:>11}{:>12}{:>8}",
            row.policy,
            row.throughput,
            row.utilisation,
            row.progress_vs_static,
            row.progress_vs_gps,
            row.max_lag_ms,
            row.lag_bound_ms,
            row.jain,
            or_dash(row.slo_miss_ratio, 3),
            or_dash(row.deadlines_met, 2),
            or_dash(row.p50_ms, 2),
            or_dash(row.p99_ms, 2),
            or_dash(row.p99_added_ms, 2),
            or_dash(row.production_speed, 4),
            or_dash(row.harvested_fraction, 3),
            or_dash(row.worst_progress_vs_gps, 3),
            or_dash(row.worst_vs_nothing, 3),
            or_dash(row.bound, 3),
        )?;
    }
    Ok(())
}

/// Prints a sweep's figures as JSON.
pub fn print_sweep_json(sweep: &Sweep) -> Result<()> {
    serde_json::to_writer_pretty(stdout().lock(), sweep)?;
    writeln!(stdout())?;
    Ok(())
}

/// Prints a sweep as tables: the distribution of the figures, and the worst mixes.
pub fn print_sweep(sweep: &Sweep) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{} mixes, progress of the worst tenant of each under deepres:", sweep.mixes)?;
    writeln!(out, "  {:<22}{:>8}{:>8}{:>8}{:>8}{:>8}", "", "worst", "1 %", "5 %", "25 %", "50 %")?;
    for (name, figure) in Mix::FIGURES {
        let mut values: Vec<f64> = sweep.each.iter().map(figure).collect();
        values.sort_by(f64::total_cmp);
        write!(out, "  {name:<22}")?;
        for part in [0.0, 0.01, 0.05, 0.25, 0.5] {
            write!(out, "{:>8.3}", values[(values.len() as f64 * part) as usize])?;
        }
        writeln!(out)?;
    }
    writeln!(
        out,
        "\n  {:<44}{:>8}{:>9}{:>9}{:>12}",
        "the worst mixes", "tenants", "of gps", "bound", "of nothing"
    )?;
    for (mix, file) in sweep.worst() {
        let file = file.display().to_string();
        writeln!(
            out,
            "  {file:<44}{:>8}{:>9.3}{:>9.3}{:>12.3}",
            mix.tenants, mix.vs_gps, mix.bound, mix.vs_nothing
        )?;
    }
    Ok(())
}
