//! The part of `deepres ps -v` about the calls of processes to the driver.

use super::{cells, heads, pid, print_table, time};
use deepres_model::admin::{ActivityStatus, CommandStatus, DriverStatus, Status};
use deepres_model::quantity::Bytes;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// The most commands that the table shows for one process. The commands that took the most time
/// come first.
const COMMANDS_SHOWN: usize = 5;
const MEDIAN_PERMILLE: u64 = 500;
const TAIL_PERMILLE: u64 = 990;
const NS_PER_US: f64 = 1e3;

/// Prints the calls of processes to the driver, if there are any.
pub fn print(status: &Status, out: &mut impl Write) -> io::Result<()> {
    print_tenants(status, out)?;
    if status.driver_activity.is_empty() {
        return Ok(());
    }
    let sessions = status
        .tenants
        .iter()
        .flat_map(|tenant| tenant.sessions.iter().map(move |session| (session.pid, tenant.name.as_str())));
    let metered =
        status.metering.living().filter_map(|process| Some((process.pid, process.tenant.as_deref()?)));
    let tenants: BTreeMap<u32, &str> = sessions.chain(metered).collect();
    const SUMS: [&str; 7] =
        ["calls", "errors", "time_ns", "longest_ns", "memory_calls", "allocated_bytes", "mapped_bytes"];
    let head = [
        vec!["IN DRIVER".to_owned()],
        heads::<ActivityStatus>(&["pid"]),
        heads::<ActivityStatus>(&SUMS),
        heads::<ActivityStatus>(&["last_ns"]),
    ];
    let mut rows = vec![head.concat()];
    for activity in &status.driver_activity {
        let tenant = tenants.get(&activity.pid).map_or("-", |tenant| tenant).to_owned();
        let last = format!("{} ago", time(status.now_ns.saturating_sub(activity.last_ns)));
        let process = vec![tenant, pid(activity.pid, activity.container_pid)];
        rows.push([process, cells(activity, &SUMS), vec![last]].concat());
    }
    writeln!(out)?;
    print_table(&rows, out)?;
    const CALLS: [&str; 4] = ["device", "calls", "errors", "time_ns"];
    let latencies = ["P50", "P99"].map(str::to_owned).to_vec();
    let head = [
        heads::<CommandStatus>(&["name"]),
        heads::<ActivityStatus>(&["pid"]),
        heads::<CommandStatus>(&CALLS),
        latencies,
        heads::<CommandStatus>(&["longest_ns"]),
    ];
    let mut rows = vec![head.concat()];
    for activity in &status.driver_activity {
        for command in activity.commands.iter().take(COMMANDS_SHOWN) {
            let quantiles = [MEDIAN_PERMILLE, TAIL_PERMILLE].map(|permille| command.quantile_ns(permille));
            let latencies = quantiles.into_iter().chain([command.longest_ns]).map(latency).collect();
            let process = cells(activity, &["pid"]);
            rows.push([cells(command, &["name"]), process, cells(command, &CALLS), latencies].concat());
        }
    }
    writeln!(out)?;
    print_table(&rows, out)?;
    let probes = &status.probes;
    if probes.unattributed > 0 || probes.untimed > 0 || probes.news_lost > 0 {
        writeln!(
            out,
            "for lack of room: {} calls are in no process's counters, {} calls are uncounted, {} first calls were reported late",
            probes.unattributed, probes.untimed, probes.news_lost
        )?;
    }
    if probes.missed > 0 {
        writeln!(
            out,
            "{} calls are uncounted, because the kernel did not report their return",
            probes.missed
        )?;
    }
    Ok(())
}

/// Prints the calls of each tenant's processes together: in total, and in the last seconds.
fn print_tenants(status: &Status, out: &mut impl Write) -> io::Result<()> {
    let head = [
        "TENANT IN DRIVER",
        "CALLS",
        "ERRORS",
        "BLOCKED",
        "ASKED FOR",
        "MAPPED",
        "CALLS/S",
        "BLOCKED/S",
        "ASKED/S",
        "MAPPED/S",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for tenant in status.tenants.iter().filter(|tenant| tenant.driver.sums.calls > 0) {
        let DriverStatus { sums, lately } = tenant.driver;
        rows.push(vec![
            tenant.name.clone(),
            sums.calls.to_string(),
            sums.errors.to_string(),
            time(sums.time_ns),
            Bytes(sums.allocated_bytes).to_string(),
            Bytes(sums.mapped_bytes).to_string(),
            lately.calls_per_s.to_string(),
            format!("{} ms", lately.blocked_permille),
            Bytes(lately.allocated_bytes_per_s).to_string(),
            Bytes(lately.mapped_bytes_per_s).to_string(),
        ]);
    }
    if rows.len() == 1 {
        return Ok(());
    }
    writeln!(out)?;
    print_table(&rows, out)
}

fn latency(ns: u64) -> String {
    format!("{:.1} us", ns as f64 / NS_PER_US)
}
