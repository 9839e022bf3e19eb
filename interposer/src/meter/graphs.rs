//! What is known of executable graphs beside their times: how often each was changed, and whether launches of one need not be alike.
//!
//! A launch's key holds the count of changes: what was learned of a graph before it was changed, or of another that had its handle, is not what is known of it
//! now, whenever it is learned.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::estimates;
use super::segment::{Kind, Launch};

/// Graphs that share a place forget together.
const PLACES: usize = 4096;
/// Handles are addresses, so many bits of which hardly differ.
const SAME_BITS: u32 = 5;

static CHANGES: [AtomicU32; PLACES] = [const { AtomicU32::new(0) }; PLACES];
/// The process makes graphs with conditional nodes, which decide while they run what they do. Which graphs have them is not looked into: all are timed.
static VARIES: AtomicBool = AtomicBool::new(false);

#[inline(always)]
fn place(graph: usize) -> &'static AtomicU32 {
    &CHANGES[(graph >> SAME_BITS) % PLACES]
}

/// A launch of an executable graph.
#[inline(always)]
pub fn launch(graph: usize) -> Launch {
    let changes = place(graph).load(Ordering::Relaxed);
    let kind = if VARIES.load(Ordering::Relaxed) { Kind::VaryingGraph } else { Kind::Graph };
    Launch { key: estimates::key([graph as u64, u64::from(changes), 0, 0, 0]), kind }
}

/// What a graph does is another now, or it is gone.
pub fn changed(graph: usize) {
    place(graph).fetch_add(1, Ordering::Relaxed);
}

/// From now on graphs may have conditional nodes.
pub fn vary() {
    VARIES.store(true, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_that_was_changed_is_known_by_another_key() {
        let (graph, other) = (0x7f00_1000, 0x7f00_2000);
        let (before, others) = (launch(graph).key, launch(other).key);
        changed(graph);
        assert_ne!(launch(graph).key, before);
        assert_eq!(launch(other).key, others);
    }

    #[test]
    fn graphs_may_vary_once_there_are_conditions() {
        assert_eq!(launch(0x7f00_3000).kind, Kind::Graph);
        vary();
        assert_eq!(launch(0x7f00_3000).kind, Kind::VaryingGraph);
    }
}
