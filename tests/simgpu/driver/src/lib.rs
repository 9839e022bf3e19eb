//! The driver's functions for the stand-ins of NVIDIA's libraries.
//!
//! The stand-ins reach the driver only by its public look-up: they dlopen the library, and call
//! `cuGetProcAddress` for each function. The stand-ins ask for a function by the version of CUDA
//! that introduced the variant, so that the driver returns exactly this variant. [`driver!`] calls
//! a function.

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

pub use deepres_abi::driver::{ApiId, pfn};
use deepres_abi::driver::{StreamKind, result, types};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// An error of the driver, as its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error(pub u32);

/// Result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// The error if the machine has no driver.
pub const NO_DRIVER: Error = Error(result::CUDA_ERROR_STUB_LIBRARY);

/// Calls a driver function by its exported name. If the call fails, the macro makes the calling
/// function return the error.
#[macro_export]
macro_rules! driver {
    ($symbol:ident($($argument:expr),* $(,)?)) => {{
        let address = $crate::address($crate::ApiId::$symbol)?;
        // SAFETY: the look-up by name and version returns a function of this type.
        let function =
            unsafe { std::mem::transmute::<*mut std::ffi::c_void, $crate::pfn::$symbol>(address) };
        // SAFETY: a program called this library by the contract of the library's reference. So the
        // arguments are as the driver's reference asks.
        $crate::checked(unsafe { function($($argument),*) })?
    }};
}

/// Returns the code of a driver function as a result.
pub fn checked(code: u32) -> Result<()> {
    if code == result::CUDA_SUCCESS { Ok(()) } else { Err(Error(code)) }
}

/// Returns the driver's `cuGetProcAddress`. Loads the driver at the first call.
pub fn look_up() -> Result<pfn::cuGetProcAddress_v2> {
    static LOOK_UP: OnceLock<Option<pfn::cuGetProcAddress_v2>> = OnceLock::new();
    let found = LOOK_UP.get_or_init(|| {
        // SAFETY: loading the driver runs its initialisers, as in every client.
        let library = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW | RTLD_GLOBAL) }.ok()?;
        // SAFETY: the driver exports the function with this type.
        let function = unsafe { library.get::<pfn::cuGetProcAddress_v2>(b"cuGetProcAddress_v2\0") };
        let function = function.ok().map(|function| *function);
        // The driver stays loaded for the life of the process.
        std::mem::forget(library);
        function
    });
    found.ok_or(NO_DRIVER)
}

/// Returns the address of a driver function.
pub fn address(id: ApiId) -> Result<*mut c_void> {
    static ADDRESSES: [AtomicPtr<c_void>; ApiId::COUNT] =
        [const { AtomicPtr::new(null_mut()) }; ApiId::COUNT];
    let known = ADDRESSES[id as usize].load(Ordering::Relaxed);
    if !known.is_null() {
        return Ok(known);
    }
    let flags = match id.stream_kind() {
        StreamKind::PerThread => types::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
        StreamKind::Any | StreamKind::Legacy => types::CU_GET_PROC_ADDRESS_LEGACY_STREAM,
    };
    let name = CString::new(id.family()).expect("a name without NUL");
    let (mut found, mut status) = (null_mut(), 0);
    // SAFETY: the name is a C string, and the results have the types of the reference.
    let code = unsafe { look_up()?(name.as_ptr(), &mut found, id.since() as i32, flags.into(), &mut status) };
    checked(code)?;
    if found.is_null() {
        return Err(Error(result::CUDA_ERROR_NOT_FOUND));
    }
    ADDRESSES[id as usize].store(found, Ordering::Relaxed);
    Ok(found)
}

/// Calls of unsupported functions, by name.
static UNSUPPORTED: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

/// Counts a call of an unsupported function. With `SIMGPU_VERBOSE=1`, the library prints the counts
/// at the end of the process.
#[cold]
pub fn unsupported(name: &str) {
    let mut calls = UNSUPPORTED.lock().unwrap_or_else(PoisonError::into_inner);
    if calls.is_empty() && std::env::var_os("SIMGPU_VERBOSE").is_some_and(|value| value == "1") {
        // SAFETY: the handler lives as long as the process, because no one unloads the library.
        unsafe { libc::atexit(report) };
    }
    *calls.entry(name.to_owned()).or_default() += 1;
}

extern "C" fn report() {
    // A thread that the exit stopped can hold the lock.
    let Ok(calls) = UNSUPPORTED.try_lock() else { return };
    for (name, count) in calls.iter() {
        eprintln!("simgpu: {name} is not supported; called {count} times");
    }
}
