//! Counts the stream captures that are under way. While there are none, launches pay one load for it.
//!
//! A captured launch does not execute: it is neither gated nor charged, and no marker of ours may get into the graph. The graph's launch
//! is metered instead.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult};

use crate::driver::calls::{Context, Stream};
use crate::os::Patience;
use crate::{os, thread};

/// A capture that is under way.
#[derive(Debug, Clone, Copy)]
struct Capture {
    /// Where it was begun.
    stream: Stream,
    /// The context of that stream, if the driver could tell: the capture ends with it.
    context: Option<Context>,
    /// Who began it.
    thread: u32,
}

impl Capture {
    /// Whether it is the one on `stream`. A default stream is another one in each context and, if it is the per-thread one, to each thread.
    fn is_on(&self, stream: Stream, context: Option<Context>) -> bool {
        let is_same = self.context == context && self.thread == thread::id();
        self.stream == stream && (!stream.is_default() || is_same)
    }
}

/// How many captures are under way, and whether the process is recorded ([`crate::record`]): one word, so that a launch that nothing is in the
/// way of loads but one.
static ACTIVE: AtomicU32 = AtomicU32::new(0);
/// The bit of [`ACTIVE`] that says so.
const RECORDED: u32 = 1 << 31;
static CAPTURES: Mutex<Vec<Capture>> = Mutex::new(Vec::new());

/// Shared by who records a marker, from the look whether the stream captures until it is recorded; had alone by who makes a stream capture.
static MARKERS: RwLock<()> = RwLock::new(());
/// How long each waits for the other at most, ns. A driver's call takes some µs; but one that finds a full queue waits for the GPU, which may wait for
/// this thread.
const MARKERS_LIMIT_NS: u64 = 1_000_000_000;

/// Until when nobody waits any more, since somebody did in vain; ns of `CLOCK_MONOTONIC`.
static HASTY_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
/// How long that lasts, ns.
const HASTY_NS: u64 = 10 * MARKERS_LIMIT_NS;

fn patiently<G>(lock: impl Fn() -> TryLockResult<G>) -> Option<G> {
    let mut patience = Patience::default();
    let is_hasty = || os::now_ns() < HASTY_UNTIL_NS.load(Ordering::Relaxed);
    loop {
        match lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if !is_hasty() && patience.goes_on(MARKERS_LIMIT_NS) => {}
            Err(TryLockError::WouldBlock) => {
                if !is_hasty() {
                    HASTY_UNTIL_NS.store(os::now_ns() + HASTY_NS, Ordering::Relaxed);
                }
                return None;
            }
        }
    }
}

/// As long as the result lives, no stream begins or joins a capture. `None`: one is about to, and takes long.
pub fn marking() -> Option<RwLockReadGuard<'static, ()>> {
    patiently(|| MARKERS.try_read())
}

/// As long as the result lives, nobody records a marker: one that was meant for a stream that does not capture would become part of the graph, and a question
/// for it would end the capture.
pub fn joining() -> Option<RwLockWriteGuard<'static, ()>> {
    patiently(|| MARKERS.try_write())
}

/// Whether nobody records a marker at this moment.
#[cfg(test)]
pub fn may_join() -> bool {
    MARKERS.try_write().is_ok()
}

/// Whether launches may simply go: nothing is captured or recorded.
#[inline(always)]
pub fn is_clear() -> bool {
    ACTIVE.load(Ordering::Relaxed) == 0
}

/// Whether any stream of the process may be capturing.
#[inline(always)]
pub fn is_active() -> bool {
    ACTIVE.load(Ordering::Relaxed) & !RECORDED != 0
}

/// Whether the process is recorded.
#[inline(always)]
pub fn is_recording() -> bool {
    ACTIVE.load(Ordering::Relaxed) & RECORDED != 0
}

/// The process is recorded from now on, or no longer.
pub fn set_recording(is_recording: bool) {
    if is_recording {
        ACTIVE.fetch_or(RECORDED, Ordering::SeqCst);
    } else {
        ACTIVE.fetch_and(!RECORDED, Ordering::SeqCst);
    }
}

fn change(change: impl FnOnce(&mut Vec<Capture>)) {
    let mut captures = CAPTURES.lock().unwrap_or_else(PoisonError::into_inner);
    let before = captures.len() as u32;
    change(&mut captures);
    // A difference, which leaves the other bit as it is.
    ACTIVE.fetch_add((captures.len() as u32).wrapping_sub(before), Ordering::SeqCst);
}

