//! The driver of this machine, simulated or real: its functions by their exported names.

use std::ffi::{CStr, c_void};

use libloading::os::unix::{Library, RTLD_NOW};
use once_cell::sync::OnceCell;

use crate::check::Stop;

/// Calls a driver function by its exported name and returns its code. If the driver lacks the
/// function, ends the check.
macro_rules! cu {
    ($symbol:ident($($argument:expr),* $(,)?)) => {{
        let address = $crate::driver::require(stringify!($symbol))?;
        // SAFETY: the driver exports this symbol with this type.
        let function = unsafe { std::mem::transmute::<*mut std::ffi::c_void, deepres_abi::driver::pfn::$symbol>(address) };
        // SAFETY: the check passes arguments that the function's reference allows, or that the
        // function promises to refuse.
        unsafe { function($($argument),*) }
    }};
}

/// Calls a driver function that has to succeed. If the call fails, ends the check.
macro_rules! must {
    ($symbol:ident($($argument:expr),* $(,)?)) => {{
        let code = cu!($symbol($($argument),*));
        if code != deepres_abi::driver::result::CUDA_SUCCESS {
            return Err($crate::check::Stop::Failed(stringify!($symbol), code));
        }
    }};
}

/// Calls a driver function that has to succeed and whose first argument is the place of its result.
/// Returns the result.
macro_rules! made {
    ($symbol:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the driver's functions return handles and numbers, of which all zeroes is a valid
        // value.
        let mut result = unsafe { std::mem::zeroed() };
        must!($symbol(&mut result $(, $argument)*));
        result
    }};
}

/// Returns one of the driver's plain structures with all bytes zero.
macro_rules! zeroed {
    ($structure:ty) => {{
        // SAFETY: the structure is plain, so all zeroes is a valid value.
        unsafe { std::mem::zeroed::<$structure>() }
    }};
}

fn library() -> Result<&'static Library, Stop> {
    static LIBRARY: OnceCell<Library> = OnceCell::new();
    LIBRARY.get_or_try_init(|| {
        // SAFETY: loading the driver runs its initialisers, as every client does.
        unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW) }
            .map_err(|error| Stop::Absent(format!("no libcuda.so.1 is found: {error}")))
    })
}

/// Returns the address of the driver's export `symbol`.
pub fn find(symbol: &str) -> Option<usize> {
    // SAFETY: only the symbol's address is used.
    let found = unsafe { library().ok()?.get::<*mut c_void>(symbol.as_bytes()) }.ok()?;
    let address = *found as usize;
    (address != 0).then_some(address)
}

/// Returns the address of a function that a check needs. If the driver lacks the function, ends the
/// check.
pub fn require(symbol: &str) -> Result<*mut c_void, Stop> {
    library()?;
    match find(symbol) {
        Some(address) => Ok(address as *mut c_void),
        None => Err(Stop::Absent(format!("this driver has no {symbol}"))),
    }
}

/// Returns a description of the driver for people.
pub fn description() -> String {
    describe().unwrap_or_else(|_| "no usable driver".to_owned())
}

fn describe() -> Result<String, Stop> {
    /// Room for a device's name, bytes.
    const NAME_BYTES: usize = 128;
    let (mut version, mut name) = (0, [0; NAME_BYTES]);
    must!(cuInit(0));
    must!(cuDriverGetVersion(&mut version));
    must!(cuDeviceGetName(name.as_mut_ptr(), NAME_BYTES as i32, 0));
    // SAFETY: the driver terminates the name.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy();
    Ok(format!("{name}, CUDA {}.{}", version / 1000, version % 1000 / 10))
}
