//! The lease policy on a model of a GPU, in virtual time.

use crate::model::{MS, Model, Program};
use deepres_abi::PPM;
use deepres_policy::class::Class;
use proptest::prelude::*;

const SECOND: u64 = 1_000 * MS;

/// Returns two figures of the time from `from_ns` to `to_ns`: the tenants' shares of the used GPU
/// time, and the used part.
fn shares(programs: &[Program], from_ns: u64, to_ns: u64) -> (Vec<f64>, f64) {
    let mut model = Model::new(programs);
    model.run_until(from_ns);
    let before = model.used_ns();
    model.run_until(to_ns);
    let used: Vec<u64> = model.used_ns().iter().zip(before).map(|(after, before)| after - before).collect();
    assert!(model.most_holders <= 1, "at most one tenant has the GPU");
    let total = used.iter().sum::<u64>() as f64;
    (used.iter().map(|used| *used as f64 / total).collect(), total / (to_ns - from_ns) as f64)
}

fn assert_shares(programs: &[Program], expected: &[f64], tolerance: f64, utilisation: f64) {
    let (shares, used) = shares(programs, SECOND, 21 * SECOND);
    for (share, expected) in shares.iter().zip(expected) {
        assert!((share - expected).abs() <= tolerance, "{shares:?} instead of {expected}");
    }
    assert!(used >= utilisation, "the GPU was used {used} of the time");
}

#[test]
fn seventy_thirty_is_kept_with_small_kernels_and_with_long_graphs_alike() {
    for kernels in [&[20_000][..], &[2 * MS], &[40 * MS], &[60 * MS, 20 * MS], &[100 * MS]] {
        let programs = [Program::backlogged(700_000, kernels), Program::backlogged(300_000, kernels)];
        assert_shares(&programs, &[0.7, 0.3], 0.01, 0.97);
    }
}

#[test]
fn shares_are_of_time_and_not_of_launches() {
    let programs = [Program::backlogged(700_000, &[20_000]), Program::backlogged(300_000, &[100 * MS])];
    assert_shares(&programs, &[0.7, 0.3], 0.01, 0.97);
}

/// A program in the fluid limit: its weight, the GPU time of a step, and the pause after it, ns.
type Steps = (u32, u64, u64);

/// Returns the GPU time of each program in the fluid limit: weighted processor sharing.
fn fluid_ns(programs: &[Steps], span_ns: u64) -> Vec<f64> {
    let mut used = vec![0.0; programs.len()];
    // The rest of the step, or of the pause.
    let mut left: Vec<(bool, f64)> = programs.iter().map(|(_, work_ns, _)| (true, *work_ns as f64)).collect();
    let mut now = 0.0;
    while now < span_ns as f64 {
        let works = |place: usize| left[place].0;
        let all: f64 =
            (0..programs.len()).filter(|place| works(*place)).map(|place| f64::from(programs[place].0)).sum();
        let rate = |place: usize| if works(place) { f64::from(programs[place].0) / all } else { 1.0 };
        let pass = (0..programs.len()).map(|place| left[place].1 / rate(place)).fold(f64::INFINITY, f64::min);
        let rates: Vec<f64> = (0..programs.len()).map(rate).collect();
        now += pass;
        for (place, (_, work_ns, pause_ns)) in programs.iter().enumerate() {
            let had = pass * rates[place];
            used[place] += if left[place].0 { had } else { 0.0 };
            left[place].1 -= had;
            if left[place].1 < 0.5 {
                let works = !left[place].0;
                left[place] = (works, if works { *work_ns } else { *pause_ns } as f64);
            }
        }
    }
    used
}

