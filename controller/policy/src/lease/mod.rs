//! Who has the GPU now, and until when: weighted fair leases in virtual time.
//!
//! A tenant's virtual time grows by the GPU time it is charged, divided by its weight, and the tenant that is furthest behind
//! goes next (start-time fair queueing after Goyal, Vin and Cheng, SIGCOMM 1996, with the charge known only afterwards). What a
//! holder overruns by is in its virtual time when it is charged, so it waits that much longer: long-run shares are exact
//! however long the kernels are. Of those equally far behind the one that is owed most goes first.
//!
//! One tenant at a time holds the GPU. Nobody else wants it: its gate is open. Somebody does: it has a lease, renewed while it
//! is behind. At a hand-off its gate is closed first, then its meters are read again, what it has in flight drains (for a bounded time), then the
//! next one's gate opens. A holder with nothing to do gives up the GPU to who has.
//!
//! Guests, which are the tenants of the best-effort class, are chosen only when no other (no *owner*) wants the GPU, by the same
//! rule among themselves, and lose it as soon as one does; [`guard`] bounds what that costs the owners.
//!
//! An owner with a time objective (an SLO) is of the *latency class*: while it is not far ahead of its share it goes before the others, whose gates
//! close when it comes, and whose windows are short while it is there. What it has is charged as always, so it has no more of the GPU for it.
//!
//! The caller feeds [`Scheduler::observe`] with what the meters say and then asks [`Scheduler::decide`].

mod gangs;
pub mod guard;
mod kept;
mod restore;
mod state;
mod tenants;
pub mod trust;

use crate::TenantId;
use crate::class::Class;
use crate::gang::{Gangs, Order};
use crate::tuning::Tuning;
use alloc::collections::BTreeMap;
use alloc::vec::{Drain, Vec};
use core::cmp::Reverse;
use core::mem;
use core::time::Duration;
use guard::{Guard, Owners};
use state::{
    Contended, Forfeited, Hold, Lenience, NewQuota, Noted, Rank, Stuck, Tenant, VirtualTime, begun_ns,
    credit_ns, mean, patience,
};
use tenants::Tenants;
use trust::{Trust, UserId};

const fn ns(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// A holder that is alone keeps terms (and with them its window) for so long after another wanted the GPU: whoever comes
/// back soon finds little in flight.
const STAY_LEASED_NS: u64 = ns(Duration::from_millis(100));
/// GPU time that may be queued behind an open gate.
const RUN_AHEAD_NS: u64 = ns(Duration::from_millis(100));
/// For so long after it came, or last did something, an owner may be back at any moment.
const AWAITED_NS: u64 = ns(Duration::from_secs(60));
/// How long such a lease lasts at a time.
const SOLO_LEASE_NS: u64 = ns(Duration::from_millis(50));
/// A guest may keep an owner waiting for this part (one in so many) of the time in which it has to answer.
const WAITS_PER_SLO: u64 = 20;
/// A drain lasts at least so long before it is given up: most kernels are shorter.
const MIN_DRAIN_NS: u64 = ns(Duration::from_millis(50));
/// And at most so long: then the next gate opens and the hardware takes turns.
const MAX_DRAIN_NS: u64 = ns(Duration::from_secs(1));
/// … and only so long for a tenant that did not drain the last time and has not got done since what explains it: its work seems not to end.
const STUCK_DRAIN_NS: u64 = ns(Duration::from_millis(2));
/// The drain limit allows for so many of the tenant's longest kernels: the meter counts some as one.
const LONGEST_PER_DRAIN: u64 = 4;
/// A weight that changes by more than this part of itself (one in so many) is a new quota, and not a priority that moves with time.
const NEW_QUOTA_PART: u32 = 8;
/// A lease ends for a new quota so often at most.
const REDISTRIBUTION_NS: u64 = ns(Duration::from_millis(50));
/// Who is behind when that happens keeps the GPU until it has caught up, and for this part of a quantum (one in so many) at most if it is behind by no more than a quantum then:
/// who gains waits for that, and for what is in flight. What is left is its due of later turns.
const CATCH_UP_PART: u64 = 4;
/// How far an owner with a time objective may be ahead of the one that is furthest behind, and still go before it: as if it had been alone for so
/// long, times its share …
const MAX_ADVANCE: VirtualTime = ns(Duration::from_millis(50)) as VirtualTime;
/// … and only until all of them together have had so many quanta of GPU time more than that one by their weights: so far, at most, it can be behind what is owed to it for their sake.
const QUANTA_OF_ADVANCE: u64 = 2;
/// A pause in which a guest waits without leave is looked at so often.
const PAUSE_POLL_NS: u64 = ns(Duration::from_millis(1));
/// A drain is looked at so often even if no bell rings.
const DRAIN_POLL_NS: u64 = ns(Duration::from_millis(1));
/// Changes and hand-offs that one decision may make without an allocation.
const MOST_CHANGES: usize = 16;
/// What a tenant's gate is to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// Wait.
    Closed,
    /// Go until then.
    Leased {
        /// ns of the monotonic clock.
        expires_ns: u64,
    },
    /// Each process may launch one thing.
    Once,
    /// Go.
    Open,
    /// Wait, and do not call for the GPU: an administrator paused the tenant.
    Paused,
}

/// A change to a tenant's gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Whose.
    pub tenant: TenantId,
    /// What its gate is to say.
    pub grant: Grant,
    /// The lease goes on: same epoch, new terms.
    pub renewal: bool,
}

/// What the meters of a tenant's sessions say, together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// Threads wait at the gate.
    pub waiting: bool,
    /// Something is in flight.
    pub in_flight: bool,
    /// GPU time used since the last time, ns: what is charged.
    pub used_ns: u64,
    /// Estimated GPU time in flight, ns.
    pub pending_ns: u64,
    /// The longest kernel or graph, ns.
    pub longest_ns: u64,
}

impl Seen {
    fn wants(&self) -> bool {
        self.waiting || self.in_flight
    }
}

/// Where the GPU is between two tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Nobody has it.
    Free,
    /// One tenant has it.
    Held(TenantId),
    /// One tenant had it; its work in flight is running out.
    Draining(TenantId),
}

/// What a hand-off cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handoff {
    /// Time in one hold that the GPU spent on nobody's work, the ways in and out included, ns. `None` if it cannot be told:
    /// the holder paused by its own choice, or did not drain.
    pub idle_ns: Option<u64>,
}

/// The leases of one GPU.
#[derive(Debug, Default)]
pub struct Scheduler {
    tenants: Tenants,
    /// Of users of whom there is something to remember.
    trusts: BTreeMap<UserId, Trust>,
    hold: Option<Hold>,
    /// Of owners and of guests, by [`Rank`].
    vclocks: [VirtualTime; 2],
    /// The virtual time of the owner that wants the GPU and is furthest behind.
    owners_behind: VirtualTime,
    /// GPU time that owners with a time objective may still have before it, ns.
    advance_left_ns: u64,
    guard: Guard,
    /// The owner that had the GPU last: it has it before it asks, if guests are the only others.
    last_owner: Option<TenantId>,
    /// Who gained last by a new quota.
    gainer: Option<TenantId>,
    /// What somebody is owed changed since the GPU was last given.
    is_redistributed: bool,
    /// When a lease last ended for that.
    redistributed_ns: Option<u64>,
    /// When two tenants last wanted the GPU at once.
    contended_ns: Option<u64>,
    /// What the owner that has the GPU had got done at the last decision.
    noted: Option<Noted>,
    /// What the host's board says of this GPU, and who has it by the board alone.
    order: Order,
    gangs: Gangs,
    kept: Option<kept::Kept>,
    /// Who has the GPU, has nothing to do, and is waited for at its own cost.
    waits_at_cost: Option<TenantId>,
    /// No lease goes on after that.
    lease_limit_ns: u64,
    /// When an owner was last given the GPU for its time objective.
    pressed_ns: u64,
    changes: Vec<Change>,
    handoffs: Vec<Handoff>,
    /// Working memory: the guests that want the GPU.
    guests: Vec<(VirtualTime, TenantId, u64)>,
}

