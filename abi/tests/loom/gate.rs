//! The gate between a daemon and the threads of two tenants.
//!
//! The daemon here is a small model with the rules of the arbiter. The modelled arbiter reads the
//! meters, sets gates, and reads again until nothing changes. Then it sleeps on one bell. Only a
//! wake-up ends a sleep. So a lost wake-up is a deadlock, which loom reports.

use deepres_abi::gate::{self, ControllerGone, EXPIRED_NAP_NS, OnlyLaunch, Process};
use deepres_abi::grant::{GateState, GrantSlot, LeaseTerms, ONE_LAUNCH};
use deepres_abi::meter::MeterSlot;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use loom::thread;

use super::{Sleepers, beside};

const TENANTS: usize = 2;
/// A lease that does not expire.
const TERMS: LeaseTerms = LeaseTerms { epoch: 0, expires_ns: u64::MAX, window_ns: u64::MAX, spin_ns: 0 };

struct Tenant {
    slot: GrantSlot,
    meter: MeterSlot,
    only_launch: OnlyLaunch,
    futex: Sleepers,
}

struct World {
    tenants: [Tenant; TENANTS],
    bell: Sleepers,
    /// The state of the model: the number of tenants with work on the GPU and of finished tenants,
    /// the time, and the last heartbeat. All accesses are relaxed, so that they order nothing else.
    /// The words are loom's atomics, so that loom tries every order of the steps that depend on
    /// them.
    running: AtomicUsize,
    done: AtomicUsize,
    now_ns: AtomicU64,
    beat_ns: AtomicU64,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            tenants: std::array::from_fn(|_| Tenant {
                slot: GrantSlot::default(),
                meter: MeterSlot::default(),
                only_launch: OnlyLaunch::default(),
                futex: Sleepers::default(),
            }),
            bell: Sleepers::default(),
            running: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            now_ns: AtomicU64::new(0),
            beat_ns: AtomicU64::new(0),
        })
    }

    fn set_gate(&self, tenant: usize, state: GateState, terms: LeaseTerms) {
        let Tenant { slot, meter, futex, .. } = &self.tenants[tenant];
        slot.set_gate(state, terms);
        // As the arbiter does, the model wakes nobody if no thread waits.
        if meter.has_waiters() {
            futex.wake();
        }
    }

    /// Starts a tenant's work on the GPU. Panics if another tenant has work there.
    fn start_work(&self) {
        assert_eq!(self.running.fetch_add(1, Relaxed), 0, "two tenants have work on the GPU at once");
    }

    fn end_work(&self) {
        self.running.fetch_sub(1, Relaxed);
    }

    /// Does the meter thread's part, after the thread has seen all work complete.
    fn settle(&self, tenant: usize) {
        let Tenant { slot, meter, .. } = &self.tenants[tenant];
        let seen = meter.in_flight().expect("something was launched");
        if !meter.is_launching() && meter.settle(seen) && slot.gate().state != GateState::Open {
            self.bell.ring();
        }
    }

    /// Makes one launch and ends its work, as the interposer does.
    fn launch(&self, tenant: usize) {
        let Tenant { slot, meter, .. } = &self.tenants[tenant];
        let mut process = Thread { world: self, tenant };
        let (_, launching) = match gate::pass(slot, meter, &process, 1) {
            Ok(passed) => passed,
            Err(_) => gate::wait(slot, meter, &mut process, 1).expect("the controller lives"),
        };
        meter.set_in_flight();
        drop(launching);
        self.start_work();
        self.end_work();
        self.settle(tenant);
    }

    /// Ends a tenant's part: the process stays, but makes no more launches, and does not tell the
    /// daemon so. After both tenants have finished, rings the bell to stop the daemon.
    fn finish(&self) {
        if self.done.fetch_add(1, Relaxed) + 1 == TENANTS {
            self.bell.ring();
        }
    }
}

/// A thread of a tenant.
struct Thread<'w> {
    world: &'w World,
    tenant: usize,
}

