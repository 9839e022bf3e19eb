//! Guarded child processes. Every wait is bounded, and no process outlives its test.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process};

use crate::host::COMMAND_LIMIT;
use crate::signals;

/// Time between two looks of a wait.
const POLL: Duration = Duration::from_millis(1);

/// A process in a group of its own. The process's standard output and error go to files. Drop kills
/// the process with its group.
pub struct Process {
    child: Child,
    what: String,
    stdout: PathBuf,
    stderr: PathBuf,
    status: Option<ExitStatus>,
}

/// The exit status and the output of a process that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// Exit code, or 128 + signal as shells report it.
    pub code: i32,
    /// Signal that ended the process.
    pub signal: Option<i32>,
    /// Everything that the process wrote to standard output.
    pub stdout: String,
    /// Everything that the process wrote to standard error.
    pub stderr: String,
}

impl Finished {
    /// Asserts that the process succeeded, and returns the output.
    #[track_caller]
    pub fn success(self) -> Self {
        assert_eq!(
            self.code, 0,
            "exit status {}\nstdout:\n{}\nstderr:\n{}",
            self.code, self.stdout, self.stderr
        );
        self
    }

    /// Asserts that the process failed and that its standard error contains `reason`. Returns the
    /// output.
    #[track_caller]
    pub fn refused(&self, reason: &str) -> &Self {
        assert!(self.code != 0 && self.stderr.contains(reason), "{reason:?} is not the reason of {self:?}");
        self
    }

    /// Returns the last line of standard output that is a JSON object.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        last_json(&self.stdout)
            .unwrap_or_else(|| panic!("no JSON in the output:\n{}\nstderr:\n{}", self.stdout, self.stderr))
    }
}

fn last_json(text: &str) -> Option<serde_json::Value> {
    text.lines().rev().filter(|line| line.starts_with('{')).find_map(|line| serde_json::from_str(line).ok())
}

impl Process {
    /// Starts `command`, and returns its process. The output goes to two new files `stem.out` and
    /// `stem.err`.
    pub(crate) fn spawn(mut command: Command, stem: PathBuf) -> Self {
        let (stdout, stderr) = (stem.with_extension("out"), stem.with_extension("err"));
        let what = format!("{command:?}");
        let out = File::create(&stdout).expect("the test's folder is writable");
        let err = File::create(&stderr).expect("the test's folder is writable");
        command.process_group(0).stdin(Stdio::piped()).stdout(out).stderr(err);
        let child = signals::heeded(&mut command).spawn();
        let child = child.unwrap_or_else(|error| panic!("starting {what}: {error}"));
        Self { child, what, stdout, stderr, status: None }
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn rustix_pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32).expect("a child's pid is not 0")
    }

    /// Returns everything that the process wrote to standard output until now.
    pub fn stdout(&self) -> String {
        read(&self.stdout)
    }

    /// Returns the number in the last line of standard output that is a number, or 0.
    pub fn last_number(&self) -> u64 {
        self.stdout().lines().rev().find_map(|line| line.parse().ok()).unwrap_or(0)
    }

    /// Returns everything that the process wrote to standard error until now.
    pub fn stderr(&self) -> String {
        read(&self.stderr)
    }

    /// Sends a signal to the process alone.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.rustix_pid(), signal)
            .unwrap_or_else(|error| panic!("signalling {}: {error}", self.what));
    }

    /// Kills the process alone (`kill -9`), and waits until it is gone.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.status = Some(self.child.wait().expect("our child"));
    }

    /// Writes a line to the standard input of the process.
    pub fn say(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("its input is open");
        writeln!(input, "{line}").unwrap_or_else(|error| panic!("speaking to {}: {error}", self.what));
    }

    /// Closes the standard input of the process. The C clients end when their input is closed.
    pub fn close_stdin(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Returns the exit status, or `None` if the process still runs.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("our child");
        }
        self.status
    }

    /// Closes the standard input, and waits for the end of the process within [`COMMAND_LIMIT`].
    /// Returns the exit status and the output.
    #[track_caller]
    pub fn finish(self) -> Finished {
        self.finish_within(COMMAND_LIMIT)
    }

    /// Does the same as [`Self::finish`] within another limit.
    #[track_caller]
    pub fn finish_within(mut self, within: Duration) -> Finished {
        self.close_stdin();
        self.await_end_within(within)
    }

    /// Does the same as [`Self::finish`], but leaves the standard input open.
    #[track_caller]
    pub fn await_end(&mut self) -> Finished {
        self.await_end_within(COMMAND_LIMIT)
    }

    /// Does the same as [`Self::await_end`] within another limit.
    #[track_caller]
    pub fn await_end_within(&mut self, within: Duration) -> Finished {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.try_wait() {
                return Finished {
                    code: status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
                    signal: status.signal(),
                    stdout: self.stdout(),
                    stderr: self.stderr(),
                };
            }
            assert!(Instant::now() < deadline, "{}", self.report(&format!("still running after {within:?}")));
            thread::sleep(POLL);
        }
    }

    /// Sends SIGTERM, and waits for the end of the process. Returns the exit status and the output.
    #[track_caller]
    pub fn terminate(&mut self) -> Finished {
        self.signal(Signal::TERM);
        self.await_end()
    }

    /// Waits within [`COMMAND_LIMIT`] until a line of standard output satisfies `wanted`. Returns
    /// the first such line.
    #[track_caller]
    pub fn await_line(&mut self, wanted: impl Fn(&str) -> bool) -> String {
        self.await_line_within(wanted, COMMAND_LIMIT)
    }

    /// Does the same as [`Self::await_line`] within another limit.
    #[track_caller]
    pub fn await_line_within(&mut self, wanted: impl Fn(&str) -> bool, within: Duration) -> String {
        self.await_text(Self::stdout, wanted, within)
    }

    /// Waits within [`COMMAND_LIMIT`] for this line of standard output.
    #[track_caller]
    pub fn await_exactly(&mut self, line: &str) {
        self.await_line(|said| said == line);
    }

    /// Does the same as [`Self::await_line`] for standard error.
    #[track_caller]
    pub fn await_error_line(&mut self, wanted: impl Fn(&str) -> bool) -> String {
        self.await_error_line_within(wanted, COMMAND_LIMIT)
    }

    /// Does the same as [`Self::await_error_line`] within another limit.
    #[track_caller]
    pub fn await_error_line_within(&mut self, wanted: impl Fn(&str) -> bool, within: Duration) -> String {
        self.await_text(Self::stderr, wanted, within)
    }

    /// Waits within [`COMMAND_LIMIT`] for a line of standard output that is a JSON object, and
    /// returns the object.
    #[track_caller]
    pub fn await_json(&mut self) -> serde_json::Value {
        self.await_json_within(COMMAND_LIMIT)
    }

    /// Does the same as [`Self::await_json`] within another limit.
    #[track_caller]
    pub fn await_json_within(&mut self, within: Duration) -> serde_json::Value {
        let line = self.await_line_within(|line| line.starts_with('{') && line.ends_with('}'), within);
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    #[track_caller]
    fn await_text(
        &mut self,
        text: impl Fn(&Self) -> String,
        wanted: impl Fn(&str) -> bool,
        within: Duration,
    ) -> String {
        let deadline = Instant::now() + within;
        loop {
            let ended = self.try_wait().is_some();
            let text = text(self);
            let whole_lines = text.rfind('\n').map_or("", |end| &text[..end]);
            if let Some(line) = whole_lines.lines().find(|line| wanted(line)) {
                return line.to_owned();
            }
            assert!(!ended, "{}", self.report("ended without the line that was waited for"));
            assert!(Instant::now() < deadline, "{}", self.report(&format!("no such line within {within:?}")));
            thread::sleep(POLL);
        }
    }

    fn report(&self, problem: &str) -> String {
        format!("{}: {problem}\nstdout:\n{}\nstderr:\n{}", self.what, self.stdout(), self.stderr())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // If the group is gone already, there is nothing to do.
        let _ = kill_process_group(self.rustix_pid(), Signal::KILL);
        if self.status.is_none() {
            let _ = self.child.wait();
        }
        if thread::panicking() {
            eprintln!("{}", self.report("output, since the test failed"));
        }
    }
}

