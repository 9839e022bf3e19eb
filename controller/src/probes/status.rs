//! What the probes found, as the admin socket and `deepres ps --json` tell it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The kernel programs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbesStatus {
    /// `starting`, `attached`, `waiting` for a device to appear, `unavailable` or `off`.
    pub state: String,
    /// How they are attached, or why they are not.
    pub detail: String,
    /// Ioctls on the GPU's devices since they were attached.
    pub calls: u64,
    /// Those of them that are in no process's counters, because there was no room.
    pub unattributed: u64,
    /// Ioctls that were not counted at all, because too many threads were inside one at a time.
    pub untimed: u64,
}

/// A process that uses a GPU and is no tenant's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnmanagedStatus {
    /// The process, as the host sees it.
    pub pid: u32,
    /// The same as it sees itself, if it is in a pid namespace of its own.
    pub container_pid: Option<u32>,
    /// Whose it is.
    pub uid: u32,
    /// Its container's id, shortened.
    pub container: Option<String>,
    /// Its command line, shortened.
    pub command: String,
    /// `compute`, or `control` for one that only talks to the driver, as monitors do.
    pub kind: String,
    /// How it was found: `ioctl`, `nvml`, `descriptor`, `mapping`.
    pub seen_by: Vec<String>,
    /// Since when it is known, ns of `CLOCK_MONOTONIC`.
    pub since_ns: u64,
    /// Since when it is told of, ns of `CLOCK_MONOTONIC`.
    pub reported_ns: u64,
    /// `reported`, `held` or `adopted`.
    pub state: String,
    /// The tenant that it was adopted for.
    pub tenant: Option<String>,
}

/// What a process does in the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityStatus {
    /// The process.
    pub pid: u32,
    /// Its ioctls on the GPU's devices.
    pub calls: u64,
    /// Those that failed.
    pub errors: u64,
    /// Time that its threads spent blocked in them, ns.
    pub time_ns: u64,
    /// The longest of them, ns.
    #[serde(default)]
    pub longest_ns: u64,
    /// Those that allocated, mapped or moved memory.
    #[serde(default)]
    pub memory_calls: u64,
    /// Memory that they mapped, made or moved, bytes, as far as the arguments tell.
    pub bytes: u64,
    /// When the last ended, ns of `CLOCK_MONOTONIC`.
    pub last_ns: u64,
}

/// A process that is metered from outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeteredStatus {
    /// The process, as the host sees it.
    pub pid: u32,
    /// The same as it sees itself, if it is in a pid namespace of its own.
    pub container_pid: Option<u32>,
    /// Whose it is.
    pub uid: u32,
    /// Its container's id, shortened.
    pub container: Option<String>,
    /// Its command line when it began, shortened.
    pub command: String,
    /// The tenant that it is metered for.
    pub tenant: Option<String>,
    /// `metered`, `waiting` (it uses no library that can be probed, yet) or `ended`.
    pub state: String,
    /// Why it is not metered.
    pub problem: Option<String>,
    /// Since when, ns of `CLOCK_MONOTONIC`.
    pub since_ns: u64,
    /// When the last counted call began, ns of `CLOCK_MONOTONIC`.
    pub last_ns: u64,
    /// Kernels launched one by one.
    pub launches: u64,
    /// Graphs launched.
    pub graph_launches: u64,
    /// Allocations asked for.
    pub allocations: u64,
    /// What they asked for, bytes, as far as an argument tells.
    pub allocated_bytes: u64,
    /// Allocations given back.
    pub frees: u64,
    /// Calls of each function.
    pub functions: BTreeMap<String, u64>,
    /// The libraries that are probed, by their paths where the process is.
    pub libraries: Vec<String>,
}

/// Metering from outside.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeteringStatus {
    /// Who is metered, and who was a moment ago.
    pub processes: Vec<MeteredStatus>,
    /// Calls that were not counted, because there was no room.
    pub uncounted_calls: u64,
    /// Children that were not followed, because there was no room.
    pub uncounted_processes: u64,
}

/// All of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Board {
    /// The kernel programs.
    pub probes: ProbesStatus,
    /// Who is no tenant's.
    pub unmanaged: Vec<UnmanagedStatus>,
    /// What processes do in the driver, tenants' or not.
    pub activity: Vec<ActivityStatus>,
}

impl Board {
    /// Before anything was looked at.
    pub fn starting() -> Self {
        let probes = ProbesStatus { state: "starting".to_owned(), ..ProbesStatus::default() };
        Self { probes, ..Self::default() }
    }
}
