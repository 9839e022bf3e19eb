//! Former slots: slots of a ledger whose session has ended while its process lives. The process can
//! still write such a slot when it finishes a call that it began during the session.

use std::collections::BTreeMap;

use deepres_model::process::ProcessKey;

/// The former slots, each with the process that had it last. `None` stands for an unknown process,
/// of which the daemon cannot know whether it is dead.
#[derive(Debug, Default)]
pub struct FormerSlots(BTreeMap<usize, Option<ProcessKey>>);

impl FormerSlots {
    /// Adds a slot: `process` had `slot`, and its session has ended.
    pub fn add(&mut self, slot: usize, process: Option<ProcessKey>) {
        self.0.insert(slot, process);
    }

    /// Removes a slot, because another session has it.
    pub fn remove(&mut self, slot: usize) {
        self.0.remove(&slot);
    }

    /// Returns whether a process can still write `slot`.
    pub fn has(&self, slot: usize) -> bool {
        self.0.contains_key(&slot)
    }

    /// Returns the number of slots up to the last former slot.
    pub fn count(&self) -> usize {
        self.0.last_key_value().map_or(0, |(slot, _)| slot + 1)
    }

    /// Forgets dead processes. Returns the slots that no process writes any more.
    pub fn bury(&mut self, is_alive: impl Fn(ProcessKey) -> bool) -> Vec<usize> {
        // One process may have had many slots. The function checks each process once.
        let mut known = BTreeMap::new();
        let mut is_dead = |process: ProcessKey| !*known.entry(process).or_insert_with(|| is_alive(process));
        self.0.extract_if(.., |_, process| process.is_some_and(&mut is_dead)).map(|(slot, _)| slot).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_slot_may_be_written_by_who_had_it_until_that_is_dead() {
        let [one, other] = [7, 8].map(|pid| ProcessKey { pid, start_ticks: 1 });
        let mut former = FormerSlots::default();
        former.add(3, Some(one));
        former.add(1, Some(other));
        assert_eq!([0, 1, 2, 3, 4].map(|slot| former.has(slot)), [false, true, false, true, false]);
        assert_eq!((former.bury(|_| true), former.count()), (vec![], 4));
        assert_eq!((former.bury(|process| process != one), former.count()), (vec![3], 2));
        assert!(former.has(1) && !former.has(3));
        former.remove(1);
        assert_eq!((former.bury(|_| false), former.count()), (vec![], 0));
    }

    #[test]
    fn a_process_that_had_many_slots_is_looked_at_once() {
        let mut former = FormerSlots::default();
        (0..100).for_each(|slot| former.add(slot, Some(ProcessKey { pid: 7, start_ticks: 1 })));
        let looks = Cell::new(0);
        let is_alive = |_| {
            looks.set(looks.get() + 1);
            false
        };
        assert_eq!((former.bury(is_alive).len(), looks.get()), (100, 1));
    }

    #[test]
    fn a_slot_of_who_cannot_be_told_may_be_written_until_another_has_it() {
        let mut former = FormerSlots::default();
        former.add(5, None);
        assert_eq!((former.bury(|_| false), former.count()), (vec![], 6));
        former.remove(5);
        assert!(!former.has(5));
    }
}
