//! The state of a tenant, and the state of a hold (the time for which one tenant has the GPU).

use super::clock::{Clock, VirtualTime, gpu_ns, signed, weighted};
use super::due::Request;
use super::together::Pace;
use super::trust::UserId;
use super::{Grant, MAX_DRAIN_NS, RUN_AHEAD_NS, Seen, longest_patience_ns, ns, short_pause_ns};
use crate::TenantId;
use crate::class::Class;
use crate::entitlement::IDLE_NS;
use crate::tuning::{HARDWARE_SLICE_NS, Tuning};
use core::cmp::Reverse;
use core::mem;
use core::time::Duration;
use deepres_abi::PPM;

/// If a tenant wanted the GPU within this time, it can be back at any moment, ns. A step of a
/// Python program has gaps of some milliseconds.
pub const SHORT_IDLE_NS: u64 = ns(Duration::from_millis(20));
/// The most GPU time that a tenant is owed over a pause, ns. When the tenant comes back, it waits
/// for at most as much work in flight.
pub const MAX_CREDIT_NS: u64 = RUN_AHEAD_NS;
/// The bound on a tenant's debt, ns, unless `CHARGES_OWED` raises it.
const DEBT_NS: u64 = ns(Duration::from_millis(250));
/// A tenant may also owe this many times its largest single charge, because the scheduler charges a
/// long kernel at its end.
const CHARGES_OWED: u64 = 2;
/// The largest debt of any tenant, ns, so that no tenant starves because of a single long kernel. A
/// holder can have the GPU for the longest drain beyond its lease.
pub const MAX_DEBT_NS: u64 = MAX_DRAIN_NS;
/// While no other tenant competes, a tenant's lag moves towards zero by the passed time divided by
/// this number. Over a pause, a debt shrinks by the same time at most. The debts of a user shrink
/// by the same part of the time.
pub const FORGOTTEN_PART: u64 = 50;
/// Over a pause, what a tenant is owed shrinks by the tenant's part of the pause divided by this
/// number. If the whole pause counted, a tenant with a small share would lose more in each pause
/// than it is owed in between.
const OWED_FORGOTTEN_PART: u64 = 25;
/// The time for which the scheduler charges nothing while threads of the holder are on their way
/// from the gate, ns. A wake-up on a busy machine takes as long. This time is also the largest
/// lenience at once: time without metered use that the scheduler does not charge.
const START_LIMIT_NS: u64 = ns(Duration::from_millis(10));
/// A tenant's lenience grows by the passed time divided by this number.
const LENIENCE_PART: u64 = 10;
/// In the running means of pauses and bursts, the newest value has the weight of one divided by
/// this number.
const MEAN_DIVISOR: u64 = 8;
/// In the running part of pauses that are short, the newest pause has the weight of one divided by
/// this number.
const PAUSE_DIVISOR: u32 = 4;
/// A tenant with an SLO tolerates a wait whose length is the SLO divided by this number: for other
/// owners, because its requests are due as if they were no longer, and for a guest. The rest of the
/// SLO is for the request's own work and for earlier requests.
pub const WAITS_PER_SLO: u64 = 20;

/// If a tenant is far behind, the GPU idles for long in its pauses. The condition is a mean pause
/// of at most the longest patience divided by this number. With a smaller number, the other tenants
/// get less than under plain time-slicing (`eval --sweep 100 --seed 3`).
const PAUSES_PER_PATIENCE: u64 = 4;
/// A tenant that is owed more than this many quanta is far behind. Without long kernels, the
/// scheduler never owes a backlogged tenant more.
const QUANTA_BEHIND: u64 = 2;

/// The two kinds of tenants: owners and guests. Each kind has a clock of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rank {
    /// A tenant of class guaranteed or fair.
    Owner,
    /// A best-effort tenant, which gets the GPU only while no owner wants it.
    Guest,
}

impl Rank {
    pub fn of(class: Class) -> Self {
        if class == Class::BestEffort { Self::Guest } else { Self::Owner }
    }
}

/// The GPU time that a tenant uses between two pauses that are longer than a limit.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work {
    /// GPU time used since the last such pause, ns.
    pub present_ns: u64,
    /// The running mean of the times between two such pauses, ns.
    pub mean_ns: u64,
}

impl Work {
    /// Adds GPU time that the tenant used, ns.
    pub fn add(&mut self, used_ns: u64) {
        self.present_ns = self.present_ns.saturating_add(used_ns);
    }

    /// Counts the present time in the mean, at the end of a pause that is longer than the limit.
    fn end(&mut self) {
        self.mean_ns = mean(self.mean_ns, mem::take(&mut self.present_ns));
    }

    /// Returns the mean time, or the present time if longer, ns.
    fn usual_ns(&self) -> u64 {
        self.mean_ns.max(self.present_ns)
    }
}

