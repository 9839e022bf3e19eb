//! What happens around a launch: the gate before it, the meter on both sides.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::capture;
use crate::driver::calls::{Calls, Context, Stream};
use crate::gate;
use crate::held_up;
use crate::meter::lane::{Begun, Lane};
use crate::meter::segment::{Kind, Launch};
use crate::process::{self, Process};
use crate::{os, thread};

/// A GPU time for a launch that nothing is known about, ns.
const UNKNOWN_NS: u64 = 10_000;

/// Whether the launch may simply go: nothing is metered here, or it was counted in its stream's open segment and the gate is open. `launch` is asked for
/// only where it is needed.
#[inline(always)]
pub fn goes_at_once(stream: Stream, launch: impl FnOnce() -> Launch) -> bool {
    let Some(process) = process::current() else { return true };
    if !capture::is_clear() {
        return false;
    }
    match thread::lane(&process.calls, stream) {
        Some(lane) => lane.gpu.is_open() && lane.count(launch()),
        None => false,
    }
}

/// After a launch that went at once and that the driver refused: it is not to be counted.
#[cold]
#[inline(never)]
pub fn take_back(stream: Stream, kind: Kind) {
    if let Some(lane) = process::current().and_then(|process| thread::lane(&process.calls, stream)) {
        lane.uncount(kind);
    }
}

/// Longest sleep between two looks, ns.
const NAP_NS: u64 = 5_000_000;

/// Segments that may be queued on a stream before its launches are measured, while nobody else wants the GPU. While someone does it is none: a
/// launch that nothing is known about may be of any length.
const UNMEASURED_AHEAD: u32 = 8;

/// While the gate is open, or nothing is known yet by which a window could be kept: waits until not too much is queued ahead of this launch, which may be one of which
/// nothing is known. Not a wait at the gate, and not counted as one.
fn hold_back(calls: &Calls, lane: &Lane, launch: Option<Launch>) {
    let gpu = lane.gpu;
    let is_far_ahead = || {
        if gpu.is_open() {
            lane.is_far_ahead(launch, gpu.run_ahead_ns(), UNMEASURED_AHEAD)
        } else {
            lane.mean_ns() == 0 && lane.is_far_ahead(None, 0, 0)
        }
    };
    if !is_far_ahead() || gpu.is_stuck() || lane.is_stuck() {
        return;
    }
    // What this thread has open could not complete otherwise.
    thread::close_lanes(calls);
    // Of this stream: that others get on says nothing of what it waits for.
    let (mut seen, mut since_ns) = (lane.completed(), os::now_ns());
    while is_far_ahead() {
        gpu.await_freed(NAP_NS, is_far_ahead);
        let (completed, now_ns) = (lane.completed(), os::now_ns());
        if completed != seen {
            (seen, since_ns) = (completed, now_ns);
        } else if now_ns.saturating_sub(since_ns) > gate::STUCK_NS {
            gpu.give_up_at(gpu.completions());
            lane.give_up();
            note_stuck();
            return;
        }
    }
}

/// Waits until a launch on the stream may go, as [`enter`] will, and takes nothing: for who would otherwise wait there with something that others need.
#[cold]
pub fn await_turn(stream: Stream) {
    let _uncancelled = os::uncancelled();
    let Some(process) = process::current() else { return };
    let calls = &process.calls;
    if capture::is_active() && calls.may_be_capturing(stream) {
        return;
    }
    let Some(_relaxed) = calls.beside_captures() else { return };
    let Some(lane) = process.lane(stream) else { return };
    hold_back(calls, lane, None);
    if lane.gpu.is_open() {
        return;
    }
    if let Some(session) = process.session() {
        gate::await_turn(lane.gpu, session, lane.is_stuck(), || thread::close_lanes(calls));
    }
}

/// How a launch goes on that does not go at once.
pub enum Entry {
    /// As if we were not there.
    Untouched,
    /// Measured: [`leave`] is owed after it.
    Metered(Metered),
    /// Not at all: the controller is gone, and the session is to fail closed.
    Refused,
}

