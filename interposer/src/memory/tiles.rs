//! Physical memory that is mapped into arrays which have none of their own: it lives until its last handle is released and it is mapped nowhere any more.

use std::sync::{Mutex, MutexGuard, PoisonError};

use deepres_abi::driver::result::CUDA_SUCCESS;

use super::Accounts;
use crate::process::Process;

/// Which part of an array: a box, or a stretch of bytes, as the driver is told, each number with how far it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// What has to be the same: its kind, level and layer.
    pub place: [u32; 3],
    /// Where it begins and ends, by axis.
    pub ranges: [(u64, u64); 3],
}

impl Part {
    fn holds(&self, other: &Self) -> bool {
        let is_inside = |(own, other): (&(u64, u64), &(u64, u64))| own.0 <= other.0 && other.1 <= own.1;
        self.place == other.place && self.ranges.iter().zip(&other.ranges).all(is_inside)
    }
}

/// What the driver is to do with a part of an array.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    /// The array.
    pub array: u64,
    /// Where in it.
    pub part: Part,
    /// What is to be mapped there; `None`: what is there is unmapped.
    pub handle: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Tile {
    array: u64,
    /// The context that the array ends with.
    context: usize,
    part: Part,
    handle: u64,
}

/// What is mapped.
#[derive(Default)]
pub struct Tiles(Mutex<Vec<Tile>>);

impl Tiles {
    fn lock(&self) -> MutexGuard<'_, Vec<Tile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, mut is_meant: impl FnMut(&Tile) -> bool) -> Vec<Tile> {
        self.lock().extract_if(.., |tile| is_meant(tile)).collect()
    }
}

impl Accounts {
    /// Has the driver do `operations` on arrays of `context` by `call`. What is mapped is kept before: its handle may be released as soon as the driver has
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
                        self.tiles.lock().push(Tile { array, context, part, handle });
                    }
                }
                None => self.release_tiles(process, |tile| tile.array == array && part.holds(&tile.part)),
            }
        }
        result
    }

    /// Destroys an array by `destroy`, and with it what is mapped into it.
    pub fn destroy_array(&self, process: &Process, array: u64, destroy: impl FnOnce() -> u32) -> u32 {
        // Before: once the driver has destroyed it, it may give the same handle to another thread.
        let gone = self.tiles.take(|tile| tile.array == array);
        let result = self.free(process, super::Name::Array(array), destroy);
        if result == CUDA_SUCCESS {
            gone.into_iter().for_each(|tile| self.let_go(process, tile.handle));
        } else {
            self.tiles.lock().extend(gone);
        }
        result
    }

    /// Lets go of what is mapped into the arrays of a context that ended.
    pub(super) fn forget_tiles_of(&self, process: &Process, context: usize) {
        self.release_tiles(process, |tile| tile.context == context);
    }

    fn release_tiles(&self, process: &Process, is_meant: impl FnMut(&Tile) -> bool) {
        for tile in self.tiles.take(is_meant) {
            self.let_go(process, tile.handle);
        }
    }

    fn let_go(&self, process: &Process, handle: u64) {
        self.release_handle(process, handle, || CUDA_SUCCESS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_holds_what_lies_in_it_on_the_same_level_and_layer() {
        let part = |level: u32, from: u64, to: u64| Part {
            place: [0, level, 0],
            ranges: [(from, to), (0, 128), (0, 1)],
        };
        assert!(part(0, 0, 256).holds(&part(0, 128, 256)));
        assert!(!part(0, 0, 128).holds(&part(0, 64, 256)));
        assert!(!part(0, 0, 256).holds(&part(1, 0, 128)));
    }
}
