//! Plans leases for tenants with several GPUs, which get them together.
//!
//! Ranks of one job wait for each other inside their kernels. Two such jobs with one GPU each would
//! spin there for ranks that have none. So a tenant that wants two GPUs or more at the same time is
//! a *gang*: it has all of them or none. The same virtual times as on one GPU ([`crate::lease`])
//! decide which gang goes next. For a gang, the board takes the largest virtual time that the gang
//! has on any of its GPUs. A gang goes next only if no other tenant of its GPUs is further behind.
//!
//! The turn of a gang has three phases:
//!
//! 1. The turn is *planned* for a moment at which all GPUs of the gang can be free. Until then
//!    other tenants go on, each GPU by itself, and launch what drains by then.
//! 2. The gang *holds* the GPUs until a common end.
//! 3. Its gates close, and it *drains*. A rank that launched what its peer did not launch before
//!    the gate closed would wait for good. So such a peer gets leases of one launch each until both
//!    have drained.
//!
//! Each phase but the second has a bound in time, whatever any tenant does.
//!
//! The board keeps no GPU for a gang without a plan. A gang that was next once keeps its plan, so
//! it has its turn however other tenants come and go. If a GPU takes longer than planned to drain,
//! the board puts the plan off, and the other GPUs go on. The late GPU stays free from then on, so
//! this happens once for each GPU.
//!
//! Arbiters post ([`Board::post`]) the state of their GPU and follow the [`Order`] for it. [`line`]
//! holds the order of tenants.

mod line;

use crate::TenantId;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;
use line::Line;

const fn ns(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// A tenant that wanted two GPUs at once within this time is a gang there, because its ranks may
/// pause one after the other.
const REMEMBERED_NS: u64 = ns(Duration::from_secs(1));
/// The longest time by which the board puts a plan off, waits for GPUs afterwards, and lets ranks
/// drain. It is longer than an arbiter waits for a drain ([`crate::lease`]).
const PHASE_LIMIT_NS: u64 = ns(Duration::from_millis(1_500));

/// A turn lasts at least this many times as long as one of its GPUs idled until all were free …
const WORK_PER_GATHERING: u64 = 10;
/// … and this many times as long as a rank spins at a turn's end for a launch that its peer may not
/// make any more, because the spin takes time of one GPU and not of the others, and shares must be
/// exact on each GPU …
const WORK_PER_SPIN: u64 = 50;
/// … but not longer than this for these two reasons.
const MAX_TURN_NS: u64 = ns(Duration::from_millis(50));
/// The board believes a rank's report of work in flight up to this, ns.
const MAX_PENDING_NS: u64 = ns(Duration::from_millis(50));

/// GPU time divided by weight, ahead of the owner that is furthest behind.
pub type Position = i128;

/// An arbiter's report on an owner that wants the GPU, may launch on it, or was a gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// The tenant.
    pub tenant: TenantId,
    /// Whether work of it is in flight.
    pub in_flight: bool,
    /// Whether a thread waits at its gate.
    pub waiting: bool,
    /// Whether its gate was not closed at the report.
    pub may_launch: bool,
    /// When work of it last began or ended, ns.
    pub progressed_ns: u64,
    /// GPU time that it reports in flight, ns.
    pub pending_ns: u64,
    /// The length of its longest kernel or graph on this GPU, ns.
    pub longest_ns: u64,
    /// Whether it has the GPU.
    pub holds: bool,
    /// Whether it also has wanted nothing for as long as the scheduler waits for it.
    pub is_done: bool,
    /// Whether it has a time objective and goes before tenants without one.
    pub presses: bool,
    /// How far it is served at the end of its lease.
    pub position: Position,
}

impl Member {
    fn wants(&self) -> bool {
        self.in_flight || self.waiting || (self.holds && !self.is_done)
    }
}

