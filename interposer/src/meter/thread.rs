//! The meter thread. In each *look*, the thread reads the lanes of all contexts, charges the
//! complete segments, and writes the meter page. Between two looks, the thread watches the
//! connection to the daemon.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{io, mem, ptr, thread};

use deepres_abi::grant::GrantSlot;
use deepres_abi::meter::EdgeSlot;

use super::account::Account;
use super::alone;
use super::context::{ContextState, Inner};
use super::gpu::Gpu;
use super::lane::Lane;
use super::measure::Observed;
use super::mover::{self, Mover, Moves};
use super::reconnect::Reconnect;
use super::segment::{Contents, Segment};
use crate::capture;
use crate::coverage;
use crate::log::say;
use crate::memory::overhead::Appraisals;
use crate::memory::pressure::Pressure;
use crate::os;
use crate::plan;
use crate::process::{self, Process};
use crate::record;
use crate::reentry;
use crate::session::Session;

/// Pause between two looks of the meter thread while the gate of any GPU is leased or closed. A
/// hand-off can take up to twice this time longer.
const TICK_CONTENDED_NS: u64 = 50_000;
/// Pause between two looks once the gate has closed and the work in flight is about to end. Between
/// the end of the work and the next look, the GPU idles.
const TICK_DRAINING_NS: u64 = 20_000;
/// The most GPU time in flight, ns, by the estimate or the rest of the estimate, with which the
/// meter thread looks every [`TICK_DRAINING_NS`]. If work is overdue by more than this time, the
/// meter thread looks less often, because the work may never end.
const DRAINED_SOON_NS: u64 = 1_000_000;
/// The shortest pause between two looks while work is in flight and all gates are open.
const TICK_ALONE_NS: u64 = 400_000;
/// While all gates are open, the pause between two looks is one part in this many of the time since
/// a gate was not open. So a hand-off that ends this time comes late only by a small part of it. A
/// job that has the GPU to itself has fewer interruptions on its CPUs.
const TICK_ALONE_PART: u64 = 256;
/// The number of looks while the GPU works off the time that may be in flight, if threads may wait.
const TICKS_PER_RUN_AHEAD: u64 = 8;
/// Pause between two looks while nothing is in flight and all gates are open, before the thread
/// sleeps. A launch does not end this pause. If a gate is leased or closed, the pause is
/// [`TICK_CONTENDED_NS`] instead. The next launch then mostly comes at once, and the next tenant
/// waits for its end.
const TICK_LINGER_NS: u64 = 2_000_000;
/// The number of looks without work in flight after which the thread sleeps for up to [`SLEEP_NS`].
const LINGER_TICKS: u32 = 10;
/// Longest sleep while nothing is in flight. A launch, or the end of the connection, ends the sleep
/// early.
const SLEEP_NS: u64 = 1_000_000_000;
/// Time between two checks whether any of the job's own threads is left. A check costs one system
/// call.
const COMPANY_NS: u64 = 1_000_000_000;
/// Time between two checks whether another process of the tenant has no session. A check costs one
/// to three system calls.
const FILE_LOOK_NS: u64 = 1_000_000_000;
/// The shortest pause of the process after which the meter thread rings the bell at the next
/// launch, ns. The arbiter seldom looks at resting tenants, and only the bell tells the arbiter of
/// a launch through an open gate.
const RESTED_NS: u64 = 100_000_000;
/// The shortest time between two attempts to keep a share whose arbiter hangs, ns.
const KEEP_AGAIN_NS: u64 = 1_000_000_000;
/// Size of the meter thread's stack. The stack also holds the thread-local data of every library.
/// Pages that the thread does not touch cost nothing.
const STACK_BYTES: usize = 2 << 20;

/// Proof that the caller is the meter thread. Only [`start`] makes a value, and the value cannot
/// leave its thread.
#[derive(Debug, Clone, Copy)]
pub struct MeterThread(PhantomData<*const ()>);

/// Starts the meter thread with every signal blocked, because signal handlers belong to the job and
/// run on the job's threads. The thread waits until the session has begun.
///
/// # Errors
/// The error of the system, if it cannot create the thread.
pub fn start(process: &'static Process) -> io::Result<()> {
    // SAFETY: all zeroes is a valid signal set.
    let (mut all, mut previous) =
        unsafe { (mem::zeroed::<libc::sigset_t>(), mem::zeroed::<libc::sigset_t>()) };
    // SAFETY: both sets have room. The new thread inherits the mask, and the caller's mask is
    // restored below.
    unsafe {
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut previous);
    }
    // The caller opens the folder here, because the process can soon lose sight of `/proc`.
    alone::keep_folder();
    let started =
        thread::Builder::new().name(alone::METER.to_owned()).stack_size(STACK_BYTES).spawn(move || {
            alone::count_in();
            reentry::stay();
            let here = MeterThread(PhantomData);
            match process.await_session(here) {
                true => Meter::new(here, process).run(),
                false => alone::count_out(),
            }
        });
    // SAFETY: `previous` is the caller's own mask, from above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &previous, ptr::null_mut()) };
    started.map(drop)
}

