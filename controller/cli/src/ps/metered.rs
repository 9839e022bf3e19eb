//! The part of `deepres ps` about programs that are metered from outside.

use super::{pid, print_table};
use deepres_model::admin::Status;
use deepres_model::quantity::Bytes;
use std::io::{self, Write};

/// Prints the processes that are metered from outside, if there are any.
pub fn print(status: &Status, verbose: bool, out: &mut impl Write) -> io::Result<()> {
    let metering = &status.metering;
    if metering.processes.is_empty() {
        return Ok(());
    }
    let head =
        ["METERED", "TENANT", "PID", "LAUNCHES", "GRAPHS", "ALLOCATIONS", "ASKED FOR", "FREES", "COMMAND"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for process in &metering.processes {
        rows.push(vec![
            process.state.clone(),
            process.tenant.clone().unwrap_or_else(|| "-".to_owned()),
            pid(process.pid, process.container_pid),
            process.launches.to_string(),
            process.graph_launches.to_string(),
            process.allocations.to_string(),
            Bytes(process.allocated_bytes).to_string(),
            process.frees.to_string(),
            process.command.clone(),
        ]);
    }
    writeln!(out)?;
    print_table(&rows, out)?;
    for process in &metering.processes {
        if let Some(problem) = &process.problem {
            writeln!(out, "{}: {problem}", process.pid)?;
        }
        if verbose {
            for (function, calls) in &process.functions {
                writeln!(out, "{}: {function} {calls}", process.pid)?;
            }
        }
    }
    if metering.uncounted_calls > 0 || metering.uncounted_processes > 0 {
        writeln!(
            out,
            "not counted for want of room: {} calls, {} children",
            metering.uncounted_calls, metering.uncounted_processes
        )?;
    }
    Ok(())
}
