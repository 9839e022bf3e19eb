//! A lane: the launches of one thread on one stream, cut into segments. A pair of events times each
//! segment.
//!
//! Only the launching thread (the lane's owner thread) opens a segment and counts in it, so the
//! launch path needs no atomic read-modify-write. Either the owner thread or the meter thread
//! closes the segment. [`Tally`] decides which of the two may act, and it accounts for each launch
//! exactly once. Closed segments go through a ring to the meter thread.
//!
//! While the gate is open, a segment lasts about [`SEGMENT_NS`] and each launch adds its estimate.
//! So gaps between launches need no timing ([`super::measure`]). A launch without an estimate and a
//! long graph get a segment of their own, and so does every now and then any launch. While the GPU
//! is contended, launches that come one by one into an idle stream get a segment each, and so does
//! every graph.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::{hint, thread};

use deepres_abi::tally::{Attempt, Taken, Tally};

use super::context::ContextState;
use super::gpu::Gpu;
use super::segment::{Contents, Kind, Launch, Launches, Segment};
use crate::driver::calls::{Calls, Event, Progress, Stream};
use crate::{capture, os};

/// Number of times that the owner thread polls a segment that another thread is closing, before it
/// yields its CPU. One poll takes 28 ns as measured. All polls together take as long as the slowest
/// driver needs to record an end event.
const CLAIM_SPINS: u32 = 64;
/// Closed segments of one lane that may wait for the meter thread. Each has two events, and a
/// driver queues about a thousand launches.
const RING: u32 = 128;
/// Number of waiting segments from which on a segment of the lane grows instead of ending.
const RING_BUSY: u32 = RING - RING / 4;
/// Waiting segments that all lanes of a context may have together, divided evenly among the lanes.
/// The limit bounds the driver's events and the meter thread's time, however many threads and
/// streams there are.
const WAITING_OF_ALL: u32 = 4096;
/// Waiting segments that each lane may have in any case.
const WAITING_OF_EACH: u32 = 4;
/// Launches that a segment must have before it may end, while the stream may wait for the host.
const LAUNCHES_STUCK: u32 = 256;
/// How long a segment should last, ns, both of GPU time and of host time. Recording two events of 1
/// µs each then takes less than 1 % of it. A tenant's charged time is then less than a quantum
/// behind.
const SEGMENT_NS: u64 = 500_000;
/// Most launches in a segment. The limit bounds the delay of the charge where kernels are too short
/// to measure.
const LAUNCHES_MAX: u32 = 1024;
/// Longest length that a segment may double to, in launches. A segment grows as long as the ring
/// has no room, and counts modulo 2³² must stay comparable.
const LONGEST: u32 = 1 << 29;
/// Most launches in a segment as long as nothing was measured on the lane.
const LAUNCHES_UNMEASURED_MAX: u32 = 16;
/// While the GPU is contended, one segment in this many holds a single launch, so that each
/// kernel's time is learned.
const SAMPLE_EVERY: u32 = 8;
/// The same while the GPU is not contended and the stream has gaps, where single launches matter
/// more.
const SPARSE_SAMPLE_EVERY: u32 = 4;
/// A launch without an estimate ends the open segment only if that segment has at least this many
/// launches. So where no kernel has an estimate, one launch in this many is timed.
const UNKNOWN_APART: u32 = 8;
/// Of the copies between kernels that have an estimate, one in this many is timed.
const COPY_SAMPLE_EVERY: u32 = 8;
/// Launches of a graph with conditional nodes that must be measured before its estimate is trusted.
/// The first launch may be by far the shortest.
const VARYING_SEEN: u8 = 8;
/// Longest graph, ns, that is counted like a kernel while the GPU is not contended. Graphs with
/// conditional nodes are excepted. A graph that fills more than a quarter of a segment is timed
/// every time. The timing costs next to nothing beside the time of such a graph.
const SHORT_GRAPH_NS: u64 = SEGMENT_NS / 4;
/// Value of `stuck_at` while the stream is not stuck.
const GETS_ON: u64 = u64::MAX;
/// Value of `previous_end_ns` while no end is known.
const NO_END: i64 = i64::MIN;

/// A lane, as the module describes it.
#[derive(Debug)]
#[repr(align(128))]
pub struct Lane {
    /// Launches, counted by [`Kind::one`].
    tally: Tally,
    /// Launches when the last segment was opened (modulo 2³²). Used by the owner thread alone.
    opened_at: AtomicU32,
    /// GPU that the launches run on.
    pub gpu: &'static Gpu,
    /// The context of the stream.
    pub context: &'static ContextState,
    stream: AtomicUsize,
    owner: AtomicU32,

