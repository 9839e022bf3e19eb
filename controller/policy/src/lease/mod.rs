//! Leases: which tenant has the GPU now, and until when.
//!
//! The scheduler is EEVDF (I. Stoica, H. Abdel-Wahab, ODU TR-95-22, 1995), with GPU time that is
//! known only after the use. For each tenant it keeps a virtual time and a request:
//!
//! - The distance between a tenant's virtual time and the [`clock`] of its kind (owners, or guests)
//!   is the tenant's *lag*. The tenant is owed this GPU time beside the tenants that compete with
//!   it.
//! - A *request* is the GPU time that the tenant is expected to use in one go: its usual burst, a
//!   quantum at most. The request is due at the virtual time at which the fluid limit would have
//!   served it. With an SLO, the request is due earlier.
//!
//! **The one rule**: of the tenants that are owed GPU time, the GPU goes to the tenant whose
//! request is due first. So short bursts go before long ones, and no tenant gets more than it is
//! owed by being quick. A tenant that pauses keeps its lag, up to a bound. The competing tenants
//! get the lag that a tenant loses by a bound. The scheduler applies the rule when a lease ends and
//! when the holder pauses. The scheduler also applies the rule when a waiting tenant's request is
//! due before the holder's.
//!
//! One tenant at a time may launch, unless several owners fit on the GPU [`together`]. If no other
//! tenant wants the GPU, the gate of this tenant is open. Otherwise the tenant has a lease for its
//! request. At a hand-off the scheduler closes the gate, reads the meters again, waits until the
//! work in flight has drained, and opens the next gate. If the next tenant would lose less in the
//! hardware's turns than by the wait for the drain, the scheduler opens its gate at once. The
//! hardware then takes turns between the old work in flight and the next tenant's burst.
//!
//! Guests (best-effort tenants) get the GPU only while no *owner* (tenant of another class) wants
//! it. Among guests, the one rule decides. A guest loses the GPU as soon as an owner wants it.
//! [`guard`] bounds the cost of guests for owners.
//!
//! The caller passes the figures of the meters to [`Scheduler::observe`] and then calls
//! [`Scheduler::decide`].

pub mod clock;
mod due;
mod gangs;
pub mod guard;
mod idling;
mod restore;
mod space;
mod state;
mod tenants;
mod together;
pub mod trust;

use crate::TenantId;
use crate::class::Class;
use crate::gang::{Gangs, Order};
use crate::tuning::{HARDWARE_SLICE_NS, Tuning};
use alloc::collections::BTreeMap;
use alloc::vec::{Drain, Vec};
use clock::{Clock, VirtualTime, gpu_ns, signed};
use core::mem;
use core::time::Duration;
use guard::{Guard, Owners};
use state::{Budget, Hold, Noted, Rank, SHORT_IDLE_NS, Stuck, Tenant, WAITS_PER_SLO, begun_ns};
use tenants::Tenants;
use together::Company;
use trust::{Trust, UserId};

const fn ns(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// If another tenant wanted the GPU within this time, a holder that now wants the GPU alone keeps a
/// lease with a short window. So if the other tenant comes back soon, little work is in flight.
/// After a longer pause, the wait for the work behind an open gate is shorter than the pause.
const STAY_LEASED_NS: u64 = RUN_AHEAD_NS;
/// GPU time that may be queued behind an open gate.
const RUN_AHEAD_NS: u64 = ns(Duration::from_millis(100));
/// If an owner came or made progress within this time, the scheduler expects the owner to want the
/// GPU again at any moment.
const AWAITED_NS: u64 = ns(Duration::from_secs(60));
/// The length of a holder's lease if only guests want the GPU, ns.
const SOLO_LEASE_NS: u64 = ns(Duration::from_millis(50));
/// The scheduler waits at least this long for a drain before it gives up. Most kernels are shorter
/// than this time.
const MIN_DRAIN_NS: u64 = ns(Duration::from_millis(50));
/// The scheduler waits at most this long for a drain. Then the next gate opens, and the hardware
/// takes turns.
const MAX_DRAIN_NS: u64 = ns(Duration::from_secs(1));
/// The longest wait for a drain of a tenant whose last drain did not end, ns, until its meter shows
/// a long kernel. The work of such a tenant seems not to end, and the hardware interrupts it after
/// a slice.
const STUCK_DRAIN_NS: u64 = HARDWARE_SLICE_NS;
/// The limit of a drain includes the time of this many of the tenant's longest kernels, because the
/// meter counts some kernels as one.
const LONGEST_PER_DRAIN: u64 = 4;
/// The least time between two pre-emptions, as a number of hand-offs. A pre-emption costs two
/// hand-offs at most, so pre-emption costs at most an eighth of the time.
const HANDOFFS_PER_PREEMPTION: u64 = 16;
/// A pause is short if it is at most this many hand-offs long. To wait for the holder then costs
/// less than a hand-off away from the holder and a hand-off back.
const HANDOFFS_PER_PAUSE: u64 = 2;
/// The number of looks, in the time of a hand-off, at a waiting tenant that will soon be eligible.
const LOOKS_PER_HANDOFF: u64 = 4;
/// The time between two looks at a drain, or at a pause in which a guest waits for the guard's
/// permission, if no bell rings.
const POLL_NS: u64 = ns(Duration::from_millis(1));
/// The number of gate changes, and of hand-offs, that one decision may make without allocating
/// memory.
const MOST_CHANGES: usize = 16;
/// The number of further gate changes of each tenant that one decision may make. Such changes are
/// the pause or resumption of the tenant, and the opening or closing of all gates at once.
const CHANGES_PER_TENANT: usize = 2;

/// The grant that a tenant's gate shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// The tenant's launches wait.
    Closed,
    /// The tenant has a lease: it may launch until `expires_ns`, within its window.
    Leased {
        /// The end of the lease on the monotonic clock, ns.
        expires_ns: u64,
    },
    /// Each process of the tenant may launch one kernel or graph.
    Once,
    /// The tenant may launch without a lease.
    Open,
    /// The tenant waits and does not ring the bell, because an administrator paused it.
    Paused,
}

/// A change of a tenant's gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The tenant.
    pub tenant: TenantId,
    /// The new grant.
    pub grant: Grant,
    /// Whether the lease goes on: the same epoch with new terms.
    pub renewal: bool,
}

/// The readings of the meters of all sessions of a tenant, added up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// Whether threads wait at the gate.
    pub waiting: bool,
    /// Whether work is in flight.
    pub in_flight: bool,
    /// GPU time used since the last observation, which the scheduler charges, ns.
    pub used_ns: u64,
    /// Estimated GPU time in flight, ns.
    pub pending_ns: u64,
    /// The length of the longest kernel or graph, ns.
    pub longest_ns: u64,
    /// The part of the SMs that the tenant can use under MPS, parts per million; 0 for all SMs.
    pub sm_ppm: u32,
    /// Whether all work of a session ended since the last observation, and no thread of it waited
    /// at the gate.
    pub ended: bool,
}

impl Seen {
    fn wants(&self) -> bool {
        self.waiting || self.in_flight
    }
}

/// The state of the GPU: free, held by a tenant, or draining.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// No tenant has the GPU.
    Free,
    /// This tenant has the GPU.
    Held(TenantId),
    /// This tenant had the GPU, and its work in flight drains.
    Draining(TenantId),
    /// Several owners use the GPU together, because their demands or their parts of the SMs fit. Or
    /// their work drains.
    Together,
}

/// The cost of a hand-off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handoff {
    /// The time of one hold in which the GPU idled, both ends included, ns. `None` if the time is
    /// unknown, because the holder paused or its work did not drain.
    pub idle_ns: Option<u64>,
}