/// A tenant as the scheduler of one GPU knows it.
#[derive(Debug)]
pub struct Tenant {
    pub rank: Rank,
    pub weight_ppm: u32,
    /// The tenant's SLO, ns. `None` if the tenant has no SLO.
    pub slo_ns: Option<u64>,
    /// Whether the tenant wanted the GPU at the last decision. A tenant that wanted the GPU
    /// competes: the clock of its kind (owners or guests) counts the tenant.
    pub wanted: bool,
    /// The tenant's virtual time while it competes.
    pub vtime: VirtualTime,
    /// The virtual time up to which the clock contains the tenant's charges.
    pub counted: VirtualTime,
    /// The tenant's lag while it does not compete, ns; negative for a debt.
    pub lag_ns: i64,
    /// GPU time that the tenant used since the last decision, if it did not compete then, ns.
    pub uncounted_ns: u64,
    /// The virtual time by which the tenant's request is to be served.
    pub due: VirtualTime,
    /// The virtual time at which the tenant has used up the request.
    pub ends: VirtualTime,
    /// The tenant's user; `None` if the user is unknown.
    pub user: Option<UserId>,
    /// Whether the tenant is new. When a new tenant first wants the GPU, it takes over the debts of
    /// its user's ended tenants.
    pub takes_over: bool,
    /// GPU time that the tenant owed when it left, ns.
    pub left_owing_ns: u64,
    /// GPU time that the tenant's meters have shown in all, ns.
    pub metered_ns: u64,
    /// Whether the tenant has sessions on this GPU.
    pub present: bool,
    /// The time since which the tenant has sessions on this GPU, ns.
    pub came_ns: u64,
    /// Whether an administrator paused the tenant.
    pub is_paused: bool,
    pub seen: Seen,
    pub stopped_wanting_ns: u64,
    /// The last time at which a meter showed that the tenant had used the GPU, ns. A tenant with
    /// short bursts can pause at each look.
    pub used_at_ns: u64,
    pub last_progress_ns: u64,
    /// The largest single charge to the tenant so far, ns.
    pub largest_charge_ns: u64,
    /// GPU time that the scheduler charged before a meter showed it, ns. The scheduler does not
    /// charge this amount again when a meter shows it later.
    pub advance_ns: u64,
    /// GPU time that the scheduler has charged for the present work in flight, ns. The meter shows
    /// this work only at its end.
    pub accrued_ns: u64,
    /// GPU time that the meter has shown since the last decision, ns.
    pub shown_ns: u64,
    /// Whether work was in flight after the last decision, or about to be launched.
    pub flew: bool,
    /// The tenant's bursts: its work between two pauses that are longer than two hand-offs.
    pub bursts: Work,
    /// The tenant's stretches: its work between two pauses that are longer than a hand-off.
    pub stretches: Work,
    /// The running mean of all of the tenant's pauses, ns.
    pub mean_pause_ns: u64,
    /// The part of the tenant's pauses that are shorter than two hand-offs, parts per million.
    pub short_pauses_ppm: u32,
    /// Time that a holder kept others waiting without metered use, and that the scheduler does not
    /// charge. So the scheduler charges nothing for a thread that sometimes wakes up late, but
    /// charges a thread that always wakes up late.
    pub lenience: Budget,
    /// Set if the tenant's work did not end within a drain, and its meter has not shown a long
    /// kernel that explains this.
    pub stuck: Option<Stuck>,
    /// GPU time per time in which the scheduler does not hold the tenant up.
    pub pace: Pace,
    /// Whether the tenant takes turns with all others, because its memory follows its turns.
    pub takes_turns: bool,
    /// Until when the work in flight of an owner that lost its place keeps its part of the SMs, ns.
    pub drains_until_ns: u64,
    /// Whether the scheduler charges no use of the GPU, because the tenant uses its own SMs.
    pub is_free: bool,
    /// The present request of a tenant with an SLO, with its due time.
    pub request: Request,
    pub grant: Grant,
}

/// A tenant's place in the order; the tenant with the least place gets the GPU first. Eligible
/// tenants come before others, then the earlier due request (or virtual time), then the larger
/// weight.
pub type Order = (bool, VirtualTime, Reverse<u32>);

impl Tenant {
    /// Returns a tenant that came at `now_ns`, with sessions and with a lag of 0.
    pub fn new(rank: Rank, now_ns: u64) -> Self {
        Self {
            rank,
            weight_ppm: 0,
            slo_ns: None,
            wanted: false,
            vtime: 0,
            counted: 0,
            lag_ns: 0,
            uncounted_ns: 0,
            due: 0,
            ends: 0,
            user: None,
            takes_over: false,
            left_owing_ns: 0,
            metered_ns: 0,
            present: true,
            came_ns: now_ns,
            is_paused: false,
            seen: Seen::default(),
            stopped_wanting_ns: now_ns,
            used_at_ns: 0,
            last_progress_ns: now_ns,
            largest_charge_ns: 0,
            advance_ns: 0,
            accrued_ns: 0,
            shown_ns: 0,
            flew: false,
            bursts: Work::default(),
            stretches: Work::default(),
            mean_pause_ns: 0,
            short_pauses_ppm: PPM,
            lenience: Budget::new(LENIENCE_PART, START_LIMIT_NS),
            stuck: None,
            pace: Pace::new(now_ns),
            takes_turns: false,
            drains_until_ns: 0,
            is_free: false,
            request: Request::default(),
            grant: Grant::Closed,
        }
    }