/// Has the thread's end take out what its own default stream captures then: nobody else can name that stream.
struct AtEnd;

impl Drop for AtEnd {
    fn drop(&mut self) {
        let is_own =
            |capture: &Capture| capture.stream == Stream::PER_THREAD && capture.thread == thread::id();
        if is_active() {
            change(|captures| captures.retain(|capture| !is_own(capture)));
        }
    }
}

thread_local! {
    static AT_END: AtEnd = const { AtEnd };
}

/// A capture is about to begin on `stream`, which is of `context`. Counted before it does, so that no marker slips in.
pub fn begin(stream: Stream, context: Option<Context>) {
    if stream == Stream::PER_THREAD {
        // A thread that is ending already captures no more.
        let _ = AT_END.try_with(|_| ());
    }
    change(|captures| captures.push(Capture { stream, context, thread: thread::id() }));
}

/// A capture on `stream`, which is of `context`, ended, or did not begin.
pub fn end(stream: Stream, context: Option<Context>) {
    change(|captures| {
        if let Some(place) = captures.iter().position(|capture| capture.is_on(stream, context)) {
            captures.swap_remove(place);
        }
    });
}

/// A stream that is about to be destroyed: its capture, if it has one, goes on being counted and is nobody's until it is known how the call ended. So the next
/// stream of the same handle cannot be taken for it.
#[must_use]
pub fn leave(stream: Stream) -> Leaving {
    let mut captures = CAPTURES.lock().unwrap_or_else(PoisonError::into_inner);
    let place = captures.iter().position(|capture| capture.stream == stream);
    Leaving(place.map(|place| captures.swap_remove(place)))
}

/// See [`leave`].
pub struct Leaving(Option<Capture>);

impl Leaving {
    /// The stream is gone, or it is not and captures as before.
    pub fn settle(self, is_gone: bool) {
        let Some(capture) = self.0 else { return };
        if is_gone {
            ACTIVE.fetch_sub(1, Ordering::SeqCst);
        } else {
            CAPTURES.lock().unwrap_or_else(PoisonError::into_inner).push(capture);
        }
    }
}

/// A context is gone, and with it every capture on its streams.
pub fn forget_context(context: Context) {
    if is_active() {
        change(|captures| captures.retain(|capture| capture.context != Some(context)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_marker_is_recorded_while_a_stream_joins_a_capture() {
        let marking = (marking(), marking());
        assert!(marking.0.is_some() && marking.1.is_some(), "others may");
        std::thread::scope(|scope| {
            let joins = scope.spawn(|| joining().is_some());
            assert!(!joins.is_finished());
            drop(marking);
            assert!(joins.join().unwrap());
        });
        let joining = joining();
        assert!(joining.is_some() && MARKERS.try_read().is_err());
    }

    #[test]
    fn captures_are_active_until_each_one_ended_or_lost_its_context() {
        let (one, other) = (Stream(100), Stream(200));
        begin(one, None);
        set_recording(true);
        begin(other, None);
        end(one, None);
        end(one, None);
        assert!(is_recording());
        set_recording(false);
        assert!(is_active(), "ending twice ends one");
        end(other, None);
        assert!(!is_active());
        begin(one, Some(Context(1)));
        begin(one, Some(Context(2)));
        forget_context(Context(1));
        assert!(is_active(), "the other context lives");
        forget_context(Context(2));
        assert!(!is_active());
        begin(one, None);
        leave(one).settle(false);
        assert!(is_active(), "the stream was not destroyed");
        let leaving = leave(one);
        begin(one, None);
        leaving.settle(true);
        assert!(is_active(), "the next stream of that handle captures");
        end(one, None);
        leave(other).settle(true);
        assert!(!is_active());
        begin(Stream::PER_THREAD, Some(Context(1)));
        end(Stream::PER_THREAD, Some(Context(2)));
        assert!(is_active(), "that is the other context's stream");
        std::thread::spawn(|| end(Stream::PER_THREAD, Some(Context(1)))).join().unwrap();
        std::thread::spawn(|| begin(Stream::PER_THREAD, Some(Context(1)))).join().unwrap();
        assert!(is_active(), "that is the other thread's stream");
        end(Stream::PER_THREAD, Some(Context(1)));
        assert!(!is_active(), "what a thread's own stream captured went with the thread");
        std::thread::spawn(move || begin(one, None)).join().unwrap();
        assert!(is_active(), "others outlive who began on them");
        end(one, None);
        assert!(!is_active());
    }
}
