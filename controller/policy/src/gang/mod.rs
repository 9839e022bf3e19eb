//! Plans leases for gangs: tenants that use several GPUs at once, and get leases on all of them
//! together.
//!
//! A *rank* is a process of a job that works together with processes on other GPUs. Ranks of one
//! job wait for each other inside their kernels. If two such jobs had one GPU each, the ranks with
//! a GPU would spin for ranks that have no GPU. So a tenant that wants two GPUs or more at the same
//! time is a *gang*: it has all of them or none. The virtual times of [`crate::lease`] decide which
//! gang goes next. For a gang, the board takes the largest virtual time that the gang has on any of
//! its GPUs. A gang goes next only if no other tenant on its GPUs has a smaller virtual time.
//!
//! The turn of a gang has three phases:
//!
//! 1. The turn is *planned* for a moment at which all GPUs of the gang can be free. Until the
//!    moment, other tenants use the GPUs, and launch only work that drains before the moment.
//! 2. The gang *holds* the GPUs until a common end.
//! 3. The gates of the gang close, and the gang *drains*. A rank can wait in its kernel for a
//!    launch that its peer did not make before the gates closed. So such a peer gets leases of one
//!    launch each, until both ranks have drained.
//!
//! The first and the third phase have a bound in time, whatever any tenant does.
//!
//! The board keeps no GPU free for a gang without a plan. A gang that was next once keeps its plan,
//! so the gang gets its turn even if other tenants come later. If a GPU takes longer than planned
//! to drain, the board puts the plan off, and the tenants on the gang's other GPUs go on. From then
//! on, the late GPU stays free for the gang, so each GPU can delay a plan only once.
//!
//! Each arbiter posts the state of its GPU ([`Board::post`]), and follows the [`Order`] for this
//! GPU. [`line`] holds the order in which tenants and gangs get the GPUs.

mod line;

use crate::TenantId;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;
use line::Line;

const fn ns(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// If a tenant wanted two GPUs at once within this time, it is a gang on these GPUs. A rank can
/// pause while another rank works, so one look does not suffice.
const REMEMBERED_NS: u64 = ns(Duration::from_secs(1));
/// The bound on each of three times, ns. These are the delay of a plan by the board, the board's
/// wait for GPUs after the planned moment, and the drain of a gang. An arbiter waits for a drain
/// for less than this ([`crate::lease`]).
const PHASE_LIMIT_NS: u64 = ns(Duration::from_millis(1_500));

/// A gang's turn lasts at least this many times the longest time that a GPU idled for the gang, or
/// `MAX_TURN_NS` if this is less. Another gang's plan can end the turn earlier.
const WORK_PER_GATHERING: u64 = 10;
/// A gang's turn lasts at least this many times the mean time that the gang's ranks spin at the end
/// of a turn. If `MAX_TURN_NS` is less, the turn lasts at least `MAX_TURN_NS`. Another gang's plan
/// can end the turn earlier. A spin uses one GPU and not the others, so it makes shares inexact.
const WORK_PER_SPIN: u64 = 50;
/// The longest turn that idle time or spins can cause, ns.
const MAX_TURN_NS: u64 = ns(Duration::from_millis(50));
/// If a rank reports more GPU time in flight than this, the board takes this value instead, ns.
const MAX_PENDING_NS: u64 = ns(Duration::from_millis(50));

/// A tenant's virtual time at the end of its lease, less the least virtual time of any active
/// owner.
pub type Position = i128;

/// An arbiter's report on one owner. The owner wants the GPU, may launch on it, or is a gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// The number of the tenant.
    pub tenant: TenantId,
    /// Whether the tenant has work in flight.
    pub in_flight: bool,
    /// Whether a thread waits at the tenant's gate.
    pub waiting: bool,
    /// Whether the tenant's gate was not closed at the report.
    pub may_launch: bool,
    /// The time at which work of the tenant last began or ended, ns.
    pub progressed_ns: u64,
    /// GPU time that the tenant reports in flight, ns.
    pub pending_ns: u64,
    /// The length of the tenant's longest kernel or graph on this GPU, ns.
    pub longest_ns: u64,
    /// Whether the tenant has the GPU.
    pub holds: bool,
    /// Whether the tenant has the GPU, and has wanted nothing for so long that the scheduler no
    /// longer waits for it.
    pub is_done: bool,
    /// Whether the tenant has an SLO and is owed GPU time now. Such a tenant goes before tenants
    /// without an SLO.
    pub presses: bool,
    /// The tenant's position at the end of its lease. The tenant with the least position goes
    /// first.
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
    /// The time at which the holder's work in flight ends, by the holder's meter, ns.
    pub drained_ns: u64,
    /// The time at which the holder's work ends if the holder uses its whole lease, ns.
    pub free_ns: u64,
    /// The length of a lease, ns.
    pub quantum_ns: u64,
    /// The time before a lease's end at which the arbiter renews the lease, ns.
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

/// The board's order for the arbiter of one GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// The arbiter gives leases to single tenants by its own rule, and none to gangs.
    #[default]
    Apart,
    /// The arbiter gives only leases whose work drains before `at_ns`. This gang gets the GPU next.
    Until {
        /// The number of the tenant that is a gang.
        tenant: TenantId,
        /// The moment at which the GPU must be free for the gang, ns of the monotonic clock.
        at_ns: u64,
    },
    /// This gang has the GPU.
    Held {
        /// The number of the tenant that is a gang.
        tenant: TenantId,
        /// The end of the gang's lease, ns; `None` if no other tenant wants any of the gang's GPUs.
        until_ns: Option<u64>,
    },
    /// This gang had the GPU, and its work in flight drains.
    Drain {
        /// The number of the tenant that is a gang.
        tenant: TenantId,
        /// Whether this GPU's rank may launch once more, because another rank waits inside a kernel
        /// for that launch.
        catches_up: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Planned(Plan),
    Held {
        until_ns: Option<u64>,
    },
    /// The gang drains until `give_up_ns` at the latest. `spins_since_ns` is the time since which a
    /// rank spins for another rank.
    Draining {
        give_up_ns: u64,
        spins_since_ns: Option<u64>,
    },
}

/// The plan of a turn: the moment at which the GPUs of a gang must be free.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plan {
    /// The moment at which the GPUs must be free for the gang, ns.
    at_ns: u64,
    /// The moment before the board put the plan off for the first time, ns.
    first_ns: u64,
    /// The board does not put the plan off beyond this moment, ns.
    limit_ns: u64,
    /// The GPUs whose holders drain more than a quantum later than planned. The board gives these
    /// GPUs to no other tenant before the turn.
    cleared: BTreeSet<usize>,
}

