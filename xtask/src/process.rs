//! Processes that a task starts and surely ends: on success, on error, on Ctrl-C, and when the task itself is killed.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::command;

/// How long a process may take to end after a polite request.
const GRACE: Duration = Duration::from_secs(3);
/// How often it is looked at meanwhile.
const POLL: Duration = Duration::from_millis(10);

/// A running process and everything in its process group; dropping it ends them all.
pub struct Running {
    child: Child,
    shown: String,
}

impl Running {
    /// Starts `command` as the leader of a process group of its own, so that Ctrl-C reaches us alone.
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

    /// The command as it was started.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The process, for its streams.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Its exit status, if it has ended.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("cannot wait for: {}", self.shown))
    }

    /// Waits for its end and requires success.
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

    /// Whether it has ended; leaves the zombie, which keeps the group's number from being given away.
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
        // Errors mean that nobody is left in the group, which is what we want.
        let _ = rustix::process::kill_process_group(group, Signal::TERM);
        let deadline = Instant::now() + GRACE;
        while !self.is_over(group) && Instant::now() < deadline {
            thread::sleep(POLL);
        }
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Turns Ctrl-C and a request to terminate into a flag that loops look at, so that guards clean up.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes the signals over.
    pub fn catch() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
        {
            signal_hook::flag::register(signal, Arc::clone(&flag)).context("cannot catch signals")?;
        }
        Ok(Self(flag))
    }

    /// Fails if one has come.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            bail!("interrupted; everything that was started has been ended");
        }
        Ok(())
    }
}

/// What a status means, for people.
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
        // A zombie whose parent is not us still has a folder; its state tells.
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
