//! The part of `deepres ps` about unmanaged processes.

use super::{pid, print_table};
use deepres_model::admin::Status;
use std::io::{self, Write};

/// Prints the unmanaged processes, if there are any.
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
        rows.push(vec![
            state,
            pid(user.pid, user.container_pid),
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
