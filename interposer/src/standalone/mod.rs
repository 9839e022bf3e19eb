//! Standalone: limits without a daemon. The process is its own arbiter, with the same pages, gate
//! and meter as under a daemon.
//!
//! The meter thread does the arbiter's part. The meter thread charges the GPU time of the process
//! to the tenant's [`Allowance`]. While the tenant must pause for used time, the gate is closed.
//! Otherwise the process has a lease with a window, which bounds the work in flight. The pauses
//! make up for all used time, so the share is exact in the long run.
//!
//! If the daemon of a session dies or hangs, the process keeps its share in the same way until a
//! daemon is back ([`Local::take_over`]). Meanwhile the meter page of the session counts on.
//!
//! The processes of a tenant take turns ([`turns`]). If ranks on several GPUs depend on each other,
//! they pause together ([`rank`]). The meter thread also writes the heartbeat. A launch waits at
//! the gate only while the heartbeat is fresh.
//!
//! [`Allowance`]: deepres_abi::allowance::Allowance

pub mod file;
mod memory;
mod rank;
mod turns;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, io, ptr};

use deepres_abi::beat::BeatPage;
use deepres_abi::fallback::Fallback;
use deepres_abi::grant::{FailMode, GateState, GrantPage, GrantSlot, LeaseTerms, NO_LIMIT, ONE_LAUNCH};
use deepres_abi::meter::{MeterPage, MeterSlot, Reading};
use deepres_abi::standalone::{StandaloneGpu, StandalonePage};
use deepres_abi::wire::{UNMANAGED, Uuid};
use deepres_abi::{MAX_GPUS, PPM};

use self::file::TenantFile;
use self::rank::Rank;
use self::turns::{Look, Turns};
use crate::config::{Config, Limit};
use crate::descriptor::OwnDescriptor;
use crate::log::say;
use crate::meter::gpu::Gpu;
use crate::os;

/// The most estimated GPU time in flight, ns. On a busy machine, this much work lasts from one
/// check of the meter thread to the next. A process may use the whole window before the gate
/// closes. So with a share of 10 %, a tenant runs for one window in the time of ten windows.
const WINDOW_NS: u64 = 4_000_000;
/// A window has room for this many of the longest kernels, so that one kernel can wait behind
/// another.
const KERNELS_PER_WINDOW: u64 = 2;
/// The longest window that the length of kernels can cause, ns. Beside longer kernels, the pause
/// between two kernels is short.
const MAX_WINDOW_NS: u64 = 20_000_000;
/// The age of the heartbeat from which launches take the meter thread as dead, ns. Launches then
/// go. An idle meter thread sleeps for a second.
const HEARTBEAT_LIMIT_NS: u64 = 2_000_000_000;
/// The longest time between two heartbeats while launches wait, ns.
const BEAT_NS: u64 = 200_000_000;
/// The time between two checks of a process whose threads wait at a closed gate, ns. Some hundred
/// processes may wait at a time.
const POLL_NS: u64 = 500_000;
/// The session's number in the grant page. No session with a daemon has this number.
const SESSION_ID: u64 = 0;

/// The pages of a session without a daemon, and the state that the session shares with the tenant's
/// other processes.
#[derive(Debug)]
pub struct Local {
    /// The grant that the process gives itself.
    pub grant: &'static GrantPage,
    /// The meter of the process.
    pub meter: &'static MeterPage,
    /// The heartbeat of the process's own meter thread.
    pub beat: &'static BeatPage,
    /// The memory that the tenant holds, and the tenant's limits.
    pub page: &'static StandalonePage,
    /// The file that holds `page`, if the process shares it.
    pub file: Option<&'static TenantFile>,
    /// The place of each GPU in the pages, by ordinal in this process, or [`UNMANAGED`].
    pub gpu_index: [u8; MAX_GPUS],
    /// The limits that the daemon had told when the process began, and the fail mode of then.
    pub told: Fallback,
    /// The turns with the tenant's other processes, by the GPU's place in the pages.
    turns: [Turns; MAX_GPUS],
    /// This process's ranks, by the GPU's place in the pages.
    ranks: [Rank; MAX_GPUS],
    /// Whether the process had a session, so that the memory limit is the limit of the daemon's
    /// record.
    is_stand_in: bool,
    /// When the process took each gate over from a daemon, ns of `CLOCK_MONOTONIC`, by the GPU's
    /// place in the pages; 0 if there was no daemon.
    since_ns: [AtomicU64; MAX_GPUS],
}

