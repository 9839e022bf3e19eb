//! The session: the pages that the process shares with the controller, and whether there is one. It lives as long as the process: a
//! daemon that came back renews it, and what was counted before is counted on.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use deepres_abi::MAX_GPUS;
use deepres_abi::beat::BeatPage;
use deepres_abi::grant::{FailMode, GateState, GrantPage, GrantSlot, LeaseTerms};
use deepres_abi::ledger::LedgerPage;
use deepres_abi::meter::{MeterPage, MeterSlot, Reading};
use deepres_abi::page::{MINOR_CARRIES, Page};
use deepres_abi::wire::{Frame as _, UNMANAGED};

use crate::descriptor::{OwnDescriptor, Place};
use crate::handshake::{ConnectError, Connection};
use crate::memory::ledgers::{Ledger, Ledgers};
use crate::meter::gpu::{Gpu, Shared};
use crate::os::{self, Patience};
use crate::pages::{Mapped, PageError, Protection, replace};
use crate::standalone::Local;
use crate::unshared::Unshared;

/// A controller that names no limit is believed to beat this often, ns.
const HEARTBEAT_LIMIT_NS: u64 = 1_000_000_000;
/// How late the end of a time without a controller is noticed by those whose launches fail, ns.
const GUARD_NAP_NS: u64 = 10_000_000;
/// Within so long a daemon gives back what a dead process held, ns.
const BURIAL_NS: u64 = 100_000_000;

const READ: Protection = libc::PROT_READ;
const BOTH: Protection = libc::PROT_READ | libc::PROT_WRITE;

/// See the module. Its pages never move, so any thread may look at them at any time.
#[derive(Debug)]
pub struct Session {
    grant: &'static GrantPage,
    meter: &'static MeterPage,
    beat: &'static BeatPage,
    /// To look at; what is held changes through `ledgers`.
    ledger: &'static LedgerPage,
    /// Of a process that began alone the same before and after.
    ledgers: &'static Ledgers,
    /// The ledger that its first daemon gave, and the slot there.
    first_ledger: (&'static LedgerPage, usize),
    /// What gates say while there is no controller and launches are to fail.
    shut: [GrantSlot; MAX_GPUS],
    socket: Place,
    /// The memory of the meter page.
    meter_memory: Place,
    /// That of the ledger. Locks on it say who of the tenant lives; they end when any descriptor of it is closed.
    ledger_memory: Place,
    /// By the GPU's ordinal in this process.
    bells: [Place; MAX_GPUS],
    connected_ns: AtomicU64,
    is_gone: AtomicBool,
    /// Daemons that the process had a session with.
    sessions: AtomicU32,
    /// What takes the daemon's place, if there is none: then there are no descriptors either.
    local: Option<Local>,
    /// There is none yet that takes the process up: one is asked again and again.
    is_waiting: bool,
}

impl Session {
    /// The process's first session with a daemon, which follows on `alone`, if there was one without.
    ///
    /// # Errors
    /// [`ConnectError`], if a page cannot be used.
    pub fn new(connection: Connection, gpus: usize, alone: Option<&Self>) -> Result<Self, ConnectError> {
        let Connection { socket, welcome, pages: [grant, meter, ledger, beat], bells } = connection;
        // All or none: what is kept stays mapped.
        let (grant_page, meter_page) = (map::<GrantPage>(&grant, READ)?, map::<MeterPage>(&meter, BOTH)?);
        let (beat_page, view) = (map::<BeatPage>(&beat, READ)?, map::<LedgerPage>(&ledger, READ)?);
        let own = map::<LedgerPage>(&ledger, BOTH)?.keep();
        let first_ledger = (own, welcome.ledger_slot as usize);
        let session = Self {
            grant: grant_page.keep(),
            meter: meter_page.keep(),
            beat: beat_page.keep(),
            ledger: view.keep(),
            ledgers: match alone {
                Some(alone) => alone.ledgers,
                None => Box::leak(Box::new(Ledgers::new(own, welcome.ledger_slot as usize))),
            },
            first_ledger,
            shut: Default::default(),
            socket: Place::new(socket.into_descriptor()),
            meter_memory: Place::new(OwnDescriptor::new(meter)),
            ledger_memory: Place::new(OwnDescriptor::new(ledger)),
            bells: [const { Place::none() }; MAX_GPUS],
            connected_ns: AtomicU64::new(os::now_ns()),
            is_gone: AtomicBool::new(false),
            sessions: AtomicU32::new(1),
            local: None,
            is_waiting: false,
        };
        session.take_bells(bells, &welcome.gpu_index[..gpus.min(MAX_GPUS)]);
        Ok(session)
    }

