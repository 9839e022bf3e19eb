//! Leases of gangs: the scheduler of one GPU follows the orders of the board ([`crate::gang`]).

use super::clock::VirtualTime;
use super::state::{Hold, Rank, SHORT_IDLE_NS, Tenant, begun_ns};
use super::{Grant, POLL_NS, Scheduler, Step, ns};
use crate::TenantId;
use crate::gang::{Gangs, Member, Order, Post};
use crate::tuning::Tuning;
use core::time::Duration;

/// The time between two looks at ranks that catch up.
const CATCH_UP_POLL_NS: u64 = ns(Duration::from_micros(200));
/// If a rank with a grant of one launch shows no launch after this time, the scheduler gives the
/// rank another grant.
const CATCH_UP_RETRY_NS: u64 = ns(Duration::from_millis(3));

/// The scheduler waits for a pausing rank only if its usual pause is at most its usual burst
/// divided by this number. While a rank pauses, the other ranks of the gang cannot go on.
const WORK_PER_PAUSE: u64 = 2;
/// The scheduler waits for a pausing rank for at most this many of its usual pauses.
const PAUSES_OF_PATIENCE: u64 = 2;

impl Scheduler {
    /// Sets the board's order for this GPU, and the gangs on it. A gang gets the GPU only by an
    /// order.
    pub fn set_order(&mut self, order: Order, gangs: Gangs) {
        self.order = order;
        self.gangs = gangs;
    }

    /// Returns the report on this GPU for the board.
    pub fn post(&self, now_ns: u64, tuning: &Tuning) -> Post {
        let owners = self.tenants.iter().filter(|(id, tenant)| {
            let is_of_interest = tenant.seen.wants() || tenant.may_launch() || self.is_gang(**id);
            tenant.is_here() && tenant.rank == Rank::Owner && is_of_interest
        });
        let (drained_ns, free_ns) = self.ends_ns(now_ns, tuning);
        let last = self.last_owner_vtime(now_ns);
        let clock = self.clocks[Rank::Owner as usize].now();
        let members = owners.map(|(id, tenant)| {
            let hold = self.hold.filter(|hold| hold.tenant == *id);
            let ahead_ns = |hold: Hold| begun_ns(&hold, tenant, now_ns).max(free_ns.saturating_sub(now_ns));
            let ahead_ns = hold.map_or(0, ahead_ns);
            Member {
                tenant: *id,
                in_flight: tenant.seen.in_flight,
                waiting: tenant.seen.waiting,
                may_launch: tenant.may_launch(),
                progressed_ns: tenant.last_progress_ns,
                pending_ns: tenant.seen.pending_ns,
                longest_ns: tenant.seen.longest_ns,
                holds: hold.is_some_and(|hold| hold.drain_give_up_ns.is_none()),
                is_done: hold.is_some_and(|hold| self.is_done(&hold, now_ns, tuning)),
                presses: self.presses(tenant, hold.is_some(), now_ns, tuning),
                position: tenant.vtime(clock) + tenant.weighted(ahead_ns) - last,
            }
        });
        Post {
            members: members.collect(),
            holder: self.holder(),
            drained_ns,
            free_ns,
            quantum_ns: tuning.quantum_ns,
            lead_ns: tuning.lead_ns,
        }
    }

    /// Returns whether a tenant presses: it has an SLO, wants the GPU, and is owed GPU time. If the
    /// tenant does not hold the GPU, a pre-emption must also be allowed at this time.
    fn presses(&self, tenant: &Tenant, holds: bool, now_ns: u64, tuning: &Tuning) -> bool {
        let is_owed = tenant.is_owed(self.clocks[tenant.rank as usize].eligible_after(0));
        tenant.has_objective() && tenant.wanted && is_owed && (holds || now_ns >= self.preempts_ns(tuning))
    }

    /// Returns the least virtual time of all owners that want the GPU or wanted it a moment ago.
    fn last_owner_vtime(&self, now_ns: u64) -> VirtualTime {
        let clock = self.clocks[Rank::Owner as usize].now();
        let owners = self.tenants.values().filter(|tenant| tenant.is_here() && tenant.rank == Rank::Owner);
        let counted =
            owners.filter(|tenant| tenant.wanted || tenant.seen.wants() || tenant.is_back_soon(now_ns));
        counted.map(|tenant| tenant.vtime(clock)).min().unwrap_or(clock)
    }

