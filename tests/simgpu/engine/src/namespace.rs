//! Process ids across pid namespaces: a process knows its own id in its own namespace alone, and whoever looks at it from
//! outside knows it by another.

use std::{fs, os::unix::fs::MetadataExt};

/// The pid namespace of this process; 0 if the system does not say.
pub fn own() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

/// When this process started.
pub fn own_start_time() -> u64 {
    start_time("self").unwrap_or_default()
}

/// Field 22 of /proc/PID/stat, the same in every pid namespace.
fn start_time(process: &str) -> Option<u64> {
    /// Counted from the field after the name, which may hold anything, blanks and parentheses included.
    const FIELD_AFTER_NAME: usize = 19;
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(") ")?;
    after_name.split(' ').nth(FIELD_AFTER_NAME)?.parse().ok()
}

/// The id that a living process of another namespace has here, if it has one.
pub fn pid_here(namespace: u64, pid: u32, start: u64) -> Option<u32> {
    let is_it = |process: &str| {
        // Most processes are told apart by the first of these.
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

/// The id of a process in its own namespace: the last that /proc/PID/status gives.
fn innermost_pid(process: &str) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    ids.split_whitespace().next_back()?.parse().ok()
}
