//! The functions that the process calls instead of the driver's functions. There is one for each
//! hooked symbol, and all are listed here.
//!
//! A hook translates: it reads its C arguments, asks a logic module, and calls the real function
//! with the same arguments. Every result code passes through unchanged, unknown codes included.

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

use deepres_abi::driver::{ApiId, pfn};

/// Result of a hook whose real function no loaded driver has. Only this library defines the symbol
/// then, so there is nothing to call.
const MISSING: u32 = deepres_abi::driver::result::CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;

/// Clears the handle that the driver wrote to `place`, because the interposer gave the object back
/// and refuses the call. So the caller keeps no dead handle.
///
/// # Safety
/// The driver wrote there, and all zeroes is a value of `T`.
#[cold]
unsafe fn clear<T: Copy>(place: *mut T) {
    // SAFETY: the caller guarantees both.
    unsafe { place.write(std::mem::zeroed()) };
}

/// Addresses of the hooks, by [`ApiId`]; null for functions without a hook.
struct Table([*const (); ApiId::COUNT]);

// SAFETY: the pointers are addresses of functions, and nothing is written through them.
unsafe impl Sync for Table {}

/// Address of the hook of `id`, if there is one.
#[inline]
pub fn address(id: ApiId) -> Option<usize> {
    let function = HOOKS.0[id as usize];
    (!function.is_null()).then_some(function as usize)
}

/// Lists the hooks as `symbol => function`. The function must have the symbol's type in the
/// driver's table. Each hook is exported under its symbol as a jump. So code of this library that
/// takes a hook's address never gets the export of another library.
macro_rules! hooks {
    ($($symbol:ident => $($hook:ident)::+;)+) => {
        static HOOKS: Table = {
            let mut table = counted::TABLE;
            $({
                const FUNCTION: pfn::$symbol = $($hook)::+;
                table.0[ApiId::$symbol as usize] = FUNCTION as *const ();
            })+
            table
        };

        #[cfg_attr(test, expect(non_snake_case, reason = "exports carry the driver's names"))]
        mod exports {
            use super::*;
            $(
                #[unsafe(naked)]
                #[cfg_attr(not(test), unsafe(no_mangle))]
                // A test program must not stand between itself and the driver.
                #[cfg_attr(test, unsafe(export_name = concat!("hook_", stringify!($symbol))))]
                pub unsafe extern "C" fn $symbol() {
                    std::arch::naked_asm!("endbr64", "jmp {}", sym $($hook)::+)
                }
            )+
        }
    };
}

