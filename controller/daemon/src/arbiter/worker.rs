//! The body of the arbiter's thread.

use super::account::Account;
use super::arrears::Arrears;
use super::events::{Bell, Events};
use super::gangs::GangBoard;
use super::latency::Latency;
use super::overdue::Overdue;
use super::overlap::Overlap;
use super::owed::{IDLE_REVIEW_NS, REVIEW_NS};
use super::saved::{Awaited, Baseline, SavedAccount, SavedMeter, Snapshot};
use super::stopped::{self, Stopped};
use super::tenant::{Session, Tenant};
use super::{Command, Restored, SessionId, SessionSeat, Setup, TenantSeat};
use crate::shm::SharedPage;
use deepres_abi::beat::BeatPage;
use deepres_abi::grant::{FailMode, LeaseTerms, ONE_LAUNCH};
use deepres_abi::meter::Reading;
use deepres_model::clock::monotonic_ns;
use deepres_model::process::ProcessKey;
use deepres_policy::TenantId;
use deepres_policy::lease::{Change, Grant, Phase, Scheduler, Seen};
use deepres_policy::priority::Weights;
use deepres_policy::tuning::{ASSUMED_HANDOFF_NS, QuantumBounds, Tuning, UNSEEN_NS};
use deepres_policy::turns;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Number of heartbeats that the arbiter sends within the heartbeat limit. One late heartbeat
/// therefore does not make tenants take the daemon for dead.
const BEATS_PER_LIMIT: u64 = 4;
/// The longest time between two heartbeats. While a tenant wants the GPU, also the longest time
/// between two reads of the meters.
const MAX_TICK_NS: u64 = Duration::from_millis(50).as_nanos() as u64;
/// The time between two reads of the meters while no tenant wants the GPU. A session that waits, or
/// launches after a rest, rings the bell. So this time only bounds how late the arbiter notices a
/// session that launches through an open gate.
const IDLE_LOOK_NS: u64 = Duration::from_secs(1).as_nanos() as u64;
/// The same time on a host with a gang board: gangs are recognised by what runs on several GPUs at
/// once.
const GANG_LOOK_NS: u64 = Duration::from_millis(250).as_nanos() as u64;
/// How long a process that had earlier sessions may take to carry its counters into its new meter
/// page. The process does so as soon as it gets the page.
const CARRY_LIMIT_NS: u64 = Duration::from_secs(1).as_nanos() as u64;
/// The most decisions at one wake-up. Each round reads again what the gates set in the round before
/// have changed.
const MAX_ROUNDS: usize = 4;

/// How long the arbiter carries out queued orders before its next decision, while more keep coming.
const ORDERS_NS: u64 = Duration::from_millis(5).as_nanos() as u64;

