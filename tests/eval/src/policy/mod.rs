//! The policies that the evaluation compares: ways to share a GPU.

mod blocks;
mod deadline;
pub mod deepres;
mod hami;
mod tgs;

use std::fmt;
use std::str::FromStr;

use deepres_abi::PPM;
use deepres_policy::entitlement::Entitlement;

use crate::device::{self, Device, TimeSlice, Together};
use crate::engine::{self, Run, Witness};
use crate::fluid::Fluid;
use crate::gate::Absent;
use crate::scenario::{Hardware, Scenario, Tenant};
use crate::standings::Standings;

/// A way to share a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The daemon's policy.
    Deepres,
    /// Fixed partitions: each tenant has an equal part of the GPU, used or not.
    StaticSplit,
    /// The hardware's behaviour without MPS: contexts take turns.
    TimeSlice,
    /// The hardware's behaviour under MPS without limits: kernels run together.
    Mps,
    /// The rate of the production job's launches limits a best-effort job's launches, after the
    /// published code of TGS (NSDI 2023).
    TgsLike,
    /// A token bucket for each tenant, filled by the observed utilisation, after the published code
    /// of HAMi-core.
    HamiLike,
    /// One request at a time, the request that is due first.
    EarliestDeadline,
    /// The fluid limit: weighted processor sharing without any cost.
    Gps,
}

impl Policy {
    /// All policies, the policy of deepres first.
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

    /// Returns the policy's name in reports.
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

    /// Runs a scenario under the policy, independently of any other policy.
    pub fn run_alone(self, scenario: &Scenario) -> Run {
        let standings = Standings::at_first(scenario);
        self.run(scenario, &standings, &mut Fluid::new(scenario, &standings))
    }

