//! Hooks of the calls that load and unload code. Code takes memory of the GPU.

use deepres_abi::driver::ApiId;
use deepres_abi::driver::types::{
    CUjit_option, CUlibrary, CUlibraryOption, CUmodule, CUresult, c_char, c_void,
};

use super::entered;
use super::memory::give_back;
use crate::blocked_calls;
use crate::driver::real;
use crate::meter::context::ContextState;
use crate::process::{self, Process};

/// Loads code by `load`, and returns the result. If deepres refuses the memory afterwards, `unload`
/// unloads the code again.
fn load(api: ApiId, load: impl FnOnce() -> CUresult, unload: impl FnOnce()) -> CUresult {
    let _blocked = blocked_calls::begin();
    match current() {
        Some((process, context)) => process.memory.load_code(process, (api, context), load, unload),
        None => load(),
    }
}

fn current() -> Option<(&'static Process, &'static ContextState)> {
    let process = process::current()?;
    Some((process, process.current_context()?))
}

macro_rules! loads {
    ($(
        $name:ident: $symbol:ident($what:ident: $handle:ty $(, $argument:ident: $type:ty)*), $unload:ident;
    )+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
        pub unsafe extern "C" fn $name($what: *mut $handle $(, $argument: $type)*) -> CUresult {
            let (call, _inside) = entered!($symbol($what $(, $argument)*));
            let unload = || {
                let unload = real!($unload);
                // SAFETY: the driver wrote the handle, because it reported success.
                unsafe { give_back($what, unload) }
            };
            load(ApiId::$symbol, call, unload)
        }
    )+};
}

loads! {
    module_file: cuModuleLoad(module: CUmodule, name: *const c_char), cuModuleUnload;
    module_data: cuModuleLoadData(module: CUmodule, image: *const c_void), cuModuleUnload;
    module_data_ex: cuModuleLoadDataEx(
        module: CUmodule, image: *const c_void, count: u32, options: *mut CUjit_option, values: *mut *mut c_void
    ), cuModuleUnload;
    module_fat: cuModuleLoadFatBinary(module: CUmodule, image: *const c_void), cuModuleUnload;
    library_data: cuLibraryLoadData(
        library: CUlibrary, code: *const c_void, jit_options: *mut CUjit_option, jit_values: *mut *mut c_void,
        jit_count: u32, options: *mut CUlibraryOption, values: *mut *mut c_void, count: u32
    ), cuLibraryUnload;
    library_file: cuLibraryLoadFromFile(
        library: CUlibrary, name: *const c_char, jit_options: *mut CUjit_option, jit_values: *mut *mut c_void,
        jit_count: u32, options: *mut CUlibraryOption, values: *mut *mut c_void, count: u32
    ), cuLibraryUnload;
}

macro_rules! unloads {
    ($($name:ident: $symbol:ident($what:ident: $handle:ty);)+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
        pub unsafe extern "C" fn $name($what: $handle) -> CUresult {
            let (call, _inside) = entered!($symbol($what));
            let _blocked = blocked_calls::begin();
            match current() {
                Some((process, context)) => process.memory.unload_code(process, context, call),
                None => call(),
            }
        }
    )+};
}

unloads! {
    unload_module: cuModuleUnload(module: CUmodule);
    unload_library: cuLibraryUnload(library: CUlibrary);
}
