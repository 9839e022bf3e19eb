//! Who has several GPUs at once: tenants whose work on them goes on together are granted and withdrawn together.
//!
//! Ranks of one job wait for each other inside their kernels. Two such jobs with one GPU each would spin there for ranks that have none. So a
//! tenant that wants two GPUs or more at the same time is a *gang*: it has all of them or none. Who goes next follows from the same virtual times as on one
//! GPU ([`crate::lease`]): a gang counts as far served as on the GPU where it had most, and no other tenant of any of its GPUs may be further
//! behind there.
//!
//! A turn has four phases. It is *planned* for a moment at which all of the gang's GPUs can be free: until then others go on on each, by themselves, and
//! launch what they have drained by then. The gang has the GPUs until a common end; its gates close, and it drains. A
//! rank that launched what its peer did not launch before its gate closed would wait for it for good: such a peer gets leases of one launch
//! each until both have drained. Each phase but the third is over after a bounded time, whatever anybody does.
//!
//! No GPU is kept for a gang without a plan, and a gang that was next once keeps its plan: so it has its turn however others come and go. Should a GPU
//! take longer than planned to drain, the plan is put off and the other GPUs go on; the late one is kept free from then on, so that happens once for each.
//!
//! Arbiters [`Board::post`] what they see of their GPU and follow the [`Order`] for it. [`line`] says who stands where.

mod line;

use crate::TenantId;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;
use line::Line;

const fn ns(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// A tenant that wanted two GPUs at once so lately is a gang there: its ranks may pause one after the other.
const REMEMBERED_NS: u64 = ns(Duration::from_secs(1));
/// A plan is put off, GPUs are waited for after that, and ranks drain, for so long at most: longer than an arbiter waits for a drain
/// ([`crate::lease`]).
const PHASE_LIMIT_NS: u64 = ns(Duration::from_millis(1_500));

/// A turn lasts so many times as long as one of its GPUs idled until all were free …
const WORK_PER_GATHERING: u64 = 10;
/// … and as one of its ranks spins at a turn's end for what another may not launch any more: that is time of one GPU and not of the others, and shares are to be
/// exact on each …
const WORK_PER_SPIN: u64 = 50;
/// … but not longer than this, for that.
const MAX_TURN_NS: u64 = ns(Duration::from_millis(50));
/// What a rank says that it has in flight is believed up to this.
const MAX_PENDING_NS: u64 = ns(Duration::from_millis(50));

/// GPU time over weight, ahead of the GPU's virtual clock; negative: behind it.
pub type Position = i128;

/// What an arbiter says of a tenant that is no guest and wants the GPU, may launch on it or was a gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Which.
    pub tenant: TenantId,
    /// Something of it runs.
    pub in_flight: bool,
    /// A thread waits at its gate.
    pub waiting: bool,
    /// Its gate was not closed when that was seen.
    pub may_launch: bool,
    /// When something of it began or ended last.
    pub progressed_ns: u64,
    /// GPU time that it says it has in flight.
    pub pending_ns: u64,
    /// Its longest kernel or graph there, ns.
    pub longest_ns: u64,
    /// It has the GPU.
    pub holds: bool,
    /// The same, and it has wanted nothing for as long as it is waited for.
    pub is_done: bool,
    /// It has a time objective and goes before those that have none.
    pub presses: bool,
    /// How far it is served when its lease is over.
    pub position: Position,
}

impl Member {
    fn wants(&self) -> bool {
        self.in_flight || self.waiting || (self.holds && !self.is_done)
    }
}

/// What an arbiter says of its GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Post {
    /// Its tenants, by their numbers.
    pub members: Vec<Member>,
    /// Who has the GPU, or drains.
    pub holder: Option<TenantId>,
    /// When what the holder has in flight is done, as far as is known.
    pub drained_ns: u64,
    /// When the holder is done if it has its lease to the end.
    pub free_ns: u64,
    /// How long a lease lasts.
    pub quantum_ns: u64,
    /// How long before its end it is renewed.
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

