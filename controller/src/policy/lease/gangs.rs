//! Leases by the board's order: tenants that have several GPUs at once ([`crate::policy::gang`]).

use super::state::{Hold, Rank, Tenant, begun_ns, patience_ns};
use super::{DRAIN_POLL_NS, Grant, Scheduler, Step, ns};
use crate::policy::TenantId;
use crate::policy::gang::{Member, Order, Position, Post};
use crate::policy::tuning::Tuning;
use std::collections::BTreeSet;
use std::time::Duration;

/// While ranks catch up, it is looked at so often whether they did.
const CATCH_UP_POLL_NS: u64 = ns(Duration::from_micros(200));
/// A rank that was given one launch and shows nothing of it after so long is given another.
const CATCH_UP_RETRY_NS: u64 = ns(Duration::from_millis(3));

impl Scheduler {
    /// Sets what the board says: what is to be done with this GPU, and which tenants have it by the board alone.
    pub fn set_order(&mut self, order: Order, gangs: BTreeSet<TenantId>) {
        self.order = order;
        self.gangs = gangs;
    }

    /// What the board is to know of this GPU.
    pub fn post(&self, now_ns: u64, tuning: &Tuning) -> Post {
        let may_launch = |tenant: &Tenant| !matches!(tenant.grant, Grant::Closed | Grant::Paused);
        let owners = self.tenants.iter().filter(|(id, tenant)| {
            let is_of_interest = tenant.seen.wants() || may_launch(tenant) || self.is_gang(**id);
            tenant.is_here() && tenant.rank == Rank::Owner && is_of_interest
        });
        let members = owners.map(|(id, tenant)| {
            let hold = self.hold.filter(|hold| hold.tenant == *id);
            let begun_ns = hold.map_or(0, |hold| begun_ns(&hold, tenant, now_ns));
            let is_idle = |hold: Hold| {
                self.gang_idle_ends_ns(&hold, now_ns, tuning).is_some_and(|ends_ns| now_ns >= ends_ns)
            };
            Member {
                tenant: *id,
                in_flight: tenant.seen.in_flight,
                waiting: tenant.seen.waiting,
                may_launch: may_launch(tenant),
                progressed_ns: tenant.last_progress_ns,
                pending_ns: tenant.seen.pending_ns,
                is_done: hold.is_some_and(is_idle),
                presses: if hold.is_some() {
                    self.presses(tenant)
                } else {
                    self.may_press(tenant, now_ns, tuning)
                },
                position: position(tenant.vtime + tenant.weighted(begun_ns))
                    - position(self.vclocks[Rank::Owner as usize]),
            }
        });
        let is_in_turn = |hold: &Hold| {
            let grant = self.grant(hold.tenant);
            let has_lease = matches!(grant, Grant::Leased { expires_ns } if now_ns < expires_ns);
            has_lease && hold.contended.is_some() && hold.drain_give_up_ns.is_none()
        };
        Post {
            members: members.collect(),
            holder: self.hold.map(|hold| hold.tenant),
            is_in_turn: self.hold.as_ref().is_some_and(is_in_turn),
            quantum_ns: tuning.quantum_ns,
            lead_ns: tuning.lead_ns,
        }
    }

    /// Whether the tenant has GPUs by the board alone.
    pub fn is_gang(&self, tenant: TenantId) -> bool {
        self.gangs.contains(&tenant)
    }

    /// Nobody has the GPU.
    pub(super) fn ordered_free_step(&mut self, now_ns: u64, tuning: &Tuning) -> Step {
        match self.order {
            Order::Apart => {
                // A gang that is to go next has it, if it can have its other GPUs too. The board says so once it has seen that this one is free.
                let next = self.next(Rank::Owner, None);
                if next.is_some_and(|next| self.is_gang(next)) && !self.was_offered {
                    self.was_offered = true;
                    return Step::Stay(Some(now_ns));
                }
                self.free_step(now_ns, tuning)
            }
            Order::Held { tenant, until_ns } => match self.tenants.get(&tenant) {
                Some(gang) if gang.is_here() => {
                    // While no other wants any of its GPUs, guests have its pauses.
                    let pauses = until_ns.is_none() && !gang.wanted;
                    let guest = pauses.then(|| self.next_guest(None, now_ns, tuning).ok()).flatten();
                    self.give(guest.map_or(tenant, |(guest, _)| guest), now_ns, tuning)
                }
                _ => Step::Stay(None),
            },
            // Its drain was over here, and is not elsewhere.
            Order::Drain { tenant, catches_up: true } if self.tenants.contains_key(&tenant) => {
                self.give(tenant, now_ns, tuning);
                match self.hold {
                    Some(hold) => self.close(hold, now_ns),
                    None => Step::Stay(None),
                }
            }
            Order::ClearFor(_) | Order::Drain { .. } => Step::Stay(None),
        }
    }

