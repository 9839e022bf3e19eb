//! cuDNN: handles, convolutions by the graph API ([`graph`]), batch normalisation ([`norm`]), and
//! pooling ([`pool`]).

mod graph;
mod norm;
mod pool;

use std::ptr::null_mut;

use deepres_abi::driver::types::CUstream;
use simgpu_driver::Result;

use crate::kernels;
use crate::objects::{SUCCESS, create, destroy};

/// The status `CUDNN_STATUS_NOT_INITIALIZED`.
const NOT_INITIALIZED: u32 = 1001;
/// The status `CUDNN_STATUS_BAD_PARAM`.
const BAD_PARAM: u32 = 2000;
/// The status `CUDNN_STATUS_NOT_SUPPORTED`.
const NOT_SUPPORTED: u32 = 3000;
/// The status `CUDNN_STATUS_EXECUTION_FAILED`.
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

exports! {
    cudnnCreate(handle: *mut *mut Dnn) {
        if kernels::prepare().is_err() {
            return NOT_INITIALIZED;
        }
        create(handle, Dnn { stream: null_mut() });
    }
    cudnnDestroy(handle: *mut Dnn) { destroy(handle) }
    // Gives a part of the version: 0 asks for the major number, 1 for the minor number, 2 for the
    // patch.
    cudnnGetProperty(part: u32, value: *mut i32) {
        let version = VERSION as i32;
        value.write(match part {
            0 => version / 10_000,
            1 => version / 100 % 100,
            2 => version % 100,
            _ => return BAD_PARAM,
        });
    }
    cudnnSetStream(handle: *mut Dnn, stream: CUstream) { (*handle).stream = stream }
    cudnnGetStream(handle: *mut Dnn, stream: *mut CUstream) { stream.write((*handle).stream) }
}
