//! Batch normalisation: descriptions of tensors, and one launch for each pass.

use std::ffi::c_void;

use super::{Dnn, status};
use crate::kernels::{self, Kernel};
use crate::objects::{create, destroy};

/// The description behind a `cudnnTensorDescriptor_t`.
#[derive(Default)]
pub struct Tensor {
    /// Number of elements.
    pub elements: u64,
}

exports! {
    cudnnCreateTensorDescriptor(tensor: *mut *mut Tensor) { create(tensor, Tensor::default()) }
    cudnnDestroyTensorDescriptor(tensor: *mut Tensor) { destroy(tensor) }
    cudnnSetTensorNdDescriptor(
        tensor: *mut Tensor, _element: u32, dimensions: i32, extents: *const i32, _strides: *const i32
    ) {
        let extents = std::slice::from_raw_parts(extents, dimensions as usize);
        (*tensor).elements = extents.iter().map(|extent| *extent as u64).product();
    }
}

// These functions give the bytes of a buffer. No kernel here needs one.
exports! {
    cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
        _handle: *mut Dnn, _mode: u32, _operations: u32, _x: *mut c_void, _z: *mut c_void,
        _y: *mut c_void, _scale: *mut c_void, _activation: *mut c_void, bytes: *mut usize
    ) {
        bytes.write(0);
    }
    cudnnGetBatchNormalizationBackwardExWorkspaceSize(
        _handle: *mut Dnn, _mode: u32, _operations: u32, _x: *mut c_void, _y: *mut c_void,
        _dy: *mut c_void, _dz: *mut c_void, _dx: *mut c_void, _scale: *mut c_void,
        _activation: *mut c_void, bytes: *mut usize
    ) {
        bytes.write(0);
    }
    cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
        _handle: *mut Dnn, _mode: u32, _operations: u32, _activation: *mut c_void, _x: *mut c_void,
        bytes: *mut usize
    ) {
        bytes.write(0);
    }
}

/// Works on all elements of a tensor by one launch.
///
/// # Safety
/// The objects are alive.
pub unsafe fn pass_over(kernel: Kernel, handle: *const Dnn, tensor: *const Tensor) -> u32 {
    // SAFETY: the caller promises it.
    let (handle, tensor) = unsafe { (&*handle, &*tensor) };
    status(kernels::pass_over(kernel, handle.stream, tensor.elements))
}

exports! {
    cudnnBatchNormalizationForwardTrainingEx(
        handle: *mut Dnn, _mode: u32, _operations: u32, _alpha: *const c_void, _beta: *const c_void,
        x_tensor: *const Tensor, _x: *const c_void, _z_tensor: *const Tensor, _z: *const c_void,
        _y_tensor: *const Tensor, _y: *mut c_void, _scale_tensor: *const Tensor, _scale: *const c_void,
        _bias: *const c_void, _factor: f64, _running_mean: *mut c_void, _running_variance: *mut c_void,
        _epsilon: f64, _mean: *mut c_void, _variance: *mut c_void, _activation: *mut c_void,
        _workspace: *mut c_void, _workspace_bytes: usize, _reserve: *mut c_void, _reserve_bytes: usize
    ) {
        pass_over(Kernel::Norm, handle, x_tensor)
    }
    cudnnBatchNormalizationBackwardEx(
        handle: *mut Dnn, _mode: u32, _operations: u32, _alpha_data: *const c_void,
        _beta_data: *const c_void, _alpha_parameters: *const c_void, _beta_parameters: *const c_void,
        x_tensor: *const Tensor, _x: *const c_void, _y_tensor: *const Tensor, _y: *const c_void,
        _dy_tensor: *const Tensor, _dy: *const c_void, _dz_tensor: *const Tensor, _dz: *mut c_void,
        _dx_tensor: *const Tensor, _dx: *mut c_void, _scale_tensor: *const Tensor, _scale: *const c_void,
        _bias: *const c_void, _dscale: *mut c_void, _dbias: *mut c_void, _epsilon: f64,
        _mean: *const c_void, _variance: *const c_void, _activation: *mut c_void, _workspace: *mut c_void,
        _workspace_bytes: usize, _reserve: *mut c_void, _reserve_bytes: usize
    ) {
        pass_over(Kernel::Norm, handle, x_tensor)
    }
    cudnnBatchNormalizationForwardInference(
        handle: *mut Dnn, _mode: u32, _alpha: *const c_void, _beta: *const c_void,
        x_tensor: *const Tensor, _x: *const c_void, _y_tensor: *const Tensor, _y: *mut c_void,
        _scale_tensor: *const Tensor, _scale: *const c_void, _bias: *const c_void, _mean: *const c_void,
        _variance: *const c_void, _epsilon: f64
    ) {
        pass_over(Kernel::Norm, handle, x_tensor)
    }
}
