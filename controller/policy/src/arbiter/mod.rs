//! The core of an arbiter: a pure state machine that makes all decisions about one GPU.
//!
//! In each turn ([`Core::turn`]) the core takes the readings of the meters and the orders, and
//! returns actions: `(state, now, readings, orders) → actions`. The caller reads the clock, the
//! pages and the bells, and asks the system. So the daemon's thread and the tests run the same
//! core.
//!
//! The caller has a loop of four steps:
//!
//! 1. The caller sleeps until a ring has its answer ([`Pace`]), an order comes, or
//!    [`Core::wake_ns`].
//! 2. If no ring has its answer and no turn is due ([`Core::is_due`]), the caller sends the
//!    heartbeat and calls [`Core::rest`].
//! 3. Otherwise the caller reads the meters ([`Core::sessions`]) and calls [`Core::turn`].
//! 4. The caller carries out the [`Actions`]. If [`Actions::again`] is set, the caller goes to
//!    step 3 at once.
//!
//! The core allocates memory only in turns with orders, in [`Core::make_room`], and in the exchange
//! with the arbiters of other GPUs ([`Peers`]).

pub mod account;
mod arrears;
mod entitle;
mod gates;
mod latency;
mod look;
mod orders;
mod overdue;
mod overlap;
pub mod pace;
mod requests;
mod saved;
mod stopped;
mod tenant;

pub use latency::Latency;
pub use pace::Pace;
pub use requests::{LENGTHS, Late, Requests, Served};
pub use saved::{Baseline, Counters, Restored, SavedAccount, SavedMeter, Snapshot};
pub use tenant::{Session, Tenant};

use crate::TenantId;
use crate::entitlement::{Entitlement, Request, Work};
use crate::gang;
use crate::lease::trust::UserId;
use crate::lease::{Change, Grant, Phase, Scheduler};
use crate::priority::{Priority, Weights};
use crate::tuning::{ASSUMED_HANDOFF_NS, QuantumBounds, Tuning, UNSEEN_NS};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use arrears::Arrears;
use core::ops::Range;
use core::time::Duration;
use deepres_abi::grant::{GateState, GrantSlot, LeaseTerms};
use deepres_abi::meter::Reading;

/// Number of heartbeats within the heartbeat limit. With several, tenants do not take the daemon
/// for dead after one late heartbeat.
const BEATS_PER_LIMIT: u64 = 4;
/// The longest time between two heartbeats. While a tenant wants the GPU, this is also the longest
/// time between two reads of the meters.
const MAX_TICK_NS: u64 = Duration::from_millis(50).as_nanos() as u64;
/// The time between two reads of the meters while no tenant wants the GPU. A session that waits, or
/// launches after a rest, rings the bell. So this time only bounds how late the arbiter notices a
/// session that launches through an open gate.
const IDLE_LOOK_NS: u64 = Duration::from_secs(1).as_nanos() as u64;
/// The time between two reads of the meters while no tenant wants the GPU, on a host with gangs.
/// The time is shorter, because the arbiters recognise a gang by sessions that use several GPUs at
/// once.
const GANG_LOOK_NS: u64 = Duration::from_millis(250).as_nanos() as u64;
/// The most turns at one wake-up. Each further turn reads the meters again, because the gates that
/// the previous turn set may have changed the meters.
const MAX_ROUNDS: usize = 4;
/// The number of gates that a turn may set for each session without an allocation.
const GATES_PER_SESSION: usize = 4;

/// The number of a session; never reused.
pub type SessionId = u64;

/// The identity of a process: its id and its start time. No other process has both.
pub type ProcessId = (u32, u64);

/// The parameters with which the caller makes the core of an arbiter.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// The age of the last heartbeat from which on tenants take the daemon for dead, ns.
    pub heartbeat_limit_ns: u64,
    /// The bounds of the quantum.
    pub quantum: QuantumBounds,
    /// The weights of the terms of a priority value.
    pub weights: Weights,
    /// The most GPU time that guests may cost owners, parts per million of the time.
    pub max_harm_ppm: u32,
    /// Number of the host's processors. Waiting threads spin only if the host has enough
    /// processors.
    pub processors: usize,
    /// Whether the arbiter exchanges states with the arbiters of other GPUs, so that gangs get
    /// their leases together.
    pub has_peers: bool,
}