    /// A session without a daemon; `is_waiting`: until one takes the process up.
    pub fn local(local: Local, is_waiting: bool) -> Self {
        Self {
            grant: local.grant,
            meter: local.meter,
            beat: local.beat,
            ledger: local.page.ledger(),
            ledgers: Box::leak(Box::new(Ledgers::new(local.page.ledger(), local.slot()))),
            first_ledger: (local.page.ledger(), local.slot()),
            shut: Default::default(),
            socket: Place::none(),
            meter_memory: Place::none(),
            ledger_memory: Place::none(),
            bells: [const { Place::none() }; MAX_GPUS],
            connected_ns: AtomicU64::new(os::now_ns()),
            is_gone: AtomicBool::new(false),
            sessions: AtomicU32::new(0),
            local: Some(local),
            is_waiting,
        }
    }

    /// What takes the daemon's place, if there is none.
    pub fn standalone(&self) -> Option<&Local> {
        self.local.as_ref()
    }

    /// Sees to it that what dead processes of the tenant held is given back on a GPU, by the controller's index. Returns whether it was anything.
    #[cold]
    pub fn bury_dead(&self, index: usize) -> bool {
        self.standalone().map_or_else(|| self.await_burial(index), Local::bury_dead)
    }

    /// The daemon does it as soon as it sees the end of a connection, which the process's end may precede.
    fn await_burial(&self, index: usize) -> bool {
        let Some(gpu) = self.ledger.gpu(index) else { return false };
        let own = self.ledger().slot;
        let is_anyone_dead = || gpu.suspects().any(|slot| slot != own && !self.is_locked(slot));
        if self.is_gone() || !is_anyone_dead() {
            return false;
        }
        let mut patience = Patience::default();
        while is_anyone_dead() && !self.is_gone() && patience.goes_on(BURIAL_NS) {}
        true
    }

    /// Lets the tenant's other processes see on a GPU that this one lives.
    fn lock_slot(&self, index: usize) {
        let slot = self.ledger().slot;
        if self.slot_lock(slot, libc::F_SETLK).is_some() {
            self.ledger().set_locked(index);
        }
    }

    /// Whether somebody else holds the lock of a slot.
    fn is_locked(&self, slot: usize) -> bool {
        self.slot_lock(slot, libc::F_GETLK).is_none_or(|lock| i32::from(lock.l_type) != libc::F_UNLCK)
    }

    fn slot_lock(&self, slot: usize, command: i32) -> Option<libc::flock> {
        let mut lock = libc::flock {
            l_type: libc::F_WRLCK as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: slot as i64,
            l_len: 1,
            l_pid: 0,
        };
        let memory = self.ledger_memory.get()?.number()?;
        // SAFETY: a complete description of the lock, which outlives the call.
        (unsafe { libc::fcntl(memory, command, &raw mut lock) } == 0).then_some(lock)
    }

