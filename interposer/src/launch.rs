//! The steps around a launch: the gate before the launch, and the meter before and after it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use deepres_abi::coverage::Bypass;

use crate::blocked_calls;
use crate::capture;
use crate::coverage;
use crate::driver::calls::{Calls, Context, Stream};
use crate::gate::{self, Headroom};
use crate::meter::gpu::Gpu;
use crate::meter::lane::{Begun, Lane, LaneOwner, Unmarked};
use crate::meter::segment::{Kind, Launch};
use crate::meter::width::{Class, Shape};
use crate::process::{self, Process};
use crate::{os, thread};

/// The estimate for a launch about which the interposer knows nothing, ns.
const UNKNOWN_NS: u64 = 10_000;

/// Returns whether the launch may go at once. A launch may go at once if the process has no
/// session. A launch may also go at once if the stream's open segment has counted it, and the gate
/// is as the segment found it. The function calls `launch` only if it needs the result.
#[inline(always)]
pub fn goes_at_once(stream: Stream, launch: impl FnOnce() -> Launch) -> bool {
    let Some(process) = process::current_or_bypass() else { return true };
    if !capture::is_clear() {
        return false;
    }
    match thread::lane(&process.calls, stream) {
        Some(lane) => lane.is_let_on() && lane.count(launch()),
        None => false,
    }
}

/// Uncounts a launch that went at once, because the driver refused the launch.
#[cold]
#[inline(never)]
pub fn take_back(stream: Stream, kind: Kind) {
    if let Some(lane) = process::current().and_then(|process| thread::lane(&process.calls, stream)) {
        lane.uncount(kind);
    }
}

/// The longest sleep between two checks of a launch that waits in [`hold_back`], ns.
const NAP_NS: u64 = 5_000_000;

/// The most segments that may be queued on a stream without any measurement, while the gate is
/// open. While the gate is not open, no segment may be queued, because a launch without an estimate
/// can take any time.
const UNMEASURED_AHEAD: u32 = 8;

/// Waits until the work in flight before this launch is below a bound. While the gate is open, the
/// bound is the run-ahead of the GPU. While the gate is not open, the function waits only if the
/// meter has measured no launch of the lane. Such a launch may have no estimate. The meter does not
/// show this wait as a wait at the gate.
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
    // Without this, the wait could not end, because open segments of this thread do not complete.
    thread::close_lanes(calls);
    // Only completions on this stream count. Completions on other streams say nothing about the
    // work for which this stream waits.
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

/// Waits until a launch on the stream may go, but does not use up a lease of one launch. A caller
/// that is about to reserve memory for a launch calls this function first. So the later call of
/// [`begin`] does not wait while the caller holds the reservation.
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
    gate::await_turn(&lane, process, || thread::close_lanes(calls));
}

/// The next step for a launch that does not go at once.
pub enum Entry {
    /// The launch goes without another step. The meter has counted the launch already, or the
    /// launch is a bypass.
    Pass,
    /// The meter measures the launch. The caller must call [`end`] after the launch.
    Metered(Metered),
    /// The launch does not go, because the daemon is gone and the session's fail mode is closed.
    Refused,
}

/// A launch or copy that the meter counts, between [`begin`] and [`end`].
pub struct Metered {
    process: &'static Process,
    lane: LaneOwner,
    kind: Kind,
    begun: Begun,
}

/// Prepares a launch: reports its width under MPS, waits at the gate if necessary, and opens a
/// segment if none is open. Returns the next step for the launch.
#[cold]
#[inline(never)]
pub fn begin(stream: Stream, launch: Launch, shape: Shape) -> Entry {
    let _uncancelled = os::uncancelled();
    try_begin(stream, launch, shape).unwrap_or_else(|reason| {
        coverage::bypass(reason);
        Entry::Pass
    })
}

