//! The rules of Project-HAMi/HAMi (4707fb0) with topology-aware scheduling: several GPUs are the
//! set with the greatest score, whatever is left. A job with one GPU gets the GPU with the least
//! score to the other GPUs with room.

use deepres_policy::placement::{GpuSet, Request, Room, Topology};

use super::super::reference::subsets;
use super::{Placer, pair_score, set_score, with_room};

/// The scores of a machine.
pub struct Scores<'a>(pub &'a Topology);

impl Placer for Scores<'_> {
    fn place(&mut self, rooms: &[Room], request: &Request) -> Option<GpuSet> {
        let fits = with_room(rooms, request.share_ppm);
        if request.gpus.get() == 1 {
            let to_others = |gpu: &usize| -> u64 {
                let others = fits.iter().filter(|other| other != gpu);
                others.map(|other| pair_score(self.0.pair(*gpu, other))).sum()
            };
            return fits.iter().min_by_key(to_others).map(|gpu| GpuSet::EMPTY.with(gpu));
        }
        let mut best: Option<(u64, GpuSet)> = None;
        subsets(fits, request.gpus.get(), |set| {
            let score = set_score(self.0, set, pair_score);
            if best.is_none_or(|(most, _)| score > most) {
                best = Some((score, set));
            }
        });
        best.map(|(_, set)| set)
    }
}
