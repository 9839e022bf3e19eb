//! The session: the pages that the process shares with the daemon, and whether the daemon is there.
//! The session lives as long as the process. A daemon that comes back renews the session, and all
//! counters continue.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use deepres_abi::MAX_GPUS;
use deepres_abi::beat::BeatPage;
use deepres_abi::grant::{FailMode, GateState, GrantPage, GrantSlot, LeaseTerms, NO_LIMIT};
use deepres_abi::ledger::LedgerPage;
use deepres_abi::meter::{MeterPage, MeterSlot, Reading};
use deepres_abi::page::Page;
use deepres_abi::wire::UNMANAGED;
use deepres_abi::wish::Key;

use crate::config::Config;
use crate::descriptor::{OwnDescriptor, Place};
use crate::handshake::{ConnectError, Connection};
use crate::memory::ledgers::{Ledger, Ledgers};
use crate::meter::gpu::{Gpu, Shared};
use crate::meter::thread::MeterThread;
use crate::os::{self, Patience};
use crate::pages::{Mapped, PageError, Protection, replace};
use crate::standalone::file::TenantFile;
use crate::standalone::{Local, keep_record};
use crate::unshared::Unshared;

/// The heartbeat limit if the daemon names none, ns.
const HEARTBEAT_LIMIT_NS: u64 = 1_000_000_000;
/// The longest delay after which a process with a closed fail mode notices that the daemon is back,
/// ns.
const GUARD_NAP_NS: u64 = 10_000_000;
/// The longest time in which a daemon gives back the memory of a dead process, ns.
const BURIAL_NS: u64 = 100_000_000;

const READ: Protection = libc::PROT_READ;
const BOTH: Protection = libc::PROT_READ | libc::PROT_WRITE;

/// The process's session with a daemon. The pages of a session never move, so any thread may read
/// them at any time.
#[derive(Debug)]
pub struct Session {
    grant: &'static GrantPage,
    meter: &'static MeterPage,
    beat: &'static BeatPage,
    /// The ledger, from which the process only reads. The process changes its held memory through
    /// `ledgers`.
    ledger: &'static LedgerPage,
    /// The ledgers to which the process charges its memory. If a daemon takes over a process that
    /// began without a daemon, the process keeps this value.
    ledgers: &'static Ledgers,
    /// The ledger from the session's first daemon, and the session's slot in it.
    first_ledger: (&'static LedgerPage, usize),
    /// The gates that apply while the daemon is gone and the fail mode is closed.
    shut: [GrantSlot; MAX_GPUS],
    socket: Place,
    /// The file descriptor of the memory of the meter page.
    meter_memory: Place,
    /// The memory of the ledger. Locks on it show which of the tenant's sessions live. If a process
    /// closes any descriptor of this memory, it loses its locks.
    ledger_memory: Place,
    /// The bell of each GPU, by ordinal in this process.
    bells: [Place; MAX_GPUS],
    connected_ns: AtomicU64,
    is_gone: AtomicBool,
    /// The number of daemons with which the process has had a session.
    sessions: AtomicU32,
    /// The stand-in for the daemon, if the session has no daemon. Such a session has no
    /// descriptors.
    local: Option<Local>,
    /// The stand-in for a daemon that died or hung while the tenant had a share. The session keeps
    /// the stand-in for the next time.
    stand_in: Shared<Local>,
    /// Whether the process looks for a daemon that gives it a session.
    is_waiting: bool,
}

impl Session {
    /// Returns the process's first session with a daemon. `alone` is the earlier session without a
    /// daemon, if there was one.
    ///
    /// # Errors
    /// [`ConnectError`] if the process cannot use a page.
    pub fn new(connection: Connection, gpus: usize, alone: Option<&Self>) -> Result<Self, ConnectError> {
        let Connection { socket, welcome, pages: [grant, meter, ledger, beat], bells } = connection;
        // The function maps all pages before it keeps any, because a kept page stays mapped.
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
                None => Box::leak(Box::new(Ledgers::new(own, welcome.ledger_slot as usize, None))),
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
            stand_in: Shared::none(),
            is_waiting: false,
        };
        session.take_bells(bells, &welcome.gpu_index[..gpus.min(MAX_GPUS)]);
        Ok(session)
    }

