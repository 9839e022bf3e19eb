//! A `libcuda.so.1` for benchmarks. Every call does next to nothing and costs the same each time.
//! So the difference between two runs is the cost of the code between client and driver.
//!
//! There is one device. `STUB_DRIVER_UUID` (32 hexadecimal digits) sets its UUID. Work is done the
//! moment it is launched. Events hold the time at which they were recorded. The library exports
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
    ($($name:ident($($argument:ty),*);)*) => {
        $(
            /// Succeeds.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($(_: $argument),*) -> CUresult {
                CUDA_SUCCESS
            }
        )*
    };
}

succeed! {
    cuInit(u32);
    cuDevicePrimaryCtxRelease_v2(CUdevice);
    cuCtxDestroy_v2(CUcontext);
    cuCtxSynchronize();
    cuStreamDestroy_v2(CUstream);
    cuStreamSynchronize(CUstream);
    cuStreamQuery(CUstream);
    cuStreamWaitEvent(CUstream, CUevent, u32);
    cuEventQuery(CUevent);
    cuEventSynchronize(CUevent);
    cuModuleUnload(CUmodule);
    cuMemFree_v2(CUdeviceptr);
    cuGraphLaunch(CUgraphExec, CUstream);
    cuGraphDestroy(CUgraph);
    cuGraphExecDestroy(CUgraphExec);
    cuThreadExchangeStreamCaptureMode(*mut CUstreamCaptureMode);
    cuLaunchKernelEx(*const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void);
    cuLaunchKernel(
        CUfunction, u32, u32, u32, u32, u32, u32, u32, CUstream, *mut *mut c_void, *mut *mut c_void
    );
}

/// Defines exported functions that write a value through one of their arguments.
macro_rules! give {
    ($($name:ident($($argument:ident: $ty:ty),*) => $to:ident, $value:expr;)*) => {
        $(
            /// Writes its answer.
            ///
            /// # Safety
            /// Pointers are null or valid, as the driver API demands.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $ty),*) -> CUresult {
                $(let _ = $argument;)*
                // SAFETY: the pointer is the caller's, under the same contract.
                unsafe { answer($to, $value) }
            }
        )*
    };
}

give! {
    cuDriverGetVersion(version: *mut i32) => version, VERSION;
    cuDeviceGet(device: *mut CUdevice, ordinal: i32) => device, ordinal;
    cuDeviceGetCount(count: *mut i32) => count, 1;
    cuDeviceGetUuid(uuid: *mut CUuuid, dev: CUdevice) => uuid, CUuuid { bytes: uuid_bytes() };
    cuDeviceGetUuid_v2(uuid: *mut CUuuid, dev: CUdevice) => uuid, CUuuid { bytes: uuid_bytes() };
    cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice) => bytes, MEMORY_BYTES;
    cuDeviceGetAttribute(pi: *mut i32, attrib: CUdevice_attribute, dev: CUdevice) => pi, 1;
    cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) => pctx, handle();
    cuCtxGetCurrent(pctx: *mut CUcontext) => pctx, CURRENT.get();
    cuCtxGetDevice(device: *mut CUdevice) => device, 0;
    cuStreamCreate(phStream: *mut CUstream, Flags: u32) => phStream, new_stream();
    cuStreamCreateWithPriority(phStream: *mut CUstream, flags: u32, priority: i32) => phStream, new_stream();
    cuStreamIsCapturing(hStream: CUstream, captureStatus: *mut CUstreamCaptureStatus) => captureStatus, CU_STREAM_CAPTURE_STATUS_NONE;
    cuStreamGetCtx(hStream: CUstream, pctx: *mut CUcontext) => pctx, CURRENT.get();
    cuStreamGetDevice(hStream: CUstream, device: *mut CUdevice) => device, 0;
    cuStreamGetFlags(hStream: CUstream, flags: *mut u32) => flags, 0;
    cuEventCreate(phEvent: *mut CUevent, Flags: u32) => phEvent, Box::into_raw(Box::new(AtomicU64::new(0))).cast();
    cuModuleLoadData(module: *mut CUmodule, image: *const c_void) => module, handle();
    cuModuleGetFunction(hfunc: *mut CUfunction, hmod: CUmodule, name: *const c_char) => hfunc, handle();
    cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize) => dptr, next_address();
    cuMemAllocManaged(dptr: *mut CUdeviceptr, bytesize: usize, flags: u32) => dptr, next_address();
    cuGraphCreate(phGraph: *mut CUgraph, flags: u32) => phGraph, handle();
    cuGraphInstantiateWithFlags(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, flags: u64) => phGraphExec, handle();
    cuGraphGetNodes(hGraph: CUgraph, nodes: *mut CUgraphNode, numNodes: *mut usize) => numNodes, 0;
}

/// Reports the primary context as active, as it always is.
///
/// # Safety
/// Both pointers are null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    dev: CUdevice,
    flags: *mut u32,
    active: *mut i32,
) -> CUresult {
    let _ = dev;
    // SAFETY: the caller's pointers, under the same contract.
    unsafe {
        answer(flags, 0);
        answer(active, 1)
    }
}