hooks! {
    cuInit => life::init;
    cuGetProcAddress => lookup::get_proc_address;
    cuGetProcAddress_v2 => lookup::get_proc_address_v2;
    cuGetExportTable => lookup::get_export_table;

    cuLaunchKernel => launch::kernel;
    cuLaunchKernel_ptsz => launch::kernel_ptsz;
    cuLaunchKernelEx => launch::kernel_ex;
    cuLaunchKernelEx_ptsz => launch::kernel_ex_ptsz;
    cuLaunchCooperativeKernel => launch::cooperative;
    cuLaunchCooperativeKernel_ptsz => launch::cooperative_ptsz;
    cuLaunchCooperativeKernelMultiDevice => launch::cooperative_multi;
    cuLaunch => launch::oldest;
    cuLaunchGrid => launch::oldest_grid;
    cuLaunchGridAsync => launch::oldest_grid_async;
    cuGraphLaunch => launch::graph;
    cuGraphLaunch_ptsz => launch::graph_ptsz;
    cuGraphConditionalHandleCreate => graph::create_condition;
    cuGraphExecUpdate => graph::update;
    cuGraphExecUpdate_v2 => graph::update_v2;
    cuGraphExecNodeSetParams => graph::set_node;
    cuGraphExecKernelNodeSetParams => graph::set_kernel_v1;
    cuGraphExecKernelNodeSetParams_v2 => graph::set_kernel;
    cuGraphExecMemcpyNodeSetParams => graph::set_copy;
    cuGraphExecMemsetNodeSetParams => graph::set_fill;
    cuGraphExecChildGraphNodeSetParams => graph::set_child;
    cuGraphNodeSetEnabled => graph::set_enabled;

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

    cuStreamBeginCapture => capture::begin_v1;
    cuStreamBeginCapture_ptsz => capture::begin_v1_ptsz;
    cuStreamBeginCapture_v2 => capture::begin_v2;
    cuStreamBeginCapture_v2_ptsz => capture::begin_v2_ptsz;
    cuStreamBeginCaptureToGraph => capture::begin_to_graph;
    cuStreamBeginCaptureToGraph_ptsz => capture::begin_to_graph_ptsz;
    cuStreamBeginRecaptureToGraph => capture::begin_recapture;
    cuStreamBeginRecaptureToGraph_ptsz => capture::begin_recapture_ptsz;
    cuStreamBeginCaptureToCig => capture::begin_to_cig;
    cuStreamBeginCaptureToCig_ptsz => capture::begin_to_cig_ptsz;
    cuStreamEndCapture => capture::end_v1;
    cuStreamEndCapture_ptsz => capture::end_v1_ptsz;
    cuStreamEndCaptureToCig => capture::end_to_cig;
    cuStreamEndCaptureToCig_ptsz => capture::end_to_cig_ptsz;

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
    cuGreenCtxDestroy => life::destroy_green;
    cuStreamDestroy => life::destroy_stream_v1;
    cuStreamDestroy_v2 => life::destroy_stream_v2;

    cuCtxSynchronize => wait::context;
    cuCtxSynchronize_v2 => wait::context_v2;
    cuStreamSynchronize => wait::stream;
    cuStreamSynchronize_ptsz => wait::stream_ptsz;
    cuEventSynchronize => wait::event;

    cuStreamWaitEvent => wait::stream_wait_event;
    cuStreamWaitEvent_ptsz => wait::stream_wait_event_ptsz;
    cuCtxWaitEvent => wait::context_wait_event;
    cuGreenCtxWaitEvent => wait::green_wait_event;
    cuStreamWaitValue32 => wait::stream_wait_32_v1;
    cuStreamWaitValue32_ptsz => wait::stream_wait_32_v1_ptsz;
    cuStreamWaitValue32_v2 => wait::stream_wait_32;
    cuStreamWaitValue32_v2_ptsz => wait::stream_wait_32_ptsz;
    cuStreamWaitValue64 => wait::stream_wait_64_v1;
    cuStreamWaitValue64_ptsz => wait::stream_wait_64_v1_ptsz;
    cuStreamWaitValue64_v2 => wait::stream_wait_64;
    cuStreamWaitValue64_v2_ptsz => wait::stream_wait_64_ptsz;
    cuStreamBatchMemOp => wait::batch_v1;
    cuStreamBatchMemOp_ptsz => wait::batch_v1_ptsz;
    cuStreamBatchMemOp_v2 => wait::batch;
    cuStreamBatchMemOp_v2_ptsz => wait::batch_ptsz;
    cuLaunchHostFunc => wait::host_function_v1;
    cuLaunchHostFunc_ptsz => wait::host_function_v1_ptsz;
    cuLaunchHostFunc_v2 => wait::host_function;
    cuLaunchHostFunc_v2_ptsz => wait::host_function_ptsz;
    cuStreamAddCallback => wait::callback;
    cuStreamAddCallback_ptsz => wait::callback_ptsz;

    cuMemPrefetchAsync => copy::cuMemPrefetchAsync;
    cuMemPrefetchAsync_ptsz => copy::cuMemPrefetchAsync_ptsz;
    cuMemPrefetchAsync_v2 => copy::cuMemPrefetchAsync_v2;
    cuMemPrefetchAsync_v2_ptsz => copy::cuMemPrefetchAsync_v2_ptsz;
    cuMemPrefetchBatchAsync => copy::cuMemPrefetchBatchAsync;
    cuMemPrefetchBatchAsync_ptsz => copy::cuMemPrefetchBatchAsync_ptsz;
    cuMemcpy => copy::cuMemcpy;
    cuMemcpy2D => copy::cuMemcpy2D;
    cuMemcpy2DAsync => copy::cuMemcpy2DAsync;
    cuMemcpy2DAsync_v2 => copy::cuMemcpy2DAsync_v2;
    cuMemcpy2DAsync_v2_ptsz => copy::cuMemcpy2DAsync_v2_ptsz;
    cuMemcpy2DUnaligned => copy::cuMemcpy2DUnaligned;
    cuMemcpy2DUnaligned_v2 => copy::cuMemcpy2DUnaligned_v2;
    cuMemcpy2DUnaligned_v2_ptds => copy::cuMemcpy2DUnaligned_v2_ptds;
    cuMemcpy2D_v2 => copy::cuMemcpy2D_v2;
    cuMemcpy2D_v2_ptds => copy::cuMemcpy2D_v2_ptds;
    cuMemcpy3D => copy::cuMemcpy3D;
    cuMemcpy3DAsync => copy::cuMemcpy3DAsync;
    cuMemcpy3DAsync_v2 => copy::cuMemcpy3DAsync_v2;
    cuMemcpy3DAsync_v2_ptsz => copy::cuMemcpy3DAsync_v2_ptsz;
    cuMemcpy3DBatchAsync => copy::cuMemcpy3DBatchAsync;
    cuMemcpy3DBatchAsync_ptsz => copy::cuMemcpy3DBatchAsync_ptsz;
    cuMemcpy3DBatchAsync_v2 => copy::cuMemcpy3DBatchAsync_v2;
    cuMemcpy3DBatchAsync_v2_ptsz => copy::cuMemcpy3DBatchAsync_v2_ptsz;
    cuMemcpy3DPeer => copy::cuMemcpy3DPeer;
    cuMemcpy3DPeerAsync => copy::cuMemcpy3DPeerAsync;
    cuMemcpy3DPeerAsync_ptsz => copy::cuMemcpy3DPeerAsync_ptsz;
    cuMemcpy3DPeer_ptds => copy::cuMemcpy3DPeer_ptds;
    cuMemcpy3DWithAttributesAsync => copy::cuMemcpy3DWithAttributesAsync;
    cuMemcpy3DWithAttributesAsync_ptsz => copy::cuMemcpy3DWithAttributesAsync_ptsz;
    cuMemcpy3D_v2 => copy::cuMemcpy3D_v2;
    cuMemcpy3D_v2_ptds => copy::cuMemcpy3D_v2_ptds;
    cuMemcpyAsync => copy::cuMemcpyAsync;
    cuMemcpyAsync_ptsz => copy::cuMemcpyAsync_ptsz;
    cuMemcpyAtoA => copy::cuMemcpyAtoA;
    cuMemcpyAtoA_v2 => copy::cuMemcpyAtoA_v2;
    cuMemcpyAtoA_v2_ptds => copy::cuMemcpyAtoA_v2_ptds;
    cuMemcpyAtoD => copy::cuMemcpyAtoD;
    cuMemcpyAtoD_v2 => copy::cuMemcpyAtoD_v2;
    cuMemcpyAtoD_v2_ptds => copy::cuMemcpyAtoD_v2_ptds;
    cuMemcpyAtoH => copy::cuMemcpyAtoH;
    cuMemcpyAtoHAsync => copy::cuMemcpyAtoHAsync;
    cuMemcpyAtoHAsync_v2 => copy::cuMemcpyAtoHAsync_v2;
    cuMemcpyAtoHAsync_v2_ptsz => copy::cuMemcpyAtoHAsync_v2_ptsz;
    cuMemcpyAtoH_v2 => copy::cuMemcpyAtoH_v2;
    cuMemcpyAtoH_v2_ptds => copy::cuMemcpyAtoH_v2_ptds;
    cuMemcpyBatchAsync => copy::cuMemcpyBatchAsync;
    cuMemcpyBatchAsync_ptsz => copy::cuMemcpyBatchAsync_ptsz;
    cuMemcpyBatchAsync_v2 => copy::cuMemcpyBatchAsync_v2;
    cuMemcpyBatchAsync_v2_ptsz => copy::cuMemcpyBatchAsync_v2_ptsz;
    cuMemcpyDtoA => copy::cuMemcpyDtoA;
    cuMemcpyDtoA_v2 => copy::cuMemcpyDtoA_v2;
    cuMemcpyDtoA_v2_ptds => copy::cuMemcpyDtoA_v2_ptds;
    cuMemcpyDtoD => copy::cuMemcpyDtoD;
    cuMemcpyDtoDAsync => copy::cuMemcpyDtoDAsync;
    cuMemcpyDtoDAsync_v2 => copy::cuMemcpyDtoDAsync_v2;
    cuMemcpyDtoDAsync_v2_ptsz => copy::cuMemcpyDtoDAsync_v2_ptsz;
    cuMemcpyDtoD_v2 => copy::cuMemcpyDtoD_v2;
    cuMemcpyDtoD_v2_ptds => copy::cuMemcpyDtoD_v2_ptds;
    cuMemcpyDtoH => copy::cuMemcpyDtoH;
    cuMemcpyDtoHAsync => copy::cuMemcpyDtoHAsync;
    cuMemcpyDtoHAsync_v2 => copy::cuMemcpyDtoHAsync_v2;
    cuMemcpyDtoHAsync_v2_ptsz => copy::cuMemcpyDtoHAsync_v2_ptsz;
    cuMemcpyDtoH_v2 => copy::cuMemcpyDtoH_v2;
    cuMemcpyDtoH_v2_ptds => copy::cuMemcpyDtoH_v2_ptds;
    cuMemcpyHtoA => copy::cuMemcpyHtoA;
    cuMemcpyHtoAAsync => copy::cuMemcpyHtoAAsync;
    cuMemcpyHtoAAsync_v2 => copy::cuMemcpyHtoAAsync_v2;
    cuMemcpyHtoAAsync_v2_ptsz => copy::cuMemcpyHtoAAsync_v2_ptsz;
    cuMemcpyHtoA_v2 => copy::cuMemcpyHtoA_v2;
    cuMemcpyHtoA_v2_ptds => copy::cuMemcpyHtoA_v2_ptds;
    cuMemcpyHtoD => copy::cuMemcpyHtoD;
    cuMemcpyHtoDAsync => copy::cuMemcpyHtoDAsync;
    cuMemcpyHtoDAsync_v2 => copy::cuMemcpyHtoDAsync_v2;
    cuMemcpyHtoDAsync_v2_ptsz => copy::cuMemcpyHtoDAsync_v2_ptsz;
    cuMemcpyHtoD_v2 => copy::cuMemcpyHtoD_v2;
    cuMemcpyHtoD_v2_ptds => copy::cuMemcpyHtoD_v2_ptds;
    cuMemcpyPeer => copy::cuMemcpyPeer;
    cuMemcpyPeerAsync => copy::cuMemcpyPeerAsync;
    cuMemcpyPeerAsync_ptsz => copy::cuMemcpyPeerAsync_ptsz;
    cuMemcpyPeer_ptds => copy::cuMemcpyPeer_ptds;
    cuMemcpyWithAttributesAsync => copy::cuMemcpyWithAttributesAsync;
    cuMemcpyWithAttributesAsync_ptsz => copy::cuMemcpyWithAttributesAsync_ptsz;
    cuMemcpy_ptds => copy::cuMemcpy_ptds;
    cuMemsetD16 => copy::cuMemsetD16;
    cuMemsetD16Async => copy::cuMemsetD16Async;
    cuMemsetD16Async_ptsz => copy::cuMemsetD16Async_ptsz;
    cuMemsetD16_v2 => copy::cuMemsetD16_v2;
    cuMemsetD16_v2_ptds => copy::cuMemsetD16_v2_ptds;
    cuMemsetD2D16 => copy::cuMemsetD2D16;
    cuMemsetD2D16Async => copy::cuMemsetD2D16Async;
    cuMemsetD2D16Async_ptsz => copy::cuMemsetD2D16Async_ptsz;
    cuMemsetD2D16_v2 => copy::cuMemsetD2D16_v2;
    cuMemsetD2D16_v2_ptds => copy::cuMemsetD2D16_v2_ptds;
    cuMemsetD2D32 => copy::cuMemsetD2D32;
    cuMemsetD2D32Async => copy::cuMemsetD2D32Async;
    cuMemsetD2D32Async_ptsz => copy::cuMemsetD2D32Async_ptsz;
    cuMemsetD2D32_v2 => copy::cuMemsetD2D32_v2;
    cuMemsetD2D32_v2_ptds => copy::cuMemsetD2D32_v2_ptds;
    cuMemsetD2D8 => copy::cuMemsetD2D8;
    cuMemsetD2D8Async => copy::cuMemsetD2D8Async;
    cuMemsetD2D8Async_ptsz => copy::cuMemsetD2D8Async_ptsz;
    cuMemsetD2D8_v2 => copy::cuMemsetD2D8_v2;
    cuMemsetD2D8_v2_ptds => copy::cuMemsetD2D8_v2_ptds;
    cuMemsetD32 => copy::cuMemsetD32;
    cuMemsetD32Async => copy::cuMemsetD32Async;
    cuMemsetD32Async_ptsz => copy::cuMemsetD32Async_ptsz;
    cuMemsetD32_v2 => copy::cuMemsetD32_v2;
    cuMemsetD32_v2_ptds => copy::cuMemsetD32_v2_ptds;
    cuMemsetD8 => copy::cuMemsetD8;
    cuMemsetD8Async => copy::cuMemsetD8Async;
    cuMemsetD8Async_ptsz => copy::cuMemsetD8Async_ptsz;
    cuMemsetD8_v2 => copy::cuMemsetD8_v2;
    cuMemsetD8_v2_ptds => copy::cuMemsetD8_v2_ptds;
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
    fn what_makes_contexts_or_waits_or_takes_memory_does_not_pass_as_a_setting() {
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