/// The previous holder, whose work is still in flight while the next tenant may launch.
#[derive(Debug, Clone, Copy)]
struct Beside {
    tenant: TenantId,
    /// The end of two rules, ns. Until then, the meter of the next tenant need not show a use of
    /// the GPU. Until then, a tenant waits if it would lose more beside this work than the drain
    /// takes.
    until_ns: u64,
    /// The previous holder's metered use in its hold. The scheduler marks the tenant as stuck if
    /// the work does not end by `until_ns`.
    progress: Stuck,
}

/// The budgets of time that all tenants bear together.
#[derive(Debug)]
struct Borne {
    /// Debts of pausing owners, and guests.
    debts: [Budget; 2],
    /// Idle time in short pauses of holders.
    pauses: Budget,
}

impl Default for Borne {
    fn default() -> Self {
        Self { debts: [Budget::of_debts(); 2], pauses: idling::PAUSES }
    }
}

/// The leases of one GPU.
#[derive(Debug, Default)]
pub struct Scheduler {
    tenants: Tenants,
    /// The remembered debts of users, by user.
    trusts: BTreeMap<UserId, Trust>,
    hold: Option<Hold>,
    /// The previous holder, while its work is in flight.
    beside: Option<Beside>,
    /// The owners that use the GPU together, if any. Then there is no hold.
    company: Company,
    /// The clocks of owners and of guests, by [`Rank`].
    clocks: [Clock; 2],
    guard: Guard,
    /// The owner that had the GPU last. If no tenant may use the free GPU now, the scheduler gives
    /// it to this owner in advance.
    last_owner: Option<TenantId>,
    /// The last time at which two tenants wanted the GPU at once, ns.
    contended_ns: Option<u64>,
    /// The time of the last pre-emption, ns.
    preempted_ns: Option<u64>,
    /// The progress of the holding owner at the last decision.
    noted: Option<Noted>,
    /// The order of the host's board for this GPU.
    order: Order,
    /// The gangs on this GPU, which get the GPU only by orders of the board.
    gangs: Gangs,
    idling: Option<idling::Idling>,
    borne: Borne,
    /// The last time at which a brief tenant wanted the GPU, ns.
    brief_ns: Option<u64>,
    decided_ns: u64,
    /// Number of tenants with work in flight at the last decision.
    flying: usize,
    /// Number of tenants between whose work the hardware can take turns from now on: their gates
    /// let launches pass, or they have work in flight.
    on_gpu: usize,
    /// The remainder of the division of passed time among the tenants with work in flight, ns. The
    /// next decision divides it.
    unaccrued_ns: u64,
    /// The latest end of any lease that this decision gives, ns.
    lease_limit_ns: u64,
    changes: Vec<Change>,
    handoffs: Vec<Handoff>,
    /// Working memory: the guests that want the GPU.
    guests: Vec<(state::Order, TenantId, u64)>,
}

impl Scheduler {
    /// Adds a tenant of a class with its first session on this GPU, or brings back a tenant that
    /// had left. The tenant's gate is closed.
    pub fn enter(&mut self, tenant: TenantId, class: Class, now_ns: u64) {
        self.changes.reserve(self.most_changes() + CHANGES_PER_TENANT);
        self.handoffs.reserve(MOST_CHANGES);
        self.guests.reserve(self.tenants.len() + 1);
        self.company.reserve(self.tenants.len() + 1);
        let new = Tenant { present: false, ..Tenant::new(Rank::of(class), now_ns) };
        let tenant = self.tenants.get_or_insert(tenant, new);
        if mem::replace(&mut tenant.present, true) {
            return;
        }
        tenant.came_ns = now_ns;
        // The tenant itself has its debt again, so its user no longer owes this debt.
        let owing_ns = mem::take(&mut tenant.left_owing_ns);
        if let Some(trust) = tenant.user.and_then(|user| self.trusts.get_mut(&user)) {
            trust.take_over(tenant.rank, owing_ns, now_ns);
        }
    }

    /// Sets the user of a tenant that has entered. A new tenant takes over the debts of the user's
    /// ended tenants.
    pub fn set_user(&mut self, tenant: TenantId, user: UserId, now_ns: u64) {
        let Some(tenant) = self.tenants.get_mut(tenant) else { return };
        tenant.takes_over |= tenant.user.replace(user).is_none();
        self.trusts.entry(user).or_default();
        self.divide_lenience(user, now_ns);
    }

    /// Divides the lenience of a user among the user's tenants.
    fn divide_lenience(&mut self, user: UserId, now_ns: u64) {
        let of_user = |tenant: &Tenant| tenant.present && tenant.user == Some(user);
        let among = self.tenants.values().filter(|tenant| of_user(tenant)).count() as u64;
        for tenant in self.tenants.values_quietly().filter(|tenant| of_user(tenant)) {
            tenant.share_lenience(among, now_ns);
        }
    }

    /// Returns whether a tenant has wanted nothing for so long that other tenants get its part of
    /// the GPU.
    pub fn is_idle(&self, tenant: TenantId, now_ns: u64) -> bool {
        self.tenants.get(tenant).is_some_and(|tenant| tenant.is_idle(now_ns))
    }

    /// Removes the last session of a tenant on this GPU. The GPU is free at once if the tenant had
    /// it. The scheduler remembers the tenant's debt.
    pub fn leave(&mut self, id: TenantId, now_ns: u64) {
        let held = self.hold.filter(|hold| hold.tenant == id);
        let unshown_ns = self.tenants.get_mut(id).map_or(0, |tenant| {
            // The tenant keeps its debt even if it ends within a lease. The lenience does not
            // apply, because the tenant's threads will not wake up any more.
            tenant.lenience = tenant.lenience.spent(now_ns);
            held.map_or(0, |hold| tenant.settle(&hold, now_ns))
        });
        self.set_clocks();
        if let Some(tenant) = self.tenants.get_mut(id) {
            if tenant.wanted {
                tenant.stopped_wanting_ns = now_ns;
                tenant.compete(false, &mut self.clocks[tenant.rank as usize]);
            }
            tenant.left_owing_ns = tenant.lag_ns.min(0).unsigned_abs();
            if let Some(user) = tenant.user {
                let trust = self.trusts.entry(user).or_default();
                trust.had_unshown(unshown_ns, now_ns);
                trust.leave(tenant.rank, tenant.left_owing_ns, now_ns);
            }
            tenant.present = false;
            tenant.seen = Seen::default();
            (tenant.accrued_ns, tenant.shown_ns, tenant.flew) = (0, 0, false);
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

    /// Pauses a tenant, or ends its pause. The work in flight of a paused tenant drains. While a
    /// tenant is paused, it wants nothing, and the other tenants share the GPU as if it were not
    /// there.
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
        self.hold = self.hold.filter(|hold| hold.tenant != id);
        self.beside = self.beside.filter(|beside| beside.tenant != id);
    }

    /// Sets the class of a tenant, and its weight among the tenants of its kind (owners, or
    /// guests). The tenant's lag stays the same GPU time, unless the kind changes.
    pub fn set_standing(&mut self, id: TenantId, class: Class, weight_ppm: u32) {
        let Some(tenant) = self.tenants.get_quietly(id) else { return };
        let clock = &mut self.clocks[tenant.rank as usize];
        let rank = Rank::of(class);
        if tenant.wanted && (tenant.weight_ppm != weight_ppm || tenant.rank != rank) {
            // The tenant's charges since the last decision are of its former standing.
            clock.run(tenant.count());
        }
        if tenant.weight_ppm != weight_ppm {
            tenant.set_weight(weight_ppm, clock.now());
        }
        if mem::replace(&mut tenant.rank, rank) != rank {
            // A debt to owners is no debt to guests, and the other way round.
            tenant.set_lag(0, self.clocks[rank as usize].now());
            self.tenants.touch(id);
        }
    }

    /// Sets a tenant's SLO, ns; `None` removes the SLO.
    pub fn set_slo(&mut self, tenant: TenantId, slo_ns: Option<u64>) {
        self.tenants.set_slo(tenant, slo_ns);
    }

    /// Sets whether a tenant takes turns with all others, because its memory follows its turns.
    pub fn set_takes_turns(&mut self, tenant: TenantId, takes_turns: bool) {
        if let Some(tenant) = self.tenants.get_quietly(tenant) {
            tenant.takes_turns = takes_turns;
        }
    }

    /// Sets the part of the time that guests may cost owners, parts per million.
    pub fn set_max_harm(&mut self, max_harm_ppm: u32) {
        self.guard = Guard::new(max_harm_ppm);
    }

    /// Returns the guard, which bounds the cost of guests for owners.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Returns the GPU time that each session of a tenant may have in flight under a lease, ns.
    /// `longest_ns` is the length of the tenant's longest kernel.
    pub fn window_ns(&self, tenant: TenantId, sessions: usize, longest_ns: u64, tuning: &Tuning) -> u64 {
        let longest_ns = self.longest_ns(tenant, longest_ns);
        if self.gives_way(tenant) {
            tuning.guest_window_ns(longest_ns)
        } else {
            tuning.session_window_ns(sessions, longest_ns)
        }
    }

    /// Returns the GPU time that each session of a tenant with an open gate may have in flight, ns.
    /// Much work in flight keeps the GPU busy while the host pauses. The result is less if another
    /// owner was active in the last minute, or if the tenant is a guest. Then an owner that wants
    /// the GPU would wait for the work in flight.
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
        if !self.company.has_gpu() && !self.is_guest(id) && !self.tenants.iter().any(is_awaited) {
            return RUN_AHEAD_NS;
        }
        let quantum_ns = tuning.quantum_ns / sessions.max(1) as u64;
        let window_ns = tuning.session_window_ns(sessions, self.longest_ns(id, longest_ns));
        if self.company.has_gpu() { window_ns } else { window_ns.max(quantum_ns).min(RUN_AHEAD_NS) }
    }

