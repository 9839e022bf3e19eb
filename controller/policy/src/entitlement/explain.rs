//! Explains how a tenant's share comes about, as sums that a reader can check.

use super::present::{Claim, shares};
use super::{Request, Rule, awake, entitlements};
use crate::TenantId;
use crate::class::Class;
use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use deepres_abi::PPM;

/// One term of a sum that makes up a share.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Summand {
    /// The description of the term.
    pub what: String,
    /// The amount that the term adds, parts per million of the GPU. If the amount is negative, the
    /// term takes it off.
    pub ppm: i64,
}

/// A share, and the terms that add up to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Sum {
    /// The terms, without those that are zero.
    pub terms: Vec<Summand>,
    /// The sum of the terms, parts per million of the GPU.
    pub ppm: u32,
}

impl Sum {
    fn of(ppm: u32, terms: &[(&str, i64)]) -> Self {
        let terms = terms.iter().filter(|(_, ppm)| *ppm != 0);
        Self {
            terms: terms.map(|(what, ppm)| Summand { what: (*what).to_owned(), ppm: *ppm }).collect(),
            ppm,
        }
    }
}

/// The derivation of one tenant's share.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Derivation {
    /// The rule from which the tenant's entitlement follows.
    pub rule: Rule,
    /// The tenant's weight among tenants of its kind, parts per million.
    pub weight_ppm: u32,
    /// Whether the tenant is idle. Its part is then lent to the other tenants until it comes back.
    #[cfg_attr(feature = "serde", serde(default))]
    pub is_idle: bool,
    /// The entitlement while all tenants that are not idle want the GPU. For an idle tenant: the
    /// entitlement while all tenants want the GPU.
    pub owed: Sum,
    /// The part of the time that the tenant would use alone on the GPU, parts per million.
    pub demand_ppm: u32,
    /// The share while the demand of all tenants stays as it is now.
    pub present: Sum,
    /// The share for each unit of weight, for tenants that want more than they have. `present` is
    /// the lesser of the demand and of the weight times this level. `None` if all tenants have as
    /// much as they want.
    pub water_level: Option<f64>,
}

