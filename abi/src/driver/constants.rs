//! The handles, enumerations and flags of the driver API that deepres names.
//!
//! `cargo xtask codegen` makes this file from the headers of nvidia-cuda-runtime==13.5.37.
//! Do not edit the file.

use core::ffi::c_void;

pub type CUarray = *mut c_void;
pub type CUasyncCallback = *mut c_void;
pub type CUasyncCallbackHandle = *mut c_void;
pub type CUcheckpointOperationHandle = *mut c_void;
pub type CUcontext = *mut c_void;
pub type CUcoredumpCallbackHandle = *mut c_void;
pub type CUcoredumpStatusCallback = *mut c_void;
pub type CUdevResourceDesc = *mut c_void;
pub type CUdeviceptr_v1 = u32;
pub type CUeglStreamConnection = *mut c_void;
pub type CUevent = *mut c_void;
pub type CUexternalMemory = *mut c_void;
pub type CUexternalSemaphore = *mut c_void;
pub type CUfunction = *mut c_void;
pub type CUgraph = *mut c_void;
pub type CUgraphConditionalHandle = u64;
pub type CUgraphExec = *mut c_void;
pub type CUgraphNode = *mut c_void;
pub type CUgraphRecaptureCallback = *mut c_void;
pub type CUgraphicsResource = *mut c_void;
pub type CUgreenCtx = *mut c_void;
pub type CUkernel = *mut c_void;
pub type CUlibrary = *mut c_void;
pub type CUlinkState = *mut c_void;
pub type CUlogIterator = u32;
pub type CUlogicalEndpointId = u32;
pub type CUlogsCallback = *mut c_void;
pub type CUlogsCallbackHandle = *mut c_void;
pub type CUmemGenericAllocationHandle = u64;
pub type CUmemoryPool = *mut c_void;
pub type CUmipmappedArray = *mut c_void;
pub type CUmodule = *mut c_void;
pub type CUstream = *mut c_void;
pub type CUsurfObject = u64;
pub type CUsurfref = *mut c_void;
pub type CUtexObject = u64;
pub type CUtexref = *mut c_void;
pub type CUuserObject = *mut c_void;

pub type CUipcMem_flags = u32;
pub const CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS: CUipcMem_flags = 1;

pub type CUmemAttach_flags = u32;
pub const CU_MEM_ATTACH_GLOBAL: CUmemAttach_flags = 1;
pub const CU_MEM_ATTACH_HOST: CUmemAttach_flags = 2;

pub type CUctx_flags = u32;
pub const CU_CTX_SCHED_AUTO: CUctx_flags = 0;
pub const CU_CTX_SCHED_SPIN: CUctx_flags = 1;
pub const CU_CTX_SCHED_YIELD: CUctx_flags = 2;
pub const CU_CTX_SCHED_BLOCKING_SYNC: CUctx_flags = 4;
pub const CU_CTX_SCHED_MASK: CUctx_flags = 7;
pub const CU_CTX_FLAGS_MASK: CUctx_flags = 255;

pub type CUstream_flags = u32;
pub const CU_STREAM_DEFAULT: CUstream_flags = 0;
pub const CU_STREAM_NON_BLOCKING: CUstream_flags = 1;

pub type CUevent_flags = u32;
pub const CU_EVENT_DEFAULT: CUevent_flags = 0;
pub const CU_EVENT_BLOCKING_SYNC: CUevent_flags = 1;
pub const CU_EVENT_DISABLE_TIMING: CUevent_flags = 2;
pub const CU_EVENT_INTERPROCESS: CUevent_flags = 4;

pub type CUevent_record_flags = u32;
pub const CU_EVENT_RECORD_DEFAULT: CUevent_record_flags = 0;
pub const CU_EVENT_RECORD_EXTERNAL: CUevent_record_flags = 1;

pub type CUevent_wait_flags = u32;
pub const CU_EVENT_WAIT_EXTERNAL: CUevent_wait_flags = 1;

pub type CUatomicOperation = u32;

pub type CUstreamWaitValue_flags = u32;
pub const CU_STREAM_WAIT_VALUE_GEQ: CUstreamWaitValue_flags = 0;
pub const CU_STREAM_WAIT_VALUE_EQ: CUstreamWaitValue_flags = 1;
pub const CU_STREAM_WAIT_VALUE_AND: CUstreamWaitValue_flags = 2;
pub const CU_STREAM_WAIT_VALUE_FLUSH: CUstreamWaitValue_flags = 0x40000000;

