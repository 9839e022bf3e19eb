//! Owners that use the GPU together. The scheduler lets several owners launch if they fit on the
//! GPU, in one of two ways:
//!
//! - **In space.** Under MPS, each owner can use a part of the SMs. The scheduler lets a set of
//!   owners launch whose parts add up to the whole GPU at most ([`super::space`]).
//! - **In time.** Most programs wait for their host between two bursts of GPU work. If the owners'
//!   demands add up to less than the GPU, each owner can have all that it wants. Turns would then
//!   only cost hand-offs.
//!
//! A tenant's *pace* is the GPU time that it uses, divided by the time in which the scheduler does
//! not hold it up. The pace under leases is the tenant's demand, because it then has the GPU alone.
//! Owners that fit in time part, and take turns again, if one of these happens:
//!
//! - The paces add up to nearly the whole GPU.
//! - An owner's pace falls by a quarter below its demand, and the others use the GPU for more than
//!   a quarter of the time. The others hold an owner up no longer than they use the GPU. If they
//!   use less, the owner's host is slow, or its program has changed. Turns would then make it
//!   slower.
//!
//! All owners part if a gang wants the GPU. Owners that fit in time also part if a guest or an
//! owner with an SLO wants the GPU. Owners that fit in space part for a guest only when none of
//! them wants the GPU and the guard lets the guest launch.
//!
//! While owners that fit in time are together, the scheduler charges them as always. So a lag that
//! grows is paid back under leases. If owners part because of their paces, they stay apart for a
//! while, and for twice as long if this happens again soon.

use super::clock::VirtualTime;
use super::due::Job;
use super::state::{Rank, SHORT_IDLE_NS, Stuck, Tenant};
use super::{Beside, Grant, MAX_DRAIN_NS, POLL_NS, Scheduler, Step, ns};
use crate::TenantId;
use crate::entitlement::IDLE_NS;
use crate::gang::Order;
use crate::tuning::Tuning;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;
use deepres_abi::PPM;

/// The span after which an observation of a pace counts half as much.
const SPAN_NS: u64 = ns(Duration::from_millis(200));
/// A pace is known once it was observed for half of the span. After the first halving, the pace of
/// a tenant is always known.
const KNOWN_NS: u64 = SPAN_NS / 2;
/// The sum of the paces at which owners part, parts per million of the GPU. The remainder is for
/// the hardware's context switches.
const MOST_PACE_PPM: u64 = 900_000;
/// Owners start to run together only if their demands add up to at most this, in parts per million
/// of the GPU. The margin for the error of the estimates is as large as the one for the switches.
const MOST_DEMAND_PPM: u64 = MOST_PACE_PPM - (PPM as u64 - MOST_PACE_PPM);
/// The part of an owner's demand that its pace must reach, parts per million.
const LEAST_PACE_PPM: u64 = 750_000;
/// The time between two looks at the paces.
pub const LOOK_NS: u64 = ns(Duration::from_millis(5));
/// The time between two looks at the demands of owners that take turns.
const RETRY_NS: u64 = ns(Duration::from_millis(20));
/// The longest time for which owners stay apart after they parted because of their paces. The
/// shortest time is twice the span of a pace.
const LONGEST_APART_NS: u64 = ns(Duration::from_secs(10));
/// The next time apart is the shortest again if the owners were together for this many times the
/// last time apart.
const TOGETHER_PER_APART: u64 = 10;

/// A tenant's pace.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pace {
    used_ns: u64,
    /// The time in which the scheduler did not hold the tenant up, ns.
    span_ns: u64,
    /// The moment up to which `span_ns` is complete, ns.
    until_ns: u64,
    /// Whether a thread waited at the gate at `until_ns`, and no work was in flight.
    waits: bool,
    /// The tenant's demand when it last came together with others, parts per million.
    demand_ppm: u32,
}

impl Pace {
    /// Returns the pace of a tenant that came at `now_ns`.
    pub fn new(now_ns: u64) -> Self {
        Self { until_ns: now_ns, ..Self::default() }
    }