/// Returns the slot of the meter page with the times at which this session's work on a GPU began
/// and ended. Returns `None` if the process has no session or the daemon does not manage the GPU.
fn edges(process: &Process, gpu: &Gpu) -> Option<&'static EdgeSlot> {
    process.session()?.meter().edges(gpu.index()?)
}

/// Returns the word in the meter page for the time by which launches took longer than their
/// estimates.
fn stretched(process: &Process, gpu: &Gpu) -> Option<&'static AtomicU64> {
    process.session()?.meter().stretched_ns(gpu.index()?)
}

/// Returns the pause between two looks while work is in flight, ns. `open_ns`: the time for which
/// all gates have been open. `ahead_ns`: the GPU time that may be in flight. If other tenants have
/// open gates too, this time is short, and threads that reach it wait for the looks that see its
/// end. `queued_ns`: the GPU time in flight. A job that is far from `ahead_ns` needs few looks. If
/// the job reaches `ahead_ns` before the next look, work for half of this time is left on the GPU
/// then.
fn tick_ns(open_ns: u64, ahead_ns: u64, queued_ns: u64) -> u64 {
    let least_ns = ahead_ns / TICKS_PER_RUN_AHEAD;
    let longest_ns = (ahead_ns / 2).saturating_sub(queued_ns).max(least_ns);
    (open_ns / TICK_ALONE_PART).clamp(TICK_ALONE_NS, longest_ns.clamp(TICK_ALONE_NS, TICK_LINGER_NS))
}

struct Meter {
    here: MeterThread,
    process: &'static Process,
    accounts: Vec<Account>,
    ticked_ns: u64,
    /// The time of the last check whether any of the job's own threads is left, ns.
    company_ns: u64,
    /// The time of the last check whether another process of the tenant has no session, ns; `None`
    /// if the process cannot use the tenant's file.
    file_ns: Option<u64>,
    /// The time of the last check whether the job has closed the thread's descriptors, ns.
    checked_ns: u64,
    idle_ticks: u32,
    /// The time of the last look at which a gate was not open, ns; 0 before the first.
    contended_ns: u64,
    is_relaxed: bool,
    reconnect: Reconnect,
    /// The earliest time of the next attempt to keep a share whose arbiter hangs, ns.
    keep_due_ns: u64,
    pressure: Pressure,
    /// The mover of each GPU.
    movers: Vec<Mover>,
    /// The greatest amount of work that any mover had at its last step.
    moves: Moves,
    /// The host's time before the first of the launches that the meter thread charges at present,
    /// ns.
    launched_ns: u64,
    /// Without a daemon: the time at which the meter thread must next act as the arbiter, ns.
    turn_at_ns: Option<u64>,
    appraisals: Appraisals,
    /// Of the launches that the process submitted along plans, the number of first ones that have
    /// all finished, as the present look shows. 0 if the look cannot see a context.
    finished: u64,
    /// Whether another tenant of the plan can wait for the end of a launch under way.
    is_awaited: bool,
}

impl Meter {
    fn new(here: MeterThread, process: &'static Process) -> Self {
        Self {
            here,
            process,
            accounts: process.gpus.iter().map(|_| Account::default()).collect(),
            ticked_ns: os::now_ns(),
            company_ns: os::now_ns(),
            file_ns: Some(os::now_ns()),
            checked_ns: os::now_ns(),
            idle_ticks: 0,
            contended_ns: 0,
            is_relaxed: false,
            reconnect: Reconnect::default(),
            keep_due_ns: 0,
            pressure: Pressure::new(process.pressure_signal(), process.gpus.len()),
            movers: process.gpus.iter().map(|_| Mover::default()).collect(),
            moves: Moves::None,
            launched_ns: 0,
            turn_at_ns: None,
            appraisals: Appraisals::default(),
            finished: 0,
            is_awaited: false,
        }
    }

