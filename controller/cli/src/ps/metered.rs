//! The part of `deepres ps` about programs that are metered from outside.

use super::{Shown, cells, heads, pid, print_cut};
use deepres_model::admin::{MeteredStatus, Status};
use std::io::{self, Write};

/// Prints the processes that are metered from outside, if there are any.
pub fn print(status: &Status, shown: Shown, out: &mut impl Write) -> io::Result<()> {
    let metering = &status.metering;
    if metering.processes.is_empty() {
        return Ok(());
    }
    const TENANT: usize = 1;
    const PID: usize = 2;
    const COMMAND: usize = 8;
    const FIELDS: [&str; 9] = [
        "state",
        "tenant",
        "pid",
        "launches",
        "graph_launches",
        "allocations",
        "allocated_bytes",
        "frees",
        "command",
    ];
    let mut rows = vec![heads::<MeteredStatus>(&FIELDS)];
    for process in &metering.processes {
        let mut row = cells(process, &FIELDS);
        row[PID] = pid(process.pid, process.container_pid);
        rows.push(row);
    }
    writeln!(out)?;
    print_cut(rows, &[COMMAND, TENANT], shown, out)?;
    for process in &metering.processes {
        if let Some(problem) = &process.problem {
            writeln!(out, "{}: {problem}", process.pid)?;
        }
        if shown.is_verbose {
            for (function, calls) in &process.functions {
                writeln!(out, "{}: {function} {calls}", process.pid)?;
            }
        }
    }
    if metering.uncounted_calls > 0 || metering.uncounted_processes > 0 {
        writeln!(
            out,
            "uncounted for lack of room: {} calls, {} child processes",
            metering.uncounted_calls, metering.uncounted_processes
        )?;
    }
    Ok(())
}
