//! What a launch takes, learned from segments that held one launch: for the window on work in flight.

use std::sync::atomic::{AtomicU64, Ordering};

/// Places in the table. More different kernels than that overwrite each other and are learned again.
const PLACES: usize = 1024;
/// Weight of a new measurement: one in this many.
const WEIGHT: u64 = 4;

/// Mean time by key, one place each.
#[derive(Debug)]
pub struct Estimates {
    places: Box<[Place]>,
}

#[derive(Debug, Default)]
struct Place {
    key: AtomicU64,
    mean_ns: AtomicU64,
}

impl Default for Estimates {
    fn default() -> Self {
        Self { places: (0..PLACES).map(|_| Place::default()).collect() }
    }
}

impl Estimates {
    fn place(&self, key: u64) -> Option<&Place> {
        self.places.get(key as usize % PLACES)
    }

    /// What a launch with this key takes, ns.
    pub fn get(&self, key: u64) -> Option<u64> {
        let place = self.place(key)?;
        (place.key.load(Ordering::Relaxed) == key).then(|| place.mean_ns.load(Ordering::Relaxed))
    }

    /// Notes that one took `took_ns`. One thread calls this.
    pub fn learn(&self, key: u64, took_ns: u64) {
        let Some(place) = self.place(key) else { return };
        let mean_ns = match self.get(key) {
            Some(mean_ns) => mean_ns - mean_ns / WEIGHT + took_ns / WEIGHT,
            None => took_ns,
        };
        place.mean_ns.store(mean_ns, Ordering::Relaxed);
        place.key.store(key, Ordering::Relaxed);
    }
}

/// Mixes words into a key that is never 0.
pub fn key(words: &[u64]) -> u64 {
    /// 2⁶⁴ divided by the golden ratio: spreads consecutive numbers.
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    words.iter().fold(1_u64, |key, word| (key.rotate_left(29) ^ word).wrapping_mul(MULTIPLIER) ^ (key >> 32))
        | 1 << 63
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_follows_its_measurements_and_keys_do_not_mix() {
        let estimates = Estimates::default();
        assert_eq!(estimates.get(key(&[1])), None);
        estimates.learn(key(&[1]), 1_000);
        assert_eq!(estimates.get(key(&[1])), Some(1_000));
        for _ in 0..50 {
            estimates.learn(key(&[1]), 3_000);
        }
        assert!(estimates.get(key(&[1])).is_some_and(|ns| (2_900..=3_000).contains(&ns)));
        assert_eq!(estimates.get(key(&[2])), None);
        assert_ne!(key(&[1, 2]), key(&[2, 1]));
    }
}
