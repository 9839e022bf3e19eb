//! The daemon's arbiter, with the gates and the meters as the interposer implements them.
//!
//! The core of the arbiter ([`deepres_policy::arbiter`]) gets the readings of the meters, and its
//! actions set the gates, as in the daemon. Each tenant has one process with one stream. A hand-off
//! consists of a wake-up from a bell to the arbiter, a wake-up from a gate to a thread, and the
//! hardware's switch.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::mem;

use deepres_abi::PPM;
use deepres_abi::gate::{Reason, Verdict, judge};
use deepres_abi::grant::{GateState, GrantSlot};
use deepres_abi::meter::Reading;
use deepres_policy::arbiter::{
    Actions, Core, Order, Readings, SessionReading, SessionSeat, Setup, TenantReading, TenantSeat,
};
use deepres_policy::entitlement::{Entitlement, Request};
use deepres_policy::priority::Priority;
use deepres_policy::tuning::{QuantumBounds, Tuning, UNSEEN_NS};

use crate::device::Tenant;
use crate::gate::{Gate, Launch};
use crate::scenario::{Gpu, Hardware, Operator, Scenario};
use crate::standings::MOST_WATCHED;

/// Number of the host's CPUs, which decides whether waiters spin.
const PROCESSORS: usize = 8;
/// The greatest age of the daemon's heartbeat, as in the default configuration.
const HEARTBEAT_LIMIT_NS: u64 = 250_000_000;
/// If work begins behind an open gate after a pause of this length, the meter rings the bell, as in
/// the interposer.
const RESTED_NS: u64 = 100_000_000;
/// The number of the only MPS server.
const MPS_SERVER: u64 = 1;

/// The wishes of a tenant.
#[derive(Debug, Clone, Copy)]
pub struct Seat {
    /// The share, class and caps that the tenant asks for.
    pub request: Request,
    /// The declarations about the tenant's job.
    pub priority: Priority,
    /// The latency that the tenant wants for a request, ns.
    pub slo_ns: Option<u64>,
    /// The part of the SMs that the tenant can use under MPS, parts per million.
    pub sm_ppm: u32,
}

/// The only process of a tenant.
#[derive(Debug, Default)]
struct Process {
    gate: GrantSlot,
    /// The part of the SMs that the process uses under MPS, parts per million; 0 for all SMs.
    sm_ppm: u32,
    /// The meter. The gate and the scheduler see a change of the meter page at once.
    meter: Reading,
    /// The time by which kernels took longer than their known length, ns.
    stretched_ns: u64,
    /// Number of kernels in flight.
    in_flight: u64,
    /// The number of times that all work ended while no thread waited at the gate.
    ends: u64,
    /// The time at which the present kernel came to the front of the stream, ns.
    front_ns: u64,
    /// The time at which the last work ended, ns.
    ended_ns: Option<u64>,
    /// The epoch of the gate and the reason for which the waiting thread has rung the bell.
    rung_for: Option<(u32, Reason)>,
    /// The epoch of the gate under which a launch last passed.
    entered: u32,
    /// The time at which this launch passed, ns, if its thread had waited. `None` once the launch
    /// has run.
    entered_ns: Option<u64>,
    /// When the first work began that had waited for its lease.
    began_ns: Option<u64>,
    /// GPU time that the arbiter has charged to the tenant's job, ns.
    job_used_ns: u64,
}

impl Process {
    fn is_open(&self) -> bool {
        self.gate.gate().state == GateState::Open
    }

    /// Returns whether the work in flight is as far ahead of the GPU as an open gate allows. A
    /// thread that has waited at the gate does not wait for this too.
    fn is_far_ahead(&self) -> bool {
        let is_above = |ahead_ns| self.meter.in_flight_ns > ahead_ns;
        self.meter.waiters == 0 && self.in_flight > 0 && self.gate.run_ahead_ns().is_some_and(is_above)
    }

