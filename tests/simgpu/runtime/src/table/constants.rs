//! The handles, enumerations and flags of the runtime's API that deepres names.
//!
//! `cargo xtask codegen` makes this file from the headers of nvidia-cuda-runtime==13.5.37.
//! Do not edit the file.

use core::ffi::c_void;

pub type cudaArray_const_t = *const c_void;
pub type cudaArray_t = *mut c_void;
pub type cudaAsyncCallback = *mut c_void;
pub type cudaAsyncCallbackHandle_t = *mut c_void;
pub type cudaDevResourceDesc_t = *mut c_void;
pub type cudaEvent_t = *mut c_void;
pub type cudaExecutionContext_t = *mut c_void;
pub type cudaExternalMemory_t = *mut c_void;
pub type cudaExternalSemaphore_t = *mut c_void;
pub type cudaFunction_t = *mut c_void;
pub type cudaGraphConditionalHandle = u64;
pub type cudaGraphExec_t = *mut c_void;
pub type cudaGraphNode_t = *mut c_void;
pub type cudaGraph_t = *mut c_void;
pub type cudaGraphicsResource_t = *mut c_void;
pub type cudaKernel_t = *mut c_void;
pub type cudaLibrary_t = *mut c_void;
pub type cudaLogIterator = u32;
pub type cudaLogsCallbackHandle = *mut c_void;
pub type cudaLogsCallback_t = *mut c_void;
pub type cudaMemPool_t = *mut c_void;
pub type cudaMipmappedArray_const_t = *const c_void;
pub type cudaMipmappedArray_t = *mut c_void;
pub type cudaStream_t = *mut c_void;
pub type cudaSurfaceObject_t = u64;
pub type cudaTextureObject_t = u64;
pub type cudaUserObject_t = *mut c_void;

pub type cudaMemoryType = u32;
pub const cudaMemoryTypeUnregistered: cudaMemoryType = 0;
pub const cudaMemoryTypeHost: cudaMemoryType = 1;
pub const cudaMemoryTypeDevice: cudaMemoryType = 2;
pub const cudaMemoryTypeManaged: cudaMemoryType = 3;

pub type cudaMemcpyKind = u32;
pub const cudaMemcpyHostToHost: cudaMemcpyKind = 0;
pub const cudaMemcpyHostToDevice: cudaMemcpyKind = 1;
pub const cudaMemcpyDeviceToHost: cudaMemcpyKind = 2;
pub const cudaMemcpyDeviceToDevice: cudaMemcpyKind = 3;
pub const cudaMemcpyDefault: cudaMemcpyKind = 4;

pub type cudaStreamCaptureStatus = u32;

pub type cudaStreamCaptureMode = u32;

pub type cudaFuncAttribute = u32;

pub type cudaFuncCache = u32;

pub type cudaSharedMemConfig = u32;

pub type cudaLimit = u32;

pub type cudaMemoryAdvise = u32;

pub type cudaMemRangeAttribute = u32;

pub type cudaFlushGPUDirectRDMAWritesScope = u32;

pub type cudaFlushGPUDirectRDMAWritesTarget = u32;

pub type cudaDeviceAttr = u32;

pub type cudaMemPoolAttr = u32;

pub type cudaMemLocationType = u32;

pub type cudaMemAccessFlags = u32;

pub type cudaMemAllocationType = u32;

pub type cudaMemAllocationHandleType = u32;

pub type cudaGraphMemAttributeType = u32;

pub type cudaDeviceP2PAttr = u32;

pub type cudaAtomicOperation = u32;

pub type cudaDevResourceType = u32;

pub type cudaJitOption = u32;

pub type cudaLibraryOption = u32;

pub type cudaGraphNodeType = u32;
pub const cudaGraphNodeTypeKernel: cudaGraphNodeType = 0;
pub const cudaGraphNodeTypeMemset: cudaGraphNodeType = 2;
pub const cudaGraphNodeTypeGraph: cudaGraphNodeType = 4;
pub const cudaGraphNodeTypeEmpty: cudaGraphNodeType = 5;
pub const cudaGraphNodeTypeConditional: cudaGraphNodeType = 13;

pub type cudaDriverEntryPointQueryResult = u32;

pub type cudaLaunchAttributeID = u32;
