//! The language of the admin socket: one JSON object a line, a [`Request`] and its [`Reply`].
//!
//! [`Status`] is also what `deepres ps --json` prints. Counters only grow; the difference of two statuses over the difference
//! of their `now_ns` is a rate.

pub mod client;
mod coverage;
mod share;

pub use crate::probes::{ActivityStatus, MeteredStatus, MeteringStatus, ProbesStatus, UnmanagedStatus};
pub use coverage::{ProcessCoverage, UnaccountedCalls};
pub use share::{GuardStatus, PriorityStatus, ShareStatus, TermStatus};

use crate::authority::{Granted, Wish};
use crate::identity::{Container, Found};

use crate::quantity::Bytes;
use deepres_abi::meter::WAIT_BUCKETS;
use deepres_policy::signals::{DriverRates, DriverSums};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Bytes of one request, at most.
pub const MAX_REQUEST_BYTES: usize = 4096;

/// What an administrator asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Everything there is to see.
    Status,
    /// How each process reaches the driver.
    Coverage,
    /// Takes a process that is no tenant's for one of a tenant's.
    Adopt {
        /// The process.
        pid: u32,
        /// The tenant, for people to read.
        tenant: Option<String>,
    },
    /// Changes what a tenant is owed and may hold.
    Set {
        /// The tenant's name.
        tenant: String,
        /// Its wishes from now on.
        wish: Box<Wish>,
    },
    /// Keeps a tenant off the GPUs until it is resumed.
    Pause {
        /// The tenant's name.
        tenant: String,
    },
    /// Takes a tenant off the GPUs, memory and all, until it is resumed.
    Suspend {
        /// The tenant's name.
        tenant: String,
    },
    /// Ends either.
    Resume {
        /// The tenant's name.
        tenant: String,
    },
    /// How a tenant's share comes about.
    Explain {
        /// The tenant's name.
        tenant: String,
    },
}

impl Request {
    /// Grants a tenant what is wished for it.
    pub fn set(tenant: impl Into<String>, wish: Wish) -> Self {
        Self::Set { tenant: tenant.into(), wish: Box::new(wish) }
    }
}

/// The daemon's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// To [`Request::Coverage`].
    Coverage {
        /// The processes, by tenant.
        processes: Vec<ProcessCoverage>,
    },
    /// To [`Request::Adopt`]: it goes on.
    Adopted {
        /// Why its launches are not counted, if they are not.
        #[serde(default)]
        unmetered: Option<String>,
    },
    /// To [`Request::Set`]: it is in force.
    Set(Box<Granted>),
    /// To [`Request::Pause`]: it is paused.
    Paused,
    /// To [`Request::Resume`].
    Resumed {
        /// What that did.
        resumption: Resumption,
    },
    /// To [`Request::Explain`].
    Explained {
        /// Its share of each GPU that it has a session on.
        gpus: Vec<ShareStatus>,
    },
    /// To [`Request::Suspend`]: it is off the GPUs.
    Suspended,
    /// The request cannot be met.
    Error {
        /// What happened and what to do.
        message: String,
    },
}

/// What came of letting a tenant on again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resumption {
    /// It goes on.
    Now,
    /// It goes on once there is room for its memory, which others' have now.
    Later,
    /// It was kept off by nobody.
    Needless,
}

/// The daemon, its GPUs and its tenants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// When this was so: ns of `CLOCK_MONOTONIC`.
    pub now_ns: u64,
    /// The daemon.
    pub daemon: DaemonStatus,
    /// The GPUs it manages.
    pub gpus: Vec<GpuStatus>,
    /// The tenants, by name.
    pub tenants: Vec<TenantStatus>,
    /// Processes that use a GPU and are no tenant's.
    #[serde(default)]
    pub unmanaged: Vec<UnmanagedStatus>,
    /// The kernel programs that look for them.
    #[serde(default)]
    pub probes: ProbesStatus,
    /// Programs that are metered from outside.
    #[serde(default)]
    pub metering: MeteringStatus,
    /// What processes do in the driver, tenants' or not, where the kernel programs tell.
    #[serde(default)]
    pub driver_activity: Vec<ActivityStatus>,
}

/// The daemon itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// Its process.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// Where its sockets are.
    pub directory: String,
    /// When it started, ns of `CLOCK_MONOTONIC`.
    pub started_ns: u64,
    /// After how long without a heartbeat tenants take it for gone, ns.
    pub heartbeat_limit_ns: u64,
    /// What they do then: `open` or `closed`.
    pub fail_mode: String,
}

