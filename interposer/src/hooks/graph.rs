//! Hooks of the calls that change executable graphs. Estimates of a graph's launches are valid
//! until then.

use deepres_abi::driver::types::{
    CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext,
    CUgraph, CUgraphConditionalHandle, CUgraphExec, CUgraphExecUpdateResult, CUgraphExecUpdateResultInfo,
    CUgraphNode, CUgraphNodeParams, CUresult,
};

use super::MISSING;
use crate::driver::real;
use crate::meter::graphs;

/// Hook of `cuGraphConditionalHandleCreate`, which a program calls before it makes a conditional
/// node.
pub unsafe extern "C" fn create_condition(
    handle: *mut CUgraphConditionalHandle,
    graph: CUgraph,
    context: CUcontext,
    value: u32,
    flags: u32,
) -> CUresult {
    let Some(real) = real!(cuGraphConditionalHandleCreate) else { return MISSING };
    graphs::vary();
    // SAFETY: the arguments are the caller's, unchanged.
    unsafe { real(handle, graph, context, value, flags) }
}

macro_rules! changes {
    ($($name:ident: $symbol:ident($graph:ident $(, $argument:ident: $type:ty)*);)+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
        pub unsafe extern "C" fn $name($graph: CUgraphExec $(, $argument: $type)*) -> CUresult {
            let Some(real) = real!($symbol) else { return MISSING };
            // SAFETY: the arguments are the caller's, unchanged.
            let result = unsafe { real($graph $(, $argument)*) };
            // The graph is noted as changed even if the call failed. An estimate that is forgotten
            // in vain is measured again.
            graphs::changed($graph as usize);
            result
        }
    )+};
}

changes! {
    update: cuGraphExecUpdate(exec, graph: CUgraph, node: *mut CUgraphNode, answer: *mut CUgraphExecUpdateResult);
    update_v2: cuGraphExecUpdate_v2(exec, graph: CUgraph, answer: *mut CUgraphExecUpdateResultInfo);
    set_node: cuGraphExecNodeSetParams(exec, node: CUgraphNode, params: *mut CUgraphNodeParams);
    set_kernel_v1: cuGraphExecKernelNodeSetParams(exec, node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS_v1);
    set_kernel: cuGraphExecKernelNodeSetParams_v2(exec, node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS);
    set_copy: cuGraphExecMemcpyNodeSetParams(exec, node: CUgraphNode, params: *const CUDA_MEMCPY3D, context: CUcontext);
    set_fill: cuGraphExecMemsetNodeSetParams(exec, node: CUgraphNode, params: *const CUDA_MEMSET_NODE_PARAMS, context: CUcontext);
    set_child: cuGraphExecChildGraphNodeSetParams(exec, node: CUgraphNode, graph: CUgraph);
    set_enabled: cuGraphNodeSetEnabled(exec, node: CUgraphNode, is_enabled: u32);
}