/// A launch between [`enter`] and [`leave`].
pub struct Metered {
    process: &'static Process,
    lane: &'static Lane,
    kind: Kind,
    begun: Begun,
}

/// Before a launch: waits at the gate if it must, and makes sure that a segment is open.
#[cold]
#[inline(never)]
pub fn enter(stream: Stream, launch: Launch) -> Entry {
    let _uncancelled = os::uncancelled();
    let Some(process) = process::current() else { return Entry::Untouched };
    let calls = &process.calls;
    if capture::is_active() && calls.may_be_capturing(stream) {
        return Entry::Untouched;
    }
    // The first on a stream asks the driver for what it is measured by.
    let held_up = held_up::begin();
    let Some(_relaxed) = calls.beside_captures() else { return Entry::Untouched };
    let Some(lane) = process.lane(stream) else { return Entry::Untouched };
    if capture::is_recording() && lane.gpu.is_open() && lane.count(launch) {
        // It would have gone at once.
        return Entry::Untouched;
    }
    let gpu = lane.gpu;
    drop(held_up);
    hold_back(calls, lane, Some(launch));
    // Last: a daemon may have taken the process up meanwhile.
    let Some(session) = process.session() else { return Entry::Untouched };
    let passed = match gate::pass_open(gpu) {
        Some(passed) => passed,
        None => {
            let estimate_ns = gpu.estimates.get(launch.key).unwrap_or_else(|| match lane.mean_ns() {
                0 => UNKNOWN_NS,
                mean_ns => mean_ns,
            });
            match gate::pass(gpu, session, estimate_ns, lane.is_stuck(), || thread::close_lanes(calls)) {
                Some(passed) => {
                    if gpu.is_stuck() {
                        note_stuck();
                    }
                    passed
                }
                None => return Entry::Refused,
            }
        }
    };
    let entry = match lane.begin(calls, launch, passed.counted_ns) {
        Some(begun) => {
            // An open segment was said to be in flight when it was opened, and is seen open until it is closed.
            if begun.opens {
                gpu.set_in_flight();
                process.wake_meter();
            }
            Entry::Metered(Metered { process, lane, kind: launch.kind, begun })
        }
        None => {
            gpu.unqueue(passed.counted_ns.unwrap_or(0));
            // Nobody will see it complete: the meter thread is to look, and to tell the controller.
            gpu.set_in_flight();
            process.wake_meter();
            Entry::Untouched
        }
    };
    drop(passed.launching);
    entry
}

/// Before a copy: makes sure that a segment of copies is open. `None`: it goes unmetered. Copies have engines of their own, so they pass no gate and
/// do not count as work that another tenant has to wait for.
pub fn enter_copy(stream: Stream, copy: Launch) -> Option<Metered> {
    let _uncancelled = os::uncancelled();
    let process = process::current()?;
    let calls = &process.calls;
    if capture::is_active() && calls.may_be_capturing(stream) {
        return None;
    }
    let _relaxed = calls.beside_captures()?;
    if copy.kind == Kind::SyncCopy {
        thread::close_lanes(calls);
    }
    let lane = process.lane(stream)?;
    process.session()?;
    let begun = lane.begin(calls, copy, (!lane.gpu.is_open()).then_some(0))?;
    if begun.opens {
        process.wake_meter();
    }
    Some(Metered { process, lane, kind: copy.kind, begun })
}

/// After a launch or copy.
#[cold]
#[inline(never)]
pub fn leave(metered: &Metered, succeeded: bool) {
    let _uncancelled = os::uncancelled();
    let calls = &metered.process.calls;
    if !succeeded {
        metered.lane.uncount(metered.kind);
    }
    metered.lane.launched(metered.begun.opens);
    if metered.begun.ends
        && let Some(_relaxed) = calls.beside_captures()
    {
        metered.lane.end(calls);
    }
}

