//! Every function of the runtime's API.
//!
//! `cargo xtask codegen` makes this file from the headers of nvidia-cuda-runtime==13.5.37.
//! Do not edit the file.

/// Calls the macro named by the argument once, with every function, sorted by name:
/// `{ symbol: …, args: (name: type, …) }`.
///
/// The types are those of `types`, which the caller has to have in scope.
macro_rules! for_each_function {
    ($($callback:tt)+) => {
        $($callback)+! {
            { symbol: cudaArrayGetInfo, args: (desc: *mut c_void, extent: *mut cudaExtent, flags: *mut u32, array: cudaArray_t) }
            { symbol: cudaArrayGetMemoryRequirements, args: (memoryRequirements: *mut c_void, array: cudaArray_t, device: i32) }
            { symbol: cudaArrayGetPlane, args: (pPlaneArray: *mut cudaArray_t, hArray: cudaArray_t, planeIdx: u32) }
            { symbol: cudaArrayGetSparseProperties, args: (sparseProperties: *mut c_void, array: cudaArray_t) }
            { symbol: cudaChooseDevice, args: (device: *mut i32, prop: *const cudaDeviceProp) }
            { symbol: cudaCreateSurfaceObject, args: (pSurfObject: *mut cudaSurfaceObject_t, pResDesc: *const c_void) }
            { symbol: cudaCreateTextureObject, args: (pTexObject: *mut cudaTextureObject_t, pResDesc: *const c_void, pTexDesc: *const c_void, pResViewDesc: *const c_void) }
            { symbol: cudaCtxResetPersistingL2Cache, args: () }
            { symbol: cudaDestroyExternalMemory, args: (extMem: cudaExternalMemory_t) }
            { symbol: cudaDestroyExternalSemaphore, args: (extSem: cudaExternalSemaphore_t) }
            { symbol: cudaDestroySurfaceObject, args: (surfObject: cudaSurfaceObject_t) }
            { symbol: cudaDestroyTextureObject, args: (texObject: cudaTextureObject_t) }
            { symbol: cudaDevResourceGenerateDesc, args: (phDesc: *mut cudaDevResourceDesc_t, resources: *mut c_void, nbResources: u32) }
            { symbol: cudaDevSmResourceSplit, args: (result: *mut c_void, nbGroups: u32, input: *const c_void, remainder: *mut c_void, flags: u32, groupParams: *mut c_void) }
            { symbol: cudaDevSmResourceSplitByCount, args: (result: *mut c_void, nbGroups: *mut u32, input: *const c_void, remaining: *mut c_void, flags: u32, minCount: u32) }
            { symbol: cudaDeviceCanAccessPeer, args: (canAccessPeer: *mut i32, device: i32, peerDevice: i32) }
            { symbol: cudaDeviceDisablePeerAccess, args: (peerDevice: i32) }
            { symbol: cudaDeviceEnablePeerAccess, args: (peerDevice: i32, flags: u32) }
            { symbol: cudaDeviceFlushGPUDirectRDMAWrites, args: (target: cudaFlushGPUDirectRDMAWritesTarget, scope: cudaFlushGPUDirectRDMAWritesScope) }
            { symbol: cudaDeviceGetAttribute, args: (value: *mut i32, attr: cudaDeviceAttr, device: i32) }
            { symbol: cudaDeviceGetByPCIBusId, args: (device: *mut i32, pciBusId: *const c_char) }
            { symbol: cudaDeviceGetCacheConfig, args: (pCacheConfig: *mut cudaFuncCache) }
            { symbol: cudaDeviceGetDefaultMemPool, args: (memPool: *mut cudaMemPool_t, device: i32) }
            { symbol: cudaDeviceGetDevResource, args: (device: i32, resource: *mut c_void, r#type: cudaDevResourceType) }
            { symbol: cudaDeviceGetExecutionCtx, args: (ctx: *mut cudaExecutionContext_t, device: i32) }
            { symbol: cudaDeviceGetGraphMemAttribute, args: (device: i32, attr: cudaGraphMemAttributeType, value: *mut c_void) }
            { symbol: cudaDeviceGetHostAtomicCapabilities, args: (capabilities: *mut u32, operations: *const cudaAtomicOperation, count: u32, device: i32) }
            { symbol: cudaDeviceGetLimit, args: (pValue: *mut usize, limit: cudaLimit) }
            { symbol: cudaDeviceGetMemPool, args: (memPool: *mut cudaMemPool_t, device: i32) }
            { symbol: cudaDeviceGetNvSciSyncAttributes, args: (nvSciSyncAttrList: *mut c_void, device: i32, flags: i32) }
            { symbol: cudaDeviceGetP2PAtomicCapabilities, args: (capabilities: *mut u32, operations: *const cudaAtomicOperation, count: u32, srcDevice: i32, dstDevice: i32) }
            { symbol: cudaDeviceGetP2PAttribute, args: (value: *mut i32, attr: cudaDeviceP2PAttr, srcDevice: i32, dstDevice: i32) }
            { symbol: cudaDeviceGetPCIBusId, args: (pciBusId: *mut c_char, len: i32, device: i32) }
            { symbol: cudaDeviceGetSharedMemConfig, args: (pConfig: *mut cudaSharedMemConfig) }
            { symbol: cudaDeviceGetStreamPriorityRange, args: (leastPriority: *mut i32, greatestPriority: *mut i32) }
            { symbol: cudaDeviceGetTexture1DLinearMaxWidth, args: (maxWidthInElements: *mut usize, fmtDesc: *const c_void, device: i32) }
            { symbol: cudaDeviceGraphMemTrim, args: (device: i32) }
            { symbol: cudaDeviceRegisterAsyncNotification, args: (device: i32, callbackFunc: cudaAsyncCallback, userData: *mut c_void, callback: *mut cudaAsyncCallbackHandle_t) }
            { symbol: cudaDeviceReset, args: () }
            { symbol: cudaDeviceSetCacheConfig, args: (cacheConfig: cudaFuncCache) }
            { symbol: cudaDeviceSetGraphMemAttribute, args: (device: i32, attr: cudaGraphMemAttributeType, value: *mut c_void) }
            { symbol: cudaDeviceSetLimit, args: (limit: cudaLimit, value: usize) }
            { symbol: cudaDeviceSetMemPool, args: (device: i32, memPool: cudaMemPool_t) }
            { symbol: cudaDeviceSetSharedMemConfig, args: (config: cudaSharedMemConfig) }
            { symbol: cudaDeviceSynchronize, args: () }
            { symbol: cudaDeviceUnregisterAsyncNotification, args: (device: i32, callback: cudaAsyncCallbackHandle_t) }
            { symbol: cudaDriverGetVersion, args: (driverVersion: *mut i32) }
            { symbol: cudaEventCreate, args: (event: *mut cudaEvent_t) }
            { symbol: cudaEventCreateWithFlags, args: (event: *mut cudaEvent_t, flags: u32) }
            { symbol: cudaEventDestroy, args: (event: cudaEvent_t) }
            { symbol: cudaEventElapsedTime, args: (ms: *mut f32, start: cudaEvent_t, end: cudaEvent_t) }
            { symbol: cudaEventQuery, args: (event: cudaEvent_t) }
            { symbol: cudaEventRecord, args: (event: cudaEvent_t, stream: cudaStream_t) }
            { symbol: cudaEventRecordWithFlags, args: (event: cudaEvent_t, stream: cudaStream_t, flags: u32) }
            { symbol: cudaEventRecordWithFlags_ptsz, args: (event: cudaEvent_t, stream: cudaStream_t, flags: u32) }
            { symbol: cudaEventRecord_ptsz, args: (event: cudaEvent_t, stream: cudaStream_t) }
            { symbol: cudaEventSynchronize, args: (event: cudaEvent_t) }
            { symbol: cudaExecutionCtxDestroy, args: (ctx: cudaExecutionContext_t) }
            { symbol: cudaExecutionCtxGetDevResource, args: (ctx: cudaExecutionContext_t, resource: *mut c_void, r#type: cudaDevResourceType) }
            { symbol: cudaExecutionCtxGetDevice, args: (device: *mut i32, ctx: cudaExecutionContext_t) }
            { symbol: cudaExecutionCtxGetId, args: (ctx: cudaExecutionContext_t, ctxId: *mut u64) }
            { symbol: cudaExecutionCtxRecordEvent, args: (ctx: cudaExecutionContext_t, event: cudaEvent_t) }
            { symbol: cudaExecutionCtxStreamCreate, args: (phStream: *mut cudaStream_t, ctx: cudaExecutionContext_t, flags: u32, priority: i32) }
            { symbol: cudaExecutionCtxSynchronize, args: (ctx: cudaExecutionContext_t) }
            { symbol: cudaExecutionCtxWaitEvent, args: (ctx: cudaExecutionContext_t, event: cudaEvent_t) }
            { symbol: cudaExternalMemoryGetMappedBuffer, args: (devPtr: *mut *mut c_void, extMem: cudaExternalMemory_t, bufferDesc: *const c_void) }
            { symbol: cudaExternalMemoryGetMappedMipmappedArray, args: (mipmap: *mut cudaMipmappedArray_t, extMem: cudaExternalMemory_t, mipmapDesc: *const c_void) }
            { symbol: cudaFree, args: (devPtr: *mut c_void) }
            { symbol: cudaFreeArray, args: (array: cudaArray_t) }
            { symbol: cudaFreeAsync, args: (devPtr: *mut c_void, hStream: cudaStream_t) }
            { symbol: cudaFreeAsync_ptsz, args: (devPtr: *mut c_void, hStream: cudaStream_t) }
            { symbol: cudaFreeHost, args: (ptr: *mut c_void) }
            { symbol: cudaFreeMipmappedArray, args: (mipmappedArray: cudaMipmappedArray_t) }
            { symbol: cudaFuncGetAttributes, args: (attr: *mut cudaFuncAttributes, func: *const c_void) }
            { symbol: cudaFuncGetName, args: (name: *mut *const c_char, func: *const c_void) }
            { symbol: cudaFuncGetParamCount, args: (func: *const c_void, paramCount: *mut usize) }
            { symbol: cudaFuncGetParamInfo, args: (func: *const c_void, paramIndex: usize, paramOffset: *mut usize, paramSize: *mut usize) }
            { symbol: cudaFuncSetAttribute, args: (func: *const c_void, attr: cudaFuncAttribute, value: i32) }
            { symbol: cudaFuncSetCacheConfig, args: (func: *const c_void, cacheConfig: cudaFuncCache) }
            { symbol: cudaFuncSetSharedMemConfig, args: (func: *const c_void, config: cudaSharedMemConfig) }
            { symbol: cudaGetChannelDesc, args: (desc: *mut c_void, array: cudaArray_const_t) }
            { symbol: cudaGetDevice, args: (device: *mut i32) }
            { symbol: cudaGetDeviceCount, args: (count: *mut i32) }
            { symbol: cudaGetDeviceFlags, args: (flags: *mut u32) }
            { symbol: cudaGetDeviceProperties, args: (prop: *mut cudaDeviceProp, device: i32) }
            { symbol: cudaGetDriverEntryPoint, args: (symbol: *const c_char, funcPtr: *mut *mut c_void, flags: u64, driverStatus: *mut cudaDriverEntryPointQueryResult) }
            { symbol: cudaGetDriverEntryPointByVersion, args: (symbol: *const c_char, funcPtr: *mut *mut c_void, cudaVersion: u32, flags: u64, driverStatus: *mut cudaDriverEntryPointQueryResult) }
            { symbol: cudaGetDriverEntryPointByVersion_ptsz, args: (symbol: *const c_char, funcPtr: *mut *mut c_void, cudaVersion: u32, flags: u64, driverStatus: *mut cudaDriverEntryPointQueryResult) }
            { symbol: cudaGetDriverEntryPoint_ptsz, args: (symbol: *const c_char, funcPtr: *mut *mut c_void, flags: u64, driverStatus: *mut cudaDriverEntryPointQueryResult) }
            { symbol: cudaGetExportTable, args: (ppExportTable: *mut *const c_void, pExportTableId: *const c_void) }
            { symbol: cudaGetFuncBySymbol, args: (functionPtr: *mut cudaFunction_t, symbolPtr: *const c_void) }
            { symbol: cudaGetKernel, args: (kernelPtr: *mut cudaKernel_t, entryFuncAddr: *const c_void) }
            { symbol: cudaGetLastError, args: () }
            { symbol: cudaGetMipmappedArrayLevel, args: (levelArray: *mut cudaArray_t, mipmappedArray: cudaMipmappedArray_const_t, level: u32) }
            { symbol: cudaGetSurfaceObjectResourceDesc, args: (pResDesc: *mut c_void, surfObject: cudaSurfaceObject_t) }
            { symbol: cudaGetSymbolAddress, args: (devPtr: *mut *mut c_void, symbol: *const c_void) }
            { symbol: cudaGetSymbolSize, args: (size: *mut usize, symbol: *const c_void) }
            { symbol: cudaGetTextureObjectResourceDesc, args: (pResDesc: *mut c_void, texObject: cudaTextureObject_t) }
            { symbol: cudaGetTextureObjectResourceViewDesc, args: (pResViewDesc: *mut c_void, texObject: cudaTextureObject_t) }
            { symbol: cudaGetTextureObjectTextureDesc, args: (pTexDesc: *mut c_void, texObject: cudaTextureObject_t) }
            { symbol: cudaGraphAddChildGraphNode, args: (pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t, numDependencies: usize, childGraph: cudaGraph_t) }
            { symbol: cudaGraphAddDependencies, args: (graph: cudaGraph_t, from: *const cudaGraphNode_t, to: *const cudaGraphNode_t, edgeData: *const c_void, numDependencies: usize) }
            { symbol: cudaGraphAddEmptyNode, args: (pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t, numDependencies: usize) }
            { symbol: cudaGraphAddEventRecordNode, args: (pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t, numDependencies: usize, event: cudaEvent_t) }
            { symbol: cudaGraphAddEventWaitNode, args: (pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t, numDependencies: usize, event: cudaEvent_t) }
            { symbol: cudaGraphAddExternalSemaphoresSignalNode, args: (pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t, numDependencies: usize, nodeParams: *const c_void) }
            { symbol: cudaGraphAddExternalSemaphoresWaitNode, args: (pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t, numDependencies: usize, nodeParams: *const c_void) }
            { symbol: cudaGraphAddHostNode, args: (pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t, numDependencies: usize, pNodeParams: *const c_void) }
            { symbol: cudaGraphAddKernelNode, args: (pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t, numDependencies: usize, pNodeParams: *const cudaKernelNodeParams) }
            { symbol: cudaGraphAddMemAllocNode, args: (pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t, numDependencies: usize, nodeParams: *mut c_void) }
            { symbol: cudaGraphAddMemFreeNode, args: (pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t, numDependencies: usize, dptr: *mut c_void) }
            { symbol: cudaGraphAddMemcpyNode, args: (pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t, numDependencies: usize, pCopyParams: *const c_void) }
            { symbol: cudaGraphAddMemcpyNode1D, args: (pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t, numDependencies: usize, dst: *mut c_void, src: *const c_void, count: usize, kind: cudaMemcpyKind) }
            { symbol: cudaGraphAddMemcpyNodeFromSymbol, args: (pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t, numDependencies: usize, dst: *mut c_void, symbol: *const c_void, count: usize, offset: usize, kind: cudaMemcpyKind) }
            { symbol: cudaGraphAddMemcpyNodeToSymbol, args: (pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t, numDependencies: usize, symbol: *const c_void, src: *const c_void, count: usize, offset: usize, kind: cudaMemcpyKind) }
            { symbol: cudaGraphAddMemsetNode, args: (pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t, numDependencies: usize, pMemsetParams: *const c_void) }
            { symbol: cudaGraphAddNode, args: (pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t, dependencyData: *const c_void, numDependencies: usize, nodeParams: *mut cudaGraphNodeParams) }
            { symbol: cudaGraphChildGraphNodeGetGraph, args: (node: cudaGraphNode_t, pGraph: *mut cudaGraph_t) }
            { symbol: cudaGraphClone, args: (pGraphClone: *mut cudaGraph_t, originalGraph: cudaGraph_t) }
            { symbol: cudaGraphConditionalHandleCreate, args: (pHandle_out: *mut cudaGraphConditionalHandle, graph: cudaGraph_t, defaultLaunchValue: u32, flags: u32) }
            { symbol: cudaGraphConditionalHandleCreate_v2, args: (pHandle_out: *mut cudaGraphConditionalHandle, graph: cudaGraph_t, ctx: cudaExecutionContext_t, defaultLaunchValue: u32, flags: u32) }
            { symbol: cudaGraphCreate, args: (pGraph: *mut cudaGraph_t, flags: u32) }
            { symbol: cudaGraphDebugDotPrint, args: (graph: cudaGraph_t, path: *const c_char, flags: u32) }
            { symbol: cudaGraphDestroy, args: (graph: cudaGraph_t) }
            { symbol: cudaGraphDestroyNode, args: (node: cudaGraphNode_t) }
            { symbol: cudaGraphEventRecordNodeGetEvent, args: (node: cudaGraphNode_t, event_out: *mut cudaEvent_t) }
            { symbol: cudaGraphEventRecordNodeSetEvent, args: (node: cudaGraphNode_t, event: cudaEvent_t) }
            { symbol: cudaGraphEventWaitNodeGetEvent, args: (node: cudaGraphNode_t, event_out: *mut cudaEvent_t) }
            { symbol: cudaGraphEventWaitNodeSetEvent, args: (node: cudaGraphNode_t, event: cudaEvent_t) }
            { symbol: cudaGraphExecChildGraphNodeSetParams, args: (hGraphExec: cudaGraphExec_t, node: cudaGraphNode_t, childGraph: cudaGraph_t) }
            { symbol: cudaGraphExecDestroy, args: (graphExec: cudaGraphExec_t) }
            { symbol: cudaGraphExecEventRecordNodeSetEvent, args: (hGraphExec: cudaGraphExec_t, hNode: cudaGraphNode_t, event: cudaEvent_t) }
            { symbol: cudaGraphExecEventWaitNodeSetEvent, args: (hGraphExec: cudaGraphExec_t, hNode: cudaGraphNode_t, event: cudaEvent_t) }
            { symbol: cudaGraphExecExternalSemaphoresSignalNodeSetParams, args: (hGraphExec: cudaGraphExec_t, hNode: cudaGraphNode_t, nodeParams: *const c_void) }
            { symbol: cudaGraphExecExternalSemaphoresWaitNodeSetParams, args: (hGraphExec: cudaGraphExec_t, hNode: cudaGraphNode_t, nodeParams: *const c_void) }
            { symbol: cudaGraphExecGetFlags, args: (graphExec: cudaGraphExec_t, flags: *mut u64) }
            { symbol: cudaGraphExecGetId, args: (hGraphExec: cudaGraphExec_t, graphID: *mut u32) }
            { symbol: cudaGraphExecHostNodeSetParams, args: (hGraphExec: cudaGraphExec_t, node: cudaGraphNode_t, pNodeParams: *const c_void) }
            { symbol: cudaGraphExecKernelNodeSetParams, args: (hGraphExec: cudaGraphExec_t, node: cudaGraphNode_t, pNodeParams: *const cudaKernelNodeParams) }
            { symbol: cudaGraphExecMemcpyNodeSetParams, args: (hGraphExec: cudaGraphExec_t, node: cudaGraphNode_t, pNodeParams: *const c_void) }
            { symbol: cudaGraphExecMemcpyNodeSetParams1D, args: (hGraphExec: cudaGraphExec_t, node: cudaGraphNode_t, dst: *mut c_void, src: *const c_void, count: usize, kind: cudaMemcpyKind) }
            { symbol: cudaGraphExecMemcpyNodeSetParamsFromSymbol, args: (hGraphExec: cudaGraphExec_t, node: cudaGraphNode_t, dst: *mut c_void, symbol: *const c_void, count: usize, offset: usize, kind: cudaMemcpyKind) }
            { symbol: cudaGraphExecMemcpyNodeSetParamsToSymbol, args: (hGraphExec: cudaGraphExec_t, node: cudaGraphNode_t, symbol: *const c_void, src: *const c_void, count: usize, offset: usize, kind: cudaMemcpyKind) }
            { symbol: cudaGraphExecMemsetNodeSetParams, args: (hGraphExec: cudaGraphExec_t, node: cudaGraphNode_t, pNodeParams: *const c_void) }
            { symbol: cudaGraphExecNodeSetParams, args: (graphExec: cudaGraphExec_t, node: cudaGraphNode_t, nodeParams: *mut cudaGraphNodeParams) }
            { symbol: cudaGraphExecUpdate, args: (hGraphExec: cudaGraphExec_t, hGraph: cudaGraph_t, resultInfo: *mut c_void) }
            { symbol: cudaGraphExternalSemaphoresSignalNodeGetParams, args: (hNode: cudaGraphNode_t, params_out: *mut c_void) }
            { symbol: cudaGraphExternalSemaphoresSignalNodeSetParams, args: (hNode: cudaGraphNode_t, nodeParams: *const c_void) }
            { symbol: cudaGraphExternalSemaphoresWaitNodeGetParams, args: (hNode: cudaGraphNode_t, params_out: *mut c_void) }
            { symbol: cudaGraphExternalSemaphoresWaitNodeSetParams, args: (hNode: cudaGraphNode_t, nodeParams: *const c_void) }
            { symbol: cudaGraphGetEdges, args: (graph: cudaGraph_t, from: *mut cudaGraphNode_t, to: *mut cudaGraphNode_t, edgeData: *mut c_void, numEdges: *mut usize) }
            { symbol: cudaGraphGetId, args: (hGraph: cudaGraph_t, graphID: *mut u32) }
            { symbol: cudaGraphGetNodes, args: (graph: cudaGraph_t, nodes: *mut cudaGraphNode_t, numNodes: *mut usize) }
            { symbol: cudaGraphGetRootNodes, args: (graph: cudaGraph_t, pRootNodes: *mut cudaGraphNode_t, pNumRootNodes: *mut usize) }
            { symbol: cudaGraphHostNodeGetParams, args: (node: cudaGraphNode_t, pNodeParams: *mut c_void) }
            { symbol: cudaGraphHostNodeSetParams, args: (node: cudaGraphNode_t, pNodeParams: *const c_void) }
            { symbol: cudaGraphInstantiate, args: (pGraphExec: *mut cudaGraphExec_t, graph: cudaGraph_t, flags: u64) }
            { symbol: cudaGraphInstantiateWithFlags, args: (pGraphExec: *mut cudaGraphExec_t, graph: cudaGraph_t, flags: u64) }
            { symbol: cudaGraphInstantiateWithParams, args: (pGraphExec: *mut cudaGraphExec_t, graph: cudaGraph_t, instantiateParams: *mut c_void) }
            { symbol: cudaGraphInstantiateWithParams_ptsz, args: (pGraphExec: *mut cudaGraphExec_t, graph: cudaGraph_t, instantiateParams: *mut c_void) }
            { symbol: cudaGraphKernelNodeCopyAttributes, args: (hDst: cudaGraphNode_t, hSrc: cudaGraphNode_t) }
            { symbol: cudaGraphKernelNodeGetAttribute, args: (hNode: cudaGraphNode_t, attr: cudaLaunchAttributeID, value_out: *mut c_void) }
            { symbol: cudaGraphKernelNodeGetParams, args: (node: cudaGraphNode_t, pNodeParams: *mut cudaKernelNodeParams) }
            { symbol: cudaGraphKernelNodeSetAttribute, args: (hNode: cudaGraphNode_t, attr: cudaLaunchAttributeID, value: *const c_void) }
            { symbol: cudaGraphKernelNodeSetParams, args: (node: cudaGraphNode_t, pNodeParams: *const cudaKernelNodeParams) }
            { symbol: cudaGraphLaunch, args: (graphExec: cudaGraphExec_t, stream: cudaStream_t) }
            { symbol: cudaGraphLaunch_ptsz, args: (graphExec: cudaGraphExec_t, stream: cudaStream_t) }
            { symbol: cudaGraphMemAllocNodeGetParams, args: (node: cudaGraphNode_t, params_out: *mut c_void) }
            { symbol: cudaGraphMemFreeNodeGetParams, args: (node: cudaGraphNode_t, dptr_out: *mut c_void) }
            { symbol: cudaGraphMemcpyNodeGetParams, args: (node: cudaGraphNode_t, pNodeParams: *mut c_void) }
            { symbol: cudaGraphMemcpyNodeSetParams, args: (node: cudaGraphNode_t, pNodeParams: *const c_void) }
            { symbol: cudaGraphMemcpyNodeSetParams1D, args: (node: cudaGraphNode_t, dst: *mut c_void, src: *const c_void, count: usize, kind: cudaMemcpyKind) }
            { symbol: cudaGraphMemcpyNodeSetParamsFromSymbol, args: (node: cudaGraphNode_t, dst: *mut c_void, symbol: *const c_void, count: usize, offset: usize, kind: cudaMemcpyKind) }
            { symbol: cudaGraphMemcpyNodeSetParamsToSymbol, args: (node: cudaGraphNode_t, symbol: *const c_void, src: *const c_void, count: usize, offset: usize, kind: cudaMemcpyKind) }
            { symbol: cudaGraphMemsetNodeGetParams, args: (node: cudaGraphNode_t, pNodeParams: *mut c_void) }
            { symbol: cudaGraphMemsetNodeSetParams, args: (node: cudaGraphNode_t, pNodeParams: *const c_void) }
            { symbol: cudaGraphNodeFindInClone, args: (pNode: *mut cudaGraphNode_t, originalNode: cudaGraphNode_t, clonedGraph: cudaGraph_t) }
            { symbol: cudaGraphNodeGetContainingGraph, args: (hNode: cudaGraphNode_t, phGraph: *mut cudaGraph_t) }
            { symbol: cudaGraphNodeGetDependencies, args: (node: cudaGraphNode_t, pDependencies: *mut cudaGraphNode_t, edgeData: *mut c_void, pNumDependencies: *mut usize) }
            { symbol: cudaGraphNodeGetDependentNodes, args: (node: cudaGraphNode_t, pDependentNodes: *mut cudaGraphNode_t, edgeData: *mut c_void, pNumDependentNodes: *mut usize) }
            { symbol: cudaGraphNodeGetEnabled, args: (hGraphExec: cudaGraphExec_t, hNode: cudaGraphNode_t, isEnabled: *mut u32) }
            { symbol: cudaGraphNodeGetLocalId, args: (hNode: cudaGraphNode_t, nodeId: *mut u32) }
            { symbol: cudaGraphNodeGetParams, args: (node: cudaGraphNode_t, nodeParams: *mut cudaGraphNodeParams) }
            { symbol: cudaGraphNodeGetToolsId, args: (hNode: cudaGraphNode_t, toolsNodeId: *mut u64) }
            { symbol: cudaGraphNodeGetType, args: (node: cudaGraphNode_t, pType: *mut cudaGraphNodeType) }
            { symbol: cudaGraphNodeSetEnabled, args: (hGraphExec: cudaGraphExec_t, hNode: cudaGraphNode_t, isEnabled: u32) }
            { symbol: cudaGraphNodeSetParams, args: (node: cudaGraphNode_t, nodeParams: *mut cudaGraphNodeParams) }
            { symbol: cudaGraphReleaseUserObject, args: (graph: cudaGraph_t, object: cudaUserObject_t, count: u32) }
            { symbol: cudaGraphRemoveDependencies, args: (graph: cudaGraph_t, from: *const cudaGraphNode_t, to: *const cudaGraphNode_t, edgeData: *const c_void, numDependencies: usize) }
            { symbol: cudaGraphRetainUserObject, args: (graph: cudaGraph_t, object: cudaUserObject_t, count: u32, flags: u32) }
            { symbol: cudaGraphUpload, args: (graphExec: cudaGraphExec_t, stream: cudaStream_t) }
            { symbol: cudaGraphUpload_ptsz, args: (graphExec: cudaGraphExec_t, stream: cudaStream_t) }
            { symbol: cudaGraphicsMapResources, args: (count: i32, resources: *mut cudaGraphicsResource_t, stream: cudaStream_t) }
            { symbol: cudaGraphicsResourceGetMappedMipmappedArray, args: (mipmappedArray: *mut cudaMipmappedArray_t, resource: cudaGraphicsResource_t) }
            { symbol: cudaGraphicsResourceGetMappedPointer, args: (devPtr: *mut *mut c_void, size: *mut usize, resource: cudaGraphicsResource_t) }
            { symbol: cudaGraphicsResourceSetMapFlags, args: (resource: cudaGraphicsResource_t, flags: u32) }
            { symbol: cudaGraphicsSubResourceGetMappedArray, args: (array: *mut cudaArray_t, resource: cudaGraphicsResource_t, arrayIndex: u32, mipLevel: u32) }
            { symbol: cudaGraphicsUnmapResources, args: (count: i32, resources: *mut cudaGraphicsResource_t, stream: cudaStream_t) }
            { symbol: cudaGraphicsUnregisterResource, args: (resource: cudaGraphicsResource_t) }
            { symbol: cudaGreenCtxCreate, args: (phCtx: *mut cudaExecutionContext_t, desc: cudaDevResourceDesc_t, device: i32, flags: u32) }
            { symbol: cudaHostAlloc, args: (pHost: *mut *mut c_void, size: usize, flags: u32) }
            { symbol: cudaHostGetDevicePointer, args: (pDevice: *mut *mut c_void, pHost: *mut c_void, flags: u32) }
            { symbol: cudaHostGetFlags, args: (pFlags: *mut u32, pHost: *mut c_void) }
            { symbol: cudaHostRegister, args: (ptr: *mut c_void, size: usize, flags: u32) }
            { symbol: cudaHostUnregister, args: (ptr: *mut c_void) }
            { symbol: cudaImportExternalMemory, args: (extMem_out: *mut cudaExternalMemory_t, memHandleDesc: *const c_void) }
            { symbol: cudaImportExternalSemaphore, args: (extSem_out: *mut cudaExternalSemaphore_t, semHandleDesc: *const c_void) }
            { symbol: cudaInitDevice, args: (device: i32, deviceFlags: u32, flags: u32) }
            { symbol: cudaIpcCloseMemHandle, args: (devPtr: *mut c_void) }
            { symbol: cudaIpcGetEventHandle, args: (handle: *mut cudaIpcEventHandle_t, event: cudaEvent_t) }
            { symbol: cudaIpcGetMemHandle, args: (handle: *mut cudaIpcMemHandle_t, devPtr: *mut c_void) }
            { symbol: cudaIpcOpenEventHandle, args: (event: *mut cudaEvent_t, handle: cudaIpcEventHandle_t) }
            { symbol: cudaIpcOpenMemHandle, args: (devPtr: *mut *mut c_void, handle: cudaIpcMemHandle_t, flags: u32) }
            { symbol: cudaKernelSetAttributeForDevice, args: (kernel: cudaKernel_t, attr: cudaFuncAttribute, value: i32, device: i32) }
            { symbol: cudaLaunchCooperativeKernel, args: (func: *const c_void, gridDim: dim3, blockDim: dim3, args: *mut *mut c_void, sharedMem: usize, stream: cudaStream_t) }
            { symbol: cudaLaunchCooperativeKernel_ptsz, args: (func: *const c_void, gridDim: dim3, blockDim: dim3, args: *mut *mut c_void, sharedMem: usize, stream: cudaStream_t) }
            { symbol: cudaLaunchHostFunc, args: (stream: cudaStream_t, r#fn: cudaHostFn_t, userData: *mut c_void) }
            { symbol: cudaLaunchHostFunc_ptsz, args: (stream: cudaStream_t, r#fn: cudaHostFn_t, userData: *mut c_void) }
            { symbol: cudaLaunchHostFunc_v2, args: (stream: cudaStream_t, r#fn: cudaHostFn_t, userData: *mut c_void, syncMode: u32) }
            { symbol: cudaLaunchHostFunc_v2_ptsz, args: (stream: cudaStream_t, r#fn: cudaHostFn_t, userData: *mut c_void, syncMode: u32) }
            { symbol: cudaLaunchKernel, args: (func: *const c_void, gridDim: dim3, blockDim: dim3, args: *mut *mut c_void, sharedMem: usize, stream: cudaStream_t) }
            { symbol: cudaLaunchKernelExC, args: (config: *const cudaLaunchConfig_t, func: *const c_void, args: *mut *mut c_void) }
            { symbol: cudaLaunchKernelExC_ptsz, args: (config: *const cudaLaunchConfig_t, func: *const c_void, args: *mut *mut c_void) }
            { symbol: cudaLaunchKernel_ptsz, args: (func: *const c_void, gridDim: dim3, blockDim: dim3, args: *mut *mut c_void, sharedMem: usize, stream: cudaStream_t) }
            { symbol: cudaLibraryEnumerateKernels, args: (kernels: *mut cudaKernel_t, numKernels: u32, lib: cudaLibrary_t) }
            { symbol: cudaLibraryGetGlobal, args: (dptr: *mut *mut c_void, bytes: *mut usize, library: cudaLibrary_t, name: *const c_char) }
            { symbol: cudaLibraryGetKernel, args: (pKernel: *mut cudaKernel_t, library: cudaLibrary_t, name: *const c_char) }
            { symbol: cudaLibraryGetKernelCount, args: (count: *mut u32, lib: cudaLibrary_t) }
            { symbol: cudaLibraryGetManaged, args: (dptr: *mut *mut c_void, bytes: *mut usize, library: cudaLibrary_t, name: *const c_char) }
            { symbol: cudaLibraryGetUnifiedFunction, args: (fptr: *mut *mut c_void, library: cudaLibrary_t, symbol: *const c_char) }
            { symbol: cudaLibraryLoadData, args: (library: *mut cudaLibrary_t, code: *const c_void, jitOptions: *mut cudaJitOption, jitOptionsValues: *mut *mut c_void, numJitOptions: u32, libraryOptions: *mut cudaLibraryOption, libraryOptionValues: *mut *mut c_void, numLibraryOptions: u32) }
            { symbol: cudaLibraryLoadFromFile, args: (library: *mut cudaLibrary_t, fileName: *const c_char, jitOptions: *mut cudaJitOption, jitOptionsValues: *mut *mut c_void, numJitOptions: u32, libraryOptions: *mut cudaLibraryOption, libraryOptionValues: *mut *mut c_void, numLibraryOptions: u32) }
            { symbol: cudaLibraryUnload, args: (library: cudaLibrary_t) }
            { symbol: cudaLogsCurrent, args: (iterator_out: *mut cudaLogIterator, flags: u32) }
            { symbol: cudaLogsDumpToFile, args: (iterator: *mut cudaLogIterator, pathToFile: *const c_char, flags: u32) }
            { symbol: cudaLogsDumpToMemory, args: (iterator: *mut cudaLogIterator, buffer: *mut c_char, size: *mut usize, flags: u32) }
            { symbol: cudaLogsRegisterCallback, args: (callbackFunc: cudaLogsCallback_t, userData: *mut c_void, callback_out: *mut cudaLogsCallbackHandle) }
            { symbol: cudaLogsUnregisterCallback, args: (callback: cudaLogsCallbackHandle) }
            { symbol: cudaMalloc, args: (devPtr: *mut *mut c_void, size: usize) }
            { symbol: cudaMalloc3D, args: (pitchedDevPtr: *mut cudaPitchedPtr, extent: cudaExtent) }
            { symbol: cudaMalloc3DArray, args: (array: *mut cudaArray_t, desc: *const c_void, extent: cudaExtent, flags: u32) }
            { symbol: cudaMallocArray, args: (array: *mut cudaArray_t, desc: *const c_void, width: usize, height: usize, flags: u32) }
            { symbol: cudaMallocAsync, args: (devPtr: *mut *mut c_void, size: usize, hStream: cudaStream_t) }
            { symbol: cudaMallocAsync_ptsz, args: (devPtr: *mut *mut c_void, size: usize, hStream: cudaStream_t) }
            { symbol: cudaMallocFromPoolAsync, args: (ptr: *mut *mut c_void, size: usize, memPool: cudaMemPool_t, stream: cudaStream_t) }
            { symbol: cudaMallocFromPoolAsync_ptsz, args: (ptr: *mut *mut c_void, size: usize, memPool: cudaMemPool_t, stream: cudaStream_t) }
            { symbol: cudaMallocHost, args: (ptr: *mut *mut c_void, size: usize) }
            { symbol: cudaMallocManaged, args: (devPtr: *mut *mut c_void, size: usize, flags: u32) }
            { symbol: cudaMallocMipmappedArray, args: (mipmappedArray: *mut cudaMipmappedArray_t, desc: *const c_void, extent: cudaExtent, numLevels: u32, flags: u32) }
            { symbol: cudaMallocPitch, args: (devPtr: *mut *mut c_void, pitch: *mut usize, width: usize, height: usize) }
            { symbol: cudaMemAdvise, args: (devPtr: *const c_void, count: usize, advice: cudaMemoryAdvise, location: cudaMemLocation) }
            { symbol: cudaMemDiscardAndPrefetchBatchAsync, args: (dptrs: *mut *mut c_void, sizes: *mut usize, count: usize, prefetchLocs: *mut cudaMemLocation, prefetchLocIdxs: *mut usize, numPrefetchLocs: usize, flags: u64, stream: cudaStream_t) }
            { symbol: cudaMemDiscardAndPrefetchBatchAsync_ptsz, args: (dptrs: *mut *mut c_void, sizes: *mut usize, count: usize, prefetchLocs: *mut cudaMemLocation, prefetchLocIdxs: *mut usize, numPrefetchLocs: usize, flags: u64, stream: cudaStream_t) }
            { symbol: cudaMemDiscardBatchAsync, args: (dptrs: *mut *mut c_void, sizes: *mut usize, count: usize, flags: u64, stream: cudaStream_t) }
            { symbol: cudaMemDiscardBatchAsync_ptsz, args: (dptrs: *mut *mut c_void, sizes: *mut usize, count: usize, flags: u64, stream: cudaStream_t) }
            { symbol: cudaMemGetDefaultMemPool, args: (memPool: *mut cudaMemPool_t, location: *mut cudaMemLocation, r#type: cudaMemAllocationType) }
            { symbol: cudaMemGetInfo, args: (free: *mut usize, total: *mut usize) }
            { symbol: cudaMemGetLocationInfo, args: (devPtr: *mut c_void, size: usize, summaryGranularity: usize, samplingGranularity: usize, location_out: *mut cudaMemLocation) }
            { symbol: cudaMemGetMemPool, args: (memPool: *mut cudaMemPool_t, location: *mut cudaMemLocation, r#type: cudaMemAllocationType) }
            { symbol: cudaMemPoolCreate, args: (memPool: *mut cudaMemPool_t, poolProps: *const c_void) }
            { symbol: cudaMemPoolDestroy, args: (memPool: cudaMemPool_t) }
            { symbol: cudaMemPoolExportPointer, args: (exportData: *mut c_void, ptr: *mut c_void) }
            { symbol: cudaMemPoolExportToShareableHandle, args: (shareableHandle: *mut c_void, memPool: cudaMemPool_t, handleType: cudaMemAllocationHandleType, flags: u32) }
            { symbol: cudaMemPoolGetAccess, args: (flags: *mut cudaMemAccessFlags, memPool: cudaMemPool_t, location: *mut cudaMemLocation) }
            { symbol: cudaMemPoolGetAttribute, args: (memPool: cudaMemPool_t, attr: cudaMemPoolAttr, value: *mut c_void) }
            { symbol: cudaMemPoolImportFromShareableHandle, args: (memPool: *mut cudaMemPool_t, shareableHandle: *mut c_void, handleType: cudaMemAllocationHandleType, flags: u32) }
            { symbol: cudaMemPoolImportPointer, args: (ptr: *mut *mut c_void, memPool: cudaMemPool_t, exportData: *mut c_void) }
            { symbol: cudaMemPoolSetAccess, args: (memPool: cudaMemPool_t, descList: *const c_void, count: usize) }
            { symbol: cudaMemPoolSetAttribute, args: (memPool: cudaMemPool_t, attr: cudaMemPoolAttr, value: *mut c_void) }
            { symbol: cudaMemPoolTrimTo, args: (memPool: cudaMemPool_t, minBytesToKeep: usize) }
            { symbol: cudaMemPrefetchAsync, args: (devPtr: *const c_void, count: usize, location: cudaMemLocation, flags: u32, stream: cudaStream_t) }
            { symbol: cudaMemPrefetchAsync_ptsz, args: (devPtr: *const c_void, count: usize, location: cudaMemLocation, flags: u32, stream: cudaStream_t) }
            { symbol: cudaMemPrefetchBatchAsync, args: (dptrs: *mut *mut c_void, sizes: *mut usize, count: usize, prefetchLocs: *mut cudaMemLocation, prefetchLocIdxs: *mut usize, numPrefetchLocs: usize, flags: u64, stream: cudaStream_t) }
            { symbol: cudaMemPrefetchBatchAsync_ptsz, args: (dptrs: *mut *mut c_void, sizes: *mut usize, count: usize, prefetchLocs: *mut cudaMemLocation, prefetchLocIdxs: *mut usize, numPrefetchLocs: usize, flags: u64, stream: cudaStream_t) }
            { symbol: cudaMemRangeGetAttribute, args: (data: *mut c_void, dataSize: usize, attribute: cudaMemRangeAttribute, devPtr: *const c_void, count: usize) }
            { symbol: cudaMemRangeGetAttributes, args: (data: *mut *mut c_void, dataSizes: *mut usize, attributes: *mut cudaMemRangeAttribute, numAttributes: usize, devPtr: *const c_void, count: usize) }
            { symbol: cudaMemSetMemPool, args: (location: *mut cudaMemLocation, r#type: cudaMemAllocationType, memPool: cudaMemPool_t) }
            { symbol: cudaMemcpy, args: (dst: *mut c_void, src: *const c_void, count: usize, kind: cudaMemcpyKind) }
            { symbol: cudaMemcpy2D, args: (dst: *mut c_void, dpitch: usize, src: *const c_void, spitch: usize, width: usize, height: usize, kind: cudaMemcpyKind) }
            { symbol: cudaMemcpy2DArrayToArray, args: (dst: cudaArray_t, wOffsetDst: usize, hOffsetDst: usize, src: cudaArray_const_t, wOffsetSrc: usize, hOffsetSrc: usize, width: usize, height: usize, kind: cudaMemcpyKind) }
            { symbol: cudaMemcpy2DArrayToArray_ptds, args: (dst: cudaArray_t, wOffsetDst: usize, hOffsetDst: usize, src: cudaArray_const_t, wOffsetSrc: usize, hOffsetSrc: usize, width: usize, height: usize, kind: cudaMemcpyKind) }
            { symbol: cudaMemcpy2DAsync, args: (dst: *mut c_void, dpitch: usize, src: *const c_void, spitch: usize, width: usize, height: usize, kind: cudaMemcpyKind, stream: cudaStream_t) }
            { symbol: cudaMemcpy2DAsync_ptsz, args: (dst: *mut c_void, dpitch: usize, src: *const c_void, spitch: usize, width: usize, height: usize, kind: cudaMemcpyKind, stream: cudaStream_t) }
            { symbol: cudaMemcpy2DFromArray, args: (dst: *mut c_void, dpitch: usize, src: cudaArray_const_t, wOffset: usize, hOffset: usize, width: usize, height: usize, kind: cudaMemcpyKind) }
            { symbol: cudaMemcpy2DFromArrayAsync, args: (dst: *mut c_void, dpitch: usize, src: cudaArray_const_t, wOffset: usize, hOffset: usize, width: usize, height: usize, kind: cudaMemcpyKind, stream: cudaStream_t) }
            { symbol: cudaMemcpy2DFromArrayAsync_ptsz, args: (dst: *mut c_void, dpitch: usize, src: cudaArray_const_t, wOffset: usize, hOffset: usize, width: usize, height: usize, kind: cudaMemcpyKind, stream: cudaStream_t) }
            { symbol: cudaMemcpy2DFromArray_ptds, args: (dst: *mut c_void, dpitch: usize, src: cudaArray_const_t, wOffset: usize, hOffset: usize, width: usize, height: usize, kind: cudaMemcpyKind) }
            { symbol: cudaMemcpy2DToArray, args: (dst: cudaArray_t, wOffset: usize, hOffset: usize, src: *const c_void, spitch: usize, width: usize, height: usize, kind: cudaMemcpyKind) }
            { symbol: cudaMemcpy2DToArrayAsync, args: (dst: cudaArray_t, wOffset: usize, hOffset: usize, src: *const c_void, spitch: usize, width: usize, height: usize, kind: cudaMemcpyKind, stream: cudaStream_t) }
            { symbol: cudaMemcpy2DToArrayAsync_ptsz, args: (dst: cudaArray_t, wOffset: usize, hOffset: usize, src: *const c_void, spitch: usize, width: usize, height: usize, kind: cudaMemcpyKind, stream: cudaStream_t) }
            { symbol: cudaMemcpy2DToArray_ptds, args: (dst: cudaArray_t, wOffset: usize, hOffset: usize, src: *const c_void, spitch: usize, width: usize, height: usize, kind: cudaMemcpyKind) }
            { symbol: cudaMemcpy2D_ptds, args: (dst: *mut c_void, dpitch: usize, src: *const c_void, spitch: usize, width: usize, height: usize, kind: cudaMemcpyKind) }
            { symbol: cudaMemcpy3D, args: (p: *const c_void) }
            { symbol: cudaMemcpy3DAsync, args: (p: *const c_void, stream: cudaStream_t) }
            { symbol: cudaMemcpy3DAsync_ptsz, args: (p: *const c_void, stream: cudaStream_t) }
            { symbol: cudaMemcpy3DBatchAsync, args: (numOps: usize, opList: *mut c_void, flags: u64, stream: cudaStream_t) }
            { symbol: cudaMemcpy3DBatchAsync_ptsz, args: (numOps: usize, opList: *mut c_void, flags: u64, stream: cudaStream_t) }
            { symbol: cudaMemcpy3DPeer, args: (p: *const c_void) }
            { symbol: cudaMemcpy3DPeerAsync, args: (p: *const c_void, stream: cudaStream_t) }
            { symbol: cudaMemcpy3DPeerAsync_ptsz, args: (p: *const c_void, stream: cudaStream_t) }
            { symbol: cudaMemcpy3DPeer_ptds, args: (p: *const c_void) }
            { symbol: cudaMemcpy3DWithAttributesAsync, args: (op: *mut c_void, flags: u64, stream: cudaStream_t) }
            { symbol: cudaMemcpy3DWithAttributesAsync_ptsz, args: (op: *mut c_void, flags: u64, stream: cudaStream_t) }
            { symbol: cudaMemcpy3D_ptds, args: (p: *const c_void) }
            { symbol: cudaMemcpyArrayToArray, args: (dst: cudaArray_t, wOffsetDst: usize, hOffsetDst: usize, src: cudaArray_const_t, wOffsetSrc: usize, hOffsetSrc: usize, count: usize, kind: cudaMemcpyKind) }
            { symbol: cudaMemcpyArrayToArray_ptds, args: (dst: cudaArray_t, wOffsetDst: usize, hOffsetDst: usize, src: cudaArray_const_t, wOffsetSrc: usize, hOffsetSrc: usize, count: usize, kind: cudaMemcpyKind) }
            { symbol: cudaMemcpyAsync, args: (dst: *mut c_void, src: *const c_void, count: usize, kind: cudaMemcpyKind, stream: cudaStream_t) }
            { symbol: cudaMemcpyAsync_ptsz, args: (dst: *mut c_void, src: *const c_void, count: usize, kind: cudaMemcpyKind, stream: cudaStream_t) }
            { symbol: cudaMemcpyBatchAsync, args: (dsts: *const *mut c_void, srcs: *const *const c_void, sizes: *const usize, count: usize, attrs: *mut c_void, attrsIdxs: *mut usize, numAttrs: usize, stream: cudaStream_t) }
            { symbol: cudaMemcpyBatchAsync_ptsz, args: (dsts: *const *mut c_void, srcs: *const *const c_void, sizes: *const usize, count: usize, attrs: *mut c_void, attrsIdxs: *mut usize, numAttrs: usize, stream: cudaStream_t) }
            { symbol: cudaMemcpyFromArray, args: (dst: *mut c_void, src: cudaArray_const_t, wOffset: usize, hOffset: usize, count: usize, kind: cudaMemcpyKind) }
            { symbol: cudaMemcpyFromArrayAsync, args: (dst: *mut c_void, src: cudaArray_const_t, wOffset: usize, hOffset: usize, count: usize, kind: cudaMemcpyKind, stream: cudaStream_t) }
            { symbol: cudaMemcpyFromArrayAsync_ptsz, args: (dst: *mut c_void, src: cudaArray_const_t, wOffset: usize, hOffset: usize, count: usize, kind: cudaMemcpyKind, stream: cudaStream_t) }
            { symbol: cudaMemcpyFromArray_ptds, args: (dst: *mut c_void, src: cudaArray_const_t, wOffset: usize, hOffset: usize, count: usize, kind: cudaMemcpyKind) }
            { symbol: cudaMemcpyFromSymbol, args: (dst: *mut c_void, symbol: *const c_void, count: usize, offset: usize, kind: cudaMemcpyKind) }
            { symbol: cudaMemcpyFromSymbolAsync, args: (dst: *mut c_void, symbol: *const c_void, count: usize, offset: usize, kind: cudaMemcpyKind, stream: cudaStream_t) }
            { symbol: cudaMemcpyFromSymbolAsync_ptsz, args: (dst: *mut c_void, symbol: *const c_void, count: usize, offset: usize, kind: cudaMemcpyKind, stream: cudaStream_t) }
            { symbol: cudaMemcpyFromSymbol_ptds, args: (dst: *mut c_void, symbol: *const c_void, count: usize, offset: usize, kind: cudaMemcpyKind) }
            { symbol: cudaMemcpyPeer, args: (dst: *mut c_void, dstDevice: i32, src: *const c_void, srcDevice: i32, count: usize) }
            { symbol: cudaMemcpyPeerAsync, args: (dst: *mut c_void, dstDevice: i32, src: *const c_void, srcDevice: i32, count: usize, stream: cudaStream_t) }
            { symbol: cudaMemcpyToArray, args: (dst: cudaArray_t, wOffset: usize, hOffset: usize, src: *const c_void, count: usize, kind: cudaMemcpyKind) }
            { symbol: cudaMemcpyToArrayAsync, args: (dst: cudaArray_t, wOffset: usize, hOffset: usize, src: *const c_void, count: usize, kind: cudaMemcpyKind, stream: cudaStream_t) }
            { symbol: cudaMemcpyToArrayAsync_ptsz, args: (dst: cudaArray_t, wOffset: usize, hOffset: usize, src: *const c_void, count: usize, kind: cudaMemcpyKind, stream: cudaStream_t) }
            { symbol: cudaMemcpyToArray_ptds, args: (dst: cudaArray_t, wOffset: usize, hOffset: usize, src: *const c_void, count: usize, kind: cudaMemcpyKind) }
            { symbol: cudaMemcpyToSymbol, args: (symbol: *const c_void, src: *const c_void, count: usize, offset: usize, kind: cudaMemcpyKind) }
            { symbol: cudaMemcpyToSymbolAsync, args: (symbol: *const c_void, src: *const c_void, count: usize, offset: usize, kind: cudaMemcpyKind, stream: cudaStream_t) }
            { symbol: cudaMemcpyToSymbolAsync_ptsz, args: (symbol: *const c_void, src: *const c_void, count: usize, offset: usize, kind: cudaMemcpyKind, stream: cudaStream_t) }
            { symbol: cudaMemcpyToSymbol_ptds, args: (symbol: *const c_void, src: *const c_void, count: usize, offset: usize, kind: cudaMemcpyKind) }
            { symbol: cudaMemcpyWithAttributesAsync, args: (dst: *mut c_void, src: *const c_void, size: usize, attr: *mut c_void, stream: cudaStream_t) }
            { symbol: cudaMemcpyWithAttributesAsync_ptsz, args: (dst: *mut c_void, src: *const c_void, size: usize, attr: *mut c_void, stream: cudaStream_t) }
            { symbol: cudaMemcpy_ptds, args: (dst: *mut c_void, src: *const c_void, count: usize, kind: cudaMemcpyKind) }
            { symbol: cudaMemset, args: (devPtr: *mut c_void, value: i32, count: usize) }
            { symbol: cudaMemset2D, args: (devPtr: *mut c_void, pitch: usize, value: i32, width: usize, height: usize) }
            { symbol: cudaMemset2DAsync, args: (devPtr: *mut c_void, pitch: usize, value: i32, width: usize, height: usize, stream: cudaStream_t) }
            { symbol: cudaMemset2DAsync_ptsz, args: (devPtr: *mut c_void, pitch: usize, value: i32, width: usize, height: usize, stream: cudaStream_t) }
            { symbol: cudaMemset2D_ptds, args: (devPtr: *mut c_void, pitch: usize, value: i32, width: usize, height: usize) }
            { symbol: cudaMemset3D, args: (pitchedDevPtr: cudaPitchedPtr, value: i32, extent: cudaExtent) }
            { symbol: cudaMemset3DAsync, args: (pitchedDevPtr: cudaPitchedPtr, value: i32, extent: cudaExtent, stream: cudaStream_t) }
            { symbol: cudaMemset3DAsync_ptsz, args: (pitchedDevPtr: cudaPitchedPtr, value: i32, extent: cudaExtent, stream: cudaStream_t) }
            { symbol: cudaMemset3D_ptds, args: (pitchedDevPtr: cudaPitchedPtr, value: i32, extent: cudaExtent) }
            { symbol: cudaMemsetAsync, args: (devPtr: *mut c_void, value: i32, count: usize, stream: cudaStream_t) }
            { symbol: cudaMemsetAsync_ptsz, args: (devPtr: *mut c_void, value: i32, count: usize, stream: cudaStream_t) }
            { symbol: cudaMemset_ptds, args: (devPtr: *mut c_void, value: i32, count: usize) }
            { symbol: cudaMipmappedArrayGetMemoryRequirements, args: (memoryRequirements: *mut c_void, mipmap: cudaMipmappedArray_t, device: i32) }
            { symbol: cudaMipmappedArrayGetSparseProperties, args: (sparseProperties: *mut c_void, mipmap: cudaMipmappedArray_t) }
            { symbol: cudaOccupancyAvailableDynamicSMemPerBlock, args: (dynamicSmemSize: *mut usize, func: *const c_void, numBlocks: i32, blockSize: i32) }
            { symbol: cudaOccupancyMaxActiveBlocksPerMultiprocessor, args: (numBlocks: *mut i32, func: *const c_void, blockSize: i32, dynamicSMemSize: usize) }
            { symbol: cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, args: (numBlocks: *mut i32, func: *const c_void, blockSize: i32, dynamicSMemSize: usize, flags: u32) }
            { symbol: cudaOccupancyMaxActiveClusters, args: (numClusters: *mut i32, func: *const c_void, launchConfig: *const cudaLaunchConfig_t) }
            { symbol: cudaOccupancyMaxPotentialClusterSize, args: (clusterSize: *mut i32, func: *const c_void, launchConfig: *const cudaLaunchConfig_t) }
            { symbol: cudaPeekAtLastError, args: () }
            { symbol: cudaPointerGetAttributes, args: (attributes: *mut cudaPointerAttributes, ptr: *const c_void) }
            { symbol: cudaProfilerStart, args: () }
            { symbol: cudaProfilerStop, args: () }
            { symbol: cudaRuntimeGetVersion, args: (runtimeVersion: *mut i32) }
            { symbol: cudaSetDevice, args: (device: i32) }
            { symbol: cudaSetDeviceFlags, args: (flags: u32) }
            { symbol: cudaSetValidDevices, args: (device_arr: *mut i32, len: i32) }
            { symbol: cudaSignalExternalSemaphoresAsync, args: (extSemArray: *const cudaExternalSemaphore_t, paramsArray: *const c_void, numExtSems: u32, stream: cudaStream_t) }
            { symbol: cudaSignalExternalSemaphoresAsync_ptsz, args: (extSemArray: *const cudaExternalSemaphore_t, paramsArray: *const c_void, numExtSems: u32, stream: cudaStream_t) }
            { symbol: cudaStreamAddCallback, args: (stream: cudaStream_t, callback: cudaStreamCallback_t, userData: *mut c_void, flags: u32) }
            { symbol: cudaStreamAddCallback_ptsz, args: (stream: cudaStream_t, callback: cudaStreamCallback_t, userData: *mut c_void, flags: u32) }
            { symbol: cudaStreamAttachMemAsync, args: (stream: cudaStream_t, devPtr: *mut c_void, length: usize, flags: u32) }
            { symbol: cudaStreamAttachMemAsync_ptsz, args: (stream: cudaStream_t, devPtr: *mut c_void, length: usize, flags: u32) }
            { symbol: cudaStreamBeginCapture, args: (stream: cudaStream_t, mode: cudaStreamCaptureMode) }
            { symbol: cudaStreamBeginCaptureToGraph, args: (stream: cudaStream_t, graph: cudaGraph_t, dependencies: *const cudaGraphNode_t, dependencyData: *const c_void, numDependencies: usize, mode: cudaStreamCaptureMode) }
            { symbol: cudaStreamBeginCaptureToGraph_ptsz, args: (stream: cudaStream_t, graph: cudaGraph_t, dependencies: *const cudaGraphNode_t, dependencyData: *const c_void, numDependencies: usize, mode: cudaStreamCaptureMode) }
            { symbol: cudaStreamBeginCapture_ptsz, args: (stream: cudaStream_t, mode: cudaStreamCaptureMode) }
            { symbol: cudaStreamBeginRecaptureToGraph, args: (stream: cudaStream_t, mode: cudaStreamCaptureMode, graph: cudaGraph_t, callbackData: *mut c_void) }
            { symbol: cudaStreamBeginRecaptureToGraph_ptsz, args: (stream: cudaStream_t, mode: cudaStreamCaptureMode, graph: cudaGraph_t, callbackData: *mut c_void) }
            { symbol: cudaStreamCopyAttributes, args: (dstStream: cudaStream_t, srcStream: cudaStream_t) }
            { symbol: cudaStreamCopyAttributes_ptsz, args: (dst: cudaStream_t, src: cudaStream_t) }
            { symbol: cudaStreamCreate, args: (pStream: *mut cudaStream_t) }
            { symbol: cudaStreamCreateWithFlags, args: (pStream: *mut cudaStream_t, flags: u32) }
            { symbol: cudaStreamCreateWithPriority, args: (pStream: *mut cudaStream_t, flags: u32, priority: i32) }
            { symbol: cudaStreamDestroy, args: (stream: cudaStream_t) }
            { symbol: cudaStreamEndCapture, args: (stream: cudaStream_t, pGraph: *mut cudaGraph_t) }
            { symbol: cudaStreamEndCapture_ptsz, args: (stream: cudaStream_t, pGraph: *mut cudaGraph_t) }
            { symbol: cudaStreamGetAttribute, args: (stream: cudaStream_t, attr: cudaLaunchAttributeID, value: *mut c_void) }
            { symbol: cudaStreamGetAttribute_ptsz, args: (hStream: cudaStream_t, attr: cudaLaunchAttributeID, value_out: *mut c_void) }
            { symbol: cudaStreamGetCaptureInfo, args: (stream: cudaStream_t, captureStatus_out: *mut cudaStreamCaptureStatus, id_out: *mut u64, graph_out: *mut cudaGraph_t, dependencies_out: *mut *const cudaGraphNode_t, edgeData_out: *mut *const c_void, numDependencies_out: *mut usize) }
            { symbol: cudaStreamGetCaptureInfo_ptsz, args: (stream: cudaStream_t, captureStatus_out: *mut cudaStreamCaptureStatus, id_out: *mut u64, graph_out: *mut cudaGraph_t, dependencies_out: *mut *const cudaGraphNode_t, edgeData_out: *mut *const c_void, numDependencies_out: *mut usize) }
            { symbol: cudaStreamGetDevResource, args: (hStream: cudaStream_t, resource: *mut c_void, r#type: cudaDevResourceType) }
            { symbol: cudaStreamGetDevResource_ptsz, args: (hStream: cudaStream_t, resource: *mut c_void, r#type: cudaDevResourceType) }
            { symbol: cudaStreamGetDevice, args: (hStream: cudaStream_t, device: *mut i32) }
            { symbol: cudaStreamGetDevice_ptsz, args: (hStream: cudaStream_t, device: *mut i32) }
            { symbol: cudaStreamGetFlags, args: (hStream: cudaStream_t, flags: *mut u32) }
            { symbol: cudaStreamGetFlags_ptsz, args: (hStream: cudaStream_t, flags: *mut u32) }
            { symbol: cudaStreamGetId, args: (hStream: cudaStream_t, streamId: *mut u64) }
            { symbol: cudaStreamGetId_ptsz, args: (hStream: cudaStream_t, streamId: *mut u64) }
            { symbol: cudaStreamGetPriority, args: (hStream: cudaStream_t, priority: *mut i32) }
            { symbol: cudaStreamGetPriority_ptsz, args: (hStream: cudaStream_t, priority: *mut i32) }
            { symbol: cudaStreamIsCapturing, args: (stream: cudaStream_t, pCaptureStatus: *mut cudaStreamCaptureStatus) }
            { symbol: cudaStreamIsCapturing_ptsz, args: (stream: cudaStream_t, pCaptureStatus: *mut cudaStreamCaptureStatus) }
            { symbol: cudaStreamQuery, args: (stream: cudaStream_t) }
            { symbol: cudaStreamQuery_ptsz, args: (stream: cudaStream_t) }
            { symbol: cudaStreamSetAttribute, args: (stream: cudaStream_t, attr: cudaLaunchAttributeID, param: *const c_void) }
            { symbol: cudaStreamSetAttribute_ptsz, args: (hStream: cudaStream_t, attr: cudaLaunchAttributeID, value: *const c_void) }
            { symbol: cudaStreamSynchronize, args: (stream: cudaStream_t) }
            { symbol: cudaStreamSynchronize_ptsz, args: (stream: cudaStream_t) }
            { symbol: cudaStreamUpdateCaptureDependencies, args: (stream: cudaStream_t, dependencies: *mut cudaGraphNode_t, dependencyData: *const c_void, numDependencies: usize, flags: u32) }
            { symbol: cudaStreamUpdateCaptureDependencies_ptsz, args: (stream: cudaStream_t, dependencies: *mut cudaGraphNode_t, dependencyData: *const c_void, numDependencies: usize, flags: u32) }
            { symbol: cudaStreamWaitEvent, args: (stream: cudaStream_t, event: cudaEvent_t, flags: u32) }
            { symbol: cudaStreamWaitEvent_ptsz, args: (stream: cudaStream_t, event: cudaEvent_t, flags: u32) }
            { symbol: cudaThreadExchangeStreamCaptureMode, args: (mode: *mut cudaStreamCaptureMode) }
            { symbol: cudaUserObjectCreate, args: (object_out: *mut cudaUserObject_t, ptr: *mut c_void, destroy: cudaHostFn_t, initialRefcount: u32, flags: u32) }
            { symbol: cudaUserObjectRelease, args: (object: cudaUserObject_t, count: u32) }
            { symbol: cudaUserObjectRetain, args: (object: cudaUserObject_t, count: u32) }
            { symbol: cudaWaitExternalSemaphoresAsync, args: (extSemArray: *const cudaExternalSemaphore_t, paramsArray: *const c_void, numExtSems: u32, stream: cudaStream_t) }
            { symbol: cudaWaitExternalSemaphoresAsync_ptsz, args: (extSemArray: *const cudaExternalSemaphore_t, paramsArray: *const c_void, numExtSems: u32, stream: cudaStream_t) }
        }
    };
}
