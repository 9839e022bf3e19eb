//! The arbiter's thread.

use super::account::{Account, MAX_HELD_BYTES, MAX_WAITERS, fairness_ppm};
use super::arrears::Arrears;
use super::events::{Bell, Events};
use super::latency::Latency;
use super::overdue::Overdue;
use super::owed::{REVIEW_NS, gate_name};
use super::saved::{Awaited, Baseline, SavedAccount, SavedMeter, Snapshot};
use super::stopped::{self, Stopped};
use super::{Command, Report, Restored, SessionId, SessionSeat, Setup, TenantSeat};
use crate::admin::{AccountStatus, RefusalStatus, SessionGpuStatus};
use crate::clock::monotonic_ns;
use crate::policy::TenantId;
use crate::policy::demand::Demand;
use crate::policy::entitlement::Rule;
use crate::policy::lease::{Change, Grant, Phase, Scheduler, Seen};
use crate::policy::priority::Weights;
use crate::policy::tuning::{ASSUMED_HANDOFF_NS, QuantumBounds, Tuning};
use crate::policy::turns::{self, Turns};
use crate::process::ProcessKey;
use crate::shm::SharedPage;
use deepres_abi::beat::BeatPage;
use deepres_abi::driver::ApiId;
use deepres_abi::grant::{FailMode, GateState, GrantSlot, LeaseTerms};
use deepres_abi::meter::{MemoryKind, Reading};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Heartbeats in the time after which a missing one counts.
const BEATS_PER_LIMIT: u64 = 4;
/// The longest time between two heartbeats, and between two looks at meters while anyone wants the GPU.
const MAX_TICK_NS: u64 = Duration::from_millis(50).as_nanos() as u64;
/// The time between two looks while nobody does: how late it is noticed that someone runs whose gate is open. Whoever waits rings.
const IDLE_LOOK_NS: u64 = Duration::from_millis(250).as_nanos() as u64;
/// How long a process that had sessions before may take to bring its counters into its new page. It does so when it gets it.
const CARRY_LIMIT_NS: u64 = Duration::from_secs(1).as_nanos() as u64;
/// Decisions made at one wake-up, at most: each looks again at what the gates just set have changed.
const MAX_ROUNDS: usize = 4;

/// How long orders are carried out before the next decision, if there is no end of them.
const ORDERS_NS: u64 = Duration::from_millis(5).as_nanos() as u64;

/// A process of a tenant.
pub struct Session {
    /// Its pages.
    pub seat: SessionSeat,
    /// Its tenant.
    pub tenant: TenantId,
    last: Reading,
    awaited: Option<Awaited>,
    stopped: Stopped,
    overdue: Overdue,
    /// What its gate says.
    gate: Grant,
}

impl Session {
    /// Up to where it was charged, and when, if that is not now. `None`: that is not known yet.
    fn charged_up_to(&self) -> Option<(SavedMeter, Option<u64>)> {
        match self.awaited {
            None => Some((self.last.into(), None)),
            Some(awaited) => awaited.from.map(|from| (from.meter, Some(from.at_ns))),
        }
    }
}

/// A tenant, and what is known of it here.
pub struct Tenant {
    /// What it asks for.
    pub seat: TenantSeat,
    /// What it used.
    pub account: Account,
    /// What of that its job's use has in it, ns.
    pub counted_ns: u64,
    /// How much it wants.
    pub demand: Demand,
    /// The share that it is owed, parts per million.
    pub entitled_ppm: u32,
    /// The rule that this follows from, once it was worked out.
    pub rule: Option<Rule>,
    /// Its processes that are here.
    pub sessions: usize,
    turns: Turns,
    /// What was seen of its sessions.
    seen: Vec<turns::Seen>,
}

impl Tenant {
    /// What the gate of one of its sessions is to say while the tenant's says `grant`.
    fn grant_of(&self, session: SessionId, grant: Grant) -> Grant {
        match grant {
            Grant::Leased { .. } if !self.turns.admits(session) => Grant::Closed,
            grant => grant,
        }
    }
}

