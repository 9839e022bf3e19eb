//! The registry: the daemon's record of tenants and sessions. It holds the wishes and the grant of
//! each tenant.

mod caps;
mod reconcile;
mod residency;
mod saved;
mod set;
mod signals;
mod slots;
mod status;
mod tenancy;
mod tenant;
mod view;

use super::gpus::Gpu;
use crate::arbiter::{Arbiter, Bell, Report, SessionId, SessionSeat};
use crate::identity::cgroup::Place;
use crate::identity::source::Source;
use crate::identity::{self, Facts};
use crate::lines::Lines;
use crate::probes::{Connected, Presence};
use crate::shm::{SharedPage, Writer};
use deepres_abi::beat::BeatPage;
use deepres_abi::grant::GrantPage;
use deepres_abi::ledger::{LedgerPage, MAX_SESSIONS};
use deepres_abi::meter::MeterPage;
use deepres_abi::wire::{self, Hello, RefusalKind, Role, UNMANAGED, Welcome};
use deepres_model::clock::monotonic_ns;
use deepres_model::config::Config;
use deepres_model::directory::Directory;
use deepres_model::peer::Peer;
use deepres_model::text::harmless;
pub use residency::Stay;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tenant::{Bound, KeeperId, Session, Tenant};
use tokio::sync::oneshot;

/// The most deserted tenants that are remembered. Their number is bounded because each keeps a page
/// and a descriptor.
pub const MAX_DESERTED: usize = 256;

/// A GPU and its arbiter.
#[derive(Debug)]
pub struct Managed {
    /// The GPU.
    pub gpu: Gpu,
    /// The GPU's arbiter.
    pub arbiter: Arbiter,
}

/// The registry. It owns the arbiters and the tenants.
#[derive(Debug)]
pub struct Registry {
    config: Config,
    directory: Directory,
    /// The container or pod that the daemon is in.
    home: Option<Place>,
    started_ns: u64,
    gpus: Vec<Managed>,
    beat: Arc<SharedPage<BeatPage>>,
    tenants: BTreeMap<String, Tenant>,
    /// The number of the next tenant, session or keeper.
    next_id: u64,
    /// The memory in use on each GPU by processes of no tenant, by NVML, bytes.
    strangers_bytes: BTreeMap<usize, u64>,
    /// The processes that have a session.
    connected: Arc<Connected>,
    /// The log lines that each source has caused lately.
    lines: Rc<Lines>,
}

/// A process that connected and asks to be admitted.
#[derive(Debug)]
pub struct Guest {
    /// The process at the other end of the connection.
    pub peer: Peer,
    /// The process's groups, as far as the configuration has caps for them.
    pub groups: Vec<u32>,
    /// Facts of the kernel about the process.
    pub facts: Facts,
    /// The source that is charged for the process.
    pub source: Source,
}

/// The relation of an admitted process to its tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Membership {
    /// A session: a process that uses GPUs.
    Session(SessionId),
    /// A keeper: a `deepres run` that keeps the tenant.
    Keeper(KeeperId),
}

/// A refusal to admit a process.
#[derive(Debug)]
pub struct Refused {
    /// The kind of refusal.
    pub kind: RefusalKind,
    /// The reason, as a sentence.
    pub reason: String,
}

impl Refused {
    /// Returns a refusal of this kind, for this reason.
    pub fn new(kind: RefusalKind, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into() }
    }
}

/// A process that was admitted.
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
    /// Orders to the arbiters. Each is fulfilled once the arbiter has set its gates and limits.
    pub ready: Vec<oneshot::Receiver<()>>,
}

/// The pages and bells that the daemon shares with a session.
#[derive(Debug)]
pub struct Pages {
    /// The grant page: what the session may do.
    pub grant: Arc<SharedPage<GrantPage>>,
    /// The meter page: what the session did.
    pub meter: Arc<SharedPage<MeterPage>>,
    /// The ledger of the session's tenant.
    pub ledger: Arc<SharedPage<LedgerPage>>,
    /// The host's heartbeat.
    pub beat: Arc<SharedPage<BeatPage>>,
    /// One bell for each managed GPU, in the order of the hello.
    pub bells: Vec<Bell>,
}

