//! The policies that the packing evaluation compares.

use std::cmp::Ordering;

use deepres_policy::packing::lags::Lags;
use deepres_policy::packing::points::{MOST_NEED, Point, Service, has_moved, operating_points};
use deepres_policy::packing::profile::Profile;
use deepres_policy::packing::{LOOK_NS, Packer, Run};

use super::curve::WHOLE;
use super::lease::LeaseCore;
use super::scenario::{Arrivals, Scenario, Tenant};
use super::sim::{self, Candidate, Outcome, Place, Policy};

/// Nanoseconds in a millisecond.
pub(super) const MS: f64 = 1e6;
/// The part of its time for which operating points plan the GPU, for requests that come at known
/// times ([`MOST_NEED`] is for requests at random).
const MOST_NEED_PERIODIC: f64 = 1.0;
/// The part of the GPU that a tenant without an SLO is owed.
const GUEST: f64 = 0.01;
/// The time after which rates and times are looked at again, ms.
const REVIEW_MS: f64 = 1_000.0;
/// A new figure is this part of a running mean.
const NEW: f64 = 0.1;

/// The names of the policies, in the order of the rows.
pub const NAMES: [&str; 10] = [
    "deepres",
    "lease-core",
    "lease-core-shares",
    "temporal-request",
    "temporal-kernel",
    "static-parts",
    "gpulet-like",
    "gslice-like",
    "mps",
    "ideal",
];

/// The names of the policies that are the daemon's arbiter ([`super::lease`]).
pub const ARBITERS: [&str; 2] = ["lease-core", "lease-core-shares"];

/// Returns the policy of a name for a scenario.
pub fn of<'a>(name: &str, scenario: &'a Scenario) -> Box<dyn Policy + 'a> {
    match name {
        "deepres" => Box::new(Deepres::new(scenario)),
        "lease-core" => Box::new(LeaseCore::settled(scenario, false)),
        "lease-core-shares" => Box::new(LeaseCore::settled(scenario, true)),
        "temporal-request" => Box::new(Temporal::new(scenario, false)),
        "temporal-kernel" => Box::new(Temporal::new(scenario, true)),
        "static-parts" => Box::new(Static::best(scenario)),
        "gpulet-like" => Box::new(Gpulet::best(scenario)),
        "gslice-like" => Box::new(Gslice::new(scenario)),
        "mps" => Box::new(Static::new(scenario, vec![WHOLE; scenario.tenants.len()])),
        _ => Box::new(Ideal::new(scenario, reference_points(scenario), Order::ALL[0])),
    }
}

/// Returns the parts and batches of bounds and of the ideal schedule: the rectangles that a
/// scenario gives, and else the operating points of deepres.
pub fn reference_points(scenario: &Scenario) -> Vec<Point> {
    let given = |tenant: &Tenant| {
        let (part_percent, batch) = (tenant.rectangle?, tenant.largest_batch());
        let time_ns = tenant.curve.time_ms(part_percent, batch) * MS;
        Some(Point { part_percent, batch, time_ns, in_time: time_ns <= tenant.slo_ms * MS })
    };
    let all: Option<Vec<Point>> = scenario.tenants.iter().map(given).collect();
    all.unwrap_or_else(|| {
        let points = Deepres::new(scenario).points().into_iter().zip(&scenario.tenants);
        let each = points.map(|(point, tenant)| {
            let time_ns = tenant.curve.time_ms(point.part_percent, point.batch) * MS;
            given(tenant).unwrap_or(Point { time_ns, ..point })
        });
        each.collect()
    })
}

/// Returns the least served tenant's served work, as a part of what it is owed. Tenants without an
/// SLO do not count.
pub fn served_vs_owed(scenario: &Scenario, outcome: &Outcome) -> f64 {
    let each = scenario.tenants.iter().zip(&outcome.tenants).filter_map(|(tenant, figures)| {
        match &tenant.arrivals {
            Arrivals::Closed => None,
            Arrivals::Periodic(_) if scenario.full => Some(figures.ended / figures.due.max(1.0)),
            Arrivals::Periodic(_) => Some(figures.in_time / figures.due.max(1.0)),
            _ => (figures.requests > 0.0).then(|| figures.answered / figures.requests),
        }
    });
    each.fold(f64::INFINITY, f64::min)
}