    /// Divides the lenience of the tenant's user evenly among the user's `among` tenants.
    pub fn share_lenience(&mut self, among: u64, now_ns: u64) {
        self.lenience.grow_by(LENIENCE_PART.saturating_mul(among.max(1)), now_ns);
    }

    /// Returns whether the tenant has sessions and may run.
    pub fn is_here(&self) -> bool {
        self.present && !self.is_paused
    }

    /// Returns whether the tenant has wanted nothing for [`IDLE_NS`], or is paused.
    pub fn is_idle(&self, now_ns: u64) -> bool {
        let since_ns = self.stopped_wanting_ns.max(self.came_ns).max(self.used_at_ns);
        let wants = self.wanted || self.seen.wants();
        self.is_paused || (!wants && now_ns.saturating_sub(since_ns) >= IDLE_NS)
    }

    /// Returns whether the tenant wanted the GPU within `SHORT_IDLE_NS` and wants nothing now, so
    /// that it can be back at any moment.
    pub fn is_back_soon(&self, now_ns: u64) -> bool {
        self.metered_ns > 0 && !self.wanted && now_ns.saturating_sub(self.stopped_wanting_ns) <= SHORT_IDLE_NS
    }

    /// Returns whether the tenant wants nothing and its meters have not changed.
    pub fn still_rests(&self, seen: &Seen) -> bool {
        self.seen == *seen && !seen.wants() && seen.used_ns == 0 && self.stuck.is_none()
    }

    /// Returns whether the tenant is an owner with an SLO and has used the GPU before.
    pub fn is_answering(&self) -> bool {
        self.has_objective() && self.metered_ns > 0
    }

    /// Returns whether the tenant is an owner with an SLO.
    pub fn has_objective(&self) -> bool {
        self.rank == Rank::Owner && self.slo_ns.is_some()
    }

    /// Returns whether the tenant's gate lets launches pass.
    pub fn may_launch(&self) -> bool {
        !matches!(self.grant, Grant::Closed | Grant::Paused)
    }

    /// Returns whether the tenant's gate lets launches pass, or its work is in flight.
    pub fn is_on_gpu(&self) -> bool {
        self.may_launch() || self.seen.in_flight
    }

    /// Returns the grant of the tenant while it has to wait: closed, or paused.
    pub fn closed(&self) -> Grant {
        if self.is_paused { Grant::Paused } else { Grant::Closed }
    }

    /// Returns `gpu_ns` of the tenant's GPU time as virtual time: divided by the tenant's weight.
    pub fn weighted(&self, gpu_ns: u64) -> VirtualTime {
        weighted(signed(gpu_ns), self.weight_ppm)
    }

    /// Returns the tenant's virtual time. For a tenant that does not compete, returns the virtual
    /// time with which the tenant would begin to compete.
    pub fn vtime(&self, clock: VirtualTime) -> VirtualTime {
        if self.wanted { self.vtime } else { clock - weighted(self.lag_ns, self.weight_ppm) }
    }

    /// Returns the tenant's lag, ns; negative for a debt.
    pub fn lag_ns(&self, clock: VirtualTime) -> i64 {
        if self.wanted { gpu_ns(clock - self.vtime, self.weight_ppm) } else { self.lag_ns }
    }

    /// Returns a lag within the bounds on lag and debt, ns.
    fn bounded(&self, lag_ns: i64) -> i64 {
        lag_ns.clamp(-signed(self.max_debt_ns()), signed(MAX_DEBT_NS))
    }

    /// Sets the tenant's lag, ns, within the bounds on lag and debt.
    pub fn set_lag(&mut self, lag_ns: i64, clock: VirtualTime) {
        self.lag_ns = self.bounded(lag_ns);
        self.move_to(clock - weighted(self.lag_ns, self.weight_ppm));
    }

    /// Moves the tenant, with its request, to another virtual time without a charge.
    fn move_to(&mut self, vtime: VirtualTime) {
        let moved = vtime - self.vtime;
        for place in [&mut self.vtime, &mut self.counted, &mut self.due, &mut self.ends] {
            *place += moved;
        }
    }

    /// Moves the tenant's lag towards zero, by `elapsed_ns` divided by `FORGOTTEN_PART`.
    pub fn forget(&mut self, elapsed_ns: u64, clock: VirtualTime) {
        let lag_ns = self.lag_ns(clock);
        let forgotten_ns = signed(elapsed_ns / FORGOTTEN_PART).min(lag_ns.saturating_abs());
        self.set_lag(lag_ns - forgotten_ns * lag_ns.signum(), clock);
    }

