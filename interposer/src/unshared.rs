//! Connections that no forked child keeps: the daemon sees a session's end by its connection's, which would live as long as the child.
//!
//! A thread may fork at any moment, so each socket is noted from the call that makes it to the one that closes it, and no fork is let in between
//! a socket's birth and its note, nor between the end of both. Both sides wait for each other for a bounded time only: whoever forks in a
//! signal handler may have interrupted the other.

use std::io;
use std::mem::{self, ManuallyDrop};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use crate::os::Patience;

/// How long one waits for the other at most, ns. A socket is made in a microsecond, a fork of a large process takes some milliseconds.
const APART_NS: u64 = 100_000_000;
/// More than connect at once: one is the session's, one a hello's, and the rest are threads that ask what their tenant has.
const MOST: usize = 64;
const NONE: i32 = -1;

/// The sockets there are.
static NOTED: [Note; MOST] =
    [const { Note { number: AtomicI32::new(NONE), inode: AtomicU64::new(0) } }; MOST];
/// Threads between a socket's birth and its note, or between that's end and the socket's.
static MAKING: AtomicU32 = AtomicU32::new(0);
/// Threads that are forking.
static FORKING: AtomicU32 = AtomicU32::new(0);
static IS_LISTENING: AtomicBool = AtomicBool::new(false);

struct Note {
    number: AtomicI32,
    /// What the number stands for as long as nobody but us closes it: a program that closes all it has may give the number to something else.
    inode: AtomicU64,
}

impl Note {
    /// Takes the place of `from`, if it is here.
    fn exchange(&self, from: RawFd, to: RawFd) -> bool {
        self.number.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn find(number: RawFd) -> Option<&'static Self> {
        NOTED.iter().find(|note| note.number.load(Ordering::Relaxed) == number)
    }

    /// Whether the number still is the socket's.
    fn is_true_of(&self, number: RawFd) -> bool {
        inode(number) == Some(self.inode.load(Ordering::Relaxed))
    }
}

/// A socket of ours that a forked child does not have.
#[derive(Debug)]
pub struct Unshared(RawFd);

impl Unshared {
    /// Makes a Unix socket of packets, closed by exec too, with `flags` of socket(2).
    ///
    /// # Errors
    /// The system's, or that too many threads connect at once.
    pub fn packets(flags: i32) -> io::Result<Self> {
        if !IS_LISTENING.swap(true, Ordering::Relaxed) {
            // SAFETY: plain functions of this library, which is never unloaded.
            unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
        }
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | flags;
        let _apart = Making::begin();
        // SAFETY: no pointers.
        let socket = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
        let Some(inode) = inode(socket) else { return Err(io::Error::last_os_error()) };
        let Some(note) = NOTED.iter().find(|note| note.exchange(NONE, socket)) else {
            // SAFETY: just made, and nobody else's.
            unsafe { libc::close(socket) };
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        };
        note.inode.store(inode, Ordering::Relaxed);
        Ok(Self(socket))
    }

    /// Its number. It stays noted until [`Self::from_raw_fd`] has it again.
    pub fn into_raw_fd(self) -> RawFd {
        ManuallyDrop::new(self).0
    }

    /// # Safety
    /// A number that [`Self::into_raw_fd`] gave, and that is nobody else's now.
    pub unsafe fn from_raw_fd(number: RawFd) -> Self {
        Self(number)
    }
}

impl AsRawFd for Unshared {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl Drop for Unshared {
    fn drop(&mut self) {
        let _apart = Making::begin();
        // In a child it is noted no more, and closed.
        let Some(note) = Note::find(self.0) else { return };
        let is_ours = note.is_true_of(self.0);
        if !note.exchange(self.0, NONE) || !is_ours {
            return;
        }
        // SAFETY: our own, and nobody's from here on. A child that was made in another way than by fork may have it still: it ends for that, too.
        unsafe {
            libc::shutdown(self.0, libc::SHUT_RDWR);
            libc::close(self.0);
        }
    }
}

fn inode(number: RawFd) -> Option<u64> {
    // SAFETY: all zeroes is a valid stat, and the result has room; a number that is none is refused.
    let (result, about) = unsafe {
        let mut about = mem::zeroed::<libc::stat>();
        (libc::fstat(number, &mut about), about)
    };
    (result == 0 && about.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(about.st_ino)
}

/// While it lives no other thread forks.
struct Making;

impl Making {
    fn begin() -> Self {
        let mut patience = Patience::default();
        loop {
            MAKING.fetch_add(1, Ordering::SeqCst);
            if FORKING.load(Ordering::SeqCst) == 0 {
                return Self;
            }
            count_down(&MAKING);
            if !patience.goes_on(APART_NS) {
                MAKING.fetch_add(1, Ordering::SeqCst);
                return Self;
            }
        }
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        count_down(&MAKING);
    }
}

/// A child begins at zero, and may return into what its parent was doing.
fn count_down(count: &AtomicU32) {
    let _ = count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
}

extern "C" fn before_fork() {
    FORKING.fetch_add(1, Ordering::SeqCst);
    let mut patience = Patience::default();
    while MAKING.load(Ordering::SeqCst) > 0 && patience.goes_on(APART_NS) {}
}

extern "C" fn after_fork() {
    count_down(&FORKING);
}

/// The child's only thread, before anything else runs in it.
extern "C" fn in_child() {
    FORKING.store(0, Ordering::SeqCst);
    MAKING.store(0, Ordering::SeqCst);
    for note in &NOTED {
        let number = note.number.swap(NONE, Ordering::Relaxed);
        if number != NONE && note.is_true_of(number) {
            // SAFETY: a descriptor of ours, which nobody uses here.
            unsafe { libc::close(number) };
        }
    }
}
