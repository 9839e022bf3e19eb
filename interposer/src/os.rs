//! The few system calls that several modules need, as functions without pointers.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicU32;
use std::thread;

const NS_PER_S: u64 = 1_000_000_000;
/// The number of polls after which a waiting thread sleeps between polls.
const YIELDS: u32 = 500;
const NAP_NS: u64 = 50_000;

/// Returns the time of `CLOCK_MONOTONIC`, ns.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the result has room, and this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    (time.tv_sec as u64).saturating_mul(NS_PER_S).saturating_add(time.tv_nsec as u64)
}

/// A wait of a thread that polls something, with a time limit.
#[derive(Debug, Default)]
pub struct Patience {
    looks: u32,
    until_ns: u64,
}

impl Patience {
    /// Lets other threads run for a moment. Returns false if `limit_ns` have passed since the first
    /// call.
    #[cold]
    pub fn goes_on(&mut self, limit_ns: u64) -> bool {
        let now_ns = now_ns();
        if self.looks == 0 {
            self.until_ns = now_ns + limit_ns;
        }
        self.looks += 1;
        if self.looks < YIELDS {
            thread::yield_now();
        } else {
            sleep(NAP_NS);
        }
        now_ns < self.until_ns
    }
}

/// Sleeps for `ns`, or until a signal comes. The function does not use the standard library's
/// sleep. If a system call filter of the job refuses that sleep's system call, the standard library
/// ends the process. No program can do without futex calls, because locks need them. A futex call
/// is no cancellation point either.
pub fn sleep(ns: u64) {
    let nobody = AtomicU32::new(0);
    futex_wait_private(&nobody, 0, ns);
}

/// While this value lives, the thread cannot be cancelled (`pthread_cancel`). The guard protects
/// code that holds something of the interposer and can wait, in the C library or in the driver. So
/// threads of the job are cancelled only where they would be without the interposer.
#[derive(Debug)]
pub struct Uncancelled {
    before: libc::c_int,
}

/// Prevents cancellation of this thread while the result lives.
pub fn uncancelled() -> Uncancelled {
    /// `PTHREAD_CANCEL_DISABLE` of glibc and of musl.
    const DISABLE: libc::c_int = 1;
    Uncancelled { before: set_cancel_state(DISABLE) }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        set_cancel_state(self.before);
    }
}

/// Sets the cancel state of this thread, and returns the previous state.
fn set_cancel_state(state: libc::c_int) -> libc::c_int {
    unsafe extern "C" {
        fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
    }
    let mut before = 0;
    // SAFETY: the call changes only this thread, and the result has room.
    unsafe { pthread_setcancelstate(state, &mut before) };
    before
}