pub type CUstreamWriteValue_flags = u32;
pub const CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER: CUstreamWriteValue_flags = 1;

pub type CUstreamBatchMemOpType = u32;
pub const CU_STREAM_MEM_OP_WAIT_VALUE_32: CUstreamBatchMemOpType = 1;
pub const CU_STREAM_MEM_OP_WRITE_VALUE_32: CUstreamBatchMemOpType = 2;
pub const CU_STREAM_MEM_OP_WAIT_VALUE_64: CUstreamBatchMemOpType = 4;
pub const CU_STREAM_MEM_OP_WRITE_VALUE_64: CUstreamBatchMemOpType = 5;
pub const CU_STREAM_MEM_OP_BARRIER: CUstreamBatchMemOpType = 6;
pub const CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: CUstreamBatchMemOpType = 3;

pub type CUoccupancy_flags = u32;
pub const CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE: CUoccupancy_flags = 1;

pub type CUstreamUpdateCaptureDependencies_flags = u32;
pub const CU_STREAM_SET_CAPTURE_DEPENDENCIES: CUstreamUpdateCaptureDependencies_flags = 1;

pub type CUarray_format = u32;
pub const CU_AD_FORMAT_UNSIGNED_INT8: CUarray_format = 1;
pub const CU_AD_FORMAT_UNSIGNED_INT16: CUarray_format = 2;
pub const CU_AD_FORMAT_UNSIGNED_INT32: CUarray_format = 3;
pub const CU_AD_FORMAT_SIGNED_INT8: CUarray_format = 8;
pub const CU_AD_FORMAT_SIGNED_INT16: CUarray_format = 9;
pub const CU_AD_FORMAT_SIGNED_INT32: CUarray_format = 10;
pub const CU_AD_FORMAT_HALF: CUarray_format = 16;
pub const CU_AD_FORMAT_FLOAT: CUarray_format = 32;
pub const CU_AD_FORMAT_NV12: CUarray_format = 176;
pub const CU_AD_FORMAT_UNORM_INT8X1: CUarray_format = 192;
pub const CU_AD_FORMAT_UNORM_INT8X2: CUarray_format = 193;
pub const CU_AD_FORMAT_UNORM_INT8X4: CUarray_format = 194;
pub const CU_AD_FORMAT_UNORM_INT16X1: CUarray_format = 195;
pub const CU_AD_FORMAT_UNORM_INT16X2: CUarray_format = 196;
pub const CU_AD_FORMAT_UNORM_INT16X4: CUarray_format = 197;
pub const CU_AD_FORMAT_SNORM_INT8X1: CUarray_format = 198;
pub const CU_AD_FORMAT_SNORM_INT8X2: CUarray_format = 199;
pub const CU_AD_FORMAT_SNORM_INT8X4: CUarray_format = 200;
pub const CU_AD_FORMAT_SNORM_INT16X1: CUarray_format = 201;
pub const CU_AD_FORMAT_SNORM_INT16X2: CUarray_format = 202;
pub const CU_AD_FORMAT_SNORM_INT16X4: CUarray_format = 203;
pub const CU_AD_FORMAT_BC1_UNORM: CUarray_format = 145;
pub const CU_AD_FORMAT_BC1_UNORM_SRGB: CUarray_format = 146;
pub const CU_AD_FORMAT_BC2_UNORM: CUarray_format = 147;
pub const CU_AD_FORMAT_BC3_UNORM_SRGB: CUarray_format = 150;
pub const CU_AD_FORMAT_BC4_UNORM: CUarray_format = 151;
pub const CU_AD_FORMAT_BC4_SNORM: CUarray_format = 152;
pub const CU_AD_FORMAT_BC5_UNORM: CUarray_format = 153;
pub const CU_AD_FORMAT_BC7_UNORM_SRGB: CUarray_format = 158;

pub type CUaddress_mode = u32;

pub type CUfilter_mode = u32;

