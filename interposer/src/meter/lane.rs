//! A lane: what one thread launches on one stream, cut into segments that are timed by a pair of events each.
//!
//! The launching thread alone opens a segment and counts in it, so the launch path needs no atomic read-modify-write. Either it or the
//! meter thread closes the segment; whose turn it is, and that each launch is accounted for once, is [`Tally`]'s. Closed segments go through a ring to the
//! meter thread.
//!
//! While the gate is open segments last about [`SEGMENT_NS`] and each launch adds what its like is known to take, so that gaps between launches need
//! not be timed ([`super::measure`]); a launch that is not known yet, a long graph, and now and then any launch has a segment of its own. While someone
//! else wants the GPU, launches that come one by one into an idle stream get a segment each, and so does every graph.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::{hint, thread};

use deepres_abi::tally::{Attempt, Taken, Tally};

use super::context::ContextState;
use super::gpu::Gpu;
use super::segment::{Contents, Kind, Launch, Launches, Segment};
use crate::driver::calls::{Calls, Event, Progress, Stream};
use crate::{capture, os};

/// Looks at a segment that another thread ends before the kernel is called to let that one run: 28 ns each where measured, and so together as long as a
/// driver takes to record an end, at the most.
const CLAIM_SPINS: u32 = 64;
/// Segments that may wait for the meter thread, for each lane. Two events each; a driver queues about a thousand launches.
const RING: u32 = 128;
/// From this many on, a segment grows instead of ending …
const RING_BUSY: u32 = RING - RING / 4;
/// … or from as many as all lanes of a context may have together, but for these, which each has. Neither the driver's events nor the meter thread's time
/// are to go to threads and streams without number.
const WAITING_OF_ALL: u32 = 4096;
const WAITING_OF_EACH: u32 = 4;
/// While the stream may wait for the host a segment has so many launches before it may end.
const LAUNCHES_STUCK: u32 = 256;
/// How long a segment should last, ns, of GPU time and of the host's: two records of a µs each are then under 1 % of it, and a tenant's account
/// is less than a quantum behind.
const SEGMENT_NS: u64 = 500_000;
/// Launches in a segment at most. Caps the account's delay where kernels are too short to measure.
const LAUNCHES_MAX: u32 = 1024;
/// A segment for which there is no room grows without end, but what is counted modulo 2³² has to be told apart.
const LONGEST: u32 = 1 << 29;
/// As long as nothing was measured, segments grow up to this many launches.
const LAUNCHES_UNMEASURED_MAX: u32 = 16;
/// Every how many segments one holds a single launch, while someone else wants the GPU: to learn kernels one by one.
const SAMPLE_EVERY: u32 = 8;
/// The same while nobody does, where gaps make the difference.
const SPARSE_SAMPLE_EVERY: u32 = 4;
/// A kernel that is not known cuts a segment of so many launches, not a shorter one: where all are unknown, one in so many is timed.
const UNKNOWN_APART: u32 = 8;
/// A copy between kernels that is known is timed every so many times.
const COPY_SAMPLE_EVERY: u32 = 8;
/// So many launches of a graph that may take another time each are seen before it is known what they take: the first may be the shortest by far.
const VARYING_SEEN: u8 = 8;
/// Graphs up to so long, ns, are counted like kernels while nobody else wants the GPU, unless they have conditional nodes. One that fills more than a
/// quarter of a segment is timed every time, which costs next to nothing against what it takes.
const SHORT_GRAPH_NS: u64 = SEGMENT_NS / 4;
/// A segment that there is none of.
const GETS_ON: u64 = u64::MAX;
/// An end that no segment has.
const NO_END: i64 = i64::MIN;

/// See the module.
#[derive(Debug)]
#[repr(align(128))]
pub struct Lane {
    /// Launches, counted by [`Kind::one`].
    tally: Tally,
    /// Launches when the last segment was opened (modulo 2³²); the owner's alone.
    opened_at: AtomicU32,
    /// GPU that the launches run on.
    pub gpu: &'static Gpu,
    /// The context of the stream.
    pub context: &'static ContextState,
    stream: AtomicUsize,
    owner: AtomicU32,

