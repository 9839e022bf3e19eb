//! Contexts.
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
    cuCtxCreate_v2(pctx: *mut CUcontext, flags: u32, dev: CUdevice) { create(pctx, flags, dev)? }
    cuCtxCreate_v3(
        pctx: *mut CUcontext, paramsArray: *mut c_void, numParams: i32, flags: u32, dev: CUdevice
    ) {
        status::refuse_as(!paramsArray.is_null() || numParams != 0, status::UNSUPPORTED_EXEC_AFFINITY)?;
        create(pctx, flags, dev)?;
    }
    cuCtxCreate_v4(pctx: *mut CUcontext, ctxCreateParams: *mut c_void, flags: u32, dev: CUdevice) {
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
    cuCtxDestroy_v2(ctx: CUcontext) { context::destroy(ctx as usize)? }
    cuCtxDestroy(ctx: CUcontext) { context::destroy(ctx as usize)? }
    cuCtxAttach(pctx: *mut CUcontext, flags: u32) {
        status::refuse(pctx.is_null() || flags != 0)?;
        give!(pctx, context::attach()? as CUcontext);
    }
    cuCtxDetach(ctx: CUcontext) { context::detach(ctx as usize)? }
    cuCtxPushCurrent_v2(ctx: CUcontext) { context::push(ctx as usize)? }
    cuCtxPushCurrent(ctx: CUcontext) { context::push(ctx as usize)? }
}

fn pop(pctx: *mut CUcontext) -> Result<()> {
    let handle = context::pop()?;
    give_if_wanted!(pctx, handle as CUcontext);
    Ok(())
}

calls! {
    cuCtxPopCurrent_v2(pctx: *mut CUcontext) { pop(pctx)? }
    cuCtxPopCurrent(pctx: *mut CUcontext) { pop(pctx)? }
    cuCtxSetCurrent(ctx: CUcontext) { context::set_current(ctx as usize)? }
    cuCtxGetCurrent(pctx: *mut CUcontext) { give!(pctx, context::current_handle() as CUcontext) }
    cuCtxGetDevice(device: *mut CUdevice) { give!(device, context::current()?.device) }
    cuCtxGetDevice_v2(device: *mut CUdevice, ctx: CUcontext) { give!(device, named_or_current(ctx)?.device) }
}

fn named_or_current(ctx: CUcontext) -> Result<std::sync::Arc<context::Context>> {
    if ctx.is_null() { context::current() } else { context::by_handle(ctx as usize) }
}

calls! {
    cuCtxGetFlags(flags: *mut u32) { give!(flags, context::current()?.flags()) }
    cuCtxSetFlags(flags: u32) { context::current()?.set_flags(flags)? }
    cuCtxGetId(ctx: CUcontext, ctxId: *mut u64) { give!(ctxId, named_or_current(ctx)?.id) }
    cuCtxGetApiVersion(ctx: CUcontext, version: *mut u32) {
        give!(version, named_or_current(ctx)?.api_version());
    }
    cuCtxSynchronize() { context::current()?.synchronize()? }
    cuCtxSynchronize_v2(ctx: CUcontext) { named_or_current(ctx)?.synchronize()? }
    cuCtxWaitEvent(hCtx: CUcontext, hEvent: CUevent) {
        event::wait_in_context(&context::by_handle(hCtx as usize)?, &event::by_handle(hEvent as usize)?)?;
    }
    cuCtxGetLimit(pvalue: *mut usize, limit: CUlimit) { give!(pvalue, context::current()?.limit(limit)?) }
    cuCtxSetLimit(limit: CUlimit, value: usize) { context::current()?.set_limit(limit, value)? }
    cuCtxGetCacheConfig(pconfig: *mut CUfunc_cache) { give!(pconfig, context::current()?.cache_config()) }
    cuCtxSetCacheConfig(config: CUfunc_cache) { context::current()?.set_cache_config(config)? }
    cuCtxGetSharedMemConfig(pConfig: *mut CUsharedconfig) {
        context::current()?;
        give!(pConfig, CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE);
    }
}

/// Checks the value only, because every GPU of this kind has one bank size.
pub fn cuCtxSetSharedMemConfig(config: CUsharedconfig) -> Result<()> {
    context::current()?;
    if config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE { Err(status::INVALID_VALUE) } else { Ok(()) }
}

calls! {
    cuCtxGetStreamPriorityRange(leastPriority: *mut i32, greatestPriority: *mut i32) {
        context::current()?;
        give_if_wanted!(leastPriority, PRIORITIES.0);
        give_if_wanted!(greatestPriority, PRIORITIES.1);
    }
    cuCtxResetPersistingL2Cache() { context::current().map(|_| ())? }
    cuCtxEnablePeerAccess(peerContext: CUcontext, Flags: u32) {
        status::refuse(Flags != 0)?;
        context::current()?.enable_peer(&*context::by_handle(peerContext as usize)?)?;
    }
    cuCtxDisablePeerAccess(peerContext: CUcontext) {
        context::current()?.disable_peer(&*context::by_handle(peerContext as usize)?)?;
    }
    cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) {
        status::refuse(pctx.is_null())?;
        give!(pctx, context::retain_primary(dev)? as CUcontext);
    }
    cuDevicePrimaryCtxRelease(dev: CUdevice) { context::release_primary(dev)? }
    cuDevicePrimaryCtxRelease_v2(dev: CUdevice) { context::release_primary(dev)? }
    cuDevicePrimaryCtxReset(dev: CUdevice) { context::reset_primary(dev)? }
    cuDevicePrimaryCtxReset_v2(dev: CUdevice) { context::reset_primary(dev)? }
    cuDevicePrimaryCtxSetFlags(dev: CUdevice, flags: u32) {
        // The first version cannot change an active context.
        status::refuse_as(context::primary_state(dev)?.1, status::PRIMARY_CONTEXT_ACTIVE)?;
        context::set_primary_flags(dev, flags)?;
    }
    cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: u32) { context::set_primary_flags(dev, flags)? }
    cuDevicePrimaryCtxGetState(dev: CUdevice, flags: *mut u32, active: *mut i32) {
        let (current_flags, is_active) = context::primary_state(dev)?;
        give!(flags, current_flags);
        give!(active, is_active.into());
    }
    /// Does nothing, because no other device writes to these GPUs.
    cuFlushGPUDirectRDMAWrites(
        _target: CUflushGPUDirectRDMAWritesTarget, _scope: CUflushGPUDirectRDMAWritesScope
    ) {
        let device = context::current()?.device;
        gpu_of(device)?;
        process::check_ready()?;
    }
}
