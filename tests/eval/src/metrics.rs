//! Figures of a run, and the reference figures of the same scenario.

use std::collections::BTreeMap;
use std::{panic, thread};

use serde::Serialize;

use crate::bound::bound;
use crate::device::{Tenant, TimeSlice};
use crate::engine::{self, Outcome, Run};
use crate::fluid::Fluid;
use crate::gate::Absent;
use crate::policy::{Policy, deepres};
use crate::scenario::{self, Scenario};
use crate::standings::Standings;

const NS_PER_MS: f64 = 1e6;

/// The figures of one scenario under one policy. docs/evaluation-scenarios.md explains each figure.
/// A figure that does not apply is null.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Name of the scenario.
    pub scenario: String,
    /// Description of what the scenario shows.
    #[serde(skip)]
    pub shows: String,
    /// Name of the policy.
    pub policy: &'static str,
    /// GPU-seconds of finished kernels per second.
    pub throughput: f64,
    /// Part of the time in which any kernel ran.
    pub utilisation: f64,
    /// Mean over tenants of the finished work, as a part of the work that each tenant does alone.
    pub progress: f64,
    /// `progress` as a multiple of the `progress` under the static equal split.
    pub progress_vs_static: f64,
    /// `progress` as a part of the `progress` under the fluid limit.
    pub progress_vs_gps: f64,
    /// Greatest lag of an owner behind the fluid limit with the same work.
    pub max_lag_ms: f64,
    /// Bound on `max_lag_ms` under deepres: two quanta and the longest kernel.
    pub lag_bound_ms: f64,
    /// Jain's index over owners. The index compares the GPU time that each owner received with the
    /// GPU time that the owner was owed while it wanted the GPU. The owed time is at most the time
    /// that the owner takes alone. The ratio is at most 1, because no owner has a claim to GPU time
    /// that others leave.
    pub jain: f64,
    /// Part of the requests with a time limit that were late or had no answer.
    pub slo_miss_ratio: Option<f64>,
    /// Part of the jobs with a size and a deadline in the measured time that were done by the
    /// deadline.
    pub deadlines_met: Option<f64>,
    /// Median answer time of owners' requests, and of their steps with an SLO.
    pub p50_ms: Option<f64>,
    /// 99th percentile of the answer times of owners' requests, and of their steps with an SLO.
    pub p99_ms: Option<f64>,
    /// Increase of `p99_ms` by the guests. The reference is the owner alone, or several owners
    /// without guests under the same policy.
    pub p99_added_ms: Option<f64>,
    /// With guests: the owners' work as a part of their work without guests. The reference is the
    /// owner alone, or several owners under the same policy.
    pub production_speed: Option<f64>,
    /// With guests: the GPU time of guests while no owner had work, as a part of the GPU time that
    /// owners leave in such times.
    pub harvested_fraction: Option<f64>,
    /// The least progress of an owner, as a part of the owner's progress under the fluid limit.
    pub worst_progress_vs_gps: Option<f64>,
    /// The least value of a quotient over all owners. The quotient is the owner's progress, divided
    /// by the lesser of its progress under plain time-slicing and under the fluid limit.
    pub worst_vs_nothing: Option<f64>,
    /// `worst_progress_vs_gps` of the best scheduler that [`crate::bound`] knows.
    pub bound: Option<f64>,
    /// Figures of each tenant.
    pub tenants: Vec<TenantRow>,
}

/// One tenant of a row.
#[derive(Debug, Clone, Serialize)]
pub struct TenantRow {
    /// Name of the tenant.
    pub name: String,
    /// Class of the tenant.
    pub class: &'static str,
    /// Part of the GPU that the tenant is owed while all tenants want the GPU: the mean over time.
    pub entitled: f64,
    /// Part of the GPU that the tenant received.
    pub received: f64,
    /// Part of the GPU that the tenant uses when it runs alone.
    pub demand: f64,
    /// Finished work, as a part of the work that the tenant finishes alone.
    pub progress: f64,
    /// Greatest lag behind the fluid limit.
    pub lag_ms: f64,
    /// Median time of a request or step.
    pub p50_ms: Option<f64>,
    /// 99th percentile of the time of a request or step.
    pub p99_ms: Option<f64>,
    /// Part of the requests that were late or had no answer.
    pub slo_miss_ratio: Option<f64>,
}

