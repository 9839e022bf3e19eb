//! The fluid limit of a run: an ideal scheduler that gives every tenant its entitlement at each
//! moment. The fluid limit gets the work of another run when the work becomes available in that
//! run. The fluid limit also gets the GPU time that the other run spends on the work. The
//! comparison shows each tenant's lag behind the GPU time that its entitlements would have given
//! it.
//!
//! The fluid limit does not get the time of hand-offs. With the time of hand-offs, the fluid limit
//! would get further ahead the longer all tenants are backlogged. Such a distance would come from
//! waste and not from unfairness, so no bound on lags could hold. Therefore GPU time that a policy
//! wastes or spends on guests shows in throughput and progress, and not in the lag.

use std::collections::VecDeque;

use deepres_abi::PPM;
use deepres_policy::entitlement::Entitlement;

use crate::device::Tenant;
use crate::engine::Witness;
use crate::scenario::Scenario;
use crate::standings::{MOST_WATCHED, Standings};

/// Remaining work that does not count, because it is below the rounding of the times.
const NOTHING_NS: f64 = 0.5;

/// Weighted processor sharing between the owners that have work in the fluid limit. Guests have no
/// claim to GPU time there, and so no lag.
#[derive(Debug)]
pub struct Fluid<'a> {
    warmup_ns: u64,
    /// Entitlements at each moment, and the moments that are still to come.
    standings: &'a Standings,
    moments_ns: VecDeque<u64>,
    /// The weight of each tenant; `None` for guests.
    weights: Vec<Option<f64>>,
    owed_ppm: Vec<u32>,
    /// Time up to which `claim` has added the owed GPU time to the claims.
    claimed_ns: u64,
    claims_ns: Vec<f64>,
    left_ns: Vec<f64>,
    served_ns: Vec<f64>,
    lag_ns: Vec<f64>,
    wanted_since_ns: Vec<Option<u64>>,
    wanted_ns: Vec<u64>,
    backlogged: Vec<Tenant>,
    spent_ns: u64,
}

impl<'a> Fluid<'a> {
    /// Returns the fluid limit of a scenario's tenants, without any work, with these entitlements
    /// over time.
    pub fn new(scenario: &Scenario, standings: &'a Standings) -> Self {
        let tenants = scenario.tenants.len();
        let mut fluid = Self {
            warmup_ns: scenario.warmup_ns,
            standings,
            moments_ns: standings.moments_ns().collect(),
            weights: scenario.tenants.iter().map(|tenant| (!tenant.is_guest()).then_some(1.0)).collect(),
            owed_ppm: vec![0; tenants],
            claimed_ns: scenario.warmup_ns,
            claims_ns: vec![0.0; tenants],
            left_ns: vec![0.0; tenants],
            served_ns: vec![0.0; tenants],
            lag_ns: vec![0.0; tenants],
            wanted_since_ns: vec![None; tenants],
            wanted_ns: vec![0; tenants],
            backlogged: Vec::new(),
            spent_ns: 0,
        };
        fluid.follow(0);
        fluid
    }

    /// Adopts the entitlements of this moment if they have changed.
    fn follow(&mut self, now_ns: u64) {
        while let Some(at_ns) = self.moments_ns.pop_front_if(|at_ns| *at_ns <= now_ns) {
            self.owe(at_ns, self.standings.at(at_ns));
        }
    }

    /// Adds to each claim the GPU time owed up to now while the tenant wanted the GPU.
    fn claim(&mut self, now_ns: u64) {
        let since_ns = self.claimed_ns;
        self.claimed_ns = since_ns.max(now_ns);
        for (tenant, claim_ns) in self.claims_ns.iter_mut().enumerate() {
            let Some(wanted_ns) = self.wanted_since_ns[tenant] else { continue };
            let span_ns = now_ns.saturating_sub(since_ns.max(wanted_ns)) as f64;
            *claim_ns += span_ns * f64::from(self.owed_ppm[tenant]) / f64::from(PPM);
        }
    }

    /// Spends this much GPU time on the backlogged tenants.
    fn spend(&mut self, mut pass_ns: f64) {
        while pass_ns > 0.0 && !self.backlogged.is_empty() {
            let sum: f64 = self.backlogged.iter().filter_map(|tenant| self.weights[*tenant]).sum();
            // A step ends when the first of the tenants has no work left.
            let mut step_ns = pass_ns;
            for tenant in &self.backlogged {
                step_ns = step_ns.min(self.left_ns[*tenant] * sum / self.weights[*tenant].unwrap_or(sum));
            }
            for tenant in &self.backlogged {
                let served_ns = step_ns * self.weights[*tenant].unwrap_or(0.0) / sum;
                self.left_ns[*tenant] -= served_ns;
                self.served_ns[*tenant] += served_ns;
            }
            let left_ns = &self.left_ns;
            self.backlogged.retain(|tenant| left_ns[*tenant] > NOTHING_NS);
            pass_ns -= step_ns;
        }
    }
}

impl Witness for Fluid<'_> {
    fn available(&mut self, now_ns: u64, tenant: Tenant, work_ns: u64) {
        self.wanted_since_ns[tenant].get_or_insert(now_ns.max(self.warmup_ns));
        if self.weights[tenant].is_none() || self.lag_ns.len() > MOST_WATCHED {
            return;
        }
        self.left_ns[tenant] += work_ns as f64;
        if !self.backlogged.contains(&tenant) {
            self.backlogged.push(tenant);
        }
    }

    fn look(&mut self, now_ns: u64, used_ns: &[u64]) {
        if self.lag_ns.len() > MOST_WATCHED {
            return;
        }
        let owners = used_ns.iter().zip(&self.weights).filter(|(_, weight)| weight.is_some());
        let spent_ns: u64 = owners.map(|(used_ns, _)| used_ns).sum();
        self.spend((spent_ns - self.spent_ns) as f64);
        self.spent_ns = spent_ns;
        self.follow(now_ns);
        for ((lag_ns, served_ns), used_ns) in self.lag_ns.iter_mut().zip(&self.served_ns).zip(used_ns) {
            *lag_ns = lag_ns.max(served_ns - *used_ns as f64);
        }
    }

    fn rests(&mut self, now_ns: u64, tenant: Tenant) {
        let Some(since_ns) = self.wanted_since_ns[tenant] else { return };
        self.wanted_ns[tenant] += now_ns.saturating_sub(since_ns);
        let since_ns = self.claimed_ns.max(since_ns);
        let claimed_ns = now_ns.saturating_sub(since_ns) as f64;
        self.claims_ns[tenant] += claimed_ns * f64::from(self.owed_ppm[tenant]) / f64::from(PPM);
        self.wanted_since_ns[tenant] = None;
    }

    fn lag_ns(&self, tenant: Tenant) -> u64 {
        self.lag_ns[tenant] as u64
    }

    fn wanted_ns(&self, tenant: Tenant) -> u64 {
        self.wanted_ns[tenant]
    }

    fn owe(&mut self, now_ns: u64, owed: &[Entitlement]) {
        self.claim(now_ns);
        for (tenant, owed) in owed.iter().enumerate() {
            self.owed_ppm[tenant] = owed.ppm;
            self.weights[tenant] = self.weights[tenant].map(|_| f64::from(owed.weight_ppm));
        }
    }

    fn claim_ns(&self, tenant: Tenant) -> u64 {
        self.claims_ns[tenant] as u64
    }

    fn owed_ppm(&self, tenant: Tenant) -> u32 {
        self.owed_ppm[tenant]
    }
}
