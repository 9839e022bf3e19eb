//! The hooks: the functions that the job calls in place of the driver's functions. This module
//! lists the hook of each hooked symbol.
//!
//! A hook reads its C arguments and asks a logic module. If the module lets the call through, the
//! hook calls the real function with the same arguments. The hook then returns the driver's result
//! code unchanged, even an unknown code.

mod capture;
mod code;
mod copy;
mod counted;
mod graph;
mod graph_memory;
mod launch;
mod life;
mod lookup;
mod memory;
pub mod nvml;
mod wait;

use deepres_abi::driver::types::CUstream;
use deepres_abi::driver::{ApiId, StreamKind, pfn};

use crate::driver::calls::Stream;

/// The result of a hook if no loaded driver has the real function. Only this library defines the
/// symbol then, so there is nothing to call.
const MISSING: u32 = deepres_abi::driver::result::CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;

/// Clears the handle that the driver wrote to `place`, so that the caller keeps no dead handle. The
/// interposer has given the object back and refuses the call.
///
/// # Safety
/// The driver wrote to `place`, and all zeroes is a value of `T`.
#[cold]
unsafe fn clear<T: Copy>(place: *mut T) {
    // SAFETY: the caller guarantees that `place` may be written and that zeroes are valid there.
    unsafe { place.write(std::mem::zeroed()) };
}

/// The addresses of the hooks, by [`ApiId`]; null for functions without a hook.
struct Table([*const (); ApiId::COUNT]);

// SAFETY: the pointers are addresses of functions, and nothing is written through them.
unsafe impl Sync for Table {}

/// Returns the address of the hook of `id`, if there is a hook.
#[inline]
pub fn address(id: ApiId) -> Option<usize> {
    let function = HOOKS.0[id as usize];
    (!function.is_null()).then_some(function as usize)
}

/// A function of the driver that has a hook.
#[derive(Clone, Copy)]
struct Hooked {
    /// The function's id in the driver's table.
    api: ApiId,
    is_per_thread: bool,
}

impl Hooked {
    #[inline(always)]
    const fn new(api: ApiId, kind: StreamKind) -> Self {
        Self { api, is_per_thread: matches!(kind, StreamKind::PerThread) }
    }

    /// Returns the stream that `handle` denotes for this function. A null handle denotes the
    /// function's default stream.
    #[inline(always)]
    fn stream(self, handle: CUstream) -> Stream {
        Stream::new(handle, self.is_per_thread)
    }
}

/// Returns a closure that makes the real call of a hook, as `real_call!(symbol(arguments))`. If no
/// driver has the function, leaves the hook.
macro_rules! real_call {
    ($symbol:ident($($argument:expr),*)) => {{
        let Some(real) = crate::driver::real!($symbol) else { return crate::hooks::MISSING };
        // SAFETY: the caller owes the hook what it owes the driver's function of this name. The
        // real function has the table's type, as the hook has, and gets the caller's arguments
        // unchanged.
        move || unsafe { real($($argument),*) }
    }};
}

/// Begins a guarded hook, as `entered!(symbol(arguments))`. Returns a closure that makes the real
/// call, and a mark, which the hook keeps until its end. If no driver has the function, or the
/// thread is inside another hook, leaves the hook.
macro_rules! entered {
    ($symbol:ident($($argument:expr),*)) => {{
        let call = crate::hooks::real_call!($symbol($($argument),*));
        let Some(inside) = crate::reentry::enter() else { return call() };
        (call, inside)
    }};
}

