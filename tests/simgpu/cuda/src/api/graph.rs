//! Graphs as a whole: creation, copies, instantiation and lists of their contents.
use super::prelude::*;
use crate::graph::{self, Dependency, Exec, Graph, USER_OBJECTS, UserObject};
use crate::operation::Operation;

calls! {
    cuGraphCreate(phGraph, flags) {
        status::refuse(phGraph.is_null() || flags != 0)?;
        give!(phGraph, Graph::create()?.handle as CUgraph);
    }
    cuGraphDestroy(hGraph) { graph::destroy(hGraph as usize)? }
    cuGraphClone(phGraphClone, originalGraph) {
        status::refuse(phGraphClone.is_null())?;
        give!(phGraphClone, graph::by_handle(originalGraph as usize)?.copy()?.handle as CUgraph);
    }
    cuGraphGetId(hGraph, graphId) { give!(graphId, graph::by_handle(hGraph as usize)?.id as u32) }
    cuGraphNodeFindInClone(phNode, hOriginalNode, hClonedGraph) {
        let clone = graph::by_handle(hClonedGraph as usize)?;
        give!(phNode, clone.copy_of(hOriginalNode as usize).ok_or(status::INVALID_VALUE)? as CUgraphNode);
    }
}

/// Writes as many handles as fit into the caller's array, zeros behind these handles, and the
/// number of written handles. If the caller passes no array, writes only the number of all handles.
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

/// Writes the edge data of the handles. If the caller passes no array for edge data, all edges must
/// be plain.
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
    cuGraphGetNodes(hGraph, nodes, numNodes) {
        let all = graph::by_handle(hGraph as usize)?.nodes();
        let all: Vec<usize> = all.iter().map(|node| node.handle).collect();
        give_handles(nodes, numNodes, &all)?;
    }
    cuGraphGetRootNodes(hGraph, rootNodes, numRootNodes) {
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
    cuGraphGetEdges(hGraph, from, to, numEdges) { edges(hGraph, from, to, std::ptr::null_mut(), numEdges)? }
    cuGraphGetEdges_v2(hGraph, from, to, edgeData, numEdges) { edges(hGraph, from, to, edgeData, numEdges)? }
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
    cuGraphNodeGetDependencies(hNode, dependencies, numDependencies) {
        neighbours(hNode, Side::Before, dependencies, std::ptr::null_mut(), numDependencies)?;
    }
    cuGraphNodeGetDependencies_v2(hNode, dependencies, edgeData, numDependencies) {
        neighbours(hNode, Side::Before, dependencies, edgeData, numDependencies)?;
    }
    cuGraphNodeGetDependentNodes(hNode, dependentNodes, numDependentNodes) {
        neighbours(hNode, Side::After, dependentNodes, std::ptr::null_mut(), numDependentNodes)?;
    }
    cuGraphNodeGetDependentNodes_v2(hNode, dependentNodes, edgeData, numDependentNodes) {
        neighbours(hNode, Side::After, dependentNodes, edgeData, numDependentNodes)?;
    }
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
    cuGraphAddDependencies(hGraph, from, to, numDependencies) {
        let edges = given_edges(from, to, std::ptr::null(), numDependencies)?;
        graph::by_handle(hGraph as usize)?.connect(&edges)?;
    }
    cuGraphAddDependencies_v2(hGraph, from, to, edgeData, numDependencies) {
        graph::by_handle(hGraph as usize)?.connect(&given_edges(from, to, edgeData, numDependencies)?)?;
    }
    cuGraphRemoveDependencies(hGraph, from, to, numDependencies) {
        let edges = given_edges(from, to, std::ptr::null(), numDependencies)?;
        graph::by_handle(hGraph as usize)?.disconnect(&edges)?;
    }
    cuGraphRemoveDependencies_v2(hGraph, from, to, edgeData, numDependencies) {
        graph::by_handle(hGraph as usize)?.disconnect(&given_edges(from, to, edgeData, numDependencies)?)?;
    }
    cuGraphDestroyNode(hNode) {
        let node = graph::node(hNode as usize)?;
        graph::by_handle(node.graph)?.remove(node.handle)?;
    }
}