    /// Changes the lag of a tenant that did not compete for `pause_ns`, while the GPU did not idle
    /// for the tenant. A debt shrinks by `forgiven_ns`. Otherwise the tenant forgets a part of its
    /// lag: its own part of the pause, divided by [`OWED_FORGOTTEN_PART`].
    /// After a pause that `ends_burst`, the tenant is owed [`MAX_CREDIT_NS`] at most. A tenant with
    /// an SLO is also owed its part of the pause, up to one request. Otherwise, the tenant's next
    /// request would wait because of the debt of its last request. The competing tenants share the
    /// lag that this tenant loses.
    pub fn rested(
        &mut self,
        pause_ns: u64,
        ends_burst: bool,
        forgiven_ns: u64,
        clock: &mut Clock,
        tuning: &Tuning,
    ) {
        let before_ns = self.lag_ns;
        let part_ns = part_of(pause_ns, self.weight_ppm);
        let forgotten_ns = if self.lag_ns < 0 { forgiven_ns } else { part_ns / OWED_FORGOTTEN_PART };
        let kept_ns = self.lag_ns.saturating_abs().saturating_sub(signed(forgotten_ns)).max(0);
        let most_ns = if ends_burst { MAX_CREDIT_NS } else { MAX_DEBT_NS };
        let mut lag_ns = (kept_ns * self.lag_ns.signum()).min(signed(most_ns));
        let request_ns = signed(self.area_ns(self.request_ns(tuning)));
        if self.has_objective() && lag_ns < request_ns {
            lag_ns = lag_ns.saturating_add(signed(part_ns)).min(request_ns);
        }
        self.set_lag(lag_ns, clock.now());
        clock.give(before_ns - self.lag_ns);
    }

    /// Returns the debt that the tenant forgets in a pause, if the others bear it, ns.
    pub fn forgets_ns(&self, pause_ns: u64) -> u64 {
        (pause_ns / FORGOTTEN_PART).min(self.lag_ns.min(0).unsigned_abs())
    }

    /// Sets the tenant's weight. Its lag stays the same GPU time.
    pub fn set_weight(&mut self, weight_ppm: u32, clock: VirtualTime) {
        let lag_ns = self.lag_ns(clock);
        let [due_ns, ends_ns] =
            [self.due, self.ends].map(|vtime| gpu_ns(vtime - self.vtime, self.weight_ppm));
        self.weight_ppm = weight_ppm;
        self.move_to(clock - weighted(lag_ns, weight_ppm));
        [self.due, self.ends] = [due_ns, ends_ns].map(|ns| self.vtime + weighted(ns, weight_ppm));
    }

    /// Begins or ends the competition with the other tenants, with the tenant's present lag, up to
    /// the bounds. The competing tenants share the lag that the tenant loses by the bounds.
    pub fn compete(&mut self, competes: bool, clock: &mut Clock) {
        let lag_ns = self.lag_ns(clock.now());
        if self.wanted {
            clock.remove(self.vtime, self.weight_ppm);
        }
        self.lag_ns = self.bounded(lag_ns);
        clock.give(lag_ns.saturating_sub(self.lag_ns));
        self.move_to(clock.now() - weighted(self.lag_ns, self.weight_ppm));
        self.counted = self.vtime;
        self.wanted = competes;
        if competes {
            clock.add(self.vtime, self.weight_ppm);
        }
    }

    /// Returns the tenant's charges since the last call, as virtual time times the weight.
    pub fn count(&mut self) -> VirtualTime {
        let charged = self.vtime - mem::replace(&mut self.counted, self.vtime);
        charged * VirtualTime::from(self.weight_ppm.max(1))
    }

    /// Returns the part of the SMs that the tenant can use, parts per million.
    pub fn part_ppm(&self) -> u32 {
        if self.seen.sm_ppm == 0 { PPM } else { self.seen.sm_ppm.min(PPM) }
    }

    /// Returns the charge for `gpu_ns` of the tenant's time on the GPU, ns. If the tenant uses its
    /// own SMs, the charge is an area: the time times the part of the SMs.
    pub fn area_ns(&self, gpu_ns: u64) -> u64 {
        part_of(gpu_ns, if self.is_free { self.part_ppm() } else { PPM })
    }

    /// Begins or ends the time in which the scheduler charges no use of the GPU.
    pub fn set_free(&mut self, is_free: bool, now_ns: u64) {
        if mem::replace(&mut self.is_free, is_free) == is_free {
            return;
        }
        if !is_free {
            // The meter shows work in flight only at its end, and this part of it is free.
            self.accrued_ns = self.accrued_ns.min(now_ns.saturating_sub(self.last_progress_ns));
        }
        self.settle_accrued();
    }

