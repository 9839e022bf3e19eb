//! The division of a user's cap among the user's tenants.
//!
//! A cap belongs to a user, however many tenants the user has. The tenant that asked first keeps
//! the amount that it asked for. Later tenants get the remaining amount. The rest of the cap, for
//! which no tenant asked, is split evenly. The split leaves out tenants that an administrator has
//! put above the cap.
//!
//! The daemon cannot take away memory that a tenant holds. So each tenant first keeps the memory
//! that it holds, as far as the cap allows.

use crate::config::Caps;
use deepres_abi::PPM;
use deepres_abi::grant::NO_LIMIT;
use deepres_abi::quantity::MIN_SHARE_PPM;
use serde::{Deserialize, Serialize};

/// The divisor of the cap for the excess: all tenants of a user together may be owed more than the
/// cap by this part. So a new tenant is owed something even if the cap is used up.
const BEYOND_PART: u64 = 10;

/// The wish of a tenant for a part of one cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// The tenant asked for this amount.
    Asked(u64),
    /// The tenant asked for nothing, and gets a part of the rest.
    Rest,
    /// An administrator set the tenant's value. Caps do not bind this value, and the value does not
    /// count against the caps.
    Above,
}

/// The wishes of a tenant for parts of its user's caps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wants {
    /// The wish for a share, parts per million.
    pub share: Want,
    /// The wish for memory, bytes.
    pub memory: Want,
    /// Memory that the tenant already holds, bytes.
    pub held_bytes: u64,
}

/// The most that one tenant may be granted and owed, after the daemon has split the caps of its
/// user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The largest share that the tenant can be granted, parts per million.
    pub share_ppm: u32,
    /// The largest share that the tenant can be owed, even if other tenants leave more time, parts
    /// per million.
    pub cap_ppm: u32,
    /// Memory on each GPU, bytes.
    pub memory_bytes: u64,
}

impl Part {
    /// Returns the part of a user's only tenant: the whole caps.
    pub fn whole(caps: &Caps) -> Self {
        Self { share_ppm: caps.share_ppm, cap_ppm: caps.share_ppm, memory_bytes: caps.memory_bytes }
    }

    /// Returns the greater of both parts, value by value.
    pub fn max(self, other: Self) -> Self {
        Self {
            share_ppm: self.share_ppm.max(other.share_ppm),
            cap_ppm: self.cap_ppm.max(other.cap_ppm),
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
        }
    }

    /// Returns the lesser of both parts, value by value.
    pub fn min(self, other: Self) -> Self {
        Self {
            share_ppm: self.share_ppm.min(other.share_ppm),
            cap_ppm: self.cap_ppm.min(other.cap_ppm),
            memory_bytes: self.memory_bytes.min(other.memory_bytes),
        }
    }

    /// Returns the part of the tenant at the index `own`. `wants` has the wants of all tenants of
    /// the user, in the order in which they asked.
    pub fn of(own: usize, wants: &[Wants], caps: &Caps) -> Self {
        Self::all(wants, caps).get(own).copied().unwrap_or_else(|| Self::whole(caps))
    }

    /// Returns the parts of all tenants of a user, in the order in which they asked.
    ///
    /// Each tenant gets at least the least share, so that it can run. Each tenant is also owed the
    /// least share, or less if very many tenants would exceed the bound of `BEYOND_PART`.
    pub fn all(wants: &[Wants], caps: &Caps) -> Vec<Self> {
        let mut parts = vec![Self::whole(caps); wants.len()];
        if caps.share_ppm < PPM {
            let shares: Vec<Want> = wants.iter().map(|wants| wants.share).collect();
            let least = u64::from(MIN_SHARE_PPM);
            let cap = u64::from(caps.share_ppm);
            let least_owed = least.min(cap / BEYOND_PART / wants.len().max(1) as u64).max(1);
            let ppm = |ppm: u64| u32::try_from(ppm).unwrap_or(PPM).min(caps.share_ppm);
            for (part, split) in parts.iter_mut().zip(split(&shares, cap)) {
                part.share_ppm = ppm(split.left.max(least));
                part.cap_ppm = ppm(split.had.saturating_add(split.rest).max(least_owed));
            }
        }
        if caps.memory_bytes != NO_LIMIT {
            for (part, bytes) in parts.iter_mut().zip(memory(wants, caps.memory_bytes)) {
                part.memory_bytes = bytes;
            }
        }
        parts
    }
}

