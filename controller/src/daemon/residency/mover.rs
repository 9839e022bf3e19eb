//! The process that takes a tenant's processes off the GPUs, keeps them there and brings them back: `deepres away`.
//!
//! It is one process for each tenant that is away. When the daemon ends, however it ends, that process's input ends, and it brings
//! back whom it keeps.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

/// What its error messages begin with.
const ERROR_PREFIX: &str = "deepres: ";

/// See the module.
#[derive(Debug)]
pub struct Mover {
    child: Child,
    channel: BufReader<UnixStream>,
}

/// How an attempt to bring processes back ended.
#[derive(Debug)]
pub enum Back {
    /// They go on.
    Yes,
    /// Others have the memory; they are still away.
    NoRoom,
    /// The driver fails.
    Failed(String),
}

impl Mover {
    /// Takes processes off the GPUs.
    ///
    /// # Errors
    /// Why that cannot be; they go on then.
    pub async fn take_off(pids: &[u32]) -> Result<Self, String> {
        let mut mover =
            Self::start(pids).map_err(|error| format!("cannot start the process that suspends: {error}"))?;
        match mover.hear().await.as_deref() {
            Ok("away") => Ok(mover),
            Ok(other) => Err(format!("the process that suspends said `{other}`")),
            Err(reason) => Err(reason.to_owned()),
        }
    }

    fn start(pids: &[u32]) -> io::Result<Self> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let theirs = OwnedFd::from(theirs);
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("away").args(pids.iter().map(u32::to_string));
        // Its errors come the same way as its answers; and signals to the daemon's group are not for it.
        command.stdin(Stdio::from(theirs.try_clone()?)).stderr(Stdio::from(theirs.try_clone()?));
        command.stdout(Stdio::from(theirs)).process_group(0);
        let child = command.spawn()?;
        // Else the command's own ends keep the channel open.
        drop(command);
        Ok(Self { child, channel: BufReader::new(UnixStream::from_std(ours)?) })
    }

    /// Has them brought back.
    pub async fn bring_back(&mut self) -> Back {
        if self.channel.get_mut().write_all(b"back\n").await.is_err() {
            return Back::Failed("the process that kept it suspended is gone".to_owned());
        }
        match self.hear().await.as_deref() {
            Ok("back") => Back::Yes,
            Ok(_) => Back::NoRoom,
            Err(reason) => Back::Failed(reason.to_owned()),
        }
    }

    /// Its next word, or why there is none.
    async fn hear(&mut self) -> Result<String, String> {
        let mut reason = "the process that suspends ended without a word".to_owned();
        loop {
            let mut line = String::new();
            match self.channel.read_line(&mut line).await {
                Ok(1..) => {}
                _ => return Err(reason),
            }
            match line.trim_end() {
                word @ ("away" | "back" | "no room") => return Ok(word.to_owned()),
                other => {
                    if let Some(error) = other.strip_prefix(ERROR_PREFIX) {
                        reason = error.to_owned();
                    }
                }
            }
        }
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        // One that has ended is no zombie; one that goes on ends after what it has to do, and init sees to it if we are gone by then.
        let _ = self.child.try_wait();
    }
}
