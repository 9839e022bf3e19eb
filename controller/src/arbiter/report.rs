//! What an arbiter says of its GPU, its tenants and their sessions.

use crate::admin::{AccountStatus, SessionGpuStatus};
use crate::arbiter::SessionId;
use crate::policy::TenantId;
use crate::policy::lease::Phase;
use crate::policy::tuning::Tuning;

/// One GPU at one moment. Names are the registry's to add.
#[derive(Debug, Clone)]
pub struct Report {
    /// When.
    pub now_ns: u64,
    /// Who has it.
    pub phase: Phase,
    /// The holder's gate is open, not leased.
    pub open: bool,
    /// Time in which two tenants or more wanted the GPU, ns.
    pub contended_ns: u64,
    /// Time in which none did, ns.
    pub idle_ns: u64,
    /// Hand-offs.
    pub handoffs: u64,
    /// Their cost, of those of which it can be told: total, median and 99th percentile of the latest, ns.
    pub handoff_ns: [u64; 3],
    /// The time constants in force.
    pub tuning: Tuning,
    /// How alike tenants had what they were owed in the last second ([`super::account::fairness_ppm`]).
    pub fairness_ppm: Option<u32>,
    /// Accounts.
    pub tenants: Vec<(TenantId, AccountStatus)>,
    /// Sessions.
    pub sessions: Vec<(SessionId, SessionGpuStatus)>,
}
