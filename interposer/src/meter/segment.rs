//! A closed segment: its two events, its launches, and the host times that belong to them.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::measure::Observed;
use crate::driver::calls::Event;

/// The kind of work that a launch puts on its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A kernel.
    Kernel,
    /// A graph.
    Graph,
    /// A graph with conditional nodes: each launch of it may do something else.
    VaryingGraph,
    /// A copy or a memory set whose call returns at once.
    Copy,
    /// A copy whose call returns when the copy is complete.
    SyncCopy,
}

impl Kind {
    /// Whether the launch moves bytes instead of computing.
    pub fn is_copy(self) -> bool {
        matches!(self, Self::Copy | Self::SyncCopy)
    }

    /// Whether the launch is a graph.
    #[inline(always)]
    pub fn is_graph(self) -> bool {
        matches!(self, Self::Graph | Self::VaryingGraph)
    }

    /// One launch of this kind, in the form in which [`Launches`] are counted: all launches in the
    /// low 32 bits, graphs in the high 32 bits.
    #[inline(always)]
    pub fn one(self) -> u64 {
        if self.is_graph() { 1 | 1 << u32::BITS } else { 1 }
    }
}

/// Launches, as the difference of two counts of [`Kind::one`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launches(pub u64);

impl Launches {
    /// Number of launches.
    pub fn all(self) -> u32 {
        self.0 as u32
    }

    /// Number of graphs among the launches.
    pub fn graphs(self) -> u32 {
        (self.0 >> u32::BITS) as u32
    }
}

/// A launch, as far as metering distinguishes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Identifies launches that take the same time: a hash of function and geometry, of a graph, or
    /// of the size of a copy.
    pub key: u64,
    /// The kind of work.
    pub kind: Kind,
}

/// The data that is written into a segment when it is closed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Contents {
    /// Launches in the segment.
    pub launches: u32,
    /// The key of the launch if there is only one, else 0.
    pub key: u64,
    /// Time that was added to the GPU's queue for the segment, ns.
    pub queued_ns: u64,
    /// Estimated time of its launches, ns.
    pub expected_ns: u64,
    /// Estimated time of the copies that it took in, ns.
    pub copied_ns: u64,
    /// See [`Observed`].
    pub asked_ns: u64,
    /// See [`Observed`].
    pub began_ns: u64,
    /// See [`Observed`].
    pub first_ns: u64,
    /// See [`Observed`].
    pub closed_ns: u64,
    /// See [`Observed`].
    pub ended_ns: u64,
    /// See [`Observed`].
    pub may_wait: bool,
    /// See [`Observed`].
    pub is_quiet: bool,
    /// Whether it holds copies instead of kernels.
    pub is_copy: bool,
    /// Whether only the segment's end was recorded. The launches are then charged by their
    /// estimates.
    pub is_end_only: bool,
    /// Whether no end event could be recorded, so that there is nothing to measure.
    pub is_lost: bool,
}

macro_rules! segment {
    ($($field:ident: $atomic:ident,)+) => {
        /// A place in a lane's ring. The two events of a place move from a processed segment to the
        /// next one that is opened. So a warm lane creates no events on the launch path.
        #[derive(Debug, Default)]
        pub struct Segment {
            start: AtomicUsize,
            end: AtomicUsize,
            $($field: $atomic,)+
        }

        impl Segment {
            /// Writes the segment's data, before the meter thread gets the segment.
            pub fn fill(&self, contents: &Contents) {
                $(self.$field.store(contents.$field, Ordering::Relaxed);)+
            }

            /// Reads the segment's data. Called by the meter thread after it got the segment.
            pub fn contents(&self) -> Contents {
                Contents { $($field: self.$field.load(Ordering::Relaxed),)+ }
            }
        }
    };
}

segment! {
    launches: AtomicU32,
    key: AtomicU64,
    queued_ns: AtomicU64,
    expected_ns: AtomicU64,
    copied_ns: AtomicU64,
    asked_ns: AtomicU64,
    began_ns: AtomicU64,
    first_ns: AtomicU64,
    closed_ns: AtomicU64,
    ended_ns: AtomicU64,
    may_wait: AtomicBool,
    is_quiet: AtomicBool,
    is_copy: AtomicBool,
    is_end_only: AtomicBool,
    is_lost: AtomicBool,
}

impl Segment {
    /// The event before the first launch.
    pub fn start(&self) -> Event {
        Event(self.start.load(Ordering::Relaxed))
    }

    /// The event after the last one.
    pub fn end(&self) -> Event {
        Event(self.end.load(Ordering::Relaxed))
    }

    /// Sets the two events.
    pub fn set_events(&self, start: Event, end: Event) {
        self.start.store(start.0, Ordering::Relaxed);
        self.end.store(end.0, Ordering::Relaxed);
    }

    /// Takes the two events away.
    pub fn take_events(&self) -> (Event, Event) {
        let take = |event: &AtomicUsize| Event(event.swap(Event::NONE.0, Ordering::Relaxed));
        (take(&self.start), take(&self.end))
    }

    /// Takes the end event away and leaves `spare` in its place.
    pub fn swap_end(&self, spare: Event) -> Event {
        Event(self.end.swap(spare.0, Ordering::Relaxed))
    }
}

impl Contents {
    /// The segment's own observations. The values that depend on neighbouring segments stay at
    /// their defaults.
    pub fn observed(&self, (start_ns, end_ns): (i64, i64)) -> Observed {
        let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        Observed {
            start_ns,
            end_ns,
            asked_ns: signed(self.asked_ns),
            began_ns: signed(self.began_ns),
            first_ns: signed(self.first_ns),
            closed_ns: signed(self.closed_ns),
            ended_ns: signed(self.ended_ns),
            expected_ns: signed(self.expected_ns),
            may_wait: self.may_wait,
            is_quiet: self.is_quiet,
            is_alone: self.launches == 1,
            is_copy: self.is_copy,
            ..Observed::default()
        }
    }

    /// The key of its only launch, if there is only one.
    pub fn only_key(&self) -> Option<u64> {
        (self.key != 0).then_some(self.key)
    }
}
