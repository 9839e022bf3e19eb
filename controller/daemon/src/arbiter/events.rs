//! The events for which an arbiter sleeps: bells, orders, and a timer.

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

const NS_PER_SECOND: u64 = 1_000_000_000;
/// The mark of an event that a bell caused.
const BELL: u64 = 0;
/// The mark of an event that the timer caused.
const TIMER: u64 = 1;
/// The most events that one call takes. The next call takes the rest.
const BATCH: usize = 64;

/// An eventfd that wakes an arbiter.
#[derive(Debug, Clone)]
pub struct Bell(Arc<OwnedFd>);

impl Bell {
    /// Makes a bell, and returns the bell.
    ///
    /// # Errors
    /// The system's error, for lack of descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Rings the bell.
    pub fn ring(&self) {
        // EAGAIN means that the counter is full, because the bell has rung already.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The events for which an arbiter sleeps: a set of bells, and a timer.
#[derive(Debug)]
pub struct Events {
    epoll: OwnedFd,
    timer: OwnedFd,
    armed_ns: u64,
}

impl Events {
    /// Returns an empty set.
    ///
    /// # Errors
    /// The system's error, for lack of descriptors.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        // A timerfd has two advantages over the timeout of epoll: it takes a moment instead of a
        // duration, and has no slack of 50 µs.
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let events = Self { epoll, timer, armed_ns: 0 };
        events.watch(&events.timer, TIMER)?;
        Ok(events)
    }

    /// Adds a bell.
    ///
    /// # Errors
    /// The system's error, for lack of memory.
    pub fn add(&self, bell: &Bell) -> io::Result<()> {
        self.watch(bell, BELL)
    }

    /// Removes a bell.
    pub fn remove(&self, bell: &Bell) {
        // An error means that the bell is not in the set any more.
        let _ = epoll::delete(&self.epoll, bell);
    }

    fn watch(&self, source: impl AsFd, what: u64) -> io::Result<()> {
        // With edge triggering, each ring wakes the arbiter, and the arbiter need not read the
        // eventfd. So a tenant that reads the eventfd cannot swallow a ring.
        Ok(epoll::add(&self.epoll, source, EventData::new_u64(what), EventFlags::IN | EventFlags::ET)?)
    }

    /// Sleeps until a bell rings, or until `wake_ns` (`CLOCK_MONOTONIC`). Returns whether a bell
    /// rang.
    ///
    /// # Errors
    /// The system's error; no error is expected.
    pub fn wait(&mut self, wake_ns: Option<u64>) -> io::Result<bool> {
        self.arm(wake_ns.unwrap_or(0))?;
        let mut ready = [MaybeUninit::uninit(); BATCH];
        match epoll::wait(&self.epoll, &mut ready, None) {
            Ok((events, _)) => Ok(events.iter().any(|event| event.data.u64() == BELL)),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets the timer for a moment; 0 stops it.
    fn arm(&mut self, wake_ns: u64) -> io::Result<()> {
        if wake_ns != self.armed_ns {
            let it_value = Timespec {
                tv_sec: (wake_ns / NS_PER_SECOND) as i64,
                tv_nsec: (wake_ns % NS_PER_SECOND) as i64,
            };
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval, it_value })?;
            self.armed_ns = wake_ns;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_model::clock::{NS_PER_MS, monotonic_ns};

    #[test]
    fn a_bell_wakes_at_each_ring_though_nobody_reads_it() {
        let mut events = Events::new().unwrap();
        let bell = Bell::new().unwrap();
        events.add(&bell).unwrap();
        for _ in 0..2 {
            bell.ring();
            assert!(events.wait(None).unwrap());
        }
        events.remove(&bell);
        bell.ring();
        let begin = monotonic_ns();
        assert!(!events.wait(Some(begin + 5 * NS_PER_MS)).unwrap());
        assert!(monotonic_ns() - begin >= 5 * NS_PER_MS);
    }

    #[test]
    fn a_moment_that_has_passed_wakes_at_once() {
        let mut events = Events::new().unwrap();
        let begin = monotonic_ns();
        events.wait(Some(begin - 1)).unwrap();
        assert!(monotonic_ns() - begin < 1_000 * NS_PER_MS);
    }
}
