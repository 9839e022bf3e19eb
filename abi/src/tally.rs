//! The launches of one thread on one stream. They are counted when they are launched, and accounted
//! for by segment.
//!
//! Only the launching thread, the owner, counts, and it uses no read-modify-write while a segment
//! is open. The owner or another thread closes the segment, and takes the launches that were
//! counted since the last one.
//!
//! An owner that is preempted while it counts may find the segment closed. Counts only grow, so a
//! launch that came too late belongs to no segment yet ([`Tally::settle`]). Each launch is
//! accounted for once.
//!
//! A tally is private to a process. It is in this crate for the model checker, which runs only this
//! crate's code (`tests/loom/tally.rs`).

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// No segment is open. Only the owner changes this state.
const IDLE: u32 = 0;
/// A segment is open and the owner counts in it. A thread that changes the state to [`CLOSING`]
/// closes it.
const OPEN: u32 = 1;
/// A thread is recording the end of the segment.
const CLOSING: u32 = 2;
/// A segment is open, and the owner is in the driver with a launch of it. No other thread closes it
/// now.
const LAUNCHING: u32 = 3;

/// The launches of a lane. See the module. The caller defines the number of launches: it adds one
/// unit for each launch, and a number may hold two counts. Numbers wrap around.
#[derive(Debug)]
pub struct Tally {
    state: AtomicU32,
    /// All launches so far. Only the owner writes it.
    launched: AtomicU64,
    /// The sum of the known times of these launches, ns. Only the owner writes it.
    expected_ns: AtomicU64,
    /// The known time of the last launch, ns. Only the owner writes it.
    last_ns: AtomicU64,
    /// Launches of closed segments.
    accounted: AtomicU64,
    /// The sum of the known times of launches in closed segments, ns.
    accounted_ns: AtomicU64,
    /// Number of launches at which the open segment ends (modulo 2³²).
    target: AtomicU32,
}

/// Launches and the sum of their known times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// The number of launches, in the caller's units.
    pub launched: u64,
    /// The sum of their known times, ns.
    pub ns: u64,
}

