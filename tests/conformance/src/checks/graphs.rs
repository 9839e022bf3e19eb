//! Graphs: instantiation, launches, updates, and memory of their own.

use super::prelude::*;

checks! { "graphs":
    Documented launches_of_one_run_one_after_another;
    Documented an_update_takes_the_same_shape_only;
    Documented a_cycle_is_refused;
    Documented memory_of_a_graph_is_taken_while_it_is_in_use;
    Documented an_upload_takes_the_memory_of_the_launch_after_it;
    Documented a_conditions_first_value_decides_which_body_runs;
    Documented a_graph_lives_on_in_its_executables_and_clones;
    Guess destroying_objects_that_run;
}

fn graph() -> Result<CUgraph, Stop> {
    Ok(made!(cuGraphCreate(0)))
}

fn executable(graph: CUgraph) -> Result<CUgraphExec, Stop> {
    Ok(made!(cuGraphInstantiateWithFlags(graph, 0)))
}

/// Returns a graph that sets a word.
fn set(gpu: &Gpu, at: CUdeviceptr, value: u32) -> Result<CUgraph, Stop> {
    let (graph, mut node) = (graph()?, null_mut());
    let params = CUDA_MEMSET_NODE_PARAMS { dst: at, pitch: 0, value, elementSize: 4, width: 1, height: 1 };
    must!(cuGraphAddMemsetNode(&mut node, graph, null(), 0, &params, gpu.context));
    Ok(graph)
}

fn launches_of_one_run_one_after_another(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [first, second]) = Gpu::with_streams()?;
    let exec = executable(set(&gpu, gpu.memory(4)?, 1)?)?;
    must!(cuGraphLaunch(exec, first));
    must!(cuStreamSynchronize(first));
    let held = gpu.hold(first)?;
    must!(cuGraphLaunch(exec, first));
    must!(cuGraphLaunch(exec, second));
    facts.code("the second launch waits for the first", cu!(cuStreamQuery(second)), CUDA_ERROR_NOT_READY);
    held.release()?;
    facts.code("and runs then", cu!(cuStreamSynchronize(second)), CUDA_SUCCESS);
    Ok(())
}

