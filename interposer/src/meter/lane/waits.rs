//! The waits of a lane's stream: for other streams, for the host, or for the work that is queued on
//! it.
//!
//! Any thread may call these methods.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::Lane;
use crate::driver::calls::{Calls, Progress};
use crate::meter::segment::{Kind, Launch, Segment};

/// The most closed segments of all lanes of a context together that wait for the meter thread. The
/// lanes divide this number evenly. The limit bounds the driver's events and the meter thread's
/// time for any number of threads and streams.
const WAITING_OF_ALL: u32 = 4096;
/// The number of closed segments waiting for the meter thread that each lane may have in any case.
const WAITING_OF_EACH: u32 = 4;
/// A segment on a stream that can wait for the host has at least this many launches.
pub(super) const LAUNCHES_STUCK: u32 = 256;
/// The number of measurements after which the meter trusts the estimate of a graph with conditional
/// nodes. The first launch can be by far the shortest.
pub(super) const VARYING_SEEN: u8 = 8;
/// The value of [`Waits::stuck_at`] while no wait holds up the stream.
const GETS_ON: u64 = u64::MAX;

/// The known waits of a lane's stream.
#[derive(Debug)]
pub(super) struct Waits {
    /// Whether the job made the stream wait for another stream or the host since the last segment
    /// began.
    has_to_wait: AtomicBool,
    /// The number of the segment that must complete before the lane takes the stream as running
    /// again. [`GETS_ON`] while the lane takes the stream as running.
    stuck_at: AtomicU64,
    /// Whether the job made the stream wait for the host, as far as the interposer can tell.
    awaits_host: AtomicBool,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            has_to_wait: AtomicBool::new(false),
            stuck_at: AtomicU64::new(GETS_ON),
            awaits_host: AtomicBool::new(false),
        }
    }
}

impl Waits {
    /// Returns whether the job made the stream wait for another stream or the host since the last
    /// call.
    pub(super) fn take_has_to_wait(&self) -> bool {
        self.has_to_wait.swap(false, Ordering::Relaxed)
    }

    /// Takes the stream as running again, because the lane gets another thread.
    pub(super) fn get_on(&self) {
        self.stuck_at.store(GETS_ON, Ordering::Relaxed);
    }
}

impl Lane {
    /// Records that the stream is about to wait for something else, such as a host function or
    /// another stream, in all lanes of the stream. With `ends`, ends the open segments here,
    /// because the GPU is contended. Otherwise the meter thread charges their launches by their
    /// estimates. The caller puts the wait on the stream.
    pub fn interrupt_stream(&self, calls: &Calls, ends: bool) {
        self.interrupt(calls, ends);
        self.others_of_stream().for_each(|other| other.interrupt(calls, ends));
    }

    /// Records in this lane alone that the stream is about to wait, as [`Self::interrupt_stream`]
    /// does.
    pub fn interrupt(&self, calls: &Calls, ends: bool) {
        if self.is_open() {
            if ends && self.has_room(calls) {
                self.close(calls);
            } else {
                self.note_wait();
            }
        }
        // The next launch seems to find an idle stream, but it does not begin at once.
        self.waits.has_to_wait.store(true, Ordering::Relaxed);
    }

    /// Records that the stream can wait for another stream or the host between the launches of the
    /// open segment. The meter thread then charges the segment by the estimates of its launches.
    pub fn note_wait(&self) {
        self.open.note_wait();
    }

    /// Records in all lanes of the stream that the stream waits for the host, as
    /// [`Self::await_host`] does.
    pub fn await_host_in_stream(&self) {
        self.await_host();
        self.others_of_stream().for_each(Self::await_host);
    }

