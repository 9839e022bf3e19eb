//! Prints the figures of packing for people and for programs.

use std::io::{Write as _, stdout};

use anyhow::Result;

use super::Row;

/// Prints a table for each scenario.
///
/// # Errors
/// The output cannot be written.
pub fn print_table(rows: &[Row]) -> Result<()> {
    let mut out = stdout().lock();
    let mut scenario = "";
    let shown = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.3}"));
    for row in rows {
        if row.scenario != scenario {
            scenario = &row.scenario;
            writeln!(
                out,
                "\n{scenario}: bounds on the throughput: area {:.2}, configurations {}, runs of one tenant {:.2}; \
                 exact search {}",
                row.bound_area,
                shown(row.bound_lp),
                row.bound_critical_path,
                shown(row.bound_exact),
            )?;
            writeln!(
                out,
                "  {:<18}{:>11}{:>7}{:>12}{:>8}{:>10}{:>10}{:>7}",
                "policy", "x temporal", "area", "request SLO", "misses", "vs exact", "vs ideal", "vs LP"
            )?;
        }
        writeln!(
            out,
            "  {:<18}{:>11.3}{:>7.3}{:>12}{:>8}{:>10}{:>10}{:>7}",
            row.policy,
            row.throughput_vs_temporal,
            row.area_utilisation,
            shown(row.request_slo),
            shown(row.run_misses),
            shown(row.vs_exact),
            shown(row.vs_ideal),
            shown(row.vs_lp),
        )?;
    }
    Ok(())
}