/// A row, and the data for its pictures.
pub struct Evaluated {
    /// The figures of the scenario under one policy.
    pub row: Row,
    /// The run from which the figures come. The pictures show it.
    pub run: Run,
}

/// Runs a scenario under each policy. Returns the figures of each policy, in the order of the
/// policies. Leaves out the figures that need more runs; [`evaluate_in_full`] returns these figures
/// too.
pub fn evaluate(scenario: &Scenario, policies: &[Policy]) -> Vec<Evaluated> {
    compare(scenario, policies, false)
}

/// Returns the rows of [`evaluate`].
pub fn rows(scenario: &Scenario, policies: &[Policy]) -> Vec<Row> {
    evaluate(scenario, policies).into_iter().map(|evaluated| evaluated.row).collect()
}

/// Runs a scenario under each policy. Returns all figures of each policy, in the order of the
/// policies.
pub fn evaluate_in_full(scenario: &Scenario, policies: &[Policy]) -> Vec<Evaluated> {
    compare(scenario, policies, true)
}

fn compare(scenario: &Scenario, policies: &[Policy], in_full: bool) -> Vec<Evaluated> {
    let parts: Vec<Scenario> = (0..scenario.gpus).map(|gpu| scenario.on_gpu(gpu)).collect();
    // The fluid limit of deepres gives the entitlements over time. The evaluation measures every
    // policy against these entitlements.
    let ours_on = |part| (Policy::Deepres.run_alone(part), part);
    let (alone, standings): (_, Vec<(Run, &Scenario)>) =
        both(|| alone(scenario), || parts.iter().map(ours_on).collect());
    let ours = together(scenario, standings.iter().map(|(run, part)| (run.clone(), *part)));
    let run = |policy: Policy| {
        let runs = standings.iter().map(|(Run { standings, .. }, part)| {
            (policy.run(part, standings, &mut Fluid::new(part, standings)), *part)
        });
        together(scenario, runs)
    };
    let (split, fluid) = both(|| run(Policy::StaticSplit), || run(Policy::Gps));
    let of_fluid = progress(&fluid, &alone);
    let mut references = BTreeMap::from([(Policy::StaticSplit.name(), split), (Policy::Gps.name(), fluid)]);
    let mut bound = None;
    let mut of_lesser = None;
    if in_full {
        let on_gpus =
            standings.iter().filter_map(|(ours, part)| bound_on(part, &ours.standings, &alone, &of_fluid));
        let turns;
        (turns, bound) = both(|| run(Policy::TimeSlice), || on_gpus.min_by(f64::total_cmp));
        let lesser = progress(&turns, &alone).into_iter().zip(&of_fluid).map(|(one, other)| one.min(*other));
        of_lesser = Some(lesser.collect::<Vec<f64>>());
        references.insert(Policy::TimeSlice.name(), turns);
    }
    let evaluated = |policy: &Policy| {
        let run = match policy {
            Policy::Deepres => ours.clone(),
            policy => references.get(policy.name()).cloned().unwrap_or_else(|| run(*policy)),
        };
        let undisturbed = has_several_owners_beside_guests(scenario).then(|| undisturbed(scenario, *policy));
        let row = row(scenario, *policy, &run, &alone, undisturbed.as_deref(), &references);
        let progress = progress(&run, &alone);
        let row = Row {
            worst_progress_vs_gps: worst(scenario, &progress, &of_fluid),
            worst_vs_nothing: of_lesser.as_ref().and_then(|lesser| worst(scenario, &progress, lesser)),
            bound,
            ..row
        };
        Evaluated { row, run }
    };
    policies.iter().map(evaluated).collect()
}

