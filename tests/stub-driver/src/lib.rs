//! A `libcuda.so.1` for benchmarks. Every call does next to nothing and costs the same each time.
//! So the difference between two runs is the cost of the code between client and driver.
//!
//! There is one device. `STUB_DRIVER_UUID` (32 hexadecimal digits) sets its UUID. With
//! `STUB_DRIVER_GPUS`, the driver claims to have more devices of this UUID. Work is done the moment
//! it is launched. Events hold the time at which they were recorded. The library exports
//! only the functions that the client and the hooks call.
#![expect(non_snake_case, reason = "argument names are those of the driver API")]

use core::ffi::CStr;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use deepres_abi::driver::result::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND, CUDA_SUCCESS};
use deepres_abi::driver::types::*;

/// The version of CUDA that this driver claims: 13.0.
const VERSION: i32 = 13_000;
/// Memory of the device, bytes.
const MEMORY_BYTES: usize = 64 << 30;
/// First address that is returned. The host maps nothing there.
const FIRST_ADDRESS: u64 = 0x7f00_0000_0000_0000;
/// Distance between two addresses, bytes.
const ADDRESS_STEP_BYTES: u64 = 2 << 20;
/// Number of different addresses before the first comes again.
const ADDRESSES: u64 = 1 << 12;
/// Target of all handles except events. No code reads it.
static SOMETHING: u8 = 0;

fn handle() -> *mut c_void {
    (&raw const SOMETHING).cast_mut().cast()
}

/// Writes a result to `to`. Returns CUDA_ERROR_INVALID_VALUE if `to` is null.
///
/// # Safety
/// `to` is null or valid for a write.
unsafe fn answer<T>(to: *mut T, value: T) -> CUresult {
    if to.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: `to` is not null, so it is valid for a write by this function's contract.
    unsafe { to.write(value) };
    CUDA_SUCCESS
}

fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for a write for the whole call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

thread_local! {
    /// The current context of the thread, as in the real driver.
    static CURRENT: Cell<CUcontext> = const { Cell::new(core::ptr::null_mut()) };
}

/// Defines exported functions that ignore their arguments and succeed.
macro_rules! succeed {
    ($($name:ident)*) => { $(deepres_abi::driver_function! { $name => [succeed_at] })* };
}

macro_rules! succeed_at {
    ($symbol:ident $stream:ident ($($name:ident: $ty:ty),*)) => {
        /// Succeeds.
        #[unsafe(no_mangle)]
        pub extern "C" fn $symbol($(_: $ty),*) -> CUresult {
            CUDA_SUCCESS
        }
    };
}

succeed! {
    cuInit cuDevicePrimaryCtxRelease_v2 cuCtxDestroy_v2 cuCtxSynchronize
    cuStreamDestroy_v2 cuStreamSynchronize cuStreamQuery cuStreamWaitEvent cuEventQuery cuEventSynchronize
    cuModuleUnload cuMemFree_v2 cuGraphLaunch cuGraphDestroy cuGraphExecDestroy
    cuThreadExchangeStreamCaptureMode cuLaunchKernelEx cuLaunchKernel
}

/// Defines exported functions. The table of the API gives the types of their arguments.
macro_rules! export {
    ($($name:ident($($argument:ident),*) $body:block)*) => {
        $(deepres_abi::driver_function! { $name => [export_as] ($($argument),*) $body })*
    };
}

macro_rules! export_as {
    ($symbol:ident $stream:ident ($($name:ident: $ty:ty),*) ($($argument:ident),*) $body:block) => {
        /// Answers.
        ///
        /// # Safety
        /// Pointers are null or valid, as the driver API demands. Events come from `cuEventCreate`
        /// and are not destroyed.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol($($argument: $ty),*) -> CUresult {
            $body
        }
    };
}

/// Defines exported functions that write values through their arguments.
macro_rules! give {
    ($($name:ident($($argument:ident),*) => $($to:ident = $value:expr),+;)*) => {
        export! {$(
            $name($($argument),*) {
                $(let _ = $argument;)*
                // SAFETY: the pointers are the caller's, under the same contract.
                unsafe { CUDA_SUCCESS $(| answer($to, $value))+ }
            }
        )*}
    };
}

give! {
    cuDriverGetVersion(version) => version = VERSION;
    cuDeviceGet(device, ordinal) => device = ordinal;
    cuDeviceGetCount(count) => count = device_count();
    cuDeviceGetUuid(uuid, dev) => uuid = CUuuid { bytes: uuid_bytes() };
    cuDeviceGetUuid_v2(uuid, dev) => uuid = CUuuid { bytes: uuid_bytes() };
    cuDeviceTotalMem_v2(bytes, dev) => bytes = MEMORY_BYTES;
    // No process runs under MPS.
    cuDeviceGetAttribute(pi, attrib, dev) => pi = i32::from(attrib != CU_DEVICE_ATTRIBUTE_MPS_ENABLED);
    cuDevicePrimaryCtxRetain(pctx, dev) => pctx = handle();
    // The primary context is always active.
    cuDevicePrimaryCtxGetState(dev, flags, active) => flags = 0, active = 1;
    cuCtxGetCurrent(pctx) => pctx = CURRENT.get();
    cuCtxGetDevice(device) => device = 0;
    cuStreamCreate(phStream, Flags) => phStream = new_stream();
    cuStreamCreateWithPriority(phStream, flags, priority) => phStream = new_stream();
    cuStreamIsCapturing(hStream, captureStatus) => captureStatus = CU_STREAM_CAPTURE_STATUS_NONE;
    cuStreamGetCtx(hStream, pctx) => pctx = CURRENT.get();
    cuStreamGetDevice(hStream, device) => device = 0;
    cuStreamGetFlags(hStream, flags) => flags = 0;
    cuEventCreate(phEvent, Flags) => phEvent = Box::into_raw(Box::new(AtomicU64::new(0))).cast();
    cuModuleLoadData(module, image) => module = handle();
    cuModuleGetFunction(hfunc, hmod, name) => hfunc = handle();
    cuMemAlloc_v2(dptr, bytesize) => dptr = next_address();
    cuMemAllocManaged(dptr, bytesize, flags) => dptr = next_address();
    cuMemGetInfo_v2(free, total) => free = MEMORY_BYTES, total = MEMORY_BYTES;
    cuGraphCreate(phGraph, flags) => phGraph = handle();
    cuGraphInstantiateWithFlags(phGraphExec, hGraph, flags) => phGraphExec = handle();
    cuGraphGetNodes(hGraph, nodes, numNodes) => numNodes = 0;
}

