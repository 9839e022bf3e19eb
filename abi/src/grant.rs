//! The grant page: what a session may do on each GPU. Only the daemon writes it.
//!
//! The page's memory is sealed against writing before a tenant gets it. Each slot belongs to one
//! GPU's arbiter, which is its only writer. A launch reads one word, [`GrantSlot::gate`]. The terms
//! behind it are read while the GPU is contended, and now and then while it is not.

use crate::MAX_GPUS;
use crate::page::{Head, Kind, Page};
use crate::seqlock::SeqLock;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Memory limit that limits nothing.
pub const NO_LIMIT: u64 = u64::MAX;

/// The window of a lease that allows a process one launch, regardless of its work in flight.
pub const ONE_LAUNCH: u64 = 0;

const STATE_BITS: u32 = 2;
const STATE_MASK: u32 = (1 << STATE_BITS) - 1;

/// The gate's answer to a thread that wants to launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum GateState {
    /// Another tenant has the GPU. The thread counts as waiting, rings the bell, and waits.
    Closed = 0,
    /// The launch may go, as long as the terms of the lease hold.
    Leased = 1,
    /// The launch may go, because no other tenant wants the GPU.
    Open = 2,
    /// An operator paused this tenant. The thread waits and does not ring.
    Paused = 3,
}

/// The gate word: a state, and the number of its grant. It is also the futex that waiting threads
/// sleep on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gate {
    /// Counts grants and withdrawals, modulo 2³⁰. Each change of state begins a new epoch.
    pub epoch: u32,
    /// The state in this epoch.
    pub state: GateState,
}

impl Gate {
    /// Packs the gate into its word.
    pub const fn word(self) -> u32 {
        (self.epoch << STATE_BITS) | self.state as u32
    }

    /// Unpacks a gate word. Every word is some gate.
    pub const fn from_word(word: u32) -> Self {
        let state = match word & STATE_MASK {
            0 => GateState::Closed,
            1 => GateState::Leased,
            2 => GateState::Open,
            _ => GateState::Paused,
        };
        Self { epoch: word >> STATE_BITS, state }
    }

    /// Whether `word` lets every launch pass without a look at the terms. This is the test on the
    /// launch path.
    pub const fn is_open(word: u32) -> bool {
        word & STATE_MASK == GateState::Open as u32
    }

    /// Whether `epoch` comes after `than`. They must be less than half of all epochs apart.
    pub const fn is_later(epoch: u32, than: u32) -> bool {
        let ahead = epoch.wrapping_sub(than) & (u32::MAX >> STATE_BITS);
        ahead != 0 && ahead <= (u32::MAX >> STATE_BITS) / 2
    }

    /// Returns the gate that follows this one, in `state`.
    pub const fn next(self, state: GateState) -> Self {
        Self { epoch: self.epoch.wrapping_add(1) & (u32::MAX >> STATE_BITS), state }
    }
}

/// The terms of a lease. They bind while the gate of the same epoch is [`GateState::Leased`]. While
/// the gate is open only the window counts ([`GrantSlot::run_ahead_ns`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeaseTerms {
    /// Epoch of the gate that these terms belong to.
    pub epoch: u32,
    /// No launch may go from this time on (ns of `CLOCK_MONOTONIC`).
    pub expires_ns: u64,
    /// The most estimated GPU time that may be in flight (ns), or [`ONE_LAUNCH`].
    pub window_ns: u64,
    /// How long a waiting thread spins before it sleeps (ns).
    pub spin_ns: u64,
}

/// The permissions of one session on one GPU.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct GrantSlot {
    gate: AtomicU32,
    entitled_ppm: AtomicU32,
    memory_limit_bytes: AtomicU64,
    terms: SeqLock<4>,
    charge_copies: AtomicU32,
}

impl Default for GrantSlot {
    fn default() -> Self {
        Self {
            gate: AtomicU32::new(0),
            entitled_ppm: AtomicU32::new(0),
            memory_limit_bytes: AtomicU64::new(0),
            terms: SeqLock::default(),
            charge_copies: AtomicU32::new(0),
        }
    }
}

impl GrantSlot {
    /// Returns the gate word for the launch path. The load is `Acquire`, so that terms of the same
    /// epoch are visible after it. On x86 that is a plain load.
    #[inline(always)]
    pub fn gate_word(&self) -> u32 {
        self.gate.load(Ordering::Acquire)
    }

    /// Returns the gate.
    pub fn gate(&self) -> Gate {
        Gate::from_word(self.gate_word())
    }

