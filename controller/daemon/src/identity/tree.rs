//! Finds the ancestor of a process that is the root of its job.
//!
//! For example, `torchrun` starts ranks, each in a session of its own; a data loader forks workers;
//! `multiprocessing` starts interpreters. All these processes are one job. The root of the job is
//! its topmost ancestor: the command that a person typed or that a batch system started.
//!
//! Going up from a process, the job ends where the parent
//!
//! - is the init process (of a service, or of a process that outlived its parent);
//! - belongs to another user (`login`, `sshd`, `sudo`);
//! - is a program whose children are jobs of their own (`SERVERS`); or
//! - is a shell at a terminal whose child is a job. Such a shell leads the terminal's session. The
//!   shell puts the child into a process group of its own, as shells do for job control (POSIX.1,
//!   3.180).
//!
//! Other sessions and groups do not divide a job, because launchers make them too.

use deepres_model::process::ProcessKey;
use std::fmt;

/// The init process.
const INIT: u32 = 1;

/// Programs whose children are jobs of their own, by the name that the kernel stores (15 bytes at
/// most).
const SERVERS: [&str; 14] = [
    "sshd",
    "sshd-session",
    "login",
    "tmux: server",
    "screen",
    "SCREEN",
    "zellij",
    "systemd",
    "cron",
    "crond",
    "atd",
    "slurmstepd",
    "supervisord",
    "containerd-shim",
];

/// A process, from `/proc/PID/stat` and `/proc/PID/status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// The process's id.
    pub pid: u32,
    /// The parent's id; 0 if the process has no parent that this namespace shows.
    pub parent: u32,
    /// The id of the process's group (setpgid(2)).
    pub group: u32,
    /// The id of the process's session (setsid(2)).
    pub session: u32,
    /// Whether the process has a controlling terminal.
    pub has_terminal: bool,
    /// Start time, clock ticks since boot. No other process ever has the same id and start time.
    pub start_ticks: u64,
    /// The effective user, by which permissions are checked.
    pub user: u32,
    /// The command's name, 15 bytes at most.
    pub command: String,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.command, self.pid)
    }
}

impl Process {
    /// Returns the process that the text of `/proc/PID/stat` describes. The text does not contain
    /// the `user`.
    pub fn parse(stat: &str, user: u32) -> Option<Self> {
        // The name is in parentheses, and can itself contain parentheses.
        let (head, tail) = stat.rsplit_once(')')?;
        let (pid, command) = head.split_once('(')?;
        // proc_pid_stat(5) counts fields from 1. The first field after the name, `state`, is the
        // third.
        let field = |number: usize| tail.split_ascii_whitespace().nth(number - 3);
        let number = |of: usize| field(of)?.parse().ok();
        Some(Self {
            pid: pid.trim().parse().ok()?,
            parent: number(4)?,
            group: number(5)?,
            session: number(6)?,
            has_terminal: field(7)? != "0",
            start_ticks: field(22)?.parse().ok()?,
            user,
            command: command.to_owned(),
        })
    }

    /// Returns the key that distinguishes the process from all others.
    pub fn key(&self) -> ProcessKey {
        ProcessKey { pid: self.pid, start_ticks: self.start_ticks }
    }

    fn is_job_of_shell(&self, parent: &Self) -> bool {
        parent.has_terminal
            && parent.session == parent.pid
            && self.session == parent.session
            && self.group != parent.group
    }
}

/// Returns whether a process and its parent are part of one job.
pub fn belongs(process: &Process, parent: &Process) -> bool {
    parent.pid > INIT
        && parent.user == process.user
        && !SERVERS.contains(&parent.command.as_str())
        && !process.is_job_of_shell(parent)
}