/// Prepares a launch as [`begin`] does, but returns the reason for a bypass as an error.
///
/// # Errors
/// The reason for which the launch is a bypass.
fn try_begin(stream: Stream, launch: Launch, shape: Shape) -> Result<Entry, Bypass> {
    let process = process::current().ok_or(Bypass::NoSession)?;
    let calls = &process.calls;
    capture::rule_out(calls, stream)?;
    // At the first launch on a stream, these steps call the driver, to prepare the stream's
    // measurement.
    let blocked = blocked_calls::begin();
    let _relaxed = calls.beside_captures().ok_or(Bypass::CaptureMode)?;
    let lane = process.lane(stream)?;
    let is_slowed = capture::is_recording() || capture::is_planned();
    if is_slowed && lane.is_let_on() && lane.count(launch) {
        // Without the recording or the plan, this launch would have gone at once.
        return Ok(Entry::Pass);
    }
    let gpu = lane.gpu;
    let class = if gpu.widths.is_counted() { class_of(calls, &lane, launch, shape) } else { None };
    report_width(process, gpu, class);
    drop(blocked);
    hold_back(calls, &lane, Some(launch));
    let passed = match gate::pass_open(gpu) {
        Some(passed) => passed,
        None => {
            let estimate_ns = gpu.estimates.get(launch.key).unwrap_or_else(|| match lane.mean_ns() {
                0 => UNKNOWN_NS,
                mean_ns => mean_ns,
            });
            match gate::pass(&lane, process, estimate_ns, || thread::close_lanes(calls)) {
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
    // The report may have fallen while the launch waited.
    report_width(process, gpu, class);
    let entry = match lane.begin(calls, launch, passed.headroom, passed.counted_ns) {
        Ok(begun) => {
            // Only the launch that opens a segment sets `in_flight`. Until the segment is closed,
            // the meter thread sees the open segment.
            if begun.opens {
                gpu.set_in_flight();
                process.wake_meter();
            }
            Ok(Entry::Metered(Metered { process, lane, kind: launch.kind, begun }))
        }
        Err(unmarked) => {
            gpu.unqueue(passed.counted_ns.unwrap_or(0));
            // No segment covers this launch, so the meter thread does not see its end by a segment.
            // The function wakes the thread, which then checks the GPU and reports to the arbiter.
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

/// Returns the class of a launch's width, under MPS; `None` if the launch has no width.
fn class_of(calls: &Calls, lane: &Lane, launch: Launch, shape: Shape) -> Option<Class> {
    // The mark goes first. If the meter thread begins a period before the launch notes its class,
    // the launch counts for the new period.
    lane.gpu.estimates.see(launch.key);
    lane.gpu.widths.class_of(calls, launch, shape, |ask| lane.context.enter(calls, ask))
}

/// Notes the class of a launch's width before the launch goes. If the process reports less, reports
/// the width. The arbiter can then choose another set of owners.
fn report_width(process: &Process, gpu: &Gpu, class: Option<Class>) {
    let Some(class) = class else { return };
    let is_raised = gpu.widths.note(class);
    if let Some(session) = process.session()
        && (is_raised || !gpu.shows_width(session, class))
    {
        gpu.publish_width(session);
        gpu.ring();
    }
}

/// Prepares a copy: opens a segment of copies if none is open. Returns `None` if the copy gets no
/// such segment: the open segment of kernels counted the copy, or the copy is a bypass.
///
/// The GPU has engines of its own for copies. So copies pass no gate, and no tenant waits for
/// another tenant's copies. Sets and copies within a device are launches to this module.
pub fn begin_copy(stream: Stream, copy: Launch) -> Option<Metered> {
    let _uncancelled = os::uncancelled();
    let process = process::current_or_bypass()?;
    try_begin_copy(process, stream, copy)
        .inspect_err(|unmarked| {
            if let Unmarked::Bypass(reason) = unmarked {
                coverage::bypass(*reason);
            }
        })
        .ok()
}

fn try_begin_copy(process: &'static Process, stream: Stream, copy: Launch) -> Result<Metered, Unmarked> {
    let calls = &process.calls;
    capture::rule_out(calls, stream)?;
    let _relaxed = calls.beside_captures().ok_or(Bypass::CaptureMode)?;
    if copy.kind == Kind::SyncCopy {
        thread::close_lanes(calls);
    }
    let lane = process.lane(stream)?;
    let begun = lane.begin(calls, copy, Headroom::NONE, (!lane.gpu.is_open()).then_some(0))?;
    if begun.opens {
        process.wake_meter();
    }
    Ok(Metered { process, lane, kind: copy.kind, begun })
}

/// Finishes a launch or copy after the driver's call. If the driver refused the call, takes it out
/// of the count.
#[cold]
#[inline(never)]
pub fn end(metered: &Metered, succeeded: bool) {
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

/// Ends the thread's open segments directly after a launch on the stream. Another tenant waits for
/// the end of this launch and of all launches before it.
#[cold]
pub fn end_segments(stream: Stream) {
    let Some(process) = process::current() else { return };
    let _uncancelled = os::uncancelled();
    let calls = &process.calls;
    let Some(_relaxed) = calls.beside_captures() else { return };
    thread::close_lanes(calls);
    // This thread has just put work on the stream, so an end event may go there, too.
    if let Some(lane) = thread::lane(calls, stream).filter(|lane| lane.is_open()) {
        lane.end(calls);
    }
    process.rouse_meter();
}

/// When a stream last began to wait for the host, ns; 0 if never. For a time after that, other
/// streams can wait for this stream.
static AWAITED_HOST_NS: AtomicU64 = AtomicU64::new(0);
/// The time for which other streams can wait for a stream after it began to wait for the host, ns.
const AWAITS_HOST_NS: u64 = 2_000_000_000;

fn awaits_host() -> bool {
    is_within(&AWAITED_HOST_NS, AWAITS_HOST_NS)
}

/// Returns whether less than `within_ns` have passed since `at_ns`. Returns false if `at_ns` is 0.
fn is_within(at_ns: &AtomicU64, within_ns: u64) -> bool {
    let at_ns = at_ns.load(Ordering::Relaxed);
    at_ns != 0 && os::now_ns().saturating_sub(at_ns) < within_ns
}

/// Notes that the stream is about to wait for something other than its own work.
#[inline]
pub fn interrupt(stream: Stream) {
    let Some(process) = process::current() else { return };
    let _uncancelled = os::uncancelled();
    if awaits_host() {
        return interrupt_for_host(process, stream);
    }
    if let Some(lane) = thread::lane(&process.calls, stream) {
        match process.calls.beside_captures() {
            Some(_relaxed) => lane.interrupt_stream(&process.calls, !lane.gpu.is_open()),
            None => lane.note_wait(),
        }
    }
}

/// Notes that each stream of a context is about to wait for something other than its own work.
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

/// When the job last queued a host function, ns; 0 if never.
static HOST_FUNCTION_NS: AtomicU64 = AtomicU64::new(0);
/// A host function can be the reason for which a wait ended without a completion. The interposer
/// assumes so if the job queued the function at most this time before the end of the wait, ns.
const HELD_BY_FUNCTION_NS: u64 = 2 * gate::STUCK_NS;
/// Whether any host function seems to wait for a later launch. Most host functions only compute for
/// a moment. For such functions, the interposer need not queue more work.
static FUNCTIONS_AWAIT_HOST: AtomicBool = AtomicBool::new(false);

/// Notes that the stream is about to wait for a host function. The function can itself wait for a
/// later step of this thread.
pub fn call_host(stream: Stream) {
    if FUNCTIONS_AWAIT_HOST.load(Ordering::Relaxed) {
        return await_host(stream);
    }
    HOST_FUNCTION_NS.store(os::now_ns(), Ordering::Relaxed);
    interrupt(stream);
}

/// Notes that a thread ended its wait without a completion.
#[cold]
fn note_stuck() {
    if is_within(&HOST_FUNCTION_NS, HELD_BY_FUNCTION_NS) {
        FUNCTIONS_AWAIT_HOST.store(true, Ordering::Relaxed);
    }
}

/// Notes that the stream is about to wait for the host. The host can do its part only after more
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
        lane.interrupt_stream(&process.calls, !lane.gpu.is_open());
        lane.await_host_in_stream();
    }
}
