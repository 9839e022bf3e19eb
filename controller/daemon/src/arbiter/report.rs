//! The arbiter's report on its GPU, its tenants and their sessions.

use super::SessionId;
use super::account::{MAX_HELD_BYTES, MAX_WAITERS, fairness_ppm};
use super::owed::gate_name;
use super::tenant::{Session, Tenant};
use super::worker::Worker;
use deepres_abi::driver::ApiId;
use deepres_abi::ledger::LedgerGpu;
use deepres_abi::meter::{MemoryKind, REFUSED_BY_DRIVER};
use deepres_model::admin::{AccountStatus, RefusalStatus, RefusedBy, SessionGpuStatus};
use deepres_policy::TenantId;
use deepres_policy::entitlement::Rule;
use deepres_policy::lease::{Grant, Phase};
use deepres_policy::tuning::Tuning;
use std::collections::BTreeMap;

/// The state of one GPU at one moment. The registry adds the names.
#[derive(Debug, Clone)]
pub struct Report {
    /// The moment, ns of `CLOCK_MONOTONIC`.
    pub now_ns: u64,
    /// The tenant that has the GPU, and whether it drains.
    pub phase: Phase,
    /// Whether the holder's gate is open instead of leased.
    pub open: bool,
    /// Time in which two or more tenants wanted the GPU, ns.
    pub contended_ns: u64,
    /// Time in which no tenant wanted the GPU, ns.
    pub idle_ns: u64,
    /// Number of hand-offs.
    pub handoffs: u64,
    /// The cost of the hand-offs whose cost is known, ns: total, and median and 99th percentile of
    /// the latest.
    pub handoff_ns: [u64; 3],
    /// The time constants in force.
    pub tuning: Tuning,
    /// How equally tenants got what they were owed in the last second
    /// ([`super::account::fairness_ppm`]).
    pub fairness_ppm: Option<u32>,
    /// The accounts of the tenants.
    pub tenants: Vec<(TenantId, AccountStatus)>,
    /// The states of the sessions.
    pub sessions: Vec<(SessionId, SessionGpuStatus)>,
}

impl Worker {
    /// Returns the state at the last reading.
    pub fn report(&self) -> Report {
        let holder = match self.scheduler.phase() {
            Phase::Held(tenant) => Some(tenant),
            Phase::Free | Phase::Draining(_) => None,
        };
        let accounts: BTreeMap<_, _> =
            self.tenants.iter().map(|(id, tenant)| (*id, self.account_status(*id, tenant))).collect();
        Report {
            now_ns: self.looked_ns,
            phase: self.scheduler.phase(),
            open: holder.is_some_and(|holder| self.scheduler.grant(holder) == Grant::Open),
            contended_ns: self.contended_ns,
            idle_ns: self.idle_ns,
            handoffs: self.handoffs,
            handoff_ns: [self.latency.total_ns, self.latency.quantile_ns(50), self.latency.quantile_ns(99)],
            tuning: self.tuning,
            fairness_ppm: fairness_ppm(
                self.tenants.values().filter_map(|tenant| tenant.account.recent_service(self.looked_ns)),
            ),
            sessions: self
                .tenants
                .iter()
                .filter_map(|(id, tenant)| Some((tenant, accounts.get(id)?)))
                .flat_map(|(tenant, account)| {
                    tenant.sessions.iter().map(move |(id, session)| {
                        let overdue_ns =
                            session.overdue.overdue_ns(tenant.account.longest_ns, self.looked_ns);
                        (
                            *id,
                            SessionGpuStatus {
                                overdue_ns,
                                ..session_status(self.gpu, session, ledger(tenant, self.gpu), account)
                            },
                        )
                    })
                })
                .collect(),
            tenants: accounts.into_iter().collect(),
        }
    }

