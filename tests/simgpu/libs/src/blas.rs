//! cuBLAS: handles, products of matrices, and products with vectors.

use std::ffi::c_void;
use std::ptr::null_mut;

use deepres_abi::driver::types::CUstream;
use simgpu_driver::Result;

use crate::kernels::{self, Extents, Kernel};
use crate::objects::{SUCCESS, create, destroy};

/// The status `CUBLAS_STATUS_NOT_INITIALIZED`.
const NOT_INITIALIZED: u32 = 1;
/// The status `CUBLAS_STATUS_INVALID_VALUE`.
pub const INVALID_VALUE: u32 = 7;
/// The status `CUBLAS_STATUS_EXECUTION_FAILED`.
const EXECUTION_FAILED: u32 = 13;
/// The version of cuBLAS with which PyTorch is built: 10000 × major + 100 × minor + patch.
pub const VERSION: i32 = 130_401;

/// The state behind a `cublasHandle_t`.
pub struct Blas {
    stream: CUstream,
    math_mode: u32,
    pointer_mode: u32,
}

/// Returns the status of a launch.
pub fn status(launched: Result<()>) -> u32 {
    if launched.is_ok() { SUCCESS } else { EXECUTION_FAILED }
}

exports! {
    cublasCreate_v2(handle: *mut *mut Blas) {
        if kernels::prepare().is_err() {
            return NOT_INITIALIZED;
        }
        create(handle, Blas { stream: null_mut(), math_mode: 0, pointer_mode: 0 });
    }
    cublasDestroy_v2(handle: *mut Blas) { destroy(handle) }
    cublasGetVersion_v2(_handle: *mut Blas, version: *mut i32) { version.write(VERSION) }
}

/// Declares functions that set or return a field of a handle.
macro_rules! fields {
    ($($set:ident $get:ident $field:ident: $type:ty;)*) => {
        exports! {$(
            $set(handle: *mut Blas, value: $type) { (*handle).$field = value }
            $get(handle: *mut Blas, value: *mut $type) { value.write((*handle).$field) }
        )*}
    };
}

fields! {
    cublasSetStream_v2 cublasGetStream_v2 stream: CUstream;
    cublasSetMathMode cublasGetMathMode math_mode: u32;
    cublasSetPointerMode_v2 cublasGetPointerMode_v2 pointer_mode: u32;
}

// The stand-in needs no workspace, and no number of SMs.
without_effect! {
    cublasSetWorkspace_v2(*mut Blas, *mut c_void, usize);
    cublasSetSmCountTarget(*mut Blas, i32);
}

/// Multiplies on the handle's stream.
///
/// # Safety
/// The handle comes from `cublasCreate_v2`.
unsafe fn multiply(handle: *const Blas, m: i32, n: i32, k: i32, batch: i32) -> u32 {
    let [Ok(m), Ok(n), Ok(k), Ok(batch)] = [m, n, k, batch].map(u64::try_from) else {
        return INVALID_VALUE;
    };
    // SAFETY: the caller passes a live handle.
    let stream = unsafe { (*handle).stream };
    status(kernels::multiply(Kernel::Product, stream, Extents { m, n, k, batch }))
}

/// Works on the elements of vectors or of a matrix, on the handle's stream.
///
/// # Safety
/// The handle comes from `cublasCreate_v2`.
unsafe fn pass_over(handle: *const Blas, elements: i64) -> u32 {
    let Ok(elements) = u64::try_from(elements) else { return INVALID_VALUE };
    // SAFETY: the caller passes a live handle.
    let stream = unsafe { (*handle).stream };
    status(kernels::pass_over(Kernel::Vector, stream, elements))
}