/// An arbiter's report on its GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Post {
    /// The tenants, in the order of their numbers.
    pub members: Vec<Member>,
    /// The tenant that has the GPU, or drains.
    pub holder: Option<TenantId>,
    /// When the holder's work in flight is done, by its own account, ns.
    pub drained_ns: u64,
    /// When the holder is done if it keeps its lease to the end, ns.
    pub free_ns: u64,
    /// The length of a lease, ns.
    pub quantum_ns: u64,
    /// How long before its end the arbiter renews a lease, ns.
    pub lead_ns: u64,
}

impl Post {
    fn member(&self, tenant: TenantId) -> Option<&Member> {
        let place = self.members.binary_search_by_key(&tenant, |member| member.tenant).ok()?;
        self.members.get(place)
    }

    fn is_free_for(&self, tenant: TenantId) -> bool {
        self.holder.is_none_or(|holder| holder == tenant)
    }
}

/// An order for an arbiter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// Tenants that are no gangs have their leases as always.
    #[default]
    Apart,
    /// The same, but the holder must have drained at that moment. Then this gang gets the GPU.
    Until {
        /// The gang.
        tenant: TenantId,
        /// The moment on the monotonic clock, ns.
        at_ns: u64,
    },
    /// This gang has the GPU.
    Held {
        /// The gang.
        tenant: TenantId,
        /// The end of its lease, ns; `None` if no other tenant wants any of its GPUs.
        until_ns: Option<u64>,
    },
    /// This gang, which had the GPU, drains.
    Drain {
        /// The gang.
        tenant: TenantId,
        /// Whether it may launch one thing more, because one of its ranks waits for that.
        catches_up: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Planned(Plan),
    Held {
        until_ns: Option<u64>,
    },
    /// `spins_since_ns` is the time since which a rank waits for another.
    Draining {
        give_up_ns: u64,
        spins_since_ns: Option<u64>,
    },
}

/// The plan of a turn: when the GPUs of a gang must be free.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plan {
    at_ns: u64,
    /// The moment of the first plan, ns.
    first_ns: u64,
    /// The board does not put the plan off beyond this moment, ns.
    limit_ns: u64,
    /// The GPUs that no other tenant gets any more, because they would be late.
    cleared: BTreeSet<usize>,
}

impl Plan {
    /// Returns from when on no other tenant gets the GPU, ns.
    fn begins_ns(&self, gpu: usize) -> u64 {
        if self.cleared.contains(&gpu) { 0 } else { self.at_ns }
    }
}

#[derive(Debug, Clone)]
struct Turn {
    tenant: TenantId,
    gpus: BTreeSet<usize>,
    phase: Phase,
}

impl Turn {
    fn is_planned(&self) -> bool {
        matches!(self.phase, Phase::Planned(_))
    }

    /// Returns when the turn begins on a GPU, ns, if it has not begun.
    fn begins_ns(&self, gpu: usize) -> Option<u64> {
        match &self.phase {
            Phase::Planned(plan) => Some(plan.begins_ns(gpu)),
            Phase::Held { .. } | Phase::Draining { .. } => None,
        }
    }
}

#[derive(Debug, Default)]
struct Gpu {
    post: Post,
    /// When tenants last wanted this GPU and another at once, ns.
    together_ns: BTreeMap<TenantId, u64>,
    line: Line,
    /// Since when no tenant has it, ns.
    free_since_ns: Option<u64>,
    /// The gang whose gate the arbiter may have opened since its last post, by the order of that
    /// post.
    may_launch: Option<TenantId>,
}

/// The tenants that get GPUs only by the board's orders, with the length of each one's longest
/// kernel or graph on any of its GPUs, ns. The length bounds how far a rank runs ahead. A rank that
/// waits for another inside a kernel has longer kernels. If it ran further ahead for them, it would
/// have more in flight at the end of each turn than its peer may launch, and wait for it again.
pub type Gangs = BTreeMap<TenantId, u64>;

