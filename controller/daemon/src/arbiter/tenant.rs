//! The arbiter's records of tenants and their sessions.

use super::account::Account;
use super::overdue::Overdue;
use super::overlap::{Overlap, Said};
use super::saved::{Awaited, SavedMeter};
use super::stopped::Stopped;
use super::{SessionId, SessionSeat, TenantSeat};
use deepres_abi::grant::{GateState, GrantSlot, LeaseTerms};
use deepres_abi::ledger::{self, LedgerGpu};
use deepres_abi::meter::{MemoryKind, MeterSlot, Reading};
use deepres_policy::demand::Demand;
use deepres_policy::entitlement::Rule;
use deepres_policy::lease::Grant;
use deepres_policy::turns::{self, Turns};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// A session of a tenant.
pub struct Session {
    /// The session's pages and numbers.
    pub seat: SessionSeat,
    /// The last reading of the meter. Its memory figures date from the last time that the session
    /// was active.
    pub last: Reading,
    /// `Some` while the session's counters go on from earlier sessions and are not carried over
    /// yet.
    pub awaited: Option<Awaited>,
    /// Whether the process is stopped by a signal, or frozen.
    pub stopped: Stopped,
    /// Detects work that does not end.
    pub overdue: Overdue,
    /// The time that several sessions of the tenant count, each as its own.
    pub overlap: Overlap,
    /// The grant that the session's gate shows.
    pub gate: Grant,
}

impl Session {
    /// Returns the counters up to which the session was charged, and the time of that unless it is
    /// now. Returns `None` if that point is not known yet.
    pub fn charged_up_to(&self) -> Option<(SavedMeter, Option<u64>)> {
        match self.awaited {
            None => Some((self.last.into(), None)),
            Some(awaited) => awaited.from.map(|from| (from.meter, Some(from.at_ns))),
        }
    }

    /// Returns whether the session did nothing since the last reading and has nothing under way.
    pub fn rests(&self, slot: &MeterSlot) -> bool {
        !self.last.wants()
            && self.awaited.is_none()
            && !self.stopped.is_stopped()
            && slot.rests_since(&self.last)
    }

    /// Returns the memory that the session holds, bytes by kind. Counted kinds come from the meter
    /// page. Linear memory is the rest of the session's account in `ledger`, the ledger of that
    /// GPU.
    pub fn held_bytes(&self, gpu: usize, ledger: Option<&LedgerGpu>) -> [u64; MemoryKind::COUNT] {
        let slot = self.seat.meter.page().slot(gpu);
        let account = ledger.and_then(|ledger| ledger.account(self.seat.ledger_slot));
        let counted = slot.map_or([0; MemoryKind::COUNT], MeterSlot::held_bytes);
        with_the_rest(counted, account.map_or(0, ledger::Account::held_bytes))
    }

    /// Returns two amounts, as the session reports them: its memory beyond the limit, and the part
    /// of that memory brought to the GPU, bytes.
    pub fn beyond_bytes(&self, gpu: usize) -> (u64, u64) {
        let slot = self.seat.meter.page().beyond(gpu);
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        slot.map_or((0, 0), |slot| (read(&slot.held_bytes), read(&slot.brought_bytes)))
    }

    /// Returns whether the session ever launched anything. Many processes that see the GPU never
    /// use it.
    pub fn launches(&self) -> bool {
        (self.last.kernel_launches | self.last.graph_launches) != 0
    }

    /// Sets the session's gate. `terms` are the terms of a lease, or how far the session may run
    /// ahead.
    pub fn set_gate(&mut self, gpu: usize, grant: Grant, terms: LeaseTerms) {
        let before = std::mem::replace(&mut self.gate, grant);
        let Some(slot) = self.seat.grant.page().slot(gpu) else { return };
        match (before, grant) {
            (Grant::Leased { .. }, Grant::Leased { .. }) => slot.renew(terms),
            (_, Grant::Leased { .. } | Grant::Once) => drop(slot.set_gate(GateState::Leased, terms)),
            (_, Grant::Closed) => drop(slot.set_gate(GateState::Closed, LeaseTerms::default())),
            (Grant::Open, Grant::Open) => return slot.renew(terms),
            (_, Grant::Open) => drop(slot.set_gate(GateState::Open, terms)),
            (_, Grant::Paused) => drop(slot.set_gate(GateState::Paused, LeaseTerms::default())),
        }
        wake(slot);
    }
}

/// Returns the bytes by kind. Kinds that sessions count keep their value in `counted`. The kind
/// that is not counted gets the rest of `held_bytes`.
fn with_the_rest(counted: [u64; MemoryKind::COUNT], held_bytes: u64) -> [u64; MemoryKind::COUNT] {
    let mut by_kind = counted;
    let mut rest_bytes = held_bytes;
    for kind in MemoryKind::ALL.into_iter().filter(|kind| kind.is_counted()) {
        rest_bytes = rest_bytes.saturating_sub(counted[kind as usize]);
    }
    for kind in MemoryKind::ALL.into_iter().filter(|kind| !kind.is_counted()) {
        by_kind[kind as usize] = rest_bytes;
    }
    by_kind
}