/// A user's cap as one tenant of the user sees it.
#[derive(Debug, Clone, Copy)]
struct Split {
    /// The amount that is available to the tenant.
    left: u64,
    /// The amount that the tenant asked for and gets.
    had: u64,
    /// The tenant's part of the amount for which no tenant asked.
    rest: u64,
}

/// Splits a cap among tenants. Returns the cap as each tenant sees it.
fn split(wants: &[Want], cap: u64) -> Vec<Split> {
    let mut left = cap;
    let asked = |want: &Want| {
        let Want::Asked(asked) = want else { return Split { left: cap, had: 0, rest: 0 } };
        let split = Split { left, had: (*asked).min(left), rest: 0 };
        left -= split.had;
        split
    };
    let mut splits: Vec<Split> = wants.iter().map(asked).collect();
    let rest = left / wants.iter().filter(|want| **want != Want::Above).count().max(1) as u64;
    for (split, want) in splits.iter_mut().zip(wants) {
        split.rest = rest;
        if *want == Want::Rest {
            split.left = left;
        }
    }
    splits
}

/// Returns each tenant's part of a cap on memory, bytes.
fn memory(wants: &[Wants], cap: u64) -> Vec<u64> {
    let mut left = cap;
    let take = |wants: &Wants| {
        let held = match wants.memory {
            Want::Asked(asked) => wants.held_bytes.min(asked),
            Want::Rest => wants.held_bytes,
            Want::Above => 0,
        };
        let kept = held.min(left);
        left -= kept;
        kept
    };
    let kept: Vec<u64> = wants.iter().map(take).collect();
    let mut parts = kept.clone();
    for (wants, part) in wants.iter().zip(&mut parts) {
        let Want::Asked(asked) = wants.memory else { continue };
        *part += left;
        left = *part - asked.min(*part);
    }
    // Only tenants that asked for nothing split the rest, because the other tenants have their
    // limits. If a tenant holds more than an even part, the tenant keeps what it holds. The other
    // tenants then split the remaining memory.
    let unasked = wants.iter().zip(&kept).filter(|(wants, _)| wants.memory == Want::Rest);
    let mut unasked: Vec<u64> = unasked.map(|(_, kept)| *kept).collect();
    unasked.sort_unstable();
    let mut rest = left + unasked.iter().sum::<u64>();
    while let Some(most) = unasked.last().filter(|most| **most > rest / unasked.len() as u64) {
        rest -= most;
        unasked.pop();
    }
    let even = rest / unasked.len().max(1) as u64;
    for (wants, part) in wants.iter().zip(&mut parts) {
        if !matches!(wants.memory, Want::Asked(_)) {
            *part = even.max(*part);
        }
    }
    parts
}

/// A tenant's memory and its grant under its user's cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The memory that the daemon granted to the tenant, bytes.
    pub granted_bytes: u64,
    /// The most memory that the tenant holds, or can hold before it learns of a new bound, bytes.
    pub reach_bytes: u64,
    /// The cap of the tenant's user on memory, bytes.
    pub cap_bytes: u64,
}

