//! The topology of a machine: how its GPUs reach each other.
//!
//! Two things together describe the topology. The tree of PCI Express gives each pair of GPUs a
//! common ancestor ([`Level`]). The graph of NVLinks joins pairs, whatever their ancestor. On one
//! known machine each pair of GPUs with NVLinks lies on two processors. So neither tree nor graph
//! follows from the other.
//!
//! The types name no library. The daemon fills them from NVML, and the tests from the text of
//! `nvidia-smi topo -m`.

use super::bandwidth::{WITHOUT_P2P_MB_S, nvlink_mb_s, pci_mb_s};
use super::set::GpuSet;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use deepres_abi::MAX_GPUS;

/// The common ancestor of two GPUs on PCI Express, from near to far. The names in brackets are
/// those of `nvidia-smi topo -m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Both GPUs are on one board.
    Board,
    /// One PCI Express switch (PIX).
    Pix,
    /// Several PCI Express switches, without the processor (PXB).
    Pxb,
    /// A host bridge of the processor (PHB).
    Phb,
    /// A NUMA node with several host bridges (NODE).
    Node,
    /// The connection between NUMA nodes (SYS).
    System,
}

impl Level {
    /// Returns the name in `nvidia-smi topo -m`. GPUs on one board have NVML's name there.
    pub fn name(self) -> &'static str {
        match self {
            Self::Board => "INTERNAL",
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::System => "SYS",
        }
    }
}

/// NVML's answer to the question whether two GPUs can copy to each other directly. The names in
/// brackets are those of `nvidia-smi topo -p2p`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum P2p {
    /// The GPUs can (OK).
    Ok,
    /// The chipset cannot (CNS).
    Chipset,
    /// The GPU cannot, or the driver refuses (GNS).
    Gpu,
    /// The topology does not permit it (TNS).
    Topology,
    /// The administrator turned it off (DR).
    Disabled,
    /// Not supported for another reason (NS).
    NotSupported,
    /// NVML does not know (U).
    Unknown,
}

impl P2p {
    /// Returns the name in `nvidia-smi topo -p2p`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Chipset => "CNS",
            Self::Gpu => "GNS",
            Self::Topology => "TNS",
            Self::Disabled => "DR",
            Self::NotSupported => "NS",
            Self::Unknown => "U",
        }
    }
}

/// The other end of an NVLink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Remote {
    /// Another GPU of the machine, by its place.
    Gpu(usize),
    /// An NVSwitch, which joins all GPUs that have links to it.
    Switch,
    /// Anything else, for example a processor.
    Other,
}

/// An active NVLink of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NvLink {
    /// The generation, from 1.
    pub generation: u8,
    /// The other end.
    pub remote: Remote,
}

/// The NVLink fabric to which a GPU belongs. Only GPUs of one clique reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fabric {
    /// NVML's UUID of the NVLink cluster, which is no Slurm or Kubernetes cluster.
    pub cluster: [u8; 16],
    /// NVML's clique id: the number of the GPU's group within the NVLink cluster.
    pub clique: u32,
}

/// A GPU, as its driver describes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gpu {
    /// The active NVLinks.
    pub links: Vec<NvLink>,
    /// The NUMA node; `None` if the driver does not say, as in many virtual machines.
    pub numa_node: Option<u32>,
    /// The NVLink fabric, once the GPU has joined it.
    pub fabric: Option<Fabric>,
}

/// The connection of two GPUs apart from NVLinks, as the driver describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Wire {
    /// The common ancestor.
    pub level: Level,
    /// The answer about direct copies; `None` if the driver was not asked. Without an answer, the
    /// GPUs count as able.
    pub p2p: Option<P2p>,
}

/// The connection of two GPUs with everything that follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pair {
    /// The connection apart from NVLinks.
    pub wire: Wire,
    /// The number of NVLinks between the GPUs. Behind an NVSwitch, the lesser of the GPUs' numbers
    /// of links.
    pub links: u8,
    /// The generation of these links; 0 without links.
    pub generation: u8,
    /// Whether the links lead through an NVSwitch.
    pub is_switched: bool,
    /// The bandwidth in one direction, MB/s.
    pub mb_s: u32,
    /// The distance of the GPUs' NUMA nodes in the units of ACPI: [`LOCAL_DISTANCE`] within a node.
    pub numa_distance: u32,
}

