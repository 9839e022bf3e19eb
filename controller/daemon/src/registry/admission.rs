//! Admits processes and lets them go: finds or makes the tenant of a process, settles the tenant's
//! terms, and begins or ends the session.

use super::waiting::{HOLDS_BACK_NS, Lack, Waiter};
use super::{Order, Registry};
use crate::arbiter::{Bell, SessionId};
use crate::identity::source::Source;
use crate::identity::{Facts, Identity, Key, free_name};
use crate::memory::{TenantMemory, caps};
use crate::probes::Presence;
use crate::shm::{SharedPage, Writer};
use crate::tenant::{Allotment, KeeperId, Owner, Session, Tenant, Terms};
use deepres_abi::beat::BeatPage;
use deepres_abi::fallback::Fallback;
use deepres_abi::grant::GrantPage;
use deepres_abi::ledger::{LedgerPage, MAX_SESSIONS};
use deepres_abi::meter::MeterPage;
use deepres_abi::oversubscribe::Oversubscribe;
use deepres_abi::wire::{self, Hello, RefusalKind, Role, UNMANAGED, Welcome};
use deepres_model::authority::{self, Granted, Wish};
use deepres_model::clock::monotonic_ns;
use deepres_model::peer::Peer;
use deepres_model::process::ProcessKey;
use deepres_model::quantity::Bytes;
use deepres_model::text::{harmless, is_name};
use deepres_model::wish::Sentence;
use deepres_policy::class::Class;
use std::io;
use std::sync::Arc;

/// A process that connected and asks to be admitted.
#[derive(Debug)]
pub struct Guest {
    /// The process at the other end of the connection.
    pub peer: Peer,
    /// The process's groups, as far as the configuration has caps for them.
    pub groups: Vec<u32>,
    /// The kernel's facts about the process.
    pub facts: Facts,
    /// The source whose limits count the process.
    pub source: Source,
    /// The part of the GPUs that the cluster gave to the process's job, if the daemon knows it.
    pub allotment: Option<Allotment>,
}

/// The relation of an admitted process to its tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Membership {
    /// A session: a process that uses GPUs.
    Session(SessionId),
    /// A keeper: a `deepres run` that keeps the tenant.
    Keeper(KeeperId),
}

/// The daemon's refusal to admit a process.
#[derive(Debug)]
pub struct Refused {
    /// The kind of refusal.
    pub kind: RefusalKind,
    /// The reason, as a sentence.
    pub reason: String,
    /// The thing for which the process may wait; `None` if a wait would be in vain.
    pub lack: Option<Lack>,
    /// Whether the launches of the process fail, whatever the configuration's fail mode.
    pub is_shut: bool,
}

impl Guest {
    /// Returns the key of the process; `None` if the daemon could not look at the process.
    pub(super) fn process(&self) -> Option<ProcessKey> {
        self.facts.process.as_ref().map(|process| process.key())
    }
}

impl Refused {
    /// Returns a refusal of this kind, for this reason.
    pub fn new(kind: RefusalKind, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into(), lack: None, is_shut: false }
    }

    /// Returns the refusal of a job that may wait for `lack`, for this reason.
    pub fn lacking(lack: Lack, reason: impl Into<String>) -> Self {
        Self { lack: Some(lack), ..Self::new(RefusalKind::NoRoom, reason) }
    }

    /// Returns the refusal of a process whose launches fail, whatever the configuration's fail
    /// mode.
    #[must_use]
    pub fn shut(self) -> Self {
        Self { is_shut: true, ..self }
    }
}

/// A process that the daemon has admitted to a tenant.
#[derive(Debug)]
pub struct Admitted {
    /// The tenant's name.
    pub tenant: String,
    /// The process's relation to the tenant.
    pub membership: Membership,
    /// The answer to the hello.
    pub welcome: Welcome,
    /// The pages and bells of a session; `None` for a keeper.
    pub pages: Option<Pages>,
    /// Orders to the arbiters. Each order is complete once the arbiter has set its gates and
    /// limits.
    pub ready: Vec<Order>,
}

