//! Processes with very many descriptors. To read all descriptors takes seconds. One thread reads
//! the descriptors with pauses, and no other thread waits for this thread.

use super::scan::Use;
use deepres_model::process::ProcessKey;
use std::collections::BTreeMap;

#[derive(Debug, Default, Clone, Copy)]
struct Entry {
    /// Whether the process has the devices open; `None` if no look has finished yet.
    uses: Option<bool>,
    is_asked: bool,
    /// The earliest time of the next look at the process.
    next_ns: u64,
}

/// The results of looks at processes with very many descriptors.
#[derive(Debug, Default)]
pub struct Large(BTreeMap<ProcessKey, Entry>);

impl Large {
    /// Returns whether the caller should look at a process now. If the result is true, the method
    /// notes that a look has begun.
    pub fn asks(&mut self, who: ProcessKey, now_ns: u64) -> bool {
        let entry = self.0.entry(who).or_default();
        let asks = !entry.is_asked && now_ns >= entry.next_ns;
        entry.is_asked |= asks;
        asks
    }

    /// Stores the result of a look. The next look is not before `next_ns`.
    pub fn answered(&mut self, who: ProcessKey, found: Option<Use>, next_ns: u64) {
        self.0.insert(who, Entry { uses: Some(found.is_some()), is_asked: false, next_ns });
    }

    /// Forgets a process. The caller calls this if the process has few descriptors after all.
    pub fn forget(&mut self, who: ProcessKey) {
        self.0.remove(&who);
    }

    /// Forgets the result that a process has no device open. The caller calls this if the process
    /// did something for which a process needs an open device.
    pub fn doubt(&mut self, who: ProcessKey) {
        if let Some(entry) = self.0.get_mut(&who)
            && entry.uses == Some(false)
        {
            entry.uses = None;
        }
    }

    /// Returns whether the process had the devices open at the last complete look; `None` without a
    /// complete look.
    pub fn uses(&self, who: ProcessKey) -> Option<bool> {
        self.0.get(&who)?.uses
    }

    /// Keeps the processes that `is_wanted` selects.
    pub fn retain(&mut self, is_wanted: impl Fn(ProcessKey) -> bool) {
        self.0.retain(|who, _| is_wanted(*who));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probes::users::Evidence;

    const WHO: ProcessKey = ProcessKey { pid: 7, start_ticks: 1 };
    const FOUND: Option<Use> = Some(Use { evidence: Evidence::Descriptor, is_compute: true });

    #[test]
    fn a_process_is_looked_at_by_one_at_a_time_and_not_all_the_time() {
        let mut large = Large::default();
        assert_eq!([large.asks(WHO, 0), large.asks(WHO, 1)], [true, false]);
        large.answered(WHO, None, 100);
        assert_eq!([large.asks(WHO, 99), large.asks(WHO, 100), large.asks(WHO, 101)], [false, true, false]);
        assert!(large.asks(ProcessKey { start_ticks: 2, ..WHO }, 0), "another of the same id");
    }

    #[test]
    fn an_answer_about_a_process_holds_until_the_process_does_something_that_contradicts_it() {
        let mut large = Large::default();
        assert_eq!(large.uses(WHO), None);
        large.asks(WHO, 0);
        assert_eq!(large.uses(WHO), None);
        large.answered(WHO, None, 100);
        assert_eq!(large.uses(WHO), Some(false));
        large.doubt(WHO);
        assert_eq!(large.uses(WHO), None, "it has asked the driver something since");
        assert!(!large.asks(WHO, 99), "which is no reason to look at once");
        large.answered(WHO, FOUND, 100);
        large.doubt(WHO);
        assert_eq!(large.uses(WHO), Some(true));
        large.retain(|_| true);
        large.forget(WHO);
        assert_eq!(large.uses(WHO), None);
        assert!(large.asks(WHO, 0));
        large.retain(|_| false);
        assert!(large.asks(WHO, 0), "another time");
    }
}
