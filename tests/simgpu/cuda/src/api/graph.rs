//! Graphs as a whole: creating, copying, instantiating and listing their contents.
use std::ffi::{c_char, c_void};
use std::sync::Arc;

use deepres_abi::driver::types::*;

use crate::graph::{self, Dependency, Exec, Graph, USER_OBJECTS, UserObject};
use crate::operation::Operation;
use crate::status::{self, Result};
use crate::stream::DefaultStream;

calls! {
    cuGraphCreate(phGraph: *mut CUgraph, flags: u32) {
        status::refuse(phGraph.is_null() || flags != 0)?;
        give!(phGraph, Graph::create()?.handle as CUgraph);
    }
    cuGraphDestroy(hGraph: CUgraph) { graph::destroy(hGraph as usize)? }
    cuGraphClone(phGraphClone: *mut CUgraph, originalGraph: CUgraph) {
        status::refuse(phGraphClone.is_null())?;
        give!(phGraphClone, graph::by_handle(originalGraph as usize)?.copy()?.handle as CUgraph);
    }
    cuGraphGetId(hGraph: CUgraph, graphId: *mut u32) {
        give!(graphId, graph::by_handle(hGraph as usize)?.id as u32);
    }
    cuGraphNodeFindInClone(phNode: *mut CUgraphNode, hOriginalNode: CUgraphNode, hClonedGraph: CUgraph) {
        let clone = graph::by_handle(hClonedGraph as usize)?;
        give!(phNode, clone.copy_of(hOriginalNode as usize).ok_or(status::INVALID_VALUE)? as CUgraphNode);
    }
}

/// Writes as many handles as fit into the caller's array, zeros behind them, and the number of
/// handles. If the caller passes no array, writes only the number of all handles.
fn give_handles(to: *mut CUgraphNode, count: *mut usize, all: &[usize]) -> Result<()> {
    let room = read!(count);
    if to.is_null() {
        give!(count, all.len());
        return Ok(());
    }
    for at in 0..room {
        let handle = all.get(at).copied().unwrap_or(0);
        // SAFETY: by the API's contract the array has room for as many as the caller says.
        unsafe { to.add(at).write(handle as CUgraphNode) };
    }
    give!(count, room.min(all.len()));
    Ok(())
}

/// Writes the edge data of the handles. If the caller passes no array for it, all edges must be
/// plain.
fn give_edge_data(to: *mut CUgraphEdgeData, room: usize, all: &[CUgraphEdgeData]) -> Result<()> {
    if to.is_null() {
        return if all.iter().all(|data| *data == graph::PLAIN_EDGE) {
            Ok(())
        } else {
            Err(status::LOSSY_QUERY)
        };
    }
    for (at, data) in all.iter().take(room).enumerate() {
        // SAFETY: by the API's contract the array is as long as that of the nodes.
        unsafe { to.add(at).write(*data) };
    }
    Ok(())
}

calls! {
    cuGraphGetNodes(hGraph: CUgraph, nodes: *mut CUgraphNode, numNodes: *mut usize) {
        let all: Vec<usize> = graph::by_handle(hGraph as usize)?.nodes().iter().map(|node| node.handle).collect();
        give_handles(nodes, numNodes, &all)?;
    }
    cuGraphGetRootNodes(hGraph: CUgraph, rootNodes: *mut CUgraphNode, numRootNodes: *mut usize) {
        give_handles(rootNodes, numRootNodes, &graph::by_handle(hGraph as usize)?.roots())?;
    }
}