fn instantiate(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, flags: u64) -> Result<()> {
    status::refuse(phGraphExec.is_null())?;
    give!(phGraphExec, Exec::create(&graph::by_handle(hGraph as usize)?, flags)?.handle as CUgraphExec);
    Ok(())
}

calls! {
    cuGraphInstantiate | cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize) {
        give_if_wanted!(phErrorNode, std::ptr::null_mut());
        if bufferSize != 0 {
            give_if_wanted!(logBuffer, 0);
        }
        instantiate(phGraphExec, hGraph, 0)?;
    }
    cuGraphInstantiateWithFlags(phGraphExec, hGraph, flags) { instantiate(phGraphExec, hGraph, flags)? }
}

calls! {
    cuGraphInstantiateWithParams | cuGraphInstantiateWithParams_ptsz(phGraphExec, hGraph, params) |default| {
        let mut answer = read!(params);
        let made = instantiate(phGraphExec, hGraph, answer.flags);
        answer.result_out = match made {
            Ok(()) => CUDA_GRAPH_INSTANTIATE_SUCCESS,
            Err(_) => CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE,
        };
        let mut uploaded = Ok(());
        if made.is_ok() && answer.flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0 {
            let exec = read!(phGraphExec) as usize;
            uploaded = crate::stream::resolve(answer.hUploadStream as usize, default)
                .and_then(|stream| graph::exec(exec)?.upload(&stream));
            if uploaded.is_err() {
                graph::EXECS.remove(exec);
                answer.result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
            }
        }
        answer.hErrNode_out = std::ptr::null_mut();
        give!(params, answer);
        made.and(uploaded)?;
    }
    cuGraphExecDestroy(hGraphExec) {
        graph::EXECS.remove(hGraphExec as usize).map(|_| ()).ok_or(status::INVALID_VALUE)?;
    }
    cuGraphExecGetFlags(hGraphExec, flags) { give!(flags, graph::exec(hGraphExec as usize)?.flags) }
    cuGraphExecGetId(hGraphExec, graphId) { give!(graphId, graph::exec(hGraphExec as usize)?.id as u32) }
}

/// Updates an executable graph. Returns the result, and the nodes at which the update failed.
fn update(exec: CUgraphExec, graph: CUgraph) -> Result<graph::UpdateRefusal> {
    let updated = graph::exec(exec as usize)?.update(&*graph::by_handle(graph as usize)?);
    Ok(updated.err().unwrap_or((CU_GRAPH_EXEC_UPDATE_SUCCESS, 0, 0)))
}

calls! {
    cuGraphExecUpdate(hGraphExec, hGraph, hErrorNode_out, updateResult_out) {
        let (result, node, _) = update(hGraphExec, hGraph)?;
        give_if_wanted!(hErrorNode_out, node as CUgraphNode);
        give!(updateResult_out, result);
        status::refuse_as(result != CU_GRAPH_EXEC_UPDATE_SUCCESS, status::GRAPH_EXEC_UPDATE_FAILURE)?;
    }
    cuGraphExecUpdate_v2(hGraphExec, hGraph, resultInfo) {
        let (result, node, from) = update(hGraphExec, hGraph)?;
        let (errorNode, errorFromNode) = (node as CUgraphNode, from as CUgraphNode);
        give!(resultInfo, CUgraphExecUpdateResultInfo { result, errorNode, errorFromNode });
        status::refuse_as(result != CU_GRAPH_EXEC_UPDATE_SUCCESS, status::GRAPH_EXEC_UPDATE_FAILURE)?;
    }
    cuGraphDebugDotPrint(hGraph, path, _flags) {
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
    cuUserObjectCreate(object_out, ptr, destroy, initialRefcount, flags) {
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
    cuUserObjectRetain(object, count) { user_object(object)?.retain(count) }
    cuUserObjectRelease(object, count) { graph::release_user_object(object as usize, count)? }
    cuGraphRetainUserObject(graph, object, count, flags) {
        let graph = graph::by_handle(graph as usize)?;
        let object = user_object(object)?;
        match flags {
            0 => object.retain(count),
            CU_GRAPH_USER_OBJECT_MOVE => {}
            _ => return Err(status::INVALID_VALUE),
        }
        graph.hold(object.handle, count);
    }
    cuGraphReleaseUserObject(graph, object, count) {
        graph::by_handle(graph as usize)?.give_up(object as usize, count)?;
    }
}
