//! Prints rows for people and for programs.

use std::io::{Write as _, stdout};

use anyhow::Result;
use serde_json::json;

use crate::metrics::Row;

/// Prints `{"rows": […]}`.
pub fn print_json(rows: &[Row]) -> Result<()> {
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
                "  {:<18}{:>11}{:>9}{:>10}{:>8}{:>9}{:>9}{:>7}{:>8}{:>6}{:>9}{:>9}{:>9}{:>10}{:>10}",
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
                "harvested"
            )?;
        }
        let or_dash = |value: Option<f64>, decimals: usize| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
        };
        writeln!(
            out,
            "  {:<18}{:>11.3}{:>9.3}{:>10.2}{:>8.3}{:>9.1}{:>9.1}{:>7.3}{:>8}{:>6}{:>9}{:>9}{:>9}{:>10}{:>10}",
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
        )?;
    }
    Ok(())
}
