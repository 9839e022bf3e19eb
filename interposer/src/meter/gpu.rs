//! One GPU as this process sees it: what the session says about it, and what is in flight on it.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use deepres_abi::gate::OnlyLaunch;
use deepres_abi::grant::{Gate, GateState, GrantSlot};
use deepres_abi::meter::{Launching, MeterSlot};
use deepres_abi::wire::UNMANAGED;

use super::estimates::Estimates;
use super::segment::Launches;
use crate::descriptor::{OwnDescriptor, Place};
use crate::{os, process};

/// A reference that can be replaced, to something that lives as long as the process.
#[derive(Debug)]
pub struct Shared<T: 'static>(AtomicPtr<T>);

impl<T> Shared<T> {
    /// None yet.
    pub const fn none() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// The present one.
    #[inline(always)]
    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: only `set` stores here, and it takes references that live for ever.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Replaces it.
    pub fn set(&self, value: Option<&'static T>) {
        let pointer = value.map_or(std::ptr::null_mut(), |value| std::ptr::from_ref(value).cast_mut());
        self.0.store(pointer, Ordering::Release);
    }
}

/// GPU time that may be queued while the gate is open and nobody says how much. A queue that deep keeps any GPU busy.
const RUN_AHEAD_NS: u64 = 100_000_000;
/// Streams that run one after another.
const NO_OVERLAP_PERMILLE: u64 = 1000;

/// See the module.
#[derive(Debug)]
pub struct Gpu {
    grant: Shared<GrantSlot>,
    meter: Shared<MeterSlot>,
    /// The controller's index, or [`UNMANAGED`].
    index: AtomicU32,
    bell: Place,
    /// Estimated GPU time launched and not seen complete, ns.
    queued_ns: AtomicU64,
    /// How many times over the streams' times cover the GPU's, in thousandths.
    overlap_permille: AtomicU64,
    /// Counts completions: threads that wait for their window sleep on it.
    freed: AtomicU32,
    /// Threads that do.
    window_waiters: AtomicU32,
    /// The count of completions at which waiting for another was given up.
    stuck_at: AtomicU32,
    /// Epoch of the lease that a thread was last seen to go on with.
    entered: AtomicU32,
    /// When it did, if it had waited and nothing ran since; else 0.
    entered_ns: AtomicU64,
    /// What was taken of leases of one launch.
    pub only_launch: OnlyLaunch,
    /// Every launch is to be measured for a while.
    is_fine: AtomicBool,
    /// What launches of which no segment tells used and were not charged for yet, ns.
    late_ns: AtomicU64,
    /// What launches take here.
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
    /// Takes up what a session says about this GPU.
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

    /// Another session's grant is about to come: what was taken of this one's leases says nothing of that one's.
    pub fn forget_only_launch(&self) {
        self.only_launch.forget();
    }

    /// Sets whose word launches go by.
    pub fn set_grant(&self, grant: &'static GrantSlot) {
        self.grant.set(Some(grant));
    }

    /// Forgets the session: in a forked child, or when the controller no longer manages this GPU.
    pub fn disconnect(&self) {
        self.grant.set(None);
        self.meter.set(None);
        self.bell.swap(None);
        self.index.store(u32::from(UNMANAGED), Ordering::Relaxed);
    }

    /// The controller's index, if it manages this GPU.
    pub fn index(&self) -> Option<usize> {
        let index = self.index.load(Ordering::Relaxed);
        (index != u32::from(UNMANAGED)).then_some(index as usize)
    }

