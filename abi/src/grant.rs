//! The grant page: the permissions of a session on each GPU. Only the daemon writes the page.
//!
//! The daemon seals the page's memory before a tenant gets it, so the tenant cannot write it. Each
//! slot belongs to the arbiter of one GPU, which alone writes the slot, except for the appraisal
//! ([`Appraisal`]). A launch reads one word, [`GrantSlot::gate`]. While the GPU is contended, the
//! launch that begins a segment also reads the terms of the lease. While the gate is open, the
//! interposer reads the terms only now and then.

use crate::MAX_GPUS;
use crate::page::{Head, Kind, Page};
use crate::plan::PlanSlot;
use crate::seqlock::SeqLock;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The memory limit of a tenant without a limit.
pub const NO_LIMIT: u64 = u64::MAX;

/// The window of a lease that allows a process one launch, regardless of its work in flight.
pub const ONE_LAUNCH: u64 = 0;

/// The minor version of the layout from which on the daemon calls [`GrantSlot::set_timed`].
const TIMED_SINCE: u16 = 10;

const STATE_BITS: u32 = 2;
const STATE_MASK: u32 = (1 << STATE_BITS) - 1;

/// The state of a gate: the answer to a thread that wants to launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum GateState {
    /// Another tenant has the GPU. The thread shows in the meter page that it waits, rings the
    /// bell, and waits.
    Closed = 0,
    /// The launch may go, as long as the terms of the lease hold.
    Leased = 1,
    /// The launch may go, because no other tenant wants the GPU.
    Open = 2,
    /// An administrator paused the tenant, or the daemon suspended the tenant. The thread waits and
    /// does not ring the bell.
    Paused = 3,
}

/// The gate word: a state, and the number of its epoch. Waiting threads sleep on this word as a
/// futex.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gate {
    /// The number of changes of the gate, modulo 2³⁰. Each change of the gate begins a new epoch.
    pub epoch: u32,
    /// The state of the gate in this epoch.
    pub state: GateState,
}

impl Gate {
    /// Returns the gate word, which holds the gate's state and epoch.
    pub const fn word(self) -> u32 {
        (self.epoch << STATE_BITS) | self.state as u32
    }

    /// Returns the gate of a gate word. Each word stands for a gate.
    pub const fn from_word(word: u32) -> Self {
        let state = match word & STATE_MASK {
            0 => GateState::Closed,
            1 => GateState::Leased,
            2 => GateState::Open,
            _ => GateState::Paused,
        };
        Self { epoch: word >> STATE_BITS, state }
    }

    /// Returns whether `word` lets each launch go without a look at the terms. The launch path
    /// makes this test.
    pub const fn is_open(word: u32) -> bool {
        word & STATE_MASK == GateState::Open as u32
    }

    /// Returns whether `epoch` comes after `than`. The two epochs must be less than half of all
    /// epochs apart.
    pub const fn is_later(epoch: u32, than: u32) -> bool {
        let ahead = epoch.wrapping_sub(than) & (u32::MAX >> STATE_BITS);
        ahead != 0 && ahead <= (u32::MAX >> STATE_BITS) / 2
    }

    /// Returns the gate that follows this gate, in `state`.
    pub const fn next(self, state: GateState) -> Self {
        Self { epoch: self.epoch.wrapping_add(1) & (u32::MAX >> STATE_BITS), state }
    }
}

/// The terms of a lease. The terms bind while the gate of the same epoch is [`GateState::Leased`].
/// While the gate is open, only the window binds ([`GrantSlot::run_ahead_ns`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeaseTerms {
    /// The epoch of the gate to which these terms belong.
    pub epoch: u32,
    /// The end of the lease, ns of `CLOCK_MONOTONIC`. From this time on, no launch may go.
    pub expires_ns: u64,
    /// The most estimated GPU time that may be in flight, ns, or [`ONE_LAUNCH`].
    pub window_ns: u64,
    /// The time for which a waiting thread spins before it sleeps, ns.
    pub spin_ns: u64,
}

/// NVML's figure for a session's process on one GPU, and the bounds of the session's account at
/// that time. The daemon writes an appraisal every second, except for the processes of suspended
/// tenants. No driver call tells how much memory the driver takes by itself, so the session charges
/// the memory that its account lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Appraisal {
    /// A time before the daemon asked NVML, ns of `CLOCK_MONOTONIC`; 0 before the first figure.
    pub asked_ns: u64,
    /// Memory that NVML reports for the process, bytes.
    pub seen_bytes: u64,
    /// Memory of the account that the process surely held when NVML answered, bytes.
    pub least_bytes: u64,
    /// Memory of the account that the process may have held when NVML answered, bytes.
    pub most_bytes: u64,
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
    beside: AtomicU32,
    appraisal: SeqLock<4>,
    timed: AtomicU32,
    share_ppm: AtomicU32,
}

