//! Bounds that no schedule exceeds: by the area, by the configurations that fit, by an exact
//! search, and by the longest run.

use std::collections::HashSet;

use super::curve::WHOLE;
use super::scenario::{Arrivals, Scenario};

/// The most runs of a session for which the evaluation makes the exact search.
pub const MOST_RUNS: usize = 11;
/// The number of steps after which the exact search gives up.
const MOST_STEPS: u64 = 2_000_000;
/// Figures that differ by less are equal.
const NEGLIGIBLE: f64 = 1e-9;

/// Returns the greatest value of `gain` times x. x is at least 0, and each row of `rows` times x is
/// at most the row's limit. The limits are at least 0. Returns nothing if there is no greatest
/// value.
///
/// This is the simplex method in a table, with Bland's rule. Policies do not use it.
fn greatest(gain: &[f64], rows: &[Vec<f64>], limits: &[f64]) -> Option<f64> {
    let (count, slacks) = (gain.len(), rows.len());
    let width = count + slacks + 1;
    let mut table: Vec<Vec<f64>> = rows
        .iter()
        .zip(limits)
        .enumerate()
        .map(|(index, (row, limit))| {
            let mut line = row.clone();
            line.extend((0..slacks).map(|slack| f64::from(u8::from(slack == index))));
            line.push(*limit);
            line
        })
        .collect();
    let mut last: Vec<f64> = gain.iter().map(|gain| -gain).collect();
    last.resize(width, 0.0);
    let mut basis: Vec<usize> = (count..count + slacks).collect();
    loop {
        let Some(enters) = (0..width - 1).find(|&column| last[column] < -NEGLIGIBLE) else {
            return last.last().copied();
        };
        let ratio = |line: &Vec<f64>| line[width - 1] / line[enters];
        let leaves = (0..slacks).filter(|&row| table[row][enters] > NEGLIGIBLE).min_by(|&one, &other| {
            ratio(&table[one]).total_cmp(&ratio(&table[other])).then(basis[one].cmp(&basis[other]))
        })?;
        let pivot = table[leaves][enters];
        table[leaves].iter_mut().for_each(|one| *one /= pivot);
        let line = table[leaves].clone();
        for (row, other) in table.iter_mut().enumerate().chain([(slacks, &mut last)]) {
            let factor = other[enters];
            if row != leaves && factor != 0.0 {
                other.iter_mut().zip(&line).for_each(|(one, pivot)| *one -= factor * pivot);
            }
        }
        basis[leaves] = enters;
    }
}

/// A tenant as rectangles: its part, percent, the number of its runs at once, and the time that its
/// work needs, in any unit.
#[derive(Debug, Clone, Copy)]
pub struct Rectangle {
    /// The part of the SMs, percent.
    pub part: usize,
    /// The number of runs that may go on at once.
    pub instances: usize,
    /// The time of all runs, one after the other.
    pub time: f64,
}

/// Returns all sets of runs that fit beside each other, as the number of runs of each tenant.
fn configurations(of: &[Rectangle]) -> Vec<Vec<usize>> {
    let mut all = vec![(0, Vec::new())];
    for one in of {
        let with = all.iter().flat_map(|(used, counts): &(usize, Vec<usize>)| {
            (0..=one.instances).filter_map(move |count| {
                let used = used + count * one.part;
                let counts = counts.iter().copied().chain([count]).collect();
                (used <= WHOLE).then_some((used, counts))
            })
        });
        all = with.collect();
    }
    all.into_iter().map(|(_, counts)| counts).filter(|counts| counts.iter().any(|count| *count > 0)).collect()
}

/// Returns the least time in which all work can be done, by the linear program over all
/// configurations.
pub fn least_time(of: &[Rectangle]) -> Option<f64> {
    let times: Vec<f64> = of.iter().map(|one| one.time).collect();
    let rows: Vec<Vec<f64>> =
        configurations(of).iter().map(|counts| counts.iter().map(|count| *count as f64).collect()).collect();
    greatest(&times, &rows, &vec![1.0; rows.len()])
}

/// Returns the greatest area that can be served in the time 1, if no tenant gets more than its
/// work.
pub fn most_served(of: &[Rectangle]) -> Option<f64> {
    let configurations = configurations(of);
    let area = |counts: &Vec<usize>| {
        counts.iter().zip(of).map(|(count, one)| (count * one.part) as f64 / WHOLE as f64).sum::<f64>()
    };
    let gain: Vec<f64> = configurations.iter().map(area).collect();
    let mut rows = vec![vec![1.0; gain.len()]];
    rows.extend(
        (0..of.len()).map(|tenant| configurations.iter().map(|counts| counts[tenant] as f64).collect()),
    );
    let limits: Vec<f64> = [1.0].into_iter().chain(of.iter().map(|one| one.time)).collect();
    greatest(&gain, &rows, &limits)
}

/// Returns the greatest area that can be filled in the time 1, if each tenant gets its work at
/// least. The tenants always have more work. Returns nothing if the work does not fit.
pub fn most_filled(of: &[Rectangle]) -> Option<f64> {
    if least_time(of)? > 1.0 {
        return None;
    }
    // The dual program: the price of time is the whole less `u`, and work costs `y`.
    let mut gain: Vec<f64> = of.iter().map(|one| one.time).collect();
    gain.push(-1.0);
    let mut rows = Vec::new();
    let mut limits = Vec::new();
    for counts in configurations(of) {
        let area: f64 =
            counts.iter().zip(of).map(|(count, one)| (count * one.part) as f64 / WHOLE as f64).sum();
        rows.push(counts.iter().map(|count| *count as f64).chain([-1.0]).collect());
        limits.push(1.0 - area);
    }
    Some(1.0 - greatest(&gain, &rows, &limits)?)
}