/// What an arbiter is to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// Whoever is no gang has its leases as always.
    #[default]
    Apart,
    /// The same, but whoever has the GPU is to have drained at that moment: then it is this one's.
    Until {
        /// Whose.
        tenant: TenantId,
        /// ns of the monotonic clock.
        at_ns: u64,
    },
    /// This one has the GPU.
    Held {
        /// Which.
        tenant: TenantId,
        /// The end of its lease. `None`: no other wants any of its GPUs.
        until_ns: Option<u64>,
    },
    /// This one, which had the GPU, drains.
    Drain {
        /// Which.
        tenant: TenantId,
        /// It may launch one thing more: one of its ranks waits for that.
        catches_up: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Planned(Plan),
    Held {
        until_ns: Option<u64>,
    },
    /// `spins_since_ns`: a rank was seen to wait for another.
    Draining {
        give_up_ns: u64,
        spins_since_ns: Option<u64>,
    },
}

/// When a gang's GPUs are to be free.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plan {
    at_ns: u64,
    /// As it was first.
    first_ns: u64,
    /// It is not put off after that.
    limit_ns: u64,
    /// GPUs that nobody else is given any more, because they would be late.
    cleared: BTreeSet<usize>,
}

impl Plan {
    /// When nobody else is to have a GPU any more.
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

    /// When it begins on a GPU, if it has not begun.
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
    /// When tenants last wanted this GPU and another.
    together_ns: BTreeMap<TenantId, u64>,
    line: Line,
    /// Since when nobody has it.
    free_since_ns: Option<u64>,
    /// Whose gate its arbiter may have opened since it posted, by the order that it was told then.
    may_launch: Option<TenantId>,
}

/// Tenants that have GPUs by the board alone, with the longest kernel or graph of each on any of its GPUs, ns. How far a rank runs ahead follows from that. A
/// rank that waits for another inside a kernel has longer ones, by as much: if it could run further ahead for that, it would have more in flight at the end
/// of each turn than its peer may launch, and wait for it again.
pub type Gangs = BTreeMap<TenantId, u64>;

/// The GPUs of a host.
#[derive(Debug, Default)]
pub struct Board {
    gpus: Vec<Gpu>,
    /// The GPUs that each tenant wants.
    wanted: BTreeMap<TenantId, BTreeSet<usize>>,
    /// Those on which a tenant is a gang: two and more.
    gangs: BTreeMap<TenantId, BTreeSet<usize>>,
    /// How long a rank of each waited for another at the end of a turn, in the mean.
    spins_ns: BTreeMap<TenantId, u64>,
    /// Of each gang one at most. Of those that have a GPU in common all but one are planned.
    turns: Vec<Turn>,
    /// When it was last posted to.
    now_ns: u64,
}

impl Board {
    /// A board for so many GPUs.
    pub fn new(gpus: usize) -> Self {
        Self { gpus: (0..gpus).map(|_| Gpu::default()).collect(), ..Self::default() }
    }

