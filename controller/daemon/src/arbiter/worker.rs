//! The arbiter's thread: reads the meters, lets the core ([`deepres_policy::arbiter`]) decide, and
//! carries the decisions out.

use super::events::{Bell, Events};
use super::freezer::is_stopped;
use super::gangs::{GangBoard, OfGpu};
use super::questions::Questions;
use super::session::Session;
use super::{Command, Report, Setup, Snapshot, TenantSeat};
use crate::shm::SharedPage;
use deepres_abi::PPM;
use deepres_abi::beat::BeatPage;
use deepres_abi::grant::{FailMode, LeaseTerms};
use deepres_model::admin::ShareStatus;
use deepres_model::clock::monotonic_ns;
use deepres_policy::TenantId;
use deepres_policy::arbiter::{Actions, Core, Event, Gate, Order, Peers, Readings, SessionId, TenantReading};
use deepres_policy::lease::Grant;
use deepres_policy::priority::Weights;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The most commands that the thread takes before the next decision. So a client that connects and
/// disconnects all the time does not delay the leases of tenants.
const MOST_COMMANDS: usize = 256;

/// The time that the thread may take in one look to ask the system about processes. A question
/// takes some ten microseconds. During the questions, leases and the heartbeat wait.
const ASK_BUDGET: Duration = Duration::from_micros(200);

/// The least time between two looks at the meter pages of stopped processes, ns. A stopped process
/// writes nothing, and a tenant can have hundreds of stopped processes.
const STOPPED_LOOK_NS: u64 = 5_000_000;

/// The state of the arbiter's thread: the core, and the pages of the tenants and sessions.
pub struct Worker {
    /// The daemon's number for the GPU.
    pub gpu: usize,
    /// The GPU's memory, bytes.
    pub memory_bytes: u64,
    /// The weights of the terms of a priority value.
    pub weights: Weights,
    beat: Arc<SharedPage<BeatPage>>,
    fail_mode: FailMode,
    commands: mpsc::Receiver<Command>,
    events: Events,
    /// The board on which arbiters agree on gangs; `None` without gangs.
    board: Option<Arc<GangBoard>>,
    /// The core, which decides which tenant gets a lease.
    pub core: Core,
    /// The tenants, with and without sessions at present.
    pub tenants: BTreeMap<TenantId, TenantSeat>,
    /// The sessions connected at present.
    pub sessions: BTreeMap<SessionId, Session>,
    readings: Readings,
    actions: Actions,
    /// The sessions about whose processes the core asked, and the answers: whether the process is
    /// stopped.
    stopped: BTreeMap<SessionId, bool>,
    /// The time of the last look at the meter pages of stopped processes, ns.
    looked_at_stopped_ns: u64,
    questions: Questions,
    /// A flag that the worker sets whenever a tenant wants the GPU.
    stirred: Arc<AtomicBool>,
}

/// The commands that the thread takes at one wake-up, as orders to the core, and the answers that
/// are due after the next turn.
#[derive(Default)]
struct Batch {
    count: usize,
    orders: Vec<Order>,
    /// The sessions that leave.
    leaving: Vec<SessionId>,
    answers: Vec<Answer>,
}

/// The answer to a command. The thread answers once it has set the gates.
enum Answer {
    Done(oneshot::Sender<()>),
    Save(oneshot::Sender<Snapshot>),
    Report(oneshot::Sender<Report>),
    Explain(TenantId, oneshot::Sender<Option<ShareStatus>>),
}

impl Worker {
    /// Returns a worker that takes its commands from `commands`. `bell` announces a command. The
    /// worker sets `stirred` whenever a tenant wants the GPU.
    pub fn new(
        setup: Setup,
        commands: mpsc::Receiver<Command>,
        bell: &Bell,
        stirred: Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let events = Events::new(bell)?;
        if let Some(board) = &setup.board {
            board.join(setup.gpu, bell.clone());
        }
        Ok(Self {
            gpu: setup.gpu,
            memory_bytes: setup.memory_bytes,
            weights: setup.weights,
            core: Core::new(setup.of_core(), monotonic_ns()),
            beat: setup.beat,
            fail_mode: setup.fail_mode,
            commands,
            events,
            board: setup.board,
            tenants: BTreeMap::new(),
            sessions: BTreeMap::new(),
            readings: Readings::default(),
            actions: Actions::default(),
            stopped: BTreeMap::new(),
            looked_at_stopped_ns: 0,
            questions: Questions::default(),
            stirred,
        })
    }

