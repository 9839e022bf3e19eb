//! The daemon's arbiter as a policy of the packing evaluation.
//!
//! [`crate::policy::deepres`] has the arbiter ([`deepres_policy::arbiter`]) with the gates and the
//! meters of the interposer. Here each instance of a model is a tenant of its own, under MPS, with
//! a part of the SMs (`--sm`) and an SLO (`--slo`). The parts and batches are the operating points
//! with which the policy `deepres` begins ([`Deepres::points`]). They never change, because no
//! running process gets another part.
//!
//! A run is a sequence of equal kernels. Its program launches the kernels as far as the gate and
//! the window allow. The arbiter takes no kernel off the GPU. So a run has a place exactly while
//! some of its kernels are in flight.
//!
//! The arbiter knows only what the daemon would know: gates, meters, parts and SLOs. The arbiter
//! does not know when a run is due, how long a run takes, or how much of a run is left. The meters
//! know the lengths of kernels, as the interposer does after a few launches. A bell takes effect
//! after a part of the scenario's hand-off, and so does an open gate.

use std::collections::VecDeque;
use std::iter::repeat_n;
use std::mem;

use deepres_abi::PPM;
use deepres_abi::quantity::MIN_SHARE_PPM;
use deepres_policy::entitlement::Request;
use deepres_policy::packing::points::Point;
use deepres_policy::priority::Priority;

use super::curve::WHOLE;
use super::policy::{Deepres, KERNEL_MS, MS};
use super::scenario::{Arrivals, Scenario, Tenant};
use super::sim::{self, Candidate, Place, Policy};
use crate::gate::{Gate as _, Launch};
use crate::policy::deepres::{Deepres as Arbiter, Seat, switch_ns};
use crate::scenario::{Gpu, Operator};

/// The longest kernel of a run, ns. The other policies decide as often.
const KERNEL_NS: u64 = (KERNEL_MS * MS) as u64;
/// The time for which the scenario's load runs before the evaluation begins, ms. In this time the
/// arbiter learns which programs use the GPU, and their bursts.
const SETTLING_MS: f64 = 1_000.0;

fn ns(ms: f64) -> u64 {
    (ms * MS).round() as u64
}

/// Returns the wishes of each instance of a tenant. With `asks_for_share`, each instance asks for
/// its part of the area that the tenant's requests need at this point.
fn seat(tenant: &Tenant, point: &Point, asks_for_share: bool) -> Seat {
    let busy = tenant.rate_hz() * point.time_ns / 1e9 / f64::from(point.batch.max(1));
    let area = busy * point.part_percent as f64 / WHOLE as f64 / tenant.instances as f64;
    let share_ppm = ((area * f64::from(PPM)) as u32).clamp(MIN_SHARE_PPM, PPM);
    let has_slo = !matches!(tenant.arrivals, Arrivals::Closed);
    Seat {
        request: Request { asked_ppm: asks_for_share.then_some(share_ppm), ..Request::default() },
        priority: Priority::default(),
        slo_ns: has_slo.then(|| ns(tenant.slo_ms)),
        sm_ppm: (point.part_percent * PPM as usize / WHOLE) as u32,
    }
}

/// The program of an instance.
#[derive(Debug, Default)]
struct Program {
    /// The run that goes on, waits or could begin.
    run: Option<Candidate>,
    /// The number of kernels of the run that the program has launched.
    launched: u64,
    /// The lengths of the kernels in flight, ns. The first one is on the GPU.
    in_flight: VecDeque<u64>,
    /// The time for which the run has had a place, ns.
    had_ns: u64,
    /// The `had_ns` at which the first kernel in flight began, ns.
    began_ns: u64,
}

/// The daemon's arbiter, with a program for each instance of a model.
pub struct LeaseCore<'a> {
    tenants: &'a [Tenant],
    points: Vec<Point>,
    /// For each tenant, the position of its first instance among the programs.
    first: Vec<usize>,
    programs: Vec<Program>,
    arbiter: Arbiter,
    /// Working memory: the programs that try to launch again.
    retries: Vec<usize>,
    /// The cost of a place that no wait for the arbiter contains, ms.
    switch_ms: f64,
    /// The time in the scenario from which on runs have their later times, ms.
    later_ms: f64,
    /// The present time in the scenario, ms.
    now_ms: f64,
    /// The arbiter's time when the scenario began, ns.
    began_ns: u64,
    /// The arbiter's present time, ns.
    now_ns: u64,
    /// The arbiter's time at which something happens next, ns.
    next_ns: u64,
}

impl<'a> LeaseCore<'a> {
    /// Returns the arbiter as it is after the scenario's load has run for a while. With
    /// `asks_for_shares`, each tenant asks for the share that its requests need (`--share`).
    /// Otherwise no tenant asks for a share.
    pub fn settled(scenario: &'a Scenario, asks_for_shares: bool) -> Self {
        let mut core = Self::new(scenario, asks_for_shares);
        let tenants = scenario.tenants.iter().map(|tenant| Tenant { later: None, ..tenant.clone() });
        let settling = Scenario { duration_ms: SETTLING_MS, tenants: tenants.collect(), ..scenario.clone() };
        sim::run(&settling, &mut core);
        core.begin_anew(SETTLING_MS);
        core.later_ms = scenario.duration_ms / 2.0;
        core
    }

