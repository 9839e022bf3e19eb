//! Tests of topology and placement.

use super::*;
use alloc::collections::BTreeMap;
use core::num::NonZero;
use deepres_abi::{MAX_GPUS, PPM};
use proptest::prelude::*;
use std::time::{Duration, Instant};

const WHOLE: Room = Room { share_ppm: PPM, memory_bytes: 1 << 30, singles: 0, gangs: 0 };
const TAKEN: Room = Room { share_ppm: 0, memory_bytes: 0, singles: 1, gangs: 0 };

/// Returns a GPU's room beside a single share of `percent`.
fn beside(percent: u32) -> Room {
    Room { share_ppm: PPM - percent * (PPM / 100), singles: 1, ..WHOLE }
}

fn asks(gpus: usize, percent: u32) -> Request {
    let gpus = NonZero::new(gpus).unwrap();
    Request { gpus, share_ppm: percent * (PPM / 100), memory_bytes: 1 << 20, among: GpuSet::first(MAX_GPUS) }
}

fn placed(topology: &Topology, rooms: &[Room], request: Request) -> (Vec<usize>, Criterion) {
    let placement = place(topology, rooms, &request).unwrap();
    (placement.gpus.iter().collect(), placement.why.decided_by)
}

fn links(count: usize, remote: Remote) -> Vec<NvLink> {
    vec![NvLink { generation: 3, remote }; count]
}

/// Returns a GPU with these links on this NUMA node.
fn gpu(links: Vec<NvLink>, numa_node: u32) -> Gpu {
    Gpu { links, numa_node: Some(numa_node), fabric: None }
}

/// Returns the common ancestor of GPUs of which each `per_node` are on one NUMA node, and each two
/// neighbours behind one switch.
fn in_pairs(per_node: usize) -> impl Fn(usize, usize) -> Wire {
    move |a, b| {
        let level = match () {
            () if a / 2 == b / 2 => Level::Pix,
            () if a / per_node == b / per_node => Level::Node,
            () => Level::System,
        };
        Wire { level, p2p: None }
    }
}

/// Returns `count` GPUs behind an NVSwitch, half of them on each of two NUMA nodes.
fn switched(count: usize) -> Topology {
    let half = count / 2;
    let gpus = (0..count).map(|place| gpu(links(12, Remote::Switch), (place / half) as u32));
    Topology::new(gpus.collect(), in_pairs(half), &BTreeMap::new())
}

/// Returns `count` GPUs without NVLinks, four on each NUMA node, in pairs behind switches.
fn pci(count: usize) -> Topology {
    let gpus = (0..count).map(|place| gpu(vec![], (place / 4) as u32));
    Topology::new(gpus.collect(), in_pairs(4), &BTreeMap::new())
}

/// Returns four GPUs of which 0 and 2, and 1 and 3, have NVLinks, across two NUMA nodes.
fn straddling() -> Topology {
    let gpus = (0..4).map(|place| gpu(links(4, Remote::Gpu(place ^ 2)), (place / 2) as u32));
    Topology::new(gpus.collect(), in_pairs(2), &BTreeMap::new())
}

#[test]
fn links_through_a_switch_count_for_each_pair_of_a_clique() {
    let mut gpus: Vec<Gpu> = (0..3).map(|place| gpu(links(18 - place, Remote::Switch), 0)).collect();
    let topology = |gpus: &[Gpu]| Topology::new(gpus.to_vec(), in_pairs(4), &BTreeMap::new());
    let both = topology(&gpus);
    assert_eq!((both.pair(0, 2).links, both.pair(0, 2).is_switched), (16, true), "the lesser number");
    assert_eq!(both.pair(2, 0), both.pair(0, 2));
    assert_eq!(both.links().count(), 3);
    for (gpu, clique) in gpus.iter_mut().zip([1, 1, 2]) {
        gpu.fabric = Some(Fabric { cluster: [7; 16], clique });
    }
    let apart = topology(&gpus);
    assert_eq!((apart.pair(0, 1).links, apart.pair(0, 2).links), (17, 0));
    assert_eq!(apart.pair(0, 2).mb_s, bandwidth::pci_mb_s(Level::Node));
}

