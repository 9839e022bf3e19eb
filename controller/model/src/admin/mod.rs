//! The protocol of the admin socket: one JSON object a line, a [`Request`] and its [`Reply`].
//!
//! [`Status`] is also the output of `deepres ps --json`. Counters only grow. A rate is the
//! difference of a counter between two statuses, divided by the difference of `now_ns`.

pub mod client;
mod coverage;
mod declared;
pub mod plan;
mod share;

pub use crate::probes::{
    ActivityStatus, CommandStatus, MeteredStatus, MeteringStatus, ProbesStatus, UnmanagedStatus,
};
pub use coverage::{BypassedCalls, ProcessCoverage, UnaccountedCalls};
use declared::section;
pub(crate) use declared::status;
pub use declared::{Declared, Field, Measure, Measured, Metric, Role, Unit, info_name};
pub use share::{GuardStatus, PriorityStatus, ShareStatus, TermStatus};

use crate::allocation::{Allocation, Token};
use crate::authority::{Granted, Wish};
use crate::config::Setting;
use crate::identity::{Container, Found};
use crate::quantity::Bytes;
use deepres_abi::meter::WAIT_BUCKETS;
use deepres_policy::arbiter::LENGTHS;
use deepres_policy::signals::{DriverRates, DriverSums};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// The most bytes in one request.
pub const MAX_REQUEST_BYTES: usize = 4096;

/// A request of an administrator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Asks for the whole status.
    Status,
    /// Asks how each process reaches the driver.
    Coverage,
    /// Asks for the daemon's configuration.
    Config,
    /// Makes the daemon read its configuration file again.
    Reload,
    /// Adopts an unmanaged process.
    Adopt {
        /// The process.
        pid: u32,
        /// Name of the tenant under which the process is listed.
        tenant: Option<String>,
    },
    /// Changes the wishes of a tenant.
    Set {
        /// The tenant's name.
        tenant: String,
        /// The tenant's wishes from now on.
        wish: Box<Wish>,
        /// The names of the settings of earlier requests that end. The job's own wishes hold again
        /// in their place.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        unset: Vec<String>,
    },
    /// Keeps a tenant off the GPUs until it is resumed.
    Pause {
        /// The tenant's name.
        tenant: String,
    },
    /// Moves a tenant with its memory off the GPUs until it is resumed.
    Suspend {
        /// The tenant's name.
        tenant: String,
    },
    /// Ends a pause or a suspension.
    Resume {
        /// The tenant's name.
        tenant: String,
    },
    /// Asks for the derivation of a tenant's share.
    Explain {
        /// The tenant's name.
        tenant: String,
    },
    /// Says that a Slurm job has ended on this node.
    EndJob {
        /// The job's number.
        job: u32,
    },
    /// Records an allocation of the node's agent, or changes the allocation with the same token.
    Allocate {
        /// The allocation.
        allocation: Box<Allocation>,
    },
    /// Ends an allocation.
    Release {
        /// The allocation's token.
        token: Token,
    },
    /// Asks for the tokens of all allocations, and for the faults of GPUs.
    Allocations,
    /// Asks where each GPU is in the machine.
    Places,
    /// Asks which GPUs a job with whole GPUs should get, by the machine's topology.
    Place {
        /// The number of GPUs.
        gpus: usize,
        /// The UUIDs of the GPUs among which to choose.
        among: Vec<String>,
    },
    /// Makes the daemon record a tenant for some time, and learn its iteration.
    PlanLearn {
        /// The tenant's name.
        tenant: String,
        /// The time, ms.
        ms: u64,
    },
    /// Asks for the tenant's iteration, and for the plans that the daemon found.
    PlanShow {
        /// The tenant's name.
        tenant: String,
    },
    /// Lets the tenant and others follow the plan that the daemon found for them.
    PlanOn {
        /// The tenant's name.
        tenant: String,
    },
    /// Ends the plan that the tenant follows.
    PlanOff {
        /// The tenant's name.
        tenant: String,
    },
}

impl Request {
    /// Returns a request that sets a tenant's wishes.
    pub fn set(tenant: impl Into<String>, wish: Wish) -> Self {
        Self::Set { tenant: tenant.into(), wish: Box::new(wish), unset: Vec::new() }
    }
}

