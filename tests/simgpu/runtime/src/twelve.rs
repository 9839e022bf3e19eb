//! Functions that the runtime of CUDA 12 has and the runtime of CUDA 13 lacks. Programs for CUDA 12
//! find them by the facade `libcudart.so.12`, which `deepres_e2e::stand_ins` makes.
#![expect(
    missing_docs,
    non_snake_case,
    reason = "names are NVIDIA's; its runtime API reference documents the fields under the same names"
)]
#![expect(clippy::missing_safety_doc, reason = "the contracts are those of NVIDIA's reference")]

use deepres_abi::driver::types::CUuuid;
use deepres_abi::layouts;

use crate::api::device::properties;
use crate::edge;
use crate::table::types::c_char;

/// Declares the properties of a device, and how they come from the properties of CUDA 13. CUDA 13
/// lacks the fields marked `only_here`, which stay 0.
macro_rules! device_properties {
    ($($field:ident: $type:ty = $offset:literal $($only_here:ident)?,)*) => {
        layouts! {
            /// The properties of a device.
            struct cudaDeviceProp_v2: 1032, 8 {
                $($field: $type = $offset,)*
            }
        }

        impl cudaDeviceProp_v2 {
            fn of(device: i32) -> simgpu_driver::Result<Self> {
                let known = properties(device)?;
                // SAFETY: the structure is plain, so all zeroes is a valid value.
                let mut own: Self = unsafe { std::mem::zeroed() };
                $(device_properties!(@take own, known, $field $($only_here)?);)*
                Ok(own)
            }
        }
    };
    (@take $own:ident, $known:ident, $field:ident only_here) => {};
    (@take $own:ident, $known:ident, $field:ident) => { $own.$field = $known.$field };
}

device_properties! {
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
    clockRate: i32 = 348 only_here,
    totalConstMem: usize = 352,
    major: i32 = 360,
    minor: i32 = 364,
    textureAlignment: usize = 368,
    texturePitchAlignment: usize = 376,
    deviceOverlap: i32 = 384 only_here,
    multiProcessorCount: i32 = 388,
    kernelExecTimeoutEnabled: i32 = 392 only_here,
    integrated: i32 = 396,
    canMapHostMemory: i32 = 400,
    computeMode: i32 = 404 only_here,
    maxTexture1D: i32 = 408,
    maxTexture1DMipmap: i32 = 412,
    maxTexture1DLinear: i32 = 416 only_here,
    maxTexture2D: [i32; 2] = 420,
    maxTexture2DMipmap: [i32; 2] = 428,
    maxTexture2DLinear: [i32; 3] = 436,
    maxTexture2DGather: [i32; 2] = 448,
    maxTexture3D: [i32; 3] = 456,
    maxTexture3DAlt: [i32; 3] = 468,
    maxTextureCubemap: i32 = 480,
    maxTexture1DLayered: [i32; 2] = 484,
    maxTexture2DLayered: [i32; 3] = 492,
    maxTextureCubemapLayered: [i32; 2] = 504,
    maxSurface1D: i32 = 512,
    maxSurface2D: [i32; 2] = 516,
    maxSurface3D: [i32; 3] = 524,
    maxSurface1DLayered: [i32; 2] = 536,
    maxSurface2DLayered: [i32; 3] = 544,
    maxSurfaceCubemap: i32 = 556,
    maxSurfaceCubemapLayered: [i32; 2] = 560,
    surfaceAlignment: usize = 568,
    concurrentKernels: i32 = 576,
    ECCEnabled: i32 = 580,
    pciBusID: i32 = 584,
    pciDeviceID: i32 = 588,
    pciDomainID: i32 = 592,
    tccDriver: i32 = 596,
    asyncEngineCount: i32 = 600,
    unifiedAddressing: i32 = 604,
    memoryClockRate: i32 = 608 only_here,
    memoryBusWidth: i32 = 612,
    l2CacheSize: i32 = 616,
    persistingL2CacheMaxSize: i32 = 620,
    maxThreadsPerMultiProcessor: i32 = 624,
    streamPrioritiesSupported: i32 = 628,
    globalL1CacheSupported: i32 = 632,
    localL1CacheSupported: i32 = 636,
    sharedMemPerMultiprocessor: usize = 640,
    regsPerMultiprocessor: i32 = 648,
    managedMemory: i32 = 652,
    isMultiGpuBoard: i32 = 656,
    multiGpuBoardGroupID: i32 = 660,
    hostNativeAtomicSupported: i32 = 664,
    singleToDoublePrecisionPerfRatio: i32 = 668 only_here,
    pageableMemoryAccess: i32 = 672,
    concurrentManagedAccess: i32 = 676,
    computePreemptionSupported: i32 = 680,
    canUseHostPointerForRegisteredMem: i32 = 684,
    cooperativeLaunch: i32 = 688,
    cooperativeMultiDeviceLaunch: i32 = 692 only_here,
    sharedMemPerBlockOptin: usize = 696,
    pageableMemoryAccessUsesHostPageTables: i32 = 704,
    directManagedMemAccessFromHost: i32 = 708,
    maxBlocksPerMultiProcessor: i32 = 712,
    accessPolicyMaxWindowSize: i32 = 716,
    reservedSharedMemPerBlock: usize = 720,
    hostRegisterSupported: i32 = 728,
    sparseCudaArraySupported: i32 = 732,
    hostRegisterReadOnlySupported: i32 = 736,
    timelineSemaphoreInteropSupported: i32 = 740,
    memoryPoolsSupported: i32 = 744,
    gpuDirectRDMASupported: i32 = 748,
    gpuDirectRDMAFlushWritesOptions: u32 = 752,
    gpuDirectRDMAWritesOrdering: i32 = 756,
    memoryPoolSupportedHandleTypes: u32 = 760,
    deferredMappingCudaArraySupported: i32 = 764,
    ipcEventSupported: i32 = 768,
    clusterLaunch: i32 = 772,
    unifiedFunctionPointers: i32 = 776,
    reserved: [i32; 63] = 780 only_here,
}

/// Gives the properties of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGetDeviceProperties_v2(to: *mut cudaDeviceProp_v2, device: i32) -> u32 {
    edge::answer_plainly(|| {
        edge::refuse(to.is_null())?;
        crate::device::check(device)?;
        let properties = cudaDeviceProp_v2::of(device)?;
        // SAFETY: by the contract of the API, `to` points at room for the properties.
        unsafe { to.write(properties) };
        Ok(())
    })
}
