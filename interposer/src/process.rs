//! The state of this process once a session has begun. Before that, and in a forked child, there is
//! no state, and every hook forwards its call.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::{io, ptr};

use deepres_abi::MAX_GPUS;
use deepres_abi::coverage::Bypass;
use deepres_abi::driver::result::CUDA_ERROR_CONTEXT_IS_DESTROYED;
use deepres_abi::oversubscribe::Oversubscribe;
use deepres_abi::wire::{UNMANAGED, Uuid};

use crate::config::{self, Config};
use crate::descriptor::{OwnDescriptor, Place};
use crate::driver::calls::{Calls, Context, Stream};
use crate::handshake::{self, Arrival, ConnectError, Connection, Pending, Question};
use crate::lock_order::{Guard, Mutex, Rank};
use crate::log::say;
use crate::memory::Accounts;
use crate::meter::context::{ContextState, Inner};
use crate::meter::gpu::{Gpu, Shared};
use crate::meter::lane::LaneOwner;
use crate::meter::thread::MeterThread;
use crate::meter::{self, alone};
use crate::resolve::{is_behind_another, is_disabled};
use crate::session::Session;
use crate::standalone::Local;
use crate::{capture, coverage, os, record, thread};

/// Longest time that the end of the process waits for the meter thread to be out of the driver.
const STOP_WAIT_NS: u64 = 20_000_000;
/// Time between two looks of that wait, ns.
const STOP_LOOK_NS: u64 = 50_000;
/// Time between two looks of a thread that waits for another thread's handshake, ns.
const START_LOOK_NS: u64 = 100_000;
/// Time between two looks of the meter thread at its connection, where the connection cannot end
/// its sleep, ns.
const STEP_NS: u64 = 100_000_000;
/// How long nobody asks the daemon for NVML's numbers after the daemon did not answer, ns.
const APPRAISE_AGAIN_NS: u64 = 10_000_000_000;

/// The state of this process, which lives until the process ends.
pub struct Process {
    /// The driver.
    pub calls: Calls,
    /// One for each GPU, by ordinal in this process.
    pub gpus: Box<[Gpu]>,
    /// The device memory that the process holds.
    pub memory: Accounts,
    config: Config,
    uuids: Vec<Uuid>,
    /// When the process first looked for a daemon.
    began_ns: u64,
    session: Shared<Session>,
    /// The session without a daemon that came before the present one, if a daemon took over such a
    /// process.
    before: Shared<Session>,
    /// All contexts. Those of destroyed contexts are kept, to be used again.
    contexts: Mutex<{ Rank::Contexts as u8 }, Vec<&'static ContextState>>,
    /// One of the contexts. Often there is no other, and then no thread needs to remember a context
    /// itself.
    first_context: Shared<ContextState>,
    /// One for each GPU, held while its primary context is made or ended.
    primaries: [Mutex<{ Rank::Primary as u8 }, Option<Context>>; MAX_GPUS],
    /// 1 while the meter thread sleeps. The thread sleeps until [`Self::wake`] is rung, or on this
    /// word if that descriptor is gone.
    is_meter_asleep: AtomicU32,
    wake: Place,
    is_stopping: AtomicBool,
    is_stopped: AtomicBool,
    /// Until this time nobody asks the daemon for NVML's numbers (`CLOCK_MONOTONIC`).
    unappraised_ns: AtomicU64,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());

/// Whether this process has tried to begin a session.
static START: AtomicU8 = AtomicU8::new(NOT_STARTED);
const NOT_STARTED: u8 = 0;
const STARTING: u8 = 1;
const STARTED: u8 = 2;

/// Returns the process's state, if a session has begun.
#[inline(always)]
pub fn current() -> Option<&'static Process> {
    // SAFETY: only `begin` stores a pointer here, to a leaked box. `forked` and `stop` clear the
    // pointer without freeing the box.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

