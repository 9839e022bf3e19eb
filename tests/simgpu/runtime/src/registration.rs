//! Functions that the compiler's code calls, and functions that return no error code. The header
//! does not declare all these functions.
#![expect(
    clippy::missing_safety_doc,
    reason = "the contracts are those of nvcc's code and of NVIDIA's reference"
)]

use std::ffi::{CStr, c_char, c_void};
use std::ptr::null;

use simgpu_driver::{Result, driver};

use crate::api::kernel::{self, Configuration};
use crate::code::{self, Binary, Entry};
use crate::edge;
use crate::table::errors;
use crate::table::types::{cudaStream_t, dim3};

/// Registers a fat binary. Returns its handle.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFatBinary(image: *mut c_void) -> *mut *mut c_void {
    Box::into_raw(Box::new(Binary::new(image))).cast()
}

/// Ends the registration of a fat binary's kernels and variables.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFatBinaryEnd(_handle: *mut *mut c_void) {}

/// Does nothing, because programs call this function only at their end. When the process ends, the
/// driver drops the process's code.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaUnregisterFatBinary(_handle: *mut *mut c_void) {}

/// Reports that the module is ready.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaInitModule(_handle: *mut *mut c_void) -> c_char {
    1
}

/// Returns the binary of a handle.
///
/// # Safety
/// The handle comes from [`__cudaRegisterFatBinary`].
unsafe fn binary(handle: *mut *mut c_void) -> &'static Binary {
    // SAFETY: the registration never frees a binary.
    unsafe { &*handle.cast::<Binary>() }
}

/// Registers a kernel by the address of its function on the host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __cudaRegisterFunction(
    handle: *mut *mut c_void,
    host: *const c_void,
    _device: *mut c_char,
    name: *const c_char,
    _thread_limit: i32,
    _thread: *mut c_void,
    _block: *mut c_void,
    _block_shape: *mut c_void,
    _grid_shape: *mut c_void,
    _warp_size: *mut i32,
) {
    // SAFETY: the compiler's code passes the handle that it got.
    code::register(host, Entry::kernel(unsafe { binary(handle) }, name));
}

/// Registers a variable by the address of its shadow on the host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __cudaRegisterVar(
    handle: *mut *mut c_void,
    shadow: *mut c_void,
    _device: *mut c_char,
    name: *const c_char,
    _is_extern: i32,
    _bytes: usize,
    _is_constant: i32,
    _is_global: i32,
) {
    // SAFETY: the compiler's code passes the handle that it got.
    code::register(shadow, Entry::variable(unsafe { binary(handle) }, name, false));
}

/// Registers a managed variable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __cudaRegisterManagedVar(
    handle: *mut *mut c_void,
    shadow: *mut *mut c_void,
    _device: *mut c_char,
    name: *const c_char,
    _is_extern: i32,
    _bytes: usize,
    _is_constant: i32,
    _is_global: i32,
) {
    // SAFETY: the compiler's code passes the handle that it got.
    code::register(shadow.cast(), Entry::variable(unsafe { binary(handle) }, name, true));
}

/// Begins a launch. Returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaPushCallConfiguration(
    grid: dim3,
    block: dim3,
    shared_bytes: usize,
    stream: cudaStream_t,
) -> u32 {
    kernel::push(Configuration { grid, block, shared_bytes, stream });
    0
}

/// Returns the configuration of the launch that the thread began last.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __cudaPopCallConfiguration(
    grid: *mut dim3,
    block: *mut dim3,
    shared_bytes: *mut usize,
    stream: *mut cudaStream_t,
) -> u32 {
    edge::answer_plainly(|| {
        let configuration = kernel::pop()?;
        // SAFETY: the compiler's code passes places for the four parts.
        unsafe {
            grid.write(configuration.grid);
            block.write(configuration.block);
            shared_bytes.write(configuration.shared_bytes);
            stream.write(configuration.stream);
        }
        Ok(())
    })
}

/// Returns the kernel of a function on the host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __cudaGetKernel(to: *mut *mut c_void, host: *const c_void) -> u32 {
    edge::answer_plainly(|| {
        let kernel = code::kernel(host)?;
        // SAFETY: the compiler's code passes a place for the kernel.
        unsafe { to.write(kernel) };
        Ok(())
    })
}

/// Launches a kernel from [`__cudaGetKernel`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __cudaLaunchKernel(
    kernel: *mut c_void,
    grid: dim3,
    block: dim3,
    arguments: *mut *mut c_void,
    shared_bytes: usize,
    stream: cudaStream_t,
) -> u32 {
    edge::answer_plainly(|| {
        edge::refuse_as(kernel.is_null(), errors::cudaErrorInvalidDeviceFunction)?;
        crate::device::context()?;
        kernel::launch(kernel, &Configuration { grid, block, shared_bytes, stream }, arguments)
    })
}

/// Returns the name of an error.
#[unsafe(no_mangle)]
pub extern "C" fn cudaGetErrorName(error: u32) -> *const c_char {
    errors::name(error).unwrap_or(UNKNOWN).as_ptr()
}

/// The text for a number that is no error.
const UNKNOWN: &CStr = c"unrecognized error code";

/// Returns the description of an error: the driver's, else the error's name.
#[unsafe(no_mangle)]
pub extern "C" fn cudaGetErrorString(error: u32) -> *const c_char {
    let own = match error {
        errors::cudaErrorInsufficientDriver => {
            Some(c"CUDA driver version is insufficient for CUDA runtime version")
        }
        errors::cudaErrorInvalidConfiguration => Some(c"invalid configuration argument"),
        errors::cudaErrorInvalidDeviceFunction => Some(c"invalid device function"),
        errors::cudaErrorInvalidSymbol => Some(c"invalid device symbol"),
        _ => None,
    };
    let described = || -> Result<*const c_char> {
        let mut text = null();
        driver!(cuGetErrorString(error, &mut text));
        Ok(text)
    };
    match own {
        Some(text) => text.as_ptr(),
        None => described().unwrap_or_else(|_| cudaGetErrorName(error)),
    }
}