/// The daemon's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// Reply to [`Request::Status`].
    Status(Box<Status>),
    /// Reply to [`Request::Coverage`].
    Coverage {
        /// The processes, ordered by tenant.
        processes: Vec<ProcessCoverage>,
    },
    /// Reply to [`Request::Config`].
    Config {
        /// The file that the daemon read last, if there was one.
        file: Option<PathBuf>,
        /// Every key with the value that is in force.
        settings: Vec<Setting>,
    },
    /// Reply to [`Request::Reload`]: the daemon has read its configuration file again.
    Reloaded {
        /// The file, if there was one.
        file: Option<PathBuf>,
        /// The keys whose new values are in force.
        now: Vec<String>,
        /// The keys whose new values are in force when the daemon next starts.
        later: Vec<String>,
    },
    /// Reply to [`Request::Adopt`]: the process goes on.
    Adopted {
        /// The reason why the process's launches are not counted, if they are not.
        #[serde(default)]
        unmetered: Option<String>,
    },
    /// Reply to [`Request::Set`]: the new grants are in force.
    Set(Box<Granted>),
    /// Reply to [`Request::Pause`]: the tenant is paused.
    Paused,
    /// Reply to [`Request::Resume`].
    Resumed {
        /// When the tenant goes on: now, later, or not at all because nothing kept it.
        resumption: Resumption,
    },
    /// Reply to [`Request::Explain`].
    Explained {
        /// The tenant's share of each GPU on which it has a session.
        gpus: Vec<ShareStatus>,
    },
    /// Reply to [`Request::Suspend`]: the tenant is off the GPUs.
    Suspended,
    /// Reply to [`Request::EndJob`]: the daemon has forgotten the job.
    JobEnded {
        /// The job's tenants that have processes still. The daemon keeps them.
        living: Vec<String>,
    },
    /// Reply to [`Request::Allocate`]: the allocation is on record.
    Allocated,
    /// Reply to [`Request::Release`]: the daemon has no record of the allocation any more.
    Released,
    /// Reply to [`Request::Allocations`].
    Allocations {
        /// The tokens.
        tokens: Vec<Token>,
        /// The faults of GPUs, by UUID.
        #[serde(default)]
        faults: BTreeMap<String, String>,
    },
    /// Reply to [`Request::Places`].
    Places {
        /// The GPUs that the daemon manages.
        gpus: Vec<GpuPlace>,
    },
    /// Reply to [`Request::Place`].
    Placed {
        /// The UUIDs of the chosen GPUs.
        gpus: Vec<String>,
        /// The reason, as a sentence.
        why: String,
    },
    /// Reply to [`Request::PlanLearn`], [`Request::PlanShow`], [`Request::PlanOn`] and
    /// [`Request::PlanOff`].
    Plan(Box<plan::PlanStatus>),
    /// The daemon cannot do what was requested.
    Error {
        /// The reason and the remedy.
        message: String,
    },
}

/// The place of a GPU in the machine, as far as the daemon knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuPlace {
    /// The GPU's UUID, `GPU-…`, or `MIG-…` for a MIG device.
    pub uuid: String,
    /// The NUMA node; `None` if the GPU is near several nodes.
    pub numa_node: Option<u32>,
    /// The root of the GPU's tree of PCI Express, `pci0000:00`.
    pub pcie_root: Option<String>,
    /// The number of the GPU's NVLink component: NVLinks join the GPUs with the same number. `None`
    /// if no NVLink joins the GPU to another.
    pub nvlink_component: Option<usize>,
    /// The version of the GPU's driver.
    pub driver_version: Option<String>,
}

/// The effect of a [`Request::Resume`] on the tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resumption {
    /// The tenant goes on.
    Now,
    /// The tenant goes on once there is room for its memory. Other tenants have the memory now.
    Later,
    /// The tenant was neither paused nor suspended.
    Needless,
}

