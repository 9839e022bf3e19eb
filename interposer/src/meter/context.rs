//! A context of the driver with its lanes, and the clock that its events share.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use super::clock::Alignment;
use super::gpu::Gpu;
use super::lane::{Lane, LaneOwner};
use super::measure::Middle;
use super::segment::Segment;
use super::thread::MeterThread;
use crate::driver::calls::{Calls, Context, Event, Stream};
use crate::lock_order::{Guard, Mutex, Rank};
use crate::os;

/// Distance from the base event at which a new base is chosen. The driver gives the distance as a
/// float of milliseconds, which is precise to about 1 µs after 10 s.
const REBASE_NS: i64 = 5_000_000_000;
/// A context that cannot be made current for this long is given up. A hand-off waits for work in
/// flight no longer than this.
const UNREACHABLE_NS: u64 = 1_000_000_000;

/// The state of a context of the driver. The state lives as long as the process, because threads
/// keep references to its lanes. Once the context is gone, the state serves another context, with
/// all its lanes. So a job may make as many contexts as it likes.
#[derive(Debug)]
pub struct ContextState {
    handle: AtomicUsize,
    /// The GPU of the context.
    pub gpu: &'static Gpu,
    /// The GPU's ordinal in this process.
    pub ordinal: usize,
    /// Whether the context is destroyed. The driver may then give its handle to another context.
    is_dead: AtomicBool,
    /// Lanes that belong to a stream.
    lanes: AtomicU32,
    inner: Mutex<{ Rank::Context as u8 }, Inner>,
}

/// The data under the context's lock. No event or stream of the context dies while a thread holds
/// the lock.
#[derive(Debug, Default)]
pub struct Inner {
    /// Every lane, used or not.
    pub lanes: Vec<&'static Lane>,
    /// Events' time less the host's time, for segments that find their stream idle.
    pub offset: Middle,
    /// Host time of recording an event and a launch.
    pub lead: Middle,
    /// The stream on which memory is moved ([`super::mover`]). The stream ends with the context.
    pub moving: Option<Stream>,
    /// Since when the meter thread has been unable to make the context current.
    unreachable_since_ns: Option<u64>,
    base: Option<Base>,
    /// Users that attached to the context after the first one.
    attached: u32,
}

#[derive(Debug)]
struct Base {
    event: Event,
    alignment: Alignment,
}

impl ContextState {
    /// State of a new context on a GPU.
    pub fn new(handle: Context, gpu: &'static Gpu, ordinal: usize) -> Self {
        Self {
            handle: AtomicUsize::new(handle.0),
            gpu,
            ordinal,
            is_dead: AtomicBool::new(false),
            lanes: AtomicU32::new(0),
            inner: Mutex::default(),
        }
    }

    /// The driver's handle.
    #[inline(always)]
    pub fn handle(&self) -> Context {
        Context(self.handle.load(Ordering::Relaxed))
    }

    /// Whether this state belongs to `handle`, and the context is alive.
    #[inline(always)]
    pub fn is_alive_as(&self, handle: Context) -> bool {
        // The order matters: a thread that sees the context alive also sees its present handle.
        !self.is_dead() && self.handle() == handle
    }

    /// Makes this the state of another context on the same GPU. The caller makes sure that no other
    /// thread does so.
    pub fn revive(&self, handle: Context) {
        self.handle.store(handle.0, Ordering::Relaxed);
        self.is_dead.store(false, Ordering::Release);
    }

