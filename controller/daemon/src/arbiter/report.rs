//! The arbiter's report on its GPU, its tenants and their sessions.

use super::explain::gate_name;
use super::worker::Worker;
use super::{SessionId, TenantSeat};
use deepres_abi::driver::ApiId;
use deepres_abi::ledger::LedgerGpu;
use deepres_abi::meter::{MemoryKind, REFUSED_BY_DRIVER, Reading};
use deepres_model::admin::{
    AccountStatus, LateStatus, RefusalStatus, RefusedBy, RequestStatus, SessionGpuStatus,
};
use deepres_policy::TenantId;
use deepres_policy::arbiter::account::{MAX_HELD_BYTES, MAX_WAITERS, fairness_ppm};
use deepres_policy::arbiter::{Requests, Served, Tenant};
use deepres_policy::entitlement::Rule;
use deepres_policy::lease::{Grant, Phase};
use deepres_policy::tuning::Tuning;
use std::collections::BTreeMap;

/// The precision of a rate in the status: a multiple of one divided by this number.
const RATE_PARTS: f64 = 100.0;

/// The state of one GPU at one moment. The registry adds the names.
#[derive(Debug, Clone)]
pub struct Report {
    /// The moment, ns of `CLOCK_MONOTONIC`.
    pub now_ns: u64,
    /// The phase of the GPU: the tenant that has the GPU, and whether the GPU drains.
    pub phase: Phase,
    /// Whether the holder's gate is open instead of leased.
    pub open: bool,
    /// Time in which two or more tenants wanted the GPU, ns.
    pub contended_ns: u64,
    /// Time in which no tenant wanted the GPU, ns.
    pub idle_ns: u64,
    /// Number of hand-offs.
    pub handoffs: u64,
    /// The known costs of hand-offs, ns: the total, and the median and the 99th percentile of the
    /// latest hand-offs.
    pub handoff_ns: [u64; 3],
    /// The number of the arbiter's turns.
    pub turns: u64,
    /// The time that all the arbiter's turns took, ns.
    pub turn_total_ns: u64,
    /// The 99th percentile of the times that the arbiter's latest turns took, ns.
    pub turn_p99_ns: u64,
    /// The time constants in force.
    pub tuning: Tuning,
    /// Jain's index of the last second, parts per million: how equally the GPU time of tenants
    /// matched their entitlements ([`deepres_policy::arbiter::account::fairness_ppm`]).
    pub fairness_ppm: Option<u32>,
    /// The accounts of the tenants.
    pub tenants: Vec<(TenantId, AccountStatus)>,
    /// The late requests of tenants with an SLO: the waiting tenant, the tenant that had the GPU,
    /// and a request's mean wait, ns.
    pub late_waits: Vec<(TenantId, TenantId, u64)>,
    /// The states of the sessions.
    pub sessions: Vec<(SessionId, SessionGpuStatus)>,
}

impl Worker {
    /// Returns the state at the last reading.
    pub fn report(&self) -> Report {
        let (core, scheduler) = (&self.core, self.core.scheduler());
        let now_ns = core.looked_ns();
        let holder = match scheduler.phase() {
            Phase::Held(tenant) => Some(tenant),
            Phase::Free | Phase::Draining(_) | Phase::Together => None,
        };
        let tenants = || core.tenants().filter_map(|(id, tenant)| Some((id, tenant, self.tenants.get(&id)?)));
        let accounts: BTreeMap<_, _> =
            tenants().map(|(id, tenant, seat)| (id, self.account_status(id, tenant, seat))).collect();
        let mut sessions = Vec::new();
        for (id, tenant, seat) in tenants() {
            let Some(account) = accounts.get(&id) else { continue };
            for (number, state) in tenant.sessions() {
                let Some(session) = self.sessions.get(&number) else { continue };
                let overdue_ns = state.overdue_ns(tenant.account().longest_ns, now_ns);
                let held_bytes = session.held_bytes(self.gpu, ledger(seat, self.gpu));
                let status = session_status(state.last(), held_bytes, account);
                sessions.push((number, SessionGpuStatus { overdue_ns, ..status }));
            }
        }
        let late = core.tenants().filter_map(|(id, tenant)| Some((id, tenant.requests()?.late())));
        let late_waits = late.flat_map(|(id, late)| {
            let waits = late.waited_for();
            waits.map(move |(rival, waited_ns)| (id, rival, waited_ns / late.requests.max(1)))
        });
        let counters = core.counters();
        let latency = core.latency();
        Report {
            now_ns,
            phase: scheduler.phase(),
            open: holder.is_some_and(|holder| scheduler.grant(holder) == Grant::Open),
            contended_ns: counters.contended_ns,
            idle_ns: counters.idle_ns,
            handoffs: counters.handoffs,
            handoff_ns: [latency.total_ns, latency.quantile_ns(50), latency.quantile_ns(99)],
            turns: counters.turns,
            turn_total_ns: counters.turn_total_ns,
            turn_p99_ns: core.turns_took().quantile_ns(99),
            tuning: *core.tuning(),
            fairness_ppm: fairness_ppm(
                core.tenants().filter_map(|(_, tenant)| tenant.account().recent_service(now_ns)),
            ),
            tenants: accounts.into_iter().collect(),
            late_waits: late_waits.collect(),
            sessions,
        }
    }