status! {
    /// The daemon, its GPUs and its tenants.
    #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
    pub struct Status {
        /// The time of this status, ns of `CLOCK_MONOTONIC`.
        pub now_ns: u64 as Time,
        /// The daemon.
        pub daemon: DaemonStatus,
        /// The GPUs that the daemon manages.
        pub gpus: Vec<GpuStatus>,
        /// The tenants, by name.
        pub tenants: Vec<TenantStatus> as Gauge,
        /// The jobs that wait for guaranteed memory, GPUs or a part of their user's caps, in the
        /// order in which they get them.
        #[serde(default)]
        pub waiting: Vec<WaitingStatus> as Gauge,
        /// The unmanaged processes.
        #[serde(default)]
        pub unmanaged: Vec<UnmanagedStatus>,
        /// The probes that find unmanaged processes.
        #[serde(default)]
        pub probes: ProbesStatus,
        /// Programs that are metered from outside.
        #[serde(default)]
        pub metering: MeteringStatus,
        /// The calls of all processes to the driver, where the probes report them.
        #[serde(default)]
        pub driver_activity: Vec<ActivityStatus>,
    }

    /// The daemon itself.
    #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct DaemonStatus {
        /// The daemon's process id.
        pub pid: u32,
        /// The daemon's version.
        pub version: String as Label,
        /// The directory of the daemon's sockets.
        pub directory: String,
        /// The time at which the daemon started, ns of `CLOCK_MONOTONIC`.
        pub started_ns: u64 as Time,
        /// Time without a heartbeat after which tenants take the daemon for gone, ns.
        pub heartbeat_limit_ns: u64,
        /// The tenants' behaviour without a daemon: `open` or `closed`.
        pub fail_mode: String as Label,
        /// Time within which the driver must move a tenant's memory, ns.
        #[serde(default)]
        pub suspend_limit_ns: u64,
        /// The directory of the MPS control daemon that jobs use, if the daemon hands one on (`mps
        /// = "start"`).
        #[serde(default)]
        pub mps_pipes: Option<String>,
        /// Number of times that the MPS control daemon ended without an order of the daemon.
        #[serde(default)]
        pub mps_deaths: u64,
    }

    /// A job that waits for guaranteed memory, for GPUs or for a part of its user's caps (`deepres
    /// run --wait`).
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct WaitingStatus {
        /// The name for the job's tenant.
        pub tenant: String => "WAITING",
        /// The job's user.
        pub uid: u32 => "UID",
        /// The memory for which the job waits, bytes; 0 if the job waits for GPUs, or asks for no
        /// amount of memory.
        pub memory_bytes: u64 => "MEMORY",
        /// The number of GPUs for which the job waits. `None`: the job does not wait for GPUs.
        #[serde(default)]
        pub gpus: Option<usize> => "GPUS",
        /// The time since which the job waits, ns of `CLOCK_MONOTONIC`.
        pub since_ns: u64,
    }

    /// The state of one GPU, as its arbiter reports it.
    #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct GpuStatus {
        /// The daemon's number for the GPU.
        pub index: usize,
        /// The GPU's UUID, `GPU-…`, or `MIG-…` for a MIG device.
        pub uuid: String,
        /// The GPU's name.
        pub name: String as Label,
        /// Whether the GPU is simulated.
        pub simulated: bool,
        /// The GPU's memory, bytes.
        pub memory_bytes: u64 as Gauge,
        /// Memory that all tenants hold, bytes.
        pub held_bytes: u64,
        /// Part of the last second in which tenants used the GPU, parts per million.
        pub recent_share_ppm: u32,
        /// `free`, `open`, `leased`, `draining`, or `together` while several owners use the GPU
        /// without turns.
        pub phase: String,
        /// The holder's name.
        pub holder: Option<String>,
        /// Time in which two tenants or more had work running or waiting, ns.
        pub contended_ns: u64 as Counter,
        /// Time in which tenants were connected, and none had work running or waiting, ns.
        pub idle_ns: u64,
        /// Number of hand-offs from one tenant to another.
        pub handoffs: u64 as Counter,
        /// GPU time that was idle in hand-offs, ns. Only hand-offs for which the time is known
        /// count.
        pub handoff_total_ns: u64 as Counter,
        /// Median idle time of the latest hand-offs, ns.
        pub handoff_p50_ns: u64 as Gauge,
        /// 99th percentile of the idle time of the latest hand-offs, ns.
        pub handoff_p99_ns: u64 as Gauge,
        /// Number of the arbiter's turns. In each turn, the arbiter reads the meters and decides.
        pub turns: u64 as Counter,
        /// Time that the arbiter's turns took, ns.
        pub turn_total_ns: u64 as Counter,
        /// 99th percentile of the time of the latest 256 turns of the arbiter, ns: from the reading
        /// of the meters until all gates are set.
        pub turn_p99_ns: u64 as Gauge,
        /// The quantum, ns: the longest lease while another tenant waits.
        pub quantum_ns: u64 as Gauge,
        /// The window, ns: GPU time that a holder may have in flight.
        pub window_ns: u64,
        /// Time for which a waiter spins before it sleeps, ns.
        pub spin_ns: u64,
        /// Mean cost of a hand-off, ns: the idle time of the GPU, and the part of the hand-off that
        /// meters do not see. In the mean, each hand-off counts as at most 16 times the median. The
        /// result is never below the median. From this cost, the daemon derives `quantum_ns` and
        /// the other time constants of the GPU.
        pub handoff_ns: u64,
        /// Time before a lease's end at which the scheduler renews or ends the lease, ns.
        pub lead_ns: u64,
        /// Time without work after which the scheduler takes a holder for idle, ns.
        pub grace_ns: u64,
        /// Jain's fairness index of the last second, parts per million. The index compares the GPU
        /// time of tenants with the time that they were owed; equal treatment gives the whole.
        /// `None` if fewer than two tenants wanted the GPU.
        pub fairness_ppm: Option<u32> as Gauge,
        /// The fault for which the GPU cannot be used: the driver lost the GPU, or reported an
        /// error of the hardware. `None` if no fault is known.
        pub fault: Option<String> as Label,
    }

    /// The state of a tenant.
    #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct TenantStatus {
        /// The tenant's name.
        pub name: String => "TENANT",
        /// The tenant's user: the user of its processes. In a container with users of its own, the
        /// user who runs the container.
        pub uid: u32 as Label,
        /// The user's name, if it is known.
        pub user: Option<String>,
        /// The rule by which the daemon found the tenant.
        pub found: Option<Found>,
        /// The tenant's container. In the metrics: the container's name in its pod, else its id.
        pub container: Option<Container> as Label,
        /// The namespace of the tenant's pod, if the Kubernetes device plugin told the daemon.
        pub namespace: Option<String> as Label,
        /// The name of the tenant's pod, if the Kubernetes device plugin told the daemon.
        pub pod: Option<String> as Label,
        /// The wishes of the job.
        pub asked: Wish,
        /// The grants, each with its rule.
        pub granted: Option<Granted>,
        /// The granted share, parts per million. `None`: the tenant gets a part of the time that
        /// other tenants leave.
        pub asked_share_ppm: Option<u32> as Gauge,
        /// The granted part of each GPU's SMs under MPS, parts per million. `None`: all SMs.
        pub sm_ppm: Option<u32> => "SMS",
        /// The tenant's memory limit on each GPU, bytes.
        pub memory_limit_bytes: Option<u64> as Gauge => "LIMIT",
        /// The tenant's class.
        pub class: String as Label,
        /// Whether an administrator paused the tenant.
        pub paused: bool as Gauge,
        /// Whether the tenant is suspended: off the GPUs, with its memory on the host.
        pub suspended: bool as Gauge,
        /// The tenant's way of oversubscription, `suspend` or `managed`, if it has one.
        pub oversubscribe: Option<String>,
        /// Number of `deepres run` processes that keep the tenant.
        pub keepers: usize,
        /// The GPUs of the job, if the daemon or a cluster's scheduler chose them.
        pub placement: Option<PlacementStatus>,
        /// The part of the SMs that `--sm auto` took from the job's profile, and the reason, as a
        /// sentence.
        pub sm_auto: Option<String>,
        /// The tenant's account on each GPU on which it has or had a session.
        pub gpus: Vec<AccountStatus>,
        /// The tenant's processes that have sessions.
        pub sessions: Vec<SessionStatus> as Gauge,
        /// The calls of the tenant's processes to the driver, where the probes report them.
        pub driver: DriverStatus,
    }

    /// The GPUs that the daemon or a cluster's scheduler chose for a job.
    #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct PlacementStatus {
        /// The numbers of the GPUs.
        pub gpus: Vec<usize>,
        /// The reason, as a sentence.
        pub why: String,
    }

    /// The calls of all processes of a tenant to the driver, together.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct DriverStatus {
        /// Sums since the tenant appeared.
        #[serde(flatten)]
        pub sums: DriverSums,
        /// Rates of the last seconds.
        pub lately: DriverRates,
    }

    /// A tenant's account on one GPU, since the tenant first appeared there.
    #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct AccountStatus {
        /// The GPU's number.
        pub gpu: usize => "GPU",
        /// The tenant's entitlement, parts per million. `None` while the tenant has no session on
        /// the GPU.
        pub entitled_ppm: Option<u32> as Gauge => "OWED",
        /// Whether the tenant is idle or paused. While `is_lent` is true, the other tenants may use
        /// the tenant's part of the GPU. `is_lent` becomes false when the tenant wants the GPU and
        /// is not paused.
        pub is_lent: bool,
        /// The reason of the entitlement; empty without a reason.
        ///
        /// | text | reason |
        /// |---|---|
        /// | `guaranteed` | the share is guaranteed |
        /// | `asked` | the share is granted |
        /// | `shrunk` | the granted shares are more than there is, and shrink in proportion |
        /// | `rest` | the tenant has a part of the time that nobody asked for |
        /// | `capped` | the cap of the tenant's user bounds it |
        /// | `gaps` | the tenant has what others leave |
        pub entitled_by: String,
        /// The tenant's share of the GPU's time in about the last second, parts per million.
        pub recent_share_ppm: u32 => "LATELY",
        /// The tenant's share of the GPU's time since it first appeared, parts per million.
        pub total_share_ppm: u32 => "TOTAL",
        /// GPU time that is charged, ns: kernels and graphs, and copies for tenants whose copies
        /// are charged.
        pub gpu_ns: u64 as Counter => "GPU TIME",
        /// GPU time of copies, charged or not, ns.
        pub copy_ns: u64 as Counter,
        /// Time that threads waited at the gate, added up over threads, ns.
        pub wait_ns: u64 as Histogram of waits_by_length => "WAITED",
        /// Waits at the gate.
        pub waits: u64,
        /// Kernels launched one by one.
        pub kernel_launches: u64 as Counter => "KERNELS",
        /// Graphs launched.
        pub graph_launches: u64 as Counter => "GRAPHS",
        /// Time in which the tenant had work running or waiting, ns.
        pub wanted_ns: u64 as Counter,
        /// The part of `wanted_ns` in which another tenant had work running or waiting too, ns.
        pub contended_ns: u64 => "CONTENDED",
        /// The tenant's part of `contended_ns`, by its entitlement beside the other tenants that
        /// wanted the GPU, ns.
        pub owed_ns: u64 as Counter,
        /// GPU time charged during `contended_ns`, ns.
        pub had_ns: u64 as Counter,
        /// Waits at the gate by length. Entry N counts waits from 2^N µs to 2^(N+1) µs. The first
        /// entry also counts all shorter waits, and the last entry all longer waits.
        pub waits_by_length: [u64; WAIT_BUCKETS],
        /// The tenant's requests, if the tenant has an SLO.
        pub requests: Option<RequestStatus>,
        /// Lag: GPU time that the tenant is owed, ns; negative if the tenant had more.
        pub lag_ns: i64,
        /// Memory that the tenant holds, bytes.
        pub memory_bytes: u64 as Gauge => "MEMORY",
        /// The most memory that the tenant held at once, bytes. The figure is exact for a tenant
        /// with a limit. For other tenants, the figure is the most memory that the daemon observed.
        pub memory_peak_bytes: u64 => "PEAK",
        /// Memory that the tenant holds by kind, bytes. Kinds of which the tenant holds nothing are
        /// left out.
        pub memory_by_kind: BTreeMap<String, u64>,
        /// Managed memory that the tenant has beyond its limit, bytes, as its processes report it.
        /// Not part of `memory_bytes`.
        pub oversubscribed_bytes: u64 as Gauge,
        /// The part of `oversubscribed_bytes` that was brought to the GPU, bytes.
        pub oversubscribed_brought_bytes: u64,
        /// Memory that the tenant asked for and the driver did not have, bytes. A thread of the
        /// tenant waits until other tenants make room; 0 if no thread waits.
        pub needed_bytes: u64,
        /// `memory_bytes` less the sum of the kinds that the processes report, bytes.
        pub kinds_drift_bytes: i64,
        /// Memory of the tenant's processes by NVML, bytes, at most a second old. `None` if NVML
        /// does not report the memory, or if the tenant is suspended.
        pub nvml_bytes: Option<u64>,
        /// `nvml_bytes` less the tenant's account, bytes.
        pub drift_bytes: Option<i64>,
        /// The tenant's ceiling beside the guarantees of other tenants, bytes; `None` if no other
        /// tenant has a guarantee on the GPU.
        pub ceiling_bytes: Option<u64>,
        /// With `--memory-follow-use`: the memory that the daemon keeps for the tenant, bytes: the
        /// most memory that the tenant held lately, and a margin.
        pub kept_bytes: Option<u64>,
        /// Allocations that were refused: by the limit, or by the driver for lack of memory.
        pub refusals: u64 as Counter => "REFUSED",
        /// The last refused allocation.
        pub last_refusal: Option<RefusalStatus>,
        /// The gate's state; `None` while the tenant has no session on the GPU.
        ///
        /// The states are `closed`, `leased`, `once` (for one launch), `open`, `paused`, and
        /// `suspended` while the tenant's memory is off the GPU.
        pub gate: Option<String> => "GATE",
    }

    /// The requests of a tenant with an SLO on one GPU. A request is a burst: the tenant's work
    /// between two pauses that are longer than two hand-offs.
    #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct RequestStatus {
        /// The SLO: the latency that the tenant wants for a request, ns.
        pub slo_ns: u64 as Gauge => "SLO",
        /// Requests that have ended.
        pub ended: u64 => "REQUESTS",
        /// Requests that ended within the SLO.
        pub in_time: u64 as Counter,
        /// The latencies of all requests, added up, ns. A latency is the time from the moment at
        /// which the tenant wants the GPU to the end of its work.
        pub latency_ns: u64 as Histogram of latencies_by_length,
        /// Requests by latency. Entry N counts latencies from 2^N µs to 2^(N+1) µs. The first entry
        /// also counts all shorter latencies, and the last entry all longer latencies.
        pub latencies_by_length: [u64; LENGTHS],
        /// Median latency of the latest 256 requests, ns.
        pub p50_ns: Option<u64> as Gauge => "P50",
        /// 99th percentile of the latencies of the latest 256 requests, ns.
        pub p99_ns: Option<u64> as Gauge => "P99",
        /// The part of the latest 256 requests that ended within the SLO, parts per million.
        pub attained_ppm: Option<u32> as Gauge => "IN TIME",
        /// Goodput: requests that ended within the SLO, per second, in the last ten seconds or, if
        /// shorter, since the oldest of the latest 256 requests.
        pub goodput_per_second: f64 as Gauge => "GOODPUT",
        /// Requests that have ended, per second, over the time of the goodput.
        pub rate_per_second: f64 as Gauge,
        /// The operating point of the tenant's profile. `None` without a profile (`deepres run
        /// --profile`), or before the first requests.
        pub operating_point: Option<OperatingPointStatus>,
        /// Time of late requests in which another tenant had the GPU and the tenant's gate was
        /// closed, ns.
        pub late_waited_ns: u64 as Counter,
        /// GPU time of late requests, ns.
        pub late_worked_ns: u64 as Counter,
        /// The rest of the latencies of late requests, ns: the process's own time between launches,
        /// hand-offs, and time beside work of other tenants in flight.
        pub late_rest_ns: u64 as Counter,
        /// The delays of the latest late requests. `None` without late requests.
        pub late: Option<LateStatus>,
    }

    /// The operating point of a tenant: a part of the SMs and a batch. With them, the tenant
    /// answers its requests within the SLO, and all tenants with profiles together take the least
    /// area.
    #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct OperatingPointStatus {
        /// The part of the SMs, parts per million.
        pub sm_ppm: u32,
        /// The batch of this point. The batch is advice, because the program chooses its batches by
        /// itself.
        pub batch: u32,
        /// The time of a run of this batch on this part by the profile, ns.
        pub run_ns: u64,
        /// Whether the requests are in time at this point if the tenant is alone.
        pub is_in_time: bool,
        /// The rate of requests for which the daemon computed the point: the measured bursts a
        /// second, multiplied by the batch that the program runs.
        pub rate_per_second: f64,
        /// The part of its time that the GPU needs for all tenants with profiles at their points,
        /// parts per million. More than the whole is overload.
        pub need_ppm: u32,
    }

    /// The mean delays of a late request, over about the latest hundred late requests of a tenant.
    #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct LateStatus {
        /// The latency, ns.
        pub latency_ns: u64,
        /// Time in which another tenant had the GPU and the tenant's gate was closed, ns.
        pub waited_ns: u64,
        /// The part of `waited_ns` by the tenant that had the GPU, ns. For a plain user, the
        /// tenants of other users have the name `others`.
        pub waited_for_ns: BTreeMap<String, u64>,
        /// GPU time of the request, ns.
        pub worked_ns: u64,
        /// The rest of the latency, ns: the process's own time between launches, hand-offs, and
        /// time beside work of other tenants in flight.
        pub rest_ns: u64,
    }

    /// An allocation that was refused.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct RefusalStatus {
        /// The name of the driver call, if deepres knows it.
        pub api: Option<String>,
        /// Requested memory, bytes; 0 if unknown.
        pub bytes: u64,
        /// The refusing side.
        #[serde(default)]
        pub by: RefusedBy,
    }
}