/// The board: the state of all GPUs of a host.
#[derive(Debug, Default)]
pub struct Board {
    gpus: Vec<Gpu>,
    /// The GPUs that each tenant wants now.
    wanted: BTreeMap<TenantId, BTreeSet<usize>>,
    /// The GPUs on which each gang is one, two or more.
    gangs: BTreeMap<TenantId, BTreeSet<usize>>,
    /// The mean time for which a rank of each gang waited for another at the end of a turn, ns.
    spins_ns: BTreeMap<TenantId, u64>,
    /// The turns: at most one of each gang. Of turns with a GPU in common, all but one are planned.
    turns: Vec<Turn>,
    /// When an arbiter last posted, ns.
    now_ns: u64,
}

impl Board {
    /// Returns a board for this number of GPUs.
    pub fn new(gpus: usize) -> Self {
        Self { gpus: (0..gpus).map(|_| Gpu::default()).collect(), ..Self::default() }
    }

    /// Takes in the report on a GPU, and moves the turns on.
    pub fn post(&mut self, gpu: usize, now_ns: u64, post: Post) {
        if gpu >= self.gpus.len() {
            return;
        }
        debug_assert!(post.members.is_sorted_by_key(|member| member.tenant));
        self.now_ns = self.now_ns.max(now_ns);
        self.note_gangs(gpu, now_ns, post);
        if self.gangs.is_empty() && self.turns.is_empty() {
            return;
        }
        // Turns that end make room for planned turns.
        self.move_on(now_ns, |turn| !turn.is_planned());
        self.move_on(now_ns, Turn::is_planned);
        self.elect(now_ns);
    }

    /// Returns the order for a GPU's arbiter. The arbiter's next post shows a gate that it opens
    /// for the order, and no earlier post does.
    pub fn tell(&mut self, gpu: usize) -> Order {
        let order = self.order(gpu);
        if let Some(gpu) = self.gpus.get_mut(gpu) {
            gpu.may_launch = match order {
                Order::Held { tenant, .. } | Order::Drain { tenant, catches_up: true } => Some(tenant),
                Order::Apart | Order::Until { .. } | Order::Drain { catches_up: false, .. } => None,
            };
        }
        order
    }

    /// Returns the order for a GPU's arbiter, without a note that it was told.
    pub fn order(&self, gpu: usize) -> Order {
        let turns = self.turns.iter().filter(|turn| turn.gpus.contains(&gpu));
        // The gang that has the GPU, or is to have it first.
        let Some(turn) = turns.min_by_key(|turn| turn.begins_ns(gpu)) else { return Order::Apart };
        let tenant = turn.tenant;
        match &turn.phase {
            Phase::Planned(plan) => Order::Until { tenant, at_ns: plan.begins_ns(gpu) },
            Phase::Held { until_ns } => Order::Held { tenant, until_ns: *until_ns },
            Phase::Draining { spins_since_ns, .. } => {
                let catches_up = self.catches_up(tenant, &turn.gpus, gpu, spins_since_ns.is_some());
                Order::Drain { tenant, catches_up }
            }
        }
    }

    /// Returns the tenants to which a GPU's arbiter gives nothing by itself, and how far each runs
    /// ahead.
    pub fn gangs(&self, gpu: usize) -> Gangs {
        let there = self.gangs.iter().filter(|(_, gpus)| gpus.contains(&gpu));
        let longest_ns =
            |tenant: TenantId, gpus| self.members(tenant, gpus).map(|member| member.longest_ns).max();
        there.map(|(tenant, gpus)| (*tenant, longest_ns(*tenant, gpus).unwrap_or(0))).collect()
    }

    /// Returns the number of GPUs.
    pub fn gpus(&self) -> usize {
        self.gpus.len()
    }

