//! Nodes of graphs whose parameters name kernels or contexts.

use deepres_abi::driver::types as cu;
use simgpu_driver::{Error, Result, driver};

use crate::code;
use crate::device;
use crate::table::errors;
use crate::table::types::*;

/// Returns a kernel's node for the driver.
fn kernel_node(node: &cudaKernelNodeParams) -> Result<cu::CUDA_KERNEL_NODE_PARAMS> {
    Ok(cu::CUDA_KERNEL_NODE_PARAMS {
        func: std::ptr::null_mut(),
        gridDimX: node.gridDim.x,
        gridDimY: node.gridDim.y,
        gridDimZ: node.gridDim.z,
        blockDimX: node.blockDim.x,
        blockDimY: node.blockDim.y,
        blockDimZ: node.blockDim.z,
        sharedMemBytes: node.sharedMemBytes,
        kernelParams: node.kernelParams,
        extra: node.extra,
        kern: code::kernel(node.func)?,
        ctx: device::context()?,
    })
}

calls! {
    cudaGraphConditionalHandleCreate(pHandle_out, graph, defaultLaunchValue, flags) {
        let context = device::context()?;
        driver!(cuGraphConditionalHandleCreate(pHandle_out, graph, context, defaultLaunchValue, flags));
    }
    cudaGraphAddKernelNode(pGraphNode, graph, pDependencies, numDependencies, pNodeParams) {
        let node = kernel_node(&read!(pNodeParams))?;
        driver!(cuGraphAddKernelNode_v2(pGraphNode, graph, pDependencies, numDependencies, &node));
    }
    cudaGraphAddNode(pGraphNode, graph, pDependencies, dependencyData, numDependencies, nodeParams) {
        let given = read!(nodeParams);
        let mut node = cu::CUgraphNodeParams {
            r#type: given.r#type,
            reserved0: given.reserved0,
            // SAFETY: every member of the union is bytes.
            params: cu::CUgraphNodeParams_union { asBytes: unsafe { given.params.asBytes } },
            reserved2: given.reserved2,
        };
        match given.r#type {
            cudaGraphNodeTypeKernel => {
                // SAFETY: the type names the valid member.
                node.params.kernel = kernel_node(unsafe { &given.params.kernel })?;
            }
            cudaGraphNodeTypeMemset => node.params.memset.ctx = device::context()?,
            cudaGraphNodeTypeConditional => node.params.conditional.ctx = device::context()?,
            cudaGraphNodeTypeEmpty | cudaGraphNodeTypeGraph => {}
            _ => return Err(Error(errors::cudaErrorNotSupported)),
        }
        driver!(cuGraphAddNode_v2(
            pGraphNode, graph, pDependencies, dependencyData.cast(), numDependencies, &mut node
        ));
        if given.r#type == cudaGraphNodeTypeConditional {
            // The driver writes the graphs of the node's bodies into the parameters. SAFETY: the
            // type names the valid member of both unions, and `nodeParams` is not NULL.
            unsafe {
                (*nodeParams).params.conditional.phGraph_out = node.params.conditional.phGraph_out;
            }
        }
    }
}
