//! Hooks of the calls that make graphs. The hooks find out which graphs allocate memory, the amount
//! that their launches can need, and the amount that an upload takes in advance. The hooks also
//! find out the widths of graphs, and whether kernels can launch graphs.

use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::{
    CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_MEM_ALLOC, CUDA_GRAPH_INSTANTIATE_ERROR,
    CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH, CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD,
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUDA_MEM_ALLOC_NODE_PARAMS, CUgraph, CUgraphEdgeData, CUgraphExec,
    CUgraphNode, CUgraphNodeParams, CUresult, CUstream, c_char,
};

use super::copy::{UNKNOWN_BYTES, measured};
use super::{entered, memory};
use crate::driver::calls::Stream;
use crate::driver::memory::ExecHandle;
use crate::memory::graphs::{self, Taker};
use crate::meter;
use crate::meter::segment::Kind;
use crate::process;

macro_rules! instantiate {
    ($($name:ident: $symbol:ident($($argument:ident: $type:ty),*), $flags:expr;)+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`. The hook notes the memory that launches of the graph may need.")]
        pub unsafe extern "C" fn $name(exec: *mut CUgraphExec, graph: CUgraph $(, $argument: $type)*) -> CUresult {
            let (call, _inside) = entered!($symbol(exec, graph $(, $argument)*));
            heed($flags);
            let result = call();
            // SAFETY: the driver wrote the handle if it reports success.
            unsafe { note(result, exec, graph) };
            result
        }
    )+};
}

instantiate! {
    instantiate_v1: cuGraphInstantiate(node: *mut CUgraphNode, log: *mut c_char, bytes: usize), 0;
    instantiate_v2: cuGraphInstantiate_v2(node: *mut CUgraphNode, log: *mut c_char, bytes: usize), 0;
    instantiate_with_flags: cuGraphInstantiateWithFlags(flags: u64), flags;
}

/// Heeds the flags of an instantiation. If kernels can launch the graph, launches of graphs can
/// differ from now on. A launch ends when all graphs have ended that its kernels launched.
fn heed(flags: u64) {
    if flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0 {
        meter::graphs::vary();
    }
}

/// If the call succeeded, records that the job made `graph` executable, and notes its width.
///
/// # Safety
/// `exec` is null, or the driver wrote to `exec` if `result` is a success.
unsafe fn note(result: CUresult, exec: *const CUgraphExec, graph: CUgraph) {
    if result == CUDA_SUCCESS
        && let Some(process) = process::current()
        // SAFETY: the caller guarantees that `exec` is null, or that the driver wrote there.
        && let Some(exec) = unsafe { exec.as_ref() }
    {
        if graphs::is_used() {
            process.memory.graphs.instantiated(graph, ExecHandle(*exec as usize));
        }
        meter::width::note_graph(process, graph, *exec as usize);
    }
}

/// Makes the call `call`, which takes memory for graphs, and charges the memory. If no graph of the
/// process allocates memory, charges nothing. Returns the result of `call`.
fn taking(api: ApiId, taker: Taker, mut call: impl FnMut() -> CUresult) -> CUresult {
    match process::current().filter(|_| graphs::is_used()) {
        Some(process) => process.memory.take_for_graph(process, api, taker, call),
        None => call(),
    }
}

macro_rules! instantiate_with_params {
    ($name:ident, $symbol:ident) => {
        #[doc = concat!("Hook of `", stringify!($symbol), "`. The call may also upload the graph.")]
        pub unsafe extern "C" fn $name(
            exec: *mut CUgraphExec,
            graph: CUgraph,
            params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
        ) -> CUresult {
            let (make, _inside) = entered!($symbol(exec, graph, params));
            // SAFETY: the pointer is null, or the caller passes it as parameters for the driver to
            // read.
            let flags = unsafe { params.as_ref() }.map_or(0, |params| params.flags);
            heed(flags);
            let mut is_asked = false;
            let mut call = || {
                is_asked = true;
                let result = make();
                // SAFETY: the driver wrote the handle if it reports success.
                unsafe { note(result, exec, graph) };
                result
            };
            if flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) == 0 {
                return call();
            }
            let result = taking(ApiId::$symbol, Taker::Graph(graph), call);
            // SAFETY: the pointer is null, or the caller passes it as parameters for the driver to
            // write.
            if let (false, Some(params)) = (is_asked, unsafe { params.as_mut() }) {
                params.result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
            }
            result
        }
    };
}
instantiate_with_params!(instantiate_with_params, cuGraphInstantiateWithParams);
instantiate_with_params!(instantiate_with_params_ptsz, cuGraphInstantiateWithParams_ptsz);

macro_rules! upload {
    ($name:ident, $symbol:ident, $per_thread:literal) => {
        #[doc = concat!("Hook of `", stringify!($symbol), "`. The hook reserves the memory that a launch would take.")]
        pub unsafe extern "C" fn $name(exec: CUgraphExec, stream: CUstream) -> CUresult {
            let (call, _inside) = entered!($symbol(exec, stream));
            let on = Stream::new(stream, $per_thread);
            taking(ApiId::$symbol, Taker::Upload(ExecHandle(exec as usize)), || {
                measured(ApiId::$symbol, Kind::Copy, on, UNKNOWN_BYTES, call)
            })
        }
    };
}
upload!(upload, cuGraphUpload, false);
upload!(upload_ptsz, cuGraphUpload_ptsz, true);

/// Hook of `cuGraphExecDestroy`.
pub unsafe extern "C" fn destroy_exec(exec: CUgraphExec) -> CUresult {
    let (call, _inside) = entered!(cuGraphExecDestroy(exec));
    let process = process::current().filter(|_| graphs::is_used());
    // The hook forgets the graph before the call. As soon as the handle is free, the driver can
    // give it to another graph.
    let forgotten = process.and_then(|process| process.memory.graphs.forget(ExecHandle(exec as usize)));
    let result = call();
    if result != CUDA_SUCCESS
        && let Some((process, needs)) = process.zip(forgotten)
    {
        process.memory.graphs.put_back(ExecHandle(exec as usize), needs);
    }
    // The hook counts a change even if the call failed. The meter then only learns the same time
    // again.
    meter::graphs::changed(exec as usize);
    if graphs::is_used() {
        memory::refresh();
    }
    result
}

/// Hook of `cuGraphDestroy`.
pub unsafe extern "C" fn destroy(graph: CUgraph) -> CUresult {
    let (call, _inside) = entered!(cuGraphDestroy(graph));
    let result = call();
    if graphs::is_used() {
        memory::refresh();
    }
    result
}

/// Hook of `cuGraphAddMemAllocNode`.
pub unsafe extern "C" fn add_allocation(
    node: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    params: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> CUresult {
    let (call, _inside) = entered!(cuGraphAddMemAllocNode(node, graph, dependencies, count, params));
    graphs::note();
    let result = call();
    // SAFETY: the driver wrote the address if it reports success.
    if let Some(params) = unsafe { params.as_ref() }.filter(|_| result == CUDA_SUCCESS) {
        allocation_added(params);
    }
    result
}

fn allocation_added(params: &CUDA_MEM_ALLOC_NODE_PARAMS) {
    if let Some(process) = process::current() {
        process.memory.graphs.added(params.dptr);
    }
}

/// Records that the job added a node of any kind.
///
/// # Safety
/// `params` is null, or the driver took the parameters.
unsafe fn added(params: *const CUgraphNodeParams) {
    // SAFETY: the caller guarantees that `params` is null, or that the driver took the parameters.
    let Some(params) = (unsafe { params.as_ref() }) else { return };
    if params.r#type == CU_GRAPH_NODE_TYPE_MEM_ALLOC {
        // SAFETY: the node's type says that this member of the union was written.
        allocation_added(unsafe { &params.params.alloc });
    }
}

/// Returns whether a node with these parameters allocates memory, or can do so.
fn may_allocate(params: *const CUgraphNodeParams) -> bool {
    // SAFETY: the pointer is null, or the caller passes it as parameters for the driver to read.
    let kind = unsafe { params.as_ref() }.map(|params| params.r#type);
    matches!(kind, Some(CU_GRAPH_NODE_TYPE_MEM_ALLOC | CU_GRAPH_NODE_TYPE_GRAPH))
}

macro_rules! add {
    ($($name:ident: $symbol:ident($node:ident: *mut CUgraphNode $(, $argument:ident: $type:ty)*);)+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
        pub unsafe extern "C" fn $name($node: *mut CUgraphNode $(, $argument: $type)*, params: *mut CUgraphNodeParams) -> CUresult {
            let (call, _inside) = entered!($symbol($node $(, $argument)*, params));
            if may_allocate(params) {
                graphs::note();
            }
            let result = call();
            if result == CUDA_SUCCESS {
                // SAFETY: the driver reports success.
                unsafe { added(params) };
            }
            result
        }
    )+};
}

add! {
    add_v1: cuGraphAddNode(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize);
    add_v2: cuGraphAddNode_v2(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, edges: *const CUgraphEdgeData, count: usize);
    add_v3: cuGraphAddNode_v3(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, edges: *const CUgraphEdgeData, count: usize);
}