impl Local {
    /// Returns a session with the lower of the limits of the environment and of `told`, and logs
    /// the limits. If another process without a session uses the tenant's file, the tenant keeps
    /// the limits in the file, and the process adds only those that the tenant lacks. With
    /// `is_newest`, a daemon has just told limits, which replace those in the file. With a closed
    /// fail mode, all gates of the session stay closed.
    ///
    /// # Errors
    /// The system's error, if there is no memory for the pages.
    pub fn begin(config: &Config, uuids: &[Uuid], told: Fallback, is_newest: bool) -> io::Result<Self> {
        let file = open_file(config, uuids);
        // A session does not keep the limits in the file up to date while it obeys a daemon.
        let is_newest = is_newest || file.is_some_and(|file| !file.is_used_alone());
        let limit_of = |ordinal| config.limit(ordinal).within(&told);
        let local = Self::make(file, uuids, told, is_newest, limit_of)?;
        if config.wish.charge_copies == Some(true) {
            let grants = (0..MAX_GPUS).filter_map(|index| local.grant.slot(index));
            grants.for_each(|grant| grant.set_charge_copies(true));
        }
        local.announce(config);
        Ok(local)
    }

    /// Returns a session without limits, for a process that a daemon can take over later.
    ///
    /// # Errors
    /// The system's error, if there is no memory for the pages.
    pub fn unlimited(uuids: &[Uuid]) -> io::Result<Self> {
        Self::make(None, uuids, Fallback::default(), false, |_| Limit::default())
    }

    /// Keeps the lower of the limits of the environment and of `told` from the next turn on. A
    /// daemon has just told the limits.
    pub fn keep(&self, config: &Config, told: &Fallback) {
        self.set(told.fail_mode, true, |ordinal| config.limit(ordinal).within(told));
    }

    /// Returns a stand-in for the daemon of a session, which has no limits until
    /// [`Self::take_over`]. `file` is the tenant's file, if the process can use it.
    ///
    /// # Errors
    /// The system's error, if there is no memory for the pages.
    pub fn stand_in(file: Option<&'static TenantFile>, gpus: &[Gpu]) -> io::Result<Self> {
        let uuids: Vec<Uuid> = gpus.iter().map(|gpu| *gpu.uuid()).collect();
        let local = Self::make(file, &uuids, Fallback::default(), false, |_| Limit::default())?;
        Ok(Self { is_stand_in: true, ..local })
    }

    /// Returns whether the process shares its limits by `file`, or by no file if `file` is `None`.
    pub fn uses(&self, file: Option<&TenantFile>) -> bool {
        self.file.map(ptr::from_ref) == file.map(ptr::from_ref)
    }

    /// Returns whether a GPU obeys a gate of this process.
    pub fn serves(&self, gpu: &Gpu) -> bool {
        let own = self.page.place(gpu.uuid()).and_then(|place| self.grant.slot(place));
        own.zip(gpu.grant()).is_some_and(|(own, grant)| ptr::eq(own, grant))
    }

