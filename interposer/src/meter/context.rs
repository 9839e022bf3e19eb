//! A context of the driver with its lanes, and the clock that its events share.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use super::clock::Alignment;
use super::gpu::Gpu;
use super::lane::Lane;
use super::measure::Middle;
use crate::driver::calls::{Calls, Context, Event, Progress, Stream};
use crate::os;

/// An event's distance from its base comes as a float of milliseconds: after 10 s it is known to about 1 µs.
const REBASE_NS: i64 = 5_000_000_000;
/// A context that cannot be made current for so long is given up: as long as a hand-off waits for what is in flight at most.
const UNREACHABLE_NS: u64 = 1_000_000_000;

/// See the module. Lives as long as the process, since threads keep references to lanes: once its context is gone it is another's, with all its
/// lanes, so that a job may make as many contexts as it likes.
#[derive(Debug)]
pub struct ContextState {
    handle: AtomicUsize,
    /// The GPU that it is on.
    pub gpu: &'static Gpu,
    /// The GPU's ordinal in this process.
    pub ordinal: usize,
    /// Set when the context is destroyed; the driver may give the handle out again.
    is_dead: AtomicBool,
    /// Users beside the first, who attached to it.
    attached: AtomicU32,
    /// Lanes that are on a stream.
    lanes: AtomicU32,
    inner: Mutex<Inner>,
}

/// What the context's lock protects: also, that no event or stream of the context dies while the holder uses it.
#[derive(Debug, Default)]
pub struct Inner {
    /// Every lane, used or not.
    pub lanes: Vec<&'static Lane>,
    /// How the events' time line lies to the host's clock.
    pub offset: Middle,
    /// What a record and a launch take on the host.
    pub lead: Middle,
    /// The stream on which memory is moved ([`super::mover`]); it ends with the context.
    pub moving: Option<Stream>,
    /// Since when the meter thread cannot make the context current.
    unreachable_since_ns: Option<u64>,
    base: Option<Base>,
}

#[derive(Debug)]
struct Base {
    event: Event,
    alignment: Alignment,
}

impl ContextState {
    /// A context on a GPU.
    pub fn new(handle: Context, gpu: &'static Gpu, ordinal: usize) -> Self {
        Self {
            handle: AtomicUsize::new(handle.0),
            gpu,
            ordinal,
            is_dead: AtomicBool::new(false),
            attached: AtomicU32::new(0),
            lanes: AtomicU32::new(0),
            inner: Mutex::default(),
        }
    }

    /// The driver's handle.
    #[inline(always)]
    pub fn handle(&self) -> Context {
        Context(self.handle.load(Ordering::Relaxed))
    }

    /// Whether this is what is known of `handle`, and that is not gone.
    #[inline(always)]
    pub fn is_alive_as(&self, handle: Context) -> bool {
        // In this order: whoever sees that it is alive sees as what.
        !self.is_dead() && self.handle() == handle
    }

    /// Is what is known of another context from here on, on the same GPU. The caller sees to it that nobody else does this.
    pub fn revive(&self, handle: Context) {
        self.handle.store(handle.0, Ordering::Relaxed);
        self.attached.store(0, Ordering::Relaxed);
        self.is_dead.store(false, Ordering::Release);
    }

