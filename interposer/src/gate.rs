//! The gate of this process: [`deepres_abi::gate`] with the process's clock, bell and window.
//!
//! A launch that begins a segment passes the gate. While the gate is open, such a launch reads one
//! word. Otherwise the launch needs a lease that has not expired, and room in the lease's window.
//! The launches that join the segment need no pass, as long as the pass's [`Headroom`] covers them.
//! A thread never waits here while it holds a lock of the interposer.

use std::cell::{Cell, RefCell};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::meter::gpu::Gpu;
use crate::meter::lane::Lane;
use crate::os::{self, HeldSignals};
use crate::process::Process;
use deepres_abi::gate::{self, ControllerGone, OnlyLaunch, Verdict};
use deepres_abi::grant::{FailMode, Gate, GateState, GrantSlot, ONE_LAUNCH};
use deepres_abi::meter::Launching;

/// The longest time without a completion for which a launch waits for room in its own window, ns.
/// After this time the launch goes, and the arbiter charges it later. The wait must end, because
/// the work at the head of the queue can wait for this very launch.
pub const STUCK_NS: u64 = 1_000_000_000;
/// The longest sleep of a thread that waits for room, ns. After the sleep, the thread checks the
/// heartbeat again.
const WINDOW_NAP_NS: u64 = 1_000_000;
/// The time for which a launch still waits after a signal handler of the job ran in its thread, ns.
/// After this time the launch goes, because the handler can have work for the thread that called
/// the launch. Python runs the job's handler only once the launch has returned.
const HANDLER_WAITS_NS: u64 = 500_000_000;
/// The most handlers within [`HANDLER_WAITS_NS`] that can call a thread away from the gate. More
/// handlers belong to a timer of the job, for example a profiler's.
const MOST_HANDLERS: u32 = 3;
/// The shortest time between two launches of a process that leave the gate because of a signal
/// handler, ns.
const CALLED_AWAY_NS: u64 = 1_000_000_000;

/// The time at which a launch of this process last left the gate because of a signal handler, ns; 0
/// if no launch did.
static CALLED_AWAY_AT_NS: AtomicU64 = AtomicU64::new(0);

/// The signal handlers that ran in a thread while it waits at the gate.
#[derive(Debug, Default)]
struct Handlers {
    count: Cell<u32>,
    first_ns: Cell<u64>,
}

impl Handlers {
    /// Notes that a handler ended the thread's sleep.
    fn note(&self, now_ns: u64) {
        if self.count.replace(self.count.get().saturating_add(1)) == 0 {
            self.first_ns.set(now_ns);
        }
    }

