//! Runs programs through a gate on a device, in virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use deepres_policy::entitlement::Entitlement;

use crate::device::{Device, Kernel, Tenant};
use crate::gate::{Gate, Launch};
use crate::load::{Batch, Program};
use crate::scenario::Scenario;
use crate::standings::Standings;

/// Number of kernels that the driver accepts before a launch blocks.
const QUEUE_DEPTH: usize = 1024;
/// Number of points of the curve of shares over time.
const SAMPLES: u64 = 400;

/// Figures of one tenant.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Total length of the kernels that finished in the measured time, ns.
    pub work_ns: u64,
    /// GPU time used in the measured time, ns.
    pub used_ns: u64,
    /// Time from arrival to answer of each measured request, ns, in order of arrival. For a program
    /// that works in steps, the time of each step.
    pub latencies_ns: Vec<u64>,
    /// Requests that were late, or that had no answer when their time limit had passed.
    pub missed: u64,
    /// Requests that had a time limit.
    pub timed: u64,
    /// GPU time used, sampled over the measured time.
    pub curve_ns: Vec<u64>,
    /// Greatest lag behind the fluid limit, ns of GPU time. The caller, which knows the weights,
    /// sets this value.
    pub lag_ns: u64,
    /// Time when the whole job was done, ns; `None` if the job was not done.
    pub finished_ns: Option<u64>,
    /// Time in which the tenant had work, in the measured time, ns.
    pub wanted_ns: u64,
    /// GPU time that the tenant was owed in `wanted_ns`, ns.
    pub claim_ns: u64,
    /// Entitlement, parts per million, sampled like `curve_ns`.
    pub owed_ppm: Vec<u32>,
}

/// Result of a run.
#[derive(Debug, Clone)]
pub struct Run {
    /// Figures of each tenant.
    pub outcomes: Vec<Outcome>,
    /// Time in which the GPU ran a kernel, in the measured time, ns.
    pub busy_ns: u64,
    /// GPU time that guests used while no owner had work, in the measured time, ns.
    pub harvested_ns: u64,
    /// Entitlements over time, if the policy reports entitlements.
    pub standings: Standings,
}

/// An observer of a run, which learns when work becomes available and when the work is done. Some
/// figures compare a run with an ideal scheduler that gets the same work. The observer is this
/// ideal scheduler. For other observers, the default answers are empty.
pub trait Witness {
    /// Tells the observer that work of this length becomes available.
    fn available(&mut self, _now_ns: u64, _tenant: Tenant, _work_ns: u64) {}
    /// Tells the observer that something changed. `used_ns` is the total GPU time that each tenant
    /// has used.
    fn look(&mut self, _now_ns: u64, _used_ns: &[u64]) {}
    /// Tells the observer each tenant's entitlement from now on.
    fn owe(&mut self, _now_ns: u64, _owed: &[Entitlement]) {}
    /// Tells the observer that all available work of the tenant is done.
    fn rests(&mut self, _now_ns: u64, _tenant: Tenant) {}
    /// Returns the tenant's greatest lag, ns.
    fn lag_ns(&self, _tenant: Tenant) -> u64 {
        0
    }
    /// Returns the time in which the tenant wanted the GPU so far, ns.
    fn wanted_ns(&self, _tenant: Tenant) -> u64 {
        0
    }
    /// Returns the GPU time that the tenant was owed while it wanted the GPU, ns.
    fn claim_ns(&self, _tenant: Tenant) -> u64 {
        0
    }
    /// Returns the tenant's entitlement now, parts per million.
    fn owed_ppm(&self, _tenant: Tenant) -> u32 {
        0
    }
}

#[derive(Debug)]
struct Process {
    program: Program,
    batch: Option<Batch>,
    to_launch: VecDeque<Kernel>,
    /// The number of launches to which the program's thread has come.
    come_to: usize,
    in_flight: usize,
    /// GPU time that the rest of the tenant's job takes, if known.
    left_ns: Option<u64>,
}