    /// Locks the context. The meter thread holds the lock while it queries events. Hooks hold the
    /// lock when they are about to destroy a stream or the context. A launch does not take the lock
    /// once its thread has a lane.
    pub fn lock(&self) -> Guard<'_, Inner> {
        self.inner.lock()
    }

    /// Whether the context is gone.
    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Acquire)
    }

    /// As [`Self::lock`], if no other thread has the lock.
    pub fn try_lock(&self) -> Option<Guard<'_, Inner>> {
        self.inner.try_lock()
    }

    /// Whether any work of the context may be unfinished. Does not wait for the lock.
    pub fn may_have_work(&self) -> bool {
        self.try_lock().is_none_or(|inner| inner.lanes.iter().any(|lane| lane.is_busy()))
    }

    /// Notes that every stream of the context is about to wait for something else than its own
    /// work, whichever thread launches on it. The caller gives the context's `handle`.
    /// `awaits_host`: the streams may wait for the host.
    pub fn interrupt(&self, handle: Context, calls: &Calls, thread_id: u32, awaits_host: bool) {
        let inner = self.lock();
        if !self.is_alive_as(handle) {
            return;
        }
        for lane in &inner.lanes {
            // The per-thread stream of another thread has no name in this thread.
            if lane.stream() == Some(Stream::PER_THREAD) && lane.owner() != thread_id {
                lane.note_wait();
            } else {
                lane.interrupt(calls, !self.gpu.is_open());
            }
            if awaits_host {
                lane.await_host();
            }
        }
    }

    /// Charges the complete segments by their measured times, before the context is destroyed.
    pub fn charge_complete(&self, calls: &Calls, inner: &mut Inner) {
        for lane in inner.lanes.clone() {
            let (over, newest) = lane.over(inner, calls);
            let seen_ns = os::now_ns() as i64;
            for _ in 0..over {
                let Some(contents) = lane.oldest(inner).map(Segment::contents) else { break };
                let place = newest.and_then(|newest| inner.locate(calls, lane, newest, seen_ns));
                if !contents.is_copy {
                    // The measured time may include pauses, and an estimate may be missing.
                    let took_ns =
                        place.filter(|_| !contents.is_end_only).map(|(start, end)| end.abs_diff(start));
                    let known_ns = (contents.expected_ns != 0).then_some(contents.expected_ns);
                    self.gpu.add_late([known_ns, took_ns].into_iter().flatten().min().unwrap_or(0));
                }
                lane.set_previous_end(inner, place.map(|(_, end_ns)| end_ns));
                self.gpu.unqueue(contents.queued_ns);
                lane.pop(inner);
            }
        }
    }

    /// Marks the context as destroyed: nothing of it may be touched from now on. Work that nobody
    /// saw complete is charged by its estimates, or by the time that passed if that is less.
    pub fn kill(&self, inner: &mut Inner) {
        inner.lanes.iter().for_each(|lane| lane.retire(inner));
        self.charge_unseen(inner);
        inner.lanes.iter().for_each(|lane| lane.forget_events(inner));
        *inner = Inner { lanes: std::mem::take(&mut inner.lanes), ..Inner::default() };
        // From now on this state may be reused for another context.
        self.is_dead.store(true, Ordering::Release);
    }

    /// Called when the meter thread cannot make the context current, at `now_ns`, and so cannot see
    /// whether its work is complete. The state may be temporary. After a while, the work no longer
    /// counts as in flight and is charged as at the context's end. Returns whether that has
    /// happened.
    pub fn is_given_up(&self, _meter: MeterThread, inner: &mut Inner, now_ns: u64) -> bool {
        let since_ns = *inner.unreachable_since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) < UNREACHABLE_NS {
            return false;
        }
        // The lanes keep their events, because the driver may still have these.
        inner.lanes.iter().for_each(|lane| lane.discard(inner));
        self.charge_unseen(inner);
        true
    }

    /// Removes all closed segments of the context and charges them. No segment may be open.
    fn charge_unseen(&self, inner: &Inner) {
        let now_ns = os::now_ns();
        let (mut expected_ns, mut most_ns) = (0_u64, 0);
        for lane in &inner.lanes {
            lane.settle();
            while let Some(segment) = lane.oldest(inner) {
                let contents = segment.contents();
                if !contents.is_copy {
                    let unknown_ns = if contents.expected_ns == 0 { u64::MAX } else { contents.expected_ns };
                    expected_ns = expected_ns.saturating_add(unknown_ns);
                    // The stream's work that was seen complete ran before.
                    let previous_ns =
                        lane.previous_end_ns(inner).map_or(0, |end_ns| end_ns.max(0).unsigned_abs());
                    most_ns = most_ns.max(now_ns.saturating_sub(contents.began_ns.max(previous_ns)));
                }
                self.gpu.unqueue(contents.queued_ns);
                lane.pop(inner);
            }
        }
        self.gpu.add_late(expected_ns.min(most_ns));
    }

    /// Runs `call`, which may add a user of the context. No user leaves meanwhile.
    pub fn attach<T>(&self, call: impl FnOnce() -> T, is_attached: impl FnOnce(&T) -> bool) -> T {
        let _uncancelled = os::uncancelled();
        let mut inner = self.lock();
        let result = call();
        if is_attached(&result) {
            inner.attached += 1;
        }
        result
    }

    /// Number of lanes that belong to a stream.
    pub fn lanes(&self) -> u32 {
        self.lanes.load(Ordering::Relaxed)
    }

    /// Adds `more` to the number of lanes.
    pub fn count_lane(&self, more: i32) {
        self.lanes.fetch_add(more as u32, Ordering::Relaxed);
    }

    /// Creates two events in this context.
    pub fn create_events(&self, calls: &Calls) -> Option<(Event, Event)> {
        calls.in_context(self.handle(), || Some((calls.create_event()?, calls.create_event()?)))
    }

    /// Returns a lane for the calling thread on a stream of the context with `handle`. The result is
    /// the thread's own lane, a lane that nobody uses any more, or a new lane.
    pub fn lane(&'static self, handle: Context, stream: Stream, thread_id: u32) -> Option<LaneOwner> {
        let mut inner = self.lock();
        // The context may have been destroyed meanwhile, and this state reused for another one.
        if !self.is_alive_as(handle) {
            return None;
        }
        if let Some(own) = inner.lanes.iter().find_map(|lane| lane.owned_by(thread_id, stream)) {
            return Some(own);
        }
        let free = inner
            .lanes
            .iter()
            .find(|lane| !lane.is_busy() && (lane.stream().is_none() || !os::is_thread_alive(lane.owner())));
        if let Some(lane) = free {
            lane.adopt(&inner, stream, thread_id);
            return lane.owned_by(thread_id, stream);
        }
        let lane: &'static Lane = Box::leak(Box::new(Lane::new(self.gpu, self, stream, thread_id)));
        inner.lanes.push(lane);
        self.count_lane(1);
        lane.owned_by(thread_id, stream)
    }
}

