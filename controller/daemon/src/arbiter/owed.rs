//! Computes the entitlements of the arbiter's tenants, from their wishes and their observed use.

use super::TenantSeat;
use super::tenant::Tenant;
use super::worker::Worker;
use deepres_abi::PPM;
use deepres_model::admin::{GuardStatus, PriorityStatus, ShareStatus, TermStatus};
use deepres_policy::TenantId;
use deepres_policy::class::Class;
use deepres_policy::entitlement::explain::derive;
use deepres_policy::entitlement::{BACK_NS, Request, entitlements};
use deepres_policy::lease::Grant;
use deepres_policy::priority::{Terms, Usage, Weights};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often priorities are computed anew while a tenant wants the GPU: deadlines come nearer, and
/// the observed use of a job changes.
pub const REVIEW_NS: u64 = Duration::from_millis(100).as_nanos() as u64;
/// The same while no tenant wants the GPU.
pub const IDLE_REVIEW_NS: u64 = Duration::from_secs(1).as_nanos() as u64;

/// GPU time that a tenant's job has used on all GPUs, for the rest of its declared size. The next
/// job under the same name has its own.
#[derive(Debug, Default)]
pub struct JobUse(AtomicU64);

impl JobUse {
    /// Returns the use of a job that used `used_ns` before.
    pub fn of(used_ns: u64) -> Self {
        Self(AtomicU64::new(used_ns))
    }

    /// Returns the GPU time used so far, ns.
    pub fn ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, used_ns: u64) {
        self.0.fetch_add(used_ns, Ordering::Relaxed);
    }
}

impl Tenant {
    /// Returns whether the tenant was idle when entitlements were computed, and now wants the part
    /// that was lent to others.
    fn wants_back(&self) -> bool {
        self.is_lent && self.account.wants && !self.seat.is_paused
    }

    /// Adds to the job's use the GPU time that was charged here since the last call.
    fn count_job(&mut self) {
        let charged_ns = self.account.totals.gpu_ns;
        self.seat.job.add(charged_ns.saturating_sub(self.counted_ns));
        self.counted_ns = charged_ns;
    }
}

impl Worker {
    /// Returns the observed use of a tenant's job.
    fn usage(&self, tenant: &Tenant) -> Usage {
        let held_bytes = tenant.seat.ledger.page().gpu(self.gpu).map_or(0, |ledger| ledger.held_bytes());
        let memory_ppm = u128::from(held_bytes) * u128::from(PPM) / u128::from(self.memory_bytes.max(1));
        Usage {
            used_ns: tenant.seat.job.ns(),
            demand_ppm: tenant.demand.ppm(),
            memory_ppm: u32::try_from(memory_ppm).unwrap_or(PPM).min(PPM),
        }
    }

    /// Returns the requests of all tenants with sessions, with their priorities at `now_ns`.
    fn requests(&self, now_ns: u64) -> BTreeMap<TenantId, Request> {
        let present = self.tenants.iter().filter(|(_, tenant)| !tenant.sessions.is_empty());
        let request = |id: TenantId, tenant: &Tenant| {
            let terms = Terms::at(now_ns, &tenant.seat.priority, &self.usage(tenant));
            let priority_ppm = terms.value_ppm(&self.weights);
            Request { priority_ppm, is_idle: self.scheduler.is_idle(id, now_ns), ..tenant.seat.request }
        };
        present.map(|(id, tenant)| (*id, request(*id, tenant))).collect()
    }

    /// Computes the entitlements if anything has changed: once, however many tenants came and went.
    pub fn entitle_anew(&mut self, now_ns: u64) {
        let may_look = now_ns.saturating_sub(self.entitled_ns) >= BACK_NS;
        if self.owes_anew || (may_look && self.tenants.values().any(Tenant::wants_back)) {
            self.entitle(now_ns);
        }
    }

