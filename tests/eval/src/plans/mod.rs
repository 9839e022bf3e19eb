//! `cargo xtask eval --plans`: plans for tenants that repeat themselves, beside ways to share a GPU
//! without a plan.
//!
//! A mix has one iteration of each of two or three models ([`models`]). All figures are times until
//! the last iteration ends. The model of the GPU is the one that the search of plans uses.

pub mod bars;
pub mod models;
mod page;
mod report;
#[cfg(test)]
mod tests;

use anyhow::Result;
use deepres_policy::granularity::device::{Mix, Sharing};
use deepres_policy::granularity::{Cut, Kernel, Search};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use serde::Serialize;

use models::Model;
pub use page::{HEADING, page};
pub use report::print_table;

/// Nanoseconds in a millisecond.
const MS: f64 = 1e6;
/// The greatest difference between a kernel's time and the time that the plan knows, for
/// [`Row::gain_of_wrong_times`].
const WRONG_PERCENT: u64 = 10;
/// The long search, with a hundred times the effort: it shows what the usual search misses.
const OFFLINE: Search = Search { cells: 40_000_000, beam: 4_000, kernels: 300_000_000, switch_ns: 0 };

/// The figures of a mix. Times are for one iteration of each model, ms.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The names of the models.
    pub mix: String,
    /// One model after the other.
    pub sequential_ms: f64,
    /// All at once, and kernels slow down alike: the ideal of streams in one process.
    pub streams_ms: f64,
    /// All at once, and the kernel that was launched first has all SMs that it can use.
    pub mps_ms: f64,
    /// The kernels of one model at a time, which takes turns with the others after each kernel. The
    /// turns cost nothing.
    pub temporal_ms: f64,
    /// The time under deepres: the plan's time if the plan is installed, else the time with all
    /// models at once.
    pub planned_ms: f64,
    /// Like `planned_ms`, but kernels share the SMs as for `mps_ms`.
    pub planned_mps_ms: f64,
    /// The least time of any schedule: the area of all kernels, or the longest model.
    pub bound_ms: f64,
    /// Whether the plan pays.
    pub installed: bool,
    /// The best plan that the search found, installed or not.
    pub found_ms: f64,
    /// The gain of the plan over `mps_ms`, if the SMs are shared in the same way under the plan.
    pub gain_beside_mps: f64,
    /// The gain of the plan over all at once, if each kernel takes up to a tenth more or less time
    /// than the plan knows.
    pub gain_of_wrong_times: f64,
    /// The predicted gain over the best way without a plan, as a part of its time.
    pub gain: f64,
    /// The number of cuts.
    pub cuts: usize,
    /// The idle area of the plan.
    pub residue_ms: f64,
    /// The switches of the cuts.
    pub cost_ms: f64,
    /// The longest wait at a cut.
    pub longest_wait_ms: f64,
    /// The best plan of the long search, if it was asked for.
    pub offline_ms: Option<f64>,
}

impl Row {
    /// Returns the best time without a plan, ms.
    pub fn unplanned_ms(&self) -> f64 {
        self.sequential_ms.min(self.streams_ms).min(self.mps_ms).min(self.temporal_ms)
    }

    /// Returns the bound, as a part of what deepres does.
    pub fn of_bound(&self) -> f64 {
        self.bound_of(self.planned_ms)
    }

    /// Returns the bound, as a part of what deepres does if kernels share the SMs as for `mps_ms`.
    pub fn of_bound_by_mps(&self) -> f64 {
        self.bound_of(self.planned_mps_ms)
    }

    fn bound_of(&self, time_ms: f64) -> f64 {
        if time_ms > 0.0 { self.bound_ms / time_ms } else { 1.0 }
    }
}

/// Returns the gain of cuts over all at once, if each kernel takes up to a tenth more or less time.
fn gain_of_wrong_times(tenants: &[&[Kernel]], cuts: &[Cut], switch_ns: u64) -> Result<f64> {
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let mut wrong = |kernel: &Kernel| {
        let percent = random.next_u64() % (2 * WRONG_PERCENT + 1) + 100 - WRONG_PERCENT;
        Kernel { duration_ns: kernel.duration_ns * percent / 100, ..*kernel }
    };
    let wrong: Vec<Vec<Kernel>> =
        tenants.iter().map(|kernels| kernels.iter().map(&mut wrong).collect()).collect();
    let mix = Mix::new(&wrong.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
    let time_ns = |cuts: &[Cut]| mix.run(Sharing::Alike, cuts, switch_ns).unwrap_or(f64::INFINITY);
    Ok(1.0 - time_ns(cuts) / time_ns(&[]))
}

/// Returns the name of a mix.
pub fn name(models: &[&Model]) -> String {
    models.iter().map(|model| model.name.as_str()).collect::<Vec<_>>().join("+")
}

/// The settings of the evaluation of mixes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Evaluation {
    /// The search of plans.
    pub search: Search,
    /// Whether to run the long search, too.
    pub is_offline: bool,
}

impl Evaluation {
    /// Returns the figures of a mix.
    ///
    /// # Errors
    /// The mix has more models than a plan can have.
    pub fn row(&self, models: &[&Model]) -> Result<Row> {
        let tenants: Vec<&[Kernel]> = models.iter().map(|model| model.kernels.as_slice()).collect();
        let mix = Mix::new(&tenants)?;
        let plan = self.search.plan(&tenants)?;
        let switch_ns = self.search.switch_ns;
        let without = |sharing| mix.run(sharing, &[], 0).unwrap_or(f64::INFINITY) / MS;
        let [streams_ms, mps_ms] = [Sharing::Alike, Sharing::InOrder].map(without);
        let found_ms = plan.planned_ns / MS;
        let offline = self.is_offline.then(|| Search { switch_ns, ..OFFLINE }.plan(&tenants)).transpose()?;
        Ok(Row {
            mix: name(models),
            sequential_ms: plan.sequential_ns / MS,
            streams_ms,
            mps_ms,
            temporal_ms: without(Sharing::Turns),
            planned_ms: if plan.pays() { found_ms } else { streams_ms },
            planned_mps_ms: if plan.pays() { (1.0 - plan.in_order_gain) * mps_ms } else { mps_ms },
            bound_ms: plan.bound_ns / MS,
            installed: plan.pays(),
            found_ms,
            gain_beside_mps: plan.in_order_gain,
            gain_of_wrong_times: gain_of_wrong_times(&tenants, &plan.cuts, switch_ns)?,
            gain: plan.gain(),
            cuts: plan.cuts.len(),
            residue_ms: plan.residue_ns / MS,
            cost_ms: plan.cost_ns / MS,
            longest_wait_ms: plan.longest_wait_ns / MS,
            offline_ms: offline.map(|plan| plan.planned_ns / MS),
        })
    }
}