/// A tenant and its state on this GPU.
pub struct Tenant {
    /// The registry's description of the tenant.
    pub seat: TenantSeat,
    /// The GPU time and other totals of the tenant.
    pub account: Account,
    /// The part of `account` that is already added to the job's use, ns.
    pub counted_ns: u64,
    /// The estimate of how much of the GPU the tenant wants.
    pub demand: Demand,
    /// The tenant's entitlement, parts per million.
    pub entitled_ppm: u32,
    /// The rule from which the entitlement follows; `None` until it was computed.
    pub rule: Option<Rule>,
    /// Whether the tenant was idle when entitlements were last computed, so that its part was lent
    /// to the others.
    pub is_lent: bool,
    /// The sessions connected at present.
    pub sessions: BTreeMap<SessionId, Session>,
    /// How far sessions with an open gate may run ahead, ns.
    pub run_ahead_ns: u64,
    /// The turns that the sessions take.
    pub turns: Turns,
    /// The latest observation of each session, in the order of their numbers.
    pub seen: Vec<turns::Seen>,
    /// When the sessions had work on the GPU; used if several of them launch.
    pub said: Said,
    /// The readings of sessions that did something: the one before and the present one.
    pub readings: Vec<(Reading, Reading)>,
}

impl Tenant {
    /// Returns a tenant that was not seen on this GPU yet.
    pub fn new(seat: TenantSeat, account: Account) -> Self {
        Self {
            seat,
            account,
            counted_ns: 0,
            demand: Demand::default(),
            entitled_ppm: 0,
            rule: None,
            is_lent: false,
            sessions: BTreeMap::new(),
            run_ahead_ns: 0,
            turns: Turns::default(),
            seen: Vec::new(),
            said: Said::default(),
            readings: Vec::new(),
        }
    }

    /// Returns the number of sessions that launch.
    pub fn launching(&self) -> usize {
        self.sessions.values().filter(|session| session.launches()).count()
    }

    /// Returns the grant for one session while the tenant's grant is `grant`. With `takes_turns`, a
    /// session whose turn it is not gets a closed gate. Ranks of a gang take no turns, because
    /// nobody knows which rank has its turn on another GPU.
    pub fn grant_of(&self, session: SessionId, grant: Grant, takes_turns: bool) -> Grant {
        match grant {
            Grant::Leased { .. } if takes_turns && !self.turns.admits(session) => Grant::Closed,
            grant => grant,
        }
    }

    /// Tells the sessions the tenant's entitlement.
    pub fn show_entitled(&mut self, gpu: usize, ppm: u32) {
        if std::mem::replace(&mut self.entitled_ppm, ppm) != ppm {
            for session in self.sessions.values() {
                if let Some(slot) = session.seat.grant.page().slot(gpu) {
                    slot.set_entitled_ppm(ppm);
                }
            }
        }
    }

    /// Tells the sessions the tenant's memory limit, and whether copies are charged.
    pub fn show_rules(&self, gpu: usize) {
        for session in self.sessions.values() {
            if let Some(slot) = session.seat.grant.page().slot(gpu) {
                slot.set_memory_limit(self.seat.memory_limit_bytes);
                slot.set_charge_copies(self.seat.charge_copies);
            }
        }
        self.seat.limit_in_force.store(self.seat.memory_limit_bytes, Ordering::SeqCst);
    }
}

/// Wakes every thread that sleeps on the gate.
fn wake(slot: &GrantSlot) {
    // SAFETY: the word is an atomic in the grant page. The page stays mapped, because `slot`
    // borrows from the session that holds it.
    let word = unsafe { std::sync::atomic::AtomicU32::from_ptr(slot.futex()) };
    // The wake fails only for a bad address. The futex is not private, because the sleepers are in
    // other processes.
    let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::empty(), u32::MAX >> 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_memory_is_what_an_account_holds_beside_the_other_kinds_whatever_the_process_says_of_it() {
        let mut counted = [0; MemoryKind::COUNT];
        counted[MemoryKind::Linear as usize] = 1_000;
        counted[MemoryKind::Pitch as usize] = 3;
        counted[MemoryKind::Graph as usize] = 4;
        let told = with_the_rest(counted, 10);
        assert_eq!(told[MemoryKind::Linear as usize], 3);
        assert_eq!(told.iter().sum::<u64>(), 10);
        assert_eq!(with_the_rest(counted, 6)[MemoryKind::Linear as usize], 0, "it counts too much");
    }
}
