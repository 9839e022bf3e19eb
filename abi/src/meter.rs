//! The meter page: a session's report on its use of each GPU. The session writes the page, and the
//! daemon reads it.
//!
//! A tenant can write wrong numbers here, but only about itself. The daemon takes a [`Reading`],
//! which holds plain numbers. The daemon bounds each number by the time that passed
//! ([`Reading::since`]). The daemon uses no number as an index or a length.

use crate::MAX_GPUS;
use crate::coverage::{Bypasses, Coverage};
use crate::excerpt::Excerpt;
use crate::page::{Head, Kind, Page};
use crate::plan::Progress;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, fence_after_exchange};

/// The kind of allocation under which the interposer charged device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum MemoryKind {
    /// Memory of `cuMemAlloc`.
    Linear = 0,
    /// Memory of `cuMemAllocPitch`.
    Pitch = 1,
    /// Memory of `cuMemAllocManaged`.
    Managed = 2,
    /// Memory of `cuMemAllocAsync` and `cuMemAllocFromPoolAsync`.
    Pool = 3,
    /// Memory of `cuMemCreate`.
    Physical = 4,
    /// Memory of arrays and mipmapped arrays.
    Array = 5,
    /// Memory of the memory nodes of graphs.
    Graph = 6,
    /// Memory that the driver takes by itself, for contexts and code.
    Driver = 7,
}

impl MemoryKind {
    /// Number of kinds.
    pub const COUNT: usize = 8;

    /// Returns whether a session counts this kind separately. A session does not count linear
    /// memory, because it is the part of the account that no other kind has. Most allocations are
    /// linear, so most allocations update one counter only.
    pub const fn is_counted(self) -> bool {
        self.place().is_some()
    }

    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Linear,
        Self::Pitch,
        Self::Managed,
        Self::Pool,
        Self::Physical,
        Self::Array,
        Self::Graph,
        Self::Driver,
    ];

    /// Returns the kind's place in a meter slot, or `None` if a slot does not count the kind.
    pub const fn place(self) -> Option<usize> {
        match self {
            Self::Linear => None,
            other => Some(other as usize),
        }
    }

    /// Returns the kind's name, as people read it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Pitch => "pitch",
            Self::Managed => "managed",
            Self::Pool => "pool",
            Self::Physical => "physical",
            Self::Array => "array",
            Self::Graph => "graph",
            Self::Driver => "driver",
        }
    }
}

/// The number of places for kinds in a meter slot.
pub const HELD_PLACES: usize = 8;

/// A bit of [`MeterSlot::last_refused_api`]. The bit is set if the tenant's limit had room, but the
/// driver had no memory.
pub const REFUSED_BY_DRIVER: u32 = 1 << 31;

/// The number of buckets in a histogram of waits.
pub const WAIT_BUCKETS: usize = 18;

/// Returns the bucket of a wait. Bucket N counts waits from 2^N µs up to twice that. The first
/// bucket also counts all shorter waits. The last bucket also counts all longer waits (from 131
/// ms).
pub const fn wait_bucket(wait_ns: u64) -> usize {
    const NS_PER_US: u64 = 1_000;
    let bucket = match (wait_ns / NS_PER_US).checked_ilog2() {
        Some(bucket) => bucket as usize,
        None => 0,
    };
    if bucket < WAIT_BUCKETS { bucket } else { WAIT_BUCKETS - 1 }
}