fn an_update_takes_the_same_shape_only(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let device = gpu.memory(4)?;
    let exec = executable(set(&gpu, device, 1)?)?;
    let mut info =
        CUgraphExecUpdateResultInfo { result: 99, errorNode: null_mut(), errorFromNode: null_mut() };
    let same = cu!(cuGraphExecUpdate_v2(exec, set(&gpu, device, 2)?, &mut info));
    facts.code("of the same shape", same, CUDA_SUCCESS);
    must!(cuGraphLaunch(exec, null_mut()));
    must!(cuCtxSynchronize());
    facts.is("the result after that", gpu.read(device, 1)?, vec![2]);
    let (longer, mut extra) = (set(&gpu, device, 3)?, null_mut());
    must!(cuGraphAddEmptyNode(&mut extra, longer, null(), 0));
    let other = cu!(cuGraphExecUpdate_v2(exec, longer, &mut info));
    facts.code("of another shape", other, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    facts.is("the reason", info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    Ok(())
}

fn a_conditions_first_value_decides_which_body_runs(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let device = gpu.memory(4)?;
    for (what, value, expected) in [("where it holds", 1, 7), ("where it does not", 0, 1)] {
        let (graph, mut handle, mut node) = (graph()?, 0, null_mut());
        must!(cuGraphConditionalHandleCreate(
            &mut handle,
            graph,
            gpu.context,
            value,
            CU_GRAPH_COND_ASSIGN_DEFAULT
        ));
        let mut params = zeroed!(CUgraphNodeParams);
        params.r#type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
        params.params.conditional = CUDA_CONDITIONAL_NODE_PARAMS {
            handle,
            r#type: CU_GRAPH_COND_TYPE_IF,
            size: 1,
            phGraph_out: null_mut(),
            ctx: gpu.context,
        };
        must!(cuGraphAddNode_v2(&mut node, graph, null(), null(), 0, &mut params));
        let mut kind = 0;
        must!(cuGraphNodeGetType(node, &mut kind));
        facts.is("the node's type", kind, CU_GRAPH_NODE_TYPE_CONDITIONAL);
        // SAFETY: the driver returns as many graphs as `size` asked for, which is one.
        let body = unsafe { *params.params.conditional.phGraph_out };
        let set =
            CUDA_MEMSET_NODE_PARAMS { dst: device, pitch: 0, value: 7, elementSize: 4, width: 1, height: 1 };
        must!(cuGraphAddMemsetNode(&mut node, body, null(), 0, &set, gpu.context));
        must!(cuMemsetD32_v2(device, 1, 1));
        must!(cuGraphLaunch(executable(graph)?, null_mut()));
        must!(cuCtxSynchronize());
        facts.is(what, gpu.read(device, 1)?, vec![expected]);
    }
    Ok(())
}

fn a_cycle_is_refused(facts: &mut Facts) -> Result<(), Stop> {
    let _gpu = Gpu::new()?;
    let graph = graph()?;
    let (mut one, mut two, mut exec) = (null_mut(), null_mut(), null_mut());
    must!(cuGraphAddEmptyNode(&mut one, graph, null(), 0));
    must!(cuGraphAddEmptyNode(&mut two, graph, &one, 1));
    let closed = cu!(cuGraphAddDependencies(graph, &two, &one, 1));
    facts.has("closing it", closed, "allowed, or refused here already", closed <= CUDA_ERROR_INVALID_VALUE);
    if closed == CUDA_SUCCESS {
        let refused = cu!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        facts.code("instantiating it", refused, CUDA_ERROR_INVALID_VALUE);
    }
    must!(cuGraphDestroyNode(two));
    facts.code("without one of both", cu!(cuGraphInstantiateWithFlags(&mut exec, graph, 0)), CUDA_SUCCESS);
    Ok(())
}

/// Size of the allocation in [`writing_to_its_own`].
const OWN_BYTES: usize = 6 << 20;

/// Returns a graph that allocates memory and writes to it, and the memory's address.
fn writing_to_its_own(stream: CUstream) -> Result<(CUgraph, CUdeviceptr), Stop> {
    let (mut address, mut graph) = (0, null_mut());
    must!(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    must!(cuMemAllocAsync(&mut address, OWN_BYTES, stream));
    must!(cuMemsetD32Async(address, 8, 1, stream));
    must!(cuStreamEndCapture(stream, &mut graph));
    Ok((graph, address))
}

/// Returns a figure of the device about the memory of its graphs.
fn graph_bytes(attribute: CUgraphMem_attribute) -> Result<usize, Stop> {
    let mut bytes = 0_u64;
    must!(cuDeviceGetGraphMemAttribute(0, attribute, (&raw mut bytes).cast()));
    Ok(bytes as usize)
}

fn memory_of_a_graph_is_taken_while_it_is_in_use(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [stream]) = Gpu::with_streams()?;
    let (graph, address) = writing_to_its_own(stream)?;
    let exec = executable(graph)?;
    let used = || graph_bytes(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
    facts.is("before the launch", used()?, 0);
    must!(cuGraphLaunch(exec, stream));
    must!(cuStreamSynchronize(stream));
    let in_use = used()?;
    facts.has("after it", in_use, "at least what was asked for", in_use >= OWN_BYTES);
    facts.is("the memory holds what the graph wrote", gpu.read(address, 1)?, vec![8]);
    facts.code("another launch meanwhile", cu!(cuGraphLaunch(exec, stream)), CUDA_ERROR_INVALID_VALUE);
    facts.code("freeing it in the stream", cu!(cuMemFreeAsync(address, stream)), CUDA_SUCCESS);
    must!(cuStreamSynchronize(stream));
    facts.is("freed", used()?, 0);
    facts.code("another launch then", cu!(cuGraphLaunch(exec, stream)), CUDA_SUCCESS);
    must!(cuStreamSynchronize(stream));
    facts.code("cuMemFree frees it as well", cu!(cuMemFree_v2(address)), CUDA_SUCCESS);
    Ok(())
}

fn an_upload_takes_the_memory_of_the_launch_after_it(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [stream]) = Gpu::with_streams()?;
    let (graph, address) = writing_to_its_own(stream)?;
    let exec = executable(graph)?;
    must!(cuDeviceGraphMemTrim(0));
    let reserved = || graph_bytes(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    let before = reserved()?;
    facts.code("uploading", cu!(cuGraphUpload(exec, stream)), CUDA_SUCCESS);
    must!(cuStreamSynchronize(stream));
    let taken = reserved()?.saturating_sub(before);
    facts.has("the memory that it took", taken, "at least what the graph allocates", taken >= OWN_BYTES);
    facts.code("launching", cu!(cuGraphLaunch(exec, stream)), CUDA_SUCCESS);
    must!(cuStreamSynchronize(stream));
    facts.is("reserved then", reserved()?, before + taken);
    facts.is("the memory holds what the graph wrote", gpu.read(address, 1)?, vec![8]);
    must!(cuMemFree_v2(address));
    // The upload can also happen when the graph is made executable.
    must!(cuGraphExecDestroy(exec));
    must!(cuDeviceGraphMemTrim(0));
    let before = reserved()?;
    let mut params = CUDA_GRAPH_INSTANTIATE_PARAMS {
        flags: u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD),
        hUploadStream: stream,
        hErrNode_out: null_mut(),
        result_out: CUDA_GRAPH_INSTANTIATE_ERROR,
    };
    let (graph, mut exec) = (writing_to_its_own(stream)?.0, null_mut());
    let made = cu!(cuGraphInstantiateWithParams(&mut exec, graph, &mut params));
    facts.code("making another executable and uploading it", made, CUDA_SUCCESS);
    facts.is("the result of both", params.result_out, CUDA_GRAPH_INSTANTIATE_SUCCESS);
    must!(cuStreamSynchronize(stream));
    let taken = reserved()?.saturating_sub(before);
    facts.has("the memory that both took", taken, "at least what the graph allocates", taken >= OWN_BYTES);
    Ok(())
}

fn a_graph_lives_on_in_its_executables_and_clones(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let device = gpu.memory(4)?;
    let graph = set(&gpu, device, 5)?;
    let exec = executable(graph)?;
    must!(cuGraphDestroy(graph));
    facts.code("launching", cu!(cuGraphLaunch(exec, null_mut())), CUDA_SUCCESS);
    must!(cuCtxSynchronize());
    facts.is("the result of the launch", gpu.read(device, 1)?, vec![5]);
    Ok(())
}

fn destroying_objects_that_run(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [stream]) = Gpu::with_streams()?;
    let device = gpu.memory(4)?;
    let exec = executable(set(&gpu, device, 5)?)?;
    let held = gpu.hold(stream)?;
    must!(cuGraphLaunch(exec, stream));
    facts.code("an executable that is queued", cu!(cuGraphExecDestroy(exec)), CUDA_SUCCESS);
    held.release()?;
    must!(cuStreamSynchronize(stream));
    facts.is("it ran", gpu.read(device, 1)?, vec![5]);
    facts.code("launching it afterwards", cu!(cuGraphLaunch(exec, stream)), CUDA_ERROR_INVALID_VALUE);
    Ok(())
}