    fn account_status(&self, id: TenantId, tenant: &Tenant) -> AccountStatus {
        let totals = tenant.account.totals;
        let mut by_kind = [0u64; MemoryKind::COUNT];
        let ledger = ledger(tenant, self.gpu);
        for session in tenant.sessions.values() {
            for (sum, bytes) in by_kind.iter_mut().zip(session.held_bytes(self.gpu, ledger)) {
                *sum = sum.saturating_add(bytes);
            }
        }
        let beyond = tenant.sessions.values().map(|session| session.beyond_bytes(self.gpu));
        let (oversubscribed_bytes, oversubscribed_brought_bytes) = beyond
            .fold((0, 0), |sum: (u64, u64), one| (sum.0.saturating_add(one.0), sum.1.saturating_add(one.1)));
        let held = |kind: MemoryKind| by_kind[kind as usize];
        let kinds = MemoryKind::ALL.into_iter().map(|kind| (kind.name().to_owned(), held(kind)));
        let memory_bytes = ledger.map_or(0, |ledger| ledger.held_bytes()).min(MAX_HELD_BYTES);
        AccountStatus {
            gpu: self.gpu,
            entitled_ppm: Some(tenant.entitled_ppm),
            is_lent: tenant.is_lent,
            entitled_by: tenant.rule.map_or("", rule_name).to_owned(),
            recent_share_ppm: tenant.account.recent_share_ppm(self.looked_ns),
            total_share_ppm: tenant.account.total_share_ppm(self.looked_ns),
            gpu_ns: totals.gpu_ns,
            copy_ns: totals.copy_ns,
            wait_ns: totals.wait_ns,
            waits: totals.waits,
            kernel_launches: totals.kernel_launches,
            graph_launches: totals.graph_launches,
            wanted_ns: totals.wanted_ns,
            contended_ns: totals.contended_ns,
            owed_ns: totals.owed_ns,
            had_ns: totals.had_ns,
            waits_by_length: totals.waits_by_length,
            lag_ns: self.scheduler.lag_ns(id),
            memory_bytes,
            memory_peak_bytes: ledger.map_or(0, |ledger| {
                ledger.note_peak(memory_bytes);
                ledger.peak_bytes().min(MAX_HELD_BYTES)
            }),
            memory_by_kind: kinds
                .map(|(kind, bytes)| (kind, bytes.min(memory_bytes)))
                .filter(|(_, bytes)| *bytes > 0)
                .collect(),
            oversubscribed_bytes: oversubscribed_bytes.min(MAX_HELD_BYTES),
            oversubscribed_brought_bytes: oversubscribed_brought_bytes
                .min(oversubscribed_bytes)
                .min(MAX_HELD_BYTES),
            needed_bytes: ledger.map_or(0, |ledger| ledger.needed_bytes()).min(MAX_HELD_BYTES),
            kinds_drift_bytes: drift(memory_bytes, MemoryKind::ALL.into_iter().map(held)),
            nvml_bytes: None,
            drift_bytes: None,
            ceiling_bytes: None,
            kept_bytes: None,
            refusals: totals.refusals,
            last_refusal: tenant.account.last_refusal.map(|(api, bytes)| RefusalStatus {
                api: ApiId::from_index((api & !REFUSED_BY_DRIVER) as usize)
                    .map(|api| api.symbol().to_owned()),
                bytes,
                by: if api & REFUSED_BY_DRIVER == 0 { RefusedBy::Limit } else { RefusedBy::Driver },
            }),
            gate: Some(gate_name(self.scheduler.grant(id)).to_owned()),
        }
    }
}

/// Returns the tenant's ledger for a GPU.
fn ledger(tenant: &Tenant, gpu: usize) -> Option<&LedgerGpu> {
    tenant.seat.ledger.page().gpu(gpu)
}

/// Returns how much more is held than the kinds add up to, bytes.
fn drift(held_bytes: u64, kinds: impl Iterator<Item = u64>) -> i64 {
    let told_bytes = kinds.fold(0, u64::saturating_add).min(MAX_HELD_BYTES);
    // Both are below 2⁶³.
    held_bytes as i64 - told_bytes as i64
}

/// Returns the figures that a session reports. Each is at most the figure of the tenant's account,
/// which is bounded by what is possible.
fn session_status(
    gpu: usize,
    session: &Session,
    ledger: Option<&LedgerGpu>,
    account: &AccountStatus,
) -> SessionGpuStatus {
    let meter = session.last;
    let held_bytes = session.held_bytes(gpu, ledger).into_iter().fold(0, u64::saturating_add);
    SessionGpuStatus {
        gpu: account.gpu,
        in_flight: meter.in_flight,
        waiters: meter.waiters.min(MAX_WAITERS as u32),
        gpu_ns: meter.compute_ns.min(account.gpu_ns),
        kernel_launches: meter.kernel_launches.min(account.kernel_launches),
        graph_launches: meter.graph_launches.min(account.graph_launches),
        wait_ns: meter.wait_ns.min(account.wait_ns),
        memory_bytes: held_bytes.min(account.memory_bytes),
        overdue_ns: None,
    }
}

/// Returns the rule's name in the status.
fn rule_name(rule: Rule) -> &'static str {
    match rule {
        Rule::Guaranteed => "guaranteed",
        Rule::Asked => "asked",
        Rule::Shrunk => "shrunk",
        Rule::Rest => "rest",
        Rule::Capped => "capped",
        Rule::Gaps => "gaps",
    }
}
