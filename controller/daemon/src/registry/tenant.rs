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

/// The number of a keeper.
pub type KeeperId = u64;

/// Returns what a job wants of its user's caps. `asked` are the job's wishes, and `set` are an
/// administrator's settings. The job holds `held_bytes` of memory.
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
    /// The tenant's number.
    pub id: TenantId,
    /// The key that distinguishes the tenant from all others.
    pub key: Key,
    /// How the daemon found out that the tenant's first process belongs to the tenant.
    pub found: Found,
    /// The container of the tenant's first process.
    pub container: Option<Container>,
    /// The user who owns the tenant.
    pub user: u32,
    /// The groups of the tenant's first process, as far as the configuration has caps for them.
    pub groups: Vec<u32>,
    /// The caps of the tenant's user, and whose caps these are.
    pub caps: (Caps, CapOf),
    /// The tenant's part of the user's caps.
    pub part: Part,
    /// The wishes of the tenant's job.
    pub asked: Wish,
    /// The configuration's defaults for wishes that the job does not state.
    pub defaults: Wish,
    /// When the job first asked, ns of `CLOCK_MONOTONIC`. Deadlines of the job count from this
    /// time.
    pub asked_ns: u64,
    /// The GPU time that the job has used on all GPUs.
    pub job: Arc<JobUse>,
    /// The settings of an administrator.
    pub set: Wish,
    /// Whether an administrator paused the tenant.
    pub is_paused: bool,
    /// When an administrator last set a deadline, ns of `CLOCK_MONOTONIC`. The deadline counts from
    /// this time.
    pub set_ns: u64,
    /// How the tenant's memory makes room for others; `None` if the tenant did not opt in.
    pub oversubscribe: Option<Oversubscribe>,
    /// The time before which the driver is not asked to suspend the tenant, because it could not do
    /// so before, ns of `CLOCK_MONOTONIC`.
    pub stays_until_ns: u64,
    /// Whether the tenant is suspended, or on its way off the GPUs.
    pub is_suspended: bool,
    /// Whether there is room for the tenant's guarantee beside those of others. Also true for a
    /// tenant that asked for none.
    pub has_room: bool,
    /// GPUs that the tenant came to use, but that have no room for its memory guarantee. The tenant
    /// has no guarantee there.
    pub unpromised: BTreeSet<usize>,
    /// The tenant's ledger.
    pub ledger: Arc<SharedPage<LedgerPage>>,
    /// The memory that the tenant holds by NVML, by GPU.
    pub by_nvml: BTreeMap<usize, ByNvml>,
    /// The use of the driver by the tenant's processes.
    pub driver: DriverSignals,
    /// The tenant's present bound within its user's cap on memory, by GPU.
    pub bounds: BTreeMap<usize, Bound>,
    /// The tenant's ceiling on each GPU, bytes. A GPU without an entry has no ceiling for the
    /// tenant.
    pub ceilings: BTreeMap<usize, u64>,
    /// The memory that the tenant held lately, by GPU, if its memory follows its use.
    pub used: BTreeMap<usize, Use>,
    /// The GPUs on which any session of the tenant has been.
    pub gpus: Vec<usize>,
    /// The tenant's sessions.
    pub sessions: BTreeMap<SessionId, Session>,
    /// The tenant's keepers. Each is a `deepres run`, with its process if this could be looked at.
    pub keepers: BTreeMap<KeeperId, Option<ProcessKey>>,
    /// Processes without a session that had one before. While they live, the arbiters remember the
    /// point up to which each was charged.
    pub returning: BTreeSet<ProcessKey>,
    /// The former slots: slots of the ledger whose sessions are over.
    pub former_slots: FormerSlots,
    /// Whether the tenant was here when the previous daemon last saved, and may still come back.
    pub is_awaited: bool,
    /// When the tenant was last deserted, ns of `CLOCK_MONOTONIC`; 0 if never.
    pub left_ns: u64,
}

/// The bound of a tenant on a GPU, within its user's cap on memory.
#[derive(Debug, Default)]
pub struct Bound {
    /// The bound, bytes. The tenant's sessions have been told it, or will be.
    pub bytes: u64,
    /// The limit that the tenant's sessions have been told, bytes.
    pub in_force: Arc<AtomicU64>,
}

/// A session.
#[derive(Debug)]
pub struct Session {
    /// Marks the process as one that has a session.
    pub _presence: Presence,
    /// The process's id.
    pub pid: u32,
    /// The source that is charged for the process.
    pub source: Source,
    /// The process's key; `None` if the process could not be looked at.
    pub process: Option<ProcessKey>,
    /// The process's command line, shortened.
    pub client: String,
    /// The container that the process is in.
    pub container: Option<Container>,
    /// The session's slot in the ledger.
    pub slot: usize,
    /// The GPUs that the session uses.
    pub gpus: Vec<usize>,
    /// The session's meter page.
    pub meter: Arc<SharedPage<MeterPage>>,
}

impl Tenant {
    /// Returns whether no session and no keeper of the tenant is here, and the tenant is not
    /// awaited.
    pub fn is_deserted(&self) -> bool {
        !self.is_present() && !self.is_awaited
    }

    /// Returns whether a session or a keeper of the tenant is here.
    pub fn is_present(&self) -> bool {
        !self.sessions.is_empty() || !self.keepers.is_empty()
    }

    /// Returns whether a process is the tenant's own: a session, a keeper or a returning process.
    pub fn has(&self, process: &Process) -> bool {
        let key = process.key();
        let sessions = self.sessions.values().map(|session| &session.process);
        sessions.chain(self.keepers.values()).any(|own| *own == Some(key)) || self.returning.contains(&key)
    }