export! {
    cuCtxSetCurrent(ctx) {
        CURRENT.set(ctx);
        CUDA_SUCCESS
    }
    // The stack has only one entry.
    cuCtxPushCurrent_v2(ctx) {
        CURRENT.set(ctx);
        CUDA_SUCCESS
    }
    // The context stays current.
    cuCtxPopCurrent_v2(pctx) {
        if !pctx.is_null() {
            // SAFETY: `pctx` is not null, so it is valid for a write by this function's contract.
            unsafe { pctx.write(CURRENT.get()) };
        }
        CUDA_SUCCESS
    }
    cuEventRecord(hEvent, _hStream) {
        // SAFETY: the event lives by this function's contract.
        unsafe { time_of(hEvent) }.store(now_ns(), Ordering::Relaxed);
        RECORDS.fetch_add(1, Ordering::Relaxed);
        CUDA_SUCCESS
    }
    cuEventRecordWithFlags(hEvent, hStream, _flags) {
        // SAFETY: the caller fulfils the same contract.
        unsafe { cuEventRecord(hEvent, hStream) }
    }
    cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd) {
        /// Nanoseconds in a millisecond.
        const NS_PER_MS: f64 = 1e6;
        // SAFETY: the events live by this function's contract.
        let [start, end] = unsafe { [time_of(hStart), time_of(hEnd)] }.map(|at| at.load(Ordering::Relaxed));
        let elapsed_ns = i128::from(end) - i128::from(start);
        // SAFETY: the caller's pointer, under the same contract.
        unsafe { answer(pMilliseconds, (elapsed_ns as f64 / NS_PER_MS) as f32) }
    }
    cuEventElapsedTime(pMilliseconds, hStart, hEnd) {
        // SAFETY: the caller fulfils the same contract.
        unsafe { cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd) }
    }
    cuEventDestroy_v2(hEvent) {
        // SAFETY: `cuEventCreate` leaked a box of this type, and this is its last use.
        drop(unsafe { Box::from_raw(hEvent.cast::<AtomicU64>()) });
        CUDA_SUCCESS
    }
    cuDeviceGetName(name, len, _dev) {
        /// The device's name.
        const NAME: &CStr = c"Stub";
        let bytes = NAME.to_bytes_with_nul();
        if name.is_null() || usize::try_from(len).is_ok_and(|len| len < bytes.len()) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        // SAFETY: `name` has room for all of `bytes`.
        unsafe { name.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len()) };
        CUDA_SUCCESS
    }
    // The client looks symbols up by `dlsym`.
    cuGetProcAddress_v2(_symbol, pfn, _cudaVersion, _flags, symbolStatus) {
        // SAFETY: the caller's pointers, under the same contract.
        unsafe {
            answer(pfn, core::ptr::null_mut());
            answer(symbolStatus, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
        }
        CUDA_ERROR_NOT_FOUND
    }
}

/// The number of recorded events.
static RECORDS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of events that this process has recorded. The function is not in the driver
/// API.
#[unsafe(no_mangle)]
pub extern "C" fn stubEventRecords() -> u64 {
    RECORDS.load(Ordering::Relaxed)
}

/// Returns the time that an event holds, ns.
///
/// # Safety
/// `event` comes from `cuEventCreate` and is not destroyed while the reference is used.
unsafe fn time_of<'a>(event: CUevent) -> &'a AtomicU64 {
    // SAFETY: `cuEventCreate` made it of this type, and it lives.
    unsafe { &*event.cast::<AtomicU64>() }
}

/// Returns a new stream. Each stream has its own address, and none is freed.
fn new_stream() -> CUstream {
    Box::into_raw(Box::new(SOMETHING)).cast()
}

fn next_address() -> CUdeviceptr {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Only one thread allocates. A load and a store cost less than an atomic addition.
    let index = NEXT.load(Ordering::Relaxed);
    NEXT.store((index + 1) % ADDRESSES, Ordering::Relaxed);
    FIRST_ADDRESS + index * ADDRESS_STEP_BYTES
}

fn device_count() -> i32 {
    std::env::var("STUB_DRIVER_GPUS").ok().and_then(|count| count.parse().ok()).unwrap_or(1)
}

fn uuid_bytes() -> [u8; 16] {
    let digits = std::env::var("STUB_DRIVER_UUID").unwrap_or_default();
    u128::from_str_radix(&digits, 16).unwrap_or_default().to_be_bytes()
}
