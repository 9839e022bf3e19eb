//! Physical memory that is mapped into sparse arrays. The interposer charges the memory as long as
//! such a mapping exists: until the job unmaps the same part or destroys the array.

use deepres_abi::driver::result::CUDA_SUCCESS;

use super::{Accounts, Name, lock};
use crate::process::Process;

/// A part of an array, as the job describes it to the driver.
pub type Part = (u32, [u64; 4]);

/// A change to a part of an array.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    /// The handle of the array.
    pub array: u64,
    /// The part of the array.
    pub part: Part,
    /// The memory to map to the part. `None` unmaps the part.
    pub handle: Option<u64>,
}

/// Memory that is mapped into an array.
#[derive(Debug)]
pub struct Tile {
    array: u64,
    /// The context whose end frees the array.
    context: usize,
    part: Part,
    handle: u64,
}

impl Accounts {
    fn take_tiles(&self, is_meant: impl Fn(&Tile) -> bool) -> Vec<Tile> {
        lock(&self.tiles).extract_if(.., |tile| is_meant(tile)).collect()
    }

    fn release_tiles(&self, process: &Process, tiles: Vec<Tile>) {
        for tile in tiles {
            self.release_handle(process, tile.handle, || CUDA_SUCCESS);
        }
    }

    /// Runs `call`, which carries out `operations` on arrays of `context`. Returns the result of
    /// `call`. Retains the memory before `call` runs, because another thread can release its handle
    /// as soon as the driver has mapped it.
    pub fn map_tiles(
        &self,
        process: &Process,
        context: usize,
        operations: &[Operation],
        call: impl FnOnce() -> u32,
    ) -> u32 {
        let tile = |operation: &Operation| {
            let Operation { array, part, handle } = *operation;
            let handle = handle.filter(|handle| self.retain_handle(*handle))?;
            Some(Tile { array, context, part, handle })
        };
        let tiles: Vec<Tile> = operations.iter().filter_map(tile).collect();
        let result = call();
        if result != CUDA_SUCCESS {
            self.release_tiles(process, tiles);
            return result;
        }
        for Operation { array, part, .. } in operations {
            self.release_tiles(process, self.take_tiles(|tile| (tile.array, tile.part) == (*array, *part)));
        }
        lock(&self.tiles).extend(tiles);
        result
    }

    /// Destroys an array by `destroy`, and releases the memory that is mapped into the array.
    /// Returns the result of `destroy`.
    pub fn destroy_array(&self, process: &Process, array: u64, destroy: impl FnOnce() -> u32) -> u32 {
        // The method removes the tiles before `destroy` runs, because the driver can afterwards
        // give the same handle to another thread.
        let gone = self.take_tiles(|tile| tile.array == array);
        let result = self.free(process, Name::Array(array), destroy);
        if result == CUDA_SUCCESS {
            self.release_tiles(process, gone);
        } else {
            lock(&self.tiles).extend(gone);
        }
        result
    }

    /// Releases the memory that is mapped into the arrays of an ended context.
    pub(super) fn forget_tiles_of(&self, process: &Process, context: usize) {
        self.release_tiles(process, self.take_tiles(|tile| tile.context == context));
    }
}
