//! Explains the share of a tenant.

use super::TenantSeat;
use super::worker::Worker;
use deepres_model::admin::{GuardStatus, PriorityStatus, ShareStatus, TermStatus};
use deepres_policy::TenantId;
use deepres_policy::class::Class;
use deepres_policy::lease::Grant;
use deepres_policy::priority::{Terms, Usage, Weights};

impl Worker {
    /// Returns the derivation of a tenant's share; `None` if the tenant has no session on this GPU.
    pub fn explain(&self, id: TenantId, now_ns: u64) -> Option<ShareStatus> {
        let (tenant, seat) = self.core.tenant(id).zip(self.tenants.get(&id))?;
        let derivation = self.core.derive(id, now_ns)?;
        let scheduler = self.core.scheduler();
        let guard = scheduler.guard();
        Some(ShareStatus {
            gpu: self.gpu,
            class: seat.request.class.name().to_owned(),
            priority: priority(now_ns, seat, &tenant.usage(), &self.weights),
            derivation,
            received_ppm: tenant.account().recent_share_ppm(now_ns),
            charge_copies: seat.charge_copies,
            part_ppm: self.core.part_ppm(id),
            lag_ns: scheduler.lag_ns(id),
            slo_ns: seat.slo_ns,
            guard: self.has_guests().then(|| GuardStatus {
                max_harm_ppm: guard.max_harm_ppm(),
                harm_ns: guard.harm_ns(),
                credit_ns: guard.credit_ns(),
                debt_ns: guard.debt_ns(),
                foreseen_pause_ns: guard.shortest_pause_ns(),
                tolerated_ns: scheduler.tolerated_ns(),
            }),
            gate: gate_name(scheduler.grant(id)).to_owned(),
        })
    }

    fn has_guests(&self) -> bool {
        let mut present = self.core.tenants().filter(|(_, tenant)| tenant.is_present());
        present.any(|(_, tenant)| tenant.seat().request.class == Class::BestEffort)
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
