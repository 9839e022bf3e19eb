//! Graphs: building them node by node, instantiating, changing and launching them.
#[macro_use]
mod common;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use common::*;

fn new_graph() -> CUgraph {
    made!(cuGraphCreate(0))
}

fn instantiate(graph: CUgraph) -> CUgraphExec {
    made!(cuGraphInstantiateWithFlags(graph, 0))
}

fn memset(dst: CUdeviceptr, value: u32) -> CUDA_MEMSET_NODE_PARAMS {
    CUDA_MEMSET_NODE_PARAMS { dst, pitch: 0, value, elementSize: 4, width: 1, height: 1 }
}

fn copy(dst: CUdeviceptr, src: CUdeviceptr) -> CUDA_MEMCPY3D {
    // SAFETY: all zeros is a valid value of this plain struct.
    let mut params: CUDA_MEMCPY3D = unsafe { std::mem::zeroed() };
    params.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    params.srcDevice = src;
    params.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    params.dstDevice = dst;
    (params.WidthInBytes, params.Height, params.Depth) = (4, 1, 1);
    params
}

fn kernel(function: CUfunction, params: *mut *mut c_void) -> CUDA_KERNEL_NODE_PARAMS_v1 {
    CUDA_KERNEL_NODE_PARAMS_v1 {
        func: function,
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 32,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: params,
        extra: null_mut(),
    }
}

