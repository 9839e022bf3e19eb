//! The best set of GPUs, found by trying all sets. The reference shares no code with the policy of
//! deepres.

use std::collections::HashMap;

use deepres_policy::placement::{GpuSet, Topology};

/// The criteria for a set of GPUs, the most important first. Can all pairs copy directly? Then the
/// bandwidth of all pairs together, and of the weakest pair, MB/s.
type Worth = (bool, u64, u32);

/// The best sets of a machine.
pub struct Reference<'a> {
    topology: &'a Topology,
    /// The best set's worth, by the GPUs with room and the size of the set.
    known: HashMap<(GpuSet, usize), Worth>,
}

impl<'a> Reference<'a> {
    /// Returns the best sets of a machine.
    pub fn new(topology: &'a Topology) -> Self {
        Self { topology, known: HashMap::new() }
    }

    /// Returns what a set is worth.
    pub fn worth(&self, set: GpuSet) -> Worth {
        set.pairs().fold((true, 0, u32::MAX), |(has_p2p, sum, weakest), (a, b)| {
            let pair = self.topology.pair(a, b);
            (has_p2p && pair.has_p2p(), sum + u64::from(pair.mb_s), weakest.min(pair.mb_s))
        })
    }

    /// Returns what the best set of `size` of these GPUs is worth.
    pub fn best(&mut self, with_room: GpuSet, size: usize) -> Worth {
        if let Some(known) = self.known.get(&(with_room, size)) {
            return *known;
        }
        let mut best = None;
        subsets(with_room, size, |set| best = best.max(Some(self.worth(set))));
        let best = best.unwrap_or_default();
        self.known.insert((with_room, size), best);
        best
    }

    /// Returns a set's bandwidth and its weakest pair's bandwidth, as parts of the best set's. If a
    /// set beats the best set in one criterion alone, the set counts as equal in this criterion.
    pub fn parts(&mut self, set: GpuSet, with_room: GpuSet) -> (f64, f64) {
        let part = |own: f64, best: f64| if own >= best { 1.0 } else { own / best };
        let (_, own, own_weakest) = self.worth(set);
        let (_, best, best_weakest) = self.best(with_room, set.len());
        (part(own as f64, best as f64), part(own_weakest.into(), best_weakest.into()))
    }

    /// Returns whether the GPUs of a set cannot all copy to each other directly, although those of
    /// another set with room could.
    pub fn misses_p2p(&mut self, set: GpuSet, with_room: GpuSet) -> bool {
        !self.worth(set).0 && self.best(with_room, set.len()).0
    }
}

/// Calls `visit` for all subsets of a size, in lexicographic order.
pub fn subsets(of: GpuSet, size: usize, mut visit: impl FnMut(GpuSet)) {
    fn extend(set: GpuSet, rest: &[usize], missing: usize, visit: &mut impl FnMut(GpuSet)) {
        if missing == 0 {
            return visit(set);
        }
        for place in 0..(rest.len() + 1).saturating_sub(missing) {
            extend(set.with(rest[place]), &rest[place + 1..], missing - 1, visit);
        }
    }
    extend(GpuSet::EMPTY, &of.iter().collect::<Vec<_>>(), size, &mut visit);
}