    /// Takes over a post, and recognises the gangs by it.
    fn note_gangs(&mut self, gpu: usize, now_ns: u64, post: Post) {
        let place = &mut self.gpus[gpu];
        place.free_since_ns =
            post.holder.is_none().then(|| place.free_since_ns.map_or(now_ns, |since_ns| since_ns));
        let before = core::mem::replace(&mut place.post, post);
        let is_there = |tenant: &TenantId, _: &mut u64| place.post.member(*tenant).is_some();
        place.together_ns.retain(is_there);
        for member in before.members.iter().filter(|member| member.wants()) {
            if let Some(gpus) = self.wanted.get_mut(&member.tenant) {
                gpus.remove(&gpu);
                if gpus.is_empty() {
                    self.wanted.remove(&member.tenant);
                }
            }
        }
        let mut together = Vec::new();
        for member in self.gpus[gpu].post.members.iter().filter(|member| member.wants()) {
            let gpus = self.wanted.entry(member.tenant).or_default();
            gpus.insert(gpu);
            if gpus.len() > 1 {
                together.extend(gpus.iter().map(|gpu| (*gpu, member.tenant)));
            }
        }
        for (gpu, tenant) in together {
            self.gpus[gpu].together_ns.insert(tenant, now_ns);
        }
        let mut gangs: BTreeMap<TenantId, BTreeSet<usize>> = BTreeMap::new();
        for (number, gpu) in self.gpus.iter().enumerate() {
            let is_recent = |together_ns: u64| now_ns.saturating_sub(together_ns) <= REMEMBERED_NS;
            for (tenant, _) in gpu.together_ns.iter().filter(|(_, together_ns)| is_recent(**together_ns)) {
                gangs.entry(*tenant).or_default().insert(number);
            }
        }
        gangs.retain(|_, gpus| gpus.len() > 1);
        let is_all = core::mem::replace(&mut self.gangs, gangs) != self.gangs;
        if is_all {
            self.spins_ns.retain(|tenant, _| self.gangs.contains_key(tenant));
        }
        for gpu in if is_all { 0..self.gpus.len() } else { gpu..gpu + 1 } {
            self.gpus[gpu].line = Line::of(&self.gpus[gpu].post, |tenant| self.gangs.contains_key(&tenant));
        }
    }

    /// Moves on the turns for which `is_asked` is true.
    fn move_on(&mut self, now_ns: u64, is_asked: impl Fn(&Turn) -> bool) {
        let mut place = 0;
        while let Some(turn) = self.turns.get(place) {
            if !is_asked(turn) {
                place += 1;
                continue;
            }
            let mut turn = turn.clone();
            if self.goes_on(&mut turn, now_ns) {
                self.turns[place] = turn;
                place += 1;
            } else {
                self.turns.remove(place);
                self.note_spin(&turn, now_ns);
            }
        }
    }

    /// Takes in how long ranks waited for each other at the end of this turn.
    fn note_spin(&mut self, turn: &Turn, now_ns: u64) {
        /// The weight of a turn in the mean: one in this many.
        const WEIGHT: u64 = 4;
        let Phase::Draining { spins_since_ns, .. } = turn.phase else { return };
        let spun_ns = spins_since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
        let mean_ns = self.spins_ns.entry(turn.tenant).or_default();
        *mean_ns = *mean_ns - *mean_ns / WEIGHT + spun_ns / WEIGHT;
    }

