//! The grant page: what a session may do on each GPU, written by the controller alone.
//!
//! The memory behind it is sealed against writing before a tenant gets it. Each slot belongs to one GPU's arbiter, the only
//! writer. A launch looks at one word, [`GrantSlot::gate`]; the terms behind it are read only while the GPU is contended, and now and then while it is not.

use crate::MAX_GPUS;
use crate::page::{Head, Kind, Page};
use crate::seqlock::SeqLock;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Memory limit that limits nothing.
pub const NO_LIMIT: u64 = u64::MAX;

/// The window of a lease that allows a process one launch, whatever it has in flight.
pub const ONE_LAUNCH: u64 = 0;

const STATE_BITS: u32 = 2;
const STATE_MASK: u32 = (1 << STATE_BITS) - 1;

/// What the gate says to a thread that wants to launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum GateState {
    /// Another tenant has the GPU: say that you wait, ring the bell, wait.
    Closed = 0,
    /// Go, as long as the lease's terms hold.
    Leased = 1,
    /// Go: nobody else wants the GPU.
    Open = 2,
    /// An operator paused this tenant: wait, and do not ring.
    Paused = 3,
}

/// The gate word: a state and the number of the grant it belongs to. It is also the futex that waiters sleep on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gate {
    /// Counts grants and withdrawals, modulo 2³⁰; each change of state is a new epoch.
    pub epoch: u32,
    /// What holds in this epoch.
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

    /// Whether `word` lets every launch pass unmetered by terms: the test on the launch path.
    pub const fn is_open(word: u32) -> bool {
        word & STATE_MASK == GateState::Open as u32
    }

    /// Whether one epoch comes after another: they are less than half of all epochs apart.
    pub const fn is_later(epoch: u32, than: u32) -> bool {
        let ahead = epoch.wrapping_sub(than) & (u32::MAX >> STATE_BITS);
        ahead != 0 && ahead <= (u32::MAX >> STATE_BITS) / 2
    }

    /// The gate that follows this one, in `state`.
    pub const fn next(self, state: GateState) -> Self {
        Self { epoch: self.epoch.wrapping_add(1) & (u32::MAX >> STATE_BITS), state }
    }
}

/// The terms of a lease. They bind while the gate of the same epoch says [`GateState::Leased`]. Of an open gate the window alone counts: [`GrantSlot::run_ahead_ns`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeaseTerms {
    /// Epoch of the gate that these terms belong to.
    pub epoch: u32,
    /// No launch from this time on (ns of `CLOCK_MONOTONIC`).
    pub expires_ns: u64,
    /// At most this much estimated GPU time queued ahead (ns), or [`ONE_LAUNCH`].
    pub window_ns: u64,
    /// How long a waiter spins before it sleeps (ns).
    pub spin_ns: u64,
}

