//! The gates of sessions. If a tenant may launch, this module decides which of its sessions may
//! launch, and sets the terms of each gate.

use super::tenant::Session;
use super::{Actions, Core, Gate, Tenant};
use crate::TenantId;
use crate::lease::{Change, Grant};
use core::mem;
use deepres_abi::grant::{LeaseTerms, ONE_LAUNCH};

/// Sessions with an open gate have a bound on their work in flight. If the bound changes by more
/// than itself divided by this number, the core writes the new bound into the gates.
const TOLD_PART: u64 = 8;

impl Session {
    /// Sets the session's gate, as an action. `terms` are the terms of a lease. For an open gate,
    /// they bound the session's work in flight.
    pub(super) fn set_gate(&mut self, grant: Grant, terms: LeaseTerms, actions: &mut Actions) {
        let before = mem::replace(&mut self.gate, grant);
        let renews = matches!(
            (before, grant),
            (Grant::Leased { .. }, Grant::Leased { .. }) | (Grant::Open, Grant::Open)
        );
        actions.gates.push(Gate { session: self.seat.id, grant, terms, renews });
    }
}

impl Core {
    /// Carries out a change of a tenant's grant: sets the gates of the tenant's sessions.
    pub(super) fn apply(&mut self, change: Change, actions: &mut Actions) {
        let mut tenants = mem::take(&mut self.tenants);
        if let Some(tenant) = tenants.get_mut(&change.tenant) {
            if matches!(change.grant, Grant::Leased { .. }) && !change.renewal {
                tenant.turns.begin(&tenant.seen);
            }
            self.show(change.tenant, tenant, change.grant, actions);
        }
        self.tenants = tenants;
    }

    /// Advances the turns of the sessions of tenants that have leases. Returns the time of the next
    /// call, ns.
    pub(super) fn take_turns(&mut self, now_ns: u64, actions: &mut Actions) -> Option<u64> {
        let mut wake_ns: Option<u64> = None;
        let mut tenants = mem::take(&mut self.tenants);
        for (id, tenant) in tenants.iter_mut().filter(|(_, tenant)| tenant.sessions.len() > 1) {
            let grant = self.scheduler.grant(*id);
            if matches!(grant, Grant::Leased { .. }) && self.has_turns(*id) {
                let again_ns = tenant.turns.step(now_ns, self.tuning.grace_ns, &tenant.seen);
                wake_ns = [wake_ns, again_ns].into_iter().flatten().min();
                self.show(*id, tenant, grant, actions);
            }
        }
        self.tenants = tenants;
        wake_ns
    }

    /// Returns whether the sessions of a tenant may take turns in the tenant's leases. The ranks of
    /// a gang take no turns, because no arbiter knows which rank has its turn on another GPU. In
    /// space, the tenant's part of the SMs is the sum of its sessions' parts.
    fn has_turns(&self, id: TenantId) -> bool {
        !self.scheduler.is_gang(id) && !self.scheduler.is_in_space()
    }

    /// Sets the gates of those sessions of a tenant whose gates do not show the tenant's grant.
    fn show(&self, id: TenantId, tenant: &mut Tenant, grant: Grant, actions: &mut Actions) {
        let takes_turns = self.has_turns(id);
        let is_right =
            |session: &Session| session.gate == tenant.grant_of(session.seat.id, grant, takes_turns);
        if tenant.sessions.values().all(is_right) {
            return;
        }
        let terms = self.terms(id, tenant, grant);
        if grant == Grant::Open {
            tenant.run_ahead_ns = terms.window_ns;
        }
        let mut sessions = mem::take(&mut tenant.sessions);
        for (number, session) in &mut sessions {
            let grant = tenant.grant_of(*number, grant, takes_turns);
            if session.gate != grant {
                session.set_gate(grant, terms, actions);
            }
        }
        tenant.sessions = sessions;
    }

    /// Returns the terms for `grant`. All sessions of the tenant have the same terms.
    pub(super) fn terms(&self, id: TenantId, tenant: &Tenant, grant: Grant) -> LeaseTerms {
        let spin_ns = self.tuning.spin_ns;
        let expires_ns = match grant {
            Grant::Leased { expires_ns } => expires_ns,
            Grant::Once => {
                let terms = LeaseTerms::default();
                return LeaseTerms { expires_ns: u64::MAX, window_ns: ONE_LAUNCH, spin_ns, ..terms };
            }
            Grant::Open => {
                let (sessions, longest_ns) = (tenant.launching(), tenant.account.longest_ns);
                let window_ns =
                    self.scheduler.run_ahead_ns(id, sessions, longest_ns, self.looked_ns, &self.tuning);
                return LeaseTerms { window_ns, ..LeaseTerms::default() };
            }
            Grant::Closed | Grant::Paused => return LeaseTerms::default(),
        };
        let sessions = if tenant.turns.is_taken() && self.has_turns(id) { 1 } else { tenant.launching() };
        LeaseTerms {
            expires_ns,
            window_ns: self
                .scheduler
                .window_ns(id, sessions, tenant.account.longest_ns, &self.tuning)
                .max(ONE_LAUNCH + 1),
            spin_ns,
            ..LeaseTerms::default()
        }
    }

    /// Tells the sessions whether the hardware can take turns between their tenant's work and other
    /// tenants' work.
    pub(super) fn tell_beside(&mut self, actions: &mut Actions) {
        if !self.scheduler.has_several() && !self.has_beside {
            return;
        }
        self.has_beside = false;
        for (id, tenant) in &mut self.tenants {
            let is_beside = self.scheduler.is_beside(*id);
            for session in tenant.sessions.values_mut() {
                if mem::replace(&mut session.is_beside, is_beside) != is_beside {
                    actions.beside.push((session.seat.id, is_beside));
                }
                self.has_beside |= is_beside;
            }
        }
    }

    /// Tells the sessions with open gates how much GPU time they may have in flight now.
    pub(super) fn renew_open(&mut self, actions: &mut Actions) {
        let mut tenants = mem::take(&mut self.tenants);
        for (id, tenant) in &mut tenants {
            if self.scheduler.grant(*id) != Grant::Open {
                continue;
            }
            let terms = self.terms(*id, tenant, Grant::Open);
            if tenant.run_ahead_ns.abs_diff(terms.window_ns) > tenant.run_ahead_ns / TOLD_PART {
                tenant.run_ahead_ns = terms.window_ns;
                for session in tenant.sessions.values_mut().filter(|session| session.gate == Grant::Open) {
                    session.set_gate(Grant::Open, terms, actions);
                }
            }
        }
        self.tenants = tenants;
    }
}
