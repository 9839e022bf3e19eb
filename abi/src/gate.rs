//! The gate as a thread sees it before a launch: whether the launch may go, and how the thread
//! waits until the launch may go.
//!
//! Two rules make a hand-off safe. In both rules, the thread and the daemon each make a store, a
//! fence and a load:
//!
//! | thread | daemon |
//! |---|---|
//! | says that it is launching ([`MeterSlot::start_launching`]), then reads the gate | closes the gate ([`GrantSlot::set_gate`]), then reads the meter |
//! | says that nothing is in flight ([`MeterSlot::settle`]), then checks whether to ring | sets the gate, then reads the meter |
//!
//! A third pair saves system calls: the thread says that it waits ([`MeterSlot::enter_wait`]), then
//! reads the gate. The daemon sets the gate, and then wakes the session only if a thread of it waits
//! ([`MeterSlot::has_waiters`]).
//!
//! By the first rule, a daemon that closes the gate sees each thread that passed the gate as in
//! flight. By the second rule, the daemon misses no thread that finishes after the gate closed.
//! Either the daemon sees the thread as finished, or the thread rings the bell.
//!
//! The daemon's heartbeat and the connection to the daemon bound every wait. A wait for room in the
//! tenant's own window has a time limit of its own.

use crate::grant::{Gate, GateState, GrantSlot, LeaseTerms, ONE_LAUNCH};
use crate::meter::{Launching, MeterSlot};
use crate::sync::{AtomicU32, Ordering, spin_hint};

/// The time for which a waiting thread sleeps before it checks the heartbeat again, ns.
pub const CLOSED_NAP_NS: u64 = 10_000_000;
/// The time for which a waiting thread sleeps before it reads an expired lease again, ns. The
/// daemon may renew such a lease without a change of the gate word.
pub const EXPIRED_NAP_NS: u64 = 1_000_000;

/// The reason why a launch must wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The gate is closed, because another tenant has the GPU.
    Closed,
    /// An administrator paused the tenant, or the daemon suspended the tenant.
    Paused,
    /// The end of the lease has come.
    Expired,
    /// With this launch, more GPU time would be in flight than the window of the lease allows.
    Window,
    /// The daemon is changing the terms of the lease at this moment.
    Changing,
}

/// The gate's decision about a launch: it may go, or it must wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The launch may go, because no other tenant wants the GPU.
    Open,
    /// The launch may go, because the lease covers it.
    Leased,
    /// The lease of this epoch allows one launch only. The launch may go if [`OnlyLaunch::take`]
    /// returns true.
    Once(u32),
    /// The launch must wait, for this reason.
    Wait(Reason),
}

/// Returns the decision about a launch that will take `estimate_ns` of GPU time. `queued_ns` is the
/// GPU time in flight. `terms` are the terms of the lease that the caller read; `None` if the
/// caller could not read all the terms.
pub fn judge(
    gate: Gate,
    terms: Option<LeaseTerms>,
    now_ns: u64,
    queued_ns: u64,
    estimate_ns: u64,
) -> Verdict {
    match gate.state {
        GateState::Open => Verdict::Open,
        GateState::Closed => Verdict::Wait(Reason::Closed),
        GateState::Paused => Verdict::Wait(Reason::Paused),
        GateState::Leased => match terms {
            Some(terms) if terms.epoch != gate.epoch => Verdict::Wait(Reason::Changing),
            None => Verdict::Wait(Reason::Changing),
            Some(terms) if now_ns >= terms.expires_ns => Verdict::Wait(Reason::Expired),
            Some(terms) if terms.window_ns == ONE_LAUNCH => Verdict::Once(terms.epoch),
            // If nothing is in flight, a launch of any length may go.
            Some(terms) if queued_ns != 0 && queued_ns.saturating_add(estimate_ns) > terms.window_ns => {
                Verdict::Wait(Reason::Window)
            }
            Some(_) => Verdict::Leased,
        },
    }
}

/// The last lease of one launch ([`ONE_LAUNCH`]) that the process used.
#[derive(Debug)]
pub struct OnlyLaunch(AtomicU32);

/// The value that stands for no used lease. No lease has this epoch, because epochs have only 30
/// bits.
const NO_EPOCH: u32 = u32::MAX;

impl Default for OnlyLaunch {
    fn default() -> Self {
        Self(AtomicU32::new(NO_EPOCH))
    }
}

