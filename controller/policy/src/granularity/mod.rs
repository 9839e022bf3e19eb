//! Granularity: plans for tenants that repeat themselves and run on a GPU at the same time.
//!
//! A tenant that trains or serves launches the same kernels again and again. One repetition is an
//! *iteration* ([`period`] finds it). A kernel has a *width*: the part of the SMs that its blocks
//! can use. If kernels of several tenants run at once, SMs stay idle while the widths sum to less
//! than all SMs. The idle area is the *residue*. It depends on which kernels meet.
//!
//! A plan has *cuts*. Before the kernel of a cut, the tenant waits until another tenant has come to
//! a certain place of that tenant's iteration. So narrow kernels of one tenant meet wide kernels of
//! another tenant. A cut stops no kernel that runs. A wait costs a switch, because the tenant's
//! next kernel reaches the GPU later.
//!
//! [`Search`] finds cuts. [`device`] says what a plan comes to on a model of the GPU. The area and
//! the longest tenant bound every plan. A plan is worth its while only in mixes in which the model
//! predicts a gain ([`Plan::pays`]). [`gate`] lets a tenant wait for a bounded time. [`trial`]
//! compares the measured work with and without a plan.
//!
//! GACER (arXiv 2304.11745) has the idea of cuts and of the residue. Its text and code are not
//! public, so the search is our own.

mod beam;
mod descent;
pub mod device;
pub mod gate;
mod guide;
pub mod period;
pub mod recorded;
#[cfg(test)]
mod tests;
pub mod trial;

use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

pub use deepres_abi::plan::{Cut, MOST_TENANTS};
use device::{Mix, Sharing, Watch};

/// The least gain that a plan has to predict, as a part of the time without a plan. The model of
/// the GPU is not more exact.
const MARGIN: f64 = 0.02;
/// A plan can help only if the sequential time is at least this many times the bound. Otherwise the
/// GPU is hardly ever idle, even without a plan.
const LEAST_BOUND: f64 = 1.1;

/// A launch of an iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kernel {
    /// The key of the launch. Launches of the same kernel with the same geometry have the same key.
    pub key: u64,
    /// The time of the kernel if it has as many SMs as it can use, ns.
    pub duration_ns: u64,
    /// The part of the SMs that the blocks of the kernel can use, percent. A value above 100, or
    /// one that is not a number, counts as 100.
    pub width_percent: f64,
    /// The stream. Kernels of one stream run one after the other.
    pub stream: u64,
    /// The host's time between the end of the stream's previous kernel and the launch, ns; 0 if the
    /// launch comes before that end.
    pub pause_ns: u64,
    /// Whether the kernel begins only after all earlier kernels of the iteration, on every stream.
    pub joins: bool,
}

/// More than [`MOST_TENANTS`] tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooMany(pub usize);

impl fmt::Display for TooMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a plan is for at most {MOST_TENANTS} tenants, and there are {}", self.0)
    }
}

impl core::error::Error for TooMany {}

/// The settings of a search for a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Search {
    /// The time from the end of a wait to the beginning of the kernel, ns.
    pub switch_ns: u64,
    /// The number of combinations of places from which the search estimates the time that is left.
    pub cells: usize,
    /// The number of schedules that the search follows at once.
    pub beam: usize,
    /// The number of kernels that the search may run in the model to improve a plan.
    pub kernels: usize,
}

impl Default for Search {
    fn default() -> Self {
        // Within a second for three tenants of 500 kernels (`cargo xtask bench policy`).
        Self {
            switch_ns: Duration::from_micros(10).as_nanos() as u64,
            cells: 1_000_000,
            beam: 150,
            kernels: 3_000_000,
        }
    }
}