    /// Returns when to compute them for tenants that want back the part that was lent, ns.
    pub fn entitle_again_ns(&self) -> Option<u64> {
        let is_awaited = self.tenants.values().any(Tenant::wants_back);
        is_awaited.then(|| self.entitled_ns.saturating_add(BACK_NS))
    }

    /// Computes the entitlements of all tenants with sessions.
    pub fn entitle(&mut self, now_ns: u64) {
        self.entitled_ns = now_ns;
        self.owes_anew = false;
        self.tenants.values_mut().for_each(Tenant::count_job);
        let requests = self.requests(now_ns);
        let owed = entitlements(&requests);
        for (id, entitlement) in &owed {
            if let Some(tenant) = self.tenants.get_mut(id) {
                tenant.is_lent = requests.get(id).is_some_and(|request| request.is_idle);
                tenant.show_entitled(self.gpu, entitlement.ppm);
                tenant.rule = Some(entitlement.rule);
                self.scheduler.set_standing(*id, tenant.seat.request.class, entitlement.weight_ppm);
                self.scheduler.set_slo(*id, tenant.seat.slo_ns);
            }
        }
        self.renew_open();
    }

    /// Returns how a tenant's share is derived; `None` if the tenant has no session on this GPU.
    pub fn explain(&self, id: TenantId, now_ns: u64) -> Option<ShareStatus> {
        let tenant = self.tenants.get(&id).filter(|tenant| !tenant.sessions.is_empty())?;
        let demands = self.tenants.iter().map(|(id, tenant)| (*id, tenant.demand.ppm())).collect();
        let derivation = derive(id, &self.requests(now_ns), &demands)?;
        let guard = self.scheduler.guard();
        Some(ShareStatus {
            gpu: self.gpu,
            class: tenant.seat.request.class.name().to_owned(),
            priority: priority(now_ns, &tenant.seat, &self.usage(tenant), &self.weights),
            derivation,
            received_ppm: tenant.account.recent_share_ppm(now_ns),
            charge_copies: tenant.seat.charge_copies,
            lag_ns: self.scheduler.lag_ns(id),
            slo_ns: tenant.seat.slo_ns,
            guard: self.has_guests().then(|| GuardStatus {
                max_harm_ppm: guard.max_harm_ppm(),
                harm_ns: guard.harm_ns(),
                credit_ns: guard.credit_ns(),
                debt_ns: guard.debt_ns(),
                foreseen_pause_ns: guard.shortest_pause_ns(),
                tolerated_ns: self.scheduler.tolerated_ns(),
            }),
            gate: gate_name(self.scheduler.grant(id)).to_owned(),
        })
    }

    fn has_guests(&self) -> bool {
        let present = self.tenants.values().filter(|tenant| !tenant.sessions.is_empty());
        present.into_iter().any(|tenant| tenant.seat.request.class == Class::BestEffort)
    }
}

/// Returns the terms of a priority value.
fn priority(now_ns: u64, seat: &TenantSeat, usage: &Usage, weights: &Weights) -> PriorityStatus {
    let terms = Terms::at(now_ns, &seat.priority, usage);
    let term = |weight: f64, value: f64| TermStatus { weight, value, product: weight * value };
    PriorityStatus {
        value_ppm: terms.value_ppm(weights),
        urgency: term(weights.urgency, terms.urgency),
        size: term(weights.size, terms.size),
        criticality: term(weights.criticality, terms.criticality),
        deadline_in_ns: seat.priority.deadline_ns.map(|deadline_ns| deadline_ns.saturating_sub(now_ns)),
        declared_size_ns: seat.priority.size_ns,
        used_ns: usage.used_ns,
        demand_ppm: usage.demand_ppm,
        memory_ppm: usage.memory_ppm,
    }
}

/// Returns the gate's name in the status.
pub fn gate_name(grant: Grant) -> &'static str {
    match grant {
        Grant::Closed => "closed",
        Grant::Leased { .. } => "leased",
        Grant::Once => "once",
        Grant::Open => "open",
        Grant::Paused => "paused",
    }
}
