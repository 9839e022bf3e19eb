//! A random choice among the GPUs with room.

use deepres_policy::placement::{GpuSet, Request, Room};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::{Placer, with_room};

/// The seed of the random numbers.
const SEED: u64 = 1;

/// A random choice.
pub struct Random(ChaCha8Rng);

impl Random {
    /// Returns a random choice, always with the same random numbers.
    pub fn new() -> Self {
        Self(ChaCha8Rng::seed_from_u64(SEED))
    }
}

impl Placer for Random {
    fn place(&mut self, rooms: &[Room], request: &Request) -> Option<GpuSet> {
        let mut fits: Vec<usize> = with_room(rooms, request.share_ppm).iter().collect();
        let gpus = request.gpus.get();
        (gpus <= fits.len()).then(|| {
            let mut draw = |_| fits.swap_remove(self.0.next_u32() as usize % fits.len());
            (0..gpus).map(&mut draw).collect()
        })
    }
}
