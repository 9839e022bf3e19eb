//! The state that outlives an arbiter, and the point from which a process's meter is charged
//! afterwards.
//!
//! A meter counts over the life of the process: after a reconnection the process carries its
//! counters into the new page. The saved state contains each process's **baseline**, the counters
//! up to which it was charged. The difference between baseline and counters is charged once,
//! bounded by the time that passed.

use super::account::Totals;
use super::{ProcessId, TenantSeat};
use crate::TenantId;
use alloc::vec::Vec;
use deepres_abi::meter::{Reading, WAIT_BUCKETS};

/// The account of a tenant on one GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct SavedAccount {
    /// The totals.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub totals: Totals,
    /// When the tenant first appeared, ns of `CLOCK_MONOTONIC`.
    pub since_ns: u64,
    /// Wall time that may still be charged, ns.
    pub uncharged_ns: u64,
    /// The longest kernel or graph, ns.
    pub longest_ns: u64,
    /// The entitlement, parts per million.
    pub entitled_ppm: u32,
    /// The tenant's lag, ns: GPU time that it is owed; negative if it had more than it was owed.
    pub lag_ns: i64,
    /// The last refused allocation: the number of the call, with
    /// [`deepres_abi::meter::REFUSED_BY_DRIVER`], and bytes.
    pub last_refusal: Option<(u32, u64)>,
}

/// The counters of a process's meter up to which the process was charged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct SavedMeter {
    /// GPU time of kernels and graphs, ns.
    pub compute_ns: u64,
    /// GPU time of copies, ns.
    pub copy_ns: u64,
    /// Time waited at the gate, ns.
    pub wait_ns: u64,
    /// Waits at the gate.
    pub waits: u64,
    /// Kernels launched one by one.
    pub kernel_launches: u64,
    /// Graphs launched.
    pub graph_launches: u64,
    /// Allocations refused.
    pub refusals: u64,
    /// Waits at the gate by their length, each modulo 2³².
    pub waits_by_length: [u32; WAIT_BUCKETS],
}

impl From<Reading> for SavedMeter {
    fn from(reading: Reading) -> Self {
        Self {
            compute_ns: reading.compute_ns,
            copy_ns: reading.copy_ns,
            wait_ns: reading.wait_ns,
            waits: reading.waits,
            kernel_launches: reading.kernel_launches,
            graph_launches: reading.graph_launches,
            refusals: reading.refusals,
            waits_by_length: reading.waits_by_length,
        }
    }
}

impl From<SavedMeter> for Reading {
    fn from(saved: SavedMeter) -> Self {
        Self {
            compute_ns: saved.compute_ns,
            copy_ns: saved.copy_ns,
            wait_ns: saved.wait_ns,
            waits: saved.waits,
            kernel_launches: saved.kernel_launches,
            graph_launches: saved.graph_launches,
            refusals: saved.refusals,
            waits_by_length: saved.waits_by_length,
            ..Self::default()
        }
    }
}

/// The counters of a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Time in which two or more tenants wanted the GPU, ns.
    pub contended_ns: u64,
    /// Time in which no tenant wanted the GPU, ns.
    pub idle_ns: u64,
    /// Number of hand-offs.
    pub handoffs: u64,
    /// The cost of the hand-offs whose cost is known, ns.
    pub handoff_total_ns: u64,
}

/// The state of a GPU that is to be saved.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// When the meters were last read, ns of `CLOCK_MONOTONIC`.
    pub now_ns: u64,
    /// The GPU's counters.
    pub counters: Counters,
    /// The accounts of the tenants.
    pub accounts: Vec<(TenantId, SavedAccount)>,
    /// The points up to which processes were charged, with their times in ns. The time is `None`
    /// for a connected process: it was charged up to `now_ns`. Others may come back.
    pub meters: Vec<(TenantId, ProcessId, SavedMeter, Option<u64>)>,
}

/// The saved state of a GPU that a new arbiter takes over.
#[derive(Debug, Default)]
pub struct Restored {
    /// When the previous daemon saved the state, ns of `CLOCK_MONOTONIC`.
    pub saved_ns: u64,
    /// The GPU's counters.
    pub counters: Counters,
    /// The tenants with their accounts on this GPU.
    pub accounts: Vec<(TenantSeat, SavedAccount)>,
    /// For each process that may come back: the point up to which it was charged.
    pub baselines: Vec<(TenantId, ProcessId, Baseline)>,
}

/// The point up to which a process was charged.
#[derive(Debug, Clone, Copy)]
pub struct Baseline {
    /// The counters.
    pub meter: SavedMeter,
    /// When that was, ns of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
}

/// The wait of a session for its counters, because its process had earlier sessions. No counter is
/// used until the process has carried its counters into the page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Awaited {
    /// The point from which the process is charged. `None`: the point is unknown, and the time
    /// before is not charged.
    pub from: Option<Baseline>,
    /// When the counters are used even if the process did not carry its earlier ones over, ns. So a
    /// process gains nothing by not doing so.
    pub until_ns: u64,
}