    /// Counts a launch that passes the gate. Returns whether the meter rings the bell.
    fn pass(&mut self, now_ns: u64, length_ns: u64) -> bool {
        let has_waited = mem::take(&mut self.meter.waiters) > 0;
        self.rung_for = None;
        let epoch = self.gate.gate().epoch;
        if mem::replace(&mut self.entered, epoch) != epoch {
            self.entered_ns = has_waited.then_some(now_ns);
        }
        let was_idle = self.in_flight == 0;
        if was_idle {
            self.front_ns = now_ns;
        }
        self.in_flight += 1;
        self.meter.in_flight = true;
        self.meter.in_flight_ns += length_ns;
        self.meter.kernel_launches += 1;
        let has_rested = self.ended_ns.is_none_or(|ended_ns| now_ns - ended_ns > RESTED_NS);
        was_idle && has_rested && self.is_open()
    }

    /// Counts the end of a kernel. The meter shows the time in which the kernel was at the front of
    /// the stream, with the turns of other tenants in this time.
    fn finish(&mut self, now_ns: u64, length_ns: u64, is_idle: bool) {
        let front_ns = mem::replace(&mut self.front_ns, now_ns);
        self.in_flight -= 1;
        self.meter.in_flight = !is_idle;
        self.meter.in_flight_ns -= length_ns;
        self.meter.compute_ns += now_ns - front_ns;
        self.stretched_ns += (now_ns - front_ns).saturating_sub(length_ns);
        self.meter.longest_ns = self.meter.longest_ns.max(length_ns);
        self.meter.updated_ns = now_ns;
        if self.entered_ns.is_some_and(|entered_ns| front_ns >= entered_ns) {
            (self.began_ns, self.entered_ns) = (Some(front_ns), None);
        }
        if is_idle {
            self.ends += u64::from(self.meter.waiters == 0);
            self.ended_ns = Some(now_ns);
        }
    }
}

/// The daemon's arbiter, with a process for each tenant of a scenario.
#[derive(Debug)]
pub struct Deepres {
    core: Core,
    readings: Readings,
    actions: Actions,
    /// The orders by which the tenants enter, until the first turn.
    orders: Vec<Order>,
    processes: Vec<Process>,
    /// Time of a wake-up: from a bell to the arbiter, or from a gate to a thread.
    wake_ns: u64,
    /// When the arbiter hears the next bell, or takes another turn at once.
    called_ns: Option<u64>,
    turned_ns: u64,
    /// The time at which the core last computed the entitlements, ns.
    entitled_ns: Option<u64>,
    /// The entitlements, until the engine has taken them.
    owed: Option<Vec<Entitlement>>,
    retries: BinaryHeap<Reverse<(u64, Tenant)>>,
}

/// Returns the time constants of an arbiter that has measured the scenario's hand-offs.
pub fn tuning(scenario: &Scenario) -> Tuning {
    Tuning::derive(scenario.gpu.handoff_ns, QuantumBounds::default(), PROCESSORS)
}

/// Returns the part of a hand-off that no meter shows: the hardware's switch from an idle context.
/// Under MPS, contexts run together, and no switch is needed.
pub fn switch_ns(gpu: &Gpu) -> u64 {
    match gpu.device {
        Hardware::TimeSlice => UNSEEN_NS.min(gpu.handoff_ns),
        Hardware::Mps => 0,
    }
}

impl Deepres {
    /// Returns the policy for a scenario's tenants.
    pub fn new(scenario: &Scenario) -> Self {
        let seats = scenario.tenants.iter().map(|tenant| Seat {
            // The core computes the priority value.
            request: tenant.request(0),
            priority: tenant.priority(),
            slo_ns: tenant.slo_ns(),
            sm_ppm: scenario.gpu.device.part_ppm(tenant.widest_ppm()),
        });
        Self::of(&scenario.policy, &scenario.gpu, seats)
    }

