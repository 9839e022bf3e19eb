//! Types of the runtime's API whose fields the library reads or writes. The names are those of the
//! header.
//!
//! Handles, enumerations and flags come from the generated `constants`. All other types that
//! functions take by pointer are opaque (`c_void`). The layouts are those of x86-64 Linux.
#![expect(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    reason = "names are NVIDIA's; its runtime API reference documents the fields under the same names"
)]

pub use core::ffi::{c_char, c_void};

use deepres_abi::driver::types::{
    CUDA_CONDITIONAL_NODE_PARAMS, CUDA_MEMSET_NODE_PARAMS_v2, CUhostFn, CUstreamCallback, CUuuid,
};
use deepres_abi::layouts;

pub use super::constants::*;

/// A function that `cudaLaunchHostFunc` runs on a thread of the driver.
pub type cudaHostFn_t = CUhostFn;
/// A function that `cudaStreamAddCallback` runs on a thread of the driver.
pub type cudaStreamCallback_t = CUstreamCallback;

/// The extent of a grid or a block.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dim3 {
    pub x: u32,
    pub y: u32,
    pub z: u32,
}

/// A handle by which another process opens an allocation.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct cudaIpcMemHandle_t {
    pub reserved: [u8; 64],
}

/// A handle by which another process opens an event.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct cudaIpcEventHandle_t {
    pub reserved: [u8; 64],
}

/// The extent of an array.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct cudaExtent {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

/// An address of rows with padding.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct cudaPitchedPtr {
    pub ptr: *mut c_void,
    pub pitch: usize,
    pub xsize: usize,
    pub ysize: usize,
}

/// A place of memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct cudaMemLocation {
    pub r#type: cudaMemLocationType,
    pub id: i32,
}

/// The facts about an address.
#[repr(C)]
pub struct cudaPointerAttributes {
    pub r#type: cudaMemoryType,
    pub device: i32,
    pub devicePointer: *mut c_void,
    pub hostPointer: *mut c_void,
    pub reserved: [i64; 8],
}

/// The geometry, stream and attributes of a launch by `cudaLaunchKernelExC`.
#[repr(C)]
pub struct cudaLaunchConfig_t {
    pub gridDim: dim3,
    pub blockDim: dim3,
    pub dynamicSmemBytes: usize,
    pub stream: cudaStream_t,
    pub attrs: *mut c_void,
    pub numAttrs: u32,
}

/// A kernel in a graph.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct cudaKernelNodeParams {
    pub func: *mut c_void,
    pub gridDim: dim3,
    pub blockDim: dim3,
    pub sharedMemBytes: u32,
    pub kernelParams: *mut *mut c_void,
    pub extra: *mut *mut c_void,
}

/// The middle of [`cudaGraphNodeParams`], with the kinds of nodes that the library reads. A memory
/// set and a conditional node have the driver's layout.
#[repr(C)]
#[derive(Clone, Copy)]
pub union cudaGraphNodeParams_union {
    pub asBytes: [u8; 232],
    pub kernel: cudaKernelNodeParams,
    pub memset: CUDA_MEMSET_NODE_PARAMS_v2,
    pub conditional: CUDA_CONDITIONAL_NODE_PARAMS,
}

/// A node of any kind, for `cudaGraphAddNode`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct cudaGraphNodeParams {
    pub r#type: cudaGraphNodeType,
    pub reserved0: [i32; 3],
    pub params: cudaGraphNodeParams_union,
    pub reserved2: i64,
}

