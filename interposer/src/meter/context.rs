//! A context of the driver with its lanes, and the time line of the context's events.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use super::clock::Alignment;
use super::gpu::Gpu;
use super::lane::{Lane, LaneOwner};
use super::measure::Middle;
use super::segment::Segment;
use super::thread::MeterThread;
use crate::driver::calls::{Calls, Context, Event, Stream};
use crate::lock_order::{Guard, Mutex, Rank, lock_all};
use crate::os;

/// The distance of an event from the base event at which the context gets a new base event. The
/// driver gives the distance as a float of milliseconds, which after 10 s is precise to about 1 µs.
const REBASE_NS: i64 = 5_000_000_000;
/// The time for which the meter thread waits for work of a context that the driver does not make
/// current. So a hand-off waits at most this time for such work.
const UNREACHABLE_NS: u64 = 1_000_000_000;

/// The state of a context of the driver. The state lives as long as the process, because threads
/// keep references to its lanes. After the end of the context, the state serves another context,
/// with all its lanes. So a job can make any number of contexts.
#[derive(Debug)]
pub struct ContextState {
    handle: AtomicUsize,
    /// The handle of the context to which events and memory belong: for a green context the GPU's
    /// primary context, else the context itself.
    home: AtomicUsize,
    /// The GPU of the context.
    pub gpu: &'static Gpu,
    /// The GPU's ordinal in this process.
    pub ordinal: usize,
    /// Whether the context is destroyed. The driver can then give the same handle to another
    /// context.
    is_dead: AtomicBool,
    /// The number of lanes that belong to a stream.
    lanes: AtomicU32,
    inner: Mutex<{ Rank::Context as u8 }, Inner>,
}

/// The data under the context's lock. While a thread holds the lock, no other thread destroys an
/// event or stream of the context.
#[derive(Debug, Default)]
pub struct Inner {
    /// All lanes, used or not.
    pub lanes: Vec<&'static Lane>,
    /// The time of events minus the host's time, as segments that find their stream idle show it,
    /// ns.
    pub offset: Middle,
    /// Host time that a thread needs to record one event and to make one launch, together, ns.
    pub lead: Middle,
    /// The stream on which the meter thread moves memory ([`super::mover`]). The driver destroys
    /// the stream with the context.
    pub moving: Option<Stream>,
    /// The time since which the driver has not made the context current for the meter thread, ns.
    unreachable_since_ns: Option<u64>,
    base: Option<Base>,
    /// The number of users of the context beside the first user.
    attached: u32,
}

#[derive(Debug)]
struct Base {
    event: Event,
    alignment: Alignment,
}

impl ContextState {
    /// Returns the state of a new context on a GPU.
    pub fn new(handle: Context, gpu: &'static Gpu, ordinal: usize) -> Self {
        Self {
            handle: AtomicUsize::new(handle.0),
            home: AtomicUsize::new(handle.0),
            gpu,
            ordinal,
            is_dead: AtomicBool::new(false),
            lanes: AtomicU32::new(0),
            inner: Mutex::default(),
        }
    }

    /// Returns the driver's handle of the context.
    #[inline(always)]
    pub fn handle(&self) -> Context {
        Context(self.handle.load(Ordering::Relaxed))
    }

    /// Returns the context to which the events and the memory belong. Any thread may make this
    /// context current. A green context may be current to one thread at a time, so only the job
    /// makes a green context current.
    pub fn home(&self) -> Context {
        Context(self.home.load(Ordering::Relaxed))
    }

    /// Returns whether this is a green context: a part of a GPU's SMs, for streams of its own.
    pub fn is_green(&self) -> bool {
        self.home() != self.handle()
    }

    /// Runs `work` with the context current, and returns its result. Returns `None` if the driver
    /// does not make the context current, or if a green context is not current already.
    pub fn enter<T>(&self, calls: &Calls, work: impl FnOnce() -> Option<T>) -> Option<T> {
        let may_enter = !self.is_green() || calls.current_context() == Some(self.handle());
        may_enter.then(|| calls.in_context(self.handle(), work)).flatten()
    }

    /// Returns whether this state belongs to `handle`, and the context is alive.
    #[inline(always)]
    pub fn is_alive_as(&self, handle: Context) -> bool {
        // The order of the two reads matters. If a thread sees the context alive, it also sees the
        // context's present handle.
        !self.is_dead() && self.handle() == handle
    }

    /// Makes this the state of another context on the same GPU, whose events belong to `home`. The
    /// caller makes sure that no other thread calls this at the same time.
    pub fn revive(&self, handle: Context, home: Context) {
        self.home.store(home.0, Ordering::Relaxed);
        self.handle.store(handle.0, Ordering::Relaxed);
        self.is_dead.store(false, Ordering::Release);
    }