impl OnlyLaunch {
    /// Takes the only launch of the lease of `epoch` on `slot`. Returns false if a thread took this
    /// launch, or the launch of a later lease, or if the lease is over.
    pub fn take(&self, slot: &GrantSlot, epoch: u32) -> bool {
        let is_later = |used: u32| used == NO_EPOCH || Gate::is_later(epoch, used);
        let mut used = self.0.load(Ordering::Relaxed);
        while is_later(used) {
            match self.0.compare_exchange_weak(used, epoch, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) if slot.gate().epoch == epoch => return true,
                // This thread read the gate long ago, perhaps the gate of an earlier session. If
                // the epoch of the earlier session stayed here, the process could not use leases of
                // the present session.
                Ok(_) => {
                    let _ = self.0.compare_exchange(epoch, NO_EPOCH, Ordering::Relaxed, Ordering::Relaxed);
                    return false;
                }
                Err(now) => used = now,
            }
        }
        false
    }

    /// Forgets the used lease, because the grant of another session is about to replace the present
    /// grant.
    pub fn forget(&self) {
        self.0.store(NO_EPOCH, Ordering::Relaxed);
    }

    /// Forgets a lease that a thread used under the former grant after [`Self::forget`]. If a
    /// thread used the lease that `slot` has now, the method keeps the record.
    pub fn reset(&self, slot: &GrantSlot) {
        let used = self.0.load(Ordering::Relaxed);
        if used != slot.gate().epoch {
            // If this exchange fails, another thread has meanwhile used a lease of this session.
            let _ = self.0.compare_exchange(used, NO_EPOCH, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// The process as a thread at the gate sees it.
pub trait Process {
    /// Returns the time of `CLOCK_MONOTONIC`, ns.
    fn now_ns(&self) -> u64;
    /// Returns the estimated GPU time in flight, ns.
    fn queued_ns(&self) -> u64;
    /// Returns whether the daemon is gone, so that no daemon will open the gate.
    fn is_controller_gone(&self, now_ns: u64) -> bool;
    /// Returns the process's record of the last lease of one launch that it used.
    fn only_launch(&self) -> &OnlyLaunch;
    /// Rings the bell, because the daemon waits for a change that happened just now.
    fn ring(&self);
    /// Sleeps on the slot's futex for at most `limit_ns`, while the gate word is `word`.
    fn sleep(&self, slot: &GrantSlot, word: u32, limit_ns: u64);
    /// Returns whether the thread must leave the gate at once, because a signal handler of the job
    /// has work for it. The launch then goes without a lease.
    fn is_called_away(&self, _now_ns: u64) -> bool {
        false
    }
    /// Sleeps until some work completes, but only for a short time. The caller calls this method
    /// while the window is full; `is_full` returns whether the window is still full. Returns true
    /// if nothing completed for so long that the launch may go as debt.
    fn is_stuck(&mut self, now_ns: u64, is_full: impl Fn(&Self) -> bool) -> bool;
}

/// The error of a wait: the daemon is gone, so no daemon will open the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControllerGone;

/// Reads the gate once, and returns the decision about a launch. A thread that acts on the decision
/// must call [`MeterSlot::start_launching`] before this function.
fn look(slot: &GrantSlot, process: &impl Process, estimate_ns: u64) -> Verdict {
    let gate = slot.gate();
    match gate.state {
        GateState::Leased => judge(gate, slot.terms(), process.now_ns(), process.queued_ns(), estimate_ns),
        _ => judge(gate, None, 0, 0, estimate_ns),
    }
}

/// Decides about a launch without a wait. If the launch may go, returns the decision and a value
/// that counts the launch as in flight until its drop. The caller drops the value after it has
/// counted the work in another way ([`MeterSlot::set_in_flight`]).
///
/// # Errors
/// The verdict, if the launch must wait.
pub fn pass<'m>(
    slot: &GrantSlot,
    meter: &'m MeterSlot,
    process: &impl Process,
    estimate_ns: u64,
) -> Result<(Verdict, Launching<'m>), Verdict> {
    // If the thread must wait, the function returns before the meter shows a launch. Otherwise the
    // launch in the meter would delay the hand-off for which the thread waits.
    if let wait @ Verdict::Wait(Reason::Closed | Reason::Paused) = judge(slot.gate(), None, 0, 0, 0) {
        return Err(wait);
    }
    pass_beside(slot, meter, process, estimate_ns, false)
}

/// Decides about a launch as [`pass`] does, but without the first look at the gate. With `as_debt`,
/// the launch may go although the window is full, but every other reason to wait still holds.
fn pass_beside<'m>(
    slot: &GrantSlot,
    meter: &'m MeterSlot,
    process: &impl Process,
    estimate_ns: u64,
    as_debt: bool,
) -> Result<(Verdict, Launching<'m>), Verdict> {
    // The meter shows the launch before the thread reads the gate. So a daemon that closes the gate
    // after this read sees the launch.
    let launching = meter.start_launching();
    match look(slot, process, estimate_ns) {
        Verdict::Wait(Reason::Window) if as_debt => Ok((Verdict::Leased, launching)),
        wait @ Verdict::Wait(_) => Err(wait),
        Verdict::Once(epoch) if process.only_launch().take(slot, epoch) => Ok((Verdict::Leased, launching)),
        Verdict::Once(_) => Err(Verdict::Wait(Reason::Expired)),
        go => Ok((go, launching)),
    }
}

/// Waits until a launch may go. Returns the decision, and a value that counts the launch as in
/// flight until its drop.
///
/// # Errors
/// [`ControllerGone`] if the daemon is gone. The caller then follows the session's fail mode.
pub fn wait<'m>(
    slot: &GrantSlot,
    meter: &'m MeterSlot,
    process: &mut impl Process,
    estimate_ns: u64,
) -> Result<(Verdict, Launching<'m>), ControllerGone> {
    let began_ns = process.now_ns();
    if process.is_controller_gone(began_ns) {
        return Err(ControllerGone);
    }
    meter.enter_wait();
    // The meter shows the launch before it stops showing the wait. So the session always shows that
    // it wants the GPU.
    let passed = wait_counted(slot, meter, process, estimate_ns, began_ns);
    meter.leave_wait();
    passed
}

