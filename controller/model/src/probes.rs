//! The findings of the probes, as the admin socket and `deepres ps --json` show them.

use crate::admin::status;
use crate::process::ProcessKey;
use deepres_abi::probe::FIRST_BUCKET_LOG2;
use deepres_policy::signals::DriverSums;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

status! {
    /// The state of the probes.
    #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct ProbesStatus {
        /// `starting`, `attached`, `waiting` for a device to appear, `unavailable` or `off`.
        pub state: String,
        /// Where the daemon attached the probes and why, or the reason why it did not.
        pub detail: String,
        /// Ioctls on the GPU's devices since the probes were attached.
        pub calls: u64,
        /// Ioctls in `calls` that are in no process's counters, for lack of room.
        pub unattributed: u64,
        /// Ioctls that the probes did not count at all, because too many threads were in an ioctl
        /// at once.
        pub untimed: u64,
        /// Ioctls whose return the kernel did not report. Such ioctls are in no counter, or in
        /// `untimed`.
        pub missed: u64,
        /// Number of ioctls at whose beginning the kernel skipped the probe. The number includes
        /// ioctls of other processes and on other devices, so the counters of GPU ioctls lack at
        /// most this many.
        pub skipped: u64,
        /// Rows of counters that left the kernel, because others needed the room. The sums keep the
        /// counts of these rows.
        pub evicted: u64,
        /// First ioctls of processes that the probes did not report at once, for lack of room.
        pub news_lost: u64,
    }

    /// An unmanaged process.
    #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct UnmanagedStatus {
        /// The process's id on the host.
        pub pid: u32 => "PID",
        /// The process's id in its own pid namespace, if the daemon is in another namespace.
        pub container_pid: Option<u32>,
        /// The process's user.
        pub uid: u32 as Label => "UID",
        /// The container's id, shortened.
        pub container: Option<String> => "CONTAINER",
        /// The process's command line, shortened.
        pub command: String => "COMMAND",
        /// `compute`, or `control` for a process that only talks to the driver, as monitors do.
        pub kind: String as Label => "KIND",
        /// The ways in which the daemon found the process: `ioctl`, `nvml`, `descriptor`,
        /// `mapping`.
        pub seen_by: Vec<String> => "SEEN BY",
        /// The time at which the daemon found the process, ns of `CLOCK_MONOTONIC`.
        pub since_ns: u64,
        /// The time since which the daemon reports the process, ns of `CLOCK_MONOTONIC`.
        pub reported_ns: u64,
        /// `reported`, `held` or `adopted`.
        pub state: String as Label => "UNMANAGED",
        /// The tenant for which the process was adopted.
        pub tenant: Option<String>,
        /// The tenant whose process started this process, or the tenant of the process's Slurm job.
        /// The library was not preloaded into this process.
        pub started_by: Option<String>,
    }

    /// The probes count a process's calls to the kernel driver: its ioctls on the GPU's devices.
    #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct ActivityStatus {
        /// The process's id.
        pub pid: u32 => "PID",
        /// The process's id in its own pid namespace, if this id differs from `pid`.
        pub container_pid: Option<u32>,
        /// The process's ioctls on the GPU's devices.
        pub calls: u64 => "CALLS",
        /// Failed ioctls, by the kernel's or the driver's answer.
        pub errors: u64 => "ERRORS",
        /// Time that threads were blocked in ioctls, ns.
        pub time_ns: u64 => "BLOCKED",
        /// The longest ioctl, ns.
        pub longest_ns: u64 => "LONGEST",
        /// Ioctls that allocated, mapped or moved memory.
        pub memory_calls: u64 => "MEMORY CALLS",
        /// Memory that ioctls asked for, bytes, as far as the arguments tell.
        pub allocated_bytes: u64 => "ASKED FOR",
        /// Memory that ioctls mapped or moved, bytes, as far as the arguments tell.
        pub mapped_bytes: u64 => "MAPPED",
        /// The end of the last ioctl, ns of `CLOCK_MONOTONIC`.
        pub last_ns: u64 => "LAST",
        /// The figures of each command. The commands that took the most time come first.
        pub commands: Vec<CommandStatus>,
    }

    /// The calls of a process with one command on one device.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct CommandStatus {
        /// The device's numbers, `MAJOR:MINOR`.
        pub device: String => "DEVICE",
        /// The kind of the device's commands: `rm`, `uvm`, `modeset` or `other`.
        pub family: String,
        /// The command's name, its number if the name is unknown, or `others`.
        pub name: String => "CALL",
        /// Number of calls.
        pub calls: u64 => "CALLS",
        /// Failed calls, by the kernel's or the driver's answer.
        pub errors: u64 => "ERRORS",
        /// Time in calls, ns.
        pub time_ns: u64 => "BLOCKED",
        /// The longest call, ns.
        pub longest_ns: u64 => "LONGEST",
        /// Memory that calls asked for, mapped or moved, bytes.
        pub bytes: u64,
        /// Calls by latency. The first bucket has calls of up to 256 ns. The bound doubles with
        /// each bucket, and the last bucket has no bound.
        pub buckets: Vec<u64>,
    }
}