fn edges(
    hGraph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Result<()> {
    let all = graph::by_handle(hGraph as usize)?.edges();
    let room = read!(count);
    status::refuse(from.is_null() != to.is_null())?;
    let kinds: Vec<_> = all.iter().map(|edge| edge.2).collect();
    if !from.is_null() {
        give_edge_data(data, room, &kinds)?;
    }
    let (sources, targets): (Vec<_>, Vec<_>) = all.iter().map(|edge| (edge.0, edge.1)).unzip();
    give_handles(from, count, &sources)?;
    if to.is_null() {
        return Ok(());
    }
    give!(count, room);
    give_handles(to, count, &targets)
}

calls! {
    cuGraphGetEdges(hGraph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, numEdges: *mut usize) {
        edges(hGraph, from, to, std::ptr::null_mut(), numEdges)?;
    }
    cuGraphGetEdges_v2(
        hGraph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, edgeData: *mut CUgraphEdgeData,
        numEdges: *mut usize
    ) { edges(hGraph, from, to, edgeData, numEdges)? }
}

/// The end of an edge to return.
#[derive(Clone, Copy)]
enum Side {
    Before,
    After,
}

fn neighbours(
    node: CUgraphNode,
    side: Side,
    to: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Result<()> {
    let node = graph::node(node as usize)?;
    let found: Vec<Dependency> = graph::by_handle(node.graph)?
        .edges()
        .into_iter()
        .filter_map(|(from, to, data)| match side {
            Side::Before if to == node.handle => Some(Dependency { node: from, data }),
            Side::After if from == node.handle => Some(Dependency { node: to, data }),
            _ => None,
        })
        .collect();
    let kinds: Vec<_> = found.iter().map(|one| one.data).collect();
    if !to.is_null() {
        give_edge_data(data, read!(count), &kinds)?;
    }
    give_handles(to, count, &found.iter().map(|one| one.node).collect::<Vec<_>>())
}

calls! {
    cuGraphNodeGetDependencies(
        hNode: CUgraphNode, dependencies: *mut CUgraphNode, numDependencies: *mut usize
    ) { neighbours(hNode, Side::Before, dependencies, std::ptr::null_mut(), numDependencies)? }
    cuGraphNodeGetDependencies_v2(
        hNode: CUgraphNode, dependencies: *mut CUgraphNode, edgeData: *mut CUgraphEdgeData,
        numDependencies: *mut usize
    ) { neighbours(hNode, Side::Before, dependencies, edgeData, numDependencies)? }
    cuGraphNodeGetDependentNodes(
        hNode: CUgraphNode, dependentNodes: *mut CUgraphNode, numDependentNodes: *mut usize
    ) { neighbours(hNode, Side::After, dependentNodes, std::ptr::null_mut(), numDependentNodes)? }
    cuGraphNodeGetDependentNodes_v2(
        hNode: CUgraphNode, dependentNodes: *mut CUgraphNode, edgeData: *mut CUgraphEdgeData,
        numDependentNodes: *mut usize
    ) { neighbours(hNode, Side::After, dependentNodes, edgeData, numDependentNodes)? }
}

type Edges = Vec<(usize, usize, CUgraphEdgeData)>;

fn given_edges(
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
) -> Result<Edges> {
    let sources: &[CUgraphNode] = slice!(from.cast_mut(), count);
    let targets: &[CUgraphNode] = slice!(to.cast_mut(), count);
    let data: Option<&[CUgraphEdgeData]> =
        if data.is_null() { None } else { Some(slice!(data.cast_mut(), count)) };
    let kind = |at: usize| data.map_or(graph::PLAIN_EDGE, |data| data[at]);
    Ok((0..count).map(|at| (sources[at] as usize, targets[at] as usize, kind(at))).collect())
}

calls! {
    cuGraphAddDependencies(
        hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, numDependencies: usize
    ) {
        graph::by_handle(hGraph as usize)?.connect(&given_edges(from, to, std::ptr::null(), numDependencies)?)?;
    }
    cuGraphAddDependencies_v2(
        hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edgeData: *const CUgraphEdgeData,
        numDependencies: usize
    ) { graph::by_handle(hGraph as usize)?.connect(&given_edges(from, to, edgeData, numDependencies)?)? }
    cuGraphRemoveDependencies(
        hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, numDependencies: usize
    ) {
        graph::by_handle(hGraph as usize)?.disconnect(&given_edges(from, to, std::ptr::null(), numDependencies)?)?;
    }
    cuGraphRemoveDependencies_v2(
        hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edgeData: *const CUgraphEdgeData,
        numDependencies: usize
    ) { graph::by_handle(hGraph as usize)?.disconnect(&given_edges(from, to, edgeData, numDependencies)?)? }
    cuGraphDestroyNode(hNode: CUgraphNode) {
        let node = graph::node(hNode as usize)?;
        graph::by_handle(node.graph)?.remove(node.handle)?;
    }
}

fn instantiate(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, flags: u64) -> Result<()> {
    status::refuse(phGraphExec.is_null())?;
    give!(phGraphExec, Exec::create(&graph::by_handle(hGraph as usize)?, flags)?.handle as CUgraphExec);
    Ok(())
}

fn instantiate_with_log(
    phGraphExec: *mut CUgraphExec,
    hGraph: CUgraph,
    phErrorNode: *mut CUgraphNode,
    logBuffer: *mut c_char,
    bufferSize: usize,
) -> Result<()> {
    give_if_wanted!(phErrorNode, std::ptr::null_mut());
    if bufferSize != 0 {
        give_if_wanted!(logBuffer, 0);
    }
    instantiate(phGraphExec, hGraph, 0)
}

calls! {
    cuGraphInstantiate(
        phGraphExec: *mut CUgraphExec, hGraph: CUgraph, phErrorNode: *mut CUgraphNode, logBuffer: *mut c_char,
        bufferSize: usize
    ) { instantiate_with_log(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize)? }
    cuGraphInstantiate_v2(
        phGraphExec: *mut CUgraphExec, hGraph: CUgraph, phErrorNode: *mut CUgraphNode, logBuffer: *mut c_char,
        bufferSize: usize
    ) { instantiate_with_log(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize)? }
    cuGraphInstantiateWithFlags(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, flags: u64) {
        instantiate(phGraphExec, hGraph, flags)?;
    }
}

fn instantiate_with_params(
    phGraphExec: *mut CUgraphExec,
    hGraph: CUgraph,
    instantiateParams: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    default: DefaultStream,
) -> Result<()> {
    let mut params = read!(instantiateParams);
    let made = instantiate(phGraphExec, hGraph, params.flags);
    params.result_out =
        if made.is_ok() { CUDA_GRAPH_INSTANTIATE_SUCCESS } else { CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE };
    let mut uploaded = Ok(());
    if made.is_ok() && params.flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0 {
        let exec = read!(phGraphExec) as usize;
        uploaded = crate::stream::resolve(params.hUploadStream as usize, default)
            .and_then(|stream| graph::exec(exec)?.upload(&stream));
        if uploaded.is_err() {
            graph::EXECS.remove(exec);
            params.result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
        }
    }
    params.hErrNode_out = std::ptr::null_mut();
    give!(instantiateParams, params);
    made.and(uploaded)
}

for_both_default_streams! {
    cuGraphInstantiateWithParams / cuGraphInstantiateWithParams_ptsz(
        phGraphExec: *mut CUgraphExec, hGraph: CUgraph, params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    ) |default| {
        instantiate_with_params(phGraphExec, hGraph, params, default)
    }
}

calls! {
    cuGraphExecDestroy(hGraphExec: CUgraphExec) {
        graph::EXECS.remove(hGraphExec as usize).map(|_| ()).ok_or(status::INVALID_VALUE)?;
    }
    cuGraphExecGetFlags(hGraphExec: CUgraphExec, flags: *mut u64) {
        give!(flags, graph::exec(hGraphExec as usize)?.flags);
    }
    cuGraphExecGetId(hGraphExec: CUgraphExec, graphId: *mut u32) {
        give!(graphId, graph::exec(hGraphExec as usize)?.id as u32);
    }
}

fn update(hGraphExec: CUgraphExec, hGraph: CUgraph) -> Result<std::result::Result<(), graph::UpdateRefusal>> {
    Ok(graph::exec(hGraphExec as usize)?.update(&*graph::by_handle(hGraph as usize)?))
}

pub fn cuGraphExecUpdate(
    hGraphExec: CUgraphExec,
    hGraph: CUgraph,
    hErrorNode_out: *mut CUgraphNode,
    updateResult_out: *mut CUgraphExecUpdateResult,
) -> Result<()> {
    let (result, node) = match update(hGraphExec, hGraph)? {
        Ok(()) => (CU_GRAPH_EXEC_UPDATE_SUCCESS, 0),
        Err((result, node, _)) => (result, node),
    };
    give_if_wanted!(hErrorNode_out, node as CUgraphNode);
    give!(updateResult_out, result);
    if result == CU_GRAPH_EXEC_UPDATE_SUCCESS { Ok(()) } else { Err(status::GRAPH_EXEC_UPDATE_FAILURE) }
}

pub fn cuGraphExecUpdate_v2(
    hGraphExec: CUgraphExec,
    hGraph: CUgraph,
    resultInfo: *mut CUgraphExecUpdateResultInfo,
) -> Result<()> {
    let (result, node, from) = match update(hGraphExec, hGraph)? {
        Ok(()) => (CU_GRAPH_EXEC_UPDATE_SUCCESS, 0, 0),
        Err(refusal) => refusal,
    };
    let info = CUgraphExecUpdateResultInfo {
        result,
        errorNode: node as CUgraphNode,
        errorFromNode: from as CUgraphNode,
    };
    give!(resultInfo, info);
    if result == CU_GRAPH_EXEC_UPDATE_SUCCESS { Ok(()) } else { Err(status::GRAPH_EXEC_UPDATE_FAILURE) }
}

calls! {
    cuGraphDebugDotPrint(hGraph: CUgraph, path: *const c_char, _flags: u32) {
        let graph = graph::by_handle(hGraph as usize)?;
        let mut text = String::from("digraph dot {\n");
        for node in graph.nodes() {
            let label = match node.operation() {
                Operation::Kernel(launch) => launch.function.name().to_owned(),
                other => format!("type {}", other.node_type()),
            };
            text.push_str(&format!("\"{}\" [label=\"{} {label}\"];\n", node.local_id, node.local_id));
        }
        for (from, to, _) in graph.edges() {
            let (from, to) = (graph::node(from)?.local_id, graph::node(to)?.local_id);
            text.push_str(&format!("\"{from}\" -> \"{to}\";\n"));
        }
        text.push_str("}\n");
        std::fs::write(text!(path), text).map_err(|_| status::OPERATING_SYSTEM)?;
    }
    cuUserObjectCreate(
        object_out: *mut CUuserObject, ptr: *mut c_void, destroy: CUhostFn, initialRefcount: u32, flags: u32
    ) {
        let destroy = destroy.ok_or(status::INVALID_VALUE)?;
        if object_out.is_null() || initialRefcount == 0 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC {
            return Err(status::INVALID_VALUE);
        }
        give!(object_out, UserObject::create(ptr as usize, destroy, initialRefcount)?.handle as CUuserObject);
    }
}

fn user_object(handle: CUuserObject) -> Result<Arc<UserObject>> {
    USER_OBJECTS.get(handle as usize).ok_or(status::INVALID_VALUE)
}

calls! {
    cuUserObjectRetain(object: CUuserObject, count: u32) { user_object(object)?.retain(count); }
    cuUserObjectRelease(object: CUuserObject, count: u32) {
        graph::release_user_object(object as usize, count)?;
    }
    cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: u32, flags: u32) {
        let graph = graph::by_handle(graph as usize)?;
        let object = user_object(object)?;
        match flags {
            0 => object.retain(count),
            CU_GRAPH_USER_OBJECT_MOVE => {}
            _ => return Err(status::INVALID_VALUE),
        }
        graph.hold(object.handle, count);
    }
    cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: u32) {
        graph::by_handle(graph as usize)?.give_up(object as usize, count)?;
    }
}
