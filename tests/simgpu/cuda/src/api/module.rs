//! The driver functions for modules, libraries, functions, kernels and occupancy.
use super::Api;
use super::prelude::*;
use crate::context;
use crate::image::{self, Image, Parameter};
use crate::module::{self, FUNCTIONS, Function, KERNELS, Kernel, LIBRARIES, Library, MODULES, Module};
use crate::process::{config, gpu_of};

/// Threads of a warp.
const WARP_THREADS: u64 = 32;
/// Granularity of dynamic shared memory.
const SHARED_UNIT_BYTES: usize = 128;

/// Compute capability of the GPUs: ten times major plus minor.
pub(super) fn architecture() -> u32 {
    let [major, minor] = config().compute_capability;
    (major * 10 + minor) as u32
}

fn read_image(data: *const c_void) -> Result<Image> {
    // SAFETY: by the API's contract the pointer is at a whole image or a NUL-terminated text.
    unsafe { image::load(data.cast(), architecture()) }
}

fn read_file(name: *const c_char) -> Result<Image> {
    let bytes = std::fs::read(text!(name)).map_err(|_| status::FILE_NOT_FOUND)?;
    image::load_bytes(&bytes, architecture())
}

fn load(module: *mut CUmodule, image: impl FnOnce() -> Result<Image>) -> Result<()> {
    status::refuse(module.is_null())?;
    context::current()?;
    give!(module, module::load(&image()?)? as CUmodule);
    Ok(())
}

calls! {
    cuModuleLoad(module, fname) { load(module, || read_file(fname))? }
    cuModuleLoadData(module, image) { load(module, || read_image(image))? }
    cuModuleLoadDataEx(module, image, _numOptions, _options, _optionValues) {
        load(module, || read_image(image))?;
    }
    cuModuleLoadFatBinary(module, fatCubin) { load(module, || read_image(fatCubin))? }
    cuModuleUnload(hmod) { module::unload(hmod as usize)? }
}

fn module_of(handle: CUmodule) -> Result<Arc<Module>> {
    MODULES.get(handle as usize).ok_or(status::INVALID_HANDLE)
}

fn library_of(handle: CUlibrary) -> Result<Arc<Library>> {
    LIBRARIES.get(handle as usize).ok_or(status::INVALID_HANDLE)
}

fn kernel_of(handle: CUkernel) -> Result<Arc<Kernel>> {
    KERNELS.get(handle as usize).ok_or(status::INVALID_HANDLE)
}

fn function_of(handle: CUfunction) -> Result<Arc<Function>> {
    module::function(handle as usize)
}