impl Process for Thread<'_> {
    fn only_launch(&self) -> &OnlyLaunch {
        &self.world.tenants[self.tenant].only_launch
    }

    fn now_ns(&self) -> u64 {
        self.world.now_ns.load(Relaxed)
    }

    fn queued_ns(&self) -> u64 {
        0
    }

    fn is_controller_gone(&self, now_ns: u64) -> bool {
        /// The heartbeat limit.
        const LIMIT_NS: u64 = 100;
        now_ns.saturating_sub(self.world.beat_ns.load(Relaxed)) > LIMIT_NS
    }

    fn ring(&self) {
        self.world.bell.ring();
    }

    fn sleep(&self, slot: &GrantSlot, word: u32, limit_ns: u64) {
        if limit_ns == EXPIRED_NAP_NS {
            // A renewal does not change the gate word. Only this sleep is short by design.
            return thread::yield_now();
        }
        // While the daemon lives, this sleep has no time limit, because no thread should need one.
        // After the daemon is gone, time ends the sleep.
        let futex = &self.world.tenants[self.tenant].futex;
        futex.wait_while(|| slot.gate_word() == word && !self.is_controller_gone(self.now_ns()));
    }

    fn is_stuck(&mut self, _: u64, _: impl Fn(&Self) -> bool) -> bool {
        unreachable!("the window is never full here")
    }
}

/// The rule by which the daemon hands off the GPU.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Habit {
    /// The daemon gives a waiting tenant the GPU at once.
    Preempt,
    /// The holder keeps the GPU as long as it has work.
    AwaitIdle,
}

/// Gives and withdraws leases until every tenant is done.
fn control(world: &World, mut holder: Option<usize>, habit: Habit) {
    let mut draining = false;
    // The daemon preempts only once. Otherwise it could preempt for ever two tenants of which
    // neither gets to launch.
    let mut preempts = habit == Habit::Preempt;
    let mut states = world.tenants.each_ref().map(|tenant| tenant.slot.gate().state);
    loop {
        loop {
            let seen = world.tenants.each_ref().map(|tenant| tenant.meter.read());
            let waiting = (0..TENANTS).find(|tenant| Some(*tenant) != holder && seen[*tenant].wants());
            let mut set = |tenant: usize, state| {
                let changes = states[tenant] != state;
                if changes {
                    states[tenant] = state;
                    world.set_gate(tenant, state, TERMS);
                }
                changes
            };
            let changed = match (holder, waiting) {
                (None, None) => false,
                (None, Some(next)) => {
                    holder = Some(next);
                    set(next, GateState::Leased)
                }
                (Some(held), _) if draining => {
                    let drained = !seen[held].in_flight;
                    if drained {
                        (draining, holder) = (false, None);
                    }
                    drained
                }
                (Some(_), None) => false,
                (Some(held), Some(_)) => {
                    let yields = std::mem::take(&mut preempts) || !seen[held].wants();
                    draining = yields;
                    // While the holder keeps the GPU, its gate is leased, so that it rings when it
                    // is done.
                    set(held, if yields { GateState::Closed } else { GateState::Leased })
                }
            };
            if !changed {
                break;
            }
        }
        if world.done.load(Relaxed) == TENANTS {
            return;
        }
        world.bell.heard();
    }
}

/// Lets both tenants launch once, under a daemon with this habit. At the beginning, tenant 0 has
/// the GPU, and its gate is in `state`.
fn two_tenants(state: GateState, habit: Habit) {
    let mut model = loom::model::Builder::new();
    // The bound counts switches away from a thread that could run on. The bound does not count
    // switches at waits.
    model.preemption_bound = Some(2);
    // A meter has many words, and the daemon reads all of them.
    model.max_branches = 20_000;
    model.check(move || {
        let world = World::new();
        world.set_gate(0, state, TERMS);
        let tenants = [0, 1].map(|tenant| {
            beside(&world, move |world| {
                world.launch(tenant);
                world.finish();
            })
        });
        control(&world, Some(0), habit);
        for tenant in tenants {
            tenant.join().unwrap();
        }
        for tenant in &world.tenants {
            assert!(!tenant.meter.read().wants(), "nobody waits and nothing is in flight");
        }
    });
}

#[test]
fn a_lease_that_is_withdrawn_drains_before_the_next_begins() {
    two_tenants(GateState::Leased, Habit::Preempt);
}

#[test]
#[ignore = "deep: takes long"]
fn an_open_gate_that_is_closed_drains_before_the_next_begins() {
    two_tenants(GateState::Open, Habit::Preempt);
}

#[test]
#[ignore = "deep: takes long"]
fn a_holder_that_is_done_early_gives_up_the_gpu_unasked() {
    two_tenants(GateState::Leased, Habit::AwaitIdle);
}