/// The caller's description of a tenant: its wishes, and whether it may run.
#[derive(Debug, Clone, Copy)]
pub struct TenantSeat {
    /// The tenant's number.
    pub id: TenantId,
    /// The share, class and caps that the tenant asks for. The core fills in the priority value,
    /// and whether the tenant is idle.
    pub request: Request,
    /// The declarations about the tenant's job: deadline, size and criticality.
    pub priority: Priority,
    /// The latency that the tenant wants for a request (SLO), ns.
    pub slo_ns: Option<u64>,
    /// The part of the SMs that the daemon granted, parts per million; `None` without one.
    pub sm_ppm: Option<u32>,
    /// Whether the daemon uses MPS. Otherwise the tenant counts with all SMs, whatever its
    /// processes report.
    pub uses_mps: bool,
    /// Whether the tenant takes turns with all others, because its memory follows its turns.
    pub takes_turns: bool,
    /// Whether the daemon keeps the tenant off the GPU: an administrator paused the tenant, or the
    /// tenant is suspended.
    pub is_paused: bool,
    /// Whether the tenant is suspended, or the daemon is moving it off the GPU. The driver then
    /// holds back the work that the tenant's meters show in flight.
    pub is_suspended: bool,
}

/// The caller's description of a session.
#[derive(Debug, Clone, Copy)]
pub struct SessionSeat {
    /// The session's number.
    pub id: SessionId,
    /// The session's process, if it is known.
    pub process: Option<ProcessId>,
    /// The number of the user or container whose tenants share their debts; `None` for tenants that
    /// share no debts.
    pub user: Option<UserId>,
    /// Whether the session's meter continues the counts of earlier sessions of the same process.
    pub continues: bool,
}

/// An order to an arbiter.
#[derive(Debug)]
pub enum Order {
    /// A session connects. The actions of the turn contain the session's gate and entitlement.
    Enter {
        /// The session's tenant, which can be new.
        tenant: TenantSeat,
        /// The session.
        session: SessionSeat,
    },
    /// A session disconnects, and the core opens the session's gate. If the session was the
    /// tenant's last, the tenant's lease ends.
    Leave {
        /// The session's tenant.
        tenant: TenantId,
        /// The number of the session.
        session: SessionId,
        /// Whether the process can connect again. The core then remembers the point up to which it
        /// charged the process.
        may_return: bool,
    },
    /// The tenant's wishes change, or the daemon pauses or resumes the tenant.
    SetTenant(TenantSeat),
    /// The core forgets a tenant and its account.
    Forget(TenantId),
    /// A process died. The core forgets the point up to which it charged the process.
    Bury(TenantId, ProcessId),
    /// The core takes over the state that the previous daemon saved. The caller gives this order
    /// before the first session enters.
    Restore(Box<Restored>),
    /// The daemon stops waiting for processes of the previous daemon. If such a process comes later
    /// without a saved baseline, the core does not charge its earlier use.
    StopWaiting,
}

/// The core's instructions for reading the meter of one session.
#[derive(Debug, Clone, Copy)]
pub struct Watched<'a> {
    /// The number of the session.
    pub session: SessionId,
    /// The last reading, if the session was at rest: no thread waited, and no work was in flight.
    /// While the meter still shows this reading, the caller leaves the session out of the readings.
    pub at_rest: Option<&'a Reading>,
    /// The last reading, if the process is stopped. While the meter's counters are still the same,
    /// the caller may leave the session out of the readings, except to answer a question about the
    /// process. So hundreds of stopped processes of a tenant make no turn longer.
    pub stopped: Option<&'a Reading>,
    /// Whether the core needs the intervals in which the session's kernels and graphs ran on the
    /// GPU. The field is true if several sessions of the tenant launch.
    pub tells_intervals: bool,
}

