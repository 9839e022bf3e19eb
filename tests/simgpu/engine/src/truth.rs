//! The ground truth: what each process really had of each GPU, read from outside by the state directory's
//! path.
//!
//! For every GPU `busy_ns + switch_ns + idle_ns = elapsed_ns`, and its `busy_ns` is the sum of the processes'
//! `kernel_busy_ns` (as long as no record of a dead process had to make room, which takes a thousand
//! processes).

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

/// How often [`Observer::is_stuck`] looks.
const STUCK_LOOKS: u32 = 50;

/// What one process had of one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessGpu {
    /// Time in which the process was running kernels or copies; overlaps counted once.
    pub busy_ns: u64,
    /// Time in which it had the SMs and was running at least one kernel. Only one process at a time does.
    pub kernel_busy_ns: u64,
    /// Time in which it was running at least one copy, beside whatever kernels.
    pub copy_busy_ns: u64,
    /// Kernels completed.
    pub kernels: u64,
    /// Copies completed.
    pub copies: u64,
    /// Device memory it holds, context overhead included.
    pub memory_bytes: u64,
    /// The most it ever held.
    pub memory_peak_bytes: u64,
    /// Its managed memory that is on the GPU now.
    pub managed_bytes: u64,
    /// How many contexts it has.
    pub contexts: u32,
}

/// One process that attached, alive or dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its process id for whoever asked; 0 if it has none there, or is dead and was of another pid namespace.
    pub pid: u32,
    /// When it started (field 22 of /proc/PID/stat), so that a reused pid is told apart.
    pub start_time: u64,
    /// Its short name (/proc/PID/comm).
    pub comm: String,
    /// Whether it still lives.
    pub alive: bool,
    /// What it had, by GPU.
    pub gpus: Vec<ProcessGpu>,
}

/// One GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Since the state was created.
    pub elapsed_ns: u64,
    /// Time in which it was running kernels.
    pub busy_ns: u64,
    /// Time in which it was running copies, whatever else it did.
    pub copy_busy_ns: u64,
    /// Time in which it was going from one context to another.
    pub switch_ns: u64,
    /// Time in which it did neither.
    pub idle_ns: u64,
    /// Of that, what lay between the work of one context and that of another.
    pub handover_idle_ns: u64,
    /// How often it went from one context to another.
    pub switches: u64,
    /// Device memory.
    pub memory_total_bytes: u64,
    /// Device memory taken.
    pub memory_used_bytes: u64,
    /// The most that all processes together ever had of it.
    pub memory_peak_bytes: u64,
    /// Managed memory that is there now, beside what is taken.
    pub managed_bytes: u64,
    /// The part of the last second in which it was running kernels, in parts per million.
    pub utilization_ppm: u32,
}

/// The whole host at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The moment, CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// By GPU index.
    pub gpus: Vec<Gpu>,
    /// In the order of their attaching.
    pub processes: Vec<Process>,
}

/// A state directory seen from outside: it is in no process table and holds no memory.
#[derive(Debug)]
pub struct Observer {
    shared: Shared,
    clock: Clock,
}

impl Observer {
    /// Opens a state directory that exists. [`Error::is_not_found`] says that no process has created it yet.
    pub fn open(state_dir: &Path) -> Result<Self, Error> {
        Ok(Self { shared: shared::open_existing(state_dir)?, clock: Clock::Monotonic })
    }

    /// Opens a state directory, and creates it if there is none.
    pub fn open_or_create(options: &Options) -> Result<Self, Error> {
        Ok(Self { shared: shared::open_or_create(options)?, clock: options.clock.clone() })
    }

    /// Whether one and the same process holds the lock whenever it is looked at for so long. Holders need microseconds,
    /// so that one was stopped in the middle, or the machine is very busy.
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

    /// What the GPUs are like.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// The present figures. Works the state out up to now and takes away what dead processes left.
    pub fn snapshot(&self) -> Snapshot {
        self.figures(Census::Now)
    }

    /// As [`Self::snapshot`], but whoever died within the last ten milliseconds may be there yet, as a driver may show them.
    pub fn recent(&self) -> Snapshot {
        self.figures(Census::WhenDue)
    }

    fn figures(&self, census: Census) -> Snapshot {
        let guard = Guard::lock(&self.shared, &self.clock, None, census);
        let (state, now_ns) = (guard.state(), guard.now_ns());
        // What runs now is charged on an overlay, so that looking changes nothing, not by a rounding.
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
        // Looking for processes takes long; the GPUs do not wait for it.
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
            gpus: gpus.collect(),
        }
    }
}

/// [`Observer::open`] and [`Observer::snapshot`] in one.
pub fn snapshot(state_dir: &Path) -> Result<Snapshot, Error> {
    Ok(Observer::open(state_dir)?.snapshot())
}