/// The facts that a policy knows of a tenant.
struct Known {
    profile: Profile,
    /// By how much runs take longer than the profile says.
    factor: f64,
    /// The factor with which the point was chosen.
    factor_of_point: f64,
    rate_hz: f64,
    rate_of_point_hz: f64,
    /// Requests since the last review.
    came: u32,
    point: Point,
}

/// The policy of deepres.
pub struct Deepres<'a> {
    tenants: &'a [Tenant],
    /// Whether tenants have more work than they are owed, so that the least need is best.
    full: bool,
    known: Vec<Known>,
    handoff_ns: u64,
    packer: Packer,
    lags: Lags,
    runs: Vec<Run>,
    /// Whether the tenants owe more work than the GPU can do.
    is_overloaded: bool,
    /// Whether the last decision accepted each run: its tenant, its deadline, ms, and the answer.
    accepted: Vec<(usize, f64, bool)>,
    /// Whether the runs of each tenant that have places count as served.
    counts: Vec<bool>,
    review_ms: f64,
    resizes: u64,
}

impl<'a> Deepres<'a> {
    /// Takes the profiles, fits them, and chooses the operating points.
    pub fn new(scenario: &'a Scenario) -> Self {
        let known = |tenant: &Tenant| {
            let mut measured = tenant.curve.measured();
            measured.iter_mut().for_each(|one| one.time_ns *= 1.0 + tenant.profile_error);
            let profile = Profile::fit(&measured).unwrap_or_default();
            let rate_hz = tenant.rate_hz();
            let point = Point { part_percent: WHOLE, batch: 1, time_ns: 0.0, in_time: false };
            Known {
                profile,
                factor: 1.0,
                factor_of_point: 1.0,
                rate_hz,
                rate_of_point_hz: rate_hz,
                came: 0,
                point,
            }
        };
        let mut deepres = Self {
            tenants: &scenario.tenants,
            full: scenario.full,
            known: scenario.tenants.iter().map(known).collect(),
            handoff_ns: (scenario.handoff_ms * MS) as u64,
            packer: Packer::default(),
            lags: Lags::default(),
            runs: Vec::new(),
            is_overloaded: false,
            accepted: Vec::new(),
            counts: vec![true; scenario.tenants.len()],
            review_ms: REVIEW_MS,
            resizes: 0,
        };
        for _ in &scenario.tenants {
            deepres.lags.enter(GUEST);
        }
        deepres.plan();
        deepres.resizes = 0;
        deepres
    }

    /// Returns the operating points.
    pub fn points(&self) -> Vec<Point> {
        self.known.iter().map(|known| known.point).collect()
    }

    /// Chooses the operating points from the rates and times that are known.
    fn plan(&mut self) {
        let profiles: Vec<Profile> = self
            .known
            .iter()
            .map(|known| Profile {
                floor_ns: known.profile.floor_ns * known.factor,
                terms_ns: known.profile.terms_ns.map(|term| term * known.factor),
            })
            .collect();
        let is_service = |tenant: &Tenant| !matches!(tenant.arrivals, Arrivals::Closed);
        let services: Vec<Service> = self
            .tenants
            .iter()
            .zip(&self.known)
            .zip(&profiles)
            .map(|((tenant, known), profile)| Service {
                profile,
                batches: &tenant.batches,
                parts_percent: &tenant.parts,
                // A tenant without requests runs when others leave room, so it gets the narrowest
                // part.
                rate_hz: if is_service(tenant) { known.rate_hz } else { f64::MIN_POSITIVE },
                slo_ns: tenant.slo_ms * MS,
                pause_ns: tenant.pause_ms * MS,
                instances: tenant.instances,
            })
            .collect();
        let is_known = self.tenants.iter().all(|tenant| matches!(tenant.arrivals, Arrivals::Periodic(_)));
        let most_need = match (self.full, is_known) {
            (true, _) => 0.0,
            (false, true) => MOST_NEED_PERIODIC,
            (false, false) => MOST_NEED,
        };
        let points = operating_points(&services, most_need);
        self.is_overloaded = points.need > 1.0;
        for (index, (known, point)) in self.known.iter_mut().zip(points.each).enumerate() {
            self.resizes += u64::from(known.point.part_percent != point.part_percent);
            let busy = known.rate_hz * point.time_ns / 1e9 / f64::from(point.batch);
            let owed = busy * point.part_percent as f64 / WHOLE as f64;
            self.lags.set_weight(index, if is_service(&self.tenants[index]) { owed } else { GUEST });
            known.point = point;
            known.factor_of_point = known.factor;
            known.rate_of_point_hz = known.rate_hz;
        }
    }

