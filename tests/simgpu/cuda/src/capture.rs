//! Stream capture: the streams in a capture, the calls that a capture forbids, and the calls that
//! break a capture.
//!
//! The rules are those of the driver API reference (Stream Management, cuStreamBeginCapture and
//! cuThreadExchangeStreamCaptureMode), and of the programming guide's section on prohibited
//! operations.
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use deepres_abi::driver::types as cu;

use crate::context::{Context, lock};
use crate::event::Event;
use crate::graph::{Dependency, Graph};
use crate::operation::Operation;
use crate::process;
use crate::status::{self, Result, Status};
use crate::stream::Stream;

/// One capture from its begin to its end.
pub struct Session {
    /// The number of the capture, unique in this process (`cuStreamGetCaptureInfo`).
    pub id: u64,
    /// The graph that receives the captured nodes.
    pub graph: Arc<Graph>,
    mode: u32,
    thread: u64,
    origin: u64,
    invalid: AtomicBool,
    members: Mutex<Vec<Weak<Stream>>>,
    /// Whether the client owned the graph before the capture. If the capture fails, a graph that
    /// the client owned stays.
    is_borrowed: bool,
}

/// A stream's part in a capture.
#[derive(Clone)]
pub struct Membership {
    /// The capture.
    pub session: Arc<Session>,
    /// Dependencies of the stream's next captured operation.
    pub after: Vec<Dependency>,
}

/// Position in a capture at which the client recorded an event.
#[derive(Clone)]
pub struct Captured {
    /// The capture.
    pub session: Arc<Session>,
    after: Vec<Dependency>,
}

/// Number of captures in progress, including those in relaxed mode. In a process without captures,
/// a call pays only one load of this number.
static ACTIVE_COUNT: AtomicUsize = AtomicUsize::new(0);
static ACTIVE: Mutex<Vec<Arc<Session>>> = Mutex::new(Vec::new());

thread_local! {
    static MODE: Cell<u32> = const { Cell::new(cu::CU_STREAM_CAPTURE_MODE_GLOBAL) };
    static THREAD: u64 = process::next_id();
}

impl Session {
    /// Breaks the capture. Every use of the capture returns `STREAM_CAPTURE_INVALIDATED` until the
    /// client ends it.
    pub fn invalidate(&self) {
        self.invalid.store(true, Ordering::Release);
    }

    /// Returns whether the capture is broken.
    pub fn is_invalid(&self) -> bool {
        self.invalid.load(Ordering::Acquire)
    }

    fn check(&self) -> Result<()> {
        if self.is_invalid() { Err(status::STREAM_CAPTURE_INVALIDATED) } else { Ok(()) }
    }

    fn break_with<T>(&self, code: Status) -> Result<T> {
        self.invalidate();
        Err(code)
    }

    fn enlist(self: &Arc<Self>, stream: &Arc<Stream>, after: Vec<Dependency>) {
        lock(&self.members).push(Arc::downgrade(stream));
        if stream.is_blocking() {
            stream.context.blocking_captures.fetch_add(1, Ordering::AcqRel);
        }
        stream.with_capture(|own| *own = Some(Membership { session: Arc::clone(self), after }));
    }
}