/// The pages and bells that the daemon shares with a session.
#[derive(Debug)]
pub struct Pages {
    /// The grant page, in which the arbiters write what the session may do.
    pub grant: Arc<SharedPage<GrantPage>>,
    /// The meter page, in which the session writes what it did.
    pub meter: Arc<SharedPage<MeterPage>>,
    /// The ledger of the session's tenant.
    pub ledger: Arc<SharedPage<LedgerPage>>,
    /// The host's heartbeat.
    pub beat: Arc<SharedPage<BeatPage>>,
    /// One bell for each managed GPU, in the order of the hello.
    pub bells: Vec<Bell>,
}

impl Registry {
    /// Admits a process to its tenant. Returns the tenant, the welcome and the pages.
    ///
    /// # Errors
    ///
    /// Returns [`Refused`] if the daemon does not admit the process.
    pub fn admit(&mut self, guest: &Guest, hello: &Hello) -> Result<Admitted, Refused> {
        let role = hello
            .role()
            .ok_or_else(|| Refused::new(RefusalKind::Malformed, format!("{} is not a role", hello.role)))?;
        if let Role::Viewer | Role::Arriving | Role::Appraised = role {
            return Err(Refused::new(RefusalKind::Malformed, "the daemon admits only sessions and keepers"));
        }
        let name = self.tenant_of(guest, hello, role)?;
        let admitted = match role {
            Role::Keeper => self.admit_keeper(&name, guest, hello),
            _ => self.admit_session(&name, guest, hello),
        };
        let tenant = self.tenancy.tenants().get(&name);
        if admitted.is_err() && tenant.is_some_and(|tenant| tenant.members.deserted_ns() == Some(0)) {
            // The registry made the tenant for this process.
            self.tenancy.forget(&name);
        }
        let mut admitted = admitted?;
        admitted.ready.extend(self.tenancy.share_out_anew(&name));
        Ok(admitted)
    }

    fn admit_keeper(&mut self, name: &str, guest: &Guest, hello: &Hello) -> Result<Admitted, Refused> {
        let placed = self.tenancy.placer(&mut self.waiting).place(name, hello)?;
        let (keeper, granted) = self.tenancy.keep(name, guest, hello).ok_or_else(gone)?;
        let mut welcome = Welcome::new(0, 0);
        welcome.sm_ppm = granted.sm_ppm.value.unwrap_or(0);
        wire::set_text(&mut welcome.tenant, name);
        for (uuid, index) in hello.gpus().iter().zip(&mut welcome.gpu_index) {
            let chosen = self.tenancy.gpus().number_of(uuid).filter(|gpu| placed.contains(*gpu));
            *index = chosen.and_then(|gpu| u8::try_from(gpu).ok()).unwrap_or(UNMANAGED);
        }
        welcome.set_fallback(&self.fallback(&granted));
        let membership = Membership::Keeper(keeper);
        Ok(Admitted { tenant: name.to_owned(), membership, welcome, pages: None, ready: Vec::new() })
    }

    /// Returns the limits of this grant, which a process keeps by itself while it has no session.
    fn fallback(&self, granted: &Granted) -> Fallback {
        Fallback {
            share_ppm: granted.share_ppm.value,
            memory_bytes: granted.memory_bytes.value,
            fail_mode: self.config().fail_mode.mode(),
        }
    }

    /// Returns the limits that a refused process keeps by itself: those of its tenant. If the
    /// process would begin a tenant, these are the limits that the tenant would get.
    pub fn fallback_of(&self, guest: &Guest, hello: &Hello) -> Fallback {
        let key = self.finder().identify(guest, hello).key;
        let known = self.tenancy.tenants().of_key(&key).map(|(_, tenant)| tenant);
        let is_back = hello.sessions_before > 0;
        if let Some(tenant) = known.filter(|tenant| is_back || !tenant.members.are_gone()) {
            return self.fallback(&tenant.terms.granted());
        }
        // Wishes that make no sense count as none.
        let asked = wish(hello).unwrap_or_default();
        let terms = self.terms(guest, &key, asked, false).map(|terms| match known {
            Some(tenant) => self.tenancy.terms_anew(tenant, guest, terms),
            None => terms,
        });
        terms.map_or_else(|_| Fallback::default(), |terms| self.fallback(&terms.granted()))
    }

