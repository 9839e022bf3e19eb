//! Adds up intervals, and counts time that lies in several intervals once.

use std::collections::VecDeque;

/// The most intervals that a union remembers. Beyond this number, the union forgets the earliest
/// interval. An interval that overlaps a forgotten interval counts in full.
const REMEMBERED: usize = 256;

/// The intervals so far, sorted and without overlap.
#[derive(Debug, Default)]
pub struct Union {
    covered: VecDeque<(i64, i64)>,
}

impl Union {
    /// Adds the interval from `start` to `end`. Returns the length of the part that was not covered
    /// before.
    pub fn add(&mut self, start: i64, end: i64) -> u64 {
        if end <= start {
            return 0;
        }
        let first = self.covered.partition_point(|interval| interval.1 < start);
        let mut merged = (start, end);
        let mut fresh = end - start;
        let mut last = first;
        while let Some(interval) = self.covered.get(last).filter(|interval| interval.0 <= end) {
            fresh -= (interval.1.min(end) - interval.0.max(start)).max(0);
            merged = (merged.0.min(interval.0), merged.1.max(interval.1));
            last += 1;
        }
        self.covered.drain(first..last);
        self.covered.insert(first, merged);
        if self.covered.len() > REMEMBERED {
            self.covered.pop_front();
        }
        fresh.max(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlaps_count_once_in_any_order() {
        let mut union = Union::default();
        assert_eq!(union.add(10, 20), 10);
        assert_eq!(union.add(30, 40), 10);
        assert_eq!(union.add(15, 35), 10, "only the gap is new");
        assert_eq!(union.add(0, 50), 20, "both ends are new");
        assert_eq!(union.add(5, 45), 0);
        assert_eq!(union.add(50, 60), 10, "a part that only touches is all new");
        assert_eq!(union.add(7, 7), 0);
        assert_eq!(union.add(9, 8), 0);
    }

    #[test]
    fn many_gaps_do_not_grow_without_bound() {
        let mut union = Union::default();
        for i in 0..10_000 {
            assert_eq!(union.add(i * 10, i * 10 + 5), 5);
        }
        assert!(union.covered.len() <= REMEMBERED);
    }
}