    /// Returns the policy for tenants with these wishes. The number of a tenant is its place.
    pub fn of(operator: &Operator, gpu: &Gpu, seats: impl IntoIterator<Item = Seat>) -> Self {
        let setup = Setup {
            heartbeat_limit_ns: HEARTBEAT_LIMIT_NS,
            quantum: QuantumBounds::default(),
            weights: operator.weights(),
            max_harm_ppm: operator.max_harm_ppm,
            processors: PROCESSORS,
            has_peers: false,
        };
        let (mut enters, mut processes) = (Vec::new(), Vec::new());
        for (id, Seat { request, priority, slo_ns, sm_ppm }) in (0..).zip(seats) {
            let sm_ppm = (sm_ppm < PPM).then_some(sm_ppm);
            enters.push(Order::Enter {
                tenant: TenantSeat {
                    id,
                    request,
                    priority,
                    slo_ns,
                    sm_ppm,
                    uses_mps: true,
                    takes_turns: false,
                    is_paused: false,
                    is_suspended: false,
                },
                session: SessionSeat { id, process: None, user: Some(id), continues: false },
            });
            processes.push(Process { sm_ppm: sm_ppm.unwrap_or(0), ..Process::default() });
        }
        Self {
            core: Core::new(setup, 0),
            readings: Readings::default(),
            actions: Actions::default(),
            orders: enters,
            processes,
            wake_ns: (gpu.handoff_ns - switch_ns(gpu)) / 2,
            called_ns: Some(0),
            turned_ns: 0,
            entitled_ns: None,
            owed: None,
            retries: BinaryHeap::new(),
        }
    }

    /// Lets the waiting thread of a tenant leave the gate without a launch.
    pub fn give_up(&mut self, tenant: Tenant) {
        let process = &mut self.processes[tenant];
        (process.meter.waiters, process.rung_for) = (0, None);
    }

    fn call(&mut self, at_ns: u64) {
        self.called_ns = Some(self.called_ns.map_or(at_ns, |called_ns| called_ns.min(at_ns)));
    }

    fn ring(&mut self, now_ns: u64) {
        self.call(now_ns + self.wake_ns);
    }

    /// Reads the meters.
    fn read(&mut self, now_ns: u64) {
        let Self { core, readings, processes, .. } = self;
        readings.clear();
        for watched in core.sessions() {
            let Process { meter, sm_ppm, stretched_ns, began_ns, ended_ns, ends, .. } =
                &mut processes[watched.session as Tenant];
            if watched.at_rest == Some(meter) {
                continue;
            }
            if meter.in_flight {
                // The meter thread looks all the time.
                meter.updated_ns = now_ns;
            }
            readings.sessions.push(SessionReading {
                session: watched.session,
                is_carried: true,
                meter: *meter,
                stretched_ns: *stretched_ns,
                sm_ppm: *sm_ppm,
                mps_server: if *sm_ppm > 0 { MPS_SERVER } else { 0 },
                ends: *ends,
                began_ns: *began_ns,
                ended_ns: *ended_ns,
                intervals: 0..0,
                is_stopped: Some(false),
            });
        }
        if core.reviews(now_ns) {
            let tenants = (0..).zip(processes.iter());
            readings.tenants.extend(tenants.map(|(tenant, process)| TenantReading {
                tenant,
                job_used_ns: process.job_used_ns,
                memory_ppm: 0,
            }));
        }
    }

    /// Takes a turn.
    fn turn(&mut self, now_ns: u64) {
        (self.turned_ns, self.called_ns) = (now_ns, self.called_ns.filter(|called_ns| *called_ns > now_ns));
        self.read(now_ns);
        self.core.turn(now_ns, &self.readings, self.orders.drain(..), None, &mut self.actions);
        for gate in &self.actions.gates {
            let tenant = gate.session as Tenant;
            let process = &self.processes[tenant];
            gate.show(&process.gate);
            if process.meter.waiters > 0 {
                self.retries.push(Reverse((now_ns + self.wake_ns, tenant)));
            }
        }
        for (tenant, used_ns) in &self.actions.used {
            self.processes[*tenant as Tenant].job_used_ns += used_ns;
        }
        if self.actions.again {
            self.call(now_ns + 1);
        }
        let entitled_ns = Some(self.core.entitled_ns());
        if mem::replace(&mut self.entitled_ns, entitled_ns) != entitled_ns
            && self.processes.len() <= MOST_WATCHED
        {
            self.owed = Some(self.core.tenants().filter_map(|(_, tenant)| tenant.owed()).collect());
        }
    }
}

