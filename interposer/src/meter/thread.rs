//! The meter thread: reads what segments took, keeps the meter page, and watches the connection.

use std::sync::atomic::Ordering;
use std::time::Duration;
use std::{io, mem, ptr, thread};

use super::context::{ContextState, Inner};
use super::lane::Lane;
use super::reconnect::Reconnect;
use super::union::Union;
use crate::coverage;
use crate::driver::calls::Progress;
use crate::log::say;
use crate::os;
use crate::process::Process;

/// Pause between two looks while someone waits for what is in flight: half of what a hand-off may lose by it.
const TICK_CONTENDED_NS: u64 = 50_000;
/// The same while nobody does.
const TICK_ALONE_NS: u64 = 400_000;
/// The same while nothing is in flight, soon after something was.
const TICK_LINGER_NS: u64 = 2_000_000;
/// Looks without anything in flight before the thread sleeps until it is woken.
const LINGER_TICKS: u32 = 10;
/// Sleep when nothing is in flight: it is ended by a launch or by the connection.
const SLEEP_NS: u64 = 1_000_000_000;
/// A segment that had no launch for so long is closed. Sparse launches come in segments of their own, so this only ends bursts.
const STALE_NS: u64 = 200_000;
/// GPU time over which the overlap of streams is measured.
const OVERLAP_OVER_NS: u64 = 20_000_000;
/// The stack. It holds the thread-local data of every library too; what is not touched costs nothing.
const STACK_BYTES: usize = 2 << 20;

/// Starts the thread, with every signal blocked: handlers are the job's, on its own threads.
///
/// # Errors
/// That of the thread's creation.
pub fn start(process: &'static Process) -> io::Result<()> {
    // SAFETY: all zeroes is a valid signal set.
    let (mut all, mut previous) =
        unsafe { (mem::zeroed::<libc::sigset_t>(), mem::zeroed::<libc::sigset_t>()) };
    // SAFETY: both sets have room; the thread inherits the mask, which is put back below.
    unsafe {
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut previous);
    }
    let started = thread::Builder::new()
        .name("deepres-meter".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || Meter::new(process).run());
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &previous, ptr::null_mut()) };
    started.map(drop)
}

/// Per GPU of the process.
#[derive(Default)]
struct Account {
    union: Union,
    /// Times of segments and what they covered anew, of late.
    streams_ns: u64,
    covered_ns: u64,
    is_busy: bool,
}

struct Meter {
    process: &'static Process,
    accounts: Vec<Account>,
    ticked_ns: u64,
    idle_ticks: u32,
    is_relaxed: bool,
    reconnect: Reconnect,
    /// When something is to be done at the latest, without a daemon.
    turn_at_ns: Option<u64>,
}

impl Meter {
    fn new(process: &'static Process) -> Self {
        Self {
            process,
            accounts: process.gpus.iter().map(|_| Account::default()).collect(),
            ticked_ns: os::now_ns(),
            idle_ticks: 0,
            is_relaxed: false,
            reconnect: Reconnect::default(),
            turn_at_ns: None,
        }
    }

