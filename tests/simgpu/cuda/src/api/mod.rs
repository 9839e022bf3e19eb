//! The ABI edge. Each implemented function checks and reads the API's raw arguments, calls the
//! logic, and writes the results.
//!
//! The list below names the implemented functions. All others come from `unsupported`, because a
//! name that is imported explicitly hides the same name from a glob import.
#![expect(
    non_snake_case,
    clippy::too_many_arguments,
    reason = "names and arguments are NVIDIA's, documented in its driver API reference"
)]

#[macro_use]
mod arguments;
mod checkpoint;
mod context;
mod copy;
mod device;
mod event;
mod external;
mod general;
mod graph;
mod launch;
mod memory;
mod module;
mod node;
mod pool;
mod stream;
mod unsupported;
mod vmm;

pub use unsupported::*;

pub use checkpoint::{
    cuCheckpointProcessCheckpoint, cuCheckpointProcessGetState, cuCheckpointProcessLock,
    cuCheckpointProcessRestore, cuCheckpointProcessUnlock,
};
pub use context::{
    cuCtxAttach, cuCtxCreate_v2, cuCtxCreate_v3, cuCtxCreate_v4, cuCtxDestroy, cuCtxDestroy_v2, cuCtxDetach,
    cuCtxDisablePeerAccess, cuCtxEnablePeerAccess, cuCtxGetApiVersion, cuCtxGetCacheConfig, cuCtxGetCurrent,
    cuCtxGetDevice, cuCtxGetDevice_v2, cuCtxGetFlags, cuCtxGetId, cuCtxGetLimit, cuCtxGetSharedMemConfig,
    cuCtxGetStreamPriorityRange, cuCtxPopCurrent, cuCtxPopCurrent_v2, cuCtxPushCurrent, cuCtxPushCurrent_v2,
    cuCtxResetPersistingL2Cache, cuCtxSetCacheConfig, cuCtxSetCurrent, cuCtxSetFlags, cuCtxSetLimit,
    cuCtxSetSharedMemConfig, cuCtxSynchronize, cuCtxSynchronize_v2, cuCtxWaitEvent,
    cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2,
    cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxRetain,
    cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2, cuFlushGPUDirectRDMAWrites,
};
pub use copy::{
    cuMemcpy, cuMemcpy_ptds, cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz,
    cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds, cuMemcpy3D_v2, cuMemcpy3D_v2_ptds,
    cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz, cuMemcpy3DPeer, cuMemcpy3DPeer_ptds, cuMemcpy3DPeerAsync,
    cuMemcpy3DPeerAsync_ptsz, cuMemcpyAsync, cuMemcpyAsync_ptsz, cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds,
    cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds, cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz,
    cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz, cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds,
    cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyDtoH_v2,
    cuMemcpyDtoH_v2_ptds, cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz, cuMemcpyHtoA_v2,
    cuMemcpyHtoA_v2_ptds, cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz, cuMemcpyHtoD_v2,
    cuMemcpyHtoD_v2_ptds, cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz, cuMemcpyPeer, cuMemcpyPeer_ptds,
    cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz, cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds, cuMemsetD2D8Async,
    cuMemsetD2D8Async_ptsz, cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds, cuMemsetD2D16Async,
    cuMemsetD2D16Async_ptsz, cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds, cuMemsetD2D32Async,
    cuMemsetD2D32Async_ptsz, cuMemsetD8_v2, cuMemsetD8_v2_ptds, cuMemsetD8Async, cuMemsetD8Async_ptsz,
    cuMemsetD16_v2, cuMemsetD16_v2_ptds, cuMemsetD16Async, cuMemsetD16Async_ptsz, cuMemsetD32_v2,
    cuMemsetD32_v2_ptds, cuMemsetD32Async, cuMemsetD32Async_ptsz,
};
pub use device::{
    cuDeviceCanAccessPeer, cuDeviceComputeCapability, cuDeviceGet, cuDeviceGetAttribute,
    cuDeviceGetByPCIBusId, cuDeviceGetCount, cuDeviceGetDefaultMemPool, cuDeviceGetExecAffinitySupport,
    cuDeviceGetGraphMemAttribute, cuDeviceGetMemPool, cuDeviceGetName, cuDeviceGetP2PAttribute,
    cuDeviceGetPCIBusId, cuDeviceGetProperties, cuDeviceGetTexture1DLinearMaxWidth, cuDeviceGetUuid,
    cuDeviceGetUuid_v2, cuDeviceGraphMemTrim, cuDeviceSetGraphMemAttribute, cuDeviceSetMemPool,
    cuDeviceTotalMem_v2,
};
pub use event::{
    cuEventCreate, cuEventDestroy, cuEventDestroy_v2, cuEventElapsedTime, cuEventElapsedTime_v2,
    cuEventQuery, cuEventRecord, cuEventRecord_ptsz, cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz,
    cuEventSynchronize, cuIpcGetEventHandle, cuIpcOpenEventHandle,
};
pub use external::{
    cuDestroyExternalMemory, cuExternalMemoryGetMappedBuffer, cuExternalMemoryGetMappedMipmappedArray,
    cuImportExternalMemory,
};
pub use general::{
    cuDriverGetVersion, cuGetErrorName, cuGetErrorString, cuGetExportTable, cuGetProcAddress,
    cuGetProcAddress_v2, cuInit, cuProfilerInitialize, cuProfilerStart, cuProfilerStop,
};
pub use graph::{
    cuGraphAddDependencies, cuGraphAddDependencies_v2, cuGraphClone, cuGraphCreate, cuGraphDebugDotPrint,
    cuGraphDestroy, cuGraphDestroyNode, cuGraphExecDestroy, cuGraphExecGetFlags, cuGraphExecGetId,
    cuGraphExecUpdate, cuGraphExecUpdate_v2, cuGraphGetEdges, cuGraphGetEdges_v2, cuGraphGetId,
    cuGraphGetNodes, cuGraphGetRootNodes, cuGraphInstantiate, cuGraphInstantiate_v2,
    cuGraphInstantiateWithFlags, cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz,
    cuGraphNodeFindInClone, cuGraphNodeGetDependencies, cuGraphNodeGetDependencies_v2,
    cuGraphNodeGetDependentNodes, cuGraphNodeGetDependentNodes_v2, cuGraphReleaseUserObject,
    cuGraphRemoveDependencies, cuGraphRemoveDependencies_v2, cuGraphRetainUserObject, cuUserObjectCreate,
    cuUserObjectRelease, cuUserObjectRetain,
};
pub use launch::{
    cuFuncSetBlockShape, cuFuncSetSharedSize, cuGraphLaunch, cuGraphLaunch_ptsz, cuGraphUpload,
    cuGraphUpload_ptsz, cuLaunch, cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz,
    cuLaunchCooperativeKernelMultiDevice, cuLaunchGrid, cuLaunchGridAsync, cuLaunchKernel,
    cuLaunchKernel_ptsz, cuLaunchKernelEx, cuLaunchKernelEx_ptsz, cuParamSetSize, cuParamSetf, cuParamSeti,
    cuParamSetv,
};
pub use memory::{
    cuArray3DCreate_v2, cuArray3DGetDescriptor_v2, cuArrayCreate_v2, cuArrayDestroy, cuArrayGetDescriptor_v2,
    cuArrayGetMemoryRequirements, cuIpcCloseMemHandle, cuIpcGetMemHandle, cuIpcOpenMemHandle,
    cuIpcOpenMemHandle_v2, cuMemAdvise, cuMemAdvise_v2, cuMemAlloc_v2, cuMemAllocHost_v2, cuMemAllocManaged,
    cuMemAllocPitch_v2, cuMemFree_v2, cuMemFreeHost, cuMemGetAddressRange_v2, cuMemGetInfo_v2,
    cuMemHostAlloc, cuMemHostGetDevicePointer_v2, cuMemHostGetFlags, cuMemHostRegister, cuMemHostRegister_v2,
    cuMemHostUnregister, cuMemMapArrayAsync, cuMemMapArrayAsync_ptsz, cuMemPrefetchAsync,
    cuMemPrefetchAsync_ptsz, cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz, cuMemRangeGetAttribute,
    cuMemRangeGetAttributes, cuMipmappedArrayCreate, cuMipmappedArrayDestroy, cuMipmappedArrayGetLevel,
    cuMipmappedArrayGetMemoryRequirements, cuPointerGetAttribute, cuPointerGetAttributes,
    cuPointerSetAttribute,
};
pub use module::{
    cuFuncGetAttribute, cuFuncGetModule, cuFuncGetName, cuFuncGetParamCount, cuFuncGetParamInfo,
    cuFuncIsLoaded, cuFuncLoad, cuFuncSetAttribute, cuFuncSetCacheConfig, cuFuncSetSharedMemConfig,
    cuKernelGetAttribute, cuKernelGetFunction, cuKernelGetLibrary, cuKernelGetName, cuKernelGetParamCount,
    cuKernelGetParamInfo, cuKernelSetAttribute, cuKernelSetCacheConfig, cuLibraryEnumerateKernels,
    cuLibraryGetGlobal, cuLibraryGetKernel, cuLibraryGetKernelCount, cuLibraryGetManaged, cuLibraryGetModule,
    cuLibraryLoadData, cuLibraryLoadFromFile, cuLibraryUnload, cuModuleEnumerateFunctions,
    cuModuleGetFunction, cuModuleGetFunctionCount, cuModuleGetGlobal_v2, cuModuleGetLoadingMode,
    cuModuleLoad, cuModuleLoadData, cuModuleLoadDataEx, cuModuleLoadFatBinary, cuModuleUnload,
    cuOccupancyAvailableDynamicSMemPerBlock, cuOccupancyMaxActiveBlocksPerMultiprocessor,
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, cuOccupancyMaxPotentialBlockSize,
    cuOccupancyMaxPotentialBlockSizeWithFlags,
};
pub use node::{
    cuGraphAddBatchMemOpNode, cuGraphAddChildGraphNode, cuGraphAddEmptyNode, cuGraphAddEventRecordNode,
    cuGraphAddEventWaitNode, cuGraphAddHostNode, cuGraphAddKernelNode, cuGraphAddKernelNode_v2,
    cuGraphAddMemAllocNode, cuGraphAddMemFreeNode, cuGraphAddMemcpyNode, cuGraphAddMemsetNode,
    cuGraphAddNode, cuGraphAddNode_v2, cuGraphBatchMemOpNodeSetParams, cuGraphChildGraphNodeGetGraph,
    cuGraphConditionalHandleCreate, cuGraphEventRecordNodeGetEvent, cuGraphEventRecordNodeSetEvent,
    cuGraphEventWaitNodeGetEvent, cuGraphEventWaitNodeSetEvent, cuGraphExecBatchMemOpNodeSetParams,
    cuGraphExecChildGraphNodeSetParams, cuGraphExecEventRecordNodeSetEvent, cuGraphExecEventWaitNodeSetEvent,
    cuGraphExecHostNodeSetParams, cuGraphExecKernelNodeSetParams, cuGraphExecKernelNodeSetParams_v2,
    cuGraphExecMemcpyNodeSetParams, cuGraphExecMemsetNodeSetParams, cuGraphExecNodeSetParams,
    cuGraphHostNodeGetParams, cuGraphHostNodeSetParams, cuGraphKernelNodeCopyAttributes,
    cuGraphKernelNodeGetAttribute, cuGraphKernelNodeGetParams, cuGraphKernelNodeGetParams_v2,
    cuGraphKernelNodeSetAttribute, cuGraphKernelNodeSetParams, cuGraphKernelNodeSetParams_v2,
    cuGraphMemAllocNodeGetParams, cuGraphMemFreeNodeGetParams, cuGraphMemcpyNodeGetParams,
    cuGraphMemcpyNodeSetParams, cuGraphMemsetNodeGetParams, cuGraphMemsetNodeSetParams,
    cuGraphNodeGetContainingGraph, cuGraphNodeGetEnabled, cuGraphNodeGetLocalId, cuGraphNodeGetToolsId,
    cuGraphNodeGetType, cuGraphNodeSetEnabled, cuGraphNodeSetParams,
};
pub use pool::{
    cuMemAllocAsync, cuMemAllocAsync_ptsz, cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz,
    cuMemFreeAsync, cuMemFreeAsync_ptsz, cuMemGetDefaultMemPool, cuMemGetMemPool, cuMemPoolCreate,
    cuMemPoolDestroy, cuMemPoolExportPointer, cuMemPoolExportToShareableHandle, cuMemPoolGetAccess,
    cuMemPoolGetAttribute, cuMemPoolImportFromShareableHandle, cuMemPoolImportPointer, cuMemPoolSetAccess,
    cuMemPoolSetAttribute, cuMemPoolTrimTo, cuMemSetMemPool,
};
pub use stream::{
    cuLaunchHostFunc, cuLaunchHostFunc_ptsz, cuStreamAddCallback, cuStreamAddCallback_ptsz,
    cuStreamAttachMemAsync, cuStreamAttachMemAsync_ptsz, cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz,
    cuStreamBeginCapture, cuStreamBeginCapture_ptsz, cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz,
    cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz, cuStreamCopyAttributes,
    cuStreamCopyAttributes_ptsz, cuStreamCreate, cuStreamCreateWithPriority, cuStreamDestroy,
    cuStreamDestroy_v2, cuStreamEndCapture, cuStreamEndCapture_ptsz, cuStreamGetAttribute,
    cuStreamGetAttribute_ptsz, cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_ptsz,
    cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz, cuStreamGetCaptureInfo_v3,
    cuStreamGetCaptureInfo_v3_ptsz, cuStreamGetCtx, cuStreamGetCtx_ptsz, cuStreamGetCtx_v2,
    cuStreamGetCtx_v2_ptsz, cuStreamGetDevice, cuStreamGetDevice_ptsz, cuStreamGetFlags,
    cuStreamGetFlags_ptsz, cuStreamGetId, cuStreamGetId_ptsz, cuStreamGetPriority, cuStreamGetPriority_ptsz,
    cuStreamIsCapturing, cuStreamIsCapturing_ptsz, cuStreamQuery, cuStreamQuery_ptsz, cuStreamSetAttribute,
    cuStreamSetAttribute_ptsz, cuStreamSynchronize, cuStreamSynchronize_ptsz,
    cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_ptsz,
    cuStreamUpdateCaptureDependencies_v2, cuStreamUpdateCaptureDependencies_v2_ptsz, cuStreamWaitEvent,
    cuStreamWaitEvent_ptsz, cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz, cuStreamWaitValue64_v2,
    cuStreamWaitValue64_v2_ptsz, cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz,
    cuStreamWriteValue64_v2, cuStreamWriteValue64_v2_ptsz, cuThreadExchangeStreamCaptureMode,
};
pub use vmm::{
    cuMemAddressFree, cuMemAddressReserve, cuMemCreate, cuMemExportToShareableHandle, cuMemGetAccess,
    cuMemGetAllocationGranularity, cuMemGetAllocationPropertiesFromHandle, cuMemImportFromShareableHandle,
    cuMemMap, cuMemRelease, cuMemRetainAllocationHandle, cuMemSetAccess, cuMemUnmap,
};
