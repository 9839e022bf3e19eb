//! The identity of a process: its id and its start time. No other process has the same id and start
//! time.

use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Position of the state in /proc/PID/stat, counted from the field after the command's name.
const STATE_FIELD: usize = 0;
/// Position of the number of threads in /proc/PID/stat, counted from the field after the command's
/// name.
const THREADS_FIELD: usize = 17;
/// Position of the start time in /proc/PID/stat, counted from the field after the command's name.
const START_FIELD: usize = 19;

/// The most threads of a process whose states are read. A stop signal stops all threads of a
/// process, except those that wait for a device. A process can have any number of threads.
const MOST_THREADS: usize = 16;
/// The text that the kernel appends to the path of a program whose file is gone.
const GONE: &[u8] = b" (deleted)";
/// The program of this process, even if its file is gone.
const OWN: &str = "/proc/self/exe";

/// Returns the path by which this process can start its own program. If a package manager has
/// replaced the file of the program, returns the path of the new file.
///
/// # Errors
/// The system's error if `/proc` is not there.
pub fn own_program() -> io::Result<PathBuf> {
    Ok(present_program(&std::env::current_exe()?))
}

/// Returns the present file for the path of a running program, as the kernel gives the path.
fn present_program(path: &Path) -> PathBuf {
    let named = path.as_os_str().as_bytes();
    let named = Path::new(OsStr::from_bytes(named.strip_suffix(GONE).unwrap_or(named)));
    [path, named].into_iter().find(|path| path.is_file()).unwrap_or(Path::new(OWN)).to_owned()
}

/// A process, identified by its id and start time. The kernel reuses process ids, but never for the
/// same start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessKey {
    /// The process's id.
    pub pid: u32,
    /// The start time, clock ticks since the machine started.
    pub start_ticks: u64,
}

impl ProcessKey {
    /// Returns the key of the living process `pid`. Returns `None` if no such process lives, or if
    /// /proc does not show it.
    pub fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, start_ticks: start_ticks(&stat(pid)?)? })
    }

    /// Returns whether the process still lives.
    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Returns whether the process lives and a signal or a debugger has stopped it.
    pub fn is_stopped(self) -> bool {
        let stat = stat(self.pid).unwrap_or_default();
        start_ticks(&stat) == Some(self.start_ticks)
            && match state(&stat) {
                Some("Z") => self.are_threads_stopped(),
                state => is_stopped(state),
            }
    }

    /// Returns whether a stop signal for the process is pending. If a thread waits for a device,
    /// the kernel delivers the signal only after the device has answered.
    pub fn is_being_stopped(self) -> bool {
        let is_sent = text(self.pid, "status").is_some_and(|status| has_pending_stop(&status));
        is_sent && self.is_alive()
    }

    /// Returns whether one of the first threads of the process is stopped. If the very first thread
    /// has ended, the others show whether the process is stopped.
    fn are_threads_stopped(self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
        let ids = threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok());
        ids.take(MOST_THREADS).filter_map(stat).any(|stat| is_stopped(state(&stat)))
    }
}

/// Returns the stat line of a process, as its first thread shows it; `None` if it cannot be read.
/// The line in `/proc/PID/stat` has the same fields, but sums the times of all threads. For a
/// process with thousands of threads, this takes the kernel half a millisecond.
pub fn stat(pid: u32) -> Option<String> {
    text(pid, &format!("task/{pid}/stat"))
}

/// Returns the text of a file of /proc/PID; `None` if the file cannot be read. Names of commands
/// and cgroups can have any bytes, so the conversion to text is lossy.
pub fn text(pid: u32, file: &str) -> Option<String> {
    std::fs::read(format!("/proc/{pid}/{file}"))
        .ok()
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn is_stopped(state: Option<&str>) -> bool {
    matches!(state, Some("T" | "t"))
}

/// Returns whether SIGSTOP is pending for a process. `status` is the text of the process's status
/// file.
fn has_pending_stop(status: &str) -> bool {
    const SIGSTOP: u64 = 1 << (libc::SIGSTOP - 1);
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    pending.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & SIGSTOP != 0))
}

/// Returns the state of a process, for example `S`, that a line of `/proc/PID/stat` contains.
fn state(stat: &str) -> Option<&str> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(STATE_FIELD)
}

