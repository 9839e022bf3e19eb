//! Operating points: the part of the SMs and the batch of each tenant.
//!
//! On a narrower part, the time of a run grows or stays, and its area falls or stays. So each
//! tenant gets the part and the batch of least area with which it answers its requests in time. If
//! the GPU could not do the work of all tenants with these points ([`least_time`]), some tenants
//! get other points.

use alloc::vec::Vec;

use super::capacity::{Work, least_time};
use super::knapsack::WHOLE_PERCENT;
use super::profile::Profile;

/// If a rate changes by more than the rate divided by this number, the caller computes the
/// operating points again.
const RATE_MOVES: f64 = 10.0;
/// The part of its time for which operating points plan the GPU, so that bursts of requests that
/// come at random are done.
pub const MOST_NEED: f64 = 0.85;
/// The most of a tenant's time that its runs and the host's pauses may take. The rest is for bursts
/// of requests.
const MOST_BUSY: f64 = 0.95;
/// At a point, a request's wait and its run take at most the SLO. The wait counts as a whole run,
/// because a request can come just after a run has begun. If no point is quick enough, the wait
/// counts as a quarter of a run.
const WAITS: [f64; 2] = [1.0, 0.25];

/// The weight of a run's time beside its area. So between points of nearly equal area, the time
/// decides.
const HARDLY: f64 = 1e-3;
/// The search ignores a change of points that lowers the need by less than this.
const NEGLIGIBLE: f64 = 1e-6;

/// A tenant that answers requests.
#[derive(Debug, Clone, Copy)]
pub struct Service<'a> {
    /// The time of its runs.
    pub profile: &'a Profile,
    /// The batches that it can run.
    pub batches: &'a [u32],
    /// The parts of the SMs that it can have, percent.
    pub parts_percent: &'a [usize],
    /// Requests a second.
    pub rate_hz: f64,
    /// The time within which requests are to be answered, ns.
    pub slo_ns: f64,
    /// The time of the host after each run, ns.
    pub pause_ns: f64,
    /// The number of runs that may go on at once.
    pub instances: usize,
}

/// The part and the batch of a tenant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// The part of the SMs, percent.
    pub part_percent: usize,
    /// The greatest number of requests in one run.
    pub batch: u32,
    /// The time of such a run, ns.
    pub time_ns: f64,
    /// Whether requests are answered in time at this point, if the tenant is alone.
    pub in_time: bool,
}

/// The operating points of the tenants of a GPU.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Points {
    /// The point of each tenant, in the order of the services.
    pub each: Vec<Point>,
    /// The part of all time that the GPU needs for all work, or one tenant for its own work if this
    /// is more. More than 1 is overload.
    pub need: f64,
}

/// Returns whether a rate has changed so much that the caller has to compute the operating points
/// again.
pub fn has_moved(before_hz: f64, now_hz: f64) -> bool {
    (now_hz - before_hz).abs() * RATE_MOVES > before_hz
}

impl Service<'_> {
    fn work(&self, point: &Point) -> Work {
        Work { part_percent: point.part_percent, instances: self.instances, time: self.busy(point) }
    }

    /// Returns the time that runs take, as a part of all time.
    fn busy(&self, point: &Point) -> f64 {
        self.rate_hz * point.time_ns / 1e9 / f64::from(point.batch.max(1))
    }

    /// Returns the area of all runs. Of points whose areas hardly differ, the quicker one is
    /// better.
    fn cost(&self, point: &Point) -> f64 {
        let area = point.time_ns * point.part_percent as f64 / f64::from(point.batch.max(1));
        area * (1.0 + HARDLY * point.time_ns / self.slo_ns)
    }

    /// Returns the time that runs and the host's pauses take, as a part of the time of all
    /// instances.
    fn serial(&self, point: &Point) -> f64 {
        let pauses = self.rate_hz * self.pause_ns / 1e9 / f64::from(point.batch.max(1));
        (self.busy(point) + pauses) / self.instances.max(1) as f64
    }

    /// Returns the points at which requests are in time, or else the quickest point.
    fn candidates(&self) -> Vec<Point> {
        let each = self.parts_percent.iter().flat_map(|&part_percent| {
            self.batches.iter().map(move |&batch| {
                let time_ns = self.profile.time_ns(part_percent, batch);
                Point { part_percent, batch, time_ns, in_time: true }
            })
        });
        let all: Vec<Point> = each.collect();
        for waits in WAITS {
            let is_quick = |point: &&Point| (1.0 + waits) * point.time_ns <= self.slo_ns;
            let quick = all.iter().filter(is_quick).filter(|point| self.serial(point) <= MOST_BUSY);
            let quick: Vec<Point> = quick.copied().collect();
            if !quick.is_empty() {
                return quick;
            }
        }
        let is_late = |point: &Point| point.time_ns > self.slo_ns;
        let quickest = all.into_iter().min_by(|one, other| {
            let late = is_late(one).cmp(&is_late(other));
            late.then(self.serial(one).total_cmp(&self.serial(other)))
        });
        quickest.map(|point| Point { in_time: false, ..point }).into_iter().collect()
    }
}

