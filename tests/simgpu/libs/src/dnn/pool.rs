//! Pooling: descriptions, and one launch for each pass.

use std::ffi::c_void;

use super::Dnn;
use super::norm::{Tensor, pass_over};
use crate::kernels::Kernel;
use crate::objects::{create, destroy};

/// The description behind a `cudnnPoolingDescriptor_t`, which keeps nothing: the tensors have the
/// extents of the work.
pub struct Pooling;

// A pass works on the elements of the larger tensor.
exports! {
    cudnnCreatePoolingDescriptor(pooling: *mut *mut Pooling) { create(pooling, Pooling) }
    cudnnDestroyPoolingDescriptor(pooling: *mut Pooling) { destroy(pooling) }
    cudnnPoolingForward(
        handle: *mut Dnn, _pooling: *const Pooling, _alpha: *const c_void, x_tensor: *const Tensor,
        _x: *const c_void, _beta: *const c_void, _y_tensor: *const Tensor, _y: *mut c_void
    ) {
        pass_over(Kernel::Pooling, handle, x_tensor)
    }
    cudnnPoolingBackward(
        handle: *mut Dnn, _pooling: *const Pooling, _alpha: *const c_void, _y_tensor: *const Tensor,
        _y: *const c_void, _dy_tensor: *const Tensor, _dy: *const c_void, x_tensor: *const Tensor,
        _x: *const c_void, _beta: *const c_void, _dx_tensor: *const Tensor, _dx: *mut c_void
    ) {
        pass_over(Kernel::Pooling, handle, x_tensor)
    }
}

// The windows do not change the time of the kernel.
without_effect! {
    cudnnSetPoolingNdDescriptor(*mut Pooling, u32, u32, i32, *const i32, *const i32, *const i32);
}
