//! Streams: in-order queues, the two default streams, and the order between streams.
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use deepres_abi::driver::types as cu;
use simgpu_engine::{StreamId, Ticket, Work};

use crate::capture::{self, Membership};
use crate::context::{self, Context, code_of, lock};
use crate::green::Green;
use crate::handle::{Kind, Table};
use crate::operation::Operation;
use crate::process::{self, host};
use crate::status::{self, Result};
use crate::{pending, pool};

/// All live streams.
pub static STREAMS: Table<Stream> = Table::new(Kind::Stream);

/// Lowest and highest priority of a stream. A smaller number is more urgent.
pub const PRIORITIES: (i32, i32) = (0, -5);

/// Handle of the legacy default stream (`CU_STREAM_LEGACY`).
const LEGACY_HANDLE: usize = 1;
/// Handle of the calling thread's default stream (`CU_STREAM_PER_THREAD`).
const PER_THREAD_HANDLE: usize = 2;

/// Meaning of stream handle 0 in a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultStream {
    /// The stream that synchronises with all blocking streams.
    Legacy,
    /// The calling thread's own default stream.
    PerThread,
}

/// A CUDA stream.
pub struct Stream {
    /// The handle by which clients name the stream; the special handle for a default stream.
    pub handle: usize,
    /// The number of the stream, unique in this process.
    pub id: u64,
    /// The stream's context; the primary context for a stream of a green context.
    pub context: Arc<Context>,
    /// The stream's green context, if it has one.
    pub green: Option<Arc<Green>>,
    /// The engine's queue.
    pub engine: StreamId,
    /// The flags that the client passed at the creation.
    pub flags: u32,
    /// Priority within the valid range.
    pub priority: i32,
    is_legacy: bool,
    /// The legacy stream's queue. Set for streams that synchronise with the legacy stream.
    legacy: Option<StreamId>,
    /// Sequence in the legacy stream up to which this stream is already ordered after the legacy
    /// stream.
    seen_of_legacy: AtomicU64,
    /// Sequence in this stream up to which the legacy stream is already ordered after this stream.
    seen_by_legacy: AtomicU64,
    capturing: AtomicBool,
    capture: Mutex<Option<Membership>>,
    /// Attributes that the client stored.
    pub attributes: Attributes,
}

/// Launch attributes that a client stored in a stream or a node.
#[derive(Default)]
pub struct Attributes(Mutex<HashMap<u32, [u8; 64]>>);

impl Attributes {
    /// Returns a stored attribute, or zeros.
    pub fn get(&self, id: u32) -> [u8; 64] {
        lock(&self.0).get(&id).copied().unwrap_or([0; 64])
    }

    /// Stores an attribute.
    pub fn set(&self, id: u32, value: [u8; 64]) {
        lock(&self.0).insert(id, value);
    }

    /// Copies the attributes of another object.
    pub fn copy(&self, from: &Self) {
        let copied = lock(&from.0).clone();
        *lock(&self.0) = copied;
    }
}

thread_local! {
    static PER_THREAD: RefCell<PerThread> = RefCell::default();
}

/// A thread's own default streams, by the id of the context or green context. When the thread ends,
/// the streams end.
#[derive(Default)]
struct PerThread(HashMap<u64, Arc<Stream>>);

impl Drop for PerThread {
    fn drop(&mut self) {
        if process::check_ready().is_err() {
            return;
        }
        for stream in self.0.values() {
            stream.context.remove_stream(stream);
            host().destroy_stream(stream.engine);
        }
    }
}

impl Stream {
    fn new(
        context: &Arc<Context>,
        green: Option<&Arc<Green>>,
        handle: usize,
        flags: u32,
        priority: i32,
        legacy: Option<StreamId>,
    ) -> Result<Self> {
        let urgency = PRIORITIES.0.saturating_sub(priority).unsigned_abs();
        let engine = host().create_urgent_stream(context.engine, urgency).map_err(|error| code_of(&error))?;
        Ok(Self {
            handle,
            id: process::next_id(),
            context: Arc::clone(context),
            green: green.cloned(),
            engine,
            flags,
            priority,
            is_legacy: handle == LEGACY_HANDLE,
            legacy,
            seen_of_legacy: AtomicU64::new(0),
            seen_by_legacy: AtomicU64::new(0),
            capturing: AtomicBool::new(false),
            capture: Mutex::new(None),
            attributes: Attributes::default(),
        })
    }

