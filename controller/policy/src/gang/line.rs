//! Orders tenants in the line for GPUs.

use super::{Board, Gpu, Member, Position, Post};
use crate::TenantId;
use alloc::collections::BTreeSet;

/// The place of a tenant, first to last: tenants that end others' turns come first, then tenants
/// that are less far served.
type Standing = (bool, Position);

impl Member {
    fn standing(&self) -> Standing {
        (!self.presses, self.position)
    }
}

/// The tenants that want a GPU, in short.
#[derive(Debug, Clone, Copy, Default)]
pub struct Line {
    wanting: usize,
    /// The place of the first tenant that is no gang.
    single: Option<Standing>,
}

impl Line {
    pub fn of(post: &Post, is_gang: impl Fn(TenantId) -> bool) -> Self {
        let wanting = post.members.iter().filter(|member| member.wants());
        let singles = wanting.clone().filter(|member| !is_gang(member.tenant));
        Self { wanting: wanting.count(), single: singles.map(Member::standing).min() }
    }
}

impl Board {
    pub(super) fn members<'a>(
        &'a self,
        tenant: TenantId,
        gpus: &'a BTreeSet<usize>,
    ) -> impl Iterator<Item = &'a Member> {
        gpus.iter().filter_map(move |gpu| self.gpus[*gpu].post.member(tenant))
    }

    pub(super) fn wants(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        self.members(tenant, gpus).any(Member::wants)
    }

    /// Returns the place of a gang, by its position on the GPU where it is served furthest.
    pub(super) fn standing(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> Standing {
        let position = self.members(tenant, gpus).map(|member| member.position).max().unwrap_or(0);
        (!self.presses(tenant, gpus), position)
    }

    /// Returns whether a gang goes before tenants without a time objective, on each GPU that
    /// another tenant wants too. On a GPU of its own a gang never had too much.
    pub(super) fn presses(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        let asked = gpus.iter().filter_map(|gpu| {
            let member = self.gpus[*gpu].post.member(tenant).filter(|member| member.wants())?;
            self.is_wanted_beside(tenant, *gpu).then_some(member.presses)
        });
        asked.reduce(|all, presses| all && presses).unwrap_or(false)
    }

    /// Returns whether another tenant wants a GPU.
    pub(super) fn is_wanted_beside(&self, tenant: TenantId, gpu: usize) -> bool {
        let gpu = &self.gpus[gpu];
        let its = usize::from(gpu.post.member(tenant).is_some_and(Member::wants));
        gpu.line.wanting > its
    }

    /// Returns whether others want one of these GPUs, or plan to have it.
    pub(super) fn is_contended(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        gpus.iter().any(|gpu| self.is_wanted_beside(tenant, *gpu))
            || self.plans(tenant, gpus).next().is_some()
    }

    /// Returns the other gangs that want GPUs of this gang.
    fn rivals<'a>(
        &'a self,
        tenant: TenantId,
        gpus: &'a BTreeSet<usize>,
    ) -> impl Iterator<Item = (TenantId, &'a BTreeSet<usize>)> {
        let others = self.gangs.iter().map(|(other, places)| (*other, places));
        others.filter(move |(other, places)| {
            let wants = |gpu: &usize| self.gpus[*gpu].post.member(*other).is_some_and(Member::wants);
            *other != tenant && places.intersection(gpus).any(wants)
        })
    }

    /// Returns whether no single tenant goes before this gang on any of its GPUs.
    fn is_before_singles(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        let waits = !self.presses(tenant, gpus);
        gpus.iter().all(|gpu| {
            let Gpu { post, line, .. } = &self.gpus[*gpu];
            let position = post.member(tenant).map_or(0, |member| member.position);
            line.single.is_none_or(|first| first >= (waits, position))
        })
    }

    /// Returns whether a gang is next for its GPUs: no tenant with a turn on one of them is further
    /// behind.
    pub(super) fn is_next(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        let standing = self.standing(tenant, gpus);
        let mut begun = self
            .turns
            .iter()
            .filter(|turn| turn.tenant != tenant && !turn.is_planned() && !turn.gpus.is_disjoint(gpus));
        self.is_before_singles(tenant, gpus)
            && begun.all(|turn| self.standing(turn.tenant, &turn.gpus) >= standing)
    }

    /// Returns whether a tenant with a time objective waits for a GPU of this gang, which does not
    /// press.
    pub(super) fn is_pressed(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        let single = |gpu: &usize| self.gpus[*gpu].line.single.is_some_and(|(waits, _)| !waits);
        !self.presses(tenant, gpus)
            && (gpus.iter().any(single)
                || self.rivals(tenant, gpus).any(|(rival, places)| self.presses(rival, places)))
    }

    /// Returns whether no tenant that wants a GPU of this gang is further behind, except gangs with
    /// a plan.
    pub(super) fn is_first(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        let standing = self.standing(tenant, gpus);
        let has_plan = |rival: TenantId| self.plans(tenant, gpus).any(|(other, _)| other == rival);
        self.is_before_singles(tenant, gpus)
            && self
                .rivals(tenant, gpus)
                .all(|(rival, places)| has_plan(rival) || self.standing(rival, places) >= standing)
    }
}
