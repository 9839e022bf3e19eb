//! The devices, and the context of a thread.

use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock, PoisonError};

use deepres_abi::driver::types as cu;
use simgpu_driver::{Error, NO_DRIVER, Result, driver};

use crate::edge;
use crate::table::errors;

thread_local! {
    /// The device of the thread while it has no context.
    static WANTED: Cell<i32> = const { Cell::new(0) };
}

/// The primary contexts that this library holds, by device.
static PRIMARY: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Starts the driver at the first call. Returns the number of devices.
pub fn count() -> Result<i32> {
    static COUNT: OnceLock<Result<i32>> = OnceLock::new();
    *COUNT.get_or_init(|| match start() {
        Err(NO_DRIVER) => Err(Error(errors::cudaErrorInsufficientDriver)),
        Ok(0) => Err(Error(errors::cudaErrorNoDevice)),
        other => other,
    })
}

fn start() -> Result<i32> {
    let mut count = 0;
    driver!(cuInit(0));
    driver!(cuDeviceGetCount(&mut count));
    Ok(count)
}

/// Returns an error if no device has this number.
pub fn check(device: i32) -> Result<()> {
    edge::refuse_as(!(0..count()?).contains(&device), errors::cudaErrorInvalidDevice)
}

/// Returns the primary context of a device.
pub fn primary(device: i32) -> Result<cu::CUcontext> {
    check(device)?;
    let mut contexts = PRIMARY.lock().unwrap_or_else(PoisonError::into_inner);
    contexts.resize(count()? as usize, 0);
    let held = &mut contexts[device as usize];
    if *held == 0 {
        let mut context = null_mut();
        driver!(cuDevicePrimaryCtxRetain(&mut context, device));
        *held = context as usize;
    }
    Ok(*held as cu::CUcontext)
}

/// Returns the thread's context. If the thread has no context, first makes the primary context of
/// the thread's device current.
pub fn context() -> Result<cu::CUcontext> {
    count()?;
    let mut current = null_mut();
    driver!(cuCtxGetCurrent(&mut current));
    if current.is_null() {
        current = primary(WANTED.get())?;
        driver!(cuCtxSetCurrent(current));
    }
    Ok(current)
}

/// Returns the thread's device.
pub fn current() -> Result<i32> {
    count()?;
    let mut context = null_mut();
    driver!(cuCtxGetCurrent(&mut context));
    if context.is_null() {
        return Ok(WANTED.get());
    }
    let mut device = 0;
    driver!(cuCtxGetDevice(&mut device));
    Ok(device)
}

/// Sets the thread's device.
pub fn set(device: i32) -> Result<()> {
    driver!(cuCtxSetCurrent(primary(device)?));
    WANTED.set(device);
    Ok(())
}

/// Ends the primary context of the thread's device.
pub fn reset() -> Result<()> {
    let device = current()?;
    let mut contexts = PRIMARY.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(held) = contexts.get_mut(device as usize).filter(|held| **held != 0) {
        *held = 0;
        driver!(cuDevicePrimaryCtxReset_v2(device));
        driver!(cuDevicePrimaryCtxRelease_v2(device));
        driver!(cuCtxSetCurrent(null_mut()));
    }
    Ok(())
}
