//! Shares out each user's caps among the user's tenants, again whenever tenants come or go.

use super::Registry;
use super::tenant::Tenant;
use crate::identity::Key;
use deepres_abi::grant::NO_LIMIT;
use deepres_model::authority::{Claim, Part, Wants, bounds};
use deepres_model::config::Caps;
use deepres_policy::TenantId;
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::oneshot;

impl Registry {
    /// Returns the part of a user's caps that a tenant will have that is not here yet. The GPU with
    /// the largest part counts, because the GPUs that the tenant will use are not known yet.
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

    /// Computes again the parts of all users with a cap on memory, because their tenants' memory
    /// has changed.
    pub fn renew_parts(&mut self) {
        let is_capped = |tenant: &&Tenant| !tenant.is_deserted() && tenant.caps.0.memory_bytes != NO_LIMIT;
        let users = self.tenants.values().filter(is_capped).map(|tenant| tenant.user);
        // The arbiters carry out the orders in their own time. The caller does not wait.
        users.collect::<BTreeSet<u32>>().into_iter().for_each(|user| drop(self.share_out(user)));
    }

    /// Computes again the part of each of a user's tenants. Returns the orders to the arbiters,
    /// each of which is fulfilled once it is in force.
    pub(super) fn share_out(&mut self, user: u32) -> Vec<oneshot::Receiver<()>> {
        let mut changed = Vec::new();
        let tenants = self.tenants.iter().filter(|(_, tenant)| tenant.user == user && !tenant.is_deserted());
        let capped: Vec<_> = tenants.filter(|(_, tenant)| tenant.caps.0.is_any()).collect();
        if capped.is_empty() {
            return Vec::new();
        }
        let mut parts = BTreeMap::<TenantId, Vec<Part>>::new();
        for gpu in 0..self.gpus.len().max(1) {
            let all = self.of_user(user, gpu);
            let wants: Vec<Wants> = all.iter().map(|tenant| tenant.wants_on(gpu)).collect();
            // A user's tenants have equal caps, except tenants whose groups differ.
            let mut by_caps: Option<(Caps, Vec<Part>)> = None;
            for (own, tenant) in all.iter().enumerate().filter(|(_, tenant)| tenant.caps.0.is_any()) {
                let caps = tenant.caps.0;
                let known = by_caps.take().filter(|(known, _)| *known == caps);
                let (_, of_all) = by_caps.insert(known.unwrap_or_else(|| (caps, Part::all(&wants, &caps))));
                parts.entry(tenant.id).or_default().extend(of_all.get(own).copied());
            }
        }
        for (name, tenant) in capped {
            let parts = parts.remove(&tenant.id).unwrap_or_default().into_iter();
            // A tenant's part is the same on all of its GPUs, so its smallest part counts. For a
            // tenant without GPUs, the largest counts.
            let part = if tenant.gpus.is_empty() { parts.reduce(Part::max) } else { parts.reduce(Part::min) };
            if let Some(part) = part.filter(|part| *part != tenant.part) {
                changed.push((name.clone(), part));
            }
        }
        let mut told = BTreeSet::new();
        for (name, part) in changed {
            if let Some(tenant) = self.tenants.get_mut(&name) {
                tenant.part = part;
            }
            told.insert(name);
        }
        for gpu in 0..self.gpus.len() {
            told.extend(self.bound(user, gpu));
        }
        told.iter().flat_map(|name| self.tell_arbiters(name)).collect()
    }

    /// Computes again the parts of all tenants of a tenant's user, once the earlier changes are in
    /// force. Memory that other tenants were told to give up may then go to this tenant.
    pub fn share_out_anew(&mut self, name: &str) -> Vec<oneshot::Receiver<()>> {
        let user = self.tenants.get(name).map(|tenant| tenant.user);
        user.map(|user| self.share_out(user)).unwrap_or_default()
    }

    /// Bounds the memory that each of a user's tenants may hold on a GPU. Returns the names of
    /// tenants whose bounds changed. At no moment can all these tenants together hold more than the
    /// cap. So memory of one tenant goes to another only after two steps: the first tenant is told
    /// its lower bound, and no longer holds the memory.
    fn bound(&mut self, user: u32, gpu: usize) -> Vec<String> {
        let there = |tenant: &Tenant| {
            tenant.user == user && tenant.is_bound() && !tenant.is_deserted() && tenant.gpus.contains(&gpu)
        };
        let mut here: Vec<(&String, &mut Tenant)> =
            self.tenants.iter_mut().filter(|(_, tenant)| there(tenant)).collect();
        here.sort_by_key(|(_, tenant)| (tenant.asked_ns, tenant.id));
        let claims: Vec<Claim> = here
            .iter()
            .map(|(_, tenant)| Claim {
                granted_bytes: tenant.granted().memory_bytes.value.unwrap_or(NO_LIMIT),
                reach_bytes: tenant.reach_bytes(gpu),
                cap_bytes: tenant.caps.0.memory_bytes,
            })
            .collect();
        let mut changed = Vec::new();
        for ((name, tenant), bytes) in here.into_iter().zip(bounds(&claims)) {
            let bound = tenant.bounds.entry(gpu).or_default();
            if std::mem::replace(&mut bound.bytes, bytes) != bytes {
                changed.push(name.clone());
            }
        }
        changed
    }

    /// Returns a user's tenants that are on a GPU or may come to it, in the order in which they
    /// asked.
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
