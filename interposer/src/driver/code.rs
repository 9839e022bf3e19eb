//! What deepres asks the driver about code.

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

/// What [`is_eager`] found: a driver does not change it.
static MODE: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const LAZY: u8 = 1;
const EAGER: u8 = 2;

/// Whether the driver loads kernels with their modules, and libraries into all contexts at once. One that cannot say knows no other way.
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

/// A GPU's compute capability, ten times major plus minor.
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

/// What the current context's GPU has to give, whoever asks, bytes.
pub fn free_bytes() -> Option<u64> {
    let get = real!(cuMemGetInfo_v2)?;
    let (mut free, mut total) = (0, 0);
    // SAFETY: both results have room.
    let result = unsafe { get(&mut free, &mut total) };
    (result == CUDA_SUCCESS).then_some(free as u64)
}

/// Options of the driver's compiler as a job passes them, its buffers for what the compiler has to say among them.
#[derive(Clone, Copy)]
pub struct JitOptions {
    /// How many.
    pub count: u32,
    /// Which.
    pub options: *mut CUjit_option,
    /// Their values, some of which the driver writes.
    pub values: *mut *mut c_void,
}

impl JitOptions {
    /// None.
    pub const NONE: Self = Self { count: 0, options: null_mut(), values: null_mut() };
}

/// The code with which the driver refuses PTX that has errors; `None`: it takes it, or does not say. Its linker is asked, which compiles as loading does and takes no
/// memory of the GPU.
///
/// # Safety
/// `jit` is what the API says of them.
pub unsafe fn refusal_of_ptx(mut text: Vec<u8>, jit: JitOptions) -> Option<CUresult> {
    let create = real!(cuLinkCreate_v2)?;
    let (add, destroy) = real!(cuLinkAddData_v2).zip(real!(cuLinkDestroy))?;
    let mut state = null_mut();
    // SAFETY: the caller's promise, and the result has room.
    if unsafe { create(jit.count, jit.options, jit.values, &mut state) } != CUDA_SUCCESS {
        return None;
    }
    text.push(0);
    let JitOptions { count, options, values } = JitOptions::NONE;
    // SAFETY: the linker was made just now, and all of the text is there, with its NUL.
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
