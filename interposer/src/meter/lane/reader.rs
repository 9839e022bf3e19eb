//! The part of a lane that belongs to the meter thread: the figures that segments show, and the
//! looks at the open segment.
//!
//! Each method takes a [`MeterThread`], which only the meter thread has. A reference to [`Inner`]
//! proves that the caller holds the context's lock.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use super::close::End;
use super::{Lane, SEGMENT_NS};
use crate::capture;
use crate::driver::calls::{Calls, Progress, Stream};
use crate::meter::context::Inner;
use crate::meter::segment::Segment;
use crate::meter::thread::MeterThread;
use crate::os;

/// The time without a launch after which the meter thread closes an open segment. While the GPU is
/// contended, the meter thread closes a segment that had no launch since the last look.
const STALE_NS: u64 = 200_000;
/// The time after which the meter thread ends a segment while the GPU is contended. A long kernel
/// among short kernels is then not hidden in a segment that outlasts it.
const LONGEST_NS: u64 = 2 * SEGMENT_NS;
/// While the GPU is contended and the samples contradict the estimates, the meter takes a sample in
/// one segment of this many. A program that waits for the GPU after every 25 launches then records
/// 0.1 events for a launch.
const SAMPLE_EVERY_LEAST: u32 = 8;
/// While the GPU is contended, the meter takes a sample in at least one segment of this many. Each
/// sample that confirms its estimate doubles the number of segments, up to this value. If kernels
/// begin to take longer, the meter notices after 16 ms at most.
const SAMPLE_EVERY_MOST: u32 = 32;
/// A sample confirms its estimate if sample and estimate differ by at most one part in this many. A
/// difference of [`CONFIRMS_NS`], the error of a time between two events, also confirms.
const CONFIRMS_PART: u64 = 8;
/// The error of a time between two events, ns. A sample that differs from its estimate by at most
/// this also confirms the estimate.
const CONFIRMS_NS: u64 = 1_000;
/// Time between two checks whether the owner thread ended inside the driver.
const DEAD_NS: u64 = 1_000_000_000;
/// The value of `previous_end_ns` while no end is known.
const NO_END: i64 = i64::MIN;

/// The figures that segments have shown so far. A thread with the context's lock writes them,
/// mostly the meter thread. The owner thread reads them.
#[derive(Debug)]
pub(super) struct Learned {
    /// Whether the stream's last segment had gaps, or may have had gaps.
    is_sparse: AtomicBool,
    /// GPU time, ns, by which the charges of earlier segments were less than expected, because of
    /// the segments' bounds. The meter thread adds this time to later charges. Without the
    /// correction, the meter thread would charge kernels with scattered times too little, because
    /// the bounds cut off only long times.
    carried_ns: AtomicI64,
    /// The mean GPU time of a launch, ns; 0: not measured yet.
    mean_ns: AtomicU64,
    /// While the GPU is contended, the meter takes a sample in one segment of this many.
    sample_every: AtomicU32,
    /// The end of the last processed segment, or [`NO_END`].
    previous_end_ns: AtomicI64,
    /// The number of launches of the lane at the last look, modulo 2³²; 0 if no segment was open.
    seen_launched: AtomicU32,
    /// The time since which `seen_launched` has its value, ns of `CLOCK_MONOTONIC`.
    seen_since_ns: AtomicU64,
    /// The time after `seen_since_ns` at which a look last found the stream busy, ns.
    busy_for_ns: AtomicU64,
}

impl Default for Learned {
    fn default() -> Self {
        Self {
            is_sparse: AtomicBool::new(true),
            carried_ns: AtomicI64::new(0),
            mean_ns: AtomicU64::new(0),
            sample_every: AtomicU32::new(SAMPLE_EVERY_LEAST),
            previous_end_ns: AtomicI64::new(NO_END),
            seen_launched: AtomicU32::new(0),
            seen_since_ns: AtomicU64::new(0),
            busy_for_ns: AtomicU64::new(0),
        }
    }
}