    fn run(mut self) {
        // With the default timer slack, sleeps of tens of µs would last 50 µs longer. If the call
        // fails, the sleeps are only less precise.
        // SAFETY: the call changes only this thread's timer slack.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        while !self.process.is_stopping() {
            let is_busy = self.tick();
            self.idle_ticks = if is_busy { 0 } else { self.idle_ticks.saturating_add(1) };
            if self.is_left() {
                return self.end();
            }
            self.count_beside();
            self.pause(is_busy);
        }
        self.process.set_stopped(self.here);
    }

    /// Once every [`COMPANY_NS`], checks whether the job's own threads have all ended. Returns true
    /// if the check shows that all have ended.
    fn is_left(&mut self) -> bool {
        if self.ticked_ns.saturating_sub(self.company_ns) < COMPANY_NS {
            return false;
        }
        self.company_ns = self.ticked_ns;
        alone::is_left()
    }

    /// Once every [`FILE_LOOK_NS`], counts the process's memory in the tenant's file too if another
    /// process of the tenant has no session.
    fn count_beside(&mut self) {
        let is_due = |looked_ns: u64| self.ticked_ns.saturating_sub(looked_ns) >= FILE_LOOK_NS;
        if self.file_ns.is_some_and(is_due) {
            self.file_ns = self.process.count_beside(self.here).then_some(self.ticked_ns);
        }
    }

    /// Stops the interposer and unblocks the signals. The meter thread is the process's last
    /// thread, so the process exits when the thread returns. The exit handlers run in this thread,
    /// as in any last thread.
    fn end(&self) {
        self.process.set_stopped(self.here);
        process::stop();
        // SAFETY: the set has room, and the call changes only this thread's mask.
        unsafe {
            let mut none = mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&mut none);
            libc::pthread_sigmask(libc::SIG_SETMASK, &none, ptr::null_mut());
        }
    }

    /// Looks once at all contexts, and writes the meter page. Returns whether any work is in
    /// flight.
    fn tick(&mut self) -> bool {
        let now_ns = os::now_ns();
        let passed_ns = now_ns.saturating_sub(self.ticked_ns);
        self.ticked_ns = now_ns;
        let was_occupied: Vec<bool> = self.accounts.iter_mut().map(Account::begin_look).collect();
        for (account, gpu) in self.accounts.iter_mut().zip(self.process.gpus.iter()) {
            if gpu.grant().is_some_and(GrantSlot::is_beside) {
                account.beside_ns = now_ns;
            }
        }
        // Each launch of this count is in a segment by now.
        self.finished = plan::submitted();
        for context in self.process.contexts() {
            self.read(context, now_ns);
        }
        if let Some(session) = self.process.session() {
            coverage::publish(session.meter(), now_ns);
            self.report_widths(session, now_ns);
            self.pressure.look(session, &self.process.gpus);
            record::look(session, &self.process.gpus);
            self.is_awaited = plan::look(self.here, session, self.finished);
        }
        self.appraisals.step(self.process, now_ns);
        self.charge_late();
        let mut any = false;
        for (ordinal, gpu) in self.process.gpus.iter().enumerate() {
            let Some(account) = self.accounts.get_mut(ordinal) else { continue };
            let is_busy = account.computing_streams != 0;
            account.computing_since_ns = is_busy.then(|| account.computing_since_ns.unwrap_or(now_ns));
            any |= account.is_occupied;
            let rings = account.has_computed && {
                let before_ns = mem::replace(&mut account.computed_ns, now_ns);
                gpu.is_open() && now_ns.saturating_sub(before_ns) > RESTED_NS
            };
            let is_fine = account.spell(now_ns);
            let begins = is_fine && !gpu.is_fine();
            gpu.set_fine(self.here, is_fine);
            if begins {
                let contexts = self.process.contexts();
                let here = contexts.iter().filter(|context| context.ordinal == ordinal);
                let inners = here.filter_map(|context| context.try_lock());
                inners.for_each(|inner| inner.lanes.iter().for_each(|lane| lane.end_soon(self.here, &inner)));
            }
            let Some(meter) = gpu.meter() else { continue };
            if was_occupied.get(ordinal) == Some(&true) {
                meter.occupied_ns.fetch_add(passed_ns, Ordering::Relaxed);
            }
            let in_flight_ns = || gpu.queued_ns().saturating_add(gpu.share_ns(account.unqueued_ns));
            meter.in_flight_ns.store(if is_busy { in_flight_ns() } else { 0 }, Ordering::Relaxed);
            meter.updated_ns.store(now_ns, Ordering::Relaxed);
            let says_busy = meter.in_flight().is_some();
            if is_busy && !says_busy {
                // The meter page is new, because the daemon came back while work was in flight.
                gpu.set_in_flight();
            } else if !is_busy && says_busy {
                self.settle(ordinal);
            }
            if rings {
                gpu.ring();
            }
        }
        self.process.memory.pools.release_due(self.process);
        if self.process.memory.oversubscription.is_used() {
            self.move_memory(now_ns);
        }
        self.turn_at_ns = self.process.turn(self.here, now_ns);
        any
    }

    /// Ends the periods of widths that are over, and writes the widths to the meter page. Without
    /// MPS, does nothing.
    fn report_widths(&self, session: &Session, now_ns: u64) {
        for gpu in self.process.gpus.iter().filter(|gpu| gpu.widths.is_counted()) {
            // A launch counts at least as long as the longest known launch.
            let longest_ns = gpu.meter().map_or(0, |meter| meter.longest_ns.load(Ordering::Relaxed));
            gpu.widths.turn(self.here, longest_ns, now_ns, || gpu.estimates.mark_unseen(self.here));
            gpu.publish_width(session);
        }
    }

    /// Moves oversubscribed memory to or from the GPUs.
    #[cold]
    fn move_memory(&mut self, now_ns: u64) {
        self.moves = Moves::None;
        for (ordinal, mover) in self.movers.iter_mut().enumerate() {
            let is_busy = self.accounts.get(ordinal).is_some_and(|account| account.computing_streams != 0);
            let moves = mover.step(self.process, ordinal, is_busy, now_ns, &mut self.is_relaxed);
            self.moves = self.moves.max(moves);
        }
        if let Some(session) = self.process.session() {
            self.process.memory.oversubscription.publish(session, &self.process.gpus);
        }
    }

    /// Reports on the meter page that nothing is in flight on a GPU. The caller has seen all work
    /// complete. If a launch came meanwhile, the method reports nothing.
    fn settle(&self, ordinal: usize) {
        let Some(gpu) = self.process.gpus.get(ordinal) else { return };
        let Some(meter) = gpu.meter() else { return };
        // A launch marks its lane open before it sets `in_flight`. If the check below misses a
        // launch, the launch therefore changes `in_flight` after this reading, and `meter.settle`
        // fails.
        let Some(seen) = meter.in_flight() else { return };
        let contexts = self.process.contexts();
        let is_open = contexts.iter().any(|context| {
            let is_computing =
                || context.try_lock().is_none_or(|inner| inner.lanes.iter().any(|lane| lane.is_computing()));
            context.ordinal == ordinal && is_computing()
        });
        if is_open || meter.is_launching() {
            return;
        }
        if let Some(ended_ns) = self.accounts.get(ordinal).map(|account| account.ended_ns)
            && let Some(edges) = edges(self.process, gpu)
        {
            edges.ended.set(ended_ns);
        }
        // A thread that waits at the gate goes on with the work, so this is no end.
        if meter.waiters.load(Ordering::SeqCst) == 0
            && let Some((session, index)) = self.process.session().zip(gpu.index())
            && let Some(ends) = session.meter().ends(index)
        {
            ends.fetch_add(1, Ordering::Relaxed);
        }
        if meter.settle(seen) {
            gpu.empty_queue(self.here);
            if !gpu.is_open() {
                gpu.ring();
            }
        }
    }

    /// Reads the lanes of a context, and charges their complete segments.
    fn read(&mut self, context: &'static ContextState, now_ns: u64) {
        let calls = &self.process.calls;
        // While a thread destroys the context, it can hold the lock as long as the context's work
        // takes. The meter thread must see the work of other contexts meanwhile.
        let Some(mut inner) = context.try_lock() else {
            let is_busy = context.gpu.meter().is_some_and(|meter| meter.in_flight().is_some());
            if let Some(account) = self.accounts.get_mut(context.ordinal).filter(|_| is_busy) {
                account.is_occupied = true;
                account.computing_streams += 1;
            }
            self.finished = 0;
            return;
        };
        if context.is_dead() || inner.lanes.is_empty() {
            return;
        }
        let lanes = inner.lanes.clone();
        let mut is_current = false;
        for lane in lanes {
            lane.settle();
            if !lane.is_busy() {
                continue;
            }
            if !is_current {
                if !calls.set_current(context.home()) {
                    self.finished = 0;
                    return self.lose(context, &mut inner, now_ns);
                }
                inner.reached(self.here);
                if !self.is_relaxed {
                    self.is_relaxed = calls.relax_this_thread();
                }
                if !self.is_relaxed && capture::is_active() {
                    // The driver's queries could end another thread's capture.
                    self.finished = 0;
                    return;
                }
                is_current = true;
            }
            lane.look(self.here, &inner, calls, now_ns);
            if let Some(account) = self.accounts.get_mut(context.ordinal) {
                account.has_computed |= lane.is_computing();
            }
            let is_crowded = lane.is_crowded();
            self.complete(context, &mut inner, lane);
            self.finished = self.finished.min(lane.planned_before(&inner).unwrap_or(u64::MAX));
            if lane.is_busy()
                && let Some(account) = self.accounts.get_mut(context.ordinal)
            {
                account.is_occupied = true;
                account.is_crowded |= is_crowded;
                account.unqueued_ns = account.unqueued_ns.saturating_add(lane.unqueued_ns());
            }
        }
        self.count_streams(context, &inner);
    }

    /// Counts the context's streams with kernels or graphs in flight.
    fn count_streams(&mut self, context: &ContextState, inner: &Inner) {
        if let Some(account) = self.accounts.get_mut(context.ordinal) {
            let streams = inner.lanes.iter().filter(|lane| lane.counts_as_stream()).count();
            account.computing_streams += streams as u32;
        }
    }

    /// Handles a context that the driver does not make current. For a while, the meter shows the
    /// work of the context as in flight. After that, the meter thread no longer waits for the work,
    /// and charges it.
    fn lose(&mut self, context: &ContextState, inner: &mut Inner, now_ns: u64) {
        if context.is_given_up(self.here, inner, now_ns) {
            return;
        }
        if let Some(account) = self.accounts.get_mut(context.ordinal) {
            account.is_occupied = true;
        }
        self.count_streams(context, inner);
    }

    /// Charges the complete segments of a lane, and removes them.
    fn complete(&mut self, context: &ContextState, inner: &mut Inner, lane: &Lane) {
        let calls = &self.process.calls;
        let (over, newest) = lane.over(inner, calls);
        let seen_ns = os::now_ns() as i64;
        if let Some(newest) = newest {
            inner.align(calls, newest, seen_ns);
        }
        for _ in 0..over {
            let Some(contents) = lane.oldest(inner).map(Segment::contents) else { return };
            self.launched_ns = contents.began_ns;
            self.charge_copied(context, contents.copied_ns);
            match newest.and_then(|newest| inner.locate(calls, lane, newest, seen_ns)) {
                Some(times) => self.charge(context, inner, lane, &contents, times),
                None => {
                    lane.set_previous_end(inner, None);
                    if contents.is_lost {
                        self.charge_lost(context, &contents);
                    }
                }
            }
            lane.pop(inner);
            context.gpu.unqueue(contents.queued_ns);
        }
    }

    /// Charges a segment that began and ended at `times`, ns on the process's time line.
    fn charge(
        &mut self,
        context: &ContextState,
        inner: &mut Inner,
        lane: &Lane,
        contents: &Contents,
        times: (i64, i64),
    ) {
        if contents.is_end_only {
            return self.charge_known(context, inner, lane, contents, times);
        }
        // If other tenants' work ran beside the segment, the turns of this work lie between the
        // events too. The times are then only bounds.
        let is_beside = self.accounts.get(context.ordinal).is_some_and(|account| {
            !contents.is_copy && u64::try_from(times.0).unwrap_or(0) <= account.beside_ns
        });
        let told = contents.observed(times);
        let observed = Observed {
            previous_end_ns: lane.previous_end_of_stream_ns(inner, times.0),
            offset_ns: inner.offset.get(),
            usual_ns: inner.lead.get(),
            expected_ns: told.expected_ns.saturating_add(lane.carried_ns(self.here, told.expected_ns)),
            // The start event of a quiet stream can wait for the turns of other tenants' work.
            is_quiet: told.is_quiet && !is_beside,
            ..told
        };
        let measured = observed.measure();
        if !measured.is_exact && !is_beside {
            lane.carry(self.here, told.expected_ns, measured.took_ns);
        }
        if !contents.is_copy {
            inner.lead.learn(observed.before_first_ns());
        }
        lane.set_previous_end(inner, Some(times.1));
        if let Some(offset_ns) = measured.offset_ns.filter(|_| !is_beside) {
            inner.offset.learn(offset_ns);
        }
        let launches = u64::from(contents.launches);
        if launches == 0 {
            return;
        }
        let took_ns = measured.took_ns.unsigned_abs();
        // The estimate limits `longest_ns`. The time of a kernel's first launch can include the
        // time in which the driver loads the kernel. A single launch may have been interrupted.
        let mut known_ns = 0;
        if let Some(key) = contents.only_key() {
            known_ns = context.gpu.estimates.get(key).unwrap_or(0);
            if known_ns != 0 && !contents.is_copy && !is_beside {
                let bounds = (measured.least_ns.unsigned_abs(), measured.most_ns.unsigned_abs());
                lane.compare(self.here, known_ns, bounds);
            }
            if measured.is_exact && !is_beside {
                known_ns = context.gpu.estimates.learn(self.here, key, took_ns).unwrap_or(0);
                record::took(key, took_ns);
            } else if is_beside {
                context.gpu.estimates.beside(self.here, key, measured.most_ns.unsigned_abs());
            } else {
                context.gpu.estimates.bound(self.here, key, measured.most_ns.unsigned_abs());
            }
        }
        let Some(meter) = context.gpu.meter() else { return };
        let is_sparse = measured.was_idle || !measured.is_exact;
        let single = is_sparse && launches == 1;
        if contents.is_copy {
            let Some(account) = self.accounts.get_mut(context.ordinal) else { return };
            let fresh_ns = account.charge_copy(&measured, times.1);
            meter.copy_ns.fetch_add(fresh_ns, Ordering::Relaxed);
            if context.gpu.charges_copies() {
                let place = (times.1 - measured.took_ns, times.1);
                self.charge_time(context, lane, single, place, took_ns);
            }
            return;
        }
        let expected_ns = told.expected_ns.unsigned_abs();
        let own_ns = if is_beside && expected_ns > 0 { took_ns.min(expected_ns) } else { took_ns };
        lane.learn(self.here, own_ns / launches, is_sparse);
        let stretched_ns = if expected_ns > 0 { took_ns.saturating_sub(expected_ns) } else { 0 };
        let others_ns = self.judge_stretched(context, stretched_ns, is_beside);
        self.charge_kernels(context, lane, single, (measured.start_ns, times.1), took_ns - others_ns);
        meter.longest_ns.fetch_max(known_ns.min(took_ns), Ordering::Relaxed);
    }

    /// Charges a segment that has only an end event, by its estimate.
    fn charge_known(
        &mut self,
        context: &ContextState,
        inner: &Inner,
        lane: &Lane,
        contents: &Contents,
        (start_ns, end_ns): (i64, i64),
    ) {
        lane.set_previous_end(inner, Some(end_ns));
        if contents.launches > 1 {
            // The segment can have gaps, because it grew while the ring had no room for more
            // segments.
            return self.charge_lost(context, contents);
        }
        self.charge_kernels(context, lane, true, (start_ns, end_ns), contents.expected_ns);
    }

    /// Records that kernels began at `start_ns` and ended at `end_ns`.
    fn note_edges(&mut self, context: &ContextState, (start_ns, end_ns): (u64, u64)) {
        let Some(account) = self.accounts.get_mut(context.ordinal) else { return };
        account.ended_ns = account.ended_ns.max(end_ns);
        if let Some(began_ns) = context.gpu.begins(self.here, start_ns)
            && let Some(edges) = edges(self.process, context.gpu)
        {
            edges.began.set(began_ns);
        }
    }

    /// Decides about `stretched_ns`, the time by which launches took longer than their estimates.
    /// Returns the part of this time in which the GPU worked for other tenants, as far as the
    /// process knows. A daemon finds out this part by itself, so with a daemon the method records
    /// the time for the daemon, and returns 0. If several streams of the process run, their
    /// launches can be the reason, so the method returns 0. `is_beside`: other tenants' work can
    /// have run beside the launches.
    fn judge_stretched(&self, context: &ContextState, stretched_ns: u64, is_beside: bool) -> u64 {
        let Some(account) = self.accounts.get(context.ordinal) else { return 0 };
        if stretched_ns == 0 || account.has_several(self.ticked_ns) {
            return 0;
        }
        if is_beside && self.process.session().is_some_and(|session| session.stand_in(context.gpu).is_some())
        {
            return stretched_ns;
        }
        if let Some(word) = stretched(self.process, context.gpu) {
            word.fetch_add(stretched_ns, Ordering::Relaxed);
        }
        0
    }

    /// Charges kernels that took `took_ns` between `start_ns` and `end_ns`, and records when they
    /// began and ended. `single`: there is one launch, on a stream that has gaps.
    fn charge_kernels(
        &mut self,
        context: &ContextState,
        lane: &Lane,
        single: bool,
        (start_ns, end_ns): (i64, i64),
        took_ns: u64,
    ) {
        let on_host = |ns: i64| u64::try_from(ns).unwrap_or(0);
        self.note_edges(context, (on_host(start_ns), on_host(end_ns)));
        self.charge_time(context, lane, single, (start_ns, end_ns), took_ns);
    }

    /// Charges `took_ns` of a stream's time between `start_ns` and `end_ns`. The stream ran
    /// kernels, or copies that the tenant has to pay for. `single`: there is one launch, on a
    /// stream that has gaps.
    fn charge_time(
        &mut self,
        context: &ContextState,
        lane: &Lane,
        single: bool,
        (start_ns, end_ns): (i64, i64),
        took_ns: u64,
    ) {
        let ticked_ns = self.ticked_ns;
        let Some(account) = self.accounts.get_mut(context.ordinal) else { return };
        let Some(meter) = context.gpu.meter() else { return };
        account.saw(lane.stream_number(), ticked_ns);
        let charged = account.charge(took_ns, (start_ns, end_ns), single);
        match charged.place {
            Some(place) => self.process.cover(context.gpu, self.launched_ns, place),
            None => self.process.charge(context.gpu, self.launched_ns, charged.ns),
        }
        if let Some(permille) = account.overlap_permille() {
            context.gpu.set_overlap_permille(self.here, permille);
        }
        meter.compute_ns.fetch_add(charged.ns, Ordering::Relaxed);
    }

    /// Charges the launches that no segment contains.
    fn charge_late(&mut self) {
        self.launched_ns = self.ticked_ns;
        for (ordinal, gpu) in self.process.gpus.iter().enumerate() {
            if gpu.meter().is_some() {
                self.charge_unplaced(ordinal, gpu, gpu.take_late_ns(self.here));
            }
        }
    }

    /// Charges a segment whose place on the time line is unknown, by its estimate.
    fn charge_lost(&mut self, context: &ContextState, contents: &Contents) {
        if contents.is_copy {
            self.charge_copied(context, contents.expected_ns);
        } else {
            self.note_edges(context, (contents.began_ns, contents.closed_ns));
            self.charge_unplaced(context.ordinal, context.gpu, contents.expected_ns);
        }
    }

    /// Returns whether, on any GPU, the gate has closed and the work in flight ends soon.
    fn is_drained_soon(&self) -> bool {
        self.process.gpus.iter().zip(&self.accounts).any(|(gpu, account)| {
            let is_busy = || gpu.meter().is_some_and(|meter| meter.in_flight().is_some());
            let queued_ns = gpu.queued_ns();
            let is_soon = || {
                queued_ns <= DRAINED_SOON_NS
                    || account.ns_from_end(queued_ns, self.ticked_ns) <= DRAINED_SOON_NS
            };
            !gpu.may_launch() && is_busy() && is_soon()
        })
    }

    /// Counts copies whose time is known, but not their place on the time line. If the grant says
    /// that the arbiter charges copies, adds the time to the GPU time.
    fn charge_copied(&mut self, context: &ContextState, took_ns: u64) {
        let Some(meter) = context.gpu.meter().filter(|_| took_ns != 0) else { return };
        meter.copy_ns.fetch_add(took_ns, Ordering::Relaxed);
        if context.gpu.charges_copies() {
            self.charge_unplaced(context.ordinal, context.gpu, took_ns);
        }
    }

    /// Charges `took_ns` of GPU time whose place on the time line is unknown.
    fn charge_unplaced(&mut self, ordinal: usize, gpu: &Gpu, took_ns: u64) {
        let Some(account) = self.accounts.get_mut(ordinal).filter(|_| took_ns != 0) else { return };
        let Some(meter) = gpu.meter() else { return };
        let charged_ns = account.charge_unplaced(took_ns);
        meter.compute_ns.fetch_add(charged_ns, Ordering::Relaxed);
        self.process.charge(gpu, self.launched_ns, charged_ns);
    }

    /// Returns the pause until the next look while work is in flight and all gates are open, ns. If
    /// the daemon measures requests, several streams run, or segments grow, only frequent looks are
    /// exact. An older daemon does not tell whether it measures requests, so the looks are frequent
    /// too.
    fn alone_ns(&self, now_ns: u64) -> u64 {
        let is_untold = || self.process.session().is_some_and(|session| !session.grant().tells_timed());
        let is_timed = || self.process.gpus.iter().any(|gpu| gpu.grant().is_some_and(GrantSlot::is_timed));
        let needs_looks = |account: &Account| account.is_crowded || account.has_several(now_ns);
        if self.accounts.iter().any(needs_looks) || is_untold() || is_timed() {
            return TICK_ALONE_NS;
        }
        let open_ns = now_ns.saturating_sub(self.contended_ns);
        let pause_ns = |gpu: &Gpu| tick_ns(open_ns, gpu.run_ahead_ns(), gpu.queued_ns());
        self.process.gpus.iter().map(pause_ns).min().unwrap_or(TICK_ALONE_NS)
    }

    /// Sleeps until the next look is due, a launch wakes the thread, or the connection ends. Before
    /// the sleep, the method takes the next step of a search for the daemon.
    fn pause(&mut self, is_busy: bool) {
        let now_ns = os::now_ns();
        if self.process.session().is_some_and(Session::seeks_daemon) {
            self.reconnect.step(self.here, self.process, now_ns);
        }
        self.process.return_shares(self.here, now_ns);
        if now_ns >= self.keep_due_ns && self.process.has_lost_share(now_ns) {
            self.process.leave_daemon(self.here);
            // The arbiters of other GPUs can go later, so only a failed attempt causes a pause.
            if self.process.has_lost_share(now_ns) {
                self.keep_due_ns = now_ns.saturating_add(KEEP_AGAIN_NS);
            }
        }
        let Some(session) = self.process.session() else {
            os::sleep(TICK_ALONE_NS);
            return;
        };
        let is_contended = self.process.is_contended();
        if is_contended {
            self.contended_ns = now_ns;
        }
        let mut sleep_ns = match (is_busy, is_contended) {
            (false, _) if self.idle_ticks >= LINGER_TICKS => SLEEP_NS,
            (true, true) if self.is_drained_soon() => TICK_DRAINING_NS,
            (_, true) => TICK_CONTENDED_NS,
            (true, false) if self.is_awaited => TICK_CONTENDED_NS,
            (true, false) => self.alone_ns(now_ns),
            (false, false) => TICK_LINGER_NS,
        };
        sleep_ns = match self.moves {
            Moves::None => sleep_ns,
            Moves::Rest => sleep_ns.min(mover::LOOK_NS),
            Moves::More => sleep_ns.min(TICK_ALONE_NS),
        };
        sleep_ns = sleep_ns.min(session.guard(&self.process.gpus, now_ns));
        let seeks_daemon = session.seeks_daemon();
        if seeks_daemon {
            sleep_ns = sleep_ns.min(self.reconnect.due_ns().saturating_sub(now_ns).max(TICK_CONTENDED_NS));
        }
        if let Some(turn_at_ns) = self.turn_at_ns {
            sleep_ns = sleep_ns.min(turn_at_ns.saturating_sub(now_ns));
        }
        let mut is_deep = !is_busy && sleep_ns > TICK_LINGER_NS;
        if is_deep && !self.process.prepare_sleep(self.here) {
            // Work can be in flight after all, so the sleep is short. The sleep is not 0, because
            // the thread must not loop without a pause.
            (is_deep, sleep_ns) = (false, TICK_ALONE_NS.min(sleep_ns));
        }
        let socket = if seeks_daemon { self.reconnect.socket() } else { session.socket() };
        let mut ended = false;
        if is_deep || now_ns.saturating_sub(self.checked_ns) > SLEEP_NS {
            self.checked_ns = now_ns;
            ended = self.process.look_at_descriptors(self.here, socket);
        }
        ended = ended || self.process.sleep(self.here, socket, sleep_ns, is_deep);
        if is_deep {
            self.process.finish_sleep(self.here);
        }
        if ended && !seeks_daemon {
            session.set_gone();
            say!(Info, "the daemon is gone; the job goes on without a daemon");
            self.process.leave_daemon(self.here);
            self.reconnect.begin(os::now_ns());
        }
    }
}