/// A plan, and what the model of the GPU predicts for it. Each figure is for one iteration of all
/// tenants.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Plan {
    /// The cuts, in order.
    pub cuts: Vec<Cut>,
    /// The time of one tenant after the other, ns.
    pub sequential_ns: f64,
    /// The least time without a plan, ns: under any rule of [`Sharing`], or of one tenant after the
    /// other. The model does not know the hardware's rule.
    pub unplanned_ns: f64,
    /// The time with the plan, its switches included, ns.
    pub planned_ns: f64,
    /// The gain by the plan, as a part of the time without the plan, if kernels share the SMs in
    /// order ([`Sharing::InOrder`]) in both cases.
    pub in_order_gain: f64,
    /// The least time of any plan, ns: the area, or the time of the longest tenant if it is more.
    pub bound_ns: f64,
    /// The idle area, ns of all SMs. The part of it that switches cause is in it.
    pub residue_ns: f64,
    /// The switches of all cuts, ns.
    pub cost_ns: f64,
    /// The longest wait at a cut that the model predicts, ns. This field bounds no wait;
    /// `PlanHead::wait_limit_ns` does.
    pub longest_wait_ns: f64,
}

fn gain(unplanned_ns: f64, planned_ns: f64) -> f64 {
    if unplanned_ns > 0.0 { 1.0 - planned_ns / unplanned_ns } else { 0.0 }
}

impl Plan {
    /// Returns the predicted gain, as a part of the time without a plan.
    pub fn gain(&self) -> f64 {
        gain(self.unplanned_ns, self.planned_ns)
    }

    /// Returns whether the plan pays. A plan pays if the GPU is idle often enough without a plan,
    /// the predicted gain exceeds `MARGIN`, and the plan also gains under [`Sharing::InOrder`].
    pub fn pays(&self) -> bool {
        let has_room = self.sequential_ns >= LEAST_BOUND * self.bound_ns;
        has_room && self.gain() > MARGIN && self.in_order_gain > 0.0
    }
}

/// Watches for the longest wait at a cut, ns.
struct LongestWait(f64);

impl Watch for LongestWait {
    fn began(&mut self, _: usize, _: usize, waited_ns: f64, _: [usize; MOST_TENANTS]) {
        self.0 = self.0.max(waited_ns);
    }
}

impl Search {
    /// Returns the best plan that the search finds for one iteration of each tenant. If no cut
    /// lowers the time, the plan has no cuts.
    ///
    /// The search improves two plans cut by cut: the best schedule of the beam, and the plan
    /// without cuts. The search then takes the better result.
    ///
    /// # Errors
    /// There are more tenants than a plan can have.
    pub fn plan(&self, tenants: &[&[Kernel]]) -> Result<Plan, TooMany> {
        let mix = Mix::new(tenants)?;
        let from = [Vec::new(), beam::cuts(&mix, self)];
        let improved = from.map(|cuts| descent::improve(&mix, self, cuts));
        let [none, found] = improved;
        let cuts = if found.cost_ns < none.cost_ns { found.cuts } else { none.cuts };
        Ok(self.assess(&mix, cuts))
    }

    /// Returns the figures of a plan with these cuts. If cuts wait for each other for ever, the
    /// time is infinite.
    pub fn assess(&self, mix: &Mix, mut cuts: Vec<Cut>) -> Plan {
        cuts.sort_unstable();
        let mut longest = LongestWait(0.0);
        let planned = mix.run_watched(Sharing::Alike, &cuts, self.switch_ns, &mut longest);
        let planned_ns = planned.unwrap_or(f64::INFINITY);
        let sequential_ns = mix.sequential_ns();
        let in_order =
            |cuts: &[Cut]| mix.run(Sharing::InOrder, cuts, self.switch_ns).unwrap_or(f64::INFINITY);
        let unplanned = Sharing::ALL.into_iter().filter_map(|sharing| mix.run(sharing, &[], 0));
        Plan {
            sequential_ns,
            unplanned_ns: unplanned.fold(sequential_ns, f64::min),
            planned_ns,
            in_order_gain: gain(in_order(&[]), in_order(&cuts)),
            bound_ns: mix.area_ns().max(mix.critical_path_ns()),
            residue_ns: planned_ns - mix.area_ns(),
            cost_ns: cuts.len() as f64 * self.switch_ns as f64,
            longest_wait_ns: longest.0,
            cuts,
        }
    }
}
