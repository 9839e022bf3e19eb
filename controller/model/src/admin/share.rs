//! How a tenant's share comes about, as `deepres explain --json` prints it.

use deepres_policy::entitlement::explain::Derivation;
use serde::{Deserialize, Serialize};

/// One term of a priority value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TermStatus {
    /// What it weighs; the weights add up to 1.
    pub weight: f64,
    /// From 0 to 1.
    pub value: f64,
    /// What it adds to the priority value.
    pub product: f64,
}

/// A priority value: the products of its terms added up.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PriorityStatus {
    /// The value, parts per million of the highest; at least a hundredth.
    pub value_ppm: u32,
    /// 0 without a deadline; grows as its slack runs out.
    pub urgency: TermStatus,
    /// The job's size, as declared or as seen.
    pub size: TermStatus,
    /// As granted.
    pub criticality: TermStatus,
    /// Time to the deadline, ns; 0 when it is over.
    pub deadline_in_ns: Option<u64>,
    /// GPU time that the job takes, as declared, ns.
    pub declared_size_ns: Option<u64>,
    /// GPU time that the job used so far, on all GPUs, ns.
    pub used_ns: u64,
    /// The part of the time that is not idle by the tenant's own choice, parts per million.
    pub demand_ppm: u32,
    /// The part of the GPU's memory that it holds, parts per million.
    pub memory_ppm: u32,
}

/// What guests may cost the others of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardStatus {
    /// As configured, parts per million of the time.
    pub max_harm_ppm: u32,
    /// Time that others waited for guests so far, ns.
    pub harm_ns: u64,
    /// What guests may still cost now, ns.
    pub credit_ns: u64,
    /// What has to be earned back before they may cost anything, ns.
    #[serde(default)]
    pub debt_ns: u64,
    /// How long a pause of the others is expected to last at least, ns; none: not known yet.
    pub foreseen_pause_ns: Option<u64>,
    /// How long each of the others can be kept waiting at a time, by its SLO, ns.
    pub tolerated_ns: u64,
}

/// How a tenant's share of one GPU comes about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShareStatus {
    /// The GPU's number.
    pub gpu: usize,
    /// The class that it is granted.
    pub class: String,
    /// Its priority value, which weighs where no share was asked for.
    pub priority: PriorityStatus,
    /// From what all ask for to its share.
    #[serde(flatten)]
    pub derivation: Derivation,
    /// The share that it had in the last second or so, parts per million.
    pub received_ppm: u32,
    /// Whether the time of its copies is in that.
    #[serde(default)]
    pub charge_copies: bool,
    /// GPU time that it is owed beside the tenant furthest behind, ns; negative if it had more.
    pub lag_ns: i64,
    /// How soon its requests are to be answered, ns: of that it goes before the others while it is not far ahead of its share.
    #[serde(default)]
    pub slo_ns: Option<u64>,
    /// What guests may cost the others, where there are guests.
    pub guard: Option<GuardStatus>,
    /// `closed`, `leased`, `once` (for one launch), `open`, `paused`, or `suspended` while its memory is off the GPU.
    pub gate: String,
}
