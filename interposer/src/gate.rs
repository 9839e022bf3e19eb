//! The gate, as this process meets it: [`deepres_abi::gate`] with our clock, our bell and our window.
//!
//! While the gate is open a launch looks at one word. Otherwise it needs a lease that has not expired and room in the lease's window.
//! A thread never waits here while it holds a lock of ours.

use crate::meter::gpu::Gpu;
use crate::os;
use crate::session::Session;
use deepres_abi::gate::{self, ControllerGone, OnlyLaunch, Process, Verdict};
use deepres_abi::grant::{FailMode, GrantSlot};
use deepres_abi::meter::{Launching, MeterSlot};

/// A launch waits for room in its own window as long as something completes now and then. Without a completion for so long it goes as
/// debt: what is at the head of the queue may wait for what comes after.
pub const STUCK_NS: u64 = 1_000_000_000;
/// How long a waiter for a full window sleeps before it looks at the heartbeat again, ns.
const WINDOW_NAP_NS: u64 = 1_000_000;

/// A launch that passed.
#[derive(Debug)]
pub struct Passed {
    /// Its estimate, if it passed under a lease: it was added to the time in flight.
    pub counted_ns: Option<u64>,
    /// To be dropped once its segment is open. None where no meter is kept.
    pub launching: Option<Launching<'static>>,
}

/// Takes a launch through the gate if it is open.
pub fn pass_open(gpu: &Gpu) -> Option<Passed> {
    if !gpu.is_open() {
        return None;
    }
    // Before the look: a controller that closes the gate after it sees that something comes.
    let launching = gpu.start_launching();
    gpu.is_open().then_some(Passed { counted_ns: None, launching })
}

/// Takes a launch through the gate, waiting if it must. `flush` is run before the first wait: whatever segment the thread has open
/// ends there. `awaits_host`: what is queued before it may wait for what the thread does after it, so it does not wait for room. `None`: the controller is gone, and the session is to fail closed.
pub fn pass(
    gpu: &Gpu,
    session: &Session,
    estimate_ns: u64,
    awaits_host: bool,
    flush: impl FnOnce(),
) -> Option<Passed> {
    let Some((grant, meter)) = gpu.grant().zip(gpu.meter()) else {
        return Some(Passed { counted_ns: None, launching: None });
    };
    let around = Around { gpu, session, awaits_host, only_launch: &gpu.only_launch, full_since: None };
    let (verdict, launching) = match wait(grant, meter, around, gpu.share_ns(estimate_ns), flush) {
        Ok(passed) => passed,
        Err(ControllerGone) if session.fail_mode() == FailMode::Open => {
            (Verdict::Open, meter.start_launching())
        }
        Err(ControllerGone) => return None,
    };
    let counted_ns = (verdict == Verdict::Leased).then_some(estimate_ns);
    gpu.queue(counted_ns.unwrap_or(0));
    Some(Passed { counted_ns, launching: Some(launching) })
}

/// Waits as [`pass`] does, and takes nothing.
pub fn await_turn(gpu: &Gpu, session: &Session, awaits_host: bool, flush: impl FnOnce()) {
    let Some((grant, meter)) = gpu.grant().zip(gpu.meter()) else { return };
    // A lease of one launch is left to the launch.
    let only_launch = OnlyLaunch::default();
    let around = Around { gpu, session, awaits_host, only_launch: &only_launch, full_since: None };
    drop(wait(grant, meter, around, 0, flush));
}

fn wait<'m>(
    grant: &GrantSlot,
    meter: &'m MeterSlot,
    mut around: Around<'_>,
    share_ns: u64,
    flush: impl FnOnce(),
) -> Result<(Verdict, Launching<'m>), ControllerGone> {
    gate::pass(grant, meter, &around, share_ns).inspect(|_| around.gpu.enter(None)).or_else(|_| {
        flush();
        let began_ns = os::now_ns();
        let passed = gate::wait(grant, meter, &mut around, share_ns);
        let ended_ns = os::now_ns();
        meter.count_wait(ended_ns.saturating_sub(began_ns));
        if passed.is_ok() {
            around.gpu.enter(Some(ended_ns));
        }
        passed
    })
}

/// What a waiting thread has around it.
struct Around<'a> {
    gpu: &'a Gpu,
    session: &'a Session,
    awaits_host: bool,
    only_launch: &'a OnlyLaunch,
    /// The completions when the window was first seen full, and when that was.
    full_since: Option<(u32, u64)>,
}

impl Process for Around<'_> {
    fn now_ns(&self) -> u64 {
        os::now_ns()
    }

    fn queued_ns(&self) -> u64 {
        self.gpu.queued_ns()
    }

    fn is_controller_gone(&self, now_ns: u64) -> bool {
        self.session.is_controller_gone(self.gpu, now_ns)
    }

    fn only_launch(&self) -> &OnlyLaunch {
        self.only_launch
    }

    fn ring(&self) {
        self.gpu.ring();
    }

    fn sleep(&self, slot: &GrantSlot, word: u32, limit_ns: u64) {
        os::futex_wait_shared(slot.futex(), word, limit_ns);
    }

    fn is_stuck(&mut self, now_ns: u64, is_full: impl Fn(&Self) -> bool) -> bool {
        if self.awaits_host {
            return true;
        }
        let completions = self.gpu.completions();
        let (seen, since_ns) = *self.full_since.get_or_insert((completions, now_ns));
        if seen != completions {
            self.full_since = Some((completions, now_ns));
        } else if self.gpu.is_stuck() || now_ns.saturating_sub(since_ns) > STUCK_NS {
            self.gpu.give_up_at(completions);
            return true;
        }
        self.gpu.await_freed(WINDOW_NAP_NS, || is_full(self));
        false
    }
}