calls! {
    cuModuleGetLoadingMode(mode) {
        give!(mode, if module::is_eager() { CU_MODULE_EAGER_LOADING } else { CU_MODULE_LAZY_LOADING });
    }
    cuModuleGetFunction(hfunc, hmod, name) {
        let name = text!(name);
        give!(hfunc, module_of(hmod)?.function(name)?.handle as CUfunction);
    }
    cuModuleGetFunctionCount(count, r#mod) { give!(count, module_of(r#mod)?.functions.len() as u32) }
}

/// Writes handles into the caller's array.
fn give_all<T: Copy>(to: *mut T, room: u32, all: impl Iterator<Item = T>) -> Result<()> {
    status::refuse(to.is_null())?;
    for (at, one) in all.take(room as usize).enumerate() {
        // SAFETY: by the API's contract the array has room for as many.
        unsafe { to.add(at).write(one) };
    }
    Ok(())
}

calls! {
    cuModuleEnumerateFunctions(functions, numFunctions, r#mod) {
        let module = module_of(r#mod)?;
        give_all(functions, numFunctions, module.functions.iter().map(|one| one.handle as CUfunction))?;
    }
    cuModuleGetGlobal_v2(dptr, bytes, hmod, name) {
        let (address, length) = module_of(hmod)?.global(text!(name))?;
        give_if_wanted!(dptr, address);
        give_if_wanted!(bytes, length as usize);
    }
}

fn load_library(library: *mut CUlibrary, image: Image) -> Result<()> {
    status::refuse(library.is_null())?;
    give!(library, module::load_library(image)? as CUlibrary);
    Ok(())
}

calls! {
    cuLibraryLoadData(
        library, code, _jitOptions, _jitOptionsValues, _numJitOptions, _libraryOptions, _libraryOptionValues,
        _numLibraryOptions
    ) {
        load_library(library, read_image(code)?)?;
    }
    cuLibraryLoadFromFile(
        library, fileName, _jitOptions, _jitOptionsValues, _numJitOptions, _libraryOptions,
        _libraryOptionValues, _numLibraryOptions
    ) {
        load_library(library, read_file(fileName)?)?;
    }
    cuLibraryUnload(library) { module::unload_library(library as usize)? }
    cuLibraryGetKernel(pKernel, library, name) {
        let library = library_of(library)?;
        let name = text!(name);
        let kernel = library.kernels.iter().find(|one| one.name.as_bytes() == name.as_bytes());
        give!(pKernel, kernel.ok_or(status::NOT_FOUND)?.handle as CUkernel);
    }
    cuLibraryGetKernelCount(count, lib) { give!(count, library_of(lib)?.kernels.len() as u32) }
    cuLibraryEnumerateKernels(kernels, numKernels, lib) {
        let library = library_of(lib)?;
        give_all(kernels, numKernels, library.kernels.iter().map(|one| one.handle as CUkernel))?;
    }
    cuLibraryGetModule(pMod, library) {
        give!(pMod, library_of(library)?.module(&context::current()?)?.handle as CUmodule);
    }
}

fn library_global(
    dptr: *mut CUdeviceptr,
    bytes: *mut usize,
    library: CUlibrary,
    name: *const c_char,
    managed: bool,
) -> Result<()> {
    let library = library_of(library)?;
    let name = text!(name);
    if library.is_managed(name).is_none_or(|is_managed| managed && !is_managed) {
        return Err(status::NOT_FOUND);
    }
    let (address, length) = library.module(&context::current()?)?.global(name)?;
    give_if_wanted!(dptr, address);
    give_if_wanted!(bytes, length as usize);
    Ok(())
}

calls! {
    cuLibraryGetGlobal(dptr, bytes, library, name) { library_global(dptr, bytes, library, name, false)? }
    cuLibraryGetManaged(dptr, bytes, library, name) { library_global(dptr, bytes, library, name, true)? }
    cuKernelGetFunction(pFunc, kernel) {
        give!(pFunc, kernel_of(kernel)?.function(&context::current()?)?.handle as CUfunction);
    }
    cuKernelGetLibrary(pLib, kernel) { give!(pLib, kernel_of(kernel)?.library as CUlibrary) }
    cuKernelGetName(name, hfunc) { give!(name, kernel_of(hfunc)?.name.as_ptr()) }
    cuKernelGetAttribute(pi, attrib, kernel, dev) {
        gpu_of(dev)?;
        give!(pi, kernel_of(kernel)?.attribute(attrib)?);
    }
    cuKernelSetAttribute(attrib, val, kernel, dev) {
        gpu_of(dev)?;
        kernel_of(kernel)?.set_attribute(attrib, val)?;
    }
}

fn parameter(parameters: &[Parameter], index: usize, offset: *mut usize, size: *mut usize) -> Result<()> {
    let found = parameters.get(index).ok_or(status::INVALID_VALUE)?;
    give!(offset, found.offset_bytes);
    give_if_wanted!(size, found.size_bytes);
    Ok(())
}

calls! {
    cuKernelSetCacheConfig(kernel, config, dev) {
        gpu_of(dev)?;
        kernel_of(kernel)?;
        status::refuse(config > CU_FUNC_CACHE_PREFER_EQUAL)?;
    }
    cuKernelGetParamCount(kernel, paramCount) { give!(paramCount, kernel_of(kernel)?.parameters.len()) }
    cuKernelGetParamInfo(kernel, paramIndex, paramOffset, paramSize) {
        parameter(&kernel_of(kernel)?.parameters, paramIndex, paramOffset, paramSize)?;
    }
    cuFuncGetParamCount(func, paramCount) { give!(paramCount, function_of(func)?.parameters.len()) }
    cuFuncGetParamInfo(func, paramIndex, paramOffset, paramSize) {
        parameter(&function_of(func)?.parameters, paramIndex, paramOffset, paramSize)?;
    }
    cuFuncGetAttribute(pi, attrib, hfunc) { give!(pi, function_of(hfunc)?.attribute(attrib)?) }
    cuFuncSetAttribute(hfunc, attrib, value) { function_of(hfunc)?.set_attribute(attrib, value)? }
}

calls! {
    cuFuncSetCacheConfig(hfunc, config) {
        function_of(hfunc)?;
        status::refuse(config > CU_FUNC_CACHE_PREFER_EQUAL)?;
    }
    cuFuncSetSharedMemConfig(hfunc, config) {
        function_of(hfunc)?;
        status::refuse(config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE)?;
    }
    cuFuncGetModule(hmod, hfunc) { give!(hmod, function_of(hfunc)?.module as CUmodule) }
    cuFuncGetName(name, hfunc) {
        // The returned name lives as long as the client's handle: a kernel's own name for a kernel,
        // else the function's name.
        match KERNELS.get(hfunc as usize) {
            Some(kernel) => give!(name, kernel.name.as_ptr()),
            None => give!(name, FUNCTIONS.get(hfunc as usize).ok_or(status::INVALID_HANDLE)?.name.as_ptr()),
        }
    }
    cuFuncIsLoaded(state, function) {
        function_of(function)?;
        give!(state, CU_FUNCTION_LOADING_STATE_LOADED);
    }
    cuFuncLoad(function) { function_of(function).map(|_| ())? }
}

/// Returns how many blocks run at once on a multiprocessor. Threads, registers, shared memory and
/// the limit on blocks bound the number.
fn resident_blocks(function: &Function, block_threads: u64, dynamic_bytes: u64) -> Result<u64> {
    let config = config();
    let most = function.attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)? as u64;
    if block_threads > most {
        return Ok(0);
    }
    let threads = block_threads.next_multiple_of(WARP_THREADS);
    let registers = function.attribute(CU_FUNC_ATTRIBUTE_NUM_REGS)? as u64 * threads;
    let shared = function.attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)? as u64 + dynamic_bytes;
    let by_threads = u64::from(config.threads_per_sm) / threads;
    let by_registers = u64::from(config.registers_per_sm).checked_div(registers).unwrap_or(u64::MAX);
    let by_shared = u64::from(config.shared_memory_per_sm_bytes).checked_div(shared).unwrap_or(u64::MAX);
    Ok(by_threads.min(by_registers).min(by_shared).min(config.blocks_per_sm.into()))
}