/// Returns the effective user that the text of `/proc/PID/status` names.
pub fn user_of_status(status: &str) -> Option<u32> {
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: u32 = 1000;

    fn process(pid: u32, session: u32, group: u32, has_terminal: bool, command: &str) -> Process {
        Process {
            pid,
            parent: 0,
            group,
            session,
            has_terminal,
            start_ticks: u64::from(pid),
            user: ALICE,
            command: command.to_owned(),
        }
    }

    /// Returns the id of the root. The first element is the process itself, and its ancestors
    /// follow.
    fn root(line: &[Process]) -> u32 {
        line.windows(2)
            .find(|pair| !belongs(&pair[0], &pair[1]))
            .map_or_else(|| line.last().unwrap().pid, |pair| pair[0].pid)
    }

    #[test]
    fn a_processs_own_line_is_read_whatever_its_name_is() {
        // proc_pid_stat(5): pid (comm) state ppid pgrp session tty_nr tpgid flags minflt cminflt
        // majflt cmajflt utime stime cutime cstime priority nice num_threads itrealvalue starttime
        // …
        let stat =
            "4711 (a) (b S) 9) S 4700 4711 4242 34816 4711 4194304 1 0 0 0 0 0 0 0 20 0 1 0 987654 1 1";
        let read = Process::parse(stat, ALICE).unwrap();
        assert_eq!((read.pid, read.parent, read.group, read.session), (4711, 4700, 4711, 4242));
        assert_eq!(
            (read.has_terminal, read.start_ticks, read.command.as_str()),
            (true, 987_654, "a) (b S) 9")
        );
        for broken in [
            "",
            "1",
            "1 (x",
            "1 (x) S",
            "x (x) S 1 1 1 0 1 1",
            ")(",
            "1 (x) S 1 1 1 0 1 1 1 1 1 1 1 1 1 1 1 1 1 1 y",
        ] {
            assert_eq!(Process::parse(broken, ALICE), None, "{broken}");
        }
        assert_eq!(user_of_status("Name:\tx\nUid:\t1000\t1001\t1000\t1000\n"), Some(1001));
        assert_eq!(user_of_status("Name:\tUid:\n"), None);
    }

    #[test]
    fn ranks_in_sessions_of_their_own_belong_to_their_launcher_and_two_jobs_of_a_shell_are_two() {
        let shell = process(100, 100, 100, true, "bash");
        let torchrun = process(200, 100, 200, true, "torchrun");
        let rank = |pid| process(pid, pid, pid, false, "python3");
        assert_eq!(root(&[rank(201), torchrun.clone(), shell.clone()]), 200);
        assert_eq!(root(&[rank(202), torchrun, shell.clone()]), 200);
        let other = process(300, 100, 300, true, "python3");
        assert_eq!(root(&[other, shell]), 300);
    }

    #[test]
    fn processes_that_a_script_starts_are_one_job_with_and_without_a_terminal() {
        let shell = process(100, 100, 100, true, "bash");
        let script = process(200, 100, 200, true, "run.sh");
        let first = process(201, 100, 200, true, "python3");
        let worker = process(205, 100, 200, true, "python3");
        assert_eq!(root(&[worker, first, script.clone(), shell.clone()]), 200);
        // timeout(1) puts itself into a group of its own.
        let timeout = process(206, 100, 206, true, "timeout");
        assert_eq!(root(&[timeout, script, shell]), 200);
        let sshd = process(90, 90, 90, false, "sshd-session");
        let command = process(91, 91, 91, false, "run.sh");
        let python = process(92, 91, 91, false, "python3");
        assert_eq!(root(&[python, command, sshd]), 91);
    }

    #[test]
    fn jobs_of_users_services_and_terminals_are_apart() {
        let mut sudo = process(50, 50, 50, false, "sudo");
        sudo.user = 0;
        assert_eq!(root(&[process(51, 50, 50, false, "python3"), sudo]), 51);
        for server in SERVERS {
            let python = process(61, 61, 61, false, "python3");
            assert_eq!(root(&[python, process(60, 60, 60, false, server)]), 61, "{server}");
        }
        let init = process(1, 1, 1, false, "tini");
        assert_eq!(root(&[process(70, 70, 70, false, "python3"), init]), 70);
    }
}
