//! Remembers the debts of a user: GPU time that the user's tenants had and did not show, and GPU
//! time that they owe although they are gone. So a user with a thousand tenants, or with a new
//! tenant every second, gets no more GPU time on trust than a user with one tenant.

use super::state::Rank;
use super::{MAX_DRAIN_NS, ns};
use core::time::Duration;

/// The number of the user to whom a tenant belongs.
pub type UserId = u64;

/// The scheduler forgets time that was not shown, and debts: one part in this many of the time that
/// passes.
const FORGOTTEN_PART: u64 = 50;
/// The scheduler remembers at most this much, which it forgets within minutes.
const MOST_NS: u64 = ns(Duration::from_secs(5));

/// The memory of one user. Times are ns.
#[derive(Debug, Clone, Copy, Default)]
pub struct Trust {
    unshown_ns: u64,
    /// By rank: GPU time that is owed to owners, and to guests.
    owed_ns: [u64; 2],
    at_ns: u64,
}

impl Trust {
    /// Lets time pass up to `now_ns`.
    fn at(&mut self, now_ns: u64) -> &mut Self {
        let forgotten_ns = now_ns.saturating_sub(self.at_ns) / FORGOTTEN_PART;
        if forgotten_ns > 0 {
            self.unshown_ns = self.unshown_ns.saturating_sub(forgotten_ns);
            self.owed_ns = self.owed_ns.map(|owed_ns| owed_ns.saturating_sub(forgotten_ns));
            self.at_ns = now_ns;
        }
        self
    }

    /// Notes GPU time that a tenant had while others wanted the GPU, and for which no meter shows a
    /// use.
    pub fn had_unshown(&mut self, had_ns: u64, now_ns: u64) {
        let trust = self.at(now_ns);
        trust.unshown_ns = trust.unshown_ns.saturating_add(had_ns).min(MOST_NS);
    }

    /// Notes that a meter showed the use of such time after all.
    pub fn shown(&mut self, used_ns: u64, now_ns: u64) {
        let trust = self.at(now_ns);
        trust.unshown_ns = trust.unshown_ns.saturating_sub(used_ns);
    }

    /// Notes a tenant that leaves, and the GPU time that it owes to tenants of its rank.
    pub fn leave(&mut self, rank: Rank, owed_ns: u64, now_ns: u64) {
        let owed = &mut self.at(now_ns).owed_ns[rank as usize];
        *owed = owed.saturating_add(owed_ns).min(MOST_NS);
    }

    /// Lets a tenant of that rank take over debts, `most_ns` at most. Returns the debts taken over,
    /// ns.
    pub fn take_over(&mut self, rank: Rank, most_ns: u64, now_ns: u64) -> u64 {
        let owed = &mut self.at(now_ns).owed_ns[rank as usize];
        let taken_ns = most_ns.min(*owed);
        *owed -= taken_ns;
        taken_ns
    }

    /// Returns how long the scheduler waits for work of a tenant of this user that does not end,
    /// ns. The usual limit shrinks by the time that others waited in vain. It is at least
    /// `metered_ns`, because a tenant that showed that much use is believed that much.
    pub fn patience_ns(&mut self, metered_ns: u64, now_ns: u64) -> u64 {
        MAX_DRAIN_NS.saturating_sub(self.at(now_ns).unshown_ns).max(metered_ns)
    }

    /// Returns whether there is nothing to remember.
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
    fn what_was_waited_for_in_vain_is_waited_for_no_more_until_it_is_shown_or_forgotten() {
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
    fn who_comes_takes_over_what_those_owe_who_left() {
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
