//! One GPU as this process sees it: the session's pages for it, and the work in flight on it.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use deepres_abi::gate::OnlyLaunch;
use deepres_abi::grant::{Gate, GateState, GrantSlot};
use deepres_abi::meter::{Launching, MeterSlot};
use deepres_abi::wire::UNMANAGED;

use super::estimates::Estimates;
use super::segment::Launches;
use super::thread::MeterThread;
use crate::descriptor::{OwnDescriptor, Place};
use crate::{os, process};

/// A replaceable reference to something that lives as long as the process.
#[derive(Debug)]
pub struct Shared<T: 'static>(AtomicPtr<T>);

impl<T> Shared<T> {
    /// Holds no reference yet.
    pub const fn none() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Returns the present reference.
    #[inline(always)]
    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: only `set` stores here, and it takes references that live for ever.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Replaces the reference.
    pub fn set(&self, value: Option<&'static T>) {
        let pointer = value.map_or(std::ptr::null_mut(), |value| std::ptr::from_ref(value).cast_mut());
        self.0.store(pointer, Ordering::Release);
    }
}

/// GPU time that may be queued while the gate is open, where the grant gives no value. A queue of
/// this depth keeps any GPU busy.
const RUN_AHEAD_NS: u64 = 100_000_000;
/// Overlap of streams that run one after another.
const NO_OVERLAP_PERMILLE: u64 = 1000;

/// One GPU of the process, as the module describes it.
#[derive(Debug)]
pub struct Gpu {
    grant: Shared<GrantSlot>,
    meter: Shared<MeterSlot>,
    /// The daemon's index of the GPU, or [`UNMANAGED`].
    index: AtomicU32,
    bell: Place,
    /// Estimated GPU time launched and not seen complete, ns.
    queued_ns: AtomicU64,
    /// Sum of the streams' times over the GPU time that they cover, in thousandths.
    overlap_permille: AtomicU64,
    /// Count of completions, and the futex on which threads wait for room in their window.
    freed: AtomicU32,
    /// Threads that wait on `freed`.
    window_waiters: AtomicU32,
    /// The count of completions at which a thread gave up waiting for another one.
    stuck_at: AtomicU32,
    /// Epoch of the lease under which a thread was last seen to go on.
    entered: AtomicU32,
    /// When that thread went on, if it had waited and no work has run since; else 0.
    entered_ns: AtomicU64,
    /// The state of leases of one launch.
    pub only_launch: OnlyLaunch,
    /// Whether every launch is to be measured for a while.
    is_fine: AtomicBool,
    /// Estimated GPU time of launches outside any segment that were not charged yet, ns.
    late_ns: AtomicU64,
    /// Estimates of launches on this GPU.
    pub estimates: Estimates,
}

impl Default for Gpu {
    fn default() -> Self {
        Self {
            grant: Shared::none(),
            meter: Shared::none(),
            index: AtomicU32::new(u32::from(UNMANAGED)),
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
        }
    }
}

impl Gpu {
    /// Takes over the session's pages and bell for this GPU.
    pub fn connect(
        &self,
        index: u8,
        grant: &'static GrantSlot,
        meter: &'static MeterSlot,
        bell: Option<OwnDescriptor>,
    ) {
        self.index.store(u32::from(index), Ordering::Relaxed);
        self.bell.swap(bell);
        self.meter.set(Some(meter));
        self.only_launch.reset(grant);
        self.grant.set(Some(grant));
    }

    /// Forgets the launches taken under the present session's leases, before another session's
    /// grant comes.
    pub fn forget_only_launch(&self) {
        self.only_launch.forget();
    }

    /// Sets the grant that launches obey.
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

    /// The daemon's index of the GPU, if the daemon manages it.
    pub fn index(&self) -> Option<usize> {
        let index = self.index.load(Ordering::Relaxed);
        (index != u32::from(UNMANAGED)).then_some(index as usize)
    }