impl Inner {
    /// Removes a user of the context. Returns whether other users are left.
    pub fn detach(&mut self) -> bool {
        let left = self.attached.checked_sub(1);
        self.attached = left.unwrap_or(0);
        left.is_some()
    }

    /// Notes that the meter thread made the context current.
    pub fn reached(&mut self, _meter: MeterThread) {
        self.unreachable_since_ns = None;
    }

    /// Compares the clocks by an event that was seen complete at `seen_ns`. The meter thread gives
    /// the newest event of its look: earlier events were complete for an unknown time.
    pub fn align(&mut self, calls: &Calls, newest: Event, seen_ns: i64) {
        let Some(base) = &mut self.base else { return };
        let Some(since_base_ns) = calls.elapsed_ns(base.event, newest) else { return };
        let moved_ns = base.alignment.look(since_base_ns, seen_ns);
        self.move_by(moved_ns);
    }

    /// Returns where `lane`'s oldest segment lies, in ns on the process's time line, or `None` if
    /// the driver does not say. The segment ended before `newest`, which was seen complete at
    /// `seen_ns`, or is `newest`. Now and then the segment's end event becomes the new base, and the
    /// segment gets the old base event in its place.
    pub fn locate(&mut self, calls: &Calls, lane: &Lane, newest: Event, seen_ns: i64) -> Option<(i64, i64)> {
        let segment = lane.oldest(self)?;
        let contents = segment.contents();
        if contents.is_lost {
            return None;
        }
        let took_ns = match contents.is_end_only {
            true => contents.observed((0, 0)).expected_ns,
            false => calls.elapsed_ns(segment.start(), segment.end())?.max(0),
        };
        let Some(base) = &mut self.base else {
            let end_ns = seen_ns - calls.elapsed_ns(segment.end(), newest)?.max(0);
            let spare = calls.in_context(lane.context.handle(), || calls.create_event())?;
            let event = segment.swap_end(spare);
            self.base = Some(Base { event, alignment: Alignment::new(end_ns) });
            return Some((end_ns - took_ns, end_ns));
        };
        let since_base_ns = calls.elapsed_ns(base.event, segment.end())?;
        let end_ns = base.alignment.at(since_base_ns);
        if since_base_ns > REBASE_NS {
            base.event = segment.swap_end(base.event);
            base.alignment.rebase(end_ns);
        }
        Some((end_ns - took_ns, end_ns))
    }

    /// Moves all values on the time line by `moved_ns`, because the time line itself was moved.
    fn move_by(&mut self, moved_ns: i64) {
        if moved_ns == 0 {
            return;
        }
        self.offset.move_by(moved_ns);
        for lane in &self.lanes {
            lane.set_previous_end(self, lane.previous_end_ns(self).map(|end_ns| end_ns + moved_ns));
        }
    }
}