pub type CUdevice_attribute = u32;
pub const CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: CUdevice_attribute = 1;
pub const CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X: CUdevice_attribute = 2;
pub const CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: CUdevice_attribute = 3;
pub const CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: CUdevice_attribute = 4;
pub const CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: CUdevice_attribute = 5;
pub const CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: CUdevice_attribute = 6;
pub const CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: CUdevice_attribute = 7;
pub const CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: CUdevice_attribute = 8;
pub const CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: CUdevice_attribute = 9;
pub const CU_DEVICE_ATTRIBUTE_WARP_SIZE: CUdevice_attribute = 10;
pub const CU_DEVICE_ATTRIBUTE_MAX_PITCH: CUdevice_attribute = 11;
pub const CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: CUdevice_attribute = 12;
pub const CU_DEVICE_ATTRIBUTE_CLOCK_RATE: CUdevice_attribute = 13;
pub const CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT: CUdevice_attribute = 14;
pub const CU_DEVICE_ATTRIBUTE_GPU_OVERLAP: CUdevice_attribute = 15;
pub const CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: CUdevice_attribute = 16;
pub const CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT: CUdevice_attribute = 17;
pub const CU_DEVICE_ATTRIBUTE_INTEGRATED: CUdevice_attribute = 18;
pub const CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY: CUdevice_attribute = 19;
pub const CU_DEVICE_ATTRIBUTE_COMPUTE_MODE: CUdevice_attribute = 20;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH: CUdevice_attribute = 21;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH: CUdevice_attribute = 22;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT: CUdevice_attribute = 23;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH: CUdevice_attribute = 24;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT: CUdevice_attribute = 25;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH: CUdevice_attribute = 26;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH: CUdevice_attribute = 27;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT: CUdevice_attribute = 28;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS: CUdevice_attribute = 29;
pub const CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT: CUdevice_attribute = 30;
pub const CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS: CUdevice_attribute = 31;
pub const CU_DEVICE_ATTRIBUTE_ECC_ENABLED: CUdevice_attribute = 32;
pub const CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: CUdevice_attribute = 33;
pub const CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID: CUdevice_attribute = 34;
pub const CU_DEVICE_ATTRIBUTE_TCC_DRIVER: CUdevice_attribute = 35;
pub const CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: CUdevice_attribute = 36;
pub const CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: CUdevice_attribute = 37;
pub const CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: CUdevice_attribute = 38;
pub const CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: CUdevice_attribute = 39;
pub const CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: CUdevice_attribute = 40;
pub const CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: CUdevice_attribute = 41;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH: CUdevice_attribute = 42;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS: CUdevice_attribute = 43;
pub const CU_DEVICE_ATTRIBUTE_CAN_TEX2D_GATHER: CUdevice_attribute = 44;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH: CUdevice_attribute = 45;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT: CUdevice_attribute = 46;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE: CUdevice_attribute = 47;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE: CUdevice_attribute = 48;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE: CUdevice_attribute = 49;
pub const CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: CUdevice_attribute = 50;
pub const CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT: CUdevice_attribute = 51;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH: CUdevice_attribute = 52;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH: CUdevice_attribute = 53;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS: CUdevice_attribute = 54;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH: CUdevice_attribute = 55;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH: CUdevice_attribute = 56;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT: CUdevice_attribute = 57;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH: CUdevice_attribute = 58;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT: CUdevice_attribute = 59;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH: CUdevice_attribute = 60;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH: CUdevice_attribute = 61;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS: CUdevice_attribute = 62;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH: CUdevice_attribute = 63;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT: CUdevice_attribute = 64;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS: CUdevice_attribute = 65;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH: CUdevice_attribute = 66;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH: CUdevice_attribute = 67;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS: CUdevice_attribute = 68;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH: CUdevice_attribute = 69;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH: CUdevice_attribute = 70;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT: CUdevice_attribute = 71;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH: CUdevice_attribute = 72;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH: CUdevice_attribute = 73;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT: CUdevice_attribute = 74;
pub const CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: CUdevice_attribute = 75;
pub const CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: CUdevice_attribute = 76;
pub const CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH: CUdevice_attribute = 77;
pub const CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED: CUdevice_attribute = 78;
pub const CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED: CUdevice_attribute = 79;
pub const CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED: CUdevice_attribute = 80;
pub const CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: CUdevice_attribute = 81;
pub const CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: CUdevice_attribute = 82;
pub const CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY: CUdevice_attribute = 83;
pub const CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD: CUdevice_attribute = 84;
pub const CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID: CUdevice_attribute = 85;
pub const CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO: CUdevice_attribute = 87;
pub const CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS: CUdevice_attribute = 88;
pub const CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS: CUdevice_attribute = 89;
pub const CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED: CUdevice_attribute = 90;
pub const CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: CUdevice_attribute = 91;
pub const CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH: CUdevice_attribute = 95;
pub const CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: CUdevice_attribute = 97;
pub const CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES: CUdevice_attribute = 98;
pub const CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED: CUdevice_attribute = 99;
pub const CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: CUdevice_attribute = 102;
pub const CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: CUdevice_attribute = 103;
pub const CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: CUdevice_attribute = 106;
pub const CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE: CUdevice_attribute = 108;
pub const CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE: CUdevice_attribute = 109;
pub const CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: CUdevice_attribute = 111;
pub const CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED: CUdevice_attribute = 112;
pub const CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED: CUdevice_attribute = 113;
pub const CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: CUdevice_attribute = 115;
pub const CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED: CUdevice_attribute = 116;
pub const CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES: CUdevice_attribute = 119;
pub const CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: CUdevice_attribute = 120;
pub const CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED: CUdevice_attribute = 121;
pub const CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS: CUdevice_attribute = 122;
pub const CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR: CUdevice_attribute = 123;
pub const CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED: CUdevice_attribute = 125;
pub const CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT: CUdevice_attribute = 126;
pub const CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS: CUdevice_attribute = 129;
pub const CU_DEVICE_ATTRIBUTE_NUMA_CONFIG: CUdevice_attribute = 130;
pub const CU_DEVICE_ATTRIBUTE_NUMA_ID: CUdevice_attribute = 131;
pub const CU_DEVICE_ATTRIBUTE_MPS_ENABLED: CUdevice_attribute = 133;
pub const CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID: CUdevice_attribute = 134;
pub const CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID: CUdevice_attribute = 139;
pub const CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED: CUdevice_attribute = 142;
pub const CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED: CUdevice_attribute = 144;
pub const CU_DEVICE_ATTRIBUTE_MAX: CUdevice_attribute = 162;

