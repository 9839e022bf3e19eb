//! Tests of entitlements: examples, and properties for any input.

use super::*;
use crate::demand::Demand;
use crate::priority::{Criticality, Priority, Terms, Usage, Weights};
use proptest::prelude::*;

fn of(requests: &[Request]) -> Vec<Entitlement> {
    entitlements(&(1..).zip(requests.iter().copied()).collect()).into_values().collect()
}

fn ppm(requests: &[Request]) -> Vec<u32> {
    of(requests).into_iter().map(|owed| owed.ppm).collect()
}

fn asked(asked_ppm: u32) -> Request {
    Request { asked_ppm: Some(asked_ppm), ..Request::default() }
}

fn guaranteed(asked_ppm: u32) -> Request {
    Request { class: Class::Guaranteed, ..asked(asked_ppm) }
}

fn priority(priority_ppm: u32) -> Request {
    Request { priority_ppm, ..Request::default() }
}

const NONE: fn() -> Request = Request::default;

#[test]
fn a_tenant_that_asks_gets_its_share_and_the_rest_is_split_evenly_among_equals() {
    assert!(ppm(&[]).is_empty());
    assert_eq!(ppm(&[NONE()]), [PPM]);
    assert_eq!(of(&[NONE()])[0].rule, Rule::Rest, "nobody's cap gives it everything");
    assert_eq!(ppm(&[NONE(), NONE()]), [500_000, 500_000]);
    assert_eq!(ppm(&[asked(700_000), asked(300_000)]), [700_000, 300_000]);
    assert_eq!(ppm(&[asked(500_000), NONE(), NONE()]), [500_000, 250_000, 250_000]);
    assert_eq!(ppm(&[asked(200_000)]), [200_000]);
}

#[test]
fn the_rest_is_split_by_priority() {
    assert_eq!(ppm(&[asked(500_000), priority(750_000), priority(250_000)]), [500_000, 375_000, 125_000]);
}

#[test]
fn requests_beyond_the_whole_shrink_in_proportion() {
    assert_eq!(ppm(&[asked(800_000), asked(800_000)]), [500_000, 500_000]);
    assert_eq!(ppm(&[asked(900_000), asked(300_000)]), [750_000, 250_000]);
    assert_eq!(of(&[asked(900_000), asked(300_000)])[0].rule, Rule::Shrunk);
}

#[test]
fn a_tenant_that_does_not_ask_is_not_starved_by_those_that_ask_for_everything() {
    assert_eq!(ppm(&[asked(PPM), NONE()]), [990_000, 10_000]);
}

#[test]
fn an_idle_tenants_share_is_not_kept_from_tenants_that_ask_for_nothing() {
    let idle = |request: Request| Request { is_idle: true, ..request };
    assert_eq!(ppm(&[asked(PPM), asked(500_000), NONE()]), [660_000, 330_000, 10_000]);
    assert_eq!(ppm(&[idle(asked(PPM)), asked(500_000), NONE()]), [660_000, 500_000, 500_000]);
    let crowd: Vec<Request> =
        [NONE(), asked(500_000)].into_iter().chain((0..50).map(|_| idle(NONE()))).collect();
    assert_eq!(ppm(&crowd)[..2], [500_000, 500_000], "notebooks that nobody uses");
    assert_eq!(
        ppm(&[idle(NONE()), idle(asked(700_000))]),
        [300_000, 700_000],
        "as ever where nobody is at work"
    );
}

#[test]
fn a_guarantee_does_not_shrink_however_many_come() {
    assert_eq!(ppm(&[guaranteed(600_000), asked(800_000), asked(800_000)]), [600_000, 200_000, 200_000]);
    let crowd: Vec<Request> = std::iter::once(guaranteed(900_000)).chain((0..100).map(|_| NONE())).collect();
    assert_eq!(ppm(&crowd)[0], 900_000);
    assert!(of(&crowd).iter().all(|owed| owed.weight_ppm >= 1));
}

#[test]
fn guarantees_that_do_not_fit_are_told_apart() {
    assert!(fits([guaranteed(600_000), guaranteed(400_000), asked(PPM)]));
    assert!(!fits([guaranteed(600_000), guaranteed(400_001)]));
}

