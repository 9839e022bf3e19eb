//! The record of the tenants on the GPUs, with their memory. Only the methods here change the
//! record, and the choice of GPUs ([`Placer`]). The methods that change what an arbiter knows
//! return the orders to the arbiters, or send them. Other methods, for example `begin_anew`, `join`
//! and `keep`, prepare a tenant for sessions. The begin of a session tells the arbiters.

use super::placing::Placer;
use super::waiting::Waiting;
use super::{Guest, Order, Refused, Tenants};
use crate::arbiter::{Bell, SessionId, SessionSeat};
use crate::gpus::Gpus;
use crate::identity::{Key, read};
use crate::memory::{Held, Memory, caps};
use crate::nvml::OnGpu;
use crate::residency::{is_any_oversubscribed, let_wait};
use crate::state::{State, gather};
use crate::tenant::{Ended, KeeperId, Placed, Profiled, Session, Tenant, Terms};
use deepres_abi::oversubscribe::Oversubscribe;
use deepres_abi::wire::Hello;
use deepres_model::authority::{Granted, Wish};
use deepres_model::clock::monotonic_ns;
use deepres_model::config::Config;
use deepres_model::probes::MeteringStatus;
use deepres_model::process::ProcessKey;
use deepres_policy::signals::DriverSums;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The record of the tenants on the GPUs, and the configuration that binds them.
#[derive(Debug)]
pub struct Tenancy {
    config: Config,
    gpus: Gpus,
    tenants: Tenants,
    memory: Memory,
    /// The number of the next tenant, session or keeper.
    next_id: u64,
}

impl Tenancy {
    /// Returns the record of these GPUs without tenants.
    pub(super) fn new(config: Config, gpus: Gpus) -> Self {
        Self { config, gpus, tenants: Tenants::default(), memory: Memory::default(), next_id: 1 }
    }

    /// Returns the daemon's configuration.
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the GPUs that the daemon manages, with their arbiters.
    pub fn gpus(&self) -> &Gpus {
        &self.gpus
    }

    /// Returns all tenants, with and without processes.
    pub fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    /// Returns the numbers of GPUs, tenants and sessions, as one line. The numbers leave out
    /// deserted tenants.
    pub fn summary(&self) -> String {
        let living = || self.tenants.living().map(|(_, tenant)| tenant.members.sessions().len());
        let (sessions, tenants): (usize, usize) = (living().sum(), living().count());
        format!("{sessions} processes of {tenants} tenants on {} GPUs", self.gpus.count())
    }

    /// Returns the processes without a session that can come back.
    pub fn returning(&self) -> Vec<ProcessKey> {
        self.tenants.iter().flat_map(|(_, tenant)| tenant.members.returning().iter().copied()).collect()
    }

    /// Returns the reason for which the daemon cannot guarantee the memory of `wish` to the tenant
    /// of the key `own`; `None` if the daemon can.
    pub(super) fn lacks_memory(&self, wish: &Wish, own: &Key) -> Option<Refused> {
        self.memory.lacks(&self.tenants, &self.gpus, wish, own)
    }

    /// Returns whether the guaranteed share and memory of `wish` fit beside the guarantees of other
    /// tenants.
    fn has_room(&self, wish: &Wish, own: &Key) -> bool {
        self.tenants.have_room(self.gpus.count(), wish, own) && self.lacks_memory(wish, own).is_none()
    }

    /// Returns the choice of GPUs for jobs, beside these waiting jobs.
    pub(super) fn placer<'a>(&'a mut self, waiting: &'a mut Waiting) -> Placer<'a> {
        Placer::new(&self.gpus, &self.memory, &mut self.tenants, waiting)
    }

    /// Ends all arbiters. Each arbiter opens its gates, or closes them if the fail mode is closed.
    pub fn open_gates(&mut self) {
        self.gpus = Gpus::default();
    }

    /// Changes a tenant, and tells every arbiter that knows the tenant. Returns the orders to the
    /// arbiters.
    pub fn change(&mut self, name: &str, change: impl FnOnce(&mut Tenant)) -> Vec<Order> {
        if let Some(tenant) = self.tenants.get_mut(name) {
            change(tenant);
        }
        self.tell(name)
    }

    /// Tells every arbiter that knows a tenant the tenant's present wishes, limits and pauses.
    /// Returns the orders to the arbiters.
    fn tell(&self, name: &str) -> Vec<Order> {
        let Some(tenant) = self.tenants.get(name) else { return Vec::new() };
        tenant.gpus().iter().filter_map(|gpu| self.gpus.tell(*gpu, tenant)).collect()
    }

