use super::capacity::{Work, least_time};
use super::lags::Lags;
use super::points::{Service, has_moved, operating_points};
use super::profile::{Measured, Profile, Unfit};
use super::{LOOK_NS, Packer, Run};
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn run(part_percent: usize, length_ms: u64, due_ms: Option<u64>) -> Run {
    let length_ns = length_ms * MS;
    Run {
        part_percent,
        length_ns,
        left_ns: length_ns,
        due_ns: due_ms.map(|due| due * MS),
        behind_ns: 0.0,
        holds: false,
        accepted: None,
    }
}

fn chosen(now_ms: u64, runs: &[Run]) -> Vec<usize> {
    let mut chosen = Packer::default().choose(now_ms * MS, 0, true, runs).to_vec();
    chosen.sort_unstable();
    chosen
}

#[test]
fn with_parts_of_the_whole_the_one_with_the_greatest_lag_runs_alone() {
    let mut runs = [run(100, 10, None), run(100, 10, None), run(100, 10, None)];
    runs[1].behind_ns = 5e6;
    assert_eq!(chosen(0, &runs), [1]);
    runs[2].holds = true;
    assert_eq!(chosen(0, &runs), [1]);
    runs[1].behind_ns = 0.2e6;
    assert_eq!(chosen(0, &runs), [2], "a hand-off for so little is not worth it");
}

#[test]
fn the_set_fills_the_gpu() {
    let runs = [run(30, 8, None), run(20, 10, None), run(40, 28, None), run(50, 55, None)];
    assert_eq!(chosen(0, &runs), [0, 1, 3]);
}

#[test]
fn a_run_without_slack_goes_before_a_fuller_set() {
    let runs = [run(60, 10, Some(10)), run(50, 10, Some(1_000)), run(50, 10, Some(1_000))];
    assert_eq!(chosen(0, &runs), [0]);
    assert_eq!(chosen(900, &runs), [1, 2], "a run that cannot be in time makes room");
}

#[test]
fn under_overload_the_tenants_that_are_behind_most_are_in_time() {
    let mut runs: Vec<Run> = (0..3).map(|_| run(60, 10, Some(12))).collect();
    runs[1].behind_ns = 1e6;
    let mut packer = Packer::default();
    assert_eq!(packer.choose(0, 0, true, &runs), [1]);
    for (position, run) in runs.iter_mut().enumerate() {
        run.accepted = Some(packer.accepts(position));
    }
    assert_eq!(
        runs.iter().map(|run| run.accepted).collect::<Vec<_>>(),
        [Some(false), Some(true), Some(false)]
    );
    runs[2].behind_ns = 1e7;
    assert_eq!(packer.choose(MS, 0, true, &runs), [1], "a run stays accepted");
}

#[test]
fn lags_are_what_the_weights_say() {
    let mut lags = Lags::default();
    let (one, two) = (lags.enter(1.0), lags.enter(3.0));
    lags.set_wants(one, true);
    lags.set_wants(two, true);
    lags.charge(one, 40e6);
    assert!((lags.lag_ns(one) + 30e6).abs() < 1.0);
    assert!((lags.lag_ns(two) - 30e6).abs() < 1.0);
    lags.set_wants(one, false);
    lags.charge(two, 500e6);
    assert!((lags.lag_ns(two) - 30e6).abs() < 1.0, "a tenant alone is owed nothing by others");
    lags.set_wants(one, true);
    assert!((lags.lag_ns(one) + 30e6).abs() < 1.0, "a pause changes no lag");
    lags.charge(one, 1e9);
    assert!((lags.lag_ns(one) + 100e6).abs() < 1.0, "a long debt is forgotten");
    assert!((lags.lag_ns(two) - 100e6).abs() < 1.0, "and the others bear it");
}

#[test]
fn the_least_time_is_that_of_the_published_table() {
    let work = |part_percent, time| Work { part_percent, instances: 1, time };
    // AlexNet, MobileNet, ResNet-50 and VGG-19 in 100 ms.
    let four = [work(30, 32.0), work(20, 40.0), work(40, 56.0), work(50, 55.0)];
    assert!((least_time(&four) - 75.5).abs() < 1e-6);
    let twice = four.map(|work| Work { instances: 2, ..work });
    assert!((least_time(&twice) - 67.5).abs() < 1e-6);
    let three = [work(30, 10.3), work(40, 14.6), work(60, 15.4)];
    assert!((least_time(&three) - 20.15).abs() < 1e-6);
    assert_eq!(least_time(&[]), 0.0);
    assert!((least_time(&[work(100, 3.0), work(1, 2.0)]) - 5.0).abs() < 1e-9);
}

fn measured_by(profile: &Profile) -> Vec<Measured> {
    let parts = (10..=100).step_by(10);
    let each = parts.flat_map(|part_percent| {
        [1, 2, 4, 8, 16].map(|batch| Measured {
            batch,
            part_percent,
            time_ns: profile.time_ns(part_percent, batch),
        })
    });
    each.collect()
}