    /// Chooses the operating points again if a rate or a time moved by more than a tenth.
    fn review(&mut self, now_ms: f64) {
        while now_ms >= self.review_ms {
            self.review_ms += REVIEW_MS;
            for known in &mut self.known {
                let came_hz = f64::from(std::mem::take(&mut known.came)) * 1e3 / REVIEW_MS;
                known.rate_hz += NEW * (came_hz - known.rate_hz);
            }
            let has_moved = |known: &Known| {
                has_moved(known.rate_of_point_hz, known.rate_hz)
                    || has_moved(known.factor_of_point, known.factor)
            };
            if self.known.iter().any(has_moved) {
                self.plan();
            }
        }
    }
}

impl Policy for Deepres<'_> {
    fn choose(&mut self, now_ms: f64, candidates: &[Candidate], places: &mut Vec<Place>) {
        self.review(now_ms);
        let ns = |ms: f64| (ms * MS).round() as u64;
        for tenant in 0..self.tenants.len() {
            self.lags.set_wants(tenant, candidates.iter().any(|candidate| candidate.tenant == tenant));
        }
        self.runs.clear();
        for candidate in candidates {
            let known = &self.known[candidate.tenant];
            let part = candidate.began_at.unwrap_or(known.point.part_percent);
            let length_ns = (known.profile.time_ns(part, candidate.batch) * known.factor) as u64;
            // A run that takes longer than it should is taken for nearly done.
            let left_ns = length_ns.saturating_sub(ns(candidate.had_ms)).max(length_ns / 16);
            self.runs.push(Run {
                part_percent: part,
                length_ns,
                left_ns,
                due_ns: candidate.due_ms.map(ns),
                behind_ns: self.lags.lag_ns(candidate.tenant) * WHOLE as f64 / part as f64,
                holds: candidate.holds,
                accepted: candidate.due_ms.and_then(|due_ms| {
                    let is_same = |of: &&(usize, f64, bool)| of.0 == candidate.tenant && of.1 == due_ms;
                    self.accepted.iter().find(is_same).map(|of| of.2)
                }),
            });
        }
        let chosen = self.packer.choose(ns(now_ms), self.handoff_ns, self.is_overloaded, &self.runs);
        places.extend(
            chosen.iter().map(|&candidate| Place { candidate, part: self.runs[candidate].part_percent }),
        );
        self.accepted.clear();
        for (position, candidate) in candidates.iter().enumerate() {
            let (tenant, accepts) = (candidate.tenant, self.packer.accepts(position));
            self.accepted.extend(candidate.due_ms.map(|due_ms| (tenant, due_ms, accepts)));
            self.counts[tenant] = candidate.due_ms.is_none() || accepts;
        }
    }

    fn part(&self, tenant: usize) -> usize {
        self.known[tenant].point.part_percent
    }

    fn batch(&self, tenant: usize) -> u32 {
        self.known[tenant].point.batch
    }

    fn look_ms(&self) -> Option<f64> {
        Some(LOOK_NS as f64 / MS)
    }

    fn handoff_ms(&self) -> f64 {
        self.handoff_ns as f64 / MS
    }

    fn ran(&mut self, tenant: usize, part: usize, ms: f64) {
        // Work on a run that will be late serves nobody.
        if self.counts[tenant] {
            self.lags.charge(tenant, ms * MS * part as f64 / WHOLE as f64);
        }
    }

    fn ended(&mut self, tenant: usize, part: usize, batch: u32, had_ms: f64) {
        let known = &mut self.known[tenant];
        let factor = had_ms * MS / known.profile.time_ns(part, batch);
        known.factor += NEW * (factor - known.factor);
    }

    fn arrived(&mut self, _: f64, tenant: usize, requests: u32) {
        self.known[tenant].came += requests;
    }

    fn resizes(&self) -> u64 {
        self.resizes
    }
}

