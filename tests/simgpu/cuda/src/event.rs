//! Events: points in streams that threads and streams can wait for, query and time.
use std::sync::{Arc, Mutex};

use deepres_abi::driver::types as cu;
use simgpu_engine::{EventId, EventStatus, Ticket};

use crate::capture::{self, Captured};
use crate::context::{self, Context, code_of, lock};
use crate::handle::{Kind, Table};
use crate::process::{config, host};
use crate::status::{self, Result};
use crate::stream::Stream;
use crate::{pending, pool};

/// All live events.
pub static EVENTS: Table<Event> = Table::new(Kind::Event);

const FLAGS_MASK: u32 = cu::CU_EVENT_BLOCKING_SYNC | cu::CU_EVENT_DISABLE_TIMING | cu::CU_EVENT_INTERPROCESS;
const NS_PER_MS: f64 = 1e6;

/// A CUDA event.
pub struct Event {
    /// The handle by which clients name the event.
    pub handle: usize,
    /// The context of the creation; `None` for an event opened from another process.
    pub context: Option<Arc<Context>>,
    /// The flags that the client passed at the creation.
    pub flags: u32,
    /// The engine's event.
    pub engine: EventId,
    /// Position of the last record in its capture, if it was captured.
    captured: Mutex<Option<Captured>>,
    /// Whether the engine's event belongs to another process. An importing process does not destroy
    /// the exporter's event.
    borrowed: bool,
}

impl Event {
    fn insert(
        context: Option<Arc<Context>>,
        flags: u32,
        engine: EventId,
        borrowed: bool,
    ) -> Result<Arc<Self>> {
        let event = EVENTS.insert_with(|handle| {
            Arc::new(Self { handle, context, flags, engine, captured: Mutex::new(None), borrowed })
        });
        event.ok_or(status::OUT_OF_MEMORY)
    }

    /// Creates an event in the current context.
    pub fn create(flags: u32) -> Result<Arc<Self>> {
        let interprocess = flags & cu::CU_EVENT_INTERPROCESS != 0;
        if flags & !FLAGS_MASK != 0 || (interprocess && flags & cu::CU_EVENT_DISABLE_TIMING == 0) {
            return Err(status::INVALID_VALUE);
        }
        let context = context::current()?;
        let engine = host().create_event().map_err(|error| code_of(&error))?;
        Self::insert(Some(context), flags, engine, false)
    }

    /// Opens another process's event, and returns it.
    pub fn open(bits: u64) -> Result<Arc<Self>> {
        context::current()?;
        let flags = cu::CU_EVENT_INTERPROCESS | cu::CU_EVENT_DISABLE_TIMING;
        Self::insert(None, flags, EventId::from_bits(bits), true)
    }

    /// Returns whether a client may use the event with work of `context`. Clients may use an event
    /// of another process with any work.
    fn belongs_to(&self, context: &Context) -> bool {
        self.context.as_ref().is_none_or(|own| own.handle == context.handle)
    }

    /// Returns an error if a launch cannot record the event on `stream`
    /// (`CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT`).
    pub fn check_for_launch(&self, stream: &Stream) -> Result<()> {
        let is_fit = self.flags & cu::CU_EVENT_DISABLE_TIMING != 0
            && self.flags & cu::CU_EVENT_INTERPROCESS == 0
            && !self.borrowed;
        status::refuse(!is_fit)?;
        if self.belongs_to(&stream.context) { Ok(()) } else { Err(status::INVALID_HANDLE) }
    }

    /// Records the event behind all work of `stream`.
    pub fn record(self: &Arc<Self>, stream: &Arc<Stream>) -> Result<()> {
        status::refuse_as(!self.belongs_to(&stream.context), status::INVALID_HANDLE)?;
        if stream.is_capturing() {
            let place = capture::place_of(stream)?;
            *lock(&self.captured) = Some(place);
            return Ok(());
        }
        capture::refuse_implicit(stream)?;
        *lock(&self.captured) = None;
        self.record_now(stream)
    }