#[test]
fn a_fit_finds_the_terms_and_the_floor() {
    let plain = Profile { floor_ns: 0.0, terms_ns: [0.4e6, 0.55e6, 1.5e6, 0.1e6] };
    let fitted = Profile::fit(&measured_by(&plain)).unwrap();
    for one in measured_by(&plain) {
        let error = fitted.time_ns(one.part_percent, one.batch) / one.time_ns - 1.0;
        assert!(error.abs() < 1e-6, "{one:?} has the error {error}");
    }
    let floored = Profile { floor_ns: 20e6, terms_ns: [1e6, 1e6, 1e6, 0.2e6] };
    assert!(Profile::fit(&measured_by(&floored)).unwrap().error(&measured_by(&floored)) < 1e-6);
}

#[test]
fn a_fit_needs_measurements_in_range_and_takes_few() {
    let one = Measured { batch: 4, part_percent: 50, time_ns: 3e6 };
    let fitted = Profile::fit(&[one]).unwrap();
    assert!((fitted.time_ns(50, 4) / 3e6 - 1.0).abs() < 1e-6);
    assert_eq!(Profile::fit(&[]), Err(Unfit::Nothing));
    assert_eq!(Profile::fit(&[one, Measured { part_percent: 0, ..one }]), Err(Unfit::OutOfRange(1)));
    assert_eq!(Profile::fit(&[Measured { time_ns: f64::NAN, ..one }]), Err(Unfit::OutOfRange(0)));
}

#[test]
fn knee_efficacy_and_batch_follow_the_curve() {
    // 6 ms of work that SMs shorten, 2 ms that they do not, a request.
    let profile = Profile { floor_ns: 0.0, terms_ns: [0.0, 6e6, 0.0, 2e6] };
    assert_eq!(profile.knee_percent(1, 0.1), 89);
    assert!((profile.efficacy(100, 1) - 1.0 / (0.008 * 0.008)).abs() < 1e-6);
    assert_eq!(profile.best_batch(100, &[1, 2, 4, 8], 50e6, 0.0), Some(1));
    let with_constant = Profile { floor_ns: 0.0, terms_ns: [0.0, 1e6, 4e6, 0.0] };
    assert_eq!(with_constant.best_batch(100, &[1, 2, 4, 8], 50e6, 0.0), Some(4));
    assert_eq!(with_constant.best_batch(100, &[1, 2, 4, 8], 50e6, 44e6), Some(2));
    assert_eq!(with_constant.best_batch(100, &[1, 2, 4, 8], 8e6, 0.0), None);
}

#[test]
fn operating_points_are_as_narrow_as_deadlines_and_capacity_allow() {
    let profile = Profile { floor_ns: 0.0, terms_ns: [0.0, 4e6, 0.0, 1e6] };
    let parts: Vec<usize> = (10..=100).step_by(10).collect();
    let service = Service {
        profile: &profile,
        batches: &[1],
        parts_percent: &parts,
        rate_hz: 10.0,
        slo_ns: 50e6,
        pause_ns: 0.0,
        instances: 1,
    };
    let alone = operating_points(&[service], 1.0);
    assert_eq!(alone.each[0].part_percent, 20);
    assert!(alone.each[0].in_time);
    let hurried = operating_points(&[Service { slo_ns: 18e6, ..service }], 1.0);
    assert_eq!(hurried.each[0].part_percent, 50);
    let busy = operating_points(&[Service { rate_hz: 100.0, ..service }; 2], 1.0);
    assert!(busy.need <= 1.0, "{busy:?}");
    let too_much = operating_points(&[Service { rate_hz: 1_000.0, ..service }; 2], 1.0);
    assert!(too_much.need > 1.0);
    assert!(!too_much.each[0].in_time);
    assert!(has_moved(100.0, 111.0) && has_moved(100.0, 89.0) && !has_moved(100.0, 109.0));
}

/// A tenant of a simulated GPU without hand-offs: runs of a length, one after the other.
#[derive(Debug, Clone, Copy)]
struct Tenant {
    part_percent: usize,
    length_ms: u64,
    /// Time from one run to the next, ms. Without a period, the tenant always has work.
    period_ms: Option<u64>,
}

