//! Takes over the lags of tenants that the scheduler of the previous daemon knew.

use super::state::{MAX_CREDIT_NS, MAX_DEBT_NS};
use super::{Class, Scheduler, signed};
use crate::TenantId;

impl Scheduler {
    /// Adds a tenant that the previous daemon's scheduler knew. The tenant has no sessions yet.
    /// `lag_ns` is the GPU time that the tenant was owed, ns; negative for a debt.
    pub fn restore(&mut self, id: TenantId, class: Class, weight_ppm: u32, lag_ns: i64, now_ns: u64) {
        self.enter(id, class, now_ns);
        self.set_standing(id, class, weight_ppm);
        let Some(tenant) = self.tenants.get_mut(id) else { return };
        tenant.lag_ns = lag_ns.clamp(-signed(MAX_DEBT_NS), signed(MAX_CREDIT_NS));
        tenant.largest_charge_ns = tenant.lag_ns.min(0).unsigned_abs();
        tenant.present = false;
        // The time without a daemon does not count as a pause of the tenant.
        tenant.stopped_wanting_ns = now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Grant, Phase, Seen};
    use crate::tuning::{ASSUMED_HANDOFF_NS, QuantumBounds, Tuning};
    use deepres_abi::PPM;

    const MS: u64 = 1_000_000;
    const A: TenantId = 1;
    const B: TenantId = 2;

    #[test]
    fn gpu_time_owed_before_a_restart_is_owed_after_it_and_bounded() {
        let lags = [(-300, -300), (60, 60), (0, 0), (-99_000, -1_000), (99_000, 100), (i64::MIN, -1_000)];
        for class in [Class::Fair, Class::BestEffort] {
            for (saved_ms, expected_ms) in lags {
                let mut scheduler = Scheduler::default();
                scheduler.restore(B, class, PPM / 4, 0, 0);
                scheduler.restore(A, class, PPM / 2, saved_ms.saturating_mul(MS as i64), 0);
                assert_eq!(scheduler.lag_ns(A), expected_ms * MS as i64);
                assert_eq!(scheduler.grant(A), Grant::Closed);
            }
        }
    }

    #[test]
    fn a_tenant_in_debt_before_a_restart_goes_after_one_that_was_owed() {
        let tuning = Tuning::derive(ASSUMED_HANDOFF_NS, QuantumBounds::default(), 2);
        let mut scheduler = Scheduler::default();
        scheduler.restore(A, Class::Fair, PPM / 2, -(200 * MS as i64), MS);
        scheduler.restore(B, Class::Fair, PPM / 2, 50 * MS as i64, MS);
        for tenant in [A, B] {
            scheduler.enter(tenant, Class::Fair, 2 * MS);
            scheduler.observe(tenant, 2 * MS, Seen { waiting: true, ..Seen::default() });
        }
        scheduler.decide(2 * MS, &tuning);
        assert_eq!(scheduler.phase(), Phase::Held(B));
    }
}