/// The times in which no owner has work (the gaps), and the GPU time that guests use in the gaps.
#[derive(Debug, Default)]
struct Gaps {
    guests: Vec<Tenant>,
    is_guest: Vec<bool>,
    /// Number of owners with work.
    busy: usize,
    harvested_ns: u64,
    /// GPU time that guests had used when the present gap began.
    had_ns: u64,
}

impl Gaps {
    fn new(scenario: &Scenario) -> Self {
        let is_guest: Vec<bool> = scenario.tenants.iter().map(crate::scenario::Tenant::is_guest).collect();
        let guests = (0..is_guest.len()).filter(|tenant| is_guest[*tenant]).collect();
        Self { guests, is_guest, ..Self::default() }
    }

    fn guests_had_ns(&self, used_ns: &[u64]) -> u64 {
        self.guests.iter().map(|guest| used_ns[*guest]).sum()
    }

    /// Notes that a tenant without work gets work.
    fn work_begins(&mut self, tenant: Tenant, used_ns: &[u64]) {
        if self.is_guest[tenant] {
            return;
        }
        if self.busy == 0 {
            self.harvested_ns += self.guests_had_ns(used_ns) - self.had_ns;
        }
        self.busy += 1;
    }

    /// Notes that all of a tenant's work is done.
    fn work_ends(&mut self, tenant: Tenant, used_ns: &[u64]) {
        if self.is_guest[tenant] {
            return;
        }
        self.busy -= 1;
        if self.busy == 0 {
            self.had_ns = self.guests_had_ns(used_ns);
        }
    }

    /// Sets the harvested time to zero.
    fn begin_anew(&mut self, used_ns: &[u64]) {
        (self.harvested_ns, self.had_ns) = (0, self.guests_had_ns(used_ns));
    }

    /// Returns the GPU time that guests have harvested until now.
    fn harvested_ns(&self, used_ns: &[u64]) -> u64 {
        let now_ns = if self.busy == 0 { self.guests_had_ns(used_ns) - self.had_ns } else { 0 };
        self.harvested_ns + now_ns
    }
}

struct Engine<'a> {
    processes: Vec<Process>,
    device: &'a mut (dyn Device + 'a),
    gate: &'a mut (dyn Gate + 'a),
    witness: Option<&'a mut (dyn Witness + 'a)>,
    moments: BinaryHeap<Reverse<(u64, Tenant)>>,
    /// When programs' threads come to their next launches, ns.
    launches: BinaryHeap<Reverse<(u64, Tenant)>>,
    outcomes: Vec<Outcome>,
    gaps: Gaps,
    warmup_ns: u64,
    standings: Standings,
}

/// Runs `scenario` on `device` behind `gate`, and returns the result.
pub fn run<'a>(
    scenario: &Scenario,
    device: &'a mut (dyn Device + 'a),
    gate: &'a mut (dyn Gate + 'a),
    witness: Option<&'a mut (dyn Witness + 'a)>,
) -> Run {
    let process = |tenant: &crate::scenario::Tenant| Process {
        program: Program::new(tenant, scenario.seed),
        batch: None,
        to_launch: VecDeque::new(),
        come_to: 0,
        in_flight: 0,
        left_ns: tenant.size_ns,
    };
    let mut engine = Engine {
        processes: scenario.tenants.iter().map(process).collect(),
        device,
        gate,
        witness,
        moments: BinaryHeap::new(),
        launches: BinaryHeap::new(),
        outcomes: vec![Outcome::default(); scenario.tenants.len()],
        gaps: Gaps::new(scenario),
        warmup_ns: scenario.warmup_ns,
        standings: Standings::at_first(scenario),
    };
    engine.run(scenario.duration_ns)
}

/// Returns the time of the first entry, ns.
fn first_ns(times: &BinaryHeap<Reverse<(u64, Tenant)>>) -> Option<u64> {
    times.peek().map(|Reverse((at_ns, _))| *at_ns)
}

/// Removes the first entry if its time has come. Returns its tenant.
fn pop_due(times: &mut BinaryHeap<Reverse<(u64, Tenant)>>, now_ns: u64) -> Option<Tenant> {
    first_ns(times).filter(|at_ns| *at_ns <= now_ns)?;
    times.pop().map(|Reverse((_, tenant))| tenant)
}