    /// Shares out a user's caps among the user's tenants again. Returns the orders to the arbiters.
    fn share_out(&mut self, user: u32) -> Vec<Order> {
        let changed = caps::share_out(&mut self.tenants, self.gpus.count(), user);
        changed.iter().flat_map(|name| self.tell(name)).collect()
    }

    /// Shares out the caps of a tenant's user again, when earlier changes are in force. If other
    /// tenants of the user have given up memory, this tenant may get this memory.
    pub fn share_out_anew(&mut self, name: &str) -> Vec<Order> {
        let user = self.tenants.get(name).map(|tenant| tenant.owner.user);
        user.map(|user| self.share_out(user)).unwrap_or_default()
    }

    /// Computes the ceilings of all tenants again. Returns the orders to the arbiters.
    fn renew_ceilings(&mut self) -> Vec<Order> {
        let window_ns = self.config.memory_follow_ns();
        let changed = self.memory.renew_ceilings(&mut self.tenants, &self.gpus, monotonic_ns(), window_ns);
        let tell = |(name, gpu): (String, usize)| self.gpus.tell(gpu, self.tenants.get(&name)?);
        changed.into_iter().filter_map(tell).collect()
    }

    /// Compares NVML's figures (`found`) with the ledgers' figures from just before (`before`) and
    /// from now. Then shares out memory again, because its use has changed. The function does not
    /// wait for the arbiters.
    pub fn reconcile(&mut self, found: &BTreeMap<usize, OnGpu>, before: &Held) {
        self.memory.reconcile(&mut self.tenants, found, before);
        for user in caps::users_with_memory_caps(&self.tenants) {
            drop(self.share_out(user));
        }
        drop(self.renew_ceilings());
    }

    /// Adds the calls of processes to the driver, counted since the start of each process, to the
    /// processes' tenants. A process that the daemon meters from outside counts for its tenant too.
    pub fn observe_driver(
        &mut self,
        now_ns: u64,
        activity: &BTreeMap<u32, DriverSums>,
        metering: &MeteringStatus,
    ) {
        for (name, tenant) in self.tenants.iter_mut() {
            let metered = metering.living().filter(|process| process.tenant.as_deref() == Some(name));
            let sessions = tenant.members.sessions().values().map(|session| session.pid);
            let own: BTreeSet<u32> = sessions.chain(metered.map(|process| process.pid)).collect();
            let processes = own.into_iter().filter_map(|pid| Some((pid, *activity.get(&pid)?)));
            tenant.driver.observe(now_ns, processes, |pid| activity.contains_key(&pid));
        }
    }

    /// Returns the number for a new tenant, session or keeper.
    pub(super) fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Adds a tenant. Its name must be free.
    pub(super) fn add(&mut self, name: String, tenant: Tenant) {
        self.tenants.add(name, tenant);
    }

    /// Returns the terms of a tenant without living members for the new job of a process that asks
    /// for `terms`. A tenant must not lose its limits by ending and beginning anew, so it usually
    /// keeps its administrator's settings, a pause included. The tenant loses the settings if the
    /// process belongs to another user, or if there is no room for the guarantees.
    pub(super) fn terms_anew(&self, tenant: &Tenant, guest: &Guest, mut terms: Terms) -> Terms {
        let wish = tenant.terms.settings_over(&terms);
        if tenant.owner.user == guest.facts.owner && self.has_room(&wish, &tenant.owner.key) {
            terms.keep_settings_of(&tenant.terms);
        }
        terms
    }

    /// Gives a tenant without living members to the new job of a process that asks for `terms`.
    pub(super) fn begin_anew(
        &mut self,
        name: &str,
        guest: &Guest,
        terms: Terms,
        oversubscribe: Option<Oversubscribe>,
    ) {
        let Some(tenant) = self.tenants.get(name) else { return };
        let terms = self.terms_anew(tenant, guest, terms);
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        tenant.owner.user = guest.facts.owner;
        tenant.owner.groups.clone_from(&guest.groups);
        tenant.owner.container = guest.facts.container().cloned();
        tenant.owner.place = guest.facts.path().map(str::to_owned);
        tenant.terms = terms;
        tenant.residence.set_oversubscribe(oversubscribe);
        tenant.memory.promise_everywhere();
        tenant.job = Arc::default();
        tenant.placed = Placed::by_cluster(&tenant.terms);
        tenant.profiled = None;
    }

    /// Adds the wishes of a later process to a tenant, as far as the tenant lacks them.
    pub(super) fn join(
        &mut self,
        name: &str,
        guest: &Guest,
        asked: Wish,
        oversubscribe: Option<Oversubscribe>,
    ) {
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        tenant.owner.learn_place(&guest.facts);
        tenant.residence.join_oversubscribe(oversubscribe);
        if tenant.terms.ask_more(asked) {
            // The class and the share can come from different processes. Together they can be a
            // guarantee for which neither process asked.
            let (wish, key) = (tenant.terms.wish(), tenant.owner.key.clone());
            let has_room = self.has_room(&wish, &key);
            if let Some(tenant) = self.tenants.get_mut(name) {
                tenant.terms.set_has_room(has_room);
            }
        }
    }