/// Returns the batch with which one part serves most requests, of those whose run takes at most
/// half of the SLO.
fn batch_on(tenant: &Tenant, part: usize) -> u32 {
    let time_ms = |batch: &u32| tenant.curve.time_ms(part, *batch);
    if matches!(tenant.arrivals, Arrivals::Periodic(_)) {
        return tenant.largest_batch();
    }
    let quick = tenant.batches.iter().filter(|batch| 2.0 * time_ms(batch) <= tenant.slo_ms);
    let each = |batch: &u32| time_ms(batch) / f64::from(*batch);
    let best = quick.min_by(|one, other| each(one).total_cmp(&each(other)));
    best.or(tenant.batches.iter().min()).copied().unwrap_or(1)
}

/// Compares two runs: the earlier deadline goes first, and runs that are not due go last.
fn by_due(one: &Candidate, other: &Candidate) -> Ordering {
    let due = |candidate: &Candidate| candidate.due_ms.unwrap_or(f64::INFINITY);
    due(one).total_cmp(&due(other))
}

/// The work that each tenant had, as a part of what it is owed.
struct Served {
    owed: Vec<f64>,
    had_ms: Vec<f64>,
}

impl Served {
    fn new(scenario: &Scenario) -> Self {
        let owed = scenario.tenants.iter().map(|tenant| tenant.temporal().max(GUEST)).collect();
        Self { owed, had_ms: vec![0.0; scenario.tenants.len()] }
    }

    fn of(&self, candidate: &Candidate) -> f64 {
        self.had_ms[candidate.tenant] / self.owed[candidate.tenant]
    }
}

/// Runs one run at a time on all SMs. If all deadlines can be met, the run with the earliest
/// deadline goes first. Otherwise a run that has begun goes on, and then the least served tenant
/// gets the GPU. If `kernels` is set and all deadlines can be met, a run can take another run's
/// place between two kernels.
struct Temporal<'a> {
    tenants: &'a [Tenant],
    served: Served,
    kernels: bool,
    handoff_ms: f64,
}

impl<'a> Temporal<'a> {
    fn new(scenario: &'a Scenario, kernels: bool) -> Self {
        let handoff_ms = if kernels { scenario.handoff_ms } else { 0.0 };
        Self { tenants: &scenario.tenants, served: Served::new(scenario), kernels, handoff_ms }
    }
}

impl Policy for Temporal<'_> {
    fn choose(&mut self, now_ms: f64, candidates: &[Candidate], places: &mut Vec<Place>) {
        let left_ms = |one: &Candidate| {
            (self.tenants[one.tenant].curve.time_ms(WHOLE, one.batch) - one.had_ms).max(0.0)
        };
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by(|&one, &other| by_due(&candidates[one], &candidates[other]));
        let mut done_ms = now_ms;
        let mut is_feasible = true;
        for candidate in order.iter().map(|index| &candidates[*index]) {
            done_ms += left_ms(candidate);
            is_feasible &= candidate.due_ms.is_none_or(|due_ms| done_ms <= due_ms);
        }
        let first = order.into_iter().min_by(|&one, &other| {
            let (one, other) = (&candidates[one], &candidates[other]);
            let holds = other.holds.cmp(&one.holds);
            let goes_on = other.began_at.is_some().cmp(&one.began_at.is_some());
            let due = if is_feasible { by_due(one, other) } else { Ordering::Equal };
            let least = self.served.of(one).total_cmp(&self.served.of(other));
            let stays = if self.kernels && is_feasible { due } else { goes_on.then(holds) };
            stays.then(due).then(goes_on).then(least)
        });
        places.extend(first.map(|candidate| Place { candidate, part: WHOLE }));
    }

    fn part(&self, _: usize) -> usize {
        WHOLE
    }

    fn batch(&self, tenant: usize) -> u32 {
        batch_on(&self.tenants[tenant], WHOLE)
    }

    fn handoff_ms(&self) -> f64 {
        self.handoff_ms
    }

    fn ran(&mut self, tenant: usize, _: usize, ms: f64) {
        self.served.had_ms[tenant] += ms;
    }
}

/// Gives each tenant a part that never changes. With parts of 100 %, this policy is MPS without
/// control.
struct Static<'a> {
    tenants: &'a [Tenant],
    parts: Vec<usize>,
}

/// Parts that the search over static parts tries are multiples of this, percent.
const STATIC_STEP: usize = 5;

impl<'a> Static<'a> {
    fn new(scenario: &'a Scenario, parts: Vec<usize>) -> Self {
        Self { tenants: &scenario.tenants, parts }
    }