/// The state of the thread.
pub struct Worker {
    /// The daemon's number for the GPU.
    pub gpu: usize,
    /// The GPU's memory, bytes.
    pub memory_bytes: u64,
    /// What the terms of a priority value weigh.
    pub weights: Weights,
    /// When it was last worked out what is owed.
    pub entitled_ns: u64,
    beat: Arc<SharedPage<BeatPage>>,
    tick_ns: u64,
    heartbeat_limit_ns: u64,
    quantum: QuantumBounds,
    fail_mode: FailMode,
    processors: usize,
    orders: mpsc::Receiver<Command>,
    events: Events,
    /// Who has the GPU.
    pub scheduler: Scheduler,
    tuning: Tuning,
    /// Tenants, those that are away too.
    pub tenants: BTreeMap<TenantId, Tenant>,
    /// Their processes.
    pub sessions: BTreeMap<SessionId, Session>,
    /// When the daemon before was last heard of, while those are waited for that it may have known.
    restored_ns: Option<u64>,
    /// Up to where processes were charged that may come back.
    baselines: BTreeMap<(TenantId, ProcessKey), Baseline>,
    /// What was used while no daemon lived, while those are waited for that come back.
    arrears: Option<Arrears>,
    handoffs: u64,
    latency: Latency,
    contended_ns: u64,
    idle_ns: u64,
    looked_ns: u64,
    ticked_ns: u64,
    /// When the thread last had its turn.
    turned_ns: u64,
    /// When the scheduler wants to decide next.
    decide_ns: Option<u64>,
    /// Someone came, left or was given something else: what is owed is to be worked out anew before the next decision.
    pub owes_anew: bool,
}

impl Worker {
    /// A worker that will obey `orders`, announced by `bell`.
    pub fn new(setup: Setup, orders: mpsc::Receiver<Command>, bell: &Bell) -> io::Result<Self> {
        let events = Events::new()?;
        events.add(bell)?;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let now_ns = monotonic_ns();
        let mut scheduler = Scheduler::default();
        scheduler.set_max_harm(setup.max_harm_ppm);
        Ok(Self {
            gpu: setup.gpu,
            memory_bytes: setup.memory_bytes,
            weights: setup.weights,
            entitled_ns: now_ns,
            beat: setup.beat,
            tick_ns: (setup.heartbeat_limit_ns / BEATS_PER_LIMIT).min(MAX_TICK_NS),
            heartbeat_limit_ns: setup.heartbeat_limit_ns,
            quantum: setup.quantum,
            fail_mode: setup.fail_mode,
            processors,
            orders,
            events,
            scheduler,
            tuning: Tuning::derive(ASSUMED_HANDOFF_NS, setup.quantum, processors),
            tenants: BTreeMap::new(),
            sessions: BTreeMap::new(),
            restored_ns: None,
            baselines: BTreeMap::new(),
            arrears: None,
            handoffs: 0,
            latency: Latency::default(),
            contended_ns: 0,
            idle_ns: 0,
            looked_ns: now_ns,
            ticked_ns: 0,
            turned_ns: now_ns,
            decide_ns: None,
            owes_anew: false,
        })
    }

    /// Takes up what the daemon before left.
    fn restore(&mut self, restored: Restored) {
        let now_ns = monotonic_ns();
        self.looked_ns = now_ns;
        self.restored_ns = Some(restored.saved_ns);
        self.contended_ns = restored.counters.contended_ns;
        self.idle_ns = restored.counters.idle_ns;
        self.handoffs = restored.counters.handoffs;
        self.latency.total_ns = restored.counters.handoff_total_ns;
        let in_flight_ns = restored.accounts.iter().map(|(_, saved)| saved.uncharged_ns).max();
        // Processes that the daemon before never met again were charged up to an earlier moment.
        let charged_ns = restored.baselines.iter().map(|(_, _, baseline)| baseline.at_ns);
        let began_ns = charged_ns.fold(restored.saved_ns, u64::min);
        self.arrears = Some(Arrears::since(began_ns, in_flight_ns.unwrap_or(0)));
        for (seat, saved) in restored.accounts {
            let class = seat.request.class;
            self.scheduler.restore(seat.id, class, saved.entitled_ppm, saved.lag_ns, now_ns);
            self.scheduler.set_paused(seat.id, seat.is_paused);
            let id = seat.id;
            let account = Account::restore(&saved, now_ns);
            let tenant = Tenant {
                seat,
                counted_ns: account.totals.gpu_ns,
                account,
                demand: Demand::default(),
                entitled_ppm: saved.entitled_ppm,
                rule: None,
                sessions: 0,
                turns: Turns::default(),
                seen: Vec::new(),
            };
            self.tenants.insert(id, tenant);
        }
        self.baselines = restored
            .baselines
            .into_iter()
            .map(|(tenant, process, baseline)| ((tenant, process), baseline))
            .collect();
    }