impl Default for GrantSlot {
    fn default() -> Self {
        Self {
            gate: AtomicU32::new(0),
            entitled_ppm: AtomicU32::new(0),
            memory_limit_bytes: AtomicU64::new(0),
            terms: SeqLock::default(),
            charge_copies: AtomicU32::new(0),
            beside: AtomicU32::new(0),
            appraisal: SeqLock::default(),
            timed: AtomicU32::new(0),
            share_ppm: AtomicU32::new(0),
        }
    }
}

impl GrantSlot {
    /// Returns the gate word for the launch path. The load is `Acquire`, so that the caller then
    /// sees the terms of the same epoch. On x86 this is a plain load.
    #[inline(always)]
    pub fn gate_word(&self) -> u32 {
        self.gate.load(Ordering::Acquire)
    }

    /// Returns the slot's present gate.
    pub fn gate(&self) -> Gate {
        Gate::from_word(self.gate_word())
    }

    /// Returns the address on which waiting threads sleep. A thread passes the address to
    /// `FUTEX_WAIT`, with the gate word that it saw. The wait works on a read-only mapping.
    #[cfg(not(loom))]
    pub fn futex(&self) -> *mut u32 {
        self.gate.as_ptr()
    }

    /// Moves the gate to the next epoch, and returns the new gate. For [`GateState::Leased`] and
    /// [`GateState::Open`], first writes `terms` with the new epoch. The caller must be the only
    /// writer of the slot, and wakes the futex afterwards.
    ///
    /// If the caller then reads the meter, the meter shows each thread that passed the former gate.
    /// A thread that finishes later sees the new gate ([`crate::gate`]).
    pub fn set_gate(&self, state: GateState, terms: LeaseTerms) -> Gate {
        let next = self.gate().next(state);
        if matches!(state, GateState::Leased | GateState::Open) {
            self.write_terms(LeaseTerms { epoch: next.epoch, ..terms });
        }
        self.gate.store(next.word(), Ordering::Release);
        fence(Ordering::SeqCst);
        next
    }

    /// Renews the lease of the present epoch. A holder whose launches go does not notice the
    /// renewal. A thread that waits for an expired lease or a full window reads the new terms when
    /// it wakes.
    pub fn renew(&self, terms: LeaseTerms) {
        self.write_terms(LeaseTerms { epoch: self.gate().epoch, ..terms });
    }

    fn write_terms(&self, terms: LeaseTerms) {
        self.terms.write([u64::from(terms.epoch), terms.expires_ns, terms.window_ns, terms.spin_ns]);
    }

    /// Returns the terms of the lease. Returns `None` if the daemon died while it wrote the terms,
    /// so that a reader cannot trust them. If the terms and the gate have different epochs, the
    /// terms belong to another lease. The caller must then read the gate again.
    pub fn terms(&self) -> Option<LeaseTerms> {
        let [epoch, expires_ns, window_ns, spin_ns] = self.terms.read()?;
        Some(LeaseTerms { epoch: epoch as u32, expires_ns, window_ns, spin_ns })
    }

    /// Returns the GPU time that may be in flight while the gate is open, ns. Returns `None` if the
    /// gate is not open, or if the daemon set no such bound.
    pub fn run_ahead_ns(&self) -> Option<u64> {
        let gate = self.gate();
        let terms =
            self.terms().filter(|terms| terms.epoch == gate.epoch && gate.state == GateState::Open)?;
        (terms.window_ns != ONE_LAUNCH).then_some(terms.window_ns)
    }

    /// Sets the tenant's memory limit on this GPU, bytes, or [`NO_LIMIT`]. The daemon sets the same
    /// limit for each session of a tenant.
    pub fn set_memory_limit(&self, bytes: u64) {
        self.memory_limit_bytes.store(bytes, Ordering::SeqCst);
    }

    /// Returns whether the memory limit is still `bytes`. A thread calls this after it has made a
    /// reservation under that limit. The daemon reads the ledger after it lowers the limit. So
    /// either the thread sees the lower limit, or the daemon sees the reservation.
    #[inline(always)]
    pub fn memory_limit_is(&self, bytes: u64) -> bool {
        self.memory_limit_bytes.load(Ordering::SeqCst) == bytes
    }

    /// Returns the tenant's memory limit on this GPU, bytes, or [`NO_LIMIT`].
    pub fn memory_limit(&self) -> u64 {
        self.memory_limit_bytes.load(Ordering::Acquire)
    }

    /// Sets the tenant's entitlement, parts per million, for the session to read. Writes only a
    /// change, because each write takes the gate's cache line away from the launching threads.
    pub fn set_entitled_ppm(&self, ppm: u32) {
        if self.entitled_ppm() != ppm {
            self.entitled_ppm.store(ppm, Ordering::Relaxed);
        }
    }