impl Scheduler {
    /// Adds a tenant of a class, or brings back one that was away. Its gate is closed.
    pub fn enter(&mut self, tenant: TenantId, class: Class, now_ns: u64) {
        let rank = Rank::of(class);
        let vclock = self.vclocks[rank as usize];
        let new = Tenant {
            rank,
            user: None,
            takes_over: false,
            left_owing_ns: 0,
            metered_ns: 0,
            weight_ppm: 0,
            slo_ns: None,
            vtime: vclock,
            old_weight_ppm: 0,
            old_vtime: vclock,
            present: true,
            came_ns: now_ns,
            is_paused: false,
            seen: Seen::default(),
            wanted: false,
            has_used: false,
            stopped_wanting_ns: 0,
            used_at_ns: 0,
            last_progress_ns: now_ns,
            largest_charge_ns: 0,
            advance_ns: 0,
            burst_ns: 0,
            mean_burst_ns: 0,
            mean_pause_ns: 0,
            forfeited: Forfeited::default(),
            lenience: Lenience::default(),
            stuck: None,
            new_quota: None,
            grant: Grant::Closed,
        };
        self.changes.reserve(MOST_CHANGES);
        self.handoffs.reserve(MOST_CHANGES);
        self.guests.reserve(self.tenants.len() + 1);
        let tenant = self.tenants.get_or_insert(tenant, new);
        if core::mem::replace(&mut tenant.present, true) {
            return;
        }
        tenant.came_ns = now_ns;
        // What it owes is its own again.
        let owing_ns = mem::take(&mut tenant.left_owing_ns);
        if let Some(trust) = tenant.user.and_then(|user| self.trusts.get_mut(&user)) {
            trust.take_over(tenant.rank, owing_ns, now_ns);
        }
    }

    /// Says whose a tenant is that has entered: a new one will take over what tenants of that user owe that are gone.
    pub fn set_user(&mut self, tenant: TenantId, user: UserId, now_ns: u64) {
        let Some(tenant) = self.tenants.get_mut(tenant) else { return };
        tenant.takes_over |= tenant.user.replace(user).is_none();
        self.trusts.entry(user).or_default();
        self.divide_lenience(user, now_ns);
    }

    /// What is let pass to a user is one for all of its tenants.
    fn divide_lenience(&mut self, user: UserId, now_ns: u64) {
        let of_user = |tenant: &Tenant| tenant.present && tenant.user == Some(user);
        let among = self.tenants.values().filter(|tenant| of_user(tenant)).count() as u64;
        for tenant in self.tenants.values_quietly().filter(|tenant| of_user(tenant)) {
            tenant.lenience.divide(among, now_ns);
        }
    }

    /// Whether a tenant has wanted nothing for so long that what it asks for is not kept from the others.
    pub fn is_idle(&self, tenant: TenantId, now_ns: u64) -> bool {
        self.tenants.get(tenant).is_some_and(|tenant| tenant.is_idle(now_ns))
    }

    /// A tenant's last session on this GPU is gone: what it held is free at once. What it owes is kept.
    pub fn leave(&mut self, id: TenantId, now_ns: u64) {
        // What it used while nobody else wanted the GPU it owes nobody.
        self.advance_clocks();
        if let Some(tenant) = self.tenants.get_mut(id) {
            if tenant.wanted {
                tenant.stopped_wanting_ns = now_ns;
            }
            // Whoever ends in the middle of a turn does not shed what it had of it, nor is anything of that let pass: it wakes up no more.
            tenant.lenience = tenant.lenience.spent(now_ns);
            let held = self.hold.filter(|hold| hold.tenant == id);
            let unshown_ns = held.map_or(0, |hold| tenant.settle(&hold, now_ns));
            tenant.left_owing_ns = tenant.owing_ns(self.vclocks[tenant.rank as usize]);
            if let Some(user) = tenant.user {
                let trust = self.trusts.entry(user).or_default();
                trust.had_unshown(unshown_ns, now_ns);
                trust.leave(tenant.rank, tenant.left_owing_ns, now_ns);
            }
            tenant.present = false;
            tenant.seen = Seen::default();
            tenant.wanted = false;
            tenant.grant = tenant.closed();
        }
        if let Some(user) = self.tenants.get(id).and_then(|tenant| tenant.user) {
            self.divide_lenience(user, now_ns);
        }
        self.free(id);
        let is_here =
            |user: UserId| self.tenants.values().any(|tenant| tenant.present && tenant.user == Some(user));
        self.trusts.retain(|user, trust| !trust.is_as_new(now_ns) || is_here(*user));
    }

    /// Pauses a tenant, or ends its pause. What a paused one has in flight runs out; until it is resumed it wants nothing, and the others
    /// share the GPU as if it were not there.
    pub fn set_paused(&mut self, id: TenantId, is_paused: bool) {
        let Some(tenant) = self.tenants.get_mut(id) else { return };
        tenant.is_paused = is_paused;
        if matches!(tenant.grant, Grant::Closed | Grant::Paused) {
            self.change(id, Grant::Closed, false);
        }
    }

    /// Forgets a tenant.
    pub fn forget(&mut self, id: TenantId) {
        self.tenants.remove(id);
        self.free(id);
    }

    fn free(&mut self, id: TenantId) {
        if self.hold.is_some_and(|hold| hold.tenant == id) {
            self.hold = None;
        }
    }

    /// Sets what a tenant is owed: its class, and its weight among its like.
    pub fn set_standing(&mut self, id: TenantId, class: Class, weight_ppm: u32) {
        let phase = self.phase();
        let Some(tenant) = self.tenants.get_quietly(id) else { return };
        let change_ppm = tenant.weight_ppm.abs_diff(weight_ppm);
        let gains = weight_ppm > tenant.weight_ppm;
        // Of nothing that a holder gains it is to give up its lease.
        let is_for_others = match phase {
            Phase::Held(holder) => gains != (holder == id),
            Phase::Free | Phase::Draining(_) => true,
        };
        let is_new_quota = change_ppm > tenant.weight_ppm / NEW_QUOTA_PART;
        self.is_redistributed |= is_for_others && is_new_quota;
        // Of who had nothing yet it is the first.
        if is_new_quota && tenant.metered_ns > 0 {
            tenant.new_quota = Some(if gains { NewQuota::More } else { NewQuota::Less });
            self.gainer = if gains { Some(id) } else { self.gainer };
        }
        let vclock = self.vclocks[tenant.rank as usize];
        tenant.set_weight(weight_ppm, vclock);
        let rank = Rank::of(class);
        let has_moved = tenant.rank != rank;
        if has_moved {
            // What it owed the ones is nothing to the others.
            tenant.rank = rank;
            tenant.vtime = self.vclocks[rank as usize];
            tenant.old_vtime = tenant.vtime;
        }
        if has_moved || tenant.vtime > tenant.most_ahead(vclock) {
            self.tenants.touch(id);
        }
    }

