//! A closed segment: two events, what lies between them, and what the host's clock said meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::measure::Observed;
use crate::driver::calls::Event;

/// What a launch puts on its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A kernel.
    Kernel,
    /// A whole graph.
    Graph,
    /// A graph of which each launch may do something else: it has conditional nodes.
    VaryingGraph,
    /// A copy or a set, of which the call returns at once.
    Copy,
    /// A copy of which the call returns when it is complete.
    SyncCopy,
}

impl Kind {
    /// Whether it moves bytes instead of computing.
    pub fn is_copy(self) -> bool {
        matches!(self, Self::Copy | Self::SyncCopy)
    }

    /// Whether it is a graph.
    #[inline(always)]
    pub fn is_graph(self) -> bool {
        matches!(self, Self::Graph | Self::VaryingGraph)
    }

    /// One launch of it, as [`Launches`] are counted.
    #[inline(always)]
    pub fn one(self) -> u64 {
        if self.is_graph() { 1 | 1 << u32::BITS } else { 1 }
    }
}

/// Launches, as the difference of two counts of [`Kind::one`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launches(pub u64);

impl Launches {
    /// How many.
    pub fn all(self) -> u32 {
        self.0 as u32
    }

    /// How many of them are graphs.
    pub fn graphs(self) -> u32 {
        (self.0 >> u32::BITS) as u32
    }
}

/// What is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Identifies launches that take the same time: a hash of function and geometry, or of a graph, or of a copy's size.
    pub key: u64,
    /// What it is.
    pub kind: Kind,
}

/// What is written into a segment when it is closed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Contents {
    /// Launches in it.
    pub launches: u32,
    /// The launches' key if there is one launch, else 0.
    pub key: u64,
    /// What was added to the GPU's queue for it, ns.
    pub queued_ns: u64,
    /// What its launches are known to take, ns.
    pub expected_ns: u64,
    /// What copies among them are known to take, ns.
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
    /// Copies, not kernels.
    pub is_copy: bool,
    /// Its beginning was not recorded: it took what its launches are known to take.
    pub is_end_only: bool,
    /// An end could not be recorded: there is nothing to measure.
    pub is_lost: bool,
}

macro_rules! segment {
    ($($field:ident: $atomic:ident,)+) => {
        /// A place in a lane's ring. Its two events go from one that is through to one that is opened: nothing is created on the launch path once a lane is
        /// warm.
        #[derive(Debug, Default)]
        pub struct Segment {
            start: AtomicUsize,
            end: AtomicUsize,
            $($field: $atomic,)+
        }

        impl Segment {
            /// Writes what it holds; before it is given to the meter thread.
            pub fn fill(&self, contents: &Contents) {
                $(self.$field.store(contents.$field, Ordering::Relaxed);)+
            }

            /// What it holds; the meter thread's, after it was given.
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

    /// Gives it its events.
    pub fn set_events(&self, start: Event, end: Event) {
        self.start.store(start.0, Ordering::Relaxed);
        self.end.store(end.0, Ordering::Relaxed);
    }

    /// Takes its events away.
    pub fn take_events(&self) -> (Event, Event) {
        let take = |event: &AtomicUsize| Event(event.swap(Event::NONE.0, Ordering::Relaxed));
        (take(&self.start), take(&self.end))
    }

    /// Takes the end event away, leaving `spare` in its place.
    pub fn swap_end(&self, spare: Event) -> Event {
        Event(self.end.swap(spare.0, Ordering::Relaxed))
    }
}

impl Contents {
    /// What is known of it, but for what its neighbours tell.
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

    /// The key of its only launch.
    pub fn only_key(&self) -> Option<u64> {
        (self.key != 0).then_some(self.key)
    }
}
