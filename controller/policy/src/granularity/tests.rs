use super::device::{Mix, Sharing, Watch};
use super::gate::{Answer, Gate, MOST_MISSES, Place};
use super::{Cut, Kernel, MOST_TENANTS, Plan, Search, TooMany};
use proptest::prelude::*;

const US: u64 = 1_000;
/// Rounding errors of times are smaller than this, ns.
const NEGLIGIBLE_NS: f64 = 1e-3;

fn kernel(width_percent: f64, duration_us: u64) -> Kernel {
    Kernel {
        key: duration_us,
        duration_ns: duration_us * US,
        width_percent,
        stream: 0,
        pause_ns: 0,
        joins: false,
    }
}

fn mix(tenants: &[Vec<Kernel>]) -> Mix {
    Mix::new(&tenants.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap()
}

fn run_us(tenants: &[Vec<Kernel>], sharing: Sharing, cuts: &[Cut]) -> f64 {
    mix(tenants).run(sharing, cuts, 2 * US).unwrap() / US as f64
}

/// A search of a few milliseconds.
const SHORT: Search = Search { switch_ns: 1_000, cells: 20_000, beam: 20, kernels: 20_000 };

fn plan(search: Search, tenants: &[Vec<Kernel>]) -> Plan {
    search.plan(&tenants.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap()
}

#[test]
fn kernels_share_the_sms_by_the_rule() {
    let tenants = [vec![kernel(80.0, 100)], vec![kernel(80.0, 100), kernel(20.0, 40)]];
    assert_eq!(run_us(&tenants, Sharing::Alike, &[]), 160.0 + 40.0);
    // The second tenant has a fifth of the SMs for 100 us, so a quarter of its kernel is done.
    assert_eq!(run_us(&tenants, Sharing::InOrder, &[]), 100.0 + 75.0 + 40.0);
    assert_eq!(run_us(&tenants, Sharing::Turns, &[]), 240.0);
    let cut = Cut { tenant: 1, kernel: 1, other: 0, until: 1 };
    assert_eq!(run_us(&tenants, Sharing::Alike, &[cut]), 200.0, "a cut that waits for nothing costs nothing");
    let cut = Cut { tenant: 1, kernel: 0, other: 0, until: 1 };
    assert_eq!(run_us(&tenants, Sharing::Alike, &[cut]), 100.0 + 2.0 + 140.0, "a wait costs a switch");
}

#[test]
fn pauses_of_the_host_and_streams_run_beside_the_gpu() {
    let paused = Kernel { pause_ns: 50 * US, ..kernel(100.0, 10) };
    let beside = Kernel { stream: 7, ..kernel(50.0, 30) };
    let tenants = [vec![paused, beside, paused]];
    assert_eq!(run_us(&tenants, Sharing::Alike, &[]), 120.0);
    assert_eq!(mix(&tenants).critical_path_ns(), 120e3);
    assert_eq!(mix(&tenants).area_ns(), 35e3);
}

#[test]
fn a_kernel_that_joins_waits_for_all_kernels_before_it() {
    let side = Kernel { stream: 7, ..kernel(50.0, 30) };
    let joins = |joins| [vec![kernel(20.0, 10), side, Kernel { joins, ..kernel(50.0, 10) }]];
    assert_eq!(run_us(&joins(false), Sharing::Alike, &[]), 30.0);
    assert_eq!(run_us(&joins(true), Sharing::Alike, &[]), 40.0);
}

#[test]
fn cuts_that_wait_for_each_other_have_no_end() {
    let tenants = [vec![kernel(10.0, 1)], vec![kernel(10.0, 1)]];
    let cut = |tenant: usize| Cut { tenant, kernel: 0, other: 1 - tenant, until: 1 };
    assert_eq!(mix(&tenants).run(Sharing::Alike, &[cut(0), cut(1)], 0), None);
}

#[test]
fn one_cut_lets_narrow_kernels_meet_wide_ones() {
    // In step, two narrow kernels leave 60 % of the SMs idle, and two wide ones need 160 %.
    let tenant: Vec<Kernel> = (0..20).map(|at| kernel(if at % 2 == 0 { 20.0 } else { 80.0 }, 100)).collect();
    let tenants = [tenant.clone(), tenant];
    assert!((run_us(&tenants, Sharing::Alike, &[]) - 2_600.0).abs() < NEGLIGIBLE_NS);
    let plan = plan(SHORT, &tenants);
    assert!(plan.bound_ns == 2_000e3 && plan.planned_ns <= 2_150e3, "{plan:?}");
    assert!((1..=3).contains(&plan.cuts.len()), "{plan:?}");
    assert!((plan.residue_ns - (plan.planned_ns - 2_000e3)).abs() < NEGLIGIBLE_NS);
    assert!(plan.longest_wait_ns >= 99e3, "{plan:?}");
}

#[test]
fn a_plan_pays_by_its_gain_where_the_bound_leaves_room() {
    let found = plan(SHORT, &[vec![kernel(50.0, 100)], vec![kernel(50.0, 100)]]);
    let with = |sequential_ns, planned_ns| Plan {
        sequential_ns,
        planned_ns,
        unplanned_ns: 100.0,
        in_order_gain: 0.01,
        bound_ns: 90.0,
        ..found.clone()
    };
    assert!(with(100.0, 97.0).pays() && !with(100.0, 99.0).pays() && !with(98.0, 97.0).pays());
    assert!(!Plan { in_order_gain: -0.01, ..with(100.0, 97.0) }.pays(), "the hardware may share in order");
    assert!((with(100.0, 97.0).gain() - 0.03).abs() < 1e-9);
}

#[test]
fn nothing_is_planned_where_nothing_can_be_won() {
    let wide: Vec<Kernel> = (0..30).map(|at| kernel(100.0, 10 + at)).collect();
    let narrow: Vec<Kernel> = (0..30).map(|at| kernel(30.0, 10 + at)).collect();
    for tenants in [[wide.clone(), wide.clone()], [narrow.clone(), narrow]] {
        let plan = plan(SHORT, &tenants);
        assert!(!plan.pays() && plan.cuts.is_empty(), "{plan:?}");
    }
    assert!(
        !plan(SHORT, &[]).pays() && !plan(SHORT, &[wide]).pays() && !plan(SHORT, &[vec![], vec![]]).pays()
    );
    let four: [&[Kernel]; 4] = [&[]; 4];
    assert_eq!(SHORT.plan(&four), Err(TooMany(4)));
}

/// A kernel that ran: tenant, place, from and to, ns, and the part of the SMs.
type Ran = (usize, usize, f64, f64, f64);

#[derive(Default)]
struct Seen {
    ran: Vec<Ran>,
    began: Vec<(usize, usize, [usize; MOST_TENANTS])>,
}

impl Watch for Seen {
    fn ran(&mut self, tenant: usize, kernel: usize, from_ns: f64, to_ns: f64, part: f64) {
        self.ran.push((tenant, kernel, from_ns, to_ns, part));
    }

    fn began(&mut self, tenant: usize, kernel: usize, _: f64, places: [usize; MOST_TENANTS]) {
        self.began.push((tenant, kernel, places));
    }
}

/// Checks that a schedule does all work, within the SMs, in the order of the streams and by the
/// cuts.
fn check(tenants: &[Vec<Kernel>], cuts: &[Cut], seen: &Seen) -> Result<(), TestCaseError> {
    let mut at = 0.0;
    for (tenant, kernels) in tenants.iter().enumerate() {
        let mut ends = std::collections::BTreeMap::new();
        for (place, kernel) in kernels.iter().enumerate() {
            let mine: Vec<&Ran> = seen.ran.iter().filter(|ran| (ran.0, ran.1) == (tenant, place)).collect();
            let area: f64 = mine.iter().map(|(_, _, from, to, part)| (to - from) * part).sum();
            let owed = kernel.duration_ns as f64 * (kernel.width_percent / 100.0);
            prop_assert!((area - owed).abs() < 1e-6 * owed.max(1.0), "{area} of {owed}");
            // The model has four streams; this is a tenant with fewer.
            let end = ends.entry(kernel.stream).or_insert(0.0);
            let from = mine.first().map_or(*end, |ran| ran.2);
            prop_assert!(from >= *end + kernel.pause_ns as f64 - NEGLIGIBLE_NS);
            *end = mine.last().map_or(from, |ran| ran.3);
        }
    }
    for (tenant, kernel, places) in &seen.began {
        let joins = tenants[*tenant][*kernel].joins;
        prop_assert!(!joins || places[*tenant] == *kernel, "{kernel} waits for all before it");
        for cut in cuts.iter().filter(|cut| cut.tenant == *tenant && cut.kernel <= *kernel) {
            prop_assert!(places[cut.other] >= cut.until, "{cut:?} at {places:?}");
        }
    }
    let mut moments: Vec<&Ran> = seen.ran.iter().collect();
    moments.sort_by(|one, other| one.2.total_cmp(&other.2));
    for chunk in moments.chunk_by(|one, other| one.2 == other.2 && one.3 == other.3) {
        let used: f64 = chunk.iter().map(|ran| ran.4).sum();
        prop_assert!(used <= 1.0 + 1e-9, "{used} of all SMs");
        prop_assert!(chunk[0].2 >= at - NEGLIGIBLE_NS, "moments overlap");
        at = chunk[0].3;
    }
    Ok(())
}

fn kernels(most: usize) -> impl Strategy<Value = Vec<Kernel>> {
    let pause_ns = prop_oneof![4 => Just(0), 1 => 0u64..50_000];
    let one = (1u64..200_000, 1u32..=100, 0u64..3, pause_ns, proptest::bool::weighted(0.2));
    let one = one.prop_map(|(duration_ns, width, stream, pause_ns, joins)| Kernel {
        key: duration_ns,
        duration_ns,
        width_percent: f64::from(width),
        // Most kernels are on one stream.
        stream: stream / 2,
        pause_ns,
        joins,
    });
    proptest::collection::vec(one, 0..most)
}

fn any_kernels() -> impl Strategy<Value = Vec<Kernel>> {
    let width = prop_oneof![any::<f64>(), Just(f64::NAN), Just(0.0), Just(-1.0), Just(f64::INFINITY)];
    let time = prop_oneof![any::<u64>(), Just(0), Just(u64::MAX)];
    let one = (any::<u64>(), time.clone(), width, 0u64..9, time, any::<bool>()).prop_map(
        |(key, duration_ns, width_percent, stream, pause_ns, joins)| Kernel {
            key,
            duration_ns,
            width_percent,
            stream,
            pause_ns,
            joins,
        },
    );
    proptest::collection::vec(one, 0..12)
}

fn any_place() -> impl Strategy<Value = usize> {
    prop_oneof![3 => 0usize..5, 1 => any::<usize>()]
}

fn cuts() -> impl Strategy<Value = Vec<Cut>> {
    let one = (0..MOST_TENANTS, 0usize..20, 0..MOST_TENANTS, 0usize..20);
    let one = one.prop_map(|(tenant, kernel, other, until)| Cut { tenant, kernel, other, until });
    proptest::collection::vec(one, 0..6).prop_map(|mut cuts| {
        cuts.sort_unstable();
        cuts
    })
}

proptest! {
    #[test]
    fn a_schedule_keeps_within_the_sms_and_to_every_dependency(
        tenants in proptest::collection::vec(kernels(20), 1..=MOST_TENANTS),
        cuts in cuts(),
    ) {
        let mix = mix(&tenants);
        for sharing in Sharing::ALL {
            let mut seen = Seen::default();
            let Some(time_ns) = mix.run_watched(sharing, &cuts, US, &mut seen) else {
                prop_assert!(!cuts.is_empty(), "without cuts every schedule ends");
                continue;
            };
            check(&tenants, &cuts, &seen)?;
            let bound_ns = mix.area_ns().max(mix.critical_path_ns());
            prop_assert!(time_ns >= bound_ns * (1.0 - 1e-9) - NEGLIGIBLE_NS);
        }
    }

    #[test]
    fn a_plan_that_pays_is_better_than_any_way_without_one(
        tenants in proptest::collection::vec(kernels(25), 1..=MOST_TENANTS),
    ) {
        let plan = plan(SHORT, &tenants);
        let mix = mix(&tenants);
        let alike_ns = mix.run(Sharing::Alike, &[], 0).unwrap();
        prop_assert!(plan.planned_ns <= alike_ns, "a plan without cuts is a plan");
        prop_assert_eq!(mix.run(Sharing::Alike, &plan.cuts, SHORT.switch_ns), Some(plan.planned_ns));
        prop_assert!(plan.planned_ns >= plan.bound_ns * (1.0 - 1e-9));
        let all = Sharing::ALL.map(|sharing| mix.run(sharing, &[], 0).unwrap());
        let best_ns = all.into_iter().fold(mix.sequential_ns(), f64::min);
        prop_assert!(!plan.pays() || plan.planned_ns < best_ns, "{plan:?} beside {best_ns}");
    }

    #[test]
    fn any_kernels_and_cuts_are_harmless(
        tenants in proptest::collection::vec(any_kernels(), 0..=MOST_TENANTS),
        cuts in proptest::collection::vec(
            (any_place(), any_place(), any_place(), any_place())
                .prop_map(|(tenant, kernel, other, until)| Cut { tenant, kernel, other, until }),
            0..6,
        ),
        switch_ns in any::<u64>(),
    ) {
        let mix = mix(&tenants);
        for search in [Search { switch_ns, ..SHORT }, Search { cells: 0, beam: 0, kernels: 0, switch_ns }] {
            let found = plan(search, &tenants);
            prop_assert!(found.planned_ns <= mix.run(Sharing::Alike, &[], 0).unwrap());
            search.assess(&mix, cuts.clone());
        }
    }
}

/// A tenant behind its gate: its launches, with the place of the first one that is not its plan's.
struct Client {
    gate: Gate,
    launches: Vec<(u64, u64)>,
    departs_at: usize,
    done: usize,
    /// The launches that were done when the gate began to count.
    counts_from: Option<usize>,
    /// When its last kernel ends, or its launch asks again, us.
    next_us: u64,
    asks: bool,
}

impl Client {
    fn is_live(&self) -> bool {
        self.done < self.launches.len()
    }

    /// A tenant that has ended is gone, as the daemon tells the others.
    fn place(&self) -> Place {
        let finished = self.done - self.counts_from.unwrap_or(self.done);
        if self.is_live() { self.gate.place(finished as u64) } else { Place::Gone }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn a_gate_never_holds_a_launch_longer_than_its_bound_whatever_departs(
        tenants in proptest::collection::vec(
            (proptest::collection::vec((0u64..4, 1u64..20), 1..12), any::<usize>(), 0usize..80), 2..=MOST_TENANTS,
        ),
        cuts in cuts(),
        bound_us in 0u64..50,
        rounds in 1usize..7,
    ) {
        let mut clients: Vec<Client> = tenants.iter().enumerate().map(|(tenant, (kernels, from, departs_at))| {
            // Keys repeat within an iteration. The plan begins anywhere in it. The launch that
            // departs has a key of no plan.
            let keys: Vec<u64> = kernels.iter().map(|kernel| kernel.0).collect();
            let each = kernels.iter().cycle().skip(from % kernels.len()).take(kernels.len() * rounds);
            let mut launches: Vec<(u64, u64)> = each.copied().collect();
            if let Some(launch) = launches.get_mut(*departs_at) {
                launch.0 = u64::MAX;
            }
            let gate = Gate::new(tenant, keys, &cuts, bound_us);
            let departs_at = *departs_at;
            Client { gate, launches, departs_at, done: 0, counts_from: None, next_us: 0, asks: true }
        }).collect();
        let mut waited_us = vec![0; clients.len()];
        let ideal_us: Vec<u64> =
            clients.iter().map(|client| client.launches.iter().map(|launch| launch.1).sum()).collect();
        let mut ended_us = ideal_us.clone();
        let mut waits_since_us: Vec<Option<u64>> = vec![None; clients.len()];
        let mut changed = false;
        let mut now_us = 0;
        for _ in 0..100_000 {
            // A tenant that waits asks again when the place of another one has changed.
            let times = clients.iter().filter(|client| client.is_live()).map(|client| match client.asks {
                true if changed => now_us,
                _ => client.next_us,
            });
            let Some(next_us) = times.min() else { break };
            now_us = next_us.max(now_us);
            let all_ask = changed;
            changed = false;
            for at in 0..clients.len() {
                let client = &clients[at];
                if !client.is_live() || (client.next_us > now_us && !(client.asks && all_ask)) {
                    continue;
                }
                if !clients[at].asks {
                    clients[at].done += 1;
                    clients[at].asks = true;
                    ended_us[at] = now_us;
                    changed = true;
                    if !clients[at].is_live() {
                        continue;
                    }
                }
                let mut places = [Place::Gone; MOST_TENANTS];
                for (place, client) in places.iter_mut().zip(&clients) {
                    *place = client.place();
                }
                let client = &mut clients[at];
                let (key, takes_us) = client.launches[client.done];
                let (was_planned, before) = (client.gate.is_planned(), client.place());
                let since_us = *waits_since_us[at].get_or_insert(now_us);
                match client.gate.launch(since_us, now_us, key, &places) {
                    Answer::Wait(until_us) => {
                        prop_assert!(was_planned && client.done != client.departs_at);
                        prop_assert!(until_us > now_us && until_us <= since_us + bound_us);
                        let length = tenants[at].0.len();
                        let followed = client.done - client.counts_from.unwrap_or(client.done);
                        let here = (followed / length) as u64;
                        // Each cut of an earlier launch is passed.
                        let is_ahead = |cut: &Cut| match places[cut.other] {
                            Place::At { iterations, kernel } => {
                                (cut.tenant, cut.kernel) == (at, followed % length)
                                    && (iterations, kernel) < (here, cut.until)
                            }
                            _ => false,
                        };
                        let comes = |other: usize| matches!(places[other], Place::Coming | Place::Ready);
                        let meets = followed == 0 && (0..MOST_TENANTS).any(|other| other != at && comes(other));
                        prop_assert!(meets || cuts.iter().any(is_ahead), "nobody comes to {places:?}");
                        client.next_us = until_us;
                    }
                    Answer::Launch => {
                        let wait_us = waits_since_us[at].take().map_or(0, |since_us| now_us - since_us);
                        prop_assert!(wait_us <= bound_us, "{wait_us} of {bound_us}");
                        waited_us[at] += wait_us;
                        prop_assert!(client.done != client.departs_at || !client.gate.counts());
                        (client.asks, client.next_us) = (false, now_us + takes_us);
                    }
                }
                if client.gate.counts() {
                    client.counts_from.get_or_insert(client.done);
                }
                changed |= client.place() != before;
            }
        }
        for at in 0..clients.len() {
            prop_assert_eq!(clients[at].done, clients[at].launches.len(), "all launches are through");
            prop_assert_eq!(ended_us[at], ideal_us[at] + waited_us[at], "nothing else delays a tenant");
        }
    }
}

fn places() -> impl Strategy<Value = [Place; MOST_TENANTS]> {
    let at = (any::<u64>(), any_place()).prop_map(|(iterations, kernel)| Place::At { iterations, kernel });
    let place =
        prop_oneof![3 => at, 1 => Just(Place::Coming), 1 => Just(Place::Ready), 1 => Just(Place::Gone)];
    [place.clone(), place.clone(), place]
}

proptest! {
    #[test]
    fn any_plan_and_any_places_hold_a_launch_for_its_bound_at_most(
        tenant in any_place(),
        keys in proptest::collection::vec(0u64..3, 0..6),
        cuts in proptest::collection::vec(
            (any_place(), any_place(), any_place(), any_place())
                .prop_map(|(tenant, kernel, other, until)| Cut { tenant, kernel, other, until }),
            0..6,
        ),
        wait_limit_ns in any::<u64>(),
        launches in proptest::collection::vec((0u64..3, places(), any::<u64>()), 0..60),
    ) {
        let mut gate = Gate::new(tenant, keys, &cuts, wait_limit_ns);
        for (key, others, finished) in launches {
            if let Answer::Wait(until_ns) = gate.launch(7, 7, key, &others) {
                prop_assert!(until_ns > 7 && until_ns - 7 <= wait_limit_ns);
                prop_assert_eq!(gate.launch(7, until_ns, key, &others), Answer::Launch);
            }
            gate.place(finished);
        }
    }
}

/// The places of tenants of which each is at this kernel of its first iteration.
fn all_at(iterations: u64, kernel: usize) -> [Place; MOST_TENANTS] {
    [Place::At { iterations, kernel }; MOST_TENANTS]
}

/// Returns the gate of tenant 0, which has gone through an iteration and met the others.
fn met(keys: &[u64], cuts: &[Cut], wait_limit_ns: u64) -> Gate {
    let mut gate = Gate::new(0, keys.to_vec(), cuts, wait_limit_ns);
    for key in keys {
        assert_eq!((gate.launch(0, 0, *key, &all_at(0, 0)), gate.counts()), (Answer::Launch, false));
    }
    assert_eq!(gate.place(0), Place::Ready);
    gate
}

#[test]
fn a_gate_finds_its_iteration_wherever_the_plan_begins() {
    let iteration = [1, 1, 2, 1, 1, 3];
    for from in 0..iteration.len() {
        let mut gate = Gate::new(0, iteration.to_vec(), &[], 0);
        let mut launches = iteration.iter().cycle().skip(from);
        let mut sought = 0;
        while gate.place(0) == Place::Coming {
            assert_eq!(gate.launch(0, 0, *launches.next().unwrap(), &all_at(0, 0)), Answer::Launch);
            sought += 1;
        }
        assert!(sought < 2 * iteration.len(), "from {from}: {sought}");
        assert!((from + sought).is_multiple_of(iteration.len()), "from {from}: {sought}");
        assert_eq!(gate.launch(0, 0, 7, &all_at(0, 0)), Answer::Launch);
        assert_eq!(gate.place(0), Place::Gone, "another launch than the plan's");
    }
    // A sequence that never is the iteration is sought for ever, and never waits.
    let mut gate = Gate::new(0, iteration.to_vec(), &[], 0);
    assert!((0..100).all(|at| gate.launch(0, 0, at % 3, &all_at(0, 0)) == Answer::Launch));
    assert_eq!(gate.place(0), Place::Coming);
}

#[test]
fn tenants_meet_at_the_beginning_of_an_iteration_before_any_cut_counts() {
    let others = |place| [Place::Ready, place, Place::Gone];
    let mut gate = met(&[1, 2], &[], 10);
    for key in [1, 2, 1, 2] {
        assert_eq!(gate.launch(0, 0, key, &others(Place::Coming)), Answer::Launch, "one still seeks");
    }
    let mut late = gate.clone();
    assert_eq!(gate.launch(5, 5, 1, &others(Place::Ready)), Answer::Wait(15));
    assert!(gate.counts() && gate.place(0) == Place::At { iterations: 0, kernel: 0 });
    assert_eq!(gate.launch(5, 9, 1, &others(Place::At { iterations: 0, kernel: 0 })), Answer::Launch);
    assert!(gate.counts());
    assert_eq!(late.launch(5, 5, 1, &others(Place::Ready)), Answer::Wait(15));
    assert_eq!(late.launch(5, 15, 1, &others(Place::Ready)), Answer::Launch);
    assert_eq!(late.place(0), Place::Gone, "the other one did not come");
}

#[test]
fn a_place_changes_only_where_another_tenant_waits() {
    let cuts = [2, 4].map(|until| Cut { tenant: 1, kernel: until, other: 0, until });
    let mut gate = met(&[1, 2, 3, 4], &cuts, 10);
    let mut awaited = Vec::new();
    for key in [1, 2, 3, 4, 1, 2] {
        assert_eq!(gate.launch(0, 0, key, &all_at(0, 0)), Answer::Launch);
        awaited.push(gate.is_awaited());
    }
    assert_eq!(awaited, [false, true, false, true, false, true]);
    let kernels = [0, 1, 2, 3, 4, 5, 6].map(|finished| gate.place(finished));
    let at = |iterations, kernel| Place::At { iterations, kernel };
    assert_eq!(kernels, [at(0, 0), at(0, 0), at(0, 2), at(0, 2), at(1, 0), at(1, 0), at(1, 2)]);
}

#[test]
fn a_gate_whose_waits_are_in_vain_drops_the_plan() {
    let cuts: Vec<Cut> = (0..5).map(|kernel| Cut { tenant: 0, kernel, other: 1, until: 9 }).collect();
    let mut gate = met(&[1, 2, 3, 4, 5], &cuts, 10);
    let stays = all_at(0, 0);
    for miss in 0..MOST_MISSES {
        assert!(gate.is_planned());
        let key = u64::from(miss) + 1;
        assert_eq!(gate.launch(0, 0, key, &stays), Answer::Wait(10));
        assert_eq!(gate.launch(0, 4, key, &stays), Answer::Wait(10));
        assert_eq!(gate.launch(0, 10, key, &stays), Answer::Launch);
    }
    assert!(!gate.is_planned());
    assert_eq!(gate.launch(11, 11, 4, &stays), Answer::Launch);
}

#[test]
fn launches_of_several_threads_wait_for_the_bound_together() {
    let cuts = [0, 1].map(|kernel| Cut { tenant: 0, kernel, other: 1, until: 9 });
    let mut gate = met(&[1, 1], &cuts, 10);
    let stays = all_at(0, 0);
    assert_eq!(gate.launch(0, 0, 1, &stays), Answer::Wait(10));
    assert_eq!(gate.launch(2, 2, 1, &stays), Answer::Wait(12), "the launch of another thread");
    assert_eq!(gate.launch(0, 10, 1, &stays), Answer::Launch);
    assert_eq!(gate.launch(2, 11, 1, &stays), Answer::Wait(12), "the wait does not begin anew");
    assert_eq!(gate.launch(2, 12, 1, &stays), Answer::Launch);
}

#[test]
fn a_gate_opens_when_the_other_tenant_is_there_or_gone_in_each_iteration() {
    let cut = Cut { tenant: 0, kernel: 1, other: 1, until: 2 };
    let mut gate = met(&[1, 2], &[cut], 100);
    for iterations in 0..3 {
        assert_eq!(gate.launch(0, 0, 1, &all_at(iterations, 0)), Answer::Launch);
        assert_eq!(gate.launch(5, 5, 2, &all_at(iterations, 1)), Answer::Wait(105));
        assert_eq!(gate.launch(5, 6, 2, &all_at(iterations, 2)), Answer::Launch);
    }
    assert_eq!(gate.launch(7, 7, 1, &all_at(0, 0)), Answer::Launch);
    assert_eq!(gate.launch(8, 8, 2, &[Place::Gone; MOST_TENANTS]), Answer::Launch);
    assert!(gate.is_planned());
    assert_eq!(gate.launch(9, 9, 5, &all_at(0, 0)), Answer::Launch, "another launch than the plan's");
    assert!(!gate.is_planned());
}