    /// Segment length that the stream's pace suggests; the owner's alone.
    wanted: AtomicU32,
    /// Segments opened; the owner's alone.
    opened: AtomicU32,
    /// Segments whose events later ones have (modulo 2³²); the owner's alone. Those from here to the open one have two each.
    taken: AtomicU32,
    /// Whether the stream's last segment had gaps, or may have had; the meter thread's to say.
    is_sparse: AtomicBool,
    /// What segments whose time lies between bounds were charged less than expected, for the bounds' sake, ns: the next ones make up for it. Otherwise where kernels take now
    /// less and now more than their mean, only the less would count.
    carried_ns: AtomicI64,
    /// The open segment's, as in [`Contents`]. What of its estimate is in the GPU's queue already:
    open_queued_ns: AtomicU64,
    open_key: AtomicU64,
    open_asked_ns: AtomicU64,
    open_began_ns: AtomicU64,
    open_first_ns: AtomicU64,
    open_is_copy: AtomicBool,
    open_is_end_only: AtomicBool,
    open_may_wait: AtomicBool,
    open_is_quiet: AtomicBool,
    /// The stream was made to wait for something else since the last segment was opened.
    has_to_wait: AtomicBool,
    /// What copies in it are known to take, ns.
    open_copied_ns: AtomicU64,
    /// Copies, ever; the owner's alone.
    copies: AtomicU32,

    /// Closed segments of kernels and graphs that the meter thread is not through with.
    computing: AtomicU32,
    /// Segments closed, ever (modulo 2³²).
    head: AtomicU32,
    /// Segments that the meter thread is through with.
    tail: AtomicU32,
    /// The segment that has to complete before the stream is known to get on, or [`GETS_ON`].
    stuck_at: AtomicU64,
    /// Whether it was the job that made the stream wait, as far as is known for the host.
    awaits_host: AtomicBool,
    /// Mean GPU time of a launch, ns; 0: not measured yet.
    mean_ns: AtomicU64,
    /// Where the last segment ended that the meter thread is through with, or [`NO_END`].
    previous_end_ns: AtomicI64,
    /// What the meter thread saw at its last look: launches in the open segment, and since when they are as many.
    pub seen_launched: AtomicU32,
    /// See `seen_launched` (ns of `CLOCK_MONOTONIC`).
    pub seen_since_ns: AtomicU64,
    ring: Box<[Segment]>,
}

