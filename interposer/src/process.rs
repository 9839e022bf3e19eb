//! The state of this process after a session has begun. Before a session, and in a forked child,
//! the process has no state, and each hook forwards its call.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::{fmt, io, ptr};

use deepres_abi::coverage::Bypass;
use deepres_abi::driver::result::CUDA_ERROR_CONTEXT_IS_DESTROYED;
use deepres_abi::fallback::Fallback;
use deepres_abi::grant::{GrantSlot, NO_LIMIT};
use deepres_abi::oversubscribe::Oversubscribe;
use deepres_abi::wire::Uuid;
use deepres_abi::{MAX_GPUS, PPM};

use crate::config::{self, Config};
use crate::descriptor::{OwnDescriptor, Place};
use crate::driver::calls::{Calls, Context, Stream};
use crate::handshake::{self, Arrival, ConnectError, Connection, Greeting, Pending};
use crate::lock_order::{Guard, Mutex, Rank};
use crate::log::say;
use crate::memory::Accounts;
use crate::meter::context::{ContextState, Inner};
use crate::meter::gpu::{Gpu, Shared};
use crate::meter::lane::LaneOwner;
use crate::meter::thread::MeterThread;
use crate::meter::width::Widths;
use crate::meter::{self, alone};
use crate::resolve::{is_behind_another, is_disabled};
use crate::session::Session;
use crate::standalone::{self, Local};
use crate::{capture, coverage, driver, os, record, thread};

/// The longest time for which the end of the process waits until the meter thread is out of the
/// driver, ns.
const STOP_WAIT_NS: u64 = 20_000_000;
/// The time between two checks while the end of the process waits for the meter thread, ns.
const STOP_LOOK_NS: u64 = 50_000;
/// The time between two checks of a thread that waits for another thread's handshake, ns.
const START_LOOK_NS: u64 = 100_000;
/// The longest sleep of the meter thread, ns, if its connection cannot wake the thread.
const STEP_NS: u64 = 100_000_000;
/// The longest sleep of the meter thread until it checks whether the session has begun, ns.
const HELD_NAP_NS: u64 = 1_000_000_000;
/// The time for which no thread asks the daemon for NVML's numbers, after the daemon did not
/// answer, ns.
const APPRAISE_AGAIN_NS: u64 = 10_000_000_000;

/// The state of this process, which lives until the process ends.
pub struct Process {
    /// The driver's functions that deepres calls.
    pub calls: Calls,
    /// The GPUs, by ordinal in this process.
    pub gpus: Box<[Gpu]>,
    /// The device memory that the process holds.
    pub memory: Accounts,
    config: Config,
    uuids: Vec<Uuid>,
    /// When the process first looked for a daemon, ns of `CLOCK_MONOTONIC`.
    began_ns: u64,
    session: Shared<Session>,
    /// The earlier session without a daemon, if a daemon has taken over the process.
    before: Shared<Session>,
    /// All contexts. The process keeps the states of destroyed contexts, and uses them again.
    contexts: Mutex<{ Rank::Contexts as u8 }, Vec<&'static ContextState>>,
    /// One of the contexts. In a process with a single context, no thread needs to remember a
    /// context itself.
    first_context: Shared<ContextState>,
    /// The primary context of each GPU. A thread holds a GPU's lock while it makes or ends the
    /// GPU's primary context.
    primaries: [Mutex<{ Rank::Primary as u8 }, Option<Context>>; MAX_GPUS],
    /// 1 while the meter thread sleeps. A ring of the eventfd [`Self::wake`] ends the sleep. If the
    /// job has closed this eventfd, the thread sleeps on this word.
    is_meter_asleep: AtomicU32,
    wake: Place,
    /// Whether the meter thread may run: [`HELD`], [`RUNS`] or [`DISMISSED`]. The thread waits on
    /// this futex until the session has begun.
    meter: AtomicU32,
    is_stopping: AtomicBool,
    is_stopped: AtomicBool,
    /// The time until which no thread asks the daemon for NVML's numbers, ns of `CLOCK_MONOTONIC`.
    unappraised_ns: AtomicU64,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());

/// The progress of this process's attempt to begin a session.
static START: AtomicU8 = AtomicU8::new(NOT_STARTED);
/// The value of [`START`] before the first attempt to begin a session.
const NOT_STARTED: u8 = 0;
/// The value of [`START`] while a thread tries to begin a session.
const STARTING: u8 = 1;
/// The value of [`START`] after the attempt to begin a session, if the process may use the GPU.
const STARTED: u8 = 2;
/// The value of [`START`] for a process with limits that neither a daemon nor the process itself
/// can keep.
const UNHELD: u8 = 3;

/// The value of [`Process::meter`] until the session has begun.
const HELD: u32 = 0;
/// The value of [`Process::meter`] once the meter thread may run.
const RUNS: u32 = 1;
/// The value of [`Process::meter`] if the process gets no session, so that the meter thread ends.
const DISMISSED: u32 = 2;

