//! The gate: whether a launch may go, and how a thread waits until it may.
//!
//! While the gate is open a launch looks at one word. Otherwise it needs a lease that has not expired and room in the lease's window. Every
//! wait is bounded: by the controller's heartbeat, by the connection, and for the tenant's own window by a time of its own.
//! A thread never waits here while it holds a lock of ours.

use std::hint;
use std::sync::atomic::Ordering;

use deepres_abi::grant::{FailMode, Gate, GateState, GrantSlot, LeaseTerms};

use crate::meter::gpu::{Gpu, Launching};
use crate::os;
use crate::session::Session;

/// A launch waits for room in its own window as long as something completes now and then. Without a completion for so long it goes as
/// debt: what is at the head of the queue may wait for what comes after.
pub const STUCK_NS: u64 = 1_000_000_000;
/// How long a waiter sleeps before it looks at the heartbeat again, ns.
const CLOSED_NAP_NS: u64 = 10_000_000;
/// The same for an expired lease, which may be renewed without a change of the gate word, ns.
const EXPIRED_NAP_NS: u64 = 1_000_000;
/// The same for a full window, ns.
const WINDOW_NAP_NS: u64 = 1_000_000;

/// Why a launch has to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Another tenant has the GPU.
    Closed,
    /// An operator paused the tenant.
    Paused,
    /// The lease is over.
    Expired,
    /// Enough is in flight.
    Window,
    /// The terms are just being changed.
    Changing,
}

/// What a launch does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nobody else wants the GPU.
    Open,
    /// The lease covers it.
    Leased,
    /// Not now.
    Wait(Reason),
}

/// What holds for a launch that is thought to take `estimate_ns` while `queued_ns` are in flight.
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
            // One launch may always go, however long it is.
            Some(terms) if queued_ns != 0 && queued_ns.saturating_add(estimate_ns) > terms.window_ns => {
                Verdict::Wait(Reason::Window)
            }
            Some(_) => Verdict::Leased,
        },
    }
}

/// A launch that passed.
#[derive(Debug)]
pub struct Passed<'a> {
    /// Its estimate, if it passed under a lease: it was added to the time in flight.
    pub counted_ns: Option<u64>,
    /// To be dropped once its segment is open.
    pub launching: Launching<'a>,
}

/// Takes a launch through the gate, waiting if it must. `flush` is run before the first wait: whatever segment the thread has open
/// ends there. `None`: the controller is gone, and the session is to fail closed.
pub fn pass<'a>(
    gpu: &'a Gpu,
    session: &Session,
    estimate_ns: u64,
    flush: impl FnOnce(),
) -> Option<Passed<'a>> {
    let Some(grant) = gpu.grant() else {
        return Some(Passed { counted_ns: None, launching: gpu.start_launching() });
    };
    let look = || {
        let gate = grant.gate();
        let terms = if gate.state == GateState::Leased { grant.terms() } else { None };
        judge(gate, terms, os::now_ns(), gpu.queued_ns(), gpu.share_ns(estimate_ns))
    };
    // Before the look: a lease that is seen is not given back before the launch.
    let launching = gpu.start_launching();
    let (verdict, launching) = match look() {
        Verdict::Wait(_) => {
            drop(launching);
            flush();
            wait(gpu, grant, session, look)?
        }
        verdict => (verdict, launching),
    };
    let counted_ns = (verdict == Verdict::Leased).then_some(estimate_ns);
    gpu.queue(counted_ns.unwrap_or(0));
    Some(Passed { counted_ns, launching })
}

/// Waits until `look` says go, or the controller is gone.
fn wait<'a>(
    gpu: &'a Gpu,
    grant: &GrantSlot,
    session: &Session,
    look: impl Fn() -> Verdict,
) -> Option<(Verdict, Launching<'a>)> {
    let began_ns = os::now_ns();
    let fails_open = || session.fail_mode() == FailMode::Open;
    let Some(meter) = gpu.meter().filter(|_| !session.is_controller_gone(gpu, began_ns)) else {
        return fails_open().then(|| (Verdict::Open, gpu.start_launching()));
    };
    meter.enter_wait();
    // It counts as launching before it counts itself out of the waiters: the meter thread must not take what it set in flight for complete.
    let passed = wait_counted(gpu, grant, session, look, began_ns)
        .ok()
        .or_else(|| fails_open().then(|| (Verdict::Open, gpu.start_launching())));
    if passed.is_some() {
        meter.leave_wait_to_launch();
    } else {
        meter.leave_wait();
    }
    meter.wait_ns.fetch_add(os::now_ns().saturating_sub(began_ns), Ordering::Relaxed);
    meter.waits.fetch_add(1, Ordering::Relaxed);
    passed
}

/// Nobody will open the gate any more.
#[derive(Debug)]
struct ControllerGone;

fn wait_counted<'a>(
    gpu: &'a Gpu,
    grant: &GrantSlot,
    session: &Session,
    look: impl Fn() -> Verdict,
    began_ns: u64,
) -> Result<(Verdict, Launching<'a>), ControllerGone> {
    let terms = grant.terms().unwrap_or_default();
    let spin_until_ns = began_ns.saturating_add(terms.spin_ns);
    let mut rung_for = None;
    let mut full_since = None;
    loop {
        let word = grant.gate_word();
        let launching = gpu.start_launching();
        let reason = match look() {
            Verdict::Wait(reason) => reason,
            verdict => return Ok((verdict, launching)),
        };
        drop(launching);
        let now_ns = os::now_ns();
        if session.is_controller_gone(gpu, now_ns) {
            return Err(ControllerGone);
        }
        if matches!(reason, Reason::Closed | Reason::Expired) && rung_for != Some((word, reason)) {
            rung_for = Some((word, reason));
            gpu.ring();
        }
        if reason == Reason::Window {
            let completions = gpu.completions();
            let (seen, since_ns) = *full_since.get_or_insert((completions, now_ns));
            if seen != completions {
                full_since = Some((completions, now_ns));
            } else if gpu.is_stuck() || now_ns.saturating_sub(since_ns) > STUCK_NS {
                gpu.give_up_at(completions);
                return Ok((Verdict::Leased, gpu.start_launching()));
            }
        }
        if reason == Reason::Changing || now_ns < spin_until_ns {
            hint::spin_loop();
            continue;
        }
        match reason {
            Reason::Window => {
                gpu.await_freed(WINDOW_NAP_NS, || look() == Verdict::Wait(Reason::Window));
            }
            Reason::Expired => os::futex_wait_shared(grant.futex(), word, EXPIRED_NAP_NS),
            _ => os::futex_wait_shared(grant.futex(), word, CLOSED_NAP_NS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
