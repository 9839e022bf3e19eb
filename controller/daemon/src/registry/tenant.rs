//! A tenant: what it asked for, what it is granted, and its processes.

use super::reconcile::ByNvml;
use super::slots::FormerSlots;
use crate::arbiter::{JobUse, SessionId, TenantSeat};
use crate::identity::Key;
use crate::identity::source::Source;
use crate::identity::tree::Process;
use crate::probes::Presence;
use crate::shm::SharedPage;
use deepres_abi::grant::NO_LIMIT;
use deepres_abi::ledger::{LedgerPage, MAX_SESSIONS};
use deepres_abi::meter::MeterPage;
use deepres_abi::oversubscribe::Oversubscribe;
use deepres_model::authority::{Granted, Part, Rule, Want, Wants, Wish, grant};
use deepres_model::clock::monotonic_ns;
use deepres_model::config::{CapOf, Caps};
use deepres_model::identity::Container;
use deepres_model::identity::Found;
use deepres_model::process::ProcessKey;
use deepres_policy::TenantId;
use deepres_policy::class::Class;
use deepres_policy::entitlement::Request;
use deepres_policy::memory::Use;
use deepres_policy::priority::Priority;
use deepres_policy::signals::DriverSignals;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tells keepers apart.
pub type KeeperId = u64;

/// What a job that asks for `asked`, of which an administrator set `set`, and that holds so much memory, wants of its user's caps.
pub fn wants(asked: &Wish, set: &Wish, held_bytes: u64) -> Wants {
    let want = |set: bool, asked: Option<u64>| match (set, asked) {
        (true, _) => Want::Above,
        (false, Some(asked)) => Want::Asked(asked),
        (false, None) => Want::Rest,
    };
    Wants {
        share: want(set.share_ppm.is_some(), asked.share_ppm.map(u64::from)),
        memory: want(set.memory_bytes.is_some(), asked.memory_bytes),
        held_bytes,
    }
}

/// A tenant.
#[derive(Debug)]
pub struct Tenant {
    /// Its number.
    pub id: TenantId,
    /// What makes it the one that it is.
    pub key: Key,
    /// How its first process was found to be one of it.
    pub found: Found,
    /// The container of its first process.
    pub container: Option<Container>,
    /// Whose it is.
    pub user: u32,
    /// The groups that user is in.
    pub groups: Vec<u32>,
    /// What that user may have.
    pub caps: (Caps, CapOf),
    /// What of that is this tenant's.
    pub part: Part,
    /// What its job asked for.
    pub asked: Wish,
    /// What it is taken to ask for where it says nothing.
    pub defaults: Wish,
    /// When it first asked, ns of `CLOCK_MONOTONIC`: deadlines count from there.
    pub asked_ns: u64,
    /// GPU time that its job has used.
    pub job: Arc<JobUse>,
    /// What an administrator set.
    pub set: Wish,
    /// An administrator paused it.
    pub is_paused: bool,
    /// When an administrator last set a deadline, ns of `CLOCK_MONOTONIC`.
    pub set_ns: u64,
    /// It lets its memory make room for others'.
    pub oversubscribe: Option<Oversubscribe>,
    /// The driver could not take it off, and is not asked to before then, ns of `CLOCK_MONOTONIC`.
    pub stays_until_ns: u64,
    /// It is off the GPUs, or on its way.
    pub is_suspended: bool,
    /// The guarantee that it asked for, if it did, fitted beside those of others when it asked.
    pub has_room: bool,
    /// GPUs that it came to use and that had no room for the memory that it was promised: it is not promised there.
    pub unpromised: BTreeSet<usize>,
    /// Its memory account.
    pub ledger: Arc<SharedPage<LedgerPage>>,
    /// What NVML says that it holds, by GPU.
    pub by_nvml: BTreeMap<usize, ByNvml>,
    /// What its processes do in the driver.
    pub driver: DriverSignals,
    /// What it may hold of its user's cap on memory at this moment, by GPU.
    pub bounds: BTreeMap<usize, Bound>,
    /// The most that it may hold of a GPU beside what others were promised, bytes, where that bounds it.
    pub ceilings: BTreeMap<usize, u64>,
    /// What it held of late, by GPU, if its memory follows its use.
    pub used: BTreeMap<usize, Use>,
    /// The GPUs that any of its sessions was on.
    pub gpus: Vec<usize>,
    /// Its processes that use GPUs.
    pub sessions: BTreeMap<SessionId, Session>,
    /// The `deepres run`s that keep it.
    pub keepers: BTreeMap<KeeperId, Option<ProcessKey>>,
    /// Processes of it that had a session and have none now: what they were charged up to is remembered while they live.
    pub returning: BTreeSet<ProcessKey>,
    /// Slots of the ledger of sessions that are over.
    pub former_slots: FormerSlots,
    /// It was here when the daemon before was last heard of, and had no time to come back yet.
    pub is_awaited: bool,
    /// When it was last left by all: ns of `CLOCK_MONOTONIC`; 0 if it never was.
    pub left_ns: u64,
}

