//! cuDNN: handles, convolutions by the graph API ([`graph`]), and batch normalisation ([`norm`]).

mod graph;
mod norm;

use std::ptr::null_mut;

use deepres_abi::driver::types::CUstream;
use simgpu_driver::Result;

use crate::kernels;
use crate::objects::create;

/// `CUDNN_STATUS_SUCCESS`
const SUCCESS: u32 = 0;
/// `CUDNN_STATUS_NOT_INITIALIZED`
const NOT_INITIALIZED: u32 = 1001;
/// `CUDNN_STATUS_BAD_PARAM`
const BAD_PARAM: u32 = 2000;
/// `CUDNN_STATUS_NOT_SUPPORTED`
const NOT_SUPPORTED: u32 = 3000;
/// `CUDNN_STATUS_EXECUTION_FAILED`
const EXECUTION_FAILED: u32 = 5000;

/// The version of cuDNN with which PyTorch is built: 10000 × major + 100 × minor + patch.
const VERSION: usize = 92_600;
/// The version of CUDA of this cuDNN: 1000 × major + 10 × minor.
const CUDART_VERSION: usize = 13_020;

/// The state behind a `cudnnHandle_t`.
pub struct Dnn {
    stream: CUstream,
}

/// Returns the status of a launch.
fn status(launched: Result<()>) -> u32 {
    if launched.is_ok() { SUCCESS } else { EXECUTION_FAILED }
}

#[unsafe(no_mangle)]
extern "C" fn cudnnGetVersion() -> usize {
    VERSION
}

#[unsafe(no_mangle)]
extern "C" fn cudnnGetCudartVersion() -> usize {
    CUDART_VERSION
}

// SAFETY (of every block below and in the modules): by cuDNN's contract, a pointer for a result is at
// room for the result, and an object comes from the function that makes it and is not used after its
// end. One thread at a time uses an object.

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnCreate(handle: *mut *mut Dnn) -> u32 {
    if kernels::prepare().is_err() {
        return NOT_INITIALIZED;
    }
    // SAFETY: see above.
    unsafe { create(handle, Dnn { stream: null_mut() }) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnSetStream(handle: *mut Dnn, stream: CUstream) -> u32 {
    // SAFETY: see above.
    unsafe { (*handle).stream = stream };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetStream(handle: *mut Dnn, stream: *mut CUstream) -> u32 {
    // SAFETY: see above.
    unsafe { stream.write((*handle).stream) };
    SUCCESS
}