#[cfg(test)]
impl MeterThread {
    /// Returns the proof for a test that stands in for the meter thread.
    pub const fn acted() -> Self {
        Self(PhantomData)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_become_fewer_the_longer_a_job_has_the_gpu_to_itself() {
        assert_eq!(tick_ns(0, u64::MAX, 0), TICK_ALONE_NS, "another tenant may come back at once");
        assert_eq!(tick_ns(256_000_000, u64::MAX, 0), 1_000_000);
        let late_ns = tick_ns(u64::MAX, 100_000_000, 100_000_000);
        assert_eq!(late_ns, TICK_LINGER_NS, "a hand-off after a long time may cost this");
    }

    #[test]
    fn looks_are_frequent_if_threads_may_wait_for_them() {
        let ahead_ns = 4_000_000;
        assert_eq!(tick_ns(u64::MAX, ahead_ns, 0), ahead_ns / 2, "no thread waits before the next look");
        assert_eq!(tick_ns(u64::MAX, ahead_ns, 1_000_000), 1_000_000);
        assert_eq!(tick_ns(u64::MAX, ahead_ns, ahead_ns), ahead_ns / TICKS_PER_RUN_AHEAD);
        assert_eq!(tick_ns(u64::MAX, 1_000_000, 1_000_000), TICK_ALONE_NS);
    }
}
