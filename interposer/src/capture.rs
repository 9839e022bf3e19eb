//! Counts the active stream captures. While no stream captures, a launch pays one load for this
//! module.
//!
//! A captured launch does not run. So a captured launch passes no gate, and the tenant is not
//! charged. No marker may get into the graph. The interposer meters the launch of the graph
//! instead.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult};

use deepres_abi::coverage::Bypass;

use crate::driver::calls::{Calls, Context, Stream};
use crate::lock_order::{Mutex, Rank};
use crate::os::Patience;
use crate::{os, thread};

/// An active stream capture of this process.
#[derive(Debug, Clone, Copy)]
struct Capture {
    /// The stream on which the job began the capture.
    stream: Stream,
    /// The context of that stream, if the driver named the context. The capture ends with the
    /// context.
    context: Option<Context>,
    /// The thread that began the capture.
    thread: u32,
}

impl Capture {
    /// Returns whether this is the capture on `stream`. The handle of a default stream names a
    /// different stream in each context. The handle of the per-thread default stream also names a
    /// different stream in each thread.
    fn is_on(&self, stream: Stream, context: Option<Context>) -> bool {
        let is_same = self.context == context && self.thread == thread::id();
        self.stream == stream && (!stream.is_default() || is_same)
    }
}

/// The number of active captures, and two bits. One says whether the interposer records the process
/// ([`crate::record`]). The other says whether the process follows a plan ([`crate::plan`]). The
/// number and the bits share a word, so that a launch loads only one word in most cases.
static ACTIVE: AtomicU32 = AtomicU32::new(0);
/// The bit of [`ACTIVE`] for a process that the interposer records.
const RECORDED: u32 = 1 << 31;
/// The bit of [`ACTIVE`] for a process that follows a plan.
const PLANNED: u32 = 1 << 30;
static CAPTURES: Mutex<{ Rank::Captures as u8 }, Vec<Capture>> = Mutex::new(Vec::new());

/// The lock that keeps markers out of captures. A thread that records a marker holds the lock
/// shared, from the check for a capture until it has recorded the marker. A thread holds the lock
/// exclusively during the driver's call by which a stream begins or joins a capture.
static MARKERS: RwLock<()> = RwLock::new(());
/// The longest time for which a thread waits for [`MARKERS`], ns. A call of the driver takes some
/// µs. But a call that finds a full queue waits for the GPU, which can wait for this thread.
const MARKERS_LIMIT_NS: u64 = 1_000_000_000;

/// The time until which no thread waits for [`MARKERS`], because a thread waited in vain; ns of
/// `CLOCK_MONOTONIC`.
static HASTY_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
/// The time for which no thread waits for [`MARKERS`] after a thread waited in vain, ns.
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

/// Takes the lock of markers, shared, and returns the guard. While the guard lives, no stream
/// begins or joins a capture. Returns `None` if another thread is about to begin or join a capture
/// and takes long.
pub fn marking() -> Option<RwLockReadGuard<'static, ()>> {
    patiently(|| MARKERS.try_read())
}

/// Takes the lock of markers, exclusively, and returns the guard. While the guard lives, no thread
/// records a marker. Otherwise a marker on a stream that has just begun to capture would become
/// part of the graph. A query of such a marker would end the capture. Returns `None` if another
/// thread records a marker and takes long.
pub fn joining() -> Option<RwLockWriteGuard<'static, ()>> {
    patiently(|| MARKERS.try_write())
}

/// Returns whether no thread records a marker at this moment.
#[cfg(test)]
pub fn may_join() -> bool {
    MARKERS.try_write().is_ok()
}

/// Returns whether launches may go at once, because no stream captures, the interposer does not
/// record, and the process follows no plan.
#[inline(always)]
pub fn is_clear() -> bool {
    ACTIVE.load(Ordering::Relaxed) == 0
}

/// Returns whether any stream of the process can be capturing.
#[inline(always)]
pub fn is_active() -> bool {
    ACTIVE.load(Ordering::Relaxed) & !(RECORDED | PLANNED) != 0
}

