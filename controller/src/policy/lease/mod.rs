//! Who has the GPU now, and until when: weighted fair leases in virtual time.
//!
//! A tenant's virtual time grows by the GPU time it is charged, divided by its weight, and the tenant that is furthest behind
//! goes next (start-time fair queueing after Goyal, Vin and Cheng, SIGCOMM 1996, with the charge known only afterwards). What a
//! holder overruns by is in its virtual time when it is charged, so it waits that much longer: long-run shares are exact
//! however long the kernels are.
//!
//! One tenant at a time holds the GPU. Nobody else wants it: its gate is open. Somebody does: it has a lease, renewed while it
//! is behind. At a hand-off its gate is closed first, what it has in flight drains (for a bounded time), then the next one's
//! gate opens. A holder with nothing to do gives up the GPU to who has.
//!
//! The caller feeds [`Scheduler::observe`] with what the meters say and then asks [`Scheduler::decide`].

use crate::policy::TenantId;
use crate::policy::tuning::Tuning;
use deepres_abi::PPM;
use std::collections::BTreeMap;
use std::time::Duration;

const fn ns(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// A tenant that wants nothing for longer than this is idle; for less, it is between two pieces of work (a Python
/// program's step has gaps of some milliseconds) and keeps what it is owed.
const SHORT_IDLE_NS: u64 = ns(Duration::from_millis(20));
/// GPU time that a tenant is owed at most after such a gap, so that nobody hoards a claim by wanting little.
const MAX_CREDIT_NS: u64 = ns(Duration::from_millis(100));
/// GPU time that a tenant owes at most: this …
const DEBT_NS: u64 = ns(Duration::from_millis(250));
/// … or what it took twice at once, which is how a long kernel is charged …
const CHARGES_OWED: u64 = 2;
/// … but not more than this. Nobody starves for what happened once.
const MAX_DEBT_NS: u64 = ns(Duration::from_secs(1));
/// A holder that is alone keeps terms (and with them its window) for so long after another wanted the GPU: whoever comes
/// back soon finds little in flight.
const STAY_LEASED_NS: u64 = ns(Duration::from_millis(100));
/// How long such a lease lasts at a time.
const SOLO_LEASE_NS: u64 = ns(Duration::from_millis(50));
/// A drain lasts at least so long before it is given up: most kernels are shorter.
const MIN_DRAIN_NS: u64 = ns(Duration::from_millis(50));
/// And at most so long: then the next gate opens and the hardware takes turns.
const MAX_DRAIN_NS: u64 = ns(Duration::from_secs(1));
/// The drain limit allows for so many of the tenant's longest kernels: the meter counts some as one.
const LONGEST_PER_DRAIN: u64 = 4;
/// A drain is looked at so often even if no bell rings.
const DRAIN_POLL_NS: u64 = ns(Duration::from_millis(1));
/// A holder whose threads are on their way from the gate is not charged for that long: a wake-up on a busy machine.
const START_LIMIT_NS: u64 = ns(Duration::from_millis(10));
/// An idle holder that is owed GPU time is waited for if its pauses are at most this part of its work (one in so many).
const WORK_PER_PAUSE: u64 = 10;
/// … and no longer than this many of its usual pauses.
const PAUSES_OF_PATIENCE: u64 = 2;
/// Weight of the newest pause or burst in the running means: one in so many.
const MEAN_DIVISOR: u64 = 8;

/// GPU time over weight: ns × [`PPM`] / weight.
type VirtualTime = u128;

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
    /// Go.
    Open,
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

#[derive(Debug)]
struct Tenant {
    weight_ppm: u32,
    vtime: VirtualTime,
    /// It has sessions on this GPU.
    present: bool,
    seen: Seen,
    /// It wanted the GPU at the last decision.
    wanted: bool,
    stopped_wanting_ns: u64,
    last_progress_ns: u64,
    /// The most that was charged at once, ns.
    largest_charge_ns: u64,
    /// Charged for time held without any metered use; what is metered later is set off against it.
    advance_ns: u64,
    /// GPU time used since it last began to want the GPU, and the running means of such bursts and of the pauses between them.
    burst_ns: u64,
    mean_burst_ns: u64,
    mean_pause_ns: u64,
    grant: Grant,
}

impl Tenant {
    fn weighted(&self, gpu_ns: u64) -> VirtualTime {
        VirtualTime::from(gpu_ns) * VirtualTime::from(PPM) / VirtualTime::from(self.weight_ppm.max(1))
    }

    fn charge(&mut self, gpu_ns: u64) {
        self.largest_charge_ns = self.largest_charge_ns.max(gpu_ns);
        self.vtime += self.weighted(gpu_ns);
    }

    fn max_debt_ns(&self) -> u64 {
        self.largest_charge_ns.saturating_mul(CHARGES_OWED).clamp(DEBT_NS, MAX_DEBT_NS)
    }
}

/// One hold of the GPU, from grant to drain.
#[derive(Debug, Clone, Copy)]
struct Hold {
    tenant: TenantId,
    since_ns: u64,
    used_ns: u64,
    /// Something of the holder was in flight.
    ran: bool,
    /// The holder was seen idle.
    paused: bool,
    idle_since_ns: Option<u64>,
    /// Time in which the holder was idle, up to then.
    idle_ns: u64,
    /// Its lease was cut to a quantum, because others wait.
    contended: bool,
    /// While it drains: when that is given up.
    drain_give_up_ns: Option<u64>,
}

/// The leases of one GPU.
#[derive(Debug, Default)]
pub struct Scheduler {
    tenants: BTreeMap<TenantId, Tenant>,
    hold: Option<Hold>,
    vclock: VirtualTime,
    /// When two tenants last wanted the GPU at once.
    contended_ns: Option<u64>,
    changes: Vec<Change>,
    handoffs: Vec<Handoff>,
}

impl Scheduler {
    /// Adds a tenant, or brings back one that was away. Its gate is closed.
    pub fn enter(&mut self, tenant: TenantId, weight_ppm: u32, now_ns: u64) {
        let vclock = self.vclock;
        let tenant = self.tenants.entry(tenant).or_insert(Tenant {
            weight_ppm,
            vtime: vclock,
            present: true,
            seen: Seen::default(),
            wanted: false,
            stopped_wanting_ns: 0,
            last_progress_ns: now_ns,
            largest_charge_ns: 0,
            advance_ns: 0,
            burst_ns: 0,
            mean_burst_ns: 0,
            mean_pause_ns: 0,
            grant: Grant::Closed,
        });
        tenant.present = true;
        tenant.weight_ppm = weight_ppm;
    }

    /// A tenant's last session on this GPU is gone: what it held is free at once. What it owes is kept.
    pub fn leave(&mut self, id: TenantId, now_ns: u64) {
        if let Some(tenant) = self.tenants.get_mut(&id) {
            if tenant.wanted {
                tenant.stopped_wanting_ns = now_ns;
            }
            tenant.present = false;
            tenant.seen = Seen::default();
            tenant.wanted = false;
            tenant.grant = Grant::Closed;
        }
        self.free(id);
    }

    /// Forgets a tenant.
    pub fn forget(&mut self, id: TenantId) {
        self.tenants.remove(&id);
        self.free(id);
    }

    fn free(&mut self, id: TenantId) {
        if self.hold.is_some_and(|hold| hold.tenant == id) {
            self.hold = None;
        }
    }

    /// Sets what a tenant is owed. What it was charged before keeps the weight of that time.
    pub fn set_weight(&mut self, tenant: TenantId, weight_ppm: u32) {
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.weight_ppm = weight_ppm;
        }
    }

    /// Forgets what everybody owes and is owed: what happened while nobody governed is nobody's debt.
    pub fn forgive(&mut self) {
        for tenant in self.tenants.values_mut() {
            tenant.vtime = self.vclock;
            tenant.advance_ns = 0;
        }
    }

    /// What a tenant's gate is to say.
    pub fn grant(&self, tenant: TenantId) -> Grant {
        self.tenants.get(&tenant).map_or(Grant::Closed, |tenant| tenant.grant)
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
        let Some(tenant) = self.tenants.get(&tenant) else { return 0 };
        let gpu_ns = |vtime: VirtualTime| {
            i64::try_from(vtime * VirtualTime::from(tenant.weight_ppm) / VirtualTime::from(PPM))
                .unwrap_or(i64::MAX)
        };
        if tenant.vtime <= self.vclock {
            gpu_ns(self.vclock - tenant.vtime)
        } else {
            -gpu_ns(tenant.vtime - self.vclock)
        }
    }

    /// Takes in what a tenant's meters say at `now_ns`.
    pub fn observe(&mut self, id: TenantId, now_ns: u64, seen: Seen) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        if seen.used_ns > 0 {
            let set_off_ns = seen.used_ns.min(tenant.advance_ns);
            tenant.advance_ns -= set_off_ns;
            tenant.charge(seen.used_ns - set_off_ns);
            tenant.burst_ns = tenant.burst_ns.saturating_add(seen.used_ns);
        }
        if seen.used_ns > 0 || (seen.in_flight && !tenant.seen.in_flight) {
            tenant.last_progress_ns = now_ns;
        }
        tenant.seen = seen;
        if let Some(hold) = self.hold.as_mut().filter(|hold| hold.tenant == id) {
            hold.used_ns = hold.used_ns.saturating_add(seen.used_ns);
            hold.ran |= seen.in_flight;
            if seen.wants() {
                let idle_ns = hold.idle_since_ns.take().map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
                hold.idle_ns = hold.idle_ns.saturating_add(idle_ns);
            } else if hold.drain_give_up_ns.is_none() {
                hold.paused = true;
                hold.idle_since_ns.get_or_insert(now_ns);
            }
        }
    }

    /// Decides at `now_ns`. The gates that change are in [`Self::take_changes`] afterwards. Returns when to decide again if
    /// nothing happens before.
    pub fn decide(&mut self, now_ns: u64, tuning: &Tuning) -> Option<u64> {
        self.account(now_ns);
        loop {
            let step = match self.hold {
                None => match self.next(None).or_else(|| self.only()) {
                    Some(next) => self.give(next, now_ns, tuning),
                    None => Step::Stay(None),
                },
                Some(hold) => match hold.drain_give_up_ns {
                    None => self.hold_step(hold, now_ns, tuning),
                    Some(give_up_ns) => self.drain_step(hold, give_up_ns, now_ns, tuning),
                },
            };
            match step {
                Step::Stay(wake_ns) => return wake_ns,
                Step::Again => {}
            }
        }
    }

    /// The gates to change, oldest first.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// The hand-offs since the last call.
    pub fn take_handoffs(&mut self) -> Vec<Handoff> {
        std::mem::take(&mut self.handoffs)
    }

    /// Advances the virtual clock and lets in who begins to want the GPU.
    fn account(&mut self, now_ns: u64) {
        let behind = self.tenants.values().filter(|tenant| tenant.wanted).map(|tenant| tenant.vtime).min();
        self.vclock = self.vclock.max(behind.unwrap_or(0));
        let vclock = self.vclock;
        let mut wanting = 0;
        for tenant in self.tenants.values_mut() {
            let wants = tenant.seen.wants();
            wanting += usize::from(wants);
            if wants && !tenant.wanted {
                let pause_ns = now_ns.saturating_sub(tenant.stopped_wanting_ns);
                let credit_ns = if pause_ns <= SHORT_IDLE_NS { MAX_CREDIT_NS } else { 0 };
                tenant.vtime = tenant.vtime.max(vclock.saturating_sub(tenant.weighted(credit_ns)));
                tenant.mean_pause_ns = mean(tenant.mean_pause_ns, pause_ns.min(STAY_LEASED_NS));
                tenant.last_progress_ns = now_ns;
            }
            tenant.vtime = tenant.vtime.min(vclock.saturating_add(tenant.weighted(tenant.max_debt_ns())));
            if !wants && tenant.wanted {
                tenant.stopped_wanting_ns = now_ns;
                tenant.mean_burst_ns = mean(tenant.mean_burst_ns, tenant.burst_ns);
                tenant.burst_ns = 0;
            }
            tenant.wanted = wants;
        }
        if wanting > 1 {
            self.contended_ns = Some(now_ns);
        }
    }

    /// Who wants the GPU and is furthest behind, `but` for one.
    fn next(&self, but: Option<TenantId>) -> Option<TenantId> {
        self.tenants
            .iter()
            .filter(|(id, tenant)| tenant.wanted && Some(**id) != but)
            .min_by_key(|(_, tenant)| tenant.vtime)
            .map(|(id, _)| *id)
    }

    /// The tenant, if there is but one: it has the GPU before it asks.
    fn only(&self) -> Option<TenantId> {
        let mut present = self.tenants.iter().filter(|(_, tenant)| tenant.present).map(|(id, _)| *id);
        present.next().filter(|_| present.next().is_none())
    }

    /// Gives the GPU, which is free, to a tenant.
    fn give(&mut self, tenant: TenantId, now_ns: u64, tuning: &Tuning) -> Step {
        let contended = self.next(Some(tenant)).is_some();
        self.hold = Some(Hold {
            tenant,
            since_ns: now_ns,
            used_ns: 0,
            ran: false,
            paused: false,
            idle_since_ns: None,
            idle_ns: 0,
            contended,
            drain_give_up_ns: None,
        });
        if contended {
            self.lease(tenant, now_ns.saturating_add(tuning.quantum_ns), false);
        }
        Step::Again
    }

    fn hold_step(&mut self, hold: Hold, now_ns: u64, tuning: &Tuning) -> Step {
        let Some(holder) = self.tenants.get(&hold.tenant) else {
            self.hold = None;
            return Step::Again;
        };
        let grant = holder.grant;
        let Some(next) = self.next(Some(hold.tenant)) else {
            return self.alone_step(hold, grant, now_ns, tuning);
        };
        let is_behind =
            holder.vtime + holder.weighted(begun_ns(&hold, holder, now_ns)) < self.tenants[&next].vtime;
        let patience_ns = patience_ns(holder, is_behind, tuning);

        let expires_ns = match grant {
            Grant::Leased { expires_ns } if hold.contended => expires_ns,
            // It had the GPU to itself until now.
            _ if is_behind || hold.idle_since_ns.is_some() => {
                let expires_ns = now_ns.saturating_add(tuning.quantum_ns);
                self.hold = Some(Hold { contended: true, ..hold });
                self.lease(hold.tenant, expires_ns, false);
                expires_ns
            }
            _ => return self.close(hold, now_ns),
        };
        if let Some(idle_since_ns) = hold.idle_since_ns {
            let patience_ends_ns = idle_since_ns.saturating_add(patience_ns);
            if now_ns >= patience_ends_ns || (now_ns >= expires_ns && !is_behind) {
                return self.close(hold, now_ns);
            }
            return Step::Stay(Some(patience_ends_ns));
        }
        if is_behind && now_ns >= expires_ns.saturating_sub(tuning.lead_ns) {
            let expires_ns = expires_ns.max(now_ns).saturating_add(tuning.quantum_ns);
            self.lease(hold.tenant, expires_ns, true);
            return Step::Stay(Some(expires_ns.saturating_sub(tuning.lead_ns)));
        }
        if now_ns >= expires_ns {
            return self.close(hold, now_ns);
        }
        let renewal_ns = expires_ns.saturating_sub(tuning.lead_ns);
        Step::Stay(Some(if now_ns < renewal_ns { renewal_ns } else { expires_ns }))
    }

    /// Nobody else wants the GPU: the holder's gate is open, or will be once nobody else wanted it for a while.
    fn alone_step(&mut self, hold: Hold, grant: Grant, now_ns: u64, tuning: &Tuning) -> Step {
        self.hold = Some(Hold { contended: false, ..hold });
        let stay_leased_until_ns = self
            .contended_ns
            .filter(|_| self.only().is_none())
            .map_or(0, |contended_ns| contended_ns.saturating_add(STAY_LEASED_NS));
        if now_ns >= stay_leased_until_ns {
            self.change(hold.tenant, Grant::Open, false);
            return Step::Stay(None);
        }
        let renewal_ns = |expires_ns: u64| expires_ns.saturating_sub(tuning.lead_ns);
        let expires_ns = match grant {
            // Open since before the others came and went.
            Grant::Open => return Step::Stay(None),
            Grant::Leased { expires_ns } if now_ns < renewal_ns(expires_ns) => expires_ns,
            Grant::Leased { .. } | Grant::Closed => {
                let expires_ns = now_ns.saturating_add(SOLO_LEASE_NS);
                self.lease(hold.tenant, expires_ns, grant != Grant::Closed);
                expires_ns
            }
        };
        Step::Stay(Some(renewal_ns(expires_ns).min(stay_leased_until_ns)))
    }

    /// Closes the holder's gate; what it has in flight drains.
    fn close(&mut self, hold: Hold, now_ns: u64) -> Step {
        let limit_ns = self.tenants.get(&hold.tenant).map_or(0, |holder| match holder.grant {
            // How much is queued behind an open gate nobody counts.
            Grant::Open => MAX_DRAIN_NS,
            Grant::Leased { .. } | Grant::Closed => holder
                .seen
                .longest_ns
                .saturating_mul(LONGEST_PER_DRAIN)
                .saturating_add(holder.seen.pending_ns),
        });
        self.change(hold.tenant, Grant::Closed, false);
        let give_up_ns = now_ns.saturating_add(limit_ns.clamp(MIN_DRAIN_NS, MAX_DRAIN_NS));
        self.hold = Some(Hold { drain_give_up_ns: Some(give_up_ns), ..hold });
        Step::Again
    }

    fn drain_step(&mut self, hold: Hold, give_up_ns: u64, now_ns: u64, tuning: &Tuning) -> Step {
        let in_flight = self.tenants.get(&hold.tenant).is_some_and(|holder| holder.seen.in_flight);
        let next = self.next(Some(hold.tenant));
        if in_flight && next.is_none() {
            // Nobody waits for it any more.
            self.hold = Some(Hold { drain_give_up_ns: None, ..hold });
            return Step::Again;
        }
        if in_flight && now_ns < give_up_ns {
            return Step::Stay(Some(give_up_ns.min(now_ns.saturating_add(DRAIN_POLL_NS))));
        }
        self.settle(&hold, in_flight, now_ns);
        self.hold = None;
        // Work that does not end goes last.
        match if in_flight { next } else { self.next(None) } {
            Some(next) => self.give(next, now_ns, tuning),
            None => Step::Again,
        }
    }

    /// Ends a hold: charges time held in silence, and notes what the hand-off cost.
    fn settle(&mut self, hold: &Hold, in_flight: bool, now_ns: u64) {
        let Some(holder) = self.tenants.get_mut(&hold.tenant) else { return };
        let held_ns = now_ns.saturating_sub(hold.since_ns);
        let advance_ns = match hold.used_ns {
            0 if hold.ran && !hold.paused => held_ns,
            _ => unexplained_ns(hold, now_ns),
        };
        if advance_ns > 0 {
            holder.charge(advance_ns);
            holder.advance_ns = holder.advance_ns.saturating_add(advance_ns);
        }
        let can_be_told = !hold.paused && !in_flight && hold.used_ns > 0;
        self.handoffs.push(Handoff { idle_ns: can_be_told.then(|| held_ns.saturating_sub(hold.used_ns)) });
    }

    fn lease(&mut self, tenant: TenantId, expires_ns: u64, renewal: bool) {
        self.change(tenant, Grant::Leased { expires_ns }, renewal);
    }

    fn change(&mut self, id: TenantId, grant: Grant, renewal: bool) {
        if let Some(tenant) = self.tenants.get_mut(&id)
            && tenant.grant != grant
        {
            tenant.grant = grant;
            self.changes.push(Change { tenant: id, grant, renewal });
        }
    }
}