/// Checks that each of two programs with steps has at least `least` of the GPU time that the fluid
/// limit gives it. `kernels_ns` are the lengths of the programs' kernels.
fn assert_near_the_fluid_limit(steps: [Steps; 2], kernels_ns: [u64; 2], least: f64) {
    let program = |(weight_ppm, work_ns, pause_ns): Steps, kernel_ns: u64| Program {
        pause_after: Some(((work_ns / kernel_ns) as usize, pause_ns)),
        ..Program::backlogged(weight_ppm, &[kernel_ns])
    };
    let programs = [program(steps[0], kernels_ns[0]), program(steps[1], kernels_ns[1])];
    let mut model = Model::new(&programs);
    model.run_until(SECOND);
    let before = model.used_ns();
    model.run_until(9 * SECOND);
    let fluid = fluid_ns(&steps, 8 * SECOND);
    for ((after_ns, before_ns), fluid_ns) in model.used_ns().iter().zip(before).zip(fluid) {
        let progress = (after_ns - before_ns) as f64 / fluid_ns;
        assert!(progress >= least, "{steps:?}, {kernels_ns:?}: {progress} of the fluid limit");
    }
}

#[test]
fn programs_with_brief_pauses_have_what_the_fluid_limit_gives_them_whatever_their_kernels() {
    for kernel_us in [250, 1_000, 5_000, 10_000, 20_000] {
        for other_us in [250, 1_000, 5_000, 10_000, 20_000] {
            let steps = [(700_000, 40 * MS, 2 * MS), (300_000, 40 * MS, 2 * MS)];
            assert_near_the_fluid_limit(steps, [kernel_us * 1_000, other_us * 1_000], 0.92);
        }
    }
}

#[test]
fn programs_with_short_bursts_have_most_of_what_the_fluid_limit_gives_them() {
    // The GPU of the model has no slices: it runs kernels in the order of the launches. So a burst
    // waits for all work in flight.
    for (work_us, pause_us) in [(1_000, 500), (1_000, 2_000), (1_500, 1_000), (3_000, 2_000), (9_000, 3_000)]
    {
        let burst = (500_000, work_us * 1_000, pause_us * 1_000);
        for other in [(500_000, 40 * MS, 0), (500_000, 3 * MS, 2 * MS)] {
            assert_near_the_fluid_limit([burst, other], [250_000, 250_000], 0.7);
        }
    }
}

#[test]
fn a_tenant_that_is_alone_loses_nothing() {
    let (_, used) = shares(&[Program::backlogged(10_000, &[100_000])], SECOND, 5 * SECOND);
    assert!(used >= 0.999, "{used}");
}

#[test]
fn an_idle_tenants_time_goes_to_the_other_and_comes_back_at_once() {
    let visitor = Program { active_ns: (5 * SECOND, 10 * SECOND), ..Program::backlogged(500_000, &[MS]) };
    let programs = [Program::backlogged(500_000, &[MS]), visitor];
    let mut model = Model::new(&programs);
    let mut spans = Vec::new();
    for end_ns in [5 * SECOND, 5 * SECOND + 100 * MS, 10 * SECOND, 10 * SECOND + 100 * MS, 15 * SECOND] {
        model.run_until(end_ns);
        spans.push((end_ns, model.used_ns()));
    }
    let had = |span: usize, tenant: usize| {
        let (end, after) = &spans[span];
        let (begin, before) = &spans[span - 1];
        (after[tenant] - before[tenant]) as f64 / (end - begin) as f64
    };
    assert!(had(1, 1) >= 0.35, "the visitor has its part within 100 ms: {}", had(1, 1));
    assert!((had(2, 1) - 0.5).abs() <= 0.02, "and keeps it: {}", had(2, 1));
    assert!(had(4, 0) >= 0.99, "the other has everything afterwards: {}", had(4, 0));
}

#[test]
fn nobody_hoards_a_claim_by_being_idle() {
    let late = Program { active_ns: (10 * SECOND, u64::MAX), ..Program::backlogged(500_000, &[MS]) };
    let (shares, _) = shares(&[Program::backlogged(500_000, &[MS]), late], 10 * SECOND, 12 * SECOND);
    assert!((shares[0] - 0.5).abs() <= 0.03, "{shares:?}");
}