    /// Adds a keeper to a tenant. Returns the keeper's number and the tenant's grant; `None` if
    /// there is no such tenant.
    pub(super) fn keep(&mut self, name: &str, guest: &Guest, hello: &Hello) -> Option<(KeeperId, Granted)> {
        let id = self.next_id();
        let tenant = self.tenants.get_mut(name)?;
        tenant.members.keep(id, guest.process());
        let profiled = Profiled::of(&hello.profile, tenant.terms.asked().slo_ns);
        tenant.profiled = profiled.or(tenant.profiled.take());
        Some((id, tenant.terms.granted()))
    }

    /// Removes a keeper of a tenant.
    pub(super) fn stop_keeping(&mut self, name: &str, id: KeeperId) {
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        tenant.members.stop_keeping(id);
        let user = tenant.owner.user;
        self.note_desertion(name);
        drop(self.share_out(user));
    }

    /// Begins a session of a tenant, with a bell for each of the session's GPUs. If the session
    /// `continues`, its meter continues the counts of earlier sessions of its process. Returns the
    /// orders to the arbiters; `None` if there is no such tenant.
    pub(super) fn begin(
        &mut self,
        name: &str,
        id: SessionId,
        session: Session,
        bells: &[Bell],
        continues: bool,
    ) -> Option<Vec<Order>> {
        self.memory.promise_on(&mut self.tenants, &self.gpus, name, &session.gpus);
        let tenant = self.tenants.get_mut(name)?;
        tenant.memory.open_slot(session.slot, &session.gpus);
        // The wishes of this process are also in force on the other GPUs of the tenant.
        let others = tenant.gpus().iter().filter(|gpu| !session.gpus.contains(gpu));
        let mut ready: Vec<Order> = others.filter_map(|gpu| self.gpus.tell(*gpu, tenant)).collect();
        for (gpu, bell) in session.gpus.iter().zip(bells) {
            tenant.come_to(*gpu);
            if !tenant.members.are_on(*gpu) {
                tenant.memory.begin_on(*gpu);
            }
            let entering = SessionSeat {
                id,
                grant: Arc::clone(&session.grant),
                meter: Arc::clone(&session.meter),
                mps: Arc::clone(&session.mps),
                ledger_slot: session.slot,
                bell: bell.clone(),
                process: session.process,
                user: session.source.number(),
                continues,
            };
            let seat = tenant.seat_on(*gpu);
            ready.extend(self.gpus.arbiter(*gpu).map(|arbiter| arbiter.enter(seat, entering)));
        }
        tenant.members.begin(id, session);
        ready.extend(self.renew_ceilings());
        if let Some(tenant) = self.tenants.get(name).filter(|_| is_any_oversubscribed(&self.tenants)) {
            let_wait(tenant);
        }
        Some(ready)
    }

    /// Ends a session of a tenant. The session's memory and leases become free. Returns the session
    /// and the memory that it held, bytes; `None` if there is no such session.
    pub(super) fn end(&mut self, name: &str, id: SessionId) -> Option<(Session, u64)> {
        let user = self.tenants.get(name)?.owner.user;
        // The daemon saves each returning process, and checks it until the process dies. The number
        // is limited, because one process could connect under a thousand names.
        let of_user = self.tenants.iter().filter(|(_, tenant)| tenant.owner.user == user);
        let returning: usize = of_user.map(|(_, tenant)| tenant.members.returning().len()).sum();
        let tenant = self.tenants.get_mut(name)?;
        let Ended { session, may_return } =
            tenant.members.end(id, returning < self.config.max_connections)?;
        let arbiters = session.gpus.iter().filter_map(|gpu| self.gpus.arbiter(*gpu));
        arbiters.for_each(|arbiter| arbiter.leave(tenant.id, id, may_return));
        let freed_bytes = tenant.memory.clear_slot(session.slot, self.gpus.count());
        tenant.give_slots_back(self.gpus.count());
        self.note_desertion(name);
        drop(self.share_out(user));
        Some((session, freed_bytes))
    }

