//! The ground truth: what each process really had of each GPU, read from outside by the state directory's path.
//!
//! Three figures add up for every GPU: `busy_ns + switch_ns + idle_ns = elapsed_ns`, and its `busy_ns` is the sum of the
//! processes' `busy_ns` (as long as no record of a dead process had to make room, which takes a thousand processes).

use crate::Error;
use std::path::Path;

/// What one process had of one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessGpu {
    /// Time in which a context of the process was running kernels or copies; overlaps counted once.
    pub busy_ns: u64,
    /// Time in which it was running at least one kernel.
    pub kernel_busy_ns: u64,
    /// Time in which it was running at least one copy.
    pub copy_busy_ns: u64,
    /// Kernels completed.
    pub kernels: u64,
    /// Copies completed.
    pub copies: u64,
    /// Device memory it holds, context overhead included.
    pub memory_bytes: u64,
    /// The most it ever held.
    pub memory_peak_bytes: u64,
    /// How many contexts it has.
    pub contexts: u32,
}

/// One process that attached, alive or dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its process id.
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
    /// Time in which it was running kernels or copies of some context.
    pub busy_ns: u64,
    /// Time in which it was going from one context to another.
    pub switch_ns: u64,
    /// The rest.
    pub idle_ns: u64,
    /// How often it went from one context to another.
    pub switches: u64,
    /// Device memory.
    pub memory_total_bytes: u64,
    /// Device memory taken.
    pub memory_used_bytes: u64,
    /// The part of the last second in which it was running kernels or copies, in parts per million.
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
pub struct Observer {}

#[expect(
    unused_variables,
    clippy::unused_self,
    reason = "the signatures land first, the bodies within the hour"
)]
impl Observer {
    /// Opens a state directory that exists. `Err` with kind `NotFound` inside while no process has created it.
    pub fn open(state_dir: &Path) -> Result<Self, Error> {
        unimplemented!()
    }

    /// The present figures. Works the state out up to now and takes away what dead processes left.
    pub fn snapshot(&self) -> Snapshot {
        unimplemented!()
    }
}

/// [`Observer::open`] and [`Observer::snapshot`] in one.
pub fn snapshot(state_dir: &Path) -> Result<Snapshot, Error> {
    Ok(Observer::open(state_dir)?.snapshot())
}