/// Returns the derivation of the share of `tenant`, from the requests and demands of all tenants.
/// Returns `None` if `tenant` is not among them.
pub fn derive(
    tenant: TenantId,
    requests: &BTreeMap<TenantId, Request>,
    demands_ppm: &BTreeMap<TenantId, u32>,
) -> Option<Derivation> {
    let request = requests.get(&tenant)?;
    // The others are owed as much as without the idle tenant. The idle tenant itself is owed its
    // part among all tenants.
    let rivals = if request.is_idle { requests.clone() } else { awake(requests) };
    let requests = &rivals;
    let among_all =
        rivals.iter().map(|(id, request)| (*id, Request { is_idle: false, ..*request })).collect();
    let owed = entitlements(&among_all);
    let own = *owed.get(&tenant)?;
    let demand_of = |tenant: &TenantId| match requests.get(tenant) {
        Some(request) if request.is_idle => 0,
        _ => demands_ppm.get(tenant).copied().unwrap_or(PPM),
    };
    let claims: BTreeMap<TenantId, Claim> = requests
        .iter()
        .zip(owed.values())
        .map(|((id, request), owed)| {
            (*id, Claim { class: request.class, owed: *owed, demand_ppm: demand_of(id) })
        })
        .collect();
    let present = *shares(&claims).get(&tenant)?;
    let owed_sum = match (request.class, request.asked_ppm) {
        (Class::BestEffort, _) => Sum::of(0, &[]),
        (_, Some(asked_ppm)) => {
            let capped_ppm = asked_ppm.min(request.cap_ppm);
            Sum::of(
                own.ppm,
                &[
                    ("the share that the tenant asked for", i64::from(asked_ppm)),
                    ("the part beyond its user's cap", i64::from(capped_ppm) - i64::from(asked_ppm)),
                    (
                        "its part of the excess, because all shares together are more than the GPU",
                        i64::from(own.ppm) - i64::from(capped_ppm),
                    ),
                ],
            )
        }
        (_, None) => {
            let of_others = |belongs: fn(&Request) -> bool| -> i64 {
                let others = requests.iter().zip(owed.values()).filter(|((id, _), _)| **id != tenant);
                let picked = others.filter(|((_, request), _)| belongs(request));
                picked.map(|(_, owed)| i64::from(owed.ppm)).sum()
            };
            let guaranteed = of_others(|other| other.class == Class::Guaranteed && other.asked_ppm.is_some());
            let asked = of_others(|other| other.class == Class::Fair && other.asked_ppm.is_some());
            let unasked = of_others(|other| other.class != Class::BestEffort && other.asked_ppm.is_none());
            let rest = i64::from(PPM) - guaranteed - asked - unasked - i64::from(own.ppm);
            Sum::of(
                own.ppm,
                &[
                    ("the whole GPU", i64::from(PPM)),
                    ("guaranteed to others", -guaranteed),
                    ("owed to others that asked for a share", -asked),
                    ("owed by priority to others that asked for no share", -unasked),
                    ("beyond its user's cap, or lost in rounding", -rest),
                ],
            )
        }
    };
    let difference = i64::from(present.ppm) - i64::from(own.ppm);
    let term = match (request.class, difference) {
        (Class::BestEffort, _) => "left by the tenants of other classes",
        (_, ..0) => "owed, but not wanted now",
        _ => "owed to others that do not want it, or owed to no tenant",
    };
    let present_sum = Sum::of(present.ppm, &[("the part owed", i64::from(own.ppm)), (term, difference)]);
    Some(Derivation {
        rule: own.rule,
        weight_ppm: own.weight_ppm,
        is_idle: request.is_idle,
        owed: owed_sum,
        demand_ppm: demand_of(&tenant),
        present: present_sum,
        water_level: present.level,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entitlement::entitlements;
    use crate::entitlement::tests::requests;
    use proptest::prelude::*;

    fn adds_up(sum: &Sum) -> bool {
        sum.terms.iter().map(|term| term.ppm).sum::<i64>() == i64::from(sum.ppm)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

        #[test]
        fn the_terms_add_up_to_the_share_that_is_in_force(requests in requests(12), demands in prop::collection::vec(0..=PPM, 12)) {
            let requests: BTreeMap<TenantId, Request> = (0..).zip(requests).collect();
            let demands: BTreeMap<TenantId, u32> = (0..).zip(demands).collect();
            let owed = entitlements(&requests);
            for (tenant, request) in &requests {
                let derivation = derive(*tenant, &requests, &demands).unwrap();
                prop_assert!(adds_up(&derivation.owed) && adds_up(&derivation.present), "{derivation:?}");
                prop_assert_eq!(derivation.owed.ppm, owed[tenant].ppm);
                prop_assert_eq!((derivation.rule, derivation.weight_ppm), (owed[tenant].rule, owed[tenant].weight_ppm));
                let level = derivation.water_level.unwrap_or(f64::INFINITY);
                let risen = (level * f64::from(derivation.weight_ppm)).min(f64::from(derivation.demand_ppm));
                prop_assert!((f64::from(derivation.present.ppm) - risen).abs() <= 1.0, "{request:?} {derivation:?}");
            }
        }
    }

    #[test]
    fn each_part_is_named() {
        let requests: BTreeMap<TenantId, Request> = [
            Request { class: Class::Guaranteed, asked_ppm: Some(300_000), ..Request::default() },
            Request { asked_ppm: Some(200_000), ..Request::default() },
            Request::default(),
            Request { cap_ppm: 100_000, ..Request::default() },
        ]
        .into_iter()
        .zip(0..)
        .map(|(request, tenant)| (tenant, request))
        .collect();
        let demands = [(2, 300_000)].into();
        let derivation = derive(2, &requests, &demands).unwrap();
        let ppm: Vec<i64> = derivation.owed.terms.iter().map(|term| term.ppm).collect();
        assert_eq!(ppm, [1_000_000, -300_000, -200_000, -100_000]);
        assert_eq!((derivation.owed.ppm, derivation.present.ppm), (400_000, 300_000));
        assert!(derive(9, &requests, &demands).is_none());
    }
}