    /// Takes up a new connection, which [`Self::attach`] has to follow. The meter thread's to call.
    ///
    /// # Errors
    /// [`ConnectError`], if a page cannot be used; the session is as gone as before.
    pub fn renew(&self, connection: Connection, gpus: &[Gpu]) -> Result<[u8; MAX_GPUS], ConnectError> {
        let Connection { socket, welcome, pages: [grant, meter, ledger, beat], bells } = connection;
        let fresh = Mapped::<MeterPage>::new(&meter, BOTH).map_err(ConnectError::Page)?;
        for checked in [
            Mapped::<GrantPage>::new(&grant, READ).map(drop),
            Mapped::<BeatPage>::new(&beat, READ).map(drop),
            Mapped::<LedgerPage>::new(&ledger, BOTH).map(drop),
        ] {
            checked.map_err(ConnectError::Page)?;
        }
        // Before the gates, whose waiters it counts.
        let carries = welcome.head().minor() >= MINOR_CARRIES;
        self.carry(&fresh, &meter, gpus, carries.then_some(&welcome.gpu_index))?;
        gpus.iter().for_each(Gpu::forget_only_launch);
        // SAFETY: kept in `new`, the memory checked above, and mapped as in `new`.
        unsafe {
            put(self.grant, &grant, READ)?;
            put(self.ledger, &ledger, READ)?;
            put(self.beat, &beat, READ)?;
        }
        // Last of what can fail: a slot of a connection that is given up is another session's soon.
        self.ledgers.replace(&ledger, welcome.ledger_slot as usize).map_err(ConnectError::Page)?;
        exchange(&self.ledger_memory, ledger);
        drop(self.exchange_socket(Some(socket)));
        self.take_bells(bells, &welcome.gpu_index[..gpus.len().min(MAX_GPUS)]);
        self.sessions.fetch_add(1, Ordering::Relaxed);
        Ok(welcome.gpu_index)
    }

    /// A daemon has taken up the process, which had this session without one: `next`, by whose `index` the GPUs go from here on. [`Accounts::move_to`]
    /// has to follow. The pages stay mapped, and whoever is about to use them changes nothing of the other session's.
    ///
    /// [`Accounts::move_to`]: crate::memory::Accounts::move_to
    pub fn hand_over(&self, next: &'static Self, place: &Shared<Self>, gpus: &[Gpu], index: &[u8; MAX_GPUS]) {
        // Times stay behind: nobody was to be charged for them.
        let held = |gpu: usize| {
            let meter = self.meter.slot(gpu).map(MeterSlot::read).unwrap_or_default();
            Reading { held_bytes: meter.held_bytes, ..Reading::default() }
        };
        let moved: Vec<_> = gpus
            .iter()
            .zip(index)
            .filter_map(|(gpu, index)| {
                let (old, new) = (gpu.index()?, next.meter.slot(usize::from(*index))?);
                let before = held(old);
                new.grow(&before, &Reading::default());
                Some((old, new, before))
            })
            .collect();
        gpus.iter().for_each(Gpu::forget_only_launch);
        next.attach(gpus, index, None);
        let (ledger, slot) = next.first_ledger;
        self.ledgers.follow(ledger, slot);
        place.set(Some(next));
        // What came between.
        for (old, new, before) in moved {
            new.grow(&held(old), &before);
        }
        if let Some(local) = &self.local {
            local.open_gates();
        }
    }

    /// Puts the meter page in `memory`, mapped as `fresh` too, in the place of the one there is, and brings what that counted into it;
    /// `index` are the controller's new numbers of the GPUs, or nothing is to be brought.
    fn carry(
        &self,
        fresh: &Mapped<MeterPage>,
        memory: &OwnedFd,
        gpus: &[Gpu],
        index: Option<&[u8; MAX_GPUS]>,
    ) -> Result<(), ConnectError> {
        // What a job has closed is still mapped. In a page that is mapped in one place only nobody can look once another has taken that.
        let old = self.meter_memory.get().and_then(OwnDescriptor::number).map(again).transpose()?;
        let old = old.as_ref();
        let slots = |gpu: &Gpu, index: u8| {
            let before = old.map_or(self.meter, Mapped::page).slot(gpu.index()?)?;
            Some((before, fresh.page().slot(usize::from(index))?))
        };
        let both: Vec<_> = index
            .into_iter()
            .flat_map(|index| gpus.iter().zip(index))
            .filter_map(|(gpu, index)| slots(gpu, *index))
            .collect();
        let read: Vec<Reading> = both.iter().map(|(before, _)| before.read()).collect();
        for ((_, now), reading) in both.iter().zip(&read) {
            now.grow(reading, &Reading::default());
        }
        // SAFETY: kept in `new`, the memory checked by the mapping `fresh`, and mapped as in `new`.
        unsafe { put(self.meter, memory, BOTH)? };
        // From here on nobody counts in the old page any more: what came between is all there.
        for ((before, now), reading) in both.iter().zip(&read).filter(|_| old.is_some()) {
            now.grow(&before.read(), reading);
        }
        exchange(&self.meter_memory, memory.try_clone().map_err(ConnectError::Io)?);
        if index.is_some() {
            fresh.page().set_carried();
        }
        Ok(())
    }

