//! Properties of sets of owners that run at once, each on its part of the SMs (`lease/space.rs`). The
//! properties hold for any parts and weights, and for parts that change at any time.

use super::*;
use crate::lease::state::Tenant;
use proptest::test_runner::{TestCaseResult, TestRunner};

/// The number of cases of each property in the quick track.
const QUICK: u32 = 500;
/// The number of cases of each property in the deep track.
const DEEP: u32 = 10_000;
/// The narrowest part in a course in which two owners always fit, percent. The narrower the first
/// owner of a set, the longer another owner can wait for the same area.
const LEAST_PERCENT: u32 = 20;

/// A change of an owner.
#[derive(Debug, Clone)]
struct Event {
    /// The time since the last event, ms.
    after_ms: u64,
    /// The owner's place among the owners.
    owner: usize,
    /// The owner's part from now on, percent.
    percent: u32,
    /// Whether the owner wants nothing from now on.
    rests: bool,
}

/// Owners on parts of the SMs, and their changes.
#[derive(Debug, Clone)]
struct Course {
    /// The part of each owner at first, percent, and the owner's weight.
    owners: Vec<(u32, u32)>,
    events: Vec<Event>,
}

fn courses() -> impl Strategy<Value = Course> {
    prop::collection::vec((1..=100u32, 1..=2u32), 3..=5).prop_flat_map(|owners| {
        let event = (1..=30u64, 0..owners.len(), 1..=100u32, prop::bool::weighted(0.2));
        let event =
            event.prop_map(|(after_ms, owner, percent, rests)| Event { after_ms, owner, percent, rests });
        let events = prop::collection::vec(event, 30..60);
        events.prop_map(move |events| Course { owners: owners.clone(), events })
    })
}

impl Course {
    /// Returns the course with owners that always want the GPU, of which the first two always fit
    /// beside each other. So sets of owners have the GPU all the time.
    fn in_space(mut self) -> Self {
        let bounded = |owner: usize, percent: u32| {
            let most = if owner < 2 { 50 } else { 100 };
            percent.clamp(LEAST_PERCENT, most)
        };
        for (owner, (percent, _)) in self.owners.iter_mut().enumerate() {
            *percent = bounded(owner, *percent);
        }
        for event in &mut self.events {
            event.percent = bounded(event.owner, event.percent);
            event.rests = false;
        }
        self
    }

    /// Lets the time pass, and calls `check` after each decision.
    fn run(&self, mut check: impl FnMut(&Space) -> TestCaseResult) -> TestCaseResult {
        let (parts_percent, weights): (Vec<u32>, Vec<u32>) = self.owners.iter().copied().unzip();
        let mut space = Space::weighted(&parts_percent, &weights);
        // By then, the scheduler has looked again whether the owners fit.
        (0..30).for_each(|_| space.pass_ms());
        for event in &self.events {
            for _ in 0..event.after_ms {
                // The scheduler may have closed a gate, and asks for another reading.
                for pass_ns in [MS, 1] {
                    space.look(pass_ns);
                    check(&space)?;
                }
            }
            space.parts_ppm[event.owner] = event.percent * PPM / 100;
            let id = event.owner as TenantId + 1;
            space.resting.retain(|resting| *resting != id);
            space.resting.extend(event.rests.then_some(id));
        }
        Ok(())
    }
}

impl Space {
    fn tenant(&self, id: TenantId) -> &Tenant {
        self.bench.scheduler.tenants.get(id).expect("an owner")
    }

    fn set(&self) -> &[TenantId] {
        &self.bench.scheduler.company.set
    }

    /// Returns the owners that have no place in the set.
    fn waiting(&self) -> impl Iterator<Item = TenantId> {
        self.ids().filter(|id| !self.set().contains(id))
    }

    /// Returns the longest time from one choice of a set to the next, ns: a quantum and the time
    /// between two looks.
    fn longest_term_ns(&self) -> u64 {
        self.bench.tuning.quantum_ns + 2 * MS
    }

    /// Returns the longest time for which an owner waits that has no place from now on, ns.
    fn longest_wait_ns(&self, id: TenantId) -> u64 {
        let due = self.tenant(id).due;
        let others = self.ids().filter(|other| *other != id).map(|other| self.tenant(other));
        let before_ns = |other: &Tenant| {
            let area_ns = gpu_ns(due - other.vtime, other.weight_ppm).max(0).unsigned_abs();
            area_ns * 100 / u64::from(LEAST_PERCENT) + self.longest_term_ns()
        };
        others.map(before_ns).sum()
    }
}

