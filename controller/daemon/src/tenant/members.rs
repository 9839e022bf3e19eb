//! The members of a tenant: its sessions, its keepers, and the processes that can reconnect.

use super::slots::FormerSlots;
use crate::arbiter::SessionId;
use crate::identity::source::Source;
use crate::identity::tree::Process;
use crate::mps_clients::Client;
use crate::probes::Presence;
use crate::shm::SharedPage;
use deepres_abi::grant::GrantPage;
use deepres_abi::ledger::MAX_SESSIONS;
use deepres_abi::meter::MeterPage;
use deepres_model::clock::monotonic_ns;
use deepres_model::identity::Container;
use deepres_model::process::ProcessKey;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The number of a keeper.
pub type KeeperId = u64;

/// A session of the tenant, as the registry records it.
#[derive(Debug)]
pub struct Session {
    /// The mark of a process with a session. The process has the mark while this value exists.
    pub _presence: Presence,
    /// The process's id.
    pub pid: u32,
    /// The source whose limits count the process.
    pub source: Source,
    /// The process's key; `None` if the daemon could not look at the process.
    pub process: Option<ProcessKey>,
    /// The process's command line, shortened.
    pub client: String,
    /// The container that the process is in.
    pub container: Option<Container>,
    /// The session's slot in the ledger.
    pub slot: usize,
    /// The GPUs that the session uses.
    pub gpus: Vec<usize>,
    /// The session's grant page.
    pub grant: Arc<SharedPage<GrantPage>>,
    /// The session's meter page.
    pub meter: Arc<SharedPage<MeterPage>>,
    /// Whether the session's process is a client of MPS.
    pub mps: Arc<Client>,
}

/// A session that has ended, and whether its process can reconnect.
#[derive(Debug)]
pub struct Ended {
    /// The session.
    pub session: Session,
    /// Whether the session's process can reconnect.
    pub may_return: bool,
}

/// The members of one tenant: sessions, keepers, and processes that can reconnect.
#[derive(Debug, Default)]
pub struct Members {
    sessions: BTreeMap<SessionId, Session>,
    /// The keepers, each with its process; `None` if the daemon could not look at the process.
    keepers: BTreeMap<KeeperId, Option<ProcessKey>>,
    /// Processes without a session that had a session before. While such a process lives, the
    /// arbiters remember the point up to which they charged it.
    returning: BTreeSet<ProcessKey>,
    /// The former slots: slots of the ledger whose sessions have ended.
    former_slots: FormerSlots,
    /// Whether the tenant was present when the previous daemon last saved, and can still come back.
    is_awaited: bool,
    /// The members that the previous daemon saved; `None` if it did not know all of them.
    awaited: Option<Vec<ProcessKey>>,
    /// When the tenant last became deserted ([`Self::is_deserted`]), ns of `CLOCK_MONOTONIC`; 0 if
    /// never.
    left_ns: u64,
}

impl Members {
    /// Returns the members of a tenant of the previous daemon. The processes in `returning` can
    /// come back. With `is_awaited`, keepers can come back too. `awaited` are all members that the
    /// previous daemon saved; `None` if it did not know all of them.
    pub fn restored(
        returning: BTreeSet<ProcessKey>,
        is_awaited: bool,
        awaited: Option<Vec<ProcessKey>>,
    ) -> Self {
        let left_ns = if is_awaited { 0 } else { monotonic_ns() };
        Self { returning, is_awaited, awaited, left_ns, ..Self::default() }
    }

    /// Returns whether the tenant has a session or a keeper.
    pub fn is_present(&self) -> bool {
        !self.sessions.is_empty() || !self.keepers.is_empty()
    }

    /// Returns whether the tenant is deserted: it has no session and no keeper, and the daemon
    /// awaits no member of the previous daemon.
    pub fn is_deserted(&self) -> bool {
        !self.is_present() && !self.is_awaited
    }

    /// Returns whether the tenant is deserted, or all members that the daemon awaits are dead. A
    /// new job can then have the tenant's name, with other wishes.
    pub fn are_gone(&self) -> bool {
        let are_dead = |awaited: &Vec<ProcessKey>| !awaited.iter().any(|process| process.is_alive());
        self.is_deserted() || !self.is_present() && self.awaited.as_ref().is_some_and(are_dead)
    }

    /// Returns the time since which the tenant has been deserted, ns of `CLOCK_MONOTONIC`; 0 if the
    /// tenant never had a member. Returns `None` if the tenant is not deserted.
    pub fn deserted_ns(&self) -> Option<u64> {
        self.is_deserted().then_some(self.left_ns)
    }

