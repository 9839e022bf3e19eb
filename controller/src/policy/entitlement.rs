//! The share of a GPU that each tenant is owed.
//!
//! Who asked for a share is owed it. Who did not splits what the others leave, evenly. Two rules keep everybody alive when the
//! requests fill the GPU: tenants that did not ask are owed [`UNASKED_FLOOR_PPM`] each (together at most [`UNASKED_LIMIT_PPM`]), and
//! requests that add up to more than what then remains shrink in proportion.

use crate::policy::TenantId;
use deepres_abi::PPM;
use std::collections::BTreeMap;

/// What a tenant that asked for nothing is owed beside tenants that asked for everything.
pub const UNASKED_FLOOR_PPM: u64 = 10_000;

/// What all of those are owed together, at most.
pub const UNASKED_LIMIT_PPM: u64 = 500_000;

/// What a tenant asks for, and what its user may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The share asked for, if any.
    pub asked_ppm: Option<u32>,
    /// The most that the tenant can be owed.
    pub cap_ppm: u32,
}

impl Default for Request {
    fn default() -> Self {
        Self { asked_ppm: None, cap_ppm: PPM }
    }
}

/// The entitlement of each tenant, parts per million. They add up to [`PPM`] at most; each is at least 1.
pub fn entitlements(requests: &BTreeMap<TenantId, Request>) -> BTreeMap<TenantId, u32> {
    let whole = u64::from(PPM);
    let asked = |request: &Request| request.asked_ppm.map(|ppm| u64::from(ppm.min(request.cap_ppm)));
    let asked_sum: u64 = requests.values().filter_map(asked).sum();
    let unasked = requests.values().filter(|request| request.asked_ppm.is_none()).count() as u64;

    let floor = (unasked * UNASKED_FLOOR_PPM).min(UNASKED_LIMIT_PPM);
    let for_unasked = whole.saturating_sub(asked_sum).max(floor);
    let for_asked = if unasked == 0 { whole } else { whole - for_unasked };

    let owed = |request: &Request| match asked(request) {
        Some(ppm) if asked_sum > for_asked => ppm * for_asked / asked_sum,
        Some(ppm) => ppm,
        None => (for_unasked / unasked).min(u64::from(request.cap_ppm)),
    };
    requests.iter().map(|(tenant, request)| (*tenant, owed(request).max(1) as u32)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shares(asked: &[Option<u32>]) -> Vec<u32> {
        let requests = asked
            .iter()
            .enumerate()
            .map(|(tenant, asked_ppm)| (tenant as TenantId, Request { asked_ppm: *asked_ppm, cap_ppm: PPM }))
            .collect();
        entitlements(&requests).into_values().collect()
    }

    #[test]
    fn who_asks_gets_it_and_the_rest_is_split_evenly() {
        assert!(shares(&[]).is_empty());
        assert_eq!(shares(&[None]), [PPM]);
        assert_eq!(shares(&[None, None]), [500_000, 500_000]);
        assert_eq!(shares(&[Some(700_000), Some(300_000)]), [700_000, 300_000]);
        assert_eq!(shares(&[Some(500_000), None, None]), [500_000, 250_000, 250_000]);
        assert_eq!(shares(&[Some(200_000)]), [200_000]);
    }

    #[test]
    fn requests_beyond_the_whole_shrink_in_proportion() {
        assert_eq!(shares(&[Some(800_000), Some(800_000)]), [500_000, 500_000]);
        assert_eq!(shares(&[Some(900_000), Some(300_000)]), [750_000, 250_000]);
    }

    #[test]
    fn who_does_not_ask_is_not_starved_by_those_who_ask_for_everything() {
        assert_eq!(shares(&[Some(PPM), None]), [990_000, 10_000]);
    }

    #[test]
    fn a_users_cap_binds_both_what_is_asked_and_what_is_left_over() {
        let requests = BTreeMap::from([
            (1, Request { asked_ppm: Some(800_000), cap_ppm: 400_000 }),
            (2, Request { asked_ppm: None, cap_ppm: 200_000 }),
        ]);
        assert_eq!(entitlements(&requests).into_values().collect::<Vec<_>>(), [400_000, 200_000]);
    }

    proptest! {
        #[test]
        fn shares_never_exceed_the_whole_and_nobody_gets_none(
            asked in prop::collection::vec(prop::option::of(10_000..=PPM), 0..200)
        ) {
            let shares = shares(&asked);
            prop_assert!(shares.iter().map(|share| u64::from(*share)).sum::<u64>() <= u64::from(PPM));
            prop_assert!(shares.iter().all(|share| *share >= 1));
        }

        #[test]
        fn asking_for_more_never_gives_less_and_equals_get_equal(
            mut asked in prop::collection::vec(prop::option::of(10_000..=PPM), 1..20), more in 10_000..=PPM
        ) {
            let before = shares(&asked);
            for (i, a) in asked.iter().enumerate() {
                for (j, b) in asked.iter().enumerate() {
                    prop_assert!(a != b || before[i] == before[j]);
                }
            }
            if let Some(first) = asked[0] {
                asked[0] = Some(first.max(more));
                prop_assert!(shares(&asked)[0] >= before[0]);
            }
        }
    }
}
