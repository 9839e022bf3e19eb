//! What is owed, by example and for any input.

use super::*;
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
fn who_asks_gets_it_and_the_rest_is_split_evenly_among_equals() {
    assert!(ppm(&[]).is_empty());
    assert_eq!(ppm(&[NONE()]), [PPM]);
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
fn who_does_not_ask_is_not_starved_by_those_who_ask_for_everything() {
    assert_eq!(ppm(&[asked(PPM), NONE()]), [990_000, 10_000]);
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
    )
        .prop_map(|(class, asked_ppm, cap_ppm, priority_ppm)| Request {
            class,
            asked_ppm,
            cap_ppm,
            priority_ppm,
        })
}

/// Any requests whose guarantees can be kept: the daemon lets in no others.
pub fn requests(most: usize) -> impl Strategy<Value = Vec<Request>> {
    prop::collection::vec(any_request(), 1..most).prop_map(|mut requests| {
        let mut promised = 0;
        for request in &mut requests {
            if promised + request.promised() > WHOLE {
                request.class = Class::Fair;
            }
            promised += request.promised();
        }
        requests
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn shares_never_exceed_the_whole_and_everybody_has_a_weight(requests in requests(40)) {
        let owed = of(&requests);
        prop_assert!(owed.iter().map(|owed| u64::from(owed.ppm)).sum::<u64>() <= WHOLE);
        prop_assert!(owed.iter().all(|owed| owed.weight_ppm >= 1));
    }

    #[test]
    fn guarantees_and_caps_are_kept(requests in requests(40)) {
        for (request, owed) in requests.iter().zip(of(&requests)) {
            prop_assert!(u64::from(owed.ppm) >= request.promised());
            prop_assert!(owed.ppm <= request.cap_ppm);
        }
    }

    #[test]
    fn equals_get_equal_to_a_millionth(requests in requests(12)) {
        let owed = of(&requests);
        for (a, first) in requests.iter().zip(&owed) {
            for (b, second) in requests.iter().zip(&owed) {
                prop_assert!(a != b || first == second);
            }
        }
    }

    #[test]
    fn raising_what_one_asks_or_its_priority_never_lowers_its_share(
        mut requests in requests(12), share in 10_000..=PPM, priority in 0..=PPM
    ) {
        let before = of(&requests)[0];
        let mut prioritised = requests.clone();
        prioritised[0].priority_ppm = prioritised[0].priority_ppm.max(priority);
        prop_assert!(of(&prioritised)[0].weight_ppm >= before.weight_ppm);
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

#[test]
fn a_thousand_tenants_are_worked_out() {
    let requests: Vec<Request> = (0..1000).map(|tenant| priority(tenant % 7 * 100_000)).collect();
    assert!(ppm(&requests).iter().all(|ppm| *ppm > 0));
}
