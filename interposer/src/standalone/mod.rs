//! Limits where there is no daemon: the process is its own arbiter, by the pages, the gate and the meter that it has under a daemon's.
//!
//! The meter thread plays the arbiter. Work that was on the GPU is charged to the tenant's [`Allowance`]; while that is overdrawn the gate
//! is closed, else there is a lease with a window, so what is in flight at most is bounded. What overruns is owed, and so the share is exact in
//! the long run. Processes of one tenant take turns ([`turns`]). The heartbeat is the meter thread's: a launch waits for no longer than it beats.
//!
//! [`Allowance`]: deepres_abi::allowance::Allowance

mod file;
mod memory;
mod turns;

use std::sync::atomic::Ordering;
use std::{fmt, io};

use deepres_abi::beat::BeatPage;
use deepres_abi::grant::{FailMode, GateState, GrantPage, GrantSlot, LeaseTerms, NO_LIMIT};
use deepres_abi::meter::{MeterPage, MeterSlot};
use deepres_abi::standalone::{StandaloneGpu, StandalonePage};
use deepres_abi::wire::{UNMANAGED, Uuid};
use deepres_abi::{MAX_GPUS, PPM};

use self::file::TenantFile;
use self::turns::{Look, Turns};
use crate::config::{Config, Limit};
use crate::log::say;
use crate::os;

/// Estimated GPU time in flight at most, ns: what keeps the GPU busy between two looks of the meter thread on a busy machine. All of it
/// may be used before the gate closes, so a tenant owed 10 % has the GPU for so long every ten times as long.
const WINDOW_NS: u64 = 4_000_000;
/// A window has room for this many of the longest kernels, so that one can be queued behind another …
const KERNELS_PER_WINDOW: u64 = 2;
/// … up to this, ns: beside longer kernels the pause between one and the next is short.
const MAX_WINDOW_NS: u64 = 20_000_000;
/// A meter thread that did not beat for so long is taken for dead, and launches go, ns. An idle one sleeps for a second.
const HEARTBEAT_LIMIT_NS: u64 = 2_000_000_000;
/// While launches wait it beats this often at least, ns.
const BEAT_NS: u64 = 200_000_000;
/// Names no session of a daemon's.
const SESSION_ID: u64 = 0;

/// The pages of a session without a daemon, and what it shares with the tenant's other processes.
#[derive(Debug)]
pub struct Local {
    /// What the process lets itself do.
    pub grant: &'static GrantPage,
    /// What it did.
    pub meter: &'static MeterPage,
    /// That its meter thread lives.
    pub beat: &'static BeatPage,
    /// What the tenant holds and may use.
    pub page: &'static StandalonePage,
    /// Where the page is shared, if it is.
    file: Option<TenantFile>,
    /// The place of each GPU in the pages, by ordinal in this process; or [`UNMANAGED`].
    pub gpu_index: [u8; MAX_GPUS],
    /// By place: taking turns with the tenant's other processes.
    turns: [Turns; MAX_GPUS],
}

impl Local {
    /// Sets the limits up and says so.
    ///
    /// # Errors
    /// The system's, if there is no memory for the pages.
    pub fn begin(config: &Config, uuids: &[Uuid]) -> io::Result<Self> {
        let local = Self::make(open_file(config), uuids, |ordinal| config.limit(ordinal))?;
        if config.charge_copies == Some(true) {
            let grants = (0..MAX_GPUS).filter_map(|index| local.grant.slot(index));
            grants.for_each(|grant| grant.set_charge_copies(true));
        }
        local.announce(config);
        Ok(local)
    }

    /// Without limits: for a process that a daemon is to take up later.
    ///
    /// # Errors
    /// The system's, if there is no memory for the pages.
    pub fn unlimited(uuids: &[Uuid]) -> io::Result<Self> {
        Self::make(None, uuids, |_| Limit::default())
    }

