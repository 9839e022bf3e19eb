//! The part of a lane that belongs to its owner thread: the launches, and the beginning of
//! segments.
//!
//! A [`LaneOwner`] proves that the caller is the owner thread. [`Lane::owned_by`] compares the
//! threads and returns the value, which cannot leave its thread.

use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::{hint, thread};

use deepres_abi::coverage::Bypass;
use deepres_abi::tally::Attempt;

use super::open::Beginning;
use super::{Lane, SEGMENT_NS};
use crate::driver::calls::{Calls, Stream};
use crate::gate::Headroom;
use crate::meter::segment::{Kind, Launch};
use crate::{capture, os};

/// While another thread closes a segment, the owner thread polls the segment this many times, and
/// then yields its CPU. One poll takes 28 ns as measured. All polls together take as long as the
/// slowest driver needs to record an end event.
const CLAIM_SPINS: u32 = 64;
/// The most launches in a segment. The limit bounds the delay of the charge for kernels that are
/// too short to measure.
pub(super) const LAUNCHES_MAX: u32 = 1024;
/// The greatest length to which a segment may double, in launches. A segment grows while the ring
/// has no room. The limit keeps counts modulo 2³² comparable.
const LONGEST: u32 = 1 << 29;
/// The most launches in a segment while the meter has measured no launch of the lane.
const LAUNCHES_UNMEASURED_MAX: u32 = 16;
/// In a spell, the meter gives a start event to one segment in this many.
const MEASURED_IN_SPELL_EVERY: u32 = 8;
/// While the GPU is not contended and the stream has gaps, the meter takes a sample in one segment
/// of this many. While the GPU is contended, the samples themselves set the number
/// ([`super::reader`]).
const SAMPLE_EVERY: u32 = 4;
/// A launch without a settled estimate ends the open segment if the segment has at least this many
/// launches. So if no kernel has an estimate, the meter times one launch in this many.
pub(super) const UNKNOWN_APART: u32 = 8;
/// The meter times one of this many copies that come between kernels and have an estimate.
const COPY_SAMPLE_EVERY: u32 = 8;
/// The number of launches after which a segment ends although a dependent launch follows. A program
/// whose launches are all dependent then loses one overlap in this many launches.
pub(super) const CHAIN_MAX: u32 = 256;
/// The estimated time after which a segment ends although a dependent launch follows, ns.
const CHAIN_NS: u64 = 4 * SEGMENT_NS;
/// While the GPU is not contended, the lane counts a graph of at most this length, ns, like a
/// kernel. Graphs with conditional nodes are the exception. A longer graph fills more than a
/// quarter of a segment, and the meter times each launch of it. The timing costs next to nothing
/// beside such a graph.
pub(super) const SHORT_GRAPH_NS: u64 = SEGMENT_NS / 4;

/// A lane in the hands of its owner thread.
#[derive(Debug, Clone, Copy)]
pub struct LaneOwner {
    lane: &'static Lane,
    /// A marker type that is not `Send`, so that the value cannot leave its thread.
    thread: PhantomData<*const ()>,
}

impl Deref for LaneOwner {
    type Target = Lane;

    #[inline(always)]
    fn deref(&self) -> &Lane {
        self.lane
    }
}

/// The launches that may join the open segment ([`Headroom`]). Only the owner thread uses these
/// figures.
#[derive(Debug, Default)]
pub(super) struct Followers {
    /// The gate word at which the segment was opened.
    word: AtomicU32,
    /// The bound on the sum of the estimates of all launches of the lane, ns.
    below_ns: AtomicU64,
}

impl Followers {
    fn set(&self, word: u32, below_ns: u64) {
        self.word.store(word, Ordering::Relaxed);
        self.below_ns.store(below_ns, Ordering::Relaxed);
    }