    /// Records the event even if the stream is captured, as an event-record node of a graph does.
    pub fn record_now(&self, stream: &Stream) -> Result<()> {
        stream.wait_for(&[])?;
        let until_ns = host().now_ns() + config().record_cost_ns;
        host().record(stream.engine, self.engine).map_err(|error| code_of(&error))?;
        while config().record_cost_ns > 0 && host().now_ns() < until_ns {
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Returns the position of the last record in its capture, if it was captured.
    pub fn captured(&self) -> Option<Captured> {
        lock(&self.captured).clone()
    }

    /// Returns the ticket for which a stream has to wait. Returns `None` if the event was never
    /// recorded.
    pub fn ticket(&self) -> Option<Ticket> {
        host().event_ticket(self.engine)
    }

    fn refuse_while_captured(&self) -> Result<()> {
        if let Some(captured) = self.captured() {
            captured.session.invalidate();
            return Err(status::CAPTURED_EVENT);
        }
        capture::refuse_unsafe()
    }

    /// Returns an error if the last record has not completed. An event that no client has recorded
    /// is complete.
    pub fn query(&self) -> Result<()> {
        self.refuse_while_captured()?;
        match host().event_status(self.engine) {
            EventStatus::Pending => Err(status::NOT_READY),
            EventStatus::Gone => Err(status::INVALID_HANDLE),
            EventStatus::NeverRecorded | EventStatus::Done { .. } => {
                pending::settle();
                Ok(())
            }
        }
    }

    /// Waits for the last record.
    pub fn synchronize(&self) -> Result<()> {
        self.refuse_while_captured()?;
        let blocking = self.flags & cu::CU_EVENT_BLOCKING_SYNC != 0;
        let policy = match &self.context {
            Some(context) if !blocking => context.wait_policy(),
            _ => simgpu_engine::WaitPolicy::Block,
        };
        if host().wait_event(self.engine, policy) == EventStatus::Gone {
            return Err(status::INVALID_HANDLE);
        }
        pending::settle();
        if let Some(context) = &self.context {
            pool::trim_at_synchronisation(context.device);
        }
        Ok(())
    }

    fn time_ns(&self) -> Result<u64> {
        status::refuse_as(self.flags & cu::CU_EVENT_DISABLE_TIMING != 0, status::INVALID_HANDLE)?;
        match host().event_status(self.engine) {
            EventStatus::Done { at_ns } => Ok(config().device_ns(at_ns)),
            EventStatus::Pending => Err(status::NOT_READY),
            EventStatus::NeverRecorded | EventStatus::Gone => Err(status::INVALID_HANDLE),
        }
    }
}

/// Returns the milliseconds between two recorded events, in the API's single precision.
pub fn elapsed_ms(start: &Event, end: &Event) -> Result<f32> {
    if let (Some(one), Some(other)) = (&start.context, &end.context)
        && one.gpu != other.gpu
    {
        return Err(status::INVALID_HANDLE);
    }
    if start.captured().is_some() || end.captured().is_some() {
        return Err(status::CAPTURED_EVENT);
    }
    // If one event cannot have a time, the call fails, even if the second event is still pending.
    let (start, end) = match (start.time_ns(), end.time_ns()) {
        (Err(status::INVALID_HANDLE), _) | (_, Err(status::INVALID_HANDLE)) => {
            return Err(status::INVALID_HANDLE);
        }
        (start, end) => (start?, end?),
    };
    Ok(((end as i128 - start as i128) as f64 / NS_PER_MS) as f32)
}

/// Returns the event of a handle, unless its context has ended.
pub fn by_handle(handle: usize) -> Result<Arc<Event>> {
    let event = EVENTS.get(handle).ok_or(status::INVALID_HANDLE)?;
    match &event.context {
        Some(context) if !context.is_alive() => Err(status::CONTEXT_IS_DESTROYED),
        _ => Ok(event),
    }
}

/// Destroys an event. A pending record completes without effect.
pub fn destroy(handle: usize) -> Result<()> {
    let event = EVENTS.remove(handle).ok_or(status::INVALID_HANDLE)?;
    if !event.borrowed {
        host().destroy_event(event.engine);
    }
    Ok(())
}

/// Makes `stream` wait for `event` (cuStreamWaitEvent).
pub fn wait_in_stream(stream: &Arc<Stream>, event: &Arc<Event>, flags: u32) -> Result<()> {
    status::refuse(flags & !(cu::CU_EVENT_WAIT_EXTERNAL) != 0)?;
    if flags & cu::CU_EVENT_WAIT_EXTERNAL != 0 {
        return if stream.is_capturing() {
            capture::add(stream, crate::operation::Operation::EventWait(Arc::clone(event)))
        } else {
            Err(status::ILLEGAL_STATE)
        };
    }
    if stream.is_capturing() || event.captured().is_some() {
        return capture::join(stream, event);
    }
    capture::refuse_implicit(stream)?;
    match event.ticket() {
        Some(ticket) => stream.wait_for(&[ticket]),
        None => Ok(()),
    }
}

/// Makes all streams of a context wait for `event` (cuCtxWaitEvent).
pub fn wait_in_context(context: &Arc<Context>, event: &Arc<Event>) -> Result<()> {
    let streams: Vec<_> = context.streams().into_iter().chain([context.legacy()?]).collect();
    if event.captured().is_some() || streams.iter().any(|stream| stream.is_capturing()) {
        return Err(status::STREAM_CAPTURE_UNSUPPORTED);
    }
    let Some(ticket) = event.ticket() else { return Ok(()) };
    streams.iter().try_for_each(|stream| stream.wait_for(&[ticket]))
}

/// Updates the events of an ended context. The events stay as dead handles until their owner
/// destroys them. The engine keeps no work for them.
pub fn forget_context(context: usize) {
    for event in EVENTS.all() {
        if event.context.as_ref().is_some_and(|own| own.handle == context) {
            *lock(&event.captured) = None;
        }
    }
}