    /// The grant, if the controller manages this GPU.
    #[inline(always)]
    pub fn grant(&self) -> Option<&'static GrantSlot> {
        self.grant.get()
    }

    /// GPU time that may be queued while the gate is open, ns.
    pub fn run_ahead_ns(&self) -> u64 {
        self.grant().and_then(GrantSlot::run_ahead_ns).unwrap_or(RUN_AHEAD_NS)
    }

    /// The meter, if the controller manages this GPU.
    pub fn meter(&self) -> Option<&'static MeterSlot> {
        self.meter.get()
    }

    /// Whether the time of copies is charged.
    pub fn charges_copies(&self) -> bool {
        self.grant().is_some_and(GrantSlot::charge_copies)
    }

    /// Whether launches pass without looking at terms.
    #[inline(always)]
    pub fn is_open(&self) -> bool {
        self.grant().is_none_or(|grant| Gate::is_open(grant.gate_word()))
    }

    /// Whether the tenant is kept off the GPU: paused, or suspended with its memory on the host.
    #[inline]
    pub fn is_paused(&self) -> bool {
        self.grant().is_some_and(|grant| grant.gate().state == GateState::Paused)
    }

    /// Tells the controller that something changed that it waits for.
    pub fn ring(&self) {
        // Without a daemon the bell is the meter thread's, which can be woken without it; else the controller looks by itself now and then.
        if self.index().is_some()
            && !self.bell.get().is_some_and(OwnDescriptor::ring)
            && let Some(process) = process::current()
        {
            process.rouse_meter();
        }
    }

    /// Whether the process may launch, as far as the gate goes: it is open, or there is a lease.
    pub fn may_launch(&self) -> bool {
        self.grant().is_none_or(|grant| matches!(grant.gate().state, GateState::Open | GateState::Leased))
    }

    /// A thread is about to look at the gate: until the result is dropped it counts as something in flight.
    pub fn start_launching(&self) -> Option<Launching<'static>> {
        self.meter().map(MeterSlot::start_launching)
    }

    /// Something was launched that is not in the meter thread's view yet.
    pub fn set_in_flight(&self) {
        if let Some(meter) = self.meter() {
            meter.set_in_flight();
        }
    }

    /// Estimated GPU time in flight, ns.
    pub fn queued_ns(&self) -> u64 {
        self.share_ns(self.queued_ns.load(Ordering::Relaxed))
    }

    /// What `ns` of a stream's time take of the GPU's, while as many streams overlap as of late.
    pub fn share_ns(&self, ns: u64) -> u64 {
        let overlap_permille = self.overlap_permille.load(Ordering::Relaxed);
        if ns == 0 || overlap_permille <= NO_OVERLAP_PERMILLE {
            return ns;
        }
        match ns.checked_mul(NO_OVERLAP_PERMILLE) {
            Some(thousands) => thousands / overlap_permille,
            // Months: whole overlaps are near enough.
            None => ns / (overlap_permille / NO_OVERLAP_PERMILLE),
        }
    }

    /// The meter thread has seen that streams' times overlap so many times.
    pub fn set_overlap_permille(&self, permille: u64) {
        self.overlap_permille.store(permille, Ordering::Relaxed);
    }

    /// Whether every launch is to be measured now.
    pub fn is_fine(&self) -> bool {
        self.is_fine.load(Ordering::Relaxed)
    }

    /// See [`Self::is_fine`].
    pub fn set_fine(&self, is_fine: bool) {
        self.is_fine.store(is_fine, Ordering::Relaxed);
    }

    /// A thread goes on under a lease, at `waited_until_ns` if it had waited: notes that, if it is the first.
    pub fn enter(&self, waited_until_ns: Option<u64>) {
        let epoch = self.grant().map_or(0, |grant| grant.gate().epoch);
        if self.entered.load(Ordering::Relaxed) != epoch {
            self.entered.store(epoch, Ordering::Relaxed);
            self.entered_ns.store(waited_until_ns.unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// Something ran on the GPU from `start_ns` on: when the first work under the present lease began, if this is it and it waited for that. The meter thread's.
    pub fn begins(&self, start_ns: u64) -> Option<u64> {
        let entered_ns = self.entered_ns.load(Ordering::Relaxed);
        let is_first = entered_ns != 0 && start_ns >= entered_ns;
        let taken = || self.entered_ns.compare_exchange(entered_ns, 0, Ordering::Relaxed, Ordering::Relaxed);
        (is_first && taken().is_ok()).then_some(start_ns)
    }

    /// Adds to the time in flight.
    pub fn queue(&self, estimate_ns: u64) {
        if estimate_ns != 0 {
            self.queued_ns.fetch_add(estimate_ns, Ordering::Relaxed);
        }
    }

    /// Takes completed work from the time in flight and wakes whoever waits for room.
    pub fn unqueue(&self, estimate_ns: u64) {
        let _ = self.queued_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |queued_ns| {
            Some(queued_ns.saturating_sub(estimate_ns))
        });
        self.freed.fetch_add(1, Ordering::SeqCst);
        if self.window_waiters.load(Ordering::SeqCst) != 0 {
            os::futex_wake_private(&self.freed);
        }
    }

    /// Nothing is in flight: whatever estimates were lost on the way count no longer.
    pub fn empty_queue(&self) {
        self.queued_ns.store(0, Ordering::Relaxed);
    }

    /// Completions so far, modulo 2³².
    pub fn completions(&self) -> u32 {
        self.freed.load(Ordering::SeqCst)
    }

    /// Nothing has completed for long: until something does, nobody is to wait for it again.
    pub fn give_up_at(&self, completions: u32) {
        self.stuck_at.store(completions, Ordering::Relaxed);
    }

    /// Whether waiting was given up and nothing has completed since.
    pub fn is_stuck(&self) -> bool {
        self.stuck_at.load(Ordering::Relaxed) == self.completions()
    }

    /// Sleeps until something completes, at most `timeout_ns`, unless `is_full` no longer holds.
    pub fn await_freed(&self, timeout_ns: u64, is_full: impl Fn() -> bool) {
        self.window_waiters.fetch_add(1, Ordering::SeqCst);
        let seen = self.freed.load(Ordering::SeqCst);
        if is_full() {
            os::futex_wait_private(&self.freed, seen, timeout_ns);
        }
        self.window_waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// Launches that no segment tells of used about so much, ns.
    pub fn add_late(&self, took_ns: u64) {
        self.late_ns.fetch_add(took_ns, Ordering::Relaxed);
    }

    /// The meter thread's: what was added since the last time, ns. It is to be charged.
    pub fn take_late_ns(&self) -> u64 {
        self.late_ns.swap(0, Ordering::Relaxed)
    }

    /// Counts launches, and events that were recorded for them.
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
