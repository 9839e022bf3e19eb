//! The end of a segment, which any thread may record. [`Tally`] makes sure that only one thread
//! does so at a time.
//!
//! [`Tally`]: deepres_abi::tally::Tally

use std::thread;

use deepres_abi::tally::Taken;

use super::Lane;
use crate::driver::calls::{Calls, Event, Stream};
use crate::meter::segment::{Contents, Launches};
use crate::{capture, os};

/// The way in which the meter thread learns that a segment is complete.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The meter thread learns the end of the segment by an event that a thread records at the end.
    Record,
    /// Without an event, because the segment is known to be complete. The segment's launches took
    /// at least `least_ns`.
    Unrecorded { least_ns: u64 },
}

impl Lane {
    /// Closes the open segment, if there is one. The ring must have room for one more segment after
    /// it, and the driver room for an end event.
    pub fn close(&self, calls: &Calls) {
        self.close_if(calls, |_| true, End::Record);
    }

    /// Closes the open segment as [`Self::close`] does, for the thread `thread`, at a moment at
    /// which the program puts nothing on the stream. If no end event may go on the stream then,
    /// leaves the segment open.
    pub fn close_late(&self, calls: &Calls, thread: u32) {
        if self.may_end_late(thread) {
            self.close(calls);
        }
    }

    /// Returns whether the thread `thread` may record an end event on the stream at a moment at
    /// which the program puts nothing on the stream. There are two exceptions:
    ///
    /// - On the legacy stream, an end event would order the blocking streams among each other, at a
    ///   moment that the program did not choose. If a blocking stream waits for the host, the host
    ///   can then wait for ever for another blocking stream.
    /// - A per-thread default stream has the same handle in each thread, but the handle names
    ///   another stream there. So only the owner thread can record on the stream.
    pub fn may_end_late(&self, thread: u32) -> bool {
        match self.stream() {
            Some(Stream::LEGACY) => false,
            Some(Stream::PER_THREAD) => self.owner() == thread,
            _ => true,
        }
    }

    /// Waits while another thread records an end event, which takes one call of the driver.
    pub fn await_closed(&self) {
        while self.tally.is_closing() {
            thread::yield_now();
        }
    }

    /// Accounts for the launches of a segment that ends at `launched` launches in total. Returns
    /// the launches that belong to no earlier segment, and their estimated time, ns.
    pub(super) fn account(&self, launched: u64) -> (Launches, u64) {
        /// The events of a segment. The count takes a segment without a start event for a segment
        /// with both.
        const MARKERS: u64 = 2;
        let Taken { launched, ns } = self.tally.account(launched);
        if !self.open.is_copy() {
            self.gpu.count(Launches(launched), MARKERS);
        }
        (Launches(launched), ns)
    }

    /// Closes the open segment if `still` returns true for its number of launches.
    pub(super) fn close_if(&self, calls: &Calls, still: impl Fn(u32) -> bool, end: End) {
        let is_closable = self.tally.is_closable() && self.ring.has_room();
        if !is_closable || (end == End::Record && self.is_held(calls)) {
            return;
        }
        let marking = if end == End::Record { capture::marking() } else { None };
        if (end == End::Record && marking.is_none()) || !self.tally.begin_closing() {
            return;
        }
        let launched = self.tally.launched_at_end();
        let still = still(Launches(self.tally.unaccounted_of(launched).launched).all());
        let (Some(stream), Some(segment), true) = (self.stream(), self.ring.next(), still) else {
            // The owner thread counted another launch meanwhile, or the stream is gone.
            self.tally.reopen();
            return;
        };
        let closed_ns = os::now_ns();
        let is_recorded = end == End::Record && self.record_end(calls, stream, segment.end());
        let (launches, mut expected_ns) = self.account(launched);
        let launches = launches.all();
        self.pace.learn(launches, closed_ns.saturating_sub(self.open.asked_ns()));
        if !is_recorded && expected_ns == 0 {
            expected_ns = self.mean_ns().saturating_mul(u64::from(launches));
        }
        if let End::Unrecorded { least_ns } = end {
            expected_ns = expected_ns.max(least_ns);
        }
        let is_copy = self.open.is_copy();
        let already_ns = self.open.take_queued_ns();
        let queued_ns = match (is_copy, expected_ns) {
            (true, _) => 0,
            (false, 0) => already_ns.max(self.mean_ns()),
            (false, expected_ns) => already_ns.max(expected_ns),
        };
        self.gpu.queue(queued_ns - already_ns);
        segment.fill(&Contents {
            queued_ns,
            expected_ns,
            closed_ns,
            ended_ns: os::now_ns(),
            is_lost: !is_recorded,
            ..self.open.contents(launches)
        });
        self.ring.push(is_copy);
        self.tally.closed();
    }

    /// Records the end event of the open segment. Returns whether the driver did so.
    fn record_end(&self, calls: &Calls, stream: Stream, event: Event) -> bool {
        // If the stream joined a capture meanwhile, no marker may go on it.
        let record = || {
            let is_captured = capture::is_active() && calls.may_be_capturing(stream);
            (!is_captured && calls.record(event, stream)).then_some(())
        };
        // The handle of a default stream names the default stream of the current context.
        if stream.is_default() { self.context.enter(calls, record).is_some() } else { record().is_some() }
    }
}
