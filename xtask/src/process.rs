//! Processes that a task starts and always ends: on success, on error, on Ctrl-C, and when the task
//! itself is killed.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::command;

/// Time that a process gets for its end after SIGTERM.
const GRACE: Duration = Duration::from_secs(3);
/// Time between two checks for an end or a signal.
const POLL: Duration = Duration::from_millis(10);

/// A running process with its process group. The drop ends the whole group.
pub struct Running {
    child: Child,
    shown: String,
}

impl Running {
    /// Starts `command` as the leader of a process group of its own, so that Ctrl-C reaches this
    /// task alone.
    pub fn start(command: &mut Command) -> Result<Self> {
        let shown = command::shown(command);
        let die_with_parent = || {
            rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
        unsafe { command.process_group(0).pre_exec(die_with_parent) };
        let child = command.spawn().with_context(|| format!("cannot start: {shown}"))?;
        Ok(Self { child, shown })
    }

    /// Returns the command as it was started.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the process, for access to its streams.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Returns the exit status if the process has ended.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("cannot wait for: {}", self.shown))
    }

    /// Waits for the end of the process. Fails if the process failed.
    pub fn finish(mut self) -> Result<()> {
        let status = self.child.wait().with_context(|| format!("cannot wait for: {}", self.shown))?;
        if !status.success() {
            bail!("failed ({status}): {}", self.shown);
        }
        Ok(())
    }

    fn group(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    /// Returns whether the process has ended. The zombie stays, so that the kernel does not reuse
    /// the group's number.
    fn is_over(&self, pid: Pid) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(rustix::process::waitid(WaitId::Pid(pid), options), Ok(None))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(group) = self.group() else { return };
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        // An error means that the group is empty, and nothing is left to end.
        let _ = rustix::process::kill_process_group(group, Signal::TERM);
        let deadline = Instant::now() + GRACE;
        while !self.is_over(group) && Instant::now() < deadline {
            thread::sleep(POLL);
        }
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
    }
}

/// A flag that Ctrl-C and a request to terminate set. Loops check the flag and fail, so that drops
/// clean up.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs the handlers of the signals, and returns the flag.
    pub fn catch() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
        {
            signal_hook::flag::register(signal, Arc::clone(&flag)).context("cannot catch signals")?;
        }
        Ok(Self(flag))
    }

    /// Checks that no signal has come.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            bail!("interrupted; xtask ended all programs that it had started");
        }
        Ok(())
    }

    /// Sleeps for `duration`. Fails soon after a signal has come.
    pub fn sleep(&self, duration: Duration) -> Result<()> {
        let end = Instant::now() + duration;
        while Instant::now() < end {
            self.check()?;
            thread::sleep(POLL.min(end.saturating_duration_since(Instant::now())));
        }
        Ok(())
    }
}

/// Returns an exit status in words.
pub fn ended(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("was killed by signal {signal}"),
        None => format!("ended with {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lives(pid: u32) -> bool {
        // A zombie of another parent still has a folder. The state in the stat file shows that the
        // process is a zombie.
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[test]
    fn dropping_ends_the_whole_group_even_if_it_ignores_requests() {
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join("pid");
        let script = format!("trap '' TERM; sleep 60 & echo $! > {}; sleep 60", note.display());
        let running = Running::start(Command::new("sh").args(["-c", &script])).unwrap();
        let inner = loop {
            match std::fs::read_to_string(&note).ok().and_then(|text| text.trim().parse::<u32>().ok()) {
                Some(pid) => break pid,
                None => thread::sleep(POLL),
            }
        };
        let leader = running.child.id();
        assert!(lives(inner) && lives(leader));
        drop(running);
        assert!(!lives(leader));
        let deadline = Instant::now() + GRACE;
        while lives(inner) && Instant::now() < deadline {
            thread::sleep(POLL);
        }
        assert!(!lives(inner));
    }
}
