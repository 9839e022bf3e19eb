//! Virtual time, and the clock of each kind of tenants (owners, and guests).
//!
//! A tenant's virtual time grows by the GPU time that the scheduler charges to the tenant, divided
//! by the tenant's weight. The clock of a kind grows by the charges of all competing tenants of the
//! kind, divided by the sum of their weights. So the clock shows the virtual time that each of
//! these tenants would have in the fluid limit. The distance to the clock is the tenant's lag: GPU
//! time that the tenant is owed.
//!
//! A tenant that pauses keeps its lag, and later competes with this lag again. During the pause,
//! the scheduler moves the lag towards zero, and divides the change among the competing tenants.
//! The lags of the competing tenants need not add up to zero. So the bound of eligibility is the
//! larger of two: the clock, and the *mean* virtual time of the competing tenants, weighted by
//! their weights.

use deepres_abi::PPM;

/// GPU time divided by weight: ns × [`PPM`] / weight.
pub type VirtualTime = i128;

/// Returns `gpu_ns` of GPU time as virtual time, for a tenant of this weight.
pub fn weighted(gpu_ns: i64, weight_ppm: u32) -> VirtualTime {
    VirtualTime::from(gpu_ns) * VirtualTime::from(PPM) / VirtualTime::from(weight_ppm.max(1))
}

/// Returns the virtual time `vtime` as GPU time, for a tenant of this weight, ns.
pub fn gpu_ns(vtime: VirtualTime, weight_ppm: u32) -> i64 {
    let gpu_ns = vtime.saturating_mul(VirtualTime::from(weight_ppm)) / VirtualTime::from(PPM);
    i64::try_from(gpu_ns).unwrap_or(if gpu_ns < 0 { i64::MIN } else { i64::MAX })
}

/// Returns the number as a signed number, or the largest signed number.
pub fn signed(gpu_ns: u64) -> i64 {
    i64::try_from(gpu_ns).unwrap_or(i64::MAX)
}

/// The clock of owners, or of guests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Clock {
    now: VirtualTime,
    /// The sum of the weights of the competing tenants.
    weight: VirtualTime,
    /// The sum of each weight times the tenant's virtual time.
    moment: VirtualTime,
    /// Number of the competing tenants.
    competing: usize,
}

impl Clock {
    /// Returns the virtual time that the clock shows.
    pub fn now(&self) -> VirtualTime {
        self.now
    }

    /// Returns the mean virtual time of the competing tenants after a further charge of `gpu_ns` to
    /// one of them. Without competing tenants, returns the time that the clock shows.
    fn mean_after(&self, gpu_ns: u64) -> VirtualTime {
        if self.weight == 0 {
            return self.now;
        }
        (self.moment + VirtualTime::from(gpu_ns) * VirtualTime::from(PPM)).div_euclid(self.weight)
    }

    /// Returns the bound of eligibility after a further charge of `gpu_ns` to a competing tenant.
    /// The bound is the larger of the clock and the mean virtual time of the competing tenants.
    pub fn eligible_after(&self, gpu_ns: u64) -> VirtualTime {
        let more = VirtualTime::from(gpu_ns) * VirtualTime::from(PPM) / self.weight.max(1);
        self.mean_after(gpu_ns).max(self.now + more)
    }

    /// Returns the GPU time that the competing tenants must use until the bound of eligibility
    /// reaches `vtime`, ns. `gpu_ns` of their use are not charged yet.
    pub fn until_ns(&self, vtime: VirtualTime, gpu_ns: u64) -> u64 {
        let ns =
            (vtime - self.eligible_after(gpu_ns)).max(0).saturating_mul(self.weight) / VirtualTime::from(PPM);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Returns whether exactly one tenant competes.
    pub fn has_one(&self) -> bool {
        self.competing == 1
    }

    /// Forgets the competing tenants, before [`Self::add`] counts them again.
    pub fn clear(&mut self) {
        *self = Self { now: self.now, ..Self::default() };
    }

    /// Adds a competing tenant to the sums.
    pub fn add(&mut self, vtime: VirtualTime, weight_ppm: u32) {
        let weight = VirtualTime::from(weight_ppm.max(1));
        self.weight += weight;
        self.moment += weight * vtime;
        self.competing += 1;
    }

    /// Removes a tenant that no longer competes from the sums.
    pub fn remove(&mut self, vtime: VirtualTime, weight_ppm: u32) {
        let weight = VirtualTime::from(weight_ppm.max(1));
        self.weight -= weight;
        self.moment -= weight * vtime;
        self.competing -= 1;
    }

    /// Lets the clock grow by charges to competing tenants. `charged` is the sum of these charges,
    /// as virtual time times weight.
    pub fn run(&mut self, charged: VirtualTime) {
        if self.weight > 0 {
            self.now += charged / self.weight;
        }
    }

    /// Divides the change of another tenant's lag among the competing tenants, ns. The other tenant
    /// lost this lag or, if negative, this debt. The lags of the competing tenants together do not
    /// fall below zero by this.
    pub fn give(&mut self, gpu_ns: i64) {
        if self.weight > 0 {
            let given = self.now + VirtualTime::from(gpu_ns) * VirtualTime::from(PPM) / self.weight;
            self.now = given.max(self.now.min(self.mean_after(0)));
        }
    }

    /// Returns the part of `gpu_ns` that a tenant of this weight would be owed if it competed too,
    /// ns.
    pub fn part_ns(&self, gpu_ns: u64, weight_ppm: u32) -> i64 {
        let weight = VirtualTime::from(weight_ppm.max(1));
        i64::try_from(VirtualTime::from(gpu_ns) * weight / (self.weight + weight)).unwrap_or(i64::MAX)
    }

    /// Lets the clock grow by a charge to a tenant that did not compete, as if the tenant had
    /// competed. Returns the part of the charge that the tenant owes to the competing tenants, ns.
    pub fn run_beside(&mut self, gpu_ns: u64, weight_ppm: u32) -> i64 {
        let gpu = VirtualTime::from(gpu_ns);
        let all = self.weight + VirtualTime::from(weight_ppm.max(1));
        self.now += gpu * VirtualTime::from(PPM) / all;
        i64::try_from(gpu * self.weight / all).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_tenant_that_competes_alone_runs_with_the_clock() {
        let mut clock = Clock::default();
        clock.add(0, PPM / 4);
        let charge = weighted(1_000, PPM / 4);
        clock.run(charge * VirtualTime::from(PPM / 4));
        assert_eq!(clock.now(), charge);
        assert_eq!(Clock::default().run_beside(1_000, PPM / 4), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

        #[test]
        fn charges_are_owed_to_the_others_by_their_weights_and_all_lags_add_up_to_nothing(
            charges in prop::collection::vec((0..1_000_000_000u64, 1_000..PPM), 1..6),
            beside in (0..1_000_000_000u64, 1_000..PPM),
        ) {
            let mut clock = Clock::default();
            let mut charged = 0;
            for (gpu_ns, weight_ppm) in &charges {
                let vtime = weighted(signed(*gpu_ns), *weight_ppm);
                clock.add(vtime, *weight_ppm);
                charged += vtime * VirtualTime::from(*weight_ppm);
            }
            clock.run(charged);
            let owes_ns = clock.run_beside(beside.0, beside.1);
            let lags = charges.iter().map(|(ns, weight)| gpu_ns(clock.now() - weighted(signed(*ns), *weight), *weight));
            let sum_ns: i64 = lags.sum();
            prop_assert!((sum_ns - owes_ns).abs() <= 20, "{sum_ns} of {owes_ns}");
        }
    }
}