    fn admit_session(&mut self, name: &str, guest: &Guest, hello: &Hello) -> Result<Admitted, Refused> {
        let session_id = self.tenancy.next_id();
        let tenant = self.tenancy.tenants().get(name).ok_or_else(gone)?;
        let slot = tenant.members.free_slot().ok_or_else(|| {
            let reason = format!(
                "the tenant `{name}` has {MAX_SESSIONS} processes already, the most that a tenant can have"
            );
            Refused::new(RefusalKind::Full, reason)
        })?;
        let mut welcome = Welcome::new(session_id, slot as u32);
        wire::set_text(&mut welcome.tenant, name);
        let mut gpus = Vec::new();
        for (uuid, index) in hello.gpus().iter().zip(&mut welcome.gpu_index) {
            // If the hello lists a GPU twice, the GPU counts once.
            if let Some(gpu) = self.tenancy.gpus().number_of(uuid).filter(|gpu| !gpus.contains(gpu)) {
                *index = u8::try_from(gpu).unwrap_or(UNMANAGED);
                gpus.push(gpu);
            }
        }
        let pages = self.pages(session_id, tenant, gpus.len()).map_err(no_room)?;
        let client = harmless(wire::text(&hello.client).unwrap_or("?"));
        let session = Session {
            _presence: Presence::new(&self.connected, guest.peer.pid),
            pid: guest.peer.pid,
            source: guest.source.clone(),
            process: guest.process(),
            client: client.clone(),
            container: guest.facts.container().cloned(),
            slot,
            gpus,
            grant: Arc::clone(&pages.grant),
            meter: Arc::clone(&pages.meter),
            mps: Arc::default(),
        };
        let continues = hello.sessions_before > 0;
        let begun = self.tenancy.begin(name, session_id, session, &pages.bells, continues);
        let ready = begun.ok_or_else(gone)?;
        if self.lines.allows(&guest.source) {
            tracing::info!(
                tenant = name,
                session = session_id,
                pid = guest.peer.pid,
                uid = guest.peer.uid,
                client,
                "a session began"
            );
        }
        Ok(Admitted {
            tenant: name.to_owned(),
            membership: Membership::Session(session_id),
            welcome,
            pages: Some(pages),
            ready,
        })
    }

    /// Returns the pages of a new session of a tenant, and a bell for each of its GPUs.
    fn pages(&self, session: SessionId, tenant: &Tenant, gpus: usize) -> io::Result<Pages> {
        let grant = SharedPage::<GrantPage>::create("deepres-grant", Writer::Controller)?;
        let heartbeat_limit_ns =
            u64::try_from(self.config().heartbeat_limit().as_nanos()).unwrap_or(u64::MAX);
        grant.page().set_session(session, heartbeat_limit_ns, self.config().fail_mode.mode());
        grant.page().begin_epochs(monotonic_ns());
        let managed = self.tenancy.gpus().iter().enumerate();
        managed.filter(|(_, gpu)| gpu.is_mig).for_each(|(number, _)| grant.page().set_mig(number));
        Ok(Pages {
            grant: Arc::new(grant),
            meter: Arc::new(SharedPage::<MeterPage>::create("deepres-meter", Writer::Anyone)?),
            ledger: Arc::clone(tenant.memory.ledger()),
            beat: Arc::clone(&self.beat),
            bells: (0..gpus).map(|_| Bell::new()).collect::<io::Result<_>>()?,
        })
    }

    /// Removes a session or a keeper. A session's memory and leases become free.
    pub fn depart(&mut self, name: &str, membership: Membership) {
        let id = match membership {
            Membership::Keeper(id) => return self.tenancy.stop_keeping(name, id),
            Membership::Session(id) => id,
        };
        let Some((session, freed_bytes)) = self.tenancy.end(name, id) else { return };
        if self.lines.allows(&session.source) {
            tracing::info!(tenant = name, session = id, pid = session.pid, freed_bytes, "a session ended");
        }
    }

