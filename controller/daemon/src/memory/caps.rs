//! Shares out each user's caps among the user's tenants.

use crate::identity::Key;
use crate::registry::Tenants;
use crate::tenant::{Tenant, Terms};
use deepres_abi::grant::NO_LIMIT;
use deepres_model::authority::{Claim, Part, Wants, bounds};
use deepres_model::config::Caps;
use deepres_policy::TenantId;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the part of a user's caps that a new tenant with these terms will get, on a host with
/// `gpus` GPUs. The result is the largest part on any GPU, because the daemon does not know yet
/// which GPUs the tenant will use.
pub fn foreseen_part(tenants: &Tenants, gpus: usize, user: u32, own: &Key, terms: &Terms) -> Part {
    let caps = terms.caps();
    if !terms.share_caps() {
        return Part::whole(caps);
    }
    let on = |gpu: usize| {
        let others = of_user(tenants, user, gpu).into_iter().filter(|tenant| tenant.owner.key != *own);
        let mut all: Vec<Wants> = others.map(|tenant| tenant.wants_on(gpu)).collect();
        all.push(terms.wants(0));
        Part::of(all.len() - 1, &all, caps)
    };
    (0..gpus.max(1)).map(on).reduce(Part::max).unwrap_or_else(|| Part::whole(caps))
}

/// Returns the users with a cap on memory. The parts of their tenants depend on the memory that the
/// tenants hold.
pub fn users_with_memory_caps(tenants: &Tenants) -> BTreeSet<u32> {
    let is_capped =
        |tenant: &&Tenant| tenant.terms.share_caps() && tenant.terms.caps().memory_bytes != NO_LIMIT;
    tenants.living().map(|(_, tenant)| tenant).filter(is_capped).map(|tenant| tenant.owner.user).collect()
}

/// Computes the part of each of a user's tenants again, on a host with `gpus` GPUs. Returns the
/// names of tenants whose limits changed.
pub fn share_out(tenants: &mut Tenants, gpus: usize, user: u32) -> BTreeSet<String> {
    let mut changed = BTreeSet::new();
    let of_tenants = tenants.living().map(|(_, tenant)| tenant).filter(|tenant| tenant.owner.user == user);
    if !of_tenants.into_iter().any(|tenant| tenant.terms.share_caps()) {
        return changed;
    }
    let mut parts = parts(tenants, gpus, user);
    for (name, tenant) in tenants.iter_mut() {
        let parts = parts.remove(&tenant.id).unwrap_or_default().into_iter();
        // A tenant has the same part on all of its GPUs, so its smallest part counts. For a tenant
        // without GPUs, the largest part counts.
        let part = if tenant.gpus().is_empty() { parts.reduce(Part::max) } else { parts.reduce(Part::min) };
        if part.is_some_and(|part| tenant.terms.set_part(part)) {
            changed.insert(name.to_owned());
        }
    }
    (0..gpus).for_each(|gpu| changed.extend(bound(tenants, user, gpu)));
    changed
}

/// Returns, for each of a user's tenants with caps, its part on each GPU that it uses or can use.
fn parts(tenants: &Tenants, gpus: usize, user: u32) -> BTreeMap<TenantId, Vec<Part>> {
    let mut parts = BTreeMap::<TenantId, Vec<Part>>::new();
    for gpu in 0..gpus.max(1) {
        let all = of_user(tenants, user, gpu);
        let wants: Vec<Wants> = all.iter().map(|tenant| tenant.wants_on(gpu)).collect();
        // The tenants of a user have equal caps, except tenants with different groups.
        let mut by_caps: Option<(Caps, Vec<Part>)> = None;
        for (own, tenant) in all.iter().enumerate().filter(|(_, tenant)| tenant.terms.share_caps()) {
            let caps = *tenant.terms.caps();
            let known = by_caps.take().filter(|(known, _)| *known == caps);
            let (_, of_all) = by_caps.insert(known.unwrap_or_else(|| (caps, Part::all(&wants, &caps))));
            parts.entry(tenant.id).or_default().extend(of_all.get(own).copied());
        }
    }
    parts
}

/// Bounds the memory that each of a user's tenants may hold on a GPU. Returns the names of tenants
/// whose bounds changed.
///
/// All tenants of a user together never hold more memory than the cap. To move memory from one
/// tenant to another, the daemon first tells the first tenant a lower bound. When the first tenant
/// no longer holds the memory, the daemon raises the bound of the other tenant.
fn bound(tenants: &mut Tenants, user: u32, gpu: usize) -> Vec<String> {
    let there = |tenant: &Tenant| {
        tenant.owner.user == user && tenant.terms.is_bound() && !tenant.is_deserted() && tenant.is_on(gpu)
    };
    let mut here: Vec<(&str, &mut Tenant)> = tenants.iter_mut().filter(|(_, tenant)| there(tenant)).collect();
    here.sort_by_key(|(_, tenant)| order(tenant));
    let claims: Vec<Claim> = here
        .iter()
        .map(|(_, tenant)| Claim {
            granted_bytes: tenant.terms.limit_bytes(),
            reach_bytes: tenant.memory.reach_bytes(gpu, tenant.terms.is_bound()),
            cap_bytes: tenant.terms.caps().memory_bytes,
        })
        .collect();
    let bounded = here.into_iter().zip(bounds(&claims));
    bounded
        .filter_map(|((name, tenant), bytes)| tenant.memory.set_bound(gpu, bytes).then(|| name.to_owned()))
        .collect()
}

/// Returns a user's tenants that are on a GPU or can come to it, in the order in which they asked.
fn of_user(tenants: &Tenants, user: u32, gpu: usize) -> Vec<&Tenant> {
    let living = tenants.living().map(|(_, tenant)| tenant);
    let mut there: Vec<&Tenant> =
        living.filter(|tenant| tenant.owner.user == user && tenant.may_be_on(gpu)).collect();
    there.sort_by_key(|tenant| order(tenant));
    there
}

/// Returns a tenant's place in the order in which tenants asked.
fn order(tenant: &Tenant) -> (u64, TenantId) {
    (tenant.terms.asked_ns(), tenant.id)
}