/// The properties of a device.
#[repr(C)]
pub struct cudaDeviceProp {
    pub name: [c_char; 256],
    pub uuid: CUuuid,
    pub luid: [c_char; 8],
    pub luidDeviceNodeMask: u32,
    pub totalGlobalMem: usize,
    pub sharedMemPerBlock: usize,
    pub regsPerBlock: i32,
    pub warpSize: i32,
    pub memPitch: usize,
    pub maxThreadsPerBlock: i32,
    pub maxThreadsDim: [i32; 3],
    pub maxGridSize: [i32; 3],
    pub totalConstMem: usize,
    pub major: i32,
    pub minor: i32,
    pub textureAlignment: usize,
    pub texturePitchAlignment: usize,
    pub multiProcessorCount: i32,
    pub integrated: i32,
    pub canMapHostMemory: i32,
    pub maxTexture1D: i32,
    pub maxTexture1DMipmap: i32,
    pub maxTexture2D: [i32; 2],
    pub maxTexture2DMipmap: [i32; 2],
    pub maxTexture2DLinear: [i32; 3],
    pub maxTexture2DGather: [i32; 2],
    pub maxTexture3D: [i32; 3],
    pub maxTexture3DAlt: [i32; 3],
    pub maxTextureCubemap: i32,
    pub maxTexture1DLayered: [i32; 2],
    pub maxTexture2DLayered: [i32; 3],
    pub maxTextureCubemapLayered: [i32; 2],
    pub maxSurface1D: i32,
    pub maxSurface2D: [i32; 2],
    pub maxSurface3D: [i32; 3],
    pub maxSurface1DLayered: [i32; 2],
    pub maxSurface2DLayered: [i32; 3],
    pub maxSurfaceCubemap: i32,
    pub maxSurfaceCubemapLayered: [i32; 2],
    pub surfaceAlignment: usize,
    pub concurrentKernels: i32,
    pub ECCEnabled: i32,
    pub pciBusID: i32,
    pub pciDeviceID: i32,
    pub pciDomainID: i32,
    pub tccDriver: i32,
    pub asyncEngineCount: i32,
    pub unifiedAddressing: i32,
    pub memoryBusWidth: i32,
    pub l2CacheSize: i32,
    pub persistingL2CacheMaxSize: i32,
    pub maxThreadsPerMultiProcessor: i32,
    pub streamPrioritiesSupported: i32,
    pub globalL1CacheSupported: i32,
    pub localL1CacheSupported: i32,
    pub sharedMemPerMultiprocessor: usize,
    pub regsPerMultiprocessor: i32,
    pub managedMemory: i32,
    pub isMultiGpuBoard: i32,
    pub multiGpuBoardGroupID: i32,
    pub hostNativeAtomicSupported: i32,
    pub pageableMemoryAccess: i32,
    pub concurrentManagedAccess: i32,
    pub computePreemptionSupported: i32,
    pub canUseHostPointerForRegisteredMem: i32,
    pub cooperativeLaunch: i32,
    pub sharedMemPerBlockOptin: usize,
    pub pageableMemoryAccessUsesHostPageTables: i32,
    pub directManagedMemAccessFromHost: i32,
    pub maxBlocksPerMultiProcessor: i32,
    pub accessPolicyMaxWindowSize: i32,
    pub reservedSharedMemPerBlock: usize,
    pub hostRegisterSupported: i32,
    pub sparseCudaArraySupported: i32,
    pub hostRegisterReadOnlySupported: i32,
    pub timelineSemaphoreInteropSupported: i32,
    pub memoryPoolsSupported: i32,
    pub gpuDirectRDMASupported: i32,
    pub gpuDirectRDMAFlushWritesOptions: u32,
    pub gpuDirectRDMAWritesOrdering: i32,
    pub memoryPoolSupportedHandleTypes: u32,
    pub deferredMappingCudaArraySupported: i32,
    pub ipcEventSupported: i32,
    pub clusterLaunch: i32,
    pub unifiedFunctionPointers: i32,
    pub deviceNumaConfig: i32,
    pub deviceNumaId: i32,
    pub mpsEnabled: i32,
    pub hostNumaId: i32,
    pub gpuPciDeviceID: u32,
    pub gpuPciSubsystemID: u32,
    pub hostNumaMultinodeIpcSupported: i32,
    pub reserved: [i32; 56],
}

/// The attributes of a function.
#[repr(C)]
pub struct cudaFuncAttributes {
    pub sharedSizeBytes: usize,
    pub constSizeBytes: usize,
    pub localSizeBytes: usize,
    pub maxThreadsPerBlock: i32,
    pub numRegs: i32,
    pub ptxVersion: i32,
    pub binaryVersion: i32,
    pub cacheModeCA: i32,
    pub maxDynamicSharedSizeBytes: i32,
    pub preferredShmemCarveout: i32,
    pub clusterDimMustBeSet: i32,
    pub requiredClusterWidth: i32,
    pub requiredClusterHeight: i32,
    pub requiredClusterDepth: i32,
    pub clusterSchedulingPolicyPreference: i32,
    pub nonPortableClusterSizeAllowed: i32,
    pub deviceNodeUpdateStatus: i32,
    pub sharedMemoryMode: u32,
    pub reserved: [i32; 14],
}