    /// Moves a turn on. Returns false if the turn is over.
    fn goes_on(&self, turn: &mut Turn, now_ns: u64) -> bool {
        let Turn { tenant, ref gpus, ref mut phase } = *turn;
        let all = |is_so: &dyn Fn(&Post, Option<&Member>) -> bool| {
            gpus.iter().all(|gpu| {
                let post = &self.gpus[*gpu].post;
                is_so(post, post.member(tenant))
            })
        };
        let is_whole = self.gangs.get(&tenant) == Some(gpus);
        let drain =
            Phase::Draining { give_up_ns: now_ns.saturating_add(PHASE_LIMIT_NS), spins_since_ns: None };
        if let Phase::Planned(plan) = phase {
            if !is_whole || !self.wants(tenant, gpus) {
                return false;
            }
            self.put_off(plan, tenant, gpus, now_ns);
            let is_given_up = now_ns >= plan.at_ns.saturating_add(PHASE_LIMIT_NS);
            let is_free = |post: &Post| is_given_up || post.is_free_for(tenant);
            if self.others_turn(tenant, gpus) || !all(&|post, _| is_free(post)) {
                return true;
            }
            let until_ns = self.is_contended(tenant, gpus).then(|| {
                let gathering_ns = self.gathering_ns(tenant, gpus, now_ns);
                let spins_ns = self.spins_ns.get(&tenant).copied().unwrap_or(0);
                let turn_ns = gathering_ns
                    .saturating_mul(WORK_PER_GATHERING)
                    .max(spins_ns.saturating_mul(WORK_PER_SPIN));
                let least_ns = self.end_ns(gpus, now_ns);
                let end_ns = least_ns.max(now_ns.saturating_add(turn_ns.min(MAX_TURN_NS)));
                let planned_ns = self.planned_ns(tenant, gpus);
                planned_ns.map_or(end_ns, |planned_ns| planned_ns.clamp(least_ns, end_ns))
            });
            *phase = Phase::Held { until_ns };
        } else if !is_whole && matches!(phase, Phase::Held { .. }) {
            if !self.is_contended(tenant, gpus) {
                // The tenant keeps each GPU that it has, each by itself.
                return false;
            }
            *phase = drain.clone();
        }
        if let Phase::Held { until_ns } = *phase {
            let is_done = || all(&|_, member| member.is_none_or(|member| member.is_done));
            *phase = match until_ns {
                _ if !self.is_contended(tenant, gpus) => Phase::Held { until_ns: None },
                _ if is_done() => drain,
                None if self.is_first(tenant, gpus) => {
                    Phase::Held { until_ns: Some(self.end_ns(gpus, now_ns)) }
                }
                None => drain,
                Some(_) if self.is_pressed(tenant, gpus) => drain,
                Some(until_ns) if now_ns < until_ns.saturating_sub(self.lead_ns(gpus)) => return true,
                Some(until_ns) if self.is_first(tenant, gpus) => {
                    let end_ns = self.end_ns(gpus, until_ns.max(now_ns));
                    // The gang goes on while others wait for their moment, up to that moment.
                    match self.planned_ns(tenant, gpus).map_or(end_ns, |planned_ns| planned_ns.min(end_ns)) {
                        end_ns if end_ns > until_ns.max(now_ns) => Phase::Held { until_ns: Some(end_ns) },
                        _ if now_ns < until_ns => return true,
                        _ => drain,
                    }
                }
                Some(until_ns) if now_ns < until_ns => return true,
                Some(_) => drain,
            };
        }
        let Phase::Draining { give_up_ns, ref mut spins_since_ns } = *phase else { return true };
        if spins_since_ns.is_none() && gpus.iter().any(|gpu| self.catches_up(tenant, gpus, *gpu, false)) {
            let running = self.members(tenant, gpus).filter(|member| member.in_flight);
            *spins_since_ns = running.map(|member| member.progressed_ns).min();
        }
        // An arbiter that gave the drain up uses its GPU for another tenant.
        let has_drained = |gpu: &Gpu, member: &Member| {
            !member.may_launch
                && gpu.may_launch != Some(tenant)
                && (!member.in_flight || gpu.post.holder != Some(tenant))
        };
        let has_drained = |gpu: &usize| {
            let gpu = &self.gpus[*gpu];
            gpu.post.member(tenant).is_none_or(|member| has_drained(gpu, member))
        };
        now_ns < give_up_ns && !gpus.iter().all(has_drained)
    }

