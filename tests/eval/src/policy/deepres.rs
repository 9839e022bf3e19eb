//! The daemon's arbiter, with the gate as the interposer implements it.
//!
//! The core of the arbiter is the daemon's own. It gets readings of the tenants' meters, and its
//! actions set the gates. A bell takes half a hand-off to wake the arbiter, and an opened gate takes
//! the other half to wake a thread.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use deepres_abi::grant::LeaseTerms;
use deepres_abi::meter::Reading;
use deepres_policy::TenantId;
use deepres_policy::arbiter::{
    Actions, Core, Order, Readings, SessionReading, SessionSeat, Setup, TenantReading, TenantSeat,
};
use deepres_policy::entitlement::Entitlement;
use deepres_policy::lease::Grant;
use deepres_policy::tuning::{QuantumBounds, Tuning, UNSEEN_NS};

use crate::device::Tenant;
use crate::gate::{Gate, Launch};
use crate::scenario::{self, Scenario};
use crate::standings::MOST_WATCHED;

/// Number of the host's CPUs. It decides whether waiters spin.
const PROCESSORS: usize = 8;
/// How old the daemon's heartbeat may be, as in the default configuration. The arbiter's ticks
/// follow from that.
const HEARTBEAT_LIMIT_NS: u64 = 250_000_000;
/// A meter rings if it counts work after a rest of this length behind an open gate, as in the
/// interposer.
const RESTED_NS: u64 = 100_000_000;

/// A tenant's only process.
#[derive(Debug, Default)]
struct Process {
    /// What its meter shows.
    meter: Reading,
    in_flight: u64,
    /// GPU time that the job has used, ns.
    used_ns: u64,
    gate: Gated,
    /// When its first work began that had waited for the present lease, and its last work ended.
    began_ns: Option<u64>,
    ended_ns: Option<u64>,
    /// Whether the work at the front of its queue had waited for the present lease.
    has_waited: bool,
}

/// What a gate says.
#[derive(Debug)]
struct Gated {
    grant: Grant,
    terms: LeaseTerms,
}

impl Default for Gated {
    fn default() -> Self {
        Self { grant: Grant::Closed, terms: LeaseTerms::default() }
    }
}

/// The arbiter and its gates.
#[derive(Debug)]
pub struct Deepres {
    core: Core,
    readings: Readings,
    actions: Actions,
    /// The tenants, until the first turn.
    orders: Vec<Order>,
    processes: Vec<Process>,
    /// Processes of which the arbiter asked whether they are stopped.
    asked: Vec<TenantId>,
    /// Time of a wake-up: from a bell to the arbiter, or from a gate to a thread.
    wake_ns: u64,
    /// When the arbiter hears the next bell.
    heard_ns: Option<u64>,
    /// When the arbiter takes another turn, if it takes one at once.
    again_ns: Option<u64>,
    turned_ns: u64,
    entitled_ns: Option<u64>,
    /// The entitlements, until the engine has taken them.
    owed: Option<Vec<Entitlement>>,
    retries: BinaryHeap<Reverse<(u64, Tenant)>>,
}

/// Returns the policy's time constants for a scenario: those that the arbiter learns.
pub fn tuning(scenario: &Scenario) -> Tuning {
    Tuning::derive(scenario.gpu.handoff_ns + UNSEEN_NS, QuantumBounds::default(), PROCESSORS)
}

/// Returns a tenant, as the daemon's registry would describe it.
fn seat(id: TenantId, tenant: &scenario::Tenant) -> TenantSeat {
    TenantSeat {
        id,
        // The arbiter computes the priority value.
        request: tenant.request(0),
        priority: tenant.priority(),
        slo_ns: tenant.slo_ns(),
        is_paused: false,
        is_suspended: false,
    }
}

impl Deepres {
    /// Returns the policy for a scenario's tenants.
    pub fn new(scenario: &Scenario) -> Self {
        let setup = Setup {
            heartbeat_limit_ns: HEARTBEAT_LIMIT_NS,
            quantum: QuantumBounds::default(),
            weights: scenario.policy.weights(),
            max_harm_ppm: scenario.policy.max_harm_ppm,
            processors: PROCESSORS,
            has_peers: false,
        };
        let enter = |(id, tenant): (TenantId, &scenario::Tenant)| Order::Enter {
            tenant: seat(id, tenant),
            session: SessionSeat { id, process: None, user: None, continues: false },
        };
        Self {
            core: Core::new(setup, 0),
            readings: Readings::default(),
            actions: Actions::default(),
            orders: (0..).zip(&scenario.tenants).map(enter).collect(),
            processes: scenario.tenants.iter().map(|_| Process::default()).collect(),
            asked: Vec::new(),
            wake_ns: scenario.gpu.handoff_ns / 2,
            heard_ns: Some(0),
            again_ns: None,
            turned_ns: 0,
            entitled_ns: None,
            owed: None,
            retries: BinaryHeap::new(),
        }
    }

    fn ring(&mut self, now_ns: u64) {
        let heard_ns = now_ns + self.wake_ns;
        self.heard_ns = Some(self.heard_ns.map_or(heard_ns, |before_ns| before_ns.min(heard_ns)));
    }

