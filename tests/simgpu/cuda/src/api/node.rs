//! Nodes of graphs: functions that add nodes, and functions that read or change a node's operation.
//! The operation can be in a graph or in an instantiated graph.
use super::prelude::*;
use super::stream::memory_operations;
use crate::condition::{self, Conditional};
use crate::context;
use crate::copy::{Fill, Plan};
use crate::event;
use crate::graph::{self, Dependency};
use crate::graph_memory;
use crate::module;
use crate::operation::{Arguments, Launch, Operation};
use crate::pending::HostCall;

/// The C struct `CUDA_BATCH_MEM_OP_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
struct BatchParams {
    ctx: CUcontext,
    count: u32,
    operations: *const c_void,
    flags: u32,
}

/// `CUDA_EVENT_RECORD_NODE_PARAMS`, and the first field of `CUDA_EVENT_WAIT_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
struct EventParams {
    event: CUevent,
}

/// Reads the dependencies that a client passes, with the edge data if the client passes any.
pub fn given_dependencies(
    dependencies: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
) -> Result<Vec<Dependency>> {
    let nodes: &[CUgraphNode] = slice!(dependencies.cast_mut(), count);
    let kinds: Option<&[CUgraphEdgeData]> =
        if data.is_null() { None } else { Some(slice!(data.cast_mut(), count)) };
    let dependency = |(at, node): (usize, &CUgraphNode)| Dependency {
        node: *node as usize,
        data: kinds.map_or(graph::PLAIN_EDGE, |kinds| kinds[at]),
    };
    Ok(nodes.iter().enumerate().map(dependency).collect())
}

fn add(
    to: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
    operation: impl FnOnce() -> Result<Operation>,
) -> Result<()> {
    status::refuse(to.is_null())?;
    let graph = graph::by_handle(graph as usize)?;
    let after = given_dependencies(dependencies, data, count)?;
    give!(to, graph.add(operation()?, &after)?.handle as CUgraphNode);
    Ok(())
}

/// Returns an allocation node of `graph` that depends on `after`.
fn allocation(
    params: CUDA_MEM_ALLOC_NODE_PARAMS,
    graph: CUgraph,
    after: &[Dependency],
) -> Result<graph_memory::Node> {
    graph_memory::Node::new(params, &graph::by_handle(graph as usize)?.spare(after))
}

fn extended(v1: &CUDA_KERNEL_NODE_PARAMS_v1) -> CUDA_KERNEL_NODE_PARAMS {
    // SAFETY: the struct holds numbers and pointers, and begins with the fields of its first
    // version.
    unsafe {
        let mut params: CUDA_KERNEL_NODE_PARAMS = std::mem::zeroed();
        (&raw mut params).cast::<CUDA_KERNEL_NODE_PARAMS_v1>().write(*v1);
        params
    }
}

fn kernel(params: &CUDA_KERNEL_NODE_PARAMS) -> Result<Operation> {
    let function = if params.func.is_null() {
        status::refuse(params.kern.is_null())?;
        let context =
            if params.ctx.is_null() { context::current()? } else { context::by_handle(params.ctx as usize)? };
        module::KERNELS.get(params.kern as usize).ok_or(status::INVALID_HANDLE)?.function(&context)?
    } else {
        module::function(params.func as usize)?
    };
    status::refuse(!params.kernelParams.is_null() && !params.extra.is_null())?;
    // SAFETY: by the API's contract the pointers are as cuLaunchKernel's.
    let arguments = unsafe { Arguments::copy(&function, params.kernelParams, params.extra) }?;
    let launch = Launch {
        function,
        grid: [params.gridDimX, params.gridDimY, params.gridDimZ],
        block: [params.blockDimX, params.blockDimY, params.blockDimZ],
        shared_bytes: params.sharedMemBytes,
        cooperative: false,
        arguments: Some(Arc::new(arguments)),
    };
    launch.check()?;
    Ok(Operation::Kernel(launch))
}

fn copy(params: &CUDA_MEMCPY3D) -> Result<Operation> {
    Plan::strided(params)?;
    Ok(Operation::Copy(Box::new(*params)))
}

