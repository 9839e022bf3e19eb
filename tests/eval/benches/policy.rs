//! Measures the cost of a decision of the policy: `cargo xtask bench policy`.
//!
//! An arbiter decides when a bell rings: the arbiter reads the meters of two tenants, and decides.
//! A review, ten times a second, computes all entitlements.

use std::collections::BTreeMap;
use std::hint::black_box;

use criterion::Criterion;
use deepres_policy::TenantId;
use deepres_policy::class::Class;
use deepres_policy::entitlement::{Request, entitlements};
use deepres_policy::granularity::{Kernel, Search};
use deepres_policy::lease::{Grant, Scheduler, Seen};
use deepres_policy::packing::{LOOK_NS, Packer, Run};
use deepres_policy::tuning::{ASSUMED_HANDOFF_NS, QuantumBounds, Tuning};

/// Number of the host's CPUs, which decides whether waiters spin.
const PROCESSORS: usize = 8;
/// Time from one decision to the next, in which a kernel of a millisecond finishes.
const STEP_NS: u64 = 1_000_000;
const WAITS: Seen = Seen {
    waiting: true,
    in_flight: false,
    used_ns: 0,
    pending_ns: 0,
    longest_ns: STEP_NS,
    sm_ppm: 0,
    ended: false,
};
const RUNS: Seen = Seen { in_flight: true, used_ns: STEP_NS, pending_ns: STEP_NS, ..WAITS };

/// One tenant of this many is a guest.
const GUESTS: TenantId = 8;

/// One GPU that all its tenants want.
struct Gpu {
    scheduler: Scheduler,
    tuning: Tuning,
    tenants: TenantId,
    now_ns: u64,
    next: TenantId,
}

impl Gpu {
    fn of(tenants: TenantId) -> Self {
        let tuning = Tuning::derive(ASSUMED_HANDOFF_NS, QuantumBounds::default(), PROCESSORS);
        let mut scheduler = Scheduler::default();
        for tenant in 0..tenants {
            let class = if tenant % GUESTS == GUESTS - 1 { Class::BestEffort } else { Class::Fair };
            scheduler.enter(tenant, class, 0);
            scheduler.set_standing(tenant, class, 1_000_000 / tenants as u32);
            scheduler.observe(tenant, 0, WAITS);
        }
        let mut gpu = Self { scheduler, tuning, tenants, now_ns: 0, next: 0 };
        // The measurement starts from a steady state.
        (0..1_000).for_each(|_| gpu.decide());
        gpu
    }

    /// The holder has made progress, and another tenant has news.
    fn decide(&mut self) {
        self.now_ns += STEP_NS;
        self.next = (self.next + 1) % self.tenants;
        for tenant in [self.holder(), Some(self.next)].into_iter().flatten() {
            let holds = self.scheduler.grant(tenant) != Grant::Closed;
            self.scheduler.observe(tenant, self.now_ns, if holds { RUNS } else { WAITS });
        }
        black_box(self.scheduler.decide(self.now_ns, &self.tuning));
        black_box(self.scheduler.take_changes());
        black_box(self.scheduler.take_handoffs());
    }

    fn holder(&self) -> Option<TenantId> {
        use deepres_policy::lease::Phase;
        match self.scheduler.phase() {
            Phase::Held(tenant) | Phase::Draining(tenant) => Some(tenant),
            Phase::Free | Phase::Together => None,
        }
    }
}

/// A GPU with an owner that pauses and with guests. In the pauses all guests want the GPU, with
/// kernels of different lengths.
struct Beside {
    gpu: Gpu,
    cycle: u64,
    /// Remaining steps of the owner's work and of the pause after it.
    left: (u64, u64),
}

