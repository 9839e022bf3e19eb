//! The ways to share a GPU that are compared.

mod blocks;
mod deadline;
mod deepres;
mod hami;
mod tgs;

use std::fmt;
use std::str::FromStr;

use deepres_controller::policy::entitlement::{Entitlement, entitlements};
use deepres_controller::policy::priority::{Terms, Usage, Weights};

use crate::device::{Device, TimeSlice, Together};
use crate::engine::{self, Run, Witness};
use crate::gate::Absent;
use crate::scenario::Scenario;

/// A way to share a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The daemon's policy.
    Deepres,
    /// Each tenant has an equal part of the GPU, whether it uses it or not: fixed partitions.
    StaticSplit,
    /// What the hardware does without MPS: contexts take turns.
    TimeSlice,
    /// What the hardware does under MPS without limits: kernels run together.
    Mps,
    /// A best-effort job's launches are limited by the rate of the production job's, after the published code of TGS (NSDI 2023).
    TgsLike,
    /// A token bucket for each tenant, filled by utilisation seen, after the published code of HAMi-core.
    HamiLike,
    /// One request at a time, the one that is due first.
    EarliestDeadline,
    /// The fluid limit: weighted processor sharing without any cost.
    Gps,
}

impl Policy {
    /// All of them, ours first.
    pub const ALL: [Self; 8] = [
        Self::Deepres,
        Self::StaticSplit,
        Self::TimeSlice,
        Self::Mps,
        Self::TgsLike,
        Self::HamiLike,
        Self::EarliestDeadline,
        Self::Gps,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Deepres => "deepres",
            Self::StaticSplit => "static-split",
            Self::TimeSlice => "time-slice",
            Self::Mps => "mps",
            Self::TgsLike => "tgs-like",
            Self::HamiLike => "hami-like",
            Self::EarliestDeadline => "earliest-deadline",
            Self::Gps => "gps",
        }
    }

    /// Runs a scenario under it.
    pub fn run(self, scenario: &Scenario, witness: &mut dyn Witness) -> Run {
        let tenants = scenario.tenants.len();
        let gpu = &scenario.gpu;
        let turns = TimeSlice::new(tenants, gpu.slice_ns, gpu.switch_ns);
        let (mut device, mut gate): (Box<dyn Device>, Box<dyn crate::gate::Gate>) = match self {
            // What is in flight of one tenant has drained before the next one's gate opens: the hardware has nothing to switch between but
            // at a hand-off, which the gate accounts for.
            Self::Deepres => (
                Box::new(TimeSlice::new(tenants, gpu.slice_ns, 0)),
                Box::new(deepres::Deepres::new(scenario)),
            ),
            Self::TimeSlice => (Box::new(turns), Box::new(Absent)),
            Self::TgsLike => (Box::new(turns), Box::new(tgs::TgsLike::new(scenario))),
            Self::HamiLike => (Box::new(turns), Box::new(hami::HamiLike::new(scenario))),
            Self::EarliestDeadline => (Box::new(turns), Box::new(deadline::EarliestDeadline::new(tenants))),
            Self::StaticSplit => (together(tenants, equal_parts), Box::new(Absent)),
            Self::Mps => (together(tenants, side_by_side), Box::new(Absent)),
            Self::Gps => {
                let weights = weights(scenario);
                (together(tenants, move |running| by_weight(running, &weights)), Box::new(Absent))
            }
        };
        engine::run(scenario, device.as_mut(), gate.as_mut(), Some(witness))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|policy| policy.name() == text).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|policy| policy.name()).collect();
            format!("`{text}` is not a policy: give one of {}", names.join(", "))
        })
    }
}

/// What each tenant is owed at the beginning, when nothing has been used.
pub fn owed(scenario: &Scenario) -> Vec<Entitlement> {
    let value = |tenant: &crate::scenario::Tenant| {
        Terms::at(0, &tenant.priority(), &Usage::default()).value_ppm(&Weights::default())
    };
    let requests = scenario.tenants.iter().map(|tenant| tenant.request(value(tenant)));
    entitlements(&(0..).zip(requests).collect()).into_values().collect()
}

/// Whether each tenant is a guest, and its weight among its like.
fn weights(scenario: &Scenario) -> Vec<(bool, f64)> {
    let owed = owed(scenario);
    scenario
        .tenants
        .iter()
        .zip(owed)
        .map(|(tenant, owed)| (tenant.is_guest(), f64::from(owed.weight_ppm)))
        .collect()
}

fn together(tenants: usize, rates: impl Fn(&[Option<u32>]) -> Vec<f64> + 'static) -> Box<dyn Device> {
    Box::new(Together::new(tenants, Box::new(rates)))
}

fn equal_parts(running: &[Option<u32>]) -> Vec<f64> {
    let part = 1.0 / running.len() as f64;
    running.iter().map(|sm| if sm.is_some() { part } else { 0.0 }).collect()
}

/// Kernels that fit beside each other on the SMs run at full speed; others slow each other down alike.
fn side_by_side(running: &[Option<u32>]) -> Vec<f64> {
    /// All SMs.
    const WHOLE: u64 = 1_000_000;
    let wanted: u64 = running.iter().flatten().map(|sm_ppm| u64::from(*sm_ppm)).sum();
    let rate = WHOLE as f64 / wanted.max(WHOLE) as f64;
    running.iter().map(|sm| if sm.is_some() { rate } else { 0.0 }).collect()
}

/// Owners by their weights; guests by theirs when no owner has work.
fn by_weight(running: &[Option<u32>], weights: &[(bool, f64)]) -> Vec<f64> {
    let runs = |guests: bool| {
        let of = running.iter().zip(weights);
        of.filter(|(sm, (guest, _))| sm.is_some() && *guest == guests)
            .map(|(_, (_, weight))| weight)
            .sum::<f64>()
    };
    let owners = runs(false);
    let (guests_run, sum) = if owners > 0.0 { (false, owners) } else { (true, runs(true)) };
    let rate = |(sm, (guest, weight)): (&Option<u32>, &(bool, f64))| {
        if sm.is_some() && *guest == guests_run { weight / sum } else { 0.0 }
    };
    running.iter().zip(weights).map(rate).collect()
}
