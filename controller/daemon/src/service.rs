//! The service manager: notifications of the daemon's state (sd_notify), and the sockets that the
//! service manager can pass.

use crate::Inherited;
use rustix::io::ioctl_fionbio;
use rustix::net::{SocketFlags, SocketType, accept_with, sockopt::socket_type};
use sd_notify::NotifyState;
use std::cell::RefCell;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

/// The variable by which a service manager names its socket for notifications.
const NOTIFY_VARIABLE: &str = "NOTIFY_SOCKET";
/// Name of the tenant socket in the units of the service manager (`FileDescriptorName=`).
const TENANT_NAME: &str = "tenant";
/// Name of the admin socket in the units of the service manager (`FileDescriptorName=`).
const ADMIN_NAME: &str = "admin";
/// Number of watchdog notifications within the service manager's time limit.
const SIGNS_PER_LIMIT: u32 = 3;

/// The service manager that started the daemon, if there is one: it gets the notifications of the
/// daemon.
#[derive(Debug, Default)]
pub struct Service {
    watchdog: Option<Duration>,
    told: RefCell<String>,
}

impl Service {
    /// Returns the service manager that the environment names.
    pub fn of_environment() -> Self {
        Self { watchdog: sd_notify::watchdog_enabled(), told: RefCell::default() }
    }

    /// Tells the service manager that tenants can connect.
    pub fn ready(&self) {
        notify(&[NotifyState::Ready]);
    }

    /// Tells the service manager that the daemon reads its configuration again. [`Self::ready`]
    /// tells the end.
    pub fn reloading(&self) {
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            notify(&[NotifyState::Reloading, now]);
        }
    }

    /// Tells the service manager that no new tenants can connect.
    pub fn stopping(&self) {
        notify(&[NotifyState::Stopping, NotifyState::Status("handing over to the next daemon")]);
    }

    /// Returns the longest time between two calls of [`Self::report`].
    pub fn period(&self) -> Duration {
        self.watchdog.map_or(Duration::MAX, |limit| limit / SIGNS_PER_LIMIT)
    }

    /// Reports the daemon's status to the service manager. With `is_alive`, also reports a sign of
    /// life.
    pub fn report(&self, status: &str, is_alive: bool) {
        if is_alive && self.watchdog.is_some() {
            notify(&[NotifyState::Watchdog]);
        }
        if *self.told.borrow() != status {
            notify(&[NotifyState::Status(status)]);
            self.told.replace(status.to_owned());
        }
    }
}

/// Returns whether a service manager started this process.
pub fn is_supervised() -> bool {
    std::env::var_os(NOTIFY_VARIABLE).is_some_and(|socket| !socket.is_empty())
}

fn notify(states: &[NotifyState<'_>]) {
    // Without a service manager, the call does nothing. If the call fails, the daemon goes on.
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "the daemon cannot report to the service manager");
    }
}

/// The reason for which the daemon cannot use the service manager's sockets.
#[derive(Debug, thiserror::Error)]
pub enum InheritError {
    /// The variables of the environment are malformed.
    #[error("the daemon cannot use the sockets that the service manager passed: {0}")]
    Environment(io::Error),
    /// The service manager passed a descriptor that is neither of the daemon's two sockets.
    #[error(
        "the service manager passed a descriptor named `{0}` that is neither the tenant socket (ListenSequentialPacket=) nor the admin socket (ListenStream=)"
    )]
    Foreign(String),
}

/// Returns the sockets that the service manager opened for the daemon (`LISTEN_FDS`). The names
/// `tenant` and `admin` identify the sockets. Without names, the types of the sockets identify
/// them.
///
/// # Errors
/// [`InheritError`].
///
/// # Safety
/// The caller calls this once, before the process opens a descriptor of its own.
pub unsafe fn inherited() -> Result<Inherited, InheritError> {
    let mut inherited = Inherited::default();
    for (fd, name) in sd_notify::listen_fds_with_names().map_err(InheritError::Environment)? {
        // SAFETY: `LISTEN_PID` is this process, and the caller opened nothing. So the descriptor is
        // the service manager's, and nothing else in this process owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let kind = socket_type(&socket).ok();
        let is_free = |place: &Option<OwnedFd>| place.is_none();
        match kind {
            Some(SocketType::SEQPACKET) if name != ADMIN_NAME && is_free(&inherited.tenants) => {
                inherited.tenants = Some(socket);
            }
            Some(SocketType::STREAM) if name != TENANT_NAME && is_free(&inherited.administrators) => {
                inherited.administrators = Some(socket);
            }
            _ => return Err(InheritError::Foreign(name)),
        }
    }
    Ok(inherited)
}

/// Accepts and closes the connections that wait at the sockets. A daemon that ends before it serves
/// calls this function. Otherwise the service manager would start the daemon again at once, for the
/// same connections.
pub fn turn_away(inherited: &Inherited) {
    for socket in [&inherited.tenants, &inherited.administrators].into_iter().flatten() {
        // The last call must not wait for a further connection.
        if ioctl_fionbio(socket, true).is_ok() {
            while accept_with(socket, SocketFlags::CLOEXEC).is_ok() {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn connections_that_wait_are_closed_and_the_sockets_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let inherited = Inherited { tenants: None, administrators: Some(listener.into()) };
        let mut waiting = [(); 2].map(|()| UnixStream::connect(&path).unwrap());
        turn_away(&inherited);
        for stream in &mut waiting {
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        }
        UnixStream::connect(&path).unwrap();
    }
}
