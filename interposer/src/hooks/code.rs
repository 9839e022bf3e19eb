//! Hooks of the calls that load code, which takes memory.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS};
use deepres_abi::driver::types::{
    CUjit_option, CUlibrary, CUlibraryOption, CUmodule, CUresult, c_char, c_void,
};

use super::{MISSING, clear};
use crate::blocked_calls;
use crate::driver::code::{self, JitOptions};
use crate::driver::real;
use crate::image::Source;
use crate::memory::Name;
use crate::process::{self, Process};

/// The source from which a call loads.
enum From {
    Memory(*const c_void),
    File(*const c_char),
}

impl From {
    fn source(&self) -> Option<Source> {
        match *self {
            Self::Memory(image) => Source::memory(image as usize),
            Self::File(name) if name.is_null() => None,
            Self::File(name) => {
                // SAFETY: by the API's contract, this is a text that ends with a null byte.
                let name = unsafe { CStr::from_ptr(name) };
                Source::file(Path::new(OsStr::from_bytes(name.to_bytes())))
            }
        }
    }
}

/// The process, if it has a session, so that loaded code may count.
fn counted() -> Option<&'static Process> {
    process::current().filter(|process| process.session().is_some())
}

/// Returns the final result of a load that had `result` so far. deepres may have refused the load
/// for lack of room before the driver was asked. If the load is also PTX with errors, the caller
/// gets the code with which the driver refuses that PTX.
fn corrected(
    process: &'static Process,
    result: CUresult,
    is_asked: bool,
    source: Option<&Source>,
    jit: JitOptions,
) -> CUresult {
    if result != CUDA_ERROR_OUT_OF_MEMORY || is_asked {
        return result;
    }
    let refusal = || {
        let text = source?.ptx(code::capability(process.current_context()?.ordinal)?)?;
        let _relaxed = process.calls.beside_captures()?;
        // SAFETY: the options are the caller's, unchanged.
        unsafe { code::refusal_of_ptx(text, jit) }
    };
    refusal().unwrap_or(result)
}

fn load_module(
    api: ApiId,
    module: *mut CUmodule,
    from: From,
    jit: JitOptions,
    load: impl Fn() -> CUresult,
) -> CUresult {
    let process = counted().filter(|_| !module.is_null());
    let Some((process, context)) = process.and_then(|process| Some((process, process.current_context()?)))
    else {
        return load();
    };
    let mut is_asked = false;
    let load = || {
        is_asked = true;
        let result = load();
        // SAFETY: `module` is not null, and the driver wrote the handle if it reports success.
        (result, (result == CUDA_SUCCESS).then(|| unsafe { *module } as usize))
    };
    let unload = |handle: usize| {
        if let Some(unload) = real!(cuModuleUnload) {
            // SAFETY: the module is new, and its handle was given to nobody.
            unsafe { unload(handle as CUmodule) };
        }
        // SAFETY: the driver wrote the handle there.
        unsafe { clear(module) };
    };
    let source = from.source();
    let result = process.memory.load_module(process, (api, context), source.as_ref(), load, unload);
    corrected(process, result, is_asked, source.as_ref(), jit)
}

fn load_library(
    api: ApiId,
    library: *mut CUlibrary,
    from: From,
    jit: JitOptions,
    load: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some(process) = counted().filter(|_| !library.is_null()) else { return load() };
    let mut is_asked = false;
    let load = || {
        is_asked = true;
        let result = load();
        // SAFETY: `library` is not null, and the driver wrote the handle if it reports success.
        (result, (result == CUDA_SUCCESS).then(|| unsafe { *library } as usize))
    };
    let source = from.source();
    let result = process.memory.load_library(process, api, source.as_ref(), load);
    corrected(process, result, is_asked, source.as_ref(), jit)
}

macro_rules! loads {
    ($(
        $name:ident: $symbol:ident($what:ident: $handle:ty, $from:ident: $place:ident($type:ty) $(, $argument:ident: $other:ty)*)
        => $way:ident $(with $count:ident, $options:ident, $values:ident)?;
    )+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
        pub unsafe extern "C" fn $name($what: *mut $handle, $from: $type $(, $argument: $other)*) -> CUresult {
            let Some(real) = real!($symbol) else { return MISSING };
            let _blocked = blocked_calls::begin();
            let jit = [$(JitOptions { count: $count, options: $options, values: $values })?];
            let jit = jit.into_iter().next().unwrap_or(JitOptions::NONE);
            $way(ApiId::$symbol, $what, From::$place($from), jit, || {
                // SAFETY: the arguments are the caller's, unchanged.
                unsafe { real($what, $from $(, $argument)*) }
            })
        }
    )+};
}

loads! {
    module_file: cuModuleLoad(module: CUmodule, name: File(*const c_char)) => load_module;
    module_data: cuModuleLoadData(module: CUmodule, image: Memory(*const c_void)) => load_module;
    module_data_ex: cuModuleLoadDataEx(
        module: CUmodule, image: Memory(*const c_void), count: u32, options: *mut CUjit_option, values: *mut *mut c_void
    ) => load_module with count, options, values;
    module_fat: cuModuleLoadFatBinary(module: CUmodule, image: Memory(*const c_void)) => load_module;
    library_data: cuLibraryLoadData(
        library: CUlibrary, code: Memory(*const c_void), jit_options: *mut CUjit_option, jit_values: *mut *mut c_void, jit_count: u32,
        options: *mut CUlibraryOption, values: *mut *mut c_void, count: u32
    ) => load_library with jit_count, jit_options, jit_values;
    library_file: cuLibraryLoadFromFile(
        library: CUlibrary, name: File(*const c_char), jit_options: *mut CUjit_option, jit_values: *mut *mut c_void, jit_count: u32,
        options: *mut CUlibraryOption, values: *mut *mut c_void, count: u32
    ) => load_library with jit_count, jit_options, jit_values;
}

/// Hook of `cuModuleUnload`.
pub unsafe extern "C" fn unload_module(module: CUmodule) -> CUresult {
    let Some(real) = real!(cuModuleUnload) else { return MISSING };
    let _blocked = blocked_calls::begin();
    // SAFETY: the argument is the caller's.
    let call = || unsafe { real(module) };
    match process::current() {
        Some(process) => process.memory.free(process, Name::Module(module as u64), call),
        None => call(),
    }
}

/// Hook of `cuLibraryUnload`.
pub unsafe extern "C" fn unload_library(library: CUlibrary) -> CUresult {
    let Some(real) = real!(cuLibraryUnload) else { return MISSING };
    let _blocked = blocked_calls::begin();
    // SAFETY: the argument is the caller's.
    let call = || unsafe { real(library) };
    match process::current() {
        Some(process) => process.memory.unload_library(process, library as usize, call),
        None => call(),
    }
}