#[test]
fn a_tenant_that_now_and_then_has_a_little_work_is_served_soon_and_costs_the_other_little() {
    let occasional =
        Program { depth: 1, pause_after: Some((1, 30 * MS)), ..Program::backlogged(500_000, &[MS]) };
    let mut model = Model::new(&[Program::backlogged(500_000, &[MS]), occasional]);
    model.run_until(20 * SECOND);
    let used = model.used_ns();
    assert!(used[0] >= 18 * SECOND, "{used:?}");
    assert!(used[1] >= 400 * MS, "{used:?}");
    assert!(model.longest_waits_ns()[1] <= 20 * MS, "{:?}", model.longest_waits_ns());
}

/// Runs steps of `kernels` kernels of `kernel_ns` with pauses between the steps, beside a
/// backlogged guest. Returns the speed of the steps relative to their speed alone, and the part of
/// the pauses that the guest used.
fn beside(kernels: usize, kernel_ns: u64, pause_ns: u64, guest_kernel_ns: u64) -> (f64, f64) {
    let owner =
        Program { pause_after: Some((kernels, pause_ns)), ..Program::backlogged(1_000_000, &[kernel_ns]) };
    let guest = Program { class: Class::BestEffort, ..Program::backlogged(1_000_000, &[guest_kernel_ns]) };
    let run = |programs: &[Program]| {
        let mut model = Model::new(programs);
        model.run_until(2 * SECOND);
        let before = model.used_ns();
        model.run_until(22 * SECOND);
        model.used_ns().iter().zip(before).map(|(after, before)| after - before).collect::<Vec<_>>()
    };
    let alone = run(std::slice::from_ref(&owner))[0] as f64;
    let both = run(&[owner, guest]);
    (both[0] as f64 / alone, both[1] as f64 / (20.0 * SECOND as f64 - alone))
}

#[test]
fn a_guest_harvests_an_owners_pauses_and_costs_it_next_to_nothing() {
    // The guest should use the whole pause except the time of its last kernel and of a hand-off. If
    // a kernel begins in that time, it mostly still runs when the owner is back.
    for (kernels, kernel_ns, pause_ns, guest_kernel_ns, least) in [
        (20, MS, 10 * MS, MS, 0.88),
        (20, MS, 10 * MS, 100_000, 0.95),
        (5, 4 * MS, 40 * MS, 5 * MS, 0.89),
        (100, MS / 10, 2 * MS, 100_000, 0.84),
    ] {
        let (speed, harvested) = beside(kernels, kernel_ns, pause_ns, guest_kernel_ns);
        assert!(
            speed >= 0.995 && harvested >= least,
            "{kernels} × {kernel_ns} ns, {pause_ns}: {speed}, {harvested}"
        );
    }
}

#[test]
fn an_owner_that_never_pauses_does_not_notice_a_guest() {
    let (speed, _) = beside(1, 10 * MS, 20_000, MS);
    assert!(speed >= 0.999, "{speed}");
}

/// The entitlement of a backlogged tenant beside the others, and its kernels. A kernel is a part of
/// the longest length that a kernel may have.
fn program() -> impl Strategy<Value = (u32, Vec<f64>)> {
    (50_000..500_000u32, prop::collection::vec(prop_oneof![LEAST_PART..0.05, 0.05..1.0], 1..4))
}

