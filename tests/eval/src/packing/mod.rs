//! `cargo xtask eval --packing`: compares packing with other ways to share the SMs of one GPU.
//!
//! A scenario has models with runs on parts of the SMs ([`scenario`]). A device in virtual time
//! runs them ([`sim`]) under each policy ([`policy`]). Each row has the figures of a policy beside
//! what no policy can exceed ([`bound`]).

pub mod bars;
pub mod bound;
pub mod curve;
pub mod lease;
mod page;
pub mod policy;
pub mod profiles;
mod report;
pub mod scenario;
pub mod sim;
#[cfg(test)]
mod tests;

use anyhow::Result;
use serde::Serialize;

use bound::{Exact, Rectangle};
use deepres_policy::packing::points::Point;
pub use page::page;
use policy::{Ideal, NAMES, Order, served_vs_owed};
pub use report::print_table;
use scenario::{Arrivals, Scenario};
use sim::Outcome;

/// The figures of a policy in a scenario.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Name of the scenario.
    pub scenario: String,
    /// Name of the policy.
    pub policy: &'static str,
    /// The product of two figures. The first is the work of the least served tenant, as a part of
    /// the work that it is owed. The second is the GPU time that the owed work of a second needs on
    /// all SMs, one run after the other.
    pub throughput_vs_temporal: f64,
    /// The area of the work that was done, as a part of all SMs and time.
    pub area_utilisation: f64,
    /// Requests answered within their SLO, as a part of all. The requests of a batch that comes at
    /// once have gathered over the period before.
    pub request_slo: Option<f64>,
    /// Runs that were late, as a part of the runs that were due.
    pub run_misses: Option<f64>,
    /// The owed area served in time, as a part of what the exact search serves.
    pub vs_exact: Option<f64>,
    /// The figure of the policy, as a part of the ideal schedule's figure. The figure is the
    /// throughput if all tenants always have work, and otherwise the owed area served in time.
    pub vs_ideal: Option<f64>,
    /// The throughput, as a part of `bound_lp`.
    pub vs_lp: Option<f64>,
    /// The throughput that the area of the work allows at most.
    pub bound_area: f64,
    /// The throughput that the configurations allow at most, with the parts that the scenario
    /// gives, or else the parts and batches of deepres. A policy that squeezes runs into narrower
    /// parts can exceed it.
    pub bound_lp: Option<f64>,
    /// The owed area that the exact search serves in time, as a part of all.
    pub bound_exact: Option<f64>,
    /// The throughput that the runs of one tenant after the other allow at most.
    pub bound_critical_path: f64,
    /// The throughput that is owed.
    pub owed_vs_temporal: f64,
    /// The work of the least served tenant, as a part of what it is owed.
    pub served_vs_owed: f64,
    /// The owed area served in time, as a part of all.
    pub served_area: f64,
    /// The owed area served in time, as a part of what the configurations allow at most.
    pub served_vs_lp: Option<f64>,
    /// The area that was used, as a part of the most that the configurations allow beside the owed
    /// work; for tenants that always have work.
    pub filled_vs_lp: Option<f64>,
    /// The number of times that a tenant got another part of the SMs.
    pub resizes: u64,
    /// The number of times in a second that a run got a place.
    pub places_per_s: f64,
}

/// The bounds of a scenario.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bounds {
    /// The GPU time that all owed work needs in a second, one run after the other.
    temporal: f64,
    area: f64,
    lp: Option<f64>,
    critical_path: f64,
    exact: Option<Exact>,
    served: Option<f64>,
    filled: Option<f64>,
}

/// Returns the work of a scenario as rectangles of these parts and batches.
fn rectangles(scenario: &Scenario, points: &[Point]) -> Vec<Rectangle> {
    let each = scenario.tenants.iter().zip(points).map(|(tenant, point)| {
        let time = tenant.rate_hz() * point.time_ns / 1e9 / f64::from(point.batch);
        Rectangle { part: point.part_percent, instances: tenant.instances, time }
    });
    each.collect()
}

impl Bounds {
    fn of(scenario: &Scenario, points: &[Point]) -> Self {
        let of = rectangles(scenario, points);
        let temporal: f64 = scenario.tenants.iter().map(scenario::Tenant::temporal).sum();
        let area: f64 = scenario.tenants.iter().map(scenario::Tenant::area).sum();
        // Without surplus work, no tenant can be served more than it is owed.
        let capped = |served: f64| temporal * if scenario.full { served } else { served.min(1.0) };
        let serial = scenario.tenants.iter().map(|tenant| {
            let pauses = tenant.rate_hz() * tenant.pause_ms / 1e3 / f64::from(tenant.largest_batch());
            tenant.instances as f64 / (tenant.temporal() + pauses)
        });
        Self {
            temporal,
            area: capped(1.0 / area),
            lp: bound::least_time(&of).map(|time| capped(1.0 / time)),
            critical_path: capped(serial.fold(f64::INFINITY, f64::min)),
            exact: bound::exact(scenario, &of),
            served: bound::most_served(&of),
            filled: scenario.full.then(|| bound::most_filled(&of)).flatten(),
        }
    }
}

