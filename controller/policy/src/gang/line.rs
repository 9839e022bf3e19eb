//! Who stands where in line for GPUs, and who goes before whom.

use super::{Board, Gpu, Member, Position, Post};
use crate::TenantId;
use alloc::collections::BTreeSet;

/// Where a tenant stands, first to last: those that wait for nobody's turn to end, then by how far they are served.
type Standing = (bool, Position);

impl Member {
    fn standing(&self) -> Standing {
        (!self.presses, self.position)
    }
}

/// Who wants a GPU, in short.
#[derive(Debug, Clone, Copy, Default)]
pub struct Line {
    wanting: usize,
    /// The first of those that are no gangs.
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

    /// Where a gang stands: as far served as on the GPU where it had most.
    pub(super) fn standing(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> Standing {
        let position = self.members(tenant, gpus).map(|member| member.position).max().unwrap_or(0);
        (!self.presses(tenant, gpus), position)
    }

    /// Whether a gang goes before those without a time objective: on each GPU that another wants too. Where it is alone it never has had too much.
    pub(super) fn presses(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        let asked = gpus.iter().filter_map(|gpu| {
            let member = self.gpus[*gpu].post.member(tenant).filter(|member| member.wants())?;
            self.is_wanted_beside(tenant, *gpu).then_some(member.presses)
        });
        asked.reduce(|all, presses| all && presses).unwrap_or(false)
    }

    /// Whether another tenant wants a GPU.
    pub(super) fn is_wanted_beside(&self, tenant: TenantId, gpu: usize) -> bool {
        let gpu = &self.gpus[gpu];
        let its = usize::from(gpu.post.member(tenant).is_some_and(Member::wants));
        gpu.line.wanting > its
    }

    /// Whether others want one of these GPUs, or plan to have it.
    pub(super) fn is_contended(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        gpus.iter().any(|gpu| self.is_wanted_beside(tenant, *gpu))
            || self.plans(tenant, gpus).next().is_some()
    }

    /// Other gangs that want GPUs, of which this one wants some.
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

    /// Whether no tenant that is no gang goes before this gang on one of its GPUs.
    fn is_before_singles(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        let waits = !self.presses(tenant, gpus);
        gpus.iter().all(|gpu| {
            let Gpu { post, line, .. } = &self.gpus[*gpu];
            let position = post.member(tenant).map_or(0, |member| member.position);
            line.single.is_none_or(|first| first >= (waits, position))
        })
    }

    /// Whether a gang is to have its GPUs when they are free: nobody who has its turn on one of them is further behind.
    pub(super) fn is_next(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        let standing = self.standing(tenant, gpus);
        let mut begun = self
            .turns
            .iter()
            .filter(|turn| turn.tenant != tenant && !turn.is_planned() && !turn.gpus.is_disjoint(gpus));
        self.is_before_singles(tenant, gpus)
            && begun.all(|turn| self.standing(turn.tenant, &turn.gpus) >= standing)
    }

    /// Whether somebody with a time objective waits for one of the GPUs of this gang, which has none.
    pub(super) fn is_pressed(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        let single = |gpu: &usize| self.gpus[*gpu].line.single.is_some_and(|(waits, _)| !waits);
        !self.presses(tenant, gpus)
            && (gpus.iter().any(single)
                || self.rivals(tenant, gpus).any(|(rival, places)| self.presses(rival, places)))
    }

    /// Whether nobody who wants one of this gang's GPUs is further behind, but for gangs that have a plan.
    pub(super) fn is_first(&self, tenant: TenantId, gpus: &BTreeSet<usize>) -> bool {
        let standing = self.standing(tenant, gpus);
        let has_plan = |rival: TenantId| self.plans(tenant, gpus).any(|(other, _)| other == rival);
        self.is_before_singles(tenant, gpus)
            && self
                .rivals(tenant, gpus)
                .all(|(rival, places)| has_plan(rival) || self.standing(rival, places) >= standing)
    }
}
