//! A lane: what one thread launches on one stream, cut into segments that are timed by a pair of events each.
//!
//! The launching thread alone opens a segment and counts in it, so the launch path needs no atomic read-modify-write. Either it or the
//! meter thread closes the segment; `state` says whose turn it is. Closed segments go through a ring to the meter thread,
//! and each place in the ring keeps its two events for good: nothing is created on the launch path once a lane is warm.
//!
//! A segment is charged from its first launch's start to its last one's end, as the GPU's clock has it. Launches that come one by one into an
//! idle stream get a segment each; only while the stream stays busy do segments grow, until they last about [`SEGMENT_NS`].

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::context::ContextState;
use super::gpu::Gpu;
use crate::capture;
use crate::driver::calls::{Calls, Event, Stream};

/// Segments that may wait for the meter thread, for each lane. Two events each; a driver queues about a thousand launches.
const RING: u32 = 128;
/// From this many on, a segment grows instead of ending.
const RING_BUSY: u32 = RING - RING / 4;
/// How long a segment should last, ns of GPU time: two records of a µs each are then under 1 % of it, and a tenant's account is
/// less than a quantum behind.
const SEGMENT_NS: u64 = 500_000;
/// Launches in a segment at most. Caps the account's delay where kernels are too short to measure.
const LAUNCHES_MAX: u32 = 1024;
/// As long as nothing was measured, segments grow up to this many launches.
const LAUNCHES_UNMEASURED_MAX: u32 = 16;
/// Every how many segments one holds a single launch, while someone else wants the GPU: to learn kernels one by one.
const SAMPLE_EVERY: u32 = 8;

/// Nothing is open: the owner's to change.
const IDLE: u32 = 0;
/// A segment is open: the owner counts in it; whoever moves it to [`CLOSING`] closes it.
const OPEN: u32 = 1;
/// Someone is recording the end.
const CLOSING: u32 = 2;
/// A segment is open, and the owner is inside the driver with a launch of it: nobody closes it now.
const LAUNCHING: u32 = 3;

/// What is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Identifies launches that take the same time: a hash of function and geometry, or of a graph.
    pub key: u64,
    /// A whole graph.
    pub is_graph: bool,
}

/// One closed segment in the ring.
#[derive(Debug, Default)]
pub struct Segment {
    start: AtomicUsize,
    end: AtomicUsize,
    launches: AtomicU32,
    /// The launches' key if there is one launch, else 0.
    key: AtomicU64,
    /// Estimate that was added to the GPU's queue.
    estimate_ns: AtomicU64,
    /// How long there had been no launch when the meter thread closed it; 0: the owner closed it.
    quiet_ns: AtomicU64,
    /// An end could not be recorded: there is nothing to measure.
    is_lost: AtomicBool,
}

impl Segment {
    /// The event before the first launch.
    pub fn start(&self) -> Event {
        Event(self.start.load(Ordering::Relaxed))
    }

    /// The event after the last one.
    pub fn end(&self) -> Event {
        Event(self.end.load(Ordering::Relaxed))
    }

    /// Takes the end event away, leaving `spare` in its place.
    pub fn swap_end(&self, spare: Event) -> Event {
        Event(self.end.swap(spare.0, Ordering::Relaxed))
    }

    /// Launches in it.
    pub fn launches(&self) -> u32 {
        self.launches.load(Ordering::Relaxed)
    }

    /// The key of its only launch.
    pub fn key(&self) -> Option<u64> {
        Some(self.key.load(Ordering::Relaxed)).filter(|key| *key != 0)
    }

    /// What it was thought to take, ns.
    pub fn estimate_ns(&self) -> u64 {
        self.estimate_ns.load(Ordering::Relaxed)
    }

    /// How long there had been no launch when it was closed by the meter thread; 0: its owner closed it.
    pub fn quiet_ns(&self) -> u64 {
        self.quiet_ns.load(Ordering::Relaxed)
    }

    /// Whether it cannot be measured.
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }
}

/// See the module.
#[derive(Debug)]
#[repr(align(128))]
pub struct Lane {
    state: AtomicU32,
    /// Launches in the open segment.
    launched: AtomicU32,
    /// Launches at which it ends.
    target: AtomicU32,
    /// GPU that the launches run on.
    pub gpu: &'static Gpu,
    /// The context of the stream.
    pub context: &'static ContextState,
    stream: AtomicUsize,
    owner: AtomicU32,