    /// Returns the owner that has the GPU, or whose work drains. If owners use the GPU together,
    /// returns one of them. Returns `None` for a guest, because a guest loses the GPU as soon as an
    /// owner wants it.
    pub fn holder(&self) -> Option<TenantId> {
        if self.company.has_gpu() {
            return self.tenants.next_after(None, |tenant| tenant.may_launch() || tenant.seen.in_flight);
        }
        self.hold.map(|hold| hold.tenant).filter(|holder| !self.is_guest(*holder))
    }

    /// Returns whether the holder has wanted nothing for so long that the scheduler no longer waits
    /// for it.
    fn is_done(&self, hold: &Hold, now_ns: u64, tuning: &Tuning) -> bool {
        self.gang_idle_ends_ns(hold, now_ns, tuning).is_some_and(|ends_ns| now_ns >= ends_ns)
    }

    /// Returns two times, ns. By the holder's meter, its work in flight ends at the first time. If
    /// the holder uses its whole lease, its work ends at the second time.
    fn ends_ns(&self, now_ns: u64, tuning: &Tuning) -> (u64, u64) {
        let Some(hold) = self.hold else {
            let remaining_ns = if self.company.has_gpu() { self.company_remaining_ns() } else { 0 };
            return (now_ns.saturating_add(remaining_ns), now_ns.saturating_add(remaining_ns));
        };
        let Some(holder) = self.tenants.get(hold.tenant) else { return (now_ns, now_ns) };
        let drained_ns = now_ns.saturating_add(holder.remaining_ns());
        let goes_on = hold.contended.is_some()
            && hold.drain_give_up_ns.is_none()
            && !self.is_done(&hold, now_ns, tuning);
        match holder.grant {
            Grant::Leased { expires_ns } if goes_on && holder.rank == Rank::Owner => {
                let free_ns = expires_ns.saturating_add(drain_ns(holder, tuning));
                (drained_ns, free_ns.max(drained_ns))
            }
            _ => (drained_ns, drained_ns),
        }
    }

    /// Returns whether the tenant gets GPUs only by the board's orders.
    pub fn is_gang(&self, tenant: TenantId) -> bool {
        self.gangs.contains_key(&tenant)
    }

    /// Decides by the board's order while no tenant has the GPU: gives the GPU to a tenant, or
    /// waits.
    pub(super) fn ordered_free_step(&mut self, now_ns: u64, tuning: &Tuning) -> Step {
        match self.order {
            Order::Apart => self.free_step(now_ns, tuning),
            Order::Until { at_ns, .. } => self.free_until_step(at_ns, now_ns, tuning),
            Order::Held { tenant, .. } => match self.tenants.get(tenant) {
                Some(gang) if gang.is_here() => {
                    // While no other owner wants this GPU, a guest may use it in a pause of the
                    // gang.
                    let pauses = !gang.wanted && self.next(Rank::Owner, Some(tenant)).is_none();
                    let guest = pauses.then(|| self.next_guest(None, now_ns, tuning).ok()).flatten();
                    self.give(guest.map_or(tenant, |(guest, _)| guest), now_ns, tuning)
                }
                _ => Step::Stay(None),
            },
            // The gang has drained on this GPU, and still drains on another GPU.
            Order::Drain { tenant, catches_up: true } if self.tenants.get(tenant).is_some() => {
                self.give(tenant, now_ns, tuning);
                match self.hold {
                    Some(hold) => self.close(hold, now_ns),
                    None => Step::Stay(None),
                }
            }
            Order::Drain { .. } => Step::Stay(None),
        }
    }

    /// Decides while no tenant has the GPU and a gang gets it at `at_ns`. Another tenant can get
    /// the GPU before, if its work can drain before `at_ns`.
    fn free_until_step(&mut self, at_ns: u64, now_ns: u64, tuning: &Tuning) -> Step {
        let next = self.next_apart(Rank::Owner, None).or_else(|| {
            let guest = self.next_guest(None, now_ns, tuning).ok();
            guest.map(|(guest, _)| guest)
        });
        if let Some(next) = next
            && let Some(tenant) = self.tenants.get(next)
        {
            self.lease_limit_ns = at_ns.saturating_sub(drain_ns(tenant, tuning));
            if now_ns.saturating_add(tuning.lead_ns) <= self.lease_limit_ns {
                return self.give(next, now_ns, tuning);
            }
        }
        Step::Stay((now_ns < at_ns).then_some(at_ns))
    }

