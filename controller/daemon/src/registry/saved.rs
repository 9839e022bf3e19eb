//! Converts the registry to the state that the daemon saves, and back.

use super::Registry;
use super::slots::FormerSlots;
use super::tenant::Tenant;
use crate::arbiter::{Baseline, JobUse, Restored, Snapshot};
use crate::identity::Key;
use crate::shm::{SharedPage, Writer};
use crate::state::{OnGpu, SavedGpu, SavedSession, SavedTenant, State};
use deepres_abi::wire::TENANT_NAME_BYTES;
use deepres_model::authority::Part;
use deepres_model::clock::monotonic_ns;
use deepres_model::identity::Found;
use deepres_model::process::ProcessKey;
use deepres_model::text::harmless;
use deepres_policy::TenantId;
use deepres_policy::signals::DriverSignals;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use tokio::sync::oneshot;

impl Registry {
    /// Asks every arbiter for its part of the state to save.
    pub fn snapshots(&self) -> Vec<oneshot::Receiver<Snapshot>> {
        self.gpus.iter().map(|managed| managed.arbiter.snapshot()).collect()
    }

    /// Returns the state to save, from the arbiters' snapshots and the registry. `boot` is the
    /// kernel's id of this run of the machine.
    pub fn saved(&self, boot: &str, snapshots: &[Snapshot]) -> State {
        let mut tenants: BTreeMap<TenantId, SavedTenant> =
            self.tenants.iter().map(|(name, tenant)| (tenant.id, tenant.saved(name))).collect();
        let mut meters: BTreeMap<(TenantId, ProcessKey), SavedSession> = BTreeMap::new();
        let mut gpus = Vec::new();
        for (managed, snapshot) in self.gpus.iter().zip(snapshots) {
            let uuid = || managed.gpu.uuid_text.clone();
            gpus.push(SavedGpu {
                uuid: uuid(),
                contended_ns: snapshot.contended_ns,
                idle_ns: snapshot.idle_ns,
                handoffs: snapshot.handoffs,
                handoff_total_ns: snapshot.handoff_total_ns,
            });
            for (tenant, account) in &snapshot.accounts {
                if let Some(tenant) = tenants.get_mut(tenant) {
                    tenant.accounts.push(OnGpu { uuid: uuid(), saved: *account });
                }
            }
            for (tenant, process, meter, at_ns) in &snapshot.meters {
                let session = meters.entry((*tenant, *process)).or_insert_with(|| SavedSession {
                    process: *process,
                    at_ns: *at_ns,
                    meters: Vec::new(),
                });
                session.meters.push(OnGpu { uuid: uuid(), saved: *meter });
            }
        }
        for ((tenant, _), session) in meters {
            if let Some(tenant) = tenants.get_mut(&tenant) {
                tenant.sessions.push(session);
            }
        }
        let saved_ns = snapshots.iter().map(|snapshot| snapshot.now_ns).min();
        State::new(boot, saved_ns.unwrap_or(self.started_ns), gpus, tenants.into_values().collect())
    }

