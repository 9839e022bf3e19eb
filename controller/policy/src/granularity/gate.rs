//! The wait of one tenant at the cuts of its plan.
//!
//! Each launch of the tenant asks its gate. The gate follows the tenant through its iteration by
//! the keys of the kernels. A plan can begin in the middle of an iteration. So the gate first seeks
//! a whole iteration, and then counts along without any wait until all other tenants have found
//! their iterations. Then the tenants *meet*: each waits at the beginning of its next iteration
//! until the others are there. From then on, all tenants count the same iterations.
//!
//! At a cut, the launch waits until the other tenant has come to the place of the cut, at most for
//! a bound. If a launch is not the one that the iteration has at this place, the tenant has
//! departed from its plan. The gate then lets all further launches through at once.

use alloc::vec::Vec;

pub use deepres_abi::plan::Place;

use super::{Cut, MOST_TENANTS};

/// If this many waits in a row reach the bound, the gate drops the plan, because the other tenants
/// do not keep to it.
pub const MOST_MISSES: u32 = 3;

/// The gate's answer to a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The launch goes to the GPU.
    Launch,
    /// The launch waits. The launch asks again when the place of another tenant has changed, and at
    /// this time at the latest, ns.
    Wait(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The last launches were this many first kernels of the iteration.
    Seeking(usize),
    /// The next launch is this kernel of the iteration. The tenant does not keep to the plan yet.
    Ready(usize),
    /// The next launch is the first one, and waits for the others.
    Meeting,
    /// The place of the next launch: the iteration, and the kernel in it.
    At(u64, usize),
    /// The gate has no plan, or has dropped it.
    Gone,
}

/// The gate of a tenant.
#[derive(Debug, Clone)]
pub struct Gate {
    tenant: usize,
    keys: Vec<u64>,
    /// For each number of first kernels: the number of first kernels with which they end, too. The
    /// number is less than all of them.
    borders: Vec<usize>,
    cuts: Vec<Cut>,
    /// The places for which other tenants wait, in order.
    marks: Vec<usize>,
    wait_limit_ns: u64,
    step: Step,
    /// The first cut of this iteration that the tenant has not passed.
    next: usize,
    misses: u32,
}

impl Gate {
    /// Returns the gate of a tenant. `keys` has the keys of the iteration's kernels, in the order
    /// of the launches. `cuts` has the cuts of all tenants. Even if a launch has several cuts, the
    /// launch waits for at most `wait_limit_ns` in all.
    pub fn new(tenant: usize, keys: Vec<u64>, cuts: &[Cut], wait_limit_ns: u64) -> Self {
        let mut marks: Vec<usize> =
            cuts.iter().filter(|cut| cut.other == tenant).map(|cut| cut.until).collect();
        marks.sort_unstable();
        marks.dedup();
        let mut cuts: Vec<Cut> = cuts.iter().copied().filter(|cut| cut.tenant == tenant).collect();
        cuts.sort_unstable();
        let step = if keys.is_empty() { Step::Gone } else { Step::Seeking(0) };
        let borders = borders(&keys);
        Self { tenant, keys, borders, cuts, marks, wait_limit_ns, step, next: 0, misses: 0 }
    }

    /// Returns whether the gate has a plan: the tenant seeks its iteration, or keeps to its plan.
    pub fn is_planned(&self) -> bool {
        self.step != Step::Gone
    }

    /// Returns whether the tenant counts the iterations of the plan.
    pub fn counts(&self) -> bool {
        matches!(self.step, Step::Meeting | Step::At(..))
    }

    /// Returns whether other tenants wait for the end of the launch that the gate let through last.
    pub fn is_awaited(&self) -> bool {
        let Step::At(iterations, kernel) = self.step else { return false };
        let is_end = kernel == 0 && iterations > 0;
        let done = if is_end { self.keys.len() } else { kernel };
        self.marks.binary_search(&done).is_ok()
    }

    /// Returns the tenant's place for the other tenants. `finished` is the number of kernels that
    /// have finished since the tenant began to count. Between two places for which nobody waits,
    /// the place stays.
    pub fn place(&self, finished: u64) -> Place {
        match self.step {
            Step::Seeking(_) => Place::Coming,
            Step::Ready(_) => Place::Ready,
            Step::Gone => Place::Gone,
            Step::Meeting | Step::At(..) => {
                let length = self.keys.len().max(1) as u64;
                let kernel = (finished % length) as usize;
                let passed = self.marks.partition_point(|mark| *mark <= kernel);
                let mark = passed.checked_sub(1).and_then(|last| self.marks.get(last));
                Place::At { iterations: finished / length, kernel: mark.copied().unwrap_or(0) }
            }
        }
    }