/// Defines hooks with the signatures of the driver's table, as `[symbols] pattern |of, call|
/// body;`. Each hook has the name of its symbol. The pattern takes the arguments apart as a tuple,
/// and may leave out arguments that the body does not use. `of` is the [`Hooked`] function. `call`
/// makes the real call with the caller's arguments. The body gives the result. A module that uses
/// the macro imports the driver's types. With `unguarded:` first, the hooks also do their work
/// inside other hooks. Such hooks are those of launches and look-ups, which a library can make in a
/// call that a hook forwards to it.
macro_rules! hook {
    (unguarded: $([$($symbol:ident)+] $pattern:tt |$of:tt, $call:ident| $body:expr;)+) => {
        $($(deepres_abi::driver_function!($symbol => [crate::hooks::define_hook] unguarded $pattern |$of, $call| $body);)+)+
    };
    ($([$($symbol:ident)+] $pattern:tt |$of:tt, $call:ident| $body:expr;)+) => {
        $($(deepres_abi::driver_function!($symbol => [crate::hooks::define_hook] entered $pattern |$of, $call| $body);)+)+
    };
}

/// Defines one hook of [`hook`], from its row of the table.
macro_rules! define_hook {
    (
        $symbol:ident $stream:ident ($($argument:ident: $type:ty),*)
        $way:ident $pattern:tt |$of:tt, $call:ident| $body:expr
    ) => {
        #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
        pub unsafe extern "C" fn $symbol($($argument: $type),*) -> CUresult {
            let ($call, _inside) = crate::hooks::define_hook!(@$way $symbol($($argument),*));
            let $of = super::Hooked::new(
                deepres_abi::driver::ApiId::$symbol,
                deepres_abi::driver::StreamKind::$stream,
            );
            let $pattern = ($($argument,)*);
            $body
        }
    };
    (@entered $symbol:ident $arguments:tt) => { crate::hooks::entered!($symbol $arguments) };
    (@unguarded $symbol:ident $arguments:tt) => { (crate::hooks::real_call!($symbol $arguments), ()) };
}

use {define_hook, entered, hook, real_call};

/// Lists the hooks as `symbol => function;`. If hooks have the names of their symbols, the list may
/// also be `[module] { symbols }`. A hook must have the symbol's type in the driver's table. The
/// library exports, under each symbol, a jump to the hook. So code of this library that takes a
/// hook's address never gets the export of another library.
macro_rules! hooks {
    ($($symbol:ident => $($hook:ident)::+;)+ $([$module:ident] { $($named:ident)+ })+) => {
        static HOOKS: Table = {
            let mut table = counted::TABLE;
            $(hooks!(@enter table $symbol $($hook)::+);)+
            $($(hooks!(@enter table $named $module::$named);)+)+
            table
        };

        #[cfg_attr(test, expect(non_snake_case, reason = "exports carry the driver's names"))]
        mod exports {
            use super::*;
            $(hooks!(@export $symbol $($hook)::+);)+
            $($(hooks!(@export $named $module::$named);)+)+
        }
    };
    (@enter $table:ident $symbol:ident $($hook:ident)::+) => {{
        const FUNCTION: pfn::$symbol = $($hook)::+;
        $table.0[ApiId::$symbol as usize] = FUNCTION as *const ();
    }};
    (@export $symbol:ident $($hook:ident)::+) => {
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        // A test program must not export these symbols, because its own calls must reach the
        // driver.
        #[cfg_attr(test, unsafe(export_name = concat!("hook_", stringify!($symbol))))]
        pub unsafe extern "C" fn $symbol() {
            std::arch::naked_asm!("endbr64", "jmp {}", sym $($hook)::+)
        }
    };
}