    /// Returns a slot of the ledger that no session has. Prefers a slot that no process may write
    /// any more. A process that comes back still writes its former slot when it finishes what it
    /// began before.
    pub fn free_slot(&self) -> Option<usize> {
        let is_free = |slot: &usize| self.sessions.values().all(|session| session.slot != *slot);
        let is_clean = |slot: &usize| is_free(slot) && !self.former_slots.has(*slot);
        (0..MAX_SESSIONS).find(is_clean).or_else(|| (0..MAX_SESSIONS).find(is_free))
    }

    /// Empties the former slots of dead processes, in the ledgers of the first `gpus` GPUs.
    pub fn clear_slots_of_the_dead(&mut self, gpus: usize) {
        let ledger = self.ledger.page();
        for slot in self.former_slots.bury(ProcessKey::is_alive) {
            for ledger in ledger.all(gpus) {
                ledger.clear(slot);
            }
        }
    }

    /// Excludes unused slots at the end of the ledger from later reading, on the first `gpus` GPUs.
    /// No process can still write these slots.
    pub fn give_slots_back(&self, gpus: usize) {
        let used = self.sessions.values().map(|session| session.slot + 1).max().unwrap_or(0);
        let used = used.max(self.former_slots.count());
        let ledger = self.ledger.page();
        ledger.all(gpus).for_each(|ledger| ledger.shrink(used..ledger.slots()));
    }

    /// Returns whether the tenant shares a cap on memory with its user's other tenants. An
    /// administrator's limit takes the tenant out of the cap.
    pub fn is_bound(&self) -> bool {
        self.caps.0.memory_bytes != NO_LIMIT && self.set.memory_bytes.is_none()
    }

    /// Returns the most memory of a GPU that the tenant holds, or can come to hold before it is
    /// told a lower limit, bytes.
    pub fn reach_bytes(&self, gpu: usize) -> u64 {
        let ledger = self.ledger.page().gpu(gpu);
        // The limit must be read before the ledger. Then the ledger shows all memory that was
        // reserved under an earlier limit.
        let told_bytes = self
            .bounds
            .get(&gpu)
            .filter(|_| self.is_bound())
            .map_or(0, |bound| bound.bytes.max(bound.in_force.load(Ordering::SeqCst)));
        told_bytes.max(ledger.map_or(0, |ledger| ledger.held_and_pending_bytes()))
    }

    /// Returns what the tenant wants of its user's caps on a GPU.
    pub fn wants_on(&self, gpu: usize) -> Wants {
        wants(&self.asked.or(self.defaults), &self.set, self.held_bytes(gpu))
    }

    /// Returns the tenant's grant.
    pub fn granted(&self) -> Granted {
        self.granted_with(&self.set)
    }

    /// Returns the grant that the tenant would have if an administrator had set `set`.
    pub fn granted_with(&self, set: &Wish) -> Granted {
        grant(&self.asked.or(self.defaults), set, self.caps, &self.part, self.has_room).told_by(&self.asked)
    }

    /// Returns the share that the tenant is guaranteed, parts per million; 0 for none.
    pub fn promised_ppm(&self) -> u32 {
        let granted = self.granted();
        if granted.class.value == Class::Guaranteed { granted.share_ppm.value.unwrap_or(0) } else { 0 }
    }

    /// Returns whether the tenant can be suspended now, so that its memory makes room for others.
    pub fn may_leave(&self) -> bool {
        self.lets_itself_be_suspended() && monotonic_ns() >= self.stays_until_ns
    }

    /// Returns whether the tenant opted in to being suspended.
    pub fn lets_itself_be_suspended(&self) -> bool {
        self.oversubscribe == Some(Oversubscribe::Suspend)
    }

    /// Returns the memory that the tenant is guaranteed on a GPU, bytes; 0 for none.
    pub fn promised_bytes_on(&self, gpu: usize) -> u64 {
        if self.unpromised.contains(&gpu) { 0 } else { self.promised_bytes() }
    }

    /// Returns the part of the granted memory that is kept for the tenant on a GPU, bytes. Returns
    /// `None` unless the tenant's memory follows its use.
    pub fn kept_bytes(&self, gpu: usize) -> Option<u64> {
        let granted = self.granted();
        let used = self.used.get(&gpu).filter(|_| granted.memory_follows_use.value)?;
        Some(used.kept_bytes(granted.memory_bytes.value.unwrap_or(NO_LIMIT)))
    }

    /// Returns the memory of a GPU that the tenant holds by its ledger, bytes.
    pub fn held_bytes(&self, gpu: usize) -> u64 {
        self.ledger.page().gpu(gpu).map_or(0, |ledger| ledger.held_bytes())
    }

    /// Takes in the memory of a GPU that the tenant holds now. Forgets all such figures if the
    /// tenant's memory does not follow its use.
    pub fn note_use(&mut self, gpu: usize, now_ns: u64, window_ns: u64) {
        if !self.granted().memory_follows_use.value {
            self.used.clear();
            return;
        }
        let held_bytes = self.held_bytes(gpu);
        self.used.entry(gpu).or_insert_with(|| Use::new(now_ns)).take_in(now_ns, held_bytes, window_ns);
    }

    /// Returns the memory that the tenant is guaranteed on each GPU with room for it, bytes; 0 for
    /// none.
    pub fn promised_bytes(&self) -> u64 {
        let granted = self.granted();
        if granted.class.value == Class::Guaranteed { granted.memory_bytes.value.unwrap_or(0) } else { 0 }
    }

    /// Returns the tenant as the arbiter of a GPU needs it.
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

    /// Returns the tenant as arbiters need it, without the bounds of a single GPU.
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