    /// Returns the session, if the environment names no limit that makes no sense, or if the
    /// daemon's record has a limit of the same kind on each GPU. Otherwise ends the session. `index`
    /// has the daemon's index of each GPU.
    ///
    /// # Errors
    /// [`ConnectError::Unlimited`].
    pub fn limiting(self, config: &Config, index: &[u8]) -> Result<Self, ConnectError> {
        let grant = self.grant;
        let records = || index.iter().filter_map(move |index| grant.slot(usize::from(*index)));
        let is_limited = |key: Key| match key {
            Key::Share => records().all(|record| record.share_ppm().is_some()),
            _ => records().all(|record| record.memory_limit() != NO_LIMIT),
        };
        if config.unreadable().iter().filter_map(|limit| limit.key).all(is_limited) {
            return Ok(self);
        }
        self.end();
        Err(ConnectError::Unlimited)
    }

    /// Returns a session without a daemon. With `is_waiting`, a daemon can take the process over
    /// later.
    pub fn local(local: Local, is_waiting: bool) -> Self {
        Self {
            grant: local.grant,
            meter: local.meter,
            beat: local.beat,
            ledger: local.page.ledger(),
            ledgers: Box::leak(Box::new(Ledgers::new(local.page.ledger(), local.slot(), local.file))),
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
            stand_in: Shared::none(),
            is_waiting,
        }
    }

    /// Returns the stand-in for the daemon, or `None` if the session began with a daemon.
    pub fn standalone(&self) -> Option<&Local> {
        self.local.as_ref()
    }

    /// Returns the stand-in that does the arbiter's work on a GPU at present. Returns `None` while
    /// the GPU has an arbiter of a daemon, or if the tenant has no share on the GPU.
    pub fn stand_in(&self, gpu: &Gpu) -> Option<&Local> {
        self.standalone().or_else(|| self.stand_in.get().filter(|local| local.serves(gpu)))
    }

    /// Returns the stand-in that does an arbiter's work on any of the GPUs at present.
    pub fn any_stand_in(&self, gpus: &[Gpu]) -> Option<&Local> {
        gpus.iter().find_map(|gpu| self.stand_in(gpu))
    }

    /// Returns whether the tenant has a share on a GPU whose arbiter is gone or hangs, and neither
    /// the process itself keeps the share, nor do launches fail.
    pub fn has_lost_share(&self, gpus: &[Gpu], now_ns: u64) -> bool {
        let has_lost = |gpu: &Gpu| self.stand_in(gpu).is_none() && self.lost_record(gpu, now_ns).is_some();
        self.fail_mode() == FailMode::Open && self.local.is_none() && gpus.iter().any(has_lost)
    }

