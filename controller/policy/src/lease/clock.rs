//! Virtual time, in which every tenant of a rank is owed the same.
//!
//! A tenant's virtual time grows by the GPU time that the scheduler charges to the tenant, divided
//! by the tenant's weight. The clock of a rank stands at the mean virtual time of all competing
//! tenants, weighted by their weights. So the clock shows how far each tenant would be in the fluid
//! limit, and the distance to the clock is the tenant's lag: GPU time that the tenant is owed. The
//! lags of all competing tenants add up to nothing.

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
    now: VirtualTime,
    /// The sum of the weights of the competing tenants, and of their weights times virtual times.
    weight: VirtualTime,
    moment: VirtualTime,
}

impl Clock {
    /// Returns the virtual time that the clock shows.
    pub fn now(&self) -> VirtualTime {
        self.now
    }

    /// Returns the clock as it is if a competing tenant is charged this much more GPU time, ns.
    pub fn after(&self, gpu_ns: u64) -> VirtualTime {
        self.now + VirtualTime::from(gpu_ns) * VirtualTime::from(PPM) / self.weight.max(1)
    }

    /// Forgets the competing tenants, before [`Self::add`] counts them again.
    pub fn clear(&mut self) {
        (self.weight, self.moment) = (0, 0);
    }

    /// Counts a competing tenant.
    pub fn add(&mut self, vtime: VirtualTime, weight_ppm: u32) {
        let weight = VirtualTime::from(weight_ppm.max(1));
        self.weight += weight;
        self.moment += weight * vtime;
    }

    /// Counts a tenant no more, which stops competing.
    pub fn remove(&mut self, vtime: VirtualTime, weight_ppm: u32) {
        let weight = VirtualTime::from(weight_ppm.max(1));
        self.weight -= weight;
        self.moment -= weight * vtime;
    }

    /// Sets the clock to the mean of the counted tenants. Without any, the clock stands still.
    pub fn set(&mut self) {
        if self.weight > 0 {
            self.now = self.moment.div_euclid(self.weight);
        }
    }

    /// Returns the virtual time at which a tenant begins to compete whose lag is to be `lag_ns`
    /// then. The tenant moves the mean, so its distance to the present mean is larger.
    pub fn place(&self, lag_ns: i64, weight_ppm: u32) -> VirtualTime {
        let lag = weighted(lag_ns, weight_ppm);
        match self.weight {
            0 => self.now - lag,
            others => self.now - lag - lag * VirtualTime::from(weight_ppm.max(1)) / others,
        }
    }

    /// Returns the part of a charge that a tenant owes to the competing tenants, ns. The tenant had
    /// `gpu_ns` and did not compete itself.
    pub fn owed_for(&self, gpu_ns: u64, weight_ppm: u32) -> i64 {
        let weight = VirtualTime::from(weight_ppm.max(1));
        let owed = VirtualTime::from(gpu_ns) * self.weight / (self.weight + weight);
        i64::try_from(owed).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn whoever_competes_alone_owes_and_is_owed_nothing() {
        let mut clock = Clock::default();
        clock.add(1_234_567, 3);
        clock.set();
        assert_eq!(clock.now(), 1_234_567);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

        #[test]
        fn a_lag_is_the_same_after_a_pause_and_all_lags_add_up_to_nothing(
            others in prop::collection::vec((0..10_000_000_000i64, 1_000..PPM), 1..6),
            lag_ns in -1_000_000_000..1_000_000_000i64,
            weight_ppm in 1_000..PPM,
        ) {
            let mut clock = Clock::default();
            for (vtime, weight_ppm) in &others {
                clock.add(VirtualTime::from(*vtime), *weight_ppm);
            }
            clock.set();
            let vtime = clock.place(lag_ns, weight_ppm);
            clock.add(vtime, weight_ppm);
            clock.set();
            prop_assert!((gpu_ns(clock.now() - vtime, weight_ppm) - lag_ns).abs() <= 2);
            let all = others.iter().map(|(vtime, weight)| (VirtualTime::from(*vtime), *weight));
            let sum: i64 = all.chain([(vtime, weight_ppm)]).map(|(v, w)| gpu_ns(clock.now() - v, w)).sum();
            prop_assert!(sum.abs() <= 10, "{sum}");
        }
    }
}
