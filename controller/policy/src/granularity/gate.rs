//! The wait of one tenant at the cuts of its plan.
//!
//! Each launch of the tenant asks its gate. The gate follows the tenant through its iteration by
//! the keys of the kernels. At a cut, the launch waits until the other tenant has come to the place
//! of the cut, at most for a bound. If a launch is not the one that the iteration has at this
//! place, the tenant has departed from its plan: the gate lets all further launches through at
//! once.

use alloc::vec::Vec;

use super::{Cut, MOST_TENANTS};

/// If this many waits in a row reach the bound, the gate drops the plan, because the other tenants
/// do not keep to it.
pub const MOST_MISSES: u32 = 3;

/// Where a tenant of the plan is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The tenant keeps to its iteration.
    At {
        /// The number of whole iterations that the tenant has finished since the plan began.
        iterations: u64,
        /// The number of kernels of the next iteration that the tenant has finished.
        kernel: usize,
    },
    /// The tenant has ended or departed. No other tenant waits for it.
    Gone,
}

/// The gate's answer to a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The launch goes to the GPU.
    Launch,
    /// The launch waits. The launch asks again when the other tenant has finished a kernel, and at
    /// this time at the latest, ns.
    Wait(u64),
}

/// The gate of a tenant.
#[derive(Debug, Clone)]
pub struct Gate {
    keys: Vec<u64>,
    cuts: Vec<Cut>,
    bound_ns: u64,
    /// The place of the next launch: the iteration, and the kernel in it. `None` if the gate has no
    /// plan, or has dropped it.
    at: Option<(u64, usize)>,
    /// The first cut of this iteration that the tenant has not passed.
    next: usize,
    waits_since_ns: Option<u64>,
    misses: u32,
}

impl Gate {
    /// Returns the gate of a tenant that begins an iteration. `keys` has the keys of the
    /// iteration's kernels, in the order of the launches. The gate ignores the cuts of other
    /// tenants. Even if a launch has several cuts, the launch waits for at most `bound_ns` in all.
    pub fn new(tenant: usize, keys: Vec<u64>, cuts: &[Cut], bound_ns: u64) -> Self {
        let mut cuts: Vec<Cut> = cuts.iter().copied().filter(|cut| cut.tenant == tenant).collect();
        cuts.sort_unstable();
        let at = (!keys.is_empty()).then_some((0, 0));
        Self { keys, cuts, bound_ns, at, next: 0, waits_since_ns: None, misses: 0 }
    }

    /// Returns whether the tenant keeps to its plan.
    pub fn is_planned(&self) -> bool {
        self.at.is_some()
    }

    /// Answers a launch. A launch that waits asks again with the same key.
    pub fn launch(&mut self, now_ns: u64, key: u64, others: &[Place; MOST_TENANTS]) -> Answer {
        let Some((iterations, kernel)) = self.at else { return Answer::Launch };
        if self.keys.get(kernel) != Some(&key) {
            self.at = None;
            return Answer::Launch;
        }
        while let Some(cut) = self.cuts.get(self.next).filter(|cut| cut.kernel <= kernel) {
            if is_there(cut, iterations, others) {
                self.misses = if self.waits_since_ns.is_some() { 0 } else { self.misses };
                self.next += 1;
                continue;
            }
            let ends_ns = self.waits_since_ns.get_or_insert(now_ns).saturating_add(self.bound_ns);
            if now_ns < ends_ns {
                return Answer::Wait(ends_ns);
            }
            self.misses += 1;
            if self.misses >= MOST_MISSES {
                self.at = None;
                return Answer::Launch;
            }
            // The launch has waited up to the bound, so the gate skips the launch's further cuts.
            let passed = self.cuts[self.next..].iter().take_while(|cut| cut.kernel <= kernel).count();
            self.next += passed;
        }
        self.waits_since_ns = None;
        self.at = Some((iterations, kernel + 1));
        if kernel + 1 == self.keys.len() {
            (self.at, self.next) = (Some((iterations + 1, 0)), 0);
        }
        Answer::Launch
    }
}

/// Returns whether the other tenant of a cut has come to the cut's place in this iteration.
fn is_there(cut: &Cut, iterations: u64, others: &[Place; MOST_TENANTS]) -> bool {
    match others.get(cut.other) {
        Some(Place::At { iterations: its, kernel }) => (*its, *kernel) >= (iterations, cut.until),
        Some(Place::Gone) | None => true,
    }
}