    fn exchange_socket(&self, new: Option<Unshared>) -> Option<Unshared> {
        self.socket.swap(new.map(Unshared::into_descriptor)).map(Unshared::from_descriptor)
    }

    /// Ends it before anybody has used it.
    pub fn end(&self) {
        drop(self.exchange_socket(None));
        // SAFETY: by the caller's word nobody uses it.
        unsafe { self.close() };
    }

    /// Takes the bells of the GPUs that are managed. A bell keeps its number, by which any thread may be about to ring it.
    fn take_bells(&self, bells: Vec<OwnedFd>, index: &[u8]) {
        let taken: Vec<i32> = bells.iter().map(|bell| bell.as_raw_fd()).collect();
        let mut bells = bells.into_iter();
        for (place, _) in self.bells.iter().zip(index).filter(|(_, index)| **index != UNMANAGED) {
            let Some(bell) = bells.next() else { return };
            // Where the job closed the old bell, a new one may have its number, and looks like it.
            let old = place.get().filter(|old| !taken.contains(&old.unchecked()));
            let bell = match old.and_then(OwnDescriptor::number) {
                None => OwnDescriptor::new(bell),
                Some(number) => {
                    // SAFETY: both are open and ours; the old bell is closed by it, at once.
                    unsafe { libc::dup3(bell.as_raw_fd(), number, libc::O_CLOEXEC) };
                    OwnDescriptor::of(number)
                }
            };
            place.swap(Some(bell));
        }
    }

    /// Hands each GPU its slots, by the controller's `index` of each. The session is there from here on. Without a daemon the bell is
    /// `wake`, that of the meter thread.
    pub fn attach(&'static self, gpus: &[Gpu], index: &[u8; MAX_GPUS], wake: Option<OwnDescriptor>) {
        for ((gpu, index), bell) in gpus.iter().zip(index).zip(&self.bells) {
            let slots = (*index != UNMANAGED)
                .then(|| self.grant.slot(usize::from(*index)).zip(self.meter.slot(usize::from(*index))));
            match slots.flatten() {
                Some((grant, meter)) => {
                    let bell = if self.local.is_some() { wake } else { bell.get() };
                    gpu.connect(*index, grant, meter, bell);
                    self.lock_slot(usize::from(*index));
                }
                None => gpu.disconnect(),
            }
        }
        self.connected_ns.store(os::now_ns(), Ordering::Relaxed);
        self.is_gone.store(false, Ordering::Release);
    }

    /// Lets no launch pass on GPUs whose controller is gone, if launches are to fail then, and lets them go by its word where it is not.
    /// Returns after how long to look again, ns.
    pub fn guard(&'static self, gpus: &[Gpu], now_ns: u64) -> u64 {
        if self.fail_mode() == FailMode::Open {
            return u64::MAX;
        }
        let mut again_ns = self.heartbeat_limit_ns();
        for gpu in gpus {
            let Some(index) = gpu.index() else { continue };
            let (Some(grant), Some(shut)) = (self.grant.slot(index), self.shut.get(index)) else { continue };
            let is_gone = self.is_controller_gone(gpu, now_ns);
            let state = if is_gone { GateState::Closed } else { GateState::Open };
            shut.set_memory_limit(grant.memory_limit());
            shut.set_charge_copies(grant.charge_copies());
            if shut.gate().state != state {
                shut.set_gate(state, LeaseTerms::default());
            }
            // Who waits at the gate that was shut finds it open.
            gpu.set_grant(if is_gone { shut } else { grant });
            let next_ns = if is_gone {
                GUARD_NAP_NS
            } else {
                // Not before that can be seen to be so.
                self.believed_until_ns(index).saturating_sub(now_ns).saturating_add(1)
            };
            again_ns = again_ns.min(next_ns);
        }
        again_ns
    }

    /// The tenant's ledger, for one call that changes what is held.
    #[inline]
    pub fn ledger(&self) -> Ledger {
        self.ledgers.present()
    }

