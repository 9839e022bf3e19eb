//! The priority value of a tenant, after the paper DeepRes. The value is higher if the deadline is
//! nearer, the job larger, or the purpose more critical.
//!
//! `p = w_d · urgency + w_s · size + w_c · criticality`, each term from 0 to 1. The value is the
//! weight of tenants that asked for no share, and of best-effort tenants among themselves.

use core::time::Duration;
use deepres_abi::PPM;

pub use deepres_abi::criticality::{Criticality, CriticalityError};

/// The least priority value, parts per million of the highest, so that every tenant has some part.
pub const MIN_VALUE_PPM: u32 = PPM / 100;
/// The slack at which the urgency of a deadline is one half.
const HALF_URGENT: Duration = Duration::from_secs(600);
/// The GPU time of a job at which its size is one half.
const HALF_SIZE: Duration = Duration::from_secs(3600);

/// The declarations about a tenant's job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Priority {
    /// The job's criticality.
    pub criticality: Criticality,
    /// The time by which the job has to be done, ns of the monotonic clock.
    pub deadline_ns: Option<u64>,
    /// GPU time that the whole job takes, ns.
    pub size_ns: Option<u64>,
}

/// The observed use of a GPU by a tenant's job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// GPU time used so far, ns.
    pub used_ns: u64,
    /// Demand: the part of the time in which the job would use the GPU if it had the GPU alone,
    /// parts per million. Demand does not depend on the tenant's share.
    pub demand_ppm: u32,
    /// The part of the GPU's memory that the tenant holds, parts per million.
    pub memory_ppm: u32,
}

/// The weights of the three terms of a priority value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// The weight of urgency.
    pub urgency: f64,
    /// The weight of size.
    pub size: f64,
    /// The weight of criticality.
    pub criticality: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Self { urgency: 0.4, size: 0.2, criticality: 0.4 }
    }
}

/// The terms of a priority value, each from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Terms {
    /// The urgency: 0 without a deadline, 1 when no time is left.
    pub urgency: f64,
    /// The job's size, declared or observed.
    pub size: f64,
    /// The criticality, as declared.
    pub criticality: f64,
}

impl Terms {
    /// Returns the terms of a priority value at `now_ns`, by the declarations and the use of the
    /// job.
    pub fn at(now_ns: u64, priority: &Priority, usage: &Usage) -> Self {
        Self {
            urgency: priority.deadline_ns.map_or(0.0, |deadline_ns| {
                let remaining_ns =
                    priority.size_ns.map_or(0, |size_ns| size_ns.saturating_sub(usage.used_ns));
                let slack_ns = deadline_ns.saturating_sub(now_ns).saturating_sub(remaining_ns);
                1.0 / (1.0 + slack_ns as f64 / HALF_URGENT.as_nanos() as f64)
            }),
            size: match priority.size_ns {
                Some(size_ns) => {
                    let size_ns = size_ns as f64;
                    size_ns / (size_ns + HALF_SIZE.as_nanos() as f64)
                }
                // The observed size: half from the demand for GPU time, half from the memory.
                None => f64::midpoint(part(usage.demand_ppm), part(usage.memory_ppm)),
            },
            criticality: part(priority.criticality.ppm()),
        }
    }

    /// Returns the priority value, parts per million of the highest; never 0.
    pub fn value_ppm(&self, weights: &Weights) -> u32 {
        let terms = [
            (weights.urgency, self.urgency),
            (weights.size, self.size),
            (weights.criticality, self.criticality),
        ];
        // An invalid weight or term counts as zero. Otherwise a mistake could make a job the most
        // urgent of all.
        let sound = |number: f64| if number.is_finite() { number.max(0.0) } else { 0.0 };
        // Divides by the largest weight, so that no sum is infinite.
        let largest = terms.iter().map(|(weight, _)| sound(*weight)).fold(0.0, f64::max);
        if largest == 0.0 {
            return MIN_VALUE_PPM;
        }
        let (value, whole) = terms.iter().fold((0.0, 0.0), |(value, whole), (weight, term)| {
            let weight = sound(*weight) / largest;
            (value + weight * sound(*term).min(1.0), whole + weight)
        });
        // Adds a half instead of rounding, because `core` cannot round.
        ((value / whole * f64::from(PPM) + 0.5) as u32).clamp(MIN_VALUE_PPM, PPM)
    }
}