    /// Takes the gates of a session over from arbiters that are gone or hang. `record_of` returns
    /// the daemon's record for such a GPU, and `None` for any other GPU. From now on, the process
    /// keeps the share and the memory limit of the record. `wake` serves as the bell.
    ///
    /// The launches of before are not charged here, because the daemon let them pass.
    pub fn take_over<'r>(
        &self,
        gpus: &[Gpu],
        record_of: impl Fn(&Gpu) -> Option<&'r GrantSlot>,
        wake: Option<OwnDescriptor>,
        now_ns: u64,
    ) {
        let found = |(ordinal, place): (usize, usize)| {
            let gpu = gpus.get(ordinal).filter(|gpu| !self.serves(gpu))?;
            Some((gpu, place, record_of(gpu)?, self.grant.slot(place)?, self.page.gpu(place)?))
        };
        // The daemon charged the time of earlier outages. A process of the tenant that already
        // keeps the share has charged the time of this outage.
        let is_first = self.file.is_none_or(|file| !file.is_used_alone());
        for (gpu, place, record, own, tenant) in self.places().filter_map(found) {
            own.set_memory_limit(record.memory_limit());
            own.set_charge_copies(record.charge_copies());
            // The other tenants of the daemon launch too.
            own.set_beside(true);
            keep_record(tenant, record, now_ns);
            if is_first {
                tenant.allowance.end_pause(now_ns);
            }
            if let Some(since_ns) = self.since_ns.get(place) {
                since_ns.store(now_ns, Ordering::Relaxed);
            }
            // The first turn opens the gate.
            set_gate(own, GateState::Closed, LeaseTerms::default());
            self.beat.beat(place, now_ns);
            gpu.obey(own, wake);
        }
        self.turn(gpus, now_ns);
    }

    fn make(
        file: Option<&'static TenantFile>,
        uuids: &[Uuid],
        told: Fallback,
        is_newest: bool,
        limit_of: impl Fn(usize) -> Limit,
    ) -> io::Result<Self> {
        let page = match file {
            Some(file) => file.page,
            None => {
                let page = memory::page::<StandalonePage>()?;
                for ledger in page.ledger().all(MAX_GPUS) {
                    // The call cannot fail, because the ledger has a first slot.
                    let _ = ledger.open(0);
                }
                page
            }
        };
        let mut gpu_index = [UNMANAGED; MAX_GPUS];
        for (ordinal, uuid) in uuids.iter().enumerate().take(MAX_GPUS) {
            if let (Some(place), Some(index)) = (page.place(uuid), gpu_index.get_mut(ordinal)) {
                *index = place as u8;
            }
        }
        let local = Self {
            grant: memory::page()?,
            meter: memory::page()?,
            beat: memory::page()?,
            page,
            file,
            gpu_index,
            told,
            turns: Default::default(),
            ranks: Default::default(),
            is_stand_in: false,
            since_ns: Default::default(),
        };
        local.set(told.fail_mode, is_newest, limit_of);
        if let Some(file) = file {
            file.set_alone(true);
            file.bury_dead();
        }
        local.turn(&[], os::now_ns());
        Ok(local)
    }

    /// Sets the fail mode, and the limits by ordinal in this process. The tenant keeps the limits
    /// that it has, as under a daemon, unless the limits here are the newest. If this process has
    /// no limit, the tenant keeps its limit in any case.
    fn set(&self, fail_mode: FailMode, is_newest: bool, limit_of: impl Fn(usize) -> Limit) {
        for (ordinal, place) in self.places() {
            let (limit, Some(gpu)) = (limit_of(ordinal), self.page.gpu(place)) else { continue };
            if limit.share_ppm != 0 && (is_newest || gpu.share_ppm().is_none()) {
                gpu.set_share_ppm(limit.share_ppm, os::now_ns());
            }
            if limit.memory_bytes != 0 && (is_newest || gpu.memory_bytes().is_none()) {
                gpu.set_memory_bytes(limit.memory_bytes);
            }
        }
        self.grant.set_session(SESSION_ID, HEARTBEAT_LIMIT_NS, fail_mode);
    }

    /// Returns the ordinal in this process and the place in the pages of each GPU that has a place.
    fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        let managed =
            |(ordinal, place): (usize, &u8)| (*place != UNMANAGED).then(|| (ordinal, usize::from(*place)));
        self.gpu_index.iter().enumerate().filter_map(managed)
    }

    /// Returns whether the gates stay closed until a daemon takes the process over.
    pub fn is_shut(&self) -> bool {
        self.grant.fail_mode() == FailMode::Closed
    }

    /// Returns whether nobody will open the gate of a GPU: the gates stay closed, or the meter
    /// thread has not taken its turn for too long.
    pub fn is_gone(&self, gpu: &Uuid, now_ns: u64) -> bool {
        let beat_ns = self.page.place(gpu).map_or(0, |place| self.beat.last_ns(place));
        self.is_shut() || now_ns > beat_ns.saturating_add(HEARTBEAT_LIMIT_NS)
    }

    /// Closes the process's own gate of a GPU, or of all GPUs if `gpu` is `None`. The caller calls
    /// this after a daemon has given the process gates of its own. The threads that wait at the
    /// closed gates wake up, and go on at the daemon's gates.
    pub fn give_up(&self, gpu: Option<&Gpu>) {
        let only = gpu.map(|gpu| self.page.place(gpu.uuid()));
        let places = self
            .places()
            .map(|(_, place)| place)
            .filter(|place| only.is_none_or(|only| only == Some(*place)));
        for grant in places.filter_map(|place| self.grant.slot(place)) {
            grant.set_gate(GateState::Closed, LeaseTerms::default());
            os::futex_wake_shared(grant.futex());
        }
    }

    fn announce(&self, config: &Config) {
        let limit = |gpu: &StandaloneGpu| Limit {
            share_ppm: gpu.share_ppm().unwrap_or(0),
            memory_bytes: gpu.memory_bytes().unwrap_or(0),
        };
        let limits: Vec<String> = self
            .places()
            .filter_map(|(ordinal, place)| Some(format!("GPU {ordinal}: {}", limit(self.page.gpu(place)?))))
            .collect();
        let with = match &self.file {
            Some(_) => format!(" for all processes of tenant `{}`", config.tenant),
            None => String::new(),
        };
        let copies = if config.wish.charge_copies == Some(true) { ", copies charged" } else { "" };
        say!(Info, "no daemon: standalone, with limits{with} ({}){copies}", limits.join("; "));
    }

    /// Returns this process's slot in the ledger.
    pub fn slot(&self) -> usize {
        self.file.map_or(0, |file| file.slot)
    }

    /// Charges the tenant for the time from `start_ns` to `end_ns` on a GPU. Does not charge time
    /// that another process of the tenant has charged. The job launched the work from `launched_ns`
    /// on.
    pub fn cover(&self, gpu: &Uuid, launched_ns: u64, (start_ns, end_ns): (u64, u64)) {
        if let Some((gpu, share_ppm)) = self.charged(gpu, launched_ns) {
            gpu.allowance.charge(start_ns, gpu.allowance.cover(start_ns, end_ns), share_ppm);
        }
    }

    /// Charges the tenant for GPU time whose place in time is unknown. The job launched the work
    /// from `launched_ns` on.
    pub fn charge(&self, gpu: &Uuid, launched_ns: u64, used_ns: u64) {
        if let Some((gpu, share_ppm)) = self.charged(gpu, launched_ns) {
            gpu.allowance.charge(os::now_ns(), used_ns, share_ppm);
        }
    }

    /// Returns the tenant's state and share on a GPU, if the tenant has to pay for launches of that
    /// time.
    fn charged(&self, gpu: &Uuid, launched_ns: u64) -> Option<(&StandaloneGpu, u32)> {
        let place = self.page.place(gpu)?;
        let is_own = launched_ns >= self.since_ns.get(place)?.load(Ordering::Relaxed);
        self.limited(place).filter(|_| is_own)
    }

    fn limited(&self, index: usize) -> Option<(&StandaloneGpu, u32)> {
        let gpu = self.page.gpu(index)?;
        Some((gpu, gpu.share_ppm().filter(|ppm| *ppm < PPM)?))
    }

    /// Takes the arbiter's turn: sets each gate by the meters of `gpus`, the GPUs of this process.
    /// A stand-in for a daemon sets only gates that a GPU obeys. Returns the latest time of the next
    /// turn, or `None` if no gate needs another turn by itself.
    pub fn turn(&self, gpus: &[Gpu], now_ns: u64) -> Option<u64> {
        let mut next_ns = None;
        let is_in_use = |ordinal: usize| gpus.get(ordinal).is_some_and(|gpu| self.serves(gpu));
        for (ordinal, index) in self.places() {
            if self.is_stand_in && !is_in_use(ordinal) {
                continue;
            }
            let (Some(grant), Some(gpu)) = (self.grant.slot(index), self.page.gpu(index)) else { continue };
            self.beat.beat(index, now_ns);
            let memory_bytes = gpu.memory_bytes().unwrap_or(NO_LIMIT);
            if !self.is_stand_in && grant.memory_limit() != memory_bytes {
                grant.set_memory_limit(memory_bytes);
            }
            grant.set_entitled_ppm(gpu.share_ppm().unwrap_or(PPM));
            if self.is_shut() {
                set_gate(grant, GateState::Closed, LeaseTerms::default());
                continue;
            }
            if self.limited(index).is_none() {
                // Without a limit, no other tenant waits for queued work, so the window is
                // unlimited.
                set_gate(grant, GateState::Open, LeaseTerms { window_ns: u64::MAX, ..LeaseTerms::default() });
                continue;
            }
            let meter = gpus.get(ordinal).and_then(Gpu::meter);
            let reading = meter.map(MeterSlot::read).unwrap_or_default();
            let look = Look {
                now_ns,
                due_ns: self.page.due_ns(index, now_ns),
                waits: reading.waiters != 0,
                runs: reading.in_flight,
            };
            let (mut state, mut wake_ns) = match (self.file, self.turns.get(index)) {
                (Some(file), Some(turns)) => turns.decide(&gpu.turn, file.slot, look),
                _ if look.due_ns > now_ns => (GateState::Closed, Some(look.due_ns)),
                _ => (GateState::Leased, None),
            };
            let mut terms = terms(&reading);
            if let Some(rank) = self.ranks.get(index).filter(|_| self.page.has_others(index)) {
                rank.note(gpu, &reading, now_ns);
                if state == GateState::Closed && look.waits {
                    let poll_ns = now_ns.saturating_add(POLL_NS);
                    wake_ns = Some(wake_ns.map_or(poll_ns, |wake_ns| wake_ns.min(poll_ns)));
                    if rank.is_settled(look.runs, now_ns) && self.page.is_spun_for(index, now_ns) {
                        (state, terms.window_ns) = (GateState::Leased, ONE_LAUNCH);
                    }
                }
            }
            set_gate(grant, state, terms);
            if let Some(wake_ns) = wake_ns.map(|wake_ns| wake_ns.min(now_ns.saturating_add(BEAT_NS))) {
                next_ns = Some(next_ns.map_or(wake_ns, |next_ns: u64| next_ns.min(wake_ns)));
            }
        }
        next_ns
    }
}

