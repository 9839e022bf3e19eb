//! The best-effort policy of NVIDIA/go-gpuallocator (876e7b7), which NVIDIA's device plugin uses.
//!
//! The policy divides all GPUs with room into sets of the size that the job asks for. If a set is
//! left with fewer GPUs, its score counts too. Of the divisions, the first with the greatest sum of
//! scores wins, and of its sets the first with the greatest score. The scores do not count NVLinks
//! that lead through an NVSwitch. One GPU is the first with room.
//!
//! go-gpuallocator tries all divisions one after the other, millions for 16 GPUs. The code here
//! keeps the best division of each set of GPUs, and finds the same division.

use std::collections::HashMap;

use deepres_policy::placement::{GpuSet, Pair, Request, Room, Topology};

use super::{LINK_SCORE, Placer, level_score, set_score, with_room};

/// The best divisions of a machine.
pub struct BestEffort<'a> {
    topology: &'a Topology,
    /// The score of the best division of some GPUs into sets of a size, and its first set.
    divisions: HashMap<(GpuSet, usize), (u64, GpuSet)>,
}

fn score_without_switches(pair: &Pair) -> u64 {
    let links = if pair.is_switched { 0 } else { pair.links };
    level_score(pair.wire.level) + LINK_SCORE * u64::from(links)
}

impl<'a> BestEffort<'a> {
    /// Returns the policy for a machine.
    pub fn new(topology: &'a Topology) -> Self {
        Self { topology, divisions: HashMap::new() }
    }

    fn score(&self, set: GpuSet) -> u64 {
        set_score(self.topology, set, score_without_switches)
    }

    /// Returns the score of the best division of `gpus`, and its first set. The first set has the
    /// first GPU.
    fn divide(&mut self, gpus: GpuSet, size: usize) -> (u64, GpuSet) {
        if gpus.len() <= size {
            return (self.score(gpus), gpus);
        }
        if let Some(known) = self.divisions.get(&(gpus, size)) {
            return *known;
        }
        let mut best: Option<(u64, GpuSet)> = None;
        for set in first_sets(gpus, size) {
            let score = self.score(set) + self.divide(gpus.without(set), size).0;
            if best.is_none_or(|(most, _)| score > most) {
                best = Some((score, set));
            }
        }
        let best = best.expect("the GPUs have a division");
        self.divisions.insert((gpus, size), best);
        best
    }
}

/// Returns the sets with the first GPU that a division can begin with, in go-gpuallocator's order.
/// These are all sets of the size, and all sets of the size that is left over.
fn first_sets(gpus: GpuSet, size: usize) -> Vec<GpuSet> {
    fn extend(set: GpuSet, rest: &[usize], missing: usize, short: usize, sets: &mut Vec<GpuSet>) {
        if missing == 0 {
            return sets.push(set);
        }
        for (place, gpu) in rest.iter().enumerate() {
            extend(set.with(*gpu), &rest[place + 1..], missing - 1, short, sets);
        }
        // go-gpuallocator fills the short set up with empty places, which come after all GPUs.
        if missing == short {
            sets.push(set);
        }
    }
    let all: Vec<usize> = gpus.iter().collect();
    let short = (size - all.len() % size) % size;
    let (first, rest) = all.split_first().expect("there is a GPU");
    let mut sets = Vec::new();
    extend(
        GpuSet::EMPTY.with(*first),
        rest,
        size - 1,
        if short == 0 { usize::MAX } else { short },
        &mut sets,
    );
    sets
}

impl Placer for BestEffort<'_> {
    fn place(&mut self, rooms: &[Room], request: &Request) -> Option<GpuSet> {
        let (mut rest, size) = (with_room(rooms, request.share_ppm), request.gpus.get());
        if size == 1 {
            return rest.iter().next().map(|gpu| GpuSet::EMPTY.with(gpu));
        }
        let mut best: Option<(u64, GpuSet)> = None;
        while rest.len() >= size {
            let (_, set) = self.divide(rest, size);
            let score = self.score(set);
            if set.len() == size && best.is_none_or(|(most, _)| score > most) {
                best = Some((score, set));
            }
            rest = rest.without(set);
        }
        best.map(|(_, set)| set)
    }
}