/// Returns the bound on memory that the daemon tells each tenant of a user, bytes, in the order in
/// which the tenants asked.
///
/// All tenants together never hold more than the cap. To move memory from one tenant to others, the
/// daemon first tells this tenant its lower bound. The memory moves when the tenant holds no more
/// than this bound.
pub fn bounds(claims: &[Claim]) -> Vec<u64> {
    let mut all: u128 = claims.iter().map(|claim| u128::from(claim.reach_bytes)).sum();
    let bound = |claim: &Claim| {
        let others = all - u128::from(claim.reach_bytes);
        let left = u128::from(claim.cap_bytes).saturating_sub(others);
        let bytes = claim.granted_bytes.min(u64::try_from(left).unwrap_or(NO_LIMIT));
        // Memory for this tenant is not available to later tenants.
        all = others + u128::from(claim.reach_bytes.max(bytes));
        bytes
    };
    claims.iter().map(bound).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_policy::class::Class;
    use proptest::prelude::*;

    const CAPS: Caps = Caps { share_ppm: 500_000, memory_bytes: 1_000, class: Class::Fair, ..Caps::NONE };

    fn wants(share: Want, memory: Want) -> Wants {
        Wants { share, memory, held_bytes: 0 }
    }

    /// Returns the parts of 1,000 bytes for tenants with these wishes and these amounts held.
    fn of_memory(tenants: &[(Want, u64)]) -> Vec<u64> {
        let wants: Vec<Wants> = tenants
            .iter()
            .map(|(memory, held_bytes)| Wants { share: Want::Rest, memory: *memory, held_bytes: *held_bytes })
            .collect();
        (0..wants.len()).map(|own| Part::of(own, &wants, &CAPS).memory_bytes).collect()
    }

    fn parts(wants: &[Wants]) -> Vec<(u32, u32, u64)> {
        let part = |own| Part::of(own, wants, &CAPS);
        (0..wants.len()).map(part).map(|part| (part.share_ppm, part.cap_ppm, part.memory_bytes)).collect()
    }

    #[test]
    fn one_tenant_has_the_whole_cap() {
        for want in [Want::Rest, Want::Above] {
            assert_eq!(parts(&[wants(want, want)]), [(500_000, 500_000, 1_000)]);
        }
        let asked = wants(Want::Asked(200_000), Want::Asked(300));
        assert_eq!(parts(&[asked]), [(500_000, 500_000, 1_000)], "and may raise what it asks for");
        assert_eq!(
            Part::of(0, &[asked, asked], &Caps::NONE),
            Part::whole(&Caps::NONE),
            "no cap, nothing to split"
        );
    }

    #[test]
    fn the_first_request_keeps_its_part_and_later_ones_have_the_rest() {
        let asked = wants(Want::Asked(300_000), Want::Asked(700));
        assert_eq!(
            parts(&[asked, asked, asked]),
            [(500_000, 300_000, 1_000), (200_000, 200_000, 300), (10_000, 10_000, 0)]
        );
    }

    #[test]
    fn parts_that_no_tenant_asked_for_are_split_evenly() {
        let rest = wants(Want::Rest, Want::Rest);
        assert_eq!(parts(&[rest; 10]).iter().map(|part| part.1).sum::<u32>(), 500_000);
        assert_eq!(parts(&[rest; 10]).iter().map(|part| part.2).sum::<u64>(), 1_000);
        let asked = wants(Want::Asked(300_000), Want::Asked(400));
        let above = wants(Want::Above, Want::Above);
        assert_eq!(
            parts(&[rest, asked, above, rest]).iter().map(|part| (part.1, part.2)).collect::<Vec<_>>(),
            [(66_666, 300), (366_666, 1_000), (66_666, 300), (66_666, 300)],
            "the value of an administrator is beside the cap"
        );
    }

    #[test]
    fn however_many_tenants_a_user_makes_they_are_owed_its_cap_together_and_a_tenth_of_it_at_most() {
        let owed = |tenants: &[Wants]| parts(tenants).iter().map(|part| part.1).sum::<u32>();
        let (rest, asked) = (wants(Want::Rest, Want::Rest), wants(Want::Asked(300_000), Want::Rest));
        assert!(owed(&[rest; 1_000]) <= 500_000, "{}", owed(&[rest; 1_000]));
        assert!(owed(&[asked; 1_000]) <= 550_000, "{}", owed(&[asked; 1_000]));
        let crowd = parts(&[vec![asked; 2], vec![rest; 900]].concat());
        assert_eq!((crowd[0].1, crowd[1].1), (300_000, 200_000), "the first to ask keeps it");
        assert!(
            crowd.iter().all(|part| part.1 > 0 && part.0 >= MIN_SHARE_PPM),
            "and nobody is left with nothing"
        );
    }

    #[test]
    fn no_later_request_leaves_a_tenant_less_memory_than_it_holds() {
        use Want::{Above, Asked, Rest};
        assert_eq!(of_memory(&[(Rest, 600), (Asked(800), 0)]), [600, 400], "the asker has the rest");
        assert_eq!(of_memory(&[(Rest, 600), (Asked(300), 0)]), [700, 400]);
        assert_eq!(of_memory(&[(Rest, 1_000), (Asked(800), 0), (Rest, 0)]), [1_000, 0, 0]);
        assert_eq!(of_memory(&[(Rest, 700), (Rest, 0)]), [700, 300], "its part is half, and it holds more");
        assert_eq!(of_memory(&[(Rest, 400), (Rest, 300), (Rest, 0)]), [400, 300, 300]);
        assert_eq!(of_memory(&[(Rest, 100), (Rest, 200)]), [500, 500], "each has room for as much");
        assert_eq!(
            of_memory(&[(Asked(500), 100), (Asked(900), 300)]),
            [700, 500],
            "the first keeps what it asked for"
        );
        assert_eq!(
            of_memory(&[(Rest, 600), (Above, 900)])[0],
            1_000,
            "a tenant that an administrator raised counts for nothing"
        );
        assert_eq!(
            of_memory(&[(Rest, 700), (Rest, 700)]),
            [700, 300],
            "with less than is held the first keeps it"
        );
    }

    fn claim(granted_bytes: u64, reach_bytes: u64) -> Claim {
        Claim { granted_bytes, reach_bytes, cap_bytes: CAPS.memory_bytes }
    }

    #[test]
    fn memory_that_a_tenant_can_still_take_is_given_to_no_other() {
        assert_eq!(bounds(&[claim(500, 0), claim(500, 0)]), [500, 500]);
        assert_eq!(bounds(&[claim(500, 1_000), claim(500, 0)]), [500, 0], "the first is not told yet");
        assert_eq!(bounds(&[claim(500, 500), claim(500, 0)]), [500, 500], "now it is");
        assert_eq!(bounds(&[claim(500, 700), claim(500, 0)]), [500, 300], "and holds more");
        assert_eq!(bounds(&[claim(700, 300), claim(600, 200)]), [700, 300], "the first to ask comes first");
        assert_eq!(bounds(&[claim(500, NO_LIMIT), claim(500, NO_LIMIT)]), [0, 0], "nobody was bound before");
    }

    /// A tenant under a cap on memory, with a bound that it may not have learned of yet.
    #[derive(Clone, Copy, Default)]
    struct Grower {
        bound: u64,
        in_force: u64,
        held: u64,
    }

    proptest! {
        #[test]
        fn tenants_that_grow_as_far_as_they_are_let_never_hold_more_than_the_cap_together(
            turns in prop::collection::vec((0_usize..4, 0_u8..4, 0_u64..1_200), 1..80)
        ) {
            let mut growers = [Grower::default(); 4];
            // The first tenant was alone until now, and had the whole cap.
            growers[0] = Grower { bound: CAPS.memory_bytes, in_force: CAPS.memory_bytes, held: 0 };
            for (who, what, bytes) in turns {
                let one = &mut growers[who];
                match what {
                    0 => one.held = one.held.max(bytes.min(one.in_force)),
                    1 => one.held = one.held.min(bytes),
                    2 => one.in_force = one.bound,
                    _ => {
                        let tenants = growers.map(|one| (Want::Rest, one.held));
                        let claims: Vec<Claim> = growers
                            .iter()
                            .zip(of_memory(&tenants))
                            .map(|(one, part)| claim(part, one.bound.max(one.in_force).max(one.held)))
                            .collect();
                        for (one, bytes) in growers.iter_mut().zip(bounds(&claims)) {
                            one.bound = bytes;
                        }
                    }
                }
                prop_assert!(growers.iter().map(|one| one.held).sum::<u64>() <= CAPS.memory_bytes);
            }
        }

        #[test]
        fn all_parts_together_are_within_the_cap_and_each_covers_held_memory(
            tenants in prop::collection::vec((prop::option::of(0_u64..1_500), 0_u64..400), 1..8)
        ) {
            let tenants: Vec<(Want, u64)> =
                tenants.into_iter().map(|(asked, held)| (asked.map_or(Want::Rest, Want::Asked), held)).collect();
            let parts = of_memory(&tenants);
            let limits = tenants.iter().zip(&parts).map(|((want, _), part)| match want {
                Want::Asked(asked) => *asked.min(part),
                _ => *part,
            });
            prop_assert!(limits.sum::<u64>() <= CAPS.memory_bytes);
            let all_held: u64 = tenants.iter().map(|(_, held)| held).sum();
            if all_held <= CAPS.memory_bytes {
                for ((want, held), part) in tenants.iter().zip(&parts) {
                    let held = if let Want::Asked(asked) = want { held.min(asked) } else { held };
                    prop_assert!(part >= held);
                }
            }
        }
    }
}