/// Opens the file of the tenant that the environment names. Returns `None` if the environment names
/// no tenant. If the processes cannot share the limits, for example because the file has no place
/// for one of the GPUs `uuids`, warns and returns `None`.
///
/// A process that has its slot does not call this again. Its own locks would not keep it from its
/// slot, and it would lose its locks when it closes the second descriptor.
pub fn open_file(config: &Config, uuids: &[Uuid]) -> Option<&'static TenantFile> {
    if config.tenant.is_empty() {
        return None;
    }
    let opened = TenantFile::open(&config.directory, &config.tenant).or_else(|error| {
        // The directory of root's daemon is root's. All processes of a user find the same file in
        // the user's own directory.
        let own = Some(&config.own_directory).filter(|_| error.is_of_another_user());
        own.and_then(|own| TenantFile::open(own, &config.tenant).ok()).ok_or(error)
    });
    match opened.and_then(|file| file.having(uuids)) {
        Ok(file) => Some(Box::leak(Box::new(file))),
        Err(error) => {
            let path = TenantFile::path(&config.directory, &config.tenant);
            say!(
                Warn,
                "cannot share the limits of tenant `{}` with its other processes by {} ({error}); this process keeps them by itself",
                config.tenant,
                path.display()
            );
            None
        }
    }
}

