//! The driver functions that deepres itself calls. Handles are plain numbers here, so that the
//! logic holds no pointer of the driver.

use std::ffi::c_void;

use deepres_abi::driver::pfn;
use deepres_abi::driver::result::{CUDA_ERROR_NOT_READY, CUDA_SUCCESS};
use deepres_abi::driver::types::{
    CU_DEVICE_ATTRIBUTE_MPS_ENABLED, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
    CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_STATUS_NONE, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD,
    CUdevice_attribute, CUfunction, CUstream, CUuuid,
};
use deepres_abi::wire::Uuid;

use super::{own_address, real};
use crate::capture;

const NS_PER_MS: f64 = 1e6;
/// The number of attempts to swap a thread's capture mode. If no attempt to restore the thread's
/// mode succeeded, the job would go on with the mode that deepres set.
const EXCHANGES: u32 = 3;
/// The number of attempts at a call that must not fail. For example, without the list of GPUs, the
/// process has no session.
const ATTEMPTS: u32 = 3;

/// A context of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context(pub usize);

/// An event of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event(pub usize);

impl Event {
    /// A handle that stands for no event.
    pub const NONE: Self = Self(0);
}

/// A stream of the driver. The default streams have their explicit handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream(pub usize);

impl Stream {
    /// The legacy default stream of the current context.
    pub const LEGACY: Self = Self(1);
    /// The calling thread's default stream in the current context.
    pub const PER_THREAD: Self = Self(2);

    /// Returns the stream that `handle` denotes for a function. `per_thread`: the function is of
    /// the per-thread kind, not of the legacy kind.
    #[inline(always)]
    pub fn new(handle: CUstream, per_thread: bool) -> Self {
        match handle as usize {
            0 if per_thread => Self::PER_THREAD,
            0 => Self::LEGACY,
            handle => Self(handle),
        }
    }

    /// Returns whether the handle denotes a different stream in each context.
    #[inline(always)]
    pub fn is_default(self) -> bool {
        self.0 <= Self::PER_THREAD.0
    }

    fn handle(self) -> CUstream {
        self.0 as CUstream
    }
}

const _: () = {
    assert!(size_of::<CUstream>() == size_of::<usize>());
    // `Stream::LEGACY` and `PER_THREAD` have the values of the header's handles. A constant cannot
    // compare pointers.
    let _: (CUstream, CUstream) = (CU_STREAM_LEGACY, CU_STREAM_PER_THREAD);
};

/// The progress of an event or a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// All work before the event or in the stream is complete.
    Done,
    /// Some work before the event or in the stream is not complete.
    Pending,
    /// The driver cannot say, because the context is broken or gone.
    Lost,
}

impl Progress {
    fn of(result: u32) -> Self {
        match result {
            CUDA_SUCCESS => Self::Done,
            CUDA_ERROR_NOT_READY => Self::Pending,
            _ => Self::Lost,
        }
    }
}

macro_rules! calls {
    ($($field:ident: $symbol:ident $($other:ident)*;)+) => {
        /// The functions, looked up once at the start of a session.
        pub struct Calls {
            $($field: pfn::$symbol,)+
            uuid_v2: Option<pfn::cuDeviceGetUuid_v2>,
            attribute: Option<pfn::cuDeviceGetAttribute>,
            occupancy: Option<pfn::cuOccupancyMaxActiveBlocksPerMultiprocessor>,
        }

        impl Calls {
            /// Looks up the driver functions that deepres calls, and returns them.
            ///
            /// # Errors
            /// The name of a function of which the driver lacks all variants.
            pub fn find() -> Result<Self, &'static str> {
                Ok(Self {
                    $($field: real!($symbol by own_address)
                        $(.or_else(|| real!($other by own_address)))*
                        .ok_or(stringify!($symbol))?,)+
                    uuid_v2: real!(cuDeviceGetUuid_v2 by own_address),
                    attribute: real!(cuDeviceGetAttribute by own_address),
                    occupancy: real!(cuOccupancyMaxActiveBlocksPerMultiprocessor by own_address),
                })
            }
        }
    };
}
deepres_abi::for_each_needed_function!(calls);

impl Calls {
    /// Returns the context that is current in this thread.
    pub fn current_context(&self) -> Option<Context> {
        self.ask_current_context().ok().flatten()
    }

    /// Returns the current context, or `None` if no context is current.
    ///
    /// # Errors
    /// The error code of the driver, if the driver does not tell the context.
    #[inline]
    pub fn ask_current_context(&self) -> Result<Option<Context>, u32> {
        let mut context = std::ptr::null_mut();
        // SAFETY: the result has room.
        match unsafe { (self.get_current)(&mut context) } {
            CUDA_SUCCESS => Ok((!context.is_null()).then_some(Context(context as usize))),
            error => Err(error),
        }
    }

    /// Makes `context` current in this thread. Returns whether the driver did so.
    pub fn set_current(&self, context: Context) -> bool {
        // SAFETY: the driver checks the handle.
        unsafe { (self.set_current)(context.0 as *mut c_void) == CUDA_SUCCESS }
    }

