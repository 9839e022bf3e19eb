//! The tenants' entitlements over time. Priorities change, and the evaluation compares every policy
//! with the entitlements at each moment.

use deepres_policy::entitlement::{Entitlement, entitlements};
use deepres_policy::priority::{Terms, Usage};

use crate::scenario::Scenario;

/// The most tenants for which the evaluation computes entitlements over time and lags. For more
/// tenants, this computation would take longer than the rest of the evaluation.
pub const MOST_WATCHED: usize = 64;

/// Each tenant's entitlement from each moment of a change on.
#[derive(Debug, Clone)]
pub struct Standings(Vec<(u64, Vec<Entitlement>)>);

impl Standings {
    /// Returns entitlements that stay constant over time: the entitlements at the beginning, before
    /// any tenant has used GPU time.
    pub fn at_first(scenario: &Scenario) -> Self {
        let value = |tenant: &crate::scenario::Tenant| {
            Terms::at(0, &tenant.priority(), &Usage::default()).value_ppm(&scenario.policy.weights())
        };
        let requests = scenario.tenants.iter().map(|tenant| tenant.request(value(tenant)));
        Self(vec![(0, entitlements(&(0..).zip(requests).collect()).into_values().collect())])
    }

    /// Sets the entitlements from `now_ns` on.
    pub fn set(&mut self, now_ns: u64, owed: Vec<Entitlement>) {
        match self.0.last_mut() {
            Some((_, before)) if *before == owed => {}
            Some((at_ns, before)) if *at_ns == now_ns => *before = owed,
            _ => self.0.push((now_ns, owed)),
        }
    }

    /// Returns the entitlements at a moment.
    pub fn at(&self, now_ns: u64) -> &[Entitlement] {
        let after = self.0.partition_point(|(at_ns, _)| *at_ns <= now_ns);
        self.0.get(after.saturating_sub(1)).map_or(&[], |(_, owed)| owed)
    }

    /// Returns the moments of changes, in order.
    pub fn moments_ns(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|(at_ns, _)| *at_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_policy::entitlement::Rule;

    fn owed(ppm: u32) -> Vec<Entitlement> {
        vec![Entitlement { ppm, weight_ppm: ppm, rule: Rule::Rest }]
    }

    #[test]
    fn the_entitlement_is_that_of_the_last_change() {
        let mut standings = Standings(vec![(0, owed(10))]);
        standings.set(0, owed(20));
        standings.set(5, owed(20));
        standings.set(7, owed(30));
        assert_eq!(standings.moments_ns().collect::<Vec<_>>(), [0, 7]);
        assert_eq!([0, 6, 7, 100].map(|now_ns| standings.at(now_ns)[0].ppm), [20, 20, 30, 30]);
    }
}