/// The meter of one session on one GPU. Counters only grow. Times are in ns.
#[derive(Debug)]
#[repr(C, align(256))]
pub struct MeterSlot {
    /// Threads that wait at this moment, at the gate or in a driver call of a suspended tenant.
    pub waiters: AtomicU32,
    /// The lowest bit is set while work is in flight: from the first counted launch until the
    /// session has seen all work complete. The other bits are a mark that differs from one period
    /// with work in flight to the next.
    pub in_flight: AtomicU32,
    /// Estimated GPU time in flight.
    pub in_flight_ns: AtomicU64,
    /// GPU time of kernels and graphs. If copies are charged
    /// ([`crate::grant::GrantSlot::charge_copies`]), also the GPU time of copies. Work of the
    /// session that overlaps counts once. The arbiter charges this time.
    pub compute_ns: AtomicU64,
    /// GPU time of copies, charged or not.
    pub copy_ns: AtomicU64,
    /// Time in which any work was in flight or waiting.
    pub occupied_ns: AtomicU64,
    /// Time that threads waited at the gate, summed over threads.
    pub wait_ns: AtomicU64,
    /// Number of waits at the gate.
    pub waits: AtomicU64,
    /// Number of kernels launched one by one.
    pub kernel_launches: AtomicU64,
    /// Number of graphs launched.
    pub graph_launches: AtomicU64,
    /// Number of markers recorded.
    pub markers: AtomicU64,
    /// The longest kernel or graph, ns of GPU time.
    pub longest_ns: AtomicU64,
    /// When the session last updated the times of its work and waits, ns of `CLOCK_MONOTONIC`.
    pub updated_ns: AtomicU64,
    /// Number of refused allocations: by the limit, or by a driver without free memory.
    pub refusals: AtomicU64,
    /// Size of the last refused allocation, bytes.
    pub last_refused_bytes: AtomicU64,
    /// The call of the last refused allocation: a number of [`crate::driver::ApiId`]. If the driver
    /// refused the call, [`REFUSED_BY_DRIVER`] is set too. An older library does not count refusals
    /// by the driver.
    pub last_refused_api: AtomicU32,
    /// Threads that are about to read the gate, or that have passed the gate and whose launch the
    /// meter has not counted yet.
    launching: AtomicU32,
    /// Device memory held, bytes by [`MemoryKind::place`].
    pub held_bytes: [AtomicU64; HELD_PLACES],
    /// Number of waits at the gate by [`wait_bucket`], each modulo 2³². An older library leaves
    /// these numbers 0.
    pub waits_by_length: [AtomicU32; WAIT_BUCKETS],
}

/// A session's managed memory beyond the tenant's limit on one GPU
/// ([`crate::oversubscribe::Oversubscribe::Managed`]). An older library leaves the slot 0.
#[derive(Debug, Default)]
#[repr(C)]
pub struct OversubscribedSlot {
    /// The session's managed memory beyond the limit, bytes.
    pub held_bytes: AtomicU64,
    /// The part of `held_bytes` that the interposer moved to the GPU and did not move off again,
    /// bytes. The driver may have moved some of this part to the host by itself.
    pub brought_bytes: AtomicU64,
}

/// A time of `CLOCK_MONOTONIC` in 32 bits, in units of 2¹⁰ ns (about 1 µs). The value begins anew
/// after about an hour.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Moment(AtomicU32);

impl Moment {
    const SHIFT: u32 = 10;

    /// Sets the moment to `at_ns`, ns of `CLOCK_MONOTONIC`.
    pub fn set(&self, at_ns: u64) {
        self.0.store(((at_ns >> Self::SHIFT) as u32).max(1), Ordering::Relaxed);
    }

    /// Returns the time, up to 1 µs too early. `now_ns` is the reader's time. Returns `None` if no
    /// time was set, or if the time is in the future.
    pub fn get(&self, now_ns: u64) -> Option<u64> {
        let set = self.0.load(Ordering::Relaxed);
        let now = now_ns >> Self::SHIFT;
        let age = (now as u32).wrapping_sub(set);
        let is_past = set != 0 && age <= u32::MAX / 2;
        is_past.then(|| now.saturating_sub(u64::from(age)) << Self::SHIFT)
    }
}

/// The times at which a session's work on one GPU began and ended. The time from one tenant's end
/// to the next tenant's beginning is the cost of a hand-off. An older library sets neither time.
#[derive(Debug, Default)]
#[repr(C)]
pub struct EdgeSlot {
    /// The time at which the first work under the present lease began, if its thread had waited for
    /// the lease. The session sets this time when it sees this work complete.
    pub began: Moment,
    /// The time at which the last work ended that the session saw complete. The session sets this
    /// time before it reports that nothing is in flight.
    pub ended: Moment,
}

/// The number of intervals in [`Intervals`].
#[cfg(not(loom))]
pub const INTERVALS: usize = 256;
/// The number of intervals under the model checker, which cannot follow many intervals.
#[cfg(loom)]
pub const INTERVALS: usize = 2;

/// The recent intervals in which a session's kernels and graphs ran on one GPU. If the intervals of
/// two sessions of one tenant overlap, the arbiter charges the tenant once. An older library leaves
/// the ring empty.
///
/// Only the thread that adds to [`MeterSlot::compute_ns`] writes the ring. This thread writes an
/// interval before it adds the interval's time to `compute_ns`. A reader that is late, or reads
/// during a write, misses some intervals.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Intervals {
    /// The number of intervals whose writing has begun.
    begun: AtomicU64,
    /// The number of intervals whose writing has ended.
    written: AtomicU64,
    /// The beginning and the end of each interval, ns of `CLOCK_MONOTONIC`.
    ring: [[AtomicU64; 2]; INTERVALS],
}

impl Default for Intervals {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            begun: zero(),
            written: zero(),
            ring: core::array::from_fn(|_| core::array::from_fn(|_| zero())),
        }
    }
}