    fn make(file: Option<TenantFile>, uuids: &[Uuid], limit_of: impl Fn(usize) -> Limit) -> io::Result<Self> {
        let page = match &file {
            Some(file) => file.page,
            None => {
                let page = memory::page::<StandalonePage>()?;
                for ledger in page.ledger().all(MAX_GPUS) {
                    // There is a first slot.
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
            // What another process of the tenant asked for stays where this one asks for nothing.
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
        };
        local.grant.set_session(SESSION_ID, HEARTBEAT_LIMIT_NS, FailMode::Open);
        local.bury_dead();
        local.turn(os::now_ns());
        Ok(local)
    }

    /// Lets go whoever waits at a gate of this process: a daemon has taken it up, and has gates of its own.
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
        let copies = if config.charge_copies == Some(true) { ", copies charged" } else { "" };
        say!(Info, "no daemon: standalone, with limits{with} ({}){copies}", limits.join("; "));
    }

    /// This process's slot of the ledger.
    pub fn slot(&self) -> usize {
        self.file.as_ref().map_or(0, |file| file.slot)
    }

    /// The tenant had work on the GPU at `index` from `start_ns` to `end_ns`: what no other process of the tenant has charged is charged.
    pub fn cover(&self, index: usize, start_ns: u64, end_ns: u64) {
        if let Some((gpu, share_ppm)) = self.limited(index) {
            gpu.allowance.charge(start_ns, gpu.allowance.cover(start_ns, end_ns), share_ppm);
        }
    }

    /// Charges GPU time of which nobody knows when it was.
    pub fn charge(&self, index: usize, used_ns: u64) {
        if let Some((gpu, share_ppm)) = self.limited(index) {
            gpu.allowance.charge(os::now_ns(), used_ns, share_ppm);
        }
    }

    fn limited(&self, index: usize) -> Option<(&StandaloneGpu, u32)> {
        let gpu = self.page.gpu(index)?;
        Some((gpu, gpu.share_ppm().filter(|ppm| *ppm < PPM)?))
    }

    /// The arbiter's turn: sets every gate. Returns when the next one is due at the latest, unless something happens before.
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
            if self.limited(index).is_none() {
                // Nobody ever waits for what it has queued.
                set_gate(grant, GateState::Open, LeaseTerms { window_ns: u64::MAX, ..LeaseTerms::default() });
                continue;
            }
            let look = self.look(index, now_ns, gpu.allowance.due_ns());
            let (state, wake_ns) = match (&self.file, self.turns.get(index)) {
                (Some(file), Some(turns)) => turns.decide(&gpu.turn, file.slot, look),
                _ if look.due_ns > now_ns => (GateState::Closed, Some(look.due_ns)),
                _ => (GateState::Leased, None),
            };
            set_gate(grant, state, self.terms(index));
            if let Some(wake_ns) = wake_ns.map(|wake_ns| wake_ns.min(now_ns.saturating_add(BEAT_NS))) {
                next_ns = Some(next_ns.map_or(wake_ns, |next_ns: u64| next_ns.min(wake_ns)));
            }
        }
        next_ns
    }

    fn look(&self, index: usize, now_ns: u64, due_ns: u64) -> Look {
        let meter = self.meter.slot(index).map(MeterSlot::read).unwrap_or_default();
        Look { now_ns, due_ns, waits: meter.waiters != 0, runs: meter.in_flight }
    }

    fn terms(&self, index: usize) -> LeaseTerms {
        let longest_ns = self.meter.slot(index).map_or(0, |meter| meter.longest_ns.load(Ordering::Relaxed));
        let kernels_ns = longest_ns.saturating_mul(KERNELS_PER_WINDOW).min(MAX_WINDOW_NS);
        LeaseTerms { expires_ns: u64::MAX, window_ns: WINDOW_NS.max(kernels_ns), ..LeaseTerms::default() }
    }

    /// Gives back what dead processes of the tenant held. Returns whether it was anything.
    pub fn bury_dead(&self) -> bool {
        self.file.as_ref().is_some_and(TenantFile::bury_dead)
    }

    /// The process ends.
    pub fn leave(&self) {
        if let Some(file) = &self.file {
            file.leave();
        }
    }

    /// Closes what is open: in a forked child.
    ///
    /// # Safety
    /// Nobody in this process uses the session from here on.
    pub unsafe fn close(&self) {
        if let Some(file) = &self.file {
            // SAFETY: the caller's promise.
            unsafe { file.close() };
        }
    }
}

/// The file of the tenant that the environment names. `None`: it names none, or the limits cannot be shared, which was said.
fn open_file(config: &Config) -> Option<TenantFile> {
    if config.tenant.is_empty() {
        return None;
    }
    match TenantFile::open(&config.directory, &config.tenant) {
        Ok(file) => Some(file),
        Err(error) => {
            let path = TenantFile::path(&config.directory, &config.tenant);
            say!(
                Warn,
                "limits cannot be shared with other processes of tenant `{}` by {} ({error}); this process keeps them by itself",
                config.tenant,
                path.display()
            );
            None
        }
    }
}

/// Sets the gate, if it is not so already, and wakes whoever waits for that. A window that is no longer right is renewed.
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
        /// Parts per million in a percent.
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