    /// Segment length that the stream's pace suggests. Used by the owner thread alone.
    wanted: AtomicU32,
    /// Segments opened so far. Used by the owner thread alone.
    opened: AtomicU32,
    /// Number of segments whose events later segments have taken over (modulo 2³²). Used by the
    /// owner thread alone. Each segment from this number to the open one has its own two events.
    taken: AtomicU32,
    /// Whether the stream's last segment had gaps, or may have had gaps. The meter thread sets it.
    is_sparse: AtomicBool,
    /// GPU time, ns, by which earlier segments were charged less than expected, because their
    /// bounds forced a lower charge. Later segments are charged this much more. Without the
    /// correction, kernels whose times scatter around the mean would be charged too little, because
    /// the bounds only ever cut off the long side.
    carried_ns: AtomicI64,
    /// The `open_` fields describe the open segment, as in [`Contents`]. This one is the part of
    /// its estimate that is already in the GPU's queue, ns.
    open_queued_ns: AtomicU64,
    open_key: AtomicU64,
    open_asked_ns: AtomicU64,
    open_began_ns: AtomicU64,
    open_first_ns: AtomicU64,
    open_is_copy: AtomicBool,
    open_is_end_only: AtomicBool,
    open_may_wait: AtomicBool,
    open_is_quiet: AtomicBool,
    /// Whether the stream was made to wait for something else since the last segment was opened.
    has_to_wait: AtomicBool,
    /// Estimated time of the copies that the open segment took in, ns.
    open_copied_ns: AtomicU64,
    /// Copies so far. Used by the owner thread alone.
    copies: AtomicU32,

    /// Closed segments of kernels and graphs that the meter thread has not processed yet.
    computing: AtomicU32,
    /// Segments closed so far (modulo 2³²).
    head: AtomicU32,
    /// Segments that the meter thread has processed (modulo 2³²).
    tail: AtomicU32,
    /// Number of the segment that must complete before the stream counts as running again, or
    /// [`GETS_ON`].
    stuck_at: AtomicU64,
    /// Whether the job made the stream wait for the host, as far as the interposer can tell.
    awaits_host: AtomicBool,
    /// Mean GPU time of a launch, ns; 0: not measured yet.
    mean_ns: AtomicU64,
    /// Where the last segment ended that the meter thread processed, or [`NO_END`].
    previous_end_ns: AtomicI64,
    /// Launches in the open segment at the meter thread's last look.
    pub seen_launched: AtomicU32,
    /// Since when `seen_launched` has its value (ns of `CLOCK_MONOTONIC`).
    pub seen_since_ns: AtomicU64,
    ring: Box<[Segment]>,
}

/// A launch that a lane has taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begun {
    /// Whether the launch opened a segment.
    pub opens: bool,
    /// Whether the segment ends after the launch.
    pub ends: bool,
}

impl Lane {
    /// A lane for `stream`, owned by the thread `owner`.
    pub fn new(gpu: &'static Gpu, context: &'static ContextState, stream: Stream, owner: u32) -> Self {
        Self {
            tally: Tally::default(),
            opened_at: AtomicU32::new(0),
            gpu,
            context,
            stream: AtomicUsize::new(stream.0),
            owner: AtomicU32::new(owner),
            wanted: AtomicU32::new(1),
            opened: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            is_sparse: AtomicBool::new(true),
            carried_ns: AtomicI64::new(0),
            open_queued_ns: AtomicU64::new(0),
            open_key: AtomicU64::new(0),
            open_asked_ns: AtomicU64::new(0),
            open_began_ns: AtomicU64::new(0),
            open_first_ns: AtomicU64::new(0),
            open_is_copy: AtomicBool::new(false),
            open_is_end_only: AtomicBool::new(false),
            open_may_wait: AtomicBool::new(false),
            open_is_quiet: AtomicBool::new(false),
            has_to_wait: AtomicBool::new(false),
            open_copied_ns: AtomicU64::new(0),
            copies: AtomicU32::new(0),
            computing: AtomicU32::new(0),
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            stuck_at: AtomicU64::new(GETS_ON),
            awaits_host: AtomicBool::new(false),
            mean_ns: AtomicU64::new(0),
            previous_end_ns: AtomicI64::new(NO_END),
            seen_launched: AtomicU32::new(0),
            seen_since_ns: AtomicU64::new(0),
            ring: (0..RING).map(|_| Segment::default()).collect(),
        }
    }

    /// The stream, or `None` for a lane that nobody uses.
    pub fn stream(&self) -> Option<Stream> {
        Some(Stream(self.stream.load(Ordering::Acquire))).filter(|stream| stream.0 != 0)
    }

    /// The owner thread: the thread that launches.
    pub fn owner(&self) -> u32 {
        self.owner.load(Ordering::Relaxed)
    }

    /// Gives the lane to another thread, if nobody uses it or its thread is gone. The caller holds
    /// the context's lock.
    pub fn adopt(&self, stream: Stream, owner: u32) {
        self.owner.store(owner, Ordering::Relaxed);
        self.wanted.store(1, Ordering::Relaxed);
        self.is_sparse.store(true, Ordering::Relaxed);
        self.carried_ns.store(0, Ordering::Relaxed);
        self.stuck_at.store(GETS_ON, Ordering::Relaxed);
        let before = self.stream.swap(stream.0, Ordering::AcqRel);
        if before == 0 {
            self.context.count_lane(1);
        }
        if before != stream.0 {
            self.mean_ns.store(0, Ordering::Relaxed);
            self.set_previous_end(None);
        }
    }

