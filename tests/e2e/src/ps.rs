//! The output of `deepres ps --json` as plain numbers.

use serde_json::Value;

/// The whole output.
#[derive(Debug, Clone, PartialEq)]
pub struct Ps {
    /// Time at which the daemon computed the status, CLOCK_MONOTONIC, ns.
    pub now_ns: u64,
    /// The daemon's process id.
    pub daemon_pid: u32,
    /// All tenants that the daemon lists.
    pub tenants: Vec<Tenant>,
}

/// One tenant. The counters are sums over the GPUs. After its last process has ended, a tenant
/// stays listed for a while, without sessions.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    /// Name of the tenant.
    pub name: String,
    /// The tenant's entitlement on the first of its GPUs, parts per million. 0 while the tenant is
    /// on no GPU.
    pub entitled_ppm: u64,
    /// GPU time by the meter of deepres, ns.
    pub gpu_ns: u64,
    /// Time of copies, ns.
    pub copy_ns: u64,
    /// Kernels that were launched one by one.
    pub kernel_launches: u64,
    /// Graphs that were launched.
    pub graph_launches: u64,
    /// Time spent waiting at the gate, ns.
    pub wait_ns: u64,
    /// Device memory held, bytes.
    pub memory_bytes: u64,
    /// Memory that the tenant asked for and the GPU lacks, bytes. The tenant waits until other
    /// tenants make room.
    pub needed_bytes: u64,
    /// Managed memory that the tenant got beyond its limit, bytes.
    pub oversubscribed_bytes: u64,
    /// The most device memory that the tenant may hold, bytes, if there is a limit.
    pub memory_limit_bytes: Option<u64>,
    /// Allocations that the limit or the driver refused.
    pub refusals: u64,
    /// Number of `deepres run` processes that keep the tenant.
    pub keepers: u64,
    /// The tenant's processes.
    pub sessions: Vec<Session>,
}

/// One process of a tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// Process id.
    pub pid: u32,
    /// Threads that wait at the gate, on all GPUs together.
    pub waiters: u64,
}

impl Ps {
    /// Parses the output of `deepres ps --json`. Panics if the text is not such an output.
    #[track_caller]
    pub fn parse(text: &str) -> Self {
        let root: Value =
            serde_json::from_str(text).unwrap_or_else(|error| panic!("ps --json: {error} in {text}"));
        Self {
            now_ns: number(&root, "now_ns"),
            daemon_pid: number(&root["daemon"], "pid") as u32,
            tenants: array(&root, "tenants").iter().map(Tenant::parse).collect(),
        }
    }

    /// Returns the tenant of this name, or `None` if the output does not list it.
    pub fn find(&self, name: &str) -> Option<&Tenant> {
        self.tenants.iter().find(|tenant| tenant.name == name)
    }

    /// Returns the tenant of this name. Panics if the output does not list it.
    #[track_caller]
    pub fn tenant(&self, name: &str) -> &Tenant {
        self.find(name).unwrap_or_else(|| panic!("no tenant {name} in {self:?}"))
    }
}

impl Session {
    fn parse(value: &Value) -> Self {
        Self {
            pid: number(value, "pid") as u32,
            waiters: array(value, "gpus").iter().map(|gpu| number(gpu, "waiters")).sum(),
        }
    }
}

impl Tenant {
    fn parse(value: &Value) -> Self {
        let gpus = array(value, "gpus");
        let sum = |key: &str| gpus.iter().map(|gpu| number(gpu, key)).sum();
        Self {
            name: value["name"]
                .as_str()
                .unwrap_or_else(|| panic!("a tenant without a name: {value}"))
                .to_owned(),
            // A tenant without sessions has no entitlement.
            entitled_ppm: gpus.first().and_then(|gpu| gpu["entitled_ppm"].as_u64()).unwrap_or(0),
            gpu_ns: sum("gpu_ns"),
            copy_ns: sum("copy_ns"),
            kernel_launches: sum("kernel_launches"),
            graph_launches: sum("graph_launches"),
            wait_ns: sum("wait_ns"),
            memory_bytes: sum("memory_bytes"),
            needed_bytes: sum("needed_bytes"),
            oversubscribed_bytes: sum("oversubscribed_bytes"),
            memory_limit_bytes: value["memory_limit_bytes"].as_u64(),
            refusals: sum("refusals"),
            keepers: number(value, "keepers"),
            sessions: array(value, "sessions").iter().map(Session::parse).collect(),
        }
    }

    /// Returns the process ids of the tenant's sessions.
    pub fn pids(&self) -> Vec<u32> {
        self.sessions.iter().map(|session| session.pid).collect()
    }
}

/// Returns the number that a JSON object has for this key.
#[track_caller]
pub fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no number {key} in {value}"))
}

#[track_caller]
fn array<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("no list {key} in {value}"))
}