/// The length of the shortest kernels, as a part of the longest. At this length, launches are not
/// the bottleneck.
const LEAST_PART: f64 = 0.005;
/// The span of a test of shares, in quanta. If the longest kernels are longer than a quantum, in
/// longest kernels.
const ROUNDS: u64 = 40;
/// The number of turns by which a tenant may be off over the span. A turn is a quantum and its
/// excess: a kernel and the work in flight. At each end of the span, a tenant may be off by a turn.
/// A tenant may also be off by the part of its kernels' lengths that the scheduler learns late.
const TURNS_OFF: f64 = 2.5;
/// The longest time of a hand-off on the model: wake-ups, and the moments in which an idle holder
/// can still go on.
const HANDOFF_NS: u64 = MS;

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn backlogged_tenants_get_what_they_are_owed_whatever_their_kernels(
        programs in prop::collection::vec(program(), 2..5),
        longest_ns in prop_oneof![2 * MS..10 * MS, 10 * MS..100 * MS],
    ) {
        let whole: f64 = programs.iter().map(|(weight, _)| f64::from(*weight)).sum();
        let parts: Vec<f64> = programs.iter().map(|(weight, _)| f64::from(*weight) / whole).collect();
        let programs: Vec<_> = programs
            .iter()
            .map(|(weight, kernels)| {
                let kernels: Vec<u64> = kernels.iter().map(|part| (part * longest_ns as f64) as u64).collect();
                Program { depth: 8, ..Program::backlogged(*weight, &kernels) }
            })
            .collect();
        let mut model = Model::new(&programs);
        let round_ns = model.quantum_ns().max(longest_ns);
        // The span begins after the first leases, because the policy does not know the tenants'
        // kernels before.
        model.run_until(5 * round_ns);
        let before = model.used_ns();
        let span_ns = ROUNDS * round_ns;
        model.run_until(5 * round_ns + span_ns);
        let used: Vec<u64> = model.used_ns().iter().zip(before).map(|(after, before)| after - before).collect();
        let sum_ns = used.iter().sum::<u64>() as f64;
        prop_assert!(model.most_holders <= 1);
        prop_assert!(sum_ns >= 0.9 * span_ns as f64, "the GPU was used {} of the time", sum_ns / span_ns as f64);
        // At each end of the span, one tenant may be a turn ahead and another a turn behind.
        let turn_ns = (model.quantum_ns() + 2 * longest_ns + HANDOFF_NS) as f64;
        for (used_ns, part) in used.iter().zip(parts) {
            let off_ns = (*used_ns as f64 - part * sum_ns).abs();
            prop_assert!(off_ns <= TURNS_OFF * turn_ns, "{used_ns} of {sum_ns} ns, owed {part}: {} turns off", off_ns / turn_ns);
        }
    }
}

#[test]
fn a_tenant_whose_short_kernels_wait_on_the_device_behind_long_ones_has_what_it_is_owed() {
    // The model's device runs one kernel after the other. The third tenant's kernels wait there for
    // tens of milliseconds and use nothing meanwhile.
    let programs = [
        Program { depth: 8, ..Program::backlogged(132_763, &[67 * MS, 52 * MS]) },
        Program { depth: 8, ..Program::backlogged(406_012, &[68 * MS, 2 * MS, 3 * MS]) },
        Program { depth: 8, ..Program::backlogged(91_214, &[792_000, 350_000]) },
    ];
    let mut model = Model::new(&programs);
    model.run_until(4 * SECOND);
    let used_ns = model.used_ns();
    let share = used_ns[2] as f64 / used_ns.iter().sum::<u64>() as f64;
    assert!((0.12..0.16).contains(&share), "{share}");
}

#[test]
fn all_bear_the_short_pauses_of_a_holder_if_these_are_few_and_the_holder_bears_the_others() {
    // The second program pauses after so many kernels. In its turns it leaves 4 % or a third of the
    // time.
    for (kernels, least, most) in [(20, 0.9, 1.1), (1, 1.65, 2.0)] {
        let pausing = Program {
            depth: 1,
            pause_after: Some((kernels, 50_000)),
            ..Program::backlogged(500_000, &[100_000])
        };
        let mut model = Model::new(&[Program::backlogged(500_000, &[MS]), pausing]);
        model.run_until(10 * SECOND);
        let used_ns = model.used_ns();
        let ratio = used_ns[0] as f64 / used_ns[1] as f64;
        assert!((least..=most).contains(&ratio), "{kernels} kernels: {ratio}");
    }
}

