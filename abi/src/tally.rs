//! The tally of a lane: the launches of one thread on one stream. The thread counts each launch,
//! and another count follows for each closed segment.
//!
//! Only the launching thread, the *owner*, counts launches. While a segment is open, the owner
//! counts without a read-modify-write. The owner or another thread closes the segment. The closing
//! thread *accounts for* the launches since the last segment: it takes their number and their
//! times.
//!
//! If the system pre-empts the owner while the owner counts, another thread can close the segment
//! meanwhile. The launch then comes too late for this segment, and belongs to no segment yet.
//! [`Tally::settle`] accounts for such late launches. So the tally accounts for each launch once.
//!
//! A tally is private to a process. The tally is in this crate because the model checker runs only
//! this crate's code (`tests/loom/tally.rs`).

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The state without an open segment. Only the owner leaves this state.
const IDLE: u32 = 0;
/// The state in which a segment is open, and the owner counts in the segment. A thread that changes
/// the state to [`CLOSING`] closes the segment.
const OPEN: u32 = 1;
/// The state in which a thread records the end of the segment.
const CLOSING: u32 = 2;
/// The state in which a segment is open, and the owner is inside the driver with a launch of this
/// segment. No thread but the owner closes the segment now, except by [`Tally::seize`].
const LAUNCHING: u32 = 3;

/// The tally of a lane: a count of all launches, and a count of the launches in closed segments.
/// The caller chooses the unit: it adds one unit for each launch, and may keep two counts in one
/// number. Numbers wrap around.
#[derive(Debug)]
pub struct Tally {
    state: AtomicU32,
    /// The number of launches so far. Only the owner writes this.
    launched: AtomicU64,
    /// The sum of the known times of all launches so far, ns. Only the owner writes this.
    expected_ns: AtomicU64,
    /// The known time of the last launch, ns. Only the owner writes this.
    last_ns: AtomicU64,
    /// The number of launches in closed segments.
    accounted: AtomicU64,
    /// The sum of the known times of launches in closed segments, ns.
    accounted_ns: AtomicU64,
    /// The number of launches at which the open segment ends, modulo 2³².
    target: AtomicU32,
}

/// A number of launches, and the sum of their known times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// The number of launches, in the caller's units.
    pub launched: u64,
    /// The sum of the launches' known times, ns.
    pub ns: u64,
}

