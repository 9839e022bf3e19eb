//! One GPU as this process sees it: the session's pages for the GPU, and the work in flight on it.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use deepres_abi::gate::OnlyLaunch;
use deepres_abi::gpu_name::GpuName;
use deepres_abi::grant::{Gate, GateState, GrantSlot};
use deepres_abi::meter::{Launching, MeterSlot};
use deepres_abi::wire::{UNMANAGED, Uuid};

use super::estimates::Estimates;
use super::leaders::Leaders;
use super::segment::Launches;
use super::thread::MeterThread;
use super::width::{Class, Widths};
use crate::descriptor::{OwnDescriptor, Place};
use crate::session::Session;
use crate::{os, process};

/// A replaceable reference to a value that lives as long as the process.
#[derive(Debug)]
pub struct Shared<T: 'static>(AtomicPtr<T>);

impl<T> Shared<T> {
    /// Returns a [`Shared`] whose [`Self::get`] returns `None` until the first [`Self::set`].
    pub const fn none() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Returns the present reference, if there is one.
    #[inline(always)]
    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: only `set` stores here, and `set` takes references that live for ever.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Replaces the reference by `value`.
    pub fn set(&self, value: Option<&'static T>) {
        let pointer = value.map_or(std::ptr::null_mut(), |value| std::ptr::from_ref(value).cast_mut());
        self.0.store(pointer, Ordering::Release);
    }
}

/// GPU time, ns, that the process may queue while the gate is open and the grant gives no other
/// value. A queue of this depth keeps any GPU busy.
const RUN_AHEAD_NS: u64 = 100_000_000;
/// The overlap of streams that run one after another, in thousandths.
const NO_OVERLAP_PERMILLE: u64 = 1000;

/// One GPU of the process: the session's pages for the GPU, and the work in flight on the GPU.
#[derive(Debug)]
pub struct Gpu {
    uuid: Uuid,
    /// The part of the SMs that the process can use under MPS, parts per million; 0 for all SMs.
    pub sm_ppm: u32,
    /// The identity of the MPS server whose client the process is on this GPU; 0 without MPS, or if
    /// the server is not known.
    pub mps_server: u64,
    grant: Shared<GrantSlot>,
    meter: Shared<MeterSlot>,
    /// The daemon's index of the GPU, or [`UNMANAGED`].
    index: AtomicU32,
    /// Whether the daemon said that the GPU is a MIG device.
    is_mig: AtomicBool,
    bell: Place,
    /// Sum of the estimates of launches that the meter thread has not yet seen complete, ns.
    queued_ns: AtomicU64,
    /// Sum of the streams' times, divided by the GPU time that the streams cover together, in
    /// thousandths.
    overlap_permille: AtomicU64,
    /// Count of completions. Threads wait on this futex for room in their window.
    freed: AtomicU32,
    /// The number of threads that wait on `freed`.
    window_waiters: AtomicU32,
    /// The count of completions at which a thread last gave up its wait for room.
    stuck_at: AtomicU32,
    /// Epoch of the lease under which a thread last passed the gate.
    entered: AtomicU32,
    /// The time at which the first thread passed the gate under the lease of `entered`, ns. 0 if
    /// this thread had not waited, or if work has run since.
    entered_ns: AtomicU64,
    /// The last lease of one launch that the process used on this GPU.
    pub only_launch: OnlyLaunch,
    /// Whether the meter is to measure every launch at present.
    is_fine: AtomicBool,
    /// Estimated GPU time, ns, of launches without a segment that the meter thread has not charged
    /// yet.
    late_ns: AtomicU64,
    /// Estimates of launches on this GPU.
    pub estimates: Estimates,
    /// The kernels that dependent launches follow.
    pub leaders: Leaders,
    /// The widths of launches on this GPU, under MPS.
    pub widths: Widths,
}

impl Default for Gpu {
    fn default() -> Self {
        Self {
            uuid: Uuid::default(),
            sm_ppm: 0,
            mps_server: 0,
            grant: Shared::none(),
            meter: Shared::none(),
            index: AtomicU32::new(u32::from(UNMANAGED)),
            is_mig: AtomicBool::new(false),
            bell: Place::none(),
            queued_ns: AtomicU64::new(0),
            overlap_permille: AtomicU64::new(NO_OVERLAP_PERMILLE),
            freed: AtomicU32::new(0),
            window_waiters: AtomicU32::new(0),
            stuck_at: AtomicU32::new(u32::MAX),
            entered: AtomicU32::new(0),
            entered_ns: AtomicU64::new(0),
            only_launch: OnlyLaunch::default(),
            is_fine: AtomicBool::new(false),
            late_ns: AtomicU64::new(0),
            estimates: Estimates::default(),
            leaders: Leaders::default(),
            widths: Widths::default(),
        }
    }
}

