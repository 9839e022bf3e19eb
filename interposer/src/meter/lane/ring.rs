//! The ring through which the closed segments of a lane reach the meter thread.
//!
//! A thread that closes a segment puts the segment into the ring at the head. A thread that holds
//! the context's lock takes the segment out at the tail. The events of a processed segment move to
//! a segment that the lane opens later. So a lane never has more events than it needed at one time.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::driver::calls::{Calls, Event, Progress};
use crate::meter::segment::Segment;

/// The number of places in a ring. A segment has two events, and a driver queues about a thousand
/// launches.
pub(super) const RING: u32 = 128;
/// The number of segments in the ring from which on the lane's open segment grows instead of
/// ending.
pub(super) const RING_BUSY: u32 = RING - RING / 4;

/// The ring through which the closed segments of a lane reach the meter thread.
#[derive(Debug)]
pub(super) struct Ring {
    /// The number of segments in the ring that hold kernels or graphs, and not copies.
    computing: AtomicU32,
    /// The number of segments closed so far (modulo 2³²).
    head: AtomicU32,
    /// The number of segments taken out so far (modulo 2³²).
    tail: AtomicU32,
    /// The number of segments whose events have moved to later segments (modulo 2³²). Each segment
    /// from this number to the open segment has its own two events. Only the owner thread uses this
    /// field, except at the end of a context.
    taken: AtomicU32,
    places: Box<[Segment]>,
}

impl Ring {
    pub(super) fn new() -> Self {
        Self {
            computing: AtomicU32::new(0),
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            places: (0..RING).map(|_| Segment::default()).collect(),
        }
    }

    fn place(&self, number: u32) -> Option<&Segment> {
        self.places.get((number % RING) as usize)
    }

    /// Returns the number of closed segments in the ring.
    pub(super) fn waiting(&self) -> u32 {
        self.head.load(Ordering::Acquire).wrapping_sub(self.tail.load(Ordering::Acquire))
    }

    /// Returns whether a thread may close a segment. No segment fills the last free place, because
    /// the owner thread needs this place for the next open segment.
    pub(super) fn has_room(&self) -> bool {
        self.waiting() < RING - 1
    }

    /// Returns whether the ring has a segment of kernels or graphs.
    pub(super) fn is_computing(&self) -> bool {
        self.computing.load(Ordering::SeqCst) != 0
    }

    /// Returns the number of segments closed so far (modulo 2³²).
    pub(super) fn closed(&self) -> u32 {
        self.head.load(Ordering::Acquire)
    }

    /// Returns the number of segments taken out so far (modulo 2³²).
    pub(super) fn completed(&self) -> u32 {
        self.tail.load(Ordering::Acquire)
    }

    /// Returns the place of the open segment, or of the next segment if none is open.
    pub(super) fn next(&self) -> Option<&Segment> {
        self.place(self.head.load(Ordering::Relaxed))
    }

    /// Gives the next segment two events, and returns the segment. The events come from the oldest
    /// processed segment that still has its own events, or from `create`. Returns `None` if
    /// `create` fails. Only the owner thread calls this.
    pub(super) fn equip(&self, create: impl FnOnce() -> Option<(Event, Event)>) -> Option<&Segment> {
        let segment = self.next()?;
        let taken = self.taken.load(Ordering::Relaxed);
        let is_own = self.head.load(Ordering::Relaxed).wrapping_sub(taken) == RING;
        if segment.end() != Event::NONE && !is_own {
            // An earlier attempt to open a segment here failed, so the place has its events
            // already.
            return Some(segment);
        }
        if taken != self.completed() {
            if !is_own {
                let (start, end) = self.place(taken)?.take_events();
                segment.set_events(start, end);
            }
            self.taken.store(taken.wrapping_add(1), Ordering::Relaxed);
        } else {
            let (start, end) = create()?;
            segment.set_events(start, end);
        }
        Some(segment)
    }

    /// Puts the next segment into the ring. The caller has filled and closed the segment.
    pub(super) fn push(&self, is_copy: bool) {
        if !is_copy {
            self.computing.fetch_add(1, Ordering::SeqCst);
        }
        let head = self.head.load(Ordering::Relaxed);
        self.head.store(head.wrapping_add(1), Ordering::SeqCst);
    }

    /// Returns the oldest segment in the ring. The caller holds the context's lock.
    pub(super) fn oldest(&self) -> Option<&Segment> {
        if self.waiting() == 0 { None } else { self.place(self.tail.load(Ordering::Relaxed)) }
    }

    /// Returns the number of the oldest segments that are complete or lost, and the end event of
    /// the newest complete segment among them. The caller holds the context's lock.
    pub(super) fn over(&self, calls: &Calls) -> (u32, Option<Event>) {
        let (tail, waiting) = (self.tail.load(Ordering::Relaxed), self.waiting());
        let mut newest = None;
        for number in 0..waiting {
            let Some(segment) = self.place(tail.wrapping_add(number)) else { return (number, newest) };
            match if segment.contents().is_lost { Progress::Lost } else { calls.query(segment.end()) } {
                Progress::Pending => return (number, newest),
                Progress::Done => newest = Some(segment.end()),
                Progress::Lost => {}
            }
        }
        (waiting, newest)
    }

    /// Takes the oldest segment out. The caller holds the context's lock.
    pub(super) fn pop(&self) {
        if self.oldest().is_some_and(|segment| !segment.contents().is_copy) {
            self.computing.fetch_sub(1, Ordering::SeqCst);
        }
        let tail = self.tail.load(Ordering::Relaxed);
        self.tail.store(tail.wrapping_add(1), Ordering::Release);
    }

    /// Gives all events to `end`, and forgets them. The caller holds the context's lock.
    pub(super) fn forget_events(&self, end: impl FnMut(Event)) {
        let events = self.places.iter().flat_map(|segment| <[Event; 2]>::from(segment.take_events()));
        events.filter(|event| *event != Event::NONE).for_each(end);
        self.taken.store(self.head.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
impl Ring {
    /// Returns all events of the ring's places, in pairs of start and end.
    pub(super) fn events(&self) -> Vec<(Event, Event)> {
        let both = self.places.iter().map(|segment| (segment.start(), segment.end()));
        both.filter(|(_, end)| *end != Event::NONE).collect()
    }

    /// Returns the segment that was closed last.
    pub(super) fn newest(&self) -> Option<&Segment> {
        self.place(self.closed().wrapping_sub(1))
    }
}
