//! Operating points: the part of the SMs and the batch of each tenant.
//!
//! The area of a run falls with its part. So each tenant gets the narrowest part, with the batch,
//! at which the area of its work is least and its requests are answered in time. If the GPU could
//! not do the work of all tenants with these parts ([`least_time`]), some tenants get wider parts.

use alloc::vec::Vec;

use super::capacity::{Work, least_time};
use super::profile::Profile;

/// The operating points are computed again if a rate moves by more than one part in this number.
const RATE_MOVES: f64 = 10.0;
/// Parts that operating points use are multiples of this, percent.
const STEP_PERCENT: usize = 5;
/// The part of its time that a tenant's own runs may take, so that bursts of requests are done.
const MOST_BUSY: f64 = 0.95;

/// A tenant that answers requests.
#[derive(Debug, Clone, Copy)]
pub struct Service<'a> {
    /// The time of its runs.
    pub profile: &'a Profile,
    /// The batches that it can run.
    pub batches: &'a [u32],
    /// Requests a second.
    pub rate_hz: f64,
    /// The time within which a run is to be done, from the moment at which its requests are there,
    /// ns. For requests that come one by one it includes the time in which the batch gathers.
    pub slo_ns: f64,
    /// Whether requests come one by one. Otherwise a whole batch comes at once.
    pub gathers: bool,
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
    /// The part of its time that the GPU needs for all work. More than 1 is overload.
    pub need: f64,
}

/// Says whether a rate moved so far that operating points are to be computed again.
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

    fn area(&self, point: &Point) -> f64 {
        self.busy(point) * point.part_percent as f64
    }

    /// Returns all points. If requests are in time at some points, returns these alone.
    fn candidates(&self) -> Vec<Point> {
        let parts = (STEP_PERCENT..=100).step_by(STEP_PERCENT);
        let each = parts.flat_map(|part_percent| {
            self.batches.iter().map(move |&batch| {
                let time_ns = self.profile.time_ns(part_percent, batch);
                let gathers_s =
                    if self.gathers { f64::from(batch.saturating_sub(1)) / self.rate_hz } else { 0.0 };
                let point = Point { part_percent, batch, time_ns, in_time: false };
                let keeps_up = self.busy(&point) <= MOST_BUSY * self.instances.max(1) as f64;
                Point { in_time: keeps_up && gathers_s * 1e9 + time_ns <= self.slo_ns, ..point }
            })
        });
        let mut all: Vec<Point> = each.collect();
        if all.iter().any(|point| point.in_time) {
            all.retain(|point| point.in_time);
        }
        all
    }
}

/// Returns the operating points of the tenants: of least total area, such that the GPU needs at
/// most `most_need` of its time. If no points are so good, returns the points of least need that
/// the search finds. A tenant without a batch gets all SMs and batches of one request.
pub fn operating_points(services: &[Service<'_>], most_need: f64) -> Points {
    let least = |service: &Service<'_>, points: &[Point]| {
        let area = |point: &Point| service.area(point);
        let best = points.iter().copied().min_by(|one, other| area(one).total_cmp(&area(other)));
        let time_ns = service.profile.time_ns(100, 1);
        best.unwrap_or(Point { part_percent: 100, batch: 1, time_ns, in_time: false })
    };
    let candidates: Vec<Vec<Point>> = services.iter().map(Service::candidates).collect();
    let mut each: Vec<Point> =
        services.iter().zip(&candidates).map(|(service, points)| least(service, points)).collect();
    let mut work: Vec<Work> = services.iter().zip(&each).map(|(service, point)| service.work(point)).collect();
    let mut need = least_time(&work);
    // Each step takes the change of one tenant's point that lowers the need most.
    while need > most_need {
        let mut best: Option<(f64, usize, Point)> = None;
        for (tenant, service) in services.iter().enumerate() {
            let before = work[tenant];
            for point in &candidates[tenant] {
                work[tenant] = service.work(point);
                let with = least_time(&work);
                if with < best.map_or(need - NEGLIGIBLE, |(least, ..)| least) {
                    best = Some((with, tenant, *point));
                }
            }
            work[tenant] = before;
        }
        let Some((with, tenant, point)) = best else { break };
        work[tenant] = services[tenant].work(&point);
        each[tenant] = point;
        need = with;
    }
    Points { each, need }
}

/// A change of points that lowers the need by less is not worth a change.
const NEGLIGIBLE: f64 = 1e-6;