    /// Which ledger the present one is, among those of this process.
    #[inline]
    pub fn ledger_generation(&self) -> u32 {
        self.ledgers.generation()
    }

    /// Whether the ledger of that generation is there still.
    #[inline]
    pub fn has_ledger(&self, generation: u32) -> bool {
        self.ledgers.has(generation)
    }

    /// What the tenant holds on a GPU, by the controller's index, bytes.
    pub fn tenant_held_bytes(&self, index: usize) -> Option<u64> {
        Some(self.ledger.gpu(index)?.held_bytes())
    }

    /// Daemons that the process had a session with until now.
    pub fn sessions(&self) -> u32 {
        self.sessions.load(Ordering::Relaxed)
    }

    /// What the session says of itself.
    pub fn meter(&self) -> &'static MeterPage {
        self.meter
    }

    /// The socket, whose end is the end of the session, if it has one.
    pub fn socket(&self) -> Option<OwnDescriptor> {
        self.socket.get()
    }

    /// The controller's number of this session.
    pub fn id(&self) -> u64 {
        self.grant.session_id()
    }

    /// The connection ended.
    pub fn set_gone(&self) {
        self.is_gone.store(true, Ordering::Release);
    }

    /// Whether it did.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// Whether a daemon is to be found: the connection ended, or there was none.
    pub fn seeks_daemon(&self) -> bool {
        self.is_waiting || self.is_gone()
    }

    /// After how long without a heartbeat the controller counts as gone, ns.
    pub fn heartbeat_limit_ns(&self) -> u64 {
        match self.grant.heartbeat_limit_ns() {
            0 => HEARTBEAT_LIMIT_NS,
            limit_ns => limit_ns,
        }
    }

    /// Whether nobody will open a gate any more: the connection ended, or the arbiter's heart stopped.
    pub fn is_controller_gone(&self, gpu: &Gpu, now_ns: u64) -> bool {
        self.is_gone() || gpu.index().is_none_or(|index| now_ns > self.believed_until_ns(index))
    }

    /// How long the arbiter counts as there if its heart does not beat again.
    fn believed_until_ns(&self, index: usize) -> u64 {
        let last_ns = self.beat.last_ns(index).max(self.connected_ns.load(Ordering::Relaxed));
        last_ns.saturating_add(self.heartbeat_limit_ns())
    }

    /// What waiters do then.
    pub fn fail_mode(&self) -> FailMode {
        self.grant.fail_mode()
    }

    /// Closes every descriptor but the connection, which a forked child does not have.
    ///
    /// # Safety
    /// Nobody in this process uses the session from here on.
    pub unsafe fn close(&self) {
        for descriptor in self.bells.iter().chain([&self.meter_memory, &self.ledger_memory]) {
            if let Some(descriptor) = descriptor.get() {
                descriptor.close();
            }
        }
        if let Some(local) = &self.local {
            // SAFETY: the caller's promise.
            unsafe { local.close() };
        }
    }
}

/// The new descriptor takes the place of the one there is, which is closed.
fn exchange(place: &Place, new: OwnedFd) {
    if let Some(old) = place.swap(Some(OwnDescriptor::new(new))) {
        old.close();
    }
}

/// Maps the meter page at `number` once more.
fn again(number: i32) -> Result<Mapped<MeterPage>, ConnectError> {
    // SAFETY: the memory of the page there is, only looked at here.
    let memory = unsafe { BorrowedFd::borrow_raw(number) };
    map(&memory.try_clone_to_owned().map_err(ConnectError::Io)?, BOTH)
}

fn map<P: Page>(memory: &OwnedFd, protection: Protection) -> Result<Mapped<P>, ConnectError> {
    Mapped::<P>::new(memory, protection).map_err(ConnectError::Page)
}

/// # Safety
/// As [`replace`].
unsafe fn put<P: Page>(
    place: &'static P,
    memory: &OwnedFd,
    protection: Protection,
) -> Result<(), ConnectError> {
    // SAFETY: the caller's promise.
    unsafe { replace(place, memory, protection) }
        .map_err(|error: io::Error| ConnectError::Page(PageError::Map(error)))
}
