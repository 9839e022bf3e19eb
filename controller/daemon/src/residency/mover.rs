//! The process that takes a tenant's processes off the GPUs, keeps them there and brings them back: `deepres away`.
//!
//! It is one process for each tenant that is away, and another for processes that came to the tenant meanwhile. When the daemon ends, however it ends, that process's input ends, and it brings
//! back whom it keeps. If it ends itself, or hangs, another one finds out what became of its processes and brings them back.

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

/// What its error messages begin with.
const ERROR_PREFIX: &str = "deepres: ";

/// See the module.
#[derive(Debug)]
pub struct Mover {
    channel: BufReader<UnixStream>,
    /// Ends it.
    kill: Option<oneshot::Sender<()>>,
    /// Whom it moves.
    pids: Vec<u32>,
}

/// Why processes are not where they were to be brought.
#[derive(Debug)]
pub enum Failure {
    /// The driver does not do it; they are as they were.
    Refused(String),
    /// Nobody knows what they are: the process that moved them is gone, or hung and was ended.
    Lost(String),
}

/// How an attempt to bring processes back ended.
#[derive(Debug)]
pub enum Back {
    /// They go on.
    Yes,
    /// Others have the memory; they are still away.
    NoRoom,
}

impl Mover {
    /// Takes processes off the GPUs.
    ///
    /// # Errors
    /// Why that cannot be.
    pub async fn take_off(pids: &[u32], limit: Duration) -> Result<Self, Failure> {
        let mut mover = Self::start(&[], pids)
            .map_err(|error| Failure::Refused(format!("cannot start the process that suspends: {error}")))?;
        match mover.hear(limit).await? {
            Word::Away => Ok(mover),
            other => Err(mover.end(format!("the process that suspends said {other:?}"))),
        }
    }

    /// Brings processes back whose own mover is gone, however far it came; if there is no room, they are kept away.
    ///
    /// # Errors
    /// Why they are not back.
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
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("away").args(options).args(pids.iter().map(u32::to_string));
        // Its errors come the same way as its answers; and signals to the daemon's group are not for it.
        command.stdin(Stdio::from(theirs.try_clone()?)).stderr(Stdio::from(theirs.try_clone()?));
        command.stdout(Stdio::from(theirs)).process_group(0);
        // Before it can end, so that its end is not missed.
        let ends = signal(SignalKind::child())?;
        let child = command.spawn()?;
        // Else the command's own ends keep the channel open.
        drop(command);
        let (kill, killed) = oneshot::channel();
        tokio::task::spawn_local(reap(child, ends, killed));
        Ok(Self { channel, kill: Some(kill), pids: pids.to_vec() })
    }

    /// Whether it moves this process.
    pub fn moves(&self, pid: u32) -> bool {
        self.pids.contains(&pid)
    }

    /// Has them brought back.
    ///
    /// # Errors
    /// Why they are not back, nor away for certain.
    pub async fn bring_back(&mut self, limit: Duration) -> Result<Back, Failure> {
        if self.channel.get_mut().write_all(b"back\n").await.is_err() {
            return Err(Failure::Lost("the process that kept it suspended is gone".to_owned()));
        }
        self.hear_back(limit).await
    }

    async fn hear_back(&mut self, limit: Duration) -> Result<Back, Failure> {
        match self.hear(limit).await {
            Ok(Word::Back) => Ok(Back::Yes),
            Ok(Word::NoRoom) => Ok(Back::NoRoom),
            Ok(other) => Err(self.end(format!("the process that brings back said {other:?}"))),
            // It has ended, and does not keep them any longer.
            Err(Failure::Refused(reason) | Failure::Lost(reason)) => Err(Failure::Lost(reason)),
        }
    }

    /// Its next word, or why there is none.
    async fn hear(&mut self, limit: Duration) -> Result<Word, Failure> {
        match timeout(limit, self.listen()).await {
            Ok(heard) => heard,
            Err(_) => Err(self.end(format!("the driver took longer than {limit:?} to move its memory"))),
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
                    let silent = || "the process that moves memory ended without a word".to_owned();
                    return Err(match refused {
                        Some(reason) if !is_lost => Failure::Refused(reason),
                        reason => Failure::Lost(reason.unwrap_or_else(silent)),
                    });
                }
            }
            match line.trim_end() {
                "away" => return Ok(Word::Away),
                "back" => return Ok(Word::Back),
                "no room" => return Ok(Word::NoRoom),
                "lost" => is_lost = true,
                other => refused = other.strip_prefix(ERROR_PREFIX).map(str::to_owned).or(refused),
            }
        }
    }

    /// Ends it: it does not do what it is told to.
    fn end(&mut self, reason: String) -> Failure {
        if let Some(kill) = self.kill.take() {
            // One that has ended need not be killed.
            let _ = kill.send(());
        }
        Failure::Lost(reason)
    }
}

/// What it says.
#[derive(Debug, PartialEq, Eq)]
enum Word {
    Away,
    Back,
    NoRoom,
}

/// Sees to the process's end: leaves no zombie, and kills it if that is wished for.
async fn reap(mut child: Child, mut ends: Signal, mut killed: oneshot::Receiver<()>) {
    let mut may_be_killed = true;
    // An error is as good a reason to look no further.
    while matches!(child.try_wait(), Ok(None)) {
        tokio::select! {
            _ = ends.recv() => {}
            wish = &mut killed, if may_be_killed => {
                may_be_killed = false;
                // A mover that is no longer needed is dropped, and its process goes on until it has done what it has to.
                if wish.is_ok() {
                    let _ = child.kill();
                }
            }
        }
    }
}
