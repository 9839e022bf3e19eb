//! The steps around a launch: the gate before it, and the meter before and after it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use deepres_abi::coverage::Bypass;

use crate::blocked_calls;
use crate::capture;
use crate::coverage;
use crate::driver::calls::{Calls, Context, Stream};
use crate::gate;
use crate::meter::lane::{Begun, Lane, LaneOwner, Unmarked};
use crate::meter::segment::{Kind, Launch};
use crate::process::{self, Process};
use crate::{os, thread};

/// Estimated GPU time of a launch of which nothing is known, ns.
const UNKNOWN_NS: u64 = 10_000;

/// Whether the launch may go at once: nothing is metered here, or the gate is open and the launch
/// was counted in its stream's open segment. `launch` is called only if its result is needed.
#[inline(always)]
pub fn goes_at_once(stream: Stream, launch: impl FnOnce() -> Launch) -> bool {
    let Some(process) = process::current() else {
        process::count_early();
        return true;
    };
    if !capture::is_clear() {
        return false;
    }
    match thread::lane(&process.calls, stream) {
        Some(lane) => lane.gpu.is_open() && lane.count(launch()),
        None => false,
    }
}

/// Takes back the count of a launch that went at once, because the driver refused it.
#[cold]
#[inline(never)]
pub fn take_back(stream: Stream, kind: Kind) {
    if let Some(lane) = process::current().and_then(|process| thread::lane(&process.calls, stream)) {
        lane.uncount(kind);
    }
}

/// Longest sleep between two looks, ns.
const NAP_NS: u64 = 5_000_000;

/// Segments that may be queued on a stream without any measurement, while the GPU is not contended.
/// While the GPU is contended, no segment may be queued, because a launch without an estimate may
/// take any time.
const UNMEASURED_AHEAD: u32 = 8;

/// Waits until not too much is queued ahead of this launch, which may have no estimate. The wait
/// applies while the gate is open, or while nothing was measured that could keep a window. The wait
/// is not at the gate, and does not count as a wait there.
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
    // The open segments of this thread could not complete otherwise.
    thread::close_lanes(calls);
    // Only completions on this stream count, because those of other streams show nothing about the
    // work that this one waits for.
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

/// Waits until a launch on the stream may go, as [`enter`] does, but takes no lease. The function
/// serves callers that must not wait in [`enter`] with something that others need.
#[cold]
pub fn await_turn(stream: Stream) {
    let _uncancelled = os::uncancelled();
    let Some(process) = process::current() else { return };
    let calls = &process.calls;
    if capture::is_active() && calls.may_be_capturing(stream) {
        return;
    }
    let Some(_relaxed) = calls.beside_captures() else { return };
    let Ok(lane) = process.lane(stream) else { return };
    hold_back(calls, &lane, None);
    if lane.gpu.is_open() {
        return;
    }
    if let Some(session) = process.session() {
        gate::await_turn(lane.gpu, session, lane.is_stuck(), || thread::close_lanes(calls));
    }
}

/// The way on for a launch that does not go at once.
pub enum Entry {
    /// The launch goes without a further step: it is counted already, or it is a bypass.
    Pass,
    /// The launch is measured. The caller must call [`leave`] after it.
    Metered(Metered),
    /// The launch does not go, because the daemon is gone and the session is to fail closed.
    Refused,
}

/// A launch between [`enter`] and [`leave`].
pub struct Metered {
    process: &'static Process,
    lane: LaneOwner,
    kind: Kind,
    begun: Begun,
}

/// Called before a launch: waits at the gate if necessary, and makes sure that a segment is open.
#[cold]
#[inline(never)]
pub fn enter(stream: Stream, launch: Launch) -> Entry {
    let _uncancelled = os::uncancelled();
    try_enter(stream, launch).unwrap_or_else(|reason| {
        coverage::bypass(reason);
        Entry::Pass
    })
}

/// Does what [`enter`] does.
///
/// # Errors
/// The reason for which the launch goes without gate and meter.
fn try_enter(stream: Stream, launch: Launch) -> Result<Entry, Bypass> {
    let process = process::current().ok_or(Bypass::NoSession)?;
    let calls = &process.calls;
    capture::rule_out(calls, stream)?;
    // The first launch on a stream calls the driver to set up its measurement.
    let blocked = blocked_calls::begin();
    let _relaxed = calls.beside_captures().ok_or(Bypass::CaptureMode)?;
    let lane = process.lane(stream)?;
    if capture::is_recording() && lane.gpu.is_open() && lane.count(launch) {
        // Without the recording, the launch would have gone at once.
        return Ok(Entry::Pass);
    }
    let gpu = lane.gpu;
    drop(blocked);
    hold_back(calls, &lane, Some(launch));
    // The session is read last, because a daemon may have taken over the process meanwhile.
    let session = process.session().ok_or(Bypass::NoSession)?;
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
                None => return Ok(Entry::Refused),
            }
        }
    };
    let entry = match lane.begin(calls, launch, passed.counted_ns) {
        Ok(begun) => {
            // Only the launch that opens a segment sets `in_flight`. The meter thread sees the
            // segment open until it is closed.
            if begun.opens {
                gpu.set_in_flight();
                process.wake_meter();
            }
            Ok(Entry::Metered(Metered { process, lane, kind: launch.kind, begun }))
        }
        Err(unmarked) => {
            gpu.unqueue(passed.counted_ns.unwrap_or(0));
            // No segment covers this launch, so nobody sees it complete. The meter thread is woken
            // to look, and to report to the arbiter.
            gpu.set_in_flight();
            process.wake_meter();
            match unmarked {
                Unmarked::TakenIn => Ok(Entry::Pass),
                Unmarked::Bypass(reason) => Err(reason),
            }
        }
    };
    drop(passed.launching);
    entry
}

