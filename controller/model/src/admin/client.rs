//! The client's end of the admin socket, for `deepres ps`, `deepres set` and similar commands. A
//! user who may not administer the daemon asks at the tenant socket, about the user's own tenants.

use super::{Reply, Request, Status};
use crate::clock::monotonic_ns;
use crate::directory::{self, Directory, TrustError};
use crate::packet::{self, Packet};
use crate::peer::Peer;
use deepres_abi::wire::{self, Hello, Notice, Refusal, RefusalKind, Role};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::process::getuid;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Longest wait for an answer. A daemon answers within milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// The beginning of a reply with a status.
const STATUS: &str = r#"{"reply":"status","#;

/// The reason for which the client gets no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon is running. The text names the places in which the client looked.
    #[error(
        "no deepres daemon is running (looked for {0}); `deepres run` starts one, and so does `deepres daemon`"
    )]
    NoDaemon(String),
    /// The client does not trust the daemon's socket.
    #[error(transparent)]
    Untrusted(TrustError),
    /// This user may not administer the daemon.
    #[error(
        "you may not administer the daemon at {0}, because only root, the daemon's user and the members of its `admin_group` may; try sudo"
    )]
    Forbidden(PathBuf),
    /// The process that answers belongs to neither this user nor root.
    #[error("the process that listens at {path} belongs to user {uid}, who is neither you nor root")]
    Foreign {
        /// The path of the socket.
        path: PathBuf,
        /// The user of the process that answers.
        uid: u32,
    },
    /// The process that answers is not a daemon.
    #[error("{path} does not answer as a deepres daemon does ({reason})")]
    NotADaemon {
        /// The path of the socket.
        path: PathBuf,
        /// The unexpected behaviour.
        reason: String,
    },
    /// The connection failed.
    #[error("cannot talk to the daemon at {path}: {source}")]
    Io {
        /// The path of the socket.
        path: PathBuf,
        /// The system's error.
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

    /// Asks the daemon a question ([`Request::Status`] or [`Request::Explain`]). If this user may
    /// not administer the daemon, the reply is about the user's own tenants alone.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn question(request: &Request) -> Result<Reply, ClientError> {
        Self::question_within(request, PATIENCE)
    }

    /// Asks like [`Self::question`], and waits at most for `patience` for each answer.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn question_within(request: &Request, patience: Duration) -> Result<Reply, ClientError> {
        match Self::connect() {
            Ok(mut client) => {
                client.set_patience(patience)?;
                client.ask(request)
            }
            Err(ClientError::Forbidden(path)) => ask_as_owner(path, request, patience),
            Err(error) => Err(error),
        }
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
        match parse(&line).map_err(|error| strange(error.to_string()))? {
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

/// Reads a reply. serde copies all fields of an enum with a tag before it reads them. With a
/// thousand tenants, the copy takes longer than all else. So this function reads a status by
/// itself.
fn parse(text: &str) -> serde_json::Result<Reply> {
    if text.starts_with(STATUS) {
        return serde_json::from_str(text).map(|status| Reply::Status(Box::new(status)));
    }
    serde_json::from_str(text)
}

/// Asks a daemon about this user's own tenants. `path` is the admin socket, which is closed to this
/// user.
fn ask_as_owner(path: PathBuf, request: &Request, patience: Duration) -> Result<Reply, ClientError> {
    let Some(directory) = path.parent().map(Directory::at) else { return Err(ClientError::Forbidden(path)) };
    let socket = directory.tenant_socket();
    directory::check_socket(&socket).map_err(ClientError::Untrusted)?;
    let mut hello = Hello::new(Role::Owner);
    hello.monotonic_ns = monotonic_ns();
    hello.pid = std::process::id();
    if let Request::Explain { tenant } = request {
        wire::set_text(&mut hello.tenant, tenant);
    }
    let failed = |source| ClientError::Io { path: socket.clone(), source };
    let connection = packet::connection(&socket).map_err(failed)?;
    let uid = Peer::of(connection.as_fd()).map_err(failed)?.uid;
    if uid != 0 && uid != getuid().as_raw() {
        return Err(ClientError::Foreign { path: socket, uid });
    }
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&connection, direction, Some(patience)).map_err(|error| failed(error.into()))?;
    }
    packet::send(&connection, hello.as_bytes(), &[]).map_err(failed)?;
    let (packet, file) = Packet::receive_with_file(&connection).map_err(failed)?;
    let strange = |reason: String| ClientError::NotADaemon { path: socket.clone(), reason };
    if let Ok(refusal) = wire::decode::<Refusal>(packet.bytes()) {
        // An older daemon does not know this question.
        if refusal.kind == RefusalKind::Malformed as u32 {
            return Err(ClientError::Forbidden(path));
        }
        return Err(ClientError::Refused(wire::text(&refusal.reason).unwrap_or("no reason").to_owned()));
    }
    wire::decode::<Notice>(packet.bytes()).map_err(|error| strange(error.to_string()))?;
    let mut file = File::from(file.ok_or_else(|| strange("the answer has no file".to_owned()))?);
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(failed)?;
    match parse(&text).map_err(|error| strange(error.to_string()))? {
        Reply::Error { message } => Err(ClientError::Refused(message)),
        reply => Ok(reply),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::TenantStatus;

    #[test]
    fn a_reply_with_a_status_reads_as_any_other_reply() {
        let tenant = TenantStatus { name: "a".to_owned(), ..TenantStatus::default() };
        let status = Status { now_ns: 7, tenants: vec![tenant], ..Status::default() };
        for reply in [Reply::Status(Box::new(status)), Reply::Paused] {
            let text = serde_json::to_string(&reply).unwrap();
            assert_eq!(text.starts_with(STATUS), matches!(reply, Reply::Status(_)));
            assert_eq!(parse(&text).unwrap(), reply);
        }
        assert!(parse(r#"{"reply":"status","now_ns":"#).is_err());
    }
}