/// Counts a call that comes before the session. Where it is known that there will be none, nobody
/// can read the count.
#[cold]
#[inline(never)]
pub fn count_early() {
    if START.load(Ordering::Relaxed) != STARTED {
        coverage::bypass(Bypass::NoSession);
    }
}

/// Announces that a session is about to begin, as long as the result lives. The driver's own start
/// uses the GPU, and can take seconds. Returns `None` if there is a session already, or nobody to
/// tell.
pub fn announce() -> Option<Arrival> {
    if is_disabled() || START.load(Ordering::Acquire) != NOT_STARTED {
        return None;
    }
    let _uncancelled = os::uncancelled();
    Arrival::announce(&config::tenant_sockets())
}

/// Begins a session once, after the driver was initialised. Never fails: without a session, the
/// process goes on as without the interposer.
pub fn start() {
    if is_disabled() {
        if is_behind_another() && START.swap(STARTED, Ordering::AcqRel) == NOT_STARTED {
            say!(Info, "another copy of the library is preloaded before this one: that one does the work");
        }
        return;
    }
    match START.compare_exchange(NOT_STARTED, STARTING, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            let _uncancelled = os::uncancelled();
            begin();
            START.store(STARTED, Ordering::Release);
        }
        // Another thread is in the handshake, which takes a bounded time. This thread waits, so
        // that its next calls are metered too.
        Err(STARTING) => {
            while START.load(Ordering::Acquire) == STARTING {
                os::sleep(START_LOOK_NS);
            }
        }
        Err(_) => {}
    }
}

fn begin() {
    let began_ns = os::now_ns();
    let config = Config::read();
    let calls = match Calls::find() {
        Ok(calls) => calls,
        Err(missing) => {
            if config.is_asked_for {
                say!(Warn, "this driver has no {missing}; the job runs unmetered");
            }
            return;
        }
    };
    let mut uuids = vec![Uuid::default(); MAX_GPUS];
    let count = calls.uuids(&mut uuids);
    uuids.truncate(count);
    let begun = handshake::shake(&config, &uuids).and_then(|connection| {
        let index = connection.welcome.gpu_index;
        Ok((Session::new(connection, uuids.len(), None)?, index))
    });
    let Some((session, index)) = begun.map_or_else(|error| begin_alone(&config, &uuids, &error), Some) else {
        return;
    };
    let wake = OwnDescriptor::eventfd();
    let process: &'static Process = Box::leak(Box::new(Process {
        calls,
        gpus: uuids.iter().map(|_| Gpu::default()).collect(),
        memory: Accounts::default(),
        config,
        uuids,
        began_ns,
        session: Shared::none(),
        before: Shared::none(),
        contexts: Mutex::default(),
        first_context: Shared::none(),
        primaries: Default::default(),
        is_meter_asleep: AtomicU32::new(0),
        wake: Place::none(),
        is_stopping: AtomicBool::new(false),
        is_stopped: AtomicBool::new(false),
        unappraised_ns: AtomicU64::new(0),
    }));
    let session: &'static Session = Box::leak(Box::new(session));
    if process.config.oversubscribe == Some(Oversubscribe::Managed) {
        process.memory.oversubscription.want();
    }
    process.wake.swap(wake);
    session.attach(&process.gpus, &index, wake);
    process.session.set(Some(session));
    if let Err(error) = meter::thread::start(process) {
        say!(Warn, "no thread for metering ({error}); the job runs unmetered");
        session.end();
        return;
    }
    if let Some(path) = process.config.record.as_deref() {
        record::start(path);
    }
    PROCESS.store(ptr::from_ref(process).cast_mut(), Ordering::Release);
    // SAFETY: both handlers are plain functions of this library, which is never unloaded.
    unsafe {
        libc::pthread_atfork(None, None, Some(forked));
        libc::atexit(stop);
    }
    coverage::look_past();
    if session.standalone().is_none() {
        say!(Info, "session {} with {} GPUs", session.id(), process.gpus.len());
    }
}

