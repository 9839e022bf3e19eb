//! What an arbiter remembers over the daemon's death, and how a process's meter goes on from there.
//!
//! A meter page counts the process's life: over a reconnection the process brings its counters into the new page. Up to where it was
//! charged before, its **baseline**, is in the state. What lies between the two is charged once, bounded by the time that passed.

use super::account::Totals;
use deepres_abi::meter::{Reading, WAIT_BUCKETS};
use deepres_model::process::ProcessKey;
use deepres_policy::TenantId;
use serde::{Deserialize, Serialize};

/// A tenant's account on one GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedAccount {
    /// Its totals.
    #[serde(flatten)]
    pub totals: Totals,
    /// When the tenant first appeared, ns of `CLOCK_MONOTONIC`.
    pub since_ns: u64,
    /// Wall time that may still be charged, ns.
    pub uncharged_ns: u64,
    /// The longest kernel or graph, ns.
    pub longest_ns: u64,
    /// The share that it was owed, parts per million.
    pub entitled_ppm: u32,
    /// GPU time that it is owed, ns; negative if it had more.
    pub lag_ns: i64,
    /// The last refused allocation: number of the call, with [`deepres_abi::meter::REFUSED_BY_DRIVER`], and bytes.
    pub last_refusal: Option<(u32, u64)>,
}

/// Up to where a process was charged: the counters of its meter that go into accounts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
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

/// Everything that an arbiter wants remembered.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// When: ns of `CLOCK_MONOTONIC`.
    pub now_ns: u64,
    /// Time in which two tenants or more wanted the GPU, ns.
    pub contended_ns: u64,
    /// Time in which none did, ns.
    pub idle_ns: u64,
    /// Hand-offs.
    pub handoffs: u64,
    /// What those cost of which it could be told, ns.
    pub handoff_total_ns: u64,
    /// Accounts.
    pub accounts: Vec<(TenantId, SavedAccount)>,
    /// Up to where processes are charged: those that are here (as of now), and those that may come back.
    pub meters: Vec<(TenantId, ProcessKey, SavedMeter, Option<u64>)>,
}

/// Up to where a process was charged, and when that was.
#[derive(Debug, Clone, Copy)]
pub struct Baseline {
    /// The counters.
    pub meter: SavedMeter,
    /// When: ns of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
}

/// A session whose process had sessions before. Until the process has brought its counters into the page, none of them is believed.
#[derive(Debug, Clone, Copy)]
pub struct Awaited {
    /// From where it is charged. `None`: nothing is known of the time before, and nothing of it is charged.
    pub from: Option<Baseline>,
    /// When it is believed as it is, brought or not: who never brings its counters gains nothing by it.
    pub until_ns: u64,
}