    /// Charges GPU time to the tenant.
    pub fn charge(&mut self, gpu_ns: u64) {
        self.largest_charge_ns = self.largest_charge_ns.max(gpu_ns);
        if !self.wanted {
            self.uncounted_ns = self.uncounted_ns.saturating_add(gpu_ns);
        } else if !self.is_free {
            self.vtime += self.weighted(gpu_ns);
        }
    }

    /// Charges GPU time to a tenant that does not compete. Its request goes on.
    pub fn charge_beside(&mut self, gpu_ns: u64, clock: &mut Clock) {
        let [due, ends] = [self.due, self.ends].map(|place| place - self.vtime);
        let vtime = clock.now() - weighted(self.lag_ns, self.weight_ppm);
        let owes_ns = clock.run_beside(gpu_ns, self.weight_ppm);
        self.set_lag(self.lag_ns.saturating_sub(owes_ns), clock.now());
        [self.due, self.ends] = [due, ends].map(|place| vtime + place);
    }

    /// Charges the tenant's work in flight for `passed_ns` of the GPU's time since the last
    /// decision. When the meter shows the work, or the work is no longer in flight, the scheduler
    /// takes this charge back.
    pub fn accrue(&mut self, passed_ns: u64, is_beside: bool) {
        let shown_ns = mem::take(&mut self.shown_ns);
        let passed_ns = if is_beside { self.beside_ns(passed_ns) } else { passed_ns };
        let passed_ns = if mem::take(&mut self.flew) { passed_ns } else { 0 };
        let accrued_ns = match self.seen.in_flight && self.wanted {
            true => self.accrued_ns.saturating_add(passed_ns).saturating_sub(shown_ns).min(MAX_DEBT_NS),
            false => 0,
        };
        let more_ns = signed(accrued_ns) - signed(mem::replace(&mut self.accrued_ns, accrued_ns));
        if self.wanted && !self.is_free {
            self.vtime += weighted(more_ns, self.weight_ppm);
        }
    }

    /// Returns the part of `part_ns` of the GPU's time that the tenant used if other tenants had
    /// work in flight too, ns. The result is at most the known rest of the tenant's work, because
    /// this work can wait on the device.
    pub fn beside_ns(&self, part_ns: u64) -> u64 {
        if self.seen.pending_ns > 0 { part_ns.min(self.remaining_ns()) } else { part_ns }
    }

    /// Makes the charge for work in flight final. The scheduler does not charge this amount again
    /// when the meter shows it later.
    pub fn settle_accrued(&mut self) {
        self.advance_ns = self.advance_ns.saturating_add(mem::take(&mut self.accrued_ns));
    }

    /// Returns the most GPU time that the tenant may owe, ns.
    pub fn max_debt_ns(&self) -> u64 {
        self.largest_charge_ns.saturating_mul(CHARGES_OWED).clamp(DEBT_NS, MAX_DEBT_NS)
    }

    /// Moves the virtual time of a competing tenant into the bounds on lag and debt.
    pub fn bound(&mut self, clock: &mut Clock) {
        let lag_ns = self.lag_ns(clock.now());
        if self.bounded(lag_ns) != lag_ns {
            self.compete(true, clock);
        }
    }

    /// Returns the GPU time that the tenant is expected to use in one go, ns: its usual burst, or
    /// the present burst if longer.
    pub fn usual_burst_ns(&self) -> u64 {
        self.bursts.usual_ns()
    }

    /// Returns the GPU time that the tenant is expected to use before its next pause in which
    /// another tenant can use the GPU, ns: its usual stretch, or the present stretch if longer.
    pub fn usual_stretch_ns(&self) -> u64 {
        self.stretches.usual_ns()
    }

    /// Returns whether the tenant's usual stretch fits into one time slice of the hardware.
    pub fn is_brief(&self) -> bool {
        self.metered_ns > 0 && self.usual_stretch_ns() <= HARDWARE_SLICE_NS
    }

    /// Returns the GPU time of the tenant's usual stretch that it has not launched yet, ns.
    pub fn unlaunched_ns(&self) -> u64 {
        let launched_ns = self.stretches.present_ns.saturating_add(self.seen.pending_ns);
        self.stretches.mean_ns.saturating_sub(launched_ns)
    }

    /// Returns the length of the tenant's next request, ns: its usual burst, but a quantum at most.
    /// A tenant without metered use asks for a quantum.
    pub fn request_ns(&self, tuning: &Tuning) -> u64 {
        let burst_ns = if self.metered_ns > 0 { self.usual_burst_ns() } else { tuning.quantum_ns };
        burst_ns.clamp(tuning.handoff_ns.min(tuning.quantum_ns), tuning.quantum_ns)
    }

    /// Begins the tenant's next request at the virtual time `vtime`. With an SLO, the request is
    /// due earlier.
    pub fn ask(&mut self, vtime: VirtualTime, tuning: &Tuning) {
        let request_ns = self.request_ns(tuning);
        self.ends = vtime + self.weighted(self.area_ns(request_ns));
        self.due = vtime + self.weighted(self.area_ns(self.due_ns(request_ns)));
    }