    /// Locks it. Held by the meter thread while it asks about events, and by hooks that are about to destroy a stream or the
    /// context; never on the way of a launch once a thread has its lane.
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the context is gone.
    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Acquire)
    }

    /// As [`Self::lock`], if nobody has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, Inner>> {
        match self.inner.try_lock() {
            Ok(inner) => Some(inner),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether anything of it is not known to be through. Waits for nobody.
    pub fn may_have_work(&self) -> bool {
        self.try_lock().is_none_or(|inner| inner.lanes.iter().any(|lane| lane.is_busy()))
    }

    /// Every stream of `handle`, which this is, is about to wait for something else than its own work, whoever launches there; perhaps for the host.
    pub fn interrupt(&self, handle: Context, calls: &Calls, thread_id: u32, awaits_host: bool) {
        let inner = self.lock();
        if !self.is_alive_as(handle) {
            return;
        }
        for lane in &inner.lanes {
            // Another thread's per-thread stream has no name here.
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

    /// It is about to go: what of its work is complete is charged as what it took. The caller holds the lock.
    pub fn charge_complete(&self, calls: &Calls, inner: &Inner) {
        for lane in &inner.lanes {
            while let Some(segment) = lane.oldest() {
                let contents = segment.contents();
                if !contents.is_lost && calls.query(segment.end()) != Progress::Done {
                    break;
                }
                let has_start = !contents.is_lost && !contents.is_end_only;
                let measured_ns =
                    has_start.then(|| calls.elapsed_ns(segment.start(), segment.end())).flatten();
                if !contents.is_copy {
                    // The one may hold pauses, and the other be unknown.
                    let took_ns = measured_ns.map_or(u64::MAX, |took_ns| took_ns.max(0) as u64);
                    let known_ns = [contents.expected_ns, took_ns].into_iter().filter(|ns| *ns != 0).min();
                    self.gpu.add_late(known_ns.filter(|ns| *ns != u64::MAX).unwrap_or(0));
                }
                self.gpu.unqueue(contents.queued_ns);
                lane.pop();
            }
        }
    }

    /// The context is gone: nothing of it may be touched from here on. The caller holds the lock. What of its work nobody saw complete is charged as what it
    /// is known to take, or as what there was time for.
    pub fn kill(&self, inner: &mut Inner) {
        inner.lanes.iter().for_each(|lane| lane.retire());
        self.charge_unseen(inner);
        inner.lanes.iter().for_each(|lane| lane.forget_events());
        *inner = Inner { lanes: std::mem::take(&mut inner.lanes), ..Inner::default() };
        // From here on it may be another's.
        self.is_dead.store(true, Ordering::Release);
    }

    /// The meter thread's: it cannot make the context current, at `now_ns`, and so see what is complete. That may pass; after a while nothing of it is taken
    /// for in flight any more, and what nobody saw complete is charged as at the context's end. Returns whether that is so.
    pub fn is_given_up(&self, inner: &mut Inner, now_ns: u64) -> bool {
        let since_ns = *inner.unreachable_since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) < UNREACHABLE_NS {
            return false;
        }
        // Their events stay theirs: the driver may have them still.
        inner.lanes.iter().for_each(|lane| lane.discard());
        self.charge_unseen(inner);
        true
    }

    /// Takes everything of its lanes, of which no segment is open, for through.
    fn charge_unseen(&self, inner: &Inner) {
        let now_ns = os::now_ns();
        let (mut expected_ns, mut most_ns) = (0_u64, 0);
        for lane in &inner.lanes {
            lane.settle();
            while let Some(segment) = lane.oldest() {
                let contents = segment.contents();
                if !contents.is_copy {
                    let unknown_ns = if contents.expected_ns == 0 { u64::MAX } else { contents.expected_ns };
                    expected_ns = expected_ns.saturating_add(unknown_ns);
                    most_ns = most_ns.max(now_ns.saturating_sub(contents.began_ns));
                }
                self.gpu.unqueue(contents.queued_ns);
                lane.pop();
            }
        }
        self.gpu.add_late(expected_ns.min(most_ns));
    }

    /// Runs `call`, which may make one user more, while nobody else leaves.
    pub fn attach<T>(&self, call: impl FnOnce() -> T, is_attached: impl FnOnce(&T) -> bool) -> T {
        let _uncancelled = os::uncancelled();
        let _nobody_leaves = self.lock();
        let result = call();
        if is_attached(&result) {
            self.attached.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    /// A user has left. Returns whether others are left. The caller holds the lock.
    pub fn detach(&self) -> bool {
        let left = |users: u32| users.checked_sub(1);
        self.attached.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok()
    }

    /// Its lanes that are on a stream.
    pub fn lanes(&self) -> u32 {
        self.lanes.load(Ordering::Relaxed)
    }

    /// There are so many more.
    pub fn count_lane(&self, more: i32) {
        self.lanes.fetch_add(more as u32, Ordering::Relaxed);
    }

    /// Two new events of this context.
    pub fn create_events(&self, calls: &Calls) -> Option<(Event, Event)> {
        calls.in_context(self.handle(), || Some((calls.create_event()?, calls.create_event()?)))
    }

    /// The lane of a thread on a stream of `handle`, which this is: the one it has, one that nobody uses any more, or a new one.
    pub fn lane(&'static self, handle: Context, stream: Stream, thread_id: u32) -> Option<&'static Lane> {
        let mut inner = self.lock();
        // Meanwhile it may have been destroyed, and this be another.
        if !self.is_alive_as(handle) {
            return None;
        }
        let own = inner.lanes.iter().find(|lane| lane.stream() == Some(stream) && lane.owner() == thread_id);
        if let Some(lane) = own {
            return Some(lane);
        }
        let free = inner
            .lanes
            .iter()
            .find(|lane| !lane.is_busy() && (lane.stream().is_none() || !os::is_thread_alive(lane.owner())));
        if let Some(lane) = free {
            lane.adopt(stream, thread_id);
            return Some(lane);
        }
        let lane = Box::leak(Box::new(Lane::new(self.gpu, self, stream, thread_id)));
        inner.lanes.push(lane);
        self.count_lane(1);
        Some(lane)
    }
}

impl Inner {
    /// The context is current to the meter thread.
    pub fn reached(&mut self) {
        self.unreachable_since_ns = None;
    }

    /// Where `lane`'s oldest segment, which is complete, lies, ns on the process's time line. Now and
    /// then takes the segment's end event for the new base and leaves the old base in its place.
    pub fn locate(&mut self, calls: &Calls, lane: &Lane) -> Option<(i64, i64)> {
        let segment = lane.oldest()?;
        let contents = segment.contents();
        let took_ns = match contents.is_end_only {
            true => contents.observed((0, 0)).expected_ns,
            false => calls.elapsed_ns(segment.start(), segment.end())?.max(0),
        };
        let Some(base) = &mut self.base else {
            let spare = calls.in_context(lane.context.handle(), || calls.create_event())?;
            let end_ns = os::now_ns() as i64;
            let event = segment.swap_end(spare);
            self.base = Some(Base { event, alignment: Alignment::new(end_ns) });
            return Some((end_ns - took_ns, end_ns));
        };
        let since_base_ns = calls.elapsed_ns(base.event, segment.end())?;
        let placed = base.alignment.place(since_base_ns, os::now_ns() as i64);
        if since_base_ns > REBASE_NS {
            base.event = segment.swap_end(base.event);
            base.alignment.rebase(placed.at_ns);
        }
        self.move_by(placed.moved_ns);
        Some((placed.at_ns - took_ns, placed.at_ns))
    }

    /// The time line was moved: so is what is remembered of it.
    fn move_by(&mut self, moved_ns: i64) {
        if moved_ns == 0 {
            return;
        }
        self.offset.move_by(moved_ns);
        for lane in &self.lanes {
            lane.set_previous_end(lane.previous_end_ns().map(|end_ns| end_ns + moved_ns));
        }
    }
}