    /// Changes a tenant's terms. If `change` returns true, guarantees the tenant its memory anew,
    /// where there is room. With `renews`, computes all ceilings again. Returns the orders to the
    /// arbiters.
    pub(super) fn set_terms(
        &mut self,
        name: &str,
        renews: bool,
        change: impl FnOnce(&mut Terms) -> bool,
    ) -> Vec<Order> {
        let Some(tenant) = self.tenants.get_mut(name) else { return Vec::new() };
        let (promises_anew, user) = (change(&mut tenant.terms), tenant.owner.user);
        if promises_anew {
            self.memory.promise_more(&mut self.tenants, &self.gpus, name);
        }
        drop(self.share_out(user));
        let renewed = if renews { self.renew_ceilings() } else { Vec::new() };
        self.tell(name).into_iter().chain(renewed).collect()
    }

    /// Replaces the configuration. The new caps and defaults hold for all tenants. Returns the
    /// orders to the arbiters.
    pub fn configure(&mut self, config: Config) -> Vec<Order> {
        self.config = config;
        let defaults = self.config.defaults.wish();
        let (mut users, mut raised) = (BTreeSet::new(), Vec::new());
        for (name, tenant) in self.tenants.iter_mut() {
            let before_bytes = tenant.terms.promised_bytes();
            let process = tenant.members.sessions().values().next().map(|session| session.pid);
            if let Some(groups) = process.and_then(read::groups) {
                let has_caps = |group: &u32| self.config.groups.contains_key(&group.to_string());
                tenant.owner.groups = groups.into_iter().filter(has_caps).collect();
            }
            let caps = self.config.caps_of(tenant.owner.user, &tenant.owner.groups);
            tenant.terms.set_rules(defaults, caps);
            users.insert(tenant.owner.user);
            if tenant.terms.promised_bytes() > before_bytes {
                raised.push(name.to_owned());
            }
        }
        for name in raised {
            self.memory.promise_more(&mut self.tenants, &self.gpus, &name);
        }
        users.into_iter().for_each(|user| drop(self.share_out(user)));
        let renewed = self.renew_ceilings();
        self.tenants.iter().flat_map(|(name, _)| self.tell(name)).chain(renewed).collect()
    }

    /// If a tenant is deserted, records the time. If the tenant was on no GPU, it has no account to
    /// remember, and the record forgets it.
    fn note_desertion(&mut self, name: &str) {
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        if !tenant.members.note_desertion() {
            return;
        }
        let forgotten = if tenant.has_no_accounts() { Some(name.to_owned()) } else { None };
        if let Some(name) = forgotten.or_else(|| self.tenants.too_many_deserted()) {
            self.forget(&name);
        }
    }

    /// Forgets the tenants that have been deserted for at least `linger`.
    pub fn forget_deserted(&mut self, linger: Duration) {
        self.tenants.deserted_for(linger).iter().for_each(|name| self.forget(name));
    }

    /// Forgets a tenant and its accounts.
    pub(super) fn forget(&mut self, name: &str) {
        let Some(tenant) = self.tenants.remove(name) else { return };
        let arbiters = tenant.gpus().iter().filter_map(|gpu| self.gpus.arbiter(*gpu));
        arbiters.for_each(|arbiter| arbiter.forget(tenant.id));
    }

    /// Restores the tenants that the previous daemon saved, as [`gather::restore`] does.
    pub(super) fn restore(&mut self, state: &State) -> io::Result<()> {
        gather::restore(state, &self.config, &self.gpus, &mut self.tenants, &mut self.next_id)?;
        let users: BTreeSet<u32> = self.tenants.iter().map(|(_, tenant)| tenant.owner.user).collect();
        users.into_iter().for_each(|user| drop(self.share_out(user)));
        Ok(())
    }

    /// Ends the wait for tenants of the previous daemon, because all of their processes had time to
    /// come back.
    pub fn stop_waiting(&mut self) {
        self.gpus.arbiters().for_each(|arbiter| arbiter.stop_waiting());
        let mut awaited = Vec::new();
        for (name, tenant) in self.tenants.iter_mut() {
            if tenant.members.stop_waiting() {
                awaited.push((name.to_owned(), tenant.owner.user));
            }
        }
        for user in awaited.iter().map(|(_, user)| *user).collect::<BTreeSet<u32>>() {
            drop(self.share_out(user));
        }
        awaited.iter().for_each(|(name, _)| self.note_desertion(name));
    }

    /// Forgets dead processes that had a session before. Empties the slots that these processes
    /// could still write.
    pub fn bury_the_dead(&mut self) {
        let gpus = self.gpus.count();
        for (_, tenant) in self.tenants.iter_mut() {
            let (dead, slots) = tenant.members.bury_the_dead();
            for process in dead {
                self.gpus.arbiters().for_each(|arbiter| arbiter.bury(tenant.id, process));
            }
            for slot in slots {
                tenant.memory.clear_slot(slot, gpus);
            }
            tenant.give_slots_back(gpus);
        }
    }
}