impl fmt::Display for RefusalStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes {
            // The memory for a context or a module is unknown before the driver has allocated it.
            0 => f.write_str("memory")?,
            bytes => write!(f, "{}", Bytes(bytes))?,
        }
        write!(f, " for {}", self.api.as_deref().unwrap_or("an unknown call"))
    }
}

/// The side that refuses an allocation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusedBy {
    /// deepres refused: the tenant's limit leaves no room.
    #[default]
    Limit,
    /// The driver refused: the GPU has too little memory left.
    Driver,
}

status! {
    /// A session: one process of a tenant.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct SessionStatus {
        /// The session's number.
        pub id: u64,
        /// The process's id, as the daemon sees it.
        pub pid: u32 => "PID",
        /// The process's container.
        #[serde(default)]
        pub container: Option<Container>,
        /// The process's command line, shortened.
        pub client: String => "COMMAND",
        /// Number of ways of look-up by which the process gets the driver's own `cuLaunchKernel`
        /// instead of deepres' hook. The launches of such a process bypass deepres.
        #[serde(default)]
        pub lost_ways: u64,
        /// The session's state on each GPU.
        pub gpus: Vec<SessionGpuStatus>,
    }

    /// The state of a session on one GPU, as the session reports it.
    #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct SessionGpuStatus {
        /// The GPU's number.
        pub gpu: usize,
        /// Whether work is in flight.
        pub in_flight: bool,
        /// Number of threads at the gate, or in a call of the driver while the tenant is kept off
        /// the GPU.
        pub waiters: u32,
        /// GPU time that is charged, ns.
        pub gpu_ns: u64 => "GPU TIME",
        /// Kernels launched one by one.
        pub kernel_launches: u64 => "KERNELS",
        /// Graphs launched.
        pub graph_launches: u64 => "GRAPHS",
        /// Time that threads waited at the gate, added up over threads, ns.
        pub wait_ns: u64,
        /// Memory that the process holds, bytes.
        pub memory_bytes: u64 => "MEMORY",
        /// Time for which work has run without an end, ns. `None` while the time is below the limit
        /// from which `deepres ps` names the process: 2 s, or ten times the tenant's longest
        /// kernel. A kernel that spins or never ends can be the cause.
        pub overdue_ns: Option<u64>,
    }
}

