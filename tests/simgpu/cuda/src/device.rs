//! Attributes of the devices. If the configuration has no key for an attribute, the value is that
//! of an H200.
use deepres_abi::driver::types as cu;

use crate::mps;
use crate::operation::{MAX_BLOCK, MAX_BLOCK_THREADS, MAX_GRID};
use crate::process::{config, device_count, gpu_of};
use crate::status::{self, Result};
use simgpu_engine::{ComputeMode, Config};

/// Rank of a link when all links are alike.
const PERFORMANCE_RANK_SAME: i32 = 0;
const YES: i32 = 1;
const NO: i32 = 0;

/// Returns a `CUdevice_attribute`. Values without a key in the configuration are those of compute
/// capability 9.0 (CUDA programming guide).
pub fn attribute(attribute: u32, device: i32) -> Result<i32> {
    let gpu = gpu_of(device)?;
    let config = config();
    let threads_dim = |axis: usize| MAX_BLOCK[axis] as i32;
    let grid_dim = |axis: usize| MAX_GRID[axis] as i32;
    Ok(match attribute {
        cu::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK => MAX_BLOCK_THREADS as i32,
        cu::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X => threads_dim(0),
        cu::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y => threads_dim(1),
        cu::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z => threads_dim(2),
        cu::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X => grid_dim(0),
        cu::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y => grid_dim(1),
        cu::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z => grid_dim(2),
        cu::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK => config.shared_memory_per_block_bytes as i32,
        cu::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY => 65536,
        cu::CU_DEVICE_ATTRIBUTE_WARP_SIZE => 32,
        cu::CU_DEVICE_ATTRIBUTE_MAX_PITCH => i32::MAX,
        cu::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK => config.registers_per_sm as i32,
        cu::CU_DEVICE_ATTRIBUTE_CLOCK_RATE => config.clock_khz as i32,
        cu::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT => 512,
        cu::CU_DEVICE_ATTRIBUTE_GPU_OVERLAP => YES,
        cu::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => mps::sms(config.sm_count) as i32,
        cu::CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT | cu::CU_DEVICE_ATTRIBUTE_INTEGRATED => NO,
        cu::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY => YES,
        cu::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE => compute_mode(config.compute_mode) as i32,
        cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH => 131_072,
        cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT => 65536,
        cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH => 16384,
        cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE => 8192,
        cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE => 32768,
        cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH => 32768,
        cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS => 2048,
        cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS
        | cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS => 2046,
        cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH => 268_435_456,
        cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH => 131_072,
        cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT => 65000,
        cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH => 2_097_120,
        cu::CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT => 512,
        cu::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS | cu::CU_DEVICE_ATTRIBUTE_ECC_ENABLED => YES,
        cu::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => Config::pci_address(gpu).bus as i32,
        cu::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID => Config::pci_address(gpu).device as i32,
        cu::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID => Config::pci_address(gpu).domain as i32,
        cu::CU_DEVICE_ATTRIBUTE_TCC_DRIVER => NO,
        cu::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE => config.memory_clock_khz as i32,
        cu::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH => config.memory_bus_bits as i32,
        cu::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE => config.l2_bytes as i32,
        cu::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR => config.threads_per_sm as i32,
        cu::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT => 3,
        cu::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING | cu::CU_DEVICE_ATTRIBUTE_CAN_TEX2D_GATHER => YES,
        cu::CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT => 32,
        cu::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => config.compute_capability[0],
        cu::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => config.compute_capability[1],
        cu::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED
        | cu::CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED
        | cu::CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED => YES,
        cu::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => {
            config.shared_memory_per_sm_bytes as i32
        }
        cu::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR => config.registers_per_sm as i32,
        cu::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY => YES,
        cu::CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD => NO,
        cu::CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID => gpu as i32,
        cu::CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO => 2,
        cu::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS => config.managed_memory_migrates.into(),
        cu::CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED
        | cu::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        | cu::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
        | cu::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR
        | cu::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH
        | cu::CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES
        | cu::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED
        | cu::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        | cu::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        | cu::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
        | cu::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
        | cu::CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED
        | cu::CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED
        | cu::CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED
        | cu::CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED
        | cu::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH
        | cu::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED
        | cu::CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS => YES,
        cu::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => {
            config.shared_memory_per_block_optin_bytes as i32
        }
        cu::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR => config.blocks_per_sm as i32,
        cu::CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE => (config.l2_bytes / 8 * 5) as i32,
        cu::CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE => 128 << 20,
        cu::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK => 1024,
        cu::CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT => 4,
        cu::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES => {
            cu::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR as i32
        }
        cu::CU_DEVICE_ATTRIBUTE_MPS_ENABLED => mps::tells_client().into(),
        cu::CU_DEVICE_ATTRIBUTE_NUMA_CONFIG => 0,
        cu::CU_DEVICE_ATTRIBUTE_NUMA_ID => -1,
        cu::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID => 0,
        cu::CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID => 0x2335_10de,
        // The driver reports features that are not modelled as absent.
        known if (1..cu::CU_DEVICE_ATTRIBUTE_MAX).contains(&known) => NO,
        _ => return Err(status::INVALID_VALUE),
    })
}