impl Beside {
    fn of(tenants: TenantId) -> Self {
        let tuning = Tuning::derive(ASSUMED_HANDOFF_NS, QuantumBounds::default(), PROCESSORS);
        let mut scheduler = Scheduler::default();
        for tenant in 0..tenants {
            let class = if tenant == OWNER { Class::Fair } else { Class::BestEffort };
            scheduler.enter(tenant, class, 0);
            scheduler.set_standing(tenant, class, 1_000_000 / tenants as u32);
            scheduler.observe(tenant, 0, Self::of_guest(tenant, WAITS));
        }
        let gpu = Gpu { scheduler, tuning, tenants, now_ns: 0, next: OWNER };
        let mut beside = Self { gpu, cycle: 0, left: (0, 0) };
        (0..10_000).for_each(|_| beside.decide());
        beside
    }

    /// Sets a guest's kernel length. The lengths range from the owner's shortest pause to a length
    /// that fits into no pause.
    fn of_guest(guest: TenantId, seen: Seen) -> Seen {
        Seen { longest_ns: (1 + guest % PAUSES) * STEP_NS, ..seen }
    }

    /// Ends a step of the owner's work or of its pause, and gives news of a guest.
    fn decide(&mut self) {
        if self.left == (0, 0) {
            self.cycle += 1;
            self.left = (WORK_STEPS, 1 + self.cycle * 7 % PAUSES);
        }
        let owner = match self.left {
            (0, _) => Seen::default(),
            _ if self.gpu.scheduler.grant(OWNER) == Grant::Closed => WAITS,
            _ => RUNS,
        };
        match &mut self.left {
            (0, pause) => *pause -= 1,
            (work, _) => *work -= 1,
        }
        let Gpu { scheduler, tuning, tenants, now_ns, next } = &mut self.gpu;
        *now_ns += STEP_NS;
        scheduler.observe(OWNER, *now_ns, owner);
        *next = 1 + *next % (*tenants - 1);
        let guest = if scheduler.grant(*next) == Grant::Closed { WAITS } else { RUNS };
        scheduler.observe(*next, *now_ns, Self::of_guest(*next, guest));
        black_box(scheduler.decide(*now_ns, tuning));
        black_box(scheduler.take_changes());
        black_box(scheduler.take_handoffs());
    }
}

/// The only tenant that is no guest.
const OWNER: TenantId = 0;
/// Steps of the owner's work.
const WORK_STEPS: u64 = 4;
/// Number of different lengths of the owner's pauses.
const PAUSES: u64 = 16;

/// A GPU whose tenants all want parts of its SMs.
struct Packed {
    packer: Packer,
    runs: Vec<Run>,
    now_ns: u64,
}

impl Packed {
    fn of(tenants: usize) -> Self {
        let run = |tenant: usize| Run {
            part_percent: 5 + tenant * 7 % 60,
            length_ns: (5 + tenant as u64 % 50) * STEP_NS,
            left_ns: (5 + tenant as u64 % 50) * STEP_NS,
            due_ns: (tenant % 4 != 3).then_some(0),
            behind_ns: 0.0,
            holds: false,
            accepted: None,
        };
        Self { packer: Packer::default(), runs: (0..tenants).map(run).collect(), now_ns: 0 }
    }

    /// The holders have made progress. Runs that have ended or are late make room for the next
    /// runs.
    fn decide(&mut self) {
        let now_ns = self.now_ns;
        for run in &mut self.runs {
            if run.holds {
                run.left_ns = run.left_ns.saturating_sub(LOOK_NS);
            }
            if run.left_ns == 0 || run.due_ns.is_some_and(|due_ns| due_ns <= now_ns) {
                run.left_ns = run.length_ns;
                run.accepted = None;
                run.due_ns = run.due_ns.map(|_| now_ns + 8 * run.length_ns);
            }
            run.behind_ns += if run.holds { -(LOOK_NS as f64) } else { LOOK_NS as f64 / 8.0 };
            run.behind_ns = run.behind_ns.clamp(-1e8, 1e8);
        }
        let chosen = black_box(self.packer.choose(now_ns, ASSUMED_HANDOFF_NS, false, &self.runs));
        self.runs.iter_mut().for_each(|run| run.holds = false);
        for &run in chosen {
            self.runs[run].holds = true;
        }
        for (position, run) in self.runs.iter_mut().enumerate() {
            run.accepted = Some(self.packer.accepts(position));
        }
        self.now_ns += LOOK_NS;
    }
}