    /// Returns the GPU time within which a request is due, ns.
    pub fn due_ns(&self, request_ns: u64) -> u64 {
        let slo_ns = if self.has_objective() { self.slo_ns } else { None };
        slo_ns.map_or(request_ns, |slo_ns| request_ns.min(slo_ns / WAITS_PER_SLO))
    }

    /// Returns whether a competing tenant is owed GPU time, up to this virtual time.
    pub fn is_owed(&self, mean: VirtualTime) -> bool {
        self.vtime <= mean
    }

    /// Returns the place of a competing tenant in the order, if `mean` is the bound of eligibility.
    /// Eligible tenants come first, by the due times of their requests. The other tenants come
    /// last, by their virtual times.
    pub fn order(&self, mean: VirtualTime) -> Order {
        self.order_at(self.vtime, self.due, mean)
    }

    /// Returns the place in the order that the tenant would have at the virtual time `vtime`, with
    /// a request that is due at `due`.
    pub fn order_at(&self, vtime: VirtualTime, due: VirtualTime, mean: VirtualTime) -> Order {
        let had_more = vtime > mean;
        (had_more, if had_more { vtime } else { due }, Reverse(self.weight_ppm))
    }

    /// Records the end of a pause of `pause_ns`, for the means of pauses, bursts, and stretches. A
    /// pause longer than a hand-off ends the stretch, and a pause longer than two ends the burst. In
    /// the mean, a pause counts as at most `most_ns`. Returns whether a burst begins.
    pub fn paused(&mut self, pause_ns: u64, most_ns: u64, tuning: &Tuning) -> bool {
        if pause_ns > tuning.handoff_ns {
            self.stretches.end();
        }
        let short_ns = short_pause_ns(tuning);
        self.mean_pause_ns = mean(self.mean_pause_ns, pause_ns.min(most_ns));
        let part_ppm = self.short_pauses_ppm / PAUSE_DIVISOR;
        self.short_pauses_ppm -= part_ppm;
        if pause_ns <= short_ns {
            self.short_pauses_ppm += PPM / PAUSE_DIVISOR;
        } else {
            self.bursts.end();
        }
        pause_ns > short_ns
    }

    /// Returns whether the next pause is likely to be short.
    pub fn pauses_shortly(&self) -> bool {
        self.short_pauses_ppm >= PPM / 2
    }

    /// Returns whether the tenant is owed more than `QUANTA_BEHIND` quanta, and its mean pause is
    /// short. Each return to the GPU after a short pause takes so long that the tenant is owed more
    /// and more.
    pub fn falls_behind(&self, clock: VirtualTime, tuning: &Tuning) -> bool {
        let is_far_behind = self.lag_ns(clock) > signed(tuning.quantum_ns.saturating_mul(QUANTA_BEHIND));
        let most_ns = longest_patience_ns(tuning) / PAUSES_PER_PATIENCE;
        is_far_behind && (1..=most_ns).contains(&self.mean_pause_ns)
    }

    /// Returns the time for which the GPU idles in a pause of this holder while the owner `next`
    /// waits, ns. For a holder that falls behind, the GPU idles for as long as a return takes.
    ///
    /// If both tenants are brief, a return costs no hand-off, because the work waits on the GPU
    /// itself. So the GPU does not idle for a short pause.
    pub fn patience_ns(&self, next: &Self, clock: VirtualTime, tuning: &Tuning) -> u64 {
        if self.falls_behind(clock, tuning) {
            longest_patience_ns(tuning)
        } else if self.pauses_shortly() && !(self.is_brief() && next.is_brief()) {
            short_pause_ns(tuning)
        } else {
            0
        }
    }
}

/// A tenant whose drain did not end in time: its metered use since the beginning of the hold.
#[derive(Debug, Clone, Copy)]
pub struct Stuck {
    pub since_ns: u64,
    /// GPU time that the meter has shown since `since_ns`, ns.
    pub used_ns: u64,
}

impl Stuck {
    /// Returns whether the metered use covers the time since `since_ns`. If so, a long kernel has
    /// ended.
    pub fn is_over(&self, now_ns: u64) -> bool {
        is_explained(self.used_ns, now_ns.saturating_sub(self.since_ns))
    }
}

/// A budget of time that the scheduler does not charge. The budget grows by the passed time divided
/// by `part`, up to `most_ns`.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// The budget at `at_ns`, ns.
    left_ns: u64,
    /// The time of the last use of the budget, ns.
    at_ns: u64,
    /// The divisor of the passed time by which the budget grows.
    part: u64,
    most_ns: u64,
}

impl Budget {
    /// Returns an empty budget.
    pub const fn new(part: u64, most_ns: u64) -> Self {
        Self { left_ns: 0, at_ns: 0, part, most_ns }
    }

    /// Returns the budget of debts that pausing tenants forget, which the competing tenants bear.
    pub const fn of_debts() -> Self {
        Self::new(FORGOTTEN_PART, DEBT_NS)
    }