    /// Runs the arbiter until the daemon stops it.
    pub fn run(mut self) {
        let mut has_more = false;
        loop {
            let mut is_called = has_more;
            if !has_more {
                is_called = match self.events.wait(self.core.wake_ns()) {
                    Ok(rang) => rang,
                    Err(error) => {
                        // The authors know no cause of this error. Once the heartbeat stops,
                        // tenants stop waiting for the daemon.
                        tracing::error!(gpu = self.gpu, %error, "the arbiter cannot wait for events and stops");
                        return self.let_go();
                    }
                };
            }
            let mut batch = Batch::default();
            let mut stops = false;
            has_more = loop {
                match self.commands.try_recv() {
                    Ok(Command::Stop) | Err(mpsc::TryRecvError::Disconnected) => {
                        stops = true;
                        break false;
                    }
                    Ok(command) => {
                        batch.count += 1;
                        self.take(command, &mut batch);
                        if batch.count >= MOST_COMMANDS {
                            break true;
                        }
                    }
                    Err(mpsc::TryRecvError::Empty) => break false,
                }
            };
            let now_ns = monotonic_ns();
            if is_called || batch.count > 0 || self.core.is_due(now_ns) {
                self.turns(&mut batch);
            } else {
                self.beat.page().beat(self.gpu, now_ns);
                self.core.rest(now_ns);
            }
            batch.answers.into_iter().for_each(|answer| self.answer(answer));
            if stops {
                return self.let_go();
            }
        }
    }

    /// Runs turns of the core, and carries out their actions, until the core asks for no further
    /// turn.
    fn turns(&mut self, batch: &mut Batch) {
        let mut is_asked = batch.count > 0;
        loop {
            let now_ns = monotonic_ns();
            self.beat.page().beat(self.gpu, now_ns);
            self.read(now_ns, std::mem::take(&mut is_asked));
            let mut peers = self.board.as_deref().map(|board| OfGpu { board, gpu: self.gpu });
            let peers = peers.as_mut().map(|peers| peers as &mut dyn Peers);
            self.core.turn(now_ns, &self.readings, batch.orders.drain(..), peers, &mut self.actions);
            self.act();
            self.core.took(monotonic_ns().saturating_sub(now_ns));
            for session in batch.leaving.drain(..) {
                self.sessions.remove(&session);
                self.events.remove(session);
            }
            if !self.actions.again {
                break;
            }
        }
    }

    /// Reads the meters. With `is_asked` or before a computation of entitlements, also reads the
    /// use and the memory of tenants.
    fn read(&mut self, now_ns: u64, is_asked: bool) {
        let Self { core, sessions, readings, stopped, looked_at_stopped_ns, gpu, memory_bytes, .. } = self;
        readings.clear();
        let looks_at_stopped = now_ns.saturating_sub(*looked_at_stopped_ns) >= STOPPED_LOOK_NS;
        if looks_at_stopped {
            *looked_at_stopped_ns = now_ns;
        }
        for watched in core.sessions() {
            let is_stopped = stopped.remove(&watched.session);
            if watched.stopped.is_some() && is_stopped.is_none() && !looks_at_stopped {
                continue;
            }
            if let Some(session) = sessions.get_mut(&watched.session) {
                session.read(*gpu, now_ns, &watched, is_stopped, readings);
            }
        }
        stopped.clear();
        if is_asked || core.reviews(now_ns) {
            readings.tenants.extend(self.tenants.iter().map(|(id, seat)| {
                let held_bytes = seat.ledger.page().gpu(*gpu).map_or(0, |ledger| ledger.held_bytes());
                let memory_ppm =
                    u128::from(held_bytes) * u128::from(PPM) / u128::from((*memory_bytes).max(1));
                TenantReading {
                    tenant: *id,
                    job_used_ns: seat.job.ns(),
                    memory_ppm: u32::try_from(memory_ppm).unwrap_or(PPM).min(PPM),
                }
            }));
        }
    }

    /// Carries out the actions of the core.
    fn act(&mut self) {
        for (session, is_beside) in &self.actions.beside {
            let session = self.sessions.get(session);
            if let Some(slot) = session.and_then(|session| session.seat.grant.page().slot(self.gpu)) {
                slot.set_beside(*is_beside);
            }
        }
        for gate in &self.actions.gates {
            tracing::trace!(gpu = self.gpu, ?gate, "the arbiter set a gate");
            if let Some(session) = self.sessions.get(&gate.session) {
                session.set_gate(self.gpu, gate);
            }
        }
        for (session, ppm) in &self.actions.entitled {
            let session = self.sessions.get(session);
            if let Some(slot) = session.and_then(|session| session.seat.grant.page().slot(self.gpu)) {
                slot.set_entitled_ppm(*ppm);
            }
        }
        for (tenant, used_ns) in &self.actions.used {
            if let Some(seat) = self.tenants.get(tenant) {
                seat.job.add(*used_ns);
            }
        }
        self.ask_about_stopped();
        for event in &self.actions.events {
            self.log(*event);
        }
        if self.actions.is_stirred {
            self.stirred.store(true, Ordering::Relaxed);
        }
        if self.actions.lacks_room {
            self.core.make_room();
        }
    }

    /// Asks the system about the processes about which the core asks. One user can have hundreds of
    /// sessions. So one look begins no question after [`ASK_BUDGET`], and the next look goes on with
    /// the other processes. Until then, the earlier answer holds.
    fn ask_about_stopped(&mut self) {
        let Self { sessions, actions, stopped, questions, .. } = self;
        let process_of = |session: SessionId| sessions.get(&session).and_then(|found| found.seat.process);
        let payer_of = |session: &SessionId| {
            sessions.get(session).map(|found| (*session, found.seat.ringer(found.tenant)))
        };
        let asks = actions.asks.iter().filter_map(payer_of);
        let began = Instant::now();
        questions.ask(asks, process_of, is_stopped, || began.elapsed() > ASK_BUDGET, stopped);
    }