    /// The grant, if the daemon manages this GPU.
    #[inline(always)]
    pub fn grant(&self) -> Option<&'static GrantSlot> {
        self.grant.get()
    }

    /// GPU time that may be queued while the gate is open, ns.
    pub fn run_ahead_ns(&self) -> u64 {
        self.grant().and_then(GrantSlot::run_ahead_ns).unwrap_or(RUN_AHEAD_NS)
    }

    /// The meter slot, if the daemon manages this GPU.
    pub fn meter(&self) -> Option<&'static MeterSlot> {
        self.meter.get()
    }

    /// Whether the time of copies is charged.
    pub fn charges_copies(&self) -> bool {
        self.grant().is_some_and(GrantSlot::charge_copies)
    }

    /// Whether launches pass without a look at a lease.
    #[inline(always)]
    pub fn is_open(&self) -> bool {
        self.grant().is_none_or(|grant| Gate::is_open(grant.gate_word()))
    }

    /// Whether the tenant is kept off the GPU: paused, or suspended with its memory on the host.
    #[inline]
    pub fn is_paused(&self) -> bool {
        self.grant().is_some_and(|grant| grant.gate().state == GateState::Paused)
    }

    /// Tells the arbiter about a change that it waits for.
    pub fn ring(&self) {
        // Without a daemon there is no bell, because the meter thread decides, and it can be woken
        // directly. With a daemon, the arbiter also looks by itself now and then.
        if self.index().is_some()
            && !self.bell.get().is_some_and(OwnDescriptor::ring)
            && let Some(process) = process::current()
        {
            process.rouse_meter();
        }
    }

    /// Whether the gate lets the process launch: it is open, or there is a lease.
    pub fn may_launch(&self) -> bool {
        self.grant().is_none_or(|grant| matches!(grant.gate().state, GateState::Open | GateState::Leased))
    }

    /// Notes that a thread is about to look at the gate. Until the result is dropped, this counts
    /// as work in flight.
    pub fn start_launching(&self) -> Option<Launching<'static>> {
        self.meter().map(MeterSlot::start_launching)
    }

    /// Notes that something was launched that the meter thread does not see yet.
    pub fn set_in_flight(&self) {
        if let Some(meter) = self.meter() {
            meter.set_in_flight();
        }
    }

    /// Estimated GPU time in flight, ns.
    pub fn queued_ns(&self) -> u64 {
        self.share_ns(self.queued_ns.load(Ordering::Relaxed))
    }

    /// GPU time that `ns` of a stream's time take, at the recent overlap of streams.
    pub fn share_ns(&self, ns: u64) -> u64 {
        let overlap_permille = self.overlap_permille.load(Ordering::Relaxed);
        if ns == 0 || overlap_permille <= NO_OVERLAP_PERMILLE {
            return ns;
        }
        match ns.checked_mul(NO_OVERLAP_PERMILLE) {
            Some(thousands) => thousands / overlap_permille,
            // Values this large are months, so whole overlaps are precise enough.
            None => ns / (overlap_permille / NO_OVERLAP_PERMILLE),
        }
    }

    /// Sets the overlap of streams that the meter thread measured.
    pub fn set_overlap_permille(&self, _meter: MeterThread, permille: u64) {
        self.overlap_permille.store(permille, Ordering::Relaxed);
    }

    /// Whether every launch is to be measured at present.
    pub fn is_fine(&self) -> bool {
        self.is_fine.load(Ordering::Relaxed)
    }

    /// See [`Self::is_fine`].
    pub fn set_fine(&self, _meter: MeterThread, is_fine: bool) {
        self.is_fine.store(is_fine, Ordering::Relaxed);
    }

    /// Notes that a thread goes on under a lease, if it is the first. `waited_until_ns`: when its
    /// wait ended, if it had waited.
    pub fn enter(&self, waited_until_ns: Option<u64>) {
        let epoch = self.grant().map_or(0, |grant| grant.gate().epoch);
        if self.entered.load(Ordering::Relaxed) != epoch {
            self.entered.store(epoch, Ordering::Relaxed);
            self.entered_ns.store(waited_until_ns.unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// Notes that work ran on the GPU from `start_ns` on. Returns `start_ns` if this is the first
    /// work under the present lease, and its thread had waited for the lease.
    pub fn begins(&self, _meter: MeterThread, start_ns: u64) -> Option<u64> {
        let entered_ns = self.entered_ns.load(Ordering::Relaxed);
        let is_first = entered_ns != 0 && start_ns >= entered_ns;
        let taken = || self.entered_ns.compare_exchange(entered_ns, 0, Ordering::Relaxed, Ordering::Relaxed);
        (is_first && taken().is_ok()).then_some(start_ns)
    }

    /// Adds to the estimated time in flight.
    pub fn queue(&self, estimate_ns: u64) {
        if estimate_ns != 0 {
            self.queued_ns.fetch_add(estimate_ns, Ordering::Relaxed);
        }
    }

    /// Takes completed work from the estimated time in flight, and wakes threads that wait for
    /// room.
    pub fn unqueue(&self, estimate_ns: u64) {
        let _ = self.queued_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |queued_ns| {
            Some(queued_ns.saturating_sub(estimate_ns))
        });
        self.freed.fetch_add(1, Ordering::SeqCst);
        if self.window_waiters.load(Ordering::SeqCst) != 0 {
            os::futex_wake_private(&self.freed);
        }
    }

    /// Sets the estimated time in flight to 0, because nothing is in flight. Estimates that were
    /// lost on the way no longer count.
    pub fn empty_queue(&self, _meter: MeterThread) {
        self.queued_ns.store(0, Ordering::Relaxed);
    }

    /// Completions so far, modulo 2³².
    pub fn completions(&self) -> u32 {
        self.freed.load(Ordering::SeqCst)
    }

    /// Notes that nothing has completed for a long time. Until something completes, no thread waits
    /// for it again.
    pub fn give_up_at(&self, completions: u32) {
        self.stuck_at.store(completions, Ordering::Relaxed);
    }

    /// Whether a thread gave up waiting and nothing has completed since.
    pub fn is_stuck(&self) -> bool {
        self.stuck_at.load(Ordering::Relaxed) == self.completions()
    }

    /// Sleeps until something completes, at most `timeout_ns`. Returns at once if `is_full` no
    /// longer holds.
    pub fn await_freed(&self, timeout_ns: u64, is_full: impl Fn() -> bool) {
        self.window_waiters.fetch_add(1, Ordering::SeqCst);
        let seen = self.freed.load(Ordering::SeqCst);
        if is_full() {
            os::futex_wait_private(&self.freed, seen, timeout_ns);
        }
        self.window_waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// Adds the estimated GPU time of launches outside any segment, ns.
    pub fn add_late(&self, took_ns: u64) {
        self.late_ns.fetch_add(took_ns, Ordering::Relaxed);
    }

    /// Takes the time that was added since the last call, ns. The caller charges the time.
    pub fn take_late_ns(&self, _meter: MeterThread) -> u64 {
        self.late_ns.swap(0, Ordering::Relaxed)
    }

    /// Counts launches, and the markers that were recorded for them.
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