/// The thread is about to wait for the GPU: what it launched so far is a segment.
#[inline]
pub fn flush() {
    let Some(process) = process::current() else { return };
    let _uncancelled = os::uncancelled();
    let Some(_relaxed) = process.calls.beside_captures() else { return };
    thread::close_lanes(&process.calls);
}

/// When a stream was last made to wait for the host, ns; 0: none was. For a while others may wait for that one.
static AWAITED_HOST_NS: AtomicU64 = AtomicU64::new(0);
/// That while, ns.
const AWAITS_HOST_NS: u64 = 2_000_000_000;

fn awaits_host() -> bool {
    is_within(&AWAITED_HOST_NS, AWAITS_HOST_NS)
}

/// Whether what happened last at `at_ns` (0: never) is less than `within_ns` ago.
fn is_within(at_ns: &AtomicU64, within_ns: u64) -> bool {
    let at_ns = at_ns.load(Ordering::Relaxed);
    at_ns != 0 && os::now_ns().saturating_sub(at_ns) < within_ns
}

/// The stream is about to wait for something else than its own work.
#[inline]
pub fn interrupt(stream: Stream) {
    let Some(process) = process::current() else { return };
    let _uncancelled = os::uncancelled();
    if awaits_host() {
        return interrupt_for_host(process, stream);
    }
    if let Some(lane) = thread::lane(&process.calls, stream) {
        match process.calls.beside_captures() {
            Some(_relaxed) => lane.interrupt(&process.calls, !lane.gpu.is_open()),
            None => lane.note_wait(),
        }
    }
}

/// Every stream of a context is about to wait for something else than its own work.
pub fn interrupt_context(context: impl FnOnce() -> Option<Context>) {
    let Some(process) = process::current() else { return };
    let _uncancelled = os::uncancelled();
    let Some(handle) = context() else { return };
    let Some(context) = process.contexts().into_iter().find(|context| context.is_alive_as(handle)) else {
        return;
    };
    let Some(_relaxed) = process.calls.beside_captures() else { return };
    context.interrupt(handle, &process.calls, thread::id(), awaits_host());
}

/// When a host function was last queued, ns; 0: none was.
static HOST_FUNCTION_NS: AtomicU64 = AtomicU64::new(0);
/// One that is queued at most so long before waiting for a completion is given up may be what waits, ns.
const HELD_BY_FUNCTION_NS: u64 = 2 * gate::STUCK_NS;
/// Whether one was found to wait for what is launched after it. Most compute for a moment, and are no reason to let more be queued.
static FUNCTIONS_AWAIT_HOST: AtomicBool = AtomicBool::new(false);

/// The stream is about to wait for a function on the host, which may itself wait for what this thread does next.
pub fn call_host(stream: Stream) {
    if FUNCTIONS_AWAIT_HOST.load(Ordering::Relaxed) {
        return await_host(stream);
    }
    HOST_FUNCTION_NS.store(os::now_ns(), Ordering::Relaxed);
    interrupt(stream);
}

/// Waiting for a completion was given up.
#[cold]
fn note_stuck() {
    if is_within(&HOST_FUNCTION_NS, HELD_BY_FUNCTION_NS) {
        FUNCTIONS_AWAIT_HOST.store(true, Ordering::Relaxed);
    }
}

/// The stream is about to wait for something that the host may do only once more has been launched.
pub fn await_host(stream: Stream) {
    AWAITED_HOST_NS.store(os::now_ns(), Ordering::Relaxed);
    interrupt(stream);
}

#[cold]
fn interrupt_for_host(process: &'static Process, stream: Stream) {
    let Some(_relaxed) = process.calls.beside_captures() else { return };
    if capture::is_active() && process.calls.may_be_capturing(stream) {
        return;
    }
    if let Some(lane) = process.lane(stream) {
        lane.interrupt(&process.calls, !lane.gpu.is_open());
        lane.await_host();
    }
}