    fn log(&self, event: Event) {
        let gpu = self.gpu;
        match event {
            Event::Silence { silent_ns } => {
                tracing::warn!(
                    gpu,
                    silent_ns,
                    "the arbiter made no decision for a while: it sets all lags to zero"
                );
            }
            Event::Endless { session } => {
                let process = self.sessions.get(&session).and_then(|session| session.seat.process);
                let pid = process.map(|process| process.pid);
                tracing::warn!(
                    gpu,
                    pid,
                    "a process has work that does not end: the daemon cannot share the GPU in time; give the process a GPU of its own, or end it"
                );
            }
        }
    }

    /// Turns a command into an order to the core. Keeps the parts of the command that the core does
    /// not use: pages, bells and limits.
    fn take(&mut self, command: Command, batch: &mut Batch) {
        match command {
            Command::Enter { tenant, session, done } => {
                let ringer = session.ringer(tenant.id);
                if let Err(error) = self.events.add(session.id, &session.bell, ringer) {
                    tracing::error!(gpu = self.gpu, session = session.id, %error, "the arbiter cannot wait for the bell of a session");
                }
                batch.orders.push(Order::Enter { tenant: tenant.of_core(), session: session.of_core() });
                let id = tenant.id;
                self.tenants.insert(id, tenant);
                self.sessions.insert(session.id, Session::new(id, session));
                self.show_rules(id);
                batch.answers.push(Answer::Done(done));
            }
            Command::Leave { tenant, session, may_return } => {
                batch.orders.push(Order::Leave { tenant, session, may_return });
                batch.leaving.push(session);
            }
            Command::Bury { tenant, process } => {
                batch.orders.push(Order::Bury(tenant, super::process_id(process)));
            }
            Command::Restore { restored } => {
                batch.orders.push(Order::Restore(Box::new(restored.of_core())));
                self.tenants.extend(restored.accounts.into_iter().map(|(seat, _)| (seat.id, seat)));
            }
            Command::StopWaiting => batch.orders.push(Order::StopWaiting),
            Command::Save { answer } => batch.answers.push(Answer::Save(answer)),
            Command::SetTenant { seat, done } => {
                let id = seat.id;
                batch.orders.push(Order::SetTenant(seat.of_core()));
                if let Some(tenant) = self.tenants.get_mut(&id) {
                    *tenant = seat;
                    self.show_rules(id);
                } else {
                    // The tenant has no session on this GPU, so no page changes.
                    seat.limit_in_force.store(seat.memory_limit_bytes, Ordering::SeqCst);
                }
                batch.answers.push(Answer::Done(done));
            }
            Command::Forget { tenant } => {
                self.tenants.remove(&tenant);
                batch.orders.push(Order::Forget(tenant));
            }
            Command::Report { answer } => batch.answers.push(Answer::Report(answer)),
            Command::Explain { tenant, answer } => batch.answers.push(Answer::Explain(tenant, answer)),
            // `run` handles this command before it calls `take`.
            Command::Stop => {}
        }
    }

    /// Answers a command. If the caller has stopped waiting, the answer is lost.
    fn answer(&mut self, answer: Answer) {
        match answer {
            Answer::Done(done) => drop(done.send(())),
            Answer::Save(answer) => drop(answer.send(self.core.snapshot())),
            Answer::Report(answer) => drop(answer.send(self.report())),
            Answer::Explain(tenant, answer) => {
                drop(answer.send(self.explain(tenant, self.core.looked_ns())));
            }
        }
    }

    /// Tells a tenant's sessions the tenant's share and memory limit, and whether the arbiter
    /// charges copies.
    fn show_rules(&self, id: TenantId) {
        let Some(tenant) = self.tenants.get(&id) else { return };
        for session in self.sessions.values().filter(|session| session.tenant == id) {
            if let Some(slot) = session.seat.grant.page().slot(self.gpu) {
                slot.set_share_ppm(tenant.request.asked_ppm);
                slot.set_memory_limit(tenant.memory_limit_bytes);
                slot.set_charge_copies(tenant.charge_copies);
                slot.set_timed(tenant.slo_ns.is_some());
            }
        }
        tenant.limit_in_force.store(tenant.memory_limit_bytes, Ordering::SeqCst);
    }

    /// Ends the arbitration: opens every gate, or closes every gate if tenants are to fail closed
    /// without a daemon.
    fn let_go(self) {
        if let Some(board) = &self.board {
            board.leave(self.gpu, monotonic_ns());
        }
        let grant = match self.fail_mode {
            FailMode::Open => Grant::Open,
            FailMode::Closed => Grant::Closed,
        };
        for (number, session) in &self.sessions {
            let terms = LeaseTerms::default();
            session.set_gate(self.gpu, &Gate { session: *number, grant, terms, renews: false });
        }
    }
}
