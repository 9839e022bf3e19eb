//! Packing: which tenants run on a GPU at the same time, each on a part of its SMs.
//!
//! With MPS, kernels of several processes run at once. The part of the SMs that a tenant's kernels
//! can use is the tenant's *part*. A *run* is the work for one batch of requests. This module gives
//! the GPU to a set of runs whose parts sum to at most all SMs. A run keeps its place until a
//! decision takes the place away, between two kernels.
//!
//! **The one rule**, in time and space: the GPU goes to the set of runs of greatest *urgency*. The
//! urgency of a run is the sum of:
//!
//! - the greater of two figures. One is the time that the run still needs, as a part of the time
//!   until the run is due. The other is the time by which the run's tenant is behind the other
//!   tenants ([`lags`]), in runs;
//! - its part of the SMs, so that the set fills the GPU;
//! - a little, if the run is in the present set, because each change of the set costs a hand-off.
//!
//! If each part is 100 %, each set has one run. The rule then does the same as the rule of
//! [`crate::lease`]: lag and deadline decide. A run keeps its place if another run is only slightly
//! more urgent. A large run does not starve, because the lag of its tenant grows until the run is
//! worth more than all smaller runs together. The rule has two exceptions, for runs with deadlines:
//!
//! - A run without slack gets a place before all other runs, the earliest deadline first.
//! - If the tenants owe more work than the GPU can do, the GPU accepts new runs while all accepted
//!   runs can be in time. Runs of the tenants that are furthest behind come first. The other runs
//!   get the remaining places. So the GPU wastes little time on runs that will be late.
//!
//! [`profile`] has the time of a run by part and batch. [`points`] chooses the part and the batch
//! of each tenant. [`capacity`] computes how much work a GPU can do at all.
//!
//! The lease core does not use this module yet. The tenants of the lease core have lags and due
//! requests, as the runs of this module have. Between two calls, [`Packer::choose`] keeps only the
//! needs of accepted runs.

pub mod capacity;
pub mod knapsack;
pub mod lags;
pub mod points;
pub mod profile;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use core::time::Duration;

use capacity::{Work, least_time};
use knapsack::{Knapsack, WHOLE_PERCENT};

/// The time after which the caller decides again, if nothing happens before, ns. Urgencies change
/// with time.
pub const LOOK_NS: u64 = Duration::from_micros(500).as_nanos() as u64;

/// The worth of all SMs, in runs by which a tenant is behind. With a lower value the sets leave
/// SMs empty, and with a higher one runs are late (`eval --packing`: 0.3 to 3 differ by 2 %).
const WORTH_OF_ALL: f64 = 1.0;
/// The worth of a place that a run has, in the same unit. This worth bounds the number of
/// hand-offs.
const WORTH_OF_PLACE: f64 = 0.05;
/// If a run would be late by at most its length divided by this number, the run still counts as in
/// time. The reason: the caller's estimates are wrong by some percent.
const LENGTHS_LATE: u64 = 8;
/// The factor on the urgency of a run whose deadline the GPU does not try to meet.
const WORTH_TO_LATE: f64 = 1e-3;
/// The part of the time that accepted runs need at most under overload.
const MOST_NEEDED: f64 = 1.0;

/// A run that goes on, waits, or could begin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// The part of the SMs that the run takes, percent. 0 counts as 1, and more than 100 as 100.
    pub part_percent: usize,
    /// The time of the whole run on this part, ns.
    pub length_ns: u64,
    /// The time that the run still needs on this part, ns.
    pub left_ns: u64,
    /// When the run is due, on the caller's clock, ns.
    pub due_ns: Option<u64>,
    /// The time on its part by which the tenant of the run is behind the other tenants, ns.
    pub behind_ns: f64,
    /// Whether the run has a place now.
    pub holds: bool,
    /// Whether an earlier decision accepted the run ([`Packer::accepts`]); `None` for a new run.
    pub accepted: Option<bool>,
}

impl Run {
    fn part(&self) -> usize {
        self.part_percent.clamp(1, WHOLE_PERCENT)
    }

    /// Returns the time by which the tenant is behind, in runs.
    fn behind(&self) -> f64 {
        self.behind_ns / self.length_ns.max(1) as f64
    }

    /// Returns the time that the run still needs, as a part of the time until its deadline. Returns
    /// `None` for a run that has no deadline or cannot be in time.
    fn need(&self, now_ns: u64) -> Option<f64> {
        let until_ns = self.due_ns?.saturating_sub(now_ns);
        let late_ns = self.left_ns.saturating_sub(until_ns);
        (late_ns <= self.length_ns / LENGTHS_LATE).then(|| self.left_ns as f64 / until_ns.max(1) as f64)
    }
}

/// The need of an accepted run up to its deadline: a part of the SMs, for a part of the time.
#[derive(Debug, Clone, Copy)]
struct Reserved {
    work: Work,
    due_ns: u64,
}

