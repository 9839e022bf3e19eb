//! Computes the time that a GPU needs for work that takes parts of its SMs.
//!
//! A *configuration* is a set of runs whose parts sum to at most all SMs. The least time for given
//! work is a linear program over all configurations, with a variable for the time of each. Column
//! generation solves it (P. Gilmore, R. Gomory, Operations Research 9, 1961): the prices of the
//! tenants' work pick the next configuration, as a knapsack.
//!
//! A schedule that can stop a run between two kernels reaches this time. So the figure is a bound
//! for schedules without such stops.

use alloc::vec;
use alloc::vec::Vec;

use super::knapsack::{Knapsack, WHOLE_PERCENT};

/// The work of one tenant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    /// The part of the SMs that one run takes, percent.
    pub part_percent: usize,
    /// The number of runs of the tenant that may go on at once.
    pub instances: usize,
    /// The time of all runs, one after the other, in any unit.
    pub time: f64,
}

/// Rounding errors of prices are smaller than this.
const NEGLIGIBLE: f64 = 1e-9;
/// The program stops after this many configurations for each tenant. The result is then an upper
/// bound of the least time.
const CONFIGURATIONS_PER_TENANT: usize = 32;

/// Returns the least time in which a GPU can do all work, in the unit of the work.
///
/// Work without time needs none. A tenant without an instance counts as if it had one.
pub fn least_time(work: &[Work]) -> f64 {
    let work: Vec<Work> = work.iter().copied().filter(|work| work.time > 0.0).collect();
    let size = work.len();
    let part = |work: &Work| work.part_percent.clamp(1, WHOLE_PERCENT);
    let at_once = |work: &Work| work.instances.clamp(1, WHOLE_PERCENT / part(work));
    // The first configurations have the runs of one tenant each.
    let mut inverse = vec![0.0; size * size];
    let mut times = Vec::with_capacity(size);
    for (row, work) in work.iter().enumerate() {
        let together = at_once(work) as f64;
        inverse[row * size + row] = 1.0 / together;
        times.push(work.time / together);
    }
    let (mut knapsack, mut items, mut chosen) = (Knapsack::default(), Vec::new(), Vec::new());
    let mut counts = vec![0.0; size];
    for _ in 0..size * CONFIGURATIONS_PER_TENANT {
        items.clear();
        for (column, work) in work.iter().enumerate() {
            let price: f64 = inverse.chunks_exact(size).map(|row| row[column]).sum();
            items.extend((0..at_once(work)).map(|_| (part(work), price, column)));
        }
        let priced: Vec<(usize, f64)> = items.iter().map(|&(part, price, _)| (part, price)).collect();
        chosen.clear();
        if knapsack.choose(WHOLE_PERCENT, &priced, &mut chosen) <= 1.0 + NEGLIGIBLE {
            break;
        }
        counts.fill(0.0);
        for &item in &chosen {
            counts[items[item].2] += 1.0;
        }
        let enters: Vec<f64> = inverse
            .chunks_exact(size)
            .map(|row| row.iter().zip(&counts).map(|(one, count)| one * count).sum())
            .collect();
        let ratio = |row: usize| times[row] / enters[row];
        let leaves = (0..size)
            .filter(|&row| enters[row] > NEGLIGIBLE)
            .min_by(|&one, &other| ratio(one).total_cmp(&ratio(other)));
        let Some(leaves) = leaves else { break };
        let pivot = enters[leaves];
        let of_pivot: Vec<f64> = inverse[leaves * size..][..size].iter().map(|one| one / pivot).collect();
        let time = times[leaves] / pivot;
        for (row, &factor) in enters.iter().enumerate() {
            if row == leaves {
                inverse[row * size..][..size].copy_from_slice(&of_pivot);
                times[row] = time;
            } else if factor != 0.0 {
                for (one, pivot) in inverse[row * size..][..size].iter_mut().zip(&of_pivot) {
                    *one -= factor * pivot;
                }
                times[row] -= factor * time;
            }
        }
    }
    times.iter().sum()
}