/// What one arbiter has to say about its GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuStatus {
    /// The daemon's number for it.
    pub index: usize,
    /// Its UUID, `GPU-…`.
    pub uuid: String,
    /// Its name.
    pub name: String,
    /// It is not real.
    pub simulated: bool,
    /// Its memory, bytes.
    pub memory_bytes: u64,
    /// `free`, `open`, `leased` or `draining`.
    pub phase: String,
    /// The tenant that has it.
    pub holder: Option<String>,
    /// Time in which two tenants or more had work running or waiting, ns.
    pub contended_ns: u64,
    /// Time in which none had, ns, counted while any is connected.
    pub idle_ns: u64,
    /// Hand-offs from one tenant to another.
    pub handoffs: u64,
    /// GPU time that went by idle in the hand-offs of which it could be told, ns.
    pub handoff_total_ns: u64,
    /// Median of the latest, ns.
    pub handoff_p50_ns: u64,
    /// 99th percentile of the latest, ns.
    pub handoff_p99_ns: u64,
    /// How long a lease lasts while others wait, ns.
    pub quantum_ns: u64,
    /// GPU time that a tenant may have in flight under a lease, ns.
    pub window_ns: u64,
    /// How long a waiter spins before it sleeps, ns.
    pub spin_ns: u64,
    /// What a hand-off costs in the mean, those left out that a busy machine held up, and what no meter sees of it included; the others follow from it; ns.
    #[serde(default)]
    pub handoff_ns: u64,
    /// How long before its end a lease is renewed or given up, ns.
    #[serde(default)]
    pub lead_ns: u64,
    /// How long a holder may be idle before it counts as idle, ns.
    #[serde(default)]
    pub grace_ns: u64,
    /// Jain's index of what tenants had in the last second against what they were owed, parts per million: a whole is alike. None where
    /// fewer than two wanted the GPU.
    #[serde(default)]
    pub fairness_ppm: Option<u32>,
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TenantStatus {
    /// Its name.
    pub name: String,
    /// Whose it is: the user of its processes or, in a container with users of its own, whoever runs that.
    pub uid: u32,
    /// That user's name, where it is known.
    #[serde(default)]
    pub user: Option<String>,
    /// How it was found to be a tenant.
    #[serde(default)]
    pub found: Option<Found>,
    /// The container that it is in.
    #[serde(default)]
    pub container: Option<Container>,
    /// What its job asked for.
    #[serde(default)]
    pub asked: Wish,
    /// What it is granted, and by which rules.
    #[serde(default)]
    pub granted: Option<Granted>,
    /// The share that it is granted, parts per million; none: its part of what others leave.
    pub asked_share_ppm: Option<u32>,
    /// Its memory limit on each GPU, bytes.
    pub memory_limit_bytes: Option<u64>,
    /// Its class.
    #[serde(default)]
    pub class: String,
    /// An administrator paused it.
    #[serde(default)]
    pub paused: bool,
    /// It is off the GPUs, its memory on the host.
    #[serde(default)]
    pub suspended: bool,
    /// How it lets its memory make room for others': `suspend` or `managed`, if it does.
    #[serde(default)]
    pub oversubscribe: Option<String>,
    /// `deepres run`s that keep it.
    pub keepers: usize,
    /// Its account on each GPU that it has or had a session on.
    pub gpus: Vec<AccountStatus>,
    /// Its processes.
    pub sessions: Vec<SessionStatus>,
    /// What they do in the driver, where the kernel programs tell.
    #[serde(default)]
    pub driver: DriverStatus,
}

/// What a tenant's processes do in the driver, together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverStatus {
    /// Since the tenant appeared.
    #[serde(flatten)]
    pub sums: DriverSums,
    /// In the last seconds.
    #[serde(default)]
    pub lately: DriverRates,
}