    /// Returns the best division of the SMs: the division under which the least served tenant gets
    /// the greatest part of its owed work. Between equal divisions, the sum over all tenants
    /// decides. Tenants on parts of their own do not meet, so the search runs each tenant alone on
    /// each part.
    fn best(scenario: &'a Scenario) -> Self {
        let steps = WHOLE / STATIC_STEP;
        let value = |tenant: &Tenant, part: usize| {
            let mut tenant = tenant.clone();
            tenant.slower = vec![0.0];
            let alone = Scenario { tenants: vec![tenant], ..scenario.clone() };
            let outcome = sim::run(&alone, &mut Static::new(&alone, vec![part]));
            let served = served_vs_owed(&alone, &outcome);
            if served.is_finite() { served } else { f64::from(part as u32) / WHOLE as f64 }
        };
        // For each number of steps in use: the least value, the sum, and the parts.
        let mut best: Vec<Option<(f64, f64, Vec<usize>)>> = vec![None; steps + 1];
        best[0] = Some((f64::INFINITY, 0.0, Vec::new()));
        for tenant in &scenario.tenants {
            let values: Vec<f64> = (1..=steps).map(|step| value(tenant, step * STATIC_STEP)).collect();
            let counts = !matches!(tenant.arrivals, Arrivals::Closed);
            let mut with: Vec<Option<(f64, f64, Vec<usize>)>> = vec![None; steps + 1];
            for (used, before) in best.iter().enumerate() {
                let Some((least, sum, parts)) = before else { continue };
                for (step, value) in values.iter().enumerate().take(steps - used) {
                    let least = if counts { least.min(*value) } else { *least };
                    let sum = sum + value;
                    let place = &mut with[used + step + 1];
                    let is_better = place.as_ref().is_none_or(|(other, other_sum, _)| {
                        least.total_cmp(other).then(sum.total_cmp(other_sum)) == Ordering::Greater
                    });
                    if is_better {
                        let parts = parts.iter().copied().chain([(step + 1) * STATIC_STEP]).collect();
                        *place = Some((least, sum, parts));
                    }
                }
            }
            best = with;
        }
        let of_all = best.into_iter().flatten().max_by(|one, other| {
            one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1)).then(other.2.cmp(&one.2))
        });
        // Without a division, the tenants are more than there are steps.
        let even = vec![(WHOLE / scenario.tenants.len()).max(1); scenario.tenants.len()];
        Self::new(scenario, of_all.map_or(even, |(_, _, parts)| parts))
    }
}

impl Policy for Static<'_> {
    fn choose(&mut self, _: f64, candidates: &[Candidate], places: &mut Vec<Place>) {
        // The instances of a tenant take turns on its part, except without control.
        let mut busy = vec![false; self.tenants.len()];
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by_key(|index| candidates[*index].began_at.is_none());
        for candidate in order {
            let tenant = candidates[candidate].tenant;
            let part = self.parts[tenant];
            if part == WHOLE || !std::mem::replace(&mut busy[tenant], true) {
                places.push(Place { candidate, part });
            }
        }
    }

    fn part(&self, tenant: usize) -> usize {
        self.parts[tenant]
    }

    fn batch(&self, tenant: usize) -> u32 {
        batch_on(&self.tenants[tenant], self.parts[tenant])
    }
}

/// Divides the SMs into at most two parts, as gpulet does. Each tenant belongs to one part, and the
/// runs of the part's tenants take turns. [`Gpulet::best`] chooses the parts and their tenants by
/// the times of the runs.
struct Gpulet<'a> {
    tenants: &'a [Tenant],
    parts: [usize; 2],
    of: Vec<usize>,
}

/// The sizes of the first part, percent.
const GPULET_SIZES: [usize; 4] = [100, 80, 60, 50];