impl Learned {
    /// Forgets the figures about one thread's launches, because the lane gets another thread.
    pub(super) fn restart(&self) {
        self.is_sparse.store(true, Ordering::Relaxed);
        self.carried_ns.store(0, Ordering::Relaxed);
        self.sample_every.store(SAMPLE_EVERY_LEAST, Ordering::Relaxed);
    }

    /// Forgets the figures about one stream, because the lane gets another stream.
    pub(super) fn forget(&self) {
        self.mean_ns.store(0, Ordering::Relaxed);
        self.set_previous_end(None);
    }

    /// Returns the mean GPU time of a launch, ns; 0: not measured yet.
    pub(super) fn mean_ns(&self) -> u64 {
        self.mean_ns.load(Ordering::Relaxed)
    }

    /// Returns the number of segments for each sample while the GPU is contended.
    pub(super) fn sample_every(&self) -> u32 {
        self.sample_every.load(Ordering::Relaxed)
    }

    /// Returns whether the stream had gaps lately, or may have had gaps.
    pub(super) fn is_sparse(&self) -> bool {
        self.is_sparse.load(Ordering::Relaxed)
    }

    pub(super) fn previous_end_ns(&self) -> Option<i64> {
        Some(self.previous_end_ns.load(Ordering::Relaxed)).filter(|end_ns| *end_ns != NO_END)
    }

    pub(super) fn set_previous_end(&self, end_ns: Option<i64>) {
        self.previous_end_ns.store(end_ns.unwrap_or(NO_END), Ordering::Relaxed);
    }
}

impl Lane {
    /// Makes the open segment end with its next launch.
    pub fn end_soon(&self, _meter: MeterThread, _locked: &Inner) {
        self.tally.end_soon();
    }

    /// Looks at the open segment at `now_ns`. If the segment had no launch for a while, closes the
    /// segment. If the process's lease has expired, makes the segment end with its next launch. If
    /// the owner thread ended inside the driver, makes the segment closable.
    pub fn look(&self, meter: MeterThread, locked: &Inner, calls: &Calls, now_ns: u64) {
        let (seen, since_ns) = (&self.learned.seen_launched, &self.learned.seen_since_ns);
        let passed_ns = || now_ns.saturating_sub(since_ns.load(Ordering::Relaxed));
        let Some(launches) = self.open_launches() else {
            if seen.swap(0, Ordering::Relaxed) != 0 {
                since_ns.store(now_ns, Ordering::Relaxed);
            } else if passed_ns() > DEAD_NS {
                since_ns.store(now_ns, Ordering::Relaxed);
                self.release_dead(meter, locked);
            }
            return;
        };
        let is_open = self.gpu.is_open();
        let lasts_ns = now_ns.saturating_sub(self.open.asked_ns());
        if self.gpu.is_expired(now_ns) || (!is_open && lasts_ns > LONGEST_NS) {
            self.tally.end_soon();
        }
        let stale_ns = if is_open || self.is_assumed() { STALE_NS } else { 0 };
        let launched = self.tally.launched() as u32;
        if seen.swap(launched, Ordering::Relaxed) != launched {
            since_ns.store(now_ns, Ordering::Relaxed);
            self.learned.busy_for_ns.store(0, Ordering::Relaxed);
        } else if passed_ns() > stale_ns {
            self.close_stale(meter, locked, calls, launches, passed_ns());
        }
    }

