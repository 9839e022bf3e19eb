//! Connections that a forked child does not keep. When a connection ends, the daemon ends the
//! session. A copy in a child would keep the connection alive.
//!
//! A thread can fork at any moment. So the interposer keeps a note of each socket, from the call
//! that makes the socket to the call that closes it. No fork may come between the making of a
//! socket and of its note, or between the end of a socket and of its note. So the thread that makes
//! a socket and the thread that forks wait for each other. Both wait only for a bounded time,
//! because a signal handler can fork after it interrupted the thread that makes a socket.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::descriptor::{OwnDescriptor, Place};
use crate::os::Patience;

/// The longest time for which a thread that makes a socket and a thread that forks wait for each
/// other, ns. The making of a socket takes a microsecond, and the fork of a large process takes
/// some milliseconds.
const APART_NS: u64 = 100_000_000;
/// The most sockets to the daemon at a time. One socket belongs to the session, and one to a
/// handshake. The other sockets belong to threads that ask the daemon for their tenant's part of a
/// GPU, to answer NVML calls.
const MOST: usize = 64;

/// The notes of the existing sockets.
static NOTED: [Place; MOST] = [const { Place::none() }; MOST];
/// The number of threads that are making a socket and its note, or are removing a note and closing
/// its socket.
static MAKING: AtomicU32 = AtomicU32::new(0);
/// The number of threads in a fork.
static FORKING: AtomicU32 = AtomicU32::new(0);
/// Whether the C library knows the fork handlers. A thread sets the flag after it has registered
/// the handlers.
static IS_LISTENING: AtomicBool = AtomicBool::new(false);

/// A socket of the interposer that a forked child does not keep.
#[derive(Debug)]
pub struct Unshared(OwnDescriptor);

impl Unshared {
    /// Makes a Unix socket for packets, with `flags` of socket(2), and returns the socket. exec
    /// closes the socket too.
    ///
    /// # Errors
    /// The system's error, or `EMFILE` if too many threads connect at once.
    pub fn packets(flags: i32) -> io::Result<Self> {
        if !IS_LISTENING.load(Ordering::Acquire) {
            // While another thread forks, the C library makes this call wait. Threads that come at
            // the same time all register the handlers, and a second run of the handlers does no
            // harm. If a thread skipped the call, it could make its socket before the registration
            // of the other thread. A child could then keep the socket.
            // SAFETY: the handlers are plain functions of this library, which is never unloaded.
            unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
            IS_LISTENING.store(true, Ordering::Release);
        }
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | flags;
        let _apart = Making::begin();
        // SAFETY: the call takes no pointers.
        let socket = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above made the descriptor, and nothing else owns it.
        let socket = OwnDescriptor::new(unsafe { OwnedFd::from_raw_fd(socket) });
        if !NOTED.iter().any(|note| note.exchange(None, Some(socket))) {
            socket.close();
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        Ok(Self(socket))
    }

    /// Returns the socket's descriptor.
    pub fn descriptor(&self) -> OwnDescriptor {
        self.0
    }

    /// Returns the descriptor and ends this value. The note stays until [`Self::from_descriptor`]
    /// takes the descriptor back.
    pub fn into_descriptor(self) -> OwnDescriptor {
        ManuallyDrop::new(self).0
    }

    /// Returns the socket of a descriptor that [`Self::into_descriptor`] returned. No other code
    /// may have the descriptor now.
    pub fn from_descriptor(descriptor: OwnDescriptor) -> Self {
        Self(descriptor)
    }
}

impl Drop for Unshared {
    fn drop(&mut self) {
        let _apart = Making::begin();
        // In a child, the fork handler has closed the socket and removed its note.
        if !NOTED.iter().any(|note| note.exchange(Some(self.0), None)) {
            return;
        }
        let Some(number) = self.0.number() else { return };
        // SAFETY: the socket belongs to the interposer, and no thread uses it any more. A child
        // that the job made without fork can still have a copy. The shutdown ends the connection
        // for such a child too.
        unsafe {
            libc::shutdown(number, libc::SHUT_RDWR);
            libc::close(number);
        }
    }
}

/// A guard: while this value lives, no other thread forks.
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

/// Decrements the count, but not below zero. A child begins at zero, and can return into code that
/// its parent had begun.
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

/// The fork handler of the child: closes the sockets that the child does not use. Runs in the
/// child's only thread, before other code runs in the child.
extern "C" fn in_child() {
    FORKING.store(0, Ordering::SeqCst);
    MAKING.store(0, Ordering::SeqCst);
    // The child does not use these sockets.
    NOTED.iter().filter_map(|note| note.swap(None)).for_each(OwnDescriptor::close);
}