/// What of its user's cap on memory a tenant may hold on a GPU.
#[derive(Debug, Default)]
pub struct Bound {
    /// So much, bytes, as its sessions are told or about to be.
    pub bytes: u64,
    /// The limit that they have by now.
    pub in_force: Arc<AtomicU64>,
}

/// A session.
#[derive(Debug)]
pub struct Session {
    /// Says that its process is a session.
    pub _presence: Presence,
    /// Its process's number.
    pub pid: u32,
    /// For whom it counts.
    pub source: Source,
    /// The process, told from all others; `None` if it could not be looked at.
    pub process: Option<ProcessKey>,
    /// Its command line, shortened.
    pub client: String,
    /// The container that it is in.
    pub container: Option<Container>,
    /// Its slot in the ledger.
    pub slot: usize,
    /// The GPUs that it is on.
    pub gpus: Vec<usize>,
    /// What it says of itself.
    pub meter: Arc<SharedPage<MeterPage>>,
}

impl Tenant {
    /// Nobody is here of it, nor is anybody waited for.
    pub fn is_deserted(&self) -> bool {
        !self.is_present() && !self.is_awaited
    }

    /// Somebody is here of it.
    pub fn is_present(&self) -> bool {
        !self.sessions.is_empty() || !self.keepers.is_empty()
    }

    /// Whether a process is one of its own.
    pub fn has(&self, process: &Process) -> bool {
        let key = process.key();
        let sessions = self.sessions.values().map(|session| &session.process);
        sessions.chain(self.keepers.values()).any(|own| *own == Some(key)) || self.returning.contains(&key)
    }

    /// A slot of the ledger that no session has: rather one in which nobody may write any more. What a process began before it came back ends in the
    /// slot that it had.
    pub fn free_slot(&self) -> Option<usize> {
        let is_free = |slot: &usize| self.sessions.values().all(|session| session.slot != *slot);
        let is_clean = |slot: &usize| is_free(slot) && !self.former_slots.has(*slot);
        (0..MAX_SESSIONS).find(is_clean).or_else(|| (0..MAX_SESSIONS).find(is_free))
    }

    /// Empties the slots of those that died without a session, on the first `gpus` GPUs.
    pub fn clear_slots_of_the_dead(&mut self, gpus: usize) {
        let ledger = self.ledger.page();
        for slot in self.former_slots.bury(ProcessKey::is_alive) {
            for ledger in ledger.all(gpus) {
                ledger.clear(slot);
            }
        }
    }

    /// Has nobody look at slots of the ledger on the first `gpus` GPUs that nobody can have written any more.
    pub fn give_slots_back(&self, gpus: usize) {
        let used = self.sessions.values().map(|session| session.slot + 1).max().unwrap_or(0);
        let used = used.max(self.former_slots.count());
        let ledger = self.ledger.page();
        ledger.all(gpus).for_each(|ledger| ledger.shrink(used..ledger.slots()));
    }

    /// Whether it shares a cap on memory with its user's other tenants.
    pub fn is_bound(&self) -> bool {
        self.caps.0.memory_bytes != NO_LIMIT && self.set.memory_bytes.is_none()
    }

    /// The most that it holds of a GPU or may come to hold there before it is told otherwise, bytes.
    pub fn reach_bytes(&self, gpu: usize) -> u64 {
        let ledger = self.ledger.page().gpu(gpu);
        // First what it was told: what it reserved under a limit that was in force before is in the ledger then.
        let told_bytes = self
            .bounds
            .get(&gpu)
            .filter(|_| self.is_bound())
            .map_or(0, |bound| bound.bytes.max(bound.in_force.load(Ordering::SeqCst)));
        told_bytes.max(ledger.map_or(0, |ledger| ledger.held_and_pending_bytes()))
    }

    /// What it wants of its user's caps on a GPU.
    pub fn wants_on(&self, gpu: usize) -> Wants {
        wants(&self.asked.or(self.defaults), &self.set, self.held_bytes(gpu))
    }

