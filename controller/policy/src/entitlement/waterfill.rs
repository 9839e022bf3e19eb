//! Weighted max-min fairness with caps, by water-filling. The computation of entitlements uses it.
//! The tests also use it for the fluid limit, with which they compare entitlements.

use alloc::vec::Vec;

/// A claimant: it gets a part of the total.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vessel {
    /// The weight. Parts below the cap are proportional to the weights.
    pub weight: u64,
    /// The most that the claimant can get.
    pub cap: u64,
}

/// Returns the parts of `total`, in proportion to weight, and the water level. If a vessel's cap is
/// below its part, the vessel gets its cap. The others then share the difference in the same way.
/// The parts add up to at most `total`. They add up to less only by rounding (less than one for
/// each part), or if all vessels get their caps. A vessel without weight gets nothing.
///
/// The water level is the part for each unit of weight of the vessels that are not full. The level
/// is `None` if all vessels are full. So each part is the lesser of its cap and its weight times
/// the level.
pub fn pour(total: u64, vessels: &[Vessel]) -> (Vec<u64>, Option<f64>) {
    let mut parts = Vec::new();
    let level = pour_into(total, vessels, &mut Vec::new(), &mut parts);
    (parts, level)
}

/// Divides `total` as [`pour`] does, but in memory of the caller: writes the parts into `parts`,
/// and returns the water level. `order` is working memory.
pub fn pour_into(
    total: u64,
    vessels: &[Vessel],
    order: &mut Vec<usize>,
    parts: &mut Vec<u64>,
) -> Option<f64> {
    order.clear();
    order.extend((0..vessels.len()).filter(|index| vessels[*index].weight > 0));
    parts.clear();
    parts.resize(vessels.len(), 0);
    let mut left = u128::from(total);
    let mut weights: u128 = order.iter().map(|index| u128::from(vessels[*index].weight)).sum();
    // Mostly no vessel is full. The order does not matter then, so the function does not sort.
    let is_full = |index: &usize| {
        let vessel = &vessels[*index];
        u128::from(vessel.cap) * weights <= u128::from(total) * u128::from(vessel.weight)
    };
    if order.iter().any(is_full) {
        // Sorts by the moment at which vessels become full: by cap/weight, ascending, without
        // division.
        order.sort_unstable_by(|first, second| {
            let (a, b) = (&vessels[*first], &vessels[*second]);
            let (left, right) =
                (u128::from(a.cap) * u128::from(b.weight), u128::from(b.cap) * u128::from(a.weight));
            left.cmp(&right).then(first.cmp(second))
        });
    }
    let mut rest = order.as_slice();
    while let [first, others @ ..] = rest {
        let vessel = &vessels[*first];
        if u128::from(vessel.cap) * weights > left * u128::from(vessel.weight) {
            break;
        }
        parts[*first] = vessel.cap;
        left -= u128::from(vessel.cap);
        weights -= u128::from(vessel.weight);
        rest = others;
    }
    for index in rest {
        // The part is below the vessel's cap, so it fits into u64.
        parts[*index] = (left * u128::from(vessels[*index].weight) / weights) as u64;
    }
    (!rest.is_empty()).then(|| left as f64 / weights as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fill(total: u64, vessels: &[Vessel]) -> Vec<u64> {
        pour(total, vessels).0
    }

    fn vessel(weight: u64, cap: u64) -> Vessel {
        Vessel { weight, cap }
    }

    #[test]
    fn parts_are_in_proportion_to_weight_until_a_cap_binds() {
        assert_eq!(fill(100, &[vessel(3, 100), vessel(1, 100)]), [75, 25]);
        assert_eq!(fill(100, &[vessel(3, 30), vessel(1, 100), vessel(1, 100)]), [30, 35, 35]);
        assert_eq!(fill(100, &[vessel(1, 10), vessel(1, 20)]), [10, 20]);
        assert_eq!(fill(100, &[vessel(0, 100), vessel(1, 100)]), [0, 100]);
        assert!(fill(100, &[]).is_empty());
    }

    fn vessels() -> impl Strategy<Value = Vec<Vessel>> {
        prop::collection::vec((0..1_000_000u64, 0..1_000_000u64).prop_map(|(w, c)| vessel(w, c)), 0..50)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

        #[test]
        fn each_part_is_the_lesser_of_its_cap_and_its_weight_times_the_level(total in 0..10_000_000u64, vessels in vessels()) {
            let (parts, level) = pour(total, &vessels);
            for (part, vessel) in parts.iter().zip(&vessels).filter(|(_, vessel)| vessel.weight > 0) {
                let risen = level.map_or(f64::INFINITY, |level| level * vessel.weight as f64);
                prop_assert!((*part as f64 - risen.min(vessel.cap as f64)).abs() <= 1.0, "{vessel:?} has {part}");
            }
        }

        #[test]
        fn nobody_gets_more_than_the_cap_and_all_is_given_that_can_be(total in 0..10_000_000u64, vessels in vessels()) {
            let parts = fill(total, &vessels);
            let sum: u64 = parts.iter().sum();
            prop_assert!(parts.iter().zip(&vessels).all(|(part, vessel)| *part <= vessel.cap));
            prop_assert!(sum <= total);
            let room: u64 = vessels.iter().filter(|vessel| vessel.weight > 0).map(|vessel| vessel.cap).sum();
            prop_assert!(sum + vessels.len() as u64 >= total.min(room));
        }

        #[test]
        fn no_one_gets_less_per_weight_than_another_unless_its_cap_binds(total in 0..10_000_000u64, vessels in vessels()) {
            let parts = fill(total, &vessels);
            for (part, vessel) in parts.iter().zip(&vessels).filter(|(part, vessel)| vessel.weight > 0 && **part < vessel.cap) {
                for (other_part, other) in parts.iter().zip(&vessels).filter(|(_, other)| other.weight > 0) {
                    // part/weight ≥ other_part/other_weight, up to a rounding of one.
                    prop_assert!(u128::from(part + 1) * u128::from(other.weight) >= u128::from(*other_part) * u128::from(vessel.weight));
                }
            }
        }

        #[test]
        fn more_weight_or_a_higher_cap_never_gives_less(
            total in 0..10_000_000u64, mut vessels in vessels().prop_filter("some", |vessels| !vessels.is_empty()),
            weight in 0..1_000_000u64, cap in 0..1_000_000u64
        ) {
            let before = fill(total, &vessels)[0];
            vessels[0].weight += weight;
            vessels[0].cap += cap;
            prop_assert!(fill(total, &vessels)[0] >= before);
        }
    }
}
