//! The hold of a launch at a cut, under the daemon that tells the other tenant's place and
//! withdraws the plan.
//!
//! Only a wake-up ends a sleep here. So a lost wake-up is a deadlock, which loom reports.

use deepres_abi::plan::{Cut, Place, PlanHead, PlanSlot, Progress};
use loom::sync::Arc;
use loom::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed},
};

use super::{Sleepers, beside};

const NUMBER: u32 = 1;
const TENANTS: usize = 2;
const HEAD: PlanHead = PlanHead { tenant: 0, wait_limit_ns: u64::MAX };
const CUT: Cut = Cut { tenant: 0, kernel: 0, other: 1, until: 1 };
const THERE: Place = Place::At { iterations: 0, kernel: 1 };

/// The pages of two tenants: tenant 0 waits for tenant 1.
#[derive(Default)]
struct World {
    slot: PlanSlot,
    held: Sleepers,
    progress: Progress,
    told: Sleepers,
    has_finished: AtomicBool,
}

impl World {
    fn install(&self) {
        assert!(self.slot.install(NUMBER, HEAD, TENANTS, [7].into_iter(), [CUT].into_iter()));
    }

    /// Makes the launch of tenant 0, which waits until tenant 1 is there.
    fn launch(&self) {
        let mut is_there = false;
        self.slot.hold(
            NUMBER,
            |places| {
                is_there = places[1] == THERE;
                if is_there || places[1] == Place::Gone { None } else { Some(0) }
            },
            |seen, _| self.held.wait_while(|| self.slot.changes().load(Acquire) == seen),
        );
        if is_there {
            assert!(self.has_finished.load(Relaxed), "the kernel had not finished");
        }
    }

    /// Ends the kernel of tenant 1, and tells so.
    fn finish(&self, place: Place) {
        self.has_finished.store(true, Relaxed);
        self.progress.tell(place.word(NUMBER));
        self.told.wake();
    }

    /// Copies the place of tenant 1 into the page of tenant 0, until it is the last one.
    fn relay(&self) {
        loop {
            let (seen, word) = self.progress.read();
            self.slot.set_place(1, word);
            self.held.wake();
            if Place::of(word, NUMBER) != Place::Coming {
                return;
            }
            self.told.wait_while(|| self.progress.read().0 == seen);
        }
    }
}

/// Lets tenant 0 launch while tenant 1 comes to this place, and the daemon relays it.
fn held_until(place: Place) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let world = Arc::new(World::default());
        world.install();
        let launching = beside(&world, World::launch);
        let relaying = beside(&world, World::relay);
        world.finish(place);
        launching.join().unwrap();
        relaying.join().unwrap();
    });
}

#[test]
fn a_held_launch_goes_when_the_other_tenant_is_there_and_no_wake_up_is_lost() {
    held_until(THERE);
}

#[test]
fn a_held_launch_goes_when_the_other_tenant_departs() {
    held_until(Place::Gone);
}

#[test]
fn a_held_launch_goes_when_the_daemon_withdraws_the_plan() {
    loom::model(|| {
        let world = Arc::new(World::default());
        world.install();
        let launching = beside(&world, World::launch);
        world.slot.withdraw();
        world.held.wake();
        launching.join().unwrap();
    });
}

#[test]
fn a_session_never_reads_a_mixture_of_two_plans() {
    loom::model(|| {
        let slot = Arc::new(PlanSlot::default());
        let install = |slot: &PlanSlot, number: u32| {
            let keys = [u64::from(number); 2];
            let head = PlanHead { tenant: 0, wait_limit_ns: u64::from(number) };
            assert!(slot.install(number, head, TENANTS, keys.into_iter(), [].into_iter()));
        };
        install(&slot, 1);
        let daemon = beside(&slot, move |slot| install(slot, 2));
        let number = slot.number();
        let mut keys = Vec::new();
        if let Some(head) = slot.read(number, |key| keys.push(key), |_| {}) {
            assert_eq!((head.wait_limit_ns, keys), (u64::from(number), vec![u64::from(number); 2]));
        }
        daemon.join().unwrap();
    });
}