/// Chooses the set of runs that have the GPU.
#[derive(Debug, Clone, Default)]
pub struct Packer {
    knapsack: Knapsack,
    /// For each run, the time that the run still needs, as a part of the time until its deadline.
    /// `None` if the GPU does not try to meet the deadline.
    needs: Vec<Option<f64>>,
    /// The needs of accepted runs whose deadlines have not passed, even of runs that have ended.
    /// The tenant of such a run brings its next run only at the deadline.
    reserved: Vec<Reserved>,
    work: Vec<Work>,
    order: Vec<usize>,
    items: Vec<(usize, f64)>,
    /// The run of each item.
    runs: Vec<usize>,
    chosen: Vec<usize>,
}

impl Packer {
    /// Returns the positions of the runs that have the GPU from now on. The parts of the chosen
    /// runs sum to at most all SMs. The cost of a change of places is `handoff_ns`. The GPU is
    /// overloaded if the tenants owe more work than it can do ([`points::Points::need`]).
    ///
    /// The caller decides again when a run comes, ends or is late, and after [`LOOK_NS`].
    pub fn choose(&mut self, now_ns: u64, handoff_ns: u64, is_overloaded: bool, runs: &[Run]) -> &[usize] {
        self.accept(now_ns, is_overloaded, runs);
        self.chosen.clear();
        let mut room = WHOLE_PERCENT;
        // Runs without slack, the earliest deadline first.
        let margin_ns = LOOK_NS.saturating_add(handoff_ns.saturating_mul(2));
        let is_tight = |(run, need): (&Run, &Option<f64>)| {
            let done_ns = now_ns.saturating_add(run.left_ns).saturating_add(margin_ns);
            need.is_some() && run.due_ns.is_some_and(|due_ns| done_ns >= due_ns)
        };
        let each = runs.iter().zip(&self.needs).enumerate();
        self.order.clear();
        self.order.extend(each.filter(|(_, each)| is_tight(*each)).map(|(index, _)| index));
        self.order.sort_by_key(|index| (runs[*index].due_ns, *index));
        for &index in &self.order {
            if let Some(left) = room.checked_sub(runs[index].part()) {
                room = left;
                self.chosen.push(index);
            }
        }
        let tight = self.chosen.len();
        self.items.clear();
        self.runs.clear();
        for (index, run) in runs.iter().enumerate() {
            if self.chosen[..tight].contains(&index) {
                continue;
            }
            let urgent = self.needs[index].unwrap_or(0.0).max(run.behind()).max(0.0);
            let fills = WORTH_OF_ALL * run.part() as f64 / WHOLE_PERCENT as f64;
            let stays = if run.holds { WORTH_OF_PLACE } else { 0.0 };
            let is_late = run.due_ns.is_some() && self.needs[index].is_none();
            let worth = if is_late { WORTH_TO_LATE } else { 1.0 };
            self.items.push((run.part(), worth * (urgent + fills + stays)));
            self.runs.push(index);
        }
        self.knapsack.choose(room, &self.items, &mut self.chosen);
        for item in &mut self.chosen[tight..] {
            *item = self.runs[*item];
        }
        &self.chosen
    }

    /// Returns whether the last decision tries to bring the run at this position in time. The
    /// caller notes it in [`Run::accepted`].
    ///
    /// # Panics
    /// The last decision had no such run.
    pub fn accepts(&self, position: usize) -> bool {
        self.needs[position].is_some()
    }

    /// Computes the needs of all runs. Under overload, accepts a new run only if all accepted runs
    /// can be in time together.
    fn accept(&mut self, now_ns: u64, is_overloaded: bool, runs: &[Run]) {
        let need = |run: &Run| run.need(now_ns).filter(|_| run.accepted != Some(false));
        self.needs.clear();
        self.needs.extend(runs.iter().map(need));
        self.reserved.retain(|reserved| reserved.due_ns > now_ns);
        let is_new = |run: &usize| self.needs[*run].is_some() && runs[*run].accepted.is_none();
        self.order.clear();
        self.order.extend((0..runs.len()).filter(is_new));
        self.order.sort_by(|one, other| runs[*other].behind().total_cmp(&runs[*one].behind()));
        for &index in &self.order {
            let run = &runs[index];
            let time = self.needs[index].unwrap_or(0.0);
            let work = Work { part_percent: run.part(), instances: 1, time };
            self.reserved.push(Reserved { work, due_ns: run.due_ns.unwrap_or(now_ns) });
            if is_overloaded {
                self.work.clear();
                self.work.extend(self.reserved.iter().map(|reserved| reserved.work));
                // The area is a lower bound of the time, and quicker to compute.
                let area = |work: &Work| work.time * work.part_percent as f64 / WHOLE_PERCENT as f64;
                let is_too_much = self.work.iter().map(area).sum::<f64>() > MOST_NEEDED;
                if is_too_much || least_time(&self.work) > MOST_NEEDED {
                    self.reserved.pop();
                    self.needs[index] = None;
                }
            }
        }
    }
}