    /// Returns the part of the GPUs that a cluster gave to this key's tenant: by the allocation of
    /// a node's agent, or by Slurm.
    fn allotment_of(&self, guest: &Guest, key: &Key) -> Option<Allotment> {
        let by_agent = self.allocations.allotment_of(key, self.tenancy.gpus());
        by_agent.or_else(|| guest.allotment.clone())
    }

    /// Finds or makes the tenant of a process, and returns the tenant's name. The first process
    /// decides the tenant's wishes. The daemon refuses a later `deepres run` with other wishes. A
    /// later process of the job, or a process that was admitted before, only adds wishes that the
    /// tenant lacks.
    fn tenant_of(&mut self, guest: &Guest, hello: &Hello, role: Role) -> Result<String, Refused> {
        if is_misnamed(hello) {
            if role == Role::Keeper {
                let reason = match wire::text(&hello.tenant) {
                    Some(_) => "the tenant's name has invisible characters, or a blank at an end",
                    None => "the tenant's name is not UTF-8",
                };
                return Err(Refused::new(RefusalKind::Request, reason));
            }
            if self.lines.allows(&guest.source) {
                let (pid, uid) = (guest.peer.pid, guest.peer.uid);
                tracing::warn!(
                    pid,
                    uid,
                    "a process gave a name that cannot be one: the next rule finds its tenant"
                );
            }
        }
        let identity = self.finder().identify(guest, hello);
        let gpus = self.tenancy.gpus();
        self.allocations.check(guest, hello, &identity.key, gpus, self.config().pods_need_token)?;
        let asked = wish(hello)?;
        let oversubscribe = Oversubscribe::from_number(hello.oversubscribe);
        let is_back = hello.sessions_before > 0;
        let can_be_told = role == Role::Keeper && !is_back;
        let terms = self.terms(guest, &identity.key, asked, can_be_told);
        match &terms {
            Err(Refused { lack: Some(lack), .. }) if hello.waits != 0 => {
                let waiter = Waiter {
                    key: identity.key.clone(),
                    name: identity.name.clone(),
                    user: guest.facts.owner,
                    lack: *lack,
                };
                self.waiting.note(waiter, monotonic_ns());
            }
            // The job may wait for GPUs.
            Ok(_) if role == Role::Keeper && hello.wants_gpus != 0 => {}
            _ => self.waiting.remove(&identity.key),
        }
        let terms = terms?;
        let known = self.tenancy.tenants().of_key(&identity.key);
        let Some(name) = known.map(|(name, _)| name.to_owned()) else {
            return self.make_tenant(guest, identity, terms, oversubscribe, role);
        };
        let known = self.tenancy.tenants().get(&name).and_then(|tenant| tenant.terms.allotment());
        if let Some(allotment) = self.allotment_of(guest, &identity.key).filter(|new| Some(new) != known) {
            // Slurm did not answer when the job's earlier processes came, or the agent changed the
            // allocation.
            drop(self.tenancy.change(&name, |tenant| tenant.allot(allotment)));
        }
        let Some(tenant) = self.tenancy.tenants().get(&name) else { return Ok(name) };
        if tenant.members.are_gone() && !is_back {
            self.tenancy.begin_anew(&name, guest, terms, oversubscribe);
            return Ok(name);
        }
        let stated = tenant.terms.stated();
        if can_be_told && asked.differs_from(&stated) {
            let reason = format!(
                "the tenant `{name}` runs already with {}; leave out the wishes, choose another --name, or change the tenant with `deepres set {name} …`",
                Sentence(stated)
            );
            return Err(Refused::new(RefusalKind::Request, reason));
        }
        self.tenancy.join(&name, guest, asked, oversubscribe);
        Ok(name)
    }