#[test]
fn tiers_divide_the_gpus_from_near_to_far() {
    let all = GpuSet::first(4);
    let sets = |sets: &[&[usize]]| sets.iter().map(|set| set.iter().copied().collect()).collect();
    let topology = straddling();
    let expected: [Vec<GpuSet>; 5] = [
        sets(&[&[0, 2], &[1, 3]]),
        sets(&[&[0, 1], &[2, 3]]),
        sets(&[&[0, 1], &[2, 3]]),
        sets(&[&[0, 1], &[2, 3]]),
        sets(&[&[0, 1, 2, 3]]),
    ];
    for (tier, parts) in Tier::ALL.into_iter().zip(expected) {
        assert_eq!(topology.components(tier, all), parts, "{tier:?}");
    }
    assert_eq!(topology.tier([0, 2].into_iter().collect(), all), Tier::NvLink);
    assert_eq!(topology.tier([0, 1].into_iter().collect(), all), Tier::Switch);
    assert_eq!(topology.tier([0, 3].into_iter().collect(), all), Tier::Any);
}

#[test]
fn the_tree_divides_by_the_far_tiers_first() {
    let tree = pci(8).tree();
    assert_eq!((tree.tier, tree.branches.len()), (Tier::Any, 2), "two NUMA nodes");
    let node = &tree.branches[1];
    assert_eq!((node.tier, node.gpus), (Tier::NumaNode, [4, 5, 6, 7].into_iter().collect()));
    let switches: Vec<_> = node.branches.iter().map(|branch| (branch.tier, branch.gpus.len())).collect();
    assert_eq!(switches, [(Tier::Switch, 2); 2]);
    assert!(node.branches.iter().all(|branch| branch.branches.is_empty()));
}

#[test]
fn numa_distances_find_the_processor_where_every_pair_is_far() {
    // Four NUMA nodes on each of two processors, a GPU on each: every common ancestor is SYS.
    let gpus = (0..8).map(|place| gpu(vec![], place)).collect();
    let near = |a: u32, b: u32| if a / 4 == b / 4 { 12 } else { 32 };
    let distances = (0..8).flat_map(|a| (a + 1..8).map(move |b| ((a, b), near(a, b)))).collect();
    let topology = Topology::new(gpus, |_, _| Wire { level: Level::System, p2p: None }, &distances);
    let all = GpuSet::first(8);
    assert_eq!(topology.components(Tier::NumaNode, all).len(), 8);
    assert_eq!(topology.components(Tier::NearNodes, all).len(), 2);
    let mut rooms = [WHOLE; 8];
    rooms[0] = TAKEN;
    let expected = (vec![1, 2], Criterion::Order);
    assert_eq!(placed(&topology, &rooms, asks(2, 100)), expected, "the broken processor first");
    assert_eq!(placed(&topology, &rooms, asks(4, 100)), (vec![4, 5, 6, 7], Criterion::Near));
}

#[test]
fn nvlinks_count_more_than_numa_nodes() {
    assert_eq!(placed(&straddling(), &[WHOLE; 4], asks(2, 100)).0, [0, 2]);
    let rooms = [TAKEN, WHOLE, WHOLE, WHOLE];
    assert_eq!(placed(&straddling(), &rooms, asks(2, 100)), (vec![1, 3], Criterion::Bandwidth));
}

#[test]
fn a_job_behind_an_nvswitch_stays_on_one_numa_node() {
    let mut rooms = [WHOLE; 8];
    rooms[..2].fill(TAKEN);
    let (gpus, decided_by) = placed(&switched(8), &rooms, asks(4, 100));
    assert_eq!((gpus, decided_by), (vec![4, 5, 6, 7], Criterion::Near));
    let (gpus, decided_by) = placed(&switched(8), &rooms, asks(2, 100));
    assert_eq!((gpus, decided_by), (vec![2, 3], Criterion::Left), "the other node stays whole");
}

#[test]
fn a_single_share_goes_where_it_fits_best() {
    let rooms = [WHOLE, beside(20), beside(60), beside(80)];
    assert_eq!(placed(&pci(4), &rooms, asks(1, 30)), (vec![2], Criterion::Fit));
    assert_eq!(placed(&pci(4), &rooms, asks(1, 100)), (vec![0], Criterion::OnlyOne));
    // GPU 1 has lost its neighbour, so a pair is left if the job takes GPU 1.
    let rooms = [TAKEN, WHOLE, WHOLE, WHOLE];
    assert_eq!(placed(&pci(4), &rooms, asks(1, 50)), (vec![1], Criterion::Left));
}

#[test]
fn gangs_fill_gpus_of_gangs_and_keep_apart_from_fragments() {
    let halves = Room { share_ppm: PPM / 2, gangs: 1, ..WHOLE };
    let rooms = [beside(10), beside(10), WHOLE, WHOLE, halves, halves, WHOLE, WHOLE];
    let expected = (vec![4, 5], Criterion::Fit);
    assert_eq!(placed(&switched(8), &rooms, asks(2, 50)), expected, "the GPUs of the other gang");
    let rooms = [beside(50), beside(50), halves, halves];
    assert_eq!(placed(&switched(4), &rooms, asks(2, 50)), (vec![2, 3], Criterion::Apart));
    assert_eq!(placed(&switched(4), &[halves, beside(50)], asks(1, 20)), (vec![1], Criterion::Apart));
}