    /// Creates the legacy default stream of a new context or green context.
    pub fn create_legacy(context: &Arc<Context>, green: Option<&Arc<Green>>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self::new(context, green, LEGACY_HANDLE, cu::CU_STREAM_DEFAULT, 0, None)?))
    }

    /// Creates a stream for a client.
    pub fn create(
        context: &Arc<Context>,
        green: Option<&Arc<Green>>,
        flags: u32,
        priority: i32,
    ) -> Result<Arc<Self>> {
        status::refuse(flags & !cu::CU_STREAM_NON_BLOCKING != 0)?;
        let legacy = (flags & cu::CU_STREAM_NON_BLOCKING == 0).then_some(legacy_of(context, green)?.engine);
        let (least, greatest) = PRIORITIES;
        let mut made = Self::new(context, green, 0, flags, priority.clamp(greatest, least), legacy)?;
        let stream = STREAMS
            .insert_with(|handle| {
                made.handle = handle;
                Arc::new(made)
            })
            .ok_or(status::OUT_OF_MEMORY)?;
        context.add_stream(&stream);
        Ok(stream)
    }

    fn per_thread(context: &Arc<Context>, green: Option<&Arc<Green>>) -> Result<Arc<Self>> {
        let id = green.map_or(context.id, |green| green.id);
        PER_THREAD
            .try_with(|own| {
                let own = &mut own.borrow_mut().0;
                if let Some(stream) = own.get(&id) {
                    return Ok(Arc::clone(stream));
                }
                own.retain(|_, stream| stream.context.is_alive());
                let legacy = Some(legacy_of(context, green)?.engine);
                let made = Self::new(context, green, PER_THREAD_HANDLE, cu::CU_STREAM_DEFAULT, 0, legacy)?;
                let stream = Arc::new(made);
                context.add_stream(&stream);
                own.insert(id, Arc::clone(&stream));
                Ok(stream)
            })
            .unwrap_or(Err(status::DEINITIALIZED))
    }

    /// Returns whether the stream synchronises with the legacy stream.
    pub fn is_blocking(&self) -> bool {
        self.legacy.is_some()
    }

    /// Returns whether the stream is the legacy default stream.
    pub fn is_legacy(&self) -> bool {
        self.is_legacy
    }

    /// Returns whether the driver captures work for the stream instead of running it.
    #[inline]
    pub fn is_capturing(&self) -> bool {
        self.capturing.load(Ordering::Acquire)
    }

    /// Calls `look` with the stream's part in a capture, and returns the result. `look` can change
    /// the part.
    pub fn with_capture<R>(&self, look: impl FnOnce(&mut Option<Membership>) -> R) -> R {
        let mut membership = lock(&self.capture);
        let answer = look(&mut membership);
        self.capturing.store(membership.is_some(), Ordering::Release);
        answer
    }

    /// Returns the work of other streams that must complete before work submitted now may start.
    #[inline]
    fn after(&self) -> After {
        let mut after = After::default();
        if let Some(legacy) = self.legacy {
            let last = host().last_ticket(legacy);
            if last.sequence > self.seen_of_legacy.load(Ordering::Relaxed) {
                self.seen_of_legacy.store(last.sequence, Ordering::Relaxed);
                after.0.push(last);
            }
        } else if self.is_legacy && self.context.blocking_streams.load(Ordering::Acquire) != 0 {
            for stream in self.context.streams().iter().filter(|stream| stream.is_blocking()) {
                let last = host().last_ticket(stream.engine);
                if last.sequence > stream.seen_by_legacy.load(Ordering::Relaxed) {
                    stream.seen_by_legacy.store(last.sequence, Ordering::Relaxed);
                    after.0.push(last);
                }
            }
        }
        after
    }

    /// Puts one item of engine work into the queue, and returns its ticket.
    #[inline]
    pub fn enqueue(&self, work: Work) -> Result<Ticket> {
        let work = self.green.as_ref().map_or(work, |green| green.confined(work));
        host().submit(self.engine, work, &self.after().0).map_err(|error| code_of(&error))
    }

    /// Puts several items into the queue at once, and returns the ticket of the last item.
    pub fn enqueue_all(&self, work: &[Work]) -> Result<Ticket> {
        let confined: Vec<Work>;
        let work = match &self.green {
            Some(green) => {
                confined = work.iter().map(|work| green.confined(*work)).collect();
                &confined
            }
            None => work,
        };
        host().submit_all(self.engine, work, &self.after().0).map_err(|error| code_of(&error))
    }

    /// Returns the ticket of the last work in the queue.
    pub fn last_ticket(&self) -> Ticket {
        host().last_ticket(self.engine)
    }

    /// Makes all later work of the stream wait for `tickets`.
    pub fn wait_for(&self, tickets: &[Ticket]) -> Result<()> {
        let mut after = self.after().0;
        after.extend_from_slice(tickets);
        if after.is_empty() {
            return Ok(());
        }
        host().wait_in_stream(self.engine, &after).map_err(|error| code_of(&error))
    }

    /// Captures the operation if the stream is being captured, else submits it.
    pub fn submit(self: &Arc<Self>, operation: Operation) -> Result<()> {
        if self.is_capturing() {
            return capture::add(self, operation);
        }
        capture::refuse_implicit(self)?;
        operation.submit(self)
    }

    /// Returns an error if the stream still has work.
    pub fn query(&self) -> Result<()> {
        capture::refuse_synchronisation(self)?;
        for ticket in self.everything() {
            status::refuse_as(host().query(ticket).is_none(), status::NOT_READY)?;
        }
        pending::settle();
        Ok(())
    }

    /// Waits for all work of the stream.
    pub fn synchronize(&self) -> Result<()> {
        capture::refuse_synchronisation(self)?;
        let policy = self.context.wait_policy();
        for ticket in self.everything() {
            host().wait(ticket, policy);
        }
        pending::settle();
        pool::trim_at_synchronisation(self.context.device);
        Ok(())
    }

    /// Returns the tickets for which a wait for this stream waits. For the legacy stream, these
    /// include tickets of the blocking streams.
    fn everything(&self) -> Vec<Ticket> {
        let mut all = vec![host().last_ticket(self.engine)];
        if self.is_legacy && self.context.blocking_streams.load(Ordering::Acquire) != 0 {
            let blocking = self.context.streams();
            all.extend(
                blocking
                    .iter()
                    .filter(|other| other.is_blocking())
                    .map(|other| host().last_ticket(other.engine)),
            );
        }
        all
    }

    /// Removes the stream from the tables when its context ends.
    pub fn forget(&self) {
        capture::abandon(self);
        STREAMS.remove(self.handle);
    }
}

