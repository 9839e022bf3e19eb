//! Who is at the other end of a connection, and how its death is noticed.

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// The process at the other end, as the kernel gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its process id in our namespace; 0 if it has none there.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
}

impl Peer {
    /// Asks the kernel.
    ///
    /// # Errors
    /// The system's, if it is not a Unix socket.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        // Not rustix's: its process id cannot be 0, which is what a process in another namespace has.
        let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the buffer is as long as `length` says and lives through the call; the descriptor is open.
        let status = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &raw mut length,
            )
        };
        if status != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { pid: u32::try_from(credentials.pid).unwrap_or(0), uid: credentials.uid })
    }

    /// A descriptor that becomes readable when the process dies. `None` if it has died already.
    ///
    /// # Errors
    /// The system's: a kernel without pidfds, no descriptors left.
    pub fn death(&self) -> io::Result<Option<OwnedFd>> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => Ok(Some(descriptor)),
            Err(rustix::io::Errno::SRCH) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// The first words of a process's command, for naming it.
pub fn command_name(pid: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}
