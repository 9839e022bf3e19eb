//! The rules of coldzerofear/vgpu-manager (3d7f66d,
//! `docs/link_topology_tiered_allocation_design.md`) without a device policy.
//!
//! The first of the tiers NVLink, switch, NUMA node and any that has a component with room gives
//! the GPUs. Of several components, the policy takes the component whose best set has the greatest
//! score. In a component, the set with the greatest score wins, then the set that leaves the best
//! set, then the first. One GPU is the first with room, by NUMA node.

use std::collections::HashMap;

use deepres_policy::placement::{GpuSet, Request, Room, Tier, Topology};

use super::super::reference::subsets;
use super::{Placer, pair_score, set_score, with_room};

/// The tiers of the policy.
const TIERS: [Tier; 4] = [Tier::NvLink, Tier::Switch, Tier::NumaNode, Tier::Any];

/// The tiers of a machine.
pub struct Tiers<'a> {
    topology: &'a Topology,
    /// The set that a component gives, and its score, by the GPUs with room and the size.
    chosen: HashMap<(GpuSet, usize), (u64, GpuSet)>,
}

impl<'a> Tiers<'a> {
    /// Returns the tiers of a machine.
    pub fn new(topology: &'a Topology) -> Self {
        Self { topology, chosen: HashMap::new() }
    }

    fn score(&self, set: GpuSet) -> u64 {
        set_score(self.topology, set, pair_score)
    }

    /// Returns the score of the best set of a size; 0 if there are fewer GPUs.
    fn best_score(&self, of: GpuSet, size: usize) -> u64 {
        let mut best = 0;
        subsets(of, size, |set| best = best.max(self.score(set)));
        best
    }

    /// Returns whether all pairs have the same score, so that all sets are alike.
    fn is_uniform(&self, component: GpuSet) -> bool {
        let score = |(a, b)| pair_score(self.topology.pair(a, b));
        let mut scores = component.pairs().map(score);
        scores.next().is_none_or(|first| scores.all(|score| score == first))
    }

    /// Returns the set that a component gives, and its score.
    fn choose(&mut self, component: GpuSet, size: usize) -> (u64, GpuSet) {
        if let Some(chosen) = self.chosen.get(&(component, size)) {
            return *chosen;
        }
        let first: GpuSet = component.iter().take(size).collect();
        let mut sets = vec![(self.score(first), first)];
        if !self.is_uniform(component) {
            subsets(component, size, |set| match (self.score(set), sets[0].0) {
                (score, best) if score > best => sets = vec![(score, set)],
                (score, best) if score == best && set != first => sets.push((score, set)),
                _ => {}
            });
        }
        let left = |set: GpuSet| self.best_score(component.without(set), size);
        let chosen = match sets.len() {
            1 => sets[0],
            // Of equal sets, `min_by_key` takes the first.
            _ => sets.into_iter().min_by_key(|(_, set)| u64::MAX - left(*set)).expect("a set is there"),
        };
        self.chosen.insert((component, size), chosen);
        chosen
    }
}

impl Placer for Tiers<'_> {
    fn place(&mut self, rooms: &[Room], request: &Request) -> Option<GpuSet> {
        let (fits, size) = (with_room(rooms, request.share_ppm), request.gpus.get());
        if size == 1 {
            let node = |gpu: &usize| (self.topology.gpus()[*gpu].numa_node, *gpu);
            return fits.iter().min_by_key(node).map(|gpu| GpuSet::EMPTY.with(gpu));
        }
        for tier in TIERS {
            let components = self.topology.components(tier, fits).into_iter();
            let mut best: Option<(u64, GpuSet)> = None;
            for component in components.filter(|component| component.len() >= size) {
                let (score, set) = self.choose(component, size);
                if best.is_none_or(|(most, _)| score > most) {
                    best = Some((score, set));
                }
            }
            if best.is_some() {
                return best.map(|(_, set)| set);
            }
        }
        None
    }
}
