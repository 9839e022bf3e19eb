//! Descriptors of ours. They stand in the job's table: a job may close them, as daemons and launchers close all that they did not open, and give their
//! numbers to files of its own. So nothing is done by a number before it was looked whether it still stands for what is ours.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::os;

/// The signal that an anonymous file of ours would send if it were asked for any. The kernel gives all such files one inode: by this ours are told from the
/// job's.
const MARK: i32 = 63;
/// Sets and reads that signal (`fcntl.h`).
const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
/// More than a driver opens at its start.
const SPARE: i32 = 64;
/// Of what could not be looked at.
const UNKNOWN: u32 = 0;
/// In a place: no descriptor.
const NONE: u64 = u64::MAX;

/// A number, and what it stood for when it was ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnDescriptor {
    number: RawFd,
    identity: u32,
}

impl OwnDescriptor {
    /// Keeps `descriptor`, which is closed by [`Self::close`] alone from here on.
    pub fn new(descriptor: OwnedFd) -> Self {
        Self::of(apart(descriptor).into_raw_fd())
    }

    /// The same by a number that is ours at this moment.
    pub fn of(number: RawFd) -> Self {
        if let Ok(status) = status(number)
            && is_anonymous(&status)
        {
            // Refused, it is one of all those without a mark.
            // SAFETY: no pointers; no signal is sent but for files that have `O_ASYNC`.
            unsafe { libc::fcntl(number, F_SETSIG, MARK) };
        }
        Self { number, identity: identity(number).unwrap_or(UNKNOWN) }
    }

    /// A new eventfd. `None`: there is none to be had.
    pub fn eventfd() -> Option<Self> {
        // SAFETY: no pointers.
        let number = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        // SAFETY: just made, and nobody else's.
        (number >= 0).then(|| Self::new(unsafe { OwnedFd::from_raw_fd(number) }))
    }

    /// Its number, if that still stands for it.
    pub fn number(self) -> Option<RawFd> {
        let is_ours = match identity(self.number) {
            Ok(identity) => identity == self.identity || self.identity == UNKNOWN,
            // A filter of the job's may let nobody look. Nothing is known against it then.
            Err(error) => error.raw_os_error() != Some(libc::EBADF),
        };
        is_ours.then_some(self.number)
    }

    /// Its number, to ask the kernel whether anything happened to whatever that stands for: nothing else may be done by it.
    pub fn unchecked(self) -> RawFd {
        self.number
    }

    /// Whether its number still stands for it.
    pub fn is_ours(self) -> bool {
        self.number().is_some()
    }

    /// Whether the process may open many more files than it has: one that may not needs each for itself.
    pub fn is_to_spare(self) -> bool {
        let Some(number) = self.number() else { return false };
        // The lowest number that was free. One so far above is given neither beyond the process's limit nor where all up to there are in use.
        // SAFETY: no pointers.
        let above = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, number + SPARE) };
        // SAFETY: just made, and nobody else's.
        above >= 0 && unsafe { libc::close(above) } == 0
    }

    /// Closes it, if it is ours still. Nobody may be using it.
    pub fn close(self) {
        if let Some(number) = self.number() {
            // SAFETY: ours, and by the caller's word nobody uses it.
            unsafe { libc::close(number) };
        }
    }

    /// Adds one to the eventfd; a full one is rung already. False: it is ours no more.
    pub fn ring(self) -> bool {
        self.number().map(|number| os::write(number, &1_u64.to_ne_bytes())).is_some()
    }

    /// Empties the eventfd. False: it is ours no more.
    pub fn hush(self) -> bool {
        self.number().map(|number| os::read(number, &mut [0; size_of::<u64>()])).is_some()
    }

    const fn packed(self) -> u64 {
        (self.identity as u64) << u32::BITS | self.number as u32 as u64
    }
}

/// Where a descriptor of ours is, or none. Any thread may read it at any time.
#[derive(Debug)]
pub struct Place(AtomicU64);