    fn left_ns(self, now_ns: u64) -> u64 {
        let earned_ns = now_ns.saturating_sub(self.at_ns) / self.part;
        self.left_ns.saturating_add(earned_ns).min(self.most_ns)
    }

    /// Spends `ns` of the budget, or the whole budget if it is less. Returns the spent time, ns.
    pub fn spend(&mut self, ns: u64, now_ns: u64) -> u64 {
        let left_ns = self.left_ns(now_ns);
        let spent_ns = ns.min(left_ns);
        *self = Self { left_ns: left_ns - spent_ns, at_ns: now_ns, ..*self };
        spent_ns
    }

    /// Returns the budget with nothing left at `now_ns`.
    pub fn spent(self, now_ns: u64) -> Self {
        Self { left_ns: 0, at_ns: now_ns, ..self }
    }

    /// Lets the budget grow by the passed time divided by `part` from `now_ns` on.
    fn grow_by(&mut self, part: u64, now_ns: u64) {
        self.spend(0, now_ns);
        self.part = part;
    }
}

/// The moment from which on other tenants wait for the end of a hold.
#[derive(Debug, Clone, Copy)]
pub struct Contended {
    pub since_ns: u64,
    /// GPU time that the holder had used in the hold by `since_ns`, ns.
    pub used_ns: u64,
    /// The `shared_ns` of the hold at `since_ns`, ns.
    pub shared_ns: u64,
}

/// A hold of the GPU by one tenant, from the grant to the end of the drain.
#[derive(Debug, Clone, Copy)]
pub struct Hold {
    pub tenant: TenantId,
    pub since_ns: u64,
    pub used_ns: u64,
    /// GPU time that the previous holder's work in flight took in this hold, ns.
    pub shared_ns: u64,
    /// Whether a meter showed work of the holder in flight during the hold.
    pub ran: bool,
    /// Whether the holder wanted nothing at some time of the hold.
    pub paused: bool,
    pub idle_since_ns: Option<u64>,
    /// Whether the holder's gate was open in this hold before another tenant wanted the GPU.
    pub was_open: bool,
    /// Set while other tenants of the holder's kind (owners or guests) wait for the end of the
    /// hold. The holder then has leases that end.
    pub contended: Option<Contended>,
    /// The time at which the scheduler closed the gate, ns; `None` before the drain.
    pub closed_ns: Option<u64>,
    /// The time at which the scheduler stops waiting for the drain, ns; `None` before the drain.
    pub drain_give_up_ns: Option<u64>,
    /// The time at which the first work of the hold began, ns; `None` if no session reports it.
    pub began_ns: Option<u64>,
    /// The time at which the last finished work ended, ns; `None` if no session reports it.
    pub ended_ns: Option<u64>,
    /// The time since which the holder may launch once, ns; `None` while it has no such grant.
    pub once_since_ns: Option<u64>,
}

/// The progress of an owner at a decision.
#[derive(Debug, Clone, Copy)]
pub struct Noted {
    /// The beginning of the hold, ns. By this time, the scheduler tells one hold from another.
    pub hold_ns: u64,
    pub at_ns: u64,
    pub used_ns: u64,
    pub wants: bool,
}

impl Hold {
    /// Returns a hold that begins.
    pub fn begin(tenant: TenantId, now_ns: u64, is_idle: bool) -> Self {
        Self {
            tenant,
            since_ns: now_ns,
            used_ns: 0,
            shared_ns: 0,
            ran: false,
            paused: is_idle,
            idle_since_ns: is_idle.then_some(now_ns),
            was_open: false,
            contended: None,
            closed_ns: None,
            drain_give_up_ns: None,
            began_ns: None,
            ended_ns: None,
            once_since_ns: None,
        }
    }

    /// Returns the hold as contended: other tenants wait for its end. If no tenant waited before,
    /// the wait begins at `now_ns`.
    pub fn contend(self, now_ns: u64) -> Self {
        let began = Contended { since_ns: now_ns, used_ns: self.used_ns, shared_ns: self.shared_ns };
        Self { contended: Some(self.contended.unwrap_or(began)), ..self }
    }

    /// Returns the idle time of the GPU at both ends of the hold, ns. The first part is from the
    /// gate's opening to the first work, and the second from the end of the work in flight to
    /// `now_ns`. Returns `None` if the sessions do not report these times. A session that did not
    /// wait for the gate reports nothing.
    pub fn edges_ns(&self, now_ns: u64) -> Option<u64> {
        let way_in_ns = self.began_ns?.saturating_sub(self.since_ns);
        let idle_since_ns = self.closed_ns.map(|closed_ns| self.ended_ns.unwrap_or(0).max(closed_ns));
        let way_out_ns = idle_since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
        Some(way_in_ns.saturating_add(way_out_ns))
    }