    /// Returns the terms of a tenant of this key, whose process asks for `asked`.
    ///
    /// # Errors
    ///
    /// Returns [`Refused`] if the process has not started its job yet, and the job cannot have
    /// these terms. The daemon does not turn away a process that already runs. Without room, its
    /// tenant gets no guarantee.
    fn terms(&self, guest: &Guest, key: &Key, asked: Wish, can_be_told: bool) -> Result<Terms, Refused> {
        let user = guest.facts.owner;
        let mut terms =
            Terms::new(asked, self.config().defaults.wish(), self.config().caps_of(user, &guest.groups));
        self.allotment_of(guest, key).into_iter().for_each(|allotment| terms.allot(allotment));
        let (tenants, gpus) = (self.tenancy.tenants(), self.tenancy.gpus().count());
        let known = tenants.of_key(key).filter(|(_, tenant)| !tenant.is_deserted());
        let foresee = || caps::foreseen_part(tenants, gpus, user, key, &terms);
        let part = known.map_or_else(foresee, |(_, tenant)| tenant.terms.part());
        terms.set_part(part);
        let wish = terms.wish();
        let has_share = tenants.have_room(gpus, &wish, key);
        let lacks_memory = self.tenancy.lacks_memory(&wish, key);
        let is_new = can_be_told && known.is_none();
        let lacks_memory = lacks_memory.or_else(|| is_new.then(|| self.waits_for_others(&wish, key))?);
        terms.set_has_room(has_share);
        if can_be_told && let Some(reason) = terms.refusal() {
            return Err(Refused::new(RefusalKind::Request, reason));
        }
        let lacks_cap = can_be_told.then(|| self.lacks_cap(&terms, user, key, is_new)).flatten();
        terms.set_has_room(has_share && lacks_memory.is_none());
        lacks_cap.or_else(|| lacks_memory.filter(|_| can_be_told)).map_or(Ok(terms), Err)
    }

    /// Returns the refusal of a job whose user's other tenants have too much of the user's caps. A
    /// new job is also refused if other jobs of the user came before, and wait for these caps.
    fn lacks_cap(&self, terms: &Terms, user: u32, key: &Key, is_new: bool) -> Option<Refused> {
        let lacks_same = |lack| matches!(lack, Lack::Cap { user: other, .. } if other == user);
        let is_in_turn = || !self.waiting.is_behind(key, monotonic_ns(), HOLDS_BACK_NS, lacks_same);
        let reason = match terms.crowding() {
            None if !is_new || !terms.share_caps() || is_in_turn() => return None,
            None => "other jobs of the user came before, and wait for a part of the user's caps; end one of the user's tenants".to_owned(),
            Some(reason) => reason,
        };
        let memory_bytes = terms.wish().memory_bytes.unwrap_or(0);
        Some(Refused::lacking(Lack::Cap { user, memory_bytes }, reason))
    }

    /// Returns the refusal of a new job's guaranteed memory, if other jobs came before and wait for
    /// guaranteed memory.
    fn waits_for_others(&self, wish: &Wish, key: &Key) -> Option<Refused> {
        let (Some(Class::Guaranteed), Some(bytes)) = (wish.class, wish.memory_bytes) else { return None };
        let lacks_memory = |lack| matches!(lack, Lack::Memory(_));
        self.waiting.is_behind(key, monotonic_ns(), u64::MAX, lacks_memory).then(|| {
            let reason = format!(
                "the daemon cannot guarantee {} of memory now: other jobs came before, and wait for guaranteed memory; ask for class fair",
                Bytes(bytes)
            );
            Refused::lacking(Lack::Memory(bytes), reason)
        })
    }

