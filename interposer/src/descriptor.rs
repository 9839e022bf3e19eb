//! The file descriptors of the interposer. The descriptors are in the job's table, so the job can
//! close them and give their numbers to files of its own. For example, daemons and launchers close
//! all descriptors that they did not open. So before each use of a number, the interposer checks
//! that the number still stands for its file.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::os;

/// A signal number that the interposer sets on its anonymous files, as a mark. The files never send
/// the signal. The kernel gives all anonymous files the same inode, so only the mark distinguishes
/// the interposer's files from the job's.
const MARK: i32 = 63;
/// The command of `fcntl` that sets the signal number of a file (`fcntl.h`).
const F_SETSIG: i32 = 10;
/// The command of `fcntl` that reads the signal number of a file (`fcntl.h`).
const F_GETSIG: i32 = 11;
/// The number of descriptors that must be free. A driver opens fewer at its start.
const SPARE: i32 = 64;
/// The identity of a file that the interposer could not examine.
const UNKNOWN: u32 = 0;
/// The value of a [`Place`] that has no descriptor.
const NONE: u64 = u64::MAX;

/// A descriptor number, and the identity of the file for which it stood at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnDescriptor {
    number: RawFd,
    identity: u32,
}

impl OwnDescriptor {
    /// Returns `descriptor` with its file's identity. From now on, only [`Self::close`] closes it.
    pub fn new(descriptor: OwnedFd) -> Self {
        Self::of(apart(descriptor).into_raw_fd())
    }

    /// Returns a number with its file's identity. The number must belong to the interposer at this
    /// moment.
    pub fn of(number: RawFd) -> Self {
        if let Ok(status) = status(number)
            && is_anonymous(&status)
        {
            // If the kernel refuses this call, the file looks like any anonymous file without a
            // mark. SAFETY: the call takes no pointers. A file sends a signal only if it has
            // `O_ASYNC`.
            unsafe { libc::fcntl(number, F_SETSIG, MARK) };
        }
        Self { number, identity: identity(number).unwrap_or(UNKNOWN) }
    }

    /// Makes an eventfd. Returns `None` if the system provides none.
    pub fn eventfd() -> Option<Self> {
        // SAFETY: the call takes no pointers.
        let number = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        // SAFETY: the call above made the descriptor, and nothing else owns it.
        (number >= 0).then(|| Self::new(unsafe { OwnedFd::from_raw_fd(number) }))
    }

    /// Returns the number, or `None` if it no longer stands for the interposer's file.
    pub fn number(self) -> Option<RawFd> {
        let is_ours = match identity(self.number) {
            Ok(identity) => identity == self.identity || self.identity == UNKNOWN,
            // A system call filter of the job can refuse each check. In this case, the method takes
            // the number as unchanged.
            Err(error) => error.raw_os_error() != Some(libc::EBADF),
        };
        is_ours.then_some(self.number)
    }

    /// Returns the number without a check. The caller may use the number only to ask the kernel for
    /// events on the file.
    pub fn unchecked(self) -> RawFd {
        self.number
    }

    /// Returns whether the number still stands for the interposer's file.
    pub fn is_ours(self) -> bool {
        self.number().is_some()
    }

    /// Returns whether the process may open many more files than it has open. If this is false, the
    /// job needs all descriptors itself, and the interposer leaves them to the job.
    pub fn is_to_spare(self) -> bool {
        let Some(number) = self.number() else { return false };
        // `number` was the lowest free number. If the kernel gives no number so far above it, the
        // process's limit is lower, or the process uses all numbers.
        // SAFETY: the call takes no pointers.
        let above = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, number + SPARE) };
        // SAFETY: the call above made the descriptor, and nothing else owns it.
        above >= 0 && unsafe { libc::close(above) } == 0
    }

    /// Closes the descriptor, if it still belongs to the interposer. No thread may use the
    /// descriptor.
    pub fn close(self) {
        if let Some(number) = self.number() {
            // SAFETY: the descriptor belongs to the interposer, and the caller guarantees that no
            // thread uses it.
            unsafe { libc::close(number) };
        }
    }

    /// Adds one to the eventfd. If the eventfd is full, another thread has rung it already. Returns
    /// false if the descriptor no longer belongs to the interposer.
    pub fn ring(self) -> bool {
        self.number().map(|number| os::write(number, &1_u64.to_ne_bytes())).is_some()
    }

    /// Empties the eventfd. Returns false if the descriptor no longer belongs to the interposer.
    pub fn hush(self) -> bool {
        self.number().map(|number| os::read(number, &mut [0; size_of::<u64>()])).is_some()
    }

    const fn packed(self) -> u64 {
        (self.identity as u64) << u32::BITS | self.number as u32 as u64
    }
}

/// A place for a descriptor. Any thread may read the place at any time.
#[derive(Debug)]
pub struct Place(AtomicU64);

impl Place {
    /// Returns a place without a descriptor.
    pub const fn none() -> Self {
        Self(AtomicU64::new(NONE))
    }

    /// Returns a place that has a descriptor from the beginning.
    pub const fn new(descriptor: OwnDescriptor) -> Self {
        Self(AtomicU64::new(descriptor.packed()))
    }

    /// Returns the present descriptor, if there is one. The descriptor may no longer belong to the
    /// interposer.
    pub fn get(&self) -> Option<OwnDescriptor> {
        unpack(self.0.load(Ordering::Acquire))
    }

