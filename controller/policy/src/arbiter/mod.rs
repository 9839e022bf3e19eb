//! The core of an arbiter: decides everything about one GPU, as a pure state machine.
//!
//! A turn takes in what the meters show and what was ordered, and returns what is to be done:
//! `(state, now, readings, orders) → actions` ([`Core::turn`]). The caller owns the clock, the
//! pages, the bells and the system. So the daemon's thread and the tests drive the same core.
//!
//! The caller has a loop of four steps:
//!
//! 1. It sleeps until a bell rings, an order comes, or [`Core::wake_ns`].
//! 2. If no bell rang and nothing is due ([`Core::is_due`]), it sends the heartbeat and calls
//!    [`Core::rest`].
//! 3. Otherwise it reads the meters ([`Core::sessions`]) and calls [`Core::turn`].
//! 4. It carries out the [`Actions`]. If they say so, it goes to step 3 at once.
//!
//! Memory is allocated only for orders: a turn without orders allocates nothing. The exchange with
//! other GPUs ([`Peers`]) is the exception.

pub mod account;
mod arrears;
mod entitle;
mod gates;
mod latency;
mod look;
mod orders;
mod overdue;
mod overlap;
mod saved;
mod stopped;
mod tenant;

pub use latency::Latency;
pub use saved::{Baseline, Counters, Restored, SavedAccount, SavedMeter, Snapshot};
pub use tenant::{Session, Tenant};

use crate::TenantId;
use crate::entitlement::{Entitlement, Request, Work};
use crate::gang;
use crate::lease::trust::UserId;
use crate::lease::{Change, Grant, Scheduler};
use crate::priority::{Priority, Weights};
use crate::tuning::{ASSUMED_HANDOFF_NS, QuantumBounds, Tuning, UNSEEN_NS};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use arrears::Arrears;
use core::ops::Range;
use core::time::Duration;
use deepres_abi::grant::LeaseTerms;
use deepres_abi::meter::Reading;

/// Number of heartbeats within the heartbeat limit. One late heartbeat therefore does not make
/// tenants take the daemon for dead.
const BEATS_PER_LIMIT: u64 = 4;
/// The longest time between two heartbeats. While a tenant wants the GPU, also the longest time
/// between two reads of the meters.
const MAX_TICK_NS: u64 = Duration::from_millis(50).as_nanos() as u64;
/// The time between two reads of the meters while no tenant wants the GPU. A session that waits, or
/// launches after a rest, rings the bell. So this time only bounds how late the arbiter notices a
/// session that launches through an open gate.
const IDLE_LOOK_NS: u64 = Duration::from_secs(1).as_nanos() as u64;
/// The same time on a host with several GPUs that have gangs: gangs are recognised by what runs on
/// several GPUs at once.
const GANG_LOOK_NS: u64 = Duration::from_millis(250).as_nanos() as u64;
/// The most turns at one wake-up. Each turn reads again what the gates set in the turn before have
/// changed.
const MAX_ROUNDS: usize = 4;
/// The gates that a turn may set for one session without an allocation.
const GATES_PER_SESSION: usize = 4;

/// The number of a session; never reused.
pub type SessionId = u64;

/// The identity of a process: its id and its start time. No other process has both.
pub type ProcessId = (u32, u64);

/// The parameters of an arbiter.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// How old the last heartbeat may be before tenants take the daemon for dead, ns.
    pub heartbeat_limit_ns: u64,
    /// The bounds of the quantum.
    pub quantum: QuantumBounds,
    /// The weights of the terms of a priority value.
    pub weights: Weights,
    /// The most GPU time that guests may cost owners, parts per million of the time.
    pub max_harm_ppm: u32,
    /// Number of the host's processors. It decides whether waiters spin.
    pub processors: usize,
    /// Whether the arbiter exchanges with others for gangs.
    pub has_peers: bool,
}

/// A tenant, as the caller describes it.
#[derive(Debug, Clone, Copy)]
pub struct TenantSeat {
    /// The tenant's number.
    pub id: TenantId,
    /// The share, class and caps that the tenant asks for. The core computes the priority value in
    /// it.
    pub request: Request,
    /// The declarations about the tenant's job: deadline, size and criticality.
    pub priority: Priority,
    /// The latency that the tenant wants for a request (SLO), ns.
    pub slo_ns: Option<u64>,
    /// Whether the tenant is kept off the GPU: an administrator paused it, or it is suspended.
    pub is_paused: bool,
    /// Whether the tenant is suspended, or on its way off the GPU. Work that its meters show in
    /// flight then waits in the driver.
    pub is_suspended: bool,
}