fn read(path: &PathBuf) -> String {
    let mut bytes = Vec::new();
    let mut file = File::open(path).expect("made at the start of the process");
    file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes)).expect("a file of our own");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns whether a process of this id lives. A zombie does not count as living, unless other
/// threads of the process still end: until then, the process has its files.
pub fn alive(pid: u32) -> bool {
    let Some(id) = Pid::from_raw(pid as i32) else { return false };
    let about = format!("/proc/{pid}");
    let is_zombie =
        |stat: String| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'));
    let threads = || std::fs::read_dir(format!("{about}/task")).map_or(0, Iterator::count);
    test_kill_process(id).is_ok()
        && std::fs::read_to_string(format!("{about}/stat"))
            .is_ok_and(|stat| !is_zombie(stat) || threads() > 1)
}

/// A client that executes orders, which are the lines of its input. The client answers each order
/// with one line that begins with the order's number.
pub struct Orders {
    /// The client.
    pub process: Process,
    /// Returns the beginning of the answer to an order with this number.
    prefix: fn(u32) -> String,
    next: u32,
}

impl Orders {
    /// Returns the client of a process. `prefix` returns the beginning of the answer to an order,
    /// and `first` is the number of the first order.
    pub fn new(process: Process, first: u32, prefix: fn(u32) -> String) -> Self {
        Self { process, prefix, next: first }
    }

    /// Sends an order to the client without waiting for the answer.
    pub fn say(&mut self, order: &str) {
        self.process.say(order);
        self.next += 1;
    }

    /// Returns whether the client has answered the last order.
    pub fn has_answered(&self) -> bool {
        let begin = self.begin_of_answer();
        self.process.stdout().lines().any(|line| line.starts_with(&begin))
    }

    /// Returns the beginning of the answer to the last order.
    fn begin_of_answer(&self) -> String {
        (self.prefix)(self.next - 1)
    }

    /// Waits for the answer to the last order, and returns its whole line.
    #[track_caller]
    pub fn answer(&mut self) -> String {
        let begin = self.begin_of_answer();
        self.process.await_line(|line| line.starts_with(&begin))
    }

    /// Sends an order, and returns the answer without the order's number.
    #[track_caller]
    pub fn ask(&mut self, order: &str) -> String {
        self.say(order);
        self.answer()[self.begin_of_answer().len()..].to_owned()
    }

    /// Sends an order whose answer is a JSON object, and returns the object.
    #[track_caller]
    pub fn ask_json(&mut self, order: &str) -> serde_json::Value {
        self.say(order);
        let line = self.answer();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }
}