    /// Returns the tenant's entitlement, parts per million.
    pub fn entitled_ppm(&self) -> u32 {
        self.entitled_ppm.load(Ordering::Relaxed)
    }

    /// Sets the share that the daemon granted to the tenant on this GPU, parts per million; `None`
    /// if the daemon granted none. Unlike the entitlement, this share does not depend on other
    /// tenants. The session keeps this share by itself while no daemon runs. An older library does
    /// not read this field.
    pub fn set_share_ppm(&self, ppm: Option<u32>) {
        self.share_ppm.store(ppm.unwrap_or(0), Ordering::Relaxed);
    }

    /// Returns the share that the daemon granted to the tenant on this GPU, parts per million.
    /// Returns `None` if the daemon granted none. Under an older daemon, there is none.
    pub fn share_ppm(&self) -> Option<u32> {
        Some(self.share_ppm.load(Ordering::Relaxed)).filter(|ppm| *ppm != 0)
    }

    /// Sets whether the session adds the time of copies to the GPU time
    /// ([`crate::meter::MeterSlot::compute_ns`]). An older library does not read this field. Under
    /// an older daemon, the field is 0, and the session does not add copies.
    pub fn set_charge_copies(&self, charge_copies: bool) {
        self.charge_copies.store(charge_copies.into(), Ordering::Relaxed);
    }

    /// Returns whether the session adds the time of copies to the GPU time.
    pub fn charge_copies(&self) -> bool {
        self.charge_copies.load(Ordering::Relaxed) != 0
    }

    /// Sets whether the hardware can take turns between the tenant's work and other tenants' work.
    /// The daemon writes this before it opens a second gate. An older library does not read this
    /// field. Under an older daemon, the field is 0.
    pub fn set_beside(&self, is_beside: bool) {
        self.beside.store(is_beside.into(), Ordering::Relaxed);
    }

    /// Returns whether the hardware can take turns between the tenant's work and other tenants'
    /// work. The time from the beginning to the end of a launch can then include their turns.
    pub fn is_beside(&self) -> bool {
        self.beside.load(Ordering::Relaxed) != 0
    }

    /// Sets whether the daemon measures the latencies of the tenant's requests. An older library
    /// does not read this field. Under an older daemon, the field is 0
    /// ([`GrantPage::tells_timed`]).
    pub fn set_timed(&self, is_timed: bool) {
        self.timed.store(is_timed.into(), Ordering::Relaxed);
    }

    /// Returns whether the daemon measures the latencies of the tenant's requests. A latency is
    /// only as exact as the looks of the session at its work.
    pub fn is_timed(&self) -> bool {
        self.timed.load(Ordering::Relaxed) != 0
    }

    /// Sets the newest appraisal. Only the daemon's thread that asks for NVML's figures calls this.
    pub fn set_appraisal(&self, appraisal: Appraisal) {
        let Appraisal { asked_ns, seen_bytes, least_bytes, most_bytes } = appraisal;
        self.appraisal.write([asked_ns, seen_bytes, least_bytes, most_bytes]);
    }

    /// Returns the newest appraisal. Returns `None` if the daemon has written none, or died while
    /// it wrote the appraisal. Under an older daemon, there is none.
    pub fn appraisal(&self) -> Option<Appraisal> {
        let [asked_ns, seen_bytes, least_bytes, most_bytes] = self.appraisal.read()?;
        (asked_ns != 0).then_some(Appraisal { asked_ns, seen_bytes, least_bytes, most_bytes })
    }
}

/// The behaviour of a waiting thread once the session takes the daemon for gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum FailMode {
    /// The thread launches without leases until a daemon is back.
    #[default]
    Open = 0,
    /// The thread's launch returns an error to the job.
    Closed = 1,
}

impl FailMode {
    /// Returns the mode of a number. An unknown number stands for [`FailMode::Open`].
    pub fn from_number(number: u32) -> Self {
        if number == Self::Closed as u32 { Self::Closed } else { Self::Open }
    }
}

