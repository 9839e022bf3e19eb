//! Waiting for a moment, or for something that nobody can foresee.

use crate::{Clock, WaitPolicy, clock::monotonic_ns, layout::Word};
use std::{io, ptr};

/// The longest sleep. What was predicted is looked at again at least this often: another process's death can
/// bring it forward.
pub const MAX_NAP_NS: u64 = 10_000_000;
/// [`WaitPolicy::Auto`] wakes this long before the predicted time and spins the rest; shorter waits are spun
/// altogether. Measured on the two-core virtual machine this was written on, four times overloaded: the
/// median sleep of 10 us ends 5 us late, one of 3 ms 21 us late (without the timer slack). With this the
/// median wait ends about a microsecond late.
const SPIN_NS: u64 = 20_000;

/// Waits until `until_ns`, or a little less if interrupted by a signal.
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
                // SAFETY: no memory is involved.
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
    /// The least there is; 0 would mean the default, usually 50 us.
    const NO_SLACK_NS: libc::c_ulong = 1;
    let time = libc::timespec {
        tv_sec: (until_ns / NS_PER_S) as libc::time_t,
        tv_nsec: (until_ns % NS_PER_S) as libc::c_long,
    };
    // The slack is the thread's, and the thread is the application's: it is put back.
    // SAFETY: these options take and give plain numbers; `time` is valid; no remaining time is asked for.
    unsafe {
        let slack = libc::prctl(libc::PR_GET_TIMERSLACK);
        libc::prctl(libc::PR_SET_TIMERSLACK, NO_SLACK_NS);
        libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &time, ptr::null_mut());
        if let Ok(slack) = libc::c_ulong::try_from(slack) {
            libc::prctl(libc::PR_SET_TIMERSLACK, slack);
        }
    }
}

/// Waits until the word is no longer `seen`, for `at_most_ns` and at most [`MAX_NAP_NS`].
pub fn for_change(word: &Word, waiters: &Word, seen: u64, at_most_ns: u64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: at_most_ns.min(MAX_NAP_NS) as libc::c_long };
    waiters.add(1);
    // SAFETY: the address is a live, aligned word of the mapping, the timeout is valid; a spurious return is
    // allowed for.
    unsafe { libc::syscall(libc::SYS_futex, word.as_futex(), libc::FUTEX_WAIT, seen as u32, &time) };
    waiters.subtract(1);
}

/// Wakes whoever is in [`for_change`]; the word has been changed.
pub fn wake_all(word: &Word, waiters: &Word) {
    if waiters.load() != 0 {
        // SAFETY: the address is a live, aligned word of the mapping.
        let woken =
            unsafe { libc::syscall(libc::SYS_futex, word.as_futex(), libc::FUTEX_WAKE, libc::c_int::MAX) };
        debug_assert!(woken >= 0, "futex: {}", io::Error::last_os_error());
    }
}