    /// Runs until it is told to stop.
    pub fn run(mut self) {
        let mut wake_ns = None;
        let mut has_orders = false;
        loop {
            let mut is_called = has_orders;
            if !has_orders {
                is_called = match self.events.wait(wake_ns) {
                    Ok(rang) => rang,
                    Err(error) => {
                        // Nothing is known to cause it; tenants go on by themselves once the heartbeat stops.
                        tracing::error!(gpu = self.gpu, %error, "the arbiter cannot wait for events and stops");
                        return self.let_go();
                    }
                };
            }
            let mut answers = Vec::new();
            let until_ns = monotonic_ns().saturating_add(ORDERS_NS);
            has_orders = loop {
                match self.orders.try_recv() {
                    Ok(Command::Stop) | Err(mpsc::TryRecvError::Disconnected) => return self.let_go(),
                    Ok(command) => {
                        is_called = true;
                        answers.extend(self.obey(command));
                        // Whoever comes and goes a thousand times does not keep the others from their turns.
                        if monotonic_ns() >= until_ns {
                            break true;
                        }
                    }
                    Err(mpsc::TryRecvError::Empty) => break false,
                }
            };
            wake_ns = self.turn(is_called);
            for answer in answers {
                // Whoever asked may be gone.
                let _ = answer.send(());
            }
        }
    }

    /// Looks, decides and sets gates, or, if nobody called and nothing is to be seen, only says that we live. Returns when to do so again
    /// at the latest.
    fn turn(&mut self, is_called: bool) -> Option<u64> {
        let now_ns = monotonic_ns();
        let silent_ns = now_ns.saturating_sub(std::mem::replace(&mut self.turned_ns, now_ns));
        // We were stopped, or the machine slept: tenants ran as they liked meanwhile.
        let was_away = silent_ns > self.heartbeat_limit_ns && !self.sessions.is_empty();
        if was_away {
            tracing::warn!(
                gpu = self.gpu,
                silent_ns,
                "nobody governed for a while: accounts are level again"
            );
            self.look(now_ns);
            self.scheduler.forgive();
        }
        if is_called || was_away || !self.is_quiet(now_ns) {
            self.look_and_decide();
        } else {
            self.beat.page().beat(self.gpu, now_ns);
            self.ticked_ns = now_ns;
        }
        let tick_ns = (!self.sessions.is_empty()).then(|| self.ticked_ns.saturating_add(self.tick_ns));
        [self.decide_ns, tick_ns].into_iter().flatten().min()
    }

