//! `deepres topo`: shows how the GPUs of this machine reach each other.

mod svg;

use super::out;
use anyhow::Result;
use deepres_daemon::Gpu;
use deepres_policy::placement::{Branch, GpuSet, NvLink, Pair, Remote, Tier, Topology};
use serde_json::{Value, json};
use std::io::{self, Write};

/// MB/s in a GB/s.
const MB: f64 = 1e3;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The output has the tree of NUMA nodes and PCI Express switches, and the pairs of GPUs with NVLinks. The \
bandwidths are estimates for one direction (docs/placement.md).

Examples:
  deepres topo
  deepres topo --json | jq '.pairs[] | select(.nvlinks > 0)'
  deepres topo --svg > machine.svg")]
pub struct Args {
    /// Print everything as one JSON object
    #[arg(long, conflicts_with = "svg")]
    json: bool,
    /// Print a drawing (SVG)
    #[arg(long)]
    svg: bool,
}

/// Prints the topology.
pub fn run(args: &Args) -> Result<()> {
    let gpus = Gpu::all()?;
    let topology = Gpu::topology(&gpus)?;
    out::print(|out| match args {
        Args { json: true, .. } => {
            serde_json::to_writer_pretty(&mut *out, &as_json(&gpus, &topology))?;
            writeln!(out)
        }
        Args { svg: true, .. } => write!(out, "{}", svg::draw(&topology)),
        _ => print(&gpus, &topology, out),
    })
}

/// Returns the name of a branch of the tree.
fn name(topology: &Topology, branch: &Branch) -> String {
    let mut nodes = branch.gpus.iter().map(|gpu| topology.gpus()[gpu].numa_node);
    let node = nodes.next().flatten().filter(|first| nodes.all(|node| node == Some(*first)));
    match (branch.tier, node) {
        (Tier::Switch, _) => "PCI Express switch".to_owned(),
        (Tier::NumaNode, Some(node)) => format!("NUMA node {node}"),
        (Tier::NumaNode, None) => "NUMA node".to_owned(),
        (Tier::NearNodes, _) => "near NUMA nodes".to_owned(),
        (Tier::NvLink | Tier::Any, _) => "machine".to_owned(),
    }
}

fn print(gpus: &[Gpu], topology: &Topology, out: &mut impl Write) -> io::Result<()> {
    print_branch(gpus, topology, &topology.tree(), 0, out)?;
    let pair = |a: usize, b: usize, says: &str| format!("  gpu {a} - gpu {b}: {says}");
    let mut links = topology.links().peekable();
    if links.peek().is_some() {
        writeln!(out, "\nNVLinks")?;
    }
    for (a, b, Pair { links, generation, is_switched, mb_s, .. }) in links {
        let way = if *is_switched { " through NVSwitches" } else { "" };
        let gb_s = f64::from(*mb_s) / MB;
        let says = format!("{links} of generation {generation}{way}, {gb_s:.1} GB/s");
        writeln!(out, "{}", pair(a, b, &says))?;
    }
    let refused: Vec<_> = all_pairs(topology).filter(|(a, b)| !topology.pair(*a, *b).has_p2p()).collect();
    if !refused.is_empty() {
        writeln!(out, "\nNo direct copies")?;
    }
    for (a, b) in refused {
        let status = topology.pair(a, b).wire.p2p.map_or("unknown", |status| status.name());
        writeln!(out, "{}", pair(a, b, status))?;
    }
    Ok(())
}

fn print_branch(
    gpus: &[Gpu],
    topology: &Topology,
    branch: &Branch,
    depth: usize,
    out: &mut impl Write,
) -> io::Result<()> {
    /// Blanks for each step towards the leaves.
    const STEP: usize = 2;
    let indent = depth * STEP;
    if branch.gpus.len() > 1 || depth == 0 {
        writeln!(out, "{:indent$}{}", "", name(topology, branch))?;
    }
    for part in &branch.branches {
        print_branch(gpus, topology, part, depth + 1, out)?;
    }
    if branch.branches.is_empty() {
        let indent = if branch.gpus.len() > 1 || depth == 0 { indent + STEP } else { indent };
        for gpu in branch.gpus.iter() {
            let node = topology.gpus()[gpu].numa_node;
            let node = node.map_or_else(String::new, |node| format!(", NUMA node {node}"));
            writeln!(out, "{:indent$}gpu {gpu}  {}, {}{node}", "", gpus[gpu].name, gpus[gpu].uuid_text)?;
        }
    }
    Ok(())
}

fn all_pairs(topology: &Topology) -> impl Iterator<Item = (usize, usize)> {
    GpuSet::first(topology.len()).pairs()
}