/// GPU time that a holder has begun and was not charged for: what it says is in flight, or the time since it was last seen to
/// get on.
fn begun_ns(hold: &Hold, holder: &Tenant, now_ns: u64) -> u64 {
    let silent_ns = now_ns.saturating_sub(holder.last_progress_ns.max(hold.since_ns));
    let begun_ns = match holder.seen {
        Seen { in_flight: true, pending_ns, .. } => pending_ns.max(silent_ns),
        Seen { waiting: true, .. } => silent_ns.saturating_sub(START_LIMIT_NS),
        _ => 0,
    };
    begun_ns.max(unexplained_ns(hold, now_ns)).min(MAX_DEBT_NS)
}

/// Time that a holder had the GPU, and had something to do, without a meter to show for it. A meter lags behind a little; one
/// that shows less than half is not believed.
fn unexplained_ns(hold: &Hold, now_ns: u64) -> u64 {
    let idle_ns = hold.idle_since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
    let active_ns = now_ns.saturating_sub(hold.since_ns).saturating_sub(hold.idle_ns).saturating_sub(idle_ns);
    if hold.used_ns < active_ns / 2 {
        active_ns.saturating_sub(hold.used_ns).saturating_sub(START_LIMIT_NS)
    } else {
        0
    }
}

/// How long an idle holder keeps the GPU while others wait. A tenant that is behind and pauses briefly between bursts of work
/// is waited for: else whoever never pauses would get the GPU at each pause and keep it for a whole kernel.
fn patience_ns(holder: &Tenant, is_behind: bool, tuning: &Tuning) -> u64 {
    let worth_ns = holder.mean_burst_ns / WORK_PER_PAUSE;
    if is_behind && holder.mean_pause_ns <= worth_ns {
        tuning.grace_ns.max(holder.mean_pause_ns.saturating_mul(PAUSES_OF_PATIENCE).min(worth_ns))
    } else {
        tuning.grace_ns
    }
}

enum Step {
    /// Nothing more to do until then.
    Stay(Option<u64>),
    /// The phase changed.
    Again,
}

/// The running mean with one more value in it; the first value is the mean.
fn mean(before: u64, value: u64) -> u64 {
    if before == 0 { value } else { before - before / MEAN_DIVISOR + value / MEAN_DIVISOR }
}

#[cfg(test)]
mod tests;