    /// Reads the meters.
    fn read(&mut self, now_ns: u64) {
        let Self { core, readings, processes, .. } = self;
        readings.clear();
        for watched in core.sessions() {
            let process = &processes[watched.session as Tenant];
            if watched.at_rest.is_some_and(|last| *last == process.meter) {
                continue;
            }
            readings.sessions.push(SessionReading {
                session: watched.session,
                is_carried: true,
                meter: process.meter,
                began_ns: process.began_ns,
                ended_ns: process.ended_ns,
                intervals: 0..0,
                is_stopped: self.asked.contains(&watched.session).then_some(false),
            });
        }
        self.asked.clear();
        if core.reviews(now_ns) {
            readings.tenants.extend((0..).zip(&*processes).map(|(tenant, process)| TenantReading {
                tenant,
                job_used_ns: process.used_ns,
                memory_ppm: 0,
            }));
        }
    }

    /// Lets the arbiter take a turn.
    fn turn(&mut self, now_ns: u64) {
        self.turned_ns = now_ns;
        self.read(now_ns);
        self.core.turn(now_ns, &self.readings, self.orders.drain(..), None, &mut self.actions);
        for gate in &self.actions.gates {
            let tenant = gate.session as Tenant;
            let process = &mut self.processes[tenant];
            process.gate = Gated { grant: gate.grant, terms: gate.terms };
            if process.meter.waiters > 0 {
                self.retries.push(Reverse((now_ns + self.wake_ns, tenant)));
            }
        }
        for (tenant, used_ns) in &self.actions.used {
            self.processes[*tenant as Tenant].used_ns += used_ns;
        }
        self.asked.extend(&self.actions.asks);
        self.again_ns = self.actions.again.then_some(now_ns + 1);
        if self.entitled_ns.replace(self.core.entitled_ns()) != Some(self.core.entitled_ns()) {
            let owed = self.core.tenants().filter_map(|(_, tenant)| tenant.owed());
            self.owed = (self.processes.len() <= MOST_WATCHED).then(|| owed.collect());
        }
    }
}

impl Gate for Deepres {
    fn admit(&mut self, now_ns: u64, launch: &Launch) -> bool {
        let process = &mut self.processes[launch.tenant];
        let Gated { grant, terms } = &process.gate;
        let is_full =
            process.in_flight > 0 && process.meter.in_flight_ns + launch.length_ns > terms.window_ns;
        let (may_go, rings) = match grant {
            // The tenant waits for its work in flight, and not at the gate.
            Grant::Open if is_full => return false,
            Grant::Open => (true, false),
            // One launch at a time is for gangs, and there are none here.
            Grant::Closed | Grant::Once => (false, true),
            Grant::Paused => (false, false),
            Grant::Leased { .. } if now_ns >= terms.expires_ns => (false, true),
            Grant::Leased { .. } => (!is_full, false),
        };
        let had_waited = process.meter.waiters > 0;
        process.meter.waiters = u32::from(!may_go);
        if may_go {
            process.has_waited |= had_waited && process.in_flight == 0;
            process.in_flight += 1;
            process.meter.in_flight = true;
            process.meter.in_flight_ns += launch.length_ns;
            process.meter.kernel_launches += 1;
        } else if rings && !had_waited {
            self.ring(now_ns);
        }
        may_go
    }

    fn done(&mut self, now_ns: u64, tenant: Tenant, length_ns: u64, is_idle: bool) {
        let process = &mut self.processes[tenant];
        process.in_flight -= 1;
        let meter = &mut process.meter;
        let rested = now_ns.saturating_sub(meter.updated_ns) > RESTED_NS;
        meter.in_flight = !is_idle;
        meter.in_flight_ns -= length_ns;
        meter.compute_ns += length_ns;
        meter.longest_ns = meter.longest_ns.max(length_ns);
        meter.updated_ns = now_ns;
        process.ended_ns = Some(now_ns);
        if std::mem::take(&mut process.has_waited) {
            process.began_ns = Some(now_ns - length_ns);
        }
        let is_open = process.gate.grant == Grant::Open;
        if if is_open { rested } else { is_idle } {
            self.ring(now_ns);
        }
    }

    fn rests(&mut self, _: u64, tenant: Tenant) {
        debug_assert!(!self.processes[tenant].meter.wants());
    }

    fn wake_ns(&self) -> Option<u64> {
        let retry_ns = self.retries.peek().map(|Reverse((at_ns, _))| *at_ns);
        // A moment that has passed is due at once, and time passes meanwhile.
        let due_ns = self.core.wake_ns().map(|at_ns| at_ns.max(self.turned_ns + 1));
        [self.heard_ns, self.again_ns, due_ns, retry_ns].into_iter().flatten().min()
    }

    fn wake(&mut self, now_ns: u64, retry: &mut Vec<Tenant>) {
        let is_past = |at_ns: Option<u64>| at_ns.is_some_and(|at_ns| at_ns <= now_ns);
        if is_past(self.heard_ns) || is_past(self.again_ns) || self.core.is_due(now_ns) {
            self.heard_ns = self.heard_ns.filter(|heard_ns| *heard_ns > now_ns);
            self.turn(now_ns);
        } else if is_past(self.core.wake_ns()) {
            self.core.rest(now_ns);
        }
        while let Some(Reverse((at_ns, tenant))) = self.retries.peek().copied()
            && at_ns <= now_ns
        {
            self.retries.pop();
            retry.push(tenant);
        }
    }

    fn take_owed(&mut self) -> Option<Vec<Entitlement>> {
        self.owed.take()
    }
}