fn fill(params: &CUDA_MEMSET_NODE_PARAMS) -> Result<Operation> {
    let fill = Fill {
        address: params.dst,
        pitch_bytes: params.pitch as u64,
        value: params.value,
        element_bytes: params.elementSize,
        width: params.width as u64,
        height: params.height as u64,
    };
    Ok(Operation::Fill(fill.check()?))
}

fn host(params: &CUDA_HOST_NODE_PARAMS) -> Result<Operation> {
    let function = params.r#fn.ok_or(status::INVALID_VALUE)?;
    Ok(Operation::Host(HostCall::Function(function, params.userData as usize)))
}

fn child(graph: CUgraph) -> Result<Operation> {
    Ok(Operation::Child(graph::by_handle(graph as usize)?.copy()?))
}

fn event_of(handle: CUevent) -> Result<Arc<event::Event>> {
    event::by_handle(handle as usize)
}

fn batch(params: *const c_void) -> Result<Operation> {
    let params = read!(params.cast::<BatchParams>());
    status::refuse(params.flags != 0)?;
    Ok(Operation::Memory(memory_operations(params.count, params.operations)?))
}

/// Returns the operation that the generic node struct describes.
fn any(params: &CUgraphNodeParams) -> Result<Operation> {
    let body = &params.params;
    let bytes = std::ptr::from_ref(body).cast::<c_void>();
    // SAFETY: by the API's contract the kind names the member of the union that the caller filled
    // in.
    unsafe {
        match params.r#type {
            CU_GRAPH_NODE_TYPE_KERNEL => kernel(&body.kernel),
            CU_GRAPH_NODE_TYPE_MEMCPY => copy(&body.memcpy.copyParams),
            CU_GRAPH_NODE_TYPE_MEMSET => fill(&flat_memset(&body.memset)),
            CU_GRAPH_NODE_TYPE_HOST => host(&body.host),
            CU_GRAPH_NODE_TYPE_GRAPH => child(body.graph.graph),
            CU_GRAPH_NODE_TYPE_EMPTY => Ok(Operation::Empty),
            CU_GRAPH_NODE_TYPE_WAIT_EVENT => {
                Ok(Operation::EventWait(event_of(bytes.cast::<EventParams>().read().event)?))
            }
            CU_GRAPH_NODE_TYPE_EVENT_RECORD => {
                Ok(Operation::EventRecord(event_of(bytes.cast::<EventParams>().read().event)?))
            }
            // An allocation node gets its address at its creation, and keeps the address.
            CU_GRAPH_NODE_TYPE_MEM_ALLOC => Err(status::NOT_SUPPORTED),
            CU_GRAPH_NODE_TYPE_MEM_FREE => Ok(Operation::Free(body.free.dptr)),
            CU_GRAPH_NODE_TYPE_BATCH_MEM_OP => batch(bytes),
            // A conditional node gets its operation at its creation, and keeps the operation.
            CU_GRAPH_NODE_TYPE_CONDITIONAL
            | CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL
            | CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT
            | CU_GRAPH_NODE_TYPE_MEMCPY_BATCH
            | CU_GRAPH_NODE_TYPE_FABRIC_CPY_BATCH => Err(status::NOT_SUPPORTED),
            _ => Err(status::INVALID_VALUE),
        }
    }
}

fn flat_memset(params: &CUDA_MEMSET_NODE_PARAMS_v2) -> CUDA_MEMSET_NODE_PARAMS {
    CUDA_MEMSET_NODE_PARAMS {
        dst: params.dst,
        pitch: params.pitch,
        value: params.value,
        elementSize: params.elementSize,
        width: params.width,
        height: params.height,
    }
}

/// Declares the functions that add a node of one kind. All these functions take the dependencies in
/// the same way.
macro_rules! adders {
    ($($name:ident($($argument:ident),*) $operation:block)*) => {
        calls! {$(
            $name(phGraphNode, hGraph, dependencies, numDependencies $(, $argument)*) {
                add(phGraphNode, hGraph, dependencies, std::ptr::null(), numDependencies, || $operation)?
            }
        )*}
    };
}

