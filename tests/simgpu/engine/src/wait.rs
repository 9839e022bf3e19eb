//! Functions that wait until a time, or for a change that no process can predict.

use crate::{Clock, WaitPolicy, clock::monotonic_ns, layout::Word};
use std::{io, ptr};

/// The longest sleep. A waiter checks its prediction at least this often, because another process's
/// death can make the event earlier.
pub const MAX_NAP_NS: u64 = 10_000_000;
/// [`WaitPolicy::Auto`] wakes by this time before the predicted time, and spins for the rest. A
/// wait that is shorter only spins. With this value, the median wait ends about 1 us late. Without
/// timer slack, on a two-core virtual machine that was four times overloaded, the median sleep of
/// 10 us ended 5 us late. The median sleep of 3 ms ended 21 us late.
const SPIN_NS: u64 = 20_000;

/// Waits until `until_ns`. Returns early after a signal or after [`MAX_NAP_NS`].
pub fn until(clock: &Clock, until_ns: u64, policy: WaitPolicy) {
    if let Clock::Virtual(_) = clock {
        return clock.advance_to(until_ns);
    }
    let until_ns = until_ns.min(monotonic_ns() + MAX_NAP_NS);
    match policy {
        WaitPolicy::Block => sleep_until(until_ns),
        WaitPolicy::Spin => spin_until(until_ns),
        WaitPolicy::Auto => {
            if until_ns > monotonic_ns() + SPIN_NS {
                sleep_until(until_ns - SPIN_NS);
            }
            spin_until(until_ns);
        }
        WaitPolicy::Yield => {
            while monotonic_ns() < until_ns {
                // SAFETY: `sched_yield` touches no memory.
                unsafe { libc::sched_yield() };
            }
        }
    }
}

fn spin_until(until_ns: u64) {
    while monotonic_ns() < until_ns {
        std::hint::spin_loop();
    }
}

fn sleep_until(until_ns: u64) {
    const NS_PER_S: u64 = 1_000_000_000;
    /// The smallest slack. 0 would mean the default, usually 50 us.
    const NO_SLACK_NS: libc::c_ulong = 1;
    let time = libc::timespec {
        tv_sec: (until_ns / NS_PER_S) as libc::time_t,
        tv_nsec: (until_ns % NS_PER_S) as libc::c_long,
    };
    // The thread belongs to the application, so the function restores the thread's old slack.
    // SAFETY: these options take and return plain numbers; `time` is valid; the call asks for no
    // remaining time.
    unsafe {
        let slack = libc::prctl(libc::PR_GET_TIMERSLACK);
        libc::prctl(libc::PR_SET_TIMERSLACK, NO_SLACK_NS);
        libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &time, ptr::null_mut());
        if let Ok(slack) = libc::c_ulong::try_from(slack) {
            libc::prctl(libc::PR_SET_TIMERSLACK, slack);
        }
    }
}

/// Waits until the word differs from `seen`, for at most `at_most_ns` and at most [`MAX_NAP_NS`].
pub fn for_change(word: &Word, waiters: &Word, seen: u64, at_most_ns: u64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: at_most_ns.min(MAX_NAP_NS) as libc::c_long };
    waiters.add(1);
    // SAFETY: the address is a live, aligned word of the mapping, and the timeout is valid. Callers
    // handle spurious returns.
    unsafe { libc::syscall(libc::SYS_futex, word.as_futex(), libc::FUTEX_WAIT, seen as u32, &time) };
    waiters.subtract(1);
}

/// Wakes the threads in [`for_change`]. The caller has changed the word.
pub fn wake_all(word: &Word, waiters: &Word) {
    if waiters.load() != 0 {
        // SAFETY: the address is a live, aligned word of the mapping.
        let woken =
            unsafe { libc::syscall(libc::SYS_futex, word.as_futex(), libc::FUTEX_WAKE, libc::c_int::MAX) };
        debug_assert!(woken >= 0, "futex: {}", io::Error::last_os_error());
    }
}
