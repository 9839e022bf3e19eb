//! `cargo xtask eval --cluster`: a day of jobs on a Kubernetes cluster, in virtual time.
//!
//! A model of the scheduler and of the kubelets gives the same jobs to each policy ([`Policy`]). On
//! the nodes of deepres, the real code decides: [`deepres_policy::shares`], which the device plugin
//! runs too, and placement below it. The figures say what the API server, the nodes and the jobs
//! bear.
//!
//! | module | job |
//! |---|---|
//! | [`jobs`] | the jobs of the day |
//! | [`node`] | a node with the plugin of deepres |
//! | [`sim`] | scheduler, kubelets and events |

pub mod jobs;
pub mod node;
mod report;
pub mod sim;
#[cfg(test)]
mod tests;

pub use report::print_table;

use serde::Serialize;
use std::time::Duration;

/// A cluster and its jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// The number of nodes.
    pub nodes: usize,
    /// The number of GPUs of a node.
    pub gpus: usize,
    /// The number of jobs that arrive in the day, for each GPU.
    pub jobs_per_gpu: usize,
}

impl Size {
    /// The cluster of docs/scale.md.
    pub const LARGE: Self = Self { nodes: 1_000, gpus: 8, jobs_per_gpu: 30 };
}

/// A way to share the GPUs of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The device plugin of deepres.
    Deepres,
    /// A counted resource without publication: the node's list has all free shares. The plugin
    /// gives a container the fullest GPU with room, and refuses the container if there is none.
    Counted,
    /// HAMi (4707fb0): its scheduler knows each GPU by annotations of nodes and pods. HAMi's
    /// scheduler takes the fullest node with room, and the emptiest GPU of this node: the default
    /// of HAMi's chart.
    Hami,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::Deepres, Self::Counted, Self::Hami];

    /// Returns the policy's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Deepres => "deepres",
            Self::Counted => "counted",
            Self::Hami => "hami",
        }
    }
}

/// The figures of a policy over the day.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The policy's name.
    pub policy: &'static str,
    /// The number of nodes.
    pub nodes: usize,
    /// The number of GPUs of all nodes.
    pub gpus: usize,
    /// The number of jobs that arrived.
    pub jobs: usize,
    /// Writes a second that the API server sees because the GPUs are shared. The figure leaves out
    /// the writes that every pod costs, and the nodes' heartbeats.
    pub api_writes_per_s: f64,
    /// Writes a second in the worst minute.
    pub api_writes_per_s_peak: f64,
    /// Writes for each job.
    pub api_writes_per_job: f64,
    /// Choices of a GPU and publications of a node, an hour.
    pub decisions_per_node_h: f64,
    /// Messages on a node, an hour: between kubelet and plugin, and between plugin and daemon.
    pub messages_per_node_h: f64,
    /// Jobs that a node refused, each time anew.
    pub refused: u64,
    /// Refused pods for which a GPU of the cluster had room.
    pub refused_though_room: u64,
    /// Jobs that the scheduler could place on no node when they came, though a GPU had room.
    pub pending_though_room: u64,
    /// Jobs that waited on their node for room.
    pub waited_on_node: u64,
    /// Jobs that began to wait on their node though a GPU of another node had room.
    pub waited_though_room: u64,
    /// Mean time from a job's arrival to its start, seconds.
    pub wait_s_mean: f64,
    /// 99th percentile of the time from a job's arrival to its start, seconds.
    pub wait_s_p99: f64,
    /// Jobs that had not started at the end of the day.
    pub not_started: usize,
    /// Time of the GPUs that jobs had, as a part of all.
    pub used: f64,
}

/// The time for which the device plugin of deepres publishes freed shares (`Timing` of
/// deepres-k8s).
pub const SURPLUS: Duration = Duration::from_secs(60);

/// Returns the figures of the policies for a day on a cluster. Plugins of deepres publish freed
/// shares for the time `surplus`.
pub fn evaluate(size: Size, surplus: Duration, policies: &[Policy]) -> Vec<Row> {
    let jobs = jobs::draw(size);
    policies.iter().map(|policy| sim::Sim::new(*policy, size, surplus, &jobs).run()).collect()
}