impl Intervals {
    /// Adds an interval. Only one thread at a time may call this.
    pub fn add(&self, start_ns: u64, end_ns: u64) {
        let number = self.written.load(Ordering::Relaxed);
        let Some([start, end]) = self.ring.get((number % INTERVALS as u64) as usize) else { return };
        self.begun.store(number.wrapping_add(1), Ordering::Relaxed);
        // With this fence, a reader that sees any word of the new interval also sees that the old
        // interval is gone.
        fence(Ordering::Release);
        start.store(start_ns, Ordering::Relaxed);
        end.store(end_ns, Ordering::Relaxed);
        self.written.store(number.wrapping_add(1), Ordering::Release);
    }

    /// Returns the number of intervals that the session ever wrote.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Calls `tell` with each interval that the session wrote after the first `since`, except
    /// overwritten ones. Returns the number of intervals that the session ever wrote. The caller
    /// must not trust the times, because the session can write any numbers.
    pub fn since(&self, since: u64, mut tell: impl FnMut(u64, u64)) -> u64 {
        let written = self.written();
        let new = written.wrapping_sub(since).min(INTERVALS as u64);
        for number in (0..new).map(|back| written.wrapping_sub(new).wrapping_add(back)) {
            let Some([start, end]) = self.ring.get((number % INTERVALS as u64) as usize) else { continue };
            let (start_ns, end_ns) = (start.load(Ordering::Relaxed), end.load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if self.begun.load(Ordering::Relaxed).wrapping_sub(number) <= INTERVALS as u64 {
                tell(start_ns, end_ns);
            }
        }
        written
    }
}

/// The bit of [`MeterSlot::in_flight`] that says that work is in flight.
const BUSY: u32 = 1;
/// The step from one mark in [`MeterSlot::in_flight`] to the next mark.
const MARK: u32 = 2;

/// A mark of the work in flight at one moment ([`MeterSlot::in_flight`]).
#[derive(Debug, Clone, Copy)]
pub struct InFlight(u32);

/// Counts a thread as launching until the drop of this value ([`MeterSlot::start_launching`]).
#[derive(Debug)]
#[must_use = "dropped, it says that what was launched is known to be in flight"]
pub struct Launching<'a>(&'a MeterSlot);

