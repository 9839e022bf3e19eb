//! Hooks of the calls that change executable graphs. After a change, earlier estimates of the
//! graph's launches are no longer valid.

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
        // The hook counts a change even if the call failed. The meter then only learns the same
        // time again.
        graphs::changed(exec as usize);
        result
    };
}