    /// Adds GPU time that the tenant used, ns.
    pub fn used(&mut self, used_ns: u64) {
        self.used_ns = self.used_ns.saturating_add(used_ns);
    }

    /// Adds the time up to `now_ns` if `counts`. `ends_ns` is the moment at which the tenant's own
    /// use and its short pause ended, if this is earlier.
    fn pass(&mut self, ends_ns: u64, now_ns: u64, counts: bool) {
        let until_ns = mem::replace(&mut self.until_ns, now_ns);
        let passed_ns = ends_ns.min(now_ns).saturating_sub(until_ns);
        self.span_ns = self.span_ns.saturating_add(if counts { passed_ns } else { 0 });
        while self.span_ns > SPAN_NS {
            self.span_ns /= 2;
            self.used_ns /= 2;
        }
    }

    /// Returns the pace if the tenant has used `more_ns` beyond the meter's use, parts per million;
    /// `None` if the pace is unknown.
    fn ppm(&self, more_ns: u64) -> Option<u64> {
        let used_ns = self.used_ns.saturating_add(more_ns).min(self.span_ns);
        let ppm = u128::from(used_ns) * u128::from(PPM) / u128::from(self.span_ns.max(1));
        (self.span_ns >= KNOWN_NS).then_some(ppm as u64)
    }

    /// Begins the observation anew at `now_ns`, and keeps the demand.
    pub fn begin_anew(&mut self, now_ns: u64) {
        (self.used_ns, self.span_ns, self.until_ns) = (0, 0, now_ns);
    }
}

/// The way in which owners fit on the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// The parts of the SMs of at least two owners add up to the whole GPU at most.
    Space,
    /// The demands of the owners add up to less than the GPU.
    Time,
}

/// Whether owners use the GPU together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The owners take turns. The scheduler looks at their demands from `until_ns` on.
    Apart { until_ns: u64 },
    /// The gates of the active owners are open, or in space a set of them may launch.
    Together { since_ns: u64, fit: Fit },
    /// The gates are closed, and the work in flight drains.
    Parting { closed_ns: u64, give_up_ns: u64 },
}

/// The owners that use the GPU together, if any.
#[derive(Debug)]
pub struct Company {
    state: State,
    /// The time for which the owners last stayed apart because of their paces, ns.
    apart_ns: u64,
    /// The end of the present time apart, ns.
    retry_ns: u64,
    /// The owners that have places on the SMs, in the order in which the scheduler chose them.
    pub(super) set: Vec<TenantId>,
    /// The time at which the scheduler last chose a set of owners anew, ns.
    pub(super) chosen_ns: u64,
    /// The least part of the SMs of an owner that waits for a place, parts per million; more than
    /// all SMs if none waits.
    pub(super) waits_ppm: u64,
    /// Working memory: the work of which the scheduler finds out whether it can be in time.
    pub(super) jobs: Vec<Job>,
    /// Working memory: the owners with requests that are not accepted, with their virtual times.
    pub(super) asked: Vec<(VirtualTime, TenantId)>,
}

impl Default for Company {
    fn default() -> Self {
        Self {
            state: State::Apart { until_ns: 0 },
            apart_ns: SPAN_NS,
            retry_ns: 0,
            set: Vec::new(),
            chosen_ns: 0,
            waits_ppm: u64::MAX,
            jobs: Vec::new(),
            asked: Vec::new(),
        }
    }
}

impl Company {
    /// Takes the memory that a decision about this many tenants needs.
    pub(super) fn reserve(&mut self, tenants: usize) {
        self.set.reserve(tenants);
        self.jobs.reserve(tenants);
        self.asked.reserve(tenants);
    }

    /// Returns whether owners use the GPU together, or their work in flight still drains.
    pub fn has_gpu(&self) -> bool {
        !matches!(self.state, State::Apart { .. })
    }

