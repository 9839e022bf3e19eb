//! The set of greatest value among things that each take a part of the SMs.

use alloc::vec::Vec;

/// All SMs, percent.
pub const WHOLE_PERCENT: usize = 100;

/// The memory of the choice, which one choice leaves to the next.
#[derive(Debug, Clone, Default)]
pub struct Knapsack {
    /// The greatest value of the items so far, by the percent that they take.
    best: Vec<f64>,
    /// For each item and each percent, whether the best choice so far takes the item.
    taken: Vec<bool>,
}

impl Knapsack {
    /// Chooses the items of greatest total value whose parts sum to at most `room` percent. Items
    /// are pairs of a part, percent, and a value. Items without a positive value are left out.
    /// Appends the positions of the chosen items to `chosen`, and returns their value.
    pub fn choose(&mut self, room: usize, items: &[(usize, f64)], chosen: &mut Vec<usize>) -> f64 {
        let cells = room + 1;
        self.best.clear();
        self.best.resize(cells, 0.0);
        self.taken.clear();
        self.taken.resize(cells * items.len(), false);
        for (&(part, value), taken) in items.iter().zip(self.taken.chunks_exact_mut(cells)) {
            if part > room || value.is_nan() || value <= 0.0 {
                continue;
            }
            for used in (part..cells).rev() {
                let with = self.best[used - part] + value;
                if with > self.best[used] {
                    self.best[used] = with;
                    taken[used] = true;
                }
            }
        }
        let mut left = room;
        for (item, taken) in self.taken.chunks_exact(cells).enumerate().rev() {
            if taken[left] {
                chosen.push(item);
                left -= items[item].0;
            }
        }
        self.best[room]
    }
}