/// A tenant's account on one GPU, since it first appeared there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountStatus {
    /// The GPU's number.
    pub gpu: usize,
    /// The share that it is owed, parts per million; none while nobody is here of it.
    #[serde(default)]
    pub entitled_ppm: Option<u32>,
    /// The tenant is idle or paused: until it wants the GPU and may have it, the others are owed that too.
    #[serde(default)]
    pub is_lent: bool,
    /// Why it is that: `guaranteed`, `asked`, `shrunk` (beside the others there is less room than was asked for), `rest` (its part of what
    /// nobody asked for), `capped` or `gaps` (what others leave); empty while it is owed none.
    #[serde(default)]
    pub entitled_by: String,
    /// Its share of the GPU's time in the last second or so, parts per million.
    pub recent_share_ppm: u32,
    /// Its share of the GPU's time since it first appeared, parts per million.
    pub total_share_ppm: u32,
    /// GPU time of kernels and graphs, and of copies where those are charged: what is charged, ns.
    pub gpu_ns: u64,
    /// GPU time of copies, charged or not, ns.
    pub copy_ns: u64,
    /// Time that threads waited at the gate, summed over threads, ns.
    pub wait_ns: u64,
    /// Waits at the gate.
    pub waits: u64,
    /// Kernels launched one by one.
    pub kernel_launches: u64,
    /// Graphs launched.
    pub graph_launches: u64,
    /// Time in which something of it ran or waited, ns.
    pub wanted_ns: u64,
    /// That part of it in which something of another tenant did too, ns.
    pub contended_ns: u64,
    /// Its part of that time, as it was entitled beside those who wanted the GPU too, ns.
    #[serde(default)]
    pub owed_ns: u64,
    /// GPU time charged in that time, ns.
    #[serde(default)]
    pub had_ns: u64,
    /// Waits at the gate by length: the Nth counts those from 2^N µs up to twice that, the first all shorter ones too, the last all longer
    /// ones.
    #[serde(default)]
    pub waits_by_length: [u64; WAIT_BUCKETS],
    /// GPU time that it is owed beside the tenant furthest behind, ns; negative if it had more.
    pub lag_ns: i64,
    /// Memory that it holds, bytes.
    pub memory_bytes: u64,
    /// The most that it held at once, bytes: all of it under a limit, else as much as was seen.
    #[serde(default)]
    pub memory_peak_bytes: u64,
    /// What it holds by kind, bytes, kinds that it holds none of left out.
    pub memory_by_kind: BTreeMap<String, u64>,
    /// Managed memory that it was given beyond its limit, bytes, by what its processes say; not part of what it holds.
    #[serde(default)]
    pub oversubscribed_bytes: u64,
    /// What of that was brought to the GPU, bytes.
    #[serde(default)]
    pub oversubscribed_brought_bytes: u64,
    /// What it asked for and the driver did not have, bytes: a thread of it waits until others make room. 0: none does.
    #[serde(default)]
    pub needed_bytes: u64,
    /// What it holds beyond what its processes say by kind, bytes.
    #[serde(default)]
    pub kinds_drift_bytes: i64,
    /// What NVML says that its processes hold, bytes, as of the last second; none where it does not say, or the tenant is suspended.
    #[serde(default)]
    pub nvml_bytes: Option<u64>,
    /// What that is beyond its account, bytes.
    #[serde(default)]
    pub drift_bytes: Option<i64>,
    /// The most that it may hold beside what others were promised, bytes, where that bounds it.
    #[serde(default)]
    pub ceiling_bytes: Option<u64>,
    /// What is kept for it while its memory follows its use, bytes: of late it held so much at most, a margin included.
    #[serde(default)]
    pub kept_bytes: Option<u64>,
    /// Allocations refused: by the limit, or by the driver, which had no memory left.
    pub refusals: u64,
    /// The last of them.
    pub last_refusal: Option<RefusalStatus>,
    /// `closed`, `leased`, `once` (for one launch), `open`, `paused`, or `suspended` while its memory is off the GPU; none while nobody is here of it.
    #[serde(default)]
    pub gate: Option<String>,
}

/// An allocation that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalStatus {
    /// The driver call, if it is one we know.
    pub api: Option<String>,
    /// What it asked for, bytes.
    pub bytes: u64,
    /// Who refused it.
    #[serde(default)]
    pub by: RefusedBy,
}

impl fmt::Display for RefusalStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes {
            // What a context or a module takes is not known before the driver has given it.
            0 => f.write_str("memory")?,
            bytes => write!(f, "{}", Bytes(bytes))?,
        }
        write!(f, " for {}", self.api.as_deref().unwrap_or("an unknown call"))
    }
}

/// Who refuses an allocation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusedBy {
    /// deepres: what the tenant may hold leaves no room for it.
    #[default]
    Limit,
    /// The driver: the GPU has not so much left.
    Driver,
}

/// A process of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Its number.
    pub id: u64,
    /// Its process, as the daemon sees it.
    pub pid: u32,
    /// The container that it is in.
    #[serde(default)]
    pub container: Option<Container>,
    /// Its command line, shortened.
    pub client: String,
    /// What it does on each GPU.
    pub gpus: Vec<SessionGpuStatus>,
}

/// What a session says of itself on one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionGpuStatus {
    /// The GPU's number.
    pub gpu: usize,
    /// Something is in flight.
    pub in_flight: bool,
    /// Threads at the gate, or in a call of the driver's while the tenant is kept off the GPU.
    pub waiters: u32,
    /// GPU time that is charged, ns.
    pub gpu_ns: u64,
    /// Kernels launched one by one.
    pub kernel_launches: u64,
    /// Graphs launched.
    pub graph_launches: u64,
    /// Time that its threads waited at the gate, ns.
    pub wait_ns: u64,
    /// Memory that it holds, bytes.
    pub memory_bytes: u64,
    /// For how long something of it runs without an end, if it is so long that it cannot be shared in time (a kernel that spins, or stays for
    /// good), ns.
    #[serde(default)]
    pub overdue_ns: Option<u64>,
}
