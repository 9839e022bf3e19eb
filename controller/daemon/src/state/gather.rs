//! Gathers the state that the daemon saves from the registry and the arbiters, and restores both.

use super::{OnGpu, SavedGpu, SavedPlacement, SavedSession, SavedTenant, State};
use crate::arbiter::{Baseline, JobUse, Restored, Snapshot};
use crate::gpus::Gpus;
use crate::identity::{Key, read};
use crate::memory::TenantMemory;
use crate::registry::Tenants;
use crate::tenant::{Members, Owner, Placed, Tenant, Terms};
use deepres_abi::wire::TENANT_NAME_BYTES;
use deepres_model::clock::monotonic_ns;
use deepres_model::config::Config;
use deepres_model::identity::Found;
use deepres_model::process::ProcessKey;
use deepres_model::text::harmless;
use deepres_policy::TenantId;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// Returns the state to save, from the arbiters' snapshots and the tenants. `boot` is the kernel's
/// id of this run of the machine.
pub fn state(boot: &str, gpus: &Gpus, tenants: &Tenants, snapshots: &[Snapshot]) -> State {
    let mut saved: BTreeMap<TenantId, SavedTenant> =
        tenants.iter().map(|(name, tenant)| (tenant.id, saved(name, tenant, gpus))).collect();
    let mut meters: BTreeMap<(TenantId, ProcessKey), SavedSession> = BTreeMap::new();
    let mut saved_gpus = Vec::new();
    for (gpu, snapshot) in gpus.iter().zip(snapshots) {
        let uuid = || gpu.uuid_text.clone();
        saved_gpus.push(SavedGpu { uuid: uuid(), counters: snapshot.counters });
        for (tenant, account) in &snapshot.accounts {
            if let Some(tenant) = saved.get_mut(tenant) {
                tenant.accounts.push(OnGpu { uuid: uuid(), saved: *account });
            }
        }
        for (tenant, (pid, start_ticks), meter, at_ns) in &snapshot.meters {
            let process = ProcessKey { pid: *pid, start_ticks: *start_ticks };
            let session = meters.entry((*tenant, process)).or_insert_with(|| SavedSession {
                process,
                at_ns: *at_ns,
                meters: Vec::new(),
            });
            session.meters.push(OnGpu { uuid: uuid(), saved: *meter });
        }
    }
    for ((tenant, _), session) in meters {
        if let Some(tenant) = saved.get_mut(&tenant) {
            tenant.sessions.push(session);
        }
    }
    let saved_ns = snapshots.iter().map(|snapshot| snapshot.now_ns).min();
    State::new(boot, saved_ns.unwrap_or_else(monotonic_ns), saved_gpus, saved.into_values().collect())
}

fn saved(name: &str, tenant: &Tenant, gpus: &Gpus) -> SavedTenant {
    let Owner { key, found, container, place, user, groups } = tenant.owner.clone();
    SavedTenant {
        name: name.to_owned(),
        uid: user,
        key: Some(key),
        found: Some(found),
        container,
        place,
        groups,
        job_used_ns: tenant.job.ns(),
        placed: tenant.placed.as_ref().map(|placed| SavedPlacement {
            gpus: gpus.uuids_of(placed.gpus).map(str::to_owned).collect(),
            why: placed.why.clone(),
        }),
        is_here: !tenant.is_deserted(),
        members: tenant.members.processes(),
        accounts: tenant.elsewhere.clone(),
        ..tenant.terms.saved()
    }
}