/// Returns the part of all time that the GPU needs for all work, or one tenant for its runs and
/// pauses if this is more.
fn need(services: &[Service<'_>], points: &[Point]) -> f64 {
    let each = services.iter().zip(points);
    let work: Vec<Work> = each.clone().map(|(service, point)| service.work(point)).collect();
    let serial = each.map(|(service, point)| service.serial(point));
    serial.fold(least_time(&work), f64::max)
}

/// Returns the operating points of the tenants: of least total area, such that the GPU needs at
/// most `most_need` of its time. If no points are so good, returns the points of least need that
/// the search finds. A tenant without a part or a batch gets all SMs and batches of one request.
pub fn operating_points(services: &[Service<'_>], most_need: f64) -> Points {
    let candidates: Vec<Vec<Point>> = services
        .iter()
        .map(|service| {
            let time_ns = service.profile.time_ns(WHOLE_PERCENT, 1);
            let whole = Point { part_percent: WHOLE_PERCENT, batch: 1, time_ns, in_time: false };
            let points = service.candidates();
            if points.is_empty() { [whole].into() } else { points }
        })
        .collect();
    let best = |points: &[Point], figure: &dyn Fn(&Point) -> f64| {
        let better = |best: Point, point: &Point| if figure(point) < figure(&best) { *point } else { best };
        points.iter().fold(points[0], better)
    };
    // The search begins with the least area, and with parts that all fit beside each other.
    let narrow: Vec<Point> = services
        .iter()
        .zip(&candidates)
        .map(|(service, points)| best(points, &|point| service.cost(point)))
        .collect();
    let areas: Vec<f64> = services
        .iter()
        .zip(&narrow)
        .map(|(service, point)| service.busy(point) * point.part_percent as f64)
        .collect();
    let sum: f64 = areas.iter().sum();
    let beside = services.iter().zip(&candidates).zip(areas).map(|((service, points), area)| {
        let even = area / sum * WHOLE_PERCENT as f64;
        best(points, &|point| (point.part_percent as f64 - even).abs() + HARDLY * service.busy(point))
    });
    let starts = [narrow, beside.collect()];
    let found = starts.map(|start| descend(services, &candidates, start, most_need));
    let cost = |found: &Points| -> f64 {
        services.iter().zip(&found.each).map(|(service, point)| service.rate_hz * service.cost(point)).sum()
    };
    let [narrow, beside] = found;
    let is_cheaper = beside.need <= most_need && cost(&beside) < cost(&narrow);
    let is_better = if narrow.need <= most_need { is_cheaper } else { beside.need < narrow.need };
    if is_better { beside } else { narrow }
}

/// Changes the points of single tenants until the need is at most `most_need`. Each step makes the
/// change that lowers the need most.
fn descend(
    services: &[Service<'_>],
    candidates: &[Vec<Point>],
    mut each: Vec<Point>,
    most_need: f64,
) -> Points {
    let mut least = need(services, &each);
    while least > most_need {
        let mut best: Option<(f64, usize, Point)> = None;
        for (tenant, points) in candidates.iter().enumerate() {
            let before = each[tenant];
            for point in points {
                each[tenant] = *point;
                let with = need(services, &each);
                if with < best.map_or(least - NEGLIGIBLE, |(least, ..)| least) {
                    best = Some((with, tenant, *point));
                }
            }
            each[tenant] = before;
        }
        let Some((with, tenant, point)) = best else { break };
        each[tenant] = point;
        least = with;
    }
    Points { each, need: least }
}
