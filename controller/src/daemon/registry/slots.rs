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

    /// Whether another than `process` may write in `slot`.
    pub fn are_others(&self, slot: usize, process: Option<ProcessKey>) -> bool {
        let mut writers = self.0.range((slot, None)..).take_while(|(at, _)| *at == slot);
        writers.any(|(_, writer)| writer.is_none() || *writer != process)
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
    fn a_slot_is_its_former_owners_until_that_is_dead() {
        let [one, other] = [7, 8].map(|pid| ProcessKey { pid, start_ticks: 1 });
        let mut former = FormerSlots::default();
        former.add(3, Some(one));
        former.add(1, Some(other));
        assert!(!former.are_others(3, Some(one)), "it may have its own again");
        assert!(former.are_others(3, Some(other)) && former.are_others(3, None));
        assert!(!former.are_others(2, Some(other)));
        assert_eq!(former.count(|_| true), 4);
        assert_eq!(former.count(|process| process != one), 2);
        assert!(!former.are_others(3, Some(other)));
        assert_eq!(former.count(|_| false), 0);
    }

    #[test]
    fn a_slot_of_who_cannot_be_told_is_nobody_elses_for_good() {
        let mut former = FormerSlots::default();
        former.add(5, None);
        assert_eq!(former.count(|_| false), 6);
        assert!(former.are_others(5, None));
    }
}
