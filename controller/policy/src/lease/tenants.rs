//! The tenants of a GPU, and which of them a decision has to look at: of a thousand most want nothing, and nothing about those changes by itself.

use super::state::Tenant;
use crate::TenantId;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Index;

/// See the module.
#[derive(Debug, Default)]
pub struct Tenants {
    all: BTreeMap<TenantId, Tenant>,
    /// Those that want the GPU, as far as is known, and those that were touched since the last look; in order. There is room for all.
    astir: Vec<TenantId>,
    /// Those that said how soon they are to be answered.
    with_objective: BTreeSet<TenantId>,
}

impl Tenants {
    pub fn get(&self, id: TenantId) -> Option<&Tenant> {
        self.all.get(&id)
    }

    /// It is looked at next time.
    pub fn touch(&mut self, id: TenantId) {
        if let Err(place) = self.astir.binary_search(&id) {
            self.astir.insert(place, id);
        }
    }

    /// Whoever changes a tenant has it looked at.
    pub fn get_mut(&mut self, id: TenantId) -> Option<&mut Tenant> {
        if self.all.contains_key(&id) {
            self.touch(id);
        }
        self.all.get_mut(&id)
    }

    /// For changes that are nothing to the next look.
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

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
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

    /// For changes that are nothing to the next look.
    pub fn values_quietly(&mut self) -> impl Iterator<Item = &mut Tenant> {
        self.all.values_mut()
    }

    /// Sets how soon a tenant's requests are to be answered, ns.
    pub fn set_slo(&mut self, id: TenantId, slo_ns: Option<u64>) {
        let Some(tenant) = self.get_quietly(id) else { return };
        tenant.slo_ns = slo_ns;
        if slo_ns.is_some() {
            self.with_objective.insert(id);
        } else {
            self.with_objective.remove(&id);
        }
    }

    /// Those that said how soon they are to be answered.
    pub fn with_objective(&self) -> impl Iterator<Item = (&TenantId, &Tenant)> {
        self.with_objective.iter().filter_map(|id| Some((id, self.all.get(id)?)))
    }

    /// All that want the GPU, or did at the last look, or used it since, and others that were touched; in order.
    pub fn astir(&self) -> impl Iterator<Item = (&TenantId, &Tenant)> + Clone {
        self.astir.iter().filter_map(|id| Some((id, self.all.get(id)?)))
    }

    /// Looks at each of those, in order; who wants nothing is then not looked at again until it is touched.
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

impl Index<&TenantId> for Tenants {
    type Output = Tenant;

    fn index(&self, id: &TenantId) -> &Tenant {
        &self.all[id]
    }
}