#[test]
fn a_job_without_a_share_goes_where_most_is_left() {
    let crowded = Room { singles: 2, ..WHOLE };
    let rooms = [beside(30), Room { singles: 1, ..WHOLE }, crowded, WHOLE];
    assert_eq!(placed(&pci(4), &rooms, asks(1, 0)), (vec![3], Criterion::OnlyOne));
    assert_eq!(placed(&switched(4), &rooms, asks(2, 0)), (vec![1, 3], Criterion::OnlyOne));
    // A set of GPUs with the same left has more bandwidth. Of equal ones, the emptier counts.
    let rooms = [Room { gangs: 1, ..WHOLE }, Room { singles: 1, ..WHOLE }, Room { gangs: 1, ..WHOLE }, WHOLE];
    assert_eq!(placed(&straddling(), &rooms, asks(2, 0)), (vec![1, 3], Criterion::MostLeft));
    let full = [beside(100); 4];
    assert_eq!(placed(&pci(4), &full, asks(4, 0)).0, [0, 1, 2, 3], "it fits everywhere");
}

#[test]
fn direct_copies_are_required_where_they_exist() {
    let answers = |pairs: &'static [(usize, usize)]| {
        move |a, b| {
            let p2p = Some(if pairs.contains(&(a, b)) { P2p::Ok } else { P2p::Chipset });
            // The GPUs that cannot copy directly are on one board.
            Wire { level: if pairs.contains(&(a, b)) { Level::System } else { Level::Board }, p2p }
        }
    };
    let of = |pairs| Topology::new(vec![Gpu::default(); 4], answers(pairs), &BTreeMap::new());
    assert_eq!(placed(&of(&[(1, 3)]), &[WHOLE; 4], asks(2, 100)), (vec![1, 3], Criterion::P2p));
    let placement = place(&of(&[]), &[WHOLE; 4], &asks(2, 100)).unwrap();
    assert_eq!((placement.why.has_p2p, placement.why.weakest_mb_s), (false, Some(0)));
}

#[test]
fn a_refusal_tells_fragments_from_want() {
    let rooms = [beside(60); 4];
    let refusal = place(&pci(4), &rooms, &asks(1, 90)).unwrap_err();
    assert!(refusal.is_by_fragments());
    assert_eq!(
        refusal.to_string(),
        "the job asks for a GPU: 0 of 4 have room, and what is free on the others is too little on each; \
         ask for less"
    );
    assert!(!place(&pci(4), &rooms, &asks(2, 90)).unwrap_err().is_by_fragments());
    let refusal = place(&pci(4), &rooms, &asks(5, 1)).unwrap_err();
    assert_eq!(refusal.to_string(), "the job asks for 5 GPUs: the machine has 4");
}

#[test]
fn a_placement_says_why() {
    let why = |rooms: &[Room], request| place(&straddling(), rooms, &request).unwrap().why.to_string();
    assert_eq!(
        why(&[TAKEN, WHOLE, WHOLE, WHOLE], asks(2, 100)),
        "GPUs with room: 3; the chosen are joined by NVLinks, with 80.0 GB/s a pair and 80.0 GB/s in \
         the weakest pair; of 3 sets this one, because its pairs have the most bandwidth"
    );
    assert_eq!(
        why(&[beside(50), WHOLE], asks(1, 50)),
        "GPUs with room: 2; of 2 sets this one, because it leaves the least unused, so that other \
         GPUs stay whole"
    );
}

/// Tests that measure. Each job runs alone on the machine.
mod measured {
    use super::*;

    #[test]
    fn sixteen_gpus_take_a_millisecond_at_most() {
        for topology in [switched(MAX_GPUS), pci(MAX_GPUS)] {
            let took = |_| {
                let began = Instant::now();
                place(&topology, &[WHOLE; MAX_GPUS], &asks(MAX_GPUS / 2, 100)).unwrap();
                began.elapsed()
            };
            // Other work of the machine can hold up single runs.
            let least = (0..20).map(took).min().unwrap();
            assert!(least < Duration::from_millis(1), "{least:?}");
        }
    }
}

fn any_level() -> impl Strategy<Value = Level> {
    let levels = [Level::Board, Level::Pix, Level::Pxb, Level::Phb, Level::Node, Level::System];
    prop::sample::select(levels.to_vec())
}

fn any_room() -> impl Strategy<Value = Room> {
    (0..=10_u32, 0..4_u64, 0..3_u32, 0..3_u32).prop_map(|(tenths, memory_bytes, singles, gangs)| Room {
        share_ppm: tenths * (PPM / 10),
        memory_bytes,
        singles,
        gangs,
    })
}

