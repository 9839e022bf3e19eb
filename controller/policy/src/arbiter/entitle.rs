//! Computes the entitlements of a GPU's tenants, from their wishes and their observed use.

use super::tenant::Tenant;
use super::{Actions, Core};
use crate::TenantId;
use crate::entitlement::explain::{Derivation, derive};
use crate::entitlement::{BACK_NS, Entitlement, Request, entitle};
use crate::priority::{Terms, Usage};
use alloc::collections::BTreeMap;
use core::time::Duration;

/// The time between two computations of priorities while a tenant wants the GPU. Priorities change
/// as deadlines come nearer and jobs use GPU time.
const REVIEW_NS: u64 = Duration::from_millis(100).as_nanos() as u64;
/// The time between two computations of priorities while no tenant wants the GPU.
const IDLE_REVIEW_NS: u64 = Duration::from_secs(1).as_nanos() as u64;

impl Tenant {
    /// Returns whether the tenant was idle at the last computation of entitlements, so that other
    /// tenants got its part, and wants the GPU now.
    fn wants_back(&self) -> bool {
        self.is_lent && self.account.wants && !self.seat.is_paused
    }

    /// Returns the observed use of the tenant's job.
    pub fn usage(&self) -> Usage {
        Usage { used_ns: self.job_used_ns, demand_ppm: self.demand.ppm(), memory_ppm: self.memory_ppm }
    }
}

impl Core {
    /// Returns the request of each tenant with sessions, with its priority at `now_ns`.
    fn requests(&self, now_ns: u64) -> impl Iterator<Item = (TenantId, Request)> {
        let present = self.tenants.iter().filter(|(_, tenant)| tenant.is_present());
        present.map(move |(id, tenant)| {
            let terms = Terms::at(now_ns, &tenant.seat.priority, &tenant.usage());
            let priority_ppm = terms.value_ppm(&self.setup.weights);
            let is_idle = self.scheduler.is_idle(*id, now_ns);
            (*id, Request { priority_ppm, is_idle, ..tenant.seat.request })
        })
    }

    /// Returns whether the regular computation of the entitlements is due.
    fn is_review_due(&self, now_ns: u64) -> bool {
        let review_ns = if self.is_wanted { REVIEW_NS } else { IDLE_REVIEW_NS };
        now_ns.saturating_sub(self.entitled_ns) >= review_ns
    }

    /// Returns whether the core must compute entitlements anew: a tenant came, left or changed, or
    /// an idle tenant wants its part of the GPU again.
    fn owes_anew(&self, now_ns: u64) -> bool {
        let may_look = now_ns.saturating_sub(self.entitled_ns) >= BACK_NS;
        self.owes_anew || (may_look && self.tenants.values().any(Tenant::wants_back))
    }

    /// Returns whether the next turn computes entitlements. If so, the caller passes
    /// [`Readings::tenants`](super::Readings::tenants).
    pub fn reviews(&self, now_ns: u64) -> bool {
        self.is_review_due(now_ns) || self.owes_anew(now_ns)
    }

    /// Computes the entitlements if a change requires it.
    pub(super) fn entitle_anew(&mut self, now_ns: u64, actions: &mut Actions) {
        if self.owes_anew(now_ns) {
            self.entitle(now_ns, actions);
        }
    }

    /// Computes the entitlements if the regular computation is due.
    pub(super) fn review(&mut self, now_ns: u64, actions: &mut Actions) {
        if self.is_review_due(now_ns) {
            self.entitle(now_ns, actions);
        }
    }

    /// Returns when to compute entitlements for idle tenants that want their part of the GPU again,
    /// ns. Returns `None` if there is no such tenant.
    pub(super) fn entitle_again_ns(&self) -> Option<u64> {
        let is_awaited = self.tenants.values().any(Tenant::wants_back);
        is_awaited.then(|| self.entitled_ns.saturating_add(BACK_NS))
    }

