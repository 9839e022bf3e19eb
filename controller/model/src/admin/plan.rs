//! The learned iteration of a tenant and its plans, as `deepres plan show --json` prints them.

use crate::process::ProcessKey;
use serde::{Deserialize, Serialize};

/// The longest excerpt, ms.
pub const MOST_LEARN_MS: u64 = 60_000;

/// A tenant's iteration as the daemon knows it, and the plans that the daemon found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanStatus {
    /// The tenant's name.
    pub tenant: String,
    /// Whether the daemon records the tenant at present.
    pub recording: bool,
    /// The reason for which the daemon knows no iteration. `None` if the daemon knows the
    /// iteration, or is recording.
    pub why_unknown: Option<String>,
    /// The iteration that the daemon learned last.
    pub iteration: Option<IterationStatus>,
    /// The plans for the tenant and others, one for each GPU.
    pub plans: Vec<FoundStatus>,
}

/// A tenant's iteration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IterationStatus {
    /// When the daemon learned the iteration, ns of `CLOCK_MONOTONIC`.
    pub learned_ns: u64,
    /// The process of the recording, in which alone the keys of kernels hold. `None` if the daemon
    /// could not look at the process.
    #[serde(default)]
    pub process: Option<ProcessKey>,
    /// `training`, `inference` or `unknown`.
    pub purpose: String,
    /// The time from the beginning of an iteration to the next one, ns: the median; 0 if no two
    /// iterations follow each other.
    pub period_ns: u64,
    /// The time in an iteration in which none of the tenant's kernels runs, ns.
    pub idle_ns: u64,
    /// The number of whole iterations in the recording.
    pub repeats: usize,
    /// The number of launches in the recording.
    pub launches: usize,
    /// The number of launches that the repetition explains.
    pub explained: usize,
    /// The number of launches that the recording lost.
    pub lost: u64,
    /// The number of kernels of the iteration without a measured time.
    pub unknown_times: usize,
    /// The number of kernels of the iteration without a known width.
    pub unknown_widths: usize,
    /// The kernels, in order of their launches.
    pub kernels: Vec<KernelStatus>,
}

/// A kernel of an iteration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KernelStatus {
    /// The name of the kernel's function, shortened; `None` if it is not known.
    pub name: Option<String>,
    /// The key of the launch. Launches of the same kernel with the same geometry have the same key.
    pub key: u64,
    /// The number of the stream, from 0 in the order of the launches.
    pub stream: usize,
    /// Mean GPU time, ns; `None` if it was not measured.
    pub duration_ns: Option<u64>,
    /// The part of the SMs of the process that the kernel uses in the mean over its waves, percent;
    /// `None` if it is not known.
    pub width_percent: Option<f64>,
    /// The time from the end of the kernel before on this stream to the launch, ns.
    pub pause_ns: u64,
    /// The time before the kernel in which none of the tenant's kernels runs, ns.
    pub idle_ns: u64,
    /// Whether the kernel's stream waits for an event before the kernel. The daemon then takes the
    /// kernel to follow all kernels before it.
    pub joins: bool,
}

/// The result of a search for a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FoundStatus {
    /// The GPU.
    pub gpu: usize,
    /// The tenants of the plan.
    pub tenants: Vec<String>,
    /// The reason for which there is no plan. `None` if there is a plan, or the daemon is still
    /// searching.
    pub why_none: Option<String>,
    /// The plan; `None` while the daemon searches.
    pub plan: Option<PredictionStatus>,
    /// How the tenants follow the plan; `None` if nobody has turned it on.
    #[serde(default)]
    pub deployment: Option<DeploymentStatus>,
}

/// The stage of a plan that an administrator has turned on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The daemon measures the tenants with the plan and without it, by turns.
    Trial,
    /// The plan is better. The tenants follow it, with a pause now and then to measure again.
    Kept,
    /// The tenants do not follow the plan any more.
    Dropped,
}

/// How tenants follow a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeploymentStatus {
    /// The stage.
    pub stage: Stage,
    /// Whether each tenant keeps to the plan at this moment.
    pub follows: bool,
    /// Why the plan was dropped, or why the last pair of stints has no result.
    pub why: Option<String>,
    /// The number of pairs of stints, with the plan and without it, that decide at present.
    pub pairs: usize,
    /// The measured gain in the work of all tenants, as a part of the work without the plan; `None`
    /// before there are enough pairs.
    pub gain: Option<f64>,
    /// The noise of the gain. The plan is better if the gain exceeds the noise.
    pub noise: Option<f64>,
}

/// The figures that the daemon's model of the GPU predicts for a plan. Each time is for one
/// iteration of each tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PredictionStatus {
    /// Whether the plan is worth its while.
    pub pays: bool,
    /// Whether the plan is on trial or kept ([`FoundStatus::deployment`]).
    pub installed: bool,
    /// The gain over the best way without a plan, as a part of its time.
    pub gain: f64,
    /// The gain if the hardware gives its SMs to kernels in order of their launches.
    pub in_order_gain: f64,
    /// The time of one tenant after the other, ns.
    pub sequential_ns: u64,
    /// The time of the best way without a plan, ns.
    pub unplanned_ns: u64,
    /// The time with the plan, ns.
    pub planned_ns: u64,
    /// The least time of any plan, ns.
    pub bound_ns: u64,
    /// The time of the plan's switches, ns.
    pub cost_ns: u64,
    /// The longest wait at a cut, ns.
    pub longest_wait_ns: u64,
    /// The cuts of the plan.
    pub cuts: Vec<CutStatus>,
}

/// A cut: before a kernel, a tenant waits until another tenant has come to a certain place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutStatus {
    /// The tenant that waits.
    pub tenant: String,
    /// The place of the kernel in the iteration of the tenant.
    pub kernel: usize,
    /// The tenant for which the cut waits.
    pub other: String,
    /// The number of kernels of the other tenant that must have finished.
    pub until: usize,
}