    /// Locks the context, and returns the lock. The meter thread holds the lock while it queries
    /// events. Hooks hold the lock while they destroy a stream or the context. Once a thread has a
    /// lane, its launches do not take the lock.
    pub fn lock(&self) -> Guard<'_, Inner> {
        self.inner.lock()
    }

    /// Locks several contexts, which are in the order of the process's list.
    pub fn lock_all(contexts: &[&'static Self]) -> Vec<Guard<'static, Inner>> {
        lock_all(contexts.iter().map(|context| &context.inner))
    }

    /// Returns whether the context is destroyed.
    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Acquire)
    }

    /// Locks the context if no other thread has the lock. Returns the lock, or `None`.
    pub fn try_lock(&self) -> Option<Guard<'_, Inner>> {
        self.inner.try_lock()
    }

    /// Returns whether any work of the context can be unfinished. If another thread has the lock,
    /// returns true.
    pub fn may_have_work(&self) -> bool {
        self.try_lock().is_none_or(|inner| inner.lanes.iter().any(|lane| lane.is_busy()))
    }

    /// Records that all streams of the context, of all threads, are about to wait for something
    /// else than their own work. If `handle` no longer names this context, does nothing.
    /// `awaits_host`: the streams can wait for the host.
    pub fn interrupt(&self, handle: Context, calls: &Calls, thread_id: u32, awaits_host: bool) {
        let inner = self.lock();
        if !self.is_alive_as(handle) {
            return;
        }
        for lane in &inner.lanes {
            lane.interrupt(calls, !self.gpu.is_open() && lane.may_end_late(thread_id));
            if awaits_host {
                lane.await_host();
            }
        }
    }

    /// Charges the complete segments by their measured times, before the driver destroys the
    /// context.
    pub fn charge_complete(&self, calls: &Calls, inner: &mut Inner) {
        for lane in inner.lanes.clone() {
            let (over, newest) = lane.over(inner, calls);
            let seen_ns = os::now_ns() as i64;
            for _ in 0..over {
                let Some(contents) = lane.oldest(inner).map(Segment::contents) else { break };
                let place = newest.and_then(|newest| inner.locate(calls, lane, newest, seen_ns));
                if !contents.is_copy {
                    // The measured time can include pauses, so the lower of measured and estimated
                    // time counts, if there is an estimate.
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

    /// Marks the context as destroyed. From now on, no thread may touch anything of the context.
    /// Charges the work that the meter thread has not seen complete: by its estimates, or by the
    /// time that passed if this time is less. `end` gets the events of the context.
    pub fn kill(&self, inner: &mut Inner, mut end: impl FnMut(Event)) {
        inner.lanes.iter().for_each(|lane| lane.retire(inner));
        self.charge_unseen(inner);
        inner.lanes.iter().for_each(|lane| lane.forget_events(inner, &mut end));
        inner.base.take().into_iter().for_each(|base| end(base.event));
        *inner = Inner { lanes: std::mem::take(&mut inner.lanes), ..Inner::default() };
        // From now on, another context can get this state.
        self.is_dead.store(true, Ordering::Release);
    }

    /// Records that the driver does not make the context current for the meter thread at `now_ns`.
    /// The refusal can be temporary. So for one second, the context's work stays in flight, and the
    /// method returns false. After that second, the method charges the work by its estimates and
    /// returns true.
    pub fn is_given_up(&self, _meter: MeterThread, inner: &mut Inner, now_ns: u64) -> bool {
        let since_ns = *inner.unreachable_since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) < UNREACHABLE_NS {
            return false;
        }
        // The lanes keep their events, because the driver can still have them.
        inner.lanes.iter().for_each(|lane| lane.discard(inner));
        self.charge_unseen(inner);
        true
    }

    /// Removes all closed segments of the context, and charges them. No segment of the context is
    /// open.
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
                    // Work of the stream that the meter thread has seen complete ran before this
                    // segment.
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

    /// Runs `call`, which can add a user of the context, and returns its result. Meanwhile no user
    /// leaves.
    pub fn attach<T>(&self, call: impl FnOnce() -> T, is_attached: impl FnOnce(&T) -> bool) -> T {
        let _uncancelled = os::uncancelled();
        let mut inner = self.lock();
        let result = call();
        if is_attached(&result) {
            inner.attached += 1;
        }
        result
    }

    /// Returns the number of lanes that belong to a stream.
    pub fn lanes(&self) -> u32 {
        self.lanes.load(Ordering::Relaxed)
    }

    /// Adds `more` to the number of lanes that belong to a stream.
    pub fn count_lane(&self, more: i32) {
        self.lanes.fetch_add(more as u32, Ordering::Relaxed);
    }

    /// Creates two events in this context, and returns them.
    pub fn create_events(&self, calls: &Calls) -> Option<(Event, Event)> {
        calls.in_context(self.home(), || Some((calls.create_event()?, calls.create_event()?)))
    }

    /// Returns a lane for the calling thread on a stream of the context with `handle`. The result
    /// is the thread's own lane, a lane that no thread uses any more, or a new lane. Returns `None`
    /// if `handle` no longer names this context.
    pub fn lane(&'static self, handle: Context, stream: Stream, thread_id: u32) -> Option<LaneOwner> {
        let mut inner = self.lock();
        // Another thread may have destroyed the context meanwhile, and given this state to another
        // context.
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
        lane.join_stream(&inner);
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

    /// Records that the driver made the context current for the meter thread.
    pub fn reached(&mut self, _meter: MeterThread) {
        self.unreachable_since_ns = None;
    }

    /// Compares the clocks by an event that the meter thread saw complete at `seen_ns`. The thread
    /// gives the newest complete event, because earlier events may have been complete for a long
    /// time.
    pub fn align(&mut self, calls: &Calls, newest: Event, seen_ns: i64) {
        let Some(base) = &mut self.base else { return };
        let Some(since_base_ns) = calls.elapsed_ns(base.event, newest) else { return };
        let moved_ns = base.alignment.look(since_base_ns, seen_ns);
        self.move_by(moved_ns);
    }

    /// Returns the beginning and end of `lane`'s oldest segment, in ns on the process's time line.
    /// Returns `None` if the driver does not tell them. The meter thread saw the event `newest`
    /// complete at `seen_ns`. The segment ended with this event or before. Now and then, the
    /// segment's end event becomes the new base event, and the segment gets the old base event in
    /// its place.
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
            let spare = calls.in_context(lane.context.home(), || calls.create_event())?;
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

    /// Moves all values on the time line by `moved_ns`, because the time line itself moved.
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