    /// Returns whether owners use the GPU together, each with a part of the SMs.
    pub fn is_in_space(&self) -> bool {
        matches!(self.state, State::Together { fit: Fit::Space, .. })
    }

    /// Returns whether the work in flight of several tenants drains.
    pub fn is_parting(&self) -> bool {
        matches!(self.state, State::Parting { .. })
    }
}

/// The reason why owners part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parting {
    /// Another tenant wants the GPU, or only one owner is left.
    Others,
    /// The sum of the paces is too high, an owner's pace is too low, or an owner is owed much.
    Paces,
}

/// The figures of all active owners of a GPU.
#[derive(Debug, Default)]
struct Census {
    owners: usize,
    /// The sum of the owners' parts of the SMs, parts per million.
    parts_ppm: u64,
    /// The two least parts of the SMs, parts per million.
    least_ppm: [u32; 2],
    /// The sum of the known paces, parts per million.
    paces_ppm: u64,
    /// Whether the pace of an owner is unknown.
    has_unknown: bool,
    /// The least pace of an owner whose pace is well below its demand, parts per million.
    slow_ppm: Option<u64>,
    /// Whether an owner takes turns with all others, because its memory follows its turns.
    has_solitary: bool,
    /// Whether the work of an owner did not end within a drain. On its own part of the SMs, such
    /// work keeps no other owner from the GPU.
    has_stuck: bool,
    /// Whether an owner with a closed or leased gate wants the GPU.
    has_newcomer: bool,
    /// Whether an open gate belongs to a tenant that is paused or is no longer an owner.
    has_left: bool,
}

impl Census {
    /// Returns whether the parts of all owners add up to the whole GPU at most.
    fn fits_whole(&self) -> bool {
        self.parts_ppm <= u64::from(PPM)
    }

    /// Returns whether owners that use the GPU together hold each other up, or are about to.
    fn is_harmed(&self) -> bool {
        let others_ppm = self.slow_ppm.map_or(0, |slow_ppm| self.paces_ppm.saturating_sub(slow_ppm));
        others_ppm > u64::from(PPM) - LEAST_PACE_PPM || self.paces_ppm > MOST_PACE_PPM
    }

    /// Returns whether at least two owners can use the GPU at once, each on its part of the SMs.
    fn fits_in_space(&self) -> bool {
        let [least_ppm, next_ppm] = self.least_ppm;
        self.owners > 1 && least_ppm + next_ppm <= PPM
    }
}

impl Tenant {
    /// Returns whether the tenant is an owner that wants the GPU or used it lately.
    pub fn is_active(&self, now_ns: u64) -> bool {
        let used_lately = self.metered_ns > 0 && now_ns.saturating_sub(self.used_at_ns) < IDLE_NS;
        self.rank == Rank::Owner && self.is_here() && (self.seen.wants() || used_lately)
    }

    /// Returns the tenant's pace, parts per million; `None` if it is unknown. The meter shows a
    /// long kernel only at its end, so the time for which work in flight shows no progress counts
    /// as used.
    fn pace_ppm(&self, now_ns: u64) -> Option<u64> {
        let silent_ns = now_ns.saturating_sub(self.last_progress_ns);
        self.pace.ppm(if self.seen.in_flight { silent_ns } else { 0 })
    }
}

impl Scheduler {
    /// Adds the time since the last decision to the paces. The scheduler calls this before the
    /// decision changes the state of the tenants.
    pub(super) fn note_paces(&mut self, now_ns: u64) {
        let (flying, is_together) = (self.flying, self.company.has_gpu());
        self.tenants.astir_with(|_, tenant| {
            let is_shared = !is_together && tenant.flew && flying > 1;
            let rests_ns = tenant.stopped_wanting_ns.saturating_add(SHORT_IDLE_NS);
            let ends_ns = if tenant.wanted { now_ns } else { rests_ns };
            let waits = mem::replace(&mut tenant.pace.waits, tenant.seen.waiting && !tenant.seen.in_flight);
            let is_blocked = waits && !tenant.may_launch();
            tenant.pace.pass(ends_ns, now_ns, !is_shared && !is_blocked);
        });
    }

