//! The ground truth: the true GPU time and memory of each process on each GPU. An observer outside
//! the processes reads the truth by the path of the state directory.
//!
//! For every GPU, `busy_ns + switch_ns + idle_ns = elapsed_ns`. Without MPS, the GPU's `busy_ns` is
//! also the sum of the processes' `kernel_busy_ns`, until the engine reuses the record of a dead
//! process. The engine reuses records only after 1024 processes. The clients of an MPS server run
//! at once, so their `kernel_busy_ns` overlap.

use crate::{
    Clock, Config, Error, Options,
    guard::{Census, Guard},
    journal::{Memory, Overlay},
    layout::{self, MAX_PROCESSES, process_state},
    namespace,
    shared::{self, Shared},
    sim,
};
use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Number of times that [`Observer::is_stuck`] looks at the lock.
const STUCK_LOOKS: u32 = 50;

/// Use of one GPU by one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessGpu {
    /// Time in which the process ran kernels or copies; overlaps count once.
    pub busy_ns: u64,
    /// Time in which the process had SMs and ran at least one kernel. Without MPS, only one process
    /// at a time has the SMs.
    pub kernel_busy_ns: u64,
    /// Time of the process's kernels, each weighted by the part of the SMs that it held.
    pub sm_ns: u64,
    /// Time in which the process ran at least one copy, beside any kernels.
    pub copy_busy_ns: u64,
    /// Number of completed kernels, memsets and copies within the device included.
    pub kernels: u64,
    /// Number of completed copies.
    pub copies: u64,
    /// Device memory that the process holds, context overhead included.
    pub memory_bytes: u64,
    /// The most device memory that the process ever held.
    pub memory_peak_bytes: u64,
    /// The process's managed memory on the GPU now.
    pub managed_bytes: u64,
    /// Number of contexts of the process.
    pub contexts: u32,
}

/// One process that attached, alive or dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process id in the observer's pid namespace. 0 if the process has no id there, or if a dead
    /// process was of another namespace.
    pub pid: u32,
    /// Start time (field 22 of /proc/PID/stat), which distinguishes processes with the same pid.
    pub start_time: u64,
    /// Short name (/proc/PID/comm).
    pub comm: String,
    /// Whether the process still lives.
    pub alive: bool,
    /// For an MPS client: the part of the SMs that its kernels together can use, parts per million.
    /// `None`: the process is no client.
    pub sm_limit_ppm: Option<u32>,
    /// Use of each GPU, by GPU index.
    pub gpus: Vec<ProcessGpu>,
}

/// The true state of one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// UUID.
    pub uuid: [u8; 16],
    /// Time since the state was created.
    pub elapsed_ns: u64,
    /// Time in which the GPU ran kernels.
    pub busy_ns: u64,
    /// Time of all kernels, each weighted by the part of the SMs that it held.
    pub sm_ns: u64,
    /// Time in which the GPU ran copies, alone or beside kernels or switches.
    pub copy_busy_ns: u64,
    /// Time in which the GPU switched from one context to another.
    pub switch_ns: u64,
    /// Time in which the GPU neither ran kernels nor switched.
    pub idle_ns: u64,
    /// The part of `idle_ns` between the work of one context and the work of another.
    pub handover_idle_ns: u64,
    /// Number of switches from one context to another.
    pub switches: u64,
    /// All device memory.
    pub memory_total_bytes: u64,
    /// Used device memory.
    pub memory_used_bytes: u64,
    /// The most device memory ever in use, over all processes.
    pub memory_peak_bytes: u64,
    /// Managed memory on the GPU now, not part of `memory_used_bytes`.
    pub managed_bytes: u64,
    /// The part of the last second in which the GPU ran kernels, in parts per million.
    pub utilization_ppm: u32,
}

/// The whole host at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Time of the snapshot, CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// The GPUs, by index.
    pub gpus: Vec<Gpu>,
    /// The processes, in the order in which they attached.
    pub processes: Vec<Process>,
}

/// A view of a state directory from outside. An observer takes no place in the process table, and
/// holds no GPU memory.
#[derive(Debug)]
pub struct Observer {
    shared: Shared,
    clock: Clock,
}

impl Observer {
    /// Opens an existing state directory. If no process has created the directory yet, returns an
    /// error for which [`Error::is_not_found`] is true.
    pub fn open(state_dir: &Path) -> Result<Self, Error> {
        Ok(Self { shared: shared::open_existing(state_dir)?, clock: Clock::Monotonic })
    }

    /// Opens a state directory, and creates it if none exists.
    pub fn open_or_create(options: &Options) -> Result<Self, Error> {
        Ok(Self { shared: shared::open_or_create(options)?, clock: options.clock.clone() })
    }

