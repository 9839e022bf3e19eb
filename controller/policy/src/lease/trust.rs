//! What a user's tenants had of the GPU and did not show, and owe though they are gone: whoever has a thousand tenants, or a new one every
//! second, has no more time on trust than whoever has one.

use super::state::Rank;
use super::{MAX_DRAIN_NS, ns};
use core::time::Duration;

/// Whose a tenant is.
pub type UserId = u64;

/// Of what was had and not shown, and of what is owed, so much is forgotten in time: one part in so many of the time that passes.
const FORGOTTEN_PART: u64 = 50;
/// More than this is not remembered: it is forgotten within minutes.
const MOST_NS: u64 = ns(Duration::from_secs(5));

/// What is remembered of a user. Times are ns.
#[derive(Debug, Clone, Copy, Default)]
pub struct Trust {
    unshown_ns: u64,
    /// By rank: what is owed to owners, and to guests.
    owed_ns: [u64; 2],
    at_ns: u64,
}

impl Trust {
    /// Lets time pass.
    fn at(&mut self, now_ns: u64) -> &mut Self {
        let forgotten_ns = now_ns.saturating_sub(self.at_ns) / FORGOTTEN_PART;
        if forgotten_ns > 0 {
            self.unshown_ns = self.unshown_ns.saturating_sub(forgotten_ns);
            self.owed_ns = self.owed_ns.map(|owed_ns| owed_ns.saturating_sub(forgotten_ns));
            self.at_ns = now_ns;
        }
        self
    }

    /// A tenant had the GPU for that long, while others wanted it, and shows no use of it.
    pub fn had_unshown(&mut self, had_ns: u64, now_ns: u64) {
        let trust = self.at(now_ns);
        trust.unshown_ns = trust.unshown_ns.saturating_add(had_ns).min(MOST_NS);
    }

    /// It showed a use of that after all.
    pub fn shown(&mut self, used_ns: u64, now_ns: u64) {
        let trust = self.at(now_ns);
        trust.unshown_ns = trust.unshown_ns.saturating_sub(used_ns);
    }

    /// A tenant leaves that owes so much GPU time to those of its rank.
    pub fn leave(&mut self, rank: Rank, owed_ns: u64, now_ns: u64) {
        let owed = &mut self.at(now_ns).owed_ns[rank as usize];
        *owed = owed.saturating_add(owed_ns).min(MOST_NS);
    }

    /// One of that rank takes over what is owed, `most_ns` at most: returns how much.
    pub fn take_over(&mut self, rank: Rank, most_ns: u64, now_ns: u64) -> u64 {
        let owed = &mut self.at(now_ns).owed_ns[rank as usize];
        let taken_ns = most_ns.min(*owed);
        *owed -= taken_ns;
        taken_ns
    }

    /// How long work of a tenant of this user that was metered for `metered_ns` so far is waited for that does not end: as long as for anybody, but for what
    /// was waited for in vain; and who showed that much use is believed so much.
    pub fn patience_ns(&mut self, metered_ns: u64, now_ns: u64) -> u64 {
        MAX_DRAIN_NS.saturating_sub(self.at(now_ns).unshown_ns).max(metered_ns)
    }

    /// There is nothing to remember.
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
