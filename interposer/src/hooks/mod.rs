//! The functions that the process calls instead of the driver's: one for each hooked symbol, listed here alone.
//!
//! A hook translates: it reads what the ABI hands it, asks a logic module, and calls the real function with the arguments as
//! they came. Result codes pass through as they are, unknown ones too.

mod capture;
mod counted;
mod launch;
mod life;
mod lookup;
mod memory;
pub mod nvml;
mod wait;

use deepres_abi::driver::{ApiId, pfn};

/// What a hook returns for a function that no loaded driver has: nobody but us defines it, and there is nothing to call.
const MISSING: u32 = deepres_abi::driver::result::CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;

/// Where each function's hook is, by [`ApiId`]; null for what is not hooked.
struct Table([*const (); ApiId::COUNT]);

// SAFETY: the pointers are functions' addresses and never written through.
unsafe impl Sync for Table {}

/// Where the hook of `id` is, if it is hooked.
#[inline]
pub fn address(id: ApiId) -> Option<usize> {
    let function = HOOKS.0[id as usize];
    (!function.is_null()).then_some(function as usize)
}

/// Lists the hooks: `symbol => function`. The function must have the symbol's type in the driver's table. Each is exported
/// under its symbol as a jump, so that code of ours that takes a hook's address never gets another library's export.
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

    cuMemAlloc => memory::alloc_v1;
    cuMemAlloc_v2 => memory::alloc;
    cuMemAllocPitch => memory::alloc_pitch_v1;
    cuMemAllocPitch_v2 => memory::alloc_pitch;
    cuMemAllocManaged => memory::alloc_managed;
    cuMemAllocAsync => memory::alloc_async;
    cuMemAllocAsync_ptsz => memory::alloc_async_ptsz;
    cuMemAllocFromPoolAsync => memory::alloc_pool;
    cuMemAllocFromPoolAsync_ptsz => memory::alloc_pool_ptsz;
    cuMemFree => memory::free_v1;
    cuMemFree_v2 => memory::free_v2;
    cuMemFreeAsync => memory::free_async;
    cuMemFreeAsync_ptsz => memory::free_async_ptsz;
    cuMemCreate => memory::create;
    cuMemRelease => memory::release;
    cuMemMap => memory::map;
    cuMemUnmap => memory::unmap;
    cuMemRetainAllocationHandle => memory::retain;
    cuArrayCreate => memory::create_array_v1;
    cuArrayCreate_v2 => memory::create_array;
    cuArray3DCreate => memory::create_array_3d_v1;
    cuArray3DCreate_v2 => memory::create_array_3d;
    cuArrayDestroy => memory::destroy_array;
    cuMipmappedArrayCreate => memory::create_mipmapped;
    cuMipmappedArrayDestroy => memory::destroy_mipmapped;
    cuMemGetInfo => memory::info_v1;
    cuMemGetInfo_v2 => memory::info_v2;
    cuDeviceTotalMem => memory::total_v1;
    cuDeviceTotalMem_v2 => memory::total_v2;

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

    cuCtxDestroy => life::destroy_context_v1;
    cuCtxDestroy_v2 => life::destroy_context_v2;
    cuCtxDetach => life::detach_context;
    cuDevicePrimaryCtxRelease => life::release_primary;
    cuDevicePrimaryCtxRelease_v2 => life::release_primary_v2;
    cuDevicePrimaryCtxReset => life::reset_primary;
    cuDevicePrimaryCtxReset_v2 => life::reset_primary_v2;
    cuStreamDestroy => life::destroy_stream_v1;
    cuStreamDestroy_v2 => life::destroy_stream_v2;

    cuCtxSynchronize => wait::context;
    cuCtxSynchronize_v2 => wait::context_v2;
    cuStreamSynchronize => wait::stream;
    cuStreamSynchronize_ptsz => wait::stream_ptsz;
    cuEventSynchronize => wait::event;
    cuMemcpy => wait::copy;
    cuMemcpy_ptds => wait::copy_ptds;
    cuMemcpyDtoH => wait::copy_to_host_v1;
    cuMemcpyDtoH_v2 => wait::copy_to_host;
    cuMemcpyDtoH_v2_ptds => wait::copy_to_host_ptds;
    cuMemcpyDtoHAsync_v2 => wait::copy_to_host_async;
    cuMemcpyDtoHAsync_v2_ptsz => wait::copy_to_host_async_ptsz;
}