impl Drop for Launching<'_> {
    fn drop(&mut self) {
        self.0.launching.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The meter page of one session: the use of each GPU, and the coverage of the process.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct MeterPage {
    head: Head,
    carried: AtomicU32,
    slots: [MeterSlot; MAX_GPUS],
    coverage: Coverage,
    oversubscribed: [OversubscribedSlot; MAX_GPUS],
    edges: [EdgeSlot; MAX_GPUS],
    intervals: [Intervals; MAX_GPUS],
    bypasses: Bypasses,
    stretched_ns: [AtomicU64; MAX_GPUS],
    ends: [AtomicU64; MAX_GPUS],
    sm_ppm: [AtomicU32; MAX_GPUS],
    excerpt: Excerpt,
    progress: Progress,
    width_ppm: [AtomicU32; MAX_GPUS],
    mps_server: [AtomicU64; MAX_GPUS],
}

// SAFETY: the type is repr(C), begins with the head, contains only atomics, and has its own kind.
unsafe impl Page for MeterPage {
    const KIND: Kind = Kind::Meter;
    fn head(&self) -> &Head {
        &self.head
    }
}

impl MeterPage {
    /// Records that the page now contains all counters of the process's earlier sessions. The
    /// session told the daemon beforehand to expect these counters
    /// ([`crate::wire::Hello::sessions_before`]). Until this call, the daemon charges nothing by
    /// this page.
    pub fn set_carried(&self) {
        self.carried.store(1, Ordering::Release);
    }

    /// Returns whether the page contains the counters of earlier sessions.
    pub fn is_carried(&self) -> bool {
        self.carried.load(Ordering::Acquire) != 0
    }

    /// Returns the record of the functions that the process looked up, and of its bypasses.
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// Returns the counters of bypasses, by reason.
    pub fn bypasses(&self) -> &Bypasses {
        &self.bypasses
    }

    /// Returns the memory beyond the limit on a GPU, or `None` if `gpu` is no GPU index.
    pub fn oversubscribed(&self, gpu: usize) -> Option<&OversubscribedSlot> {
        self.oversubscribed.get(gpu)
    }

    /// Returns the times at which work on a GPU began and ended, or `None` if `gpu` is no GPU
    /// index.
    pub fn edges(&self, gpu: usize) -> Option<&EdgeSlot> {
        self.edges.get(gpu)
    }

    /// Returns the recent intervals in which the session's kernels and graphs ran on a GPU. Returns
    /// `None` if `gpu` is no GPU index.
    pub fn intervals(&self, gpu: usize) -> Option<&Intervals> {
        self.intervals.get(gpu)
    }

    /// Returns the word with the time by which launches on a GPU took longer than their estimates,
    /// ns; `None` if `gpu` is no GPU index. The time is a part of [`MeterSlot::compute_ns`]. If
    /// tenants share the GPU, in this time the GPU worked for the other tenants. The session writes
    /// this word before it adds the time to `compute_ns`. An older library leaves the word 0.
    pub fn stretched_ns(&self, gpu: usize) -> Option<&AtomicU64> {
        self.stretched_ns.get(gpu)
    }

    /// Returns the word with the number of times that all work of the session on a GPU ended, and no
    /// thread waited at the gate; `None` if `gpu` is no GPU index. The session counts an end before
    /// it reports the end with [`MeterSlot::settle`], so a reader that sees nothing in flight sees
    /// the end counted. If a launch comes at that moment, the session counts an end that it does
    /// not report. An older library leaves the word 0.
    pub fn ends(&self, gpu: usize) -> Option<&AtomicU64> {
        self.ends.get(gpu)
    }

    /// Returns the word with the part of a GPU's SMs that the process can use under MPS, parts per
    /// million. Returns `None` if `gpu` is no GPU index. Kernels of such processes run at once. The
    /// word is 0 without MPS, for a process that can use all SMs, and under an older library.
    pub fn sm_ppm(&self, gpu: usize) -> Option<&AtomicU32> {
        self.sm_ppm.get(gpu)
    }

    /// Returns the word with the width of the process's widest recent kernel or graph on a GPU,
    /// parts per million of the SMs. Returns `None` if `gpu` is no GPU index. The
    /// session raises the word before it makes a wider launch. Only a session under MPS sets the
    /// word; an older library leaves the word 0.
    pub fn width_ppm(&self, gpu: usize) -> Option<&AtomicU32> {
        self.width_ppm.get(gpu)
    }

    /// Returns the word with the identity of the MPS server whose client the process is on a GPU.
    /// Returns `None` if `gpu` is no GPU index. Only kernels of one server's clients run at once.
    /// The word is 0 without MPS, if the process does not know its server, and under an older
    /// library.
    pub fn mps_server(&self, gpu: usize) -> Option<&AtomicU64> {
        self.mps_server.get(gpu)
    }

    /// Returns the part of a GPU's SMs that the session reports for its launches: the lesser of
    /// [`Self::sm_ppm`] and [`Self::width_ppm`], parts per million. Returns 0 if the session
    /// reports neither. The value is untrusted, because the session can write any number.
    pub fn part_ppm(&self, gpu: usize) -> u32 {
        let read = |word: Option<&AtomicU32>| word.map_or(0, |word| word.load(Ordering::Relaxed));
        match (read(self.sm_ppm(gpu)), read(self.width_ppm(gpu))) {
            (limit_ppm, 0) => limit_ppm,
            (0, width_ppm) => width_ppm,
            (limit_ppm, width_ppm) => limit_ppm.min(width_ppm),
        }
    }

    /// Returns the place for the excerpt of the session's calls. An older library leaves the place
    /// empty.
    pub fn excerpt(&self) -> &Excerpt {
        &self.excerpt
    }

    /// Returns the session's place in its plan.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Returns the slot of a GPU, or `None` if `gpu` is no GPU index.
    pub fn slot(&self, gpu: usize) -> Option<&MeterSlot> {
        self.slots.get(gpu)
    }
}

/// A copy of a slot's counters. The reader reads the words one by one, so they can be nanoseconds
/// apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reading {
    /// Threads waiting at the gate.
    pub waiters: u32,
    /// Threads that are about to read the gate, or whose launch the meter has not counted yet.
    pub launching: u32,
    /// Whether anything is in flight. Also true while `launching` is not 0.
    pub in_flight: bool,
    /// Estimated GPU time in flight, ns.
    pub in_flight_ns: u64,
    /// GPU time of kernels and graphs, ns.
    pub compute_ns: u64,
    /// GPU time of copies, ns.
    pub copy_ns: u64,
    /// Time in which any work was in flight or waiting, ns.
    pub occupied_ns: u64,
    /// Time spent waiting at the gate, ns.
    pub wait_ns: u64,
    /// Number of waits at the gate.
    pub waits: u64,
    /// Number of kernels launched one by one.
    pub kernel_launches: u64,
    /// Number of graphs launched.
    pub graph_launches: u64,
    /// Number of markers recorded.
    pub markers: u64,
    /// Longest kernel or graph seen, ns.
    pub longest_ns: u64,
    /// When the session last updated the times, ns of `CLOCK_MONOTONIC`.
    pub updated_ns: u64,
    /// Number of allocations refused.
    pub refusals: u64,
    /// Size of the last refused allocation, bytes.
    pub last_refused_bytes: u64,
    /// The call of the last refused allocation, with [`REFUSED_BY_DRIVER`]. The session can write
    /// any number here, so the reader must look the number up, and never index with it.
    pub last_refused_api: u32,
    /// Memory held, bytes by [`MemoryKind::place`].
    pub held_bytes: [u64; HELD_PLACES],
    /// Number of waits at the gate by [`wait_bucket`], each modulo 2³².
    pub waits_by_length: [u32; WAIT_BUCKETS],
}