    /// Sets how soon a tenant's requests are to be answered, ns.
    pub fn set_slo(&mut self, tenant: TenantId, slo_ns: Option<u64>) {
        self.tenants.set_slo(tenant, slo_ns);
    }

    /// Sets the part of the time that guests may cost owners, parts per million.
    pub fn set_max_harm(&mut self, max_harm_ppm: u32) {
        self.guard = Guard::new(max_harm_ppm);
    }

    /// What guests may cost owners.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// GPU time that each session of a tenant, of which the longest kernel took `longest_ns`, may have in flight under a lease, ns.
    pub fn window_ns(&self, tenant: TenantId, sessions: usize, longest_ns: u64, tuning: &Tuning) -> u64 {
        let longest_ns = self.longest_ns(tenant, longest_ns);
        if self.gives_way(tenant) {
            tuning.guest_window_ns(longest_ns)
        } else {
            tuning.session_window_ns(sessions, longest_ns)
        }
    }

    /// GPU time that each session of a tenant with an open gate may have in flight, ns, which is what another waits for that comes: much, so that pauses of its
    /// host leave the GPU busy, unless another owner was there of late and may be back at any moment. A guest gives way to whoever comes.
    pub fn run_ahead_ns(
        &self,
        id: TenantId,
        sessions: usize,
        longest_ns: u64,
        now_ns: u64,
        tuning: &Tuning,
    ) -> u64 {
        let is_awaited = |(other, tenant): (&TenantId, &Tenant)| {
            let is_recent = now_ns.saturating_sub(tenant.last_progress_ns) < AWAITED_NS;
            *other != id && tenant.is_here() && tenant.rank == Rank::Owner && is_recent
        };
        if !self.is_guest(id) && !self.tenants.iter().any(is_awaited) {
            return RUN_AHEAD_NS;
        }
        let quantum_ns = tuning.quantum_ns / sessions.max(1) as u64;
        let longest_ns = self.longest_ns(id, longest_ns);
        tuning.session_window_ns(sessions, longest_ns).max(quantum_ns).min(RUN_AHEAD_NS)
    }

    /// What counts as a tenant's longest kernel: the ranks of a gang run ahead alike.
    fn longest_ns(&self, tenant: TenantId, longest_ns: u64) -> u64 {
        self.gangs.get(&tenant).map_or(longest_ns, |all_ns| longest_ns.max(*all_ns))
    }

    /// Whether the tenant may have about one kernel in flight, for others who come at any moment.
    fn gives_way(&self, tenant: TenantId) -> bool {
        let has_objective = || self.tenants.get(tenant).is_some_and(Tenant::has_objective);
        (self.is_guest(tenant) && self.owner_is_present())
            || (self.is_beside_objective(tenant) && !has_objective())
    }

    /// Forgets what everybody owes and is owed: what happened while nobody governed, for the `silent_ns` until now, is nobody's debt. Nor had
    /// the holder the GPU to itself then, or kept it from anybody: its hold begins anew.
    pub fn forgive(&mut self, now_ns: u64, silent_ns: u64) {
        for tenant in self.tenants.values_quietly() {
            tenant.vtime = self.vclocks[tenant.rank as usize];
            tenant.old_vtime = tenant.vtime;
            tenant.advance_ns = 0;
            tenant.left_owing_ns = 0;
            tenant.last_progress_ns = now_ns;
            if let Some(stuck) = &mut tenant.stuck {
                *stuck = Stuck { since_ns: now_ns, used_ns: 0 };
            }
        }
        self.trusts.values_mut().for_each(|trust| *trust = Trust::default());
        self.hold = self.hold.map(|hold| hold.renew(now_ns, silent_ns));
        // The next decision notes it anew.
        self.kept = None;
        self.guard.skip();
    }

    /// What a tenant's gate is to say.
    pub fn grant(&self, tenant: TenantId) -> Grant {
        self.tenants.get(tenant).map_or(Grant::Closed, |tenant| tenant.grant)
    }

    /// Who has the GPU.
    pub fn phase(&self) -> Phase {
        match self.hold {
            None => Phase::Free,
            Some(Hold { tenant, drain_give_up_ns: None, .. }) => Phase::Held(tenant),
            Some(Hold { tenant, .. }) => Phase::Draining(tenant),
        }
    }

    /// GPU time that a tenant is owed beside the one furthest behind, ns; negative if it had more.
    pub fn lag_ns(&self, tenant: TenantId) -> i64 {
        let Some(tenant) = self.tenants.get(tenant) else { return 0 };
        let gpu_ns = |vtime: VirtualTime| i64::try_from(tenant.gpu_ns(vtime)).unwrap_or(i64::MAX);
        let vclock = self.vclocks[tenant.rank as usize];
        if tenant.vtime <= vclock { gpu_ns(vclock - tenant.vtime) } else { -gpu_ns(tenant.vtime - vclock) }
    }

    /// Takes in what a tenant's meters say at `now_ns`.
    pub fn observe(&mut self, id: TenantId, now_ns: u64, seen: Seen) {
        let is_holder = self.hold.is_some_and(|hold| hold.tenant == id);
        if !is_holder && self.tenants.get(id).is_some_and(|tenant| tenant.still_rests(&seen)) {
            return;
        }
        let Some(tenant) = self.tenants.get_mut(id) else { return };
        if let Some(stuck) = &mut tenant.stuck {
            stuck.used_ns = stuck.used_ns.saturating_add(seen.used_ns);
            if !seen.in_flight || stuck.is_over(now_ns) {
                tenant.stuck = None;
            }
        }
        if seen.used_ns > 0 {
            let set_off_ns = seen.used_ns.min(tenant.advance_ns);
            tenant.advance_ns -= set_off_ns;
            tenant.metered_ns = tenant.metered_ns.saturating_add(seen.used_ns);
            if let Some(trust) = tenant.user.and_then(|user| self.trusts.get_mut(&user)) {
                trust.shown(set_off_ns, now_ns);
            }
            tenant.charge(seen.used_ns - set_off_ns);
            tenant.burst_ns = tenant.burst_ns.saturating_add(seen.used_ns);
            tenant.has_used = true;
            tenant.used_at_ns = now_ns;
        }
        if seen.used_ns > 0 || (seen.in_flight && !tenant.seen.in_flight) {
            tenant.last_progress_ns = now_ns;
        }
        tenant.seen = seen;
        if let Some(hold) = self.hold.as_mut().filter(|hold| hold.tenant == id) {
            hold.used_ns = hold.used_ns.saturating_add(seen.used_ns);
            hold.ran |= seen.in_flight;
            if seen.wants() {
                hold.idle_since_ns = None;
            } else if hold.drain_give_up_ns.is_none() {
                hold.paused = true;
                hold.idle_since_ns.get_or_insert(now_ns);
            }
        }
    }

    /// Takes in where a session's work began and ended, if it says so: before [`Self::observe`], of each session of who has the GPU.
    pub fn observe_edges(&mut self, id: TenantId, began_ns: Option<u64>, ended_ns: Option<u64>) {
        let Some(hold) = self.hold.as_mut().filter(|hold| hold.tenant == id) else { return };
        let began_ns = began_ns.filter(|began_ns| *began_ns >= hold.since_ns);
        hold.began_ns = [hold.began_ns, began_ns].into_iter().flatten().min();
        hold.ended_ns = hold.ended_ns.max(ended_ns);
    }

