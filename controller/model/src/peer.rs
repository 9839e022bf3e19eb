//! Who is at the other end of a connection, and how its death is noticed.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Groups of one process, at most (NGROUPS_MAX of Linux).
const MAX_GROUPS: usize = 65_536;

/// The process at the other end, as the kernel gives it: the one that connected, with what it was allowed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its process id in our namespace; 0 if it has none there.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

impl Peer {
    /// Asks the kernel.
    ///
    /// # Errors
    /// The system's, if it is not a Unix socket.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        // Not rustix's: its process id cannot be 0, which is what a process in another namespace has.
        let mut credentials = [libc::ucred { pid: 0, uid: 0, gid: 0 }];
        option(socket, libc::SO_PEERCRED, &mut credentials)?;
        let [libc::ucred { pid, uid, gid }] = credentials;
        Ok(Self { pid: u32::try_from(pid).unwrap_or(0), uid, gid })
    }

    /// Every group that it is in.
    pub fn groups(&self, socket: BorrowedFd<'_>) -> Vec<u32> {
        let mut groups = vec![0; 64];
        let found = option(socket, libc::SO_PEERGROUPS, &mut groups).or_else(|_| {
            groups.resize(MAX_GROUPS, 0);
            option(socket, libc::SO_PEERGROUPS, &mut groups)
        });
        // A kernel that does not tell leaves the one group that is known.
        groups.truncate(found.unwrap_or(0));
        groups.push(self.gid);
        groups
    }

    /// A descriptor that becomes readable when the process dies. `None` if it has died already.
    ///
    /// # Errors
    /// The system's: a kernel without pidfds, no descriptors left.
    pub fn death(&self, socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
        let mut descriptor: [RawFd; 1] = [-1];
        match option(socket, libc::SO_PEERPIDFD, &mut descriptor) {
            // SAFETY: the kernel made this descriptor for us just now.
            Ok(_) if descriptor[0] >= 0 => Ok(Some(unsafe { OwnedFd::from_raw_fd(descriptor[0]) })),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
            // Kernels before 6.5: the number may by now be another process's, which only who dies as it connects can bring about.
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

/// Whether the process of such a descriptor has died.
pub fn is_dead(death: BorrowedFd<'_>) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled = [PollFd::from_borrowed_fd(death, PollFlags::IN)];
    poll(&mut polled, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// Reads a socket option that is a list of plain values. Returns how many there were.
fn option<T: Copy>(socket: BorrowedFd<'_>, name: libc::c_int, values: &mut [T]) -> io::Result<usize> {
    let mut length = MaybeUninit::new(size_of_val(values) as libc::socklen_t);
    // SAFETY: the kernel writes into the values, which are plain data, no more bytes than `length` says, and then how many; the
    // descriptor is open.
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
    // SAFETY: initialised above, and by the kernel again.
    Ok(unsafe { length.assume_init() } as usize / size_of::<T>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_peer_is_who_connected_and_its_groups_are_those_it_has() {
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