/// A run of a session.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Job {
    tenant: usize,
    part: usize,
    ms: f64,
    release_ms: f64,
    due_ms: f64,
}

impl Job {
    fn area(&self) -> f64 {
        self.part as f64 * self.ms
    }
}

/// The result of the exact search over a session.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exact {
    /// Whether all runs of the session can be in time.
    pub all_in_time: bool,
    /// The greatest area of runs in time, as a part of the area of all runs.
    pub served: f64,
}

/// Finds the most work that a session can have in time without stopping a run. The session begins
/// with a free GPU, and lasts as long as the greatest SLO. Returns nothing for more than
/// [`MOST_RUNS`] runs, for requests that come at random, or if the search takes too long.
pub fn exact(scenario: &Scenario, of: &[Rectangle]) -> Option<Exact> {
    let period_ms = |index: usize| match scenario.tenants[index].arrivals {
        Arrivals::Periodic(period_ms) => Some(period_ms),
        _ => None,
    };
    let periods: Option<Vec<f64>> = (0..of.len()).map(period_ms).collect();
    let periods = periods?;
    let session_ms = periods.iter().copied().fold(0.0, f64::max);
    let mut jobs = Vec::new();
    for (tenant, (period_ms, one)) in periods.iter().zip(of).enumerate() {
        // The SLOs of a session divide it, so that the next session begins with a free GPU.
        let runs = session_ms / period_ms;
        if (runs - runs.round()).abs() > NEGLIGIBLE || one.instances > 1 {
            return None;
        }
        let runs = runs.round() as usize;
        if jobs.len() + runs > MOST_RUNS {
            return None;
        }
        jobs.extend((0..runs).map(|run| Job {
            tenant,
            part: one.part,
            ms: one.time * period_ms,
            release_ms: run as f64 * period_ms,
            due_ms: (run + 1) as f64 * period_ms,
        }));
    }
    let all: f64 = jobs.iter().map(Job::area).sum();
    // All subsets of the runs, of greatest area first.
    let mut subsets: Vec<(f64, usize)> = (0..1_usize << jobs.len())
        .map(|bits| {
            let chosen = jobs.iter().enumerate().filter(|(job, _)| bits >> job & 1 == 1);
            (chosen.map(|(_, job)| job.area()).sum(), bits)
        })
        .collect();
    subsets.sort_by(|one, other| other.0.total_cmp(&one.0).then(other.1.cmp(&one.1)));
    let mut search = Search { jobs: &jobs, seen: HashSet::new(), steps: 0 };
    for (area, bits) in subsets {
        if area > session_ms * WHOLE as f64 + NEGLIGIBLE {
            continue;
        }
        search.seen.clear();
        if search.fits(0.0, bits, &mut Vec::new())? {
            return Some(Exact { all_in_time: bits + 1 == 1 << jobs.len(), served: area / all });
        }
    }
    None
}

/// The time, the runs that are left, and the runs that go on with their ends.
type State = (u64, usize, Vec<(usize, u64)>);

struct Search<'a> {
    jobs: &'a [Job],
    /// States that lead nowhere.
    seen: HashSet<State>,
    steps: u64,
}

impl Search<'_> {
    /// Returns whether the runs of `left` can all be in time from `now_ms` on, beside the runs in
    /// `going` (pairs of job and end, ms). A run begins when another ends or when it comes. Returns
    /// nothing if the search takes too long.
    fn fits(&mut self, now_ms: f64, left: usize, going: &mut Vec<(usize, f64)>) -> Option<bool> {
        if left == 0 {
            return Some(true);
        }
        self.steps += 1;
        if self.steps > MOST_STEPS {
            return None;
        }
        let is_left = |job: &usize| left >> job & 1 == 1;
        let jobs = self.jobs;
        let each: Vec<usize> = (0..jobs.len()).filter(is_left).collect();
        let is_late =
            |job: &usize| now_ms.max(jobs[*job].release_ms) + jobs[*job].ms > jobs[*job].due_ms + NEGLIGIBLE;
        if each.iter().any(is_late) {
            return Some(false);
        }
        let state = (now_ms.to_bits(), left, going.iter().map(|(job, end)| (*job, end.to_bits())).collect());
        if self.seen.contains(&state) {
            return Some(false);
        }
        let used: usize = going.iter().map(|(job, _)| jobs[*job].part).sum();
        for &job in &each {
            let one = jobs[job];
            let is_busy = going.iter().any(|(other, _)| jobs[*other].tenant == one.tenant);
            if one.release_ms <= now_ms + NEGLIGIBLE && used + one.part <= WHOLE && !is_busy {
                going.push((job, now_ms + one.ms));
                going.sort_by_key(|(job, _)| *job);
                let fits = self.fits(now_ms, left & !(1 << job), going)?;
                going.retain(|(other, _)| *other != job);
                if fits {
                    return Some(true);
                }
            }
        }
        // No run begins now: on to the next end or release.
        let ends = going.iter().map(|(_, end)| *end);
        let releases = each.iter().map(|job| jobs[*job].release_ms);
        let later = ends.chain(releases).filter(|event| *event > now_ms + NEGLIGIBLE);
        let next_ms = later.fold(f64::INFINITY, f64::min);
        let fits = next_ms.is_finite() && {
            let mut still: Vec<(usize, f64)> =
                going.iter().copied().filter(|(_, end)| *end > next_ms + NEGLIGIBLE).collect();
            self.fits(next_ms, left, &mut still)?
        };
        if !fits {
            self.seen.insert(state);
        }
        Some(fits)
    }
}
