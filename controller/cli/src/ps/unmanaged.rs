//! The part of `deepres ps` about unmanaged processes.

use super::{Shown, cells, heads, pid, print_cut};
use deepres_model::admin::{Status, UnmanagedStatus};
use std::io::{self, Write};

/// Prints the unmanaged processes, if there are any.
pub fn print(status: &Status, shown: Shown, out: &mut impl Write) -> io::Result<()> {
    if status.unmanaged.is_empty() {
        return Ok(());
    }
    const FIELDS: [&str; 7] = ["state", "pid", "uid", "container", "kind", "seen_by", "command"];
    let mut rows = vec![heads::<UnmanagedStatus>(&FIELDS)];
    for user in &status.unmanaged {
        let mut row = cells(user, &FIELDS);
        if let Some(tenant) = &user.tenant {
            row[0] = format!("{} ({tenant})", user.state);
        } else if let Some(tenant) = &user.started_by {
            row[0] = format!("{} (of {tenant})", user.state);
        }
        row[1] = pid(user.pid, user.container_pid);
        rows.push(row);
    }
    const STATE: usize = 0;
    const CONTAINER: usize = 3;
    const SEEN_BY: usize = 5;
    const COMMAND: usize = 6;
    writeln!(out)?;
    print_cut(rows, &[COMMAND, SEEN_BY, CONTAINER, STATE], shown, out)
}