pub type CUpointer_attribute = u32;
pub const CU_POINTER_ATTRIBUTE_CONTEXT: CUpointer_attribute = 1;
pub const CU_POINTER_ATTRIBUTE_MEMORY_TYPE: CUpointer_attribute = 2;
pub const CU_POINTER_ATTRIBUTE_DEVICE_POINTER: CUpointer_attribute = 3;
pub const CU_POINTER_ATTRIBUTE_HOST_POINTER: CUpointer_attribute = 4;
pub const CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: CUpointer_attribute = 6;
pub const CU_POINTER_ATTRIBUTE_BUFFER_ID: CUpointer_attribute = 7;
pub const CU_POINTER_ATTRIBUTE_IS_MANAGED: CUpointer_attribute = 8;
pub const CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: CUpointer_attribute = 9;
pub const CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: CUpointer_attribute = 10;
pub const CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: CUpointer_attribute = 11;
pub const CU_POINTER_ATTRIBUTE_RANGE_SIZE: CUpointer_attribute = 12;
pub const CU_POINTER_ATTRIBUTE_MAPPED: CUpointer_attribute = 13;
pub const CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: CUpointer_attribute = 14;
pub const CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: CUpointer_attribute = 15;
pub const CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: CUpointer_attribute = 16;
pub const CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: CUpointer_attribute = 17;
pub const CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: CUpointer_attribute = 20;

pub type CUfunction_attribute = u32;
pub const CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: CUfunction_attribute = 0;
pub const CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: CUfunction_attribute = 1;
pub const CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: CUfunction_attribute = 2;
pub const CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: CUfunction_attribute = 3;
pub const CU_FUNC_ATTRIBUTE_NUM_REGS: CUfunction_attribute = 4;
pub const CU_FUNC_ATTRIBUTE_PTX_VERSION: CUfunction_attribute = 5;
pub const CU_FUNC_ATTRIBUTE_BINARY_VERSION: CUfunction_attribute = 6;
pub const CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: CUfunction_attribute = 7;
pub const CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: CUfunction_attribute = 8;
pub const CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: CUfunction_attribute = 9;
pub const CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET: CUfunction_attribute = 10;
pub const CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH: CUfunction_attribute = 11;
pub const CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT: CUfunction_attribute = 12;
pub const CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH: CUfunction_attribute = 13;
pub const CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: CUfunction_attribute = 14;
pub const CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: CUfunction_attribute = 15;
pub const CU_FUNC_ATTRIBUTE_MAX: CUfunction_attribute = 18;