/// Makes the limits of a daemon's record for a GPU the limits of the tenant. If the record has no
/// limit of a kind, the tenant keeps its limit.
pub fn keep_record(tenant: &StandaloneGpu, record: &GrantSlot, now_ns: u64) {
    if let Some(share_ppm) = record.share_ppm() {
        tenant.set_share_ppm(share_ppm, now_ns);
    }
    if record.memory_limit() != NO_LIMIT {
        // A limit of 0 bytes must not look like no limit.
        tenant.set_memory_bytes(record.memory_limit().max(1));
    }
}

/// Returns whether a process without a session uses the file of the tenant that the environment
/// names. The caller has no slot in the file.
pub fn is_file_used_alone(config: &Config) -> bool {
    let directories = [&config.directory, &config.own_directory];
    let is_used = |directory: &PathBuf| file::is_file_used_alone(directory, &config.tenant);
    !config.tenant.is_empty() && directories.into_iter().any(is_used)
}

fn terms(reading: &Reading) -> LeaseTerms {
    let kernels_ns = reading.longest_ns.saturating_mul(KERNELS_PER_WINDOW).min(MAX_WINDOW_NS);
    LeaseTerms { expires_ns: u64::MAX, window_ns: WINDOW_NS.max(kernels_ns), ..LeaseTerms::default() }
}