    /// Chooses the MPS server whose clients count with their parts of the SMs. The hardware runs
    /// kernels of one server at a time, so clients of other servers count with all SMs, as do
    /// processes without MPS. The choice stays while two of the server's clients use the GPU, so
    /// the clients of a new server take nothing from them.
    fn choose_server(&mut self, now_ns: u64) {
        let mut servers = core::mem::take(&mut self.review.servers);
        let busy = self.tenants.iter().filter(|(id, _)| !self.scheduler.is_idle(**id, now_ns));
        servers.clear();
        servers.extend(busy.filter_map(|(_, tenant)| tenant.part()).map(|(server, _)| server));
        servers.sort_unstable();
        let pairs = || servers.iter().zip(servers.iter().skip(1)).filter(|(one, next)| one == next);
        let has_pair = |server: &u64| pairs().any(|(one, _)| one == server);
        let first = pairs().map(|(server, _)| server).chain(&servers).next();
        if let Some(first) = first.filter(|_| !has_pair(&self.mps_server)) {
            self.mps_server = *first;
        }
        self.review.servers = servers;
    }

    /// Returns the part of the SMs with which a tenant counts, parts per million; 0 for all SMs.
    pub fn part_ppm(&self, id: TenantId) -> u32 {
        self.tenants.get(&id).map_or(0, |tenant| tenant.part_ppm(self.mps_server))
    }

    /// Computes the entitlements of all tenants with sessions, and tells the sessions and the
    /// scheduler.
    fn entitle(&mut self, now_ns: u64, actions: &mut Actions) {
        self.entitled_ns = now_ns;
        self.owes_anew = false;
        for (id, tenant) in &mut self.tenants {
            tenant.rest_until(now_ns);
            let charged_ns = tenant.account.totals.gpu_ns;
            let used_ns = charged_ns.saturating_sub(tenant.counted_ns);
            tenant.counted_ns = charged_ns;
            tenant.job_used_ns = tenant.job_used_ns.saturating_add(used_ns);
            if used_ns > 0 {
                actions.used.push((*id, used_ns));
            }
        }
        self.choose_server(now_ns);
        let mut review = core::mem::take(&mut self.review);
        review.requests.clear();
        review.requests.extend(self.requests(now_ns));
        entitle(&review.requests, &mut review.work, &mut review.owed);
        review.weights.clone_from(&review.owed);
        if self.scheduler.is_in_space() {
            // An owner cannot use more than its part of the SMs, so others are owed the rest.
            for (id, request) in &mut review.requests {
                let part_ppm = self.part_ppm(*id);
                request.cap_ppm = if part_ppm > 0 { request.cap_ppm.min(part_ppm) } else { request.cap_ppm };
            }
            entitle(&review.requests, &mut review.work, &mut review.weights);
        }
        let shares = review.owed.iter().zip(&review.weights);
        for ((id, request), (owed, Entitlement { weight_ppm, .. })) in review.requests.iter().zip(shares) {
            let Some(tenant) = self.tenants.get_mut(id) else { continue };
            tenant.is_lent = request.is_idle;
            tenant.owed = Some(*owed);
            if core::mem::replace(&mut tenant.entitled_ppm, owed.ppm) != owed.ppm {
                let sessions = tenant.sessions.keys();
                actions.entitled.extend(sessions.map(|session| (*session, owed.ppm)));
            }
            self.scheduler.set_standing(*id, tenant.seat.request.class, *weight_ppm);
            self.scheduler.set_slo(*id, tenant.seat.slo_ns);
            self.scheduler.set_takes_turns(*id, tenant.seat.takes_turns);
        }
        self.review = review;
        self.renew_open(actions);
    }

    /// Returns the derivation of a tenant's share at `now_ns`; `None` if the tenant has no session
    /// on this GPU.
    pub fn derive(&self, id: TenantId, now_ns: u64) -> Option<Derivation> {
        let demands = self.tenants.iter().map(|(id, tenant)| (*id, tenant.demand.ppm())).collect();
        derive(id, &self.requests(now_ns).collect::<BTreeMap<_, _>>(), &demands)
    }
}