pub type CUfunc_cache = u32;
pub const CU_FUNC_CACHE_PREFER_NONE: CUfunc_cache = 0;
pub const CU_FUNC_CACHE_PREFER_EQUAL: CUfunc_cache = 3;

pub type CUsharedconfig = u32;
pub const CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE: CUsharedconfig = 1;
pub const CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE: CUsharedconfig = 2;

pub type CUmemorytype = u32;
pub const CU_MEMORYTYPE_HOST: CUmemorytype = 1;
pub const CU_MEMORYTYPE_DEVICE: CUmemorytype = 2;
pub const CU_MEMORYTYPE_ARRAY: CUmemorytype = 3;
pub const CU_MEMORYTYPE_UNIFIED: CUmemorytype = 4;

pub type CUcomputemode = u32;
pub const CU_COMPUTEMODE_DEFAULT: CUcomputemode = 0;
pub const CU_COMPUTEMODE_PROHIBITED: CUcomputemode = 2;
pub const CU_COMPUTEMODE_EXCLUSIVE_PROCESS: CUcomputemode = 3;

pub type CUmem_advise = u32;
pub const CU_MEM_ADVISE_SET_READ_MOSTLY: CUmem_advise = 1;
pub const CU_MEM_ADVISE_UNSET_READ_MOSTLY: CUmem_advise = 2;
pub const CU_MEM_ADVISE_SET_PREFERRED_LOCATION: CUmem_advise = 3;
pub const CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION: CUmem_advise = 4;
pub const CU_MEM_ADVISE_SET_ACCESSED_BY: CUmem_advise = 5;
pub const CU_MEM_ADVISE_UNSET_ACCESSED_BY: CUmem_advise = 6;

pub type CUmem_range_attribute = u32;
pub const CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY: CUmem_range_attribute = 1;
pub const CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION: CUmem_range_attribute = 2;
pub const CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: CUmem_range_attribute = 3;
pub const CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION: CUmem_range_attribute = 4;

pub type CUjit_option = u32;

pub type CUjitInputType = u32;

pub type CUlimit = u32;
pub const CU_LIMIT_MALLOC_HEAP_SIZE: CUlimit = 2;

pub type CUresourcetype = u32;
pub const CU_RESOURCE_TYPE_ARRAY: CUresourcetype = 0;
pub const CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: CUresourcetype = 1;

pub type CUaccessProperty = u32;

pub type CUgraphConditionalNodeType = u32;
pub const CU_GRAPH_COND_TYPE_IF: CUgraphConditionalNodeType = 0;
pub const CU_GRAPH_COND_TYPE_WHILE: CUgraphConditionalNodeType = 1;
pub const CU_GRAPH_COND_TYPE_SWITCH: CUgraphConditionalNodeType = 2;

pub type CUgraphNodeType = u32;
pub const CU_GRAPH_NODE_TYPE_KERNEL: CUgraphNodeType = 0;
pub const CU_GRAPH_NODE_TYPE_MEMCPY: CUgraphNodeType = 1;
pub const CU_GRAPH_NODE_TYPE_MEMSET: CUgraphNodeType = 2;
pub const CU_GRAPH_NODE_TYPE_HOST: CUgraphNodeType = 3;
pub const CU_GRAPH_NODE_TYPE_GRAPH: CUgraphNodeType = 4;
pub const CU_GRAPH_NODE_TYPE_EMPTY: CUgraphNodeType = 5;
pub const CU_GRAPH_NODE_TYPE_WAIT_EVENT: CUgraphNodeType = 6;
pub const CU_GRAPH_NODE_TYPE_EVENT_RECORD: CUgraphNodeType = 7;
pub const CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL: CUgraphNodeType = 8;
pub const CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT: CUgraphNodeType = 9;
pub const CU_GRAPH_NODE_TYPE_MEM_ALLOC: CUgraphNodeType = 10;
pub const CU_GRAPH_NODE_TYPE_MEM_FREE: CUgraphNodeType = 11;
pub const CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: CUgraphNodeType = 12;
pub const CU_GRAPH_NODE_TYPE_CONDITIONAL: CUgraphNodeType = 13;
pub const CU_GRAPH_NODE_TYPE_MEMCPY_BATCH: CUgraphNodeType = 14;
pub const CU_GRAPH_NODE_TYPE_FABRIC_CPY_BATCH: CUgraphNodeType = 18;

