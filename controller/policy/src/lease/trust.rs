//! Remembers two kinds of debts of a user: GPU time without metered use, and GPU time that the
//! user's tenants owed when they ended. So a user with a thousand tenants, or a new tenant every
//! second, gains no more unmetered GPU time than a user with one tenant.

use super::state::{FORGOTTEN_PART, Rank};
use super::{MAX_DRAIN_NS, ns};
use core::time::Duration;

/// The number of the user to whom a tenant belongs.
pub type UserId = u64;

/// The largest debt of each kind that the scheduler remembers, ns. The scheduler forgets such a
/// debt in 250 s ([`FORGOTTEN_PART`]).
const MOST_NS: u64 = ns(Duration::from_secs(5));

/// The debts of one user. Times are ns.
#[derive(Debug, Clone, Copy, Default)]
pub struct Trust {
    /// GPU time that tenants of the user had without metered use, while others wanted the GPU.
    unshown_ns: u64,
    /// GPU time that ended tenants of the user owe: to owners, and to guests (by [`Rank`]).
    owed_ns: [u64; 2],
    /// The time up to which the scheduler has forgotten debts.
    at_ns: u64,
}

impl Trust {
    /// Forgets a part of the debts, for the time that passed up to `now_ns`.
    fn at(&mut self, now_ns: u64) -> &mut Self {
        let forgotten_ns = now_ns.saturating_sub(self.at_ns) / FORGOTTEN_PART;
        if forgotten_ns > 0 {
            self.unshown_ns = self.unshown_ns.saturating_sub(forgotten_ns);
            self.owed_ns = self.owed_ns.map(|owed_ns| owed_ns.saturating_sub(forgotten_ns));
            self.at_ns = now_ns;
        }
        self
    }

    /// Adds GPU time that a tenant had without metered use while other tenants wanted the GPU.
    pub fn had_unshown(&mut self, had_ns: u64, now_ns: u64) {
        let trust = self.at(now_ns);
        trust.unshown_ns = trust.unshown_ns.saturating_add(had_ns).min(MOST_NS);
    }

    /// Subtracts time that counted as unmetered, because a meter has shown its use later.
    pub fn shown(&mut self, used_ns: u64, now_ns: u64) {
        let trust = self.at(now_ns);
        trust.unshown_ns = trust.unshown_ns.saturating_sub(used_ns);
    }

    /// Adds the debt of a tenant that leaves. The tenant owes the GPU time to tenants of its rank:
    /// to owners, or to guests.
    pub fn leave(&mut self, rank: Rank, owed_ns: u64, now_ns: u64) {
        let owed = &mut self.at(now_ns).owed_ns[rank as usize];
        *owed = owed.saturating_add(owed_ns).min(MOST_NS);
    }

    /// Moves debts of ended tenants to a new tenant of the same rank, `most_ns` at most. Returns
    /// the GPU time that the new tenant owes now, ns.
    pub fn take_over(&mut self, rank: Rank, most_ns: u64, now_ns: u64) -> u64 {
        let owed = &mut self.at(now_ns).owed_ns[rank as usize];
        let taken_ns = most_ns.min(*owed);
        *owed -= taken_ns;
        taken_ns
    }

    /// Returns the longest wait for a drain of a tenant of this user, ns. Unmetered time of the
    /// user's tenants shortens the wait, but not below `metered_ns`, the tenant's metered GPU time.
    pub fn patience_ns(&mut self, metered_ns: u64, now_ns: u64) -> u64 {
        MAX_DRAIN_NS.saturating_sub(self.at(now_ns).unshown_ns).max(metered_ns)
    }

    /// Returns whether the user has no debts.
    pub fn is_as_new(&mut self, now_ns: u64) -> bool {
        let trust = self.at(now_ns);
        trust.unshown_ns == 0 && trust.owed_ns == [0; 2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = ns(Duration::from_secs(1));

    #[test]
    fn silent_work_waited_for_in_vain_is_waited_for_no_more_until_it_is_shown_or_forgotten() {
        let mut trust = Trust::default();
        assert_eq!(trust.patience_ns(0, SECOND), MAX_DRAIN_NS);
        trust.had_unshown(SECOND, SECOND);
        assert_eq!(trust.patience_ns(0, SECOND), 0);
        assert_eq!(trust.patience_ns(SECOND / 3, SECOND), SECOND / 3, "by what it showed before");
        trust.shown(SECOND / 4, SECOND);
        assert_eq!(trust.patience_ns(0, SECOND), SECOND / 4);
        trust.had_unshown(100 * SECOND, SECOND);
        assert!(trust.patience_ns(0, 2 * SECOND) == 0 && !trust.is_as_new(2 * SECOND));
        assert!(trust.patience_ns(0, 300 * SECOND) == MAX_DRAIN_NS && trust.is_as_new(300 * SECOND));
    }

    #[test]
    fn a_tenant_that_comes_takes_over_the_debts_of_tenants_that_left() {
        let mut trust = Trust::default();
        trust.leave(Rank::Owner, SECOND, 0);
        assert_eq!(trust.take_over(Rank::Guest, SECOND, 0), 0, "it is owed to owners");
        assert_eq!(
            [0, 0].map(|now_ns| trust.take_over(Rank::Owner, 3 * SECOND / 4, now_ns)),
            [3 * SECOND / 4, SECOND / 4]
        );
        trust.leave(Rank::Guest, SECOND, 0);
        assert_eq!(trust.take_over(Rank::Guest, SECOND, 25 * SECOND), SECOND / 2, "half of it is forgotten");
    }
}
