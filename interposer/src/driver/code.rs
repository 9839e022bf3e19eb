//! Driver calls of deepres about code.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicU8, Ordering};

use deepres_abi::driver::result::{
    CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_PTX, CUDA_ERROR_NO_BINARY_FOR_GPU,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION, CUDA_SUCCESS,
};
use deepres_abi::driver::types::{
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    CU_JIT_INPUT_PTX, CU_MODULE_LAZY_LOADING, CUjit_option, CUresult, c_void,
};

use super::real;

/// The loading mode that [`is_eager`] found. A driver does not change it.
static MODE: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const LAZY: u8 = 1;
const EAGER: u8 = 2;

/// Whether the driver loads kernels with their modules, and libraries into all contexts at once. A
/// driver that lacks the question always does so.
pub fn is_eager() -> bool {
    let known = MODE.load(Ordering::Relaxed);
    if known != UNKNOWN {
        return known == EAGER;
    }
    let mut mode = 0;
    // SAFETY: the result has room.
    let is_lazy = real!(cuModuleGetLoadingMode).is_some_and(|get| unsafe { get(&mut mode) } == CUDA_SUCCESS)
        && mode == CU_MODULE_LAZY_LOADING;
    MODE.store(if is_lazy { LAZY } else { EAGER }, Ordering::Relaxed);
    !is_lazy
}

/// Returns a GPU's compute capability: ten times the major number plus the minor number.
pub fn capability(ordinal: usize) -> Option<u32> {
    let (get, device) = real!(cuDeviceGetAttribute).zip(i32::try_from(ordinal).ok())?;
    let ask = |attribute| {
        let mut value = 0;
        // SAFETY: the result has room; the driver checks the ordinal.
        let result = unsafe { get(&mut value, attribute, device) };
        u32::try_from(value).ok().filter(|_| result == CUDA_SUCCESS)
    };
    let major = ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    Some(major * 10 + ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?)
}

/// Returns the free memory of the current context's GPU, bytes, regardless of the tenant's limit.
pub fn free_bytes() -> Option<u64> {
    let get = real!(cuMemGetInfo_v2)?;
    let (mut free, mut total) = (0, 0);
    // SAFETY: both results have room.
    let result = unsafe { get(&mut free, &mut total) };
    (result == CUDA_SUCCESS).then_some(free as u64)
}

/// Options for the driver's compiler as the job passes them. They include buffers for the
/// compiler's messages.
#[derive(Clone, Copy)]
pub struct JitOptions {
    /// Number of options.
    pub count: u32,
    /// The options.
    pub options: *mut CUjit_option,
    /// Their values. The driver writes some of them.
    pub values: *mut *mut c_void,
}

impl JitOptions {
    /// No options.
    pub const NONE: Self = Self { count: 0, options: null_mut(), values: null_mut() };
}

/// Returns the error code with which the driver refuses erroneous PTX. Returns `None` if the driver
/// accepts it or does not say. The driver's linker is asked, because it compiles as a load does,
/// and takes no GPU memory.
///
/// # Safety
/// `jit` meets the requirements of the driver API.
pub unsafe fn refusal_of_ptx(mut text: Vec<u8>, jit: JitOptions) -> Option<CUresult> {
    let create = real!(cuLinkCreate_v2)?;
    let (add, destroy) = real!(cuLinkAddData_v2).zip(real!(cuLinkDestroy))?;
    let mut state = null_mut();
    // SAFETY: the caller promises valid options, and the result has room.
    if unsafe { create(jit.count, jit.options, jit.values, &mut state) } != CUDA_SUCCESS {
        return None;
    }
    text.push(0);
    let JitOptions { count, options, values } = JitOptions::NONE;
    // SAFETY: the linker state was just created, and the buffer contains the whole text with its
    // NUL.
    let result = unsafe {
        let (data, name) = (text.as_mut_ptr().cast(), c"image".as_ptr());
        let result = add(state, CU_JIT_INPUT_PTX, data, text.len(), name, count, options, values);
        destroy(state);
        result
    };
    let is_of_the_text = matches!(
        result,
        CUDA_ERROR_INVALID_IMAGE
            | CUDA_ERROR_NO_BINARY_FOR_GPU
            | CUDA_ERROR_INVALID_PTX
            | CUDA_ERROR_UNSUPPORTED_PTX_VERSION
    );
    is_of_the_text.then_some(result)
}
