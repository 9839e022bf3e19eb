//! The functions that the interposer forwards on purpose, each with a reason. The forwarded, the
//! hooked and the counted functions ([`crate::coverage`]) together are the whole table. So a
//! developer must assign each function that a new header adds to one of these groups.

use crate::driver::ApiId;

/// The reason for which a function needs no hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The function answers a question and changes nothing.
    Query,
    /// The function changes a behaviour and gives the GPU no work.
    Setting,
    /// The function links programs, or loads functions of loaded code. deepres limits neither.
    Code,
    /// The function chooses contexts, or makes or ends objects without work or memory of their own:
    /// streams, events, textures.
    Object,
    /// The function builds, changes or ends a graph. The interposer hooks launches of graphs.
    Graph,
    /// The function orders work on streams, for example by an event, and runs no work.
    Order,
    /// The function maps or opens memory that the interposer charged when a process made the
    /// memory.
    Address,
    /// The function gives back memory that the interposer did not charge.
    Release,
    /// The function hands an object to another process or to graphics. The interposer counts the
    /// receiver's call.
    Share,
    /// The function suspends a process or brings it back. `deepres mover` uses these functions too.
    Checkpoint,
}

impl Reason {
    /// Returns the reason's name, as people and JSON read it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Setting => "setting",
            Self::Code => "code",
            Self::Object => "object",
            Self::Graph => "graph",
            Self::Order => "order",
            Self::Address => "address",
            Self::Release => "release",
            Self::Share => "share",
            Self::Checkpoint => "checkpoint",
        }
    }
}

macro_rules! forwarded {
    ($($reason:ident: $($symbol:ident)+;)+) => {
        /// Returns the reason for which the interposer forwards `id`. Returns `None` if `id` is
        /// hooked or counted.
        pub const fn reason(id: ApiId) -> Option<Reason> {
            match id {
                $($(ApiId::$symbol)|+ => Some(Reason::$reason),)+
                _ => None,
            }
        }
    };
}