    /// Runs `work` with `context` current, and restores the thread's current context. Returns the
    /// result of `work`, or `None` if the driver does not make `context` current.
    pub fn in_context<T>(&self, context: Context, work: impl FnOnce() -> Option<T>) -> Option<T> {
        let before = self.current_context();
        if before == Some(context) {
            return work();
        }
        // SAFETY: the driver checks the handle.
        if unsafe { (self.push_current)(context.0 as *mut c_void) } != CUDA_SUCCESS {
            return None;
        }
        let result = work();
        let mut popped = std::ptr::null_mut();
        // SAFETY: the result has room, and the call pops the context that was pushed above.
        let mut pop = || unsafe { (self.pop_current)(&mut popped) } == CUDA_SUCCESS;
        if !(0..ATTEMPTS).any(|_| pop()) {
            // The pushed context stays on the stack below, but the thread's former current context
            // is current again.
            self.set_current(before.unwrap_or(Context(0)));
        }
        result
    }

    /// Returns the ordinal of `context`'s device.
    pub fn device_of(&self, context: Context) -> Option<usize> {
        self.in_context(context, || self.current_device())
    }

    /// Returns the ordinal of the device of this thread's current context.
    pub fn current_device(&self) -> Option<usize> {
        let mut device = 0;
        // SAFETY: the result has room.
        let result = unsafe { (self.get_device)(&mut device) };
        if result == CUDA_SUCCESS { usize::try_from(device).ok() } else { None }
    }

    /// Returns the context of `stream`.
    pub fn context_of(&self, stream: Stream) -> Option<Context> {
        if stream.is_default() {
            return self.current_context();
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: the process is using the stream, and the result has room.
        let result = unsafe { (self.stream_context)(stream.handle(), &mut context) };
        (result == CUDA_SUCCESS && !context.is_null()).then_some(Context(context as usize))
    }

    /// Writes the UUIDs of the devices to `out`, in the process's order, at most `out.len()` of
    /// them. Returns the number of devices, which can be greater.
    pub fn uuids(&self, out: &mut [Uuid]) -> usize {
        let mut count = 0;
        // SAFETY: the result has room.
        let is_known = (0..ATTEMPTS).any(|_| unsafe { (self.device_count)(&mut count) } == CUDA_SUCCESS);
        // If the count is unknown, the first device without a UUID ends the list.
        let count = if is_known { usize::try_from(count).unwrap_or(0) } else { out.len() };
        for (ordinal, out) in out.iter_mut().take(count).enumerate() {
            match self.uuid(ordinal as i32) {
                Some(uuid) => *out = uuid,
                None if is_known => {}
                None => return ordinal,
            }
        }
        count
    }

    /// Returns whether the process's contexts on a device run under MPS. A driver older than CUDA
    /// 12.1 does not answer, and the result is false.
    pub fn is_under_mps(&self, ordinal: usize) -> bool {
        self.attribute_of(ordinal, CU_DEVICE_ATTRIBUTE_MPS_ENABLED) == Some(1)
    }

    /// Returns the number of SMs of a device, as the driver tells it to this process.
    pub fn sms(&self, ordinal: usize) -> Option<u32> {
        u32::try_from(self.attribute_of(ordinal, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?).ok()
    }

    fn attribute_of(&self, ordinal: usize, attribute: CUdevice_attribute) -> Option<i32> {
        let (ask, device) = self.attribute.zip(i32::try_from(ordinal).ok())?;
        let mut value = 0;
        // SAFETY: the result has room; the driver checks the ordinal.
        let result = unsafe { ask(&mut value, attribute, device) };
        (result == CUDA_SUCCESS).then_some(value)
    }

    /// Returns the number of a function's blocks that one SM runs at once. A block has `threads`
    /// threads and `shared_bytes` bytes of dynamic shared memory. Returns `None` if the driver does
    /// not answer.
    pub fn resident_blocks(&self, function: usize, threads: u64, shared_bytes: u32) -> Option<u32> {
        let (ask, threads) = self.occupancy.zip(i32::try_from(threads).ok())?;
        let mut blocks = 0;
        // SAFETY: the result has room. The function is one that the process is about to launch, or
        // that a graph of the process contains.
        let result = unsafe { ask(&mut blocks, function as CUfunction, threads, shared_bytes as usize) };
        if result == CUDA_SUCCESS { u32::try_from(blocks).ok() } else { None }
    }

    fn uuid(&self, device: i32) -> Option<Uuid> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: the result has room; the driver checks the ordinal.
        let mut ask = |ask: pfn::cuDeviceGetUuid| unsafe { ask(&mut uuid, device) } == CUDA_SUCCESS;
        let mut is_told = || self.uuid_v2.is_some_and(&mut ask) || ask(self.uuid);
        (0..ATTEMPTS).any(|_| is_told()).then_some(uuid.bytes)
    }

    /// Returns whether work on `stream` can be part of a capture. If the driver does not answer,
    /// returns true.
    pub fn may_be_capturing(&self, stream: Stream) -> bool {
        self.is_capturing(stream) != Some(false)
    }

    /// Returns whether work on `stream` is part of a capture. Returns `None` if the driver does not
    /// answer.
    pub fn is_capturing(&self, stream: Stream) -> Option<bool> {
        let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the process is using the stream, and the result has room.
        let result = unsafe { (self.stream_is_capturing)(stream.handle(), &mut status) };
        (result == CUDA_SUCCESS).then_some(status != CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Swaps this thread's capture mode with `mode`. Returns whether the driver did so.
    fn exchange(&self, mode: &mut u32) -> bool {
        // SAFETY: only this call reads and writes the argument.
        (0..EXCHANGES).any(|_| unsafe { (self.exchange_capture_mode)(mode) } == CUDA_SUCCESS)
    }

    /// Permits this thread to make any call while other threads capture, from now on. Returns
    /// whether the driver agreed.
    pub fn relax_this_thread(&self) -> bool {
        self.exchange(&mut { CU_STREAM_CAPTURE_MODE_RELAXED })
    }

    /// Permits this thread to make any call while other threads capture, until the caller drops the
    /// result. Returns `None` if the driver did not agree. A call of deepres could then invalidate
    /// a capture of the job.
    pub fn relaxed(&self) -> Option<Relaxed<'_>> {
        let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        self.exchange(&mut mode).then_some(Relaxed { calls: self, previous: Some(mode) })
    }

    /// If any capture is active, permits any call as [`Self::relaxed`] does. If no capture is
    /// active, the thread's mode may stay, and the result changes nothing.
    pub fn beside_captures(&self) -> Option<Relaxed<'_>> {
        if capture::is_active() { self.relaxed() } else { Some(Relaxed { calls: self, previous: None }) }
    }

    /// Creates an event with timing in the current context, and returns it.
    pub fn create_event(&self) -> Option<Event> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the result has room.
        let result = unsafe { (self.event_create)(&mut event, 0) };
        (result == CUDA_SUCCESS && !event.is_null()).then_some(Event(event as usize))
    }

