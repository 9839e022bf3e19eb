//! The derivation of a tenant's share, as `deepres explain --json` prints it.

use super::status;
use deepres_policy::entitlement::explain::Derivation;
use serde::{Deserialize, Serialize};

status! {
    /// One term of a priority value.
    #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
    pub struct TermStatus {
        /// The term's weight. The weights of all terms add up to 1.
        pub weight: f64,
        /// The term's value, from 0 to 1.
        pub value: f64,
        /// The term's part of the priority value: weight times value.
        pub product: f64,
    }

    /// A priority value: the sum of the products of its terms.
    #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
    pub struct PriorityStatus {
        /// The value, parts per million of the highest value; at least a hundredth.
        pub value_ppm: u32,
        /// Urgency: 0 without a deadline. Urgency grows as the slack (the time to the deadline,
        /// less the GPU time still to do) becomes smaller.
        pub urgency: TermStatus,
        /// The job's size, as declared or as observed.
        pub size: TermStatus,
        /// The granted criticality.
        pub criticality: TermStatus,
        /// Time to the deadline, ns; 0 after it.
        pub deadline_in_ns: Option<u64>,
        /// The declared GPU time of the whole job, ns.
        pub declared_size_ns: Option<u64>,
        /// GPU time that the job has used so far on all GPUs, ns.
        pub used_ns: u64,
        /// The tenant's demand, parts per million: the part of the time in which the tenant would
        /// use the GPU if it had the GPU alone.
        pub demand_ppm: u32,
        /// The part of the GPU's memory that the tenant holds, parts per million.
        pub memory_ppm: u32,
    }

    /// The time that guests may cost the owners of a GPU.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    pub struct GuardStatus {
        /// The configured limit, parts per million of the time.
        pub max_harm_ppm: u32,
        /// Time that owners have waited for guests so far, ns.
        pub harm_ns: u64,
        /// Time that guests may still cost now, ns.
        pub credit_ns: u64,
        /// Time that guests must earn back before they may cost owners time again, ns.
        #[serde(default)]
        pub debt_ns: u64,
        /// The shortest of the owners' latest pauses, ns: the guard expects the next pause to last
        /// at least this long. `None` until the guard has seen four pauses.
        pub foreseen_pause_ns: Option<u64>,
        /// The longest single wait of an owner for a guest that all owners' SLOs allow, ns; 0 if an
        /// owner has no SLO.
        pub tolerated_ns: u64,
    }

    /// The derivation of a tenant's share of one GPU.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct ShareStatus {
        /// The GPU's number.
        pub gpu: usize,
        /// The granted class.
        pub class: String,
        /// The tenant's priority value, which counts if the tenant asked for no share.
        pub priority: PriorityStatus,
        /// The derivation of the share from all tenants' requests.
        #[serde(flatten)]
        pub derivation: Derivation,
        /// The tenant's share in about the last second, parts per million.
        pub received_ppm: u32,
        /// Whether `received_ppm` includes the time of copies.
        #[serde(default)]
        pub charge_copies: bool,
        /// The part of the SMs with which the tenant counts, parts per million; 0 for all SMs.
        /// Under MPS, the part is the tenant's `--sm`, or the width of its widest recent kernel.
        #[serde(default)]
        pub part_ppm: u32,
        /// Lag: GPU time that the tenant is owed, ns; negative if the tenant had more.
        pub lag_ns: i64,
        /// The tenant's SLO, ns. Because of the SLO, the tenant's requests for the GPU are due
        /// earlier.
        #[serde(default)]
        pub slo_ns: Option<u64>,
        /// The time that guests may cost the owners, if there are guests.
        pub guard: Option<GuardStatus>,
        /// The gate's state: `closed`, `leased`, `once` (for one launch), `open`, `paused`, or
        /// `suspended` while the tenant's memory is off the GPU.
        pub gate: String,
    }
}
