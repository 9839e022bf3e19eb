//! The driver functions for contexts.
use std::ffi::c_void;

use deepres_abi::driver::types::*;

use crate::process::{self, gpu_of};
use crate::status::{self, Result};
use crate::stream::PRIORITIES;
use crate::{context, event};

/// `CUctxCreateParams`. The objects that its pointers can name are not modelled.
#[repr(C)]
#[derive(Clone, Copy)]
struct CreateParams {
    exec_affinity: *const c_void,
    exec_affinity_count: i32,
    cig: *const c_void,
}

fn create(pctx: *mut CUcontext, flags: u32, dev: CUdevice) -> Result<()> {
    status::refuse(pctx.is_null())?;
    let handle = context::create(dev, flags)?;
    give!(pctx, handle as CUcontext);
    Ok(())
}

calls! {
    cuCtxCreate_v2(pctx, flags, dev) { create(pctx, flags, dev)? }
    cuCtxCreate_v3(pctx, paramsArray, numParams, flags, dev) {
        status::refuse_as(!paramsArray.is_null() || numParams != 0, status::UNSUPPORTED_EXEC_AFFINITY)?;
        create(pctx, flags, dev)?;
    }
    cuCtxCreate_v4(pctx, ctxCreateParams, flags, dev) {
        if !ctxCreateParams.is_null() {
            let params = read!(ctxCreateParams.cast::<CreateParams>());
            if !params.exec_affinity.is_null() || params.exec_affinity_count != 0 {
                return Err(status::UNSUPPORTED_EXEC_AFFINITY);
            }
            if !params.cig.is_null() {
                return Err(status::NOT_SUPPORTED);
            }
        }
        create(pctx, flags, dev)?;
    }
    cuCtxDestroy | cuCtxDestroy_v2(ctx) { context::destroy(ctx as usize)? }
    cuCtxAttach(pctx, flags) {
        status::refuse(pctx.is_null() || flags != 0)?;
        give!(pctx, context::attach()? as CUcontext);
    }
    cuCtxDetach(ctx) { context::detach(ctx as usize)? }
    cuCtxPushCurrent | cuCtxPushCurrent_v2(ctx) { context::push(ctx as usize)? }
}

calls! {
    cuCtxPopCurrent | cuCtxPopCurrent_v2(pctx) {
        let handle = context::pop()?;
        give_if_wanted!(pctx, handle as CUcontext);
    }
    cuCtxSetCurrent(ctx) { context::set_current(ctx as usize)? }
    cuCtxGetCurrent(pctx) { give!(pctx, context::current_handle() as CUcontext) }
    cuCtxGetDevice(device) { give!(device, context::current()?.device) }
    cuCtxGetDevice_v2(device, ctx) { give!(device, named_or_current(ctx)?.device) }
}

fn named_or_current(ctx: CUcontext) -> Result<std::sync::Arc<context::Context>> {
    if ctx.is_null() { context::current() } else { context::by_handle(ctx as usize) }
}

calls! {
    cuCtxGetFlags(flags) { give!(flags, context::current()?.flags()) }
    cuCtxSetFlags(flags) { context::current()?.set_flags(flags)? }
    cuCtxGetId(ctx, ctxId) { give!(ctxId, named_or_current(ctx)?.id) }
    cuCtxGetApiVersion(ctx, version) { give!(version, named_or_current(ctx)?.api_version()) }
    cuCtxSynchronize() { context::current()?.synchronize()? }
    cuCtxSynchronize_v2(ctx) { named_or_current(ctx)?.synchronize()? }
    cuCtxWaitEvent(hCtx, hEvent) {
        event::wait_in_context(&context::by_handle(hCtx as usize)?, &event::by_handle(hEvent as usize)?)?;
    }
    cuCtxGetLimit(pvalue, limit) { give!(pvalue, context::current()?.limit(limit)?) }
    cuCtxSetLimit(limit, value) { context::current()?.set_limit(limit, value)? }
    cuCtxGetCacheConfig(pconfig) { give!(pconfig, context::current()?.cache_config()) }
    cuCtxSetCacheConfig(config) { context::current()?.set_cache_config(config)? }
    cuCtxGetSharedMemConfig(pConfig) {
        context::current()?;
        give!(pConfig, CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE);
    }
    // Checks the value only, because every GPU of this kind has one bank size.
    cuCtxSetSharedMemConfig(config) {
        context::current()?;
        status::refuse(config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE)?;
    }
    cuCtxGetStreamPriorityRange(leastPriority, greatestPriority) {
        context::current()?;
        give_if_wanted!(leastPriority, PRIORITIES.0);
        give_if_wanted!(greatestPriority, PRIORITIES.1);
    }
    cuCtxResetPersistingL2Cache() { context::current().map(|_| ())? }
    cuCtxEnablePeerAccess(peerContext, Flags) {
        status::refuse(Flags != 0)?;
        context::current()?.enable_peer(&*context::by_handle(peerContext as usize)?)?;
    }
    cuCtxDisablePeerAccess(peerContext) {
        context::current()?.disable_peer(&*context::by_handle(peerContext as usize)?)?;
    }
    cuDevicePrimaryCtxRetain(pctx, dev) {
        status::refuse(pctx.is_null())?;
        give!(pctx, context::retain_primary(dev)? as CUcontext);
    }
    cuDevicePrimaryCtxRelease | cuDevicePrimaryCtxRelease_v2(dev) { context::release_primary(dev)? }
    cuDevicePrimaryCtxReset | cuDevicePrimaryCtxReset_v2(dev) { context::reset_primary(dev)? }
    cuDevicePrimaryCtxSetFlags(dev, flags) {
        // The first version cannot change an active context.
        status::refuse_as(context::primary_state(dev)?.1, status::PRIMARY_CONTEXT_ACTIVE)?;
        context::set_primary_flags(dev, flags)?;
    }
    cuDevicePrimaryCtxSetFlags_v2(dev, flags) { context::set_primary_flags(dev, flags)? }
    cuDevicePrimaryCtxGetState(dev, flags, active) {
        let (current_flags, is_active) = context::primary_state(dev)?;
        give!(flags, current_flags);
        give!(active, is_active.into());
    }
    // Does nothing, because no other device writes to these GPUs.
    cuFlushGPUDirectRDMAWrites(_target, _scope) {
        let device = context::current()?.device;
        gpu_of(device)?;
        process::check_ready()?;
    }
}