/// Returns the process's state, if a session has begun.
#[inline(always)]
pub fn current() -> Option<&'static Process> {
    // SAFETY: only `begin` stores a pointer here, to a leaked box. `forked` and `stop` clear the
    // pointer without freeing the box.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

/// Returns the name of the process's GPU `ordinal` for a message.
pub fn gpu_name(ordinal: usize) -> String {
    let gpu = current().and_then(|process| process.gpus.get(ordinal));
    gpu.map_or_else(|| format!("GPU {ordinal} of this process"), Gpu::to_string)
}

/// Returns the process's state for a call that deepres would meter or charge. Counts a call before
/// the session as a bypass.
#[inline(always)]
pub fn current_or_bypass() -> Option<&'static Process> {
    let process = current();
    if process.is_none() {
        count_early();
    }
    process
}

/// Counts a call before the session as a bypass. If the process has tried to begin a session in
/// vain, counts nothing, because no session would show the count.
#[cold]
#[inline(never)]
fn count_early() {
    if START.load(Ordering::Relaxed) != STARTED {
        coverage::bypass(Bypass::NoSession);
    }
}

/// Announces to the daemon that a session is about to begin. The announcement holds while the
/// result lives. Without the announcement, the daemon would list the process as unmanaged, because
/// a driver that starts uses the GPU, for seconds at times. Returns `None` if the process has tried
/// to begin a session, or if no daemon answers.
pub fn announce() -> Option<Arrival> {
    if is_disabled() || START.load(Ordering::Acquire) != NOT_STARTED {
        return None;
    }
    let _uncancelled = os::uncancelled();
    Arrival::announce(&config::tenant_sockets())
}

/// The error of a process that has limits, if neither a daemon nor the process itself can keep
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unheld;

/// Begins a session once, after the job initialised the driver. If the process has no limits and
/// gets no session, it runs as without the interposer.
///
/// # Errors
/// [`Unheld`] if the process must not use the GPU. The function has logged the reason.
pub fn start() -> Result<(), Unheld> {
    if is_disabled() {
        if is_behind_another() && START.swap(STARTED, Ordering::AcqRel) == NOT_STARTED {
            say!(
                Info,
                "another copy of libdeepres.so is preloaded before this copy; the first copy does the work"
            );
        }
        return Ok(());
    }
    if START.load(Ordering::Acquire) == NOT_STARTED {
        // The C library knows the handler before `START` says that a thread tries. Otherwise a
        // child of a fork in between would wait for a thread that it does not have. Threads that
        // come at the same time all register the handler, and a second run of it does no harm.
        // SAFETY: the handler is a plain function of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    }
    match START.compare_exchange(NOT_STARTED, STARTING, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            let _uncancelled = os::uncancelled();
            let begun = begin();
            START.store(if begun.is_ok() { STARTED } else { UNHELD }, Ordering::Release);
            begun
        }
        // Another thread makes the handshake, which takes a bounded time. This thread waits, so
        // that the interposer meters the thread's next calls too.
        Err(STARTING) => loop {
            match START.load(Ordering::Acquire) {
                STARTING => os::sleep(START_LOOK_NS),
                UNHELD => break Err(Unheld),
                _ => break Ok(()),
            }
        },
        Err(UNHELD) => Err(Unheld),
        Err(_) => Ok(()),
    }
}

/// Returns the process's state for a call that makes a context. If the program has initialised the
/// driver past the hook of `cuInit`, begins the session first. Without a context, no call uses the
/// GPU.
///
/// # Errors
/// [`Unheld`] if the process must not use the GPU.
pub fn for_context() -> Result<Option<&'static Process>, Unheld> {
    if let Some(process) = current() {
        return Ok(Some(process));
    }
    match START.load(Ordering::Acquire) {
        STARTED => Ok(None),
        NOT_STARTED if !driver::is_initialised() => Ok(None),
        _ => start().map(|()| current()),
    }
}

/// Ends the attempt to begin a session, because of `reason`. Returns an error if the process has
/// limits, or if launches are to fail without a daemon.
fn give_up(config: &Config, reason: fmt::Arguments<'_>) -> Result<(), Unheld> {
    if config.is_held() {
        return Err(unheld(reason));
    }
    if config.is_asked_for {
        say!(Warn, "{reason}; the job runs unmetered");
    }
    Ok(())
}

/// Logs that the process must not use a GPU, because of `reason`.
fn unheld(reason: fmt::Arguments<'_>) -> Unheld {
    say!(Error, "{reason}, so nothing can hold the job to its limits; the job may not use the GPU");
    Unheld
}

