//! A fake driver for tests of the logic. The fake driver has one context, streams that run their
//! work in order, and a clock that tests move.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;

use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::{CUDA_ERROR_NOT_READY, CUDA_ERROR_UNKNOWN, CUDA_SUCCESS};
use deepres_abi::driver::types::CUuuid;

use super::calls::{Calls, Stream};

/// The only context.
const CONTEXT: usize = 0x1000;
const NS_PER_MS: f64 = 1e6;
/// The number of blocks that an SM runs at once.
const RESIDENT: i32 = 8;

#[derive(Default)]
struct State {
    now_ns: u64,
    /// The time at which each stream finishes its work, ns, by the handle of the stream.
    streams: HashMap<usize, u64>,
    /// The time at which the stream reaches each recorded event, ns.
    events: Vec<u64>,
    /// The number of events that were destroyed.
    destroyed: usize,
    /// The streams of all records of events, in their order.
    records: Vec<usize>,
    /// The number of records before the last launch and the launch before it.
    records_at_launch: [usize; 2],
    /// The function that the driver calls while it records an event.
    during_record: Option<fn()>,
    /// Whether every swap of a capture mode fails.
    refuses_exchange: bool,
    /// The number of times that a context was made current.
    pushed: usize,
    /// The number of questions about the blocks that an SM runs at once.
    occupancy_asked: usize,
}

thread_local! {
    /// The state of this test's driver.
    static STATE: RefCell<State> = RefCell::default();
}

/// Makes the driver call `meanwhile` whenever it records an event.
pub fn during_record(meanwhile: fn()) {
    STATE.with_borrow_mut(|state| state.during_record = Some(meanwhile));
}

/// Returns the number of records of events on `stream` so far.
pub fn records(stream: Stream) -> usize {
    STATE.with_borrow(|state| state.records.iter().filter(|on| **on == stream.0).count())
}

/// Returns the number of records of events between the last two launches.
pub fn records_between_launches() -> usize {
    STATE.with_borrow(|state| state.records_at_launch[0] - state.records_at_launch[1])
}

/// Returns how often a context was made current.
pub fn pushed() -> usize {
    STATE.with_borrow(|state| state.pushed)
}

/// Returns how often deepres asked how many blocks an SM runs at once.
pub fn occupancy_asked() -> usize {
    STATE.with_borrow(|state| state.occupancy_asked)
}

/// Returns the number of events that live.
pub fn live_events() -> usize {
    STATE.with_borrow(|state| state.events.len() - state.destroyed)
}

/// Makes every later swap of a capture mode fail.
pub fn refuse_exchange() {
    STATE.with_borrow_mut(|state| state.refuses_exchange = true);
}

/// Returns the driver calls of the fake driver.
pub fn calls() -> Calls {
    macro_rules! lead {
        ($($symbol:ident => $function:ident;)+) => {
            $(super::remember(ApiId::$symbol, $function as *const () as usize);)+
        };
    }
    lead! {
        cuCtxGetCurrent => get_current;
        cuCtxSetCurrent => push;
        cuCtxPushCurrent_v2 => push;
        cuCtxPopCurrent_v2 => get_current;
        cuCtxGetDevice => get_number;
        cuDeviceGetCount => get_number;
        cuDeviceGetUuid => get_uuid;
        cuDeviceGetUuid_v2 => get_uuid;
        cuStreamGetCtx => get_context;
        cuStreamIsCapturing => get_status;
        cuThreadExchangeStreamCaptureMode => exchange;
        cuStreamQuery => stream_query;
        cuEventCreate => event_create;
        cuEventDestroy_v2 => event_destroy;
        cuEventRecord => event_record;
        cuEventQuery => event_query;
        cuEventElapsedTime => event_elapsed;
        cuDevicePrimaryCtxGetState => succeed;
        cuDevicePrimaryCtxRetain => get_current;
        cuDevicePrimaryCtxRelease_v2 => succeed;
        cuOccupancyMaxActiveBlocksPerMultiprocessor => occupancy;
    }
    Calls::find().unwrap()
}

/// Puts a kernel of `ns` on a stream.
pub fn launch(stream: Stream, ns: u64) {
    STATE.with_borrow_mut(|state| {
        let now_ns = state.now_ns;
        let free_ns = state.streams.entry(stream.0).or_default();
        *free_ns = now_ns.max(*free_ns) + ns;
        state.records_at_launch = [state.records.len(), state.records_at_launch[0]];
    });
}

