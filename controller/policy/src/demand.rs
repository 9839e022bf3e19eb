//! Demand: the part of a GPU's time that a tenant would use alone on the GPU. The arbiter estimates
//! the demand from the tenant's use of the time that it has.
//!
//! Demand is work / (work + voluntary idleness). The time in which the tenant waits for the GPU is
//! in neither term, so the estimate does not depend on the tenant's share. If a tenant gets more
//! time, its demand does not grow.

use core::time::Duration;
use deepres_abi::PPM;

/// The span after which an observation counts half as much.
const SPAN_NS: u64 = Duration::from_secs(10).as_nanos() as u64;

/// A running estimate of a tenant's demand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Demand {
    work_ns: u64,
    idle_ns: u64,
}

impl Demand {
    /// Adds an observation to the estimate: GPU time used, and time in which the tenant wanted
    /// nothing, ns.
    pub fn observe(&mut self, work_ns: u64, idle_ns: u64) {
        self.work_ns = self.work_ns.saturating_add(work_ns);
        self.idle_ns = self.idle_ns.saturating_add(idle_ns);
        while self.work_ns.saturating_add(self.idle_ns) > SPAN_NS {
            self.work_ns /= 2;
            self.idle_ns /= 2;
        }
    }

    /// Returns the estimate, parts per million. Without any observation the demand is the whole
    /// GPU, because a new tenant has come to work.
    pub fn ppm(&self) -> u32 {
        match self.work_ns + self.idle_ns {
            0 => PPM,
            seen_ns => (u128::from(self.work_ns) * u128::from(PPM) / u128::from(seen_ns)) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn demand_is_the_part_of_its_own_time_that_a_tenant_works() {
        let mut demand = Demand::default();
        assert_eq!(demand.ppm(), PPM);
        demand.observe(SECOND, 3 * SECOND);
        assert_eq!(demand.ppm(), PPM / 4);
    }

    #[test]
    fn use_long_ago_counts_little() {
        let mut demand = Demand::default();
        demand.observe(0, 100 * SECOND);
        for _ in 0..60 {
            demand.observe(SECOND, 0);
        }
        assert!(demand.ppm() > PPM / 10 * 9, "{}", demand.ppm());
    }

    /// Times of a review, or any times that a broken clock or meter can give.
    fn seen() -> impl Strategy<Value = (u64, u64)> {
        let ns = || prop_oneof![0..SECOND, Just(0), Just(u64::MAX), any::<u64>()];
        (ns(), ns())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

        #[test]
        fn absurd_times_are_harmless(seen in prop::collection::vec(seen(), 0..40)) {
            let mut demand = Demand::default();
            for (work_ns, idle_ns) in seen {
                demand.observe(work_ns, idle_ns);
                prop_assert!(demand.ppm() <= PPM, "{demand:?}");
            }
            // The absurd times are forgotten once the past counts little.
            for _ in 0..60 {
                demand.observe(SECOND / 4, SECOND / 4 * 3);
            }
            prop_assert!(demand.ppm().abs_diff(PPM / 4) <= PPM / 20, "{demand:?}");
        }
    }
}
