//! The topology of the simulated machine: the key `topology` of the configuration.

use crate::{Config, Error};
use serde::Deserialize;

/// The most NVLinks of a GPU (`NVML_NVLINK_MAX_LINKS`).
pub const MAX_LINKS: usize = 18;

/// Nearest part of the machine that two GPUs have in common, on the way to the processor. The
/// configuration has the names of `nvidia-smi topo -m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Ancestor {
    /// Both GPUs are the same GPU.
    #[serde(rename = "X")]
    Same,
    /// The nearest common part of the two GPUs is a board with several GPUs.
    #[serde(rename = "INTERNAL")]
    Board,
    /// The nearest common part of the two GPUs is a PCIe switch.
    #[serde(rename = "PIX")]
    Switch,
    /// The nearest common part of the two GPUs is a group of PCIe switches.
    #[serde(rename = "PXB")]
    Switches,
    /// The nearest common part of the two GPUs is a host bridge.
    #[serde(rename = "PHB")]
    HostBridge,
    /// The nearest common part of the two GPUs is a NUMA node.
    #[serde(rename = "NODE")]
    Node,
    /// The nearest common part of the two GPUs is the machine as a whole.
    #[serde(rename = "SYS")]
    System,
}

/// Whether two GPUs can copy to each other directly. The configuration has the names of `nvidia-smi
/// topo -p2p`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum P2p {
    /// The GPUs can copy to each other directly, or both are the same GPU.
    #[serde(rename = "OK", alias = "X")]
    Ok,
    /// The chipset does not permit direct copies between the GPUs.
    #[serde(rename = "CNS")]
    Chipset,
    /// The GPU does not support direct copies to the other GPU.
    #[serde(rename = "GNS")]
    Gpu,
    /// The topology does not permit direct copies between the GPUs.
    #[serde(rename = "TNS")]
    Topology,
    /// The administrator turned off direct copies between the GPUs.
    #[serde(rename = "DR")]
    Disabled,
    /// Direct copies between the GPUs are not supported for another reason.
    #[serde(rename = "NS")]
    NotSupported,
    /// Whether the GPUs can copy to each other directly is not known.
    #[serde(rename = "U")]
    Unknown,
}

/// The other end of an NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remote {
    /// This GPU.
    Gpu(usize),
    /// An NVSwitch.
    Switch,
}

/// The topology of the virtual machine. `default.toml` explains each key.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "default.toml is where the keys are documented, once")]
pub struct Topology {
    pub ancestors: Vec<Vec<Ancestor>>,
    pub nvlinks: Vec<Vec<usize>>,
    pub switch_links: usize,
    pub nvlink_version: u32,
    pub cliques: Vec<u32>,
    pub numa_nodes: Vec<u32>,
    pub p2p: Vec<Vec<P2p>>,
}

impl Topology {
    /// Checks the sizes of all lists.
    pub(crate) fn check(&self, gpus: usize) -> Result<(), Error> {
        let refuse = |what: String| Err(Error::Config(what));
        fn is_square<T>(rows: &[Vec<T>], gpus: usize) -> bool {
            rows.is_empty() || (rows.len() == gpus && rows.iter().all(|row| row.len() == gpus))
        }
        for (key, fits) in [
            ("ancestors", is_square(&self.ancestors, gpus)),
            ("nvlinks", is_square(&self.nvlinks, gpus)),
            ("p2p", is_square(&self.p2p, gpus)),
            ("cliques", self.cliques.is_empty() || self.cliques.len() == gpus),
            ("numa_nodes", self.numa_nodes.is_empty() || self.numa_nodes.len() == gpus),
        ] {
            if !fits {
                return refuse(format!("topology.{key}: must be empty, or for {gpus} GPUs"));
            }
        }
        let most = (0..gpus).map(|gpu| self.links(gpu).count()).max().unwrap_or(0);
        if most > MAX_LINKS {
            return refuse(format!("topology: a GPU has {most} NVLinks: must be at most {MAX_LINKS}"));
        }
        if most > 0 && self.nvlink_version == 0 {
            return refuse("topology.nvlink_version: must be given with NVLinks".to_owned());
        }
        Ok(())
    }

