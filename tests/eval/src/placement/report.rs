//! Prints the figures of placement for people and for programs.

use std::io::{Write as _, stdout};

use anyhow::Result;

use super::Report;

/// Prints `{"rows": […], "skipped": […]}`.
///
/// # Errors
/// The output cannot be written.
pub fn print_json(report: &Report) -> Result<()> {
    serde_json::to_writer_pretty(stdout().lock(), report)?;
    writeln!(stdout())?;
    Ok(())
}

/// Prints a table for each matrix.
///
/// # Errors
/// The output cannot be written.
pub fn print_table(report: &Report) -> Result<()> {
    let mut out = stdout().lock();
    let mut matrix = "";
    for row in &report.rows {
        if row.matrix != matrix {
            matrix = &row.matrix;
            writeln!(out, "\n{matrix}: {} GPUs", row.gpus)?;
            let columns = ("policy", "mean/best", "weakest/best", "refused", "p2p missed");
            let (policy, mean, worst, refused, missed) = columns;
            writeln!(out, "  {policy:<18}{mean:>10}{worst:>14}{refused:>9}{missed:>12}")?;
        }
        writeln!(
            out,
            "  {:<18}{:>10.3}{:>14.3}{:>9}{:>12}",
            row.policy,
            row.bandwidth_vs_best_mean,
            row.bandwidth_vs_best_worst,
            row.refused_though_free,
            row.p2p_missed
        )?;
    }
    for skipped in &report.skipped {
        writeln!(out, "\n{}: skipped: {}", skipped.matrix, skipped.reason)?;
    }
    Ok(())
}