impl Pair {
    /// Returns whether the GPUs can copy to each other directly.
    pub fn has_p2p(&self) -> bool {
        matches!(self.wire.p2p, None | Some(P2p::Ok))
    }
}

/// The distance within a NUMA node, as ACPI defines it.
pub const LOCAL_DISTANCE: u32 = 10;
/// The distance between two NUMA nodes of which no distance is known, as ACPI defines it.
pub const REMOTE_DISTANCE: u32 = 20;

/// A degree of nearness, from near to far. Each tier divides the GPUs into components.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// NVLinks join the GPUs.
    NvLink,
    /// PCI Express switches join the GPUs.
    Switch,
    /// The GPUs are on one NUMA node.
    NumaNode,
    /// The GPUs are on NUMA nodes that are nearer to each other than the farthest two, for example
    /// the nodes of one processor.
    NearNodes,
    /// Any GPUs of the machine.
    Any,
}

impl Tier {
    /// All tiers, from near to far.
    pub const ALL: [Self; 5] = [Self::NvLink, Self::Switch, Self::NumaNode, Self::NearNodes, Self::Any];
}

/// A part of the tree of PCI Express and NUMA nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Branch {
    /// The nearest tier of the tree that joins all GPUs of the branch: never [`Tier::NvLink`].
    pub tier: Tier,
    /// The GPUs.
    pub gpus: GpuSet,
    /// The branches into which a nearer tier divides the GPUs. Without any, nothing divides them.
    pub branches: Vec<Branch>,
}

/// The tiers of the tree, from the root to the leaves.
const TREE: [Tier; 4] = [Tier::Any, Tier::NearNodes, Tier::NumaNode, Tier::Switch];

/// The topology of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    gpus: Vec<Gpu>,
    /// The pair of the GPUs `a` and `b` is at `a * gpus + b` and at `b * gpus + a`. The diagonal
    /// holds pairs that nobody reads.
    pairs: Vec<Pair>,
    farthest: u32,
}

impl Topology {
    /// Returns the topology of these GPUs, but at most of the first [`MAX_GPUS`]. `wire` gives the
    /// connection of two GPUs by their places, the lower place first. `distances` has the distances
    /// of NUMA nodes, the lower node first, as far as they are known.
    pub fn new(
        mut gpus: Vec<Gpu>,
        wire: impl Fn(usize, usize) -> Wire,
        distances: &BTreeMap<(u32, u32), u32>,
    ) -> Self {
        gpus.truncate(MAX_GPUS);
        let count = gpus.len();
        let nobodys = Wire { level: Level::Board, p2p: None };
        let pair = |a: usize, b: usize| match (a.min(b), a.max(b)) {
            (low, high) if low == high => join(&gpus, low, high, nobodys, distances),
            (low, high) => join(&gpus, low, high, wire(low, high), distances),
        };
        let pairs: Vec<Pair> = (0..count * count).map(|place| pair(place / count, place % count)).collect();
        let farthest = pairs.iter().map(|pair| pair.numa_distance).max().unwrap_or(LOCAL_DISTANCE);
        Self { gpus, pairs, farthest }
    }

    /// Returns a machine of which only the number of GPUs is known. All GPUs are far from each
    /// other.
    pub fn unknown(gpus: usize) -> Self {
        let far = |_, _| Wire { level: Level::System, p2p: None };
        Self::new(alloc::vec![Gpu::default(); gpus], far, &BTreeMap::new())
    }

    /// Returns the number of GPUs.
    pub fn len(&self) -> usize {
        self.gpus.len()
    }

    /// Returns whether the machine has no GPU.
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// Returns the GPUs as the driver describes them.
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// Returns the connection of two different GPUs.
    ///
    /// # Panics
    /// The machine has no such GPU.
    pub fn pair(&self, a: usize, b: usize) -> &Pair {
        &self.pairs[a * self.len() + b]
    }

    /// Returns the pairs of GPUs with NVLinks between them: the graph of links.
    pub fn links(&self) -> impl Iterator<Item = (usize, usize, &Pair)> {
        let pairs = GpuSet::first(self.len()).pairs();
        pairs.map(|(a, b)| (a, b, self.pair(a, b))).filter(|(_, _, pair)| pair.links > 0)
    }