/// The state of the arbiter's thread.
pub struct Worker {
    /// The daemon's number for the GPU.
    pub gpu: usize,
    /// The GPU's memory, bytes.
    pub memory_bytes: u64,
    /// The weights of the terms of a priority value.
    pub weights: Weights,
    /// When the entitlements were last computed, ns.
    pub entitled_ns: u64,
    beat: Arc<SharedPage<BeatPage>>,
    tick_ns: u64,
    heartbeat_limit_ns: u64,
    quantum: QuantumBounds,
    fail_mode: FailMode,
    processors: usize,
    orders: mpsc::Receiver<Command>,
    events: Events,
    /// The board on which arbiters agree on gangs; `None` without gangs.
    board: Option<Arc<GangBoard>>,
    /// The holder that was last posted to the board.
    posted: Option<TenantId>,
    /// The lease policy: decides which tenant has the GPU.
    pub scheduler: Scheduler,
    /// The time constants in force.
    pub tuning: Tuning,
    /// The tenants, with and without sessions at present.
    pub tenants: BTreeMap<TenantId, Tenant>,
    /// When the previous daemon last saved its state, ns; `Some` while processes of its time may
    /// still reconnect.
    restored_ns: Option<u64>,
    /// For each process that may come back: the point up to which it was charged.
    baselines: BTreeMap<(TenantId, ProcessKey), Baseline>,
    /// GPU time used while no daemon ran, not charged yet; `Some` while processes may still
    /// reconnect.
    arrears: Option<Arrears>,
    /// Number of hand-offs.
    pub handoffs: u64,
    /// The cost of hand-offs.
    pub latency: Latency,
    /// Time in which two or more tenants wanted the GPU, ns.
    pub contended_ns: u64,
    /// Time in which no tenant wanted the GPU, ns.
    pub idle_ns: u64,
    /// Whether a tenant wanted the GPU when the meters were last read.
    is_wanted: bool,
    /// Whether some meter did not show everything when last read: its session was stopped, or had
    /// not carried its counters over yet.
    is_unsettled: bool,
    /// When the meters were last read, ns.
    pub looked_ns: u64,
    ticked_ns: u64,
    /// When the thread last ran, ns.
    turned_ns: u64,
    /// When the scheduler wants to decide next, ns.
    decide_ns: Option<u64>,
    /// Set whenever a tenant wants the GPU.
    stirred: Arc<AtomicBool>,
    /// Whether the entitlements must be computed anew before the next decision, because a tenant
    /// came, left or was changed.
    pub owes_anew: bool,
}

