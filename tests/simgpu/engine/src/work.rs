//! What the caller hands over and gets back: identifiers, work items, tickets.

use crate::config::CopyKind;

/// A context on one GPU, owned by the process that created it. Valid in this host only; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContextId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// An in-order queue of one context. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// A slot in shared memory that keeps the completion time of its last record. Other processes of the same
/// host can look at it and wait for it (see [`EventId::to_bits`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl EventId {
    /// The event as a number that another process of the same host can turn back into the event.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << u32::BITS | u64::from(self.index)
    }

    /// The inverse of [`EventId::to_bits`]. Any number is safe: one that names no event is answered as a
    /// destroyed one.
    pub fn from_bits(bits: u64) -> Self {
        Self { index: bits as u32, generation: (bits >> u32::BITS) as u32 }
    }
}

/// One submitted work item: the stream and the item's place in it. Tickets of one stream complete in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The stream that the item is in.
    pub stream: StreamId,
    /// Its place in the stream, from 1. Place 0 is "before everything" and always complete.
    pub sequence: u64,
}

/// A work item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Occupies SMs for a while.
    Kernel {
        /// How long it takes when it gets all that it can use. The launch overhead of the configuration is
        /// added `kernels` times.
        duration_ns: u64,
        /// The part of all SMs that it can use, in parts per million, at most 1 000 000. See
        /// [`crate::Config::kernel_cost`].
        sm_ppm: u32,
        /// How many kernels this item stands for in the ground truth: 1, or the number of kernels of a graph
        /// (or of a straight run of them) that is submitted as one item.
        kernels: u32,
    },
    /// A kernel that spins on its SMs until all its peers have begun, each in a context of its own on whatever GPU, and only then goes on
    /// for its duration: what collective operations over several GPUs are made of. Having begun counts, not running at the same moment: what a kernel tells its
    /// peers lies in memory, and stays there while its context has no turn.
    Collective {
        /// How long it takes once its peers have come; the launch overhead is added.
        duration_ns: u64,
        /// As in [`Work::Kernel`].
        sm_ppm: u32,
        /// What the peers have in common, any number.
        name: u64,
        /// How many they are, itself among them, at most 128.
        peers: u32,
    },
    /// Moves bytes; takes [`crate::Config::copy_ns`] when no other copy of its kind is running on the
    /// GPU. Memsets are [`CopyKind::DeviceToDevice`].
    Copy {
        /// Which link or engine carries it.
        kind: CopyKind,
        /// How much.
        bytes: u64,
    },
    /// Nothing behind it starts before the host has called [`crate::Host::release`] with its ticket. For host
    /// functions (wait for the ticket before it, run the function, release) and for waiting on a value in
    /// memory.
    HostWait,
    /// Zero length. Its completion time is its ticket's; [`crate::Host::record`] makes one that also sets an
    /// event.
    Marker,
}

/// How a thread waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitPolicy {
    /// Sleep until shortly before the predicted completion, then spin (CU_CTX_SCHED_AUTO).
    #[default]
    Auto,
    /// Never give up the CPU (CU_CTX_SCHED_SPIN).
    Spin,
    /// Give way to other threads between looks (CU_CTX_SCHED_YIELD).
    Yield,
    /// Sleep until the predicted completion, no spinning (CU_CTX_SCHED_BLOCKING_SYNC).
    Block,
}

/// What an event says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventStatus {
    /// It has never been recorded.
    NeverRecorded,
    /// Its last record has not completed.
    Pending,
    /// Its last record completed.
    Done {
        /// When, in ns of the host's clock: the analytic completion time, not the time of this look.
        at_ns: u64,
    },
    /// There is no such event (any more).
    Gone,
}