/// The numbers of GPUs, tenants and sessions. Displayed on one line.
#[derive(Debug)]
pub struct Summary {
    gpus: usize,
    tenants: usize,
    sessions: usize,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gpus, tenants, sessions } = self;
        write!(f, "{sessions} processes of {tenants} tenants on {gpus} GPUs")
    }
}

impl Registry {
    /// Returns a registry without tenants.
    pub fn new(
        config: Config,
        directory: Directory,
        gpus: Vec<Managed>,
        beat: Arc<SharedPage<BeatPage>>,
    ) -> Self {
        let started_ns = monotonic_ns();
        Self {
            config,
            directory,
            home: identity::read::place(std::process::id()),
            started_ns,
            gpus,
            beat,
            tenants: BTreeMap::new(),
            next_id: 1,
            strangers_bytes: BTreeMap::new(),
            connected: Arc::default(),
            lines: Rc::default(),
        }
    }

    /// Returns the log lines that each source has caused lately.
    pub fn lines(&self) -> Rc<Lines> {
        Rc::clone(&self.lines)
    }

    /// Returns the processes that have a session.
    pub fn connected(&self) -> Arc<Connected> {
        Arc::clone(&self.connected)
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Stops arbitration for good. Each arbiter opens its gates, or closes them if the fail mode is
    /// closed.
    pub fn open_gates(&mut self) {
        self.gpus.clear();
    }

    /// Returns whether every tenant is deserted.
    pub fn is_deserted(&self) -> bool {
        self.tenants.values().all(Tenant::is_deserted)
    }

    /// Returns whether a tenant wanted a GPU since the last call.
    pub fn has_stirred(&self) -> bool {
        self.gpus.iter().fold(false, |stirred, managed| stirred | managed.arbiter.has_stirred())
    }

    /// Returns the numbers of GPUs, tenants and sessions. Deserted tenants do not count.
    pub fn summary(&self) -> Summary {
        let living = || self.tenants.values().filter(|tenant| !tenant.is_deserted());
        Summary {
            gpus: self.gpus.len(),
            tenants: living().count(),
            sessions: living().map(|tenant| tenant.sessions.len()).sum(),
        }
    }

    fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Admits a process to its tenant.
    ///
    /// # Errors
    ///
    /// Returns [`Refused`] if the process is not admitted.
    pub fn admit(&mut self, guest: &Guest, hello: &Hello) -> Result<Admitted, Refused> {
        let role = hello
            .role()
            .ok_or_else(|| Refused::new(RefusalKind::Malformed, format!("{} is no role", hello.role)))?;
        if let Role::Viewer | Role::Arriving | Role::Appraised = role {
            return Err(Refused::new(RefusalKind::Malformed, "only sessions and keepers are admitted"));
        }
        let name = self.tenant_of(guest, hello, role)?;
        let mut admitted = match role {
            Role::Keeper => self.admit_keeper(&name, guest),
            _ => self.admit_session(&name, guest, hello),
        };
        if admitted.is_err()
            && self.tenants.get(&name).is_some_and(|tenant| tenant.is_deserted() && tenant.left_ns == 0)
        {
            // The tenant was made for this process.
            self.tenants.remove(&name);
        }
        if let Ok(admitted) = &mut admitted {
            admitted.ready.extend(self.share_out_anew(&name));
        }
        admitted
    }

    fn admit_keeper(&mut self, name: &str, guest: &Guest) -> Result<Admitted, Refused> {
        let keeper = self.next_id();
        let tenant = self.tenants.get_mut(name).ok_or_else(gone)?;
        tenant.keepers.insert(keeper, guest.process());
        let mut welcome = Welcome::new(0, 0);
        wire::set_text(&mut welcome.tenant, name);
        let membership = Membership::Keeper(keeper);
        Ok(Admitted { tenant: name.to_owned(), membership, welcome, pages: None, ready: Vec::new() })
    }

    fn admit_session(&mut self, name: &str, guest: &Guest, hello: &Hello) -> Result<Admitted, Refused> {
        let session_id = self.next_id();
        let tenant = self.tenants.get_mut(name).ok_or_else(gone)?;
        let slot = tenant.free_slot().ok_or_else(|| {
            let reason =
                format!("the tenant `{name}` has {MAX_SESSIONS} processes already, the most there can be");
            Refused::new(RefusalKind::Full, reason)
        })?;

        let mut welcome = Welcome::new(session_id, slot as u32);
        wire::set_text(&mut welcome.tenant, name);
        let mut gpus = Vec::new();
        for (uuid, index) in hello.gpus().iter().zip(&mut welcome.gpu_index) {
            let found = self.gpus.iter().position(|managed| managed.gpu.uuid == *uuid);
            // A GPU that is listed twice counts once.
            if let Some(gpu) = found.filter(|gpu| !gpus.contains(gpu)) {
                *index = u8::try_from(gpu).unwrap_or(UNMANAGED);
                gpus.push(gpu);
            }
        }

        let grant = SharedPage::<GrantPage>::create("deepres-grant", Writer::Controller).map_err(no_room)?;
        let heartbeat_limit_ns = u64::try_from(self.config.heartbeat_limit().as_nanos()).unwrap_or(u64::MAX);
        grant.page().set_session(session_id, heartbeat_limit_ns, self.config.fail_mode.mode());
        let meter = SharedPage::<MeterPage>::create("deepres-meter", Writer::Anyone).map_err(no_room)?;
        let pages = Pages {
            grant: Arc::new(grant),
            meter: Arc::new(meter),
            ledger: Arc::clone(&tenant.ledger),
            beat: Arc::clone(&self.beat),
            bells: gpus.iter().map(|_| Bell::new()).collect::<io::Result<_>>().map_err(no_room)?,
        };

        let process = guest.process();
        self.promise_on(name, &gpus);
        let tenant = self.tenants.get_mut(name).ok_or_else(gone)?;
        if let Some(process) = process {
            tenant.returning.remove(&process);
        }
        tenant.former_slots.remove(slot);
        tenant.ledger.page().host().open(slot);
        let mut ready = Vec::new();
        // The wishes of this process are in force on the tenant's other GPUs too.
        for gpu in tenant.gpus.iter().filter(|gpu| !gpus.contains(gpu)) {
            ready.push(self.gpus[*gpu].arbiter.set_tenant(tenant.seat_on(*gpu)));
        }
        for (gpu, bell) in gpus.iter().zip(&pages.bells) {
            if let Some(ledger) = tenant.ledger.page().gpu(*gpu) {
                ledger.open(slot);
            }
            if !tenant.gpus.contains(gpu) {
                tenant.gpus.push(*gpu);
            }
            if !tenant.sessions.values().any(|session| session.gpus.contains(gpu)) {
                // The tenant has no session on this GPU, so it holds nothing there. Its bound stays
                // 0 until the user's caps are shared out again.
                tenant.bounds.insert(*gpu, Bound::default());
            }
            let session = SessionSeat {
                id: session_id,
                grant: Arc::clone(&pages.grant),
                meter: Arc::clone(&pages.meter),
                ledger_slot: slot,
                bell: bell.clone(),
                process,
                user: guest.source.number(),
                continues: hello.sessions_before > 0,
            };
            ready.push(self.gpus[*gpu].arbiter.enter(tenant.seat_on(*gpu), session));
        }
        let client = harmless(wire::text(&hello.client).unwrap_or("?"));
        if self.lines.allows(&guest.source) {
            tracing::info!(
                tenant = name,
                session = session_id,
                pid = guest.peer.pid,
                uid = guest.peer.uid,
                client,
                "a session begins"
            );
        }
        let container = guest.facts.place.as_ref().and_then(|place| place.container()).cloned();
        let session = Session {
            _presence: Presence::new(&self.connected, guest.peer.pid),
            pid: guest.peer.pid,
            source: guest.source.clone(),
            process,
            client,
            container,
            slot,
            gpus,
            meter: Arc::clone(&pages.meter),
        };
        tenant.sessions.insert(session_id, session);
        ready.extend(self.renew_ceilings());
        // The process may wait for memory until the residency task has decided whether waiting
        // makes sense.
        if self.is_oversubscribed() {
            self.let_wait(name);
        }
        Ok(Admitted {
            tenant: name.to_owned(),
            membership: Membership::Session(session_id),
            welcome,
            pages: Some(pages),
            ready,
        })
    }

    /// Removes a session or a keeper. Frees the memory and the leases of a session.
    pub fn depart(&mut self, name: &str, membership: Membership) {
        let Some(user) = self.tenants.get(name).map(|tenant| tenant.user) else { return };
        // The daemon saves each returning process and checks it until it dies. Their number is
        // limited, because one process could connect under a thousand names.
        let of_user = self.tenants.values().filter(|tenant| tenant.user == user);
        let returning: usize = of_user.map(|tenant| tenant.returning.len()).sum();
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        match membership {
            Membership::Keeper(id) => drop(tenant.keepers.remove(&id)),
            Membership::Session(id) => {
                let Some(session) = tenant.sessions.remove(&id) else { return };
                // A process that is alive may only have lost its connection. Such a process
                // connects again.
                let is_remembered = returning < self.config.max_connections;
                let is_dead = session.process.is_some_and(|process| !process.is_alive());
                let returning = session.process.filter(|_| is_remembered && !is_dead);
                tenant.returning.extend(returning);
                for gpu in &session.gpus {
                    self.gpus[*gpu].arbiter.leave(tenant.id, id, returning.is_some());
                }
                let ledger = tenant.ledger.page();
                let freed = (0..self.gpus.len()).filter_map(|gpu| ledger.gpu(gpu)?.clear(session.slot));
                let freed_bytes: u64 = freed.fold(0, u64::saturating_add);
                ledger.host().clear(session.slot);
                if !is_dead {
                    tenant.former_slots.add(session.slot, session.process);
                }
                tenant.give_slots_back(self.gpus.len());
                if self.lines.allows(&session.source) {
                    tracing::info!(
                        tenant = name,
                        session = id,
                        pid = session.pid,
                        freed_bytes,
                        "a session ended"
                    );
                }
            }
        }
        self.note_desertion(name);
        drop(self.share_out(user));
    }

    /// If a tenant is deserted, notes the time. Removes the tenant if it has no account.
    fn note_desertion(&mut self, name: &str) {
        let Some(tenant) = self.tenants.get_mut(name).filter(|tenant| tenant.is_deserted()) else { return };
        tenant.left_ns = monotonic_ns();
        if tenant.gpus.is_empty() {
            // A tenant that was on no GPU has no account to remember.
            self.tenants.remove(name);
            return;
        }
        self.forget_oldest();
    }

    /// If too many deserted tenants are remembered, forgets the one that was deserted first. Only
    /// tenants of the user with the most of them count. So no user can make the daemon forget the
    /// tenants of other users.
    fn forget_oldest(&mut self) {
        let deserted = || self.tenants.iter().filter(|(_, tenant)| tenant.is_deserted());
        let mut by_user = BTreeMap::<u32, usize>::new();
        for (_, tenant) in deserted() {
            *by_user.entry(tenant.user).or_default() += 1;
        }
        if by_user.values().sum::<usize>() <= MAX_DESERTED {
            return;
        }
        let Some((user, _)) = by_user.into_iter().max_by_key(|(_, count)| *count) else { return };
        let of_user = deserted().filter(|(_, tenant)| tenant.user == user);
        if let Some((name, _)) = of_user.min_by_key(|(_, tenant)| tenant.left_ns) {
            let name = name.clone();
            self.forget(&name);
        }
    }

    /// Forgets the tenants that have been deserted for at least `linger`.
    pub fn forget_deserted(&mut self, linger: Duration) {
        let before_ns = monotonic_ns().saturating_sub(u64::try_from(linger.as_nanos()).unwrap_or(u64::MAX));
        let is_over = |tenant: &Tenant| tenant.is_deserted() && (1..=before_ns).contains(&tenant.left_ns);
        let over = self.tenants.iter().filter(|(_, tenant)| is_over(tenant));
        for name in over.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.forget(&name);
        }
    }

    fn forget(&mut self, name: &str) {
        let Some(tenant) = self.tenants.remove(name) else { return };
        for gpu in &tenant.gpus {
            self.gpus[*gpu].arbiter.forget(tenant.id);
        }
    }

    /// Asks every arbiter for its report.
    pub fn reports(&self) -> Vec<oneshot::Receiver<Report>> {
        self.gpus.iter().map(|managed| managed.arbiter.report()).collect()
    }
}

fn gone() -> Refused {
    Refused::new(RefusalKind::Stopping, "the tenant is being forgotten: try again")
}

fn no_room(error: io::Error) -> Refused {
    Refused::new(RefusalKind::Full, format!("the daemon cannot make another session's pages: {error}"))
}