/// A launch that a lane has taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begun {
    /// It opened a segment.
    pub opens: bool,
    /// The segment ends after it.
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

    /// The thread that launches.
    pub fn owner(&self) -> u32 {
        self.owner.load(Ordering::Relaxed)
    }

    /// Gives a lane that nobody uses, or whose thread is gone, to another. Under the context's lock.
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

    /// Leaves the lane unused, once its stream is gone. Under the context's lock.
    pub fn retire(&self) {
        self.discard();
        if self.stream.swap(0, Ordering::AcqRel) != 0 {
            self.context.count_lane(-1);
        }
    }

    /// Its events died with their context.
    pub fn forget_events(&self) {
        self.ring.iter().for_each(|segment| segment.set_events(Event::NONE, Event::NONE));
        self.taken.store(self.head.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Counts one more launch in the open segment, if that neither begins nor ends one and its like is known. The whole of the launch path
    /// while the gate is open; the owner's alone.
    #[inline(always)]
    pub fn count(&self, launch: Launch) -> bool {
        let Some((launched, ns)) = self.fits(launch) else { return false };
        self.tally.put(launched, ns);
        true
    }

    /// Whether a launch may be counted; if so, how many there are with it, and what it is known to take.
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

    /// What they are known to take, ns.
    fn unaccounted_ns(&self) -> u64 {
        self.tally.unaccounted().ns
    }

    /// While no segment is open: counts launches that came into the last one too late. The owner's and the meter thread's.
    pub fn settle(&self) {
        if let Some(late) = self.tally.settle().filter(|late| late.launched as i64 > 0) {
            self.gpu.add_late(late.ns);
            self.gpu.count(Launches(late.launched), 0);
        }
    }

    /// The open segment is to end with its next launch. The meter thread's.
    pub fn end_soon(&self) {
        self.tally.end_soon();
    }

    /// Whether a segment is open.
    pub fn is_open(&self) -> bool {
        self.tally.is_open()
    }

    /// Whether anything of this lane is unfinished, as far as the meter thread knows.
    pub fn is_busy(&self) -> bool {
        self.is_open() || self.waiting() != 0
    }

    /// Whether any kernel or graph of it is.
    pub fn is_computing(&self) -> bool {
        self.computing.load(Ordering::SeqCst) != 0
            || (self.is_open() && !self.open_is_copy.load(Ordering::Relaxed))
    }

    /// Launches in the open segment, or `None`.
    pub fn open_launches(&self) -> Option<u32> {
        self.tally.is_closable().then(|| self.unaccounted().all())
    }

    /// Mean GPU time of a launch, ns; 0: not measured yet.
    pub fn mean_ns(&self) -> u64 {
        self.mean_ns.load(Ordering::Relaxed)
    }

    /// Whether its stream had gaps of late, or may have had.
    pub fn is_sparse(&self) -> bool {
        self.is_sparse.load(Ordering::Relaxed)
    }

    /// Where the last segment ended that the meter thread is through with.
    pub fn previous_end_ns(&self) -> Option<i64> {
        Some(self.previous_end_ns.load(Ordering::Relaxed)).filter(|end_ns| *end_ns != NO_END)
    }

    /// The meter thread's: see [`Self::previous_end_ns`].
    pub fn set_previous_end(&self, end_ns: Option<i64>) {
        self.previous_end_ns.store(end_ns.unwrap_or(NO_END), Ordering::Relaxed);
    }

    /// Whether more is queued than `at_most_ns`; as long as nothing was measured, or `launch` may be of any length for all that was, whether more than
    /// `segments` are.
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

    /// Segments that the meter thread is through with (modulo 2³²).
    pub fn completed(&self) -> u32 {
        self.tail.load(Ordering::Acquire)
    }

    /// The stream waits for something that the host may do only once more has been launched. Until something after that completes its launches wait for nothing
    /// that is queued, and segments grow: a driver queues about a thousand launches, our events among them.
    pub fn await_host(&self) {
        self.awaits_host.store(true, Ordering::Relaxed);
        self.stuck_at.store(u64::from(self.head.load(Ordering::Acquire)), Ordering::Relaxed);
    }

    /// Nothing of it has completed for long.
    pub fn give_up(&self) {
        // The driver may hang: nobody else is to ask it.
        self.awaits_host.store(false, Ordering::Relaxed);
        self.stuck_at.store(u64::from(self.completed()), Ordering::Relaxed);
    }

    /// Whether what is queued may wait for what the owner does next.
    pub fn is_stuck(&self) -> bool {
        let stuck_at = self.stuck_at.load(Ordering::Relaxed);
        let Ok(segment) = u32::try_from(stuck_at) else { return false };
        // Negative: the segment has completed.
        let is_stuck = segment.wrapping_sub(self.completed()) as i32 >= 0;
        if !is_stuck {
            // Numbers come round.
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

    /// Before a launch by the owner: opens a segment if none is open, or counts in it. `None`: it goes unmetered, since no event could be had or
    /// recorded.
    ///
    /// `contended`: someone else wants the GPU; then `estimate_ns` of this launch is in the GPU's queue already.
    pub fn begin(&self, calls: &Calls, launch: Launch, contended: Option<u64>) -> Option<Begun> {
        let known_ns = self.gpu.estimates.get(launch.key);
        // The end of a segment on a per-thread stream is its thread's to record.
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
                // The ring is full.
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

    /// Whether segments are to end where that is of use. Else they grow.
    fn has_room(&self, calls: &Calls) -> bool {
        let lanes = self.context.lanes().max(1);
        self.waiting() < (WAITING_OF_ALL / lanes).clamp(WAITING_OF_EACH, RING_BUSY)
            && (!self.is_stuck() || (self.unaccounted().all() >= LAUNCHES_STUCK && !self.is_held(calls)))
    }

    /// Whether the stream waits for the host, as far as the open segment tells: then an event may find no place behind what is queued, and whoever records
    /// it waits for what the host does next.
    fn is_held(&self, calls: &Calls) -> bool {
        let has_begun = |segment: &Segment| {
            // Else the question would end another thread's capture.
            let relaxed = calls.relaxed();
            relaxed.is_some() && calls.query(segment.start()) != Progress::Pending
        };
        self.is_stuck()
            && self.awaits_host.load(Ordering::Relaxed)
            && !self.open_is_end_only.load(Ordering::Relaxed)
            && self.is_open()
            && self.place(self.head.load(Ordering::Relaxed)).is_some_and(|segment| !has_begun(segment))
    }

    /// Whether a copy went into the open segment of kernels without a mark: one whose like is known need not be timed, and need not be
    /// exact while nobody else wants the GPU.
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

    /// Makes the open segment, of a copy that could not be closed, one of kernels that has taken in a copy.
    fn make_compute(&self) {
        self.take_in(self.tally.account(self.tally.launched()).ns);
        self.open_is_copy.store(false, Ordering::Relaxed);
        // Copies do not say that they are in flight.
        self.gpu.set_in_flight();
    }

    fn open(&self, calls: &Calls, launch: Launch, contended: bool, alone: bool) -> Option<()> {
        let stream = self.stream()?;
        self.settle();
        let segment = self.place(self.head.load(Ordering::Relaxed))?;
        self.equip(calls, segment)?;
        let mut asked_ns = os::now_ns();
        let is_fine = !contended && self.gpu.is_fine();
        // Where all is measured for a while to see what runs beside what, each call of ours would move launches off each other.
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
            // The driver's first call after a pause takes longer than the launch that follows: what lies between this one and the launch is the
            // same for both.
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
        // From here the meter thread sees it; only then may it find `in_flight` set.
        self.tally.open();
        Some(())
    }

    /// Gives the segment that is about to be opened its events: those of the oldest one that is through, so that there are no more of them than were
    /// ever in flight at once.
    fn equip(&self, calls: &Calls, segment: &Segment) -> Option<()> {
        let taken = self.taken.load(Ordering::Relaxed);
        let is_own = self.head.load(Ordering::Relaxed).wrapping_sub(taken) == RING;
        if segment.end() != Event::NONE && !is_own {
            // It could not be opened when it got them.
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

    /// The most launches that a segment is to have, by what they take.
    fn longest(&self) -> u32 {
        match self.mean_ns() {
            0 => LAUNCHES_UNMEASURED_MAX,
            mean_ns => (SEGMENT_NS / mean_ns).clamp(1, u64::from(LAUNCHES_MAX)) as u32,
        }
    }

    /// The length of the next segment while someone else wants the GPU: longer as long as the stream has work left, one launch as soon as
    /// it had none.
    fn grow_by_backlog(&self) -> u32 {
        let wanted = match self.waiting() {
            0 => 1,
            _ => self.wanted.load(Ordering::Relaxed).saturating_mul(2).min(self.longest()),
        };
        self.wanted.store(wanted, Ordering::Relaxed);
        wanted
    }

    /// The same while nobody does: as many as take about [`SEGMENT_NS`], on the GPU or to be launched.
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

    /// A length near `wanted`, never the same for long: else the samples would always meet the same kernel of a loop.
    fn vary(&self, wanted: u32) -> u32 {
        /// 2³² divided by the golden ratio: consecutive numbers are spread evenly.
        const SPREAD: u32 = 0x9e37_79b9;
        let spread = u64::from(self.opened.load(Ordering::Relaxed).wrapping_mul(SPREAD));
        // From three quarters to five quarters.
        let varied = u64::from(wanted) * 3 / 4 + ((u64::from(wanted) * spread) >> u32::BITS) / 2;
        varied.clamp(1, u64::from(LAUNCHES_MAX)) as u32
    }

    /// Takes the open segment for a launch, so that nobody closes it meanwhile. False: none is open.
    fn claim(&self) -> bool {
        let mut looks = 0_u32;
        loop {
            match self.tally.claim() {
                Attempt::Done => return true,
                Attempt::Idle => return false,
                // The meter thread ends it, which it does after a pause alone.
                Attempt::Busy if looks < CLAIM_SPINS => {
                    looks += 1;
                    hint::spin_loop();
                }
                Attempt::Busy => thread::yield_now(),
            }
        }
    }

    /// After every launch that [`Self::begin`] came before; `opened`: it opened the segment.
    pub fn launched(&self, opened: bool) {
        if opened {
            self.open_first_ns.store(os::now_ns(), Ordering::Relaxed);
        }
        self.tally.release();
    }

    /// The driver refused the launch that was counted last: it is none. If its segment was closed meanwhile, what comes next is charged so much less.
    pub fn uncount(&self, kind: Kind) {
        self.tally.take_back(kind.one());
    }

    /// The stream is about to wait for something else: a host function, another stream. While someone else wants the GPU (`contended`) the
    /// segment ends here; else what its launches are known to take counts.
    pub fn interrupt(&self, calls: &Calls, contended: bool) {
        if self.is_open() {
            if contended && self.has_room(calls) {
                self.close(calls);
            } else {
                self.note_wait();
            }
        }
        // What is launched next finds it idle for all that is known of it, and yet does not begin at once.
        self.has_to_wait.store(true, Ordering::Relaxed);
    }

    /// What the launches of the open segment are known to take counts: between them its stream may wait for something else.
    pub fn note_wait(&self) {
        self.open_may_wait.store(true, Ordering::Relaxed);
    }

    /// After the launch that ends a segment.
    pub fn end(&self, calls: &Calls) {
        // The meter thread cannot close a per-thread stream's, and a copy is to hold no kernels.
        let is_copy = self.open_is_copy.load(Ordering::Relaxed);
        if is_copy || self.has_room(calls) || self.stream() == Some(Stream::PER_THREAD) {
            self.close(calls);
        } else {
            let opened_at = self.opened_at.load(Ordering::Relaxed);
            let length = self.tally.target().wrapping_sub(opened_at);
            // Less than one: the meter thread wants it to end soon, or wanted the one before to.
            let length = (length as i32).clamp(1, LONGEST as i32) as u32;
            self.tally.set_target(opened_at.wrapping_add(2 * length));
        }
    }

    /// Closes the open segment, if there is one, the ring has room for one more after it, and the driver for an end.
    pub fn close(&self, calls: &Calls) {
        self.close_if(calls, |_| true, End::Record);
    }

    /// The meter thread's way to close a segment that has had `launches` launches for `quiet_ns`.
    ///
    /// On the legacy stream an end recorded now would order the blocking streams among each other, at a moment that the program did not choose. So it
    /// is not recorded: once the stream has nothing left the segment is complete. A per-thread default stream is another stream to another
    /// thread: this one can neither record there nor ask. Such a segment is taken for complete once all before it is, and it has had the time
    /// that it usually takes.
    pub fn close_stale(&self, calls: &Calls, launches: u32, quiet_ns: u64) {
        let end = match self.stream() {
            Some(Stream::LEGACY) => {
                // The question would end a capture on a blocking stream.
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

    /// The meter thread's, now and then while a launch is under way: opens the segment to others if its thread is gone, which was ended inside the driver.
    pub fn release_dead(&self) {
        if self.tally.is_launching() && !os::is_thread_alive(self.owner()) {
            self.tally.release();
        }
    }

    /// The open segment is dropped, and charged as what its launches are known to take; whoever records on the stream is waited for. Under the context's lock,
    /// when the stream is about to be destroyed or nothing can be asked of its context.
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

    /// Counts the launches of a segment that ends, up to `launched`, ever. Returns those that were not accounted for before, and what they are known to take, ns.
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
        // Whoever opens a segment needs a place for it, so the last one is never given away.
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
            // The owner counted again meanwhile.
            self.tally.reopen();
            return;
        };
        let closed_ns = os::now_ns();
        // A stream that joined a capture meanwhile takes no marker.
        let record = || {
            let is_captured = capture::is_active() && calls.may_be_capturing(stream);
            (!is_captured && calls.record(segment.end(), stream)).then_some(())
        };
        // A default stream's name means that of the current context.
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

    /// Waits while another thread records an end: one call of the driver.
    pub fn await_closed(&self) {
        while self.tally.is_closing() {
            thread::yield_now();
        }
    }

    /// The oldest closed segment. The meter thread's.
    pub fn oldest(&self) -> Option<&Segment> {
        if self.waiting() == 0 { None } else { self.place(self.tail.load(Ordering::Relaxed)) }
    }

    /// The meter thread is through with the oldest segment.
    pub fn pop(&self) {
        if self.oldest().is_some_and(|segment| !segment.contents().is_copy) {
            self.computing.fetch_sub(1, Ordering::SeqCst);
        }
        let tail = self.tail.load(Ordering::Relaxed);
        self.tail.store(tail.wrapping_add(1), Ordering::Release);
    }

    /// What a segment that is expected to take `expected_ns` has to make up for, at most as much again. The meter thread's.
    pub fn carried_ns(&self, expected_ns: i64) -> i64 {
        self.carried_ns.load(Ordering::Relaxed).clamp(-expected_ns, expected_ns)
    }

    /// A segment that was expected to take `expected_ns` was charged `took_ns` of its bounds. The meter thread's.
    pub fn carry(&self, expected_ns: i64, took_ns: i64) {
        if expected_ns > 0 {
            let carried_ns = self.carried_ns(expected_ns).saturating_add(expected_ns - took_ns);
            self.carried_ns.store(carried_ns.clamp(-expected_ns, expected_ns), Ordering::Relaxed);
        }
    }

    /// Takes a measurement into the mean.
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
    /// By an event.
    Record,
    /// It is known: the segment is complete.
    Unrecorded,
}

#[cfg(test)]
mod tests;
