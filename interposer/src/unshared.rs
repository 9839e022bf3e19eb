//! Connections that no forked child keeps: the daemon sees a session's end by its connection's, which would live as long as the child.
//!
//! A thread may fork at any moment, so each socket is noted from the call that makes it to the one that closes it, and no fork is let in between
//! a socket's birth and its note, nor between the end of both. Both sides wait for each other for a bounded time only: whoever forks in a
//! signal handler may have interrupted the other.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::descriptor::{OwnDescriptor, Place};
use crate::os::Patience;

/// How long one waits for the other at most, ns. A socket is made in a microsecond, a fork of a large process takes some milliseconds.
const APART_NS: u64 = 100_000_000;
/// More than connect at once: one is the session's, one a hello's, and the rest are threads that ask what their tenant has.
const MOST: usize = 64;

/// The sockets there are.
static NOTED: [Place; MOST] = [const { Place::none() }; MOST];
/// Threads between a socket's birth and its note, or between that's end and the socket's.
static MAKING: AtomicU32 = AtomicU32::new(0);
/// Threads that are forking.
static FORKING: AtomicU32 = AtomicU32::new(0);
/// Whether the C library tells of forks. Set by whoever has seen to it.
static IS_LISTENING: AtomicBool = AtomicBool::new(false);

/// A socket of ours that a forked child does not have.
#[derive(Debug)]
pub struct Unshared(OwnDescriptor);

impl Unshared {
    /// Makes a Unix socket of packets, closed by exec too, with `flags` of socket(2).
    ///
    /// # Errors
    /// The system's, or that too many threads connect at once.
    pub fn packets(flags: i32) -> io::Result<Self> {
        if !IS_LISTENING.load(Ordering::Acquire) {
            // The C library lets nobody in here while another thread forks. Threads that come at once are all let in: being told twice does no harm, and a
            // socket made before the other was let in would be left to a child.
            // SAFETY: plain functions of this library, which is never unloaded.
            unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
            IS_LISTENING.store(true, Ordering::Release);
        }
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | flags;
        let _apart = Making::begin();
        // SAFETY: no pointers.
        let socket = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, and nobody else's.
        let socket = OwnDescriptor::new(unsafe { OwnedFd::from_raw_fd(socket) });
        if !NOTED.iter().any(|note| note.exchange(None, Some(socket))) {
            socket.close();
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        Ok(Self(socket))
    }

    /// Its descriptor.
    pub fn descriptor(&self) -> OwnDescriptor {
        self.0
    }

    /// The same. It stays noted until [`Self::from_descriptor`] has it again.
    pub fn into_descriptor(self) -> OwnDescriptor {
        ManuallyDrop::new(self).0
    }

    /// Takes back what [`Self::into_descriptor`] gave, and nobody else has now.
    pub fn from_descriptor(descriptor: OwnDescriptor) -> Self {
        Self(descriptor)
    }
}

impl Drop for Unshared {
    fn drop(&mut self) {
        let _apart = Making::begin();
        // In a child it is noted no more, and closed.
        if !NOTED.iter().any(|note| note.exchange(Some(self.0), None)) {
            return;
        }
        let Some(number) = self.0.number() else { return };
        // SAFETY: our own, and nobody's from here on. A child that was made in another way than by fork may have it still: it ends for that, too.
        unsafe {
            libc::shutdown(number, libc::SHUT_RDWR);
            libc::close(number);
        }
    }
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
    // What nobody uses here.
    NOTED.iter().filter_map(|note| note.swap(None)).for_each(OwnDescriptor::close);
}