    /// Whether nobody wanted the GPU when last looked at, not long ago, and no time has come that something waits for.
    fn is_quiet(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.looked_ns) < IDLE_LOOK_NS
            && self.decide_ns.is_none_or(|at_ns| now_ns < at_ns)
            && !self.tenants.values().any(|tenant| tenant.account.wants)
            && !self
                .sessions
                .values()
                .any(|session| session.awaited.is_some() || session.stopped.is_stopped())
    }

    fn look_and_decide(&mut self) {
        for _ in 0..MAX_ROUNDS {
            let now_ns = monotonic_ns();
            self.beat.page().beat(self.gpu, now_ns);
            self.look(now_ns);
            self.entitle_anew(now_ns);
            self.decide_ns = self.scheduler.decide(now_ns, &self.tuning);
            self.learn();
            let changes = self.scheduler.take_changes();
            let is_settled = changes.is_empty();
            for change in changes {
                self.apply(change);
            }
            let turn_ns = self.take_turns(now_ns);
            self.decide_ns = [self.decide_ns, turn_ns].into_iter().flatten().min();
            if is_settled {
                break;
            }
            // A tenant that finished just now either sees the gate that was set and rings, or is seen to have finished in the next
            // round.
        }
        let now_ns = self.looked_ns;
        if now_ns.saturating_sub(self.entitled_ns) >= REVIEW_NS {
            self.entitle(now_ns);
        }
        if now_ns.saturating_sub(self.ticked_ns) >= self.tick_ns {
            self.ticked_ns = now_ns;
            for tenant in self.tenants.values_mut() {
                tenant.account.mark(now_ns);
            }
        }
    }

    /// Reads every meter and tells the scheduler.
    fn look(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.looked_ns);
        self.looked_ns = now_ns;
        let wanting = self.tenants.values().filter(|tenant| tenant.account.wants).count();
        let entitled = |tenant: &Tenant| u64::from(tenant.entitled_ppm);
        let rivals_ppm = (wanting > 1)
            .then(|| self.tenants.values().filter(|tenant| tenant.account.wants).map(entitled).sum::<u64>());
        if wanting > 1 {
            self.contended_ns = self.contended_ns.saturating_add(elapsed_ns);
        } else if wanting == 0 && !self.sessions.is_empty() {
            self.idle_ns = self.idle_ns.saturating_add(elapsed_ns);
        }
        let mut meters: BTreeMap<TenantId, Vec<(Reading, Reading)>> = BTreeMap::new();
        self.tenants.values_mut().for_each(|tenant| tenant.seen.clear());
        for session in self.sessions.values_mut() {
            let page = session.seat.meter.page();
            let Some(slot) = page.slot(self.gpu) else { continue };
            // Before the counters are read.
            let is_brought =
                session.awaited.is_some_and(|awaited| page.is_carried() || now_ns >= awaited.until_ns);
            let may_launch = !matches!(self.scheduler.grant(session.tenant), Grant::Closed | Grant::Paused);
            let process = session.seat.process;
            let reading = session
                .stopped
                .look(&session.last, slot.read(), may_launch, now_ns, || stopped::is_stopped(process));
            let longest_ns = self.tenants.get(&session.tenant).map_or(0, |tenant| tenant.account.longest_ns);
            if session.overdue.look(&reading, longest_ns, now_ns) {
                let pid = process.map(|process| process.pid);
                tracing::warn!(
                    gpu = self.gpu,
                    pid,
                    "work that does not end: it cannot share the GPU in time"
                );
            }
            let before = if is_brought {
                let from = session.awaited.take().and_then(|awaited| awaited.from);
                if let (Some(from), Some(tenant)) = (from, self.tenants.get_mut(&session.tenant)) {
                    let used_ns = tenant.account.catch_up(&from, &reading, now_ns);
                    match &mut self.arrears {
                        Some(arrears) => arrears.claim(session.tenant, used_ns),
                        None => tenant.account.settle(used_ns),
                    }
                }
                reading
            } else if session.awaited.is_some() {
                // Whether it runs or waits is believed; what it counts is not all there yet.
                meters.entry(session.tenant).or_default().push((reading, reading));
                continue;
            } else {
                session.last
            };
            meters.entry(session.tenant).or_default().push((before, reading));
            if let Some(tenant) = self.tenants.get_mut(&session.tenant) {
                let used_ns = reading.compute_ns.saturating_sub(before.compute_ns).min(elapsed_ns);
                tenant.seen.push(turns::Seen { session: session.seat.id, wants: reading.wants(), used_ns });
            }
            session.last = reading;
        }
        for (id, tenant) in &mut self.tenants {
            tenant.turns.observe(now_ns, elapsed_ns, self.scheduler.grant(*id), &tenant.seen);
            tenant.account.pass(elapsed_ns, tenant.entitled_ppm, rivals_ppm);
            let was_idle = tenant.sessions > 0 && !tenant.account.wants;
            let mut seen = match meters.remove(id) {
                Some(meters) => tenant.account.look(now_ns, meters.into_iter()),
                None => {
                    tenant.account.wants = false;
                    Seen::default()
                }
            };
            if rivals_ppm.is_some() {
                tenant.account.had(seen.used_ns);
            }
            if let Some(arrears) = &mut self.arrears {
                arrears.charged(seen.used_ns);
            }
            if self.scheduler.grant(*id) == Grant::Paused {
                seen.waiting = false;
                tenant.account.wants = seen.in_flight;
            }
            tenant.demand.observe(seen.used_ns, if was_idle { elapsed_ns } else { 0 });
            self.scheduler.observe(*id, now_ns, seen);
        }
        let are_all_back =
            self.baselines.is_empty() && self.sessions.values().all(|session| session.awaited.is_none());
        if are_all_back {
            self.settle_arrears(now_ns);
        }
    }

    /// Charges what was used while no daemon lived, as far as it is known.
    fn settle_arrears(&mut self, now_ns: u64) {
        let settled = self.arrears.as_mut().map(|arrears| arrears.settle(now_ns));
        for (tenant, used_ns) in settled.unwrap_or_default() {
            if let Some(tenant) = self.tenants.get_mut(&tenant) {
                tenant.account.settle(used_ns);
            }
        }
    }

    /// Learns from the hand-offs that were made.
    fn learn(&mut self) {
        for handoff in self.scheduler.take_handoffs() {
            self.handoffs += 1;
            if let Some(idle_ns) = handoff.idle_ns {
                self.latency.add(idle_ns);
                let handoff_ns = self.latency.usual_ns().unwrap_or(ASSUMED_HANDOFF_NS);
                self.tuning = Tuning::derive(handoff_ns, self.quantum, self.processors);
            }
        }
    }

    fn apply(&mut self, change: Change) {
        tracing::trace!(gpu = self.gpu, ?change, "gate");
        let Some(tenant) = self.tenants.get_mut(&change.tenant) else { return };
        if matches!(change.grant, Grant::Leased { .. }) && !change.renewal {
            tenant.turns.begin(&tenant.seen);
        }
        self.show(change.tenant, change.grant);
    }

    /// Lets the sessions of tenants with leases take turns. Returns when to do so again.
    fn take_turns(&mut self, now_ns: u64) -> Option<u64> {
        let mut wake_ns: Option<u64> = None;
        let several = self.tenants.iter().filter(|(_, tenant)| tenant.sessions > 1);
        for id in several.map(|(id, _)| *id).collect::<Vec<_>>() {
            let grant = self.scheduler.grant(id);
            if let (Some(tenant), Grant::Leased { .. }) = (self.tenants.get_mut(&id), grant) {
                let again_ns = tenant.turns.step(now_ns, self.tuning.grace_ns, &tenant.seen);
                wake_ns = [wake_ns, again_ns].into_iter().flatten().min();
                self.show(id, grant);
            }
        }
        wake_ns
    }

    /// Sets the gates of a tenant's sessions, those that are not as they should be.
    fn show(&mut self, id: TenantId, grant: Grant) {
        let Some(tenant) = self.tenants.get(&id) else { return };
        let wanted: Vec<(SessionId, Grant, bool)> = self
            .sessions
            .values()
            .filter(|session| session.tenant == id)
            .map(|session| (session, tenant.grant_of(session.seat.id, grant)))
            .filter(|(session, grant)| session.gate != *grant)
            .map(|(session, grant)| {
                let is_renewal =
                    matches!((session.gate, grant), (Grant::Leased { .. }, Grant::Leased { .. }));
                (session.seat.id, grant, is_renewal)
            })
            .collect();
        for (session, grant, is_renewal) in wanted {
            if let Some(session) = self.sessions.get(&session) {
                self.set_gate(session, grant, is_renewal);
            }
            if let Some(session) = self.sessions.get_mut(&session) {
                session.gate = grant;
            }
        }
    }

    fn set_gate(&self, session: &Session, grant: Grant, renewal: bool) {
        let Some(slot) = session.seat.grant.page().slot(self.gpu) else { return };
        match grant {
            Grant::Closed => drop(slot.set_gate(GateState::Closed, LeaseTerms::default())),
            Grant::Open => drop(slot.set_gate(GateState::Open, LeaseTerms::default())),
            Grant::Paused => drop(slot.set_gate(GateState::Paused, LeaseTerms::default())),
            Grant::Leased { expires_ns } => {
                let longest_ns =
                    self.tenants.get(&session.tenant).map_or(0, |tenant| tenant.account.longest_ns);
                // Many processes that see the GPU never use it.
                let launches = |other: &&Session| {
                    other.tenant == session.tenant
                        && (other.last.kernel_launches | other.last.graph_launches) != 0
                };
                let takes_turns =
                    self.tenants.get(&session.tenant).is_some_and(|tenant| tenant.turns.is_taken());
                let sessions = if takes_turns { 1 } else { self.sessions.values().filter(launches).count() };
                let terms = LeaseTerms {
                    expires_ns,
                    window_ns: self.scheduler.window_ns(session.tenant, sessions, longest_ns, &self.tuning),
                    spin_ns: self.tuning.spin_ns,
                    ..LeaseTerms::default()
                };
                if renewal {
                    slot.renew(terms);
                } else {
                    slot.set_gate(GateState::Leased, terms);
                }
            }
        }
        wake(slot);
    }

    /// Carries out an order. Returns whom to tell once the gates are set.
    fn obey(&mut self, command: Command) -> Option<tokio::sync::oneshot::Sender<()>> {
        match command {
            Command::Enter { tenant, session, done } => {
                self.enter(tenant, session);
                Some(done)
            }
            Command::Leave { tenant, session, may_return } => {
                self.leave(tenant, session, may_return);
                None
            }
            Command::Bury { tenant, process } => {
                self.baselines.remove(&(tenant, process));
                None
            }
            Command::Restore { restored } => {
                self.restore(*restored);
                None
            }
            Command::StopWaiting => {
                self.restored_ns = None;
                self.settle_arrears(monotonic_ns());
                self.arrears = None;
                None
            }
            Command::Save { answer } => {
                self.look(monotonic_ns());
                self.entitle_anew(self.looked_ns);
                // What is written says of those who are back that they were charged.
                self.settle_arrears(self.looked_ns);
                let _ = answer.send(self.snapshot());
                None
            }
            Command::SetTenant { seat, done } => {
                self.scheduler.set_paused(seat.id, seat.is_paused);
                self.limit_memory(seat.id, seat.memory_limit_bytes);
                if let Some(tenant) = self.tenants.get_mut(&seat.id) {
                    tenant.seat = seat;
                }
                self.owes_anew = true;
                Some(done)
            }
            Command::Forget { tenant } => {
                self.tenants.remove(&tenant);
                self.baselines.retain(|(of, _), _| *of != tenant);
                self.scheduler.forget(tenant);
                None
            }
            Command::Report { answer } => {
                // Counters up to this moment. Whoever asked may be gone.
                self.look(monotonic_ns());
                self.entitle_anew(self.looked_ns);
                let _ = answer.send(self.report());
                None
            }
            Command::Explain { tenant, answer } => {
                self.look(monotonic_ns());
                self.entitle_anew(self.looked_ns);
                let _ = answer.send(self.explain(tenant, self.looked_ns));
                None
            }
            // Seen by the caller before it gets here.
            Command::Stop => None,
        }
    }

    fn enter(&mut self, seat: TenantSeat, session: SessionSeat) {
        let now_ns = monotonic_ns();
        // Time that nobody was here for is over before there is someone to miss us.
        self.look(now_ns);
        if self.sessions.is_empty() {
            self.turned_ns = now_ns;
        }
        if let Err(error) = self.events.add(&session.bell) {
            tracing::error!(gpu = self.gpu, session = session.id, %error, "cannot hear this session's bell");
        }
        let from = self.baseline(seat.id, &session);
        let until_ns = now_ns.saturating_add(CARRY_LIMIT_NS);
        let awaited = session.continues.then_some(Awaited { from, until_ns });
        let tenant = self.tenants.entry(seat.id).or_insert_with(|| Tenant {
            seat: seat.clone(),
            // The daemon before died before it could write of the tenant.
            account: from.map_or_else(
                || Account::new(now_ns),
                |from| {
                    Account::restore(
                        &SavedAccount { since_ns: from.at_ns, ..SavedAccount::default() },
                        now_ns,
                    )
                },
            ),
            counted_ns: 0,
            demand: Demand::default(),
            entitled_ppm: 0,
            rule: None,
            sessions: 0,
            turns: Turns::default(),
            seen: Vec::new(),
        });
        tenant.seat = seat.clone();
        tenant.sessions += 1;
        self.scheduler.enter(seat.id, seat.request.class, now_ns);
        self.scheduler.set_paused(seat.id, seat.is_paused);
        let last = from.map_or_else(Reading::default, |from| from.meter.into());
        let grant = self.scheduler.grant(seat.id);
        let gate = self.tenants.get(&seat.id).map_or(grant, |tenant| tenant.grant_of(session.id, grant));
        let session = Session {
            seat: session,
            tenant: seat.id,
            last,
            awaited,
            stopped: Stopped::default(),
            overdue: Overdue::default(),
            gate,
        };
        self.set_gate(&session, gate, false);
        self.sessions.insert(session.seat.id, session);
        self.limit_memory(seat.id, seat.memory_limit_bytes);
        self.owes_anew = true;
    }

    /// From where a session whose meter goes on is to be charged.
    fn baseline(&mut self, tenant: TenantId, session: &SessionSeat) -> Option<Baseline> {
        let known = session.process.and_then(|process| self.baselines.remove(&(tenant, process)));
        if !session.continues {
            return None;
        }
        // The daemon before died before it could write of the process: all that it counts was after the last time it wrote.
        let unknown = || Some(Baseline { meter: SavedMeter::default(), at_ns: self.restored_ns? });
        known.or_else(unknown)
    }

    fn limit_memory(&self, tenant: TenantId, bytes: u64) {
        for session in self.sessions.values().filter(|session| session.tenant == tenant) {
            if let Some(slot) = session.seat.grant.page().slot(self.gpu) {
                slot.set_memory_limit(bytes);
            }
        }
    }

    fn leave(&mut self, id: TenantId, session: SessionId, may_return: bool) {
        // What it did up to its end counts.
        self.look(monotonic_ns());
        let Some(session) = self.sessions.remove(&session) else { return };
        if let Some(process) = session.seat.process.filter(|_| may_return)
            && let Some((meter, at_ns)) = session.charged_up_to()
        {
            let at_ns = at_ns.unwrap_or(self.looked_ns);
            self.baselines.insert((id, process), Baseline { meter, at_ns });
        }
        self.events.remove(&session.seat.bell);
        // A process that only closed its connection goes on by itself.
        self.set_gate(&session, Grant::Open, false);
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.sessions = tenant.sessions.saturating_sub(1);
            if tenant.sessions == 0 {
                tenant.account.wants = false;
                self.scheduler.leave(id, self.looked_ns);
            }
        }
        self.owes_anew = true;
    }

    /// From here on nobody arbitrates: opens every gate, or closes it to those who are to fail without a daemon.
    fn let_go(&mut self) {
        let grant = match self.fail_mode {
            FailMode::Open => Grant::Open,
            FailMode::Closed => Grant::Closed,
        };
        for session in self.sessions.values() {
            self.set_gate(session, grant, false);
        }
    }

    fn snapshot(&self) -> Snapshot {
        let here = self.sessions.values().filter_map(|session| {
            let (meter, at_ns) = session.charged_up_to()?;
            Some((session.tenant, session.seat.process?, meter, at_ns))
        });
        let away = self.baselines.iter();
        let away = away.map(|((tenant, process), from)| (*tenant, *process, from.meter, Some(from.at_ns)));
        let account = |id: &TenantId, tenant: &Tenant| {
            (*id, tenant.account.save(tenant.entitled_ppm, self.scheduler.lag_ns(*id)))
        };
        Snapshot {
            now_ns: self.looked_ns,
            contended_ns: self.contended_ns,
            idle_ns: self.idle_ns,
            handoffs: self.handoffs,
            handoff_total_ns: self.latency.total_ns,
            accounts: self.tenants.iter().map(|(id, tenant)| account(id, tenant)).collect(),
            meters: here.chain(away).collect(),
        }
    }

    fn report(&self) -> Report {
        let holder = match self.scheduler.phase() {
            Phase::Held(tenant) => Some(tenant),
            Phase::Free | Phase::Draining(_) => None,
        };
        let accounts: BTreeMap<_, _> =
            self.tenants.iter().map(|(id, tenant)| (*id, self.account_status(*id, tenant))).collect();
        Report {
            now_ns: self.looked_ns,
            phase: self.scheduler.phase(),
            open: holder.is_some_and(|holder| self.scheduler.grant(holder) == Grant::Open),
            contended_ns: self.contended_ns,
            idle_ns: self.idle_ns,
            handoffs: self.handoffs,
            handoff_ns: [self.latency.total_ns, self.latency.quantile_ns(50), self.latency.quantile_ns(99)],
            tuning: self.tuning,
            fairness_ppm: fairness_ppm(
                self.tenants.values().filter_map(|tenant| tenant.account.recent_service(self.looked_ns)),
            ),
            sessions: self
                .sessions
                .iter()
                .filter_map(|(id, session)| {
                    let longest_ns = self.tenants.get(&session.tenant)?.account.longest_ns;
                    let overdue_ns = session.overdue.overdue_ns(longest_ns, self.looked_ns);
                    let account = accounts.get(&session.tenant)?;
                    Some((*id, SessionGpuStatus { overdue_ns, ..session_status(session, account) }))
                })
                .collect(),
            tenants: accounts.into_iter().collect(),
        }
    }

    fn account_status(&self, id: TenantId, tenant: &Tenant) -> AccountStatus {
        let totals = tenant.account.totals;
        let meters =
            || self.sessions.values().filter(|session| session.tenant == id).map(|session| session.last);
        let held = |kind: MemoryKind| {
            meters().fold(0u64, |sum, meter| sum.saturating_add(meter.held_bytes[kind as usize]))
        };
        let kinds = MemoryKind::ALL.into_iter().map(|kind| (kind.name().to_owned(), held(kind)));
        let ledger = tenant.seat.ledger.page().gpu(self.gpu);
        let memory_bytes = ledger.map_or(0, |ledger| ledger.held_bytes()).min(MAX_HELD_BYTES);
        AccountStatus {
            gpu: self.gpu,
            entitled_ppm: tenant.entitled_ppm,
            entitled_by: tenant.rule.map_or("", rule_name).to_owned(),
            recent_share_ppm: tenant.account.recent_share_ppm(self.looked_ns),
            total_share_ppm: tenant.account.total_share_ppm(self.looked_ns),
            gpu_ns: totals.gpu_ns,
            copy_ns: totals.copy_ns,
            wait_ns: totals.wait_ns,
            waits: totals.waits,
            kernel_launches: totals.kernel_launches,
            graph_launches: totals.graph_launches,
            wanted_ns: totals.wanted_ns,
            contended_ns: totals.contended_ns,
            owed_ns: totals.owed_ns,
            had_ns: totals.had_ns,
            waits_by_length: totals.waits_by_length,
            lag_ns: self.scheduler.lag_ns(id),
            memory_bytes,
            memory_peak_bytes: ledger.map_or(0, |ledger| {
                ledger.note_peak(memory_bytes);
                ledger.peak_bytes().min(MAX_HELD_BYTES)
            }),
            memory_by_kind: kinds
                .map(|(kind, bytes)| (kind, bytes.min(memory_bytes)))
                .filter(|(_, bytes)| *bytes > 0)
                .collect(),
            kinds_drift_bytes: drift(memory_bytes, MemoryKind::ALL.into_iter().map(held)),
            nvml_bytes: None,
            drift_bytes: None,
            ceiling_bytes: None,
            refusals: totals.refusals,
            last_refusal: tenant.account.last_refusal.map(|(api, bytes)| RefusalStatus {
                api: ApiId::from_index(api as usize).map(|api| api.symbol().to_owned()),
                bytes,
            }),
            gate: gate_name(self.scheduler.grant(id)).to_owned(),
        }
    }
}