exports! {
    cublasSgemm_v2 | cublasDgemm_v2 | cublasCgemm_v2 | cublasZgemm_v2(
        handle: *mut Blas, _ta: u32, _tb: u32, m: i32, n: i32, k: i32, _alpha: *const c_void,
        _a: *const c_void, _lda: i32, _b: *const c_void, _ldb: i32, _beta: *const c_void,
        _c: *mut c_void, _ldc: i32
    ) {
        multiply(handle, m, n, k, 1)
    }
    cublasSgemmBatched | cublasDgemmBatched | cublasCgemmBatched | cublasZgemmBatched(
        handle: *mut Blas, _ta: u32, _tb: u32, m: i32, n: i32, k: i32, _alpha: *const c_void,
        _a: *const c_void, _lda: i32, _b: *const c_void, _ldb: i32, _beta: *const c_void,
        _c: *const c_void, _ldc: i32, batch: i32
    ) {
        multiply(handle, m, n, k, batch)
    }
    cublasSgemmStridedBatched | cublasDgemmStridedBatched
    | cublasCgemmStridedBatched | cublasZgemmStridedBatched(
        handle: *mut Blas, _ta: u32, _tb: u32, m: i32, n: i32, k: i32, _alpha: *const c_void,
        _a: *const c_void, _lda: i32, _stride_a: i64, _b: *const c_void, _ldb: i32, _stride_b: i64,
        _beta: *const c_void, _c: *mut c_void, _ldc: i32, _stride_c: i64, batch: i32
    ) {
        multiply(handle, m, n, k, batch)
    }
    cublasSgemmEx(
        handle: *mut Blas, _ta: u32, _tb: u32, m: i32, n: i32, k: i32, _alpha: *const c_void,
        _a: *const c_void, _a_type: u32, _lda: i32, _b: *const c_void, _b_type: u32, _ldb: i32,
        _beta: *const c_void, _c: *mut c_void, _c_type: u32, _ldc: i32
    ) {
        multiply(handle, m, n, k, 1)
    }
    cublasGemmEx(
        handle: *mut Blas, _ta: u32, _tb: u32, m: i32, n: i32, k: i32, _alpha: *const c_void,
        _a: *const c_void, _a_type: u32, _lda: i32, _b: *const c_void, _b_type: u32, _ldb: i32,
        _beta: *const c_void, _c: *mut c_void, _c_type: u32, _ldc: i32, _compute: u32, _algorithm: i32
    ) {
        multiply(handle, m, n, k, 1)
    }
    cublasGemmStridedBatchedEx(
        handle: *mut Blas, _ta: u32, _tb: u32, m: i32, n: i32, k: i32, _alpha: *const c_void,
        _a: *const c_void, _a_type: u32, _lda: i32, _stride_a: i64, _b: *const c_void, _b_type: u32,
        _ldb: i32, _stride_b: i64, _beta: *const c_void, _c: *mut c_void, _c_type: u32, _ldc: i32,
        _stride_c: i64, batch: i32, _compute: u32, _algorithm: i32
    ) {
        multiply(handle, m, n, k, batch)
    }
    cublasSgemv_v2 | cublasDgemv_v2 | cublasCgemv_v2 | cublasZgemv_v2(
        handle: *mut Blas, _transposed: u32, m: i32, n: i32, _alpha: *const c_void, _a: *const c_void,
        _lda: i32, _x: *const c_void, _step_x: i32, _beta: *const c_void, _y: *mut c_void, _step_y: i32
    ) {
        pass_over(handle, i64::from(m) * i64::from(n))
    }
    cublasSdot_v2 | cublasDdot_v2 | cublasCdotu_v2 | cublasCdotc_v2 | cublasZdotu_v2 | cublasZdotc_v2(
        handle: *mut Blas, n: i32, _x: *const c_void, _step_x: i32, _y: *const c_void, _step_y: i32,
        _result: *mut c_void
    ) {
        pass_over(handle, n.into())
    }
    cublasDotEx(
        handle: *mut Blas, n: i32, _x: *const c_void, _x_type: u32, _step_x: i32, _y: *const c_void,
        _y_type: u32, _step_y: i32, _result: *mut c_void, _result_type: u32, _compute: u32
    ) {
        pass_over(handle, n.into())
    }
}
