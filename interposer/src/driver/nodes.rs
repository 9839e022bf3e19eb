//! The nodes of the job's graphs, as the driver tells them.

use std::ptr::null_mut;

use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::{CU_GRAPH_NODE_TYPE_GRAPH, CUgraph, CUgraphNode};

use super::real;

/// Calls `each` with the nodes of a graph and of all its child graphs, and with their kinds. The
/// function keeps the graphs still to visit on the heap, so they can nest to any depth. The walk
/// leaves out the bodies of conditional nodes. Returns whether the driver told every other node.
pub fn walk(graph: CUgraph, each: &mut dyn FnMut(CUgraphNode, u32)) -> bool {
    let Some((type_of, child_of)) = real!(cuGraphNodeGetType).zip(real!(cuGraphChildGraphNodeGetGraph))
    else {
        return false;
    };
    let (mut is_whole, mut left) = (true, vec![graph as usize]);
    while let Some(graph) = left.pop() {
        let Some(nodes) = nodes_of(graph as CUgraph) else {
            is_whole = false;
            continue;
        };
        for node in nodes {
            let mut kind = 0;
            // SAFETY: the node belongs to the graph, and the result has room.
            if unsafe { type_of(node, &mut kind) } != CUDA_SUCCESS {
                is_whole = false;
                continue;
            }
            each(node, kind);
            if kind == CU_GRAPH_NODE_TYPE_GRAPH {
                let mut child = null_mut();
                // SAFETY: the node has a child graph, and the result has room.
                if unsafe { child_of(node, &mut child) } == CUDA_SUCCESS {
                    left.push(child as usize);
                } else {
                    is_whole = false;
                }
            }
        }
    }
    is_whole
}

/// Returns the nodes of a graph, if the driver tells them.
fn nodes_of(graph: CUgraph) -> Option<Vec<CUgraphNode>> {
    let nodes_of = real!(cuGraphGetNodes)?;
    let mut count = 0;
    // SAFETY: the process has just used the graph. Without a list, the driver writes only the
    // count.
    if unsafe { nodes_of(graph, null_mut(), &mut count) } != CUDA_SUCCESS {
        return None;
    }
    let mut nodes: Vec<CUgraphNode> = vec![null_mut(); count];
    // SAFETY: the list has room for `count` nodes, and the driver writes at most that many.
    if unsafe { nodes_of(graph, nodes.as_mut_ptr(), &mut count) } != CUDA_SUCCESS {
        return None;
    }
    nodes.truncate(count);
    Some(nodes)
}