/// Begins a session without a daemon, where none answered, if the process needs one. Returns the
/// session and the places of its GPUs in it.
fn begin_alone(config: &Config, uuids: &[Uuid], error: &ConnectError) -> Option<(Session, [u8; MAX_GPUS])> {
    let is_absent = matches!(error, ConnectError::Absent(..));
    if is_absent && !config.is_asked_for {
        // The environment does not mention deepres, and there is no daemon.
        return None;
    }
    let keeps_limits = error.may_pass() && config.is_limited() && !config.is_socket_named;
    // The process waits for a daemon that hangs, has no room, or is about to come back. A process
    // that keeps limits by itself does not wait for an absent daemon.
    let is_waiting = error.may_pass() && !(is_absent && keeps_limits);
    match (keeps_limits, is_waiting) {
        (true, true) => say!(Warn, "{error}; the job keeps its limits by itself until a daemon takes it up"),
        (true, false) => {}
        (false, true) => say!(Warn, "{error}; the job runs unshared until a daemon takes it up"),
        (false, false) => {
            say!(Warn, "{error}; the job runs unmetered");
            return None;
        }
    }
    let local = if keeps_limits { Local::begin(config, uuids) } else { Local::unlimited(uuids) };
    let local = local.inspect_err(|error| say!(Warn, "no memory for limits ({error}); the job runs without"));
    let local = local.ok()?;
    let index = local.gpu_index;
    Some((Session::local(local, is_waiting), index))
}

/// Clears the state in a forked child. The child has no session and no meter thread, and the driver
/// does not work in it either.
extern "C" fn forked() {
    let process = PROCESS.swap(ptr::null_mut(), Ordering::AcqRel);
    START.store(NOT_STARTED, Ordering::Release);
    coverage::forget_calls();
    record::forget();
    thread::reset();
    alone::forget();
    // SAFETY: `begin` stored the pointer, and the state is never freed.
    let Some(process) = (unsafe { process.as_ref() }) else { return };
    for session in process.session().into_iter().chain(process.before.get()) {
        // SAFETY: this is the child's only thread, and it has just cleared the process state.
        unsafe { session.close() };
    }
    // No other thread uses the descriptor, because this is the child's only thread.
    if let Some(wake) = process.wake.get() {
        wake.close();
    }
}

/// Ends the metering at the end of the process, before the driver's own end. Waits until the meter
/// thread is out of the driver. Later calls of the process bypass the interposer.
pub extern "C" fn stop() {
    let Some(process) = current() else { return };
    coverage::look_past();
    coverage::report();
    if let Some(session) = process.session() {
        coverage::publish_now(session.meter(), os::now_ns());
    }
    process.is_stopping.store(true, Ordering::SeqCst);
    process.rouse_meter();
    let until_ns = os::now_ns() + STOP_WAIT_NS;
    while !process.is_stopped.load(Ordering::Acquire) && os::now_ns() < until_ns {
        os::sleep(STOP_LOOK_NS);
    }
    // A later launch would wait for completions that nobody sees any more.
    PROCESS.store(ptr::null_mut(), Ordering::Release);
    record::end();
    let sessions = process.session().into_iter().chain(process.before.get());
    sessions.filter_map(Session::standalone).for_each(Local::leave);
}