    /// Replaces the descriptor, and returns the descriptor before.
    pub fn swap(&self, new: Option<OwnDescriptor>) -> Option<OwnDescriptor> {
        unpack(self.0.swap(pack(new), Ordering::AcqRel))
    }

    /// Replaces `from` by `to`, if `from` is the present descriptor. Returns whether `from` was the
    /// present descriptor.
    pub fn exchange(&self, from: Option<OwnDescriptor>, to: Option<OwnDescriptor>) -> bool {
        self.0.compare_exchange(pack(from), pack(to), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

fn pack(descriptor: Option<OwnDescriptor>) -> u64 {
    descriptor.map_or(NONE, OwnDescriptor::packed)
}

fn unpack(packed: u64) -> Option<OwnDescriptor> {
    (packed != NONE)
        .then_some(OwnDescriptor { number: packed as u32 as RawFd, identity: (packed >> u32::BITS) as u32 })
}

/// Moves a new descriptor away from the numbers of the standard streams, and returns the
/// descriptor. A job that has closed these streams may still write to their numbers, and so may its
/// children. A caller that locks the file must call this first, because a process loses its locks
/// when it closes any descriptor of the file.
pub fn apart(descriptor: OwnedFd) -> OwnedFd {
    if descriptor.as_raw_fd() > libc::STDERR_FILENO {
        return descriptor;
    }
    // SAFETY: the call takes no pointers.
    let number =
        unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD_CLOEXEC, libc::STDERR_FILENO + 1) };
    if number < 0 {
        // The kernel has no other number, and the present number works as well.
        return descriptor;
    }
    // SAFETY: the call above made the descriptor, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(number) }
}

fn status(number: RawFd) -> io::Result<libc::stat> {
    // SAFETY: all zeroes is a valid stat, and the result has room. The kernel refuses an invalid
    // number.
    let (result, status) = unsafe {
        let mut status = mem::zeroed::<libc::stat>();
        (libc::fstat(number, &mut status), status)
    };
    if result == 0 { Ok(status) } else { Err(io::Error::last_os_error()) }
}

/// Returns whether the file is anonymous, as eventfds, epoll files and timers are.
fn is_anonymous(status: &libc::stat) -> bool {
    status.st_mode & libc::S_IFMT == 0
}

/// Returns a hash that distinguishes the open file at `number` from other files.
fn identity(number: RawFd) -> io::Result<u32> {
    /// A multiplier, from the golden ratio, that spreads each bit of a word over the upper bits of
    /// the product.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let status = status(number)?;
    let mark = if is_anonymous(&status) {
        // SAFETY: the call takes no pointers.
        unsafe { libc::fcntl(number, F_GETSIG) }
    } else {
        0
    };
    let kind = u64::from(status.st_mode & libc::S_IFMT) << u32::BITS | u64::from(mark as u32);
    let mixed = [status.st_ino, status.st_dev, kind]
        .iter()
        .fold(0_u64, |mixed, word| (mixed ^ word).wrapping_mul(SPREAD).rotate_left(u32::BITS));
    Ok(((mixed >> u32::BITS) as u32 ^ mixed as u32).max(UNKNOWN + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts another file at the number of `own`, as a job can do.
    fn replace(own: OwnDescriptor, other: OwnDescriptor) {
        // SAFETY: only this test uses the two descriptors.
        assert_eq!(unsafe { libc::dup2(other.unchecked(), own.unchecked()) }, own.unchecked());
    }

    fn count(number: RawFd) -> Option<u64> {
        let mut count = 0_u64;
        // SAFETY: the buffer has eight writable bytes.
        let read = unsafe { libc::read(number, (&raw mut count).cast(), size_of::<u64>()) };
        (read > 0).then_some(count)
    }

    #[test]
    fn nothing_is_done_to_the_file_that_has_the_number_of_ours_now() {
        let own = OwnDescriptor::eventfd().unwrap();
        assert!(own.ring() && own.hush());
        // SAFETY: the call takes no pointers, and the descriptor is new. An eventfd of the job has
        // no mark.
        let other = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_NONBLOCK)) };
        let number = other.into_raw_fd();
        replace(own, OwnDescriptor { number, identity: UNKNOWN });
        assert!(!own.ring() && count(number).is_none(), "nobody rings another's");
        let five = 5_u64;
        // SAFETY: the buffer has eight readable bytes.
        unsafe { libc::write(number, (&raw const five).cast(), size_of::<u64>()) };
        assert!(!own.hush(), "nor reads it");
        own.close();
        assert_eq!(count(own.unchecked()), Some(5), "nor closes it");
    }

    #[test]
    fn files_are_told_apart_by_what_they_are() {
        // SAFETY: the name ends with a null byte, and the descriptors are new.
        let memory = || unsafe {
            OwnDescriptor::new(OwnedFd::from_raw_fd(libc::memfd_create(c"one".as_ptr(), libc::MFD_CLOEXEC)))
        };
        let (one, other) = (memory(), memory());
        assert!(one.is_ours() && other.is_ours() && one.identity != other.identity);
        replace(one, other);
        assert!(!one.is_ours() && other.is_ours());
        other.close();
        assert!(!other.is_ours(), "closed");
    }

    #[test]
    fn a_place_has_the_descriptor_that_was_put_there() {
        let (place, own) = (Place::none(), OwnDescriptor::eventfd().unwrap());
        assert_eq!(place.get(), None);
        assert!(place.exchange(None, Some(own)) && !place.exchange(None, Some(own)));
        assert_eq!((place.get(), place.swap(None), place.get()), (Some(own), Some(own), None));
    }
}
