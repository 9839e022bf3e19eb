//! Hooks of the calls that change executable graphs. Estimates of a graph's launches are valid
//! until then.

use deepres_abi::driver::types::*;

use crate::meter::graphs;

super::hook! {
    // A program calls this before it makes a conditional node.
    [cuGraphConditionalHandleCreate] (..) |_, call| {
        graphs::vary();
        call()
    };

    [
        cuGraphExecUpdate cuGraphExecUpdate_v2 cuGraphExecNodeSetParams
        cuGraphExecKernelNodeSetParams cuGraphExecKernelNodeSetParams_v2
        cuGraphExecMemcpyNodeSetParams cuGraphExecMemsetNodeSetParams
        cuGraphExecChildGraphNodeSetParams cuGraphNodeSetEnabled
    ] (exec, ..) |_, call| {
        let result = call();
        // The graph is noted as changed even if the call failed. An estimate that is forgotten in
        // vain is measured again.
        graphs::changed(exec as usize);
        result
    };
}
