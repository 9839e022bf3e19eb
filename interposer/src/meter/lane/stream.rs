//! The other lanes of a lane's stream. If several threads launch on a stream, each of them has a
//! lane there. PyTorch, for example, launches backward passes from a thread of their own.
//!
//! The lanes of a stream form a ring. A thread with the context's lock changes the ring. The owner
//! thread follows the ring without the lock when it opens a segment.

use std::iter;
use std::sync::atomic::Ordering;

use super::{Lane, LaneOwner, SEGMENT_NS};
use crate::driver::calls::{Calls, Stream};
use crate::meter::context::Inner;
use crate::meter::measure::EDGE_NS;

impl Lane {
    /// Adds the lane to the ring of its stream's lanes. The handle of a per-thread default stream
    /// names another stream in each thread.
    pub fn join_stream(&'static self, locked: &Inner) {
        self.leave_stream(locked);
        let stream = self.stream().filter(|stream| *stream != Stream::PER_THREAD);
        let has_stream = |lane: &&&Lane| !std::ptr::eq(**lane, self) && lane.stream() == stream;
        if stream.is_some()
            && let Some(other) = locked.lanes.iter().find(has_stream)
        {
            self.next_of_stream.set(Some(other.next_of_stream.get().unwrap_or(other)));
            other.next_of_stream.set(Some(self));
        }
    }

    /// Removes the lane from the ring of its stream's lanes.
    pub fn leave_stream(&self, locked: &Inner) {
        let Some(next) = self.next_of_stream.get() else { return };
        let is_previous =
            |lane: &&&Lane| lane.next_of_stream.get().is_some_and(|next| std::ptr::eq(next, self));
        if let Some(previous) = locked.lanes.iter().find(is_previous) {
            previous.next_of_stream.set(Some(next));
        }
        self.next_of_stream.set(None);
    }

    /// Returns the other lanes of the stream. While another thread changes the ring, the result can
    /// lack lanes.
    pub(super) fn others_of_stream(&self) -> impl Iterator<Item = &'static Lane> {
        let stream = self.stream();
        // A walk that meets a lane on its way to another ring never comes back to its beginning.
        let most = self.context.lanes() as usize;
        iter::successors(self.next_of_stream.get(), |lane| lane.next_of_stream.get())
            .take_while(|lane| !std::ptr::eq(*lane, self))
            .take(most)
            .filter(move |lane| lane.stream() == stream)
    }

    /// Returns a number that no other lane has.
    fn number(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Returns a number that all lanes of the stream share, and no lane of another stream.
    pub fn stream_number(&self) -> usize {
        self.others_of_stream().map(Self::number).fold(self.number(), usize::min)
    }

    /// Returns whether this lane stands for its stream in the meter's counts. Of all lanes of the
    /// stream with unfinished kernels or graphs, one lane does.
    pub fn counts_as_stream(&self) -> bool {
        self.is_computing()
            && self.others_of_stream().all(|other| !other.is_computing() || other.number() > self.number())
    }

    /// Returns when the work of the stream before `start_ns` ended, as far as the processed
    /// segments of all its lanes show it. Both times are ns on the process's time line.
    pub fn previous_end_of_stream_ns(&self, locked: &Inner, start_ns: i64) -> Option<i64> {
        // The meter thread may have processed later segments of other lanes already.
        let others = self.others_of_stream().filter_map(|other| other.previous_end_ns(locked));
        let before = others.filter(|end_ns| *end_ns <= start_ns + EDGE_NS);
        self.previous_end_ns(locked).into_iter().chain(before).max()
    }
}

impl LaneOwner {
    /// Ends the open segments of the stream's other lanes, before the lane opens a segment at
    /// `now_ns`. Otherwise the time of such a segment would contain the launches of this lane.
    /// Returns whether another lane has unfinished work, as far as the meter thread knows.
    ///
    /// The next launch of the other thread then opens a segment, and ends the segment of this lane.
    /// If the threads take turns with each launch, the events would take longer than the launches.
    /// So the lanes of a stream end each other's segments at most once in the time of a segment.
    pub(super) fn end_others(self, calls: &Calls, now_ns: u64) -> bool {
        let ended_ns = |lane: &Lane| lane.pace.ended_others_ns.load(Ordering::Relaxed);
        let newest_ns = self.others_of_stream().map(ended_ns).fold(ended_ns(self.lane()), u64::max);
        let may_end = now_ns.saturating_sub(newest_ns) >= SEGMENT_NS;
        let mut are_busy = false;
        for other in self.others_of_stream() {
            if may_end && other.is_open() && other.has_room(calls) {
                other.close(calls);
                self.pace.ended_others_ns.store(now_ns, Ordering::Relaxed);
            }
            are_busy |= other.is_busy();
        }
        are_busy
    }

    /// Looks for open segments of the stream's other lanes, after the lane has opened its own. The
    /// launches of such a segment can lie among the launches of the own segment. The meter thread
    /// then charges both segments by the estimates of their launches.
    ///
    /// Of two threads that open segments at once, at least one finds the other's segment: each
    /// opens its segment before it looks.
    pub(super) fn note_others(self) {
        for other in self.others_of_stream().filter(|other| other.is_open()) {
            other.note_wait();
            self.note_wait();
        }
    }
}