pub type CUgraphInstantiateResult = u32;
pub const CUDA_GRAPH_INSTANTIATE_SUCCESS: CUgraphInstantiateResult = 0;
pub const CUDA_GRAPH_INSTANTIATE_ERROR: CUgraphInstantiateResult = 1;
pub const CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE: CUgraphInstantiateResult = 2;

pub type CUlaunchAttributeID = u32;
pub const CU_LAUNCH_ATTRIBUTE_IGNORE: CUlaunchAttributeID = 0;
pub const CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW: CUlaunchAttributeID = 1;
pub const CU_LAUNCH_ATTRIBUTE_COOPERATIVE: CUlaunchAttributeID = 2;
pub const CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: CUlaunchAttributeID = 4;
pub const CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: CUlaunchAttributeID = 5;
pub const CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: CUlaunchAttributeID = 6;
pub const CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT: CUlaunchAttributeID = 7;
pub const CU_LAUNCH_ATTRIBUTE_PRIORITY: CUlaunchAttributeID = 8;
pub const CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: CUlaunchAttributeID = 9;
pub const CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN: CUlaunchAttributeID = 10;
pub const CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION: CUlaunchAttributeID = 11;
pub const CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT: CUlaunchAttributeID = 12;
pub const CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE: CUlaunchAttributeID = 13;
pub const CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: CUlaunchAttributeID = 14;
pub const CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING: CUlaunchAttributeID = 16;
pub const CU_LAUNCH_ATTRIBUTE_PORTABLE_CLUSTER_SIZE_MODE: CUlaunchAttributeID = 17;
pub const CU_LAUNCH_ATTRIBUTE_SHARED_MEMORY_MODE: CUlaunchAttributeID = 18;
pub const CU_LAUNCH_ATTRIBUTE_MAX: CUlaunchAttributeID = 19;

pub type CUstreamCaptureStatus = u32;
pub const CU_STREAM_CAPTURE_STATUS_NONE: CUstreamCaptureStatus = 0;
pub const CU_STREAM_CAPTURE_STATUS_ACTIVE: CUstreamCaptureStatus = 1;
pub const CU_STREAM_CAPTURE_STATUS_INVALIDATED: CUstreamCaptureStatus = 2;

pub type CUstreamCaptureMode = u32;
pub const CU_STREAM_CAPTURE_MODE_GLOBAL: CUstreamCaptureMode = 0;
pub const CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: CUstreamCaptureMode = 1;
pub const CU_STREAM_CAPTURE_MODE_RELAXED: CUstreamCaptureMode = 2;

pub type CUdriverProcAddress_flags = u32;
pub const CU_GET_PROC_ADDRESS_DEFAULT: CUdriverProcAddress_flags = 0;
pub const CU_GET_PROC_ADDRESS_LEGACY_STREAM: CUdriverProcAddress_flags = 1;
pub const CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM: CUdriverProcAddress_flags = 2;

pub type CUdriverProcAddressQueryResult = u32;
pub const CU_GET_PROC_ADDRESS_SUCCESS: CUdriverProcAddressQueryResult = 0;
pub const CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND: CUdriverProcAddressQueryResult = 1;
pub const CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT: CUdriverProcAddressQueryResult = 2;

pub type CUexecAffinityType = u32;
pub const CU_EXEC_AFFINITY_TYPE_MAX: CUexecAffinityType = 1;

pub type CUlibraryOption = u32;

pub type CUdevice_P2PAttribute = u32;
pub const CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK: CUdevice_P2PAttribute = 1;
pub const CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED: CUdevice_P2PAttribute = 2;
pub const CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED: CUdevice_P2PAttribute = 3;
pub const CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED: CUdevice_P2PAttribute = 4;
pub const CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED: CUdevice_P2PAttribute = 5;

pub type CUtensorMapDataType = u32;