hooks! {
    cuInit => life::init;

    cuMemAlloc => memory::alloc_v1;
    cuMemAlloc_v2 => memory::alloc;
    cuMemAllocPitch => memory::alloc_pitch_v1;
    cuMemAllocPitch_v2 => memory::alloc_pitch;
    cuMemAllocManaged => memory::alloc_managed;
    cuMemAllocAsync => memory::alloc_async;
    cuMemAllocAsync_ptsz => memory::alloc_async_ptsz;
    cuMemAllocFromPoolAsync => memory::alloc_pool;
    cuMemAllocFromPoolAsync_ptsz => memory::alloc_pool_ptsz;
    cuGraphUpload => graph_memory::upload;
    cuGraphUpload_ptsz => graph_memory::upload_ptsz;
    cuGraphInstantiate => graph_memory::instantiate_v1;
    cuGraphInstantiate_v2 => graph_memory::instantiate_v2;
    cuGraphInstantiateWithFlags => graph_memory::instantiate_with_flags;
    cuGraphInstantiateWithParams => graph_memory::instantiate_with_params;
    cuGraphInstantiateWithParams_ptsz => graph_memory::instantiate_with_params_ptsz;
    cuGraphExecDestroy => graph_memory::destroy_exec;
    cuGraphDestroy => graph_memory::destroy;
    cuGraphAddMemAllocNode => graph_memory::add_allocation;
    cuGraphAddNode => graph_memory::add_v1;
    cuGraphAddNode_v2 => graph_memory::add_v2;
    cuGraphAddNode_v3 => graph_memory::add_v3;

    cuMemPoolCreate => memory::create_pool;
    cuMemGetDefaultMemPool => memory::default_pool;
    cuMemGetMemPool => memory::present_pool;
    cuMemPoolDestroy => memory::destroy_pool;
    cuMemPoolTrimTo => memory::trim_pool;
    cuMemPoolImportFromShareableHandle => memory::import_pool;
    cuDeviceGraphMemTrim => memory::trim_graphs;
    cuMemFree => memory::free_v1;
    cuMemFree_v2 => memory::free_v2;
    cuMemFreeAsync => memory::free_async;
    cuMemFreeAsync_ptsz => memory::free_async_ptsz;
    cuMemCreate => memory::create;
    cuMemRelease => memory::release;
    cuMemMap => memory::map;
    cuMemUnmap => memory::unmap;
    cuMemRetainAllocationHandle => memory::retain;
    cuMemExportToShareableHandle => memory::export;
    cuMemImportFromShareableHandle => memory::import;
    cuArrayCreate => memory::create_array_v1;
    cuArrayCreate_v2 => memory::create_array;
    cuArray3DCreate => memory::create_array_3d_v1;
    cuArray3DCreate_v2 => memory::create_array_3d;
    cuArrayDestroy => memory::destroy_array;
    cuMipmappedArrayCreate => memory::create_mipmapped;
    cuMipmappedArrayDestroy => memory::destroy_mipmapped;
    cuMemMapArrayAsync => memory::map_array_async;
    cuMemMapArrayAsync_ptsz => memory::map_array_async_ptsz;
    cuMemGetInfo => memory::info_v1;
    cuMemGetInfo_v2 => memory::info_v2;
    cuDeviceTotalMem => memory::total_v1;
    cuDeviceTotalMem_v2 => memory::total_v2;

    cuModuleLoad => code::module_file;
    cuModuleLoadData => code::module_data;
    cuModuleLoadDataEx => code::module_data_ex;
    cuModuleLoadFatBinary => code::module_fat;
    cuModuleUnload => code::unload_module;
    cuLibraryLoadData => code::library_data;
    cuLibraryLoadFromFile => code::library_file;
    cuLibraryUnload => code::unload_library;

    cuCtxCreate => life::create_context_v1;
    cuCtxCreate_v2 => life::create_context_v2;
    cuCtxCreate_v3 => life::create_context_v3;
    cuCtxCreate_v4 => life::create_context_v4;
    cuGLCtxCreate => life::create_gl_context_v1;
    cuGLCtxCreate_v2 => life::create_gl_context_v2;
    cuVDPAUCtxCreate => life::create_vdpau_context_v1;
    cuVDPAUCtxCreate_v2 => life::create_vdpau_context_v2;
    cuDevicePrimaryCtxRetain => life::retain_primary;
    cuCtxDestroy => life::destroy_context_v1;
    cuCtxDestroy_v2 => life::destroy_context_v2;
    cuCtxAttach => life::attach_context;
    cuCtxDetach => life::detach_context;
    cuDevicePrimaryCtxRelease => life::release_primary;
    cuDevicePrimaryCtxRelease_v2 => life::release_primary_v2;
    cuDevicePrimaryCtxReset => life::reset_primary;
    cuDevicePrimaryCtxReset_v2 => life::reset_primary_v2;
    cuGreenCtxCreate => life::create_green;
    cuGreenCtxDestroy => life::destroy_green;
    cuStreamDestroy => life::destroy_stream_v1;
    cuStreamDestroy_v2 => life::destroy_stream_v2;

    [lookup] {
        cuGetProcAddress cuGetProcAddress_v2 cuGetExportTable
    }

    [launch] {
        cuLaunchKernel cuLaunchKernel_ptsz cuLaunchKernelEx cuLaunchKernelEx_ptsz
        cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz
        cuLaunchCooperativeKernelMultiDevice cuLaunch cuLaunchGrid cuLaunchGridAsync cuGraphLaunch
        cuGraphLaunch_ptsz
    }

    [graph] {
        cuGraphConditionalHandleCreate cuGraphExecUpdate cuGraphExecUpdate_v2
        cuGraphExecNodeSetParams cuGraphExecKernelNodeSetParams cuGraphExecKernelNodeSetParams_v2
        cuGraphExecMemcpyNodeSetParams cuGraphExecMemsetNodeSetParams
        cuGraphExecChildGraphNodeSetParams cuGraphNodeSetEnabled
    }

    [capture] {
        cuStreamBeginCapture cuStreamBeginCapture_ptsz cuStreamBeginCapture_v2
        cuStreamBeginCapture_v2_ptsz cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz
        cuStreamBeginRecaptureToGraph cuStreamBeginRecaptureToGraph_ptsz cuStreamBeginCaptureToCig
        cuStreamBeginCaptureToCig_ptsz cuStreamEndCapture cuStreamEndCapture_ptsz
        cuStreamEndCaptureToCig cuStreamEndCaptureToCig_ptsz
    }

    [wait] {
        cuCtxSynchronize cuCtxSynchronize_v2 cuStreamSynchronize cuStreamSynchronize_ptsz
        cuEventSynchronize cuStreamWaitEvent cuStreamWaitEvent_ptsz cuCtxWaitEvent
        cuGreenCtxWaitEvent cuStreamWaitValue32 cuStreamWaitValue32_ptsz cuStreamWaitValue32_v2
        cuStreamWaitValue32_v2_ptsz cuStreamWaitValue64 cuStreamWaitValue64_ptsz
        cuStreamWaitValue64_v2 cuStreamWaitValue64_v2_ptsz cuStreamBatchMemOp
        cuStreamBatchMemOp_ptsz cuStreamBatchMemOp_v2 cuStreamBatchMemOp_v2_ptsz cuLaunchHostFunc
        cuLaunchHostFunc_ptsz cuLaunchHostFunc_v2 cuLaunchHostFunc_v2_ptsz cuStreamAddCallback
        cuStreamAddCallback_ptsz
    }

    [copy] {
        cuMemPrefetchAsync cuMemPrefetchAsync_ptsz cuMemPrefetchAsync_v2 cuMemPrefetchAsync_v2_ptsz
        cuMemPrefetchBatchAsync cuMemPrefetchBatchAsync_ptsz cuMemcpy cuMemcpy2D cuMemcpy2DAsync
        cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz cuMemcpy2DUnaligned cuMemcpy2DUnaligned_v2
        cuMemcpy2DUnaligned_v2_ptds cuMemcpy2D_v2 cuMemcpy2D_v2_ptds cuMemcpy3D cuMemcpy3DAsync
        cuMemcpy3DAsync_v2 cuMemcpy3DAsync_v2_ptsz cuMemcpy3DBatchAsync cuMemcpy3DBatchAsync_ptsz
        cuMemcpy3DBatchAsync_v2 cuMemcpy3DBatchAsync_v2_ptsz cuMemcpy3DPeer cuMemcpy3DPeerAsync
        cuMemcpy3DPeerAsync_ptsz cuMemcpy3DPeer_ptds cuMemcpy3DWithAttributesAsync
        cuMemcpy3DWithAttributesAsync_ptsz cuMemcpy3D_v2 cuMemcpy3D_v2_ptds cuMemcpyAsync
        cuMemcpyAsync_ptsz cuMemcpyAtoA cuMemcpyAtoA_v2 cuMemcpyAtoA_v2_ptds cuMemcpyAtoD
        cuMemcpyAtoD_v2 cuMemcpyAtoD_v2_ptds cuMemcpyAtoH cuMemcpyAtoHAsync cuMemcpyAtoHAsync_v2
        cuMemcpyAtoHAsync_v2_ptsz cuMemcpyAtoH_v2 cuMemcpyAtoH_v2_ptds cuMemcpyBatchAsync
        cuMemcpyBatchAsync_ptsz cuMemcpyBatchAsync_v2 cuMemcpyBatchAsync_v2_ptsz cuMemcpyDtoA
        cuMemcpyDtoA_v2 cuMemcpyDtoA_v2_ptds cuMemcpyDtoD cuMemcpyDtoDAsync cuMemcpyDtoDAsync_v2
        cuMemcpyDtoDAsync_v2_ptsz cuMemcpyDtoD_v2 cuMemcpyDtoD_v2_ptds cuMemcpyDtoH
        cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2 cuMemcpyDtoHAsync_v2_ptsz cuMemcpyDtoH_v2
        cuMemcpyDtoH_v2_ptds cuMemcpyHtoA cuMemcpyHtoAAsync cuMemcpyHtoAAsync_v2
        cuMemcpyHtoAAsync_v2_ptsz cuMemcpyHtoA_v2 cuMemcpyHtoA_v2_ptds cuMemcpyHtoD
        cuMemcpyHtoDAsync cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2_ptsz cuMemcpyHtoD_v2
        cuMemcpyHtoD_v2_ptds cuMemcpyPeer cuMemcpyPeerAsync cuMemcpyPeerAsync_ptsz cuMemcpyPeer_ptds
        cuMemcpyWithAttributesAsync cuMemcpyWithAttributesAsync_ptsz cuMemcpy_ptds cuMemsetD16
        cuMemsetD16Async cuMemsetD16Async_ptsz cuMemsetD16_v2 cuMemsetD16_v2_ptds cuMemsetD2D16
        cuMemsetD2D16Async cuMemsetD2D16Async_ptsz cuMemsetD2D16_v2 cuMemsetD2D16_v2_ptds
        cuMemsetD2D32 cuMemsetD2D32Async cuMemsetD2D32Async_ptsz cuMemsetD2D32_v2
        cuMemsetD2D32_v2_ptds cuMemsetD2D8 cuMemsetD2D8Async cuMemsetD2D8Async_ptsz cuMemsetD2D8_v2
        cuMemsetD2D8_v2_ptds cuMemsetD32 cuMemsetD32Async cuMemsetD32Async_ptsz cuMemsetD32_v2
        cuMemsetD32_v2_ptds cuMemsetD8 cuMemsetD8Async cuMemsetD8Async_ptsz cuMemsetD8_v2
        cuMemsetD8_v2_ptds
    }
}

#[cfg(test)]
mod tests {
    use deepres_abi::forwarded;

    use super::*;

    #[test]
    fn each_function_is_hooked_or_counted_or_forwarded_for_a_reason() {
        let is_placed = |id: ApiId| address(id).is_some() != forwarded::reason(id).is_some();
        let astray: Vec<&str> =
            ApiId::ALL.into_iter().filter(|id| !is_placed(*id)).map(ApiId::symbol).collect();
        assert!(astray.is_empty(), "in no class, or in two: {astray:?}");
    }

    #[test]
    fn a_function_that_makes_contexts_or_waits_or_takes_memory_does_not_pass_as_a_setting() {
        for id in [
            ApiId::cuVDPAUCtxCreate,
            ApiId::cuVDPAUCtxCreate_v2,
            ApiId::cuCtxWaitEvent,
            ApiId::cuGreenCtxWaitEvent,
            ApiId::cuCtxSetLimit,
        ] {
            assert!(address(id).is_some(), "{}", id.symbol());
        }
    }
}