impl Plan {
    /// Returns the time from which on the board gives the GPU to no other tenant, ns.
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

    /// Returns the time at which the turn begins on a GPU, ns; `None` if it has begun.
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
    /// For each tenant: the last time at which it wanted this GPU and another GPU at once, ns.
    together_ns: BTreeMap<TenantId, u64>,
    line: Line,
    /// The time since which no owner holds this GPU, ns. (A guest does not count as holder here.)
    free_since_ns: Option<u64>,
    /// The gang whose gate the arbiter may have opened by the order of the last post. The next post
    /// shows whether the gate is open.
    may_launch: Option<TenantId>,
}

/// The gangs, each with the length of its longest kernel or graph on any of its GPUs, ns.
///
/// A gang gets GPUs only by the board's orders. The window of all ranks of a gang follows from the
/// length. A rank that spins in its kernel for another rank shows longer kernels than its peer.
/// With a window by its own kernels, such a rank would have more work in flight than its peer. Then
/// it would spin at the end of each turn.
pub type Gangs = BTreeMap<TenantId, u64>;

/// The board: the state of all GPUs of a host.
#[derive(Debug, Default)]
pub struct Board {
    gpus: Vec<Gpu>,
    /// The GPUs that each tenant wants now.
    wanted: BTreeMap<TenantId, BTreeSet<usize>>,
    /// The GPUs that each gang wanted lately. A gang has at least two GPUs.
    gangs: BTreeMap<TenantId, BTreeSet<usize>>,
    /// For each gang: the mean time for which a rank spun for another rank at the end of a turn,
    /// ns.
    spins_ns: BTreeMap<TenantId, u64>,
    /// The turns: at most one of each gang. Of several turns on one GPU, at most one has begun.
    turns: Vec<Turn>,
    /// The time of the last post of any arbiter, ns.
    now_ns: u64,
}

impl Board {
    /// Returns a board for this number of GPUs.
    pub fn new(gpus: usize) -> Self {
        Self { gpus: (0..gpus).map(|_| Gpu::default()).collect(), ..Self::default() }
    }

