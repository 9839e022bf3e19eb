//! The state of an arbiter that the daemon saves, and the baselines from which the next daemon
//! charges processes.
//!
//! A meter counts over the life of the process: after a reconnection the process carries its
//! counters into the new page. The saved state contains a **baseline** for each process: the
//! counters up to which the core charged the process. The next daemon charges the difference
//! between baseline and counters once, bounded by the time that passed.

use super::account::Totals;
use super::{ProcessId, TenantSeat};
use crate::TenantId;
use alloc::vec::Vec;
use deepres_abi::meter::{Reading, WAIT_BUCKETS};

/// The saved account of a tenant on one GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct SavedAccount {
    /// The sums of the tenant's GPU time, waits, launches and refusals.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub totals: Totals,
    /// The time at which the tenant first appeared, ns of `CLOCK_MONOTONIC`.
    pub since_ns: u64,
    /// Wall time that the account may still charge for work in flight, ns.
    pub uncharged_ns: u64,
    /// GPU time that the account subtracts from its next charges, ns.
    pub overcharged_ns: u64,
    /// The longest kernel or graph, ns.
    pub longest_ns: u64,
    /// The entitlement, parts per million.
    pub entitled_ppm: u32,
    /// The tenant's lag, ns: GPU time that the tenant is owed; negative if the tenant had more than
    /// it was owed.
    pub lag_ns: i64,
    /// The last refused allocation: the number of the call and the bytes. If the driver refused,
    /// the number contains [`deepres_abi::meter::REFUSED_BY_DRIVER`].
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
    /// Number of waits at the gate.
    pub waits: u64,
    /// Number of kernels launched one by one.
    pub kernel_launches: u64,
    /// Number of launched graphs.
    pub graph_launches: u64,
    /// Number of refused allocations.
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

/// The counters of a GPU, which the daemon saves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct Counters {
    /// Time in which two or more tenants wanted the GPU, ns.
    pub contended_ns: u64,
    /// Time in which no tenant wanted the GPU, ns.
    pub idle_ns: u64,
    /// Number of hand-offs.
    pub handoffs: u64,
    /// The sum of the known costs of hand-offs, ns.
    pub handoff_total_ns: u64,
    /// Number of the arbiter's turns.
    pub turns: u64,
    /// The sum of the times that the turns took, ns.
    pub turn_total_ns: u64,
}

/// The state of a GPU that the daemon is to save.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// When the meters were last read, ns of `CLOCK_MONOTONIC`.
    pub now_ns: u64,
    /// The GPU's counters.
    pub counters: Counters,
    /// The accounts of the tenants.
    pub accounts: Vec<(TenantId, SavedAccount)>,
    /// The points up to which the core charged processes, with their times in ns. The time is
    /// `None` for a connected process that was charged up to `now_ns`.
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
    /// For each process that can come back: the point up to which the previous daemon charged it.
    pub baselines: Vec<(TenantId, ProcessId, Baseline)>,
}

/// The point up to which the core charged a process.
#[derive(Debug, Clone, Copy)]
pub struct Baseline {
    /// The counters of the process's meter.
    pub meter: SavedMeter,
    /// The time of the reading of these counters, ns of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
}

/// The wait of a session for its counters, because its process had earlier sessions. The core uses
/// no counter before the process has carried its counters into the page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Awaited {
    /// The point from which the core charges the process. `None` if the point is unknown; then the
    /// core does not charge the use before the process came back.
    pub from: Option<Baseline>,
    /// The moment from which the core uses the counters in any case, ns. So a process gains nothing
    /// if it does not carry its earlier counters over.
    pub until_ns: u64,
}