    fn run(mut self) {
        // Sleeps of tens of µs would otherwise last 50 µs longer. Failure only costs precision.
        // SAFETY: changes this thread's timer slack alone.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        while !self.process.is_stopping() {
            let is_busy = self.tick();
            self.idle_ticks = if is_busy { 0 } else { self.idle_ticks.saturating_add(1) };
            self.pause(is_busy);
        }
        self.process.set_stopped();
    }

    /// One look at everything. Returns whether anything is in flight.
    fn tick(&mut self) -> bool {
        let now_ns = os::now_ns();
        let passed_ns = now_ns.saturating_sub(self.ticked_ns);
        self.ticked_ns = now_ns;
        let was_busy: Vec<bool> =
            self.accounts.iter_mut().map(|account| mem::take(&mut account.is_busy)).collect();
        for context in self.process.contexts() {
            self.read(context, now_ns);
        }
        if let Some(session) = self.process.session() {
            coverage::publish(session.meter(), now_ns);
        }
        let mut any = false;
        for (ordinal, gpu) in self.process.gpus.iter().enumerate() {
            let is_busy = self.accounts.get(ordinal).is_some_and(|account| account.is_busy);
            any |= is_busy;
            let Some(meter) = gpu.meter() else { continue };
            if was_busy.get(ordinal) == Some(&true) {
                meter.occupied_ns.fetch_add(passed_ns, Ordering::Relaxed);
            }
            meter.in_flight_ns.store(if is_busy { gpu.queued_ns() } else { 0 }, Ordering::Relaxed);
            meter.updated_ns.store(now_ns, Ordering::Relaxed);
            let says_busy = meter.in_flight.load(Ordering::Relaxed) != 0;
            if is_busy && !says_busy {
                // The page is new: the daemon came back while work was in flight.
                gpu.set_in_flight();
            } else if !is_busy && says_busy {
                self.settle(ordinal);
            }
        }
        self.turn_at_ns = self.process.turn(now_ns);
        any
    }

    /// Everything of a GPU is seen complete: says so, unless a launch came meanwhile.
    fn settle(&self, ordinal: usize) {
        let Some(gpu) = self.process.gpus.get(ordinal) else { return };
        let Some(meter) = gpu.meter() else { return };
        meter.in_flight.store(0, Ordering::SeqCst);
        // A launch marks its lane open before it sets `in_flight`: one that the loop below misses sets it after our zero.
        let contexts = self.process.contexts();
        let is_open = contexts.iter().any(|context| {
            context.ordinal == ordinal && context.lock().lanes.iter().any(|lane| lane.is_busy())
        });
        if is_open || gpu.is_launching() {
            meter.in_flight.store(1, Ordering::SeqCst);
        } else {
            gpu.empty_queue();
            if !gpu.is_open() {
                gpu.ring();
            }
        }
    }

    /// Looks at a context's lanes.
    fn read(&mut self, context: &'static ContextState, now_ns: u64) {
        let calls = &self.process.calls;
        let mut inner = context.lock();
        if context.is_dead() || inner.lanes.is_empty() {
            return;
        }
        let lanes = inner.lanes.clone();
        let mut is_current = false;
        for lane in lanes {
            if !lane.is_busy() {
                continue;
            }
            if !is_current {
                if !calls.set_current(context.handle) {
                    return;
                }
                if !self.is_relaxed {
                    self.is_relaxed = calls.relax_this_thread();
                }
                is_current = true;
            }
            self.close_stale(lane, now_ns);
            self.complete(context, &mut inner, lane);
            if lane.is_busy()
                && let Some(account) = self.accounts.get_mut(context.ordinal)
            {
                account.is_busy = true;
            }
        }
    }

    fn close_stale(&self, lane: &Lane, now_ns: u64) {
        let Some(launches) = lane.open_launches() else {
            lane.seen_launched.store(0, Ordering::Relaxed);
            return;
        };
        if lane.seen_launched.swap(launches, Ordering::Relaxed) != launches {
            lane.seen_since_ns.store(now_ns, Ordering::Relaxed);
        } else if now_ns.saturating_sub(lane.seen_since_ns.load(Ordering::Relaxed)) > STALE_NS {
            let quiet_ns = now_ns.saturating_sub(lane.seen_since_ns.load(Ordering::Relaxed));
            lane.close_stale(&self.process.calls, launches, quiet_ns.saturating_add(TICK_ALONE_NS));
        }
    }

    /// Charges the segments of a lane that are complete.
    fn complete(&mut self, context: &ContextState, inner: &mut Inner, lane: &Lane) {
        let calls = &self.process.calls;
        while let Some(segment) = lane.oldest() {
            let progress = if segment.is_lost() { Progress::Lost } else { calls.query(segment.end()) };
            if progress == Progress::Pending {
                return;
            }
            let launches = segment.launches();
            let estimate_ns = segment.estimate_ns();
            if progress == Progress::Done
                && let Some((start_ns, end_ns)) = inner.locate(calls, lane)
            {
                self.charge(context, lane, start_ns, end_ns);
            } else if segment.is_lost() {
                // Its end could not be recorded, as in a capture: charged by what such launches take.
                let charged_ns = lane.mean_ns().saturating_mul(u64::from(launches));
                if let Some(meter) = context.gpu.meter() {
                    meter.compute_ns.fetch_add(charged_ns, Ordering::Relaxed);
                    self.process.charge(context.gpu, charged_ns);
                }
            }
            lane.pop();
            context.gpu.unqueue(estimate_ns);
        }
    }

    fn charge(&mut self, context: &ContextState, lane: &Lane, start_ns: i64, end_ns: i64) {
        let Some(segment) = lane.oldest().filter(|segment| segment.launches() != 0) else { return };
        let launches = u64::from(segment.launches());
        let took_ns = end_ns.saturating_sub(start_ns).max(0) as u64;
        // Closed late into an idle stream, a segment seems to last until it was closed. Of the time without launches it is charged what its
        // launches usually take, and teaches nothing.
        let quiet_ns = segment.quiet_ns();
        let usual_ns = lane.mean_ns().saturating_mul(launches);
        let charged_ns = took_ns.min(usual_ns.max(took_ns.saturating_sub(quiet_ns)));
        if quiet_ns == 0 {
            lane.learn(took_ns / launches);
        }
        // What is already known of such launches bounds the longest: the first of a kernel may hold the time in which the driver loads it.
        let mut known_ns = 0;
        if let Some(key) = segment.key().filter(|_| quiet_ns == 0) {
            known_ns = context.gpu.estimates.get(key).unwrap_or(0);
            context.gpu.estimates.learn(key, took_ns);
        }
        let Some(meter) = context.gpu.meter() else { return };
        let Some(account) = self.accounts.get_mut(context.ordinal) else { return };
        let fresh_ns = account.union.add(start_ns, start_ns.saturating_add(charged_ns as i64));
        self.process.cover(context.gpu, start_ns, start_ns.saturating_add(charged_ns as i64));
        account.streams_ns = account.streams_ns.saturating_add(charged_ns);
        account.covered_ns = account.covered_ns.saturating_add(fresh_ns);
        if account.covered_ns > OVERLAP_OVER_NS {
            let permille = u128::from(account.streams_ns) * 1000 / u128::from(account.covered_ns);
            context.gpu.set_overlap_permille(u64::try_from(permille).unwrap_or(u64::MAX));
            account.streams_ns = 0;
            account.covered_ns = 0;
        }
        meter.compute_ns.fetch_add(fresh_ns, Ordering::Relaxed);
        meter.longest_ns.fetch_max(known_ns.min(took_ns), Ordering::Relaxed);
    }

    /// Sleeps until the next look, or until the connection ends.
    fn pause(&mut self, is_busy: bool) {
        let now_ns = os::now_ns();
        let Some(session) = self.process.session() else {
            thread::sleep(Duration::from_nanos(TICK_ALONE_NS));
            return;
        };
        let mut sleep_ns = if is_busy {
            if self.process.is_contended() { TICK_CONTENDED_NS } else { TICK_ALONE_NS }
        } else if self.idle_ticks < LINGER_TICKS {
            TICK_LINGER_NS
        } else {
            SLEEP_NS
        };
        sleep_ns = sleep_ns.min(session.guard(&self.process.gpus, now_ns));
        if session.is_gone() {
            self.reconnect.step(self.process, now_ns);
            sleep_ns = sleep_ns.min(self.reconnect.due_ns().saturating_sub(now_ns).max(TICK_CONTENDED_NS));
        }
        if let Some(turn_at_ns) = self.turn_at_ns {
            sleep_ns = sleep_ns.min(turn_at_ns.saturating_sub(now_ns));
        }
        let is_deep = !is_busy && sleep_ns > TICK_LINGER_NS;
        if is_deep && !self.process.prepare_sleep() {
            return;
        }
        let is_gone = session.is_gone();
        let socket = if is_gone { self.reconnect.socket() } else { session.socket() };
        let ended = self.process.sleep(socket, sleep_ns);
        if is_deep {
            self.process.finish_sleep();
        }
        if ended && !is_gone {
            session.set_gone();
            say!(Info, "the daemon is gone; going on without it");
            self.reconnect.begin(os::now_ns());
        }
    }
}
