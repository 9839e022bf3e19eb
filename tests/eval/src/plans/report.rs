//! Prints the figures of plans for people and for programs.

use std::io::{Write as _, stdout};

use anyhow::Result;

use super::{Row, bars};

/// Prints a table, ms.
///
/// # Errors
/// The output cannot be written.
pub fn print_table(rows: &[Row]) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(
        out,
        "{:<34}{:>11}{:>9}{:>9}{:>9}{:>9}{:>9}{:>10}{:>9}{:>10}{:>9}{:>6}{:>9}",
        "mix, ms",
        "sequential",
        "temporal",
        "streams",
        "mps",
        "planned",
        "bound",
        "of bound",
        "by mps",
        "of bound",
        "gain",
        "cuts",
        "offline"
    )?;
    for row in rows {
        let shown = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2}"));
        writeln!(
            out,
            "{:<34}{:>11.2}{:>9.2}{:>9.2}{:>9.2}{:>9.2}{:>9.2}{:>10.3}{:>9.2}{:>10.3}{:>9}{:>6}{:>9}",
            row.mix,
            row.sequential_ms,
            row.temporal_ms,
            row.streams_ms,
            row.mps_ms,
            row.planned_ms,
            row.bound_ms,
            row.of_bound(),
            row.planned_mps_ms,
            row.of_bound_by_mps(),
            if row.installed { format!("{:.3}", row.gain) } else { "no plan".to_owned() },
            row.cuts,
            shown(row.offline_ms),
        )?;
    }
    let means =
        [Row::of_bound, Row::of_bound_by_mps].map(|part| bars::mean_of_six(rows, |row| Some(part(row))));
    if let [Some(mean), Some(by_mps)] = means {
        writeln!(out, "mean of the 35 mixes: {mean:.3} of the bound, and {by_mps:.3} by MPS")?;
    }
    if let Some(mean) = bars::mean_of_six(rows, bars::of_offline) {
        writeln!(out, "mean of the 35 mixes: {mean:.3} of the best plan of the long search")?;
    }
    Ok(())
}
