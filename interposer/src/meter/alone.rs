//! Whether the job's own threads have all ended. A program whose first thread ends by itself (`pthread_exit`) goes on until its last thread ends,
//! and then it exits: ours are not to be that last one.

use std::fs;

/// The meter thread's name.
pub const METER: &str = "deepres-meter";
/// The name of the thread that writes what is recorded.
pub const RECORD: &str = "deepres-record";

/// Whether the first thread has ended and no other is left that is not ours.
pub fn is_left() -> bool {
    let first = std::process::id().to_string();
    has_ended(&first)
        && threads().is_some_and(|mut threads| threads.all(|thread| thread == first || is_ours(&thread)))
}

/// Whether the first thread is a zombie: the others of its process live on.
fn has_ended(first: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{first}/stat")).unwrap_or_default();
    // Its name stands in parentheses, and may have any characters in it.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
}

fn threads() -> Option<impl Iterator<Item = String>> {
    let entries = fs::read_dir("/proc/self/task").ok()?;
    Some(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()))
}

fn is_ours(thread: &str) -> bool {
    // One that ended meanwhile has no name and is nobody's.
    fs::read_to_string(format!("/proc/self/task/{thread}/comm"))
        .map_or(true, |name| [METER, RECORD].contains(&name.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_threads_is_not_left() {
        assert!(!is_left() && !has_ended("1"));
        assert!(threads().unwrap().count() > 1, "the test's own beside the first");
    }
}