    /// Returns the other ends of a GPU's NVLinks, in the order of the links' numbers.
    pub fn links(&self, gpu: usize) -> impl Iterator<Item = Remote> {
        let row = self.nvlinks.get(gpu).into_iter().flatten().enumerate();
        let direct = row.flat_map(|(peer, count)| std::iter::repeat_n(Remote::Gpu(peer), *count));
        direct.chain(std::iter::repeat_n(Remote::Switch, self.switch_links))
    }

    /// Returns whether two GPUs can copy to each other directly.
    pub fn p2p(&self, a: usize, b: usize) -> P2p {
        self.p2p.get(a).map_or(P2p::Ok, |row| row[b])
    }
}

impl Config {
    /// Returns the nearest common ancestor of two GPUs.
    pub fn common_ancestor(&self, a: usize, b: usize) -> Ancestor {
        if let Some(row) = self.topology.ancestors.get(a) {
            row[b]
        } else if a == b {
            Ancestor::Same
        } else if a / self.gpus_per_switch == b / self.gpus_per_switch {
            Ancestor::Switch
        } else if a / self.gpus_per_node == b / self.gpus_per_node {
            Ancestor::Node
        } else {
            Ancestor::System
        }
    }

    /// Returns the NUMA node of a GPU.
    pub fn numa_node(&self, gpu: usize) -> u32 {
        self.topology.numa_nodes.get(gpu).copied().unwrap_or((gpu / self.gpus_per_node) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_in_full() {
        let config = Config::parse(
            "gpus = 2\n[topology]\nancestors = [['X', 'SYS'], ['SYS', 'X']]\nnvlinks = [[0, 4], [4, 0]]\n\
             nvlink_version = 3\nnuma_nodes = [0, 3]\np2p = [['X', 'CNS'], ['CNS', 'X']]",
        )
        .expect("valid");
        assert_eq!(config.common_ancestor(0, 1), Ancestor::System);
        assert_eq!([0, 1].map(|gpu| config.numa_node(gpu)), [0, 3]);
        assert_eq!(config.topology.links(0).collect::<Vec<_>>(), [Remote::Gpu(1); 4]);
        assert_eq!(config.topology.p2p(1, 0), P2p::Chipset);
        let config =
            Config::parse("gpus = 4\ntopology = { switch_links = 18, nvlink_version = 4 }").expect("valid");
        assert_eq!(config.topology.links(3).collect::<Vec<_>>(), [Remote::Switch; 18]);
        assert_eq!(config.common_ancestor(0, 1), Ancestor::Switch);
    }

    #[test]
    fn neighbours_share_a_switch_then_a_node_then_the_machine() {
        let config = Config::parse("gpus = 8\ngpus_per_switch = 2\ngpus_per_node = 4").expect("valid");
        let ancestors = [0, 1, 2, 4].map(|other| config.common_ancestor(0, other));
        assert_eq!(ancestors, [Ancestor::Same, Ancestor::Switch, Ancestor::Node, Ancestor::System]);
    }

    #[test]
    fn lists_of_another_size_are_refused() {
        for text in [
            "gpus = 2\ntopology.ancestors = [['X']]",
            "gpus = 2\ntopology.nvlinks = [[0, 1], [1]]",
            "gpus = 2\ntopology.cliques = [1]",
            "gpus = 2\ntopology.numa_nodes = [1]",
            "gpus = 2\ntopology.p2p = [['X', 'OK']]",
            "gpus = 2\ntopology.p2p = [['X', 'KO'], ['OK', 'X']]",
            "gpus = 2\ntopology = { nvlinks = [[0, 19], [19, 0]], nvlink_version = 4 }",
            "gpus = 2\ntopology.switch_links = 4",
            "topology.links = 1",
        ] {
            Config::parse(text).expect_err(text);
        }
    }
}