    /// Returns whether the thread must leave the gate, because a handler can have work for the
    /// thread. Returns true at most once in [`CALLED_AWAY_NS`] for all threads whose calls use
    /// `last_ns`.
    fn call_away(&self, now_ns: u64, last_ns: &AtomicU64) -> bool {
        if self.count.get() == 0 || now_ns.saturating_sub(self.first_ns.get()) < HANDLER_WAITS_NS {
            return false;
        }
        if self.count.replace(0) > MOST_HANDLERS {
            return false;
        }
        let last = last_ns.load(Ordering::Relaxed);
        (last == 0 || now_ns.saturating_sub(last) >= CALLED_AWAY_NS)
            && last_ns.compare_exchange(last, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// The least number of segments for which a window has room. The window gets room back when a whole
/// segment completes, and the GPU has the other segments to run until then.
const SEGMENTS_PER_WINDOW: u64 = 4;

/// The headroom of a launch that passed the gate: the bound on the launches that may follow without
/// asking the gate again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headroom {
    /// The gate word under which the launches may go. If the gate changes, the headroom ends.
    pub word: u32,
    /// The bound on the GPU time of all these launches together, by their estimates, ns.
    pub room_ns: u64,
}

impl Headroom {
    /// The headroom that lets no launch follow without asking the gate.
    pub const NONE: Self = Self { word: 0, room_ns: 0 };

    /// Returns the headroom of a launch that passed an open gate.
    pub const fn open(word: u32) -> Self {
        Self { word, room_ns: u64::MAX / 2 }
    }

    /// Returns the headroom of a launch that has just passed the gate under a lease. `queued_ns` is
    /// the GPU time in flight with that launch.
    fn leased(grant: &GrantSlot, queued_ns: u64) -> Self {
        let gate = grant.gate();
        match grant.terms() {
            Some(terms)
                if gate.state == GateState::Leased
                    && terms.epoch == gate.epoch
                    && terms.window_ns != ONE_LAUNCH =>
            {
                let room_ns = terms.window_ns.saturating_sub(queued_ns);
                Self { word: gate.word(), room_ns: room_ns.min(terms.window_ns / SEGMENTS_PER_WINDOW) }
            }
            _ => Self::NONE,
        }
    }
}

/// The permission that a launch gets at the gate: the launch may go to the driver now.
#[derive(Debug)]
pub struct Passed {
    /// The launch's estimate, ns, if the launch passed under a lease. The estimate is part of the
    /// GPU's queued time.
    pub counted_ns: Option<u64>,
    /// The bound on the launches that may follow this launch without asking the gate again.
    pub headroom: Headroom,
    /// Counts the thread as launching. The caller drops the value after the launch's segment is
    /// open. `None` if there is no meter.
    pub launching: Option<Launching<'static>>,
}

/// Takes a launch through the gate if the gate is open. Returns `None` if the gate is not open.
pub fn pass_open(gpu: &Gpu) -> Option<Passed> {
    if !gpu.is_open() {
        return None;
    }
    // The meter shows the launch before the second look. So an arbiter that closes the gate after
    // this look sees that a launch comes.
    let launching = gpu.start_launching();
    let word = gpu.gate_word();
    word.is_none_or(Gate::is_open).then(|| Passed {
        counted_ns: None,
        headroom: Headroom::open(word.unwrap_or_default()),
        launching,
    })
}

/// Takes a launch of `lane` through the gate, and waits if necessary. Returns `None` if the daemon
/// is gone and the session's fail mode is closed.
///
/// Before a wait, `flush` runs and ends the thread's open segments. If the lane is stuck, the
/// launch does not wait for room in the window. Work in the queue can then wait for a later step of
/// this thread.
pub fn pass(lane: &Lane, process: &Process, estimate_ns: u64, flush: impl FnMut()) -> Option<Passed> {
    let gpu = lane.gpu;
    let waited = wait(lane, process, &gpu.only_launch, gpu.share_ns(estimate_ns), flush);
    let Some((grant, passed)) = waited else {
        return Some(Passed { counted_ns: None, headroom: Headroom::NONE, launching: None });
    };
    let fails = || process.session().is_some_and(|session| session.fail_mode() == FailMode::Closed);
    let (verdict, launching) = match passed {
        Ok((verdict, launching)) => (verdict, Some(launching)),
        Err(ControllerGone) if fails() => return None,
        Err(ControllerGone) => (Verdict::Open, gpu.start_launching()),
    };
    let counted_ns = (verdict == Verdict::Leased).then_some(estimate_ns);
    gpu.queue(counted_ns.unwrap_or(0));
    let headroom = match counted_ns {
        Some(_) => Headroom::leased(grant, lane.in_flight_ns()),
        None => Headroom::NONE,
    };
    Some(Passed { counted_ns, headroom, launching })
}

/// Waits until the gate would let a launch of `lane` pass, but does not use up a lease of one
/// launch.
pub fn await_turn(lane: &Lane, process: &Process, flush: impl FnMut()) {
    // This thread must not use a lease of one launch, because the launch itself needs the lease.
    let only_launch = OnlyLaunch::default();
    drop(wait(lane, process, &only_launch, 0, flush));
}

/// The result of a wait at a gate: the verdict, and the mark of the thread.
type Waited = Result<(Verdict, Launching<'static>), ControllerGone>;

/// Waits at the gate of the lane's GPU. If another arbiter takes the GPU over, goes on at its gate.
/// Returns the grant of the last gate, and the result. Returns `None` if the GPU has no arbiter.
fn wait(
    lane: &Lane,
    process: &Process,
    only_launch: &OnlyLaunch,
    share_ns: u64,
    mut flush: impl FnMut(),
) -> Option<(&'static GrantSlot, Waited)> {
    let gpu = lane.gpu;
    loop {
        let (grant, meter) = gpu.grant().zip(gpu.meter())?;
        let mut around = Around::new(lane, process, grant, only_launch);
        let passed = gate::pass(grant, meter, &around, share_ns).inspect(|_| gpu.enter(None)).or_else(|_| {
            flush();
            let began_ns = os::now_ns();
            let passed = gate::wait(grant, meter, &mut around, share_ns);
            let ended_ns = os::now_ns();
            meter.count_wait(ended_ns.saturating_sub(began_ns));
            if passed.is_ok() {
                gpu.enter(Some(ended_ns));
            }
            passed
        });
        if passed.is_ok() || around.is_of_present() {
            return Some((grant, passed));
        }
    }
}

/// The state of a thread that waits at the gate: the answers to the questions of
/// [`deepres_abi::gate`].
struct Around<'a> {
    lane: &'a Lane,
    process: &'a Process,
    /// The grant of the gate at which the thread waits.
    grant: &'static GrantSlot,
    only_launch: &'a OnlyLaunch,
    /// The latest count of completions, and the time at which the thread first saw this count, ns.
    full_since: Option<(u32, u64)>,
    handlers: Handlers,
    /// The held signals while the gate is paused. The wait can then take for ever, so the thread
    /// must learn of each handler.
    held: RefCell<Option<HeldSignals>>,
}

impl<'a> Around<'a> {
    fn new(
        lane: &'a Lane,
        process: &'a Process,
        grant: &'static GrantSlot,
        only_launch: &'a OnlyLaunch,
    ) -> Self {
        let around = Self {
            lane,
            process,
            grant,
            only_launch,
            full_since: None,
            handlers: Handlers::default(),
            held: RefCell::default(),
        };
        around.hold_signals();
        around
    }

    /// Returns whether the GPU still has the arbiter at whose gate the thread waits.
    fn is_of_present(&self) -> bool {
        self.lane.gpu.grant().is_some_and(|grant| ptr::eq(grant, self.grant))
    }

    /// Holds the thread's signals while the gate is paused.
    fn hold_signals(&self) {
        let (mut held, is_paused) = (self.held.borrow_mut(), self.lane.gpu.is_paused());
        if held.is_some() != is_paused {
            *held = is_paused.then(HeldSignals::hold);
        }
    }
}

impl gate::Process for Around<'_> {
    fn now_ns(&self) -> u64 {
        os::now_ns()
    }

    fn queued_ns(&self) -> u64 {
        self.lane.in_flight_ns()
    }

    fn is_controller_gone(&self, now_ns: u64) -> bool {
        let is_gone = || {
            let session = self.process.session();
            session.is_none_or(|session| session.is_controller_gone(self.lane.gpu, now_ns))
        };
        !self.is_of_present() || is_gone()
    }

    fn only_launch(&self) -> &OnlyLaunch {
        self.only_launch
    }

    fn ring(&self) {
        self.lane.gpu.ring();
    }

    fn sleep(&self, slot: &GrantSlot, word: u32, limit_ns: u64) {
        self.hold_signals();
        let has_run = match &*self.held.borrow() {
            // The end of the pause does not end this sleep.
            Some(held) => held.nap(limit_ns),
            None => os::futex_wait_shared(slot.futex(), word, limit_ns),
        };
        if has_run {
            self.handlers.note(os::now_ns());
        }
    }

    fn is_called_away(&self, now_ns: u64) -> bool {
        self.handlers.call_away(now_ns, &CALLED_AWAY_AT_NS)
    }

    fn is_stuck(&mut self, now_ns: u64, is_full: impl Fn(&Self) -> bool) -> bool {
        if self.lane.is_stuck() {
            return true;
        }
        let gpu = self.lane.gpu;
        let completions = gpu.completions();
        let (seen, since_ns) = *self.full_since.get_or_insert((completions, now_ns));
        if seen != completions {
            self.full_since = Some((completions, now_ns));
        } else if gpu.is_stuck() || now_ns.saturating_sub(since_ns) > STUCK_NS {
            gpu.give_up_at(completions);
            return true;
        }
        gpu.await_freed(WINDOW_NAP_NS, || is_full(self));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_handler_calls_a_launch_away_within_a_second_and_a_timers_handlers_do_not() {
        let last = AtomicU64::new(0);
        let told = Handlers::default();
        assert!(!told.call_away(1_000 * MS, &last), "no handler ran");
        told.note(1_000 * MS);
        assert!(!told.call_away(1_400 * MS, &last));
        assert!(told.call_away(1_500 * MS, &last));
        assert!(!told.call_away(3_000 * MS, &last), "the handler has had its turn");

        let timed = Handlers::default();
        (0..60).for_each(|tick| timed.note((4_000 + 10 * tick) * MS));
        assert!(!timed.call_away(4_600 * MS, &last));
    }

    #[test]
    fn handlers_call_one_launch_of_a_process_away_a_second() {
        let last = AtomicU64::new(0);
        let threads = [(); 3].map(|()| Handlers::default());
        threads.iter().for_each(|handlers| handlers.note(1_000 * MS));
        let gone = threads.iter().filter(|handlers| handlers.call_away(1_600 * MS, &last)).count();
        assert_eq!(gone, 1);
        threads[2].note(1_700 * MS);
        assert!(!threads[2].call_away(2_300 * MS, &last));
        threads[2].note(2_300 * MS);
        assert!(threads[2].call_away(2_900 * MS, &last));
    }
}
