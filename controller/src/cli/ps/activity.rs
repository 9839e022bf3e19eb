//! The part of `deepres ps -v` about what processes do in the driver.

use super::{print_table, time};
use deepres_controller::admin::Status;
use deepres_controller::quantity::Bytes;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Prints it, if anything is known.
pub fn print(status: &Status, out: &mut impl Write) -> io::Result<()> {
    if status.driver_activity.is_empty() {
        return Ok(());
    }
    let sessions = status
        .tenants
        .iter()
        .flat_map(|tenant| tenant.sessions.iter().map(move |session| (session.pid, tenant.name.as_str())));
    let metered = status
        .metering
        .processes
        .iter()
        .filter_map(|process| Some((process.pid, process.tenant.as_deref()?)));
    let tenants: BTreeMap<u32, &str> = sessions.chain(metered).collect();
    let head =
        ["IN DRIVER", "PID", "CALLS", "ERRORS", "BLOCKED", "LONGEST", "MEMORY CALLS", "MEMORY", "LAST"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for activity in &status.driver_activity {
        rows.push(vec![
            tenants.get(&activity.pid).map_or("-", |tenant| tenant).to_owned(),
            activity.pid.to_string(),
            activity.calls.to_string(),
            activity.errors.to_string(),
            time(activity.time_ns),
            time(activity.longest_ns),
            activity.memory_calls.to_string(),
            Bytes(activity.bytes).to_string(),
            format!("{} ago", time(status.now_ns.saturating_sub(activity.last_ns))),
        ]);
    }
    writeln!(out)?;
    print_table(&rows, out)
}