    /// Returns whether one process holds the lock at every look during `lasts`. A holder normally
    /// needs microseconds. True means that a signal stopped the holder while it held the lock, or
    /// that the machine is very busy.
    pub fn is_stuck(&self, lasts: Duration) -> bool {
        let lock = &self.shared.state.header.lock;
        let first = lock.holder();
        let began = Instant::now();
        while first.is_some() && lock.holder() == first {
            if began.elapsed() >= lasts {
                return true;
            }
            thread::sleep(lasts / STUCK_LOOKS);
        }
        false
    }

    /// Returns the configuration of the GPUs.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Computes the state up to now, and removes the objects of dead processes. Returns the present
    /// figures.
    pub fn snapshot(&self) -> Snapshot {
        self.figures(Census::Now)
    }

    /// Does the same as [`Self::snapshot`], but can still list a process that died within the last
    /// ten milliseconds. A real driver's list can do so too.
    pub fn recent(&self) -> Snapshot {
        self.figures(Census::WhenDue)
    }

    fn figures(&self, census: Census) -> Snapshot {
        let guard = Guard::lock(&self.shared, &self.clock, None, census);
        let (state, now_ns) = (guard.state(), guard.now_ns());
        // An overlay takes the charge for the running work, so that the look changes nothing, not
        // even by rounding.
        let mut present = Overlay::new(state);
        sim::bring_accounts_to(&mut present, state, now_ns);
        let gpus = (0..self.shared.config.gpus).map(|index| self.gpu(&present, index, now_ns)).collect();
        let attached = state.header.attached.load() as usize;
        let mut records: Vec<_> = state.processes[..attached.min(MAX_PROCESSES)].iter().collect();
        records.sort_by_key(|record| present.get(&record.order));
        let mut processes: Vec<_> = records
            .iter()
            .map(|record| (present.get(&record.pid_namespace), self.process(&present, record)))
            .collect();
        drop((present, guard));
        // The search for processes takes long. The function releases the lock before the search, so
        // that the GPUs do not wait.
        let here = namespace::own();
        for (there, process) in processes.iter_mut().filter(|(there, _)| *there != here) {
            let found = process.alive.then(|| namespace::pid_here(*there, process.pid, process.start_time));
            process.pid = found.flatten().unwrap_or(0);
        }
        let processes = processes.into_iter().map(|(_, process)| process).collect();
        Snapshot { at_ns: now_ns, gpus, processes }
    }

    fn gpu(&self, present: &Overlay<'_>, index: usize, now_ns: u64) -> Gpu {
        let state = &self.shared.state;
        let gpu = &state.gpus[index];
        Gpu {
            uuid: shared::uuid(state, index),
            elapsed_ns: now_ns.saturating_sub(state.header.created_ns.load()),
            busy_ns: present.get(&gpu.busy_ns),
            sm_ns: present.get(&gpu.sm_ps) / sim::PS_PER_NS,
            copy_busy_ns: present.get(&gpu.copy_busy_ns),
            switch_ns: present.get(&gpu.switch_ns),
            idle_ns: present.get(&gpu.idle_ns),
            handover_idle_ns: present.get(&gpu.handover_idle_ns),
            switches: present.get(&gpu.switches),
            memory_total_bytes: self.shared.config.memory_bytes,
            memory_used_bytes: present.get(&gpu.memory_used_bytes),
            memory_peak_bytes: present.get(&gpu.memory_peak_bytes),
            managed_bytes: present.get(&gpu.managed_bytes),
            utilization_ppm: sim::utilization_ppm(present, gpu, now_ns),
        }
    }

    fn process(&self, present: &Overlay<'_>, record: &layout::Process) -> Process {
        let comm: Vec<u8> = record
            .comm
            .iter()
            .flat_map(|word| present.get(word).to_le_bytes())
            .take_while(|&byte| byte != 0)
            .collect();
        let gpus = record.gpus[..self.shared.config.gpus].iter().map(|account| ProcessGpu {
            busy_ns: present.get(&account.busy_ns),
            kernel_busy_ns: present.get(&account.kernel_busy_ns),
            sm_ns: present.get(&account.sm_ps) / sim::PS_PER_NS,
            copy_busy_ns: present.get(&account.copy_busy_ns),
            kernels: present.get(&account.kernels),
            copies: present.get(&account.copies),
            memory_bytes: present.get(&account.memory_bytes),
            memory_peak_bytes: present.get(&account.memory_peak_bytes),
            managed_bytes: present.get(&account.managed_bytes),
            contexts: present.get(&account.contexts) as u32,
        });
        Process {
            pid: present.get(&record.pid) as u32,
            start_time: present.get(&record.start_time),
            comm: String::from_utf8_lossy(&comm).into_owned(),
            alive: present.get(&record.state) == process_state::ALIVE,
            sm_limit_ppm: Some(present.get(&record.sm_limit_ppm) as u32).filter(|ppm| *ppm != 0),
            gpus: gpus.collect(),
        }
    }
}

/// Opens a state directory with [`Observer::open`] and returns one [`Observer::snapshot`].
pub fn snapshot(state_dir: &Path) -> Result<Snapshot, Error> {
    Ok(Observer::open(state_dir)?.snapshot())
}