    fn new(scenario: &'a Scenario, asks_for_shares: bool) -> Self {
        let points = Deepres::new(scenario).points();
        let (mut first, mut seats) = (Vec::new(), Vec::new());
        for (tenant, point) in scenario.tenants.iter().zip(&points) {
            first.push(seats.len());
            seats.extend(repeat_n(seat(tenant, point, asks_for_shares), tenant.instances));
        }
        let gpu = Gpu { handoff_ns: ns(scenario.handoff_ms), ..Gpu::default() };
        Self {
            tenants: &scenario.tenants,
            points,
            first,
            programs: seats.iter().map(|_| Program::default()).collect(),
            arbiter: Arbiter::of(&Operator::default(), &gpu, seats),
            retries: Vec::new(),
            switch_ms: switch_ns(&gpu) as f64 / MS,
            later_ms: f64::INFINITY,
            now_ms: 0.0,
            began_ns: 0,
            now_ns: 0,
            next_ns: 0,
        }
    }

    /// Begins a scenario anew after `passed_ms` of another one. All runs are over.
    fn begin_anew(&mut self, passed_ms: f64) {
        self.began_ns += ns(passed_ms);
        self.now_ns = self.began_ns;
        for program in 0..self.programs.len() {
            self.go_on(program, None);
        }
    }

    /// Returns the position of the program that a run belongs to.
    fn program(&self, run: &Candidate) -> usize {
        self.first[run.tenant] + run.instance
    }

    /// Returns the part of the SMs of a run, percent.
    fn part_of(&self, run: &Candidate) -> usize {
        run.began_at.unwrap_or(self.points[run.tenant].part_percent)
    }

    /// Takes the news of a program: the run that goes on, waits or could begin now. Kernels whose
    /// time is over have ended, and so have all kernels of a run that has ended. Then the program
    /// can launch.
    fn go_on(&mut self, index: usize, run: Option<Candidate>) {
        let program = &mut self.programs[index];
        let begun = run.filter(|run| run.began_at.is_some());
        let had_ns = begun.map(|run| ns(run.had_ms));
        let is_new = program.run.is_none();
        let mut has_ended = false;
        while let Some(length_ns) = program.in_flight.front().copied()
            && had_ns.is_none_or(|had_ns| had_ns >= program.began_ns + length_ns)
        {
            program.in_flight.pop_front();
            program.began_ns += length_ns;
            self.arbiter.done(self.now_ns, index, length_ns, program.in_flight.is_empty());
            has_ended = true;
        }
        program.run = run;
        program.had_ns = had_ns.unwrap_or(0);
        if begun.is_none() {
            (program.launched, program.began_ns) = (0, 0);
        }
        if run.is_none() {
            self.arbiter.give_up(index);
        } else if is_new || has_ended {
            self.launch(index);
        }
    }

    /// Lets a program launch kernels of its run, as many as the gate admits.
    fn launch(&mut self, index: usize) {
        let Some(run) = self.programs[index].run else { return };
        let tenant = &self.tenants[run.tenant];
        let curve = tenant.later.as_ref().filter(|_| self.now_ms >= self.later_ms).unwrap_or(&tenant.curve);
        let run_ns = ns(curve.time_ms(self.part_of(&run), run.batch));
        let kernels = run_ns.div_ceil(KERNEL_NS).max(1);
        // The simulation ends the run. The last kernel must not seem to end before that.
        let length_ns = run_ns / kernels + 1;
        let program = &mut self.programs[index];
        // Beside other runs, a run can take longer. It then has more kernels, one after the other.
        while program.launched < kernels || program.in_flight.is_empty() {
            let launch = Launch { tenant: index, length_ns, arrived_ns: self.now_ns, due_ns: None };
            if !self.arbiter.admit(self.now_ns, &launch) {
                break;
            }
            program.launched += 1;
            program.in_flight.push_back(length_ns);
        }
    }

    /// Wakes the arbiter if it is time to.
    fn wake(&mut self) {
        if self.arbiter.wake_ns().is_none_or(|wake_ns| wake_ns > self.now_ns) {
            return;
        }
        let mut retries = mem::take(&mut self.retries);
        self.arbiter.wake(self.now_ns, &mut retries);
        for program in retries.drain(..) {
            self.launch(program);
        }
        self.retries = retries;
    }

    /// Returns the arbiter's time at which a kernel ends or the arbiter wakes, ns.
    fn next_ns(&self) -> u64 {
        let end_ns = |program: &Program| {
            let length_ns = program.in_flight.front()?;
            Some(self.now_ns + (program.began_ns + length_ns).saturating_sub(program.had_ns))
        };
        let ends = self.programs.iter().filter_map(end_ns);
        ends.chain(self.arbiter.wake_ns()).min().unwrap_or(u64::MAX)
    }
}

impl Policy for LeaseCore<'_> {
    fn choose(&mut self, now_ms: f64, candidates: &[Candidate], places: &mut Vec<Place>) {
        (self.now_ms, self.now_ns) = (now_ms, self.began_ns + ns(now_ms));
        let mut runs = vec![None; self.programs.len()];
        for run in candidates {
            runs[self.program(run)] = Some(*run);
        }
        for (program, run) in runs.into_iter().enumerate() {
            self.go_on(program, run);
        }
        self.wake();
        for (candidate, run) in candidates.iter().enumerate() {
            if !self.programs[self.program(run)].in_flight.is_empty() {
                places.push(Place { candidate, part: self.part_of(run) });
            }
        }
        self.next_ns = self.next_ns();
    }

    fn part(&self, tenant: usize) -> usize {
        self.points[tenant].part_percent
    }

    fn batch(&self, tenant: usize) -> u32 {
        self.points[tenant].batch
    }

    fn look_ms(&self) -> Option<f64> {
        // If something is due already, the least time passes.
        Some(self.next_ns.saturating_sub(self.now_ns).max(1) as f64 / MS)
    }

    fn handoff_ms(&self) -> f64 {
        self.switch_ms
    }
}
