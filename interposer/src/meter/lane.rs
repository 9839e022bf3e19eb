//! A lane: the launches of one thread on one stream, cut into segments. A pair of events times each
//! segment.
//!
//! Only the launching thread (the lane's owner thread) opens a segment and counts in it, so the
//! launch path needs no atomic read-modify-write. Either the owner thread or the meter thread
//! closes the segment. [`Tally`] decides which of the two may act, and it accounts for each launch
//! exactly once. Closed segments go through a ring to the meter thread.
//!
//! While the gate is open, a segment lasts about [`SEGMENT_NS`] and each launch adds its estimate.
//! So gaps between launches need no timing ([`super::measure`]). A launch without an estimate and a
//! long graph get a segment of their own, and so does every now and then any launch. While the GPU
//! is contended, launches that come one by one into an idle stream get a segment each, and so does
//! every graph.
//!
//! Three kinds of caller have methods of their own, and each shows that it is one:
//!
//! - the owner thread, by a [`LaneOwner`] ([`owner`]);
//! - a thread that holds the context's lock, by a reference to [`Inner`] ([`locked`]);
//! - the meter thread, by a [`MeterThread`] beside that reference ([`reader`]).
//!
//! Any thread may close a segment ([`close`]), and may note or ask what the stream waits for
//! ([`waits`]).
//!
//! [`Inner`]: super::context::Inner
//! [`MeterThread`]: super::thread::MeterThread

mod close;
mod locked;
mod open;
mod owner;
mod reader;
mod ring;
mod waits;

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use deepres_abi::tally::Tally;

pub use self::owner::{Begun, LaneOwner, Unmarked};

use self::open::OpenSegment;
use self::owner::Pace;
use self::reader::Learned;
use self::ring::Ring;
use self::waits::Waits;
use super::context::ContextState;
use super::gpu::Gpu;
use super::segment::Launches;
use crate::driver::calls::Stream;

/// How long a segment should last, ns, both of GPU time and of host time. Recording two events of 1
/// µs each then takes less than 1 % of it. A tenant's charged time is then less than a quantum
/// behind.
const SEGMENT_NS: u64 = 500_000;

/// A lane, as the module describes it. The launch path reads the first two fields, which lie in one
/// cache line.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Lane {
    /// Launches, counted by [`Kind::one`].
    ///
    /// [`Kind::one`]: super::segment::Kind::one
    tally: Tally,
    /// GPU that the launches run on.
    pub gpu: &'static Gpu,
    /// The context of the stream.
    pub context: &'static ContextState,
    stream: AtomicUsize,
    owner: AtomicU32,
    pace: Pace,
    open: OpenSegment,
    waits: Waits,
    learned: Learned,
    ring: Ring,
}

impl Lane {
    /// A lane for `stream`, owned by the thread `owner`.
    pub fn new(gpu: &'static Gpu, context: &'static ContextState, stream: Stream, owner: u32) -> Self {
        Self {
            tally: Tally::default(),
            gpu,
            context,
            stream: AtomicUsize::new(stream.0),
            owner: AtomicU32::new(owner),
            pace: Pace::default(),
            open: OpenSegment::default(),
            waits: Waits::default(),
            learned: Learned::default(),
            ring: Ring::new(),
        }
    }

    /// The stream, or `None` for a lane that nobody uses.
    pub fn stream(&self) -> Option<Stream> {
        Some(Stream(self.stream.load(Ordering::Acquire))).filter(|stream| stream.0 != 0)
    }

    /// The owner thread: the thread that launches.
    pub fn owner(&self) -> u32 {
        self.owner.load(Ordering::Relaxed)
    }

    /// Launches that no closed segment had.
    fn unaccounted(&self) -> Launches {
        Launches(self.tally.unaccounted().launched)
    }

    /// Estimated time of the launches that no closed segment had, ns.
    fn unaccounted_ns(&self) -> u64 {
        self.tally.unaccounted().ns
    }

    /// If no segment is open: counts the launches that came after the last segment was closed.
    /// Called by the owner thread and the meter thread.
    pub fn settle(&self) {
        if let Some(late) = self.tally.settle().filter(|late| late.launched as i64 > 0) {
            self.gpu.add_late(late.ns);
            self.gpu.count(Launches(late.launched), 0);
        }
    }

    /// Whether a segment is open.
    pub fn is_open(&self) -> bool {
        self.tally.is_open()
    }

    /// Whether any work of this lane is unfinished, as far as the meter thread knows.
    pub fn is_busy(&self) -> bool {
        self.is_open() || self.ring.waiting() != 0
    }

    /// Whether any kernel or graph of this lane is unfinished, as far as the meter thread knows.
    pub fn is_computing(&self) -> bool {
        self.ring.is_computing() || (self.is_open() && !self.open.is_copy())
    }

    /// Launches in the open segment, or `None` if no segment can be closed.
    fn open_launches(&self) -> Option<u32> {
        self.tally.is_closable().then(|| self.unaccounted().all())
    }

    /// Mean GPU time of a launch, ns; 0: not measured yet.
    pub fn mean_ns(&self) -> u64 {
        self.learned.mean_ns()
    }

    /// Segments that the meter thread has processed (modulo 2³²).
    pub fn completed(&self) -> u32 {
        self.ring.completed()
    }
}

#[cfg(test)]
mod tests;
