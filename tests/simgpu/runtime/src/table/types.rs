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

layouts! {
    /// The extent of a grid or a block.
    struct dim3: 12, 4 {
        x: u32 = 0,
        y: u32 = 4,
        z: u32 = 8,
    }

    /// A handle by which another process opens an allocation.
    struct cudaIpcMemHandle_t: 64, 1 {
        reserved: [u8; 64] = 0,
    }

    /// A handle by which another process opens an event.
    struct cudaIpcEventHandle_t: 64, 1 {
        reserved: [u8; 64] = 0,
    }

    /// The extent of an array.
    struct cudaExtent: 24, 8 {
        width: usize = 0,
        height: usize = 8,
        depth: usize = 16,
    }

    /// An address of rows with padding.
    struct cudaPitchedPtr: 32, 8 {
        ptr: *mut c_void = 0,
        pitch: usize = 8,
        xsize: usize = 16,
        ysize: usize = 24,
    }

    /// A place of memory.
    struct cudaMemLocation: 8, 4 {
        r#type: cudaMemLocationType = 0,
        id: i32 = 4,
    }

    /// The facts about an address.
    struct cudaPointerAttributes: 88, 8 {
        r#type: cudaMemoryType = 0,
        device: i32 = 4,
        devicePointer: *mut c_void = 8,
        hostPointer: *mut c_void = 16,
        unused: i64 = 24,
        reserved: [i64; 7] = 32,
    }

    /// The geometry, stream and attributes of a launch by `cudaLaunchKernelExC`.
    struct cudaLaunchConfig_t: 56, 8 {
        gridDim: dim3 = 0,
        blockDim: dim3 = 12,
        dynamicSmemBytes: usize = 24,
        stream: cudaStream_t = 32,
        attrs: *mut c_void = 40,
        numAttrs: u32 = 48,
    }

    /// A kernel in a graph.
    struct cudaKernelNodeParams: 56, 8 {
        func: *mut c_void = 0,
        gridDim: dim3 = 8,
        blockDim: dim3 = 20,
        sharedMemBytes: u32 = 32,
        kernelParams: *mut *mut c_void = 40,
        extra: *mut *mut c_void = 48,
    }
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

layouts! {
    /// A node of any kind, for `cudaGraphAddNode`.
    struct cudaGraphNodeParams: 256, 8 {
        r#type: cudaGraphNodeType = 0,
        reserved0: [i32; 3] = 4,
        params: cudaGraphNodeParams_union = 16,
        reserved2: i64 = 248,
    }

    /// The properties of a device.
    struct cudaDeviceProp: 1008, 8 {
        name: [c_char; 256] = 0,
        uuid: CUuuid = 256,
        luid: [c_char; 8] = 272,
        luidDeviceNodeMask: u32 = 280,
        totalGlobalMem: usize = 288,
        sharedMemPerBlock: usize = 296,
        regsPerBlock: i32 = 304,
        warpSize: i32 = 308,
        memPitch: usize = 312,
        maxThreadsPerBlock: i32 = 320,
        maxThreadsDim: [i32; 3] = 324,
        maxGridSize: [i32; 3] = 336,
        totalConstMem: usize = 352,
        major: i32 = 360,
        minor: i32 = 364,
        textureAlignment: usize = 368,
        texturePitchAlignment: usize = 376,
        multiProcessorCount: i32 = 384,
        integrated: i32 = 388,
        canMapHostMemory: i32 = 392,
        maxTexture1D: i32 = 396,
        maxTexture1DMipmap: i32 = 400,
        maxTexture2D: [i32; 2] = 404,
        maxTexture2DMipmap: [i32; 2] = 412,
        maxTexture2DLinear: [i32; 3] = 420,
        maxTexture2DGather: [i32; 2] = 432,
        maxTexture3D: [i32; 3] = 440,
        maxTexture3DAlt: [i32; 3] = 452,
        maxTextureCubemap: i32 = 464,
        maxTexture1DLayered: [i32; 2] = 468,
        maxTexture2DLayered: [i32; 3] = 476,
        maxTextureCubemapLayered: [i32; 2] = 488,
        maxSurface1D: i32 = 496,
        maxSurface2D: [i32; 2] = 500,
        maxSurface3D: [i32; 3] = 508,
        maxSurface1DLayered: [i32; 2] = 520,
        maxSurface2DLayered: [i32; 3] = 528,
        maxSurfaceCubemap: i32 = 540,
        maxSurfaceCubemapLayered: [i32; 2] = 544,
        surfaceAlignment: usize = 552,
        concurrentKernels: i32 = 560,
        ECCEnabled: i32 = 564,
        pciBusID: i32 = 568,
        pciDeviceID: i32 = 572,
        pciDomainID: i32 = 576,
        tccDriver: i32 = 580,
        asyncEngineCount: i32 = 584,
        unifiedAddressing: i32 = 588,
        memoryBusWidth: i32 = 592,
        l2CacheSize: i32 = 596,
        persistingL2CacheMaxSize: i32 = 600,
        maxThreadsPerMultiProcessor: i32 = 604,
        streamPrioritiesSupported: i32 = 608,
        globalL1CacheSupported: i32 = 612,
        localL1CacheSupported: i32 = 616,
        sharedMemPerMultiprocessor: usize = 624,
        regsPerMultiprocessor: i32 = 632,
        managedMemory: i32 = 636,
        isMultiGpuBoard: i32 = 640,
        multiGpuBoardGroupID: i32 = 644,
        hostNativeAtomicSupported: i32 = 648,
        pageableMemoryAccess: i32 = 652,
        concurrentManagedAccess: i32 = 656,
        computePreemptionSupported: i32 = 660,
        canUseHostPointerForRegisteredMem: i32 = 664,
        cooperativeLaunch: i32 = 668,
        sharedMemPerBlockOptin: usize = 672,
        pageableMemoryAccessUsesHostPageTables: i32 = 680,
        directManagedMemAccessFromHost: i32 = 684,
        maxBlocksPerMultiProcessor: i32 = 688,
        accessPolicyMaxWindowSize: i32 = 692,
        reservedSharedMemPerBlock: usize = 696,
        hostRegisterSupported: i32 = 704,
        sparseCudaArraySupported: i32 = 708,
        hostRegisterReadOnlySupported: i32 = 712,
        timelineSemaphoreInteropSupported: i32 = 716,
        memoryPoolsSupported: i32 = 720,
        gpuDirectRDMASupported: i32 = 724,
        gpuDirectRDMAFlushWritesOptions: u32 = 728,
        gpuDirectRDMAWritesOrdering: i32 = 732,
        memoryPoolSupportedHandleTypes: u32 = 736,
        deferredMappingCudaArraySupported: i32 = 740,
        ipcEventSupported: i32 = 744,
        clusterLaunch: i32 = 748,
        unifiedFunctionPointers: i32 = 752,
        deviceNumaConfig: i32 = 756,
        deviceNumaId: i32 = 760,
        mpsEnabled: i32 = 764,
        hostNumaId: i32 = 768,
        gpuPciDeviceID: u32 = 772,
        gpuPciSubsystemID: u32 = 776,
        hostNumaMultinodeIpcSupported: i32 = 780,
        reserved: [i32; 56] = 784,
    }

    /// The attributes of a function.
    struct cudaFuncAttributes: 144, 8 {
        sharedSizeBytes: usize = 0,
        constSizeBytes: usize = 8,
        localSizeBytes: usize = 16,
        maxThreadsPerBlock: i32 = 24,
        numRegs: i32 = 28,
        ptxVersion: i32 = 32,
        binaryVersion: i32 = 36,
        cacheModeCA: i32 = 40,
        maxDynamicSharedSizeBytes: i32 = 44,
        preferredShmemCarveout: i32 = 48,
        clusterDimMustBeSet: i32 = 52,
        requiredClusterWidth: i32 = 56,
        requiredClusterHeight: i32 = 60,
        requiredClusterDepth: i32 = 64,
        clusterSchedulingPolicyPreference: i32 = 68,
        nonPortableClusterSizeAllowed: i32 = 72,
        deviceNodeUpdateStatus: i32 = 76,
        sharedMemoryMode: u32 = 80,
        reserved: [i32; 14] = 84,
    }
}
