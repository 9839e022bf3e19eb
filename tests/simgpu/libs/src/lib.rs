//! Stand-ins for functions of cuBLAS, cuBLASLt, cuDNN and NCCL that frameworks call.
//!
//! One library has the functions of all these libraries, without symbol versions. For each of
//! NVIDIA's libraries, `deepres_e2e::stand_ins` makes a facade. The facade has the name and the
//! symbol versions of NVIDIA's library, and depends on this library. The facade itself answers all
//! functions that this library lacks, by [`simgpu_unsupported`].
//!
//! A product, a convolution or a collective is one launch of a named kernel. The kernels compute
//! nothing, as all kernels on the simulated GPU, and take the time of their grid.

mod blas;
mod blas_lt;
mod collectives;
mod dnn;
mod kernels;
mod objects;

use std::ffi::{CStr, c_char};

/// Counts a call of a function that neither this library nor its facade implements.
///
/// # Safety
/// `name` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simgpu_unsupported(name: *const c_char) {
    // SAFETY: the caller passes a C string.
    simgpu_driver::unsupported(&unsafe { CStr::from_ptr(name) }.to_string_lossy());
}