    /// Somebody has the GPU.
    pub(super) fn ordered_step(&mut self, hold: Hold, now_ns: u64, tuning: &Tuning) -> Step {
        match self.order {
            Order::Apart if self.is_gang(hold.tenant) => self.close(hold, now_ns),
            Order::Apart if self.is_guest(hold.tenant) => self.guest_step(hold, now_ns, tuning),
            Order::Apart => self.hold_step(hold, now_ns, tuning),
            Order::Held { tenant, until_ns } if tenant == hold.tenant => {
                self.gang_step(hold, until_ns, now_ns, tuning)
            }
            Order::Held { until_ns: None, .. } if self.is_guest(hold.tenant) => {
                self.guest_step(hold, now_ns, tuning)
            }
            Order::ClearFor(tenant) if tenant == hold.tenant => Step::Stay(None),
            Order::Held { .. } | Order::ClearFor(_) | Order::Drain { .. } => self.close(hold, now_ns),
        }
    }

    /// A gang has the GPU, and its others.
    fn gang_step(&mut self, hold: Hold, until_ns: Option<u64>, now_ns: u64, tuning: &Tuning) -> Step {
        let grant = self.grant(hold.tenant);
        let Some(until_ns) = until_ns else {
            return match self.next(Rank::Guest, Some(hold.tenant)) {
                Some(_) => self.beside_step(hold, grant, now_ns, tuning),
                None => self.alone_step(hold, grant, now_ns, tuning),
            };
        };
        self.hold = Some(hold.contend(now_ns));
        let lease = Grant::Leased { expires_ns: until_ns };
        self.change(hold.tenant, lease, matches!(grant, Grant::Leased { .. }));
        let renewal_ns = until_ns.saturating_sub(tuning.lead_ns);
        let wake_ns = if now_ns < renewal_ns { renewal_ns } else { until_ns };
        let idle_ends_ns = self.gang_idle_ends_ns(&hold, now_ns, tuning).filter(|ends_ns| now_ns < *ends_ns);
        Step::Stay(Some(idle_ends_ns.map_or(wake_ns, |ends_ns| ends_ns.min(wake_ns))))
    }

    /// Until when a rank that wants nothing now is waited for.
    fn gang_idle_ends_ns(&self, hold: &Hold, now_ns: u64, tuning: &Tuning) -> Option<u64> {
        let holder = self.tenants.get(&hold.tenant)?;
        let next = self.next(Rank::Owner, Some(hold.tenant)).and_then(|next| self.tenants.get(&next));
        let vtime = holder.vtime + holder.weighted(begun_ns(hold, holder, now_ns));
        let patience_ns = patience_ns(holder, next.is_some_and(|next| vtime < next.vtime), tuning);
        hold.idle_since_ns.map(|since_ns| since_ns.saturating_add(patience_ns))
    }

    /// What somebody has in flight runs out.
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
            Order::Held { tenant, until_ns: Some(_) } if tenant == hold.tenant && !self.is_paused(tenant) => {
                self.hold = Some(Hold { drain_give_up_ns: None, once_since_ns: None, ..hold });
                Step::Again
            }
            _ => self.drain_step(hold, give_up_ns, now_ns, tuning),
        }
    }

    /// The gang's other ranks drain too; whoever waits with what one of those needs may launch it.
    fn drain_together(&mut self, hold: Hold, catches_up: bool, give_up_ns: u64, now_ns: u64) -> Step {
        let Some(holder) = self.tenants.get(&hold.tenant) else {
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
            // A new epoch for each.
            Some(_) => None,
            None => catches_up.then_some(now_ns),
        };
        self.hold = Some(Hold { once_since_ns, ..hold });
        let grant = if once_since_ns.is_some() { Grant::Once } else { Grant::Closed };
        self.change(hold.tenant, grant, false);
        let poll_ns = if catches_up { CATCH_UP_POLL_NS } else { DRAIN_POLL_NS };
        Step::Stay(Some(give_up_ns.min(now_ns.saturating_add(poll_ns))))
    }

    /// Whether a tenant whose drain has begun may have the GPU back, if nobody else can be given it now: a gang that waits for its other GPUs
    /// goes on waiting for this one.
    pub(super) fn may_go_on(&self, tenant: TenantId) -> bool {
        match self.order {
            Order::Apart => !self.is_gang(tenant) && self.next(Rank::Owner, Some(tenant)).is_none(),
            Order::Held { tenant: gang, until_ns: None } => tenant == gang,
            Order::Held { .. } | Order::ClearFor(_) | Order::Drain { .. } => false,
        }
    }
}

/// Virtual time as a place on a line.
fn position(vtime: super::state::VirtualTime) -> Position {
    Position::try_from(vtime).unwrap_or(Position::MAX)
}