/// One reading of a session's meter.
#[derive(Debug, Clone, Default)]
pub struct SessionReading {
    /// The number of the session.
    pub session: SessionId,
    /// Whether the session has carried the counters of earlier sessions into its meter. The caller
    /// reads this flag before the counters, because the counters are complete once the flag is set.
    pub is_carried: bool,
    /// The counters of the session's meter.
    pub meter: Reading,
    /// The part of the meter's GPU time by which launches took longer than the session knows them
    /// to take, ns. The caller reads it after the counters.
    pub stretched_ns: u64,
    /// The number of times that all work in flight of the session has ended. The caller reads it
    /// after the counters.
    pub ends: u64,
    /// The part of the SMs that the session's launches use at most, under MPS, parts per million; 0
    /// for all SMs. The process can report a false part. The core takes at least the granted part.
    pub sm_ppm: u32,
    /// The MPS server with which the session counts; 0 if the session counts with all SMs. The
    /// caller leaves out the servers of processes that are no clients of MPS. A client of MPS can
    /// name the server of others.
    pub mps_server: u64,
    /// The time at which the first launch that had waited for the present lease began on the GPU,
    /// ns. The caller reads `began_ns` and `ended_ns` after the counters. So if a counter shows
    /// that work has ended, `ended_ns` covers that work.
    pub began_ns: Option<u64>,
    /// The time at which the session's last finished work ended, ns.
    pub ended_ns: Option<u64>,
    /// The intervals since the last reading in which the session's kernels and graphs ran on the
    /// GPU, as a range of places in [`Readings::intervals`].
    pub intervals: Range<usize>,
    /// The system's answer to the last question ([`Actions::asks`]): whether the process is
    /// stopped. `None` if there is no answer.
    pub is_stopped: Option<bool>,
}

/// Figures of a tenant that the caller takes from other sources than the meters of this GPU.
#[derive(Debug, Clone, Copy)]
pub struct TenantReading {
    /// The number of the tenant.
    pub tenant: TenantId,
    /// GPU time that the tenant's job has used on all GPUs, ns.
    pub job_used_ns: u64,
    /// The part of the GPU's memory that the tenant holds, parts per million.
    pub memory_ppm: u32,
}

/// The input of a turn: everything that the caller has read.
#[derive(Debug, Default)]
pub struct Readings {
    /// The readings of the sessions' meters, in the order of [`Core::sessions`], without sessions
    /// at rest.
    pub sessions: Vec<SessionReading>,
    /// The beginning and the end of each interval in which a session's kernels and graphs ran on
    /// the GPU, ns.
    pub intervals: Vec<(u64, u64)>,
    /// The job's GPU time and the memory of each tenant, if the turn computes entitlements
    /// ([`Core::reviews`]).
    pub tenants: Vec<TenantReading>,
}

impl Readings {
    /// Removes all readings, and keeps the allocated memory.
    pub fn clear(&mut self) {
        self.sessions.clear();
        self.intervals.clear();
        self.tenants.clear();
    }
}

/// A gate that the caller is to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gate {
    /// The session that has the gate.
    pub session: SessionId,
    /// The grant that the gate is to show.
    pub grant: Grant,
    /// The terms of a lease. For an open gate: the GPU time that the session may have in flight.
    pub terms: LeaseTerms,
    /// Whether the gate already shows a grant of the same kind, and only the terms are new.
    pub renews: bool,
}

impl Gate {
    /// Shows the gate on the session's grant page. The caller then wakes the threads that wait at
    /// the gate.
    pub fn show(&self, slot: &GrantSlot) {
        let state = match self.grant {
            _ if self.renews => return slot.renew(self.terms),
            Grant::Leased { .. } | Grant::Once => GateState::Leased,
            Grant::Open => GateState::Open,
            Grant::Closed => GateState::Closed,
            Grant::Paused => GateState::Paused,
        };
        slot.set_gate(state, self.terms);
    }
}

/// An event that the caller reports to the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The arbiter did not run for longer than the heartbeat limit. The core has forgiven all debts
    /// between tenants.
    Silence {
        /// The time for which the arbiter did not run, ns.
        silent_ns: u64,
    },
    /// A session's work does not end, so other tenants cannot get the GPU for themselves.
    Endless {
        /// The number of the session.
        session: SessionId,
    },
}