/// Any machine with up to eight GPUs, with NVLinks in any pairs, and its rooms.
fn any_machine() -> impl Strategy<Value = (Topology, Vec<Room>)> {
    (1..=8_usize).prop_flat_map(|count| {
        let wires = prop::collection::vec((any_level(), any::<bool>()), count * count);
        let links = prop::collection::vec(0..4_usize, count * count);
        let nodes = prop::collection::vec(prop::option::of(0..3_u32), count);
        let rooms = prop::collection::vec(any_room(), count);
        (wires, links, nodes, rooms).prop_map(move |(wires, counts, nodes, rooms)| {
            let gpu = |a: usize| Gpu {
                links: (a + 1..count).flat_map(|b| links_to(counts[a * count + b], b)).collect(),
                numa_node: nodes[a],
                fabric: None,
            };
            let wire = |a: usize, b: usize| {
                let (level, is_able) = wires[a * count + b];
                Wire { level, p2p: Some(if is_able { P2p::Ok } else { P2p::Unknown }) }
            };
            (Topology::new((0..count).map(gpu).collect(), wire, &BTreeMap::new()), rooms)
        })
    })
}

fn links_to(count: usize, gpu: usize) -> Vec<NvLink> {
    links(count, Remote::Gpu(gpu))
}

/// Returns what counts most of a set: direct copies, bandwidth, and the weakest pair.
fn worth(topology: &Topology, set: GpuSet) -> (bool, u64, u32) {
    let pairs: Vec<&Pair> = set.pairs().map(|(a, b)| topology.pair(a, b)).collect();
    let all = pairs.iter().all(|pair| pair.has_p2p());
    let sum = pairs.iter().map(|pair| u64::from(pair.mb_s)).sum();
    (all, sum, pairs.iter().map(|pair| pair.mb_s).min().unwrap_or(0))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn no_set_with_room_is_better(
        (topology, rooms) in any_machine(), gpus in 1..=8_usize, tenths in 1..=10_u32, memory_bytes in 0..4_u64,
        among in any::<u32>()
    ) {
        let gpus = NonZero::new(gpus).unwrap();
        let among = GpuSet::from_bits(among);
        let request = Request { gpus, share_ppm: tenths * (PPM / 10), memory_bytes, among };
        let has_room = |gpu: &usize| {
            rooms[*gpu].share_ppm >= request.share_ppm && rooms[*gpu].memory_bytes >= memory_bytes
        };
        let with_room: GpuSet = (0..topology.len()).filter(has_room).filter(|gpu| among.contains(*gpu)).collect();
        let sets = (0..1 << topology.len()).map(GpuSet::from_bits);
        let best = sets
            .filter(|set| set.len() == gpus.get() && set.is_within(with_room))
            .map(|set| worth(&topology, set))
            .max();
        match place(&topology, &rooms, &request) {
            Ok(Placement { gpus: set, why }) => {
                prop_assert!(set.len() == gpus.get() && set.is_within(with_room));
                prop_assert_eq!(Some(worth(&topology, set)), best);
                prop_assert_eq!(why.has_p2p, worth(&topology, set).0);
            }
            Err(refusal) => {
                prop_assert_eq!(best, None);
                prop_assert_eq!(refusal.with_room, with_room.len());
            }
        }
    }

    #[test]
    fn a_single_share_takes_the_gpu_with_the_least_room(
        (topology, rooms) in any_machine(), tenths in 1..=9_u32
    ) {
        let full = |room: &Room| if room.is_whole() { Room { share_ppm: PPM, ..WHOLE } } else { *room };
        let rooms: Vec<Room> = rooms.iter().map(full).collect();
        let request = Request { memory_bytes: 0, ..asks(1, tenths * 10) };
        if let Ok(placement) = place(&topology, &rooms, &request) {
            let chosen = &rooms[placement.gpus.iter().next().unwrap()];
            let fits = rooms.iter().filter(|room| room.share_ppm >= request.share_ppm);
            prop_assert_eq!(fits.map(|room| room.share_ppm).min(), Some(chosen.share_ppm));
        }
    }

    #[test]
    fn components_divide_the_gpus((topology, _) in any_machine(), bits in any::<u32>()) {
        let among = GpuSet::from_bits(bits) & GpuSet::first(topology.len());
        for tier in Tier::ALL {
            let parts = topology.components(tier, among);
            let all = parts.iter().fold(GpuSet::EMPTY, |all, part| all | *part);
            prop_assert_eq!(all, among);
            prop_assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), among.len());
        }
    }
}
