//! A model of a GPU and of tenants in virtual time, for tests of the lease policy. The tenants wait
//! at the gate as the interposer does.

use deepres_abi::PPM;
use deepres_abi::meter::Reading;
use deepres_policy::TenantId;
use deepres_policy::arbiter::account::Account;
use deepres_policy::class::Class;
use deepres_policy::lease::{Grant, Phase, Scheduler, Seen};
use deepres_policy::tuning::{ASSUMED_HANDOFF_NS, QuantumBounds, Tuning};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// The time of a wake-up: of the arbiter by a bell, of a thread by a gate, and of the meter by a
/// completion.
const WAKE_NS: u64 = 40_000;
/// The time from one launch to the next.
const LAUNCH_NS: u64 = 5_000;

pub const MS: u64 = 1_000_000;

/// A tenant's program: kernels whose lengths repeat in a cycle. The program can have pauses.
#[derive(Debug, Clone)]
pub struct Program {
    pub class: Class,
    pub weight_ppm: u32,
    pub kernels_ns: Vec<u64>,
    /// The most kernels that the program has launched and that have not finished. The number is the
    /// depth of the driver's queue.
    pub depth: usize,
    /// After this many kernels the program waits for them and pauses for this time, ns.
    pub pause_after: Option<(usize, u64)>,
    /// The time between the beginnings of two bursts, ns, if this is longer than burst and pause. A
    /// burst that has not ended within this time is late.
    pub every_ns: u64,
    /// The part of the SMs that the program has for itself, parts per million. Programs on all SMs
    /// share them.
    pub part_ppm: u32,
    /// The tenant's SLO, ns.
    pub slo_ns: Option<u64>,
    /// The beginning and the end of the time in which the program is active, ns.
    pub active_ns: (u64, u64),
    /// The function from true readings to the readings of the tenant's meter.
    pub says: Says,
}

/// A tenant's meter at a decision. The arguments are the last reading of the meter, the true
/// reading, and the time, ns.
pub type Says = fn(&Reading, Reading, u64) -> Reading;

/// An honest meter: returns the true reading.
pub fn truth(_: &Reading, truth: Reading, _: u64) -> Reading {
    truth
}

impl Program {
    /// Returns a program that launches kernels of `kernels_ns` as fast as it may.
    pub fn backlogged(weight_ppm: u32, kernels_ns: &[u64]) -> Self {
        Self {
            class: Class::Fair,
            weight_ppm,
            kernels_ns: kernels_ns.to_vec(),
            depth: 64,
            pause_after: None,
            every_ns: 0,
            part_ppm: PPM,
            slo_ns: None,
            active_ns: (0, u64::MAX),
            says: truth,
        }
    }
}

#[derive(Debug)]
struct Tenant {
    program: Program,
    launched: usize,
    in_flight: VecDeque<u64>,
    waiting: bool,
    used_ns: u64,
    longest_ns: u64,
    last_completion_ns: u64,
    account: Account,
    said: Reading,
    longest_wait_ns: u64,
    waiting_since_ns: Option<u64>,
    /// When the work in flight on the tenant's own SMs ends, ns.
    free_ns: u64,
    late: usize,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Try(TenantId),
    Complete(TenantId, u64),
    Decide,
}

/// The model of a GPU with its tenants.
pub struct Model {
    scheduler: Scheduler,
    tuning: Tuning,
    tenants: BTreeMap<TenantId, Tenant>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    gpu_free_ns: u64,
    now_ns: u64,
    /// The most tenants at one time whose gates were not closed.
    pub most_holders: usize,
    /// The greatest sum of the parts of tenants, while owners used the GPU together, parts per
    /// million. The sum counts the tenants whose gates were not closed or whose work was in flight.
    pub most_parts_ppm: u32,
}

