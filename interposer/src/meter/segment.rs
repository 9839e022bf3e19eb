//! A closed segment: its two events, its launches, and the host's times around them.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::measure::Observed;
use crate::driver::calls::Event;

/// The kind of work that a launch puts on its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A kernel, a memory set, or a copy within a device.
    Kernel,
    /// A kernel with an attribute of programmatic dependent launch. The kernel can begin before the
    /// kernel before it in its stream has ended. A marker between the two would end their overlap.
    Dependent,
    /// A graph without conditional nodes.
    Graph,
    /// A graph with conditional nodes. Different launches of such a graph can do different work.
    VaryingGraph,
    /// A copy whose call returns before the copy is complete.
    Copy,
    /// A copy whose call returns once the copy is complete.
    SyncCopy,
}

impl Kind {
    /// Returns whether the launch moves bytes instead of computing.
    pub fn is_copy(self) -> bool {
        matches!(self, Self::Copy | Self::SyncCopy)
    }

    /// Returns whether the launch is a single kernel, a set, or a copy within a device.
    pub fn is_kernel(self) -> bool {
        matches!(self, Self::Kernel | Self::Dependent)
    }

    /// Returns whether the launch is a graph.
    #[inline(always)]
    pub fn is_graph(self) -> bool {
        matches!(self, Self::Graph | Self::VaryingGraph)
    }

    /// Returns one launch of this kind as a summand for [`Launches`]. The low 32 bits count all
    /// launches, and the high 32 bits count graphs.
    #[inline(always)]
    pub fn one(self) -> u64 {
        if self.is_graph() { 1 | 1 << u32::BITS } else { 1 }
    }
}

/// A number of launches, as the difference of two sums of [`Kind::one`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launches(pub u64);

impl Launches {
    /// Returns the number of all launches, graphs included.
    pub fn all(self) -> u32 {
        self.0 as u32
    }

    /// Returns the number of graphs among the launches.
    pub fn graphs(self) -> u32 {
        (self.0 >> u32::BITS) as u32
    }
}

/// A launch, with the properties that the meter distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// The key. Launches with the same key take the same time. The key of a kernel is a hash of
    /// function and geometry. The key of a copy or a set is a hash of its size. The key of a graph
    /// is a hash of its handle and its count of changes.
    pub key: u64,
    /// The kind of work.
    pub kind: Kind,
}

/// The data that a thread writes into a segment when it closes the segment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Contents {
    /// The number of launches in the segment.
    pub launches: u32,
    /// If the segment has only one launch, the key of this launch ([`Launch::key`]). Otherwise 0.
    pub key: u64,
    /// GPU time that the segment adds to the GPU's estimated time in flight, ns.
    pub queued_ns: u64,
    /// Estimated time of the segment's launches, ns. 0 means that there is no estimate.
    pub expected_ns: u64,
    /// Estimated time of the copies that a segment of kernels contains, ns.
    pub copied_ns: u64,
    /// Host time before the thread recorded the start event, ns.
    pub asked_ns: u64,
    /// Host time after the thread recorded the start event, ns. Without a start event
    /// (`is_end_only`): host time before the segment's first launch.
    pub began_ns: u64,
    /// Host time after the first launch, ns.
    pub first_ns: u64,
    /// Host time after the last launch, before the thread recorded the end event, ns.
    pub closed_ns: u64,
    /// Host time after the thread recorded the end event, ns.
    pub ended_ns: u64,
    /// Whether the stream may have waited for another stream or the host between the launches.
    pub may_wait: bool,
    /// Whether the stream had no unfinished work when the segment began, and nothing made the
    /// stream wait.
    pub is_quiet: bool,
    /// Whether the segment holds copies instead of kernels.
    pub is_copy: bool,
    /// Whether the segment has no start event, only an end event. The meter thread then charges the
    /// launches by their estimates.
    pub is_end_only: bool,
    /// Whether the segment has no end event, so that the meter thread cannot measure it.
    pub is_lost: bool,
    /// The number of launches that the process had submitted along plans before the segment's first
    /// launch ([`crate::plan`]).
    pub planned_before: u64,
}

macro_rules! segment {
    ($($field:ident: $atomic:ident,)+) => {
        /// A place in a lane's ring. Once the meter thread has processed the place's segment, the
        /// two events of the segment move to the next segment that the lane opens. So a lane that
        /// has run for a while creates no events on the launch path.
        #[derive(Debug, Default)]
        pub struct Segment {
            start: AtomicUsize,
            end: AtomicUsize,
            $($field: $atomic,)+
        }

        impl Segment {
            /// Writes the segment's data, before the ring passes the segment to the meter thread.
            pub fn fill(&self, contents: &Contents) {
                $(self.$field.store(contents.$field, Ordering::Relaxed);)+
            }

            /// Returns the segment's data. Only a thread that got the segment from the ring calls
            /// this.
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
    planned_before: AtomicU64,
}

impl Segment {
    /// Returns the event before the first launch.
    pub fn start(&self) -> Event {
        Event(self.start.load(Ordering::Relaxed))
    }

    /// Returns the event after the last launch.
    pub fn end(&self) -> Event {
        Event(self.end.load(Ordering::Relaxed))
    }

    /// Sets the segment's start event and end event.
    pub fn set_events(&self, start: Event, end: Event) {
        self.start.store(start.0, Ordering::Relaxed);
        self.end.store(end.0, Ordering::Relaxed);
    }

    /// Takes the two events away from the segment, and returns them: start and end.
    pub fn take_events(&self) -> (Event, Event) {
        let take = |event: &AtomicUsize| Event(event.swap(Event::NONE.0, Ordering::Relaxed));
        (take(&self.start), take(&self.end))
    }

    /// Replaces the end event by `spare`. Returns the former end event.
    pub fn swap_end(&self, spare: Event) -> Event {
        Event(self.end.swap(spare.0, Ordering::Relaxed))
    }
}

impl Contents {
    /// Returns the segment's own observations. The arguments are the times of its events, ns. The
    /// values that depend on neighbouring segments stay at their defaults.
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

    /// Returns the key of the segment's launch, if the segment has only one launch.
    pub fn only_key(&self) -> Option<u64> {
        (self.key != 0).then_some(self.key)
    }
}
