//! The ring through which the closed segments of a lane reach the thread that reads them.
//!
//! A thread that closes a segment puts it in at the head. A thread that holds the context's lock
//! takes it out at the tail. Events move from read segments to the next segments that are opened,
//! so a lane never has more events than were in flight at once.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::driver::calls::{Calls, Event, Progress};
use crate::meter::segment::Segment;

/// Closed segments of one lane that may wait for the meter thread. Each has two events, and a
/// driver queues about a thousand launches.
pub(super) const RING: u32 = 128;
/// Number of waiting segments from which on a segment of the lane grows instead of ending.
pub(super) const RING_BUSY: u32 = RING - RING / 4;

/// A ring, as the module describes it.
#[derive(Debug)]
pub(super) struct Ring {
    /// Closed segments of kernels and graphs that were not read yet.
    computing: AtomicU32,
    /// Segments closed so far (modulo 2³²).
    head: AtomicU32,
    /// Segments that were read (modulo 2³²).
    tail: AtomicU32,
    /// Number of segments whose events later segments have taken over (modulo 2³²). Used by the
    /// owner thread alone, except where a context ends. Each segment from this number to the open
    /// one has its own two events.
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

    /// Closed segments that were not read yet.
    pub(super) fn waiting(&self) -> u32 {
        self.head.load(Ordering::Acquire).wrapping_sub(self.tail.load(Ordering::Acquire))
    }

    /// Whether a segment may be closed. The last free place is never given away, because the owner
    /// thread needs one to open the next segment.
    pub(super) fn has_room(&self) -> bool {
        self.waiting() < RING - 1
    }

    /// Whether a segment of kernels or graphs was not read yet.
    pub(super) fn is_computing(&self) -> bool {
        self.computing.load(Ordering::SeqCst) != 0
    }

    /// Segments closed so far (modulo 2³²).
    pub(super) fn closed(&self) -> u32 {
        self.head.load(Ordering::Acquire)
    }

    /// Segments that were read (modulo 2³²).
    pub(super) fn completed(&self) -> u32 {
        self.tail.load(Ordering::Acquire)
    }

    /// The place of the open segment, or of the next one.
    pub(super) fn next(&self) -> Option<&Segment> {
        self.place(self.head.load(Ordering::Relaxed))
    }

    /// Gives the next segment its two events: those of the oldest read segment, or new ones that
    /// `create` makes. Called by the owner thread.
    pub(super) fn equip(&self, create: impl FnOnce() -> Option<(Event, Event)>) -> Option<&Segment> {
        let segment = self.next()?;
        let taken = self.taken.load(Ordering::Relaxed);
        let is_own = self.head.load(Ordering::Relaxed).wrapping_sub(taken) == RING;
        if segment.end() != Event::NONE && !is_own {
            // The place has events already, because an earlier attempt to open it failed.
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

    /// Puts in the next segment, which the caller has filled. Called by the thread that closes it.
    pub(super) fn push(&self, is_copy: bool) {
        if !is_copy {
            self.computing.fetch_add(1, Ordering::SeqCst);
        }
        let head = self.head.load(Ordering::Relaxed);
        self.head.store(head.wrapping_add(1), Ordering::SeqCst);
    }

    /// The oldest segment. Called under the context's lock.
    pub(super) fn oldest(&self) -> Option<&Segment> {
        if self.waiting() == 0 { None } else { self.place(self.tail.load(Ordering::Relaxed)) }
    }

    /// Returns how many of the oldest segments are over, and the end event of the newest complete
    /// one. Called under the context's lock.
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

    /// Removes the oldest segment. Called under the context's lock.
    pub(super) fn pop(&self) {
        if self.oldest().is_some_and(|segment| !segment.contents().is_copy) {
            self.computing.fetch_sub(1, Ordering::SeqCst);
        }
        let tail = self.tail.load(Ordering::Relaxed);
        self.tail.store(tail.wrapping_add(1), Ordering::Release);
    }

    /// Forgets all events, which the driver destroyed with their context. Called under the
    /// context's lock.
    pub(super) fn forget_events(&self) {
        self.places.iter().for_each(|segment| segment.set_events(Event::NONE, Event::NONE));
        self.taken.store(self.head.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
impl Ring {
    /// Every event of the ring's places: pairs of beginning and end.
    pub(super) fn events(&self) -> Vec<(Event, Event)> {
        let both = self.places.iter().map(|segment| (segment.start(), segment.end()));
        both.filter(|(_, end)| *end != Event::NONE).collect()
    }

    /// The segment that was closed last.
    pub(super) fn newest(&self) -> Option<&Segment> {
        self.place(self.closed().wrapping_sub(1))
    }
}
