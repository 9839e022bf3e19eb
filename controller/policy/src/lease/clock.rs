//! Virtual time, in which every tenant of a rank is owed the same.
//!
//! A tenant's virtual time grows by the GPU time that the scheduler charges to the tenant, divided
//! by the tenant's weight. The clock of a rank grows by the charges of all competing tenants, divided
//! by the sum of their weights. So the clock shows how far each tenant would be in the fluid limit.
//! The distance to the clock is the tenant's lag: GPU time that the tenant is owed.
//!
//! A tenant that pauses keeps its lag, and competes with it again later. What the scheduler forgets
//! of the lag meanwhile is divided among the competing tenants, so that the clock does not run away
//! from them. The lags of the competing tenants need not add up to nothing. So a tenant is eligible
//! up to the clock, and up to the *mean* virtual time of the competing tenants, weighted by their
//! weights.

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
    /// Number of the competing tenants.
    competing: usize,
}

impl Clock {
    /// Returns the virtual time that the clock shows.
    pub fn now(&self) -> VirtualTime {
        self.now
    }

    /// Returns the mean virtual time of the competing tenants if one of them is charged this much
    /// more GPU time, ns. Without competing tenants, returns the time that the clock shows.
    fn mean_after(&self, gpu_ns: u64) -> VirtualTime {
        if self.weight == 0 {
            return self.now;
        }
        (self.moment + VirtualTime::from(gpu_ns) * VirtualTime::from(PPM)).div_euclid(self.weight)
    }

    /// Returns up to which virtual time a tenant is eligible if a competing tenant is charged this
    /// much more GPU time, ns: up to the clock, or to the mean where tenants that pause are owed
    /// GPU time.
    pub fn eligible_after(&self, gpu_ns: u64) -> VirtualTime {
        let more = VirtualTime::from(gpu_ns) * VirtualTime::from(PPM) / self.weight.max(1);
        self.mean_after(gpu_ns).max(self.now + more)
    }

    /// Returns the GPU time that the competing tenants use until their mean has reached `vtime`, ns.
    /// `gpu_ns` are not charged yet.
    pub fn until_ns(&self, vtime: VirtualTime, gpu_ns: u64) -> u64 {
        let ns =
            (vtime - self.eligible_after(gpu_ns)).max(0).saturating_mul(self.weight) / VirtualTime::from(PPM);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Returns whether one tenant alone competes.
    pub fn has_one(&self) -> bool {
        self.competing == 1
    }

    /// Forgets the competing tenants, before [`Self::add`] counts them again.
    pub fn clear(&mut self) {
        *self = Self { now: self.now, ..Self::default() };
    }

    /// Counts a competing tenant.
    pub fn add(&mut self, vtime: VirtualTime, weight_ppm: u32) {
        let weight = VirtualTime::from(weight_ppm.max(1));
        self.weight += weight;
        self.moment += weight * vtime;
        self.competing += 1;
    }

    /// Stops counting a tenant, which competes no more.
    pub fn remove(&mut self, vtime: VirtualTime, weight_ppm: u32) {
        let weight = VirtualTime::from(weight_ppm.max(1));
        self.weight -= weight;
        self.moment -= weight * vtime;
        self.competing -= 1;
    }

    /// Lets the clock grow by charges of competing tenants: the sum of weight times virtual time.
    pub fn run(&mut self, charged: VirtualTime) {
        if self.weight > 0 {
            self.now += charged / self.weight;
        }
    }

    /// Divides GPU time among the competing tenants, ns: what another tenant is owed no more, or what
    /// it owes no more if the time is negative. The competing tenants lose at most what they are owed
    /// together.
    pub fn give(&mut self, gpu_ns: i64) {
        if self.weight > 0 {
            let given = self.now + VirtualTime::from(gpu_ns) * VirtualTime::from(PPM) / self.weight;
            self.now = given.max(self.now.min(self.mean_after(0)));
        }
    }

    /// Returns the part of this GPU time that a tenant would be owed if it competed too, ns.
    pub fn part_ns(&self, gpu_ns: u64, weight_ppm: u32) -> i64 {
        let weight = VirtualTime::from(weight_ppm.max(1));
        i64::try_from(VirtualTime::from(gpu_ns) * weight / (self.weight + weight)).unwrap_or(i64::MAX)
    }

    /// Lets the clock grow by a charge to a tenant that did not compete, as if it had. Returns the
    /// part of the charge that the tenant owes to the others, ns.
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
