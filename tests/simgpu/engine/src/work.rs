//! Arguments and results of the engine: identifiers, work items, tickets.

use crate::config::CopyKind;

/// A context on one GPU, which belongs to the process that created it. The id is valid only in this
/// host, and the engine never reuses the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContextId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// A stream: an in-order queue of one context. The engine never reuses the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// An event: a slot in shared memory that keeps the completion time of its last record. Other
/// processes of the same host can read the slot and wait for the event (see [`EventId::to_bits`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl EventId {
    /// Returns the event as a number. Another process of the same host can convert the number back
    /// into the event.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << u32::BITS | u64::from(self.index)
    }

    /// Returns the event of a number of [`EventId::to_bits`]. Any number is safe: the engine treats
    /// a number of no event as a destroyed event.
    pub fn from_bits(bits: u64) -> Self {
        Self { index: bits as u32, generation: (bits >> u32::BITS) as u32 }
    }
}

/// One submitted work item: its stream and its place in the stream. Tickets of one stream complete
/// in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The stream of the item.
    pub stream: StreamId,
    /// The item's place in the stream, from 1. Place 0 stands before all items and is always
    /// complete.
    pub sequence: u64,
}

/// A work item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A kernel, which occupies SMs for a while.
    Kernel {
        /// Time of the kernel when it gets all SMs that it can use. The engine adds the
        /// configuration's launch overhead `kernels` times.
        duration_ns: u64,
        /// The part of all SMs that the kernel can use, in parts per million, at most 1 000 000.
        /// See [`crate::Config::kernel_cost`].
        sm_ppm: u32,
        /// Number of kernels that this item stands for in the ground truth. The number is above 1
        /// if a graph, or a straight run of its kernels, is one item.
        kernels: u32,
    },
    /// A kernel that spins on its SMs until all peers have begun, and then takes its time. Each
    /// peer is in a context of its own, on any GPU. Collective operations over several GPUs consist
    /// of such kernels. The peers need not run at the same moment, because a kernel's message to
    /// its peers stays in memory while its context has no turn.
    Collective {
        /// Time of the kernel once its peers have begun. The engine adds the launch overhead.
        duration_ns: u64,
        /// The part of all SMs that the kernel can use, as in [`Work::Kernel`].
        sm_ppm: u32,
        /// A number common to all peers, freely chosen.
        name: u64,
        /// Number of kernels that meet, this one included, at most 128.
        peers: u32,
    },
    /// Moves bytes. Takes [`crate::Config::copy_ns`] when no other copy of its kind runs on the
    /// GPU. Memsets are [`CopyKind::DeviceToDevice`]. Work of that kind runs on all SMs, and counts
    /// as one kernel in the ground truth.
    Copy {
        /// The link or engine that carries the copy.
        kind: CopyKind,
        /// Number of bytes.
        bytes: u64,
    },
    /// Holds back all later items until the host calls [`crate::Host::release`] with this item's
    /// ticket. The driver submits such items for host functions and for waits on a value in memory.
    /// For a host function, the driver waits for the item before, runs the function, and releases
    /// the item.
    HostWait,
    /// An item of zero length. [`crate::Host::record`] makes a marker that also sets an event.
    Marker,
}

/// The way in which a thread waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitPolicy {
    /// Sleep until shortly before the predicted completion, then spin (CU_CTX_SCHED_AUTO).
    #[default]
    Auto,
    /// Never give up the CPU (CU_CTX_SCHED_SPIN).
    Spin,
    /// Give way to other threads between looks (CU_CTX_SCHED_YIELD).
    Yield,
    /// Sleep until the predicted completion, without spinning (CU_CTX_SCHED_BLOCKING_SYNC).
    Block,
}

/// Status of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventStatus {
    /// The event has never been recorded.
    NeverRecorded,
    /// The last record has not completed.
    Pending,
    /// The last record has completed.
    Done {
        /// Completion time, ns of the host's clock. The time is exact, and does not depend on the
        /// time of the query.
        at_ns: u64,
    },
    /// The event does not exist, or no longer exists.
    Gone,
}
