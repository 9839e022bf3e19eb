//! The tenants' shares at the present demand: weighted max-min fair, after the paper DeepRes.
//!
//! A tenant's demand does not depend on the share that the tenant has ([`crate::demand`]). So a
//! tenant that uses little keeps its entitlement, and gets its part at once when it wants more.

use super::Entitlement;
use super::waterfill::{Vessel, pour};
use crate::TenantId;
use crate::class::Class;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use deepres_abi::PPM;

/// A tenant's claim to a share, beside the other tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The tenant's class.
    pub class: Class,
    /// The tenant's entitlement.
    pub owed: Entitlement,
    /// The part of the time that the tenant would use alone on the GPU, parts per million.
    pub demand_ppm: u32,
}

/// The share that a tenant gets at the present demand of all tenants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Present {
    /// The part of the GPU's time, parts per million.
    pub ppm: u32,
    /// The share for each unit of weight, for tenants that want more than they have. `None` if all
    /// tenants have as much as they want.
    pub level: Option<f64>,
}

/// Returns the share that each tenant gets if the demand stays as it is now. The shares add up to
/// at most [`PPM`].
pub fn shares(claims: &BTreeMap<TenantId, Claim>) -> BTreeMap<TenantId, Present> {
    let mut shares = BTreeMap::new();
    let mut left = u64::from(PPM);
    for of_guests in [false, true] {
        let like: Vec<_> =
            claims.iter().filter(|(_, claim)| (claim.class == Class::BestEffort) == of_guests).collect();
        let vessels: Vec<Vessel> = like
            .iter()
            .map(|(_, claim)| Vessel {
                weight: u64::from(claim.owed.weight_ppm),
                cap: u64::from(claim.demand_ppm.min(PPM)),
            })
            .collect();
        let (parts, level) = pour(left, &vessels);
        left -= parts.iter().sum::<u64>();
        let present = |part: u64| Present { ppm: u32::try_from(part).unwrap_or(PPM), level };
        shares.extend(like.into_iter().map(|(tenant, _)| *tenant).zip(parts.into_iter().map(present)));
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entitlement::tests::requests;
    use crate::entitlement::{Request, entitlements};
    use proptest::prelude::*;

    fn claims(tenants: &[(Request, u32)]) -> BTreeMap<TenantId, Claim> {
        let owed = entitlements(&(0..).zip(tenants.iter().map(|(request, _)| *request)).collect());
        let claim = |((tenant, owed), (request, demand_ppm)): ((TenantId, Entitlement), &(Request, u32))| {
            (tenant, Claim { class: request.class, owed, demand_ppm: *demand_ppm })
        };
        owed.into_iter().zip(tenants).map(claim).collect()
    }

    fn ppm(tenants: &[(Request, u32)]) -> Vec<u32> {
        shares(&claims(tenants)).into_values().map(|present| present.ppm).collect()
    }

    fn fair(priority_ppm: u32) -> Request {
        Request { priority_ppm, ..Request::default() }
    }

    #[test]
    fn time_that_a_tenant_does_not_want_flows_to_the_others_by_their_weights() {
        let [a, b, c] = [fair(500_000), fair(500_000), fair(250_000)];
        assert_eq!(ppm(&[(a, PPM), (b, PPM), (c, PPM)]), [400_000, 400_000, 200_000]);
        assert_eq!(ppm(&[(a, 100_000), (b, PPM), (c, PPM)]), [100_000, 600_000, 300_000]);
        assert_eq!(ppm(&[(a, 0), (b, PPM), (c, 50_000)]), [0, 950_000, 50_000]);
    }

    #[test]
    fn guests_have_what_owners_leave() {
        let guest = Request { class: Class::BestEffort, ..fair(500_000) };
        assert_eq!(ppm(&[(fair(500_000), 700_000), (guest, PPM)]), [700_000, 300_000]);
        assert_eq!(ppm(&[(fair(500_000), PPM), (guest, PPM)]), [PPM, 0]);
    }

    fn tenants() -> impl Strategy<Value = Vec<(Request, u32)>> {
        let request = (prop::bool::ANY, prop::option::of(10_000..=PPM), 0..=PPM).prop_map(
            |(is_guest, asked_ppm, priority_ppm)| Request {
                class: if is_guest { Class::BestEffort } else { Class::Fair },
                asked_ppm,
                ..fair(priority_ppm)
            },
        );
        prop::collection::vec((request, 0..=PPM), 1..20)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

        #[test]
        fn nobody_has_more_than_it_wants_and_nothing_idles_that_is_wanted(tenants in tenants()) {
            let had = ppm(&tenants);
            let (sum, wanted) = (had.iter().sum::<u32>(), tenants.iter().map(|(_, demand)| u64::from(*demand)).sum::<u64>());
            prop_assert!(had.iter().zip(&tenants).all(|(had, (_, demand))| had <= demand));
            prop_assert!(sum <= PPM && u64::from(sum) + tenants.len() as u64 >= wanted.min(u64::from(PPM)));
        }

        #[test]
        fn every_owner_has_what_it_is_owed_or_what_it_wants(tenants in tenants()) {
            let claims = claims(&tenants);
            for (tenant, present) in shares(&claims) {
                let Claim { class, owed, demand_ppm } = claims[&tenant];
                // One millionth is lost by rounding.
                prop_assert!(class == Class::BestEffort || present.ppm + 1 >= owed.ppm.min(demand_ppm), "{present:?} of {owed:?}");
            }
        }

        #[test]
        fn an_entitlement_does_not_depend_on_the_demand_so_it_comes_back_at_once(tenants in tenants(), demand in 0..=PPM) {
            let mut idle = tenants.clone();
            idle[0].1 = 0;
            let lent = ppm(&idle);
            prop_assert_eq!(lent[0], 0);
            let mut back = idle;
            back[0].1 = demand;
            let owed = claims(&back)[&0].owed.ppm;
            let is_guest = back[0].0.class == Class::BestEffort;
            prop_assert!(is_guest || ppm(&back)[0] + 1 >= owed.min(demand));
        }

        #[test]
        fn wanting_more_never_lowers_ones_own_share(mut tenants in tenants(), more in 0..=PPM) {
            let before = ppm(&tenants)[0];
            tenants[0].1 = tenants[0].1.saturating_add(more).min(PPM);
            prop_assert!(ppm(&tenants)[0] >= before);
        }

        #[test]
        fn raising_ones_priority_never_lowers_ones_own_share(
            requests in requests(12), demands in prop::collection::vec(0..=PPM, 12), priority in 0..=PPM
        ) {
            let mut tenants: Vec<_> = requests.into_iter().zip(demands).collect();
            let before = ppm(&tenants)[0];
            tenants[0].0.priority_ppm = tenants[0].0.priority_ppm.max(priority);
            // Rounding takes less than a millionth off each of the others' weights.
            prop_assert!(ppm(&tenants)[0] + tenants.len() as u32 >= before);
        }

        #[test]
        fn equals_that_want_as_much_have_as_much_wherever_they_stand(
            requests in requests(12), demands in prop::collection::vec(0..=PPM, 12),
            twin in any::<prop::sample::Index>(), place in any::<prop::sample::Index>()
        ) {
            let mut tenants: Vec<_> = requests.into_iter().zip(demands).collect();
            let twin = tenants[twin.index(tenants.len())];
            tenants.insert(place.index(tenants.len() + 1), twin);
            let had = ppm(&tenants);
            let mut twins = tenants.iter().zip(&had).filter(|(tenant, _)| **tenant == twin).map(|(_, had)| had);
            let first = twins.next().unwrap();
            prop_assert!(twins.clone().next().is_some() && twins.all(|other| other == first), "{had:?}");
        }
    }
}