/// Checks that work on `stream` is not part of a capture.
///
/// # Errors
/// The reason for which the interposer does not meter the work.
pub fn rule_out(calls: &Calls, stream: Stream) -> Result<(), Bypass> {
    match is_active().then(|| calls.is_capturing(stream)) {
        None | Some(Some(false)) => Ok(()),
        Some(Some(true)) => Err(Bypass::Captured),
        Some(None) => Err(Bypass::CaptureUnknown),
    }
}

/// Returns whether the interposer records the process.
#[inline(always)]
pub fn is_recording() -> bool {
    ACTIVE.load(Ordering::Relaxed) & RECORDED != 0
}

/// Returns whether the process follows a plan.
#[inline(always)]
pub fn is_planned() -> bool {
    ACTIVE.load(Ordering::Relaxed) & PLANNED != 0
}

/// Sets whether the interposer records the process from now on.
pub fn set_recording(is_recording: bool) {
    set(RECORDED, is_recording);
}

/// Sets whether the process follows a plan from now on.
pub fn set_planned(is_planned: bool) {
    set(PLANNED, is_planned);
}

fn set(bit: u32, is_set: bool) {
    if is_set {
        ACTIVE.fetch_or(bit, Ordering::SeqCst);
    } else {
        ACTIVE.fetch_and(!bit, Ordering::SeqCst);
    }
}

fn change(change: impl FnOnce(&mut Vec<Capture>)) {
    let mut captures = CAPTURES.lock();
    let before = captures.len() as u32;
    change(&mut captures);
    // The addition of a difference leaves the bits as they are.
    ACTIVE.fetch_add((captures.len() as u32).wrapping_sub(before), Ordering::SeqCst);
}

/// Removes the capture on the thread's own default stream when the thread ends. No other thread can
/// name that stream.
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

/// Notes that a capture is about to begin on `stream` of `context`. The capture counts before it
/// begins, so that no marker gets into the graph.
pub fn begin(stream: Stream, context: Option<Context>) {
    if stream == Stream::PER_THREAD {
        // A thread that is already ending does not begin another capture.
        let _ = AT_END.try_with(|_| ());
    }
    change(|captures| captures.push(Capture { stream, context, thread: thread::id() }));
}

/// Notes that a capture on `stream` of `context` has ended, or did not begin.
pub fn end(stream: Stream, context: Option<Context>) {
    change(|captures| {
        if let Some(place) = captures.iter().position(|capture| capture.is_on(stream, context)) {
            captures.swap_remove(place);
        }
    });
}

/// Prepares the destruction of a stream, and returns the stream's capture. Until the caller knows
/// the result of the call, the stream's capture counts but belongs to no stream. So the next stream
/// with the same handle does not get this capture.
#[must_use]
pub fn leave(stream: Stream) -> Leaving {
    let mut captures = CAPTURES.lock();
    let place = captures.iter().position(|capture| capture.stream == stream);
    Leaving(place.map(|place| captures.swap_remove(place)))
}

/// The capture of a stream that the job is destroying.
pub struct Leaving(Option<Capture>);

impl Leaving {
    /// Removes the capture if the stream is gone. Otherwise the stream captures as before.
    pub fn settle(self, is_gone: bool) {
        let Some(capture) = self.0 else { return };
        if is_gone {
            ACTIVE.fetch_sub(1, Ordering::SeqCst);
        } else {
            CAPTURES.lock().push(capture);
        }
    }
}

/// Removes all captures on the streams of a destroyed context.
pub fn forget_context(context: Context) {
    if is_active() {
        change(|captures| captures.retain(|capture| capture.context != Some(context)));
    }
}

/// Forgets all captures and the bits, in a forked child, which has none of its parent's. Another
/// thread of the parent may have had the lock, and then the child never gets it.
pub fn forget() {
    if let Some(mut captures) = CAPTURES.try_lock() {
        captures.clear();
    }
    ACTIVE.store(0, Ordering::SeqCst);
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
        assert!(!is_active(), "the capture of a thread's own stream went with the thread");
        std::thread::spawn(move || begin(one, None)).join().unwrap();
        assert!(is_active(), "others outlive who began on them");
        end(one, None);
        assert!(!is_active());
        begin(one, None);
        {
            let _of_another_thread = CAPTURES.lock();
            forget();
        }
        assert!(is_clear());
        forget();
        change(|captures| assert!(captures.is_empty()));
    }
}