    /// Decides at `now_ns`. The gates that change are in [`Self::take_changes`] afterwards. Returns when to decide again if
    /// nothing happens before.
    pub fn decide(&mut self, now_ns: u64, tuning: &Tuning) -> Option<u64> {
        self.lease_limit_ns = u64::MAX;
        self.charge_kept(now_ns, tuning);
        self.account(now_ns, tuning);
        self.waits_at_cost = None;
        let wake_ns = self.decide_steps(now_ns, tuning);
        self.note_kept(now_ns);
        wake_ns
    }

    fn decide_steps(&mut self, now_ns: u64, tuning: &Tuning) -> Option<u64> {
        loop {
            let step = match self.hold {
                None => self.ordered_free_step(now_ns, tuning),
                Some(hold) => match hold.drain_give_up_ns {
                    None if self.is_paused(hold.tenant) => self.close(hold, now_ns),
                    None => self.ordered_step(hold, now_ns, tuning),
                    // What passed the gate before it closed is in no meter that was read before.
                    Some(_) if hold.closed_ns.is_some_and(|closed_ns| now_ns <= closed_ns) => {
                        Step::Stay(Some(now_ns.saturating_add(1)))
                    }
                    Some(give_up_ns) => self.ordered_drain_step(hold, give_up_ns, now_ns, tuning),
                },
            };
            match step {
                Step::Stay(wake_ns) => return wake_ns,
                Step::Again => {}
            }
        }
    }

    /// Returns the number of changes that may wait to be taken: those of one decision, and the pause
    /// or resumption of each tenant.
    pub fn most_changes(&self) -> usize {
        self.tenants.len() + MOST_CHANGES
    }