fn discharge(stream: &Stream) {
    let was_capturing = stream.with_capture(Option::take).is_some();
    if was_capturing && stream.is_blocking() {
        stream.context.blocking_captures.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Begins the capture of a stream, into a new graph or behind nodes of a given graph.
pub fn begin(stream: &Arc<Stream>, mode: u32, target: Option<(Arc<Graph>, Vec<Dependency>)>) -> Result<()> {
    status::refuse(mode > cu::CU_STREAM_CAPTURE_MODE_RELAXED)?;
    status::refuse_as(stream.is_legacy(), status::STREAM_CAPTURE_UNSUPPORTED)?;
    status::refuse_as(stream.is_capturing(), status::ILLEGAL_STATE)?;
    let is_borrowed = target.is_some();
    let (graph, after) = match target {
        Some(target) => target,
        None => (Graph::create()?, Vec::new()),
    };
    let session = Arc::new(Session {
        id: process::next_id(),
        graph,
        mode,
        thread: THREAD.with(|id| *id),
        origin: stream.id,
        invalid: AtomicBool::new(false),
        members: Mutex::default(),
        is_borrowed,
    });
    session.enlist(stream, after);
    let mut active = lock(&ACTIVE);
    active.push(session);
    ACTIVE_COUNT.store(active.len(), Ordering::Release);
    Ok(())
}

/// Ends the capture that began in this stream, and returns its graph.
pub fn end(stream: &Arc<Stream>) -> Result<Arc<Graph>> {
    let Some(membership) = stream.with_capture(|own| own.clone()) else { return Err(status::ILLEGAL_STATE) };
    let session = membership.session;
    if session.origin != stream.id {
        return session.break_with(status::STREAM_CAPTURE_UNMATCHED);
    }
    if session.mode != cu::CU_STREAM_CAPTURE_MODE_RELAXED && session.thread != THREAD.with(|id| *id) {
        return session.break_with(status::STREAM_CAPTURE_WRONG_THREAD);
    }
    let outcome = session.check().and_then(|()| check_joined(&session, stream, &membership.after));
    let members = std::mem::take(&mut *lock(&session.members));
    for member in members.iter().filter_map(Weak::upgrade) {
        discharge(&member);
    }
    let mut active = lock(&ACTIVE);
    active.retain(|other| other.id != session.id);
    ACTIVE_COUNT.store(active.len(), Ordering::Release);
    drop(active);
    // Events recorded in the capture still refer to the capture. The call makes these events
    // unusable.
    session.invalidate();
    match outcome {
        Ok(()) => Ok(Arc::clone(&session.graph)),
        Err(code) => {
            if !session.is_borrowed {
                let _ = crate::graph::destroy(session.graph.handle);
            }
            Err(code)
        }
    }
}

/// Checks that the end of the origin stream depends on all operations that other streams captured.
fn check_joined(session: &Session, origin: &Stream, after: &[Dependency]) -> Result<()> {
    let edges = session.graph.edges();
    let mut reached: Vec<usize> = after.iter().map(|dependency| dependency.node).collect();
    let mut at = 0;
    while at < reached.len() {
        let node = reached[at];
        at += 1;
        for (from, to, _) in &edges {
            if *to == node && !reached.contains(from) {
                reached.push(*from);
            }
        }
    }
    for member in lock(&session.members).iter().filter_map(Weak::upgrade) {
        if member.id == origin.id {
            continue;
        }
        let open = member.with_capture(|own| own.as_ref().map(|own| own.after.clone())).unwrap_or_default();
        if open.iter().any(|dependency| !reached.contains(&dependency.node)) {
            return Err(status::STREAM_CAPTURE_UNJOINED);
        }
    }
    Ok(())
}

/// Captures an operation.
pub fn add(stream: &Arc<Stream>, operation: Operation) -> Result<()> {
    let Some(membership) = stream.with_capture(|own| own.clone()) else { return operation.submit(stream) };
    membership.session.check()?;
    let node = membership.session.graph.add(operation, &membership.after)?;
    stream.with_capture(|own| {
        if let Some(own) = own {
            own.after = vec![Dependency::on(node.handle)];
        }
    });
    Ok(())
}

/// Returns allocation nodes whose addresses are free again at a capturing stream's position.
pub fn spare(stream: &Stream) -> Vec<crate::graph_memory::Node> {
    let own = stream.with_capture(|own| own.clone());
    own.map_or_else(Vec::new, |own| own.session.graph.spare(&own.after))
}

/// Returns a capturing stream's position, for an event that the client records in the stream.
pub fn place_of(stream: &Stream) -> Result<Captured> {
    let membership = stream.with_capture(|own| own.clone()).ok_or(status::ILLEGAL_STATE)?;
    membership.session.check()?;
    Ok(Captured { session: membership.session, after: membership.after })
}

/// Makes a stream wait for an event, if the stream or the event belongs to a capture.
pub fn join(stream: &Arc<Stream>, event: &Event) -> Result<()> {
    let own = stream.with_capture(|own| own.clone());
    let captured = event.captured();
    match (own, captured) {
        (Some(own), None) => {
            own.session.check()?;
            // A graph cannot contain a wait for work outside the capture. A wait for an event that
            // was never recorded has no effect.
            if event.ticket().is_none() {
                Ok(())
            } else {
                own.session.break_with(status::STREAM_CAPTURE_ISOLATION)
            }
        }
        (Some(own), Some(captured)) => {
            own.session.check()?;
            if own.session.id != captured.session.id {
                captured.session.invalidate();
                return own.session.break_with(status::STREAM_CAPTURE_MERGE);
            }
            stream.with_capture(|own| {
                if let Some(own) = own {
                    let new: Vec<_> = captured
                        .after
                        .iter()
                        .filter(|one| !own.after.iter().any(|known| known.node == one.node))
                        .copied()
                        .collect();
                    own.after.extend(new);
                }
            });
            Ok(())
        }
        (None, Some(captured)) => {
            status::refuse_as(captured.session.is_invalid(), status::CAPTURED_EVENT)?;
            if stream.is_legacy() {
                return captured.session.break_with(status::STREAM_CAPTURE_IMPLICIT);
            }
            captured.session.enlist(stream, captured.after.clone());
            Ok(())
        }
        (None, None) => Ok(()),
    }
}

/// Breaks the capture of a stream that is being destroyed.
pub fn abandon(stream: &Stream) {
    if let Some(membership) = stream.with_capture(|own| own.clone()) {
        membership.session.invalidate();
        discharge(stream);
        if membership.session.origin == stream.id {
            let mut active = lock(&ACTIVE);
            active.retain(|other| other.id != membership.session.id);
            ACTIVE_COUNT.store(active.len(), Ordering::Release);
        }
    }
}

/// Returns an error for work of the legacy stream if a captured stream exists for which the legacy
/// stream would wait.
#[inline]
pub fn refuse_implicit(stream: &Stream) -> Result<()> {
    if ACTIVE_COUNT.load(Ordering::Acquire) == 0 || !stream.is_legacy() {
        return Ok(());
    }
    if stream.context.blocking_captures.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    for other in stream.context.streams().iter().filter(|other| other.is_blocking()) {
        if let Some(membership) = other.with_capture(|own| own.clone()) {
            membership.session.invalidate();
        }
    }
    Err(status::STREAM_CAPTURE_IMPLICIT)
}

/// Returns an error if the client queries a capturing stream or waits for it.
pub fn refuse_synchronisation(stream: &Stream) -> Result<()> {
    if ACTIVE_COUNT.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    if let Some(membership) = stream.with_capture(|own| own.clone()) {
        membership.session.check()?;
        return membership.session.break_with(status::STREAM_CAPTURE_UNSUPPORTED);
    }
    refuse_implicit(stream)?;
    refuse_unsafe()
}

/// Returns an error if the client waits for a context with a captured stream.
pub fn refuse_context_synchronisation(context: &Context) -> Result<()> {
    if ACTIVE_COUNT.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    let mut is_refused = false;
    for stream in context.streams() {
        if let Some(membership) = stream.with_capture(|own| own.clone()) {
            membership.session.invalidate();
            is_refused = true;
        }
    }
    if is_refused { Err(status::STREAM_CAPTURE_UNSUPPORTED) } else { refuse_unsafe() }
}

/// Returns an error for calls that might wait for the GPU, or use it outside the capture. The
/// result depends on the calling thread's mode and on the captures in progress.
#[inline]
pub fn refuse_unsafe() -> Result<()> {
    if ACTIVE_COUNT.load(Ordering::Acquire) == 0 { Ok(()) } else { refuse_unsafe_now() }
}

#[cold]
fn refuse_unsafe_now() -> Result<()> {
    let mode = MODE.get();
    if mode == cu::CU_STREAM_CAPTURE_MODE_RELAXED {
        return Ok(());
    }
    let thread = THREAD.with(|id| *id);
    let is_in_the_way = |session: &Session| match session.mode {
        cu::CU_STREAM_CAPTURE_MODE_RELAXED => false,
        cu::CU_STREAM_CAPTURE_MODE_GLOBAL if mode == cu::CU_STREAM_CAPTURE_MODE_GLOBAL => true,
        _ => session.thread == thread,
    };
    let mut is_refused = false;
    for session in lock(&ACTIVE).iter().filter(|session| is_in_the_way(session)) {
        session.invalidate();
        is_refused = true;
    }
    if is_refused { Err(status::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
}

/// Sets the calling thread's mode and returns the previous mode.
pub fn exchange_mode(mode: u32) -> Result<u32> {
    status::refuse(mode > cu::CU_STREAM_CAPTURE_MODE_RELAXED)?;
    Ok(MODE.replace(mode))
}

/// Returns the state of a stream's capture, and the capture itself if there is one.
pub fn status_of(stream: &Stream) -> Result<(u32, Option<Membership>)> {
    if stream.is_legacy() && stream.context.blocking_captures.load(Ordering::Acquire) != 0 {
        return Err(status::STREAM_CAPTURE_IMPLICIT);
    }
    Ok(match stream.with_capture(|own| own.clone()) {
        None => (cu::CU_STREAM_CAPTURE_STATUS_NONE, None),
        Some(own) if own.session.is_invalid() => (cu::CU_STREAM_CAPTURE_STATUS_INVALIDATED, Some(own)),
        Some(own) => (cu::CU_STREAM_CAPTURE_STATUS_ACTIVE, Some(own)),
    })
}

/// Replaces or extends the dependencies of the next captured operation.
pub fn update_dependencies(stream: &Stream, nodes: Vec<Dependency>, replaces: bool) -> Result<()> {
    stream.with_capture(|own| {
        let own = own.as_mut().ok_or(status::ILLEGAL_STATE)?;
        own.session.check()?;
        let known: Vec<usize> = own.session.graph.nodes().iter().map(|node| node.handle).collect();
        status::refuse(nodes.iter().any(|node| !known.contains(&node.node)))?;
        if replaces {
            own.after.clear();
        }
        for node in nodes {
            if !own.after.iter().any(|one| one.node == node.node) {
                own.after.push(node);
            }
        }
        Ok(())
    })
}