/// Returns an entitlement and kernels from 2 µs to 100 ms.
fn any_program() -> impl Strategy<Value = (u32, Vec<u64>)> {
    (
        50_000..500_000u32,
        prop::collection::vec(prop_oneof![2_000..200_000u64, MS..10 * MS, 10 * MS..100 * MS], 1..6),
    )
}

proptest! {
    // There are only a few cases, because each runs tens of seconds of very short kernels. The
    // tests above cover short times.
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn over_a_long_time_backlogged_tenants_get_exactly_what_they_are_owed(
        programs in prop::collection::vec(any_program(), 2..6)
    ) {
        let total: f64 = programs.iter().map(|(weight, _)| f64::from(*weight)).sum();
        let expected: Vec<f64> = programs.iter().map(|(weight, _)| f64::from(*weight) / total).collect();
        let programs: Vec<_> =
            programs.iter().map(|(weight, kernels)| Program::backlogged(*weight, kernels)).collect();
        let mut model = Model::new(&programs);
        model.run_until(2 * SECOND);
        let before = model.used_ns();
        model.run_until(42 * SECOND);
        let used: Vec<u64> = model.used_ns().iter().zip(before).map(|(after, before)| after - before).collect();
        let sum = used.iter().sum::<u64>() as f64;
        prop_assert!(model.most_holders <= 1);
        prop_assert!(sum >= 0.95 * 40.0 * SECOND as f64, "the GPU was used {} of the time", sum / (40.0 * SECOND as f64));
        for (used, expected) in used.iter().zip(expected) {
            let share = *used as f64 / sum;
            prop_assert!((share - expected).abs() <= 0.01, "{share} instead of {expected}");
        }
        // No tenant waits longer than for a round of turns of all tenants. Each turn is long enough
        // to make up for the longest kernel.
        for wait_ns in model.longest_waits_ns() {
            prop_assert!(wait_ns <= 10 * SECOND, "waited {wait_ns} ns");
        }
    }
}

proptest! {
    // The runs are short, because the test is about the moment at which a tenant comes or goes.
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn no_backlogged_tenant_starves(
        tenants in prop::collection::vec((100_000..1_000_000u32, MS..6 * MS), 2..5)
    ) {
        let programs: Vec<_> = tenants
            .iter()
            .map(|(weight, kernel_ns)| Program { depth: 2, ..Program::backlogged(*weight, &[*kernel_ns]) })
            .collect();
        let mut model = Model::new(&programs);
        model.run_until(400 * MS);
        let whole: f64 = tenants.iter().map(|(weight, _)| f64::from(*weight)).sum();
        let longest_ns = tenants.iter().map(|(_, kernel_ns)| *kernel_ns).max().unwrap();
        for ((weight, _), wait_ns) in tenants.iter().zip(model.longest_waits_ns()) {
            // The turns that the others are owed while the tenant has one turn. A turn is a quantum
            // and its excess: a kernel and the work in flight.
            let turn_ns = (model.quantum_ns() + 3 * longest_ns + HANDOFF_NS) as f64;
            let others = (tenants.len() - 1) as f64;
            let most_ns = turn_ns * (whole / f64::from(*weight) + others);
            prop_assert!(wait_ns as f64 <= most_ns, "{weight} of {whole} waited {wait_ns} ns, {most_ns} at most");
        }
    }

    #[test]
    fn an_absent_tenants_share_is_lent_and_back_within_one_lease(
        (resident, visitor) in ((100_000..900_000u32, MS..6 * MS), (100_000..900_000u32, MS..6 * MS)),
        (comes_ns, stays_ns) in (100 * MS..200 * MS, 50 * MS..150 * MS),
    ) {
        let leaves_ns = comes_ns + stays_ns;
        let lender = Program {
            depth: 2,
            active_ns: (comes_ns, leaves_ns),
            ..Program::backlogged(visitor.0, &[visitor.1])
        };
        let programs = [Program { depth: 2, ..Program::backlogged(resident.0, &[resident.1]) }, lender];
        let mut model = Model::new(&programs);
        let mut used_at = |moment_ns: u64| {
            model.run_until(moment_ns);
            (model.used_ns()[0], model.longest_waits_ns()[1], model.quantum_ns())
        };
        // A kernel that runs at the end of a span counts in one of both spans.
        let kernels_ns = resident.1 + visitor.1;
        let (before_ns, ..) = used_at(comes_ns);
        prop_assert!(before_ns + 2 * resident.1 + HANDOFF_NS >= comes_ns, "{before_ns} of {comes_ns} ns were lent");
        let (_, waited_ns, quantum_ns) = used_at(leaves_ns);
        let others_turn_ns = quantum_ns as f64 + 3.0 * kernels_ns as f64;
        // The visitor's first turn begins at the end of the lease during which it came. Later turns
        // follow from its entitlement.
        let most_ns = others_turn_ns * (f64::from(resident.0) / f64::from(visitor.0) + 1.0) + HANDOFF_NS as f64;
        prop_assert!(waited_ns as f64 <= most_ns, "waited {waited_ns} ns, {most_ns} at most");
        let lent_ns = leaves_ns + quantum_ns + 2 * kernels_ns + HANDOFF_NS;
        let (then_ns, ..) = used_at(lent_ns);
        let (after_ns, ..) = used_at(lent_ns + 100 * MS);
        // The visitor may have become inactive while a thread waited at the gate. In this case it
        // gets the GPU once more.
        let offered_ns = visitor.1 + 2 * HANDOFF_NS;
        prop_assert!(
            after_ns - then_ns + 2 * resident.1 + HANDOFF_NS + offered_ns >= 100 * MS,
            "{} ns were lent again",
            after_ns - then_ns
        );
    }
}

