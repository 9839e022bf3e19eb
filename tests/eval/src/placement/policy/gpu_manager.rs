//! The rules of tkestack/gpu-manager (8cd842e), after DLC: a tree by the common ancestors of GPUs
//! on PCI Express.
//!
//! - A part of a GPU goes to the fullest GPU with room.
//! - A whole GPU goes into the subtree with the fewest free GPUs.
//! - Several GPUs go into the lowest subtree with room. Several GPUs are always whole GPUs, because
//!   gpu-manager has no parts of several GPUs. So a job that asks for parts gets whole GPUs.
//!
//! A subtree gives its first free GPUs. The tree knows no NVLinks.

use deepres_abi::PPM;
use deepres_policy::placement::{GpuSet, Level, Request, Room, Topology};

use super::{Placer, with_room};

/// The levels of inner nodes, from the leaves to the root.
const LEVELS: [Level; 5] = [Level::Pix, Level::Pxb, Level::Phb, Level::Node, Level::System];

/// The tree of a machine.
pub struct Tree {
    nodes: Vec<Node>,
    /// The lowest node above each GPU; `None` directly below the root.
    above: Vec<Option<usize>>,
    all: GpuSet,
}

/// An inner node of the tree.
struct Node {
    level: Level,
    gpus: GpuSet,
    /// The next node on the way to the root; `None` directly below the root.
    parent: Option<usize>,
}

impl Tree {
    /// Builds the tree of a machine.
    pub fn new(topology: &Topology) -> Self {
        let all = GpuSet::first(topology.len());
        let mut nodes: Vec<Node> = Vec::new();
        for (a, b) in all.pairs() {
            let (level, both) = (topology.pair(a, b).wire.level, [a, b].into_iter().collect::<GpuSet>());
            match nodes.iter_mut().find(|node| node.level == level && !(node.gpus & both).is_empty()) {
                Some(node) => node.gpus = node.gpus | both,
                None => nodes.push(Node { level, gpus: both, parent: None }),
            }
        }
        let mut tree = Self { nodes, above: vec![None; topology.len()], all };
        for gpu in all.iter() {
            let (mut own, mut below) = (GpuSet::EMPTY.with(gpu), None);
            for level in LEVELS {
                let is_above = |node: &Node| node.level == level && !(node.gpus & own).is_empty();
                let Some(node) = tree.nodes.iter().position(is_above) else { continue };
                match below {
                    None => tree.above[gpu] = Some(node),
                    Some(below) => {
                        let below: &mut Node = &mut tree.nodes[below];
                        below.parent = Some(node);
                    }
                }
                (own, below) = (tree.nodes[node].gpus, Some(node));
            }
        }
        tree
    }

    /// Returns the free GPUs of the lowest subtree with room for several.
    fn linked(&self, free: GpuSet, gpus: usize) -> GpuSet {
        let has_room = |node: &usize| (self.nodes[*node].gpus & free).len() >= gpus;
        let way = |gpu: usize| std::iter::successors(self.above[gpu], |node| self.nodes[*node].parent);
        let lowest = self.all.iter().filter_map(|gpu| way(gpu).find(has_room));
        let found = lowest.min_by_key(|node| {
            let Node { level, gpus, .. } = &self.nodes[*node];
            (*level, (*gpus & free).len(), *node)
        });
        found.map_or(self.all, |node| self.nodes[node].gpus) & free
    }

    /// Returns the free GPUs of the subtree with the fewest.
    fn fragment(&self, free: GpuSet) -> GpuSet {
        let mut at = None;
        loop {
            let below = (0..self.nodes.len()).filter(|node| self.nodes[*node].parent == at);
            // The nodes directly below the root have no parent, as nodes that are in no way have.
            let below = below.filter(|node| at.is_some() || self.is_first(*node));
            let free_of = |node: &usize| (self.nodes[*node].gpus & free).len();
            match below.filter(|node| free_of(node) > 0).min_by_key(|node| (free_of(node), *node)) {
                Some(node) => at = Some(node),
                None => return at.map_or(self.all, |node| self.nodes[node].gpus) & free,
            }
        }
    }

    /// Returns whether a node is of the highest level.
    fn is_first(&self, node: usize) -> bool {
        self.nodes.iter().all(|other| other.level <= self.nodes[node].level)
    }
}

impl Placer for Tree {
    fn place(&mut self, rooms: &[Room], request: &Request) -> Option<GpuSet> {
        let gpus = request.gpus.get();
        if gpus == 1 && request.share_ppm < PPM {
            let fits = with_room(rooms, request.share_ppm).iter();
            let fullest = fits.min_by_key(|gpu| (rooms[*gpu].share_ppm, *gpu))?;
            return Some(GpuSet::EMPTY.with(fullest));
        }
        let free = with_room(rooms, PPM);
        let subtree = if gpus == 1 { self.fragment(free) } else { self.linked(free, gpus) };
        (subtree.len() >= gpus).then(|| subtree.iter().take(gpus).collect())
    }

    fn takes_ppm(&self, request: &Request) -> u32 {
        if request.gpus.get() > 1 { PPM } else { request.share_ppm }
    }
}
