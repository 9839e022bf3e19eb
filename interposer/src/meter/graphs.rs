//! The properties of executable graphs beside their times: the count of changes of each graph, its
//! width, and whether its launches can differ.
//!
//! The key of a graph's launch includes the count of changes. So after a change of the graph, the
//! meter never uses an estimate from before the change. This rule also covers an estimate that the
//! meter thread learns later. The meter also never uses the estimate of an earlier graph with the
//! same handle.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::estimates;
use super::segment::{Kind, Launch};
use super::width::Class;

/// The number of counters of changes. If graphs share a counter, their keys change together.
const PLACES: usize = 4096;
/// The low bits of a handle that the choice of a counter ignores. Handles are addresses, so these
/// bits hardly differ.
const SAME_BITS: u32 = 5;

static CHANGES: [AtomicU32; PLACES] = [const { AtomicU32::new(0) }; PLACES];
/// Whether the process makes graphs with conditional nodes, or graphs that kernels can launch. Both
/// decide at run time, so launches of a graph can differ. The interposer does not examine which
/// graphs have such nodes or kernels. From the first such node or graph on, the meter times all
/// graphs.
static VARIES: AtomicBool = AtomicBool::new(false);

/// The widths of graphs, each as a class in a word with the graph's handle. If graphs share a word,
/// the word has the width of the last of them.
static WIDTHS: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];
/// The number of bits by which a handle is shifted in its word, so that a class fits beside it.
/// Handles are addresses, which leave these bits free.
const HANDLE_SHIFT: u32 = 5;

#[inline(always)]
fn place(graph: usize) -> usize {
    (graph >> SAME_BITS) % PLACES
}

/// Returns the bits of a graph's handle in a word of [`WIDTHS`].
fn in_word(graph: usize) -> u64 {
    (graph as u64) << HANDLE_SHIFT
}

/// Returns the width of a graph, if the process noted it and has not changed the graph since.
pub fn width(graph: usize) -> Option<Class> {
    Class::in_word(WIDTHS[place(graph)].load(Ordering::Relaxed), in_word(graph))
}

/// Notes the width of a graph that the job has just made executable.
pub fn set_width(graph: usize, class: Class) {
    WIDTHS[place(graph)].store(class.beside(in_word(graph)), Ordering::Relaxed);
}

/// Returns the launch of an executable graph, with its present key.
#[inline(always)]
pub fn launch(graph: usize) -> Launch {
    let changes = CHANGES[place(graph)].load(Ordering::Relaxed);
    let kind = if VARIES.load(Ordering::Relaxed) { Kind::VaryingGraph } else { Kind::Graph };
    Launch { key: estimates::key([graph as u64, u64::from(changes), 0, 0, 0]), kind }
}

/// Records that the job changed or destroyed a graph.
pub fn changed(graph: usize) {
    CHANGES[place(graph)].fetch_add(1, Ordering::Relaxed);
    if width(graph).is_some() {
        WIDTHS[place(graph)].store(0, Ordering::Relaxed);
    }
}

/// Records that from now on, the job's graphs can have conditional nodes, or kernels that launch
/// graphs.
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
    fn the_width_of_a_graph_is_known_until_the_graph_is_changed() {
        let (graph, other) = (0x7f00_4000, 0x7f00_5000);
        assert_eq!(width(graph), None);
        set_width(graph, Class::ALL);
        changed(other);
        assert_eq!((width(graph), width(other)), (Some(Class::ALL), None));
        set_width(graph, Class::of(1, 4));
        assert_eq!(width(graph), Some(Class::of(1, 4)));
        // Another graph with the same word.
        let same = graph + (PLACES << SAME_BITS);
        assert_eq!(width(same), None);
        set_width(same, Class::of(1, 2));
        assert_eq!((width(graph), width(same)), (None, Some(Class::of(1, 2))));
        changed(same);
        assert_eq!(width(same), None);
    }

    #[test]
    fn graphs_may_vary_once_there_are_conditions() {
        assert_eq!(launch(0x7f00_3000).kind, Kind::Graph);
        vary();
        assert_eq!(launch(0x7f00_3000).kind, Kind::VaryingGraph);
    }
}