fn begin() -> Result<(), Unheld> {
    let began_ns = os::now_ns();
    let config = Config::read();
    let calls = match Calls::find() {
        Ok(calls) => calls,
        Err(missing) => return give_up(&config, format_args!("this driver has no {missing}")),
    };
    let mut uuids = vec![Uuid::default(); MAX_GPUS];
    let count = calls.uuids(&mut uuids);
    if count > MAX_GPUS && config.is_held() {
        return give_up(
            &config,
            format_args!(
                "the process sees {count} GPUs, and deepres limits {MAX_GPUS} at most (name fewer by CUDA_VISIBLE_DEVICES)"
            ),
        );
    }
    uuids.truncate(count);
    let greeting = Greeting::send(&config, &uuids);
    if greeting.is_to_nobody() && !config.is_asked_for && !config.fallback().is_shut() {
        // The environment does not mention deepres, no daemon runs, and no earlier daemon left the
        // mark of a closed fail mode.
        return Ok(());
    }
    check_look_ups(&config)?;
    let gpu_of = |(ordinal, uuid): (usize, &Uuid)| {
        let is_under_mps = calls.is_under_mps(ordinal);
        let sm_ppm = if is_under_mps && config.sm_ppm < PPM { config.sm_ppm } else { 0 };
        let mps_server = if is_under_mps { config.mps_server() } else { 0 };
        let sms = if is_under_mps { calls.sms(ordinal) } else { None };
        Gpu::of(*uuid, sm_ppm, mps_server).with_widths(Widths::new(sms))
    };
    let gpus = uuids.iter().enumerate().map(gpu_of).collect();
    // The process makes its state and the meter thread while the daemon works on its answer.
    let process: &'static Process = Box::leak(Box::new(Process {
        calls,
        gpus,
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
        meter: AtomicU32::new(HELD),
        is_stopping: AtomicBool::new(false),
        is_stopped: AtomicBool::new(false),
        unappraised_ns: AtomicU64::new(0),
    }));
    process.wake.swap(OwnDescriptor::eventfd());
    let started = meter::thread::start(process);
    let config = &process.config;
    let gpus = process.uuids.len();
    let begun = handshake::shake(greeting, config, &process.uuids).and_then(|connection| {
        let connection = connection.holding(config, gpus)?;
        let index = connection.welcome.gpu_index;
        Ok((Session::new(connection, gpus, None)?.limiting(config, &index)?, index))
    });
    let begun = begun.map(Some).or_else(|error| begin_alone(config, &process.uuids, &error));
    let begun = begun.inspect_err(|Unheld| process.dismiss_meter())?;
    let Some((session, index)) = begun else {
        process.dismiss_meter();
        return Ok(());
    };
    let session: &'static Session = Box::leak(Box::new(session));
    if config.oversubscribe == Some(Oversubscribe::Managed) {
        process.memory.oversubscription.want();
    }
    session.attach(&process.gpus, &index, process.wake.get());
    process.session.set(Some(session));
    if let Err(error) = started {
        session.end();
        process.dismiss_meter();
        let reason = format_args!("there is no thread for metering ({error})");
        let is_held = |told: Fallback| told.is_limited() || told.is_shut();
        return if session.standalone().is_some_and(|local| is_held(local.told)) {
            Err(unheld(reason))
        } else {
            give_up(config, reason)
        };
    }
    if let Some(path) = config.record.as_deref() {
        record::start(path);
    }
    PROCESS.store(ptr::from_ref(process).cast_mut(), Ordering::Release);
    // SAFETY: the handler is a plain function of this library, which is never unloaded.
    unsafe { libc::atexit(stop) };
    // From here on, other threads can wait for the meter thread. One of them can hold the dynamic
    // linker's lock, which the next call takes.
    process.tell_meter(RUNS);
    coverage::look_past();
    if session.standalone().is_none() {
        say!(Info, "the process has session {} with {} GPUs", session.id(), process.gpus.len());
        config.unreadable().iter().for_each(|limit| say!(Warn, "{}; ignored", limit.reason));
    }
    Ok(())
}

/// Checks that no look-up of `cuLaunchKernel` leads past the hooks. Otherwise warns, or returns an
/// error if the process has limits: launches past the hooks keep none of them.
fn check_look_ups(config: &Config) -> Result<(), Unheld> {
    let Some(ways) = coverage::lost_look_ups() else { return Ok(()) };
    let remedy = "take the driver out of LD_PRELOAD, or check the driver by `deepres doctor --driver FILE`";
    if config.is_held() {
        return give_up(
            config,
            format_args!(
                "a program that finds cuLaunchKernel by {ways} gets the driver's own function ({remedy})"
            ),
        );
    }
    say!(
        Error,
        "a program that finds cuLaunchKernel by {ways} gets the driver's own function: its launches bypass deepres; {remedy}"
    );
    Ok(())
}

/// A session. For each of the process's GPUs, the array has the index of the GPU's slot in the
/// session's pages.
type Begun = (Session, [u8; MAX_GPUS]);