    /// Segment length that the stream's busyness suggests; the owner's alone.
    wanted: AtomicU32,
    /// Segments opened; the owner's alone.
    opened: AtomicU32,
    /// Estimates of the open segment that are in the GPU's queue already, and how many launches they cover.
    open_estimate_ns: AtomicU64,
    open_estimated: AtomicU32,
    open_key: AtomicU64,
    /// How many of the open segment's launches are graphs.
    open_graphs: AtomicU32,

    /// Segments closed, ever (modulo 2³²).
    head: AtomicU32,
    /// Segments that the meter thread is through with.
    tail: AtomicU32,
    /// Mean GPU time of a launch, ns; 0: not measured yet.
    mean_ns: AtomicU64,
    /// What the meter thread saw at its last look: launches in the open segment, and since when they are as many.
    pub seen_launched: AtomicU32,
    /// See `seen_launched` (ns of `CLOCK_MONOTONIC`).
    pub seen_since_ns: AtomicU64,
    ring: Box<[Segment]>,
}

impl Lane {
    /// A lane for `stream`, owned by the thread `owner`.
    pub fn new(gpu: &'static Gpu, context: &'static ContextState, stream: Stream, owner: u32) -> Self {
        Self {
            state: AtomicU32::new(IDLE),
            launched: AtomicU32::new(0),
            target: AtomicU32::new(1),
            gpu,
            context,
            stream: AtomicUsize::new(stream.0),
            owner: AtomicU32::new(owner),
            wanted: AtomicU32::new(1),
            opened: AtomicU32::new(0),
            open_estimate_ns: AtomicU64::new(0),
            open_estimated: AtomicU32::new(0),
            open_key: AtomicU64::new(0),
            open_graphs: AtomicU32::new(0),
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            mean_ns: AtomicU64::new(0),
            seen_launched: AtomicU32::new(0),
            seen_since_ns: AtomicU64::new(0),
            ring: (0..RING).map(|_| Segment::default()).collect(),
        }
    }

    /// The stream, or `None` for a lane that nobody uses.
    pub fn stream(&self) -> Option<Stream> {
        Some(Stream(self.stream.load(Ordering::Acquire))).filter(|stream| stream.0 != 0)
    }

    /// The thread that launches.
    pub fn owner(&self) -> u32 {
        self.owner.load(Ordering::Relaxed)
    }

    /// Gives a lane that nobody uses, or whose thread is gone, to another. Under the context's lock.
    pub fn adopt(&self, stream: Stream, owner: u32) {
        self.owner.store(owner, Ordering::Relaxed);
        self.wanted.store(1, Ordering::Relaxed);
        if self.stream.swap(stream.0, Ordering::AcqRel) != stream.0 {
            self.mean_ns.store(0, Ordering::Relaxed);
        }
    }

    /// Leaves the lane unused, once its stream is gone. Under the context's lock.
    pub fn retire(&self) {
        self.discard();
        self.stream.store(0, Ordering::Release);
    }

    /// Counts one more launch in the open segment, if that neither begins nor ends one. The whole of the launch path while
    /// the gate is open; the owner's alone.
    #[inline(always)]
    pub fn count(&self) -> bool {
        let launched = self.launched.load(Ordering::Relaxed) + 1;
        if self.state.load(Ordering::Relaxed) == OPEN && launched < self.target.load(Ordering::Relaxed) {
            self.launched.store(launched, Ordering::Relaxed);
            return true;
        }
        false
    }

    /// Whether a segment is open.
    pub fn is_open(&self) -> bool {
        self.state.load(Ordering::SeqCst) != IDLE
    }

    /// Whether anything of this lane is unfinished, as far as the meter thread knows.
    pub fn is_busy(&self) -> bool {
        self.is_open() || self.waiting() != 0
    }

    /// Launches in the open segment, or `None`.
    pub fn open_launches(&self) -> Option<u32> {
        (self.state.load(Ordering::Acquire) == OPEN).then(|| self.launched.load(Ordering::Relaxed))
    }

    /// Mean GPU time of a launch, ns; 0: not measured yet.
    pub fn mean_ns(&self) -> u64 {
        self.mean_ns.load(Ordering::Relaxed)
    }

