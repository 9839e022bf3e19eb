//! Tenants and their sessions: who is here, what was asked for, and what each may have.

mod saved;
mod status;

use super::gpus::Gpu;
use super::peer::{Peer, command_name};
use crate::admin::Reply;
use crate::arbiter::{Arbiter, Bell, Report, SessionId, SessionSeat, TenantSeat};
use crate::clock::monotonic_ns;
use crate::config::{Caps, Config};
use crate::directory::Directory;
use crate::policy::TenantId;
use crate::policy::entitlement::Request;
use crate::process::ProcessKey;
use crate::quantity::{Bytes, Percent};
use crate::shm::{SharedPage, Writer};
use crate::text::{harmless, is_harmful};
use deepres_abi::PPM;
use deepres_abi::beat::BeatPage;
use deepres_abi::grant::GrantPage;
use deepres_abi::ledger::{LedgerPage, MAX_SESSIONS};
use deepres_abi::meter::MeterPage;
use deepres_abi::quantity::MIN_SHARE_PPM;
use deepres_abi::wire::{self, Hello, RefusalKind, Role, UNMANAGED, Welcome};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Tenants that are remembered after their end, at most: each keeps a page and a descriptor.
const MAX_DESERTED: usize = 256;
/// Names in a message, at most.
const MAX_NAMES_SHOWN: usize = 10;

/// A GPU and its arbiter.
#[derive(Debug)]
pub struct Managed {
    /// The GPU.
    pub gpu: Gpu,
    /// Its arbiter.
    pub arbiter: Arbiter,
}

/// Everything the daemon knows.
#[derive(Debug)]
pub struct Registry {
    config: Config,
    directory: Directory,
    started_ns: u64,
    gpus: Vec<Managed>,
    beat: Arc<SharedPage<BeatPage>>,
    tenants: BTreeMap<String, Tenant>,
    /// The number of the next tenant or session.
    next_id: u64,
    /// Counts departures.
    departures: u64,
}

#[derive(Debug)]
struct Tenant {
    id: TenantId,
    uid: u32,
    asked: Asked,
    /// An administrator set what is asked for.
    is_set: bool,
    ledger: Arc<SharedPage<LedgerPage>>,
    /// The GPUs that any of its sessions was on.
    gpus: Vec<usize>,
    sessions: BTreeMap<SessionId, Session>,
    keepers: usize,
    /// Processes of it that had a session and have none now: what they were charged up to is remembered while they live.
    returning: BTreeSet<ProcessKey>,
    /// It was here when the daemon before was last heard of, and had no time to come back yet.
    is_awaited: bool,
    /// The departure at which it was left by all.
    left: u64,
}

#[derive(Debug)]
struct Session {
    pid: u32,
    process: Option<ProcessKey>,
    client: String,
    slot: usize,
    gpus: Vec<usize>,
    meter: Arc<SharedPage<MeterPage>>,
}

/// What is asked for, by the job or by an administrator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Asked {
    share_ppm: Option<u32>,
    memory_bytes: Option<u64>,
}

/// Why someone is not let in.
#[derive(Debug)]
pub struct Refused {
    /// The kind.
    pub kind: RefusalKind,
    /// The sentence.
    pub reason: String,
}

impl Refused {
    /// A refusal.
    pub fn new(kind: RefusalKind, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into() }
    }
}

/// Someone who was let in.
#[derive(Debug)]
pub struct Admitted {
    /// The tenant's name.
    pub tenant: String,
    /// The session, or `None` for a keeper.
    pub session: Option<SessionId>,
    /// The answer.
    pub welcome: Welcome,
    /// What goes with it.
    pub pages: Option<Pages>,
    /// Fulfilled when the arbiters have set the session's gates.
    pub ready: Vec<oneshot::Receiver<()>>,
}

/// What a session gets to share.
#[derive(Debug)]
pub struct Pages {
    /// What it may do.
    pub grant: Arc<SharedPage<GrantPage>>,
    /// What it does.
    pub meter: Arc<SharedPage<MeterPage>>,
    /// Its tenant's memory.
    pub ledger: Arc<SharedPage<LedgerPage>>,
    /// The host's heartbeat.
    pub beat: Arc<SharedPage<BeatPage>>,
    /// One bell for each GPU that is managed, in the hello's order.
    pub bells: Vec<Bell>,
}

/// A tenant that nobody is left of.
#[derive(Debug, PartialEq, Eq)]
pub struct Left {
    tenant: TenantId,
    left: u64,
}