adders! {
    cuGraphAddKernelNode(nodeParams) { kernel(&extended(&read!(nodeParams))) }
    cuGraphAddKernelNode_v2(nodeParams) { kernel(&read!(nodeParams)) }
    cuGraphAddMemcpyNode(copyParams, ctx) {
        context::by_handle(ctx as usize)?;
        copy(&read!(copyParams))
    }
    cuGraphAddMemsetNode(memsetParams, ctx) {
        context::by_handle(ctx as usize)?;
        fill(&read!(memsetParams))
    }
    cuGraphAddHostNode(nodeParams) { host(&read!(nodeParams)) }
    cuGraphAddChildGraphNode(childGraph) { child(childGraph) }
    cuGraphAddEmptyNode() { Ok(Operation::Empty) }
    cuGraphAddEventRecordNode(event) { Ok(Operation::EventRecord(event_of(event)?)) }
    cuGraphAddEventWaitNode(event) { Ok(Operation::EventWait(event_of(event)?)) }
    cuGraphAddMemFreeNode(dptr) {
        if dptr == 0 { Err(status::INVALID_VALUE) } else { Ok(Operation::Free(dptr)) }
    }
    cuGraphAddBatchMemOpNode(nodeParams) { batch(nodeParams) }
}

fn add_any(
    to: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
    params: *mut CUgraphNodeParams,
) -> Result<()> {
    let mut given = read!(params);
    let operation = if given.r#type == CU_GRAPH_NODE_TYPE_CONDITIONAL {
        // SAFETY: by the API's contract the kind says that the caller filled in this member of the
        // union.
        let asked = unsafe { &mut given.params.conditional };
        let conditional = Conditional::new(graph as usize, asked.handle, asked.r#type, asked.size)?;
        asked.phGraph_out = conditional.handles();
        Operation::Conditional(conditional)
    } else if given.r#type == CU_GRAPH_NODE_TYPE_MEM_ALLOC {
        // SAFETY: as above.
        let asked = unsafe { given.params.alloc };
        let after = given_dependencies(dependencies, data, count)?;
        Operation::Allocate(Box::new(allocation(asked, graph, &after)?))
    } else {
        any(&given)?
    };
    // Nodes of some kinds return values in the parameters.
    match &operation {
        Operation::Allocate(node) => given.params.alloc = node.params,
        Operation::Child(child) => given.params.graph.graph = child.handle as CUgraph,
        _ => {}
    }
    add(to, graph, dependencies, data, count, || Ok(operation))?;
    give!(params, given);
    Ok(())
}

calls! {
    cuGraphAddMemAllocNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams) {
        let after = given_dependencies(dependencies, std::ptr::null(), numDependencies)?;
        add(phGraphNode, hGraph, dependencies, std::ptr::null(), numDependencies, || {
            let node = allocation(read!(nodeParams), hGraph, &after)?;
            give!(nodeParams, node.params);
            Ok(Operation::Allocate(Box::new(node)))
        })?;
    }
    cuGraphAddNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams) {
        add_any(phGraphNode, hGraph, dependencies, std::ptr::null(), numDependencies, nodeParams)?;
    }
    cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, dependencyData, numDependencies, nodeParams) {
        add_any(phGraphNode, hGraph, dependencies, dependencyData, numDependencies, nodeParams)?;
    }
    cuGraphConditionalHandleCreate(pHandle_out, hGraph, ctx, defaultLaunchValue, flags) {
        if ctx.is_null() {
            context::current()?;
        } else {
            context::by_handle(ctx as usize)?;
        }
        give!(pHandle_out, condition::create(hGraph as usize, defaultLaunchValue, flags)?);
    }
    cuGraphNodeGetType(hNode, r#type) { give!(r#type, graph::node(hNode as usize)?.operation().node_type()) }
    cuGraphNodeGetContainingGraph(hNode, phGraph) {
        give!(phGraph, graph::node(hNode as usize)?.graph as CUgraph);
    }
    cuGraphNodeGetLocalId(hNode, nodeId) { give!(nodeId, graph::node(hNode as usize)?.local_id) }
    cuGraphNodeGetToolsId(hNode, toolsNodeId) {
        let node = graph::node(hNode as usize)?;
        give!(toolsNodeId, graph::by_handle(node.graph)?.id << u32::BITS | u64::from(node.local_id));
    }
}

