//! Caps are users': shares them out among each user's tenants, as these come and go.

use super::Registry;
use super::tenant::Tenant;
use crate::authority::{Part, Wants};
use crate::config::Caps;
use crate::identity::Key;
use crate::policy::TenantId;
use deepres_abi::grant::NO_LIMIT;
use std::collections::{BTreeMap, BTreeSet};

impl Registry {
    /// What a tenant will have of its user's caps that is not here yet, on the GPU where that is most: nobody knows yet which ones it will use.
    pub(super) fn foreseen_part(&self, user: u32, own: &Key, wants: Wants, caps: &Caps) -> Part {
        if !caps.is_any() {
            return Part::whole(caps);
        }
        let on = |gpu: usize| {
            let others = self.of_user(user, gpu).into_iter().filter(|tenant| tenant.key != *own);
            let mut all: Vec<Wants> = others.map(|tenant| tenant.wants_on(gpu)).collect();
            all.push(wants);
            Part::of(all.len() - 1, &all, caps)
        };
        let parts = (0..self.gpus.len().max(1)).map(on);
        parts.reduce(Part::max).unwrap_or_else(|| Part::whole(caps))
    }

    /// Works out anew what of caps on memory whose tenants may have: what they hold has changed.
    pub fn renew_parts(&mut self) {
        let is_capped = |tenant: &&Tenant| !tenant.is_deserted() && tenant.caps.0.memory_bytes != NO_LIMIT;
        let users = self.tenants.values().filter(is_capped).map(|tenant| tenant.user);
        users.collect::<BTreeSet<u32>>().into_iter().for_each(|user| self.share_out(user));
    }

    /// Works out anew what each of a user's tenants may have, and has it in force.
    pub(super) fn share_out(&mut self, user: u32) {
        let mut changed = Vec::new();
        let tenants = self.tenants.iter().filter(|(_, tenant)| tenant.user == user && !tenant.is_deserted());
        let capped: Vec<_> = tenants.filter(|(_, tenant)| tenant.caps.0.is_any()).collect();
        if capped.is_empty() {
            return;
        }
        let mut parts = BTreeMap::<TenantId, Vec<Part>>::new();
        for gpu in 0..self.gpus.len().max(1) {
            let all = self.of_user(user, gpu);
            let wants: Vec<Wants> = all.iter().map(|tenant| tenant.wants_on(gpu)).collect();
            for (own, tenant) in all.iter().enumerate().filter(|(_, tenant)| tenant.caps.0.is_any()) {
                parts.entry(tenant.id).or_default().push(Part::of(own, &wants, &tenant.caps.0));
            }
        }
        for (name, tenant) in capped {
            let parts = parts.remove(&tenant.id).unwrap_or_default().into_iter();
            // The same holds on all of its GPUs, so what the fullest one allows; without any yet, what the emptiest does.
            let part = if tenant.gpus.is_empty() { parts.reduce(Part::max) } else { parts.reduce(Part::min) };
            if let Some(part) = part.filter(|part| *part != tenant.part) {
                changed.push((name.clone(), part));
            }
        }
        for (name, part) in changed {
            if let Some(tenant) = self.tenants.get_mut(&name) {
                tenant.part = part;
            }
            // In force as soon as the arbiters get to it: nobody waits for that.
            drop(self.tell_arbiters(&name));
        }
    }

    /// A user's tenants that are or may come to be on a GPU, in the order in which they asked.
    fn of_user(&self, user: u32, gpu: usize) -> Vec<&Tenant> {
        let there = |tenant: &&Tenant| {
            tenant.user == user
                && !tenant.is_deserted()
                && (tenant.gpus.is_empty() || tenant.gpus.contains(&gpu))
        };
        let mut tenants: Vec<&Tenant> = self.tenants.values().filter(there).collect();
        tenants.sort_by_key(|tenant| (tenant.asked_ns, tenant.id));
        tenants
    }
}