/// A session, as the caller describes it.
#[derive(Debug, Clone, Copy)]
pub struct SessionSeat {
    /// The session's number.
    pub id: SessionId,
    /// The session's process, if it is known.
    pub process: Option<ProcessId>,
    /// A number for the user or container whose tenants share their debts; `None` for those without
    /// limits.
    pub user: Option<UserId>,
    /// Whether the meter goes on from earlier sessions of the same process.
    pub continues: bool,
}

/// An order to an arbiter.
#[derive(Debug)]
pub enum Order {
    /// A session comes. Its gate and its entitlement are among the actions.
    Enter {
        /// The session's tenant, which may be new.
        tenant: TenantSeat,
        /// The session.
        session: SessionSeat,
    },
    /// A session leaves, and its gate stays open. If it was the tenant's last session, the tenant's
    /// lease ends.
    Leave {
        /// The session's tenant.
        tenant: TenantId,
        /// The session.
        session: SessionId,
        /// Whether the process may come back. The point up to which it was charged is then kept.
        may_return: bool,
    },
    /// A tenant's wishes change, or it is paused or resumed.
    SetTenant(TenantSeat),
    /// A tenant and its account are forgotten.
    Forget(TenantId),
    /// A process died, and so does not come back.
    Bury(TenantId, ProcessId),
    /// Takes over the state that the previous daemon saved. This order comes before any session
    /// enters.
    Restore(Box<Restored>),
    /// The wait for processes of the previous daemon's time ends. A process that comes later
    /// without a saved baseline is not charged for earlier use.
    StopWaiting,
}

/// What the caller must know of a session to read its meter.
#[derive(Debug, Clone, Copy)]
pub struct Watched<'a> {
    /// The session.
    pub session: SessionId,
    /// The last reading, if the session then had nothing under way. While the meter shows no change
    /// since, the caller leaves the session out of the readings.
    pub at_rest: Option<&'a Reading>,
    /// Whether the intervals in which the session was on the GPU are of use.
    pub tells_intervals: bool,
}

/// What a session's meter shows.
#[derive(Debug, Clone, Default)]
pub struct SessionReading {
    /// The session.
    pub session: SessionId,
    /// Whether the session has carried the counters of earlier sessions into its meter. The caller
    /// reads this before the counters: once it is so, the counters are complete.
    pub is_carried: bool,
    /// The counters.
    pub meter: Reading,
    /// When the first work began that had waited for the present lease, ns. The caller reads this
    /// and `ended_ns` after the counters: work that the meter shows as done has its end here.
    pub began_ns: Option<u64>,
    /// When the last work ended that is done, ns.
    pub ended_ns: Option<u64>,
    /// The places in [`Readings::intervals`] of the intervals in which the session was on the GPU
    /// since the last reading.
    pub intervals: Range<usize>,
    /// The system's answer to the last question ([`Actions::asks`]): whether the process is
    /// stopped.
    pub is_stopped: Option<bool>,
}

/// What is known of a tenant beside its sessions' meters.
#[derive(Debug, Clone, Copy)]
pub struct TenantReading {
    /// The tenant.
    pub tenant: TenantId,
    /// GPU time that the tenant's job has used on all GPUs, ns.
    pub job_used_ns: u64,
    /// The part of the GPU's memory that the tenant holds, parts per million.
    pub memory_ppm: u32,
}

/// What the caller has read for a turn.
#[derive(Debug, Default)]
pub struct Readings {
    /// The meters of sessions, in the order of [`Core::sessions`], without those at rest.
    pub sessions: Vec<SessionReading>,
    /// The beginning and the end of intervals in which sessions were on the GPU, ns.
    pub intervals: Vec<(u64, u64)>,
    /// What tenants used and hold, if the turn needs it ([`Core::reviews`]).
    pub tenants: Vec<TenantReading>,
}

impl Readings {
    /// Removes all readings, and keeps the memory.
    pub fn clear(&mut self) {
        self.sessions.clear();
        self.intervals.clear();
        self.tenants.clear();
    }
}

/// A gate to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gate {
    /// The session whose gate it is.
    pub session: SessionId,
    /// What the gate is to say.
    pub grant: Grant,
    /// The terms of a lease, or how far the session may run ahead.
    pub terms: LeaseTerms,
    /// Whether the gate says so already, and only the terms are new.
    pub renews: bool,
}

/// Something that an operator is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Nobody arbitrated for longer than the heartbeat limit. Accounts are level again.
    Silence {
        /// For how long, ns.
        silent_ns: u64,
    },
    /// Work of a session does not end, so it cannot share the GPU in time.
    Endless {
        /// The session.
        session: SessionId,
    },
}

