//! The lags of tenants under packing: the area that each tenant is owed beside the tenants that
//! want the GPU at the same time.
//!
//! An area is a part of the SMs, times a time. The virtual time is that of EEVDF, as in
//! [`crate::lease::clock`]. The clock grows by the area in use, divided by the sum of the weights
//! of the tenants that want the GPU. If a tenant forgets a debt, the other tenants bear this debt.
//! So the lags of waiting tenants stay comparable, even if another tenant long has SMs that they
//! cannot use.

use alloc::vec::Vec;

/// The greatest debt of a tenant, and the greatest lag over a pause, ns of the whole GPU. A longer
/// memory would let a tenant that comes back shut out the others.
const MOST_NS: f64 = 100e6;

/// The least weight, so that every tenant is owed something.
const LEAST_WEIGHT: f64 = 1e-6;

fn positive(weight: f64) -> f64 {
    weight.max(LEAST_WEIGHT)
}

/// The account of one tenant.
#[derive(Debug, Clone, Copy)]
struct Account {
    weight: f64,
    wants: bool,
    /// The virtual time up to which the tenant was served, while it wants the GPU.
    served: f64,
    /// The lag, while the tenant does not want the GPU, ns of the whole GPU.
    kept_ns: f64,
}

/// The lags of the tenants of one GPU. The caller numbers the tenants from 0.
#[derive(Debug, Clone, Default)]
pub struct Lags {
    accounts: Vec<Account>,
    /// The virtual time.
    now: f64,
    /// The weights of the tenants that want the GPU, added up.
    weights: f64,
}

impl Lags {
    /// Adds a tenant, which does not want the GPU yet, and returns its number. The weight is what
    /// the tenant is owed: its share, or the area that its runs need. A weight below the least
    /// counts as the least.
    pub fn enter(&mut self, weight: f64) -> usize {
        self.accounts.push(Account { weight: positive(weight), wants: false, served: 0.0, kept_ns: 0.0 });
        self.accounts.len() - 1
    }

    /// Sets the weight of the tenant. The tenant's lag stays the same area.
    ///
    /// # Panics
    /// No tenant has this number.
    pub fn set_weight(&mut self, tenant: usize, weight: f64) {
        let wants = self.accounts[tenant].wants;
        self.set_wants(tenant, false);
        self.accounts[tenant].weight = positive(weight);
        self.set_wants(tenant, wants);
    }

    /// Sets whether the tenant wants the GPU.
    ///
    /// # Panics
    /// No tenant has this number.
    pub fn set_wants(&mut self, tenant: usize, wants: bool) {
        let lag_ns = self.lag_ns(tenant);
        let account = &mut self.accounts[tenant];
        if account.wants == wants {
            return;
        }
        account.wants = wants;
        account.kept_ns = lag_ns.clamp(-MOST_NS, MOST_NS);
        account.served = self.now - account.kept_ns / account.weight;
        self.weights += if wants { account.weight } else { -account.weight };
    }

    /// Charges the tenant for an area, ns of the whole GPU.
    ///
    /// # Panics
    /// No tenant has this number.
    pub fn charge(&mut self, tenant: usize, area_ns: f64) {
        let account = &mut self.accounts[tenant];
        if !account.wants {
            account.kept_ns = (account.kept_ns - area_ns).max(-MOST_NS);
            return;
        }
        account.served += area_ns / account.weight;
        let weight = account.weight;
        self.now += area_ns / self.weights;
        let forgotten_ns = -MOST_NS - self.lag_ns(tenant);
        if forgotten_ns > 0.0 {
            let others = self.weights - weight;
            // A smaller sum is a rounding error: no other tenant wants the GPU.
            if others >= LEAST_WEIGHT / 2.0 {
                self.now -= forgotten_ns / others;
            }
            self.accounts[tenant].served = self.now + MOST_NS / weight;
        }
    }

    /// Returns the area that the tenant is owed, ns of the whole GPU; negative if the tenant had
    /// more than it was owed.
    ///
    /// # Panics
    /// No tenant has this number.
    pub fn lag_ns(&self, tenant: usize) -> f64 {
        let account = &self.accounts[tenant];
        if account.wants { account.weight * (self.now - account.served) } else { account.kept_ns }
    }
}