/// How much there is, in a line.
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
    /// A registry without tenants.
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
            started_ns,
            gpus,
            beat,
            tenants: BTreeMap::new(),
            next_id: 1,
            departures: 0,
        }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Opens every gate and stops arbitrating, for good.
    pub fn open_gates(&mut self) {
        self.gpus.clear();
    }

    /// Whether any process or keeper is here.
    pub fn is_deserted(&self) -> bool {
        self.tenants.values().all(Tenant::is_deserted)
    }

    /// How much there is.
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

    /// Lets a peer in, or says why not.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn admit(&mut self, peer: Peer, hello: &Hello) -> Result<Admitted, Refused> {
        let role = hello
            .role()
            .ok_or_else(|| Refused::new(RefusalKind::Malformed, format!("{} is no role", hello.role)))?;
        let name = tenant_name(peer, hello)?;
        let asked = self.check_request(peer, hello)?;
        self.find_or_make_tenant(&name, peer, asked, role)?;
        match role {
            Role::Keeper => {
                let tenant = self.tenants.get_mut(&name).ok_or_else(gone)?;
                tenant.keepers += 1;
                let mut welcome = Welcome::new(0, 0);
                wire::set_text(&mut welcome.tenant, &name);
                Ok(Admitted { tenant: name, session: None, welcome, pages: None, ready: Vec::new() })
            }
            Role::Session => self.admit_session(&name, peer, hello),
        }
    }

    /// What a hello asks for, if its user may ask for that.
    fn check_request(&self, peer: Peer, hello: &Hello) -> Result<Asked, Refused> {
        let refused = |reason| Err(Refused::new(RefusalKind::Request, reason));
        let caps = self.config.caps_of(peer.uid);
        let asked = Asked {
            share_ppm: (hello.share_ppm != 0).then_some(hello.share_ppm),
            memory_bytes: (hello.memory_bytes != 0).then_some(hello.memory_bytes),
        };
        if let Some(ppm) = asked.share_ppm {
            if !(MIN_SHARE_PPM..=PPM).contains(&ppm) {
                return refused(format!("a share of {} is not between 1% and 100%", Percent(ppm)));
            }
            if ppm > caps.share_ppm {
                return refused(format!(
                    "a share of {} was asked for, but each tenant of user {} may have {} at most: ask for less, or have an administrator raise it",
                    Percent(ppm),
                    peer.uid,
                    Percent(caps.share_ppm)
                ));
            }
        }
        if let Some(bytes) = asked.memory_bytes
            && bytes > caps.memory_bytes
        {
            return refused(format!(
                "{} of memory were asked for, but each tenant of user {} may have {} at most: ask for less, or have an administrator raise it",
                Bytes(bytes),
                peer.uid,
                Bytes(caps.memory_bytes)
            ));
        }
        Ok(asked)
    }

    /// Finds or makes the tenant. The first to ask decides what it asks for; whoever comes later with another wish is refused if it
    /// is a `deepres run`, and overruled if it is one of the job's processes.
    fn find_or_make_tenant(
        &mut self,
        name: &str,
        peer: Peer,
        asked: Asked,
        role: Role,
    ) -> Result<(), Refused> {
        let Some(tenant) = self.tenants.get_mut(name) else {
            let ledger = SharedPage::create("deepres-ledger", Writer::Anyone).map_err(no_room)?;
            let id = self.next_id();
            let tenant = Tenant {
                id,
                uid: peer.uid,
                asked,
                is_set: false,
                ledger: Arc::new(ledger),
                gpus: Vec::new(),
                sessions: BTreeMap::new(),
                keepers: 0,
                returning: BTreeSet::new(),
                is_awaited: false,
                left: 0,
            };
            self.tenants.insert(name.to_owned(), tenant);
            return Ok(());
        };
        if tenant.uid != peer.uid {
            let reason = format!("the tenant `{name}` belongs to user {}: choose another name", tenant.uid);
            return Err(Refused::new(RefusalKind::Request, reason));
        }
        if tenant.is_deserted() {
            tenant.asked = asked;
            tenant.is_set = false;
        } else {
            let differs = |now: Option<u64>, asked: Option<u64>| asked.is_some() && asked != now;
            let is_other = differs(tenant.asked.share_ppm.map(u64::from), asked.share_ppm.map(u64::from))
                || differs(tenant.asked.memory_bytes, asked.memory_bytes);
            if role == Role::Keeper && is_other {
                let reason = format!(
                    "the tenant `{name}` runs already with {}: leave --share and --memory out, choose another --name, or change it with `deepres set {name} …`",
                    tenant.asked
                );
                return Err(Refused::new(RefusalKind::Request, reason));
            }
            if !tenant.is_set {
                tenant.asked.share_ppm = tenant.asked.share_ppm.or(asked.share_ppm);
                tenant.asked.memory_bytes = tenant.asked.memory_bytes.or(asked.memory_bytes);
            }
        }
        Ok(())
    }

    fn admit_session(&mut self, name: &str, peer: Peer, hello: &Hello) -> Result<Admitted, Refused> {
        let session_id = self.next_id();
        let caps = self.config.caps_of(peer.uid);
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

        let process = ProcessKey::of(peer.pid);
        if let Some(process) = process {
            tenant.returning.remove(&process);
        }
        let seat = tenant.seat(caps);
        let mut ready = Vec::new();
        for (gpu, bell) in gpus.iter().zip(&pages.bells) {
            if let Some(ledger) = tenant.ledger.page().gpu(*gpu) {
                ledger.open(slot);
            }
            if !tenant.gpus.contains(gpu) {
                tenant.gpus.push(*gpu);
            }
            let session = SessionSeat {
                id: session_id,
                grant: Arc::clone(&pages.grant),
                meter: Arc::clone(&pages.meter),
                bell: bell.clone(),
                process,
                continues: hello.sessions_before > 0,
            };
            ready.push(self.gpus[*gpu].arbiter.enter(seat.clone(), session));
        }
        let client = harmless(wire::text(&hello.client).unwrap_or("?"));
        tracing::info!(
            tenant = name,
            session = session_id,
            pid = peer.pid,
            uid = peer.uid,
            client,
            "a session begins"
        );
        let meter = Arc::clone(&pages.meter);
        tenant.sessions.insert(session_id, Session { pid: peer.pid, process, client, slot, gpus, meter });
        Ok(Admitted {
            tenant: name.to_owned(),
            session: Some(session_id),
            welcome,
            pages: Some(pages),
            ready,
        })
    }

    /// A session or, without one, a keeper is gone: its memory and its leases are free. Returns the tenant if nobody is left
    /// of it.
    pub fn depart(&mut self, name: &str, session: Option<SessionId>) -> Option<Left> {
        let tenant = self.tenants.get_mut(name)?;
        match session {
            None => tenant.keepers = tenant.keepers.saturating_sub(1),
            Some(id) => {
                let session = tenant.sessions.remove(&id)?;
                // A process that only lost its connection makes another.
                let returning = session.process.filter(|process| process.is_alive());
                tenant.returning.extend(returning);
                for gpu in &session.gpus {
                    self.gpus[*gpu].arbiter.leave(tenant.id, id, returning.is_some());
                }
                let ledger = tenant.ledger.page();
                let freed = (0..self.gpus.len()).filter_map(|gpu| ledger.gpu(gpu)?.clear(session.slot));
                let freed_bytes: u64 = freed.fold(0, u64::saturating_add);
                tracing::info!(
                    tenant = name,
                    session = id,
                    pid = session.pid,
                    freed_bytes,
                    "a session ended"
                );
            }
        }
        self.note_desertion(name)
    }

    /// If nobody is left of a tenant, notes when that was.
    fn note_desertion(&mut self, name: &str) -> Option<Left> {
        let tenant = self.tenants.get_mut(name)?;
        if !tenant.is_deserted() {
            return None;
        }
        self.departures += 1;
        tenant.left = self.departures;
        let left = Left { tenant: tenant.id, left: tenant.left };
        if tenant.gpus.is_empty() {
            // There is no account to remember.
            self.tenants.remove(name);
            return None;
        }
        self.forget_oldest();
        Some(left)
    }

    /// Forgets the tenant that was left first, if too many are remembered.
    fn forget_oldest(&mut self) {
        let deserted = || self.tenants.iter().filter(|(_, tenant)| tenant.is_deserted());
        if deserted().count() > MAX_DESERTED
            && let Some((name, tenant)) = deserted().min_by_key(|(_, tenant)| tenant.left)
        {
            let (name, left) = (name.clone(), Left { tenant: tenant.id, left: tenant.left });
            self.forget(&name, &left);
        }
    }

    /// Forgets a tenant, if nobody came back to it.
    pub fn forget(&mut self, name: &str, left: &Left) {
        let is_still_left = self.tenants.get(name).is_some_and(|tenant| {
            tenant.is_deserted() && Left { tenant: tenant.id, left: tenant.left } == *left
        });
        if is_still_left && let Some(tenant) = self.tenants.remove(name) {
            for gpu in &tenant.gpus {
                self.gpus[*gpu].arbiter.forget(tenant.id);
            }
        }
    }

    /// Changes what a tenant asks for, at an administrator's word. The receivers are fulfilled when it is in force.
    ///
    /// # Errors
    /// What to tell the administrator.
    pub fn set(
        &mut self,
        name: &str,
        share_ppm: Option<u32>,
        memory_bytes: Option<u64>,
    ) -> Result<(Reply, Vec<oneshot::Receiver<()>>), String> {
        if let Some(ppm) = share_ppm.filter(|ppm| !(MIN_SHARE_PPM..=PPM).contains(ppm)) {
            return Err(format!("a share of {} is not between 1% and 100%", Percent(ppm)));
        }
        if memory_bytes == Some(0) {
            return Err("a memory limit of 0 lets nothing run".to_owned());
        }
        let living = self.tenants.iter().filter(|(_, tenant)| !tenant.is_deserted());
        let mut known: Vec<_> = living.map(|(name, _)| name.clone()).take(MAX_NAMES_SHOWN + 1).collect();
        if known.len() > MAX_NAMES_SHOWN {
            known[MAX_NAMES_SHOWN] = "…".to_owned();
        }
        let Some(tenant) = self.tenants.get_mut(name) else {
            return Err(if known.is_empty() {
                format!("there is no tenant `{name}`; there are none at all: start one with `deepres run`")
            } else {
                format!("there is no tenant `{name}`; there are: {}", known.join(", "))
            });
        };
        tenant.is_set = true;
        tenant.asked.share_ppm = share_ppm.or(tenant.asked.share_ppm);
        tenant.asked.memory_bytes = memory_bytes.or(tenant.asked.memory_bytes);
        tracing::info!(tenant = name, asked = %tenant.asked, "an administrator set a tenant");
        let seat = tenant.seat(self.config.caps_of(tenant.uid));
        let set =
            |gpu: &usize| self.gpus[*gpu].arbiter.set_tenant(seat.id, seat.request, seat.memory_limit_bytes);
        let in_force = tenant.gpus.iter().map(set).collect();
        Ok((
            Reply::Set { share_ppm: tenant.asked.share_ppm, memory_bytes: tenant.asked.memory_bytes },
            in_force,
        ))
    }

    /// Asks every arbiter for its report.
    pub fn reports(&self) -> Vec<oneshot::Receiver<Report>> {
        self.gpus.iter().map(|managed| managed.arbiter.report()).collect()
    }
}

