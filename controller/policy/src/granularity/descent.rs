//! Improves a plan cut by cut: coordinate descent.

use alloc::vec::Vec;

use super::device::{Mix, Sharing, Watch};
use super::{Cut, MOST_TENANTS, Search};

/// The search lets a new cut wait for at most this many further kernels of the other tenant.
const MOST_AHEAD: usize = 4;

/// A plan, and its cost.
pub(super) struct Improved {
    pub cuts: Vec<Cut>,
    /// The time of the plan plus one switch for each cut, ns. So a cut that gains less than a
    /// switch does not lower the cost.
    pub cost_ns: f64,
}

/// The places of all tenants at the moment at which a kernel begins.
struct Places {
    tenant: usize,
    kernel: usize,
    of_all: [usize; MOST_TENANTS],
}

/// Watches for the beginnings of kernels.
struct Beginnings(Vec<Places>);

impl Watch for Beginnings {
    fn began(&mut self, tenant: usize, kernel: usize, _: f64, of_all: [usize; MOST_TENANTS]) {
        self.0.push(Places { tenant, kernel, of_all });
    }
}

fn cost_ns(mix: &Mix, search: &Search, cuts: &[Cut]) -> f64 {
    let run = mix.run(Sharing::Alike, cuts, search.switch_ns);
    run.unwrap_or(f64::INFINITY) + cuts.len() as f64 * search.switch_ns as f64
}

/// Improves a plan until no change of one cut helps, or until the model has run as many kernels as
/// the search allows. A change removes a cut, adds a cut, or moves the end of a cut's wait.
pub(super) fn improve(mix: &Mix, search: &Search, cuts: Vec<Cut>) -> Improved {
    let mut best = Improved { cost_ns: cost_ns(mix, search, &cuts), cuts };
    if best.cost_ns == f64::INFINITY {
        best = Improved { cost_ns: cost_ns(mix, search, &[]), cuts: Vec::new() };
    }
    let mut tries = search.kernels / mix.kernels().max(1);
    let mut try_this = |best: &mut Improved, cuts: Vec<Cut>| {
        tries = tries.checked_sub(1)?;
        let cost_ns = cost_ns(mix, search, &cuts);
        let is_better = cost_ns < best.cost_ns;
        if is_better {
            *best = Improved { cuts, cost_ns };
        }
        Some(is_better)
    };
    let mut improves = || {
        let mut any = false;
        for at in (0..best.cuts.len()).rev() {
            let mut fewer = best.cuts.clone();
            fewer.remove(at);
            any |= try_this(&mut best, fewer)?;
        }
        // In the order in which kernels begin, because a change of a cut moves all later kernels.
        let mut at = 0;
        let mut beginnings = Vec::new();
        let mut is_stale = true;
        loop {
            if is_stale {
                let mut watch = Beginnings(Vec::new());
                mix.run_watched(Sharing::Alike, &best.cuts, search.switch_ns, &mut watch);
                beginnings = watch.0;
                is_stale = false;
            }
            let Some(Places { tenant, kernel, of_all }) = beginnings.get(at) else { break };
            at += 1;
            for other in (0..mix.tenants.len()).filter(|other| other != tenant) {
                let is_this = |cut: &Cut| (cut.tenant, cut.kernel, cut.other) == (*tenant, *kernel, other);
                let without: Vec<Cut> = best.cuts.iter().copied().filter(|cut| !is_this(cut)).collect();
                let has_cut = without.len() < best.cuts.len();
                // The search also tries an earlier end of an existing cut.
                let from = of_all[other].saturating_sub(if has_cut { MOST_AHEAD / 2 } else { 0 });
                for until in
                    (from + 1..=from + MOST_AHEAD).take_while(|until| *until <= mix.tenants[other].len())
                {
                    let cut = Cut { tenant: *tenant, kernel: *kernel, other, until };
                    let mut with = without.clone();
                    with.insert(with.partition_point(|one| *one < cut), cut);
                    is_stale |= try_this(&mut best, with)?;
                }
            }
            any |= is_stale;
        }
        Some(any)
    };
    while improves() == Some(true) {}
    best
}
