//! Decides which of several tenants and gangs that want the same GPUs goes first.

use super::{Board, Gpu, Member, Position, Post};
use crate::TenantId;
use alloc::collections::BTreeSet;

/// A tenant's place in the order; the least place goes first. Tenants that press come first; among
/// equals, the least position decides.
type Standing = (bool, Position);

impl Member {
    fn standing(&self) -> Standing {
        (!self.presses, self.position)
    }
}

/// A summary of one GPU: the number of tenants that want the GPU, and the place of the first tenant
/// that is no gang.
#[derive(Debug, Clone, Copy, Default)]
pub struct Line {
    /// The number of tenants that want the GPU.
    wanting: usize,
    /// The place, among the tenants that want the GPU, of the first tenant that is no gang; `None`
    /// without such a tenant.
    single: Option<Standing>,
}

impl Line {
    /// Returns the summary of a GPU by its arbiter's post.
    pub fn of(post: &Post, is_gang: impl Fn(TenantId) -> bool) -> Self {
        let wanting = post.members.iter().filter(|member| member.wants());
        let singles = wanting.clone().filter(|member| !is_gang(member.tenant));
        Self { wanting: wanting.count(), single: singles.map(Member::standing).min() }
    }
}

impl Board {
    /// Returns the reports on a tenant from the arbiters of these GPUs.
    pub(super) fn members<'a>(
        &'a self,
        tenant: TenantId,
        gpus: &'a BTreeSet<usize>,
    ) -> impl Iterator<Item = &'a Member> {
        gpus.iter().filter_map(move |gpu| self.gpus[*gpu].post.member(tenant))
    }

    /// Returns whether the tenant wants at least one of these GPUs.
    pub(super) fn wants(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        self.members(tenant, gpus).any(Member::wants)
    }

    /// Returns the place of a gang, by its largest position on any of its GPUs.
    pub(super) fn standing(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> Standing {
        let position = self.members(tenant, gpus).map(|member| member.position).max().unwrap_or(0);
        (!self.presses(tenant, gpus), position)
    }

    /// Returns whether a gang presses: it has an SLO, and is owed GPU time on each GPU that another
    /// tenant wants too. A GPU that only the gang wants does not count.
    pub(super) fn presses(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        let asked = gpus.iter().filter_map(|gpu| {
            let member = self.gpus[*gpu].post.member(tenant).filter(|member| member.wants())?;
            self.is_wanted_beside(tenant, *gpu).then_some(member.presses)
        });
        asked.reduce(|all, presses| all && presses).unwrap_or(false)
    }

    /// Returns whether a tenant other than `tenant` wants the GPU.
    pub(super) fn is_wanted_beside(&self, tenant: TenantId, gpu: usize) -> bool {
        let gpu = &self.gpus[gpu];
        let its = usize::from(gpu.post.member(tenant).is_some_and(Member::wants));
        gpu.line.wanting > its
    }

    /// Returns whether another tenant wants one of these GPUs, or another gang has a plan for one.
    pub(super) fn is_contended(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        gpus.iter().any(|gpu| self.is_wanted_beside(tenant, *gpu))
            || self.plans(tenant, gpus).next().is_some()
    }

    /// Returns the other gangs that want a GPU of this gang, each with its GPUs.
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

    /// Returns whether this gang goes before all tenants that are no gangs, on each of its GPUs.
    fn is_before_singles(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        let waits = !self.presses(tenant, gpus);
        gpus.iter().all(|gpu| {
            let Gpu { post, line, .. } = &self.gpus[*gpu];
            let position = post.member(tenant).map_or(0, |member| member.position);
            line.single.is_none_or(|first| first >= (waits, position))
        })
    }

    /// Returns whether a gang is next for its GPUs. On each GPU, the gang must go before all
    /// tenants that are no gangs. No gang whose turn has begun on one of the GPUs may have an
    /// earlier place.
    pub(super) fn is_next(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        let standing = self.standing(tenant, gpus);
        let mut begun = self
            .turns
            .iter()
            .filter(|turn| turn.tenant != tenant && !turn.is_planned() && !turn.gpus.is_disjoint(gpus));
        self.is_before_singles(tenant, gpus)
            && begun.all(|turn| self.standing(turn.tenant, &turn.gpus) >= standing)
    }

    /// Returns whether the gang does not press, but a single tenant or another gang presses on one
    /// of its GPUs.
    pub(super) fn is_pressed(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        let single = |gpu: &usize| self.gpus[*gpu].line.single.is_some_and(|(waits, _)| !waits);
        !self.presses(tenant, gpus)
            && (gpus.iter().any(single)
                || self.rivals(tenant, gpus).any(|(rival, places)| self.presses(rival, places)))
    }

    /// Returns whether this gang goes before all other tenants that want its GPUs. Gangs that have
    /// a plan for one of these GPUs do not count.
    pub(super) fn is_first(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        let standing = self.standing(tenant, gpus);
        let has_plan = |rival: TenantId| self.plans(tenant, gpus).any(|(other, _)| other == rival);
        self.is_before_singles(tenant, gpus)
            && self
                .rivals(tenant, gpus)
                .all(|(rival, places)| has_plan(rival) || self.standing(rival, places) >= standing)
    }
}