impl ActivityStatus {
    /// Returns the sums over all calls of the process.
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
    /// Returns a latency, ns: `permille` of the calls took no longer. The result is rounded up to a
    /// power of two, but is at most the longest latency.
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

/// An adopted process, in the form in which the daemon saves it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopted {
    /// The key of the process.
    #[serde(flatten)]
    pub process: ProcessKey,
    /// The tenant for which the process was adopted.
    pub tenant: Option<String>,
}

/// [`MeteredStatus::state`] of a process that has ended. The status lists such a process for a
/// while. Another process can have its id by then.
pub const ENDED: &str = "ended";

status! {
    /// A process that is metered from outside.
    #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct MeteredStatus {
        /// The process's id on the host.
        pub pid: u32 => "PID",
        /// The process's id in its own pid namespace, if the daemon is in another namespace.
        pub container_pid: Option<u32>,
        /// The process's user.
        pub uid: u32,
        /// The container's id, shortened.
        pub container: Option<String>,
        /// The process's command line at its start, shortened.
        pub command: String => "COMMAND",
        /// The tenant for which the process is metered.
        pub tenant: Option<String> => "TENANT",
        /// `metered`, `waiting` (the process uses no library with probes yet) or `ended`.
        pub state: String => "METERED",
        /// The reason why the process is not metered.
        pub problem: Option<String>,
        /// The time at which metering began, ns of `CLOCK_MONOTONIC`.
        pub since_ns: u64,
        /// The beginning of the last counted call, ns of `CLOCK_MONOTONIC`.
        pub last_ns: u64,
        /// Kernels launched one by one.
        pub launches: u64 => "LAUNCHES",
        /// Graphs launched.
        pub graph_launches: u64 => "GRAPHS",
        /// Requested allocations.
        pub allocations: u64 => "ALLOCATIONS",
        /// Memory that allocations asked for, bytes, as far as an argument tells.
        pub allocated_bytes: u64 => "ASKED FOR",
        /// Freed allocations.
        pub frees: u64 => "FREES",
        /// Calls of each function.
        pub functions: BTreeMap<String, u64>,
        /// The libraries with probes, by their paths in the process's file system.
        pub libraries: Vec<String>,
    }

    /// The state of metering from outside.
    #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct MeteringStatus {
        /// The processes that are metered, or were until a moment ago.
        pub processes: Vec<MeteredStatus>,
        /// Calls that the probes did not count, for lack of room.
        pub uncounted_calls: u64,
        /// Child processes that the probes did not follow, for lack of room.
        pub uncounted_processes: u64,
    }
}

impl MeteringStatus {
    /// Returns the processes that are metered now.
    pub fn living(&self) -> impl Iterator<Item = &MeteredStatus> {
        self.processes.iter().filter(|process| process.state != ENDED)
    }
}

/// All findings of the probes at one moment, as the watching thread publishes them for the status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Board {
    /// The state of the probes.
    pub probes: ProbesStatus,
    /// The unmanaged processes.
    pub unmanaged: Vec<UnmanagedStatus>,
    /// The calls of all processes to the driver.
    pub activity: Vec<ActivityStatus>,
    /// The adopted processes that are alive.
    pub adopted: Vec<Adopted>,
    /// The processes that the daemon holds.
    pub held: Vec<ProcessKey>,
}

impl Board {
    /// Returns the findings before the probes have looked at anything.
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