impl Gate for Deepres {
    fn admit(&mut self, now_ns: u64, launch: &Launch) -> bool {
        let process = &mut self.processes[launch.tenant];
        if process.is_far_ahead() {
            // The tenant waits for its work in flight, and not at the gate.
            return false;
        }
        let (gate, queued_ns) = (process.gate.gate(), process.meter.in_flight_ns);
        let verdict = judge(gate, process.gate.terms(), now_ns, queued_ns, launch.length_ns);
        let (passes, rings) = match verdict {
            // One launch at a time is for gangs, and there are none here.
            Verdict::Open | Verdict::Leased | Verdict::Once(_) => {
                (true, process.pass(now_ns, launch.length_ns))
            }
            Verdict::Wait(reason) => {
                process.meter.waiters = 1;
                let awaits = Some((gate.epoch, reason));
                let is_new = mem::replace(&mut process.rung_for, awaits) != awaits;
                (false, is_new && matches!(reason, Reason::Closed | Reason::Expired))
            }
        };
        if rings {
            self.ring(now_ns);
        }
        passes
    }

    fn done(&mut self, now_ns: u64, tenant: Tenant, length_ns: u64, is_idle: bool) {
        let process = &mut self.processes[tenant];
        process.finish(now_ns, length_ns, is_idle);
        if is_idle && !process.is_open() {
            self.ring(now_ns);
        }
    }

    fn rests(&mut self, _: u64, tenant: Tenant) {
        debug_assert!(!self.processes[tenant].meter.wants());
    }

    fn wake_ns(&self) -> Option<u64> {
        let retry_ns = self.retries.peek().map(|Reverse((at_ns, _))| *at_ns);
        // A turn that is overdue is due at once, and time passes meanwhile.
        let due_ns = self.core.wake_ns().map(|at_ns| at_ns.max(self.turned_ns + 1));
        [self.called_ns, due_ns, retry_ns].into_iter().flatten().min()
    }

    fn wake(&mut self, now_ns: u64, retry: &mut Vec<Tenant>) {
        let is_past = |at_ns: u64| at_ns <= now_ns;
        if self.called_ns.is_some_and(is_past) || self.core.is_due(now_ns) {
            self.turn(now_ns);
        } else if self.core.wake_ns().is_some_and(is_past) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::TimeSlice;
    use crate::engine;
    use deepres_abi::grant::LeaseTerms;

    #[test]
    fn the_arbiter_measures_what_a_hand_off_of_the_scenario_costs() {
        let tenants = [
            ("short", "", "kernels = 100, kernel_us = 200"),
            ("longer", "", "kernels = 10, kernel_us = 500"),
        ];
        let scenario = Scenario::of("duration_s = 20", &tenants);
        let gpu = &scenario.gpu;
        let mut device = TimeSlice::new(2, gpu.slice_ns, gpu.switch_ns).with_idle_switch(switch_ns(gpu));
        let mut deepres = Deepres::new(&scenario);
        engine::run(&scenario, &mut device, &mut deepres, None);
        let handoff_ns = deepres.core.tuning().handoff_ns;
        assert!(handoff_ns.abs_diff(100_000) <= 5_000, "{handoff_ns}");
    }

    #[test]
    fn a_meter_counts_the_turns_of_others_between_the_beginning_and_the_end_of_a_kernel() {
        let mut process = Process::default();
        process.gate.set_gate(GateState::Open, LeaseTerms { window_ns: 100, ..LeaseTerms::default() });
        assert!(process.pass(10, 5), "the bell says that a rest is over");
        assert!(!process.pass(12, 5));
        process.finish(40, 5, false);
        assert_eq!((process.meter.compute_ns, process.meter.in_flight_ns), (30, 5));
        process.finish(45, 5, true);
        assert_eq!(
            (process.meter.compute_ns, process.meter.in_flight, process.ended_ns),
            (35, false, Some(45))
        );
    }
}