    /// Closes a segment that has had `launches` launches, and no new launch for `quiet_ns`.
    ///
    /// The meter thread records no end event on the default streams ([`Self::may_end_late`]). A
    /// segment on the legacy stream is complete once the stream has no work left. The meter thread
    /// cannot query the default streams for which [`Self::is_assumed`] holds. The meter thread
    /// takes a segment there as complete once all segments before it are complete and its usual
    /// time has passed.
    pub(super) fn close_stale(
        &self,
        _meter: MeterThread,
        _locked: &Inner,
        calls: &Calls,
        launches: u32,
        quiet_ns: u64,
    ) {
        let end = match self.stream() {
            _ if self.is_assumed() => {
                let usual_ns = self.mean_ns().saturating_mul(u64::from(launches));
                let usual_ns = usual_ns.max(self.unaccounted_ns());
                if self.ring.waiting() != 0 || quiet_ns <= usual_ns {
                    return;
                }
                End::Unrecorded { least_ns: 0 }
            }
            Some(Stream::LEGACY) => {
                // The query would end a capture on a blocking stream.
                let marking = capture::marking();
                let may_ask = marking.is_some() && !capture::is_active();
                let is_through = may_ask && calls.query_stream(Stream::LEGACY) != Progress::Pending;
                drop(marking);
                if !is_through {
                    // The segments of the stream's earlier work charge that work.
                    if may_ask && self.has_begun(calls) {
                        self.learned.busy_for_ns.store(quiet_ns, Ordering::Relaxed);
                    } else {
                        self.learned.seen_since_ns.store(os::now_ns(), Ordering::Relaxed);
                    }
                    return;
                }
                // Work on the legacy stream waits for other streams, and the charge must not
                // include the wait.
                let is_by_itself = self.context.lanes() <= 1 && !self.open.may_wait();
                let busy_for_ns = self.learned.busy_for_ns.load(Ordering::Relaxed);
                End::Unrecorded { least_ns: if is_by_itself { busy_for_ns } else { 0 } }
            }
            _ => End::Record,
        };
        self.close_if(calls, |launched| launched == launches, end);
    }

    /// Returns whether the GPU has begun with the open segment, which has a start event.
    fn has_begun(&self, calls: &Calls) -> bool {
        let start = || self.ring.next().map(Segment::start);
        !self.open.is_end_only() && start().is_some_and(|start| calls.query(start) == Progress::Done)
    }

    /// Makes the open segment closable if its owner thread ended inside the driver.
    pub(super) fn release_dead(&self, _meter: MeterThread, _locked: &Inner) {
        if self.tally.is_launching() && !os::is_thread_alive(self.owner()) {
            self.tally.release();
        }
    }

    /// Returns the time that the charge of a segment must include in addition, ns. The segment's
    /// expected time is `expected_ns`. The result is at most `expected_ns`, in either direction.
    pub fn carried_ns(&self, _meter: MeterThread, expected_ns: i64) -> i64 {
        self.learned.carried_ns.load(Ordering::Relaxed).clamp(-expected_ns, expected_ns)
    }

    /// Records that the charge of a segment was `took_ns` instead of the expected `expected_ns`,
    /// because of the segment's bounds.
    pub fn carry(&self, meter: MeterThread, expected_ns: i64, took_ns: i64) {
        if expected_ns > 0 {
            let carried_ns = self.carried_ns(meter, expected_ns).saturating_add(expected_ns - took_ns);
            self.learned.carried_ns.store(carried_ns.clamp(-expected_ns, expected_ns), Ordering::Relaxed);
        }
    }

    /// Compares a sample, which took `least_ns` to `most_ns`, with the estimate `known_ns` of its
    /// launch. The result decides how often the lane takes a sample.
    pub fn compare(&self, _meter: MeterThread, known_ns: u64, (least_ns, most_ns): (u64, u64)) {
        let error_ns = (known_ns / CONFIRMS_PART).max(CONFIRMS_NS);
        let (low_ns, high_ns) = (known_ns.saturating_sub(error_ns), known_ns.saturating_add(error_ns));
        let every = if most_ns < low_ns || least_ns > high_ns {
            SAMPLE_EVERY_LEAST
        } else if low_ns <= least_ns && most_ns <= high_ns {
            (2 * self.learned.sample_every()).min(SAMPLE_EVERY_MOST)
        } else {
            // An interrupted measurement tells nothing.
            return;
        };
        self.learned.sample_every.store(every, Ordering::Relaxed);
    }

    /// Adds a measurement to the mean time of a launch. `is_sparse`: the segment had gaps, or may
    /// have had gaps.
    pub fn learn(&self, _meter: MeterThread, per_launch_ns: u64, is_sparse: bool) {
        let mean_ns = self.mean_ns();
        let next = if mean_ns == 0 { per_launch_ns } else { mean_ns - mean_ns / 4 + per_launch_ns / 4 };
        self.learned.mean_ns.store(next.max(1), Ordering::Relaxed);
        self.learned.is_sparse.store(is_sparse, Ordering::Relaxed);
    }
}
