//! `deepres ps --coverage`: how each process reached the driver, and which calls bypassed deepres.

use super::print_table;
use anyhow::{Result, bail};
use deepres_model::admin::client::Client;
use deepres_model::admin::{ProcessCoverage, Reply, Request};
use std::io::{self, Write};

/// Asks the daemon for the coverage of all processes.
pub fn ask() -> Result<Vec<ProcessCoverage>> {
    match Client::connect()?.ask(&Request::Coverage)? {
        Reply::Coverage { processes } => Ok(processes),
        other => bail!(
            "the daemon sent an unexpected reply: {other:?}; use one deepres release for the daemon and this command"
        ),
    }
}

/// Prints the daemon's answer for people.
pub fn print(processes: &[ProcessCoverage], out: &mut impl Write) -> io::Result<()> {
    if processes.is_empty() {
        return writeln!(out, "no processes; start one with `deepres run -- COMMAND`");
    }
    let mut rows =
        vec![["TENANT", "PID", "HOOKED", "FORWARDED", "BYPASSED", "PROGRAM"].map(str::to_owned).to_vec()];
    for process in processes {
        rows.push(vec![
            process.tenant.clone(),
            process.pid.to_string(),
            process.hooked.len().to_string(),
            process.forwarded.len().to_string(),
            process.past().to_string(),
            process.client.clone(),
        ]);
    }
    print_table(&rows, out)?;
    for process in processes {
        let lines = remarks(process);
        if !lines.is_empty() {
            writeln!(out, "\n{} ({}):", process.pid, process.tenant)?;
        }
        for line in lines {
            writeln!(out, "  {line}")?;
        }
    }
    Ok(())
}

/// Returns the remarks on a process, one for each line: unmetered calls, reasons for forwarding,
/// and bypasses.
fn remarks(process: &ProcessCoverage) -> Vec<String> {
    let mut lines: Vec<String> = process
        .unaccounted
        .iter()
        .map(|calls| {
            let what = match calls.class.as_str() {
                "work" => "work that is neither gated nor metered",
                "memory" => "device memory that is not charged",
                _ => "host memory, which has no limit",
            };
            format!("{} called {} times: {what}", calls.function, calls.calls)
        })
        .collect();
    lines.extend(process.bypassed.iter().map(|bypassed| {
        format!("{} calls let through ({}): {}", bypassed.calls, bypassed.reason, bypassed.help)
    }));
    if !process.forwarded_because.is_empty() {
        let reasons: Vec<String> =
            process.forwarded_because.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        lines.push(format!("forwarded by their kind: {}", reasons.join(", ")));
    }
    for (count, what) in [
        (
            process.other_instance,
            "functions from another copy of the driver library: deepres does not see their launches",
        ),
        (
            process.unknown_address,
            "functions at addresses that no export has: deepres does not see their launches",
        ),
        (process.unknown_names, "functions that this deepres does not know: the driver is newer"),
        (
            process.bound_past,
            "libraries bound to the driver itself (by RTLD_DEEPBIND or dlmopen): deepres does not see their launches and allocations",
        ),
        (
            process.given_lookups,
            "times a library that is loaded after deepres got the C library's own dlsym: deepres does not see the functions that it finds",
        ),
        (
            process.lost_ways,
            "ways of look-up lead to the driver's own cuLaunchKernel: deepres does not see launches by them",
        ),
        (
            process.export_tables,
            "requests for private tables of the driver: deepres does not see calls through them",
        ),
    ] {
        if count != 0 {
            lines.push(format!("{count} {what}"));
        }
    }
    if process.is_other_version {
        lines.push(
            "the process has another version of deepres, so this command cannot name the functions"
                .to_owned(),
        );
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_model::admin::{BypassedCalls, UnaccountedCalls};
    use std::collections::BTreeMap;

    fn process() -> ProcessCoverage {
        ProcessCoverage {
            tenant: "train".to_owned(),
            pid: 7,
            client: "python train.py".to_owned(),
            hooked: vec!["cuLaunchKernel".to_owned()],
            forwarded: Vec::new(),
            forwarded_because: BTreeMap::new(),
            unaccounted: Vec::new(),
            bypassed: Vec::new(),
            other_instance: 0,
            unknown_address: 0,
            unknown_names: 0,
            export_tables: 0,
            bound_past: 0,
            given_lookups: 0,
            lost_ways: 0,
            is_other_version: false,
        }
    }

    fn printed(process: ProcessCoverage) -> String {
        let mut out = Vec::new();
        print(&[process], &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_process_of_which_everything_is_seen_is_one_line() {
        assert_eq!(printed(process()).lines().count(), 2);
    }

    #[test]
    fn each_call_that_bypassed_deepres_is_named_with_its_kind() {
        let calls = UnaccountedCalls {
            function: "cuIpcOpenMemHandle_v2".to_owned(),
            class: "memory".to_owned(),
            calls: 3,
        };
        let text = printed(ProcessCoverage { unaccounted: vec![calls], export_tables: 2, ..process() });
        assert!(
            text.contains("cuIpcOpenMemHandle_v2 called 3 times: device memory that is not charged"),
            "{text}"
        );
        let because = BTreeMap::from([("code".to_owned(), 2), ("query".to_owned(), 31)]);
        let text_of_reasons = printed(ProcessCoverage { forwarded_because: because, ..process() });
        assert!(text_of_reasons.contains("forwarded by their kind: code 2, query 31"), "{text_of_reasons}");
        assert!(text.contains("2 requests for private tables"), "{text}");
    }

    #[test]
    fn calls_that_were_let_through_are_counted_with_their_reason() {
        let bypassed = BypassedCalls {
            reason: "no-event".to_owned(),
            help: "The driver gave none.".to_owned(),
            has_effect: true,
            calls: 4,
        };
        let text = printed(ProcessCoverage { bypassed: vec![bypassed], ..process() });
        assert!(text.contains("4 calls let through (no-event): The driver gave none."), "{text}");
        let columns: Vec<&str> = text.lines().nth(1).unwrap_or_default().split_whitespace().collect();
        assert_eq!(columns.get(4), Some(&"4"), "{text}");
    }
}