    /// Runs a scenario of one GPU under the policy. `standings` are the tenants' entitlements over
    /// time, for a policy that uses them.
    pub fn run(self, scenario: &Scenario, standings: &Standings, witness: &mut dyn Witness) -> Run {
        let tenants = scenario.tenants.len();
        let gpu = &scenario.gpu;
        let hardware = || device::of(gpu, tenants, gpu.switch_ns);
        let (mut device, mut gate): (Box<dyn Device>, Box<dyn crate::gate::Gate>) = match self {
            Self::Deepres => {
                let device = device::of(gpu, tenants, deepres::switch_ns(gpu));
                (device, Box::new(deepres::Deepres::new(scenario)))
            }
            Self::TimeSlice => {
                let turns = TimeSlice::new(tenants, gpu.slice_ns, gpu.switch_ns);
                (Box::new(turns), Box::new(Absent))
            }
            Self::TgsLike => (hardware(), Box::new(tgs::TgsLike::new(scenario))),
            Self::HamiLike => (hardware(), Box::new(hami::HamiLike::new(scenario))),
            Self::EarliestDeadline => (hardware(), Box::new(deadline::EarliestDeadline::new(scenario))),
            Self::StaticSplit => {
                let split = Together::new(tenants, Box::new(|_, running| equal_parts(running)));
                (Box::new(split), Box::new(Absent))
            }
            Self::Mps => (Box::new(Together::side_by_side(tenants)), Box::new(Absent)),
            Self::Gps => {
                let guests: Vec<bool> = scenario.tenants.iter().map(Tenant::is_guest).collect();
                let (owed, kind) = (standings.clone(), gpu.device);
                let rates =
                    move |now_ns, running: &[Option<u32>]| by_weight(running, &guests, owed.at(now_ns), kind);
                let device = Together::new(tenants, Box::new(rates)).changing_at(standings.moments_ns());
                (Box::new(device), Box::new(Absent))
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

fn equal_parts(running: &[Option<u32>]) -> Vec<f64> {
    let part = 1.0 / running.len() as f64;
    running.iter().map(|sm| if sm.is_some() { part } else { 0.0 }).collect()
}

/// Returns the speeds in the fluid limit. Owners run by their weights. If no owner has work, guests
/// run by their weights. A kernel that can use only a part of the SMs has its full speed with this
/// part of the GPU. The other tenants divide the rest.
fn by_weight(running: &[Option<u32>], guests: &[bool], owed: &[Entitlement], hardware: Hardware) -> Vec<f64> {
    let weight = |tenant: usize| f64::from(owed[tenant].weight_ppm);
    let part = |tenant: usize| {
        let part_ppm = hardware.part_ppm(running[tenant].unwrap_or(PPM));
        f64::from(part_ppm) / f64::from(PPM)
    };
    let running_of = |of_guests: bool| {
        let runs = |tenant: &usize| running[*tenant].is_some() && guests[*tenant] == of_guests;
        (0..running.len()).filter(runs).collect::<Vec<_>>()
    };
    let owners = running_of(false);
    let mut sharing = if owners.is_empty() { running_of(true) } else { owners };
    let mut speeds = vec![0.0; running.len()];
    let mut room = 1.0;
    loop {
        let sum: f64 = sharing.iter().map(|tenant| weight(*tenant)).sum();
        let has_enough = |tenant: &usize| room * weight(*tenant) / sum >= part(*tenant);
        let Some(place) = sharing.iter().position(has_enough) else {
            for tenant in sharing {
                speeds[tenant] = room * weight(tenant) / sum / part(tenant);
            }
            return speeds;
        };
        let tenant = sharing.remove(place);
        speeds[tenant] = 1.0;
        room -= part(tenant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_policy::entitlement::Rule;

    /// Returns each tenant's part of the GPU time under a policy, percent.
    pub fn used_percent(policy: Policy, tenants: &[(&str, &str, &str)]) -> Vec<f64> {
        let run = policy.run_alone(&Scenario::of("duration_s = 20\nwarmup_s = 2", tenants));
        let used: Vec<f64> = run.outcomes.iter().map(|outcome| outcome.used_ns as f64).collect();
        used.iter().map(|used_ns| used_ns * 100.0 / used.iter().sum::<f64>()).collect()
    }

    const WHOLE: Option<u32> = Some(PPM);

    #[test]
    fn a_static_split_gives_equal_parts_whoever_runs() {
        assert_eq!(equal_parts(&[WHOLE, None, WHOLE, None]), [0.25, 0.0, 0.25, 0.0]);
    }

    #[test]
    fn the_fluid_limit_gives_by_weight_and_guests_what_no_owner_wants() {
        let owed = [300_000, 100_000, 500_000].map(|weight_ppm| Entitlement {
            ppm: 0,
            weight_ppm,
            rule: Rule::Rest,
        });
        let rates =
            |running: &[Option<u32>], hardware| by_weight(running, &[false, false, true], &owed, hardware);
        for hardware in [Hardware::TimeSlice, Hardware::Mps] {
            assert_eq!(rates(&[WHOLE, WHOLE, WHOLE], hardware), [0.75, 0.25, 0.0]);
            assert_eq!(rates(&[None, WHOLE, WHOLE], hardware), [0.0, 1.0, 0.0]);
            assert_eq!(rates(&[None, None, WHOLE], hardware), [0.0, 0.0, 1.0]);
        }
        // The first tenant is owed three quarters of the GPU, and can use half of the SMs.
        let half = Some(PPM / 2);
        assert_eq!(rates(&[half, WHOLE, WHOLE], Hardware::Mps), [1.0, 0.5, 0.0]);
        assert_eq!(rates(&[half, half, WHOLE], Hardware::Mps), [1.0, 1.0, 0.0]);
        assert_eq!(rates(&[WHOLE, half, WHOLE], Hardware::Mps), [0.75, 0.5, 0.0]);
        assert_eq!(rates(&[half, WHOLE, WHOLE], Hardware::TimeSlice), [0.75, 0.25, 0.0]);
    }

    #[test]
    fn the_fluid_limit_follows_what_is_owed_over_time() {
        let steps = "kernels = 1, kernel_us = 1000";
        let scenario = Scenario::of("duration_s = 10", &[("a", "", steps), ("b", "", steps)]);
        let mut standings = Standings::at_first(&scenario);
        let owed = |ppm| Entitlement { ppm, weight_ppm: ppm, rule: Rule::Rest };
        standings.set(5_000_000_000, vec![owed(900_000), owed(100_000)]);
        let run = Policy::Gps.run(&scenario, &standings, &mut Fluid::new(&scenario, &standings));
        let used: Vec<f64> = run.outcomes.iter().map(|outcome| outcome.used_ns as f64 / 1e9).collect();
        // Half of five seconds, and nine tenths of five.
        assert!((used[0] - 7.0).abs() < 0.01 && (used[1] - 3.0).abs() < 0.01, "{used:?}");
        let claims: Vec<f64> = run.outcomes.iter().map(|outcome| outcome.claim_ns as f64 / 1e9).collect();
        assert!((claims[0] - 7.0).abs() < 0.01 && (claims[1] - 3.0).abs() < 0.01, "{claims:?}");
    }
}
