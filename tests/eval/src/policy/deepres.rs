//! The daemon's policy, with the gate as the interposer implements it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use deepres_policy::TenantId;
use deepres_policy::demand::Demand;
use deepres_policy::entitlement::{BACK_NS, Entitlement, Request, entitlements};
use deepres_policy::lease::{Grant, Scheduler, Seen};
use deepres_policy::priority::{Terms, Usage, Weights};
use deepres_policy::tuning::{QuantumBounds, Tuning};

use crate::device::Tenant;
use crate::gate::{Gate, Launch};
use crate::scenario::{self, Scenario};
use crate::standings::MOST_WATCHED;

/// Number of the host's CPUs, which decides whether waiters spin.
const PROCESSORS: usize = 8;
/// Time between two reviews of priorities, as in the daemon.
const REVIEW_NS: u64 = 100_000_000;

#[derive(Debug, Default)]
struct Seat {
    waiting: bool,
    in_flight: u64,
    in_flight_ns: u64,
    unreported_ns: u64,
    longest_ns: u64,
    used_ns: u64,
    demand: Demand,
    demand_used_ns: u64,
    idle_since_ns: Option<u64>,
    /// Whether the tenant was idle at the last review.
    is_lent: bool,
    is_news: bool,
}

impl Seat {
    fn wants(&self) -> bool {
        self.waiting || self.in_flight > 0
    }
}

/// The daemon's policy, with the interposer's gate for each tenant of a scenario.
#[derive(Debug)]
pub struct Deepres {
    scheduler: Scheduler,
    tuning: Tuning,
    weights: Weights,
    /// Time of a wake-up: from a bell to the arbiter, or from a gate to a thread.
    wake_ns: u64,
    tenants: Vec<scenario::Tenant>,
    seats: Vec<Seat>,
    news: Vec<Tenant>,
    decide_ns: Option<u64>,
    reviewed_ns: Option<u64>,
    /// Whether a tenant that was idle at the last review wants the GPU again.
    is_back: bool,
    /// The entitlements that the engine has not taken yet.
    owed: Option<Vec<Entitlement>>,
    retries: BinaryHeap<Reverse<(u64, Tenant)>>,
}

fn id(tenant: Tenant) -> TenantId {
    tenant as TenantId
}

/// Returns the policy's time constants for a scenario.
pub fn tuning(scenario: &Scenario) -> Tuning {
    Tuning::derive(scenario.gpu.handoff_ns, QuantumBounds::default(), PROCESSORS)
}

impl Deepres {
    /// Returns the policy for a scenario's tenants.
    pub fn new(scenario: &Scenario) -> Self {
        let handoff_ns = scenario.gpu.handoff_ns;
        let mut deepres = Self {
            scheduler: Scheduler::default(),
            tuning: tuning(scenario),
            weights: scenario.policy.weights(),
            wake_ns: handoff_ns / 2,
            tenants: scenario.tenants.clone(),
            seats: scenario
                .tenants
                .iter()
                .map(|_| Seat { idle_since_ns: Some(0), ..Seat::default() })
                .collect(),
            news: Vec::new(),
            decide_ns: Some(0),
            reviewed_ns: None,
            is_back: false,
            owed: None,
            retries: BinaryHeap::new(),
        };
        deepres.scheduler.set_max_harm(scenario.policy.max_harm_ppm);
        for tenant in 0..scenario.tenants.len() {
            deepres.scheduler.enter(id(tenant), scenario.tenants[tenant].class, 0);
            deepres.scheduler.set_slo(id(tenant), scenario.tenants[tenant].slo_ns());
        }
        deepres
    }

    fn tell(&mut self, tenant: Tenant) {
        if !std::mem::replace(&mut self.seats[tenant].is_news, true) {
            self.news.push(tenant);
        }
    }

    fn ring(&mut self, now_ns: u64) {
        let heard_ns = now_ns + self.wake_ns;
        self.decide_ns = Some(self.decide_ns.map_or(heard_ns, |decide_ns| decide_ns.min(heard_ns)));
    }

    /// Computes every tenant's entitlement again.
    fn review(&mut self, now_ns: u64) {
        let request = |(id, (tenant, seat)): (TenantId, (&scenario::Tenant, &mut Seat))| {
            let idle_ns = seat.idle_since_ns.map_or(0, |since_ns| now_ns - since_ns);
            seat.demand.observe(seat.used_ns - seat.demand_used_ns, idle_ns);
            seat.demand_used_ns = seat.used_ns;
            seat.idle_since_ns = seat.idle_since_ns.map(|_| now_ns);
            let usage = Usage { used_ns: seat.used_ns, demand_ppm: seat.demand.ppm(), memory_ppm: 0 };
            seat.is_lent = self.scheduler.is_idle(id, now_ns);
            let terms = Terms::at(now_ns, &tenant.priority(), &usage);
            (id, Request { is_idle: seat.is_lent, ..tenant.request(terms.value_ppm(&self.weights)) })
        };
        let requests: BTreeMap<TenantId, _> =
            (0..).zip(self.tenants.iter().zip(&mut self.seats)).map(request).collect();
        let owed = entitlements(&requests);
        // Both maps are ordered by tenant.
        for ((tenant, owed), request) in owed.iter().zip(requests.values()) {
            self.scheduler.set_standing(*tenant, request.class, owed.weight_ppm);
        }
        self.owed = (owed.len() <= MOST_WATCHED).then(|| owed.into_values().collect());
        (self.reviewed_ns, self.is_back) = (Some(now_ns), false);
    }

