//! The service manager's side: whether the daemon is ready, alive, stopping, and what it does (sd_notify), and the sockets it may bring.

use super::registry::Summary;
use crate::Inherited;
use rustix::net::{SocketType, sockopt::socket_type};
use sd_notify::NotifyState;
use std::cell::RefCell;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

/// Names of the sockets in their units (`FileDescriptorName=`).
const TENANT_NAME: &str = "tenant";
const ADMIN_NAME: &str = "admin";
/// Signs of life in the time after which the service manager misses one.
const SIGNS_PER_LIMIT: u32 = 3;

/// The service manager, if there is one.
#[derive(Debug, Default)]
pub struct Service {
    watchdog: Option<Duration>,
    told: RefCell<String>,
}

impl Service {
    /// Whoever started us, by the environment.
    pub fn of_environment() -> Self {
        Self { watchdog: sd_notify::watchdog_enabled(), told: RefCell::default() }
    }

    /// Tenants can connect.
    pub fn ready(&self) {
        notify(&[NotifyState::Ready]);
    }

    /// No new ones can any more.
    pub fn stopping(&self) {
        notify(&[NotifyState::Stopping, NotifyState::Status("handing over to the next daemon")]);
    }

    /// How often [`Self::report`] is to be called at least.
    pub fn period(&self) -> Duration {
        self.watchdog.map_or(Duration::MAX, |limit| limit / SIGNS_PER_LIMIT)
    }

    /// Says how things are, and that everybody works, if so.
    pub fn report(&self, summary: &Summary, is_alive: bool) {
        if is_alive && self.watchdog.is_some() {
            notify(&[NotifyState::Watchdog]);
        }
        let status = summary.to_string();
        if *self.told.borrow() != status {
            notify(&[NotifyState::Status(&status)]);
            self.told.replace(status);
        }
    }
}

fn notify(states: &[NotifyState<'_>]) {
    // Without a service manager this does nothing; one that does not listen is its own affair.
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "the service manager cannot be told");
    }
}

/// Why the sockets of the service manager cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InheritError {
    /// The environment does not make sense.
    #[error("the sockets that the service manager passed cannot be found: {0}")]
    Environment(io::Error),
    /// It is none of ours.
    #[error(
        "the service manager passed a descriptor named `{0}` that is neither the tenant socket (ListenSequentialPacket=) nor the admin socket (ListenStream=)"
    )]
    Foreign(String),
}

/// The sockets that the service manager opened for us (`LISTEN_FDS`). Named `tenant` and `admin`; without names, known by their types.
///
/// # Errors
/// [`InheritError`].
///
/// # Safety
/// Called once, before the process opens any descriptor of its own that it did not inherit.
pub unsafe fn inherited() -> Result<Inherited, InheritError> {
    let mut inherited = Inherited::default();
    for (fd, name) in sd_notify::listen_fds_with_names().map_err(InheritError::Environment)? {
        // SAFETY: `LISTEN_PID` is us, and the caller opened nothing, so the descriptor is the service manager's, and ours alone.
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