forwarded! {
    Query:
        cuArray3DGetDescriptor cuArray3DGetDescriptor_v2 cuArrayGetDescriptor cuArrayGetDescriptor_v2
        cuArrayGetMemoryRequirements cuArrayGetPlane cuArrayGetSparseProperties cuCoredumpGetAttribute
        cuCoredumpGetAttributeGlobal cuCtxFromGreenCtx cuCtxGetApiVersion cuCtxGetCacheConfig cuCtxGetCurrent
        cuCtxGetDevResource cuCtxGetDevice cuCtxGetDevice_v2 cuCtxGetExecAffinity cuCtxGetFlags cuCtxGetId
        cuCtxGetLimit cuCtxGetSharedMemConfig cuCtxGetStreamPriorityRange cuDeviceCanAccessPeer
        cuDeviceComputeCapability cuDeviceGet cuDeviceGetAttribute cuDeviceGetByPCIBusId cuDeviceGetCliqueCount
        cuDeviceGetCliqueInfo cuDeviceGetCount cuDeviceGetDefaultMemPool cuDeviceGetDevResource
        cuDeviceGetExecAffinitySupport cuDeviceGetFabricClusterUuid cuDeviceGetGraphMemAttribute
        cuDeviceGetHostAtomicCapabilities cuDeviceGetLuid cuDeviceGetMemPool cuDeviceGetName
        cuDeviceGetNvSciSyncAttributes cuDeviceGetP2PAtomicCapabilities cuDeviceGetP2PAttribute cuDeviceGetPCIBusId
        cuDeviceGetProperties cuDeviceGetTexture1DLinearMaxWidth cuDeviceGetUuid cuDeviceGetUuid_v2
        cuDevicePrimaryCtxGetState cuDriverGetVersion cuEventElapsedTime cuEventElapsedTime_v2 cuEventQuery
        cuFuncGetAttribute cuFuncGetModule cuFuncGetName cuFuncGetParamCount cuFuncGetParamInfo cuFuncIsLoaded
        cuGLGetDevices cuGLGetDevices_v2 cuGetErrorName cuGetErrorString cuGraphBatchMemOpNodeGetParams
        cuGraphChildGraphNodeGetGraph cuGraphDebugDotPrint cuGraphEventRecordNodeGetEvent cuGraphEventWaitNodeGetEvent
        cuGraphExecGetFlags cuGraphExecGetId cuGraphExternalSemaphoresSignalNodeGetParams
        cuGraphExternalSemaphoresWaitNodeGetParams cuGraphGetEdges cuGraphGetEdges_v2 cuGraphGetId cuGraphGetNodes
        cuGraphGetRootNodes cuGraphHostNodeGetParams cuGraphKernelNodeGetAttribute cuGraphKernelNodeGetParams
        cuGraphKernelNodeGetParams_v2 cuGraphMemAllocNodeGetParams cuGraphMemFreeNodeGetParams
        cuGraphMemcpyNodeGetParams cuGraphMemsetNodeGetParams cuGraphNodeFindInClone cuGraphNodeGetContainingGraph
        cuGraphNodeGetDependencies cuGraphNodeGetDependencies_v2 cuGraphNodeGetDependentNodes
        cuGraphNodeGetDependentNodes_v2 cuGraphNodeGetEnabled cuGraphNodeGetLocalId cuGraphNodeGetParams
        cuGraphNodeGetToolsId cuGraphNodeGetType cuGreenCtxGetDevResource cuGreenCtxGetId cuKernelGetAttribute
        cuKernelGetFunction cuKernelGetLibrary cuKernelGetName cuKernelGetParamCount cuKernelGetParamInfo
        cuLibraryEnumerateKernels cuLibraryGetGlobal cuLibraryGetKernel cuLibraryGetKernelCount cuLibraryGetManaged
        cuLibraryGetModule cuLibraryGetUnifiedFunction cuLogsCurrent cuLogsDumpToFile cuLogsDumpToMemory
        cuMemGetAccess cuMemGetAddressRange cuMemGetAddressRange_v2 cuMemGetAllocationGranularity
        cuMemGetAllocationPropertiesFromHandle cuMemGetLocationInfo
        cuMemHostGetDevicePointer cuMemHostGetDevicePointer_v2 cuMemHostGetFlags cuMemPoolGetAccess
        cuMemPoolGetAttribute cuMemRangeGetAttribute cuMemRangeGetAttributes cuMipmappedArrayGetLevel
        cuMipmappedArrayGetMemoryRequirements cuMipmappedArrayGetSparseProperties cuModuleEnumerateFunctions
        cuModuleGetFunction cuModuleGetFunctionCount cuModuleGetGlobal cuModuleGetGlobal_v2 cuModuleGetLoadingMode
        cuModuleGetSurfRef cuModuleGetTexRef cuMulticastGetGranularity cuOccupancyAvailableDynamicSMemPerBlock
        cuOccupancyMaxActiveBlocksPerMultiprocessor cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
        cuOccupancyMaxActiveClusters cuOccupancyMaxPotentialBlockSize cuOccupancyMaxPotentialBlockSizeWithFlags
        cuOccupancyMaxPotentialClusterSize cuPointerGetAttribute cuPointerGetAttributes cuStreamGetAttribute
        cuStreamGetAttribute_ptsz cuStreamGetCaptureInfo cuStreamGetCaptureInfo_ptsz cuStreamGetCaptureInfo_v2
        cuStreamGetCaptureInfo_v2_ptsz cuStreamGetCaptureInfo_v3 cuStreamGetCaptureInfo_v3_ptsz cuStreamGetCtx
        cuStreamGetCtx_ptsz cuStreamGetCtx_v2 cuStreamGetCtx_v2_ptsz cuStreamGetDevResource
        cuStreamGetDevResource_ptsz cuStreamGetDevice cuStreamGetDevice_ptsz cuStreamGetFlags cuStreamGetFlags_ptsz
        cuStreamGetGreenCtx cuStreamGetId cuStreamGetId_ptsz cuStreamGetPriority cuStreamGetPriority_ptsz
        cuStreamIsCapturing cuStreamIsCapturing_ptsz cuStreamQuery cuStreamQuery_ptsz cuSurfObjectGetResourceDesc
        cuSurfRefGetArray cuTexObjectGetResourceDesc cuTexObjectGetResourceViewDesc cuTexObjectGetTextureDesc
        cuTexRefGetAddress cuTexRefGetAddressMode cuTexRefGetAddress_v2 cuTexRefGetArray cuTexRefGetBorderColor
        cuTexRefGetFilterMode cuTexRefGetFlags cuTexRefGetFormat cuTexRefGetMaxAnisotropy cuTexRefGetMipmapFilterMode
        cuTexRefGetMipmapLevelBias cuTexRefGetMipmapLevelClamp cuTexRefGetMipmappedArray cuVDPAUGetDevice;
    Setting:
        cuCoredumpDeregisterCompleteCallback cuCoredumpDeregisterStartCallback cuCoredumpRegisterCompleteCallback
        cuCoredumpRegisterStartCallback cuCoredumpSetAttribute cuCoredumpSetAttributeGlobal
        cuCtxResetPersistingL2Cache cuCtxSetCacheConfig cuCtxSetCurrent cuCtxSetFlags
        cuCtxSetSharedMemConfig cuDevResourceGenerateDesc cuDevSmResourceSplit cuDevSmResourceSplitByCount
        cuDevicePrimaryCtxSetFlags cuDevicePrimaryCtxSetFlags_v2 cuDeviceRegisterAsyncNotification
        cuDeviceSetGraphMemAttribute cuDeviceSetMemPool cuDeviceUnregisterAsyncNotification cuFuncSetAttribute
        cuFuncSetBlockShape cuFuncSetCacheConfig cuFuncSetSharedMemConfig cuFuncSetSharedSize cuKernelSetAttribute
        cuKernelSetCacheConfig cuLogsRegisterCallback cuLogsUnregisterCallback cuMemAdvise cuMemAdvise_v2
        cuMemPoolSetAttribute cuMemSetMemPool cuParamSetSize cuParamSetTexRef cuParamSetf cuParamSeti cuParamSetv
        cuPointerSetAttribute cuProfilerInitialize cuProfilerStart cuProfilerStop cuStreamCopyAttributes
        cuStreamCopyAttributes_ptsz cuStreamSetAttribute cuStreamSetAttribute_ptsz cuSurfRefSetArray
        cuTensorMapEncodeIm2col cuTensorMapEncodeIm2colWide cuTensorMapEncodeTiled cuTensorMapReplaceAddress
        cuTensorMapSetAllocationClass cuTexRefSetAddress cuTexRefSetAddress2D cuTexRefSetAddress2D_v2
        cuTexRefSetAddress2D_v3 cuTexRefSetAddressMode cuTexRefSetAddress_v2 cuTexRefSetArray cuTexRefSetBorderColor
        cuTexRefSetFilterMode cuTexRefSetFlags cuTexRefSetFormat cuTexRefSetMaxAnisotropy cuTexRefSetMipmapFilterMode
        cuTexRefSetMipmapLevelBias cuTexRefSetMipmapLevelClamp cuTexRefSetMipmappedArray;
    Code:
        cuFuncLoad cuLinkAddData cuLinkAddData_v2
        cuLinkAddFile cuLinkAddFile_v2 cuLinkComplete cuLinkCreate cuLinkCreate_v2 cuLinkDestroy;
    Object:
        cuCtxPopCurrent cuCtxPopCurrent_v2 cuCtxPushCurrent
        cuCtxPushCurrent_v2 cuEventCreate cuEventDestroy cuEventDestroy_v2 cuGreenCtxStreamCreate cuStreamCreate cuStreamCreateWithPriority
        cuSurfObjectCreate cuSurfObjectDestroy cuTexObjectCreate cuTexObjectDestroy cuTexRefCreate cuTexRefDestroy;
    Graph:
        cuGraphAddBatchMemOpNode cuGraphAddChildGraphNode cuGraphAddDependencies cuGraphAddDependencies_v2
        cuGraphAddEmptyNode cuGraphAddEventRecordNode cuGraphAddEventWaitNode cuGraphAddExternalSemaphoresSignalNode
        cuGraphAddExternalSemaphoresWaitNode cuGraphAddHostNode cuGraphAddKernelNode cuGraphAddKernelNode_v2
        cuGraphAddMemFreeNode cuGraphAddMemcpyNode cuGraphAddMemsetNode cuGraphDestroyNode
        cuGraphBatchMemOpNodeSetParams cuGraphClone cuGraphCreate
        cuGraphEventRecordNodeSetEvent cuGraphEventWaitNodeSetEvent
        cuGraphExecBatchMemOpNodeSetParams cuGraphExecEventRecordNodeSetEvent cuGraphExecEventWaitNodeSetEvent
        cuGraphExecExternalSemaphoresSignalNodeSetParams cuGraphExecExternalSemaphoresWaitNodeSetParams
        cuGraphExecHostNodeSetParams
        cuGraphExternalSemaphoresSignalNodeSetParams cuGraphExternalSemaphoresWaitNodeSetParams
        cuGraphHostNodeSetParams
        cuGraphKernelNodeCopyAttributes
        cuGraphKernelNodeSetAttribute cuGraphKernelNodeSetParams cuGraphKernelNodeSetParams_v2
        cuGraphMemcpyNodeSetParams cuGraphMemsetNodeSetParams cuGraphNodeSetParams
        cuGraphNodeSetParams_v2 cuGraphReleaseUserObject cuGraphRemoveDependencies cuGraphRemoveDependencies_v2
        cuGraphRetainUserObject cuStreamUpdateCaptureDependencies cuStreamUpdateCaptureDependencies_ptsz
        cuStreamUpdateCaptureDependencies_v2 cuStreamUpdateCaptureDependencies_v2_ptsz cuUserObjectCreate
        cuUserObjectRelease cuUserObjectRetain;
    Order:
        cuCtxRecordEvent cuEventRecord cuEventRecordWithFlags cuEventRecordWithFlags_ptsz cuEventRecord_ptsz
        cuFlushGPUDirectRDMAWrites cuGreenCtxRecordEvent cuThreadExchangeStreamCaptureMode;
    Address:
        cuCtxDisablePeerAccess cuCtxEnablePeerAccess cuMemAddressFree cuMemAddressReserve cuMemPoolSetAccess
        cuMemSetAccess cuMulticastAddDevice cuMulticastBindAddr cuMulticastBindAddr_v2 cuMulticastBindMem
        cuMulticastBindMem_v2 cuMulticastUnbind;
    Release:
        cuDestroyExternalMemory cuDestroyExternalSemaphore cuEGLStreamConsumerDisconnect
        cuEGLStreamConsumerReleaseFrame cuEGLStreamProducerDisconnect cuEGLStreamProducerReturnFrame
        cuGLUnmapBufferObject cuGLUnmapBufferObjectAsync cuGLUnregisterBufferObject cuGraphicsUnregisterResource
        cuIpcCloseMemHandle cuMemFreeHost cuMemHostUnregister;
    Share:
        cuEGLStreamConsumerConnect cuEGLStreamConsumerConnectWithFlags cuEGLStreamProducerConnect
        cuEventCreateFromEGLSync cuGLInit cuGLRegisterBufferObject cuGLSetBufferObjectMapFlags
        cuGraphicsEGLRegisterImage cuGraphicsGLRegisterBuffer cuGraphicsGLRegisterImage cuGraphicsResourceSetMapFlags
        cuGraphicsResourceSetMapFlags_v2 cuGraphicsVDPAURegisterOutputSurface cuGraphicsVDPAURegisterVideoSurface
        cuImportExternalSemaphore cuIpcGetEventHandle cuIpcGetMemHandle cuIpcOpenEventHandle
        cuLogicalEndpointAddDevice cuLogicalEndpointBindAddr cuLogicalEndpointBindMem cuLogicalEndpointCreate
        cuLogicalEndpointDestroy cuLogicalEndpointExport cuLogicalEndpointGetLimits cuLogicalEndpointIdRelease
        cuLogicalEndpointIdReserve cuLogicalEndpointImport cuLogicalEndpointQuery cuLogicalEndpointUnbind
        cuMemGetHandleForAddressRange cuMemPoolExportPointer cuMemPoolExportToShareableHandle;
    Checkpoint:
        cuCheckpointOperationComplete cuCheckpointProcessCheckpoint cuCheckpointProcessGetRestoreThreadId
        cuCheckpointProcessGetState cuCheckpointProcessLock cuCheckpointProcessRestore cuCheckpointProcessUnlock;
}