/// The result of an attempt to take a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// The caller now has the segment.
    Done,
    /// No segment is open.
    Idle,
    /// Another thread is launching into the segment, or closing it. The caller should try
    /// again.
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
    /// Returns the number of launches after one more launch. Returns `None` if no segment is open,
    /// or if the open segment would be full with that launch. Only the owner calls this.
    #[inline(always)]
    pub fn next(&self, one: u64) -> Option<u64> {
        let launched = self.launched().wrapping_add(one);
        (self.state.load(Ordering::Relaxed) == OPEN && !self.is_full_at(launched)).then_some(launched)
    }

    /// Counts a launch with a known time of `ns`. `launched` is the number of launches with this
    /// launch. Only the owner calls this, while a segment is open.
    #[inline(always)]
    pub fn put(&self, launched: u64, ns: u64) {
        let expected_ns = self.expected_ns().wrapping_add(ns);
        self.expected_ns.store(expected_ns, Ordering::Relaxed);
        self.last_ns.store(ns, Ordering::Relaxed);
        // The owner stores the number after the time, and after it opened the segment. `settle`
        // relies on that order.
        self.launched.store(launched, Ordering::Release);
    }

    /// Takes back the last launch, because the driver refused it. If another thread has closed the
    /// segment meanwhile, the next segment accounts for one launch less.
    pub fn take_back(&self, one: u64) {
        let last_ns = self.last_ns.swap(0, Ordering::Relaxed);
        self.expected_ns.store(self.expected_ns().saturating_sub(last_ns), Ordering::Relaxed);
        self.launched.store(self.launched().wrapping_sub(one), Ordering::Relaxed);
    }

    /// Returns the number of launches so far.
    #[inline(always)]
    pub fn launched(&self) -> u64 {
        self.launched.load(Ordering::Relaxed)
    }

    /// Returns the sum of the known times of all launches so far, ns.
    #[inline(always)]
    pub fn expected_ns(&self) -> u64 {
        self.expected_ns.load(Ordering::Relaxed)
    }

    /// Returns whether the open segment is full when the number of launches is `launched`.
    #[inline(always)]
    pub fn is_full_at(&self, launched: u64) -> bool {
        // The difference is signed, because numbers wrap around.
        self.target().wrapping_sub(launched as u32) as i32 <= 0
    }

    /// Returns the number of launches at which the open segment ends, modulo 2³².
    #[inline(always)]
    pub fn target(&self) -> u32 {
        self.target.load(Ordering::Relaxed)
    }

    /// Sets the number of launches at which the open segment ends.
    pub fn set_target(&self, target: u32) {
        self.target.store(target, Ordering::Relaxed);
    }

    /// Makes the open segment end with its next launch. If the owner opens another segment during
    /// the call, the other segment ends with its next launch.
    pub fn end_soon(&self) {
        self.set_target(self.launched() as u32);
    }

    /// Returns the launches that belong to no closed segment.
    pub fn unaccounted(&self) -> Taken {
        self.unaccounted_of(self.launched())
    }

    /// Returns the launches that belong to no closed segment, of the first `launched` launches.
    pub fn unaccounted_of(&self, launched: u64) -> Taken {
        Taken {
            launched: launched.wrapping_sub(self.accounted.load(Ordering::Relaxed)),
            ns: self.expected_ns().saturating_sub(self.accounted_ns.load(Ordering::Relaxed)),
        }
    }

    /// Returns whether a segment is open.
    pub fn is_open(&self) -> bool {
        self.state.load(Ordering::SeqCst) != IDLE
    }

    /// Returns whether a segment is open and no thread is launching into it or closing it.
    pub fn is_closable(&self) -> bool {
        self.state.load(Ordering::Acquire) == OPEN
    }

    /// Returns whether a thread is closing a segment.
    pub fn is_closing(&self) -> bool {
        self.state.load(Ordering::Acquire) == CLOSING
    }

    /// Returns whether the owner is inside the driver with a launch.
    pub fn is_launching(&self) -> bool {
        self.state.load(Ordering::Relaxed) == LAUNCHING
    }

    /// Opens a segment for a launch that the owner is about to make. Only the owner calls this,
    /// while no segment is open, after it has settled late launches.
    pub fn open(&self) {
        self.state.store(LAUNCHING, Ordering::SeqCst);
    }

    /// Takes the open segment for a launch, so that no other thread closes the segment meanwhile.
    /// Returns whether the owner has the segment. Only the owner calls this.
    pub fn claim(&self) -> Attempt {
        match self.state.compare_exchange(OPEN, LAUNCHING, Ordering::SeqCst, Ordering::Acquire) {
            Ok(_) | Err(LAUNCHING) => Attempt::Done,
            Err(IDLE) => Attempt::Idle,
            Err(_) => Attempt::Busy,
        }
    }

    /// Ends [`Self::claim`] after the launch. The caller is the owner, or a thread that knows that
    /// the owner is gone.
    pub fn release(&self) {
        // The exchange fails if another thread has seized the segment meanwhile.
        let _ = self.state.compare_exchange(LAUNCHING, OPEN, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// Takes the open segment to close it. Returns false if no segment is open, or if a thread is
    /// launching into it or closing it. After true, the caller must call [`Self::account`] and
    /// [`Self::closed`], or [`Self::reopen`].
    pub fn begin_closing(&self) -> bool {
        self.state.compare_exchange(OPEN, CLOSING, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Takes the open segment to close it, even while the owner launches into it. Returns whether
    /// the caller has the segment.
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

    /// Returns the number of launches so far. A thread that closes the segment lets the segment end
    /// there.
    pub fn launched_at_end(&self) -> u64 {
        self.launched.load(Ordering::SeqCst)
    }

    /// Opens the segment again, because the caller does not close it after all.
    pub fn reopen(&self) {
        self.state.store(OPEN, Ordering::SeqCst);
    }

    /// Accounts for the first `launched` launches: the last of them belong to the segment that the
    /// caller closes. Returns the launches for which no thread accounted before.
    pub fn account(&self, launched: u64) -> Taken {
        let expected_ns = self.expected_ns();
        let before = self.accounted.swap(launched, Ordering::AcqRel);
        let before_ns = self.accounted_ns.fetch_max(expected_ns, Ordering::Relaxed);
        Taken { launched: launched.wrapping_sub(before), ns: expected_ns.saturating_sub(before_ns) }
    }

    /// Marks the segment that the caller has been closing as closed.
    pub fn closed(&self) {
        self.state.store(IDLE, Ordering::SeqCst);
    }

    /// Accounts for launches that came too late for the last segment, and returns these launches.
    /// Does nothing while a segment is open, or if no launch came late. The result is negative if
    /// the driver refused a launch after a segment had counted it. Any thread may call this.
    pub fn settle(&self) -> Option<Taken> {
        let accounted = self.accounted.load(Ordering::Acquire);
        let launched = self.launched.load(Ordering::Acquire);
        if launched == accounted || self.state.load(Ordering::SeqCst) != IDLE {
            return None;
        }
        // The owner counts in a new segment only after it has set `state`. A thread that closes a
        // segment changes `accounted`. So the launches since `accounted` are late launches.
        let expected_ns = self.expected_ns();
        if self.launched.load(Ordering::Acquire) != launched {
            // The driver refused one of the launches during this call.
            return None;
        }
        self.accounted.compare_exchange(accounted, launched, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        // `accounted_ns` only grows. If another thread has closed a segment meanwhile, the stored
        // value is larger.
        let before_ns = self.accounted_ns.fetch_max(expected_ns, Ordering::Relaxed);
        Some(Taken { launched: launched.wrapping_sub(accounted), ns: expected_ns.saturating_sub(before_ns) })
    }
}