impl Model {
    pub fn new(programs: &[Program]) -> Self {
        let mut model = Self {
            scheduler: Scheduler::default(),
            tuning: Tuning::derive(ASSUMED_HANDOFF_NS, QuantumBounds::default(), 2),
            tenants: BTreeMap::new(),
            events: BinaryHeap::new(),
            sequence: 0,
            gpu_free_ns: 0,
            now_ns: 0,
            most_holders: 0,
            most_parts_ppm: 0,
        };
        for (id, program) in (1..).zip(programs) {
            model.scheduler.enter(id, program.class, 0);
            model.scheduler.set_standing(id, program.class, program.weight_ppm);
            model.scheduler.set_slo(id, program.slo_ns);
            model.at(program.active_ns.0 + id, Event::Try(id));
            let tenant = Tenant {
                program: program.clone(),
                launched: 0,
                in_flight: VecDeque::new(),
                waiting: false,
                used_ns: 0,
                longest_ns: 0,
                last_completion_ns: 0,
                account: Account::new(0),
                said: Reading::default(),
                longest_wait_ns: 0,
                waiting_since_ns: None,
                free_ns: 0,
                late: 0,
            };
            model.tenants.insert(id, tenant);
        }
        model.at(0, Event::Decide);
        model
    }

    fn at(&mut self, when_ns: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((when_ns, self.sequence, event)));
    }

    /// Advances the time to `until_ns`.
    pub fn run_until(&mut self, until_ns: u64) {
        while let Some(Reverse((now_ns, _, _))) = self.events.peek()
            && *now_ns <= until_ns
        {
            let Some(Reverse((now_ns, _, event))) = self.events.pop() else { return };
            self.now_ns = now_ns;
            match event {
                Event::Try(id) => self.try_launch(id, now_ns),
                Event::Complete(id, length_ns) => self.complete(id, length_ns, now_ns),
                Event::Decide => self.decide(now_ns),
            }
        }
    }

    fn ring(&mut self, now_ns: u64) {
        self.at(now_ns + WAKE_NS, Event::Decide);
    }

    fn try_launch(&mut self, id: TenantId, now_ns: u64) {
        let grant = self.scheduler.grant(id);
        let tenant = self.tenants.get_mut(&id).unwrap();
        let (from_ns, to_ns) = tenant.program.active_ns;
        // A thread that waits at the gate still launches its kernel.
        let is_over = now_ns >= to_ns && !tenant.waiting;
        if now_ns < from_ns || is_over || tenant.in_flight.len() >= tenant.program.depth {
            tenant.waiting = false;
            return;
        }
        let length_ns = tenant.program.kernels_ns[tenant.launched % tenant.program.kernels_ns.len()];
        let queued_ns: u64 = tenant.in_flight.iter().sum();
        let (may_go, rings) = match grant {
            Grant::Open => (true, false),
            // Only gangs get the grant `Once`, and the model has no gangs.
            Grant::Closed | Grant::Once => (false, true),
            Grant::Paused => (false, false),
            Grant::Leased { expires_ns } if now_ns >= expires_ns => (false, true),
            Grant::Leased { .. } => {
                let window_ns = self.scheduler.window_ns(id, 1, tenant.longest_ns, &self.tuning);
                (queued_ns == 0 || queued_ns + length_ns <= window_ns, false)
            }
        };
        if !may_go {
            let was_waiting = std::mem::replace(&mut tenant.waiting, true);
            tenant.waiting_since_ns.get_or_insert(now_ns);
            if rings && !was_waiting {
                self.ring(now_ns);
            }
            return;
        }
        if let Some(since_ns) = tenant.waiting_since_ns.take() {
            tenant.longest_wait_ns = tenant.longest_wait_ns.max(now_ns - since_ns);
        }
        tenant.waiting = false;
        tenant.launched += 1;
        tenant.in_flight.push_back(length_ns);
        let pauses =
            tenant.program.pause_after.is_some_and(|(kernels, _)| tenant.launched.is_multiple_of(kernels));
        let free_ns = if tenant.program.part_ppm < PPM { &mut tenant.free_ns } else { &mut self.gpu_free_ns };
        *free_ns = (*free_ns).max(now_ns) + length_ns;
        let ends_ns = *free_ns;
        self.at(ends_ns + WAKE_NS, Event::Complete(id, length_ns));
        if !pauses {
            self.at(now_ns + LAUNCH_NS, Event::Try(id));
        }
    }

    fn complete(&mut self, id: TenantId, length_ns: u64, now_ns: u64) {
        let grant = self.scheduler.grant(id);
        let tenant = self.tenants.get_mut(&id).unwrap();
        tenant.in_flight.pop_front();
        tenant.used_ns += length_ns;
        tenant.longest_ns = tenant.longest_ns.max(length_ns);
        tenant.last_completion_ns = now_ns;
        let is_idle = tenant.in_flight.is_empty();
        let at_pause = tenant
            .program
            .pause_after
            .filter(|(kernels, _)| is_idle && tenant.launched.is_multiple_of(*kernels))
            .map(|(_, pause_ns)| pause_ns);
        let mid_burst =
            tenant.program.pause_after.is_none_or(|(kernels, _)| !tenant.launched.is_multiple_of(kernels));
        if let Some(pause_ns) = at_pause {
            let bursts = tenant.program.pause_after.map_or(0, |(kernels, _)| tenant.launched / kernels);
            let next_ns = tenant.program.active_ns.0 + bursts as u64 * tenant.program.every_ns;
            tenant.late += usize::from(tenant.program.every_ns > 0 && now_ns - WAKE_NS > next_ns);
            self.at(next_ns.max(now_ns + pause_ns), Event::Try(id));
        } else if mid_burst {
            self.at(now_ns, Event::Try(id));
        }
        if is_idle && grant != Grant::Open {
            self.ring(now_ns);
        }
    }

    fn decide(&mut self, now_ns: u64) {
        for (id, tenant) in &mut self.tenants {
            let truth = Reading {
                waiters: u32::from(tenant.waiting),
                in_flight: !tenant.in_flight.is_empty(),
                compute_ns: tenant.used_ns,
                in_flight_ns: tenant.in_flight.iter().sum(),
                longest_ns: tenant.longest_ns,
                ..Reading::default()
            };
            let said = (tenant.program.says)(&tenant.said, truth, now_ns);
            let before = std::mem::replace(&mut tenant.said, said);
            let seen = tenant.account.look(now_ns, false, std::iter::once((before, said)));
            self.scheduler.observe(*id, now_ns, Seen { sm_ppm: tenant.program.part_ppm, ..seen });
        }
        let wake_ns = self.scheduler.decide(now_ns, &self.tuning);
        let changes: Vec<_> = self.scheduler.take_changes().collect();
        for change in changes {
            if self.tenants[&change.tenant].waiting {
                self.at(now_ns + WAKE_NS, Event::Try(change.tenant));
            }
        }
        let may_launch = |id: &&TenantId| self.scheduler.grant(**id) != Grant::Closed;
        if self.scheduler.phase() == Phase::Together {
            let occupies =
                |(id, tenant): &(&TenantId, &Tenant)| may_launch(id) || !tenant.in_flight.is_empty();
            let parts = self.tenants.iter().filter(occupies).map(|(_, tenant)| tenant.program.part_ppm);
            self.most_parts_ppm = self.most_parts_ppm.max(parts.sum());
        } else {
            self.most_holders = self.most_holders.max(self.tenants.keys().filter(may_launch).count());
        }
        // The arbiter's own timer, and its tick.
        self.at(wake_ns.unwrap_or(u64::MAX).min(now_ns + 50 * MS).max(now_ns + 1), Event::Decide);
        // Earlier timers are out of date, and their number would grow.
        self.prune(now_ns);
    }

    fn prune(&mut self, now_ns: u64) {
        let next = self
            .events
            .iter()
            .filter(|Reverse((_, _, event))| *event == Event::Decide)
            .map(|Reverse((at, ..))| *at)
            .min();
        self.events.retain(|Reverse((at, _, event))| {
            *event != Event::Decide || *at <= now_ns + WAKE_NS || Some(*at) == next
        });
    }

    /// Returns the GPU time that each tenant had, ns.
    pub fn used_ns(&self) -> Vec<u64> {
        self.tenants.values().map(|tenant| tenant.used_ns).collect()
    }

    /// Returns the number of bursts of each tenant that were late.
    pub fn late(&self) -> Vec<usize> {
        self.tenants.values().map(|tenant| tenant.late).collect()
    }

    /// Returns the longest wait of each tenant at the gate so far, ns.
    pub fn longest_waits_ns(&self) -> Vec<u64> {
        let yet_ns = |tenant: &Tenant| tenant.waiting_since_ns.map_or(0, |since_ns| self.now_ns - since_ns);
        self.tenants.values().map(|tenant| tenant.longest_wait_ns.max(yet_ns(tenant))).collect()
    }

    /// Returns the length of a lease while others wait, ns.
    pub fn quantum_ns(&self) -> u64 {
        self.tuning.quantum_ns
    }
}
