//! Prints the figures of a cluster for people and for programs.

use super::Row;
use anyhow::Result;
use std::io::{Write as _, stdout};

/// Prints a table.
///
/// # Errors
/// The output cannot be written.
pub fn print_table(rows: &[Row]) -> Result<()> {
    let mut out = stdout().lock();
    for row in rows {
        writeln!(out, "{}: {} nodes, {} GPUs, {} jobs in a day", row.policy, row.nodes, row.gpus, row.jobs)?;
        writeln!(
            out,
            "  API server: {:.2} writes a second, {:.2} in the worst minute, {:.2} for each job",
            row.api_writes_per_s, row.api_writes_per_s_peak, row.api_writes_per_job
        )?;
        writeln!(
            out,
            "  each node, an hour: {:.1} decisions, {:.1} messages",
            row.decisions_per_node_h, row.messages_per_node_h
        )?;
        writeln!(
            out,
            "  jobs: refused {} ({} though a GPU had room), pending though a GPU had room {}, waited on a node {} ({} though a GPU had room)",
            row.refused,
            row.refused_though_room,
            row.pending_though_room,
            row.waited_on_node,
            row.waited_though_room
        )?;
        writeln!(
            out,
            "  until the start: {:.1} s (mean), {:.1} s (99 %); not started {}; GPUs used {:.1} %",
            row.wait_s_mean,
            row.wait_s_p99,
            row.not_started,
            row.used * 100.0
        )?;
    }
    Ok(())
}