    /// Decides by the board's order while a tenant has the GPU: lets the tenant go on, or closes
    /// its gate.
    pub(super) fn ordered_step(&mut self, hold: Hold, now_ns: u64, tuning: &Tuning) -> Step {
        match self.order {
            Order::Apart if self.is_gang(hold.tenant) => self.close(hold, now_ns),
            Order::Apart if self.is_guest(hold.tenant) => self.guest_step(hold, now_ns, tuning),
            Order::Apart => self.hold_step(hold, now_ns, tuning),
            Order::Held { tenant, until_ns } if tenant == hold.tenant => {
                self.gang_step(hold, until_ns, now_ns, tuning)
            }
            Order::Held { .. } if self.is_guest(hold.tenant) => self.guest_step(hold, now_ns, tuning),
            Order::Until { tenant, .. } if tenant == hold.tenant => Step::Stay(None),
            Order::Until { at_ns, .. } if !self.is_gang(hold.tenant) => {
                self.hold_until_step(hold, at_ns, now_ns, tuning)
            }
            Order::Until { .. } | Order::Held { .. } | Order::Drain { .. } => self.close(hold, now_ns),
        }
    }

    /// Decides while a tenant has the GPU and a gang gets it at `at_ns`. The tenant's work must
    /// have drained by then.
    fn hold_until_step(&mut self, hold: Hold, at_ns: u64, now_ns: u64, tuning: &Tuning) -> Step {
        if self.is_guest(hold.tenant) {
            return self.guest_step(hold, now_ns, tuning);
        }
        let Some(holder) = self.tenants.get(hold.tenant) else {
            self.hold = None;
            return Step::Again;
        };
        let last_ns = at_ns.saturating_sub(drain_ns(holder, tuning));
        if now_ns >= last_ns {
            return self.close(hold, now_ns);
        }
        self.lease_limit_ns = last_ns;
        match self.hold_step(hold, now_ns, tuning) {
            Step::Stay(wake_ns) => Step::Stay(Some(wake_ns.map_or(last_ns, |wake_ns| wake_ns.min(last_ns)))),
            Step::Again => Step::Again,
        }
    }

    /// Decides while an owner has the GPU, and only gangs without an order for this GPU want it.
    pub(super) fn before_gangs_step(
        &mut self,
        hold: Hold,
        grant: Grant,
        now_ns: u64,
        tuning: &Tuning,
    ) -> Step {
        let renewal_ns = |expires_ns: u64| expires_ns.saturating_sub(tuning.lead_ns);
        let expires_ns = match grant {
            Grant::Leased { expires_ns } if hold.contended.is_some() && now_ns < renewal_ns(expires_ns) => {
                expires_ns
            }
            _ => {
                let expires_ns = now_ns.saturating_add(tuning.quantum_ns);
                self.hold = Some(hold.contend(now_ns));
                self.lease(hold.tenant, expires_ns, matches!(grant, Grant::Leased { .. }));
                expires_ns
            }
        };
        Step::Stay(Some(renewal_ns(expires_ns)))
    }

    /// Decides while a gang has this GPU and its other GPUs. `until_ns` is the end of the gang's
    /// lease, ns.
    fn gang_step(&mut self, hold: Hold, until_ns: Option<u64>, now_ns: u64, tuning: &Tuning) -> Step {
        let grant = self.grant(hold.tenant);
        let Some(until_ns) = until_ns else {
            return match self.next(Rank::Guest, Some(hold.tenant)) {
                Some(_) => self.beside_step(hold, grant, now_ns, tuning),
                None => self.alone_step(hold, grant, now_ns, tuning),
            };
        };
        self.hold = Some(hold.contend(now_ns));
        if self.next(Rank::Owner, Some(hold.tenant)).is_none()
            && let Some(idle_since_ns) = hold.idle_since_ns
            && now_ns >= idle_since_ns.saturating_add(tuning.grace_ns)
            && self.next_guest(Some(hold.tenant), now_ns, tuning).is_ok()
        {
            // Other owners want the gang's other GPUs, and only guests want this GPU.
            return self.close(hold, now_ns);
        }
        let lease = Grant::Leased { expires_ns: until_ns };
        self.change(hold.tenant, lease, matches!(grant, Grant::Leased { .. }));
        let renewal_ns = until_ns.saturating_sub(tuning.lead_ns);
        let wake_ns = if now_ns < renewal_ns { renewal_ns } else { until_ns };
        let idle_ends_ns = self.gang_idle_ends_ns(&hold, now_ns, tuning).filter(|ends_ns| now_ns < *ends_ns);
        Step::Stay(Some(idle_ends_ns.map_or(wake_ns, |ends_ns| ends_ns.min(wake_ns))))
    }