    /// Moves a plan to the moment at which the GPUs can be free.
    fn put_off(&self, plan: &mut Plan, tenant: TenantId, gpus: &BTreeSet<usize>, now_ns: u64) {
        let quantum_ns = self.quantum_ns(gpus);
        let is_late = |gpu: &usize| !self.gpus[*gpu].post.is_free_for(tenant) && plan.cleared.contains(gpu);
        if !gpus.iter().any(is_late) {
            // The late tenant is gone, so the board waits no longer than the others need.
            let ready_ns = self.ready_ns(tenant, gpus, now_ns, |post| post.free_ns);
            if ready_ns.saturating_add(quantum_ns) < plan.at_ns {
                plan.at_ns = ready_ns;
                plan.first_ns = ready_ns;
            }
        }
        if now_ns >= plan.limit_ns {
            return;
        }
        let last_ns = plan.at_ns.saturating_add(quantum_ns);
        for gpu in gpus {
            let post = &self.gpus[*gpu].post;
            if post.is_free_for(tenant) {
                continue;
            }
            if post.drained_ns > last_ns {
                plan.at_ns = plan.at_ns.max(post.drained_ns);
                plan.cleared.insert(*gpu);
            } else if now_ns > last_ns {
                // The board does not know the remaining time, and assumes as long again.
                let late_ns = now_ns.saturating_sub(plan.first_ns);
                plan.at_ns = plan.at_ns.max(now_ns.saturating_add(late_ns));
                plan.cleared.insert(*gpu);
            }
        }
        plan.at_ns = plan.at_ns.min(plan.limit_ns);
    }

    /// Returns when all of a gang's GPUs can be free for it, by their posts, ns.
    fn ready_ns(
        &self,
        tenant: TenantId,
        gpus: &BTreeSet<usize>,
        now_ns: u64,
        of: impl Fn(&Post) -> u64,
    ) -> u64 {
        let posts = gpus.iter().map(|gpu| &self.gpus[*gpu].post);
        let busy = posts.filter(|post| !post.is_free_for(tenant));
        busy.map(of).max().unwrap_or(0).max(now_ns)
    }

    /// Returns the first moment at which another gang plans to have one of these GPUs, less the
    /// time in which this gang drains, ns.
    fn planned_ns(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> Option<u64> {
        let drain_ns = self.members(tenant, gpus).map(|member| member.pending_ns.min(MAX_PENDING_NS)).max();
        let moments =
            self.plans(tenant, gpus).map(|(_, plan)| plan.at_ns.saturating_sub(drain_ns.unwrap_or(0)));
        moments.min()
    }

    /// Returns the plans of other gangs for these GPUs.
    fn plans<'a>(
        &'a self,
        tenant: TenantId,
        gpus: &'a BTreeSet<usize>,
    ) -> impl Iterator<Item = (TenantId, &'a Plan)> {
        let others =
            self.turns.iter().filter(move |turn| turn.tenant != tenant && !turn.gpus.is_disjoint(gpus));
        others.filter_map(|turn| match &turn.phase {
            Phase::Planned(plan) => Some((turn.tenant, plan)),
            Phase::Held { .. } | Phase::Draining { .. } => None,
        })
    }

    /// Returns whether another gang has its turn, or drains, on one of these GPUs.
    fn others_turn(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        let mut others = self.turns.iter().filter(|turn| turn.tenant != tenant && !turn.is_planned());
        others.any(|turn| !turn.gpus.is_disjoint(gpus))
    }

    /// Returns how long one of a gang's GPUs idled for it while the others drained, ns.
    fn gathering_ns(&self, tenant: TenantId, gpus: &BTreeSet<usize>, now_ns: u64) -> u64 {
        let waited = gpus
            .iter()
            .filter(|gpu| self.is_wanted_beside(tenant, **gpu))
            .filter_map(|gpu| self.gpus[*gpu].free_since_ns.map(|since_ns| now_ns.saturating_sub(since_ns)));
        waited.max().unwrap_or(0)
    }

    fn quantum_ns(&self, gpus: &BTreeSet<usize>) -> u64 {
        gpus.iter().map(|gpu| self.gpus[*gpu].post.quantum_ns).max().unwrap_or(0)
    }

    fn end_ns(&self, gpus: &BTreeSet<usize>, from_ns: u64) -> u64 {
        from_ns.saturating_add(self.quantum_ns(gpus))
    }

    fn lead_ns(&self, gpus: &BTreeSet<usize>) -> u64 {
        gpus.iter().map(|gpu| self.gpus[*gpu].post.lead_ns).max().unwrap_or(0)
    }

