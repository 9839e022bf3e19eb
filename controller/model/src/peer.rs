//! The process at the other end of a connection, and the notice of its death.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The most groups of one process (NGROUPS_MAX of Linux).
const MAX_GROUPS: usize = 65_536;

/// The process that connected, with its rights at that time. The kernel reports all fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The process's id in the pid namespace of the caller; 0 if the process has no id there.
    pub pid: u32,
    /// The process's user.
    pub uid: u32,
    /// The process's group.
    pub gid: u32,
}

impl Peer {
    /// Asks the kernel for the peer of `socket`.
    ///
    /// # Errors
    /// The system's error, if `socket` is not a Unix socket.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        // rustix cannot represent a process id of 0, which a process of another namespace has.
        let mut credentials = [libc::ucred { pid: 0, uid: 0, gid: 0 }];
        option(socket, libc::SO_PEERCRED, &mut credentials)?;
        let [libc::ucred { pid, uid, gid }] = credentials;
        Ok(Self { pid: u32::try_from(pid).unwrap_or(0), uid, gid })
    }

    /// Returns all groups of the process. `socket` is the connection to the process.
    pub fn groups(&self, socket: BorrowedFd<'_>) -> Vec<u32> {
        let mut groups = vec![0; 64];
        let found = option(socket, libc::SO_PEERGROUPS, &mut groups).or_else(|_| {
            groups.resize(MAX_GROUPS, 0);
            option(socket, libc::SO_PEERGROUPS, &mut groups)
        });
        // If the kernel does not report the groups, only the process's own group remains.
        groups.truncate(found.unwrap_or(0));
        groups.push(self.gid);
        groups
    }

    /// Returns a descriptor that becomes readable when the process dies. Returns `None` if the
    /// process has died already.
    ///
    /// # Errors
    /// The system's error: the kernel has no pidfds, or no descriptors are left.
    pub fn death(&self, socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
        let mut descriptor: [RawFd; 1] = [-1];
        match option(socket, libc::SO_PEERPIDFD, &mut descriptor) {
            // SAFETY: the kernel has just created the descriptor for this process.
            Ok(_) if descriptor[0] >= 0 => Ok(Some(unsafe { OwnedFd::from_raw_fd(descriptor[0]) })),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
            // Kernels before 6.5 lack the option. Another process can have the id by now, but only
            // if the peer died while it connected.
            _ => self.open(),
        }
    }

    fn open(&self) -> io::Result<Option<OwnedFd>> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => Ok(Some(descriptor)),
            Err(rustix::io::Errno::SRCH) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns whether the process of a descriptor from [`Peer::death`] has died.
pub fn is_dead(death: BorrowedFd<'_>) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled = [PollFd::from_borrowed_fd(death, PollFlags::IN)];
    poll(&mut polled, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// Reads a socket option that is a list of plain values. Returns the number of values in it.
fn option<T: Copy>(socket: BorrowedFd<'_>, name: libc::c_int, values: &mut [T]) -> io::Result<usize> {
    let mut length = MaybeUninit::new(size_of_val(values) as libc::socklen_t);
    // SAFETY: the descriptor is open. The values are plain data, and the kernel writes at most
    // `length` bytes into them and then the count to `length`.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            values.as_mut_ptr().cast(),
            length.as_mut_ptr(),
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `length` was initialised above, and the kernel wrote it again.
    Ok(unsafe { length.assume_init() } as usize / size_of::<T>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_peer_is_the_connected_process_with_its_groups() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = Peer::of(one.as_fd()).unwrap();
        assert_eq!((peer.pid, peer.uid), (std::process::id(), rustix::process::geteuid().as_raw()));
        let groups = peer.groups(one.as_fd());
        for group in rustix::process::getgroups().unwrap() {
            assert!(groups.contains(&group.as_raw()));
        }
        assert!(groups.contains(&rustix::process::getegid().as_raw()));
        let death = peer.death(one.as_fd()).unwrap().unwrap();
        assert!(!is_dead(death.as_fd()));
    }

    #[test]
    fn the_death_of_a_peer_is_noticed() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let peer = Peer { pid: child.id(), uid: 0, gid: 0 };
        let death = peer.open().unwrap().unwrap();
        child.wait().unwrap();
        assert!(is_dead(death.as_fd()));
        assert!(peer.open().unwrap().is_none());
    }
}