impl Place {
    /// No descriptor.
    pub const fn none() -> Self {
        Self(AtomicU64::new(NONE))
    }

    /// One that is there from the beginning.
    pub const fn new(descriptor: OwnDescriptor) -> Self {
        Self(AtomicU64::new(descriptor.packed()))
    }

    /// The present one, which may be ours no more.
    pub fn get(&self) -> Option<OwnDescriptor> {
        unpack(self.0.load(Ordering::Acquire))
    }

    /// Puts another there; returns the one that was.
    pub fn swap(&self, new: Option<OwnDescriptor>) -> Option<OwnDescriptor> {
        unpack(self.0.swap(pack(new), Ordering::AcqRel))
    }

    /// Puts `to` there, if `from` is there.
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

/// A new descriptor away from the numbers of the standard streams: a job that has closed those writes there all the same, and so may whoever it starts.
/// Before any lock is taken by it, since a process loses its locks on a file with any descriptor of that.
pub fn apart(descriptor: OwnedFd) -> OwnedFd {
    if descriptor.as_raw_fd() > libc::STDERR_FILENO {
        return descriptor;
    }
    // SAFETY: no pointers.
    let number =
        unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD_CLOEXEC, libc::STDERR_FILENO + 1) };
    if number < 0 {
        // None is to be had: where it is it works as well.
        return descriptor;
    }
    // SAFETY: just made, and nobody else's.
    unsafe { OwnedFd::from_raw_fd(number) }
}

fn status(number: RawFd) -> io::Result<libc::stat> {
    // SAFETY: all zeroes is a valid stat, and the result has room; a number that is none is refused.
    let (result, status) = unsafe {
        let mut status = mem::zeroed::<libc::stat>();
        (libc::fstat(number, &mut status), status)
    };
    if result == 0 { Ok(status) } else { Err(io::Error::last_os_error()) }
}

/// An eventfd is, as are epoll's files, timers and the like.
fn is_anonymous(status: &libc::stat) -> bool {
    status.st_mode & libc::S_IFMT == 0
}

/// What tells the open file at `number` from others, in so many bits.
fn identity(number: RawFd) -> io::Result<u32> {
    /// Spreads every bit of a word over the upper ones (the golden ratio's).
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let status = status(number)?;
    let mark = if is_anonymous(&status) {
        // SAFETY: no pointers.
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

    /// Closes `own` behind its back and puts another file at its number.
    fn replace(own: OwnDescriptor, other: OwnDescriptor) {
        // SAFETY: both are this test's alone.
        assert_eq!(unsafe { libc::dup2(other.unchecked(), own.unchecked()) }, own.unchecked());
    }

    fn count(number: RawFd) -> Option<u64> {
        let mut count = 0_u64;
        // SAFETY: eight writable bytes.
        let read = unsafe { libc::read(number, (&raw mut count).cast(), size_of::<u64>()) };
        (read > 0).then_some(count)
    }

    #[test]
    fn nothing_is_done_to_the_file_that_has_the_number_of_ours_now() {
        let own = OwnDescriptor::eventfd().unwrap();
        assert!(own.ring() && own.hush());
        // SAFETY: no pointers; the descriptor is new. An eventfd of the job's has no mark.
        let other = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_NONBLOCK)) };
        let number = other.into_raw_fd();
        replace(own, OwnDescriptor { number, identity: UNKNOWN });
        assert!(!own.ring() && count(number).is_none(), "nobody rings another's");
        let five = 5_u64;
        // SAFETY: eight readable bytes.
        unsafe { libc::write(number, (&raw const five).cast(), size_of::<u64>()) };
        assert!(!own.hush(), "nor reads it");
        own.close();
        assert_eq!(count(own.unchecked()), Some(5), "nor closes it");
    }

    #[test]
    fn files_are_told_apart_by_what_they_are() {
        // SAFETY: a terminated name; descriptors that are new.
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
