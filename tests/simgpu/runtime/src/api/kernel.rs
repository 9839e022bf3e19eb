//! Kernels: launches, attributes and occupancy.

use std::cell::RefCell;
use std::ptr::null_mut;

use deepres_abi::driver::types as cu;
use simgpu_driver::{Error, Result, driver};

use crate::code;
use crate::device;
use crate::edge;
use crate::table::errors;
use crate::table::types::*;

/// The shape, shared memory and stream of a launch.
#[derive(Clone, Copy)]
pub struct Configuration {
    /// Number of blocks by dimension.
    pub grid: dim3,
    /// Threads of a block by dimension.
    pub block: dim3,
    /// Dynamic shared memory of a block.
    pub shared_bytes: usize,
    /// The stream of the launch.
    pub stream: cudaStream_t,
}

thread_local! {
    /// The configurations of launches that the thread has begun. `<<<…>>>` is a call that pushes a
    /// configuration, and a call of the kernel's stub, which pops the configuration.
    static BEGUN: RefCell<Vec<Configuration>> = const { RefCell::new(Vec::new()) };
}

/// Begins a launch.
pub fn push(configuration: Configuration) {
    BEGUN.with_borrow_mut(|begun| begun.push(configuration));
}

/// Returns the configuration of the launch that the thread began last.
pub fn pop() -> Result<Configuration> {
    BEGUN.with_borrow_mut(Vec::pop).ok_or(Error(errors::cudaErrorMissingConfiguration))
}

/// Launches a kernel.
pub fn launch(kernel: cu::CUkernel, shape: &Configuration, arguments: *mut *mut c_void) -> Result<()> {
    let Configuration { grid, block, shared_bytes, stream } = *shape;
    let launch = || -> Result<()> {
        driver!(cuLaunchKernel(
            kernel,
            grid.x,
            grid.y,
            grid.z,
            block.x,
            block.y,
            block.z,
            shared_bytes as u32,
            stream,
            arguments,
            null_mut()
        ));
        Ok(())
    };
    // The driver has no error of its own for an invalid shape, and the runtime has one.
    launch().map_err(|error| match error {
        edge::INVALID_VALUE => Error(errors::cudaErrorInvalidConfiguration),
        other => other,
    })
}

fn configuration(config: *const cudaLaunchConfig_t) -> Result<cu::CUlaunchConfig> {
    let config = read!(config);
    Ok(cu::CUlaunchConfig {
        gridDimX: config.gridDim.x,
        gridDimY: config.gridDim.y,
        gridDimZ: config.gridDim.z,
        blockDimX: config.blockDim.x,
        blockDimY: config.blockDim.y,
        blockDimZ: config.blockDim.z,
        sharedMemBytes: config.dynamicSmemBytes as u32,
        hStream: config.stream,
        // The attributes of the runtime and of the driver are the same.
        attrs: config.attrs.cast(),
        numAttrs: config.numAttrs,
    })
}

calls! {
    cudaLaunchKernel(func, gridDim, blockDim, args, sharedMem, stream) {
        let shape = Configuration { grid: gridDim, block: blockDim, shared_bytes: sharedMem, stream };
        launch(code::kernel(func)?, &shape, args)?;
    }
    cudaLaunchKernelExC(config, func, args) {
        driver!(cuLaunchKernelEx(&configuration(config)?, code::kernel(func)?, args, null_mut()));
    }
    cudaLaunchCooperativeKernel(func, gridDim, blockDim, args, sharedMem, stream) {
        driver!(cuLaunchCooperativeKernel(
            code::kernel(func)?, gridDim.x, gridDim.y, gridDim.z, blockDim.x, blockDim.y, blockDim.z,
            sharedMem as u32, stream, args
        ));
    }
    cudaGetKernel(kernelPtr, entryFuncAddr) { give!(kernelPtr, code::kernel(entryFuncAddr)?) }
    cudaGetFuncBySymbol(functionPtr, symbolPtr) {
        driver!(cuKernelGetFunction(functionPtr, code::kernel(symbolPtr)?));
    }
    cudaFuncGetName(name, func) { driver!(cuKernelGetName(name, code::kernel(func)?)) }
    cudaFuncGetParamInfo(func, paramIndex, paramOffset, paramSize) {
        driver!(cuKernelGetParamInfo(code::kernel(func)?, paramIndex, paramOffset, paramSize));
    }
    cudaFuncSetAttribute(func, attr, value) {
        driver!(cuKernelSetAttribute(attr, value, code::kernel(func)?, device::current()?));
    }
    cudaKernelSetAttributeForDevice(kernel, attr, value, device) {
        driver!(cuKernelSetAttribute(attr, value, kernel, device));
    }
    cudaFuncSetCacheConfig(func, cacheConfig) {
        driver!(cuKernelSetCacheConfig(code::kernel(func)?, cacheConfig, device::current()?));
    }
    cudaFuncGetAttributes(attr, func) { give!(attr, attributes(code::kernel(func)?)?) }
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(numBlocks, func, blockSize, dynamicSMemSize) {
        let kernel = code::kernel(func)?;
        driver!(cuOccupancyMaxActiveBlocksPerMultiprocessor(numBlocks, kernel, blockSize, dynamicSMemSize));
    }
    cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        numBlocks, func, blockSize, dynamicSMemSize, flags
    ) {
        driver!(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            numBlocks, code::kernel(func)?, blockSize, dynamicSMemSize, flags
        ));
    }
    cudaOccupancyAvailableDynamicSMemPerBlock(dynamicSmemSize, func, numBlocks, blockSize) {
        let kernel = code::kernel(func)?;
        driver!(cuOccupancyAvailableDynamicSMemPerBlock(dynamicSmemSize, kernel, numBlocks, blockSize));
    }
}

fn attributes(kernel: cu::CUkernel) -> Result<cudaFuncAttributes> {
    let device = device::current()?;
    let attribute = |attribute: u32| -> Result<i32> {
        let mut value = 0;
        driver!(cuKernelGetAttribute(&mut value, attribute, kernel, device));
        Ok(value)
    };
    // SAFETY: the structure is plain, so all zeroes is a valid value.
    let mut attributes: cudaFuncAttributes = unsafe { std::mem::zeroed() };
    macro_rules! fill {
        ($($field:ident = $attribute:ident,)*) => {
            $(attributes.$field = attribute(cu::$attribute)? as _;)*
        };
    }
    fill! {
        sharedSizeBytes = CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
        constSizeBytes = CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES,
        localSizeBytes = CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
        maxThreadsPerBlock = CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
        numRegs = CU_FUNC_ATTRIBUTE_NUM_REGS,
        ptxVersion = CU_FUNC_ATTRIBUTE_PTX_VERSION,
        binaryVersion = CU_FUNC_ATTRIBUTE_BINARY_VERSION,
        cacheModeCA = CU_FUNC_ATTRIBUTE_CACHE_MODE_CA,
        maxDynamicSharedSizeBytes = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
        preferredShmemCarveout = CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
        clusterDimMustBeSet = CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET,
        requiredClusterWidth = CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
        requiredClusterHeight = CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
        requiredClusterDepth = CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH,
        nonPortableClusterSizeAllowed = CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
    }
    Ok(attributes)
}
