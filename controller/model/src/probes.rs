//! What the probes found, as the admin socket and `deepres ps --json` tell it.

use crate::process::ProcessKey;
use deepres_abi::probe::FIRST_BUCKET_LOG2;
use deepres_policy::signals::DriverSums;
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
    /// Ioctls whose return the kernel did not tell of: they are in no counter, or in `untimed`.
    #[serde(default)]
    pub missed: u64,
    /// How often the kernel ran no program at the beginning of an ioctl, whosever and of whatever device: so many are in no counter at most.
    #[serde(default)]
    pub skipped: u64,
    /// Rows of counters that left the kernel, because others needed the room. What they counted stays in the sums.
    #[serde(default)]
    pub evicted: u64,
    /// First ioctls of processes that were not told at once, because there was no room.
    #[serde(default)]
    pub news_lost: u64,
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityStatus {
    /// The process.
    pub pid: u32,
    /// Its id as it sees itself, if that is another.
    #[serde(default)]
    pub container_pid: Option<u32>,
    /// Its ioctls on the GPU's devices.
    pub calls: u64,
    /// Those that failed, by the kernel's word or the driver's.
    pub errors: u64,
    /// Time that its threads spent blocked in them, ns.
    pub time_ns: u64,
    /// The longest of them, ns.
    #[serde(default)]
    pub longest_ns: u64,
    /// Those that allocated, mapped or moved memory.
    #[serde(default)]
    pub memory_calls: u64,
    /// Memory that they asked for, bytes, as far as the arguments tell.
    #[serde(default)]
    pub allocated_bytes: u64,
    /// Memory that they mapped or moved, bytes, likewise.
    #[serde(default)]
    pub mapped_bytes: u64,
    /// When the last ended, ns of `CLOCK_MONOTONIC`.
    pub last_ns: u64,
    /// The same by command, those first that took the most time.
    #[serde(default)]
    pub commands: Vec<CommandStatus>,
}

/// What a process does with one command of one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandStatus {
    /// The device's numbers, `MAJOR:MINOR`.
    pub device: String,
    /// Its language: `rm`, `uvm`, `modeset` or `other`.
    pub family: String,
    /// The command's name, its number where it has none that is known, or `others`.
    pub name: String,
    /// Calls.
    pub calls: u64,
    /// Those that failed, by the kernel's word or the driver's.
    pub errors: u64,
    /// Time inside, ns.
    pub time_ns: u64,
    /// The longest, ns.
    pub longest_ns: u64,
    /// Memory that they asked for, mapped or moved, bytes.
    pub bytes: u64,
    /// Calls by latency: up to 256 ns, up to twice that, and so on; the last has no end.
    pub buckets: Vec<u64>,
}

impl ActivityStatus {
    /// All of it together.
    pub fn sums(&self) -> DriverSums {
        DriverSums {
            calls: self.calls,
            errors: self.errors,
            time_ns: self.time_ns,
            memory_calls: self.memory_calls,
            allocated_bytes: self.allocated_bytes,
            mapped_bytes: self.mapped_bytes,
        }
    }
}

impl CommandStatus {
    /// The latency that this part of the calls stayed below, ns: to the next power of two, and at most the longest.
    pub fn quantile_ns(&self, permille: u64) -> u64 {
        let wanted = (self.calls * permille).div_ceil(1000);
        let mut seen = 0;
        for (bucket, calls) in self.buckets.iter().enumerate() {
            seen += calls;
            if seen >= wanted {
                return (1u64 << (FIRST_BUCKET_LOG2 + bucket as u32)).min(self.longest_ns);
            }
        }
        self.longest_ns
    }
}

/// A process that was adopted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopted {
    /// The process.
    #[serde(flatten)]
    pub process: ProcessKey,
    /// The tenant that it was adopted for.
    pub tenant: Option<String>,
}

/// [`MeteredStatus::state`] of one that has ended: it is told of for a while, and its number may be another's by now.
pub const ENDED: &str = "ended";

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
    /// `metered`, `waiting` (it uses no library that can be probed, yet) or [`ENDED`].
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

impl MeteringStatus {
    /// Who is metered now.
    pub fn living(&self) -> impl Iterator<Item = &MeteredStatus> {
        self.processes.iter().filter(|process| process.state != ENDED)
    }
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
    /// Who was adopted and lives.
    pub adopted: Vec<Adopted>,
    /// Who is stopped until it is adopted.
    pub held: Vec<ProcessKey>,
}

impl Board {
    /// Before anything was looked at.
    pub fn starting(adopted: &[Adopted], held: &[ProcessKey]) -> Self {
        let probes = ProbesStatus { state: "starting".to_owned(), ..ProbesStatus::default() };
        Self { probes, adopted: adopted.to_vec(), held: held.to_vec(), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_end_of_the_bucket_that_it_falls_into() {
        let command = CommandStatus {
            device: "195:0".to_owned(),
            family: "rm".to_owned(),
            name: "NV_ESC_RM_ALLOC".to_owned(),
            calls: 100,
            errors: 0,
            time_ns: 0,
            longest_ns: 5_000,
            bytes: 0,
            buckets: vec![50, 49, 0, 0, 1],
        };
        assert_eq!(
            [500, 990, 999].map(|permille| command.quantile_ns(permille)),
            [256, 512, 4_096],
            "powers of two"
        );
        assert_eq!(CommandStatus { longest_ns: 300, ..command }.quantile_ns(990), 300);
    }
}
