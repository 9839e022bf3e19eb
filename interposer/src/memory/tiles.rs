//! Physical memory that is mapped into sparse arrays. It lives until its last handle is released
//! and its last mapping is gone.

use std::sync::{Mutex, MutexGuard, PoisonError};

use deepres_abi::driver::result::CUDA_SUCCESS;

use super::Accounts;
use crate::process::Process;

/// A part of an array: a box, or a range of bytes. Each range has a beginning and an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The kind, level and layer. Parts in different places do not overlap.
    pub place: [u32; 3],
    /// Beginning and end on each axis.
    pub ranges: [(u64, u64); 3],
}

impl Part {
    /// Returns the parts of `self` that do not lie in `other`.
    fn without(self, other: &Self) -> Vec<Self> {
        let is_apart = |(own, other): (&(u64, u64), &(u64, u64))| own.1 <= other.0 || other.1 <= own.0;
        if self.place != other.place || self.ranges.iter().zip(&other.ranges).any(is_apart) {
            return vec![self];
        }
        // On each axis the parts before and behind `other` are split off. The rest finally lies in
        // both.
        let (mut both, mut left) = (self, Vec::new());
        for (axis, (from, to)) in other.ranges.into_iter().enumerate() {
            let own = both.ranges[axis];
            let mut leave = |range: (u64, u64)| {
                if range.0 < range.1 {
                    let mut part = both;
                    part.ranges[axis] = range;
                    left.push(part);
                }
            };
            leave((own.0, from));
            leave((to, own.1));
            both.ranges[axis] = (own.0.max(from), own.1.min(to));
        }
        left
    }
}

/// A change to a part of an array.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    /// The array.
    pub array: u64,
    /// The part of the array.
    pub part: Part,
    /// The memory to map there. `None` unmaps the part.
    pub handle: Option<u64>,
}

#[derive(Debug)]
struct Tile {
    array: u64,
    /// The context whose end frees the array.
    context: usize,
    /// The parts at which it is mapped. They do not overlap, and shrink with each unmap.
    parts: Vec<Part>,
    handle: u64,
}

/// All memory that is mapped into arrays.
#[derive(Default)]
pub struct Tiles(Mutex<Vec<Tile>>);

impl Tiles {
    fn lock(&self) -> MutexGuard<'_, Vec<Tile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, mut is_meant: impl FnMut(&mut Tile) -> bool) -> Vec<Tile> {
        self.lock().extract_if(.., |tile| is_meant(tile)).collect()
    }

    /// Unmaps a part of an array. Returns the tiles that are no longer mapped anywhere.
    fn unmap(&self, array: u64, part: &Part) -> Vec<Tile> {
        self.take(|tile| {
            if tile.array == array {
                let before = std::mem::take(&mut tile.parts);
                tile.parts = before.into_iter().flat_map(|mapped| mapped.without(part)).collect();
            }
            tile.parts.is_empty()
        })
    }
}

impl Accounts {
    /// Runs `call`, which carries out `operations` on arrays of `context`. The memory to map is
    /// retained before, because another thread may release its handle as soon as the driver has
    /// mapped it.
    pub fn map_tiles(
        &self,
        process: &Process,
        context: usize,
        operations: &[Operation],
        call: impl FnOnce() -> u32,
    ) -> u32 {
        let kept: Vec<u64> = operations
            .iter()
            .filter_map(|operation| operation.handle.filter(|handle| self.retain_handle(*handle)))
            .collect();
        let result = call();
        if result != CUDA_SUCCESS {
            kept.into_iter().for_each(|handle| self.let_go(process, handle));
            return result;
        }
        let mut kept = kept.into_iter().peekable();
        for Operation { array, part, handle } in operations.iter().copied() {
            match handle {
                Some(handle) => {
                    if kept.next_if_eq(&handle).is_some() {
                        self.tiles.lock().push(Tile { array, context, parts: vec![part], handle });
                    }
                }
                None => self.release(process, self.tiles.unmap(array, &part)),
            }
        }
        result
    }

    /// Destroys an array by `destroy`, and releases the memory that is mapped into it.
    pub fn destroy_array(&self, process: &Process, array: u64, destroy: impl FnOnce() -> u32) -> u32 {
        // The tiles are removed before `destroy` runs, because the driver may afterwards give the
        // same handle to another thread.
        let gone = self.tiles.take(|tile| tile.array == array);
        let result = self.free(process, super::Name::Array(array), destroy);
        if result == CUDA_SUCCESS {
            gone.into_iter().for_each(|tile| self.let_go(process, tile.handle));
        } else {
            self.tiles.lock().extend(gone);
        }
        result
    }

    /// Releases the memory that is mapped into the arrays of an ended context.
    pub(super) fn forget_tiles_of(&self, process: &Process, context: usize) {
        self.release(process, self.tiles.take(|tile| tile.context == context));
    }

    fn release(&self, process: &Process, tiles: Vec<Tile>) {
        tiles.into_iter().for_each(|tile| self.let_go(process, tile.handle));
    }

    fn let_go(&self, process: &Process, handle: u64) {
        self.release_handle(process, handle, || CUDA_SUCCESS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(level: u32, ranges: [(u64, u64); 3]) -> Part {
        Part { place: [0, level, 0], ranges }
    }

    fn volume(parts: &[Part]) -> u64 {
        parts.iter().map(|part| part.ranges.iter().map(|(from, to)| to - from).product::<u64>()).sum()
    }

    #[test]
    fn what_is_left_of_a_part_is_all_that_does_not_lie_in_the_other() {
        let whole = part(0, [(0, 8), (0, 8), (0, 8)]);
        assert_eq!(whole.without(&part(1, [(0, 8), (0, 8), (0, 8)])), [whole], "another level");
        assert_eq!(whole.without(&part(0, [(8, 9), (0, 8), (0, 8)])), [whole], "beside it");
        assert_eq!(whole.without(&part(0, [(0, 9), (0, 9), (0, u64::MAX)])), []);
        let left = whole.without(&part(0, [(2, 4), (2, 4), (2, 4)]));
        assert_eq!((left.len(), volume(&left)), (6, 512 - 8));
        let left = whole.without(&part(0, [(6, 12), (0, 8), (4, 8)]));
        assert_eq!(volume(&left), 512 - 2 * 8 * 4);
    }

    #[test]
    fn what_was_mapped_at_once_may_be_unmapped_by_parts_in_any_order_and_twice() {
        let tiles = Tiles::default();
        let whole = part(0, [(0, 256), (0, 128), (0, 1)]);
        for (array, handle) in [(1, 10), (2, 20)] {
            tiles.lock().push(Tile { array, context: 0, parts: vec![whole], handle });
        }
        let column = |from: u64, to: u64| part(0, [(from, to), (0, 128), (0, 1)]);
        for part in [column(64, 128), column(64, 128), column(192, 300), column(0, 64)] {
            assert!(tiles.unmap(1, &part).is_empty());
        }
        let gone = tiles.unmap(1, &column(100, 200));
        assert_eq!(gone.iter().map(|tile| tile.handle).collect::<Vec<_>>(), [10]);
        let gone = tiles.unmap(2, &whole);
        assert_eq!(gone.iter().map(|tile| tile.handle).collect::<Vec<_>>(), [20]);
    }
}