#[test]
fn best_effort_is_owed_nothing_and_has_a_weight_among_its_like() {
    let best_effort = |priority_ppm| Request { class: Class::BestEffort, ..priority(priority_ppm) };
    let owed = of(&[NONE(), best_effort(600_000), best_effort(200_000)]);
    assert_eq!(owed.iter().map(|owed| owed.ppm).collect::<Vec<_>>(), [PPM, 0, 0]);
    assert_eq!(owed[1].weight_ppm, 3 * owed[2].weight_ppm);
    assert_eq!(owed[1].rule, Rule::Gaps);
}

#[test]
fn a_users_cap_binds_what_is_asked_and_what_is_left_over_and_others_get_what_it_leaves() {
    let owed =
        of(&[Request { cap_ppm: 400_000, ..asked(800_000) }, Request { cap_ppm: 200_000, ..NONE() }, NONE()]);
    assert_eq!(
        owed.iter().map(|owed| (owed.ppm, owed.rule)).collect::<Vec<_>>(),
        [(400_000, Rule::Capped), (200_000, Rule::Capped), (400_000, Rule::Rest)]
    );
}

fn any_request() -> impl Strategy<Value = Request> {
    (
        prop::sample::select(&Class::ALL[..]),
        prop::option::of(10_000..=PPM),
        prop_oneof![3 => Just(PPM), 1 => 10_000..=PPM],
        0..=PPM,
        prop::bool::weighted(0.2),
    )
        .prop_map(|(class, asked_ppm, cap_ppm, priority_ppm, is_idle)| Request {
            class,
            asked_ppm,
            cap_ppm,
            priority_ppm,
            is_idle,
        })
}

/// Any requests whose guarantees fit together, because the daemon gives no others.
pub fn requests(most: usize) -> impl Strategy<Value = Vec<Request>> {
    prop::collection::vec(any_request(), 1..most).prop_map(let_in)
}

/// Returns the requests. If a guarantee does not fit beside the guarantees before it, its class is
/// fair instead.
fn let_in(mut requests: Vec<Request>) -> Vec<Request> {
    let mut promised = 0;
    for request in &mut requests {
        if promised + request.promised() > WHOLE {
            request.class = Class::Fair;
        }
        promised += request.promised();
    }
    requests
}

