//! The plan that the process follows ([`deepres_abi::plan`]): the hold of launches at its cuts, and the
//! place that the other tenants of the plan see.
//!
//! The meter thread takes up a plan from the grant page, and sets a bit of the word that also tells of
//! captures ([`crate::capture`]). So without a plan, a launch costs nothing more. With a plan, no launch
//! goes at once. Each launch asks the gate of the plan ([`deepres_policy::granularity::gate`]) before it
//! asks the gate of the lease.
//!
//! The interposer counts the launches that it has submitted along a plan. Each segment knows this count
//! from before its first launch. So the least count of all unfinished segments is the number of launches
//! that have surely finished. After a launch for whose end other tenants wait, the thread ends its
//! segments.

use std::sync::atomic::{AtomicU64, Ordering};

use deepres_abi::plan::{MOST_TENANTS, Place, PlanSlot, Progress};
use deepres_policy::granularity::Cut;
use deepres_policy::granularity::gate::{Answer, Gate};

use crate::capture;
use crate::driver::calls::Stream;
use crate::launch;
use crate::lock_order::{Mutex, Rank};
use crate::meter::thread::MeterThread;
use crate::os;
use crate::session::Session;

/// The number of launches that the process has submitted along plans.
static SUBMITTED: AtomicU64 = AtomicU64::new(0);
static FOLLOWED: Mutex<{ Rank::Plan as u8 }, Option<Followed>> = Mutex::new(None);

/// Returns the number of launches that the process has submitted along plans.
pub fn submitted() -> u64 {
    SUBMITTED.load(Ordering::Acquire)
}

/// The plan that the process follows.
struct Followed {
    number: u32,
    slot: &'static PlanSlot,
    progress: &'static Progress,
    gate: Gate,
    /// The number of submitted launches when the gate began to count.
    counts_from: Option<u64>,
    /// The number of submitted launches of which all have finished.
    finished: u64,
    /// The number of submitted launches with the last one for whose end others wait.
    awaited: u64,
    told: Option<Place>,
}

impl Followed {
    /// Returns the plan with this number in a session's grant page. Returns `None` if the daemon changes
    /// the plan at this moment.
    fn read(session: &'static Session, number: u32) -> Option<Self> {
        let slot = session.grant().plan();
        let (mut keys, mut cuts): (Vec<u64>, Vec<Cut>) = (Vec::new(), Vec::new());
        let head = slot.read(number, |key| keys.push(key), |cut| cuts.push(cut))?;
        Some(Self {
            number,
            slot,
            progress: session.meter().progress(),
            gate: Gate::new(head.tenant, keys, &cuts, head.bound_ns),
            counts_from: None,
            finished: submitted(),
            awaited: 0,
            told: None,
        })
    }

    /// Asks the gate about a launch.
    fn ask(&mut self, key: u64, places: &[Place; MOST_TENANTS]) -> Answer {
        let answer = self.gate.launch(os::now_ns(), key, places);
        let submitted = submitted();
        if self.gate.counts() {
            self.counts_from.get_or_insert(submitted);
        }
        if answer == Answer::Launch && self.gate.is_awaited() {
            self.awaited = submitted + 1;
        }
        self.tell();
        answer
    }

    /// Tells the place of the process, if it has changed.
    fn tell(&mut self) {
        let finished = self.counts_from.map_or(0, |from| self.finished.saturating_sub(from));
        let place = self.gate.place(finished);
        if self.told.replace(place) != Some(place) {
            self.progress.tell(place.word(self.number));
            os::futex_wake_shared(self.progress.changes().as_ptr());
        }
    }
}

/// Makes a launch with this key on a stream by `launch`. If the process follows a plan, first holds the
/// launch at the plan's cuts. A captured launch does not run, so the plan does not have it.
#[inline(always)]
pub fn along<T>(stream: Stream, key: u64, launch: impl FnOnce() -> T) -> T {
    if !capture::is_planned() || capture::is_active() {
        return launch();
    }
    hold(key);
    let launched = launch();
    submit(stream);
    launched
}

/// Holds a launch at the cuts of the plan. A thread never waits here while it holds a lock of the
/// interposer.
#[cold]
fn hold(key: u64) {
    let _uncancelled = os::uncancelled();
    let Some((number, slot)) = FOLLOWED.lock().as_ref().map(|plan| (plan.number, plan.slot)) else { return };
    let mut is_flushed = false;
    slot.hold(
        number,
        |places| {
            let mut followed = FOLLOWED.lock();
            let plan = followed.as_mut().filter(|plan| plan.number == number)?;
            match plan.ask(key, places) {
                Answer::Launch => None,
                Answer::Wait(until_ns) => Some(until_ns),
            }
        },
        |seen, until_ns| {
            if !is_flushed {
                // Without this, the wait would hide the end of the thread's work from the others.
                launch::flush();
                is_flushed = true;
            }
            os::futex_wait_shared(slot.changes().as_ptr(), seen, until_ns.saturating_sub(os::now_ns()));
        },
    );
}

/// Counts a launch that the driver has taken.
#[cold]
fn submit(stream: Stream) {
    let submitted = SUBMITTED.fetch_add(1, Ordering::AcqRel) + 1;
    let awaited = FOLLOWED.lock().as_ref().map_or(0, |plan| plan.awaited);
    if awaited == submitted {
        launch::end_segments(stream);
    }
}

/// Takes up the plan of the session, or leaves it. Tells the process's place. All launches before the
/// `finished` first ones along plans have finished. Returns whether another tenant may wait for the end
/// of a launch under way.
pub fn look(_meter: MeterThread, session: &'static Session, finished: u64) -> bool {
    let slot = session.grant().plan();
    // Without a daemon, no place of another tenant comes.
    let number = if session.is_gone() { 0 } else { slot.number() };
    if number == 0 && !capture::is_planned() {
        return false;
    }
    let mut followed = FOLLOWED.lock();
    let is_same = |plan: &Followed| plan.number == number && std::ptr::eq(plan.slot, slot);
    if !followed.as_ref().is_some_and(is_same) {
        *followed = Followed::read(session, number);
        capture::set_planned(followed.is_some());
    }
    let Some(plan) = followed.as_mut() else { return false };
    plan.finished = plan.finished.max(finished);
    plan.tell();
    plan.finished < plan.awaited
}

/// Forgets the parent's plan, in a forked child. Another thread may have held the lock at the fork. So
/// the child only clears the mark, and finds no session to follow.
pub fn forget() {
    capture::set_planned(false);
}