/// Sets the gate and wakes the threads that wait at it, if the gate has another state. If only the
/// lease's window has changed, renews the lease.
fn set_gate(grant: &GrantSlot, state: GateState, terms: LeaseTerms) {
    let is_told_how_far = state != GateState::Open || grant.run_ahead_ns() == Some(terms.window_ns);
    if grant.gate().state != state || !is_told_how_far {
        grant.set_gate(state, terms);
        os::futex_wake_shared(grant.futex());
    } else if state == GateState::Leased && grant.terms().is_none_or(|now| now.window_ns != terms.window_ns) {
        grant.renew(terms);
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// The parts per million in one percent.
        const PPM_PER_PERCENT: f64 = PPM as f64 / 100.0;
        match self.share_ppm {
            0 => write!(f, "any share")?,
            ppm => write!(f, "{}%", f64::from(ppm) / PPM_PER_PERCENT)?,
        }
        match self.memory_bytes {
            0 => write!(f, ", any memory"),
            bytes => write!(f, ", {bytes} bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const NOW_NS: u64 = 400_000_000 * MS;
    const GPU: Uuid = [7; size_of::<Uuid>()];
    /// The daemon's index of the GPU, which is not the GPU's place in the pages.
    const INDEX: u8 = 3;
    const LIMIT_BYTES: u64 = 1 << 30;

    const OTHER_GPU: Uuid = [8; size_of::<Uuid>()];

    /// The pages from a daemon, and the process's two GPUs.
    struct Lost {
        grant: &'static GrantPage,
        meter: &'static MeterPage,
        gpus: [Gpu; 2],
    }

    impl Lost {
        fn new() -> Self {
            let gpus = [Gpu::of(GPU, 0, 0), Gpu::of(OTHER_GPU, 0, 0)];
            let lost = Self { grant: memory::page().unwrap(), meter: memory::page().unwrap(), gpus };
            (0..2).for_each(|ordinal| lost.record(ordinal).set_memory_limit(LIMIT_BYTES));
            lost
        }

        /// Returns the daemon's record for the GPU with this ordinal.
        fn record(&self, ordinal: u8) -> &'static GrantSlot {
            self.grant.slot((INDEX + ordinal).into()).unwrap()
        }

        /// Lets the first GPU obey the daemon, and then lets `local` keep the share `share_ppm` of
        /// the daemon's record.
        fn lose(&self, local: &Local, share_ppm: u32, now_ns: u64) {
            self.lose_gpu(0, local, share_ppm, now_ns);
        }

        /// Does what [`Self::lose`] does, for the GPU with this ordinal.
        fn lose_gpu(&self, ordinal: u8, local: &Local, share_ppm: u32, now_ns: u64) {
            let (index, record) = (INDEX + ordinal, self.record(ordinal));
            record.set_share_ppm(Some(share_ppm));
            let meter = self.meter.slot(index.into()).unwrap();
            self.gpus[usize::from(ordinal)].connect(index, record, meter, None);
            local.take_over(&self.gpus, Gpu::grant, None, now_ns);
        }

        fn state(&self) -> GateState {
            self.gpus[0].grant().unwrap().gate().state
        }
    }

    #[test]
    fn a_process_whose_daemon_is_gone_keeps_the_share_and_the_memory_limit_of_the_daemons_record() {
        let lost = Lost::new();
        let local = Local::stand_in(None, &lost.gpus).unwrap();
        lost.lose(&local, PPM / 4, NOW_NS);
        let own = lost.gpus[0].grant().unwrap();
        assert!(!ptr::eq(own, lost.record(0)));
        assert_eq!((lost.state(), own.memory_limit()), (GateState::Leased, LIMIT_BYTES));
        assert!(own.is_beside() && !local.is_gone(&GPU, NOW_NS));
        // The daemon let these launches pass.
        local.cover(&GPU, NOW_NS - 1, (NOW_NS, NOW_NS + 900 * MS));
        local.turn(&lost.gpus, NOW_NS + MS);
        assert_eq!(lost.state(), GateState::Leased);
        // A quarter of the GPU is 100 ms in 400 ms. The tenant may have saved up the first 200 ms.
        local.cover(&GPU, NOW_NS, (NOW_NS + 1_000 * MS, NOW_NS + 1_100 * MS));
        let state_at = |at_ms: u64| {
            local.turn(&lost.gpus, NOW_NS + at_ms * MS);
            lost.state()
        };
        assert_eq!([1_198, 1_202].map(state_at), [GateState::Closed, GateState::Leased]);
        assert!(local.is_gone(&GPU, NOW_NS + 10_000 * MS), "the meter thread hangs");
        assert_eq!(own.memory_limit(), LIMIT_BYTES);
    }

    #[test]
    fn a_tenant_keeps_its_limits_until_a_daemon_tells_newer_ones_and_a_process_adds_those_it_lacks() {
        let directory = tempfile::tempdir().unwrap();
        let file = TenantFile::open(directory.path(), "t").unwrap();
        let file: &'static TenantFile = Box::leak(Box::new(file));
        let begin = |is_newest, share_ppm, memory_bytes| {
            let limit = Limit { share_ppm, memory_bytes };
            Local::make(Some(file), &[GPU], Fallback::default(), is_newest, |_| limit).unwrap()
        };
        let tenant = file.page.gpu(file.page.place(&GPU).unwrap()).unwrap();
        let in_force = || (tenant.share_ppm(), tenant.memory_bytes());
        let own_bytes = |local: &Local| local.grant.slot(0).unwrap().memory_limit();
        begin(false, PPM / 10, 0);
        let later = begin(false, PPM / 2, LIMIT_BYTES);
        assert_eq!(in_force(), (Some(PPM / 10), Some(LIMIT_BYTES)), "it lacked a memory limit alone");
        assert_eq!(own_bytes(&later), LIMIT_BYTES);
        // A session loses its daemon.
        let lost = Lost::new();
        lost.record(0).set_memory_limit(LIMIT_BYTES / 2);
        lost.lose(&Local::stand_in(Some(file), &lost.gpus).unwrap(), PPM / 4, NOW_NS);
        let newcomer = begin(false, PPM / 2, LIMIT_BYTES);
        assert_eq!(in_force(), (Some(PPM / 4), Some(LIMIT_BYTES / 2)));
        later.turn(&[], NOW_NS);
        assert_eq!([&later, &newcomer].map(own_bytes), [LIMIT_BYTES / 2; 2]);
        begin(true, PPM / 20, 0);
        assert_eq!(in_force(), (Some(PPM / 20), Some(LIMIT_BYTES / 2)), "a refusal told a share");
    }

    #[test]
    fn a_stand_in_serves_again_when_the_next_daemon_dies_with_the_share_of_that_daemons_record() {
        let lost = Lost::new();
        let local = Local::stand_in(None, &lost.gpus).unwrap();
        lost.lose(&local, PPM / 4, NOW_NS);
        let own = lost.gpus[0].grant().unwrap();
        // The next daemon charges this use.
        local.cover(&GPU, NOW_NS, (NOW_NS, NOW_NS + 4_000 * MS));
        local.give_up(None);
        assert_eq!(own.gate().state, GateState::Closed, "no launch passes a gate of the past");
        let later_ns = NOW_NS + 5_000 * MS;
        lost.lose(&local, PPM / 2, later_ns);
        assert_eq!((lost.state(), own.entitled_ppm()), (GateState::Leased, PPM / 2));
        local.cover(&GPU, later_ns, (later_ns, later_ns + 200 * MS));
        let state_at = |at_ms: u64| {
            local.turn(&lost.gpus, later_ns + at_ms * MS);
            lost.state()
        };
        assert_eq!([398, 402].map(state_at), [GateState::Closed, GateState::Leased]);
    }

    #[test]
    fn a_stand_in_sets_the_gates_that_it_took_over_and_charges_each_gpu_from_then_on() {
        let lost = Lost::new();
        let local = Local::stand_in(None, &lost.gpus).unwrap();
        lost.lose(&local, PPM / 4, NOW_NS);
        let others = local.grant.slot(local.page.place(&OTHER_GPU).unwrap()).unwrap();
        local.give_up(Some(&lost.gpus[1]));
        local.turn(&lost.gpus, NOW_NS + MS);
        assert_eq!(others.gate().state, GateState::Closed, "the daemon's arbiter has this GPU");
        lost.lose_gpu(1, &local, PPM / 4, NOW_NS + 1_000 * MS);
        assert_eq!(others.gate().state, GateState::Leased);
        // The job launched this kernel at the stand-in's gate of the first GPU.
        local.cover(&GPU, NOW_NS + 500 * MS, (NOW_NS + 500 * MS, NOW_NS + 1_100 * MS));
        local.turn(&lost.gpus, NOW_NS + 1_100 * MS);
        assert_eq!((lost.state(), others.gate().state), (GateState::Closed, GateState::Leased));
    }
}