/// Begins a session without a daemon if the process needs one, because no daemon accepted the
/// process. This function alone decides about a process without a daemon: **limits that a job was
/// given hold, whatever the reason.** If the environment and the refusal of a daemon differ, the
/// lower limits hold. If no refusal tells limits, the limits in the tenant's file hold before those
/// of the environment. Returns `None` if the process needs no session.
///
/// # Errors
/// [`Unheld`] if a limit makes no sense, or if there is no memory for a session that the process
/// needs.
fn begin_alone(config: &Config, uuids: &[Uuid], error: &ConnectError) -> Result<Option<Begun>, Unheld> {
    if !config.unreadable().is_empty() {
        let reasons: Vec<_> = config.unreadable().iter().map(|limit| limit.reason.as_str()).collect();
        return give_up(config, format_args!("{}, and {error}", reasons.join(", "))).map(|()| None);
    }
    let refusal = error.fallback();
    let fallback = config.fallback().within(refusal.unwrap_or(&Fallback::default()));
    // Even a process whose environment names no limit keeps those in the tenant's file.
    let has_tenant_limits = refusal.is_none() && standalone::is_file_used_alone(config);
    let keeps_limits = config.is_limited() || fallback.is_limited() || has_tenant_limits;
    let is_shut = fallback.is_shut();
    // The process waits for a daemon that hangs, has no room, or is about to come back. If the
    // process keeps its limits by itself and nothing names a socket, it does not wait for an absent
    // daemon.
    let is_absent = matches!(error, ConnectError::Absent(..));
    let is_content = is_absent && keeps_limits && !is_shut && !config.is_socket_named;
    let is_waiting = error.may_pass() && !is_content;
    let is_held = keeps_limits || is_shut;
    if !is_held && !is_waiting {
        say!(Warn, "{error}; the job runs unmetered");
        return Ok(None);
    }
    if !is_content {
        tell(error, is_shut, keeps_limits, is_waiting);
    }
    let is_newest = refusal.is_some_and(Fallback::is_limited);
    let local = match is_held {
        true => Local::begin(config, uuids, fallback, is_newest),
        false => Local::unlimited(uuids),
    };
    match local {
        Ok(local) => {
            let index = local.gpu_index;
            Ok(Some((Session::local(local, is_waiting), index)))
        }
        Err(error) if is_held => Err(unheld(format_args!("there is no memory for a session ({error})"))),
        Err(error) => {
            give_up(config, format_args!("there is no memory for a session ({error})")).map(|()| None)
        }
    }
}

/// Logs how the job goes on without a session.
fn tell(error: &ConnectError, is_shut: bool, keeps_limits: bool, is_waiting: bool) {
    let until = if is_waiting { " until a daemon takes it up" } else { "" };
    match (is_shut, keeps_limits) {
        (true, _) => {
            say!(Error, "{error}; the launches of the job fail{until}, because of fail_mode = \"closed\"")
        }
        (false, true) => say!(Warn, "{error}; the job keeps its limits by itself{until}"),
        (false, false) => say!(Warn, "{error}; the job runs unshared{until}"),
    }
}

/// Clears the state in a forked child, also if a thread of the parent is beginning a session. The
/// child has no session and no meter thread, and the driver does not work in the child either.
extern "C" fn forked() {
    let process = PROCESS.swap(ptr::null_mut(), Ordering::AcqRel);
    START.store(NOT_STARTED, Ordering::Release);
    coverage::forget_calls();
    record::forget();
    capture::forget();
    thread::reset();
    alone::forget();
    // SAFETY: `begin` stored the pointer, and the state is never freed.
    let Some(process) = (unsafe { process.as_ref() }) else { return };
    for session in process.session().into_iter().chain(process.before.get()) {
        // SAFETY: this is the child's only thread, and it has just cleared the process state.
        unsafe { session.close() };
    }
    // This is the child's only thread, so no other thread uses the descriptor.
    if let Some(wake) = process.wake.get() {
        wake.close();
    }
}

/// Ends the metering at the end of the process, before the driver ends. Waits until the meter
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
    // Without this store, a later launch would wait for completions that no meter thread sees.
    PROCESS.store(ptr::null_mut(), Ordering::Release);
    record::end();
    if let Some(file) = process.session().and_then(Session::file) {
        file.leave();
    }
}