fn part(ppm: u32) -> f64 {
    f64::from(ppm.min(PPM)) / f64::from(PPM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINUTE_NS: u64 = 60_000_000_000;

    fn value(now_ns: u64, priority: &Priority, usage: &Usage) -> u32 {
        Terms::at(now_ns, priority, usage).value_ppm(&Weights::default())
    }

    #[test]
    fn a_deadline_grows_urgent_as_the_slack_that_the_work_left_allows_runs_out() {
        let priority = Priority {
            deadline_ns: Some(60 * MINUTE_NS),
            size_ns: Some(20 * MINUTE_NS),
            ..Priority::default()
        };
        let urgency =
            |now, used| Terms::at(now, &priority, &Usage { used_ns: used, ..Usage::default() }).urgency;
        assert_eq!(urgency(30 * MINUTE_NS, 0), 0.5, "ten minutes of slack");
        assert_eq!(urgency(40 * MINUTE_NS, 0), 1.0, "no slack");
        assert_eq!(urgency(40 * MINUTE_NS, 10 * MINUTE_NS), 0.5, "half of it is done");
        assert_eq!(urgency(61 * MINUTE_NS, 0), 1.0, "past it");
        assert_eq!(Terms::at(0, &Priority::default(), &Usage::default()).urgency, 0.0);
    }

    #[test]
    fn an_observed_size_counts_time_wanted_and_memory_held() {
        let usage = Usage { demand_ppm: PPM, memory_ppm: PPM / 2, ..Usage::default() };
        assert_eq!(Terms::at(0, &Priority::default(), &usage).size, 0.75);
        let declared = Priority { size_ns: Some(60 * MINUTE_NS), ..Priority::default() };
        assert_eq!(Terms::at(0, &declared, &usage).size, 0.5);
    }

    #[test]
    fn weights_and_terms_that_are_no_numbers_weigh_nothing() {
        let terms = Terms { urgency: 1.0, size: 1.0, criticality: 1.0 };
        for weight in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            let weights = Weights { urgency: weight, size: weight, criticality: weight };
            assert_eq!(terms.value_ppm(&weights), MIN_VALUE_PPM, "{weight}");
            let weights = Weights { urgency: weight, ..Weights::default() };
            let only_others = Weights { urgency: 0.0, ..Weights::default() };
            let terms = Terms { criticality: 0.5, ..terms };
            assert_eq!(terms.value_ppm(&weights), terms.value_ppm(&only_others), "{weight}");
            let unknown = Terms { urgency: weight, ..terms };
            let none = Terms { urgency: 0.0, ..terms };
            assert_eq!(
                unknown.value_ppm(&Weights::default()),
                none.value_ppm(&Weights::default()),
                "{weight}"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

        #[test]
        fn any_terms_and_weights_make_a_value_within_its_bounds(numbers in prop::array::uniform6(any::<f64>())) {
            let [urgency, size, criticality, a, b, c] = numbers;
            let value = Terms { urgency, size, criticality }.value_ppm(&Weights { urgency: a, size: b, criticality: c });
            prop_assert!((MIN_VALUE_PPM..=PPM).contains(&value), "{value}");
        }

        #[test]
        fn more_urgent_larger_or_more_critical_is_never_less(
            now in any::<u64>(), deadline in any::<u64>(), size in any::<u64>(), used in any::<u64>(),
            criticality in 0..=PPM, more in 0..=PPM
        ) {
            let priority = Priority {
                criticality: Criticality::from_ppm(criticality), deadline_ns: Some(deadline), size_ns: Some(size),
            };
            let usage = Usage { used_ns: used, ..Usage::default() };
            let before = value(now, &priority, &usage);
            prop_assert!((1..=PPM).contains(&before));
            let sooner = Priority { deadline_ns: Some(deadline.saturating_sub(u64::from(more) * 1_000_000)), ..priority };
            let larger = Priority { size_ns: Some(size.saturating_add(u64::from(more) * 1_000_000)), ..priority };
            let weightier = Priority { criticality: Criticality::from_ppm(criticality.saturating_add(more)), ..priority };
            for raised in [sooner, larger, weightier] {
                prop_assert!(value(now, &raised, &usage) >= before);
            }
        }
    }
}
