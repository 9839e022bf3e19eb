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
    if pctx.is_null() {
        return Err(status::INVALID_VALUE);
    }
    let handle = context::create(dev, flags)?;
    give!(pctx, handle as CUcontext);
    Ok(())
}

pub fn cuCtxCreate_v2(pctx: *mut CUcontext, flags: u32, dev: CUdevice) -> Result<()> {
    create(pctx, flags, dev)
}

pub fn cuCtxCreate_v3(
    pctx: *mut CUcontext,
    paramsArray: *mut c_void,
    numParams: i32,
    flags: u32,
    dev: CUdevice,
) -> Result<()> {
    if !paramsArray.is_null() || numParams != 0 {
        return Err(status::UNSUPPORTED_EXEC_AFFINITY);
    }
    create(pctx, flags, dev)
}

pub fn cuCtxCreate_v4(
    pctx: *mut CUcontext,
    ctxCreateParams: *mut c_void,
    flags: u32,
    dev: CUdevice,
) -> Result<()> {
    if !ctxCreateParams.is_null() {
        let params = read!(ctxCreateParams.cast::<CreateParams>());
        if !params.exec_affinity.is_null() || params.exec_affinity_count != 0 {
            return Err(status::UNSUPPORTED_EXEC_AFFINITY);
        }
        if !params.cig.is_null() {
            return Err(status::NOT_SUPPORTED);
        }
    }
    create(pctx, flags, dev)
}

pub fn cuCtxDestroy_v2(ctx: CUcontext) -> Result<()> {
    context::destroy(ctx as usize)
}

pub fn cuCtxDestroy(ctx: CUcontext) -> Result<()> {
    context::destroy(ctx as usize)
}

pub fn cuCtxAttach(pctx: *mut CUcontext, flags: u32) -> Result<()> {
    if pctx.is_null() || flags != 0 {
        return Err(status::INVALID_VALUE);
    }
    give!(pctx, context::attach()? as CUcontext);
    Ok(())
}

pub fn cuCtxDetach(ctx: CUcontext) -> Result<()> {
    context::detach(ctx as usize)
}

pub fn cuCtxPushCurrent_v2(ctx: CUcontext) -> Result<()> {
    context::push(ctx as usize)
}

pub fn cuCtxPushCurrent(ctx: CUcontext) -> Result<()> {
    context::push(ctx as usize)
}

fn pop(pctx: *mut CUcontext) -> Result<()> {
    let handle = context::pop()?;
    give_if_wanted!(pctx, handle as CUcontext);
    Ok(())
}

pub fn cuCtxPopCurrent_v2(pctx: *mut CUcontext) -> Result<()> {
    pop(pctx)
}

pub fn cuCtxPopCurrent(pctx: *mut CUcontext) -> Result<()> {
    pop(pctx)
}

pub fn cuCtxSetCurrent(ctx: CUcontext) -> Result<()> {
    context::set_current(ctx as usize)
}

pub fn cuCtxGetCurrent(pctx: *mut CUcontext) -> Result<()> {
    give!(pctx, context::current_handle() as CUcontext);
    Ok(())
}

pub fn cuCtxGetDevice(device: *mut CUdevice) -> Result<()> {
    give!(device, context::current()?.device);
    Ok(())
}

pub fn cuCtxGetDevice_v2(device: *mut CUdevice, ctx: CUcontext) -> Result<()> {
    give!(device, named_or_current(ctx)?.device);
    Ok(())
}

fn named_or_current(ctx: CUcontext) -> Result<std::sync::Arc<context::Context>> {
    if ctx.is_null() { context::current() } else { context::by_handle(ctx as usize) }
}

pub fn cuCtxGetFlags(flags: *mut u32) -> Result<()> {
    give!(flags, context::current()?.flags());
    Ok(())
}

pub fn cuCtxSetFlags(flags: u32) -> Result<()> {
    context::current()?.set_flags(flags)
}

pub fn cuCtxGetId(ctx: CUcontext, ctxId: *mut u64) -> Result<()> {
    give!(ctxId, named_or_current(ctx)?.id);
    Ok(())
}

pub fn cuCtxGetApiVersion(ctx: CUcontext, version: *mut u32) -> Result<()> {
    give!(version, named_or_current(ctx)?.api_version());
    Ok(())
}