/// The grant page of one session: the permissions of the session on each GPU.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct GrantPage {
    head: Head,
    session_id: AtomicU64,
    heartbeat_limit_ns: AtomicU64,
    fail_mode: AtomicU32,
    excerpt: AtomicU32,
    mig_devices: AtomicU32,
    slots: [GrantSlot; MAX_GPUS],
    plan: PlanSlot,
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
    /// mode. If the heartbeat is older than the heartbeat limit, the session takes the daemon for
    /// gone.
    pub fn set_session(&self, session_id: u64, heartbeat_limit_ns: u64, fail_mode: FailMode) {
        self.session_id.store(session_id, Ordering::Relaxed);
        self.heartbeat_limit_ns.store(heartbeat_limit_ns, Ordering::Relaxed);
        self.fail_mode.store(fail_mode as u32, Ordering::Relaxed);
    }

    /// Sets that a GPU is a MIG device. `gpu` must be a GPU index.
    pub fn set_mig(&self, gpu: usize) {
        self.mig_devices.fetch_or(1 << gpu, Ordering::Relaxed);
    }

    /// Returns whether a GPU is a MIG device. `gpu` must be a GPU index. An older daemon does not
    /// tell.
    pub fn is_mig(&self, gpu: usize) -> bool {
        self.mig_devices.load(Ordering::Relaxed) & (1 << gpu) != 0
    }

    /// Begins the epochs of all gates at a number that follows from `seed`. The caller calls this
    /// before any thread reads the page. If a page replaces an earlier session's page, no launch
    /// then takes a gate word of the earlier session for a word of this session.
    pub fn begin_epochs(&self, seed: u64) {
        /// A multiplier that mixes the bits of the seed.
        const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
        let epoch = (seed.wrapping_mul(MIX) >> u32::BITS) as u32 >> STATE_BITS;
        let first = Gate { epoch, state: GateState::Closed };
        self.slots.iter().for_each(|slot| slot.gate.store(first.word(), Ordering::Relaxed));
    }

    /// Returns the daemon's number for this session.
    pub fn session_id(&self) -> u64 {
        self.session_id.load(Ordering::Relaxed)
    }

    /// Returns the heartbeat limit: the age of the heartbeat from which the session takes the
    /// daemon for gone, ns.
    pub fn heartbeat_limit_ns(&self) -> u64 {
        self.heartbeat_limit_ns.load(Ordering::Relaxed)
    }

    /// Returns the behaviour of a waiting thread once the session takes the daemon for gone.
    pub fn fail_mode(&self) -> FailMode {
        FailMode::from_number(self.fail_mode.load(Ordering::Relaxed))
    }

    /// Asks the session for the excerpt with this number ([`crate::excerpt`]), or with 0 for no
    /// excerpt. The session records from the question until the daemon asks for another number.
    pub fn ask_for_excerpt(&self, number: u32) {
        self.excerpt.store(number, Ordering::Relaxed);
    }

    /// Returns the number of the excerpt for which the daemon asks; 0 for no excerpt. An older
    /// daemon asks for none.
    pub fn excerpt(&self) -> u32 {
        self.excerpt.load(Ordering::Relaxed)
    }

    /// Returns the slot of a GPU, or `None` if `gpu` is no GPU index.
    pub fn slot(&self, gpu: usize) -> Option<&GrantSlot> {
        self.slots.get(gpu)
    }

    /// Returns whether the daemon tells the session if it measures the latencies of requests
    /// ([`GrantSlot::is_timed`]). An older daemon can measure latencies and not tell.
    pub fn tells_timed(&self) -> bool {
        self.head.minor() >= TIMED_SINCE
    }

    /// Returns the plan that the session follows. An older daemon installs none.
    pub fn plan(&self) -> &PlanSlot {
        &self.plan
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<GrantSlot>() == 128);
    assert!(core::mem::offset_of!(GrantSlot, gate) == 0);
    assert!(core::mem::offset_of!(GrantSlot, memory_limit_bytes) == 8);
    assert!(core::mem::offset_of!(GrantSlot, terms) == 16);
    assert!(core::mem::offset_of!(GrantSlot, charge_copies) == 56);
    assert!(core::mem::offset_of!(GrantSlot, appraisal) == 64);
    assert!(core::mem::offset_of!(GrantPage, session_id) == 64);
    assert!(core::mem::offset_of!(GrantPage, excerpt) == 84);
    assert!(core::mem::offset_of!(GrantPage, mig_devices) == 88);
    assert!(core::mem::offset_of!(GrantPage, slots) == 128);
    assert!(core::mem::offset_of!(GrantPage, plan) == 2176);
    assert!(size_of::<GrantPage>() == 5 * 4096);
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
    fn a_share_is_told_until_there_is_none() {
        let slot = GrantSlot::default();
        assert_eq!(slot.share_ppm(), None);
        slot.set_share_ppm(Some(300_000));
        assert_eq!((slot.share_ppm(), slot.entitled_ppm()), (Some(300_000), 0));
        slot.set_share_ppm(None);
        assert_eq!(slot.share_ppm(), None);
    }

    #[test]
    fn an_appraisal_is_told_whole_and_none_before_the_first() {
        let slot = GrantSlot::default();
        assert_eq!(slot.appraisal(), None);
        let told = Appraisal { asked_ns: 1, seen_bytes: 2, least_bytes: 3, most_bytes: 4 };
        slot.set_appraisal(told);
        assert_eq!(slot.appraisal(), Some(told));
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
