//! The turn: the time in which one process of a tenant alone uses a GPU, without a daemon. At most
//! one process has the turn, so that the GPU does not switch between processes all the time.
//! Nothing else depends on the turn: if two processes run at once, the account still charges them
//! correctly.
//!
//! If a process does not renew its turn, the turn ends by itself. So a killed or stopped process
//! keeps the turn only for a moment.

use crate::sync::{AtomicU64, Ordering};

/// The number of low bits that a claim's time drops. So a word keeps the time in units of 1.024 µs.
const TIME_SHIFT: u32 = 10;
/// The number of low bits of the word that keep the slot.
const SLOT_BITS: u32 = 10;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;

const _: () = assert!((crate::ledger::MAX_SESSIONS as u64) < SLOT_MASK);

/// The turn of the processes of one tenant on one GPU, without a daemon.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Turn {
    /// The process that has the turn, and the end of the turn.
    held: AtomicU64,
    /// The process that has waited for the turn longest, and the end of its wish.
    wanted: AtomicU64,
    /// When the process in `wanted` first asked, ns of `CLOCK_MONOTONIC`. The process writes
    /// `wanted` and this word in two stores. If the two words do not match, they match again after
    /// the process repeats its wish.
    since_ns: AtomicU64,
}

/// A process, by its slot in the ledger, and the end of its claim. The zero word stands for no
/// process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Claim(u64);

impl Claim {
    const NOBODY: Self = Self(0);

    const fn new(slot: usize, until_ns: u64) -> Self {
        Self((until_ns >> TIME_SHIFT) << SLOT_BITS | (slot as u64 + 1) & SLOT_MASK)
    }

    const fn is_by(self, slot: usize) -> bool {
        self.0 & SLOT_MASK == (slot as u64 + 1) & SLOT_MASK
    }

    const fn is_over(self, now_ns: u64) -> bool {
        self.0 >> SLOT_BITS <= now_ns >> TIME_SHIFT
    }
}

impl Turn {
    /// Takes or renews the turn, until `until_ns`. Returns false if another process has the turn.
    pub fn take(&self, slot: usize, now_ns: u64, until_ns: u64) -> bool {
        let claim = Claim::new(slot, until_ns);
        let taken = self.held.fetch_update(Ordering::AcqRel, Ordering::Acquire, |held| {
            let held = Claim(held);
            (held == Claim::NOBODY || held.is_by(slot) || held.is_over(now_ns)).then_some(claim.0)
        });
        taken.is_ok()
    }

    /// Returns whether the process with this slot was the last to take the turn.
    pub fn is_held_by(&self, slot: usize) -> bool {
        Claim(self.held.load(Ordering::Acquire)).is_by(slot)
    }

    /// Gives the turn back, if the process with this slot still has it.
    pub fn give(&self, slot: usize) {
        // The update fails if another process has taken the turn.
        let _ = self.held.fetch_update(Ordering::AcqRel, Ordering::Acquire, |held| {
            Claim(held).is_by(slot).then_some(Claim::NOBODY.0)
        });
    }

    /// Asks for the turn, until `until_ns`. Does nothing if another process has asked longer.
    pub fn want(&self, slot: usize, since_ns: u64, now_ns: u64, until_ns: u64) {
        let is_before = self.since_ns.load(Ordering::Relaxed) <= since_ns;
        if is_before && self.is_wanted_by_other(slot, now_ns) {
            return;
        }
        self.since_ns.store(since_ns, Ordering::Relaxed);
        self.wanted.store(Claim::new(slot, until_ns).0, Ordering::Release);
    }

    /// Withdraws the wish for the turn, if the wish is of the process with this slot.
    pub fn withdraw(&self, slot: usize) {
        let _ = self.wanted.fetch_update(Ordering::AcqRel, Ordering::Acquire, |wanted| {
            Claim(wanted).is_by(slot).then_some(Claim::NOBODY.0)
        });
    }

    /// Returns whether another process asks for the turn.
    pub fn is_wanted_by_other(&self, slot: usize, now_ns: u64) -> bool {
        let wanted = Claim(self.wanted.load(Ordering::Acquire));
        wanted != Claim::NOBODY && !wanted.is_by(slot) && !wanted.is_over(now_ns)
    }

    /// Returns whether another process asks for the turn, and first asked before `since_ns`.
    pub fn is_wanted_before(&self, slot: usize, since_ns: u64, now_ns: u64) -> bool {
        self.is_wanted_by_other(slot, now_ns) && self.since_ns.load(Ordering::Relaxed) < since_ns
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const NOW_NS: u64 = 400_000_000_000_000;
    const LATER_NS: u64 = NOW_NS + 20_000_000;

    #[test]
    fn one_process_has_the_turn_until_it_gives_it_or_lets_it_lapse() {
        let turn = Turn::default();
        assert!(turn.take(0, NOW_NS, LATER_NS));
        assert!(!turn.take(1, NOW_NS, LATER_NS));
        assert!(turn.take(0, NOW_NS, LATER_NS), "renewed");
        turn.give(1);
        assert!(turn.is_held_by(0), "nobody gives what is another's");
        turn.give(0);
        assert!(turn.take(1, NOW_NS, LATER_NS));
        assert!(turn.take(511, LATER_NS, LATER_NS + 1), "it lapsed");
        assert!(!turn.is_held_by(1) && turn.is_held_by(511));
    }

    #[test]
    fn wishes_are_seen_by_others_and_lapse() {
        let turn = Turn::default();
        assert!(!turn.is_wanted_by_other(0, NOW_NS));
        turn.want(1, NOW_NS, NOW_NS, LATER_NS);
        assert!(turn.is_wanted_by_other(0, NOW_NS));
        assert!(!turn.is_wanted_by_other(1, NOW_NS), "one's own wish is no other's");
        assert!(!turn.is_wanted_by_other(0, LATER_NS));
        turn.withdraw(0);
        assert!(turn.is_wanted_by_other(0, NOW_NS), "another's wish is not one's own to withdraw");
        turn.withdraw(1);
        assert!(!turn.is_wanted_by_other(0, NOW_NS));
    }

    #[test]
    fn the_one_that_has_asked_for_longest_is_next() {
        let turn = Turn::default();
        turn.want(1, NOW_NS - 5, NOW_NS, LATER_NS);
        turn.want(2, NOW_NS - 4, NOW_NS, LATER_NS);
        assert!(
            turn.is_wanted_before(2, NOW_NS - 4, NOW_NS) && !turn.is_wanted_before(1, NOW_NS - 5, NOW_NS)
        );
        turn.want(3, NOW_NS - 6, NOW_NS, LATER_NS);
        assert!(
            turn.is_wanted_before(1, NOW_NS - 5, NOW_NS) && !turn.is_wanted_before(3, NOW_NS - 6, NOW_NS)
        );
        turn.withdraw(3);
        turn.want(2, NOW_NS - 4, NOW_NS, LATER_NS);
        assert!(
            !turn.is_wanted_before(1, NOW_NS - 5, NOW_NS),
            "the second has not asked again, but it was before"
        );
        turn.want(1, NOW_NS - 5, NOW_NS, LATER_NS);
        assert!(turn.is_wanted_before(2, NOW_NS - 4, NOW_NS));
        // This wish has expired.
        turn.want(2, LATER_NS, LATER_NS, LATER_NS + 20_000_000);
        assert!(turn.is_wanted_before(1, LATER_NS + 1, LATER_NS));
    }
}