    /// Returns the daemon's record for a GPU whose arbiter is gone or hangs, if the tenant has a
    /// share on the GPU.
    fn lost_record(&self, gpu: &Gpu, now_ns: u64) -> Option<&'static GrantSlot> {
        let record = self.grant.slot(gpu.index()?)?;
        (record.share_ppm().is_some() && self.is_daemon_gone(gpu, now_ns)).then_some(record)
    }

    /// Lets the process keep its tenant's share by itself on each GPU whose arbiter is gone or
    /// hangs, until the arbiter or another daemon is back. `wake` then serves as the bell, and
    /// wakes the meter thread.
    ///
    /// # Errors
    /// The system's error, if there is no memory for the pages. Launches then pass.
    pub fn keep_share(
        &self,
        _meter: MeterThread,
        gpus: &[Gpu],
        wake: Option<OwnDescriptor>,
    ) -> io::Result<()> {
        let now_ns = os::now_ns();
        if !self.has_lost_share(gpus, now_ns) {
            return Ok(());
        }
        // A stand-in at whose gates GPUs wait must stay.
        let stays =
            |known: &&'static Local| known.uses(self.file()) || gpus.iter().any(|gpu| known.serves(gpu));
        let local: &'static Local = match self.stand_in.get().filter(stays) {
            Some(known) => known,
            None => Box::leak(Box::new(Local::stand_in(self.file(), gpus)?)),
        };
        self.stand_in.set(Some(local));
        local.take_over(gpus, |gpu| self.lost_record(gpu, now_ns), wake, now_ns);
        Ok(())
    }

    /// Lets each GPU whose arbiter no longer hangs obey the arbiter again. Returns whether the
    /// process then keeps no share by itself any more, and did before.
    pub fn return_shares(&self, _meter: MeterThread, gpus: &[Gpu], now_ns: u64) -> bool {
        let Some(local) = self.stand_in.get() else { return false };
        let mut has_returned = false;
        for (gpu, bell) in gpus.iter().zip(&self.bells) {
            let grant = gpu.index().and_then(|index| self.grant.slot(index));
            let Some(grant) = grant.filter(|_| local.serves(gpu) && !self.is_daemon_gone(gpu, now_ns)) else {
                continue;
            };
            gpu.forget_only_launch();
            gpu.obey(grant, bell.get());
            local.give_up(Some(gpu));
            has_returned = true;
        }
        has_returned && self.any_stand_in(gpus).is_none()
    }

    /// Makes sure that the tenant's dead processes hold no memory on a GPU. `index` is the daemon's
    /// index of the GPU. Returns whether any dead process held memory.
    #[cold]
    pub fn bury_dead(&self, index: usize) -> bool {
        let has_waited = self.await_burial(index);
        // A daemon gives back only the memory in its ledger.
        let in_file = self.file().is_some_and(TenantFile::bury_dead);
        let has_daemon = self.local.is_none() && !self.is_gone();
        let in_ledger = !has_daemon && self.ledger().bury(index, |slot| !self.is_locked(slot));
        has_waited || in_ledger || in_file
    }

    /// Lets the process's memory count in the tenant's file too, because the daemon is gone or
    /// another process of the tenant has no session. The caller calls [`Accounts::move_to`]
    /// afterwards.
    ///
    /// [`Accounts::move_to`]: crate::memory::Accounts::move_to
    pub fn count_in(&self, file: &'static TenantFile) {
        self.ledgers.count_in(file);
    }

    /// Writes the limits of the daemon's record into the tenant's file, for each GPU whose arbiter
    /// is gone or hangs. Processes without a session know no newer limits.
    pub fn keep_limits(&self, gpus: &[Gpu]) {
        let Some(file) = self.file() else { return };
        let now_ns = os::now_ns();
        for gpu in gpus.iter().filter(|gpu| self.is_daemon_gone(gpu, now_ns)) {
            let record = gpu.index().and_then(|index| self.grant.slot(index));
            let tenant = file.page.place(gpu.uuid()).and_then(|place| file.page.gpu(place));
            if let Some((record, tenant)) = record.zip(tenant) {
                keep_record(tenant, record, now_ns);
            }
        }
    }

    /// Lets the process's memory count in the daemon's ledger alone again. The caller calls
    /// [`Accounts::move_to`] afterwards.
    ///
    /// [`Accounts::move_to`]: crate::memory::Accounts::move_to
    pub fn count_out(&self) {
        self.ledgers.count_out();
    }

    /// Returns whether the process's memory counts in the tenant's file beside a daemon's ledger.
    pub fn counts_in_file(&self) -> bool {
        self.ledgers.is_with_file()
    }

    /// Returns the tenant's file, if the process has opened it.
    pub fn file(&self) -> Option<&'static TenantFile> {
        self.ledgers.file()
    }

    /// Waits until the daemon has given the memory back. Returns whether any dead process held
    /// memory. The daemon gives memory back when it sees the end of a connection, which can come
    /// later than the process's end.
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

    /// Locks the session's slot in the current ledger. By the lock, the tenant's other processes
    /// see that this process lives.
    fn lock_slot(&self, gpus: &[Gpu]) {
        let ledger = self.ledger();
        if self.slot_lock(ledger.slot, libc::F_SETLK).is_some() {
            gpus.iter().filter_map(Gpu::index).for_each(|index| ledger.set_locked(index));
        }
    }

    /// Returns whether another process holds the lock of a slot.
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
        // SAFETY: the description of the lock is complete and outlives the call.
        (unsafe { libc::fcntl(memory, command, &raw mut lock) } == 0).then_some(lock)
    }

    /// Takes over a new connection, and returns the daemon's index of each GPU. The caller calls
    /// [`Self::attach`] afterwards.
    ///
    /// # Errors
    /// [`ConnectError`] if the process cannot use a page. The session then stays without a daemon.
    pub fn renew(
        &self,
        _meter: MeterThread,
        connection: Connection,
        gpus: &[Gpu],
    ) -> Result<[u8; MAX_GPUS], ConnectError> {
        let Connection { socket, welcome, pages: [grant, meter, ledger, beat], bells } = connection;
        let fresh = Mapped::<MeterPage>::new(&meter, BOTH).map_err(ConnectError::Page)?;
        for checked in [
            Mapped::<GrantPage>::new(&grant, READ).map(drop),
            Mapped::<BeatPage>::new(&beat, READ).map(drop),
            Mapped::<LedgerPage>::new(&ledger, BOTH).map(drop),
        ] {
            checked.map_err(ConnectError::Page)?;
        }
        // The function replaces the meter page before the grant page, because the meter page counts
        // the waiters of the gates.
        self.carry(&fresh, &meter, gpus, &welcome.gpu_index)?;
        gpus.iter().for_each(Gpu::forget_only_launch);
        // SAFETY: `new` kept the pages and mapped them with the same protection. The code above
        // checked the memory.
        unsafe {
            put(self.grant, &grant, READ)?;
            put(self.ledger, &ledger, READ)?;
            put(self.beat, &beat, READ)?;
        }
        // This is the last step that can fail. After a failure, the daemon soon gives the
        // connection's slot to another session.
        self.ledgers.replace(&ledger, welcome.ledger_slot as usize).map_err(ConnectError::Page)?;
        exchange(&self.ledger_memory, ledger);
        drop(self.exchange_socket(Some(socket)));
        self.take_bells(bells, &welcome.gpu_index[..gpus.len().min(MAX_GPUS)]);
        self.sessions.fetch_add(1, Ordering::Relaxed);
        Ok(welcome.gpu_index)
    }

    /// Hands the process over from this session, which has no daemon, to `next`. `index` has the
    /// GPUs' new numbers. The caller calls [`Accounts::move_to`] afterwards. The old pages stay
    /// mapped. So a thread that still uses the old pages changes nothing of the new session.
    ///
    /// [`Accounts::move_to`]: crate::memory::Accounts::move_to
    pub fn hand_over(&self, next: &'static Self, place: &Shared<Self>, gpus: &[Gpu], index: &[u8; MAX_GPUS]) {
        // The function does not carry times over, because no daemon charged anyone for them.
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
        next.connect(gpus, index, None);
        let (ledger, slot) = next.first_ledger;
        self.ledgers.follow(ledger, slot);
        next.lock_slot(gpus);
        place.set(Some(next));
        // The loop carries over the changes that threads made to the old page between the copy and
        // the exchange.
        for (old, new, before) in moved {
            new.grow(&held(old), &before);
        }
        if let Some(local) = &self.local {
            local.give_up(None);
        }
    }

    /// Replaces the meter page by the page in `memory`, and carries the counters over. `fresh` is a
    /// second mapping of `memory`. `index` has the daemon's new numbers of the GPUs.
    fn carry(
        &self,
        fresh: &Mapped<MeterPage>,
        memory: &OwnedFd,
        gpus: &[Gpu],
        index: &[u8; MAX_GPUS],
    ) -> Result<(), ConnectError> {
        // The function maps the old page a second time, because the replacement removes its only
        // mapping. If the job has closed the page's descriptor, the page is still mapped, but
        // cannot be mapped again.
        let old = self.meter_memory.get().and_then(OwnDescriptor::number).map(again).transpose()?;
        let old = old.as_ref();
        let slots = |gpu: &Gpu, index: u8| {
            let before = old.map_or(self.meter, Mapped::page).slot(gpu.index()?)?;
            Some((before, fresh.page().slot(usize::from(index))?))
        };
        let both: Vec<_> = gpus.iter().zip(index).filter_map(|(gpu, index)| slots(gpu, *index)).collect();
        let read: Vec<Reading> = both.iter().map(|(before, _)| before.read()).collect();
        for ((_, now), reading) in both.iter().zip(&read) {
            now.grow(reading, &Reading::default());
        }
        // SAFETY: `new` kept the page and mapped it with the same protection. The mapping `fresh`
        // checked the memory.
        unsafe { put(self.meter, memory, BOTH)? };
        // From here on, no thread counts in the old page. So the old page now contains all changes
        // that came in between.
        for ((before, now), reading) in both.iter().zip(&read).filter(|_| old.is_some()) {
            now.grow(&before.read(), reading);
        }
        exchange(&self.meter_memory, memory.try_clone().map_err(ConnectError::Io)?);
        fresh.page().set_carried();
        Ok(())
    }

    fn exchange_socket(&self, new: Option<Unshared>) -> Option<Unshared> {
        self.socket.swap(new.map(Unshared::into_descriptor)).map(Unshared::from_descriptor)
    }

    /// Ends the session before any thread has used it.
    pub fn end(&self) {
        drop(self.exchange_socket(None));
        // SAFETY: the caller guarantees that no thread uses the session.
        unsafe { self.close() };
    }

    /// Takes the bells of the managed GPUs. A bell keeps its descriptor number, because any thread
    /// can be about to ring it.
    fn take_bells(&self, bells: Vec<OwnedFd>, index: &[u8]) {
        let taken: Vec<i32> = bells.iter().map(|bell| bell.as_raw_fd()).collect();
        let mut bells = bells.into_iter();
        for (place, _) in self.bells.iter().zip(index).filter(|(_, index)| **index != UNMANAGED) {
            let Some(bell) = bells.next() else { return };
            // If the job has closed the old bell, a new bell can have the same number, and would
            // look like the old bell.
            let old = place.get().filter(|old| !taken.contains(&old.unchecked()));
            let bell = match old.and_then(OwnDescriptor::number) {
                None => OwnDescriptor::new(bell),
                Some(number) => {
                    // SAFETY: both descriptors are open and belong to the interposer. The call
                    // closes the old bell in the same step.
                    unsafe { libc::dup3(bell.as_raw_fd(), number, libc::O_CLOEXEC) };
                    OwnDescriptor::of(number)
                }
            };
            place.swap(Some(bell));
        }
    }

    /// Gives each GPU its slots, by the daemon's `index` of each GPU. From now on, the session is
    /// in use. Without a daemon, `wake` serves as the bell, and wakes the meter thread.
    pub fn attach(&'static self, gpus: &[Gpu], index: &[u8; MAX_GPUS], wake: Option<OwnDescriptor>) {
        self.connect(gpus, index, wake);
        self.lock_slot(gpus);
    }

    /// Does what [`Self::attach`] does, but does not lock the session's slot.
    fn connect(&'static self, gpus: &[Gpu], index: &[u8; MAX_GPUS], wake: Option<OwnDescriptor>) {
        for ((gpu, index), bell) in gpus.iter().zip(index).zip(&self.bells) {
            let slots = (*index != UNMANAGED)
                .then(|| self.grant.slot(usize::from(*index)).zip(self.meter.slot(usize::from(*index))));
            match slots.flatten() {
                Some((grant, meter)) => {
                    if let Some(word) = self.meter.sm_ppm(usize::from(*index)) {
                        word.store(gpu.sm_ppm, Ordering::Relaxed);
                    }
                    if let Some(word) = self.meter.mps_server(usize::from(*index)) {
                        word.store(gpu.mps_server, Ordering::Relaxed);
                    }
                    let bell = if self.local.is_some() { wake } else { bell.get() };
                    gpu.connect(*index, grant, meter, bell);
                    if self.grant.is_mig(usize::from(*index)) {
                        gpu.set_mig();
                    }
                }
                None => gpu.disconnect(),
            }
        }
        self.connected_ns.store(os::now_ns(), Ordering::Relaxed);
        self.is_gone.store(false, Ordering::Release);
        if let Some(stand_in) = self.stand_in.get() {
            stand_in.give_up(None);
        }
    }

    /// If the fail mode is closed, lets no launch pass on GPUs whose arbiter is gone. On the other
    /// GPUs, the arbiter's grant applies. Returns the time until the next check of the arbiters, ns.
    pub fn guard(&'static self, gpus: &[Gpu], now_ns: u64) -> u64 {
        if self.fail_mode() == FailMode::Open || self.local.is_some() {
            let may_return = self.local.is_none() && !self.is_gone() && self.any_stand_in(gpus).is_some();
            return if may_return { GUARD_NAP_NS } else { u64::MAX };
        }
        let mut again_ns = self.heartbeat_limit_ns();
        for gpu in gpus {
            let Some(index) = gpu.index() else { continue };
            let (Some(grant), Some(shut)) = (self.grant.slot(index), self.shut.get(index)) else { continue };
            let is_gone = self.is_daemon_gone(gpu, now_ns);
            let state = if is_gone { GateState::Closed } else { GateState::Open };
            shut.set_memory_limit(grant.memory_limit());
            shut.set_charge_copies(grant.charge_copies());
            if shut.gate().state != state {
                shut.set_gate(state, LeaseTerms::default());
            }
            // After the arbiter is back, threads that wait at the shut gate find this gate open.
            gpu.set_grant(if is_gone { shut } else { grant });
            let next_ns = if is_gone {
                GUARD_NAP_NS
            } else {
                // Until that time, the session takes the arbiter as alive, so an earlier check
                // would find nothing.
                self.believed_until_ns(index).saturating_sub(now_ns).saturating_add(1)
            };
            again_ns = again_ns.min(next_ns);
        }
        again_ns
    }

    /// Returns the tenant's ledger, for one call that changes the held memory.
    #[inline]
    pub fn ledger(&self) -> Ledger {
        self.ledgers.present()
    }

    /// Returns the number of the present ledger among the ledgers of this process.
    #[inline]
    pub fn ledger_generation(&self) -> u32 {
        self.ledgers.generation()
    }

    /// Returns whether the ledger with this number is the present ledger, with or without the
    /// tenant's file.
    #[inline]
    pub fn is_current_ledger(&self, generation: u32) -> bool {
        self.ledgers.is_current(generation)
    }

    /// Returns whether the ledger with this number still exists.
    #[inline]
    pub fn has_ledger(&self, generation: u32) -> bool {
        self.ledgers.has(generation)
    }

    /// Returns the bytes that the tenant holds on a GPU. Returns `None` if the daemon does not
    /// manage the GPU.
    pub fn tenant_held_bytes(&self, gpu: &Gpu) -> Option<u64> {
        Some(self.ledger().account(gpu.index()?, gpu.uuid())?.tenant_held_bytes())
    }

    /// Returns the number of daemons with which the process has had a session.
    pub fn sessions(&self) -> u32 {
        self.sessions.load(Ordering::Relaxed)
    }

    /// Returns the session's grant page.
    pub fn grant(&self) -> &'static GrantPage {
        self.grant
    }

    /// Returns the session's meter page.
    pub fn meter(&self) -> &'static MeterPage {
        self.meter
    }

    /// Returns the socket, if the session has one. When the connection ends, the session ends.
    pub fn socket(&self) -> Option<OwnDescriptor> {
        self.socket.get()
    }

    /// Returns the daemon's number of this session.
    pub fn id(&self) -> u64 {
        self.grant.session_id()
    }

    /// Records that the connection to the daemon ended.
    pub fn set_gone(&self) {
        self.is_gone.store(true, Ordering::Release);
    }

    /// Returns whether the connection has ended.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// Returns whether the process looks for a daemon, because the connection has ended or never
    /// existed.
    pub fn seeks_daemon(&self) -> bool {
        self.is_waiting || self.is_gone()
    }

    /// Returns the heartbeat limit: the age of the heartbeat from which the session takes the
    /// daemon for gone, ns.
    pub fn heartbeat_limit_ns(&self) -> u64 {
        match self.grant.heartbeat_limit_ns() {
            0 => HEARTBEAT_LIMIT_NS,
            limit_ns => limit_ns,
        }
    }

    /// Returns whether nobody will open a gate: neither a daemon, nor the stand-in for a daemon.
    pub fn is_controller_gone(&self, gpu: &Gpu, now_ns: u64) -> bool {
        match self.stand_in(gpu) {
            Some(stand_in) => stand_in.is_gone(gpu.uuid(), now_ns),
            None => self.is_daemon_gone(gpu, now_ns),
        }
    }

    /// Returns whether the connection to the daemon has ended, or the arbiter's heartbeat has
    /// stopped.
    pub fn is_daemon_gone(&self, gpu: &Gpu, now_ns: u64) -> bool {
        self.is_gone() || gpu.index().is_none_or(|index| now_ns > self.believed_until_ns(index))
    }

    /// Returns the time until which the session takes the arbiter as alive without another
    /// heartbeat, ns of `CLOCK_MONOTONIC`.
    fn believed_until_ns(&self, index: usize) -> u64 {
        let last_ns = self.beat.last_ns(index).max(self.connected_ns.load(Ordering::Relaxed));
        last_ns.saturating_add(self.heartbeat_limit_ns())
    }

    /// Returns whether launches pass or fail while the daemon is gone.
    pub fn fail_mode(&self) -> FailMode {
        self.grant.fail_mode()
    }

    /// Closes all descriptors but the connection. A forked child has no copy of the connection.
    ///
    /// # Safety
    /// No thread of this process uses the session from now on.
    pub unsafe fn close(&self) {
        for descriptor in self.bells.iter().chain([&self.meter_memory, &self.ledger_memory]) {
            if let Some(descriptor) = descriptor.get() {
                descriptor.close();
            }
        }
        if let Some(file) = self.file() {
            // SAFETY: the caller guarantees this.
            unsafe { file.close() };
        }
    }
}

/// Puts a new descriptor in place of the present descriptor, and closes the present descriptor.
fn exchange(place: &Place, new: OwnedFd) {
    if let Some(old) = place.swap(Some(OwnDescriptor::new(new))) {
        old.close();
    }
}

/// Returns a second mapping of the meter page at the descriptor `number`.
fn again(number: i32) -> Result<Mapped<MeterPage>, ConnectError> {
    // SAFETY: `number` is the descriptor of the present page's memory. The code only reads it here.
    let memory = unsafe { BorrowedFd::borrow_raw(number) };
    map(&memory.try_clone_to_owned().map_err(ConnectError::Io)?, BOTH)
}

fn map<P: Page>(memory: &OwnedFd, protection: Protection) -> Result<Mapped<P>, ConnectError> {
    Mapped::<P>::new(memory, protection).map_err(ConnectError::Page)
}

/// # Safety
/// The same requirements as for [`replace`].
unsafe fn put<P: Page>(
    place: &'static P,
    memory: &OwnedFd,
    protection: Protection,
) -> Result<(), ConnectError> {
    // SAFETY: the caller guarantees this.
    unsafe { replace(place, memory, protection) }
        .map_err(|error: io::Error| ConnectError::Page(PageError::Map(error)))
}