    /// What it is granted.
    pub fn granted(&self) -> Granted {
        self.granted_with(&self.set)
    }

    /// What it would be granted if an administrator had set this.
    pub fn granted_with(&self, set: &Wish) -> Granted {
        grant(&self.asked.or(self.defaults), set, self.caps, &self.part, self.has_room).told_by(&self.asked)
    }

    /// The share that it is guaranteed, parts per million; 0 for none.
    pub fn promised_ppm(&self) -> u32 {
        let granted = self.granted();
        if granted.class.value == Class::Guaranteed { granted.share_ppm.value.unwrap_or(0) } else { 0 }
    }

    /// Whether its memory can make room for others'.
    pub fn may_leave(&self) -> bool {
        self.lets_itself_be_suspended() && monotonic_ns() >= self.stays_until_ns
    }

    /// Whether it opted in to that.
    pub fn lets_itself_be_suspended(&self) -> bool {
        self.oversubscribe == Some(Oversubscribe::Suspend)
    }

    /// The memory that it is guaranteed on a GPU, bytes; 0 for none.
    pub fn promised_bytes_on(&self, gpu: usize) -> u64 {
        if self.unpromised.contains(&gpu) { 0 } else { self.promised_bytes() }
    }

    /// What is kept for it on a GPU of what it was granted, bytes, if its memory follows its use.
    pub fn kept_bytes(&self, gpu: usize) -> Option<u64> {
        let granted = self.granted();
        let used = self.used.get(&gpu).filter(|_| granted.memory_follows_use.value)?;
        Some(used.kept_bytes(granted.memory_bytes.value.unwrap_or(NO_LIMIT)))
    }

    /// What it holds of a GPU by its ledger, bytes.
    pub fn held_bytes(&self, gpu: usize) -> u64 {
        self.ledger.page().gpu(gpu).map_or(0, |ledger| ledger.held_bytes())
    }

    /// Takes in what it holds of a GPU now.
    pub fn note_use(&mut self, gpu: usize, now_ns: u64, window_ns: u64) {
        if !self.granted().memory_follows_use.value {
            self.used.clear();
            return;
        }
        let held_bytes = self.held_bytes(gpu);
        self.used.entry(gpu).or_insert_with(|| Use::new(now_ns)).take_in(now_ns, held_bytes, window_ns);
    }

    /// The memory that it is guaranteed on each GPU with room for it, bytes; 0 for none.
    pub fn promised_bytes(&self) -> u64 {
        let granted = self.granted();
        if granted.class.value == Class::Guaranteed { granted.memory_bytes.value.unwrap_or(0) } else { 0 }
    }

    /// The tenant as the arbiter of a GPU needs it.
    pub fn seat_on(&self, gpu: usize) -> TenantSeat {
        let seat = self.seat();
        let ceiling = self.ceilings.get(&gpu).copied().unwrap_or(NO_LIMIT);
        let bound = self.bounds.get(&gpu);
        let bound_bytes = if self.is_bound() { bound.map_or(0, |bound| bound.bytes) } else { NO_LIMIT };
        TenantSeat {
            memory_limit_bytes: seat.memory_limit_bytes.min(ceiling).min(bound_bytes),
            limit_in_force: bound.map(|bound| Arc::clone(&bound.in_force)).unwrap_or_default(),
            ..seat
        }
    }

    /// The tenant as arbiters need it, but for what bounds it on one GPU.
    pub fn seat(&self) -> TenantSeat {
        let granted = self.granted();
        let said_ns =
            if granted.deadline_ns.rule == Rule::Administrator { self.set_ns } else { self.asked_ns };
        TenantSeat {
            id: self.id,
            request: Request {
                class: granted.class.value,
                asked_ppm: granted.share_ppm.value,
                cap_ppm: granted.cap_ppm,
                ..Request::default()
            },
            priority: Priority {
                criticality: granted.criticality.value,
                deadline_ns: granted.deadline_ns.value.map(|deadline_ns| said_ns.saturating_add(deadline_ns)),
                size_ns: granted.size_ns.value,
            },
            job: Arc::clone(&self.job),
            slo_ns: granted.slo_ns.value,
            memory_limit_bytes: granted.memory_bytes.value.unwrap_or(NO_LIMIT),
            limit_in_force: Arc::default(),
            charge_copies: granted.charge_copies.value,
            is_paused: self.is_paused || self.is_suspended,
            is_suspended: self.is_suspended,
            ledger: Arc::clone(&self.ledger),
        }
    }
}