/// Returns the state of a living context.
fn find(contexts: &[&'static ContextState], handle: Context) -> Option<&'static ContextState> {
    contexts.iter().copied().find(|context| context.is_alive_as(handle))
}

impl Process {
    /// Returns the session. Its connection may have ended.
    #[inline(always)]
    pub fn session(&self) -> Option<&'static Session> {
        self.session.get()
    }

    /// Returns the signal by which the job wants to hear that it should give memory back. Returns
    /// `None` if the job wants no signal.
    pub fn pressure_signal(&self) -> Option<i32> {
        self.config.pressure
    }

    /// Returns the ordinal of a GPU in this process, or `None` if the process does not see the GPU.
    pub fn ordinal_of(&self, uuid: &Uuid) -> Option<usize> {
        self.uuids.iter().position(|own| own == uuid)
    }

    /// Asks the daemon how many bytes NVML reports for this process on the GPU `ordinal`. Returns
    /// `None` without an answer of NVML. For a time after a failed question, returns `None` at
    /// once.
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

    /// Notes that the daemon answers questions again. So a thread that makes a context can wait for
    /// the daemon's answer.
    pub fn believe_appraisals(&self) {
        self.unappraised_ns.store(0, Ordering::Relaxed);
    }

    /// Asks the daemon for a new session. Returns the handshake, which has begun.
    ///
    /// # Errors
    /// [`ConnectError`] if the process cannot connect.
    pub fn say_hello(&self) -> Result<Pending, ConnectError> {
        let sessions = self.session().map_or(0, Session::sessions);
        let age_ns = if sessions == 0 { os::now_ns().saturating_sub(self.began_ns) } else { 0 };
        Pending::begin(&self.config, &self.uuids, sessions, age_ns)
    }

    /// Keeps the limits that a refusal tells, if the process has had no session with a daemon yet.
    /// `told` are the limits of the refusal before, if there was one.
    pub fn heed(&self, _meter: MeterThread, error: &ConnectError, told: &mut Option<Fallback>) {
        let Some((local, refusal)) = self.session().and_then(Session::standalone).zip(error.fallback())
        else {
            return;
        };
        let fallback = self.config.fallback().within(refusal);
        let before = told.replace(fallback).unwrap_or(local.told);
        if fallback != before {
            local.keep(&self.config, &fallback);
        }
        let ways = [fallback, before].map(|fallback| {
            let keeps_limits = self.config.is_limited() || fallback.is_limited();
            (fallback.is_shut(), keeps_limits)
        });
        let [(is_shut, keeps_limits), before] = ways;
        if (is_shut, keeps_limits) != before {
            tell(error, is_shut, keeps_limits, true);
        }
    }

    /// Continues with a daemon that came back. Moves the held memory to the daemon's ledger, and
    /// then obeys the daemon's gates.
    ///
    /// # Errors
    /// [`ConnectError`] if the process cannot use the daemon's pages, or if the daemon numbers the
    /// GPUs anew.
    pub fn renew(&self, meter: MeterThread, connection: Connection) -> Result<(), ConnectError> {
        let Some(session) = self.session() else { return Ok(()) };
        if session.standalone().is_some() {
            return self.join(session, connection);
        }
        // A launching thread counts in the slot of the old number. So the daemon must keep the
        // numbers of the GPUs. If the daemon no longer manages a GPU, the earlier limits stay.
        let is_renumbered =
            |(gpu, index): (&Gpu, &u8)| gpu.index().is_some_and(|before| before != usize::from(*index));
        if self.gpus.iter().zip(&connection.welcome.gpu_index).any(is_renumbered) {
            return Err(ConnectError::Renumbered);
        }
        let index = session.renew(meter, connection, &self.gpus)?;
        session.attach(&self.gpus, &index, None);
        if self.wake.get().is_none() {
            // The descriptor may have vanished for a reason that no longer holds.
            self.wake.swap(OwnDescriptor::eventfd());
        }
        self.memory.move_to(session, &self.gpus);
        self.set_alone(false);
        say!(Info, "the daemon is back: session {}", session.id());
        Ok(())
    }

    /// Continues with a daemon that takes over the process. Before, the process had a session
    /// without a daemon.
    fn join(&self, alone: &'static Session, connection: Connection) -> Result<(), ConnectError> {
        let connection = connection.holding(&self.config, self.gpus.len())?;
        let index = connection.welcome.gpu_index;
        let session = Session::new(connection, self.gpus.len(), Some(alone))?;
        let session: &'static Session = Box::leak(Box::new(session));
        self.before.set(Some(alone));
        alone.hand_over(session, &self.session, &self.gpus, &index);
        self.memory.move_to(session, &self.gpus);
        self.set_alone(false);
        // This message is as loud as the message at the beginning.
        say!(Warn, "a daemon has taken the job up: session {} with {} GPUs", session.id(), self.gpus.len());
        Ok(())
    }

    /// Keeps the tenant's limits until a daemon is back: counts the process's memory in the
    /// tenant's file too, writes the limits into the file, and keeps the share. Processes that start
    /// without a daemon share only the file. The caller has seen the end of the connection to the
    /// daemon, or the end of an arbiter's heartbeat.
    pub fn leave_daemon(&self, meter: MeterThread) {
        self.count_in_file(meter);
        let Some(session) = self.session() else { return };
        self.set_alone(true);
        // A process that has not seen the lock just set can have set limits of its own.
        session.keep_limits(&self.gpus);
        let kept = session.keep_share(meter, &self.gpus, self.wake.get());
        // The arbiter can be back by now.
        self.set_alone(self.is_alone(session));
        match kept {
            Ok(()) if session.any_stand_in(&self.gpus).is_none() => {}
            Ok(()) => say!(Info, "the job keeps its share by itself until a daemon is back"),
            Err(error) => say!(Warn, "there is no memory to keep the job's share without a daemon ({error})"),
        }
    }

    /// Returns whether an arbiter is gone or hangs that held the tenant to a share, and the process
    /// does not keep the share by itself.
    pub fn has_lost_share(&self, now_ns: u64) -> bool {
        self.session().is_some_and(|session| session.has_lost_share(&self.gpus, now_ns))
    }

    /// Obeys each arbiter again that no longer hangs.
    pub fn return_shares(&self, meter: MeterThread, now_ns: u64) {
        let Some(session) = self.session() else { return };
        if session.return_shares(meter, &self.gpus, now_ns) {
            self.set_alone(false);
            say!(Info, "the daemon goes on, and keeps the job's share again");
        }
    }

    /// While another process of the tenant has no session, counts this process's memory in the
    /// tenant's file too. The daemon does not know the other process's memory. Returns false if the
    /// process cannot use the file. If this process has no session, does nothing.
    pub fn count_beside(&self, meter: MeterThread) -> bool {
        let Some(session) = self.session() else { return true };
        if self.is_alone(session) {
            return true;
        }
        let is_anyone_alone = match session.file().filter(|file| file.is_joined()) {
            Some(file) => file.is_used_alone(),
            None => standalone::is_file_used_alone(&self.config),
        };
        match (is_anyone_alone, session.counts_in_file()) {
            (true, false) => {
                let is_counted = self.count_in_file(meter);
                session.keep_limits(&self.gpus);
                return is_counted;
            }
            (false, true) => {
                session.count_out();
                self.memory.move_to(session, &self.gpus);
            }
            _ => {}
        }
        true
    }

    /// Counts the process's memory in the tenant's file too, if the tenant has limits. The process
    /// opens the file once, and again if the job has closed the file. Returns false if the process
    /// cannot use the file.
    fn count_in_file(&self, _meter: MeterThread) -> bool {
        let Some(session) = self.session() else { return true };
        let is_limited = |grant: &GrantSlot| grant.memory_limit() != NO_LIMIT || grant.share_ppm().is_some();
        if !self.gpus.iter().filter_map(Gpu::grant).any(is_limited) {
            return true;
        }
        let opened = session.file().filter(|file| file.is_joined());
        let Some(file) = opened.or_else(|| standalone::open_file(&self.config, &self.uuids)) else {
            return false;
        };
        session.count_in(file);
        self.memory.move_to(session, &self.gpus);
        true
    }

    /// Returns whether this process keeps its tenant's limits without a daemon on any GPU.
    fn is_alone(&self, session: &Session) -> bool {
        session.is_gone() || session.any_stand_in(&self.gpus).is_some()
    }

    /// Shows to the tenant's other processes, by the tenant's file, whether this process has no
    /// session.
    fn set_alone(&self, is_alone: bool) {
        if let Some(file) = self.session().and_then(Session::file) {
            file.set_alone(is_alone);
        }
    }

    /// Notes that work was on a GPU from `start_ns` to `end_ns`. If other processes of the tenant
    /// report the same time, the arbiter charges the time once. Without a daemon, this process
    /// charges its tenant itself. The job launched the work from `launched_ns` on.
    pub fn cover(&self, gpu: &Gpu, launched_ns: u64, (start_ns, end_ns): (i64, i64)) {
        let Some((session, index)) = self.session().zip(gpu.index()) else { return };
        let (start_ns, end_ns) = (start_ns.max(0) as u64, end_ns.max(0) as u64);
        match session.stand_in(gpu) {
            Some(local) => local.cover(gpu.uuid(), launched_ns, (start_ns, end_ns)),
            None => session
                .meter()
                .intervals(index)
                .into_iter()
                .for_each(|intervals| intervals.add(start_ns, end_ns)),
        }
    }

    /// Without a daemon, charges the tenant for GPU time whose place in time is unknown. The job
    /// launched the work from `launched_ns` on. With a daemon, does nothing.
    pub fn charge(&self, gpu: &Gpu, launched_ns: u64, used_ns: u64) {
        if let Some(local) = self.session().and_then(|session| session.stand_in(gpu)) {
            local.charge(gpu.uuid(), launched_ns, used_ns);
        }
    }

    /// Without a daemon, takes the arbiter's turn. Returns the latest time of the next turn. With a
    /// daemon, returns `None`.
    pub fn turn(&self, _meter: MeterThread, now_ns: u64) -> Option<u64> {
        self.session()?.any_stand_in(&self.gpus)?.turn(&self.gpus, now_ns)
    }

    /// Returns whether the process is ending.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }

    /// Notes that the meter thread will not call the driver any more.
    pub fn set_stopped(&self, _meter: MeterThread) {
        self.is_stopped.store(true, Ordering::Release);
    }

    /// Returns whether any GPU is contended: another tenant waits for this process's work in
    /// flight, or this process waits at a gate.
    pub fn is_contended(&self) -> bool {
        self.gpus.iter().any(|gpu| !gpu.is_open())
    }

    /// Returns the primary context of a GPU as the job last retained it. While the result lives, no
    /// other thread makes or ends this context. Returns `None` if there is no such GPU.
    pub fn primary(&self, ordinal: usize) -> Option<Guard<'_, Option<Context>>> {
        Some(self.primaries.get(ordinal)?.lock())
    }

    /// Returns the contexts that no thread has destroyed.
    pub fn contexts(&self) -> Vec<&'static ContextState> {
        let contexts = self.contexts.lock();
        contexts.iter().copied().filter(|context| !context.is_dead()).collect()
    }

    /// Returns whether a context has ended, and with the context everything in it. Returns false
    /// for 0, which means no context.
    pub fn is_gone(&self, context: usize) -> bool {
        let contexts = self.contexts.lock();
        context != 0 && !contexts.iter().any(|known| known.is_alive_as(Context(context)))
    }

    /// Returns the state of a context. If the context has no state yet, makes one. Returns `None`
    /// if the function does not find the context's GPU.
    pub fn context(&'static self, handle: Context) -> Option<&'static ContextState> {
        if let Some(known) = find(&self.contexts.lock(), handle) {
            return Some(known);
        }
        // If the driver does not name the context's device, the function takes the device for which
        // the job made the context.
        let made_for = || self.memory.device_of_context(handle);
        let ordinal = self.calls.device_of(handle).or_else(made_for)?;
        self.enter_context(handle, handle, ordinal)
    }

    /// Makes the state of the context `handle` of a green context, which uses the GPU `ordinal` and
    /// the memory of the context `primary`. Otherwise the process would have to make the context
    /// current, to find its GPU.
    pub fn enter_green(&'static self, handle: Context, primary: Context, ordinal: usize) {
        self.enter_context(primary, primary, ordinal);
        self.enter_context(handle, primary, ordinal);
    }

    /// Returns the state of the context `handle` on the GPU `ordinal`. If the context has no state
    /// yet, makes one, with `home` as the context to which its events and memory belong.
    fn enter_context(
        &'static self,
        handle: Context,
        home: Context,
        ordinal: usize,
    ) -> Option<&'static ContextState> {
        let gpu = self.gpus.get(ordinal)?;
        let mut contexts = self.contexts.lock();
        if let Some(known) = find(&contexts, handle) {
            return Some(known);
        }
        let spare = contexts.iter().copied().find(|context| context.is_dead() && context.ordinal == ordinal);
        let context = spare.unwrap_or_else(|| {
            let context: &'static ContextState = Box::leak(Box::new(ContextState::new(handle, gpu, ordinal)));
            contexts.push(context);
            context
        });
        context.revive(handle, home);
        if self.first_context.get().is_none_or(|first| first.is_dead()) {
            self.first_context.set(Some(context));
        }
        Some(context)
    }

    /// Returns the state of the context that is current to this thread, or `None` if there is none.
    #[inline]
    pub fn current_context(&'static self) -> Option<&'static ContextState> {
        let handle = self.calls.current_context()?;
        let first = self.first_context.get().filter(|first| first.is_alive_as(handle));
        first.or_else(|| self.other_context(handle))
    }

    /// Returns the context that is probably current to this thread. If the driver does not name the
    /// context, returns the context that was current when the thread last asked, or else any
    /// context.
    #[cold]
    pub fn likely_context(&'static self) -> Option<&'static ContextState> {
        match self.calls.ask_current_context() {
            Ok(handle) => self.context(handle?),
            // No call can use this context any more.
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
    /// The reason for which the thread has no lane. Either the daemon does not manage the stream's
    /// GPU, or the driver does not name the stream's context, or the context has just ended.
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

    /// Ends each open segment on `stream`, of all threads for which the handle names the same
    /// stream. The job is about to capture the stream or, with `forever`, to destroy it.
    pub fn close_stream(&self, stream: Stream, forever: bool) {
        let _uncancelled = os::uncancelled();
        for context in self.contexts() {
            let inner = context.lock();
            if context.is_dead() {
                continue;
            }
            for lane in inner.lanes.iter().filter(|lane| lane.stream() == Some(stream)) {
                lane.close_late(&self.calls, thread::id());
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

    /// Runs `destroy`, which can destroy the context `handle`, while no other thread uses this
    /// context. `is_destroyed` then says whether the context is destroyed, by the result and by the
    /// state of a known context. If the context is destroyed, the function forgets the context and
    /// its memory. Returns the result of `destroy`.
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

    /// Runs `destroy` as [`Self::destroy_context`] does, but forgets no memory, because the memory
    /// belongs to another context. Returns the result of `destroy`, and whether the context is
    /// gone. The green contexts whose events belong to the context end with it.
    pub fn end_context<T>(
        &self,
        handle: Context,
        destroy: impl FnOnce() -> T,
        is_destroyed: impl FnOnce(&T, Option<&mut Inner>) -> bool,
    ) -> (T, bool) {
        let _uncancelled = os::uncancelled();
        let ends = |context: &ContextState| {
            !context.is_dead() && (context.handle() == handle || context.home() == handle)
        };
        let contexts: Vec<_> = self.contexts().into_iter().filter(|context| ends(context)).collect();
        let locks = ContextState::lock_all(&contexts);
        // Another thread may have destroyed a context meanwhile.
        let mut ending: Vec<_> =
            contexts.into_iter().zip(locks).filter(|(context, _)| ends(context)).collect();
        for lane in ending.iter().flat_map(|(_, inner)| &inner.lanes) {
            lane.close_late(&self.calls, thread::id());
            lane.await_closed();
        }
        // Without the relaxed capture mode, a query would end another thread's capture.
        if let Some(_relaxed) = (!ending.is_empty()).then(|| self.calls.relaxed()).flatten() {
            for (context, inner) in &mut ending {
                self.calls.in_context(context.home(), || {
                    context.charge_complete(&self.calls, inner);
                    Some(())
                });
            }
        }
        let result = destroy();
        let own = ending.iter_mut().find(|(context, _)| context.handle() == handle);
        let is_gone = is_destroyed(&result, own.map(|(_, inner)| &mut **inner));
        if is_gone {
            // From now on, each thread looks its lanes up again. Such a look-up waits for the lock.
            thread::forget_lanes();
            let gone: Vec<_> = ending.iter().map(|(context, _)| context.handle()).collect();
            for (context, mut inner) in ending {
                self.kill_context(context, &mut inner, handle);
            }
            gone.into_iter().chain([handle]).for_each(capture::forget_context);
        }
        (result, is_gone)
    }

    /// Marks a context as destroyed, because the context `gone` has ended. Destroys the events of a
    /// green context if its primary context lives on.
    fn kill_context(&self, context: &ContextState, inner: &mut Inner, gone: Context) {
        let mut orphans = Vec::new();
        context.kill(inner, |event| orphans.push(event));
        let home = context.home();
        let lives = home != gone && self.calls.is_primary_active(context.ordinal as i32) == Some(true);
        if let Some(_relaxed) = lives.then(|| self.calls.relaxed()).flatten() {
            self.calls.in_context(home, || {
                orphans.into_iter().for_each(|event| self.calls.destroy_event(event));
                Some(())
            });
        }
    }

    /// Wakes the meter thread if it sleeps, because the caller opened a segment.
    #[inline]
    pub fn wake_meter(&self) {
        if self.is_meter_asleep.load(Ordering::SeqCst) != 0 {
            self.rouse_meter();
        }
    }

    /// Waits until the session has begun. Returns false if the process gets no session. Only the
    /// meter thread calls this.
    pub fn await_session(&self, _meter: MeterThread) -> bool {
        loop {
            match self.meter.load(Ordering::Acquire) {
                HELD => os::futex_wait_private(&self.meter, HELD, HELD_NAP_NS),
                told => return told == RUNS,
            }
        }
    }

    fn tell_meter(&self, what: u32) {
        self.meter.store(what, Ordering::Release);
        os::futex_wake_private(&self.meter);
    }

    /// Ends the meter thread before it has run, because the process gets no session.
    fn dismiss_meter(&self) {
        self.tell_meter(DISMISSED);
        alone::forget();
        if let Some(wake) = self.wake.swap(None) {
            wake.close();
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
    /// whether the job has closed `socket`, and thus the connection.
    pub fn look_at_descriptors(&self, _meter: MeterThread, socket: Option<OwnDescriptor>) -> bool {
        if !self.wake.get().is_some_and(OwnDescriptor::is_ours) {
            self.wake.swap(None);
        }
        socket.is_some_and(|socket| !socket.is_ours())
    }

    /// Returns whether a launch or copy on the GPU `ordinal` can be under way.
    pub fn may_have_work(&self, ordinal: usize) -> bool {
        self.contexts().iter().any(|context| context.ordinal == ordinal && context.may_have_work())
    }

    /// Prepares a deep sleep of the meter thread. Returns false if work can be under way, so that
    /// the thread must not sleep.
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

    /// Lets the meter thread sleep for `sleep_ns`. With `is_deep`, other threads know of the sleep
    /// and wake the thread. Returns whether the connection `socket` has ended.
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
            // A system call filter of the job can refuse `ppoll`. From now on, the thread sleeps
            // without the descriptor.
            self.wake.swap(None);
        }
        if ready <= 0 {
            return false;
        }
        if polled[1].revents != 0 && !wake.is_some_and(OwnDescriptor::hush) {
            self.wake.swap(None);
        }
        // The daemon sends nothing after its welcome, so each event means the end of the
        // connection. If the number belongs to another file by now, the job has closed the
        // connection.
        polled[0].revents != 0
    }
}
