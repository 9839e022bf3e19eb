//! How much of a GPU's memory each tenant may hold beside what others were promised: pure.
//!
//! A promise is a *floor*: memory that is kept free for its tenant as long as it does not use it. So whoever else is on the GPU has a *ceiling*, beside
//! the limit that it was granted: what there is, less what each other was promised or holds, whichever is more. Where nobody was promised
//! anything there are no ceilings, and tenants may take what they find.

/// A tenant on a GPU, as this policy sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// What it was promised, bytes; 0: nothing.
    pub promised_bytes: u64,
    /// What it holds and keeps, bytes: nothing, if it lets itself be taken off the GPU.
    pub firm_bytes: u64,
}

impl Holding {
    /// What others cannot have because of it.
    fn claim_bytes(self) -> u64 {
        self.promised_bytes.max(self.firm_bytes)
    }
}

/// The ceiling of each tenant of a GPU with so much memory for tenants; none where none is needed.
pub fn ceilings(total_bytes: u64, tenants: &[Holding]) -> Vec<Option<u64>> {
    let claims = tenants.iter().fold(0_u64, |sum, tenant| sum.saturating_add(tenant.claim_bytes()));
    let promises = tenants.iter().filter(|tenant| tenant.promised_bytes > 0).count();
    let ceiling = |tenant: &Holding| {
        let others = promises - usize::from(tenant.promised_bytes > 0);
        let left = total_bytes.saturating_sub(claims - tenant.claim_bytes());
        // A promise once given holds, whatever others have come to hold.
        (others > 0).then(|| left.max(tenant.promised_bytes))
    };
    tenants.iter().map(ceiling).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn holding(promised_bytes: u64, firm_bytes: u64) -> Holding {
        Holding { promised_bytes, firm_bytes }
    }

    #[test]
    fn whoever_is_promised_nothing_leaves_what_others_were_promised() {
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
        #[test]
        fn one_that_grows_to_its_ceiling_takes_nothing_of_what_was_promised(
            total in 0_u64..1000,
            tenants in prop::collection::vec((0_u64..200, 0_u64..200), 1..6),
        ) {
            let tenants: Vec<Holding> = tenants.into_iter().map(|(promised, firm)| holding(promised, firm)).collect();
            for (grown, ceiling) in ceilings(total, &tenants).into_iter().enumerate() {
                let Some(ceiling) = ceiling else { continue };
                prop_assert!(ceiling >= tenants[grown].promised_bytes);
                let others = tenants.iter().enumerate().filter(|(other, _)| *other != grown);
                let claims: u64 = others.map(|(_, other)| other.promised_bytes.max(other.firm_bytes)).sum();
                prop_assert!(ceiling == tenants[grown].promised_bytes || ceiling + claims <= total);
            }
        }
    }
}
