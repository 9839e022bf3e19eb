//! A lane: the launches of one thread on one stream, cut into segments. A pair of events times each
//! segment.
//!
//! Only the launching thread, the lane's owner thread, opens segments and counts launches in them.
//! So the launch path needs no atomic read-modify-write. The owner thread or another thread, mostly
//! the meter thread, closes a segment. [`Tally`] decides which thread may act, and accounts for
//! each launch exactly once. Closed segments go through a ring to the meter thread.
//!
//! A segment lasts about half a millisecond, and each launch adds its estimate. So the meter need
//! not time gaps between launches ([`super::measure`]). Three kinds of launch get a segment of
//! their own: a launch without a settled estimate, a long graph, and a sample. A sample can be any
//! launch. The fewer samples contradict the estimates, the fewer samples the lane takes.
//!
//! A segment belongs to the gate word at which it was opened. Under a lease, its estimates stay
//! within the room that the pass of the gate found ([`Headroom`]). The meter thread looks often
//! while the GPU is contended, and closes each segment that got no launch since its last look. So
//! the end of a burst shows as soon as a marker after each launch would show it.
//!
//! Three kinds of caller have methods of their own, and each caller proves its kind:
//!
//! - the owner thread, by a [`LaneOwner`] ([`owner`]);
//! - a thread that holds the context's lock, by a reference to [`Inner`] ([`locked`]);
//! - the meter thread, by a [`MeterThread`] together with that reference ([`reader`]).
//!
//! Any thread may close a segment ([`close`]). Any thread may record or ask whether the stream
//! waits for something ([`waits`]). If several threads launch on a stream, each of them has a lane
//! there ([`stream`]).
//!
//! [`Inner`]: super::context::Inner
//! [`Headroom`]: crate::gate::Headroom
//! [`MeterThread`]: super::thread::MeterThread

mod close;
mod locked;
mod open;
mod owner;
mod reader;
mod ring;
mod stream;
mod waits;

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use deepres_abi::tally::Tally;

pub use self::owner::{Begun, LaneOwner, Unmarked};

use self::open::OpenSegment;
use self::owner::{Followers, Pace};
use self::reader::Learned;
use self::ring::Ring;
use self::waits::Waits;
use super::context::ContextState;
use super::gpu::{Gpu, Shared};
use super::segment::Launches;
use crate::driver::calls::Stream;

/// The time that a segment should last, ns, both of GPU time and of host time. The two events of a
/// segment cost 1 µs each, which is less than 1 % of this time. A tenant's charge is then less than
/// a quantum behind its use.
const SEGMENT_NS: u64 = 500_000;

/// A lane: the launches of one thread on one stream, cut into segments. The launch path reads the
/// first three fields, which lie in two adjacent cache lines.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Lane {
    /// All launches, counted by [`Kind::one`].
    ///
    /// [`Kind::one`]: super::segment::Kind::one
    tally: Tally,
    /// The GPU on which the lane's launches run.
    pub gpu: &'static Gpu,
    /// The launches that may join the open segment.
    followers: Followers,
    /// The context of the lane's stream.
    pub context: &'static ContextState,
    stream: AtomicUsize,
    /// The next lane in the ring of the stream's lanes, if the stream has several lanes.
    next_of_stream: Shared<Lane>,
    owner: AtomicU32,
    pace: Pace,
    open: OpenSegment,
    waits: Waits,
    learned: Learned,
    ring: Ring,
}

impl Lane {
    /// Returns a lane for `stream`, owned by the thread `owner`.
    pub fn new(gpu: &'static Gpu, context: &'static ContextState, stream: Stream, owner: u32) -> Self {
        Self {
            tally: Tally::default(),
            gpu,
            followers: Followers::default(),
            context,
            stream: AtomicUsize::new(stream.0),
            next_of_stream: Shared::none(),
            owner: AtomicU32::new(owner),
            pace: Pace::default(),
            open: OpenSegment::default(),
            waits: Waits::default(),
            learned: Learned::default(),
            ring: Ring::new(),
        }
    }

    /// Returns the stream, or `None` for a lane that no thread uses.
    pub fn stream(&self) -> Option<Stream> {
        Some(Stream(self.stream.load(Ordering::Acquire))).filter(|stream| stream.0 != 0)
    }

    /// Returns whether only the owner thread can record the end of a segment, and no other thread
    /// can query the stream. The handle of a per-thread default stream names another stream in each
    /// thread. The handle of the legacy stream names a green context's stream only in the thread to
    /// which the green context is current.
    fn is_assumed(&self) -> bool {
        match self.stream() {
            Some(Stream::PER_THREAD) => true,
            Some(Stream::LEGACY) => self.context.is_green(),
            _ => false,
        }
    }

    /// Returns the id of the owner thread, which launches.
    pub fn owner(&self) -> u32 {
        self.owner.load(Ordering::Relaxed)
    }

    /// Returns the launches that belong to no closed segment.
    fn unaccounted(&self) -> Launches {
        Launches(self.tally.unaccounted().launched)
    }

    /// Returns the estimated time of the launches that belong to no closed segment, ns.
    fn unaccounted_ns(&self) -> u64 {
        self.tally.unaccounted().ns
    }

    /// Returns the estimated time of the launches of the open segment that the GPU's estimated time
    /// in flight does not include, ns. If the stream has gaps, most of these launches are complete,
    /// and the method returns 0.
    pub fn unqueued_ns(&self) -> u64 {
        if !self.is_open() || self.open.is_copy() || self.learned.is_sparse() {
            return 0;
        }
        self.unaccounted_ns().saturating_sub(self.open.queued_ns())
    }

    /// Returns the estimated GPU time in flight, the open segment of this lane included, ns.
    pub fn in_flight_ns(&self) -> u64 {
        self.gpu.queued_ns().saturating_add(self.gpu.share_ns(self.unqueued_ns()))
    }

    /// If no segment is open, counts and charges the launches that came after a thread closed the
    /// last segment. Any thread may call this.
    pub fn settle(&self) {
        if let Some(late) = self.tally.settle().filter(|late| late.launched as i64 > 0) {
            self.gpu.add_late(late.ns);
            self.gpu.count(Launches(late.launched), 0);
        }
    }

    /// Returns whether a segment is open.
    pub fn is_open(&self) -> bool {
        self.tally.is_open()
    }

    /// Returns whether any work of this lane is unfinished, as far as the meter thread knows.
    pub fn is_busy(&self) -> bool {
        self.is_open() || self.ring.waiting() != 0
    }

    /// Returns whether a kernel or graph of this lane is unfinished, as far as the meter thread
    /// knows.
    pub fn is_computing(&self) -> bool {
        self.ring.is_computing() || (self.is_open() && !self.open.is_copy())
    }

    /// Returns the number of launches in the open segment, or `None` if no thread may close a
    /// segment now.
    fn open_launches(&self) -> Option<u32> {
        self.tally.is_closable().then(|| self.unaccounted().all())
    }

    /// Returns the mean GPU time of a launch, ns; 0: not measured yet.
    pub fn mean_ns(&self) -> u64 {
        self.learned.mean_ns()
    }

    /// Returns the number of segments that the meter thread has processed (modulo 2³²).
    pub fn completed(&self) -> u32 {
        self.ring.completed()
    }
}

#[cfg(test)]
mod tests;