/// Writes the GPU's name as `deepres ps` shows it: the daemon's index of the GPU, and its UUID. If
/// no daemon manages the GPU, writes the UUID alone. Before the first daemon, a MIG device has the
/// name of a GPU, because the bytes of the UUID do not tell the two apart.
impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = GpuName { uuid: self.uuid, is_mig: self.is_mig.load(Ordering::Relaxed) };
        // Without a daemon, the process has no bell, and its index means nothing to others.
        match self.index().filter(|_| self.bell.get().is_some()) {
            Some(index) => write!(f, "gpu {index} ({name})"),
            None => write!(f, "{name}"),
        }
    }
}

impl Gpu {
    /// Returns the GPU with this UUID, without a session. `sm_ppm` is the part of the SMs that the
    /// process can use under MPS, parts per million; 0 for all SMs. `mps_server` is the identity of
    /// its MPS server, or 0.
    pub fn of(uuid: Uuid, sm_ppm: u32, mps_server: u64) -> Self {
        Self { uuid, sm_ppm, mps_server, ..Self::default() }
    }

    /// Returns the GPU with these widths.
    pub fn with_widths(self, widths: Widths) -> Self {
        Self { widths, ..self }
    }

    /// Returns the GPU's UUID.
    pub fn uuid(&self) -> &Uuid {
        &self.uuid
    }

    /// Connects the GPU to a session: stores the daemon's index of the GPU, and the session's pages
    /// and bell.
    pub fn connect(
        &self,
        index: u8,
        grant: &'static GrantSlot,
        meter: &'static MeterSlot,
        bell: Option<OwnDescriptor>,
    ) {
        self.index.store(u32::from(index), Ordering::Relaxed);
        self.meter.set(Some(meter));
        self.obey(grant, bell);
    }

    /// Hands the GPU to another arbiter: replaces the grant that launches obey, and the bell. A
    /// thread that waits at the gate of the former grant goes on at the gate of `grant`.
    pub fn obey(&self, grant: &'static GrantSlot, bell: Option<OwnDescriptor>) {
        self.bell.swap(bell);
        self.only_launch.reset(grant);
        self.grant.set(Some(grant));
    }

    /// Forgets the launches that the process made under the present session's leases of one launch.
    /// The caller does so before the grant of another session comes.
    pub fn forget_only_launch(&self) {
        self.only_launch.forget();
    }

    /// Stores that the GPU is a MIG device.
    pub fn set_mig(&self) {
        self.is_mig.store(true, Ordering::Relaxed);
    }

    /// Replaces the grant that launches obey.
    pub fn set_grant(&self, grant: &'static GrantSlot) {
        self.grant.set(Some(grant));
    }

    /// Forgets the session, in a forked child or when the daemon no longer manages this GPU.
    pub fn disconnect(&self) {
        self.grant.set(None);
        self.meter.set(None);
        self.bell.swap(None);
        self.index.store(u32::from(UNMANAGED), Ordering::Relaxed);
    }

    /// Returns whether a launch may go at once by another estimate than its own. Under MPS, the
    /// process must know the width of the launch, and report one that is not less.
    pub fn admits(&self, key: u64) -> bool {
        if !self.widths.is_counted() {
            return true;
        }
        self.estimates.see(key);
        self.widths.admits(key)
    }

    /// Returns whether the session's meter page shows at least this width. Returns true if the page
    /// has no place for the GPU.
    pub fn shows_width(&self, session: &Session, class: Class) -> bool {
        let word = self.index().and_then(|index| session.meter().width_ppm(index));
        word.is_none_or(|word| word.load(Ordering::SeqCst) >= class.ppm())
    }

    /// Writes the width that the process reports to the session's meter page.
    pub fn publish_width(&self, session: &Session) {
        if let Some(word) = self.index().and_then(|index| session.meter().width_ppm(index)) {
            self.widths.publish(word);
        }
    }

    /// Returns the daemon's index of the GPU, if the daemon manages the GPU.
    pub fn index(&self) -> Option<usize> {
        let index = self.index.load(Ordering::Relaxed);
        (index != u32::from(UNMANAGED)).then_some(index as usize)
    }

