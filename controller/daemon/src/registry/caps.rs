//! Caps are users': shares them out among each user's tenants, as these come and go.

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
        // In force as soon as the arbiters get to it: nobody waits for that.
        users.collect::<BTreeSet<u32>>().into_iter().for_each(|user| drop(self.share_out(user)));
    }

    /// Works out anew what each of a user's tenants may have, and has it in force.
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
            // All have the same caps, but for those whose groups are others.
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
            // The same holds on all of its GPUs, so what the fullest one allows; without any yet, what the emptiest does.
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

    /// The same for the user of a tenant, once what was worked out before is in force: what others were told to hold no more may be its.
    pub fn share_out_anew(&mut self, name: &str) -> Vec<oneshot::Receiver<()>> {
        let user = self.tenants.get(name).map(|tenant| tenant.user);
        user.map(|user| self.share_out(user)).unwrap_or_default()
    }

    /// Bounds what each of a user's tenants may hold on a GPU, so that at no moment all together can hold more than the cap: nobody is given what another was given, until
    /// that was told otherwise and does not hold it. Returns whose bounds changed.
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