static CALLS: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn count(_: *mut c_void) {
    CALLS.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn nodes_run_in_the_order_of_their_dependencies() {
    let gpu = Gpu::new();
    let (one, two) = (gpu.memory(4), gpu.memory(4));
    let graph = new_graph();
    let (mut set, mut moved, mut call, mut last) = (null_mut(), null_mut(), null_mut(), null_mut());
    // The test adds the copy first, and the copy's dependency on the memset afterwards.
    ok!(cuGraphAddMemcpyNode(&mut moved, graph, null(), 0, &copy(two, one), gpu.context));
    ok!(cuGraphAddMemsetNode(&mut set, graph, null(), 0, &memset(one, 11), gpu.context));
    ok!(cuGraphAddDependencies(graph, &set, &moved, 1));
    let host = CUDA_HOST_NODE_PARAMS { r#fn: Some(count), userData: null_mut() };
    ok!(cuGraphAddHostNode(&mut call, graph, &moved, 1, &host));
    ok!(cuGraphAddMemsetNode(&mut last, graph, &call, 1, &memset(one, 12), gpu.context));
    let exec = instantiate(graph);
    let stream = gpu.stream(CU_STREAM_NON_BLOCKING);
    for round in 1..=3 {
        ok!(cuGraphLaunch(exec, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!((gpu.read(one, 1)[0], gpu.read(two, 1)[0]), (12, 11));
        assert_eq!(CALLS.load(Ordering::SeqCst), round);
    }
    let mut changed = memset(one, 21);
    ok!(cuGraphExecMemsetNodeSetParams(exec, set, &changed, gpu.context));
    ok!(cuGraphNodeSetEnabled(exec, last, 0));
    ok!(cuGraphLaunch(exec, stream));
    ok!(cuStreamSynchronize(stream));
    assert_eq!((gpu.read(one, 1)[0], gpu.read(two, 1)[0]), (21, 21));
    ok!(cuGraphMemsetNodeGetParams(set, &mut changed));
    assert_eq!(changed.value, 11, "the graph itself did not change");
    assert_eq!(
        code!(cuGraphExecMemsetNodeSetParams(exec, moved, &changed, gpu.context)),
        CUDA_ERROR_INVALID_VALUE
    );
}

#[test]
fn a_kernel_node_keeps_its_parameters_values() {
    let gpu = Gpu::new();
    let graph = new_graph();
    let (mut out, mut n) = (0xfeed_u64, 7_u32);
    let mut params = [(&raw mut out).cast::<c_void>(), (&raw mut n).cast()];
    let mut node = null_mut();
    ok!(cuGraphAddKernelNode(
        &mut node,
        graph,
        null(),
        0,
        &kernel(gpu.kernel(c"small"), params.as_mut_ptr())
    ));
    (out, n) = (1, 2);
    let mut kept = kernel(null_mut(), null_mut());
    ok!(cuGraphKernelNodeGetParams(node, &mut kept));
    // SAFETY: the driver keeps one pointer for each parameter, which points at a value of the
    // parameter's type.
    let values = unsafe { (*(*kept.kernelParams).cast::<u64>(), *(*kept.kernelParams.add(1)).cast::<u32>()) };
    assert_eq!((values, out, n), ((0xfeed, 7), 1, 2));
    assert_eq!(kept.func, gpu.kernel(c"small"));
    let mut wide = kernel(gpu.kernel(c"small"), params.as_mut_ptr());
    wide.blockDimX = 65;
    let exec = instantiate(graph);
    assert_eq!(code!(cuGraphExecKernelNodeSetParams(exec, node, &wide)), CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    ok!(cuGraphExecKernelNodeSetParams(exec, node, &kernel(gpu.kernel(c"quick"), null_mut())));
    ok!(cuGraphLaunch(exec, null_mut()));
    ok!(cuCtxSynchronize());
}

#[test]
fn a_child_graph_runs_as_one_node_of_its_parent() {
    let gpu = Gpu::new();
    let (one, two) = (gpu.memory(4), gpu.memory(4));
    let (child, parent) = (new_graph(), new_graph());
    let (mut set, mut whole, mut moved) = (null_mut(), null_mut(), null_mut());
    ok!(cuGraphAddMemsetNode(&mut set, child, null(), 0, &memset(one, 5), gpu.context));
    ok!(cuGraphAddChildGraphNode(&mut whole, parent, null(), 0, child));
    ok!(cuGraphAddMemcpyNode(&mut moved, parent, &whole, 1, &copy(two, one), gpu.context));
    let mut kind = 0;
    ok!(cuGraphNodeGetType(whole, &mut kind));
    assert_eq!(kind, CU_GRAPH_NODE_TYPE_GRAPH);
    ok!(cuGraphDestroy(child));
    let exec = instantiate(parent);
    ok!(cuGraphLaunch(exec, null_mut()));
    ok!(cuCtxSynchronize());
    assert_eq!(gpu.read(two, 1), [5]);
}

#[test]
fn memory_of_a_graph_is_charged_from_its_launch_until_it_is_trimmed() {
    let gpu = Gpu::new();
    const BYTES: usize = 6 << 20;
    let stream = gpu.stream(CU_STREAM_NON_BLOCKING);
    let before = gpu.used_bytes();
    ok!(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    let address = made!(cuMemAllocAsync(BYTES, stream));
    ok!(cuMemsetD32Async(address, 8, 1, stream));
    let mut graph = null_mut();
    ok!(cuStreamEndCapture(stream, &mut graph));
    assert_eq!(gpu.used_bytes(), before);
    let exec = instantiate(graph);
    ok!(cuGraphLaunch(exec, stream));
    ok!(cuStreamSynchronize(stream));
    assert_eq!(gpu.used_bytes() - before, BYTES);
    assert_eq!(gpu.read(address, 1), [8]);
    assert_eq!(code!(cuGraphLaunch(exec, stream)), CUDA_ERROR_INVALID_VALUE, "still in use");
    ok!(cuDeviceGraphMemTrim(0));
    assert_eq!(gpu.used_bytes() - before, BYTES, "memory in use is not trimmed");
    ok!(cuMemFreeAsync(address, stream));
    assert_eq!(gpu.used_bytes() - before, BYTES, "kept for the next launch");
    ok!(cuGraphLaunch(exec, stream));
    ok!(cuMemFree_v2(address));
    assert_eq!(gpu.used_bytes() - before, BYTES);
    ok!(cuDeviceGraphMemTrim(0));
    assert_eq!(gpu.used_bytes(), before);
}

#[test]
fn an_upload_is_charged_what_the_launch_after_it_has_in_use_at_most() {
    let gpu = Gpu::new();
    const BYTES: usize = 6 << 20;
    let stream = gpu.stream(CU_STREAM_NON_BLOCKING);
    ok!(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    let [mut first, mut second] = [0; 2];
    // The second allocation follows the first one's free, so it gets the same address.
    ok!(cuMemAllocAsync(&mut first, BYTES, stream));
    ok!(cuMemFreeAsync(first, stream));
    ok!(cuMemAllocAsync(&mut second, BYTES / 2, stream));
    let mut graph = null_mut();
    ok!(cuStreamEndCapture(stream, &mut graph));
    let exec = instantiate(graph);
    let before = gpu.used_bytes();
    for _ in 0..2 {
        ok!(cuGraphUpload(exec, stream));
        assert_eq!(gpu.used_bytes() - before, BYTES, "once, however often");
    }
    ok!(cuGraphLaunch(exec, stream));
    ok!(cuStreamSynchronize(stream));
    assert_eq!(gpu.used_bytes() - before, BYTES);
    ok!(cuMemFree_v2(second));
    ok!(cuDeviceGraphMemTrim(0));
    assert_eq!(gpu.used_bytes(), before);
    // A failed upload leaves no memory charged.
    let all = made!(cuDeviceTotalMem_v2(0));
    let rest = gpu.memory(all - before - BYTES + 1);
    assert_eq!(code!(cuGraphUpload(exec, stream)), CUDA_ERROR_OUT_OF_MEMORY);
    let mut params = CUDA_GRAPH_INSTANTIATE_PARAMS {
        flags: u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD),
        hUploadStream: stream,
        hErrNode_out: null_mut(),
        result_out: CUDA_GRAPH_INSTANTIATE_SUCCESS,
    };
    let mut other = null_mut();
    let made = code!(cuGraphInstantiateWithParams(&mut other, graph, &mut params));
    assert_eq!((made, params.result_out), (CUDA_ERROR_OUT_OF_MEMORY, CUDA_GRAPH_INSTANTIATE_ERROR));
    ok!(cuMemFree_v2(rest));
    assert_eq!(gpu.used_bytes(), before);
}

/// Adds an allocation node; returns it with its address.
fn allocation(graph: CUgraph, after: &[CUgraphNode], bytes: usize) -> (CUgraphNode, CUdeviceptr) {
    // SAFETY: all zeros is a valid value of this plain struct.
    let mut params: CUDA_MEM_ALLOC_NODE_PARAMS = unsafe { std::mem::zeroed() };
    params.poolProps.location.r#type = CU_MEM_LOCATION_TYPE_DEVICE;
    params.bytesize = bytes;
    let node = made!(cuGraphAddMemAllocNode(graph, after.as_ptr(), after.len(), &mut params));
    (node, params.dptr)
}

#[test]
fn an_address_is_given_again_behind_the_free_of_what_was_there() {
    const BYTES: usize = 6 << 20;
    let gpu = Gpu::new();
    let stream = gpu.stream(CU_STREAM_NON_BLOCKING);
    let graph = new_graph();
    let (first, address) = allocation(graph, &[], BYTES);
    let (mut freed, mut between) = (null_mut(), null_mut());
    ok!(cuGraphAddMemFreeNode(&mut freed, graph, &first, 1, address));
    assert_ne!(allocation(graph, &[], BYTES).1, address, "not ordered behind it");
    assert_ne!(allocation(graph, &[freed], BYTES + 1).1, address, "larger than what was there");
    ok!(cuGraphAddEmptyNode(&mut between, graph, &freed, 1));
    assert_eq!(allocation(graph, &[between], BYTES / 2).1, address);
    assert_ne!(allocation(graph, &[between], BYTES / 2).1, address, "it is in use again");
    let before = gpu.used_bytes();
    let exec = instantiate(graph);
    ok!(cuGraphLaunch(exec, stream));
    ok!(cuStreamSynchronize(stream));
    assert_eq!(gpu.used_bytes() - before, 3 * BYTES + (BYTES / 2).next_multiple_of(2 << 20) + (2 << 20));
    assert_eq!(
        code!(cuGraphLaunch(exec, stream)),
        CUDA_ERROR_INVALID_VALUE,
        "memory behind the free is in use"
    );
}

#[test]
fn a_user_object_ends_with_the_last_that_refers_to_it() {
    static ENDED: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn end(_: *mut c_void) {
        ENDED.fetch_add(1, Ordering::SeqCst);
    }
    let _gpu = Gpu::new();
    let graph = new_graph();
    let object = made!(cuUserObjectCreate(null_mut(), Some(end), 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    ok!(cuGraphRetainUserObject(graph, object, 1, 0));
    ok!(cuUserObjectRelease(object, 1));
    assert_eq!(ENDED.load(Ordering::SeqCst), 0);
    ok!(cuGraphDestroy(graph));
    assert_eq!(ENDED.load(Ordering::SeqCst), 1);
}

/// A graph with a conditional node, and the node's bodies. The condition is `value` at each launch.
fn conditional(kind: u32, size: u32, value: u32) -> (CUgraph, Vec<CUgraph>) {
    let graph = new_graph();
    let (mut handle, mut node) = (0, null_mut());
    ok!(cuGraphConditionalHandleCreate(&mut handle, graph, null_mut(), value, CU_GRAPH_COND_ASSIGN_DEFAULT));
    // SAFETY: all zeros is a valid value of this plain struct.
    let mut params: CUgraphNodeParams = unsafe { std::mem::zeroed() };
    params.r#type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    params.params.conditional =
        CUDA_CONDITIONAL_NODE_PARAMS { handle, r#type: kind, size, phGraph_out: null_mut(), ctx: null_mut() };
    ok!(cuGraphAddNode_v2(&mut node, graph, null(), null(), 0, &mut params));
    let mut found = 0;
    ok!(cuGraphNodeGetType(node, &mut found));
    assert_eq!(found, CU_GRAPH_NODE_TYPE_CONDITIONAL);
    let (mut twice, mut again) = (params, null_mut());
    let refused = code!(cuGraphAddNode_v2(&mut again, graph, null(), null(), 0, &mut twice));
    assert_eq!(refused, CUDA_ERROR_INVALID_VALUE, "a handle is of one node");
    // SAFETY: the driver returns as many graphs as the test asked for.
    let bodies = unsafe { std::slice::from_raw_parts(params.params.conditional.phGraph_out, size as usize) };
    (graph, bodies.to_vec())
}

#[test]
fn the_body_that_a_condition_names_runs_and_no_other() {
    let gpu = Gpu::new();
    let word = gpu.memory(4);
    let set = |body: CUgraph, value: u32| {
        made!(cuGraphAddMemsetNode(body, null(), 0, &memset(word, value), gpu.context));
    };
    let stream = gpu.stream(CU_STREAM_NON_BLOCKING);
    for (kind, size, value, expected) in [
        (CU_GRAPH_COND_TYPE_IF, 1, 1, 1),
        (CU_GRAPH_COND_TYPE_IF, 1, 0, 99),
        (CU_GRAPH_COND_TYPE_IF, 2, 0, 2),
        (CU_GRAPH_COND_TYPE_SWITCH, 3, 2, 3),
        (CU_GRAPH_COND_TYPE_SWITCH, 3, 3, 99),
    ] {
        ok!(cuMemsetD32_v2(word, 99, 1));
        let (graph, bodies) = conditional(kind, size, value);
        for (body, value) in bodies.iter().zip(1..) {
            set(*body, value);
        }
        ok!(cuGraphLaunch(instantiate(graph), stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(gpu.read(word, 1)[0], expected, "{kind}, {size} bodies, value {value}");
        let mut copy = null_mut();
        assert_eq!(code!(cuGraphClone(&mut copy, graph)), CUDA_ERROR_NOT_SUPPORTED);
        ok!(cuGraphDestroy(graph));
    }
}

#[test]
fn the_body_of_a_loop_runs_another_number_of_times_at_each_launch() {
    static ROUNDS: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn round(_: *mut c_void) {
        ROUNDS.fetch_add(1, Ordering::SeqCst);
    }
    let gpu = Gpu::new();
    let stream = gpu.stream(CU_STREAM_NON_BLOCKING);
    let (graph, bodies) = conditional(CU_GRAPH_COND_TYPE_WHILE, 1, 1);
    let (host, mut node) = (CUDA_HOST_NODE_PARAMS { r#fn: Some(round), userData: null_mut() }, null_mut());
    ok!(cuGraphAddHostNode(&mut node, bodies[0], null(), 0, &host));
    let exec = instantiate(graph);
    let rounds: Vec<u32> = (0..20)
        .map(|_| {
            let before = ROUNDS.load(Ordering::SeqCst);
            ok!(cuGraphLaunch(exec, stream));
            ok!(cuStreamSynchronize(stream));
            ROUNDS.load(Ordering::SeqCst) - before
        })
        .collect();
    // `while_rounds` is 8 by default.
    assert!(rounds.iter().all(|rounds| (1..=8).contains(rounds)), "{rounds:?}");
    assert!(rounds.iter().max() > rounds.iter().min(), "{rounds:?}");
}

#[test]
fn a_capture_can_be_looked_into_and_steered() {
    let gpu = Gpu::new();
    let stream = gpu.stream(CU_STREAM_NON_BLOCKING);
    ok!(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    gpu.launch(c"quick", stream);
    let (mut state, mut id, mut graph, mut nodes, mut count) = (0, 0, null_mut(), std::ptr::null(), 0);
    ok!(cuStreamGetCaptureInfo_v2(stream, &mut state, &mut id, &mut graph, &mut nodes, &mut count));
    assert_eq!((state, count), (CU_STREAM_CAPTURE_STATUS_ACTIVE, 1));
    let mut added = null_mut();
    ok!(cuGraphAddEmptyNode(&mut added, graph, nodes, count));
    ok!(cuStreamUpdateCaptureDependencies(stream, &mut added, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    gpu.launch(c"quick", stream);
    ok!(cuStreamEndCapture(stream, &mut graph));
    let (mut all, mut roots, mut edges) = (0, 0, 0);
    ok!(cuGraphGetNodes(graph, null_mut(), &mut all));
    ok!(cuGraphGetRootNodes(graph, null_mut(), &mut roots));
    ok!(cuGraphGetEdges(graph, null_mut(), null_mut(), &mut edges));
    assert_eq!((all, roots, edges), (3, 1, 2));
}

#[test]
fn a_node_that_was_destroyed_is_refused() {
    let _gpu = Gpu::new();
    let (graph, mut node) = (new_graph(), null_mut());
    ok!(cuGraphAddEmptyNode(&mut node, graph, null(), 0));
    ok!(cuGraphDestroyNode(node));
    let behind = code!(cuGraphAddEmptyNode(&mut null_mut(), graph, &node, 1));
    assert_eq!(behind, CUDA_ERROR_INVALID_VALUE);
}