/// Makes a context current.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(ctx: CUcontext) -> CUresult {
    CURRENT.set(ctx);
    CUDA_SUCCESS
}

/// Makes a context current. The stack has only one entry.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPushCurrent_v2(ctx: CUcontext) -> CUresult {
    cuCtxSetCurrent(ctx)
}

/// Writes the current context to `pctx` and leaves it current.
///
/// # Safety
/// `pctx` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(pctx: *mut CUcontext) -> CUresult {
    if !pctx.is_null() {
        // SAFETY: `pctx` is not null, so it is valid for a write by this function's contract.
        unsafe { pctx.write(CURRENT.get()) };
    }
    CUDA_SUCCESS
}

/// Writes the free and the total memory.
///
/// # Safety
/// Both pointers are valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    // SAFETY: the caller's pointers, under the same contract.
    unsafe {
        answer(free, MEMORY_BYTES);
        answer(total, MEMORY_BYTES)
    }
}

/// Stores the current time in the event.
///
/// # Safety
/// `hEvent` comes from `cuEventCreate` and is not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(hEvent: CUevent, hStream: CUstream) -> CUresult {
    let _ = hStream;
    // SAFETY: `cuEventCreate` made it of this type, and it lives.
    unsafe { &*hEvent.cast::<AtomicU64>() }.store(now_ns(), Ordering::Relaxed);
    RECORDS.fetch_add(1, Ordering::Relaxed);
    CUDA_SUCCESS
}

/// The number of recorded events.
static RECORDS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of events that this process has recorded. The function is not in the driver
/// API.
#[unsafe(no_mangle)]
pub extern "C" fn stubEventRecords() -> u64 {
    RECORDS.load(Ordering::Relaxed)
}

/// Stores the current time in the event.
///
/// # Safety
/// The same as for [`cuEventRecord`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecordWithFlags(hEvent: CUevent, hStream: CUstream, flags: u32) -> CUresult {
    let _ = flags;
    // SAFETY: the caller fulfils the same contract.
    unsafe { cuEventRecord(hEvent, hStream) }
}

/// Writes the time between two records, ms.
///
/// # Safety
/// Both events come from `cuEventCreate` and are not destroyed; `pMilliseconds` is valid for a
/// write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(
    pMilliseconds: *mut f32,
    hStart: CUevent,
    hEnd: CUevent,
) -> CUresult {
    /// Nanoseconds in a millisecond.
    const NS_PER_MS: f64 = 1e6;
    // SAFETY: `cuEventCreate` made it of this type, and it lives.
    let start = unsafe { &*hStart.cast::<AtomicU64>() }.load(Ordering::Relaxed);
    // SAFETY: `cuEventCreate` made it of this type, and it lives.
    let end = unsafe { &*hEnd.cast::<AtomicU64>() }.load(Ordering::Relaxed);
    let elapsed_ns = i128::from(end) - i128::from(start);
    // SAFETY: the caller's pointer, under the same contract.
    unsafe { answer(pMilliseconds, (elapsed_ns as f64 / NS_PER_MS) as f32) }
}

/// Writes the time between two records, ms.
///
/// # Safety
/// The same as for [`cuEventElapsedTime_v2`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(
    pMilliseconds: *mut f32,
    hStart: CUevent,
    hEnd: CUevent,
) -> CUresult {
    // SAFETY: the caller fulfils the same contract.
    unsafe { cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd) }
}

/// Frees an event.
///
/// # Safety
/// `hEvent` comes from `cuEventCreate` and is used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(hEvent: CUevent) -> CUresult {
    // SAFETY: `cuEventCreate` leaked a box of this type, and this is its last use.
    drop(unsafe { Box::from_raw(hEvent.cast::<AtomicU64>()) });
    CUDA_SUCCESS
}

/// Writes the device's name.
///
/// # Safety
/// `name` is valid for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: i32, dev: CUdevice) -> CUresult {
    /// The device's name.
    const NAME: &CStr = c"Stub";
    let _ = dev;
    let bytes = NAME.to_bytes_with_nul();
    if name.is_null() || usize::try_from(len).is_ok_and(|len| len < bytes.len()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: `name` has room for all of `bytes`.
    unsafe { name.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len()) };
    CUDA_SUCCESS
}

/// Finds no symbol. The client looks symbols up by `dlsym`.
///
/// # Safety
/// Pointers are null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    cudaVersion: i32,
    flags: u64,
    symbolStatus: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    let _ = (symbol, cudaVersion, flags);
    // SAFETY: the caller's pointers, under the same contract.
    unsafe {
        answer(pfn, core::ptr::null_mut());
        answer(symbolStatus, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    }
    CUDA_ERROR_NOT_FOUND
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

fn uuid_bytes() -> [u8; 16] {
    let digits = std::env::var("STUB_DRIVER_UUID").unwrap_or_default();
    u128::from_str_radix(&digits, 16).unwrap_or_default().to_be_bytes()
}