    /// Returns the length of a tenant's longest kernel, ns. For a gang: the longest kernel of any
    /// of its ranks, so that all ranks have the same window.
    fn longest_ns(&self, tenant: TenantId, longest_ns: u64) -> u64 {
        self.gangs.get(&tenant).map_or(longest_ns, |all_ns| longest_ns.max(*all_ns))
    }

    /// Returns whether the tenant may have only about one kernel in flight, because an owner or a
    /// tenant with an SLO may come.
    fn gives_way(&self, tenant: TenantId) -> bool {
        let has_objective = || self.tenants.get(tenant).is_some_and(Tenant::has_objective);
        (self.is_guest(tenant) && self.owner_is_present())
            || (self.is_beside_objective(tenant) && !has_objective())
    }

    /// Forgets all debts between tenants. The caller calls this after `silent_ns` in which no
    /// scheduler ran. In this time the holder did not have the GPU to itself, so its hold begins
    /// anew.
    pub fn forgive(&mut self, now_ns: u64, silent_ns: u64) {
        for tenant in self.tenants.values_quietly() {
            tenant.set_lag(0, self.clocks[tenant.rank as usize].now());
            tenant.count();
            tenant.uncounted_ns = 0;
            (tenant.advance_ns, tenant.accrued_ns, tenant.shown_ns) = (0, 0, 0);
            tenant.left_owing_ns = 0;
            tenant.last_progress_ns = now_ns;
            tenant.pace.begin_anew(now_ns);
            if let Some(stuck) = &mut tenant.stuck {
                *stuck = Stuck { since_ns: now_ns, used_ns: 0 };
            }
        }
        self.trusts.values_mut().for_each(|trust| *trust = Trust::default());
        self.hold = self.hold.map(|hold| hold.renew(now_ns, silent_ns));
        self.decided_ns = now_ns;
        // The next decision notes the idle time anew.
        self.idling = None;
        self.guard.skip();
    }

    /// Returns the grant that a tenant's gate shows.
    pub fn grant(&self, tenant: TenantId) -> Grant {
        self.tenants.get(tenant).map_or(Grant::Closed, |tenant| tenant.grant)
    }

    /// Returns which tenant has the GPU.
    pub fn phase(&self) -> Phase {
        match self.hold {
            None if self.company.has_gpu() => Phase::Together,
            None => Phase::Free,
            Some(Hold { tenant, drain_give_up_ns: None, .. }) => Phase::Held(tenant),
            Some(Hold { tenant, .. }) => Phase::Draining(tenant),
        }
    }

    /// Returns the previous holder, if its work is still in flight while the next tenant may
    /// launch.
    pub fn beside(&self) -> Option<TenantId> {
        self.beside.map(|beside| beside.tenant)
    }

    /// Returns whether the scheduler waits for the end of the work in flight of a tenant whose gate
    /// is closed.
    pub fn awaits_end(&self, id: TenantId) -> bool {
        let is_stuck = || self.tenants.get(id).is_some_and(|tenant| tenant.stuck.is_some());
        self.phase() == Phase::Draining(id)
            || self.beside() == Some(id)
            || ((self.company.is_parting() || self.company.is_in_space()) && !is_stuck())
    }

    /// Returns whether a tenant may have shared the GPU since the last decision. The tenant had
    /// work in flight or was able to launch, and another tenant had work in flight. While owners
    /// are together, looks are rare, so each of them may have shared the GPU at any time.
    pub fn shares(&self, id: TenantId) -> bool {
        let Some(tenant) = self.tenants.get(id) else { return false };
        // Owners with parts of the SMs run at once, and do not slow each other down.
        if self.company.is_in_space() {
            return false;
        }
        let holds = self.hold.is_some_and(|hold| hold.tenant == id);
        let is_together = self.company.has_gpu() && tenant.grant == Grant::Open;
        is_together || ((tenant.flew || holds) && self.flying > usize::from(tenant.flew))
    }

    /// Returns a tenant's lag, ns: GPU time that the tenant is owed; negative for a debt.
    pub fn lag_ns(&self, tenant: TenantId) -> i64 {
        let Some(tenant) = self.tenants.get(tenant) else { return 0 };
        tenant.lag_ns(self.clocks[tenant.rank as usize].now())
    }