    /// If the tenant is deserted, records the present time as the beginning. Returns whether the
    /// tenant is deserted.
    pub fn note_desertion(&mut self) -> bool {
        if self.is_deserted() {
            self.left_ns = monotonic_ns();
        }
        self.is_deserted()
    }

    /// Ends the wait for members of the previous daemon. Returns whether the daemon awaited any.
    pub fn stop_waiting(&mut self) -> bool {
        std::mem::take(&mut self.is_awaited)
    }

    /// Returns whether a process is a member: it has a session, is a keeper, or can come back.
    pub fn has(&self, process: &Process) -> bool {
        let key = process.key();
        let sessions = self.sessions.values().map(|session| &session.process);
        sessions.chain(self.keepers.values()).any(|own| *own == Some(key)) || self.returning.contains(&key)
    }

    /// Returns the processes of the sessions and keepers, and the processes that can come back.
    /// Returns `None` if the daemon could not look at one of these processes, or still awaits
    /// members of the previous daemon.
    pub fn processes(&self) -> Option<Vec<ProcessKey>> {
        let present = self.sessions.values().map(|session| session.process);
        let all =
            present.chain(self.keepers.values().copied()).chain(self.returning.iter().copied().map(Some));
        let all = all.collect::<Option<Vec<_>>>()?;
        (!self.is_awaited).then_some(all)
    }

    /// Returns the sessions by their numbers.
    pub fn sessions(&self) -> &BTreeMap<SessionId, Session> {
        &self.sessions
    }

    /// Returns whether a session uses a GPU.
    pub fn are_on(&self, gpu: usize) -> bool {
        self.sessions.values().any(|session| session.gpus.contains(&gpu))
    }

    /// Returns the number of keepers.
    pub fn keepers(&self) -> usize {
        self.keepers.len()
    }

    /// Returns the processes that had a session before, have none now, and can reconnect.
    pub fn returning(&self) -> &BTreeSet<ProcessKey> {
        &self.returning
    }

    /// Adds a keeper.
    pub fn keep(&mut self, id: KeeperId, process: Option<ProcessKey>) {
        self.keepers.insert(id, process);
    }

    /// Removes a keeper.
    pub fn stop_keeping(&mut self, id: KeeperId) {
        self.keepers.remove(&id);
    }

    /// Returns a slot of the ledger that no session has. Prefers a slot that no process can still
    /// write. A process whose session ended can still write its former slot, when it finishes an
    /// earlier call.
    pub fn free_slot(&self) -> Option<usize> {
        let is_free = |slot: &usize| self.sessions.values().all(|session| session.slot != *slot);
        let is_clean = |slot: &usize| is_free(slot) && !self.former_slots.has(*slot);
        (0..MAX_SESSIONS).find(is_clean).or_else(|| (0..MAX_SESSIONS).find(is_free))
    }

    /// Adds a session.
    pub fn begin(&mut self, id: SessionId, session: Session) {
        if let Some(process) = session.process {
            self.returning.remove(&process);
        }
        self.former_slots.remove(session.slot);
        self.sessions.insert(id, session);
    }

    /// Removes a session, and returns it. If the process is still alive, perhaps only its
    /// connection broke. In this case, with `is_remembered`, the tenant keeps the process in
    /// `returning`, so that the process can reconnect.
    pub fn end(&mut self, id: SessionId, is_remembered: bool) -> Option<Ended> {
        let session = self.sessions.remove(&id)?;
        let is_dead = session.process.is_some_and(|process| !process.is_alive());
        let returning = session.process.filter(|_| is_remembered && !is_dead);
        self.returning.extend(returning);
        if !is_dead {
            self.former_slots.add(session.slot, session.process);
        }
        Some(Ended { session, may_return: returning.is_some() })
    }

    /// Forgets dead processes that had a session before. Returns these processes, and the slots
    /// that no process writes any more.
    pub fn bury_the_dead(&mut self) -> (Vec<ProcessKey>, Vec<usize>) {
        let dead = self.returning.extract_if(.., |process| !process.is_alive()).collect();
        (dead, self.former_slots.bury(ProcessKey::is_alive))
    }

    /// Returns the number of slots up to the last slot that a process can write.
    pub fn used_slots(&self) -> usize {
        let used = self.sessions.values().map(|session| session.slot + 1).max().unwrap_or(0);
        used.max(self.former_slots.count())
    }
}