impl<'a> Gpulet<'a> {
    fn best(scenario: &'a Scenario) -> Self {
        let tenants = &scenario.tenants;
        let mut best: Option<(f64, Self)> = None;
        for first in GPULET_SIZES {
            let parts = [first, WHOLE - first];
            let divisions = if first == WHOLE { 1 } else { 1_usize << tenants.len() };
            for bits in 0..divisions {
                let of: Vec<usize> = (0..tenants.len()).map(|tenant| bits >> tenant & 1).collect();
                let mut busy = [0.0; 2];
                let mut longest_ms = [0.0; 2];
                for (tenant, &at) in tenants.iter().zip(&of) {
                    let batch = batch_on(tenant, parts[at].max(1));
                    let run_ms = tenant.curve.time_ms(parts[at].max(1), batch);
                    busy[at] += tenant.rate_hz() * run_ms / 1e3 / f64::from(batch);
                    longest_ms[at] = f64::max(longest_ms[at], run_ms);
                }
                // A run waits for the longest run of another tenant on its part.
                let late = tenants.iter().zip(&of).filter(|(tenant, at)| {
                    let part = parts[**at].max(1);
                    let run_ms = tenant.curve.time_ms(part, batch_on(tenant, part));
                    let others_ms = if longest_ms[**at] > run_ms { longest_ms[**at] } else { 0.0 };
                    run_ms + others_ms > tenant.slo_ms
                });
                let value = 1.0 / f64::max(busy[0], busy[1]).max(1e-9);
                let value = value.min(if scenario.full { f64::INFINITY } else { 1.0 });
                let value = value - late.count() as f64;
                if best.as_ref().is_none_or(|(other, _)| value > *other) {
                    best = Some((value, Self { tenants, parts, of }));
                }
            }
        }
        let all = Self { tenants, parts: [WHOLE, 0], of: vec![0; tenants.len()] };
        best.map_or(all, |(_, best)| best)
    }
}

impl Policy for Gpulet<'_> {
    fn choose(&mut self, _: f64, candidates: &[Candidate], places: &mut Vec<Place>) {
        for (at, &part) in self.parts.iter().enumerate().filter(|(_, part)| **part > 0) {
            let here = (0..candidates.len()).filter(|index| self.of[candidates[*index].tenant] == at);
            let first = here.min_by(|&one, &other| {
                let (one, other) = (&candidates[one], &candidates[other]);
                let goes_on = other.began_at.is_some().cmp(&one.began_at.is_some());
                goes_on.then(by_due(one, other))
            });
            places.extend(first.map(|candidate| Place { candidate, part }));
        }
    }

    fn part(&self, tenant: usize) -> usize {
        self.parts[self.of[tenant]].max(1)
    }

    fn batch(&self, tenant: usize) -> u32 {
        batch_on(&self.tenants[tenant], self.parts[self.of[tenant]].max(1))
    }
}

/// Gives each tenant a part that follows the tenant's need, as GSLICE does. If the need differs
/// from the part by more than a tenth, and the new parts fit on the GPU, the part changes.
struct Gslice<'a> {
    tenants: &'a [Tenant],
    parts: Vec<usize>,
    came: Vec<u32>,
    next_ms: f64,
    resizes: u64,
    full: bool,
}

/// The time between two changes of parts, ms.
const ADAPTS_MS: f64 = 1_000.0;
/// A tenant's part is for this many times the tenant's rate of requests.
const HEADROOM: f64 = 1.1;
/// The part of its size by which a part may differ from the need.
const DEAD_BAND: f64 = 0.1;

impl<'a> Gslice<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let tenants = &scenario.tenants;
        Self {
            tenants,
            parts: vec![(WHOLE / tenants.len()).max(1); tenants.len()],
            came: vec![0; tenants.len()],
            next_ms: ADAPTS_MS,
            resizes: 0,
            full: scenario.full,
        }
    }

    fn adapt(&mut self) {
        let need = |(tenant, came): (&Tenant, &u32)| {
            let rate_hz = f64::from(*came) * 1e3 / ADAPTS_MS * HEADROOM;
            let is_enough = |part: &usize| {
                let batch = batch_on(tenant, *part);
                let run_ms = tenant.curve.time_ms(*part, batch);
                f64::from(batch) * 1e3 / run_ms >= rate_hz && run_ms <= tenant.slo_ms / 2.0
            };
            (1..=WHOLE).find(is_enough).unwrap_or(WHOLE) as f64
        };
        let needs: Vec<f64> = self.tenants.iter().zip(&self.came).map(need).collect();
        self.came.fill(0);
        let sum: f64 = needs.iter().sum();
        let scale = if self.full { WHOLE as f64 / sum } else { (WHOLE as f64 / sum).min(1.0) };
        let mut parts = self.parts.clone();
        for (part, need) in parts.iter_mut().zip(needs) {
            let need = need * scale;
            if (need - *part as f64).abs() > DEAD_BAND * *part as f64 {
                *part = (need as usize).max(1);
            }
        }
        if parts.iter().sum::<usize>() <= WHOLE {
            self.resizes += parts.iter().zip(&self.parts).filter(|(one, other)| one != other).count() as u64;
            self.parts = parts;
        }
    }
}

