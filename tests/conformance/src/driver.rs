//! The driver of this machine, simulated or real: its functions by their exported names.

use std::ffi::{CStr, CString, c_void};
use std::sync::OnceLock;

use crate::check::Stop;

/// Calls a driver function by its exported name and returns its code. If the driver lacks the
/// function, the check ends.
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

/// Calls a driver function that has to succeed. If it fails, the check ends.
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

struct Library(*mut c_void);
// SAFETY: the handle is one of the dynamic linker's, which any thread may use.
unsafe impl Send for Library {}
// SAFETY: the dynamic linker synchronises all uses of the handle.
unsafe impl Sync for Library {}

fn library() -> Option<*mut c_void> {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    // SAFETY: loading the driver runs its initialisers, as every client does.
    let library =
        LIBRARY.get_or_init(|| Library(unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) }));
    (!library.0.is_null()).then_some(library.0)
}

/// Returns the address of the driver's export `symbol`.
pub fn find(symbol: &str) -> Option<usize> {
    let name = CString::new(symbol).ok()?;
    // SAFETY: the library is open, and the name ends with a NUL.
    let found = unsafe { libc::dlsym(library()?, name.as_ptr()) } as usize;
    (found != 0).then_some(found)
}

/// Returns the address of a function that a check needs. If the driver lacks it, the check ends.
pub fn require(symbol: &str) -> Result<*mut c_void, Stop> {
    if library().is_none() {
        return Err(Stop::Absent("no libcuda.so.1 is found".to_owned()));
    }
    match find(symbol) {
        Some(address) => Ok(address as *mut c_void),
        None => Err(Stop::Absent(format!("this driver has no {symbol}"))),
    }
}

/// Describes the driver for people.
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