    /// Whether more is queued than `at_most_ns`; as long as nothing was measured, whether more than `segments` are.
    pub fn is_far_ahead(&self, at_most_ns: u64, segments: u32) -> bool {
        match self.mean_ns() {
            0 => self.waiting() > segments,
            mean_ns => {
                let open_ns = mean_ns.saturating_mul(u64::from(self.open_launches().unwrap_or(0)));
                self.waiting() != 0
                    && self.gpu.queued_ns().saturating_add(self.gpu.share_ns(open_ns)) > at_most_ns
            }
        }
    }

    fn waiting(&self) -> u32 {
        self.head.load(Ordering::Acquire).wrapping_sub(self.tail.load(Ordering::Acquire))
    }

    fn place(&self, number: u32) -> Option<&Segment> {
        self.ring.get((number % RING) as usize)
    }

    /// Before a launch by the owner: opens a segment if none is open, or counts in it. Returns whether the segment ends after
    /// this launch. `None`: it goes unmetered, since no event could be had or recorded.
    ///
    /// `contended`: someone else wants the GPU; then `estimate_ns` of this launch is in the GPU's queue already.
    pub fn begin(&self, calls: &Calls, launch: Launch, contended: Option<u64>) -> Option<bool> {
        let alone = launch.is_graph || self.stream() == Some(Stream::PER_THREAD);
        if alone && self.is_open() && self.waiting() < RING_BUSY {
            self.close(calls);
        }
        if !self.claim() {
            self.open(calls, launch, contended.is_some())?;
        } else {
            let launched = self.launched.load(Ordering::Relaxed) + 1;
            self.launched.store(launched, Ordering::Relaxed);
            self.open_key.store(0, Ordering::Relaxed);
        }
        if launch.is_graph {
            self.open_graphs.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(estimate_ns) = contended {
            self.open_estimate_ns.fetch_add(estimate_ns, Ordering::Relaxed);
            self.open_estimated.fetch_add(1, Ordering::Relaxed);
        }
        Some(alone || self.launched.load(Ordering::Relaxed) >= self.target.load(Ordering::Relaxed))
    }

    fn open(&self, calls: &Calls, launch: Launch, contended: bool) -> Option<()> {
        let stream = self.stream()?;
        let segment = self.place(self.head.load(Ordering::Relaxed))?;
        if segment.end().0 == 0 {
            let (start, end) = self.context.create_events(calls)?;
            segment.start.store(start.0, Ordering::Relaxed);
            segment.end.store(end.0, Ordering::Relaxed);
        }
        if !calls.record(segment.start(), stream) {
            return None;
        }
        let opened = self.opened.load(Ordering::Relaxed).wrapping_add(1);
        self.opened.store(opened, Ordering::Relaxed);
        let sample = contended && opened.is_multiple_of(SAMPLE_EVERY);
        self.target.store(if sample { 1 } else { self.grow() }, Ordering::Relaxed);
        self.launched.store(1, Ordering::Relaxed);
        self.open_estimate_ns.store(0, Ordering::Relaxed);
        self.open_estimated.store(0, Ordering::Relaxed);
        self.open_key.store(launch.key, Ordering::Relaxed);
        self.open_graphs.store(0, Ordering::Relaxed);
        // From here the meter thread sees it; only then may it find `in_flight` set.
        self.state.store(LAUNCHING, Ordering::SeqCst);
        Some(())
    }

    /// The length of the next segment: longer as long as the stream has work left, one launch as soon as it had none.
    fn grow(&self) -> u32 {
        let longest = match self.mean_ns() {
            0 => LAUNCHES_UNMEASURED_MAX,
            mean_ns => (SEGMENT_NS / mean_ns).clamp(1, u64::from(LAUNCHES_MAX)) as u32,
        };
        let wanted = match self.waiting() {
            0 => 1,
            _ => self.wanted.load(Ordering::Relaxed).saturating_mul(2).min(longest),
        };
        self.wanted.store(wanted, Ordering::Relaxed);
        wanted
    }

    /// Takes the open segment for a launch, so that nobody closes it meanwhile. False: none is open.
    fn claim(&self) -> bool {
        loop {
            match self.state.compare_exchange(OPEN, LAUNCHING, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) | Err(LAUNCHING) => return true,
                Err(IDLE) => return false,
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    /// After every launch that [`Self::begin`] came before.
    pub fn launched(&self) {
        // Unless it was dropped meanwhile, with its stream.
        let _ = self.state.compare_exchange(LAUNCHING, OPEN, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// After a launch that the driver refused: it is not to be counted.
    pub fn uncount(&self) {
        let launched = self.launched.load(Ordering::Relaxed);
        self.launched.store(launched.saturating_sub(1), Ordering::Relaxed);
    }

    /// After the launch that ends a segment.
    pub fn end(&self, calls: &Calls) {
        // The meter thread cannot close a per-thread stream's.
        if self.waiting() < RING_BUSY || self.stream() == Some(Stream::PER_THREAD) {
            self.close(calls);
        } else {
            let target = self.target.load(Ordering::Relaxed);
            self.target.store(target.saturating_add(target), Ordering::Relaxed);
        }
    }

    /// Closes the open segment, if there is one and the ring has room for one more after it.
    pub fn close(&self, calls: &Calls) {
        self.close_if(calls, |_| true, None);
    }

    /// The meter thread's way to close a segment that has had `launches` launches for `quiet_ns`.
    ///
    /// A per-thread default stream is another stream to another thread, so the end of a segment there cannot be recorded by this one. Such a
    /// segment stays open only if the ring had no place when its thread would have closed it. It is closed as lost, once all before it is
    /// complete and what it holds has had the time that it usually takes.
    pub fn close_stale(&self, calls: &Calls, launches: u32, quiet_ns: u64) {
        let usual_ns = self.mean_ns().saturating_mul(u64::from(launches));
        if self.stream() != Some(Stream::PER_THREAD) || (self.waiting() == 0 && quiet_ns > usual_ns) {
            self.close_if(calls, |launched| launched == launches, Some(quiet_ns));
        }
    }

    /// The stream is about to be destroyed: what could not be closed is dropped, and whoever records on the stream is waited for.
    fn discard(&self) {
        loop {
            let state = self.state.load(Ordering::Acquire);
            if state == IDLE {
                return;
            }
            if state == CLOSING
                || self.state.compare_exchange(state, CLOSING, Ordering::SeqCst, Ordering::Relaxed).is_err()
            {
                std::thread::yield_now();
                continue;
            }
            self.gpu.unqueue(self.open_estimate_ns.swap(0, Ordering::Relaxed));
            let launched = self.launched.load(Ordering::Relaxed);
            let graphs = self.open_graphs.load(Ordering::Relaxed).min(launched);
            self.gpu.count(launched - graphs, graphs);
            self.state.store(IDLE, Ordering::SeqCst);
            return;
        }
    }

    fn close_if(&self, calls: &Calls, still: impl Fn(u32) -> bool, quiet_ns: Option<u64>) {
        // Whoever opens a segment needs a place for it, so the last one is never given away.
        if self.waiting() >= RING - 1
            || self.state.compare_exchange(OPEN, CLOSING, Ordering::SeqCst, Ordering::Relaxed).is_err()
        {
            return;
        }
        let number = self.head.load(Ordering::Relaxed);
        let launched = self.launched.load(Ordering::SeqCst);
        let (Some(stream), Some(segment), true) = (self.stream(), self.place(number), still(launched)) else {
            // The owner counted again meanwhile.
            self.state.store(OPEN, Ordering::SeqCst);
            return;
        };
        // A stream that joined a capture meanwhile takes no marker.
        let is_anothers = stream == Stream::PER_THREAD && quiet_ns.is_some();
        let record = || {
            let is_captured = capture::is_active() && calls.may_be_capturing(stream);
            (!is_anothers && !is_captured && calls.record(segment.end(), stream)).then_some(())
        };
        // A default stream's name means that of the current context.
        let is_recorded = if stream.is_default() {
            calls.in_context(self.context.handle, record).is_some()
        } else {
            record().is_some()
        };
        let estimated_ns = self.open_estimate_ns.load(Ordering::Relaxed);
        let unestimated = launched.saturating_sub(self.open_estimated.load(Ordering::Relaxed));
        let added_ns = self.mean_ns().saturating_mul(u64::from(unestimated));
        self.gpu.queue(added_ns);
        let graphs = self.open_graphs.load(Ordering::Relaxed).min(launched);
        self.gpu.count(launched - graphs, graphs);
        segment.launches.store(launched, Ordering::Relaxed);
        segment
            .key
            .store(if launched == 1 { self.open_key.load(Ordering::Relaxed) } else { 0 }, Ordering::Relaxed);
        segment.estimate_ns.store(estimated_ns.saturating_add(added_ns), Ordering::Relaxed);
        segment.quiet_ns.store(quiet_ns.unwrap_or(0), Ordering::Relaxed);
        segment.is_lost.store(!is_recorded, Ordering::Relaxed);
        self.head.store(number.wrapping_add(1), Ordering::SeqCst);
        self.state.store(IDLE, Ordering::SeqCst);
    }

    /// Waits while another thread records an end: one call of the driver.
    pub fn await_closed(&self) {
        while self.state.load(Ordering::Acquire) == CLOSING {
            std::thread::yield_now();
        }
    }

    /// The oldest closed segment. The meter thread's.
    pub fn oldest(&self) -> Option<&Segment> {
        if self.waiting() == 0 { None } else { self.place(self.tail.load(Ordering::Relaxed)) }
    }

    /// The meter thread is through with the oldest segment.
    pub fn pop(&self) {
        let tail = self.tail.load(Ordering::Relaxed);
        self.tail.store(tail.wrapping_add(1), Ordering::Release);
    }

    /// Takes a measurement into the mean.
    pub fn learn(&self, per_launch_ns: u64) {
        let mean_ns = self.mean_ns();
        let next = if mean_ns == 0 { per_launch_ns } else { mean_ns - mean_ns / 4 + per_launch_ns / 4 };
        self.mean_ns.store(next.max(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::calls::{Context, Progress};
    use crate::driver::fake;
    use crate::os;

    const STREAM: Stream = Stream(0x10_0000);
    const KERNEL: Launch = Launch { key: 5, is_graph: false };
    const GRAPH: Launch = Launch { key: 6, is_graph: true };
    const KERNEL_NS: u64 = 10_000;

    fn lane() -> &'static Lane {
        lane_of(STREAM)
    }

    fn lane_of(stream: Stream) -> &'static Lane {
        let gpu: &'static Gpu = Box::leak(Box::default());
        let context: &'static ContextState = Box::leak(Box::new(ContextState::new(Context(0x1000), gpu, 0)));
        context.lane(stream, 1).unwrap()
    }

    /// One launch as the hooks make it, of a kernel or graph of `ns`.
    fn launch(calls: &Calls, lane: &Lane, launch: Launch, ns: u64) {
        if !launch.is_graph && lane.count() {
            fake::launch(lane.stream().unwrap(), ns);
            return;
        }
        let ends = lane.begin(calls, launch, None).unwrap();
        lane.close_stale(calls, 1, 1);
        assert!(lane.is_open(), "nobody closes under a launch");
        fake::launch(lane.stream().unwrap(), ns);
        lane.launched();
        if ends {
            lane.end(calls);
        }
    }

    /// What the meter thread does with completed segments: their launches, and the time they took.
    fn read(calls: &Calls, lane: &Lane) -> Vec<(u32, u64)> {
        let mut found = Vec::new();
        while let Some(segment) = lane.oldest() {
            if calls.query(segment.end()) != Progress::Done {
                break;
            }
            let took_ns = calls.elapsed_ns(segment.start(), segment.end()).unwrap() as u64;
            found.push((segment.launches(), took_ns));
            lane.learn(took_ns / u64::from(segment.launches()));
            lane.pop();
        }
        found
    }

    #[test]
    fn sparse_launches_are_bracketed_each_so_that_no_pause_is_charged() {
        let (calls, lane) = (fake::calls(), lane());
        for _ in 0..10 {
            launch(&calls, lane, KERNEL, KERNEL_NS);
            assert!(!lane.is_open());
            fake::pass(1_000_000);
            assert_eq!(read(&calls, lane), [(1, KERNEL_NS)]);
        }
        assert!(!lane.is_busy());
    }

    #[test]
    fn while_the_stream_is_busy_segments_grow_to_their_length_and_no_further() {
        let (calls, lane) = (fake::calls(), lane());
        let mut longest = 0;
        for _ in 0..10_000 {
            launch(&calls, lane, KERNEL, KERNEL_NS);
            fake::pass(KERNEL_NS - 1_000);
            for (launches, took_ns) in read(&calls, lane) {
                longest = longest.max(launches);
                // Events count in floats of milliseconds.
                let exact_ns = u64::from(launches) * KERNEL_NS;
                assert!(took_ns.abs_diff(exact_ns) < 100, "{took_ns} for {launches}");
            }
        }
        assert_eq!(u64::from(longest), SEGMENT_NS / KERNEL_NS);
    }

    #[test]
    fn graphs_are_segments_of_their_own() {
        let (calls, lane) = (fake::calls(), lane());
        for what in [GRAPH, GRAPH, KERNEL, GRAPH] {
            launch(&calls, lane, what, KERNEL_NS);
        }
        lane.close(&calls);
        fake::finish();
        assert_eq!(read(&calls, lane), [(1, KERNEL_NS); 4]);
    }

    #[test]
    fn a_reader_that_never_comes_loses_nothing() {
        let (calls, lane) = (fake::calls(), lane());
        const LAUNCHES: u32 = 100_000;
        for number in 0..LAUNCHES {
            launch(&calls, lane, if number % 3 == 0 { GRAPH } else { KERNEL }, KERNEL_NS);
            lane.close(&calls);
            assert!(lane.waiting() < RING);
        }
        fake::finish();
        let read_launches: u32 = read(&calls, lane).iter().map(|(launches, _)| launches).sum();
        assert_eq!(read_launches + lane.open_launches().unwrap_or(0), LAUNCHES);
        lane.close(&calls);
        let rest: u32 = read(&calls, lane).iter().map(|(launches, _)| launches).sum();
        assert_eq!(read_launches + rest, LAUNCHES);
        assert!(!lane.is_busy());
    }

    #[test]
    fn a_segment_that_had_another_launch_meanwhile_is_not_stale() {
        let (calls, lane) = (fake::calls(), lane());
        launch(&calls, lane, KERNEL, KERNEL_NS);
        launch(&calls, lane, KERNEL, KERNEL_NS);
        assert_eq!(lane.open_launches(), Some(1), "the second is of a longer segment");
        lane.close_stale(&calls, 7, 300);
        assert!(lane.is_open());
        lane.close_stale(&calls, 1, 300);
        assert!(!lane.is_open());
        assert_eq!(lane.place(1).map(Segment::quiet_ns), Some(300));
    }

    #[test]
    fn what_a_full_ring_leaves_open_on_a_per_thread_stream_is_closed_once_it_must_be_complete() {
        let (calls, lane) = (fake::calls(), lane_of(Stream::PER_THREAD));
        const LEFT: u32 = 5;
        for _ in 0..RING - 1 + LEFT {
            launch(&calls, lane, KERNEL, KERNEL_NS);
        }
        assert_eq!(lane.open_launches(), Some(LEFT));
        lane.close_stale(&calls, LEFT, u64::MAX);
        assert!(lane.is_open(), "what came before still runs");
        fake::finish();
        assert_eq!(read(&calls, lane).len(), RING as usize - 1);
        lane.close_stale(&calls, LEFT, KERNEL_NS);
        assert!(lane.is_open(), "it may still run");
        lane.close_stale(&calls, LEFT, u64::from(LEFT + 1) * KERNEL_NS);
        let closed = lane.oldest().unwrap();
        assert!(closed.is_lost(), "nothing was recorded from another thread");
        assert_eq!(closed.launches(), LEFT);
    }

    #[test]
    fn what_is_queued_counts_as_far_ahead_once_it_is_measured_or_several() {
        let (calls, lane) = (fake::calls(), lane());
        for _ in 0..3 {
            assert!(!lane.is_far_ahead(1_000_000, 2));
            launch(&calls, lane, GRAPH, 400_000);
        }
        assert!(lane.is_far_ahead(1_000_000, 2), "nothing is known, and several wait");
        fake::finish();
        read(&calls, lane);
        launch(&calls, lane, GRAPH, 400_000);
        launch(&calls, lane, GRAPH, 400_000);
        assert!(!lane.is_far_ahead(1_000_000, 0));
        launch(&calls, lane, GRAPH, 400_000);
        assert!(lane.is_far_ahead(1_000_000, 0));
    }

    #[test]
    fn a_lane_nobody_uses_is_given_to_the_next_thread() {
        let lane = lane();
        let context = lane.context;
        assert!(std::ptr::eq(context.lane(STREAM, 1).unwrap(), lane), "its own");
        let calls = fake::calls();
        launch(&calls, lane, KERNEL, KERNEL_NS);
        launch(&calls, lane, KERNEL, KERNEL_NS);
        assert!(lane.is_open());
        lane.retire();
        assert!(!lane.is_open(), "nothing stays open on a stream that is gone");
        fake::finish();
        read(&calls, lane);
        let next = context.lane(Stream(0x20_0000), os::thread_id()).unwrap();
        assert!(std::ptr::eq(next, lane));
        let other = context.lane(STREAM, os::thread_id()).unwrap();
        assert!(!std::ptr::eq(other, lane), "its thread lives");
    }
}
