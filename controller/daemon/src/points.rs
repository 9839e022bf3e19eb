//! Operating points of tenants with an SLO and a profile: for each tenant, a part of the SMs and a
//! batch. With these points, the GPU answers all tenants' requests in time, on the least total
//! area. If a rate of requests changes by more than a tenth, the daemon computes the points again.
//! The points are advice.

use crate::Shared;
use deepres_abi::PPM;
use deepres_model::admin::{OperatingPointStatus, Status};
use deepres_model::fitted::Fitted;
use deepres_policy::TenantId;
use deepres_policy::packing::knapsack::WHOLE_PERCENT;
use deepres_policy::packing::points::{MOST_NEED, Service, has_moved, operating_points};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use tokio::time::sleep;

/// The most tenants of a GPU for which the daemon computes operating points, and the most batches
/// of all these tenants together. Under overload, eight tenants with twenty parts and five batches
/// each take about a second of another thread.
const MOST_SERVICES: usize = 8;
const MOST_BATCHES: usize = 40;
/// After a computation, the daemon pauses for this many times the computation's duration. So a user
/// whose rate of requests changes often cannot keep a CPU busy.
const PAUSES: u32 = 10;

/// The figures from which the daemon computes a tenant's operating point.
#[derive(Debug, Clone)]
struct Figures {
    tenant: TenantId,
    slo_ns: u64,
    rate_hz: f64,
    fitted: Fitted,
}

impl Figures {
    /// Returns whether the figures `now` have the same operating point as these figures.
    fn are_as(&self, now: &Self) -> bool {
        (self.tenant, self.slo_ns, &self.fitted) == (now.tenant, now.slo_ns, &now.fitted)
            && !has_moved(self.rate_hz, now.rate_hz)
    }
}

/// The operating points of the tenants.
#[derive(Debug, Default)]
pub struct Points {
    /// The figures of each GPU's tenants for which the points were computed, in the order of names.
    figures: BTreeMap<usize, Vec<Figures>>,
    points: BTreeMap<(TenantId, usize), OperatingPointStatus>,
}

impl Points {
    /// Returns the point of a tenant on a GPU.
    pub fn of(&self, tenant: TenantId, gpu: usize) -> Option<OperatingPointStatus> {
        self.points.get(&(tenant, gpu)).cloned()
    }

    /// Returns whether the points on a GPU are still the points for these figures.
    fn hold_for(&self, gpu: usize, now: &[Figures]) -> bool {
        let before = self.figures.get(&gpu).map_or(&[][..], Vec::as_slice);
        before.len() == now.len() && before.iter().zip(now).all(|(before, now)| before.are_as(now))
    }

    /// Sets the points of all tenants on a GPU.
    fn set(&mut self, gpu: usize, figures: Vec<Figures>, points: Vec<OperatingPointStatus>) {
        self.points.retain(|(_, of_gpu), _| *of_gpu != gpu);
        self.points.extend(figures.iter().map(|one| (one.tenant, gpu)).zip(points));
        self.figures.insert(gpu, figures);
    }
}

/// After each status, computes the operating points that have changed. Never returns.
pub async fn serve(shared: Rc<Shared>) {
    let mut published = shared.status.subscribe();
    // The registry publishes as long as the daemon serves.
    while published.changed().await.is_ok() {
        let status = Arc::clone(&published.borrow_and_update());
        for gpu in 0..status.gpus.len() {
            let figures = figures(&shared, &status, gpu);
            if shared.points.borrow().hold_for(gpu, &figures) {
                continue;
            }
            let task = figures.clone();
            let begun = Instant::now();
            // The computation panics for no figures.
            if let Ok(points) = tokio::task::spawn_blocking(move || compute(&task)).await {
                shared.points.borrow_mut().set(gpu, figures, points);
            }
            sleep(PAUSES * begun.elapsed()).await;
        }
    }
}

/// Returns the figures of the tenants that serve requests on a GPU and have a profile.
fn figures(shared: &Shared, status: &Status, gpu: usize) -> Vec<Figures> {
    let registry = shared.registry.borrow();
    let of = |tenant: &deepres_model::admin::TenantStatus| {
        let requests = tenant.gpus.iter().find(|account| account.gpu == gpu)?.requests.as_ref()?;
        let own = registry.tenancy.tenants().get(&tenant.name).filter(|own| own.members.is_present())?;
        let fitted = own.profiled.as_ref()?.fitted.clone();
        // The daemon sees a run as one request, and each run has a batch of requests.
        let rate_hz = requests.rate_per_second * f64::from(fitted.known_batch()?);
        (rate_hz > 0.0).then_some(Figures { tenant: own.id, slo_ns: requests.slo_ns, rate_hz, fitted })
    };
    bounded(status.tenants.iter().filter_map(of))
}