    /// Takes the gates to change, oldest first.
    pub fn take_changes(&mut self) -> Drain<'_, Change> {
        self.changes.drain(..)
    }

    /// Takes the hand-offs since the last call.
    pub fn take_handoffs(&mut self) -> Drain<'_, Handoff> {
        self.handoffs.drain(..)
    }

    /// Advances the virtual clock and lets in who begins to want the GPU.
    fn account(&mut self, now_ns: u64, tuning: &Tuning) {
        self.note_progress(now_ns);
        self.advance_clocks();
        let mut wanting = [0; 2];
        self.tenants.look(|id, tenant| {
            let vclock = self.vclocks[tenant.rank as usize];
            let wants = tenant.seen.wants() && !tenant.is_paused;
            wanting[tenant.rank as usize] += usize::from(wants);
            if wants && !tenant.wanted {
                let pause_ns = now_ns.saturating_sub(tenant.stopped_wanting_ns);
                // A gang's processes pause by each other, and it waits for several GPUs: that is not by its own choice.
                let has_kept = tenant.has_kept(id, self.hold.as_ref()) || self.gangs.contains_key(&id);
                let credit_ns = credit_ns(pause_ns, has_kept, tuning);
                let least = vclock.saturating_sub(tenant.weighted(credit_ns));
                if tenant.rank == Rank::Owner && credit_ns > 0 {
                    tenant.forfeit(least.saturating_sub(tenant.vtime), now_ns);
                }
                tenant.vtime = tenant.vtime.max(least);
                if mem::take(&mut tenant.takes_over)
                    && let Some(trust) = tenant.user.and_then(|user| self.trusts.get_mut(&user))
                {
                    let taken_ns = trust.take_over(tenant.rank, tenant.max_debt_ns(), now_ns);
                    tenant.vtime = tenant.vtime.saturating_add(tenant.weighted(taken_ns));
                }
                tenant.mean_pause_ns = mean(tenant.mean_pause_ns, pause_ns.min(STAY_LEASED_NS));
                tenant.last_progress_ns = now_ns;
            }
            tenant.vtime = tenant.vtime.min(tenant.most_ahead(vclock));
            tenant.old_vtime = tenant.old_vtime.min(tenant.vtime);
            if !wants && tenant.wanted {
                tenant.stopped_wanting_ns = now_ns;
                tenant.mean_burst_ns = mean(tenant.mean_burst_ns, tenant.burst_ns);
                tenant.burst_ns = 0;
            }
            tenant.wanted = wants;
            tenant.has_used = false;
        });
        // The clock stands where it was when the furthest behind paused for a moment.
        self.owners_behind = self.behind(Rank::Owner, |tenant| tenant.wanted).unwrap_or(0);
        self.advance_left_ns = self.advance_left_ns(tuning);
        if wanting.iter().any(|wanting| *wanting > 1) {
            self.contended_ns = Some(now_ns);
        }
        let owners = Owners {
            present: self.owner_is_present(),
            want: wanting[Rank::Owner as usize] > 0,
            kept_out: self.hold.is_some_and(|hold| self.is_guest(hold.tenant)),
        };
        self.guard.observe(now_ns, owners, tuning.grace_ns);
    }

    /// GPU time that owners with a time objective may have before the one furthest behind, less what they have had, ns.
    fn advance_left_ns(&self, tuning: &Tuning) -> u64 {
        let owners = self.tenants.with_objective().map(|(_, tenant)| tenant);
        let present = owners.filter(|tenant| tenant.is_here() && tenant.has_objective());
        let had_ns = present.map(|tenant| tenant.gpu_ns(tenant.vtime.saturating_sub(self.owners_behind)));
        let most_ns = tuning.quantum_ns.saturating_mul(QUANTA_OF_ADVANCE);
        most_ns.saturating_sub(had_ns.fold(0, u64::saturating_add))
    }

    fn advance_clocks(&mut self) {
        for rank in [Rank::Owner, Rank::Guest] {
            // Who pauses at each look had the GPU all the same, and owes nothing for time in which nobody else wanted it.
            let behind = self.behind(rank, |tenant| tenant.wanted || tenant.has_used).unwrap_or(0);
            let vclock = &mut self.vclocks[rank as usize];
            *vclock = (*vclock).max(behind);
        }
    }

    /// The virtual time of the one of a rank that is furthest behind of those that `counts` picks.
    fn behind(&self, rank: Rank, counts: impl Fn(&Tenant) -> bool) -> Option<VirtualTime> {
        let counted = self.tenants.astir().filter(|(_, tenant)| tenant.rank == rank && counts(tenant));
        counted.map(|(_, tenant)| tenant.vtime).min()
    }

    /// Tells the guard how the owner that has the GPU gets on.
    fn note_progress(&mut self, now_ns: u64) {
        let owner = self.hold.filter(|hold| hold.drain_give_up_ns.is_none() && !self.is_guest(hold.tenant));
        let noted = owner.and_then(|Hold { tenant, since_ns, used_ns, .. }| {
            let wants = self.tenants.get(tenant)?.seen.wants();
            Some(Noted { hold_ns: since_ns, at_ns: now_ns, used_ns, wants })
        });
        let before = core::mem::replace(&mut self.noted, noted);
        if let (Some(before), Some(noted)) = (before, noted)
            && before.hold_ns == noted.hold_ns
            && before.wants
        {
            let mut guests = self.tenants.astir().filter(|(_, tenant)| tenant.rank == Rank::Guest);
            let has_guest_in = guests.any(|(_, guest)| guest.seen.in_flight);
            let (wanted_ns, used_ns) =
                (now_ns.saturating_sub(before.at_ns), noted.used_ns.saturating_sub(before.used_ns));
            self.guard.owner_progressed(wanted_ns, used_ns, has_guest_in);
        }
    }

    fn is_guest(&self, tenant: TenantId) -> bool {
        self.tenants.get(tenant).is_some_and(|tenant| tenant.rank == Rank::Guest)
    }

    fn is_paused(&self, tenant: TenantId) -> bool {
        self.tenants.get(tenant).is_some_and(|tenant| tenant.is_paused)
    }

    fn owner_is_present(&self) -> bool {
        self.tenants.values().any(|tenant| tenant.is_here() && tenant.rank == Rank::Owner)
    }

    /// How long every owner can be kept waiting at a time, ns.
    pub fn tolerated_ns(&self) -> u64 {
        let owners = self.tenants.values().filter(|tenant| tenant.is_here() && tenant.rank == Rank::Owner);
        owners.map(|owner| owner.slo_ns.unwrap_or(0) / WAITS_PER_SLO).min().unwrap_or(0)
    }

    /// Who of a rank wants the GPU and is furthest behind, `but` for one.
    fn next(&self, rank: Rank, but: Option<TenantId>) -> Option<TenantId> {
        self.next_of(rank, |id| Some(id) != but)
    }

    /// The same of those that can be given it by itself.
    fn next_apart(&self, rank: Rank, but: Option<TenantId>) -> Option<TenantId> {
        self.next_of(rank, |id| Some(id) != but && !self.is_gang(id))
    }

    /// Of those equally far behind (whoever comes back is as far as the clock) the one with the largest weight: for each turn that others have before it, it falls
    /// behind by its share of that turn.
    fn next_of(&self, rank: Rank, is_asked: impl Fn(TenantId) -> bool) -> Option<TenantId> {
        self.tenants
            .astir()
            .filter(|(id, tenant)| tenant.rank == rank && tenant.wanted && is_asked(**id))
            .min_by_key(|(_, tenant)| (!self.presses(tenant), tenant.vtime, Reverse(tenant.weight_ppm)))
            .map(|(id, _)| *id)
    }

    /// Whether a tenant goes before those that have no time objective.
    fn presses(&self, tenant: &Tenant) -> bool {
        self.presses_at(tenant, tenant.vtime)
    }

    /// The same, were this its virtual time: a holder's is later than what it was charged for.
    fn presses_at(&self, tenant: &Tenant, vtime: VirtualTime) -> bool {
        let is_near = vtime < self.owners_behind.saturating_add(MAX_ADVANCE);
        tenant.has_objective() && tenant.wanted && is_near && self.advance_at_ns(tenant, vtime) > 0
    }

    /// What is left of [`Self::advance_left_ns`] once a tenant that will be at this virtual time is charged.
    fn advance_at_ns(&self, tenant: &Tenant, vtime: VirtualTime) -> u64 {
        self.advance_left_ns.saturating_sub(tenant.gpu_ns(vtime.saturating_sub(tenant.vtime)))
    }

    /// The same, and that the others' leases end for it. So often at most, for all who have one together, haste costs no more hand-offs than having
    /// work all the time.
    fn may_press(&self, tenant: &Tenant, now_ns: u64, tuning: &Tuning) -> bool {
        self.presses(tenant) && now_ns >= self.pressed_ns.saturating_add(tuning.quantum_ns)
    }

    /// Whether an owner is there, other than this tenant, that is to be answered soon when it comes.
    fn is_beside_objective(&self, tenant: TenantId) -> bool {
        let mut others = self.tenants.with_objective().filter(|(id, _)| **id != tenant);
        others.any(|(_, other)| other.is_here() && other.is_answering())
    }

    /// The guest that goes next, `but` for one, and until when it may launch; or else when to ask again. It is the one furthest behind of those that
    /// the guard admits: one whose kernels are too long for the pauses keeps none from them whose kernels are not.
    fn next_guest(
        &mut self,
        but: Option<TenantId>,
        now_ns: u64,
        tuning: &Tuning,
    ) -> Result<(TenantId, u64), Option<u64>> {
        let is_asked = |(_, tenant): &(&TenantId, &Tenant)| tenant.rank == Rank::Guest && tenant.wanted;
        let mut guests = mem::take(&mut self.guests);
        guests.clear();
        let asked = self.tenants.astir().filter(is_asked);
        guests.extend(asked.map(|(id, tenant)| (tenant.vtime, *id, guest_window_ns(tenant, tuning))));
        guests.sort_unstable();
        self.guard.save_for(guests.iter().map(|(.., window_ns)| *window_ns).max().unwrap_or(0));
        let mut next = Err(None);
        for (_, guest, _) in guests.iter().filter(|(_, guest, _)| Some(*guest) != but) {
            match (self.guest_until_ns(*guest, now_ns, tuning), next) {
                (Ok(until_ns), _) => {
                    next = Ok((*guest, until_ns));
                    break;
                }
                (Err(again_ns), Err(retry_ns)) => {
                    next = Err([retry_ns, again_ns].into_iter().flatten().min());
                }
                (Err(_), Ok(_)) => {}
            }
        }
        self.guests = guests;
        next
    }

    /// Until when a guest may launch, or else when to ask again.
    fn guest_until_ns(&mut self, guest: TenantId, now_ns: u64, tuning: &Tuning) -> Result<u64, Option<u64>> {
        let window_ns = self.tenants.get(guest).map_or(0, |guest| guest_window_ns(guest, tuning));
        let tolerated_ns = self.tolerated_ns();
        self.guard
            .until_ns(now_ns, window_ns, tolerated_ns)
            .ok_or_else(|| self.guard.retry_ns(now_ns, window_ns, tolerated_ns))
    }

    /// The tenant, if there is but one: it has the GPU before it asks.
    fn only(&self) -> Option<TenantId> {
        let mut present = self.tenants.iter().filter(|(_, tenant)| tenant.is_here()).map(|(id, _)| *id);
        present.next().filter(|_| present.next().is_none())
    }

    /// The owner that had the GPU last, if it is still there.
    fn resident(&self) -> Option<TenantId> {
        self.last_owner.filter(|id| {
            self.tenants.get(*id).is_some_and(|owner| owner.is_here() && owner.rank == Rank::Owner)
        })
    }

    /// Nobody has the GPU.
    fn free_step(&mut self, now_ns: u64, tuning: &Tuning) -> Step {
        if let Some(owner) = self.next_apart(Rank::Owner, None) {
            let gainer = self.gainer.filter(|gainer| self.goes_before(*gainer, owner, now_ns, tuning));
            return self.give(gainer.unwrap_or(owner), now_ns, tuning);
        }
        let wake_ns = match self.next_guest(None, now_ns, tuning) {
            Ok((guest, _)) => return self.give(guest, now_ns, tuning),
            Err(wake_ns) => wake_ns,
        };
        // A gang that waits has no use for a GPU that somebody has who has nothing to do.
        let is_wanted = self.next(Rank::Owner, None).is_some();
        match self.only().or_else(|| self.resident()).filter(|id| !self.is_gang(*id) && !is_wanted) {
            Some(resident) => self.give(resident, now_ns, tuning),
            None => Step::Stay(wake_ns),
        }
    }

    /// Gives the GPU, which is free, to a tenant.
    fn give(&mut self, tenant: TenantId, now_ns: u64, tuning: &Tuning) -> Step {
        let given = self.tenants.get_quietly(tenant);
        let new_quota = given.and_then(|given| given.new_quota.take());
        // Who lost has no whole lease, should others come who did not.
        self.is_redistributed &= new_quota == Some(NewQuota::Less);
        if self.tenants.get(tenant).is_some_and(|tenant| self.presses(tenant)) {
            self.pressed_ns = now_ns;
        }
        let rank = if self.is_guest(tenant) { Rank::Guest } else { Rank::Owner };
        if rank == Rank::Owner {
            self.last_owner = Some(tenant);
            self.guard.owner_served(now_ns, tuning.handoff_ns);
        }
        let next = self.next(rank, Some(tenant));
        let contended = next.is_some();
        let beside = next.and_then(|next| Some((self.tenants.get(tenant)?, self.tenants.get(next)?)));
        let turn_ns = beside
            .map_or(tuning.quantum_ns, |(tenant, next)| self.turn_ns(tenant, tenant.vtime, next, tuning));
        let is_idle = self.tenants.get(tenant).is_some_and(|tenant| !tenant.seen.wants());
        self.hold = Some(Hold {
            tenant,
            since_ns: now_ns,
            used_ns: 0,
            ran: false,
            paused: is_idle,
            idle_since_ns: is_idle.then_some(now_ns),
            contended: contended.then_some(Contended { since_ns: now_ns, used_ns: 0, catches_up: false }),
            closed_ns: None,
            drain_give_up_ns: None,
            began_ns: None,
            ended_ns: None,
            once_since_ns: None,
            has_gained: new_quota == Some(NewQuota::More),
        });
        // Beside owners a guest's lease is as long as their pause; among themselves guests are as owners are. A gang's is as long as its turn.
        let is_apart = matches!(self.order, Order::Apart | Order::Until { .. });
        if contended && is_apart && (rank == Rank::Owner || !self.owner_is_present()) {
            self.lease(tenant, now_ns.saturating_add(turn_ns), false);
        }
        Step::Again
    }

    /// How long a lease lasts for a tenant at this virtual time beside whoever is next: a quantum, or until those with a time objective have all that they may have before the others.
    fn turn_ns(&self, tenant: &Tenant, vtime: VirtualTime, next: &Tenant, tuning: &Tuning) -> u64 {
        // What a short lease comes to is let pass to who shows no use of it: it has a whole one, and is charged.
        let is_ahead = vtime >= next.vtime && tenant.is_answering();
        if !is_ahead || !self.presses_at(tenant, vtime) || self.presses(next) {
            return tuning.quantum_ns;
        }
        self.advance_at_ns(tenant, vtime).clamp(tuning.lead_ns, tuning.quantum_ns)
    }

    /// A guest has the GPU.
    fn guest_step(&mut self, hold: Hold, now_ns: u64, tuning: &Tuning) -> Step {
        if self.next(Rank::Owner, None).is_some() {
            return self.close(hold, now_ns);
        }
        if !self.owner_is_present() {
            // Guests among themselves are as owners are.
            return self.hold_step(hold, now_ns, tuning);
        }
        let Some(guest) = self.tenants.get(hold.tenant) else {
            self.hold = None;
            return Step::Again;
        };
        let grant = guest.grant;
        let idle_ends_ns = hold.idle_since_ns.map(|since_ns| since_ns.saturating_add(tuning.grace_ns));
        if idle_ends_ns.is_some_and(|ends_ns| now_ns >= ends_ns) {
            // The owners have it back before they ask.
            return self.close(hold, now_ns);
        }
        let expires_ns = match grant {
            Grant::Leased { expires_ns } if now_ns < expires_ns => expires_ns,
            Grant::Leased { .. } if self.next(Rank::Guest, Some(hold.tenant)).is_some() => {
                return self.close(hold, now_ns);
            }
            Grant::Closed | Grant::Paused | Grant::Once | Grant::Leased { .. } | Grant::Open => {
                let Ok(until_ns) = self.guest_until_ns(hold.tenant, now_ns, tuning) else {
                    return self.close(hold, now_ns);
                };
                let contended = self.next(Rank::Guest, Some(hold.tenant)).is_some();
                let longest_ns = if contended { tuning.quantum_ns } else { SOLO_LEASE_NS };
                let expires_ns = until_ns.min(now_ns.saturating_add(longest_ns));
                self.hold =
                    Some(if contended { hold.contend(now_ns) } else { Hold { contended: None, ..hold } });
                self.lease(hold.tenant, expires_ns, matches!(grant, Grant::Leased { .. }));
                expires_ns
            }
        };
        Step::Stay(Some(idle_ends_ns.unwrap_or(expires_ns).min(expires_ns)))
    }

    /// Whether what somebody is owed changed since this was asked last, and a lease may end for it.
    fn takes_up_redistribution(&mut self, now_ns: u64, tuning: &Tuning) -> bool {
        mem::take(&mut self.is_redistributed) && self.may_redistribute(now_ns, tuning)
    }

    /// Whether the order of turns may be another for what somebody is owed now: for jobs that come and go all the time it is not each time. What changes within a quantum is one change.
    fn may_redistribute(&self, now_ns: u64, tuning: &Tuning) -> bool {
        self.redistributed_ns.is_none_or(|last_ns| {
            let same_until_ns = last_ns.saturating_add(tuning.quantum_ns);
            !(same_until_ns..last_ns.saturating_add(REDISTRIBUTION_NS)).contains(&now_ns)
        })
    }

    /// The order of turns is another for what changed.
    fn redistribute(&mut self, now_ns: u64) {
        if self.redistributed_ns.is_none_or(|last_ns| now_ns >= last_ns.saturating_add(REDISTRIBUTION_NS)) {
            self.redistributed_ns = Some(now_ns);
        }
    }

    /// Whether a tenant that gained by a new quota, and was not given the GPU since, has it before whose turn it is.
    fn goes_before(&self, gainer: TenantId, owner: TenantId, now_ns: u64, tuning: &Tuning) -> bool {
        let Some((tenant, owner)) = self.tenants.get(gainer).zip(self.tenants.get(owner)) else {
            return false;
        };
        let may_go = tenant.is_here() && tenant.wanted && !self.is_gang(gainer);
        may_go
            && tenant.new_quota == Some(NewQuota::More)
            && self.yields_to(owner, tenant, tenant.vtime, now_ns, tuning)
    }

    /// Whether whose turn it is leaves one more to who gained by a new quota and is at this virtual time: it is behind by no more than a quantum, and nobody is late.
    fn yields_to(
        &self,
        owner: &Tenant,
        gainer: &Tenant,
        vtime: VirtualTime,
        now_ns: u64,
        tuning: &Tuning,
    ) -> bool {
        let behind_ns = owner.behind_ns(owner.vtime, vtime);
        owner.rank == gainer.rank
            && behind_ns <= tuning.quantum_ns
            && !self.presses(owner)
            && self.may_redistribute(now_ns, tuning)
    }

    fn hold_step(&mut self, hold: Hold, now_ns: u64, tuning: &Tuning) -> Step {
        let Some(holder) = self.tenants.get(hold.tenant) else {
            self.hold = None;
            return Step::Again;
        };
        let grant = holder.grant;
        let Some(next) = self.next_apart(holder.rank, Some(hold.tenant)) else {
            if self.next(holder.rank, Some(hold.tenant)).is_some() {
                return self.before_gangs_step(hold, grant, now_ns, tuning);
            }
            return match self.next(Rank::Guest, Some(hold.tenant)) {
                Some(_) => self.beside_step(hold, grant, now_ns, tuning),
                None => self.alone_step(hold, grant, now_ns, tuning),
            };
        };
        let is_redistributed = self.takes_up_redistribution(now_ns, tuning);
        let Some((holder, next)) = self.tenants.get(hold.tenant).zip(self.tenants.get(next)) else {
            return Step::Again;
        };
        let vtime = holder.vtime + holder.weighted(begun_ns(&hold, holder, now_ns));
        let presses = [self.presses_at(holder, vtime), self.presses(next)];
        if presses == [false, true] && self.may_press(next, now_ns, tuning) {
            return self.close(hold, now_ns);
        }
        let is_behind = presses == [true, false] || vtime < next.vtime;
        let patience = patience(holder, next, is_behind, false, now_ns, tuning);
        let behind_ns = if presses[0] == presses[1] { holder.behind_ns(vtime, next.vtime) } else { 0 };
        let turn_ns = self.turn_ns(holder, vtime, next, tuning);
        let may_go_on = || self.yields_to(next, holder, vtime, now_ns, tuning);
        let goes_on = holder.new_quota == Some(NewQuota::More) && may_go_on();
        let began_anew = hold.has_gained && may_go_on();
        let press_ns = (presses == [false, true]).then(|| self.pressed_ns.saturating_add(tuning.quantum_ns));
        let stay =
            |wake_ns: u64| Step::Stay(Some(press_ns.map_or(wake_ns, |press_ns| press_ns.min(wake_ns))));

        let expires_ns = match grant {
            Grant::Leased { expires_ns } if hold.contended.is_some() => expires_ns,
            // It had the GPU to itself until now.
            _ if is_behind || began_anew || hold.idle_since_ns.is_some() => {
                let expires_ns = now_ns.saturating_add(turn_ns);
                self.hold = Some(hold.contend(now_ns));
                self.lease(hold.tenant, expires_ns, false);
                expires_ns
            }
            _ => return self.close(hold, now_ns),
        };
        if let Some(idle_since_ns) = hold.idle_since_ns {
            let patience_ends_ns = idle_since_ns.saturating_add(patience.ns);
            if now_ns >= patience_ends_ns || (now_ns >= expires_ns && !is_behind) {
                return self.close(hold, now_ns);
            }
            self.waits_at_cost = patience.is_charged.then_some(hold.tenant);
            // It may go on in a moment.
            self.is_redistributed |= is_redistributed;
            return stay(patience_ends_ns);
        }
        // Who gains by what changed is not to wait for the end of a lease that was given before, but for what the holder had not got of its own.
        if is_redistributed && !is_behind {
            self.redistribute(now_ns);
            return self.close(hold, now_ns);
        }
        if is_redistributed && behind_ns > 0 {
            self.redistribute(now_ns);
            self.hold = Some(hold.catch_up(now_ns));
            let until_ns = now_ns.saturating_add(catch_up_ns(behind_ns, tuning));
            self.lease(hold.tenant, expires_ns.min(until_ns), true);
            return Step::Again;
        }
        let is_renewed = (is_behind && !hold.catches_up()) || goes_on;
        if is_renewed && now_ns >= expires_ns.saturating_sub(tuning.lead_ns) {
            if let Some(holder) = self.tenants.get_quietly(hold.tenant) {
                holder.new_quota = None;
            }
            let expires_ns = expires_ns.max(now_ns).saturating_add(turn_ns);
            self.lease(hold.tenant, expires_ns, true);
            return stay(expires_ns.saturating_sub(tuning.lead_ns));
        }
        if now_ns >= expires_ns {
            return self.close(hold, now_ns);
        }
        let renewal_ns = expires_ns.saturating_sub(tuning.lead_ns);
        stay(if now_ns < renewal_ns { renewal_ns } else { expires_ns })
    }

    /// An owner has the GPU and only guests want it: it keeps a lease, so that its pauses are noticed, and the guests have those.
    fn beside_step(&mut self, hold: Hold, grant: Grant, now_ns: u64, tuning: &Tuning) -> Step {
        self.hold = Some(Hold { contended: None, ..hold });
        let mut wake_ns = self.keep_leased(hold.tenant, grant, now_ns, tuning);
        if let Some(idle_since_ns) = hold.idle_since_ns {
            let pause_begins_ns = idle_since_ns.saturating_add(tuning.grace_ns);
            if now_ns < pause_begins_ns {
                wake_ns = wake_ns.min(pause_begins_ns);
            } else {
                match self.next_guest(Some(hold.tenant), now_ns, tuning) {
                    Ok(_) => return self.close(hold, now_ns),
                    // The end of the pause rings no bell: the owner has its lease. How long it lasted has to be known.
                    Err(retry_ns) => {
                        let poll_ns = now_ns.saturating_add(PAUSE_POLL_NS);
                        wake_ns = wake_ns.min(poll_ns).min(retry_ns.unwrap_or(u64::MAX));
                    }
                }
            }
        }
        Step::Stay(Some(wake_ns))
    }

    /// Gives a holder whose GPU nobody of its rank wants a long lease, or renews it. Returns when that is due again.
    fn keep_leased(&mut self, tenant: TenantId, grant: Grant, now_ns: u64, tuning: &Tuning) -> u64 {
        let renewal_ns = |expires_ns: u64| expires_ns.saturating_sub(tuning.lead_ns);
        let expires_ns = match grant {
            Grant::Leased { expires_ns } if now_ns < renewal_ns(expires_ns) => expires_ns,
            Grant::Leased { .. } | Grant::Once | Grant::Closed | Grant::Paused | Grant::Open => {
                let expires_ns = now_ns.saturating_add(SOLO_LEASE_NS);
                self.lease(tenant, expires_ns, matches!(grant, Grant::Leased { .. }));
                expires_ns
            }
        };
        renewal_ns(expires_ns)
    }

    /// Nobody else wants the GPU: the holder's gate is open, or will be once nobody else wanted it for a while.
    fn alone_step(&mut self, hold: Hold, grant: Grant, now_ns: u64, tuning: &Tuning) -> Step {
        self.hold = Some(Hold { contended: None, ..hold });
        let stay_leased_until_ns = self
            .contended_ns
            .filter(|_| self.only().is_none())
            .map_or(0, |contended_ns| contended_ns.saturating_add(STAY_LEASED_NS));
        if now_ns >= stay_leased_until_ns && !self.is_beside_objective(hold.tenant) {
            self.change(hold.tenant, Grant::Open, false);
            return Step::Stay(None);
        }
        if grant == Grant::Open && !self.is_beside_objective(hold.tenant) {
            // Since before the others came and went.
            return Step::Stay(None);
        }
        let wake_ns = self.keep_leased(hold.tenant, grant, now_ns, tuning);
        let until_ns = if now_ns < stay_leased_until_ns { stay_leased_until_ns } else { wake_ns };
        Step::Stay(Some(wake_ns.min(until_ns)))
    }

    /// Closes the holder's gate; what it has in flight drains.
    fn close(&mut self, hold: Hold, now_ns: u64) -> Step {
        let limit_ns = self.tenants.get(hold.tenant).map_or(0, |holder| match holder.grant {
            _ if holder.stuck.is_some() => STUCK_DRAIN_NS,
            // How much is queued behind an open gate nobody counts.
            Grant::Open => MAX_DRAIN_NS,
            Grant::Leased { .. } | Grant::Once | Grant::Closed | Grant::Paused => holder
                .seen
                .longest_ns
                .saturating_mul(LONGEST_PER_DRAIN)
                .saturating_add(holder.seen.pending_ns)
                .clamp(MIN_DRAIN_NS, MAX_DRAIN_NS),
        });
        let limit_ns = limit_ns.min(self.patience_ns(hold.tenant, now_ns).max(STUCK_DRAIN_NS));
        self.change(hold.tenant, Grant::Closed, false);
        let give_up_ns = now_ns.saturating_add(limit_ns);
        self.hold = Some(Hold {
            closed_ns: Some(now_ns),
            drain_give_up_ns: Some(give_up_ns),
            ..hold.contend(now_ns)
        });
        Step::Again
    }

    /// How long what a tenant has in flight is waited for at most, by what its user's tenants let others wait for in vain.
    fn patience_ns(&mut self, id: TenantId, now_ns: u64) -> u64 {
        let Some(tenant) = self.tenants.get(id) else { return 0 };
        let trust = tenant.user.and_then(|user| self.trusts.get_mut(&user));
        trust.map_or(MAX_DRAIN_NS, |trust| trust.patience_ns(tenant.metered_ns, now_ns))
    }

    fn drain_step(&mut self, hold: Hold, give_up_ns: u64, now_ns: u64, tuning: &Tuning) -> Step {
        let in_flight = self.tenants.get(hold.tenant).is_some_and(|holder| holder.seen.in_flight);
        let next = self.next_but(hold.tenant, now_ns, tuning);
        let is_held_back =
            self.is_guest(hold.tenant) && self.guest_until_ns(hold.tenant, now_ns, tuning).is_err();
        let may_go_on = self.may_go_on(hold.tenant) && !is_held_back && !self.is_paused(hold.tenant);
        if in_flight && next.is_none() && may_go_on {
            // Nobody waits for it any more.
            self.hold = Some(Hold { closed_ns: None, drain_give_up_ns: None, ..hold });
            return Step::Again;
        }
        if in_flight && now_ns < give_up_ns {
            return Step::Stay(Some(give_up_ns.min(now_ns.saturating_add(DRAIN_POLL_NS))));
        }
        if hold.once_since_ns.is_some() {
            // It may have launched since its meter was read.
            self.change(hold.tenant, Grant::Closed, false);
            self.hold = Some(Hold { closed_ns: Some(now_ns), once_since_ns: None, ..hold });
            return Step::Again;
        }
        self.settle(&hold, in_flight, now_ns, tuning);
        self.hold = None;
        if self.is_guest(hold.tenant) && self.next_apart(Rank::Owner, None).is_none() {
            // A gang that wants the GPU waits for others from now on.
            self.guard.owner_served(now_ns, tuning.handoff_ns);
        }
        let goes_last = |next: TenantId| in_flight || self.has_caught_up(&hold, next, tuning);
        match next.filter(|next| self.order == Order::Apart && goes_last(*next)) {
            // Work that does not end goes last, as who was let catch up does.
            Some(next) => self.give(next, now_ns, tuning),
            None => Step::Again,
        }
    }

    /// Whether a hold that was to last until its tenant is as far as others, or nearly, did so.
    fn has_caught_up(&self, hold: &Hold, next: TenantId, tuning: &Tuning) -> bool {
        let Some((holder, next)) = self.tenants.get(hold.tenant).zip(self.tenants.get(next)) else {
            return false;
        };
        let behind_ns = holder.behind_ns(holder.vtime, next.vtime);
        holder.rank == next.rank && hold.catches_up() && behind_ns <= tuning.quantum_ns
    }

    /// Who has the GPU next but for this one.
    fn next_but(&mut self, tenant: TenantId, now_ns: u64, tuning: &Tuning) -> Option<TenantId> {
        self.next_apart(Rank::Owner, Some(tenant))
            .or_else(|| self.next_guest(Some(tenant), now_ns, tuning).ok().map(|(guest, _)| guest))
    }

    /// Ends a hold: charges time held in silence, and notes what the hand-off cost.
    fn settle(&mut self, hold: &Hold, in_flight: bool, now_ns: u64, tuning: &Tuning) {
        // How long the GPU waits for the next launch within a hold is no cost of a hand-off. Learned as one, it would make leases longer, in which the GPU waits longer,
        // and a guest's window longer than any pause. Who has but one kernel in flight makes it wait always, and who does not say where its work began and ended may.
        let gives_way = self.gives_way(hold.tenant);
        let Some(holder) = self.tenants.get_mut(hold.tenant) else { return };
        if in_flight {
            holder.stuck.get_or_insert(Stuck { since_ns: hold.since_ns, used_ns: hold.used_ns });
        }
        let held_ns = now_ns.saturating_sub(hold.since_ns);
        let unshown_ns = holder.settle(hold, now_ns);
        if in_flight {
            holder.charge_in_advance(holder.overrun_ns(hold, tuning.window_ns, now_ns));
        }
        if let Some(user) = holder.user.filter(|_| unshown_ns > 0)
            && let Some(trust) = self.trusts.get_mut(&user)
        {
            trust.had_unshown(unshown_ns, now_ns);
        }
        let is_whole = !in_flight && hold.used_ns > 0 && unshown_ns == 0;
        let unused_ns = held_ns.saturating_sub(hold.used_ns);
        let idle_ns = match hold.ended_ns {
            Some(_) => hold.edges_ns(now_ns).map(|edges_ns| edges_ns.min(unused_ns)),
            None => (!hold.paused && !gives_way).then_some(unused_ns),
        };
        self.handoffs.push(Handoff { idle_ns: idle_ns.filter(|_| is_whole) });
    }

    fn lease(&mut self, tenant: TenantId, expires_ns: u64, renewal: bool) {
        let expires_ns = expires_ns.min(self.lease_limit_ns);
        self.change(tenant, Grant::Leased { expires_ns }, renewal);
    }

    fn change(&mut self, id: TenantId, grant: Grant, renewal: bool) {
        let Some(tenant) = self.tenants.get_quietly(id) else { return };
        let grant = if grant == Grant::Closed { tenant.closed() } else { grant };
        if tenant.grant != grant {
            tenant.grant = grant;
            self.changes.push(Change { tenant: id, grant, renewal });
        }
    }
}

/// How long a guest's work takes to be gone when an owner comes.
fn guest_window_ns(guest: &Tenant, tuning: &Tuning) -> u64 {
    tuning.guest_window_ns(guest.seen.longest_ns).saturating_add(tuning.handoff_ns)
}

enum Step {
    /// Nothing more to do until then.
    Stay(Option<u64>),
    /// The phase changed.
    Again,
}

/// How long who is behind by so much keeps the GPU for that when others gain by a new quota, ns.
fn catch_up_ns(behind_ns: u64, tuning: &Tuning) -> u64 {
    behind_ns.min(tuning.quantum_ns / CATCH_UP_PART).max(behind_ns.saturating_sub(tuning.quantum_ns))
}

#[cfg(test)]
mod tests;
