//! Tenants and their processes, as an arbiter knows them.

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

/// A process of a tenant.
pub struct Session {
    /// Its pages.
    pub seat: SessionSeat,
    /// What its meter said when last looked at; of memory, when something was last under way.
    pub last: Reading,
    /// Its counters go on from earlier sessions' and are not all there yet.
    pub awaited: Option<Awaited>,
    /// Whether it is stopped by a signal, or frozen.
    pub stopped: Stopped,
    /// Whether its work ends.
    pub overdue: Overdue,
    /// What it counts that others of the tenant count too.
    pub overlap: Overlap,
    /// What its gate says.
    pub gate: Grant,
}

impl Session {
    /// Up to where it was charged, and when, if that is not now. `None`: that is not known yet.
    pub fn charged_up_to(&self) -> Option<(SavedMeter, Option<u64>)> {
        match self.awaited {
            None => Some((self.last.into(), None)),
            Some(awaited) => awaited.from.map(|from| (from.meter, Some(from.at_ns))),
        }
    }

    /// Whether nothing happened since it was last looked at, and nothing is under way.
    pub fn rests(&self, slot: &MeterSlot) -> bool {
        !self.last.wants()
            && self.awaited.is_none()
            && !self.stopped.is_stopped()
            && slot.rests_since(&self.last)
    }

    /// Memory that it holds, bytes by kind: what it says, and of linear memory what is in its account, of that GPU's `ledger`, besides.
    pub fn held_bytes(&self, gpu: usize, ledger: Option<&LedgerGpu>) -> [u64; MemoryKind::COUNT] {
        let slot = self.seat.meter.page().slot(gpu);
        let account = ledger.and_then(|ledger| ledger.account(self.seat.ledger_slot));
        let counted = slot.map_or([0; MemoryKind::COUNT], MeterSlot::held_bytes);
        with_the_rest(counted, account.map_or(0, ledger::Account::held_bytes))
    }

    /// Memory beyond the limit that it says it has, and what of it was brought to the GPU, bytes.
    pub fn beyond_bytes(&self, gpu: usize) -> (u64, u64) {
        let slot = self.seat.meter.page().beyond(gpu);
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        slot.map_or((0, 0), |slot| (read(&slot.held_bytes), read(&slot.brought_bytes)))
    }

    /// Whether it ever launched anything. Many processes that see the GPU never use it.
    pub fn launches(&self) -> bool {
        (self.last.kernel_launches | self.last.graph_launches) != 0
    }

    /// Sets its gate. `terms`: of a lease, or how far it may run ahead.
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

/// What is `counted` by kind, and what else of `held_bytes` there is as the kind that is not.
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

/// A tenant, and what is known of it here.
pub struct Tenant {
    /// What it asks for.
    pub seat: TenantSeat,
    /// What it used.
    pub account: Account,
    /// What of that its job's use has in it, ns.
    pub counted_ns: u64,
    /// How much it wants.
    pub demand: Demand,
    /// The share that it is owed, parts per million.
    pub entitled_ppm: u32,
    /// The rule that this follows from, once it was worked out.
    pub rule: Option<Rule>,
    /// It was idle then, so that the others are owed its part too.
    pub is_lent: bool,
    /// Its processes that are here.
    pub sessions: BTreeMap<SessionId, Session>,
    /// How far those whose gates are open may run ahead, ns.
    pub run_ahead_ns: u64,
    /// The turns that they take.
    pub turns: Turns,
    /// What was seen of its sessions, in their order.
    pub seen: Vec<turns::Seen>,
    /// When they were on the GPU, where there are several.
    pub said: Said,
    /// Of those that did anything: what their meters said before, and say.
    pub readings: Vec<(Reading, Reading)>,
}

impl Tenant {
    /// A tenant of whom nothing was seen here.
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

    /// How many of its sessions launch.
    pub fn launching(&self) -> usize {
        self.sessions.values().filter(|session| session.launches()).count()
    }

    /// What the gate of one of its sessions is to say while the tenant's says `grant`. `takes_turns`: not so where they are ranks, of which
    /// nobody knows whose peer has its turn on another GPU.
    pub fn grant_of(&self, session: SessionId, grant: Grant, takes_turns: bool) -> Grant {
        match grant {
            Grant::Leased { .. } if takes_turns && !self.turns.admits(session) => Grant::Closed,
            grant => grant,
        }
    }

    /// Tells its processes what it is owed.
    pub fn show_entitled(&mut self, gpu: usize, ppm: u32) {
        if std::mem::replace(&mut self.entitled_ppm, ppm) != ppm {
            for session in self.sessions.values() {
                if let Some(slot) = session.seat.grant.page().slot(gpu) {
                    slot.set_entitled_ppm(ppm);
                }
            }
        }
    }

    /// Tells its processes how much memory they may hold together, and whether their copies are charged.
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
    // SAFETY: the word lives in the page of a session that is still held here, and is an atomic for as long.
    let word = unsafe { std::sync::atomic::AtomicU32::from_ptr(slot.futex()) };
    // It cannot fail but for a bad address; and not private: the sleepers are other processes.
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