impl Engine<'_> {
    fn run(&mut self, end_ns: u64) -> Run {
        for (tenant, process) in self.processes.iter_mut().enumerate() {
            self.moments.extend(process.program.begins_ns().map(|at_ns| Reverse((at_ns, tenant))));
        }
        let span_ns = end_ns - self.warmup_ns;
        let mut used_before: Vec<u64> = vec![0; self.processes.len()];
        let mut busy_before_ns = 0;
        let mut samples = 0;
        let mut done = Vec::new();
        let mut retry = Vec::new();
        loop {
            let moment_ns = first_ns(&self.moments).into_iter().chain(first_ns(&self.launches)).min();
            let sample_ns = self.warmup_ns + span_ns * samples / SAMPLES;
            let next = [moment_ns, self.device.next_ns(), self.gate.wake_ns(), Some(sample_ns)];
            let now_ns = next.into_iter().flatten().min().unwrap_or(sample_ns);
            self.device.advance(now_ns, &mut done);
            if let Some(witness) = &mut self.witness {
                witness.look(now_ns, self.device.used_ns());
            }
            if now_ns == sample_ns {
                if samples == 0 {
                    used_before.copy_from_slice(self.device.used_ns());
                    busy_before_ns = self.device.busy_ns();
                    self.gaps.begin_anew(self.device.used_ns());
                }
                let used = self.device.used_ns().iter().zip(&used_before);
                for (tenant, (outcome, (used_ns, before_ns))) in
                    self.outcomes.iter_mut().zip(used).enumerate()
                {
                    outcome.used_ns = used_ns - before_ns;
                    outcome.curve_ns.push(outcome.used_ns);
                    outcome.owed_ppm.extend(self.witness.as_ref().map(|witness| witness.owed_ppm(tenant)));
                }
                samples += 1;
            }
            for (tenant, kernel) in done.drain(..) {
                self.kernel_done(now_ns, tenant, kernel);
            }
            if samples > SAMPLES {
                break;
            }
            while let Some(tenant) = pop_due(&mut self.moments, now_ns) {
                self.act(now_ns, tenant);
            }
            while let Some(tenant) = pop_due(&mut self.launches, now_ns) {
                self.make_available(now_ns, tenant, 1);
                self.launch(now_ns, tenant);
            }
            if self.gate.wake_ns().is_some_and(|wake_ns| wake_ns <= now_ns) {
                self.gate.wake(now_ns, &mut retry);
                if let Some(owed) = self.gate.take_owed() {
                    if let Some(witness) = &mut self.witness {
                        witness.owe(now_ns, &owed);
                    }
                    self.standings.set(now_ns, owed);
                }
                for tenant in retry.drain(..) {
                    self.launch(now_ns, tenant);
                }
            }
        }
        self.close(end_ns);
        Run {
            outcomes: std::mem::take(&mut self.outcomes),
            busy_ns: self.device.busy_ns() - busy_before_ns,
            harvested_ns: self.gaps.harvested_ns(self.device.used_ns()),
            standings: self.standings.clone(),
        }
    }

    fn act(&mut self, now_ns: u64, tenant: Tenant) {
        let (batch, next_ns) = self.processes[tenant].program.act(now_ns);
        self.moments.extend(next_ns.map(|at_ns| Reverse((at_ns, tenant))));
        if let Some(batch) = batch {
            self.begin(now_ns, tenant, batch);
        }
    }

    fn begin(&mut self, now_ns: u64, tenant: Tenant, batch: Batch) {
        self.gaps.work_begins(tenant, self.device.used_ns());
        let process = &mut self.processes[tenant];
        process.to_launch.extend(&batch.kernels);
        let at_once = if batch.launch_ns == 0 { batch.kernels.len() } else { 1 };
        process.batch = Some(batch);
        self.make_available(now_ns, tenant, at_once);
        self.launch(now_ns, tenant);
    }

    /// Lets the program's thread come to the next `kernels` launches, and tells the observer.
    fn make_available(&mut self, now_ns: u64, tenant: Tenant, kernels: usize) {
        self.processes[tenant].come_to += kernels;
        if let Some(witness) = &mut self.witness {
            let next = self.processes[tenant].to_launch.iter().take(kernels);
            witness.available(now_ns, tenant, next.map(|kernel| kernel.length_ns).sum());
        }
    }

    fn launch(&mut self, now_ns: u64, tenant: Tenant) {
        let process = &mut self.processes[tenant];
        let (arrived_ns, due_ns, launch_ns) = process
            .batch
            .as_ref()
            .map_or((now_ns, None, 0), |batch| (batch.arrived_ns, batch.due_ns, batch.launch_ns));
        while process.in_flight < QUEUE_DEPTH
            && process.come_to > 0
            && let Some(kernel) = process.to_launch.front().copied()
            && self.gate.admit(now_ns, &Launch { tenant, length_ns: kernel.length_ns, arrived_ns, due_ns })
        {
            process.to_launch.pop_front();
            process.in_flight += 1;
            process.come_to -= 1;
            if launch_ns > 0 && !process.to_launch.is_empty() {
                self.launches.push(Reverse((now_ns + launch_ns, tenant)));
            }
            self.device.launch(tenant, kernel);
        }
    }

    fn kernel_done(&mut self, now_ns: u64, tenant: Tenant, kernel: Kernel) {
        let process = &mut self.processes[tenant];
        process.in_flight -= 1;
        process.left_ns = process.left_ns.map(|left_ns| left_ns.saturating_sub(kernel.length_ns));
        if now_ns >= self.warmup_ns {
            self.outcomes[tenant].work_ns += kernel.length_ns;
        }
        self.gate.done(now_ns, tenant, kernel.length_ns, process.in_flight == 0);
        if process.in_flight > 0 || !process.to_launch.is_empty() {
            return self.launch(now_ns, tenant);
        }
        self.gate.batch_done(now_ns, tenant);
        let (mut next, mut moment_ns) = process.program.done(now_ns);
        if process.left_ns == Some(0) {
            // The tenant's job is done, so no work follows.
            (next, moment_ns) = (None, None);
            process.program.end();
            self.outcomes[tenant].finished_ns.get_or_insert(now_ns);
        }
        if let Some(batch) = process.batch.take() {
            self.gaps.work_ends(tenant, self.device.used_ns());
            self.answered(now_ns, tenant, &batch);
        }
        self.moments.extend(moment_ns.map(|at_ns| Reverse((at_ns, tenant))));
        match next {
            Some(batch) => self.begin(now_ns, tenant, batch),
            None => {
                self.gate.rests(now_ns, tenant);
                if let Some(witness) = &mut self.witness {
                    witness.rests(now_ns, tenant);
                }
            }
        }
    }

    fn answered(&mut self, now_ns: u64, tenant: Tenant, batch: &Batch) {
        if batch.arrived_ns < self.warmup_ns {
            return;
        }
        let outcome = &mut self.outcomes[tenant];
        outcome.latencies_ns.push(now_ns - batch.arrived_ns);
        if let Some(due_ns) = batch.due_ns {
            outcome.timed += 1;
            outcome.missed += u64::from(now_ns > due_ns);
        }
    }

    /// Counts a request as missed if it has no answer at the end although its time limit has
    /// passed.
    fn close(&mut self, end_ns: u64) {
        for (tenant, process) in self.processes.iter().enumerate() {
            let outcome = &mut self.outcomes[tenant];
            let answering = process.batch.iter().map(|batch| (batch.arrived_ns, batch.due_ns));
            for (arrived_ns, due_ns) in answering.chain(process.program.queued()) {
                if arrived_ns >= self.warmup_ns && due_ns.is_some_and(|due_ns| due_ns < end_ns) {
                    outcome.timed += 1;
                    outcome.missed += 1;
                }
            }
            if let Some(witness) = &mut self.witness {
                witness.rests(end_ns, tenant);
                outcome.lag_ns = witness.lag_ns(tenant);
                outcome.wanted_ns = witness.wanted_ns(tenant);
                outcome.claim_ns = witness.claim_ns(tenant);
            }
        }
    }
}