impl Worker {
    /// Returns a worker that takes its orders from `orders`. `bell` announces an order. The worker
    /// sets `stirred` whenever a tenant wants the GPU.
    pub fn new(
        setup: Setup,
        orders: mpsc::Receiver<Command>,
        bell: &Bell,
        stirred: Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let events = Events::new()?;
        events.add(bell)?;
        if let Some(board) = &setup.board {
            board.join(setup.gpu, bell.clone());
        }
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
            board: setup.board,
            posted: None,
            scheduler,
            tuning: Tuning::derive(ASSUMED_HANDOFF_NS, setup.quantum, processors),
            tenants: BTreeMap::new(),
            restored_ns: None,
            baselines: BTreeMap::new(),
            arrears: None,
            handoffs: 0,
            latency: Latency::default(),
            contended_ns: 0,
            idle_ns: 0,
            is_wanted: false,
            is_unsettled: false,
            looked_ns: now_ns,
            ticked_ns: 0,
            turned_ns: now_ns,
            decide_ns: None,
            stirred,
            owes_anew: false,
        })
    }

    /// Restores the state that the previous daemon saved.
    fn restore(&mut self, restored: Restored) {
        let now_ns = monotonic_ns();
        self.looked_ns = now_ns;
        self.restored_ns = Some(restored.saved_ns);
        self.contended_ns = restored.counters.contended_ns;
        self.idle_ns = restored.counters.idle_ns;
        self.handoffs = restored.counters.handoffs;
        self.latency.total_ns = restored.counters.handoff_total_ns;
        let in_flight_ns = restored.accounts.iter().map(|(_, saved)| saved.uncharged_ns).max();
        // Processes that the previous daemon had not met again were charged only up to an earlier
        // moment.
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
                counted_ns: account.totals.gpu_ns,
                entitled_ppm: saved.entitled_ppm,
                ..Tenant::new(seat, account)
            };
            self.tenants.insert(id, tenant);
        }
        self.baselines = restored
            .baselines
            .into_iter()
            .map(|(tenant, process, baseline)| ((tenant, process), baseline))
            .collect();
    }

    /// Runs the arbiter until it is told to stop.
    pub fn run(mut self) {
        let mut wake_ns = None;
        let mut has_orders = false;
        loop {
            let mut is_called = has_orders;
            if !has_orders {
                is_called = match self.events.wait(wake_ns) {
                    Ok(rang) => rang,
                    Err(error) => {
                        // No cause of this error is known. Tenants stop waiting for the daemon once
                        // the heartbeat stops.
                        tracing::error!(gpu = self.gpu, %error, "the arbiter cannot wait for events and stops");
                        return self.let_go();
                    }
                };
            }
            // Checked before the orders, because each order reads the meters.
            is_called |= self.mind_silence(monotonic_ns());
            let mut answers = Vec::new();
            let until_ns = monotonic_ns().saturating_add(ORDERS_NS);
            has_orders = loop {
                match self.orders.try_recv() {
                    Ok(Command::Stop) | Err(mpsc::TryRecvError::Disconnected) => return self.let_go(),
                    Ok(command) => {
                        is_called = true;
                        answers.extend(self.obey(command));
                        // A client that connects and disconnects all the time must not keep the
                        // tenants from their turns.
                        if monotonic_ns() >= until_ns {
                            break true;
                        }
                    }
                    Err(mpsc::TryRecvError::Empty) => break false,
                }
            };
            wake_ns = self.turn(is_called);
            for answer in answers {
                // The caller may have stopped waiting for the answer.
                let _ = answer.send(());
            }
        }
    }

    /// Reads the meters, decides and sets the gates. If no bell rang and nothing is due, only sends
    /// the heartbeat. Returns when the next turn is due at the latest, ns.
    fn turn(&mut self, is_called: bool) -> Option<u64> {
        let now_ns = monotonic_ns();
        if is_called || !self.is_quiet(now_ns) {
            self.look_and_decide();
        } else {
            self.beat.page().beat(self.gpu, now_ns);
            self.ticked_ns = now_ns;
        }
        let tick_ns = self.has_sessions().then(|| self.ticked_ns.saturating_add(self.tick_ns));
        [self.decide_ns, tick_ns].into_iter().flatten().min()
    }

    /// Checks whether the thread did not run for longer than the heartbeat limit, because it was
    /// stopped or the machine slept. Tenants ran unarbitrated meanwhile, so this evens out their
    /// accounts. Returns whether that was so.
    fn mind_silence(&mut self, now_ns: u64) -> bool {
        let silent_ns = now_ns.saturating_sub(std::mem::replace(&mut self.turned_ns, now_ns));
        let was_away = silent_ns > self.heartbeat_limit_ns && self.has_sessions();
        if was_away {
            tracing::warn!(
                gpu = self.gpu,
                silent_ns,
                "nobody governed for a while: accounts are level again"
            );
            self.level(now_ns);
            self.look(now_ns);
            self.scheduler.forgive(now_ns, silent_ns);
        }
        was_away
    }

    /// Corrects the meters for the time in which nobody arbitrated. In that time each session
    /// counted the others' turns as its own. Together the sessions may claim more than the time
    /// that passed: this takes the excess off all in equal parts, as [`Arrears`] does for the time
    /// between two daemons.
    fn level(&mut self, now_ns: u64) {
        let gpu = self.gpu;
        let sessions = |tenants: &mut BTreeMap<TenantId, Tenant>,
                        each: &mut dyn FnMut(u64, &mut Reading, u64)| {
            let all = tenants.values_mut().flat_map(|tenant| tenant.sessions.values_mut());
            for (number, session) in all.filter(|session| session.awaited.is_none()).enumerate() {
                let Some(slot) = session.seat.meter.page().slot(gpu) else { continue };
                let used_ns = slot.read().compute_ns.saturating_sub(session.last.compute_ns);
                each(number as u64, &mut session.last, used_ns);
            }
        };
        let mut claims = BTreeMap::new();
        sessions(&mut self.tenants, &mut |number, _, used_ns| {
            claims.insert(number, used_ns);
        });
        let in_flight_ns = self.tenants.values().map(|tenant| tenant.account.uncharged_ns()).max();
        let mut arrears = Arrears::since(self.looked_ns, in_flight_ns.unwrap_or(0));
        claims.iter().for_each(|(number, used_ns)| arrears.claim(*number, *used_ns));
        let settled: BTreeMap<u64, u64> = arrears.settle(now_ns).into_iter().collect();
        sessions(&mut self.tenants, &mut |number, last, _| {
            let claimed_ns = claims.get(&number).copied().unwrap_or(0);
            let off_ns = claimed_ns.saturating_sub(settled.get(&number).copied().unwrap_or(0));
            last.compute_ns = last.compute_ns.saturating_add(off_ns);
        });
    }

    fn has_sessions(&self) -> bool {
        self.tenants.values().any(|tenant| !tenant.sessions.is_empty())
    }

    /// Returns whether nothing is due: no tenant wanted the GPU at the last read, that read was
    /// recent enough, and no decision is due.
    fn is_quiet(&self, now_ns: u64) -> bool {
        let every_ns = if self.board.is_some() { GANG_LOOK_NS } else { IDLE_LOOK_NS };
        now_ns.saturating_sub(self.looked_ns) < every_ns
            && self.decide_ns.is_none_or(|at_ns| now_ns < at_ns)
            && !self.is_wanted
            && !self.is_unsettled
    }

    fn look_and_decide(&mut self) {
        for _ in 0..MAX_ROUNDS {
            let now_ns = monotonic_ns();
            self.beat.page().beat(self.gpu, now_ns);
            self.mind_silence(now_ns);
            self.look(now_ns);
            self.entitle_anew(now_ns);
            self.follow_board(now_ns);
            self.decide_ns = self.scheduler.decide(now_ns, &self.tuning);
            self.learn();
            let changes = self.scheduler.take_changes();
            let is_settled = changes.is_empty();
            for change in changes {
                self.apply(change);
            }
            let turn_ns = self.take_turns(now_ns);
            self.decide_ns = [self.decide_ns, turn_ns, self.entitle_again_ns()].into_iter().flatten().min();
            if is_settled && !self.has_news() {
                break;
            }
            // A tenant that finishes just now either sees the new gate and rings, or the next round
            // sees that it has finished.
        }
        let now_ns = self.looked_ns;
        if self.has_news() {
            // The arbiters of other GPUs wait for the news, so the next round comes at once.
            self.decide_ns = Some(now_ns);
        }
        let review_ns = if self.is_wanted { REVIEW_NS } else { IDLE_REVIEW_NS };
        if now_ns.saturating_sub(self.entitled_ns) >= review_ns {
            self.entitle(now_ns);
        }
        if now_ns.saturating_sub(self.ticked_ns) >= self.tick_ns {
            self.ticked_ns = now_ns;
            for tenant in self.tenants.values_mut() {
                tenant.account.mark(now_ns);
            }
        }
    }

    /// Reads every meter, charges the tenants and tells the scheduler.
    fn look(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.looked_ns);
        self.looked_ns = now_ns;
        let wanting = self.tenants.values().filter(|tenant| tenant.account.wants).count();
        let entitled = |tenant: &Tenant| u64::from(tenant.entitled_ppm);
        let rivals_ppm = (wanting > 1)
            .then(|| self.tenants.values().filter(|tenant| tenant.account.wants).map(entitled).sum::<u64>());
        if wanting > 1 {
            self.contended_ns = self.contended_ns.saturating_add(elapsed_ns);
        }
        let was_unwanted = wanting == 0 && self.has_sessions();
        let mut all_used_ns = 0u64;
        let (mut is_wanted, mut is_unsettled, mut is_awaited) = (false, false, false);
        for (id, tenant) in &mut self.tenants {
            let grant = self.scheduler.grant(*id);
            let may_launch = !matches!(grant, Grant::Closed | Grant::Paused);
            // The gate is closed and the drain is over or was given up: the scheduler no longer
            // waits for what is in flight.
            let is_given_up = !may_launch && self.scheduler.phase() != Phase::Draining(*id);
            let has_several = tenant.launching() > 1;
            if !has_several {
                tenant.said.forget();
            }
            tenant.seen.clear();
            tenant.readings.clear();
            for session in tenant.sessions.values_mut() {
                let page = session.seat.meter.page();
                let Some(slot) = page.slot(self.gpu) else { continue };
                // Read before the counters: once the flag is set, the counters that follow are
                // complete.
                let is_brought =
                    session.awaited.is_some_and(|awaited| page.is_carried() || now_ns >= awaited.until_ns);
                if session.rests(slot) {
                    session.stopped.rest(now_ns);
                    tenant.seen.push(turns::Seen { session: session.seat.id, wants: false, used_ns: 0 });
                    continue;
                }
                let process = session.seat.process;
                let is_stopped = || stopped::is_stopped(process);
                let reading =
                    session.stopped.look(&session.last, slot.read(), may_launch, now_ns, is_stopped);
                // Read after the meter: work that the meter shows as done has its end in the edges.
                if let Some(edges) = page.edges(self.gpu) {
                    let [began_ns, ended_ns] = [&edges.began, &edges.ended].map(|edge| edge.get(now_ns));
                    self.scheduler.observe_edges(*id, began_ns, ended_ns);
                }
                if tenant.seat.is_suspended {
                    session.overdue = Overdue::default();
                } else if session.overdue.look(&reading, is_given_up, tenant.account.longest_ns, now_ns) {
                    let pid = process.map(|process| process.pid);
                    tracing::warn!(
                        gpu = self.gpu,
                        pid,
                        "work that does not end: it cannot share the GPU in time"
                    );
                }
                let before = if is_brought {
                    if let Some(from) = session.awaited.take().and_then(|awaited| awaited.from) {
                        let used_ns = tenant.account.catch_up(&from, &reading, now_ns);
                        match &mut self.arrears {
                            Some(arrears) => arrears.claim(*id, used_ns),
                            None => tenant.account.settle(used_ns),
                        }
                    }
                    reading
                } else if session.awaited.is_some() {
                    // The session's present state (in flight, waiting) is used. Its counters are
                    // not, because they are not all there yet.
                    tenant.readings.push((reading, reading));
                    is_awaited = true;
                    continue;
                } else {
                    session.last
                };
                let counted_ns = reading.compute_ns.saturating_sub(before.compute_ns);
                let others_ns = match page.intervals(self.gpu).filter(|_| has_several) {
                    Some(intervals) => session.overlap.look(&mut tenant.said, intervals, counted_ns),
                    None => {
                        session.overlap.forget();
                        0
                    }
                };
                let charged = Reading { compute_ns: before.compute_ns.saturating_add(others_ns), ..before };
                tenant.readings.push((charged, reading));
                // The turns are judged by the time with what sessions count twice, because the
                // double counting shows that they are backlogged.
                let used_ns = counted_ns.min(elapsed_ns);
                tenant.seen.push(turns::Seen { session: session.seat.id, wants: reading.wants(), used_ns });
                session.last = reading;
                is_unsettled |= session.stopped.is_stopped();
            }
            tenant.turns.observe(now_ns, elapsed_ns, grant, &tenant.seen);
            tenant.account.pass(elapsed_ns, tenant.entitled_ppm, rivals_ppm);
            let was_idle = !tenant.sessions.is_empty() && !tenant.account.wants;
            let mut seen = if tenant.sessions.is_empty() {
                tenant.account.wants = false;
                Seen::default()
            } else {
                let is_left = tenant.sessions.values().any(|session| session.stopped.leaves_in_flight());
                tenant.account.look(now_ns, is_left, tenant.readings.drain(..))
            };
            if rivals_ppm.is_some() {
                tenant.account.had(seen.used_ns);
            }
            if let Some(arrears) = &mut self.arrears {
                arrears.charged(seen.used_ns);
            }
            if grant == Grant::Paused {
                seen.waiting = false;
                tenant.account.wants = seen.in_flight;
            }
            is_wanted |= tenant.account.wants;
            let paused_ns = elapsed_ns.saturating_sub(seen.used_ns);
            tenant.demand.observe(seen.used_ns, if was_idle { paused_ns } else { 0 });
            all_used_ns = all_used_ns.saturating_add(seen.used_ns);
            self.scheduler.observe(*id, now_ns, seen);
        }
        if is_wanted || all_used_ns > 0 {
            self.stirred.store(true, Ordering::Relaxed);
        }
        (self.is_wanted, self.is_unsettled) = (is_wanted, is_unsettled || is_awaited);
        if was_unwanted {
            // Work that began and ended between two reads shows only in the GPU time used.
            self.idle_ns = self.idle_ns.saturating_add(elapsed_ns.saturating_sub(all_used_ns));
        }
        if self.baselines.is_empty() && !is_awaited {
            self.settle_arrears(now_ns);
        }
    }

    /// Charges the GPU time that was used while no daemon ran, as far as processes have claimed it.
    fn settle_arrears(&mut self, now_ns: u64) {
        let settled = self.arrears.as_mut().map(|arrears| arrears.settle(now_ns));
        for (tenant, used_ns) in settled.unwrap_or_default() {
            if let Some(tenant) = self.tenants.get_mut(&tenant) {
                tenant.account.settle(used_ns);
            }
        }
    }

    /// Posts the state of this GPU to the gang board, and takes the order for this GPU.
    fn follow_board(&mut self, now_ns: u64) {
        if let Some(board) = &self.board {
            let post = self.scheduler.post(now_ns, &self.tuning);
            self.posted = post.holder;
            let (order, gangs) = board.exchange(self.gpu, now_ns, post);
            self.scheduler.set_order(order, gangs);
        }
    }

    /// Returns whether the board does not know the present holder yet. Arbiters of other GPUs may
    /// wait for that.
    fn has_news(&self) -> bool {
        self.board.is_some() && self.scheduler.holder() != self.posted
    }

    /// Adapts the time constants to the cost of the hand-offs since the last call.
    fn learn(&mut self) {
        for handoff in self.scheduler.take_handoffs() {
            self.handoffs += 1;
            if let Some(idle_ns) = handoff.idle_ns {
                self.latency.add(idle_ns);
                let usual_ns = self.latency.usual_ns().map(|usual_ns| usual_ns.saturating_add(UNSEEN_NS));
                let handoff_ns = usual_ns.unwrap_or(ASSUMED_HANDOFF_NS);
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

    /// Advances the turns of the sessions of tenants that have leases. Returns when to do so again,
    /// ns.
    fn take_turns(&mut self, now_ns: u64) -> Option<u64> {
        let mut wake_ns: Option<u64> = None;
        let several = self.tenants.iter().filter(|(_, tenant)| tenant.sessions.len() > 1);
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

    /// Sets the gates of a tenant's sessions that do not say what they should.
    fn show(&mut self, id: TenantId, grant: Grant) {
        let Some(tenant) = self.tenants.get(&id) else { return };
        let takes_turns = !self.scheduler.is_gang(id);
        let is_wrong =
            |session: &&Session| session.gate != tenant.grant_of(session.seat.id, grant, takes_turns);
        let wrong: Vec<SessionId> =
            tenant.sessions.values().filter(is_wrong).map(|session| session.seat.id).collect();
        if wrong.is_empty() {
            return;
        }
        let terms = self.terms(id, tenant, grant);
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        if grant == Grant::Open {
            tenant.run_ahead_ns = terms.window_ns;
        }
        for session in wrong {
            let grant = tenant.grant_of(session, grant, takes_turns);
            if let Some(session) = tenant.sessions.get_mut(&session) {
                session.set_gate(self.gpu, grant, terms);
            }
        }
    }

    /// Returns the terms that go with `grant` for each session of the tenant.
    fn terms(&self, id: TenantId, tenant: &Tenant, grant: Grant) -> LeaseTerms {
        let spin_ns = self.tuning.spin_ns;
        let expires_ns = match grant {
            Grant::Leased { expires_ns } => expires_ns,
            Grant::Once => {
                let terms = LeaseTerms::default();
                return LeaseTerms { expires_ns: u64::MAX, window_ns: ONE_LAUNCH, spin_ns, ..terms };
            }
            Grant::Open => {
                let (sessions, longest_ns) = (tenant.launching(), tenant.account.longest_ns);
                let window_ns =
                    self.scheduler.run_ahead_ns(id, sessions, longest_ns, self.looked_ns, &self.tuning);
                return LeaseTerms { window_ns, ..LeaseTerms::default() };
            }
            Grant::Closed | Grant::Paused => return LeaseTerms::default(),
        };
        let sessions =
            if tenant.turns.is_taken() && !self.scheduler.is_gang(id) { 1 } else { tenant.launching() };
        LeaseTerms {
            expires_ns,
            window_ns: self
                .scheduler
                .window_ns(id, sessions, tenant.account.longest_ns, &self.tuning)
                .max(ONE_LAUNCH + 1),
            spin_ns,
            ..LeaseTerms::default()
        }
    }

    /// Tells the sessions with open gates how far they may run ahead now.
    pub fn renew_open(&mut self) {
        /// A change of less than one part in this many is not worth telling.
        const PART: u64 = 8;
        for id in self.tenants.keys().copied().collect::<Vec<_>>() {
            let Some(tenant) = self.tenants.get(&id).filter(|_| self.scheduler.grant(id) == Grant::Open)
            else {
                continue;
            };
            let terms = self.terms(id, tenant, Grant::Open);
            let Some(tenant) = self.tenants.get_mut(&id) else { continue };
            if tenant.run_ahead_ns.abs_diff(terms.window_ns) > tenant.run_ahead_ns / PART {
                tenant.run_ahead_ns = terms.window_ns;
                for session in tenant.sessions.values_mut().filter(|session| session.gate == Grant::Open) {
                    session.set_gate(self.gpu, Grant::Open, terms);
                }
            }
        }
    }

    /// Carries out an order. Returns the channel to answer on once the gates are set.
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
                // The saved baselines say that the processes which are back were charged, so charge
                // them first.
                self.settle_arrears(self.looked_ns);
                let _ = answer.send(self.snapshot());
                None
            }
            Command::SetTenant { seat, done } => {
                self.scheduler.set_paused(seat.id, seat.is_paused);
                if let Some(tenant) = self.tenants.get_mut(&seat.id) {
                    tenant.seat = seat;
                    tenant.show_rules(self.gpu);
                } else {
                    // The tenant has no session on this GPU, so no page has to be changed.
                    seat.limit_in_force.store(seat.memory_limit_bytes, Ordering::SeqCst);
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
                // The report must count up to this moment. The caller may have stopped waiting for
                // it.
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
            // `run` handles this order before it calls this function.
            Command::Stop => None,
        }
    }

    fn enter(&mut self, seat: TenantSeat, session: SessionSeat) {
        let now_ns = monotonic_ns();
        // Reads the meters first. While there were no sessions, nobody missed the heartbeat: that
        // time must not count as silence.
        self.look(now_ns);
        if !self.has_sessions() {
            self.turned_ns = now_ns;
        }
        if let Err(error) = self.events.add(&session.bell) {
            tracing::error!(gpu = self.gpu, session = session.id, %error, "cannot hear this session's bell");
        }
        let from = self.baseline(seat.id, &session);
        let until_ns = now_ns.saturating_add(CARRY_LIMIT_NS);
        let awaited = session.continues.then_some(Awaited { from, until_ns });
        // The previous daemon died before it saved anything of this tenant.
        let unwritten = |from: Baseline| SavedAccount { since_ns: from.at_ns, ..SavedAccount::default() };
        let account =
            || from.map_or_else(|| Account::new(now_ns), |from| Account::restore(&unwritten(from), now_ns));
        let id = seat.id;
        self.scheduler.enter(id, seat.request.class, now_ns);
        if let Some(user) = session.user {
            self.scheduler.set_user(id, user, now_ns);
        }
        self.scheduler.set_paused(id, seat.is_paused);
        self.tenants.entry(id).or_insert_with(|| Tenant::new(seat.clone(), account())).seat = seat.clone();
        let Some(tenant) = self.tenants.get(&id) else { return };
        let grant = self.scheduler.grant(id);
        let terms = self.terms(id, tenant, grant);
        let gate = tenant.grant_of(session.id, grant, !self.scheduler.is_gang(id));
        let mut session = Session {
            seat: session,
            last: from.map_or_else(Reading::default, |from| from.meter.into()),
            awaited,
            stopped: Stopped::default(),
            overdue: Overdue::default(),
            overlap: Overlap::default(),
            // A new grant page says so.
            gate: Grant::Closed,
        };
        session.set_gate(self.gpu, gate, terms);
        if let Some(slot) = session.seat.grant.page().slot(self.gpu) {
            slot.set_entitled_ppm(tenant.entitled_ppm);
        }
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.sessions.insert(session.seat.id, session);
            tenant.show_rules(self.gpu);
        }
        self.owes_anew = true;
    }

    /// Returns the point from which to charge a session whose counters go on from earlier sessions.
    fn baseline(&mut self, tenant: TenantId, session: &SessionSeat) -> Option<Baseline> {
        let known = session.process.and_then(|process| self.baselines.remove(&(tenant, process)));
        if !session.continues {
            return None;
        }
        // The previous daemon died before it saved anything of this process. So everything that the
        // process counts was used after the daemon last saved.
        let unknown = || Some(Baseline { meter: SavedMeter::default(), at_ns: self.restored_ns? });
        known.or_else(unknown)
    }

    fn leave(&mut self, id: TenantId, session: SessionId, may_return: bool) {
        // Charge what the session used up to its end.
        self.look(monotonic_ns());
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let Some(mut session) = tenant.sessions.remove(&session) else { return };
        if tenant.sessions.is_empty() {
            tenant.account.wants = false;
            self.scheduler.leave(id, self.looked_ns);
        }
        if let Some(process) = session.seat.process.filter(|_| may_return)
            && let Some((meter, at_ns)) = session.charged_up_to()
        {
            let at_ns = at_ns.unwrap_or(self.looked_ns);
            self.baselines.insert((id, process), Baseline { meter, at_ns });
        }
        self.events.remove(&session.seat.bell);
        // A process that only closed its connection runs on without the daemon.
        session.set_gate(self.gpu, Grant::Open, LeaseTerms::default());
        self.owes_anew = true;
    }

    /// Ends the arbitration: opens every gate, or closes every gate if tenants are to fail closed
    /// without a daemon.
    fn let_go(mut self) {
        if let Some(board) = &self.board {
            board.leave(self.gpu, monotonic_ns());
        }
        let grant = match self.fail_mode {
            FailMode::Open => Grant::Open,
            FailMode::Closed => Grant::Closed,
        };
        for session in self.tenants.values_mut().flat_map(|tenant| tenant.sessions.values_mut()) {
            session.set_gate(self.gpu, grant, LeaseTerms::default());
        }
    }

    fn snapshot(&self) -> Snapshot {
        let of_tenant = |(id, session): (TenantId, &Session)| {
            let (meter, at_ns) = session.charged_up_to()?;
            Some((id, session.seat.process?, meter, at_ns))
        };
        let here = self
            .tenants
            .iter()
            .flat_map(|(id, tenant)| tenant.sessions.values().map(|session| (*id, session)));
        let here = here.filter_map(of_tenant);
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
}