    /// Returns the time of the next review.
    fn review_ns(&self) -> u64 {
        let every_ns = if self.is_back { BACK_NS } else { REVIEW_NS };
        self.reviewed_ns.map_or(0, |reviewed_ns| reviewed_ns + every_ns)
    }

    fn decide(&mut self, now_ns: u64) {
        for tenant in self.news.drain(..) {
            let seat = &mut self.seats[tenant];
            seat.is_news = false;
            self.is_back |= seat.is_lent && seat.wants();
            let seen = Seen {
                waiting: seat.waiting,
                in_flight: seat.in_flight > 0,
                used_ns: std::mem::take(&mut seat.unreported_ns),
                pending_ns: seat.in_flight_ns,
                longest_ns: seat.longest_ns,
            };
            self.scheduler.observe(id(tenant), now_ns, seen);
        }
        if now_ns >= self.review_ns() {
            self.review(now_ns);
        }
        let again_ns = self.scheduler.decide(now_ns, &self.tuning);
        for change in self.scheduler.take_changes() {
            let tenant = change.tenant as Tenant;
            if self.seats[tenant].waiting {
                self.retries.push(Reverse((now_ns + self.wake_ns, tenant)));
            }
        }
        self.scheduler.take_handoffs();
        let review_ns = self.review_ns();
        let again_ns = again_ns.map_or(review_ns, |again_ns| again_ns.min(review_ns));
        self.decide_ns = Some(again_ns.max(now_ns + 1));
    }
}

impl Gate for Deepres {
    fn admit(&mut self, now_ns: u64, launch: &Launch) -> bool {
        let tenant = launch.tenant;
        let grant = self.scheduler.grant(id(tenant));
        let seat = &self.seats[tenant];
        let (may_go, rings) = match grant {
            Grant::Open => {
                let ahead_ns =
                    self.scheduler.run_ahead_ns(id(tenant), 1, seat.longest_ns, now_ns, &self.tuning);
                if seat.in_flight > 0 && seat.in_flight_ns + launch.length_ns > ahead_ns {
                    // The tenant waits for its work in flight, and not at the gate.
                    return false;
                }
                (true, false)
            }
            // A lease of one launch is for gangs, and the evaluation has no gangs.
            Grant::Closed | Grant::Once => (false, true),
            Grant::Paused => (false, false),
            Grant::Leased { expires_ns } if now_ns >= expires_ns => (false, true),
            Grant::Leased { .. } => {
                let window_ns = self.scheduler.window_ns(id(tenant), 1, seat.longest_ns, &self.tuning);
                let fits = seat.in_flight == 0 || seat.in_flight_ns + launch.length_ns <= window_ns;
                (fits, false)
            }
        };
        let seat = &mut self.seats[tenant];
        seat.idle_since_ns = match seat.idle_since_ns.take() {
            Some(since_ns) => {
                seat.demand.observe(0, now_ns - since_ns);
                None
            }
            None => None,
        };
        let was_waiting = std::mem::replace(&mut seat.waiting, !may_go);
        let was_idle = !was_waiting && seat.in_flight == 0;
        if may_go {
            seat.in_flight += 1;
            seat.in_flight_ns += launch.length_ns;
        } else if rings && !was_waiting {
            self.ring(now_ns);
        }
        if was_idle || was_waiting == may_go {
            self.tell(tenant);
        }
        may_go
    }

    fn done(&mut self, now_ns: u64, tenant: Tenant, length_ns: u64, is_idle: bool) {
        let seat = &mut self.seats[tenant];
        seat.in_flight -= 1;
        seat.in_flight_ns -= length_ns;
        seat.used_ns += length_ns;
        seat.unreported_ns += length_ns;
        seat.longest_ns = seat.longest_ns.max(length_ns);
        self.tell(tenant);
        if is_idle && self.scheduler.grant(id(tenant)) != Grant::Open {
            self.ring(now_ns);
        }
    }

    fn rests(&mut self, now_ns: u64, tenant: Tenant) {
        let seat = &mut self.seats[tenant];
        debug_assert!(!seat.wants());
        seat.idle_since_ns = Some(now_ns);
    }

    fn wake_ns(&self) -> Option<u64> {
        let retry_ns = self.retries.peek().map(|Reverse((at_ns, _))| *at_ns);
        [self.decide_ns, retry_ns].into_iter().flatten().min()
    }

    fn wake(&mut self, now_ns: u64, retry: &mut Vec<Tenant>) {
        if self.decide_ns.is_some_and(|decide_ns| decide_ns <= now_ns) {
            self.decide(now_ns);
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