fn max_active_blocks(to: *mut i32, func: CUfunction, block_size: i32, dynamic_bytes: usize) -> Result<()> {
    let threads =
        u64::try_from(block_size).ok().filter(|threads| *threads != 0).ok_or(status::INVALID_VALUE)?;
    give!(to, resident_blocks(&*function_of(func)?, threads, dynamic_bytes as u64)? as i32);
    Ok(())
}

calls! {
    cuOccupancyMaxActiveBlocksPerMultiprocessor(numBlocks, func, blockSize, dynamicSMemSize) {
        max_active_blocks(numBlocks, func, blockSize, dynamicSMemSize)?;
    }
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize, dynamicSMemSize, flags) {
        status::refuse(flags & !CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE != 0)?;
        max_active_blocks(numBlocks, func, blockSize, dynamicSMemSize)?;
    }
}

calls! {
    cuOccupancyMaxPotentialBlockSize(
        minGridSize, blockSize, func, blockSizeToDynamicSMemSize, dynamicSMemSize, blockSizeLimit
    ) {
        Api::cuOccupancyMaxPotentialBlockSizeWithFlags(
            minGridSize, blockSize, func, blockSizeToDynamicSMemSize, dynamicSMemSize, blockSizeLimit, 0,
        )?;
    }
    // The call finds the block size, in whole warps, with the most resident threads. If several
    // sizes have equally many, the call returns the largest size.
    cuOccupancyMaxPotentialBlockSizeWithFlags(
        minGridSize, blockSize, func, blockSizeToDynamicSMemSize, dynamicSMemSize, blockSizeLimit, flags
    ) {
        status::refuse(flags & !CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE != 0)?;
        let function = function_of(func)?;
        let own = function.attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
        let most = if blockSizeLimit > 0 { blockSizeLimit.min(own) } else { own } as u64;
        let (mut best, mut best_blocks, mut best_threads) = (0, 0, 0);
        let mut threads = most;
        while threads != 0 {
            let bytes = match blockSizeToDynamicSMemSize {
                // SAFETY: the caller passed this function as the one to ask for the shared memory
                // of such a block.
                Some(bytes_of) => unsafe { bytes_of(threads as i32) },
                None => dynamicSMemSize,
            };
            let blocks = resident_blocks(&function, threads, bytes as u64)?;
            if blocks * threads > best_threads {
                (best, best_blocks, best_threads) = (threads, blocks, blocks * threads);
            }
            threads = (threads - 1) / WARP_THREADS * WARP_THREADS;
        }
        give!(minGridSize, (best_blocks * u64::from(config().sm_count)) as i32);
        give!(blockSize, best as i32);
    }
    cuOccupancyAvailableDynamicSMemPerBlock(dynamicSmemSize, func, numBlocks, blockSize) {
        let function = function_of(func)?;
        status::refuse(numBlocks <= 0 || blockSize <= 0)?;
        let fixed = function.attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)? as usize;
        let share = config().shared_memory_per_sm_bytes as usize / numBlocks as usize;
        let most = config().shared_memory_per_block_optin_bytes as usize;
        let left = share.min(most).saturating_sub(fixed);
        give!(dynamicSmemSize, left / SHARED_UNIT_BYTES * SHARED_UNIT_BYTES);
    }
}