    #[inline(always)]
    fn word(&self) -> u32 {
        self.word.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn has_room(&self, expected_ns: u64) -> bool {
        expected_ns < self.below_ns.load(Ordering::Relaxed)
    }
}

/// The figures that decide the length of the next segments. Only the owner thread uses these
/// figures, and a thread that gives the lane to another owner. A thread that closes a segment sets
/// `apart_ns`.
#[derive(Debug)]
pub(super) struct Pace {
    /// The number of launches when the last segment was opened (modulo 2³²).
    opened_at: AtomicU32,
    /// The segment length that the stream's pace suggests.
    wanted: AtomicU32,
    /// The host time from launch to launch, as the last segments show it, ns.
    apart_ns: AtomicU64,
    /// Whether the next segment is a sample.
    is_sample_next: AtomicBool,
    /// The number of segments opened so far.
    opened: AtomicU32,
    /// The number of copies so far.
    copies: AtomicU32,
    /// The key of the launch after which the owner thread ended the last segment; 0: none.
    ended_after: AtomicU64,
    /// When the lane last ended segments of the stream's other lanes, ns of `CLOCK_MONOTONIC`.
    pub(super) ended_others_ns: AtomicU64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            opened_at: AtomicU32::new(0),
            wanted: AtomicU32::new(1),
            apart_ns: AtomicU64::new(0),
            is_sample_next: AtomicBool::new(false),
            opened: AtomicU32::new(0),
            copies: AtomicU32::new(0),
            ended_after: AtomicU64::new(0),
            ended_others_ns: AtomicU64::new(0),
        }
    }
}

impl Pace {
    /// Sets the wanted length of the next segment to one launch.
    pub(super) fn restart(&self) {
        self.want(1);
    }

    /// Records that a segment of `launches` launches was open for `open_ns`. A single launch tells
    /// nothing of the pace. After a segment of a single launch, a longer segment shows whether the
    /// launches come closer.
    pub(super) fn learn(&self, launches: u32, open_ns: u64) {
        let apart_ns = match launches {
            0 | 1 => self.apart_ns.load(Ordering::Relaxed) / 2,
            launches => open_ns / u64::from(launches),
        };
        self.apart_ns.store(apart_ns, Ordering::Relaxed);
    }

    /// Sets the segment length that the stream's pace suggests.
    pub(super) fn want(&self, launches: u32) {
        self.wanted.store(launches, Ordering::Relaxed);
    }
}

/// The result of [`LaneOwner::begin`]: the lane has counted the launch in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begun {
    /// Whether the launch opened a segment.
    pub opens: bool,
    /// Whether the segment ends after the launch.
    pub ends: bool,
}

/// The reason why a launch or copy is not among the counted launches of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmarked {
    /// The lane added the copy's estimate to the open segment of kernels, so the copy needs no
    /// segment of its own.
    TakenIn,
    /// The call is a bypass, for this reason.
    Bypass(Bypass),
}

impl From<Bypass> for Unmarked {
    fn from(reason: Bypass) -> Self {
        Self::Bypass(reason)
    }
}

impl Lane {
    /// Returns the lane as owned by `thread`, which is the calling thread. Returns `None` if
    /// `thread` is not the lane's owner, or `stream` not its stream.
    pub fn owned_by(&'static self, thread: u32, stream: Stream) -> Option<LaneOwner> {
        let is_owner = self.owner() == thread && self.stream() == Some(stream);
        is_owner.then_some(LaneOwner { lane: self, thread: PhantomData })
    }
}