/// Tickets to wait for. The list is almost always empty.
#[derive(Default)]
struct After(Vec<Ticket>);

/// Returns the legacy default stream of a context, or of a green context in it.
fn legacy_of(context: &Context, green: Option<&Arc<Green>>) -> Result<Arc<Stream>> {
    green.map_or_else(|| context.legacy(), |green| green.legacy())
}

/// Returns the stream of a handle.
#[inline]
pub fn resolve(handle: usize, default: DefaultStream) -> Result<Arc<Stream>> {
    match (handle, default) {
        (LEGACY_HANDLE, _) | (0, DefaultStream::Legacy) => {
            legacy_of(&*context::current()?, context::current_green().as_ref())
        }
        (PER_THREAD_HANDLE, _) | (0, DefaultStream::PerThread) => {
            Stream::per_thread(&context::current()?, context::current_green().as_ref())
        }
        _ => {
            let stream = STREAMS.get(handle).ok_or(status::INVALID_HANDLE)?;
            let is_detached = stream.green.as_ref().is_some_and(|green| !green.is_alive());
            status::refuse_as(is_detached, status::STREAM_DETACHED)?;
            if stream.context.is_alive() { Ok(stream) } else { Err(status::CONTEXT_IS_DESTROYED) }
        }
    }
}

/// Destroys a stream. Work that is already in the stream still runs.
pub fn destroy(handle: usize) -> Result<()> {
    let stream = STREAMS.remove(handle).ok_or(status::INVALID_HANDLE)?;
    capture::abandon(&stream);
    stream.context.remove_stream(&stream);
    host().destroy_stream(stream.engine);
    Ok(())
}