/// Returns the bound on one GPU. All tenants of the scenario have an outcome alone, and progress
/// under the fluid limit.
fn bound_on(part: &Scenario, standings: &Standings, alone: &[Outcome], of_fluid: &[f64]) -> Option<f64> {
    let places = || part.tenants.iter().map(|tenant| tenant.number as usize);
    let alone: Vec<Outcome> = places().map(|place| alone[place].clone()).collect();
    let of_fluid: Vec<f64> = places().map(|place| of_fluid[place]).collect();
    bound(part, standings, &of_fluid, |run| progress(run, &alone))
}

/// Returns each tenant's work, as a part of its work alone.
fn progress(run: &Run, alone: &[Outcome]) -> Vec<f64> {
    run.outcomes.iter().zip(alone).map(|(outcome, alone)| part_done(outcome, alone)).collect()
}

/// Returns the least ratio of an owner's progress to its reference. Owners whose reference is 0 do
/// not count.
pub fn worst(scenario: &Scenario, progress: &[f64], reference: &[f64]) -> Option<f64> {
    let each = scenario.tenants.iter().zip(progress).zip(reference);
    let owners = each.filter(|((tenant, _), reference)| !tenant.is_guest() && **reference > 0.0);
    owners.map(|((_, progress), reference)| progress / reference).min_by(f64::total_cmp)
}

/// Runs both functions in parallel, and returns both results. A run of a thousand tenants takes a
/// while, and neither function depends on the other.
fn both<A: Send, B>(one: impl FnOnce() -> A + Send, other: impl FnOnce() -> B) -> (A, B) {
    thread::scope(|scope| {
        let one = scope.spawn(one);
        let other = other();
        (one.join().unwrap_or_else(|panic| panic::resume_unwind(panic)), other)
    })
}

/// Returns whether a scenario has guests and several owners. Even without guests, owners that share
/// a GPU are slower than alone.
fn has_several_owners_beside_guests(scenario: &Scenario) -> bool {
    let guests = scenario.tenants.iter().filter(|tenant| tenant.is_guest()).count();
    guests > 0 && scenario.tenants.len() - guests > 1
}

/// Returns the outcomes of a scenario's owners under a policy without guests. Guests get an empty
/// outcome.
pub fn undisturbed(scenario: &Scenario, policy: Policy) -> Vec<Outcome> {
    let mut outcomes = vec![Outcome::default(); scenario.tenants.len()];
    for gpu in 0..scenario.gpus {
        let mut part = scenario.on_gpu(gpu);
        part.tenants.retain(|tenant| !tenant.is_guest());
        for (tenant, outcome) in part.tenants.iter().zip(policy.run_alone(&part).outcomes) {
            outcomes[tenant.number as usize] = outcome;
        }
    }
    outcomes
}

/// Combines the results of all GPUs into one run.
fn together<'a>(scenario: &Scenario, runs: impl Iterator<Item = (Run, &'a Scenario)>) -> Run {
    let mut outcomes = vec![Outcome::default(); scenario.tenants.len()];
    let (mut busy_ns, mut harvested_ns) = (0, 0);
    for (run, part) in runs {
        busy_ns += run.busy_ns;
        harvested_ns += run.harvested_ns;
        for (tenant, outcome) in part.tenants.iter().zip(run.outcomes) {
            outcomes[tenant.number as usize] = outcome;
        }
    }
    Run { outcomes, busy_ns, harvested_ns, standings: Standings::at_first(scenario) }
}

/// Returns the outcome of each tenant when it has the GPU to itself, with the same random numbers.
fn alone(scenario: &Scenario) -> Vec<Outcome> {
    let mut only = scenario.without_tenants();
    let outcome = |tenant: &scenario::Tenant| {
        only.tenants = vec![tenant.clone()];
        let mut device = TimeSlice::new(1, scenario.gpu.slice_ns, scenario.gpu.switch_ns);
        engine::run(&only, &mut device, &mut Absent, None).outcomes.remove(0)
    };
    scenario.tenants.iter().map(outcome).collect()
}