#[test]
#[ignore = "deep: takes long"]
fn a_holder_that_is_done_while_its_open_gate_becomes_a_lease_is_noticed() {
    two_tenants(GateState::Open, Habit::AwaitIdle);
}

#[test]
fn a_thread_on_its_way_through_the_gate_never_looks_as_if_it_wanted_nothing() {
    loom::model(|| {
        let world = World::new();
        world.set_gate(0, GateState::Open, TERMS);
        let meter = &world.tenants[0].meter;
        meter.enter_wait();
        let controller = beside(&world, |world| assert!(world.tenants[0].meter.read().wants()));
        let launching = meter.start_launching();
        meter.leave_wait();
        meter.set_in_flight();
        drop(launching);
        controller.join().unwrap();
    });
}

#[test]
fn a_launch_stays_in_flight_although_all_before_it_completed_meanwhile() {
    loom::model(|| {
        let world = World::new();
        let meter = &world.tenants[0].meter;
        meter.set_in_flight();
        let seen = meter.in_flight().unwrap();
        let launcher = beside(&world, |world| {
            let meter = &world.tenants[0].meter;
            let launching = meter.start_launching();
            meter.set_in_flight();
            drop(launching);
            assert!(meter.read().in_flight);
        });
        meter.settle(seen);
        launcher.join().unwrap();
        assert!(meter.read().in_flight);
    });
}

#[test]
fn a_launch_that_waits_at_an_expired_lease_goes_on_once_it_is_renewed() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let world = World::new();
        world.set_gate(0, GateState::Leased, LeaseTerms { expires_ns: 10, ..TERMS });
        world.now_ns.store(10, Relaxed);
        let tenant = beside(&world, |world| world.launch(0));
        // The tenant rings when it finds that the lease has expired.
        world.bell.heard();
        world.tenants[0].slot.renew(TERMS);
        world.tenants[0].futex.wake();
        tenant.join().unwrap();
    });
}

#[test]
fn of_the_threads_that_come_to_leases_of_one_launch_one_a_lease_goes() {
    let once = LeaseTerms { window_ns: ONE_LAUNCH, ..TERMS };
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let shared = Arc::new((GrantSlot::default(), OnlyLaunch::default()));
        let (slot, only) = &*shared;
        slot.set_gate(GateState::Leased, once);
        let first = slot.gate().epoch;
        let threads = [(); 2].map(|()| {
            beside(&shared, |(slot, only)| {
                let epoch = slot.gate().epoch;
                (epoch, only.take(slot, epoch))
            })
        });
        // The daemon gives the next lease while the threads look at the first lease.
        slot.set_gate(GateState::Leased, once);
        let seen = threads.map(|thread| thread.join().unwrap());
        let of = |epoch| seen.iter().filter(|(of, goes)| *of == epoch && *goes).count();
        let last = slot.gate().epoch;
        assert!(of(first) <= 1 && of(last) <= 1, "a lease was used twice: {seen:?}");
        // Either one thread used the last lease, or the lease can still be used once.
        assert_eq!(only.take(slot, last), of(last) == 0);
        assert!(!only.take(slot, last) && !only.take(slot, first));
    });
}

#[test]
fn waiters_outlive_a_controller_that_dies_at_any_step() {
    // The daemon dies at one of three steps: before it opens a gate, before it wakes the sleepers,
    // or after the wake-up.
    for steps in 0..=2 {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(4);
        model.check(move || {
            let world = World::new();
            world.set_gate(0, GateState::Closed, TERMS);
            let waiter = beside(&world, |world| {
                let Tenant { slot, meter, .. } = &world.tenants[0];
                let mut process = Thread { world, tenant: 0 };
                match gate::wait(slot, meter, &mut process, 1) {
                    Ok(_) => assert_eq!(slot.gate().state, GateState::Open),
                    Err(ControllerGone) => {}
                }
                assert_eq!(meter.read().waiters, 0);
            });
            if steps > 0 {
                world.tenants[0].slot.set_gate(GateState::Open, TERMS);
            }
            if steps > 1 {
                world.tenants[0].futex.wake();
            }
            // The daemon is dead. Time passes, and the naps of the sleepers end.
            world.now_ns.store(1_000, Relaxed);
            world.tenants[0].futex.wake();
            waiter.join().unwrap();
        });
    }
}
