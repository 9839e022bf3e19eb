//! Who has several GPUs at once: tenants whose work on them goes on together are granted and withdrawn together.
//!
//! Ranks of one job wait for each other inside their kernels. Two such jobs with one GPU each would spin there for ranks that have none. So a
//! tenant that wants two GPUs or more at the same time is a *gang*: it has all of them or none. Who goes next follows from the same virtual times as on one
//! GPU ([`crate::policy::lease`]): a gang counts as far served as on the GPU where it had most, and no other tenant of any of its GPUs may be further
//! behind there. Between two gangs' turns, and on GPUs that no gang can have yet, all others go on by themselves.
//!
//! A turn has three phases. Whoever has one of the GPUs gives it up; the gang has them until a common end; its gates close, and it drains. A
//! rank that launched what its peer did not launch before its gate closed would wait for it for good: such a peer gets leases of one launch
//! each until both have drained. Each phase but the middle one is over after a bounded time, whatever anybody does.
//!
//! Arbiters [`Board::post`] what they see of their GPU and follow the [`Order`] for it.

use crate::policy::TenantId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const fn ns(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// A tenant that wanted two GPUs at once so lately is a gang there: its ranks may pause one after the other.
const REMEMBERED_NS: u64 = ns(Duration::from_secs(1));
/// GPUs are waited for, and ranks drain, for so long at most: longer than an arbiter waits for a drain ([`crate::policy::lease`]).
const PHASE_LIMIT_NS: u64 = ns(Duration::from_millis(1_500));

/// Ranks whose kernels end together are seen to be done no further apart than this.
const SKEW_NS: u64 = ns(Duration::from_millis(1));
/// What a rank says that it has in flight is believed up to this.
const MAX_PENDING_NS: u64 = ns(Duration::from_millis(50));

/// GPU time over weight, ahead of the GPU's virtual clock; negative: behind it.
pub type Position = i128;

/// Where a tenant stands in line, first to last: those that wait for nobody's turn to end, then by how far they are served.
type Standing = (bool, Position);

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
    /// It has the GPU and has wanted nothing for as long as it is waited for.
    pub is_done: bool,
    /// It has a time objective and goes before those that have none.
    pub presses: bool,
    /// How far it is served.
    pub position: Position,
}

impl Member {
    fn standing(&self) -> Standing {
        (!self.presses, self.position)
    }

    fn wants(&self) -> bool {
        self.in_flight || self.waiting
    }
}

/// What an arbiter says of its GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Post {
    /// Its tenants.
    pub members: Vec<Member>,
    /// Who has the GPU, or drains.
    pub holder: Option<TenantId>,
    /// The holder has a lease that is not over, and does not pause for longer than it is waited for.
    pub is_in_turn: bool,
    /// How long a lease lasts.
    pub quantum_ns: u64,
    /// How long before its end it is renewed.
    pub lead_ns: u64,
}

impl Post {
    fn member(&self, tenant: TenantId) -> Option<&Member> {
        self.members.iter().find(|member| member.tenant == tenant)
    }
}

/// What an arbiter is to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// Whoever is no gang has its leases as always.
    #[default]
    Apart,
    /// Nobody gets the GPU, and whoever has it gives it up, but for this one.
    ClearFor(TenantId),
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Gathering {
        give_up_ns: u64,
    },
    Held {
        until_ns: Option<u64>,
    },
    /// `spins`: a rank was seen to wait for another.
    Draining {
        give_up_ns: u64,
        spins: bool,
    },
}

#[derive(Debug)]
struct Turn {
    tenant: TenantId,
    gpus: BTreeSet<usize>,
    phase: Phase,
}

#[derive(Debug, Default)]
struct Gpu {
    post: Post,
    /// When tenants last wanted this GPU and another.
    together_ns: BTreeMap<TenantId, u64>,
}

/// The GPUs of a host.
#[derive(Debug, Default)]
pub struct Board {
    gpus: Vec<Gpu>,
    turns: Vec<Turn>,
    /// When it was last posted to.
    now_ns: u64,
}

impl Board {
    /// A board for so many GPUs.
    pub fn new(gpus: usize) -> Self {
        Self { gpus: (0..gpus).map(|_| Gpu::default()).collect(), turns: Vec::new(), now_ns: 0 }
    }

    /// Takes in what is seen of a GPU, and moves on.
    pub fn post(&mut self, gpu: usize, now_ns: u64, post: Post) {
        let Some(place) = self.gpus.get_mut(gpu) else { return };
        place.together_ns.retain(|tenant, _| post.member(*tenant).is_some());
        place.post = post;
        self.now_ns = self.now_ns.max(now_ns);
        self.note_gangs(now_ns);
        let mut turns = std::mem::take(&mut self.turns);
        turns.retain_mut(|turn| self.goes_on(turn, now_ns));
        self.turns = turns;
        self.elect(now_ns);
    }

