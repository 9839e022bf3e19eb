//! The data of a lane's open segment. A thread that closes the segment copies the data into the
//! segment's place in the ring.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::meter::segment::{Contents, Launch};
use crate::plan;

/// The open segment. The fields have the same meaning as in [`Contents`].
#[derive(Debug, Default)]
pub(super) struct OpenSegment {
    /// The part of the segment's estimate that the GPU's estimated time in flight includes already,
    /// ns.
    queued_ns: AtomicU64,
    key: AtomicU64,
    asked_ns: AtomicU64,
    began_ns: AtomicU64,
    first_ns: AtomicU64,
    is_copy: AtomicBool,
    is_end_only: AtomicBool,
    may_wait: AtomicBool,
    is_quiet: AtomicBool,
    copied_ns: AtomicU64,
    planned_before: AtomicU64,
}

/// The data with which a segment begins.
pub(super) struct Beginning {
    /// The launch that opens the segment.
    pub(super) launch: Launch,
    /// Host time before the thread recorded the start event, ns.
    pub(super) asked_ns: u64,
    /// Host time after the thread recorded the start event, ns. Without a start event: host time
    /// before the segment's first launch.
    pub(super) began_ns: u64,
    /// Whether the segment gets no start event, only an end event.
    pub(super) is_end_only: bool,
    /// Whether the stream can wait for another stream or the host between the launches.
    pub(super) may_wait: bool,
    /// Whether the stream had no unfinished work, and nothing made the stream wait.
    pub(super) is_quiet: bool,
}

impl OpenSegment {
    /// Stores the data of a segment that is about to open. Only the owner thread calls this.
    pub(super) fn begin(&self, beginning: &Beginning) {
        self.queued_ns.store(0, Ordering::Relaxed);
        self.key.store(beginning.launch.key, Ordering::Relaxed);
        self.asked_ns.store(beginning.asked_ns, Ordering::Relaxed);
        self.began_ns.store(beginning.began_ns, Ordering::Relaxed);
        self.first_ns.store(beginning.began_ns, Ordering::Relaxed);
        self.is_copy.store(beginning.launch.kind.is_copy(), Ordering::Relaxed);
        self.is_end_only.store(beginning.is_end_only, Ordering::Relaxed);
        self.may_wait.store(beginning.may_wait, Ordering::Relaxed);
        self.is_quiet.store(beginning.is_quiet, Ordering::Relaxed);
        self.copied_ns.store(0, Ordering::Relaxed);
        self.planned_before.store(plan::submitted(), Ordering::Relaxed);
    }

    /// Returns the number of launches that the process had submitted along plans before the
    /// segment's first launch.
    pub(super) fn planned_before(&self) -> u64 {
        self.planned_before.load(Ordering::Relaxed)
    }

    /// Returns whether the segment holds copies.
    pub(super) fn is_copy(&self) -> bool {
        self.is_copy.load(Ordering::Relaxed)
    }

    /// Returns whether the segment has no start event, only an end event.
    pub(super) fn is_end_only(&self) -> bool {
        self.is_end_only.load(Ordering::Relaxed)
    }

    /// Returns whether the stream can wait for another stream or the host between the segment's
    /// launches.
    pub(super) fn may_wait(&self) -> bool {
        self.may_wait.load(Ordering::Relaxed)
    }

    /// Returns the host time before the thread recorded the segment's start event, ns.
    pub(super) fn asked_ns(&self) -> u64 {
        self.asked_ns.load(Ordering::Relaxed)
    }

    /// Returns the part of the segment's estimate that the GPU's estimated time in flight includes
    /// already, ns.
    pub(super) fn queued_ns(&self) -> u64 {
        self.queued_ns.load(Ordering::Relaxed)
    }

    /// Sets [`Self::queued_ns`] to 0, because the segment ends. Returns the last value, ns.
    pub(super) fn take_queued_ns(&self) -> u64 {
        self.queued_ns.swap(0, Ordering::Relaxed)
    }

    /// Adds `estimate_ns` to [`Self::queued_ns`]. Only the owner thread calls this.
    pub(super) fn add_queued(&self, estimate_ns: u64) {
        self.queued_ns.store(self.queued_ns().saturating_add(estimate_ns), Ordering::Relaxed);
    }

    /// Records that the segment has another launch. Only the owner thread calls this.
    pub(super) fn take_another(&self) {
        self.key.store(0, Ordering::Relaxed);
    }

    /// Records the host time after the first launch. Only the owner thread calls this.
    pub(super) fn set_first(&self, first_ns: u64) {
        self.first_ns.store(first_ns, Ordering::Relaxed);
    }

    /// Records that the stream can wait for another stream or the host between the segment's
    /// launches.
    pub(super) fn note_wait(&self) {
        self.may_wait.store(true, Ordering::Relaxed);
    }

    /// Adds a copy with the estimate `copy_ns` to an open segment of kernels. Only the owner thread
    /// calls this.
    pub(super) fn take_in(&self, copy_ns: u64) {
        self.note_wait();
        self.copied_ns.fetch_add(copy_ns, Ordering::Relaxed);
    }

    /// Marks an open segment, which began with a copy, as a segment of kernels. Only the lane's own
    /// thread calls this.
    pub(super) fn make_compute(&self) {
        self.is_copy.store(false, Ordering::Relaxed);
    }

    /// Returns the contents of the segment, which has `launches` launches. The caller adds the
    /// values that only the end of the segment shows.
    pub(super) fn contents(&self, launches: u32) -> Contents {
        Contents {
            launches,
            key: if launches == 1 { self.key.load(Ordering::Relaxed) } else { 0 },
            copied_ns: self.copied_ns.load(Ordering::Relaxed),
            asked_ns: self.asked_ns(),
            began_ns: self.began_ns.load(Ordering::Relaxed),
            first_ns: self.first_ns.load(Ordering::Relaxed),
            may_wait: self.may_wait.load(Ordering::Relaxed),
            is_quiet: self.is_quiet.load(Ordering::Relaxed),
            is_copy: self.is_copy(),
            is_end_only: self.is_end_only(),
            planned_before: self.planned_before(),
            ..Contents::default()
        }
    }
}
