//! Every function that NVIDIA's driver library exports, in every variant.
//!
//! Generated from the headers of nvidia-cuda-runtime==13.5.37 by `cargo xtask codegen`. Do not edit.

/// Calls the macro named by the argument once, with every row of the table, sorted by symbol:
/// `{ id: …, symbol: …, family: "…", since: …, stream: Any|Legacy|PerThread, args: (name: type, …) }`.
///
/// The types are those of `driver::types`, which the caller has to have in scope.
#[macro_export]
macro_rules! for_each_driver_function {
    ($($callback:tt)+) => {
        $($callback)+! {
            { id: 0, symbol: cuArray3DCreate, family: "cuArray3DCreate", since: 2000, stream: Any, args: (pHandle: *mut CUarray, pAllocateArray: *const CUDA_ARRAY3D_DESCRIPTOR_v1) }
            { id: 1, symbol: cuArray3DCreate_v2, family: "cuArray3DCreate", since: 3020, stream: Any, args: (pHandle: *mut CUarray, pAllocateArray: *const CUDA_ARRAY3D_DESCRIPTOR) }
            { id: 2, symbol: cuArray3DGetDescriptor, family: "cuArray3DGetDescriptor", since: 2000, stream: Any, args: (pArrayDescriptor: *mut CUDA_ARRAY3D_DESCRIPTOR_v1, hArray: CUarray) }
            { id: 3, symbol: cuArray3DGetDescriptor_v2, family: "cuArray3DGetDescriptor", since: 3020, stream: Any, args: (pArrayDescriptor: *mut CUDA_ARRAY3D_DESCRIPTOR, hArray: CUarray) }
            { id: 4, symbol: cuArrayCreate, family: "cuArrayCreate", since: 2000, stream: Any, args: (pHandle: *mut CUarray, pAllocateArray: *const CUDA_ARRAY_DESCRIPTOR_v1) }
            { id: 5, symbol: cuArrayCreate_v2, family: "cuArrayCreate", since: 3020, stream: Any, args: (pHandle: *mut CUarray, pAllocateArray: *const CUDA_ARRAY_DESCRIPTOR) }
            { id: 6, symbol: cuArrayDestroy, family: "cuArrayDestroy", since: 2000, stream: Any, args: (hArray: CUarray) }
            { id: 7, symbol: cuArrayGetDescriptor, family: "cuArrayGetDescriptor", since: 2000, stream: Any, args: (pArrayDescriptor: *mut CUDA_ARRAY_DESCRIPTOR_v1, hArray: CUarray) }
            { id: 8, symbol: cuArrayGetDescriptor_v2, family: "cuArrayGetDescriptor", since: 3020, stream: Any, args: (pArrayDescriptor: *mut CUDA_ARRAY_DESCRIPTOR, hArray: CUarray) }
            { id: 9, symbol: cuArrayGetMemoryRequirements, family: "cuArrayGetMemoryRequirements", since: 11060, stream: Any, args: (memoryRequirements: *mut c_void, array: CUarray, device: CUdevice) }
            { id: 10, symbol: cuArrayGetPlane, family: "cuArrayGetPlane", since: 11020, stream: Any, args: (pPlaneArray: *mut CUarray, hArray: CUarray, planeIdx: u32) }
            { id: 11, symbol: cuArrayGetSparseProperties, family: "cuArrayGetSparseProperties", since: 11010, stream: Any, args: (sparseProperties: *mut c_void, array: CUarray) }
            { id: 12, symbol: cuCheckpointOperationComplete, family: "cuCheckpointOperationComplete", since: 13040, stream: Any, args: (handle: CUcheckpointOperationHandle) }
            { id: 13, symbol: cuCheckpointProcessCheckpoint, family: "cuCheckpointProcessCheckpoint", since: 12080, stream: Any, args: (pid: i32, args: *mut c_void) }
            { id: 14, symbol: cuCheckpointProcessGetRestoreThreadId, family: "cuCheckpointProcessGetRestoreThreadId", since: 12080, stream: Any, args: (pid: i32, tid: *mut i32) }
            { id: 15, symbol: cuCheckpointProcessGetState, family: "cuCheckpointProcessGetState", since: 12080, stream: Any, args: (pid: i32, state: *mut CUprocessState) }
            { id: 16, symbol: cuCheckpointProcessLock, family: "cuCheckpointProcessLock", since: 12080, stream: Any, args: (pid: i32, args: *mut c_void) }
            { id: 17, symbol: cuCheckpointProcessRestore, family: "cuCheckpointProcessRestore", since: 12080, stream: Any, args: (pid: i32, args: *mut c_void) }
            { id: 18, symbol: cuCheckpointProcessUnlock, family: "cuCheckpointProcessUnlock", since: 12080, stream: Any, args: (pid: i32, args: *mut c_void) }
            { id: 19, symbol: cuCoredumpDeregisterCompleteCallback, family: "cuCoredumpDeregisterCompleteCallback", since: 13020, stream: Any, args: (callback: CUcoredumpCallbackHandle) }
            { id: 20, symbol: cuCoredumpDeregisterStartCallback, family: "cuCoredumpDeregisterStartCallback", since: 13020, stream: Any, args: (callback: CUcoredumpCallbackHandle) }
            { id: 21, symbol: cuCoredumpGetAttribute, family: "cuCoredumpGetAttribute", since: 12010, stream: Any, args: (attrib: CUcoredumpSettings, value: *mut c_void, size: *mut usize) }
            { id: 22, symbol: cuCoredumpGetAttributeGlobal, family: "cuCoredumpGetAttributeGlobal", since: 12010, stream: Any, args: (attrib: CUcoredumpSettings, value: *mut c_void, size: *mut usize) }
            { id: 23, symbol: cuCoredumpRegisterCompleteCallback, family: "cuCoredumpRegisterCompleteCallback", since: 13020, stream: Any, args: (callback: CUcoredumpStatusCallback, userData: *mut c_void, callbackOut: *mut CUcoredumpCallbackHandle) }
            { id: 24, symbol: cuCoredumpRegisterStartCallback, family: "cuCoredumpRegisterStartCallback", since: 13020, stream: Any, args: (callback: CUcoredumpStatusCallback, userData: *mut c_void, callbackOut: *mut CUcoredumpCallbackHandle) }
            { id: 25, symbol: cuCoredumpSetAttribute, family: "cuCoredumpSetAttribute", since: 12010, stream: Any, args: (attrib: CUcoredumpSettings, value: *mut c_void, size: *mut usize) }
            { id: 26, symbol: cuCoredumpSetAttributeGlobal, family: "cuCoredumpSetAttributeGlobal", since: 12010, stream: Any, args: (attrib: CUcoredumpSettings, value: *mut c_void, size: *mut usize) }
            { id: 27, symbol: cuCtxAttach, family: "cuCtxAttach", since: 2000, stream: Any, args: (pctx: *mut CUcontext, flags: u32) }
            { id: 28, symbol: cuCtxCreate, family: "cuCtxCreate", since: 2000, stream: Any, args: (pctx: *mut CUcontext, flags: u32, dev: CUdevice) }
            { id: 29, symbol: cuCtxCreate_v2, family: "cuCtxCreate", since: 3020, stream: Any, args: (pctx: *mut CUcontext, flags: u32, dev: CUdevice) }
            { id: 30, symbol: cuCtxCreate_v3, family: "cuCtxCreate", since: 11040, stream: Any, args: (pctx: *mut CUcontext, paramsArray: *mut c_void, numParams: i32, flags: u32, dev: CUdevice) }
            { id: 31, symbol: cuCtxCreate_v4, family: "cuCtxCreate", since: 12050, stream: Any, args: (pctx: *mut CUcontext, ctxCreateParams: *mut c_void, flags: u32, dev: CUdevice) }
            { id: 32, symbol: cuCtxDestroy, family: "cuCtxDestroy", since: 2000, stream: Any, args: (ctx: CUcontext) }
            { id: 33, symbol: cuCtxDestroy_v2, family: "cuCtxDestroy", since: 4000, stream: Any, args: (ctx: CUcontext) }
            { id: 34, symbol: cuCtxDetach, family: "cuCtxDetach", since: 2000, stream: Any, args: (ctx: CUcontext) }
            { id: 35, symbol: cuCtxDisablePeerAccess, family: "cuCtxDisablePeerAccess", since: 4000, stream: Any, args: (peerContext: CUcontext) }
            { id: 36, symbol: cuCtxEnablePeerAccess, family: "cuCtxEnablePeerAccess", since: 4000, stream: Any, args: (peerContext: CUcontext, Flags: u32) }
            { id: 37, symbol: cuCtxFromGreenCtx, family: "cuCtxFromGreenCtx", since: 12040, stream: Any, args: (pContext: *mut CUcontext, hCtx: CUgreenCtx) }
            { id: 38, symbol: cuCtxGetApiVersion, family: "cuCtxGetApiVersion", since: 3020, stream: Any, args: (ctx: CUcontext, version: *mut u32) }
            { id: 39, symbol: cuCtxGetCacheConfig, family: "cuCtxGetCacheConfig", since: 3020, stream: Any, args: (pconfig: *mut CUfunc_cache) }
            { id: 40, symbol: cuCtxGetCurrent, family: "cuCtxGetCurrent", since: 4000, stream: Any, args: (pctx: *mut CUcontext) }
            { id: 41, symbol: cuCtxGetDevResource, family: "cuCtxGetDevResource", since: 12040, stream: Any, args: (hCtx: CUcontext, resource: *mut c_void, r#type: CUdevResourceType) }
            { id: 42, symbol: cuCtxGetDevice, family: "cuCtxGetDevice", since: 2000, stream: Any, args: (device: *mut CUdevice) }
            { id: 43, symbol: cuCtxGetDevice_v2, family: "cuCtxGetDevice", since: 13000, stream: Any, args: (device: *mut CUdevice, ctx: CUcontext) }
            { id: 44, symbol: cuCtxGetExecAffinity, family: "cuCtxGetExecAffinity", since: 11040, stream: Any, args: (pExecAffinity: *mut c_void, r#type: CUexecAffinityType) }
            { id: 45, symbol: cuCtxGetFlags, family: "cuCtxGetFlags", since: 7000, stream: Any, args: (flags: *mut u32) }
            { id: 46, symbol: cuCtxGetId, family: "cuCtxGetId", since: 12000, stream: Any, args: (ctx: CUcontext, ctxId: *mut u64) }
            { id: 47, symbol: cuCtxGetLimit, family: "cuCtxGetLimit", since: 3010, stream: Any, args: (pvalue: *mut usize, limit: CUlimit) }
            { id: 48, symbol: cuCtxGetSharedMemConfig, family: "cuCtxGetSharedMemConfig", since: 4020, stream: Any, args: (pConfig: *mut CUsharedconfig) }
            { id: 49, symbol: cuCtxGetStreamPriorityRange, family: "cuCtxGetStreamPriorityRange", since: 5050, stream: Any, args: (leastPriority: *mut i32, greatestPriority: *mut i32) }
            { id: 50, symbol: cuCtxPopCurrent, family: "cuCtxPopCurrent", since: 2000, stream: Any, args: (pctx: *mut CUcontext) }
            { id: 51, symbol: cuCtxPopCurrent_v2, family: "cuCtxPopCurrent", since: 4000, stream: Any, args: (pctx: *mut CUcontext) }
            { id: 52, symbol: cuCtxPushCurrent, family: "cuCtxPushCurrent", since: 2000, stream: Any, args: (ctx: CUcontext) }
            { id: 53, symbol: cuCtxPushCurrent_v2, family: "cuCtxPushCurrent", since: 4000, stream: Any, args: (ctx: CUcontext) }
            { id: 54, symbol: cuCtxRecordEvent, family: "cuCtxRecordEvent", since: 12050, stream: Any, args: (hCtx: CUcontext, hEvent: CUevent) }
            { id: 55, symbol: cuCtxResetPersistingL2Cache, family: "cuCtxResetPersistingL2Cache", since: 11000, stream: Any, args: () }
            { id: 56, symbol: cuCtxSetCacheConfig, family: "cuCtxSetCacheConfig", since: 3020, stream: Any, args: (config: CUfunc_cache) }
            { id: 57, symbol: cuCtxSetCurrent, family: "cuCtxSetCurrent", since: 4000, stream: Any, args: (ctx: CUcontext) }
            { id: 58, symbol: cuCtxSetFlags, family: "cuCtxSetFlags", since: 12010, stream: Any, args: (flags: u32) }
            { id: 59, symbol: cuCtxSetLimit, family: "cuCtxSetLimit", since: 3010, stream: Any, args: (limit: CUlimit, value: usize) }
            { id: 60, symbol: cuCtxSetSharedMemConfig, family: "cuCtxSetSharedMemConfig", since: 4020, stream: Any, args: (config: CUsharedconfig) }
            { id: 61, symbol: cuCtxSynchronize, family: "cuCtxSynchronize", since: 2000, stream: Any, args: () }
            { id: 62, symbol: cuCtxSynchronize_v2, family: "cuCtxSynchronize", since: 13000, stream: Any, args: (ctx: CUcontext) }
            { id: 63, symbol: cuCtxWaitEvent, family: "cuCtxWaitEvent", since: 12050, stream: Any, args: (hCtx: CUcontext, hEvent: CUevent) }
            { id: 64, symbol: cuDestroyExternalMemory, family: "cuDestroyExternalMemory", since: 10000, stream: Any, args: (extMem: CUexternalMemory) }
            { id: 65, symbol: cuDestroyExternalSemaphore, family: "cuDestroyExternalSemaphore", since: 10000, stream: Any, args: (extSem: CUexternalSemaphore) }
            { id: 66, symbol: cuDevResourceGenerateDesc, family: "cuDevResourceGenerateDesc", since: 12040, stream: Any, args: (phDesc: *mut CUdevResourceDesc, resources: *mut c_void, nbResources: u32) }
            { id: 67, symbol: cuDevSmResourceSplit, family: "cuDevSmResourceSplit", since: 13010, stream: Any, args: (result: *mut c_void, nbGroups: u32, input: *const c_void, remainder: *mut c_void, flags: u32, groupParams: *mut c_void) }
            { id: 68, symbol: cuDevSmResourceSplitByCount, family: "cuDevSmResourceSplitByCount", since: 12040, stream: Any, args: (result: *mut c_void, nbGroups: *mut u32, input: *const c_void, remainder: *mut c_void, flags: u32, minCount: u32) }
            { id: 69, symbol: cuDeviceCanAccessPeer, family: "cuDeviceCanAccessPeer", since: 4000, stream: Any, args: (canAccessPeer: *mut i32, dev: CUdevice, peerDev: CUdevice) }
            { id: 70, symbol: cuDeviceComputeCapability, family: "cuDeviceComputeCapability", since: 2000, stream: Any, args: (major: *mut i32, minor: *mut i32, dev: CUdevice) }
            { id: 71, symbol: cuDeviceGet, family: "cuDeviceGet", since: 2000, stream: Any, args: (device: *mut CUdevice, ordinal: i32) }
            { id: 72, symbol: cuDeviceGetAttribute, family: "cuDeviceGetAttribute", since: 2000, stream: Any, args: (pi: *mut i32, attrib: CUdevice_attribute, dev: CUdevice) }
            { id: 73, symbol: cuDeviceGetByPCIBusId, family: "cuDeviceGetByPCIBusId", since: 4010, stream: Any, args: (dev: *mut CUdevice, pciBusId: *const c_char) }
            { id: 74, symbol: cuDeviceGetCliqueCount, family: "cuDeviceGetCliqueCount", since: 13040, stream: Any, args: (count: *mut usize, dev: CUdevice) }
            { id: 75, symbol: cuDeviceGetCliqueInfo, family: "cuDeviceGetCliqueInfo", since: 13040, stream: Any, args: (cliqueInfo: *mut c_void, count: *mut usize, dev: CUdevice) }
            { id: 76, symbol: cuDeviceGetCount, family: "cuDeviceGetCount", since: 2000, stream: Any, args: (count: *mut i32) }
            { id: 77, symbol: cuDeviceGetDefaultMemPool, family: "cuDeviceGetDefaultMemPool", since: 11020, stream: Any, args: (pool_out: *mut CUmemoryPool, dev: CUdevice) }
            { id: 78, symbol: cuDeviceGetDevResource, family: "cuDeviceGetDevResource", since: 12040, stream: Any, args: (device: CUdevice, resource: *mut c_void, r#type: CUdevResourceType) }
            { id: 79, symbol: cuDeviceGetExecAffinitySupport, family: "cuDeviceGetExecAffinitySupport", since: 11040, stream: Any, args: (pi: *mut i32, r#type: CUexecAffinityType, dev: CUdevice) }
            { id: 80, symbol: cuDeviceGetFabricClusterUuid, family: "cuDeviceGetFabricClusterUuid", since: 13040, stream: Any, args: (uuid: *mut CUuuid, dev: CUdevice) }
            { id: 81, symbol: cuDeviceGetGraphMemAttribute, family: "cuDeviceGetGraphMemAttribute", since: 11040, stream: Any, args: (device: CUdevice, attr: CUgraphMem_attribute, value: *mut c_void) }
            { id: 82, symbol: cuDeviceGetHostAtomicCapabilities, family: "cuDeviceGetHostAtomicCapabilities", since: 13000, stream: Any, args: (capabilities: *mut u32, operations: *const CUatomicOperation, count: u32, dev: CUdevice) }
            { id: 83, symbol: cuDeviceGetLuid, family: "cuDeviceGetLuid", since: 10000, stream: Any, args: (luid: *mut c_char, deviceNodeMask: *mut u32, dev: CUdevice) }
            { id: 84, symbol: cuDeviceGetMemPool, family: "cuDeviceGetMemPool", since: 11020, stream: Any, args: (pool: *mut CUmemoryPool, dev: CUdevice) }
            { id: 85, symbol: cuDeviceGetName, family: "cuDeviceGetName", since: 2000, stream: Any, args: (name: *mut c_char, len: i32, dev: CUdevice) }
            { id: 86, symbol: cuDeviceGetNvSciSyncAttributes, family: "cuDeviceGetNvSciSyncAttributes", since: 10020, stream: Any, args: (nvSciSyncAttrList: *mut c_void, dev: CUdevice, flags: i32) }
            { id: 87, symbol: cuDeviceGetP2PAtomicCapabilities, family: "cuDeviceGetP2PAtomicCapabilities", since: 13000, stream: Any, args: (capabilities: *mut u32, operations: *const CUatomicOperation, count: u32, srcDevice: CUdevice, dstDevice: CUdevice) }
            { id: 88, symbol: cuDeviceGetP2PAttribute, family: "cuDeviceGetP2PAttribute", since: 8000, stream: Any, args: (value: *mut i32, attrib: CUdevice_P2PAttribute, srcDevice: CUdevice, dstDevice: CUdevice) }
            { id: 89, symbol: cuDeviceGetPCIBusId, family: "cuDeviceGetPCIBusId", since: 4010, stream: Any, args: (pciBusId: *mut c_char, len: i32, dev: CUdevice) }
            { id: 90, symbol: cuDeviceGetProperties, family: "cuDeviceGetProperties", since: 2000, stream: Any, args: (prop: *mut CUdevprop, dev: CUdevice) }
            { id: 91, symbol: cuDeviceGetTexture1DLinearMaxWidth, family: "cuDeviceGetTexture1DLinearMaxWidth", since: 11010, stream: Any, args: (maxWidthInElements: *mut usize, format: CUarray_format, numChannels: u32, dev: CUdevice) }
            { id: 92, symbol: cuDeviceGetUuid, family: "cuDeviceGetUuid", since: 9020, stream: Any, args: (uuid: *mut CUuuid, dev: CUdevice) }
            { id: 93, symbol: cuDeviceGetUuid_v2, family: "cuDeviceGetUuid", since: 11040, stream: Any, args: (uuid: *mut CUuuid, dev: CUdevice) }
            { id: 94, symbol: cuDeviceGraphMemTrim, family: "cuDeviceGraphMemTrim", since: 11040, stream: Any, args: (device: CUdevice) }
            { id: 95, symbol: cuDevicePrimaryCtxGetState, family: "cuDevicePrimaryCtxGetState", since: 7000, stream: Any, args: (dev: CUdevice, flags: *mut u32, active: *mut i32) }
            { id: 96, symbol: cuDevicePrimaryCtxRelease, family: "cuDevicePrimaryCtxRelease", since: 7000, stream: Any, args: (dev: CUdevice) }
            { id: 97, symbol: cuDevicePrimaryCtxRelease_v2, family: "cuDevicePrimaryCtxRelease", since: 11000, stream: Any, args: (dev: CUdevice) }
            { id: 98, symbol: cuDevicePrimaryCtxReset, family: "cuDevicePrimaryCtxReset", since: 7000, stream: Any, args: (dev: CUdevice) }
            { id: 99, symbol: cuDevicePrimaryCtxReset_v2, family: "cuDevicePrimaryCtxReset", since: 11000, stream: Any, args: (dev: CUdevice) }
            { id: 100, symbol: cuDevicePrimaryCtxRetain, family: "cuDevicePrimaryCtxRetain", since: 7000, stream: Any, args: (pctx: *mut CUcontext, dev: CUdevice) }
            { id: 101, symbol: cuDevicePrimaryCtxSetFlags, family: "cuDevicePrimaryCtxSetFlags", since: 7000, stream: Any, args: (dev: CUdevice, flags: u32) }
            { id: 102, symbol: cuDevicePrimaryCtxSetFlags_v2, family: "cuDevicePrimaryCtxSetFlags", since: 11000, stream: Any, args: (dev: CUdevice, flags: u32) }
            { id: 103, symbol: cuDeviceRegisterAsyncNotification, family: "cuDeviceRegisterAsyncNotification", since: 12040, stream: Any, args: (device: CUdevice, callbackFunc: CUasyncCallback, userData: *mut c_void, callback: *mut CUasyncCallbackHandle) }
            { id: 104, symbol: cuDeviceSetGraphMemAttribute, family: "cuDeviceSetGraphMemAttribute", since: 11040, stream: Any, args: (device: CUdevice, attr: CUgraphMem_attribute, value: *mut c_void) }
            { id: 105, symbol: cuDeviceSetMemPool, family: "cuDeviceSetMemPool", since: 11020, stream: Any, args: (dev: CUdevice, pool: CUmemoryPool) }
            { id: 106, symbol: cuDeviceTotalMem, family: "cuDeviceTotalMem", since: 2000, stream: Any, args: (bytes: *mut u32, dev: CUdevice) }
            { id: 107, symbol: cuDeviceTotalMem_v2, family: "cuDeviceTotalMem", since: 3020, stream: Any, args: (bytes: *mut usize, dev: CUdevice) }
            { id: 108, symbol: cuDeviceUnregisterAsyncNotification, family: "cuDeviceUnregisterAsyncNotification", since: 12040, stream: Any, args: (device: CUdevice, callback: CUasyncCallbackHandle) }
            { id: 109, symbol: cuDriverGetVersion, family: "cuDriverGetVersion", since: 2020, stream: Any, args: (driverVersion: *mut i32) }
            { id: 110, symbol: cuEGLStreamConsumerAcquireFrame, family: "cuEGLStreamConsumerAcquireFrame", since: 7000, stream: Any, args: (conn: *mut CUeglStreamConnection, pCudaResource: *mut CUgraphicsResource, pStream: *mut CUstream, timeout: u32) }
            { id: 111, symbol: cuEGLStreamConsumerConnect, family: "cuEGLStreamConsumerConnect", since: 7000, stream: Any, args: (conn: *mut CUeglStreamConnection, stream: EGLStreamKHR) }
            { id: 112, symbol: cuEGLStreamConsumerConnectWithFlags, family: "cuEGLStreamConsumerConnectWithFlags", since: 8000, stream: Any, args: (conn: *mut CUeglStreamConnection, stream: EGLStreamKHR, flags: u32) }
            { id: 113, symbol: cuEGLStreamConsumerDisconnect, family: "cuEGLStreamConsumerDisconnect", since: 7000, stream: Any, args: (conn: *mut CUeglStreamConnection) }
            { id: 114, symbol: cuEGLStreamConsumerReleaseFrame, family: "cuEGLStreamConsumerReleaseFrame", since: 7000, stream: Any, args: (conn: *mut CUeglStreamConnection, pCudaResource: CUgraphicsResource, pStream: *mut CUstream) }
            { id: 115, symbol: cuEGLStreamProducerConnect, family: "cuEGLStreamProducerConnect", since: 7000, stream: Any, args: (conn: *mut CUeglStreamConnection, stream: EGLStreamKHR, width: EGLint, height: EGLint) }
            { id: 116, symbol: cuEGLStreamProducerDisconnect, family: "cuEGLStreamProducerDisconnect", since: 7000, stream: Any, args: (conn: *mut CUeglStreamConnection) }
            { id: 117, symbol: cuEGLStreamProducerPresentFrame, family: "cuEGLStreamProducerPresentFrame", since: 7000, stream: Any, args: (conn: *mut CUeglStreamConnection, eglframe: CUeglFrame, pStream: *mut CUstream) }
            { id: 118, symbol: cuEGLStreamProducerReturnFrame, family: "cuEGLStreamProducerReturnFrame", since: 7000, stream: Any, args: (conn: *mut CUeglStreamConnection, eglframe: *mut CUeglFrame, pStream: *mut CUstream) }
            { id: 119, symbol: cuEventCreate, family: "cuEventCreate", since: 2000, stream: Any, args: (phEvent: *mut CUevent, Flags: u32) }
            { id: 120, symbol: cuEventCreateFromEGLSync, family: "cuEventCreateFromEGLSync", since: 9000, stream: Any, args: (phEvent: *mut CUevent, eglSync: EGLSyncKHR, flags: u32) }
            { id: 121, symbol: cuEventDestroy, family: "cuEventDestroy", since: 2000, stream: Any, args: (hEvent: CUevent) }
            { id: 122, symbol: cuEventDestroy_v2, family: "cuEventDestroy", since: 4000, stream: Any, args: (hEvent: CUevent) }
            { id: 123, symbol: cuEventElapsedTime, family: "cuEventElapsedTime", since: 2000, stream: Any, args: (pMilliseconds: *mut f32, hStart: CUevent, hEnd: CUevent) }
            { id: 124, symbol: cuEventElapsedTime_v2, family: "cuEventElapsedTime", since: 12080, stream: Any, args: (pMilliseconds: *mut f32, hStart: CUevent, hEnd: CUevent) }
            { id: 125, symbol: cuEventQuery, family: "cuEventQuery", since: 2000, stream: Any, args: (hEvent: CUevent) }
            { id: 126, symbol: cuEventRecord, family: "cuEventRecord", since: 2000, stream: Legacy, args: (hEvent: CUevent, hStream: CUstream) }
            { id: 127, symbol: cuEventRecordWithFlags, family: "cuEventRecordWithFlags", since: 11010, stream: Legacy, args: (hEvent: CUevent, hStream: CUstream, flags: u32) }
            { id: 128, symbol: cuEventRecordWithFlags_ptsz, family: "cuEventRecordWithFlags", since: 11010, stream: PerThread, args: (hEvent: CUevent, hStream: CUstream, flags: u32) }
            { id: 129, symbol: cuEventRecord_ptsz, family: "cuEventRecord", since: 7000, stream: PerThread, args: (hEvent: CUevent, hStream: CUstream) }
            { id: 130, symbol: cuEventSynchronize, family: "cuEventSynchronize", since: 2000, stream: Any, args: (hEvent: CUevent) }
            { id: 131, symbol: cuExternalMemoryGetMappedBuffer, family: "cuExternalMemoryGetMappedBuffer", since: 10000, stream: Any, args: (devPtr: *mut CUdeviceptr, extMem: CUexternalMemory, bufferDesc: *const c_void) }
            { id: 132, symbol: cuExternalMemoryGetMappedMipmappedArray, family: "cuExternalMemoryGetMappedMipmappedArray", since: 10000, stream: Any, args: (mipmap: *mut CUmipmappedArray, extMem: CUexternalMemory, mipmapDesc: *const c_void) }
            { id: 133, symbol: cuFabricCpyBatchAsync, family: "cuFabricCpyBatchAsync", since: 13050, stream: Legacy, args: (numOps: usize, opList: *mut c_void, flags: u64, hStream: CUstream) }
            { id: 134, symbol: cuFabricCpyBatchAsync_ptsz, family: "cuFabricCpyBatchAsync", since: 13050, stream: PerThread, args: (numOps: usize, opList: *mut c_void, flags: u64, hStream: CUstream) }
            { id: 135, symbol: cuFlushGPUDirectRDMAWrites, family: "cuFlushGPUDirectRDMAWrites", since: 11030, stream: Any, args: (target: CUflushGPUDirectRDMAWritesTarget, scope: CUflushGPUDirectRDMAWritesScope) }
            { id: 136, symbol: cuFuncGetAttribute, family: "cuFuncGetAttribute", since: 2020, stream: Any, args: (pi: *mut i32, attrib: CUfunction_attribute, hfunc: CUfunction) }
            { id: 137, symbol: cuFuncGetModule, family: "cuFuncGetModule", since: 11000, stream: Any, args: (hmod: *mut CUmodule, hfunc: CUfunction) }
            { id: 138, symbol: cuFuncGetName, family: "cuFuncGetName", since: 12030, stream: Any, args: (name: *mut *const c_char, hfunc: CUfunction) }
            { id: 139, symbol: cuFuncGetParamCount, family: "cuFuncGetParamCount", since: 13020, stream: Any, args: (func: CUfunction, paramCount: *mut usize) }
            { id: 140, symbol: cuFuncGetParamInfo, family: "cuFuncGetParamInfo", since: 12040, stream: Any, args: (func: CUfunction, paramIndex: usize, paramOffset: *mut usize, paramSize: *mut usize) }
            { id: 141, symbol: cuFuncIsLoaded, family: "cuFuncIsLoaded", since: 12040, stream: Any, args: (state: *mut CUfunctionLoadingState, function: CUfunction) }
            { id: 142, symbol: cuFuncLoad, family: "cuFuncLoad", since: 12040, stream: Any, args: (function: CUfunction) }
            { id: 143, symbol: cuFuncSetAttribute, family: "cuFuncSetAttribute", since: 9000, stream: Any, args: (hfunc: CUfunction, attrib: CUfunction_attribute, value: i32) }
            { id: 144, symbol: cuFuncSetBlockShape, family: "cuFuncSetBlockShape", since: 2000, stream: Any, args: (hfunc: CUfunction, x: i32, y: i32, z: i32) }
            { id: 145, symbol: cuFuncSetCacheConfig, family: "cuFuncSetCacheConfig", since: 3000, stream: Any, args: (hfunc: CUfunction, config: CUfunc_cache) }
            { id: 146, symbol: cuFuncSetSharedMemConfig, family: "cuFuncSetSharedMemConfig", since: 4020, stream: Any, args: (hfunc: CUfunction, config: CUsharedconfig) }
            { id: 147, symbol: cuFuncSetSharedSize, family: "cuFuncSetSharedSize", since: 2000, stream: Any, args: (hfunc: CUfunction, bytes: u32) }
            { id: 148, symbol: cuGLCtxCreate, family: "cuGLCtxCreate", since: 2000, stream: Any, args: (pCtx: *mut CUcontext, Flags: u32, device: CUdevice) }
            { id: 149, symbol: cuGLCtxCreate_v2, family: "cuGLCtxCreate", since: 3020, stream: Any, args: (pCtx: *mut CUcontext, Flags: u32, device: CUdevice) }
            { id: 150, symbol: cuGLGetDevices, family: "cuGLGetDevices", since: 4010, stream: Any, args: (pCudaDeviceCount: *mut u32, pCudaDevices: *mut CUdevice, cudaDeviceCount: u32, deviceList: CUGLDeviceList) }
            { id: 151, symbol: cuGLGetDevices_v2, family: "cuGLGetDevices", since: 6050, stream: Any, args: (pCudaDeviceCount: *mut u32, pCudaDevices: *mut CUdevice, cudaDeviceCount: u32, deviceList: CUGLDeviceList) }
            { id: 152, symbol: cuGLInit, family: "cuGLInit", since: 2000, stream: Any, args: () }
            { id: 153, symbol: cuGLMapBufferObject, family: "cuGLMapBufferObject", since: 2000, stream: Legacy, args: (dptr: *mut CUdeviceptr_v1, size: *mut u32, buffer: GLuint) }
            { id: 154, symbol: cuGLMapBufferObjectAsync, family: "cuGLMapBufferObjectAsync", since: 2030, stream: Legacy, args: (dptr: *mut CUdeviceptr_v1, size: *mut u32, buffer: GLuint, hStream: CUstream) }
            { id: 155, symbol: cuGLMapBufferObjectAsync_v2, family: "cuGLMapBufferObjectAsync", since: 3020, stream: Legacy, args: (dptr: *mut CUdeviceptr, size: *mut usize, buffer: GLuint, hStream: CUstream) }
            { id: 156, symbol: cuGLMapBufferObjectAsync_v2_ptsz, family: "cuGLMapBufferObjectAsync", since: 7000, stream: PerThread, args: (dptr: *mut CUdeviceptr, size: *mut usize, buffer: GLuint, hStream: CUstream) }
            { id: 157, symbol: cuGLMapBufferObject_v2, family: "cuGLMapBufferObject", since: 3020, stream: Legacy, args: (dptr: *mut CUdeviceptr, size: *mut usize, buffer: GLuint) }
            { id: 158, symbol: cuGLMapBufferObject_v2_ptds, family: "cuGLMapBufferObject", since: 7000, stream: PerThread, args: (dptr: *mut CUdeviceptr, size: *mut usize, buffer: GLuint) }
            { id: 159, symbol: cuGLRegisterBufferObject, family: "cuGLRegisterBufferObject", since: 2000, stream: Any, args: (buffer: GLuint) }
            { id: 160, symbol: cuGLSetBufferObjectMapFlags, family: "cuGLSetBufferObjectMapFlags", since: 2030, stream: Any, args: (buffer: GLuint, Flags: u32) }
            { id: 161, symbol: cuGLUnmapBufferObject, family: "cuGLUnmapBufferObject", since: 2000, stream: Any, args: (buffer: GLuint) }
            { id: 162, symbol: cuGLUnmapBufferObjectAsync, family: "cuGLUnmapBufferObjectAsync", since: 2030, stream: Any, args: (buffer: GLuint, hStream: CUstream) }
            { id: 163, symbol: cuGLUnregisterBufferObject, family: "cuGLUnregisterBufferObject", since: 2000, stream: Any, args: (buffer: GLuint) }
            { id: 164, symbol: cuGetErrorName, family: "cuGetErrorName", since: 6000, stream: Any, args: (error: CUresult, pStr: *mut *const c_char) }
            { id: 165, symbol: cuGetErrorString, family: "cuGetErrorString", since: 6000, stream: Any, args: (error: CUresult, pStr: *mut *const c_char) }
            { id: 166, symbol: cuGetExportTable, family: "cuGetExportTable", since: 3000, stream: Any, args: (ppExportTable: *mut *const c_void, pExportTableId: *const CUuuid) }
            { id: 167, symbol: cuGetProcAddress, family: "cuGetProcAddress", since: 11030, stream: Any, args: (symbol: *const c_char, pfn: *mut *mut c_void, cudaVersion: i32, flags: u64) }
            { id: 168, symbol: cuGetProcAddress_v2, family: "cuGetProcAddress", since: 12000, stream: Any, args: (symbol: *const c_char, pfn: *mut *mut c_void, cudaVersion: i32, flags: u64, symbolStatus: *mut CUdriverProcAddressQueryResult) }
            { id: 169, symbol: cuGraphAddBatchMemOpNode, family: "cuGraphAddBatchMemOpNode", since: 11070, stream: Any, args: (phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *const c_void) }
            { id: 170, symbol: cuGraphAddChildGraphNode, family: "cuGraphAddChildGraphNode", since: 10000, stream: Any, args: (phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, childGraph: CUgraph) }
            { id: 171, symbol: cuGraphAddDependencies, family: "cuGraphAddDependencies", since: 10000, stream: Any, args: (hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, numDependencies: usize) }
            { id: 172, symbol: cuGraphAddDependencies_v2, family: "cuGraphAddDependencies", since: 12030, stream: Any, args: (hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edgeData: *const CUgraphEdgeData, numDependencies: usize) }
            { id: 173, symbol: cuGraphAddEmptyNode, family: "cuGraphAddEmptyNode", since: 10000, stream: Any, args: (phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize) }
            { id: 174, symbol: cuGraphAddEventRecordNode, family: "cuGraphAddEventRecordNode", since: 11010, stream: Any, args: (phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, event: CUevent) }
            { id: 175, symbol: cuGraphAddEventWaitNode, family: "cuGraphAddEventWaitNode", since: 11010, stream: Any, args: (phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, event: CUevent) }
            { id: 176, symbol: cuGraphAddExternalSemaphoresSignalNode, family: "cuGraphAddExternalSemaphoresSignalNode", since: 11020, stream: Any, args: (phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *const c_void) }
            { id: 177, symbol: cuGraphAddExternalSemaphoresWaitNode, family: "cuGraphAddExternalSemaphoresWaitNode", since: 11020, stream: Any, args: (phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *const c_void) }
            { id: 178, symbol: cuGraphAddHostNode, family: "cuGraphAddHostNode", since: 10000, stream: Any, args: (phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *const CUDA_HOST_NODE_PARAMS) }
            { id: 179, symbol: cuGraphAddKernelNode, family: "cuGraphAddKernelNode", since: 10000, stream: Any, args: (phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *const CUDA_KERNEL_NODE_PARAMS_v1) }
            { id: 180, symbol: cuGraphAddKernelNode_v2, family: "cuGraphAddKernelNode", since: 12000, stream: Any, args: (phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *const CUDA_KERNEL_NODE_PARAMS) }
            { id: 181, symbol: cuGraphAddMemAllocNode, family: "cuGraphAddMemAllocNode", since: 11040, stream: Any, args: (phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *mut CUDA_MEM_ALLOC_NODE_PARAMS) }
            { id: 182, symbol: cuGraphAddMemFreeNode, family: "cuGraphAddMemFreeNode", since: 11040, stream: Any, args: (phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, dptr: CUdeviceptr) }
            { id: 183, symbol: cuGraphAddMemcpyNode, family: "cuGraphAddMemcpyNode", since: 10000, stream: Any, args: (phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, copyParams: *const CUDA_MEMCPY3D, ctx: CUcontext) }
            { id: 184, symbol: cuGraphAddMemsetNode, family: "cuGraphAddMemsetNode", since: 10000, stream: Any, args: (phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, memsetParams: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext) }
            { id: 185, symbol: cuGraphAddNode, family: "cuGraphAddNode", since: 12020, stream: Any, args: (phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *mut CUgraphNodeParams) }
            { id: 186, symbol: cuGraphAddNode_v2, family: "cuGraphAddNode", since: 12030, stream: Any, args: (phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, dependencyData: *const CUgraphEdgeData, numDependencies: usize, nodeParams: *mut CUgraphNodeParams) }
            { id: 187, symbol: cuGraphAddNode_v3, family: "cuGraphAddNode", since: 13040, stream: Any, args: (phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, dependencyData: *const CUgraphEdgeData, numDependencies: usize, nodeParams: *mut CUgraphNodeParams) }
            { id: 188, symbol: cuGraphBatchMemOpNodeGetParams, family: "cuGraphBatchMemOpNodeGetParams", since: 11070, stream: Any, args: (hNode: CUgraphNode, nodeParams_out: *mut c_void) }
            { id: 189, symbol: cuGraphBatchMemOpNodeSetParams, family: "cuGraphBatchMemOpNodeSetParams", since: 11070, stream: Any, args: (hNode: CUgraphNode, nodeParams: *const c_void) }
            { id: 190, symbol: cuGraphChildGraphNodeGetGraph, family: "cuGraphChildGraphNodeGetGraph", since: 10000, stream: Any, args: (hNode: CUgraphNode, phGraph: *mut CUgraph) }
            { id: 191, symbol: cuGraphClone, family: "cuGraphClone", since: 10000, stream: Any, args: (phGraphClone: *mut CUgraph, originalGraph: CUgraph) }
            { id: 192, symbol: cuGraphConditionalHandleCreate, family: "cuGraphConditionalHandleCreate", since: 12030, stream: Any, args: (pHandle_out: *mut CUgraphConditionalHandle, hGraph: CUgraph, ctx: CUcontext, defaultLaunchValue: u32, flags: u32) }
            { id: 193, symbol: cuGraphCreate, family: "cuGraphCreate", since: 10000, stream: Any, args: (phGraph: *mut CUgraph, flags: u32) }
            { id: 194, symbol: cuGraphDebugDotPrint, family: "cuGraphDebugDotPrint", since: 11030, stream: Any, args: (hGraph: CUgraph, path: *const c_char, flags: u32) }
            { id: 195, symbol: cuGraphDestroy, family: "cuGraphDestroy", since: 10000, stream: Any, args: (hGraph: CUgraph) }
            { id: 196, symbol: cuGraphDestroyNode, family: "cuGraphDestroyNode", since: 10000, stream: Any, args: (hNode: CUgraphNode) }
            { id: 197, symbol: cuGraphEventRecordNodeGetEvent, family: "cuGraphEventRecordNodeGetEvent", since: 11010, stream: Any, args: (hNode: CUgraphNode, event_out: *mut CUevent) }
            { id: 198, symbol: cuGraphEventRecordNodeSetEvent, family: "cuGraphEventRecordNodeSetEvent", since: 11010, stream: Any, args: (hNode: CUgraphNode, event: CUevent) }
            { id: 199, symbol: cuGraphEventWaitNodeGetEvent, family: "cuGraphEventWaitNodeGetEvent", since: 11010, stream: Any, args: (hNode: CUgraphNode, event_out: *mut CUevent) }
            { id: 200, symbol: cuGraphEventWaitNodeSetEvent, family: "cuGraphEventWaitNodeSetEvent", since: 11010, stream: Any, args: (hNode: CUgraphNode, event: CUevent) }
            { id: 201, symbol: cuGraphExecBatchMemOpNodeSetParams, family: "cuGraphExecBatchMemOpNodeSetParams", since: 11070, stream: Any, args: (hGraphExec: CUgraphExec, hNode: CUgraphNode, nodeParams: *const c_void) }
            { id: 202, symbol: cuGraphExecChildGraphNodeSetParams, family: "cuGraphExecChildGraphNodeSetParams", since: 11010, stream: Any, args: (hGraphExec: CUgraphExec, hNode: CUgraphNode, childGraph: CUgraph) }
            { id: 203, symbol: cuGraphExecDestroy, family: "cuGraphExecDestroy", since: 10000, stream: Any, args: (hGraphExec: CUgraphExec) }
            { id: 204, symbol: cuGraphExecEventRecordNodeSetEvent, family: "cuGraphExecEventRecordNodeSetEvent", since: 11010, stream: Any, args: (hGraphExec: CUgraphExec, hNode: CUgraphNode, event: CUevent) }
            { id: 205, symbol: cuGraphExecEventWaitNodeSetEvent, family: "cuGraphExecEventWaitNodeSetEvent", since: 11010, stream: Any, args: (hGraphExec: CUgraphExec, hNode: CUgraphNode, event: CUevent) }
            { id: 206, symbol: cuGraphExecExternalSemaphoresSignalNodeSetParams, family: "cuGraphExecExternalSemaphoresSignalNodeSetParams", since: 11020, stream: Any, args: (hGraphExec: CUgraphExec, hNode: CUgraphNode, nodeParams: *const c_void) }
            { id: 207, symbol: cuGraphExecExternalSemaphoresWaitNodeSetParams, family: "cuGraphExecExternalSemaphoresWaitNodeSetParams", since: 11020, stream: Any, args: (hGraphExec: CUgraphExec, hNode: CUgraphNode, nodeParams: *const c_void) }
            { id: 208, symbol: cuGraphExecGetFlags, family: "cuGraphExecGetFlags", since: 12000, stream: Any, args: (hGraphExec: CUgraphExec, flags: *mut u64) }
            { id: 209, symbol: cuGraphExecGetId, family: "cuGraphExecGetId", since: 13010, stream: Any, args: (hGraphExec: CUgraphExec, graphId: *mut u32) }
            { id: 210, symbol: cuGraphExecHostNodeSetParams, family: "cuGraphExecHostNodeSetParams", since: 10020, stream: Any, args: (hGraphExec: CUgraphExec, hNode: CUgraphNode, nodeParams: *const CUDA_HOST_NODE_PARAMS) }
            { id: 211, symbol: cuGraphExecKernelNodeSetParams, family: "cuGraphExecKernelNodeSetParams", since: 10010, stream: Any, args: (hGraphExec: CUgraphExec, hNode: CUgraphNode, nodeParams: *const CUDA_KERNEL_NODE_PARAMS_v1) }
            { id: 212, symbol: cuGraphExecKernelNodeSetParams_v2, family: "cuGraphExecKernelNodeSetParams", since: 12000, stream: Any, args: (hGraphExec: CUgraphExec, hNode: CUgraphNode, nodeParams: *const CUDA_KERNEL_NODE_PARAMS) }
            { id: 213, symbol: cuGraphExecMemcpyNodeSetParams, family: "cuGraphExecMemcpyNodeSetParams", since: 10020, stream: Any, args: (hGraphExec: CUgraphExec, hNode: CUgraphNode, copyParams: *const CUDA_MEMCPY3D, ctx: CUcontext) }
            { id: 214, symbol: cuGraphExecMemsetNodeSetParams, family: "cuGraphExecMemsetNodeSetParams", since: 10020, stream: Any, args: (hGraphExec: CUgraphExec, hNode: CUgraphNode, memsetParams: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext) }
            { id: 215, symbol: cuGraphExecNodeSetParams, family: "cuGraphExecNodeSetParams", since: 12020, stream: Any, args: (hGraphExec: CUgraphExec, hNode: CUgraphNode, nodeParams: *mut CUgraphNodeParams) }
            { id: 216, symbol: cuGraphExecUpdate, family: "cuGraphExecUpdate", since: 10020, stream: Any, args: (hGraphExec: CUgraphExec, hGraph: CUgraph, hErrorNode_out: *mut CUgraphNode, updateResult_out: *mut CUgraphExecUpdateResult) }
            { id: 217, symbol: cuGraphExecUpdate_v2, family: "cuGraphExecUpdate", since: 12000, stream: Any, args: (hGraphExec: CUgraphExec, hGraph: CUgraph, resultInfo: *mut CUgraphExecUpdateResultInfo) }
            { id: 218, symbol: cuGraphExternalSemaphoresSignalNodeGetParams, family: "cuGraphExternalSemaphoresSignalNodeGetParams", since: 11020, stream: Any, args: (hNode: CUgraphNode, params_out: *mut c_void) }
            { id: 219, symbol: cuGraphExternalSemaphoresSignalNodeSetParams, family: "cuGraphExternalSemaphoresSignalNodeSetParams", since: 11020, stream: Any, args: (hNode: CUgraphNode, nodeParams: *const c_void) }
            { id: 220, symbol: cuGraphExternalSemaphoresWaitNodeGetParams, family: "cuGraphExternalSemaphoresWaitNodeGetParams", since: 11020, stream: Any, args: (hNode: CUgraphNode, params_out: *mut c_void) }
            { id: 221, symbol: cuGraphExternalSemaphoresWaitNodeSetParams, family: "cuGraphExternalSemaphoresWaitNodeSetParams", since: 11020, stream: Any, args: (hNode: CUgraphNode, nodeParams: *const c_void) }
            { id: 222, symbol: cuGraphGetEdges, family: "cuGraphGetEdges", since: 10000, stream: Any, args: (hGraph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, numEdges: *mut usize) }
            { id: 223, symbol: cuGraphGetEdges_v2, family: "cuGraphGetEdges", since: 12030, stream: Any, args: (hGraph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, edgeData: *mut CUgraphEdgeData, numEdges: *mut usize) }
            { id: 224, symbol: cuGraphGetId, family: "cuGraphGetId", since: 13010, stream: Any, args: (hGraph: CUgraph, graphId: *mut u32) }
            { id: 225, symbol: cuGraphGetNodes, family: "cuGraphGetNodes", since: 10000, stream: Any, args: (hGraph: CUgraph, nodes: *mut CUgraphNode, numNodes: *mut usize) }
            { id: 226, symbol: cuGraphGetRootNodes, family: "cuGraphGetRootNodes", since: 10000, stream: Any, args: (hGraph: CUgraph, rootNodes: *mut CUgraphNode, numRootNodes: *mut usize) }
            { id: 227, symbol: cuGraphHostNodeGetParams, family: "cuGraphHostNodeGetParams", since: 10000, stream: Any, args: (hNode: CUgraphNode, nodeParams: *mut CUDA_HOST_NODE_PARAMS) }
            { id: 228, symbol: cuGraphHostNodeSetParams, family: "cuGraphHostNodeSetParams", since: 10000, stream: Any, args: (hNode: CUgraphNode, nodeParams: *const CUDA_HOST_NODE_PARAMS) }
            { id: 229, symbol: cuGraphInstantiate, family: "cuGraphInstantiate", since: 10000, stream: Any, args: (phGraphExec: *mut CUgraphExec, hGraph: CUgraph, phErrorNode: *mut CUgraphNode, logBuffer: *mut c_char, bufferSize: usize) }
            { id: 230, symbol: cuGraphInstantiateWithFlags, family: "cuGraphInstantiateWithFlags", since: 11040, stream: Any, args: (phGraphExec: *mut CUgraphExec, hGraph: CUgraph, flags: u64) }
            { id: 231, symbol: cuGraphInstantiateWithParams, family: "cuGraphInstantiateWithParams", since: 12000, stream: Legacy, args: (phGraphExec: *mut CUgraphExec, hGraph: CUgraph, instantiateParams: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) }
            { id: 232, symbol: cuGraphInstantiateWithParams_ptsz, family: "cuGraphInstantiateWithParams", since: 12000, stream: PerThread, args: (phGraphExec: *mut CUgraphExec, hGraph: CUgraph, instantiateParams: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) }
            { id: 233, symbol: cuGraphInstantiate_v2, family: "cuGraphInstantiate", since: 11000, stream: Any, args: (phGraphExec: *mut CUgraphExec, hGraph: CUgraph, phErrorNode: *mut CUgraphNode, logBuffer: *mut c_char, bufferSize: usize) }
            { id: 234, symbol: cuGraphKernelNodeCopyAttributes, family: "cuGraphKernelNodeCopyAttributes", since: 11000, stream: Any, args: (dst: CUgraphNode, src: CUgraphNode) }
            { id: 235, symbol: cuGraphKernelNodeGetAttribute, family: "cuGraphKernelNodeGetAttribute", since: 11000, stream: Any, args: (hNode: CUgraphNode, attr: CUlaunchAttributeID, value_out: *mut CUlaunchAttributeValue) }
            { id: 236, symbol: cuGraphKernelNodeGetParams, family: "cuGraphKernelNodeGetParams", since: 10000, stream: Any, args: (hNode: CUgraphNode, nodeParams: *mut CUDA_KERNEL_NODE_PARAMS_v1) }
            { id: 237, symbol: cuGraphKernelNodeGetParams_v2, family: "cuGraphKernelNodeGetParams", since: 12000, stream: Any, args: (hNode: CUgraphNode, nodeParams: *mut CUDA_KERNEL_NODE_PARAMS) }
            { id: 238, symbol: cuGraphKernelNodeSetAttribute, family: "cuGraphKernelNodeSetAttribute", since: 11000, stream: Any, args: (hNode: CUgraphNode, attr: CUlaunchAttributeID, value: *const CUlaunchAttributeValue) }
            { id: 239, symbol: cuGraphKernelNodeSetParams, family: "cuGraphKernelNodeSetParams", since: 10000, stream: Any, args: (hNode: CUgraphNode, nodeParams: *const CUDA_KERNEL_NODE_PARAMS_v1) }
            { id: 240, symbol: cuGraphKernelNodeSetParams_v2, family: "cuGraphKernelNodeSetParams", since: 12000, stream: Any, args: (hNode: CUgraphNode, nodeParams: *const CUDA_KERNEL_NODE_PARAMS) }
            { id: 241, symbol: cuGraphLaunch, family: "cuGraphLaunch", since: 10000, stream: Legacy, args: (hGraph: CUgraphExec, hStream: CUstream) }
            { id: 242, symbol: cuGraphLaunch_ptsz, family: "cuGraphLaunch", since: 10000, stream: PerThread, args: (hGraphExec: CUgraphExec, hStream: CUstream) }
            { id: 243, symbol: cuGraphMemAllocNodeGetParams, family: "cuGraphMemAllocNodeGetParams", since: 11040, stream: Any, args: (hNode: CUgraphNode, params_out: *mut CUDA_MEM_ALLOC_NODE_PARAMS) }
            { id: 244, symbol: cuGraphMemFreeNodeGetParams, family: "cuGraphMemFreeNodeGetParams", since: 11040, stream: Any, args: (hNode: CUgraphNode, dptr_out: *mut CUdeviceptr) }
            { id: 245, symbol: cuGraphMemcpyNodeGetParams, family: "cuGraphMemcpyNodeGetParams", since: 10000, stream: Any, args: (hNode: CUgraphNode, nodeParams: *mut CUDA_MEMCPY3D) }
            { id: 246, symbol: cuGraphMemcpyNodeSetParams, family: "cuGraphMemcpyNodeSetParams", since: 10000, stream: Any, args: (hNode: CUgraphNode, nodeParams: *const CUDA_MEMCPY3D) }
            { id: 247, symbol: cuGraphMemsetNodeGetParams, family: "cuGraphMemsetNodeGetParams", since: 10000, stream: Any, args: (hNode: CUgraphNode, nodeParams: *mut CUDA_MEMSET_NODE_PARAMS) }
            { id: 248, symbol: cuGraphMemsetNodeSetParams, family: "cuGraphMemsetNodeSetParams", since: 10000, stream: Any, args: (hNode: CUgraphNode, nodeParams: *const CUDA_MEMSET_NODE_PARAMS) }
            { id: 249, symbol: cuGraphNodeFindInClone, family: "cuGraphNodeFindInClone", since: 10000, stream: Any, args: (phNode: *mut CUgraphNode, hOriginalNode: CUgraphNode, hClonedGraph: CUgraph) }
            { id: 250, symbol: cuGraphNodeGetContainingGraph, family: "cuGraphNodeGetContainingGraph", since: 13010, stream: Any, args: (hNode: CUgraphNode, phGraph: *mut CUgraph) }
            { id: 251, symbol: cuGraphNodeGetDependencies, family: "cuGraphNodeGetDependencies", since: 10000, stream: Any, args: (hNode: CUgraphNode, dependencies: *mut CUgraphNode, numDependencies: *mut usize) }
            { id: 252, symbol: cuGraphNodeGetDependencies_v2, family: "cuGraphNodeGetDependencies", since: 12030, stream: Any, args: (hNode: CUgraphNode, dependencies: *mut CUgraphNode, edgeData: *mut CUgraphEdgeData, numDependencies: *mut usize) }
            { id: 253, symbol: cuGraphNodeGetDependentNodes, family: "cuGraphNodeGetDependentNodes", since: 10000, stream: Any, args: (hNode: CUgraphNode, dependentNodes: *mut CUgraphNode, numDependentNodes: *mut usize) }
            { id: 254, symbol: cuGraphNodeGetDependentNodes_v2, family: "cuGraphNodeGetDependentNodes", since: 12030, stream: Any, args: (hNode: CUgraphNode, dependentNodes: *mut CUgraphNode, edgeData: *mut CUgraphEdgeData, numDependentNodes: *mut usize) }
            { id: 255, symbol: cuGraphNodeGetEnabled, family: "cuGraphNodeGetEnabled", since: 11060, stream: Any, args: (hGraphExec: CUgraphExec, hNode: CUgraphNode, isEnabled: *mut u32) }
            { id: 256, symbol: cuGraphNodeGetLocalId, family: "cuGraphNodeGetLocalId", since: 13010, stream: Any, args: (hNode: CUgraphNode, nodeId: *mut u32) }
            { id: 257, symbol: cuGraphNodeGetParams, family: "cuGraphNodeGetParams", since: 13020, stream: Any, args: (hNode: CUgraphNode, nodeParams: *mut CUgraphNodeParams) }
            { id: 258, symbol: cuGraphNodeGetToolsId, family: "cuGraphNodeGetToolsId", since: 13010, stream: Any, args: (hNode: CUgraphNode, toolsNodeId: *mut u64) }
            { id: 259, symbol: cuGraphNodeGetType, family: "cuGraphNodeGetType", since: 10000, stream: Any, args: (hNode: CUgraphNode, r#type: *mut CUgraphNodeType) }
            { id: 260, symbol: cuGraphNodeSetEnabled, family: "cuGraphNodeSetEnabled", since: 11060, stream: Any, args: (hGraphExec: CUgraphExec, hNode: CUgraphNode, isEnabled: u32) }
            { id: 261, symbol: cuGraphNodeSetParams, family: "cuGraphNodeSetParams", since: 12020, stream: Any, args: (hNode: CUgraphNode, nodeParams: *mut CUgraphNodeParams) }
            { id: 262, symbol: cuGraphNodeSetParams_v2, family: "cuGraphNodeSetParams", since: 13040, stream: Any, args: (hNode: CUgraphNode, nodeParams: *mut CUgraphNodeParams) }
            { id: 263, symbol: cuGraphReleaseUserObject, family: "cuGraphReleaseUserObject", since: 11030, stream: Any, args: (graph: CUgraph, object: CUuserObject, count: u32) }
            { id: 264, symbol: cuGraphRemoveDependencies, family: "cuGraphRemoveDependencies", since: 10000, stream: Any, args: (hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, numDependencies: usize) }
            { id: 265, symbol: cuGraphRemoveDependencies_v2, family: "cuGraphRemoveDependencies", since: 12030, stream: Any, args: (hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edgeData: *const CUgraphEdgeData, numDependencies: usize) }
            { id: 266, symbol: cuGraphRetainUserObject, family: "cuGraphRetainUserObject", since: 11030, stream: Any, args: (graph: CUgraph, object: CUuserObject, count: u32, flags: u32) }
            { id: 267, symbol: cuGraphUpload, family: "cuGraphUpload", since: 11010, stream: Legacy, args: (hGraph: CUgraphExec, hStream: CUstream) }
            { id: 268, symbol: cuGraphUpload_ptsz, family: "cuGraphUpload", since: 11010, stream: PerThread, args: (hGraphExec: CUgraphExec, hStream: CUstream) }
            { id: 269, symbol: cuGraphicsEGLRegisterImage, family: "cuGraphicsEGLRegisterImage", since: 7000, stream: Any, args: (pCudaResource: *mut CUgraphicsResource, image: EGLImageKHR, flags: u32) }
            { id: 270, symbol: cuGraphicsGLRegisterBuffer, family: "cuGraphicsGLRegisterBuffer", since: 3000, stream: Any, args: (pCudaResource: *mut CUgraphicsResource, buffer: GLuint, Flags: u32) }
            { id: 271, symbol: cuGraphicsGLRegisterImage, family: "cuGraphicsGLRegisterImage", since: 3000, stream: Any, args: (pCudaResource: *mut CUgraphicsResource, image: GLuint, target: GLenum, Flags: u32) }
            { id: 272, symbol: cuGraphicsMapResources, family: "cuGraphicsMapResources", since: 3000, stream: Legacy, args: (count: u32, resources: *mut CUgraphicsResource, hStream: CUstream) }
            { id: 273, symbol: cuGraphicsMapResources_ptsz, family: "cuGraphicsMapResources", since: 7000, stream: PerThread, args: (count: u32, resources: *mut CUgraphicsResource, hStream: CUstream) }
            { id: 274, symbol: cuGraphicsResourceGetMappedEglFrame, family: "cuGraphicsResourceGetMappedEglFrame", since: 7000, stream: Any, args: (eglFrame: *mut CUeglFrame, resource: CUgraphicsResource, index: u32, mipLevel: u32) }
            { id: 275, symbol: cuGraphicsResourceGetMappedMipmappedArray, family: "cuGraphicsResourceGetMappedMipmappedArray", since: 5000, stream: Any, args: (pMipmappedArray: *mut CUmipmappedArray, resource: CUgraphicsResource) }
            { id: 276, symbol: cuGraphicsResourceGetMappedPointer, family: "cuGraphicsResourceGetMappedPointer", since: 3000, stream: Any, args: (pDevPtr: *mut CUdeviceptr_v1, pSize: *mut u32, resource: CUgraphicsResource) }
            { id: 277, symbol: cuGraphicsResourceGetMappedPointer_v2, family: "cuGraphicsResourceGetMappedPointer", since: 3020, stream: Any, args: (pDevPtr: *mut CUdeviceptr, pSize: *mut usize, resource: CUgraphicsResource) }
            { id: 278, symbol: cuGraphicsResourceSetMapFlags, family: "cuGraphicsResourceSetMapFlags", since: 3000, stream: Any, args: (resource: CUgraphicsResource, flags: u32) }
            { id: 279, symbol: cuGraphicsResourceSetMapFlags_v2, family: "cuGraphicsResourceSetMapFlags", since: 6050, stream: Any, args: (resource: CUgraphicsResource, flags: u32) }
            { id: 280, symbol: cuGraphicsSubResourceGetMappedArray, family: "cuGraphicsSubResourceGetMappedArray", since: 3000, stream: Any, args: (pArray: *mut CUarray, resource: CUgraphicsResource, arrayIndex: u32, mipLevel: u32) }
            { id: 281, symbol: cuGraphicsUnmapResources, family: "cuGraphicsUnmapResources", since: 3000, stream: Legacy, args: (count: u32, resources: *mut CUgraphicsResource, hStream: CUstream) }
            { id: 282, symbol: cuGraphicsUnmapResources_ptsz, family: "cuGraphicsUnmapResources", since: 7000, stream: PerThread, args: (count: u32, resources: *mut CUgraphicsResource, hStream: CUstream) }
            { id: 283, symbol: cuGraphicsUnregisterResource, family: "cuGraphicsUnregisterResource", since: 3000, stream: Any, args: (resource: CUgraphicsResource) }
            { id: 284, symbol: cuGraphicsVDPAURegisterOutputSurface, family: "cuGraphicsVDPAURegisterOutputSurface", since: 3010, stream: Any, args: (pCudaResource: *mut CUgraphicsResource, vdpSurface: VdpOutputSurface, flags: u32) }
            { id: 285, symbol: cuGraphicsVDPAURegisterVideoSurface, family: "cuGraphicsVDPAURegisterVideoSurface", since: 3010, stream: Any, args: (pCudaResource: *mut CUgraphicsResource, vdpSurface: VdpVideoSurface, flags: u32) }
            { id: 286, symbol: cuGreenCtxCreate, family: "cuGreenCtxCreate", since: 12040, stream: Any, args: (phCtx: *mut CUgreenCtx, desc: CUdevResourceDesc, dev: CUdevice, flags: u32) }
            { id: 287, symbol: cuGreenCtxDestroy, family: "cuGreenCtxDestroy", since: 12040, stream: Any, args: (hCtx: CUgreenCtx) }
            { id: 288, symbol: cuGreenCtxGetDevResource, family: "cuGreenCtxGetDevResource", since: 12040, stream: Any, args: (hCtx: CUgreenCtx, resource: *mut c_void, r#type: CUdevResourceType) }
            { id: 289, symbol: cuGreenCtxGetId, family: "cuGreenCtxGetId", since: 12090, stream: Any, args: (greenCtx: CUgreenCtx, greenCtxId: *mut u64) }
            { id: 290, symbol: cuGreenCtxRecordEvent, family: "cuGreenCtxRecordEvent", since: 12040, stream: Any, args: (hCtx: CUgreenCtx, hEvent: CUevent) }
            { id: 291, symbol: cuGreenCtxStreamCreate, family: "cuGreenCtxStreamCreate", since: 12050, stream: Any, args: (phStream: *mut CUstream, greenCtx: CUgreenCtx, flags: u32, priority: i32) }
            { id: 292, symbol: cuGreenCtxWaitEvent, family: "cuGreenCtxWaitEvent", since: 12040, stream: Any, args: (hCtx: CUgreenCtx, hEvent: CUevent) }
            { id: 293, symbol: cuImportExternalMemory, family: "cuImportExternalMemory", since: 10000, stream: Any, args: (extMem_out: *mut CUexternalMemory, memHandleDesc: *const c_void) }
            { id: 294, symbol: cuImportExternalSemaphore, family: "cuImportExternalSemaphore", since: 10000, stream: Any, args: (extSem_out: *mut CUexternalSemaphore, semHandleDesc: *const c_void) }
            { id: 295, symbol: cuInit, family: "cuInit", since: 2000, stream: Any, args: (Flags: u32) }
            { id: 296, symbol: cuIpcCloseMemHandle, family: "cuIpcCloseMemHandle", since: 4010, stream: Any, args: (dptr: CUdeviceptr) }
            { id: 297, symbol: cuIpcGetEventHandle, family: "cuIpcGetEventHandle", since: 4010, stream: Any, args: (pHandle: *mut CUipcEventHandle, event: CUevent) }
            { id: 298, symbol: cuIpcGetMemHandle, family: "cuIpcGetMemHandle", since: 4010, stream: Any, args: (pHandle: *mut CUipcMemHandle, dptr: CUdeviceptr) }
            { id: 299, symbol: cuIpcOpenEventHandle, family: "cuIpcOpenEventHandle", since: 4010, stream: Any, args: (phEvent: *mut CUevent, handle: CUipcEventHandle) }
            { id: 300, symbol: cuIpcOpenMemHandle, family: "cuIpcOpenMemHandle", since: 4010, stream: Any, args: (pdptr: *mut CUdeviceptr, handle: CUipcMemHandle, Flags: u32) }
            { id: 301, symbol: cuIpcOpenMemHandle_v2, family: "cuIpcOpenMemHandle", since: 11000, stream: Any, args: (pdptr: *mut CUdeviceptr, handle: CUipcMemHandle, Flags: u32) }
            { id: 302, symbol: cuKernelGetAttribute, family: "cuKernelGetAttribute", since: 12000, stream: Any, args: (pi: *mut i32, attrib: CUfunction_attribute, kernel: CUkernel, dev: CUdevice) }
            { id: 303, symbol: cuKernelGetFunction, family: "cuKernelGetFunction", since: 12000, stream: Any, args: (pFunc: *mut CUfunction, kernel: CUkernel) }
            { id: 304, symbol: cuKernelGetLibrary, family: "cuKernelGetLibrary", since: 12050, stream: Any, args: (pLib: *mut CUlibrary, kernel: CUkernel) }
            { id: 305, symbol: cuKernelGetName, family: "cuKernelGetName", since: 12030, stream: Any, args: (name: *mut *const c_char, hfunc: CUkernel) }
            { id: 306, symbol: cuKernelGetParamCount, family: "cuKernelGetParamCount", since: 13020, stream: Any, args: (kernel: CUkernel, paramCount: *mut usize) }
            { id: 307, symbol: cuKernelGetParamInfo, family: "cuKernelGetParamInfo", since: 12040, stream: Any, args: (kernel: CUkernel, paramIndex: usize, paramOffset: *mut usize, paramSize: *mut usize) }
            { id: 308, symbol: cuKernelSetAttribute, family: "cuKernelSetAttribute", since: 12000, stream: Any, args: (attrib: CUfunction_attribute, val: i32, kernel: CUkernel, dev: CUdevice) }
            { id: 309, symbol: cuKernelSetCacheConfig, family: "cuKernelSetCacheConfig", since: 12000, stream: Any, args: (kernel: CUkernel, config: CUfunc_cache, dev: CUdevice) }
            { id: 310, symbol: cuLaunch, family: "cuLaunch", since: 2000, stream: Any, args: (f: CUfunction) }
            { id: 311, symbol: cuLaunchCooperativeKernel, family: "cuLaunchCooperativeKernel", since: 9000, stream: Legacy, args: (f: CUfunction, gridDimX: u32, gridDimY: u32, gridDimZ: u32, blockDimX: u32, blockDimY: u32, blockDimZ: u32, sharedMemBytes: u32, hStream: CUstream, kernelParams: *mut *mut c_void) }
            { id: 312, symbol: cuLaunchCooperativeKernelMultiDevice, family: "cuLaunchCooperativeKernelMultiDevice", since: 9000, stream: Any, args: (launchParamsList: *mut CUDA_LAUNCH_PARAMS, numDevices: u32, flags: u32) }
            { id: 313, symbol: cuLaunchCooperativeKernel_ptsz, family: "cuLaunchCooperativeKernel", since: 9000, stream: PerThread, args: (f: CUfunction, gridDimX: u32, gridDimY: u32, gridDimZ: u32, blockDimX: u32, blockDimY: u32, blockDimZ: u32, sharedMemBytes: u32, hStream: CUstream, kernelParams: *mut *mut c_void) }
            { id: 314, symbol: cuLaunchGrid, family: "cuLaunchGrid", since: 2000, stream: Any, args: (f: CUfunction, grid_width: i32, grid_height: i32) }
            { id: 315, symbol: cuLaunchGridAsync, family: "cuLaunchGridAsync", since: 2000, stream: Any, args: (f: CUfunction, grid_width: i32, grid_height: i32, hStream: CUstream) }
            { id: 316, symbol: cuLaunchHostFunc, family: "cuLaunchHostFunc", since: 10000, stream: Legacy, args: (hStream: CUstream, r#fn: CUhostFn, userData: *mut c_void) }
            { id: 317, symbol: cuLaunchHostFunc_ptsz, family: "cuLaunchHostFunc", since: 10000, stream: PerThread, args: (hStream: CUstream, r#fn: CUhostFn, userData: *mut c_void) }
            { id: 318, symbol: cuLaunchHostFunc_v2, family: "cuLaunchHostFunc", since: 13010, stream: Legacy, args: (hStream: CUstream, r#fn: CUhostFn, userData: *mut c_void, syncMode: u32) }
            { id: 319, symbol: cuLaunchHostFunc_v2_ptsz, family: "cuLaunchHostFunc", since: 13010, stream: PerThread, args: (hStream: CUstream, r#fn: CUhostFn, userData: *mut c_void, syncMode: u32) }
            { id: 320, symbol: cuLaunchKernel, family: "cuLaunchKernel", since: 4000, stream: Legacy, args: (f: CUfunction, gridDimX: u32, gridDimY: u32, gridDimZ: u32, blockDimX: u32, blockDimY: u32, blockDimZ: u32, sharedMemBytes: u32, hStream: CUstream, kernelParams: *mut *mut c_void, extra: *mut *mut c_void) }
            { id: 321, symbol: cuLaunchKernelEx, family: "cuLaunchKernelEx", since: 11060, stream: Legacy, args: (config: *const CUlaunchConfig, f: CUfunction, kernelParams: *mut *mut c_void, extra: *mut *mut c_void) }
            { id: 322, symbol: cuLaunchKernelEx_ptsz, family: "cuLaunchKernelEx", since: 11060, stream: PerThread, args: (config: *const CUlaunchConfig, f: CUfunction, kernelParams: *mut *mut c_void, extra: *mut *mut c_void) }
            { id: 323, symbol: cuLaunchKernel_ptsz, family: "cuLaunchKernel", since: 7000, stream: PerThread, args: (f: CUfunction, gridDimX: u32, gridDimY: u32, gridDimZ: u32, blockDimX: u32, blockDimY: u32, blockDimZ: u32, sharedMemBytes: u32, hStream: CUstream, kernelParams: *mut *mut c_void, extra: *mut *mut c_void) }
            { id: 324, symbol: cuLibraryEnumerateKernels, family: "cuLibraryEnumerateKernels", since: 12040, stream: Any, args: (kernels: *mut CUkernel, numKernels: u32, lib: CUlibrary) }
            { id: 325, symbol: cuLibraryGetGlobal, family: "cuLibraryGetGlobal", since: 12000, stream: Any, args: (dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char) }
            { id: 326, symbol: cuLibraryGetKernel, family: "cuLibraryGetKernel", since: 12000, stream: Any, args: (pKernel: *mut CUkernel, library: CUlibrary, name: *const c_char) }
            { id: 327, symbol: cuLibraryGetKernelCount, family: "cuLibraryGetKernelCount", since: 12040, stream: Any, args: (count: *mut u32, lib: CUlibrary) }
            { id: 328, symbol: cuLibraryGetManaged, family: "cuLibraryGetManaged", since: 12000, stream: Any, args: (dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char) }
            { id: 329, symbol: cuLibraryGetModule, family: "cuLibraryGetModule", since: 12000, stream: Any, args: (pMod: *mut CUmodule, library: CUlibrary) }
            { id: 330, symbol: cuLibraryGetUnifiedFunction, family: "cuLibraryGetUnifiedFunction", since: 12000, stream: Any, args: (fptr: *mut *mut c_void, library: CUlibrary, symbol: *const c_char) }
            { id: 331, symbol: cuLibraryLoadData, family: "cuLibraryLoadData", since: 12000, stream: Any, args: (library: *mut CUlibrary, code: *const c_void, jitOptions: *mut CUjit_option, jitOptionsValues: *mut *mut c_void, numJitOptions: u32, libraryOptions: *mut CUlibraryOption, libraryOptionValues: *mut *mut c_void, numLibraryOptions: u32) }
            { id: 332, symbol: cuLibraryLoadFromFile, family: "cuLibraryLoadFromFile", since: 12000, stream: Any, args: (library: *mut CUlibrary, fileName: *const c_char, jitOptions: *mut CUjit_option, jitOptionsValues: *mut *mut c_void, numJitOptions: u32, libraryOptions: *mut CUlibraryOption, libraryOptionValues: *mut *mut c_void, numLibraryOptions: u32) }
            { id: 333, symbol: cuLibraryUnload, family: "cuLibraryUnload", since: 12000, stream: Any, args: (library: CUlibrary) }
            { id: 334, symbol: cuLinkAddData, family: "cuLinkAddData", since: 5050, stream: Any, args: (state: CUlinkState, r#type: CUjitInputType, data: *mut c_void, size: usize, name: *const c_char, numOptions: u32, options: *mut CUjit_option, optionValues: *mut *mut c_void) }
            { id: 335, symbol: cuLinkAddData_v2, family: "cuLinkAddData", since: 6050, stream: Any, args: (state: CUlinkState, r#type: CUjitInputType, data: *mut c_void, size: usize, name: *const c_char, numOptions: u32, options: *mut CUjit_option, optionValues: *mut *mut c_void) }
            { id: 336, symbol: cuLinkAddFile, family: "cuLinkAddFile", since: 5050, stream: Any, args: (state: CUlinkState, r#type: CUjitInputType, path: *const c_char, numOptions: u32, options: *mut CUjit_option, optionValues: *mut *mut c_void) }
            { id: 337, symbol: cuLinkAddFile_v2, family: "cuLinkAddFile", since: 6050, stream: Any, args: (state: CUlinkState, r#type: CUjitInputType, path: *const c_char, numOptions: u32, options: *mut CUjit_option, optionValues: *mut *mut c_void) }
            { id: 338, symbol: cuLinkComplete, family: "cuLinkComplete", since: 5050, stream: Any, args: (state: CUlinkState, cubinOut: *mut *mut c_void, sizeOut: *mut usize) }
            { id: 339, symbol: cuLinkCreate, family: "cuLinkCreate", since: 5050, stream: Any, args: (numOptions: u32, options: *mut CUjit_option, optionValues: *mut *mut c_void, stateOut: *mut CUlinkState) }
            { id: 340, symbol: cuLinkCreate_v2, family: "cuLinkCreate", since: 6050, stream: Any, args: (numOptions: u32, options: *mut CUjit_option, optionValues: *mut *mut c_void, stateOut: *mut CUlinkState) }
            { id: 341, symbol: cuLinkDestroy, family: "cuLinkDestroy", since: 5050, stream: Any, args: (state: CUlinkState) }
            { id: 342, symbol: cuLogicalEndpointAddDevice, family: "cuLogicalEndpointAddDevice", since: 13030, stream: Any, args: (leId: CUlogicalEndpointId, dev: CUdevice) }
            { id: 343, symbol: cuLogicalEndpointBindAddr, family: "cuLogicalEndpointBindAddr", since: 13030, stream: Any, args: (leId: CUlogicalEndpointId, dev: CUdevice, offset: u64, ptr: *mut c_void, size: u64, flags: u64) }
            { id: 344, symbol: cuLogicalEndpointBindMem, family: "cuLogicalEndpointBindMem", since: 13030, stream: Any, args: (leId: CUlogicalEndpointId, dev: CUdevice, offset: u64, memHandle: CUmemGenericAllocationHandle, memOffset: u64, size: u64, flags: u64) }
            { id: 345, symbol: cuLogicalEndpointCreate, family: "cuLogicalEndpointCreate", since: 13030, stream: Any, args: (leId: CUlogicalEndpointId, prop: *const c_void) }
            { id: 346, symbol: cuLogicalEndpointDestroy, family: "cuLogicalEndpointDestroy", since: 13030, stream: Any, args: (leId: CUlogicalEndpointId) }
            { id: 347, symbol: cuLogicalEndpointExport, family: "cuLogicalEndpointExport", since: 13030, stream: Any, args: (handle: *mut c_void, leId: CUlogicalEndpointId, handleType: CUlogicalEndpointIpcHandleType) }
            { id: 348, symbol: cuLogicalEndpointGetLimits, family: "cuLogicalEndpointGetLimits", since: 13030, stream: Any, args: (bindAlignment: *mut u64, maxSize: *mut u64, prop: *const c_void) }
            { id: 349, symbol: cuLogicalEndpointIdRelease, family: "cuLogicalEndpointIdRelease", since: 13030, stream: Any, args: (baseLeId: CUlogicalEndpointId, count: u32) }
            { id: 350, symbol: cuLogicalEndpointIdReserve, family: "cuLogicalEndpointIdReserve", since: 13030, stream: Any, args: (baseLeId: *mut CUlogicalEndpointId, count: u32) }
            { id: 351, symbol: cuLogicalEndpointImport, family: "cuLogicalEndpointImport", since: 13030, stream: Any, args: (leId: CUlogicalEndpointId, handle: *const c_void, handleType: CUlogicalEndpointIpcHandleType) }
            { id: 352, symbol: cuLogicalEndpointQuery, family: "cuLogicalEndpointQuery", since: 13030, stream: Any, args: (leId: CUlogicalEndpointId, count: u32, queryStatus: *mut i32) }
            { id: 353, symbol: cuLogicalEndpointUnbind, family: "cuLogicalEndpointUnbind", since: 13030, stream: Any, args: (leId: CUlogicalEndpointId, dev: CUdevice, offset: u64, size: u64) }
            { id: 354, symbol: cuLogsCurrent, family: "cuLogsCurrent", since: 12090, stream: Any, args: (iterator_out: *mut CUlogIterator, flags: u32) }
            { id: 355, symbol: cuLogsDumpToFile, family: "cuLogsDumpToFile", since: 12090, stream: Any, args: (iterator: *mut CUlogIterator, pathToFile: *const c_char, flags: u32) }
            { id: 356, symbol: cuLogsDumpToMemory, family: "cuLogsDumpToMemory", since: 12090, stream: Any, args: (iterator: *mut CUlogIterator, buffer: *mut c_char, size: *mut usize, flags: u32) }
            { id: 357, symbol: cuLogsRegisterCallback, family: "cuLogsRegisterCallback", since: 12090, stream: Any, args: (callbackFunc: CUlogsCallback, userData: *mut c_void, callback_out: *mut CUlogsCallbackHandle) }
            { id: 358, symbol: cuLogsUnregisterCallback, family: "cuLogsUnregisterCallback", since: 12090, stream: Any, args: (callback: CUlogsCallbackHandle) }
            { id: 359, symbol: cuMemAddressFree, family: "cuMemAddressFree", since: 10020, stream: Any, args: (ptr: CUdeviceptr, size: usize) }
            { id: 360, symbol: cuMemAddressReserve, family: "cuMemAddressReserve", since: 10020, stream: Any, args: (ptr: *mut CUdeviceptr, size: usize, alignment: usize, addr: CUdeviceptr, flags: u64) }
            { id: 361, symbol: cuMemAdvise, family: "cuMemAdvise", since: 8000, stream: Any, args: (devPtr: CUdeviceptr, count: usize, advice: CUmem_advise, device: CUdevice) }
            { id: 362, symbol: cuMemAdvise_v2, family: "cuMemAdvise", since: 12020, stream: Any, args: (devPtr: CUdeviceptr, count: usize, advice: CUmem_advise, location: CUmemLocation) }
            { id: 363, symbol: cuMemAlloc, family: "cuMemAlloc", since: 2000, stream: Any, args: (dptr: *mut CUdeviceptr_v1, bytesize: u32) }
            { id: 364, symbol: cuMemAllocAsync, family: "cuMemAllocAsync", since: 11020, stream: Legacy, args: (dptr: *mut CUdeviceptr, bytesize: usize, hStream: CUstream) }
            { id: 365, symbol: cuMemAllocAsync_ptsz, family: "cuMemAllocAsync", since: 11020, stream: PerThread, args: (dptr: *mut CUdeviceptr, bytesize: usize, hStream: CUstream) }
            { id: 366, symbol: cuMemAllocFromPoolAsync, family: "cuMemAllocFromPoolAsync", since: 11020, stream: Legacy, args: (dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, hStream: CUstream) }
            { id: 367, symbol: cuMemAllocFromPoolAsync_ptsz, family: "cuMemAllocFromPoolAsync", since: 11020, stream: PerThread, args: (dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, hStream: CUstream) }
            { id: 368, symbol: cuMemAllocHost, family: "cuMemAllocHost", since: 2000, stream: Any, args: (pp: *mut *mut c_void, bytesize: u32) }
            { id: 369, symbol: cuMemAllocHost_v2, family: "cuMemAllocHost", since: 3020, stream: Any, args: (pp: *mut *mut c_void, bytesize: usize) }
            { id: 370, symbol: cuMemAllocManaged, family: "cuMemAllocManaged", since: 6000, stream: Any, args: (dptr: *mut CUdeviceptr, bytesize: usize, flags: u32) }
            { id: 371, symbol: cuMemAllocPitch, family: "cuMemAllocPitch", since: 2000, stream: Any, args: (dptr: *mut CUdeviceptr_v1, pPitch: *mut u32, WidthInBytes: u32, Height: u32, ElementSizeBytes: u32) }
            { id: 372, symbol: cuMemAllocPitch_v2, family: "cuMemAllocPitch", since: 3020, stream: Any, args: (dptr: *mut CUdeviceptr, pPitch: *mut usize, WidthInBytes: usize, Height: usize, ElementSizeBytes: u32) }
            { id: 373, symbol: cuMemAlloc_v2, family: "cuMemAlloc", since: 3020, stream: Any, args: (dptr: *mut CUdeviceptr, bytesize: usize) }
            { id: 374, symbol: cuMemBatchDecompressAsync, family: "cuMemBatchDecompressAsync", since: 12060, stream: Legacy, args: (paramsArray: *mut c_void, count: usize, flags: u32, errorIndex: *mut usize, stream: CUstream) }
            { id: 375, symbol: cuMemBatchDecompressAsync_ptsz, family: "cuMemBatchDecompressAsync", since: 12060, stream: PerThread, args: (paramsArray: *mut c_void, count: usize, flags: u32, errorIndex: *mut usize, stream: CUstream) }
            { id: 376, symbol: cuMemCreate, family: "cuMemCreate", since: 10020, stream: Any, args: (handle: *mut CUmemGenericAllocationHandle, size: usize, prop: *const CUmemAllocationProp, flags: u64) }
            { id: 377, symbol: cuMemDiscardAndPrefetchBatchAsync, family: "cuMemDiscardAndPrefetchBatchAsync", since: 13000, stream: Legacy, args: (dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, prefetchLocs: *mut CUmemLocation, prefetchLocIdxs: *mut usize, numPrefetchLocs: usize, flags: u64, hStream: CUstream) }
            { id: 378, symbol: cuMemDiscardAndPrefetchBatchAsync_ptsz, family: "cuMemDiscardAndPrefetchBatchAsync", since: 13000, stream: PerThread, args: (dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, prefetchLocs: *mut CUmemLocation, prefetchLocIdxs: *mut usize, numPrefetchLocs: usize, flags: u64, hStream: CUstream) }
            { id: 379, symbol: cuMemDiscardBatchAsync, family: "cuMemDiscardBatchAsync", since: 13000, stream: Legacy, args: (dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, flags: u64, hStream: CUstream) }
            { id: 380, symbol: cuMemDiscardBatchAsync_ptsz, family: "cuMemDiscardBatchAsync", since: 13000, stream: PerThread, args: (dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, flags: u64, hStream: CUstream) }
            { id: 381, symbol: cuMemExportToShareableHandle, family: "cuMemExportToShareableHandle", since: 10020, stream: Any, args: (shareableHandle: *mut c_void, handle: CUmemGenericAllocationHandle, handleType: CUmemAllocationHandleType, flags: u64) }
            { id: 382, symbol: cuMemFree, family: "cuMemFree", since: 2000, stream: Any, args: (dptr: CUdeviceptr_v1) }
            { id: 383, symbol: cuMemFreeAsync, family: "cuMemFreeAsync", since: 11020, stream: Legacy, args: (dptr: CUdeviceptr, hStream: CUstream) }
            { id: 384, symbol: cuMemFreeAsync_ptsz, family: "cuMemFreeAsync", since: 11020, stream: PerThread, args: (dptr: CUdeviceptr, hStream: CUstream) }
            { id: 385, symbol: cuMemFreeHost, family: "cuMemFreeHost", since: 2000, stream: Any, args: (p: *mut c_void) }
            { id: 386, symbol: cuMemFree_v2, family: "cuMemFree", since: 3020, stream: Any, args: (dptr: CUdeviceptr) }
            { id: 387, symbol: cuMemGetAccess, family: "cuMemGetAccess", since: 10020, stream: Any, args: (flags: *mut u64, location: *const CUmemLocation, ptr: CUdeviceptr) }
            { id: 388, symbol: cuMemGetAddressRange, family: "cuMemGetAddressRange", since: 2000, stream: Any, args: (pbase: *mut CUdeviceptr_v1, psize: *mut u32, dptr: CUdeviceptr_v1) }
            { id: 389, symbol: cuMemGetAddressRange_v2, family: "cuMemGetAddressRange", since: 3020, stream: Any, args: (pbase: *mut CUdeviceptr, psize: *mut usize, dptr: CUdeviceptr) }
            { id: 390, symbol: cuMemGetAllocationGranularity, family: "cuMemGetAllocationGranularity", since: 10020, stream: Any, args: (granularity: *mut usize, prop: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags) }
            { id: 391, symbol: cuMemGetAllocationPropertiesFromHandle, family: "cuMemGetAllocationPropertiesFromHandle", since: 10020, stream: Any, args: (prop: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle) }
            { id: 392, symbol: cuMemGetDefaultMemPool, family: "cuMemGetDefaultMemPool", since: 13000, stream: Any, args: (pool_out: *mut CUmemoryPool, location: *mut CUmemLocation, r#type: CUmemAllocationType) }
            { id: 393, symbol: cuMemGetHandleForAddressRange, family: "cuMemGetHandleForAddressRange", since: 11070, stream: Any, args: (handle: *mut c_void, dptr: CUdeviceptr, size: usize, handleType: CUmemRangeHandleType, flags: u64) }
            { id: 394, symbol: cuMemGetInfo, family: "cuMemGetInfo", since: 2000, stream: Any, args: (free: *mut u32, total: *mut u32) }
            { id: 395, symbol: cuMemGetInfo_v2, family: "cuMemGetInfo", since: 3020, stream: Any, args: (free: *mut usize, total: *mut usize) }
            { id: 396, symbol: cuMemGetLocationInfo, family: "cuMemGetLocationInfo", since: 13040, stream: Any, args: (ptr: CUdeviceptr, size: usize, summaryGranularity: usize, samplingGranularity: usize, location_out: *mut CUmemLocation) }
            { id: 397, symbol: cuMemGetMemPool, family: "cuMemGetMemPool", since: 13000, stream: Any, args: (pool: *mut CUmemoryPool, location: *mut CUmemLocation, r#type: CUmemAllocationType) }
            { id: 398, symbol: cuMemHostAlloc, family: "cuMemHostAlloc", since: 2020, stream: Any, args: (pp: *mut *mut c_void, bytesize: usize, Flags: u32) }
            { id: 399, symbol: cuMemHostGetDevicePointer, family: "cuMemHostGetDevicePointer", since: 2020, stream: Any, args: (pdptr: *mut CUdeviceptr_v1, p: *mut c_void, Flags: u32) }
            { id: 400, symbol: cuMemHostGetDevicePointer_v2, family: "cuMemHostGetDevicePointer", since: 3020, stream: Any, args: (pdptr: *mut CUdeviceptr, p: *mut c_void, Flags: u32) }
            { id: 401, symbol: cuMemHostGetFlags, family: "cuMemHostGetFlags", since: 2030, stream: Any, args: (pFlags: *mut u32, p: *mut c_void) }
            { id: 402, symbol: cuMemHostRegister, family: "cuMemHostRegister", since: 4000, stream: Any, args: (p: *mut c_void, bytesize: usize, Flags: u32) }
            { id: 403, symbol: cuMemHostRegister_v2, family: "cuMemHostRegister", since: 6050, stream: Any, args: (p: *mut c_void, bytesize: usize, Flags: u32) }
            { id: 404, symbol: cuMemHostUnregister, family: "cuMemHostUnregister", since: 4000, stream: Any, args: (p: *mut c_void) }
            { id: 405, symbol: cuMemImportFromShareableHandle, family: "cuMemImportFromShareableHandle", since: 10020, stream: Any, args: (handle: *mut CUmemGenericAllocationHandle, osHandle: *mut c_void, shHandleType: CUmemAllocationHandleType) }
            { id: 406, symbol: cuMemMap, family: "cuMemMap", since: 10020, stream: Any, args: (ptr: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64) }
            { id: 407, symbol: cuMemMapArrayAsync, family: "cuMemMapArrayAsync", since: 11010, stream: Legacy, args: (mapInfoList: *mut c_void, count: u32, hStream: CUstream) }
            { id: 408, symbol: cuMemMapArrayAsync_ptsz, family: "cuMemMapArrayAsync", since: 11010, stream: PerThread, args: (mapInfoList: *mut c_void, count: u32, hStream: CUstream) }
            { id: 409, symbol: cuMemPoolCreate, family: "cuMemPoolCreate", since: 11020, stream: Any, args: (pool: *mut CUmemoryPool, poolProps: *const CUmemPoolProps) }
            { id: 410, symbol: cuMemPoolDestroy, family: "cuMemPoolDestroy", since: 11020, stream: Any, args: (pool: CUmemoryPool) }
            { id: 411, symbol: cuMemPoolExportPointer, family: "cuMemPoolExportPointer", since: 11020, stream: Any, args: (shareData_out: *mut c_void, ptr: CUdeviceptr) }
            { id: 412, symbol: cuMemPoolExportToShareableHandle, family: "cuMemPoolExportToShareableHandle", since: 11020, stream: Any, args: (handle_out: *mut c_void, pool: CUmemoryPool, handleType: CUmemAllocationHandleType, flags: u64) }
            { id: 413, symbol: cuMemPoolGetAccess, family: "cuMemPoolGetAccess", since: 11020, stream: Any, args: (flags: *mut CUmemAccess_flags, memPool: CUmemoryPool, location: *mut CUmemLocation) }
            { id: 414, symbol: cuMemPoolGetAttribute, family: "cuMemPoolGetAttribute", since: 11020, stream: Any, args: (pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void) }
            { id: 415, symbol: cuMemPoolImportFromShareableHandle, family: "cuMemPoolImportFromShareableHandle", since: 11020, stream: Any, args: (pool_out: *mut CUmemoryPool, handle: *mut c_void, handleType: CUmemAllocationHandleType, flags: u64) }
            { id: 416, symbol: cuMemPoolImportPointer, family: "cuMemPoolImportPointer", since: 11020, stream: Any, args: (ptr_out: *mut CUdeviceptr, pool: CUmemoryPool, shareData: *mut c_void) }
            { id: 417, symbol: cuMemPoolSetAccess, family: "cuMemPoolSetAccess", since: 11020, stream: Any, args: (pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize) }
            { id: 418, symbol: cuMemPoolSetAttribute, family: "cuMemPoolSetAttribute", since: 11020, stream: Any, args: (pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void) }
            { id: 419, symbol: cuMemPoolTrimTo, family: "cuMemPoolTrimTo", since: 11020, stream: Any, args: (pool: CUmemoryPool, minBytesToKeep: usize) }
            { id: 420, symbol: cuMemPrefetchAsync, family: "cuMemPrefetchAsync", since: 8000, stream: Legacy, args: (devPtr: CUdeviceptr, count: usize, dstDevice: CUdevice, hStream: CUstream) }
            { id: 421, symbol: cuMemPrefetchAsync_ptsz, family: "cuMemPrefetchAsync", since: 8000, stream: PerThread, args: (devPtr: CUdeviceptr, count: usize, dstDevice: CUdevice, hStream: CUstream) }
            { id: 422, symbol: cuMemPrefetchAsync_v2, family: "cuMemPrefetchAsync", since: 12020, stream: Legacy, args: (devPtr: CUdeviceptr, count: usize, location: CUmemLocation, flags: u32, hStream: CUstream) }
            { id: 423, symbol: cuMemPrefetchAsync_v2_ptsz, family: "cuMemPrefetchAsync", since: 12020, stream: PerThread, args: (devPtr: CUdeviceptr, count: usize, location: CUmemLocation, flags: u32, hStream: CUstream) }
            { id: 424, symbol: cuMemPrefetchBatchAsync, family: "cuMemPrefetchBatchAsync", since: 13000, stream: Legacy, args: (dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, prefetchLocs: *mut CUmemLocation, prefetchLocIdxs: *mut usize, numPrefetchLocs: usize, flags: u64, hStream: CUstream) }
            { id: 425, symbol: cuMemPrefetchBatchAsync_ptsz, family: "cuMemPrefetchBatchAsync", since: 13000, stream: PerThread, args: (dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, prefetchLocs: *mut CUmemLocation, prefetchLocIdxs: *mut usize, numPrefetchLocs: usize, flags: u64, hStream: CUstream) }
            { id: 426, symbol: cuMemRangeGetAttribute, family: "cuMemRangeGetAttribute", since: 8000, stream: Any, args: (data: *mut c_void, dataSize: usize, attribute: CUmem_range_attribute, devPtr: CUdeviceptr, count: usize) }
            { id: 427, symbol: cuMemRangeGetAttributes, family: "cuMemRangeGetAttributes", since: 8000, stream: Any, args: (data: *mut *mut c_void, dataSizes: *mut usize, attributes: *mut CUmem_range_attribute, numAttributes: usize, devPtr: CUdeviceptr, count: usize) }
            { id: 428, symbol: cuMemRelease, family: "cuMemRelease", since: 10020, stream: Any, args: (handle: CUmemGenericAllocationHandle) }
            { id: 429, symbol: cuMemRetainAllocationHandle, family: "cuMemRetainAllocationHandle", since: 11000, stream: Any, args: (handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void) }
            { id: 430, symbol: cuMemSetAccess, family: "cuMemSetAccess", since: 10020, stream: Any, args: (ptr: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize) }
            { id: 431, symbol: cuMemSetMemPool, family: "cuMemSetMemPool", since: 13000, stream: Any, args: (location: *mut CUmemLocation, r#type: CUmemAllocationType, pool: CUmemoryPool) }
            { id: 432, symbol: cuMemUnmap, family: "cuMemUnmap", since: 10020, stream: Any, args: (ptr: CUdeviceptr, size: usize) }
            { id: 433, symbol: cuMemcpy, family: "cuMemcpy", since: 4000, stream: Legacy, args: (dst: CUdeviceptr, src: CUdeviceptr, ByteCount: usize) }
            { id: 434, symbol: cuMemcpy2D, family: "cuMemcpy2D", since: 2000, stream: Legacy, args: (pCopy: *const CUDA_MEMCPY2D_v1) }
            { id: 435, symbol: cuMemcpy2DAsync, family: "cuMemcpy2DAsync", since: 2000, stream: Legacy, args: (pCopy: *const CUDA_MEMCPY2D_v1, hStream: CUstream) }
            { id: 436, symbol: cuMemcpy2DAsync_v2, family: "cuMemcpy2DAsync", since: 3020, stream: Legacy, args: (pCopy: *const CUDA_MEMCPY2D, hStream: CUstream) }
            { id: 437, symbol: cuMemcpy2DAsync_v2_ptsz, family: "cuMemcpy2DAsync", since: 7000, stream: PerThread, args: (pCopy: *const CUDA_MEMCPY2D, hStream: CUstream) }
            { id: 438, symbol: cuMemcpy2DUnaligned, family: "cuMemcpy2DUnaligned", since: 2000, stream: Legacy, args: (pCopy: *const CUDA_MEMCPY2D_v1) }
            { id: 439, symbol: cuMemcpy2DUnaligned_v2, family: "cuMemcpy2DUnaligned", since: 3020, stream: Legacy, args: (pCopy: *const CUDA_MEMCPY2D) }
            { id: 440, symbol: cuMemcpy2DUnaligned_v2_ptds, family: "cuMemcpy2DUnaligned", since: 7000, stream: PerThread, args: (pCopy: *const CUDA_MEMCPY2D) }
            { id: 441, symbol: cuMemcpy2D_v2, family: "cuMemcpy2D", since: 3020, stream: Legacy, args: (pCopy: *const CUDA_MEMCPY2D) }
            { id: 442, symbol: cuMemcpy2D_v2_ptds, family: "cuMemcpy2D", since: 7000, stream: PerThread, args: (pCopy: *const CUDA_MEMCPY2D) }
            { id: 443, symbol: cuMemcpy3D, family: "cuMemcpy3D", since: 2000, stream: Legacy, args: (pCopy: *const CUDA_MEMCPY3D_v1) }
            { id: 444, symbol: cuMemcpy3DAsync, family: "cuMemcpy3DAsync", since: 2000, stream: Legacy, args: (pCopy: *const CUDA_MEMCPY3D_v1, hStream: CUstream) }
            { id: 445, symbol: cuMemcpy3DAsync_v2, family: "cuMemcpy3DAsync", since: 3020, stream: Legacy, args: (pCopy: *const CUDA_MEMCPY3D, hStream: CUstream) }
            { id: 446, symbol: cuMemcpy3DAsync_v2_ptsz, family: "cuMemcpy3DAsync", since: 7000, stream: PerThread, args: (pCopy: *const CUDA_MEMCPY3D, hStream: CUstream) }
            { id: 447, symbol: cuMemcpy3DBatchAsync, family: "cuMemcpy3DBatchAsync", since: 12080, stream: Legacy, args: (numOps: usize, opList: *mut c_void, failIdx: *mut usize, flags: u64, hStream: CUstream) }
            { id: 448, symbol: cuMemcpy3DBatchAsync_ptsz, family: "cuMemcpy3DBatchAsync", since: 12080, stream: PerThread, args: (numOps: usize, opList: *mut c_void, failIdx: *mut usize, flags: u64, hStream: CUstream) }
            { id: 449, symbol: cuMemcpy3DBatchAsync_v2, family: "cuMemcpy3DBatchAsync", since: 13000, stream: Legacy, args: (numOps: usize, opList: *mut c_void, flags: u64, hStream: CUstream) }
            { id: 450, symbol: cuMemcpy3DBatchAsync_v2_ptsz, family: "cuMemcpy3DBatchAsync", since: 13000, stream: PerThread, args: (numOps: usize, opList: *mut c_void, flags: u64, hStream: CUstream) }
            { id: 451, symbol: cuMemcpy3DPeer, family: "cuMemcpy3DPeer", since: 4000, stream: Legacy, args: (pCopy: *const CUDA_MEMCPY3D_PEER) }
            { id: 452, symbol: cuMemcpy3DPeerAsync, family: "cuMemcpy3DPeerAsync", since: 4000, stream: Legacy, args: (pCopy: *const CUDA_MEMCPY3D_PEER, hStream: CUstream) }
            { id: 453, symbol: cuMemcpy3DPeerAsync_ptsz, family: "cuMemcpy3DPeerAsync", since: 7000, stream: PerThread, args: (pCopy: *const CUDA_MEMCPY3D_PEER, hStream: CUstream) }
            { id: 454, symbol: cuMemcpy3DPeer_ptds, family: "cuMemcpy3DPeer", since: 7000, stream: PerThread, args: (pCopy: *const CUDA_MEMCPY3D_PEER) }
            { id: 455, symbol: cuMemcpy3DWithAttributesAsync, family: "cuMemcpy3DWithAttributesAsync", since: 13020, stream: Legacy, args: (op: *mut c_void, flags: u64, hStream: CUstream) }
            { id: 456, symbol: cuMemcpy3DWithAttributesAsync_ptsz, family: "cuMemcpy3DWithAttributesAsync", since: 13020, stream: PerThread, args: (op: *mut c_void, flags: u64, hStream: CUstream) }
            { id: 457, symbol: cuMemcpy3D_v2, family: "cuMemcpy3D", since: 3020, stream: Legacy, args: (pCopy: *const CUDA_MEMCPY3D) }
            { id: 458, symbol: cuMemcpy3D_v2_ptds, family: "cuMemcpy3D", since: 7000, stream: PerThread, args: (pCopy: *const CUDA_MEMCPY3D) }
            { id: 459, symbol: cuMemcpyAsync, family: "cuMemcpyAsync", since: 4000, stream: Legacy, args: (dst: CUdeviceptr, src: CUdeviceptr, ByteCount: usize, hStream: CUstream) }
            { id: 460, symbol: cuMemcpyAsync_ptsz, family: "cuMemcpyAsync", since: 7000, stream: PerThread, args: (dst: CUdeviceptr, src: CUdeviceptr, ByteCount: usize, hStream: CUstream) }
            { id: 461, symbol: cuMemcpyAtoA, family: "cuMemcpyAtoA", since: 2000, stream: Legacy, args: (dstArray: CUarray, dstOffset: u32, srcArray: CUarray, srcOffset: u32, ByteCount: u32) }
            { id: 462, symbol: cuMemcpyAtoA_v2, family: "cuMemcpyAtoA", since: 3020, stream: Legacy, args: (dstArray: CUarray, dstOffset: usize, srcArray: CUarray, srcOffset: usize, ByteCount: usize) }
            { id: 463, symbol: cuMemcpyAtoA_v2_ptds, family: "cuMemcpyAtoA", since: 7000, stream: PerThread, args: (dstArray: CUarray, dstOffset: usize, srcArray: CUarray, srcOffset: usize, ByteCount: usize) }
            { id: 464, symbol: cuMemcpyAtoD, family: "cuMemcpyAtoD", since: 2000, stream: Legacy, args: (dstDevice: CUdeviceptr_v1, srcArray: CUarray, srcOffset: u32, ByteCount: u32) }
            { id: 465, symbol: cuMemcpyAtoD_v2, family: "cuMemcpyAtoD", since: 3020, stream: Legacy, args: (dstDevice: CUdeviceptr, srcArray: CUarray, srcOffset: usize, ByteCount: usize) }
            { id: 466, symbol: cuMemcpyAtoD_v2_ptds, family: "cuMemcpyAtoD", since: 7000, stream: PerThread, args: (dstDevice: CUdeviceptr, srcArray: CUarray, srcOffset: usize, ByteCount: usize) }
            { id: 467, symbol: cuMemcpyAtoH, family: "cuMemcpyAtoH", since: 2000, stream: Legacy, args: (dstHost: *mut c_void, srcArray: CUarray, srcOffset: u32, ByteCount: u32) }
            { id: 468, symbol: cuMemcpyAtoHAsync, family: "cuMemcpyAtoHAsync", since: 2000, stream: Legacy, args: (dstHost: *mut c_void, srcArray: CUarray, srcOffset: u32, ByteCount: u32, hStream: CUstream) }
            { id: 469, symbol: cuMemcpyAtoHAsync_v2, family: "cuMemcpyAtoHAsync", since: 3020, stream: Legacy, args: (dstHost: *mut c_void, srcArray: CUarray, srcOffset: usize, ByteCount: usize, hStream: CUstream) }
            { id: 470, symbol: cuMemcpyAtoHAsync_v2_ptsz, family: "cuMemcpyAtoHAsync", since: 7000, stream: PerThread, args: (dstHost: *mut c_void, srcArray: CUarray, srcOffset: usize, ByteCount: usize, hStream: CUstream) }
            { id: 471, symbol: cuMemcpyAtoH_v2, family: "cuMemcpyAtoH", since: 3020, stream: Legacy, args: (dstHost: *mut c_void, srcArray: CUarray, srcOffset: usize, ByteCount: usize) }
            { id: 472, symbol: cuMemcpyAtoH_v2_ptds, family: "cuMemcpyAtoH", since: 7000, stream: PerThread, args: (dstHost: *mut c_void, srcArray: CUarray, srcOffset: usize, ByteCount: usize) }
            { id: 473, symbol: cuMemcpyBatchAsync, family: "cuMemcpyBatchAsync", since: 12080, stream: Legacy, args: (dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes, attrsIdxs: *mut usize, numAttrs: usize, failIdx: *mut usize, hStream: CUstream) }
            { id: 474, symbol: cuMemcpyBatchAsync_ptsz, family: "cuMemcpyBatchAsync", since: 12080, stream: PerThread, args: (dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes, attrsIdxs: *mut usize, numAttrs: usize, failIdx: *mut usize, hStream: CUstream) }
            { id: 475, symbol: cuMemcpyBatchAsync_v2, family: "cuMemcpyBatchAsync", since: 13000, stream: Legacy, args: (dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes, attrsIdxs: *mut usize, numAttrs: usize, hStream: CUstream) }
            { id: 476, symbol: cuMemcpyBatchAsync_v2_ptsz, family: "cuMemcpyBatchAsync", since: 13000, stream: PerThread, args: (dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes, attrsIdxs: *mut usize, numAttrs: usize, hStream: CUstream) }
            { id: 477, symbol: cuMemcpyDtoA, family: "cuMemcpyDtoA", since: 2000, stream: Legacy, args: (dstArray: CUarray, dstOffset: u32, srcDevice: CUdeviceptr_v1, ByteCount: u32) }
            { id: 478, symbol: cuMemcpyDtoA_v2, family: "cuMemcpyDtoA", since: 3020, stream: Legacy, args: (dstArray: CUarray, dstOffset: usize, srcDevice: CUdeviceptr, ByteCount: usize) }
            { id: 479, symbol: cuMemcpyDtoA_v2_ptds, family: "cuMemcpyDtoA", since: 7000, stream: PerThread, args: (dstArray: CUarray, dstOffset: usize, srcDevice: CUdeviceptr, ByteCount: usize) }
            { id: 480, symbol: cuMemcpyDtoD, family: "cuMemcpyDtoD", since: 2000, stream: Legacy, args: (dstDevice: CUdeviceptr_v1, srcDevice: CUdeviceptr_v1, ByteCount: u32) }
            { id: 481, symbol: cuMemcpyDtoDAsync, family: "cuMemcpyDtoDAsync", since: 3000, stream: Legacy, args: (dstDevice: CUdeviceptr_v1, srcDevice: CUdeviceptr_v1, ByteCount: u32, hStream: CUstream) }
            { id: 482, symbol: cuMemcpyDtoDAsync_v2, family: "cuMemcpyDtoDAsync", since: 3020, stream: Legacy, args: (dstDevice: CUdeviceptr, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream) }
            { id: 483, symbol: cuMemcpyDtoDAsync_v2_ptsz, family: "cuMemcpyDtoDAsync", since: 7000, stream: PerThread, args: (dstDevice: CUdeviceptr, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream) }
            { id: 484, symbol: cuMemcpyDtoD_v2, family: "cuMemcpyDtoD", since: 3020, stream: Legacy, args: (dstDevice: CUdeviceptr, srcDevice: CUdeviceptr, ByteCount: usize) }
            { id: 485, symbol: cuMemcpyDtoD_v2_ptds, family: "cuMemcpyDtoD", since: 7000, stream: PerThread, args: (dstDevice: CUdeviceptr, srcDevice: CUdeviceptr, ByteCount: usize) }
            { id: 486, symbol: cuMemcpyDtoH, family: "cuMemcpyDtoH", since: 2000, stream: Legacy, args: (dstHost: *mut c_void, srcDevice: CUdeviceptr_v1, ByteCount: u32) }
            { id: 487, symbol: cuMemcpyDtoHAsync, family: "cuMemcpyDtoHAsync", since: 2000, stream: Legacy, args: (dstHost: *mut c_void, srcDevice: CUdeviceptr_v1, ByteCount: u32, hStream: CUstream) }
            { id: 488, symbol: cuMemcpyDtoHAsync_v2, family: "cuMemcpyDtoHAsync", since: 3020, stream: Legacy, args: (dstHost: *mut c_void, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream) }
            { id: 489, symbol: cuMemcpyDtoHAsync_v2_ptsz, family: "cuMemcpyDtoHAsync", since: 7000, stream: PerThread, args: (dstHost: *mut c_void, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream) }
            { id: 490, symbol: cuMemcpyDtoH_v2, family: "cuMemcpyDtoH", since: 3020, stream: Legacy, args: (dstHost: *mut c_void, srcDevice: CUdeviceptr, ByteCount: usize) }
            { id: 491, symbol: cuMemcpyDtoH_v2_ptds, family: "cuMemcpyDtoH", since: 7000, stream: PerThread, args: (dstHost: *mut c_void, srcDevice: CUdeviceptr, ByteCount: usize) }
            { id: 492, symbol: cuMemcpyHtoA, family: "cuMemcpyHtoA", since: 2000, stream: Legacy, args: (dstArray: CUarray, dstOffset: u32, srcHost: *const c_void, ByteCount: u32) }
            { id: 493, symbol: cuMemcpyHtoAAsync, family: "cuMemcpyHtoAAsync", since: 2000, stream: Legacy, args: (dstArray: CUarray, dstOffset: u32, srcHost: *const c_void, ByteCount: u32, hStream: CUstream) }
            { id: 494, symbol: cuMemcpyHtoAAsync_v2, family: "cuMemcpyHtoAAsync", since: 3020, stream: Legacy, args: (dstArray: CUarray, dstOffset: usize, srcHost: *const c_void, ByteCount: usize, hStream: CUstream) }
            { id: 495, symbol: cuMemcpyHtoAAsync_v2_ptsz, family: "cuMemcpyHtoAAsync", since: 7000, stream: PerThread, args: (dstArray: CUarray, dstOffset: usize, srcHost: *const c_void, ByteCount: usize, hStream: CUstream) }
            { id: 496, symbol: cuMemcpyHtoA_v2, family: "cuMemcpyHtoA", since: 3020, stream: Legacy, args: (dstArray: CUarray, dstOffset: usize, srcHost: *const c_void, ByteCount: usize) }
            { id: 497, symbol: cuMemcpyHtoA_v2_ptds, family: "cuMemcpyHtoA", since: 7000, stream: PerThread, args: (dstArray: CUarray, dstOffset: usize, srcHost: *const c_void, ByteCount: usize) }
            { id: 498, symbol: cuMemcpyHtoD, family: "cuMemcpyHtoD", since: 2000, stream: Legacy, args: (dstDevice: CUdeviceptr_v1, srcHost: *const c_void, ByteCount: u32) }
            { id: 499, symbol: cuMemcpyHtoDAsync, family: "cuMemcpyHtoDAsync", since: 2000, stream: Legacy, args: (dstDevice: CUdeviceptr_v1, srcHost: *const c_void, ByteCount: u32, hStream: CUstream) }
            { id: 500, symbol: cuMemcpyHtoDAsync_v2, family: "cuMemcpyHtoDAsync", since: 3020, stream: Legacy, args: (dstDevice: CUdeviceptr, srcHost: *const c_void, ByteCount: usize, hStream: CUstream) }
            { id: 501, symbol: cuMemcpyHtoDAsync_v2_ptsz, family: "cuMemcpyHtoDAsync", since: 7000, stream: PerThread, args: (dstDevice: CUdeviceptr, srcHost: *const c_void, ByteCount: usize, hStream: CUstream) }
            { id: 502, symbol: cuMemcpyHtoD_v2, family: "cuMemcpyHtoD", since: 3020, stream: Legacy, args: (dstDevice: CUdeviceptr, srcHost: *const c_void, ByteCount: usize) }
            { id: 503, symbol: cuMemcpyHtoD_v2_ptds, family: "cuMemcpyHtoD", since: 7000, stream: PerThread, args: (dstDevice: CUdeviceptr, srcHost: *const c_void, ByteCount: usize) }
            { id: 504, symbol: cuMemcpyPeer, family: "cuMemcpyPeer", since: 4000, stream: Legacy, args: (dstDevice: CUdeviceptr, dstContext: CUcontext, srcDevice: CUdeviceptr, srcContext: CUcontext, ByteCount: usize) }
            { id: 505, symbol: cuMemcpyPeerAsync, family: "cuMemcpyPeerAsync", since: 4000, stream: Legacy, args: (dstDevice: CUdeviceptr, dstContext: CUcontext, srcDevice: CUdeviceptr, srcContext: CUcontext, ByteCount: usize, hStream: CUstream) }
            { id: 506, symbol: cuMemcpyPeerAsync_ptsz, family: "cuMemcpyPeerAsync", since: 7000, stream: PerThread, args: (dstDevice: CUdeviceptr, dstContext: CUcontext, srcDevice: CUdeviceptr, srcContext: CUcontext, ByteCount: usize, hStream: CUstream) }
            { id: 507, symbol: cuMemcpyPeer_ptds, family: "cuMemcpyPeer", since: 7000, stream: PerThread, args: (dstDevice: CUdeviceptr, dstContext: CUcontext, srcDevice: CUdeviceptr, srcContext: CUcontext, ByteCount: usize) }
            { id: 508, symbol: cuMemcpyWithAttributesAsync, family: "cuMemcpyWithAttributesAsync", since: 13020, stream: Legacy, args: (dst: CUdeviceptr, src: CUdeviceptr, size: usize, attr: *mut CUmemcpyAttributes, hStream: CUstream) }
            { id: 509, symbol: cuMemcpyWithAttributesAsync_ptsz, family: "cuMemcpyWithAttributesAsync", since: 13020, stream: PerThread, args: (dst: CUdeviceptr, src: CUdeviceptr, size: usize, attr: *mut CUmemcpyAttributes, hStream: CUstream) }
            { id: 510, symbol: cuMemcpy_ptds, family: "cuMemcpy", since: 7000, stream: PerThread, args: (dst: CUdeviceptr, src: CUdeviceptr, ByteCount: usize) }
            { id: 511, symbol: cuMemsetD16, family: "cuMemsetD16", since: 2000, stream: Legacy, args: (dstDevice: CUdeviceptr_v1, us: u16, N: u32) }
            { id: 512, symbol: cuMemsetD16Async, family: "cuMemsetD16Async", since: 3020, stream: Legacy, args: (dstDevice: CUdeviceptr, us: u16, N: usize, hStream: CUstream) }
            { id: 513, symbol: cuMemsetD16Async_ptsz, family: "cuMemsetD16Async", since: 7000, stream: PerThread, args: (dstDevice: CUdeviceptr, us: u16, N: usize, hStream: CUstream) }
            { id: 514, symbol: cuMemsetD16_v2, family: "cuMemsetD16", since: 3020, stream: Legacy, args: (dstDevice: CUdeviceptr, us: u16, N: usize) }
            { id: 515, symbol: cuMemsetD16_v2_ptds, family: "cuMemsetD16", since: 7000, stream: PerThread, args: (dstDevice: CUdeviceptr, us: u16, N: usize) }
            { id: 516, symbol: cuMemsetD2D16, family: "cuMemsetD2D16", since: 2000, stream: Legacy, args: (dstDevice: CUdeviceptr_v1, dstPitch: u32, us: u16, Width: u32, Height: u32) }
            { id: 517, symbol: cuMemsetD2D16Async, family: "cuMemsetD2D16Async", since: 3020, stream: Legacy, args: (dstDevice: CUdeviceptr, dstPitch: usize, us: u16, Width: usize, Height: usize, hStream: CUstream) }
            { id: 518, symbol: cuMemsetD2D16Async_ptsz, family: "cuMemsetD2D16Async", since: 7000, stream: PerThread, args: (dstDevice: CUdeviceptr, dstPitch: usize, us: u16, Width: usize, Height: usize, hStream: CUstream) }
            { id: 519, symbol: cuMemsetD2D16_v2, family: "cuMemsetD2D16", since: 3020, stream: Legacy, args: (dstDevice: CUdeviceptr, dstPitch: usize, us: u16, Width: usize, Height: usize) }
            { id: 520, symbol: cuMemsetD2D16_v2_ptds, family: "cuMemsetD2D16", since: 7000, stream: PerThread, args: (dstDevice: CUdeviceptr, dstPitch: usize, us: u16, Width: usize, Height: usize) }
            { id: 521, symbol: cuMemsetD2D32, family: "cuMemsetD2D32", since: 2000, stream: Legacy, args: (dstDevice: CUdeviceptr_v1, dstPitch: u32, ui: u32, Width: u32, Height: u32) }
            { id: 522, symbol: cuMemsetD2D32Async, family: "cuMemsetD2D32Async", since: 3020, stream: Legacy, args: (dstDevice: CUdeviceptr, dstPitch: usize, ui: u32, Width: usize, Height: usize, hStream: CUstream) }
            { id: 523, symbol: cuMemsetD2D32Async_ptsz, family: "cuMemsetD2D32Async", since: 7000, stream: PerThread, args: (dstDevice: CUdeviceptr, dstPitch: usize, ui: u32, Width: usize, Height: usize, hStream: CUstream) }
            { id: 524, symbol: cuMemsetD2D32_v2, family: "cuMemsetD2D32", since: 3020, stream: Legacy, args: (dstDevice: CUdeviceptr, dstPitch: usize, ui: u32, Width: usize, Height: usize) }
            { id: 525, symbol: cuMemsetD2D32_v2_ptds, family: "cuMemsetD2D32", since: 7000, stream: PerThread, args: (dstDevice: CUdeviceptr, dstPitch: usize, ui: u32, Width: usize, Height: usize) }
            { id: 526, symbol: cuMemsetD2D8, family: "cuMemsetD2D8", since: 2000, stream: Legacy, args: (dstDevice: CUdeviceptr_v1, dstPitch: u32, uc: u8, Width: u32, Height: u32) }
            { id: 527, symbol: cuMemsetD2D8Async, family: "cuMemsetD2D8Async", since: 3020, stream: Legacy, args: (dstDevice: CUdeviceptr, dstPitch: usize, uc: u8, Width: usize, Height: usize, hStream: CUstream) }
            { id: 528, symbol: cuMemsetD2D8Async_ptsz, family: "cuMemsetD2D8Async", since: 7000, stream: PerThread, args: (dstDevice: CUdeviceptr, dstPitch: usize, uc: u8, Width: usize, Height: usize, hStream: CUstream) }
            { id: 529, symbol: cuMemsetD2D8_v2, family: "cuMemsetD2D8", since: 3020, stream: Legacy, args: (dstDevice: CUdeviceptr, dstPitch: usize, uc: u8, Width: usize, Height: usize) }
            { id: 530, symbol: cuMemsetD2D8_v2_ptds, family: "cuMemsetD2D8", since: 7000, stream: PerThread, args: (dstDevice: CUdeviceptr, dstPitch: usize, uc: u8, Width: usize, Height: usize) }
            { id: 531, symbol: cuMemsetD32, family: "cuMemsetD32", since: 2000, stream: Legacy, args: (dstDevice: CUdeviceptr_v1, ui: u32, N: u32) }
            { id: 532, symbol: cuMemsetD32Async, family: "cuMemsetD32Async", since: 3020, stream: Legacy, args: (dstDevice: CUdeviceptr, ui: u32, N: usize, hStream: CUstream) }
            { id: 533, symbol: cuMemsetD32Async_ptsz, family: "cuMemsetD32Async", since: 7000, stream: PerThread, args: (dstDevice: CUdeviceptr, ui: u32, N: usize, hStream: CUstream) }
            { id: 534, symbol: cuMemsetD32_v2, family: "cuMemsetD32", since: 3020, stream: Legacy, args: (dstDevice: CUdeviceptr, ui: u32, N: usize) }
            { id: 535, symbol: cuMemsetD32_v2_ptds, family: "cuMemsetD32", since: 7000, stream: PerThread, args: (dstDevice: CUdeviceptr, ui: u32, N: usize) }
            { id: 536, symbol: cuMemsetD8, family: "cuMemsetD8", since: 2000, stream: Legacy, args: (dstDevice: CUdeviceptr_v1, uc: u8, N: u32) }
            { id: 537, symbol: cuMemsetD8Async, family: "cuMemsetD8Async", since: 3020, stream: Legacy, args: (dstDevice: CUdeviceptr, uc: u8, N: usize, hStream: CUstream) }
            { id: 538, symbol: cuMemsetD8Async_ptsz, family: "cuMemsetD8Async", since: 7000, stream: PerThread, args: (dstDevice: CUdeviceptr, uc: u8, N: usize, hStream: CUstream) }
            { id: 539, symbol: cuMemsetD8_v2, family: "cuMemsetD8", since: 3020, stream: Legacy, args: (dstDevice: CUdeviceptr, uc: u8, N: usize) }
            { id: 540, symbol: cuMemsetD8_v2_ptds, family: "cuMemsetD8", since: 7000, stream: PerThread, args: (dstDevice: CUdeviceptr, uc: u8, N: usize) }
            { id: 541, symbol: cuMipmappedArrayCreate, family: "cuMipmappedArrayCreate", since: 5000, stream: Any, args: (pHandle: *mut CUmipmappedArray, pMipmappedArrayDesc: *const CUDA_ARRAY3D_DESCRIPTOR, numMipmapLevels: u32) }
            { id: 542, symbol: cuMipmappedArrayDestroy, family: "cuMipmappedArrayDestroy", since: 5000, stream: Any, args: (hMipmappedArray: CUmipmappedArray) }
            { id: 543, symbol: cuMipmappedArrayGetLevel, family: "cuMipmappedArrayGetLevel", since: 5000, stream: Any, args: (pLevelArray: *mut CUarray, hMipmappedArray: CUmipmappedArray, level: u32) }
            { id: 544, symbol: cuMipmappedArrayGetMemoryRequirements, family: "cuMipmappedArrayGetMemoryRequirements", since: 11060, stream: Any, args: (memoryRequirements: *mut c_void, mipmap: CUmipmappedArray, device: CUdevice) }
            { id: 545, symbol: cuMipmappedArrayGetSparseProperties, family: "cuMipmappedArrayGetSparseProperties", since: 11010, stream: Any, args: (sparseProperties: *mut c_void, mipmap: CUmipmappedArray) }
            { id: 546, symbol: cuModuleEnumerateFunctions, family: "cuModuleEnumerateFunctions", since: 12040, stream: Any, args: (functions: *mut CUfunction, numFunctions: u32, r#mod: CUmodule) }
            { id: 547, symbol: cuModuleGetFunction, family: "cuModuleGetFunction", since: 2000, stream: Any, args: (hfunc: *mut CUfunction, hmod: CUmodule, name: *const c_char) }
            { id: 548, symbol: cuModuleGetFunctionCount, family: "cuModuleGetFunctionCount", since: 12040, stream: Any, args: (count: *mut u32, r#mod: CUmodule) }
            { id: 549, symbol: cuModuleGetGlobal, family: "cuModuleGetGlobal", since: 2000, stream: Any, args: (dptr: *mut CUdeviceptr_v1, bytes: *mut u32, hmod: CUmodule, name: *const c_char) }
            { id: 550, symbol: cuModuleGetGlobal_v2, family: "cuModuleGetGlobal", since: 3020, stream: Any, args: (dptr: *mut CUdeviceptr, bytes: *mut usize, hmod: CUmodule, name: *const c_char) }
            { id: 551, symbol: cuModuleGetLoadingMode, family: "cuModuleGetLoadingMode", since: 11070, stream: Any, args: (mode: *mut CUmoduleLoadingMode) }
            { id: 552, symbol: cuModuleGetSurfRef, family: "cuModuleGetSurfRef", since: 3000, stream: Any, args: (pSurfRef: *mut CUsurfref, hmod: CUmodule, name: *const c_char) }
            { id: 553, symbol: cuModuleGetTexRef, family: "cuModuleGetTexRef", since: 2000, stream: Any, args: (pTexRef: *mut CUtexref, hmod: CUmodule, name: *const c_char) }
            { id: 554, symbol: cuModuleLoad, family: "cuModuleLoad", since: 2000, stream: Any, args: (module: *mut CUmodule, fname: *const c_char) }
            { id: 555, symbol: cuModuleLoadData, family: "cuModuleLoadData", since: 2000, stream: Any, args: (module: *mut CUmodule, image: *const c_void) }
            { id: 556, symbol: cuModuleLoadDataEx, family: "cuModuleLoadDataEx", since: 2010, stream: Any, args: (module: *mut CUmodule, image: *const c_void, numOptions: u32, options: *mut CUjit_option, optionValues: *mut *mut c_void) }
            { id: 557, symbol: cuModuleLoadFatBinary, family: "cuModuleLoadFatBinary", since: 2000, stream: Any, args: (module: *mut CUmodule, fatCubin: *const c_void) }
            { id: 558, symbol: cuModuleUnload, family: "cuModuleUnload", since: 2000, stream: Any, args: (hmod: CUmodule) }
            { id: 559, symbol: cuMulticastAddDevice, family: "cuMulticastAddDevice", since: 12010, stream: Any, args: (mcHandle: CUmemGenericAllocationHandle, dev: CUdevice) }
            { id: 560, symbol: cuMulticastBindAddr, family: "cuMulticastBindAddr", since: 12010, stream: Any, args: (mcHandle: CUmemGenericAllocationHandle, mcOffset: usize, memptr: CUdeviceptr, size: usize, flags: u64) }
            { id: 561, symbol: cuMulticastBindAddr_v2, family: "cuMulticastBindAddr", since: 13010, stream: Any, args: (mcHandle: CUmemGenericAllocationHandle, dev: CUdevice, mcOffset: usize, memptr: CUdeviceptr, size: usize, flags: u64) }
            { id: 562, symbol: cuMulticastBindMem, family: "cuMulticastBindMem", since: 12010, stream: Any, args: (mcHandle: CUmemGenericAllocationHandle, mcOffset: usize, memHandle: CUmemGenericAllocationHandle, memOffset: usize, size: usize, flags: u64) }
            { id: 563, symbol: cuMulticastBindMem_v2, family: "cuMulticastBindMem", since: 13010, stream: Any, args: (mcHandle: CUmemGenericAllocationHandle, dev: CUdevice, mcOffset: usize, memHandle: CUmemGenericAllocationHandle, memOffset: usize, size: usize, flags: u64) }
            { id: 564, symbol: cuMulticastCreate, family: "cuMulticastCreate", since: 12010, stream: Any, args: (mcHandle: *mut CUmemGenericAllocationHandle, prop: *const c_void) }
            { id: 565, symbol: cuMulticastGetGranularity, family: "cuMulticastGetGranularity", since: 12010, stream: Any, args: (granularity: *mut usize, prop: *const c_void, option: CUmulticastGranularity_flags) }
            { id: 566, symbol: cuMulticastUnbind, family: "cuMulticastUnbind", since: 12010, stream: Any, args: (mcHandle: CUmemGenericAllocationHandle, dev: CUdevice, mcOffset: usize, size: usize) }
            { id: 567, symbol: cuOccupancyAvailableDynamicSMemPerBlock, family: "cuOccupancyAvailableDynamicSMemPerBlock", since: 10020, stream: Any, args: (dynamicSmemSize: *mut usize, func: CUfunction, numBlocks: i32, blockSize: i32) }
            { id: 568, symbol: cuOccupancyMaxActiveBlocksPerMultiprocessor, family: "cuOccupancyMaxActiveBlocksPerMultiprocessor", since: 6050, stream: Any, args: (numBlocks: *mut i32, func: CUfunction, blockSize: i32, dynamicSMemSize: usize) }
            { id: 569, symbol: cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, family: "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", since: 7000, stream: Any, args: (numBlocks: *mut i32, func: CUfunction, blockSize: i32, dynamicSMemSize: usize, flags: u32) }
            { id: 570, symbol: cuOccupancyMaxActiveClusters, family: "cuOccupancyMaxActiveClusters", since: 11070, stream: Any, args: (numClusters: *mut i32, func: CUfunction, config: *const CUlaunchConfig) }
            { id: 571, symbol: cuOccupancyMaxPotentialBlockSize, family: "cuOccupancyMaxPotentialBlockSize", since: 6050, stream: Any, args: (minGridSize: *mut i32, blockSize: *mut i32, func: CUfunction, blockSizeToDynamicSMemSize: CUoccupancyB2DSize, dynamicSMemSize: usize, blockSizeLimit: i32) }
            { id: 572, symbol: cuOccupancyMaxPotentialBlockSizeWithFlags, family: "cuOccupancyMaxPotentialBlockSizeWithFlags", since: 7000, stream: Any, args: (minGridSize: *mut i32, blockSize: *mut i32, func: CUfunction, blockSizeToDynamicSMemSize: CUoccupancyB2DSize, dynamicSMemSize: usize, blockSizeLimit: i32, flags: u32) }
            { id: 573, symbol: cuOccupancyMaxPotentialClusterSize, family: "cuOccupancyMaxPotentialClusterSize", since: 11070, stream: Any, args: (clusterSize: *mut i32, func: CUfunction, config: *const CUlaunchConfig) }
            { id: 574, symbol: cuParamSetSize, family: "cuParamSetSize", since: 2000, stream: Any, args: (hfunc: CUfunction, numbytes: u32) }
            { id: 575, symbol: cuParamSetTexRef, family: "cuParamSetTexRef", since: 2000, stream: Any, args: (hfunc: CUfunction, texunit: i32, hTexRef: CUtexref) }
            { id: 576, symbol: cuParamSetf, family: "cuParamSetf", since: 2000, stream: Any, args: (hfunc: CUfunction, offset: i32, value: f32) }
            { id: 577, symbol: cuParamSeti, family: "cuParamSeti", since: 2000, stream: Any, args: (hfunc: CUfunction, offset: i32, value: u32) }
            { id: 578, symbol: cuParamSetv, family: "cuParamSetv", since: 2000, stream: Any, args: (hfunc: CUfunction, offset: i32, ptr: *mut c_void, numbytes: u32) }
            { id: 579, symbol: cuPointerGetAttribute, family: "cuPointerGetAttribute", since: 4000, stream: Any, args: (data: *mut c_void, attribute: CUpointer_attribute, ptr: CUdeviceptr) }
            { id: 580, symbol: cuPointerGetAttributes, family: "cuPointerGetAttributes", since: 7000, stream: Any, args: (numAttributes: u32, attributes: *mut CUpointer_attribute, data: *mut *mut c_void, ptr: CUdeviceptr) }
            { id: 581, symbol: cuPointerSetAttribute, family: "cuPointerSetAttribute", since: 6000, stream: Any, args: (value: *const c_void, attribute: CUpointer_attribute, ptr: CUdeviceptr) }
            { id: 582, symbol: cuProfilerInitialize, family: "cuProfilerInitialize", since: 4000, stream: Any, args: (configFile: *const c_char, outputFile: *const c_char, outputMode: CUoutput_mode) }
            { id: 583, symbol: cuProfilerStart, family: "cuProfilerStart", since: 4000, stream: Any, args: () }
            { id: 584, symbol: cuProfilerStop, family: "cuProfilerStop", since: 4000, stream: Any, args: () }
            { id: 585, symbol: cuSignalExternalSemaphoresAsync, family: "cuSignalExternalSemaphoresAsync", since: 10000, stream: Legacy, args: (extSemArray: *const CUexternalSemaphore, paramsArray: *const c_void, numExtSems: u32, stream: CUstream) }
            { id: 586, symbol: cuSignalExternalSemaphoresAsync_ptsz, family: "cuSignalExternalSemaphoresAsync", since: 10000, stream: PerThread, args: (extSemArray: *const CUexternalSemaphore, paramsArray: *const c_void, numExtSems: u32, stream: CUstream) }
            { id: 587, symbol: cuStreamAddCallback, family: "cuStreamAddCallback", since: 5000, stream: Legacy, args: (hStream: CUstream, callback: CUstreamCallback, userData: *mut c_void, flags: u32) }
            { id: 588, symbol: cuStreamAddCallback_ptsz, family: "cuStreamAddCallback", since: 7000, stream: PerThread, args: (hStream: CUstream, callback: CUstreamCallback, userData: *mut c_void, flags: u32) }
            { id: 589, symbol: cuStreamAttachMemAsync, family: "cuStreamAttachMemAsync", since: 6000, stream: Legacy, args: (hStream: CUstream, dptr: CUdeviceptr, length: usize, flags: u32) }
            { id: 590, symbol: cuStreamAttachMemAsync_ptsz, family: "cuStreamAttachMemAsync", since: 7000, stream: PerThread, args: (hStream: CUstream, dptr: CUdeviceptr, length: usize, flags: u32) }
            { id: 591, symbol: cuStreamBatchMemOp, family: "cuStreamBatchMemOp", since: 8000, stream: Legacy, args: (stream: CUstream, count: u32, paramArray: *mut c_void, flags: u32) }
            { id: 592, symbol: cuStreamBatchMemOp_ptsz, family: "cuStreamBatchMemOp", since: 8000, stream: PerThread, args: (stream: CUstream, count: u32, paramArray: *mut c_void, flags: u32) }
            { id: 593, symbol: cuStreamBatchMemOp_v2, family: "cuStreamBatchMemOp", since: 11070, stream: Legacy, args: (stream: CUstream, count: u32, paramArray: *mut c_void, flags: u32) }
            { id: 594, symbol: cuStreamBatchMemOp_v2_ptsz, family: "cuStreamBatchMemOp", since: 11070, stream: PerThread, args: (stream: CUstream, count: u32, paramArray: *mut c_void, flags: u32) }
            { id: 595, symbol: cuStreamBeginCapture, family: "cuStreamBeginCapture", since: 10000, stream: Legacy, args: (hStream: CUstream) }
            { id: 596, symbol: cuStreamBeginCaptureToCig, family: "cuStreamBeginCaptureToCig", since: 13010, stream: Legacy, args: (hStream: CUstream, streamCigCaptureParams: *mut c_void) }
            { id: 597, symbol: cuStreamBeginCaptureToCig_ptsz, family: "cuStreamBeginCaptureToCig", since: 13010, stream: PerThread, args: (hStream: CUstream, streamCigCaptureParams: *mut c_void) }
            { id: 598, symbol: cuStreamBeginCaptureToGraph, family: "cuStreamBeginCaptureToGraph", since: 12030, stream: Legacy, args: (hStream: CUstream, hGraph: CUgraph, dependencies: *const CUgraphNode, dependencyData: *const CUgraphEdgeData, numDependencies: usize, mode: CUstreamCaptureMode) }
            { id: 599, symbol: cuStreamBeginCaptureToGraph_ptsz, family: "cuStreamBeginCaptureToGraph", since: 12030, stream: PerThread, args: (hStream: CUstream, hGraph: CUgraph, dependencies: *const CUgraphNode, dependencyData: *const CUgraphEdgeData, numDependencies: usize, mode: CUstreamCaptureMode) }
            { id: 600, symbol: cuStreamBeginCapture_ptsz, family: "cuStreamBeginCapture", since: 10000, stream: PerThread, args: (hStream: CUstream) }
            { id: 601, symbol: cuStreamBeginCapture_v2, family: "cuStreamBeginCapture", since: 10010, stream: Legacy, args: (hStream: CUstream, mode: CUstreamCaptureMode) }
            { id: 602, symbol: cuStreamBeginCapture_v2_ptsz, family: "cuStreamBeginCapture", since: 10010, stream: PerThread, args: (hStream: CUstream, mode: CUstreamCaptureMode) }
            { id: 603, symbol: cuStreamBeginRecaptureToGraph, family: "cuStreamBeginRecaptureToGraph", since: 13030, stream: Legacy, args: (hStream: CUstream, mode: CUstreamCaptureMode, hGraph: CUgraph, callbackFunc: CUgraphRecaptureCallback, userData: *mut c_void) }
            { id: 604, symbol: cuStreamBeginRecaptureToGraph_ptsz, family: "cuStreamBeginRecaptureToGraph", since: 13030, stream: PerThread, args: (hStream: CUstream, mode: CUstreamCaptureMode, hGraph: CUgraph, callbackFunc: CUgraphRecaptureCallback, userData: *mut c_void) }
            { id: 605, symbol: cuStreamCopyAttributes, family: "cuStreamCopyAttributes", since: 11000, stream: Legacy, args: (dstStream: CUstream, srcStream: CUstream) }
            { id: 606, symbol: cuStreamCopyAttributes_ptsz, family: "cuStreamCopyAttributes", since: 11000, stream: PerThread, args: (dst: CUstream, src: CUstream) }
            { id: 607, symbol: cuStreamCreate, family: "cuStreamCreate", since: 2000, stream: Any, args: (phStream: *mut CUstream, Flags: u32) }
            { id: 608, symbol: cuStreamCreateWithPriority, family: "cuStreamCreateWithPriority", since: 5050, stream: Any, args: (phStream: *mut CUstream, flags: u32, priority: i32) }
            { id: 609, symbol: cuStreamDestroy, family: "cuStreamDestroy", since: 2000, stream: Any, args: (hStream: CUstream) }
            { id: 610, symbol: cuStreamDestroy_v2, family: "cuStreamDestroy", since: 4000, stream: Any, args: (hStream: CUstream) }
            { id: 611, symbol: cuStreamEndCapture, family: "cuStreamEndCapture", since: 10000, stream: Legacy, args: (hStream: CUstream, phGraph: *mut CUgraph) }
            { id: 612, symbol: cuStreamEndCaptureToCig, family: "cuStreamEndCaptureToCig", since: 13010, stream: Legacy, args: (hStream: CUstream) }
            { id: 613, symbol: cuStreamEndCaptureToCig_ptsz, family: "cuStreamEndCaptureToCig", since: 13010, stream: PerThread, args: (hStream: CUstream) }
            { id: 614, symbol: cuStreamEndCapture_ptsz, family: "cuStreamEndCapture", since: 10000, stream: PerThread, args: (hStream: CUstream, phGraph: *mut CUgraph) }
            { id: 615, symbol: cuStreamGetAttribute, family: "cuStreamGetAttribute", since: 11000, stream: Legacy, args: (hStream: CUstream, attr: CUlaunchAttributeID, value: *mut CUlaunchAttributeValue) }
            { id: 616, symbol: cuStreamGetAttribute_ptsz, family: "cuStreamGetAttribute", since: 11000, stream: PerThread, args: (hStream: CUstream, attr: CUlaunchAttributeID, value_out: *mut CUlaunchAttributeValue) }
            { id: 617, symbol: cuStreamGetCaptureInfo, family: "cuStreamGetCaptureInfo", since: 10010, stream: Legacy, args: (hStream: CUstream, captureStatus_out: *mut CUstreamCaptureStatus, id_out: *mut u64) }
            { id: 618, symbol: cuStreamGetCaptureInfo_ptsz, family: "cuStreamGetCaptureInfo", since: 10010, stream: PerThread, args: (hStream: CUstream, captureStatus_out: *mut CUstreamCaptureStatus, id_out: *mut u64) }
            { id: 619, symbol: cuStreamGetCaptureInfo_v2, family: "cuStreamGetCaptureInfo", since: 11030, stream: Legacy, args: (hStream: CUstream, captureStatus_out: *mut CUstreamCaptureStatus, id_out: *mut u64, graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode, numDependencies_out: *mut usize) }
            { id: 620, symbol: cuStreamGetCaptureInfo_v2_ptsz, family: "cuStreamGetCaptureInfo", since: 11030, stream: PerThread, args: (hStream: CUstream, captureStatus_out: *mut CUstreamCaptureStatus, id_out: *mut u64, graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode, numDependencies_out: *mut usize) }
            { id: 621, symbol: cuStreamGetCaptureInfo_v3, family: "cuStreamGetCaptureInfo", since: 12030, stream: Legacy, args: (hStream: CUstream, captureStatus_out: *mut CUstreamCaptureStatus, id_out: *mut u64, graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode, edgeData_out: *mut *const CUgraphEdgeData, numDependencies_out: *mut usize) }
            { id: 622, symbol: cuStreamGetCaptureInfo_v3_ptsz, family: "cuStreamGetCaptureInfo", since: 12030, stream: PerThread, args: (hStream: CUstream, captureStatus_out: *mut CUstreamCaptureStatus, id_out: *mut u64, graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode, edgeData_out: *mut *const CUgraphEdgeData, numDependencies_out: *mut usize) }
            { id: 623, symbol: cuStreamGetCtx, family: "cuStreamGetCtx", since: 9020, stream: Legacy, args: (hStream: CUstream, pctx: *mut CUcontext) }
            { id: 624, symbol: cuStreamGetCtx_ptsz, family: "cuStreamGetCtx", since: 9020, stream: PerThread, args: (hStream: CUstream, pctx: *mut CUcontext) }
            { id: 625, symbol: cuStreamGetCtx_v2, family: "cuStreamGetCtx", since: 12050, stream: Legacy, args: (hStream: CUstream, pCtx: *mut CUcontext, pGreenCtx: *mut CUgreenCtx) }
            { id: 626, symbol: cuStreamGetCtx_v2_ptsz, family: "cuStreamGetCtx", since: 12050, stream: PerThread, args: (hStream: CUstream, pCtx: *mut CUcontext, pGreenCtx: *mut CUgreenCtx) }
            { id: 627, symbol: cuStreamGetDevResource, family: "cuStreamGetDevResource", since: 13010, stream: Legacy, args: (hStream: CUstream, resource: *mut c_void, r#type: CUdevResourceType) }
            { id: 628, symbol: cuStreamGetDevResource_ptsz, family: "cuStreamGetDevResource", since: 13010, stream: PerThread, args: (hStream: CUstream, resource: *mut c_void, r#type: CUdevResourceType) }
            { id: 629, symbol: cuStreamGetDevice, family: "cuStreamGetDevice", since: 12080, stream: Legacy, args: (hStream: CUstream, device: *mut CUdevice) }
            { id: 630, symbol: cuStreamGetDevice_ptsz, family: "cuStreamGetDevice", since: 12080, stream: PerThread, args: (hStream: CUstream, device: *mut CUdevice) }
            { id: 631, symbol: cuStreamGetFlags, family: "cuStreamGetFlags", since: 5050, stream: Legacy, args: (hStream: CUstream, flags: *mut u32) }
            { id: 632, symbol: cuStreamGetFlags_ptsz, family: "cuStreamGetFlags", since: 7000, stream: PerThread, args: (hStream: CUstream, flags: *mut u32) }
            { id: 633, symbol: cuStreamGetGreenCtx, family: "cuStreamGetGreenCtx", since: 12040, stream: Any, args: (hStream: CUstream, phCtx: *mut CUgreenCtx) }
            { id: 634, symbol: cuStreamGetId, family: "cuStreamGetId", since: 12000, stream: Legacy, args: (hStream: CUstream, streamId: *mut u64) }
            { id: 635, symbol: cuStreamGetId_ptsz, family: "cuStreamGetId", since: 12000, stream: PerThread, args: (hStream: CUstream, streamId: *mut u64) }
            { id: 636, symbol: cuStreamGetPriority, family: "cuStreamGetPriority", since: 5050, stream: Legacy, args: (hStream: CUstream, priority: *mut i32) }
            { id: 637, symbol: cuStreamGetPriority_ptsz, family: "cuStreamGetPriority", since: 7000, stream: PerThread, args: (hStream: CUstream, priority: *mut i32) }
            { id: 638, symbol: cuStreamIsCapturing, family: "cuStreamIsCapturing", since: 10000, stream: Legacy, args: (hStream: CUstream, captureStatus: *mut CUstreamCaptureStatus) }
            { id: 639, symbol: cuStreamIsCapturing_ptsz, family: "cuStreamIsCapturing", since: 10000, stream: PerThread, args: (hStream: CUstream, captureStatus: *mut CUstreamCaptureStatus) }
            { id: 640, symbol: cuStreamQuery, family: "cuStreamQuery", since: 2000, stream: Legacy, args: (hStream: CUstream) }
            { id: 641, symbol: cuStreamQuery_ptsz, family: "cuStreamQuery", since: 7000, stream: PerThread, args: (hStream: CUstream) }
            { id: 642, symbol: cuStreamSetAttribute, family: "cuStreamSetAttribute", since: 11000, stream: Legacy, args: (hStream: CUstream, attr: CUlaunchAttributeID, param: *const CUlaunchAttributeValue) }
            { id: 643, symbol: cuStreamSetAttribute_ptsz, family: "cuStreamSetAttribute", since: 11000, stream: PerThread, args: (hStream: CUstream, attr: CUlaunchAttributeID, value: *const CUlaunchAttributeValue) }
            { id: 644, symbol: cuStreamSynchronize, family: "cuStreamSynchronize", since: 2000, stream: Legacy, args: (hStream: CUstream) }
            { id: 645, symbol: cuStreamSynchronize_ptsz, family: "cuStreamSynchronize", since: 7000, stream: PerThread, args: (hStream: CUstream) }
            { id: 646, symbol: cuStreamUpdateCaptureDependencies, family: "cuStreamUpdateCaptureDependencies", since: 11030, stream: Legacy, args: (hStream: CUstream, dependencies: *mut CUgraphNode, numDependencies: usize, flags: u32) }
            { id: 647, symbol: cuStreamUpdateCaptureDependencies_ptsz, family: "cuStreamUpdateCaptureDependencies", since: 11030, stream: PerThread, args: (hStream: CUstream, dependencies: *mut CUgraphNode, numDependencies: usize, flags: u32) }
            { id: 648, symbol: cuStreamUpdateCaptureDependencies_v2, family: "cuStreamUpdateCaptureDependencies", since: 12030, stream: Legacy, args: (hStream: CUstream, dependencies: *mut CUgraphNode, dependencyData: *const CUgraphEdgeData, numDependencies: usize, flags: u32) }
            { id: 649, symbol: cuStreamUpdateCaptureDependencies_v2_ptsz, family: "cuStreamUpdateCaptureDependencies", since: 12030, stream: PerThread, args: (hStream: CUstream, dependencies: *mut CUgraphNode, dependencyData: *const CUgraphEdgeData, numDependencies: usize, flags: u32) }
            { id: 650, symbol: cuStreamWaitEvent, family: "cuStreamWaitEvent", since: 3020, stream: Legacy, args: (hStream: CUstream, hEvent: CUevent, Flags: u32) }
            { id: 651, symbol: cuStreamWaitEvent_ptsz, family: "cuStreamWaitEvent", since: 7000, stream: PerThread, args: (hStream: CUstream, hEvent: CUevent, Flags: u32) }
            { id: 652, symbol: cuStreamWaitValue32, family: "cuStreamWaitValue32", since: 8000, stream: Legacy, args: (stream: CUstream, addr: CUdeviceptr, value: u32, flags: u32) }
            { id: 653, symbol: cuStreamWaitValue32_ptsz, family: "cuStreamWaitValue32", since: 8000, stream: PerThread, args: (stream: CUstream, addr: CUdeviceptr, value: u32, flags: u32) }
            { id: 654, symbol: cuStreamWaitValue32_v2, family: "cuStreamWaitValue32", since: 11070, stream: Legacy, args: (stream: CUstream, addr: CUdeviceptr, value: u32, flags: u32) }
            { id: 655, symbol: cuStreamWaitValue32_v2_ptsz, family: "cuStreamWaitValue32", since: 11070, stream: PerThread, args: (stream: CUstream, addr: CUdeviceptr, value: u32, flags: u32) }
            { id: 656, symbol: cuStreamWaitValue64, family: "cuStreamWaitValue64", since: 9000, stream: Legacy, args: (stream: CUstream, addr: CUdeviceptr, value: u64, flags: u32) }
            { id: 657, symbol: cuStreamWaitValue64_ptsz, family: "cuStreamWaitValue64", since: 9000, stream: PerThread, args: (stream: CUstream, addr: CUdeviceptr, value: u64, flags: u32) }
            { id: 658, symbol: cuStreamWaitValue64_v2, family: "cuStreamWaitValue64", since: 11070, stream: Legacy, args: (stream: CUstream, addr: CUdeviceptr, value: u64, flags: u32) }
            { id: 659, symbol: cuStreamWaitValue64_v2_ptsz, family: "cuStreamWaitValue64", since: 11070, stream: PerThread, args: (stream: CUstream, addr: CUdeviceptr, value: u64, flags: u32) }
            { id: 660, symbol: cuStreamWriteValue32, family: "cuStreamWriteValue32", since: 8000, stream: Legacy, args: (stream: CUstream, addr: CUdeviceptr, value: u32, flags: u32) }
            { id: 661, symbol: cuStreamWriteValue32_ptsz, family: "cuStreamWriteValue32", since: 8000, stream: PerThread, args: (stream: CUstream, addr: CUdeviceptr, value: u32, flags: u32) }
            { id: 662, symbol: cuStreamWriteValue32_v2, family: "cuStreamWriteValue32", since: 11070, stream: Legacy, args: (stream: CUstream, addr: CUdeviceptr, value: u32, flags: u32) }
            { id: 663, symbol: cuStreamWriteValue32_v2_ptsz, family: "cuStreamWriteValue32", since: 11070, stream: PerThread, args: (stream: CUstream, addr: CUdeviceptr, value: u32, flags: u32) }
            { id: 664, symbol: cuStreamWriteValue64, family: "cuStreamWriteValue64", since: 9000, stream: Legacy, args: (stream: CUstream, addr: CUdeviceptr, value: u64, flags: u32) }
            { id: 665, symbol: cuStreamWriteValue64_ptsz, family: "cuStreamWriteValue64", since: 9000, stream: PerThread, args: (stream: CUstream, addr: CUdeviceptr, value: u64, flags: u32) }
            { id: 666, symbol: cuStreamWriteValue64_v2, family: "cuStreamWriteValue64", since: 11070, stream: Legacy, args: (stream: CUstream, addr: CUdeviceptr, value: u64, flags: u32) }
            { id: 667, symbol: cuStreamWriteValue64_v2_ptsz, family: "cuStreamWriteValue64", since: 11070, stream: PerThread, args: (stream: CUstream, addr: CUdeviceptr, value: u64, flags: u32) }
            { id: 668, symbol: cuSurfObjectCreate, family: "cuSurfObjectCreate", since: 5000, stream: Any, args: (pSurfObject: *mut CUsurfObject, pResDesc: *const c_void) }
            { id: 669, symbol: cuSurfObjectDestroy, family: "cuSurfObjectDestroy", since: 5000, stream: Any, args: (surfObject: CUsurfObject) }
            { id: 670, symbol: cuSurfObjectGetResourceDesc, family: "cuSurfObjectGetResourceDesc", since: 5000, stream: Any, args: (pResDesc: *mut c_void, surfObject: CUsurfObject) }
            { id: 671, symbol: cuSurfRefGetArray, family: "cuSurfRefGetArray", since: 3000, stream: Any, args: (phArray: *mut CUarray, hSurfRef: CUsurfref) }
            { id: 672, symbol: cuSurfRefSetArray, family: "cuSurfRefSetArray", since: 3000, stream: Any, args: (hSurfRef: CUsurfref, hArray: CUarray, Flags: u32) }
            { id: 673, symbol: cuTensorMapEncodeIm2col, family: "cuTensorMapEncodeIm2col", since: 12000, stream: Any, args: (tensorMap: *mut c_void, tensorDataType: CUtensorMapDataType, tensorRank: u32, globalAddress: *mut c_void, globalDim: *const u64, globalStrides: *const u64, pixelBoxLowerCorner: *const i32, pixelBoxUpperCorner: *const i32, channelsPerPixel: u32, pixelsPerColumn: u32, elementStrides: *const u32, interleave: CUtensorMapInterleave, swizzle: CUtensorMapSwizzle, l2Promotion: CUtensorMapL2promotion, oobFill: CUtensorMapFloatOOBfill) }
            { id: 674, symbol: cuTensorMapEncodeIm2colWide, family: "cuTensorMapEncodeIm2colWide", since: 12080, stream: Any, args: (tensorMap: *mut c_void, tensorDataType: CUtensorMapDataType, tensorRank: u32, globalAddress: *mut c_void, globalDim: *const u64, globalStrides: *const u64, pixelBoxLowerCornerWidth: i32, pixelBoxUpperCornerWidth: i32, channelsPerPixel: u32, pixelsPerColumn: u32, elementStrides: *const u32, interleave: CUtensorMapInterleave, mode: CUtensorMapIm2ColWideMode, swizzle: CUtensorMapSwizzle, l2Promotion: CUtensorMapL2promotion, oobFill: CUtensorMapFloatOOBfill) }
            { id: 675, symbol: cuTensorMapEncodeTiled, family: "cuTensorMapEncodeTiled", since: 12000, stream: Any, args: (tensorMap: *mut c_void, tensorDataType: CUtensorMapDataType, tensorRank: u32, globalAddress: *mut c_void, globalDim: *const u64, globalStrides: *const u64, boxDim: *const u32, elementStrides: *const u32, interleave: CUtensorMapInterleave, swizzle: CUtensorMapSwizzle, l2Promotion: CUtensorMapL2promotion, oobFill: CUtensorMapFloatOOBfill) }
            { id: 676, symbol: cuTensorMapReplaceAddress, family: "cuTensorMapReplaceAddress", since: 12000, stream: Any, args: (tensorMap: *mut c_void, globalAddress: *mut c_void) }
            { id: 677, symbol: cuTensorMapSetAllocationClass, family: "cuTensorMapSetAllocationClass", since: 13050, stream: Any, args: (tensorMap: *mut c_void, allocClass: CUtensorMapAllocClass, outAllocClass: *mut CUtensorMapAllocClass) }
            { id: 678, symbol: cuTexObjectCreate, family: "cuTexObjectCreate", since: 5000, stream: Any, args: (pTexObject: *mut CUtexObject, pResDesc: *const c_void, pTexDesc: *const c_void, pResViewDesc: *const c_void) }
            { id: 679, symbol: cuTexObjectDestroy, family: "cuTexObjectDestroy", since: 5000, stream: Any, args: (texObject: CUtexObject) }
            { id: 680, symbol: cuTexObjectGetResourceDesc, family: "cuTexObjectGetResourceDesc", since: 5000, stream: Any, args: (pResDesc: *mut c_void, texObject: CUtexObject) }
            { id: 681, symbol: cuTexObjectGetResourceViewDesc, family: "cuTexObjectGetResourceViewDesc", since: 5000, stream: Any, args: (pResViewDesc: *mut c_void, texObject: CUtexObject) }
            { id: 682, symbol: cuTexObjectGetTextureDesc, family: "cuTexObjectGetTextureDesc", since: 5000, stream: Any, args: (pTexDesc: *mut c_void, texObject: CUtexObject) }
            { id: 683, symbol: cuTexRefCreate, family: "cuTexRefCreate", since: 2000, stream: Any, args: (pTexRef: *mut CUtexref) }
            { id: 684, symbol: cuTexRefDestroy, family: "cuTexRefDestroy", since: 2000, stream: Any, args: (hTexRef: CUtexref) }
            { id: 685, symbol: cuTexRefGetAddress, family: "cuTexRefGetAddress", since: 2000, stream: Any, args: (pdptr: *mut CUdeviceptr_v1, hTexRef: CUtexref) }
            { id: 686, symbol: cuTexRefGetAddressMode, family: "cuTexRefGetAddressMode", since: 2000, stream: Any, args: (pam: *mut CUaddress_mode, hTexRef: CUtexref, dim: i32) }
            { id: 687, symbol: cuTexRefGetAddress_v2, family: "cuTexRefGetAddress", since: 3020, stream: Any, args: (pdptr: *mut CUdeviceptr, hTexRef: CUtexref) }
            { id: 688, symbol: cuTexRefGetArray, family: "cuTexRefGetArray", since: 2000, stream: Any, args: (phArray: *mut CUarray, hTexRef: CUtexref) }
            { id: 689, symbol: cuTexRefGetBorderColor, family: "cuTexRefGetBorderColor", since: 8000, stream: Any, args: (pBorderColor: *mut f32, hTexRef: CUtexref) }
            { id: 690, symbol: cuTexRefGetFilterMode, family: "cuTexRefGetFilterMode", since: 2000, stream: Any, args: (pfm: *mut CUfilter_mode, hTexRef: CUtexref) }
            { id: 691, symbol: cuTexRefGetFlags, family: "cuTexRefGetFlags", since: 2000, stream: Any, args: (pFlags: *mut u32, hTexRef: CUtexref) }
            { id: 692, symbol: cuTexRefGetFormat, family: "cuTexRefGetFormat", since: 2000, stream: Any, args: (pFormat: *mut CUarray_format, pNumChannels: *mut i32, hTexRef: CUtexref) }
            { id: 693, symbol: cuTexRefGetMaxAnisotropy, family: "cuTexRefGetMaxAnisotropy", since: 5000, stream: Any, args: (pmaxAniso: *mut i32, hTexRef: CUtexref) }
            { id: 694, symbol: cuTexRefGetMipmapFilterMode, family: "cuTexRefGetMipmapFilterMode", since: 5000, stream: Any, args: (pfm: *mut CUfilter_mode, hTexRef: CUtexref) }
            { id: 695, symbol: cuTexRefGetMipmapLevelBias, family: "cuTexRefGetMipmapLevelBias", since: 5000, stream: Any, args: (pbias: *mut f32, hTexRef: CUtexref) }
            { id: 696, symbol: cuTexRefGetMipmapLevelClamp, family: "cuTexRefGetMipmapLevelClamp", since: 5000, stream: Any, args: (pminMipmapLevelClamp: *mut f32, pmaxMipmapLevelClamp: *mut f32, hTexRef: CUtexref) }
            { id: 697, symbol: cuTexRefGetMipmappedArray, family: "cuTexRefGetMipmappedArray", since: 5000, stream: Any, args: (phMipmappedArray: *mut CUmipmappedArray, hTexRef: CUtexref) }
            { id: 698, symbol: cuTexRefSetAddress, family: "cuTexRefSetAddress", since: 2000, stream: Any, args: (ByteOffset: *mut u32, hTexRef: CUtexref, dptr: CUdeviceptr_v1, bytes: u32) }
            { id: 699, symbol: cuTexRefSetAddress2D, family: "cuTexRefSetAddress2D", since: 2020, stream: Any, args: (hTexRef: CUtexref, desc: *const CUDA_ARRAY_DESCRIPTOR_v1, dptr: CUdeviceptr_v1, Pitch: u32) }
            { id: 700, symbol: cuTexRefSetAddress2D_v2, family: "cuTexRefSetAddress2D", since: 3020, stream: Any, args: (hTexRef: CUtexref, desc: *const CUDA_ARRAY_DESCRIPTOR, dptr: CUdeviceptr, Pitch: usize) }
            { id: 701, symbol: cuTexRefSetAddress2D_v3, family: "cuTexRefSetAddress2D", since: 4010, stream: Any, args: (hTexRef: CUtexref, desc: *const CUDA_ARRAY_DESCRIPTOR, dptr: CUdeviceptr, Pitch: usize) }
            { id: 702, symbol: cuTexRefSetAddressMode, family: "cuTexRefSetAddressMode", since: 2000, stream: Any, args: (hTexRef: CUtexref, dim: i32, am: CUaddress_mode) }
            { id: 703, symbol: cuTexRefSetAddress_v2, family: "cuTexRefSetAddress", since: 3020, stream: Any, args: (ByteOffset: *mut usize, hTexRef: CUtexref, dptr: CUdeviceptr, bytes: usize) }
            { id: 704, symbol: cuTexRefSetArray, family: "cuTexRefSetArray", since: 2000, stream: Any, args: (hTexRef: CUtexref, hArray: CUarray, Flags: u32) }
            { id: 705, symbol: cuTexRefSetBorderColor, family: "cuTexRefSetBorderColor", since: 8000, stream: Any, args: (hTexRef: CUtexref, pBorderColor: *mut f32) }
            { id: 706, symbol: cuTexRefSetFilterMode, family: "cuTexRefSetFilterMode", since: 2000, stream: Any, args: (hTexRef: CUtexref, fm: CUfilter_mode) }
            { id: 707, symbol: cuTexRefSetFlags, family: "cuTexRefSetFlags", since: 2000, stream: Any, args: (hTexRef: CUtexref, Flags: u32) }
            { id: 708, symbol: cuTexRefSetFormat, family: "cuTexRefSetFormat", since: 2000, stream: Any, args: (hTexRef: CUtexref, fmt: CUarray_format, NumPackedComponents: i32) }
            { id: 709, symbol: cuTexRefSetMaxAnisotropy, family: "cuTexRefSetMaxAnisotropy", since: 5000, stream: Any, args: (hTexRef: CUtexref, maxAniso: u32) }
            { id: 710, symbol: cuTexRefSetMipmapFilterMode, family: "cuTexRefSetMipmapFilterMode", since: 5000, stream: Any, args: (hTexRef: CUtexref, fm: CUfilter_mode) }
            { id: 711, symbol: cuTexRefSetMipmapLevelBias, family: "cuTexRefSetMipmapLevelBias", since: 5000, stream: Any, args: (hTexRef: CUtexref, bias: f32) }
            { id: 712, symbol: cuTexRefSetMipmapLevelClamp, family: "cuTexRefSetMipmapLevelClamp", since: 5000, stream: Any, args: (hTexRef: CUtexref, minMipmapLevelClamp: f32, maxMipmapLevelClamp: f32) }
            { id: 713, symbol: cuTexRefSetMipmappedArray, family: "cuTexRefSetMipmappedArray", since: 5000, stream: Any, args: (hTexRef: CUtexref, hMipmappedArray: CUmipmappedArray, Flags: u32) }
            { id: 714, symbol: cuThreadExchangeStreamCaptureMode, family: "cuThreadExchangeStreamCaptureMode", since: 10010, stream: Any, args: (mode: *mut CUstreamCaptureMode) }
            { id: 715, symbol: cuUserObjectCreate, family: "cuUserObjectCreate", since: 11030, stream: Any, args: (object_out: *mut CUuserObject, ptr: *mut c_void, destroy: CUhostFn, initialRefcount: u32, flags: u32) }
            { id: 716, symbol: cuUserObjectRelease, family: "cuUserObjectRelease", since: 11030, stream: Any, args: (object: CUuserObject, count: u32) }
            { id: 717, symbol: cuUserObjectRetain, family: "cuUserObjectRetain", since: 11030, stream: Any, args: (object: CUuserObject, count: u32) }
            { id: 718, symbol: cuVDPAUCtxCreate, family: "cuVDPAUCtxCreate", since: 3010, stream: Any, args: (pCtx: *mut CUcontext, flags: u32, device: CUdevice, vdpDevice: VdpDevice, vdpGetProcAddress: *mut c_void) }
            { id: 719, symbol: cuVDPAUCtxCreate_v2, family: "cuVDPAUCtxCreate", since: 3020, stream: Any, args: (pCtx: *mut CUcontext, flags: u32, device: CUdevice, vdpDevice: VdpDevice, vdpGetProcAddress: *mut c_void) }
            { id: 720, symbol: cuVDPAUGetDevice, family: "cuVDPAUGetDevice", since: 3010, stream: Any, args: (pDevice: *mut CUdevice, vdpDevice: VdpDevice, vdpGetProcAddress: *mut c_void) }
            { id: 721, symbol: cuWaitExternalSemaphoresAsync, family: "cuWaitExternalSemaphoresAsync", since: 10000, stream: Legacy, args: (extSemArray: *const CUexternalSemaphore, paramsArray: *const c_void, numExtSems: u32, stream: CUstream) }
            { id: 722, symbol: cuWaitExternalSemaphoresAsync_ptsz, family: "cuWaitExternalSemaphoresAsync", since: 10000, stream: PerThread, args: (extSemArray: *const CUexternalSemaphore, paramsArray: *const c_void, numExtSems: u32, stream: CUstream) }
        }
    };
}

/// The rows' ids sorted by family; within one, the per-thread variants last, each kind oldest first.
pub(super) const BY_FAMILY: [u16; 723] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28,
    29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54,
    55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75, 76, 77, 78, 79, 80,
    81, 82, 83, 84, 85, 86, 87, 88, 89, 90, 91, 92, 93, 94, 95, 96, 97, 98, 99, 100, 101, 102, 103, 104, 105,
    106, 107, 108, 109, 110, 111, 112, 113, 114, 115, 116, 117, 118, 119, 120, 121, 122, 123, 124, 125, 126,
    129, 127, 128, 130, 131, 132, 133, 134, 135, 136, 137, 138, 139, 140, 141, 142, 143, 144, 145, 146, 147,
    148, 149, 150, 151, 152, 153, 157, 158, 154, 155, 156, 159, 160, 161, 162, 163, 164, 165, 166, 167, 168,
    169, 170, 171, 172, 173, 174, 175, 176, 177, 178, 179, 180, 181, 182, 183, 184, 185, 186, 187, 188, 189,
    190, 191, 192, 193, 194, 195, 196, 197, 198, 199, 200, 201, 202, 203, 204, 205, 206, 207, 208, 209, 210,
    211, 212, 213, 214, 215, 216, 217, 218, 219, 220, 221, 222, 223, 224, 225, 226, 227, 228, 229, 233, 230,
    231, 232, 234, 235, 236, 237, 238, 239, 240, 241, 242, 243, 244, 245, 246, 247, 248, 249, 250, 251, 252,
    253, 254, 255, 256, 257, 258, 259, 260, 261, 262, 263, 264, 265, 266, 267, 268, 269, 270, 271, 272, 273,
    274, 275, 276, 277, 278, 279, 280, 281, 282, 283, 284, 285, 286, 287, 288, 289, 290, 291, 292, 293, 294,
    295, 296, 297, 298, 299, 300, 301, 302, 303, 304, 305, 306, 307, 308, 309, 310, 311, 313, 312, 314, 315,
    316, 318, 317, 319, 320, 323, 321, 322, 324, 325, 326, 327, 328, 329, 330, 331, 332, 333, 334, 335, 336,
    337, 338, 339, 340, 341, 342, 343, 344, 345, 346, 347, 348, 349, 350, 351, 352, 353, 354, 355, 356, 357,
    358, 359, 360, 361, 362, 363, 373, 364, 365, 366, 367, 368, 369, 370, 371, 372, 374, 375, 376, 377, 378,
    379, 380, 381, 382, 386, 383, 384, 385, 387, 388, 389, 390, 391, 392, 393, 394, 395, 396, 397, 398, 399,
    400, 401, 402, 403, 404, 405, 406, 407, 408, 409, 410, 411, 412, 413, 414, 415, 416, 417, 418, 419, 420,
    422, 421, 423, 424, 425, 426, 427, 428, 429, 430, 431, 432, 433, 510, 434, 441, 442, 435, 436, 437, 438,
    439, 440, 443, 457, 458, 444, 445, 446, 447, 449, 448, 450, 451, 454, 452, 453, 455, 456, 459, 460, 461,
    462, 463, 464, 465, 466, 467, 471, 472, 468, 469, 470, 473, 475, 474, 476, 477, 478, 479, 480, 484, 485,
    481, 482, 483, 486, 490, 491, 487, 488, 489, 492, 496, 497, 493, 494, 495, 498, 502, 503, 499, 500, 501,
    504, 507, 505, 506, 508, 509, 511, 514, 515, 512, 513, 516, 519, 520, 517, 518, 521, 524, 525, 522, 523,
    526, 529, 530, 527, 528, 531, 534, 535, 532, 533, 536, 539, 540, 537, 538, 541, 542, 543, 544, 545, 546,
    547, 548, 549, 550, 551, 552, 553, 554, 555, 556, 557, 558, 559, 560, 561, 562, 563, 564, 565, 566, 567,
    568, 569, 570, 571, 572, 573, 574, 575, 576, 577, 578, 579, 580, 581, 582, 583, 584, 585, 586, 587, 588,
    589, 590, 591, 593, 592, 594, 595, 601, 600, 602, 596, 597, 598, 599, 603, 604, 605, 606, 607, 608, 609,
    610, 611, 614, 612, 613, 615, 616, 617, 619, 621, 618, 620, 622, 623, 625, 624, 626, 627, 628, 629, 630,
    631, 632, 633, 634, 635, 636, 637, 638, 639, 640, 641, 642, 643, 644, 645, 646, 648, 647, 649, 650, 651,
    652, 654, 653, 655, 656, 658, 657, 659, 660, 662, 661, 663, 664, 666, 665, 667, 668, 669, 670, 671, 672,
    673, 674, 675, 676, 677, 678, 679, 680, 681, 682, 683, 684, 685, 687, 686, 688, 689, 690, 691, 692, 693,
    694, 695, 696, 697, 698, 703, 699, 700, 701, 702, 704, 705, 706, 707, 708, 709, 710, 711, 712, 713, 714,
    715, 716, 717, 718, 719, 720, 721, 722,
];
