//! Allocator for parts of larger pieces of memory. Small allocations share pieces of 2 MiB, and
//! pools reuse reserved memory, by this allocator.
use std::collections::BTreeMap;
use std::ops::Bound;

struct Slab {
    bytes: u64,
    free: BTreeMap<u64, u64>,
}

impl Slab {
    fn is_unused(&self) -> bool {
        self.free.values().next() == Some(&self.bytes)
    }
}

/// Slabs of address space and their free parts. The arena only computes; its owner maps and charges
/// the memory.
#[derive(Default)]
pub struct Arena {
    slabs: BTreeMap<u64, Slab>,
}

impl Arena {
    /// Adds a slab that is wholly free.
    pub fn add(&mut self, base: u64, bytes: u64) {
        self.slabs.insert(base, Slab { bytes, free: BTreeMap::from([(base, bytes)]) });
    }

    /// Takes `bytes` from the first free part that is large enough, and returns their address.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        for slab in self.slabs.values_mut() {
            let found = slab.free.iter().find(|(_, free)| **free >= bytes).map(|(at, free)| (*at, *free));
            if let Some((at, free)) = found {
                slab.free.remove(&at);
                if free > bytes {
                    slab.free.insert(at + bytes, free - bytes);
                }
                return Some(at);
            }
        }
        None
    }

    /// Gives `bytes` at `at` back to the arena.
    pub fn give(&mut self, at: u64, bytes: u64) {
        let Some((_, slab)) = self.slabs.range_mut(..=at).next_back() else { return };
        let (mut start, mut end) = (at, at + bytes);
        if let Some((&before, &length)) = slab.free.range(..at).next_back()
            && before + length == start
        {
            slab.free.remove(&before);
            start = before;
        }
        if let Some((&after, &length)) = slab.free.range((Bound::Included(at), Bound::Unbounded)).next()
            && after == end
        {
            slab.free.remove(&after);
            end += length;
        }
        slab.free.insert(start, end - start);
    }

    /// Removes unused slabs, as long as at least `keep_bytes` remain in the arena. Returns the
    /// removed slabs.
    pub fn trim(&mut self, keep_bytes: u64) -> Vec<(u64, u64)> {
        let mut total = self.bytes();
        let mut unused: Vec<(u64, u64)> = self
            .slabs
            .iter()
            .filter(|(_, slab)| slab.is_unused())
            .map(|(base, slab)| (*base, slab.bytes))
            .collect();
        unused.retain(|(base, bytes)| {
            let goes = total > keep_bytes && total - bytes >= keep_bytes;
            if goes {
                total -= bytes;
                self.slabs.remove(base);
            }
            goes
        });
        unused
    }

    /// Returns all slabs, used or not.
    pub fn slabs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.slabs.iter().map(|(base, slab)| (*base, slab.bytes))
    }

    /// Returns the length of all slabs together.
    pub fn bytes(&self) -> u64 {
        self.slabs.values().map(|slab| slab.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_do_not_overlap_and_merge_again() {
        let mut arena = Arena::default();
        arena.add(0x1000, 0x400);
        let pieces: Vec<_> = (0..4).map(|_| arena.take(0x100).unwrap()).collect();
        assert_eq!(pieces, [0x1000, 0x1100, 0x1200, 0x1300]);
        assert_eq!(arena.take(1), None);
        for at in [0x1100, 0x1300, 0x1200] {
            arena.give(at, 0x100);
        }
        assert_eq!(arena.take(0x300), Some(0x1100));
    }

    #[test]
    fn only_unused_slabs_are_trimmed_and_not_below_what_is_kept() {
        let mut arena = Arena::default();
        for base in [0x10_000, 0x20_000, 0x30_000] {
            arena.add(base, 0x1000);
        }
        let held = arena.take(0x800).unwrap();
        assert_eq!(arena.trim(0x2000), [(0x20_000, 0x1000)]);
        assert_eq!(arena.trim(0), [(0x30_000, 0x1000)]);
        assert_eq!(arena.trim(0), []);
        arena.give(held, 0x800);
        assert_eq!(arena.trim(0), [(0x10_000, 0x1000)]);
    }
}
