//! Tests that a turn of the arbiter's core without orders allocates nothing.

use deepres_abi::meter::Reading;
use deepres_policy::TenantId;
use deepres_policy::arbiter::{
    Actions, Core, Order, Readings, SessionId, SessionReading, SessionSeat, Setup, TenantReading, TenantSeat,
};
use deepres_policy::class::Class;
use deepres_policy::entitlement::Request;
use deepres_policy::lease::Grant;
use deepres_policy::lease::guard::DEFAULT_MAX_HARM_PPM;
use deepres_policy::priority::{Priority, Weights};
use deepres_policy::tuning::QuantumBounds;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;

thread_local! {
    /// Number of allocations of this thread.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: each function passes its arguments on to the system's allocator, and returns its result.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller upholds the contract of this function, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of this function, which is the same.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller upholds the contract of this function, which is the same.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const MS: u64 = 1_000_000;
/// Time from one turn to the next, ns.
const STEP_NS: u64 = MS / 2;

/// A process that works for some steps and then pauses for some.
#[derive(Debug)]
struct Process {
    meter: Reading,
    grant: Grant,
    work: u64,
    pause: u64,
    /// The MPS server of the process.
    mps_server: u64,
}

impl Process {
    /// Advances the process by a step at `now_ns`. The process uses the GPU if it may.
    fn step(&mut self, number: u64, now_ns: u64) {
        let may_launch = match self.grant {
            Grant::Open => true,
            Grant::Leased { expires_ns } => now_ns < expires_ns,
            Grant::Closed | Grant::Paused | Grant::Once => false,
        };
        let wants = number % (self.work + self.pause) < self.work;
        if self.meter.in_flight {
            self.meter.compute_ns += STEP_NS;
            self.meter.longest_ns = STEP_NS;
            self.meter.updated_ns = now_ns;
        }
        self.meter.in_flight = wants && may_launch;
        self.meter.in_flight_ns = if self.meter.in_flight { STEP_NS } else { 0 };
        self.meter.kernel_launches += u64::from(self.meter.in_flight);
        self.meter.waiters = u32::from(wants && !may_launch);
    }
}

/// A GPU with the core of its arbiter.
struct Gpu {
    core: Core,
    readings: Readings,
    actions: Actions,
    processes: BTreeMap<SessionId, Process>,
    asked: Vec<SessionId>,
    /// The part of the SMs that each process reports, parts per million; 0 for all SMs.
    sm_ppm: u32,
    now_ns: u64,
    /// Number of memory allocations in turns without orders.
    allocations: u64,
    turns: usize,
}

impl Gpu {
    fn new() -> Self {
        let setup = Setup {
            heartbeat_limit_ns: 250 * MS,
            quantum: QuantumBounds::default(),
            weights: Weights::default(),
            max_harm_ppm: DEFAULT_MAX_HARM_PPM,
            processors: 2,
            has_peers: false,
        };
        Self {
            core: Core::new(setup, 1),
            readings: Readings::default(),
            actions: Actions::default(),
            processes: BTreeMap::new(),
            asked: Vec::new(),
            sm_ppm: 0,
            now_ns: 1,
            allocations: 0,
            turns: 0,
        }
    }

    /// Takes turns until the core asks for no further turn.
    fn turn(&mut self, orders: Vec<Order>) {
        let mut orders = Some(orders).filter(|orders| !orders.is_empty());
        loop {
            self.read();
            let orders = orders.take();
            let has_orders = orders.is_some();
            let orders = orders.into_iter().flatten();
            let before = ALLOCATIONS.get();
            self.core.turn(self.now_ns, &self.readings, orders, None, &mut self.actions);
            if !has_orders {
                self.allocations += ALLOCATIONS.get() - before;
                self.turns += 1;
            }
            for gate in &self.actions.gates {
                if let Some(process) = self.processes.get_mut(&gate.session) {
                    process.grant = gate.grant;
                }
            }
            self.asked.clone_from(&self.actions.asks);
            if self.actions.lacks_room {
                self.core.make_room();
            }
            if !self.actions.again {
                return;
            }
            self.now_ns += 1;
        }
    }

    fn read(&mut self) {
        self.readings.clear();
        for watched in self.core.sessions() {
            let process = &self.processes[&watched.session];
            if watched.at_rest == Some(&process.meter) {
                continue;
            }
            let first = self.readings.intervals.len();
            if watched.tells_intervals {
                self.readings.intervals.push((self.now_ns - STEP_NS, self.now_ns));
            }
            self.readings.sessions.push(SessionReading {
                session: watched.session,
                is_carried: true,
                meter: process.meter,
                stretched_ns: 0,
                ends: self.now_ns / (20 * STEP_NS),
                sm_ppm: self.sm_ppm,
                mps_server: process.mps_server,
                began_ns: None,
                ended_ns: None,
                intervals: first..self.readings.intervals.len(),
                is_stopped: self.asked.contains(&watched.session).then_some(false),
            });
        }
        let usage = |(tenant, _)| TenantReading { tenant, job_used_ns: 0, memory_ppm: 0 };
        self.readings.tenants.extend(self.core.tenants().map(usage));
    }

    fn enter(&mut self, tenant: TenantId, session: SessionId, class: Class, slo_ns: Option<u64>) {
        let (work, pause) = (3 + session % 5 * 20, 1 + session % 3 * 10);
        let mps_server = 1 + tenant % 2;
        let process = Process { meter: Reading::default(), grant: Grant::Closed, work, pause, mps_server };
        self.processes.insert(session, process);
        let tenant = TenantSeat {
            id: tenant,
            request: Request { class, ..Request::default() },
            priority: Priority::default(),
            slo_ns,
            sm_ppm: None,
            uses_mps: true,
            takes_turns: false,
            is_paused: false,
            is_suspended: false,
        };
        let user = Some(tenant.id % 2);
        let session = SessionSeat { id: session, process: None, user, continues: false };
        self.turn(vec![Order::Enter { tenant, session }]);
    }

    fn run(&mut self, steps: u64) {
        for number in 0..steps {
            self.now_ns += STEP_NS;
            self.processes.values_mut().for_each(|process| process.step(number, self.now_ns));
            self.turn(Vec::new());
        }
    }
}

#[test]
fn a_turn_allocates_nothing_while_tenants_come_want_the_gpu_and_hand_it_off() {
    let mut gpu = Gpu::new();
    for (tenant, class, slo_ns) in [
        (1, Class::Fair, None),
        (2, Class::Fair, Some(20 * MS)),
        (3, Class::Guaranteed, None),
        (4, Class::BestEffort, None),
        (5, Class::BestEffort, None),
    ] {
        gpu.enter(tenant, 10 * tenant, class, slo_ns);
        gpu.run(50);
    }
    // A second session of a tenant.
    gpu.enter(1, 11, Class::Fair, None);
    gpu.run(400);
    for session in [10, 11] {
        gpu.turn(vec![Order::Leave { tenant: 1, session, may_return: false }]);
        gpu.run(100);
    }
    // The arbiter does not run for a second.
    gpu.now_ns += 1_000 * MS;
    gpu.run(200);
    assert!(gpu.turns >= 1_000, "{} turns", gpu.turns);
    assert!(gpu.core.counters().handoffs >= 100, "{:?}", gpu.core.counters());
    assert_eq!(gpu.allocations, 0, "in {} turns", gpu.turns);
}

#[test]
fn a_turn_allocates_nothing_while_owners_of_two_mps_servers_take_turns() {
    let mut gpu = Gpu::new();
    gpu.sm_ppm = 300_000;
    for tenant in 1..=5 {
        gpu.enter(tenant, 10 * tenant, Class::Fair, None);
        gpu.run(50);
    }
    gpu.run(400);
    assert!(gpu.core.scheduler().is_in_space());
    assert_eq!(gpu.allocations, 0, "in {} turns", gpu.turns);
}