    /// Destroys `event`, which nothing uses any more.
    pub fn destroy_event(&self, event: Event) {
        // SAFETY: the event belongs to deepres, its context is alive, and the caller forgets it.
        unsafe { (self.event_destroy)(event.0 as *mut c_void) };
    }

    /// Records `event` on `stream`. Returns whether the driver did so.
    pub fn record(&self, event: Event, stream: Stream) -> bool {
        // SAFETY: the event belongs to deepres, and its context is alive. The driver checks the
        // stream.
        unsafe { (self.event_record)(event.0 as *mut c_void, stream.handle()) == CUDA_SUCCESS }
    }

    /// Returns the progress of `event`.
    pub fn query(&self, event: Event) -> Progress {
        // SAFETY: the event belongs to deepres, and its context is alive.
        Progress::of(unsafe { (self.event_query)(event.0 as *mut c_void) })
    }

    /// Returns the progress of all work on `stream`.
    pub fn query_stream(&self, stream: Stream) -> Progress {
        // SAFETY: the process is using the stream.
        Progress::of(unsafe { (self.stream_query)(stream.handle()) })
    }

    /// Returns the time between two completed events, ns. The time is negative if `to` completed
    /// first.
    pub fn elapsed_ns(&self, from: Event, to: Event) -> Option<i64> {
        let mut elapsed_ms = 0.0;
        // SAFETY: both events belong to deepres, their context is alive, and the result has room.
        let result =
            unsafe { (self.event_elapsed)(&mut elapsed_ms, from.0 as *mut c_void, to.0 as *mut c_void) };
        (result == CUDA_SUCCESS).then(|| (f64::from(elapsed_ms) * NS_PER_MS).round() as i64)
    }

    /// Returns the primary context of a device if it is active. The call does not activate the
    /// context.
    pub fn primary_context(&self, device: i32) -> Option<Context> {
        if self.is_primary_active(device) != Some(true) {
            return None;
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: the result has room, and the next call gives the reference back.
        unsafe {
            if (self.primary_retain)(&mut context, device) != CUDA_SUCCESS {
                return None;
            }
            (self.primary_release)(device);
        }
        (!context.is_null()).then_some(Context(context as usize))
    }

    /// Returns whether a device's primary context is active. Returns `None` if the driver does not
    /// answer.
    pub fn is_primary_active(&self, device: i32) -> Option<bool> {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: both results have room.
        let result = unsafe { (self.primary_state)(device, &mut flags, &mut active) };
        (result == CUDA_SUCCESS).then_some(active != 0)
    }
}

/// Restores the thread's capture mode when it is dropped, if deepres changed the mode.
pub struct Relaxed<'a> {
    calls: &'a Calls,
    previous: Option<u32>,
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        if let Some(mut mode) = self.previous {
            self.calls.exchange(&mut mode);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::driver::fake;

    #[test]
    fn a_thread_whose_capture_mode_is_not_swapped_makes_no_calls_beside_captures() {
        let calls = fake::calls();
        assert!(calls.relaxed().is_some() && calls.relax_this_thread());
        fake::refuse_exchange();
        assert!(calls.relaxed().is_none() && !calls.relax_this_thread());
    }
}