    fn account_status(&self, id: TenantId, tenant: &Tenant, seat: &TenantSeat) -> AccountStatus {
        let account = tenant.account();
        let totals = account.totals;
        let looked_ns = self.core.looked_ns();
        let mut by_kind = [0u64; MemoryKind::COUNT];
        let ledger = ledger(seat, self.gpu);
        let sessions = || tenant.sessions().filter_map(|(number, _)| self.sessions.get(&number));
        for session in sessions() {
            for (sum, bytes) in by_kind.iter_mut().zip(session.held_bytes(self.gpu, ledger)) {
                *sum = sum.saturating_add(bytes);
            }
        }
        let oversubscribed = sessions().map(|session| session.oversubscribed_bytes(self.gpu));
        let (oversubscribed_bytes, oversubscribed_brought_bytes) = oversubscribed
            .fold((0, 0), |sum: (u64, u64), one| (sum.0.saturating_add(one.0), sum.1.saturating_add(one.1)));
        let held = |kind: MemoryKind| by_kind[kind as usize];
        let kinds = MemoryKind::ALL.into_iter().map(|kind| (kind.name().to_owned(), held(kind)));
        let memory_bytes = ledger.map_or(0, |ledger| ledger.held_bytes()).min(MAX_HELD_BYTES);
        AccountStatus {
            gpu: self.gpu,
            entitled_ppm: Some(tenant.entitled_ppm()),
            is_lent: tenant.is_lent(),
            entitled_by: tenant.owed().map_or("", |owed| rule_name(owed.rule)).to_owned(),
            recent_share_ppm: account.recent_share_ppm(looked_ns),
            total_share_ppm: account.total_share_ppm(looked_ns),
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
            requests: tenant
                .requests()
                .zip(tenant.seat().slo_ns)
                .map(|(requests, slo_ns)| request_status(requests, &totals.served, slo_ns, looked_ns)),
            lag_ns: self.core.scheduler().lag_ns(id),
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
            last_refusal: account.last_refusal.map(|(api, bytes)| RefusalStatus {
                api: ApiId::from_index((api & !REFUSED_BY_DRIVER) as usize)
                    .map(|api| api.symbol().to_owned()),
                bytes,
                by: if api & REFUSED_BY_DRIVER == 0 { RefusedBy::Limit } else { RefusedBy::Driver },
            }),
            gate: Some(gate_name(self.core.scheduler().grant(id)).to_owned()),
        }
    }
}

/// Returns the figures of a tenant's requests at `now_ns`, without the tenants for which late
/// requests waited.
fn request_status(requests: &Requests, served: &Served, slo_ns: u64, now_ns: u64) -> RequestStatus {
    let quantiles_ns = requests.quantiles_ns();
    let late = requests.late();
    let mean = |sum_ns: u64| sum_ns.checked_div(late.requests);
    let rounded = |rate: f64| (rate * RATE_PARTS).round() / RATE_PARTS;
    RequestStatus {
        slo_ns,
        ended: served.requests,
        in_time: served.in_time,
        latency_ns: served.latency_ns,
        latencies_by_length: served.latencies_by_length,
        p50_ns: quantiles_ns.map(|[median_ns, _]| median_ns),
        p99_ns: quantiles_ns.map(|[_, most_ns]| most_ns),
        attained_ppm: requests.attained_ppm(),
        goodput_per_second: rounded(requests.goodput_per_s(now_ns)),
        rate_per_second: rounded(requests.rate_per_s(now_ns)),
        operating_point: None,
        late_waited_ns: served.late_waited_ns,
        late_worked_ns: served.late_worked_ns,
        late_rest_ns: served.late_rest_ns,
        late: mean(late.latency_ns).map(|latency_ns| LateStatus {
            latency_ns,
            waited_ns: mean(late.waited_ns).unwrap_or(0),
            waited_for_ns: BTreeMap::new(),
            worked_ns: mean(late.worked_ns).unwrap_or(0),
            rest_ns: mean(late.rest_ns()).unwrap_or(0),
        }),
    }
}

/// Returns the tenant's ledger for a GPU.
fn ledger(seat: &TenantSeat, gpu: usize) -> Option<&LedgerGpu> {
    seat.ledger.page().gpu(gpu)
}

/// Returns by how much the held memory exceeds the sum of its kinds, bytes.
fn drift(held_bytes: u64, kinds: impl Iterator<Item = u64>) -> i64 {
    let told_bytes = kinds.fold(0, u64::saturating_add).min(MAX_HELD_BYTES);
    // Both numbers are below 2⁶³.
    held_bytes as i64 - told_bytes as i64
}

/// Returns the figures that a session reports. No figure exceeds the figure of the tenant's
/// account, which the account bounds by what is possible.
fn session_status(
    meter: &Reading,
    held_bytes: [u64; MemoryKind::COUNT],
    account: &AccountStatus,
) -> SessionGpuStatus {
    let held_bytes = held_bytes.into_iter().fold(0, u64::saturating_add);
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