    /// Decides whether owners use the GPU together. Returns `None` if they take turns.
    pub(super) fn together_step(&mut self, now_ns: u64, tuning: &Tuning) -> Option<Step> {
        match self.company.state {
            State::Apart { until_ns } if now_ns < until_ns => None,
            State::Apart { .. } if self.is_turn_of_guests() => None,
            State::Apart { .. } => match self.fit(now_ns) {
                Some(fit) => {
                    self.come_together(fit, now_ns);
                    Some(Step::Again)
                }
                None => {
                    self.company.state = State::Apart { until_ns: now_ns.saturating_add(RETRY_NS) };
                    None
                }
            },
            State::Together { since_ns, fit } => {
                let census = self.census(now_ns);
                let guests_at_ns = match self.parting(fit, &census) {
                    Some(parting) => Err(parting),
                    None => self.guests_wait(now_ns, tuning),
                };
                let guests_at_ns = match guests_at_ns {
                    Ok(guests_at_ns) => guests_at_ns,
                    Err(parting) => {
                        self.part(since_ns, fit, parting, now_ns);
                        return Some(Step::Again);
                    }
                };
                let wake_ns = match fit {
                    Fit::Space => {
                        // A guest waits for a pause of all owners, and leases show its begin.
                        let is_open = census.fits_whole() && !self.is_wanted_by(Rank::Guest);
                        self.space_step(is_open, now_ns, tuning).min(guests_at_ns)
                    }
                    Fit::Time => {
                        self.set_gates(|tenant| tenant.is_active(now_ns), Grant::Open);
                        now_ns.saturating_add(LOOK_NS)
                    }
                };
                Some(Step::Stay(Some(wake_ns)))
            }
            // The last readings do not show launches that passed a gate just before it closed.
            State::Parting { closed_ns, .. } if now_ns <= closed_ns => {
                Some(Step::Stay(Some(now_ns.saturating_add(1))))
            }
            State::Parting { closed_ns, give_up_ns } => self.parting_step(closed_ns, give_up_ns, now_ns),
        }
    }

    /// Returns whether no gang uses this GPU or wants it.
    fn is_without_gangs(&self) -> bool {
        self.order == Order::Apart && self.gangs.is_empty()
    }

    /// Returns whether an owner, or a guest (`rank`), wants the GPU.
    fn is_wanted_by(&self, rank: Rank) -> bool {
        self.tenants.astir().any(|(_, tenant)| tenant.rank == rank && tenant.wanted)
    }

    /// Returns whether a guest has the GPU, or only guests want it.
    fn is_turn_of_guests(&self) -> bool {
        let has_guest = self.hold.is_some_and(|hold| self.is_guest(hold.tenant));
        has_guest || (self.is_wanted_by(Rank::Guest) && !self.is_wanted_by(Rank::Owner))
    }

    /// Returns when the scheduler looks again whether a guest may launch in a pause of owners that
    /// are together, ns.
    ///
    /// # Errors
    /// A guest may launch now, so the owners part.
    fn guests_wait(&mut self, now_ns: u64, tuning: &Tuning) -> Result<u64, Parting> {
        if !self.is_turn_of_guests() {
            return Ok(u64::MAX);
        }
        let pause_begins_ns = self.guard.idle_since_ns().unwrap_or(now_ns).saturating_add(tuning.grace_ns);
        if now_ns < pause_begins_ns {
            return Ok(pause_begins_ns);
        }
        match self.next_guest(None, now_ns, tuning) {
            Ok(_) => Err(Parting::Others),
            // The owners have leases, so no bell tells the end of their pause.
            Err(retry_ns) => Ok(now_ns.saturating_add(POLL_NS).min(retry_ns.unwrap_or(u64::MAX))),
        }
    }

    fn has_answering(&self) -> bool {
        self.tenants.with_objective().any(|(_, tenant)| tenant.is_here() && tenant.is_answering())
    }