/// What the caller is to do after a turn, in the order of the fields.
#[derive(Debug, Default)]
pub struct Actions {
    /// The gates to set, oldest first.
    pub gates: Vec<Gate>,
    /// The sessions whose tenant's entitlement changed, and the entitlement, parts per million.
    pub entitled: Vec<(SessionId, u32)>,
    /// GPU time that tenants' jobs used here, to be added to their use on all GPUs, ns.
    pub used: Vec<(TenantId, u64)>,
    /// The sessions of whose processes the caller asks the system whether they are stopped. The
    /// answers are part of the next readings.
    pub asks: Vec<SessionId>,
    /// What an operator is told.
    pub events: Vec<Event>,
    /// Whether a tenant wants the GPU, or has used it since the last turn.
    pub is_stirred: bool,
    /// Whether the core lacks memory: the caller calls [`Core::make_room`].
    pub lacks_room: bool,
    /// Whether the caller reads the meters again and takes the next turn at once.
    pub again: bool,
}

impl Actions {
    /// Removes all actions, and keeps the memory.
    fn clear(&mut self) {
        self.gates.clear();
        self.entitled.clear();
        self.used.clear();
        self.asks.clear();
        self.events.clear();
        (self.is_stirred, self.lacks_room, self.again) = (false, false, false);
    }

    fn reserve(&mut self, tenants: usize, sessions: usize) {
        let gates = (sessions + 1) * GATES_PER_SESSION;
        self.gates.reserve(gates.saturating_sub(self.gates.len()));
        self.entitled.reserve(sessions.saturating_sub(self.entitled.len()));
        self.used.reserve(tenants.saturating_sub(self.used.len()));
        self.asks.reserve(sessions.saturating_sub(self.asks.len()));
        self.events.reserve((sessions + 1).saturating_sub(self.events.len()));
    }
}

/// The arbiters of the host's other GPUs.
pub trait Peers {
    /// Posts the state of this GPU. Returns the order for this GPU, and the tenants that have the
    /// GPU only through such orders.
    fn exchange(&mut self, now_ns: u64, post: gang::Post) -> (gang::Order, gang::Gangs);
}

/// Working memory for entitlements.
#[derive(Debug, Default)]
struct Review {
    requests: Vec<(TenantId, Request)>,
    owed: Vec<Entitlement>,
    work: Work,
}

/// The state of an arbiter.
#[derive(Debug)]
pub struct Core {
    setup: Setup,
    tick_ns: u64,
    /// The lease policy: decides which tenant has the GPU.
    scheduler: Scheduler,
    tuning: Tuning,
    /// The tenants, with and without sessions at present.
    tenants: BTreeMap<TenantId, Tenant>,
    /// The holder that was last posted to the peers.
    posted: Option<TenantId>,
    /// When the previous daemon last saved its state, ns; `Some` while processes of its time may
    /// still reconnect.
    restored_ns: Option<u64>,
    /// For each process that may come back: the point up to which it was charged.
    baselines: BTreeMap<(TenantId, ProcessId), Baseline>,
    /// GPU time used while no daemon ran, not charged yet; `Some` while processes may still
    /// reconnect.
    arrears: Option<Arrears>,
    handoffs: u64,
    latency: Latency,
    /// Time in which two or more tenants wanted the GPU, ns.
    contended_ns: u64,
    /// Time in which no tenant wanted the GPU, ns.
    idle_ns: u64,
    /// Whether a tenant wanted the GPU when the meters were last read.
    is_wanted: bool,
    /// Whether some meter did not show everything when last read: its session was stopped, or had
    /// not carried its counters over yet.
    is_unsettled: bool,
    /// When the meters were last read, ns.
    looked_ns: u64,
    ticked_ns: u64,
    /// When the caller last called, ns.
    turned_ns: u64,
    /// When the scheduler wants to decide next, ns.
    decide_ns: Option<u64>,
    /// The turns at this wake-up.
    rounds: usize,
    /// When the entitlements were last computed, ns.
    entitled_ns: u64,
    /// Whether the entitlements must be computed anew before the next decision, because a tenant
    /// came, left or was changed.
    owes_anew: bool,
    review: Review,
    /// Working memory: the readings of one tenant's sessions, before and now.
    pairs: Vec<(Reading, Reading)>,
    /// Working memory: what sessions claim of a time in which nobody arbitrated.
    silence: Arrears,
    /// Working memory: what the scheduler changed.
    changes: Vec<Change>,
}