    /// Returns whether a tier joins two GPUs directly.
    fn joins(&self, tier: Tier, a: usize, b: usize) -> bool {
        let pair = self.pair(a, b);
        let node = |gpu: usize| self.gpus[gpu].numa_node;
        match tier {
            Tier::NvLink => pair.links > 0,
            Tier::Switch => pair.wire.level <= Level::Pxb,
            Tier::NumaNode => pair.wire.level <= Level::Node || (node(a).is_some() && node(a) == node(b)),
            Tier::NearNodes => pair.numa_distance < self.farthest || self.joins(Tier::NumaNode, a, b),
            Tier::Any => true,
        }
    }

    /// Returns the components into which a tier divides `among`, in the order of their first GPUs.
    pub fn components(&self, tier: Tier, among: GpuSet) -> Vec<GpuSet> {
        let mut rest = among & GpuSet::first(self.len());
        let mut components = Vec::new();
        while let Some(first) = rest.iter().next() {
            let mut component = GpuSet::EMPTY.with(first);
            let mut size = 0;
            while size < component.len() {
                size = component.len();
                let is_joined = |gpu: &usize| {
                    component.contains(*gpu) || component.iter().any(|other| self.joins(tier, other, *gpu))
                };
                component = rest.iter().filter(is_joined).collect();
            }
            rest = rest.without(component);
            components.push(component);
        }
        components
    }

    /// Returns the tree of PCI Express and NUMA nodes.
    pub fn tree(&self) -> Branch {
        self.branch(&TREE, GpuSet::first(self.len()))
    }

    /// Returns the branch of the tree with these GPUs, which the first of the tiers joins.
    fn branch(&self, tiers: &[Tier], gpus: GpuSet) -> Branch {
        let mut tier = Tier::Any;
        for (place, next) in tiers.iter().enumerate() {
            match &self.components(*next, gpus)[..] {
                [] | [_] => tier = *next,
                parts => {
                    let branches = parts.iter().map(|part| self.branch(&tiers[place..], *part)).collect();
                    return Branch { tier, gpus, branches };
                }
            }
        }
        Branch { tier, gpus, branches: Vec::new() }
    }

    /// Returns the nearest tier that has `gpus` in one component of `among`.
    pub fn tier(&self, gpus: GpuSet, among: GpuSet) -> Tier {
        let holds = |tier: &Tier| self.components(*tier, among).iter().any(|part| gpus.is_within(*part));
        Tier::ALL.into_iter().find(holds).unwrap_or(Tier::Any)
    }
}

/// Returns the connection of the GPUs `a` and `b`.
fn join(gpus: &[Gpu], a: usize, b: usize, wire: Wire, distances: &BTreeMap<(u32, u32), u32>) -> Pair {
    let (links, generation, is_switched) = links(gpus, a, b);
    let mut pair = Pair { wire, links, generation, is_switched, mb_s: WITHOUT_P2P_MB_S, numa_distance: 0 };
    if pair.has_p2p() {
        pair.mb_s = if links > 0 { nvlink_mb_s(generation, links) } else { pci_mb_s(wire.level) };
    }
    pair.numa_distance = match (gpus[a].numa_node, gpus[b].numa_node) {
        (Some(one), Some(other)) if one == other => LOCAL_DISTANCE,
        (Some(one), Some(other)) => {
            *distances.get(&(one.min(other), one.max(other))).unwrap_or(&REMOTE_DISTANCE)
        }
        _ if wire.level <= Level::Node => LOCAL_DISTANCE,
        _ => REMOTE_DISTANCE,
    };
    pair
}

/// Returns the number of NVLinks between two GPUs, their generation, and whether they lead through
/// an NVSwitch.
fn links(gpus: &[Gpu], a: usize, b: usize) -> (u8, u8, bool) {
    let to = |from: usize, remote: Remote| {
        let links = gpus[from].links.iter().filter(move |link| link.remote == remote);
        let generation = links.clone().map(|link| link.generation).min();
        (u8::try_from(links.count()).unwrap_or(u8::MAX), generation.unwrap_or(0))
    };
    // A GPU of another container may not show its end of a link.
    let direct = to(a, Remote::Gpu(b)).max(to(b, Remote::Gpu(a)));
    if direct.0 > 0 {
        return (direct.0, direct.1, false);
    }
    let (one, other) = (to(a, Remote::Switch), to(b, Remote::Switch));
    // NVML names the switch in place of the peer. All GPUs of a clique reach each other.
    match one.0.min(other.0) {
        links if links > 0 && gpus[a].fabric == gpus[b].fabric => (links, one.1.min(other.1), true),
        _ => (0, 0, false),
    }
}