pub type CUtensorMapInterleave = u32;

pub type CUtensorMapSwizzle = u32;

pub type CUtensorMapL2promotion = u32;

pub type CUtensorMapFloatOOBfill = u32;

pub type CUtensorMapIm2ColWideMode = u32;

pub type CUtensorMapAllocClass = u32;

pub type CUexternalMemoryHandleType = u32;
pub const CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD: CUexternalMemoryHandleType = 1;
pub const CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32: CUexternalMemoryHandleType = 2;
pub const CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD: CUexternalMemoryHandleType = 9;

pub type CUmemAllocationHandleType = u32;
pub const CU_MEM_HANDLE_TYPE_NONE: CUmemAllocationHandleType = 0;
pub const CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: CUmemAllocationHandleType = 1;

pub type CUmemAccess_flags = u32;
pub const CU_MEM_ACCESS_FLAGS_PROT_NONE: CUmemAccess_flags = 0;
pub const CU_MEM_ACCESS_FLAGS_PROT_READ: CUmemAccess_flags = 1;
pub const CU_MEM_ACCESS_FLAGS_PROT_READWRITE: CUmemAccess_flags = 3;

pub type CUmemLocationType = u32;
pub const CU_MEM_LOCATION_TYPE_NONE: CUmemLocationType = 0;
pub const CU_MEM_LOCATION_TYPE_DEVICE: CUmemLocationType = 1;
pub const CU_MEM_LOCATION_TYPE_HOST: CUmemLocationType = 2;
pub const CU_MEM_LOCATION_TYPE_HOST_NUMA: CUmemLocationType = 3;
pub const CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: CUmemLocationType = 4;
pub const CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN: CUmemLocationType = 6;

pub type CUmemAllocationType = u32;
pub const CU_MEM_ALLOCATION_TYPE_PINNED: CUmemAllocationType = 1;
pub const CU_MEM_ALLOCATION_TYPE_MANAGED: CUmemAllocationType = 2;

pub type CUmemAllocationGranularity_flags = u32;
pub const CU_MEM_ALLOC_GRANULARITY_MINIMUM: CUmemAllocationGranularity_flags = 0;
pub const CU_MEM_ALLOC_GRANULARITY_RECOMMENDED: CUmemAllocationGranularity_flags = 1;

pub type CUmemRangeHandleType = u32;

pub type CUarraySparseSubresourceType = u32;
pub const CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL: CUarraySparseSubresourceType = 0;
pub const CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL: CUarraySparseSubresourceType = 1;

pub type CUmemOperationType = u32;
pub const CU_MEM_OPERATION_TYPE_MAP: CUmemOperationType = 1;
pub const CU_MEM_OPERATION_TYPE_UNMAP: CUmemOperationType = 2;

pub type CUmemHandleType = u32;
pub const CU_MEM_HANDLE_TYPE_GENERIC: CUmemHandleType = 0;

pub type CUmulticastGranularity_flags = u32;

pub type CUgraphExecUpdateResult = u32;
pub const CU_GRAPH_EXEC_UPDATE_SUCCESS: CUgraphExecUpdateResult = 0;
pub const CU_GRAPH_EXEC_UPDATE_ERROR: CUgraphExecUpdateResult = 1;
pub const CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED: CUgraphExecUpdateResult = 2;
pub const CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED: CUgraphExecUpdateResult = 3;
pub const CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED: CUgraphExecUpdateResult = 6;
pub const CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE: CUgraphExecUpdateResult = 7;

pub type CUmemPool_attribute = u32;
pub const CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: CUmemPool_attribute = 1;
pub const CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: CUmemPool_attribute = 2;
pub const CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: CUmemPool_attribute = 3;
pub const CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: CUmemPool_attribute = 4;
pub const CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: CUmemPool_attribute = 5;
pub const CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: CUmemPool_attribute = 6;
pub const CU_MEMPOOL_ATTR_USED_MEM_CURRENT: CUmemPool_attribute = 7;
pub const CU_MEMPOOL_ATTR_USED_MEM_HIGH: CUmemPool_attribute = 8;
pub const CU_MEMPOOL_ATTR_ALLOCATION_TYPE: CUmemPool_attribute = 9;
pub const CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES: CUmemPool_attribute = 10;
pub const CU_MEMPOOL_ATTR_LOCATION_ID: CUmemPool_attribute = 11;
pub const CU_MEMPOOL_ATTR_LOCATION_TYPE: CUmemPool_attribute = 12;
pub const CU_MEMPOOL_ATTR_MAX_POOL_SIZE: CUmemPool_attribute = 13;
pub const CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED: CUmemPool_attribute = 14;

