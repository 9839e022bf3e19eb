//! Process ids across pid namespaces. A process knows its id only in its own namespace. Observers
//! outside the namespace see the process under another id.

use std::{fs, os::unix::fs::MetadataExt};

/// Returns the pid namespace of this process, or 0 if /proc does not show it.
pub fn own() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

/// Returns the start time of this process, in clock ticks since the boot.
pub fn own_start_time() -> u64 {
    start_time("self").unwrap_or_default()
}

/// Returns field 22 of /proc/PID/stat, which is the same in every pid namespace.
fn start_time(process: &str) -> Option<u64> {
    /// Position of the start time, counted from the field after the name. The name can contain any
    /// character, including blanks and parentheses.
    const FIELD_AFTER_NAME: usize = 19;
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(") ")?;
    after_name.split(' ').nth(FIELD_AFTER_NAME)?.parse().ok()
}

/// Returns the id in this namespace of a living process of another namespace, if it has one.
pub fn pid_here(namespace: u64, pid: u32, start: u64) -> Option<u32> {
    let is_it = |process: &str| {
        // The start time alone distinguishes most processes.
        start_time(process) == Some(start)
            && fs::metadata(format!("/proc/{process}/ns/pid")).is_ok_and(|found| found.ino() == namespace)
            && innermost_pid(process) == Some(pid)
    };
    fs::read_dir("/proc")
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .find(|process| is_it(process))?
        .parse()
        .ok()
}

/// Returns the id of a process in its own namespace: the last id in the line NSpid of
/// /proc/PID/status.
fn innermost_pid(process: &str) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    ids.split_whitespace().next_back()?.parse().ok()
}