    /// Takes in what is seen of a GPU, and moves on.
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
        // Those that end make room for those that were planned.
        self.move_on(now_ns, |turn| !turn.is_planned());
        self.move_on(now_ns, Turn::is_planned);
        self.elect(now_ns);
    }

    /// Tells a GPU's arbiter what to do. A gate that it opens for that is in no post of its own before the next.
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

    /// What a GPU's arbiter is to do.
    pub fn order(&self, gpu: usize) -> Order {
        let turns = self.turns.iter().filter(|turn| turn.gpus.contains(&gpu));
        // Who has the GPU, or is to have it first.
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

    /// The tenants that a GPU's arbiter gives nothing by itself, and how far each runs ahead.
    pub fn gangs(&self, gpu: usize) -> Gangs {
        let there = self.gangs.iter().filter(|(_, gpus)| gpus.contains(&gpu));
        let longest_ns =
            |tenant: TenantId, gpus| self.members(tenant, gpus).map(|member| member.longest_ns).max();
        there.map(|(tenant, gpus)| (*tenant, longest_ns(*tenant, gpus).unwrap_or(0))).collect()
    }

    /// GPUs in the table.
    pub fn gpus(&self) -> usize {
        self.gpus.len()
    }

    /// Takes over a post, and who is a gang by it.
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

    /// Moves turns on, those of a kind.
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

    /// Takes in how long ranks waited for each other at the end of a turn, which is now.
    fn note_spin(&mut self, turn: &Turn, now_ns: u64) {
        /// Weight of a turn: one in so many.
        const WEIGHT: u64 = 4;
        let Phase::Draining { spins_since_ns, .. } = turn.phase else { return };
        let spun_ns = spins_since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
        let mean_ns = self.spins_ns.entry(turn.tenant).or_default();
        *mean_ns = *mean_ns - *mean_ns / WEIGHT + spun_ns / WEIGHT;
    }

    /// Moves a turn on. False: it is over.
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
                // What it has on each GPU it goes on having there by itself.
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
                    // It goes on while others wait for their moment, up to that.
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
        // An arbiter that has given the drain up has another use for its GPU.
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

    /// Moves a plan to when the GPUs can be free.
    fn put_off(&self, plan: &mut Plan, tenant: TenantId, gpus: &BTreeSet<usize>, now_ns: u64) {
        let quantum_ns = self.quantum_ns(gpus);
        let is_late = |gpu: &usize| !self.gpus[*gpu].post.is_free_for(tenant) && plan.cleared.contains(gpu);
        if !gpus.iter().any(is_late) {
            // Whoever was waited for is gone: no need to wait longer than the others need.
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
                // Nobody knows for how long: as long again.
                let late_ns = now_ns.saturating_sub(plan.first_ns);
                plan.at_ns = plan.at_ns.max(now_ns.saturating_add(late_ns));
                plan.cleared.insert(*gpu);
            }
        }
        plan.at_ns = plan.at_ns.min(plan.limit_ns);
    }

    /// When all of a gang's GPUs can be free for it, by what each says of its holder.
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

    /// The first moment for which another gang plans to have one of these GPUs, less what this one takes to drain.
    fn planned_ns(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> Option<u64> {
        let drain_ns = self.members(tenant, gpus).map(|member| member.pending_ns.min(MAX_PENDING_NS)).max();
        let moments =
            self.plans(tenant, gpus).map(|(_, plan)| plan.at_ns.saturating_sub(drain_ns.unwrap_or(0)));
        moments.min()
    }

    /// What other gangs plan for these GPUs.
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

    /// Whether another gang has its turn, or drains, on one of these GPUs.
    fn others_turn(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        let mut others = self.turns.iter().filter(|turn| turn.tenant != tenant && !turn.is_planned());
        others.any(|turn| !turn.gpus.is_disjoint(gpus))
    }

    /// How long one of its GPUs idled for a gang while the others drained.
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

    /// Whether this rank has drained and waits with what another needs, which should have been done by now. To let it launch while the other is
    /// only a little later would make it the one that is ahead.
    fn catches_up(&self, tenant: TenantId, gpus: &BTreeSet<usize>, gpu: usize, spins: bool) -> bool {
        // Ranks whose kernels end together are seen to be done no further apart than timers are late, and hand-offs twice.
        let skew_ns = self.lead_ns(gpus);
        let waits = |member: &Member| member.waiting && !member.in_flight;
        let is_late = |member: &Member| {
            // Of several kernels it would have ended one by now.
            let kernel_ns =
                if spins { 0 } else { member.pending_ns.min(member.longest_ns).min(MAX_PENDING_NS) };
            member.in_flight && self.now_ns >= member.progressed_ns.saturating_add(kernel_ns + skew_ns)
        };
        // Ranks whose kernels end together are not all seen at once.
        let done = self.members(tenant, gpus).filter(|member| !member.in_flight);
        let done_ns = done.map(|member| member.progressed_ns).max().unwrap_or(0);
        self.gpus[gpu].post.member(tenant).is_some_and(waits)
            && self.now_ns >= done_ns.saturating_add(skew_ns)
            && self.members(tenant, gpus).any(is_late)
    }

    /// Whether a rank runs since before its tenant was a gang, though others want its GPUs: it may spin for one that is to have another GPU.
    fn runs_by_itself(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        let runs = |gpu: &usize| {
            let post = &self.gpus[*gpu].post;
            post.holder == Some(tenant) && post.member(tenant).is_some_and(|member| member.in_flight)
        };
        gpus.iter().any(runs) && self.is_contended(tenant, gpus)
    }

    /// Plans the turns of those that are next. A gang that is not keeps nobody from its GPUs, and one that has to wait for them leaves them to those that
    /// are done before.
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
