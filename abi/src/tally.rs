//! What one thread launches on one stream, counted as it is launched and accounted for segment by segment.
//!
//! The launching thread, the owner, alone counts, and with no read-modify-write while a segment is open. Either it or another thread closes the segment, and
//! whoever does takes what was counted since the last one. An owner that is taken off its processor as it counts may find the segment closed: counts only
//! grow, so what came too late is what no segment had ([`Tally::settle`]), and each launch is accounted for once.
//!
//! Private to a process; it is here for the model checker, which runs what is in this crate (`tests/loom/tally.rs`).

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Nothing is open: the owner's to change.
const IDLE: u32 = 0;
/// A segment is open: the owner counts in it; whoever moves it to [`CLOSING`] closes it.
const OPEN: u32 = 1;
/// Someone is recording the end.
const CLOSING: u32 = 2;
/// A segment is open, and the owner is inside the driver with a launch of it: nobody closes it now.
const LAUNCHING: u32 = 3;

/// See the module. Launches are numbers of the caller's, one added for each, that may hold two counts; they come round.
#[derive(Debug)]
pub struct Tally {
    state: AtomicU32,
    /// Launches, ever; the owner's alone.
    launched: AtomicU64,
    /// What they are known to take, ns; the owner's alone.
    expected_ns: AtomicU64,
    /// What the last of them is known to take, ns; the owner's alone.
    last_ns: AtomicU64,
    /// Those that closed segments had.
    accounted: AtomicU64,
    /// What those were known to take, ns.
    accounted_ns: AtomicU64,
    /// Launches at which the open segment ends (modulo 2³²).
    target: AtomicU32,
}

/// Launches, and what they are known to take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// As they are counted.
    pub launched: u64,
    /// ns.
    pub ns: u64,
}

/// What became of an attempt that another thread may be in the way of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// The segment is the caller's.
    Done,
    /// None is open.
    Idle,
    /// Another thread has it: try again.
    Busy,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            state: AtomicU32::new(IDLE),
            launched: AtomicU64::new(0),
            expected_ns: AtomicU64::new(0),
            last_ns: AtomicU64::new(0),
            accounted: AtomicU64::new(0),
            accounted_ns: AtomicU64::new(0),
            target: AtomicU32::new(1),
        }
    }
}

impl Tally {
    /// The number of launches with one more, if a segment is open and not full. The owner's alone.
    #[inline(always)]
    pub fn next(&self, one: u64) -> Option<u64> {
        let launched = self.launched().wrapping_add(one);
        (self.state.load(Ordering::Relaxed) == OPEN && !self.is_full_at(launched)).then_some(launched)
    }

    /// Counts a launch that takes `ns`, with which there are `launched`. The owner's alone, with a segment open.
    #[inline(always)]
    pub fn put(&self, launched: u64, ns: u64) {
        let expected_ns = self.expected_ns().wrapping_add(ns);
        self.expected_ns.store(expected_ns, Ordering::Relaxed);
        self.last_ns.store(ns, Ordering::Relaxed);
        // After what it takes, and after a segment's opening, for `settle`.
        self.launched.store(launched, Ordering::Release);
    }

    /// Takes back the launch that was counted last: there was none. If its segment was closed meanwhile, what comes next is accounted for so much less.
    pub fn take_back(&self, one: u64) {
        let last_ns = self.last_ns.swap(0, Ordering::Relaxed);
        self.expected_ns.store(self.expected_ns().saturating_sub(last_ns), Ordering::Relaxed);
        self.launched.store(self.launched().wrapping_sub(one), Ordering::Relaxed);
    }

    /// Launches, ever.
    #[inline(always)]
    pub fn launched(&self) -> u64 {
        self.launched.load(Ordering::Relaxed)
    }

    /// What they are known to take, ns.
    #[inline(always)]
    fn expected_ns(&self) -> u64 {
        self.expected_ns.load(Ordering::Relaxed)
    }

    /// Whether the open segment has all its launches when there were `launched`, ever.
    #[inline(always)]
    pub fn is_full_at(&self, launched: u64) -> bool {
        // Numbers come round.
        self.target().wrapping_sub(launched as u32) as i32 <= 0
    }

    /// Launches at which the open segment ends (modulo 2³²).
    #[inline(always)]
    pub fn target(&self) -> u32 {
        self.target.load(Ordering::Relaxed)
    }

    /// Changes it.
    pub fn set_target(&self, target: u32) {
        self.target.store(target, Ordering::Relaxed);
    }

    /// The open segment is to end with its next launch. If the owner opens another meanwhile, that one is short.
    pub fn end_soon(&self) {
        self.set_target(self.launched() as u32);
    }