    /// What a GPU's arbiter is to do.
    pub fn order(&self, gpu: usize) -> Order {
        let Some(turn) = self.turns.iter().find(|turn| turn.gpus.contains(&gpu)) else { return Order::Apart };
        let tenant = turn.tenant;
        match turn.phase {
            Phase::Gathering { .. } => Order::ClearFor(tenant),
            Phase::Held { until_ns } => Order::Held { tenant, until_ns },
            Phase::Draining { spins, .. } => {
                Order::Drain { tenant, catches_up: self.catches_up(tenant, &turn.gpus, gpu, spins) }
            }
        }
    }

    /// The tenants that a GPU's arbiter gives nothing by itself.
    pub fn gangs(&self, gpu: usize, now_ns: u64) -> BTreeSet<TenantId> {
        let there = self.gpus.get(gpu).into_iter().flat_map(|gpu| gpu.together_ns.keys().copied());
        there.filter(|tenant| self.places(*tenant, now_ns).contains(&gpu)).collect()
    }

    /// GPUs in the table.
    pub fn gpus(&self) -> usize {
        self.gpus.len()
    }

    fn note_gangs(&mut self, now_ns: u64) {
        let mut wanted: BTreeMap<TenantId, Vec<usize>> = BTreeMap::new();
        for (number, gpu) in self.gpus.iter().enumerate() {
            for member in gpu.post.members.iter().filter(|member| member.wants()) {
                wanted.entry(member.tenant).or_default().push(number);
            }
        }
        for (tenant, gpus) in wanted.into_iter().filter(|(_, gpus)| gpus.len() > 1) {
            for gpu in gpus {
                self.gpus[gpu].together_ns.insert(tenant, now_ns);
            }
        }
    }

    /// The GPUs on which a tenant is a gang: none, or two and more.
    fn places(&self, tenant: TenantId, now_ns: u64) -> BTreeSet<usize> {
        let is_recent = |gpu: &Gpu| {
            gpu.together_ns
                .get(&tenant)
                .is_some_and(|together_ns| now_ns.saturating_sub(*together_ns) <= REMEMBERED_NS)
        };
        let found: BTreeSet<usize> =
            self.gpus.iter().enumerate().filter(|(_, gpu)| is_recent(gpu)).map(|(gpu, _)| gpu).collect();
        if found.len() > 1 { found } else { BTreeSet::new() }
    }