    /// Marks the lane as unused, once its stream is gone. The caller holds the context's lock.
    pub fn retire(&self) {
        self.discard();
        if self.stream.swap(0, Ordering::AcqRel) != 0 {
            self.context.count_lane(-1);
        }
    }

    /// Forgets the lane's events, which the driver destroyed with their context.
    pub fn forget_events(&self) {
        self.ring.iter().for_each(|segment| segment.set_events(Event::NONE, Event::NONE));
        self.taken.store(self.head.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Counts one more launch in the open segment, if the launch neither begins nor ends a segment
    /// and has an estimate. While the gate is open this is the whole launch path. Called by the
    /// owner thread alone.
    #[inline(always)]
    pub fn count(&self, launch: Launch) -> bool {
        let Some((launched, ns)) = self.fits(launch) else { return false };
        self.tally.put(launched, ns);
        true
    }

    /// If the open segment may count the launch: returns the number of launches including it, and
    /// its estimate, ns.
    #[inline(always)]
    fn fits(&self, launch: Launch) -> Option<(u64, u64)> {
        let launched = self.tally.next(launch.kind.one())?;
        let ns = self.gpu.estimates.get(launch.key)?;
        if launch.kind.is_graph() && (ns > SHORT_GRAPH_NS || launch.kind == Kind::VaryingGraph) {
            return None;
        }
        Some((launched, ns))
    }

    /// Launches that no closed segment had.
    fn unaccounted(&self) -> Launches {
        Launches(self.tally.unaccounted().launched)
    }

    /// Estimated time of the launches that no closed segment had, ns.
    fn unaccounted_ns(&self) -> u64 {
        self.tally.unaccounted().ns
    }

    /// If no segment is open: counts the launches that came after the last segment was closed.
    /// Called by the owner thread and the meter thread.
    pub fn settle(&self) {
        if let Some(late) = self.tally.settle().filter(|late| late.launched as i64 > 0) {
            self.gpu.add_late(late.ns);
            self.gpu.count(Launches(late.launched), 0);
        }
    }

    /// Lets the open segment end with its next launch. Called by the meter thread.
    pub fn end_soon(&self) {
        self.tally.end_soon();
    }

    /// Whether a segment is open.
    pub fn is_open(&self) -> bool {
        self.tally.is_open()
    }

    /// Whether any work of this lane is unfinished, as far as the meter thread knows.
    pub fn is_busy(&self) -> bool {
        self.is_open() || self.waiting() != 0
    }

    /// Whether any kernel or graph of this lane is unfinished, as far as the meter thread knows.
    pub fn is_computing(&self) -> bool {
        self.computing.load(Ordering::SeqCst) != 0
            || (self.is_open() && !self.open_is_copy.load(Ordering::Relaxed))
    }

    /// Launches in the open segment, or `None` if no segment can be closed.
    pub fn open_launches(&self) -> Option<u32> {
        self.tally.is_closable().then(|| self.unaccounted().all())
    }

    /// Mean GPU time of a launch, ns; 0: not measured yet.
    pub fn mean_ns(&self) -> u64 {
        self.mean_ns.load(Ordering::Relaxed)
    }

    /// Whether the stream had gaps lately, or may have had gaps.
    pub fn is_sparse(&self) -> bool {
        self.is_sparse.load(Ordering::Relaxed)
    }

    /// Where the last segment ended that the meter thread processed.
    pub fn previous_end_ns(&self) -> Option<i64> {
        Some(self.previous_end_ns.load(Ordering::Relaxed)).filter(|end_ns| *end_ns != NO_END)
    }

    /// Sets [`Self::previous_end_ns`]. Called by the meter thread.
    pub fn set_previous_end(&self, end_ns: Option<i64>) {
        self.previous_end_ns.store(end_ns.unwrap_or(NO_END), Ordering::Relaxed);
    }

    /// Whether more than `at_most_ns` of GPU time is queued. As long as nothing was measured, or
    /// `launch` may take any time in spite of its estimate, the limit is `segments` closed segments
    /// instead.
    pub fn is_far_ahead(&self, launch: Option<Launch>, at_most_ns: u64, segments: u32) -> bool {
        let is_unknown = |launch: Launch| {
            launch.kind == Kind::VaryingGraph && self.gpu.estimates.measured(launch.key) < VARYING_SEEN
        };
        if self.mean_ns() == 0 || launch.is_some_and(is_unknown) {
            return self.waiting() > segments;
        }
        let open_ns = if self.is_open() { self.unaccounted_ns() } else { 0 };
        let unqueued_ns = open_ns.saturating_sub(self.open_queued_ns.load(Ordering::Relaxed));
        self.waiting() != 0
            && self.gpu.queued_ns().saturating_add(self.gpu.share_ns(unqueued_ns)) > at_most_ns
    }

    /// Segments that the meter thread has processed (modulo 2³²).
    pub fn completed(&self) -> u32 {
        self.tail.load(Ordering::Acquire)
    }

    /// Notes that the stream waits for something that the host may do only after more launches.
    /// Until a segment that ends after this call completes, launches on the stream do not wait for
    /// queued work, and segments grow. Segments grow because a driver queues about a thousand
    /// entries, and markers are among them.
    pub fn await_host(&self) {
        self.awaits_host.store(true, Ordering::Relaxed);
        self.stuck_at.store(u64::from(self.head.load(Ordering::Acquire)), Ordering::Relaxed);
    }

    /// Notes that no segment of the lane has completed for a long time.
    pub fn give_up(&self) {
        // From now on nobody queries the segment's event, because the driver may hang in such a
        // call.
        self.awaits_host.store(false, Ordering::Relaxed);
        self.stuck_at.store(u64::from(self.completed()), Ordering::Relaxed);
    }

    /// Whether queued work may wait for something that the owner thread does next.
    pub fn is_stuck(&self) -> bool {
        let stuck_at = self.stuck_at.load(Ordering::Relaxed);
        let Ok(segment) = u32::try_from(stuck_at) else { return false };
        // A negative difference means that the segment has completed.
        let is_stuck = segment.wrapping_sub(self.completed()) as i32 >= 0;
        if !is_stuck {
            // The mark is removed, because segment numbers wrap around.
            let _ = self.stuck_at.compare_exchange(stuck_at, GETS_ON, Ordering::Relaxed, Ordering::Relaxed);
        }
        is_stuck
    }

    fn waiting(&self) -> u32 {
        self.head.load(Ordering::Acquire).wrapping_sub(self.tail.load(Ordering::Acquire))
    }

    fn place(&self, number: u32) -> Option<&Segment> {
        self.ring.get((number % RING) as usize)
    }

    /// Called by the owner thread before a launch: opens a segment if none is open, or counts in
    /// the open one. Returns `None` if the launch goes unmetered. One reason is that the driver
    /// gave or recorded no event. Another is that the open segment of kernels took in a copy.
    ///
    /// While the GPU is contended, `contended` is the launch's estimate, which the GPU's queue
    /// already includes.
    pub fn begin(&self, calls: &Calls, launch: Launch, contended: Option<u64>) -> Option<Begun> {
        let known_ns = self.gpu.estimates.get(launch.key);
        // On a per-thread stream, only the owner thread can record the end of a segment.
        let alone = match launch.kind {
            Kind::Kernel => contended.is_some() && self.stream() == Some(Stream::PER_THREAD),
            Kind::Graph => contended.is_some() || known_ns.is_none_or(|known_ns| known_ns > SHORT_GRAPH_NS),
            Kind::VaryingGraph | Kind::Copy | Kind::SyncCopy => true,
        };
        if self.is_open() {
            let holds_copy = self.open_is_copy.load(Ordering::Relaxed);
            if launch.kind.is_copy() && !holds_copy && self.takes_in(calls, known_ns, contended.is_some()) {
                return None;
            }
            let is_other = holds_copy != launch.kind.is_copy();
            let is_unknown = known_ns.is_none() && self.unaccounted().all() >= UNKNOWN_APART;
            if is_other || ((alone || is_unknown) && self.has_room(calls)) {
                self.close(calls);
            }
            if is_other && self.is_open() {
                // The segment could not be closed, mostly because the ring is full.
                if launch.kind.is_copy() {
                    self.take_in(known_ns.unwrap_or(0));
                    return None;
                }
                self.make_compute();
            }
        }
        let opens = !self.claim();
        if opens {
            self.open(calls, launch, contended.is_some(), alone || known_ns.is_none())?;
        } else {
            self.open_key.store(0, Ordering::Relaxed);
        }
        let expected_ns = match known_ns {
            Some(known_ns) => known_ns,
            None if opens => 0,
            None => self.mean_ns(),
        };
        let launched = self.tally.launched().wrapping_add(launch.kind.one());
        self.tally.put(launched, expected_ns);
        if let Some(estimate_ns) = contended {
            let queued_ns = self.open_queued_ns.load(Ordering::Relaxed);
            self.open_queued_ns.store(queued_ns.saturating_add(estimate_ns), Ordering::Relaxed);
        }
        Some(Begun { opens, ends: alone || self.tally.is_full_at(launched) })
    }

    /// Whether segments may end where that is useful. Otherwise segments grow.
    fn has_room(&self, calls: &Calls) -> bool {
        let lanes = self.context.lanes().max(1);
        self.waiting() < (WAITING_OF_ALL / lanes).clamp(WAITING_OF_EACH, RING_BUSY)
            && (!self.is_stuck() || (self.unaccounted().all() >= LAUNCHES_STUCK && !self.is_held(calls)))
    }

    /// Whether the stream waits for the host, judged by the open segment. The driver's queue may
    /// then have no room for another event. A thread that records one would wait for the host's
    /// next action.
    fn is_held(&self, calls: &Calls) -> bool {
        let has_begun = |segment: &Segment| {
            // Without the relaxed capture mode, the query would end another thread's capture.
            let relaxed = calls.relaxed();
            relaxed.is_some() && calls.query(segment.start()) != Progress::Pending
        };
        self.is_stuck()
            && self.awaits_host.load(Ordering::Relaxed)
            && !self.open_is_end_only.load(Ordering::Relaxed)
            && self.is_open()
            && self.place(self.head.load(Ordering::Relaxed)).is_some_and(|segment| !has_begun(segment))
    }

    /// Decides whether a copy joins the open segment of kernels without a marker, and takes it in
    /// if so. A copy with an estimate need not be timed. While the GPU is not contended, the time
    /// of the copy need not be exact either.
    fn takes_in(&self, calls: &Calls, known_ns: Option<u64>, contended: bool) -> bool {
        let copies = self.copies.load(Ordering::Relaxed).wrapping_add(1);
        self.copies.store(copies, Ordering::Relaxed);
        let is_timed = contended || copies.is_multiple_of(COPY_SAMPLE_EVERY);
        match known_ns {
            Some(known_ns) if !is_timed || !self.has_room(calls) => {
                self.take_in(known_ns);
                true
            }
            _ => false,
        }
    }

    fn take_in(&self, copy_ns: u64) {
        self.open_may_wait.store(true, Ordering::Relaxed);
        self.open_copied_ns.fetch_add(copy_ns, Ordering::Relaxed);
    }

    /// Turns the open segment of a copy, which could not be closed, into a segment of kernels that
    /// took in a copy.
    fn make_compute(&self) {
        self.take_in(self.tally.account(self.tally.launched()).ns);
        self.open_is_copy.store(false, Ordering::Relaxed);
        // A segment of copies does not set `in_flight`, so it is set here.
        self.gpu.set_in_flight();
    }

    fn open(&self, calls: &Calls, launch: Launch, contended: bool, alone: bool) -> Option<()> {
        let stream = self.stream()?;
        self.settle();
        let segment = self.place(self.head.load(Ordering::Relaxed))?;
        self.equip(calls, segment)?;
        let mut asked_ns = os::now_ns();
        let is_fine = !contended && self.gpu.is_fine();
        // In a spell every launch is measured, to see which streams overlap. Each further driver
        // call would then move launches apart, so most segments get no start event.
        let opened = self.opened.load(Ordering::Relaxed).wrapping_add(1);
        let is_sparse_kernel = self.is_sparse() && launch.kind == Kind::Kernel;
        let _marking = capture::marking()?;
        if capture::is_active() && calls.may_be_capturing(stream) {
            return None;
        }
        let is_end_only = is_fine && !alone && is_sparse_kernel && !opened.is_multiple_of(SAMPLE_EVERY);
        if !is_end_only && !calls.record(segment.start(), stream) {
            return None;
        }
        self.opened.store(opened, Ordering::Relaxed);
        let wanted = if contended { self.grow_by_backlog() } else { self.grow_by_pace(asked_ns) };
        let is_sample = match contended {
            true => opened.is_multiple_of(SAMPLE_EVERY),
            false => self.is_sparse() && opened.is_multiple_of(SPARSE_SAMPLE_EVERY),
        };
        let single = alone || is_sample || is_fine;
        let target = if single { 1 } else { self.vary(wanted) };
        let launched = self.tally.launched() as u32;
        self.opened_at.store(launched, Ordering::Relaxed);
        self.tally.set_target(launched.wrapping_add(target));
        if target == 1 && !is_end_only && self.is_sparse() && launch.kind == Kind::Kernel {
            // The driver's first call after a pause takes longer than the launch that follows it.
            // The start event is therefore recorded a second time: this call takes as long as the
            // launch's own call.
            asked_ns = os::now_ns();
            calls.record(segment.start(), stream);
        }
        let began_ns = os::now_ns();
        self.open_queued_ns.store(0, Ordering::Relaxed);
        self.open_key.store(launch.key, Ordering::Relaxed);
        self.open_asked_ns.store(asked_ns, Ordering::Relaxed);
        self.open_began_ns.store(began_ns, Ordering::Relaxed);
        self.open_first_ns.store(began_ns, Ordering::Relaxed);
        self.open_is_copy.store(launch.kind.is_copy(), Ordering::Relaxed);
        self.open_is_end_only.store(is_end_only, Ordering::Relaxed);
        self.open_may_wait.store(launch.kind == Kind::SyncCopy, Ordering::Relaxed);
        let has_to_wait = self.has_to_wait.swap(false, Ordering::Relaxed);
        self.open_is_quiet.store(self.waiting() == 0 && !has_to_wait, Ordering::Relaxed);
        self.open_copied_ns.store(0, Ordering::Relaxed);
        // The meter thread sees the segment from here on. `in_flight` may be set only after this.
        self.tally.open();
        Some(())
    }

    /// Gives the next segment its two events. The events come from the oldest processed segment, so
    /// that a lane never has more events than were in flight at once.
    fn equip(&self, calls: &Calls, segment: &Segment) -> Option<()> {
        let taken = self.taken.load(Ordering::Relaxed);
        let is_own = self.head.load(Ordering::Relaxed).wrapping_sub(taken) == RING;
        if segment.end() != Event::NONE && !is_own {
            // The place has events already, because an earlier attempt to open it failed.
            return Some(());
        }
        if taken != self.completed() {
            if !is_own {
                let (start, end) = self.place(taken)?.take_events();
                segment.set_events(start, end);
            }
            self.taken.store(taken.wrapping_add(1), Ordering::Relaxed);
        } else {
            let (start, end) = self.context.create_events(calls)?;
            segment.set_events(start, end);
        }
        Some(())
    }

    /// The most launches that a segment should have, by their mean time.
    fn longest(&self) -> u32 {
        match self.mean_ns() {
            0 => LAUNCHES_UNMEASURED_MAX,
            mean_ns => (SEGMENT_NS / mean_ns).clamp(1, u64::from(LAUNCHES_MAX)) as u32,
        }
    }

    /// Length of the next segment while the GPU is contended. The length doubles as long as the
    /// stream has work left, and is one launch as soon as the stream had none.
    fn grow_by_backlog(&self) -> u32 {
        let wanted = match self.waiting() {
            0 => 1,
            _ => self.wanted.load(Ordering::Relaxed).saturating_mul(2).min(self.longest()),
        };
        self.wanted.store(wanted, Ordering::Relaxed);
        wanted
    }

    /// Length of the next segment while the GPU is not contended: as many launches as take about
    /// [`SEGMENT_NS`], on the GPU or on the host.
    fn grow_by_pace(&self, now_ns: u64) -> u32 {
        let launched = self.tally.launched() as u32;
        let launches = u64::from(launched.wrapping_sub(self.opened_at.load(Ordering::Relaxed)).max(1));
        let apart_ns = now_ns.saturating_sub(self.open_asked_ns.load(Ordering::Relaxed)) / launches;
        let at_this_pace = (SEGMENT_NS / apart_ns.max(1)).clamp(1, u64::from(LAUNCHES_MAX)) as u32;
        let doubled = self.wanted.load(Ordering::Relaxed).saturating_mul(2);
        let wanted = doubled.min(self.longest()).min(at_this_pace.max(1));
        self.wanted.store(wanted, Ordering::Relaxed);
        wanted
    }

    /// A length near `wanted` that varies from segment to segment. With a fixed length, the samples
    /// would always meet the same kernel of a loop.
    fn vary(&self, wanted: u32) -> u32 {
        /// 2³² divided by the golden ratio: its multiples are spread evenly.
        const SPREAD: u32 = 0x9e37_79b9;
        let spread = u64::from(self.opened.load(Ordering::Relaxed).wrapping_mul(SPREAD));
        // The result lies between three quarters and five quarters of `wanted`.
        let varied = u64::from(wanted) * 3 / 4 + ((u64::from(wanted) * spread) >> u32::BITS) / 2;
        varied.clamp(1, u64::from(LAUNCHES_MAX)) as u32
    }

    /// Reserves the open segment for a launch, so that no other thread closes it meanwhile. Returns
    /// false if no segment is open.
    fn claim(&self) -> bool {
        let mut looks = 0_u32;
        loop {
            match self.tally.claim() {
                Attempt::Done => return true,
                Attempt::Idle => return false,
                // The meter thread is closing the segment, which it does only after a pause in the
                // launches.
                Attempt::Busy if looks < CLAIM_SPINS => {
                    looks += 1;
                    hint::spin_loop();
                }
                Attempt::Busy => thread::yield_now(),
            }
        }
    }

    /// Called after every launch for which [`Self::begin`] was called. `opened`: the launch opened
    /// the segment.
    pub fn launched(&self, opened: bool) {
        if opened {
            self.open_first_ns.store(os::now_ns(), Ordering::Relaxed);
        }
        self.tally.release();
    }

    /// Takes back the launch that was counted last, because the driver refused it. If its segment
    /// was closed meanwhile, the next segment is charged that much less.
    pub fn uncount(&self, kind: Kind) {
        self.tally.take_back(kind.one());
    }

    /// Notes that the stream is about to wait for something else, such as a host function or
    /// another stream. While the GPU is contended (`contended`), the segment ends here. Otherwise
    /// its launches are charged by their estimates.
    pub fn interrupt(&self, calls: &Calls, contended: bool) {
        if self.is_open() {
            if contended && self.has_room(calls) {
                self.close(calls);
            } else {
                self.note_wait();
            }
        }
        // The next launch seems to find an idle stream, and yet it does not begin at once.
        self.has_to_wait.store(true, Ordering::Relaxed);
    }

    /// Notes that the stream may wait for something else between the launches of the open segment.
    /// The segment is then charged by the estimates of its launches.
    pub fn note_wait(&self) {
        self.open_may_wait.store(true, Ordering::Relaxed);
    }

    /// Called after the launch that ends a segment.
    pub fn end(&self, calls: &Calls) {
        // Two kinds of segment are closed even without room. The meter thread cannot close a
        // segment of a per-thread stream, and a segment of copies must not take in kernels.
        let is_copy = self.open_is_copy.load(Ordering::Relaxed);
        if is_copy || self.has_room(calls) || self.stream() == Some(Stream::PER_THREAD) {
            self.close(calls);
        } else {
            let opened_at = self.opened_at.load(Ordering::Relaxed);
            let length = self.tally.target().wrapping_sub(opened_at);
            // The length is less than one if the meter thread asked for an early end of this
            // segment or of the one before.
            let length = (length as i32).clamp(1, LONGEST as i32) as u32;
            self.tally.set_target(opened_at.wrapping_add(2 * length));
        }
    }

    /// Closes the open segment, if there is one. The ring must have room for one more segment after
    /// it, and the driver for an end event.
    pub fn close(&self, calls: &Calls) {
        self.close_if(calls, |_| true, End::Record);
    }

    /// Closes a segment that has had `launches` launches, and no new one for `quiet_ns`. Called by
    /// the meter thread.
    ///
    /// On the legacy stream, an end event would order the blocking streams among each other. The
    /// program did not choose that moment, so no end is recorded there. The segment is complete
    /// once the stream has no work left.
    ///
    /// A per-thread default stream has the same handle in each thread, but names another stream
    /// there. So the meter thread can neither record on it nor query it. Such a segment counts as
    /// complete once all segments before it are, and its usual time has passed.
    pub fn close_stale(&self, calls: &Calls, launches: u32, quiet_ns: u64) {
        let end = match self.stream() {
            Some(Stream::LEGACY) => {
                // The query would end a capture on a blocking stream.
                let marking = capture::marking();
                let may_ask = marking.is_some() && !capture::is_active();
                let is_through = may_ask && calls.query_stream(Stream::LEGACY) != Progress::Pending;
                drop(marking);
                if !is_through {
                    return;
                }
                End::Unrecorded
            }
            Some(Stream::PER_THREAD) => {
                let usual_ns = self.mean_ns().saturating_mul(u64::from(launches));
                let usual_ns = usual_ns.max(self.unaccounted_ns());
                if self.waiting() != 0 || quiet_ns <= usual_ns {
                    return;
                }
                End::Unrecorded
            }
            _ => End::Record,
        };
        self.close_if(calls, |launched| launched == launches, end);
    }

    /// Makes the open segment closable if its owner thread was ended inside the driver. The meter
    /// thread calls this now and then while a launch is under way.
    pub fn release_dead(&self) {
        if self.tally.is_launching() && !os::is_thread_alive(self.owner()) {
            self.tally.release();
        }
    }

    /// Drops the open segment and charges its launches by their estimates. Waits for a thread that
    /// is recording on the stream. The caller holds the context's lock. Called when the stream is
    /// about to be destroyed, or when the driver can answer nothing about its context.
    pub fn discard(&self) {
        loop {
            match self.tally.seize() {
                Attempt::Done => break,
                Attempt::Idle => return,
                Attempt::Busy => thread::yield_now(),
            }
        }
        self.gpu.unqueue(self.open_queued_ns.swap(0, Ordering::Relaxed));
        let (launches, expected_ns) = self.account(self.tally.launched_at_end());
        let expected_ns = match expected_ns {
            0 => self.mean_ns().saturating_mul(u64::from(launches.all())),
            expected_ns => expected_ns,
        };
        if !self.open_is_copy.load(Ordering::Relaxed) {
            self.gpu.add_late(expected_ns);
        }
        self.tally.closed();
    }

    /// Accounts for the launches of a segment that ends at `launched` launches in total. Returns
    /// the launches that no earlier segment had, and their estimated time, ns.
    fn account(&self, launched: u64) -> (Launches, u64) {
        /// Events recorded for each segment.
        const MARKERS: u64 = 2;
        let Taken { launched, ns } = self.tally.account(launched);
        if !self.open_is_copy.load(Ordering::Relaxed) {
            self.gpu.count(Launches(launched), MARKERS);
        }
        (Launches(launched), ns)
    }

    fn close_if(&self, calls: &Calls, still: impl Fn(u32) -> bool, end: End) {
        // The last free place is never given away, because the owner thread needs one to open the
        // next segment.
        let is_closable = self.tally.is_closable() && self.waiting() < RING - 1;
        if !is_closable || (end == End::Record && self.is_held(calls)) {
            return;
        }
        let marking = if end == End::Record { capture::marking() } else { None };
        if (end == End::Record && marking.is_none()) || !self.tally.begin_closing() {
            return;
        }
        let number = self.head.load(Ordering::Relaxed);
        let launched = self.tally.launched_at_end();
        let still = still(Launches(self.tally.unaccounted_of(launched).launched).all());
        let (Some(stream), Some(segment), true) = (self.stream(), self.place(number), still) else {
            // The owner thread counted another launch meanwhile, or the stream is gone.
            self.tally.reopen();
            return;
        };
        let closed_ns = os::now_ns();
        // A stream that joined a capture meanwhile must get no marker.
        let record = || {
            let is_captured = capture::is_active() && calls.may_be_capturing(stream);
            (!is_captured && calls.record(segment.end(), stream)).then_some(())
        };
        // The handle of a default stream names the default stream of the current context.
        let is_recorded = match end {
            End::Unrecorded => false,
            End::Record if stream.is_default() => calls.in_context(self.context.handle(), record).is_some(),
            End::Record => record().is_some(),
        };
        let (launches, mut expected_ns) = self.account(launched);
        let launches = launches.all();
        if !is_recorded && expected_ns == 0 {
            expected_ns = self.mean_ns().saturating_mul(u64::from(launches));
        }
        let is_copy = self.open_is_copy.load(Ordering::Relaxed);
        let already_ns = self.open_queued_ns.swap(0, Ordering::Relaxed);
        let queued_ns = match (is_copy, expected_ns) {
            (true, _) => 0,
            (false, 0) => already_ns.max(self.mean_ns()),
            (false, expected_ns) => already_ns.max(expected_ns),
        };
        self.gpu.queue(queued_ns - already_ns);
        segment.fill(&Contents {
            launches,
            key: if launches == 1 { self.open_key.load(Ordering::Relaxed) } else { 0 },
            queued_ns,
            expected_ns,
            copied_ns: self.open_copied_ns.load(Ordering::Relaxed),
            asked_ns: self.open_asked_ns.load(Ordering::Relaxed),
            began_ns: self.open_began_ns.load(Ordering::Relaxed),
            first_ns: self.open_first_ns.load(Ordering::Relaxed),
            closed_ns,
            ended_ns: os::now_ns(),
            may_wait: self.open_may_wait.load(Ordering::Relaxed),
            is_quiet: self.open_is_quiet.load(Ordering::Relaxed),
            is_copy,
            is_end_only: self.open_is_end_only.load(Ordering::Relaxed),
            is_lost: !is_recorded,
        });
        if !is_copy {
            self.computing.fetch_add(1, Ordering::SeqCst);
        }
        self.head.store(number.wrapping_add(1), Ordering::SeqCst);
        self.tally.closed();
    }

    /// Waits while another thread records an end event, which takes one call of the driver.
    pub fn await_closed(&self) {
        while self.tally.is_closing() {
            thread::yield_now();
        }
    }

    /// Returns the oldest closed segment. Called by the meter thread.
    pub fn oldest(&self) -> Option<&Segment> {
        if self.waiting() == 0 { None } else { self.place(self.tail.load(Ordering::Relaxed)) }
    }

    /// Returns how many of the oldest closed segments are over, and the end event of the newest
    /// complete one. Called by the meter thread.
    pub fn over(&self, calls: &Calls) -> (u32, Option<Event>) {
        let (tail, waiting) = (self.tail.load(Ordering::Relaxed), self.waiting());
        let mut newest = None;
        for number in 0..waiting {
            let Some(segment) = self.place(tail.wrapping_add(number)) else { return (number, newest) };
            match if segment.contents().is_lost { Progress::Lost } else { calls.query(segment.end()) } {
                Progress::Pending => return (number, newest),
                Progress::Done => newest = Some(segment.end()),
                Progress::Lost => {}
            }
        }
        (waiting, newest)
    }

    /// Removes the oldest segment, which the meter thread has processed.
    pub fn pop(&self) {
        if self.oldest().is_some_and(|segment| !segment.contents().is_copy) {
            self.computing.fetch_sub(1, Ordering::SeqCst);
        }
        let tail = self.tail.load(Ordering::Relaxed);
        self.tail.store(tail.wrapping_add(1), Ordering::Release);
    }

    /// Time that a segment with an expected time of `expected_ns` must be charged in addition, at
    /// most `expected_ns` in either direction. Called by the meter thread.
    pub fn carried_ns(&self, expected_ns: i64) -> i64 {
        self.carried_ns.load(Ordering::Relaxed).clamp(-expected_ns, expected_ns)
    }

    /// Notes that a segment with an expected time of `expected_ns` was charged `took_ns`, because
    /// of its bounds. Called by the meter thread.
    pub fn carry(&self, expected_ns: i64, took_ns: i64) {
        if expected_ns > 0 {
            let carried_ns = self.carried_ns(expected_ns).saturating_add(expected_ns - took_ns);
            self.carried_ns.store(carried_ns.clamp(-expected_ns, expected_ns), Ordering::Relaxed);
        }
    }

    /// Takes a measurement into the mean time of a launch.
    pub fn learn(&self, per_launch_ns: u64, is_sparse: bool) {
        let mean_ns = self.mean_ns();
        let next = if mean_ns == 0 { per_launch_ns } else { mean_ns - mean_ns / 4 + per_launch_ns / 4 };
        self.mean_ns.store(next.max(1), Ordering::Relaxed);
        self.is_sparse.store(is_sparse, Ordering::Relaxed);
    }
}

/// How a segment's end becomes known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// An event is recorded at the end.
    Record,
    /// No event is needed, because the segment is known to be complete.
    Unrecorded,
}

#[cfg(test)]
mod tests;