    /// Launches that no closed segment had, and what they are known to take.
    pub fn unaccounted(&self) -> Taken {
        self.unaccounted_of(self.launched())
    }

    /// The same of the first `launched`.
    pub fn unaccounted_of(&self, launched: u64) -> Taken {
        Taken {
            launched: launched.wrapping_sub(self.accounted.load(Ordering::Relaxed)),
            ns: self.expected_ns().saturating_sub(self.accounted_ns.load(Ordering::Relaxed)),
        }
    }

    /// Whether a segment is open.
    pub fn is_open(&self) -> bool {
        self.state.load(Ordering::SeqCst) != IDLE
    }

    /// Whether one is open that may be closed.
    pub fn is_closable(&self) -> bool {
        self.state.load(Ordering::Acquire) == OPEN
    }

    /// Whether somebody is closing one.
    pub fn is_closing(&self) -> bool {
        self.state.load(Ordering::Acquire) == CLOSING
    }

    /// Whether the owner is inside the driver.
    pub fn is_launching(&self) -> bool {
        self.state.load(Ordering::Relaxed) == LAUNCHING
    }

    /// Opens a segment for a launch that is about to be made. The owner's alone, with none open and what was late settled.
    pub fn open(&self) {
        self.state.store(LAUNCHING, Ordering::SeqCst);
    }

    /// Takes the open segment for a launch, so that nobody closes it meanwhile. The owner's alone.
    pub fn claim(&self) -> Attempt {
        match self.state.compare_exchange(OPEN, LAUNCHING, Ordering::SeqCst, Ordering::Acquire) {
            Ok(_) | Err(LAUNCHING) => Attempt::Done,
            Err(IDLE) => Attempt::Idle,
            Err(_) => Attempt::Busy,
        }
    }

    /// The launch was made. The owner's, or whoever knows that its thread is gone.
    pub fn release(&self) {
        // Unless it was seized meanwhile, with its stream.
        let _ = self.state.compare_exchange(LAUNCHING, OPEN, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// Takes the open segment to close it, unless a launch of it is under way. True: [`Self::account`] and [`Self::closed`], or [`Self::reopen`], are owed.
    pub fn begin_closing(&self) -> bool {
        self.state.compare_exchange(OPEN, CLOSING, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// The same, whether a launch is under way or not.
    pub fn seize(&self) -> Attempt {
        let state = self.state.load(Ordering::Acquire);
        match state {
            IDLE => Attempt::Idle,
            CLOSING => Attempt::Busy,
            state => match self.state.compare_exchange(state, CLOSING, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => Attempt::Done,
                Err(_) => Attempt::Busy,
            },
        }
    }

    /// What was launched up to now. Whoever closes the segment has it end there.
    pub fn launched_at_end(&self) -> u64 {
        self.launched.load(Ordering::SeqCst)
    }

    /// It is not closed after all.
    pub fn reopen(&self) {
        self.state.store(OPEN, Ordering::SeqCst);
    }

    /// Accounts for the launches up to `launched`: those of the segment that is being closed. Returns what was not accounted for before.
    pub fn account(&self, launched: u64) -> Taken {
        let expected_ns = self.expected_ns();
        let before = self.accounted.swap(launched, Ordering::AcqRel);
        let before_ns = self.accounted_ns.fetch_max(expected_ns, Ordering::Relaxed);
        Taken { launched: launched.wrapping_sub(before), ns: expected_ns.saturating_sub(before_ns) }
    }

    /// The segment is closed.
    pub fn closed(&self) {
        self.state.store(IDLE, Ordering::SeqCst);
    }

    /// While no segment is open: accounts for launches that came into the last one too late, and returns them. Any thread's. A negative number is one that the driver
    /// refused and a segment has taken for a launch.
    pub fn settle(&self) -> Option<Taken> {
        let accounted = self.accounted.load(Ordering::Acquire);
        let launched = self.launched.load(Ordering::Acquire);
        if launched == accounted || self.state.load(Ordering::SeqCst) != IDLE {
            return None;
        }
        // Who opens a segment counts in it after `state` says so, and who closes one changes `accounted`: what was seen above is late.
        let expected_ns = self.expected_ns();
        if self.launched.load(Ordering::Acquire) != launched {
            // The driver refused one of them.
            return None;
        }
        self.accounted.compare_exchange(accounted, launched, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        // It only grows, and who closes a segment meanwhile has accounted for more.
        let before_ns = self.accounted_ns.fetch_max(expected_ns, Ordering::Relaxed);
        Some(Taken { launched: launched.wrapping_sub(accounted), ns: expected_ns.saturating_sub(before_ns) })
    }
}
