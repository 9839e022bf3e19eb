//! Driver calls of deepres about the kernels of graphs.

use std::ptr::null_mut;

use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::{
    CU_GRAPH_NODE_TYPE_CONDITIONAL, CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_KERNEL,
    CUDA_KERNEL_NODE_PARAMS, CUgraph,
};

use super::memory::nodes_of;
use super::real;

/// The function and the geometry of a kernel's launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// The handle of the function or kernel.
    pub function: usize,
    /// The grid, in blocks.
    pub grid: [u32; 3],
    /// The block, in threads. Zeros if the launch does not tell the block.
    pub block: [u32; 3],
    /// The dynamic shared memory of a block, bytes.
    pub shared_bytes: u32,
}

impl From<&CUDA_KERNEL_NODE_PARAMS> for Geometry {
    fn from(params: &CUDA_KERNEL_NODE_PARAMS) -> Self {
        Self {
            function: if params.func.is_null() { params.kern as usize } else { params.func as usize },
            grid: [params.gridDimX, params.gridDimY, params.gridDimZ],
            block: [params.blockDimX, params.blockDimY, params.blockDimZ],
            shared_bytes: params.sharedMemBytes,
        }
    }
}

/// Returns all kernels of a graph and of its child graphs. Returns `None` if the driver does not
/// tell one of them, or if a node is conditional. The body of a conditional node is another graph.
pub fn of_graph(graph: CUgraph) -> Option<Vec<Geometry>> {
    let type_of = real!(cuGraphNodeGetType)?;
    let (child_of, params_of) =
        (real!(cuGraphChildGraphNodeGetGraph)?, real!(cuGraphKernelNodeGetParams_v2)?);
    let (mut kernels, mut left) = (Vec::new(), vec![graph as usize]);
    while let Some(graph) = left.pop() {
        for node in nodes_of(graph as CUgraph)? {
            let mut kind = 0;
            // SAFETY: the node belongs to the graph, and the result has room.
            if unsafe { type_of(node, &mut kind) } != CUDA_SUCCESS {
                return None;
            }
            match kind {
                CU_GRAPH_NODE_TYPE_KERNEL => {
                    // SAFETY: all zeroes are a valid value of this plain structure.
                    let mut params = unsafe { std::mem::zeroed::<CUDA_KERNEL_NODE_PARAMS>() };
                    // SAFETY: the node is of that kind, and the result has room.
                    if unsafe { params_of(node, &mut params) } != CUDA_SUCCESS {
                        return None;
                    }
                    kernels.push(Geometry::from(&params));
                }
                CU_GRAPH_NODE_TYPE_GRAPH => {
                    let mut child = null_mut();
                    // SAFETY: the node has a child graph, and the result has room.
                    if unsafe { child_of(node, &mut child) } != CUDA_SUCCESS {
                        return None;
                    }
                    left.push(child as usize);
                }
                CU_GRAPH_NODE_TYPE_CONDITIONAL => return None,
                _ => {}
            }
        }
    }
    Some(kernels)
}