/// What one session may do on one GPU.
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
    /// The gate word, for the launch path: `Acquire`, so that terms of the same epoch are visible after it. On x86 that
    /// is a plain load.
    #[inline(always)]
    pub fn gate_word(&self) -> u32 {
        self.gate.load(Ordering::Acquire)
    }

    /// The gate.
    pub fn gate(&self) -> Gate {
        Gate::from_word(self.gate_word())
    }

    /// Where waiters sleep (`FUTEX_WAIT` on a gate word they have seen; it works on a read-only mapping).
    #[cfg(not(loom))]
    pub fn futex(&self) -> *mut u32 {
        self.gate.as_ptr()
    }

    /// Moves the gate to the next epoch. With [`GateState::Leased`] and [`GateState::Open`] the terms go first and get that epoch. The caller, the
    /// slot's only writer, then wakes the futex. A meter that it reads afterwards shows whoever passed the gate before, and a
    /// tenant that is done later sees this gate ([`crate::gate`]).
    pub fn set_gate(&self, state: GateState, terms: LeaseTerms) -> Gate {
        let next = self.gate().next(state);
        if matches!(state, GateState::Leased | GateState::Open) {
            self.write_terms(LeaseTerms { epoch: next.epoch, ..terms });
        }
        self.gate.store(next.word(), Ordering::Release);
        fence(Ordering::SeqCst);
        next
    }

    /// Renews the lease of the present epoch without a new one: a holder that runs does not notice, one that waits for its
    /// expiry or window reads the terms again when it wakes.
    pub fn renew(&self, terms: LeaseTerms) {
        self.write_terms(LeaseTerms { epoch: self.gate().epoch, ..terms });
    }

    fn write_terms(&self, terms: LeaseTerms) {
        self.terms.write([u64::from(terms.epoch), terms.expires_ns, terms.window_ns, terms.spin_ns]);
    }

    /// The terms, or `None` while they cannot be read whole (the controller died while writing them). Terms whose epoch is
    /// not the gate's belong to another lease: look at the gate again.
    pub fn terms(&self) -> Option<LeaseTerms> {
        let [epoch, expires_ns, window_ns, spin_ns] = self.terms.read()?;
        Some(LeaseTerms { epoch: epoch as u32, expires_ns, window_ns, spin_ns })
    }

    /// GPU time that may be queued while the gate is open, ns. `None`: the gate is not open, or nobody said how much.
    pub fn run_ahead_ns(&self) -> Option<u64> {
        let gate = self.gate();
        let terms =
            self.terms().filter(|terms| terms.epoch == gate.epoch && gate.state == GateState::Open)?;
        (terms.window_ns != ONE_LAUNCH).then_some(terms.window_ns)
    }

    /// Sets the tenant's memory limit on this GPU, bytes; [`NO_LIMIT`] for none. Each session of a tenant gets the same.
    pub fn set_memory_limit(&self, bytes: u64) {
        self.memory_limit_bytes.store(bytes, Ordering::SeqCst);
    }

    /// Whether that limit is `bytes` still, for whoever has just reserved memory under it: either this sees that it was lowered, or whoever lowered it and looks at
    /// the ledger then sees the reservation there.
    #[inline(always)]
    pub fn memory_limit_is(&self, bytes: u64) -> bool {
        self.memory_limit_bytes.load(Ordering::SeqCst) == bytes
    }

    /// The tenant's memory limit on this GPU, bytes, or [`NO_LIMIT`].
    pub fn memory_limit(&self) -> u64 {
        self.memory_limit_bytes.load(Ordering::Acquire)
    }

    /// Tells the session the share that its tenant is entitled to now, parts per million.
    pub fn set_entitled_ppm(&self, ppm: u32) {
        self.entitled_ppm.store(ppm, Ordering::Relaxed);
    }

    /// The share that the tenant is entitled to now, parts per million.
    pub fn entitled_ppm(&self) -> u32 {
        self.entitled_ppm.load(Ordering::Relaxed)
    }

    /// Tells the session whether the time of copies counts as GPU time ([`crate::meter::MeterSlot::compute_ns`]). A library older than this does not
    /// look; under a controller older than this it does not.
    pub fn set_charge_copies(&self, charge_copies: bool) {
        self.charge_copies.store(charge_copies.into(), Ordering::Relaxed);
    }

    /// Whether the time of copies counts as GPU time.
    pub fn charge_copies(&self) -> bool {
        self.charge_copies.load(Ordering::Relaxed) != 0
    }
}

/// What a waiter does once the controller's heartbeat is stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum FailMode {
    /// Launch, unmetered by leases, until the controller is back.
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

// SAFETY: repr(C), head first, atomics only (GrantSlot and SeqLock are atomics), and its kind is its own.
unsafe impl Page for GrantPage {
    const KIND: Kind = Kind::Grant;
    fn head(&self) -> &Head {
        &self.head
    }
}

impl GrantPage {
    /// Sets what holds for the session as a whole: who it is, after how long without a heartbeat the controller counts as
    /// gone (ns), and what waiters do then.
    pub fn set_session(&self, session_id: u64, heartbeat_limit_ns: u64, fail_mode: FailMode) {
        self.session_id.store(session_id, Ordering::Relaxed);
        self.heartbeat_limit_ns.store(heartbeat_limit_ns, Ordering::Relaxed);
        self.fail_mode.store(fail_mode as u32, Ordering::Relaxed);
    }

    /// The controller's number for this session.
    pub fn session_id(&self) -> u64 {
        self.session_id.load(Ordering::Relaxed)
    }

    /// After how long without a heartbeat the controller counts as gone (ns).
    pub fn heartbeat_limit_ns(&self) -> u64 {
        self.heartbeat_limit_ns.load(Ordering::Relaxed)
    }

    /// What a waiter does then.
    pub fn fail_mode(&self) -> FailMode {
        if self.fail_mode.load(Ordering::Relaxed) == FailMode::Closed as u32 {
            FailMode::Closed
        } else {
            FailMode::Open
        }
    }

    /// The slot of a GPU, if there is such a GPU.
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