    /// Returns whether a tenant is there for whose sake owners that fit in time take turns.
    fn needs_turns(&self, census: &Census) -> bool {
        census.has_stuck || self.has_answering() || self.is_wanted_by(Rank::Guest)
    }

    fn census(&self, now_ns: u64) -> Census {
        let mut census = Census { least_ppm: [PPM; 2], ..Census::default() };
        for tenant in self.tenants.values() {
            let is_open = tenant.grant == Grant::Open;
            census.has_left |= is_open && !(tenant.is_here() && tenant.rank == Rank::Owner);
            if !tenant.is_active(now_ns) {
                continue;
            }
            census.owners += 1;
            census.has_newcomer |= tenant.seen.wants() && !is_open;
            let part_ppm = tenant.part_ppm();
            census.parts_ppm += u64::from(part_ppm);
            let [least_ppm, next_ppm] = census.least_ppm;
            census.least_ppm = [least_ppm.min(part_ppm), next_ppm.min(part_ppm.max(least_ppm))];
            census.has_solitary |= tenant.takes_turns;
            census.has_stuck |= tenant.stuck.is_some();
            match tenant.pace_ppm(now_ns) {
                Some(ppm) => {
                    census.paces_ppm += ppm;
                    let least_ppm = u64::from(tenant.pace.demand_ppm) * LEAST_PACE_PPM / u64::from(PPM);
                    if ppm < least_ppm {
                        census.slow_ppm = Some(census.slow_ppm.map_or(ppm, |slow_ppm| slow_ppm.min(ppm)));
                    }
                }
                None => census.has_unknown = true,
            }
        }
        census
    }

    /// Returns how the active owners fit on the GPU together; `None` if they do not.
    fn fit(&self, now_ns: u64) -> Option<Fit> {
        if !self.is_without_gangs() || self.hold.is_some_and(|hold| self.is_paused(hold.tenant)) {
            return None;
        }
        let census = self.census(now_ns);
        if census.owners < 2 || census.has_solitary {
            return None;
        }
        if census.fits_whole() {
            return Some(Fit::Space);
        }
        let fits = !census.has_unknown && census.paces_ppm <= MOST_DEMAND_PPM;
        if fits && !self.needs_turns(&census) && now_ns >= self.company.retry_ns {
            return Some(Fit::Time);
        }
        census.fits_in_space().then_some(Fit::Space)
    }

    /// Ends the present hold. Opens the gates of all active owners that fit in time.
    fn come_together(&mut self, fit: Fit, now_ns: u64) {
        let draining = self.hold.and_then(|hold| Some((hold.tenant, hold.drain_give_up_ns?)));
        let beside = self.beside.map(|beside| (beside.tenant, beside.until_ns));
        for (id, until_ns) in draining.into_iter().chain(beside) {
            if let Some(tenant) = self.tenants.get_quietly(id) {
                tenant.drains_until_ns = until_ns;
            }
        }
        if let Some(hold) = self.hold.take()
            && let Some(holder) = self.tenants.get_mut(hold.tenant)
        {
            let unshown_ns = holder.settle(&hold, now_ns);
            self.distrust(hold.tenant, unshown_ns, now_ns);
        }
        self.beside = None;
        self.company.state = State::Together { since_ns: now_ns, fit };
        self.company.chosen_ns = 0;
        if fit == Fit::Time {
            self.set_gates(|tenant| tenant.may_launch() || tenant.is_active(now_ns), Grant::Open);
        }
        for tenant in self.tenants.values_quietly().filter(|tenant| tenant.may_launch()) {
            tenant.pace.demand_ppm = tenant.pace_ppm(now_ns).map_or(0, |ppm| ppm as u32);
            tenant.pace.begin_anew(now_ns);
        }
    }

    /// Sets the gates of those tenants for which `is_asked` holds.
    fn set_gates(&mut self, is_asked: impl Fn(&Tenant) -> bool, grant: Grant) {
        let mut after = None;
        while let Some(id) = self.tenants.next_after(after, &is_asked) {
            self.change(id, grant, false);
            after = Some(id);
        }
    }

