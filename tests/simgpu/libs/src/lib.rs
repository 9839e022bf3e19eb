//! Stand-ins for functions of cuBLAS, cuBLASLt, cuDNN and NCCL that frameworks call.
//!
//! One library has the functions of all these libraries, without symbol versions. For each of
//! NVIDIA's libraries, `deepres_e2e::stand_ins` makes a facade. The facade has the name and the
//! symbol versions of NVIDIA's library, and depends on this library. The facade itself answers all
//! functions that this library lacks, by [`simgpu_unsupported`].
//!
//! A product, a convolution or a collective is one launch of a named kernel. The kernels compute
//! nothing, as all kernels on the simulated GPU, and take the time of their grid.

/// Declares functions that a library exports, with one name or more for a body. A body that gives
/// no status succeeds.
///
/// By the contracts of the libraries, a pointer for a result points at room for the result. An
/// object comes from the function that makes it, and is not used after its end. One thread at a
/// time uses an object.
macro_rules! exports {
    (@one $name:ident ($($argument:ident: $type:ty),*) $body:block) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
            // SAFETY: the caller keeps the contract of the library, see the macro.
            crate::objects::Status::number(unsafe { $body })
        }
    };
    (@each [$($name:ident)+] $arguments:tt $body:block) => {
        $(exports! { @one $name $arguments $body })+
    };
    ($($($name:ident)|+ ($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(exports! { @each [$($name)+] ($($argument: $type),*) $body })*
    };
}

/// Declares functions that succeed and have no effect.
macro_rules! without_effect {
    ($($name:ident($($type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($(_: $type),*) -> u32 {
            crate::objects::SUCCESS
        }
    )*};
}

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