    /// Records that the stream waits for a host action that possibly comes only after further
    /// launches. From now on, the stream is *stuck*. It stops being stuck when a segment that ends
    /// after this call completes. Launches on a stuck stream do not wait for queued work.
    ///
    /// On a stuck stream, the lane puts more launches into each segment. Each marker takes an entry
    /// of the driver's queue, and the queue has only about a thousand entries.
    pub fn await_host(&self) {
        self.waits.awaits_host.store(true, Ordering::Relaxed);
        self.waits.stuck_at.store(u64::from(self.ring.closed()), Ordering::Relaxed);
    }

    /// Records that the stream is stuck: no segment of the lane has completed for a long time.
    pub fn give_up(&self) {
        // From now on, no thread queries whether the open segment has begun, because the driver can
        // hang in such a query.
        self.waits.awaits_host.store(false, Ordering::Relaxed);
        self.waits.stuck_at.store(u64::from(self.completed()), Ordering::Relaxed);
    }

    /// Returns whether the queued work can wait for something that the owner thread does next.
    pub fn is_stuck(&self) -> bool {
        let stuck_at = self.waits.stuck_at.load(Ordering::Relaxed);
        let Ok(segment) = u32::try_from(stuck_at) else { return false };
        // If the difference is negative, the segment has completed.
        let is_stuck = segment.wrapping_sub(self.completed()) as i32 >= 0;
        if !is_stuck {
            // The mark must go now, because segment numbers wrap around.
            let order = Ordering::Relaxed;
            let _ = self.waits.stuck_at.compare_exchange(stuck_at, GETS_ON, order, order);
        }
        is_stuck
    }

    /// Returns whether the stream waits for the host, judged by the open segment. The driver's
    /// queue may then have no room for another event. A thread that records an event would wait for
    /// the host's next action.
    pub(super) fn is_held(&self, calls: &Calls) -> bool {
        let has_begun = |segment: &Segment| {
            // Without the relaxed capture mode, the query would end another thread's capture.
            let relaxed = calls.relaxed();
            relaxed.is_some() && calls.query(segment.start()) != Progress::Pending
        };
        self.is_stuck()
            && self.waits.awaits_host.load(Ordering::Relaxed)
            && !self.open.is_end_only()
            && self.is_open()
            && self.ring.next().is_some_and(|segment| !has_begun(segment))
    }

    /// Returns the number of segments in the ring from which on the open segment grows.
    fn room(&self) -> u32 {
        let lanes = self.context.lanes().max(1);
        (WAITING_OF_ALL / lanes).clamp(WAITING_OF_EACH, super::ring::RING_BUSY)
    }

    /// Returns whether at least half of the room for segments is taken. The sooner the meter thread
    /// then takes segments out, the shorter the open segment stays.
    pub fn is_crowded(&self) -> bool {
        self.ring.waiting() >= self.room() / 2
    }

    /// Returns whether the ring and the driver have room for the end of a segment. Without room,
    /// the open segment grows.
    pub(super) fn has_room(&self, calls: &Calls) -> bool {
        self.ring.waiting() < self.room()
            && (!self.is_stuck() || (self.unaccounted().all() >= LAUNCHES_STUCK && !self.is_held(calls)))
    }

    /// Returns whether more than `at_most_ns` of GPU time is queued. In two cases, the method
    /// instead returns whether more than `segments` closed segments are queued. First, the meter
    /// has measured no launch of the lane yet. Second, `launch` can take any time in spite of its
    /// estimate.
    pub fn is_far_ahead(&self, launch: Option<Launch>, at_most_ns: u64, segments: u32) -> bool {
        let is_unknown = |launch: Launch| {
            launch.kind == Kind::VaryingGraph && self.gpu.estimates.measured(launch.key) < VARYING_SEEN
        };
        if self.mean_ns() == 0 || launch.is_some_and(is_unknown) {
            return self.ring.waiting() > segments;
        }
        let open_ns = if self.is_open() { self.unaccounted_ns() } else { 0 };
        let unqueued_ns = open_ns.saturating_sub(self.open.queued_ns());
        self.ring.waiting() != 0
            && self.gpu.queued_ns().saturating_add(self.gpu.share_ns(unqueued_ns)) > at_most_ns
    }
}