fn as_json(gpus: &[Gpu], topology: &Topology) -> Value {
    let link = |link: &NvLink| {
        let (remote, gpu) = match link.remote {
            Remote::Gpu(gpu) => ("gpu", Some(gpu)),
            Remote::Switch => ("switch", None),
            Remote::Other => ("other", None),
        };
        json!({ "generation": link.generation, "remote": remote, "gpu": gpu })
    };
    let gpu = |(index, (own, facts)): (usize, (&Gpu, &deepres_policy::placement::Gpu))| {
        let fabric = facts.fabric.map(|fabric| {
            let cluster: String = fabric.cluster.iter().map(|byte| format!("{byte:02x}")).collect();
            json!({ "cluster": cluster, "clique": fabric.clique })
        });
        json!({
            "index": index,
            "uuid": own.uuid_text,
            "name": own.name,
            "numa_node": facts.numa_node,
            "nvlinks": facts.links.iter().map(link).collect::<Vec<_>>(),
            "fabric": fabric,
        })
    };
    let pair = |(a, b): (usize, usize)| {
        let pair = topology.pair(a, b);
        json!({
            "gpus": [a, b],
            "ancestor": pair.wire.level.name(),
            "p2p": pair.wire.p2p.map(|status| status.name()),
            "nvlinks": pair.links,
            "nvlink_generation": (pair.links > 0).then_some(pair.generation),
            "through_nvswitch": pair.is_switched,
            "bandwidth_mb_per_s": pair.mb_s,
            "numa_distance": pair.numa_distance,
        })
    };
    json!({
        "gpus": gpus.iter().zip(topology.gpus()).enumerate().map(gpu).collect::<Vec<_>>(),
        "pairs": all_pairs(topology).map(pair).collect::<Vec<_>>(),
        "tree": branch_as_json(topology, &topology.tree()),
    })
}

fn branch_as_json(topology: &Topology, branch: &Branch) -> Value {
    let branches: Vec<Value> = branch.branches.iter().map(|part| branch_as_json(topology, part)).collect();
    let gpus: Vec<usize> = branch.gpus.iter().collect();
    json!({ "name": name(topology, branch), "gpus": gpus, "branches": branches })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use deepres_policy::placement::{Level, P2p, Wire};
    use std::collections::BTreeMap;

    /// Four GPUs in pairs behind switches, on two NUMA nodes. 0 and 2 have NVLinks, and 1 and 3
    /// cannot copy directly.
    pub fn machine() -> Topology {
        let links = |peer| vec![NvLink { generation: 3, remote: Remote::Gpu(peer) }; 4];
        let gpu = |place: usize| deepres_policy::placement::Gpu {
            links: if place.is_multiple_of(2) { links(place ^ 2) } else { Vec::new() },
            numa_node: Some(place as u32 / 2),
            fabric: None,
        };
        let wire = |a: usize, b: usize| Wire {
            level: if a / 2 == b / 2 { Level::Pix } else { Level::System },
            p2p: Some(if (a, b) == (1, 3) { P2p::Chipset } else { P2p::Ok }),
        };
        Topology::new((0..4).map(gpu).collect(), wire, &BTreeMap::new())
    }

    fn gpus() -> Vec<Gpu> {
        let gpu = |place| Gpu::new(&format!("GPU-00000000-0000-0000-0000-00000000000{place}"), "H", 1);
        (0..4).map(|place| gpu(place).unwrap()).collect()
    }

    #[test]
    fn the_tree_and_the_links_are_printed() {
        let mut out = Vec::new();
        print(&gpus(), &machine(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let expected = "\
machine
  PCI Express switch
    gpu 0  H, GPU-00000000-0000-0000-0000-000000000000, NUMA node 0
    gpu 1  H, GPU-00000000-0000-0000-0000-000000000001, NUMA node 0
  PCI Express switch
    gpu 2  H, GPU-00000000-0000-0000-0000-000000000002, NUMA node 1
    gpu 3  H, GPU-00000000-0000-0000-0000-000000000003, NUMA node 1

NVLinks
  gpu 0 - gpu 2: 4 of generation 3, 80.0 GB/s

No direct copies
  gpu 1 - gpu 3: CNS
";
        assert_eq!(text, expected);
    }

    #[test]
    fn the_json_has_each_gpu_and_each_pair() {
        let value = as_json(&gpus(), &machine());
        assert_eq!(value["gpus"][2]["nvlinks"][3], json!({ "generation": 3, "remote": "gpu", "gpu": 0 }));
        assert_eq!(value["pairs"].as_array().unwrap().len(), 6);
        assert_eq!(
            value["pairs"][1],
            json!({
                "gpus": [0, 2], "ancestor": "SYS", "p2p": "OK", "nvlinks": 4, "nvlink_generation": 3,
                "through_nvswitch": false, "bandwidth_mb_per_s": 80_000, "numa_distance": 20,
            })
        );
        assert_eq!(value["tree"]["branches"][1]["gpus"], json!([2, 3]));
    }
}