/// Writes bytes to a descriptor, without a cancellation point. Returns the number of bytes written.
///
/// # Errors
/// The kernel's error.
pub fn write(number: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the buffer is readable and has the given length. The descriptor can be anything.
    let written = unsafe { libc::syscall(libc::SYS_write, number, bytes.as_ptr(), bytes.len()) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

/// Writes as many bytes as possible without a wait, and raises no signal. Returns the number of
/// bytes written. So if nobody reads a pipe, or its reader is gone, a log line does not delay or
/// end the job.
///
/// # Errors
/// The kernel's error, or [`io::ErrorKind::WouldBlock`] if the file has no room.
pub fn write_gently(number: RawFd, bytes: &[u8]) -> io::Result<usize> {
    let mut polled = libc::pollfd { fd: number, events: libc::POLLOUT, revents: 0 };
    let at_once = timespec(0);
    // SAFETY: the entry and the timeout outlive the call, which changes no signal mask.
    let ready = unsafe {
        libc::syscall(libc::SYS_ppoll, &raw mut polled, 1, &raw const at_once, std::ptr::null::<u64>(), 8)
    };
    if ready != 1 || polled.revents & libc::POLLOUT == 0 {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let _silence = Silence::begin();
    write(number, bytes)
}

/// While this value lives, the thread blocks the signals that its write can raise: `SIGPIPE`, and
/// `SIGXFSZ` beyond `ulimit -f`. The drop discards such signals.
struct Silence {
    /// The thread's signal mask before the value blocked the signals, in the kernel's form.
    mask: u64,
    /// The signals that were pending before, and so belong to the job.
    pending: u64,
}

impl Silence {
    const SIGNALS: u64 = (1 << (libc::SIGPIPE - 1)) | (1 << (libc::SIGXFSZ - 1));
    const SET_BYTES: usize = size_of::<u64>();

    fn begin() -> Self {
        let (mut mask, mut pending) = (0_u64, 0_u64);
        // SAFETY: all buffers have room for a signal set of the kernel.
        unsafe {
            libc::syscall(libc::SYS_rt_sigpending, &raw mut pending, Self::SET_BYTES);
            let signals = Self::SIGNALS;
            let signals = &raw const signals;
            libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, signals, &raw mut mask, Self::SET_BYTES);
        }
        Self { mask, pending }
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        let mut pending = 0_u64;
        // SAFETY: as above. The call asks for no information about the signal.
        unsafe {
            libc::syscall(libc::SYS_rt_sigpending, &raw mut pending, Self::SET_BYTES);
            let ours = pending & Self::SIGNALS & !self.pending;
            if ours != 0 {
                let (nothing, at_once) = (std::ptr::null::<libc::siginfo_t>(), timespec(0));
                let (ours, at_once) = (&raw const ours, &raw const at_once);
                libc::syscall(libc::SYS_rt_sigtimedwait, ours, nothing, at_once, Self::SET_BYTES);
            }
            let before = &raw const self.mask;
            libc::syscall(
                libc::SYS_rt_sigprocmask,
                libc::SIG_SETMASK,
                before,
                std::ptr::null::<u64>(),
                Self::SET_BYTES,
            );
        }
    }
}

/// Reads bytes from a descriptor, without a cancellation point. Returns the number of bytes read.
///
/// # Errors
/// The kernel's error.
pub fn read(number: RawFd, bytes: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the buffer is writable and has the given length.
    let got = unsafe { libc::syscall(libc::SYS_read, number, bytes.as_mut_ptr(), bytes.len()) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Returns a duration in the kernel's form.
pub fn timespec(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / NS_PER_S) as i64, tv_nsec: (ns % NS_PER_S) as i64 }
}

/// While this value lives, the job's signal handlers run in the thread only during [`Self::nap`].
/// So the thread learns of each handler. A handler can also run just before a thread returns from a
/// sleep on a futex. The end of that sleep does not show the handler.
#[derive(Debug)]
pub struct HeldSignals {
    /// The thread's signal mask before, in the kernel's form.
    mask: u64,
}

impl HeldSignals {
    /// All signals but those that a fault of the thread itself raises, in the kernel's form.
    const SIGNALS: u64 = {
        let faults = [libc::SIGILL, libc::SIGTRAP, libc::SIGBUS, libc::SIGFPE, libc::SIGSEGV, libc::SIGSYS];
        let (mut signals, mut place) = (u64::MAX, 0);
        while place < faults.len() {
            signals &= !(1 << (faults[place] - 1));
            place += 1;
        }
        signals
    };

    /// Holds the signals of this thread.
    pub fn hold() -> Self {
        let mut mask = 0;
        let held = Self::SIGNALS;
        let signals = &raw const held;
        // SAFETY: both buffers are signal sets of the kernel.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigprocmask,
                libc::SIG_BLOCK,
                signals,
                &raw mut mask,
                Silence::SET_BYTES,
            )
        };
        Self { mask }
    }

    /// Sleeps for `ns`, or until a handler has run. Returns whether a handler has run.
    pub fn nap(&self, ns: u64) -> bool {
        let mut timeout = timespec(ns);
        let (nothing, mask) = (std::ptr::null::<libc::pollfd>(), &raw const self.mask);
        // SAFETY: the call waits for no descriptor, and the timeout and the set outlive the call.
        let result = unsafe {
            libc::syscall(libc::SYS_ppoll, nothing, 0_usize, &raw mut timeout, mask, Silence::SET_BYTES)
        };
        if result == 0 {
            return false;
        }
        let has_run = io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
        if !has_run {
            // A system call filter of the job can refuse the call. The handlers then run unseen.
            drop(Self { mask: self.mask });
            sleep(ns);
            std::mem::forget(Self::hold());
        }
        has_run
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        let (before, nothing) = (&raw const self.mask, std::ptr::null::<u64>());
        // SAFETY: the buffer is a signal set of the kernel.
        unsafe {
            libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, before, nothing, Silence::SET_BYTES)
        };
    }
}

/// Sleeps for at most `timeout_ns` while the word at `word` is `seen`. Another process can share
/// the word. The function can return early. Returns whether a signal handler of the job ended the
/// sleep.
pub fn futex_wait_shared(word: *mut u32, seen: u32, timeout_ns: u64) -> bool {
    futex_wait(word, libc::FUTEX_WAIT, seen, timeout_ns)
}

/// Sleeps for at most `timeout_ns` while `word` is `seen`. The function can return early.
pub fn futex_wait_private(word: &AtomicU32, seen: u32, timeout_ns: u64) {
    futex_wait(word.as_ptr(), libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, seen, timeout_ns);
}

fn futex_wait(word: *mut u32, operation: i32, seen: u32, timeout_ns: u64) -> bool {
    let timeout = timespec(timeout_ns);
    // SAFETY: the kernel checks the address, and the timeout outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_futex, word, operation, seen, &raw const timeout) };
    result < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
}

/// Wakes all threads of this process that sleep on `word`.
pub fn futex_wake_private(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the call touches no memory.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, i32::MAX) };
}

/// Wakes all threads of any process that sleep on the word at `word`.
pub fn futex_wake_shared(word: *mut u32) {
    // SAFETY: the call touches no memory.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX) };
}

/// Returns this thread's id.
pub fn thread_id() -> u32 {
    // The code makes the call by its number, because older C libraries than 2.30 have no function
    // for it.
    // SAFETY: the call has no arguments and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Returns whether this process has a thread with this id.
pub fn is_thread_alive(thread_id: u32) -> bool {
    // SAFETY: signal 0 only checks the thread.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread_id as i32, 0) };
    // A system call filter of the job can refuse the call. In this case, the function takes the
    // thread as alive.
    result == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    static HEARD: AtomicU32 = AtomicU32::new(0);

    extern "C" fn hear(_: libc::c_int) {
        HEARD.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn a_handler_runs_only_during_a_nap_which_tells_of_it() {
        let raise = || {
            // SAFETY: the handler only counts, and the thread lives.
            unsafe {
                libc::signal(libc::SIGUSR1, hear as *const () as usize);
                libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1);
            }
        };
        let held = HeldSignals::hold();
        raise();
        assert_eq!(HEARD.load(Ordering::Relaxed), 0);
        assert!(held.nap(60 * NS_PER_S));
        assert_eq!(HEARD.load(Ordering::Relaxed), 1);
        assert!(!held.nap(1));
        raise();
        drop(held);
        assert_eq!(HEARD.load(Ordering::Relaxed), 2, "the signal waited for the end");
    }
}