pub fn cuCtxSynchronize() -> Result<()> {
    context::current()?.synchronize()
}

pub fn cuCtxSynchronize_v2(ctx: CUcontext) -> Result<()> {
    named_or_current(ctx)?.synchronize()
}

pub fn cuCtxWaitEvent(hCtx: CUcontext, hEvent: CUevent) -> Result<()> {
    event::wait_in_context(&context::by_handle(hCtx as usize)?, &event::by_handle(hEvent as usize)?)
}

pub fn cuCtxGetLimit(pvalue: *mut usize, limit: CUlimit) -> Result<()> {
    give!(pvalue, context::current()?.limit(limit)?);
    Ok(())
}

pub fn cuCtxSetLimit(limit: CUlimit, value: usize) -> Result<()> {
    context::current()?.set_limit(limit, value)
}

pub fn cuCtxGetCacheConfig(pconfig: *mut CUfunc_cache) -> Result<()> {
    give!(pconfig, context::current()?.cache_config());
    Ok(())
}

pub fn cuCtxSetCacheConfig(config: CUfunc_cache) -> Result<()> {
    context::current()?.set_cache_config(config)
}

pub fn cuCtxGetSharedMemConfig(pConfig: *mut CUsharedconfig) -> Result<()> {
    context::current()?;
    give!(pConfig, CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE);
    Ok(())
}

/// Checks the value only, because every GPU of this kind has one bank size.
pub fn cuCtxSetSharedMemConfig(config: CUsharedconfig) -> Result<()> {
    context::current()?;
    if config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE { Err(status::INVALID_VALUE) } else { Ok(()) }
}

pub fn cuCtxGetStreamPriorityRange(leastPriority: *mut i32, greatestPriority: *mut i32) -> Result<()> {
    context::current()?;
    give_if_wanted!(leastPriority, PRIORITIES.0);
    give_if_wanted!(greatestPriority, PRIORITIES.1);
    Ok(())
}

pub fn cuCtxResetPersistingL2Cache() -> Result<()> {
    context::current().map(|_| ())
}

pub fn cuCtxEnablePeerAccess(peerContext: CUcontext, Flags: u32) -> Result<()> {
    if Flags != 0 {
        return Err(status::INVALID_VALUE);
    }
    context::current()?.enable_peer(&*context::by_handle(peerContext as usize)?)
}

pub fn cuCtxDisablePeerAccess(peerContext: CUcontext) -> Result<()> {
    context::current()?.disable_peer(&*context::by_handle(peerContext as usize)?)
}

pub fn cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) -> Result<()> {
    if pctx.is_null() {
        return Err(status::INVALID_VALUE);
    }
    give!(pctx, context::retain_primary(dev)? as CUcontext);
    Ok(())
}

pub fn cuDevicePrimaryCtxRelease(dev: CUdevice) -> Result<()> {
    context::release_primary(dev)
}

pub fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) -> Result<()> {
    context::release_primary(dev)
}

pub fn cuDevicePrimaryCtxReset(dev: CUdevice) -> Result<()> {
    context::reset_primary(dev)
}

pub fn cuDevicePrimaryCtxReset_v2(dev: CUdevice) -> Result<()> {
    context::reset_primary(dev)
}

pub fn cuDevicePrimaryCtxSetFlags(dev: CUdevice, flags: u32) -> Result<()> {
    // The first version cannot change an active context.
    if context::primary_state(dev)?.1 {
        return Err(status::PRIMARY_CONTEXT_ACTIVE);
    }
    context::set_primary_flags(dev, flags)
}

pub fn cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: u32) -> Result<()> {
    context::set_primary_flags(dev, flags)
}

pub fn cuDevicePrimaryCtxGetState(dev: CUdevice, flags: *mut u32, active: *mut i32) -> Result<()> {
    let (current_flags, is_active) = context::primary_state(dev)?;
    give!(flags, current_flags);
    give!(active, is_active.into());
    Ok(())
}

/// Does nothing, because no device writes to these GPUs past the driver.
pub fn cuFlushGPUDirectRDMAWrites(
    _target: CUflushGPUDirectRDMAWritesTarget,
    _scope: CUflushGPUDirectRDMAWritesScope,
) -> Result<()> {
    let device = context::current()?.device;
    gpu_of(device)?;
    process::check_ready()
}
