//! Two gangs: jobs with a rank on each of several GPUs. A step of a rank is a kernel of its own, a
//! kernel that spins for all ranks' kernels, and a wait for both. A test and `cargo xtask bench
//! gangs` measure the gangs.

use std::time::Duration;

use simgpu_engine::truth::{ProcessGpu, Snapshot};

/// The names of the gangs.
pub const NAMES: [&str; 2] = ["one", "two"];
/// The C client that a rank runs.
pub const CLIENT: &str = "ring";
/// Time after which all ranks are connected, and the daemon knows that each gang uses all GPUs.
pub const SETTLED: Duration = Duration::from_secs(2);
/// The greatest distance of a share of a GPU from the entitlement, percentage points.
pub const ALLOWED_POINTS: f64 = 3.0;
/// The least part of the steps under plain time-slicing that both gangs do together.
pub const LEAST_OF_TIME_SLICING: f64 = 0.9;
/// The number of kernels that a rank launches in a step.
const KERNELS_PER_STEP: u64 = 2;

/// Returns the configuration of the simulated GPUs, with the times of the ranks' kernels.
pub fn simgpu_toml(gpus: usize) -> String {
    format!(
        "gpus = {gpus}\nkernel = [\n    {{ name = \"local\", ns = 1000000 }},\n    \
         {{ name = \"ring_*\", ns = 200000, meets = {gpus} }},\n]\n"
    )
}

/// Returns the arguments of [`CLIENT`] for a rank of a gang.
pub fn rank(gang: &str, gpus: usize, rank: usize) -> [String; 8] {
    let [kernel, local, of, number] = ["--kernel", "--local", "--gpus", "--rank"].map(str::to_owned);
    let (ring, gpus, rank) = (format!("ring_{gang}"), gpus.to_string(), rank.to_string());
    [kernel, ring, local, "local".to_owned(), of, gpus, number, rank]
}

/// The work of both gangs over some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// The steps of each gang. All ranks of a gang do the same steps.
    pub steps: [u64; 2],
    /// The kernel time of each gang on each GPU, ns.
    pub kernels_ns: Vec<[u64; 2]>,
    /// The length of the time, ns.
    pub elapsed_ns: u64,
}

impl Done {
    /// Returns no work on this number of GPUs.
    pub fn nothing(gpus: usize) -> Self {
        Self { steps: [0; 2], kernels_ns: vec![[0; 2]; gpus], elapsed_ns: 0 }
    }

    /// Returns the work between two records of the simulated GPUs. `pids` are the processes of each
    /// gang.
    pub fn between(first: &Snapshot, last: &Snapshot, pids: &[Vec<u32>; 2]) -> Self {
        let sum = |record: &Snapshot, pids: &[u32], gpu: usize, of: fn(&ProcessGpu) -> u64| {
            let theirs = record.processes.iter().filter(|process| pids.contains(&process.pid));
            theirs.filter_map(|process| process.gpus.get(gpu)).map(of).sum::<u64>()
        };
        let of_each = |gpu: usize, of: fn(&ProcessGpu) -> u64| {
            pids.each_ref().map(|pids| sum(last, pids, gpu, of).saturating_sub(sum(first, pids, gpu, of)))
        };
        Self {
            steps: of_each(0, |used| used.kernels).map(|kernels| kernels / KERNELS_PER_STEP),
            kernels_ns: (0..last.gpus.len()).map(|gpu| of_each(gpu, |used| used.kernel_busy_ns)).collect(),
            elapsed_ns: last.at_ns - first.at_ns,
        }
    }

    /// Adds the work of another time on as many GPUs.
    pub fn add(&mut self, other: &Self) {
        self.elapsed_ns += other.elapsed_ns;
        let sums = self.kernels_ns.iter_mut().chain([&mut self.steps]);
        for (sums, values) in sums.zip(other.kernels_ns.iter().chain([&other.steps])) {
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
    }

    /// Returns the steps of each gang for each second.
    pub fn steps_per_s(&self) -> [f64; 2] {
        let seconds = Duration::from_nanos(self.elapsed_ns).as_secs_f64();
        self.steps.map(|steps| steps as f64 / seconds)
    }

    /// Returns the largest distance of a gang's share of a GPU from its entitlement, percentage
    /// points. `shares` are the entitlements, percent.
    pub fn error_points(&self, shares: [u32; 2]) -> f64 {
        let of_gpu = |kernels_ns: &[u64; 2]| {
            let sum_ns = kernels_ns.iter().sum::<u64>().max(1) as f64;
            // Both gangs have the same error, with opposite signs.
            (kernels_ns[0] as f64 * 100.0 / sum_ns - f64::from(shares[0])).abs()
        };
        self.kernels_ns.iter().map(of_gpu).fold(0.0, f64::max)
    }
}
