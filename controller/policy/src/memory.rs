//! Computes the memory of a GPU that each tenant may hold beside the guarantees of other tenants.
//!
//! A guarantee is a *floor*: the daemon keeps this memory free for its tenant while the tenant does
//! not use it. So every other tenant on the GPU has a *ceiling*, in addition to its limit. The
//! ceiling is the GPU's memory, less the larger of guarantee and holding of each other tenant.
//! Without guarantees there are no ceilings, and tenants may take any free memory.
//!
//! A tenant may let its memory follow its use (after the paper DeepRes). The daemon then keeps for
//! the tenant only the memory that it held lately, and a margin ([`Use::kept_bytes`]). The rest of
//! the guarantee goes to the tenant that takes it first. If other tenants take this rest, the
//! ceiling of the guaranteed tenant falls, but never below the memory that the daemon keeps for it.
//! The daemon also keeps memory for a tenant without a guarantee, but only if no other tenant has a
//! guarantee. So no wish lets a tenant take memory that is guaranteed to another.

use alloc::vec::Vec;

/// A tenant on a GPU, as this policy sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// The tenant's guarantee, or the part of it that the daemon keeps free, bytes; 0 without a
    /// guarantee.
    pub promised_bytes: u64,
    /// The memory that the daemon keeps for a tenant whose memory follows its use, bytes. Such a
    /// tenant always has a ceiling.
    pub kept_bytes: Option<u64>,
    /// The memory that the tenant holds and that the daemon cannot move off the GPU, bytes; 0 for a
    /// tenant that the daemon can suspend.
    pub firm_bytes: u64,
}

impl Holding {
    /// Returns the memory that other tenants cannot have because of this tenant, bytes.
    fn claim_bytes(self) -> u64 {
        self.promised_bytes.max(self.firm_bytes)
    }
}

/// Returns the ceiling of each tenant of a GPU, bytes, in the order of `tenants`; `None` for
/// tenants that need no ceiling. `total_bytes` is the GPU's memory for tenants.
pub fn ceilings(total_bytes: u64, tenants: &[Holding]) -> Vec<Option<u64>> {
    let claims = tenants.iter().fold(0_u64, |sum, tenant| sum.saturating_add(tenant.claim_bytes()));
    let promises = tenants.iter().filter(|tenant| tenant.promised_bytes > 0).count();
    let ceiling = |tenant: &Holding| {
        let others = promises - usize::from(tenant.promised_bytes > 0);
        let left = total_bytes.saturating_sub(claims - tenant.claim_bytes());
        // A tenant's guarantee bounds its ceiling from below, even if other tenants hold the
        // guaranteed memory now.
        let kept_bytes = tenant.kept_bytes.filter(|_| others == 0).unwrap_or(0).min(total_bytes);
        let least = tenant.promised_bytes.max(kept_bytes);
        (others > 0 || tenant.kept_bytes.is_some()).then(|| left.max(least))
    };
    tenants.iter().map(ceiling).collect()
}

/// The margin is the memory that the tenant held, divided by this number. A job at work grows by
/// less between two looks.
const MARGIN_PARTS: u64 = 8;
/// The least margin. The margin is several times the size by which pools and the frameworks'
/// allocators grow at once (2 to 32 MiB).
const MARGIN_LEAST_BYTES: u64 = 256 << 20;

/// The memory that a tenant held lately on a GPU: the most in the present period of time, and the
/// most in the period before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    /// The beginning of the present period, ns.
    began_ns: u64,
    /// The most memory that the tenant held in the present period, bytes.
    most_bytes: u64,
    /// The most memory that the tenant held in the period before, bytes.
    before_bytes: u64,
}

impl Use {
    /// Returns the use of a tenant that came at `now_ns`. The daemon keeps all granted memory for
    /// such a tenant at first.
    pub fn new(now_ns: u64) -> Self {
        Self { began_ns: now_ns, most_bytes: 0, before_bytes: u64::MAX }
    }

