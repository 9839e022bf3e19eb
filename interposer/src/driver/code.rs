//! What deepres asks the driver about code.

use std::sync::atomic::{AtomicU8, Ordering};

use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::{
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    CU_MODULE_LAZY_LOADING,
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