/// Returns a program on a part of the SMs, in percent, that begins a burst of kernels of 1 ms every
/// `every_ns`.
fn on_part(percent: u32, kernels: usize, every_ns: u64) -> Program {
    Program {
        pause_after: Some((kernels, 0)),
        every_ns,
        part_ppm: percent * PPM / 100,
        slo_ns: Some(every_ns),
        ..Program::backlogged(PPM / 4, &[MS])
    }
}

#[test]
fn four_models_on_parts_of_the_sms_meet_their_deadlines_whenever_they_begin() {
    // The case C-4 that is recalled from D-STACK.
    let models = [
        on_part(30, 8, 25 * MS),
        on_part(20, 10, 25 * MS),
        on_part(40, 28, 50 * MS),
        on_part(50, 55, 100 * MS),
    ];
    for stagger_ms in 0..25 {
        let begins_ns = |number: u64| 1 + stagger_ms * number * MS;
        let staggered = (0..).zip(&models);
        let programs: Vec<_> = staggered
            .map(|(number, model)| Program { active_ns: (begins_ns(number), u64::MAX), ..model.clone() })
            .collect();
        let mut model = Model::new(&programs);
        model.run_until(SECOND);
        let before = model.late();
        model.run_until(11 * SECOND);
        assert_eq!(model.late(), before, "{stagger_ms} ms");
        assert!(model.most_parts_ppm <= PPM, "{}", model.most_parts_ppm);
    }
}

#[test]
fn a_place_that_is_free_at_the_end_of_a_burst_is_taken_at_once() {
    // Two owners fit beside each other, and at least one waits.
    let burst = Program { pause_after: Some((3, MS)), slo_ns: None, ..on_part(40, 3, 0) };
    let mut model = Model::new(&[burst.clone(), burst.clone(), burst.clone(), burst]);
    model.run_until(SECOND);
    let before = model.used_ns();
    model.run_until(11 * SECOND);
    let used = model.used_ns().iter().zip(before).map(|(after, before)| after - before).sum::<u64>();
    let part = used as f64 / (20 * SECOND) as f64;
    assert!(part >= 0.9, "the two places are in use for {part} of the time");
}