    /// Answers a launch that asked first at `asked_ns`. A launch that waits asks again with the
    /// same key and the same `asked_ns`. So several threads can wait at once, each for the bound at
    /// most.
    pub fn launch(&mut self, asked_ns: u64, now_ns: u64, key: u64, others: &[Place; MOST_TENANTS]) -> Answer {
        let ends_ns = asked_ns.saturating_add(self.wait_limit_ns);
        match self.step {
            Step::Gone => return Answer::Launch,
            Step::Seeking(matched) => {
                self.step = self.seek(matched, key);
                return Answer::Launch;
            }
            Step::Ready(kernel) | Step::At(_, kernel) if self.keys.get(kernel) != Some(&key) => {
                self.step = Step::Gone;
                return Answer::Launch;
            }
            Step::Ready(0) if !self.is_any(others, |place| place == Place::Coming) => {
                self.step = Step::Meeting;
            }
            Step::Ready(kernel) => {
                self.step = Step::Ready((kernel + 1) % self.keys.len());
                return Answer::Launch;
            }
            Step::Meeting | Step::At(..) => {}
        }
        if self.step == Step::Meeting {
            if self.keys.first() != Some(&key) {
                self.step = Step::Gone;
                return Answer::Launch;
            }
            if self.is_any(others, |place| matches!(place, Place::Coming | Place::Ready)) {
                if now_ns < ends_ns {
                    return Answer::Wait(ends_ns);
                }
                self.step = Step::Gone;
                return Answer::Launch;
            }
            self.step = Step::At(0, 0);
        }
        let Step::At(iterations, kernel) = self.step else { return Answer::Launch };
        while let Some(cut) = self.cuts.get(self.next).filter(|cut| cut.kernel <= kernel) {
            if is_there(cut, iterations, others) {
                self.misses = if now_ns > asked_ns { 0 } else { self.misses };
                self.next += 1;
                continue;
            }
            if now_ns < ends_ns {
                return Answer::Wait(ends_ns);
            }
            self.misses += 1;
            if self.misses >= MOST_MISSES {
                self.step = Step::Gone;
                return Answer::Launch;
            }
            // The launch has waited up to the bound, so the gate skips the launch's further cuts.
            let passed = self.cuts[self.next..].iter().take_while(|cut| cut.kernel <= kernel).count();
            self.next += passed;
        }
        self.step = Step::At(iterations, kernel + 1);
        if kernel + 1 == self.keys.len() {
            (self.step, self.next) = (Step::At(iterations + 1, 0), 0);
        }
        Answer::Launch
    }

    fn is_any(&self, others: &[Place; MOST_TENANTS], is: impl Fn(Place) -> bool) -> bool {
        others.iter().enumerate().any(|(other, place)| other != self.tenant && is(*place))
    }

    /// Returns the step after a launch, if the launches before it were `matched` first kernels of
    /// the iteration. The algorithm is that of Knuth, Morris and Pratt.
    fn seek(&self, mut matched: usize, key: u64) -> Step {
        while matched > 0 && self.keys.get(matched) != Some(&key) {
            matched = self.borders.get(matched).copied().unwrap_or(0);
        }
        matched += usize::from(self.keys.get(matched) == Some(&key));
        if matched == self.keys.len() { Step::Ready(0) } else { Step::Seeking(matched) }
    }
}

/// Returns [`Gate::borders`] of these keys.
fn borders(keys: &[u64]) -> Vec<usize> {
    let mut borders: Vec<usize> = [0, 0].into();
    for key in keys.iter().skip(1) {
        let mut border = borders.last().copied().unwrap_or(0);
        while border > 0 && keys.get(border) != Some(key) {
            border = borders.get(border).copied().unwrap_or(0);
        }
        border += usize::from(keys.get(border) == Some(key));
        borders.push(border);
    }
    borders
}

/// Returns whether the other tenant of a cut has come to the cut's place in this iteration.
fn is_there(cut: &Cut, iterations: u64, others: &[Place; MOST_TENANTS]) -> bool {
    match others.get(cut.other) {
        Some(Place::At { iterations: its, kernel }) => (*its, *kernel) >= (iterations, cut.until),
        // After the tenants have met, no tenant is before the beginning.
        Some(Place::Gone | Place::Coming | Place::Ready) | None => true,
    }
}
