//! What the probes found, as the admin socket and `deepres ps --json` tell it.

use serde::{Deserialize, Serialize};

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
    /// Time that its threads spent inside them, ns.
    pub time_ns: u64,
    /// Memory that they mapped, made or moved, bytes, as far as the arguments tell.
    pub bytes: u64,
    /// When the last ended, ns of `CLOCK_MONOTONIC`.
    pub last_ns: u64,
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