/// Returns the owed area that was served in time, as a part of all.
fn served_area(scenario: &Scenario, outcome: &Outcome) -> f64 {
    let (mut served, mut due) = (0.0, 0.0);
    for (tenant, figures) in scenario.tenants.iter().zip(&outcome.tenants) {
        let area = tenant.area();
        let part = match tenant.arrivals {
            Arrivals::Closed => continue,
            Arrivals::Periodic(_) => figures.in_time / figures.due.max(1.0),
            _ => figures.answered / figures.requests.max(1.0),
        };
        served += area * part;
        due += area;
    }
    if due > 0.0 { served / due } else { 1.0 }
}

/// Returns the outcome of the best list schedule.
fn ideal(scenario: &Scenario, points: &[Point]) -> Outcome {
    let value = |outcome: &Outcome| {
        if scenario.full { served_vs_owed(scenario, outcome) } else { served_area(scenario, outcome) }
    };
    let all = Order::ALL.map(|order| sim::run(scenario, &mut Ideal::new(scenario, points.to_vec(), order)));
    all.into_iter().max_by(|one, other| value(one).total_cmp(&value(other))).unwrap_or_default()
}

/// Runs a scenario under policies, and returns a row for each.
pub fn evaluate(scenario: &Scenario, policies: &[&'static str]) -> Vec<Row> {
    let points = policy::reference_points(scenario);
    let bounds = Bounds::of(scenario, &points);
    let ideal = ideal(scenario, &points);
    let row = |name: &&'static str| {
        let (outcome, resizes) = if *name == "ideal" {
            (ideal.clone(), 0)
        } else {
            let mut policy = policy::of(name, scenario);
            let outcome = sim::run(scenario, &mut *policy);
            (outcome, policy.resizes())
        };
        bounds.row(scenario, name, &outcome, &ideal, resizes)
    };
    policies.iter().map(row).collect()
}

impl Bounds {
    fn row(
        &self,
        scenario: &Scenario,
        policy: &'static str,
        outcome: &Outcome,
        ideal: &Outcome,
        resizes: u64,
    ) -> Row {
        let sum = |figure: fn(&sim::Figures) -> f64| outcome.tenants.iter().map(figure).sum::<f64>();
        let of = |part: f64, all: f64| (all > 0.0).then(|| part / all);
        let served_vs_owed = served_vs_owed(scenario, outcome);
        let throughput = served_vs_owed * self.temporal;
        let served = served_area(scenario, outcome);
        let (value, best) = if scenario.full {
            (served_vs_owed, policy::served_vs_owed(scenario, ideal))
        } else {
            let exact = self.exact.map_or(0.0, |exact| exact.served);
            (served, served_area(scenario, ideal).max(exact))
        };
        let work: f64 = scenario.tenants.iter().map(scenario::Tenant::area).sum();
        let most_served = self.served.map(|most| (most / work).min(1.0));
        Row {
            scenario: scenario.name.clone(),
            policy,
            throughput_vs_temporal: throughput,
            area_utilisation: outcome.area,
            request_slo: of(sum(|figures| figures.answered), sum(|figures| figures.requests)),
            run_misses: of(sum(|figures| figures.due - figures.in_time), sum(|figures| figures.due)),
            vs_exact: self.exact.and_then(|exact| of(served, exact.served)),
            vs_ideal: of(value, best),
            vs_lp: self.lp.and_then(|lp| of(throughput, lp)),
            bound_area: self.area,
            bound_lp: self.lp,
            bound_exact: self.exact.map(|exact| exact.served),
            bound_critical_path: self.critical_path,
            owed_vs_temporal: self.temporal,
            served_vs_owed,
            served_area: served,
            served_vs_lp: most_served.and_then(|most| of(served, most)),
            filled_vs_lp: self.filled.and_then(|filled| of(outcome.area, filled)),
            resizes,
            places_per_s: outcome.places as f64 * 1e3 / scenario.duration_ms,
        }
    }
}

/// Evaluates the scenarios under all policies.
pub fn evaluate_all(scenarios: &[Scenario]) -> Vec<Row> {
    scenarios.iter().flat_map(|scenario| evaluate(scenario, &NAMES)).collect()
}

/// Returns the scenarios that come with deepres.
///
/// # Errors
/// A scenario cannot be read.
pub fn ours() -> Result<Vec<Scenario>> {
    scenario::all()?.iter().map(|file| Scenario::read(file)).collect()
}

/// Returns the rows of deepres, of the daemon's arbiter and of the ideal schedule for all subsets
/// of at least two models. The rows come with the owed runs alone, and with tenants that always
/// have work.
///
/// # Errors
/// The table is no table.
pub fn subsets() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for bits in (0..1_usize << scenario::TABLE.len()).filter(|bits| bits.count_ones() > 1) {
        for full in [false, true] {
            rows.extend(evaluate(
                &scenario::of_table(bits, full)?,
                &["deepres", "lease-core", "lease-core-shares", "ideal"],
            ));
        }
    }
    Ok(rows)
}