fn the_parts_of_a_set_fit(course: Course) -> TestCaseResult {
    course.run(|space| {
        let holders = space.ids().filter(|id| space.bench.may_launch(*id));
        let parts_ppm = holders.map(|id| space.part_ppm(id)).sum::<u32>();
        prop_assert!(parts_ppm <= PPM || !space.bench.scheduler.company.is_in_space(), "{parts_ppm}");
        Ok(())
    })
}

/// The bound on a wait: while an owner waits, each other owner pays as the first of a set up to the
/// virtual time at which the waiting owner's request is due, and for one term beyond. The first
/// owner pays at least for the narrowest part.
fn every_wait_ends(course: Course) -> TestCaseResult {
    let mut latest_ns = BTreeMap::new();
    course.in_space().run(|space| {
        latest_ns.retain(|id, _| !space.set().contains(id));
        let now_ns = space.bench.now_ns;
        for id in space.waiting() {
            let until_ns = *latest_ns.entry(id).or_insert_with(|| now_ns + space.longest_wait_ns(id));
            prop_assert!(now_ns <= until_ns, "{id} waits");
        }
        Ok(())
    })
}

/// The bound on the lag of an owner behind the first owner of the set: the owner's own request, and
/// the first owner's place for one term.
fn every_lag_behind_the_first_is_bounded(course: Course) -> TestCaseResult {
    course.in_space().run(|space| {
        prop_assert!(space.bench.scheduler.company.is_in_space());
        let Some(first) = space.set().first().map(|first| space.tenant(*first)) else { return Ok(()) };
        for id in space.waiting() {
            let beyond_ns = gpu_ns(first.vtime - space.tenant(id).due, first.weight_ppm);
            prop_assert!(beyond_ns <= signed(space.longest_term_ns()), "{id} is behind: {beyond_ns} ns");
        }
        Ok(())
    })
}

fn check(cases: u32, property: impl Fn(Course) -> TestCaseResult) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config).run(&courses(), property).unwrap();
}

#[test]
fn the_parts_of_owners_that_may_launch_at_once_never_exceed_the_sms_whatever_parts_change() {
    check(QUICK, the_parts_of_a_set_fit);
}

#[test]
fn every_owner_on_a_part_of_the_sms_gets_a_place_within_a_bound_whatever_parts_change() {
    check(QUICK, every_wait_ends);
}

#[test]
fn an_owner_that_waits_for_a_place_is_behind_the_first_of_the_set_by_its_request_and_a_term_at_most() {
    check(QUICK, every_lag_behind_the_first_is_bounded);
}

#[test]
#[ignore = "deep: ten thousand cases of each property"]
fn sets_keep_each_property_in_ten_thousand_cases() {
    check(DEEP, the_parts_of_a_set_fit);
    check(DEEP, every_wait_ends);
    check(DEEP, every_lag_behind_the_first_is_bounded);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn owners_of_whom_no_two_fit_beside_each_other_take_turns_as_on_all_sms(
        events in prop::collection::vec(anything(4), 1..40),
        parts_ppm in prop::array::uniform4(PPM / 2 + 1..=u32::MAX),
    ) {
        let tuning = Tuning::derive(ASSUMED_HANDOFF_NS, QuantumBounds::default(), 2);
        let mut schedulers = [Scheduler::default(), Scheduler::default()];
        for (what, tenant, now_ns, seen, ppm) in events {
            let part_ppm = parts_ppm[tenant as usize - 1];
            let decided = [part_ppm, PPM].into_iter().zip(&mut schedulers).map(|(sm_ppm, scheduler)| {
                happen(scheduler, &tuning, (what, tenant, now_ns, Seen { sm_ppm, ..seen }, ppm));
                let changes: Vec<Change> = scheduler.take_changes().collect();
                (changes, scheduler.phase(), scheduler.lag_ns(tenant))
            });
            let decided: Vec<_> = decided.collect();
            prop_assert_eq!(&decided[0], &decided[1]);
        }
    }
}