fn wait_counted<'m>(
    slot: &GrantSlot,
    meter: &'m MeterSlot,
    process: &mut impl Process,
    estimate_ns: u64,
    began_ns: u64,
) -> Result<(Verdict, Launching<'m>), ControllerGone> {
    let spin_ns = slot.terms().unwrap_or_default().spin_ns;
    let spin_until_ns = began_ns.saturating_add(spin_ns);
    let mut rung_for = None;
    loop {
        // The thread reads the word before it looks. So if the gate changes after the look, the
        // sleep ends.
        let word = slot.gate_word();
        let reason = match pass(slot, meter, process, estimate_ns) {
            Ok(passed) => return Ok(passed),
            Err(Verdict::Wait(reason)) => reason,
            // The code does not reach this arm, because `pass` returns an error only for a wait.
            Err(_) => Reason::Changing,
        };
        let now_ns = process.now_ns();
        if process.is_controller_gone(now_ns) {
            return Err(ControllerGone);
        }
        if process.is_called_away(now_ns) {
            return Ok((Verdict::Open, meter.start_launching()));
        }
        if matches!(reason, Reason::Closed | Reason::Expired) && rung_for != Some((word, reason)) {
            rung_for = Some((word, reason));
            process.ring();
        }
        if reason == Reason::Changing || now_ns < spin_until_ns {
            spin_hint();
            continue;
        }
        match reason {
            Reason::Window => {
                let is_full = |process: &_| look(slot, process, estimate_ns) == Verdict::Wait(Reason::Window);
                // The gate may have closed since the last look, so `pass_beside` reads the gate
                // again.
                if process.is_stuck(now_ns, is_full)
                    && let Ok(passed) = pass_beside(slot, meter, process, estimate_ns, true)
                {
                    return Ok(passed);
                }
            }
            Reason::Expired => process.sleep(slot, word, EXPIRED_NAP_NS),
            _ => process.sleep(slot, word, CLOSED_NAP_NS),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::cell::Cell;

    const TERMS: LeaseTerms = LeaseTerms { epoch: 7, expires_ns: 1_000, window_ns: 100, spin_ns: 0 };

    fn leased() -> Gate {
        Gate { epoch: 7, state: GateState::Leased }
    }

    #[test]
    fn a_lease_covers_launches_until_it_expires_or_its_window_is_full() {
        let judge =
            |now_ns, queued_ns, estimate_ns| judge(leased(), Some(TERMS), now_ns, queued_ns, estimate_ns);
        assert_eq!(judge(999, 0, 10), Verdict::Leased);
        assert_eq!(judge(1_000, 0, 10), Verdict::Wait(Reason::Expired));
        assert_eq!(judge(0, 90, 10), Verdict::Leased);
        assert_eq!(judge(0, 91, 10), Verdict::Wait(Reason::Window));
        assert_eq!(
            judge(0, 0, 5_000),
            Verdict::Leased,
            "a launch longer than the window goes when nothing is in flight"
        );
        assert_eq!(judge(0, u64::MAX, u64::MAX), Verdict::Wait(Reason::Window));
    }

    #[test]
    fn a_lease_of_one_launch_covers_it_whatever_is_in_flight() {
        let one = LeaseTerms { window_ns: ONE_LAUNCH, ..TERMS };
        assert_eq!(judge(leased(), Some(one), 0, 90, 10), Verdict::Once(7));
        assert_eq!(judge(leased(), Some(one), 1_000, 0, 10), Verdict::Wait(Reason::Expired));
    }

    /// A process for tests of leases of one launch. All other values of the process are zero.
    #[derive(Default)]
    struct Once(OnlyLaunch);

    impl Process for Once {
        fn now_ns(&self) -> u64 {
            0
        }
        fn queued_ns(&self) -> u64 {
            0
        }
        fn is_controller_gone(&self, _: u64) -> bool {
            false
        }
        fn only_launch(&self) -> &OnlyLaunch {
            &self.0
        }
        fn ring(&self) {}
        fn sleep(&self, _: &GrantSlot, _: u32, _: u64) {}
        fn is_stuck(&mut self, _: u64, _: impl Fn(&Self) -> bool) -> bool {
            false
        }
    }

    /// A process whose window stays full. While `is_stuck` checks the window, the gate changes to
    /// `then`. Once the process sleeps, the daemon is gone.
    struct Full<'s> {
        slot: &'s GrantSlot,
        then: GateState,
        only_launch: OnlyLaunch,
        is_asleep: Cell<bool>,
    }

    impl Process for Full<'_> {
        fn now_ns(&self) -> u64 {
            0
        }
        fn queued_ns(&self) -> u64 {
            u64::MAX
        }
        fn is_controller_gone(&self, _: u64) -> bool {
            self.is_asleep.get()
        }
        fn only_launch(&self) -> &OnlyLaunch {
            &self.only_launch
        }
        fn ring(&self) {}
        fn sleep(&self, _: &GrantSlot, _: u32, _: u64) {
            self.is_asleep.set(true);
        }
        fn is_stuck(&mut self, _: u64, is_full: impl Fn(&Self) -> bool) -> bool {
            assert!(is_full(self));
            self.slot.set_gate(self.then, TERMS);
            true
        }
    }

    #[test]
    fn a_launch_beyond_the_window_does_not_pass_a_gate_that_closed_meanwhile() {
        let passes = |then| {
            let (slot, meter) = (GrantSlot::default(), MeterSlot::default());
            slot.set_gate(GateState::Leased, TERMS);
            let (only_launch, is_asleep) = (OnlyLaunch::default(), Cell::new(false));
            let mut process = Full { slot: &slot, then, only_launch, is_asleep };
            let passed = wait(&slot, &meter, &mut process, 5).map(|(verdict, _)| verdict);
            assert!(!meter.is_launching());
            passed
        };
        assert_eq!(passes(GateState::Leased), Ok(Verdict::Leased));
        assert_eq!(passes(GateState::Open), Ok(Verdict::Open));
        assert_eq!(passes(GateState::Closed), Err(ControllerGone));
        assert_eq!(passes(GateState::Paused), Err(ControllerGone));
    }

    #[test]
    fn an_epoch_of_one_launch_lets_one_through_and_the_next_epoch_another() {
        let (slot, meter, process) = (GrantSlot::default(), MeterSlot::default(), Once::default());
        let go = || pass(&slot, &meter, &process, 5).map(|(verdict, _)| verdict);
        for _ in 0..2 {
            slot.set_gate(GateState::Leased, LeaseTerms { window_ns: ONE_LAUNCH, ..TERMS });
            assert_eq!(go(), Ok(Verdict::Leased));
            assert_eq!(go(), Err(Verdict::Wait(Reason::Expired)));
        }
        slot.set_gate(GateState::Leased, TERMS);
        assert_eq!((go(), go()), (Ok(Verdict::Leased), Ok(Verdict::Leased)));
    }

    #[test]
    fn a_thread_that_read_the_gate_long_ago_takes_no_later_launch_and_blocks_nobody() {
        let (slot, only) = (GrantSlot::default(), OnlyLaunch::default());
        slot.set_gate(GateState::Leased, LeaseTerms { window_ns: ONE_LAUNCH, ..TERMS });
        let epoch = slot.gate().epoch;
        assert!(!only.take(&slot, epoch + 500), "of a session that is over");
        assert!(only.take(&slot, epoch));
        assert!(!only.take(&slot, epoch - 1) && !only.take(&slot, epoch));
        only.reset(&slot);
        assert!(!only.take(&slot, epoch), "it was this lease's");
        let next = GrantSlot::default();
        only.reset(&next);
        next.set_gate(GateState::Leased, LeaseTerms { window_ns: ONE_LAUNCH, ..TERMS });
        assert!(only.take(&next, next.gate().epoch));
    }

    #[test]
    fn terms_of_another_lease_or_half_written_ones_do_not_count() {
        let other = LeaseTerms { epoch: 6, ..TERMS };
        assert_eq!(judge(leased(), Some(other), 0, 0, 0), Verdict::Wait(Reason::Changing));
        assert_eq!(judge(leased(), None, 0, 0, 0), Verdict::Wait(Reason::Changing));
    }

    #[test]
    fn the_other_states_need_no_terms() {
        let at = |state| judge(Gate { epoch: 1, state }, None, 0, 0, 0);
        assert_eq!(at(GateState::Open), Verdict::Open);
        assert_eq!(at(GateState::Closed), Verdict::Wait(Reason::Closed));
        assert_eq!(at(GateState::Paused), Verdict::Wait(Reason::Paused));
    }
}