/// A thousand such requests. The larger the scale, the less each tenant asks for, and the lower its
/// cap if it has one. So much is left to tenants without a wish.
fn crowds() -> impl Strategy<Value = Vec<Request>> {
    let requests = prop::collection::vec(any_request(), 1000);
    (requests, prop::sample::select(&[1, 30, 1_000][..])).prop_map(|(requests, scale)| {
        let scaled = |request: Request| Request {
            asked_ppm: request.asked_ppm.map(|ppm| ppm / scale),
            cap_ppm: if request.cap_ppm < PPM { request.cap_ppm / scale } else { PPM },
            ..request
        };
        let_in(requests.into_iter().map(scaled).collect())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn shares_never_exceed_the_whole_and_everybody_has_a_weight(requests in requests(40)) {
        let owed = of(&requests);
        for idle in [false, true] {
            let alike = requests.iter().zip(&owed).filter(|(request, _)| request.is_idle == idle);
            prop_assert!(alike.map(|(_, owed)| u64::from(owed.ppm)).sum::<u64>() <= WHOLE);
        }
        prop_assert!(owed.iter().all(|owed| owed.weight_ppm >= 1));
    }

    #[test]
    fn an_idle_tenant_changes_nothing_for_the_others(requests in requests(40)) {
        let awake = |request: &&Request| !request.is_idle;
        let beside: Vec<Entitlement> =
            requests.iter().zip(of(&requests)).filter(|(request, _)| awake(request)).map(|(_, owed)| owed).collect();
        let alone: Vec<Request> = requests.iter().filter(awake).copied().collect();
        prop_assert_eq!(beside, of(&alone));
    }

    #[test]
    fn an_idle_tenant_is_owed_what_it_has_when_all_are_back(requests in requests(40)) {
        let back: Vec<Request> = requests.iter().map(|request| Request { is_idle: false, ..*request }).collect();
        for ((request, owed), then) in requests.iter().zip(of(&requests)).zip(of(&back)) {
            prop_assert!(!request.is_idle || owed == then, "{owed:?} and then {then:?}");
        }
    }

    #[test]
    fn guarantees_and_caps_are_kept(requests in requests(40)) {
        for (request, owed) in requests.iter().zip(of(&requests)) {
            prop_assert!(u64::from(owed.ppm) >= request.promised());
            prop_assert!(owed.ppm <= request.cap_ppm);
        }
    }

    #[test]
    fn a_tenant_that_asked_for_nothing_has_the_floor_whatever_others_ask(requests in requests(40)) {
        let unasked: Vec<(Request, u32)> = requests
            .iter()
            .zip(ppm(&requests))
            .filter(|(request, _)| {
                !request.is_idle && request.class != Class::BestEffort && request.asked_ppm.is_none()
            })
            .map(|(request, ppm)| (*request, ppm))
            .collect();
        let count = unasked.len() as u64;
        let awake = requests.iter().filter(|request| !request.is_idle).copied();
        let floor = (count * UNASKED_FLOOR_PPM).min(UNASKED_LIMIT_PPM).min(WHOLE - promised_ppm(awake));
        let room: u64 = unasked.iter().map(|(request, _)| u64::from(request.cap_ppm)).sum();
        let owed: u64 = unasked.iter().map(|(_, ppm)| u64::from(*ppm)).sum();
        // Each tenant loses less than a millionth to rounding.
        prop_assert!(owed + count >= floor.min(room), "{owed} of {floor}");
    }

    #[test]
    fn equals_are_owed_the_same_wherever_they_stand(mut requests in requests(12), twin in any::<prop::sample::Index>(), place in any::<prop::sample::Index>()) {
        let twin = requests[twin.index(requests.len())];
        requests.insert(place.index(requests.len() + 1), twin);
        let owed = of(&requests);
        let mut twins = requests.iter().zip(&owed).filter(|(request, _)| **request == twin).map(|(_, owed)| owed);
        let first = twins.next().unwrap();
        prop_assert!(twins.clone().next().is_some() && twins.all(|other| other == first), "{owed:?}");
    }

    #[test]
    fn raising_what_one_asks_or_its_priority_never_lowers_its_share(
        mut requests in requests(12), share in 10_000..=PPM, priority in 0..=PPM
    ) {
        let before = of(&requests)[0];
        let mut prioritised = requests.clone();
        prioritised[0].priority_ppm = prioritised[0].priority_ppm.max(priority);
        let raised = of(&prioritised)[0];
        prop_assert!(raised.weight_ppm >= before.weight_ppm && raised.ppm >= before.ppm);
        if let Some(asked_ppm) = requests[0].asked_ppm {
            requests[0].asked_ppm = Some(asked_ppm.max(share));
            if fits(requests.iter().copied()) {
                prop_assert!(of(&requests)[0].ppm >= before.ppm);
            }
        }
    }

    #[test]
    fn no_fair_tenant_is_left_with_nothing_unless_guarantees_take_all(requests in requests(40)) {
        let promised = promised_ppm(requests.iter().copied());
        for (request, owed) in requests.iter().zip(of(&requests)) {
            if request.class == Class::Fair && WHOLE - promised >= 40 * UNASKED_FLOOR_PPM {
                prop_assert!(owed.ppm > 0, "{request:?} of {requests:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, max_shrink_iters: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn a_thousand_tenants_keep_every_promise(requests in crowds()) {
        let owed = of(&requests);
        for idle in [false, true] {
            let alike = requests.iter().zip(&owed).filter(|(request, _)| request.is_idle == idle);
            prop_assert!(alike.map(|(_, owed)| u64::from(owed.ppm)).sum::<u64>() <= WHOLE);
        }
        prop_assert!(owed.iter().all(|owed| owed.weight_ppm >= 1));
        for (owed, request) in owed.iter().zip(&requests) {
            prop_assert!(owed.ppm <= request.cap_ppm && u64::from(owed.ppm) >= request.promised(), "{owed:?} of {request:?}");
        }
        let awake = || requests.iter().zip(&owed).filter(|(request, _)| !request.is_idle);
        let wanted = |request: &Request| u64::from(request.asked_ppm.unwrap_or(PPM).min(request.cap_ppm));
        let owners = || awake().filter(|(request, _)| request.class != Class::BestEffort);
        let room = owners().map(|(request, _)| wanted(request)).sum::<u64>().min(WHOLE);
        // Each tenant loses less than a millionth to rounding.
        prop_assert!(owners().map(|(_, owed)| u64::from(owed.ppm)).sum::<u64>() + 1000 >= room, "of {room}");
    }
}

#[test]
fn a_thousand_equals_are_each_owed_a_thousandth() {
    assert!(ppm(&vec![NONE(); 1000]).iter().all(|ppm| *ppm == PPM / 1000));
}

/// A job over time: its declarations, and the GPU time and voluntary idleness in each review, ns.
fn steady() -> impl Strategy<Value = (Priority, u64, u64)> {
    let said =
        (prop::option::of(0..7_200_000_000_000u64), prop::option::of(1..7_200_000_000_000u64), 0..=PPM);
    let seen = (0..=REVIEW_NS).prop_flat_map(|work_ns| (Just(work_ns), 0..=REVIEW_NS - work_ns));
    (said, seen).prop_map(|((deadline_ns, size_ns, criticality), (work_ns, idle_ns))| {
        let criticality = Criticality::from_ppm(criticality);
        (Priority { criticality, deadline_ns, size_ns }, work_ns, idle_ns)
    })
}

/// The time between two reviews of entitlements by the daemon, ns.
const REVIEW_NS: u64 = 100_000_000;

/// The change of a share if the least priority value is rounded the other way.
const ROUNDING_PPM: u32 = PPM / MIN_VALUE_PPM;

/// Returns the entitlement of each job after each of `reviews` reviews.
fn reviewed(jobs: &[(Priority, u64, u64)], reviews: u64) -> Vec<Vec<u32>> {
    let mut demands = vec![Demand::default(); jobs.len()];
    let review = |review: u64| {
        let requests: Vec<Request> = jobs
            .iter()
            .zip(&mut demands)
            .map(|((said, work_ns, idle_ns), demand)| {
                demand.observe(*work_ns, *idle_ns);
                let usage = Usage { used_ns: review * work_ns, demand_ppm: demand.ppm(), memory_ppm: 0 };
                priority(Terms::at(review * REVIEW_NS, said, &usage).value_ppm(&Weights::default()))
            })
            .collect();
        ppm(&requests)
    };
    (1..=reviews).map(review).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_oscillates_on_steady_load(jobs in prop::collection::vec(steady(), 1..6)) {
        // Without deadlines, shares change only by rounding.
        let jobs: Vec<_> =
            jobs.into_iter().map(|(said, work, idle)| (Priority { deadline_ns: None, ..said }, work, idle)).collect();
        let owed = reviewed(&jobs, 150);
        for pair in owed.windows(2) {
            for (before, after) in pair[0].iter().zip(&pair[1]) {
                prop_assert!(before.abs_diff(*after) <= ROUNDING_PPM, "{before} and then {after} ppm");
            }
        }
        let (first, last) = (&owed[0], &owed[owed.len() - 1]);
        prop_assert!(first.iter().zip(last).all(|(first, last)| first.abs_diff(*last) <= ROUNDING_PPM), "{first:?}, {last:?}");
    }

    #[test]
    fn a_deadline_that_comes_near_moves_shares_slowly(jobs in prop::collection::vec(steady(), 2..6)) {
        let owed = reviewed(&jobs, 50);
        for pair in owed.windows(2) {
            for (before, after) in pair[0].iter().zip(&pair[1]) {
                // A share changes by at most a hundredth at a time: a review is short beside the
                // time in which urgency grows.
                prop_assert!(before.abs_diff(*after) <= PPM / 100, "{before} and then {after} ppm");
            }
        }
    }
}