    /// Returns the address that waiting threads sleep on, by `FUTEX_WAIT` with a gate word that
    /// they have seen. The wait works on a read-only mapping.
    #[cfg(not(loom))]
    pub fn futex(&self) -> *mut u32 {
        self.gate.as_ptr()
    }

    /// Moves the gate to the next epoch. For [`GateState::Leased`] and [`GateState::Open`] the
    /// terms are written first, with that epoch. The caller is the slot's only writer, and wakes
    /// the futex afterwards.
    ///
    /// A meter that the caller reads afterwards shows every thread that passed the former gate. A
    /// thread that finishes later sees the new gate ([`crate::gate`]).
    pub fn set_gate(&self, state: GateState, terms: LeaseTerms) -> Gate {
        let next = self.gate().next(state);
        if matches!(state, GateState::Leased | GateState::Open) {
            self.write_terms(LeaseTerms { epoch: next.epoch, ..terms });
        }
        self.gate.store(next.word(), Ordering::Release);
        fence(Ordering::SeqCst);
        next
    }

    /// Renews the lease of the present epoch. A running holder does not notice that. A thread that
    /// waits because the lease expired or the window is full reads the terms again when it wakes.
    pub fn renew(&self, terms: LeaseTerms) {
        self.write_terms(LeaseTerms { epoch: self.gate().epoch, ..terms });
    }

    fn write_terms(&self, terms: LeaseTerms) {
        self.terms.write([u64::from(terms.epoch), terms.expires_ns, terms.window_ns, terms.spin_ns]);
    }

    /// Returns the terms. Returns `None` if they cannot be read whole, because the daemon died
    /// while it wrote them. If their epoch is not the gate's, they belong to another lease, and the
    /// caller must read the gate again.
    pub fn terms(&self) -> Option<LeaseTerms> {
        let [epoch, expires_ns, window_ns, spin_ns] = self.terms.read()?;
        Some(LeaseTerms { epoch: epoch as u32, expires_ns, window_ns, spin_ns })
    }

    /// Returns the GPU time that may be in flight while the gate is open, ns. Returns `None` if the
    /// gate is not open, or if no such bound is set.
    pub fn run_ahead_ns(&self) -> Option<u64> {
        let gate = self.gate();
        let terms =
            self.terms().filter(|terms| terms.epoch == gate.epoch && gate.state == GateState::Open)?;
        (terms.window_ns != ONE_LAUNCH).then_some(terms.window_ns)
    }

    /// Sets the tenant's memory limit on this GPU, bytes, or [`NO_LIMIT`]. Each session of a tenant
    /// gets the same.
    pub fn set_memory_limit(&self, bytes: u64) {
        self.memory_limit_bytes.store(bytes, Ordering::SeqCst);
    }

    /// Whether the memory limit is still `bytes`. A request calls this after it has made a
    /// reservation under that limit. Either it sees that the limit was lowered, or the daemon sees
    /// the reservation when it reads the ledger after lowering the limit.
    #[inline(always)]
    pub fn memory_limit_is(&self, bytes: u64) -> bool {
        self.memory_limit_bytes.load(Ordering::SeqCst) == bytes
    }

    /// Returns the tenant's memory limit on this GPU, bytes, or [`NO_LIMIT`].
    pub fn memory_limit(&self) -> u64 {
        self.memory_limit_bytes.load(Ordering::Acquire)
    }

    /// Tells the session its tenant's entitlement, parts per million.
    pub fn set_entitled_ppm(&self, ppm: u32) {
        self.entitled_ppm.store(ppm, Ordering::Relaxed);
    }

    /// Returns the tenant's entitlement, parts per million.
    pub fn entitled_ppm(&self) -> u32 {
        self.entitled_ppm.load(Ordering::Relaxed)
    }

    /// Tells the session whether the time of copies counts as GPU time
    /// ([`crate::meter::MeterSlot::compute_ns`]). A library older than this field does not read it.
    /// Under a daemon older than this field copies do not count.
    pub fn set_charge_copies(&self, charge_copies: bool) {
        self.charge_copies.store(charge_copies.into(), Ordering::Relaxed);
    }

    /// Whether the time of copies counts as GPU time.
    pub fn charge_copies(&self) -> bool {
        self.charge_copies.load(Ordering::Relaxed) != 0
    }
}

/// The behaviour of a waiting thread once the daemon's heartbeat is stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum FailMode {
    /// Launch, without leases, until the daemon is back.
    Open = 0,
    /// Let the launch return an error.
    Closed = 1,
}

