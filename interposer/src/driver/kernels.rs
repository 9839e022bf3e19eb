//! Driver calls of deepres about the kernels of graphs.

use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::{
    CU_GRAPH_NODE_TYPE_CONDITIONAL, CU_GRAPH_NODE_TYPE_KERNEL, CUDA_KERNEL_NODE_PARAMS, CUgraph,
};

use super::{nodes, real};

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
    let params_of = real!(cuGraphKernelNodeGetParams_v2)?;
    let (mut kernels, mut is_known) = (Vec::new(), true);
    let is_whole = nodes::walk(graph, &mut |node, kind| match kind {
        CU_GRAPH_NODE_TYPE_KERNEL => {
            // SAFETY: all zeroes are a valid value of this plain structure.
            let mut params = unsafe { std::mem::zeroed::<CUDA_KERNEL_NODE_PARAMS>() };
            // SAFETY: the node is of that kind, and the result has room.
            is_known &= unsafe { params_of(node, &mut params) } == CUDA_SUCCESS;
            kernels.push(Geometry::from(&params));
        }
        CU_GRAPH_NODE_TYPE_CONDITIONAL => is_known = false,
        _ => {}
    });
    (is_whole && is_known).then_some(kernels)
}