/// Returns the part of the GPU that all owners of a scenario use together, if each owner works as
/// it works alone.
pub fn demand_of_owners(scenario: &Scenario) -> f64 {
    let span_ns = (scenario.duration_ns - scenario.warmup_ns) as f64;
    let owners = alone(scenario).into_iter().zip(&scenario.tenants).filter(|(_, tenant)| !tenant.is_guest());
    owners.map(|(outcome, _)| outcome.used_ns as f64 / span_ns).sum::<f64>().min(1.0)
}

fn row(
    scenario: &Scenario,
    policy: Policy,
    run: &Run,
    alone: &[Outcome],
    undisturbed: Option<&[Outcome]>,
    references: &BTreeMap<&str, Run>,
) -> Row {
    let span_ns = (scenario.duration_ns - scenario.warmup_ns) as f64;
    let progress_of = |run: &Run| {
        let parts = run.outcomes.iter().zip(alone).filter(|(_, alone)| alone.work_ns > 0);
        let (sum, count) = parts.fold((0.0, 0u32), |(sum, count), (outcome, alone)| {
            (sum + outcome.work_ns as f64 / alone.work_ns as f64, count + 1)
        });
        sum / f64::from(count.max(1))
    };
    let progress = progress_of(run);
    // The figures take a job without work as done.
    let against = |policy: Policy| match references.get(policy.name()).map_or(0.0, progress_of) {
        0.0 => 1.0,
        other => progress / other,
    };
    let tenants: Vec<TenantRow> = (0..scenario.tenants.len())
        .map(|tenant| {
            let (outcome, alone) = (&run.outcomes[tenant], &alone[tenant]);
            TenantRow {
                name: scenario.tenants[tenant].name.clone(),
                class: scenario.tenants[tenant].class.name(),
                entitled: mean(&outcome.owed_ppm) / 1e6,
                received: outcome.used_ns as f64 / span_ns,
                demand: alone.used_ns as f64 / span_ns,
                progress: part_done(outcome, alone),
                lag_ms: outcome.lag_ns as f64 / NS_PER_MS,
                p50_ms: percentile_ms(&outcome.latencies_ns, 0.5),
                p99_ms: percentile_ms(&outcome.latencies_ns, 0.99),
                slo_miss_ratio: ratio(outcome.missed, outcome.timed),
            }
        })
        .collect();
    let is_owner = |tenant: &Tenant| !scenario.tenants[*tenant].is_guest();
    let owners: Vec<Tenant> = (0..tenants.len()).filter(is_owner).collect();
    let guests: Vec<Tenant> = (0..tenants.len()).filter(|tenant| !is_owner(tenant)).collect();
    let answers = |outcomes: &[Outcome]| {
        let services = scenario.tenants.iter().zip(outcomes).filter(|(tenant, _)| {
            !tenant.is_guest() && (tenant.slo_ns().is_some() || tenant.requests.is_some())
        });
        services.flat_map(|(_, outcome)| outcome.latencies_ns.iter().copied()).collect::<Vec<u64>>()
    };
    let (answered, answered_before) = (answers(&run.outcomes), answers(undisturbed.unwrap_or(alone)));
    let p99_ms = percentile_ms(&answered, 0.99);
    let beside = (!owners.is_empty() && !guests.is_empty()).then(|| {
        let sum = |outcomes: &[Outcome], of: fn(&Outcome) -> u64| {
            owners.iter().map(|owner| of(&outcomes[*owner])).sum::<u64>() as f64
        };
        let undisturbed = undisturbed.unwrap_or(alone);
        let left =
            (scenario.gpus as f64 - sum(undisturbed, |owner| owner.used_ns) / span_ns).max(f64::EPSILON);
        let had = run.harvested_ns as f64 / span_ns;
        let speed =
            sum(&run.outcomes, |owner| owner.work_ns) / sum(undisturbed, |owner| owner.work_ns).max(1.0);
        (speed, (had / left).min(1.0))
    });
    let received = owners.iter().map(|owner| {
        let outcome = &run.outcomes[*owner];
        // A tenant that wants little GPU time at a time waits longer for a turn than the turn
        // lasts.
        let owed_ns = outcome.claim_ns.min(alone[*owner].used_ns);
        if owed_ns > 0 { (outcome.used_ns as f64 / owed_ns as f64).min(1.0) } else { 1.0 }
    });
    Row {
        scenario: scenario.name.clone(),
        shows: scenario.shows.clone(),
        policy: policy.name(),
        throughput: run.outcomes.iter().map(|outcome| outcome.work_ns as f64).sum::<f64>() / span_ns,
        utilisation: run.busy_ns as f64 / span_ns / scenario.gpus as f64,
        progress,
        progress_vs_static: against(Policy::StaticSplit),
        progress_vs_gps: against(Policy::Gps),
        max_lag_ms: owners.iter().map(|owner| tenants[*owner].lag_ms).fold(0.0, f64::max),
        lag_bound_ms: lag_bound_ns(scenario) as f64 / NS_PER_MS,
        jain: jain(received),
        slo_miss_ratio: ratio(
            run.outcomes.iter().map(|outcome| outcome.missed).sum(),
            run.outcomes.iter().map(|outcome| outcome.timed).sum(),
        ),
        deadlines_met: deadlines_met(scenario, run),
        p50_ms: percentile_ms(&answered, 0.5),
        p99_ms,
        p99_added_ms: p99_ms.zip(percentile_ms(&answered_before, 0.99)).map(|(with, before)| with - before),
        production_speed: beside.map(|(speed, _)| speed),
        harvested_fraction: beside.map(|(_, harvested)| harvested),
        worst_progress_vs_gps: None,
        worst_vs_nothing: None,
        bound: None,
        tenants,
    }
}