/// The grants of one session.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct GrantPage {
    head: Head,
    session_id: AtomicU64,
    heartbeat_limit_ns: AtomicU64,
    fail_mode: AtomicU32,
    slots: [GrantSlot; MAX_GPUS],
}

// SAFETY: the type is repr(C), begins with the head, contains only atomics (GrantSlot and SeqLock
// consist of atomics), and has its own kind.
unsafe impl Page for GrantPage {
    const KIND: Kind = Kind::Grant;
    fn head(&self) -> &Head {
        &self.head
    }
}

impl GrantPage {
    /// Sets the values of the whole session: its number, the heartbeat limit (ns) and the fail
    /// mode. The heartbeat limit is the time without a heartbeat after which the daemon counts as
    /// gone.
    pub fn set_session(&self, session_id: u64, heartbeat_limit_ns: u64, fail_mode: FailMode) {
        self.session_id.store(session_id, Ordering::Relaxed);
        self.heartbeat_limit_ns.store(heartbeat_limit_ns, Ordering::Relaxed);
        self.fail_mode.store(fail_mode as u32, Ordering::Relaxed);
    }

    /// Returns the daemon's number for this session.
    pub fn session_id(&self) -> u64 {
        self.session_id.load(Ordering::Relaxed)
    }

    /// Returns the time without a heartbeat after which the daemon counts as gone (ns).
    pub fn heartbeat_limit_ns(&self) -> u64 {
        self.heartbeat_limit_ns.load(Ordering::Relaxed)
    }

    /// Returns what a waiting thread does once the daemon is gone.
    pub fn fail_mode(&self) -> FailMode {
        if self.fail_mode.load(Ordering::Relaxed) == FailMode::Closed as u32 {
            FailMode::Closed
        } else {
            FailMode::Open
        }
    }

    /// Returns the slot of a GPU, if there is such a GPU.
    pub fn slot(&self, gpu: usize) -> Option<&GrantSlot> {
        self.slots.get(gpu)
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<GrantSlot>() == 128);
    assert!(core::mem::offset_of!(GrantSlot, gate) == 0);
    assert!(core::mem::offset_of!(GrantSlot, memory_limit_bytes) == 8);
    assert!(core::mem::offset_of!(GrantSlot, terms) == 16);
    assert!(core::mem::offset_of!(GrantSlot, charge_copies) == 56);
    assert!(core::mem::offset_of!(GrantPage, session_id) == 64);
    assert!(core::mem::offset_of!(GrantPage, slots) == 128);
    assert!(size_of::<GrantPage>() == 4096);
};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_gate_survives_its_word_and_epochs_wrap_inside_theirs() {
        for state in [GateState::Closed, GateState::Leased, GateState::Open, GateState::Paused] {
            for epoch in [0, 1, u32::MAX >> STATE_BITS] {
                let gate = Gate { epoch, state };
                assert_eq!(Gate::from_word(gate.word()), gate);
                assert_eq!(Gate::is_open(gate.word()), state == GateState::Open);
            }
        }
        let last = Gate { epoch: u32::MAX >> STATE_BITS, state: GateState::Closed };
        assert_eq!(last.next(GateState::Open), Gate { epoch: 0, state: GateState::Open });
        assert!(Gate::is_later(0, last.epoch) && !Gate::is_later(last.epoch, 0) && !Gate::is_later(5, 5));
    }

    #[test]
    fn a_fresh_slot_is_closed() {
        assert_eq!(GrantSlot::default().gate(), Gate { epoch: 0, state: GateState::Closed });
    }

    #[test]
    fn terms_carry_the_epoch_of_the_gate_they_were_granted_with() {
        let slot = GrantSlot::default();
        let terms = LeaseTerms { epoch: 0, expires_ns: 10, window_ns: 20, spin_ns: 30 };
        let gate = slot.set_gate(GateState::Leased, terms);
        assert_eq!(slot.terms(), Some(LeaseTerms { epoch: gate.epoch, ..terms }));
        let closed = slot.set_gate(GateState::Closed, LeaseTerms::default());
        assert_ne!(slot.terms().map(|terms| terms.epoch), Some(closed.epoch));
        let gate = slot.set_gate(GateState::Leased, terms);
        slot.renew(LeaseTerms { expires_ns: 99, ..terms });
        assert_eq!(slot.gate(), gate);
        assert_eq!(slot.terms().map(|terms| (terms.epoch, terms.expires_ns)), Some((gate.epoch, 99)));
    }
}