impl Default for MeterSlot {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            waiters: AtomicU32::new(0),
            in_flight: AtomicU32::new(0),
            in_flight_ns: zero(),
            compute_ns: zero(),
            copy_ns: zero(),
            occupied_ns: zero(),
            wait_ns: zero(),
            waits: zero(),
            kernel_launches: zero(),
            graph_launches: zero(),
            markers: zero(),
            longest_ns: zero(),
            updated_ns: zero(),
            refusals: zero(),
            last_refused_bytes: zero(),
            last_refused_api: AtomicU32::new(0),
            launching: AtomicU32::new(0),
            held_bytes: core::array::from_fn(|_| zero()),
            waits_by_length: core::array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

impl MeterSlot {
    /// Counts a thread that begins to wait at the gate. The caller then reads the gate, and rings
    /// the bell afterwards.
    pub fn enter_wait(&self) {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        fence_after_exchange();
    }

    /// Returns whether a thread waits at the gate, or is about to read it. If the caller has changed
    /// the gate before ([`GrantSlot::set_gate`]), each thread that sleeps at the old gate counts.
    ///
    /// [`GrantSlot::set_gate`]: crate::grant::GrantSlot::set_gate
    pub fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::SeqCst) != 0
    }

    /// Counts a thread that no longer waits at the gate. A thread that is about to launch calls
    /// [`Self::start_launching`] before this. So the session always shows that it wants the GPU.
    pub fn leave_wait(&self) {
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// Counts a wait at the gate that lasted `wait_ns`.
    pub fn count_wait(&self, wait_ns: u64) {
        self.wait_ns.fetch_add(wait_ns, Ordering::Relaxed);
        self.waits.fetch_add(1, Ordering::Relaxed);
        if let Some(bucket) = self.waits_by_length.get(wait_bucket(wait_ns)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts the calling thread, which reads the gate next, and launches if the gate permits.
    /// Until the drop of the returned value, the meter shows the thread as work in flight.
    pub fn start_launching(&self) -> Launching<'_> {
        self.launching.fetch_add(1, Ordering::SeqCst);
        fence_after_exchange();
        Launching(self)
    }

    /// Returns whether a thread is about to read the gate, or has made a launch that the meter has
    /// not counted yet.
    pub fn is_launching(&self) -> bool {
        self.launching.load(Ordering::SeqCst) != 0
    }

    /// Records that a thread launched work, and that the session has not seen the work complete.
    pub fn set_in_flight(&self) {
        let mark = |word: u32| Some(word.wrapping_add(MARK) | BUSY);
        // The update cannot fail, because every mark has a next mark.
        let _ = self.in_flight.fetch_update(Ordering::SeqCst, Ordering::SeqCst, mark);
    }

    /// Returns a mark of the work in flight, or `None` if no work is in flight. The caller takes
    /// the mark before it checks whether the work is complete.
    pub fn in_flight(&self) -> Option<InFlight> {
        let word = self.in_flight.load(Ordering::SeqCst);
        (word & BUSY != 0).then_some(InFlight(word))
    }

    /// Records that all work of the mark `seen` is complete. Returns whether nothing is in flight
    /// now. If a thread launched work after the mark, returns false. If the result is true and the
    /// gate is not open, the caller rings the bell, because the daemon may have missed the change.
    pub fn settle(&self, seen: InFlight) -> bool {
        let InFlight(word) = seen;
        let idle = word & !BUSY;
        let settled = self.in_flight.compare_exchange(word, idle, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        fence(Ordering::SeqCst);
        settled
    }

    /// Adds the growth of another page's counters: the difference between `now` and `before`. The
    /// other page belongs to the same process. The numbers of waiting and launching threads and the
    /// held memory change by their difference too, up or down.
    pub fn grow(&self, now: &Reading, before: &Reading) {
        let grow = |counter: &AtomicU64, now: u64, before: u64| {
            counter.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        };
        grow(&self.compute_ns, now.compute_ns, before.compute_ns);
        grow(&self.copy_ns, now.copy_ns, before.copy_ns);
        grow(&self.occupied_ns, now.occupied_ns, before.occupied_ns);
        grow(&self.wait_ns, now.wait_ns, before.wait_ns);
        grow(&self.waits, now.waits, before.waits);
        grow(&self.kernel_launches, now.kernel_launches, before.kernel_launches);
        grow(&self.graph_launches, now.graph_launches, before.graph_launches);
        grow(&self.markers, now.markers, before.markers);
        grow(&self.refusals, now.refusals, before.refusals);
        for (held, (now, before)) in self.held_bytes.iter().zip(now.held_bytes.iter().zip(before.held_bytes))
        {
            grow(held, *now, before);
        }
        let waits = now.waits_by_length.iter().zip(before.waits_by_length);
        for (count, (now, before)) in self.waits_by_length.iter().zip(waits) {
            count.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        }
        self.longest_ns.fetch_max(now.longest_ns, Ordering::Relaxed);
        self.last_refused_bytes.store(now.last_refused_bytes, Ordering::Relaxed);
        self.last_refused_api.store(now.last_refused_api, Ordering::Relaxed);
        self.waiters.fetch_add(now.waiters.wrapping_sub(before.waiters), Ordering::SeqCst);
        self.launching.fetch_add(now.launching.wrapping_sub(before.launching), Ordering::SeqCst);
        if now.in_flight {
            self.set_in_flight();
        }
    }

    /// Returns whether the session rests: nothing is in flight, and the slot has counted no work,
    /// wait or refusal since `earlier`. Held memory may have changed, because the call reads less
    /// than [`Self::read`].
    pub fn rests_since(&self, earlier: &Reading) -> bool {
        // These reads have the same order as the reads of `read`.
        self.waiters.load(Ordering::SeqCst) == 0
            && self.launching.load(Ordering::SeqCst) == 0
            && self.in_flight().is_none()
            && self.stands_still_since(earlier)
    }

    /// Returns whether the slot has counted no work, wait or refusal since `earlier`. Work can be in
    /// flight, and threads can wait.
    pub fn stands_still_since(&self, earlier: &Reading) -> bool {
        let same = |counter: &AtomicU64, earlier: u64| counter.load(Ordering::Relaxed) == earlier;
        same(&self.compute_ns, earlier.compute_ns)
            && same(&self.copy_ns, earlier.copy_ns)
            && same(&self.occupied_ns, earlier.occupied_ns)
            && same(&self.wait_ns, earlier.wait_ns)
            && same(&self.waits, earlier.waits)
            && same(&self.kernel_launches, earlier.kernel_launches)
            && same(&self.graph_launches, earlier.graph_launches)
            && same(&self.longest_ns, earlier.longest_ns)
            && same(&self.updated_ns, earlier.updated_ns)
            && same(&self.refusals, earlier.refusals)
    }

    /// Returns the held memory, bytes by [`MemoryKind`]. For a kind that the slot does not count,
    /// the result has 0.
    pub fn held_bytes(&self) -> [u64; MemoryKind::COUNT] {
        MemoryKind::ALL
            .map(|kind| kind.place().map_or(0, |place| self.held_bytes[place].load(Ordering::Relaxed)))
    }

    /// Returns a copy of the counters.
    pub fn read(&self) -> Reading {
        let word = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // A thread passes these states in this order, and enters each state before it leaves the
        // state before. So the reader sees the thread in at least one state.
        let waiters = self.waiters.load(Ordering::SeqCst);
        let launching = self.launching.load(Ordering::SeqCst);
        let in_flight = self.in_flight().is_some() || launching != 0;
        Reading {
            waiters,
            launching,
            in_flight,
            in_flight_ns: word(&self.in_flight_ns),
            compute_ns: word(&self.compute_ns),
            copy_ns: word(&self.copy_ns),
            occupied_ns: word(&self.occupied_ns),
            wait_ns: word(&self.wait_ns),
            waits: word(&self.waits),
            kernel_launches: word(&self.kernel_launches),
            graph_launches: word(&self.graph_launches),
            markers: word(&self.markers),
            longest_ns: word(&self.longest_ns),
            updated_ns: word(&self.updated_ns),
            refusals: word(&self.refusals),
            last_refused_bytes: word(&self.last_refused_bytes),
            last_refused_api: self.last_refused_api.load(Ordering::Relaxed),
            held_bytes: core::array::from_fn(|place| word(&self.held_bytes[place])),
            waits_by_length: core::array::from_fn(|bucket| {
                self.waits_by_length[bucket].load(Ordering::Relaxed)
            }),
        }
    }
}

/// The GPU time that a session used between two readings, within the daemon's bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    /// GPU time of kernels and graphs, ns.
    pub compute_ns: u64,
    /// GPU time of copies, ns.
    pub copy_ns: u64,
    /// Time in which any work was in flight or waiting, ns.
    pub occupied_ns: u64,
}

impl Reading {
    /// Returns the GPU time that the session used since `earlier`. A counter that went back counts
    /// as unchanged. A counter grows by at most `at_most_ns`: the time that passed, and the
    /// caller's allowance for late reports.
    pub fn since(&self, earlier: &Self, at_most_ns: u64) -> Used {
        let grown = |now: u64, then: u64| now.saturating_sub(then).min(at_most_ns);
        Used {
            compute_ns: grown(self.compute_ns, earlier.compute_ns),
            copy_ns: grown(self.copy_ns, earlier.copy_ns),
            occupied_ns: grown(self.occupied_ns, earlier.occupied_ns),
        }
    }

    /// Returns whether the session wants the GPU: work is in flight, or a thread waits.
    pub fn wants(&self) -> bool {
        self.in_flight || self.waiters != 0
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<MeterSlot>() == 256);
    assert!(core::mem::offset_of!(MeterSlot, in_flight_ns) == 8);
    assert!(core::mem::offset_of!(MeterSlot, launching) == 116);
    assert!(core::mem::offset_of!(MeterSlot, held_bytes) == 120);
    assert!(core::mem::offset_of!(MeterSlot, waits_by_length) == 184);
    assert!(core::mem::offset_of!(MeterPage, carried) == 64);
    assert!(core::mem::offset_of!(MeterPage, slots) == 256);
    assert!(core::mem::offset_of!(MeterPage, coverage) == 4352);
    assert!(core::mem::offset_of!(MeterPage, oversubscribed) == 11840);
    assert!(core::mem::offset_of!(MeterPage, edges) == 12096);
    assert!(core::mem::offset_of!(MeterPage, intervals) == 12224);
    assert!(size_of::<Intervals>() == 64 + 16 * INTERVALS);
    assert!(core::mem::offset_of!(MeterPage, bypasses) == 78784);
    assert!(core::mem::offset_of!(MeterPage, stretched_ns) == 78912);
    assert!(core::mem::offset_of!(MeterPage, ends) == 79040);
    assert!(core::mem::offset_of!(MeterPage, sm_ppm) == 79168);
    assert!(core::mem::offset_of!(MeterPage, excerpt) == 79232);
    assert!(core::mem::offset_of!(MeterPage, width_ppm) == 603_648);
    assert!(core::mem::offset_of!(MeterPage, mps_server) == 603_712);
    assert!(size_of::<MeterPage>() == 606_208);
};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_told_for_half_an_hour_and_never_as_one_that_is_to_come() {
        let moment = Moment::default();
        let hour_ns = 3_600_000_000_000;
        assert_eq!(moment.get(5), None);
        for at_ns in [3 * hour_ns + 123_456_789, 5_000_000, u64::MAX / 2] {
            moment.set(at_ns);
            for later_ns in [0, 1_000_000, hour_ns / 2] {
                let told_ns = moment.get(at_ns + later_ns).unwrap();
                assert!(told_ns <= at_ns && at_ns - told_ns < 1024, "{told_ns} for {at_ns}");
            }
            assert_eq!(moment.get(at_ns - 10_000), None);
        }
    }

    #[test]
    fn intervals_are_told_once_and_those_that_are_gone_not_at_all() {
        let intervals = Intervals::default();
        let told = |since| {
            let mut told = std::vec::Vec::new();
            let written = intervals.since(since, |start_ns, end_ns| told.push((start_ns, end_ns)));
            (written, told)
        };
        assert_eq!(told(0), (0, [].into()));
        intervals.add(1, 2);
        intervals.add(3, 5);
        assert_eq!(told(0), (2, [(1, 2), (3, 5)].into()));
        assert_eq!(told(1), (2, [(3, 5)].into()));
        (0..INTERVALS as u64).for_each(|number| intervals.add(number, number + 10));
        let (written, all) = told(2);
        assert_eq!((written, all.len(), all[0]), (INTERVALS as u64 + 2, INTERVALS, (0, 10)));
        // This addition makes the oldest interval look as if the session were overwriting it.
        intervals.begun.fetch_add(1, Ordering::Relaxed);
        assert_eq!(told(2).1[0], (1, 11));
        assert_eq!(told(u64::MAX).1.len(), INTERVALS - 1, "of another page");
    }

    #[test]
    fn a_meter_that_jumps_or_runs_backwards_is_bounded() {
        let earlier = Reading { compute_ns: 100, copy_ns: 50, occupied_ns: 10, ..Reading::default() };
        let later = Reading { compute_ns: u64::MAX, copy_ns: 40, occupied_ns: 15, ..Reading::default() };
        assert_eq!(later.since(&earlier, 1_000), Used { compute_ns: 1_000, copy_ns: 0, occupied_ns: 5 });
    }

    #[test]
    fn a_page_that_goes_on_from_another_has_the_counts_of_both() {
        let (old, new) = (MeterSlot::default(), MeterSlot::default());
        old.compute_ns.store(100, Ordering::Relaxed);
        old.held_bytes[2].store(50, Ordering::Relaxed);
        old.longest_ns.store(9, Ordering::Relaxed);
        old.enter_wait();
        let launching = [old.start_launching(), old.start_launching()];
        let first = old.read();
        new.grow(&first, &Reading::default());
        // Changes in both pages, between the copy of the counters and the change of pages.
        old.compute_ns.store(130, Ordering::Relaxed);
        old.held_bytes[2].store(20, Ordering::Relaxed);
        old.leave_wait();
        let [passed, passing] = launching;
        drop(passed);
        new.compute_ns.fetch_add(7, Ordering::Relaxed);
        new.grow(&old.read(), &first);
        let now = new.read();
        assert_eq!((now.compute_ns, now.held_bytes[2], now.longest_ns), (137, 20, 9));
        assert_eq!((now.waiters, now.launching, now.in_flight), (0, 1, true));
        drop(passing);
    }

    #[test]
    fn the_part_of_a_session_is_the_lesser_of_its_limit_and_its_width() {
        let layout = std::alloc::Layout::new::<MeterPage>();
        // SAFETY: the layout is not empty, and all zeroes are a valid page. The box frees the
        // memory with the same layout.
        let page: std::boxed::Box<MeterPage> =
            unsafe { std::boxed::Box::from_raw(std::alloc::alloc_zeroed(layout).cast()) };
        let part_ppm = |limit_ppm, width_ppm| {
            page.sm_ppm(1).unwrap().store(limit_ppm, Ordering::Relaxed);
            page.width_ppm(1).unwrap().store(width_ppm, Ordering::Relaxed);
            page.part_ppm(1)
        };
        assert_eq!([part_ppm(0, 0), part_ppm(40, 0), part_ppm(0, 30)], [0, 40, 30]);
        assert_eq!([part_ppm(40, 30), part_ppm(40, 50)], [30, 40]);
        assert_eq!((page.part_ppm(0), page.part_ppm(MAX_GPUS)), (0, 0));
    }

    #[test]
    fn waits_are_counted_by_their_length() {
        let slot = MeterSlot::default();
        for wait_ns in [0, 1_999, 2_000, 3_999, 4_000, 131_072_000, u64::MAX] {
            slot.count_wait(wait_ns);
        }
        let counted = slot.read();
        assert_eq!(counted.waits, 7);
        assert_eq!(counted.waits_by_length[..3], [2, 2, 1]);
        assert_eq!(counted.waits_by_length[WAIT_BUCKETS - 1], 2);
    }

    #[test]
    fn kinds_are_numbered_in_their_order() {
        for (number, kind) in MemoryKind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, number);
        }
    }

    #[test]
    fn a_slot_rests_until_something_is_counted_or_under_way() {
        let slot = MeterSlot::default();
        let before = slot.read();
        assert!(slot.rests_since(&before));
        let counters = [
            &slot.compute_ns,
            &slot.copy_ns,
            &slot.occupied_ns,
            &slot.wait_ns,
            &slot.waits,
            &slot.kernel_launches,
            &slot.graph_launches,
            &slot.longest_ns,
            &slot.updated_ns,
            &slot.refusals,
        ];
        for (number, counter) in counters.into_iter().enumerate() {
            let before = slot.read();
            counter.fetch_add(1, Ordering::Relaxed);
            assert!(!slot.rests_since(&before), "counter {number}");
            assert!(slot.rests_since(&slot.read()));
        }
        slot.enter_wait();
        assert!(!slot.rests_since(&slot.read()), "a thread waits");
        slot.leave_wait();
        let launching = slot.start_launching();
        assert!(!slot.rests_since(&slot.read()), "a thread launches");
        drop(launching);
        slot.set_in_flight();
        assert!(!slot.rests_since(&slot.read()), "something is in flight");
        assert!(slot.settle(slot.in_flight().expect("something is")));
        assert!(slot.rests_since(&slot.read()));
    }
}