    /// Returns the time until which the scheduler waits for a rank that wants nothing now, ns.
    /// Returns `None` if the rank has work in flight or a waiting thread.
    fn gang_idle_ends_ns(&self, hold: &Hold, now_ns: u64, tuning: &Tuning) -> Option<u64> {
        let holder = self.tenants.get(hold.tenant)?;
        let next = self.next(Rank::Owner, Some(hold.tenant)).and_then(|next| self.tenants.get(next));
        let clock = self.clocks[holder.rank as usize].now();
        let vtime = holder.vtime(clock) + holder.weighted(begun_ns(hold, holder, now_ns));
        let patience_ns = next.filter(|next| vtime < next.vtime(clock)).map_or(0, |next| {
            // A rank that pauses for longer is not back soon.
            let turn_ns = tuning.quantum_ns.max(next.seen.longest_ns).min(SHORT_IDLE_NS);
            let worth_ns = turn_ns.min(holder.bursts.mean_ns / WORK_PER_PAUSE);
            let usual_ns = holder.mean_pause_ns;
            if usual_ns <= worth_ns { worth_ns.min(usual_ns.saturating_mul(PAUSES_OF_PATIENCE)) } else { 0 }
        });
        let patience_ns = patience_ns.max(tuning.grace_ns);
        hold.idle_since_ns.map(|since_ns| since_ns.saturating_add(patience_ns))
    }

    /// Decides by the board's order while the holder's work in flight drains: waits, or ends the
    /// drain.
    pub(super) fn ordered_drain_step(
        &mut self,
        hold: Hold,
        give_up_ns: u64,
        now_ns: u64,
        tuning: &Tuning,
    ) -> Step {
        match self.order {
            Order::Drain { tenant, catches_up } if tenant == hold.tenant && now_ns < give_up_ns => {
                self.drain_together(hold, catches_up, give_up_ns, now_ns)
            }
            Order::Held { tenant, until_ns: Some(_) } if tenant == hold.tenant && self.is_wanting(tenant) => {
                self.hold = Some(Hold { drain_give_up_ns: None, once_since_ns: None, ..hold });
                Step::Again
            }
            _ => self.drain_step(hold, give_up_ns, now_ns, tuning),
        }
    }

    /// Decides while all ranks of a gang drain. If `catches_up` is set, another rank waits in its
    /// kernel for a launch of this rank. Then this rank may launch once.
    fn drain_together(&mut self, hold: Hold, catches_up: bool, give_up_ns: u64, now_ns: u64) -> Step {
        let Some(holder) = self.tenants.get(hold.tenant) else {
            self.hold = None;
            return Step::Again;
        };
        let got_on = holder.seen.in_flight || holder.seen.used_ns > 0;
        let once_since_ns = match hold.once_since_ns {
            Some(since_ns)
                if catches_up && !got_on && now_ns < since_ns.saturating_add(CATCH_UP_RETRY_NS) =>
            {
                Some(since_ns)
            }
            // The gate closes before the next grant, so each grant of one launch has a new epoch.
            Some(_) => None,
            None => catches_up.then_some(now_ns),
        };
        self.hold = Some(Hold { once_since_ns, ..hold });
        let grant = if once_since_ns.is_some() { Grant::Once } else { Grant::Closed };
        self.change(hold.tenant, grant, false);
        let poll_ns = if catches_up { CATCH_UP_POLL_NS } else { POLL_NS };
        Step::Stay(Some(give_up_ns.min(now_ns.saturating_add(poll_ns))))
    }

    fn is_wanting(&self, tenant: TenantId) -> bool {
        self.tenants.get(tenant).is_some_and(|tenant| tenant.wanted)
    }

    /// Returns whether a tenant whose drain has begun may get the GPU back if no other tenant can
    /// use it now. If a gang waits for its GPUs, the answer is no, so that this GPU becomes free
    /// for the gang.
    pub(super) fn may_go_on(&self, tenant: TenantId) -> bool {
        match self.order {
            Order::Apart => !self.is_gang(tenant),
            Order::Held { tenant: gang, until_ns: None } => tenant == gang,
            Order::Held { .. } | Order::Until { .. } | Order::Drain { .. } => false,
        }
    }
}

/// Returns how long before the end of a drain the tenant's gate must close, ns. Just before, the
/// tenant may have launched one of its longest kernels. The result is at most a quantum for such a
/// kernel, so longer kernels may end late.
fn drain_ns(tenant: &Tenant, tuning: &Tuning) -> u64 {
    tenant.remaining_ns().max(tenant.seen.longest_ns.min(tuning.quantum_ns))
}