/// Returns the start time in a stat line. Returns `None` for a zombie: a dead process for which its
/// parent has not waited.
fn start_ticks(stat: &str) -> Option<u64> {
    // The name of the command can hold spaces and parentheses, but no later field does.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.nth(STATE_FIELD)?;
    let threads: u64 = fields.nth(THREADS_FIELD - STATE_FIELD - 1)?.parse().ok()?;
    let start = fields.nth(START_FIELD - THREADS_FIELD - 1)?;
    // The state in the line is that of the first thread, which may have ended before the others.
    let is_dead = matches!(state, "Z" | "X") && threads <= 1;
    if is_dead { None } else { start.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_process_is_known_by_its_start_and_a_dead_one_is_none() {
        let own = ProcessKey::of(std::process::id()).unwrap();
        assert!(own.is_alive() && own.start_ticks > 0);
        assert!(!ProcessKey { start_ticks: own.start_ticks + 1, ..own }.is_alive());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let key = ProcessKey::of(child.id());
        child.wait().unwrap();
        assert!(key.is_none_or(|key| !key.is_alive()));
    }

    #[test]
    fn a_replaced_program_is_found_again_and_a_removed_one_still_runs() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        let gone = folder.path().join("program (deleted)");
        assert_eq!(present_program(&gone), Path::new(OWN));
        std::fs::write(&program, "").unwrap();
        assert_eq!(present_program(&program), program);
        assert_eq!(present_program(&gone), program);
    }

    #[test]
    fn a_stopped_process_is_told_from_one_that_goes_on() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let key = ProcessKey::of(child.id()).unwrap();
        let signal = |signal| {
            rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
        };
        let until = |stopped: bool| {
            while key.is_stopped() != stopped {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        };
        until(false);
        signal(rustix::process::Signal::STOP);
        until(true);
        signal(rustix::process::Signal::CONT);
        until(false);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!key.is_stopped());
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_is_stopped_when_its_others_are() {
        let script = "import ctypes, threading, time\n\
                      threading.Thread(target=time.sleep, args=(60,)).start()\n\
                      ctypes.CDLL(None).pthread_exit(None)";
        let mut child = std::process::Command::new("python3").args(["-c", script]).spawn().unwrap();
        let key = ProcessKey::of(child.id()).unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let first_thread = || state(&text(key.pid, "stat").unwrap_or_default()).map(str::to_owned);
        while first_thread().as_deref() != Some("Z") {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(key.is_alive() && !key.is_stopped());
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        while !key.is_stopped() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_is_read_by_its_first_thread_alone() {
        let own = std::process::id();
        let fields = |text: String| {
            let after_name = text.rsplit_once(')').unwrap().1.to_owned();
            let fields: Vec<String> = after_name.split_ascii_whitespace().map(str::to_owned).collect();
            [STATE_FIELD + 1, THREADS_FIELD, START_FIELD].map(|field| fields[field].clone())
        };
        let whole = fields(text(own, "stat").unwrap());
        assert_eq!(fields(stat(own).unwrap()), whole, "the fields that count are the same");
        let thread = std::fs::read_link("/proc/thread-self").unwrap();
        let task: u32 = thread.file_name().unwrap().to_str().unwrap().parse().unwrap();
        assert!(stat(task).is_some(), "also for a thread's id");
    }

    #[test]
    fn a_stop_that_has_been_sent_is_told_from_other_signals() {
        assert!(has_pending_stop("Name:\tx\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000040000\n"));
        for status in ["ShdPnd:\t0000000000020000\n", "SigBlk:\t0000000000040000\n", "ShdPnd:\tx\n", ""] {
            assert!(!has_pending_stop(status), "{status}");
        }
    }

    #[test]
    fn a_process_with_a_name_that_is_no_text_lives() {
        std::fs::write("/proc/thread-self/comm", b"caf\xc3").unwrap();
        let thread = std::fs::read_link("/proc/thread-self").unwrap();
        let task: u32 = thread.file_name().unwrap().to_str().unwrap().parse().unwrap();
        assert!(std::fs::read_to_string(format!("/proc/{task}/stat")).is_err(), "the name is no text");
        assert!(ProcessKey::of(task).is_some_and(ProcessKey::is_alive));
    }

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let fields = "S 1 1 1 0 -1 4194304 1 0 0 0 1 2 0 0 20 0 1 0 4711 1 2";
        assert_eq!(start_ticks(&format!("7 (a) Z (b)) {fields}")), Some(4711));
        assert_eq!(start_ticks(&format!("7 (x) {}", fields.replacen('S', "Z", 1))), None);
        let goes_on = fields.replacen('S', "Z", 1).replacen(" 0 1 0 4711", " 0 2 0 4711", 1);
        assert_eq!(start_ticks(&format!("7 (x) {goes_on}")), Some(4711), "its other threads live");
        assert_eq!(start_ticks("7 (x) S 1"), None);
        assert_eq!(start_ticks(""), None);
    }
}
