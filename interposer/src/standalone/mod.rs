//! Standalone: limits without a daemon. The process is its own arbiter, with the same pages, gate
//! and meter as under a daemon.
//!
//! The meter thread does the arbiter's part. The meter thread charges the GPU time of the process
//! to the tenant's [`Allowance`]. While the tenant must pause for used time, the gate is closed.
//! Otherwise the process has a lease with a window, which bounds the work in flight. The pauses
//! make up for all used time, so the share is exact in the long run.
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
use std::{fmt, io};

use deepres_abi::beat::BeatPage;
use deepres_abi::grant::{FailMode, GateState, GrantPage, GrantSlot, LeaseTerms, NO_LIMIT, ONE_LAUNCH};
use deepres_abi::meter::{MeterPage, MeterSlot, Reading};
use deepres_abi::standalone::{StandaloneGpu, StandalonePage};
use deepres_abi::wire::{UNMANAGED, Uuid};
use deepres_abi::{MAX_GPUS, PPM};

use self::file::TenantFile;
use self::rank::Rank;
use self::turns::{Look, Turns};
use crate::config::{Config, Limit};
use crate::log::say;
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
    /// The turns with the tenant's other processes, by the GPU's place in the pages.
    turns: [Turns; MAX_GPUS],
    /// This process's ranks, by the GPU's place in the pages.
    ranks: [Rank; MAX_GPUS],
}

impl Local {
    /// Returns a session with the limits of the environment, and logs the limits. With a closed
    /// fail mode, all gates of the session stay closed.
    ///
    /// # Errors
    /// The system's error, if there is no memory for the pages.
    pub fn begin(config: &Config, uuids: &[Uuid], fail_mode: FailMode) -> io::Result<Self> {
        let local = Self::make(open_file(config, uuids), uuids, fail_mode, |ordinal| config.limit(ordinal))?;
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
        Self::make(None, uuids, FailMode::Open, |_| Limit::default())
    }

    fn make(
        file: Option<&'static TenantFile>,
        uuids: &[Uuid],
        fail_mode: FailMode,
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
            let Some(place) = page.place(uuid) else { continue };
            let (Some(index), Some(gpu)) = (gpu_index.get_mut(ordinal), page.gpu(place)) else { continue };
            *index = place as u8;
            let limit = limit_of(ordinal);
            // If this process asks for no limit, the limit of another process of the tenant stays.
            if limit.share_ppm != 0 {
                gpu.set_share_ppm(limit.share_ppm, os::now_ns());
            }
            if limit.memory_bytes != 0 {
                gpu.set_memory_bytes(limit.memory_bytes);
            }
        }
        let local = Self {
            grant: memory::page()?,
            meter: memory::page()?,
            beat: memory::page()?,
            page,
            file,
            gpu_index,
            turns: Default::default(),
            ranks: Default::default(),
        };
        local.grant.set_session(SESSION_ID, HEARTBEAT_LIMIT_NS, fail_mode);
        if let Some(file) = file {
            file.set_alone(true);
            file.bury_dead();
        }
        local.turn(os::now_ns());
        Ok(local)
    }

    /// Returns whether the gates stay closed until a daemon takes the process over.
    pub fn is_shut(&self) -> bool {
        self.grant.fail_mode() == FailMode::Closed
    }

    /// Opens the process's own gates, and wakes the threads that wait at them. The caller calls
    /// this after a daemon has taken over the process and has given it gates of its own.
    pub fn open_gates(&self) {
        for index in self.gpu_index.iter().filter(|index| **index != UNMANAGED) {
            if let Some(grant) = self.grant.slot(usize::from(*index)) {
                set_gate(grant, GateState::Open, LeaseTerms::default());
            }
        }
    }

    fn announce(&self, config: &Config) {
        let limits: Vec<String> = self
            .gpu_index
            .iter()
            .enumerate()
            .filter(|(_, index)| **index != UNMANAGED)
            .map(|(ordinal, _)| format!("GPU {ordinal}: {}", config.limit(ordinal)))
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

    /// Charges the tenant for the time from `start_ns` to `end_ns` on the GPU at `index`. Does not
    /// charge time that another process of the tenant has charged.
    pub fn cover(&self, index: usize, start_ns: u64, end_ns: u64) {
        if let Some((gpu, share_ppm)) = self.limited(index) {
            gpu.allowance.charge(start_ns, gpu.allowance.cover(start_ns, end_ns), share_ppm);
        }
    }

    /// Charges the tenant for GPU time whose place in time is unknown.
    pub fn charge(&self, index: usize, used_ns: u64) {
        if let Some((gpu, share_ppm)) = self.limited(index) {
            gpu.allowance.charge(os::now_ns(), used_ns, share_ppm);
        }
    }

    fn limited(&self, index: usize) -> Option<(&StandaloneGpu, u32)> {
        let gpu = self.page.gpu(index)?;
        Some((gpu, gpu.share_ppm().filter(|ppm| *ppm < PPM)?))
    }

    /// Takes the arbiter's turn: sets each gate. Returns the latest time of the next turn, or
    /// `None` if no gate needs another turn by itself.
    pub fn turn(&self, now_ns: u64) -> Option<u64> {
        let mut next_ns = None;
        for index in
            self.gpu_index.iter().filter(|index| **index != UNMANAGED).map(|index| usize::from(*index))
        {
            let (Some(grant), Some(gpu)) = (self.grant.slot(index), self.page.gpu(index)) else { continue };
            self.beat.beat(index, now_ns);
            let memory_bytes = gpu.memory_bytes().unwrap_or(NO_LIMIT);
            if grant.memory_limit() != memory_bytes {
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
            let reading = self.meter.slot(index).map(MeterSlot::read).unwrap_or_default();
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