/// The output of a turn: the tasks of the caller, in the order of the fields.
#[derive(Debug, Default)]
pub struct Actions {
    /// The sessions for which it changed whether the hardware may take turns between their tenant's
    /// work and other tenants' work.
    pub beside: Vec<(SessionId, bool)>,
    /// The gates to set, oldest first.
    pub gates: Vec<Gate>,
    /// The sessions whose tenant's entitlement changed, and the entitlement, parts per million.
    pub entitled: Vec<(SessionId, u32)>,
    /// GPU time that each tenant used on this GPU since the last report, ns. The caller adds the
    /// time to the tenant's use on all GPUs.
    pub used: Vec<(TenantId, u64)>,
    /// The sessions about whose processes the caller asks the system: is the process stopped? Later
    /// readings contain the answers.
    pub asks: Vec<SessionId>,
    /// The events for the operator.
    pub events: Vec<Event>,
    /// Whether a tenant wants the GPU, or has used it since the last turn.
    pub is_stirred: bool,
    /// Whether the core lacks memory. The caller then calls [`Core::make_room`].
    pub lacks_room: bool,
    /// Whether the caller must read the meters again and take the next turn at once.
    pub again: bool,
}

impl Actions {
    /// Removes all actions, and keeps the allocated memory.
    fn clear(&mut self) {
        self.beside.clear();
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
        self.beside.reserve(sessions.saturating_sub(self.beside.len()));
        self.entitled.reserve(sessions.saturating_sub(self.entitled.len()));
        self.used.reserve(tenants.saturating_sub(self.used.len()));
        self.asks.reserve(sessions.saturating_sub(self.asks.len()));
        self.events.reserve((sessions + 1).saturating_sub(self.events.len()));
    }
}

/// The arbiters of the host's other GPUs, with which the core exchanges states and orders for
/// gangs.
pub trait Peers {
    /// Posts the state of this GPU to the arbiters of the other GPUs. Returns the order for this
    /// GPU, and the tenants that get leases on this GPU only by such orders.
    fn exchange(&mut self, now_ns: u64, post: gang::Post) -> (gang::Order, gang::Gangs);
}

/// Working memory for the computation of entitlements.
#[derive(Debug, Default)]
struct Review {
    requests: Vec<(TenantId, Request)>,
    owed: Vec<Entitlement>,
    /// The entitlements whose weights the scheduler gets.
    weights: Vec<Entitlement>,
    work: Work,
    /// The MPS servers of the tenants with parts of the SMs that use the GPU.
    servers: Vec<u64>,
}

