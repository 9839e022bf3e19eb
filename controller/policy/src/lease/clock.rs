//! Virtual time, in which every tenant of a rank is owed the same.
//!
//! A tenant's virtual time grows by the GPU time that the scheduler charges to the tenant, divided
//! by the tenant's weight. The clock of a rank shows the mean of the virtual times of all competing
//! tenants, weighted by their weights. So the clock shows how far each tenant would be in the fluid
//! limit. The distance to the clock is the tenant's lag: GPU time that the tenant is owed.
//!
//! The lags of all competing tenants add up to nothing. A tenant that pauses keeps its lag, and
//! competes with it again later. The tenants that go on divide what it leaves by their weights.

use deepres_abi::PPM;

/// GPU time divided by weight: ns × [`PPM`] / weight.
pub type VirtualTime = i128;

/// Returns the virtual time of this much GPU time at this weight.
pub fn weighted(gpu_ns: i64, weight_ppm: u32) -> VirtualTime {
    VirtualTime::from(gpu_ns) * VirtualTime::from(PPM) / VirtualTime::from(weight_ppm.max(1))
}

/// Returns the GPU time of this much virtual time at this weight, ns.
pub fn gpu_ns(vtime: VirtualTime, weight_ppm: u32) -> i64 {
    let gpu_ns = vtime.saturating_mul(VirtualTime::from(weight_ppm)) / VirtualTime::from(PPM);
    i64::try_from(gpu_ns).unwrap_or(if gpu_ns < 0 { i64::MIN } else { i64::MAX })
}

/// Returns GPU time as a signed number, ns.
pub fn signed(gpu_ns: u64) -> i64 {
    i64::try_from(gpu_ns).unwrap_or(i64::MAX)
}

/// The clock of a rank.
#[derive(Debug, Clone, Copy, Default)]
pub struct Clock {
    /// The time that the clock showed when the last tenant stopped competing.
    stopped: VirtualTime,
    /// The sum of the weights of the competing tenants, and of their weights times virtual times.
    weight: VirtualTime,
    moment: VirtualTime,
}

impl Clock {
    /// Returns the virtual time that the clock shows: the mean of the competing tenants, or the last
    /// one if no tenant competes.
    pub fn now(&self) -> VirtualTime {
        self.mean_after(0)
    }

    /// Returns the time that the clock shows if a competing tenant is charged this much more GPU
    /// time, ns.
    pub fn mean_after(&self, gpu_ns: u64) -> VirtualTime {
        if self.weight == 0 {
            return self.stopped;
        }
        (self.moment + VirtualTime::from(gpu_ns) * VirtualTime::from(PPM)).div_euclid(self.weight)
    }

    /// Returns the GPU time that the competing tenants use until their mean has reached `vtime`, ns.
    /// `gpu_ns` are not charged yet.
    pub fn until_ns(&self, vtime: VirtualTime, gpu_ns: u64) -> u64 {
        let ns =
            (vtime - self.mean_after(gpu_ns)).max(0).saturating_mul(self.weight) / VirtualTime::from(PPM);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Forgets the competing tenants, before [`Self::add`] counts them again.
    pub fn clear(&mut self) {
        *self = Self { stopped: self.now(), ..Self::default() };
    }

    /// Counts a competing tenant.
    pub fn add(&mut self, vtime: VirtualTime, weight_ppm: u32) {
        let weight = VirtualTime::from(weight_ppm.max(1));
        self.weight += weight;
        self.moment += weight * vtime;
    }

    /// Counts a tenant that begins to compete with this lag, ns. Returns its virtual time.
    pub fn join(&mut self, lag_ns: i64, weight_ppm: u32) -> VirtualTime {
        // The tenant moves the mean toward itself, and has this lag then.
        let weight = VirtualTime::from(weight_ppm.max(1));
        let behind = weighted(lag_ns, weight_ppm);
        let behind = if self.weight == 0 { behind } else { behind + behind * weight / self.weight };
        let vtime = self.now() - behind;
        self.add(vtime, weight_ppm);
        vtime
    }

    /// Stops counting a tenant, which competes no more.
    pub fn leave(&mut self, vtime: VirtualTime, weight_ppm: u32) {
        let weight = VirtualTime::from(weight_ppm.max(1));
        self.stopped = self.now();
        self.weight -= weight;
        self.moment -= weight * vtime;
    }

    /// Returns the part of a charge to a tenant that did not compete that the tenant owes to the
    /// others, ns, as if it had competed.
    pub fn owed_ns(&self, gpu_ns: u64, weight_ppm: u32) -> i64 {
        let all = self.weight + VirtualTime::from(weight_ppm.max(1));
        i64::try_from(VirtualTime::from(gpu_ns) * self.weight / all).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_tenant_that_competes_alone_is_where_the_clock_is_and_the_clock_stops_with_it() {
        let mut clock = Clock::default();
        let vtime = clock.join(0, PPM / 4) + weighted(1_000, PPM / 4);
        clock.clear();
        clock.add(vtime, PPM / 4);
        assert_eq!(clock.now(), vtime);
        clock.leave(vtime, PPM / 4);
        assert_eq!(clock.now(), vtime);
        assert_eq!(clock.owed_ns(1_000, PPM / 4), 0, "there is nobody to owe it to");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

        #[test]
        fn a_tenant_competes_with_the_lag_that_it_left_with_and_all_lags_add_up_to_nothing(
            charges in prop::collection::vec((0..1_000_000_000u64, 10_000..PPM), 1..6),
            (joins_ns, weight_ppm) in (-1_000_000_000..1_000_000_000i64, 10_000..PPM),
        ) {
            let mut clock = Clock::default();
            let mut tenants: Vec<_> = charges
                .iter()
                .map(|(gpu_ns, weight_ppm)| (weighted(signed(*gpu_ns), *weight_ppm), *weight_ppm))
                .collect();
            tenants.iter().for_each(|(vtime, weight_ppm)| clock.add(*vtime, *weight_ppm));
            let before = clock.now();
            let vtime = clock.join(joins_ns, weight_ppm);
            let lag_ns = gpu_ns(clock.now() - vtime, weight_ppm);
            prop_assert!((lag_ns - joins_ns).abs() <= 20, "{lag_ns} of {joins_ns}");
            tenants.push((vtime, weight_ppm));
            let lags = tenants.iter().map(|(vtime, weight_ppm)| gpu_ns(clock.now() - vtime, *weight_ppm));
            let sum_ns: i64 = lags.sum();
            prop_assert!(sum_ns.abs() <= 20, "{sum_ns}");
            clock.leave(vtime, weight_ppm);
            prop_assert!((clock.now() - before).abs() <= 1);
        }
    }
}