/// Moves the clock forward by `ns`.
pub fn pass(ns: u64) {
    STATE.with_borrow_mut(|state| state.now_ns += ns);
}

/// Moves the clock forward until all streams have finished.
pub fn finish() {
    STATE.with_borrow_mut(|state| {
        let last_ns = state.streams.values().copied().max().unwrap_or(0);
        state.now_ns = state.now_ns.max(last_ns);
    });
}

unsafe extern "C" fn succeed() -> u32 {
    CUDA_SUCCESS
}

unsafe extern "C" fn occupancy(blocks: *mut i32, _: *mut c_void, _: i32, _: usize) -> u32 {
    STATE.with_borrow_mut(|state| state.occupancy_asked += 1);
    // SAFETY: `Calls` passes room for a number.
    unsafe { *blocks = RESIDENT };
    CUDA_SUCCESS
}

unsafe extern "C" fn push(_: *mut c_void) -> u32 {
    STATE.with_borrow_mut(|state| state.pushed += 1);
    CUDA_SUCCESS
}

unsafe extern "C" fn exchange(_: *mut u32) -> u32 {
    if STATE.with_borrow(|state| state.refuses_exchange) { CUDA_ERROR_UNKNOWN } else { CUDA_SUCCESS }
}

unsafe extern "C" fn get_current(context: *mut *mut c_void) -> u32 {
    // SAFETY: `Calls` passes room for a handle.
    unsafe { *context = CONTEXT as *mut c_void };
    CUDA_SUCCESS
}

unsafe extern "C" fn get_context(_: *mut c_void, context: *mut *mut c_void) -> u32 {
    // SAFETY: `Calls` passes room for a handle.
    unsafe { get_current(context) }
}

unsafe extern "C" fn get_number(number: *mut i32) -> u32 {
    // SAFETY: `Calls` passes room for a number.
    unsafe { *number = 0 };
    CUDA_SUCCESS
}

unsafe extern "C" fn get_uuid(uuid: *mut CUuuid, _: i32) -> u32 {
    // SAFETY: `Calls` passes room for a UUID.
    unsafe { *uuid = CUuuid { bytes: [7; 16] } };
    CUDA_SUCCESS
}

unsafe extern "C" fn get_status(_: *mut c_void, status: *mut u32) -> u32 {
    // SAFETY: `Calls` passes room for a status.
    unsafe { *status = 0 };
    CUDA_SUCCESS
}

unsafe extern "C" fn event_create(event: *mut *mut c_void, _: u32) -> u32 {
    let number = STATE.with_borrow_mut(|state| {
        state.events.push(0);
        state.events.len()
    });
    // SAFETY: `Calls` passes room for a handle.
    unsafe { *event = number as *mut c_void };
    CUDA_SUCCESS
}

unsafe extern "C" fn event_destroy(_: *mut c_void) -> u32 {
    STATE.with_borrow_mut(|state| state.destroyed += 1);
    CUDA_SUCCESS
}

unsafe extern "C" fn event_record(event: *mut c_void, stream: *mut c_void) -> u32 {
    if let Some(meanwhile) = STATE.with_borrow(|state| state.during_record) {
        meanwhile();
    }
    STATE.with_borrow_mut(|state| {
        let free_ns = state.streams.get(&(stream as usize)).copied().unwrap_or(0);
        state.events[event as usize - 1] = state.now_ns.max(free_ns);
        state.records.push(stream as usize);
    });
    CUDA_SUCCESS
}

unsafe extern "C" fn event_query(event: *mut c_void) -> u32 {
    STATE.with_borrow(|state| {
        if state.events[event as usize - 1] <= state.now_ns { CUDA_SUCCESS } else { CUDA_ERROR_NOT_READY }
    })
}

unsafe extern "C" fn stream_query(stream: *mut c_void) -> u32 {
    STATE.with_borrow(|state| {
        let free_ns = state.streams.get(&(stream as usize)).copied().unwrap_or(0);
        if free_ns <= state.now_ns { CUDA_SUCCESS } else { CUDA_ERROR_NOT_READY }
    })
}

unsafe extern "C" fn event_elapsed(ms: *mut f32, from: *mut c_void, to: *mut c_void) -> u32 {
    let ns = STATE
        .with_borrow(|state| state.events[to as usize - 1] as f64 - state.events[from as usize - 1] as f64);
    // SAFETY: `Calls` passes room for a time.
    unsafe { *ms = (ns / NS_PER_MS) as f32 };
    CUDA_SUCCESS
}
