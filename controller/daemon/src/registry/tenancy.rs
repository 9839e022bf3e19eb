//! Finds or makes the tenant of a process, and settles the tenant's wishes.

use super::slots::FormerSlots;
use super::tenant::{Tenant, wants};
use super::{Guest, Refused, Registry, no_room};
use crate::identity::{self, Facts, Identity, Key, Names, free_name};
use crate::shm::{SharedPage, Writer};
use deepres_abi::PPM;
use deepres_abi::oversubscribe::Oversubscribe;
use deepres_abi::wire::{self, Hello, RefusalKind, Role};
use deepres_model::authority::{self, Wish};
use deepres_model::clock::monotonic_ns;
use deepres_model::process::ProcessKey;
use deepres_model::quantity::Bytes;
use deepres_model::text::is_harmful;
use deepres_model::wish::Sentence;
use deepres_policy::class::Class;
use deepres_policy::signals::DriverSignals;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl Registry {
    /// Returns the tenant that a process belongs to, if the registry has it.
    pub(super) fn find_tenant(&self, guest: &Guest, hello: &Hello) -> Result<Option<&Tenant>, Refused> {
        let key = self.identify(claim(hello)?, &guest.facts).key;
        Ok(self.tenants.values().find(|tenant| tenant.key == key))
    }

    /// Finds or makes the tenant that a process belongs to, and returns its name. The first process
    /// decides the tenant's wishes. A later `deepres run` with other wishes is refused. A later
    /// process of the job, or one that was admitted before, only adds wishes that the tenant lacks.
    pub(super) fn tenant_of(&mut self, guest: &Guest, hello: &Hello, role: Role) -> Result<String, Refused> {
        let identity = self.identify(claim(hello)?, &guest.facts);
        let asked = wish(hello)?;
        let oversubscribe = Oversubscribe::from_number(hello.oversubscribe);
        let is_back = hello.sessions_before > 0;
        let can_be_told = role == Role::Keeper && !is_back;
        let request = |reason| Err(Refused::new(RefusalKind::Request, reason));
        let known = self.tenants.iter().find(|(_, tenant)| tenant.key == identity.key);
        let known = known.map(|(name, tenant)| (name.clone(), tenant.is_deserted()));
        let caps = self.config.caps_of(guest.facts.owner, &guest.groups);
        let defaults = self.config.defaults.wish();
        let has_room = self.has_room(&asked.or(defaults), &identity.key);
        let wanted = wants(&asked.or(defaults), &Wish::default(), 0);
        let part = match self.tenants.values().find(|tenant| tenant.key == identity.key) {
            Some(tenant) if !tenant.is_deserted() => tenant.part,
            _ => self.foreseen_part(guest.facts.owner, &identity.key, wanted, &caps.0),
        };
        if can_be_told && let Some(reason) = authority::refuse(&asked, caps, &part, has_room) {
            return request(reason);
        }
        if can_be_told && let Some(refused) = self.lacks_memory(&asked.or(defaults), &identity.key) {
            return Err(refused);
        }
        // A process that runs already is not turned away. Without room, its tenant gets no
        // guarantee.
        let has_room = has_room && self.lacks_memory(&asked.or(defaults), &identity.key).is_none();
        let Some((name, is_deserted)) = known else {
            // A process in a container cannot know the names outside its container, nor the other
            // way round. Such a process is not refused for a name in use: its tenant's name gets a
            // number.
            let is_inside = |key: &Key| matches!(key, Key::Name { place: Some(_), .. });
            let other = self.tenants.get(&identity.name);
            let other = other.filter(|other| !is_inside(&other.key) && !is_inside(&identity.key));
            if let Some(other) = other.filter(|_| role == Role::Keeper) {
                let Identity { name, .. } = identity;
                return request(format!(
                    "the tenant `{name}` belongs to user {}: choose another name",
                    other.user
                ));
            }
            let name = free_name(&identity.name, |name| self.tenants.contains_key(name));
            let ledger = SharedPage::create("deepres-ledger", Writer::Anyone).map_err(no_room)?;
            let tenant = Tenant {
                id: self.next_id(),
                key: identity.key,
                found: identity.found,
                container: guest.facts.place.as_ref().and_then(|place| place.container()).cloned(),
                user: guest.facts.owner,
                groups: guest.groups.clone(),
                caps,
                part,
                asked,
                defaults,
                asked_ns: monotonic_ns(),
                job: Arc::default(),
                set: Wish::default(),
                is_paused: false,
                set_ns: 0,
                oversubscribe,
                stays_until_ns: 0,
                is_suspended: false,
                has_room,
                unpromised: BTreeSet::new(),
                ledger: Arc::new(ledger),
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
                is_awaited: false,
                left_ns: 0,
            };
            self.tenants.insert(name.clone(), tenant);
            return Ok(name);
        };
        let keeps_set = self.keeps_set(&name, guest.facts.owner, &asked.or(defaults));
        let Some(tenant) = self.tenants.get_mut(&name) else { return Ok(name) };
        let holds = tenant.set.or(tenant.asked);
        if is_deserted && !is_back {
            tenant.user = guest.facts.owner;
            tenant.groups.clone_from(&guest.groups);
            (tenant.caps, tenant.part) = (caps, part);
            (tenant.asked, tenant.has_room, tenant.oversubscribe) = (asked, has_room, oversubscribe);
            if !keeps_set {
                (tenant.set, tenant.is_paused) = (Wish::default(), false);
            }
            tenant.unpromised.clear();
            tenant.asked_ns = monotonic_ns();
            tenant.job = Arc::default();
        } else if can_be_told && asked.differs_from(&holds) {
            return request(format!(
                "the tenant `{name}` runs already with {}: leave out what this asks for, choose another --name, or change it with `deepres set {name} …`",
                Sentence(holds)
            ));
        } else {
            tenant.oversubscribe = match (tenant.oversubscribe, oversubscribe) {
                (Some(way), Some(other)) => Some(way.with(other)),
                (way, other) => way.or(other),
            };
            let merged = tenant.asked.or(asked);
            if merged != tenant.asked {
                tenant.asked = merged;
                // The class and the share may come from different processes. Together they may be a
                // guarantee that neither process asked for.
                let wish = merged.or(defaults);
                let has_room =
                    self.has_room(&wish, &identity.key) && self.lacks_memory(&wish, &identity.key).is_none();
                if let Some(tenant) = self.tenants.get_mut(&name) {
                    tenant.has_room = has_room;
                }
            }
        }
        Ok(name)
    }

    /// Returns whether an administrator's settings, a pause included, still hold when a deserted
    /// tenant gets its first process again. Otherwise a limited tenant could end and begin anew to
    /// lose its limits. Settings do not hold for another user's process, or if they cannot be
    /// guaranteed any more.
    fn keeps_set(&self, name: &str, user: u32, asked: &Wish) -> bool {
        self.tenants.get(name).is_some_and(|tenant| {
            let wish = tenant.set.or(*asked);
            tenant.user == user
                && self.has_room(&wish, &tenant.key)
                && self.lacks_memory(&wish, &tenant.key).is_none()
        })
    }

    fn identify(&self, claim: &str, facts: &Facts) -> Identity {
        let kin = |process: &identity::tree::Process| {
            let of_user = self.tenants.iter().filter(|(_, tenant)| tenant.user == facts.owner);
            let mut kin = of_user.filter(|(_, tenant)| tenant.has(process));
            kin.next().map(|(name, tenant)| (tenant.key.clone(), name.clone()))
        };
        let ancestors = facts.process.iter().flat_map(identity::read::ancestors);
        let names = Names { shared: &self.config.shared_names, home: self.home.as_ref() };
        identity::identify(claim, facts, names, ancestors, kin)
    }

    /// Returns why the memory that `asked` wants guaranteed cannot be promised, if so. One GPU must
    /// have enough beside what others were promised or hold. If the tenant of key `own` holds
    /// memory on GPUs, only these count. If it holds none, the GPUs that it uses count; if it uses
    /// none, all GPUs count. If no such GPU is large enough, the refusal is final, because waiting
    /// cannot help. Otherwise it is [`RefusalKind::NoRoom`].
    pub(super) fn lacks_memory(&self, asked: &Wish, own: &Key) -> Option<Refused> {
        let (Some(Class::Guaranteed), Some(bytes)) = (asked.class, asked.memory_bytes) else { return None };
        let used = self.tenants.values().find(|tenant| tenant.key == *own && !tenant.is_deserted());
        let is_seen = |gpu: &usize| used.is_none_or(|own| own.gpus.is_empty() || own.gpus.contains(gpu));
        let holds = |gpu: usize| used.is_some_and(|own| own.held_bytes(gpu) > 0);
        let holds_any = (0..self.gpus.len()).any(holds);
        let is_asked = |gpu: &usize| if holds_any { holds(*gpu) } else { is_seen(gpu) };
        let gpus = || (0..self.gpus.len()).filter(is_asked);
        let largest = gpus().map(|gpu| self.gpus[gpu].gpu.memory_bytes).max()?;
        if largest < bytes {
            let reason = format!(
                "{} of memory cannot be guaranteed: the largest GPU has {}; ask for less",
                Bytes(bytes),
                Bytes(largest)
            );
            return Some(Refused::new(RefusalKind::Request, reason));
        }
        let most = gpus().map(|gpu| self.promisable_bytes(own, gpu)).max()?;
        (most < bytes).then(|| {
            let reason = format!(
                "{} of memory cannot be guaranteed now: guarantees to others and what they hold leave {} of a GPU's; ask for less, or for class fair",
                Bytes(bytes),
                Bytes(most)
            );
            Refused::new(RefusalKind::NoRoom, reason)
        })
    }

    /// Returns whether the share that `asked` wants guaranteed fits beside the guarantees of other
    /// tenants. One GPU with room is enough, because the GPUs that the job will use are not known
    /// yet. A wish without a guarantee always fits.
    fn has_room(&self, asked: &Wish, own: &Key) -> bool {
        let (Some(Class::Guaranteed), Some(ppm)) = (asked.class, asked.share_ppm) else { return true };
        let others = || self.tenants.values().filter(|tenant| tenant.key != *own && !tenant.is_deserted());
        let promised_on = |gpu: usize| -> u64 {
            let there = others().filter(|tenant| tenant.gpus.is_empty() || tenant.gpus.contains(&gpu));
            there.map(|tenant| u64::from(tenant.promised_ppm())).sum()
        };
        let fits = |gpu| promised_on(gpu).saturating_add(u64::from(ppm)) <= u64::from(PPM);
        self.gpus.is_empty() || (0..self.gpus.len()).any(fits)
    }
}

impl Guest {
    /// Returns the key of the process, if the process could be looked at.
    pub(super) fn process(&self) -> Option<ProcessKey> {
        self.facts.process.as_ref().map(|process| process.key())
    }
}

/// Returns the name in a hello; empty if the hello has none.
fn claim(hello: &Hello) -> Result<&str, Refused> {
    let malformed = |reason: &str| Refused::new(RefusalKind::Request, reason);
    let name = wire::text(&hello.tenant).ok_or_else(|| malformed("the tenant's name is not UTF-8"))?;
    if !name.is_empty() && (name.chars().any(is_harmful) || name.trim().is_empty()) {
        return Err(malformed(
            "the tenant's name has characters in it that cannot be seen, or none that can",
        ));
    }
    Ok(name)
}

/// Returns the wishes in a hello.
fn wish(hello: &Hello) -> Result<Wish, Refused> {
    let refused = |reason: String| Refused::new(RefusalKind::Request, reason);
    let wish = Wish::decode(&hello.wishes).map_err(|unreadable| refused(unreadable.to_string()))?;
    match authority::impossible(&wish) {
        Some(reason) => Err(refused(reason)),
        None => Ok(wish),
    }
}