impl LaneOwner {
    /// Returns the lane without the proof that the caller is the owner thread.
    pub fn lane(self) -> &'static Lane {
        self.lane
    }

    /// Returns whether the gate is as it was when the thread opened the segment.
    #[inline(always)]
    pub fn is_let_on(self) -> bool {
        self.gpu.gate_word().is_none_or(|word| word == self.followers.word())
    }

    /// Counts one more launch in the open segment, and returns true. If the launch begins or ends a
    /// segment, has no settled estimate, or needs a pass of the gate, counts nothing and returns
    /// false. While the gate does not change ([`Self::is_let_on`]), this method is the whole launch
    /// path.
    #[inline(always)]
    pub fn count(self, launch: Launch) -> bool {
        let Some((launched, ns)) = self.fits(launch) else { return false };
        self.tally.put(launched, ns);
        true
    }

    /// Returns the number of launches including `launch`, and the estimate of `launch`, ns. Returns
    /// `None` if the launch may not join the open segment without another step.
    #[inline(always)]
    pub(super) fn fits(self, launch: Launch) -> Option<(u64, u64)> {
        let launched = self.tally.next(launch.kind.one())?;
        let ns = self.gpu.estimates.settled(launch.key).or_else(|| self.joined_ns(launch))?;
        if launch.kind.is_graph() && (ns > SHORT_GRAPH_NS || launch.kind == Kind::VaryingGraph) {
            return None;
        }
        self.followers.has_room(self.tally.expected_ns().wrapping_add(ns)).then_some((launched, ns))
    }

    /// Returns the lane's mean time of a launch, ns, as the estimate for a dependent launch, or for
    /// a launch that a dependent launch follows. The meter never times such a launch alone. Returns
    /// `None` for any other launch, if the lane has measured no launch, or if the launch is to
    /// report its width first.
    #[cold]
    fn joined_ns(self, launch: Launch) -> Option<u64> {
        let is_joined = launch.kind == Kind::Dependent
            || (launch.kind == Kind::Kernel && self.gpu.leaders.has(launch.key));
        Some(self.mean_ns()).filter(|mean_ns| is_joined && *mean_ns != 0 && self.gpu.admits(launch.key))
    }

    /// Counts a launch before its call: opens a segment for the launch if none is open, or counts
    /// the launch in the open segment. After a success, the caller must call [`Self::launched`].
    /// `headroom` says which launches may follow this launch.
    ///
    /// While the GPU is contended, `contended` is the launch's estimate, which the GPU's estimated
    /// time in flight already includes.
    ///
    /// # Errors
    /// [`Unmarked`], if the launch has no segment.
    pub fn begin(
        self,
        calls: &Calls,
        launch: Launch,
        headroom: Headroom,
        contended: Option<u64>,
    ) -> Result<Begun, Unmarked> {
        let joined_ns = self.joined_ns(launch);
        let known_ns = self.gpu.estimates.get(launch.key).or(joined_ns);
        let is_settled = self.gpu.estimates.settled(launch.key).or(joined_ns).is_some();
        let is_dependent = launch.kind == Kind::Dependent;
        // While the GPU is contended, another tenant can wait for the end of a segment that only
        // the owner thread can record.
        let is_awaited = contended.is_some() && self.is_assumed();
        let alone = is_awaited
            || match launch.kind {
                Kind::Kernel | Kind::Dependent => false,
                Kind::Graph => known_ns.is_none_or(|known_ns| known_ns > SHORT_GRAPH_NS),
                Kind::VaryingGraph | Kind::Copy | Kind::SyncCopy => true,
            };
        if self.is_open() {
            let holds_copy = self.open.is_copy();
            if launch.kind.is_copy() && !holds_copy && self.takes_in(calls, known_ns, contended.is_some()) {
                return Err(Unmarked::TakenIn);
            }
            let is_other = holds_copy != launch.kind.is_copy();
            let is_unknown = !is_settled && self.unaccounted().all() >= self.unknown_apart();
            if is_other || ((alone || is_unknown) && !is_dependent && self.has_room(calls)) {
                self.close(calls);
            }
            if is_other && self.is_open() {
                // The owner thread could not close the segment, mostly because the ring is full.
                if launch.kind.is_copy() {
                    self.open.take_in(known_ns.unwrap_or(0));
                    return Err(Unmarked::TakenIn);
                }
                self.make_compute();
            }
        }
        let opens = !self.claim();
        let ended_after = self.pace.ended_after.swap(0, Ordering::Relaxed);
        if opens {
            if is_dependent && ended_after != 0 {
                self.gpu.leaders.add(ended_after);
            }
            self.open(calls, launch, contended.is_some(), alone || !is_settled)?;
        } else {
            self.open.take_another();
        }
        let expected_ns = match known_ns {
            Some(known_ns) => known_ns,
            None if opens => 0,
            None => self.mean_ns(),
        };
        let launched = self.tally.launched().wrapping_add(launch.kind.one());
        self.tally.put(launched, expected_ns);
        if let Some(estimate_ns) = contended {
            self.open.add_queued(estimate_ns);
        }
        let expected_ns = self.tally.expected_ns();
        if opens || contended.is_none() {
            let room_ns = headroom.room_ns / u64::from(self.context.lanes().max(1));
            self.followers.set(headroom.word, expected_ns.saturating_add(room_ns));
        }
        // If no launch can follow under the lease, the next launch opens a segment by its own pass.
        let goes_on = contended.is_none()
            || (self.followers.word() == headroom.word && self.followers.has_room(expected_ns));
        let is_full = self.tally.is_full_at(launched);
        if self.leads(launch) {
            if is_full {
                // The segment ends with the next launch.
                self.tally.set_target((launched as u32).wrapping_add(1));
            }
            return Ok(Begun { opens, ends: false });
        }
        let ends = alone || !goes_on || is_full;
        if ends && launch.kind.is_kernel() {
            self.pace.ended_after.store(launch.key, Ordering::Relaxed);
        }
        Ok(Begun { opens, ends })
    }

    /// Returns whether a dependent launch follows the launch, and the open segment is short enough
    /// for both launches.
    fn leads(self, launch: Launch) -> bool {
        let is_long = match self.unaccounted().all() {
            0 | 1 => false,
            launches => launches >= CHAIN_MAX || self.unaccounted_ns() >= CHAIN_NS,
        };
        !is_long && launch.kind.is_kernel() && self.gpu.leaders.has(launch.key)
    }

    /// Returns the number of launches in the open segment from which on a launch without a settled
    /// estimate ends the segment. On the legacy stream, a segment can have to end without an event
    /// ([`Lane::may_end_late`]). If the stream can wait for others, the meter thread then charges
    /// only estimates, so each launch without one is measured alone.
    fn unknown_apart(self) -> u32 {
        let is_unmeasured = self.stream() == Some(Stream::LEGACY) && self.context.lanes() > 1;
        if is_unmeasured { 1 } else { UNKNOWN_APART }
    }

    /// Adds a copy to the open segment of kernels if the meter need not time the copy, and returns
    /// true. Otherwise returns false. The meter must time a copy without an estimate, a copy while
    /// the GPU is contended, and a copy that is a sample. There is one exception: if the ring has
    /// no room, each copy with an estimate joins the segment.
    fn takes_in(self, calls: &Calls, known_ns: Option<u64>, contended: bool) -> bool {
        let copies = self.pace.copies.load(Ordering::Relaxed).wrapping_add(1);
        self.pace.copies.store(copies, Ordering::Relaxed);
        let is_timed = contended || copies.is_multiple_of(COPY_SAMPLE_EVERY);
        match known_ns {
            Some(known_ns) if !is_timed || !self.has_room(calls) => {
                self.open.take_in(known_ns);
                true
            }
            _ => false,
        }
    }

    /// Turns the open segment, which holds one copy, into a segment of kernels that also contains
    /// the copy. The owner thread could not close the segment before.
    fn make_compute(self) {
        self.open.take_in(self.tally.account(self.tally.launched()).ns);
        self.open.make_compute();
        // A segment of copies does not set `in_flight`, so this method sets it.
        self.gpu.set_in_flight();
    }

    fn open(self, calls: &Calls, launch: Launch, contended: bool, alone: bool) -> Result<(), Bypass> {
        let stream = self.stream().ok_or(Bypass::NoLane)?;
        self.settle();
        let create = || self.context.create_events(calls);
        let segment = self.ring.equip(create).ok_or(Bypass::NoEvent)?;
        let mut asked_ns = os::now_ns();
        let are_others_busy = self.end_others(calls, asked_ns);
        let is_fine = self.gpu.is_fine();
        // In a spell, the meter measures every launch, to see which streams overlap. Each further
        // driver call would move launches apart, so most segments get no start event.
        let opened = self.pace.opened.load(Ordering::Relaxed).wrapping_add(1);
        let is_sparse = self.learned.is_sparse();
        let is_sparse_kernel = is_sparse && launch.kind == Kind::Kernel;
        let _marking = capture::marking().ok_or(Bypass::JoiningCapture)?;
        capture::rule_out(calls, stream)?;
        // While another tenant wants the GPU, the two events bound the charge of each segment.
        let is_end_only = is_fine
            && !contended
            && !alone
            && is_sparse_kernel
            && !opened.is_multiple_of(MEASURED_IN_SPELL_EVERY);
        if !is_end_only && !calls.record(segment.start(), stream) {
            return Err(Bypass::NoEvent);
        }
        self.pace.opened.store(opened, Ordering::Relaxed);
        let wanted = self.grow();
        let sample_every = if contended { self.learned.sample_every() } else { SAMPLE_EVERY };
        let leads = (contended || is_sparse) && opened.is_multiple_of(sample_every);
        let is_sample = self.pace.is_sample_next.swap(leads, Ordering::Relaxed);
        let launched = self.tally.launched() as u32;
        let before = launched.wrapping_sub(self.pace.opened_at.swap(launched, Ordering::Relaxed));
        let target = match alone || is_sample || is_fine {
            true => 1,
            false if leads => self.vary_from(1, wanted.min(before)),
            false => self.vary_from(wanted - wanted / 4, wanted + wanted / 4),
        };
        self.tally.set_target(launched.wrapping_add(target));
        if target == 1 && !is_end_only && is_sparse_kernel {
            // The driver's first call after a pause takes longer than the launch that follows it.
            // So the thread records the start event twice. The second call takes as long as the
            // launch's own call.
            asked_ns = os::now_ns();
            calls.record(segment.start(), stream);
        }
        let began_ns = os::now_ns();
        let has_to_wait = self.waits.take_has_to_wait();
        // A dependent launch is not sampled alone, so the segment does not keep its key.
        let key = if launch.kind == Kind::Dependent { 0 } else { launch.key };
        self.open.begin(&Beginning {
            launch: Launch { key, ..launch },
            asked_ns,
            began_ns,
            is_end_only,
            may_wait: launch.kind == Kind::SyncCopy,
            is_quiet: self.ring.waiting() == 0 && !has_to_wait && !are_others_busy,
        });
        // From here on, the meter thread sees the segment. The caller may set `in_flight` only
        // after this.
        self.tally.open();
        self.note_others();
        Ok(())
    }

    /// Returns the most launches that the next segment should have, by their mean time.
    fn longest(self) -> u32 {
        match self.mean_ns() {
            0 => LAUNCHES_UNMEASURED_MAX,
            mean_ns => (SEGMENT_NS / mean_ns).clamp(1, u64::from(LAUNCHES_MAX)) as u32,
        }
    }

    /// Returns the length of the next segment, in launches. A segment of this length takes about
    /// [`SEGMENT_NS`] on the GPU or on the host.
    fn grow(self) -> u32 {
        let apart_ns = self.pace.apart_ns.load(Ordering::Relaxed);
        let at_this_pace = (SEGMENT_NS / apart_ns.max(1)).clamp(1, u64::from(LAUNCHES_MAX)) as u32;
        let doubled = self.pace.wanted.load(Ordering::Relaxed).saturating_mul(2);
        let wanted = doubled.min(self.longest()).min(at_this_pace);
        self.pace.want(wanted);
        wanted
    }

    /// Returns a length from `least` to `most` that varies from segment to segment. With a fixed
    /// length, the samples would always meet the same kernel of a loop.
    fn vary_from(self, least: u32, most: u32) -> u32 {
        /// 2³² divided by the golden ratio. The multiples of this number are spread evenly.
        const SPREAD: u32 = 0x9e37_79b9;
        let spread = u64::from(self.pace.opened.load(Ordering::Relaxed).wrapping_mul(SPREAD));
        let lengths = u64::from(most.saturating_sub(least)) + 1;
        least.saturating_add(((lengths * spread) >> u32::BITS) as u32).clamp(1, LAUNCHES_MAX)
    }

    /// Reserves the open segment for a launch, so that no other thread closes it meanwhile. Returns
    /// false if no segment is open.
    fn claim(self) -> bool {
        let mut looks = 0_u32;
        loop {
            match self.tally.claim() {
                Attempt::Done => return true,
                Attempt::Idle => return false,
                // Another thread is closing the segment. Mostly this is the meter thread, after a
                // pause in the launches.
                Attempt::Busy if looks < CLAIM_SPINS => {
                    looks += 1;
                    hint::spin_loop();
                }
                Attempt::Busy => thread::yield_now(),
            }
        }
    }

    /// Records the return of a launch that [`Self::begin`] has counted. `opened`: the launch opened
    /// the segment.
    pub fn launched(self, opened: bool) {
        if opened {
            self.open.set_first(os::now_ns());
        }
        self.tally.release();
    }

    /// Takes back the launch that the thread counted last, because the driver refused the launch.
    /// If a thread closed the segment meanwhile, the next segment's charge is that much less.
    pub fn uncount(self, kind: Kind) {
        self.tally.take_back(kind.one());
    }

    /// Ends the open segment after its last launch: closes the segment, or lets the segment grow if
    /// the ring has no room.
    pub fn end(self, calls: &Calls) {
        // The owner thread closes two kinds of segment even without room. The meter thread would
        // only assume the end of some segments, and a segment of copies must not take in kernels.
        if self.open.is_copy() || self.has_room(calls) || self.is_assumed() {
            self.close(calls);
        } else {
            let opened_at = self.pace.opened_at.load(Ordering::Relaxed);
            let length = self.tally.target().wrapping_sub(opened_at);
            // The length is less than one if the meter thread asked for an early end of this
            // segment or of the segment before.
            let length = (length as i32).clamp(1, LONGEST as i32) as u32;
            self.tally.set_target(opened_at.wrapping_add(2 * length));
        }
    }
}