impl Core {
    /// Returns the core of a GPU without tenants.
    pub fn new(setup: Setup, now_ns: u64) -> Self {
        let mut scheduler = Scheduler::default();
        scheduler.set_max_harm(setup.max_harm_ppm);
        Self {
            setup,
            tick_ns: (setup.heartbeat_limit_ns / BEATS_PER_LIMIT).min(MAX_TICK_NS),
            scheduler,
            tuning: Tuning::derive(ASSUMED_HANDOFF_NS, setup.quantum, setup.processors),
            tenants: BTreeMap::new(),
            posted: None,
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
            rounds: 0,
            entitled_ns: now_ns,
            owes_anew: false,
            review: Review::default(),
            pairs: Vec::new(),
            silence: Arrears::default(),
            changes: Vec::new(),
        }
    }

    /// Returns the sessions, in the order in which the readings have to be.
    pub fn sessions(&self) -> impl Iterator<Item = Watched<'_>> {
        self.tenants.values().flat_map(|tenant| {
            let tells_intervals = tenant.launching() > 1;
            tenant.sessions.iter().map(move |(id, session)| Watched {
                session: *id,
                at_rest: session.is_at_rest().then_some(&session.last),
                tells_intervals,
            })
        })
    }

    /// Returns whether a turn is due at `now_ns` though no bell rang and there are no orders.
    pub fn is_due(&self, now_ns: u64) -> bool {
        self.look_ns().is_some_and(|at_ns| now_ns >= at_ns) || self.silent_ns(now_ns).is_some()
    }

    /// Returns when the caller calls again at the latest, ns: for a turn, or for the heartbeat.
    pub fn wake_ns(&self) -> Option<u64> {
        let tick_ns = self.has_sessions().then(|| self.ticked_ns.saturating_add(self.tick_ns));
        [self.look_ns(), tick_ns].into_iter().flatten().min()
    }

    /// Returns when the next turn is due, ns.
    fn look_ns(&self) -> Option<u64> {
        let regular_ns = if self.is_wanted || self.is_unsettled {
            self.ticked_ns.saturating_add(self.tick_ns)
        } else {
            let every_ns = if self.setup.has_peers { GANG_LOOK_NS } else { IDLE_LOOK_NS };
            self.looked_ns.saturating_add(every_ns)
        };
        [self.decide_ns, self.has_sessions().then_some(regular_ns)].into_iter().flatten().min()
    }

    /// Takes note that the caller ran at `now_ns` and that nothing was due.
    pub fn rest(&mut self, now_ns: u64) {
        self.turned_ns = now_ns;
        self.ticked_ns = now_ns;
    }

    /// Takes in the readings at `now_ns`, then the orders, and decides. Replaces the actions.
    pub fn turn(
        &mut self,
        now_ns: u64,
        readings: &Readings,
        orders: impl IntoIterator<Item = Order>,
        peers: Option<&mut dyn Peers>,
        actions: &mut Actions,
    ) {
        actions.clear();
        let silent_ns = self.silent_ns(now_ns);
        self.turned_ns = now_ns;
        if let Some(silent_ns) = silent_ns {
            actions.events.push(Event::Silence { silent_ns });
            self.level(now_ns, readings);
        }
        self.look(now_ns, readings, actions);
        if let Some(silent_ns) = silent_ns {
            self.scheduler.forgive(now_ns, silent_ns);
        }
        let mut has_orders = false;
        for order in orders {
            has_orders = true;
            self.obey(order, now_ns, actions);
        }
        if has_orders {
            self.reserve(actions);
        }
        // After the orders, because a tenant may have come with one.
        for reading in &readings.tenants {
            if let Some(tenant) = self.tenants.get_mut(&reading.tenant) {
                (tenant.job_used_ns, tenant.memory_ppm) = (reading.job_used_ns, reading.memory_ppm);
            }
        }
        self.entitle_anew(now_ns, actions);
        if let Some(peers) = peers {
            let post = self.scheduler.post(now_ns, &self.tuning);
            self.posted = post.holder;
            let (order, gangs) = peers.exchange(now_ns, post);
            self.scheduler.set_order(order, gangs);
        }
        let decide_ns = self.scheduler.decide(now_ns, &self.tuning);
        self.learn();
        let mut changes = core::mem::take(&mut self.changes);
        changes.extend(self.scheduler.take_changes());
        let is_settled = changes.is_empty();
        changes.drain(..).for_each(|change| self.apply(change, actions));
        self.changes = changes;
        let turn_ns = self.take_turns(now_ns, actions);
        self.review(now_ns, actions);
        self.decide_ns = [decide_ns, turn_ns, self.entitle_again_ns()].into_iter().flatten().min();
        if now_ns.saturating_sub(self.ticked_ns) >= self.tick_ns {
            self.ticked_ns = now_ns;
            self.tenants.values_mut().for_each(|tenant| tenant.account.mark(now_ns));
        }
        // A tenant that finishes just now either sees the new gate and rings, or the next turn sees
        // that it has finished. The arbiters of other GPUs wait for news, and this one waits for
        // answers.
        let is_awaited = has_orders || self.has_news() || !actions.asks.is_empty();
        self.rounds = if has_orders { 0 } else { self.rounds + 1 };
        actions.again = (is_awaited || !is_settled) && self.rounds < MAX_ROUNDS;
        if !actions.again {
            self.rounds = 0;
            if is_awaited {
                self.decide_ns = Some(now_ns);
            }
        }
    }

    /// Allocates what the last turn lacked: memory for the moments of tenants of which several
    /// sessions launch.
    pub fn make_room(&mut self) {
        for tenant in self.tenants.values_mut().filter(|tenant| tenant.launching() > 1) {
            tenant.said.make_room();
            tenant.sessions.values_mut().for_each(|session| session.overlap.make_room());
        }
    }

    /// Makes room for what turns need until the next orders.
    fn reserve(&mut self, actions: &mut Actions) {
        let sessions: usize = self.tenants.values().map(|tenant| tenant.sessions.len()).sum();
        let most = self.tenants.values().map(|tenant| tenant.sessions.len()).max().unwrap_or(0);
        actions.reserve(self.tenants.len(), sessions);
        self.pairs.reserve(most);
        self.silence.reserve(sessions);
        if let Some(arrears) = &mut self.arrears {
            arrears.reserve(sessions);
        }
        self.review.requests.reserve(self.tenants.len());
        self.review.owed.reserve(self.tenants.len());
        self.review.work.reserve(self.tenants.len());
        self.changes.reserve(self.scheduler.most_changes());
        for tenant in self.tenants.values_mut() {
            tenant.seen.reserve(tenant.sessions.len());
            tenant.turns.reserve(tenant.sessions.len());
            tenant.account.reserve_marks(self.tick_ns);
        }
    }

    fn has_sessions(&self) -> bool {
        self.tenants.values().any(Tenant::is_present)
    }

    /// Returns for how long the caller did not run, ns, if that is longer than the heartbeat limit:
    /// it was stopped, or the machine slept. Tenants ran unarbitrated meanwhile.
    fn silent_ns(&self, now_ns: u64) -> Option<u64> {
        let silent_ns = now_ns.saturating_sub(self.turned_ns);
        (silent_ns > self.setup.heartbeat_limit_ns && self.has_sessions()).then_some(silent_ns)
    }

    /// Returns whether the peers do not know the present holder yet. They may wait for that.
    fn has_news(&self) -> bool {
        self.setup.has_peers && self.scheduler.holder() != self.posted
    }

    /// Adapts the time constants to the cost of the hand-offs since the last call.
    fn learn(&mut self) {
        for handoff in self.scheduler.take_handoffs() {
            self.handoffs += 1;
            if let Some(idle_ns) = handoff.idle_ns {
                self.latency.add(idle_ns);
                let usual_ns = self.latency.usual_ns().map(|usual_ns| usual_ns.saturating_add(UNSEEN_NS));
                let handoff_ns = usual_ns.unwrap_or(ASSUMED_HANDOFF_NS);
                self.tuning = Tuning::derive(handoff_ns, self.setup.quantum, self.setup.processors);
            }
        }
    }

    /// Returns the lease policy.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Returns the time constants in force.
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Returns the tenants, by their numbers.
    pub fn tenants(&self) -> impl Iterator<Item = (TenantId, &Tenant)> {
        self.tenants.iter().map(|(id, tenant)| (*id, tenant))
    }

    /// Returns a tenant.
    pub fn tenant(&self, id: TenantId) -> Option<&Tenant> {
        self.tenants.get(&id)
    }

    /// Returns the cost of the latest hand-offs.
    pub fn latency(&self) -> &Latency {
        &self.latency
    }

    /// Returns the GPU's counters.
    pub fn counters(&self) -> Counters {
        Counters {
            contended_ns: self.contended_ns,
            idle_ns: self.idle_ns,
            handoffs: self.handoffs,
            handoff_total_ns: self.latency.total_ns,
        }
    }

    /// Returns when the meters were last read, ns.
    pub fn looked_ns(&self) -> u64 {
        self.looked_ns
    }

    /// Returns when the entitlements were last computed, ns.
    pub fn entitled_ns(&self) -> u64 {
        self.entitled_ns
    }
}

#[cfg(test)]
mod tests;