/// Returns the first figures, as many as the daemon computes points for.
fn bounded(all: impl Iterator<Item = Figures>) -> Vec<Figures> {
    let mut batches = 0;
    let fits = |one: &Figures| {
        batches += one.fitted.batches.len();
        batches <= MOST_BATCHES
    };
    all.take(MOST_SERVICES).take_while(fits).collect()
}

/// Returns the points, in the order of the figures.
fn compute(figures: &[Figures]) -> Vec<OperatingPointStatus> {
    let parts: Vec<Vec<usize>> = figures.iter().map(|one| one.fitted.parts_percent()).collect();
    let services: Vec<Service<'_>> = figures
        .iter()
        .zip(&parts)
        .map(|(one, parts)| one.fitted.service(parts, one.slo_ns, one.rate_hz))
        .collect();
    let found = operating_points(&services, MOST_NEED);
    let ppm = |part: f64| (part * f64::from(PPM)).round() as u32;
    let each = figures.iter().zip(&found.each).map(|(one, point)| OperatingPointStatus {
        sm_ppm: ppm(point.part_percent as f64 / WHOLE_PERCENT as f64),
        batch: point.batch,
        run_ns: point.time_ns as u64,
        is_in_time: point.in_time,
        rate_per_second: one.rate_hz,
        need_ppm: ppm(found.need),
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_model::profile::{Point, Profile};

    const MS: u64 = 1_000_000;

    /// A tenant whose runs take (1 + b) / S + 1 ms.
    fn figures(tenant: TenantId, rate_hz: f64) -> Figures {
        let each = [1, 4].into_iter().flat_map(|batch| {
            [10, 40, 100].into_iter().map(move |part_percent| {
                let ms = (1.0 + f64::from(batch)) * 100.0 / part_percent as f64 + 1.0;
                Point { batch, part_percent, ms, latency_ms: None, requests: None }
            })
        });
        let profile = Profile { points: each.collect(), ..Profile::default() };
        Figures { tenant, slo_ns: 40 * MS, rate_hz, fitted: Fitted::of(&profile, &[]).unwrap() }
    }

    #[test]
    fn points_are_computed_again_when_a_rate_moves_by_more_than_a_tenth() {
        let mut points = Points::default();
        let now = vec![figures(1, 50.0), figures(2, 100.0)];
        assert!(points.hold_for(0, &[]) && !points.hold_for(0, &now));
        points.set(0, now.clone(), compute(&now));
        assert!(points.hold_for(0, &[figures(1, 54.0), figures(2, 91.0)]));
        assert!(!points.hold_for(0, &[figures(1, 56.0), figures(2, 100.0)]));
        assert!(!points.hold_for(0, &now[..1]) && !points.hold_for(1, &now));
        let hurried = Figures { slo_ns: 10 * MS, ..figures(2, 100.0) };
        assert!(!points.hold_for(0, &[figures(1, 50.0), hurried]));
        points.set(0, Vec::new(), Vec::new());
        assert!(points.of(1, 0).is_none());
    }

    #[test]
    fn a_point_is_narrow_if_that_is_in_time_and_the_need_is_that_of_all_tenants() {
        let alone = compute(&[figures(1, 50.0)]);
        let point = &alone[0];
        assert!(point.is_in_time && point.sm_ppm < PPM / 2 && point.run_ns <= 20 * MS, "{point:?}");
        let beside = compute(&[figures(1, 50.0), figures(2, 100.0)]);
        assert!(beside[0].need_ppm > point.need_ppm && beside[0].need_ppm < PPM, "{beside:?}");
        let overload = compute(&[figures(1, 900.0), figures(2, 900.0)]);
        assert!(overload[0].need_ppm > PPM, "{overload:?}");
    }

    #[test]
    fn the_tenants_and_the_batches_of_a_computation_are_bounded() {
        let many = |batches: u32| {
            let mut one = figures(1, 50.0);
            one.fitted.batches = (1..=batches).collect();
            std::iter::repeat_n(one, 20)
        };
        assert_eq!((bounded(many(1)).len(), bounded(many(17)).len()), (MOST_SERVICES, 2));
    }
}