/// Returns the work of a tenant, as a part of its work alone.
fn part_done(outcome: &Outcome, alone: &Outcome) -> f64 {
    outcome.work_ns as f64 / alone.work_ns.max(1) as f64
}

/// Returns the part of the jobs with a deadline that were done in time.
fn deadlines_met(scenario: &Scenario, run: &Run) -> Option<f64> {
    let jobs = scenario.tenants.iter().zip(&run.outcomes);
    let due = jobs.filter_map(|(tenant, outcome)| {
        let deadline_ns = tenant.deadline_ns.filter(|deadline_ns| *deadline_ns <= scenario.duration_ns)?;
        tenant.size_ns?;
        Some(outcome.finished_ns.is_some_and(|finished_ns| finished_ns <= deadline_ns))
    });
    let (met, all) = due.fold((0, 0), |(met, all), is_met| (met + u64::from(is_met), all + 1));
    ratio(met, all)
}

/// Returns the bound that deepres promises for every owner's lag: two quanta and the longest of all
/// kernels.
fn lag_bound_ns(scenario: &Scenario) -> u64 {
    let longest_ns = scenario.tenants.iter().map(scenario::Tenant::longest_kernel_ns).max();
    2 * deepres::tuning(scenario).quantum_ns + longest_ns.unwrap_or(0)
}

fn mean(values_ppm: &[u32]) -> f64 {
    values_ppm.iter().map(|ppm| f64::from(*ppm)).sum::<f64>() / values_ppm.len().max(1) as f64
}

/// Returns Jain's fairness index: 1 if all values are equal, 1/n if one value is all of the sum.
fn jain(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, squares, count) =
        values.fold((0.0, 0.0, 0.0), |(sum, squares, count), x| (sum + x, squares + x * x, count + 1.0));
    if squares == 0.0 { 1.0 } else { sum * sum / (count * squares) }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Returns the value that the part `part` of the values does not exceed (nearest rank), ms.