/// The core of an arbiter: the state from which all decisions about one GPU follow.
#[derive(Debug)]
pub struct Core {
    setup: Setup,
    tick_ns: u64,
    /// The lease policy: decides which tenant has the GPU.
    scheduler: Scheduler,
    tuning: Tuning,
    /// The tenants, with and without sessions at present.
    tenants: BTreeMap<TenantId, Tenant>,
    /// The holder that the core named in its last post to the board of gangs.
    posted: Option<TenantId>,
    /// When the previous daemon last saved its state, ns; `Some` while processes that it served can
    /// still reconnect.
    restored_ns: Option<u64>,
    /// For each process that can come back: the point up to which it was charged.
    baselines: BTreeMap<(TenantId, ProcessId), Baseline>,
    /// GPU time that tenants used while no daemon ran, and that the core has not charged yet;
    /// `Some` while processes can still reconnect.
    arrears: Option<Arrears>,
    handoffs: u64,
    latency: Latency,
    turns: u64,
    turns_took: Latency,
    /// Time in which two or more tenants wanted the GPU, ns.
    contended_ns: u64,
    /// The sum of the `short_uses_ns` of all tenants, ended tenants included, ns.
    short_uses_ns: u64,
    /// Time in which no tenant wanted the GPU, ns.
    idle_ns: u64,
    /// Whether a tenant wanted the GPU when the meters were last read.
    is_wanted: bool,
    /// Whether a meter was incomplete at the last reading: its session was stopped, or had not
    /// carried the counters of its earlier sessions over yet.
    is_unsettled: bool,
    /// The time at which the caller last read the meters, ns.
    looked_ns: u64,
    /// The time of the last look with questions about processes, ns.
    asked_ns: u64,
    ticked_ns: u64,
    /// When the caller last called [`Self::turn`] or [`Self::rest`], ns.
    turned_ns: u64,
    /// The time of the scheduler's next decision if nothing happens before, ns.
    decide_ns: Option<u64>,
    /// Number of turns since the caller last woke up.
    rounds: usize,
    /// When the entitlements were last computed, ns.
    entitled_ns: u64,
    /// Whether the core must compute the entitlements anew before the next decision, because a
    /// tenant came, left or changed.
    owes_anew: bool,
    /// The MPS server whose clients count with their parts of the SMs; 0 before the first.
    mps_server: u64,
    review: Review,
    /// Working memory: the readings of one tenant's sessions, before and now.
    pairs: Vec<(Reading, Reading)>,
    /// Working memory: the GPU time that sessions claim for a time in which the arbiter did not
    /// run.
    silence: Arrears,
    /// Working memory: the changes of grants that the scheduler decided.
    changes: Vec<Change>,
    /// Whether a session knows that the hardware can take turns between tenants.
    has_beside: bool,
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
            turns: 0,
            turns_took: Latency::default(),
            latency: Latency::default(),
            contended_ns: 0,
            short_uses_ns: 0,
            idle_ns: 0,
            is_wanted: false,
            is_unsettled: false,
            looked_ns: now_ns,
            asked_ns: 0,
            ticked_ns: 0,
            turned_ns: now_ns,
            decide_ns: None,
            rounds: 0,
            entitled_ns: now_ns,
            owes_anew: false,
            mps_server: 0,
            review: Review::default(),
            pairs: Vec::new(),
            silence: Arrears::default(),
            changes: Vec::new(),
            has_beside: false,
        }
    }

    /// Returns the sessions, in the order that [`Readings::sessions`] must have.
    pub fn sessions(&self) -> impl Iterator<Item = Watched<'_>> {
        self.tenants.values().flat_map(|tenant| {
            let tells_intervals = tenant.launching() > 1;
            tenant.sessions.iter().map(move |(id, session)| Watched {
                session: *id,
                at_rest: session.is_at_rest().then_some(&session.last),
                stopped: session.stands_still().then_some(&session.last),
                tells_intervals,
            })
        })
    }

    /// Returns whether a turn is due at `now_ns`, even if no bell rang and there are no orders.
    pub fn is_due(&self, now_ns: u64) -> bool {
        self.look_ns().is_some_and(|at_ns| now_ns >= at_ns) || self.silent_ns(now_ns).is_some()
    }

    /// Returns when the caller must call again at the latest, ns: for a turn, or for the heartbeat.
    pub fn wake_ns(&self) -> Option<u64> {
        let tick_ns = self.has_sessions().then(|| self.ticked_ns.saturating_add(self.tick_ns));
        [self.look_ns(), tick_ns].into_iter().flatten().min()
    }

    /// Returns the time at which the next call of [`Self::turn`] is due, ns. Returns `None` if the
    /// core has no sessions and has planned no decision.
    fn look_ns(&self) -> Option<u64> {
        let regular_ns = if self.is_wanted || self.is_unsettled {
            self.ticked_ns.saturating_add(self.tick_ns)
        } else {
            let every_ns = if self.setup.has_peers { GANG_LOOK_NS } else { IDLE_LOOK_NS };
            self.looked_ns.saturating_add(every_ns)
        };
        [self.decide_ns, self.has_sessions().then_some(regular_ns)].into_iter().flatten().min()
    }

    /// Records that the caller ran at `now_ns` and that no turn was due.
    pub fn rest(&mut self, now_ns: u64) {
        self.turned_ns = now_ns;
        self.ticked_ns = now_ns;
    }

    /// Charges the tenants by the readings at `now_ns`, carries out the orders, and decides which
    /// tenants may launch. Replaces the content of `actions` by the results.
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
        // This loop comes after the orders, because an order may have added a tenant.
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
        let (before, was_in_space) = (self.scheduler.phase(), self.scheduler.is_in_space());
        let decide_ns = self.scheduler.decide(now_ns, &self.tuning);
        self.owes_anew |= was_in_space != self.scheduler.is_in_space();
        self.learn();
        let mut changes = core::mem::take(&mut self.changes);
        changes.extend(self.scheduler.take_changes());
        let is_settled = changes.is_empty();
        changes.drain(..).for_each(|change| self.apply(change, actions));
        self.changes = changes;
        if (before == Phase::Together) != (self.scheduler.phase() == Phase::Together) {
            // A gate that stays open now bounds the work in flight in another way.
            self.renew_open(actions);
        }
        let turn_ns = self.take_turns(now_ns, actions);
        self.tell_beside(actions);
        self.review(now_ns, actions);
        self.decide_ns = [decide_ns, turn_ns, self.entitle_again_ns()].into_iter().flatten().min();
        if now_ns.saturating_sub(self.ticked_ns) >= self.tick_ns {
            self.ticked_ns = now_ns;
            self.tenants.values_mut().for_each(|tenant| tenant.account.mark(now_ns));
        }
        // A tenant can finish its work at this moment. Either the tenant sees the new gate and
        // rings the bell, or the next turn sees that the work has finished. The next turn also
        // posts news to the peers, and uses the system's answers.
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

    /// Records that a turn took `took_ns`, with the reading of the meters and all actions.
    pub fn took(&mut self, took_ns: u64) {
        self.turns += 1;
        self.turns_took.add(took_ns);
    }

    /// Returns the times that the latest turns took.
    pub fn turns_took(&self) -> &Latency {
        &self.turns_took
    }

    /// Allocates the memory that the last turn lacked. If several sessions of a tenant launch, the
    /// core remembers the moments at which each session was on the GPU.
    pub fn make_room(&mut self) {
        for tenant in self.tenants.values_mut().filter(|tenant| tenant.launching() > 1) {
            tenant.said.make_room();
            tenant.sessions.values_mut().for_each(|session| session.overlap.make_room());
        }
    }

    /// Allocates the memory that turns need until the next turn with orders.
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
        self.review.weights.reserve(self.tenants.len());
        self.review.work.reserve(self.tenants.len());
        self.review.servers.reserve(self.tenants.len());
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

    /// Returns for how long the caller did not run, ns: it was stopped, or the machine slept. In
    /// this time, no arbiter bounded the tenants. Returns `None` if the time is within the
    /// heartbeat limit, or if there are no sessions.
    fn silent_ns(&self, now_ns: u64) -> Option<u64> {
        let silent_ns = now_ns.saturating_sub(self.turned_ns);
        (silent_ns > self.setup.heartbeat_limit_ns && self.has_sessions()).then_some(silent_ns)
    }

    /// Returns whether the present holder differs from the holder in the last post. The peers can
    /// wait for this news.
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

    /// Returns the tenants with their numbers, in the order of the numbers.
    pub fn tenants(&self) -> impl Iterator<Item = (TenantId, &Tenant)> {
        self.tenants.iter().map(|(id, tenant)| (*id, tenant))
    }

    /// Returns the tenant with this number, if there is one.
    pub fn tenant(&self, id: TenantId) -> Option<&Tenant> {
        self.tenants.get(&id)
    }

    /// Returns the cost of the latest hand-offs.
    pub fn latency(&self) -> &Latency {
        &self.latency
    }

    /// Returns the GPU's counters: contended time, idle time and hand-offs.
    pub fn counters(&self) -> Counters {
        Counters {
            contended_ns: self.contended_ns,
            idle_ns: self.idle_ns,
            handoffs: self.handoffs,
            handoff_total_ns: self.latency.total_ns,
            turns: self.turns,
            turn_total_ns: self.turns_took.total_ns,
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