    fn members<'a>(
        &'a self,
        tenant: TenantId,
        gpus: &'a BTreeSet<usize>,
    ) -> impl Iterator<Item = &'a Member> {
        gpus.iter().filter_map(move |gpu| self.gpus[*gpu].post.member(tenant))
    }

    /// Where a gang stands: as far served as on the GPU where it had most.
    fn standing(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> Standing {
        let position = self.members(tenant, gpus).map(|member| member.position).max().unwrap_or(0);
        (!self.presses(tenant, gpus), position)
    }

    /// Whether any rank of a gang goes before those without a time objective.
    fn presses(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        self.members(tenant, gpus).any(|member| member.presses)
    }

    /// Others that want one of these GPUs, and how far each is served there.
    fn rivals<'a>(
        &'a self,
        tenant: TenantId,
        gpus: &'a BTreeSet<usize>,
    ) -> impl Iterator<Item = (usize, &'a Member)> {
        gpus.iter().flat_map(move |gpu| {
            let members = self.gpus[*gpu].post.members.iter();
            members
                .filter(move |member| member.tenant != tenant && member.wants())
                .map(move |member| (*gpu, member))
        })
    }

    /// Whether no tenant that is no gang goes before this gang on one of its GPUs, or has its turn there.
    fn is_clear(&self, tenant: TenantId, gpus: &BTreeSet<usize>, now_ns: u64) -> bool {
        let presses = self.presses(tenant, gpus);
        let standing =
            |gpu: usize| (!presses, self.gpus[gpu].post.member(tenant).map_or(0, |member| member.position));
        let in_turn = gpus.iter().any(|gpu| {
            let post = &self.gpus[*gpu].post;
            let holder = post.holder.filter(|holder| *holder != tenant);
            let keeps =
                |holder: &Member| self.places(holder.tenant, now_ns).is_empty() && holder.presses >= presses;
            post.is_in_turn && holder.and_then(|holder| post.member(holder)).is_some_and(keeps)
        });
        let is_first = |(gpu, rival): (usize, &Member)| {
            !self.places(rival.tenant, now_ns).is_empty() || rival.standing() >= standing(gpu)
        };
        !in_turn && self.rivals(tenant, gpus).all(is_first)
    }

    /// Whether somebody with a time objective waits for one of the GPUs of this gang, which has none.
    fn is_pressed(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        !self.presses(tenant, gpus) && self.rivals(tenant, gpus).any(|(_, rival)| rival.presses)
    }

    /// Whether nobody who wants one of this gang's GPUs is further behind.
    fn is_first(&self, tenant: TenantId, gpus: &BTreeSet<usize>, now_ns: u64) -> bool {
        let standing = self.standing(tenant, gpus);
        self.is_clear(tenant, gpus, now_ns)
            && self.rivals(tenant, gpus).all(|(_, rival)| {
                let places = self.places(rival.tenant, now_ns);
                places.is_empty() || self.standing(rival.tenant, &places) >= standing
            })
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
        let is_whole = self.places(tenant, now_ns) == *gpus;
        let drain = Phase::Draining { give_up_ns: now_ns.saturating_add(PHASE_LIMIT_NS), spins: false };
        if !is_whole && !matches!(phase, Phase::Draining { .. }) {
            if !self.is_contended(tenant, gpus) {
                // What it has on each GPU it goes on having there by itself.
                return false;
            }
            *phase = drain;
        }
        if let Phase::Gathering { give_up_ns } = *phase {
            let is_free = |post: &Post| post.holder.is_none_or(|holder| holder == tenant);
            if now_ns < give_up_ns && !all(&|post, _| is_free(post)) {
                return true;
            }
            *phase =
                Phase::Held { until_ns: self.is_contended(tenant, gpus).then(|| self.end_ns(gpus, now_ns)) };
        }
        if let Phase::Held { until_ns } = *phase {
            let is_done = || all(&|_, member| member.is_none_or(|member| member.is_done));
            *phase = match until_ns {
                _ if !self.is_contended(tenant, gpus) => Phase::Held { until_ns: None },
                _ if is_done() => drain,
                None if self.is_first(tenant, gpus, now_ns) => {
                    Phase::Held { until_ns: Some(self.end_ns(gpus, now_ns)) }
                }
                None => drain,
                Some(_) if self.is_pressed(tenant, gpus) => drain,
                Some(until_ns) if now_ns < until_ns.saturating_sub(self.lead_ns(gpus)) => return true,
                Some(until_ns) if self.is_first(tenant, gpus, now_ns) => {
                    Phase::Held { until_ns: Some(self.end_ns(gpus, until_ns.max(now_ns))) }
                }
                Some(until_ns) if now_ns < until_ns => return true,
                Some(_) => drain,
            };
        }
        let Phase::Draining { give_up_ns, ref mut spins } = *phase else { return true };
        *spins |= gpus.iter().any(|gpu| self.catches_up(tenant, gpus, *gpu, *spins));
        // An arbiter that has given the drain up has another use for its GPU.
        let has_drained = |post: &Post, member: &Member| {
            !member.may_launch && (!member.in_flight || post.holder != Some(tenant))
        };
        now_ns < give_up_ns && !all(&|post, member| member.is_none_or(|member| has_drained(post, member)))
    }

    fn is_contended(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        self.rivals(tenant, gpus).next().is_some()
    }

    fn end_ns(&self, gpus: &BTreeSet<usize>, from_ns: u64) -> u64 {
        let quantum_ns = gpus.iter().map(|gpu| self.gpus[*gpu].post.quantum_ns).max().unwrap_or(0);
        from_ns.saturating_add(quantum_ns)
    }

    fn lead_ns(&self, gpus: &BTreeSet<usize>) -> u64 {
        gpus.iter().map(|gpu| self.gpus[*gpu].post.lead_ns).max().unwrap_or(0)
    }

    /// Whether this rank has drained and waits with what another needs, which should have been done by now. To let it launch while the other is
    /// only a little later would make it the one that is ahead.
    fn catches_up(&self, tenant: TenantId, gpus: &BTreeSet<usize>, gpu: usize, spins: bool) -> bool {
        let waits = |member: &Member| member.waiting && !member.in_flight;
        let is_late = |member: &Member| {
            let pending_ns = if spins { 0 } else { member.pending_ns.min(MAX_PENDING_NS) };
            member.in_flight && self.now_ns >= member.progressed_ns.saturating_add(pending_ns + SKEW_NS)
        };
        self.gpus[gpu].post.member(tenant).is_some_and(waits) && self.members(tenant, gpus).any(is_late)
    }

    /// Begins the turns that can begin. A gang that goes before others and cannot have all its GPUs yet keeps them from those others.
    fn elect(&mut self, now_ns: u64) {
        let tenants: BTreeSet<TenantId> =
            self.gpus.iter().flat_map(|gpu| gpu.together_ns.keys().copied()).collect();
        let mut waiting: Vec<_> = tenants
            .into_iter()
            .filter(|tenant| self.turns.iter().all(|turn| turn.tenant != *tenant))
            .map(|tenant| (tenant, self.places(tenant, now_ns)))
            .filter(|(tenant, gpus)| self.members(*tenant, gpus).any(Member::wants))
            .collect();
        waiting.sort_by_key(|(tenant, gpus)| self.standing(*tenant, gpus));
        let mut taken: BTreeSet<usize> =
            self.turns.iter().flat_map(|turn| turn.gpus.iter().copied()).collect();
        for (tenant, gpus) in waiting {
            let is_free = gpus.is_disjoint(&taken) && self.is_clear(tenant, &gpus, now_ns);
            taken.extend(&gpus);
            if is_free {
                let phase = Phase::Gathering { give_up_ns: now_ns.saturating_add(PHASE_LIMIT_NS) };
                let mut turn = Turn { tenant, gpus, phase };
                if self.goes_on(&mut turn, now_ns) {
                    self.turns.push(turn);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