layouts! {
    dim3: 12, 4 { x: 0, y: 4, z: 8 }
    cudaIpcMemHandle_t: 64, 1 { reserved: 0 }
    cudaIpcEventHandle_t: 64, 1 { reserved: 0 }
    cudaExtent: 24, 8 { width: 0, height: 8, depth: 16 }
    cudaPitchedPtr: 32, 8 { ptr: 0, pitch: 8, xsize: 16, ysize: 24 }
    cudaMemLocation: 8, 4 { r#type: 0, id: 4 }
    cudaPointerAttributes: 88, 8 { r#type: 0, device: 4, devicePointer: 8, hostPointer: 16 }
    cudaLaunchConfig_t: 56, 8 { gridDim: 0, blockDim: 12, dynamicSmemBytes: 24, stream: 32, attrs: 40, numAttrs: 48 }
    cudaKernelNodeParams: 56, 8 { func: 0, gridDim: 8, blockDim: 20, sharedMemBytes: 32, kernelParams: 40, extra: 48 }
    cudaGraphNodeParams: 256, 8 { r#type: 0, reserved0: 4, reserved2: 248 }
    cudaDeviceProp: 1008, 8 { name: 0, uuid: 256, luid: 272, luidDeviceNodeMask: 280, totalGlobalMem: 288, sharedMemPerBlock: 296, regsPerBlock: 304, warpSize: 308, memPitch: 312, maxThreadsPerBlock: 320, maxThreadsDim: 324, maxGridSize: 336, totalConstMem: 352, major: 360, minor: 364, textureAlignment: 368, texturePitchAlignment: 376, multiProcessorCount: 384, integrated: 388, canMapHostMemory: 392, maxTexture1D: 396, maxTexture1DMipmap: 400, maxTexture2D: 404, maxTexture2DMipmap: 412, maxTexture2DLinear: 420, maxTexture2DGather: 432, maxTexture3D: 440, maxTexture3DAlt: 452, maxTextureCubemap: 464, maxTexture1DLayered: 468, maxTexture2DLayered: 476, maxTextureCubemapLayered: 488, maxSurface1D: 496, maxSurface2D: 500, maxSurface3D: 508, maxSurface1DLayered: 520, maxSurface2DLayered: 528, maxSurfaceCubemap: 540, maxSurfaceCubemapLayered: 544, surfaceAlignment: 552, concurrentKernels: 560, ECCEnabled: 564, pciBusID: 568, pciDeviceID: 572, pciDomainID: 576, tccDriver: 580, asyncEngineCount: 584, unifiedAddressing: 588, memoryBusWidth: 592, l2CacheSize: 596, persistingL2CacheMaxSize: 600, maxThreadsPerMultiProcessor: 604, streamPrioritiesSupported: 608, globalL1CacheSupported: 612, localL1CacheSupported: 616, sharedMemPerMultiprocessor: 624, regsPerMultiprocessor: 632, managedMemory: 636, isMultiGpuBoard: 640, multiGpuBoardGroupID: 644, hostNativeAtomicSupported: 648, pageableMemoryAccess: 652, concurrentManagedAccess: 656, computePreemptionSupported: 660, canUseHostPointerForRegisteredMem: 664, cooperativeLaunch: 668, sharedMemPerBlockOptin: 672, pageableMemoryAccessUsesHostPageTables: 680, directManagedMemAccessFromHost: 684, maxBlocksPerMultiProcessor: 688, accessPolicyMaxWindowSize: 692, reservedSharedMemPerBlock: 696, hostRegisterSupported: 704, sparseCudaArraySupported: 708, hostRegisterReadOnlySupported: 712, timelineSemaphoreInteropSupported: 716, memoryPoolsSupported: 720, gpuDirectRDMASupported: 724, gpuDirectRDMAFlushWritesOptions: 728, gpuDirectRDMAWritesOrdering: 732, memoryPoolSupportedHandleTypes: 736, deferredMappingCudaArraySupported: 740, ipcEventSupported: 744, clusterLaunch: 748, unifiedFunctionPointers: 752, deviceNumaConfig: 756, deviceNumaId: 760, mpsEnabled: 764, hostNumaId: 768, gpuPciDeviceID: 772, gpuPciSubsystemID: 776, hostNumaMultinodeIpcSupported: 780, reserved: 784 }
    cudaFuncAttributes: 144, 8 { sharedSizeBytes: 0, constSizeBytes: 8, localSizeBytes: 16, maxThreadsPerBlock: 24, numRegs: 28, ptxVersion: 32, binaryVersion: 36, cacheModeCA: 40, maxDynamicSharedSizeBytes: 44, preferredShmemCarveout: 48, clusterDimMustBeSet: 52, requiredClusterWidth: 56, requiredClusterHeight: 60, requiredClusterDepth: 64, clusterSchedulingPolicyPreference: 68, nonPortableClusterSizeAllowed: 72, deviceNodeUpdateStatus: 76, sharedMemoryMode: 80, reserved: 84 }
}