impl Tenant {
    fn is_deserted(&self) -> bool {
        self.sessions.is_empty() && self.keepers == 0 && !self.is_awaited
    }

    fn free_slot(&self) -> Option<usize> {
        (0..MAX_SESSIONS).find(|slot| self.sessions.values().all(|session| session.slot != *slot))
    }

    /// The tenant as arbiters need it. Caps bound what nobody named: requests were checked against them, administrators are
    /// above them.
    fn seat(&self, caps: Caps) -> TenantSeat {
        let asked_ppm = self.asked.share_ppm;
        TenantSeat {
            id: self.id,
            request: Request {
                asked_ppm,
                cap_ppm: caps.share_ppm.max(asked_ppm.unwrap_or(0)),
                ..Request::default()
            },
            memory_limit_bytes: self.asked.memory_bytes.unwrap_or(caps.memory_bytes),
            ledger: Arc::clone(&self.ledger),
        }
    }
}

impl std::fmt::Display for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.share_ppm {
            Some(ppm) => write!(f, "a share of {}", Percent(ppm))?,
            None => write!(f, "no share of its own")?,
        }
        match self.memory_bytes {
            Some(bytes) => write!(f, " and {} of memory", Bytes(bytes)),
            None => write!(f, " and no memory limit"),
        }
    }
}

/// The name a hello gives, or one made from the process.
fn tenant_name(peer: Peer, hello: &Hello) -> Result<String, Refused> {
    let malformed = |reason: &str| Refused::new(RefusalKind::Request, reason);
    let name = wire::text(&hello.tenant).ok_or_else(|| malformed("the tenant's name is not UTF-8"))?;
    if name.is_empty() {
        let command = command_name(peer.pid).unwrap_or_else(|| "process".to_owned());
        return Ok(format!("{}-{}", harmless(&command), peer.pid));
    }
    if name.chars().any(is_harmful) || name.trim().is_empty() {
        return Err(malformed("the tenant's name has control characters in it, or nothing that can be seen"));
    }
    Ok(name.to_owned())
}

fn gone() -> Refused {
    Refused::new(RefusalKind::Stopping, "the tenant is being forgotten: try again")
}

fn no_room(error: io::Error) -> Refused {
    Refused::new(RefusalKind::Full, format!("the daemon cannot make another session's pages: {error}"))
}