    /// Returns whether this rank has drained and holds a launch that another rank needs, although
    /// that rank should be done by now. A launch while the other is only a little late would put
    /// this rank ahead.
    fn catches_up(&self, tenant: TenantId, gpus: &BTreeSet<usize>, gpu: usize, spins: bool) -> bool {
        // Kernels that end together are seen to end within this time: the delay of a timer, or two
        // hand-offs.
        let skew_ns = self.lead_ns(gpus);
        let waits = |member: &Member| member.waiting && !member.in_flight;
        let is_late = |member: &Member| {
            // If it had several kernels, one would have ended by now.
            let kernel_ns =
                if spins { 0 } else { member.pending_ns.min(member.longest_ns).min(MAX_PENDING_NS) };
            member.in_flight && self.now_ns >= member.progressed_ns.saturating_add(kernel_ns + skew_ns)
        };
        // The board does not see all ends of kernels at once.
        let done = self.members(tenant, gpus).filter(|member| !member.in_flight);
        let done_ns = done.map(|member| member.progressed_ns).max().unwrap_or(0);
        self.gpus[gpu].post.member(tenant).is_some_and(waits)
            && self.now_ns >= done_ns.saturating_add(skew_ns)
            && self.members(tenant, gpus).any(is_late)
    }

    /// Returns whether a rank runs since before its tenant was a gang, while others want its GPUs.
    /// It may spin for a rank that is to have another GPU.
    fn runs_by_itself(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        let runs = |gpu: &usize| {
            let post = &self.gpus[*gpu].post;
            post.holder == Some(tenant) && post.member(tenant).is_some_and(|member| member.in_flight)
        };
        gpus.iter().any(runs) && self.is_contended(tenant, gpus)
    }

    /// Plans the turns of the gangs that are next. A gang that is not next keeps no tenant from its
    /// GPUs. A gang that waits for its GPUs leaves them to tenants that are done before.
    fn elect(&mut self, now_ns: u64) {
        let has_none = |tenant: &TenantId| self.turns.iter().all(|turn| turn.tenant != *tenant);
        let mut waiting: Vec<(TenantId, BTreeSet<usize>)> = self
            .gangs
            .iter()
            .filter(|(tenant, gpus)| has_none(tenant) && self.wants(**tenant, gpus))
            .map(|(tenant, gpus)| (*tenant, gpus.clone()))
            .collect();
        waiting.sort_by_cached_key(|(tenant, gpus)| self.standing(*tenant, gpus));
        for (tenant, gpus) in waiting {
            if self.runs_by_itself(tenant, &gpus) && !self.others_turn(tenant, &gpus) {
                let give_up_ns = now_ns.saturating_add(PHASE_LIMIT_NS);
                let phase = Phase::Draining { give_up_ns, spins_since_ns: None };
                self.turns.push(Turn { tenant, gpus, phase });
                continue;
            }
            if !self.is_next(tenant, &gpus) {
                continue;
            }
            let has_haste = self.presses(tenant, &gpus);
            let ends = |post: &Post| if has_haste { post.drained_ns } else { post.free_ns };
            let at_ns = self.ready_ns(tenant, &gpus, now_ns, ends);
            let least_ns = self.end_ns(&gpus, at_ns);
            if self.planned_ns(tenant, &gpus).is_some_and(|planned_ns| planned_ns < least_ns) {
                continue;
            }
            let limit_ns = now_ns.saturating_add(PHASE_LIMIT_NS);
            let at_ns = at_ns.min(limit_ns);
            let soon_ns = now_ns.saturating_add(self.quantum_ns(&gpus));
            let is_slow = |gpu: &usize| {
                let post = &self.gpus[*gpu].post;
                !post.is_free_for(tenant) && post.drained_ns > soon_ns
            };
            let cleared = gpus.iter().copied().filter(is_slow).collect();
            let plan = Plan { at_ns, first_ns: at_ns, limit_ns, cleared };
            let mut turn = Turn { tenant, gpus, phase: Phase::Planned(plan) };
            if self.goes_on(&mut turn, now_ns) {
                self.turns.push(turn);
            }
        }
    }
}

#[cfg(test)]
mod tests;