impl Policy for Gslice<'_> {
    fn choose(&mut self, now_ms: f64, candidates: &[Candidate], places: &mut Vec<Place>) {
        while now_ms >= self.next_ms {
            self.next_ms += ADAPTS_MS;
            self.adapt();
        }
        let mut room = WHOLE;
        let mut busy = vec![false; self.tenants.len()];
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by_key(|index| candidates[*index].began_at.is_none());
        for candidate in order {
            let one = &candidates[candidate];
            let part = one.began_at.unwrap_or(self.parts[one.tenant]);
            // A part that grew waits for the end of the run on a part that shrank.
            if part <= room && !std::mem::replace(&mut busy[one.tenant], true) {
                room -= part;
                places.push(Place { candidate, part });
            }
        }
    }

    fn part(&self, tenant: usize) -> usize {
        self.parts[tenant]
    }

    fn batch(&self, tenant: usize) -> u32 {
        batch_on(&self.tenants[tenant], self.parts[tenant])
    }

    fn arrived(&mut self, _: f64, tenant: usize, requests: u32) {
        self.came[tenant] += requests;
    }

    fn resizes(&self) -> u64 {
        self.resizes
    }
}

/// The order in which an ideal list schedule takes runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The earliest deadline first.
    Due,
    /// The run with the least slack first. The slack is the time from the run's end to its
    /// deadline, if the run goes on now.
    Slack,
    /// The widest part first, except that runs without slack go before all.
    Widest,
    /// The least served tenant first, except that runs without slack go before all.
    LeastServed,
}

impl Order {
    /// All orders in which the runs can be served.
    pub const ALL: [Self; 4] = [Self::Due, Self::Slack, Self::Widest, Self::LeastServed];
}

/// A list schedule at kernel granularity, without cost: at each moment it takes the runs in an
/// order, each that fits. The ideal schedule has the same instances as deepres, and knows the true
/// times.
pub struct Ideal<'a> {
    tenants: &'a [Tenant],
    points: Vec<Point>,
    served: Served,
    order: Order,
}

/// The time between two kernels of the ideal schedule, ms.
pub(super) const KERNEL_MS: f64 = 0.5;

impl<'a> Ideal<'a> {
    /// Makes the list schedule of this order, with these parts and batches.
    pub fn new(scenario: &'a Scenario, points: Vec<Point>, order: Order) -> Self {
        Self { tenants: &scenario.tenants, points, served: Served::new(scenario), order }
    }
}

impl Policy for Ideal<'_> {
    fn choose(&mut self, now_ms: f64, candidates: &[Candidate], places: &mut Vec<Place>) {
        let part = |one: &Candidate| one.began_at.unwrap_or(self.points[one.tenant].part_percent);
        let slack = |one: &Candidate| {
            let time_ms = self.tenants[one.tenant].curve.time_ms(part(one), one.batch);
            one.due_ms.map_or(f64::INFINITY, |due_ms| due_ms - now_ms - (time_ms - one.had_ms))
        };
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by(|&one, &other| {
            let (one, other) = (&candidates[one], &candidates[other]);
            let tight = |candidate: &Candidate| slack(candidate) <= KERNEL_MS;
            let tightest = tight(other).cmp(&tight(one));
            let least = self.served.of(one).total_cmp(&self.served.of(other));
            match self.order {
                Order::Due => by_due(one, other).then(least),
                Order::Slack => slack(one).total_cmp(&slack(other)).then(least),
                Order::Widest => tightest.then(part(other).cmp(&part(one))).then(least),
                Order::LeastServed => tightest.then(least),
            }
        });
        let mut room = WHOLE;
        for candidate in order {
            let part = part(&candidates[candidate]);
            if part <= room {
                room -= part;
                places.push(Place { candidate, part });
            }
        }
    }

    fn part(&self, tenant: usize) -> usize {
        self.points[tenant].part_percent
    }

    fn batch(&self, tenant: usize) -> u32 {
        self.points[tenant].batch
    }

    fn look_ms(&self) -> Option<f64> {
        Some(KERNEL_MS)
    }

    fn ran(&mut self, tenant: usize, _: usize, ms: f64) {
        self.served.had_ms[tenant] += ms;
    }
}