    /// Charges a tenant by the figures of its meters at `now_ns`, and records whether the tenant
    /// wants the GPU.
    pub fn observe(&mut self, id: TenantId, now_ns: u64, seen: Seen) {
        let is_holder = self.hold.is_some_and(|hold| hold.tenant == id);
        if !is_holder && self.tenants.get(id).is_some_and(|tenant| tenant.still_rests(&seen)) {
            return;
        }
        let is_gang = self.is_gang(id);
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
            tenant.pace.used(seen.used_ns);
            if let Some(trust) = tenant.user.and_then(|user| self.trusts.get_mut(&user)) {
                trust.shown(set_off_ns, now_ns);
            }
            tenant.charge(seen.used_ns - set_off_ns);
            tenant.shown_ns = tenant.shown_ns.saturating_add(seen.used_ns - set_off_ns);
            tenant.bursts.add(seen.used_ns);
            tenant.stretches.add(seen.used_ns);
            tenant.used_at_ns = now_ns;
        }
        if seen.used_ns > 0 || (seen.in_flight && !tenant.seen.in_flight) {
            tenant.last_progress_ns = now_ns;
        }
        if seen.ended {
            tenant.note_end(now_ns);
        }
        tenant.seen = seen;
        if let Some(hold) = self.hold.as_mut().filter(|hold| hold.tenant == id) {
            hold.used_ns = hold.used_ns.saturating_add(seen.used_ns);
            hold.ran |= seen.in_flight;
            if seen.wants() {
                hold.idle_since_ns = None;
            } else if hold.drain_give_up_ns.is_none() {
                // If the meter shows a use, the holder has worked since the last look, so its idle
                // time begins now. For the ranks of a gang, the idle time goes on.
                let idle_since_ns = hold.idle_since_ns.filter(|_| seen.used_ns == 0 || is_gang);
                hold.paused = true;
                hold.idle_since_ns = Some(idle_since_ns.unwrap_or(now_ns));
            }
        }
    }

    /// Records the times at which a session's work in this hold began and ended, if the session
    /// reports these times. The caller calls this before [`Self::observe`], for each session of the
    /// tenant that has the GPU.
    pub fn observe_edges(&mut self, id: TenantId, began_ns: Option<u64>, ended_ns: Option<u64>) {
        let Some(hold) = self.hold.as_mut().filter(|hold| hold.tenant == id) else { return };
        let began_ns = began_ns.filter(|began_ns| *began_ns >= hold.since_ns);
        hold.began_ns = [hold.began_ns, began_ns].into_iter().flatten().min();
        hold.ended_ns = hold.ended_ns.max(ended_ns);
    }

    /// Decides at `now_ns` which tenant may launch. [`Self::take_changes`] then returns the gates
    /// to change. Returns the time of the next decision if nothing happens before, ns.
    pub fn decide(&mut self, now_ns: u64, tuning: &Tuning) -> Option<u64> {
        self.lease_limit_ns = u64::MAX;
        self.charge_idling(now_ns, tuning);
        self.account(now_ns, tuning);
        let wake_ns = self.decide_steps(now_ns, tuning);
        self.note_idling(now_ns);
        self.note_flying();
        self.on_gpu = self.count_on_gpu();
        wake_ns
    }

    /// Records which tenants have work in flight until the next decision. A thread that waits at a
    /// gate launches soon after the gate opens. The ranks of a gang wait for each other first.
    fn note_flying(&mut self) {
        let is_apart = self.order == Order::Apart;
        let mut flying = 0;
        self.tenants.astir_with(|_, tenant| {
            let Seen { in_flight, waiting, .. } = tenant.seen;
            tenant.flew = in_flight || (is_apart && waiting && tenant.may_launch());
            flying += usize::from(tenant.flew);
        });
        self.flying = flying;
    }

    fn count_on_gpu(&self) -> usize {
        let is_holder = |id: &TenantId| self.hold.is_some_and(|hold| hold.tenant == *id);
        if self.company.is_in_space() {
            0
        } else if self.company.has_gpu() {
            self.tenants.values().filter(|tenant| tenant.is_on_gpu()).count()
        } else {
            let others = self.tenants.astir().filter(|(id, tenant)| !is_holder(id) && tenant.is_on_gpu());
            others.count() + usize::from(self.hold.is_some())
        }
    }

    /// Returns whether the hardware can take turns between several tenants from now on.
    pub fn has_several(&self) -> bool {
        self.on_gpu > 1
    }

    /// Returns whether the hardware can take turns between the tenant's work and other tenants'
    /// work from now on.
    pub fn is_beside(&self, id: TenantId) -> bool {
        self.has_several() && self.tenants.get(id).is_some_and(Tenant::is_on_gpu)
    }

    fn decide_steps(&mut self, now_ns: u64, tuning: &Tuning) -> Option<u64> {
        loop {
            let step = match (self.together_step(now_ns, tuning), self.hold) {
                (Some(step), _) => step,
                (None, None) => self.ordered_free_step(now_ns, tuning),
                (None, Some(hold)) => match hold.drain_give_up_ns {
                    None if self.is_paused(hold.tenant) => self.close(hold, now_ns),
                    None => self.ordered_step(hold, now_ns, tuning),
                    // The last readings do not show launches that passed the gate just before it
                    // closed.
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

    /// Returns the number of changes that may wait for the caller.
    pub fn most_changes(&self) -> usize {
        self.tenants.len() * CHANGES_PER_TENANT + MOST_CHANGES
    }

    /// Takes the gates to change, oldest first.
    pub fn take_changes(&mut self) -> Drain<'_, Change> {
        self.changes.drain(..)
    }

    /// Takes the hand-offs since the last call.
    pub fn take_handoffs(&mut self) -> Drain<'_, Handoff> {
        self.handoffs.drain(..)
    }

    /// Lets the clocks grow by the charges since the last decision. Lets each tenant begin or end
    /// to compete, by whether the tenant wants the GPU now.
    fn account(&mut self, now_ns: u64, tuning: &Tuning) {
        let elapsed_ns = now_ns.saturating_sub(mem::replace(&mut self.decided_ns, now_ns));
        self.note_progress(now_ns);
        self.note_paces(now_ns);
        self.note_shared(elapsed_ns, now_ns);
        self.accrue(elapsed_ns);
        self.charge_places(elapsed_ns, now_ns, tuning);
        self.set_clocks();
        let clocks = &mut self.clocks;
        let wants = |tenant: &Tenant| tenant.seen.wants() && !tenant.is_paused;
        let is_alone = clocks.map(|clock| clock.has_one());
        self.tenants.astir_with(|_, tenant| {
            let clock = &mut clocks[tenant.rank as usize];
            if tenant.wanted && is_alone[tenant.rank as usize] {
                clock.remove(tenant.vtime, tenant.weight_ppm);
                tenant.forget(elapsed_ns, clock.now());
                clock.add(tenant.vtime, tenant.weight_ppm);
            }
            if tenant.wanted && !wants(tenant) {
                tenant.stopped_wanting_ns = now_ns;
                // A paused tenant can have work in flight.
                tenant.settle_accrued();
                tenant.compete(false, clock);
            }
        });
        let mut wanting = [0; 2];
        let (trusts, gangs, brief_ns) = (&mut self.trusts, &self.gangs, &mut self.brief_ns);
        let debts = &mut self.borne.debts;
        // The GPU idled for this tenant in its pause, so the others were not served in it.
        let idling = self.idling.as_ref().map(idling::Idling::tenant);
        let holder = self.hold.filter(|hold| hold.drain_give_up_ns.is_none()).map(|hold| hold.tenant);
        self.tenants.look(|id, tenant| {
            let clock = &mut clocks[tenant.rank as usize];
            let used_ns = if tenant.wanted { 0 } else { mem::take(&mut tenant.uncounted_ns) };
            if used_ns > 0 {
                if !gangs.contains_key(&id) && !wants(tenant) {
                    // The tenant began and ended work between two looks.
                    let stopped_ns = mem::replace(&mut tenant.stopped_wanting_ns, now_ns);
                    let pause_ns = now_ns.saturating_sub(stopped_ns).saturating_sub(used_ns);
                    if tenant.paused(pause_ns, STAY_LEASED_NS, tuning) {
                        tenant.ask(tenant.vtime, tuning);
                        tenant.begin_request(now_ns.saturating_sub(used_ns), Some(pause_ns));
                    }
                }
                if !tenant.is_free {
                    tenant.charge_beside(used_ns, clock);
                }
            }
            if !wants(tenant) {
                return;
            }
            wanting[tenant.rank as usize] += 1;
            if tenant.rank == Rank::Owner && tenant.is_brief() {
                *brief_ns = Some(now_ns);
            }
            if !tenant.wanted {
                let pause_ns = now_ns.saturating_sub(tenant.stopped_wanting_ns).saturating_sub(used_ns);
                let begins = tenant.paused(pause_ns, STAY_LEASED_NS, tuning);
                if Some(id) != idling {
                    let forgets_ns = tenant.forgets_ns(pause_ns);
                    let forgiven_ns = debts[tenant.rank as usize].spend(forgets_ns, now_ns);
                    tenant.rested(pause_ns, begins, forgiven_ns, clock, tuning);
                }
                if mem::take(&mut tenant.takes_over)
                    && let Some(trust) = tenant.user.and_then(|user| trusts.get_mut(&user))
                {
                    let taken_ns = trust.take_over(tenant.rank, tenant.max_debt_ns(), now_ns);
                    tenant.set_lag(tenant.lag_ns.saturating_sub(signed(taken_ns)), clock.now());
                }
                tenant.last_progress_ns = now_ns;
                tenant.compete(true, clock);
                if begins {
                    tenant.ask(tenant.vtime, tuning);
                    tenant.begin_request(now_ns.saturating_sub(used_ns), Some(pause_ns));
                }
            }
            tenant.pass_due(now_ns);
            tenant.bound(clock);
            if Some(id) != holder && tenant.vtime >= tenant.ends {
                tenant.ask(tenant.vtime, tuning);
            }
        });
        if wanting.iter().any(|wanting| *wanting > 1) {
            self.contended_ns = Some(now_ns);
        }
        let owners = Owners {
            present: self.owner_is_present(),
            want: wanting[Rank::Owner as usize] > 0,
            kept_out: self
                .hold
                .map(|hold| hold.tenant)
                .or(self.beside())
                .is_some_and(|tenant| self.is_guest(tenant)),
        };
        self.guard.observe(now_ns, owners, tuning.grace_ns);
    }

    /// Charges all work in flight for the time since the last decision. The hardware takes turns
    /// between tenants with work in flight, so each of these tenants is charged an equal part of
    /// the time. Owners on parts of the SMs do not take turns.
    fn accrue(&mut self, elapsed_ns: u64) {
        let flying = if self.company.is_in_space() { 1 } else { self.flying.max(1) as u64 };
        let elapsed_ns = elapsed_ns.saturating_add(mem::take(&mut self.unaccrued_ns));
        self.unaccrued_ns = elapsed_ns % flying;
        self.tenants.astir_with(|_, tenant| tenant.accrue(elapsed_ns / flying, flying > 1));
    }

    /// Lets the clock of owners, and the clock of guests, grow by the charges to the competing
    /// tenants of that kind.
    fn set_clocks(&mut self) {
        let mut charged = [0; 2];
        let clocks = &mut self.clocks;
        clocks.iter_mut().for_each(Clock::clear);
        self.tenants.astir_with(|_, tenant| {
            if tenant.wanted {
                charged[tenant.rank as usize] += tenant.count();
                clocks[tenant.rank as usize].add(tenant.vtime, tenant.weight_ppm);
            }
        });
        clocks.iter_mut().zip(charged).for_each(|(clock, charged)| clock.run(charged));
    }

    /// Adds the time that the previous holder's work in flight took since the last decision to the
    /// hold's `shared_ns`. If this work has ended, or has not ended in time, also records that.
    fn note_shared(&mut self, elapsed_ns: u64, now_ns: u64) {
        let Some(beside) = self.beside else { return };
        if let Some(hold) = self.hold.as_mut().filter(|_| now_ns < beside.until_ns) {
            let had_ns = now_ns.saturating_sub(hold.since_ns);
            // The hardware gives all tenants with work in flight equal parts of the time.
            let part_ns = elapsed_ns / self.flying.max(2) as u64;
            let own_ns = self.tenants.get(hold.tenant).map_or(0, |holder| holder.beside_ns(part_ns));
            hold.shared_ns = hold.shared_ns.saturating_add(elapsed_ns - own_ns).min(had_ns);
        }
        match self.tenants.get_quietly(beside.tenant).filter(|tenant| tenant.seen.in_flight) {
            Some(tenant) if now_ns >= beside.until_ns => _ = tenant.stuck.get_or_insert(beside.progress),
            Some(_) => {}
            None => self.beside = None,
        }
    }

    /// Reports to the guard how long the holding owner wanted the GPU, and how much GPU time it
    /// used.
    fn note_progress(&mut self, now_ns: u64) {
        let owner = self.hold.filter(|hold| hold.drain_give_up_ns.is_none() && !self.is_guest(hold.tenant));
        let noted = owner.and_then(|Hold { tenant, since_ns, used_ns, .. }| {
            let wants = self.tenants.get(tenant)?.seen.wants();
            Some(Noted { hold_ns: since_ns, at_ns: now_ns, used_ns, wants })
        });
        let before = mem::replace(&mut self.noted, noted);
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

    /// Returns the longest single wait for a guest that all owners tolerate by their SLOs, ns; 0 if
    /// an owner has no SLO.
    pub fn tolerated_ns(&self) -> u64 {
        let owners = self.tenants.values().filter(|tenant| tenant.is_here() && tenant.rank == Rank::Owner);
        owners.map(|owner| owner.slo_ns.unwrap_or(0) / WAITS_PER_SLO).min().unwrap_or(0)
    }

    /// Returns the first in the order of the owners, or of the guests (`rank`), that want the GPU,
    /// except `but`.
    fn next(&self, rank: Rank, but: Option<TenantId>) -> Option<TenantId> {
        self.next_of(rank, self.clocks[rank as usize].eligible_after(0), |id| Some(id) != but)
    }

    /// Calls [`Self::next_apart_at`] with the present bound of eligibility.
    fn next_apart(&self, rank: Rank, but: Option<TenantId>) -> Option<TenantId> {
        self.next_apart_at(rank, self.clocks[rank as usize].eligible_after(0), but)
    }

    /// Returns the next tenant of a kind (`rank`), except `but` and gangs, if `mean` is the bound
    /// of eligibility. Usually this is the first in the order. If the first may not go beside the
    /// previous holder's work, returns the first eligible tenant that may, if there is one.
    fn next_apart_at(&self, rank: Rank, mean: VirtualTime, but: Option<TenantId>) -> Option<TenantId> {
        let is_asked = |id| Some(id) != but && !self.is_gang(id);
        let first = self.next_of(rank, mean, is_asked)?;
        if self.has_room(first) {
            return Some(first);
        }
        let is_owed = |id| self.tenants.get(id).is_some_and(|tenant| tenant.is_owed(mean));
        self.next_of(rank, mean, |id| {
            is_asked(id) && Some(id) != self.beside() && is_owed(id) && self.has_room(id)
        })
    }

    /// Returns whether a tenant may have the GPU now, beside the rest of the previous holder's
    /// work.
    fn has_room(&self, id: TenantId) -> bool {
        let Some(beside) = self.beside.filter(|beside| beside.tenant != id) else { return true };
        let is_over = self.order != Order::Apart || self.decided_ns >= beside.until_ns;
        let pair = self.tenants.get(beside.tenant).zip(self.tenants.get(id));
        is_over || pair.is_none_or(|(other, next)| self.goes_beside(other.remaining_ns(), next))
    }

    fn next_of(
        &self,
        rank: Rank,
        mean: VirtualTime,
        is_asked: impl Fn(TenantId) -> bool,
    ) -> Option<TenantId> {
        self.tenants
            .astir()
            .filter(|(id, tenant)| tenant.rank == rank && tenant.wanted && is_asked(**id))
            .min_by_key(|(_, tenant)| tenant.order(mean))
            .map(|(id, _)| *id)
    }

    /// Returns whether another owner with an SLO has sessions on this GPU, has used it, and is not
    /// paused.
    fn is_beside_objective(&self, tenant: TenantId) -> bool {
        let mut others = self.tenants.with_objective().filter(|(id, _)| **id != tenant);
        others.any(|(_, other)| other.is_here() && other.is_answering())
    }

    /// Returns the next guest, except `but`, and the time until which it may launch, ns. If the
    /// guard allows no guest now, returns the time at which to ask again as the error. The guard
    /// decides about each guest by itself. So a guest with long kernels does not keep guests with
    /// short kernels from the GPU.
    fn next_guest(
        &mut self,
        but: Option<TenantId>,
        now_ns: u64,
        tuning: &Tuning,
    ) -> Result<(TenantId, u64), Option<u64>> {
        let is_asked = |(_, tenant): &(&TenantId, &Tenant)| tenant.rank == Rank::Guest && tenant.wanted;
        let mean = self.clocks[Rank::Guest as usize].eligible_after(0);
        let mut guests = mem::take(&mut self.guests);
        guests.clear();
        let asked = self.tenants.astir().filter(is_asked);
        guests.extend(asked.map(|(id, tenant)| (tenant.order(mean), *id, guest_window_ns(tenant, tuning))));
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

    /// Returns the time until which a guest may launch, ns. If the guard does not allow the guest
    /// now, returns the time at which to ask again as the error.
    fn guest_until_ns(&mut self, guest: TenantId, now_ns: u64, tuning: &Tuning) -> Result<u64, Option<u64>> {
        let window_ns = self.tenants.get(guest).map_or(0, |guest| guest_window_ns(guest, tuning));
        let tolerated_ns = self.tolerated_ns();
        self.guard
            .until_ns(now_ns, window_ns, tolerated_ns)
            .ok_or_else(|| self.guard.retry_ns(now_ns, window_ns, tolerated_ns))
    }

    /// Returns the only tenant with sessions on this GPU; `None` if there are several. Such a
    /// tenant gets the GPU before it asks.
    fn only(&self) -> Option<TenantId> {
        let mut present = self.tenants.iter().filter(|(_, tenant)| tenant.is_here()).map(|(id, _)| *id);
        present.next().filter(|_| present.next().is_none())
    }

    /// Returns the owner that had the GPU last, if it still has sessions and is not paused.
    fn resident(&self) -> Option<TenantId> {
        self.last_owner.filter(|id| {
            self.tenants.get(*id).is_some_and(|owner| owner.is_here() && owner.rank == Rank::Owner)
        })
    }

    /// Decides while no tenant has the GPU.
    fn free_step(&mut self, now_ns: u64, tuning: &Tuning) -> Step {
        if let Some(owner) = self.next_apart(Rank::Owner, None) {
            return self.give(owner, now_ns, tuning);
        }
        if let Some(beside) = self.beside
            && self.next_of(Rank::Owner, 0, |id| !self.is_gang(id)).is_some()
        {
            // No owner that wants the GPU may go beside the previous holder's work yet.
            return Step::Stay(Some(beside.until_ns.min(now_ns.saturating_add(POLL_NS))));
        }
        let wake_ns = match self.next_guest(None, now_ns, tuning) {
            Ok((guest, _)) => return self.give(guest, now_ns, tuning),
            Err(wake_ns) => wake_ns,
        };
        // A gang that waits needs a GPU without a holder.
        let is_wanted = self.next(Rank::Owner, None).is_some();
        match self.only().or_else(|| self.resident()).filter(|id| !self.is_gang(*id) && !is_wanted) {
            Some(resident) => self.give(resident, now_ns, tuning),
            None => Step::Stay(wake_ns),
        }
    }

    /// Gives the GPU, which is free, to a tenant.
    fn give(&mut self, tenant: TenantId, now_ns: u64, tuning: &Tuning) -> Step {
        let rank = if self.is_guest(tenant) { Rank::Guest } else { Rank::Owner };
        if rank == Rank::Owner {
            self.last_owner = Some(tenant);
            self.guard.owner_served(now_ns, tuning.handoff_ns);
        }
        let contended = self.next(rank, Some(tenant)).is_some();
        let is_idle = self.tenants.get(tenant).is_some_and(|tenant| !tenant.seen.wants());
        self.beside = self.beside.filter(|beside| beside.tenant != tenant);
        let hold = Hold::begin(tenant, now_ns, is_idle);
        self.hold = Some(if contended { hold.contend(now_ns) } else { hold });
        // If there are owners, the guard sets a guest's lease. Without owners, guests get leases as
        // owners do. The board sets the lease of a gang.
        let is_apart = matches!(self.order, Order::Apart | Order::Until { .. });
        if contended && is_apart && (rank == Rank::Owner || !self.owner_is_present()) {
            self.lease_request(tenant, now_ns, 0, tuning, false);
        }
        Step::Again
    }

    /// Gives the holder a lease for the rest of its request, and returns the lease's end, ns.
    /// `begun_ns` of the holder's GPU time are not charged yet. If the holder has used up its
    /// request, its next request begins.
    fn lease_request(
        &mut self,
        id: TenantId,
        from_ns: u64,
        begun_ns: u64,
        tuning: &Tuning,
        renewal: bool,
    ) -> u64 {
        let clock = self.tenants.get(id).map_or(0, |tenant| self.clocks[tenant.rank as usize].now());
        let Some(tenant) = self.tenants.get_quietly(id) else { return from_ns };
        let vtime = tenant.vtime(clock) + tenant.weighted(begun_ns);
        if vtime >= tenant.ends {
            tenant.ask(vtime, tuning);
        }
        let rest_ns = gpu_ns(tenant.ends - vtime, tenant.weight_ppm).max(0).unsigned_abs();
        let expires_ns = from_ns.saturating_add(rest_ns.clamp(tuning.lead_ns, tuning.quantum_ns));
        self.lease(id, expires_ns, renewal);
        expires_ns
    }

    /// Decides while a guest has the GPU.
    fn guest_step(&mut self, hold: Hold, now_ns: u64, tuning: &Tuning) -> Step {
        if self.next(Rank::Owner, None).is_some() {
            return self.close(hold, now_ns);
        }
        if !self.owner_is_present() {
            // Guests among themselves are like owners.
            return self.hold_step(hold, now_ns, tuning);
        }
        let Some(guest) = self.tenants.get(hold.tenant) else {
            self.hold = None;
            return Step::Again;
        };
        let grant = guest.grant;
        let idle_ends_ns = hold.idle_since_ns.map(|since_ns| since_ns.saturating_add(tuning.grace_ns));
        if idle_ends_ns.is_some_and(|ends_ns| now_ns >= ends_ns) {
            // The scheduler gives the GPU back to the owners before they ask.
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

    /// Decides while an owner has the GPU, or a guest without owners.
    fn hold_step(&mut self, hold: Hold, now_ns: u64, tuning: &Tuning) -> Step {
        let Some(holder) = self.tenants.get(hold.tenant) else {
            self.hold = None;
            return Step::Again;
        };
        let (grant, rank) = (holder.grant, holder.rank);
        let begun_ns = begun_ns(&hold, holder, now_ns);
        let mean = self.clocks[rank as usize].eligible_after(begun_ns);
        let first = || self.next_of(rank, mean, |id| id != hold.tenant && !self.is_gang(id));
        let Some(next) = self.next_apart_at(rank, mean, Some(hold.tenant)).or_else(first) else {
            if self.next(rank, Some(hold.tenant)).is_some() {
                return self.before_gangs_step(hold, grant, now_ns, tuning);
            }
            return match self.next(Rank::Guest, Some(hold.tenant)) {
                Some(_) => self.beside_step(hold, grant, now_ns, tuning),
                None => self.alone_step(hold, grant, now_ns, tuning),
            };
        };
        let expires_ns = match grant {
            Grant::Leased { expires_ns } if hold.contended.is_some() => expires_ns,
            Grant::Leased { .. } | Grant::Open | Grant::Once | Grant::Closed | Grant::Paused => {
                // The holder had the GPU to itself until now, so its request begins now.
                let was_open = hold.was_open || grant == Grant::Open;
                self.hold = Some(Hold { was_open, ..hold.contend(now_ns) });
                let clock = self.clocks[rank as usize].now();
                if let Some(holder) = self.tenants.get_quietly(hold.tenant) {
                    holder.ask(holder.vtime(clock) + holder.weighted(begun_ns), tuning);
                }
                self.lease_request(hold.tenant, now_ns, begun_ns, tuning, false)
            }
        };
        let has_room = self.has_room(next);
        let Some((holder, next)) = self.tenants.get(hold.tenant).zip(self.tenants.get(next)) else {
            return Step::Again;
        };
        if let Some(idle_since_ns) = hold.idle_since_ns {
            let clock = self.clocks[rank as usize].now();
            let patience_ends_ns = idle_since_ns.saturating_add(holder.patience_ns(next, clock, tuning));
            let is_over = now_ns >= expires_ns && !self.goes_on(holder, next, begun_ns, 0, tuning);
            if is_over || now_ns >= patience_ends_ns {
                return self.close(hold, now_ns);
            }
            return Step::Stay(Some(patience_ends_ns));
        }
        let mut wake_ns = u64::MAX;
        match self.launched_in_ns(holder, hold.tenant, begun_ns, tuning) {
            Some(0) => return self.close(hold, now_ns),
            Some(look_ns) => wake_ns = now_ns.saturating_add(look_ns),
            None => {}
        }
        // Until the end of its request, the holder counts as eligible. A change of the holder costs
        // as much as a short pause, so `next` must be due earlier by that.
        let due = next.due + next.weighted(short_pause_ns(tuning));
        let is_first = |mean| next.order_at(next.vtime, due, mean) < holder.order_at(mean, holder.due, mean);
        if has_room && is_first(mean) {
            // The request of `next` is due before the holder's request. `next` must be eligible
            // when it gets the GPU: after the drain, or beside the holder's work after half a slice
            // in the mean.
            let clock = &self.clocks[rank as usize];
            let goes_beside = self.goes_beside(self.drain_ns(hold.tenant), next);
            let owed_ns = if goes_beside { clock.until_ns(next.vtime, HARDWARE_SLICE_NS / 2) } else { 0 };
            // The time of a hand-off varies, so the scheduler need not look more often.
            let owed_ns = if owed_ns > 0 { owed_ns.max(tuning.handoff_ns / LOOKS_PER_HANDOFF) } else { 0 };
            let preempts_ns = self.preempts_ns(tuning).max(now_ns.saturating_add(owed_ns));
            if now_ns >= preempts_ns {
                self.preempted_ns = Some(now_ns);
                return self.close(hold, now_ns);
            }
            wake_ns = preempts_ns;
        }
        let renewal_ns = expires_ns.saturating_sub(tuning.lead_ns);
        if now_ns < renewal_ns {
            return Step::Stay(Some(wake_ns.min(renewal_ns)));
        }
        if !has_room || self.goes_on(holder, next, begun_ns, expires_ns.saturating_sub(now_ns), tuning) {
            let rest_ns = expires_ns.saturating_sub(now_ns);
            let begun_ns = begun_ns.saturating_add(rest_ns);
            let expires_ns = self.lease_request(hold.tenant, expires_ns.max(now_ns), begun_ns, tuning, true);
            return Step::Stay(Some(wake_ns.min(expires_ns.saturating_sub(tuning.lead_ns))));
        }
        if now_ns >= expires_ns {
            return self.close(hold, now_ns);
        }
        Step::Stay(Some(wake_ns.min(expires_ns)))
    }

    /// Returns the time until the scheduler looks whether a brief holder has launched its stretch of
    /// work, ns; 0 if it has. Then a brief tenant that waits gets the GPU beside the rest of the
    /// stretch. The GPU goes on to its work without a hand-off. `begun_ns` of the holder's GPU time
    /// are not charged yet.
    ///
    /// Returns `None` if no tenant can go beside the stretch, or if the holder keeps the GPU in its
    /// next pause.
    fn launched_in_ns(&self, holder: &Tenant, id: TenantId, begun_ns: u64, tuning: &Tuning) -> Option<u64> {
        if !holder.is_brief() {
            return None;
        }
        let next = self.tenants.get(self.next_apart(holder.rank, Some(id))?)?;
        let clock = self.clocks[holder.rank as usize].now();
        let stays = || holder.falls_behind(clock, tuning) && self.goes_on(holder, next, begun_ns, 0, tuning);
        if !next.is_brief() || !next.seen.waiting || stays() {
            return None;
        }
        let more_ns = holder.unlaunched_ns();
        let has_launched = !holder.seen.waiting && more_ns <= tuning.handoff_ns;
        let is_given = has_launched && self.goes_beside(holder.remaining_ns(), next);
        Some(if is_given { 0 } else { (more_ns / 2).max(tuning.handoff_ns) })
    }

    /// Returns the earliest time of the next pre-emption, ns.
    fn preempts_ns(&self, tuning: &Tuning) -> u64 {
        let every_ns = tuning.handoff_ns.saturating_mul(HANDOFFS_PER_PREEMPTION);
        self.preempted_ns.map_or(0, |at_ns| at_ns.saturating_add(every_ns))
    }

    /// Returns whether the holder will still come before `next` in the order at the end of its
    /// lease, which ends in `rest_ns`. `begun_ns` of the holder's GPU time are not charged yet.
    fn goes_on(&self, holder: &Tenant, next: &Tenant, begun_ns: u64, rest_ns: u64, tuning: &Tuning) -> bool {
        let more_ns = begun_ns.saturating_add(rest_ns);
        let clock = &self.clocks[holder.rank as usize];
        let mean = clock.eligible_after(more_ns);
        let vtime = holder.vtime(clock.now()) + holder.weighted(more_ns);
        let due = if vtime < holder.ends {
            holder.due
        } else {
            vtime + holder.weighted(holder.due_ns(holder.request_ns(tuning)))
        };
        holder.order_at(vtime, due, mean) <= next.order(mean)
    }

    /// Decides while an owner has the GPU and only guests want it. The owner keeps a lease, so that
    /// the scheduler notices its pauses. In a pause, a guest may get the GPU.
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
                    // The owner has a lease, so it rings no bell at the end of the pause. The
                    // scheduler polls, because the guard needs the length of the pause.
                    Err(retry_ns) => {
                        let poll_ns = now_ns.saturating_add(POLL_NS);
                        wake_ns = wake_ns.min(poll_ns).min(retry_ns.unwrap_or(u64::MAX));
                    }
                }
            }
        }
        Step::Stay(Some(wake_ns))
    }

    /// Gives a long lease to a holder, or renews it, while no other tenant of the holder's kind
    /// (owners, or guests) wants the GPU. Returns when the next renewal is due, ns.
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

    /// Decides while no other tenant wants the GPU. The holder's gate is open, or the scheduler
    /// opens it once no other tenant has wanted the GPU for a while.
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
            // The gate has been open since before other tenants wanted the GPU.
            return Step::Stay(None);
        }
        let wake_ns = self.keep_leased(hold.tenant, grant, now_ns, tuning);
        let until_ns = if now_ns < stay_leased_until_ns { stay_leased_until_ns } else { wake_ns };
        Step::Stay(Some(wake_ns.min(until_ns)))
    }

    /// Closes the holder's gate. Its work in flight drains.
    fn close(&mut self, hold: Hold, now_ns: u64) -> Step {
        let is_open = hold.was_open || self.grant(hold.tenant) == Grant::Open;
        let limit_ns = self.drain_limit_ns(hold.tenant, is_open, now_ns);
        self.change(hold.tenant, Grant::Closed, false);
        let give_up_ns = now_ns.saturating_add(limit_ns);
        self.hold = Some(Hold {
            closed_ns: Some(now_ns),
            drain_give_up_ns: Some(give_up_ns),
            ..hold.contend(now_ns)
        });
        Step::Again
    }

    /// Returns the time after which the scheduler gives up the drain of a tenant, ns. If the tenant
    /// had the GPU to itself, no meter shows how much work is queued behind its gate (`is_open`).
    fn drain_limit_ns(&mut self, id: TenantId, is_open: bool, now_ns: u64) -> u64 {
        let limit_ns = self.tenants.get(id).map_or(0, |Tenant { seen, stuck, .. }| match stuck {
            Some(_) => STUCK_DRAIN_NS,
            None if is_open => MAX_DRAIN_NS,
            None => {
                let longest_ns = seen.longest_ns.saturating_mul(LONGEST_PER_DRAIN);
                longest_ns.saturating_add(seen.pending_ns).clamp(MIN_DRAIN_NS, MAX_DRAIN_NS)
            }
        });
        limit_ns.min(self.patience_ns(id, now_ns).max(STUCK_DRAIN_NS))
    }

    /// Records time of a tenant that no meter shows, with its user, ns.
    fn distrust(&mut self, id: TenantId, unshown_ns: u64, now_ns: u64) {
        let user = self.tenants.get(id).and_then(|tenant| tenant.user);
        if let Some(trust) = user.filter(|_| unshown_ns > 0).and_then(|user| self.trusts.get_mut(&user)) {
            trust.had_unshown(unshown_ns, now_ns);
        }
    }

    /// Returns the longest wait for the tenant's drain, ns. The wait shrinks by the unmetered time
    /// of all tenants of its user.
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
            // No other tenant waits for the GPU any more.
            self.hold = Some(Hold { closed_ns: None, drain_give_up_ns: None, ..hold });
            return Step::Again;
        }
        let is_given_up = now_ns >= give_up_ns;
        let rest_ns = self.drain_ns(hold.tenant);
        let goes_beside =
            next.and_then(|id| self.tenants.get(id)).is_some_and(|next| self.goes_beside(rest_ns, next));
        if in_flight && !is_given_up && !goes_beside {
            return Step::Stay(Some(give_up_ns.min(now_ns.saturating_add(POLL_NS))));
        }
        if hold.once_since_ns.is_some() {
            // The holder may have launched since the caller read its meter, so the scheduler closes
            // the gate and waits for another reading.
            self.change(hold.tenant, Grant::Closed, false);
            self.hold = Some(Hold { closed_ns: Some(now_ns), once_since_ns: None, ..hold });
            return Step::Again;
        }
        let progress = Stuck { since_ns: hold.since_ns, used_ns: hold.used_ns };
        self.settle(&hold, in_flight, is_given_up, now_ns);
        self.hold = None;
        let rest_ns = |id| self.tenants.get(id).map_or(0, Tenant::remaining_ns);
        let other = self.beside.filter(|other| Some(other.tenant) != next);
        if in_flight && other.is_none_or(|other| rest_ns(other.tenant) < rest_ns(hold.tenant)) {
            // If the work beside changes, tenants that may not go beside it still wait only until
            // the earlier `until_ns`.
            let until_ns = other.map(|other| other.until_ns).filter(|until_ns| now_ns < *until_ns);
            let until_ns = until_ns.map_or(give_up_ns, |until_ns| until_ns.min(give_up_ns));
            self.beside = Some(Beside { tenant: hold.tenant, until_ns, progress });
        }
        if self.is_guest(hold.tenant) && self.next_apart(Rank::Owner, None).is_none() {
            // From now on, a gang that wants the GPU waits for other tenants.
            self.guard.owner_served(now_ns, tuning.handoff_ns);
        }
        match next.filter(|_| in_flight && self.order == Order::Apart) {
            // The scheduler gives the GPU to `next` here, because the next choice could fall on the
            // tenant whose work still runs.
            Some(next) => self.give(next, now_ns, tuning),
            None => Step::Again,
        }
    }

    /// Returns the time that a tenant's work in flight takes to drain, ns. If another tenant's work
    /// is in flight too, the time includes a slice of the hardware for which the work waits.
    fn drain_ns(&self, id: TenantId) -> u64 {
        let in_flight = |id| self.tenants.get(id).is_some_and(|tenant| tenant.seen.in_flight);
        let other = self.beside.filter(|beside| beside.tenant != id && in_flight(beside.tenant));
        let waits_ns = if in_flight(id) && other.is_some() { HARDWARE_SLICE_NS } else { 0 };
        self.tenants.get(id).map_or(0, Tenant::remaining_ns).saturating_add(waits_ns)
    }

    /// Returns whether the scheduler opens the gate of `next` now, beside other work that still
    /// drains for `rest_ns`. If it does, the hardware alternates between the two, slice by slice.
    /// The result is true only if `next` loses less than `rest_ns` in these turns.
    ///
    /// A brief tenant loses nothing: its work waits no longer than for the drain, and the GPU does
    /// not idle at the hand-off. A longer stretch of work waits half a slice on average before it
    /// starts, and one slice after each full slice.
    ///
    /// Two long stretches in flight would make a brief tenant wait for two slices. So if a brief
    /// tenant wanted the GPU in the last [`SHORT_IDLE_NS`], only brief tenants go beside other work.
    ///
    /// The result is also false while a gang has the GPU or gets it next, and for a tenant without
    /// metered use.
    fn goes_beside(&self, rest_ns: u64, next: &Tenant) -> bool {
        let is_brief = next.is_brief();
        let slices_ns = (next.usual_stretch_ns() / HARDWARE_SLICE_NS).saturating_mul(HARDWARE_SLICE_NS);
        let lost_ns = if is_brief { 0 } else { slices_ns.saturating_add(HARDWARE_SLICE_NS / 2) };
        let is_recent = |at_ns| self.decided_ns.saturating_sub(at_ns) <= SHORT_IDLE_NS;
        let may_go = is_brief || !self.brief_ns.is_some_and(is_recent);
        self.order == Order::Apart && next.metered_ns > 0 && may_go && rest_ns > lost_ns
    }

    /// Returns the tenant that gets the GPU next, except `tenant`; `None` if no other tenant may
    /// have the GPU.
    fn next_but(&mut self, tenant: TenantId, now_ns: u64, tuning: &Tuning) -> Option<TenantId> {
        self.next_apart(Rank::Owner, Some(tenant))
            .or_else(|| self.next_guest(Some(tenant), now_ns, tuning).ok().map(|(guest, _)| guest))
    }

    /// Ends a hold: charges the time without metered use, and records the cost of the hand-off.
    fn settle(&mut self, hold: &Hold, in_flight: bool, is_given_up: bool, now_ns: u64) {
        // The time within a hold in which the GPU waits for the next launch is no cost of a
        // hand-off. If it counted, leases and windows would grow, and the GPU would wait longer
        // still. A holder with one kernel in flight makes the GPU wait each time.
        let gives_way = self.gives_way(hold.tenant);
        let Some(holder) = self.tenants.get_mut(hold.tenant) else { return };
        if in_flight && is_given_up {
            holder.stuck.get_or_insert(Stuck { since_ns: hold.since_ns, used_ns: hold.used_ns });
        }
        let held_ns = now_ns.saturating_sub(hold.since_ns);
        let unshown_ns = holder.settle(hold, now_ns);
        self.distrust(hold.tenant, unshown_ns, now_ns);
        let is_whole = !in_flight && hold.used_ns > 0 && unshown_ns == 0 && hold.shared_ns == 0;
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

/// Returns the length of the longest pause for which waiting costs less than two hand-offs, ns.
pub fn short_pause_ns(tuning: &Tuning) -> u64 {
    tuning.handoff_ns.saturating_mul(HANDOFFS_PER_PAUSE)
}

/// Returns the longest time for which the GPU idles in a pause of its holder while another owner
/// waits, ns. Without the wait, the holder would lose two hand-offs, and half of a slice of the
/// other owner's work in the mean.
fn longest_patience_ns(tuning: &Tuning) -> u64 {
    short_pause_ns(tuning).saturating_add(HARDWARE_SLICE_NS / 2)
}

/// Returns how long a guest's work takes to drain when an owner comes, ns.
fn guest_window_ns(guest: &Tenant, tuning: &Tuning) -> u64 {
    tuning.guest_window_ns(guest.seen.longest_ns).saturating_add(tuning.handoff_ns)
}

enum Step {
    /// There is nothing more to decide until this time, ns; `None`: until a bell or an order.
    Stay(Option<u64>),
    /// The phase of the GPU changed, so the scheduler decides again at once.
    Again,
}

#[cfg(test)]
mod tests;
