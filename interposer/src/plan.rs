//! The plan that the process follows ([`deepres_abi::plan`]): the hold of launches at its cuts, and
//! the place that the other tenants of the plan see.
//!
//! The meter thread takes up a plan from the grant page, and sets a bit of the word that also tells
//! of captures ([`crate::capture`]). So without a plan, a launch costs nothing more. With a plan,
//! no launch goes at once. Each launch asks the gate of the plan
//! ([`deepres_policy::granularity::gate`]) before it asks the gate of the lease.
//!
//! The interposer counts the launches that it has submitted along a plan. Each segment knows this
//! count from before its first launch. So the least count of all unfinished segments is the number
//! of launches that have surely finished. After a launch for whose end other tenants wait, the
//! thread ends its segments.

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
    /// Returns the plan with this number. Returns `None` if the slot has none, or the daemon
    /// changes the plan at this moment.
    fn read(slot: &'static PlanSlot, progress: &'static Progress, number: u32) -> Option<Self> {
        let (mut keys, mut cuts): (Vec<u64>, Vec<Cut>) = (Vec::new(), Vec::new());
        let head = slot.read(number, |key| keys.push(key), |cut| cuts.push(cut))?;
        Some(Self {
            number,
            slot,
            progress,
            gate: Gate::new(head.tenant, keys, &cuts, head.wait_limit_ns),
            counts_from: None,
            finished: submitted(),
            awaited: 0,
            told: None,
        })
    }

    /// Asks the gate about a launch, which asked first at `asked_ns`.
    fn ask(&mut self, (asked_ns, now_ns): (u64, u64), key: u64, places: &[Place; MOST_TENANTS]) -> Answer {
        let answer = self.gate.launch(asked_ns, now_ns, key, places);
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

/// Makes a launch with the key `key` on a stream by `launch`. If the process follows a plan, first
/// holds the launch at the plan's cuts. A captured launch does not run, so the plan does not have
/// it.
#[inline(always)]
pub fn along<T>(stream: Stream, key: impl FnOnce() -> u64, launch: impl FnOnce() -> T) -> T {
    if !capture::is_planned() || capture::is_active() {
        return launch();
    }
    hold(key());
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
    let (mut asked_ns, mut is_flushed) = (None, false);
    slot.hold(
        number,
        |places| {
            let mut followed = FOLLOWED.lock();
            let plan = followed.as_mut().filter(|plan| plan.number == number)?;
            let now_ns = os::now_ns();
            match plan.ask((*asked_ns.get_or_insert(now_ns), now_ns), key, places) {
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

/// Takes up the plan of the session, or leaves it. Tells the process's place. All launches before
/// the `finished` first ones along plans have finished. Returns whether another tenant can wait for
/// the end of a launch under way.
pub fn look(_meter: MeterThread, session: &'static Session, finished: u64) -> bool {
    let slot = session.grant().plan();
    // Without a daemon, no place of another tenant comes.
    let number = if session.is_gone() { 0 } else { slot.number() };
    if number == 0 && !capture::is_planned() {
        return false;
    }
    follow(slot, session.meter().progress(), number, finished)
}

/// Does as [`look`], for the plan with this number in a slot; 0 for no plan.
fn follow(slot: &'static PlanSlot, progress: &'static Progress, number: u32, finished: u64) -> bool {
    let mut followed = FOLLOWED.lock();
    let is_same = |plan: &Followed| plan.number == number && std::ptr::eq(plan.slot, slot);
    if !followed.as_ref().is_some_and(is_same) {
        *followed = Followed::read(slot, progress, number);
        capture::set_planned(followed.is_some());
    }
    let Some(plan) = followed.as_mut() else { return false };
    plan.finished = plan.finished.max(finished);
    plan.tell();
    plan.finished < plan.awaited
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_abi::grant::GrantPage;
    use deepres_abi::meter::MeterPage;
    use deepres_abi::page::{self, Page};
    use deepres_abi::plan::PlanHead;
    use std::alloc::{Layout, alloc_zeroed};
    use std::thread::{self, JoinHandle};
    use std::time::Duration;

    const NUMBER: u32 = 9;
    const ON: Stream = Stream(0x5555_0000);

    fn made<P: Page>() -> &'static P {
        // SAFETY: the layout is not empty. Nobody frees the memory, which is zeroed and long
        // enough.
        unsafe { page::create(alloc_zeroed(Layout::new::<P>()), size_of::<P>()) }.expect("a page")
    }

    fn launch(key: u64) {
        along(ON, || key, || ());
    }

    /// Makes a launch that waits, in another thread.
    fn held(key: u64) -> JoinHandle<()> {
        let held = thread::spawn(move || launch(key));
        thread::sleep(Duration::from_millis(20));
        assert!(!held.is_finished());
        held
    }

    #[test]
    fn a_launch_waits_at_a_cut_until_the_other_tenant_is_there_or_the_plan_ends() {
        let (slot, progress) = (made::<GrantPage>().plan(), made::<MeterPage>().progress());
        let wake = || os::futex_wake_shared(slot.changes().as_ptr());
        let told = || Place::of(progress.read().1, NUMBER);
        let head = PlanHead { tenant: 0, wait_limit_ns: 60_000_000_000 };
        let cut = Cut { tenant: 0, kernel: 1, other: 1, until: 1 };
        assert!(slot.install(NUMBER, head, 2, [1, 2].into_iter(), [cut].into_iter()));
        slot.set_place(1, Place::At { iterations: 0, kernel: 0 }.word(NUMBER));
        assert!(!follow(slot, progress, NUMBER, 0));
        assert!(capture::is_planned() && !capture::is_clear() && !capture::is_active());
        [1, 2].into_iter().for_each(launch);
        assert_eq!(told(), Place::Ready);
        launch(1);
        assert_eq!(told(), Place::At { iterations: 0, kernel: 0 });
        let waits = held(2);
        slot.set_place(1, Place::At { iterations: 0, kernel: 1 }.word(NUMBER));
        wake();
        waits.join().unwrap();
        assert!(!follow(slot, progress, NUMBER, submitted()), "nobody waits for this tenant");
        assert_eq!(told(), Place::At { iterations: 1, kernel: 0 });
        launch(1);
        let waits = held(2);
        slot.withdraw();
        wake();
        waits.join().unwrap();
        assert!(!follow(slot, progress, 0, submitted()) && !capture::is_planned());
    }

    #[test]
    fn only_work_that_has_surely_finished_counts() {
        use crate::driver::calls::Context;
        use crate::driver::fake;
        use crate::gate::Headroom;
        use crate::meter::context::ContextState;
        use crate::meter::gpu::Gpu;
        use crate::meter::segment::{Kind, Launch};
        const KERNEL: Launch = Launch { key: 5 << 32, kind: Kind::Kernel };
        const COPY: Launch = Launch { key: 6 << 32, kind: Kind::Copy };
        const CONTEXT: Context = Context(0x1000);
        let calls = fake::calls();
        let gpu: &'static Gpu = Box::leak(Box::default());
        let context: &'static ContextState = Box::leak(Box::new(ContextState::new(CONTEXT, gpu, 0)));
        let lane = context.lane(CONTEXT, ON, crate::thread::id()).unwrap();
        let before = || context.try_lock().and_then(|inner| lane.planned_before(&inner));
        assert_eq!(before(), None);
        let least = submitted();
        let begun = lane.begin(&calls, KERNEL, Headroom::open(0), None).unwrap();
        lane.launched(begun.opens);
        assert!(before().is_some_and(|before| (least..=submitted()).contains(&before)), "open");
        lane.close(&calls);
        assert!(!lane.is_open() && before().is_some_and(|before| before >= least), "closed and not seen");
        // No plan has copies, so no tenant waits for the end of one.
        let copying = context.lane(CONTEXT, Stream(0x6666_0000), crate::thread::id()).unwrap();
        let begun = copying.begin(&calls, COPY, Headroom::NONE, Some(0)).unwrap();
        copying.launched(begun.opens);
        let before = || context.try_lock().and_then(|inner| copying.planned_before(&inner));
        assert!(copying.is_open() && before().is_none());
        copying.close(&calls);
        assert!(copying.is_busy() && before().is_none());
    }
}