    /// Restores the tenants that the previous daemon saved. The caller must do so before it admits
    /// any process.
    ///
    /// # Errors
    ///
    /// Returns the system's error for lack of memory or descriptors. Tenants restored before the
    /// error stay.
    pub fn restore(&mut self, state: State) -> io::Result<()> {
        let mut restored: Vec<Restored> = self.gpus.iter().map(|_| Restored::default()).collect();
        let index: BTreeMap<String, usize> =
            self.gpus.iter().enumerate().map(|(at, managed)| (managed.gpu.uuid_text.clone(), at)).collect();
        for gpu in &state.gpus {
            if let Some(restored) = index.get(&gpu.uuid).and_then(|at| restored.get_mut(*at)) {
                restored.counters = Snapshot {
                    contended_ns: gpu.contended_ns,
                    idle_ns: gpu.idle_ns,
                    handoffs: gpu.handoffs,
                    handoff_total_ns: gpu.handoff_total_ns,
                    ..Snapshot::default()
                };
            }
        }
        for saved in state.tenants {
            let name = harmless(&saved.name);
            if name.trim().is_empty() || name.len() >= TENANT_NAME_BYTES || self.tenants.contains_key(&name) {
                tracing::warn!(name, "the state names a tenant that there cannot be: it is left out");
                continue;
            }
            let ledger = Arc::new(SharedPage::create("deepres-ledger", Writer::Anyone)?);
            let caps = self.config.caps_of(saved.uid, &saved.groups);
            let mut tenant = Tenant {
                id: self.next_id(),
                key: saved.key.unwrap_or_else(|| {
                    let name = saved.name.clone();
                    Key::Name { user: saved.uid, name, place: None }
                }),
                found: saved.found.unwrap_or(Found::Name { within: None }),
                container: saved.container,
                user: saved.uid,
                part: Part::whole(&caps.0),
                caps,
                groups: saved.groups,
                asked: saved.asked,
                defaults: self.config.defaults.wish(),
                asked_ns: saved.asked_ns,
                job: Arc::new(JobUse::of(saved.job_used_ns)),
                set: saved.set,
                is_paused: saved.paused,
                set_ns: saved.set_ns,
                // The tenant's processes opt in again when they come back. If the tenant was
                // suspended, it has been brought back meanwhile.
                oversubscribe: None,
                stays_until_ns: 0,
                is_suspended: false,
                has_room: !saved.lacks_room,
                unpromised: BTreeSet::new(),
                ledger,
                by_nvml: BTreeMap::new(),
                driver: DriverSignals::default(),
                bounds: BTreeMap::new(),
                ceilings: BTreeMap::new(),
                used: BTreeMap::new(),
                gpus: Vec::new(),
                sessions: BTreeMap::new(),
                keepers: BTreeMap::new(),
                returning: BTreeSet::new(),
                former_slots: FormerSlots::default(),
                is_awaited: saved.is_here,
                left_ns: 0,
            };
            let seat = tenant.seat();
            for account in saved.accounts {
                let Some(at) = index.get(&account.uuid) else { continue };
                tenant.gpus.push(*at);
                restored[*at].accounts.push((seat.clone(), account.saved));
            }
            for session in saved.sessions.iter().filter(|session| session.process.is_alive()) {
                tenant.returning.insert(session.process);
                let at_ns = session.at_ns.unwrap_or(state.saved_ns).min(state.saved_ns);
                for meter in &session.meters {
                    let Some(at) = index.get(&meter.uuid) else { continue };
                    let baseline = Baseline { meter: meter.saved, at_ns };
                    restored[*at].baselines.push((tenant.id, session.process, baseline));
                }
            }
            if tenant.is_deserted() {
                tenant.left_ns = monotonic_ns();
            }
            self.tenants.insert(name, tenant);
        }
        for (managed, mut restored) in self.gpus.iter().zip(restored) {
            restored.saved_ns = state.saved_ns;
            managed.arbiter.restore(restored);
        }
        let users: BTreeSet<u32> = self.tenants.values().map(|tenant| tenant.user).collect();
        users.into_iter().for_each(|user| drop(self.share_out(user)));
        Ok(())
    }

    /// Returns the processes without a session that may come back.
    pub fn returning(&self) -> Vec<ProcessKey> {
        self.tenants.values().flat_map(|tenant| tenant.returning.iter().copied()).collect()
    }

    /// Ends the wait for tenants of the previous daemon's time. All of their processes had time to
    /// come back.
    pub fn stop_waiting(&mut self) {
        for gpu in &self.gpus {
            gpu.arbiter.stop_waiting();
        }
        let awaited = self
            .tenants
            .iter_mut()
            .filter_map(|(name, tenant)| std::mem::take(&mut tenant.is_awaited).then(|| name.clone()));
        let awaited: Vec<String> = awaited.collect();
        let users = awaited.iter().filter_map(|name| self.tenants.get(name)).map(|tenant| tenant.user);
        for user in users.collect::<BTreeSet<u32>>() {
            drop(self.share_out(user));
        }
        awaited.iter().for_each(|name| self.note_desertion(name));
    }

    /// Forgets dead processes that had a session before. Empties the slots that they could still
    /// write.
    pub fn bury_the_dead(&mut self) {
        for tenant in self.tenants.values_mut() {
            for process in tenant.returning.extract_if(.., |process| !process.is_alive()) {
                for gpu in &self.gpus {
                    gpu.arbiter.bury(tenant.id, process);
                }
            }
            tenant.clear_slots_of_the_dead(self.gpus.len());
            tenant.give_slots_back(self.gpus.len());
        }
    }
}

impl Tenant {
    fn saved(&self, name: &str) -> SavedTenant {
        SavedTenant {
            name: name.to_owned(),
            uid: self.user,
            key: Some(self.key.clone()),
            found: Some(self.found.clone()),
            container: self.container.clone(),
            groups: self.groups.clone(),
            asked: self.asked,
            asked_ns: self.asked_ns,
            job_used_ns: self.job.ns(),
            set: self.set,
            paused: self.is_paused,
            set_ns: self.set_ns,
            lacks_room: !self.has_room,
            is_here: !self.is_deserted(),
            ..SavedTenant::default()
        }
    }
}
