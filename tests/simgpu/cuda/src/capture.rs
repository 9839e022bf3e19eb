//! Stream capture: which streams take part, what is forbidden meanwhile and what breaks a capture.
//!
//! The rules are those of the driver API reference (Stream Management, cuStreamBeginCapture and cuThreadExchangeStreamCaptureMode) and the
//! programming guide's section on prohibited operations.
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

/// One capture, from begin to end.
pub struct Session {
    /// Unique in this process (`cuStreamGetCaptureInfo`).
    pub id: u64,
    /// What is captured into.
    pub graph: Arc<Graph>,
    mode: u32,
    thread: u64,
    origin: u64,
    invalid: AtomicBool,
    members: Mutex<Vec<Weak<Stream>>>,
    /// The graph was the client's before, and stays so when the capture fails.
    is_borrowed: bool,
}

/// A stream's part in a capture.
#[derive(Clone)]
pub struct Membership {
    /// The capture.
    pub session: Arc<Session>,
    /// What the next operation captured in the stream depends on.
    pub after: Vec<Dependency>,
}

/// Where in a capture an event was recorded.
#[derive(Clone)]
pub struct Captured {
    /// The capture.
    pub session: Arc<Session>,
    after: Vec<Dependency>,
}

/// Captures under way that were not begun in relaxed mode count here too; a process without any pays one load.
static ACTIVE_COUNT: AtomicUsize = AtomicUsize::new(0);
static ACTIVE: Mutex<Vec<Arc<Session>>> = Mutex::new(Vec::new());

thread_local! {
    static MODE: Cell<u32> = const { Cell::new(cu::CU_STREAM_CAPTURE_MODE_GLOBAL) };
    static THREAD: u64 = process::next_id();
}

impl Session {
    /// Breaks the capture: everything in it answers `STREAM_CAPTURE_INVALIDATED` until it is ended.
    pub fn invalidate(&self) {
        self.invalid.store(true, Ordering::Release);
    }

    /// Whether it was broken.
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

/// Begins to capture a stream, into a new graph or behind nodes of a given one.
pub fn begin(stream: &Arc<Stream>, mode: u32, target: Option<(Arc<Graph>, Vec<Dependency>)>) -> Result<()> {
    if mode > cu::CU_STREAM_CAPTURE_MODE_RELAXED {
        return Err(status::INVALID_VALUE);
    }
    if stream.is_legacy() {
        return Err(status::STREAM_CAPTURE_UNSUPPORTED);
    }
    if stream.is_capturing() {
        return Err(status::ILLEGAL_STATE);
    }
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

/// Ends the capture that began in this stream and answers its graph.
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
    // Events recorded in it refer to it still; they are no use any more.
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

/// Whether what other streams captured comes before the origin's end.
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

/// Allocation nodes whose addresses are free again where a capturing stream is.
pub fn spare(stream: &Stream) -> Vec<crate::graph_memory::Node> {
    let own = stream.with_capture(|own| own.clone());
    own.map_or_else(Vec::new, |own| own.session.graph.spare(&own.after))
}

/// Where a capturing stream is, for an event recorded in it.
pub fn place_of(stream: &Stream) -> Result<Captured> {
    let membership = stream.with_capture(|own| own.clone()).ok_or(status::ILLEGAL_STATE)?;
    membership.session.check()?;
    Ok(Captured { session: membership.session, after: membership.after })
}

/// A stream waits for an event, where one of them belongs to a capture.
pub fn join(stream: &Arc<Stream>, event: &Event) -> Result<()> {
    let own = stream.with_capture(|own| own.clone());
    let captured = event.captured();
    match (own, captured) {
        (Some(own), None) => {
            own.session.check()?;
            // Waiting for work outside the capture cannot be part of the graph; an event never recorded is nothing to wait for.
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
            if captured.session.is_invalid() {
                return Err(status::CAPTURED_EVENT);
            }
            if stream.is_legacy() {
                return captured.session.break_with(status::STREAM_CAPTURE_IMPLICIT);
            }
            captured.session.enlist(stream, captured.after.clone());
            Ok(())
        }
        (None, None) => Ok(()),
    }
}

/// A stream that is being destroyed leaves its capture broken.
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

/// Refuses to put work into the legacy stream while a stream that it would wait for is being captured.
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

/// Refuses to ask a capturing stream how far it is, or to wait for it.
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

/// Refuses to wait for a context in which something is being captured.
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

/// Refuses calls that might wait for the GPU or use it unseen, where the calling thread's mode and the captures under way say so.
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

/// Sets the calling thread's mode and answers the one before.
pub fn exchange_mode(mode: u32) -> Result<u32> {
    if mode > cu::CU_STREAM_CAPTURE_MODE_RELAXED {
        return Err(status::INVALID_VALUE);
    }
    Ok(MODE.replace(mode))
}

/// Whether and how a stream is being captured.
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

/// Replaces or extends what the next captured operation depends on.
pub fn update_dependencies(stream: &Stream, nodes: Vec<Dependency>, replaces: bool) -> Result<()> {
    stream.with_capture(|own| {
        let own = own.as_mut().ok_or(status::ILLEGAL_STATE)?;
        own.session.check()?;
        let known: Vec<usize> = own.session.graph.nodes().iter().map(|node| node.handle).collect();
        if nodes.iter().any(|node| !known.contains(&node.node)) {
            return Err(status::INVALID_VALUE);
        }
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
