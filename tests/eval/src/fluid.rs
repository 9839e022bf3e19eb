//! The fluid limit, fed with the work of another run as it becomes available there, and with the GPU time that run spends on it: how far is each
//! tenant behind what it would have had of that time? What a policy wastes shows in its throughput, not here.

use crate::device::Tenant;
use crate::engine::Witness;
use crate::policy::owed;
use crate::scenario::Scenario;

/// Work left that is none: less than the rounding of the times.
const NOTHING_NS: f64 = 0.5;
/// With more tenants than this nobody's lag is followed: it would take longer than all the rest.
const MOST_WATCHED: usize = 64;

/// Weighted processor sharing between the owners that have work in the fluid. Guests have no claim there, and so no lag.
#[derive(Debug)]
pub struct Fluid {
    warmup_ns: u64,
    weights: Vec<Option<f64>>,
    left_ns: Vec<f64>,
    served_ns: Vec<f64>,
    lag_ns: Vec<f64>,
    wanted_since_ns: Vec<Option<u64>>,
    wanted_ns: Vec<u64>,
    backlogged: Vec<Tenant>,
    spent_ns: u64,
}

impl Fluid {
    /// The fluid limit of a scenario's tenants, with nothing to do.
    pub fn new(scenario: &Scenario) -> Self {
        let tenants = scenario.tenants.len();
        let weights = scenario.tenants.iter().zip(owed(scenario));
        Self {
            warmup_ns: scenario.warmup_ns,
            weights: weights
                .map(|(tenant, owed)| (!tenant.is_guest()).then_some(f64::from(owed.weight_ppm)))
                .collect(),
            left_ns: vec![0.0; tenants],
            served_ns: vec![0.0; tenants],
            lag_ns: vec![0.0; tenants],
            wanted_since_ns: vec![None; tenants],
            wanted_ns: vec![0; tenants],
            backlogged: Vec::new(),
            spent_ns: 0,
        }
    }

    /// Spends so much GPU time.
    fn spend(&mut self, mut pass_ns: f64) {
        while pass_ns > 0.0 && !self.backlogged.is_empty() {
            let sum: f64 = self.backlogged.iter().filter_map(|tenant| self.weights[*tenant]).sum();
            // Until the first of them has nothing left.
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

impl Witness for Fluid {
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

    fn look(&mut self, used_ns: &[u64]) {
        if self.lag_ns.len() > MOST_WATCHED {
            return;
        }
        let owners = used_ns.iter().zip(&self.weights).filter(|(_, weight)| weight.is_some());
        let spent_ns: u64 = owners.map(|(used_ns, _)| used_ns).sum();
        self.spend((spent_ns - self.spent_ns) as f64);
        self.spent_ns = spent_ns;
        for ((lag_ns, served_ns), used_ns) in self.lag_ns.iter_mut().zip(&self.served_ns).zip(used_ns) {
            *lag_ns = lag_ns.max(served_ns - *used_ns as f64);
        }
    }

    fn rests(&mut self, now_ns: u64, tenant: Tenant) {
        if let Some(since_ns) = self.wanted_since_ns[tenant].take() {
            self.wanted_ns[tenant] += now_ns.saturating_sub(since_ns);
        }
    }

    fn lag_ns(&self, tenant: Tenant) -> u64 {
        self.lag_ns[tenant] as u64
    }

    fn wanted_ns(&self, tenant: Tenant) -> u64 {
        self.wanted_ns[tenant]
    }
}