    /// Returns why owners that fitted on the GPU part, if they do.
    fn parting(&self, fit: Fit, census: &Census) -> Option<Parting> {
        let fits = match fit {
            Fit::Space => census.fits_in_space(),
            Fit::Time => !census.has_newcomer && !census.has_left && !self.needs_turns(census),
        };
        if !self.is_without_gangs() || !fits || census.has_solitary || census.owners < 2 {
            return Some(Parting::Others);
        }
        (fit == Fit::Time && census.is_harmed()).then_some(Parting::Paces)
    }

    /// Closes all gates. The work in flight drains.
    fn part(&mut self, since_ns: u64, fit: Fit, parting: Parting, now_ns: u64) {
        let company = &mut self.company;
        let together_ns = now_ns.saturating_sub(since_ns);
        if fit == Fit::Time && together_ns > company.apart_ns.saturating_mul(TOGETHER_PER_APART) {
            company.apart_ns = SPAN_NS;
        }
        if parting == Parting::Paces {
            company.apart_ns = company.apart_ns.saturating_mul(2).min(LONGEST_APART_NS);
            company.retry_ns = now_ns.saturating_add(company.apart_ns);
        }
        let mut limit_ns = 0u64;
        let mut after = None;
        while let Some(id) = self.tenants.next_after(after, Tenant::is_on_gpu) {
            // The drains of all owners take turns on the device.
            limit_ns = limit_ns.saturating_add(self.drain_limit_ns(id, false, now_ns));
            self.change(id, Grant::Closed, false);
            if let Some(tenant) = self.tenants.get_quietly(id) {
                tenant.pace.begin_anew(now_ns);
            }
            after = Some(id);
        }
        self.company.set.clear();
        self.tenants.values_quietly().for_each(|tenant| tenant.set_free(false, now_ns));
        let give_up_ns = now_ns.saturating_add(limit_ns.min(MAX_DRAIN_NS));
        self.company.state = State::Parting { closed_ns: now_ns, give_up_ns };
    }

    /// Waits until at most one tenant has work in flight. The next tenant may get the GPU beside
    /// this work, unless the next tenant is a gang.
    fn parting_step(&mut self, closed_ns: u64, give_up_ns: u64, now_ns: u64) -> Option<Step> {
        let in_flight = || self.tenants.astir().filter(|(_, tenant)| tenant.seen.in_flight);
        let most = usize::from(self.order == Order::Apart && self.gangs.is_empty());
        if in_flight().count() > most && now_ns < give_up_ns {
            return Some(Step::Stay(Some(give_up_ns.min(now_ns.saturating_add(POLL_NS)))));
        }
        let progress = Stuck { since_ns: closed_ns, used_ns: 0 };
        let last = in_flight().max_by_key(|(_, tenant)| tenant.remaining_ns()).map(|(id, _)| *id);
        self.beside = last.map(|tenant| Beside { tenant, until_ns: give_up_ns, progress });
        if now_ns >= give_up_ns {
            let mut after = None;
            while let Some(id) = self.tenants.next_after(after, |tenant| tenant.seen.in_flight) {
                if let Some(tenant) = self.tenants.get_quietly(id) {
                    tenant.stuck.get_or_insert(progress);
                    // When a meter shows the charged work later, its user is trusted again.
                    tenant.settle_accrued();
                    let unshown_ns = tenant.advance_ns.min(now_ns.saturating_sub(closed_ns));
                    self.distrust(id, unshown_ns, now_ns);
                }
                after = Some(id);
            }
        }
        self.company.state = State::Apart { until_ns: now_ns };
        Some(Step::Again)
    }

    /// Returns the longest rest of the work in flight of tenants that part or are together, ns.
    pub(super) fn company_remaining_ns(&self) -> u64 {
        self.tenants.astir().map(|(_, tenant)| tenant.remaining_ns()).max().unwrap_or(0)
    }
}