    /// Returns the GPU's slot of the grant page, if the daemon manages the GPU.
    #[inline(always)]
    pub fn grant(&self) -> Option<&'static GrantSlot> {
        self.grant.get()
    }

    /// Returns the GPU time that the process may queue while the gate is open, ns.
    pub fn run_ahead_ns(&self) -> u64 {
        self.grant().and_then(GrantSlot::run_ahead_ns).unwrap_or(RUN_AHEAD_NS)
    }

    /// Returns the GPU's slot of the meter page, if the daemon manages the GPU.
    pub fn meter(&self) -> Option<&'static MeterSlot> {
        self.meter.get()
    }

    /// Returns whether the arbiter charges the tenant for the time of its copies.
    pub fn charges_copies(&self) -> bool {
        self.grant().is_some_and(GrantSlot::charge_copies)
    }

    /// Returns the gate word, or `None` if the daemon does not manage the GPU.
    #[inline(always)]
    pub fn gate_word(&self) -> Option<u32> {
        self.grant().map(GrantSlot::gate_word)
    }

    /// Returns whether the gate is open. If the daemon does not manage the GPU, returns true.
    #[inline(always)]
    pub fn is_open(&self) -> bool {
        self.gate_word().is_none_or(Gate::is_open)
    }

    /// Returns whether the process has a lease that has expired at `now_ns`.
    pub fn is_expired(&self, now_ns: u64) -> bool {
        let is_past = |grant: &GrantSlot| grant.terms().is_some_and(|terms| now_ns >= terms.expires_ns);
        self.grant().is_some_and(|grant| grant.gate().state == GateState::Leased && is_past(grant))
    }

    /// Returns whether the daemon keeps the tenant off the GPU: the tenant is paused, or suspended
    /// with its memory on the host.
    #[inline]
    pub fn is_paused(&self) -> bool {
        self.grant().is_some_and(|grant| grant.gate().state == GateState::Paused)
    }

    /// Rings the bell, to tell the arbiter about a change for which the arbiter waits. Without a
    /// bell, wakes the meter thread.
    pub fn ring(&self) {
        // Without a daemon, the process has no bell: the meter thread decides, and any thread can
        // wake the meter thread. With a daemon, the arbiter also looks by itself now and then.
        if self.index().is_some()
            && !self.bell.get().is_some_and(OwnDescriptor::ring)
            && let Some(process) = process::current()
        {
            process.rouse_meter();
        }
    }

    /// Returns whether the gate lets the process launch: the gate is open, or there is a lease.
    pub fn may_launch(&self) -> bool {
        self.grant().is_none_or(|grant| matches!(grant.gate().state, GateState::Open | GateState::Leased))
    }

    /// Marks the calling thread as about to read the gate, and returns the mark. Until the caller
    /// drops the mark, the arbiter takes the mark for work in flight. Returns `None` if there is no
    /// meter slot.
    pub fn start_launching(&self) -> Option<Launching<'static>> {
        self.meter().map(MeterSlot::start_launching)
    }

    /// Reports on the meter page that work is in flight, after a launch that the meter thread does
    /// not see yet.
    pub fn set_in_flight(&self) {
        if let Some(meter) = self.meter() {
            meter.set_in_flight();
        }
    }

    /// Returns the estimated GPU time in flight, ns.
    pub fn queued_ns(&self) -> u64 {
        self.share_ns(self.queued_ns.load(Ordering::Relaxed))
    }

    /// Returns the GPU time that `ns` of a stream's time take, at the recent overlap of streams,
    /// ns.
    pub fn share_ns(&self, ns: u64) -> u64 {
        let overlap_permille = self.overlap_permille.load(Ordering::Relaxed);
        if ns == 0 || overlap_permille <= NO_OVERLAP_PERMILLE {
            return ns;
        }
        match ns.checked_mul(NO_OVERLAP_PERMILLE) {
            Some(thousands) => thousands / overlap_permille,
            // Times this large are months, so whole overlaps are precise enough.
            None => ns / (overlap_permille / NO_OVERLAP_PERMILLE),
        }
    }

    /// Sets the overlap of streams that the meter thread measured.
    pub fn set_overlap_permille(&self, _meter: MeterThread, permille: u64) {
        self.overlap_permille.store(permille, Ordering::Relaxed);
    }

    /// Returns whether the meter is to measure every launch at present.
    pub fn is_fine(&self) -> bool {
        self.is_fine.load(Ordering::Relaxed)
    }

    /// Sets [`Self::is_fine`]. Writes only a change, because each write takes the cache line away
    /// from the launching threads.
    pub fn set_fine(&self, _meter: MeterThread, is_fine: bool) {
        if self.is_fine() != is_fine {
            self.is_fine.store(is_fine, Ordering::Relaxed);
        }
    }

    /// Records that a thread passes the gate under a lease, if no thread passed the gate under this
    /// lease before. `waited_until_ns`: when the thread's wait ended, if the thread had waited.
    pub fn enter(&self, waited_until_ns: Option<u64>) {
        let epoch = self.grant().map_or(0, |grant| grant.gate().epoch);
        if self.entered.load(Ordering::Relaxed) != epoch {
            self.entered.store(epoch, Ordering::Relaxed);
            self.entered_ns.store(waited_until_ns.unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// Records that work ran on the GPU from `start_ns` on. Returns `start_ns` if this is the first
    /// work under the present lease, and its thread had waited for the lease. Otherwise returns
    /// `None`.
    pub fn begins(&self, _meter: MeterThread, start_ns: u64) -> Option<u64> {
        let entered_ns = self.entered_ns.load(Ordering::Relaxed);
        let is_first = entered_ns != 0 && start_ns >= entered_ns;
        let taken = || self.entered_ns.compare_exchange(entered_ns, 0, Ordering::Relaxed, Ordering::Relaxed);
        (is_first && taken().is_ok()).then_some(start_ns)
    }

    /// Adds an estimate to the estimated time in flight.
    pub fn queue(&self, estimate_ns: u64) {
        if estimate_ns != 0 {
            self.queued_ns.fetch_add(estimate_ns, Ordering::Relaxed);
        }
    }

    /// Subtracts the estimate of completed work from the estimated time in flight. Wakes threads
    /// that wait for room.
    pub fn unqueue(&self, estimate_ns: u64) {
        let _ = self.queued_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |queued_ns| {
            Some(queued_ns.saturating_sub(estimate_ns))
        });
        self.freed.fetch_add(1, Ordering::SeqCst);
        if self.window_waiters.load(Ordering::SeqCst) != 0 {
            os::futex_wake_private(&self.freed);
        }
    }

    /// Sets the estimated time in flight to 0, because nothing is in flight. Estimates that no
    /// completion has subtracted no longer count.
    pub fn empty_queue(&self, _meter: MeterThread) {
        self.queued_ns.store(0, Ordering::Relaxed);
    }

    /// Returns the number of completions so far, modulo 2³².
    pub fn completions(&self) -> u32 {
        self.freed.load(Ordering::SeqCst)
    }

    /// Records that for a long time, no work has completed beyond the count `completions`. Until
    /// the next completion, no thread waits for room.
    pub fn give_up_at(&self, completions: u32) {
        self.stuck_at.store(completions, Ordering::Relaxed);
    }

    /// Returns whether a thread gave up its wait, and nothing has completed since.
    pub fn is_stuck(&self) -> bool {
        self.stuck_at.load(Ordering::Relaxed) == self.completions()
    }

    /// Sleeps until the next completion, for at most `timeout_ns`. If `is_full` does not hold at
    /// the beginning, returns at once.
    pub fn await_freed(&self, timeout_ns: u64, is_full: impl Fn() -> bool) {
        self.window_waiters.fetch_add(1, Ordering::SeqCst);
        let seen = self.freed.load(Ordering::SeqCst);
        if is_full() {
            os::futex_wait_private(&self.freed, seen, timeout_ns);
        }
        self.window_waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// Adds `took_ns`, the estimated GPU time of launches without a segment, to the time that the
    /// meter thread will charge.
    pub fn add_late(&self, took_ns: u64) {
        self.late_ns.fetch_add(took_ns, Ordering::Relaxed);
    }

    /// Returns the time that other threads added by [`Self::add_late`] since the last call, ns. The
    /// caller charges this time.
    pub fn take_late_ns(&self, _meter: MeterThread) -> u64 {
        // Mostly no thread has added time. A load leaves the cache line with the launching threads.
        match self.late_ns.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.late_ns.swap(0, Ordering::Relaxed),
        }
    }

    /// Adds launches, and the markers recorded for them, to the counters of the meter page.
    pub fn count(&self, launches: Launches, markers: u64) {
        let Some(meter) = self.meter() else { return };
        let kernels = launches.all().saturating_sub(launches.graphs());
        if kernels != 0 {
            meter.kernel_launches.fetch_add(u64::from(kernels), Ordering::Relaxed);
        }
        if launches.graphs() != 0 {
            meter.graph_launches.fetch_add(u64::from(launches.graphs()), Ordering::Relaxed);
        }
        meter.markers.fetch_add(markers, Ordering::Relaxed);
    }
}
