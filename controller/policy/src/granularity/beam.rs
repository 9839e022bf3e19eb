//! Follows the most promising schedules side by side, and turns the best one into cuts.
//!
//! At each end of a kernel, a schedule decides which tenants launch their next kernel, and which
//! tenants wait. All schedules of a step have finished the same number of kernels. The estimate of
//! the time that is left ([`Guide`]) ranks them.

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

use super::device::{Event, Mix, Sharing, State};
use super::guide::Guide;
use super::{Cut, MOST_TENANTS, Search};

/// A cut of a schedule, and the cuts before it.
struct Trail {
    before: usize,
    cut: Cut,
}

/// A schedule of the beam, up to the present step.
#[derive(Clone)]
struct Node {
    state: State,
    /// The number of its last cut, from 1; 0 without a cut.
    trail: usize,
    /// The cuts since then.
    fresh: Vec<Cut>,
    /// The tenant one of whose kernels has just ended.
    ended: Option<usize>,
    /// The estimated time of the whole schedule, ns.
    estimate_ns: f64,
}

/// Returns the cuts of the best schedule of a beam.
pub(super) fn cuts(mix: &Mix, search: &Search) -> Vec<Cut> {
    let guide = Guide::new(mix, search.cells);
    let mut trails = Vec::new();
    let first = Node { state: State::new(mix), trail: 0, fresh: Vec::new(), ended: None, estimate_ns: 0.0 };
    let mut beam = vec![first];
    let mut next = Vec::new();
    for _ in 0..mix.kernels() {
        for node in beam.drain(..) {
            expand(mix, search, &guide, node, &mut next);
        }
        let mut ranks: Vec<(f64, usize)> = next.iter().map(|node| node.estimate_ns).zip(0..).collect();
        ranks.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        // Of schedules that have come to the same kernels, the best one is enough.
        let mut seen = BTreeSet::new();
        for (_, index) in ranks {
            if beam.len() >= search.beam.max(1) {
                break;
            }
            if seen.insert(next[index].state.stage()) {
                let mut node = next[index].clone();
                for cut in node.fresh.drain(..) {
                    trails.push(Trail { before: node.trail, cut });
                    node.trail = trails.len();
                }
                beam.push(node);
            }
        }
        next.clear();
    }
    let best = beam.iter().min_by(|one, other| one.state.now_ns.total_cmp(&other.state.now_ns));
    let mut cuts = Vec::new();
    let mut trail = best.map_or(0, |best| best.trail);
    while let Some(at) = trail.checked_sub(1) {
        let Trail { before, cut } = &trails[at];
        cuts.push(*cut);
        trail = *before;
    }
    cuts.sort_unstable();
    cuts
}

/// Appends the schedules that go on from this one by the end of one kernel.
fn expand(mix: &Mix, search: &Search, guide: &Guide, node: Node, next: &mut Vec<Node>) {
    let mut open = vec![node];
    while let Some(node) = open.pop() {
        let ready = |queue: &usize| node.state.ready(mix, *queue).is_some();
        // A wait ends with a kernel of another tenant.
        let may_launch = |queue: &usize| {
            !node.state.is_held(*queue) || node.ended.is_some_and(|ended| ended != mix.queues[*queue].tenant)
        };
        let mut choices = 0_usize;
        for queue in (0..mix.queues.len()).filter(ready).filter(may_launch) {
            choices |= 1 << mix.queues[queue].tenant;
        }
        for set in (0..1_usize << MOST_TENANTS).filter(|set| set & !choices == 0) {
            let mut child = node.clone();
            for queue in (0..mix.queues.len()).filter(ready) {
                let tenant = mix.queues[queue].tenant;
                if set >> tenant & 1 == 0 || !may_launch(&queue) {
                    child.state.hold(queue);
                    continue;
                }
                let held = node.state.is_held(queue).then(|| node.state.ready(mix, queue)).flatten();
                if let Some((kernel, other)) = held.zip(node.ended) {
                    child.fresh.push(Cut { tenant, kernel, other, until: node.state.places(mix)[other] });
                }
                child.state.launch(queue, search.switch_ns);
            }
            match child.state.step(mix, Sharing::Alike, &mut ()) {
                // All tenants wait.
                None => {}
                Some(Event::Paused) => {
                    child.ended = None;
                    open.push(child);
                }
                Some(Event::Finished(queue)) => {
                    child.ended = Some(mix.queues[queue].tenant);
                    child.estimate_ns = child.state.now_ns + guide.left_ns(child.state.past_ns(mix));
                    next.push(child);
                }
            }
        }
    }
}