    /// Returns the hold as if it began at `now_ns`, after `silent_ns` in which no scheduler ran.
    /// The limit of the drain moves by `silent_ns`.
    pub fn renew(self, now_ns: u64, silent_ns: u64) -> Self {
        let (used_ns, shared_ns) = (self.used_ns, self.shared_ns);
        Self {
            since_ns: now_ns,
            idle_since_ns: self.idle_since_ns.map(|_| now_ns),
            contended: self.contended.map(|_| Contended { since_ns: now_ns, used_ns, shared_ns }),
            closed_ns: self.closed_ns.map(|_| now_ns),
            drain_give_up_ns: self.drain_give_up_ns.map(|at_ns| at_ns.saturating_add(silent_ns)),
            began_ns: None,
            once_since_ns: self.once_since_ns.map(|_| now_ns),
            ..self
        }
    }

    /// Returns the time of the hold in which other tenants waited and for which no meter shows a
    /// use, ns. A meter lags behind a little, and a program can launch more slowly than the GPU
    /// runs. So if the meter shows at least half of the time, the result is 0. `accrued_ns` is the
    /// scheduler's charge for work in flight, which counts as shown.
    fn unshown_ns(&self, accrued_ns: u64, now_ns: u64) -> u64 {
        let Some(Contended { since_ns, used_ns, shared_ns }) = self.contended else { return 0 };
        let had_ns = now_ns.saturating_sub(since_ns).saturating_sub(self.shared_ns.saturating_sub(shared_ns));
        let used_ns = self.used_ns.saturating_sub(used_ns).saturating_add(accrued_ns);
        if is_explained(used_ns, had_ns) { 0 } else { had_ns.saturating_sub(used_ns) }
    }
}

/// Returns whether a meter shows enough use: `used_ns` is at least half of `had_ns`, the time with
/// the GPU.
fn is_explained(used_ns: u64, had_ns: u64) -> bool {
    used_ns >= had_ns / 2
}

/// Returns the GPU time, beyond the charges so far, that a holder will have used when its work in
/// flight ends, ns. The time is the greater of the rest of the work in flight and the time without
/// metered use.
pub fn begun_ns(hold: &Hold, holder: &Tenant, now_ns: u64) -> u64 {
    let silent_ns = now_ns.saturating_sub(holder.last_progress_ns.max(hold.since_ns));
    let silent_ns = silent_ns.saturating_sub(hold.shared_ns);
    let begun_ns = match holder.seen {
        Seen { in_flight: true, .. } => holder.remaining_ns(),
        Seen { waiting: true, .. } => silent_ns.saturating_sub(START_LIMIT_NS),
        _ => 0,
    };
    begun_ns.max(unexplained_ns(hold, holder, now_ns)).min(MAX_DEBT_NS)
}

/// Returns the time without metered use that the scheduler charges, ns: all beyond the tenant's
/// lenience. If the holder ran without a pause and its meter shows nothing at all, the lenience
/// does not apply.
fn unexplained_ns(hold: &Hold, holder: &Tenant, now_ns: u64) -> u64 {
    let is_mute = hold.used_ns == 0 && hold.ran && !hold.paused;
    let let_pass_ns = if is_mute { 0 } else { holder.lenience.left_ns(now_ns) };
    hold.unshown_ns(holder.accrued_ns, now_ns).saturating_sub(let_pass_ns)
}

impl Tenant {
    /// Charges the time of a finished hold for which no meter shows a use, beyond the lenience.
    /// Returns the charge, ns. The scheduler does not charge this amount again when a meter shows
    /// it later.
    pub fn settle(&mut self, hold: &Hold, now_ns: u64) -> u64 {
        let unexplained_ns = unexplained_ns(hold, self, now_ns);
        let passed_ns = hold.unshown_ns(self.accrued_ns, now_ns) - unexplained_ns;
        self.lenience.spend(passed_ns, now_ns);
        self.settle_accrued();
        if unexplained_ns > 0 {
            self.charge(unexplained_ns);
            self.advance_ns = self.advance_ns.saturating_add(unexplained_ns);
        }
        unexplained_ns
    }

    /// Returns the time that the tenant's work in flight still takes, by the tenant's meter and the
    /// charges so far, ns.
    pub fn remaining_ns(&self) -> u64 {
        let pending_ns = if self.seen.in_flight { self.seen.pending_ns.min(MAX_DEBT_NS) } else { 0 };
        pending_ns.saturating_sub(self.accrued_ns.max(self.advance_ns))
    }
}

/// Returns a part of a time, ns; `ppm` is the part in parts per million.
fn part_of(time_ns: u64, ppm: u32) -> u64 {
    let part_ns = u128::from(time_ns) * u128::from(ppm) / u128::from(PPM);
    u64::try_from(part_ns).unwrap_or(u64::MAX)
}

/// Returns the running mean `before` with one more value. If `before` is 0, returns the value.
pub fn mean(before: u64, value: u64) -> u64 {
    if before == 0 { value } else { before - before / MEAN_DIVISOR + value / MEAN_DIVISOR }
}