    /// Stores the arbiter's report on a GPU, moves begun and planned turns on, and plans new turns.
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
        // Begun turns first: if one of them ends, a planned turn can begin.
        self.move_on(now_ns, |turn| !turn.is_planned());
        self.move_on(now_ns, Turn::is_planned);
        self.elect(now_ns);
    }

    /// Returns the order for a GPU's arbiter, and notes that the arbiter can open a gang's gate by
    /// this order. Only the arbiter's next post shows whether the gate is open.
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

    /// Returns the order for a GPU's arbiter, without a note that the arbiter got the order.
    pub fn order(&self, gpu: usize) -> Order {
        let turns = self.turns.iter().filter(|turn| turn.gpus.contains(&gpu));
        // The gang that has the GPU, or the gang with the earliest plan.
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

    /// Returns the gangs that use a GPU, each with the length of its longest kernel or graph, ns.
    /// The GPU's arbiter gives a gang no lease without an order.
    pub fn gangs(&self, gpu: usize) -> Gangs {
        let there = self.gangs.iter().filter(|(_, gpus)| gpus.contains(&gpu));
        let longest_ns =
            |tenant: TenantId, gpus| self.members(tenant, gpus).map(|member| member.longest_ns).max();
        there.map(|(tenant, gpus)| (*tenant, longest_ns(*tenant, gpus).unwrap_or(0))).collect()
    }

    /// Returns the number of GPUs of the host.
    pub fn gpus(&self) -> usize {
        self.gpus.len()
    }

    /// Stores a post, and finds the tenants that are gangs now.
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

    /// Moves each turn for which `is_asked` is true to its next phase, or removes the turn.
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

    /// Adds the time for which ranks spun for each other at the end of this turn to the gang's
    /// mean.
    fn note_spin(&mut self, turn: &Turn, now_ns: u64) {
        /// The newest turn has the weight of one divided by this number in the mean.
        const WEIGHT: u64 = 4;
        let Phase::Draining { spins_since_ns, .. } = turn.phase else { return };
        let spun_ns = spins_since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
        let mean_ns = self.spins_ns.entry(turn.tenant).or_default();
        *mean_ns = *mean_ns - *mean_ns / WEIGHT + spun_ns / WEIGHT;
    }

    /// Moves a turn to its next phase if the time for it has come. Returns false if the turn is
    /// over.
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
                // No other tenant wants the GPUs, so the tenant keeps each GPU by the arbiter's own
                // rule.
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
                    // If another gang has a plan for these GPUs, this gang goes on until the
                    // planned moment.
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
        // If an arbiter gave up the drain, another tenant holds its GPU.
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
            // No late tenant holds a GPU any more, so the board may plan an earlier moment.
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
                // The board does not know how long the drain still takes, and assumes as long
                // again.
                let late_ns = now_ns.saturating_sub(plan.first_ns);
                plan.at_ns = plan.at_ns.max(now_ns.saturating_add(late_ns));
                plan.cleared.insert(*gpu);
            }
        }
        plan.at_ns = plan.at_ns.min(plan.limit_ns);
    }

    /// Returns the time at which all of a gang's GPUs can be free, ns: the latest time that `of`
    /// returns for their posts.
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

    /// Returns the earliest moment at which another gang plans to have one of these GPUs, less the
    /// time in which this gang drains, ns. Returns `None` without such a plan.
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

    /// Returns the longest time for which one of the gang's GPUs idled while its other GPUs
    /// drained, ns. Only GPUs that another tenant wants count.
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

    /// Returns whether the rank on `gpu` may launch once during the gang's drain. The result is
    /// true if the rank has drained and a launch waits at its gate, while another rank's kernel
    /// takes longer than expected. The other rank probably spins for this launch. If the other rank
    /// were only a little late, the launch would put this rank ahead.
    fn catches_up(&self, tenant: TenantId, gpus: &BTreeSet<usize>, gpu: usize, spins: bool) -> bool {
        // If kernels end at the same moment, the board learns of all ends within this time: the
        // delay of a timer, or two hand-offs.
        let skew_ns = self.lead_ns(gpus);
        let waits = |member: &Member| member.waiting && !member.in_flight;
        let is_late = |member: &Member| {
            // If the rank had several short kernels in flight, one of them would have ended by now.
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

    /// Returns whether the tenant holds one of `gpus` with work in flight while other tenants want
    /// these GPUs. Such a rank got its GPU before its tenant was a gang, and can spin for a rank
    /// without a GPU.
    fn runs_by_itself(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        let runs = |gpu: &usize| {
            let post = &self.gpus[*gpu].post;
            post.holder == Some(tenant) && post.member(tenant).is_some_and(|member| member.in_flight)
        };
        gpus.iter().any(runs) && self.is_contended(tenant, gpus)
    }

    /// Plans the turns of the gangs that are next in the order. Other tenants use the GPUs of a
    /// gang until the planned moment, and always if the gang is not next.
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
