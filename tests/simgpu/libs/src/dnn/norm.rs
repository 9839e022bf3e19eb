//! Batch normalisation: descriptions of tensors, and one launch for each pass.

use std::ffi::c_void;

use super::{Dnn, SUCCESS, status};
use crate::kernels::{self, Kernel};
use crate::objects::{create, destroy};

/// The description behind a `cudnnTensorDescriptor_t`.
#[derive(Default)]
pub struct Tensor {
    elements: u64,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnCreateTensorDescriptor(tensor: *mut *mut Tensor) -> u32 {
    // SAFETY: see `dnn`.
    unsafe { create(tensor, Tensor::default()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnDestroyTensorDescriptor(tensor: *mut Tensor) -> u32 {
    // SAFETY: see `dnn`.
    unsafe { destroy(tensor) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnSetTensorNdDescriptor(
    tensor: *mut Tensor,
    _element: u32,
    dimensions: i32,
    extents: *const i32,
    _strides: *const i32,
) -> u32 {
    // SAFETY: see `dnn`; the array has an extent for each dimension.
    let extents = unsafe { std::slice::from_raw_parts(extents, dimensions as usize) };
    let elements = extents.iter().map(|extent| *extent as u64).product();
    // SAFETY: see `dnn`.
    unsafe { (*tensor).elements = elements };
    SUCCESS
}

/// Defines functions that give the bytes of a buffer: no kernel here needs one.
macro_rules! sizes {
    ($($name:ident($($argument:ident),*);)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            _handle: *mut Dnn,
            _mode: u32,
            _operations: u32,
            $($argument: *mut c_void,)*
            bytes: *mut usize,
        ) -> u32 {
            // SAFETY: see `dnn`.
            unsafe { bytes.write(0) };
            SUCCESS
        }
    )* };
}

sizes! {
    cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(_x, _z, _y, _scale, _activation);
    cudnnGetBatchNormalizationBackwardExWorkspaceSize(_x, _y, _dy, _dz, _dx, _scale, _activation);
    cudnnGetBatchNormalizationTrainingExReserveSpaceSize(_activation, _x);
}

/// Works on all elements of a tensor.
///
/// # Safety
/// The objects are alive.
unsafe fn normalise(handle: *const Dnn, tensor: *const Tensor) -> u32 {
    // SAFETY: the caller promises it.
    let (handle, tensor) = unsafe { (&*handle, &*tensor) };
    status(kernels::pass_over(Kernel::Norm, handle.stream, tensor.elements))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnBatchNormalizationForwardTrainingEx(
    handle: *mut Dnn,
    _mode: u32,
    _operations: u32,
    _alpha: *const c_void,
    _beta: *const c_void,
    x_tensor: *const Tensor,
    _x: *const c_void,
    _z_tensor: *const Tensor,
    _z: *const c_void,
    _y_tensor: *const Tensor,
    _y: *mut c_void,
    _scale_tensor: *const Tensor,
    _scale: *const c_void,
    _bias: *const c_void,
    _factor: f64,
    _running_mean: *mut c_void,
    _running_variance: *mut c_void,
    _epsilon: f64,
    _mean: *mut c_void,
    _variance: *mut c_void,
    _activation: *mut c_void,
    _workspace: *mut c_void,
    _workspace_bytes: usize,
    _reserve: *mut c_void,
    _reserve_bytes: usize,
) -> u32 {
    // SAFETY: see `dnn`.
    unsafe { normalise(handle, x_tensor) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnBatchNormalizationBackwardEx(
    handle: *mut Dnn,
    _mode: u32,
    _operations: u32,
    _alpha_data: *const c_void,
    _beta_data: *const c_void,
    _alpha_parameters: *const c_void,
    _beta_parameters: *const c_void,
    x_tensor: *const Tensor,
    _x: *const c_void,
    _y_tensor: *const Tensor,
    _y: *const c_void,
    _dy_tensor: *const Tensor,
    _dy: *const c_void,
    _dz_tensor: *const Tensor,
    _dz: *mut c_void,
    _dx_tensor: *const Tensor,
    _dx: *mut c_void,
    _scale_tensor: *const Tensor,
    _scale: *const c_void,
    _bias: *const c_void,
    _dscale: *mut c_void,
    _dbias: *mut c_void,
    _epsilon: f64,
    _mean: *const c_void,
    _variance: *const c_void,
    _activation: *mut c_void,
    _workspace: *mut c_void,
    _workspace_bytes: usize,
    _reserve: *mut c_void,
    _reserve_bytes: usize,
) -> u32 {
    // SAFETY: see `dnn`.
    unsafe { normalise(handle, x_tensor) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnBatchNormalizationForwardInference(
    handle: *mut Dnn,
    _mode: u32,
    _alpha: *const c_void,
    _beta: *const c_void,
    x_tensor: *const Tensor,
    _x: *const c_void,
    _y_tensor: *const Tensor,
    _y: *mut c_void,
    _scale_tensor: *const Tensor,
    _scale: *const c_void,
    _bias: *const c_void,
    _mean: *const c_void,
    _variance: *const c_void,
    _epsilon: f64,
) -> u32 {
    // SAFETY: see `dnn`.
    unsafe { normalise(handle, x_tensor) }
}