/// Called before a copy: makes sure that a segment of copies is open. Returns `None` if the copy
/// has no such segment: the open segment of kernels took it in, or the copy is a bypass. Copies
/// have engines of their own. So copies pass no gate, and do not count as work that another tenant
/// has to wait for.
pub fn enter_copy(stream: Stream, copy: Launch) -> Option<Metered> {
    let _uncancelled = os::uncancelled();
    let Some(process) = process::current() else {
        process::count_early();
        return None;
    };
    try_enter_copy(process, stream, copy)
        .inspect_err(|unmarked| {
            if let Unmarked::Bypass(reason) = unmarked {
                coverage::bypass(*reason);
            }
        })
        .ok()
}

fn try_enter_copy(process: &'static Process, stream: Stream, copy: Launch) -> Result<Metered, Unmarked> {
    let calls = &process.calls;
    capture::rule_out(calls, stream)?;
    let _relaxed = calls.beside_captures().ok_or(Bypass::CaptureMode)?;
    if copy.kind == Kind::SyncCopy {
        thread::close_lanes(calls);
    }
    let lane = process.lane(stream)?;
    let begun = lane.begin(calls, copy, (!lane.gpu.is_open()).then_some(0))?;
    if begun.opens {
        process.wake_meter();
    }
    Ok(Metered { process, lane, kind: copy.kind, begun })
}

/// Called after a launch or copy.
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

/// Ends the thread's open segments, because the thread is about to wait for the GPU.
#[inline]
pub fn flush() {
    let Some(process) = process::current() else { return };
    let _uncancelled = os::uncancelled();
    let Some(_relaxed) = process.calls.beside_captures() else { return };
    thread::close_lanes(&process.calls);
}

/// When a stream was last made to wait for the host, ns. 0 means never. For a while, other streams
/// may wait for that stream.
static AWAITED_HOST_NS: AtomicU64 = AtomicU64::new(0);
/// Length of that while, ns.
const AWAITS_HOST_NS: u64 = 2_000_000_000;

fn awaits_host() -> bool {
    is_within(&AWAITED_HOST_NS, AWAITS_HOST_NS)
}

/// Whether the last event at `at_ns` (0: never) is less than `within_ns` ago.
fn is_within(at_ns: &AtomicU64, within_ns: u64) -> bool {
    let at_ns = at_ns.load(Ordering::Relaxed);
    at_ns != 0 && os::now_ns().saturating_sub(at_ns) < within_ns
}

/// Notes that the stream is about to wait for something else than its own work.
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

/// Notes that every stream of a context is about to wait for something else than its own work.
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

/// When a host function was last queued, ns. 0 means never.
static HOST_FUNCTION_NS: AtomicU64 = AtomicU64::new(0);
/// Longest time, ns, between queueing a host function and giving up a wait, for which the function
/// may be the cause.
const HELD_BY_FUNCTION_NS: u64 = 2 * gate::STUCK_NS;
/// Whether any host function was found to wait for a later launch. Most host functions compute for
/// a moment, and are no reason to let more work be queued.
static FUNCTIONS_AWAIT_HOST: AtomicBool = AtomicBool::new(false);

/// Notes that the stream is about to wait for a host function, which may itself wait for what this
/// thread does next.
pub fn call_host(stream: Stream) {
    if FUNCTIONS_AWAIT_HOST.load(Ordering::Relaxed) {
        return await_host(stream);
    }
    HOST_FUNCTION_NS.store(os::now_ns(), Ordering::Relaxed);
    interrupt(stream);
}

/// Notes that waiting for a completion was given up.
#[cold]
fn note_stuck() {
    if is_within(&HOST_FUNCTION_NS, HELD_BY_FUNCTION_NS) {
        FUNCTIONS_AWAIT_HOST.store(true, Ordering::Relaxed);
    }
}

/// Notes that the stream is about to wait for something that the host may do only after more
/// launches.
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
    if let Ok(lane) = process.lane(stream) {
        lane.interrupt(&process.calls, !lane.gpu.is_open());
        lane.await_host();
    }
}