    /// Records the memory that the tenant holds at `now_ns`. The recorded amount counts for
    /// `window_ns` at least, and for twice `window_ns` at most.
    pub fn take_in(&mut self, now_ns: u64, held_bytes: u64, window_ns: u64) {
        if now_ns.saturating_sub(self.began_ns) >= window_ns {
            *self = Self { began_ns: now_ns, most_bytes: 0, before_bytes: self.most_bytes.max(held_bytes) };
        }
        self.most_bytes = self.most_bytes.max(held_bytes);
    }

    /// Returns the part of `granted_bytes` that the daemon keeps for the tenant: the memory that
    /// the tenant held lately, and a margin.
    pub fn kept_bytes(&self, granted_bytes: u64) -> u64 {
        let used_bytes = self.most_bytes.max(self.before_bytes);
        let margin_bytes = (used_bytes / MARGIN_PARTS).max(MARGIN_LEAST_BYTES);
        used_bytes.saturating_add(margin_bytes).min(granted_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn holding(promised_bytes: u64, firm_bytes: u64) -> Holding {
        Holding { promised_bytes, firm_bytes, kept_bytes: None }
    }

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_tenant_whose_memory_follows_its_use_keeps_what_it_uses_and_lends_the_rest() {
        let follower = |kept_bytes, firm_bytes| Holding {
            kept_bytes: Some(kept_bytes),
            ..holding(kept_bytes, firm_bytes)
        };
        assert_eq!(ceilings(40, &[follower(8, 5), holding(0, 4)]), [Some(36), Some(32)]);
        assert_eq!(
            ceilings(40, &[follower(8, 5), holding(0, 36)]),
            [Some(8), Some(32)],
            "never below what is kept"
        );
        let unpromised = Holding { kept_bytes: Some(8), ..holding(0, 5) };
        assert_eq!(ceilings(40, &[unpromised, holding(0, 36)]), [Some(8), None]);
    }

    #[test]
    fn a_tenant_without_a_guarantee_whose_memory_follows_its_use_leaves_others_their_guarantees() {
        let just_came = Holding { kept_bytes: Some(u64::MAX), ..holding(0, 5) };
        assert_eq!(ceilings(40, &[just_came, holding(30, 4)]), [Some(10), None]);
        assert_eq!(ceilings(40, &[just_came, holding(0, 4)]), [Some(40), None], "no more than there is");
    }

    #[test]
    fn memory_that_was_held_is_kept_for_a_while_and_then_let_go() {
        let mut held = Use::new(0);
        assert_eq!(held.kept_bytes(16 * GIB), 16 * GIB, "a new tenant may take it all");
        held.take_in(0, 0, 60);
        assert_eq!(held.kept_bytes(16 * GIB), 16 * GIB);
        held.take_in(59, 8 * GIB, 60);
        held.take_in(60, 2 * GIB, 60);
        assert_eq!(held.kept_bytes(16 * GIB), 9 * GIB, "an eighth more than it held");
        held.take_in(119, 0, 60);
        assert_eq!(held.kept_bytes(16 * GIB), 9 * GIB);
        held.take_in(120, 0, 60);
        assert_eq!(held.kept_bytes(16 * GIB), 2 * GIB + MARGIN_LEAST_BYTES);
        held.take_in(180, 0, 60);
        assert_eq!(held.kept_bytes(16 * GIB), MARGIN_LEAST_BYTES);
        assert_eq!(held.kept_bytes(7), 7, "never more than it was granted");
    }

    #[test]
    fn a_tenant_without_a_guarantee_leaves_others_their_guarantees() {
        let tenants = [holding(30, 5), holding(0, 4), holding(0, 2)];
        assert_eq!(ceilings(40, &tenants), [None, Some(8), Some(6)]);
    }

    #[test]
    fn without_promises_nobody_has_a_ceiling() {
        assert_eq!(ceilings(40, &[holding(0, 30), holding(0, 30)]), [None, None]);
    }

    #[test]
    fn promises_hold_beside_each_other_and_beside_what_was_held_before() {
        let tenants = [holding(20, 0), holding(10, 15), holding(0, 30)];
        assert_eq!(ceilings(40, &tenants), [Some(20), Some(10), Some(5)]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

        #[test]
        fn kept_memory_is_never_below_the_memory_held_within_the_window_and_a_margin(
            granted in 0_u64..(64 * GIB),
            window in 0_u64..100,
            looks in prop::collection::vec((0_u64..50, 0_u64..(80 * GIB)), 1..40),
        ) {
            let (mut held, mut now, mut seen) = (Use::new(0), 0, Vec::new());
            for (later, bytes) in looks {
                now += later;
                held.take_in(now, bytes, window);
                seen.push((now, bytes));
                let is_recent = |(at, _): &(u64, u64)| now - at < window;
                let lately = seen.iter().copied().filter(is_recent).map(|(_, bytes)| bytes).max();
                let lately = lately.unwrap_or(0).max(bytes);
                let least = (lately + (lately / MARGIN_PARTS).max(MARGIN_LEAST_BYTES)).min(granted);
                let kept = held.kept_bytes(granted);
                prop_assert!((least..=granted).contains(&kept), "{kept} of {granted}, at least {least}");
                let same = held;
                held.take_in(now, bytes, u64::MAX);
                prop_assert_eq!(held, same, "looking twice changes nothing");
            }
        }

        #[test]
        fn a_tenant_that_lends_takes_nothing_from_anybody_and_keeps_its_own(
            total in 0_u64..1000,
            tenants in prop::collection::vec((0_u64..200, 0_u64..200, 0_u64..200, any::<bool>()), 1..6),
        ) {
            let plain: Vec<Holding> = tenants.iter().map(|(promised, firm, ..)| holding(*promised, *firm)).collect();
            let lending: Vec<Holding> = tenants
                .iter()
                .map(|(promised, firm, kept, lends)| match lends {
                    true => Holding { kept_bytes: Some(*kept), ..holding((*promised).min(*kept), *firm) },
                    false => holding(*promised, *firm),
                })
                .collect();
            let (before, after) = (ceilings(total, &plain), ceilings(total, &lending));
            for (at, (_, _, kept, lends)) in tenants.iter().enumerate() {
                if *lends {
                    let is_promised_to_others = lending.iter().enumerate().any(|(other, own)| other != at && own.promised_bytes > 0);
                    let least = if is_promised_to_others { lending[at].promised_bytes } else { (*kept).min(total) };
                    prop_assert!(after[at].is_some_and(|ceiling| ceiling >= least));
                } else {
                    prop_assert!(after[at].unwrap_or(u64::MAX) >= before[at].unwrap_or(u64::MAX));
                }
            }
        }

        #[test]
        fn one_that_grows_to_its_ceiling_takes_nothing_of_what_was_promised(
            total in 0_u64..1000,
            tenants in prop::collection::vec((0_u64..200, 0_u64..200, prop::option::of(0_u64..200)), 1..6),
        ) {
            let tenants: Vec<Holding> = tenants
                .into_iter()
                .map(|(promised, firm, kept)| {
                    let promised = promised.min(kept.unwrap_or(promised));
                    Holding { kept_bytes: kept, ..holding(promised, firm) }
                })
                .collect();
            for (grown, ceiling) in ceilings(total, &tenants).into_iter().enumerate() {
                let Some(ceiling) = ceiling else { continue };
                prop_assert!(ceiling >= tenants[grown].promised_bytes);
                let others = tenants.iter().enumerate().filter(|(other, _)| *other != grown);
                let claims: u64 = others.clone().map(|(_, other)| other.promised_bytes.max(other.firm_bytes)).sum();
                let is_promised = others.clone().any(|(_, other)| other.promised_bytes > 0);
                prop_assert!(ceiling == tenants[grown].promised_bytes || ceiling + claims <= total || !is_promised);
            }
        }
    }
}