impl Process {
    /// Returns the session, whose connection may have ended.
    #[inline(always)]
    pub fn session(&self) -> Option<&'static Session> {
        self.session.get()
    }

    /// The signal by which the job wants to be told to give memory back.
    pub fn pressure_signal(&self) -> Option<i32> {
        self.config.pressure
    }

    /// The ordinal of a GPU in this process.
    pub fn ordinal_of(&self, uuid: &Uuid) -> Option<usize> {
        self.uuids.iter().position(|own| own == uuid)
    }

    /// Asks the daemon how many bytes NVML reports for this process on the GPU `ordinal`. Returns
    /// `None` if nobody can tell.
    pub fn appraise(&self, ordinal: usize) -> Option<u64> {
        let uuid = *self.uuids.get(ordinal)?;
        if self.session()?.standalone().is_some()
            || os::now_ns() < self.unappraised_ns.load(Ordering::Relaxed)
        {
            return None;
        }
        let _uncancelled = os::uncancelled();
        let answer = handshake::appraise(&self.config, uuid);
        if answer.is_err() {
            self.unappraised_ns.store(os::now_ns() + APPRAISE_AGAIN_NS, Ordering::Relaxed);
        }
        answer.ok().flatten()
    }

    /// Asks as [`Self::appraise`] does, for callers that do not wait. Returns `None` if nobody can
    /// be asked.
    pub fn question(&self, ordinal: usize) -> Option<Question> {
        let uuid = *self.uuids.get(ordinal)?;
        self.session().filter(|session| session.standalone().is_none())?;
        Question::ask(&self.config, uuid).ok()
    }

    /// Notes that the daemon answers again, so that a thread that makes a context may wait for its
    /// answer.
    pub fn believe_appraisals(&self) {
        self.unappraised_ns.store(0, Ordering::Relaxed);
    }

    /// Asks the daemon for a new session.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn say_hello(&self) -> Result<Pending, ConnectError> {
        let sessions = self.session().map_or(0, Session::sessions);
        let age_ns = if sessions == 0 { os::now_ns().saturating_sub(self.began_ns) } else { 0 };
        Pending::begin(&self.config, &self.uuids, sessions, age_ns)
    }

    /// Goes on with a daemon that came back: moves the held memory to its ledger, and obeys its
    /// gates.
    ///
    /// # Errors
    /// [`ConnectError`], if the daemon's pages cannot be used.
    pub fn renew(&self, meter: MeterThread, connection: Connection) -> Result<(), ConnectError> {
        let Some(session) = self.session() else { return Ok(()) };
        if session.standalone().is_some() {
            return self.join(session, connection);
        }
        let is_renumbered = |(gpu, index): (&Gpu, &u8)| {
            *index != UNMANAGED && gpu.index().is_some_and(|before| before != usize::from(*index))
        };
        // A thread that is launching counts in the slot of the old number, so the numbers must stay
        // the same.
        if self.gpus.iter().zip(&connection.welcome.gpu_index).any(is_renumbered) {
            return Err(ConnectError::Renumbered);
        }
        let index = session.renew(meter, connection, &self.gpus)?;
        session.attach(&self.gpus, &index, None);
        if self.wake.get().is_none() {
            // The reason that took the descriptor away may be over.
            self.wake.swap(OwnDescriptor::eventfd());
        }
        self.memory.move_to(session, &self.gpus);
        say!(Info, "the daemon is back: session {}", session.id());
        Ok(())
    }

    /// Goes over to a daemon that takes over the process, which had a session without a daemon.
    fn join(&self, alone: &'static Session, connection: Connection) -> Result<(), ConnectError> {
        let index = connection.welcome.gpu_index;
        let session = Session::new(connection, self.gpus.len(), Some(alone))?;
        let session: &'static Session = Box::leak(Box::new(session));
        self.before.set(Some(alone));
        alone.hand_over(session, &self.session, &self.gpus, &index);
        self.memory.move_to(session, &self.gpus);
        // This is as loud as the message at the beginning.
        say!(Warn, "a daemon has taken the job up: session {} with {} GPUs", session.id(), self.gpus.len());
        Ok(())
    }

    /// Notes that work was on a GPU from `start_ns` to `end_ns`. Time that other processes of the
    /// tenant report too is charged once. Without a daemon, the process charges its tenant itself.
    pub fn cover(&self, gpu: &Gpu, start_ns: i64, end_ns: i64) {
        let Some((session, index)) = self.session().zip(gpu.index()) else { return };
        let (start_ns, end_ns) = (start_ns.max(0) as u64, end_ns.max(0) as u64);
        match session.standalone() {
            Some(local) => local.cover(index, start_ns, end_ns),
            None => session
                .meter()
                .intervals(index)
                .into_iter()
                .for_each(|intervals| intervals.add(start_ns, end_ns)),
        }
    }

    /// As [`Self::cover`], for GPU time whose place in time is unknown.
    pub fn charge(&self, gpu: &Gpu, used_ns: u64) {
        if let Some((local, index)) = self.session().and_then(Session::standalone).zip(gpu.index()) {
            local.charge(index, used_ns);
        }
    }

    /// Without a daemon, takes the arbiter's turn. Returns when the next turn is due at the latest.
    pub fn turn(&self, _meter: MeterThread, now_ns: u64) -> Option<u64> {
        self.session().and_then(Session::standalone)?.turn(now_ns)
    }

    /// Whether the process is ending.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }

    /// Notes that the meter thread is out of the driver for good.
    pub fn set_stopped(&self, _meter: MeterThread) {
        self.is_stopped.store(true, Ordering::Release);
    }

    /// Whether another tenant waits for this process's work in flight, or this process waits at a
    /// gate.
    pub fn is_contended(&self) -> bool {
        self.gpus.iter().any(|gpu| !gpu.is_open())
    }

    /// Returns the primary context of a GPU as it was last retained. While the result lives, no
    /// other thread makes or ends that context. Returns `None` if there is no such GPU.
    pub fn primary(&self, ordinal: usize) -> Option<Guard<'_, Option<Context>>> {
        Some(self.primaries.get(ordinal)?.lock())
    }

    /// Returns the contexts that are not destroyed.
    pub fn contexts(&self) -> Vec<&'static ContextState> {
        let contexts = self.contexts.lock();
        contexts.iter().copied().filter(|context| !context.is_dead()).collect()
    }

    /// Whether a context is gone, and with it everything in it. False for 0, which means no
    /// context.
    pub fn is_gone(&self, context: usize) -> bool {
        let contexts = self.contexts.lock();
        context != 0 && !contexts.iter().any(|known| known.is_alive_as(Context(context)))
    }

    /// Returns the state of a context. The state is created if the context is on a managed GPU.
    pub fn context(&'static self, handle: Context) -> Option<&'static ContextState> {
        let find = |contexts: &[&'static ContextState]| {
            contexts.iter().copied().find(|context| context.is_alive_as(handle))
        };
        if let Some(known) = find(&self.contexts.lock()) {
            return Some(known);
        }
        // If the driver does not name the device, it is the device for which the context was made,
        // as long as the context exists.
        let made_for = || self.memory.device_of_context(handle);
        let ordinal = self.calls.device_of(handle).or_else(made_for)?;
        let gpu = self.gpus.get(ordinal)?;
        let mut contexts = self.contexts.lock();
        if let Some(known) = find(&contexts) {
            return Some(known);
        }
        let spare = contexts.iter().copied().find(|context| context.is_dead() && context.ordinal == ordinal);
        if let Some(context) = spare {
            context.revive(handle);
        }
        let context = spare.unwrap_or_else(|| {
            let context: &'static ContextState = Box::leak(Box::new(ContextState::new(handle, gpu, ordinal)));
            contexts.push(context);
            context
        });
        if self.first_context.get().is_none_or(|first| first.is_dead()) {
            self.first_context.set(Some(context));
        }
        Some(context)
    }

    /// Returns the state of the context that is current to this thread.
    #[inline]
    pub fn current_context(&'static self) -> Option<&'static ContextState> {
        let handle = self.calls.current_context()?;
        let first = self.first_context.get().filter(|first| first.is_alive_as(handle));
        first.or_else(|| self.other_context(handle))
    }

    /// Returns the context that is probably current to this thread, where the driver does not name
    /// it: the one that was last current, or else any other context.
    #[cold]
    pub fn likely_context(&'static self) -> Option<&'static ContextState> {
        match self.calls.ask_current_context() {
            Ok(handle) => self.context(handle?),
            // The context cannot be used any more.
            Err(CUDA_ERROR_CONTEXT_IS_DESTROYED) => None,
            Err(_) => thread::last_context()
                .or_else(|| self.contexts().pop())
                .or_else(|| self.context(self.memory.last_context()?)),
        }
    }

    /// Returns the state of a current context that is not [`Self::first_context`].
    #[inline(never)]
    fn other_context(&'static self, handle: Context) -> Option<&'static ContextState> {
        thread::context(handle).or_else(|| {
            let context = self.context(handle)?;
            thread::remember_context(context);
            Some(context)
        })
    }

    /// Returns the calling thread's lane on `stream`.
    ///
    /// # Errors
    /// The reason why there is none: the stream's GPU is not managed, or the driver cannot name the
    /// stream's context, or the context has just ended.
    pub fn lane(&'static self, stream: Stream) -> Result<LaneOwner, Bypass> {
        if let Some(lane) = thread::lane(&self.calls, stream) {
            return Ok(lane);
        }
        let handle = self.calls.context_of(stream).ok_or(Bypass::NoContext)?;
        let context = self.context(handle).ok_or(Bypass::NoContext)?;
        context.gpu.index().ok_or(Bypass::UnmanagedGpu)?;
        let lane = context.lane(handle, stream, thread::id()).ok_or(Bypass::NoLane)?;
        thread::remember(&self.calls, stream, handle, lane);
        Ok(lane)
    }

    /// Ends every open segment on `stream`, of all threads, because the stream is about to be
    /// destroyed (`forever`) or captured.
    pub fn close_stream(&self, stream: Stream, forever: bool) {
        let _uncancelled = os::uncancelled();
        for context in self.contexts() {
            let inner = context.lock();
            if context.is_dead() {
                continue;
            }
            for lane in inner.lanes.iter().filter(|lane| lane.stream() == Some(stream)) {
                lane.close(&self.calls);
                lane.await_closed();
                if forever {
                    lane.retire(&inner);
                }
            }
        }
        if forever {
            thread::forget_lanes();
        }
    }

    /// Runs `destroy`, which may destroy the context `handle`, while no other thread uses that
    /// context. `is_destroyed` tells by the result and by the state of a known context. If the
    /// context was destroyed, the context and the memory in it are forgotten.
    pub fn destroy_context<T>(
        &self,
        handle: Context,
        destroy: impl FnOnce() -> T,
        is_destroyed: impl FnOnce(&T, Option<&mut Inner>) -> bool,
    ) -> T {
        let (result, is_gone) = self.end_context(handle, destroy, is_destroyed);
        if is_gone {
            self.memory.forget_context(handle.0, self);
        }
        result
    }

    /// As [`Self::destroy_context`], for a context whose memory belongs to another context. Returns
    /// the result, and whether the context is gone.
    pub fn end_context<T>(
        &self,
        handle: Context,
        destroy: impl FnOnce() -> T,
        is_destroyed: impl FnOnce(&T, Option<&mut Inner>) -> bool,
    ) -> (T, bool) {
        let _uncancelled = os::uncancelled();
        let contexts = self.contexts();
        let known = contexts.iter().find(|context| context.handle() == handle);
        let mut inner = known.map(|context| context.lock());
        // Another thread may have destroyed the context meanwhile.
        let known = known.filter(|context| context.is_alive_as(handle));
        inner = inner.filter(|_| known.is_some());
        let lanes = inner.iter().flat_map(|inner| &inner.lanes);
        // The handle of the per-thread stream names another stream in each thread. The open
        // segments on these streams are dropped.
        for lane in lanes.filter(|lane| lane.stream() != Some(Stream::PER_THREAD)) {
            lane.close(&self.calls);
            lane.await_closed();
        }
        if let (Some(context), Some(inner)) = (known, inner.as_mut()) {
            // Without the relaxed capture mode, a query would end another thread's capture.
            if let Some(_relaxed) = self.calls.relaxed() {
                self.calls.in_context(handle, || {
                    context.charge_complete(&self.calls, inner);
                    Some(())
                });
            }
        }
        let result = destroy();
        let is_gone = is_destroyed(&result, inner.as_deref_mut());
        if is_gone {
            // Threads look their lanes up again from now on, and such a look-up waits for the lock.
            thread::forget_lanes();
            if let (Some(context), Some(inner)) = (known, inner.as_mut()) {
                context.kill(inner);
            }
            drop(inner);
            capture::forget_context(handle);
        }
        (result, is_gone)
    }

    /// Wakes the meter thread if it sleeps, because a segment was opened.
    #[inline]
    pub fn wake_meter(&self) {
        if self.is_meter_asleep.load(Ordering::SeqCst) != 0 {
            self.rouse_meter();
        }
    }

    /// Ends the meter thread's sleep.
    #[cold]
    pub fn rouse_meter(&self) {
        if !self.wake.get().is_some_and(OwnDescriptor::ring) {
            self.is_meter_asleep.store(0, Ordering::SeqCst);
            os::futex_wake_private(&self.is_meter_asleep);
        }
    }

    /// Checks whether the job has closed the descriptors on which the meter thread waits. Returns
    /// whether the job has closed `socket`, and with it the connection.
    pub fn look_at_descriptors(&self, _meter: MeterThread, socket: Option<OwnDescriptor>) -> bool {
        if !self.wake.get().is_some_and(OwnDescriptor::is_ours) {
            self.wake.swap(None);
        }
        socket.is_some_and(|socket| !socket.is_ours())
    }

    /// Whether any launch or copy on the GPU `ordinal` may be under way.
    pub fn may_have_work(&self, ordinal: usize) -> bool {
        self.contexts().iter().any(|context| context.ordinal == ordinal && context.may_have_work())
    }

    /// Prepares a deep sleep of the meter thread. Returns false if work may be under way after all.
    pub fn prepare_sleep(&self, meter: MeterThread) -> bool {
        self.is_meter_asleep.store(1, Ordering::SeqCst);
        let is_busy = self.memory.pools.is_release_due()
            || self.contexts().iter().any(|context| context.may_have_work());
        if is_busy {
            self.finish_sleep(meter);
        }
        !is_busy
    }

    /// Notes that the meter thread is awake.
    pub fn finish_sleep(&self, _meter: MeterThread) {
        self.is_meter_asleep.store(0, Ordering::SeqCst);
    }

    /// Lets the meter thread sleep. `is_deep`: other threads know of the sleep and wake the thread.
    /// Returns whether `socket`, if there is one, has ended.
    pub fn sleep(
        &self,
        _meter: MeterThread,
        socket: Option<OwnDescriptor>,
        mut sleep_ns: u64,
        is_deep: bool,
    ) -> bool {
        let wake = self.wake.get();
        if wake.is_none() {
            let nap_ns = if socket.is_some() { sleep_ns.min(STEP_NS) } else { sleep_ns };
            if is_deep {
                os::futex_wait_private(&self.is_meter_asleep, 1, nap_ns);
            } else {
                os::sleep(nap_ns);
            }
            sleep_ns = 0;
        }
        let polled = |descriptor: Option<OwnDescriptor>| libc::pollfd {
            fd: descriptor.map_or(-1, OwnDescriptor::unchecked),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut polled = [polled(socket), polled(wake)];
        let timeout = os::timespec(sleep_ns);
        // SAFETY: the array and the timeout outlive the call.
        let ready = unsafe { libc::ppoll(polled.as_mut_ptr(), polled.len() as u64, &timeout, ptr::null()) };
        if ready < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            // A system call filter of the job may refuse `ppoll`. From now on the thread sleeps
            // without the descriptor.
            self.wake.swap(None);
        }
        if ready <= 0 {
            return false;
        }
        if polled[1].revents != 0 && !wake.is_some_and(OwnDescriptor::hush) {
            self.wake.swap(None);
        }
        // The daemon sends nothing after its welcome, so any event means the end. The same holds if
        // the number belongs to another file now, because the connection was closed then.
        polled[0].revents != 0
    }
}
