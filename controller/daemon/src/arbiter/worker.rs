//! The arbiter's thread.

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

/// Heartbeats in the time after which a missing one counts.
const BEATS_PER_LIMIT: u64 = 4;
/// The longest time between two heartbeats, and between two looks at meters while anyone wants the GPU.
const MAX_TICK_NS: u64 = Duration::from_millis(50).as_nanos() as u64;
/// The time between two looks while nobody does: how late it is noticed at the latest that someone runs whose gate is open. Whoever waits rings, and whoever
/// launches after a rest.
const IDLE_LOOK_NS: u64 = Duration::from_secs(1).as_nanos() as u64;
/// The same where tenants with several GPUs are to be recognised, by what runs on them at the same time.
const GANG_LOOK_NS: u64 = Duration::from_millis(250).as_nanos() as u64;
/// How long a process that had sessions before may take to bring its counters into its new page. It does so when it gets it.
const CARRY_LIMIT_NS: u64 = Duration::from_secs(1).as_nanos() as u64;
/// Decisions made at one wake-up, at most: each looks again at what the gates just set have changed.
const MAX_ROUNDS: usize = 4;

/// How long orders are carried out before the next decision, if there is no end of them.
const ORDERS_NS: u64 = Duration::from_millis(5).as_nanos() as u64;

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
    /// Where arbiters agree on tenants with several GPUs; none on a host with one.
    board: Option<Arc<GangBoard>>,
    /// Who had the GPU when it was last posted there.
    posted: Option<TenantId>,
    /// Who has the GPU.
    pub scheduler: Scheduler,
    /// The time constants in force.
    pub tuning: Tuning,
    /// Tenants, those that are away too.
    pub tenants: BTreeMap<TenantId, Tenant>,
    /// When the daemon before was last heard of, while those are waited for that it may have known.
    restored_ns: Option<u64>,
    /// Up to where processes were charged that may come back.
    baselines: BTreeMap<(TenantId, ProcessKey), Baseline>,
    /// What was used while no daemon lived, while those are waited for that come back.
    arrears: Option<Arrears>,
    /// Hand-offs.
    pub handoffs: u64,
    /// The cost of hand-offs.
    pub latency: Latency,
    /// Time in which two tenants or more wanted the GPU, ns.
    pub contended_ns: u64,
    /// Time in which none did, ns.
    pub idle_ns: u64,
    /// Whether anybody wanted the GPU when last looked at …
    is_wanted: bool,
    /// … and whether more was to come of anybody than their meters show.
    is_unsettled: bool,
    /// When meters were last read.
    pub looked_ns: u64,
    ticked_ns: u64,
    /// When the thread last had its turn.
    turned_ns: u64,
    /// When the scheduler wants to decide next.
    decide_ns: Option<u64>,
    /// Set whenever anybody wanted the GPU.
    stirred: Arc<AtomicBool>,
    /// Someone came, left or was given something else: what is owed is to be worked out anew before the next decision.
    pub owes_anew: bool,
}

impl Worker {
    /// A worker that will obey `orders`, announced by `bell`, and sets `stirred` whenever anybody wants the GPU.
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
            // Before orders are carried out: each of them looks at meters.
            is_called |= self.mind_silence(monotonic_ns());
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
        if is_called || !self.is_quiet(now_ns) {
            self.look_and_decide();
        } else {
            self.beat.page().beat(self.gpu, now_ns);
            self.ticked_ns = now_ns;
        }
        let tick_ns = self.has_sessions().then(|| self.ticked_ns.saturating_add(self.tick_ns));
        [self.decide_ns, tick_ns].into_iter().flatten().min()
    }

    /// Whether we were stopped, or the machine slept: then tenants ran as they liked meanwhile, and their accounts are level again.
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

    /// Nobody governed since meters were last read, and each counted the others' turns as its own: takes off all in equal parts what they count together
    /// beyond the time that passed, as for the time between two daemons.
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

    /// Whether nobody wanted the GPU when last looked at, not long ago, and no time has come that something waits for.
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
            // A tenant that finished just now either sees the gate that was set and rings, or is seen to have finished in the next
            // round.
        }
        let now_ns = self.looked_ns;
        if self.has_news() {
            // Others wait for it: the next round comes at once.
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
        }
        let was_unwanted = wanting == 0 && self.has_sessions();
        let mut all_used_ns = 0u64;
        let (mut is_wanted, mut is_unsettled, mut is_awaited) = (false, false, false);
        for (id, tenant) in &mut self.tenants {
            let grant = self.scheduler.grant(*id);
            let may_launch = !matches!(grant, Grant::Closed | Grant::Paused);
            // What is in flight behind its closed gate is waited for no more.
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
                // Before the counters are read.
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
                // After the meter: what that says to be done has its end there.
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
                    // Whether it runs or waits is believed; what it counts is not all there yet.
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
                // Who takes turns is judged by what is counted twice.
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
            // What came and went between two looks shows in what was used alone.
            self.idle_ns = self.idle_ns.saturating_add(elapsed_ns.saturating_sub(all_used_ns));
        }
        if self.baselines.is_empty() && !is_awaited {
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

    /// Says what was seen, and takes the order for this GPU.
    fn follow_board(&mut self, now_ns: u64) {
        if let Some(board) = &self.board {
            let post = self.scheduler.post(now_ns, &self.tuning);
            self.posted = post.holder;
            let (order, gangs) = board.exchange(self.gpu, now_ns, post);
            self.scheduler.set_order(order, gangs);
        }
    }

    /// Whether the board is to know of another holder than it does: others wait for that.
    fn has_news(&self) -> bool {
        self.board.is_some() && self.scheduler.holder() != self.posted
    }

    /// Learns from the hand-offs that were made.
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

    /// Lets the sessions of tenants with leases take turns. Returns when to do so again.
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

    /// Sets the gates of a tenant's sessions, those that are not as they should be.
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

    /// The terms of a tenant's lease.
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

    /// Tells those whose gates are open how far they may run ahead now.
    pub fn renew_open(&mut self) {
        /// A change by less than one part in so many is none.
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
                if let Some(tenant) = self.tenants.get_mut(&seat.id) {
                    tenant.seat = seat;
                    tenant.show_rules(self.gpu);
                } else {
                    // There is nobody to be told.
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
        if !self.has_sessions() {
            self.turned_ns = now_ns;
        }
        if let Err(error) = self.events.add(&session.bell) {
            tracing::error!(gpu = self.gpu, session = session.id, %error, "cannot hear this session's bell");
        }
        let from = self.baseline(seat.id, &session);
        let until_ns = now_ns.saturating_add(CARRY_LIMIT_NS);
        let awaited = session.continues.then_some(Awaited { from, until_ns });
        // The daemon before died before it could write of the tenant.
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
            // As a new page says.
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

    fn leave(&mut self, id: TenantId, session: SessionId, may_return: bool) {
        // What it did up to its end counts.
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
        // A process that only closed its connection goes on by itself.
        session.set_gate(self.gpu, Grant::Open, LeaseTerms::default());
        self.owes_anew = true;
    }

    /// From here on nobody arbitrates: opens every gate, or closes it to those who are to fail without a daemon.
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