pub type CUmemcpySrcAccessOrder = u32;

pub type CUmemcpy3DOperandType = u32;
pub const CU_MEMCPY_OPERAND_TYPE_POINTER: CUmemcpy3DOperandType = 1;
pub const CU_MEMCPY_OPERAND_TYPE_ARRAY: CUmemcpy3DOperandType = 2;

pub type CUgraphMem_attribute = u32;
pub const CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: CUgraphMem_attribute = 0;
pub const CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: CUgraphMem_attribute = 1;
pub const CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: CUgraphMem_attribute = 2;
pub const CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: CUgraphMem_attribute = 3;

pub type CUgraphChildGraphNodeOwnership = u32;

pub type CUflushGPUDirectRDMAWritesScope = u32;

pub type CUflushGPUDirectRDMAWritesTarget = u32;

pub type CUuserObject_flags = u32;
pub const CU_USER_OBJECT_NO_DESTRUCTOR_SYNC: CUuserObject_flags = 1;

pub type CUuserObjectRetain_flags = u32;
pub const CU_GRAPH_USER_OBJECT_MOVE: CUuserObjectRetain_flags = 1;

pub type CUgraphInstantiate_flags = u32;
pub const CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH: CUgraphInstantiate_flags = 1;
pub const CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD: CUgraphInstantiate_flags = 2;
pub const CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH: CUgraphInstantiate_flags = 4;
pub const CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY: CUgraphInstantiate_flags = 8;

pub type CUprocessState = u32;
pub const CU_PROCESS_STATE_RUNNING: CUprocessState = 0;
pub const CU_PROCESS_STATE_LOCKED: CUprocessState = 1;
pub const CU_PROCESS_STATE_CHECKPOINTED: CUprocessState = 2;

pub type CUmoduleLoadingMode = u32;
pub const CU_MODULE_EAGER_LOADING: CUmoduleLoadingMode = 1;
pub const CU_MODULE_LAZY_LOADING: CUmoduleLoadingMode = 2;

pub type CUlogicalEndpointIpcHandleType = u32;

pub type CUfunctionLoadingState = u32;
pub const CU_FUNCTION_LOADING_STATE_LOADED: CUfunctionLoadingState = 1;

pub type CUcoredumpSettings = u32;

pub type CUgreenCtxCreate_flags = u32;
pub const CU_GREEN_CTX_DEFAULT_STREAM: CUgreenCtxCreate_flags = 1;

pub type CUdevResourceType = u32;
pub const CU_DEV_RESOURCE_TYPE_SM: CUdevResourceType = 1;

pub type CUGLDeviceList = u32;

pub type CUeglFrameType = u32;

pub type CUeglColorFormat = u32;

pub const CUDA_ARRAY3D_CUBEMAP: u32 = 4;
pub const CUDA_ARRAY3D_DEFERRED_MAPPING: u32 = 128;
pub const CUDA_ARRAY3D_LAYERED: u32 = 1;
pub const CUDA_ARRAY3D_SPARSE: u32 = 64;
pub const CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC: u32 = 2;
pub const CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC: u32 = 1;
pub const CUDA_EXTERNAL_MEMORY_DEDICATED: u32 = 1;
pub const CUDA_VERSION: u32 = 13050;
pub const CU_GRAPH_COND_ASSIGN_DEFAULT: u32 = 1;
pub const CU_MEMHOSTALLOC_DEVICEMAP: u32 = 2;
pub const CU_MEMHOSTALLOC_PORTABLE: u32 = 1;
pub const CU_MEMHOSTALLOC_WRITECOMBINED: u32 = 4;
pub const CU_MEMHOSTREGISTER_DEVICEMAP: u32 = 2;
pub const CU_MEMHOSTREGISTER_IOMEMORY: u32 = 4;
pub const CU_MEMHOSTREGISTER_PORTABLE: u32 = 1;
pub const CU_MEMHOSTREGISTER_READ_ONLY: u32 = 8;
