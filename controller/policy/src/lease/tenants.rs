//! The tenants of a GPU, and the list of those tenants that the next decision examines. Of a
//! thousand tenants, most want nothing and do not change, so a decision need not examine them.

use super::state::Tenant;
use crate::TenantId;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Bound;

/// All tenants of one GPU, and the list of those that the next decision examines.
#[derive(Debug, Default)]
pub struct Tenants {
    all: BTreeMap<TenantId, Tenant>,
    /// The tenants that the next decision examines, sorted by number: those that wanted the GPU,
    /// and those that changed. The capacity suffices for all tenants.
    astir: Vec<TenantId>,
    /// The tenants with an SLO.
    with_objective: BTreeSet<TenantId>,
}

impl Tenants {
    pub fn get(&self, id: TenantId) -> Option<&Tenant> {
        self.all.get(&id)
    }

    /// Makes the next decision examine a tenant.
    pub fn touch(&mut self, id: TenantId) {
        if let Err(place) = self.astir.binary_search(&id) {
            self.astir.insert(place, id);
        }
    }

    /// Returns a tenant for a change. The next decision examines the tenant.
    pub fn get_mut(&mut self, id: TenantId) -> Option<&mut Tenant> {
        if self.all.contains_key(&id) {
            self.touch(id);
        }
        self.all.get_mut(&id)
    }

    /// Returns a tenant for a change, without making the next decision examine the tenant.
    pub fn get_quietly(&mut self, id: TenantId) -> Option<&mut Tenant> {
        self.all.get_mut(&id)
    }

    pub fn get_or_insert(&mut self, id: TenantId, tenant: Tenant) -> &mut Tenant {
        self.touch(id);
        self.astir.reserve((self.all.len() + 1).saturating_sub(self.astir.len()));
        self.all.entry(id).or_insert(tenant)
    }

    pub fn remove(&mut self, id: TenantId) {
        self.all.remove(&id);
        self.astir.retain(|astir| *astir != id);
        self.with_objective.remove(&id);
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&TenantId, &Tenant)> + Clone {
        self.all.iter()
    }

    pub fn values(&self) -> impl Iterator<Item = &Tenant> + Clone {
        self.all.values()
    }

    /// Returns all tenants for changes, without making the next decision examine them.
    pub fn values_quietly(&mut self) -> impl Iterator<Item = &mut Tenant> {
        self.all.values_mut()
    }

    /// Sets a tenant's SLO, ns; `None` removes the SLO.
    pub fn set_slo(&mut self, id: TenantId, slo_ns: Option<u64>) {
        let Some(tenant) = self.get_quietly(id) else { return };
        tenant.slo_ns = slo_ns;
        if slo_ns.is_some() {
            self.with_objective.insert(id);
        } else {
            self.with_objective.remove(&id);
        }
    }

    /// Returns the tenants with an SLO.
    pub fn with_objective(&self) -> impl Iterator<Item = (&TenantId, &Tenant)> {
        self.with_objective.iter().filter_map(|id| Some((id, self.all.get(id)?)))
    }

    /// Calls `change` for each tenant with an SLO, without making the next decision examine it.
    pub fn each_with_objective(&mut self, mut change: impl FnMut(TenantId, &mut Tenant)) {
        for id in &self.with_objective {
            if let Some(tenant) = self.all.get_mut(id) {
                change(*id, tenant);
            }
        }
    }

    /// Returns the first tenant after `after` for which `is_asked` holds, by number.
    pub fn next_after(
        &self,
        after: Option<TenantId>,
        is_asked: impl Fn(&Tenant) -> bool,
    ) -> Option<TenantId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = self.all.range((from, Bound::Unbounded));
        rest.find(|(_, tenant)| is_asked(tenant)).map(|(id, _)| *id)
    }

    /// Returns the tenants that the next decision examines, sorted by number.
    pub fn astir(&self) -> impl Iterator<Item = (&TenantId, &Tenant)> + Clone {
        self.astir.iter().filter_map(|id| Some((id, self.all.get(id)?)))
    }

    /// Calls `change` for each tenant that the next decision examines, sorted by number.
    pub fn astir_with(&mut self, mut change: impl FnMut(TenantId, &mut Tenant)) {
        for id in &self.astir {
            if let Some(tenant) = self.all.get_mut(id) {
                change(*id, tenant);
            }
        }
    }

    /// Calls `look` for each tenant that this decision examines, sorted by number. Of these
    /// tenants, the next decision then examines only the tenants that want the GPU.
    pub fn look(&mut self, mut look: impl FnMut(TenantId, &mut Tenant)) {
        let all = &mut self.all;
        self.astir.retain(|id| {
            all.get_mut(id).is_some_and(|tenant| {
                look(*id, tenant);
                tenant.seen.wants()
            })
        });
    }
}