/// What is held beyond what is told by kind, bytes.
fn drift(held_bytes: u64, kinds: impl Iterator<Item = u64>) -> i64 {
    let told_bytes = kinds.fold(0, u64::saturating_add).min(MAX_HELD_BYTES);
    // Both are below 2⁶³.
    held_bytes as i64 - told_bytes as i64
}

/// What a session says of itself, where it does not say more than its tenant's account, which is bounded by what is possible.
fn session_status(session: &Session, account: &AccountStatus) -> SessionGpuStatus {
    let meter = session.last;
    let held_bytes = meter.held_bytes.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
    SessionGpuStatus {
        gpu: account.gpu,
        in_flight: meter.in_flight,
        waiters: meter.waiters.min(MAX_WAITERS as u32),
        gpu_ns: meter.compute_ns.min(account.gpu_ns),
        kernel_launches: meter.kernel_launches.min(account.kernel_launches),
        graph_launches: meter.graph_launches.min(account.graph_launches),
        wait_ns: meter.wait_ns.min(account.wait_ns),
        memory_bytes: held_bytes.min(account.memory_bytes),
        overdue_ns: None,
    }
}

/// A rule's name in the status.
fn rule_name(rule: Rule) -> &'static str {
    match rule {
        Rule::Guaranteed => "guaranteed",
        Rule::Asked => "asked",
        Rule::Shrunk => "shrunk",
        Rule::Rest => "rest",
        Rule::Capped => "capped",
        Rule::Gaps => "gaps",
    }
}

/// Wakes every thread that sleeps on the gate.
fn wake(slot: &GrantSlot) {
    // SAFETY: the word lives in the page of a session that is still held here, and is an atomic for as long.
    let word = unsafe { std::sync::atomic::AtomicU32::from_ptr(slot.futex()) };
    // It cannot fail but for a bad address; and not private: the sleepers are other processes.
    let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::empty(), u32::MAX >> 1);
}