fn set(node: CUgraphNode, operation: Operation) -> Result<()> {
    graph::node(node as usize)?.set_operation(operation)
}

fn set_exec(exec: CUgraphExec, node: CUgraphNode, operation: Operation) -> Result<()> {
    graph::exec(exec as usize)?.set_operation(node as usize, operation)
}

/// Returns `$value` of a node whose operation matches `$pattern`, and refuses a node of another
/// kind.
macro_rules! operation_of {
    ($node:expr, $pattern:pat => $value:expr) => {
        match graph::node($node as usize)?.operation() {
            $pattern => $value,
            _ => return Err(status::INVALID_VALUE),
        }
    };
}

/// Declares functions that replace an operation. Each line makes one function for a node of a
/// graph, and one for the node's step in an instantiated graph.
macro_rules! setters {
    ($($set:ident $set_exec:ident($argument:ident) $operation:expr;)*) => {
        calls! {$(
            $set(hNode, $argument) { set(hNode, $operation?)? }
            $set_exec(hGraphExec, hNode, $argument) {
                set_exec(hGraphExec, hNode, $operation?)?
            }
        )*}
    };
}

setters! {
    cuGraphKernelNodeSetParams cuGraphExecKernelNodeSetParams(nodeParams)
        kernel(&extended(&read!(nodeParams)));
    cuGraphKernelNodeSetParams_v2 cuGraphExecKernelNodeSetParams_v2(nodeParams) kernel(&read!(nodeParams));
    cuGraphHostNodeSetParams cuGraphExecHostNodeSetParams(nodeParams) host(&read!(nodeParams));
    cuGraphEventRecordNodeSetEvent cuGraphExecEventRecordNodeSetEvent(event)
        event_of(event).map(Operation::EventRecord);
    cuGraphEventWaitNodeSetEvent cuGraphExecEventWaitNodeSetEvent(event)
        event_of(event).map(Operation::EventWait);
    cuGraphBatchMemOpNodeSetParams cuGraphExecBatchMemOpNodeSetParams(nodeParams) batch(nodeParams);
    cuGraphNodeSetParams cuGraphExecNodeSetParams(nodeParams) any(&read!(nodeParams));
}

/// Returns the launch of a kernel node.
fn launch_of(node: CUgraphNode) -> Result<CUDA_KERNEL_NODE_PARAMS> {
    let launch = operation_of!(node, Operation::Kernel(launch) => launch);
    Ok(CUDA_KERNEL_NODE_PARAMS {
        func: launch.function.handle as CUfunction,
        gridDimX: launch.grid[0],
        gridDimY: launch.grid[1],
        gridDimZ: launch.grid[2],
        blockDimX: launch.block[0],
        blockDimY: launch.block[1],
        blockDimZ: launch.block[2],
        sharedMemBytes: launch.shared_bytes,
        // The node owns the parameters. The pointer stays valid until the parameters change.
        kernelParams: launch
            .arguments
            .as_ref()
            .map_or(std::ptr::null_mut(), |arguments| arguments.kernel_params()),
        extra: std::ptr::null_mut(),
        kern: std::ptr::null_mut(),
        ctx: launch.function.context.handle as CUcontext,
    })
}

calls! {
    cuGraphKernelNodeGetParams(hNode, nodeParams) {
        let full = launch_of(hNode)?;
        // SAFETY: the struct begins with the fields of its first version.
        let v1 = unsafe { (&raw const full).cast::<CUDA_KERNEL_NODE_PARAMS_v1>().read() };
        give!(nodeParams, v1);
    }
    cuGraphKernelNodeGetParams_v2(hNode, nodeParams) { give!(nodeParams, launch_of(hNode)?) }
}