/// Restores the tenants that the previous daemon saved, and their accounts in the arbiters.
/// `next_id` is the number of the next tenant.
///
/// # Errors
///
/// Returns the system's error for lack of memory or descriptors. The tenants restored before the
/// error stay.
pub fn restore(
    state: &State,
    config: &Config,
    gpus: &Gpus,
    tenants: &mut Tenants,
    next_id: &mut u64,
) -> io::Result<()> {
    let mut restored: Vec<Restored> = gpus.iter().map(|_| Restored::default()).collect();
    for gpu in &state.gpus {
        if let Some(restored) = gpus.number_named(&gpu.uuid).and_then(|at| restored.get_mut(at)) {
            restored.counters = gpu.counters;
        }
    }
    for saved in &state.tenants {
        let name = harmless(&saved.name);
        if name.trim().is_empty() || name.len() >= TENANT_NAME_BYTES || tenants.get(&name).is_some() {
            tracing::warn!(
                name,
                "the state has a tenant with an impossible name: the daemon leaves the tenant out"
            );
            continue;
        }
        let mut tenant = tenant(*next_id, saved, config)?;
        *next_id += 1;
        if let Some(placed) = saved.placed.as_ref().filter(|_| tenant.placed.is_none()) {
            let numbers: Option<_> = placed.gpus.iter().map(|uuid| gpus.number_named(uuid)).collect();
            tenant.placed = numbers.map(|gpus| Placed { gpus, why: placed.why.clone() });
        }
        // The tenant's processes opt in to oversubscription again when they come back. If the
        // tenant was suspended, the previous daemon's mover has brought it back meanwhile.
        let seat = tenant.seat();
        for account in &saved.accounts {
            let Some(at) = gpus.number_named(&account.uuid) else {
                tenant.elsewhere.push(account.clone());
                continue;
            };
            tenant.come_to(at);
            restored[at].accounts.push((seat.clone(), account.saved));
        }
        for session in saved.sessions.iter().filter(|session| session.process.is_alive()) {
            let at_ns = session.at_ns.unwrap_or(state.saved_ns).min(state.saved_ns);
            for meter in &session.meters {
                let Some(at) = gpus.number_named(&meter.uuid) else { continue };
                let baseline = Baseline { meter: meter.saved, at_ns };
                restored[at].baselines.push((tenant.id, session.process, baseline));
            }
        }
        tenants.add(name, tenant);
    }
    for (arbiter, mut restored) in gpus.arbiters().zip(restored) {
        restored.saved_ns = state.saved_ns;
        arbiter.restore(restored);
    }
    Ok(())
}

/// Returns a saved tenant without its accounts.
fn tenant(id: TenantId, saved: &SavedTenant, config: &Config) -> io::Result<Tenant> {
    // An older daemon saved no path. A daemon in another cgroup namespace saw another path.
    let place_now = saved.sessions.iter().find_map(|session| {
        let place = read::place(session.process.pid)?;
        let is_its = saved.container.is_some() && place.container() == saved.container.as_ref();
        (is_its && session.process.is_alive()).then_some(place.path)
    });
    let owner = Owner {
        key: saved.key.clone().unwrap_or_else(|| {
            let name = saved.name.clone();
            Key::Name { user: saved.uid, name, place: None }
        }),
        found: saved.found.clone().unwrap_or(Found::Name { within: None }),
        container: saved.container.clone(),
        place: place_now.or_else(|| saved.place.clone()),
        user: saved.uid,
        groups: saved.groups.clone(),
    };
    let caps = config.caps_of(saved.uid, &saved.groups);
    let terms = Terms::restored(saved, config.defaults.wish(), caps);
    let mut tenant = Tenant::new(id, owner, terms, TenantMemory::new()?);
    if let Some(allotment) = &saved.allotment {
        tenant.allot(allotment.clone());
    }
    let processes = saved.sessions.iter().map(|session| session.process);
    let returning = processes.filter(|process| process.is_alive()).collect();
    tenant.members = Members::restored(returning, saved.is_here, saved.members.clone());
    tenant.job = Arc::new(JobUse::of(saved.job_used_ns));
    Ok(tenant)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbiter::SavedAccount;

    #[test]
    fn the_place_of_a_tenant_is_in_the_next_state_and_an_older_state_has_none() {
        let place_after = |saved: SavedTenant| {
            let before = State::new("boot", 1, Vec::new(), vec![saved]);
            let (gpus, mut tenants) = (Gpus::default(), Tenants::default());
            restore(&before, &Config::default(), &gpus, &mut tenants, &mut 0).unwrap();
            state("boot", &gpus, &tenants, &[]).tenants.remove(0).place
        };
        let place = Some("/docker/4711".to_owned());
        let saved = SavedTenant { name: "train".to_owned(), place: place.clone(), ..Default::default() };
        assert_eq!(place_after(saved), place);
        let older: SavedTenant = serde_json::from_str(r#"{"name":"train"}"#).unwrap();
        assert_eq!(place_after(older), None);
    }

    #[test]
    fn the_accounts_on_a_gpu_that_is_lost_now_are_in_the_next_state() {
        let account = SavedAccount { lag_ns: -7, ..SavedAccount::default() };
        let accounts = vec![OnGpu { uuid: "GPU-1".to_owned(), saved: account }];
        let tenant =
            SavedTenant { name: "train".to_owned(), accounts: accounts.clone(), ..Default::default() };
        let before = State::new("boot", 1, Vec::new(), vec![tenant]);
        let (gpus, mut tenants) = (Gpus::default(), Tenants::default());
        restore(&before, &Config::default(), &gpus, &mut tenants, &mut 0).unwrap();
        assert!(!tenants.get("train").unwrap().has_no_accounts());
        assert_eq!(state("boot", &gpus, &tenants, &[]).tenants[0].accounts, accounts);
    }
}
