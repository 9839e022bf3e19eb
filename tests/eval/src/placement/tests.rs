//! Tests of the matrices, of the other policies, and of deepres beside them.

use std::num::NonZero;

use deepres_abi::{MAX_GPUS, PPM};
use deepres_policy::placement::{GpuSet, Level, P2p, Request, Room, Tier, Topology, bandwidth};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::matrix::{Flaw, Matrix};
use super::policy::{Policy, with_room};
use super::reference::{Reference, subsets};
use super::{Row, arrivals, evaluate, files, ours};

/// The policy of deepres, and those of other systems.
const SYSTEMS: [Policy; 5] =
    [Policy::Deepres, Policy::GpuManager, Policy::GoGpuallocator, Policy::Hami, Policy::VgpuManager];

/// The seeds of the arrivals in the deep track.
const SEEDS: [u64; 5] = [1, 2, 3, 4, 5];

/// Of the random sets of free GPUs, one of this many gets a job of each size.
const EVERY: usize = 5;

fn text(name: &str) -> String {
    let file = ours().join(name).with_extension("txt");
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn matrix(name: &str) -> Matrix {
    Matrix::parse(name, &text(name)).unwrap_or_else(|flaw| panic!("{name}: {flaw}"))
}

/// Returns all usable matrices that come with deepres.
fn all() -> Vec<Matrix> {
    let files = files(&ours()).unwrap().into_iter();
    let name = |file: std::path::PathBuf| file.file_stem().unwrap().to_string_lossy().into_owned();
    files.map(name).filter_map(|name| Matrix::parse(&name, &text(&name)).ok()).collect()
}

/// Returns machines that no file has: four GPUs whose NVLinks all lead to the other NUMA node, a
/// ring of eight GPUs with cross links, and sixteen GPUs in uneven pairs.
fn made_up() -> [Matrix; 3] {
    let across = made("across", 4, 2, |a, b| match () {
        () if a ^ 2 == b => "NV4".to_owned(),
        () if a / 2 == b / 2 => "PIX".to_owned(),
        () => "SYS".to_owned(),
    });
    let ring = made("ring", 8, 4, |a, b| match (b - a, a / 4 == b / 4) {
        (1 | 7, _) => "NV2".to_owned(),
        (4, _) => "NV1".to_owned(),
        (_, true) => "NODE".to_owned(),
        (_, false) => "SYS".to_owned(),
    });
    let pairs = made("uneven-pairs", 16, 8, |a, b| match () {
        () if a / 2 == b / 2 => format!("NV{}", 1 + a / 2 % 4),
        () if a / 4 == b / 4 => "PXB".to_owned(),
        () if a / 8 == b / 8 => "NODE".to_owned(),
        () => "SYS".to_owned(),
    });
    [across, ring, pairs]
}

/// Returns a machine with `per_node` GPUs on each NUMA node. `cell` gives the cell of two GPUs, the
/// lower first.
fn made(name: &str, gpus: usize, per_node: usize, cell: impl Fn(usize, usize) -> String) -> Matrix {
    let cell = |a: usize, b: usize| if a == b { " X ".to_owned() } else { cell(a.min(b), a.max(b)) };
    let row = |a: usize| (0..gpus).map(|b| cell(a, b)).collect::<Vec<_>>().join("\t");
    let names = (0..gpus).map(|gpu| format!("GPU{gpu}")).collect::<Vec<_>>().join("\t");
    let rows: String = (0..gpus).map(|a| format!("GPU{a}\t{}\t{}\n", row(a), a / per_node)).collect();
    Matrix::parse(name, &format!("\t{names}\tNUMA Affinity\n{rows}")).unwrap()
}

fn set(gpus: &[usize]) -> GpuSet {
    gpus.iter().copied().collect()
}

/// Returns rooms of a machine on which only these GPUs are free.
fn only(free: GpuSet, gpus: usize) -> Vec<Room> {
    let room = |gpu: usize| match free.contains(gpu) {
        true => Room { share_ppm: PPM, ..Room::default() },
        false => Room { singles: 1, ..Room::default() },
    };
    (0..gpus).map(room).collect()
}

fn asks(gpus: usize) -> Request {
    let gpus = NonZero::new(gpus).unwrap();
    Request { gpus, share_ppm: PPM, memory_bytes: 0, among: GpuSet::first(MAX_GPUS) }
}

fn placed(policy: Policy, topology: &Topology, free: GpuSet, gpus: usize) -> Option<GpuSet> {
    policy.placer(topology).place(&only(free, topology.len()), &asks(gpus))
}

#[test]
fn every_matrix_is_read_or_named_with_its_flaw() {
    let missing = |a: &str, b: &str| Err(Flaw::Missing(a.to_owned(), b.to_owned()));
    let gpus: Vec<(String, Result<usize, Flaw>)> = files(&ours())
        .unwrap()
        .into_iter()
        .map(|file| {
            let name = file.file_stem().unwrap().to_string_lossy().into_owned();
            let parsed = Matrix::parse(&name, &text(&name));
            (name, parsed.map(|matrix| matrix.topology.len()))
        })
        .collect();
    let expected = [
        ("2gpu-container-blank-affinity", Ok(2)),
        ("2gpu-phb-and-p2p", Ok(2)),
        ("4gpu-nv4-pairs", Ok(4)),
        ("4xa100-nvlink-pairs-2socket", Ok(4)),
        ("4xa100-sxm-nv4-mesh", Ok(4)),
        ("6gpu-pix-node-sys-measured", Ok(6)),
        ("8gpu-node-sys", Ok(8)),
        ("8gpu-pix-node-sys", Ok(8)),
        ("8gpu-pix-quads", Ok(8)),
        ("8x4090-epyc-nps4-all-sys", Ok(8)),
        ("ansi-header", Ok(8)),
        ("dgx-a100-completed", Ok(8)),
        ("dgx-a100-rows0-5", missing("GPU6", "GPU7")),
        ("dgx1-v100", Ok(8)),
        ("dgx2-v100-16-completed", Ok(16)),
        ("dgx2-v100-16-rows0-3", missing("GPU4", "GPU5")),
        ("hgx-a100-2numa", Ok(8)),
        ("hgx-h100", Ok(8)),
        ("topo-mp-completed", Ok(8)),
        ("topo-mp-hides-nvlink", missing("GPU4", "GPU5")),
    ];
    assert_eq!(gpus, expected.map(|(name, parsed)| (name.to_owned(), parsed)));
}

#[test]
fn completed_matrices_keep_the_rows_that_were_found() {
    for (whole, part) in
        [("dgx-a100-completed", "dgx-a100-rows0-5"), ("dgx2-v100-16-completed", "dgx2-v100-16-rows0-3")]
    {
        let (whole, part) = (text(whole), text(part));
        let mut rows = part.lines().filter(|line| line.starts_with("GPU"));
        assert!(rows.all(|row| whole.lines().any(|other| other == row)));
    }
}

#[test]
fn nvlinks_hide_the_common_ancestor_which_the_nics_tell() {
    let dgx1 = matrix("dgx1-v100").topology;
    let pair = |a, b| (dgx1.pair(a, b).links, dgx1.pair(a, b).wire.level);
    assert_eq!([pair(0, 1), pair(2, 3)], [(1, Level::Pix), (2, Level::Pix)]);
    assert_eq!(
        [pair(0, 2), pair(0, 4), pair(0, 7)],
        [(1, Level::Phb), (2, Level::System), (0, Level::System)]
    );
    assert!(!dgx1.pair(0, 4).is_switched);
    let hgx = matrix("hgx-a100-2numa").topology;
    assert_eq!((hgx.pair(0, 7).links, hgx.pair(0, 7).is_switched), (12, true));
    let level = |a, b| hgx.pair(a, b).wire.level;
    assert_eq!(
        [level(0, 1), level(0, 2), level(2, 3), level(3, 4)],
        [Level::Pxb, Level::Node, Level::Node, Level::System]
    );
    let dgx2 = matrix("dgx2-v100-16-completed").topology;
    assert_eq!((dgx2.pair(0, 15).links, dgx2.pair(0, 15).is_switched), (6, true));
}

#[test]
fn odd_texts_are_read() {
    let ansi = matrix("ansi-header").topology;
    assert_eq!((ansi.pair(0, 7).links, ansi.gpus()[7].numa_node), (18, Some(1)));
    let blank = matrix("2gpu-container-blank-affinity").topology;
    assert_eq!((blank.gpus()[0].numa_node, blank.pair(0, 1).wire.level), (None, Level::Pxb));
    let mesh = matrix("4xa100-sxm-nv4-mesh").topology;
    assert_eq!((mesh.gpus()[0].numa_node, mesh.pair(0, 3).is_switched), (None, false));
    let refused = matrix("2gpu-phb-and-p2p").topology;
    let pair = refused.pair(0, 1);
    assert_eq!((pair.wire.p2p, pair.mb_s), (Some(P2p::Gpu), bandwidth::WITHOUT_P2P_MB_S));
    let near = matrix("8x4090-epyc-nps4-all-sys").topology;
    assert_eq!(
        near.gpus().iter().map(|gpu| gpu.numa_node.unwrap()).collect::<Vec<_>>(),
        [3, 2, 1, 0, 7, 6, 5, 4]
    );
    let run_together = "GPU0 GPU1 GPU2 GPU3 CPU Affinity\nGPU0 XNODE SYS NV4 0-7\nGPU1 NODEXPXBNODE 0-7\n\
         GPU2 SYSPXB X PIX 8-15\n";
    let topology = Matrix::parse("odd", run_together).unwrap().topology;
    assert_eq!((topology.pair(0, 1).wire.level, topology.pair(1, 2).wire.level), (Level::Node, Level::Pxb));
    assert_eq!((topology.pair(0, 3).links, topology.gpus()[2].numa_node), (4, Some(2)));
    assert_eq!(Matrix::parse("none", "(none)\n").unwrap_err(), Flaw::NoMatrix);
    assert_eq!(Matrix::parse("one", "\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n").unwrap_err(), Flaw::OneGpu);
}

#[test]
fn the_other_policies_follow_their_rules() {
    let all = GpuSet::first(8);
    let dgx1 = matrix("dgx1-v100").topology;
    let chosen = |policy, free, gpus| placed(policy, &dgx1, free, gpus).unwrap();
    // The tree knows that 0 and 1 are behind one switch, and not that 0 and 3 have more links.
    assert_eq!(chosen(Policy::GpuManager, all, 2), set(&[0, 1]));
    // The others know it. Their scores count both the switch and the links. go-gpuallocator divides
    // all GPUs, and so leaves pairs with two links.
    for (policy, pair) in [
        (Policy::GoGpuallocator, set(&[0, 3])),
        (Policy::Hami, set(&[2, 3])),
        (Policy::VgpuManager, set(&[2, 3])),
    ] {
        assert_eq!(chosen(policy, all, 2), pair, "{}", policy.name());
        assert_eq!(chosen(policy, all, 4), set(&[0, 1, 2, 3]), "{}", policy.name());
    }
    // One GPU: the tree fills the subtree with the fewest free GPUs.
    assert_eq!(chosen(Policy::GpuManager, all.without(set(&[6])), 1), set(&[7]));
    assert_eq!(chosen(Policy::GoGpuallocator, all.without(set(&[0])), 1), set(&[1]));
    // go-gpuallocator does not count links through an NVSwitch, and HAMi does.
    let hgx = matrix("hgx-a100-2numa").topology;
    assert_eq!(placed(Policy::GoGpuallocator, &hgx, set(&[1, 2, 3, 4, 5]), 2), Some(set(&[4, 5])));
    assert_eq!(placed(Policy::VgpuManager, &hgx, set(&[3, 4, 5]), 3), Some(set(&[3, 4, 5])));
    // The tree takes the lowest subtree with room, and has no parts of several GPUs.
    let pairs = matrix("8gpu-pix-node-sys").topology;
    assert_eq!(placed(Policy::GpuManager, &pairs, set(&[1, 2, 4, 5]), 2), Some(set(&[4, 5])));
    assert_eq!(placed(Policy::GpuManager, &pairs, set(&[1, 2, 4]), 2), Some(set(&[1, 2])));
    let mut rooms = only(all, 8);
    rooms[0].share_ppm = PPM / 2;
    let halves = Request { share_ppm: PPM / 2, ..asks(8) };
    assert_eq!(Policy::GpuManager.placer(&pairs).place(&rooms, &halves), None);
    assert_eq!(Policy::Hami.placer(&pairs).place(&rooms, &halves), Some(all));
}

/// The division of go-gpuallocator, as its description says: try all, take the first best.
fn divided_by_trial(topology: &Topology, free: GpuSet, size: usize) -> Option<GpuSet> {
    fn divisions(gpus: &[usize], size: usize, done: &mut Vec<GpuSet>, all: &mut Vec<Vec<GpuSet>>) {
        if gpus.is_empty() {
            return all.push(done.clone());
        }
        let short = gpus.len() % size;
        let mut firsts = Vec::new();
        for len in [size, short] {
            if len > 0 && !(len == short && done.iter().any(|set| set.len() < size)) {
                let rest: GpuSet = gpus[1..].iter().copied().collect();
                subsets(rest, len - 1, |set| firsts.push(set.with(gpus[0])));
            }
        }
        // An empty place comes after all GPUs.
        firsts.sort_by_key(|set| {
            let empty = (set.len()..size).map(|_| usize::MAX);
            set.iter().chain(empty).collect::<Vec<_>>()
        });
        for first in firsts {
            let rest: Vec<usize> = gpus.iter().copied().filter(|gpu| !first.contains(*gpu)).collect();
            done.push(first);
            divisions(&rest, size, done, all);
            done.pop();
        }
    }
    let score = |set: &GpuSet| -> u64 {
        let of_pair = |(a, b): (usize, usize)| {
            let pair = topology.pair(a, b);
            let links = if pair.is_switched { 0 } else { u64::from(pair.links) };
            [60, 50, 40, 30, 20, 10][pair.wire.level as usize] + 100 * links
        };
        set.pairs().map(of_pair).sum()
    };
    let mut all = Vec::new();
    divisions(&free.iter().collect::<Vec<_>>(), size, &mut Vec::new(), &mut all);
    let sum = |division: &Vec<GpuSet>| division.iter().map(score).sum::<u64>();
    // Of equal ones, `min_by_key` takes the first.
    let best = all.iter().min_by_key(|division| u64::MAX - sum(division))?;
    let full = best.iter().filter(|set| set.len() == size);
    full.min_by_key(|set| u64::MAX - score(set)).copied()
}

#[test]
fn divisions_are_those_that_trying_all_finds() {
    for name in ["dgx1-v100", "8gpu-pix-node-sys", "6gpu-pix-node-sys-measured"] {
        let topology = matrix(name).topology;
        let all = (1_u32..1 << topology.len()).map(GpuSet::from_bits);
        // Every third set is enough, and saves time.
        for free in all.step_by(3) {
            for size in 2..=free.len() {
                let found = placed(Policy::GoGpuallocator, &topology, free, size);
                assert_eq!(found, divided_by_trial(&topology, free, size), "{name}: {size} of {free:?}");
            }
        }
    }
}

/// Checks one decision of each policy; without `divides`, of all but go-gpuallocator. Returns
/// whether deepres had more bandwidth than each other policy.
fn check_decision(
    name: &str,
    reference: &mut Reference,
    topology: &Topology,
    free: GpuSet,
    size: usize,
    divides: bool,
) -> [bool; SYSTEMS.len()] {
    let ours = placed(Policy::Deepres, topology, free, size).expect("the GPUs are free");
    let worth = reference.worth(ours);
    assert_eq!(reference.best(free, size), worth, "{name}: {size} of {free:?}");
    SYSTEMS.map(|policy| {
        if policy == Policy::GoGpuallocator && !divides {
            return false;
        }
        let theirs = placed(policy, topology, free, size).expect("the GPUs are free");
        assert!(theirs.len() == size && theirs.is_within(free), "{name}: {}", policy.name());
        let theirs = reference.worth(theirs);
        // With as much bandwidth in all pairs together, the weakest pair of deepres has no less.
        assert!(worth >= theirs, "{name}: {}: {size} of {free:?}", policy.name());
        worth.1 > theirs.1
    })
}

/// Checks all decisions on a machine, or those for 500 random sets of free GPUs if the machine has
/// more than 8 GPUs. Returns the number of decisions in which deepres had more bandwidth than each
/// policy.
fn check_machine(Matrix { name, topology }: &Matrix) -> [u32; SYSTEMS.len()] {
    let gpus = topology.len();
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let free: Vec<GpuSet> = match gpus {
        0..=8 => (1..1 << gpus).map(GpuSet::from_bits).collect(),
        _ => (0..500).map(|_| GpuSet::from_bits(random.next_u32()) & GpuSet::first(gpus)).collect(),
    };
    let mut reference = Reference::new(topology);
    let mut better = [0; SYSTEMS.len()];
    for (place, free) in free.into_iter().enumerate() {
        for size in 2..=free.len() {
            // The divisions of more than eight GPUs take long for each size.
            let divides = gpus <= 8 || size == 2 || size == 8;
            if divides || place % EVERY == 0 {
                let more = check_decision(name, &mut reference, topology, free, size, divides);
                better.iter_mut().zip(more).for_each(|(count, more)| *count += u32::from(more));
            }
        }
    }
    better
}

#[test]
fn deepres_never_has_less_bandwidth_whatever_is_occupied() {
    for matrix in all().into_iter().chain(made_up()).filter(|matrix| matrix.topology.len() <= 8) {
        let [_, tree, best_effort, hami, tiers] = check_machine(&matrix);
        // On a DGX-1, deepres has more than each other policy. The tree knows no NVLinks.
        match matrix.name.as_str() {
            "dgx1-v100" => assert!([tree, best_effort, hami, tiers].iter().all(|count| *count > 0)),
            "across" => assert!(tree > 0),
            _ => {}
        }
    }
}

#[test]
fn deepres_never_has_less_bandwidth_on_sixteen_gpus() {
    for matrix in all().into_iter().chain(made_up()).filter(|matrix| matrix.topology.len() > 8) {
        check_machine(&matrix);
    }
}

#[test]
fn behind_an_nvswitch_deepres_crosses_the_fewest_numa_nodes() {
    for name in ["hgx-h100", "hgx-a100-2numa", "dgx-a100-completed", "ansi-header"] {
        let topology = matrix(name).topology;
        let crossings = |set: GpuSet| {
            let node = |gpu: usize| topology.gpus()[gpu].numa_node;
            set.pairs().filter(|(a, b)| node(*a) != node(*b)).count()
        };
        let mut fewer = 0;
        for free in (1..1 << 8).map(GpuSet::from_bits) {
            for size in 2..=free.len() {
                let of = |policy| placed(policy, &topology, free, size).map(crossings).unwrap();
                let [ours, others @ ..] = SYSTEMS.map(of);
                assert!(others.iter().all(|theirs| ours <= *theirs), "{name}: {size} of {free:?}");
                fewer += u32::from(others.iter().any(|theirs| ours < *theirs));
            }
        }
        assert!(fewer > 0, "{name}");
    }
}

#[test]
fn the_tiers_of_real_machines() {
    let tier = |name: &str, gpus: &[usize]| {
        let topology = matrix(name).topology;
        topology.tier(set(gpus), GpuSet::first(topology.len()))
    };
    assert_eq!(tier("dgx1-v100", &[0, 7]), Tier::NvLink, "by way of others");
    assert_eq!(tier("4gpu-nv4-pairs", &[0, 1]), Tier::NvLink);
    assert_eq!(tier("4gpu-nv4-pairs", &[1, 2]), Tier::Any);
    assert_eq!(tier("8gpu-pix-quads", &[0, 3]), Tier::Switch);
    assert_eq!(tier("8gpu-node-sys", &[0, 3]), Tier::NumaNode);
    assert_eq!(tier("8gpu-node-sys", &[0, 4]), Tier::Any);
}

#[test]
fn parts_of_the_best_set() {
    let topology = matrix("dgx1-v100").topology;
    let mut reference = Reference::new(&topology);
    let all = GpuSet::first(8);
    assert_eq!(reference.parts(set(&[0, 3]), all), (1.0, 1.0));
    assert_eq!(reference.parts(set(&[0, 1]), all), (0.5, 0.5));
    // Two links and one against three pairs with one: more for the weakest pair, less for the mean.
    let (mean, worst) = reference.parts(set(&[0, 1, 3]), set(&[0, 1, 3, 4, 7]));
    assert!(mean < 1.0 && worst == 1.0, "{mean} {worst}");
    assert_eq!(placed(Policy::Deepres, &topology, set(&[0, 1, 3, 4]), 3), Some(set(&[0, 3, 4])));
    assert_eq!(with_room(&only(set(&[1, 2]), 4), PPM), set(&[1, 2]));
}

/// Checks the figures of one machine after arrivals and departures.
fn check_rows(rows: &[Row]) {
    let [ours, others @ ..] = rows else { panic!("no rows") };
    let name = &ours.matrix;
    assert_eq!(ours.policy, "deepres");
    assert_eq!((ours.bandwidth_vs_best_mean, ours.bandwidth_vs_best_worst), (1.0, 1.0), "{name}");
    assert_eq!(ours.p2p_missed, 0, "{name}");
    for other in others {
        let (refused, theirs) = (ours.refused_though_free, other.refused_though_free);
        assert!(refused <= theirs, "{name}: {refused} refused, {theirs} by {}", other.policy);
    }
}

#[test]
fn jobs_arrive_and_leave() {
    for name in ["4gpu-nv4-pairs", "dgx1-v100"] {
        let rows = evaluate(&matrix(name), 1_000, &SEEDS[..1], &Policy::ALL);
        check_rows(&rows);
        assert_eq!(rows, evaluate(&matrix(name), 1_000, &SEEDS[..1], &Policy::ALL), "always the same");
    }
}

#[test]
#[ignore = "deep: fifty thousand arrivals on each machine"]
fn deepres_refuses_the_fewest_jobs_for_which_enough_was_free() {
    let mut table = String::new();
    for matrix in all().into_iter().chain(made_up()) {
        let rows = evaluate(&matrix, arrivals::COUNT, &SEEDS, &Policy::ALL);
        check_rows(&rows);
        let refused: Vec<String> = rows.iter().map(|row| row.refused_though_free.to_string()).collect();
        table += &format!("| {} | {} | {} |\n", matrix.name, matrix.topology.len(), refused.join(" | "));
    }
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/placement.md");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains(&table), "docs/placement.md lacks these figures:\n{table}");
}
