//! The part of a lane that belongs to the thread with the context's lock: the use of the lane, and
//! the segments in the ring.
//!
//! Each method takes a reference to [`Inner`], which only the lock gives.

use std::sync::atomic::Ordering;
use std::thread;

use deepres_abi::tally::Attempt;

use super::Lane;
use crate::driver::calls::{Calls, Event, Stream};
use crate::meter::context::Inner;
use crate::meter::segment::Segment;

impl Lane {
    /// Gives the lane to the thread `owner` on `stream`. The caller makes sure that no thread uses
    /// the lane, or that its thread has ended.
    pub fn adopt(&'static self, locked: &Inner, stream: Stream, owner: u32) {
        self.owner.store(owner, Ordering::Relaxed);
        self.pace.restart();
        self.learned.restart();
        self.waits.get_on();
        let before = self.stream.swap(stream.0, Ordering::AcqRel);
        if before == 0 {
            self.context.count_lane(1);
        }
        if before != stream.0 {
            self.learned.forget();
            self.join_stream(locked);
        }
    }

    /// Marks the lane as unused, once its stream is gone.
    pub fn retire(&self, locked: &Inner) {
        self.discard(locked);
        self.leave_stream(locked);
        if self.stream.swap(0, Ordering::AcqRel) != 0 {
            self.context.count_lane(-1);
        }
    }

    /// Gives the lane's events to `end`, and forgets them. No work of the lane is left.
    pub fn forget_events(&self, _locked: &Inner, end: impl FnMut(Event)) {
        self.ring.forget_events(end);
    }

    /// Drops the open segment, and charges its launches by their estimates. If another thread is
    /// recording on the stream, waits for that thread. The caller is about to destroy the stream,
    /// or the driver does not make the stream's context current.
    pub fn discard(&self, _locked: &Inner) {
        loop {
            match self.tally.seize() {
                Attempt::Done => break,
                Attempt::Idle => return,
                Attempt::Busy => thread::yield_now(),
            }
        }
        self.gpu.unqueue(self.open.take_queued_ns());
        let (launches, expected_ns) = self.account(self.tally.launched_at_end());
        let expected_ns = match expected_ns {
            0 => self.mean_ns().saturating_mul(u64::from(launches.all())),
            expected_ns => expected_ns,
        };
        if !self.open.is_copy() {
            self.gpu.add_late(expected_ns);
        }
        self.tally.closed();
    }

    /// Returns the oldest closed segment.
    pub fn oldest(&self, _locked: &Inner) -> Option<&Segment> {
        self.ring.oldest()
    }

    /// Returns the number of launches that the process had submitted along plans before the oldest
    /// unfinished segment of the lane. Returns `None` if all segments of kernels have finished.
    pub fn planned_before(&self, _locked: &Inner) -> Option<u64> {
        // A thread puts a segment into the ring before it marks the lane as not open. So this order
        // of the two looks misses no segment.
        let open = (self.is_open() && !self.open.is_copy()).then(|| self.open.planned_before());
        let oldest = self.ring.oldest().filter(|_| self.ring.is_computing());
        let closed = oldest.map(|segment| segment.contents().planned_before);
        [open, closed].into_iter().flatten().min()
    }

    /// Returns the number of the oldest closed segments that are complete or lost, and the end
    /// event of the newest complete segment among them.
    pub fn over(&self, _locked: &Inner, calls: &Calls) -> (u32, Option<Event>) {
        self.ring.over(calls)
    }

    /// Removes the oldest segment, which the caller has processed.
    pub fn pop(&self, _locked: &Inner) {
        self.ring.pop();
    }

    /// Returns the end of the last processed segment, ns on the process's time line, if known.
    pub fn previous_end_ns(&self, _locked: &Inner) -> Option<i64> {
        self.learned.previous_end_ns()
    }

    /// Sets [`Self::previous_end_ns`].
    pub fn set_previous_end(&self, _locked: &Inner, end_ns: Option<i64>) {
        self.learned.set_previous_end(end_ns);
    }
}
