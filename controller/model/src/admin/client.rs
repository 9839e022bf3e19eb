//! The client's end of the admin socket, for `deepres ps`, `deepres set` and similar commands.

use super::{Reply, Request, Status};
use crate::directory::{self, Directory, TrustError};
use crate::peer::Peer;
use rustix::process::getuid;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Longest wait for an answer. A daemon answers within milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// The reason for which the client gets no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon is running. The text names the places in which the client looked.
    #[error(
        "no deepres daemon is running (looked for {0}); `deepres run` starts one, and so does `deepres daemon`"
    )]
    NoDaemon(String),
    /// The socket cannot be trusted.
    #[error(transparent)]
    Untrusted(TrustError),
    /// This user may not administer the daemon.
    #[error("you may not administer the daemon at {0}, because only its user and root may; try sudo")]
    Forbidden(PathBuf),
    /// The process that answers belongs to neither this user nor root.
    #[error("the process that listens at {path} belongs to user {uid}, who is neither you nor root")]
    Foreign {
        /// The socket.
        path: PathBuf,
        /// The user of the process that answers.
        uid: u32,
    },
    /// The process that answers is not a daemon.
    #[error("{path} does not answer as a deepres daemon does ({reason})")]
    NotADaemon {
        /// The socket.
        path: PathBuf,
        /// The unexpected behaviour.
        reason: String,
    },
    /// The connection failed.
    #[error("cannot talk to the daemon at {path}: {source}")]
    Io {
        /// The socket.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The daemon refuses the request. The text is the daemon's reason.
    #[error("{0}")]
    Refused(String),
}

/// A connection to a daemon.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
    patience: Duration,
}

impl Client {
    /// Connects to the daemon that the environment names, else to root's daemon, else to the user's
    /// daemon.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect() -> Result<Self, ClientError> {
        let candidates = Directory::candidates();
        for directory in &candidates {
            match Self::connect_to(directory) {
                Err(ClientError::NoDaemon(_)) => {}
                connected => return connected,
            }
        }
        let places: Vec<_> =
            candidates.iter().map(|directory| directory.admin_socket().display().to_string()).collect();
        Err(ClientError::NoDaemon(places.join(" and ")))
    }

    /// Connects to the daemon in `directory`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect_to(directory: &Directory) -> Result<Self, ClientError> {
        let path = directory.admin_socket();
        let none = || ClientError::NoDaemon(path.display().to_string());
        match directory::check_socket(&path) {
            Err(TrustError::Missing(_)) => return Err(none()),
            checked => checked.map_err(ClientError::Untrusted)?,
        }
        let stream = match UnixStream::connect(&path) {
            Ok(stream) => stream,
            Err(error) => {
                return Err(match error.kind() {
                    // A dead daemon's socket stays.
                    io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => none(),
                    io::ErrorKind::PermissionDenied => ClientError::Forbidden(path),
                    _ => ClientError::Io { path, source: error },
                });
            }
        };
        let failed = |source| ClientError::Io { path: path.clone(), source };
        let peer = Peer::of(stream.as_fd()).map_err(failed)?;
        if peer.uid != 0 && peer.uid != getuid().as_raw() && !getuid().is_root() {
            return Err(ClientError::Foreign { path, uid: peer.uid });
        }
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
        Ok(Self { path, stream: BufReader::new(stream), patience: PATIENCE })
    }

    /// Sets the time for which the client waits for each answer from now on.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn set_patience(&mut self, patience: Duration) -> Result<(), ClientError> {
        let failed = |source| ClientError::Io { path: self.path.clone(), source };
        self.stream.get_ref().set_read_timeout(Some(patience)).map_err(failed)?;
        self.patience = patience;
        Ok(())
    }

    /// Sends a request and waits for the reply.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn ask(&mut self, request: &Request) -> Result<Reply, ClientError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ClientError::NotADaemon {
                path: self.path.clone(),
                reason: format!("no answer within {} s", self.patience.as_secs()),
            },
            _ => ClientError::Io { path: self.path.clone(), source },
        };
        let strange = |reason: String| ClientError::NotADaemon { path: self.path.clone(), reason };
        let mut text = serde_json::to_vec(request).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        self.stream.get_mut().write_all(&text).map_err(failed)?;
        let mut line = String::new();
        if self.stream.read_line(&mut line).map_err(failed)? == 0 {
            return Err(strange("the process closed the connection".to_owned()));
        }
        match serde_json::from_str(&line).map_err(|error| strange(error.to_string()))? {
            Reply::Error { message } => Err(ClientError::Refused(message)),
            reply => Ok(reply),
        }
    }

    /// Asks the daemon for its status.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn status(&mut self) -> Result<Status, ClientError> {
        match self.ask(&Request::Status)? {
            Reply::Status(status) => Ok(*status),
            other => Err(ClientError::NotADaemon { path: self.path.clone(), reason: format!("{other:?}") }),
        }
    }
}
