//! Which slots of a ledger processes may still write that had a session there and live on: what they were doing when they lost it ends in that slot.

use std::collections::BTreeSet;

use crate::process::ProcessKey;

/// See the module.
#[derive(Debug, Default)]
pub struct FormerSlots(BTreeSet<(usize, Option<ProcessKey>)>);

impl FormerSlots {
    /// The session of `process` that had `slot` is over; whether the process is dead is not known if that is not told.
    pub fn add(&mut self, slot: usize, process: Option<ProcessKey>) {
        self.0.insert((slot, process));
    }

    /// Whether anybody may write in `slot`.
    pub fn has(&self, slot: usize) -> bool {
        self.0.range((slot, None)..).next().is_some_and(|(at, _)| *at == slot)
    }

    /// Forgets who is dead. Returns how many slots there are up to the last that one of the others may write.
    pub fn count(&mut self, is_alive: impl Fn(ProcessKey) -> bool) -> usize {
        self.0.retain(|(_, process)| process.is_none_or(&is_alive));
        self.0.last().map_or(0, |(slot, _)| slot + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_may_be_written_by_who_had_it_until_that_is_dead() {
        let [one, other] = [7, 8].map(|pid| ProcessKey { pid, start_ticks: 1 });
        let mut former = FormerSlots::default();
        former.add(3, Some(one));
        former.add(1, Some(other));
        assert_eq!([0, 1, 2, 3, 4].map(|slot| former.has(slot)), [false, true, false, true, false]);
        assert_eq!(former.count(|_| true), 4);
        assert_eq!(former.count(|process| process != one), 2);
        assert!(former.has(1) && !former.has(3));
        assert_eq!(former.count(|_| false), 0);
    }

    #[test]
    fn a_slot_of_who_cannot_be_told_may_be_written_for_good() {
        let mut former = FormerSlots::default();
        former.add(5, None);
        assert_eq!(former.count(|_| false), 6);
        assert!(former.has(5));
    }
}