fn kernel_node(node: CUgraphNode) -> Result<Arc<graph::Node>> {
    operation_of!(node, Operation::Kernel(_) => graph::node(node as usize))
}

calls! {
    cuGraphKernelNodeGetAttribute(hNode, attr, value_out) {
        give!(value_out, CUlaunchAttributeValue { pad: kernel_node(hNode)?.attributes.get(attr) });
    }
    cuGraphKernelNodeSetAttribute(hNode, attr, value) {
        let value = read!(value);
        // SAFETY: every byte pattern is a valid array of bytes.
        kernel_node(hNode)?.attributes.set(attr, unsafe { value.pad });
    }
    cuGraphKernelNodeCopyAttributes(dst, src) {
        let source = kernel_node(src)?;
        kernel_node(dst)?.attributes.copy(&source.attributes);
    }
    cuGraphMemcpyNodeGetParams(hNode, nodeParams) {
        give!(nodeParams, operation_of!(hNode, Operation::Copy(params) => *params));
    }
    cuGraphMemcpyNodeSetParams(hNode, nodeParams) { set(hNode, copy(&read!(nodeParams))?)? }
    cuGraphExecMemcpyNodeSetParams(hGraphExec, hNode, copyParams, ctx) {
        context::by_handle(ctx as usize)?;
        set_exec(hGraphExec, hNode, copy(&read!(copyParams))?)?;
    }
    cuGraphMemsetNodeGetParams(hNode, nodeParams) {
        let fill = operation_of!(hNode, Operation::Fill(fill) => fill);
        let params = CUDA_MEMSET_NODE_PARAMS {
            dst: fill.address,
            pitch: fill.pitch_bytes as usize,
            value: fill.value,
            elementSize: fill.element_bytes,
            width: fill.width as usize,
            height: fill.height as usize,
        };
        give!(nodeParams, params);
    }
    cuGraphMemsetNodeSetParams(hNode, nodeParams) { set(hNode, fill(&read!(nodeParams))?)? }
    cuGraphExecMemsetNodeSetParams(hGraphExec, hNode, memsetParams, ctx) {
        context::by_handle(ctx as usize)?;
        set_exec(hGraphExec, hNode, fill(&read!(memsetParams))?)?;
    }
    cuGraphHostNodeGetParams(hNode, nodeParams) {
        let (function, data) =
            operation_of!(hNode, Operation::Host(HostCall::Function(function, data)) => (function, data));
        give!(nodeParams, CUDA_HOST_NODE_PARAMS { r#fn: Some(function), userData: data as *mut c_void });
    }
    cuGraphChildGraphNodeGetGraph(hNode, phGraph) {
        give!(phGraph, operation_of!(hNode, Operation::Child(child) => child.handle as CUgraph));
    }
    cuGraphExecChildGraphNodeSetParams(hGraphExec, hNode, childGraph) {
        set_exec(hGraphExec, hNode, Operation::Child(graph::by_handle(childGraph as usize)?))?;
    }
    cuGraphEventRecordNodeGetEvent(hNode, event_out) {
        give!(event_out, operation_of!(hNode, Operation::EventRecord(event) => event.handle as CUevent));
    }
    cuGraphEventWaitNodeGetEvent(hNode, event_out) {
        give!(event_out, operation_of!(hNode, Operation::EventWait(event) => event.handle as CUevent));
    }
    cuGraphMemAllocNodeGetParams(hNode, params_out) {
        give!(params_out, operation_of!(hNode, Operation::Allocate(node) => node.params));
    }
    cuGraphMemFreeNodeGetParams(hNode, dptr_out) {
        give!(dptr_out, operation_of!(hNode, Operation::Free(address) => address));
    }
    cuGraphNodeGetEnabled(hGraphExec, hNode, isEnabled) {
        give!(isEnabled, graph::exec(hGraphExec as usize)?.is_enabled(hNode as usize)?.into());
    }
    cuGraphNodeSetEnabled(hGraphExec, hNode, isEnabled) {
        graph::exec(hGraphExec as usize)?.set_enabled(hNode as usize, isEnabled != 0)?;
    }
}