fn compute_mode(mode: ComputeMode) -> cu::CUcomputemode {
    match mode {
        ComputeMode::Default => cu::CU_COMPUTEMODE_DEFAULT,
        ComputeMode::ExclusiveProcess => cu::CU_COMPUTEMODE_EXCLUSIVE_PROCESS,
        ComputeMode::Prohibited => cu::CU_COMPUTEMODE_PROHIBITED,
    }
}

/// Returns the `CUdevprop` of a device, the oldest form of its attributes.
pub fn properties(device: i32) -> Result<cu::CUdevprop> {
    let of = |which| attribute(which, device);
    Ok(cu::CUdevprop {
        maxThreadsPerBlock: of(cu::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        maxThreadsDim: MAX_BLOCK.map(|most| most as i32),
        maxGridSize: MAX_GRID.map(|most| most as i32),
        sharedMemPerBlock: of(cu::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)?,
        totalConstantMemory: of(cu::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY)?,
        SIMDWidth: of(cu::CU_DEVICE_ATTRIBUTE_WARP_SIZE)?,
        memPitch: of(cu::CU_DEVICE_ATTRIBUTE_MAX_PITCH)?,
        regsPerBlock: of(cu::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK)?,
        clockRate: of(cu::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        textureAlign: of(cu::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT)?,
    })
}

/// Returns `domain:bus:device.function`.
pub fn pci_bus_id(device: i32) -> Result<String> {
    let address = Config::pci_address(gpu_of(device)?);
    Ok(format!("{:04X}:{:02X}:{:02X}.0", address.domain, address.bus, address.device))
}

/// Returns the device at a PCI address, with or without domain and function.
pub fn at_pci_bus_id(text: &str) -> Result<i32> {
    let full = text.to_ascii_uppercase();
    let is_meant = |device: &i32| {
        pci_bus_id(*device).is_ok_and(|id| {
            let short = &id["0000:".len()..];
            id == full
                || short == full
                || id.trim_end_matches(".0") == full
                || short.trim_end_matches(".0") == full
        })
    };
    (0..device_count() as i32).find(is_meant).ok_or(status::INVALID_DEVICE)
}

/// Returns whether one device can use the memory of another device. The result is always true for
/// two virtual devices.
pub fn can_access_peer(device: i32, peer: i32) -> Result<bool> {
    Ok(gpu_of(device)? != gpu_of(peer)?)
}

/// Returns a `CUdevice_P2PAttribute`.
pub fn p2p_attribute(attribute: u32, source: i32, target: i32) -> Result<i32> {
    status::refuse_as(gpu_of(source)? == gpu_of(target)?, status::INVALID_DEVICE)?;
    Ok(match attribute {
        cu::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK => PERFORMANCE_RANK_SAME,
        cu::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED
        | cu::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
        | cu::CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED => YES,
        cu::CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED => NO,
        _ => return Err(status::INVALID_VALUE),
    })
}
