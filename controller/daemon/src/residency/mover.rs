//! The mover: the helper process `deepres mover`. A mover suspends processes, keeps them suspended,
//! and brings them back.
//!
//! Each suspended tenant has one mover, and another mover for each group of processes that joined
//! the tenant later. When the daemon ends for any reason, the input of its movers closes. Each
//! mover then brings its processes back. If a mover ends or hangs, another mover finds out the
//! state of the processes and brings the processes back.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The program of this process, even if a package manager has replaced or removed its file. A mover
/// and its daemon are of one version.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// The prefix of the mover's error messages.
const ERROR_PREFIX: &str = "deepres: ";

/// The daemon's connection to a mover: a process `deepres mover`.
#[derive(Debug)]
pub struct Mover {
    channel: BufReader<UnixStream>,
    /// The channel whose message kills the mover.
    kill: Option<oneshot::Sender<()>>,
    /// The processes that the mover moves.
    pids: Vec<u32>,
}

/// The reason for which a move of processes to the host or back failed.
#[derive(Debug)]
pub enum Failure {
    /// The driver refused to move the processes. The processes are where they were.
    Refused(String),
    /// The state of the processes is unknown, because the mover ended, or hung and was killed.
    Lost(String),
}

/// The result of an attempt to bring processes back.
#[derive(Debug)]
pub enum Back {
    /// The processes of a resumed tenant are back on the GPUs, and go on.
    Yes,
    /// The processes of a resumed tenant are still suspended, because other tenants hold the
    /// memory.
    NoRoom,
}

impl Mover {
    /// Suspends processes. Returns the mover that keeps them suspended.
    ///
    /// # Errors
    /// The reason for which the processes are not suspended.
    pub async fn take_off(pids: &[u32], limit: Duration) -> Result<Self, Failure> {
        let mut mover = Self::start(&[], pids)
            .map_err(|error| Failure::Refused(format!("cannot start the process that suspends: {error}")))?;
        match mover.hear(limit).await? {
            Word::Suspended => Ok(mover),
            other => Err(mover.end(format!("the process that suspends said {other:?}"))),
        }
    }

    /// Brings back processes whose mover has ended, whatever state the ended mover left them in. If
    /// the GPU has no room, a new mover keeps the processes suspended.
    ///
    /// # Errors
    /// The reason for which the processes are not back.
    pub async fn recover(pids: &[u32], limit: Duration) -> Result<(Back, Self), Failure> {
        let mut mover = Self::start(&["--back"], pids)
            .map_err(|error| Failure::Lost(format!("cannot start the process that brings back: {error}")))?;
        let back = mover.hear_back(limit).await?;
        Ok((back, mover))
    }

    fn start(options: &[&str], pids: &[u32]) -> io::Result<Self> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let channel = BufReader::new(UnixStream::from_std(ours)?);
        let theirs = OwnedFd::from(theirs);
        let mut command = Command::new(OWN_PROGRAM);
        command.arg0("deepres").arg("mover").args(options).args(pids.iter().map(u32::to_string));
        // The mover's errors come through the same channel as its answers. The mover has a process
        // group of its own, so that signals to the daemon's group do not reach it.
        command.stdin(Stdio::from(theirs.try_clone()?)).stderr(Stdio::from(theirs.try_clone()?));
        command.stdout(Stdio::from(theirs)).process_group(0);
        // This line registers the signal before the child can end, so that the daemon does not miss
        // the end.
        let ends = signal(SignalKind::child())?;
        let child = command.spawn()?;
        // Without this drop, the command's copies of the socket would keep the channel open.
        drop(command);
        let (kill, killed) = oneshot::channel();
        tokio::task::spawn_local(reap(child, ends, killed));
        Ok(Self { channel, kill: Some(kill), pids: pids.to_vec() })
    }

    /// Returns whether this mover moves the process.
    pub fn moves(&self, pid: u32) -> bool {
        self.pids.contains(&pid)
    }

    /// Makes the mover bring the processes back.
    ///
    /// # Errors
    /// The reason for which the processes are neither back nor certainly suspended.
    pub async fn bring_back(&mut self, limit: Duration) -> Result<Back, Failure> {
        if self.channel.get_mut().write_all(b"back\n").await.is_err() {
            return Err(Failure::Lost("the process that kept the tenant suspended has ended".to_owned()));
        }
        self.hear_back(limit).await
    }

    async fn hear_back(&mut self, limit: Duration) -> Result<Back, Failure> {
        match self.hear(limit).await {
            Ok(Word::Back) => Ok(Back::Yes),
            Ok(Word::NoRoom) => Ok(Back::NoRoom),
            Ok(other) => Err(self.end(format!("the process that brings back said {other:?}"))),
            // The mover has ended, and no longer keeps the processes suspended.
            Err(Failure::Refused(reason) | Failure::Lost(reason)) => Err(Failure::Lost(reason)),
        }
    }

    /// Returns the mover's next word, or the reason for which no word came.
    async fn hear(&mut self, limit: Duration) -> Result<Word, Failure> {
        match timeout(limit, self.listen()).await {
            Ok(heard) => heard,
            Err(_) => {
                Err(self.end(format!("the driver took longer than {limit:?} to move the tenant's memory")))
            }
        }
    }

    async fn listen(&mut self) -> Result<Word, Failure> {
        let mut refused = None;
        let mut is_lost = false;
        loop {
            let mut line = String::new();
            match self.channel.read_line(&mut line).await {
                Ok(1..) => {}
                _ => {
                    let silent = || "the process that moves memory ended without a report".to_owned();
                    return Err(match refused {
                        Some(reason) if !is_lost => Failure::Refused(reason),
                        reason => Failure::Lost(reason.unwrap_or_else(silent)),
                    });
                }
            }
            match line.trim_end() {
                "suspended" => return Ok(Word::Suspended),
                "back" => return Ok(Word::Back),
                "no room" => return Ok(Word::NoRoom),
                "lost" => is_lost = true,
                other => refused = other.strip_prefix(ERROR_PREFIX).map(str::to_owned).or(refused),
            }
        }
    }

    /// Kills a mover that does not obey. Returns the failure.
    fn end(&mut self, reason: String) -> Failure {
        if let Some(kill) = self.kill.take() {
            // If the mover has ended, the daemon need not kill it.
            let _ = kill.send(());
        }
        Failure::Lost(reason)
    }
}

/// A word that the mover writes to the daemon, by the protocol of `deepres mover`.
#[derive(Debug, PartialEq, Eq)]
enum Word {
    Suspended,
    Back,
    NoRoom,
}

/// Waits for the mover's end, which prevents a zombie. Kills the mover on request.
async fn reap(mut child: Child, mut ends: Signal, mut killed: oneshot::Receiver<()>) {
    let mut may_be_killed = true;
    // If `try_wait` fails, the loop ends too.
    while matches!(child.try_wait(), Ok(None)) {
        tokio::select! {
            _ = ends.recv() => {}
            wish = &mut killed, if may_be_killed => {
                may_be_killed = false;
                // If the daemon drops a mover without a request, the mover's process goes on until
                // it has finished.
                if wish.is_ok() {
                    let _ = child.kill();
                }
            }
        }
    }
}