fn requests(tenants: TenantId) -> BTreeMap<TenantId, Request> {
    let request = |tenant: TenantId| Request {
        class: if tenant % GUESTS == GUESTS - 1 { Class::BestEffort } else { Class::Fair },
        asked_ppm: tenant.is_multiple_of(3).then_some(10_000),
        priority_ppm: 100_000 + (tenant % 7 * 100_000) as u32,
        ..Request::default()
    };
    (0..tenants).map(|tenant| (tenant, request(tenant))).collect()
}

fn policy(criterion: &mut Criterion) {
    let mut sixteen = Gpu::of(16);
    criterion.bench_function("decision-16-tenants-1-gpu", |bench| bench.iter(|| sixteen.decide()));
    let mut spread: Vec<Gpu> = (0..8).map(|_| Gpu::of(125)).collect();
    criterion.bench_function("decisions-1000-tenants-on-8-gpus", |bench| {
        bench.iter(|| spread.iter_mut().for_each(Gpu::decide));
    });
    let mut crowded: Vec<Gpu> = (0..8).map(|_| Gpu::of(1_000)).collect();
    criterion.bench_function("decisions-1000-tenants-on-each-of-8-gpus", |bench| {
        bench.iter(|| crowded.iter_mut().for_each(Gpu::decide));
    });
    let mut sixteen = Beside::of(16);
    criterion.bench_function("decision-15-guests-beside-an-owner", |bench| bench.iter(|| sixteen.decide()));
    let mut spread: Vec<Beside> = (0..8).map(|_| Beside::of(125)).collect();
    criterion.bench_function("decisions-1000-tenants-on-8-gpus-all-but-8-of-them-guests", |bench| {
        bench.iter(|| spread.iter_mut().for_each(Beside::decide));
    });
    let mut sixteen = Packed::of(16);
    criterion.bench_function("packing-decision-16-tenants-1-gpu", |bench| bench.iter(|| sixteen.decide()));
    let mut spread: Vec<Packed> = (0..8).map(|_| Packed::of(125)).collect();
    criterion.bench_function("packing-decisions-1000-tenants-on-8-gpus", |bench| {
        bench.iter(|| spread.iter_mut().for_each(Packed::decide));
    });
    let sixteen = requests(16);
    criterion.bench_function("review-16-tenants", |bench| bench.iter(|| entitlements(black_box(&sixteen))));
    let thousand = requests(1_000);
    criterion
        .bench_function("review-1000-tenants", |bench| bench.iter(|| entitlements(black_box(&thousand))));
}

/// Searches a plan. The search takes so long that few samples are enough.
fn plan(criterion: Criterion) {
    /// The fewest samples that criterion takes.
    const SAMPLES: usize = 10;
    let mut criterion = criterion.sample_size(SAMPLES);
    // Narrow and wide kernels of many lengths, in another order in each tenant.
    let kernel = |at: usize| Kernel {
        key: 0,
        duration_ns: 5_000 + at as u64 * 7_919 % 90_000,
        width_percent: 5.0 + (at * 37 % 96) as f64,
        stream: 0,
        pause_ns: 0,
        joins: false,
    };
    let tenants: [Vec<Kernel>; 3] = [0, 7, 31].map(|first| (first..first + 500).map(kernel).collect());
    let tenants = tenants.each_ref().map(Vec::as_slice);
    criterion.bench_function("plan-3-tenants-of-500-kernels", |bench| {
        bench.iter(|| Search::default().plan(black_box(&tenants)));
    });
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    policy(&mut criterion);
    plan(Criterion::default().configure_from_args());
    criterion.final_summary();
}