pub fn percentile_ms(values_ns: &[u64], part: f64) -> Option<f64> {
    let mut sorted = values_ns.to_vec();
    sorted.sort_unstable();
    let rank = ((sorted.len() as f64 * part).ceil() as usize).max(1);
    sorted.get(rank - 1).map(|ns| *ns as f64 / NS_PER_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_one_for_equals_and_one_in_n_for_a_winner() {
        assert_eq!(jain([0.5, 0.5].into_iter()), 1.0);
        assert_eq!(jain([1.0, 0.0, 0.0, 0.0].into_iter()), 0.25);
    }

    fn in_full(gpus: u32, tenants: &[(&str, &str, &str)], policies: &[Policy]) -> Vec<Row> {
        let scenario = Scenario::of(&format!("duration_s = 10\nwarmup_s = 1\ngpus = {gpus}"), tenants);
        evaluate_in_full(&scenario, policies).into_iter().map(|evaluated| evaluated.row).collect()
    }

    #[test]
    fn the_worst_owner_is_measured_against_its_own_progress_under_the_fluid_limit() {
        let steps = "kernels = 10, kernel_us = 5000";
        let tenants = [("much", "share = \"90%\"", steps), ("little", "share = \"10%\"", steps)];
        let rows = in_full(1, &tenants, &[Policy::TimeSlice, Policy::Gps, Policy::StaticSplit]);
        let figures: Vec<_> =
            rows.iter().map(|row| row.worst_progress_vs_gps.zip(row.worst_vs_nothing).unwrap()).collect();
        // Equal turns of 2 ms with switches of 50 us give the first tenant 0.488 instead of 0.9.
        // The fluid limit gives the second tenant 0.1, which is less than under time-slicing.
        let is_near = |place: usize, vs_gps: f64, vs_nothing: f64| {
            (figures[place].0 - vs_gps).abs() < 0.02 && (figures[place].1 - vs_nothing).abs() < 0.02
        };
        assert!(is_near(0, 0.488 / 0.9, 1.0), "{figures:?}");
        assert!(is_near(1, 1.0, 1.0), "{figures:?}");
        assert!(is_near(2, 0.5 / 0.9, 0.5 / 0.488), "{figures:?}");
        assert!(rows.iter().all(|row| row.bound == rows[0].bound && row.bound > Some(0.95)));
    }

    #[test]
    fn guests_and_owners_that_do_nothing_are_never_the_worst() {
        let steps = "kernels = 10, kernel_us = 500";
        let tenants = [
            ("owner", "", steps),
            ("rare", "active_s = [[9, 10]]", "kernels = 1, kernel_us = 9_500_000"),
            ("guest", Scenario::GUEST, steps),
        ];
        let rows = in_full(1, &tenants, &[Policy::Gps]);
        assert_eq!(rows[0].worst_progress_vs_gps, Some(1.0));
        // Time-slicing gives the guest a half, less a switch in each slice.
        let vs_nothing = rows[0].worst_vs_nothing.unwrap();
        assert!((vs_nothing - 1.0 / 0.488).abs() < 0.05, "{vs_nothing}");
    }

    #[test]
    fn without_owners_there_is_no_worst_owner_and_no_bound() {
        let guest = ("g", Scenario::GUEST, "kernels = 10, kernel_us = 500");
        let row = in_full(1, &[guest], &[Policy::Deepres]).remove(0);
        assert_eq!((row.worst_progress_vs_gps, row.worst_vs_nothing, row.bound), (None, None, None));
    }

    #[test]
    fn the_bound_of_two_gpus_is_that_of_the_gpu_with_the_lesser() {
        let bounded = [
            ("a", "gpu = 0", "kernels = 25, kernel_us = 40, pause_ms = 0.5"),
            ("b", "gpu = 0", "kernels = 25, kernel_us = 12_000, pause_ms = 2"),
        ];
        let free = [
            ("c", "gpu = 1", "kernels = 25, kernel_us = 400, pause_ms = 0.5"),
            ("d", "gpu = 1", "kernels = 25, kernel_us = 400, pause_ms = 2"),
        ];
        let bound = |gpus, tenants: &[_]| in_full(gpus, tenants, &[Policy::Gps])[0].bound.unwrap();
        let (bounded, both) = (bound(1, &bounded), bound(2, &[free, bounded].concat()));
        assert!(bounded < 0.9 && (bounded - both).abs() < 0.02, "{bounded}, {both}");
    }

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let values: Vec<u64> = (1..=100).map(|ms| ms * 1_000_000).collect();
        assert_eq!((percentile_ms(&values, 0.5), percentile_ms(&values, 0.99)), (Some(50.0), Some(99.0)));
        assert_eq!(percentile_ms(&[], 0.5), None);
    }
}