/// Runs the tenants, and returns each one's missed runs and its time with a place, ms.
fn simulate(tenants: &[Tenant], duration_ms: u64) -> Vec<(u64, u64)> {
    let (mut packer, mut lags) = (Packer::default(), Lags::default());
    let mut had = vec![(0, 0); tenants.len()];
    let mut left_ms: Vec<u64> = tenants.iter().map(|tenant| tenant.length_ms).collect();
    let mut holds = vec![false; tenants.len()];
    for tenant in tenants {
        let owed = tenant.period_ms.map_or(1.0, |period| tenant.length_ms as f64 / period as f64);
        lags.enter(owed * tenant.part_percent as f64);
    }
    for now_ms in 0..duration_ms {
        let mut runs = Vec::new();
        let mut of = Vec::new();
        for (index, tenant) in tenants.iter().enumerate() {
            if let Some(period_ms) = tenant.period_ms.filter(|period_ms| now_ms % period_ms == 0) {
                had[index].0 += u64::from(now_ms > 0 && left_ms[index] > 0);
                left_ms[index] = tenant.length_ms;
                assert!(period_ms >= 1);
            }
            lags.set_wants(index, left_ms[index] > 0);
            if left_ms[index] > 0 {
                runs.push(Run {
                    part_percent: tenant.part_percent,
                    length_ns: tenant.length_ms * MS,
                    left_ns: left_ms[index] * MS,
                    due_ns: tenant.period_ms.map(|period_ms| (now_ms / period_ms + 1) * period_ms * MS),
                    behind_ns: lags.lag_ns(index) * 100.0 / tenant.part_percent as f64,
                    holds: holds[index],
                    accepted: None,
                });
                of.push(index);
            }
        }
        holds.fill(false);
        let mut used = 0;
        for &run in packer.choose(now_ms * MS, 0, false, &runs) {
            let index = of[run];
            used += tenants[index].part_percent;
            assert!(!holds[index], "a run is in the set once");
            holds[index] = true;
            had[index].1 += 1;
            left_ms[index] -= 1;
            lags.charge(index, LOOK_NS as f64 * tenants[index].part_percent as f64 / 100.0);
            if left_ms[index] == 0 && tenants[index].period_ms.is_none() {
                left_ms[index] = tenants[index].length_ms;
            }
        }
        assert!(used <= 100, "{used} % of the SMs are in use");
        let fits = |tenant: &Tenant| used + tenant.part_percent <= 100;
        let waits = of.iter().any(|index| !holds[*index] && left_ms[*index] > 0 && fits(&tenants[*index]));
        assert!(!waits, "a run that fits waits");
    }
    had
}

fn any_tenant() -> impl Strategy<Value = Tenant> {
    (1_usize..=100, 1_u64..40, proptest::option::of(1_u64..4)).prop_map(
        |(part_percent, length_ms, periods)| Tenant {
            part_percent,
            length_ms,
            period_ms: periods.map(|times| 20 << times),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_set_is_wider_than_the_gpu_and_no_run_that_fits_waits(
        tenants in proptest::collection::vec(any_tenant(), 1..9),
    ) {
        simulate(&tenants, 400);
    }

    #[test]
    fn no_tenant_that_always_has_work_starves(
        parts in proptest::collection::vec((1_usize..=100, 1_u64..60), 1..8),
    ) {
        let tenants: Vec<Tenant> = parts
            .iter()
            .map(|&(part_percent, length_ms)| Tenant { part_percent, length_ms, period_ms: None })
            .collect();
        // Weights in proportion to the parts owe each tenant the same time with a place. The least
        // time for a millisecond of each bounds the time that all can have.
        let each: Vec<Work> = tenants
            .iter()
            .map(|tenant| Work { part_percent: tenant.part_percent, instances: 1, time: 1.0 })
            .collect();
        let duration_ms = 6_000;
        let owed_ms = duration_ms as f64 / least_time(&each);
        for (index, (_, had_ms)) in simulate(&tenants, duration_ms).into_iter().enumerate() {
            prop_assert!(had_ms as f64 >= 0.6 * owed_ms, "tenant {index} had {had_ms} of {owed_ms} ms");
        }
    }

    #[test]
    fn any_figures_are_harmless(
        runs in proptest::collection::vec(
            (any::<usize>(), any::<u64>(), any::<u64>(), proptest::option::of(any::<u64>()), any::<f64>(), any::<bool>()),
            0..20,
        ),
        now_ns in any::<u64>(),
        handoff_ns in any::<u64>(),
        overloaded in any::<bool>(),
    ) {
        let runs: Vec<Run> = runs
            .into_iter()
            .map(|(part_percent, length_ns, left_ns, due_ns, behind_ns, holds)| {
                Run { part_percent, length_ns, left_ns, due_ns, behind_ns, holds, accepted: holds.then_some(behind_ns > 0.0) }
            })
            .collect();
        let mut packer = Packer::default();
        let set = packer.choose(now_ns, handoff_ns, overloaded, &runs);
        prop_assert!(set.iter().map(|index| runs[*index].part()).sum::<usize>() <= 100);
        let mut once = set.to_vec();
        once.sort_unstable();
        once.dedup();
        prop_assert_eq!(once.len(), set.len());
        prop_assert!(runs.is_empty() || !set.is_empty());
    }
}