impl SessionGpuStatus {
    /// Returns the counters of a session on all of its GPUs together: GPU time, launches and
    /// memory.
    pub fn sum(gpus: &[Self]) -> Self {
        gpus.iter().fold(Self::default(), |sum, gpu| Self {
            gpu_ns: sum.gpu_ns.saturating_add(gpu.gpu_ns),
            kernel_launches: sum.kernel_launches.saturating_add(gpu.kernel_launches),
            graph_launches: sum.graph_launches.saturating_add(gpu.graph_launches),
            memory_bytes: sum.memory_bytes.saturating_add(gpu.memory_bytes),
            ..sum
        })
    }
}

/// Returns the list of all fields of `deepres ps --json` and `deepres explain --json`, in Markdown.
pub fn fields() -> String {
    let sections = [
        section::<Status>(),
        section::<DaemonStatus>(),
        section::<WaitingStatus>(),
        section::<GpuStatus>(),
        section::<TenantStatus>(),
        section::<PlacementStatus>(),
        section::<AccountStatus>(),
        section::<RequestStatus>(),
        section::<OperatingPointStatus>(),
        section::<LateStatus>(),
        section::<RefusalStatus>(),
        section::<SessionStatus>(),
        section::<SessionGpuStatus>(),
        section::<DriverStatus>(),
        section::<UnmanagedStatus>(),
        section::<ProbesStatus>(),
        section::<ActivityStatus>(),
        section::<CommandStatus>(),
        section::<MeteringStatus>(),
        section::<MeteredStatus>(),
        section::<ShareStatus>(),
        section::<PriorityStatus>(),
        section::<TermStatus>(),
        section::<GuardStatus>(),
    ];
    format!(
        "# Fields of the status\n\n\
         `deepres ps --json` prints one `Status`. `deepres explain TENANT --json` prints an object. Its list\n\
         `gpus` has a `ShareStatus` for each GPU. A field with a column is in the tables of `deepres ps`\n\
         too, and a field with a metric in the [metrics](metrics.md). `deepres ps --fields` prints this\n\
         page.\n{}",
        sections.concat()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_fields_is_the_declaration() {
        let page = include_str!("../../../../docs/status.md");
        assert_eq!(page, fields(), "deepres ps --fields > docs/status.md");
    }

    #[test]
    fn every_field_of_the_json_is_declared_and_has_the_unit_of_its_name() {
        let json = serde_json::to_value(AccountStatus::default()).unwrap();
        let names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let mut declared: Vec<&str> = AccountStatus::FIELDS.iter().map(|field| field.name).collect();
        declared.sort_unstable();
        assert_eq!(names, declared);
        assert_eq!((AccountStatus::head("gpu_ns"), AccountStatus::head("waits")), ("GPU TIME", ""));
        let units = ["gpu_ns", "memory_bytes", "total_share_ppm", "waits"].map(Unit::of);
        assert_eq!(units, [Unit::Ns, Unit::Bytes, Unit::Ppm, Unit::One]);
    }

    /// Returns the names of a struct's metrics. Checks that no help names a unit that the metric
    /// does not have, or has a character that the formats of metrics escape.
    fn metrics<T: Declared>() -> Vec<String> {
        let figures = T::METRICS.iter().filter(|metric| metric.role != Role::Label);
        let names = figures.map(|metric| {
            let help = metric.help();
            let units = [" ns", "per million", "MONOTONIC", "\\", "\""];
            assert!(!help.is_empty() && !units.iter().any(|unit| help.contains(unit)), "{help}");
            metric.family()
        });
        names.collect()
    }

    /// Returns the names of a struct's metrics as Prometheus has them.
    fn names<T: Declared>() -> Vec<String> {
        let figures = T::METRICS.iter().filter(|metric| metric.role != Role::Label);
        figures.map(Metric::name).chain([info_name::<T>()]).collect()
    }

    #[test]
    fn the_board_and_the_alert_rules_name_metrics_that_exist() {
        let known = [
            names::<Status>(),
            names::<DaemonStatus>(),
            names::<GpuStatus>(),
            names::<TenantStatus>(),
            names::<AccountStatus>(),
            names::<RequestStatus>(),
            names::<UnmanagedStatus>(),
        ]
        .concat();
        let board = include_str!("../../../deploy/metrics/board.json");
        assert!(serde_json::from_str::<serde_json::Value>(board).is_ok());
        for text in [board, include_str!("../../../deploy/metrics/rules.yml")] {
            let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
            let named: Vec<&str> = words.filter(|word| word.starts_with("deepres_")).collect();
            assert!(named.len() > 5);
            for name in named {
                let name = name.strip_suffix("_bucket").unwrap_or(name);
                assert!(known.iter().any(|own| own == name), "{name}");
            }
        }
    }

    #[test]
    fn metrics_are_named_after_their_fields_in_base_units_and_no_name_comes_twice() {
        let account = metrics::<AccountStatus>();
        for name in ["deepres_tenant_gpu_seconds", "deepres_tenant_entitled_ratio"] {
            assert!(account.iter().any(|own| own == name), "{account:?}");
        }
        let (gpu, tenant) = (metrics::<GpuStatus>(), metrics::<TenantStatus>());
        assert!(gpu.contains(&"deepres_gpu_handoff_seconds".to_owned()), "{gpu:?}");
        let status = [metrics::<Status>(), metrics::<DaemonStatus>()].concat();
        let mut names = [account, gpu, tenant, status, metrics::<RequestStatus>()].concat();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert_eq!(info_name::<GpuStatus>(), "deepres_gpu_info");
        assert_eq!((Unit::Ns.base(1_234_567.0), Unit::Ppm.base(250_000.0)), (0.001_234, 0.25));
    }
}
