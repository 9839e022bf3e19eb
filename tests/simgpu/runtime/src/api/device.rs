//! The functions of the runtime for devices and their properties.

use deepres_abi::driver::types as cu;
use simgpu_driver::{Result, driver};

use crate::device;
use crate::edge;
use crate::table::types::*;

/// The flags of a device that the driver has as flags of a context.
const CONTEXT_FLAGS: u32 = 0x1f;

calls! {
    cudaGetDeviceCount(count) {
        give!(count, 0);
        give!(count, device::count()?);
    }
    cudaGetDevice(device) { give!(device, device::current()?) }
    cudaSetDevice(device) { device::set(device)? }
    cudaInitDevice(device, _deviceFlags, _flags) {
        device::primary(device)?;
    }
    cudaSetDeviceFlags(flags) {
        driver!(cuDevicePrimaryCtxSetFlags_v2(device::current()?, flags & CONTEXT_FLAGS));
    }
    cudaDeviceReset() { device::reset()? }
    // The banks of shared memory have one size.
    cudaDeviceSetSharedMemConfig(_config) {}
    cudaDeviceEnablePeerAccess(peerDevice, flags) {
        driver!(cuCtxEnablePeerAccess(device::primary(peerDevice)?, flags));
    }
    cudaDeviceDisablePeerAccess(peerDevice) {
        driver!(cuCtxDisablePeerAccess(device::primary(peerDevice)?));
    }
    cudaGetDeviceProperties(prop, device) {
        edge::refuse(prop.is_null())?;
        device::check(device)?;
        give!(prop, properties(device)?);
    }
}

fn attribute(device: i32, attribute: u32) -> Result<i32> {
    let mut value = 0;
    driver!(cuDeviceGetAttribute(&mut value, attribute, device));
    Ok(value)
}

/// Returns the properties of a device. Properties that the driver does not know are 0.
pub fn properties(device: i32) -> Result<cudaDeviceProp> {
    // SAFETY: the structure is plain, so all zeroes is a valid value.
    let mut properties: cudaDeviceProp = unsafe { std::mem::zeroed() };
    driver!(cuDeviceGetName(properties.name.as_mut_ptr(), properties.name.len() as i32, device));
    driver!(cuDeviceGetUuid_v2(&mut properties.uuid, device));
    driver!(cuDeviceTotalMem_v2(&mut properties.totalGlobalMem, device));
    macro_rules! fill {
        ($($field:ident $([$index:literal])? = $attribute:ident,)*) => {
            $(properties.$field $([$index])? = attribute(device, cu::$attribute).unwrap_or(0) as _;)*
        };
    }
    fill! {
        sharedMemPerBlock = CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK,
        regsPerBlock = CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK,
        warpSize = CU_DEVICE_ATTRIBUTE_WARP_SIZE,
        memPitch = CU_DEVICE_ATTRIBUTE_MAX_PITCH,
        maxThreadsPerBlock = CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
        maxThreadsDim[0] = CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X,
        maxThreadsDim[1] = CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
        maxThreadsDim[2] = CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z,
        maxGridSize[0] = CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
        maxGridSize[1] = CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
        maxGridSize[2] = CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z,
        totalConstMem = CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY,
        major = CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        minor = CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        textureAlignment = CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT,
        texturePitchAlignment = CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT,
        multiProcessorCount = CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        integrated = CU_DEVICE_ATTRIBUTE_INTEGRATED,
        canMapHostMemory = CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY,
        concurrentKernels = CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS,
        ECCEnabled = CU_DEVICE_ATTRIBUTE_ECC_ENABLED,
        pciBusID = CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
        pciDeviceID = CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID,
        pciDomainID = CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
        asyncEngineCount = CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT,
        unifiedAddressing = CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING,
        memoryBusWidth = CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH,
        l2CacheSize = CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE,
        persistingL2CacheMaxSize = CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE,
        maxThreadsPerMultiProcessor = CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
        streamPrioritiesSupported = CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED,
        globalL1CacheSupported = CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED,
        localL1CacheSupported = CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED,
        sharedMemPerMultiprocessor = CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
        regsPerMultiprocessor = CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR,
        managedMemory = CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
        isMultiGpuBoard = CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD,
        pageableMemoryAccess = CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
        concurrentManagedAccess = CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
        computePreemptionSupported = CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED,
        canUseHostPointerForRegisteredMem = CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
        cooperativeLaunch = CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH,
        sharedMemPerBlockOptin = CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        maxBlocksPerMultiProcessor = CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR,
        accessPolicyMaxWindowSize = CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE,
        reservedSharedMemPerBlock = CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK,
        hostRegisterSupported = CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED,
        memoryPoolsSupported = CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
        gpuDirectRDMASupported = CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
        memoryPoolSupportedHandleTypes = CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES,
        ipcEventSupported = CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED,
        clusterLaunch = CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH,
        unifiedFunctionPointers = CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS,
    }
    Ok(properties)
}
