//! The part of `deepres ps` about processes that use a GPU and are no tenant's.

use super::print_table;
use deepres_controller::admin::Status;
use std::io::{self, Write};

/// Prints them, if there are any.
pub fn print(status: &Status, out: &mut impl Write) -> io::Result<()> {
    if status.unmanaged.is_empty() {
        return Ok(());
    }
    let head =
        ["UNMANAGED", "PID", "UID", "CONTAINER", "KIND", "SEEN BY", "COMMAND"].map(str::to_owned).to_vec();
    let mut rows = vec![head];
    for user in &status.unmanaged {
        let state = match &user.tenant {
            Some(tenant) => format!("{} ({tenant})", user.state),
            None => user.state.clone(),
        };
        let pid = match user.container_pid {
            Some(inner) => format!("{} ({inner})", user.pid),
            None => user.pid.to_string(),
        };
        rows.push(vec![
            state,
            pid,
            user.uid.to_string(),
            user.container.clone().unwrap_or_else(|| "-".to_owned()),
            user.kind.clone(),
            user.seen_by.join(","),
            user.command.clone(),
        ]);
    }
    writeln!(out)?;
    print_table(&rows, out)
}