    /// Makes a tenant with these terms, and returns its name.
    fn make_tenant(
        &mut self,
        guest: &Guest,
        identity: Identity,
        terms: Terms,
        oversubscribe: Option<Oversubscribe>,
        role: Role,
    ) -> Result<String, Refused> {
        // A process in a container cannot know the names outside the container, and a process
        // outside cannot know the names inside. So if the name is in use, the daemon does not
        // refuse the process but adds a number to the tenant's name.
        let is_inside = |key: &Key| matches!(key, Key::Name { place: Some(_), .. });
        let other = self.tenancy.tenants().get(&identity.name).map(|other| &other.owner);
        let other = other.filter(|other| !is_inside(&other.key) && !is_inside(&identity.key));
        if let Some(other) = other.filter(|_| role == Role::Keeper) {
            let reason =
                format!("the tenant `{}` belongs to user {}; choose another name", identity.name, other.user);
            return Err(Refused::new(RefusalKind::Request, reason));
        }
        let name = free_name(&identity.name, |name| self.tenancy.tenants().get(name).is_some());
        let owner = Owner {
            key: identity.key,
            found: identity.found,
            container: guest.facts.container().cloned(),
            place: guest.facts.path().map(str::to_owned),
            user: guest.facts.owner,
            groups: guest.groups.clone(),
        };
        let memory = TenantMemory::new().map_err(no_room)?;
        let mut tenant = Tenant::new(self.tenancy.next_id(), owner, terms, memory);
        tenant.residence.set_oversubscribe(oversubscribe);
        self.tenancy.add(name.clone(), tenant);
        Ok(name)
    }
}

fn gone() -> Refused {
    Refused::new(RefusalKind::Stopping, "the daemon is forgetting the tenant; try again")
}

fn no_room(error: io::Error) -> Refused {
    Refused::new(RefusalKind::Full, format!("the daemon cannot create the pages of another session: {error}"))
}

/// Returns the name in a hello; empty if the hello has none, or a text that cannot be a name. The
/// daemon then finds the tenant by the next rule. If the daemon refused the process, the process
/// would run beside its tenant.
pub(super) fn claim(hello: &Hello) -> &str {
    wire::text(&hello.tenant).filter(|name| is_name(name)).unwrap_or_default()
}

/// Returns whether the hello has a text that cannot be a name.
fn is_misnamed(hello: &Hello) -> bool {
    claim(hello).is_empty() && hello.tenant.first().is_some_and(|first| *first != 0)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::Gpus;
    use crate::identity::cgroup;
    use crate::state::{SavedTenant, State};
    use deepres_model::config::Config;

    #[test]
    fn a_tenant_has_the_place_of_its_first_process_and_one_of_an_older_state_learns_it() {
        let path = format!("/docker/{}", "a".repeat(64));
        let facts = Facts {
            pid: std::process::id(),
            process: None,
            place: cgroup::place(&format!("0::{path}")),
            owner: 1_000,
            namespace: None,
            namespaces: Vec::new(),
        };
        let peer = Peer { pid: facts.pid, uid: 1_000, gid: 1_000 };
        let guest = Guest { peer, groups: Vec::new(), facts, source: Source::User(1_000), allotment: None };
        let older = SavedTenant {
            name: "train".to_owned(),
            uid: 1_000,
            key: Some(Key::Name { user: 1_000, name: "train".to_owned(), place: Some(path.clone()) }),
            container: guest.facts.container().cloned(),
            ..SavedTenant::default()
        };
        let awaited = SavedTenant { is_here: true, ..older.clone() };
        // A new tenant, a tenant that begins anew, and a tenant whose process comes back.
        for (saved, sessions_before) in [(Vec::new(), 0), (vec![older], 0), (vec![awaited], 1)] {
            let beat = SharedPage::<BeatPage>::create("deepres-test", Writer::Controller).unwrap();
            let mut registry = Registry::new(Config::default(), Gpus::default(), Arc::new(beat));
            let is_known = !saved.is_empty();
            registry.restore(&State::new("boot", 1, Vec::new(), saved)).unwrap();
            let mut hello = Hello::new(Role::Session);
            hello.sessions_before = sessions_before;
            wire::set_text(&mut hello.tenant, "train");
            let name = registry.admit(&guest, &hello).unwrap().tenant;
            let tenant = registry.tenancy.tenants().get(&name).unwrap();
            assert_eq!(tenant.owner.place.as_ref(), Some(&path), "{is_known} {sessions_before}");
        }
    }
}