/// The result of an attempt that another thread may obstruct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// The segment is the caller's.
    Done,
    /// No segment is open.
    Idle,
    /// Another thread has the segment: try again.
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
    /// Returns the number of launches with one more, if a segment is open and not full. Only the
    /// owner calls this.
    #[inline(always)]
    pub fn next(&self, one: u64) -> Option<u64> {
        let launched = self.launched().wrapping_add(one);
        (self.state.load(Ordering::Relaxed) == OPEN && !self.is_full_at(launched)).then_some(launched)
    }

    /// Counts a launch with a known time of `ns`. `launched` is the number with it. Only the owner
    /// calls this, with a segment open.
    #[inline(always)]
    pub fn put(&self, launched: u64, ns: u64) {
        let expected_ns = self.expected_ns().wrapping_add(ns);
        self.expected_ns.store(expected_ns, Ordering::Relaxed);
        self.last_ns.store(ns, Ordering::Relaxed);
        // The number is stored after the time, and after the segment was opened. `settle` relies on
        // that.
        self.launched.store(launched, Ordering::Release);
    }

    /// Takes back the launch that was counted last, because it was not made. If its segment was
    /// closed meanwhile, the next segment accounts for so much less.
    pub fn take_back(&self, one: u64) {
        let last_ns = self.last_ns.swap(0, Ordering::Relaxed);
        self.expected_ns.store(self.expected_ns().saturating_sub(last_ns), Ordering::Relaxed);
        self.launched.store(self.launched().wrapping_sub(one), Ordering::Relaxed);
    }

    /// Returns all launches so far.
    #[inline(always)]
    pub fn launched(&self) -> u64 {
        self.launched.load(Ordering::Relaxed)
    }

    /// Returns the sum of their known times, ns.
    #[inline(always)]
    fn expected_ns(&self) -> u64 {
        self.expected_ns.load(Ordering::Relaxed)
    }

    /// Whether the open segment has all its launches when there are `launched` in all.
    #[inline(always)]
    pub fn is_full_at(&self, launched: u64) -> bool {
        // The difference is signed, because numbers wrap around.
        self.target().wrapping_sub(launched as u32) as i32 <= 0
    }

    /// Returns the number of launches at which the open segment ends (modulo 2³²).
    #[inline(always)]
    pub fn target(&self) -> u32 {
        self.target.load(Ordering::Relaxed)
    }

    /// Sets the number of launches at which the open segment ends.
    pub fn set_target(&self, target: u32) {
        self.target.store(target, Ordering::Relaxed);
    }

    /// Makes the open segment end with its next launch. If the owner opens another segment
    /// meanwhile, that segment is short.
    pub fn end_soon(&self) {
        self.set_target(self.launched() as u32);
    }

    /// Returns the launches that belong to no closed segment, with the sum of their known times.
    pub fn unaccounted(&self) -> Taken {
        self.unaccounted_of(self.launched())
    }

    /// Does what [`Self::unaccounted`] does, for the first `launched` launches.
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

    /// Whether a segment is open that may be closed.
    pub fn is_closable(&self) -> bool {
        self.state.load(Ordering::Acquire) == OPEN
    }

    /// Whether a thread is closing a segment.
    pub fn is_closing(&self) -> bool {
        self.state.load(Ordering::Acquire) == CLOSING
    }

    /// Whether the owner is in the driver.
    pub fn is_launching(&self) -> bool {
        self.state.load(Ordering::Relaxed) == LAUNCHING
    }

    /// Opens a segment for a launch that is about to be made. Only the owner calls this, while no
    /// segment is open and late launches are settled.
    pub fn open(&self) {
        self.state.store(LAUNCHING, Ordering::SeqCst);
    }

    /// Takes the open segment for a launch, so that no other thread closes it meanwhile. Only the
    /// owner calls this.
    pub fn claim(&self) -> Attempt {
        match self.state.compare_exchange(OPEN, LAUNCHING, Ordering::SeqCst, Ordering::Acquire) {
            Ok(_) | Err(LAUNCHING) => Attempt::Done,
            Err(IDLE) => Attempt::Idle,
            Err(_) => Attempt::Busy,
        }
    }

    /// Ends [`Self::claim`] after the launch was made. The owner calls this, or a thread that knows
    /// that the owner is gone.
    pub fn release(&self) {
        // The exchange fails if another thread has seized the segment with its stream meanwhile.
        let _ = self.state.compare_exchange(LAUNCHING, OPEN, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// Takes the open segment to close it, unless a launch of it is in progress. After true, the
    /// caller must call [`Self::account`] and [`Self::closed`], or [`Self::reopen`].
    pub fn begin_closing(&self) -> bool {
        self.state.compare_exchange(OPEN, CLOSING, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Does what [`Self::begin_closing`] does, even if a launch is in progress.
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

    /// Returns the number of launches so far. A thread that closes the segment lets it end there.
    pub fn launched_at_end(&self) -> u64 {
        self.launched.load(Ordering::SeqCst)
    }

    /// Opens the segment again, because it is not closed after all.
    pub fn reopen(&self) {
        self.state.store(OPEN, Ordering::SeqCst);
    }

    /// Accounts for the launches up to `launched`, which are those of the segment that is being
    /// closed. Returns what was not accounted for before.
    pub fn account(&self, launched: u64) -> Taken {
        let expected_ns = self.expected_ns();
        let before = self.accounted.swap(launched, Ordering::AcqRel);
        let before_ns = self.accounted_ns.fetch_max(expected_ns, Ordering::Relaxed);
        Taken { launched: launched.wrapping_sub(before), ns: expected_ns.saturating_sub(before_ns) }
    }

    /// Marks the segment as closed.
    pub fn closed(&self) {
        self.state.store(IDLE, Ordering::SeqCst);
    }

    /// Accounts for launches that came too late for the last segment, while no segment is open.
    /// Returns these launches. Any thread may call this. A negative number is a launch that the
    /// driver refused after a segment had counted it.
    pub fn settle(&self) -> Option<Taken> {
        let accounted = self.accounted.load(Ordering::Acquire);
        let launched = self.launched.load(Ordering::Acquire);
        if launched == accounted || self.state.load(Ordering::SeqCst) != IDLE {
            return None;
        }
        // The owner counts in a new segment only after `state` says that it is open. A thread that
        // closes a segment changes `accounted`. So the launches seen above are late ones.
        let expected_ns = self.expected_ns();
        if self.launched.load(Ordering::Acquire) != launched {
            // The driver refused one of the launches meanwhile.
            return None;
        }
        self.accounted.compare_exchange(accounted, launched, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        // The value only grows. A thread that closes a segment meanwhile has accounted for more.
        let before_ns = self.accounted_ns.fetch_max(expected_ns, Ordering::Relaxed);
        Some(Taken { launched: launched.wrapping_sub(accounted), ns: expected_ns.saturating_sub(before_ns) })
    }
}
