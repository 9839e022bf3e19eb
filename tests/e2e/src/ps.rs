//! What `deepres ps --json` says, as plain numbers.

use serde_json::Value;

/// The whole answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Ps {
    /// When it was taken, CLOCK_MONOTONIC.
    pub now_ns: u64,
    /// The daemon's process id.
    pub daemon_pid: u32,
    /// The tenants there are.
    pub tenants: Vec<Tenant>,
}

/// One tenant; its counters are sums over the GPUs. A tenant stays listed a while after its last process, without sessions.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// The share it is entitled to on the first of its GPUs, parts per million; 0 while it is on none.
    pub entitled_ppm: u64,
    /// GPU time by deepres' own meter.
    pub gpu_ns: u64,
    /// Time of copies.
    pub copy_ns: u64,
    /// Kernels launched one by one.
    pub kernel_launches: u64,
    /// Graphs launched.
    pub graph_launches: u64,
    /// Time spent waiting at the gate.
    pub wait_ns: u64,
    /// Device memory held.
    pub memory_bytes: u64,
    /// What it waits for others to make room for.
    pub needed_bytes: u64,
    /// Managed memory that it was given beyond its limit.
    pub oversubscribed_bytes: u64,
    /// The most it may hold, if there is a limit.
    pub memory_limit_bytes: Option<u64>,
    /// Allocations refused, by the limit or by the driver.
    pub refusals: u64,
    /// The `deepres run`s that keep it.
    pub keepers: u64,
    /// Its processes.
    pub sessions: Vec<Session>,
}

/// One process of a tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// Its process id.
    pub pid: u32,
    /// Threads that wait, on all GPUs.
    pub waiters: u64,
}

impl Ps {
    /// Reads the answer.
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

    /// The tenant of this name, if it is there.
    pub fn find(&self, name: &str) -> Option<&Tenant> {
        self.tenants.iter().find(|tenant| tenant.name == name)
    }

    /// The tenant of this name.
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
            // None is owed where nobody is left.
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

    /// The process ids of its sessions.
    pub fn pids(&self) -> Vec<u32> {
        self.sessions.iter().map(|session| session.pid).collect()
    }
}

#[track_caller]
fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no number {key} in {value}"))
}

#[track_caller]
fn array<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("no list {key} in {value}"))
}
